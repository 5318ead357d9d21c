//! Completion queues, from which programs reap completions.
//!
//! In `tests/suite/completion.rs`, a model checker explores all interleavings of the threads that use a completion
//! queue.

use std::collections::VecDeque;

use doorbell_sync::IgnorePoison;

use super::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering};
use doorbell_verbs_core::{Completion, Notifier, Notify, Overrun};
use doorbell_wire::Qpn;

/// Destination of the completions of an engine.
pub trait CompletionSink: Send + Sync {
    /// Adds completions in order.
    ///
    /// # Errors
    ///
    /// The queue has no room for all `completions`, or it has lost completions before, perhaps of another engine. The
    /// queue keeps the first completions that fit and loses the others.
    fn push_all(&self, completions: &[Completion]) -> Result<(), Overrun>;

    /// Returns whether the queue has lost completions.
    fn has_overrun(&self) -> bool;

    /// Returns true to the first caller, which raises the event of the overrun.
    fn claim_overrun(&self) -> bool;

    /// Removes the completions of a queue pair that is destroyed or reset.
    fn purge(&self, qpn: Qpn);

    /// Returns how often a poll of the program found the queue empty. The count may be inexact, but it changes after
    /// each such poll. Callers only compare an earlier count with a later one.
    fn empty_polls(&self) -> u64;
}

/// A completion queue. Any thread can reap completions, without exclusive access to an engine.
pub struct CompletionQueue {
    // Number of entries. `poll` first reads `length` and `overrun`, so a poll of an empty queue takes no lock.
    length: AtomicUsize,
    overrun: AtomicBool,
    /// Whether an engine has claimed the event of the overrun.
    claimed: AtomicBool,
    empty_polls: AtomicU64,
    inner: Mutex<Inner>,
    notifier: Option<Notifier>,
    /// Function that the queue calls whenever an engine adds completions, even if no notification is armed.
    observer: Option<Notifier>,
}

struct Inner {
    depth: usize,
    entries: VecDeque<Completion>,
    armed: Option<Notify>,
    /// The oldest `announced` entries were already in the queue when the most recent notification fired.
    announced: usize,
}

impl std::fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("depth", &self.depth())
            .field("length", &self.len())
            .finish_non_exhaustive()
    }
}

impl CompletionQueue {
    /// Creates a queue of exactly `depth` entries, which calls `notifier` when an armed notification is due.
    pub fn new(depth: usize, notifier: Option<Notifier>) -> Self {
        Self {
            length: AtomicUsize::new(0),
            overrun: AtomicBool::new(false),
            claimed: AtomicBool::new(false),
            empty_polls: AtomicU64::new(0),
            inner: Mutex::new(Inner { depth, entries: VecDeque::new(), armed: None, announced: 0 }),
            notifier,
            observer: None,
        }
    }

