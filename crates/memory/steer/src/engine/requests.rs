//! Requests of clients (IBTA Vol 1, 9.7.4).

use doorbell_verbs_core::Access;
use doorbell_wire::{
    ATOMIC_ETH_LEN, AtomicEthRepr, BTH_LEN, BthRepr, NakCode, Outer, PacketOperation, Psn, RETH_LEN, RKey, RethRepr,
};

use super::Steer;
use crate::client::{ECN, Phase, Repetition};
use crate::message::{Answer, Kind, Message};

/// The ECN value with which a router marks congestion (RFC 3168).
const CONGESTION_EXPERIENCED: u8 = 0b11;

/// Operation and target of a request.
struct Target {
    kind: Kind,
    address: u64,
    length: u32,
    rkey: RKey,
    access: Access,
}

impl Steer {
    pub(super) fn handle_request(
        &mut self,
        now_ns: u64,
        slot: u32,
        outer: &Outer,
        packet: &[u8],
        bth: &BthRepr,
        operation: PacketOperation,
    ) {
        let from = self.config.address;
        let Some(client) = self.clients[slot as usize].as_deref_mut() else { return };
        client.heard(outer.traffic_class & !ECN, bth.partition_key);
        match client.phase {
            Phase::Open => {}
            // Requests after a refused request must not be executed.
            Phase::Refusing(_) => return,
            Phase::Failing => {
                let code = NakCode::REMOTE_OPERATIONAL_ERROR;
                client.phase = Phase::Refused(client.expected, code);
                return client.send_nak(client.expected, code, from, &mut self.out);
            }
            // The client has sent the refused request again, so the NAK may have been lost.
            Phase::Refused(psn, code) => {
                if bth.psn == psn {
                    client.send_nak(psn, code, from, &mut self.out);
                }
                return;
            }
        }
        if bth.psn == client.expected {
            if let Err(code) = self.accept(now_ns, slot, outer, packet, bth, operation) {
                self.refuse(slot, code);
            }
        } else if bth.psn.is_before(client.expected) {
            self.counters.duplicates += 1;
            self.repeat(slot, outer, packet, bth, operation);
        } else {
            self.counters.out_of_sequence += 1;
            if client.missed() {
                self.touch(slot);
            }
        }
    }

    /// Refuses the request at the expected PSN, and all later requests.
    fn refuse(&mut self, slot: u32, code: NakCode) {
        match code {
            NakCode::REMOTE_ACCESS_ERROR => self.counters.refused_access += 1,
            _ => self.counters.refused_invalid += 1,
        }
        let Some(client) = self.clients[slot as usize].as_deref_mut() else { return };
        client.phase = Phase::Refusing(code);
        if let Some((message, _)) = client.assembly.take() {
            client.held_bytes -= message.held;
            self.release(message);
        }
        self.touch(slot);
    }

    /// Handles a packet with the expected PSN.
    fn accept(
        &mut self,
        now_ns: u64,
        slot: u32,
        outer: &Outer,
        packet: &[u8],
        bth: &BthRepr,
        operation: PacketOperation,
    ) -> Result<(), NakCode> {
        let has_assembly = self.client(slot).is_some_and(|client| client.assembly.is_some());
        // The packets of a message must be consecutive (IBTA Vol 1, 9.7.4.1.2). Packets are padded to four bytes, and a
        // packet without payload ends after its headers.
        let has_rest = !bth.opcode.has_payload() && packet.len() > BTH_LEN + bth.opcode.extension_len();
        if has_assembly == bth.opcode.is_first() || !packet.len().is_multiple_of(4) || has_rest {
            return Err(NakCode::INVALID_REQUEST);
        }
        if has_assembly {
            return self.continue_write(now_ns, slot, outer, packet, bth, operation);
        }
        let target = target_of(packet, operation, bth).ok_or(NakCode::INVALID_REQUEST)?;
        let mtu = self.mtu();
        let packets = target.length.div_ceil(mtu as u32).max(1);
        let (message_packets, payload) = match target.kind {
            Kind::Write => {
                let payload = packet.len() - BTH_LEN - RETH_LEN - usize::from(bth.pad_count);
                check_write(payload, target.length, mtu, bth)?;
                if target.length > self.config.limits.message_bytes {
                    return Err(NakCode::INVALID_REQUEST);
                }
                (packets, payload as u32)
            }
            // The client must be able to distinguish duplicates from new requests, so a READ may occupy only a part of
            // the PSNs.
            Kind::Read if packets >= 1 << 21 => return Err(NakCode::INVALID_REQUEST),
            Kind::Read => (packets, 0),
            Kind::CompareSwap { .. } | Kind::FetchAdd { .. } if target.address % 8 != 0 => {
                return Err(NakCode::INVALID_REQUEST);
            }
            Kind::CompareSwap { .. } | Kind::FetchAdd { .. } => (1, 0),
        };
        let region = self.regions.check(target.rkey, target.address, target.length, target.access)?.copied();
        let held = match target.kind {
            Kind::Write => packet.len() + (target.length - payload) as usize + (packets as usize - 1) * BTH_LEN,
            _ => packet.len(),
        };
        let limits = self.config.limits;
        let is_full = self.held_bytes + held > limits.held_bytes;
        let Some(client) = self.client(slot) else { return Ok(()) };
        let requests = client.waiting.len() + client.in_flight;
        if is_full || requests >= limits.client_requests || client.held_bytes + held > limits.client_bytes {
            // The box drops the request, as if the network had lost it. The client will retransmit.
            self.counters.full += 1;
            return Ok(());
        }
        let (qpn, msn) = (client.own_qpn, client.accepted_msn.next());
        let bytes = self.buffer(packet);
        let mut message = Message {
            slot,
            qpn,
            kind: target.kind,
            answer: Answer::AsIs,
            psn: bth.psn,
            msn,
            packets: message_packets,
            again: false,
            traffic_class: outer.traffic_class,
            address: target.address,
            length: target.length,
            rkey: target.rkey,
            node_rkey: target.rkey,
            exclusive: region.is_some_and(|region| region.exclusive),
            lock: None,
            question: None,
            node_psn: Psn::new(0),
            done: 0,
            held,
            bytes,
        };
        if let Some(region) = region {
            message.set_target(target.address, region.node_rkey);
        }
        self.hold(slot, held);
        let is_complete = bth.opcode.is_last();
        let Some(client) = self.client(slot) else { return Ok(()) };
        client.arrived(if is_complete { message_packets } else { 1 });
        if is_complete {
            self.enqueue(slot, message);
        } else {
            client.assembly = Some((message, payload));
            self.assembled(now_ns, slot, bth);
        }
        Ok(())
    }

