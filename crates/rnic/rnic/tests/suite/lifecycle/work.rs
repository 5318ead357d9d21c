//! Posting of random work by the programs.

use doorbell_verbs_core::{
    Access, AddressVector, Attachment, CompletionOpcode, Payload, PostError, PostErrorKind, QpKind, QpState,
    RecvRequest, SendFlags, SendOperation, SendRequest, Sge, UdDestination, WindowBinding,
};
use doorbell_wire::{QKey, RKey};

use super::life::Life;
use super::model::{
    AREA_BYTES, COUNTER_AT, Check, Fate, READ_AT, READ_BYTES, SCRATCH_AT, SLOT_BYTES, SendWork, WRITE_BYTES, Wr,
};
use crate::common::QKEY;
use crate::common::tally::Hit;
use crate::common::trace::trace;
use crate::common::workload::pattern;
use crate::common::world::address_of;

impl Life {
    /// Splits a slot into two or three scatter-gather elements, of which some may be empty. The elements use one of the
    /// two regions that cover all memory of the node. Returns the elements, and whether they use the second region.
    fn elements(&mut self, node: usize, slot: usize, length: usize) -> (Vec<Sge>, bool) {
        let offset = slot * SLOT_BYTES;
        let buffers = self.programs[node].buffers.clone().filter(|_| self.rng.chance(200));
        let lkey = buffers.as_ref().map_or(self.world.nodes[node].region.lkey(), |region| region.lkey());
        let cut = self.rng.below(length.min(SLOT_BYTES) as u64 + 1) as usize;
        let at = &self.world.nodes[node];
        let mut sges = vec![at.sge(offset, cut), at.sge(offset + cut, length.min(SLOT_BYTES) - cut)];
        if length > SLOT_BYTES {
            sges.push(at.sge(offset, length - SLOT_BYTES)); // repeat the first bytes
        }
        sges.iter_mut().for_each(|sge| sge.lkey = lkey);
        (sges, buffers.is_some())
    }

    /// Posts receives to the own receive queue of a queue pair.
    pub(crate) fn post_receives(&mut self, index: usize, most: usize) {
        let (node, qpn, end) = self.named(index);
        for _ in 0..most {
            if self.qps[index].receives.len() >= end.capacities.max_recv_wr {
                return;
            }
            let Some(slot) = self.programs[node].free_slots.pop() else { return };
            let (sges, _) = self.elements(node, slot, SLOT_BYTES);
            let wr_id = self.wrs.len() as u64;
            trace(|| format!("{:>10} node {node}: QP {:#x}: receive {wr_id}", self.world.now_ns, qpn.get()));
            let request = RecvRequest { wr_id, sges: &sges };
            self.world.nodes[node].rnic.post_recv(qpn, &[request]).expect("the receive queue has room");
            self.wrs.push(Wr { qp: Some(index), node, fate: Fate::Open, slot: Some(slot), send: None });
            self.qps[index].receives.push_back(wr_id);
        }
    }

    pub(crate) fn post_shared_receives(&mut self, node: usize, most: usize) {
        for _ in 0..most {
            let Some(srq) = &self.programs[node].srq else { return };
            let id = srq.id;
            let Some(slot) = self.programs[node].free_slots.pop() else { return };
            let (sges, _) = self.elements(node, slot, SLOT_BYTES);
            let wr_id = self.wrs.len() as u64;
            let request = RecvRequest { wr_id, sges: &sges };
            let posted = self.world.nodes[node].rnic.post_srq_recv(id, &[request]);
            if let Err(PostError { kind: PostErrorKind::QueueFull { .. }, .. }) = posted {
                self.programs[node].free_slots.push(slot);
                return;
            }
            posted.expect("the elements are valid");
            trace(|| format!("{:>10} node {node}: SRQ: receive {wr_id}", self.world.now_ns));
            self.wrs.push(Wr { qp: None, node, fate: Fate::Open, slot: Some(slot), send: None });
            self.programs[node].srq.as_mut().expect("the node has a shared receive queue").open.insert(wr_id);
        }
    }

    /// Posts one send work request, if the queue pair accepts send work requests and has room.
    pub(crate) fn post_send(&mut self, index: usize) {
        let state = self.state(index);
        if !matches!(state, QpState::ReadyToSend | QpState::SqDrain)
            || self.qps[index].sends.len() >= self.qps[index].end.capacities.max_send_wr
            || self.outstanding(index) >= self.qps[index].end.capacities.max_send_wr
        {
            return;
        }
        match self.qps[index].kind {
            QpKind::Rc => self.post_reliable(index),
            QpKind::Uc => self.post_unreliable(index),
            QpKind::Ud => self.post_datagram(index),
        }
    }

