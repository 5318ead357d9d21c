//! Queues of exact depths, shared receive queues, notifications and asynchronous events.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use doorbell_verbs::{
    AsyncEvent, Completion, Notify, Overrun, PostErrorKind, QpState, RecvRequest, SendFlags, SendOperation,
    SendRequest, Status,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::Open;
use crate::common::*;

/// Returns whether a descriptor of events is readable. Such a descriptor is never writable.
fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN | PollFlags::POLLOUT)];
    let is_ready = poll(&mut fds, PollTimeout::ZERO).unwrap() > 0;
    assert!(!fds[0].revents().is_some_and(|reported| reported.contains(PollFlags::POLLOUT)), "writable");
    is_ready
}

fn wait_readable(fd: BorrowedFd<'_>) {
    let patience = PollTimeout::try_from(PATIENCE).unwrap();
    assert_eq!(poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], patience).unwrap(), 1, "no notification came");
}

/// Returns whether queues of the device have exactly the requested depth. Hardware RNICs may round up.
fn is_exact(device: &doorbell_verbs::Device) -> bool {
    device.attributes().provider != "system"
}

pub fn a_shared_receive_queue_serves_many(open: Open<'_>) {
    let (one, other) = open();
    let plan = Plan::rc();
    let (pd, cq) = (other.create_pd().unwrap(), other.create_cq(64).unwrap());
    let srq = pd.create_srq(16, 2).unwrap();
    let pairs: Vec<_> = (0..4).map(|_| (plan.side(&one), plan.side_on(&pd, &cq, Some(&srq)))).collect();
    pairs.iter().for_each(|(a, b)| plan.join(a, b));
    let memory = pairs[0].1.memory(16 * 64);
    let post = |slot: u64| {
        let at = slot as usize * 64;
        srq.post_recv(&[RecvRequest { wr_id: slot, sges: &[memory.sge(at, 10), memory.sge(at + 10, 54)] }]).unwrap();
    };
    (0..16).for_each(post);
    assert!(srq.posted().is_none_or(|posted| posted == 16));
    if is_exact(&other) {
        let full = srq.post_recv(&[RecvRequest { wr_id: 0, sges: &[] }]).unwrap_err();
        assert!(matches!(full.kind, PostErrorKind::QueueFull { depth: 16, .. }), "{full}");
    }
    for round in 0..64 {
        let (a, b) = &pairs[round % 4];
        a.qp.post_send(&[inline(1, SendOperation::Send, &pattern(50, round as u64))]).unwrap();
        a.expect(1);
        let received = reap(&cq, 1)[0];
        assert_eq!((received.qpn, received.byte_len), (b.qp.qpn(), 50));
        assert_bytes(&memory, received.wr_id as usize * 64, &pattern(50, round as u64), "a shared receive");
        post(received.wr_id);
    }
    let own = pairs[0].1.qp.post_recv(&[RecvRequest { wr_id: 1, sges: &[] }]).unwrap_err();
    assert_eq!(own.kind, PostErrorKind::UsesSharedReceiveQueue);
    // In the error state, the queue pair takes no more receives from the shared receive queue. It reports an event once
    // it has taken its last receive.
    pairs[1].1.to_error();
    if rxe_departs(&other, "no event when a queue pair in error has taken its last shared receive") {
        return assert_no_event(&other);
    }
    eventually("the queue pair took its last shared receive", || {
        other.poll_event() == Some(AsyncEvent::QpLastWqeReached(pairs[1].1.qp.qpn()))
    });
    assert!(srq.posted().is_none_or(|posted| posted == 16));
}

pub fn the_limit_event_comes_once(open: Open<'_>) {
    let (one, other) = open();
    let plan = Plan::rc();
    let (pd, cq) = (other.create_pd().unwrap(), other.create_cq(64).unwrap());
    let srq = pd.create_srq(8, 1).unwrap();
    let (a, b) = (plan.side(&one), plan.side_on(&pd, &cq, Some(&srq)));
    plan.join(&a, &b);
    let receives = [RecvRequest { wr_id: 1, sges: &[] }; 8];
    srq.post_recv(&receives).unwrap();
    srq.arm_limit(6);
    assert!(!is_readable(other.event_fd()));
    for sent in 0..5 {
        a.post(sent, SendOperation::Send, &[]);
        a.expect(sent);
        reap(&cq, 1);
        // Eight receives were posted, and the limit is six. The third message leaves fewer than six receives.
        let event = (sent == 2).then_some(AsyncEvent::SrqLimitReached(srq.id().0));
        if event.is_some() {
            wait_readable(other.event_fd());
        }
        assert_eq!(other.poll_event(), event, "after {sent}");
    }
    assert!(srq.posted().is_none_or(|posted| posted == 3));
    srq.arm_limit(4); // the limit is already reached
    if rxe_departs(
        &other,
        "if few receives remain at arming, the limit event comes only after the next receive is taken",
    ) {
        return assert_no_event(&other);
    }
    wait_readable(other.event_fd());
    assert_eq!(other.poll_event(), Some(AsyncEvent::SrqLimitReached(srq.id().0)));
    assert!(!is_readable(other.event_fd()));
}

