//! Packets that the requester sends (IBTA Vol 1, 9.7.2, 9.7.3).

use doorbell_verbs_core::{QpKind, SendFlags, SendOperation, Status};
use doorbell_wire::{
    ATOMIC_ETH_LEN, AtomicEthRepr, BTH_LEN, BthPacket, BthRepr, DETH_LEN, DethRepr, IETH_LEN, IMM_DT_LEN, IethRepr,
    ImmDtRepr, Opcode, Psn, RETH_LEN, RethRepr,
};

use super::{MAX_OUTSTANDING_PSNS, Probe, Stop, cost_of, is_answered, payload_of};
use crate::commons::{Commons, Sent};
use crate::congestion::in_flight_cost;
use crate::packets::plain_bth;
use crate::qp::Qp;
use crate::transmit::{EngineId, TransmitBatch, TransmitInfo};
use crate::work::SendWqe;

/// Returns the opcode of one packet of a SEND or WRITE.
#[inline]
fn request_opcode(kind: QpKind, operation: SendOperation, first: bool, last: bool) -> Opcode {
    use SendOperation as Op;
    // Each row holds the opcodes of an operation: first, middle, last and only packet. All transports use the same
    // values, apart from the transport bits.
    let row = match operation {
        Op::Send => [0x00, 0x01, 0x02, 0x04],
        Op::SendImmediate(_) => [0x00, 0x01, 0x03, 0x05],
        Op::SendInvalidate(_) => [0x00, 0x01, 0x16, 0x17],
        Op::Write { .. } => [0x06, 0x07, 0x08, 0x0a],
        Op::WriteImmediate { .. } => [0x06, 0x07, 0x09, 0x0b],
        Op::Read { .. } => [0x0c; 4],
        Op::CompareSwap { .. } => [0x13; 4],
        Op::FetchAdd { .. } => [0x14; 4],
        Op::BindWindow(_) | Op::LocalInvalidate(_) => unreachable!("an operation on a memory window sends no packet"),
    };
    let column = match (first, last) {
        (true, false) => 0,
        (false, false) => 1,
        (false, true) => 2,
        (true, true) => 3,
    };
    let transport = match kind {
        QpKind::Rc => 0x00,
        QpKind::Uc => 0x20,
        QpKind::Ud => 0x60,
    };
    // Select the byte by a shift in a register. With `row[column]`, the compiler would store the row to memory and load
    // one byte of it, and the CPU would wait for the store.
    Opcode(transport | (u32::from_le_bytes(row) >> (8 * column)) as u8)
}

/// Splits the next `N` bytes off a packet that is being written.
#[inline]
fn take<'a, const N: usize>(out: &mut &'a mut [u8]) -> &'a mut [u8; N] {
    let (head, rest) = std::mem::take(out).split_first_chunk_mut().expect("the packet must have room for its headers");
    *out = rest;
    head
}

/// Position and parameters of a packet to write.
#[derive(Clone, Copy)]
pub(super) struct PacketPosition {
    /// Index of the work request.
    pub(super) index: u64,
    /// Index of the packet within the work request.
    pub(super) packet: u32,
    /// Number of sequence numbers that the packet takes: 1, or for a READ the number of its response packets.
    pub(super) packets: u32,
    pub(super) psn: Psn,
    pub(super) retransmission: bool,
    pub(super) ack_request: bool,
}

/// Prepared BTH of the middle packets of a message. Their BTHs differ only in sequence number and acknowledgement
/// request.
#[derive(Clone, Copy)]
pub(super) struct MiddleHeader {
    /// Index of the work request.
    index: u64,
    header: [u8; BTH_LEN],
}

