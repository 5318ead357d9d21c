//! Publication of a software RNIC's counters for other processes of the same user.
//!
//! Each device has a small file in a directory that only this user can access: `doorbell` in `$XDG_RUNTIME_DIR`, or
//! `/dev/shm/doorbell-UID`. [`DIRECTORY_VARIABLE`] names another directory. The file appears only when it is complete.
//! The process writes the file through a mapping, and removes the file when it closes the device. Root reads the
//! directories of all users. If a process is killed, the next publisher or reader removes its files.

mod directory;
pub(crate) mod layout;
#[allow(unsafe_code)]
mod mapping;
mod orders;
mod process;

use std::fs::File;
use std::io::{Read, Write};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use directory::candidates;
pub use directory::{DIRECTORY_VARIABLE, MAX_FILES};
pub(crate) use directory::{Directory, DirectoryError, readable};
use layout::{Header, MAX_FILE_BYTES};
use mapping::Mapping;
use nix::sys::resource::{Resource, getrlimit};
pub use orders::{PortReply, PortRequest, PortRequests, PublishedPort};
pub(crate) use process::{Life, command};

use crate::sample::monotonic_ns;

/// Environment variable that disables publication if its value is 0.
pub const SWITCH_VARIABLE: &str = "DOORBELL_PUBLISH";

/// Maximum delay from a change of a counter to its publication. If the latest publication is much older than this
/// delay, the counters have not changed since that publication.
pub const PUBLISH_WITHIN_NS: u64 = 20_000_000;

/// Prefix of the names of incomplete files.
const TEMPORARY: &str = ".new-";

/// Returns whether publication is enabled. The environment variable [`SWITCH_VARIABLE`] can disable it.
pub fn is_wanted() -> bool {
    std::env::var_os(SWITCH_VARIABLE).is_none_or(|value| value != "0")
}

/// Reason why a device is not published. The message is one sentence.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct PublishError(String);

/// Properties of a device that are published in addition to its counter values.
#[derive(Clone, Copy, Debug)]
pub struct Published<'a> {
    /// Name of the verbs device.
    pub name: &'a str,
    /// Address of the device.
    pub address: IpAddr,
    /// UDP port of the device and of its peers.
    pub udp_port: u16,
    /// Names of the counters.
    pub counters: &'a [&'a str],
}

/// Publisher of the counters of one device, for the lifetime of the device.
#[derive(Debug)]
pub struct Publisher {
    directory: Directory,
    file_name: String,
    mapping: Arc<Mapping>,
    pid: u32,
}

impl Publisher {
    /// Publishes a device. All counters are published as zero.
    ///
    /// # Errors
    ///
    /// No directory is usable, or the directory is full. The device works without publication.
    pub fn new(device: &Published<'_>) -> Result<Self, PublishError> {
        let mut reasons = Vec::new();
        for path in candidates() {
            let directory = match Directory::create(&path) {
                Ok(directory) => directory,
                Err(error) => {
                    reasons.push(error.to_string());
                    continue;
                }
            };
            match Self::within(directory, device) {
                Ok(publisher) => return Ok(publisher),
                Err(reason) => reasons.push(reason),
            }
        }
        Err(PublishError(reasons.join("; ")))
    }

