//! Buffers that the program has given back, reposting of these buffers, and the grants that increase with each repost.
//!
//! Several threads give buffers back at the same time. One of these threads reposts the buffers, and the other threads
//! do not wait for it. In `tests/suite/pool.rs`, a model checker runs all interleavings of these threads.

use std::sync::{Arc, TryLockError};

use doorbell_sync::IgnorePoison;
use smallvec::SmallVec;

use super::sync::{ArrayQueue, AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering};
use crate::connection::config::MAX_REPOST_LIST;

/// Grants of one connection.
#[derive(Debug)]
pub(crate) struct Grants {
    /// Cumulative number of receives that were posted for data of the connection.
    granted: AtomicU64,
    /// Number of shared receives that the connection has reserved. 0 without credits or without shared receives.
    share: usize,
    /// Number of shared receives that data messages of the connection have consumed.
    taken: AtomicU64,
    /// Number of consumed shared receives that were reposted.
    reposted: AtomicU64,
    over: AtomicBool,
}

impl Grants {
    /// Makes the grants of a connection. When the connection has ended, `share` shared receives become available to
    /// other connections.
    pub(crate) fn new(granted: u64, share: usize) -> Self {
        Self {
            granted: AtomicU64::new(granted),
            share,
            taken: AtomicU64::new(0),
            reposted: AtomicU64::new(0),
            over: AtomicBool::new(false),
        }
    }

    /// Returns the cumulative number of receives that were posted for data.
    #[inline]
    pub(crate) fn granted(&self) -> u64 {
        self.granted.load(Ordering::Acquire)
    }

    /// Counts a shared buffer that now holds data for the program.
    #[inline]
    pub(crate) fn taken(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
    }
}

/// A connection that grants receives to its peer.
pub(crate) trait Granted {
    /// Returns the grants of the connection.
    fn grants(&self) -> &Grants;
    /// Reports posted receives to the peer of the connection, if a report is due.
    fn report(&self);
}

/// A buffer that was given back, and the account whose grant increases when the buffer is reposted. `account` is `None`
/// if the buffers belong to only one connection.
struct Returned<A> {
    slot: u32,
    account: Option<Arc<A>>,
}

/// State that the lock of [`Returns`] protects.
struct Ledger<E> {
    /// Error of a failed post. Every later call of [`Returns::repost`] returns the error.
    failed: Option<E>,
    /// Number of shared receives that no connection has reserved.
    available: usize,
    /// Number of further connections that may share the receives.
    connections: usize,
}

/// Buffers that were given back and are not reposted yet.
pub(crate) struct Returns<A, E> {
    queue: ArrayQueue<Returned<A>>,
    /// Number of returned buffers that are enough for a post. The thread that returns a buffer and thereby reaches this
    /// number reposts all of them.
    repost_at: usize,
    /// Maximum number of receives in one post.
    repost_list: usize,
    ledger: Mutex<Ledger<E>>,
}

impl<A: Granted, E: Copy> Returns<A, E> {
    /// Makes a queue for `slots` buffers. The connections may reserve `available` of the shared receives. At most
    /// `connections` connections may use the queue.
    pub(crate) fn new(
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

    /// Returns the number of returned buffers that are not reposted yet.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Takes a returned buffer. Returns whether enough buffers were returned for a post.
    #[inline]
    pub(crate) fn give_back(&self, slot: u32, account: Option<Arc<A>>) -> bool {
        // The queue has a place for every buffer, and each buffer is given back once.
        let _ = self.queue.push(Returned { slot, account });
        self.queue.len() >= self.repost_at
    }

    /// Calls `post` with lists of returned buffers, and increases the grants. Returns the number of posted buffers.
    #[inline]
    pub(crate) fn repost(
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
            Err(TryLockError::WouldBlock) => return Ok(0), // another thread reposts
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

    /// Reserves `share` of the available receives for a connection. If too few are available, the error has the number
    /// of available receives.
    pub(crate) fn admit(&self, share: usize) -> Result<(), Refused> {
        let mut ledger = self.ledger();
        if ledger.connections == 0 {
            return Err(Refused::Connections);
        }
        ledger.available = ledger.available.checked_sub(share).ok_or(Refused::Share(ledger.available))?;
        ledger.connections -= 1;
        Ok(())
    }

    /// Makes the reserved receives of an ended connection available to other connections. Receives whose messages the
    /// program still holds become available when the program drops the messages.
    pub(crate) fn dismiss(&self, grants: &Grants) {
        let mut ledger = self.ledger();
        grants.over.store(true, Ordering::Relaxed);
        let lent = grants.taken.load(Ordering::Relaxed) - grants.reposted.load(Ordering::Relaxed);
        ledger.available += grants.share.saturating_sub(lent as usize);
        ledger.connections += 1;
    }

    /// Returns the number of available receives and the number of further connections.
    #[cfg(test)]
    pub(crate) fn unclaimed(&self) -> (usize, usize) {
        let ledger = self.ledger();
        (ledger.available, ledger.connections)
    }
}

/// Reason for which a connection cannot use shared receives.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The maximum number of connections already shares the receives.
    Connections,
    /// Only this number of receives is available.
    Share(usize),
}
