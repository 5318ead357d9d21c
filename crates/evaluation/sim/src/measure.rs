//! Measurement of a workload on a simulated testbed.

use std::cell::Cell;
use std::convert::Infallible;
use std::io::Write;
use std::rc::Rc;

use doorbell_exchange::{Config, ConnectError, ConnectionError, Connector, asynchronous::Waiter, with_connector};
use doorbell_record::{Cast, Parameters, ParametersError, SharedBy, Transport};
use doorbell_study::executor::hands;
use doorbell_study::session::{Done, Point, Prepared, SessionError, Worked};
use doorbell_study::threads::{OneThread, Threads};
use doorbell_study::workload::Tally;
use doorbell_verbs::Counters;

use crate::simulation::{Returned, Simulation, SimulationError, Summary};
use crate::testbed::Testbed;
use crate::time::Ps;
use crate::topology::Topology;

/// A workload to measure.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// Parameters of the workload.
    pub parameters: Parameters,
    /// Size of each message in bytes.
    pub bytes: usize,
    /// Whether requests are posted in rounds: a window of requests once the window before is answered.
    pub in_rounds: bool,
    /// Maximum number of outstanding one-sided operations of all queue pairs together, if it differs from the sum of
    /// their windows. Some queue pairs have one more than the others.
    pub outstanding: Option<usize>,
}

impl Load {
    /// Returns the load of these parameters with all windows full.
    pub fn new(parameters: Parameters, bytes: usize) -> Self {
        Self { parameters, bytes, in_rounds: false, outstanding: None }
    }

    /// Sets the size of the messages.
    pub fn resize(&mut self, bytes: usize) {
        self.bytes = bytes;
        self.parameters.sizes = vec![bytes];
    }
}

