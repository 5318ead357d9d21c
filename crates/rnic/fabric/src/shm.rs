//! Packets through memory that two processes of one machine and user share.
//!
//! A pair of devices has a file in memory with two rings, one for each direction. The files of this module:
//!
//! - `ring.rs`: the order in which the two sides access a ring.
//! - `sys.rs`: the memory itself.
//! - `own_process.rs` and `gate.rs`: descriptors that no forked child keeps.
//! - `meet.rs` and `message.rs`: how two devices come to share memory.
//! - `routes.rs`: the route of packets to each destination.
//! - `peer.rs`: the packets in the rings of one peer.
//! - `idle.rs`: the release of the memory of idle rings.
//! - `datagrams.rs`: messages in the UDP socket that are no packets.
//! - `link.rs`: the link.
//!
//! A side that sleeps waits on its UDP socket, and a datagram without a packet wakes it. So the processes share
//! nothing but the file, and no peer can block another.

mod gate;
mod idle;
mod link;
mod meet;
mod message;
mod own_process;
mod peer;
mod ring;
mod routes;
/// Atomics of [`gate`], which a model checker replaces by its own.
mod sync {
    pub(super) use std::sync::atomic::{AtomicU32, Ordering};
}
mod datagrams;
mod sys;

use std::fmt;
use std::str::FromStr;

pub use link::{SharedMemoryCounters, SharedMemoryLink};
pub use own_process::{Opening, OwnProcess};

/// Medium for packets to devices of this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkChoice {
    /// Shared memory if both devices have it, otherwise UDP.
    #[default]
    Auto,
    /// Only UDP.
    Udp,
    /// Only shared memory: packets to a device without it are dropped and counted.
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
