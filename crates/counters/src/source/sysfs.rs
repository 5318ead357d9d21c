//! Devices that the kernel knows, with the statistics of their network interfaces.

use std::io::{self, Read};
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::common::{Name, Raw, Set};
use crate::sample::{Identity, Kind, Reading, Sample, Subject, monotonic_ns};
use crate::source::ethtool::{Ethtool, KernelEthtool, RecordedEthtool};
use crate::source::{Source, regular};

/// Where the kernel shows its devices.
pub const SYSFS: &str = "/sys";

/// Most entries of a directory that are looked at.
const MAX_ENTRIES: usize = 1024;
/// Longest content of a file that is a value.
const MAX_VALUE_BYTES: u64 = 128;
/// Most GIDs of a port that are looked at: it may have hundreds.
const MAX_GIDS: usize = 16;
/// Of an interface's statistics only these are of RDMA.
const RDMA_STATISTICS: &str = "_vport_rdma_";

/// Reads the kernel's devices.
pub struct SysfsSource {
    class: PathBuf,
    ethtool: Box<dyn Ethtool>,
}

impl SysfsSource {
    /// The devices below `root`, with the statistics of their interfaces: the kernel's own if it
    /// is [`SYSFS`], otherwise what was recorded beside them ([`RecordedEthtool`]).
    pub fn new(root: &Path) -> Self {
        if root == Path::new(SYSFS) {
            Self::with_ethtool(root, KernelEthtool)
        } else {
            Self::with_ethtool(root, RecordedEthtool::new(root))
        }
    }

    /// The devices below `root`, with the statistics that `ethtool` gives of their interfaces.
    pub fn with_ethtool(root: &Path, ethtool: impl Ethtool + 'static) -> Self {
        Self { class: root.join("class").join("infiniband"), ethtool: Box::new(ethtool) }
    }
}

impl Source for SysfsSource {
    fn read(&mut self, reading: &mut Reading) {
        for device in entries(&self.class, None, reading) {
            let about = subject(&device, None);
            let ports = entries(&device.path.join("ports"), Some(&about), reading);
            let several = ports.len() > 1;
            for port in ports {
                // The kernel writes each number in one way only, so that no two ports have the same.
                let number = port.name.parse().ok().filter(|number: &u32| number.to_string() == port.name);
                let Some(number) = number else {
                    reading.note(Some(&about), format!("{} is no port: it has no number", port.path.display()));
                    continue;
                };
                let sample = self.port(&device, &port, number, several, reading);
                reading.samples.extend(sample);
            }
        }
    }
}

impl SysfsSource {
    fn port(&self, device: &Entry, port: &Entry, number: u32, several: bool, reading: &mut Reading) -> Option<Sample> {
        // A device that is made anew has a directory of its own again.
        let incarnation = std::fs::metadata(&port.path).ok()?.ino();
        let netdev = netdev(device, port);
        let about = subject(device, Some(number));
        let at_ns = monotonic_ns();
        let mut raw = Raw::new();
        values(&port.path.join("counters"), Set::Port, &about, &mut raw, reading);
        if !several {
            // Some drivers have all or some counters per device. If device and port share a name, the port's value remains.
            values(&device.path.join("hw_counters"), Set::Hardware, &about, &mut raw, reading);
        }
        values(&port.path.join("hw_counters"), Set::Hardware, &about, &mut raw, reading);
        if let Some(netdev) = &netdev {
            match self.ethtool.statistics(netdev) {
                Ok(statistics) => raw.extend(
                    statistics
                        .into_iter()
                        .filter(|(name, _)| name.contains(RDMA_STATISTICS))
                        .map(|(name, value)| (Name::new(Set::Ethtool, name), value)),
                ),
                Err(error) => {
                    reading.note(Some(&about), format!("{}: no statistics of {netdev}: {error}", device.name));
                }
            }
        }
        if !port.path.exists() {
            return None; // it went while it was read
        }
        let gid = gid(port);
        Some(Sample {
            identity: Identity {
                label: if several { format!("{}/{number}", device.name) } else { device.name.clone() },
                kind: Kind::Kernel,
                name: device.name.clone(),
                port: Some(number),
                address: gid.and_then(|gid| gid.to_ipv4_mapped()).map(IpAddr::V4),
                gid,
                udp_port: None,
                program: None,
                pid: None,
                command: None,
                netdev,
                driver: link_name(&device.path.join("device").join("driver")),
            },
            incarnation,
            at_ns,
            born_ns: None,
            ended: false,
            raw,
        })
    }
}

