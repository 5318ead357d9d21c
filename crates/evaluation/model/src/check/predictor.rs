//! Interface of predictors: the model, or a simulator.

use super::Lack;
use crate::operation::{Posted, PostedOperation};
use crate::predict::BoundKind;
use crate::workload::Workload;

/// Predictor of the quantities in published rows and sentences.
pub trait Predictor {
    /// Returns whether the predictor was fitted to the row or the sentence with this id.
    fn is_fitted(&self, id: &str) -> bool;

    /// Returns the latency, which is half of a round trip, in nanoseconds.
    ///
    /// # Errors
    ///
    /// There is no prediction.
    fn latency_ns(&mut self, workload: &Workload) -> Result<f64, Lack>;

    /// Returns the messages per second with the binding resource.
    ///
    /// # Errors
    ///
    /// There is no prediction.
    fn rate(&mut self, workload: &Workload, manner: Manner) -> Result<Rated, Lack>;

    /// Returns the messages per second that the line can carry, independent of the CPUs and NICs.
    ///
    /// # Errors
    ///
    /// There is no prediction.
    fn line_rate(&mut self, workload: &Workload) -> Result<f64, Lack>;

    /// Returns the CPU time of posting a message, in nanoseconds.
    ///
    /// # Errors
    ///
    /// There is no prediction.
    fn posting_ns(&mut self, workload: &Workload) -> Result<f64, Lack>;

    /// Returns the CPU time of the sending end per message, in nanoseconds. Polls that find no completion do not count.
    ///
    /// # Errors
    ///
    /// There is no prediction.
    fn sending_cpu_ns(&mut self, workload: &Workload) -> Result<f64, Lack>;

    /// Returns the operations of bare queue pairs per second with the binding resource.
    ///
    /// # Errors
    ///
    /// There is no prediction.
    fn operations(&mut self, posted: &Posted) -> Result<Rated, Lack>;

    /// Returns the numbers of packets and bytes per operation, as the target counts them.
    ///
    /// # Errors
    ///
    /// There is no prediction.
    fn packets(&mut self, posted: &Posted) -> Result<Packets, Lack>;

    /// Returns the order in which requests of several queue pairs are answered.
    ///
    /// # Errors
    ///
    /// There is no prediction.
    fn order(&mut self, requests: &Ordered) -> Result<Order, Lack>;

    /// Returns figures of a store on passive memory.
    ///
    /// # Errors
    ///
    /// There is no prediction.
    fn store(&mut self, asked: &Stored) -> Result<StoreFigures, Lack>;

    /// Returns the number of outstanding operations to assume if a publication states no number.
    ///
    /// # Errors
    ///
    /// There is no prediction.
    fn unstated_window(&self, operation: PostedOperation) -> Result<u32, Lack>;

    /// Returns the maximum number of READs and atomics that a queue pair has in flight.
    ///
    /// # Errors
    ///
    /// There is no prediction.
    fn reads_in_flight(&self) -> Result<u32, Lack>;

    /// Returns the maximum size, in bytes, of a message that the NIC delivers inside the completion.
    ///
    /// # Errors
    ///
    /// There is no prediction.
    fn inline_receive_bytes(&self) -> Result<u64, Lack>;

    /// Checks that this predictor has an optional feature.
    ///
    /// # Errors
    ///
    /// Returns a sentence about the missing feature.
    fn has(&self, needed: Needed) -> Result<(), Lack>;

    /// Returns the size of the shortest message of a range of sizes that fills the line. A size fills the line if its
    /// rate is at least `FULL` times the rate of the line.
    ///
    /// # Errors
    ///
    /// There is no prediction.
    fn line_filling_bytes(
        &mut self,
        workload: &Workload,
        manner: Manner,
        (mut low, mut high): (u64, u64),
    ) -> Result<u64, Lack> {
        for _ in 0..STEPS {
            let sized = Workload { bytes: u64::midpoint(low, high), ..*workload };
            let share = self.rate(&sized, manner)?.messages_per_s / self.line_rate(&sized)?;
            *(if share >= FULL { &mut high } else { &mut low }) = sized.bytes;
        }
        Ok(high)
    }
}

