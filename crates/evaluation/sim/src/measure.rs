//! Measurement of a workload on a simulated testbed.

use std::cell::Cell;
use std::io::Write;
use std::rc::Rc;

use doorbell_exchange::send_receive::{Endpoint, Hub, SharedOptions, SharedReceives};
use doorbell_exchange::{ConnectError, ConnectionError, asynchronous::Waiter};
use doorbell_exchange::{Connector, Group, with_connector};
use doorbell_study::one_sided;
use doorbell_study::parameters::{Fitted, Kind, Parameters, ParametersError, Timed, stride};
use doorbell_study::roles::{Part, Role};
use doorbell_study::serving::SharedBy;
use doorbell_study::threads::{OneThread, Threads};
use doorbell_study::workload::{self, Plan, Reception, SendMemory, Tally};
use doorbell_verbs::{Counters, MemoryKind, Pd};

use crate::simulation::{Returned, Simulation, SimulationError, Summary};
use crate::testbed::Testbed;
use crate::threads::VirtualWaiter;
use crate::time::Ps;
use crate::topology::Topology;

/// A workload to measure.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// Parameters of the workload.
    pub parameters: Parameters,
    /// Size of each message in bytes.
    pub bytes: usize,
    /// Number of threads of the answering host, if it differs from the number of threads of the asking host.
    pub receiver_threads: Option<usize>,
}

impl Load {
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
    /// For a latency, its median in nanoseconds, as [`Timed`] defines it.
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

type Tallies = Returned<Result<Vec<Tally>, ConnectionError>>;

/// Condition that ends a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// All messages are delivered.
    AtEnd,
    /// The answering host has sent an RNR NAK. A run that ends in this way has no result.
    AtRnrNak,
}

/// Measures messages of one size between two hosts, with `parameters.serving.threads` threads on each host.
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
    let Load { parameters, bytes, receiver_threads } = load;
    let bytes = *bytes;
    parameters.check()?;
    if parameters.operation.is_one_sided() {
        return one_sided_operations(Bench::new(testbed, parameters, bytes, seed, stop, capture)?);
    }
    let bench = Bench::new(testbed, parameters, bytes, seed, stop, capture)?;
    with_connector!(parameters.protocol, connector => messages(bench, &connector, *receiver_threads))
}

struct Bench<'a> {
    simulation: Simulation<'static>,
    parameters: &'a Parameters,
    fitted: Fitted,
    plan: Plan,
    before: [Option<Counters>; 2],
    stop: Stop,
}

impl<'a> Bench<'a> {
    fn new(
        testbed: &Testbed,
        parameters: &'a Parameters,
        bytes: usize,
        seed: u64,
        stop: Stop,
        capture: Option<Box<dyn Write + Send>>,
    ) -> Result<Self, MeasureError> {
        let fitted = parameters.fit(bytes)?;
        let plan = Plan {
            bytes,
            window: fitted.window,
            extent: parameters.extent,
            rate: parameters.rate.map(|rate| rate / parameters.connections as f64),
            verify: parameters.verify,
            buffers: fitted.send_buffers,
        };
        let mut simulation = Simulation::new(testbed, HOSTS, seed)?;
        if let Some(to) = capture {
            simulation.capture(to).map_err(SimulationError::Capture)?;
        }
        let before = [ASKING, ANSWERING].map(|node| simulation.device(node).counters());
        Ok(Self { simulation, parameters, fitted, plan, before, stop })
    }

