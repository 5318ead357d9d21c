//! Published rows, each simulated in its configuration as published.
//!
//! A row that needs something that simulations do not have is not compared, and a [`Lack`] says what is missing.

use std::collections::BTreeMap;

use doorbell_protocols::{Protocol, Release};
use doorbell_published::{
    Amount, Configuration, Dimension, Operation as Published, PathMtuSaid, Quantity, Receivers, Relation, Repost, Row,
    Subject, Value,
};
use doorbell_study::parameters::{Extent, Kind, Operation, Parameters};
use doorbell_study::serving::SharedBy;
use doorbell_wire::{MessageKind, OuterKind, Transport, message_cost};

use crate::measure::{Load, MeasureError, Measured, measure};
use crate::paced::highest_without_rnr;
use crate::testbed::Testbed;

/// A row of T1 is within, if it deviates by this share at most.
pub const TOLERANCE: f64 = 0.15;
/// A rate of operations or packets of T2 or T3 is within, if it deviates by this share at most.
pub const RATE_TOLERANCE: f64 = 0.10;
/// A rate of this share of the highest counts as the highest: in a sweep, the first one ends it.
const HIGHEST: f64 = 0.99;
/// The share of the line at which it counts as full.
const FULL: f64 = 0.98;
/// Steps of the search for the shortest message that fills the line.
const STEPS: u32 = 12;

/// How long runs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Messages of a run, of all its connections.
    pub messages: u64,
    /// Messages of each connection at least.
    pub least_each: u64,
    /// Rounds of a latency.
    pub rounds: u64,
}

impl Effort {
    /// All rows within minutes.
    pub const USUAL: Self = Self { messages: 40_000, least_each: 1000, rounds: 500 };
    /// All rows within a minute.
    pub const QUICK: Self = Self { messages: 8000, least_each: 300, rounds: 100 };
    /// For curves without the unevenness of short runs.
    pub const FULL: Self = Self { messages: 200_000, least_each: 2000, rounds: 2000 };

    /// How long a run of messages of this size is.
    pub fn extent(self, parameters: &Parameters, bytes: usize) -> Extent {
        let each = match parameters.kind {
            Kind::Latency => self.rounds,
            Kind::Bandwidth => (self.messages / parameters.connections.max(1) as u64).max(self.least_each),
        };
        // Long messages take as long as many short ones.
        Extent::Messages(each.min((LONG_BYTES / bytes.max(1) as u64).max(SHORTEST)))
    }
}

/// A published number beside the simulated one.
#[derive(Clone, Debug)]
pub struct Reproduced<'a> {
    /// What was published.
    pub row: &'a Row,
    /// The testbed's file has values that were fitted on this row, so it is no prediction.
    pub is_fitted: bool,
    /// What the simulation says, or what it lacks to say something.
    pub outcome: Result<Compared, Lack>,
}

/// A simulated number beside the published one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compared {
    /// What was simulated, in the unit of the row.
    pub simulated: Value,
    /// How far it is off: 0.1 is a tenth too high. 0 where the row is a bound that the simulation keeps.
    pub deviation: f64,
    /// The tolerance.
    pub tolerance: f64,
}

impl Compared {
    /// Does the row's tolerance hold?
    pub fn is_within(&self) -> bool {
        self.deviation.abs() <= self.tolerance
    }
}

/// What is missing for a simulated number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lack {
    /// The row is about something that is not simulated.
    #[error("simulations have no {0}")]
    Feature(&'static str),
    /// A field of the row's configuration has no number.
    #[error("the publication does not state `{0}`, which a simulation needs")]
    Unstated(&'static str),
    /// A run failed.
    #[error("the run failed: {0}")]
    Failed(String),
}

impl From<MeasureError> for Lack {
    fn from(error: MeasureError) -> Self {
        Self::Failed(error.to_string())
    }
}

/// The runs of a testbed. A run that several rows need is made once.
#[derive(Debug)]
pub struct Runs<'a> {
    testbed: &'a Testbed,
    effort: Effort,
    seed: u64,
    done: BTreeMap<String, Measured>,
}

