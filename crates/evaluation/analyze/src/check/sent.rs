//! Request packets that were sent.

use doorbell_wire::{Opcode, PacketOperation, PathMtu, Psn};

use super::packet::{Packet, Place};

/// Path MTU with which a READ response has the most packets.
pub(super) const SHORTEST_MTU: u32 = 256;

/// Request packet that was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) psn: Psn,
    pub(super) opcode: Opcode,
    /// Bytes of payload, if the frame was captured up to its end.
    pub(super) payload: Option<u32>,
    /// Address and length of the RETH, or address and operand of the AtomicETH.
    pub(super) target: Option<(u64, u64)>,
    pub(super) solicited: bool,
    /// Immediate data, or the key to invalidate.
    pub(super) immediate: Option<u32>,
    /// Messages that end with this packet or before it, counted from the first captured packet.
    pub(super) messages: u32,
    /// Number of transmissions, up to 255.
    pub(super) times: u8,
    pub(super) place: Place,
    pub(super) last_ns: Option<u64>,
    /// Value in the response to this atomic.
    pub(super) answer: Option<u64>,
    /// Whether the next request skips PSNs that this READ may have used, or that are missing.
    pub(super) is_doubtful: bool,
    /// Number of requests for the rest of this READ, up to 255.
    pub(super) rests: u8,
    /// Number of last packets of responses, up to 255.
    pub(super) responses: u8,
}

impl Sent {
    /// Returns whether the last packet of the response to this READ can have this PSN. All packets before have one path
    /// MTU. `payload` is `None` if it is unknown.
    pub(super) fn can_end(&self, psn: Psn, payload: Option<u32>) -> bool {
        let Some((_, length)) = self.target.filter(|_| self.opcode.operation() == Some(PacketOperation::ReadRequest))
        else {
            return false;
        };
        let before = psn.distance_from(self.psn);
        if before >= response_packets(length, SHORTEST_MTU) {
            return false;
        }
        let Some(payload) = payload else { return true };
        match (u64::from(before), length.checked_sub(u64::from(payload))) {
            (0, rest) => rest == Some(0),
            (before, Some(rest)) => {
                let mtu = usize::try_from(rest / before).ok().and_then(PathMtu::from_bytes);
                rest.is_multiple_of(before) && mtu.is_some()
            }
            (_, None) => false,
        }
    }

    /// Returns whether the request is a READ or an atomic.
    pub(super) fn takes_response(&self) -> bool {
        use PacketOperation::{CompareSwap, FetchAdd, ReadRequest};
        matches!(self.opcode.operation(), Some(ReadRequest | CompareSwap | FetchAdd))
    }

    /// Returns the number of requests for this READ or a part of it, or for this atomic, up to 255.
    pub(super) fn requests(&self) -> u8 {
        self.times.saturating_add(self.rests)
    }

    /// Records the end of a response. Returns the number of responses and the number of requests, if the responses are
    /// more.
    pub(super) fn respond(&mut self) -> Option<(u8, u8)> {
        self.responses = self.responses.saturating_add(1);
        let requests = self.requests();
        (self.responses > requests && requests < u8::MAX).then_some((self.responses, requests))
    }
}

/// Returns the number of response packets of a READ, at least 1.
pub(super) fn response_packets(length: u64, mtu: u32) -> u32 {
    u32::try_from(length.div_ceil(u64::from(mtu)).max(1)).unwrap_or(u32::MAX)
}

/// Returns the address and the length or operand that a request names.
pub(super) fn target(packet: &Packet<'_>) -> Option<(u64, u64)> {
    let reth = packet.reth().map(|reth| (reth.virtual_address, u64::from(reth.dma_length)));
    reth.or_else(|| packet.atomic().map(|atomic| (atomic.virtual_address, atomic.swap_or_add)))
}

/// Returns whether a READ request asks for the rest of an earlier one.
pub(super) fn is_rest(sent: &Sent, packet: &Packet<'_>) -> bool {
    let both = [sent.opcode.operation(), packet.operation()] == [Some(PacketOperation::ReadRequest); 2];
    match (sent.target, target(packet)) {
        (Some((from, length)), Some((again, rest))) => {
            both && rest < length && again.wrapping_add(rest) == from.wrapping_add(length)
        }
        _ => false,
    }
}

/// Returns how a repeated request differs from the first transmission.
pub(super) fn difference(sent: &Sent, packet: &Packet<'_>) -> Option<String> {
    let opcode = packet.bth.opcode;
    if opcode != sent.opcode {
        return Some(format!("{opcode} instead of {}", sent.opcode));
    }
    if let Some(payload) = sent.payload.filter(|_| packet.has_known_payload())
        && packet.payload_bytes() != payload
    {
        return Some(format!("{} bytes of payload instead of {payload}", packet.payload_bytes()));
    }
    if packet.bth.solicited != sent.solicited {
        let bit = |set: bool| u8::from(set);
        return Some(format!("a solicited bit of {} instead of {}", bit(packet.bth.solicited), bit(sent.solicited)));
    }
    if let (Some(first), Some(again)) = (sent.immediate, packet.immediate())
        && first != again
    {
        return Some(format!("immediate data or key 0x{again:x} instead of 0x{first:x}"));
    }
    match (sent.target, target(packet)) {
        (Some(first), Some(again)) if first != again && !is_rest(sent, packet) => Some(format!(
            "address 0x{:x} and length or operand {} instead of 0x{:x} and {}",
            again.0, again.1, first.0, first.1
        )),
        _ => None,
    }
}

/// Returns the name of an operation in sentences.
pub(super) fn name(operation: PacketOperation) -> &'static str {
    match operation {
        PacketOperation::Send => "SEND",
        PacketOperation::Write => "WRITE",
        PacketOperation::ReadRequest => "READ request",
        PacketOperation::ReadResponse => "READ response",
        PacketOperation::Acknowledge => "acknowledgement",
        PacketOperation::AtomicAcknowledge => "atomic response",
        PacketOperation::CompareSwap => "CompareSwap",
        PacketOperation::FetchAdd => "FetchAdd",
        PacketOperation::Cnp => "CNP",
    }
}
