//! Receive buffers, which are posted as receives, held by the program as messages, and returned in any order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use doorbell_verbs::{Payload, PostError, Qp, RecvRequest, Region, SendFlags, SendOperation, SendRequest, Sge, Srq};
use smallvec::SmallVec;

use super::credits::Word;
use super::reports::ReceiveCredits;
pub(crate) use super::returns::Refused;
use super::returns::{Granted, Grants, Returns};
use crate::connection::carrier::{CONTROL_TAG, RECEIVE_TAG};
use crate::connection::config::MAX_REPOST_LIST;
use crate::connection::lent::{Buffers, Lent};

/// Id of credit messages.
pub(crate) const CREDIT_TAG: u64 = CONTROL_TAG;

/// Queue to which a store posts its receives.
enum Target {
    /// The queue pair of one connection.
    Qp(Qp),
    /// A shared receive queue of several connections.
    Srq(Srq),
}

/// Choice of the thread that reposts returned buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reposting {
    /// A thread that polls a connection, or that returns enough buffers for a post. While one thread reposts, other
    /// threads skip the reposting.
    Locked,
    /// Only a thread of the program that calls [`SharedReceives::repost`](super::shared::SharedReceives::repost).
    Thread,
}

/// Receive buffers of one connection, or of all connections that share them.
pub(crate) struct Store {
    target: Target,
    region: Region,
    layout: Layout,
    returns: Returns<Account, PostError>,
    reposting: Reposting,
}

impl Store {
    /// Makes a store of `slots` shared buffers. The connections may reserve `available` of the receives. At most
    /// `connections` connections may use the store.
    pub(crate) fn shared(
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
        self.region.sge(self.layout.offset(slot), self.layout.slot_bytes)
    }

    /// Posts receives with these buffers.
    pub(crate) fn post(&self, slots: &[u32]) -> Result<(), PostError> {
        for slots in slots.chunks(self.layout.repost_list) {
            // `push` fills the lists in place. `collect` would move the long lists.
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

    /// Posts the returned buffers in lists, and increases the grants. Returns the number of posted buffers.
    #[inline]
    pub(crate) fn repost(&self, own: Option<&Account>) -> Result<usize, PostError> {
        self.returns.repost(own.map(Account::grants), |slots| self.post(slots))
    }

    /// Reserves `share` of the available receives for a connection. If too few are available, the error has the number
    /// of available receives.
    pub(crate) fn admit(&self, share: usize) -> Result<(), Refused> {
        self.returns.admit(share)
    }

    #[cfg(test)]
    pub(crate) fn unclaimed(&self) -> (usize, usize) {
        self.returns.unclaimed()
    }
}

/// Layout of receive buffers in their region.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) slot_bytes: usize,
    pub(crate) stride: usize,
    /// Number of buffers. If there are more receives than buffers, several receives share a buffer, and their messages
    /// must not be read.
    pub(crate) buffers: u32,
    /// Maximum number of receives in one post.
    pub(crate) repost_list: usize,
}

impl Layout {
    /// Returns the offset of a receive's buffer.
    #[inline]
    fn offset(&self, slot: u32) -> usize {
        let buffer = if slot < self.buffers { slot } else { slot % self.buffers };
        buffer as usize * self.stride
    }
}

/// Grants of one connection to its peer, and the grants that were reported to the peer.
pub(crate) struct Account {
    qp: Qp,
    grants: Grants,
    /// `None` without flow control.
    credits: Option<ReceiveCredits>,
    /// Number of credit messages that this side has sent.
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
            // If the post fails, the connection has ended or detects the error itself.
            if self.qp.post_send(&[request]).is_ok() {
                self.reports.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Receive buffers as one connection sees them: its own buffers, or its share of shared buffers.
pub struct Pool {
    store: Arc<Store>,
    account: Arc<Account>,
    is_shared: bool,
}

impl Pool {
    /// Makes a pool with its own buffers. Posts `granted` receives for data and `beside` receives for messages without
    /// data.
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

    /// Makes a pool for a connection that [`Store::admit`] has admitted.
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

    /// Reposts a buffer whose message carried no data for the program.
    pub(crate) fn post(&self, slot: u32) -> Result<(), PostError> {
        self.store.post(&[slot])
    }

    /// Counts a shared buffer that now holds data for the program.
    #[inline]
    pub(crate) fn taken(&self) {
        if self.is_shared {
            self.account.grants.taken();
        }
    }

    /// Returns the cumulative number of receives that were posted for data.
    #[inline]
    pub(crate) fn granted(&self) -> u64 {
        self.account.grants.granted()
    }

    /// Posts the returned buffers in lists, unless a thread of the program does it ([`Reposting::Thread`]).
    #[inline]
    pub(crate) fn repost(&self) -> Result<(), PostError> {
        match self.store.reposting {
            Reposting::Locked => self.store.repost(Some(&self.account)).map(drop),
            Reposting::Thread => Ok(()),
        }
    }

    /// Returns the number of credit messages that this side has sent.
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

    /// Gives the share of shared receives back, after the connection has ended and has returned the messages that the
    /// program did not take.
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
        self.store.layout.offset(slot)
    }

    fn give_back(&self, slot: u32) {
        let account = self.is_shared.then(|| Arc::clone(&self.account));
        if self.store.returns.give_back(slot, account) {
            // The store keeps an error of the post, and the connection finds the error with its next poll.
            let _ = self.repost();
            self.report();
        }
    }
}

/// A received message, which holds one receive buffer. Dropping the message gives the buffer back, from any thread and
/// in any order.
pub type Message = Lent<Pool>;
