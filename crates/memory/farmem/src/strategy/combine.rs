//! Combining of operations by clients of one host: of several concurrent puts of one key, one is executed, and so is
//! one of several gets. The other operations share its result.
//!
//! A put that shares a result has no effect of its own. The put counts as taking effect just before the executed put,
//! which began after the other put had joined. A get that shares a result joined before the READ that answers it was
//! posted. Inserts and deletes are never combined.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use crate::client_core::Core;
use crate::combining::{Batch, Notice, Waiter, WakeWord};
use crate::error::StoreError;
use crate::operation::{Kind, Outcome};
use crate::strategy::Rules;
use crate::strategy::chain::{Chain, Pace, get};
use crate::worker::Worker;

const CHAIN: Chain = Chain { is_chained: false, pace: Pace::AtOnce };

/// The strategy `combine`.
#[derive(Clone, Debug)]
pub(super) struct Combined {
    waiter: Arc<Waiter>,
}

impl Combined {
    pub(super) fn new(wake_word: &Arc<WakeWord>) -> Self {
        Self { waiter: Waiter::new(wake_word) }
    }
}

/// Leader of a batch. A leader that is dropped without a result reports a failure to its batch, so that no operation
/// waits for a leader that has stopped.
struct Leader {
    core: Rc<Core>,
    slot: usize,
    batch: Option<Batch>,
}

impl Leader {
    fn finish(&mut self, done: Option<(Outcome, &[u8])>) {
        if let Some(batch) = self.batch.take() {
            let (now_ns, slot) = (self.core.device.now_ns(), &self.core.slots[self.slot]);
            self.core.cache.combiner().finish(&slot.key.borrow(), slot.kind.get(), batch, done, now_ns);
        }
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.finish(None);
    }
}

impl Rules for Combined {
    async fn run(&self, worker: &mut Worker) -> Result<Outcome, StoreError> {
        let kind = worker.kind();
        if !matches!(kind, Kind::Get | Kind::Put) {
            return CHAIN.write(worker).await;
        }
        let core = Rc::clone(&worker.core);
        let from_ns = core.device.now_ns();
        let joined = core.cache.combiner().join(&worker.key(), kind, &self.waiter, from_ns, core.lease_ns);
        let batch = match joined {
            Some(batch) => batch,
            None => match self.wait(worker, from_ns).await? {
                Notice::Done(outcome) => {
                    worker.count(|counts| counts.shared += 1);
                    return Ok(outcome);
                }
                Notice::Lead(batch) => batch,
                Notice::Again => return lead(worker).await,
            },
        };
        let is_alone = batch.len() == 0;
        let mut leader = Leader { core, slot: worker.slot, batch: Some(batch) };
        let result = lead(worker).await;
        if let Ok(outcome) = result {
            let value = worker.value();
            let value = if kind == Kind::Get && !is_alone { &value[..] } else { &[] };
            leader.finish(Some((outcome, value)));
        }
        result
    }
}

async fn lead(worker: &mut Worker) -> Result<Outcome, StoreError> {
    match worker.kind() {
        Kind::Get => {
            worker.holds(true);
            get(worker).await
        }
        _ => CHAIN.write(worker).await,
    }
}

impl Combined {
    /// Waits for a notice, for one lease at most.
    async fn wait(&self, worker: &Worker, from_ns: u64) -> Result<Notice, StoreError> {
        // A waiting operation knows no node, so it must not delay the recycling of nodes.
        worker.holds(false);
        let deadline = from_ns + worker.core.lease_ns;
        worker.until(Some(deadline));
        let waiter = &self.waiter;
        let notice = poll_fn(|_| {
            if let Some(notice) = worker.take_notice(waiter) {
                return Poll::Ready(Ok(notice));
            }
            match worker.core.nodes.failed() {
                Some(error) => Poll::Ready(Err(error)),
                None if worker.core.device.now_ns() >= deadline => Poll::Ready(Ok(Notice::Again)),
                None => Poll::Pending,
            }
        })
        .await;
        worker.until(None);
        // A notice may have arrived after the last poll.
        match (notice, waiter.leave()) {
            (Ok(Notice::Again), Some(notice)) => Ok(notice),
            (Err(error), Some(Notice::Lead(batch))) => {
                drop(Leader { core: Rc::clone(&worker.core), slot: worker.slot, batch: Some(batch) });
                Err(error)
            }
            (notice, _) => notice,
        }
    }
}
