//! Results of [`check`](super::check).

use std::net::IpAddr;

use serde::Serialize;

use super::rules::{Rule, RuleId, Severity};

/// Name of the layout of a [`Report`].
pub const SCHEMA: &str = "doorbell-wire-check/1";

/// Judgement of a capture.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// `pcap` or `pcapng`.
    pub format: &'static str,
    /// Reason why reading stopped before the end. The text is a sentence whose subject, the file, is left out.
    pub stopped: Option<String>,
    /// Frames in the capture.
    pub frames: u64,
    /// RoCE v2 packets.
    pub packets: u64,
    /// Packets that no rule judged: second copies, other transports, queue pairs beyond the maximum, and packets that
    /// are cut within the BTH.
    pub unfollowed_packets: u64,
    /// Rules with their counts.
    pub rules: Vec<RuleCount>,
    /// Findings in the order of the packets.
    pub findings: Vec<Finding>,
    /// Findings beyond the maximum, which are only counted.
    pub more_findings: u64,
    /// Findings of severity error, with those beyond the maximum.
    pub errors: u64,
    /// Findings of severity warning, with those beyond the maximum.
    pub warnings: u64,
    /// Streams of packets to one queue pair, in the order of their first packets.
    pub queue_pairs: Vec<QueuePair>,
}

impl Report {
    /// Returns whether a finding is an error.
    pub fn has_errors(&self) -> bool {
        self.errors > 0
    }

    /// Returns whether a rule has judged a packet, besides the rule of the ICRC.
    pub fn has_judged(&self) -> bool {
        let icrc = RuleId::Icrc.rule().name;
        self.rules.iter().any(|count| count.rule.name != icrc && count.judged > 0)
    }
}

/// Counts of a rule.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RuleCount {
    /// The rule.
    #[serde(flatten)]
    pub rule: Rule,
    /// Findings.
    pub findings: u64,
    /// Packets that the rule judged.
    pub judged: u64,
    /// Packets that the rule could not judge, because evidence was missing.
    pub unjudged: u64,
}

/// Packet that violates a rule.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Number of the frame in the file, from 1.
    pub packet: u64,
    /// Nanoseconds since 1970.
    pub at_ns: Option<u64>,
    /// Another frame that the finding concerns, such as a NAK or the first transmission.
    pub related_packet: Option<u64>,
    /// Index in [`Report::queue_pairs`]; `None` for a packet whose queue pair is unknown.
    pub queue_pair: Option<usize>,
    /// Name of the rule.
    pub rule: &'static str,
    /// Section of IBTA Vol 1.
    pub section: &'static str,
    /// Severity of the rule.
    pub severity: Severity,
    /// Contents that the rule demands.
    pub expected: String,
    /// Contents of the packet.
    pub found: String,
}

/// Packets from one address to one queue pair of another address.
#[derive(Clone, Debug, Serialize)]
pub struct QueuePair {
    /// Address of the sender.
    pub from: IpAddr,
    /// Queue pair of the sender, if answers show it.
    pub from_qpn: Option<u32>,
    /// Address of the receiver.
    pub to: IpAddr,
    /// Queue pair of the receiver.
    pub to_qpn: u32,
    /// Index of the opposite direction in [`Report::queue_pairs`]. Without it, answers are judged by themselves only.
    pub opposite: Option<usize>,
    /// Packets in this direction.
    pub packets: u64,
    /// Request packets whose PSN was sent before.
    pub repeated: u64,
    /// Whether no request is missing in the capture.
    pub complete: bool,
    /// Events of the timeline. Requests and answers are a sample with equal distances. Repeated requests, NAKs and CNPs
    /// are all kept up to a maximum.
    pub events: Vec<Event>,
}

/// Event of a timeline.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Event {
    /// Number of the frame in the file, from 1.
    pub packet: u64,
    /// Nanoseconds since 1970.
    pub at_ns: Option<u64>,
    /// PSN of the packet.
    pub psn: u32,
    /// Kind of the event.
    pub kind: EventKind,
}

/// Kinds of events.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// New request packet.
    Request,
    /// Request packet whose PSN was sent before.
    Repeated,
    /// ACK.
    Ack,
    /// NAK.
    Nak,
    /// RNR NAK.
    RnrNak,
    /// Response to a READ or an atomic.
    Response,
    /// Congestion notification.
    Cnp,
}

impl EventKind {
    /// Returns the name in timelines.
    pub fn name(self) -> &'static str {
        match self {
            EventKind::Request => "request",
            EventKind::Repeated => "repeated request",
            EventKind::Ack => "ACK",
            EventKind::Nak => "NAK",
            EventKind::RnrNak => "RNR NAK",
            EventKind::Response => "response",
            EventKind::Cnp => "CNP",
        }
    }

    /// Returns whether the timeline keeps every event of this kind, up to a maximum.
    pub fn is_rare(self) -> bool {
        matches!(self, EventKind::Repeated | EventKind::Nak | EventKind::RnrNak | EventKind::Cnp)
    }
}
