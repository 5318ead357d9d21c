//! Windows, turns of queue pairs, runs of packets, and counters.

use crate::common::script::{OWN, OWN_PSN, PEER, PEER_PSN, PEER_QPN, Script};
use crate::common::tally::Hit;
use crate::common::{Acks, End, Link, World};
use doorbell_rnic::{Budget, Filter, MAX_RUN_BYTES, TransmitBatch};
use doorbell_verbs_core::{Payload, QpKind, QpState, SendFlags, SendOperation as Op, SendRequest};
use doorbell_wire::{Opcode, PathMtu, Psn, Qpn};

/// Cost of a packet, apart from its payload.
const PACKET_COST: u64 = 832 + 32;

fn psn(index: u32) -> Psn {
    OWN_PSN.add(index)
}

/// Creates several queue pairs to the same silent peer.
fn crowd(count: usize) -> (Script, Vec<Qpn>) {
    let mut script = Script::silent(PathMtu::Mtu256);
    let qpns = (0..count).map(|_| script.add_qp(QpKind::Rc, PathMtu::Mtu256, &End::default())).collect();
    (script, qpns)
}

fn post_each(script: &mut Script, qpns: &[Qpn], count: usize) {
    for &qpn in qpns {
        script.qpn = qpn;
        for _ in 0..count {
            script.post(Op::Send, 8);
        }
    }
}

#[test]
fn waiting_queue_pairs_share_the_window_to_a_destination() {
    let (mut script, qpns) = crowd(50);
    post_each(&mut script, &qpns, 4);
    let first = script.sent();
    let window = 212_992 / 4;
    assert_eq!(
        first.len() as u64,
        window / (PACKET_COST + 8),
        "the first window is not a quarter of the receive buffer"
    );
    assert!(script.rnic().in_flight_packets() > 0);
    assert_eq!(script.shapes(), []);
    // Each acknowledgement lets other queue pairs continue, until all are done.
    let mut queue: std::collections::VecDeque<_> = first.into();
    let mut in_flight = queue.len();
    let mut total = in_flight;
    while let Some(sent) = queue.pop_front() {
        script.qpn = sent.info.qpn;
        script.ack(sent.psn());
        in_flight -= 1;
        let more = script.sent();
        in_flight += more.len();
        total += more.len();
        assert!(in_flight <= 240, "{in_flight} packets in flight exceed the receive buffer");
        queue.extend(more);
    }
    assert_eq!(total, 200);
    assert_eq!(script.reap().len(), 200);
    assert_eq!(script.rnic().in_flight_packets(), 0);
    assert_eq!(script.counters().tx_retransmitted_packets, 0);
}

#[test]
fn one_queue_pair_leaves_room_for_another() {
    let (mut script, qpns) = crowd(2);
    post_each(&mut script, &qpns[..1], 64);
    let first = script.sent();
    let window = 212_992 / 4;
    assert_eq!(
        first.len() as u64,
        window * 3 / 4 / (PACKET_COST + 8),
        "one queue pair does not use three quarters of the window"
    );
    assert!(first[first.len() - 1].bth().ack_request());
    post_each(&mut script, &qpns[1..], 1);
    assert_eq!(script.sent().len(), 1, "the other queue pair found no room");
    script.qpn = qpns[0];
    script.ack(psn(9));
    let more = script.sent();
    assert!(more.len() >= 10, "acknowledgements made too little room: {}", more.len());
}

#[test]
fn the_last_packet_that_fits_the_window_asks_for_an_acknowledgement() {
    let mut script = Script::new();
    script.post(Op::Send, 100 * 256);
    let sent = script.sent();
    assert!(sent.len() < 100);
    let asked: Vec<_> = sent.iter().map(|sent| sent.bth().ack_request()).collect();
    assert_eq!(asked.last(), Some(&true));
    assert!(asked.windows(16).all(|some| some.contains(&true)), "none of sixteen packets requests an acknowledgement");
    assert!(asked.iter().filter(|&&ask| ask).count() <= sent.len() / 16 + 2);
}

