//! Buffers that were given back, the thread that posts them again, and the grants that each post renews.
//!
//! Several threads give buffers back; one of them posts, and the others pass by. `tests/pool.rs` has a model checker
//! go through all their interleavings.

use std::sync::{Arc, TryLockError};

use doorbell_sync::IgnorePoison;
use smallvec::SmallVec;

use super::sync::{ArrayQueue, AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering};
use crate::config::MAX_REPOST_LIST;

/// Grants of one connection.
#[derive(Debug)]
pub(super) struct Grants {
    /// Receives posted for its data so far.
    granted: AtomicU64,
    /// Its part of shared receives. The next fields count those that it has taken, and those of them that are posted
    /// again.
    share: usize,
    taken: AtomicU64,
    reposted: AtomicU64,
    over: AtomicBool,
}

impl Grants {
    /// Makes the grants of a connection. `share` of the receives go back to the others when the connection is over.
    pub(super) fn new(granted: u64, share: usize) -> Self {
        Self {
            granted: AtomicU64::new(granted),
            share,
            taken: AtomicU64::new(0),
            reposted: AtomicU64::new(0),
            over: AtomicBool::new(false),
        }
    }

    /// Returns the number of receives posted for data until now.
    #[inline]
    pub(super) fn granted(&self) -> u64 {
        self.granted.load(Ordering::Acquire)
    }

    /// Counts a shared buffer that holds data for the program.
    #[inline]
    pub(super) fn taken(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
    }
}

/// A connection that has grants.
pub(super) trait Granted {
    /// Its grants.
    fn grants(&self) -> &Grants;
    /// Reports posted receives to its peer, if a report is due.
    fn report(&self);
}

/// A buffer that was given back, and the account whose grant it renews. `None` means the store's only connection.
struct Returned<A> {
    slot: u32,
    account: Option<Arc<A>>,
}

/// State of reposting, under its lock.
struct Ledger<E> {
    /// Error of reposting, for the next caller that asks.
    failed: Option<E>,
    /// Number of shared receives that no connection has.
    available: usize,
    /// Number of further connections that shared receives allow.
    connections: usize,
}

/// Buffers that were given back and are not posted again yet.
pub(super) struct Returns<A, E> {
    queue: ArrayQueue<Returned<A>>,
    /// Number of returned buffers at which the thread that returns the last one reposts them.
    repost_at: usize,
    /// Maximum number of receives in one post.
    repost_list: usize,
    ledger: Mutex<Ledger<E>>,
}

impl<A: Granted, E: Copy> Returns<A, E> {
    /// Makes the queue. `available` shared receives may be granted, to at most `connections`.
    pub(super) fn new(
        slots: usize,
        repost_at: usize,
        repost_list: usize,
        available: usize,
        connections: usize,
    ) -> Self {
        let ledger = Mutex::new(Ledger { failed: None, available, connections });
        let repost_at = repost_at.clamp(1, repost_list);
        Self { queue: ArrayQueue::new(slots), repost_at, repost_list, ledger }
    }

    /// Returns the number of buffers.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Takes a buffer. Returns whether enough buffers have come together for a post.
    #[inline]
    pub(super) fn give_back(&self, slot: u32, account: Option<Arc<A>>) -> bool {
        // The queue has a place for every buffer, and each buffer is given back once.
        let _ = self.queue.push(Returned { slot, account });
        self.queue.len() >= self.repost_at
    }

    /// Posts the returned buffers in lists, and renews the grants. Returns the number of buffers.
    #[inline]
    pub(super) fn repost(
        &self,
        own: Option<&Grants>,
        mut post: impl FnMut(&[u32]) -> Result<(), E>,
    ) -> Result<usize, E> {
        if self.queue.is_empty() {
            return Ok(0);
        }
        let mut ledger = match self.ledger.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(0), // another thread is at it
        };
        if let Some(error) = ledger.failed {
            return Err(error);
        }
        let mut posted = 0;
        loop {
            let mut slots: SmallVec<[u32; MAX_REPOST_LIST]> = SmallVec::new();
            let mut accounts: SmallVec<[Arc<A>; MAX_REPOST_LIST]> = SmallVec::new();
            while slots.len() < self.repost_list
                && let Some(returned) = self.queue.pop()
            {
                slots.push(returned.slot);
                accounts.extend(returned.account);
            }
            if slots.is_empty() {
                return Ok(posted);
            }
            if let Err(error) = post(&slots) {
                ledger.failed = Some(error);
                return Err(error);
            }
            posted += slots.len();
            if let Some(own) = own {
                own.granted.fetch_add((slots.len() - accounts.len()) as u64, Ordering::Release);
            }
            for account in accounts {
                let grants = account.grants();
                grants.reposted.fetch_add(1, Ordering::Relaxed);
                if grants.over.load(Ordering::Relaxed) {
                    ledger.available += usize::from(grants.share > 0);
                } else {
                    grants.granted.fetch_add(1, Ordering::Release);
                    account.report();
                }
            }
        }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger<E>> {
        self.ledger.lock().ignore_poison()
    }

    /// Takes a share of the available receives for a connection. `Err` has the number of available ones.
    pub(super) fn admit(&self, share: usize) -> Result<(), Refused> {
        let mut ledger = self.ledger();
        if ledger.connections == 0 {
            return Err(Refused::Connections);
        }
        ledger.available = ledger.available.checked_sub(share).ok_or(Refused::Share(ledger.available))?;
        ledger.connections -= 1;
        Ok(())
    }

    /// Grants the unused receives of a connection that is over to others. Buffers that its program still holds follow
    /// when the program returns them.
    pub(super) fn dismiss(&self, grants: &Grants) {
        let mut ledger = self.ledger();
        grants.over.store(true, Ordering::Relaxed);
        let lent = grants.taken.load(Ordering::Relaxed) - grants.reposted.load(Ordering::Relaxed);
        ledger.available += grants.share.saturating_sub(lent as usize);
        ledger.connections += 1;
    }

    /// Returns the numbers of available receives and of further connections.
    #[cfg(test)]
    pub(super) fn unclaimed(&self) -> (usize, usize) {
        let ledger = self.ledger();
        (ledger.available, ledger.connections)
    }
}

/// Reason for which a connection gets no share.
#[derive(Debug)]
pub(super) enum Refused {
    /// The maximum number of connections exists.
    Connections,
    /// This number of receives is left.
    Share(usize),
}
