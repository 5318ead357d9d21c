//! The box: its clients, its outstanding requests at the node, and the functions that its driver calls.

mod failing;
mod passing;
mod requests;
mod responses;
mod transform;

use std::collections::VecDeque;
use std::net::IpAddr;

use doorbell_wire::{BTH_LEN, BthPacket, BthRepr, Outer, PacketOperation, Psn, Qpn, RKey, Transport, split_mix};
use rustc_hash::FxHashMap;

use crate::client::{Client, Repetition};
use crate::config::{ClientEnd, Config, Limits, NodeEnd, Region, SetupError};
use crate::counters::Counters;
use crate::key::Key;
use crate::message::Message;
use crate::node::Node;
use crate::output::{Output, Path};
use crate::regions::Regions;
use crate::steering::{Layout, Steering};
use crate::values::Values;
use passing::Relays;

/// Number of low bits of a queue pair number that hold the index of the client. The bits above distinguish clients that
/// use the same index one after the other.
const SLOT_BITS: u32 = 16;

/// The index that the number of the box's queue pair with the node contains in place of a client's index.
const NODE_PLACE: u32 = 0xffff;

/// Index of the first client. Queue pair numbers 0 and 1 are special in IBTA.
const FIRST_PLACE: u32 = 2;

const _: () =
    assert!(Limits::MOST_CLIENTS + (FIRST_PLACE as usize) < NODE_PLACE as usize, "the node has a place of its own");

/// Maximum number of message buffers that the box keeps for reuse.
const SPARE_BUFFERS: usize = 256;

/// Maximum capacity of a buffer that the box keeps for reuse, in bytes.
const SPARE_BYTES: usize = 16 << 10;

/// Current sizes of a box's queues. [`Limits`] bounds all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Number of connected clients.
    pub clients: usize,
    /// Complete requests that wait for room at the node.
    pub waiting: usize,
    /// Outstanding requests at the node.
    pub in_flight: usize,
    /// WRITEs with missing packets.
    pub incomplete: usize,
    /// Bytes of all these requests that count against the limits.
    pub bytes: usize,
}

/// Reasons for the failure of the queue pair with a memory node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeFailure {
    /// The node acknowledged no packet during all retransmissions ([`NodeEnd::retries`]).
    Silent,
    /// The node answered a request with an error.
    Refused,
}

/// A box between clients and a memory node.
///
/// The box has no socket, clock or thread. Time is a number of nanoseconds that never decreases. A driver calls the box
/// in this order:
///
/// 1. **Input**: [`handle_packet`](Self::handle_packet) for each packet that arrived, from BTH to padding, and
///    [`handle_timeout`](Self::handle_timeout) once [`poll_timeout`](Self::poll_timeout) has passed.
/// 2. **Output**: [`poll_transmit`](Self::poll_transmit), which returns all resulting packets.
/// 3. **Waiting**: until a packet arrives or `poll_timeout` passes, which must be queried again after every input.
///
/// A control plane sets up connections: [`node_side`](Self::node_side) and [`attach`](Self::attach) for the memory
/// node, [`connect`](Self::connect) for each client.
#[derive(Debug)]
pub struct Steer {
    config: Config,
    counters: Counters,
    regions: Regions,
    /// Each client is boxed, since most entries of a large table are empty.
    clients: Vec<Option<Box<Client>>>,
    free: Vec<u32>,
    by_peer: FxHashMap<(IpAddr, Qpn), u32>,
    relays: Relays,
    node: Option<Node>,
    next_node_side: (Qpn, Psn),
    /// Clients with a request for the node, in the order in which they get their turns.
    ready: VecDeque<u32>,
    /// Clients whose next request waits until the node has answered a READ or atomic of any client.
    response_waiters: VecDeque<u32>,
    touched: Vec<u32>,
    steering: Option<Steering>,
    values: Values,
    held_bytes: usize,
    spare: Vec<Vec<u8>>,
    out: Output,
    generation: u32,
    random: u64,
    sweep_ns: Option<u64>,
}

