//! A simulation: nodes, threads whose code is that of any program over verbs, and virtual time.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use doorbell_steer::Steer;
use doorbell_verbs::{Device, Error};

use crate::kernel::capture::Capture;
use crate::kernel::watch::{Change, Changes, ThreadId, lock};
use crate::kernel::{Counts, Middlebox, Node, Step, ThreadState, World};
use crate::provider::{SharedWorld, SimDevice};
use crate::testbed::Testbed;
use crate::threads::{VirtualThreads, VirtualWaiter};
use crate::time::Ps;
use crate::topology::{Topology, TopologyError};

/// Why a simulation did not come to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// Threads wait, and nothing can happen any more.
    #[error("nothing can happen any more at {at}, and {waiting} of {threads} threads wait\n{report}")]
    Deadlock {
        /// When.
        at: Ps,
        /// Threads that wait.
        waiting: usize,
        /// All threads.
        threads: usize,
        /// What each thread does and each queue pair has outstanding.
        report: String,
    },
    /// Nothing but timers has happened for long.
    #[error("no packet has arrived for {silence}, until {at}, and {waiting} of {threads} threads wait\n{report}")]
    Silence {
        /// When.
        at: Ps,
        /// Since the last packet.
        silence: Ps,
        /// Threads that wait.
        waiting: usize,
        /// All threads.
        threads: usize,
        /// What each thread does and each queue pair has outstanding.
        report: String,
    },
    /// There cannot be such a topology.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The capture of the wire cannot be written.
    #[error("the capture cannot be written: {0}")]
    Capture(#[source] io::Error),
    /// The machine that simulates lacks something.
    #[error(transparent)]
    Verbs(#[from] Error),
}

/// After so long without a packet a simulation is given up: longer than any retry takes.
const SILENCE: Ps = Ps(60_000_000_000_000);

/// Wakes a simulated thread.
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

/// The future of a thread that was spawned, with those of the threads that it makes in it.
struct Task<'a> {
    thread: ThreadId,
    future: Option<Pin<Box<dyn Future<Output = ()> + 'a>>>,
}

/// What a thread spent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadTimes {
    /// Its name.
    pub name: String,
    /// The node that it ran on.
    pub node: usize,
    /// On posting, copying, taking completions: all that was not in vain.
    pub worked: Ps,
    /// On looking for something that was not there.
    pub polled: Ps,
    /// Asleep on a completion channel.
    pub slept: Ps,
}

/// What the stations of a node did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeTimes {
    /// How long its port sent.
    pub port: Ps,
    /// How long its NIC was busy with packets to send, at what all its units share.
    pub send: Ps,
    /// How long its NIC was busy with packets that arrived.
    pub receive: Ps,
    /// How long the busiest of its processing units was busy.
    pub unit: Ps,
    /// How long PCIe carried what its NIC fetched from memory.
    pub fetch: Ps,
    /// How long PCIe carried what its NIC wrote to memory.
    pub write: Ps,
}

/// How a run went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// When the last thread had ended.
    pub ended: Ps,
    /// The same for the same testbed, topology, seed and programs, on every machine; another one wherever any packet or
    /// turn was at another time.
    pub digest: u64,
    /// What was counted.
    pub counts: Counts,
    /// The least time in which what one thread does reaches another one over the network.
    pub least_latency: Ps,
    /// What each thread spent, in the order of their making.
    pub threads: Vec<ThreadTimes>,
    /// What the stations of each node did, in the order of nodes. A station that was busy all the time is what binds.
    pub nodes: Vec<NodeTimes>,
    /// How long the busiest port of all switches sent.
    pub switch_port: Ps,
}

impl Summary {
    /// A sentence about turns that took longer than the least latency, if any did.
    pub fn long_turns(&self) -> Option<String> {
        let Counts { long_turns, turns, longest_turn_ps, .. } = self.counts;
        (long_turns > 0).then(|| {
            format!(
                "{long_turns} of {turns} turns of threads took longer than {}, the least latency between two threads, and \
                 the longest took {}: another thread may have learnt too late of what was done in them",
                self.least_latency,
                Ps(longest_turn_ps)
            )
        })
    }
}

/// What a thread returns once it has ended.
#[derive(Debug)]
pub struct Returned<T>(Rc<RefCell<Option<T>>>);

impl<T> Returned<T> {
    /// Takes it; `None` before the thread has ended, and after it was taken.
    pub fn take(&self) -> Option<T> {
        self.0.borrow_mut().take()
    }
}

