//! Figures of a benchmark, and the settings that its output shows.

use doorbell_verbs_core::Status;
use doorbell_wire::{MessageKind, PathMtu, Transport};

/// Format of a benchmark's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// Tables of perftest, such as those of `ib_write_bw`.
    Perftest,
    /// JSON of perftest.
    PerftestJson,
    /// Tables of `ucx_perftest`.
    UcxPerftest,
    /// Results of qperf.
    Qperf,
    /// Text of fio.
    Fio,
    /// JSON of fio.
    FioJson,
    /// Tables of the OSU micro-benchmarks and of programs with the same format.
    Osu,
}

impl Tool {
    /// Returns the name of the format for users.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Perftest => "perftest",
            Self::PerftestJson => "perftest (JSON)",
            Self::UcxPerftest => "ucx_perftest",
            Self::Qperf => "qperf",
            Self::Fio => "fio",
            Self::FioJson => "fio (JSON)",
            Self::Osu => "OSU-style table",
        }
    }
}

/// Rate of payload bytes as a benchmark printed it.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Printed number.
    pub printed: f64,
    /// Printed unit.
    pub unit: String,
    /// Bytes per second of one printed unit, as the tool defines the unit.
    pub unit_bytes_per_s: f64,
    /// Half of a unit of the last printed digit, in printed units.
    pub resolution: f64,
}

impl Figure {
    /// Returns the rate in bytes per second.
    pub fn bytes_per_s(&self) -> f64 {
        self.printed * self.unit_bytes_per_s
    }

    /// Returns the largest error that rounding of the printed number causes, in bytes per second.
    pub fn error_bytes_per_s(&self) -> f64 {
        self.resolution * self.unit_bytes_per_s
    }
}

/// Result of one row of a benchmark's output.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Claim {
    /// Name of the row, if it has one.
    pub name: Option<String>,
    /// Payload bytes of a message.
    pub bytes: Option<u64>,
    /// Messages that the tool counted.
    pub iterations: Option<u64>,
    /// Mean rate of payload.
    pub average: Option<Figure>,
    /// Largest rate of payload.
    pub peak: Option<Figure>,
    /// Messages per second.
    pub messages_per_s: Option<f64>,
    /// Largest error that rounding of `messages_per_s` causes.
    pub messages_error_per_s: f64,
    /// Mean or typical latency in microseconds.
    pub latency_us: Option<f64>,
}

/// Type of the link between the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkType {
    /// Ethernet, with RoCE v2.
    Ethernet,
    /// InfiniBand.
    InfiniBand,
}

/// Settings that the output or the command line shows. A field is `None` if neither shows the value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Setup {
    /// Operation of the messages.
    pub operation: Option<MessageKind>,
    /// Transport of the queue pairs.
    pub transport: Option<Transport>,
    /// Path MTU.
    pub path_mtu: Option<PathMtu>,
    /// Type of the link.
    pub link_type: Option<LinkType>,
    /// Name of the device.
    pub device: Option<String>,
    /// Whether messages go both ways, and the rates are sums of both directions.
    pub is_bidirectional: bool,
    /// Number of queue pairs.
    pub queue_pairs: Option<u64>,
    /// Maximum number of outstanding requests per queue pair.
    pub depth: Option<u64>,
    /// Maximum size of messages that are sent inline, in bytes.
    pub inline: Option<u64>,
    /// Requested duration in seconds.
    pub duration_s: Option<f64>,
    /// GIDs of the two ends as printed, this end first.
    pub gids: Vec<String>,
    /// Kind of messages whose packets differ from those of RC, UC and UD queue pairs with one receiver.
    pub other_packets: Option<&'static str>,
    /// Whether the tool reported a CPU below its maximum frequency.
    pub cpu_is_slow: bool,
}

/// Contents of a benchmark's output.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Output {
    /// Format of the output; `None` if no known tool wrote it.
    pub tool: Option<Tool>,
    /// Settings.
    pub setup: Setup,
    /// Results, in the order of the output.
    pub claims: Vec<Claim>,
    /// Statuses of failed completions that the output names, each once.
    pub failures: Vec<Status>,
    /// Remarks on parts that could not be used, as sentences.
    pub notes: Vec<String>,
}

impl Output {
    pub(crate) fn note(&mut self, text: String) {
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    /// Returns the claim with the largest rate of payload, else the one with most messages per second, else the first.
    pub fn main_claim(&self) -> Option<&Claim> {
        let rate = |claim: &Claim| claim.average.as_ref().map_or(f64::NEG_INFINITY, Figure::bytes_per_s);
        let messages = |claim: &Claim| claim.messages_per_s.unwrap_or(f64::NEG_INFINITY);
        let mut claims = self.claims.iter();
        let first = claims.next()?;
        Some(claims.fold(first, |best, claim| {
            let is_better = rate(claim).total_cmp(&rate(best)).then(messages(claim).total_cmp(&messages(best)));
            if is_better.is_gt() { claim } else { best }
        }))
    }
}