/// Error of a measurement.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeasureError {
    /// The parameters of the workload are not allowed.
    #[error(transparent)]
    Parameters(#[from] ParametersError),
    /// A verbs object could not be created.
    #[error(transparent)]
    Verbs(#[from] doorbell_verbs::Error),
    /// The ends could not be connected.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The ends of a point could not be made or connected.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// A connection broke.
    #[error("a connection broke: {0}")]
    Connection(#[from] ConnectionError),
    /// The simulation did not reach its end.
    #[error(transparent)]
    Simulation(#[from] SimulationError),
    /// The workload needs a feature that simulations of two hosts do not have.
    #[error("{0}")]
    Feature(&'static str),
    /// A thread ended without a result.
    #[error("a simulated thread has not ended")]
    Unfinished,
}

/// Result of a measurement.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Messages or operations per second, of all connections.
    pub messages_per_s: f64,
    /// For a latency, its median in nanoseconds, as [`Timed`](doorbell_record::Timed) defines it.
    pub latency_ns: Option<u64>,
    /// Offered rate in messages per second, if limited.
    pub offered: Option<f64>,
    /// Number of RNR NAKs that the answering host sent.
    pub rnr_naks: u64,
    /// Counters of the asking and of the answering device.
    pub counted: [Option<Counters>; 2],
    /// Virtual time from the first message to the end of the last.
    pub lasted: Ps,
    /// Number of messages, without the messages of the warm-up.
    pub messages: u64,
    /// Summary of the simulation.
    pub summary: Summary,
}

/// Node of the asking host.
pub(crate) const ASKING: usize = 0;
/// Node of the answering host.
pub(crate) const ANSWERING: usize = 1;

/// Topology of a published testbed: two hosts and the switch between them.
pub(crate) const HOSTS: Topology = Topology::Star { nodes: 2 };

/// Results of the ends of one thread.
type Ended<C> = Returned<Result<Vec<Worked<C>>, Infallible>>;

/// Condition that ends a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// All messages are delivered.
    AtEnd,
    /// The answering host has sent an RNR NAK. A run that ends in this way has no result.
    AtRnrNak,
}

/// Measures messages of one size between two hosts, with the threads of `parameters.serving` on each host.
///
/// # Errors
///
/// Returns an error if the parameters do not fit together, or a connection breaks.
pub fn measure(testbed: &Testbed, load: &Load, seed: u64) -> Result<Measured, MeasureError> {
    measure_until(testbed, load, seed, Stop::AtEnd)?.ok_or(MeasureError::Unfinished)
}

/// Works as [`measure`], but returns `None` if the condition `stop` ended the run early.
pub(crate) fn measure_until(
    testbed: &Testbed,
    load: &Load,
    seed: u64,
    stop: Stop,
) -> Result<Option<Measured>, MeasureError> {
    run(testbed, load, seed, stop, None)
}

/// Works as [`measure`], and writes all packets to a pcap file.
pub(crate) fn measure_captured(
    testbed: &Testbed,
    load: &Load,
    seed: u64,
    to: Box<dyn Write + Send>,
) -> Result<Measured, MeasureError> {
    run(testbed, load, seed, Stop::AtEnd, Some(to))?.ok_or(MeasureError::Unfinished)
}

fn run(
    testbed: &Testbed,
    load: &Load,
    seed: u64,
    stop: Stop,
    capture: Option<Box<dyn Write + Send>>,
) -> Result<Option<Measured>, MeasureError> {
    load.parameters.check()?;
    let bench = Bench::new(testbed, load, seed, stop, capture)?;
    with_connector!(load.parameters.protocol, connector => perform(bench, &connector, load))
}

struct Bench<'a> {
    simulation: Simulation<'static>,
    parameters: &'a Parameters,
    bytes: usize,
    before: [Option<Counters>; 2],
    stop: Stop,
}

impl<'a> Bench<'a> {
    fn new(
        testbed: &Testbed,
        load: &'a Load,
        seed: u64,
        stop: Stop,
        capture: Option<Box<dyn Write + Send>>,
    ) -> Result<Self, MeasureError> {
        let mut simulation = Simulation::new(testbed, HOSTS, seed)?;
        if let Some(to) = capture {
            simulation.capture(to).map_err(SimulationError::Capture)?;
        }
        let before = [ASKING, ANSWERING].map(|node| simulation.device(node).counters());
        Ok(Self { simulation, parameters: &load.parameters, bytes: load.bytes, before, stop })
    }

    fn finish<C: Connector>(mut self, asked: Vec<Ended<C>>) -> Result<Option<Measured>, MeasureError> {
        let summary = match self.stop {
            Stop::AtEnd => self.simulation.run()?,
            Stop::AtRnrNak => match self.simulation.run_until_rnr_nak(ANSWERING)? {
                Some(summary) => summary,
                None => return Ok(None),
            },
        };
        let mut ended = Vec::new();
        for returned in asked {
            let Ok(all) = returned.take().ok_or(MeasureError::Unfinished)?;
            ended.extend(all);
        }
        let Done { tallies, histogram } = Done::gather(ended)?;
        let began_ns = tallies.iter().map(|tally| tally.began_ns).min().unwrap_or(0);
        let ended_ns = tallies.iter().map(|tally| tally.ended_ns).max().unwrap_or(0);
        let messages: u64 = tallies.iter().map(|tally| tally.sent).sum();
        let lasted_ns = ended_ns.saturating_sub(began_ns).max(1);
        // Random delays let the queue pairs of one-sided operations end at different times, and the last of them would
        // determine the rate of a short run. In a run of fixed duration, the rates of all queue pairs add up.
        let messages_per_s = match self.parameters.operation.is_one_sided() {
            true => tallies.iter().map(rate).sum(),
            false => messages as f64 * 1e9 / lasted_ns as f64,
        };
        let counted = [ASKING, ANSWERING].map(|node| {
            let now = self.simulation.device(node).counters()?;
            Some(self.before[node].map_or(now, |before| now.since(&before)))
        });
        Ok(Some(Measured {
            messages_per_s,
            latency_ns: histogram.map(|histogram| histogram.value_at_quantile(0.5)),
            offered: self.parameters.rate,
            rnr_naks: counted[ANSWERING].as_ref().map_or(0, |counters| counters.rnr_nak_sent),
            counted,
            lasted: Ps::from_ns(lasted_ns),
            messages,
            summary,
        }))
    }
}

/// Returns the messages per second of one connection.
fn rate(tally: &Tally) -> f64 {
    tally.sent as f64 * 1e9 / tally.ended_ns.saturating_sub(tally.began_ns).max(1) as f64
}

/// Makes and connects the ends of both hosts, first those of the asking host.
fn points<C: Connector>(bench: &Bench<'_>, protocol: &C, cast: &Cast) -> Result<[Point<C>; 2], MeasureError> {
    let prepare = |node, part| -> Result<_, MeasureError> {
        let pd = bench.simulation.device(node).create_pd()?;
        let quiet = |config: Config| config.keepalive(std::time::Duration::ZERO);
        Ok(Prepared::new(protocol, &pd, bench.parameters, bench.bytes, part, quiet)?)
    };
    let (asking, answering) = (prepare(ASKING, &cast.asking)?, prepare(ANSWERING, &cast.answering)?);
    let described = [asking.descriptions(), answering.descriptions()];
    let answering = answering.connect(&described[ASKING])?;
    Ok([asking.connect(&described[ANSWERING])?, answering])
}

fn perform<C: Connector<Connection: 'static> + 'static>(
    mut bench: Bench<'_>,
    protocol: &C,
    load: &Load,
) -> Result<Option<Measured>, MeasureError> {
    let parameters = bench.parameters;
    if parameters.replicate || parameters.bidirectional || parameters.events {
        return Err(MeasureError::Feature(
            "simulations of two hosts have no replicated source, no bidirectional traffic and no events",
        ));
    }
    if parameters.transport != Transport::Rc {
        return Err(MeasureError::Feature("simulations of two hosts have acknowledged messages only"));
    }
    let [mut asking, answering] = points(&bench, protocol, &parameters.cast())?;
    if load.in_rounds {
        asking.work = asking.work.in_rounds();
    }
    asking.aim(&answering.memory())?;
    if parameters.operation.is_one_sided() {
        // Targets have no threads, but their memory must exist until the end. Each initiator has its own thread.
        asking.work.part.threads = asking.ends.len();
        let asked = spawn_part(&mut bench, ASKING, asking, load.outstanding);
        let measured = bench.finish(asked);
        drop(answering);
        return measured;
    }
    spawn_part(&mut bench, ANSWERING, answering, None);
    let asked = spawn_part(&mut bench, ASKING, asking, None);
    bench.finish(asked)
}

/// Spawns the threads that perform a part on a node. `outstanding` is [`Load::outstanding`].
fn spawn_part<C: Connector<Connection: 'static> + 'static>(
    bench: &mut Bench<'_>,
    node: usize,
    point: Point<C>,
    outstanding: Option<usize>,
) -> Vec<Ended<C>> {
    let Point { ends, work, shared, .. } = point;
    let (waiter, work) = (bench.simulation.polling(), Rc::new(work));
    // If the outstanding operations are no multiple of the queue pairs, the first of them have one more.
    let (wider, narrow) = match outstanding {
        Some(all) => (all % ends.len(), Rc::new(work.with_window(all / ends.len()))),
        None => (ends.len(), Rc::clone(&work)),
    };
    let hands = hands(work.part.threads, ends);
    let left = Rc::new(Cell::new(hands.len()));
    let mut all = Vec::new();
    for (number, hand) in hands.into_iter().enumerate() {
        let work = if number < wider { &work } else { &narrow };
        let (waiter, work, left) = (waiter.clone(), Rc::clone(work), Rc::clone(&left));
        all.push(bench.simulation.spawn(node, format!("{} {number}", work.part.role), async move {
            let tasks = hand.into_iter().map(|end| work.perform(end, waiter.clone(), &|_| {}));
            let ended = OneThread(waiter.clone()).run(&waiter, tasks, || Ok(())).await;
            left.set(left.get() - 1);
            ended
        }));
    }
    if let (Some(shared), Some(SharedBy::Thread)) = (shared, work.part.shared_receives) {
        let _ = bench.simulation.spawn(node, "reposting", async move {
            while left.get() > 0 {
                match shared.repost() {
                    Ok(0) => waiter.wait(None, Some(waiter.now().as_ns() + IDLE_NS)).await,
                    Ok(_) => waiter.breathe().await,
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        });
    }
    all
}

/// Time between the polls of a reposting thread that finds no work.
const IDLE_NS: u64 = 100;