impl<'a> Runs<'a> {
    /// No runs yet.
    pub fn new(testbed: &'a Testbed, effort: Effort) -> Self {
        Self { testbed, effort, seed: SEED, done: BTreeMap::new() }
    }

    /// The same with another seed, if one is given.
    pub fn with_seed(mut self, seed: Option<u64>) -> Self {
        self.seed = seed.unwrap_or(SEED);
        self
    }

    /// Simulates what a row needs.
    pub fn reproduce<'r>(&mut self, row: &'r Row) -> Reproduced<'r> {
        let is_fitted =
            self.testbed.parameters().any(|parameter| parameter.is_fitted && names(parameter.source, &row.id));
        Reproduced { row, is_fitted, outcome: self.compare(row) }
    }

    fn compare(&mut self, row: &Row) -> Result<Compared, Lack> {
        let found = self.found(row)?;
        let deviation = row.relation.deviation(row.value.in_base(), found);
        let simulated = Value { number: row.value.unit.from_base(found), unit: row.value.unit };
        let tolerance = match (&row.subject, row.quantity.dimension()) {
            (Subject::Operation(_), Dimension::Size | Dimension::Packets) if row.relation == Relation::Is => 1e-4,
            (Subject::Operation(_), Dimension::Rate | Dimension::DataRate) => RATE_TOLERANCE,
            _ => TOLERANCE,
        };
        Ok(Compared { simulated, deviation, tolerance })
    }

    /// A run of this load, made now or before. Its rate is the highest without RNR NAKs, if `is_paced`.
    pub(crate) fn run(&mut self, load: &Load, is_paced: bool) -> Result<Measured, Lack> {
        self.run_near(load, is_paced, None)
    }

    /// As [`Self::run`]. A rate to be looked for is likely to be near `guess`.
    pub(crate) fn run_near(&mut self, load: &Load, is_paced: bool, guess: Option<f64>) -> Result<Measured, Lack> {
        let load = self.with_extent(load, is_paced);
        let key = format!("{load:?} {is_paced}");
        if let Some(measured) = self.done.get(&key) {
            return Ok(measured.clone());
        }
        let measured = if is_paced {
            let highest = highest_without_rnr(self.testbed, &load, self.seed, guess)?;
            highest.ok_or(Lack::Feature("rate that provokes no RNR NAK"))?
        } else {
            measure(self.testbed, &load, self.seed)?
        };
        self.done.insert(key, measured.clone());
        Ok(measured)
    }

    fn with_extent(&self, load: &Load, is_paced: bool) -> Load {
        let mut load = load.clone();
        let extent = self.effort.extent(&load.parameters, load.bytes);
        // A receiver that is too slow shows only once it has no receives left.
        load.parameters.extent = match extent {
            Extent::Messages(each) if is_paced => Extent::Messages(each.max(DEPTHS * load.parameters.depth as u64)),
            extent => extent,
        };
        load
    }

    fn found(&mut self, row: &Row) -> Result<f64, Lack> {
        if row.quantity == Quantity::InlineReceiveSize {
            return Ok(self.testbed.nic.inline_receive as f64);
        }
        if row.quantity == Quantity::InFlight {
            let connections = number("connections", row.configuration.connections)?;
            return Ok((self.testbed.nic.max_rd_atomic * connections) as f64);
        }
        let swept = swept(row.quantity);
        let load = load(row)?;
        let is_paced = row.configuration.pace == Some(doorbell_published::Pace::HighestWithoutRnr);
        let range = || range(row, swept);
        let with = |change: &dyn Fn(&mut Load)| {
            let mut other = load.clone();
            change(&mut other);
            other
        };
        let found = match row.quantity {
            Quantity::Latency => self.latency(&load)?,
            Quantity::LatencyOverUnfenced => {
                self.latency(&load)? - self.latency(&with(&|load| load.parameters.protocol = Protocol::DirectRead))?
            }
            Quantity::LatencyPerSize => {
                let (least, most) = range()?;
                let at = |bytes: u64| with(&|load| load.resize(bytes as usize));
                (self.latency(&at(most))? - self.latency(&at(least))?) / (most - least) as f64
            }
            Quantity::MessageRate | Quantity::OperationRate => self.run(&load, is_paced)?.messages_per_s,
            Quantity::Throughput => self.run(&load, is_paced)?.messages_per_s * load.bytes as f64,
            Quantity::LineShare => self.line_share(&load, is_paced)?,
            Quantity::GapOverSend => {
                let alone = self.run(&with(&|load| load.parameters.window = 1), false)?;
                let cpu = self.testbed.cpu.post_list + self.testbed.cpu.post_wr;
                1e12 / alone.messages_per_s / cpu.0.max(1) as f64
            }
            Quantity::GainOfWindow => {
                let most = self.sweep(&load, Swept::Window, range()?, is_paced)?;
                let highest = most.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
                highest / most.first().map_or(1.0, |(_, rate)| *rate)
            }
            Quantity::GainOfBatch => self.over(&load, &with(&|load| load.parameters.batch = 1), is_paced)?,
            Quantity::GainOfPollList => {
                self.over(&load, &with(&|load| load.parameters.serving.poll_list = 1), is_paced)?
            }
            Quantity::RateOver512 => self.over(&load, &with(&|load| load.resize(512)), is_paced)?,
            Quantity::SharedOverOwn => {
                self.over(&load, &with(&|load| load.parameters.serving.shared_receives = None), is_paced)?
            }
            Quantity::SaturatingWindow => saturating(&self.sweep(&load, Swept::Window, range()?, is_paced)?),
            Quantity::SaturatingBatch => saturating(&self.sweep(&load, Swept::Batch, range()?, is_paced)?),
            Quantity::LineFillingSize => {
                let (mut low, mut high) = range()?;
                for _ in 0..STEPS {
                    let bytes = u64::midpoint(low, high);
                    let fills = self.line_share(&with(&|load| load.resize(bytes as usize)), is_paced)? >= FULL;
                    if fills { high = bytes } else { low = bytes }
                }
                high as f64
            }
            quantity => self.counted(&load, quantity)?,
        };
        Ok(found)
    }

    pub(crate) fn latency(&mut self, load: &Load) -> Result<f64, Lack> {
        let mut load = load.clone();
        load.parameters.kind = Kind::Latency;
        (load.parameters.window, load.parameters.batch) = (1, 1);
        let measured = self.run(&load, false)?;
        measured.latency_ns.map(|ns| ns as f64).ok_or(Lack::Feature("latency of this"))
    }

    fn over(&mut self, load: &Load, other: &Load, is_paced: bool) -> Result<f64, Lack> {
        Ok(self.run(load, is_paced)?.messages_per_s / self.run(other, is_paced)?.messages_per_s)
    }

    fn sweep(
        &mut self,
        load: &Load,
        swept: Swept,
        (least, most): (u64, u64),
        is_paced: bool,
    ) -> Result<Vec<(u64, f64)>, Lack> {
        let doubling = std::iter::successors(Some(least.max(1)), |value| value.checked_mul(2));
        let mut rates = Vec::new();
        for value in doubling.take_while(|value| *value <= most) {
            let mut load = load.clone();
            match swept {
                Swept::Window => load.parameters.window = value as usize,
                Swept::Batch => load.parameters.batch = value as usize,
                Swept::Bytes => load.resize(value as usize),
            }
            rates.push((value, self.run(&load, is_paced)?.messages_per_s));
        }
        Ok(rates)
    }

    /// The rate, over that at which the line of the direction with the payload is full.
    fn line_share(&mut self, load: &Load, is_paced: bool) -> Result<f64, Lack> {
        let measured = self.run(load, is_paced)?;
        let reads = load.parameters.protocol.release() == Release::Receiver;
        let kind = if reads { MessageKind::Read } else { MessageKind::Send };
        let mtu = load.parameters.path_mtu().unwrap_or(self.testbed.link.path_mtu);
        let cost = message_cost(kind, Transport::Rc, load.bytes as u64, mtu, OuterKind::IPV4)
            .map_err(|error| Lack::Failed(error.to_string()))?;
        let line_bytes = match cost.response {
            doorbell_wire::Response::Exact(response) => response.line_bytes,
            _ => cost.request.line_bytes,
        };
        let full = self.testbed.link.rate.bits_per_s() as f64 / 8.0 / line_bytes as f64;
        Ok(measured.messages_per_s / full)
    }

    /// A number of packets or bytes at the target.
    fn counted(&mut self, load: &Load, quantity: Quantity) -> Result<f64, Lack> {
        let measured = self.run(load, false)?;
        let target = measured.counted[1].ok_or(Lack::Feature("counters"))?;
        let seconds = measured.lasted.0 as f64 / 1e12;
        let messages = measured.messages as f64;
        let (packets_in, bytes_in) =
            (target.rx_vport_rdma_unicast_packets as f64, target.rx_vport_rdma_unicast_bytes as f64);
        let (packets_out, bytes_out) =
            (target.tx_vport_rdma_unicast_packets as f64, target.tx_vport_rdma_unicast_bytes as f64);
        Ok(match quantity {
            Quantity::PacketsIn => packets_in / seconds,
            Quantity::PacketsOut => packets_out / seconds,
            Quantity::BytesIn => bytes_in / seconds,
            Quantity::RequestBytesPerPacket => bytes_in / packets_in,
            Quantity::ResponseBytesPerPacket => bytes_out / packets_out,
            Quantity::RequestPacketsPerOperation => packets_in / messages,
            Quantity::ResponsePacketsPerOperation => packets_out / messages,
            Quantity::MiddlePacketBytes | Quantity::MiddlePacketEfficiency => {
                return Err(Lack::Feature(
                    "part in a packet's length, which follows from its headers: doorbell-wire computes it",
                ));
            }
            Quantity::SaturatingConnections => return Err(Lack::Feature("sweep over queue pairs")),
            _ => return Err(Lack::Feature("store on passive memory")),
        })
    }
}

