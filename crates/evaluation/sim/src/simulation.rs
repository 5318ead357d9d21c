//! A simulation: nodes, threads that run normal verbs code, and virtual time.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use doorbell_fabric::{FaultPlan, VerbsFaults};
use doorbell_steer::Steer;
use doorbell_verbs::{Device, Error};

use crate::kernel::capture::Capture;
use crate::kernel::watch::{Change, Changes, ThreadId, lock};
use crate::kernel::{Counts, InjectedFaults, Middlebox, Node, NodeTimes, Step, ThreadState, World};
use crate::provider::{SharedWorld, SimDevice};
use crate::testbed::Testbed;
use crate::threads::{VirtualThreads, VirtualWaiter};
use crate::time::Ps;
use crate::topology::{Topology, TopologyError};

/// Error of a simulation that did not reach its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// Deadlock: threads wait, and no event is left.
    #[error("deadlock at {at}: {waiting} of {threads} threads wait, and no event is left\n{report}")]
    Deadlock {
        /// Virtual time of the error.
        at: Ps,
        /// Number of waiting threads.
        waiting: usize,
        /// Number of threads.
        threads: usize,
        /// State of each thread and outstanding work of each queue pair.
        report: String,
    },
    /// For a long time, only timers have expired.
    #[error("no packet has arrived for {silence} at {at}, and {waiting} of {threads} threads wait\n{report}")]
    Silence {
        /// Virtual time of the error.
        at: Ps,
        /// Time since the last packet.
        silence: Ps,
        /// Number of waiting threads.
        waiting: usize,
        /// Number of threads.
        threads: usize,
        /// State of each thread and outstanding work of each queue pair.
        report: String,
    },
    /// The topology is impossible.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The capture of the wire cannot be written.
    #[error("the capture cannot be written: {0}")]
    Capture(#[source] io::Error),
    /// The machine that runs the simulator lacks a resource.
    #[error(transparent)]
    Verbs(#[from] Error),
}

/// Time without an arriving packet after which a simulation ends with an error. It is longer than any retry takes.
const SILENCE: Ps = Ps(60_000_000_000_000);

/// Waker of a simulated thread.
struct Poke {
    thread: ThreadId,
    changes: Arc<Changes>,
}

impl Wake for Poke {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.changes.push(Change { thread: self.thread, turn: Change::ANY_TURN, notifies: true });
    }
}

/// A spawned thread and its future. The future contains the futures of the threads that this thread creates.
struct Task<'a> {
    thread: ThreadId,
    future: Option<Pin<Box<dyn Future<Output = ()> + 'a>>>,
}

/// Times of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadTimes {
    /// Name of the thread.
    pub name: String,
    /// Node of the thread.
    pub node: usize,
    /// Time of useful work, such as posting, copying and taking completions.
    pub worked: Ps,
    /// Time of polls that found nothing.
    pub polled: Ps,
    /// Time asleep on a completion channel.
    pub slept: Ps,
}

/// Summary of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Time at which the last thread ended.
    pub ended: Ps,
    /// Digest of all events. For the same testbed, topology, seed and programs, the digest is equal on each machine. A
    /// change of the time of any packet or turn changes the digest.
    pub digest: u64,
    /// Counters of the run.
    pub counts: Counts,
    /// Least latency over the network between two threads.
    pub least_latency: Ps,
    /// Times of each thread, in the order of their creation.
    pub threads: Vec<ThreadTimes>,
    /// Busy times of each node's stations, in the order of nodes. A station that was always busy is the bottleneck.
    pub nodes: Vec<NodeTimes>,
    /// Busy time of the busiest port of all switches.
    pub switch_port: Ps,
}

impl Summary {
    /// Returns a sentence about the accuracy of the run, if turns took longer than the least latency.
    pub fn long_turns(&self) -> Option<String> {
        let Counts { long_turns, turns, longest_turn_ps, .. } = self.counts;
        (long_turns > 0).then(|| {
            format!(
                "less exact than other simulations: in {long_turns} of {turns} steps ({:.2} %), a thread computed for \
                 more than {}, the least time in which one thread reaches another; the longest took {}. Threads may \
                 have seen messages of that time too late",
                100.0 * long_turns as f64 / turns.max(1) as f64,
                self.least_latency,
                Ps(longest_turn_ps)
            )
        })
    }
}

