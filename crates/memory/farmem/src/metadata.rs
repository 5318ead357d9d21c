//! The metadata service, which hands out nodes, knows the first node of each key's chain, and recycles replaced nodes.
//! Gets and puts of keys that a client already knows do not need the service.

mod directory;
mod end;
mod failover;
mod maintenance;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::net::Ipv6Addr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};

use doorbell_exchange::setup::EndpointDescription;
use doorbell_exchange::{Connector, MessageConnection, Received, SendReceive, Submit, send_receive};
use doorbell_verbs::{Device, Pd, Qpn};

use crate::client::rpc_config;
use crate::contents;
use crate::error::OpenError;
use crate::layout::{KeyBytes, NodeVersion};
use crate::memory::MemoryDescription;
use crate::rpc::{GRANT, Reply, Request};
use directory::{Created, Directory};
use failover::{Concern, Failover, Waiting};
use maintenance::{Chores, Lanes};

pub use end::{MetadataEnd, MetadataOptions};

/// Maximum number of answers that wait for room on a client's connection. At this number, the service takes no further
/// requests of the client.
const MAX_WAITING: usize = 256;

/// Slots of the lanes. `TIDY` is for the maintenance of chains, and `PROBE` checks whether memory nodes answer.
const TIDY: usize = 0;
const PROBE: usize = 1;

/// Number of nodes in each use. All other nodes are in chains, behind the first node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeCounts {
    /// Nodes that no client and no chain uses.
    pub free: u64,
    /// Nodes handed out to clients. A client may have linked such a node without having reported the link yet.
    pub granted: u64,
    /// First nodes of chains.
    pub heads: u64,
    /// Replaced nodes that running operations may still read.
    pub retired: u64,
    /// Nodes that have used all versions.
    pub spent: u64,
}

/// State of a connected client.
struct Session {
    connection: send_receive::Connection,
    outbox: VecDeque<Reply>,
    /// The latest epoch that the client has acknowledged: all operations that ran when this epoch began have ended.
    quiet: u64,
    /// Time at which the service sent the latest epoch to the client.
    told_ns: u64,
    /// Number of nodes that the client has requested and not received yet.
    grants: usize,
    /// Tags of the client's requests for a node of the reserve, each for a delete.
    reserves: VecDeque<u32>,
    /// Set while the client waits for nodes and none is free. If no node is free once all operations that began before
    /// this epoch have ended, the store is full.
    short_until: Option<u64>,
    /// The address at which the client receives datagrams of other clients.
    datagrams: Option<(Ipv6Addr, Qpn)>,
}

impl Session {
    /// Returns whether the client waits for nodes.
    fn is_short(&self) -> bool {
        self.grants > 0 || !self.reserves.is_empty()
    }
}

/// The metadata service: a non-blocking state machine. Call [`poll`](Self::poll) again and again. Shut out the clients
/// that [`next_fence`](Self::next_fence) returns, and with two memory nodes stop the memory node that
/// [`next_stop`](Self::next_stop) returns.
pub struct Metadata {
    device: Device,
    pd: Pd,
    options: MetadataOptions,
    lanes: Lanes,
    failover: Failover,
    directory: Rc<RefCell<Directory>>,
    chores: Rc<RefCell<Chores>>,
    /// The future that closes chains and repairs the chains of clients that are gone. It never completes: after each
    /// chore, it waits for the next one.
    maintenance: Pin<Box<dyn Future<Output = ()>>>,
    sessions: BTreeMap<u32, Session>,
    to_fence: VecDeque<u32>,
    /// Whether the service has removed a client since the last poll, so that this client must be shut out.
    has_parted: bool,
    /// Time before which the service shuts out no client on behalf of another client.
    settled_ns: u64,
    /// Clients that wait for another client to be shut out: waiting client, tag of its request, client to shut out.
    suspects: Vec<(u32, u32, u32)>,
    scratch: Vec<u8>,
}

impl std::fmt::Debug for Metadata {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metadata").field("clients", &self.sessions.len()).finish_non_exhaustive()
    }
}