impl Qp {
    /// Sends requests until the budget, the room in the windows or the requests run out.
    pub(crate) fn transmit_requests(
        &mut self,
        core: &mut Commons,
        budget: &mut usize,
        batch: &mut TransmitBatch,
    ) -> Stop {
        let mut middle = None;
        if self.req.resumes
            && let Err(stop) = self.transmit_delayed(core, budget, batch)
        {
            return stop;
        }
        while self.has_request_to_send() {
            if *budget == 0 {
                return Stop::Budget;
            }
            if let Some(probe) = self.req.probe {
                if let Err(stop) = self.transmit_probe(core, probe, batch) {
                    return stop;
                }
                *budget -= 1;
                continue;
            }
            let index = self.req.cursor;
            let wqe = self.sq.get_mut(index);
            if wqe.packets == 0 {
                match self.manage_window(core, index) {
                    Ok(()) => continue,
                    Err(stop) => return stop,
                }
            }
            if index == self.req.assigned {
                wqe.first_psn = self.req.next_psn;
                self.req.next_psn = wqe.first_psn.add(wqe.packets);
                self.req.assigned += 1;
            }
            let wqe = *wqe;
            if wqe.flags.contains(SendFlags::FENCE) && self.req.cursor_packet == 0 && !self.req.reads.is_empty() {
                return Stop::Idle;
            }
            if is_answered(wqe.operation) {
                if self.req.reads.len() >= usize::from(self.settings.max_rd_atomic) {
                    return Stop::Idle;
                }
                if self.req.cursor_psn.distance_from(self.req.una) >= MAX_OUTSTANDING_PSNS {
                    return Stop::Idle;
                }
                match self.transmit_read_or_atomic(core, &wqe, batch) {
                    Ok(()) => {}
                    Err(stop) => return stop,
                }
            } else {
                if self.kind != QpKind::Rc && !core.full.is_empty() {
                    match self.delay(core) {
                        Ok(true) => continue,
                        Ok(false) => {}
                        Err(stop) => return stop,
                    }
                }
                match self.transmit_packet(core, index, &wqe, &mut middle, batch) {
                    Ok(()) => {}
                    Err(stop) => return stop,
                }
            }
            *budget -= 1;
        }
        Stop::Idle
    }

    /// Binds or invalidates a memory window, once all earlier requests are done: the requester may still have to
    /// retransmit earlier requests that use the window. No later request starts before this operation is done (IBTA Vol
    /// 1, 10.8.3.3).
    fn manage_window(&mut self, core: &mut Commons, index: u64) -> Result<(), Stop> {
        if index != self.sq.head {
            return Err(Stop::Idle);
        }
        let through = self.through();
        let done = match self.sq.get(index).operation {
            SendOperation::BindWindow(binding) => core.memory.bind_window(through, &binding),
            SendOperation::LocalInvalidate(rkey) => core.memory.invalidate_window(through, rkey),
            _ => unreachable!("only operations on memory windows take no sequence number"),
        };
        if done.is_err() {
            self.fail_oldest(core, Status::MemoryWindowBind);
            return Err(Stop::Idle);
        }
        let wqe = self.sq.pop();
        self.req.assigned = self.sq.head;
        self.req.cursor = self.sq.head;
        self.complete_send(core, &wqe, Status::Success);
        Ok(())
    }

    /// Records the transmission of a packet. If no other packet is outstanding, starts the timers.
    #[inline]
    fn sent(&mut self, core: &mut Commons, was_outstanding: bool, psn: Psn, retransmission: bool) {
        let req = &mut self.req;
        if !was_outstanding {
            // Until now, no packet was outstanding. That time does not count as silence of the peer.
            let waited_ns = core.now_ns.saturating_sub(req.sent_ns);
            req.progress_ns = if retransmission { req.progress_ns + waited_ns } else { core.now_ns };
            req.sent_ns = core.now_ns;
        }
        if req.timed.is_none() && !retransmission {
            req.timed = Some((psn, core.now_ns)); // never time a packet that was sent twice (Karn, RFC 6298 section 3)
        }
        if req.high_psn.is_before(req.cursor_psn) {
            req.high_psn = req.cursor_psn;
        }
    }

