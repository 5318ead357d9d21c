//! Whatever predicts what was published: the model, or a simulator.

use doorbell_published::Row;

use super::Lack;
use crate::operation::{Operation, Posted};
use crate::predict::BoundKind;
use crate::workload::Workload;

/// Answers to what published rows and sentences are about.
pub trait Predictor {
    /// The tolerance of a row: 0.1 is a tenth.
    fn tolerance(&self, row: &Row) -> f64;

    /// Was something fitted to the row or the sentence of this id?
    fn is_fitted(&self, id: &str) -> bool;

    /// Half a round trip, in nanoseconds.
    ///
    /// # Errors
    ///
    /// There is no prediction.
    fn latency_ns(&mut self, workload: &Workload) -> Result<f64, Lack>;

    /// Messages per second, and what binds them.
    ///
    /// # Errors
    ///
    /// There is no prediction.
    fn rate(&mut self, workload: &Workload, manner: Manner) -> Result<Rated, Lack>;

    /// Messages per second that the line carries, however fast the ends are.
    ///
    /// # Errors
    ///
    /// There is no prediction.
    fn line_rate(&mut self, workload: &Workload) -> Result<f64, Lack>;

    /// CPU time of a message's post, in nanoseconds.
    ///
    /// # Errors
    ///
    /// There is no prediction.
    fn posting_ns(&mut self, workload: &Workload) -> Result<f64, Lack>;

    /// All CPU time of a message at the sending end, looks in vain not counted, in nanoseconds.
    ///
    /// # Errors
    ///
    /// There is no prediction.
    fn sending_cpu_ns(&mut self, workload: &Workload) -> Result<f64, Lack>;

    /// Operations of bare queue pairs per second, and what binds them.
    ///
    /// # Errors
    ///
    /// There is no prediction.
    fn operations(&mut self, posted: &Posted) -> Result<Rated, Lack>;

    /// What the target counts of each.
    ///
    /// # Errors
    ///
    /// There is no prediction.
    fn packets(&mut self, posted: &Posted) -> Result<Packets, Lack>;

    /// How many operations are outstanding where a publication does not say.
    ///
    /// # Errors
    ///
    /// There is no prediction.
    fn unstated_window(&self, operation: Operation) -> Result<u32, Lack>;

    /// READs and atomics that a queue pair has in flight at most.
    ///
    /// # Errors
    ///
    /// There is no prediction.
    fn reads_in_flight(&self) -> Result<u32, Lack>;

    /// Messages of up to so many bytes arrive in the completion.
    ///
    /// # Errors
    ///
    /// There is no prediction.
    fn inline_receive_bytes(&self) -> Result<u64, Lack>;

    /// Is there something of which not every predictor knows?
    ///
    /// # Errors
    ///
    /// There is not: a sentence says what this predictor lacks.
    fn has(&self, needed: Needed) -> Result<(), Lack>;

    /// The shortest message of a range of sizes with which the line is full: its rate is `FULL` of what the line
    /// carries.
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

/// The share of the line at which it counts as full.
const FULL: f64 = 0.98;
/// How often the search for the shortest message that fills the line halves its range.
const STEPS: u32 = 12;

/// What a [`Workload`] does not say of a published configuration. The model needs none of it: its rate is the highest
/// that all of its bounds sustain, so also the highest at which receives do not run out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Manner {
    /// Senders are held to the highest rate that provokes no RNR NAK.
    pub is_paced: bool,
    /// One thread receives from one completion queue for all connections.
    pub one_queue: bool,
}

/// A rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rated {
    /// Messages per second, of all connections.
    pub messages_per_s: f64,
    /// What binds.
    pub binding: Binding,
    /// RNR NAKs that the receiving end sent, if [`Needed::RnrNaks`] is known of; 0 otherwise.
    pub rnr_naks: u64,
}

/// What binds a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Its name.
    pub name: &'static str,
    /// It is the CPU of the receiving end.
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

/// What the target of operations counts for each of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Packets {
    /// Packets that come in.
    pub packets_in: f64,
    /// Packets that go out.
    pub packets_out: f64,
    /// Bytes of frames that come in.
    pub bytes_in: f64,
    /// Bytes of frames that go out.
    pub bytes_out: f64,
}

impl Packets {
    /// Bytes of a frame that comes in and of one that goes out.
    pub fn frames(&self) -> (f64, f64) {
        (self.bytes_in / self.packets_in, self.bytes_out / self.packets_out)
    }
}

/// Something that sentences are about, and of which not every predictor knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Needed {
    /// What inline data cost the CPU that copies them.
    InlineCopies,
    /// Ends that sleep until an interrupt.
    Interrupts,
    /// Completion queues that several connections share or do not share.
    CompletionQueues,
    /// RNR NAKs and the back-off after them.
    RnrNaks,
}
