//! Probable operations of an application, derived from packet and byte counters alone.
//!
//! NICs count packets and bytes of RDMA traffic per direction. Headers, acknowledgements and segmentation separate
//! these counts from the operations of an application. [`explain`] derives the operations from four rates, with
//! payloads, operations per second and acknowledgements. The most plausible operations come first.
//!
//! The counters are ambiguous. A SEND of 1 byte and an ACK both have 62 bytes. A SEND of 20 bytes is as long as a WRITE
//! of 4 bytes. Compare and swap is as long as fetch and add. The counters are not read at the same moment, so the
//! answer contains each explanation that fits within a tolerance ([`Hints::tolerance`]). Each explanation also names
//! the *nearest* payload.
//!
//! ```
//! use doorbell_analyze::explain::{Hints, Rates, Requester, explain};
//! use doorbell_wire::MessageKind;
//!
//! // 481 k frames of 78 bytes per second arrive, and 481 k frames of 62 bytes per second leave.
//! let rates =
//!     Rates { rx_packets: 481e3, rx_bytes: 481e3 * 78.0, tx_packets: 481e3, tx_bytes: 481e3 * 62.0 };
//! let answer = explain(&rates, &Hints::default())?;
//! let best = &answer.explanations[0];
//! assert_eq!(best.operations, [MessageKind::Write]);
//! assert_eq!((best.requester, best.payload_bytes.min, best.payload_bytes.max), (Requester::Peer, 1, 4));
//! # Ok::<(), doorbell_analyze::explain::ExplainError>(())
//! ```

mod captured;
mod carriers;
mod check;
mod classes;
mod seen;
pub mod sentences;
mod shapes;
mod weight;

use std::collections::BTreeMap;

use doorbell_wire::{IpVersion, MessageKind, OuterKind, PathMtu, Transport};
use serde::{Deserialize, Serialize, Serializer};

pub use captured::{Captured, CapturedError};
pub use check::ExplainError;
pub use seen::Seen;

/// Schema of an [`Answer`] as JSON.
pub const SCHEMA: &str = "doorbell-wire-explain/1";

/// Default tolerance of a mean packet length, as a share. Bytes and packets are separate counters, and each counter may
/// be wrong by half of the tolerance.
pub const DEFAULT_TOLERANCE: f64 = 0.01;

/// Maximum relative difference between equal rates of the two directions, since the counters of the two directions are
/// not read at the same moment.
pub const SKEW: f64 = 0.04;

/// Maximum number of explanations in an answer. [`Answer::left_out`] counts the less plausible explanations beyond this
/// number.
const MAX_EXPLANATIONS: usize = 24;

/// Rates of the counters of RDMA traffic of the observed host. Bytes are bytes of Ethernet frames without FCS,
/// preamble and gap.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Rates {
    /// Bytes received per second.
    pub rx_bytes: f64,
    /// Packets received per second.
    pub rx_packets: f64,
    /// Bytes sent per second.
    pub tx_bytes: f64,
    /// Packets sent per second.
    pub tx_packets: f64,
}

impl Rates {
    /// Returns the rates from the growth of a device's counters in `seconds`. The counters have the names that vendors
    /// use.
    pub fn of(counters: &BTreeMap<String, u64>, seconds: f64) -> Self {
        let rate = |name: &str| counters.get(name).copied().unwrap_or(0) as f64 / seconds;
        Self {
            rx_bytes: rate("rx_vport_rdma_unicast_bytes"),
            rx_packets: rate("rx_vport_rdma_unicast_packets"),
            tx_bytes: rate("tx_vport_rdma_unicast_bytes"),
            tx_packets: rate("tx_vport_rdma_unicast_packets"),
        }
    }
}

/// Facts about the traffic that are known in addition to the counters.
#[derive(Clone, PartialEq, Debug)]
pub struct Hints {
    /// Path MTU; with `None`, all path MTUs are considered.
    pub mtu: Option<PathMtu>,
    /// Version of IP. With `None`, both versions are considered, and IPv4 is more plausible.
    pub ip: Option<IpVersion>,
    /// Operations that a capture of the traffic shows. With `None`, all operations are considered.
    pub seen: Option<Seen>,
    /// Whether frames are known to have a VLAN tag. If not, both cases are considered, and untagged frames are more
    /// plausible.
    pub vlan: bool,
    /// Link rate per direction, in bits per second.
    pub link_bits_per_s: Option<f64>,
    /// Maximum relative error of a mean packet length, from 0 to 0.1.
    pub tolerance: f64,
}

impl Default for Hints {
    fn default() -> Self {
        Self { mtu: None, ip: None, seen: None, vlan: false, link_bits_per_s: None, tolerance: DEFAULT_TOLERANCE }
    }
}