    /// Sends a request packet again as a probe, to find out whether a packet was lost.
    fn transmit_probe(&mut self, core: &mut Commons, probe: Probe, batch: &mut TransmitBatch) -> Result<(), Stop> {
        let req = &self.req;
        let index = match probe {
            Probe::Oldest => self.sq.head,
            Probe::Newest if req.cursor_packet > 0 => req.cursor,
            Probe::Newest => req.cursor - 1,
        };
        let wqe = *self.sq.get(index);
        let is_answered = is_answered(wqe.operation);
        let packet = match probe {
            Probe::Oldest => req.una.distance_from(wqe.first_psn),
            Probe::Newest => {
                let newest = req.cursor_psn.sub(1).distance_from(wqe.first_psn);
                if is_answered { newest - newest % self.packets_per_piece(core) } else { newest }
            }
        };
        let packets = if is_answered { self.piece_from(core, &wqe, packet) } else { 1 };
        let psn = wqe.first_psn.add(packet);
        let place = PacketPosition { index, packet, packets, psn, retransmission: true, ack_request: true };
        if is_answered {
            self.write_read_or_atomic(core, &wqe, place, batch)?;
        } else {
            self.write_packet(core, &wqe, place, &mut None, batch)?;
        }
        let has_newer = psn.add(packets) != self.req.cursor_psn;
        self.req.probe = (probe == Probe::Oldest && has_newer).then_some(Probe::Newest);
        Ok(())
    }

    /// Sends one packet of a SEND or WRITE.
    #[inline]
    fn transmit_packet(
        &mut self,
        core: &mut Commons,
        index: u64,
        wqe: &SendWqe,
        middle: &mut Option<MiddleHeader>,
        batch: &mut TransmitBatch,
    ) -> Result<(), Stop> {
        let mtu = self.mtu();
        let packet = self.req.cursor_packet;
        let last = packet + 1 == wqe.packets;
        let payload = payload_of(wqe.length, mtu, packet);
        let cost = in_flight_cost(1, payload as u64);
        let rc = self.kind == QpKind::Rc;
        if rc && let Some(destination) = self.destination {
            let window = &core.destinations[destination].window;
            if !window.has_room(cost) {
                return Err(Stop::Window { cost });
            }
            if window.exceeds_share(self.req.in_flight, cost) {
                return Err(Stop::Idle);
            }
        }
        // Request an acknowledgement at the end of a message, every `ack_request_packets` packets within a message, and
        // with the packet that fills the window or the share of the queue pair. Without an acknowledgement of that
        // packet, the queue pair could not continue.
        let since_ack_request = self.req.since_ack_request + 1;
        let ack_request = rc
            && (last
                || since_ack_request >= core.policy.ack_request_packets
                || self.destination.is_some_and(|destination| {
                    let window = &core.destinations[destination].window;
                    window.is_nearly_full(cost) || window.exceeds_share(self.req.in_flight + cost, cost)
                }));
        let psn = self.req.cursor_psn;
        let retransmission = rc && psn.is_before(self.req.high_psn);
        let place = PacketPosition { index, packet, packets: 1, psn, retransmission, ack_request };
        self.write_packet(core, wqe, place, middle, batch)?;
        self.req.since_ack_request = if ack_request { 0 } else { since_ack_request };

        let was_outstanding = self.req.has_outstanding();
        self.req.cursor_psn = psn.next();
        if last {
            self.req.cursor += 1;
            self.req.cursor_packet = 0;
        } else {
            self.req.cursor_packet = packet + 1;
        }
        if rc {
            if let Some(destination) = self.destination {
                core.charge(destination, cost);
                self.req.in_flight += cost;
            }
            self.sent(core, was_outstanding, psn, retransmission);
        } else {
            // On UC and UD, a packet is done once it is sent.
            self.req.una = self.req.cursor_psn;
            self.req.high_psn = self.req.cursor_psn;
            if last && !core.policy.waits_for_departures {
                self.sends_departed(core, self.req.cursor);
            }
        }
        Ok(())
    }

