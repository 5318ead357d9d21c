//! Threads of a run: a sender and a receiver for each connection, or a few receivers for all connections of a node.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use doorbell_exchange::asynchronous::Waiter;
use doorbell_exchange::{Config, ConnectionError, Connector, Group};
use doorbell_protocols::Protocol;
use doorbell_record::{Buckets, Fitted, Kind, Operation, Role, Timed, Transport, jain, stride};
use doorbell_study::executor::hands;
use doorbell_study::threads::{OneThread, Threads};
use doorbell_study::unacknowledged::{self, Listener};
use doorbell_study::workload::{self, Plan, Reception, SendMemory, Sizes, Tally};
use doorbell_verbs::MemoryKind;

use super::{Carried, Traffic};
use crate::bottleneck::Bottleneck;
use crate::measure::MeasureError;
use crate::simulation::{Returned, Simulation};
use crate::threads::VirtualWaiter;
use crate::time::Ps;

/// Results of the connections of one thread.
type Tallied = Returned<Vec<Result<Tally, ConnectionError>>>;

/// Interval at which a receiver checks for packets in flight after its sender has finished.
const LOOK: Ps = Ps(1_000_000);

pub(super) struct Streams<'a> {
    waiter: VirtualWaiter,
    fitted: Fitted,
    plan: Plan,
    transport: Transport,
    is_latency: bool,
    is_answered: bool,
    progress: Option<&'a dyn Fn(u64)>,
    /// Number of messages received on all connections.
    arrived: Rc<Cell<u64>>,
    /// Latencies of each connection in turn; empty if they are not measured.
    latencies: Rc<RefCell<Buckets>>,
    sent: Vec<Tallied>,
    received: Vec<Tallied>,
}

impl<'a> Streams<'a> {
    pub(super) fn new(
        simulation: &Simulation<'a>,
        traffic: &Traffic,
        progress: Option<&'a dyn Fn(u64)>,
    ) -> Result<Self, MeasureError> {
        let (parameters, bytes) = (&traffic.parameters, traffic.bytes);
        let fitted = parameters.fit(bytes)?;
        let connections = traffic.pattern.pairs(traffic.n).len().max(1);
        let plan = Plan {
            bytes,
            window: fitted.window,
            in_rounds: false,
            extent: parameters.extent,
            rate: parameters.rate.map(|rate| rate / connections as f64),
            think_ns: parameters.think_us * 1000,
            verify: parameters.verify,
            buffers: fitted.send_buffers,
        };
        Ok(Self {
            waiter: simulation.polling(),
            fitted,
            plan,
            transport: parameters.transport,
            is_latency: parameters.kind == Kind::Latency,
            is_answered: parameters.operation == Operation::RequestResponse,
            progress,
            arrived: Rc::default(),
            latencies: Rc::default(),
            sent: Vec::new(),
            received: Vec::new(),
        })
    }