impl Metadata {
    /// Connects a client, which gets this number.
    ///
    /// # Errors
    ///
    /// A client with this number exists, the device has no room, or the description is invalid.
    pub fn accept(&mut self, client: u32, peer: &EndpointDescription) -> Result<EndpointDescription, OpenError> {
        if self.sessions.contains_key(&client) || self.chores.borrow().concerns(client) {
            return Err(OpenError::Duplicate(client));
        }
        let endpoint = SendReceive.endpoint(&self.pd, &rpc_config(&self.options.rpc), None)?;
        let own = SendReceive.describe(&endpoint);
        let connection = SendReceive.connect(endpoint, peer)?;
        let session = Session {
            connection,
            outbox: VecDeque::new(),
            quiet: self.directory.borrow().epoch(),
            told_ns: self.device.now_ns(),
            grants: 0,
            reserves: VecDeque::new(),
            short_until: None,
            datagrams: None,
        };
        self.sessions.insert(client, session);
        self.say_who_is_alone(client);
        Ok(own)
    }

    /// Records the keys of a workload, which [`MemoryNode::fill`](crate::MemoryNode::fill) has written, as existing.
    /// Call this before any client is accepted.
    ///
    /// # Errors
    ///
    /// The store has no room for this number of keys.
    pub fn fill(&mut self, keys: u64) -> Result<(), OpenError> {
        self.lanes.current().geometry.check_keys(keys)?;
        // A store has fewer than 2^32 keys, so `u32` holds each rank.
        let made = (0..keys as u32).map(|rank| {
            let rank = u64::from(rank);
            (KeyBytes::from_slice(&contents::key(rank)), contents::first_place(rank))
        });
        self.directory.borrow_mut().fill(made);
        Ok(())
    }

    /// If a memory node was given up, tells a new client which memory node serves alone. The client may have connected
    /// to both nodes before.
    fn say_who_is_alone(&mut self, client: u32) {
        if let (Some(node), Some(session)) = (self.failover.alone(), self.sessions.get_mut(&client)) {
            session.outbox.push_back(Reply::Alone { node: node as u8 });
        }
    }

    /// Processes messages, completions and due timeouts. Returns whether anything changed.
    pub fn poll(&mut self) -> bool {
        let mut happened = self.lanes.poll();
        let clients: Vec<u32> = self.sessions.keys().copied().collect();
        for client in clients {
            happened |= self.listen(client);
        }
        self.look_after_nodes();
        self.hand_out();
        happened |= self.turn_epoch();
        let _ = self.maintenance.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        happened |= self.speak();
        happened | std::mem::take(&mut self.has_parted)
    }

    /// Processes the received messages of a client.
    fn listen(&mut self, client: u32) -> bool {
        let mut happened = false;
        loop {
            let Some(session) = self.sessions.get_mut(&client) else { return happened };
            if session.outbox.len() >= MAX_WAITING {
                // The poll must come first: it processes the acknowledgements that make room for waiting messages.
                match session.connection.poll() {
                    Ok(moved) => return happened | moved,
                    Err(_) => {
                        self.part(client);
                        return true;
                    }
                }
            }
            match session.connection.receive_noting(&mut happened) {
                Ok(Some(message)) => {
                    self.scratch.resize(message.len(), 0);
                    message.copy_to(&mut self.scratch);
                    drop(message);
                    let is_valid = match Request::decode(&self.scratch) {
                        Some(request) => self.serve(client, request),
                        None => false,
                    };
                    if !is_valid {
                        self.part(client); // the client breaks the protocol, and other clients use the same memory
                    }
                }
                Ok(None) => return happened,
                Err(_) => {
                    self.part(client);
                    return true;
                }
            }
        }
    }