    /// Writes one packet of a SEND or WRITE. All middle packets of a message within one call of `transmit_requests`
    /// share one prepared header.
    #[inline]
    pub(super) fn write_packet(
        &mut self,
        core: &mut Commons,
        wqe: &SendWqe,
        place: PacketPosition,
        middle: &mut Option<MiddleHeader>,
        batch: &mut TransmitBatch,
    ) -> Result<(), Stop> {
        use SendOperation as Op;
        let PacketPosition { index, packet, psn, retransmission, ack_request, .. } = place;
        let mtu = self.mtu();
        let (first, last) = (packet == 0, packet + 1 == wqe.packets);
        let payload = payload_of(wqe.length, mtu, packet);
        let opcode = request_opcode(self.kind, wqe.operation, first, last);
        let pad = payload.wrapping_neg() & 3;
        let len = BTH_LEN + opcode.extension_len() + payload + pad;
        if !batch.has_room(len) {
            return Err(Stop::Budget);
        }
        let info = TransmitInfo {
            qpn: self.qpn,
            opcode,
            work_request: Some(wqe.wr_id),
            first,
            last,
            inline: wqe.inline,
            retransmission,
            payload_bytes: payload as u32,
        };
        let mut path = self.path;
        let mut dest_qpn = self.settings.dest_qpn;
        let ud = self.sq.destination_of(index);
        if let Some(ud) = ud {
            path.destination = ud.address.destination;
            path.traffic_class = ud.address.traffic_class;
            path.hop_limit = ud.address.hop_limit;
            path.engine = EngineId::of(ud.qpn);
            dest_qpn = ud.qpn;
        }
        let mut out = batch.push(&path, len, info);
        let header = take::<BTH_LEN>(&mut out);
        match middle {
            Some(known) if known.index == index && !first && !last => {
                *header = known.header;
                let mut bth = BthPacket::new_unchecked(header);
                bth.set_ack_request(ack_request);
                bth.set_psn(psn);
            }
            _ => {
                let solicited = last && wqe.flags.contains(SendFlags::SOLICITED);
                let bth = BthRepr { solicited, ack_request, ..plain_bth(opcode, dest_qpn, psn, pad) };
                bth.write(header);
                if !first && !last {
                    *middle = Some(MiddleHeader { index, header: *header });
                }
            }
        }
        if let Some(ud) = ud {
            let qkey = if ud.qkey.means_senders_own() { self.settings.qkey } else { ud.qkey };
            DethRepr { qkey, source_qpn: self.qpn }.write(take::<DETH_LEN>(&mut out));
        }
        match wqe.operation {
            Op::Write { remote_address, rkey } | Op::WriteImmediate { remote_address, rkey, .. } if first => {
                RethRepr { virtual_address: remote_address, rkey, dma_length: wqe.length }
                    .write(take::<RETH_LEN>(&mut out));
            }
            _ => {}
        }
        match wqe.operation {
            Op::SendImmediate(value) | Op::WriteImmediate { immediate: value, .. } if last => {
                ImmDtRepr { value }.write(take::<IMM_DT_LEN>(&mut out));
            }
            Op::SendInvalidate(rkey) if last => IethRepr { rkey }.write(take::<IETH_LEN>(&mut out)),
            _ => {}
        }
        let (body, padding) = out.split_at_mut(payload);
        padding.fill(0);
        if wqe.inline {
            let start = packet as usize * mtu;
            body.copy_from_slice(&self.sq.inline_of(index)[start..start + payload]);
        } else if payload > 0 {
            let skip = u64::from(packet) * mtu as u64;
            if core.memory.gather(self.pd, self.sq.sges_of(index), skip, batch.payload_room(payload, pad)).is_err() {
                // The region was deregistered after the post. Work requests complete in order (IBTA Vol 1, 10.8.5),
                // and the peer may have received earlier requests. This request therefore fails only after all earlier
                // requests are complete. Until then, the requester sends no later packet, and comes here again after
                // each acknowledgement.
                batch.retract(len);
                if index == self.sq.head {
                    self.fail_oldest(core, Status::LocalProtection);
                } else {
                    self.req.probe = None;
                }
                return Err(Stop::Idle);
            }
        }
        let sent = match wqe.operation {
            _ if retransmission => Sent::Again,
            Op::SendImmediate(_) if wqe.length == 0 => Sent::ImmediateAlone,
            _ => Sent::Request,
        };
        core.count_sent(&mut self.counters, sent, len as u64 + self.frame_overhead);
        Ok(())
    }