    /// Returns a callback for the number of messages received on one connection. The callback reports the sum over all
    /// connections as the progress.
    fn teller(&self) -> impl Fn(u64) + use<'a> {
        let (arrived, before, progress) = (Rc::clone(&self.arrived), Cell::new(0), self.progress);
        move |received: u64| {
            arrived.set(arrived.get() + received - before.replace(received));
            if let Some(progress) = progress {
                progress(arrived.get());
            }
        }
    }

    /// Spawns the threads of connections of a protocol.
    pub(super) fn connect<C: Connector + 'static>(
        &mut self,
        simulation: &mut Simulation<'a>,
        traffic: &Traffic,
        protocol: &C,
    ) -> Result<(), MeasureError>
    where
        C::Connection: 'static,
    {
        let (plan, is_latency, is_answered) = (self.plan, self.is_latency, self.is_answered);
        let divisor = if traffic.parameters.operation.timed() == Timed::HalfRoundTrip { 2 } else { 1 };
        let replies = Plan { bytes: traffic.parameters.reply_bytes(plan.bytes), ..plan };
        let config = traffic.parameters.config(plan.bytes, &self.fitted).keepalive(std::time::Duration::ZERO);
        let reception = Reception { verify: plan.verify, pause_ns: 0 };
        let pairs = traffic.pattern.pairs(traffic.n);
        let threads = traffic.parameters.serving.server_threads;
        let mut sharing_threads = BTreeMap::<usize, Vec<_>>::new();
        let mut sharing = sharing_receivers(simulation, &pairs, protocol, &config)?.into_iter();
        let connections = pairs.len() as f64;
        let sizes = Sizes::of(&traffic.parameters, Role::Sender);
        let of_replies = Sizes::of(&traffic.parameters, if is_answered { Role::Responder } else { Role::Receiver });
        for (number, (from, to)) in pairs.into_iter().enumerate() {
            let end = |node: usize, made: Option<C::Endpoint>, sizes: Sizes| -> Result<_, MeasureError> {
                let pd = simulation.device(node).create_pd()?;
                let stride = stride(traffic.parameters.longest(plan.bytes) + 64);
                let region = pd.allocate(plan.buffers * stride, protocol.source_access(), MemoryKind::Plain)?;
                let endpoint = match made {
                    Some(endpoint) => endpoint,
                    None => protocol.endpoint(&pd, &config, None)?,
                };
                Ok((endpoint, SendMemory { region, stride, sizes, phase: number as f64 / connections }))
            };
            let (a, memory) = end(from, None, sizes.of_connection(number))?;
            let (b, of_b) = end(to, sharing.next(), of_replies.clone())?;
            let (told_a, told_b) = (protocol.describe(&a), protocol.describe(&b));
            let (a, b) = (protocol.connect(a, &told_b)?, protocol.connect(b, &told_a)?);
            let device = |node| simulation.device(node).clone();
            let (sender, receiver) = (device(from), device(to));
            let (own, its, latencies) = (self.waiter.clone(), self.waiter.clone(), Rc::clone(&self.latencies));
            let (answered, tell) = (self.teller(), self.teller());
            self.sent.push(simulation.spawn(from, format!("sender {from} to {to}"), async move {
                let timed = if is_latency {
                    workload::ping(a, own, sender, plan, memory, divisor, &|_| {}).await
                } else if is_answered {
                    workload::request(a, own, sender, plan, memory, &answered).await
                } else {
                    let (messages, reception) = (Some((plan, memory)), Reception::default());
                    return vec![workload::stream(a, own, sender, messages, reception, &|_| {}).await];
                };
                vec![timed.map(|(tally, times)| {
                    latencies.borrow_mut().0.extend(Buckets::of(&times).0);
                    tally
                })]
            }));
            let receiving = async move {
                if is_latency || is_answered {
                    workload::respond(b, its, receiver, replies, of_b, reception).await
                } else {
                    workload::stream(b, its, receiver, None, reception, &tell).await
                }
            };
            if threads > 0 {
                sharing_threads.entry(to).or_default().push(receiving);
            } else {
                let receiver = format!("receiver {from} to {to}");
                self.received.push(simulation.spawn(to, receiver, async move { vec![receiving.await] }));
            }
        }
        for (node, tasks) in sharing_threads {
            let threads = threads.min(tasks.len());
            for (number, tasks) in hands(threads, tasks).into_iter().enumerate() {
                let waiter = self.waiter.clone();
                self.received.push(simulation.spawn(node, format!("receiver {number} on {node}"), async move {
                    let Ok(ended) = OneThread(waiter.clone()).run(&waiter, tasks, || Ok::<_, Infallible>(())).await;
                    ended
                }));
            }
        }
        Ok(())
    }

    /// Spawns the threads of unacknowledged queue pairs.
    pub(super) fn connect_unacknowledged(
        &mut self,
        simulation: &mut Simulation<'a>,
        traffic: &Traffic,
    ) -> Result<(), MeasureError> {
        let (plan, is_latency, batch) = (self.plan, self.is_latency, self.fitted.batch);
        let pairs = traffic.pattern.pairs(traffic.n);
        let connections = pairs.len() as f64;
        for (number, (from, to)) in pairs.into_iter().enumerate() {
            let end = |node: usize| -> Result<_, MeasureError> {
                let pd = simulation.device(node).create_pd()?;
                Ok(unacknowledged::End::new(&pd, &traffic.parameters, plan.bytes, &self.fitted)?)
            };
            let (mut a, mut b) = (end(from)?, end(to)?);
            a.phase = number as f64 / connections;
            let (of_a, of_b) = (a.description(), b.description());
            a.connect(&of_b)?;
            b.connect(&of_a)?;
            let (own, its, latencies) = (self.waiter.clone(), self.waiter.clone(), Rc::clone(&self.latencies));
            let sent = Rc::new(FinishedSender::default());
            let heard = Rc::clone(&sent);
            self.sent.push(simulation.spawn(from, format!("sender {from} to {to}"), async move {
                let result = if is_latency {
                    unacknowledged::ping(&a, plan, own, &|_| {}).await.map(|(tally, times)| {
                        latencies.borrow_mut().0.extend(Buckets::of(&times).0);
                        tally
                    })
                } else {
                    unacknowledged::stream(&a, batch, plan, own, &|_| {}).await
                };
                sent.tell(result.as_ref().map_or(0, |tally| tally.sent));
                vec![result]
            }));
            let tell = self.teller();
            self.received.push(simulation.spawn(to, format!("receiver {from} to {to}"), async move {
                vec![listen(Listener::new(&b, &plan, is_latency), &its, &heard, tell).await]
            }));
        }
        Ok(())
    }

    /// Returns the error of a connection that broke, if there is one. The thread at the other end of such a connection
    /// never ends.
    fn broken(&self) -> Option<ConnectionError> {
        let ended = self.sent.iter().chain(&self.received).filter_map(Returned::take);
        ended.flatten().find_map(Result::err)
    }

    pub(super) fn run(self, simulation: &mut Simulation<'a>) -> Result<Carried, MeasureError> {
        let summary = match simulation.run() {
            Ok(summary) => summary,
            Err(error) => return Err(self.broken().map_or_else(|| error.into(), MeasureError::from)),
        };
        let taken = |all: &[Tallied]| -> Result<Vec<Tally>, MeasureError> {
            let ended: Result<Vec<_>, _> = all.iter().map(|it| it.take().ok_or(MeasureError::Unfinished)).collect();
            Ok(ended?.into_iter().flatten().collect::<Result<_, _>>()?)
        };
        let (tallies, received) = (taken(&self.sent)?, taken(&self.received)?);
        let began_ns = tallies.iter().map(|tally| tally.began_ns).min().unwrap_or(0);
        let ended_ns = tallies.iter().map(|tally| tally.ended_ns).max().unwrap_or(0);
        let lasted_ns = ended_ns.saturating_sub(began_ns).max(1);
        let sent: u64 = tallies.iter().map(|tally| tally.sent).sum();
        let arrived = |tallies: &[Tally]| -> u64 { tallies.iter().map(|tally| tally.received).sum() };
        let latencies = self.latencies.take();
        let rounds: u64 = latencies.0.iter().map(|&(_, count)| count).sum();
        let (messages, lost) = match (self.transport, self.is_latency) {
            (Transport::Rc, _) => (sent, 0),
            (_, true) => (rounds, sent.saturating_sub(arrived(&tallies))),
            (_, false) => (arrived(&received), sent.saturating_sub(arrived(&received))),
        };
        let rates = tallies.iter().zip(&received).map(|(sender, receiver)| {
            let messages = if self.transport == Transport::Rc { sender.sent } else { receiver.received };
            messages as f64 / sender.ended_ns.saturating_sub(sender.began_ns).max(1) as f64
        });
        let fairness = jain(&rates.collect::<Vec<_>>());
        let counters = (0..summary.nodes.len()).filter_map(|node| simulation.device(node).counters());
        let (rnr_naks, retransmitted) = counters.fold((0, 0), |(naks, again), counters| {
            (naks + counters.rnr_nak_sent, again + counters.tx_retransmitted_packets)
        });
        Ok(Carried {
            messages_per_s: messages as f64 * 1e9 / lasted_ns as f64,
            latency_ns: (rounds > 0).then(|| latencies.to_histogram().value_at_quantile(0.5)),
            fairness,
            rnr_naks,
            retransmitted,
            lasted: Ps::from_ns(lasted_ns),
            messages,
            lost,
            damaged: tallies.iter().chain(&received).map(|tally| tally.damaged).sum(),
            bottleneck: Bottleneck::of(&summary),
            summary,
        })
    }
}

