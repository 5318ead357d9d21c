//! Sleep of a port's thread, and the rules by which callers wake the thread.
//!
//! Callers publish the deadline of the work that they leave, and the thread publishes the time at which it will wake
//! up. Each side publishes its own value, executes a fence, and then reads the other side's value. So if a caller and
//! the thread race, at least one sees the value of the other. The functions of this file never wait, so that a model
//! checker can run all interleavings.

use std::sync::Arc;

use super::sync::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};

/// No deadline.
pub(super) const NEVER: u64 = u64::MAX;

/// Activity of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Mode {
    /// The thread drives the engine, or will check all work before it sleeps.
    Awake,
    /// The thread sleeps until the socket is ready.
    Watching,
    /// The thread sleeps without watching the socket, and callers drive the engine.
    Napping,
}

/// State that callers and the thread share without the engine's lock.
#[derive(Debug)]
pub(super) struct Wakeups {
    mode: AtomicU8,
    /// Time at which the thread wakes up by itself.
    wakes_ns: AtomicU64,
    /// Whether the thread wakes up soon enough for any deadline that callers leave.
    sleeps_briefly: AtomicBool,
    /// Whether the thread also wakes up when the link has room.
    watches_room: AtomicBool,
    /// Deadline of the next pump of the engine.
    deadline_ns: AtomicU64,
    /// Whether packets wait because the link is full.
    link_full: AtomicBool,
    last_poll_found_nothing: AtomicBool,
    /// Number of armed notifications.
    armed: Arc<AtomicUsize>,
    /// Number of callers that drive the engine while they wait for a notification.
    lingering: AtomicUsize,
}

impl Wakeups {
    pub(super) fn new() -> Self {
        Self::sharing(Arc::new(AtomicUsize::new(0)))
    }

    /// Creates the state of an engine that shares the number of armed notifications with other engines of its device.
    pub(super) fn sharing(armed: Arc<AtomicUsize>) -> Self {
        Self {
            mode: AtomicU8::new(Mode::Awake as u8),
            wakes_ns: AtomicU64::new(0),
            sleeps_briefly: AtomicBool::new(false),
            watches_room: AtomicBool::new(false),
            deadline_ns: AtomicU64::new(NEVER),
            link_full: AtomicBool::new(false),
            last_poll_found_nothing: AtomicBool::new(false),
            armed,
            lingering: AtomicUsize::new(0),
        }
    }

    /// Stores the deadline of the engine and whether the link is full. The caller must hold the engine's lock:
    /// otherwise an older state could replace a newer one. Returns true if the deadline is earlier than before, or the
    /// link has become full. Then the caller must call [`must_kick`](Self::must_kick), and may release the lock before.
    #[inline]
    pub(super) fn leave(&self, deadline_ns: u64, link_full: bool) -> bool {
        // Only holders of the lock store these values, so plain loads and stores suffice.
        let before_ns = self.deadline_ns.load(Ordering::Relaxed);
        let was_full = self.link_full.load(Ordering::Relaxed);
        if (before_ns, was_full) == (deadline_ns, link_full) {
            return false; // the caller that stored the same values has informed the thread
        }
        self.deadline_ns.store(deadline_ns, Ordering::Relaxed);
        self.link_full.store(link_full, Ordering::Relaxed);
        // After a later deadline or room in the link, the thread wakes up too early at worst. So the caller needs no
        // fence.
        deadline_ns < before_ns || (link_full && !was_full)
    }

    /// Returns whether the caller must kick the thread, because the thread would sleep beyond the deadline or would not
    /// notice room in the link.
    #[inline]
    pub(super) fn must_kick(&self) -> bool {
        fence(Ordering::SeqCst);
        // An awake thread checks all work before it sleeps, and callers drive the engine while the thread naps. A
        // thread that watches briefly wakes up soon enough for any deadline. So only a thread that watches for longer
        // may need a kick.
        let sleeps_past = || {
            !self.sleeps_briefly.load(Ordering::Relaxed)
                && self.deadline_ns.load(Ordering::Relaxed) < self.wakes_ns.load(Ordering::Relaxed)
        };
        self.mode.load(Ordering::Acquire) == Mode::Watching as u8
            && (sleeps_past() || (self.link_full.load(Ordering::Relaxed) && !self.watches_room.load(Ordering::Relaxed)))
    }

