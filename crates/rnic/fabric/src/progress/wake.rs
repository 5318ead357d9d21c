//! Sleep of the thread, and the duty of callers to wake it.
//!
//! Callers publish the work that they leave, and the thread publishes the time of its wake-up. Each side publishes
//! before it reads the other's value, with a fence between. So if a caller and the thread race, at least one sees the
//! other. These functions only decide and never wait, so that a model checker can run all interleavings.

use std::sync::Arc;

use super::sync::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};

/// No deadline.
pub(super) const NEVER: u64 = u64::MAX;

/// Activity of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Mode {
    /// The thread drives the engine, or is about to look at everything.
    Awake,
    /// The thread sleeps on the socket.
    Watching,
    /// The thread sleeps and lets the callers drive.
    Napping,
}

/// State that callers and the thread share outside the engine's lock.
#[derive(Debug)]
pub(super) struct Wakeups {
    mode: AtomicU8,
    /// Time at which the thread wakes up by itself.
    wakes_ns: AtomicU64,
    /// Whether the thread wakes up soon enough for any deadline, since callers are active.
    sleeps_briefly: AtomicBool,
    /// Whether the thread wakes up once the link has room.
    watches_room: AtomicBool,
    /// Deadline of the next pump of the engine.
    deadline_ns: AtomicU64,
    /// Whether the link is full and packets wait for room.
    link_full: AtomicBool,
    last_poll_found_nothing: AtomicBool,
    /// Number of armed notifications.
    armed: Arc<AtomicUsize>,
    /// Number of callers that drive the engine while they wait for a notification.
    lingering: AtomicUsize,
}

impl Wakeups {
    pub(super) fn new() -> Self {
        Self {
            mode: AtomicU8::new(Mode::Awake as u8),
            wakes_ns: AtomicU64::new(0),
            sleeps_briefly: AtomicBool::new(false),
            watches_room: AtomicBool::new(false),
            deadline_ns: AtomicU64::new(NEVER),
            link_full: AtomicBool::new(false),
            last_poll_found_nothing: AtomicBool::new(false),
            armed: Arc::new(AtomicUsize::new(0)),
            lingering: AtomicUsize::new(0),
        }
    }

    /// Stores the remaining work of the engine. The caller must hold the engine's lock: otherwise an older state
    /// could replace a newer one. Returns true if anything changed. Then the caller must call
    /// [`must_kick`](Self::must_kick), and may release the lock before.
    #[inline]
    pub(super) fn leave(&self, deadline_ns: u64, link_full: bool) -> bool {
        if self.deadline_ns.load(Ordering::Relaxed) == deadline_ns
            && self.link_full.load(Ordering::Relaxed) == link_full
        {
            return false; // the caller that stored the same values has informed the thread
        }
        self.deadline_ns.store(deadline_ns, Ordering::Relaxed);
        self.link_full.store(link_full, Ordering::Relaxed);
        true
    }

    /// Returns whether the thread would sleep past the remaining work.
    #[inline]
    pub(super) fn must_kick(&self) -> bool {
        fence(Ordering::SeqCst);
        // Awake, the thread looks at everything before it sleeps. Napping, or watching briefly, it looks again soon
        // enough for any deadline.
        let sleeps_past = || {
            !self.sleeps_briefly.load(Ordering::Relaxed)
                && self.deadline_ns.load(Ordering::Relaxed) < self.wakes_ns.load(Ordering::Relaxed)
        };
        self.mode.load(Ordering::Acquire) == Mode::Watching as u8
            && (sleeps_past() || (self.link_full.load(Ordering::Relaxed) && !self.watches_room.load(Ordering::Relaxed)))
    }

    /// Returns whether the thread must be kicked for a newly armed notification: it is not watching.
    pub(super) fn must_kick_for_notification(&self) -> bool {
        fence(Ordering::SeqCst);
        self.mode.load(Ordering::Relaxed) != Mode::Watching as u8
    }

    /// Returns whether the thread is sure to look soon.
    #[inline]
    pub(super) fn looks_soon(&self) -> bool {
        self.mode.load(Ordering::Acquire) == Mode::Awake as u8 || self.sleeps_briefly.load(Ordering::Relaxed)
    }

    /// Returns whether the thread sleeps on the socket. A thread that has held the engine's lock since the
    /// preparation of that sleep sees it.
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

    /// Records that the thread is about to watch the socket. Returns whether it must also wait for room in the link,
    /// or `None` if it must look again instead. `briefly` means that `until_ns` is soon enough for any deadline that
    /// callers leave.
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

    /// Records that the thread woke up, and that it has reset the kick.
    pub(super) fn wake_up(&self) {
        self.mode.store(Mode::Awake as u8, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Returns whether the last poll found nothing.
    pub(super) fn found_nothing(&self) -> bool {
        self.last_poll_found_nothing.load(Ordering::Relaxed)
    }

    /// Returns whether a notification is armed and no caller lingers. A caller that lingers wakes the thread before
    /// it sleeps.
    pub(super) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed) > 0 && self.lingering.load(Ordering::Relaxed) == 0
    }

    /// Records that a caller drives the engine until it is notified or its time is over.
    pub(super) fn begin_lingering(&self) {
        self.lingering.fetch_add(1, Ordering::SeqCst);
    }

    /// Records the end of that. If the caller was not notified, it must call [`must_kick_for_notification`].
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
