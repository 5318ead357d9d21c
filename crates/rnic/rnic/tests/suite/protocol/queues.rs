//! Completion queues, shared receive queues, notifications and events.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::End;
use crate::common::script::{OWN, PEER_PSN, Script};
use doorbell_verbs_core::{
    AsyncEvent, Completion, Notifier, Notify, Overrun, PostErrorKind, QpCapacities, QpKind, QpState, RecvRequest,
    SendOperation as Op, Status,
};
use doorbell_wire::{Opcode, PathMtu, Psn};

fn counting() -> (Notifier, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let shared = Arc::clone(&count);
    let notifier: Notifier = Arc::new(move || {
        shared.fetch_add(1, Ordering::Relaxed);
    });
    (notifier, count)
}

#[test]
fn a_completion_queue_of_one_works_and_overruns_at_two() {
    let mut script = Script::silent(PathMtu::Mtu256);
    let (cq, queue) = script.rnic().create_cq(1, None).expect("the device has room");
    let end = End { send_cq: Some(cq), ..End::default() };
    script.qpn = script.add_qp(QpKind::Rc, PathMtu::Mtu256, &end);
    let other = script.add_qp(QpKind::Rc, PathMtu::Mtu256, &End { recv_cq: Some(cq), ..End::default() });
    let apart = script.add_qp(QpKind::Rc, PathMtu::Mtu256, &End::default());
    let mut out = [Completion::default(); 4];
    for index in 0..3 {
        script.post(Op::Send, 8);
        script.sent();
        script.ack(Psn::new(100 + index));
        assert_eq!(script.rnic().poll_cq(cq, &mut out), Ok(1));
    }
    script.receive(0, 8);
    script.post(Op::Send, 8);
    script.post(Op::Send, 8);
    script.post(Op::Send, 8);
    script.sent();
    script.ack(Psn::new(104));
    assert_eq!(script.events(), [AsyncEvent::CqError(cq.0)]);
    let qpn = script.qpn;
    for (qpn, state) in [(qpn, QpState::Error), (other, QpState::Error), (apart, QpState::ReadyToSend)] {
        assert_eq!(script.world.state_of(OWN, qpn), state, "a queue pair with lost completions must be in error");
    }
    assert_eq!(queue.poll(&mut out), Ok(1), "the completion that fitted is missing");
    assert_eq!(out[0].wr_id, 3);
    assert_eq!(queue.poll(&mut out), Err(Overrun));
    assert_eq!(
        script.ends(),
        [(0, Status::WorkRequestFlushed)],
        "receives that complete to the other queue must be flushed"
    );
    assert_eq!(script.rnic().in_flight_packets(), 0);
    // Further overruns raise no event.
    script.post(Op::Send, 8);
    assert_eq!(script.events(), []);
    assert!(queue.len() <= 1);
}

#[test]
fn destroying_a_queue_pair_removes_completions_and_events() {
    let mut script = Script::new();
    let qpn = script.qpn;
    script.receive(0, 8);
    script.world.bring_to(OWN, qpn, QpState::Error);
    script.rnic().destroy_qp(qpn).expect("the queue pair exists");
    assert_eq!(script.reap().len(), 0);
    assert_eq!(script.events(), []);
}

#[test]
fn events_of_a_destroyed_completion_queue_do_not_name_its_successor() {
    let mut script = Script::silent(PathMtu::Mtu256);
    let (cq, _) = script.rnic().create_cq(1, None).expect("the device has room");
    script.qpn = script.add_qp(QpKind::Rc, PathMtu::Mtu256, &End { recv_cq: Some(cq), ..End::default() });
    let qpn = script.qpn;
    script.receive(0, 8);
    script.receive(8, 8);
    script.world.bring_to(OWN, qpn, QpState::Error);
    let other = script.add_qp(QpKind::Rc, PathMtu::Mtu256, &End::default());
    script.qpn = other;
    let said = script.say(Opcode::RC_WRITE_ONLY).reth(0, doorbell_wire::RKey::new(1), 8).payload(&[0; 8]);
    script.hear(&said);
    // The queue is destroyed and its number is reused before the program has read the event of the overrun.
    script.rnic().destroy_qp(qpn).expect("the queue pair exists");
    script.rnic().destroy_cq(cq).expect("no queue pair uses the completion queue");
    let (successor, _) = script.rnic().create_cq(1, None).expect("the device has room");
    assert_eq!(successor, cq, "the number was not reused at once");
    assert_eq!(script.events(), [AsyncEvent::QpAccessError(other)], "events of other objects are missing");
}

