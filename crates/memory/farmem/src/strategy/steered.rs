//! Writes and reads behind a middlebox that knows the newest node of each key.
//!
//! A client behaves as in `optimistic`. The box sends the client's CAS to the newest node instead of the named node,
//! and with `steered` also the client's READs. So the word that a successful CAS found tells the client which node
//! precedes its new node. After a READ, the client takes the node's place from the node itself. Without a box the same
//! code is correct but slow.

use crate::error::StoreError;
use crate::operation::{Kind, Outcome};
use crate::strategy::Rules;
use crate::strategy::chain::{Chain, Pace, get};
use crate::worker::Worker;

/// The strategies `steered` and `steered-write`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steered;

impl Rules for Steered {
    async fn run(&self, worker: &mut Worker) -> Result<Outcome, StoreError> {
        match worker.kind() {
            Kind::Get => get(worker).await,
            _ => Chain { is_chained: false, pace: Pace::AtOnce }.write(worker).await,
        }
    }
}
