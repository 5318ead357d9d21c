//! RoCE v2 packets: header formats, the invariant CRC, and the cost of a message.
//!
//! ```
//! use doorbell_wire::{MessageKind, OuterKind, PathMtu, Transport, message_cost};
//!
//! # fn main() -> Result<(), doorbell_wire::CostError> {
//! // A WRITE of one byte adds 78 B to the counters of a NIC.
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
//! - **Headers.** Each module ([`bth`], [`reth`], [`aeth`], [`deth`], [`atomic_eth`], [`atomic_ack_eth`], [`imm_dt`],
//!   [`ieth`]) has a zero-copy view `Packet` over a buffer, and a `Repr` with the values of the fields. `Repr::parse`
//!   and `Repr::emit` use a view and check its length. `Repr::read` and `Repr::write` take an array of the header's
//!   length and cannot fail, for use in a data path. `Repr` ignores reserved bits when it reads, and sets them to zero
//!   when it writes.
//! - **Opcodes.** [`Opcode`] determines the headers after a BTH. Every byte is a valid `Opcode`, even a byte that IBTA
//!   does not assign. The opcode of every packet from the network is therefore representable.
//! - **ICRC.** [`Flow`] computes and checks the CRC after each packet; see [`icrc`].
//! - **Frames.** [`Outer`] holds the fields of the IP header that the transport uses. [`Encapsulation`] writes
//!   Ethernet frames, and [`parse_frame`] reads them. [`parse_ip`] and [`parse_datagram`] read an IP packet that a
//!   capture may have cut.
//! - **Cost.** [`message_cost`] counts the packets and bytes that a message puts on the link.
//!
//! This crate does not allocate, does no IO, and does not panic on bytes from the network.

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
    CostError, Direction, LinkLimit, LinkSide, MessageCost, MessageKind, OuterKind, Response, message_cost,
};
pub use deth::{DETH_LEN, Packet as DethPacket, Repr as DethRepr};
pub use error::Error;
pub use fault::FaultMarks;
pub use icrc::{Check, Flow, Icrc, explain_difference};
pub use ieth::{IETH_LEN, Packet as IethPacket, Repr as IethRepr};
pub use imm_dt::{IMM_DT_LEN, Packet as ImmDtPacket, Repr as ImmDtRepr};
pub use mix::{fill_scrambled, is_scrambled, scramble, split_mix};
pub use opcode::{CNP_RESERVED_LEN, Opcode, PacketOperation, Transport};
pub use outer::{
    Datagram, ETHERNET_LEN, Encapsulation, FCS_LEN, Frame, GAP_LEN, GRH_LEN, IPV4_LEN, IPV6_LEN, IpPacket, IpVersion,
    MIN_FRAME_LEN, Outer, PREAMBLE_LEN, ROCE_UDP_PORT, UDP_LEN, VLAN_LEN, is_vlan_tag, parse_datagram, parse_frame,
    parse_ip, to_gid,
};
pub use reth::{Packet as RethPacket, RETH_LEN, Repr as RethRepr};
pub use timers::{ack_timeout_ns, rnr_timer_code_at_least, rnr_timer_ns};
pub use types::{Msn, PartitionKey, PathMtu, Psn, QKey, Qpn, RKey};

/// Bytes of the invariant CRC at the end of every packet.
pub const ICRC_LEN: usize = 4;

/// Bytes of the XRC extended transport header, which names the shared receive queue of an XRC request (IBTA Vol 1,
/// Annex A14).
pub const XRCETH_LEN: usize = 4;

#[cfg(test)]
mod tests;
