//! Test of all interleavings of threads that open or close descriptors and threads that fork. No thread may fork while
//! another thread has opened a descriptor, but has not yet put it on the list of descriptors that forked children give
//! up. The same holds between closing a descriptor and taking it off the list.

#[allow(dead_code)] // the models do not use the child's code
#[path = "../../src/own_process/gate.rs"]
mod gate;
use doorbell_testing::model;

mod sync {
    pub(super) use doorbell_testing::model::{AtomicU32, Ordering};
}

use gate::Gate;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use model::AtomicU32;

/// Maximum number of preemptions in one interleaving.
const PREEMPTIONS: usize = 3;

/// Maximum number of naps of a thread. Without this limit, two threads that wait for each other in turn would cause an
/// endless interleaving.
const NAPS: usize = 2;

struct World {
    gate: Gate,
    /// Number of open descriptors, and number of listed descriptors.
    descriptors: UnsafeCell<(u32, u32)>,
}

// SAFETY: the model checks that the accesses to the cell are ordered.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

/// Returns a function that models a nap: the function decrements `left`, and returns false once `left` is 0.
fn nap(left: &mut usize) -> impl FnMut() -> bool {
    || {
        loom::thread::yield_now();
        *left = left.saturating_sub(1);
        *left > 0
    }
}

impl World {
    fn new() -> Arc<Self> {
        let gate = Gate { opening: AtomicU32::new(0), forking: AtomicU32::new(0) };
        Arc::new(Self { gate, descriptors: UnsafeCell::new((1, 1)) })
    }

    /// Models a thread that opens a descriptor and puts it on the list. Does nothing if the thread has used up its
    /// naps.
    fn open(&self) {
        let mut left = NAPS;
        self.gate.begin_opening(nap(&mut left));
        if left > 0 {
            // SAFETY: the model checker reports two accesses that are not ordered.
            self.descriptors.with_mut(|descriptors| unsafe { (*descriptors).0 += 1 });
            // SAFETY: as above.
            self.descriptors.with_mut(|descriptors| unsafe { (*descriptors).1 += 1 });
        }
        self.gate.end_opening();
    }

    /// Models a thread that closes a descriptor and takes it off the list. Does nothing if the thread has used up its
    /// naps.
    fn close(&self) {
        let mut left = NAPS;
        self.gate.begin_opening(nap(&mut left));
        if left > 0 {
            // SAFETY: as above.
            self.descriptors.with_mut(|descriptors| unsafe { (*descriptors).0 -= 1 });
            // SAFETY: as above.
            self.descriptors.with_mut(|descriptors| unsafe { (*descriptors).1 -= 1 });
        }
        self.gate.end_opening();
    }

    /// Models a thread that forks. Checks that each open descriptor is on the list, unless the thread has used up its
    /// naps.
    fn fork(&self) {
        let mut left = NAPS;
        self.gate.begin_forking(nap(&mut left));
        if left > 0 {
            // SAFETY: as above.
            let (open, listed) = self.descriptors.with(|descriptors| unsafe { *descriptors });
            assert_eq!(open, listed, "the child keeps a descriptor");
        }
        self.gate.end_forking();
    }
}

fn check(first: fn(&World), second: fn(&World)) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS);
    model.check(move || {
        let world = World::new();
        let spawned = {
            let world = Arc::clone(&world);
            loom::thread::spawn(move || first(&world))
        };
        second(&world);
        spawned.join().unwrap();
    });
}

#[test]
fn a_thread_that_forks_finds_each_descriptor_on_the_list() {
    check(World::open, World::fork);
}

#[test]
fn a_thread_that_opens_waits_for_one_that_forks() {
    check(World::fork, World::open);
}

#[test]
fn a_thread_that_forks_finds_no_descriptor_half_closed() {
    check(World::close, World::fork);
}

#[test]
fn a_thread_that_closes_waits_for_one_that_forks() {
    check(World::fork, World::close);
}