/// Unless another one is given all runs have the same seed: results are those of everybody.
pub const SEED: u64 = 1;
/// Bytes that a run of long messages carries per connection at most, if that is no fewer than [`SHORTEST`] messages.
const LONG_BYTES: u64 = 64 << 20;
const SHORTEST: u64 = 64;
/// Of a run that looks for the highest rate without RNR NAKs: messages per receive buffer.
const DEPTHS: u64 = 20;

/// Does a sentence name a row, by its whole id or by its beginning and a star?
fn names(sentence: &str, id: &str) -> bool {
    sentence.split([' ', ',', '(', ')', ';']).map(|word| word.trim_end_matches('.')).any(|word| {
        match word.strip_suffix('*') {
            Some(beginning) => beginning.contains('/') && id.starts_with(beginning),
            None => word == id,
        }
    })
}

/// The least value that reaches the highest rate.
fn saturating(rates: &[(u64, f64)]) -> f64 {
    let highest = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    rates.iter().find(|(_, rate)| *rate >= highest * HIGHEST).map_or(0.0, |(value, _)| *value as f64)
}

/// What a quantity is found by varying.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Swept {
    Bytes,
    Window,
    Batch,
}

fn swept(quantity: Quantity) -> Option<Swept> {
    match quantity {
        Quantity::LatencyPerSize | Quantity::LineFillingSize => Some(Swept::Bytes),
        Quantity::SaturatingWindow | Quantity::GainOfWindow => Some(Swept::Window),
        Quantity::SaturatingBatch => Some(Swept::Batch),
        _ => None,
    }
}

