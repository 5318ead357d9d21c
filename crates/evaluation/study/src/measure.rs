//! Measurement of the performance model's parameters on this machine, one call at a time.
//!
//! Two devices of this process exchange small messages. One thread makes all calls on both devices, so it can time each
//! kind of call separately:
//!
//! - a post that only queues a message, since a software RNIC defers posts while another message is in flight,
//! - a post that transmits its message at once,
//! - the processing of arrived packets by the RNIC,
//! - a poll that finds waiting completions,
//! - a post of a list of receives.
//!
//! Several cheap calls are timed together, and the time of a clock read is subtracted. The device's own thread may
//! transmit or receive packets instead of the timed call. A sample therefore counts only if the device's counters show
//! that the packets moved during the call.
//!
//! Only `g` needs a second thread, since its round trip needs a receiver that polls at the same time.
//!
//! Quantities have the names of the model's parameters. If one call covers several parameters, the name is a sum of
//! parameters.

use std::sync::atomic::{AtomicBool, Ordering};

use doorbell_exchange::ConnectError;
use doorbell_exchange::rc::{self, RcSettings};
use doorbell_exchange::setup::EndpointDescription;
use doorbell_verbs::{
    Access, Completion, Cq, Device, MemoryKind, Payload, PostError, Psn, Qp, QpCapacities, QpKind, QpOptions,
    RecvRequest, Region, SendFlags, SendOperation, SendRequest, Sge, Status,
};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use doorbell_record::Environment;

/// Schema of a [`Measurement`].
pub const SCHEMA: &str = "doorbell-measure/1";

/// Bytes of each timed message.
const BYTES: usize = 16;
/// Message sizes for which `g` is timed. Each size takes an equal part of the rounds.
const GAP_BYTES: [usize; 5] = [16, 1024, 4096, 16_384, 65_536];
/// Number of messages per list in the measurement of batched values.
const BATCH: usize = 8;
/// Number of cheap calls that are timed together.
const CHUNK: usize = 8;
/// Number of posted receives, which is also the capacity of each queue.
const DEPTH: usize = 128;
/// Maximum number of queued requests: one in flight, a chunk of single posts, and two lists.
const MOST_QUEUED: usize = 1 + CHUNK + 2 * BATCH;
const _: () = assert!(
    MOST_QUEUED < 64 && 2 * MOST_QUEUED < DEPTH,
    "more requests would be transmitted at once, or find no posted receive"
);
/// Allowed numbers of rounds.
const ROUNDS: std::ops::RangeInclusive<usize> = 10..=1_000_000;
/// Maximum factor by which the number of rounds grows while a quantity has no usable sample. After a long round trip, a
/// software RNIC defers no post for some time.
const MOST_ROUNDS: usize = 100;
/// Time after which a step fails. No step takes as long, even on a busy machine.
const PATIENCE_NS: u64 = 20_000_000_000;
/// Number of reads of the device's clock that determine the time of one clock read.
const CLOCK_READS: usize = 1000;

/// Result of a measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measurement {
    /// [`SCHEMA`].
    pub schema: String,
    /// Machine and device.
    pub environment: Environment,
    /// Number of messages per list in the measurement of batched values.
    pub batch: usize,
    /// Timed parameters by name.
    pub quantities: Vec<Quantity>,
    /// `g` for each message size. `g_fix_ns` and `g_var_ns_per_byte` are derived from these values.
    pub gaps: Vec<Gap>,
}

/// Measured parameter, or measured sum of parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quantity {
    /// Name of the parameter.
    pub name: String,
    /// Description of the timed call.
    pub what: String,
    /// Median in nanoseconds, or in nanoseconds per byte if the name ends in `_per_byte`.
    pub median: f64,
    /// 10th percentile of the samples. `None` if the value is derived from several medians.
    pub p10: Option<f64>,
    /// 90th percentile of the samples. `None` if the value is derived from several medians.
    pub p90: Option<f64>,
    /// Number of samples.
    pub samples: usize,
}

/// Gap `g` for one message size: time until a sender can reuse the resources of a message.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gap {
    /// Bytes of the message.
    pub bytes: usize,
    /// Median time from the post to the completion, without `o_snd`.
    pub median_ns: f64,
}

