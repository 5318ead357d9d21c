//! Software RNICs of this user's processes. For root, software RNICs of the processes of all users.

mod ask;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::IpAddr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::geteuid;

use crate::common::{Name, Raw, Set};
use crate::publish::layout::{Header, VALUES_START, words};
use crate::publish::{
    Directory, DirectoryError, Life, PUBLISH_WITHIN_NS, command, inspect, is_complete, life, readable, sweep,
};
use crate::sample::{Identity, Kind, Reading, Sample, Subject, monotonic_ns};
use crate::sequence;
use crate::source::Source;

pub use ask::{Answered, AskError};

/// UDP port of RoCE v2 (IBTA annex A17).
const ROCE_UDP_PORT: u16 = 4791;

/// Maximum number of attempts to read consistent values. A publisher writes for well below a microsecond. If the
/// scheduler has stopped the publisher during a write, the reader sleeps between the attempts.
const TRIES: u32 = 20;
const NAP: Duration = Duration::from_micros(500);

/// An opened file of a device. If the file is removed, the open file still holds the last values.
struct Open {
    file: File,
    header: Header,
    incarnation: u64,
    /// Label of the device, which stays unchanged while the device exists; empty until it is assigned.
    label: String,
    /// Command line of the process that published the file.
    command: Option<Vec<String>>,
}

/// Source of the counters that software RNICs publish.
pub struct PublishedSource {
    /// Fixed directories. `None` means that each read searches for directories, since users log in and out.
    directories: Option<Vec<PathBuf>>,
    files: BTreeMap<(PathBuf, String), Open>,
    found: u64,
}

impl PublishedSource {
    /// Creates a source for all directories in which processes of this user may publish. For root, the source covers
    /// the directories of all users.
    pub fn new() -> Self {
        Self { directories: None, files: BTreeMap::new(), found: 0 }
    }

    /// Creates a source for `directories`. Each read skips directories that other users can access.
    pub fn of(directories: Vec<PathBuf>) -> Self {
        Self { directories: Some(directories), ..Self::new() }
    }

    /// Returns the directories to read now, each with its required owner.
    fn places(&self) -> Vec<(PathBuf, u32)> {
        let own = geteuid().as_raw();
        match &self.directories {
            Some(directories) => directories.iter().map(|path| (path.clone(), own)).collect(),
            None => readable(),
        }
    }

    /// Opens the files of a directory that are not open yet, and returns the names of all files in the directory.
    fn list(&mut self, path: &Path, owner: u32, reading: &mut Reading) -> BTreeSet<String> {
        let directory = match Directory::open_of(path, owner) {
            Ok(directory) => directory,
            Err(DirectoryError::Missing(_)) => return BTreeSet::new(),
            Err(error) => {
                reading.note(None, error.to_string());
                return BTreeSet::new();
            }
        };
        // `sweep` removes the files of killed processes. If this source has already opened such a file, the source
        // shows the last values of the device once more.
        let listed = sweep(&directory).and_then(|_| directory.list());
        let names = listed.unwrap_or_else(|errno| {
            reading.note(None, format!("{} cannot be listed: {errno}", path.display()));
            Vec::new()
        });
        let names: BTreeSet<String> = names.into_iter().filter(|name| is_complete(name)).collect();
        for name in &names {
            let key = (path.to_owned(), name.clone());
            if self.files.contains_key(&key) {
                continue;
            }
            match inspect(&directory, name) {
                Ok((file, header)) => {
                    self.found += 1;
                    // The publisher may run in another PID namespace than this process. In the namespace of this
                    // process, its process number may belong to a different process, whose command line must not be
                    // shown.
                    let command = if life(&header) == Life::Running { command(header.pid) } else { None };
                    let (incarnation, label) = (self.found, String::new());
                    self.files.insert(key, Open { file, header, incarnation, label, command });
                }
                Err(reason) => {
                    // If the file was removed since the directory was listed, no note is necessary.
                    if directory.open_file(name).is_ok() {
                        reading.note(None, format!("{} is skipped: {reason}", path.join(name).display()));
                    }
                }
            }
        }
        names
    }