fn range(row: &Row, swept: Option<Swept>) -> Result<(u64, u64), Lack> {
    let configuration = &row.configuration;
    let (field, amount) = match swept {
        Some(Swept::Bytes) => ("bytes", configuration.bytes),
        Some(Swept::Window) => ("window", configuration.window),
        Some(Swept::Batch) => ("batch", configuration.batch),
        None => return Err(Lack::Feature("sweep for this")),
    };
    match amount {
        Some(Amount::Span(least, most)) => Ok((least as u64, most as u64)),
        _ => Err(Lack::Unstated(field)),
    }
}

/// The number of a field; of a range the greatest.
fn number(field: &'static str, amount: Option<Amount>) -> Result<u64, Lack> {
    match amount {
        Some(Amount::Is(number) | Amount::Span(_, number)) => Ok(number as u64),
        Some(Amount::Unknown) | None => Err(Lack::Unstated(field)),
    }
}

/// A row's configuration as published.
fn load(row: &Row) -> Result<Load, Lack> {
    if matches!(row.subject, Subject::Store(_)) {
        return Err(Lack::Feature("store on passive memory"));
    }
    let configuration = &row.configuration;
    let bytes = number("bytes", configuration.bytes)? as usize;
    let mut parameters = Parameters::plain(Kind::Bandwidth, Operation::Send, bytes);
    parameters.depths_are_defaults = false;
    let mut load = match &row.subject {
        Subject::Protocol(name) => {
            parameters.protocol = Protocol::by_name(name).ok_or(Lack::Feature("protocol of this name"))?;
            messages(parameters, bytes, configuration)?
        }
        Subject::Operation(operation) => operations(parameters, bytes, *operation, configuration)?,
        Subject::Store(_) => return Err(Lack::Feature("store on passive memory")),
    };
    if let Some(PathMtuSaid::Is(mtu)) = configuration.path_mtu {
        load.parameters.mtu = Some(mtu.bytes());
    }
    load.parameters.batch = load.parameters.batch.min(load.parameters.window);
    Ok(load)
}

