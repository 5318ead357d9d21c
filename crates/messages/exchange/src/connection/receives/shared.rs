//! Receive buffers that several connections share (a shared receive queue).
//!
//! A connection with its own buffers allocates `depth * max_message` bytes, even if it receives few messages.
//! Connections with shared buffers allocate these bytes only once for all connections. Each connection still has its
//! own completion queue.
//!
//! With credits, each connection gets its share of the receives when it connects, and grants this share to its peer.
//! For each message that the program drops, the connection grants one more receive. The grants of all connections never
//! exceed the posted receives, so each message finds a receive. Without credits, connections need no share, and fast
//! senders cause RNR NAKs.

use std::sync::Arc;

use doorbell_verbs::{Access, MemoryKind, Pd, PostError, Qp, Srq};

use super::pool::{Layout, Pool, Refused, Reposting, Store};
use crate::connection::config::{CREDIT_RECEIVES, Config, MAX_WINDOW};
use crate::connection::error::ConnectError;

/// Options of shared receives.
#[derive(Clone, Copy, Debug)]
pub struct SharedOptions {
    /// Number of receive buffers for data, for all connections together.
    pub depth: usize,
    /// Maximum number of connections. Three more buffers are allocated for each connection, for messages without data.
    pub connections: usize,
    /// Bytes of each buffer: the longest message that a connection can receive.
    pub max_message: usize,
    /// Choice of the thread that reposts returned buffers.
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
    /// An option is out of range, or the device rejects the queue, the memory or the receives.
    pub fn new(pd: &Pd, options: SharedOptions) -> Result<Self, ConnectError> {
        let most = pd.device().attributes().limits.max_queue_depth;
        let slots = options.connections.saturating_mul(CREDIT_RECEIVES).saturating_add(options.depth);
        let setting = |what, given: usize, allowed| ConnectError::Setting { what, given: given as u64, allowed };
        if !(1..=MAX_WINDOW).contains(&options.depth) {
            return Err(setting("the depth of shared receives", options.depth, "1 to 16384"));
        }
        if options.connections == 0 || slots > most {
            let allowed = "at least 1, with room for three receives of each in the device's longest queue";
            return Err(setting("the number of connections that share receives", options.connections, allowed));
        }
        let config = Config { max_message: options.max_message, ..Config::default() };
        config.check()?;
        let (stride, repost_list) = (config.stride(), config.repost_list);
        let layout = Layout { slot_bytes: options.max_message, stride, buffers: slots as u32, repost_list };
        let srq = pd.create_srq(slots, 1)?;
        let region = pd.allocate(slots * layout.stride, Access::LOCAL_WRITE, MemoryKind::Plain)?;
        let SharedOptions { depth, connections, reposting, .. } = options;
        let store = Store::shared(srq.clone(), region, layout, slots, depth, connections, reposting);
        let all: Vec<u32> = (0..slots as u32).collect();
        store.post(&all)?;
        Ok(Self { store: Arc::new(store), srq, pd: pd.clone(), options })
    }

    /// Posts the returned buffers, and reports the increased grants to the senders. Returns the number of posted
    /// buffers. With [`Reposting::Thread`], only this function reposts buffers: call it again and again from one
    /// thread.
    ///
    /// # Errors
    ///
    /// The device rejects a receive.
    pub fn repost(&self) -> Result<usize, PostError> {
        self.store.repost(None)
    }

    /// Returns the shared receive queue.
    pub fn srq(&self) -> &Srq {
        &self.srq
    }

    /// Returns the options of the receives.
    pub fn options(&self) -> &SharedOptions {
        &self.options
    }

    pub(crate) fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Checks that the longest message of this configuration fits into a buffer.
    pub(crate) fn check_takes(&self, config: &Config) -> Result<(), ConnectError> {
        let (longest, shared) = (config.max_message, self.options.max_message);
        if longest > shared { Err(ConnectError::TooLongForShared { longest, shared }) } else { Ok(()) }
    }

    /// Makes the pool of a connection, and reserves the share of the connection.
    pub(crate) fn admit(&self, qp: Qp, config: &Config) -> Result<Arc<Pool>, ConnectError> {
        let share = if config.credits { config.depth } else { 0 };
        self.store.admit(share).map_err(|refused| match refused {
            Refused::Connections => ConnectError::Crowded("shared receive queue"),
            Refused::Share(left) => ConnectError::NoShare { wanted: share, left },
        })?;
        Ok(Pool::sharing(&self.store, qp, config.depth, config.credits))
    }

    #[cfg(test)]
    pub(crate) fn unclaimed(&self) -> (usize, usize) {
        self.store.unclaimed()
    }
}
