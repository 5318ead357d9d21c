//! Points about memory that several clients share, on several hosts. Each host acts as one or more of the parties.
//!
//! The coordinator assigns the parties to hosts ([`Parties`]), and carries their messages
//! ([`doorbell_farmem::assembly`]). Bare memory and the queue pairs that access it exchange the same messages as a
//! memory node and its clients. A point has the following steps.
//!
//! 1. [`Be`](super::ToServer::Be): each host makes its parties, and answers with their first messages.
//! 2. [`Carry`](super::ToServer::Carry): each host receives the messages for its parties, and answers with the messages
//!    that follow. This step repeats until all clients are connected. In a point about bare memory, messages between
//!    clients and memory pass the middlebox, which forwards them like packets.
//! 3. `Go`: clients begin at one instant. All other parties serve until they receive `Done`. The coordinator carries no
//!    message in this step. So a dead client is shut out only if memory node and metadata service share a host.

mod clients;
mod control;
mod coordinate;
mod serving;

use doorbell_farmem::Strategy;
use doorbell_machine::pinning::Pinning;
use doorbell_record::{FarPoint, Parameters};
use doorbell_verbs::Device;

pub use coordinate::measure_parties;

use super::messages::{Duties, FromServer, Seat, ToServer};
use super::{SessionError, Terms};
use control::{Control, hear_within, plan, say};

/// Assignment of parties to hosts, by number of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parties {
    /// Host of the memory node.
    pub memory: usize,
    /// Host of the metadata service.
    pub metadata: usize,
    /// Host of the middlebox, or `None` with fewer than three hosts.
    pub middlebox: Option<usize>,
    /// Hosts of the clients.
    pub clients: Vec<usize>,
}

impl Duties {
    /// Returns the duties as text.
    fn role(&self) -> &'static str {
        match self {
            Self { clients, .. } if !clients.is_empty() => "clients",
            Self { middlebox: true, .. } => "middlebox",
            Self { memory: true, metadata: true, .. } => "memory node, metadata service",
            Self { memory: true, .. } => "memory node",
            _ => "metadata service",
        }
    }

    /// Returns the number of polling threads of the host. Each client of a store has a thread. All other duties of a
    /// host share one thread.
    pub(crate) fn threads(&self, point: &FarPoint) -> usize {
        if point.store().is_some() { self.clients.len().max(1) } else { 1 }
    }

    /// Returns the maximum number of queue pairs that exist on the host's device at the same time.
    fn queue_pairs(&self, point: &FarPoint) -> usize {
        let Some(store) = point.store() else {
            return if self.memory { pairs(point) } else { self.clients.len() };
        };
        let (served, queues) =
            (usize::from(store.strategy == Strategy::Server), usize::from(store.strategy == Strategy::QueueLock));
        let of_memory = if self.memory { 1 + store.clients * (1 + served) } else { 0 };
        let of_metadata = if self.metadata { 1 + store.clients } else { 0 };
        of_memory + of_metadata + self.clients.len() * (2 + served + queues)
    }
}

/// Returns the number of queue pairs of a point about bare memory.
fn pairs(point: &FarPoint) -> usize {
    crate::far::Shape::of(point).map_or(0, |shape| shape.slots.len())
}

impl Parties {
    /// Assigns the parties to at least two hosts. The first host has clients, the second host the memory node, and the
    /// third host the middlebox. The fourth host has the metadata service. With fewer hosts, the metadata service is on
    /// the host of the memory node. All further hosts have clients. The assignment is the same for all points, even for
    /// points without a middlebox, so that results stay comparable.
    pub fn deal(hosts: usize) -> Self {
        Self {
            memory: 1,
            metadata: if hosts > 3 { 3 } else { 1 },
            middlebox: (hosts > 2).then_some(2),
            clients: std::iter::once(0).chain(4..hosts).collect(),
        }
    }