    fn within(directory: Directory, device: &Published<'_>) -> Result<Self, String> {
        static FILES: AtomicU64 = AtomicU64::new(0);
        let place = directory.path.display().to_string();
        let os = |what: &str, error: std::io::Error| format!("{place}: {what}: {error}");
        if sweep(&directory).map_err(|errno| os("the directory cannot be listed", errno.into()))? >= MAX_FILES {
            return Err(DirectoryError::Full { path: directory.path }.to_string());
        }
        // A write beyond the limit on file sizes would raise SIGXFSZ, which ends the program. So check the limit before
        // writing.
        let longest = getrlimit(Resource::RLIMIT_FSIZE).map_or(u64::MAX, |(soft, _)| soft);
        if longest < MAX_FILE_BYTES as u64 {
            return Err(format!("{place}: this process may write files of {longest} bytes at most (RLIMIT_FSIZE)"));
        }
        let pid = std::process::id();
        let start = process::start_ticks(pid);
        let keys = [
            ("name", Some(device.name.to_owned())),
            ("address", Some(device.address.to_string())),
            ("udp_port", Some(device.udp_port.to_string())),
            ("program", Some(process::program())),
            ("born_ns", Some(monotonic_ns().to_string())),
            ("start_ticks", start.map(|start| start.to_string())),
            ("pid_namespace", process::pid_namespace().map(|namespace| namespace.to_string())),
        ];
        let keys: Vec<_> = keys.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
        let (bytes, values_at) = layout::encode(pid, &keys, device.counters)
            .ok_or_else(|| format!("{} counters are more than a file holds", device.counters.len()))?;
        // The start time of the process and a count of its files make the name unique.
        let unique = format!("{pid}-{}-{}", start.unwrap_or(0), FILES.fetch_add(1, Ordering::Relaxed));
        let (temporary, file_name) = (format!("{TEMPORARY}{unique}"), format!("{unique}.counters"));
        let mapped = directory.create_file(&temporary).map_err(std::io::Error::from).and_then(|mut file| {
            // Writing all bytes allocates all pages of the file now. Setting only the length would not allocate pages.
            file.write_all(&bytes)?;
            let mapping = Mapping::new(&file, bytes.len(), values_at, device.counters.len())?;
            directory.rename(&temporary, &file_name)?;
            Ok(mapping)
        });
        let mapping = mapped.map_err(|error| {
            directory.remove(&temporary);
            os("the file cannot be created", error)
        })?;
        Ok(Self { directory, file_name, mapping: Arc::new(mapping), pid })
    }

    /// Returns the requests of other processes of this user to the port of the device.
    pub fn port_requests(&self) -> PortRequests {
        PortRequests::new(&self.mapping)
    }

    /// Publishes values, which must be in the order of the counter names. A call costs some tens of nanoseconds and a
    /// `getpid`.
    pub fn publish(&mut self, values: &[u64]) {
        // After a fork, parent and child share the mapping. Only the parent, which created the publisher, writes to it.
        if self.pid == std::process::id() {
            self.mapping.store(monotonic_ns(), values);
        }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        if self.pid == std::process::id() {
            self.directory.remove(&self.file_name);
        }
    }
}

/// Opens and parses a file of a directory.
pub(crate) fn inspect(directory: &Directory, name: &str) -> Result<(File, Header), String> {
    let file = directory.open_file(name)?;
    let mut bytes = Vec::new();
    (&file).take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() > MAX_FILE_BYTES {
        return Err(format!("the file is longer than {MAX_FILE_BYTES} B"));
    }
    let header = layout::parse(&bytes)?;
    Ok((file, header))
}

/// Returns whether the process that published a file still runs.
pub(crate) fn life(header: &Header) -> Life {
    let number = |key: &str| header.text.get(key).and_then(|value| value.parse().ok());
    process::life(header.pid, number("start_ticks"), number("pid_namespace"))
}

/// Returns whether the name of a file shows that the file is complete. Returns false for a name with control
/// characters, which publishers never use.
pub(crate) fn is_complete(name: &str) -> bool {
    name.ends_with(".counters") && !name.starts_with('.') && !name.contains(char::is_control)
}

/// Removes the files of processes that have ended, and returns the number of remaining files.
pub(crate) fn sweep(directory: &Directory) -> Result<usize, nix::errno::Errno> {
    let mut remain = 0;
    for name in directory.list()? {
        let is_left_behind = match inspect(directory, &name) {
            Ok((_, header)) => life(&header) == Life::Gone,
            // The file has no valid header, since its publisher is still writing the header or was killed meanwhile.
            Err(_) => name.strip_prefix(TEMPORARY).is_some_and(|unique| {
                let pid = unique.split('-').next().and_then(|pid| pid.parse().ok());
                pid.is_some_and(|pid| process::start_ticks(pid).is_none())
            }),
        };
        if is_left_behind { directory.remove(&name) } else { remain += 1 }
    }
    Ok(remain)
}