/// Minimum share of the line's rate at which the line counts as full.
const FULL: f64 = 0.98;
/// Number of bisection steps in the search for the shortest message that fills the line.
const STEPS: u32 = 12;

/// Facts of a published configuration for which [`Workload`] has no field. The model ignores these facts. It predicts
/// the highest rate that all bounds sustain, and at this rate the receiver always has posted receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Manner {
    /// Whether senders limit themselves to the highest rate that causes no RNR NAKs.
    pub is_paced: bool,
    /// Whether one thread receives from one completion queue for all connections.
    pub one_queue: bool,
}

/// Predicted rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rated {
    /// Messages per second over all connections.
    pub messages_per_s: f64,
    /// Binding resource.
    pub binding: Binding,
    /// Number of RNR NAKs that the receiving end sent; 0 if the predictor lacks [`Needed::RnrNaks`].
    pub rnr_naks: u64,
}

/// Requests of several queue pairs to words that a Zipf distribution chooses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ordered {
    /// Operation of each request.
    pub operation: PostedOperation,
    /// Queue pairs.
    pub connections: u32,
    /// Maximum number of outstanding requests per queue pair.
    pub window: u32,
    /// Words from which the requests choose.
    pub addresses: u64,
    /// Exponent of the Zipf distribution.
    pub zipf: f64,
    /// Requests per second of all queue pairs; `None` if each queue pair posts its next request as soon as its window
    /// allows.
    pub rate_per_s: Option<f64>,
}

/// Order of the answers to requests. Requests are numbered in the order of their arrival at the switch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Order {
    /// Share of answers whose number follows the number of the answer before.
    pub in_order: f64,
    /// Share of requests that are answered after a later request to the same address.
    pub same_address_late: f64,
    /// Maximum difference between the numbers of consecutive answers.
    pub largest_gap: f64,
}

/// Resource that limits a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Name of the resource.
    pub name: &'static str,
    /// Whether the resource is the CPU of the receiving end.
    pub is_receiving_cpu: bool,
}

impl From<BoundKind> for Binding {
    fn from(kind: BoundKind) -> Self {
        Self { name: kind.name(), is_receiving_cpu: kind == BoundKind::ReceivingCpu }
    }
}

impl std::fmt::Display for Binding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name)
    }
}

/// Packet and byte counts of the target, per operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Packets {
    /// Incoming packets.
    pub packets_in: f64,
    /// Outgoing packets.
    pub packets_out: f64,
    /// Bytes of incoming frames.
    pub bytes_in: f64,
    /// Bytes of outgoing frames.
    pub bytes_out: f64,
}

impl Packets {
    /// Returns the mean bytes of an incoming and of an outgoing frame.
    pub fn frames(&self) -> (f64, f64) {
        (self.bytes_in / self.packets_in, self.bytes_out / self.packets_out)
    }
}

/// Workload of a store with a chain of versions for each key. Its clients have one operation outstanding each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stored {
    /// Clients, each with a thread.
    pub clients: u32,
    /// Keys from which the operations choose.
    pub keys: u64,
    /// Exponent of the Zipf distribution of the keys.
    pub zipf: f64,
    /// Share of operations that write, in percent.
    pub write_percent: f64,
    /// Whether a middlebox steers the clients to the newest version.
    pub is_steered: bool,
}

/// Predicted figures of a store.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StoreFigures {
    /// Share of READs of a value that find the newest version, if there were reads.
    pub success_of_reads: Option<f64>,
    /// Share of CASes that find the newest version.
    pub success_of_writes: f64,
    /// Bytes of frames per operation, in both directions together.
    pub bytes_per_operation: f64,
    /// Time in nanoseconds within which 99 % of the writes end.
    pub write_p99_ns: f64,
}

/// Feature that some published sentences need and that some predictors lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Needed {
    /// CPU time of copying inline data.
    InlineCopies,
    /// Ends that sleep until an interrupt.
    Interrupts,
    /// Choice between one completion queue for all connections and one for each connection.
    CompletionQueues,
    /// RNR NAKs and the back-off after them.
    RnrNaks,
}
