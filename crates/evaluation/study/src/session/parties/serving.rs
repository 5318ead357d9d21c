//! Host that acts as memory node, metadata service or middlebox. Hosts with clients are in [`clients`](super::clients).

use doorbell_exchange::setup::{EndpointDescription, RemoteRegion};
use doorbell_fabric::UdpLink;
use doorbell_farmem::{
    Geometry, MemoryDescription, MemoryNode, Metadata, MetadataEnd, MetadataOptions, OpenError, StoreControl, Strategy,
};
use doorbell_steer::{Driver, Limits, NodeEnd};
use doorbell_verbs::{Completion, Cq, Device, Pd, RKey, Region, soft};

use super::super::hosts::Watch;
use super::super::report::{Before, Report};
use super::super::server::check_start;
use super::super::{FromServer, Patience, Peer, Presence, SessionError, TcpPeer, Terms, ToServer};
use super::{Duties, End, Ends, Made, clients, is_boxed};
use crate::executor::block_on;
use crate::far::{BoxError, FarPoint, Shape, StorePoint, box_at, order_figures, words};
use crate::parameters::Parameters;
use crate::pinning::Pinning;
use crate::threads::{OsThreads, Threads as _};
use doorbell_machine::cpu::CpuTime;

/// Number of polls of the parties between two checks of the control connection. Each check is a system call.
const POLLS_BETWEEN: u32 = 64;

/// Initial time after which a middlebox retransmits a request to the memory node, in nanoseconds. The time doubles with
/// each retransmission, up to 64 times the initial time. It is long since a machine with fewer processors than parties
/// answers slowly.
const NODE_TIMEOUT_NS: u64 = 4_000_000;
/// Maximum number of consecutive retransmissions. They take about five seconds in total.
const NODE_RETRIES: u8 = 25;

/// Maximum number of keys for which a middlebox remembers the newest node.
const MOST_STEERED_KEYS: usize = 1 << 20;

/// Approximate size of a key in a client's cache, in bytes.
const CACHED_BYTES: u64 = 64;

pub(super) type Control = TcpPeer<FromServer, ToServer>;

/// Runs the parties that the peer requests for one point with validated parameters. `pinning` is this host's share of
/// the CPUs.
pub(in crate::session) fn serve(
    device: Device,
    peer: &mut Control,
    parameters: &Parameters,
    (terms, pinning): (&Terms, &Pinning),
) -> Result<(), SessionError> {
    let point = parameters.far.as_deref().ok_or_else(|| SessionError::Unexpected("no shared memory".to_owned()))?;
    check_memory(point, terms)?;
    say(peer, FromServer::Accepted)?;
    loop {
        match hear(peer)? {
            ToServer::Clock => say(peer, FromServer::Clock { now_ns: device.now_ns() })?,
            ToServer::Be(duties) => {
                let pinning = pinning.of_threads(duties.threads(point));
                pinning.try_all()?;
                return match duties.clients.is_empty() {
                    true => be(device, peer, point, (*duties, &pinning)),
                    false => clients::be(&device, peer, point, (&duties, &pinning)),
                };
            }
            ToServer::End => return Ok(()),
            other => return Err(other.instead_of("parties")),
        }
    }
}

pub(super) fn say(peer: &mut Control, message: FromServer) -> Result<(), SessionError> {
    block_on(peer.send(message))
}

pub(super) fn hear(peer: &mut Control) -> Result<ToServer, SessionError> {
    block_on(peer.receive(Patience::Endless))
}

/// Receives the instant at which clients begin, on the clock of this host's device.
pub(super) fn hear_start(peer: &mut Control, device: &Device) -> Result<u64, SessionError> {
    match hear(peer)? {
        ToServer::Go { start_ns, .. } => check_start(start_ns, device).map(|()| start_ns),
        other => Err(other.instead_of("go")),
    }
}

/// Rejects a point whose memory node or clients' caches need more memory than this side provides.
fn check_memory(point: &FarPoint, terms: &Terms) -> Result<(), SessionError> {
    let asked = match point.store() {
        Some(store) => {
            let cached = 4 * CACHED_BYTES.saturating_mul(store.keys);
            geometry(store).region_bytes().max(cached.saturating_mul(store.hosts as u64))
        }
        None => Shape::of(point).map_or(0, |shape| shape.memory_bytes as u64),
    };
    let asked = usize::try_from(asked).unwrap_or(usize::MAX);
    match asked > terms.memory_bytes {
        true => Err(SessionError::Memory { asked, allowed: terms.memory_bytes }),
        false => Ok(()),
    }
}

