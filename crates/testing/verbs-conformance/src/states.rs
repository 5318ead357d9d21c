//! States of queue pairs, and the outcome of work requests when a queue pair leaves a state.

use doorbell_verbs::{
    AddressVector, AsyncEvent, ModifyError, PostErrorKind, Psn, QpAttributes, QpKind, QpState, RecvRequest,
    SendOperation, Status, transition,
};

use crate::Open;
use crate::common::*;

const KINDS: [QpKind; 3] = [QpKind::Rc, QpKind::Uc, QpKind::Ud];

/// Returns the attributes for one transition on the usual path from reset to RTS.
fn step(plan: &Plan, side: &Side, to: QpState) -> QpAttributes {
    match to {
        QpState::Init => plan.to_init(),
        QpState::ReadyToReceive => plan.to_rtr(side, Psn::new(5)),
        QpState::ReadyToSend if side.state() == QpState::ReadyToReceive => plan.to_rts(Psn::new(5)),
        _ => to_state(to),
    }
}

/// Returns the usual path from reset to `state`. Programs cannot request SQE: a failed send leads to SQE.
fn way_to(state: QpState) -> &'static [QpState] {
    use QpState::*;
    match state {
        Reset => &[],
        Init => &[Init],
        ReadyToReceive => &[Init, ReadyToReceive],
        ReadyToSend => &[Init, ReadyToReceive, ReadyToSend],
        SqDrain => &[Init, ReadyToReceive, ReadyToSend, SqDrain],
        SqError | Error => &[Init, Error],
    }
}

fn side_in(plan: &Plan, device: &doorbell_verbs::Device, state: QpState) -> Side {
    let side = plan.side(device);
    for &next in way_to(state) {
        side.qp.modify(&step(plan, &side, next)).unwrap();
    }
    side
}

/// Returns all states that programs can request.
fn reachable() -> impl Iterator<Item = QpState> {
    QpState::ALL.into_iter().filter(|&state| state != QpState::SqError)
}

pub fn the_states_of_each_transport(open: Open<'_>) {
    let device = open().0;
    for kind in KINDS {
        let plan = Plan::new(kind);
        for (from, to) in reachable().flat_map(|from| QpState::ALL.map(|to| (from, to))) {
            let side = side_in(&plan, &device, from);
            let result = side.qp.modify(&step(&plan, &side, to));
            let expected = transition(kind, from, to);
            match (result, expected) {
                (Ok(()), Some(_)) => assert_eq!(side.state(), to),
                (Err(error @ ModifyError::NoTransition { .. }), None) => {
                    assert_eq!(side.state(), from, "a refused transition changes nothing");
                    let text = error.to_string();
                    assert!(text.contains(&format!("{from:?}")) && text.contains(&format!("{to:?}")), "{text}");
                }
                // Linux does not allow the transition from reset to error (see its table in
                // drivers/infiniband/core/verbs.c).
                (Err(ModifyError::Refused { .. }), Some(_)) if (from, to) == (QpState::Reset, QpState::Error) => {}
                (Err(ModifyError::Refused { .. }), Some(_))
                    if from == QpState::SqDrain
                        && rxe_departs(&device, "a draining datagram queue pair keeps its state") => {}
                (result, expected) => panic!("{kind:?} {from:?} to {to:?}: {result:?}, the table has {expected:?}"),
            }
        }
        // Without its required attributes, a transition fails, and the error names the missing attributes.
        let side = side_in(&plan, &device, QpState::Init);
        let result = side.qp.modify(&to_state(QpState::ReadyToReceive));
        match kind {
            QpKind::Ud => assert_eq!(result, Ok(())),
            _ => {
                let error = result.unwrap_err();
                assert!(matches!(error, ModifyError::Attributes { .. }));
                assert!(error.to_string().contains("missing"), "{error}");
            }
        }
        let error = side.qp.modify(&QpAttributes { timeout: Some(1), ..to_state(QpState::Error) }).unwrap_err();
        assert!(error.to_string().contains("given but not allowed are"), "{error}");
    }
    let side = side_in(&Plan::rc(), &device, QpState::ReadyToSend);
    let believed = QpAttributes { current_state: Some(QpState::SqDrain), ..to_state(QpState::ReadyToSend) };
    assert!(matches!(side.qp.modify(&believed), Err(ModifyError::NotInState { .. })));
}