    /// Processes a request of a client. Returns false if the protocol does not allow the request.
    fn serve(&mut self, client: u32, request: Request) -> bool {
        let mut directory = self.directory.borrow_mut();
        let Some(session) = self.sessions.get_mut(&client) else { return false };
        let reply = match request {
            Request::Grant => {
                session.grants += 1;
                return session.grants <= MAX_WAITING;
            }
            Request::Reserve { tag } => {
                session.reserves.push_back(tag);
                return session.reserves.len() <= MAX_WAITING;
            }
            Request::Lookup { tag, key } => match directory.lookup(&key) {
                Some((place, number)) => Reply::Found { tag, place, number },
                None => Reply::Absent { tag },
            },
            Request::Create { tag, key, place } => match directory.create(client, &key, place) {
                Created::New(number) => Reply::Created { tag, number },
                Created::Exists(place, number) => Reply::Found { tag, place, number },
                Created::Closing => Reply::Again { tag },
                Created::NoRoom => Reply::TooManyKeys { tag },
                Created::Foreign => return false,
            },
            Request::Reports(reports) => {
                let mut chores = self.chores.borrow_mut();
                for report in reports {
                    match directory.report(client, report) {
                        Ok(None) => {}
                        Ok(Some(number)) => chores.close(number),
                        Err(()) => return false,
                    }
                }
                return true;
            }
            Request::Return(places) => return places.into_iter().all(|place| directory.give_back(client, place)),
            Request::Quiet { epoch } => {
                session.quiet = session.quiet.max(epoch);
                return epoch <= directory.epoch();
            }
            Request::Suspect { tag, client: suspect } => {
                drop(directory);
                let concern = Concern::Suspect(suspect);
                match self.lanes.replica() {
                    // The suspect may be waiting for a memory node that does not answer, so check the memory nodes
                    // first.
                    Some(_) => self.failover.report(Waiting { client, tag, concern }),
                    None => self.shut_out(client, tag, suspect),
                }
                return true;
            }
            Request::Lost { tag, .. } => {
                self.failover.report(Waiting { client, tag, concern: Concern::Lost });
                return true;
            }
            Request::Stuck { tag, place } => {
                self.failover.report(Waiting { client, tag, concern: Concern::Stuck(place) });
                return true;
            }
            Request::Hello { gid, qpn } => {
                session.datagrams = Some((gid, qpn));
                return true;
            }
            Request::Peer { tag, client: peer } => {
                match self.sessions.get(&peer).and_then(|session| session.datagrams) {
                    Some((gid, qpn)) => Reply::Peer { tag, gid, qpn },
                    None => Reply::Absent { tag },
                }
            }
        };
        if let Some(session) = self.sessions.get_mut(&client) {
            session.outbox.push_back(reply);
        }
        true
    }

    /// Shuts out the client `suspect` on behalf of `client`, which gets an answer once the suspect is shut out.
    fn shut_out(&mut self, client: u32, tag: u32, suspect: u32) {
        let is_there = self.sessions.contains_key(&suspect);
        if is_there && self.device.now_ns() < self.settled_ns {
            // The suspect may have been waiting for the memory node that was just given up.
            self.answer(client, Reply::Again { tag });
        } else if is_there || self.to_fence.contains(&suspect) || self.chores.borrow().is_leaving(suspect) {
            self.suspects.push((client, tag, suspect));
            self.part(suspect);
        } else {
            self.answer(client, Reply::Fenced { tag }); // the suspect is already shut out
        }
    }

    fn answer(&mut self, client: u32, reply: Reply) {
        if let Some(session) = self.sessions.get_mut(&client) {
            session.outbox.push_back(reply);
        }
    }

    /// Checks the memory nodes if a client has reported a client or a memory node that does not answer. Gives up a
    /// memory node that does not answer, and shuts out clients that do not answer.
    fn look_after_nodes(&mut self) {
        let found = self.failover.poll();
        for Waiting { client, tag, concern } in found.answered {
            let suspect = match concern {
                Concern::Lost => {
                    let are_both = self.lanes.replica().is_some();
                    self.answer(client, if are_both { Reply::Absent { tag } } else { Reply::Again { tag } });
                    continue;
                }
                Concern::Late => {
                    self.part(client);
                    continue;
                }
                Concern::Suspect(suspect) => Some(suspect),
                Concern::Stuck(place) => self.directory.borrow().owner(place),
            };
            match suspect.filter(|&suspect| suspect != client) {
                Some(suspect) => self.shut_out(client, tag, suspect),
                None => self.answer(client, Reply::Again { tag }),
            }
        }
        for Waiting { client, tag, concern } in found.over {
            if concern == Concern::Late {
                continue;
            }
            self.answer(client, Reply::Again { tag });
        }
    }

    /// Gives up one of two memory nodes, which does not answer the program that runs the service. The other memory node
    /// will serve alone.
    pub fn lose(&mut self, node: usize) {
        self.failover.lose(node);
    }

    /// Returns the memory node, 0 or 1, that the program must stop ([`MemoryNode::stop`](crate::MemoryNode::stop)),
    /// since the node does not answer. Call [`stopped`](Self::stopped) when the node has stopped. A node that the
    /// program cannot reach stops by itself at the time that
    /// [`MemoryNode::serve_until`](crate::MemoryNode::serve_until) has set. Clients learn that the other node serves
    /// alone only after `stopped`. Otherwise a client could read values at the old node that other clients have
    /// replaced at the other node.
    pub fn next_stop(&mut self) -> Option<usize> {
        self.failover.next_stop()
    }