pub(super) fn geometry(store: &StorePoint) -> Geometry {
    store.load().geometry(store.clients)
}

/// Returns the description of a memory node from its ends.
pub(super) fn described(ends: Ends, geometry: Geometry) -> MemoryDescription {
    let (endpoint, calls) = (ends.lane.0, ends.calls.map(|end| end.0));
    MemoryDescription { endpoint, region: endpoint.regions[0], geometry, calls }
}

/// Returns the ends from the description of a memory node.
fn telling(memory: MemoryDescription) -> Ends {
    let lane = EndpointDescription { regions: [memory.region, RemoteRegion::NONE], ..memory.endpoint };
    Ends { lane: End(lane), calls: memory.calls.map(End) }
}

/// Memory, with the ends of queue pairs that access the memory.
enum Memory {
    Store(MemoryNode),
    Words(Region, Shape, Vec<words::Pair>),
}

enum Service {
    Made(MetadataEnd),
    Works(Metadata),
}

/// Middlebox at the address of the host's former device. `behind` is the store that the middlebox serves.
struct Middlebox {
    driver: Driver<UdpLink>,
    behind: Option<StoreControl>,
    broken: Option<std::io::Error>,
    own: EndpointDescription,
    /// Key that clients of a store must use. Clients never learn the memory node's own key.
    rkey: RKey,
}

/// Parties of this host.
#[derive(Default)]
struct LocalParties {
    memory: Option<Memory>,
    service: Option<Service>,
    middlebox: Option<Middlebox>,
    /// Completion queue of the memory node's software RNIC. Polls of the queue let the RNIC process packets.
    lent: Option<Cq>,
}

/// Runs memory node, metadata service or middlebox until the peer ends the session.
fn be(
    device: Device,
    peer: &mut Control,
    point: &FarPoint,
    (duties, pinning): (Duties, &Pinning),
) -> Result<(), SessionError> {
    // Pin before the first access to memory. That access binds the memory to the CPU's NUMA node.
    let _pinned = pinning.pin(0);
    let clock = Watch::start();
    let (mut here, device, pd) = if duties.middlebox {
        if duties.memory || duties.metadata || !is_boxed(point) {
            return Err(SessionError::Unexpected("a middlebox on a host with other parties".to_owned()));
        }
        (LocalParties { middlebox: Some(Middlebox::at(device, point)?), ..LocalParties::default() }, None, None)
    } else {
        let pd = device.create_pd()?;
        let here = LocalParties::new(&pd, point, &duties)?;
        (here, Some(device), Some(pd))
    };
    let mut began = Began::now(device.as_ref());
    say(peer, FromServer::Made(Box::new(here.made())))?;
    loop {
        block_on(until_spoken(peer, || here.poll(clock)))?;
        let said = hear(peer)?;
        let answer = match said {
            ToServer::Accept { node: None, clients } => FromServer::Taken(here.accept(pd.as_ref(), point, &clients)?),
            ToServer::Accept { node: Some(node), clients } => FromServer::Taken(here.enter(point, node, &clients)?),
            ToServer::Relay(pairs) => here.relay(&pairs)?,
            ToServer::Serve { memory, clients } => FromServer::Serving(here.serve(point, memory, &clients)?),
            ToServer::Go { .. } => {
                began = Began::now(device.as_ref());
                continue;
            }
            ToServer::Done { .. } => {
                let far = here.middlebox.as_mut().map(Middlebox::end).transpose()?.unwrap_or_default();
                FromServer::Report(Box::new(Report { far, ..began.report(device.as_ref()) }))
            }
            ToServer::End => return Ok(()),
            other => return Err(other.instead_of("a request to the parties of this host")),
        };
        say(peer, answer)?;
    }
}

/// Counters at the beginning of a point.
pub(super) struct Began {
    /// `None` if the host has no device.
    counted: Option<Before>,
    cpu: CpuTime,
}

impl Began {
    pub(super) fn now(device: Option<&Device>) -> Self {
        Self { counted: device.map(Before::now), cpu: OsThreads::default().cpu_time() }
    }