pub fn posting_depends_on_the_state(open: Open<'_>) {
    let device = open().0;
    for (kind, state) in KINDS.into_iter().flat_map(|kind| reachable().map(move |state| (kind, state))) {
        let side = side_in(&Plan::new(kind), &device, state);
        let mut request = signalled(1, SendOperation::Send, &[]);
        request.destination = (kind == QpKind::Ud).then(|| side.as_destination());
        let sent = side.qp.post_send(&[request]);
        let may_send = matches!(state, QpState::ReadyToSend | QpState::SqDrain | QpState::Error);
        if state == QpState::Error && rxe_departs(&device, "work requests may be refused in the error state") {
            continue;
        }
        assert_eq!(sent.is_ok(), may_send, "{kind:?} {state:?}: {sent:?}");
        if let Err(error) = sent {
            assert!(matches!(error.kind, PostErrorKind::WrongState { .. }));
            assert!(error.to_string().contains(&format!("{state:?}")), "{error}");
        }
        let received = side.qp.post_recv(&[RecvRequest { wr_id: 2, sges: &[] }]);
        assert_eq!(received.is_ok(), state != QpState::Reset, "{kind:?} {state:?}: {received:?}");
    }
}

pub fn errors_flush_everything_in_order(open: Open<'_>) {
    for kind in KINDS {
        let (a, b) = Plan { depth: 8, ..Plan::new(kind) }.connect(&open());
        // The peer is in the reset state and answers nothing, so requests on RC stay outstanding.
        b.qp.modify(&to_state(QpState::Reset)).unwrap();
        (0..8).for_each(|wr_id| a.post_recv(wr_id, &[]));
        let destination = (kind == QpKind::Ud).then(|| b.as_destination());
        let post = |wr_id| {
            let request = signalled(wr_id, SendOperation::Send, &[]);
            a.qp.post_send(&[doorbell_verbs::SendRequest { destination, ..request }]).unwrap();
        };
        let sends = if kind == QpKind::Rc { 8 } else { 0 };
        (100..100 + sends).for_each(post);
        a.to_error();
        // Requests that are posted in the error state are flushed at once.
        let late = rxe_departs(&a.device, "requests posted in the error state are refused or never flushed");
        if !late {
            post(200);
            a.post_recv(201, &[]);
        }
        let done = a.reap(8 + sends as usize + if late { 0 } else { 2 });
        assert!(done.iter().all(|completion| completion.status == Status::WorkRequestFlushed), "{done:?}");
        let ids = |range: std::ops::Range<u64>| -> Vec<u64> {
            done.iter().map(|completion| completion.wr_id).filter(|wr_id| range.contains(wr_id)).collect()
        };
        assert_eq!(ids(0..100), (0..8).collect::<Vec<_>>());
        assert_eq!(ids(100..200), (100..100 + sends).collect::<Vec<_>>());
        assert_eq!(ids(200..300), if late { vec![] } else { vec![200, 201] });
        let mut out = [Default::default()];
        assert_eq!(a.cq.poll(&mut out), Ok(0));
    }
}

pub fn a_reset_queue_pair_can_be_used_again(open: Open<'_>) {
    used_again_after_reset(open, QpKind::Rc);
}

// UC has its own test, since UC cannot recover on a network that loses packets.
pub fn a_reset_unreliable_queue_pair_can_be_used_again(open: Open<'_>) {
    used_again_after_reset(open, QpKind::Uc);
}

