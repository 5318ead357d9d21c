//! The queues from which programs reap completions.
//!
//! `tests/completion.rs` has a model checker go through all interleavings of the threads that use a queue.

use std::collections::VecDeque;
use std::sync::PoisonError;

use super::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering};
use doorbell_verbs_core::{Completion, Notifier, Notify, Overrun};
use doorbell_wire::Qpn;

/// Where engines put completions.
pub trait CompletionSink: Send + Sync {
    /// Adds completions in order.
    ///
    /// # Errors
    ///
    /// The queue has no room for all of them. Those that fit are in the queue; the others are lost.
    fn push_all(&self, completions: &[Completion]) -> Result<(), Overrun>;

    /// How often the program has looked and found nothing; only changes of it mean something.
    fn empty_polls(&self) -> u64;
}

/// A completion queue. Any thread reaps it without exclusive access to an engine.
pub struct CompletionQueue {
    // What an empty poll reads, so that polling an empty queue takes no lock.
    length: AtomicUsize,
    overrun: AtomicBool,
    empty_polls: AtomicU64,
    inner: Mutex<Inner>,
    notifier: Option<Notifier>,
    /// Called whenever completions came, whether a notification is armed or not.
    observer: Option<Notifier>,
}

struct Inner {
    depth: usize,
    entries: VecDeque<Completion>,
    armed: Option<Notify>,
    /// This many of the oldest entries were there when the last notification fired.
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
    /// A queue of exactly `depth` entries; `notifier` is called when an armed notification is due.
    pub fn new(depth: usize, notifier: Option<Notifier>) -> Self {
        Self {
            length: AtomicUsize::new(0),
            overrun: AtomicBool::new(false),
            empty_polls: AtomicU64::new(0),
            inner: Mutex::new(Inner { depth, entries: VecDeque::new(), armed: None, announced: 0 }),
            notifier,
            observer: None,
        }
    }

    /// The same, with an `observer` that is called whenever completions came: for a driver that knows who polls.
    pub fn observed(depth: usize, notifier: Option<Notifier>, observer: Notifier) -> Self {
        Self { observer: Some(observer), ..Self::new(depth, notifier) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Entries it holds at most.
    pub fn depth(&self) -> usize {
        self.lock().depth
    }

    /// Changes how many entries it holds at most (IBTA Vol 1, 11.2.8.4). False, and nothing has
    /// changed, if more than that wait to be reaped.
    pub fn resize(&self, depth: usize) -> bool {
        let mut inner = self.lock();
        let fits = inner.entries.len() <= depth;
        if fits {
            inner.depth = depth;
        }
        fits
    }

    /// Completions that wait to be reaped.
    pub fn len(&self) -> usize {
        self.length.load(Ordering::Acquire)
    }

    /// Does none wait?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reaps up to `out.len()` completions. What was in the queue before it overran can still be reaped.
    ///
    /// # Errors
    ///
    /// The queue overran, and is empty now.
    #[inline]
    pub fn poll(&self, out: &mut [Completion]) -> Result<usize, Overrun> {
        if self.is_empty() {
            if !self.overrun.load(Ordering::Acquire) {
                return Ok(0);
            }
            // Fitting completions may have come after the first look, together with the overrun.
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

    /// Notes that a poll by the program found nothing, after the engine was driven: whatever the program
    /// wanted to do about what it reaped before, it has done.
    #[inline]
    pub fn note_empty_poll(&self) {
        // Not exact where several threads poll: a change is all that matters.
        self.empty_polls.store(self.empty_polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Arms one notification. It fires at once if a completion that it asks for came after the last notification fired
    /// and waits to be reaped. IBTA promises nothing for completions that came before (Vol 1, 11.4.2.2), and
    /// `rdma_rxe` tells of none; but adapters do, and UCX sleeps without polling once more. Completions that a
    /// notification told of already raise no second one: perftest arms before it reaps them, and takes each
    /// notification for one completion. True if none was armed before.
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

    /// Tells the program by the notification that is armed.
    fn fire(&self, mut inner: MutexGuard<'_, Inner>) {
        inner.armed = None;
        inner.announced = inner.entries.len();
        drop(inner);
        if let Some(notifier) = &self.notifier {
            notifier();
        }
    }

    /// Is a notification armed?
    pub fn is_armed(&self) -> bool {
        self.lock().armed.is_some()
    }

    /// Takes out the completions of a queue pair that is destroyed or reset (IBTA Vol 1, 11.2.4.4 leaves
    /// them undefined; programs expect them gone).
    pub fn purge(&self, qpn: Qpn) {
        let mut inner = self.lock();
        inner.announced = inner.entries.iter().take(inner.announced).filter(|completion| completion.qpn != qpn).count();
        inner.entries.retain(|completion| completion.qpn != qpn);
        self.length.store(inner.entries.len(), Ordering::Release);
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
        if overrun { Err(Overrun) } else { Ok(()) }
    }
}