impl Steer {
    /// Creates a box without node, regions and clients, which steers no requests.
    pub fn new(config: Config) -> Self {
        let mut steer = Self {
            config,
            counters: Counters::default(),
            regions: Regions::default(),
            clients: Vec::new(),
            free: Vec::new(),
            by_peer: FxHashMap::default(),
            relays: Relays::default(),
            node: None,
            next_node_side: Default::default(),
            ready: VecDeque::new(),
            response_waiters: VecDeque::new(),
            touched: Vec::new(),
            steering: None,
            values: Values::new(config.limits.words),
            held_bytes: 0,
            spare: Vec::new(),
            out: Output::default(),
            generation: 0,
            random: config.seed,
            sweep_ns: None,
        };
        steer.generation = steer.random() as u32;
        steer.new_node_side();
        steer
    }

    /// Creates a box that steers requests to the newest nodes of a store with this layout.
    pub fn with_layout(config: Config, layout: Box<dyn Layout>) -> Self {
        Self { steering: Some(Steering::new(layout, config.limits.keys)), ..Self::new(config) }
    }

    /// Returns the configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the current sizes of the box's queues.
    pub fn held(&self) -> Held {
        let clients = self.clients.iter().flatten();
        let mut held = Held { bytes: self.held_bytes, ..Held::default() };
        for client in clients {
            held.clients += 1;
            held.waiting += client.waiting.len();
            held.incomplete += usize::from(client.assembly.is_some());
        }
        held.in_flight = self.node.as_ref().map_or(0, |node| node.in_flight.len());
        held
    }

    /// Returns the number of the box's next queue pair with the node, and the PSN of its first request.
    pub fn node_side(&self) -> (Qpn, Psn) {
        self.next_node_side
    }

    /// Returns whether a working queue pair with the node exists.
    pub fn is_attached(&self) -> bool {
        self.node.as_ref().is_some_and(|node| !node.failed)
    }

    /// Returns why the queue pair with the node failed. `None` if the queue pair works, never worked, or was given up
    /// by [`detach`](Self::detach).
    pub fn node_failure(&self) -> Option<NodeFailure> {
        let node = self.node.as_ref().filter(|node| node.failed)?;
        Some(if node.is_silent { NodeFailure::Silent } else { NodeFailure::Refused })
    }

    /// Starts to use `end`, a queue pair that the node has created for the box's queue pair
    /// [`node_side`](Self::node_side). The previous queue pair with a node fails, and each of its clients gets a NAK
    /// for its next request.
    ///
    /// # Errors
    ///
    /// The node accepts no READs and atomics ([`SetupError::NoReads`]).
    pub fn attach(&mut self, end: NodeEnd) -> Result<(), SetupError> {
        if end.max_rd_atomic == 0 {
            return Err(SetupError::NoReads);
        }
        self.fail_node(None);
        let (qpn, psn) = self.next_node_side;
        self.node = Some(Node::new(end, qpn, psn));
        self.new_node_side();
        Ok(())
    }

    /// Gives up the queue pair with the node and all clients of this queue pair: their next requests get a NAK. No node
    /// is attached until the next [`attach`](Self::attach). Without connected clients, the counters record no failure.
    pub fn detach(&mut self) {
        if self.by_peer.is_empty() && self.node.as_ref().is_some_and(|node| node.in_flight.is_empty()) {
            self.forget();
            self.node = None;
        } else {
            self.fail_node(None);
            self.node = None;
        }
    }

    /// Sets the layout of the store whose requests the box steers; with `None`, the box steers no requests. The box
    /// drops its knowledge of the previous store, so call this while no node is attached.
    pub fn set_layout(&mut self, layout: Option<Box<dyn Layout>>) {
        if let Some(mut steering) = self.steering.take() {
            self.ready.extend(steering.unlock_all());
        }
        self.steering = layout.map(|layout| Steering::new(layout, self.config.limits.keys));
    }

