//! Completion queues that are created and destroyed on one channel must not mix up their notifications. And a
//! notification for a waiting thread costs no system call on the descriptor.

use doorbell_verbs_conformance::common;

use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::*;
use doorbell_verbs::soft::{MemoryOptions, SoftOptions, VirtualNetwork};
use doorbell_verbs::{Channel, Cq, Device, Notify, Pd, SendOperation};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Creates a completion queue on the channel with one pending notification. The notification comes from a flushed
/// receive, which completes before this function returns.
fn notified(device: &Device, channel: &Channel, pd: &Pd) -> Cq {
    let plan = Plan { depth: 1, ..Plan::rc() };
    let cq = device.create_cq_on(1, channel).unwrap();
    let side = plan.side_on(pd, &cq, None);
    side.qp.modify(&plan.to_init()).unwrap();
    side.post_recv(0, &[]);
    cq.arm(Notify::Next);
    side.to_error();
    cq
}

#[test]
fn destroying_a_queue_keeps_notifications_of_its_successor() {
    const ROUNDS: usize = 100_000;
    let device = open_soft(SoftOptions::default());
    let channel = device.create_channel().unwrap();
    let pd = device.create_pd().unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // These queues are never armed, so they raise no notifications on the channel.
        for _ in 0..3 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    drop(device.create_cq_on(1, &channel).unwrap());
                }
            });
        }
        let rounds = catch_unwind(AssertUnwindSafe(|| {
            for round in 0..ROUNDS {
                let cq = notified(&device, &channel, &pd);
                assert_eq!(channel.next(), Some(cq.id()), "round {round}: the notification was lost");
            }
        }));
        over.store(true, Ordering::Relaxed);
        rounds.unwrap_or_else(|panic| resume_unwind(panic));
    });
    assert_eq!(channel.next(), None);
}

#[test]
fn destroying_a_queue_removes_its_own_notification() {
    let device = open_soft(SoftOptions::default());
    let channel = device.create_channel().unwrap();
    let pd = device.create_pd().unwrap();
    drop(notified(&device, &channel, &pd));
    assert_eq!(channel.next(), None, "the notification names a destroyed queue");
    assert!(!channel.wait(Some(Duration::ZERO)).unwrap(), "the descriptor is readable without a notification");
    let next = notified(&device, &channel, &pd);
    assert_eq!(channel.next(), Some(next.id()));
}

fn is_readable(channel: &Channel) -> bool {
    poll(&mut [PollFd::new(channel.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() > 0
}

/// The devices have no threads, so a message is handled only in a call of the test. The descriptor shows whether the
/// device has written to its eventfd. If not, the device does not read the eventfd either.
#[test]
fn a_notification_for_a_waiter_costs_no_system_call_on_the_descriptor() {
    let network = VirtualNetwork::new(MemoryOptions { latency_ns: 1000, ..MemoryOptions::default() });
    let open = |last| network.open([10, 0, 0, last].into(), &SoftOptions::default()).unwrap();
    let plan = Plan::rc();
    let (a, b) = (plan.side(&open(1)), open(2));
    let channel = b.create_channel().unwrap();
    let (pd, cq) = (b.create_pd().unwrap(), b.create_cq_on(plan.cq_depth, &channel).unwrap());
    let b = plan.side_on(&pd, &cq, None);
    plan.join(&a, &b);
    let arrive = |wr_id| {
        b.post_recv(wr_id, &[]);
        cq.arm(Notify::Next);
        a.post(wr_id, SendOperation::Send, &[]);
        network.advance_to(network.now_ns() + 2000);
    };
    let finish = |wr_id| {
        b.expect(wr_id);
        network.advance_to(network.now_ns() + 2000);
        a.expect(wr_id);
    };
    for round in 0..3 {
        arrive(round);
        assert!(channel.wait(Some(PATIENCE)).unwrap());
        assert!(!is_readable(&channel), "the descriptor counts the notification of a waiter in round {round}");
        assert!(channel.wait(Some(Duration::ZERO)).unwrap(), "a second wait misses the notification");
        assert_eq!((channel.next(), channel.next()), (Some(cq.id()), None));
        assert!(!channel.wait(Some(Duration::ZERO)).unwrap() && !is_readable(&channel));
        finish(round);
    }
    // Without a waiter, the descriptor counts the notification.
    arrive(3);
    network.drive();
    assert!(is_readable(&channel));
    assert!(channel.wait(Some(PATIENCE)).unwrap());
    assert_eq!((channel.next(), channel.next()), (Some(cq.id()), None));
    assert!(!is_readable(&channel));
    finish(3);
}