    pub(crate) fn outstanding(&self, index: usize) -> usize {
        let qp = &self.qps[index];
        self.world.nodes[qp.node].rnic.query_qp(qp.qpn).expect("the queue pair exists").outstanding_sends
    }

    fn length(&mut self, mtu: usize, most: usize) -> usize {
        let rng = &mut self.rng;
        let length = match rng.below(6) {
            0 => rng.below(9) as usize,
            1 => mtu * rng.within(1, 2) as usize,
            2 => mtu * rng.within(1, 2) as usize + 1,
            _ => rng.below(4 * mtu as u64) as usize,
        };
        length.min(most)
    }

    fn post_reliable(&mut self, index: usize) {
        let (conn, end) = self.qps[index].conn.expect("a queue pair in RTS is connected");
        let (node, peer_node) = (self.qps[index].node, self.qps[self.conns[conn].ends[1 - end]].node);
        let mtu = self.conns[conn].mtu.bytes();
        let base = self.world.nodes[peer_node].memory.address();
        let tag = self.wrs.len() as u32;
        let d = &self.conns[conn].directions[end];
        let window = d.window.as_ref().and_then(|window| window.bound);
        let region_gone = d.region.is_none();
        let (area, rkey) = (d.area, d.rkey);
        // `directions[end]` describes the area that the other end opens to this end. The area of this end, and the
        // window to it, are in the opposite direction.
        let own_window = self.conns[conn].directions[1 - end].window.as_ref().map(|window| (window.name, window.bound));
        let choice = self.rng.below(100);
        let (dead_key, rkey) = match window {
            Some(key) if self.rng.chance(500) => (false, key),
            _ => (region_gone, rkey),
        };
        // Programs seldom use a key that they know to be invalid.
        let remote = !dead_key || self.rng.chance(100);
        let reach = area as u64 + base;
        let length = self.length(mtu, SLOT_BYTES);
        match choice {
            0..20 => self.post(index, SendOperation::Send, Sizes::message(length)),
            20..30 => self.post(index, SendOperation::SendImmediate(tag), Sizes::message(length)),
            30..31 => {
                self.conns[conn].reasons.oversized = true;
                self.world.tally.hit(Hit::SendOverSized);
                self.post(index, SendOperation::Send, Sizes::message(SLOT_BYTES + 300));
            }
            31..33 if region_gone && self.rng.chance(100) => {
                self.take_back(index, rkey, length);
            }
            // Ask the peer to invalidate the key of one of its regions.
            31..33 if self.takes_regions_back && self.rng.chance(200) => {
                let key = self.some_region(peer_node, rkey);
                self.world.tally.hit(Hit::RegionTakenByPeer);
                self.take_back(index, key, length);
            }
            31..36 if window.is_some() => {
                let key = window.expect("the window is bound");
                if let Some(window) = &mut self.conns[conn].directions[end].window {
                    window.bound = None;
                }
                self.world.tally.hit(Hit::WindowTakenByPeer);
                self.take_back(index, key, length);
            }
            36..55 if remote => {
                let length = self.length(mtu, WRITE_BYTES);
                let at = self.rng.below((WRITE_BYTES - length) as u64 + 1) as usize;
                let written = pattern(u64::from(tag), length);
                self.conns[conn].directions[end].written[at..at + length].copy_from_slice(&written);
                let (remote_address, message) = (reach + at as u64, self.rng.chance(400));
                let operation = match message {
                    false => SendOperation::Write { remote_address, rkey },
                    true => SendOperation::WriteImmediate { remote_address, rkey, immediate: tag },
                };
                self.conns[conn].reasons.key_dead |= dead_key;
                let sizes = Sizes { length, message, dead_key: dead_key && length > 0, check: Check::Nothing };
                self.post(index, operation, sizes);
            }
            55..72 if remote => {
                let length = self.length(mtu, READ_BYTES);
                let at = READ_AT + self.rng.below((READ_BYTES - length) as u64 + 1) as usize;
                self.conns[conn].reasons.key_dead |= dead_key;
                let operation = SendOperation::Read { remote_address: reach + at as u64, rkey };
                let check = Check::Read { at: area + at };
                self.post(index, operation, Sizes { length, message: false, dead_key: dead_key && length > 0, check });
            }
            72..85 if remote => {
                self.conns[conn].reasons.key_dead |= dead_key;
                self.conns[conn].directions[end].adds += 1;
                let operation = SendOperation::FetchAdd { remote_address: reach + COUNTER_AT as u64, rkey, add: 1 };
                let check = Check::FetchAdd;
                self.post(index, operation, Sizes { length: 8, message: false, dead_key, check });
            }
            85..92 => match (own_window, self.conns[conn].directions[1 - end].region.clone()) {
                (Some((name, None)), Some(region)) => {
                    let bits = self.rng.below(256) as u32;
                    let key = RKey::new((name.get() & !0xff) | bits);
                    let own_area = self.conns[conn].directions[1 - end].area;
                    let binding = WindowBinding {
                        rkey: key,
                        lkey: region.lkey(),
                        address: self.world.nodes[node].memory.address() + own_area as u64,
                        length: AREA_BYTES as u64,
                        access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
                        zero_based: false,
                    };
                    // Note a possible cause of an error: if a second binding is posted before this one completes, the
                    // second one fails.
                    self.conns[conn].reasons.window = true;
                    self.conns[conn].directions[1 - end].window_keys.insert(key.get());
                    let check = Check::Bind { key };
                    let sizes = Sizes { length: 0, message: false, dead_key: false, check };
                    self.post(index, SendOperation::BindWindow(binding), sizes);
                }
                (Some((_, Some(key))), _) => {
                    let reasons = &mut self.conns[conn].reasons;
                    (reasons.key_dead, reasons.window) = (true, true);
                    self.world.tally.hit(Hit::WindowTaken);
                    if let Some(window) = &mut self.conns[conn].directions[1 - end].window {
                        window.bound = None;
                    }
                    let sizes = Sizes { length: 0, message: false, dead_key: false, check: Check::Invalidate };
                    self.post(index, SendOperation::LocalInvalidate(key), sizes);
                }
                _ => {}
            },
            _ => self.post(index, SendOperation::Send, Sizes::message(length)),
        }
    }

