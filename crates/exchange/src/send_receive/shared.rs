//! Receive buffers that several connections share (a shared receive queue).
//!
//! Buffers of its own cost each connection `depth * max_message` bytes, whether it uses them or
//! not; shared ones cost that once. Completions still arrive on each connection's own queue.
//!
//! With credits, each connection is granted its part of the shared receives when it is connected,
//! and gets a new grant for each message that it gives back: what is granted is never more than
//! what is posted, so no sender finds none. Without credits any number of connections may share,
//! and senders that are too fast provoke RNR NAKs.

use std::sync::Arc;

use doorbell_verbs::{Access, MemoryKind, Pd, PostError, Qp, Srq};

use super::credits::CREDIT_RECEIVES;
use super::pool::{Layout, Pool, Refused, Reposting, Store};
use crate::config::{Config, MAX_WINDOW};
use crate::error::ConnectError;

/// What shared receives are made with.
#[derive(Clone, Copy, Debug)]
pub struct SharedOptions {
    /// Receive buffers for data, for all connections together.
    pub depth: usize,
    /// Connections at most: for what carries no data, three more buffers each.
    pub connections: usize,
    /// Bytes of the longest message.
    pub max_message: usize,
    /// Who posts buffers again.
    pub reposting: Reposting,
}

/// Receive buffers that several connections share.
#[derive(Clone)]
pub struct SharedReceives {
    store: Arc<Store>,
    srq: Srq,
    pd: Pd,
    options: SharedOptions,
}

impl std::fmt::Debug for SharedReceives {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SharedReceives").field(&self.options).finish()
    }
}

impl SharedReceives {
    /// Allocates the buffers and posts them.
    ///
    /// # Errors
    ///
    /// An option is out of range, the queue or the memory cannot be made, or the receives cannot be posted.
    pub fn new(pd: &Pd, options: SharedOptions) -> Result<Self, ConnectError> {
        let most = pd.device().attributes().limits.max_queue_depth;
        let slots = options.connections.saturating_mul(CREDIT_RECEIVES).saturating_add(options.depth);
        let setting = |what, given: usize, allowed| ConnectError::Setting { what, given: given as u64, allowed };
        if !(1..=MAX_WINDOW).contains(&options.depth) {
            return Err(setting("the depth of shared receives", options.depth, "1 to 16384"));
        }
        if options.connections == 0 || slots > most {
            let allowed = "at least 1, and so many that three receives for each fit the queue too";
            return Err(setting("the number of connections that share receives", options.connections, allowed));
        }
        let config = Config { max_message: options.max_message, ..Config::default() };
        config.check()?;
        let (stride, repost_list) = (config.stride(), config.repost_list);
        let layout = Layout { slot_bytes: options.max_message, stride, repost_list };
        let srq = pd.create_srq(slots, 1)?;
        let region = pd.allocate(slots * layout.stride, Access::LOCAL_WRITE, MemoryKind::Plain)?;
        let SharedOptions { depth, connections, reposting, .. } = options;
        let store = Store::shared(srq.clone(), region, layout, slots, depth, connections, reposting);
        let all: Vec<u32> = (0..slots as u32).collect();
        store.post(&all)?;
        Ok(Self { store: Arc::new(store), srq, pd: pd.clone(), options })
    }

    /// Posts again what was given back, and tells the senders whose grants it renews. With
    /// [`Reposting::Thread`] nobody else does: call it again and again, from one thread. Returns
    /// how many.
    ///
    /// # Errors
    ///
    /// The device refuses a receive.
    pub fn repost(&self) -> Result<usize, PostError> {
        self.store.repost(None)
    }

    /// The shared receive queue.
    pub fn srq(&self) -> &Srq {
        &self.srq
    }

    /// What they were made with.
    pub fn options(&self) -> &SharedOptions {
        &self.options
    }

    pub(super) fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Checks that the messages of a connection of this configuration fit the buffers.
    pub(super) fn check_takes(&self, config: &Config) -> Result<(), ConnectError> {
        let (longest, shared) = (config.max_message, self.options.max_message);
        if longest > shared { Err(ConnectError::TooLongForShared { longest, shared }) } else { Ok(()) }
    }

    /// Gives a connection its part.
    pub(super) fn admit(&self, qp: Qp, config: &Config) -> Result<Arc<Pool>, ConnectError> {
        let share = if config.credits { config.depth } else { 0 };
        self.store.admit(share).map_err(|refused| match refused {
            Refused::Connections => ConnectError::Crowded("shared receive queue"),
            Refused::Share(left) => ConnectError::NoShare { wanted: share, left },
        })?;
        Ok(Pool::sharing(&self.store, qp, config.depth, config.credits))
    }

    #[cfg(test)]
    pub(super) fn unclaimed(&self) -> (usize, usize) {
        self.store.unclaimed()
    }
}