#[test]
fn queue_pairs_that_vanish_leave_nothing_in_flight() {
    let (mut script, qpns) = crowd(40);
    post_each(&mut script, &qpns, 4);
    let sent = script.sent();
    let senders: std::collections::HashSet<_> = sent.iter().map(|sent| sent.info.qpn.get()).collect();
    assert!(senders.len() < 40, "no queue pair waits for the window");
    // Of each four queue pairs, destroy one, move one to the error state, and reset one. Some of them have packets in
    // flight, others wait for the window.
    for (index, &qpn) in qpns.iter().enumerate() {
        match index % 4 {
            0 => script.rnic().destroy_qp(qpn).expect("the queue pair exists"),
            1 => script.world.bring_to(OWN, qpn, QpState::Error),
            2 => script.world.bring_to(OWN, qpn, QpState::Reset),
            _ => {}
        }
    }
    script.reap();
    let mut rest = sent;
    rest.extend(script.sent());
    while let Some(sent) = rest.pop() {
        script.qpn = sent.info.qpn;
        let live = script.rnic().query_qp(sent.info.qpn).is_some_and(|info| info.state == QpState::ReadyToSend);
        if live {
            script.ack(sent.psn());
        }
        rest.extend(script.sent());
    }
    assert_eq!(script.reap().len(), 40, "the ten remaining queue pairs did not send four messages each");
    assert_eq!(script.rnic().in_flight_packets(), 0);
    // A queue pair that waited for the window when it was reset works again.
    let again = qpns[38];
    let end = End::default();
    script.world.bring_to_init(OWN, again, QpKind::Rc, &end);
    script.world.bring_to_rtr(OWN, again, QpKind::Rc, PathMtu::Mtu256, &end, (PEER, PEER_QPN, PEER_PSN));
    script.world.bring_to_rts(OWN, again, QpKind::Rc, &end);
    post_each(&mut script, &[again], 1);
    assert_eq!(script.shapes(), [(Opcode::RC_SEND_ONLY, psn(0))]);
    script.ack(psn(0));
    for &qpn in &qpns {
        let _ = script.rnic().destroy_qp(qpn);
    }
    assert!(script.rnic().in_flight_packets() == 0 && !script.rnic().wants_transmit());
    assert_eq!(script.rnic().qp_count(), 0);
    script.world.settle();
    assert_eq!(script.rnic().poll_timeout(), None);
}

#[test]
fn a_queue_pair_that_is_reset_while_it_waits_works_again() {
    let (mut script, qpns) = crowd(3);
    post_each(&mut script, &qpns, 64);
    let sent = script.sent();
    assert!(sent.iter().all(|sent| sent.info.qpn != qpns[2]), "two queue pairs do not fill the window");
    assert_eq!(
        script.rnic().backlog().waiting,
        2,
        "the first queue pair waits for the window, not for its acknowledgements"
    );
    script.world.bring_to(OWN, qpns[2], QpState::Reset);
    assert_eq!(script.rnic().backlog().waiting, 1);
    let end = End::default();
    script.world.bring_to_init(OWN, qpns[2], QpKind::Rc, &end);
    script.world.bring_to_rtr(OWN, qpns[2], QpKind::Rc, PathMtu::Mtu256, &end, (PEER, PEER_QPN, PEER_PSN));
    script.world.bring_to_rts(OWN, qpns[2], QpKind::Rc, &end);
    for &gone in &qpns[..2] {
        script.rnic().destroy_qp(gone).expect("the queue pair exists");
    }
    post_each(&mut script, &qpns[2..], 1);
    assert_eq!(script.shapes(), [(Opcode::RC_SEND_ONLY, psn(0))]);
}

/// Creates queue pairs that post READs. The first two fill the window for READ responses. All except the first wait for
/// room in this window.
fn crowd_of_readers(count: usize) -> (Script, Vec<Qpn>) {
    let (mut script, qpns) = crowd(count);
    for &qpn in &qpns {
        script.qpn = qpn;
        script.post_read(1 << 16);
    }
    let readers: std::collections::HashSet<_> = script.sent().iter().map(|sent| sent.info.qpn).collect();
    assert_eq!(readers, qpns[..2].iter().copied().collect(), "two queue pairs do not fill the window");
    assert_eq!(
        script.rnic().backlog().waiting,
        count - 1,
        "the first queue pair waits for the window, not for its responses"
    );
    (script, qpns)
}

