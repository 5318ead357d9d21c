//! Parameter sets and their files.

mod hardware;
#[cfg(test)]
mod tests;

use doorbell_wire::PathMtu;
use serde::{Deserialize, Serialize};

use crate::cost::{TERMS, Term, Values};

/// Schema of a parameter file.
pub const SCHEMA: &str = "doorbell-parameters/1";

/// Maximum value of a parameter in nanoseconds: one second.
const MAX_NS: f64 = 1e9;
/// Maximum gap per byte, in nanoseconds. This gap corresponds to one kilobyte per second.
const MAX_NS_PER_BYTE: f64 = 1e6;
/// Minimum value of a parameter that must not be zero, in nanoseconds or nanoseconds per byte.
const LEAST: f64 = 1e-6;
/// Maximum value of the parameters `nic_units` and `reads_in_flight`.
const MAX_COUNT: u32 = 1 << 16;
/// Maximum value of the parameter `batch`.
const MAX_BATCH: u32 = 1024;

/// Kinds of RNICs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RnicKind {
    /// Hardware, which works in parallel with the CPU.
    Hardware,
    /// Software on the CPU of the sender or receiver. The work of the RNIC adds to the CPU time, and the model has no
    /// separate bound of the link.
    Software,
}

/// A time per message that shrinks when several messages are handled together.
///
/// The time is the sum of a part per batch and a part per message. The model derives the two parts from the times of
/// batches of 1 and of [`Parameters::batch`]. Larger batches are not faster.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batchable {
    /// Time of a message that is handled alone.
    pub single: f64,
    /// Time per message in batches of [`Parameters::batch`]. Without this value, a
    /// message of a batch takes as long as a single message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batched: Option<f64>,
}

impl Batchable {
    /// Returns the cost per batch and the cost per message.
    fn parts(self, batch: u32) -> (f64, f64) {
        match self.batched {
            Some(batched) if batch > 1 => {
                let once = (self.single - batched) / (1.0 - 1.0 / f64::from(batch));
                (once, (self.single - once).max(0.0))
            }
            _ => (0.0, self.single),
        }
    }

    fn of_parts(once: f64, each: f64, batch: u32) -> Self {
        Self { single: once + each, batched: (batch > 1).then(|| once / f64::from(batch) + each) }
    }
}

/// Message sizes and counts at which costs change.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Number of processing units of a NIC. One unit serves each queue pair. If there are more connections than units,
    /// connections share units.
    pub nic_units: u32,
    /// Maximum size, in bytes, of a message that the NIC delivers inside the completion. The CPU copies its payload
    /// from there.
    pub inline_receive_up_to_bytes: u64,
    /// Maximum size, in bytes, of a message that does not block a shared receive queue.
    pub srq_unlimited_up_to_bytes: u64,
    /// Maximum number of READs and atomics that one queue pair has in flight.
    pub reads_in_flight: u32,
    /// Number of packets of a long message per acknowledgement; 0 means one acknowledgement for the whole message.
    pub packets_per_ack: u32,
    /// Time in nanoseconds for which a NIC holds an acknowledgement. The acknowledgement then covers the messages that
    /// arrive meanwhile.
    #[serde(skip_serializing_if = "is_zero")]
    pub ack_hold_ns: f64,
    /// Maximum number of payloads of one queue pair that the NIC fetches at the same time; 0 means no maximum.
    #[serde(skip_serializing_if = "is_none")]
    pub payload_fetches: u32,
    /// Number of accesses of peers to memory of which one is slow; 0 means that none is slow.
    #[serde(skip_serializing_if = "is_none")]
    pub slow_every: u32,
    /// Maximum size, in bytes, of a message up to which [`Parameters::gap_latency_ns_per_byte`] and
    /// [`Parameters::g_var_ns_per_byte`] hold. Beyond this size, each further byte on the line adds
    /// [`Parameters::gap_bandwidth_ns_per_byte`]. `None` means that the slopes hold for all sizes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slopes_up_to_bytes: Option<u64>,
}