    /// Assigns labels to new devices. Devices in different network namespaces may have the same address. Then the
    /// process number or a counter makes the label unique.
    fn name_the_new(&mut self, there: &BTreeSet<(PathBuf, String)>) {
        let is_named = |(key, open): &(&(PathBuf, String), &Open)| there.contains(key) && !open.label.is_empty();
        let mut taken: BTreeSet<String> =
            self.files.iter().filter(is_named).map(|(_, open)| open.label.clone()).collect();
        for open in self.files.values_mut().filter(|open| open.label.is_empty()) {
            let label = open.plain_label();
            let of_process = format!("{label}#{}", open.header.pid);
            // Another device may already use `of_process` as its label, so a number may be needed.
            let numbered = (open.incarnation..).map(|number| format!("{of_process}.{number}"));
            let mut candidates = [label, of_process.clone()].into_iter().chain(numbered);
            open.label = candidates.find(|label| !taken.contains(label)).unwrap_or_default();
            taken.insert(open.label.clone());
        }
    }
}

impl Default for PublishedSource {
    fn default() -> Self {
        Self::new()
    }
}

impl Source for PublishedSource {
    fn read(&mut self, reading: &mut Reading) {
        let mut there = BTreeSet::new();
        for (path, owner) in self.places() {
            there.extend(self.list(&path, owner, reading).into_iter().map(|name| (path.clone(), name)));
        }
        self.name_the_new(&there);
        self.files.retain(|key, open| {
            let ended = !there.contains(key) || life(&open.header) == Life::Gone;
            match open.sample(ended) {
                Ok(sample) => reading.samples.push(sample),
                Err(reason) => {
                    let about = Subject { kind: Kind::Software, device: open.label.clone(), port: None };
                    reading.note(Some(&about), format!("{} is skipped: {reason}", key.0.join(&key.1).display()));
                }
            }
            !ended
        });
    }
}

impl Open {
    fn sample(&self, ended: bool) -> Result<Sample, String> {
        let (published_ns, values) = self.values()?;
        let now_ns = monotonic_ns();
        // Values carry the time of their publication. If that time is long ago, the counters have not changed since
        // then. So the values are still current, and the time of the sample is now.
        let is_old = published_ns.saturating_add(2 * PUBLISH_WITHIN_NS) < now_ns || published_ns > now_ns;
        let names = self.header.counters.iter().map(|name| Name::new(Set::Published, name));
        Ok(Sample {
            identity: self.identity(),
            incarnation: self.incarnation,
            at_ns: if is_old { now_ns } else { published_ns },
            born_ns: self.key("born_ns"),
            ended,
            raw: names.zip(values).collect::<Raw>(),
        })
    }

    fn key<T: std::str::FromStr>(&self, key: &str) -> Option<T> {
        self.header.text.get(key)?.parse().ok()
    }

    /// Returns the time of publication and a consistent set of values.
    fn values(&self) -> Result<(u64, Vec<u64>), String> {
        let at = self.header.values_at as u64;
        let mut bytes = vec![0; (VALUES_START + self.header.counters.len()) * size_of::<u64>()];
        for attempt in 0..TRIES {
            if attempt > 0 {
                std::thread::sleep(NAP);
            }
            let look = |into: &mut [u8]| {
                self.file.read_exact_at(into, at).map_err(|error| format!("the values cannot be read: {error}"))
            };
            let number = || {
                let mut number = [0; size_of::<u64>()];
                look(&mut number).map(|()| u64::from_ne_bytes(number))
            };
            if sequence::read(number, || look(&mut bytes))? {
                let published_ns = words(&bytes).nth(1).unwrap_or(0);
                return Ok((published_ns, words(&bytes).skip(VALUES_START).collect()));
            }
        }
        Err("the publisher stopped during a write".to_owned())
    }

    fn plain_label(&self) -> String {
        let mut label: String = self.name();
        if let Some(address) = self.key::<IpAddr>("address") {
            label = format!("{label}@{address}");
        }
        // If the UDP port differs from the port of RoCE v2, the label includes the UDP port.
        if let Some(port) = self.key("udp_port").filter(|&port: &u16| port != ROCE_UDP_PORT) {
            label = format!("{label}:{port}");
        }
        label
    }

    fn name(&self) -> String {
        self.key("name").unwrap_or_else(|| "unknown".to_owned())
    }

    fn identity(&self) -> Identity {
        let address: Option<IpAddr> = self.key("address");
        let gid = |address| match address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        Identity {
            label: self.label.clone(),
            kind: Kind::Software,
            name: self.name(),
            port: None,
            address,
            gid: address.map(gid),
            udp_port: self.key("udp_port"),
            program: self.key("program"),
            pid: Some(self.header.pid),
            command: self.command.clone(),
            netdev: None,
            driver: None,
            board: None,
        }
    }
}