#[test]
fn removed_queue_pairs_no_longer_wait_to_read() {
    let (mut script, qpns) = crowd_of_readers(5);
    let [first, second, third, fourth, fifth] = qpns[..] else { unreachable!("the test created five queue pairs") };
    script.rnic().destroy_qp(third).expect("the queue pair exists");
    assert_eq!(script.rnic().backlog().waiting, 3);
    script.world.bring_to(OWN, fourth, QpState::Reset);
    assert_eq!(script.rnic().backlog().waiting, 2);
    // Destroy the second queue pair in the error state.
    script.world.bring_to(OWN, second, QpState::Error);
    script.rnic().destroy_qp(second).expect("the queue pair exists");
    assert_eq!(script.rnic().backlog().waiting, 0, "the freed room woke no other queue pair");
    assert_eq!(script.sent().first().map(|sent| sent.info.qpn), Some(fifth));
    for gone in [first, fifth, fourth] {
        script.rnic().destroy_qp(gone).expect("the queue pair exists");
    }
    assert_eq!(script.rnic().in_flight_packets(), 0);
    assert_eq!(
        script.rnic().backlog(),
        doorbell_rnic::Backlog { timers: script.rnic().backlog().timers, ..Default::default() }
    );
}

#[test]
fn a_queue_pair_that_is_reset_while_it_waits_to_read_reads_again() {
    let (mut script, qpns) = crowd_of_readers(3);
    let third = qpns[2];
    script.world.bring_to(OWN, third, QpState::Reset);
    assert_eq!(script.rnic().backlog().waiting, 1);
    let end = End::default();
    script.world.bring_to_init(OWN, third, QpKind::Rc, &end);
    script.world.bring_to_rtr(OWN, third, QpKind::Rc, PathMtu::Mtu256, &end, (PEER, PEER_QPN, PEER_PSN));
    script.world.bring_to_rts(OWN, third, QpKind::Rc, &end);
    for &gone in &qpns[..2] {
        script.rnic().destroy_qp(gone).expect("the queue pair exists");
    }
    script.qpn = third;
    let read = script.post_read(256);
    assert_eq!(script.shapes(), [(Opcode::RC_READ_REQUEST, psn(0))]);
    script.respond(Opcode::RC_READ_RESPONSE_ONLY, psn(0), &[1; 256]);
    assert_eq!(script.ends(), [(read, doorbell_verbs_core::Status::Success)]);
}

#[test]
fn responses_are_bounded_by_the_receive_buffer_too() {
    // 20 queue pairs read 8 kB each from one peer. The bytes in flight never exceed the buffer.
    let link = Link { buffer_bytes: 60_000, service_ns: 5_000, ..Link::default() };
    let mut world = World::new(5, 2, 1 << 20, 1 << 10, link);
    let end = End::default();
    let (remote_address, rkey) = (world.nodes[1].memory.address(), world.nodes[1].region.rkey());
    for index in 0..20 {
        let (qpn, _) = world.connect(QpKind::Rc, PathMtu::Mtu256, (0, &end), (1, &end));
        let sge = [world.nodes[0].sge(index * 8192, 8192)];
        let request = SendRequest {
            wr_id: index as u64,
            operation: Op::Read { remote_address, rkey },
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges(&sge),
            destination: None,
        };
        world.nodes[0].rnic.post_send(1, qpn, &[request]).expect("the device has room");
    }
    world.settle();
    assert_eq!(world.nodes[0].reap().len(), 20);
    assert_eq!(world.tally.count(Hit::Overflow), 0, "the receive buffer overflowed");
    world.assert_at_rest();
}

#[test]
fn many_senders_to_one_receiver_settle() {
    let link = Link { buffer_bytes: 30_000, service_ns: 20_000, ..Link::default() };
    let mut world = World::new(7, 8, 1 << 20, 1 << 12, link);
    let end = End::default();
    let (remote_address, rkey) = (world.nodes[0].memory.address(), world.nodes[0].region.rkey());
    for node in 1..8 {
        let (qpn, _) = world.connect(QpKind::Rc, PathMtu::Mtu1024, (node, &end), (0, &end));
        for _ in 0..30 {
            let sge = [world.nodes[node].sge(0, 8192)];
            let request = SendRequest {
                wr_id: 0,
                operation: Op::Write { remote_address, rkey },
                flags: SendFlags::SIGNALED,
                payload: Payload::Sges(&sge),
                destination: None,
            };
            world.nodes[node].rnic.post_send(1, qpn, &[request]).expect("the device has room");
        }
    }
    world.settle();
    let (mut fresh, mut again) = (0, 0);
    for node in 1..8 {
        assert_eq!(world.nodes[node].reap().len(), 30);
        let counters = world.nodes[node].rnic.counters();
        fresh += counters.tx_data_packets;
        again += counters.tx_retransmitted_packets;
    }
    assert_eq!(fresh, 7 * 30 * 8);
    assert!(again < fresh, "{again} of {fresh} packets were retransmitted");
    world.assert_at_rest();
}