    /// Posts a SEND that asks the peer to invalidate a key. The peer invalidates the key of a window that it bound for
    /// this connection, and rejects any other key. A rejection ends the connection, and has no other effect (IBTA Vol
    /// 1, 9.9.3).
    fn take_back(&mut self, index: usize, key: RKey, length: usize) {
        let (conn, _) = self.qps[index].conn.expect("a queue pair in RTS is connected");
        // Note a possible cause of errors: later requests that use the key fail.
        self.conns[conn].reasons.key_dead = true;
        let sizes = Sizes { check: Check::TakeBack { key }, ..Sizes::message(length) };
        self.post(index, SendOperation::SendInvalidate(key), sizes);
    }

    /// Returns the key of a random region of a node. It is the region of the area for this connection (`own`) or for
    /// another connection, or one of the regions that cover all memory of the node.
    fn some_region(&mut self, node: usize, own: RKey) -> RKey {
        let of_work = [Some(&self.world.nodes[node].region), self.programs[node].buffers.as_ref()];
        let mut keys: Vec<RKey> = of_work.into_iter().flatten().map(|region| region.rkey()).collect();
        for c in &self.conns {
            for (from, d) in c.directions.iter().enumerate() {
                let of_node = d.region.as_ref().filter(|_| self.qps[c.ends[1 - from]].node == node);
                keys.extend(of_node.map(|region| region.rkey()));
            }
        }
        keys.push(own);
        *self.rng.pick(&keys)
    }

    fn post_unreliable(&mut self, index: usize) {
        let (conn, end) = self.qps[index].conn.expect("a queue pair in RTS is connected");
        let peer_node = self.qps[self.conns[conn].ends[1 - end]].node;
        let (mtu, tag) = (self.conns[conn].mtu.bytes(), self.wrs.len() as u32);
        // Sometimes the message is longer than the receive. The responder must then drop the message and keep the
        // receive.
        let most = if self.rng.chance(100) { SLOT_BYTES + 600 } else { SLOT_BYTES };
        let length = if most > SLOT_BYTES { most } else { self.length(mtu, most) };
        let operation = if self.rng.chance(200) && length <= SLOT_BYTES {
            let at = &self.world.nodes[peer_node];
            let remote_address = at.memory.address() + SCRATCH_AT as u64;
            SendOperation::WriteImmediate { remote_address, rkey: at.region.rkey(), immediate: tag }
        } else {
            SendOperation::SendImmediate(tag)
        };
        self.post(index, operation, Sizes::message(length));
    }