/// Return value of a thread, available once the thread has ended.
#[derive(Debug)]
pub struct Returned<T>(Rc<RefCell<Option<T>>>);

impl<T> Returned<T> {
    /// Takes the value. Returns `None` before the thread has ended, and after the value was taken.
    pub fn take(&self) -> Option<T> {
        self.0.borrow_mut().take()
    }
}

/// Control plane of a simulation's middlebox. Its calls take no virtual time.
#[derive(Clone)]
pub struct SwitchBox {
    shared: Arc<SharedWorld>,
    address: IpAddr,
}

impl std::fmt::Debug for SwitchBox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SwitchBox").field("address", &self.address).finish_non_exhaustive()
    }
}

impl SwitchBox {
    /// Returns the address of the middlebox, to which nodes send packets.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Runs `act` on the middlebox, for example to connect the memory node and clients, to read the counters, or to
    /// replace the middlebox. Packets that the middlebox then has to send leave at once. `act` may use devices of the
    /// simulation, but must not call this function.
    ///
    /// # Panics
    ///
    /// Panics if `act` calls this function.
    pub fn with<R>(&self, act: impl FnOnce(&mut Steer) -> R) -> R {
        let mut middlebox =
            lock(&self.shared.world).middlebox.take().expect("only one caller uses the middlebox at a time");
        let result = act(&mut middlebox.steer);
        let mut world = lock(&self.shared.world);
        world.middlebox = Some(middlebox);
        world.poke_box();
        result
    }
}

/// A simulation of nodes and threads, with its own virtual time.
///
/// Create devices and connections first, which takes no virtual time. Then [`spawn`](Self::spawn) threads that use
/// them, and [`run`](Self::run) the simulation.
///
/// The simulation logs the deaths of queue pairs (`doorbell_verbs::QP_DEATHS`) while it is locked, so a subscriber must
/// not call its devices.
pub struct Simulation<'a> {
    shared: Arc<SharedWorld>,
    devices: Vec<Device>,
    tasks: Vec<Task<'a>>,
    /// Wakers, one for each thread.
    wakers: Vec<Waker>,
}

impl std::fmt::Debug for Simulation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Simulation").field("threads", &self.tasks.len()).finish_non_exhaustive()
    }
}

impl<'a> Simulation<'a> {
    /// Creates a simulation of a testbed. `seed` determines all random values: keys, and numbers of queue pairs and
    /// packets.
    ///
    /// # Errors
    ///
    /// Returns an error if the topology is impossible, or this machine gives no event descriptor.
    pub fn new(testbed: &Testbed, topology: Topology, seed: u64) -> Result<Self, SimulationError> {
        topology.check()?;
        let nodes = topology.nodes();
        let mut seeds = [0; 32];
        seeds[8..16].copy_from_slice(&seed.to_le_bytes());
        let world = World::new(testbed.clone(), topology, seeds);
        let shared = Arc::new(SharedWorld::new(world)?);
        let devices = (0..nodes).map(|node| Device::new(Arc::new(SimDevice::new(&shared, node)))).collect();
        Ok(Self { shared, devices, tasks: Vec::new(), wakers: Vec::new() })
    }

    /// Writes each packet that arrives at a node to a pcap file. The time stamp of a packet is the virtual time at
    /// which its last bit arrives, as time since 1970. The capture does not contain packets that a switch drops.
    ///
    /// # Errors
    ///
    /// Returns an error if the header of the file cannot be written.
    pub fn capture(&mut self, to: impl io::Write + Send + 'static) -> io::Result<()> {
        lock(&self.shared.world).capture = Some(Capture::new(to)?);
        Ok(())
    }

    /// Injects the faults of a plan into the packets of each node, from now on, and into the calls of its programs. A
    /// time of the plan is virtual time. Packets have no ICRC, so a corrupted packet is lost unless its rule has
    /// `icrc=valid`. Queue pairs from before this call have no faults of posts.
    pub fn inject(&mut self, plan: &FaultPlan) {
        self.inject_with_journal(plan, None::<&io::Sink>);
    }

