//! Devices with several engines: objects that the engines share, and packets that reach them together or with losses.

use std::net::IpAddr;
use std::sync::Arc;

use doorbell_rnic::{Budget, CompletionQueue, Config, ENGINES_MAX, EngineId, Filter, Region, Rnic, TransmitBatch};
use doorbell_testing::ConnectionEnd;
use doorbell_verbs_core::{
    Access, AsyncEvent, Completion, Counters, CqId, ObjectError, Payload, PdId, QpCapacities, QpInit, QpKind, QpState,
    RecvRequest, SendFlags, SendOperation, SendRequest, Sge, SrqId, Status,
};
use doorbell_wire::{BthRepr, Outer, PathMtu, Qpn};

use crate::common::{Block, Rng, address_of};

const MESSAGE_BYTES: usize = 3_000;

/// A device with several engines, and its memory.
struct Device {
    address: IpAddr,
    engines: Vec<Rnic>,
    pd: PdId,
    cq: CqId,
    queue: Arc<CompletionQueue>,
    region: Arc<Region>,
    memory: Block,
}

impl Device {
    fn new(index: usize, engines: usize, cq_depth: usize) -> Self {
        let (address, active_mtu) = (address_of(index), PathMtu::Mtu4096);
        let config = Config { address, active_mtu, receive_buffer_bytes: 1 << 20, seed: [index as u8; 32] };
        let mut first = Rnic::new(config, None);
        let pd = first.create_pd();
        let (cq, queue) = first.create_cq(cq_depth, None).unwrap();
        let memory = Block::new(1 << 20);
        // SAFETY: the block lives as long as the device, and no reference to it is made.
        let region =
            unsafe { first.register(pd, memory.base(), memory.len(), memory.address(), Access::all(), None) }.unwrap();
        let mut all = vec![first];
        while all.len() < engines {
            let added = all[0].add_engine().expect("the device has room for the engine");
            all.push(added);
        }
        Self { address, engines: all, pd, cq, queue, region, memory }
    }

    fn create_qp(&mut self, engine: usize, kind: QpKind, srq: Option<SrqId>) -> Qpn {
        let capacities =
            QpCapacities { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        let (pd, send_cq, recv_cq) = (self.pd, self.cq, self.cq);
        let init = QpInit { kind, pd, send_cq, recv_cq, srq, capacities, signal_all: true };
        let qpn = self.engines[engine].create_qp(init).unwrap();
        assert_eq!(EngineId::of(qpn), EngineId(engine as u8));
        qpn
    }

    fn engine(&mut self, qpn: Qpn) -> &mut Rnic {
        &mut self.engines[usize::from(EngineId::of(qpn).0)]
    }

    /// Connects a queue pair with the peer's.
    fn connect(&mut self, qpn: Qpn, peer: (IpAddr, Qpn)) {
        for step in ConnectionEnd::new(QpKind::Rc, peer, PathMtu::Mtu1024).steps() {
            self.engine(qpn).modify_qp(qpn, &step).unwrap();
        }
    }

    fn sge(&self, number: usize) -> Sge {
        let address = self.region.address() + (number * MESSAGE_BYTES) as u64;
        Sge { address, length: MESSAGE_BYTES as u32, lkey: self.region.lkey() }
    }

    fn post_recv(&mut self, qpn: Qpn, number: usize) {
        let sges = [self.sge(number)];
        self.engine(qpn).post_recv(qpn, &[RecvRequest { wr_id: number as u64, sges: &sges }]).unwrap();
    }

    fn post_send(&mut self, now_ns: u64, qpn: Qpn, number: usize) {
        let sges = [self.sge(number)];
        let request = SendRequest {
            wr_id: number as u64,
            operation: SendOperation::Send,
            flags: SendFlags::empty(),
            payload: Payload::Sges(&sges),
            destination: None,
        };
        self.engine(qpn).post_send(now_ns, qpn, &[request]).unwrap();
    }

    fn reap(&self) -> Vec<Completion> {
        let mut out = [Completion::default(); 64];
        let mut all = Vec::new();
        while let Ok(count @ 1..) = self.queue.poll(&mut out) {
            all.extend(&out[..count]);
        }
        all
    }

    /// Passes packets to the engines that they name.
    fn receive(&mut self, now_ns: u64, outer: &Outer, packets: &[&[u8]]) {
        for packet in packets {
            let bth = BthRepr::read(packet.first_chunk().unwrap());
            self.engine(bth.dest_qpn).handle_packet(now_ns, outer, packet);
        }
    }
}

/// Two devices and a network that drops packets at random.
struct Pair {
    devices: [Device; 2],
    now_ns: u64,
    rng: Rng,
    /// Losses per thousand packets.
    loss: u64,
    dropped: usize,
}

impl Pair {
    fn new(seed: u64, engines: [usize; 2], loss: u64) -> Self {
        let devices = [0, 1].map(|index: usize| Device::new(index, engines[index], 512));
        Self { devices, now_ns: 1, rng: Rng::new(seed), loss, dropped: 0 }
    }

