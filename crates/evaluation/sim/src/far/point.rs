//! Simulated points of the shared-memory study.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use doorbell_analyze::decode::capture::{CaptureError, CaptureReader};
use doorbell_exchange::setup::EndpointDescription;
use doorbell_exchange::{ConnectError, ConnectionError};
use doorbell_record::{
    FarPoint, Figures, HotPoint, OrderPoint, PointResult, ScopePoint, StorePoint, TearingPoint, Way,
};
use doorbell_steer::{ClientEnd, Config, Limits, NodeEnd, Region as Opened, SetupError, Steer, Tap};
use doorbell_study::far::words::{self, RemoteMemory};
use doorbell_study::far::{order_figures, store_result};
use doorbell_sync::IgnorePoison;
use doorbell_verbs::{Access, PathMtu, RKey, Region};
use doorbell_wire::{Psn, to_gid};

use super::{Far, FarError, run};
use crate::simulation::{Returned, Simulation, SimulationError, Summary};
use crate::testbed::Testbed;
use crate::topology::Topology;

/// Node with the memory.
const MEMORY: usize = 0;
/// Node of all queue pairs that access the memory. In `hot`, this is the node of the first client.
const HOST: usize = 1;
const TWO: Topology = Topology::Star { nodes: 2 };

/// Error of a simulated point.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PointError {
    /// The run of the store failed.
    #[error(transparent)]
    Store(#[from] FarError),
    /// The simulation did not reach its end.
    #[error(transparent)]
    Simulation(#[from] SimulationError),
    /// A verbs object could not be created.
    #[error(transparent)]
    Verbs(#[from] doorbell_verbs::Error),
    /// Two ends could not be connected.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A connection broke.
    #[error("a connection broke: {0}")]
    Connection(#[from] ConnectionError),
    /// The middlebox has no room.
    #[error("the middlebox cannot be set up: {0}")]
    Box(#[from] SetupError),
    /// The captured packets of the run cannot be read.
    #[error("the capture of the run cannot be read: {0}")]
    Capture(#[from] CaptureError),
    /// A thread ended without a result.
    #[error("a simulated thread has not ended")]
    Unfinished,
}

/// A simulated point.
#[derive(Clone, Debug)]
pub struct Point {
    /// Result in the form of a measurement's record.
    pub result: PointResult,
    /// Summary of the simulation.
    pub summary: Summary,
}

/// Simulates a point. `seed` determines all random choices.
///
/// # Errors
///
/// Returns an error if a part of the simulation cannot be created, or fails.
pub fn simulate(testbed: &Testbed, point: &FarPoint, seed: u64) -> Result<Point, PointError> {
    match point {
        FarPoint::Store(point) => store(testbed, point, seed),
        FarPoint::Order(point) => order(testbed, point, seed),
        FarPoint::Tearing(point) => tearing(testbed, point, seed),
        FarPoint::Scope(point) => scope(testbed, point, seed),
        FarPoint::Hot(point) => hot(testbed, point, seed),
    }
}

fn store(testbed: &Testbed, point: &StorePoint, seed: u64) -> Result<Point, PointError> {
    let (strategy, clients, hosts) = (point.strategy, point.clients, point.hosts);
    let shortcut_delay_ns = point.shortcut_delay_ns();
    let far = Far { strategy, load: point.load(), clients, hosts, shortcut_delay_ns, ..Far::default() };
    let run = run(testbed, &far, seed)?;
    let result = store_result(point, &run.report, Some([run.memory_cpu, run.client_cpu]));
    Ok(Point { result, summary: run.summary })
}

/// Two nodes. One node has memory, and the other node has queue pairs that access this memory.
struct Bench {
    simulation: Simulation<'static>,
    memory: Region,
    /// For each queue pair, the end of the client and the end of the memory node.
    pairs: Vec<(words::Pair, words::Pair)>,
}

impl Bench {
    fn new(
        testbed: &Testbed,
        seed: u64,
        memory_bytes: usize,
        slots: impl IntoIterator<Item = usize>,
        (bytes, mtu): (usize, Option<PathMtu>),
    ) -> Result<Self, PointError> {
        let simulation = Simulation::new(testbed, TWO, seed)?;
        let of_memory = simulation.device(MEMORY).create_pd()?;
        let of_host = simulation.device(HOST).create_pd()?;
        let memory = words::memory(&of_memory, memory_bytes)?;
        let join = |slots| words::Pair::joined([&of_host, &of_memory], slots, bytes, mtu);
        let pairs = slots.into_iter().map(join).collect::<Result<_, ConnectError>>()?;
        Ok(Self { simulation, memory, pairs })
    }

    /// Runs a thread for each queue pair. Returns the results in the order of the queue pairs.
    fn run<T: 'static, F: Future<Output = Result<T, ConnectionError>> + 'static>(
        mut self,
        mut work: impl FnMut(usize, words::Pair, &mut Simulation<'static>) -> F,
    ) -> Result<(Vec<T>, Summary), PointError> {
        let mut returned: Vec<Returned<Result<T, ConnectionError>>> = Vec::new();
        let mut others = Vec::new();
        for (number, (own, other)) in self.pairs.into_iter().enumerate() {
            others.push(other);
            let future = work(number, own, &mut self.simulation);
            returned.push(self.simulation.spawn(HOST, format!("queue pair {number}"), future));
        }
        let summary = self.simulation.run()?;
        let results: Result<Vec<T>, PointError> =
            returned.iter().map(|one| Ok(one.take().ok_or(PointError::Unfinished)??)).collect();
        drop((others, self.memory));
        Ok((results?, summary))
    }
}

/// Capture of packets in memory.
#[derive(Clone, Default)]
struct Captured(Arc<Mutex<Vec<u8>>>);

impl io::Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().ignore_poison().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Bytes of a captured frame in front of its BTH: Ethernet, IPv4 and UDP.
const BEFORE_BTH: usize = 14 + 20 + 8;

fn order(testbed: &Testbed, point: &OrderPoint, seed: u64) -> Result<Point, PointError> {
    let memory_bytes = point.addresses as usize * words::WORD_STRIDE;
    let slots = vec![point.outstanding; point.queue_pairs];
    let mut bench = Bench::new(testbed, seed, memory_bytes, slots, (8, None))?;
    // All packets to the memory node leave the switch by one port, and all packets to the host by another. Each port
    // keeps the order of arrival, so the captured order is the order at the switch.
    let captured = Captured::default();
    bench.simulation.capture(captured.clone()).map_err(SimulationError::Capture)?;
    let mut tap = Tap::new(bench.pairs.iter().map(|(own, other)| (own.description().qpn, other.description().qpn)));
    let memory = RemoteMemory::from(&bench.memory);
    let (all, summary) = bench.run(|number, pair, simulation| {
        let (point, waiter) = (point.clone(), simulation.polling());
        async move { words::request(&pair, memory, &point, (number as u64, seed), &waiter).await }
    })?;
    let bytes = std::mem::take(&mut *captured.0.lock().ignore_poison());
    let mut frames = CaptureReader::new(bytes.as_slice())?;
    while let Some(frame) = frames.next()? {
        if let Some(packet) = frame.bytes.get(BEFORE_BTH..) {
            tap.packet(packet);
        }
    }
    Ok(Point { result: words::result(8, &all, order_figures(tap.order())), summary })
}

fn tearing(testbed: &Testbed, point: &TearingPoint, seed: u64) -> Result<Point, PointError> {
    let bench = Bench::new(testbed, seed, point.bytes, [1, 1], (point.bytes, PathMtu::from_bytes(point.mtu)))?;
    let (memory, is_over) = (RemoteMemory::from(&bench.memory), Rc::new(Cell::new(false)));
    let (all, summary) = bench.run(|number, pair, simulation| {
        let (point, waiter, is_over) = (point.clone(), simulation.polling(), Rc::clone(&is_over));
        async move {
            if number == 0 {
                words::look(&pair, memory, &point, &is_over, &waiter).await.map(|(done, torn)| (done, Some(torn)))
            } else {
                words::overwrite(&pair, memory, &point, &is_over, &waiter).await.map(|done| (done, None))
            }
        }
    })?;
    let torn = all.iter().find_map(|(_, torn)| *torn).ok_or(PointError::Unfinished)?;
    Ok(Point { result: words::result(point.bytes, &[all[0].0], torn.into()), summary })
}

fn scope(testbed: &Testbed, point: &ScopePoint, seed: u64) -> Result<Point, PointError> {
    let memory_bytes = point.distance as usize + words::WORD_STRIDE;
    let slots = std::iter::once(1).chain(std::iter::repeat_n(point.outstanding, point.others));
    let bench = Bench::new(testbed, seed, memory_bytes, slots, (8, None))?;
    let (memory, is_over) = (RemoteMemory::from(&bench.memory), Rc::new(Cell::new(false)));
    let (all, summary) = bench.run(|number, pair, simulation| {
        let (point, waiter, is_over) = (point.clone(), simulation.polling(), Rc::clone(&is_over));
        async move {
            if number == 0 {
                words::probe(&pair, memory, &point, &is_over, &waiter).await
            } else {
                words::crowd(&pair, memory, &point, &is_over, &waiter).await
            }
        }
    })?;
    Ok(Point { result: words::scope_result(&all[0], &all[1..]), summary })
}

/// RKey that the middlebox gives to clients.
const BOX_KEY: u32 = 0x77;

/// Simulates clients on separate hosts that access one word directly or through a middlebox.
fn hot(testbed: &Testbed, point: &HotPoint, seed: u64) -> Result<Point, PointError> {
    let mut simulation = Simulation::new(testbed, Topology::Star { nodes: 1 + point.clients }, seed)?;
    let of_memory = simulation.device(MEMORY).create_pd()?;
    let region = words::memory(&of_memory, words::WORD_STRIDE)?;
    let mut clients = Vec::new();
    for client in 0..point.clients {
        let pd = simulation.device(HOST + client).create_pd()?;
        clients.push(words::Pair::new(&pd, point.outstanding, 8, None)?);
    }
    let mut node = Vec::new();
    let memory = match point.way {
        Way::Straight => {
            for client in &clients {
                let end = words::Pair::new(&of_memory, 1, 8, None)?;
                end.connect(&client.description())?;
                client.connect(&end.description())?;
                node.push(end);
            }
            RemoteMemory::from(&region)
        }
        Way::Box | Way::BoxToWrite => {
            let end = words::Pair::new(&of_memory, 1, 8, None)?;
            let memory = through_box(&mut simulation, point, seed, (&end, &region), &clients)?;
            node.push(end);
            memory
        }
    };
    let is_written = Rc::new(Cell::new(false));
    let mut returned = Vec::new();
    for (client, pair) in clients.into_iter().enumerate() {
        let (point, waiter, is_written) = (point.clone(), simulation.polling(), Rc::clone(&is_written));
        returned.push(simulation.spawn(HOST + client, format!("client {client}"), async move {
            words::compete(&pair, memory, &point, (client == 0, &is_written), &waiter).await
        }));
    }
    let summary = simulation.run()?;
    let all: Result<Vec<words::Done>, PointError> =
        returned.iter().map(|one| Ok(one.take().ok_or(PointError::Unfinished)??)).collect();
    drop((node, region));
    Ok(Point { result: words::result(8, &all?, Figures::new()), summary })
}

/// Puts a middlebox between clients and memory. All requests to the memory pass the middlebox, so the middlebox may
/// turn CASes into WRITEs. It does so if the point selects [`Way::BoxToWrite`].
fn through_box(
    simulation: &mut Simulation<'_>,
    point: &HotPoint,
    seed: u64,
    (end, region): (&words::Pair, &Region),
    clients: &[words::Pair],
) -> Result<RemoteMemory, PointError> {
    // A simulation has no socket buffers that limit the bytes in flight, so the window is practically unlimited.
    let limits = Limits { window_bytes: 1 << 40, clients: clients.len() + 1, ..Limits::default() };
    let make = |address| Steer::new(Config { limits, seed, ..Config::at(address) });
    let switch_box = simulation.put_middlebox(make).map_err(SimulationError::from)?;
    let gid = to_gid(switch_box.address());
    let max_rd_atomic = simulation.device(MEMORY).attributes().limits.max_rd_atomic;
    switch_box.with(|steer| -> Result<RemoteMemory, PointError> {
        let own = end.description();
        let (qpn, psn) = steer.node_side();
        end.connect(&EndpointDescription::one_sided(gid, qpn, psn, own.path_mtu, own.udp_port))?;
        let node = NodeEnd {
            qpn: own.qpn,
            max_rd_atomic: u8::try_from(max_rd_atomic).unwrap_or(u8::MAX),
            ..NodeEnd::at(own.gid.to_canonical(), own.path_mtu)
        };
        steer.attach(node)?;
        let memory = RemoteMemory::from(region);
        let (address, length, node_rkey) = (memory.address, memory.bytes, RKey::new(memory.rkey));
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let exclusive = point.way == Way::BoxToWrite;
        steer.add_region(Opened { rkey: RKey::new(BOX_KEY), node_rkey, address, length, access, exclusive })?;
        for client in clients {
            let EndpointDescription { gid: from, qpn, psn, path_mtu, udp_port, .. } = client.description();
            let peer = ClientEnd { address: from.to_canonical(), qpn, first_psn: psn, path_mtu };
            let qpn = steer.connect(peer)?;
            // The middlebox sends no requests to the client, so its first PSN is arbitrary.
            client.connect(&EndpointDescription::one_sided(gid, qpn, Psn::new(0), path_mtu, udp_port))?;
        }
        Ok(RemoteMemory { rkey: BOX_KEY, ..memory })
    })
}
