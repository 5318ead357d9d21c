//! UC and UD requests, which the responder does not answer (IBTA Vol 1, 9.8.2, 9.8.3).

use std::net::IpAddr;

use doorbell_verbs_core::{AsyncEvent, Attachment, Completion, CompletionOpcode, MAX_MESSAGE_BYTES, Status};
use doorbell_wire::{BTH_LEN, BthRepr, DETH_LEN, DethRepr, GRH_LEN, ICRC_LEN, Outer, PacketOperation, UDP_LEN};

use super::{Current, Request};
use crate::commons::Commons;
use crate::memory::Packet;
use crate::qp::Qp;
use crate::work::RecvWqe;

impl Qp {
    /// Handles a UC request packet. The responder sends no answer, and drops the whole message if one of its packets is
    /// missing (IBTA Vol 1, 9.8.2.2).
    pub(super) fn handle_unreliable(&mut self, core: &mut Commons, request: &Request<'_>) {
        let opcode = request.bth.opcode;
        let in_order = request.bth.psn == self.resp.expected;
        let continues = match (&self.resp.current, request.operation) {
            (Current::None, PacketOperation::Send | PacketOperation::Write) => opcode.is_first(),
            (Current::Send { .. }, PacketOperation::Send) | (Current::Write { .. }, PacketOperation::Write) => {
                in_order && !opcode.is_first()
            }
            _ => false,
        };
        if !continues && !matches!(self.resp.current, Current::None) {
            self.drop_unreliable(core);
        }
        self.resp.expected = request.bth.psn.next();
        if opcode.is_first() {
            self.resp.dropping = false;
        }
        let usable = (continues || opcode.is_first())
            && matches!(request.operation, PacketOperation::Send | PacketOperation::Write)
            && request.has_valid_length(self.mtu());
        if !usable || !self.place_unreliable(core, request) {
            self.drop_unreliable(core);
        }
        self.resp.dropping &= !opcode.is_last();
    }

    /// Abandons the UC message that is being received. Counts it as dropped, unless an earlier call has counted it.
    fn drop_unreliable(&mut self, core: &mut Commons) {
        if !std::mem::replace(&mut self.resp.dropping, true) {
            core.counters.rx_dropped_messages += 1;
        }
        self.return_receive();
    }

    /// Completes a receive with an error, because its memory is gone or does not belong to the protection domain of the
    /// queue pair. The error puts the queue pair into the error state (IBTA Vol 1, 9.9.3, class A). The receive must
    /// not return to the queue: every later message would take it and be dropped.
    fn fail_local_receive(&mut self, core: &mut Commons, wqe: &RecvWqe) {
        let (status, opcode) = (Status::LocalProtection, CompletionOpcode::Receive);
        self.complete_receive(core, Completion { wr_id: wqe.wr_id, status, opcode, ..Completion::default() });
        core.events.push(AsyncEvent::QpFatal(self.qpn));
        self.enter_error(core);
    }

    /// Copies a UC packet into memory. Returns false if that is impossible and the message must be dropped.
    fn place_unreliable(&mut self, core: &mut Commons, request: &Request<'_>) -> bool {
        let (opcode, payload) = (request.bth.opcode, request.payload);
        let completion = |wqe: &RecvWqe, opcode, byte_len| Completion {
            wr_id: wqe.wr_id,
            opcode,
            byte_len,
            solicited: request.bth.solicited,
            attachment: request.attachment,
            ..Completion::default()
        };
        if request.operation == PacketOperation::Send {
            let (wqe, done) = match std::mem::take(&mut self.resp.current) {
                Current::Send { wqe, done } => (wqe, done),
                _ => match self.try_receive() {
                    Some(wqe) => (wqe, 0),
                    None => return false,
                },
            };
            let total = done + payload.len() as u64;
            if total > wqe.length {
                self.give_back_receive(wqe);
                return false;
            }
            if opcode.is_first() {
                self.used_receive();
            }
            if core.memory.scatter(wqe.pd, &wqe.sges, done, payload).is_err() {
                self.fail_local_receive(core, &wqe);
                return false;
            }
            if opcode.is_last() {
                core.counters.rx_send_requests += 1;
                self.complete_receive(core, completion(&wqe, CompletionOpcode::Receive, total as u32));
            } else {
                self.resp.current = Current::Send { wqe, done: total };
            }
            return true;
        }
        let (address, rkey, length, done) = match (&self.resp.current, request.reth) {
            (&Current::Write { address, rkey, length, done }, _) => (address, rkey, length, done),
            (_, Some(reth)) if u64::from(reth.dma_length) <= MAX_MESSAGE_BYTES && self.may_write(core, &reth) => {
                (reth.virtual_address, reth.rkey, u64::from(reth.dma_length), 0)
            }
            _ => return false,
        };
        let total = done + payload.len() as u64;
        if total > length || opcode.is_last() != (total == length) {
            return false;
        }
        if core.memory.write_remote(self.through(), rkey, address.wrapping_add(done), payload).is_err() {
            return false;
        }
        if !opcode.is_last() {
            self.resp.current = Current::Write { address, rkey, length, done: total };
            return true;
        }
        self.resp.current = Current::None;
        core.counters.rx_write_requests += 1;
        if matches!(request.attachment, Attachment::Immediate(_)) {
            let Some(wqe) = self.take_receive() else { return false };
            let length = length as u32;
            self.complete_receive(core, completion(&wqe, CompletionOpcode::ReceiveWriteImmediate, length));
        }
        true
    }

