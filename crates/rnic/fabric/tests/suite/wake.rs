//! Test of all interleavings of callers that leave work and a thread that goes to sleep. In each interleaving, the
//! thread must do the work. If all threads sleep, the model checker reports a deadlock.

#[allow(dead_code)] // the models do not use all parts
#[path = "../../src/progress/wake.rs"]
mod wake;

mod sync {
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};
}

use loom::sync::atomic::Ordering;
use loom::sync::{Arc, Condvar, Mutex};
use wake::{NEVER, Wakeups};

/// Model of the eventfd. A kick stays until the thread resets it.
struct Kick {
    kicked: Mutex<bool>,
    changed: Condvar,
}

struct World {
    wakeups: Wakeups,
    kick: Kick,
    /// State of the engine: its deadline, and whether its link is full.
    engine: Mutex<(u64, bool)>,
}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            wakeups: Wakeups::new(),
            kick: Kick { kicked: Mutex::new(false), changed: Condvar::new() },
            engine: Mutex::new((NEVER, false)),
        })
    }

    fn kick(&self) {
        *self.kick.kicked.lock().unwrap() = true;
        self.kick.changed.notify_one();
    }

    /// Models a sleep of the thread that only a kick ends.
    fn sleep(&self) {
        let mut kicked = self.kick.kicked.lock().unwrap();
        while !*kicked {
            kicked = self.kick.changed.wait(kicked).unwrap();
        }
        *kicked = false;
    }

    /// Models a caller that changes the engine and then calls `Wakeups::leave`.
    fn call(&self, change: impl FnOnce(&mut (u64, bool))) {
        let mut engine = self.engine.lock().unwrap();
        change(&mut engine);
        let changed = self.wakeups.leave(engine.0, engine.1);
        drop(engine);
        if changed && self.wakeups.must_kick() {
            self.kick();
        }
    }
}

#[test]
fn a_deadline_is_never_slept_past() {
    const DEADLINE_NS: u64 = 5;
    loom::model(|| {
        let world = World::new();
        let callers = [
            loom::thread::spawn({
                let world = Arc::clone(&world);
                move || world.call(|engine| engine.0 = DEADLINE_NS)
            }),
            // Another caller changes nothing, but also calls `leave` with the state that it has read.
            loom::thread::spawn({
                let world = Arc::clone(&world);
                move || world.call(|_| ())
            }),
        ];
        // Model the thread: it sleeps again and again, until the next sleep would end at the callers' deadline.
        loop {
            let until_ns = world.wakeups.deadline_ns();
            if until_ns == DEADLINE_NS {
                break;
            }
            if world.wakeups.start_watching(until_ns, false).is_some() {
                world.sleep();
            }
            world.wakeups.wake_up();
        }
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        assert_eq!(world.wakeups.deadline_ns(), DEADLINE_NS, "an older state replaced the newer one");
    });
}

#[test]
fn a_deadline_that_another_caller_postpones_is_never_slept_past() {
    const DEADLINES_NS: [u64; 2] = [5, 7];
    loom::model(|| {
        let world = World::new();
        let caller = loom::thread::spawn({
            let world = Arc::clone(&world);
            move || {
                let needs_more = world.wakeups.leave(DEADLINES_NS[0], false);
                // Before the caller kicks, another holder of the lock postpones the deadline and kicks nothing.
                assert!(!world.wakeups.leave(DEADLINES_NS[1], false));
                if needs_more && world.wakeups.must_kick() {
                    world.kick();
                }
            }
        });
        loop {
            let until_ns = world.wakeups.deadline_ns();
            if DEADLINES_NS.contains(&until_ns) {
                break;
            }
            if world.wakeups.start_watching(until_ns, false).is_some() {
                world.sleep();
            }
            world.wakeups.wake_up();
        }
        caller.join().unwrap();
    });
}

#[test]
fn a_full_link_is_watched_for_room() {
    a_full_link(false);
}

#[test]
fn a_briefly_watching_thread_sees_room_in_a_full_link() {
    a_full_link(true);
}

fn a_full_link(briefly: bool) {
    loom::model(move || {
        let world = World::new();
        let caller = loom::thread::spawn({
            let world = Arc::clone(&world);
            move || world.call(|engine| engine.1 = true)
        });
        loop {
            match world.wakeups.start_watching(world.wakeups.deadline_ns(), briefly) {
                Some(true) => break,
                Some(false) => world.sleep(),
                None => {}
            }
            world.wakeups.wake_up();
        }
        caller.join().unwrap();
    });
}

#[test]
fn arming_a_notification_interrupts_a_nap() {
    sleeps_until_notified(|world| {
        world.wakeups.armed().fetch_add(1, Ordering::SeqCst);
    });
}

#[test]
fn sleeping_after_lingering_interrupts_a_nap() {
    sleeps_until_notified(|world| {
        world.wakeups.begin_lingering();
        world.wakeups.armed().fetch_add(1, Ordering::SeqCst);
        world.wakeups.note_poll(true);
        world.wakeups.end_lingering();
    });
}

/// Models a caller that has polled and then sleeps. The thread must handle the packet that arrives.
fn sleeps_until_notified(goes_to_sleep: impl Fn(&World) + Send + Sync + Copy + 'static) {
    loom::model(move || {
        let world = World::new();
        world.wakeups.note_poll(true);
        let caller = loom::thread::spawn({
            let world = Arc::clone(&world);
            move || {
                goes_to_sleep(&world);
                if world.wakeups.must_kick_for_notification() {
                    world.kick();
                }
            }
        });
        // The socket always contains a packet, so watching the socket ends immediately.
        loop {
            let _ = world.wakeups.start_watching(NEVER, false);
            world.wakeups.wake_up();
            if !world.wakeups.found_nothing() || world.wakeups.is_armed() {
                break; // the thread handles the packet now
            }
            world.wakeups.start_napping(true);
            world.sleep();
            world.wakeups.wake_up();
            if !world.wakeups.found_nothing() || world.wakeups.is_armed() {
                break;
            }
        }
        caller.join().unwrap();
    });
}
