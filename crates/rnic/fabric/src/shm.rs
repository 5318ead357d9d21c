//! Packets through memory that two processes of one machine and user share.
//!
//! Each pair of devices shares one memfd with two rings, one for each direction. The module consists of these files:
//!
//! - `ring.rs`: the format of a ring, and the order in which writer and reader access its memory.
//! - `sys.rs`: the mapping of the memfd, and system calls.
//! - `meet.rs` and `message.rs`: the exchange after which two devices share memory.
//! - `routes.rs`: the choice between ring and UDP for each destination.
//! - `peer.rs`: writing and reading packets in the rings of one peer.
//! - `idle.rs`: the release of the memory of idle rings.
//! - `datagrams.rs`: the datagrams on the UDP socket that carry messages of this module instead of packets.
//! - `bind.rs`: the choice of an address whose name is free.
//! - `link.rs`: the link that combines rings and UDP.
//!
//! A sleeping reader waits on its UDP socket. The writer of its ring wakes it by a datagram without a packet. The
//! processes share neither locks nor semaphores, so no process can block another.

mod bind;
mod datagrams;
mod idle;
mod link;
mod meet;
mod message;
mod peer;
mod ring;
mod routes;
mod sys;

use std::fmt;
use std::str::FromStr;

pub use link::{SharedMemoryCounters, SharedMemoryLink};

/// Medium for packets to devices of this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkChoice {
    /// Shared memory if both devices have it, otherwise UDP.
    #[default]
    Auto,
    /// Only UDP.
    Udp,
    /// Only shared memory. Packets to a device that does not share memory are dropped and counted.
    Shm,
}

impl LinkChoice {
    /// Returns the name of the choice.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Udp => "udp",
            Self::Shm => "shm",
        }
    }
}

impl FromStr for LinkChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Auto, Self::Udp, Self::Shm];
        let found = all.into_iter().find(|choice| choice.name() == text);
        found.ok_or_else(|| format!("the link is {text:?}; allowed are auto, udp and shm"))
    }
}

impl fmt::Display for LinkChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