#[test]
fn queue_pairs_take_turns() {
    let (mut script, qpns) = crowd(3);
    post_each(&mut script, &qpns, 20);
    let mut batch = TransmitBatch::new(1 << 16, 4);
    let (now_ns, budget) = (script.world.now_ns, Budget { packets: 1, bytes: 4096 });
    let mut order = Vec::new();
    for _ in 0..9 {
        batch.clear();
        assert_eq!(script.rnic().poll_transmit(now_ns, budget, Filter::All, &mut batch), 1);
        order.push(batch.infos()[0].qpn);
    }
    assert_eq!(order, [&qpns[..], &qpns, &qpns].concat());
    batch.clear();
    let only = Filter::QueuePair(qpns[1]);
    let budget = Budget { packets: 5, bytes: 4096 };
    assert_eq!(script.rnic().poll_transmit(now_ns, budget, only, &mut batch), 5);
    assert!(batch.infos().iter().all(|info| info.qpn == qpns[1]), "a packet of another queue pair passed the filter");
    assert_eq!(script.rnic().pending_work(qpns[1]), 20 - 3 - 5);
}

#[test]
fn answers_get_their_turn_packet_by_packet() {
    let mut script = Script::new();
    for _ in 0..20 {
        script.post(Op::Send, 8);
    }
    for index in 0..4 {
        let read = script.say(Opcode::RC_READ_REQUEST).psn(PEER_PSN.add(index));
        script.hear(&read.reth(script.base(), script.rkey(), 8));
    }
    let mut batch = TransmitBatch::new(1 << 16, 4);
    let (now_ns, budget) = (script.world.now_ns, Budget { packets: 1, bytes: 4096 });
    for _ in 0..8 {
        script.rnic().poll_transmit(now_ns, budget, Filter::All, &mut batch);
    }
    let answers = batch.infos().iter().filter(|info| info.work_request.is_none()).count();
    assert_eq!((batch.infos().len(), answers), (8, 4), "requests and answers must each get half of the packets");
}

#[test]
fn small_messages_leave_as_one_run() {
    let mut script = Script::new();
    // Let the window grow first.
    for round in 0..40 {
        for _ in 0..if round < 10 { 40 } else { 60 } {
            script.post(Op::Send, 16);
        }
        let last = script.sent().last().expect("the RNIC sent a packet").psn();
        script.ack(last);
        script.reap();
    }
    for _ in 0..64 {
        script.post(Op::Send, 16);
    }
    let mut batch = TransmitBatch::new(1 << 16, 4);
    let now_ns = script.world.now_ns;
    assert_eq!(script.rnic().poll_transmit(now_ns, Budget::UNLIMITED, Filter::All, &mut batch), 64);
    assert_eq!(batch.runs().len(), 1);
    let run = batch.runs()[0];
    assert_eq!((run.packets, run.segment_bytes, run.total_bytes), (64, 12 + 16 + 4, 64 * 32));
}

#[test]
fn a_long_message_leaves_in_runs_of_full_packets() {
    let mut script = Script::with(QpKind::Rc, PathMtu::Mtu4096, &End::default());
    script.post(Op::Send, 12 * 4096);
    let mut batch = TransmitBatch::new(1 << 18, 4);
    let now_ns = script.world.now_ns;
    let added = script.rnic().poll_transmit(now_ns, Budget::UNLIMITED, Filter::All, &mut batch);
    assert_eq!(added, 8, "one queue pair must get three quarters of the window of 53,248 B");
    let shapes: Vec<_> = batch.runs().iter().map(|run| (run.packets, run.segment_bytes)).collect();
    assert_eq!(shapes, [(8, 4112)]);
    assert!(batch.runs()[0].total_bytes <= MAX_RUN_BYTES);
}

