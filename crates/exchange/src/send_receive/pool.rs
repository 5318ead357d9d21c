//! Receive buffers: posted, lent to the program as messages, given back in any order.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use crossbeam_queue::ArrayQueue;
use doorbell_verbs::{Payload, PostError, Qp, RecvRequest, Region, SendFlags, SendOperation, SendRequest, Sge, Srq};
use smallvec::SmallVec;

use super::credits::Word;
use super::reports::ReceiveCredits;
use crate::carrier::{CONTROL_TAG, RECEIVE_TAG};
use crate::config::MAX_REPOST_LIST;

/// Marks the work requests of credit messages.
pub(crate) const CREDIT_TAG: u64 = CONTROL_TAG;

/// Where receives are posted.
enum Target {
    /// A queue pair of its own.
    Qp(Qp),
    /// A queue that several connections share.
    Srq(Srq),
}

/// A buffer that was given back, and whose grant it renews: that of the store's only connection
/// unless it says otherwise.
struct Returned {
    slot: u32,
    account: Option<Arc<Account>>,
}

/// Who posts buffers again that were given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reposting {
    /// Whoever gives back a buffer when enough have come together, or polls a connection. Others
    /// meanwhile pass by.
    Locked,
    /// Nobody but a thread that the program runs for it
    /// ([`SharedReceives::repost`](super::SharedReceives::repost)).
    Thread,
}

/// What reposting keeps under its lock.
#[derive(Default)]
struct Ledger {
    /// Why reposting failed, for whoever looks next.
    failed: Option<PostError>,
    /// Of shared receives: how many are granted to nobody.
    available: usize,
    /// Of shared receives: how many connections more there may be.
    connections: usize,
}

/// Receive buffers: posted, lent, and given back.
pub(crate) struct Store {
    target: Target,
    region: Region,
    layout: Layout,
    /// Buffers that were given back and are not posted again yet.
    returned: ArrayQueue<Returned>,
    /// Give back this many, and the last one reposts them itself.
    repost_at: usize,
    reposting: Reposting,
    ledger: Mutex<Ledger>,
}

impl Store {
    fn new(target: Target, region: Region, layout: Layout, slots: usize, repost_at: usize) -> Self {
        let returned = ArrayQueue::new(slots);
        let (reposting, ledger) = (Reposting::Locked, Mutex::default());
        let repost_at = repost_at.clamp(1, layout.repost_list);
        Self { target, region, layout, returned, repost_at, reposting, ledger }
    }

    /// Of shared receives: `available` may be granted, to so many `connections`.
    pub(super) fn shared(
        srq: Srq,
        region: Region,
        layout: Layout,
        slots: usize,
        available: usize,
        connections: usize,
        reposting: Reposting,
    ) -> Self {
        let ledger = Mutex::new(Ledger { failed: None, available, connections });
        Self { reposting, ledger, ..Self::new(Target::Srq(srq), region, layout, slots, available / 4) }
    }

    fn sge(&self, slot: u32) -> Sge {
        self.region.sge(slot as usize * self.layout.stride, self.layout.slot_bytes)
    }