    fn finish(mut self, asked: Vec<Tallies>) -> Result<Option<Measured>, MeasureError> {
        let summary = match self.stop {
            Stop::AtEnd => self.simulation.run()?,
            Stop::AtRnrNak => match self.simulation.run_until_rnr_nak(ANSWERING)? {
                Some(summary) => summary,
                None => return Ok(None),
            },
        };
        let mut tallies = Vec::new();
        for returned in asked {
            tallies.extend(returned.take().ok_or(MeasureError::Unfinished)??);
        }
        let began_ns = tallies.iter().map(|tally| tally.began_ns).min().unwrap_or(0);
        let ended_ns = tallies.iter().map(|tally| tally.ended_ns).max().unwrap_or(0);
        let messages: u64 = tallies.iter().map(|tally| tally.sent).sum();
        let lasted_ns = ended_ns.saturating_sub(began_ns).max(1);
        let counted = [ASKING, ANSWERING].map(|node| {
            let now = self.simulation.device(node).counters()?;
            Some(self.before[node].map_or(now, |before| now.since(&before)))
        });
        Ok(Some(Measured {
            messages_per_s: messages as f64 * 1e9 / lasted_ns as f64,
            latency_ns: None,
            offered: self.parameters.rate,
            rnr_naks: counted[ANSWERING].as_ref().map_or(0, |counters| counters.rnr_nak_sent),
            counted,
            lasted: Ps::from_ns(lasted_ns),
            messages,
            summary,
        }))
    }
}

/// Distributes items over threads in turn.
fn deal<T>(items: Vec<T>, threads: usize) -> Vec<Vec<T>> {
    let mut hands: Vec<Vec<T>> = (0..threads.max(1)).map(|_| Vec::new()).collect();
    for (index, item) in items.into_iter().enumerate() {
        hands[index % threads.max(1)].push(item);
    }
    hands
}

/// Runs the tasks of one simulated thread in turns.
async fn in_turns<T, F: Future<Output = Result<T, ConnectionError>>>(
    waiter: VirtualWaiter,
    tasks: Vec<F>,
) -> Result<Vec<T>, ConnectionError> {
    let threads = OneThread(waiter.clone());
    let results = threads.run(&waiter, tasks, || Ok::<(), ConnectionError>(())).await?;
    results.into_iter().collect()
}

type WithMemory<C> = (<C as Connector>::Connection, SendMemory);

fn messages<C: Connector + 'static>(
    mut bench: Bench<'_>,
    protocol: &C,
    receiver_threads: Option<usize>,
) -> Result<Option<Measured>, MeasureError>
where
    C::Connection: 'static,
{
    let (parameters, bytes) = (bench.parameters, bench.plan.bytes);
    let mut cast = parameters.cast();
    cast.answering.threads = receiver_threads.unwrap_or(cast.answering.threads);
    if parameters.replicate || parameters.bidirectional || parameters.events {
        return Err(MeasureError::Feature(
            "simulations of two hosts have no replicated source, no bidirectional traffic and no events",
        ));
    }
    let config = parameters.config(bytes, &bench.fitted).keepalive(std::time::Duration::ZERO);
    let pds = [ASKING, ANSWERING].map(|node| bench.simulation.device(node).create_pd());
    let [asking_pd, answering_pd] = pds;
    let (asking_pd, answering_pd) = (asking_pd?, answering_pd?);
    let shared = shared_receives(&answering_pd, &cast.answering, &bench, bytes)?;
    let group = |pd, part: &Part, shared| Group {
        pd,
        channel: None,
        count: part.connections,
        shared,
        one_thread: part.answers && part.threads == 1,
    };
    let asking = protocol.endpoints(&group(&asking_pd, &cast.asking, None), &config)?;
    let of_asking: Vec<_> = asking.iter().map(|end| protocol.describe(end)).collect();
    let with_memory = |pd: &Pd, connection| -> Result<WithMemory<C>, MeasureError> {
        let stride = stride(bytes + 64);
        let region = pd.allocate(bench.fitted.send_buffers * stride, protocol.source_access(), MemoryKind::Plain)?;
        Ok((connection, SendMemory { region, stride }))
    };

    let (of_answering, answering) = if cast.answering.single_receiver {
        let mut hub = Hub::for_connections(&answering_pd, &config, cast.answering.connections, None)?;
        let ends: Vec<Endpoint> = (0..cast.answering.connections)
            .map(|_| hub.endpoint(config.clone(), shared.as_ref()))
            .collect::<Result<_, _>>()?;
        let descriptions: Vec<_> = ends.iter().map(Endpoint::description).collect();
        for (end, peer) in ends.into_iter().zip(&of_asking) {
            hub.add(end.connect(peer)?)?;
        }
        (descriptions, Answering::<C>::Gathered(Box::new(hub)))
    } else {
        let ends = protocol.endpoints(&group(&answering_pd, &cast.answering, shared.as_ref()), &config)?;
        let descriptions: Vec<_> = ends.iter().map(|end| protocol.describe(end)).collect();
        let connected = ends
            .into_iter()
            .zip(&of_asking)
            .map(|(end, peer)| with_memory(&answering_pd, protocol.connect(end, peer)?))
            .collect::<Result<Vec<_>, _>>()?;
        (descriptions, Answering::Each(connected))
    };
    let asking = asking
        .into_iter()
        .zip(&of_answering)
        .map(|(end, peer)| with_memory(&asking_pd, protocol.connect(end, peer)?))
        .collect::<Result<Vec<_>, _>>()?;

    answer(&mut bench, answering, &cast.answering, shared);
    ask(bench, asking, &cast.asking)
}

