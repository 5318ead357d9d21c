//! Packets through memory that two processes of one machine and user share.
//!
//! Each pair of devices shares one memfd with two rings, one for each direction. If devices have several engines, each
//! pair of engines that exchanges packets has such a memfd. The module consists of these files:
//!
//! - `ring.rs`: the format of a ring, and the order in which writer and reader access its memory.
//! - `sys.rs`: the mapping of the memfd, and system calls.
//! - `meet.rs` and `message.rs`: the exchange after which two devices share memory.
//! - `routes.rs`: the choice between ring and UDP for each destination.
//! - `peer.rs`: writing and reading packets in the rings of one peer.
//! - `held.rs`: runs that wait for room in a full ring.
//! - `idle.rs`: the release of the memory of idle rings.
//! - `datagrams.rs`: the datagrams on the UDP socket that carry messages of this module instead of packets.
//! - `bind.rs`: the choice of an address whose name is free.
//! - `link.rs`: the link that combines rings and UDP.
//!
//! A sleeping reader waits on its UDP socket. The writer of its ring wakes it by a datagram without a packet. The
//! processes share neither locks nor semaphores, so no process can block another.

mod bind;
mod datagrams;
mod held;
mod idle;
mod link;
mod meet;
mod message;
mod peer;
mod ring;
mod routes;
mod sys;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::str::FromStr;
use std::{fmt, io};

use doorbell_rnic::EngineId;

pub use link::{SharedMemoryCounters, SharedMemoryLink};

/// Wakes the sleeping thread of the first engine of a device of this machine by a datagram without a packet. An engine
/// that is not asleep ignores the datagram. A device without shared memory counts it as malformed.
///
/// # Errors
///
/// The operating system provides no socket, or no route leads to the device.
pub fn wake_device(address: IpAddr, port: u16) -> io::Result<()> {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let wake = message::Datagram::Wake { to: EngineId(0) };
    UdpSocket::bind((any, 0))?.send_to(&wake.to_bytes(), (address, port))?;
    Ok(())
}

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