    fn connect(&mut self, engines: [usize; 2], srq: Option<SrqId>) -> [Qpn; 2] {
        let [a, b] = &mut self.devices;
        let qpns = [a.create_qp(engines[0], QpKind::Rc, None), b.create_qp(engines[1], QpKind::Rc, srq)];
        a.connect(qpns[0], (b.address, qpns[1]));
        b.connect(qpns[1], (a.address, qpns[0]));
        qpns
    }

    /// Sends all packets that are ready. Returns their number.
    fn transmit(&mut self) -> usize {
        let (now_ns, mut sent) = (self.now_ns, 0);
        for from in [0, 1] {
            for engine in 0..self.devices[from].engines.len() {
                let mut batch = TransmitBatch::new(1 << 17, 0);
                let [a, b] = &mut self.devices;
                let (source, target) = if from == 0 { (a, b) } else { (b, a) };
                let rnic = &mut source.engines[engine];
                rnic.release_acks();
                sent += rnic.poll_transmit(now_ns, Budget::UNLIMITED, Filter::All, &mut batch);
                let (src, dst) = (source.address, target.address);
                let outer =
                    Outer { src, dst, traffic_class: 0, hop_limit: 64, identification: None, dont_fragment: None };
                for run in batch.runs() {
                    for packet in run.segments().map(|segment| &batch.bytes()[segment]) {
                        let bth = BthRepr::read(packet.first_chunk().unwrap());
                        assert_eq!(EngineId::of(bth.dest_qpn), run.path.engine, "a run has packets of several engines");
                        if self.rng.chance(self.loss) {
                            self.dropped += 1;
                        } else {
                            target.receive(now_ns, &outer, &[packet]);
                        }
                    }
                }
                source.engines[engine].transmitted();
            }
        }
        sent
    }

