//! Fuzz body that calls two devices in any order, with lost, repeated and reordered packets between them.

use std::collections::VecDeque;

use doorbell_rnic::{Budget, Filter, Region, Rnic, TransmitBatch};
use doorbell_testing::ConnectionEnd;
use doorbell_verbs_core::{
    Access, AddressVector, Completion, CompletionOpcode, CqId, Payload, QpAttributes, QpCapacities, QpInit, QpKind,
    QpState, RecvRequest, SendFlags, SendOperation as Op, SendRequest, Sge, SrqId, UdDestination,
};
use doorbell_wire::{PathMtu, Psn, QKey, Qpn, RKey};

use super::super::world::{address_of, full_access};
use super::super::{Block, QKEY};
use super::{Choices, check_bounds};

struct Queue {
    qpn: Qpn,
    kind: QpKind,
    capacities: QpCapacities,
    shared: bool,
    /// Lowest work request number that the next send completion may have.
    sends: u64,
    /// Lowest work request number that the next receive completion may have.
    receives: u64,
}

struct Device {
    rnic: Rnic,
    cqs: Vec<(CqId, usize)>,
    srqs: Vec<SrqId>,
    qps: Vec<Queue>,
    regions: Vec<std::sync::Arc<Region>>,
    memory: Block,
    created: usize,
}

const DEVICES: usize = 2;
const MOST_OBJECTS: usize = 8;
const MOST_UNDERWAY: usize = 256;

struct Operations {
    devices: Vec<Device>,
    underway: VecDeque<(usize, usize, Vec<u8>)>,
    now_ns: u64,
    next: u64,
}

/// Calls two devices in any order, and loses, repeats and reorders the packets between them.
pub fn fuzz_operations(data: &[u8]) {
    let mut operations = Operations::new();
    let mut choices = Choices(data);
    let mut steps = 0;
    while !choices.is_empty() && steps < 5_000 {
        steps += 1;
        operations.one(&mut choices);
    }
    operations.finish();
}

impl Operations {
    fn new() -> Self {
        let devices = (0..DEVICES)
            .map(|index| {
                let config = doorbell_rnic::Config {
                    address: address_of(index),
                    active_mtu: PathMtu::Mtu4096,
                    receive_buffer_bytes: if index == 0 { 8_000 } else { 212_992 },
                    seed: [index as u8; 32],
                };
                let mut rnic = Rnic::new(config, None);
                let pd = rnic.create_pd();
                let memory = Block::new(1 << 16);
                // SAFETY: the block lives as long as the device.
                let region =
                    unsafe { rnic.register(pd, memory.base(), memory.len(), memory.address(), full_access(), None) };
                let regions = vec![region.expect("the device has room for a region")];
                let (cq, _) = rnic.create_cq(64, None).expect("the device has room for a queue");
                Device { rnic, cqs: vec![(cq, 64)], srqs: Vec::new(), qps: Vec::new(), regions, memory, created: 0 }
            })
            .collect();
        Self { devices, underway: VecDeque::new(), now_ns: 1, next: 0 }
    }

    fn one(&mut self, choices: &mut Choices<'_>) {
        let index = choices.below(DEVICES);
        match choices.byte() % 16 {
            0 => self.create_qp(index, choices),
            1 => self.create_or_destroy(index, choices),
            2 | 3 => self.modify(index, choices),
            4 | 5 => self.bring_up(choices),
            6..=8 => self.post_send(index, choices),
            9 => self.post_recv(index, choices),
            10..=12 => self.transmit(index, choices),
            13 | 14 => self.deliver(choices),
            _ => self.pass(choices),
        }
        self.reap();
        check_bounds(&self.devices[index].rnic);
    }