    /// Handles a packet of a WRITE after the first one.
    fn continue_write(
        &mut self,
        now_ns: u64,
        slot: u32,
        outer: &Outer,
        packet: &[u8],
        bth: &BthRepr,
        operation: PacketOperation,
    ) -> Result<(), NakCode> {
        let mtu = self.mtu() as u32;
        let Some(client) = self.client(slot) else { return Ok(()) };
        let Some((message, received)) = client.assembly.as_mut() else { return Ok(()) };
        let payload = (packet.len() - BTH_LEN - bth.opcode.extension_len() - usize::from(bth.pad_count)) as u32;
        let left = message.length - *received;
        let is_last = bth.opcode.is_last();
        // All packets but the last are full, and the first packet has announced the length (IBTA Vol 1, 9.7.4.1.6).
        let fits = if is_last { payload == left && payload <= mtu } else { payload == mtu && payload < left };
        if operation != PacketOperation::Write || bth.opcode.has_imm() || !fits || (!is_last && bth.pad_count > 0) {
            return Err(NakCode::INVALID_REQUEST);
        }
        message.bytes.extend_from_slice(packet);
        message.traffic_class |= outer.traffic_class & CONGESTION_EXPERIENCED;
        *received += payload;
        client.arrived(1);
        if !is_last {
            self.assembled(now_ns, slot, bth);
        } else if let Some((message, _)) = client.assembly.take() {
            self.enqueue(slot, message);
        }
        Ok(())
    }

    /// Records a packet of an incomplete WRITE. The client may wait for an acknowledgement of this packet before it
    /// sends more.
    fn assembled(&mut self, now_ns: u64, slot: u32, bth: &BthRepr) {
        let due_ns = now_ns.saturating_add(self.config.limits.incomplete_ns);
        self.sweep_ns = Some(self.sweep_ns.map_or(due_ns, |at_ns| at_ns.min(due_ns)));
        let Some(client) = self.client(slot) else { return };
        client.assembly_ns = now_ns;
        if bth.ack_request {
            client.want_partial_ack();
            self.touch(slot);
        }
    }

    /// Queues a complete request.
    fn enqueue(&mut self, slot: u32, message: Message) {
        self.counters.requests += 1;
        let Some(client) = self.client(slot) else { return };
        client.accepted_msn = message.msn;
        client.waiting.push_back(message);
        self.schedule(slot);
    }

    /// Handles a repeated request (IBTA Vol 1, 9.7.4.4). The box answers an already answered request again. It ignores
    /// the repetition of a complete request that is not answered yet, since the answer will come. It acknowledges a
    /// repeated packet of an incomplete WRITE.
    fn repeat(&mut self, slot: u32, outer: &Outer, packet: &[u8], bth: &BthRepr, operation: PacketOperation) {
        let from_incomplete = self.client(slot).is_some_and(|client| !bth.psn.is_before(client.complete_end()));
        let Some(client) = self.client(slot) else { return };
        if from_incomplete {
            client.want_partial_ack();
            return self.touch(slot);
        }
        if !bth.psn.is_before(client.answered) {
            return;
        }
        match operation {
            PacketOperation::ReadRequest => return self.repeat_read(slot, outer, packet, bth),
            PacketOperation::CompareSwap | PacketOperation::FetchAdd => {
                // The box has dropped the results of older atomics, so their repetitions get no answer (IBTA Vol 1,
                // 9.7.4.4).
                if let Some(original) = client.result_of(bth.psn) {
                    client.repeat(Repetition::Atomic { psn: bth.psn, original });
                }
            }
            _ => {
                client.repeat(Repetition::Acknowledge);
            }
        }
        self.touch(slot);
    }