/// Creates an end whose completion queue raises notifications on the returned channel.
fn notifying(plan: &Plan, device: &doorbell_verbs::Device) -> (Side, doorbell_verbs::Channel) {
    let channel = device.create_channel().unwrap();
    let cq = device.create_cq_on(64, &channel).unwrap();
    (plan.side_on(&device.create_pd().unwrap(), &cq, None), channel)
}

pub fn the_next_completion_notifies(open: Open<'_>) {
    let devices = open();
    let plan = Plan::rc();
    let (a, (b, channel)) = (plan.side(&devices.0), notifying(&plan, &devices.1));
    plan.join(&a, &b);
    (0..10).for_each(|wr_id| b.post_recv(wr_id, &[]));
    a.post(0, SendOperation::Send, &[]);
    a.expect(0);
    b.expect(0);
    assert_eq!((channel.next(), is_readable(channel.as_fd())), (None, false), "a queue notified without being armed");
    for wr_id in [1, 4] {
        b.cq.arm(Notify::Next);
        b.cq.arm(Notify::Next); // a second call changes nothing
        for wr_id in wr_id..wr_id + 3 {
            a.post(wr_id, SendOperation::Send, &[]);
            a.expect(wr_id);
        }
        assert!(channel.wait(Some(PATIENCE)).unwrap());
        assert_eq!(channel.next(), Some(b.cq.id()));
        assert_eq!((channel.next(), is_readable(channel.as_fd())), (None, false));
        b.reap(3);
    }
    assert!(!channel.wait(Some(Duration::from_millis(1))).unwrap());
    // This message arrives before the queue is armed. When the queue is armed, the software RNIC raises a notification
    // for this message. Other devices may raise none.
    a.post(7, SendOperation::Send, &[]);
    a.expect(7);
    eventually_counted("the message has arrived", &b.device, |counted| counted.rx_send_requests >= 8);
    b.cq.arm(Notify::Next);
    let told = channel.next();
    assert!(told == Some(b.cq.id()) || told.is_none() && !is_exact(&b.device));
    b.expect(7);
    b.cq.arm(Notify::Next);
    a.post(8, SendOperation::Send, &[]);
    assert!(channel.wait(Some(PATIENCE)).unwrap());
    assert_eq!(channel.next(), Some(b.cq.id()));
}

pub fn only_solicited_completions_notify(open: Open<'_>) {
    let devices = open();
    let plan = Plan::rc();
    let (a, (b, channel)) = (plan.side(&devices.0), notifying(&plan, &devices.1));
    plan.join(&a, &b);
    (0..4).for_each(|wr_id| b.post_recv(wr_id, &[]));
    b.cq.arm(Notify::Solicited);
    a.post(0, SendOperation::Send, &[]);
    a.expect(0);
    assert!(!b.expect(0).solicited);
    assert_eq!(channel.next(), None);
    let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
    a.qp.post_send(&[SendRequest { flags, ..signalled(1, SendOperation::Send, &[]) }]).unwrap();
    a.expect(1);
    assert!(channel.wait(Some(PATIENCE)).unwrap());
    assert_eq!(channel.next(), Some(b.cq.id()));
    // System devices do not report whether a completion was solicited.
    assert!(b.expect(1).solicited || !is_exact(&b.device));
    // An error always notifies.
    b.cq.arm(Notify::Solicited);
    b.to_error();
    assert!(channel.wait(Some(PATIENCE)).unwrap());
    assert_eq!(channel.next(), Some(b.cq.id()));
    assert!(b.reap(2).iter().all(|completion| completion.status == Status::WorkRequestFlushed));
}

