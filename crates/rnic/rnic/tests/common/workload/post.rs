//! Posting of random work by the programs, and the expectations of the model.

use doorbell_verbs_core::{
    Access, Attachment, CompletionOpcode, Payload, RecvRequest, SendFlags, SendOperation, SendRequest, Sge, Status,
    WindowBinding, WindowKind,
};
use doorbell_wire::{Qpn, RKey};

use super::{AREA_BYTES, Check, Expected, Posted, Workload, pattern, take};

impl Workload {
    /// Returns a length, often close to packet boundaries.
    fn length(&mut self, mtu: usize, most: usize) -> usize {
        let rng = &mut self.rng;
        let length = match rng.below(6) {
            0 => 0,
            1 => rng.within(1, 8) as usize,
            2 => mtu * rng.within(1, 3) as usize,
            3 => mtu * rng.within(1, 3) as usize + 1,
            _ => rng.below(4 * mtu as u64) as usize,
        };
        length.min(most)
    }

    /// Splits a range of bytes into one to three scatter-gather elements.
    fn elements(&mut self, node: usize, offset: usize, length: usize) -> Vec<Sge> {
        let mut cuts =
            [0, self.rng.below(length as u64 + 1) as usize, self.rng.below(length as u64 + 1) as usize, length];
        cuts.sort_unstable();
        let count = self.rng.within(1, 3) as usize;
        let node = &self.world.nodes[node];
        match count {
            1 => vec![node.sge(offset, length)],
            2 => vec![node.sge(offset, cuts[1]), node.sge(offset + cuts[1], length - cuts[1])],
            _ => cuts.windows(2).map(|w| node.sge(offset + w[0], w[1] - w[0])).collect(),
        }
    }