    /// Returns whether the caller must kick the thread for a newly armed notification. This is so unless the thread
    /// watches the socket.
    pub(super) fn must_kick_for_notification(&self) -> bool {
        fence(Ordering::SeqCst);
        self.mode.load(Ordering::Relaxed) != Mode::Watching as u8
    }

    /// Returns whether the thread is awake or will wake up soon.
    #[inline]
    pub(super) fn looks_soon(&self) -> bool {
        self.mode.load(Ordering::Acquire) == Mode::Awake as u8 || self.sleeps_briefly.load(Ordering::Relaxed)
    }

    /// Returns whether the thread watches the socket. If the thread has prepared its sleep under the engine's lock, a
    /// caller that takes the lock later reads the current value.
    pub(super) fn is_watching(&self) -> bool {
        self.mode.load(Ordering::Relaxed) == Mode::Watching as u8
    }

    #[inline]
    pub(super) fn is_napping(&self) -> bool {
        self.mode.load(Ordering::Relaxed) == Mode::Napping as u8
    }

    /// Returns the deadline of the next pump of the engine.
    pub(super) fn deadline_ns(&self) -> u64 {
        self.deadline_ns.load(Ordering::Relaxed)
    }

    /// Records that the thread is about to watch the socket. Returns whether the thread must also wait for room in the
    /// link. Returns `None` if the thread must not sleep, because a caller has left work with an earlier deadline.
    /// `briefly` means that `until_ns` is soon enough for any deadline that callers leave.
    pub(super) fn start_watching(&self, until_ns: u64, briefly: bool) -> Option<bool> {
        let room = self.link_full.load(Ordering::Relaxed);
        self.wakes_ns.store(until_ns, Ordering::Relaxed);
        self.sleeps_briefly.store(briefly, Ordering::Relaxed);
        self.watches_room.store(room, Ordering::Relaxed);
        self.mode.store(Mode::Watching as u8, Ordering::Release);
        fence(Ordering::SeqCst);
        let overtaken =
            self.deadline_ns.load(Ordering::Relaxed) < until_ns || (self.link_full.load(Ordering::Relaxed) && !room);
        (!overtaken).then_some(room)
    }

    /// Records that the thread is about to nap.
    pub(super) fn start_napping(&self, briefly: bool) {
        self.sleeps_briefly.store(briefly, Ordering::Relaxed);
        self.mode.store(Mode::Napping as u8, Ordering::Release);
    }

    /// Records that the thread woke up. The thread must have reset the kick before.
    pub(super) fn wake_up(&self) {
        self.mode.store(Mode::Awake as u8, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Returns whether the last poll found nothing.
    pub(super) fn found_nothing(&self) -> bool {
        self.last_poll_found_nothing.load(Ordering::Relaxed)
    }

    /// Returns whether a notification is armed and no caller lingers. A lingering caller wakes the thread before the
    /// caller sleeps, so its notification does not count.
    pub(super) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed) > 0 && self.lingering.load(Ordering::Relaxed) == 0
    }

    /// Records that a caller begins to linger: to drive the engine until it is notified or its time is over.
    pub(super) fn begin_lingering(&self) {
        self.lingering.fetch_add(1, Ordering::SeqCst);
    }

    /// Records that a caller has stopped lingering. If the caller was not notified, it must call
    /// [`must_kick_for_notification`].
    ///
    /// [`must_kick_for_notification`]: Self::must_kick_for_notification
    pub(super) fn end_lingering(&self) {
        self.lingering.fetch_sub(1, Ordering::SeqCst);
    }

    #[inline]
    pub(super) fn note_poll(&self, found_nothing: bool) {
        self.last_poll_found_nothing.store(found_nothing, Ordering::Relaxed);
    }

    /// Returns the number of armed notifications.
    pub(super) fn armed(&self) -> &Arc<AtomicUsize> {
        &self.armed
    }
}
