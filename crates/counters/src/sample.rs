//! What was read of a device at one moment.

use std::net::{IpAddr, Ipv6Addr};

use crate::common::Raw;

/// Which kind of device it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A software RNIC of a process of this user.
    Software,
    /// A device that the kernel knows.
    Kernel,
}

impl Kind {
    /// The name, as output shows it.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Software => "software",
            Kind::Kernel => "kernel",
        }
    }
}

/// Which device it is. What is not known, or does not apply, is `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// What no other device is called at the same time: `mlx5_0/1`, `doorbell0@127.0.0.1`.
    pub label: String,
    /// Which kind of device.
    pub kind: Kind,
    /// Its name as a verbs device: `mlx5_0`, `doorbell0`.
    pub name: String,
    /// The number of its port.
    pub port: Option<u32>,
    /// Its address.
    pub address: Option<IpAddr>,
    /// Its GID.
    pub gid: Option<Ipv6Addr>,
    /// The UDP port that it uses.
    pub udp_port: Option<u16>,
    /// The program that opened it.
    pub program: Option<String>,
    /// Its process.
    pub pid: Option<u32>,
    /// The words that the process was started with, where it can be seen from here.
    pub command: Option<Vec<String>>,
    /// Its network interface.
    pub netdev: Option<String>,
    /// Its driver.
    pub driver: Option<String>,
}

impl Identity {
    /// Does `selector` mean this device? It may be the label, the name (which several may have),
    /// the address, or the number of the process.
    pub fn is_meant_by(&self, selector: &str) -> bool {
        self.label == selector
            || self.name == selector
            || selector.parse().is_ok_and(|address: IpAddr| self.address == Some(address))
            || selector.parse().is_ok_and(|pid: u32| self.pid == Some(pid))
    }
}

/// What a device had counted at one moment.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Which device.
    pub identity: Identity,
    /// Tells it from another device that had the same label before.
    pub incarnation: u64,
    /// The moment, in nanoseconds of `CLOCK_MONOTONIC`.
    pub at_ns: u64,
    /// When its counters were zero, if that is known, on the same clock.
    pub born_ns: Option<u64>,
    /// It is no more: these are its last values.
    pub ended: bool,
    /// The values.
    pub raw: Raw,
}

/// What was read of all devices.
#[derive(Debug, Default)]
pub struct Reading {
    /// The devices.
    pub samples: Vec<Sample>,
    /// Problems of the reading. Each reading collects them anew.
    pub notes: Vec<Note>,
}

/// A problem of a reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The device that could not be read in full; `None` if the problem is the source's, or of a device that could not
    /// be identified.
    pub about: Option<Subject>,
    /// The problem, as a sentence.
    pub text: String,
}

/// A device that a note is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Kind of device.
    pub kind: Kind,
    /// Label or name, which distinguishes it from others of its kind.
    pub device: String,
    /// Number of the port, if the problem is one port's.
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
    /// Returns whether the note matters to a reader that asked for `selector` and got the devices `found`. A note about no
    /// device matters if none was found: it may name the reason.
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

/// Nanoseconds of the clock that all samples are dated with, which all processes share.
pub fn monotonic_ns() -> u64 {
    // A POSIX system has this clock.
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).expect("there is a monotonic clock");
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}
