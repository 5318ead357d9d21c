//! Packets through memory that two processes of one machine and user share.
//!
//! A pair of devices has a file in memory with two rings, one for each direction. `ring.rs` has the order in which
//! the two sides access a ring, `sys.rs` the memory itself, `own_process.rs` which descriptors no child keeps, `meet.rs` and
//! `message.rs` how two devices come to share it, `routes.rs` which way packets to each destination go, `peer.rs` what goes through
//! the rings of one peer, `idle.rs` when a ring gives its memory back, `words.rs` what else comes through the socket, and `link.rs` the link. A side that sleeps sleeps on its
//! UDP socket, and is woken by a datagram without a packet in it: so nothing but the file passes between the processes,
//! and no peer can make another's call block.

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
mod sys;
mod words;

use std::fmt;
use std::str::FromStr;

pub use link::{SharedMemoryCounters, SharedMemoryLink};
pub use own_process::{Opening, OwnProcess};

/// What may carry packets to devices of this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkChoice {
    /// Shared memory where both devices have it, else UDP.
    #[default]
    Auto,
    /// UDP alone.
    Udp,
    /// Shared memory alone: packets to a device without it are dropped and counted.
    Shm,
}

impl LinkChoice {
    /// Its name.
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