impl Hints {
    fn outers(&self) -> Vec<OuterKind> {
        let versions = self.ip.map_or_else(|| vec![IpVersion::V4, IpVersion::V6], |ip| vec![ip]);
        let tags: &[bool] = if self.vlan { &[true] } else { &[false, true] };
        versions.iter().flat_map(|&ip| tags.iter().map(move |&vlan| OuterKind { ip, vlan })).collect()
    }

    fn mtus(&self) -> Vec<PathMtu> {
        self.mtu.map_or_else(|| PathMtu::ALL.to_vec(), |mtu| vec![mtu])
    }

    /// Returns the range of the true mean length, if the counters of bytes and of packets are each wrong by up to half
    /// of the tolerance.
    fn around(&self, mean: f64) -> Range {
        let half = self.tolerance / 2.0;
        let factor = (1.0 + half) / (1.0 - half);
        Range { min: mean / factor, max: mean * factor }
    }

    /// Returns the longest payload of a packet.
    fn longest_payload(&self) -> u64 {
        self.mtu.unwrap_or(PathMtu::Mtu4096).bytes() as u64
    }
}

/// Side that posts requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Requester {
    /// The host with the observed counters.
    ThisHost,
    /// The peers of the host.
    Peer,
    /// Both sides.
    Both,
}

/// Direction of the messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// Messages in one direction, and only acknowledgements in the other.
    OneWay,
    /// Like [`OneWay`](Pattern::OneWay), with credits that the receiver grants by messages without payload. The
    /// sender acknowledges these messages.
    OneWayWithCredits,
    /// Requests in one direction, and responses with data in the other direction: READs and atomic operations.
    Fetch,
    /// Messages in both directions at the same rate, such as requests and responses.
    RequestResponse,
}

/// Range of whole numbers, including both ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Span {
    /// Least value.
    pub min: u64,
    /// Largest value.
    pub max: u64,
}

impl Span {
    /// Returns whether the range contains `value`.
    pub fn contains(&self, value: u64) -> bool {
        (self.min..=self.max).contains(&value)
    }

    fn union(self, other: Span) -> Span {
        Span { min: self.min.min(other.min), max: self.max.max(other.max) }
    }
}

/// Range of rates or ratios, including both ends.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Range {
    /// Least value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
}

impl Range {
    /// Returns whether the range contains `value`.
    pub fn contains(&self, value: f64) -> bool {
        self.min <= value && value <= self.max
    }
}

/// Possible explanation of the counters.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Explanation {
    /// Explanation in a sentence.
    pub summary: String,
    /// Operations of the messages; several if the messages of several operations have the same length.
    #[serde(serialize_with = "by_name")]
    pub operations: Vec<MessageKind>,
    /// Transports of the messages; several if the counters cannot distinguish them.
    #[serde(serialize_with = "by_name")]
    pub transports: Vec<Transport>,
    /// Direction of the messages.
    pub pattern: Pattern,
    /// Side that posts the requests. For request-response, either side can be the requester.
    pub requester: Requester,
    /// Payload bytes per message, within the tolerance. For request-response, payload bytes of the messages that this
    /// host sends.
    pub payload_bytes: Span,
    /// Payload whose packets have a length nearest to the counted length; `None` if several payloads are equally near.
    /// For long READs, the payload that each request asks for, since a program can read in pieces.
    pub nearest_payload_bytes: Option<Span>,
    /// For request-response, payload bytes of the messages that this host receives.
    pub received_payload_bytes: Option<Span>,
    /// Packets per message; for READs, packets per response.
    pub packets_per_message: Span,
    /// Operations per second; for request-response, pairs of request and response.
    pub operations_per_s: Range,
    /// For request-response over RC with messages of one packet, operations per second if one operation is outstanding
    /// at a time. Each message then has its own ACK, so half of all packets are messages. `None` if the counters
    /// contradict that.
    pub one_outstanding_per_s: Option<f64>,
    /// Acknowledgements per request packet, if there are any.
    pub acks_per_packet: Option<Range>,
    /// Payload bytes per second in the direction that carries more.
    pub goodput_bytes_per_s: Range,
    /// Path MTU that segments the messages; `None` for messages of one packet.
    pub path_mtu: Option<usize>,
    /// IP version: 4 or 6.
    pub ip_version: u8,
    /// Whether frames have a VLAN tag.
    pub vlan: bool,
    /// Relative distance between the counted packet length and the packet length of the nearest payload.
    pub misfit: f64,
    /// Reasons for and against the explanation, as sentences.
    pub reasons: Vec<String>,
    /// Implausibility of the explanation: the sum of its weights. Larger values are less plausible.
    pub implausibility: f64,
}