struct Entry {
    name: String,
    path: PathBuf,
}

/// A device, or one port of it, as the subject of notes.
fn subject(device: &Entry, port: Option<u32>) -> Subject {
    Subject { kind: Kind::Kernel, device: device.name.clone(), port }
}

/// The entries of a directory in order; none if it does not exist. `about` is the subject of notes.
fn entries(path: &Path, about: Option<&Subject>, reading: &mut Reading) -> Vec<Entry> {
    let found = match std::fs::read_dir(path) {
        Ok(found) => found,
        Err(error) => {
            // It may be none of this device, or have gone with it.
            if !matches!(error.kind(), io::ErrorKind::NotFound) && !has_gone(&error) {
                reading.note(about, format!("{} cannot be listed: {error}", path.display()));
            }
            return Vec::new();
        }
    };
    let names = found.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| !name.contains(char::is_control)).take(MAX_ENTRIES).collect();
    names.sort_by_key(|name| (name.len(), name.clone())); // mlx5_2 before mlx5_10
    names.into_iter().map(|name| Entry { path: path.join(&name), name }).collect()
}

fn has_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENOENT))
}

/// A value: the text of a small file. A longer one is cut.
fn text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    regular(path)?.take(MAX_VALUE_BYTES).read_to_string(&mut text)?;
    Ok(text.trim().to_owned())
}

/// Reads a directory of counters. What cannot be read, or is no number, is absent, and noted.
fn values(path: &Path, set: Set, about: &Subject, raw: &mut Raw, reading: &mut Reading) {
    for Entry { name, path } in entries(path, Some(about), reading) {
        if name == "lifespan" {
            continue; // how long the kernel remembers values, in milliseconds
        }
        match text(&path) {
            Ok(text) => match text.parse() {
                Ok(value) => drop(raw.insert(Name::new(set, name), value)),
                // So the kernel says that a port has no such counter.
                Err(_) if text.starts_with("N/A") => {}
                Err(_) => {
                    let text: String = text.chars().take(32).collect();
                    reading.note(Some(about), format!("{} is no number: {text:?}", path.display()));
                }
            },
            Err(error) if has_gone(&error) => {}
            Err(error) => reading.note(Some(about), format!("{} cannot be read: {error}", path.display())),
        }
    }
}

/// The last part of what a symbolic link points to.
fn link_name(path: &Path) -> Option<String> {
    let target = std::fs::read_link(path).ok()?;
    target.file_name()?.to_str().filter(|name| !name.contains(char::is_control)).map(str::to_owned)
}

/// Is it the name of a network interface? The kernel gives none that is a path or has a space in it.
fn is_netdev(name: &str) -> bool {
    let is_path = matches!(name, "." | "..") || name.contains('/');
    !name.is_empty()
        && name.len() < libc::IFNAMSIZ
        && !is_path
        && !name.contains(|c: char| c.is_whitespace() || c.is_control())
}

/// The network interface of a port: the one of its GIDs, else the device's only one, else that
/// which a software device was put on.
fn netdev(device: &Entry, port: &Entry) -> Option<String> {
    let mut ignored = Reading::default();
    let first = |text: io::Result<String>| text.ok().filter(|text| is_netdev(text));
    let of_gids = entries(&port.path.join("gid_attrs").join("ndevs"), None, &mut ignored);
    let of_gids = of_gids.into_iter().take(MAX_GIDS).find_map(|entry| first(text(&entry.path)));
    let of_device = || {
        let mut found = entries(&device.path.join("device").join("net"), None, &mut ignored);
        if found.len() == 1 { found.pop().map(|entry| entry.name).filter(|name| is_netdev(name)) } else { None }
    };
    of_gids.or_else(of_device).or_else(|| first(text(&device.path.join("parent"))))
}

/// The first GID of a port that an IPv4 address is mapped to, else its first.
fn gid(port: &Entry) -> Option<Ipv6Addr> {
    let mut ignored = Reading::default();
    let gids = entries(&port.path.join("gids"), None, &mut ignored);
    let gids = gids.iter().take(MAX_GIDS).filter_map(|entry| text(&entry.path).ok()?.parse().ok());
    let gids: Vec<Ipv6Addr> = gids.filter(|gid: &Ipv6Addr| !gid.is_unspecified()).collect();
    gids.iter().copied().find(|gid| gid.to_ipv4_mapped().is_some()).or(gids.first().copied())
}