    fn create_qp(&mut self, index: usize, choices: &mut Choices<'_>) {
        let device = &mut self.devices[index];
        if device.qps.len() >= MOST_OBJECTS {
            return;
        }
        let capacities = QpCapacities {
            max_send_wr: choices.below(5),
            max_recv_wr: choices.below(5),
            max_send_sge: choices.below(4),
            max_recv_sge: choices.below(4),
            max_inline: choices.below(65),
        };
        let kind = [QpKind::Rc, QpKind::Rc, QpKind::Uc, QpKind::Ud][choices.below(4)];
        let (send_cq, recv_cq) = (choices.below(device.cqs.len()), choices.below(device.cqs.len()));
        let srq = choices.chance().then(|| device.srqs.get(choices.below(device.srqs.len())).copied()).flatten();
        let init = QpInit {
            kind,
            pd: device.regions[0].pd(),
            send_cq: device.cqs[send_cq].0,
            recv_cq: device.cqs[recv_cq].0,
            srq,
            capacities,
            signal_all: choices.chance(),
        };
        if let Ok(qpn) = device.rnic.create_qp(init) {
            device.created += 1;
            device.qps.push(Queue { qpn, kind, capacities, shared: srq.is_some(), sends: 0, receives: 0 });
        }
    }

    fn create_or_destroy(&mut self, index: usize, choices: &mut Choices<'_>) {
        let device = &mut self.devices[index];
        let pd = device.regions[0].pd();
        match choices.byte() % 8 {
            0 if device.cqs.len() < MOST_OBJECTS => {
                let depth = choices.below(9);
                if let Ok((cq, _)) = device.rnic.create_cq(depth, None) {
                    device.cqs.push((cq, depth));
                }
            }
            1 if device.srqs.len() < MOST_OBJECTS => {
                if let Ok((srq, queue)) = device.rnic.create_srq(pd, choices.below(5), choices.below(4)) {
                    queue.arm_limit(choices.below(4));
                    device.srqs.push(srq);
                }
            }
            2 if device.regions.len() < MOST_OBJECTS => {
                let (at, length) = (choices.below(1 << 15), choices.below(1 << 15));
                let access = Access::from_bits_truncate(choices.byte().into());
                let (base, address) = (device.memory.base().wrapping_add(at), device.memory.address() + at as u64);
                // SAFETY: the range lies inside the block, which lives as long as the device.
                if let Ok(region) = unsafe { device.rnic.register(pd, base, length, address, access, None) } {
                    device.regions.push(region);
                }
            }
            3 if device.cqs.len() > 1 => {
                let at = 1 + choices.below(device.cqs.len() - 1);
                if device.rnic.destroy_cq(device.cqs[at].0).is_ok() {
                    device.cqs.swap_remove(at);
                }
            }
            4 if !device.srqs.is_empty() => {
                let at = choices.below(device.srqs.len());
                if device.rnic.destroy_srq(device.srqs[at]).is_ok() {
                    device.srqs.swap_remove(at);
                }
            }
            5 if device.regions.len() > 1 => {
                let at = 1 + choices.below(device.regions.len() - 1);
                let region = device.regions.swap_remove(at);
                device.rnic.deregister(&region).expect("the region was registered");
            }
            6 if !device.qps.is_empty() => {
                let at = choices.below(device.qps.len());
                let queue = device.qps.swap_remove(at);
                device.rnic.destroy_qp(queue.qpn).expect("the queue pair exists");
            }
            _ => while device.rnic.poll_event().is_some() {},
        }
    }

