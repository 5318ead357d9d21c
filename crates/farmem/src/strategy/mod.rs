//! What clients do about each other. All strategies have the same operations, the same memory and the same checks.

mod chain;
mod lock;

use std::future::Future;
use std::pin::Pin;

use crate::client::Outcome;
use crate::error::StoreError;
use crate::worker::Worker;
use chain::{Chain, Pace};
use lock::Locked;

/// How clients deal with conflicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Strategy {
    /// Write the node, wait, link it to the tail by CAS; where another client was faster, follow the chain and try again
    /// at once.
    Optimistic,
    /// The same, but WRITE and CAS leave together on one queue pair, which carries them out in order.
    Chained,
    /// As `optimistic`; before another try a client waits for a random time, whose bound doubles each time. After 64
    /// attempts the operation fails.
    Backoff,
    /// A client takes a lock of the key before it writes, and spins for it. A lock that does not move for a lease is
    /// broken, after its holder was shut out of the memory node.
    Lock,
}

impl Strategy {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Optimistic, Self::Chained, Self::Backoff, Self::Lock];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Optimistic => "optimistic",
            Self::Chained => "chained",
            Self::Backoff => "backoff",
            Self::Lock => "lock",
        }
    }

    /// The strategy of this name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|strategy| strategy.name() == name)
    }
}

/// What a strategy does with an operation.
pub(crate) trait Rules: Copy + 'static {
    /// Runs the operation that the worker was given.
    fn run(self, worker: &mut Worker) -> impl Future<Output = Result<Outcome, StoreError>>;
}

/// A worker that runs operations by a strategy, for ever.
pub(crate) fn start(strategy: Strategy, worker: Worker) -> Pin<Box<dyn Future<Output = ()>>> {
    match strategy {
        Strategy::Optimistic => Box::pin(serve(Chain { is_chained: false, pace: Pace::AtOnce }, worker)),
        Strategy::Chained => Box::pin(serve(Chain { is_chained: true, pace: Pace::AtOnce }, worker)),
        Strategy::Backoff => Box::pin(serve(Chain { is_chained: false, pace: Pace::BACKOFF }, worker)),
        Strategy::Lock => Box::pin(serve(Locked, worker)),
    }
}

async fn serve<R: Rules>(rules: R, mut worker: Worker) {
    loop {
        worker.next().await;
        let result = rules.run(&mut worker).await;
        worker.end(result);
    }
}