pub fn notifications_of_several_queues(open: Open<'_>) {
    let (one, other) = open();
    let plan = Plan::rc();
    let channel = other.create_channel().unwrap();
    let pd = other.create_pd().unwrap();
    let pairs: Vec<_> = (0..3)
        .map(|_| {
            let cq = other.create_cq_on(4, &channel).unwrap();
            let (a, b) = (plan.side(&one), plan.side_on(&pd, &cq, None));
            plan.join(&a, &b);
            b.post_recv(1, &[]);
            b.cq.arm(Notify::Next);
            (a, b)
        })
        .collect();
    for (a, b) in pairs.iter().rev() {
        a.post(1, SendOperation::Send, &[]);
        a.expect(1);
        assert!(channel.wait(Some(PATIENCE)).unwrap());
        assert_eq!(channel.next(), Some(b.cq.id()));
    }
    assert!(!is_readable(channel.as_fd()));
}

pub fn notifications_are_removed_with_their_queue(open: Open<'_>) {
    let (one, other) = open();
    let plan = Plan::rc();
    let (a, (b, channel)) = (plan.side(&one), notifying(&plan, &other));
    plan.join(&a, &b);
    b.post_recv(1, &[]);
    b.cq.arm(Notify::Next);
    a.post(1, SendOperation::Send, &[]);
    assert!(channel.wait(Some(PATIENCE)).unwrap());
    drop(b);
    // A new queue may get the number of the destroyed queue, so no notification with that number may remain.
    assert_eq!((channel.next(), is_readable(channel.as_fd())), (None, false));
}

pub fn a_queue_of_one_works_and_is_full_with_one(open: Open<'_>) {
    let plan = Plan { depth: 1, sges: 1, inline: 0, cq_depth: 2, ..Plan::rc() };
    let devices = open();
    let (a, b) = plan.connect(&devices);
    let (from, to) = (a.patterned(3000, 1), b.memory(3000));
    for wr_id in 0..100 {
        b.post_recv(wr_id, &[to.sge(0, 3000)]);
        let full = b.qp.post_recv(&[RecvRequest { wr_id, sges: &[] }]).unwrap_err();
        assert!(matches!(full.kind, PostErrorKind::QueueFull { depth: 1, .. }), "{full}");
        a.post(wr_id, SendOperation::Send, &[from.sge(0, 3000)]);
        a.expect(wr_id);
        b.expect(wr_id);
    }
    assert_bytes(&to, 0, &pattern(3000, 1), "a message through queues of depth one");
    // The peer has posted no receive, so the request stays outstanding.
    a.post(1, SendOperation::Send, &[]);
    let full = a.qp.post_send(&[signalled(2, SendOperation::Send, &[])]).unwrap_err();
    assert!(matches!(full.kind, PostErrorKind::QueueFull { depth: 1, .. }), "{full}");
    assert!(full.to_string().contains("send queue"), "{full}");
    // A depth that is not a power of two must be exact, too.
    let (a, _b) = Plan { depth: 3, ..Plan::rc() }.connect(&devices);
    (0..3).for_each(|wr_id| a.post(wr_id, SendOperation::Send, &[]));
    assert!(a.qp.post_send(&[signalled(3, SendOperation::Send, &[])]).is_err());
}

pub fn a_completion_queue_of_one_works(open: Open<'_>) {
    let plan = Plan { cq_depth: 1, ..Plan::rc() };
    let (a, b) = plan.connect(&open());
    for wr_id in 0..100 {
        b.post_recv(wr_id, &[]);
        a.post(wr_id, SendOperation::Send, &[]);
        a.expect(wr_id);
        b.expect(wr_id);
    }
}

pub fn a_completion_queue_reports_its_overrun(open: Open<'_>) {
    let (one, other) = open();
    let plan = Plan::rc();
    let (a, b) = Plan { cq_depth: 2, ..plan }.connect(&(one.clone(), other.clone()));
    for wr_id in 0..3 {
        a.qp.post_send(&[signalled(
            wr_id,
            SendOperation::Write { remote_address: 0, rkey: wrong(doorbell_verbs::RKey::new(1)) },
            &[],
        )])
        .unwrap();
    }
    wait_readable(one.event_fd());
    assert!(matches!(one.poll_event(), Some(AsyncEvent::CqError(id)) if id == a.cq.id().0));
    eventually("the users of the queue are in error", || a.state() == QpState::Error);
    let mut out = [Completion::default(); 4];
    assert_eq!(a.cq.poll(&mut out), Ok(2), "completions before the overflow cannot be reaped");
    assert_eq!(a.cq.poll(&mut out), Err(Overrun));
    assert!(Overrun.to_string().contains("overran"));
    assert_eq!(b.state(), QpState::ReadyToSend);
    // Other queue pairs with new completion queues still work.
    let (a, b) = plan.connect(&(one, other));
    b.post_recv(1, &[]);
    a.post(1, SendOperation::Send, &[]);
    a.expect(1);
    b.expect(1);
}

