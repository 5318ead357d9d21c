//! Requests of UC and UD queue pairs wait while the link has no room for packets to their destination.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use doorbell_rnic::{Budget, CompletionQueue, Config, EngineId, Filter, PathEnd, Region, Rnic, TransmitBatch};
use doorbell_testing::ConnectionEnd;
use doorbell_verbs_core::{
    AddressVector, AsyncEvent, Completion, CqId, Payload, PdId, PostErrorKind, QpAttributes, QpCapacities, QpInit,
    QpKind, QpState, SendFlags, SendOperation, SendRequest, Sge, Status, UdDestination,
};
use doorbell_wire::{PathMtu, QKey, Qpn};

use crate::common::Rng;

const DEPTH: usize = 8;

/// Room for every batch of these tests.
const BATCH_BYTES: usize = 1 << 16;

fn address(number: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, number).into()
}

/// Device 1, which sends zeros to devices with other numbers.
struct Sender {
    rnic: Rnic,
    pd: PdId,
    cq: CqId,
    queue: Arc<CompletionQueue>,
    region: Arc<Region>,
    batch: TransmitBatch,
}

impl Sender {
    fn new(batch_bytes: usize) -> Self {
        let (active_mtu, receive_buffer_bytes) = (PathMtu::Mtu4096, 1 << 20);
        let mut rnic = Rnic::new(Config { address: address(1), active_mtu, receive_buffer_bytes, seed: [1; 32] }, None);
        let pd = rnic.create_pd();
        let (cq, queue) = rnic.create_cq(64, None).expect("a new device has room for a queue");
        let region = rnic.register_null(pd).expect("a new device has room for a region");
        Self { rnic, pd, cq, queue, region, batch: TransmitBatch::new(batch_bytes, 0) }
    }

