//! A lock per key, for which clients queue. The lock's word in memory is that of the client that came last. Each
//! client but the first waits until the one ahead hands over, by a datagram between the two. So waiting costs the
//! memory node nothing. (The queue is that of Mellor-Crummey and Scott, TOCS 1991, in which a swap is made of CASes.)
//!
//! As with the other lock, safety does not hang on it. A client that hears nothing of the one ahead for a lease has it
//! shut out, and goes on.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use crate::client::{Kind, Outcome};
use crate::error::StoreError;
use crate::lock_messages::{Address, LockMessenger};
use crate::rpc::{Reply, Request};
use crate::strategy::Rules;
use crate::strategy::chain::{Chain, Pace, get, keep_unused};
use crate::strategy::lock::{lockable, new_word, owner, shut_out};
use crate::worker::Worker;

/// Time without an answer after which a client asks the client ahead again.
const ASK_AGAIN_NS: u64 = 100_000;

/// Writes under a lock that is handed over.
#[derive(Debug)]
pub(super) struct QueueLocked {
    messenger: Rc<RefCell<LockMessenger>>,
    /// A lock without a known waiting client: the key's number, and the word.
    to_release: Cell<Option<(u32, u64)>>,
}

impl QueueLocked {
    pub(super) fn new(messenger: &Rc<RefCell<LockMessenger>>) -> Self {
        Self { messenger: Rc::clone(messenger), to_release: Cell::new(None) }
    }
}

impl Rules for QueueLocked {
    async fn run(&self, worker: &mut Worker) -> Result<Outcome, StoreError> {
        if worker.kind() == Kind::Get {
            return get(worker).await;
        }
        let chain = Chain { is_chained: false, pace: Pace::AtOnce };
        let Some(entry) = lockable(worker).await? else { return chain.write(worker).await };
        // The node is written before the lock is requested, so a holder has only to post a CAS.
        let new = worker.take_node().await?;
        worker.write(new, None).await?;
        let queued = Queued { messenger: &self.messenger, word: new_word(&worker.core) };
        acquire(worker, entry.number, queued.word, &self.messenger).await?;
        let result = chain.write_node(worker, new, true).await;
        let newest = worker.known().filter(|newest| newest.number == entry.number);
        let is_handed_over = {
            let (mut messenger, key) = (self.messenger.borrow_mut(), worker.key());
            messenger.set_newest(queued.word, newest.map(|newest| (newest, &key[..])));
            messenger.hand_over(queued.word)
        };
        if !is_handed_over && result.is_ok() {
            self.to_release.set(Some((entry.number, queued.word)));
            std::mem::forget(queued); // it stays until `after` is done with it
        }
        keep_unused(worker, new, result)
    }

    /// Takes the lock's word away if no client has come. The operation is over before that.
    async fn after(&self, worker: &mut Worker) {
        let Some((number, word)) = self.to_release.take() else { return };
        let queued = Queued { messenger: &self.messenger, word };
        worker.lingers(true);
        let found = worker.swap_lock(number, word, 0).await;
        let mut messenger = self.messenger.borrow_mut();
        if found.is_ok_and(|found| found != word) && !messenger.hand_over(word) {
            // Another client came meanwhile, and will send a message.
            messenger.owe(word, worker.core.device.now_ns());
            std::mem::forget(queued);
        }
        drop(messenger);
        worker.lingers(false);
    }
}

/// A lock's word, which is forgotten if the operation that made it stops half-way. A client that asks about it then
/// gets the lock.
struct Queued<'a> {
    messenger: &'a RefCell<LockMessenger>,
    word: u64,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.messenger.borrow_mut().forget(self.word);
    }
}

/// Queues for the lock, and waits until it is this client's.
async fn acquire(worker: &Worker, number: u32, own: u64, messenger: &RefCell<LockMessenger>) -> Result<(), StoreError> {
    let core = &worker.core;
    messenger.borrow_mut().begin(own, core.device.now_ns());
    let mut ahead = 0;
    loop {
        worker.count(|counts| counts.lock_attempts += 1);
        let found = worker.swap_lock(number, ahead, own).await?;
        if found == ahead {
            break;
        }
        ahead = found;
    }
    // If no client made the word, there is no client to wait for.
    let (Some(client), false) = (owner(ahead), ahead == 0) else {
        messenger.borrow_mut().own(own);
        return Ok(());
    };
    let Some(address) = address(worker, client, messenger).await? else {
        messenger.borrow_mut().own(own); // the client ahead is gone
        return Ok(());
    };
    worker.count(|counts| counts.handovers += 1);
    messenger.borrow_mut().waits(own, core.device.now_ns());
    let is_over = |now_ns: u64| {
        let mut messenger = messenger.borrow_mut();
        let is_late = client != core.number && now_ns.saturating_sub(messenger.heard_ns(own)) > core.lease_ns;
        messenger.owns(own) || messenger.is_gone(client) || is_late
    };
    let mut ask_at_ns = 0;
    poll_fn(|_| {
        let now_ns = core.device.now_ns();
        if let Some(error) = core.nodes.failed() {
            return Poll::Ready(Err(error));
        }
        if is_over(now_ns) {
            return Poll::Ready(Ok(()));
        }
        if now_ns >= ask_at_ns {
            messenger.borrow_mut().ask(address, ahead, own);
            ask_at_ns = now_ns + ASK_AGAIN_NS;
            worker.until(Some(ask_at_ns));
            if is_over(now_ns) {
                return Poll::Ready(Ok(())); // the one ahead is another slot of this client
            }
        }
        Poll::Pending
    })
    .await?;
    worker.until(None);
    if !messenger.borrow_mut().owns(own) {
        let is_gone = messenger.borrow_mut().is_gone(client);
        if !is_gone && shut_out(worker, client).await? {
            messenger.borrow_mut().is_shut_out(client);
        }
        messenger.borrow_mut().own(own);
    }
    Ok(())
}

/// Returns the address at which a client receives its messages. `None` if the client is gone, or if no one knows any
/// more.
async fn address(
    worker: &Worker,
    client: u32,
    messenger: &RefCell<LockMessenger>,
) -> Result<Option<Address>, StoreError> {
    let core = &worker.core;
    if client == core.number {
        return Ok(Some(messenger.borrow_mut().address()));
    }
    if messenger.borrow_mut().is_gone(client) {
        return Ok(None);
    }
    let known = messenger.borrow().known(client);
    if let Some(address) = known {
        return Ok(Some(address));
    }
    match worker.ask(|tag| Request::Peer { tag, client }).await {
        Ok(Reply::Peer { gid, qpn, .. }) => {
            let address = Address { gid, qpn };
            messenger.borrow_mut().learn(client, address);
            Ok(Some(address))
        }
        Ok(Reply::Absent { .. }) | Err(StoreError::MetadataGone(_)) => Ok(None),
        Ok(_) => Err(StoreError::Protocol("it sent an answer to another question")),
        Err(error) => Err(error),
    }
}