pub fn poll_reports_an_overrun(open: Open<'_>) {
    let devices = open();
    let plan = Plan { cq_depth: 2, ..Plan::rc() };
    let (a, _b) = plan.connect(&devices);
    assert!(!is_readable(a.device.event_fd()));
    let mut out = [Completion::default(); 64];
    assert_eq!(a.cq.poll(&mut out), Ok(0));
    // Post more requests than the completion queue holds: `plan.depth` exceeds its depth, even if the provider rounds
    // it up.
    for wr_id in 0..plan.depth as u64 {
        let nothing = SendOperation::Write { remote_address: 0, rkey: wrong(doorbell_verbs::RKey::new(1)) };
        a.qp.post_send(&[signalled(wr_id, nothing, &[])]).unwrap();
    }
    wait_readable(a.device.event_fd());
    eventually("a look at the queue says so", || a.cq.poll(&mut out) == Err(Overrun));
    // The event is still in the event queue of the program: polling the completion queue does not take it.
    wait_readable(a.device.event_fd());
    assert!(matches!(a.device.poll_event(), Some(AsyncEvent::CqError(id)) if id == a.cq.id().0));
}

pub fn asynchronous_events_wake_their_descriptor(open: Open<'_>) {
    let (one, other) = open();
    let plan = Plan::with_an_end();
    let (a, b) = (plan.side(&one), plan.side(&other));
    let psn = one.random_psn();
    // The peer sends while this end is still in the state RTR.
    for (side, peer) in [(&a, &b), (&b, &a)] {
        side.qp.modify(&plan.to_init()).unwrap();
        side.qp.modify(&plan.to_rtr(peer, psn)).unwrap();
    }
    a.qp.modify(&plan.to_rts(psn)).unwrap();
    b.post_recv(1, &[]);
    a.post(1, SendOperation::Send, &[]);
    if rxe_departs(&other, "no event when the first packet comes to a queue pair in RTR") {
        assert_no_event(&other);
    } else {
        wait_readable(other.event_fd());
        assert_eq!(other.poll_event(), Some(AsyncEvent::CommunicationEstablished(b.qp.qpn())));
    }
    a.expect(1);
    b.expect(1);
    let (mine, memory) = (a.memory(8), b.memory(8));
    let refused = SendOperation::Write { remote_address: memory.address(), rkey: wrong(memory.rkey()) };
    a.post(2, refused, &[mine.sge(0, 8)]);
    if rxe_departs(&other, "no event when a peer is refused access") {
        a.expect_refusal(2, Status::RemoteAccess);
        return assert_no_event(&other);
    }
    wait_readable(other.event_fd());
    assert_eq!(other.poll_event(), Some(AsyncEvent::QpAccessError(b.qp.qpn())));
    assert_eq!(other.poll_event(), None);
    assert!(!is_readable(other.event_fd()));
    // After a queue pair is destroyed, no event of it remains and the descriptor is not readable.
    let (a, b) = plan.connect(&(one, other.clone()));
    let mine = a.memory(8);
    a.post(3, refused, &[mine.sge(0, 8)]);
    wait_readable(other.event_fd());
    drop(b);
    assert_eq!(other.poll_event(), None);
    assert!(!is_readable(other.event_fd()));
}

pub fn events_are_removed_with_their_objects(open: Open<'_>) {
    let (one, other) = open();
    let plan = Plan::rc();
    let pd = other.create_pd().unwrap();
    for _ in 0..3 {
        let (cq, srq) = (other.create_cq(64).unwrap(), pd.create_srq(8, 1).unwrap());
        assert!(!is_readable(other.event_fd()), "a new queue has no event");
        let (a, b) = (plan.side(&one), plan.side_on(&pd, &cq, Some(&srq)));
        plan.join(&a, &b);
        srq.post_recv(&[RecvRequest { wr_id: 1, sges: &[] }; 2]).unwrap();
        srq.arm_limit(2);
        a.post(1, SendOperation::Send, &[]);
        a.expect(1);
        wait_readable(other.event_fd());
        // Destroy the queue before any call takes its event. The next queue may get the same number.
        drop((b, cq, srq));
        let successor = pd.create_srq(8, 1).unwrap();
        assert_eq!(other.poll_event(), None, "no event of the queue {}", successor.id().0);
        assert!(!is_readable(other.event_fd()));
    }
}
