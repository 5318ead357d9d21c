//! RDMA devices of the kernel, with the statistics of their network interfaces.

use std::io::{self, Read};
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::common::{Name, Raw, Set};
use crate::sample::{Identity, Kind, Reading, Sample, Subject, monotonic_ns};
use crate::source::ethtool::{Ethtool, KernelEthtool, RecordedEthtool};
use crate::source::{Source, regular};

/// Directory below which the kernel lists its devices and their counters.
pub const SYSFS: &str = "/sys";

/// Maximum number of entries read from a directory.
const MAX_ENTRIES: usize = 1024;
/// Maximum length in bytes of a file that holds one value.
const MAX_VALUE_BYTES: u64 = 128;
/// Maximum number of GIDs read from a port. A port may have hundreds.
const MAX_GIDS: usize = 16;
/// Text in the names of those interface statistics that concern RDMA.
const RDMA_STATISTICS: &str = "_vport_rdma_";

/// Source of the counters of the kernel's devices.
pub struct SysfsSource {
    class: PathBuf,
    ethtool: Box<dyn Ethtool>,
}

impl SysfsSource {
    /// Creates a source for the devices below `root`, with the statistics of their interfaces. For [`SYSFS`], the
    /// kernel provides the statistics. For any other root, the source reads recorded statistics ([`RecordedEthtool`]).
    pub fn new(root: &Path) -> Self {
        if root == Path::new(SYSFS) {
            Self::with_ethtool(root, KernelEthtool)
        } else {
            Self::with_ethtool(root, RecordedEthtool::new(root))
        }
    }

    /// Creates a source for the devices below `root`, with the statistics of their interfaces from `ethtool`.
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
                // The kernel writes port numbers without leading zeros or signs. Rejecting other forms keeps port
                // numbers unique.
                let number = port.name.parse().ok().filter(|number: &u32| number.to_string() == port.name);
                let Some(number) = number else {
                    reading
                        .note(Some(&about), format!("{} is not a port: its name is not a number", port.path.display()));
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
        // A device that was created again has a new directory, so the inode distinguishes both devices.
        let incarnation = std::fs::metadata(&port.path).ok()?.ino();
        let netdev = netdev(device, port);
        let about = subject(device, Some(number));
        let at_ns = monotonic_ns();
        let mut raw = Raw::new();
        values(&port.path.join("counters"), Set::Port, &about, &mut raw, reading);
        if !several {
            // Some drivers have counters per device. If the device and the port have a counter of the same name, the
            // value of the port is used.
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
            return None; // the device disappeared during the read
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

/// Returns the subject of notes about a device or about one of its ports.
fn subject(device: &Entry, port: Option<u32>) -> Subject {
    Subject { kind: Kind::Kernel, device: device.name.clone(), port }
}

/// Returns the sorted entries of a directory; none if the directory does not exist. Notes about problems have the
/// subject `about`.
fn entries(path: &Path, about: Option<&Subject>, reading: &mut Reading) -> Vec<Entry> {
    let found = match std::fs::read_dir(path) {
        Ok(found) => found,
        Err(error) => {
            // No note if the device has no such directory, or has disappeared.
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

/// Returns the text of a small file, cut to the maximum length of a value.
fn text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    regular(path)?.take(MAX_VALUE_BYTES).read_to_string(&mut text)?;
    Ok(text.trim().to_owned())
}

/// Reads a directory of counters into `raw`. A file that is unreadable or holds no number is skipped and noted.
fn values(path: &Path, set: Set, about: &Subject, raw: &mut Raw, reading: &mut Reading) {
    for Entry { name, path } in entries(path, Some(about), reading) {
        if name == "lifespan" {
            continue; // time for which the kernel caches values, in milliseconds
        }
        match text(&path) {
            Ok(text) => match text.parse() {
                Ok(value) => drop(raw.insert(Name::new(set, name), value)),
                // With the text N/A, the kernel states that the port does not have this counter.
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

/// Returns the last part of the target of a symbolic link.
fn link_name(path: &Path) -> Option<String> {
    let target = std::fs::read_link(path).ok()?;
    target.file_name()?.to_str().filter(|name| !name.contains(char::is_control)).map(str::to_owned)
}

/// Returns whether `name` can be the name of a network interface. The kernel allows neither slashes nor spaces in such
/// names.
fn is_netdev(name: &str) -> bool {
    let is_path = matches!(name, "." | "..") || name.contains('/');
    !name.is_empty()
        && name.len() < libc::IFNAMSIZ
        && !is_path
        && !name.contains(|c: char| c.is_whitespace() || c.is_control())
}

/// Returns the network interface of a port: the interface of its GIDs, else the only interface of the device. If a
/// software device has neither, returns the interface on which the device was created (file `parent`).
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

/// Returns the first GID of a port that is an IPv4-mapped address; without one, the first GID.
fn gid(port: &Entry) -> Option<Ipv6Addr> {
    let mut ignored = Reading::default();
    let gids = entries(&port.path.join("gids"), None, &mut ignored);
    let gids = gids.iter().take(MAX_GIDS).filter_map(|entry| text(&entry.path).ok()?.parse().ok());
    let gids: Vec<Ipv6Addr> = gids.filter(|gid: &Ipv6Addr| !gid.is_unspecified()).collect();
    gids.iter().copied().find(|gid| gid.to_ipv4_mapped().is_some()).or(gids.first().copied())
}