    /// Creates a queue like [`new`](Self::new) that also calls `observer` whenever an engine adds completions. With an
    /// observer, a driver can wake the thread that polls the queue, although the thread has armed no notification.
    pub fn observed(depth: usize, notifier: Option<Notifier>, observer: Notifier) -> Self {
        Self { observer: Some(observer), ..Self::new(depth, notifier) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().ignore_poison()
    }

    /// Returns the maximum number of entries.
    pub fn depth(&self) -> usize {
        self.lock().depth
    }

    /// Changes the maximum number of entries (IBTA Vol 1, 11.2.8.4). If the queue holds more than `depth` completions,
    /// returns false and changes nothing.
    pub fn resize(&self, depth: usize) -> bool {
        let mut inner = self.lock();
        let fits = inner.entries.len() <= depth;
        if fits {
            inner.depth = depth;
        }
        fits
    }

    /// Returns the number of completions that the program has not reaped.
    pub fn len(&self) -> usize {
        self.length.load(Ordering::Acquire)
    }

    /// Returns whether the queue holds no completions.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reaps up to `out.len()` completions. After an overrun, completions that arrived before it can still be reaped.
    ///
    /// # Errors
    ///
    /// The queue overran, and all completions from before the overrun were reaped.
    #[inline]
    pub fn poll(&self, out: &mut [Completion]) -> Result<usize, Overrun> {
        if self.is_empty() {
            if !self.overrun.load(Ordering::Acquire) {
                return Ok(0);
            }
            // After the first check of `length`, an engine may have added completions that fit and then overrun the
            // queue. So check `length` again: the program must reap these completions before it gets the error.
            if self.is_empty() {
                return Err(Overrun);
            }
        }
        let mut inner = self.lock();
        let count = out.len().min(inner.entries.len());
        for (place, completion) in out.iter_mut().zip(inner.entries.drain(..count)) {
            *place = completion;
        }
        inner.announced = inner.announced.saturating_sub(count);
        self.length.store(inner.entries.len(), Ordering::Release);
        Ok(count)
    }

    /// Records that the program polled this queue and found it empty, after the engine had run. Such a poll shows that
    /// the program has finished its work for all earlier completions.
    #[inline]
    pub fn note_empty_poll(&self) {
        // If several threads poll at once, one increment may overwrite another. This is harmless, since readers only
        // check whether the count has changed.
        self.empty_polls.store(self.empty_polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Arms one notification. Returns whether no notification was armed before.
    ///
    /// The notification fires at once if the queue already holds a matching completion that no notification has
    /// announced. IBTA requires notifications only for completions that arrive after the call (Vol 1, 11.4.2.2), and
    /// `rdma_rxe` follows that rule. But hardware RNICs fire at once, and UCX relies on it: UCX arms a notification and
    /// then sleeps without another poll.
    ///
    /// A completion that a notification has announced raises no second notification. perftest relies on this: it arms a
    /// notification before it reaps, and counts one completion per notification.
    pub fn request_notification(&self, notify: Notify) -> bool {
        let mut inner = self.lock();
        let newly = inner.armed.is_none();
        let armed = match (inner.armed, notify) {
            (Some(Notify::Next), _) | (_, Notify::Next) => Notify::Next,
            _ => Notify::Solicited,
        };
        inner.armed = Some(armed);
        if inner.entries.iter().skip(inner.announced).any(|completion| armed.asks_for(completion)) {
            self.fire(inner);
        }
        newly
    }

    /// Fires the armed notification.
    fn fire(&self, mut inner: MutexGuard<'_, Inner>) {
        inner.armed = None;
        inner.announced = inner.entries.len();
        drop(inner);
        if let Some(notifier) = &self.notifier {
            notifier();
        }
    }

    /// Returns whether a notification is armed.
    pub fn is_armed(&self) -> bool {
        self.lock().armed.is_some()
    }
}

impl CompletionSink for CompletionQueue {
    #[inline]
    fn empty_polls(&self) -> u64 {
        self.empty_polls.load(Ordering::Relaxed)
    }

    fn push_all(&self, completions: &[Completion]) -> Result<(), Overrun> {
        let mut inner = self.lock();
        let room = inner.depth - inner.entries.len();
        let fits = completions.len().min(room);
        let due = inner.armed.is_some_and(|armed| completions[..fits].iter().any(|added| armed.asks_for(added)));
        inner.entries.extend(&completions[..fits]);
        self.length.store(inner.entries.len(), Ordering::Release);
        let overrun = fits < completions.len();
        if overrun {
            self.overrun.store(true, Ordering::Release);
        }
        if due || (overrun && inner.armed.is_some()) {
            self.fire(inner);
        } else {
            drop(inner);
        }
        if let Some(observer) = &self.observer {
            observer();
        }
        if overrun || self.has_overrun() { Err(Overrun) } else { Ok(()) }
    }

    #[inline]
    fn has_overrun(&self) -> bool {
        self.overrun.load(Ordering::Relaxed)
    }

    fn claim_overrun(&self) -> bool {
        !self.claimed.swap(true, Ordering::Relaxed)
    }

    // IBTA Vol 1, 11.2.4.4 leaves the fate of these completions undefined, but programs expect them to be gone.
    fn purge(&self, qpn: Qpn) {
        let mut inner = self.lock();
        inner.announced = inner.entries.iter().take(inner.announced).filter(|completion| completion.qpn != qpn).count();
        inner.entries.retain(|completion| completion.qpn != qpn);
        self.length.store(inner.entries.len(), Ordering::Release);
    }
}