    /// Records that a memory node serves no client any more. In a store with two memory nodes, the other one serves
    /// alone from now on. The stopped node need not shut out clients any more.
    pub fn stopped(&mut self, node: usize) {
        if self.failover.stopped(node).is_none() {
            return;
        }
        self.chores.borrow_mut().node_lost();
        let (now, clients): (u64, Vec<u32>) = (self.device.now_ns(), self.sessions.keys().copied().collect());
        for client in clients {
            self.say_who_is_alone(client);
        }
        // Operations have waited for the failed node, so each client gets its full lease again.
        self.sessions.values_mut().for_each(|session| session.told_ns = now);
        self.settled_ns = now.saturating_add(self.options.lease_ns);
    }

    /// Returns the memory node that serves alone. `None` while both memory nodes of a store with two serve, and in a
    /// store with one.
    pub fn alone(&self) -> Option<usize> {
        self.failover.alone()
    }

    /// Removes a client that is gone or must go, and queues it to be shut out.
    fn part(&mut self, client: u32) {
        if self.sessions.remove(&client).is_some() {
            self.failover.part(client);
            self.suspects.retain(|&(waiting, ..)| waiting != client);
            self.chores.borrow_mut().leave(client);
            self.to_fence.push_back(client);
            self.has_parted = true;
        }
    }

    /// Returns the next client that each serving memory node must shut out
    /// ([`MemoryNode::fence`](crate::MemoryNode::fence)). Call [`fenced`](Self::fenced) when all of them have done so.
    /// Only then the service reuses the nodes of the client.
    pub fn next_fence(&mut self) -> Option<u32> {
        self.to_fence.pop_front()
    }

    /// Records that the memory nodes have shut out a client.
    pub fn fenced(&mut self, client: u32) {
        self.chores.borrow_mut().fenced(client);
        let sessions = &mut self.sessions;
        self.suspects.retain(|&(waiting, tag, suspect)| {
            if suspect == client
                && let Some(session) = sessions.get_mut(&waiting)
            {
                session.outbox.push_back(Reply::Fenced { tag });
            }
            suspect != client
        });
    }

    /// Hands out nodes to the clients that have requested nodes, in turn.
    fn hand_out(&mut self) {
        let mut directory = self.directory.borrow_mut();
        let least = self.sessions.values().map(|session| session.quiet).min().unwrap_or(0);
        for (&client, session) in &mut self.sessions {
            // If no node is free, clients may not have reported all replaced nodes yet. A new epoch makes them report.
            let told = session.short_until.is_some_and(|epoch| least >= epoch);
            let may_come = directory.has_retired() || self.chores.borrow().has_any() || !told;
            let mut is_short = false;
            while session.grants > 0 {
                let places = directory.grant(client, GRANT);
                is_short = places.is_empty();
                if is_short && may_come {
                    break;
                }
                session.grants -= 1;
                session.outbox.push_back(Reply::Granted(places));
            }
            while let Some(&tag) = session.reserves.front() {
                let place = directory.grant_of_reserve(client);
                is_short |= place.is_none();
                if place.is_none() && may_come {
                    break;
                }
                session.reserves.pop_front();
                session.outbox.push_back(Reply::Reserved { tag, place });
            }
            session.short_until = match session.is_short() && is_short {
                true => session.short_until.or(Some(directory.epoch() + 1)),
                false => None,
            };
        }
    }

    /// Begins a new epoch once all clients have acknowledged the current one, and frees nodes that no operation can
    /// read any more. Returns whether it did either. Then the next poll may hand out or free further nodes.
    fn turn_epoch(&mut self) -> bool {
        let mut directory = self.directory.borrow_mut();
        let least = self.sessions.values().map(|session| session.quiet).min();
        let has_freed = directory.release(least.unwrap_or(u64::MAX));
        let epoch = directory.epoch();
        let is_wanted = |session: &Session| session.short_until.is_some_and(|until| until > epoch);
        // Each epoch costs a message to each client and one back. While enough nodes are free, wait until more nodes
        // were replaced.
        let recycles = directory.has_retired() && directory.is_low(self.sessions.len());
        let is_wanted = recycles || self.sessions.values().any(is_wanted);
        if is_wanted && least.is_none_or(|least| least == epoch) {
            let (epoch, now) = (directory.begin_epoch(), self.device.now_ns());
            for session in self.sessions.values_mut() {
                session.outbox.push_back(Reply::Epoch { epoch });
                session.told_ns = now;
            }
            return true;
        }
        // A client waits for nodes, and the clients that have not acknowledged the epoch delay the reuse of nodes.
        if self.sessions.values().any(Session::is_short) && directory.is_empty() {
            let now = self.device.now_ns();
            let is_late = |session: &Session| {
                session.quiet < epoch && now.saturating_sub(session.told_ns) > self.options.lease_ns
            };
            let late: Vec<u32> =
                self.sessions.iter().filter(|(_, session)| is_late(session)).map(|(&client, _)| client).collect();
            drop(directory);
            for client in late {
                match self.lanes.replica() {
                    // The client may be waiting for a memory node that does not answer, so check the memory nodes
                    // first.
                    Some(_) => self.failover.hear_once(Waiting { client, tag: 0, concern: Concern::Late }),
                    None => self.part(client),
                }
            }
        }
        has_freed
    }