#[test]
fn events_of_a_destroyed_shared_receive_queue_do_not_name_its_successor() {
    let mut script = Script::silent(PathMtu::Mtu256);
    let pd = script.world.nodes[OWN].pd;
    let (srq, queue) = script.rnic().create_srq(pd, 4, 1).expect("the device has room");
    let (kept, of_kept) = script.rnic().create_srq(pd, 4, 1).expect("the device has room");
    queue.arm_limit(1);
    of_kept.arm_limit(1);
    script.rnic().destroy_srq(srq).expect("no queue pair uses the shared receive queue");
    let (successor, _) = script.rnic().create_srq(pd, 4, 1).expect("the device has room");
    assert_eq!(successor, srq, "the number was not reused at once");
    assert_eq!(script.events(), [AsyncEvent::SrqLimitReached(kept.0)], "events of other objects are missing");
    // A thread may still hold the destroyed queue. The destroyed queue must raise no event for the queue that has the
    // number now.
    queue.arm_limit(1);
    assert_eq!(script.events(), []);
}

#[test]
fn solicited_and_other_notifications() {
    let mut script = Script::silent(PathMtu::Mtu256);
    let (notifier, count) = counting();
    let (cq, queue) = script.rnic().create_cq(16, Some(notifier)).expect("the device has room");
    script.qpn = script.add_qp(QpKind::Rc, PathMtu::Mtu256, &End { recv_cq: Some(cq), ..End::default() });
    for slot in 0..5 {
        script.receive(slot * 8, 8);
    }
    let send = |script: &mut Script, index, solicited| {
        let mut said = script.say(Opcode::RC_SEND_ONLY).psn(PEER_PSN.add(index));
        said.bth.solicited = solicited;
        script.hear(&said);
        script.sent(); // a completion is visible only after the acknowledgement has left
    };
    let mut out = [Completion::default(); 8];
    send(&mut script, 0, true);
    assert_eq!(count.load(Ordering::Relaxed), 0, "a queue notified without being armed");
    assert_eq!(queue.poll(&mut out), Ok(1));
    assert!(out[0].solicited);
    queue.request_notification(Notify::Solicited);
    send(&mut script, 1, false);
    assert_eq!(count.load(Ordering::Relaxed), 0);
    send(&mut script, 2, true);
    send(&mut script, 3, true);
    assert_eq!(count.load(Ordering::Relaxed), 1, "expected one notification");
    assert_eq!(queue.poll(&mut out), Ok(3));
    let solicited: Vec<_> = out[..3].iter().map(|completion| completion.solicited).collect();
    assert_eq!(solicited, [false, true, true]);
    queue.request_notification(Notify::Solicited);
    let qpn = script.qpn;
    script.world.bring_to(OWN, qpn, QpState::Error);
    assert_eq!(count.load(Ordering::Relaxed), 2, "a completion with an error must raise a notification");
    assert_eq!(queue.poll(&mut out), Ok(1));
}