enum Answering<C: Connector> {
    Each(Vec<WithMemory<C>>),
    Gathered(Box<Hub>),
}

fn shared_receives(
    pd: &Pd,
    part: &Part,
    bench: &Bench<'_>,
    bytes: usize,
) -> Result<Option<SharedReceives>, MeasureError> {
    let Some(by) = part.shared_receives else { return Ok(None) };
    let depth = bench.fitted.depth * part.connections;
    let options = SharedOptions { depth, connections: part.connections, max_message: bytes, reposting: by.into() };
    Ok(Some(SharedReceives::new(pd, options)?))
}

/// Spawns the threads of the answering end.
fn answer<C: Connector + 'static>(
    bench: &mut Bench<'_>,
    answering: Answering<C>,
    part: &Part,
    shared: Option<SharedReceives>,
) where
    C::Connection: 'static,
{
    let waiter = bench.simulation.polling();
    let device = bench.simulation.device(ANSWERING).clone();
    let reception = Reception { verify: bench.parameters.verify, pause_ns: part.pause_ns };
    let plan = bench.plan;
    let left = Rc::new(Cell::new(0));
    let ends = |left: &Rc<Cell<usize>>| {
        left.set(left.get() + 1);
        Rc::clone(left)
    };
    match answering {
        Answering::Gathered(hub) => {
            let ended = ends(&left);
            let gathered = workload::gather(*hub, waiter.clone(), device, reception);
            let _ = bench.simulation.spawn(ANSWERING, "receiver", async move {
                let result = gathered.await;
                ended.set(ended.get() - 1);
                result
            });
        }
        Answering::Each(connections) => {
            let role = part.role;
            for (number, hand) in deal(connections, part.threads).into_iter().enumerate() {
                let (waiter, device, ended) = (waiter.clone(), device.clone(), ends(&left));
                let _ = bench.simulation.spawn(ANSWERING, format!("{role} {number}"), async move {
                    let result = if role == Role::Responder {
                        let tasks = hand.into_iter().map(|(connection, memory)| {
                            workload::respond(connection, waiter.clone(), device.clone(), plan, memory, reception)
                        });
                        in_turns(waiter.clone(), tasks.collect()).await
                    } else {
                        let tasks = hand.into_iter().map(|(connection, _)| {
                            workload::stream(connection, waiter.clone(), device.clone(), None, reception, &|_| {})
                        });
                        in_turns(waiter.clone(), tasks.collect()).await
                    };
                    ended.set(ended.get() - 1);
                    result
                });
            }
        }
    }
    if let (Some(shared), Some(SharedBy::Thread)) = (shared, part.shared_receives) {
        let _ = bench.simulation.spawn(ANSWERING, "reposting", async move {
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
}

/// Time between the polls of a reposting thread that finds no work.
const IDLE_NS: u64 = 100;

/// Spawns the threads of the asking end, and runs the simulation.
fn ask<C>(
    mut bench: Bench<'_>,
    connections: Vec<(C, SendMemory)>,
    part: &Part,
) -> Result<Option<Measured>, MeasureError>
where
    C: doorbell_exchange::MessageConnection + 'static,
{
    let waiter = bench.simulation.polling();
    let device = bench.simulation.device(ASKING).clone();
    let plan = bench.plan;
    let simulation = &mut bench.simulation;
    if bench.parameters.kind == Kind::Latency {
        let divisor = if bench.parameters.operation.timed() == Timed::HalfRoundTrip { 2 } else { 1 };
        let Some((connection, memory)) = connections.into_iter().next() else {
            return Err(MeasureError::Feature("a latency needs one connection"));
        };
        let place = Rc::new(Cell::new(None));
        let found = Rc::clone(&place);
        let tallies = simulation.spawn(ASKING, "requester", async move {
            let pinged = workload::ping(connection, waiter, device, plan, memory, divisor, &|_| {}).await?;
            found.set(Some(pinged.1.value_at_quantile(0.5)));
            Ok(vec![pinged.0])
        });
        let measured = bench.finish(vec![tallies])?;
        return Ok(measured.map(|measured| Measured { latency_ns: place.get(), ..measured }));
    }
    let role = part.role;
    let mut asked = Vec::new();
    for (number, hand) in deal(connections, part.threads).into_iter().enumerate() {
        let (waiter, device) = (waiter.clone(), device.clone());
        asked.push(simulation.spawn(ASKING, format!("{role} {number}"), async move {
            if role == Role::Requester {
                let tasks = hand.into_iter().map(|(connection, memory)| {
                    workload::request(connection, waiter.clone(), device.clone(), plan, memory, &|_| {})
                });
                in_turns(waiter.clone(), tasks.collect()).await
            } else {
                let none = Reception::default();
                let tasks = hand.into_iter().map(|(connection, memory)| {
                    let sends = Some((plan, memory));
                    workload::stream(connection, waiter.clone(), device.clone(), sends, none, &|_| {})
                });
                in_turns(waiter.clone(), tasks.collect()).await
            }
        }));
    }
    bench.finish(asked)
}

fn one_sided_operations(mut bench: Bench<'_>) -> Result<Option<Measured>, MeasureError> {
    let (parameters, bytes) = (bench.parameters, bench.plan.bytes);
    let waiter = bench.simulation.polling();
    let pds = [ASKING, ANSWERING].map(|node| bench.simulation.device(node).create_pd());
    let [asking_pd, answering_pd] = pds;
    let (asking_pd, answering_pd) = (asking_pd?, answering_pd?);
    let (mut asked, mut targets) = (Vec::new(), Vec::new());
    for number in 0..parameters.connections {
        let end = |pd: &Pd, role| one_sided::End::new(pd, parameters, bytes, &bench.fitted, role);
        let initiator = end(&asking_pd, one_sided::Role::Initiator(None))?;
        let target = end(&answering_pd, one_sided::Role::Target)?;
        initiator.connect(&target.description())?;
        target.connect(&initiator.description())?;
        targets.push(target);
        let memory = targets[number % parameters.addresses.unwrap_or(usize::MAX).max(1)].memory();
        let (own, fitted, plan, waiter) = (parameters.clone(), bench.fitted.clone(), bench.plan, waiter.clone());
        asked.push(bench.simulation.spawn(ASKING, format!("initiator {number}"), async move {
            let tally = one_sided::stream(&initiator, memory, &own, &fitted, plan, waiter, &|_| {}).await?;
            Ok(vec![tally])
        }));
    }
    let measured = bench.finish(asked);
    drop(targets);
    measured
}
