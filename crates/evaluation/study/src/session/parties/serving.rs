//! Host that acts as memory node, metadata service or middlebox. Hosts with clients are in [`clients`](super::clients).

use std::collections::BTreeMap;
use std::net::IpAddr;

use doorbell_exchange::setup::{EndpointDescription, RemoteRegion};
use doorbell_fabric::{BindError, UdpLink};
use doorbell_farmem::assembly::{
    AssemblyError, Body, BoxParty, BoxSettings, LocalParties, MemoryParty, Message, MetadataParty, Party,
};
use doorbell_farmem::{ClientDescription, MetadataOptions};
use doorbell_steer::{Driver, Limits};
use doorbell_verbs::{Completion, Cq, Device, Pd, RKey, Region, soft};
use doorbell_wire::to_gid;

use super::super::SessionError;
use super::super::hosts::Watch;
use super::super::messages::{Duties, FromServer, ToServer};
use super::super::peer::{Peer, Presence};
use super::super::report::Report;
use super::control::{Began, Control, hear, plan, say};
use super::is_boxed;
use crate::executor::block_on;
use crate::far::{BoxError, Shape, box_at, order_figures, words};
use doorbell_machine::pinning::Pinning;
use doorbell_record::{FarPoint, Figures};

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

/// Bare memory, with the ends of the queue pairs that access it.
struct Words {
    pd: Pd,
    region: Region,
    shape: Shape,
    pairs: Vec<words::Pair>,
}

/// Middlebox at the address of the host's former device, or beside it. In a point about bare memory, the middlebox only
/// forwards packets, so it has no keys.
struct Middlebox {
    driver: Driver<UdpLink>,
    relayed: Option<Relayed>,
}

/// Queue pairs of clients whose packets the middlebox will forward.
struct Relayed {
    lanes: BTreeMap<Party, EndpointDescription>,
    /// Maximum number of queue pairs.
    most: usize,
}

/// Parties of this host.
#[derive(Default)]
struct HostParties {
    store: LocalParties,
    words: Option<Words>,
    middlebox: Option<Middlebox>,
    /// Completion queue of the memory node's software RNIC. Polls of the queue let the RNIC process packets.
    lent: Option<Cq>,
}

/// Runs memory node, metadata service or middlebox until the peer ends the session.
pub(super) fn be(
    device: Device,
    peer: &mut Control,
    point: &FarPoint,
    (duties, pinning): (Duties, &Pinning),
) -> Result<(), SessionError> {
    // Pin before the first access to memory. That access binds the memory to the CPU's NUMA node.
    let _pinned = pinning.pin(0);
    let clock = Watch::start();
    let (mut here, device) = if duties.middlebox {
        if duties.memory || duties.metadata || !is_boxed(point) {
            return Err(SessionError::Unexpected("a middlebox on a host with other parties".to_owned()));
        }
        (HostParties::middlebox(device, point)?, None)
    } else {
        (HostParties::new(&device.create_pd()?, point, &duties)?, Some(device))
    };
    let mut began = Began::now(device.as_ref());
    let carried = |messages| FromServer::Carried { messages, are_ready: true };
    say(peer, carried(here.carry(Vec::new(), clock)?))?;
    loop {
        block_on(until_spoken(peer, || here.poll(clock)))?;
        let answer = match hear(peer)? {
            ToServer::Carry(messages) => carried(here.carry(messages, clock)?),
            ToServer::Go { .. } => {
                began = Began::now(device.as_ref());
                continue;
            }
            ToServer::Done { .. } => {
                FromServer::Report(Box::new(Report { far: here.figures(), ..began.report(device.as_ref()) }))
            }
            ToServer::End => return Ok(()),
            other => return Err(other.instead_of("a request to the parties of this host")),
        };
        say(peer, answer)?;
    }
}

