//! What carries RoCE v2 packets.
//!
//! A [`Link`] moves *runs* of packets, each the UDP payload of one datagram, between a driver and
//! the world:
//!
//! - [`UdpLink`] over a UDP socket ([`bind`] makes it), and [`MemoryLink`] within one process, with
//!   the caller's clock.
//! - [`Pcap`], [`Faults`] and [`Counted`] wrap any link, and each other.
//!
//! [`Sealer`] and [`Checker`] make and check the ICRC between the RNIC and a sealed link.
#![deny(unsafe_code)]

mod counted;
mod driver;
mod faults;
mod link;
mod memory;
mod observe;
mod pcap;
mod progress;
mod seal;
#[cfg(test)]
mod testing;
pub mod udp;

pub use counted::{Counted, PacketClass, Traffic, TrafficByClass};
pub use driver::{Acks, Driver};
pub use faults::{FaultCounters, FaultPlan, FaultPlanError, Faults};
pub use link::{Link, LinkProperties, ReceivedRun, Sink};
pub use memory::{MemoryCounters, MemoryLink, MemoryNetwork, MemoryOptions};
pub use observe::Observer;
pub use pcap::Pcap;
pub use progress::{DrivenRnic, flush_before_exit};
pub use seal::{CheckCounters, Checker, Sealer};
pub use udp::{BindError, BindRequest, UdpCounters, UdpLink, active_mtu, bind, signal};