#[test]
fn a_budget_of_bytes_is_kept() {
    let (mut script, qpns) = crowd(2);
    post_each(&mut script, &qpns, 10);
    let mut batch = TransmitBatch::new(1 << 16, 4);
    let now_ns = script.world.now_ns;
    let packet = 12 + 8 + 4;
    let budget = Budget { packets: 100, bytes: 5 * packet + 1 };
    assert_eq!(script.rnic().poll_transmit(now_ns, budget, Filter::All, &mut batch), 5);
    assert_eq!(batch.bytes().len(), 5 * packet);
    assert!(script.rnic().wants_transmit());
    // The next call has the full budget again, in addition to the packets that are already in the batch.
    assert_eq!(script.rnic().poll_transmit(now_ns, budget, Filter::All, &mut batch), 5);
    batch.clear();
    assert_eq!(script.rnic().poll_transmit(now_ns, Budget::UNLIMITED, Filter::All, &mut batch), 10);
}

#[test]
fn kinds_of_packets_are_counted_separately() {
    let end = End::default();
    let mut world = World::new(3, 2, 1 << 16, 256, Link::default());
    let (a, b) = world.connect(QpKind::Rc, PathMtu::Mtu1024, (0, &end), (1, &end));
    world.acks = Acks::Released;
    for _ in 0..8 {
        let sge = [world.nodes[1].sge(0, 1024)];
        world.nodes[1]
            .rnic
            .post_recv(b, &[doorbell_verbs_core::RecvRequest { wr_id: 0, sges: &sge }])
            .expect("the device has room");
    }
    let (remote_address, rkey) = (world.nodes[1].memory.address(), world.nodes[1].region.rkey());
    let operations = [
        (Op::SendImmediate(1), 0),
        (Op::Send, 16),
        (Op::Write { remote_address, rkey }, 0),
        (Op::Read { remote_address, rkey }, 2048),
        (Op::FetchAdd { remote_address, rkey, add: 1 }, 8),
    ];
    let mut dropped = false;
    world.gate = Some(Box::new(move |sent| {
        let drop = !dropped && sent.info.payload_bytes == 16;
        dropped |= drop;
        !drop
    }));
    for (operation, length) in operations {
        let sge = [world.nodes[0].sge(0, length)];
        let (payload, flags) = (Payload::Sges(&sge), SendFlags::SIGNALED);
        let request = SendRequest { wr_id: 0, operation, flags, payload, destination: None };
        let now_ns = world.now_ns;
        world.nodes[0].rnic.post_send(now_ns, a, &[request]).expect("the device has room");
    }
    world.settle();
    let (tx, rx) = (*world.nodes[0].rnic.counters(), *world.nodes[1].rnic.counters());
    assert_eq!((tx.tx_word_packets, tx.tx_word_bytes), (1, 62), "the zero-length SEND with immediate must be counted");
    assert_eq!(tx.tx_data_packets, 5);
    // 62 B for the SEND without payload, 58 + 16 B for the other SEND, 74 B each for the WRITE and the READ,
    // and 86 B for the atomic.
    assert_eq!(tx.tx_data_bytes, 62 + 74 + 74 + 74 + 86);
    assert_eq!(tx.tx_retransmitted_packets, 4, "all packets from the lost SEND on must be retransmitted");
    assert_eq!(tx.tx_retransmitted_bytes, 74 + 74 + 74 + 86);
    assert_eq!(tx.tx_ack_packets, 0);
    assert_eq!((tx.packet_seq_err, rx.out_of_sequence), (1, 3));
    assert_eq!(rx.tx_response_packets, 3);
    assert_eq!(rx.tx_response_bytes, 2 * (58 + 4 + 1024) + (58 + 4 + 8));
    assert_eq!((rx.rx_send_requests, rx.rx_write_requests, rx.rx_read_requests, rx.rx_atomic_requests), (2, 1, 1, 1));
    assert_eq!(rx.tx_ack_bytes, 62 * rx.tx_ack_packets);
    for (one, other) in [(&tx, &rx), (&rx, &tx)] {
        let lost = u64::from(std::ptr::eq(one, &tx));
        assert_eq!(one.tx_vport_rdma_unicast_packets, other.rx_vport_rdma_unicast_packets + lost);
        let parts = one.tx_data_packets + one.tx_retransmitted_packets + one.tx_ack_packets + one.tx_response_packets;
        assert_eq!(one.tx_vport_rdma_unicast_packets, parts);
        let bytes = one.tx_data_bytes + one.tx_retransmitted_bytes + one.tx_ack_bytes + one.tx_response_bytes;
        assert_eq!(one.tx_vport_rdma_unicast_bytes, bytes);
    }
    let names = doorbell_verbs_core::Counters::NAMES;
    assert_eq!(names.len(), tx.values().len());
    assert_eq!(tx.since(&Default::default()).plus(&Default::default()), tx);
}
