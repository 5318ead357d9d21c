//! Test of all interleavings of threads that call `flush_before_exit` and a port's thread. When a request is met, all
//! packets that were held back before the request must be sent, and their records must be written.

#[allow(dead_code)]
#[path = "../../src/progress/flush.rs"]
mod flush;

mod sync {
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering};
}

use flush::Flushes;
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex};

/// Maximum number of preemptions in one interleaving.
const PREEMPTIONS: usize = 3;

struct World {
    flushes: Flushes,
    /// Number of acknowledgements that the engine holds back.
    held: Mutex<u32>,
    /// Number of acknowledgements whose packets were sent and whose records were written.
    left: UnsafeCell<u32>,
    /// Model of the eventfd. True from a kick until the thread resets it.
    kicked: Mutex<bool>,
    changed: Condvar,
}

// SAFETY: the model checks that the accesses to the cell are ordered.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            flushes: Flushes::new(),
            held: Mutex::new(0),
            left: UnsafeCell::new(0),
            kicked: Mutex::new(false),
            changed: Condvar::new(),
        })
    }

    /// Models the part of `flush_before_exit` that concerns a port.
    fn ask(&self) -> u64 {
        *self.held.lock().unwrap() += 1;
        let request = self.flushes.ask();
        *self.kicked.lock().unwrap() = true;
        self.changed.notify_one();
        request
    }

    /// Models the port's thread, until it has met this number of requests.
    fn run(&self, requests: u64) {
        let mut all = 0;
        while !self.flushes.is_done(requests) {
            if self.flushes.pending().is_some() {
                let mut held = self.held.lock().unwrap();
                if let Some(request) = self.flushes.pending() {
                    all += std::mem::take(&mut *held);
                    // SAFETY: the model checker reports two accesses that are not ordered.
                    self.left.with_mut(|left| unsafe { *left = all });
                    self.flushes.meet(request);
                }
                continue;
            }
            let mut kicked = self.kicked.lock().unwrap();
            while !*kicked {
                kicked = self.changed.wait(kicked).unwrap();
            }
            *kicked = false;
        }
    }
}

#[test]
fn held_records_have_left_when_a_request_is_done() {
    loom::model(|| {
        let world = World::new();
        let thread = {
            let world = Arc::clone(&world);
            loom::thread::spawn(move || world.run(1))
        };
        let request = world.ask();
        while !world.flushes.is_done(request) {
            loom::thread::yield_now();
        }
        // SAFETY: as above.
        world.left.with(|left| assert_eq!(unsafe { *left }, 1));
        thread.join().unwrap();
    });
}

#[test]
fn two_threads_that_end_the_process_are_both_answered() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS);
    model.check(|| {
        let world = World::new();
        let thread = {
            let world = Arc::clone(&world);
            loom::thread::spawn(move || world.run(2))
        };
        let other = {
            let world = Arc::clone(&world);
            loom::thread::spawn(move || world.ask())
        };
        let requests = [world.ask(), other.join().unwrap()];
        thread.join().unwrap();
        assert_eq!(requests.into_iter().sum::<u64>(), 3, "two requests have the same number");
        assert_eq!(*world.held.lock().unwrap(), 0);
    });
}