    /// Queues a READ that the node must execute again, at the same address as before.
    fn repeat_read(&mut self, slot: u32, outer: &Outer, packet: &[u8], bth: &BthRepr) {
        if packet.len() > BTH_LEN + RETH_LEN {
            return;
        }
        let Some(target) = target_of(packet, PacketOperation::ReadRequest, bth) else { return };
        let mtu = self.mtu() as u32;
        let packets = target.length.div_ceil(mtu).max(1);
        let limits = self.config.limits;
        let is_full = self.held_bytes + packet.len() > limits.held_bytes;
        let Some(client) = self.client(slot) else { return };
        // A repeated READ may only cover the PSNs of answered requests.
        if packets > client.answered.distance_from(bth.psn) {
            return;
        }
        if is_full || client.held_bytes + packet.len() > limits.client_bytes {
            self.counters.full += 1;
            return;
        }
        let redirect = client.redirect_of(bth.psn);
        let (qpn, msn) = (client.own_qpn, client.answered_msn);
        let Ok(region) = self.regions.check(target.rkey, target.address, target.length, target.access) else {
            self.counters.refused_access += 1;
            return;
        };
        let region = region.copied();
        let bytes = self.buffer(packet);
        let held = bytes.len();
        let mut message = Message {
            slot,
            qpn,
            kind: Kind::Read,
            answer: Answer::AsIs,
            psn: bth.psn,
            msn,
            packets,
            again: true,
            traffic_class: outer.traffic_class,
            address: target.address,
            length: target.length,
            rkey: target.rkey,
            node_rkey: target.rkey,
            exclusive: false,
            lock: None,
            question: None,
            node_psn: Psn::new(0),
            done: 0,
            held,
            bytes,
        };
        let elsewhere = redirect.and_then(|redirect| {
            let to = redirect.to.checked_add(target.address.checked_sub(redirect.from)?)?;
            Some((to, redirect.node_rkey))
        });
        match (elsewhere, region) {
            (Some((to, node_rkey)), _) => message.set_target(to, node_rkey),
            (None, Some(region)) => message.set_target(target.address, region.node_rkey),
            (None, None) => {}
        }
        let Some(client) = self.client(slot) else { return };
        // The same READ may already wait here. A client that repeats a READ several times needs only one answer.
        let waits =
            client.repetitions.iter().any(|other| matches!(other, Repetition::Read(read) if read.psn == bth.psn));
        if waits || !client.repeat(Repetition::Read(message)) {
            return;
        }
        self.hold(slot, held);
        self.counters.reads_again += 1;
        self.touch(slot);
    }

    fn hold(&mut self, slot: u32, bytes: usize) {
        self.held_bytes += bytes;
        if let Some(client) = self.client(slot) {
            client.held_bytes += bytes;
        }
    }

    pub(super) fn mtu(&self) -> usize {
        self.node.as_ref().map_or(256, |node| node.end.path_mtu.bytes())
    }
}

/// Returns operation and target of a request. `None` for operations that the box does not offer: SENDs and immediate
/// data, which would consume receives of the node.
fn target_of(packet: &[u8], operation: PacketOperation, bth: &BthRepr) -> Option<Target> {
    let rest = packet.get(BTH_LEN..)?;
    match operation {
        PacketOperation::Write | PacketOperation::ReadRequest if bth.opcode.has_reth() && !bth.opcode.has_imm() => {
            let RethRepr { virtual_address: address, rkey, dma_length: length } =
                RethRepr::read(rest.first_chunk::<RETH_LEN>()?);
            let (kind, access) = match operation {
                PacketOperation::Write => (Kind::Write, Access::REMOTE_WRITE),
                _ => (Kind::Read, Access::REMOTE_READ),
            };
            Some(Target { kind, address, length, rkey, access })
        }
        PacketOperation::CompareSwap | PacketOperation::FetchAdd => {
            let AtomicEthRepr { virtual_address: address, rkey, swap_or_add, compare } =
                AtomicEthRepr::read(rest.first_chunk::<ATOMIC_ETH_LEN>()?);
            let kind = match operation {
                PacketOperation::CompareSwap => Kind::CompareSwap { compare, swap: swap_or_add },
                _ => Kind::FetchAdd { add: swap_or_add },
            };
            Some(Target { kind, address, length: 8, rkey, access: Access::REMOTE_ATOMIC })
        }
        _ => None,
    }
}

/// Checks the first packet of a WRITE (IBTA Vol 1, 9.7.4.1.6).
fn check_write(payload: usize, length: u32, mtu: usize, bth: &BthRepr) -> Result<(), NakCode> {
    let length = length as usize;
    let fits = if bth.opcode.is_last() {
        payload == length && payload <= mtu
    } else {
        payload == mtu && length > mtu && bth.pad_count == 0
    };
    if fits { Ok(()) } else { Err(NakCode::INVALID_REQUEST) }
}