    /// Returns the reason why a point cannot be measured on these hosts, or `None` if there is no obstacle. `are_soft`
    /// states whether all hosts have software RNICs.
    pub fn lacks(&self, point: &FarPoint, are_soft: bool) -> Option<&'static str> {
        let passes_box = match point {
            FarPoint::Store(store) => store.strategy.is_steered(),
            FarPoint::Order(_) => true,
            FarPoint::Hot(_) => return Some("each client of this point needs its own host: use virtual time"),
            FarPoint::Tearing(_) | FarPoint::Scope(_) => false,
        };
        match () {
            () if passes_box && self.middlebox.is_none() => Some("the middlebox needs a third host: name another host"),
            () if passes_box && !are_soft => Some("a middlebox requires software RNICs: add -d doorbell0"),
            () => None,
        }
    }

    /// Returns the duties of each host that has a part in a point, in the order of hosts.
    pub fn duties(&self, point: &FarPoint) -> Vec<(usize, Duties)> {
        let mut all: Vec<(usize, Duties)> = Vec::new();
        let mut at = |host: usize, change: &dyn Fn(&mut Duties)| {
            let index = all.iter().position(|(other, _)| *other == host).unwrap_or_else(|| {
                all.push((host, Duties::default()));
                all.len() - 1
            });
            change(&mut all[index].1);
        };
        at(self.memory, &|duties| duties.memory = true);
        if let Some(middlebox) = self.middlebox.filter(|_| is_boxed(point)) {
            at(middlebox, &|duties| duties.middlebox = true);
        }
        match point.store() {
            Some(store) => {
                at(self.metadata, &|duties| duties.metadata = true);
                // If the study has fewer hosts than the workload, one real host has the clients of several hosts of the
                // workload.
                let places = store.hosts.max(self.clients.len()).min(store.clients).max(1);
                for client in 0..store.clients {
                    let seat = Seat { number: client as u32 + 1, place: client % places };
                    at(self.clients[seat.place % self.clients.len()], &|duties| duties.clients.push(seat));
                }
            }
            // All queue pairs to bare memory are on one host, since the middlebox records the order of one host's
            // requests.
            None => {
                for pair in 0..pairs(point) {
                    let seat = Seat { number: pair as u32 + 1, place: 0 };
                    at(self.clients[0], &|duties| duties.clients.push(seat));
                }
            }
        }
        all.sort_by_key(|(host, _)| *host);
        all
    }

    /// Returns the maximum number of queue pairs that a point needs on one host.
    pub fn queue_pairs(&self, point: &FarPoint) -> usize {
        self.duties(point).iter().map(|(_, duties)| duties.queue_pairs(point)).max().unwrap_or(0)
    }
}

/// Returns whether the packets of a point pass a middlebox.
fn is_boxed(point: &FarPoint) -> bool {
    match point {
        FarPoint::Store(store) => store.strategy.is_steered(),
        other => matches!(other, FarPoint::Order(_)),
    }
}

/// Approximate size of a key in a client's cache, in bytes.
const CACHED_BYTES: u64 = 64;

/// Runs the parties that the peer requests for one point with validated parameters. `pinning` is this host's share of
/// the CPUs.
pub(super) fn serve(
    device: Device,
    peer: &mut Control,
    parameters: &Parameters,
    (terms, pinning): (&Terms, &Pinning),
) -> Result<(), SessionError> {
    let point = parameters.far.as_deref().ok_or_else(|| SessionError::Unexpected("no shared memory".to_owned()))?;
    check_memory(point, terms)?;
    say(peer, FromServer::Accepted)?;
    loop {
        match hear_within(peer, terms.patience())? {
            ToServer::Clock => say(peer, FromServer::Clock { now_ns: device.now_ns() })?,
            ToServer::Be(duties) => {
                let pinning = pinning.of_threads(duties.threads(point));
                pinning.try_all()?;
                return match duties.clients.is_empty() {
                    true => serving::be(device, peer, point, (*duties, &pinning)),
                    false => clients::be(&device, peer, point, (&duties, &pinning)),
                };
            }
            ToServer::End => return Ok(()),
            other => return Err(other.instead_of("parties")),
        }
    }
}