    fn add_qp(&mut self, kind: QpKind, peer: u8) -> Qpn {
        let (pd, send_cq, recv_cq) = (self.pd, self.cq, self.cq);
        let capacities =
            QpCapacities { max_send_wr: DEPTH, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        let init = QpInit { kind, pd, send_cq, recv_cq, srq: None, capacities, signal_all: true };
        let qpn = self.rnic.create_qp(init).expect("a new device has room for a queue pair");
        self.connect(qpn, kind, peer);
        qpn
    }

    fn connect(&mut self, qpn: Qpn, kind: QpKind, peer: u8) {
        let end = ConnectionEnd::new(kind, (address(peer), Qpn::new(2)), PathMtu::Mtu1024);
        end.steps().iter().for_each(|step| self.rnic.modify_qp(qpn, step).expect("the transition is valid"));
    }

    fn modify(&mut self, qpn: Qpn, attributes: QpAttributes) {
        self.rnic.modify_qp(qpn, &attributes).expect("the transition is valid");
    }

    /// Replaces the list of the devices for whose packets the link has no room.
    fn full(&mut self, numbers: &[u8]) {
        let full: Vec<_> =
            numbers.iter().map(|&number| PathEnd { address: address(number), engine: EngineId(0) }).collect();
        self.rnic.set_full_destinations(&full);
        assert_eq!(self.rnic.has_full_destinations(), !numbers.is_empty());
    }

    fn post(&mut self, qpn: Qpn, wr_id: u64, length: u32, to: Option<u8>) -> Result<(), PostErrorKind> {
        let sges = [Sge { address: 0, length, lkey: self.region.lkey() }];
        let to = to.map(|number| AddressVector::to(address(number)));
        let request = SendRequest {
            wr_id,
            operation: SendOperation::Send,
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges(&sges),
            destination: to.map(|address| UdDestination { address, qpn: Qpn::new(2), qkey: QKey::new(0) }),
        };
        self.rnic.post_send(0, qpn, &[request]).map_err(|error| error.kind)
    }

    fn post_datagram(&mut self, qpn: Qpn, wr_id: u64, to: u8) {
        self.post(qpn, wr_id, 16, Some(to)).expect("the queue has room");
    }

    /// Posts a message to the peer of a connected queue pair.
    fn post_message(&mut self, qpn: Qpn, wr_id: u64, length: u32) {
        self.post(qpn, wr_id, length, None).expect("the queue has room");
    }

    /// Returns the packets of one batch that the device sends now: the number of the destination, and the number of the
    /// work request.
    fn next_batch(&mut self, budget: Budget) -> Vec<(u8, u64)> {
        self.batch.clear();
        let count = self.rnic.poll_transmit(0, budget, Filter::All, &mut self.batch);
        let mut packets = Vec::new();
        for run in self.batch.runs() {
            let IpAddr::V4(destination) = run.path.destination else { panic!("all devices have IPv4 addresses") };
            for info in &self.batch.infos()[run.first_packet..run.first_packet + run.packets] {
                packets.push((destination.octets()[3], info.work_request.expect("a packet of a request")));
            }
        }
        assert_eq!(packets.len(), count);
        packets
    }

    /// Returns all packets that the device sends now.
    fn sent(&mut self) -> Vec<(u8, u64)> {
        let mut sent = Vec::new();
        loop {
            let packets = self.next_batch(Budget::UNLIMITED);
            if packets.is_empty() {
                break;
            }
            sent.extend(packets);
        }
        self.rnic.transmitted();
        sent
    }

    /// Returns the numbers and statuses of the new completions.
    fn ends(&mut self) -> Vec<(u64, Status)> {
        let mut out = [Completion::default(); 64];
        let count = self.queue.poll(&mut out).expect("the queue does not overrun");
        out[..count].iter().map(|completion| (completion.wr_id, completion.status)).collect()
    }

    /// Checks that the new completions are the successes of these work requests.
    #[track_caller]
    fn expect(&mut self, done: impl IntoIterator<Item = u64>) {
        assert_eq!(self.ends(), done.into_iter().map(|wr_id| (wr_id, Status::Success)).collect::<Vec<_>>());
    }
}

#[test]
fn datagrams_to_a_full_destination_wait_and_others_leave() {
    let mut sender = Sender::new(BATCH_BYTES);
    let qpn = sender.add_qp(QpKind::Ud, 2);
    let other = sender.add_qp(QpKind::Ud, 2);
    sender.full(&[2]);
    for (wr_id, to) in [(1, 3), (2, 2), (3, 3), (4, 2), (5, 4)] {
        sender.post_datagram(qpn, wr_id, to);
    }
    sender.post_datagram(other, 10, 3);
    let mut sent = sender.sent();
    sent.sort_unstable();
    assert_eq!(sent, [(3, 1), (3, 3), (3, 10), (4, 5)]);
    assert_eq!(sender.rnic.backlog().waiting, 1);
    // Sends of a queue pair complete in order.
    let mut ends = sender.ends();
    ends.sort_unstable_by_key(|&(wr_id, _)| wr_id);
    assert_eq!(ends, [(1, Status::Success), (10, Status::Success)]);
    assert!(!sender.rnic.wants_transmit());

    // The list still has the destination.
    sender.full(&[2, 5]);
    assert!(sender.sent().is_empty());
    // A datagram that is posted meanwhile leaves after those that wait.
    sender.full(&[]);
    sender.post_datagram(qpn, 6, 2);
    assert_eq!(sender.sent(), [(2, 2), (2, 4), (2, 6)]);
    sender.expect(2..=6);
    assert_eq!(sender.rnic.backlog().waiting, 0);
}

#[test]
fn datagrams_wait_for_their_own_destination() {
    let mut sender = Sender::new(BATCH_BYTES);
    let qpn = sender.add_qp(QpKind::Ud, 2);
    sender.full(&[2, 3]);
    for (wr_id, to) in [(1, 2), (2, 3), (3, 4), (4, 2), (5, 3)] {
        sender.post_datagram(qpn, wr_id, to);
    }
    assert_eq!(sender.sent(), [(4, 3)]);
    sender.full(&[3]);
    assert_eq!(sender.sent(), [(2, 1), (2, 4)]);
    sender.expect([1]);
    assert_eq!(sender.rnic.backlog().waiting, 1);
    sender.full(&[2]);
    sender.post_datagram(qpn, 6, 2);
    assert_eq!(sender.sent(), [(3, 2), (3, 5)]);
    sender.expect(2..=5);
    sender.full(&[]);
    assert_eq!(sender.sent(), [(2, 6)]);
    sender.expect([6]);
}

#[test]
fn datagrams_that_waited_leave_in_batches() {
    let mut sender = Sender::new(40); // room for one datagram
    let qpn = sender.add_qp(QpKind::Ud, 2);
    sender.full(&[2, 3]);
    (1..=3).for_each(|wr_id| sender.post_datagram(qpn, wr_id, 2));
    assert!(sender.sent().is_empty());
    sender.full(&[3]);
    assert_eq!(sender.next_batch(Budget::UNLIMITED), [(2, 1)]);
    sender.expect([1]);
    // The link has no room again.
    sender.full(&[2]);
    sender.post_datagram(qpn, 4, 3);
    assert_eq!(sender.sent(), [(3, 4)]);
    sender.expect([]);
    sender.full(&[]);
    assert_eq!(sender.next_batch(Budget { packets: 1, ..Budget::UNLIMITED }), [(2, 2)]);
    assert_eq!(sender.sent(), [(2, 3)]);
    sender.expect(2..=4);
}

#[test]
fn a_send_queue_fills_while_the_link_is_full() {
    for (kind, to) in [(QpKind::Uc, None), (QpKind::Ud, Some(2))] {
        let mut sender = Sender::new(BATCH_BYTES);
        let qpn = sender.add_qp(kind, 2);
        sender.full(&[2]);
        for wr_id in 0..DEPTH as u64 {
            assert_eq!(sender.post(qpn, wr_id, 16, to), Ok(()));
            assert!(sender.sent().is_empty());
        }
        assert!(matches!(sender.post(qpn, 99, 16, to), Err(PostErrorKind::QueueFull { depth: DEPTH, .. })));
        sender.full(&[]);
        assert_eq!(sender.sent(), (0..DEPTH as u64).map(|wr_id| (2, wr_id)).collect::<Vec<_>>());
        sender.expect(0..DEPTH as u64);
    }
}

#[test]
fn a_message_stops_between_its_packets() {
    let mut sender = Sender::new(BATCH_BYTES);
    let (qpn, other) = (sender.add_qp(QpKind::Uc, 2), sender.add_qp(QpKind::Uc, 3));
    let reliable = sender.add_qp(QpKind::Rc, 2);
    sender.post_message(qpn, 1, 3000);
    assert_eq!(sender.next_batch(Budget { packets: 1, ..Budget::UNLIMITED }), [(2, 1)]);
    sender.full(&[2]);
    sender.post_message(qpn, 2, 8);
    assert!(sender.sent().is_empty());
    assert_eq!(sender.rnic.backlog().waiting, 1);
    // Packets to other devices leave, and so do those of a queue pair with a window.
    sender.post_message(other, 3, 8);
    sender.post_message(reliable, 4, 8);
    assert_eq!(sender.sent(), [(3, 3), (2, 4)]);
    sender.expect([3]);
    sender.full(&[]);
    assert_eq!(sender.sent(), [(2, 1), (2, 1), (2, 2)]);
    sender.expect([1, 2]);
    assert_eq!(sender.rnic.backlog().waiting, 0);
}

#[test]
fn a_queue_pair_may_end_while_its_requests_wait() {
    for (kind, to) in [(QpKind::Uc, None), (QpKind::Ud, Some(2))] {
        let start = || {
            let mut sender = Sender::new(BATCH_BYTES);
            let qpn = sender.add_qp(kind, 2);
            sender.full(&[2]);
            (1..=2).for_each(|wr_id| sender.post(qpn, wr_id, 16, to).expect("the queue has room"));
            assert!(sender.sent().is_empty());
            (sender, qpn)
        };
        let to_state = |state| QpAttributes { state: Some(state), ..QpAttributes::default() };

        let (mut sender, qpn) = start();
        sender.rnic.destroy_qp(qpn).expect("the queue pair exists");
        assert_eq!(sender.rnic.backlog().waiting, 0);
        sender.full(&[]);
        assert_eq!((sender.sent(), sender.ends()), (vec![], vec![]));

        let (mut sender, qpn) = start();
        sender.modify(qpn, to_state(QpState::Error));
        assert_eq!(sender.ends(), [(1, Status::WorkRequestFlushed), (2, Status::WorkRequestFlushed)]);
        sender.full(&[]);
        assert_eq!((sender.sent(), sender.ends()), (vec![], vec![]));

        let (mut sender, qpn) = start();
        sender.modify(qpn, to_state(QpState::Reset));
        sender.connect(qpn, kind, 2);
        sender.post(qpn, 3, 16, to).expect("the queue has room");
        assert_eq!((sender.sent(), sender.ends()), (vec![], vec![]));
        sender.full(&[]);
        assert_eq!(sender.sent(), [(2, 3)]);
        sender.expect([3]);

        // A queue is drained once the started requests are done.
        let (mut sender, qpn) = start();
        sender.modify(qpn, QpAttributes { sqd_notify: Some(true), ..to_state(QpState::SqDrain) });
        assert_eq!((sender.sent(), sender.rnic.poll_event()), (vec![], None));
        sender.full(&[]);
        let started = if kind == QpKind::Ud { 2 } else { 1 };
        assert_eq!(sender.sent(), (1..=started).map(|wr_id| (2, wr_id)).collect::<Vec<_>>());
        assert_eq!(sender.rnic.poll_event(), Some(AsyncEvent::SqDrained(qpn)));
        sender.expect(1..=started);
    }
}

#[test]
fn a_queue_pair_with_a_new_address_waits_for_no_room_to_the_old_one() {
    let to_state = |state| QpAttributes { state: Some(state), ..QpAttributes::default() };
    let to_peer = |peer| QpAttributes { address: Some(AddressVector::to(address(peer))), ..QpAttributes::default() };
    for is_started in [false, true] {
        let mut sender = Sender::new(BATCH_BYTES);
        let qpn = sender.add_qp(QpKind::Uc, 2);
        sender.post_message(qpn, 1, 3000);
        if is_started {
            assert_eq!(sender.next_batch(Budget { packets: 1, ..Budget::UNLIMITED }), [(2, 1)]);
        }
        sender.full(&[2, 4]);
        assert!(sender.sent().is_empty());
        // Only a queue pair in SQD may get another address (IBTA Vol 1, 11.2.5.2).
        sender.modify(qpn, to_state(QpState::SqDrain));
        sender.modify(qpn, to_peer(3));
        let rest = if is_started { vec![(3, 1); 2] } else { vec![(3, 1); 3] };
        // The RNIC has started a message once a packet of it waits.
        assert_eq!(sender.sent(), rest);
        sender.expect([1]);
        // A new address without room lets the next message wait again.
        sender.modify(qpn, to_peer(4));
        sender.modify(qpn, to_state(QpState::ReadyToSend));
        sender.post_message(qpn, 2, 8);
        assert!(sender.sent().is_empty());
        sender.full(&[2]);
        assert_eq!(sender.sent(), [(4, 2)]);
        sender.expect([2]);
        assert_eq!(sender.rnic.backlog().waiting, 0);
    }
}

#[test]
fn a_datagram_whose_memory_is_gone_fails_after_all_earlier_sends() {
    let mut sender = Sender::new(BATCH_BYTES);
    let qpn = sender.add_qp(QpKind::Ud, 2);
    sender.full(&[2, 3]);
    for (wr_id, to) in [(1, 2), (2, 4), (3, 3)] {
        sender.post_datagram(qpn, wr_id, to);
    }
    assert_eq!(sender.sent(), [(4, 2)]);
    // The device has no copy of the memory, so the datagrams that wait cannot leave any more.
    let gone = Arc::clone(&sender.region);
    sender.rnic.deregister(&gone).expect("the region exists");
    sender.full(&[2]);
    assert_eq!((sender.sent(), sender.ends()), (vec![], vec![]), "a send has failed before an earlier one");
    sender.full(&[]);
    assert!(sender.sent().is_empty());
    assert_eq!(
        sender.ends(),
        [(1, Status::LocalProtection), (2, Status::WorkRequestFlushed), (3, Status::WorkRequestFlushed)]
    );
}

#[test]
fn datagrams_leave_and_complete_in_order_as_destinations_fill_and_empty() {
    for seed in 0..500 {
        let mut rng = Rng::new(seed);
        let mut sender = Sender::new(40 + 36 * rng.below(8) as usize);
        let qpn = sender.add_qp(QpKind::Ud, 2);
        let (mut posted, mut done) = (0, 0);
        // The posted datagrams that have not left: their destinations and numbers.
        let mut waiting: Vec<(u8, u64)> = Vec::new();
        let mut full: Vec<u8> = Vec::new();
        for _ in 0..200 {
            match rng.below(4) {
                0 => {
                    full = (2..6).filter(|_| rng.chance(400)).collect();
                    sender.full(&full);
                }
                1 => {
                    let sends_all = rng.chance(500);
                    let packets = if sends_all {
                        sender.sent()
                    } else {
                        sender.next_batch(Budget { packets: 1 + rng.below(3) as usize, ..Budget::UNLIMITED })
                    };
                    for packet in packets {
                        assert!(!full.contains(&packet.0), "seed {seed}: {packet:?} has left to a full destination");
                        let place = waiting.iter().position(|&(to, _)| to == packet.0).expect("it was posted");
                        assert_eq!(waiting.remove(place), packet, "seed {seed}: a datagram has overtaken another");
                    }
                    let may_wait = |&(to, _): &(u8, u64)| full.contains(&to);
                    assert!(!sends_all || waiting.iter().all(may_wait), "seed {seed}: {waiting:?}, full {full:?}");
                }
                _ => {
                    let to = 2 + rng.below(4) as u8;
                    if sender.post(qpn, posted, 16, Some(to)).is_ok() {
                        waiting.push((to, posted));
                        posted += 1;
                    }
                }
            }
            let left = waiting.iter().map(|&(_, wr_id)| wr_id).min().unwrap_or(posted);
            let expected: Vec<_> = (done..left).map(|wr_id| (wr_id, Status::Success)).collect();
            assert_eq!(sender.ends(), expected, "seed {seed}");
            done = left;
        }
        sender.full(&[]);
        assert_eq!(sender.sent().len(), waiting.len(), "seed {seed}");
        sender.expect(done..posted);
    }
}