#[test]
fn a_shared_receive_queue_serves_all_and_reports_its_limit() {
    let mut script = Script::silent(PathMtu::Mtu256);
    let pd = script.world.nodes[OWN].pd;
    let (srq, queue) = script.rnic().create_srq(pd, 4, 1).expect("the device has room");
    let end = End { srq: Some(srq), ..End::default() };
    let a = script.add_qp(QpKind::Rc, PathMtu::Mtu256, &end);
    let b = script.add_qp(QpKind::Rc, PathMtu::Mtu256, &end);
    for slot in 0..5 {
        let sges = [script.world.nodes[OWN].sge(slot * 8, 8)];
        let result = script.rnic().post_srq_recv(srq, &[RecvRequest { wr_id: slot as u64, sges: &sges }]);
        match result {
            Ok(()) => assert!(slot < 4),
            Err(error) => {
                assert_eq!(
                    (slot, error.kind),
                    (4, PostErrorKind::QueueFull { queue: "shared receive queue", depth: 4 })
                );
            }
        }
    }
    let error = script
        .rnic()
        .post_recv(a, &[RecvRequest { wr_id: 0, sges: &[] }])
        .expect_err("the queue pair has no receive queue of its own");
    assert_eq!(error.kind, PostErrorKind::UsesSharedReceiveQueue);
    queue.arm_limit(3);
    assert_eq!(script.events(), []);
    script.qpn = a;
    script.hear(&script.say(Opcode::RC_SEND_ONLY));
    assert_eq!(script.events(), [], "the event came although three receives remain");
    script.qpn = b;
    script.hear(&script.say(Opcode::RC_SEND_ONLY));
    assert_eq!(script.events(), [AsyncEvent::SrqLimitReached(queue.id())]);
    assert_eq!(queue.limit(), 0, "the event did not disarm the limit");
    script.hear(&script.say(Opcode::RC_SEND_ONLY).psn(PEER_PSN.add(1)));
    assert_eq!(script.events(), []);
    let taken: Vec<_> = script.reap().iter().map(|completion| (completion.wr_id, completion.qpn)).collect();
    assert_eq!(taken, [(0, a), (1, b), (2, b)]);
    queue.arm_limit(2);
    assert_eq!(
        script.events(),
        [AsyncEvent::SrqLimitReached(queue.id())],
        "no event although the queue is already below the limit"
    );

    // The receive of a message that is too long completes with an error, and does not return to the shared receive
    // queue.
    script.hear(&script.say(Opcode::RC_SEND_FIRST).psn(PEER_PSN.add(2)).payload(&[0; 256]));
    assert_eq!(script.state(), QpState::Error, "the queue pair must fail, since the receive is too short");
    assert_eq!(script.ends(), [(3, Status::LocalLength)]);
    let events = script.events();
    assert!(events.contains(&AsyncEvent::QpLastWqeReached(b)), "{events:?}");
    script.sent();
    script.qpn = a;
    script.hear(&script.say(Opcode::RC_SEND_ONLY).psn(PEER_PSN.add(1)));
    assert_eq!(
        script.sent().iter().filter(|sent| sent.info.qpn == a).count(),
        1,
        "the responder must send one RNR NAK, since the queue is empty"
    );
}

#[test]
fn receives_in_the_middle_of_a_message_are_flushed_first() {
    let mut script = Script::new();
    script.receive(0, 300);
    script.receive(300, 300);
    script.hear(&script.say(Opcode::RC_SEND_FIRST).payload(&[0; 256]).quiet());
    let qpn = script.qpn;
    script.world.bring_to(OWN, qpn, QpState::Error);
    let flushed = Status::WorkRequestFlushed;
    assert_eq!(script.ends(), [(0, flushed), (300, flushed)]);
}

#[test]
fn completions_of_a_full_send_queue_come_in_order() {
    let capacities = QpCapacities { max_send_wr: 5, ..End::default().capacities };
    let mut script = Script::rc(&End { capacities, signal_all: true, ..End::default() });
    let (mut next, mut done) = (100, 0);
    for round in 0..40 {
        for _ in 0..5 - (next - 100 - done) {
            script.post_flagged(Op::Send, round % 9, doorbell_verbs_core::SendFlags::empty());
            next += 1;
        }
        script.sent();
        done += 1 + round as u32 % 5;
        script.ack(Psn::new(100 + done - 1));
        let expected = (done - 1 - round as u32 % 5)..done;
        let found: Vec<_> = script.reap().iter().map(|completion| completion.wr_id as u32).collect();
        assert!(found.iter().copied().eq(expected), "round {round}: {found:?}");
    }
}