    /// Returns the report of the host since the beginning of the point.
    pub(super) fn report(&self, device: Option<&Device>) -> Report {
        // These parties do not count empty polls separately.
        let cpu = CpuTime { empty_ns: None, ..OsThreads::default().cpu_time().since(self.cpu) };
        let counted = device.zip(self.counted.as_ref()).map(|(device, before)| Report::new(&[], device, before));
        Report { cpu, ..counted.unwrap_or_default() }
    }
}

/// Calls `poll` until the peer sends a message. `poll` returns whether there was work.
async fn until_spoken(peer: &Control, mut poll: impl FnMut() -> bool) -> Result<(), SessionError> {
    let polling = async {
        loop {
            let happened = (0..POLLS_BETWEEN).fold(false, |happened, _| poll() | happened);
            if peer.look()? == Presence::Spoke {
                return Ok(());
            }
            if !happened {
                std::thread::yield_now(); // the awaited peer may need this CPU
            }
        }
    };
    peer.watched(polling).await
}

impl LocalParties {
    /// Makes the memory node or the metadata service or both on one device, as `duties` requires.
    fn new(pd: &Pd, point: &FarPoint, duties: &Duties) -> Result<Self, SessionError> {
        let memory = match point {
            FarPoint::Store(store) => {
                let load = store.load();
                let mut node = MemoryNode::new(pd, geometry(store))?;
                node.fill(store.strategy, load.keys, load.value_bytes)?;
                Memory::Store(node)
            }
            point => {
                let shape = Shape::of(point).ok_or_else(no_such)?;
                Memory::Words(words::memory(pd, shape.memory_bytes)?, shape, Vec::new())
            }
        };
        let service = duties.metadata.then(|| MetadataEnd::new(pd, MetadataOptions::default())).transpose()?;
        let is_soft = pd.device().attributes().provider == soft::PROVIDER;
        let lent = (is_soft && duties.memory).then(|| pd.device().create_cq(1)).transpose()?;
        Ok(Self { memory: duties.memory.then_some(memory), service: service.map(Service::Made), middlebox: None, lent })
    }

    fn made(&self) -> Made {
        let metadata = match &self.service {
            Some(Service::Made(end)) => Some(Ends::of(end.to_memory())),
            _ => None,
        };
        Made { metadata, middlebox: self.middlebox.as_ref().map(|it| End(it.own)), clients: Vec::new() }
    }

    fn poll(&mut self, clock: Watch) -> bool {
        let mut happened = false;
        if let Some(cq) = &self.lent {
            let _ = cq.poll(&mut [Completion::default()]);
        }
        if let Some(Memory::Store(node)) = &mut self.memory {
            happened |= node.poll();
        }
        if let Some(Service::Works(metadata)) = &mut self.service {
            happened |= metadata.poll();
        }
        if let Some(middlebox) = &mut self.middlebox {
            happened |= middlebox.pump(clock.ns());
        }
        happened
    }

    /// Makes the memory node's ends for `clients`.
    fn accept(
        &mut self,
        pd: Option<&Pd>,
        point: &FarPoint,
        clients: &[(u32, Ends)],
    ) -> Result<Vec<Ends>, SessionError> {
        match (&mut self.memory, pd) {
            (Some(Memory::Store(node)), _) => {
                let accept = |(number, ends): &(u32, Ends)| Ok(telling(node.accept(*number, &ends.client())?));
                clients.iter().map(accept).collect()
            }
            (Some(Memory::Words(region, shape, pairs)), Some(pd)) => {
                if pairs.len() + clients.len() > shape.slots.len() {
                    let what = format!("a request for {} queue pairs: must be {}", clients.len(), shape.slots.len());
                    return Err(SessionError::Unexpected(what));
                }
                let accept = |(_, ends): &(u32, Ends)| {
                    let pair = words::Pair::new(pd, 1, 8, shape.mtu)?;
                    pair.connect(&ends.lane.0)?;
                    let regions = [RemoteRegion::of(region), RemoteRegion::NONE];
                    let own = Ends::bare(EndpointDescription { regions, ..pair.description() });
                    pairs.push(pair);
                    Ok(own)
                };
                clients.iter().map(accept).collect()
            }
            _ => Err(SessionError::Unexpected(format!(
                "clients for a memory node that this host does not have: {point:?}"
            ))),
        }
    }

