//! What a capture holds of RoCE v2: conversations, operations, what was repeated or refused, and
//! how long acknowledgements took.
//!
//! [`decode`] reads pcap and pcapng files frame by frame and keeps a bounded amount of state, so
//! that captures may be of any length: at most [`Options::max_conversations`] conversations with
//! some tens of kilobytes each; packets of any beyond are only counted.
//!
//! A packet names the queue pair that it goes to and not the one that it comes from. So the two
//! directions of a conversation are found to belong together when an answer carries a sequence
//! number that only one direction's requests explain.

pub mod capture;
mod copies;
mod layers;
mod packets;
mod reasons;
mod stream;
mod summary;
mod tracker;

use std::io::Read;

use capture::{CaptureError, CaptureReader};
use doorbell_wire::ROCE_UDP_PORT;

pub use summary::{
    Conversation, Direction, FaultCounts, HostTotals, Icrc, KindCount, MalformedCount, NakCount, OpcodeCount,
    OperationCount, SCHEMA, SizeCount, Summary, SuperPackets, Times, TunnelCount,
};

/// How to read a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The UDP port that makes a packet RoCE v2, as its destination.
    pub udp_port: u16,
    /// Conversations that are kept apart; packets of others are counted together.
    pub max_conversations: usize,
    /// Whether packets with a wrong ICRC are left out of the conversations, as an RNIC would drop
    /// them.
    pub drop_bad_icrc: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { udp_port: ROCE_UDP_PORT, max_conversations: 1024, drop_bad_icrc: true }
    }
}

/// Reads a capture to its end. What stops it before is no error, but is in [`Summary::stopped`].
///
/// # Errors
///
/// As [`CaptureReader::new`]; or no frame could be read, since none of the link types is known.
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
mod tests;
