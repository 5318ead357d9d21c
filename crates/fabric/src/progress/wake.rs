//! When the thread sleeps, and who must wake it.
//!
//! What callers leave behind and what the thread sleeps for are published by each side before it
//! looks at the other's, with a fence between: of a caller and the thread that meet, at least one
//! sees the other. Everything is decided here and nothing is waited for, so that a model checker
//! can go through all interleavings.

use std::sync::Arc;

use super::sync::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};

/// No deadline.
pub(super) const NEVER: u64 = u64::MAX;

/// What the thread is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Mode {
    /// It drives, or is about to look around.
    Awake,
    /// It sleeps on the socket.
    Watching,
    /// It sleeps and lets the callers drive.
    Napping,
}

/// The state that callers and the thread share beside the engine.
#[derive(Debug)]
pub(super) struct Wakeups {
    mode: AtomicU8,
    /// When the thread wakes up by itself.
    wakes_ns: AtomicU64,
    /// It wakes up soon enough for any deadline, since callers are active.
    sleeps_briefly: AtomicBool,
    /// The thread wakes up once the link has room.
    watches_room: AtomicBool,
    /// When the engine wants to be driven at the latest.
    deadline_ns: AtomicU64,
    /// The link is full: something waits for room.
    link_full: AtomicBool,
    last_poll_found_nothing: AtomicBool,
    /// Notifications that are armed.
    armed: Arc<AtomicUsize>,
    /// Callers that drive while they wait for a notification.
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

    /// Notes what the engine has left to do. This must be called with the engine's lock held:
    /// otherwise an older state could replace a newer one. True if anything changed; then
    /// [`must_kick`](Self::must_kick) is to be asked, which can wait until the lock is released.
    #[inline]
    pub(super) fn leave(&self, deadline_ns: u64, link_full: bool) -> bool {
        if self.deadline_ns.load(Ordering::Relaxed) == deadline_ns
            && self.link_full.load(Ordering::Relaxed) == link_full
        {
            return false; // whoever left the same saw to it that the thread knows
        }
        self.deadline_ns.store(deadline_ns, Ordering::Relaxed);
        self.link_full.store(link_full, Ordering::Relaxed);
        true
    }

    /// Does the thread sleep past what was left?
    #[inline]
    pub(super) fn must_kick(&self) -> bool {
        fence(Ordering::SeqCst);
        // Awake, it looks at everything before it sleeps; napping, or watching briefly, it looks again
        // soon enough for any deadline.
        let sleeps_past = || {
            !self.sleeps_briefly.load(Ordering::Relaxed)
                && self.deadline_ns.load(Ordering::Relaxed) < self.wakes_ns.load(Ordering::Relaxed)
        };
        self.mode.load(Ordering::Acquire) == Mode::Watching as u8
            && (sleeps_past() || (self.link_full.load(Ordering::Relaxed) && !self.watches_room.load(Ordering::Relaxed)))
    }

    /// A notification was armed: is the thread doing anything but watching?
    pub(super) fn must_kick_for_notification(&self) -> bool {
        fence(Ordering::SeqCst);
        self.mode.load(Ordering::Relaxed) != Mode::Watching as u8
    }

    /// Is the thread sure to look soon?
    #[inline]
    pub(super) fn looks_soon(&self) -> bool {
        self.mode.load(Ordering::Acquire) == Mode::Awake as u8 || self.sleeps_briefly.load(Ordering::Relaxed)
    }

    /// Does the thread sleep on the socket? Whoever held the engine's lock since the thread has prepared that sees it.
    pub(super) fn is_watching(&self) -> bool {
        self.mode.load(Ordering::Relaxed) == Mode::Watching as u8
    }

    #[inline]
    pub(super) fn is_napping(&self) -> bool {
        self.mode.load(Ordering::Relaxed) == Mode::Napping as u8
    }

    /// When the engine wants to be driven at the latest.
    pub(super) fn deadline_ns(&self) -> u64 {
        self.deadline_ns.load(Ordering::Relaxed)
    }

    /// The thread is about to watch the socket: whether to wait for room in the link, too, or
    /// `None` if it must look again instead. It watches briefly if `until_ns` is near enough for
    /// whatever deadline callers leave.
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

    /// The thread is about to nap.
    pub(super) fn start_napping(&self, briefly: bool) {
        self.sleeps_briefly.store(briefly, Ordering::Relaxed);
        self.mode.store(Mode::Napping as u8, Ordering::Release);
    }

    /// The thread woke up, and has taken the kick if there was one.
    pub(super) fn wake_up(&self) {
        self.mode.store(Mode::Awake as u8, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Did the last poll find nothing?
    pub(super) fn found_nothing(&self) -> bool {
        self.last_poll_found_nothing.load(Ordering::Relaxed)
    }

    /// Is a notification armed for which nobody lingers? One that lingers wakes the thread before it sleeps.
    pub(super) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed) > 0 && self.lingering.load(Ordering::Relaxed) == 0
    }

    /// A caller drives until it is notified, or tired of it.
    pub(super) fn begin_lingering(&self) {
        self.lingering.fetch_add(1, Ordering::SeqCst);
    }

    /// It does so no more. If it was not notified, [`must_kick_for_notification`] is to be asked.
    ///
    /// [`must_kick_for_notification`]: Self::must_kick_for_notification
    pub(super) fn end_lingering(&self) {
        self.lingering.fetch_sub(1, Ordering::SeqCst);
    }

    #[inline]
    pub(super) fn note_poll(&self, found_nothing: bool) {
        self.last_poll_found_nothing.store(found_nothing, Ordering::Relaxed);
    }

    /// Counts the notifications that are armed.
    pub(super) fn armed(&self) -> &Arc<AtomicUsize> {
        &self.armed
    }
}