    /// Posts these buffers.
    pub(crate) fn post(&self, slots: &[u32]) -> Result<(), PostError> {
        for slots in slots.chunks(self.layout.repost_list) {
            // Filled where they are: a list that is collected is moved, and it is long.
            let mut sges: SmallVec<[Sge; MAX_REPOST_LIST]> = SmallVec::new();
            for &slot in slots {
                sges.push(self.sge(slot));
            }
            let mut list: SmallVec<[RecvRequest<'_>; MAX_REPOST_LIST]> = SmallVec::new();
            for (&slot, sge) in slots.iter().zip(&sges) {
                list.push(RecvRequest { wr_id: RECEIVE_TAG | u64::from(slot), sges: std::slice::from_ref(sge) });
            }
            match &self.target {
                Target::Qp(qp) => qp.post_recv(&list)?,
                Target::Srq(srq) => srq.post_recv(&list)?,
            }
        }
        Ok(())
    }

    /// Posts what was given back, in lists, and renews the grants. Returns how many.
    #[inline]
    pub(super) fn repost(&self, own: Option<&Account>) -> Result<usize, PostError> {
        if self.returned.is_empty() {
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
            let mut accounts: SmallVec<[Arc<Account>; MAX_REPOST_LIST]> = SmallVec::new();
            while slots.len() < self.layout.repost_list
                && let Some(returned) = self.returned.pop()
            {
                slots.push(returned.slot);
                accounts.extend(returned.account);
            }
            if slots.is_empty() {
                return Ok(posted);
            }
            if let Err(error) = self.post(&slots) {
                ledger.failed = Some(error);
                return Err(error);
            }
            posted += slots.len();
            if let Some(own) = own {
                own.granted.fetch_add((slots.len() - accounts.len()) as u64, Ordering::Release);
            }
            for account in accounts {
                account.reposted.fetch_add(1, Ordering::Relaxed);
                if account.over.load(Ordering::Relaxed) {
                    ledger.available += usize::from(account.share > 0);
                } else {
                    account.granted.fetch_add(1, Ordering::Release);
                    account.report();
                }
            }
        }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a share of what may be granted, for a connection. `Err` says how much there is.
    pub(super) fn admit(&self, share: usize) -> Result<(), Refused> {
        let mut ledger = self.ledger();
        if ledger.connections == 0 {
            return Err(Refused::Connections);
        }
        ledger.available = ledger.available.checked_sub(share).ok_or(Refused::Share(ledger.available))?;
        ledger.connections -= 1;
        Ok(())
    }

    /// A connection is over: what it holds no more can be granted to others. What its program
    /// still holds follows when it is given back.
    fn dismiss(&self, account: &Account) {
        let mut ledger = self.ledger();
        account.over.store(true, Ordering::Relaxed);
        let lent = account.taken.load(Ordering::Relaxed) - account.reposted.load(Ordering::Relaxed);
        ledger.available += account.share.saturating_sub(lent as usize);
        ledger.connections += 1;
    }

    #[cfg(test)]
    pub(super) fn unclaimed(&self) -> (usize, usize) {
        let ledger = self.ledger();
        (ledger.available, ledger.connections)
    }
}

/// Why a connection does not get a share.
pub(super) enum Refused {
    /// There are as many as was asked for.
    Connections,
    /// Only so many receives are left.
    Share(usize),
}

/// The shape of receive buffers.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) slot_bytes: usize,
    pub(crate) stride: usize,
    /// Receives in one post at most.
    pub(crate) repost_list: usize,
}

/// What one connection has been granted, and what it has told its peer.
pub(crate) struct Account {
    qp: Qp,
    /// Receives posted for its data so far.
    granted: AtomicU64,
    /// `None` without flow control.
    credits: Option<ReceiveCredits>,
    /// Credit messages that were sent.
    reports: AtomicU64,
    /// Of shared receives: its part, how many of them it has taken, and how many of those are
    /// posted again.
    share: usize,
    taken: AtomicU64,
    reposted: AtomicU64,
    over: AtomicBool,
}

impl Account {
    fn new(qp: Qp, granted: usize, flow_control: bool) -> Self {
        let granted = granted as u64;
        Self {
            qp,
            granted: AtomicU64::new(granted),
            credits: flow_control.then(|| ReceiveCredits::new(granted)),
            reports: AtomicU64::new(0),
            share: if flow_control { granted as usize } else { 0 },
            taken: AtomicU64::new(0),
            reposted: AtomicU64::new(0),
            over: AtomicBool::new(false),
        }
    }

