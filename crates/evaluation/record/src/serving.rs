//! Parameters of the threads and receive buffers that serve the connections of a point.

use doorbell_exchange::send_receive::Reposting;
use doorbell_exchange::{MAX_POLL_LIST, MAX_REPOST_LIST};
use serde::{Deserialize, Serialize};

/// Thread that posts shared receive buffers again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SharedBy {
    /// The thread that frees a buffer posts it again, under a lock.
    Lock,
    /// One dedicated thread posts all freed buffers again.
    Thread,
}

impl From<SharedBy> for Reposting {
    fn from(shared: SharedBy) -> Self {
        match shared {
            SharedBy::Lock => Self::Locked,
            SharedBy::Thread => Self::Thread,
        }
    }
}

/// Threads and receive buffers that serve the connections of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Serving {
    /// Number of threads on the asking side. The connections are distributed over these threads.
    pub threads: usize,
    /// Number of threads on the answering side. 0 means as many as on the asking side. A single receiver always has one
    /// thread.
    pub server_threads: usize,
    /// Whether one completion queue serves all connections of the receiving side. Otherwise each connection has its own
    /// queue, and the receiver polls the queues in turn.
    pub single_receiver: bool,
    /// Thread that posts shared receive buffers again. `None` means that each connection has its own receive buffers.
    /// With shared buffers, the depth is the number of buffers of all connections together.
    pub shared_receives: Option<SharedBy>,
    /// Maximum number of completions per poll.
    pub poll_list: usize,
    /// Maximum number of receives in one list that is posted again.
    pub repost_list: usize,
}

impl Default for Serving {
    fn default() -> Self {
        Self {
            threads: 1,
            server_threads: 0,
            single_receiver: false,
            shared_receives: None,
            poll_list: MAX_POLL_LIST,
            repost_list: MAX_REPOST_LIST,
        }
    }
}