fn messages(mut parameters: Parameters, bytes: usize, configuration: &Configuration) -> Result<Load, Lack> {
    parameters.window = number("window", configuration.window)? as usize;
    parameters.batch = number("batch", configuration.batch)? as usize;
    // A receiver that never runs out of receives while its sender waits for acknowledgements.
    parameters.depth = (2 * parameters.window).max(128);
    let wants_credits = configuration.credits == Some(true);
    parameters.credits = wants_credits || !parameters.protocol.is_possible_without_credits();
    parameters.connections = number("connections", configuration.connections)? as usize;
    let serving = &mut parameters.serving;
    serving.threads = number("threads", configuration.threads)? as usize;
    serving.poll_list = number("poll_list", configuration.poll_list)? as usize;
    serving.repost_list = number("repost_list", configuration.repost_list)? as usize;
    if configuration.shared_receives == Some(true) {
        let by_thread = configuration.repost_by == Some(Repost::Thread);
        serving.shared_receives = Some(if by_thread { SharedBy::Thread } else { SharedBy::Lock });
    }
    let mut receiver_threads = None;
    if configuration.receivers == Some(Receivers::Single) {
        if parameters.protocol == Protocol::SendReceive {
            serving.single_receiver = true;
        } else {
            receiver_threads = Some(1);
        }
    }
    // No source says that it leaves out completions.
    parameters.signal_each = true;
    Ok(Load { parameters, bytes, receiver_threads, addresses: None })
}

fn operations(
    mut parameters: Parameters,
    bytes: usize,
    operation: Published,
    configuration: &Configuration,
) -> Result<Load, Lack> {
    parameters.operation = match operation {
        Published::Write => Operation::Write,
        Published::Read => Operation::Read,
        Published::Cas => Operation::CompareSwap,
        Published::RequestResponse => Operation::RequestResponse,
        _ => return Err(Lack::Feature("such operation over verbs alone")),
    };
    if configuration.keys.is_some() {
        return Err(Lack::Feature("clients that choose keys by a distribution"));
    }
    let addresses = match configuration.addresses {
        Some(amount) => Some(number("addresses", Some(amount))? as usize),
        None => None,
    };
    parameters.connections = number("connections", configuration.connections)? as usize;
    parameters.window = match configuration.window {
        // Of READs and atomics as many as a queue pair may have in flight, of others as many as the source's most.
        Some(Amount::Unknown) if operation == Published::Write => 8,
        Some(Amount::Unknown) => 16,
        amount => number("window", amount)? as usize,
    };
    parameters.depth = (2 * parameters.window).max(128);
    // Messages of T2 have immediate data where the publication's bytes say so, and ours have it with credits.
    parameters.credits = configuration.immediate == Some(true);
    parameters.inline = 0;
    Ok(Load { parameters, bytes, receiver_threads: None, addresses })
}