fn used_again_after_reset(open: Open<'_>, kind: QpKind) {
    let plan = Plan::new(kind);
    let (a, b) = plan.connect(&open());
    let (from, to) = (a.patterned(3000, 1), b.memory(3000));
    for round in 0..3 {
        b.post_recv(round, &[to.sge(0, 3000)]);
        a.post(round, SendOperation::Send, &[from.sge(0, 3000)]);
        a.expect(round);
        b.expect(round);
        // This receive stays unused, and the reset drops it without a completion.
        a.post_recv(99, &[]);
        if round == 1 {
            a.to_error();
            a.expect_failure(99, Status::WorkRequestFlushed);
        }
        for side in [&a, &b] {
            side.qp.modify(&to_state(QpState::Reset)).unwrap();
        }
        plan.join(&a, &b);
    }
    let mut out = [Default::default()];
    assert_eq!((a.cq.poll(&mut out), b.cq.poll(&mut out)), (Ok(0), Ok(0)));
}

pub fn draining_finishes_started_requests(open: Open<'_>) {
    let (a, b) = Plan::rc().connect(&open());
    let (from, to) = (a.patterned(1 << 20, 1), b.memory(1 << 20));
    a.post(1, write_to(&to, 0), &[from.sge(0, 1 << 20)]);
    a.qp.modify(&QpAttributes { sqd_notify: Some(true), ..to_state(QpState::SqDrain) }).unwrap();
    a.post(2, write_to(&to, 0), &[from.sge(0, 4)]);
    eventually("the queue is drained", || a.device.poll_event() == Some(AsyncEvent::SqDrained(a.qp.qpn())));
    // The first request may be complete, since it may have started before the drain. The second request must wait.
    let mut out = [Default::default(); 2];
    assert!(a.cq.poll(&mut out).unwrap() <= 1);
    assert_eq!(a.state(), QpState::SqDrain);
    // In the state SQD, a program may change the peer's address.
    let address = AddressVector { traffic_class: 0x20, ..AddressVector::to(b.device.attributes().address) };
    a.qp.modify(&QpAttributes { address: Some(address), ..to_state(QpState::SqDrain) }).unwrap();
    a.qp.modify(&to_state(QpState::ReadyToSend)).unwrap();
    let mut second_is_done = || {
        let done = a.cq.poll(&mut out).unwrap();
        out[..done].iter().any(|completion| completion.wr_id == 2)
    };
    if rxe_departs(&a.device, "a request posted while the queue drained is sent only after another post") {
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(!second_is_done(), "the second request was sent without another post");
        a.post(3, write_to(&to, 0), &[from.sge(0, 4)]);
    }
    eventually("both requests are complete", second_is_done);
    assert_bytes(&to, 0, &pattern(1 << 20, 1), "the first");
}

pub fn a_peer_that_is_gone_ends_the_retries(open: Open<'_>) {
    let devices = open();
    let endless = rxe_departs(&devices.0, "a retry count of 7 means unlimited");
    if endless {
        let (a, b) = Plan { timeout: 8, retry_count: 7, ..Plan::rc() }.connect(&devices);
        drop(b);
        a.post(1, SendOperation::Send, &[]);
        // Wait for the length of a hundred timeouts.
        std::thread::sleep(std::time::Duration::from_millis(105));
        assert_eq!((a.cq.poll(&mut [Default::default()]), a.state()), (Ok(0), QpState::ReadyToSend));
    }
    let most = if endless { 6 } else { 7 };
    for retry_count in [2, most] {
        let plan = Plan { timeout: 8, retry_count, ..Plan::rc() };
        let (a, b) = plan.connect(&devices);
        let before = a.device.counters();
        drop(b);
        a.post_recv(9, &[]);
        a.post(1, SendOperation::Send, &[]);
        a.post(2, SendOperation::Send, &[]);
        a.expect_failure(1, Status::RetryExceeded);
        // IBTA does not define whether the send or the receive queue is flushed first.
        let mut flushed = a.reap(2);
        flushed.sort_by_key(|completion| completion.wr_id);
        let flushed: Vec<_> = flushed.iter().map(|completion| (completion.wr_id, completion.status)).collect();
        assert_eq!(flushed, [2, 9].map(|wr_id| (wr_id, Status::WorkRequestFlushed)));
        assert_eq!(a.state(), QpState::Error);
        if let (Some(before), Some(counters)) = (before, a.device.counters()) {
            assert!(counters.since(&before).local_ack_timeout_err > u64::from(retry_count));
        }
    }
}