    /// Makes the middlebox's ends for clients of a store.
    fn enter(&mut self, point: &FarPoint, node: Ends, clients: &[(u32, Ends)]) -> Result<Vec<Ends>, SessionError> {
        let (Some(middlebox), Some(store)) = (&mut self.middlebox, point.store()) else { return Err(no_box()) };
        let node = described(node, geometry(store));
        let steer = middlebox.driver.steer_mut();
        let end = |address, path_mtu| NodeEnd {
            timeout_ns: NODE_TIMEOUT_NS,
            retries: NODE_RETRIES,
            ..NodeEnd::at(address, path_mtu)
        };
        // All packets pass this middlebox, so the middlebox may turn a CAS into a WRITE.
        let behind = StoreControl::connect(steer, node, end, (middlebox.rkey, true, store.strategy.steers_reads()))?;
        let behind = middlebox.behind.insert(behind);
        let steer = middlebox.driver.steer_mut();
        let accept = |(number, ends): &(u32, Ends)| Ok(telling(behind.accept(steer, *number, &ends.client())?));
        clients.iter().map(accept).collect()
    }

    /// Lets the middlebox forward packets between these pairs of ends.
    fn relay(&mut self, pairs: &[[End; 2]]) -> Result<FromServer, SessionError> {
        let Some(middlebox) = &mut self.middlebox else { return Err(no_box()) };
        let steer = middlebox.driver.steer_mut();
        for pair in pairs {
            let [client, node] = pair.map(|end| (end.0.gid.to_canonical(), end.0.qpn));
            steer.relay(client, node).map_err(BoxError::from)?;
        }
        Ok(FromServer::Accepted)
    }

    /// Starts the metadata service. Returns its ends for clients.
    fn serve(&mut self, point: &FarPoint, memory: Ends, clients: &[(u32, End)]) -> Result<Vec<End>, SessionError> {
        let no_service =
            || SessionError::Unexpected("clients for a metadata service that this host does not have".to_owned());
        let (Some(Service::Made(end)), Some(store)) = (self.service.take(), point.store()) else {
            return Err(no_service());
        };
        let mut metadata = end.connect(&described(memory, geometry(store)))?;
        if store.strategy != Strategy::Server {
            metadata.fill(store.keys)?;
        }
        let accept = |(number, end): &(u32, End)| Ok(End(metadata.accept(*number, &end.0)?));
        let ends = clients.iter().map(accept).collect::<Result<_, OpenError>>()?;
        self.service = Some(Service::Works(metadata));
        Ok(ends)
    }
}

impl Middlebox {
    /// Closes a device and makes a middlebox at the device's address.
    fn at(device: Device, point: &FarPoint) -> Result<Self, SessionError> {
        let attributes = device.attributes();
        if attributes.provider != soft::PROVIDER {
            return Err(SessionError::Unexpected(format!(
                "a middlebox in place of the device {}: the device must be a software RNIC",
                attributes.name
            )));
        }
        let limits = match point {
            FarPoint::Store(store) => Limits {
                clients: store.clients + 1,
                keys: usize::try_from(store.keys).unwrap_or(usize::MAX).min(MOST_STEERED_KEYS),
                ..Limits::default()
            },
            point => Limits { clients: super::pairs(point), ..Limits::default() },
        };
        // Seed and key must differ from those of earlier points, so that old packets are not accepted.
        let random = || u64::from(device.random_psn().get());
        let (seed, rkey) = (random() << 48 ^ random() << 24 ^ random(), RKey::new((random() << 8 ^ random()) as u32));
        drop(device);
        let (driver, _) = box_at(Some(attributes.address), attributes.udp_port, limits, seed)?;
        let own = StoreControl::lane(driver.steer(), attributes.active_mtu, attributes.udp_port);
        Ok(Self { driver, behind: None, broken: None, own, rkey })
    }

    fn pump(&mut self, now_ns: u64) -> bool {
        match self.driver.pump(now_ns) {
            Ok(packets) => packets > 0,
            Err(error) => {
                self.broken = Some(error);
                false
            }
        }
    }

    /// Ends the middlebox. Returns the order in which it forwarded requests.
    fn end(&mut self) -> Result<crate::far::Figures, SessionError> {
        match self.broken.take() {
            Some(error) => Err(BoxError::from(error).into()),
            None if self.behind.is_none() => Ok(order_figures(&self.driver.steer().order())),
            None => Ok(crate::far::Figures::new()),
        }
    }
}

fn no_such() -> SessionError {
    SessionError::Unexpected("a point that has no memory".to_owned())
}

fn no_box() -> SessionError {
    SessionError::Unexpected("clients for a middlebox that this host does not have".to_owned())
}
