//! Policies for drivers that simulate hardware: doorbells, pulls of packets from a single queue pair, and a device
//! without the mechanisms for UDP.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use doorbell_rnic::{Budget, CompletionQueue, Part, Policy, Ready, Region, Rnic, TransmitBatch};
use doorbell_testing::ConnectionEnd;
use doorbell_verbs_core::{
    Access, Completion, Payload, QpAttributes, QpCapacities, QpInit, QpKind, QpState, RecvRequest, SendFlags,
    SendOperation, SendRequest, Status,
};
use doorbell_wire::{Opcode, Outer, PathMtu, Psn, Qpn};

use crate::common::Block;

const LENGTH: usize = 1 << 20;

/// A device with one queue pair, whose driver decides the time of each step.
struct End {
    rnic: Rnic,
    qpn: Qpn,
    queue: Arc<CompletionQueue>,
    region: Arc<Region>,
    _memory: Block,
}

fn address(number: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, number).into()
}

impl End {
    fn new(number: u8, kind: QpKind, policy: Policy) -> Self {
        let config = doorbell_rnic::Config {
            address: address(number),
            active_mtu: PathMtu::Mtu4096,
            receive_buffer_bytes: 1 << 16,
            seed: [number; 32],
        };
        let mut rnic = Rnic::with_policy(config, policy, None);
        let pd = rnic.create_pd();
        let memory = Block::new(LENGTH);
        // SAFETY: the block lives as long as the device, and no reference to its bytes is made.
        let region = unsafe { rnic.register(pd, memory.base(), LENGTH, memory.address(), Access::all(), None) };
        let region = region.expect("a new device has room for a region");
        let (cq, queue) = rnic.create_cq(64, None).expect("a new device has room for a queue");
        let capacities =
            QpCapacities { max_send_wr: 32, max_recv_wr: 32, max_send_sge: 1, max_recv_sge: 1, max_inline: 64 };
        let init = QpInit { kind, pd, send_cq: cq, recv_cq: cq, srq: None, capacities, signal_all: true };
        let qpn = rnic.create_qp(init).expect("a new device has room for a queue pair");
        Self { rnic, qpn, queue, region, _memory: memory }
    }

    fn connect(&mut self, number: u8, peer: Qpn) {
        let info = self.rnic.query_qp(self.qpn).expect("it exists");
        let end = ConnectionEnd {
            send_psn: Psn::new(7),
            receive_psn: Psn::new(7),
            timeout: 10,
            retry_count: 3,
            ..ConnectionEnd::new(info.kind, (address(number), peer), PathMtu::Mtu4096)
        };
        end.steps().iter().for_each(|step| self.rnic.modify_qp(self.qpn, step).expect("the transition is valid"));
    }

    fn post(&mut self, operation: SendOperation, length: u32) {
        let sges = [doorbell_verbs_core::Sge { address: self.region.address(), length, lkey: self.region.lkey() }];
        let request = SendRequest {
            wr_id: 1,
            operation,
            payload: Payload::Sges(&sges),
            flags: SendFlags::SIGNALED,
            destination: None,
        };
        self.rnic.post_send(0, self.qpn, &[request]).expect("the queue has room");
    }

    fn post_receive(&mut self) {
        let sges = [doorbell_verbs_core::Sge { address: self.region.address(), length: 64, lkey: self.region.lkey() }];
        self.rnic.post_recv(self.qpn, &[RecvRequest { wr_id: 2, sges: &sges }]).expect("the queue has room");
    }

    fn pull(&mut self, part: Part, packets: usize) -> (Vec<(Opcode, Vec<u8>)>, bool) {
        let mut batch = TransmitBatch::new(1 << 21, 0);
        let budget = Budget { packets, ..Budget::UNLIMITED };
        let pulled = self.rnic.pull(0, self.qpn, part, budget, &mut batch);
        let bytes = batch.runs().iter().flat_map(|run| run.segments()).map(|range| batch.bytes()[range].to_vec());
        let packets: Vec<_> = batch.infos().iter().map(|info| info.opcode).zip(bytes).collect();
        assert_eq!(packets.len(), pulled.packets);
        (packets, pulled.more)
    }