    /// Tells the peer of receives that were posted, if it is time to.
    #[inline]
    fn report(&self) {
        let granted = self.granted.load(Ordering::Acquire);
        if let Some(credits) = &self.credits
            && credits.take_due(granted)
        {
            let request = SendRequest {
                wr_id: CREDIT_TAG,
                operation: SendOperation::SendImmediate(Word::new(true, granted).encode()),
                flags: SendFlags::SIGNALED,
                payload: Payload::Inline(&[]),
                destination: None,
            };
            // A connection that is over needs no credits; the connection finds out by itself.
            if self.qp.post_send(&[request]).is_ok() {
                self.reports.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// The receive buffers of one connection, or its part of those that it shares.
pub(crate) struct Pool {
    store: Arc<Store>,
    account: Arc<Account>,
    is_shared: bool,
}

impl Pool {
    /// Buffers of its own: `granted` receives for data, `beside` more for what carries no data.
    pub(crate) fn new(
        qp: Qp,
        region: Region,
        layout: Layout,
        granted: usize,
        beside: usize,
        flow_control: bool,
    ) -> Result<Arc<Self>, PostError> {
        let slots = granted + beside;
        let store = Store::new(Target::Qp(qp.clone()), region, layout, slots, granted / 4);
        let all: Vec<u32> = (0..slots as u32).collect();
        store.post(&all)?;
        let account = Arc::new(Account::new(qp, granted, flow_control));
        Ok(Arc::new(Self { store: Arc::new(store), account, is_shared: false }))
    }

    /// A part of shared buffers, which was admitted.
    pub(crate) fn sharing(store: &Arc<Store>, qp: Qp, granted: usize, flow_control: bool) -> Arc<Self> {
        let account = Arc::new(Account::new(qp, granted, flow_control));
        Arc::new(Self { store: Arc::clone(store), account, is_shared: true })
    }

    pub(crate) fn credits(&self) -> Option<&ReceiveCredits> {
        self.account.credits.as_ref()
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Posts a buffer again that held nothing for the program.
    pub(crate) fn post(&self, slot: u32) -> Result<(), PostError> {
        self.store.post(&[slot])
    }

    /// A buffer has data for the program in it.
    #[inline]
    pub(crate) fn taken(&self) {
        if self.is_shared {
            self.account.taken.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Receives posted for data so far.
    #[inline]
    pub(crate) fn granted(&self) -> u64 {
        self.account.granted.load(Ordering::Acquire)
    }

    /// Posts what was given back, in lists, unless that is the business of another thread.
    #[inline]
    pub(crate) fn repost(&self) -> Result<(), PostError> {
        match self.store.reposting {
            Reposting::Locked => self.store.repost(Some(&self.account)).map(drop),
            Reposting::Thread => Ok(()),
        }
    }

    /// Credit messages that were sent.
    pub(crate) fn reports(&self) -> u64 {
        self.account.reports.load(Ordering::Relaxed)
    }

    /// Buffers that were given back and are not posted again yet.
    #[inline]
    pub(crate) fn returned(&self) -> usize {
        self.store.returned.len()
    }

    pub(crate) fn give_back(&self, slot: u32) {
        let account = self.is_shared.then(|| Arc::clone(&self.account));
        // There is a place for every buffer, and each is given back once.
        let _ = self.store.returned.push(Returned { slot, account });
        if self.store.returned.len() >= self.store.repost_at {
            // An error stays where the connection finds it.
            let _ = self.repost();
            self.report();
        }
    }

    /// Tells the peer of receives that were posted, if it is time to.
    #[inline]
    pub(crate) fn report(&self) {
        self.account.report();
    }

    /// The connection is over, and has given back what it held itself.
    pub(crate) fn dismiss(&self) {
        if self.is_shared {
            self.store.dismiss(&self.account);
        }
    }
}

/// A received message. It holds one receive buffer of its connection; dropping it gives the
/// buffer back, from any thread and in any order.
pub struct Message {
    pool: Arc<Pool>,
    slot: u32,
    length: usize,
}

impl Message {
    pub(crate) fn new(pool: &Arc<Pool>, slot: u32, length: usize) -> Self {
        Self { pool: Arc::clone(pool), slot, length }
    }
}

impl Deref for Message {
    type Target = [u8];

    #[inline]
    #[allow(unsafe_code)]
    fn deref(&self) -> &[u8] {
        // SAFETY: the receive that wrote this slot is complete, and the slot is posted again only
        // when this guard, its single owner, drops. The region is registered for local writes
        // only, so no peer reaches it, and the pool uses no other accessor on it.
        unsafe { self.pool.store.region.slice(self.slot as usize * self.pool.store.layout.stride, self.length) }
    }
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Message").field("length", &self.length).finish_non_exhaustive()
    }
}

impl Drop for Message {
    #[inline]
    fn drop(&mut self) {
        self.pool.give_back(self.slot);
    }
}