    /// Lets both devices work until no packet and no deadline is left.
    fn settle(&mut self) {
        loop {
            while self.transmit() > 0 {
                self.now_ns += 10_000;
            }
            let engines = self.devices.iter().flat_map(|device| &device.engines);
            let Some(next_ns) = engines.filter_map(Rnic::poll_timeout).min() else { return };
            self.now_ns = self.now_ns.max(next_ns);
            for engine in self.devices.iter_mut().flat_map(|device| &mut device.engines) {
                if engine.poll_timeout().is_some_and(|at_ns| at_ns <= self.now_ns) {
                    engine.handle_timeout(self.now_ns);
                }
            }
        }
    }
}

/// Sends messages between all pairs of engines at once, under losses.
fn exchange(seed: u64, engines: [usize; 2]) {
    let mut pair = Pair::new(seed, engines, 30);
    let mut qpns = Vec::new();
    for a in 0..engines[0] {
        for b in 0..engines[1] {
            qpns.push(pair.connect([a, b], None));
        }
    }
    let each = 8;
    for (index, &[from, to]) in qpns.iter().enumerate() {
        for number in index * each..(index + 1) * each {
            let bytes: Vec<u8> = (0..MESSAGE_BYTES).map(|at| (at * 7 + number) as u8).collect();
            pair.devices[0].memory.write(number * MESSAGE_BYTES, &bytes);
            pair.devices[1].post_recv(to, number);
            pair.devices[0].post_send(pair.now_ns, from, number);
        }
    }
    pair.settle();
    for device in &pair.devices {
        let all = device.reap();
        assert!(all.iter().all(|completion| completion.status == Status::Success), "seed {seed}: {all:?}");
        for (index, ends) in qpns.iter().enumerate() {
            let own = all.iter().filter(|completion| ends.contains(&completion.qpn));
            let order: Vec<u64> = own.map(|completion| completion.wr_id).collect();
            let expected: Vec<u64> = ((index * each) as u64..((index + 1) * each) as u64).collect();
            assert_eq!(order, expected, "seed {seed}");
        }
    }
    let messages = qpns.len() * each * MESSAGE_BYTES;
    let [sent, received] = [0, 1].map(|device: usize| pair.devices[device].memory.read(0, messages));
    assert!(sent == received, "seed {seed}: the memory differs");
    assert!(pair.dropped > 0 || seed > 0, "the network dropped nothing");
    for engine in pair.devices.iter().flat_map(|device| &device.engines) {
        let counters = engine.counters();
        assert!(counters.tx_vport_rdma_unicast_packets > 0, "an engine sent nothing");
        assert_eq!((counters.rx_unknown_qp, engine.has_strays()), (0, false));
    }
}

#[test]
fn engines_exchange_messages_under_losses() {
    for seed in 0..20 {
        exchange(seed, [2, 2]);
        exchange(seed, [4, 1]);
        exchange(seed, [1, 3]);
    }
}

#[test]
fn queue_pairs_of_several_engines_share_receives_and_completions() {
    for seed in 0..10 {
        let mut pair = Pair::new(seed, [1, 4], 20);
        let b = &mut pair.devices[1];
        let (srq, queue) = b.engines[3].create_srq(b.pd, 32, 1).unwrap();
        let qpns: Vec<_> = (0..4).map(|engine| pair.connect([0, engine], Some(srq))).collect();
        for number in 0..32 {
            let sges = [pair.devices[1].sge(number)];
            let request = RecvRequest { wr_id: number as u64, sges: &sges };
            pair.devices[1].engines[1].shared_receives(srq).unwrap().post(&[request]).unwrap();
        }
        queue.arm_limit(5);
        for number in 0..28 {
            pair.devices[0].post_send(pair.now_ns, qpns[number % 4][0], number);
        }
        pair.settle();
        let mut received = pair.devices[1].reap();
        assert!(received.iter().all(|completion| completion.status == Status::Success), "seed {seed}");
        for qpn in qpns.iter().map(|ends| ends[1]) {
            assert_eq!(received.iter().filter(|completion| completion.qpn == qpn).count(), 7, "seed {seed}");
        }
        received.sort_by_key(|completion| completion.wr_id);
        let ids: Vec<u64> = received.iter().map(|completion| completion.wr_id).collect();
        assert_eq!(ids, (0..28).collect::<Vec<_>>(), "seed {seed}: a receive was lost or used twice");
        assert_eq!(queue.len(), 4);
        let b = &mut pair.devices[1];
        let events: Vec<_> = std::iter::from_fn(|| b.engines[2].poll_event()).collect();
        assert_eq!(events.iter().filter(|&&event| event == AsyncEvent::SrqLimitReached(srq.0)).count(), 1);
        // The queue is in use until the queue pairs of all engines are gone.
        for (engine, ends) in qpns.iter().enumerate() {
            assert!(matches!(b.engines[0].destroy_srq(srq), Err(ObjectError::Busy { .. })));
            b.engines[engine].destroy_qp(ends[1]).unwrap();
        }
        b.engines[0].destroy_srq(srq).unwrap();
        b.engines[1].destroy_cq(b.cq).unwrap();
    }
}

#[test]
fn a_queue_pair_that_is_reset_or_destroyed_leaves_those_of_other_engines_alone() {
    let mut pair = Pair::new(7, [2, 2], 0);
    let [first, second, third] = [[0, 0], [1, 1], [1, 0]].map(|engines| pair.connect(engines, None));
    for number in 0..9 {
        let [from, to] = [first, second, third][number % 3];
        pair.devices[1].post_recv(to, number);
        pair.devices[0].post_send(pair.now_ns, from, number);
    }
    pair.settle();
    let [a, b] = &mut pair.devices;
    b.engines[0].modify_qp(first[1], &state(QpState::Reset)).unwrap();
    b.engines[1].destroy_qp(second[1]).unwrap();
    assert!(b.engines[1].destroy_qp(first[1]).is_err(), "engine 1 destroyed a queue pair of engine 0");
    let left = b.reap();
    assert!(left.iter().all(|completion| completion.qpn == third[1]), "{left:?}");
    assert_eq!((left.len(), a.reap().len()), (3, 9));
    let objects = b.engines[0].objects().with_engine(&b.engines[1].objects());
    assert_eq!((objects.qps, objects.qpns, objects.cq_ports, objects.cqs, objects.pds), (2, 2, 1, 1, 1));
    assert!(matches!(b.engines[1].destroy_pd(b.pd), Err(ObjectError::Busy { .. })));
    b.engines[0].destroy_qp(first[1]).unwrap();
    b.engines[0].destroy_qp(third[1]).unwrap();
    assert_eq!(b.engines[0].objects().cq_ports, 0);
}

fn state(state: QpState) -> doorbell_verbs_core::QpAttributes {
    doorbell_verbs_core::QpAttributes { state: Some(state), ..Default::default() }
}

#[test]
fn an_overrun_of_one_engine_ends_the_queue_pairs_of_the_others_at_their_next_completion() {
    let mut device = Device::new(0, 2, 2);
    let qpns = [0, 1].map(|engine| device.create_qp(engine, QpKind::Rc, None));
    let peer = (address_of(1), Qpn::new(0x777));
    qpns.iter().for_each(|&qpn| device.connect(qpn, peer));
    // Flushed receives complete.
    for number in 0..3 {
        device.post_recv(qpns[0], number);
    }
    device.post_recv(qpns[1], 3);
    device.engines[0].modify_qp(qpns[0], &state(QpState::Error)).unwrap();
    let events = |device: &mut Device| -> Vec<_> { std::iter::from_fn(|| device.engines[1].poll_event()).collect() };
    assert!(events(&mut device).contains(&AsyncEvent::CqError(device.cq.0)));
    assert_eq!(device.engines[1].query_qp(qpns[1]).unwrap().state, QpState::ReadyToSend);
    let other = device.create_qp(1, QpKind::Rc, None);
    device.connect(other, peer);
    device.post_recv(other, 4);
    device.engines[1].modify_qp(other, &state(QpState::Error)).unwrap();
    assert_eq!(device.engines[1].query_qp(qpns[1]).unwrap().state, QpState::Error);
    assert!(!events(&mut device).contains(&AsyncEvent::CqError(device.cq.0)), "the overrun raised a second event");
}

#[test]
fn an_engine_keeps_the_packets_of_others_and_counts_those_without_an_engine() {
    let mut pair = Pair::new(3, [1, 2], 0);
    let [from, to] = pair.connect([0, 1], None);
    pair.devices[1].post_recv(to, 0);
    pair.devices[0].post_send(1, from, 0);
    let mut batch = TransmitBatch::new(1 << 16, 0);
    let [a, b] = &mut pair.devices;
    assert_eq!(a.engines[0].poll_transmit(1, Budget::UNLIMITED, Filter::All, &mut batch), 3);
    let (src, dst) = (a.address, b.address);
    let outer = Outer { src, dst, traffic_class: 0, hop_limit: 64, identification: None, dont_fragment: None };
    let packets: Vec<&[u8]> =
        batch.runs().iter().flat_map(|run| run.segments().map(|segment| &batch.bytes()[segment])).collect();
    b.engines[0].handle_packets(1, &outer, packets.iter().copied());
    assert_eq!(*b.engines[0].counters(), Default::default());
    assert!(b.engines[0].has_strays());
    for stray in b.engines[0].take_strays() {
        assert_eq!(stray.engine, EngineId(1));
        b.engines[1].handle_packet(1, &stray.outer, &stray.bytes);
    }
    b.engines[1].release_acks();
    b.engines[1].poll_transmit(1, Budget::UNLIMITED, Filter::All, &mut TransmitBatch::new(1 << 12, 0));
    b.engines[1].transmitted();
    assert_eq!(b.reap().len(), 1);
    // No engine of the device has this number.
    let mut unknown = packets[0].to_vec();
    unknown[5] = 0x50;
    b.engines[0].handle_packet(1, &outer, &unknown);
    assert_eq!((b.engines[0].counters().rx_unknown_qp, b.engines[0].has_strays()), (1, false));
}

#[test]
fn a_region_is_gone_from_every_engine_that_forgets_it() {
    let mut pair = Pair::new(5, [1, 2], 0);
    let [from, to] = pair.connect([0, 1], None);
    pair.devices[1].post_recv(to, 0);
    pair.devices[0].post_send(1, from, 0);
    pair.settle();
    let b = &mut pair.devices[1];
    assert_eq!(b.reap().len(), 1);
    let region = Arc::clone(&b.region);
    b.engines[0].deregister(&region).unwrap();
    assert_eq!(b.engines[1].objects().stale_keys, 1, "engine 1 has used the region");
    b.engines[1].forget_gone();
    assert_eq!(b.engines[1].objects().stale_keys, 0);
    let sges = [b.sge(0)];
    assert!(b.engines[1].post_recv(to, &[RecvRequest { wr_id: 1, sges: &sges }]).is_err());
}

#[test]
fn one_engine_counts_the_packets_to_a_group() {
    let mut device = Device::new(0, 3, 4);
    let group: IpAddr = [239, 1, 2, 3].into();
    let qpns = [1, 2].map(|engine| device.create_qp(engine, QpKind::Ud, None));
    for qpn in qpns {
        assert!(device.engine(qpn).attach(qpn, group).unwrap());
    }
    assert_eq!(device.engines[0].objects().with_engine(&device.engines[1].objects()).groups, 1);
    let src = address_of(1);
    let outer = Outer { src, dst: group, traffic_class: 0, hop_limit: 64, identification: None, dont_fragment: None };
    let datagram = [[0x64, 0, 0xff, 0xff].as_slice(), &[0, 0xff, 0xff, 0xff], &[0; 12]].concat();
    let receive = |device: &mut Device, qpns: &[Qpn]| {
        qpns.iter().for_each(|&qpn| device.engine(qpn).handle_packet(1, &outer, &datagram));
        let counters = device.engines.iter().map(Rnic::counters);
        let sum = counters.fold(Counters::default(), |sum, counters| sum.plus(counters));
        (sum.rx_vport_rdma_unicast_packets, sum.rx_wrong_state)
    };
    assert_eq!(receive(&mut device, &qpns), (1, 2));
    assert!(device.engine(qpns[0]).detach(qpns[0], group).unwrap());
    assert_eq!(receive(&mut device, &qpns[1..]), (2, 3), "the only engine of the group does not count");
}

#[test]
fn a_device_has_at_most_sixteen_engines() {
    let device = Device::new(0, ENGINES_MAX, 4);
    assert!(device.engines[3].add_engine().is_none());
    let numbers: Vec<u8> = device.engines.iter().map(|rnic| rnic.engine().0).collect();
    assert_eq!(numbers, (0..16).collect::<Vec<_>>());
    assert_eq!(device.engines[0].engine(), EngineId(0));
}
