//! Implementations of strategies for conflicting writes. All strategies have the same operations and the same memory
//! layout, and pass the same checks.

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
use crate::combining::WakeWord;
use crate::error::StoreError;
use crate::lock_messages::LockMessenger;
use crate::methods::Strategy;
use crate::operation::Outcome;
use crate::worker::Worker;
use chain::{Chain, Pace};
use combine::Combined;
use lock::Locked;
use queue_lock::QueueLocked;
use server::Served;
use steered::Steered;

/// The implementation of a strategy's operations.
pub(crate) trait Rules: 'static {
    /// Runs the operation of the worker.
    fn run(&self, worker: &mut Worker) -> impl Future<Output = Result<Outcome, StoreError>>;

    /// Does the remaining work of an operation that already has its result.
    fn after(&self, _worker: &mut Worker) -> impl Future<Output = ()> {
        std::future::ready(())
    }
}

/// Resources of a strategy besides verbs on the memory node. All slots of a client share them.
#[derive(Debug)]
pub(crate) enum Means {
    Nothing,
    /// Lock messages to and from other clients.
    LockMessages(Rc<RefCell<LockMessenger>>),
    /// The word through which other clients of the host wake this client.
    WakeWord(Arc<WakeWord>),
    /// The connection for requests to the memory node's CPU.
    Calls(Rc<RefCell<Calls>>),
}

/// Returns the future of a worker, which runs operations with this strategy and never completes.
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
