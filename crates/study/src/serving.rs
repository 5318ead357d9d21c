//! Who serves the connections of a point, and how receives are taken and given back.

use doorbell_exchange::send_receive::Reposting;
use doorbell_exchange::{MAX_POLL_LIST, MAX_REPOST_LIST, MAX_WINDOW};
use doorbell_protocols::Protocol;
use serde::{Deserialize, Serialize};

use crate::parameters::{Kind, Operation, Parameters, ParametersError, Setting, within};

/// The most threads on each side.
const MAX_THREADS: usize = 64;

/// Who posts shared receive buffers again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SharedBy {
    /// Whoever gives one back, under a lock.
    Lock,
    /// One thread that does nothing else.
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

/// Who serves connections, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Serving {
    /// Threads on each side, to which the connections are dealt out. A single receiver is one
    /// thread nevertheless.
    pub threads: usize,
    /// One completion queue serves all connections of the receiving side; otherwise each has its
    /// own, and they are polled in turn.
    pub single_receiver: bool,
    /// The receiving side's connections share their receive buffers: the depth is that of all
    /// together.
    pub shared_receives: Option<SharedBy>,
    /// Completions taken by one poll at most.
    pub poll_list: usize,
    /// Receives posted again in one list at most.
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
    /// Does it go together with the rest of what is to be measured?
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
                return refuse(setting, "on", "off for all but send-receive");
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
