//! Judgement of the RoCE v2 packets of a capture by the rules of IBTA.
//!
//! [`check`](fn@check) reads a capture packet by packet and keeps a bounded state per queue pair. Each rule is one
//! entry of [`RULES`] and one function. A rule reports only packets that no loss, no reordering and no capturer can
//! explain. The packets that a rule could not judge are counted.

mod answers;
mod fields;
mod findings;
mod missing;
mod packet;
mod recovery;
mod report;
mod requests;
mod rules;
mod sent;
mod stream;

use std::io::Read;

use crate::decode::Options;
use crate::decode::capture::{CaptureError, CaptureReader};

pub use report::{Event, EventKind, Finding, QueuePair, Report, RuleCount, SCHEMA};
pub use rules::{RULES, Rule, Severity};

/// Properties of the queue pairs and of the capture, which the packets do not show. Rules that need them judge nothing
/// without them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// Minimum time before a request is repeated without a NAK.
    pub timeout_ns: Option<u64>,
    /// Maximum number of repetitions of a request without an answer.
    pub retry_count: Option<u32>,
    /// Minimum time between two CNPs to one queue pair.
    pub cnp_interval_ns: Option<u64>,
    /// Whether the capture has each packet of its queue pairs, the network neither repeats nor reorders packets, and no
    /// connection repeats the PSNs of an earlier one. Packets may be lost before and after the place of the capture.
    pub complete: bool,
}

/// Judges a capture up to its end. If reading stops before the end, the result is still `Ok`, and [`Report::stopped`]
/// holds the reason.
///
/// # Errors
///
/// Returns the errors of [`CaptureReader::new`].
pub fn check(from: impl Read, options: &Options, limits: &Limits) -> Result<Report, CaptureError> {
    let mut reader = CaptureReader::new(from)?;
    let mut checker = stream::Checker::new(options, limits);
    let stopped = loop {
        match reader.next() {
            Ok(Some(frame)) => checker.frame(&frame),
            Ok(None) => break None,
            Err(error) => break Some(error.to_string()),
        }
    };
    Ok(checker.finish(reader.format(), stopped))
}

#[cfg(test)]
mod tests;
