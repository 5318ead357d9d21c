//! Artificial trees of devices, and the counters that are read from them.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use doorbell_counters::ethtool::Ethtool;
use doorbell_counters::{Common, Interval, Monitor, Rates, Reading, Source, SysfsSource};

/// A tree of devices in a temporary directory.
pub(super) struct Tree {
    pub(super) root: tempfile::TempDir,
}

/// Ethtool statistics from a list. Reading an interface that is not in the list fails.
pub(super) struct Listed(pub(super) BTreeMap<&'static str, Vec<(&'static str, u64)>>);

impl Ethtool for Listed {
    fn statistics(&self, netdev: &str) -> io::Result<Vec<(String, u64)>> {
        let list = self.0.get(netdev).ok_or_else(|| io::Error::other("the adapter does not answer"))?;
        Ok(list.iter().map(|&(name, value)| (name.to_owned(), value)).collect())
    }
}

impl Tree {
    pub(super) fn new() -> Self {
        Self { root: tempfile::tempdir().unwrap() }
    }

    pub(super) fn device(&self, device: &str) -> PathBuf {
        self.root.path().join("class/infiniband").join(device)
    }

    pub(super) fn write(&self, device: &str, path: &str, content: &str) {
        let path = self.device(device).join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("{content}\n")).unwrap();
    }

    pub(super) fn count(&self, device: &str, counters: &[(&str, u64)]) {
        counters.iter().for_each(|(path, value)| self.write(device, &format!("ports/1/{path}"), &value.to_string()));
    }

    pub(super) fn monitor(&self) -> Monitor {
        Monitor::of(vec![Box::new(SysfsSource::new(self.root.path()))])
    }

    pub(super) fn read(&self, ethtool: Listed) -> Reading {
        let mut reading = Reading::default();
        SysfsSource::with_ethtool(self.root.path(), ethtool).read(&mut reading);
        reading
    }
}

pub(super) fn texts(reading: &Reading) -> Vec<&str> {
    reading.notes.iter().map(|note| note.text.as_str()).collect()
}

pub(super) fn nothing() -> Listed {
    Listed(BTreeMap::new())
}

pub(super) fn only(monitor: &mut Monitor) -> Interval {
    let look = monitor.look();
    assert_eq!(look.notes, [] as [String; 0]);
    let [device] = <[Interval; 1]>::try_from(look.devices).unwrap();
    device
}

/// Returns the rates of a device between two looks. Each counter in the list increases by the given number.
pub(super) fn deltas(device: &str, counters: &[(&str, u64, u64)]) -> Rates {
    let tree = Tree::new();
    let before: Vec<_> = counters.iter().map(|&(path, before, _)| (path, before)).collect();
    let after: Vec<_> = counters.iter().map(|&(path, before, more)| (path, before.wrapping_add(more))).collect();
    tree.count(device, &before);
    tree.count(device, &[("hw_counters/lifespan", 10)]);
    let mut monitor = tree.monitor();
    assert!(only(&mut monitor).rates.is_none(), "a single look gave rates");
    tree.count(device, &after);
    only(&mut monitor).rates.unwrap()
}

pub(super) fn assert_deltas(rates: &Rates, expected: &[(Common, u64)]) {
    for common in Common::ALL {
        let delta = expected.iter().find(|(of, _)| *of == common).map(|&(_, delta)| delta);
        assert_eq!(rates.delta(common), delta, "{}", common.name());
    }
}