    /// Modifies a queue pair with random attributes. The device rejects most of these modifications.
    fn modify(&mut self, index: usize, choices: &mut Choices<'_>) {
        let device = &mut self.devices[index];
        let at = choices.below(device.qps.len());
        let Some(queue) = device.qps.get(at) else { return };
        let mask = choices.short();
        let has = |bit: u32| mask >> bit & 1 == 1;
        let state = QpState::ALL[choices.below(7)];
        // Often move to these states without further attributes, since the transitions allow none. Otherwise, the
        // device would reject nearly all such moves.
        let plain = matches!(state, QpState::Error | QpState::Reset | QpState::SqDrain) && has(15);
        let attributes = QpAttributes {
            state: Some(state),
            sqd_notify: has(1).then(|| choices.chance()),
            access: has(2).then(|| Access::from_bits_truncate(choices.byte().into())),
            pkey_index: has(3).then_some(0),
            port: has(4).then_some(1),
            qkey: has(5).then_some(QKEY),
            address: has(6).then(|| AddressVector::to(address_of(choices.below(3)))),
            path_mtu: has(7).then(|| PathMtu::ALL[choices.below(5)]),
            timeout: has(8).then(|| choices.byte() % 33),
            retry_count: has(9).then(|| choices.byte() % 9),
            rnr_retry: has(9).then(|| choices.byte() % 9),
            receive_psn: has(10).then(|| Psn::new(choices.short() as u32)),
            send_psn: has(11).then(|| Psn::new(choices.short() as u32)),
            max_rd_atomic: has(12).then(|| choices.byte() % 18),
            max_dest_rd_atomic: has(13).then(|| choices.byte() % 18),
            min_rnr_timer: has(14).then(|| choices.byte() % 33),
            dest_qpn: has(10).then(|| Qpn::new(choices.short() as u32)),
            ..QpAttributes::default()
        };
        let attributes =
            if plain { QpAttributes { state: Some(state), ..QpAttributes::default() } } else { attributes };
        let _ = device.rnic.modify_qp(queue.qpn, &attributes);
    }

    /// Connects one queue pair of each device, whatever their states are.
    fn bring_up(&mut self, choices: &mut Choices<'_>) {
        let picks = [0, 1].map(|index| {
            let qps = &self.devices[index].qps;
            qps.get(choices.below(qps.len())).map(|queue| (queue.qpn, queue.kind))
        });
        let [Some(a), Some(b)] = picks else { return };
        let (mtu, reads) = (PathMtu::ALL[choices.below(5)], choices.byte() % 17);
        let (timeout, retries) = (choices.byte() % 20, choices.byte() % 8);
        for (index, own, peer) in [(0, a, b), (1, b, a)] {
            let rnic = &mut self.devices[index].rnic;
            let psn = Psn::new(Psn::MASK - 2);
            let end = ConnectionEnd {
                access: full_access(),
                qkey: QKEY,
                send_psn: psn,
                receive_psn: psn,
                timeout,
                retry_count: retries,
                rnr_retry: retries,
                max_rd_atomic: reads.min(16),
                max_dest_rd_atomic: reads.min(16),
                ..ConnectionEnd::new(own.1, (address_of(1 - index), peer.0), mtu)
            };
            let reset = QpAttributes { state: Some(QpState::Reset), ..QpAttributes::default() };
            for step in [reset].into_iter().chain(end.steps()) {
                rnic.modify_qp(own.0, &step).expect("each queue pair can go from reset to RTS");
            }
        }
    }

    fn sges(device: &Device, choices: &mut Choices<'_>, most: usize) -> Vec<Sge> {
        let count = choices.below(most + 2);
        (0..count)
            .map(|_| {
                let region = &device.regions[choices.below(device.regions.len())];
                let length = choices.below(3000) as u32;
                let offset = choices.below(region.length().max(1)) as u64;
                Sge { address: region.address() + offset, length, lkey: region.lkey() }
            })
            .collect()
    }