pub fn rnr_retries_end(open: Open<'_>) {
    let plan = Plan { rnr_retry: 2, ..Plan::rc() };
    let (a, b) = plan.connect(&open());
    let before = a.device.counters().unwrap_or_default();
    a.post(1, SendOperation::Send, &[]);
    a.expect_failure(1, Status::RnrRetryExceeded);
    assert_eq!((a.state(), b.state()), (QpState::Error, QpState::ReadyToSend));
    if let Some(counted) = a.device.counters().map(|counters| counters.since(&before)) {
        // The count is higher if the request was retransmitted before the RNR NAK arrived.
        assert!(counted.rnr_nak_received >= 3 && counted.rnr_nak_retry_err == 1, "{counted:?}");
    }
}

pub fn rnr_retries_wait_for_a_receive(open: Open<'_>) {
    let (a, b) = Plan::rc().connect(&open());
    let (from, to) = (a.patterned(5000, 1), b.memory(5000));
    let before = a.device.counters().unwrap_or_default();
    a.post(1, SendOperation::Send, &[from.sge(0, 5000)]);
    let operation = SendOperation::WriteImmediate { remote_address: to.address(), rkey: to.rkey(), immediate: 1 };
    a.post(2, operation, &[from.sge(0, 10)]);
    eventually_counted("the peer was not ready", &a.device, |counted| counted.since(&before).rnr_nak_received > 2);
    b.post_recv(1, &[to.sge(0, 5000)]);
    a.expect(1);
    b.expect(1);
    assert_bytes(&to, 0, &pattern(5000, 1), "the SEND that waited");
    b.post_recv(2, &[]);
    a.expect(2);
    b.expect(2);
}

pub fn queries_return_the_set_attributes(open: Open<'_>) {
    let plan = Plan { mtu: doorbell_verbs::PathMtu::Mtu512, depth: 7, inline: 13, signal_all: true, ..Plan::rc() };
    let (a, b) = plan.connect(&open());
    let info = a.qp.query();
    assert_eq!((info.kind, info.state, info.signal_all), (QpKind::Rc, QpState::ReadyToSend, true));
    assert_eq!(info.capacities, plan.capacities());
    let set = info.attributes;
    assert_eq!((set.path_mtu, set.dest_qpn), (Some(plan.mtu), Some(b.qp.qpn())));
    assert_eq!((set.timeout, set.retry_count, set.rnr_retry), (Some(14), Some(7), Some(7)));
    assert_eq!((set.max_rd_atomic, set.max_dest_rd_atomic, set.min_rnr_timer), (Some(16), Some(16), Some(1)));
    assert_eq!(set.address, Some(AddressVector::to(b.device.attributes().address)));
    assert_eq!((set.access, info.outstanding_sends), (Some(ALL_ACCESS), 0));
    a.post(1, SendOperation::Write { remote_address: 0, rkey: wrong(doorbell_verbs::RKey::new(1)) }, &[]);
    a.expect(1);
    let after = a.qp.query();
    assert_eq!(after.attributes.send_psn, set.send_psn.map(Psn::next));
    // RNICs of the machine count per port, not per queue pair.
    let is_counted = a.device.counters().is_some();
    assert_eq!(after.counters.tx_data_packets, u64::from(is_counted));
}
