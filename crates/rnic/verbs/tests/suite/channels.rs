//! Completion queues that are created and destroyed on one channel must not mix up their notifications.

use doorbell_verbs_conformance::common;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::*;
use doorbell_verbs::soft::SoftOptions;
use doorbell_verbs::{Channel, Cq, Device, Notify, Pd};

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