    fn post_send(&mut self, index: usize, choices: &mut Choices<'_>) {
        self.next += 1;
        let (wr_id, now_ns) = (self.next, self.now_ns);
        let peer = &self.devices[1 - index];
        let region = &peer.regions[choices.below(peer.regions.len())];
        let rkey = if choices.byte() < 8 { RKey::new(choices.short() as u32) } else { region.rkey() };
        let mut remote_address = region.address() + choices.below(region.length().max(1)) as u64;
        let to = peer.qps.get(choices.below(peer.qps.len())).map_or(Qpn::new(0), |queue| queue.qpn);
        if choices.byte() > 8 {
            remote_address &= !7;
        }
        let operation = match choices.byte() % 10 {
            0 | 1 => Op::Send,
            2 => Op::SendImmediate(7),
            3 => Op::SendInvalidate(rkey),
            4 => Op::Write { remote_address, rkey },
            5 => Op::WriteImmediate { remote_address, rkey, immediate: 8 },
            6 | 7 => Op::Read { remote_address, rkey },
            8 => Op::CompareSwap { remote_address, rkey, compare: choices.word(), swap: 1 },
            _ => Op::FetchAdd { remote_address, rkey, add: 1 },
        };
        let device = &mut self.devices[index];
        let at = choices.below(device.qps.len());
        let Some(queue) = device.qps.get(at) else { return };
        let (qpn, kind, depth) = (queue.qpn, queue.kind, queue.capacities.max_send_wr);
        let mut sges = Self::sges(device, choices, queue.capacities.max_send_sge);
        if matches!(operation, Op::CompareSwap { .. } | Op::FetchAdd { .. }) {
            sges.truncate(1);
            sges.iter_mut().for_each(|sge| sge.length = 8);
        }
        let inline = [5; 64];
        let payload =
            if choices.byte() < 64 { Payload::Inline(&inline[..choices.below(65)]) } else { Payload::Sges(&sges) };
        let qkey = if choices.byte() < 32 { QKey::new(1) } else { QKEY };
        let destination = (kind == QpKind::Ud).then(|| UdDestination {
            address: AddressVector::to(address_of(1 - index)),
            qpn: to,
            qkey,
        });
        let flags = SendFlags::from_bits_truncate(choices.byte());
        let _ = device.rnic.post_send(now_ns, qpn, &[SendRequest { wr_id, operation, flags, payload, destination }]);
        let info = device.rnic.query_qp(qpn).expect("it exists");
        assert!(info.outstanding_sends <= depth, "{} sends in a queue of {depth}", info.outstanding_sends);
    }

    fn post_recv(&mut self, index: usize, choices: &mut Choices<'_>) {
        self.next += 1;
        let wr_id = self.next;
        let device = &mut self.devices[index];
        let sges = Self::sges(device, choices, 3);
        let request = RecvRequest { wr_id, sges: &sges };
        if choices.byte() < 64 {
            if let Some(&srq) = device.srqs.get(choices.below(device.srqs.len())) {
                let _ = device.rnic.post_srq_recv(srq, &[request]);
            }
        } else if let Some(queue) = device.qps.get(choices.below(device.qps.len())) {
            let _ = device.rnic.post_recv(queue.qpn, &[request]);
        }
    }

    fn transmit(&mut self, index: usize, choices: &mut Choices<'_>) {
        let device = &mut self.devices[index];
        if choices.chance() {
            device.rnic.release_acks();
        }
        let filter = match device.qps.get(choices.below(device.qps.len())) {
            Some(queue) if choices.byte() < 32 => Filter::QueuePair(queue.qpn),
            _ => Filter::All,
        };
        let packets = choices.below(70);
        let budget = if choices.chance() { Budget::UNLIMITED } else { Budget { packets, bytes: choices.short() } };
        let mut batch = TransmitBatch::new(choices.below(20_000), choices.below(5));
        let added = device.rnic.poll_transmit(self.now_ns, budget, filter, &mut batch);
        assert!(added <= budget.packets && batch.bytes().len() <= budget.bytes, "the budget {budget:?} was exceeded");
        if !device.rnic.wants_transmit() {
            device.rnic.transmitted();
        }
        let trailer = batch.trailer_bytes();
        for run in batch.runs() {
            let to = (0..DEVICES).find(|&to| address_of(to) == run.path.destination);
            for segment in run.segments() {
                let bytes = batch.bytes()[segment.start..segment.end - trailer].to_vec();
                if let Some(to) = to
                    && self.underway.len() < MOST_UNDERWAY
                {
                    self.underway.push_back((index, to, bytes));
                }
            }
        }
    }

