//! Points about memory that several clients share, on several hosts. Each host acts as one or more of the parties.
//!
//! The coordinator assigns the parties to hosts ([`Parties`]), and relays descriptions between the hosts. Set-up has
//! the following steps. Each step begins when the previous step is complete on all hosts.
//!
//! 1. [`Be`](super::ToServer::Be): each host makes its parties and describes them.
//! 2. [`Accept`](super::ToServer::Accept): the memory node makes an end for each client and for the metadata service.
//!    If there is a middlebox for a store, the memory node makes an end only for the middlebox. The middlebox then
//!    makes ends for the clients and the metadata service. A middlebox that only forwards packets receives the pairs of
//!    ends ([`Relay`](super::ToServer::Relay)).
//! 3. [`Serve`](super::ToServer::Serve): the metadata service connects with the memory node, and accepts clients.
//! 4. [`Join`](super::ToServer::Join): clients connect.
//! 5. `Go`: clients begin at one instant. All other parties serve until they receive `Done`.

mod clients;
mod coordinate;
mod serving;

use doorbell_exchange::setup::EndpointDescription;
use doorbell_farmem::workload::HostTally;
use doorbell_farmem::{ClientCounts, ClientDescription, Strategy};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use coordinate::measure_parties;
pub(super) use serving::serve;

use crate::far::FarPoint;
use crate::record::Buckets;

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

/// Client on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// Number of the client, counted from 1.
    pub number: u32,
    /// Number of the workload's host that the client belongs to. Clients of a store with the same place share a cache.
    pub place: usize,
}

/// Parties that one host acts as in a point.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Duties {
    /// Whether the host is the memory node.
    pub memory: bool,
    /// Whether the host is the metadata service.
    pub metadata: bool,
    /// Whether the host is the middlebox, which takes over the address of the host's device.
    pub middlebox: bool,
    /// Clients of a store, or queue pairs to bare memory, that the host runs.
    pub clients: Vec<Seat>,
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

/// Description of an end, which is serialized as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End(pub(super) EndpointDescription);

impl Serialize for End {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.0.to_hex())
    }
}

impl<'de> Deserialize<'de> for End {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        EndpointDescription::from_hex(&text).map(Self).map_err(D::Error::custom)
    }
}

/// Ends of one party for another party: an end for verbs, and possibly an end for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ends {
    /// End for verbs. The end of a memory node contains the region of its memory.
    pub(super) lane: End,
    /// End for messages, if the memory node's CPU serves requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) calls: Option<End>,
}

impl Ends {
    fn of(client: ClientDescription) -> Self {
        Self { lane: End(client.lane), calls: client.calls.map(End) }
    }

    fn bare(lane: EndpointDescription) -> Self {
        Self { lane: End(lane), calls: None }
    }

    fn client(self) -> ClientDescription {
        ClientDescription { lane: self.lane.0, calls: self.calls.map(|end| end.0) }
    }

    /// Returns the ends with another address.
    fn at(self, gid: std::net::Ipv6Addr) -> Self {
        Self { lane: End(EndpointDescription { gid, ..self.lane.0 }), ..self }
    }
}

/// Ends of the parties that a host has made.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Made {
    /// End of the metadata service for the memory node.
    pub(super) metadata: Option<Ends>,
    /// End of the middlebox for the memory node.
    pub(super) middlebox: Option<End>,
    /// For each client in order, its ends for the memory node and its end for the metadata service.
    pub(super) clients: Vec<(Ends, Option<End>)>,
}

/// Results of the clients of one host, as a message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClientsDone {
    operations: Vec<u64>,
    operations_per_s: Vec<f64>,
    gets_ns: Buckets,
    puts_ns: Buckets,
    counts: ClientCounts,
    gave_up: u64,
    skipped: u64,
    absent: u64,
    wire_bytes: Option<f64>,
    /// Beginning and end of the clients' work, on the clock of the host's device.
    span_ns: (u64, u64),
}

impl From<HostTally> for ClientsDone {
    fn from(tally: HostTally) -> Self {
        let HostTally {
            operations,
            operations_per_s,
            gets_ns,
            puts_ns,
            counts,
            gave_up,
            skipped,
            absent,
            wire_bytes,
            span_ns,
        } = tally;
        let (gets_ns, puts_ns) = (Buckets::of(&gets_ns), Buckets::of(&puts_ns));
        Self { operations, operations_per_s, gets_ns, puts_ns, counts, gave_up, skipped, absent, wire_bytes, span_ns }
    }
}

impl From<&ClientsDone> for HostTally {
    fn from(done: &ClientsDone) -> Self {
        Self {
            operations: done.operations.clone(),
            operations_per_s: done.operations_per_s.clone(),
            gets_ns: done.gets_ns.to_histogram(),
            puts_ns: done.puts_ns.to_histogram(),
            counts: done.counts,
            gave_up: done.gave_up,
            skipped: done.skipped,
            absent: done.absent,
            wire_bytes: done.wire_bytes,
            span_ns: done.span_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::far::{OrderPoint, StorePoint};
    use crate::parameters::Operation;

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

    #[test]
    fn descriptions_round_trip_and_invalid_text_is_rejected() {
        let lane = EndpointDescription::one_sided(
            std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped(),
            doorbell_verbs::Qpn::new(77),
            doorbell_verbs::Psn::new(5),
            doorbell_verbs::PathMtu::Mtu1024,
            4791,
        );
        let text = serde_json::to_string(&Ends::bare(lane)).unwrap();
        assert_eq!(serde_json::from_str::<Ends>(&text).unwrap(), Ends::bare(lane));
        for wrong in [text.replace("7", "x"), text.replacen("00", "", 1), "{\"lane\":\"\u{e9}\"}".to_owned()] {
            assert!(serde_json::from_str::<Ends>(&wrong).is_err(), "{wrong}");
        }
    }
}
