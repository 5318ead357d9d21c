//! Model checks of all interleavings of an engine that adds completions and of threads that reap them. Each completion
//! must be reaped once, and a program that sleeps until a notification must wake up.

#[allow(dead_code, unreachable_pub)] // the models use a part of the queue
#[path = "../../src/completion.rs"]
mod completion;

mod sync {
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
    pub(super) use loom::sync::{Mutex, MutexGuard};
}

use completion::{CompletionQueue, CompletionSink as _};
use doorbell_verbs_core::{Completion, Notify, Overrun};
use loom::sync::{Arc, Condvar, Mutex};

fn numbered(wr_id: u64) -> Completion {
    Completion { wr_id, ..Completion::default() }
}

/// A completion channel, which keeps each notification until a thread takes it.
struct Channel {
    notifications: Mutex<usize>,
    changed: Condvar,
}

impl Channel {
    /// Creates a channel, and a queue that notifies the channel.
    fn with_queue(depth: usize) -> (Arc<Self>, Arc<CompletionQueue>) {
        let channel = Arc::new(Self { notifications: Mutex::new(0), changed: Condvar::new() });
        let notified = Arc::clone(&channel);
        let notifier = std::sync::Arc::new(move || {
            *notified.notifications.lock().unwrap() += 1;
            notified.changed.notify_one();
        });
        (channel, Arc::new(CompletionQueue::new(depth, Some(notifier))))
    }

    /// Sleeps until a notification arrives. If none arrives, the model checker fails the run.
    fn wait(&self) {
        let mut notifications = self.notifications.lock().unwrap();
        while *notifications == 0 {
            notifications = self.changed.wait(notifications).unwrap();
        }
        *notifications -= 1;
    }
}

#[test]
fn a_program_that_polls_between_arming_and_sleeping_is_notified() {
    sleeps_until_notified(true);
}

#[test]
fn a_program_that_sleeps_as_soon_as_it_has_armed_is_notified() {
    sleeps_until_notified(false);
}

fn sleeps_until_notified(polls_again: bool) {
    const COMPLETIONS: u64 = 2;
    loom::model(move || {
        let (channel, queue) = Channel::with_queue(4);
        let engine = loom::thread::spawn({
            let queue = Arc::clone(&queue);
            move || (1..=COMPLETIONS).for_each(|number| queue.push_all(&[numbered(number)]).unwrap())
        });
        let mut reaped = 0;
        // The closure returns whether all completions are reaped.
        let mut reap_all = || {
            let mut out = [Completion::default()];
            while queue.poll(&mut out).unwrap() > 0 {
                reaped += 1;
                assert_eq!(out[0].wr_id, reaped);
            }
            reaped == COMPLETIONS
        };
        while !reap_all() {
            queue.request_notification(Notify::Next);
            if polls_again && reap_all() {
                break;
            }
            channel.wait();
        }
        engine.join().unwrap();
        assert!(queue.is_empty());
    });
}

#[test]
fn completions_from_before_an_overrun_are_reaped() {
    loom::model(|| {
        let queue = Arc::new(CompletionQueue::new(1, None));
        let engine = loom::thread::spawn({
            let queue = Arc::clone(&queue);
            move || assert_eq!(queue.push_all(&[numbered(1), numbered(2)]), Err(Overrun))
        });
        let mut reaped = 0;
        loop {
            match queue.poll(&mut [Completion::default()]) {
                Ok(0) => loom::thread::yield_now(),
                Ok(count) => reaped += count,
                Err(Overrun) => break,
            }
        }
        engine.join().unwrap();
        assert_eq!(reaped, 1, "{} completions were not reaped", queue.len());
    });
}

#[test]
fn two_threads_reap_each_completion_once() {
    const COMPLETIONS: u64 = 2;
    loom::model(|| {
        let queue = Arc::new(CompletionQueue::new(4, None));
        let reap = |queue: &CompletionQueue| {
            let mut out = [Completion::default(); 2];
            let count = queue.poll(&mut out).unwrap();
            out[..count].iter().map(|completion| completion.wr_id).sum::<u64>()
        };
        let reapers = [0; 2].map(|_| {
            let queue = Arc::clone(&queue);
            loom::thread::spawn(move || reap(&queue))
        });
        (1..=COMPLETIONS).for_each(|number| queue.push_all(&[numbered(number)]).unwrap());
        let reaped: u64 = reapers.into_iter().map(|reaper| reaper.join().unwrap()).sum();
        assert_eq!(reaped + reap(&queue), (1..=COMPLETIONS).sum());
        assert!(queue.is_empty());
    });
}
