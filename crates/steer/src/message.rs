//! A request that the box holds: whole, as its client sent it, until the node has answered it.

use std::ops::Range;

use doorbell_wire::{
    ATOMIC_ETH_LEN, AtomicEthPacket, BTH_LEN, BthPacket, Msn, Opcode, Psn, Qpn, RETH_LEN, RKey, RethPacket,
};

use crate::steering::Key;

/// What a request does, as the node is asked to do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Write,
    Read,
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd { add: u64 },
}

/// What the client learns from an atomic's outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// What the node found.
    AsIs,
    /// The CAS went elsewhere, and compared with another value than the client had asked for.
    Steered,
    /// The CAS went as a WRITE: this is what memory held before.
    Converted { prior: u64 },
}

/// A request from its first packet to the node's answer.
#[derive(Debug)]
pub(crate) struct Message {
    /// The client: its place in the table, and its queue pair, which differs when the place is used again.
    pub(crate) slot: u32,
    pub(crate) qpn: Qpn,
    pub(crate) kind: Kind,
    pub(crate) answer: Answer,
    /// The client's numbers.
    pub(crate) psn: Psn,
    pub(crate) msn: Msn,
    /// PSNs that it takes on both sides: packets of the request, of a READ those of the response.
    pub(crate) packets: u32,
    /// The client asks for the response to a READ once more.
    pub(crate) again: bool,
    /// With the congestion mark of any of its packets.
    pub(crate) traffic_class: u8,
    pub(crate) address: u64,
    pub(crate) length: u32,
    /// The key that the client showed.
    pub(crate) rkey: RKey,
    /// The key that the node is shown.
    pub(crate) node_rkey: RKey,
    /// Every access to the region passes the box.
    pub(crate) exclusive: bool,
    /// The chain to which no other CAS is sent before this one is answered.
    pub(crate) lock: Option<Key>,
    /// What its outcome tells of the value of a word.
    pub(crate) question: Option<u64>,
    /// The first PSN on the node's queue pair.
    pub(crate) node_psn: Psn,
    /// Packets of it that the node has acknowledged, or sent of a READ's response.
    pub(crate) done: u32,
    /// What it counts for against the limits of held bytes.
    pub(crate) held: usize,
    /// Its packets, one behind the other.
    pub(crate) bytes: Vec<u8>,
}

/// What the kernel charges for a datagram in a socket's receive buffer, beside its bytes.
const DATAGRAM_BYTES: u64 = 832;

impl Message {
    /// The packets of the request, from BTH to padding: all but the last are full.
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

    /// Does the node answer it by more than an ACK?
    pub(crate) fn has_response(&self) -> bool {
        self.kind != Kind::Write
    }

    /// What its packets take of the node's receive buffer.
    pub(crate) fn request_cost(&self) -> u64 {
        let packets = if self.kind == Kind::Read { 1 } else { self.packets };
        u64::from(packets) * DATAGRAM_BYTES + self.bytes.len() as u64
    }

    /// What the response takes of the box's.
    pub(crate) fn response_cost(&self) -> u64 {
        match self.kind {
            Kind::Read => u64::from(self.packets) * DATAGRAM_BYTES + u64::from(self.length),
            _ => 0,
        }
    }

    /// Sends it elsewhere: the address and key in its (first) packet.
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

    /// Lets a CAS compare with another value than its client asked for.
    pub(crate) fn set_compare(&mut self, value: u64) {
        let Kind::CompareSwap { swap, .. } = self.kind else { return };
        AtomicEthPacket::new_unchecked(&mut self.bytes[BTH_LEN..]).set_compare(value);
        self.kind = Kind::CompareSwap { compare: value, swap };
        if self.answer == Answer::AsIs {
            self.answer = Answer::Steered;
        }
    }

    /// Makes a CAS a WRITE of `value`, four bytes shorter: a RETH and the value in place of the AtomicETH
    /// (IBTA Vol 1, 9.3). Memory holds words least significant byte first.
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

    /// The payload of a WRITE's first packet.
    pub(crate) fn first_payload(&self, mtu: usize) -> &[u8] {
        let from = BTH_LEN + RETH_LEN;
        let length = (self.length as usize).min(mtu);
        self.bytes.get(from..from + length).unwrap_or_default()
    }
}
