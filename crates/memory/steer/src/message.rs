//! A request that the box holds: whole, as its client sent it, until the node has answered it.

use std::ops::Range;

use doorbell_wire::{
    ATOMIC_ETH_LEN, AtomicEthPacket, BTH_LEN, BthPacket, Msn, Opcode, Psn, Qpn, RETH_LEN, RKey, RethPacket,
};

use crate::steering::Key;

/// Operation of a request, as the box sends it to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Write,
    Read,
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd { add: u64 },
}

/// Answer to the client for an atomic's outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The value that the node found.
    AsIs,
    /// The CAS was steered, and compared with another value than the client requested.
    Steered,
    /// The CAS was sent as a WRITE; `prior` is the value before it.
    Converted { prior: u64 },
}

/// A request from its first packet to the node's answer.
#[derive(Debug)]
pub(crate) struct Message {
    /// The client: its index in the table, and its queue pair, which differs when the index is reused.
    pub(crate) slot: u32,
    pub(crate) qpn: Qpn,
    pub(crate) kind: Kind,
    pub(crate) answer: Answer,
    /// The client's numbers.
    pub(crate) psn: Psn,
    pub(crate) msn: Msn,
    /// PSNs of the request on both sides: its packets, or for a READ those of the response.
    pub(crate) packets: u32,
    /// Whether the client requests the response to a READ again.
    pub(crate) again: bool,
    /// Whether any of its packets has a congestion mark.
    pub(crate) traffic_class: u8,
    pub(crate) address: u64,
    pub(crate) length: u32,
    /// The key that the client used.
    pub(crate) rkey: RKey,
    /// The key for the node.
    pub(crate) node_rkey: RKey,
    /// Whether every access to the region passes the box.
    pub(crate) exclusive: bool,
    /// The chain that gets no other CAS before this one is answered.
    pub(crate) lock: Option<Key>,
    /// Number of the question about a word that its outcome answers.
    pub(crate) question: Option<u64>,
    /// The first PSN on the node's queue pair.
    pub(crate) node_psn: Psn,
    /// Number of its packets that the node has acknowledged, or of packets of a READ's response.
    pub(crate) done: u32,
    /// Bytes that count against the limits of held bytes.
    pub(crate) held: usize,
    /// Its packets, one after the other.
    pub(crate) bytes: Vec<u8>,
}

/// Bytes that the kernel charges for a datagram in a socket's receive buffer, besides its payload.
const DATAGRAM_BYTES: u64 = 832;

impl Message {
    /// Returns the ranges of the request's packets, from BTH to padding: all but the last are full.
    pub(crate) fn request_packets(&self, mtu: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let (end, mut at) = (self.bytes.len(), 0);
        let mut extension = if self.kind == Kind::Write { RETH_LEN } else { ATOMIC_ETH_LEN };
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let upto = (at + BTH_LEN + extension + mtu).min(end);
            extension = 0;
            Some(std::mem::replace(&mut at, upto)..upto)
        })
    }

    /// Returns whether the node answers the request with more than an ACK.
    pub(crate) fn has_response(&self) -> bool {
        self.kind != Kind::Write
    }

    /// Returns the bytes of the node's receive buffer that its packets use.
    pub(crate) fn request_cost(&self) -> u64 {
        let packets = if self.kind == Kind::Read { 1 } else { self.packets };
        u64::from(packets) * DATAGRAM_BYTES + self.bytes.len() as u64
    }

    /// Returns the bytes of the box's receive buffer that the response uses.
    pub(crate) fn response_cost(&self) -> u64 {
        match self.kind {
            Kind::Read => u64::from(self.packets) * DATAGRAM_BYTES + u64::from(self.length),
            _ => 0,
        }
    }

    /// Changes the address and key in the (first) packet.
    pub(crate) fn set_target(&mut self, address: u64, rkey: RKey) {
        (self.address, self.node_rkey) = (address, rkey);
        let Some(rest) = self.bytes.get_mut(BTH_LEN..) else { return };
        match self.kind {
            Kind::Write | Kind::Read => {
                let mut reth = RethPacket::new_unchecked(rest);
                reth.set_virtual_address(address);
                reth.set_rkey(rkey);
            }
            Kind::CompareSwap { .. } | Kind::FetchAdd { .. } => {
                let mut atomic = AtomicEthPacket::new_unchecked(rest);
                atomic.set_virtual_address(address);
                atomic.set_rkey(rkey);
            }
        }
    }

    /// Makes a CAS compare with another value than its client requested.
    pub(crate) fn set_compare(&mut self, value: u64) {
        let Kind::CompareSwap { swap, .. } = self.kind else { return };
        AtomicEthPacket::new_unchecked(&mut self.bytes[BTH_LEN..]).set_compare(value);
        self.kind = Kind::CompareSwap { compare: value, swap };
        if self.answer == Answer::AsIs {
            self.answer = Answer::Steered;
        }
    }

    /// Turns a CAS into a WRITE of `value`, which is four bytes shorter. A RETH and the value replace the AtomicETH
    /// (IBTA Vol 1, 9.3). Memory holds words in little-endian order.
    pub(crate) fn convert(&mut self, value: u64, prior: u64) {
        self.bytes.truncate(BTH_LEN + RETH_LEN);
        BthPacket::new_unchecked(&mut self.bytes[..]).set_opcode(Opcode::RC_WRITE_ONLY);
        let mut reth = RethPacket::new_unchecked(&mut self.bytes[BTH_LEN..]);
        reth.set_virtual_address(self.address);
        reth.set_rkey(self.node_rkey);
        reth.set_dma_length(8);
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self.kind = Kind::Write;
        self.answer = Answer::Converted { prior };
    }

    /// Returns the payload of a WRITE's first packet.
    pub(crate) fn first_payload(&self, mtu: usize) -> &[u8] {
        let from = BTH_LEN + RETH_LEN;
        let length = (self.length as usize).min(mtu);
        self.bytes.get(from..from + length).unwrap_or_default()
    }
}