/// Rejects a point whose memory node or clients' caches need more memory than this side provides.
fn check_memory(point: &FarPoint, terms: &Terms) -> Result<(), SessionError> {
    let asked = match point.store() {
        Some(store) => {
            let cached = 4 * CACHED_BYTES.saturating_mul(store.keys);
            plan(store).geometry.region_bytes().max(cached.saturating_mul(store.hosts as u64))
        }
        None => crate::far::Shape::of(point).map_or(0, |shape| shape.memory_bytes as u64),
    };
    let asked = usize::try_from(asked).unwrap_or(usize::MAX);
    match asked > terms.memory_bytes {
        true => Err(SessionError::Memory { asked, allowed: terms.memory_bytes }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_record::{Operation, OrderPoint, StorePoint};

    fn store(strategy: Strategy, clients: usize) -> FarPoint {
        FarPoint::Store(StorePoint { strategy, clients, ..StorePoint::default() })
    }

    /// Returns the role of each host, and its number of clients.
    fn dealt(point: &FarPoint, hosts: usize) -> Vec<(usize, &'static str, usize)> {
        let duties = Parties::deal(hosts).duties(point);
        duties.iter().map(|(host, duties)| (*host, duties.role(), duties.clients.len())).collect()
    }

    #[test]
    fn each_party_gets_its_own_host_if_enough_exist() {
        let (plain, steered) = (store(Strategy::Lock, 5), store(Strategy::Steered, 5));
        let both = "memory node, metadata service";
        assert_eq!(dealt(&plain, 2), [(0, "clients", 5), (1, both, 0)]);
        assert_eq!(dealt(&steered, 3), [(0, "clients", 5), (1, both, 0), (2, "middlebox", 0)]);
        let four = [(0, "clients", 5), (1, "memory node", 0), (2, "middlebox", 0), (3, "metadata service", 0)];
        assert_eq!(dealt(&steered, 4), four);
        assert_eq!(dealt(&plain, 4), [four[0], four[1], four[3]]);
        let six = dealt(&steered, 6);
        assert_eq!([six[0], six[4], six[5]], [(0, "clients", 2), (4, "clients", 2), (5, "clients", 1)]);
        let words = FarPoint::Order(OrderPoint {
            operation: Operation::Read,
            queue_pairs: 8,
            addresses: 64,
            zipf: 0.0,
            rate_per_s: 1e6,
            outstanding: 4,
            requests: 100,
        });
        assert_eq!(dealt(&words, 5), [(0, "clients", 8), (1, "memory node", 0), (2, "middlebox", 0)]);
    }

    #[test]
    fn a_host_that_stands_for_two_has_two_caches() {
        let places = |hosts: usize, host: usize| -> Vec<usize> {
            let duties = Parties::deal(hosts).duties(&store(Strategy::Combine, 5));
            let (_, own) = duties.into_iter().find(|(other, _)| *other == host).expect("the host has a part");
            own.clients.iter().map(|seat| seat.place).collect()
        };
        assert_eq!(places(4, 0), [0, 1, 0, 1, 0]);
        assert_eq!((places(5, 0), places(5, 4)), (vec![0, 0, 0], vec![1, 1]));
    }

    #[test]
    fn impossible_points_are_reported_and_queue_pairs_counted() {
        let (plain, steered) = (store(Strategy::Server, 5), store(Strategy::Steered, 5));
        let lacks = |hosts: usize, point, are_soft| Parties::deal(hosts).lacks(point, are_soft).unwrap_or_default();
        assert!(lacks(2, &steered, true).contains("third") && lacks(3, &steered, false).contains("-d doorbell0"));
        assert_eq!((lacks(3, &steered, true), lacks(2, &plain, false)), ("", ""));
        // Each of the five clients needs three queue pairs. A device with memory node and metadata service needs three
        // for each client and two more.
        assert_eq!(Parties::deal(4).queue_pairs(&plain), 15);
        assert_eq!(Parties::deal(2).queue_pairs(&plain), 17);
    }
}