impl Limits {
    /// Returns the number of acknowledgements of a message with this number of packets.
    pub fn acknowledgements(&self, packets: u64) -> f64 {
        match self.packets_per_ack {
            0 => 1.0,
            each => (packets as f64 / f64::from(each)).max(1.0),
        }
    }

    /// Returns the bytes of a message to which the slopes of latency apply: at most
    /// [`slopes_up_to_bytes`](Self::slopes_up_to_bytes).
    pub(crate) fn sloped(&self, bytes: u64) -> u64 {
        self.slopes_up_to_bytes.map_or(bytes, |most| bytes.min(most))
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            nic_units: 1,
            inline_receive_up_to_bytes: 0,
            srq_unlimited_up_to_bytes: 0,
            reads_in_flight: 16,
            packets_per_ack: 0,
            ack_hold_ns: 0.0,
            payload_fetches: 0,
            slow_every: 0,
            slopes_up_to_bytes: None,
        }
    }
}

fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

fn is_none(count: &u32) -> bool {
    *count == 0
}

/// Origin of values of a parameter set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// Names of the parameters, as in parameter files.
    pub parameters: Vec<String>,
    /// Source of the values, or their derivation from other values.
    pub says: String,
    /// Ids of the published numbers and shapes to which the values were fitted. A comparison with these numbers and
    /// shapes is no test of the values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fitted_to: Vec<String>,
}

/// Set of parameters that describes the CPUs, NICs and link of a testbed.
///
/// Times are in nanoseconds, gaps in nanoseconds per byte.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// Must be [`SCHEMA`].
    pub schema: String,
    /// Name of the testbed.
    pub name: String,
    /// The kind of RNIC.
    pub rnic: RnicKind,
    /// Origin of the numbers.
    pub source: String,
    /// Assumed, unknown or contradictory facts.
    #[serde(default)]
    pub open_points: Vec<String>,
    /// Path MTU of workloads that do not state a path MTU.
    pub mtu_bytes: u64,
    /// Messages per batch to which the batched values refer.
    pub batch: u32,
    /// `o_nsnd`: time of the sending NIC per message.
    pub o_nsnd_ns: f64,
    /// `o_nrcv`: time of the receiving NIC per message.
    pub o_nrcv_ns: f64,
    /// Time of a NIC to fetch a payload that is not inline.
    #[serde(default)]
    pub dma_read_ns: f64,
    /// `o_list`: time of a NIC to fetch a list of several work requests from memory. A single work request reaches the
    /// NIC together with its doorbell.
    #[serde(default)]
    pub o_list_ns: f64,
    /// `o_copy`: CPU time to read or write a byte of a message in registered memory, for protocols whose ends copy or
    /// clear messages.
    #[serde(default)]
    pub o_copy_ns_per_byte: f64,
    /// CPU time of a software RNIC, at each end, for the system call that carries a run of packets.
    #[serde(default)]
    pub o_run_ns: f64,
    /// `L`: latency from NIC to NIC, PCIe and switch included.
    pub l_ns: f64,
    /// `g_fix`: part of the time until a sender can reuse the resources of a message that is the same for all sizes.
    pub g_fix_ns: f64,
    /// `g_var`: additional time per byte of payload until a sender can reuse the resources of a message, up to
    /// [`slopes_up_to_bytes`](Limits::slopes_up_to_bytes).
    pub g_var_ns_per_byte: f64,
    /// `G` of latency: time that each byte on the line adds to a message's latency, up to
    /// [`slopes_up_to_bytes`](Limits::slopes_up_to_bytes).
    pub gap_latency_ns_per_byte: f64,
    /// `G` of bandwidth: time that each byte occupies the line.
    pub gap_bandwidth_ns_per_byte: f64,
    /// `o_snd`: CPU time to send a message.
    pub o_snd_ns: Batchable,
    /// `o_rcv`: CPU time to receive a message.
    pub o_rcv_ns: Batchable,
    /// `o_post`, also `o_free`: CPU time to prepare a receive buffer.
    pub o_post_ns: Batchable,
    /// Time that a message occupies the processing unit that serves its queue pair. 0 means no bound.
    #[serde(default)]
    pub o_unit_ns: f64,
    /// Minimum NIC time per message over all processing units together. 0 means no bound.
    #[serde(default)]
    pub o_nic_ns: f64,
    /// CPU time to copy a payload out of the completion, up to
    /// [`inline_receive_up_to_bytes`](Limits::inline_receive_up_to_bytes).
    #[serde(default)]
    pub o_inline_ns: f64,
    /// CPU time that each doubling of the queue pairs of a receiving thread adds to a message that takes a receive
    /// buffer.
    #[serde(default)]
    pub o_pairs_ns: f64,
    /// Time that a message holds a shared receive queue. The time applies if the previous message came from another
    /// queue pair and the message is longer than
    /// [`srq_unlimited_up_to_bytes`](Limits::srq_unlimited_up_to_bytes). 0 means no bound.
    #[serde(default)]
    pub o_srq_ns: f64,
    /// CPU time per message of a single thread that reposts all shared receives. 0 means no bound.
    #[serde(default)]
    pub o_repost_thread_ns: f64,
    /// Time that an atomic operation occupies its queue pair. 0 means no bound.
    #[serde(default)]
    pub o_atomic_ns: f64,
    /// Time that an atomic operation holds its address. 0 means no bound.
    #[serde(default)]
    pub o_atomic_address_ns: f64,
    /// `o_take`: time of a NIC to fetch the receive that a message takes. It delays the message, but not its
    /// acknowledgement.
    #[serde(default)]
    pub o_take_ns: f64,
    /// `o_slow`: longest delay of a slow access to memory. The delays are uniform random times.
    #[serde(default)]
    pub o_slow_ns: f64,
    /// Message sizes and counts at which these costs change.
    #[serde(default)]
    pub limits: Limits,
    /// Origin of the values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub origins: Vec<Origin>,
}

