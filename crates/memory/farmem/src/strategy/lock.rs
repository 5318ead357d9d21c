//! A lock per key: a word next to the key's shortcut, for which clients spin with CASes.
//!
//! The correctness of writes does not depend on the lock: under the lock, a write appends to the chain with the same
//! CAS. The lock only saves clients the attempts that would fail. So a client that was wrongly thought dead does no
//! harm, even before it is shut out.

use crate::cache::Entry;
use crate::client_core::Core;
use crate::error::StoreError;
use crate::operation::{Kind, Outcome};
use crate::rpc::{Reply, Request};
use crate::strategy::Rules;
use crate::strategy::chain::{Chain, Pace, get};
use crate::worker::Worker;

/// Number of bits of a lock word that count the locks that the client has taken. The count makes each word of the
/// client unique.
const COUNT_BITS: u32 = 32;

/// The strategy `lock`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Locked;

impl Rules for Locked {
    async fn run(&self, worker: &mut Worker) -> Result<Outcome, StoreError> {
        if worker.kind() == Kind::Get {
            return get(worker).await;
        }
        let chain = Chain { is_chained: false, pace: Pace::AtOnce };
        let Some(entry) = lockable(worker).await? else { return chain.write(worker).await };
        let own = acquire(worker, entry.number).await?;
        let result = chain.write(worker).await;
        worker.release_lock(entry.number, own)?;
        result
    }
}

/// Returns the entry of the operation's key, if the key exists. A key that does not exist has no lock; the metadata
/// service decides which client creates the key.
pub(super) async fn lockable(worker: &Worker) -> Result<Option<Entry>, StoreError> {
    match worker.known() {
        Some(entry) => Ok(Some(entry)),
        None => worker.look_up().await,
    }
}

/// Returns a lock word that no client has used before.
pub(super) fn new_word(core: &Core) -> u64 {
    core.locks.set(core.locks.get() + 1);
    (u64::from(core.number) + 1) << COUNT_BITS | core.locks.get() & (u64::MAX >> COUNT_BITS)
}

/// Returns the client that created the lock word. `None` if no client creates such a word.
pub(super) fn owner(word: u64) -> Option<u32> {
    ((word >> COUNT_BITS) as u32).checked_sub(1)
}

/// Takes the lock of a key. Returns the lock word of this client.
async fn acquire(worker: &Worker, number: u32) -> Result<u64, StoreError> {
    let core = &worker.core;
    let own = new_word(core);
    let (mut expected, mut holder) = (0, 0);
    let mut since_ns = core.device.now_ns();
    loop {
        worker.count(|counts| counts.lock_attempts += 1);
        let found = worker.swap_lock(number, expected, own).await?;
        if found == expected {
            return Ok(own);
        }
        let now = core.device.now_ns();
        expected = 0;
        if found != holder {
            (holder, since_ns) = (found, now);
        } else if found != 0 && now.saturating_sub(since_ns) > core.lease_ns {
            let is_out = match owner(holder).filter(|&client| client != core.number) {
                Some(client) => shut_out(worker, client).await?,
                None => true,
            };
            match is_out {
                true => expected = holder, // the holder can write nothing any more
                false => since_ns = core.device.now_ns(),
            }
        }
    }
}

/// Has the holder of a lock shut out of the memory node, which then executes no further request of the holder. Returns
/// false if the holder was waiting for a memory node that has failed.
pub(super) async fn shut_out(worker: &Worker, client: u32) -> Result<bool, StoreError> {
    worker.count(|counts| counts.suspects += 1);
    match worker.ask(|tag| Request::Suspect { tag, client }).await? {
        Reply::Fenced { .. } => Ok(true),
        Reply::Again { .. } => Ok(false),
        _ => Err(StoreError::Protocol("the metadata service sent an answer to another request")),
    }
}
