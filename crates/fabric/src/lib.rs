//! What carries RoCE v2 packets.
//!
//! A [`Link`] moves *runs* of packets between a driver and the world: [`UdpLink`] over a UDP
//! socket.
#![deny(unsafe_code)]

pub mod limit;
mod link;
mod seal;
#[cfg(test)]
mod testing;
pub mod udp;

pub use link::{Link, LinkProperties, ReceivedRun, Sink};
pub use seal::{CheckCounters, Checker, Sealer};
pub use udp::{BindError, BindRequest, UdpCounters, UdpLink, active_mtu, bind};