/// The control plane of a simulation's middlebox. It takes no virtual time.
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
    /// The box's address: nodes send packets there.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Does something with the box: connects the node and clients, looks at its counters, or puts another one in its
    /// place. What it has to send then leaves at once. `act` may use devices of the simulation, but nothing of it may
    /// call this again.
    ///
    /// # Panics
    ///
    /// If `act` of a call calls this.
    pub fn with<R>(&self, act: impl FnOnce(&mut Steer) -> R) -> R {
        let mut middlebox = lock(&self.shared.world).middlebox.take().expect("nobody else has the box");
        let result = act(&mut middlebox.steer);
        let mut world = lock(&self.shared.world);
        world.middlebox = Some(middlebox);
        world.poke_box();
        result
    }
}

/// Nodes, threads, and the time that is theirs alone.
///
/// Make devices and connections first, which takes no virtual time; [`spawn`](Self::spawn) threads that use them; then
/// [`run`](Self::run).
pub struct Simulation<'a> {
    shared: Arc<SharedWorld>,
    devices: Vec<Device>,
    tasks: Vec<Task<'a>>,
    /// One for each thread.
    wakers: Vec<Waker>,
}

impl std::fmt::Debug for Simulation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Simulation").field("threads", &self.tasks.len()).finish_non_exhaustive()
    }
}

impl<'a> Simulation<'a> {
    /// Nodes of a testbed. All that is random comes from `seed`: keys, numbers of queue pairs and packets.
    ///
    /// # Errors
    ///
    /// There cannot be such a topology, or this machine gives no event descriptor.
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

    /// Writes every packet that arrives at a node to a pcap file, with the virtual time, since 1970, at which its last
    /// bit is there. Packets that a switch drops are not in it.
    ///
    /// # Errors
    ///
    /// The file's header cannot be written.
    pub fn capture(&mut self, to: impl io::Write + Send + 'static) -> io::Result<()> {
        lock(&self.shared.world).capture = Some(Capture::new(to)?);
        Ok(())
    }

    /// Puts a middlebox into the switch, as a function of it: what is sent to its address takes the way through the box,
    /// and each packet costs what the testbed's `switch.middlebox` and `switch.middlebox_packet` say. `make` is given
    /// the address. A box that was there before is gone, with all that it knew.
    ///
    /// # Errors
    ///
    /// There is not exactly one switch.
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

    /// The RNIC of a node.
    ///
    /// # Panics
    ///
    /// If there is no such node.
    pub fn device(&self, node: usize) -> &Device {
        assert!(node < self.devices.len(), "there is no node {node}");
        &self.devices[node]
    }

    /// How threads wait: by polling.
    pub fn polling(&self) -> VirtualWaiter {
        VirtualWaiter::new(&self.shared, false)
    }

    /// How threads wait: asleep, on completion channels.
    pub fn sleeping(&self) -> VirtualWaiter {
        VirtualWaiter::new(&self.shared, true)
    }

    /// What runs the tasks of programs of a node: threads that threads make.
    ///
    /// # Panics
    ///
    /// If there is no such node.
    pub fn threads(&self, node: usize) -> VirtualThreads {
        assert!(node < self.devices.len(), "there is no node {node}");
        VirtualThreads::new(&self.shared, node)
    }

    /// A thread on a node. Its first turn is when [`run`](Self::run) is called.
    ///
    /// # Panics
    ///
    /// If there is no such node.
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
    /// Threads wait and nothing can happen any more, or nothing but timers has happened for a minute of virtual time; or
    /// the capture cannot be written.
    pub fn run(&mut self) -> Result<Summary, SimulationError> {
        let ended = self.turns(|_| false)?;
        self.summary(ended)
    }

    /// As [`run`](Self::run), but gives up once a node has sent an RNR NAK. Then there is no summary.
    pub(crate) fn run_until_rnr_nak(&mut self, node: usize) -> Result<Option<Summary>, SimulationError> {
        let has_sent_one = |world: &World| world.nodes[node].rnic.counters().rnr_nak_sent > 0;
        let ended = self.turns(has_sent_one)?;
        if has_sent_one(&lock(&self.shared.world)) { Ok(None) } else { self.summary(ended).map(Some) }
    }

    /// Turns of threads, until all have ended or `is_enough` says so, and when that was.
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

    /// Lets the hardware act until the turn of a thread comes.
    /// Returns that thread, and the spawned one whose future has that of it in it.
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