    /// Handles a UD datagram.
    pub(crate) fn handle_datagram(&mut self, core: &mut Commons, outer: &Outer, bth: BthRepr, mut rest: Packet<'_>) {
        let packet_bytes = BTH_LEN + rest.len();
        let Some(deth) = rest.split::<DETH_LEN>().map(DethRepr::read) else {
            core.counters.rx_malformed += 1;
            return;
        };
        let Some(request) = Request::parse(bth, PacketOperation::Send, rest) else {
            core.counters.rx_malformed += 1;
            return;
        };
        if deth.qkey != self.settings.qkey {
            core.counters.rx_key_violation += 1;
            return;
        }
        // The responder silently drops a datagram if there is no receive or the receive is too short (IBTA Vol 1,
        // 9.8.3.2.2).
        let total = (GRH_LEN + request.payload.len()) as u64;
        let wqe = if request.payload.len() <= self.mtu() { self.try_receive() } else { None };
        let wqe = match wqe {
            Some(wqe) if total <= wqe.length => wqe,
            too_short => {
                core.counters.rx_dropped_messages += 1;
                if let Some(wqe) = too_short {
                    self.give_back_receive(wqe);
                }
                return;
            }
        };
        self.used_receive();
        let grh = routing_header(outer, packet_bytes);
        if core.memory.scatter(wqe.pd, &wqe.sges, 0, grh[..].into()).is_err()
            || core.memory.scatter(wqe.pd, &wqe.sges, GRH_LEN as u64, request.payload).is_err()
        {
            core.counters.rx_dropped_messages += 1;
            return self.fail_local_receive(core, &wqe);
        }
        core.counters.rx_send_requests += 1;
        self.complete_receive(
            core,
            Completion {
                wr_id: wqe.wr_id,
                opcode: CompletionOpcode::Receive,
                byte_len: total as u32,
                solicited: bth.solicited,
                has_grh: true,
                source_qpn: deth.source_qpn,
                attachment: request.attachment,
                ..Completion::default()
            },
        );
    }
}

/// Returns the 40 bytes that the receive holds before a UD payload: the IPv6 header, or 20 zeros and the IPv4 header.
/// The headers are rebuilt from the fields that the device knows (IBTA Vol 1, Annex A17, A17.4.5.2).
fn routing_header(outer: &Outer, packet_bytes: usize) -> [u8; GRH_LEN] {
    let mut grh = [0; GRH_LEN];
    // Bytes after the IP header: the UDP header, the packet from BTH to padding, and the ICRC.
    let payload = (UDP_LEN + packet_bytes + ICRC_LEN) as u16;
    match (outer.src, outer.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let ip = &mut grh[20..];
            ip[0] = 0x45;
            ip[1] = outer.traffic_class;
            ip[2..4].copy_from_slice(&(payload + 20).to_be_bytes());
            ip[4..6].copy_from_slice(&outer.identification.unwrap_or(0).to_be_bytes());
            ip[6] = if outer.dont_fragment.unwrap_or(true) { 0x40 } else { 0 };
            ip[8] = outer.hop_limit;
            ip[9] = 17;
            ip[12..16].copy_from_slice(&src.octets());
            ip[16..20].copy_from_slice(&dst.octets());
            let sum: u32 = ip.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
            let folded = (sum & 0xffff) + (sum >> 16);
            let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
            ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            grh[0] = 0x60 | outer.traffic_class >> 4;
            grh[1] = outer.traffic_class << 4;
            grh[4..6].copy_from_slice(&payload.to_be_bytes());
            grh[6] = 17;
            grh[7] = outer.hop_limit;
            grh[8..24].copy_from_slice(&src.octets());
            grh[24..40].copy_from_slice(&dst.octets());
        }
        _ => {}
    }
    grh
}
