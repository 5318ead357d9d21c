//! Words in parameters: kinds of measurements, operations and transports.

use serde::{Deserialize, Serialize};

/// Kind of measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Latency of one message at a time: see [`Timed`].
    Latency,
    /// Maximum rate of messages.
    Bandwidth,
}

/// Operation that a message consists of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// A message of a connection.
    #[default]
    Send,
    /// RDMA WRITE into the other end's memory.
    Write,
    /// RDMA READ of the other end's memory.
    Read,
    /// Compare-and-swap of a word at the other end. Each connection has its own word, so each swap succeeds.
    CompareSwap,
    /// Fetch-and-add of 1 to a word at the other end. Each connection has its own word.
    FetchAdd,
    /// Request that the other end answers with a message, by default of the same size.
    RequestResponse,
}

impl Operation {
    /// Returns whether the operation bypasses the other end's processor.
    pub fn is_one_sided(self) -> bool {
        matches!(self, Self::Write | Self::Read | Self::CompareSwap | Self::FetchAdd)
    }

    /// Returns whether the operation works on a single word of eight bytes.
    pub fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }

    /// Returns the interval that a latency of the operation measures.
    pub fn timed(self) -> Timed {
        match self {
            Self::Send => Timed::HalfRoundTrip,
            Self::RequestResponse => Timed::RoundTrip,
            Self::Write | Self::Read | Self::CompareSwap | Self::FetchAdd => Timed::Completion,
        }
    }
}

/// Kind of queue pair that carries messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection: messages are not acknowledged, and lost messages are not retransmitted.
    Uc,
    /// Unreliable datagram: like UC, but each message is one packet.
    Ud,
}

impl Transport {
    /// Converts the transport to the type of `doorbell_wire`.
    pub fn of_packets(self) -> doorbell_wire::Transport {
        match self {
            Self::Rc => doorbell_wire::Transport::Rc,
            Self::Uc => doorbell_wire::Transport::Uc,
            Self::Ud => doorbell_wire::Transport::Ud,
        }
    }

    /// Returns the number of bytes that a receive buffer holds before the message. UD has a global route header there.
    pub fn bytes_before(self) -> usize {
        if self == Self::Ud { doorbell_wire::GRH_LEN } else { 0 }
    }
}

impl std::fmt::Display for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Rc => "rc",
            Self::Uc => "uc",
            Self::Ud => "ud",
        })
    }
}

/// Interval that a latency measures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timed {
    /// Half a round trip of a ping-pong.
    #[default]
    HalfRoundTrip,
    /// Time from a request to its answer.
    RoundTrip,
    /// Time from the post of a one-sided operation to its completion. This interval is a round trip too.
    Completion,
}

/// Extent of one point.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Extent {
    /// Number of messages, or of round trips in latency measurements, per connection.
    Messages(u64),
    /// Number of seconds.
    Seconds(f64),
}