/// Utilization of the link.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct LinkUse {
    /// Capacity of each direction in bits per second.
    pub link_bits_per_s: f64,
    /// Share of the incoming direction's capacity that is used, with preamble, FCS, gap and padding.
    pub rx_share: f64,
    /// Share of the outgoing direction's capacity that is used, with preamble, FCS, gap and padding.
    pub tx_share: f64,
    /// Payload of the most plausible explanation, as a share of the line bytes of its direction.
    pub goodput_share_of_used: Option<Range>,
}

/// Explanations of the counters.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Answer {
    /// Always [`SCHEMA`].
    pub schema: &'static str,
    /// Counted rates.
    pub rates: Rates,
    /// Mean frame bytes per packet received, if there are any.
    pub rx_bytes_per_packet: Option<f64>,
    /// Mean frame bytes per packet sent, if there are any.
    pub tx_bytes_per_packet: Option<f64>,
    /// Answer in a sentence.
    pub verdict: String,
    /// Explanations that fit the rates, the most plausible first. Empty if no explanation fits.
    pub explanations: Vec<Explanation>,
    /// Number of explanations in the [`verdict`](Self::verdict): the first explanation and explanations that are nearly
    /// as plausible.
    pub named: usize,
    /// Number of less plausible explanations that were left out.
    pub left_out: usize,
    /// Utilization of the link, if the rate of the link is known.
    pub link: Option<LinkUse>,
    /// Further facts, as sentences.
    pub notes: Vec<String>,
}

/// Explains the counted rates.
///
/// # Errors
///
/// Returns an error if no RoCE v2 traffic can cause these rates. Examples are a negative or infinite rate, bytes
/// without packets, packets without bytes, and packets shorter or longer than those of RoCE v2. A link rate
/// or a tolerance out of its range is an error, too.
pub fn explain(rates: &Rates, hints: &Hints) -> Result<Answer, ExplainError> {
    check::check(rates, hints)?;
    let mut explanations = shapes::all(rates, hints);
    explanations.sort_by(|a, b| a.implausibility.total_cmp(&b.implausibility));
    let best = explanations.first().map_or(0.0, |best| best.implausibility);
    let named =
        explanations.partition_point(|it| it.implausibility <= best + weight::AS_PLAUSIBLE).min(MAX_EXPLANATIONS);
    let left_out = explanations.len().saturating_sub(MAX_EXPLANATIONS);
    explanations.truncate(MAX_EXPLANATIONS);
    let mean = |bytes: f64, packets: f64| (packets > 0.0).then(|| bytes / packets);
    let mut answer = Answer {
        schema: SCHEMA,
        rates: *rates,
        rx_bytes_per_packet: mean(rates.rx_bytes, rates.rx_packets),
        tx_bytes_per_packet: mean(rates.tx_bytes, rates.tx_packets),
        verdict: String::new(),
        explanations,
        named,
        left_out,
        link: None,
        notes: Vec::new(),
    };
    answer.link = hints.link_bits_per_s.map(|link| link_use(&answer, link));
    answer.verdict = sentences::verdict(&answer);
    answer.notes = sentences::notes(&answer, hints);
    Ok(answer)
}

impl Answer {
    /// Returns the explanations that the verdict names.
    pub fn named(&self) -> &[Explanation] {
        &self.explanations[..self.named]
    }
}

fn link_use(answer: &Answer, link_bits_per_s: f64) -> LinkUse {
    let rates = &answer.rates;
    let used = |bytes, packets| check::line_bytes(bytes, packets) * 8.0;
    let (rx, tx) = (used(rates.rx_bytes, rates.rx_packets), used(rates.tx_bytes, rates.tx_packets));
    let goodput_share_of_used = answer.explanations.first().map(|best| {
        let carrier = match (best.requester, best.pattern) {
            (Requester::ThisHost, Pattern::Fetch) | (Requester::Peer, Pattern::OneWay | Pattern::OneWayWithCredits) => {
                rx
            }
            (Requester::Both, _) => rx.max(tx),
            _ => tx,
        };
        let share = |goodput: f64| (goodput * 8.0 / carrier).min(1.0);
        Range { min: share(best.goodput_bytes_per_s.min), max: share(best.goodput_bytes_per_s.max) }
    });
    LinkUse { link_bits_per_s, rx_share: rx / link_bits_per_s, tx_share: tx / link_bits_per_s, goodput_share_of_used }
}

fn by_name<T: std::fmt::Display, S: Serializer>(items: &[T], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(items.iter().map(ToString::to_string))
}

#[cfg(test)]
mod tests;
