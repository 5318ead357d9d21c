//! Names of parameters in errors.

#[cfg(doc)]
use super::{Extent, Parameters};
#[cfg(doc)]
use crate::serving::Serving;

/// Parameter that a [`ParametersError`] names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// [`Parameters::protocol`].
    Protocol,
    /// [`Parameters::transport`].
    Transport,
    /// [`Parameters::replicate`].
    Replicate,
    /// [`Parameters::credits`].
    Credits,
    /// [`Parameters::events`].
    Events,
    /// [`Parameters::sizes`].
    Sizes,
    /// One element of [`Parameters::sizes`].
    Size,
    /// [`Extent::Messages`].
    Messages,
    /// [`Extent::Seconds`].
    Seconds,
    /// [`Parameters::window`].
    Window,
    /// [`Parameters::depth`].
    Depth,
    /// [`Parameters::batch`].
    Batch,
    /// [`Parameters::inline`].
    Inline,
    /// [`Parameters::connections`].
    Connections,
    /// [`Parameters::bidirectional`].
    Bidirectional,
    /// [`Parameters::mtu`].
    Mtu,
    /// [`Parameters::rate`].
    Rate,
    /// [`Parameters::slow_receiver_us`].
    SlowReceiver,
    /// [`Parameters::timeout`].
    Timeout,
    /// [`Parameters::retry_count`].
    RetryCount,
    /// [`Parameters::rnr_retry`].
    RnrRetry,
    /// [`Parameters::memory_bytes`].
    Memory,
    /// [`Serving::threads`].
    Threads,
    /// [`Serving::single_receiver`].
    SingleReceiver,
    /// [`Serving::shared_receives`].
    SharedReceives,
    /// [`Serving::poll_list`].
    PollList,
    /// [`Serving::repost_list`].
    RepostList,
    /// [`Parameters::addresses`], or the number of words of shared memory.
    Addresses,
    /// Operation on shared memory.
    SharedOperation,
    /// Number of queue pairs to shared memory.
    QueuePairs,
    /// Exponent of Zipf's law, by which clients choose words or keys.
    Skew,
    /// Bytes between two words of shared memory.
    Distance,
    /// Number of clients of a store.
    Clients,
    /// Number of hosts on which the clients run.
    Hosts,
    /// Number of keys of a store.
    Keys,
    /// Share of operations that are puts.
    Puts,
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Protocol => "the protocol",
            Self::Transport => "the transport",
            Self::Replicate => "one source for all connections",
            Self::Credits => "flow control by credits",
            Self::Events => "sleeping on events",
            Self::Sizes => "the number of message sizes",
            Self::Size => "the message size",
            Self::Messages => "the number of messages",
            Self::Seconds => "the duration",
            Self::Window => "the window",
            Self::Depth => "the receive depth",
            Self::Batch => "the batch",
            Self::Inline => "inline",
            Self::Connections => "the number of connections",
            Self::Bidirectional => "sending both ways",
            Self::Mtu => "the path MTU",
            Self::Rate => "the rate",
            Self::SlowReceiver => "the receiver's pause",
            Self::Timeout => "the timeout",
            Self::RetryCount => "the retry count",
            Self::RnrRetry => "the RNR retry count",
            Self::Memory => "the message memory",
            Self::Threads => "the number of threads",
            Self::SingleReceiver => "a single receiver",
            Self::SharedReceives => "sharing receive buffers",
            Self::PollList => "the completions of one poll",
            Self::RepostList => "the receives of one post",
            Self::Addresses => "the number of addresses",
            Self::SharedOperation => "the operation",
            Self::QueuePairs => "the number of queue pairs",
            Self::Skew => "the exponent of Zipf's law",
            Self::Distance => "the distance of the words",
            Self::Clients => "the number of clients",
            Self::Hosts => "the number of hosts",
            Self::Keys => "the number of keys",
            Self::Puts => "the share of puts",
        })
    }
}

/// Error about a parameter whose value is not allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{setting} is {given}, allowed is {allowed}")]
pub struct ParametersError {
    /// The parameter.
    pub setting: Setting,
    /// The given value, with its unit.
    pub given: String,
    /// The allowed values, with their unit.
    pub allowed: String,
}

pub(crate) fn within<T: PartialOrd + std::fmt::Display>(
    setting: Setting,
    given: T,
    least: T,
    most: T,
    unit: &str,
) -> Result<(), ParametersError> {
    if given >= least && given <= most {
        return Ok(()); // NaN fails both comparisons
    }
    Err(ParametersError { setting, given: format!("{given}{unit}"), allowed: format!("{least} to {most}{unit}") })
}
