//! A lock per key: a word beside the key's shortcut, which a client takes by CAS and spins for.
//!
//! Safety does not hang on it: below the lock a write is the same chain with the same CAS. The lock only spares clients
//! the attempts that would fail. So a client that was thought dead and is not does no harm, even before it is shut out.

use crate::cache::Entry;
use crate::client::{Core, Kind, Outcome};
use crate::error::StoreError;
use crate::rpc::{Reply, Request};
use crate::strategy::Rules;
use crate::strategy::chain::{Chain, Pace, get};
use crate::worker::Worker;

/// Bits of a lock's word for the count of locks that its holder took, so that no two words are equal.
const COUNT_BITS: u32 = 32;

/// Writes under a lock.
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

/// Returns the key, if there is one. A key that does not exist has no lock; the metadata service decides which client
/// creates it.
pub(super) async fn lockable(worker: &Worker) -> Result<Option<Entry>, StoreError> {
    match worker.known() {
        Some(entry) => Ok(Some(entry)),
        None => worker.look_up().await,
    }
}

/// Returns a word for a lock that no client has used before.
pub(super) fn new_word(core: &Core) -> u64 {
    core.locks.set(core.locks.get() + 1);
    (u64::from(core.number) + 1) << COUNT_BITS | core.locks.get() & (u64::MAX >> COUNT_BITS)
}

/// Returns the client that made the word. `None` of a word that no client makes.
pub(super) fn owner(word: u64) -> Option<u32> {
    ((word >> COUNT_BITS) as u32).checked_sub(1)
}

/// Takes the lock. Returns its word.
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
                true => expected = holder, // the holder writes nothing any more
                false => since_ns = core.device.now_ns(),
            }
        }
    }
}

/// Has the holder of a lock shut out of the memory node. Afterwards none of its posted requests is carried out any
/// more. Returns false if a memory node kept the holder waiting.
pub(super) async fn shut_out(worker: &Worker, client: u32) -> Result<bool, StoreError> {
    worker.count(|counts| counts.suspects += 1);
    match worker.ask(|tag| Request::Suspect { tag, client }).await? {
        Reply::Fenced { .. } => Ok(true),
        Reply::Again { .. } => Ok(false),
        _ => Err(StoreError::Protocol("it sent an answer to another question")),
    }
}