    /// Allows clients to access a region of the node.
    ///
    /// # Errors
    ///
    /// Another region has the same key, the table of regions is full, or the region ends beyond the address space.
    pub fn add_region(&mut self, region: Region) -> Result<(), SetupError> {
        self.regions.add(region, self.config.limits.regions)
    }

    /// Removes the region with this key. The node still executes the outstanding requests to this region. Returns false
    /// if no region has this key.
    pub fn remove_region(&mut self, rkey: RKey) -> bool {
        self.regions.remove(rkey)
    }

    /// Connects a client. The client's queue pair must use the returned number as its destination, at the box's
    /// address.
    ///
    /// # Errors
    ///
    /// No working node is attached, the table of clients is full, the client is already connected, or the path MTUs of
    /// client and node differ.
    pub fn connect(&mut self, peer: ClientEnd) -> Result<Qpn, SetupError> {
        let Some(node) = self.node.as_ref().filter(|node| !node.failed) else { return Err(SetupError::NoNode) };
        if peer.path_mtu != node.end.path_mtu {
            return Err(SetupError::PathMtu { client: peer.path_mtu, node: node.end.path_mtu });
        }
        if self.by_peer.contains_key(&(peer.address, peer.qpn)) {
            return Err(SetupError::ClientKnown(peer.qpn));
        }
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let most = self.config.limits.clients.min(Limits::MOST_CLIENTS);
                if self.clients.len() >= most {
                    return Err(SetupError::TooManyClients(most));
                }
                self.clients.push(None);
                (self.clients.len() - 1) as u32
            }
        };
        let qpn = self.number(slot + FIRST_PLACE);
        self.clients[slot as usize] = Some(Box::new(Client::new(qpn, peer)));
        self.by_peer.insert((peer.address, peer.qpn), slot);
        Ok(qpn)
    }

    /// Removes a client. The node still executes the client's outstanding requests. Returns false if no client has this
    /// queue pair number.
    pub fn disconnect(&mut self, qpn: Qpn) -> bool {
        let Some(slot) = self.client_of(qpn) else { return false };
        self.drop_requests(slot);
        if let Some(client) = self.clients[slot as usize].take() {
            self.by_peer.remove(&(client.peer.address, client.peer.qpn));
        }
        for list in [&mut self.ready, &mut self.response_waiters] {
            list.retain(|other| *other != slot);
        }
        if let Some(steering) = &mut self.steering {
            steering.forget_client(slot);
        }
        self.free.push(slot);
        true
    }

    /// Returns the number of a client's outstanding requests at the node. This also works for a client that was
    /// [disconnected](Self::disconnect). Once the number is 0, that client no longer changes the node's memory.
    pub fn at_node(&self, qpn: Qpn) -> usize {
        let working = self.node.as_ref().filter(|node| !node.failed);
        working.map_or(0, |node| node.in_flight.iter().filter(|message| message.qpn == qpn).count())
    }

    /// Handles a packet. `packet` is the range from BTH to padding.
    pub fn handle_packet(&mut self, now_ns: u64, outer: &Outer, packet: &[u8]) {
        self.counters.received += 1;
        let Ok(bth) = BthRepr::parse(&BthPacket::new_unchecked(packet)) else {
            return self.pass_unparsed(outer, packet);
        };
        let headers = BTH_LEN + bth.opcode.extension_len();
        let Some(operation) = bth.opcode.operation().filter(|_| packet.len() >= headers + usize::from(bth.pad_count))
        else {
            return self.pass_unparsed(outer, packet);
        };
        if self.pass_relayed(outer, &bth, operation, packet) {
            return;
        }
        if let Some(node) = self.node.as_ref().filter(|node| node.own_qpn == bth.dest_qpn) {
            if node.end.address != outer.src {
                self.counters.foreign += 1;
            } else if operation == PacketOperation::Cnp {
                self.tell_clients_of_congestion(packet);
            } else if bth.opcode.is_response() && bth.opcode.transport() == Transport::Rc && !node.failed {
                self.handle_response(now_ns, outer, packet, &bth, operation);
            } else {
                self.counters.unexpected += 1;
            }
        } else if let Some(slot) = self.client_of(bth.dest_qpn) {
            let is_from_client = self.client(slot).is_some_and(|client| client.peer.address == outer.src);
            if !is_from_client {
                self.counters.foreign += 1;
            } else if operation == PacketOperation::Cnp {
                self.tell_node_of_congestion(packet);
            } else if bth.opcode.is_request() && bth.opcode.transport() == Transport::Rc {
                self.handle_request(now_ns, slot, outer, packet, &bth, operation);
            } else {
                self.counters.unexpected += 1;
            }
        } else if outer.dst != self.config.address {
            self.push_passed(outer, outer.src, outer.dst, packet);
        } else {
            self.counters.unknown_qp += 1;
        }
        self.after_input(now_ns);
    }

    /// Handles the timeouts that are due.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        if self.sweep_ns.is_some_and(|at_ns| at_ns <= now_ns) {
            self.give_up_incomplete(now_ns);
        }
        if let Some(node) = self.node.as_mut().filter(|node| !node.failed)
            && node.deadline_ns.is_some_and(|at_ns| at_ns <= now_ns)
        {
            self.counters.node_timeouts += 1;
            if !node.timed_out(now_ns) {
                node.is_silent = true;
                self.fail_node(None);
            }
        }
        self.after_input(now_ns);
    }

    /// Returns the time at which the next call of [`handle_timeout`](Self::handle_timeout) is due.
    pub fn poll_timeout(&self) -> Option<u64> {
        let node = self.node.as_ref().filter(|node| !node.failed).and_then(|node| node.deadline_ns);
        node.into_iter().chain(self.sweep_ns).min()
    }

    /// Passes all packets to send, each from BTH to padding, to the closure `take` in order. Returns their number.
    pub fn poll_transmit(&mut self, take: impl FnMut(&Path, &[u8])) -> usize {
        let count = self.out.drain(take);
        self.counters.sent += count as u64;
        count
    }

    /// Sends due answers to the clients in `touched`, and sends requests to the node as far as the node accepts them.
    fn after_input(&mut self, now_ns: u64) {
        let from = self.config.address;
        let mut acks = 0;
        while let Some(slot) = self.touched.pop() {
            let Some(client) = self.clients[slot as usize].as_mut() else { continue };
            client.touched = false;
            self.counters.naks_out += u64::from(client.is_nak_due());
            let has_acked = client.settle(from, &mut self.out);
            acks += u64::from(has_acked);
            if matches!(client.repetitions.front(), Some(Repetition::Read(_))) {
                self.schedule(slot);
            }
        }
        self.counters.acks_out += acks;
        self.counters.coalesced += u64::from(acks > 1);
        self.pump(now_ns);
    }

    /// Sends retransmissions and then new requests, as far as the node accepts them.
    fn pump(&mut self, now_ns: u64) {
        let from = self.config.address;
        let Some(node) = self.node.as_mut().filter(|node| !node.failed) else { return };
        node.resend(now_ns, from, &mut self.out, &mut self.counters);
        while let Some(slot) = self.ready.pop_front() {
            let (mut message, append) = match self.next_request(slot) {
                Ok(Some(next)) => next,
                Ok(None) => continue,
                Err(Full) => return self.ready.push_front(slot),
            };
            self.transform(&mut message, append);
            let is_last = self.ready.is_empty();
            let Some(node) = &mut self.node else { return };
            self.counters.to_node += u64::from(node.launch(now_ns, message, is_last, from, &mut self.out));
        }
    }

    /// Takes the next request of a client, if the node accepts the request now.
    fn next_request(&mut self, slot: u32) -> Result<Next, Full> {
        let window_bytes = self.config.limits.window_bytes;
        let (Some(client), Some(node)) = (self.clients[slot as usize].as_deref(), &self.node) else {
            return Ok(None);
        };
        let repetition = match client.repetitions.front() {
            Some(Repetition::Read(message)) => Some(message),
            _ => None,
        };
        let is_repetition = repetition.is_some();
        let Some(message) = repetition.or(client.waiting.front()) else {
            if let Some(client) = self.client(slot) {
                client.scheduled = false;
            }
            return Ok(None);
        };
        if message.has_response() && !node.takes_response(message, window_bytes) {
            self.response_waiters.push_back(slot);
            return Ok(None);
        }
        if !node.takes(message, window_bytes) {
            return Err(Full);
        }
        let append = match self.lock_of(message) {
            Some((key, true)) => {
                self.counters.cas_held += 1;
                if let Some(steering) = &mut self.steering {
                    steering.wait(&key, slot);
                }
                return Ok(None);
            }
            other => other.map(|(key, _)| key),
        };
        let Some(client) = self.client(slot) else { return Ok(None) };
        let message = if is_repetition {
            match client.repetitions.front_mut().map(|front| std::mem::replace(front, Repetition::ReadInFlight)) {
                Some(Repetition::Read(message)) => Some(message),
                _ => None,
            }
        } else {
            client.in_flight += 1;
            client.waiting.pop_front()
        };
        client.scheduled = !client.waiting.is_empty();
        if client.scheduled {
            self.ready.push_back(slot);
        }
        Ok(message.map(|message| (message, append)))
    }

    fn client(&mut self, slot: u32) -> Option<&mut Client> {
        self.clients.get_mut(slot as usize)?.as_deref_mut()
    }

    fn client_of(&self, qpn: Qpn) -> Option<u32> {
        let slot = (qpn.get() & ((1 << SLOT_BITS) - 1)).checked_sub(FIRST_PLACE)?;
        let client = self.clients.get(slot as usize)?.as_ref()?;
        (client.own_qpn == qpn).then_some(slot)
    }

    /// Marks a client to which the box may owe an answer.
    fn touch(&mut self, slot: u32) {
        if let Some(client) = self.clients[slot as usize].as_mut()
            && !std::mem::replace(&mut client.touched, true)
        {
            self.touched.push(slot);
        }
    }

    /// Puts a client that has a request for the node into the `ready` list.
    fn schedule(&mut self, slot: u32) {
        if let Some(client) = self.clients[slot as usize].as_mut()
            && !std::mem::replace(&mut client.scheduled, true)
        {
            self.ready.push_back(slot);
        }
    }

    /// Returns a queue pair number that contains this index, and differs from the latest numbers with the same index.
    fn number(&mut self, place: u32) -> Qpn {
        self.generation = self.generation.wrapping_add(1);
        Qpn::new((self.generation % 255 + 1) << SLOT_BITS | place)
    }

    fn new_node_side(&mut self) {
        self.next_node_side = (self.number(NODE_PLACE), Psn::new(self.random() as u32));
    }

    fn random(&mut self) -> u64 {
        split_mix(&mut self.random)
    }

    fn buffer(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.extend_from_slice(bytes);
        buffer
    }

    /// Releases the buffer of a message that was answered or given up.
    fn release(&mut self, message: Message) {
        self.held_bytes -= message.held;
        let mut buffer = message.bytes;
        if self.spare.len() < SPARE_BUFFERS && buffer.capacity() <= SPARE_BYTES {
            buffer.clear();
            self.spare.push(buffer);
        }
    }
}

/// Error: the node accepts no further request of any client now.
struct Full;

/// A client's next request, and the key to whose chain the request appends a node. `None` if the client has no request
/// for the node, or if its request must wait.
type Next = Option<(Message, Option<Key>)>;

/// Returns the client that sent the message, if the client is still connected.
fn owner<'a>(clients: &'a mut [Option<Box<Client>>], message: &Message) -> Option<&'a mut Client> {
    let client = clients.get_mut(message.slot as usize)?.as_deref_mut()?;
    (client.own_qpn == message.qpn).then_some(client)
}
