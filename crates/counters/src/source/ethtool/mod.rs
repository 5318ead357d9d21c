//! Statistics of network interfaces, as `ethtool -S` shows them.

#[allow(unsafe_code)]
mod sys;

use std::io;
use std::path::{Path, PathBuf};

/// Gives the statistics of network interfaces.
pub trait Ethtool: Send {
    /// Names and values of an interface; none if its driver has none.
    fn statistics(&self, netdev: &str) -> io::Result<Vec<(String, u64)>>;
}

/// The kernel's.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelEthtool;

impl Ethtool for KernelEthtool {
    fn statistics(&self, netdev: &str) -> io::Result<Vec<(String, u64)>> {
        sys::statistics(netdev)
    }
}

/// What `ethtool -S` printed: a copied tree of devices has it in `ethtool/INTERFACE`.
#[derive(Clone, Debug)]
pub struct RecordedEthtool(PathBuf);

impl RecordedEthtool {
    /// What was recorded below `root`.
    pub fn new(root: &Path) -> Self {
        Self(root.join("ethtool"))
    }
}

impl Ethtool for RecordedEthtool {
    fn statistics(&self, netdev: &str) -> io::Result<Vec<(String, u64)>> {
        let text = match std::fs::read_to_string(self.0.join(netdev)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            text => text?,
        };
        let pairs = text.lines().filter_map(|line| line.trim().rsplit_once(": "));
        Ok(pairs.filter_map(|(name, value)| Some((name.to_owned(), value.trim().parse().ok()?))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_asked() {
        assert_eq!(KernelEthtool.statistics("lo").unwrap(), [], "the loopback interface has none");
        let error = KernelEthtool.statistics("no-such-netdev").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
        let long = "x".repeat(200);
        assert_eq!(KernelEthtool.statistics(&long).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(KernelEthtool.statistics("a\0b").unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    /// Whatever interfaces this machine has: names differ and none is empty.
    #[test]
    fn what_interfaces_have_is_understood() {
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
