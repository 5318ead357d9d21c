//! Statistics of network interfaces, as `ethtool -S` shows them.

#[allow(unsafe_code)]
mod sys;

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::source::regular;

/// Maximum size of a recorded output in bytes. Large adapters have some thousands of statistics with some dozens of
/// bytes each.
const MAX_RECORD_BYTES: u64 = 4 << 20;

/// Source of the statistics of network interfaces.
pub trait Ethtool: Send {
    /// Returns the names and values of an interface's statistics. The list is empty if the driver has no statistics.
    ///
    /// # Errors
    ///
    /// The interface does not exist, or its statistics are unreadable. A driver without statistics is no error.
    fn statistics(&self, netdev: &str) -> io::Result<Vec<(String, u64)>>;
}

/// Statistics that the kernel provides.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelEthtool;

impl Ethtool for KernelEthtool {
    fn statistics(&self, netdev: &str) -> io::Result<Vec<(String, u64)>> {
        sys::statistics(netdev)
    }
}

/// Statistics from recorded output of `ethtool -S`. In a copied tree of devices, the output is in `ethtool/INTERFACE`.
#[derive(Clone, Debug)]
pub struct RecordedEthtool(PathBuf);

impl RecordedEthtool {
    /// Creates a source for the recorded outputs below `root`.
    pub fn new(root: &Path) -> Self {
        Self(root.join("ethtool"))
    }
}

impl Ethtool for RecordedEthtool {
    fn statistics(&self, netdev: &str) -> io::Result<Vec<(String, u64)>> {
        let file = match regular(&self.0.join(netdev)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            file => file?,
        };
        let mut text = String::new();
        file.take(MAX_RECORD_BYTES + 1).read_to_string(&mut text)?;
        if text.len() as u64 > MAX_RECORD_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("the recorded output is longer than {MAX_RECORD_BYTES} B, the maximum"),
            ));
        }
        let pairs = text.lines().filter_map(|line| line.trim().rsplit_once(": "));
        let pairs = pairs.filter(|(name, _)| !name.contains(char::is_control));
        Ok(pairs.filter_map(|(name, value)| Some((name.to_owned(), value.trim().parse().ok()?))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_statistics_are_empty_or_an_error() {
        assert_eq!(KernelEthtool.statistics("lo").unwrap(), [], "the loopback interface has no statistics");
        let error = KernelEthtool.statistics("no-such-netdev").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
        let long = "x".repeat(200);
        assert_eq!(KernelEthtool.statistics(&long).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(KernelEthtool.statistics("a\0b").unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_record_is_a_regular_file_of_bounded_length() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("ethtool");
        std::fs::create_dir(&folder).unwrap();
        let recorded = RecordedEthtool::new(root.path());
        let line = "     tx_vport_rdma_unicast_packets: 7\n     \x1b[2J_vport_rdma_: 8\n";
        std::fs::write(folder.join("eth0"), line).unwrap();
        assert_eq!(recorded.statistics("eth0").unwrap(), [("tx_vport_rdma_unicast_packets".to_owned(), 7)]);
        std::fs::write(folder.join("eth1"), line.repeat(1 << 17)).unwrap();
        let error = recorded.statistics("eth1").unwrap_err().to_string();
        assert_eq!(error, "the recorded output is longer than 4194304 B, the maximum");
        std::os::unix::fs::symlink("/dev/null", folder.join("eth2")).unwrap();
        assert_eq!(recorded.statistics("eth2").unwrap_err().to_string(), "not a regular file");
        assert_eq!(recorded.statistics("eth3").unwrap(), []);
    }

    /// On all interfaces of this machine, the names of statistics are unique and not empty.
    #[test]
    fn interface_statistics_have_unique_names() {
        for entry in std::fs::read_dir("/sys/class/net").unwrap() {
            let netdev = entry.unwrap().file_name().into_string().unwrap();
            let Ok(statistics) = KernelEthtool.statistics(&netdev) else { continue };
            let mut names: Vec<&str> = statistics.iter().map(|(name, _)| name.as_str()).collect();
            assert!(names.iter().all(|name| !name.is_empty()), "{netdev}: {names:?}");
            let all = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), all, "{netdev}");
        }
    }
}
