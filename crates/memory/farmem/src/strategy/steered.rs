//! Behind a middlebox that knows the newest node of each key.
//!
//! A client does the same as in `optimistic`. The box sends its CAS to the newest node instead of the named one, and
//! with `steered` its READs too. So the word that a successful CAS found shows the client which node precedes its
//! own. A client that has READ takes the node's place from the node. Without a box the same code is right and slow.

use crate::client::{Kind, Outcome};
use crate::error::StoreError;
use crate::strategy::Rules;
use crate::strategy::chain::{Chain, Pace, get};
use crate::worker::Worker;

/// Lets a middlebox find the newest node.
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
