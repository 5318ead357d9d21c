//! RDMA devices of the kernel, with the statistics of their network interfaces.

use std::io::{self, Read};
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::common::{Name, Raw, Set};
use crate::sample::{Board, Identity, Kind, Reading, Sample, Subject, monotonic_ns};
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
/// Texts in the names of those interface statistics that concern RDMA: RDMA traffic, pause frames, and losses and marks
/// of congestion, which RoCE feels.
const RDMA_STATISTICS: [&str; 7] = ["_vport_rdma_", "pause", "pfc_", "_xon", "_xoff", "discards_phy", "ecn_mark"];
/// Files with the state of a port: file, name of the value, character after the number, and factor to the unit.
const STATE: [(&str, &str, char, f64); 3] = [
    ("state", "state_id", ':', 1.0),                   // 4: ACTIVE
    ("phys_state", "physical_state_id", ':', 1.0),     // 5: LinkUp
    ("rate", "rate_bytes_per_second", ' ', 1e9 / 8.0), // 100 Gb/sec (4X EDR)
];

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
        state(&port.path, &mut raw);
        if let Some(netdev) = &netdev {
            match self.ethtool.statistics(netdev) {
                Ok(statistics) => raw.extend(
                    statistics
                        .into_iter()
                        .filter(|(name, _)| concerns_rdma(name))
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
                board: board(&device.path),
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

/// Returns whether the statistic `name` of a network interface concerns RDMA.
fn concerns_rdma(name: &str) -> bool {
    let of_priority = name.contains("_prio") && name.contains("discard");
    of_priority || RDMA_STATISTICS.iter().any(|text| name.contains(text))
}

/// Adds the state of a port to `raw`. A file that is absent or holds no number gives no value.
fn state(port: &Path, raw: &mut Raw) {
    for (file, name, end, factor) in STATE {
        let Ok(text) = text(&port.join(file)) else { continue };
        let number = text.split(end).next().and_then(|number| number.trim().parse::<f64>().ok());
        if let Some(number) = number.filter(|number| number.is_finite() && *number >= 0.0) {
            raw.insert(Name::new(Set::State, name), (number * factor) as u64);
        }
    }
}

/// Returns the board of a device, if its driver describes one.
fn board(device: &Path) -> Option<Board> {
    let of = |file: &str| text(&device.join(file)).ok().filter(|text| !text.contains(char::is_control));
    let [id, firmware, hca_type] = ["board_id", "fw_ver", "hca_type"].map(|file| of(file).unwrap_or_default());
    let board = Board { id, firmware, hca_type };
    (board != Board::default()).then_some(board)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_port_is_numbers() {
        let root = tempfile::tempdir().unwrap();
        let states = |files: &[(&str, &str)]| -> Vec<(String, u64)> {
            files.iter().for_each(|(file, text)| std::fs::write(root.path().join(file), text).unwrap());
            let mut raw = Raw::new();
            state(root.path(), &mut raw);
            raw.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
        };
        assert_eq!(states(&[]), [], "absent is not zero");
        let found =
            states(&[("state", "4: ACTIVE\n"), ("phys_state", "5: LinkUp\n"), ("rate", "2.5 Gb/sec (1X SDR)\n")]);
        let of = |name: &str, value: u64| (format!("state/{name}"), value);
        let expected = [of("physical_state_id", 5), of("rate_bytes_per_second", 312_500_000), of("state_id", 4)];
        assert_eq!(found, expected);
        let found = states(&[("state", "ACTIVE\n"), ("phys_state", "-1: ?\n"), ("rate", "inf Gb/sec\n")]);
        assert_eq!(found, [], "no numbers");
    }

    #[test]
    fn a_board_is_what_its_driver_states() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(board(root.path()), None);
        std::fs::write(root.path().join("fw_ver"), "16.35.2000\n").unwrap();
        std::fs::write(root.path().join("hca_type"), "MT\u{1b}4119\n").unwrap();
        let expected = Board { firmware: "16.35.2000".to_owned(), ..Board::default() };
        assert_eq!(board(root.path()), Some(expected), "texts with control characters are left out");
    }

    #[test]
    fn statistics_of_other_traffic_are_left_out() {
        for name in ["tx_vport_rdma_unicast_bytes", "rx_prio3_pause", "link_xoff_rx.nic", "rx_prio0_cong_discard"] {
            assert!(concerns_rdma(name), "{name}");
        }
        for name in ["rx_packets", "tx0_bytes", "rx_prio0_bytes", "[3]: rx_discards"] {
            assert!(!concerns_rdma(name), "{name}");
        }
    }
}
