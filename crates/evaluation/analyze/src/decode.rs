//! RoCE v2 in a capture: conversations, operations, retransmissions, NAKs and times to acknowledgement.
//!
//! [`decode`] reads pcap and pcapng files frame by frame. Captures may have any length, because the state of the
//! decoder is bounded. It holds at most [`Options::max_conversations`] conversations with some tens of kilobytes each.
//! The decoder only counts the packets of further conversations.
//!
//! A packet names its destination queue pair, but not its source queue pair. The decoder joins the two directions of a
//! conversation when an answer carries a sequence number that only the requests of one direction explain.

mod acknowledged;
mod assigned;
pub mod capture;
pub(crate) mod copies;
pub(crate) mod directions;
pub(crate) mod layers;
pub(crate) mod packets;
pub(crate) mod reasons;
mod silence;
mod stream;
mod summary;
mod tracker;

use std::io::Read;

use capture::{CaptureError, CaptureReader};
use doorbell_wire::ROCE_UDP_PORT;

pub use summary::{
    Conversation, Direction, FaultCounts, HostTotals, Icrc, KindCount, MalformedCount, NakCount, OpcodeCount,
    OperationCount, SCHEMA, SizeCount, Summary, SuperPackets, Times, TunnelCount, Unanswered,
};

/// Maximum number of conversations to follow. More conversations would need gigabytes of memory.
pub const MOST_CONVERSATIONS: usize = 65_536;

/// Options for reading a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// UDP destination port of RoCE v2 packets.
    pub udp_port: u16,
    /// Maximum number of conversations with separate counters, up to [`MOST_CONVERSATIONS`]. Packets of further
    /// conversations are counted together.
    pub max_conversations: usize,
    /// Whether the conversations exclude packets with a wrong ICRC, as an RNIC drops them.
    pub drop_bad_icrc: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { udp_port: ROCE_UDP_PORT, max_conversations: 1024, drop_bad_icrc: true }
    }
}

/// Reads a capture to its end. If reading stops before the end, the result is still `Ok`, and
/// [`Summary::stopped`] holds the reason.
///
/// # Errors
///
/// Returns the errors of [`CaptureReader::new`], and an error if the decoder supports none of the link types.
pub fn decode(from: impl Read, options: &Options) -> Result<Summary, CaptureError> {
    let mut reader = CaptureReader::new(from)?;
    let mut tracker = tracker::Tracker::new(options);
    let stopped = loop {
        match reader.next() {
            Ok(Some(frame)) => tracker.frame(&frame),
            Ok(None) => break None,
            Err(error) => break Some(error.to_string()),
        }
    };
    match tracker.only_unknown_links() {
        Some(link_type) => Err(CaptureError::LinkType(link_type)),
        None => Ok(tracker.finish(reader.format(), stopped)),
    }
}

#[cfg(test)]
pub(crate) mod tests;