    /// Sends the queued answers for which connections have room.
    fn speak(&mut self) -> bool {
        let mut happened = false;
        let mut gone = Vec::new();
        for (&client, session) in &mut self.sessions {
            while let Some(reply) = session.outbox.front() {
                reply.encode(&mut self.scratch);
                match session.connection.send(&self.scratch) {
                    Ok(Submit::Accepted(_)) => {
                        session.outbox.pop_front();
                        happened = true;
                    }
                    Ok(Submit::Full(_)) => break,
                    Err(_) => {
                        gone.push(client);
                        break;
                    }
                }
            }
        }
        gone.into_iter().for_each(|client| self.part(client));
        happened
    }

    /// Returns the time, on the device's clock, at which the service needs a poll without an event. At that time, the
    /// service checks whether a silent client is alive, or shuts out a client that delays the reuse of nodes.
    pub fn deadline_ns(&self) -> Option<u64> {
        let is_short = self.sessions.values().any(Session::is_short);
        let late = |session: &Session| session.told_ns.saturating_add(self.options.lease_ns).saturating_add(1);
        let now = self.device.now_ns();
        let leases = self.sessions.values().map(late).filter(|&at| is_short && at > now);
        let connections = self.sessions.values().filter_map(|session| session.connection.poll_timeout_ns());
        leases.chain(connections).min()
    }

    /// Returns the number of connected clients.
    pub fn clients(&self) -> usize {
        self.sessions.len()
    }

    /// Returns whether the service has no pending work: no client to shut out and no check of a memory node. Unless the
    /// memory node is unreachable, the service must also have no deleted key to remove and no nodes of a shut-out
    /// client to recover.
    pub fn is_tidy(&self) -> bool {
        self.to_fence.is_empty() && self.failover.is_quiet() && (!self.chores.borrow().has_any() || self.is_cut_off())
    }

    /// Returns whether the queue pair to the memory node has failed. The service still answers clients; work on the
    /// memory node waits for [`reconnect`](Self::reconnect).
    pub fn is_cut_off(&self) -> bool {
        self.lanes.current().failed().is_some()
    }

    /// Returns an unconnected service end, for a new queue pair to the memory node after a restart of the middlebox
    /// between service and memory node.
    ///
    /// # Errors
    ///
    /// The device has no room.
    pub fn renew(&self) -> Result<MetadataEnd, OpenError> {
        MetadataEnd::new(&self.pd, self.options.clone())
    }

    /// Replaces the queue pair to the memory node with that of `end`, which [`renew`](Self::renew) has created. The
    /// memory node must have destroyed the old queue pair, so that it executes no request that is still on its way. The
    /// service repeats work that got no answer.
    ///
    /// # Errors
    ///
    /// The description is invalid, or belongs to another store.
    pub fn reconnect(&mut self, end: MetadataEnd, memory: &MemoryDescription) -> Result<(), OpenError> {
        let lane = end.lane.connect(memory, &Rc::default())?;
        if lane.geometry != self.lanes.current().geometry {
            return Err(OpenError::OtherStore);
        }
        self.lanes.replace(lane);
        Ok(())
    }

    /// Returns the number of nodes in each use.
    pub fn nodes(&self) -> NodeCounts {
        self.directory.borrow().counts()
    }

    /// Returns each key with the first node of its chain, in arbitrary order.
    pub fn keys(&self) -> Vec<(Vec<u8>, NodeVersion)> {
        self.directory.borrow().keys()
    }
}