    fn hear(&mut self, from: u8, packets: &[(Opcode, Vec<u8>)]) {
        let outer = Outer {
            src: address(from),
            dst: self.rnic.config().address,
            traffic_class: 0,
            hop_limit: 64,
            identification: None,
            dont_fragment: None,
        };
        packets.iter().for_each(|(_, packet)| self.rnic.handle_packet(0, &outer, packet));
    }

    fn reap(&mut self) -> Vec<(u64, Status)> {
        let mut out = [Completion::default(); 8];
        let count = self.queue.poll(&mut out).expect("the queue does not overrun");
        out[..count].iter().map(|completion| (completion.wr_id, completion.status)).collect()
    }
}

fn pair(policy: Policy) -> (End, End) {
    pair_of(QpKind::Rc, policy)
}

fn pair_of(kind: QpKind, policy: Policy) -> (End, End) {
    let (mut a, mut b) = (End::new(1, kind, policy), End::new(2, kind, policy));
    let (of_a, of_b) = (a.qpn, b.qpn);
    a.connect(2, of_b);
    b.connect(1, of_a);
    (a, b)
}

const RUNG: Policy = Policy { waits_for_doorbells: true, ..Policy::UNBOUNDED };

#[test]
fn a_post_is_unseen_until_its_doorbell_is_rung() {
    let (mut a, _) = pair(RUNG);
    (0..3).for_each(|_| a.post(SendOperation::Send, 16));
    assert_eq!((a.rnic.take_ready(), a.rnic.posted_sends(a.qpn)), (None, 3));
    a.rnic.ring_sends(0, a.qpn, 2);
    let ready = Ready { qpn: a.qpn, requests: true, answers: false };
    assert_eq!((a.rnic.take_ready(), a.rnic.take_ready()), (Some(ready), None));
    let (packets, more) = a.pull(Part::Requests, 8);
    assert_eq!((packets.len(), more), (2, false), "expected the two requests of the doorbell");
    a.rnic.ring_sends(0, a.qpn, 1);
    assert_eq!(a.pull(Part::Requests, 8).0.len(), 0, "a doorbell with an older index sent a request");
    a.rnic.ring_sends(0, a.qpn, 9);
    assert_eq!((a.pull(Part::Requests, 8).0.len(), a.rnic.next_send(a.qpn)), (1, Some((3, 0))));
}

#[test]
fn unreliable_sends_complete_when_they_have_left() {
    let (mut a, _) = pair_of(QpKind::Uc, Policy { waits_for_departures: true, ..Policy::UNBOUNDED });
    (0..3).for_each(|_| a.post(SendOperation::Send, 5000));
    assert_eq!(a.pull(Part::Requests, 1).0.len(), 1, "expected one of the two packets of the first request");
    a.rnic.sends_departed(0, a.qpn, 1);
    assert_eq!(a.reap(), [], "a request completed before all its packets were pulled");
    assert_eq!(a.pull(Part::Requests, 3).0.len(), 3);
    assert_eq!(a.reap(), [], "a request completed before it left");
    a.rnic.sends_departed(0, a.qpn, 1);
    assert_eq!(a.reap(), [(1, Status::Success)]);
    a.rnic.sends_departed(0, a.qpn, 1);
    assert_eq!(a.reap(), [], "the request completed twice");
    // The pulled sends are complete. The error state flushes only the other sends.
    a.rnic
        .modify_qp(a.qpn, &QpAttributes { state: Some(QpState::Error), ..QpAttributes::default() })
        .expect("a transition");
    assert_eq!(a.reap(), [(1, Status::Success), (1, Status::WorkRequestFlushed)]);
    // On RC, no send waits for its departure.
    let (mut a, mut b) = pair(Policy { waits_for_departures: true, ..Policy::UNBOUNDED });
    b.post_receive();
    a.post(SendOperation::Send, 16);
    let packets = a.pull(Part::Requests, 8).0;
    a.rnic.sends_departed(0, a.qpn, 1);
    assert_eq!(a.reap(), []);
    b.hear(1, &packets);
    let acknowledgement = b.pull(Part::Answers, 8).0;
    a.hear(2, &acknowledgement);
    assert_eq!(a.reap(), [(1, Status::Success)]);
}