    fn deliver(&mut self, choices: &mut Choices<'_>) {
        for _ in 0..=choices.below(16) {
            let Some(_) = self.underway.front() else { return };
            let how = choices.byte();
            let at = if how & 3 == 0 { choices.below(self.underway.len()) } else { 0 };
            let Some((from, to, bytes)) = self.underway.remove(at) else { return };
            if how >> 2 & 7 == 1 {
                continue; // the packet is lost
            }
            let outer = doorbell_wire::Outer {
                src: address_of(from),
                dst: address_of(to),
                traffic_class: 0,
                hop_limit: 64,
                identification: None,
                dont_fragment: None,
            };
            self.devices[to].rnic.handle_packet(self.now_ns, &outer, &bytes);
            if how >> 2 & 7 == 2 {
                self.underway.push_back((from, to, bytes)); // deliver a copy later
            }
        }
    }

    fn pass(&mut self, choices: &mut Choices<'_>) {
        self.now_ns += 1 << (choices.byte() % 30);
        for device in &mut self.devices {
            if device.rnic.poll_timeout().is_some_and(|at_ns| at_ns <= self.now_ns) {
                device.rnic.handle_timeout(self.now_ns);
            }
            assert!(
                device.rnic.poll_timeout().is_none_or(|at_ns| at_ns > self.now_ns),
                "a due deadline was not handled"
            );
        }
    }

    fn reap(&mut self) {
        let mut out = [Completion::default(); 16];
        for device in &mut self.devices {
            for &(cq, depth) in &device.cqs {
                let queue = device.rnic.completion_queue(cq).expect("it exists");
                assert!(queue.len() <= depth, "the queue holds more than its depth");
                while let Ok(count @ 1..) = device.rnic.poll_cq(cq, &mut out) {
                    for completion in &out[..count] {
                        let queue = device.qps.iter_mut().find(|queue| queue.qpn == completion.qpn);
                        let queue = queue.expect("completions name live queue pairs only");
                        let last = match completion.opcode {
                            CompletionOpcode::Receive | CompletionOpcode::ReceiveWriteImmediate => &mut queue.receives,
                            _ => &mut queue.sends,
                        };
                        let shared = queue.shared && completion.opcode == CompletionOpcode::Receive;
                        assert!(shared || completion.wr_id > *last, "a completion came out of order or twice");
                        *last = completion.wr_id;
                    }
                }
            }
        }
    }

    fn finish(&mut self) {
        for device in &mut self.devices {
            for queue in &device.qps {
                let to = QpAttributes { state: Some(QpState::Error), ..QpAttributes::default() };
                device.rnic.modify_qp(queue.qpn, &to).expect("all states lead to error");
                let info = device.rnic.query_qp(queue.qpn).expect("it exists");
                assert_eq!(info.outstanding_sends, 0, "the error state left sends outstanding");
            }
            assert_eq!(device.rnic.in_flight_packets(), 0, "packets are in flight in the error state");
        }
        self.reap();
        for device in &mut self.devices {
            for queue in device.qps.drain(..) {
                device.rnic.destroy_qp(queue.qpn).expect("the queue pair exists");
            }
            let backlog = device.rnic.backlog();
            assert_eq!(
                (backlog.ready, backlog.waiting, backlog.answers),
                (0, 0, 0),
                "destroyed queue pairs left entries in the backlog"
            );
            while let Some(at_ns) = device.rnic.poll_timeout() {
                device.rnic.handle_timeout(at_ns);
            }
            let (before, mut batch) = (device.rnic.backlog().farewells, TransmitBatch::new(1 << 16, 0));
            let sent = device.rnic.poll_transmit(self.now_ns, Budget::UNLIMITED, Filter::All, &mut batch);
            assert_eq!(sent, before, "a packet was sent that is not a due acknowledgement");
            device.rnic.transmitted();
            assert_eq!(device.rnic.backlog(), Default::default(), "destroyed queue pairs left timers");
            for srq in device.srqs.drain(..) {
                device.rnic.destroy_srq(srq).expect("no queue pair uses the shared receive queue");
            }
            for (cq, _) in device.cqs.drain(..) {
                device.rnic.destroy_cq(cq).expect("no queue pair uses the completion queue");
            }
            let pd = device.regions[0].pd();
            for region in device.regions.drain(..) {
                device.rnic.deregister(&region).expect("the region was registered");
            }
            device.rnic.destroy_pd(pd).expect("no object uses the protection domain");
        }
    }
}