/// Error of a parameter file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParametersError {
    /// The file is not TOML, or a field is missing, unknown or of the wrong type.
    #[error("{file}: {field}: {problem}")]
    Malformed {
        /// Name of the file.
        file: String,
        /// Name of the field, or number of the line.
        field: String,
        /// Description of the defect.
        problem: String,
    },
    /// The schema of the file is not [`SCHEMA`], for example because a newer release wrote the file.
    #[error("{file}: schema is {given}, allowed is \"{SCHEMA}\"")]
    Schema {
        /// Name of the file.
        file: String,
        /// Schema in the file.
        given: String,
    },
    /// A value is out of range.
    #[error("{file}: {field} is {given}, allowed is {allowed}")]
    Range {
        /// Name of the file.
        file: String,
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        given: String,
        /// Allowed range.
        allowed: String,
    },
}

impl Parameters {
    /// Returns the parameters of testbed T1: two nodes with ConnectX-5 at 100 Gb/s. The field
    /// [`open_points`](Self::open_points) lists the assumptions.
    pub fn t1() -> Self {
        Self::of_testbed("t1").unwrap_or_else(|| unreachable!("it is one of the testbeds"))
    }

    /// Returns the parameters of a published testbed by its short or long name, independent of case.
    pub fn of_testbed(name: &str) -> Option<Self> {
        let short = doorbell_data::names(name)?.short;
        let file = doorbell_data::PARAMETERS.iter().find(|file| file.name == short)?;
        let parameters = Self::from_toml(file.path, file.text);
        Some(parameters.unwrap_or_else(|error| unreachable!("tests read the built-in files: {error}")))
    }