    /// Works as [`inject`](Self::inject), and writes one line of JSON to `journal` for each rule that fires at a node.
    pub fn inject_with_journal<W>(&mut self, plan: &FaultPlan, journal: Option<&W>)
    where
        W: io::Write + Clone + Send + 'static,
    {
        let of_packets = || match journal {
            Some(journal) => InjectedFaults::new(plan).with_journal(journal),
            None => InjectedFaults::new(plan),
        };
        let of_calls = || match journal {
            Some(journal) => VerbsFaults::new(plan).map(|faults| faults.with_journal(journal.clone())),
            None => VerbsFaults::new(plan),
        };
        let mut world = lock(&self.shared.world);
        world.faults = world.nodes.iter().map(|_| of_packets()).collect();
        world.verbs_faults = world.nodes.iter().filter_map(|_| of_calls()).collect();
        let World { nodes, verbs_faults, .. } = &mut *world;
        for (node, faults) in nodes.iter_mut().zip(verbs_faults) {
            faults.completions().into_iter().for_each(|source| node.rnic.inject(source));
        }
    }

    /// Returns the number of firings of each rule of the injected plan at all nodes, in the order of the plan.
    pub fn fired(&self) -> Vec<u64> {
        let world = lock(&self.shared.world);
        let mut counts = Vec::new();
        let of_calls = world.verbs_faults.iter().flat_map(VerbsFaults::fired);
        for (number, count) in world.faults.iter().flat_map(InjectedFaults::fired).chain(of_calls) {
            counts.resize(counts.len().max(number), 0);
            counts[number - 1] += count;
        }
        counts
    }

    /// Adds a middlebox to the switch.
    ///
    /// Packets to its address pass the middlebox. Each packet costs the times `switch.middlebox` and
    /// `switch.middlebox_packet` of the testbed. `make` receives the address. An earlier middlebox is dropped with
    /// its state.
    ///
    /// # Errors
    ///
    /// Returns an error if there is not exactly one switch.
    pub fn put_middlebox(&mut self, make: impl FnOnce(IpAddr) -> Steer) -> Result<SwitchBox, TopologyError> {
        let mut world = lock(&self.shared.world);
        let switches = world.switches();
        if switches != 1 {
            return Err(TopologyError::Middlebox { switches });
        }
        let address = world.address(world.nodes.len());
        world.middlebox = Some(Box::new(Middlebox::new(make(address))));
        Ok(SwitchBox { shared: Arc::clone(&self.shared), address })
    }

    /// Returns the RNIC of a node.
    ///
    /// # Panics
    ///
    /// Panics if there is no such node.
    pub fn device(&self, node: usize) -> &Device {
        assert!(node < self.devices.len(), "there is no node {node}");
        &self.devices[node]
    }

    /// Returns a waiter that polls.
    pub fn polling(&self) -> VirtualWaiter {
        VirtualWaiter::new(&self.shared, false)
    }

    /// Returns a waiter that sleeps on completion channels.
    pub fn sleeping(&self) -> VirtualWaiter {
        VirtualWaiter::new(&self.shared, true)
    }

    /// Returns an executor of programs on a node. With it, threads of the node can create further threads.
    ///
    /// # Panics
    ///
    /// Panics if there is no such node.
    pub fn threads(&self, node: usize) -> VirtualThreads {
        assert!(node < self.devices.len(), "there is no node {node}");
        VirtualThreads::new(&self.shared, node)
    }