/// Makes the ends of receivers that share memory: those of Shared-Write, whose senders write into one ring of their
/// receiver, if all senders have the same receiver. Returns no ends for other traffic.
fn sharing_receivers<C: Connector>(
    simulation: &Simulation<'_>,
    pairs: &[(usize, usize)],
    protocol: &C,
    config: &Config,
) -> Result<Vec<C::Endpoint>, MeasureError> {
    let [(_, node), others @ ..] = pairs else { return Ok(Vec::new()) };
    let is_one_node = !others.is_empty() && others.iter().all(|(_, other)| other == node);
    // All variants of Shared-Write look equal to the peer.
    if !is_one_node || protocol.protocol().wire_id() != Protocol::SharedWrite.wire_id() {
        return Ok(Vec::new());
    }
    let pd = simulation.device(*node).create_pd()?;
    let group = Group { pd: &pd, channel: None, count: pairs.len(), shared: None, one_thread: true };
    Ok(protocol.endpoints(&group, config)?)
}

/// Number of messages that a finished sender has sent. `tell` sets the number and wakes the receiver.
#[derive(Default)]
struct FinishedSender {
    messages: Cell<Option<u64>>,
    receiver: RefCell<Option<Waker>>,
}

impl FinishedSender {
    fn tell(&self, messages: u64) {
        self.messages.set(Some(messages));
        if let Some(receiver) = self.receiver.take() {
            receiver.wake();
        }
    }