    pub(super) fn post_one(&mut self, index: usize) {
        let (node, peer_node, qpn, mtu) = {
            let side = &self.sides[index];
            (side.node, side.peer_node, side.qpn, side.mtu)
        };
        let wr_id = self.sides[index].next;
        let tag = u64::from(qpn.get()) << 32 | wr_id;
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, self.rng.chance(500));
        flags.set(SendFlags::SOLICITED, self.rng.chance(200));
        flags.set(SendFlags::FENCE, self.rng.chance(100) || self.sides[index].fence_next);
        self.sides[index].fence_next = false;
        let solicited = flags.contains(SendFlags::SOLICITED);
        let rkey = self.world.nodes[peer_node].region.rkey();
        let peer_base = self.world.nodes[peer_node].memory.address();
        let immediate = self.rng.next() as u32;
        let choice = self.rng.below(9);
        let most = if choice <= 2 { self.slot_bytes } else { AREA_BYTES };
        let length = self.length(mtu, most);
        let mut check = Check::Nothing;
        let mut expected = None;
        let (operation, opcode, length) = match choice {
            0..=2 => {
                let (operation, attachment) = match choice {
                    0 => (SendOperation::Send, Attachment::None),
                    1 => (SendOperation::SendImmediate(immediate), Attachment::Immediate(immediate)),
                    _ => match self.sides[index].peer_windows.pop() {
                        Some(key) => (SendOperation::SendInvalidate(key), Attachment::Invalidated(key)),
                        None => (SendOperation::Send, Attachment::None),
                    },
                };
                expected = Some(Expected { tag, length, immediate_write: false, attachment, solicited });
                (operation, CompletionOpcode::Send, length)
            }
            3 | 4 => {
                let side = &mut self.sides[index];
                let at = self.rng.below((AREA_BYTES - length) as u64 + 1) as usize;
                side.write_model[at..at + length].copy_from_slice(&pattern(tag, length));
                let remote_address = peer_base + (side.write_area + at) as u64;
                let operation = if choice == 3 {
                    SendOperation::Write { remote_address, rkey }
                } else {
                    let attachment = Attachment::Immediate(immediate);
                    expected = Some(Expected { tag, length, immediate_write: true, attachment, solicited });
                    SendOperation::WriteImmediate { remote_address, rkey, immediate }
                };
                (operation, CompletionOpcode::Write, length)
            }
            5 | 6 => {
                let offset = take(&mut self.used[node], length);
                let side = &mut self.sides[index];
                let at = self.rng.below((AREA_BYTES - length) as u64 + 1) as usize;
                let (from, bytes) = if choice == 5 {
                    (side.source_area + at, pattern(qpn.get().into(), AREA_BYTES)[at..at + length].to_vec())
                } else {
                    side.fence_next = true;
                    (side.write_area + at, side.write_model[at..at + length].to_vec())
                };
                check = Check::Read { offset, expected: bytes };
                let remote_address = peer_base + from as u64;
                (SendOperation::Read { remote_address, rkey }, CompletionOpcode::Read, length)
            }
            7 => {
                let offset = take(&mut self.used[node], 8);
                let side = &mut self.sides[index];
                let compare = side.cas_value;
                side.cas_value += 1;
                check = Check::CompareSwap { offset, old: compare };
                let remote_address = peer_base + side.cas_offset as u64;
                let operation = SendOperation::CompareSwap { remote_address, rkey, compare, swap: compare + 1 };
                (operation, CompletionOpcode::CompareSwap, 8)
            }
            _ => {
                let offset = take(&mut self.used[node], 8);
                check = Check::FetchAdd { offset };
                let remote_address = peer_base + self.counters[peer_node] as u64;
                (SendOperation::FetchAdd { remote_address, rkey, add: 1 }, CompletionOpcode::FetchAdd, 8)
            }
        };
        let bytes = pattern(tag, length);
        let elements = match check {
            Check::Read { offset, .. } => self.elements(node, offset, length),
            Check::CompareSwap { offset, .. } | Check::FetchAdd { offset } => self.elements(node, offset, 8),
            Check::Nothing => {
                let offset = take(&mut self.used[node], length);
                self.world.nodes[node].memory.write(offset, &bytes);
                self.elements(node, offset, length)
            }
        };
        let inline = matches!(check, Check::Nothing) && length <= 100 && self.rng.chance(500);
        let payload = if inline { Payload::Inline(&bytes) } else { Payload::Sges(&elements) };
        let request = SendRequest { wr_id, operation, flags, payload, destination: None };
        let now_ns = self.world.now_ns;
        self.world.nodes[node].rnic.post_send(now_ns, qpn, &[request]).expect("the queue has room");
        let side = &mut self.sides[index];
        side.next += 1;
        side.to_post -= 1;
        let signaled = side.end.signal_all || flags.contains(SendFlags::SIGNALED);
        side.posted.push_back(Posted { wr_id, signaled, opcode, length, check });
        let peer = side.peer;
        if let Some(expected) = expected {
            self.sides[peer].expected.push_back(expected);
        }
    }

    /// Binds a window of type 2 through a queue pair without outstanding work, and returns its key.
    pub(super) fn bind_window(&mut self, node: usize, qpn: Qpn) -> RKey {
        let now_ns = self.world.now_ns;
        let at = &mut self.world.nodes[node];
        let rkey = at.rnic.create_window(at.pd, WindowKind::Type2).expect("the device has room for a window");
        let (lkey, address) = (at.region.lkey(), at.memory.address());
        let binding = WindowBinding { rkey, lkey, address, length: 64, access: Access::REMOTE_READ, zero_based: false };
        let request = SendRequest {
            wr_id: 0,
            operation: SendOperation::BindWindow(binding),
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges(&[]),
            destination: None,
        };
        at.rnic.post_send(now_ns, qpn, &[request]).expect("the queue has room");
        self.world.transmit();
        let ends: Vec<_> = self.world.nodes[node].reap().iter().map(|completion| completion.status).collect();
        assert_eq!(ends, [Status::Success], "the window was not bound at once");
        rkey
    }

    pub(super) fn post_receives(&mut self, index: usize) {
        let count = self.rng.below(self.sides[index].slots.len() as u64 + 1) as usize;
        for _ in 0..count {
            let Some(offset) = self.sides[index].slots.pop() else { return };
            let sges = self.elements(self.sides[index].node, offset, self.slot_bytes);
            let side = &mut self.sides[index];
            let wr_id = offset as u64;
            let rnic = &mut self.world.nodes[side.node].rnic;
            rnic.post_recv(side.qpn, &[RecvRequest { wr_id, sges: &sges }]).expect("the queue has room");
            side.receives.push_back((wr_id, offset));
        }
    }

    pub(super) fn post_shared_receives(&mut self, node: usize) {
        let free = self.shared[node].as_ref().map_or(0, |shared| shared.slots.len());
        for _ in 0..self.rng.below(free as u64 + 1) {
            let Some(offset) = self.shared[node].as_mut().and_then(|shared| shared.slots.pop()) else { return };
            let sges = self.elements(node, offset, self.slot_bytes);
            let shared = self.shared[node].as_mut().expect("the node has a shared receive queue");
            let request = RecvRequest { wr_id: offset as u64, sges: &sges };
            let rnic = &mut self.world.nodes[node].rnic;
            rnic.post_srq_recv(shared.srq, &[request]).expect("the queue has room");
            shared.posted += 1;
        }
    }
}