/// Reason for a failed measurement.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeasureError {
    /// The number of rounds is out of range.
    #[error("the number of rounds is {given}: must be {} to {}", ROUNDS.start(), ROUNDS.end())]
    Rounds {
        /// Requested number of rounds.
        given: usize,
    },
    /// The devices could not be connected.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A queue rejected a request.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A completion queue overran.
    #[error(transparent)]
    Overrun(#[from] doorbell_verbs::Overrun),
    /// A message failed.
    #[error("a message completed with status {0:?}")]
    Failed(Status),
    /// No message arrived within the time limit.
    #[error("no message arrived within {} s", PATIENCE_NS / 1_000_000_000)]
    Stalled,
    /// The receiving thread panicked.
    #[error("the receiving thread panicked")]
    Receiver,
    /// A quantity has no usable sample.
    #[error("{0} has no usable sample: the machine is too busy")]
    NoSample(&'static str),
}

impl From<doorbell_verbs::Error> for MeasureError {
    fn from(error: doorbell_verbs::Error) -> Self {
        ConnectError::from(error).into()
    }
}

/// Times the calls on two devices of this machine, of which one sends and the other receives. No other code may use the
/// devices during the measurement.
///
/// # Errors
///
/// The devices cannot be connected, messages fail, or the machine is too busy for a usable sample.
pub fn measure(sender: &Device, receiver: &Device, rounds: usize) -> Result<Measurement, MeasureError> {
    if !ROUNDS.contains(&rounds) {
        return Err(MeasureError::Rounds { given: rounds });
    }
    let mut pair = Pair::connect(sender, receiver)?;
    let mut samples = Samples::default();
    for round in 0..rounds * MOST_ROUNDS {
        if round == rounds / 10 {
            samples = Samples::default(); // discard the warm-up rounds
        }
        if round >= rounds + rounds / 10 && samples.is_complete() {
            break;
        }
        pair.sending_at_once(&mut samples)?;
        pair.queueing(&mut samples)?;
    }
    let mut quantities = samples.quantities()?;
    let o_snd_ns = quantities[0].median;
    let (gaps, batched) = pair.gaps(rounds.div_ceil(GAP_BYTES.len()).max(3), o_snd_ns)?;
    let (fixed, per_byte) = line_through(&gaps);
    let fitted = |name: &str, what: &str, median| Quantity {
        name: name.to_owned(),
        what: what.to_owned(),
        median,
        p10: None,
        p90: None,
        samples: gaps.len(),
    };
    quantities.push(fitted("g_fix_ns", "from post to completion, without o_snd: what does not grow with size", fixed));
    quantities.push(fitted("g_var_ns_per_byte", "the same: what grows, per byte", per_byte));
    quantities.push(batched);
    let environment = Environment::of(&sender.attributes());
    Ok(Measurement { schema: SCHEMA.to_owned(), environment, batch: BATCH, quantities, gaps })
}

/// Returns intercept and slope of the line that fits the gaps by size with the smallest relative errors.
fn line_through(gaps: &[Gap]) -> (f64, f64) {
    let (mut s, mut sx, mut sy, mut sxx, mut sxy) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for gap in gaps {
        let (x, y) = (gap.bytes as f64, gap.median_ns.max(1.0));
        let weight = 1.0 / (y * y);
        (s, sx, sy, sxx, sxy) =
            (s + weight, sx + weight * x, sy + weight * y, sxx + weight * x * x, sxy + weight * x * y);
    }
    let slope = ((s * sxy - sx * sy) / (s * sxx - sx * sx)).max(0.0);
    (((sy - slope * sx) / s).max(0.0), slope)
}

/// Samples of each quantity, in nanoseconds per message.
#[derive(Default)]
struct Samples {
    post_queued: Vec<f64>,
    list_queued: Vec<f64>,
    post_sent: Vec<f64>,
    list_sent: Vec<f64>,
    poll_one: Vec<f64>,
    poll_list: Vec<f64>,
    receive_one: Vec<f64>,
    receive_run: Vec<f64>,
    repost_one: Vec<f64>,
    repost_list: Vec<f64>,
}

impl Samples {
    /// Returns whether each quantity whose samples may be unusable has a sample.
    fn is_complete(&self) -> bool {
        let spoilt = [&self.post_queued, &self.post_sent, &self.list_sent, &self.receive_one, &self.receive_run];
        spoilt.iter().all(|samples| !samples.is_empty()) && !self.poll_one.is_empty()
    }

    /// Computes median and percentiles of each quantity. The first quantity is `o_snd_ns.single`.
    fn quantities(self) -> Result<Vec<Quantity>, MeasureError> {
        [
            ("o_snd_ns.single", "a post while another message is in flight, which only queues", self.post_queued),
            ("o_snd_ns.batched", "the same in lists of 8, per message", self.list_queued),
            ("o_snd_ns.single + o_nsnd_ns", "a post with nothing in flight, which transmits", self.post_sent),
            ("o_snd_ns.batched + o_nsnd_ns", "the same with a list of 8, per message", self.list_sent),
            ("o_rcv_ns.single", "a poll that takes one of several completions", self.poll_one),
            ("o_rcv_ns.batched", "a poll that takes 8, per message", self.poll_list),
            ("o_nrcv_ns alone", "the RNIC's turn with one packet to receive", self.receive_one),
            ("o_nrcv_ns", "the same with a run of 8, per message", self.receive_run),
            ("o_post_ns.single", "posting one receive", self.repost_one),
            ("o_post_ns.batched", "the same in lists of 8, per receive", self.repost_list),
        ]
        .into_iter()
        .map(|(name, what, values)| quantity(name, what, values))
        .collect()
    }
}

fn quantity(name: &'static str, what: &str, mut values: Vec<f64>) -> Result<Quantity, MeasureError> {
    if values.is_empty() {
        return Err(MeasureError::NoSample(name));
    }
    values.sort_by(f64::total_cmp);
    let at = |share: f64| values[((values.len() - 1) as f64 * share).round() as usize];
    let (median, p10, p90) = (at(0.5), Some(at(0.1)), Some(at(0.9)));
    Ok(Quantity { name: name.to_owned(), what: what.to_owned(), median, p10, p90, samples: values.len() })
}

/// One end of the connection.
struct End {
    device: Device,
    qp: Qp,
    cq: Cq,
    region: Region,
    psn: Psn,
}

impl End {
    fn new(device: &Device) -> Result<Self, MeasureError> {
        let pd = device.create_pd()?;
        let cq = device.create_cq(4 * DEPTH)?;
        let qp = pd.create_qp(QpOptions {
            kind: QpKind::Rc,
            send_cq: &cq,
            recv_cq: &cq,
            srq: None,
            capacities: QpCapacities {
                max_send_wr: DEPTH,
                max_recv_wr: DEPTH,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline: BYTES,
            },
            signal_all: false,
        })?;
        // All messages share one buffer, since no code reads the received bytes.
        let region = pd.allocate(GAP_BYTES[GAP_BYTES.len() - 1], Access::LOCAL_WRITE, MemoryKind::Plain)?;
        rc::initialise(&qp, Access::empty()).map_err(ConnectError::from)?;
        Ok(Self { device: device.clone(), qp, cq, region, psn: device.random_psn() })
    }

    fn description(&self) -> EndpointDescription {
        EndpointDescription::bare(&self.qp, self.psn)
    }

    fn connect(&self, peer: &EndpointDescription) -> Result<(), ConnectError> {
        let settings = RcSettings { timeout: 14, retry_count: 7, rnr_retry: 7, min_rnr_timer: 12 };
        rc::connect(&self.qp, &self.description(), peer, &settings)
    }

    /// Posts a list of receives.
    fn post_receives(&self, count: usize) -> Result<(), MeasureError> {
        let sges = [self.region.sge(0, self.region.len())];
        let list: SmallVec<[RecvRequest<'_>; DEPTH]> =
            (0..count).map(|_| RecvRequest { wr_id: 0, sges: &sges }).collect();
        Ok(self.qp.post_recv(&list)?)
    }

    /// Takes completions and returns their number. A failed completion causes an error.
    fn poll(&self, list: &mut [Completion]) -> Result<usize, MeasureError> {
        let count = self.cq.poll(list)?;
        match list[..count].iter().find(|completion| completion.status != Status::Success) {
            Some(failed) => Err(MeasureError::Failed(failed.status)),
            None => Ok(count),
        }
    }

    /// Returns the numbers of sent and of received requests.
    fn packets(&self) -> (u64, u64) {
        // Only software RNICs are measured, since only their calls process packets. All software RNICs have counters.
        let counters = self.device.counters().unwrap_or_default();
        (counters.tx_data_packets, counters.rx_vport_rdma_unicast_packets)
    }
}

/// Both ends of the connection.
struct Pair {
    sender: End,
    receiver: End,
    /// Time of a clock read in nanoseconds.
    clock_ns: f64,
    /// Number of posted messages without a completion so far.
    unfinished: usize,
    /// Number of consumed receives that must be posted again.
    taken: usize,
}

impl Pair {
    fn connect(sender: &Device, receiver: &Device) -> Result<Self, MeasureError> {
        let (sender, receiver) = (End::new(sender)?, End::new(receiver)?);
        receiver.post_receives(DEPTH)?;
        receiver.connect(&sender.description())?;
        sender.connect(&receiver.description())?;
        let start_ns = sender.device.now_ns();
        for _ in 1..CLOCK_READS {
            std::hint::black_box(sender.device.now_ns());
        }
        let clock_ns = (sender.device.now_ns() - start_ns) as f64 / CLOCK_READS as f64;
        Ok(Self { sender, receiver, clock_ns, unfinished: 0, taken: 0 })
    }

    /// Posts `count` small, signalled messages as one list.
    fn post(&mut self, count: usize) -> Result<(), MeasureError> {
        let request = SendRequest {
            wr_id: 0,
            operation: SendOperation::Send,
            flags: SendFlags::SIGNALED,
            payload: Payload::Inline(&[0; BYTES]),
            destination: None,
        };
        self.sender.qp.post_send(&[request; BATCH][..count])?;
        self.unfinished += count;
        Ok(())
    }

    /// Times a call and returns the time per message.
    fn time(
        &mut self,
        messages: usize,
        call: impl FnOnce(&mut Self) -> Result<(), MeasureError>,
    ) -> Result<f64, MeasureError> {
        let start_ns = self.sender.device.now_ns();
        call(self)?;
        let ns = (self.sender.device.now_ns() - start_ns) as f64;
        Ok((ns - self.clock_ns).max(0.0) / messages as f64)
    }

    /// Polls both ends until all sent messages are complete and both polls find nothing. These polls keep the threads
    /// of the devices from processing the following packets.
    fn quiet(&mut self) -> Result<(), MeasureError> {
        let until_ns = self.sender.device.now_ns() + PATIENCE_NS;
        let mut list = [Completion::default(); 32];
        loop {
            let received = self.receiver.poll(&mut list)?;
            let sent = self.sender.poll(&mut list)?;
            self.taken += received;
            self.unfinished -= sent;
            if self.unfinished == 0 && received + sent == 0 {
                return Ok(());
            }
            if self.sender.device.now_ns() > until_ns {
                return Err(MeasureError::Stalled);
            }
        }
    }

    /// Posts the consumed receives again and times the posts.
    fn repost(&mut self, samples: &mut Samples) -> Result<(), MeasureError> {
        while self.taken >= CHUNK + BATCH {
            let one_by_one = self.time(CHUNK, |pair| (0..CHUNK).try_for_each(|_| pair.receiver.post_receives(1)))?;
            samples.repost_one.push(one_by_one);
            samples.repost_list.push(self.time(BATCH, |pair| pair.receiver.post_receives(BATCH))?);
            self.taken -= CHUNK + BATCH;
        }
        Ok(())
    }

    /// Times posts while no message is in flight, and the processing of their packets.
    fn sending_at_once(&mut self, samples: &mut Samples) -> Result<(), MeasureError> {
        for count in [1, BATCH] {
            self.quiet()?;
            let (sent_before, _) = self.sender.packets();
            let (_, received_before) = self.receiver.packets();
            let posting = self.time(count, |pair| pair.post(count))?;
            let (sent, _) = self.sender.packets();
            let (_, early) = self.receiver.packets();
            let receiving = self.time(count, |pair| {
                pair.receiver.device.drive();
                Ok(())
            })?;
            let (_, received) = self.receiver.packets();
            let (posts, receives) = match count {
                1 => (&mut samples.post_sent, &mut samples.receive_one),
                _ => (&mut samples.list_sent, &mut samples.receive_run),
            };
            if sent == sent_before + count as u64 {
                posts.push(posting);
            }
            if early == received_before && received == early + count as u64 {
                receives.push(receiving);
            }
            self.quiet()?;
            self.repost(samples)?;
        }
        Ok(())
    }

    /// Times posts that only queue messages since another message is in flight, and polls that find the completions of
    /// these messages.
    fn queueing(&mut self, samples: &mut Samples) -> Result<(), MeasureError> {
        self.quiet()?;
        // Read the counter before the first post, since another thread may receive the message at once.
        let (_, received_before) = self.receiver.packets();
        self.post(1)?;
        let (sent_before, _) = self.sender.packets();
        let singles = self.time(CHUNK, |pair| (0..CHUNK).try_for_each(|_| pair.post(1)))?;
        let lists = self.time(2 * BATCH, |pair| pair.post(BATCH).and_then(|()| pair.post(BATCH)))?;
        if self.sender.packets().0 == sent_before {
            samples.post_queued.push(singles);
            samples.list_queued.push(lists);
        }
        let until_ns = self.sender.device.now_ns() + PATIENCE_NS;
        while self.receiver.packets().1 < received_before + MOST_QUEUED as u64 {
            self.sender.device.drive();
            self.receiver.device.drive();
            if self.sender.device.now_ns() > until_ns {
                return Err(MeasureError::Stalled);
            }
        }
        // All completions are already in their queue, so these polls process no packets.
        let mut list = [Completion::default(); BATCH];
        let mut found = 0;
        let mut take = |pair: &mut Self, most: usize| -> Result<(), MeasureError> {
            found += pair.receiver.poll(&mut list[..most])?;
            Ok(())
        };
        let one_by_one = self.time(CHUNK, |pair| (0..CHUNK).try_for_each(|_| take(pair, 1)))?;
        let together = self.time(BATCH, |pair| take(pair, BATCH))?;
        self.taken += found;
        if found == CHUNK + BATCH {
            samples.poll_one.push(one_by_one);
            samples.poll_list.push(together);
        }
        self.quiet()?;
        self.repost(samples)
    }

    /// Times `g` for each size, and `g` of a list, while another thread receives.
    fn gaps(&mut self, rounds: usize, o_snd_ns: f64) -> Result<(Vec<Gap>, Quantity), MeasureError> {
        self.quiet()?;
        let over = AtomicBool::new(false);
        let (receiver, sender) = (&self.receiver, &self.sender);
        let again = std::mem::take(&mut self.taken);
        std::thread::scope(|scope| {
            let receiving = scope.spawn(|| receive_until(receiver, again, &over));
            let timed = time_gaps(sender, rounds, o_snd_ns);
            over.store(true, Ordering::Relaxed);
            // If the receiver failed, return its error, which explains why the sender got no answer.
            receiving.join().map_err(|_| MeasureError::Receiver)??;
            timed
        })
    }
}

fn time_gaps(sender: &End, rounds: usize, o_snd_ns: f64) -> Result<(Vec<Gap>, Quantity), MeasureError> {
    let mut completions = [Completion::default(); BATCH];
    let mut time = |bytes: usize, count: usize| -> Result<Vec<f64>, MeasureError> {
        let sges: [Sge; 1] = [sender.region.sge(0, bytes)];
        let inline = [0; BYTES];
        let payload = if bytes <= BYTES { Payload::Inline(&inline[..bytes]) } else { Payload::Sges(&sges) };
        let request = SendRequest {
            wr_id: 0,
            operation: SendOperation::Send,
            flags: SendFlags::SIGNALED,
            payload,
            destination: None,
        };
        let list = [request; BATCH];
        let mut times = Vec::with_capacity(rounds);
        for round in 0..rounds + rounds / 10 {
            let start_ns = sender.device.now_ns();
            sender.qp.post_send(&list[..count])?;
            let mut found = 0;
            while found < count {
                found += sender.poll(&mut completions)?;
                if sender.device.now_ns() > start_ns + PATIENCE_NS {
                    return Err(MeasureError::Stalled);
                }
            }
            if round >= rounds / 10 {
                times.push((sender.device.now_ns() - start_ns) as f64 - o_snd_ns);
            }
        }
        Ok(times)
    };
    let mut gaps = Vec::new();
    for bytes in GAP_BYTES {
        let median_ns = quantity("g_ns", "", time(bytes, 1)?)?.median;
        gaps.push(Gap { bytes, median_ns });
    }
    let batched =
        quantity("g_ns of a list", "from posting a list of 8 of 16 B to its last completion", time(BYTES, BATCH)?)?;
    Ok((gaps, batched))
}

/// Receives messages and posts their receives again until `over` is set. `again` receives are posted first.
fn receive_until(receiver: &End, again: usize, over: &AtomicBool) -> Result<(), MeasureError> {
    receiver.post_receives(again)?;
    let mut list = [Completion::default(); 32];
    while !over.load(Ordering::Relaxed) {
        match receiver.poll(&mut list)? {
            0 => std::thread::yield_now(),
            count => receiver.post_receives(count)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use doorbell_verbs::soft::{self, SoftOptions};

    use super::*;

    #[test]
    fn every_parameter_is_timed() {
        let [sender, receiver] = [(); 2].map(|()| soft::open(&SoftOptions::default()).unwrap());
        let measurement = measure(&sender, &receiver, 100).unwrap();
        let names: Vec<&str> = measurement.quantities.iter().map(|quantity| quantity.name.as_str()).collect();
        for name in ["o_snd_ns", "o_rcv_ns", "o_post_ns"] {
            for kind in ["single", "batched"] {
                assert!(names.contains(&format!("{name}.{kind}").as_str()), "{names:?}");
            }
        }
        assert!(names.contains(&"g_fix_ns") && names.contains(&"g_ns of a list"), "{names:?}");
        for quantity in &measurement.quantities {
            assert!(quantity.median >= 0.0 && quantity.median.is_finite(), "{quantity:?}");
            let (p10, p90) = (quantity.p10.unwrap_or(quantity.median), quantity.p90.unwrap_or(quantity.median));
            assert!(p10 <= quantity.median && quantity.median <= p90 && quantity.samples > 0, "{quantity:?}");
        }
        assert_eq!(measurement.gaps.len(), GAP_BYTES.len());
        measure(&receiver, &sender, 100).expect("both devices can be used again");
        let text = serde_json::to_string(&measurement).unwrap();
        // A number read from JSON may differ in its last bit.
        for (read, written) in
            serde_json::from_str::<Measurement>(&text).unwrap().quantities.iter().zip(&measurement.quantities)
        {
            assert_eq!((&read.name, read.samples), (&written.name, written.samples));
            assert!((read.median - written.median).abs() <= 1e-12 * written.median, "{read:?} {written:?}");
        }
    }

    #[test]
    fn rounds_are_bounded() {
        let device = soft::open(&SoftOptions::default()).unwrap();
        for given in [0, 9, 1_000_001] {
            let error = measure(&device, &device, given).expect_err("out of range").to_string();
            assert_eq!(error, format!("the number of rounds is {given}: must be 10 to 1000000"));
        }
    }

    #[test]
    fn a_line_goes_through_its_points() {
        let gap = |bytes: usize, median_ns: f64| Gap { bytes, median_ns };
        let (fixed, per_byte) = line_through(&[gap(16, 3016.0), gap(1000, 4000.0), gap(50_000, 53_000.0)]);
        assert!((fixed - 3000.0).abs() < 1e-6 && (per_byte - 1.0).abs() < 1e-9, "{fixed} {per_byte}");
        assert_eq!(line_through(&[gap(16, 100.0), gap(1000, 50.0)]).1, 0.0, "no gap shrinks with size");
    }
}
