//! Once the receiver sees a receive complete, the matching send succeeds, even if the receiver then ends: the
//! acknowledgement has already left. And a queue pair that ends has handled all packets that arrived before.

use doorbell_verbs_conformance::common;

use common::*;
use doorbell_verbs::soft::{AckPolicy, MemoryOptions, SoftOptions, VirtualNetwork};
use doorbell_verbs::{Completion, Device, QpOptions, QpState, SendFlags, SendOperation, SendRequest, Status};

/// Number of answers after which the receiver delays acknowledgements until its next answer.
const ANSWERS: u64 = 12;

/// Ways in which a receiver ends right after its last message.
#[derive(Clone, Copy, Debug)]
enum End {
    Reset,
    Error,
    Destroy,
    Close,
}

fn pair(ack: AckPolicy) -> (Side, Side) {
    let open = || open_soft(SoftOptions { ack: Some(ack), ..SoftOptions::default() });
    // Retries last for nearly two seconds, so that a slow side on a busy machine does not look dead.
    Plan::rc().connect(&(open(), open()))
}

/// Runs the receiver: answers `answers` messages, receives one more, and ends as `end` describes.
fn receive(side: Side, answers: u64, end: End) {
    let memory = side.memory(64);
    for round in 0..answers {
        side.expect(round);
        side.post_recv(round + 1, &[memory.sge(0, 64)]);
        // The answer is unsignalled. Otherwise `side.expect` could find the completion of the answer instead of the
        // next message.
        let sges = [memory.sge(0, 8)];
        let answer = signalled(100, SendOperation::Send, &sges);
        side.qp.post_send(&[SendRequest { flags: SendFlags::empty(), ..answer }]).unwrap();
    }
    side.expect(answers);
    match end {
        End::Reset => side.qp.modify(&to_state(QpState::Reset)).unwrap(),
        End::Error => side.to_error(),
        End::Destroy => drop(side.qp),
        End::Close => drop(side),
    }
}

fn ends(ack: AckPolicy, answers: u64, end: End) {
    let (a, b) = pair(ack);
    let mine = a.memory(64);
    let theirs = b.memory(64);
    b.post_recv(0, &[theirs.sge(0, 64)]);
    let kept = b.device.clone(); // keeps its memory and stays open unless the test closes it
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let _kept: Option<Device> = (!matches!(end, End::Close)).then_some(kept);
            receive(b, answers, end);
        });
        for round in 0..answers {
            a.post_recv(200, &[mine.sge(0, 64)]);
            a.post(round, SendOperation::Send, &[mine.sge(0, 16)]);
            let both = a.reap(2);
            assert!(both.iter().all(|completion| completion.status == Status::Success), "{both:?}");
        }
        a.post(answers, SendOperation::Send, &[mine.sge(0, 16)]);
        let last = a.reap(1)[0];
        assert_eq!((last.wr_id, last.status), (answers, Status::Success), "{end:?} after {answers} answers, {ack}");
        receiver.join().unwrap();
    });
}

#[test]
fn a_completed_receive_means_a_successful_send() {
    for _ in 0..40 {
        for end in [End::Reset, End::Error, End::Destroy, End::Close] {
            ends(AckPolicy::Answer, 0, end);
        }
    }
}

#[test]
fn a_completed_receive_with_a_held_ack_means_a_successful_send() {
    for end in [End::Reset, End::Error, End::Destroy, End::Close] {
        for _ in 0..20 {
            ends(AckPolicy::Answer, ANSWERS, end);
        }
        for _ in 0..5 {
            ends(AckPolicy::Strict, ANSWERS, end);
        }
    }
}

/// A program with separate queues for sends and receives, such as UCX, polls the queues in turn. If a message arrives
/// while the program polls the send queue, the message must not count as unanswered.
#[test]
fn polling_for_sends_leaves_the_ack_of_a_receive_held() {
    let open = || open_soft(SoftOptions { ack: Some(AckPolicy::Answer), ..SoftOptions::default() });
    let plan = Plan::rc();
    let (a, device) = (plan.side(&open()), open());
    let (pd, sends, receives) =
        (device.create_pd().unwrap(), device.create_cq(64).unwrap(), device.create_cq(64).unwrap());
    let qp = pd.create_qp(QpOptions {
        kind: plan.kind,
        send_cq: &sends,
        recv_cq: &receives,
        srq: None,
        capacities: plan.capacities(),
        signal_all: false,
    });
    let b = Side { device, pd, cq: receives, qp: qp.unwrap() };
    plan.join(&a, &b);
    let (mine, theirs) = (a.memory(64), b.memory(64));
    let (mut found_by_then, mut together) = (0, 0);
    for round in 0..2000 {
        a.post_recv(200, &[mine.sge(0, 64)]);
        b.post_recv(round, &[theirs.sge(0, 64)]);
        a.post(100, SendOperation::Send, &[mine.sge(0, 16)]);
        let mut out = [Completion::default(); 2];
        assert_eq!(sends.poll(&mut out), Ok(0));
        let is_there = b.device.counters().is_some_and(|counters| counters.rx_send_requests > round);
        let acknowledged = a.cq.poll(&mut out).unwrap();
        found_by_then += u64::from(is_there);
        together += u64::from(is_there && acknowledged == 0);
        b.expect(round);
        let sges = [theirs.sge(0, 8)];
        let answer = signalled(100, SendOperation::Send, &sges);
        b.qp.post_send(&[SendRequest { flags: SendFlags::empty(), ..answer }]).unwrap();
        a.reap(2 - acknowledged);
    }
    // The device's thread acknowledges a message at once if it handles the message before the program polls. On a busy
    // machine, it does so for most messages, and the device then holds few acknowledgements back. A poll that ends the
    // wait for an answer leaves none.
    assert!(together * 50 >= found_by_then, "of {found_by_then} messages only {together} were acknowledged by answers");
}

/// Connects two devices that have no threads, so that each handles packets only when the test calls it.
fn still_pair() -> (VirtualNetwork, Side, Side) {
    let network = VirtualNetwork::new(MemoryOptions { latency_ns: 1000, ..MemoryOptions::default() });
    let open = |last| network.open([10, 0, 0, last].into(), &SoftOptions::default()).unwrap();
    let (a, b) = Plan::rc().connect(&(open(1), open(2)));
    (network, a, b)
}

fn pass_latency(network: &VirtualNetwork) {
    network.advance_to(network.now_ns() + 2000);
}

#[test]
fn a_request_whose_acknowledgement_has_arrived_is_not_flushed() {
    let (network, a, b) = still_pair();
    let mut out = [Completion::default(); 2];
    b.post_recv(0, &[]);
    a.post(1, SendOperation::Send, &[]);
    pass_latency(&network);
    assert_eq!(b.cq.poll(&mut out), Ok(1), "the receiver sees the message, and acknowledges it");
    pass_latency(&network);
    a.to_error();
    a.expect(1);
}

#[test]
fn a_message_that_has_arrived_is_acknowledged_before_the_receiver_ends() {
    for end in [End::Reset, End::Error, End::Destroy] {
        let (network, a, b) = still_pair();
        b.post_recv(0, &[]);
        a.post(1, SendOperation::Send, &[]);
        pass_latency(&network);
        let kept = b.device.clone();
        match end {
            End::Reset => b.qp.modify(&to_state(QpState::Reset)).unwrap(),
            End::Error => b.to_error(),
            _ => drop(b.qp),
        }
        pass_latency(&network);
        a.expect(1);
        drop(kept);
    }
}