    fn post_datagram(&mut self, index: usize) {
        let node = self.rng.below(self.world.nodes.len() as u64) as usize;
        // Send to an existing queue pair, or to a destroyed one.
        let candidates: Vec<usize> = (0..self.qps.len())
            .filter(|&at| self.qps[at].node == node && self.qps[at].kind == QpKind::Ud)
            .filter(|&at| self.qps[at].live || at % 3 == 0)
            .collect();
        if candidates.is_empty() {
            return;
        }
        let to = *self.rng.pick(&candidates);
        let qkey = if self.rng.chance(100) { QKey::new(0x7777) } else { QKEY };
        let tag = self.wrs.len() as u32;
        // The longest datagrams do not fit into a receive.
        let length = if self.rng.chance(200) { SLOT_BYTES } else { self.length(256, SLOT_BYTES - 40) };
        let address = AddressVector::to(address_of(node));
        let destination = UdDestination { address, qpn: self.qps[to].qpn, qkey };
        self.post_to(index, SendOperation::SendImmediate(tag), Sizes::message(length), Some(destination));
    }

    fn post(&mut self, index: usize, operation: SendOperation, sizes: Sizes) {
        self.post_to(index, operation, sizes, None);
    }

    fn post_to(&mut self, index: usize, operation: SendOperation, sizes: Sizes, destination: Option<UdDestination>) {
        use SendOperation as Op;
        let Sizes { length, message, dead_key, check } = sizes;
        let (node, qpn, end) = self.named(index);
        let Some(slot) = self.programs[node].free_slots.pop() else { return };
        let wr_id = self.wrs.len() as u64;
        let (opcode, attachment) = match operation {
            Op::Send => (CompletionOpcode::Send, Attachment::None),
            Op::SendImmediate(value) => (CompletionOpcode::Send, Attachment::Immediate(value)),
            Op::SendInvalidate(key) => (CompletionOpcode::Send, Attachment::Invalidated(key)),
            Op::Write { .. } => (CompletionOpcode::Write, Attachment::None),
            Op::WriteImmediate { immediate, .. } => (CompletionOpcode::Write, Attachment::Immediate(immediate)),
            Op::Read { .. } => (CompletionOpcode::Read, Attachment::None),
            Op::CompareSwap { .. } => (CompletionOpcode::CompareSwap, Attachment::None),
            Op::FetchAdd { .. } => (CompletionOpcode::FetchAdd, Attachment::None),
            Op::BindWindow(_) => (CompletionOpcode::BindWindow, Attachment::None),
            Op::LocalInvalidate(_) => (CompletionOpcode::LocalInvalidate, Attachment::None),
        };
        let mut bytes = pattern(wr_id, length.min(SLOT_BYTES));
        self.world.nodes[node].memory.write(slot * SLOT_BYTES, &bytes);
        bytes.truncate(64);
        let (elements, _) = self.elements(node, slot, length);
        let is_local = matches!(operation, Op::BindWindow(_) | Op::LocalInvalidate(_));
        let moves_bytes = matches!(check, Check::Nothing | Check::TakeBack { .. });
        let inline = is_local || (length <= 64 && moves_bytes && self.rng.chance(500));
        let payload = if inline { Payload::Inline(&bytes[..length]) } else { Payload::Sges(&elements) };
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, self.rng.chance(500) || matches!(check, Check::Bind { .. }));
        flags.set(SendFlags::SOLICITED, self.rng.chance(200));
        flags.set(SendFlags::FENCE, self.rng.chance(100));
        trace(|| {
            let (at, number, name) = (self.world.now_ns, qpn.get(), operation.name());
            format!("{at:>10} node {node}: QP {number:#x}: {name} {wr_id} of {length} B, {flags:?}")
        });
        let request = SendRequest { wr_id, operation, flags, payload, destination };
        let now_ns = self.world.now_ns;
        self.world.nodes[node].rnic.post_send(now_ns, qpn, &[request]).expect("the send queue has room");
        let conn = self.qps[index].conn;
        let signaled = end.signal_all || flags.contains(SendFlags::SIGNALED);
        let send = SendWork { opcode, length, signaled, message, attachment, received: false, check, conn, dead_key };
        self.wrs.push(Wr { qp: Some(index), node, fate: Fate::Open, slot: Some(slot), send: Some(send) });
        self.qps[index].sends.push_back(wr_id);
        if let Some((conn, end)) = conn.filter(|_| message) {
            self.conns[conn].directions[end].expected.push_back(wr_id);
        }
        self.posts_left = self.posts_left.saturating_sub(1);
    }
}

/// Length of a work request, and the check of its effects.
struct Sizes {
    length: usize,
    message: bool,
    dead_key: bool,
    check: Check,
}

impl Sizes {
    fn message(length: usize) -> Self {
        Self { length, message: true, dead_key: false, check: Check::Nothing }
    }
}
