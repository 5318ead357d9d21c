//! Receive buffers: posted, lent to the program as messages, given back in any order.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, TryLockError};

use crossbeam_queue::ArrayQueue;
use doorbell_verbs::{Payload, PostError, Qp, RecvRequest, Region, SendFlags, SendOperation, SendRequest, Sge};
use smallvec::SmallVec;

use super::credits::{ReceiveCredits, Word};

/// Marks the work requests of receives.
pub(crate) const RECEIVE_TAG: u64 = 1 << 63;

/// Marks the work requests of messages that carry no data; which of them, the rest says.
pub(crate) const CONTROL_TAG: u64 = 1 << 62;
/// A credit message.
pub(crate) const CREDIT_TAG: u64 = CONTROL_TAG;
/// The last message of this side.
pub(crate) const GOODBYE_TAG: u64 = CONTROL_TAG | 1;
/// The question whether the peer lives.
pub(crate) const KEEPALIVE_TAG: u64 = CONTROL_TAG | 2;

/// Receives in one post at most.
const REPOST_LIST: usize = 64;

pub(crate) struct Pool {
    qp: Qp,
    region: Region,
    slot_bytes: usize,
    stride: usize,
    /// Buffers that were given back and are not posted again yet.
    returned: ArrayQueue<u32>,
    /// Give back this many, and the last one reposts them itself.
    repost_at: usize,
    /// Receives posted for data so far.
    granted: AtomicU64,
    /// `None` without flow control.
    pub(crate) credits: Option<ReceiveCredits>,
    /// Credit messages that were sent.
    reports: AtomicU64,
    /// Whoever reposts; it also keeps an error until the connection looks.
    reposting: Mutex<Option<PostError>>,
}

impl Pool {
    /// `granted` receives are posted for data, `beside` more for what carries no data.
    pub(crate) fn new(
        qp: Qp,
        region: Region,
        slot_bytes: usize,
        stride: usize,
        granted: usize,
        beside: usize,
        flow_control: bool,
    ) -> Arc<Self> {
        let slots = granted + beside;
        Arc::new(Self {
            qp,
            region,
            slot_bytes,
            stride,
            returned: ArrayQueue::new(slots),
            repost_at: (granted / 4).max(1),
            granted: AtomicU64::new(granted as u64),
            credits: flow_control.then(|| ReceiveCredits::new(granted as u64)),
            reports: AtomicU64::new(0),
            reposting: Mutex::new(None),
        })
    }

    fn sge(&self, slot: u32) -> Sge {
        self.region.sge(slot as usize * self.stride, self.slot_bytes)
    }

    /// Posts these buffers.
    pub(crate) fn post(&self, slots: &[u32]) -> Result<(), PostError> {
        for slots in slots.chunks(REPOST_LIST) {
            let sges: SmallVec<[Sge; REPOST_LIST]> = slots.iter().map(|&slot| self.sge(slot)).collect();
            let list: SmallVec<[RecvRequest<'_>; REPOST_LIST]> = slots
                .iter()
                .zip(&sges)
                .map(|(&slot, sge)| RecvRequest {
                    wr_id: RECEIVE_TAG | u64::from(slot),
                    sges: std::slice::from_ref(sge),
                })
                .collect();
            self.qp.post_recv(&list)?;
        }
        Ok(())
    }

    /// Receives posted for data so far.
    #[inline]
    pub(crate) fn granted(&self) -> u64 {
        self.granted.load(Ordering::Acquire)
    }

    /// Posts what was given back, in lists.
    #[inline]
    pub(crate) fn repost(&self) -> Result<(), PostError> {
        if self.returned.is_empty() {
            return Ok(());
        }
        let mut failed = match self.reposting.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(()), // another thread is at it
        };
        if let Some(error) = *failed {
            return Err(error);
        }
        loop {
            let mut slots: SmallVec<[u32; REPOST_LIST]> = SmallVec::new();
            while slots.len() < REPOST_LIST
                && let Some(slot) = self.returned.pop()
            {
                slots.push(slot);
            }
            if slots.is_empty() {
                return Ok(());
            }
            if let Err(error) = self.post(&slots) {
                *failed = Some(error);
                return Err(error);
            }
            self.granted.fetch_add(slots.len() as u64, Ordering::Release);
        }
    }

    /// Credit messages that were sent.
    pub(crate) fn reports(&self) -> u64 {
        self.reports.load(Ordering::Relaxed)
    }

    /// Buffers that were given back and are not posted again yet.
    #[inline]
    pub(crate) fn returned(&self) -> usize {
        self.returned.len()
    }

    fn give_back(&self, slot: u32) {
        // There is a place for every buffer, and each is given back once.
        let _ = self.returned.push(slot);
        if self.returned.len() >= self.repost_at {
            // An error stays where the connection finds it.
            let _ = self.repost();
            self.report();
        }
    }

    /// Tells the peer of receives that were posted, if it is time to.
    #[inline]
    pub(crate) fn report(&self) {
        if let Some(credits) = &self.credits
            && credits.take_due(self.granted())
        {
            let word = Word::new(true, self.granted());
            let request = SendRequest {
                wr_id: CREDIT_TAG,
                operation: SendOperation::SendImmediate(word.encode()),
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
        unsafe { self.pool.region.slice(self.slot as usize * self.pool.stride, self.length) }
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