    /// Spawns a thread on a node. Its first turn is when [`run`](Self::run) is called.
    ///
    /// # Panics
    ///
    /// Panics if there is no such node.
    pub fn spawn<T: 'a>(
        &mut self,
        node: usize,
        name: impl Into<String>,
        future: impl Future<Output = T> + 'a,
    ) -> Returned<T> {
        let mut world = lock(&self.shared.world);
        assert!(node < world.nodes.len(), "there is no node {node}");
        let thread = world.add_thread(node, name.into());
        let returned = Rc::new(RefCell::new(None));
        let place = Rc::clone(&returned);
        let future = Box::pin(async move {
            let value = future.await;
            *place.borrow_mut() = Some(value);
        });
        drop(world);
        self.tasks.push(Task { thread, future: Some(future) });
        Returned(returned)
    }

    /// Runs until all threads have ended.
    ///
    /// # Errors
    ///
    /// Returns an error in three cases: threads wait and no event is left; only timers have expired for a minute of
    /// virtual time; or the capture cannot be written.
    pub fn run(&mut self) -> Result<Summary, SimulationError> {
        let ended = self.turns(|_| false)?;
        self.summary(ended)
    }

    /// Works as [`run`](Self::run), but stops once a node has sent an RNR NAK. In this case, there is no summary.
    pub(crate) fn run_until_rnr_nak(&mut self, node: usize) -> Result<Option<Summary>, SimulationError> {
        let has_sent_one = |world: &World| world.nodes[node].rnic.counters().rnr_nak_sent > 0;
        let ended = self.turns(has_sent_one)?;
        if has_sent_one(&lock(&self.shared.world)) { Ok(None) } else { self.summary(ended).map(Some) }
    }

    /// Runs turns of threads until all have ended or `is_enough` returns true. Returns the time of the end.
    fn turns(&mut self, is_enough: impl Fn(&World) -> bool) -> Result<Ps, SimulationError> {
        let mut left = self.tasks.iter().filter(|task| task.future.is_some()).count();
        let mut ended = lock(&self.shared.world).now();
        while left > 0 {
            let (thread, root) = self.next_turn()?;
            let Ok(task) = self.tasks.binary_search_by_key(&root, |task| task.thread) else { continue };
            let task = &mut self.tasks[task];
            let Some(future) = &mut task.future else { continue };
            let is_over = future.as_mut().poll(&mut Context::from_waker(&self.wakers[thread])).is_ready();
            if is_over {
                task.future = None;
                left -= 1;
            }
            let mut world = lock(&self.shared.world);
            ended = ended.max(world.threads[thread].clock);
            world.end_turn(thread, is_over);
            if is_enough(&world) {
                break;
            }
        }
        Ok(ended)
    }

    fn summary(&self, ended: Ps) -> Result<Summary, SimulationError> {
        let mut world = lock(&self.shared.world);
        if let Some(capture) = &mut world.capture {
            capture.finish().map_err(SimulationError::Capture)?;
        }
        let times = world.threads.iter().map(|thread| ThreadTimes {
            name: thread.name.clone(),
            node: thread.node,
            worked: thread.worked,
            polled: thread.polled,
            slept: thread.slept,
        });
        let nodes = world.nodes.iter().map(Node::times);
        Ok(Summary {
            ended,
            digest: world.digest(),
            counts: world.counts,
            least_latency: world.least_latency,
            threads: times.collect(),
            nodes: nodes.collect(),
            switch_port: world.switch_port_busy(),
        })
    }

    /// Lets the hardware act until a thread has its turn. Returns that thread and its root. The future of the root
    /// contains the future of that thread.
    fn next_turn(&mut self) -> Result<(ThreadId, ThreadId), SimulationError> {
        let mut world = lock(&self.shared.world);
        loop {
            match world.step() {
                Step::Done => {}
                Step::Turn(thread) => {
                    let silence = world.now().since(world.moved_at);
                    if silence > SILENCE {
                        world.current = None;
                        let (waiting, threads) = waiting(&world);
                        let (at, report) = (world.now(), world.report());
                        return Err(SimulationError::Silence { at, silence, waiting, threads, report });
                    }
                    world.poll_begins(thread);
                    while self.wakers.len() <= thread {
                        let poke = Poke { thread: self.wakers.len(), changes: Arc::clone(&world.changes) };
                        self.wakers.push(Waker::from(Arc::new(poke)));
                    }
                    return Ok((thread, world.root_of(thread)));
                }
                Step::Idle => {
                    let (waiting, threads) = waiting(&world);
                    let (at, report) = (world.now(), world.report());
                    return Err(SimulationError::Deadlock { at, waiting, threads, report });
                }
            }
        }
    }
}

fn waiting(world: &World) -> (usize, usize) {
    let over = world.threads.iter().filter(|thread| thread.state == ThreadState::Over).count();
    (world.threads.len() - over, world.threads.len())
}
