//! A lock per key, for which clients queue. The lock's word in memory is the word of the client that queued last. Each
//! client but the first waits for a datagram of the client ahead, which hands the lock over. So waiting clients cause
//! no load on the memory node. (The queue is that of Mellor-Crummey and Scott, TOCS 1991, with CASes in place of a
//! swap.)
//!
//! As with the other lock, correctness does not depend on the lock. A client that hears nothing from the client ahead
//! for a lease has that client shut out, and continues.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use crate::error::StoreError;
use crate::lock_messages::{Address, LockMessenger};
use crate::operation::{Kind, Outcome};
use crate::rpc::{Reply, Request};
use crate::strategy::Rules;
use crate::strategy::chain::{Chain, Pace, get, keep_unused};
use crate::strategy::lock::{lockable, new_word, owner, shut_out};
use crate::worker::Worker;

/// Time without a message after which a waiting client asks the client ahead again.
const ASK_AGAIN_NS: u64 = 100_000;

/// The strategy `queue-lock`.
#[derive(Debug)]
pub(super) struct QueueLocked {
    messenger: Rc<RefCell<LockMessenger>>,
    /// A lock that this client holds and for which no other client has asked: the number of the key, and the lock word.
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
        // WRITE the node before taking the lock, so that the holder of the lock only has to post a CAS.
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
            std::mem::forget(queued); // the messenger keeps the word until `after` has run
        }
        keep_unused(worker, new, result)
    }

    /// Resets the lock's word in memory if no other client has queued. The operation already has its result.
    async fn after(&self, worker: &mut Worker) {
        let Some((number, word)) = self.to_release.take() else { return };
        let queued = Queued { messenger: &self.messenger, word };
        worker.lingers(true);
        let found = worker.swap_lock(number, word, 0).await;
        let mut messenger = self.messenger.borrow_mut();
        if found.is_ok_and(|found| found != word) && !messenger.hand_over(word) {
            // Another client has queued meanwhile and will ask for the lock.
            messenger.owe(word, worker.core.device.now_ns());
            std::mem::forget(queued);
        }
        drop(messenger);
        worker.lingers(false);
    }
}

/// A lock word of a running operation. If the operation stops half-way, the messenger forgets the word. A client that
/// asks about a forgotten word gets the lock.
struct Queued<'a> {
    messenger: &'a RefCell<LockMessenger>,
    word: u64,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.messenger.borrow_mut().forget(self.word);
    }
}

/// Queues for the lock and waits until this client holds it.
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
    // If no client creates such a word, there is no client ahead to wait for.
    let (Some(client), false) = (owner(ahead), ahead == 0) else {
        messenger.borrow_mut().own(own);
        return Ok(());
    };
    let Some(address) = address(worker, client, messenger).await? else {
        messenger.borrow_mut().own(own); // the client ahead was shut out
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
                return Poll::Ready(Ok(())); // another slot of this client was ahead and has handed the lock over
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

/// Returns the address at which a client receives messages. `None` if the client is gone, or if the metadata service is
/// gone and this client does not know the address.
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
        Ok(_) => Err(StoreError::Protocol("the metadata service sent an answer to another request")),
        Err(error) => Err(error),
    }
}