/// Calls `poll` until the peer sends a message. `poll` returns whether there was work.
async fn until_spoken(
    peer: &Control,
    mut poll: impl FnMut() -> Result<bool, SessionError>,
) -> Result<(), SessionError> {
    let polling = async {
        loop {
            let mut happened = false;
            for _ in 0..POLLS_BETWEEN {
                happened |= poll()?;
            }
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

impl HostParties {
    /// Makes the memory node or the metadata service or both on one device, as `duties` requires.
    fn new(pd: &Pd, point: &FarPoint, duties: &Duties) -> Result<Self, SessionError> {
        let mut own = Self::default();
        match point {
            FarPoint::Store(store) => {
                let plan = plan(store);
                let memory = || MemoryParty::new(pd, &plan, 0).map_err(AssemblyError::from);
                own.store.memories[0] = duties.memory.then(memory).transpose()?;
                let metadata =
                    || MetadataParty::new(pd, &plan, MetadataOptions::default()).map_err(AssemblyError::from);
                own.store.metadata = duties.metadata.then(metadata).transpose()?;
            }
            point => {
                let no_memory = || SessionError::Unexpected("a point that has no memory".to_owned());
                let shape = Shape::of(point).filter(|_| duties.memory).ok_or_else(no_memory)?;
                let region = words::memory(pd, shape.memory_bytes)?;
                own.words = Some(Words { pd: pd.clone(), region, shape, pairs: Vec::new() });
            }
        }
        let is_soft = pd.device().attributes().provider == soft::PROVIDER;
        own.lent = (is_soft && duties.memory).then(|| pd.device().create_cq(1)).transpose()?;
        Ok(own)
    }

    /// Closes a device and makes a middlebox at the device's address.
    fn middlebox(device: Device, point: &FarPoint) -> Result<Self, SessionError> {
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
        let driver = at_or_beside(attributes.address, attributes.udp_port, limits, seed)?;
        let mut own = Self::default();
        let relayed = match point.store() {
            Some(store) => {
                // All packets pass this middlebox, so the middlebox may turn a CAS into a WRITE.
                let settings = BoxSettings {
                    rkey,
                    is_exclusive: true,
                    steers_reads: store.strategy.steers_reads(),
                    path_mtu: attributes.active_mtu,
                    udp_port: attributes.udp_port,
                    patience: Some((NODE_TIMEOUT_NS, NODE_RETRIES)),
                };
                own.store.middlebox = Some(BoxParty::new(driver.steer(), &plan(store), settings));
                None
            }
            None => Some(Relayed { lanes: BTreeMap::new(), most: limits.clients }),
        };
        own.middlebox = Some(Middlebox { driver, relayed });
        Ok(own)
    }

    fn poll(&mut self, clock: Watch) -> Result<bool, SessionError> {
        if let Some(cq) = &self.lent {
            let _ = cq.poll(&mut [Completion::default()]);
        }
        if self.words.is_some() {
            return Ok(false);
        }
        let now_ns = clock.ns();
        let mut happened = self.store.memories[0].as_mut().is_some_and(|memory| memory.poll(now_ns));
        happened |= self.store.poll(now_ns)?;
        if let Some(Middlebox { driver, .. }) = &mut self.middlebox {
            happened |= driver.pump(now_ns).map_err(BoxError::from)? > 0;
            if self.store.wants_middlebox() {
                self.store.poll_middlebox(driver.steer_mut(), now_ns)?;
            }
        }
        Ok(happened)
    }

    /// Delivers messages to the parties of this host. Returns the messages to other parties.
    fn carry(&mut self, messages: Vec<Message>, clock: Watch) -> Result<Vec<Message>, SessionError> {
        let mut outgoing = Vec::new();
        for message in messages {
            match (&mut self.words, &mut self.middlebox) {
                (Some(words), _) => outgoing.push(words.accept(message)?),
                (_, Some(Middlebox { driver, relayed: Some(relayed) })) => {
                    outgoing.push(relayed.forward(driver, message)?);
                }
                (_, middlebox) => {
                    let steer = middlebox.as_mut().map(|middlebox| middlebox.driver.steer_mut());
                    self.store.deliver(message, steer, clock.ns())?;
                }
            }
        }
        self.store.settle(self.middlebox.as_mut().map(|middlebox| middlebox.driver.steer_mut()), clock.ns())?;
        outgoing.extend(std::iter::from_fn(|| self.store.next_message()));
        Ok(outgoing)
    }

    /// Returns the order in which the middlebox forwarded requests to bare memory.
    fn figures(&self) -> Figures {
        let relaying = self.middlebox.as_ref().filter(|middlebox| middlebox.relayed.is_some());
        relaying.map_or_else(Figures::new, |middlebox| order_figures(&middlebox.driver.steer().order()))
    }
}

impl Words {
    /// Makes the memory's end for a queue pair.
    fn accept(&mut self, message: Message) -> Result<Message, SessionError> {
        let Self { pd, region, shape, pairs } = self;
        match (message.from, message.body) {
            (from @ Party::Client(_), Body::Enter(ends)) if pairs.len() < shape.slots.len() => {
                let pair = words::Pair::new(pd, 1, 8, shape.mtu)?;
                pair.connect(&ends.lane)?;
                let regions = [RemoteRegion::of(region), RemoteRegion::NONE];
                let lane = EndpointDescription { regions, ..pair.description() };
                pairs.push(pair);
                let body = Body::Entered(ClientDescription { lane, calls: None });
                Ok(Message { from: Party::Memory(0), to: from, body })
            }
            (from, body) => Err(out_of_turn(from, &body)),
        }
    }
}

impl Relayed {
    /// Forwards a message between a client and the memory. Each end uses the middlebox's address as the address of its
    /// peer. After both messages, the middlebox forwards packets between the two ends.
    fn forward(&mut self, driver: &mut Driver<UdpLink>, message: Message) -> Result<Message, SessionError> {
        let Message { from, to, body } = message;
        let gid = to_gid(driver.steer().config().address);
        let here =
            |ends: ClientDescription| ClientDescription { lane: EndpointDescription { gid, ..ends.lane }, ..ends };
        match body {
            Body::Enter(ends) if self.lanes.len() < self.most => {
                self.lanes.insert(from, ends.lane);
                Ok(Message { from, to, body: Body::Enter(here(ends)) })
            }
            Body::Entered(ends) => {
                let lane = self.lanes.remove(&to).ok_or_else(|| out_of_turn(from, &body))?;
                let [client, node] = [lane, ends.lane].map(|lane| (lane.gid.to_canonical(), lane.qpn));
                driver.steer_mut().relay(client, node).map_err(BoxError::from)?;
                Ok(Message { from, to, body: Body::Entered(here(ends)) })
            }
            body => Err(out_of_turn(from, &body)),
        }
    }
}

fn out_of_turn(from: Party, body: &Body) -> SessionError {
    SessionError::Unexpected(format!("{} from {from}", body.name()))
}

/// Makes a middlebox at an address, or at a free loopback address if another program has taken this loopback address
/// meanwhile. Clients learn the address from the middlebox's description.
fn at_or_beside(address: IpAddr, port: u16, limits: Limits, seed: u64) -> Result<Driver<UdpLink>, BoxError> {
    let made = match box_at(Some(address), port, limits, seed) {
        Err(BoxError::Bind(BindError::InUse { .. })) if address.is_loopback() => box_at(None, port, limits, seed),
        made => made,
    };
    made.map(|(driver, _)| driver)
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_verbs::soft::SoftOptions;

    #[test]
    fn middlebox_moves_to_a_free_address_if_its_own_is_taken() {
        let other = soft::open(&SoftOptions::default()).unwrap();
        let attributes = other.attributes();
        let mut driver = at_or_beside(attributes.address, attributes.udp_port, Limits::default(), 7).unwrap();
        let address = driver.steer().config().address;
        assert!(address.is_loopback() && address != attributes.address, "{address}");

        // The memory learns the present address of the middlebox, not that of the other program.
        let mut relayed = Relayed { lanes: BTreeMap::new(), most: 1 };
        let pair = words::Pair::new(&other.create_pd().unwrap(), 1, 8, None).unwrap();
        let enter = Body::Enter(ClientDescription { lane: pair.description(), calls: None });
        let message = Message { from: Party::Client(1), to: Party::Memory(0), body: enter };
        let Body::Enter(ends) = relayed.forward(&mut driver, message).unwrap().body else { panic!("no request") };
        assert_eq!(ends.lane.gid, to_gid(address));
    }
}