    /// Returns the set with which a fit starts, for a kind of RNIC. Its values have plausible sizes but were not
    /// measured, so predictions must not use them.
    pub fn starting_point(rnic: RnicKind) -> Self {
        let t1 = Self::t1();
        let (name, source) = ("starting point", "a starting point for fits, measured nowhere");
        let (open_points, origins) = (Vec::new(), Vec::new());
        // The slopes come from the measurements, so they hold for all measured sizes.
        let limits = Limits { slopes_up_to_bytes: None, ..t1.limits };
        let start = Self { name: name.to_owned(), source: source.to_owned(), open_points, origins, rnic, limits, ..t1 };
        match rnic {
            RnicKind::Hardware => start,
            RnicKind::Software => Self {
                o_nsnd_ns: 150.0,
                o_nrcv_ns: 150.0,
                o_list_ns: 0.0,
                o_copy_ns_per_byte: 0.0,
                o_run_ns: 1000.0,
                l_ns: 2000.0,
                g_fix_ns: 20_000.0,
                g_var_ns_per_byte: 0.5,
                gap_latency_ns_per_byte: 0.5,
                gap_bandwidth_ns_per_byte: 0.2,
                o_unit_ns: 0.0,
                o_nic_ns: 0.0,
                o_inline_ns: 0.0,
                o_pairs_ns: 0.0,
                o_srq_ns: 0.0,
                o_repost_thread_ns: 0.0,
                o_atomic_ns: 0.0,
                o_atomic_address_ns: 0.0,
                o_take_ns: 0.0,
                o_slow_ns: 0.0,
                limits: Limits::default(),
                ..start
            },
        }
    }

