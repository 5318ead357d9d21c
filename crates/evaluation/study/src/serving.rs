//! Parameters of the threads and receive buffers that serve the connections of a point.

use doorbell_exchange::send_receive::Reposting;
use doorbell_exchange::{MAX_POLL_LIST, MAX_REPOST_LIST, MAX_WINDOW};
use doorbell_protocols::Protocol;
use serde::{Deserialize, Serialize};

use crate::parameters::{Kind, Operation, Parameters, ParametersError, Setting, within};

/// Maximum number of threads on each side.
const MAX_THREADS: usize = 64;

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
    /// Number of threads on each side. The connections are distributed over these threads. A single receiver always has
    /// one thread.
    pub threads: usize,
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
            single_receiver: false,
            shared_receives: None,
            poll_list: MAX_POLL_LIST,
            repost_list: MAX_REPOST_LIST,
        }
    }
}

impl Serving {
    /// Checks the settings against the other parameters.
    pub(crate) fn check(&self, parameters: &Parameters) -> Result<(), ParametersError> {
        within(Setting::Threads, self.threads, 1, MAX_THREADS.min(parameters.connections), "")?;
        within(Setting::PollList, self.poll_list, 1, MAX_POLL_LIST, "")?;
        within(Setting::RepostList, self.repost_list, 1, MAX_REPOST_LIST, "")?;
        let is_stream = parameters.kind == Kind::Bandwidth && parameters.operation == Operation::Send;
        let goes = is_stream && !parameters.bidirectional && !parameters.events;
        let refuse = |setting, given: &str, allowed: &str| {
            Err(ParametersError { setting, given: given.to_owned(), allowed: allowed.to_owned() })
        };
        let is_one_sided = parameters.kind == Kind::Bandwidth && parameters.operation.is_one_sided();
        if self.threads > 1 && !goes && (!is_one_sided || parameters.events) {
            let allowed = "1 unless messages are sent one way, or operations are one-sided, by programs that poll";
            return refuse(Setting::Threads, &self.threads.to_string(), allowed);
        }
        if self.single_receiver && !goes {
            return refuse(Setting::SingleReceiver, "on", "off unless messages go one way, to a receiver that polls");
        }
        for (setting, is_on) in
            [(Setting::SingleReceiver, self.single_receiver), (Setting::SharedReceives, self.shared_receives.is_some())]
        {
            if is_on && parameters.protocol != Protocol::SendReceive {
                return refuse(setting, "on", "off for protocols other than send-receive");
            }
        }
        if self.shared_receives.is_some() {
            if !goes {
                return refuse(
                    Setting::SharedReceives,
                    "on",
                    "off unless messages go one way, to a receiver that polls",
                );
            }
            within(Setting::Depth, parameters.depth, parameters.connections, MAX_WINDOW, "")?;
        }
        Ok(())
    }
}
