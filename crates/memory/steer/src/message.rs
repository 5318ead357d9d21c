//! A client's request, which the box holds until the node has answered it.

use std::ops::Range;

use doorbell_wire::{
    ATOMIC_ETH_LEN, AtomicEthPacket, BTH_LEN, BthPacket, Msn, Opcode, Psn, Qpn, RETH_LEN, RKey, RethPacket,
};

use crate::key::Key;

/// Operation of a request as the box sends the request to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Write,
    Read,
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd { add: u64 },
}

/// How the box derives the client's answer from the outcome of an atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The client gets the value that the node found.
    AsIs,
    /// The box steered the CAS, so the CAS compared with another value than the client requested.
    Steered,
    /// The box sent the CAS as a WRITE. `prior` is the value before the WRITE.
    Converted { prior: u64 },
}

/// A request from its first packet to the node's answer.
#[derive(Debug)]
pub(crate) struct Message {
    /// Index of the client. `qpn` is the client's queue pair number in the box, which differs for the next client with
    /// this index.
    pub(crate) slot: u32,
    pub(crate) qpn: Qpn,
    pub(crate) kind: Kind,
    pub(crate) answer: Answer,
    /// PSN of the request at the client. `msn` is the client's message sequence number.
    pub(crate) psn: Psn,
    pub(crate) msn: Msn,
    /// Number of PSNs that the request occupies: the number of its packets, or for a READ the number of response
    /// packets.
    pub(crate) packets: u32,
    /// Whether the message is a repeated READ.
    pub(crate) again: bool,
    /// Traffic class of the packets. Includes the congestion mark if any of the client's packets had one.
    pub(crate) traffic_class: u8,
    pub(crate) address: u64,
    pub(crate) length: u32,
    /// The remote key that the client used.
    pub(crate) rkey: RKey,
    /// The remote key for the packets to the node.
    pub(crate) node_rkey: RKey,
    /// Whether all accesses to the region pass the box.
    pub(crate) exclusive: bool,
    /// The key to whose chain this CAS appends a node. Other CASes on this chain wait until this CAS is answered.
    pub(crate) lock: Option<Key>,
    /// Number of a question of `Values`. The outcome of this atomic is the answer.
    pub(crate) question: Option<u64>,
    /// The first PSN of the request on the node's queue pair.
    pub(crate) node_psn: Psn,
    /// Number of packets of the request that the node has acknowledged, or for a READ the number of response packets
    /// that have arrived.
    pub(crate) done: u32,
    /// Bytes of the message that count against the limits of held bytes.
    pub(crate) held: usize,
    /// The request's packets, one after the other.
    pub(crate) bytes: Vec<u8>,
}

/// Bytes that the kernel charges for a datagram in a socket's receive buffer, in addition to the payload.
const DATAGRAM_BYTES: u64 = 832;

impl Message {
    /// Returns the ranges of the request's packets in `bytes`, each from BTH to padding. All packets but the last are
    /// full.
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

    /// Returns the number of bytes of the node's receive buffer that the request's packets use.
    pub(crate) fn request_cost(&self) -> u64 {
        let packets = if self.kind == Kind::Read { 1 } else { self.packets };
        u64::from(packets) * DATAGRAM_BYTES + self.bytes.len() as u64
    }

    /// Returns the number of bytes of the box's receive buffer that the response uses.
    pub(crate) fn response_cost(&self) -> u64 {
        match self.kind {
            Kind::Read => u64::from(self.packets) * DATAGRAM_BYTES + u64::from(self.length),
            _ => 0,
        }
    }

    /// Changes address and remote key in the request's first packet.
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

    /// Changes the value with which a CAS compares.
    pub(crate) fn set_compare(&mut self, value: u64) {
        let Kind::CompareSwap { swap, .. } = self.kind else { return };
        AtomicEthPacket::new_unchecked(&mut self.bytes[BTH_LEN..]).set_compare(value);
        self.kind = Kind::CompareSwap { compare: value, swap };
        if self.answer == Answer::AsIs {
            self.answer = Answer::Steered;
        }
    }

    /// Turns a CAS into a WRITE of `value`, which is four bytes shorter: a RETH and the value replace the AtomicETH
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
