//! A model checker runs all interleavings of threads that add entries to a list and threads that linger or sleep until
//! an entry exists. No thread may sleep while an entry waits, and the eventfd must count each entry that no waiting
//! thread takes.

use doorbell_testing::model;
#[allow(dead_code)]
#[path = "../../src/signal/tally.rs"]
mod tally;

mod sync {
    pub(super) use doorbell_testing::model::{AtomicU32, AtomicUsize, Ordering};
}

use loom::sync::{Arc, Condvar, Mutex};
use model::{AtomicU32, Ordering};
use tally::{Signals, Tally};

/// Maximum number of preemptions in one run of the model checker.
const PREEMPTIONS: usize = 3;

/// Model of the kernel: the counter of an eventfd, and a queue of threads that sleep on a word.
struct Kernel {
    counted: Mutex<u32>,
    queue: Mutex<()>,
    woken: Condvar,
}

impl Kernel {
    fn new() -> Self {
        Self { counted: Mutex::new(0), queue: Mutex::new(()), woken: Condvar::new() }
    }

    /// Models `futex_wait`: compares the word under the lock of the queue, and sleeps if the word equals `value`.
    fn wait(&self, word: &AtomicU32, value: u32) {
        let queue = self.queue.lock().unwrap();
        if word.load(Ordering::SeqCst) == value {
            drop(self.woken.wait(queue).unwrap());
        }
    }
}

impl Signals for Kernel {
    fn signal(&self) {
        *self.counted.lock().unwrap() += 1;
    }

    fn take(&self) {
        let mut counted = self.counted.lock().unwrap();
        *counted = counted.saturating_sub(1);
    }

    fn wake(&self, _word: &AtomicU32) {
        let _queue = self.queue.lock().unwrap();
        self.woken.notify_one();
    }
}

struct World {
    tally: Tally<Kernel>,
    /// Number of entries in the list.
    list: Mutex<u32>,
}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self { tally: Tally::new(Kernel::new()), list: Mutex::new(0) })
    }

    fn add(&self) {
        let mut list = self.list.lock().unwrap();
        *list += 1;
        self.tally.add();
    }

    fn try_take(&self) -> bool {
        let mut list = self.list.lock().unwrap();
        let is_there = *list > 0;
        if is_there {
            *list -= 1;
            self.tally.remove();
        }
        is_there
    }

    /// Sleeps until an entry exists, and takes it. The model checker fails a run in which the thread sleeps forever.
    fn take(&self) {
        loop {
            let added = self.tally.added();
            if self.try_take() {
                return;
            }
            let word = self.tally.begin();
            self.tally.signals.wait(word, added);
            self.tally.end();
        }
    }

    /// Looks once for an entry, and then takes it or sleeps.
    fn linger_and_take(&self) {
        self.tally.linger();
        let has_found = *self.list.lock().unwrap() > 0;
        if has_found {
            self.tally.end_lingering();
        } else {
            self.tally.end_lingering_in_vain();
        }
        self.take();
    }

    /// Lingers and then takes no entry.
    fn linger_in_vain(&self) {
        self.tally.linger();
        self.tally.end_lingering_in_vain();
    }

    /// Sleeps and then takes no entry, as a cancelled thread does.
    fn sleep_in_vain(&self, is_interrupted: bool) {
        let word = self.tally.begin();
        if !is_interrupted {
            self.tally.signals.wait(word, 0); // as if the check came before the first entry
        }
        self.tally.end_in_vain();
    }

    /// Checks that the eventfd counts all entries of the list. No thread may sleep during this check.
    fn assert_counted(&self) {
        assert_eq!(*self.tally.signals.counted.lock().unwrap(), *self.list.lock().unwrap());
    }
}

fn check(run: impl Fn(&Arc<World>) + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS);
    model.check(move || {
        let world = World::new();
        run(&world);
        world.assert_counted();
    });
}

fn spawn(world: &Arc<World>, run: impl FnOnce(&World) + 'static) -> loom::thread::JoinHandle<()> {
    let world = Arc::clone(world);
    loom::thread::spawn(move || run(&world))
}

#[test]
fn a_thread_that_sleeps_takes_the_entry() {
    check(|world| {
        let sleeper = spawn(world, World::take);
        world.add();
        sleeper.join().unwrap();
    });
}

#[test]
fn two_threads_that_sleep_take_two_entries() {
    check(|world| {
        let sleepers = [spawn(world, World::take), spawn(world, World::take)];
        world.add();
        world.add();
        sleepers.into_iter().for_each(|sleeper| sleeper.join().unwrap());
    });
}

#[test]
fn the_descriptor_counts_an_entry_that_no_thread_takes() {
    check(|world| {
        let cancelled = spawn(world, |world| world.sleep_in_vain(true));
        world.add();
        cancelled.join().unwrap();
    });
}

#[test]
fn a_thread_that_lingers_takes_the_entry() {
    check(|world| {
        let lingerer = spawn(world, World::linger_and_take);
        world.add();
        lingerer.join().unwrap();
    });
}

#[test]
fn a_thread_that_lingers_leaves_the_entry_to_another_thread() {
    check(|world| {
        let lingerer = spawn(world, World::linger_in_vain);
        let sleeper = spawn(world, World::take);
        world.add();
        lingerer.join().unwrap();
        sleeper.join().unwrap();
    });
}

#[test]
fn the_descriptor_counts_an_entry_that_a_lingering_thread_does_not_take() {
    check(|world| {
        let lingerer = spawn(world, World::linger_in_vain);
        world.add();
        lingerer.join().unwrap();
    });
}

#[test]
fn a_thread_that_is_cancelled_wakes_the_next() {
    check(|world| {
        let cancelled = spawn(world, |world| world.sleep_in_vain(false));
        let sleeper = spawn(world, World::take);
        world.add();
        sleeper.join().unwrap();
        // Either thread may have taken the first entry. The other thread still sleeps, and gets this second entry.
        world.add();
        cancelled.join().unwrap();
    });
}
