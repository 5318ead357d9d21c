//! Requests to the ports of software RNICs of other processes of this user.

use std::fs::{File, TryLockError};
use std::net::IpAddr;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

use nix::unistd::geteuid;

use super::{Open, PublishedSource, ROCE_UDP_PORT};
use crate::publish::layout::REQUEST_WORD;
use crate::publish::{Directory, Life, PortReply, PortRequest, life};
use crate::sample::{Reading, monotonic_ns};
use crate::source::Source;

/// Time after which a device that has not replied counts as silent. An idle device that no datagram reaches looks every
/// five seconds.
const PATIENCE: Duration = Duration::from_secs(12);

/// Time between two looks at the reply.
const LOOK: Duration = Duration::from_millis(1);

/// Number of looks after which the device is woken again, and after which its process is examined.
const LOOKS_PER_WAKE: u32 = 100;

const WORD: u64 = size_of::<u64>() as u64;

/// Reply of a device, and the device that replied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// Label of the device.
    pub label: String,
    /// Process that has the device open.
    pub pid: u32,
    /// The reply.
    pub reply: PortReply,
}

/// Reason for which a request to a port has no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// No published device is meant.
    #[error("no process of this user has a software RNIC {selector:?} open; {known}")]
    Unknown {
        /// Name of the device that the caller gave.
        selector: String,
        /// The open devices, as a part of a sentence.
        known: String,
    },
    /// Several devices are meant.
    #[error("{selector:?} is the name of {} devices: name one of {}", labels.len(), labels.join(", "))]
    Ambiguous {
        /// Name of the device that the caller gave.
        selector: String,
        /// Labels of the devices.
        labels: Vec<String>,
    },
    /// The device belongs to another user.
    #[error("{label} belongs to user {owner}: only that user can order its port")]
    Foreign {
        /// Label of the device.
        label: String,
        /// Owner of the process.
        owner: u32,
    },
    /// The process runs a version that takes no orders.
    #[error("{label} takes no orders to its port: process {pid} runs an older version of the library")]
    Older {
        /// Label of the device.
        label: String,
        /// Process that has the device open.
        pid: u32,
    },
    /// The process does not reply.
    #[error("{label} has not replied for {} s: process {pid} may be stopped", PATIENCE.as_secs())]
    Silent {
        /// Label of the device.
        label: String,
        /// Process that has the device open.
        pid: u32,
    },
    /// The process has ended.
    #[error("process {pid} closed {label} before it replied")]
    Closed {
        /// Label of the device.
        label: String,
        /// Process that had the device open.
        pid: u32,
    },
    /// The file of the device cannot be used.
    #[error("the file of {label} cannot be used: {reason}")]
    File {
        /// Label of the device.
        label: String,
        /// Reason.
        reason: String,
    },
}

impl PublishedSource {
    /// Sends a request to the port of the device that `selector` means: a label, a name, an address or a process
    /// number. Waits for the reply. `wake` wakes the thread of the device with this address and UDP port.
    ///
    /// # Errors
    ///
    /// The selector means no device, several devices, or a device of another user. The process does not reply.
    pub fn ask_port(
        &mut self,
        selector: &str,
        request: PortRequest,
        wake: impl Fn(IpAddr, u16),
    ) -> Result<Answered, AskError> {
        self.read(&mut Reading::default());
        let mut meant = self.files.iter().filter(|(_, open)| open.identity().is_meant_by(selector));
        let Some(((path, name), open)) = meant.next() else {
            let labels: Vec<&str> = self.files.values().map(|open| open.label.as_str()).collect();
            let known = match labels.as_slice() {
                [] => "none is open at all".to_owned(),
                labels => format!("open are {}", labels.join(", ")),
            };
            return Err(AskError::Unknown { selector: selector.to_owned(), known });
        };
        let others: Vec<String> = meant.map(|(_, open)| open.label.clone()).collect();
        if !others.is_empty() {
            let labels = std::iter::once(open.label.clone()).chain(others).collect();
            return Err(AskError::Ambiguous { selector: selector.to_owned(), labels });
        }
        let (label, pid) = (open.label.clone(), open.header.pid);
        let owner = open.file.metadata().map_or(0, |found| found.uid());
        if owner != geteuid().as_raw() {
            return Err(AskError::Foreign { label, owner });
        }
        let Some(at) = open.header.orders_at else { return Err(AskError::Older { label, pid }) };
        let failed = |reason: String| AskError::File { label: open.label.clone(), reason };
        let directory = Directory::open(path).map_err(|error| failed(error.to_string()))?;
        let file = directory.open_to_write(name).map_err(failed)?;
        // Another command may wait for a reply of the same device, or may be stopped meanwhile.
        let begun = Instant::now();
        while let Err(error) = file.try_lock() {
            match error {
                TryLockError::WouldBlock if begun.elapsed() < PATIENCE => std::thread::sleep(LOOK),
                TryLockError::WouldBlock => {
                    return Err(failed("another command uses it and may be stopped".to_owned()));
                }
                TryLockError::Error(error) => return Err(failed(error.to_string())),
            }
        }
        let reply = open.ask(&file, at as u64, request, wake)?;
        Ok(Answered { label, pid, reply })
    }
}

impl Open {
    /// Writes a request, and waits for the reply.
    fn ask(
        &self,
        file: &File,
        at: u64,
        request: PortRequest,
        wake: impl Fn(IpAddr, u16),
    ) -> Result<PortReply, AskError> {
        let (label, pid) = (self.label.clone(), self.header.pid);
        let failed = |error: std::io::Error| AskError::File { label: self.label.clone(), reason: error.to_string() };
        // A device that is closed removes its file.
        let is_closed = || life(&self.header) == Life::Gone || file.metadata().is_ok_and(|found| found.nlink() == 0);
        let number = monotonic_ns();
        let request_at = at + REQUEST_WORD as u64 * WORD;
        file.write_all_at(&request.word(number).to_ne_bytes(), request_at).map_err(failed)?;
        let port = self.key("udp_port").unwrap_or(ROCE_UDP_PORT);
        let begun = Instant::now();
        for look in 0.. {
            if look % LOOKS_PER_WAKE == 0 {
                if look > 0 && is_closed() {
                    return Err(AskError::Closed { label, pid });
                }
                if let Some(address) = self.key("address") {
                    wake(address, port);
                }
            }
            let mut word = [0; size_of::<u64>()];
            file.read_exact_at(&mut word, request_at + WORD).map_err(failed)?;
            if let Some(reply) = PortReply::of(u64::from_ne_bytes(word), number) {
                return Ok(reply);
            }
            if begun.elapsed() > PATIENCE {
                break;
            }
            std::thread::sleep(LOOK);
        }
        Err(AskError::Silent { label, pid })
    }
}