    /// Registers the running thread as the receiver to wake.
    async fn subscribe(&self) {
        poll_fn(|context| {
            self.receiver.borrow_mut().get_or_insert_with(|| context.waker().clone());
            Poll::Ready(())
        })
        .await;
    }
}

/// Receives messages until the sender has finished and no packet is in flight.
async fn listen(
    mut listener: Listener<'_>,
    waiter: &VirtualWaiter,
    sent: &FinishedSender,
    tell: impl Fn(u64),
) -> Result<Tally, ConnectionError> {
    sent.subscribe().await;
    loop {
        let is_quiet = waiter.is_network_quiet();
        if listener.turn()? > 0 {
            tell(listener.tally().received);
            waiter.breathe().await;
            continue;
        }
        match sent.messages.get() {
            Some(sent) if is_quiet || listener.tally().received >= sent => return Ok(listener.tally()),
            Some(_) => waiter.wait(None, Some((waiter.now() + LOOK).as_ns())).await,
            None => waiter.wait(None, None).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use doorbell_exchange::shared_write::Reserves;
    use doorbell_exchange::{SendReceive, SharedWrite};

    use super::*;
    use crate::testbed::by_name;
    use crate::topology::Topology;
    use crate::traffic::Pattern;

    #[test]
    fn only_senders_of_shared_write_to_one_node_share_a_ring() {
        let testbed = by_name("connectx5-100g").expect("a built-in testbed");
        let simulation = Simulation::new(testbed, Topology::Star { nodes: 6 }, 1).expect("a simulation");
        let (config, pairs) = (Config::default(), Pattern::ManyToOne.pairs(3));
        let shared = SharedWrite::default();
        for variant in [shared, SharedWrite { reserves: Reserves::Each }] {
            let ends = sharing_receivers(&simulation, &pairs, &variant, &config).expect("ends");
            let rings: Vec<_> = ends.iter().map(|end| variant.describe(end).regions[0]).collect();
            assert_eq!(rings.len(), 3);
            assert!(rings.iter().all(|ring| *ring == rings[0]), "{rings:?}");
        }
        let others = sharing_receivers(&simulation, &Pattern::ManyToMany.pairs(3), &shared, &config);
        assert!(others.expect("no ends").is_empty());
        let others = sharing_receivers(&simulation, &pairs, &SendReceive, &config);
        assert!(others.expect("no ends").is_empty());
    }
}