    /// Reads the text of a parameter file. `file` is the file's name in errors. A table `hardware` names values of the
    /// simulator's testbed of the same name: `o_take_ns = "nic.take_receive"`.
    ///
    /// # Errors
    ///
    /// The text is not TOML, its schema is missing or unknown, or a field is missing, unknown, of the wrong type or out
    /// of range ([`check`](Self::check)). The error names the file, the field or line, and what is allowed.
    pub fn from_toml(file: &str, text: &str) -> Result<Self, ParametersError> {
        let malformed = |field: &str, problem: String| ParametersError::Malformed {
            file: file.to_owned(),
            field: field.to_owned(),
            problem,
        };
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            let line = error.span().map_or(1, |span| 1 + text[..span.start.min(text.len())].matches('\n').count());
            malformed(&format!("line {line}"), error.message().to_owned())
        })?;
        match table.get("schema") {
            None => return Err(malformed("schema", format!("it is missing, allowed is \"{SCHEMA}\""))),
            Some(toml::Value::String(schema)) if schema == SCHEMA => {}
            Some(other) => return Err(ParametersError::Schema { file: file.to_owned(), given: other.to_string() }),
        }
        let table = hardware::resolved(table).map_err(|problem| malformed("hardware", problem))?;
        let parameters: Self = serde_path_to_error::deserialize(toml::Value::Table(table)).map_err(|error| {
            let path = error.path().to_string();
            let field = if path == "." { "the file" } else { &path };
            malformed(field, error.inner().message().to_owned())
        })?;
        parameters.check(file)?;
        Ok(parameters)
    }

    /// Returns a sentence about sizes beyond the range for which the slope of latency is published. Returns `None` if
    /// messages of `longest` bytes are within the range.
    pub fn beyond_published(&self, longest: u64) -> Option<String> {
        let most = self.limits.slopes_up_to_bytes.filter(|most| longest > *most)?;
        let gap = self.gap_bandwidth_ns_per_byte;
        Some(format!(
            "The slope of latency is known up to {most} B. Beyond, each byte is assumed to add the time of the line, \
             {gap} ns."
        ))
    }

    /// Returns the text of a parameter file with this set.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).unwrap_or_else(|error| unreachable!("all of it can be written: {error}"))
    }

    /// Checks that all values are within their ranges. `file` is the name of the set in errors.
    ///
    /// # Errors
    ///
    /// Returns [`ParametersError::Range`] for the first value that is out of its range.
    pub fn check(&self, file: &str) -> Result<(), ParametersError> {
        let refuse = |field, given: String, allowed: String| {
            Err(ParametersError::Range { file: file.to_owned(), field, given, allowed })
        };
        if PathMtu::from_bytes(self.mtu_bytes as usize).is_none() {
            return refuse("mtu_bytes", self.mtu_bytes.to_string(), "256, 512, 1024, 2048 or 4096".to_owned());
        }
        if !(1..=MAX_BATCH).contains(&self.batch) {
            return refuse("batch", self.batch.to_string(), format!("1 to {MAX_BATCH}"));
        }
        let numbers = [
            ("o_snd_ns.single", self.o_snd_ns.single, LEAST, MAX_NS),
            ("o_rcv_ns.single", self.o_rcv_ns.single, 0.0, MAX_NS),
            ("o_post_ns.single", self.o_post_ns.single, 0.0, MAX_NS),
            ("o_nsnd_ns", self.o_nsnd_ns, 0.0, MAX_NS),
            ("o_nrcv_ns", self.o_nrcv_ns, 0.0, MAX_NS),
            ("dma_read_ns", self.dma_read_ns, 0.0, MAX_NS),
            ("o_list_ns", self.o_list_ns, 0.0, MAX_NS),
            ("o_copy_ns_per_byte", self.o_copy_ns_per_byte, 0.0, MAX_NS_PER_BYTE),
            ("o_run_ns", self.o_run_ns, 0.0, MAX_NS),
            ("l_ns", self.l_ns, LEAST, MAX_NS),
            ("g_fix_ns", self.g_fix_ns, LEAST, MAX_NS),
            ("g_var_ns_per_byte", self.g_var_ns_per_byte, 0.0, MAX_NS_PER_BYTE),
            ("gap_latency_ns_per_byte", self.gap_latency_ns_per_byte, 0.0, MAX_NS_PER_BYTE),
            ("gap_bandwidth_ns_per_byte", self.gap_bandwidth_ns_per_byte, LEAST, MAX_NS_PER_BYTE),
            ("o_unit_ns", self.o_unit_ns, 0.0, MAX_NS),
            ("o_nic_ns", self.o_nic_ns, 0.0, MAX_NS),
            ("o_inline_ns", self.o_inline_ns, 0.0, MAX_NS),
            ("o_pairs_ns", self.o_pairs_ns, 0.0, MAX_NS),
            ("o_srq_ns", self.o_srq_ns, 0.0, MAX_NS),
            ("o_repost_thread_ns", self.o_repost_thread_ns, 0.0, MAX_NS),
            ("o_atomic_ns", self.o_atomic_ns, 0.0, MAX_NS),
            ("o_atomic_address_ns", self.o_atomic_address_ns, 0.0, MAX_NS),
            ("o_take_ns", self.o_take_ns, 0.0, MAX_NS),
            ("o_slow_ns", self.o_slow_ns, 0.0, MAX_NS),
            ("limits.ack_hold_ns", self.limits.ack_hold_ns, 0.0, MAX_NS),
        ];
        for (field, given, least, most) in numbers {
            if !(least..=most).contains(&given) {
                return refuse(field, given.to_string(), format!("{least} to {most}"));
            }
        }
        let batched = [
            ("o_snd_ns.batched", self.o_snd_ns),
            ("o_rcv_ns.batched", self.o_rcv_ns),
            ("o_post_ns.batched", self.o_post_ns),
        ];
        for (field, Batchable { single, batched }) in batched {
            let Some(given) = batched else { continue };
            let least = single / f64::from(self.batch);
            // Tolerate a small excess, because the numbers in a file are rounded.
            if !(least * (1.0 - 1e-9)..=single * (1.0 + 1e-9)).contains(&given) {
                let batch = self.batch;
                return refuse(
                    field,
                    given.to_string(),
                    format!("{least} to {single}: the single one over {batch}, to it"),
                );
            }
        }
        for (field, given) in
            [("limits.nic_units", self.limits.nic_units), ("limits.reads_in_flight", self.limits.reads_in_flight)]
        {
            if !(1..=MAX_COUNT).contains(&given) {
                return refuse(field, given.to_string(), format!("1 to {MAX_COUNT}"));
            }
        }
        Ok(())
    }

    /// Returns the path MTU of workloads that do not state a path MTU.
    pub fn path_mtu(&self) -> PathMtu {
        PathMtu::from_bytes(self.mtu_bytes as usize).unwrap_or(PathMtu::Mtu4096)
    }

    /// Returns the value of each term.
    pub fn values(&self) -> Values {
        let mut values = [0.0; TERMS];
        let mut set = |term: Term, value: f64| values[term as usize] = value;
        let both = |batchable: Batchable| batchable.parts(self.batch);
        let ((post, send), (poll, receive), (list, repost)) =
            (both(self.o_snd_ns), both(self.o_rcv_ns), both(self.o_post_ns));
        set(Term::SendPost, post);
        set(Term::SendEach, send);
        set(Term::ReceivePoll, poll);
        set(Term::ReceiveEach, receive);
        set(Term::RepostList, list);
        set(Term::RepostEach, repost);
        set(Term::NicSend, self.o_nsnd_ns);
        set(Term::NicReceive, self.o_nrcv_ns);
        set(Term::DmaRead, self.dma_read_ns);
        set(Term::ListFetch, self.o_list_ns);
        set(Term::CopyPerByte, self.o_copy_ns_per_byte);
        set(Term::Run, self.o_run_ns);
        set(Term::Latency, self.l_ns);
        set(Term::GapFixed, self.g_fix_ns);
        set(Term::GapPerByte, self.g_var_ns_per_byte);
        set(Term::LatencyPerByte, self.gap_latency_ns_per_byte);
        set(Term::BandwidthPerByte, self.gap_bandwidth_ns_per_byte);
        set(Term::NicUnit, self.o_unit_ns);
        set(Term::NicWhole, self.o_nic_ns);
        set(Term::InlineReceive, self.o_inline_ns);
        set(Term::ManyPairs, self.o_pairs_ns);
        set(Term::SharedQueue, self.o_srq_ns);
        set(Term::RepostThread, self.o_repost_thread_ns);
        set(Term::AtomicPair, self.o_atomic_ns);
        set(Term::AtomicAddress, self.o_atomic_address_ns);
        set(Term::TakeReceive, self.o_take_ns);
        set(Term::SlowAccess, self.o_slow_ns);
        values
    }

    /// Returns a copy of this set with `values` as the values of the terms.
    #[must_use]
    pub fn with_values(&self, values: &Values) -> Self {
        let get = |term: Term| values[term as usize];
        let both = |once, each| Batchable::of_parts(get(once), get(each), self.batch);
        Self {
            o_snd_ns: both(Term::SendPost, Term::SendEach),
            o_rcv_ns: both(Term::ReceivePoll, Term::ReceiveEach),
            o_post_ns: both(Term::RepostList, Term::RepostEach),
            o_nsnd_ns: get(Term::NicSend),
            o_nrcv_ns: get(Term::NicReceive),
            dma_read_ns: get(Term::DmaRead),
            o_list_ns: get(Term::ListFetch),
            o_copy_ns_per_byte: get(Term::CopyPerByte),
            o_run_ns: get(Term::Run),
            l_ns: get(Term::Latency),
            g_fix_ns: get(Term::GapFixed),
            g_var_ns_per_byte: get(Term::GapPerByte),
            gap_latency_ns_per_byte: get(Term::LatencyPerByte),
            gap_bandwidth_ns_per_byte: get(Term::BandwidthPerByte),
            o_unit_ns: get(Term::NicUnit),
            o_nic_ns: get(Term::NicWhole),
            o_inline_ns: get(Term::InlineReceive),
            o_pairs_ns: get(Term::ManyPairs),
            o_srq_ns: get(Term::SharedQueue),
            o_repost_thread_ns: get(Term::RepostThread),
            o_atomic_ns: get(Term::AtomicPair),
            o_atomic_address_ns: get(Term::AtomicAddress),
            o_take_ns: get(Term::TakeReceive),
            o_slow_ns: get(Term::SlowAccess),
            ..self.clone()
        }
    }
}