#[test]
fn a_receive_is_unseen_until_its_doorbell_is_rung() {
    let (mut a, mut b) = pair(RUNG);
    b.post_receive();
    a.post(SendOperation::Send, 16);
    a.rnic.ring_sends(0, a.qpn, 1);
    let packets = a.pull(Part::Requests, 8).0;
    b.hear(1, &packets);
    assert_eq!(b.rnic.counters().rnr_nak_sent, 1, "the device knew of the receive before its doorbell");
    b.rnic.ring_receives(b.qpn, 1);
    b.hear(1, &packets);
    b.rnic.transmitted();
    assert_eq!(b.reap(), [(2, Status::Success)]);
}

#[test]
fn requests_and_answers_are_pulled_apart() {
    let (mut a, mut b) = pair(Policy::UNBOUNDED);
    b.post_receive();
    a.post(SendOperation::Send, 16);
    b.post(SendOperation::Send, 16);
    let packets = a.pull(Part::Requests, 8).0;
    b.hear(1, &packets);
    let ready = Ready { qpn: b.qpn, requests: true, answers: true };
    assert_eq!(b.rnic.take_ready(), Some(ready));
    let answers = b.pull(Part::Answers, 8);
    assert_eq!((answers.0[0].0, answers.0.len(), answers.1), (Opcode::RC_ACKNOWLEDGE, 1, false));
    a.hear(2, &answers.0);
    assert_eq!(a.reap(), [(1, Status::Success)]);
    assert_eq!(b.pull(Part::Requests, 8).0[0].0, Opcode::RC_SEND_ONLY);
}

#[test]
fn a_budget_of_one_takes_one_packet_and_reports_more() {
    let (mut a, _) = pair(Policy::UNBOUNDED);
    a.post(SendOperation::Send, 3 * 4096);
    let mut opcodes = Vec::new();
    loop {
        let (packets, more) = a.pull(Part::Requests, 1);
        opcodes.push(packets[0].0);
        if !more {
            break;
        }
    }
    assert_eq!(opcodes[..3], [Opcode::RC_SEND_FIRST, Opcode::RC_SEND_MIDDLE, Opcode::RC_SEND_LAST]);
    assert_eq!(a.pull(Part::Requests, 1).0.len(), 0);
}

#[test]
fn without_bounds_long_requests_are_not_split_and_do_not_wait() {
    let remote = |b: &End| (b.region.address(), b.region.rkey());
    for (policy, requests) in [(Policy::DATAGRAMS, None), (Policy::UNBOUNDED, Some(1))] {
        let (mut a, b) = pair(policy);
        let (remote_address, rkey) = remote(&b);
        a.post(SendOperation::Read { remote_address, rkey }, LENGTH as u32);
        let packets = a.pull(Part::Requests, 1000).0.len();
        assert!(requests.is_none_or(|requests| packets == requests), "{packets} requests");
        assert!(
            requests.is_some() || a.rnic.pending_work(a.qpn) > 0,
            "the window for responses must not limit the READ"
        );
    }
    let (mut a, b) = pair(Policy::UNBOUNDED);
    let (remote_address, rkey) = remote(&b);
    a.post(SendOperation::Write { remote_address, rkey }, LENGTH as u32);
    let (packets, more) = a.pull(Part::Requests, 1000);
    assert_eq!((packets.len(), more), (LENGTH / 4096, false));
    assert_eq!(
        packets.iter().filter(|(_, packet)| packet[8] & 0x80 != 0).count(),
        1,
        "only the last packet may request an ACK"
    );
}

#[test]
fn without_early_retransmission_only_the_configured_timeout_counts() {
    for (policy, least_ns) in [(Policy::DATAGRAMS, 500_000), (Policy::UNBOUNDED, 4_096 << 10)] {
        let (mut a, _) = pair(policy);
        a.post(SendOperation::Send, 16);
        assert_eq!(a.pull(Part::Requests, 1).0.len(), 1);
        assert_eq!(a.rnic.poll_timeout(), Some(least_ns));
        a.rnic.handle_timeout(least_ns);
        let counters = *a.rnic.counters();
        let expected = if policy == Policy::DATAGRAMS { (1, 0) } else { (0, 1) };
        assert_eq!((counters.early_retransmit, counters.local_ack_timeout_err), expected);
        assert_eq!(a.pull(Part::Requests, 8).0.len(), 1, "the request must be retransmitted");
    }
}

