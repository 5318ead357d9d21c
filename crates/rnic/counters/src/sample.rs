//! Counter values of a device at one time.

use std::net::{IpAddr, Ipv6Addr};

use crate::common::Raw;

/// Kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Software RNIC of a process of this user.
    Software,
    /// Device of the kernel.
    Kernel,
}

impl Kind {
    /// Returns the name of the kind for output.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Software => "software",
            Kind::Kernel => "kernel",
        }
    }
}

/// Identity of a device. A field is `None` if its value is unknown or the device has no such value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Label that is unique among the devices of one reading, such as `mlx5_0/1` or `doorbell0@127.0.0.1`.
    pub label: String,
    /// Kind of the device.
    pub kind: Kind,
    /// Name of the verbs device, such as `mlx5_0` or `doorbell0`.
    pub name: String,
    /// Number of the port.
    pub port: Option<u32>,
    /// Address of the device.
    pub address: Option<IpAddr>,
    /// GID of the device.
    pub gid: Option<Ipv6Addr>,
    /// UDP port of the device.
    pub udp_port: Option<u16>,
    /// Program that opened the device.
    pub program: Option<String>,
    /// Number of the process that opened the device.
    pub pid: Option<u32>,
    /// Command line of the process that opened the device, if it is visible.
    pub command: Option<Vec<String>>,
    /// Network interface of the device.
    pub netdev: Option<String>,
    /// Driver of the device.
    pub driver: Option<String>,
    /// Board of a device of the kernel.
    pub board: Option<Board>,
}

/// Board of a device, as its driver describes it. A text is empty if the driver has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Board {
    /// Identifier of the board, such as `MT_0000000008`.
    pub id: String,
    /// Version of the firmware.
    pub firmware: String,
    /// Type of the adapter, such as `MT4119`.
    pub hca_type: String,
}

impl Identity {
    /// Returns whether `selector` matches this device. The selector may be the label, the name, the address, the
    /// process number, or the name and the process number (`doorbell0#4711`). Several devices may have the same name.
    pub fn is_meant_by(&self, selector: &str) -> bool {
        self.label == selector
            || self.name == selector
            || selector.parse().is_ok_and(|address: IpAddr| self.address == Some(address))
            || selector.parse().is_ok_and(|pid: u32| self.pid == Some(pid))
            || selector
                .split_once('#')
                .is_some_and(|(name, pid)| self.name == name && pid.parse().is_ok_and(|pid: u32| self.pid == Some(pid)))
    }
}

/// Counters of a device at one time.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Identity of the device.
    pub identity: Identity,
    /// Number that distinguishes the device from earlier devices with the same label.
    pub incarnation: u64,
    /// Time of the sample, in nanoseconds of `CLOCK_MONOTONIC`.
    pub at_ns: u64,
    /// Time at which the counters of the device were zero, on the same clock; `None` if unknown.
    pub born_ns: Option<u64>,
    /// Whether the device has ended. If so, this sample holds its last values.
    pub ended: bool,
    /// Values of the counters.
    pub raw: Raw,
}

/// Result of reading all devices.
#[derive(Debug, Default)]
pub struct Reading {
    /// Samples of the devices.
    pub samples: Vec<Sample>,
    /// Problems that occurred during this reading.
    pub notes: Vec<Note>,
}

/// A problem that occurred during a reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Device that could not be read completely. `None` if the problem concerns the source, or a device whose identity
    /// is unknown.
    pub about: Option<Subject>,
    /// Description of the problem as a sentence.
    pub text: String,
}

/// Subject of a note: a device, or one port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Kind of the device.
    pub kind: Kind,
    /// Label or name that distinguishes the device from others of its kind.
    pub device: String,
    /// Number of the port; `None` if the problem concerns the whole device.
    pub port: Option<u32>,
}

impl Subject {
    fn is(&self, identity: &Identity) -> bool {
        let same_port = self.port.is_none() || self.port == identity.port;
        let same_device = match self.kind {
            Kind::Software => self.device == identity.label,
            Kind::Kernel => self.device == identity.name,
        };
        self.kind == identity.kind && same_device && same_port
    }
}

impl Note {
    /// Returns whether the note concerns the request for `selector`, which matched the devices `found`. If no device
    /// was found, notes without a subject also concern the request, since they may contain the reason.
    pub(crate) fn matters(&self, selector: &str, found: &[Identity]) -> bool {
        match &self.about {
            None => found.is_empty(),
            Some(subject) => subject.device == selector || found.iter().any(|identity| subject.is(identity)),
        }
    }
}

impl Reading {
    pub(crate) fn note(&mut self, about: Option<&Subject>, text: String) {
        self.notes.push(Note { about: about.cloned(), text });
    }
}

/// Returns the time of `CLOCK_MONOTONIC` in nanoseconds. All samples use this clock, which all processes share.
pub fn monotonic_ns() -> u64 {
    // Every POSIX system has this clock.
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).expect("there is a monotonic clock");
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}
