//! Strategies of concurrent clients. All strategies have the same operations, the same memory and the same checks.

mod chain;
mod combine;
mod lock;
mod queue_lock;
mod server;
mod steered;

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use crate::calls::Calls;
use crate::client::Outcome;
use crate::combining::WakeWord;
use crate::error::StoreError;
use crate::lock_messages::LockMessenger;
use crate::worker::Worker;
use chain::{Chain, Pace};
use combine::Combined;
use lock::Locked;
use queue_lock::QueueLocked;
use server::Served;
use steered::Steered;

/// Method of clients to deal with conflicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Strategy {
    /// Write the node, wait, link it to the tail by CAS. If another client was faster, follow the chain and try again
    /// at once.
    Optimistic,
    /// The same, but WRITE and CAS leave together on one queue pair, which carries them out in order.
    Chained,
    /// As `optimistic`, but before another try a client waits for a random time, whose bound doubles each time. After
    /// 64 attempts the operation fails.
    Backoff,
    /// A client takes a lock of the key before it writes, and spins for it. A lock that does not move for a lease is
    /// broken, after its holder was shut out of the memory node.
    Lock,
    /// Clients queue for a key's lock, and each hands it over to the next one by a datagram, with the place of the
    /// newest node. A client that hears nothing of the one ahead for a lease has it shut out, and goes on.
    QueueLock,
    /// Puts of one key by clients of one host are combined: one is carried out, and the others share its result. Gets
    /// are combined in the same way. Inserts and deletes are those of `optimistic`.
    Combine,
    /// The memory node's CPU carries out requests that clients send in messages. It has a table of its own, whose
    /// contents no client of another strategy sees.
    Server,
    /// A middlebox ([`StoreControl`]) sends READs and CASes to the newest node of their key, whichever node a client
    /// names.
    ///
    /// [`StoreControl`]: crate::StoreControl
    Steered,
    /// The same of CASes alone; readers follow chains and shortcuts.
    SteeredWrite,
}

impl Strategy {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Optimistic,
        Self::Chained,
        Self::Backoff,
        Self::Lock,
        Self::QueueLock,
        Self::Combine,
        Self::Server,
        Self::Steered,
        Self::SteeredWrite,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Optimistic => "optimistic",
            Self::Chained => "chained",
            Self::Backoff => "backoff",
            Self::Lock => "lock",
            Self::QueueLock => "queue-lock",
            Self::Combine => "combine",
            Self::Server => "server",
            Self::Steered => "steered",
            Self::SteeredWrite => "steered-write",
        }
    }

    /// Returns whether the strategy relies on a middlebox to find newest nodes. It is right without one, but has no
    /// advantage.
    pub fn is_steered(self) -> bool {
        matches!(self, Self::Steered | Self::SteeredWrite)
    }

    /// Returns whether a store of this strategy can have two memory nodes. Its clients write themselves, and find
    /// every word at its expected place.
    pub fn is_replicable(self) -> bool {
        self != Self::Server && !self.is_steered()
    }

    /// Returns whether the middlebox steers its READs.
    pub fn steers_reads(self) -> bool {
        self == Self::Steered
    }

    /// Returns the strategy of this name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|strategy| strategy.name() == name)
    }
}

/// The operations of a strategy.
pub(crate) trait Rules: 'static {
    /// Runs the operation of the worker.
    fn run(&self, worker: &mut Worker) -> impl Future<Output = Result<Outcome, StoreError>>;

    /// Does the remaining work after the operation is over.
    fn after(&self, _worker: &mut Worker) -> impl Future<Output = ()> {
        std::future::ready(())
    }
}

/// Means of a strategy beside verbs on the memory node, shared by all slots of a client.
#[derive(Debug)]
pub(crate) enum Means {
    Nothing,
    /// Messages to other clients about locks.
    LockMessages(Rc<RefCell<LockMessenger>>),
    /// A word that other clients of the host change.
    WakeWord(Arc<WakeWord>),
    /// Questions to the memory node's CPU.
    Calls(Rc<RefCell<Calls>>),
}

/// Returns the future of a worker that runs operations by a strategy, forever.
pub(crate) fn start(strategy: Strategy, means: &Means, worker: Worker) -> Pin<Box<dyn Future<Output = ()>>> {
    match (strategy, means) {
        (_, Means::LockMessages(messenger)) => Box::pin(serve(QueueLocked::new(messenger), worker)),
        (_, Means::WakeWord(wake_word)) => Box::pin(serve(Combined::new(wake_word), worker)),
        (_, Means::Calls(calls)) => Box::pin(serve(Served::new(calls), worker)),
        (Strategy::Chained, _) => Box::pin(serve(Chain { is_chained: true, pace: Pace::AtOnce }, worker)),
        (Strategy::Backoff, _) => Box::pin(serve(Chain { is_chained: false, pace: Pace::BACKOFF }, worker)),
        (Strategy::Lock, _) => Box::pin(serve(Locked, worker)),
        (Strategy::Steered | Strategy::SteeredWrite, _) => Box::pin(serve(Steered, worker)),
        _ => Box::pin(serve(Chain { is_chained: false, pace: Pace::AtOnce }, worker)),
    }
}

async fn serve<R: Rules>(rules: R, mut worker: Worker) {
    loop {
        worker.next().await;
        let result = rules.run(&mut worker).await;
        worker.end(result);
        rules.after(&mut worker).await;
    }
}