#[test]
fn the_policy_decides_whether_a_write_ack_is_held() {
    for (policy, held) in [(Policy::DATAGRAMS, true), (Policy::UNBOUNDED, false)] {
        let (mut a, mut b) = pair(policy);
        let (remote_address, rkey) = (b.region.address(), b.region.rkey());
        a.post(SendOperation::Write { remote_address, rkey }, 16);
        let packets = a.pull(Part::Requests, 1).0;
        b.hear(1, &packets);
        assert_eq!(b.rnic.take_ready().is_none(), held);
        assert_eq!(b.rnic.held_ack_since_ns().is_some(), held);
    }
}

/// A device of hardware: completions do not wait, and an acknowledgement leaves after the next request of its queue
/// pair.
const HARDWARE: Policy = Policy { completions_await_acks: false, acks_follow_requests: true, ..RUNG };

/// Posts, rings and pulls a SEND of 16 bytes.
fn send(end: &mut End) -> Vec<(Opcode, Vec<u8>)> {
    end.post(SendOperation::Send, 16);
    let posted = end.rnic.posted_sends(end.qpn);
    end.rnic.ring_sends(0, end.qpn, posted);
    end.pull(Part::Requests, 1).0
}

#[test]
fn an_acknowledgement_follows_the_next_request_and_covers_all_messages_until_then() {
    let (mut a, mut b) = pair(HARDWARE);
    for _ in 0..2 {
        b.post_receive();
        b.rnic.ring_receives(b.qpn, 1);
    }
    b.post(SendOperation::Send, 16);
    b.rnic.ring_sends(0, b.qpn, 1);
    while b.rnic.take_ready().is_some() {}
    for _ in 0..2 {
        let packets = send(&mut a);
        b.hear(1, &packets);
        assert_eq!(b.reap().len(), 1, "the completion does not wait for the acknowledgement");
        assert!(b.rnic.take_ready().is_none_or(|ready| !ready.answers), "the acknowledgement waits for the request");
    }
    assert_eq!(b.rnic.poll_timeout(), None, "no timer releases the acknowledgement");
    let mut batch = TransmitBatch::new(1 << 12, 0);
    let pulled = b.rnic.pull(0, b.qpn, Part::Requests, Budget { packets: 1, ..Budget::UNLIMITED }, &mut batch);
    assert_eq!((pulled.packets, pulled.answers), (1, true));
    let acknowledgements = b.pull(Part::Answers, 8).0;
    assert_eq!(acknowledgements.iter().map(|(opcode, _)| *opcode).collect::<Vec<_>>(), [Opcode::RC_ACKNOWLEDGE]);
    a.hear(2, &acknowledgements);
    assert_eq!(a.reap().len(), 2, "one acknowledgement covers both messages");
}

#[test]
fn an_acknowledgement_leaves_at_once_if_there_is_no_request() {
    let (mut a, mut b) = pair(HARDWARE);
    b.post_receive();
    b.rnic.ring_receives(b.qpn, 1);
    let packets = send(&mut a);
    b.hear(1, &packets);
    assert!(b.rnic.take_ready().is_some_and(|ready| ready.answers));
}

#[test]
fn a_held_acknowledgement_covers_later_messages_and_completions_do_not_wait_for_it() {
    let (mut a, mut b) = pair(Policy { ack_hold_ns: 100, completions_await_acks: false, ..RUNG });
    for _ in 0..2 {
        b.post_receive();
        b.rnic.ring_receives(b.qpn, 1);
        let packets = send(&mut a);
        b.hear(1, &packets);
        assert_eq!(b.reap().len(), 1);
    }
    assert_eq!((b.rnic.take_ready(), b.rnic.poll_timeout()), (None, Some(100)));
    b.rnic.handle_timeout(100);
    assert!(b.rnic.take_ready().is_some_and(|ready| ready.answers));
    let acknowledgements = b.pull(Part::Answers, 8).0;
    a.hear(2, &acknowledgements);
    assert_eq!((acknowledgements.len(), a.reap().len()), (1, 2));
}