    /// Sends a READ request (or a piece of one), or an atomic request.
    fn transmit_read_or_atomic(
        &mut self,
        core: &mut Commons,
        wqe: &SendWqe,
        batch: &mut TransmitBatch,
    ) -> Result<(), Stop> {
        let mtu = self.mtu();
        let packet = self.req.cursor_packet;
        let packets = self.piece_from(core, wqe, packet);
        let cost = cost_of(wqe.length, mtu, packet, packet + packets);
        if !core.inbound.has_room(cost) {
            return Err(Stop::Inbound { cost });
        }
        if core.inbound.exceeds_share(self.req.inbound_in_flight, cost) {
            return Err(Stop::Idle);
        }
        let psn = self.req.cursor_psn;
        let retransmission = psn.is_before(self.req.high_psn);
        let index = self.req.cursor;
        self.write_read_or_atomic(
            core,
            wqe,
            PacketPosition { index, packet, packets, psn, retransmission, ack_request: true },
            batch,
        )?;

        let was_outstanding = self.req.has_outstanding();
        core.charge_inbound(cost);
        self.req.inbound_in_flight += cost;
        self.req.cursor_psn = psn.add(packets);
        self.req.reads.push_back(psn.add(packets));
        if packet + packets == wqe.packets {
            self.req.cursor += 1;
            self.req.cursor_packet = 0;
        } else {
            self.req.cursor_packet = packet + packets;
        }
        self.sent(core, was_outstanding, psn, retransmission);
        Ok(())
    }

    /// Returns the number of response packets per piece of a READ. The response arrives in the receive buffer of this
    /// device, so the window for READ responses limits the piece.
    fn packets_per_piece(&self, core: &Commons) -> u32 {
        (core.read_piece_cost / in_flight_cost(1, self.mtu() as u64)).max(1).min(u32::MAX.into()) as u32
    }

    /// Returns the number of response packets to request with one READ request, starting at `packet`. Pieces always end
    /// at the same packets. A repeated READ request therefore lies within a single earlier request, as the responder
    /// requires (IBTA Vol 1, 9.7.4.4).
    fn piece_from(&self, core: &Commons, wqe: &SendWqe, packet: u32) -> u32 {
        let most = self.packets_per_piece(core);
        (wqe.packets - packet).min(most - packet % most)
    }

    /// Writes a READ request (or a piece of one), or an atomic request.
    fn write_read_or_atomic(
        &mut self,
        core: &mut Commons,
        wqe: &SendWqe,
        place: PacketPosition,
        batch: &mut TransmitBatch,
    ) -> Result<(), Stop> {
        use SendOperation as Op;
        let PacketPosition { packet, packets, psn, retransmission, .. } = place;
        let mtu = self.mtu();
        let opcode = request_opcode(self.kind, wqe.operation, true, true);
        let len = BTH_LEN + opcode.extension_len();
        if !batch.has_room(len) {
            return Err(Stop::Budget);
        }
        let info = TransmitInfo {
            qpn: self.qpn,
            opcode,
            work_request: Some(wqe.wr_id),
            first: packet == 0,
            last: packet + packets == wqe.packets,
            inline: false,
            retransmission,
            payload_bytes: 0,
        };
        let mut out = batch.push(&self.path, len, info);
        let bth = BthRepr { ack_request: true, ..plain_bth(opcode, self.settings.dest_qpn, psn, 0) };
        bth.write(take::<BTH_LEN>(&mut out));
        match wqe.operation {
            Op::Read { remote_address, rkey } => {
                let done = packet as usize * mtu;
                let length = (wqe.length as usize - done).min(packets as usize * mtu);
                let virtual_address = remote_address.wrapping_add(done as u64);
                RethRepr { virtual_address, rkey, dma_length: length as u32 }.write(take::<RETH_LEN>(&mut out));
            }
            Op::CompareSwap { remote_address: virtual_address, rkey, compare, swap } => {
                AtomicEthRepr { virtual_address, rkey, swap_or_add: swap, compare }
                    .write(take::<ATOMIC_ETH_LEN>(&mut out));
            }
            Op::FetchAdd { remote_address: virtual_address, rkey, add } => {
                AtomicEthRepr { virtual_address, rkey, swap_or_add: add, compare: 0 }
                    .write(take::<ATOMIC_ETH_LEN>(&mut out));
            }
            _ => unreachable!("the operation must be a READ or an atomic operation"),
        }
        let sent = if retransmission { Sent::Again } else { Sent::Request };
        core.count_sent(&mut self.counters, sent, len as u64 + self.frame_overhead);
        Ok(())
    }
}
