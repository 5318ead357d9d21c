//! RoCE v2 on the wire: header formats, the invariant CRC, and what a message costs.
//!
//! ```
//! use doorbell_wire::{MessageKind, OuterKind, PathMtu, Transport, message_cost};
//!
//! # fn main() -> Result<(), doorbell_wire::CostError> {
//! // A NIC's counters grow by 78 B for a byte that is written.
//! let cost = message_cost(MessageKind::Write, Transport::Rc, 1, PathMtu::Mtu4096, OuterKind::IPV4)?;
//! assert_eq!((cost.request.packets, cost.request.frame_bytes), (1, 78));
//! # Ok(())
//! # }
//! ```
//!
//! A RoCE v2 packet is an InfiniBand transport packet in a UDP datagram to port 4791:
//!
//! ```text
//! Ethernet | IPv4 or IPv6 | UDP | BTH | extension headers | payload | padding | ICRC
//!       14        20 / 40     8    12    Opcode::extension_len        0..=3       4
//! ```
//!
//! - **Headers.** Each module ([`bth`], [`reth`], [`aeth`], [`deth`], [`atomic_eth`],
//!   [`atomic_ack_eth`], [`imm_dt`], [`ieth`]) has a zero-copy view `Packet` over a buffer, and a
//!   `Repr` with the header's fields as values. `Repr::parse` and `Repr::emit` go through a view
//!   and check; `Repr::read` and `Repr::write` work on an array of exactly the header's length and
//!   cannot fail, which is what a data path wants. Reserved bits are ignored on the way in and
//!   zero on the way out.
//! - **Opcodes.** [`Opcode`] says which headers follow a BTH. Every byte is an `Opcode`, also one
//!   that IBTA does not assign: what comes from the network stays representable.
//! - **ICRC.** [`Flow`] computes and checks the CRC behind each packet; see [`icrc`].
//! - **Frames.** [`Outer`] is what the transport sees of the IP header; [`Encapsulation`] writes,
//!   and [`parse_frame`] reads, whole Ethernet frames; [`parse_ip`] and [`parse_datagram`] read an
//!   IP packet that a capture may have cut.
//! - **Cost.** [`message_cost`] counts the packets and bytes that a message puts on the link.
//!
//! Nothing here allocates, panics on bytes from the network, or does IO.

#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[cfg(test)]
extern crate std;

#[macro_use]
mod view;

pub mod aeth;
pub mod atomic_ack_eth;
pub mod atomic_eth;
pub mod bth;
pub mod cost;
pub mod deth;
pub mod icrc;
pub mod ieth;
pub mod imm_dt;
pub mod outer;
pub mod reth;

mod crc;
mod error;
mod fault;
mod mix;
mod opcode;
mod timers;
mod types;

pub use aeth::{AETH_LEN, NakCode, Packet as AethPacket, Repr as AethRepr, Syndrome, SyndromeKind};
pub use atomic_ack_eth::{ATOMIC_ACK_ETH_LEN, Packet as AtomicAckEthPacket, Repr as AtomicAckEthRepr};
pub use atomic_eth::{ATOMIC_ETH_LEN, Packet as AtomicEthPacket, Repr as AtomicEthRepr};
pub use bth::{BTH_LEN, Packet as BthPacket, Repr as BthRepr};
pub use cost::{
    CostError, Direction, IpVersion, LinkLimit, LinkSide, MessageCost, MessageKind, OuterKind, Response, message_cost,
};
pub use deth::{DETH_LEN, Packet as DethPacket, Repr as DethRepr};
pub use error::Error;
pub use fault::FaultMarks;
pub use icrc::{Check, Flow, Icrc, explain_difference};
pub use ieth::{IETH_LEN, Packet as IethPacket, Repr as IethRepr};
pub use imm_dt::{IMM_DT_LEN, Packet as ImmDtPacket, Repr as ImmDtRepr};
pub use mix::{scramble, split_mix};
pub use opcode::{CNP_RESERVED_LEN, Opcode, Operation, Transport};
pub use outer::{
    Datagram, ETHERNET_LEN, Encapsulation, FCS_LEN, Frame, GAP_LEN, GRH_LEN, IPV4_LEN, IPV6_LEN, IpPacket,
    MIN_FRAME_LEN, Outer, PREAMBLE_LEN, ROCE_UDP_PORT, UDP_LEN, VLAN_LEN, is_vlan_tag, parse_datagram, parse_frame,
    parse_ip,
};
pub use reth::{Packet as RethPacket, RETH_LEN, Repr as RethRepr};
pub use timers::{ack_timeout_ns, rnr_timer_code_at_least, rnr_timer_ns};
pub use types::{Msn, PartitionKey, PathMtu, Psn, QKey, Qpn, RKey};

/// Bytes of the invariant CRC that ends every packet.
pub const ICRC_LEN: usize = 4;

/// Bytes of the XRC extended transport header, which names the shared receive queue of an XRC
/// request (IBTA Vol 1, Annex A14).
pub const XRCETH_LEN: usize = 4;

#[cfg(test)]
mod tests;
