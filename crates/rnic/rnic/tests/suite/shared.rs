//! Model checks of all interleavings of engines that take receives from a shared receive queue, and of a program that
//! fills the queue and arms its limit. No receive may be lost or taken twice, and the limit must raise one event.

#[allow(dead_code, unreachable_pub)] // the models use a part of the queue
#[path = "../../src/shared.rs"]
mod shared;

mod sync {
    pub(super) use doorbell_testing::model::{ArrayQueue, AtomicUsize, Ordering};
    pub(super) use loom::sync::Mutex;
    pub(super) use loom::sync::atomic::AtomicBool;
}

/// Replacement for the receives of the crate: a receive is only a number.
pub(crate) mod work {
    #[derive(Debug)]
    pub(crate) struct RecvWqe(pub(crate) u64);
}

use doorbell_verbs_core::{AsyncEvent, EventQueue, PdId};
use loom::sync::Arc;
use shared::{ReceiveSource as _, SharedReceiveQueue};
use work::RecvWqe;

const ID: u32 = 3;

fn queue(depth: usize, receives: u64) -> (Arc<SharedReceiveQueue>, std::sync::Arc<EventQueue>) {
    let events = std::sync::Arc::new(EventQueue::new(None));
    let queue = SharedReceiveQueue::new(ID, PdId(0), depth, 1, std::sync::Arc::clone(&events));
    (1..=receives).for_each(|number| queue.push(RecvWqe(number), false).unwrap());
    (Arc::new(queue), events)
}

/// Takes a receive for a message that uses it.
fn use_one(queue: &SharedReceiveQueue) -> Option<u64> {
    let RecvWqe(number) = queue.take()?;
    queue.used();
    Some(number)
}

/// Arms the limit while an engine takes the only receive. `prepare` runs on the queue before both.
fn arm_while_the_last_is_taken(prepare: fn(&SharedReceiveQueue)) {
    loom::model(move || {
        let (queue, events) = queue(2, 1);
        prepare(&queue);
        let engine = loom::thread::spawn({
            let queue = Arc::clone(&queue);
            move || assert_eq!(use_one(&queue), Some(1))
        });
        queue.arm_limit(1);
        engine.join().unwrap();
        assert_eq!(
            events.pop(),
            Some(AsyncEvent::SrqLimitReached(ID)),
            "the limit raised no event although no receive remains"
        );
        assert_eq!((events.pop(), queue.limit()), (None, 0));
    });
}

#[test]
fn arming_during_the_last_take_raises_one_event() {
    arm_while_the_last_is_taken(|_| {});
}

#[test]
fn arming_while_a_returned_receive_is_taken_raises_one_event() {
    arm_while_the_last_is_taken(|queue| {
        let returned = queue.take().unwrap();
        queue.give_back(returned);
    });
}

#[test]
fn receives_that_come_back_are_taken_once() {
    const RECEIVES: u64 = 2;
    loom::model(|| {
        let (queue, _events) = queue(2, 1);
        let drops_a_message = loom::thread::spawn({
            let queue = Arc::clone(&queue);
            move || {
                let taken = queue.take();
                taken.into_iter().for_each(|wqe| queue.give_back(wqe));
                use_one(&queue).unwrap_or(0)
            }
        });
        let other = loom::thread::spawn({
            let queue = Arc::clone(&queue);
            move || use_one(&queue).unwrap_or(0)
        });
        queue.push(RecvWqe(2), false).unwrap();
        let mut taken = drops_a_message.join().unwrap() + other.join().unwrap();
        while let Some(number) = use_one(&queue) {
            taken += number;
        }
        assert_eq!(taken, (1..=RECEIVES).sum());
        assert!(queue.is_empty());
    });
}

#[test]
fn two_concurrent_posts_fill_one_free_slot_once() {
    loom::model(|| {
        let (queue, _events) = queue(2, 1);
        let posts = |number| {
            let queue = Arc::clone(&queue);
            loom::thread::spawn(move || queue.push(RecvWqe(number), false).is_ok())
        };
        let accepted = [posts(2), posts(3)].map(|poster| poster.join().unwrap());
        assert_eq!(accepted.iter().filter(|&&accepted| accepted).count(), 1);
        assert_eq!(queue.len(), 2);
    });
}

#[test]
fn receives_that_come_back_at_once_all_count() {
    loom::model(|| {
        let (queue, _events) = queue(2, 2);
        let drops_a_message = || {
            let (queue, taken) = (Arc::clone(&queue), queue.take().unwrap());
            loom::thread::spawn(move || queue.give_back(taken))
        };
        [drops_a_message(), drops_a_message()].into_iter().for_each(|dropping| dropping.join().unwrap());
        assert_eq!(queue.len(), 2);
    });
}
