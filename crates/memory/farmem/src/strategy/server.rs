//! Operations that the memory node's CPU executes.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use crate::calls::Calls;
use crate::error::StoreError;
use crate::operation::Outcome;
use crate::strategy::Rules;
use crate::worker::Worker;

/// The strategy `server`.
#[derive(Clone, Debug)]
pub(super) struct Served {
    calls: Rc<RefCell<Calls>>,
}

impl Served {
    pub(super) fn new(calls: &Rc<RefCell<Calls>>) -> Self {
        Self { calls: Rc::clone(calls) }
    }
}

impl Rules for Served {
    async fn run(&self, worker: &mut Worker) -> Result<Outcome, StoreError> {
        // The operation knows no node, so it must not delay the recycling of nodes.
        worker.holds(false);
        let (kind, mut is_asked) = (worker.kind(), false);
        let outcome = poll_fn(|_| {
            let mut calls = self.calls.borrow_mut();
            if !is_asked {
                match calls.ask(worker.slot, kind, &worker.key(), &worker.value()) {
                    Ok(true) => is_asked = true,
                    Ok(false) => {}
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
            match worker.take_answer(&mut calls) {
                Some(result) if is_asked => Poll::Ready(result),
                _ => Poll::Pending,
            }
        })
        .await?;
        worker.attempt(0, true);
        Ok(outcome)
    }
}
