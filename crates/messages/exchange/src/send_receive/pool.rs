//! Receive buffers: posted, lent to the program as messages, and returned in any order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use doorbell_verbs::{Payload, PostError, Qp, RecvRequest, Region, SendFlags, SendOperation, SendRequest, Sge, Srq};
use smallvec::SmallVec;

use super::credits::Word;
use super::reports::ReceiveCredits;
pub(super) use super::returns::Refused;
use super::returns::{Granted, Grants, Returns};
use crate::carrier::{CONTROL_TAG, RECEIVE_TAG};
use crate::config::MAX_REPOST_LIST;
use crate::lent::{Buffers, Lent};

/// Marks the work requests of credit messages.
pub(crate) const CREDIT_TAG: u64 = CONTROL_TAG;

/// Queue that receives are posted to.
enum Target {
    /// The queue pair of one connection.
    Qp(Qp),
    /// A queue that several connections share.
    Srq(Srq),
}

/// Thread that reposts returned buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reposting {
    /// The thread that returns the last buffer of a list, or that polls a connection. Other threads skip the work
    /// meanwhile.
    Locked,
    /// Only a thread that the program runs for it ([`SharedReceives::repost`](super::SharedReceives::repost)).
    Thread,
}

/// Receive buffers: posted, lent, and returned.
pub(crate) struct Store {
    target: Target,
    region: Region,
    layout: Layout,
    returns: Returns<Account, PostError>,
    reposting: Reposting,
}

impl Store {
    /// Makes a store of shared receives. `available` of them may be granted, to at most `connections`.
    pub(super) fn shared(
        srq: Srq,
        region: Region,
        layout: Layout,
        slots: usize,
        available: usize,
        connections: usize,
        reposting: Reposting,
    ) -> Self {
        let returns = Returns::new(slots, available / 4, layout.repost_list, available, connections);
        Self { target: Target::Srq(srq), region, layout, returns, reposting }
    }

    fn sge(&self, slot: u32) -> Sge {
        self.region.sge(slot as usize * self.layout.stride, self.layout.slot_bytes)
    }

    /// Posts these buffers.
    pub(crate) fn post(&self, slots: &[u32]) -> Result<(), PostError> {
        for slots in slots.chunks(self.layout.repost_list) {
            // The lists are filled in place, since a collected list would be moved, and it is long.
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

    /// Posts the returned buffers in lists, and renews the grants. Returns the number of buffers.
    #[inline]
    pub(super) fn repost(&self, own: Option<&Account>) -> Result<usize, PostError> {
        self.returns.repost(own.map(Account::grants), |slots| self.post(slots))
    }

    /// Takes a share of the available receives for a connection. `Err` has the number of available ones.
    pub(super) fn admit(&self, share: usize) -> Result<(), Refused> {
        self.returns.admit(share)
    }

    #[cfg(test)]
    pub(super) fn unclaimed(&self) -> (usize, usize) {
        self.returns.unclaimed()
    }
}

/// Layout of receive buffers.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) slot_bytes: usize,
    pub(crate) stride: usize,
    /// Maximum number of receives in one post.
    pub(crate) repost_list: usize,
}

/// Grants of one connection, and the grants that it has reported to its peer.
pub(crate) struct Account {
    qp: Qp,
    grants: Grants,
    /// `None` without flow control.
    credits: Option<ReceiveCredits>,
    /// Number of credit messages that were sent.
    reports: AtomicU64,
}

impl Account {
    fn new(qp: Qp, granted: usize, flow_control: bool) -> Self {
        Self {
            qp,
            grants: Grants::new(granted as u64, if flow_control { granted } else { 0 }),
            credits: flow_control.then(|| ReceiveCredits::new(granted as u64)),
            reports: AtomicU64::new(0),
        }
    }
}

impl Granted for Account {
    #[inline]
    fn grants(&self) -> &Grants {
        &self.grants
    }

    /// Reports posted receives to the peer, if a report is due.
    #[inline]
    fn report(&self) {
        let granted = self.grants.granted();
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
            // A connection that is over needs no credits, and detects the error itself.
            if self.qp.post_send(&[request]).is_ok() {
                self.reports.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Receive buffers of one connection, or its share of shared ones.
pub struct Pool {
    store: Arc<Store>,
    account: Arc<Account>,
    is_shared: bool,
}

impl Pool {
    /// Makes a pool with its own buffers: `granted` receives for data, and `beside` more for messages without data.
    pub(crate) fn new(
        qp: Qp,
        region: Region,
        layout: Layout,
        granted: usize,
        beside: usize,
        flow_control: bool,
    ) -> Result<Arc<Self>, PostError> {
        let slots = granted + beside;
        let returns = Returns::new(slots, granted / 4, layout.repost_list, 0, 0);
        let (target, reposting) = (Target::Qp(qp.clone()), Reposting::Locked);
        let store = Store { target, region, layout, returns, reposting };
        let all: Vec<u32> = (0..slots as u32).collect();
        store.post(&all)?;
        let account = Arc::new(Account::new(qp, granted, flow_control));
        Ok(Arc::new(Self { store: Arc::new(store), account, is_shared: false }))
    }

    /// Makes a pool for a share that was admitted.
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

    /// Reposts a buffer that held no data for the program.
    pub(crate) fn post(&self, slot: u32) -> Result<(), PostError> {
        self.store.post(&[slot])
    }

    /// Counts a buffer that holds data for the program.
    #[inline]
    pub(crate) fn taken(&self) {
        if self.is_shared {
            self.account.grants.taken();
        }
    }

    /// Returns the number of receives posted for data until now.
    #[inline]
    pub(crate) fn granted(&self) -> u64 {
        self.account.grants.granted()
    }

    /// Posts the returned buffers in lists, unless the program runs a thread for it.
    #[inline]
    pub(crate) fn repost(&self) -> Result<(), PostError> {
        match self.store.reposting {
            Reposting::Locked => self.store.repost(Some(&self.account)).map(drop),
            Reposting::Thread => Ok(()),
        }
    }

    /// Returns the number of credit messages that were sent.
    pub(crate) fn reports(&self) -> u64 {
        self.account.reports.load(Ordering::Relaxed)
    }

    /// Returns the number of returned buffers that are not posted yet.
    #[inline]
    pub(crate) fn returned(&self) -> usize {
        self.store.returns.len()
    }

    /// Reports posted receives to the peer, if a report is due.
    #[inline]
    pub(crate) fn report(&self) {
        self.account.report();
    }

    /// Gives the share back after the connection has ended and has returned its own buffers.
    pub(crate) fn dismiss(&self) {
        if self.is_shared {
            self.store.returns.dismiss(&self.account.grants);
        }
    }
}

impl Buffers for Pool {
    fn region(&self) -> &Region {
        &self.store.region
    }

    #[inline]
    fn offset(&self, slot: u32) -> usize {
        slot as usize * self.store.layout.stride
    }

    fn give_back(&self, slot: u32) {
        let account = self.is_shared.then(|| Arc::clone(&self.account));
        if self.store.returns.give_back(slot, account) {
            // The connection finds a stored error later.
            let _ = self.repost();
            self.report();
        }
    }
}

/// A received message. It holds one receive buffer of its connection. Dropping it gives the buffer back, from any
/// thread and in any order.
pub type Message = Lent<Pool>;
