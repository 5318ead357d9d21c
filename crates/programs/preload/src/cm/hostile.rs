//! Tests with bare sockets as peers that send any messages in any order. The process must not panic, wait forever or
//! use ever more memory. Its other connections must continue undisturbed.

use std::io::{Read as _, Write as _};
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use doorbell_ibverbs_sys as c;
use doorbell_verbs::{QKey, Qpn};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use socket2::Socket;

use super::connect::{rdma_accept, rdma_connect, rdma_disconnect, rdma_listen, rdma_reject};
use super::id::{Id, rdma_create_id, rdma_destroy_id};
use super::message::{Endpoint, Host, LOOKUP_PRIVATE, LOOKUP_REPLY_PRIVATE, Message, REJECT_PRIVATE, REPLY_PRIVATE};
use super::object::object;
use super::qp::{rdma_create_qp, rdma_destroy_qp};
use super::resolve::{rdma_bind_addr, rdma_get_src_port, rdma_resolve_addr, rdma_resolve_route};
use super::testing::{BareListener, Rng, Transport, rdma_destroy_event_channel};
use super::testing::{local, message, rdma_ack_cm_event, rdma_create_event_channel, rdma_get_cm_event};
use super::{line, service};

/// Number of peers per test and transport.
const PEERS: u64 = 150;

/// Maximum number of events that one connection may cause, whatever its peer does.
const MOST_EVENTS: usize = 6;

const PATIENCE: Duration = Duration::from_secs(60);

/// A program that handles each event in a random way.
struct Program {
    channel: *mut c::rdma_event_channel,
    /// Ids that were created for requests.
    ids: Vec<*mut c::rdma_cm_id>,
    events: usize,
}

fn bare_param() -> c::rdma_conn_param {
    c::rdma_conn_param { qp_num: 1, ..c::rdma_conn_param::default() }
}

fn create_qp(id: *mut c::rdma_cm_id) {
    let cap = c::ibv_qp_cap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let mut init = c::ibv_qp_init_attr { cap, qp_type: c::IBV_QPT_RC, ..c::ibv_qp_init_attr::default() };
    // SAFETY: the id exists.
    assert_eq!(unsafe { rdma_create_qp(id, ptr::null_mut(), &raw mut init) }, 0);
}

fn destroy(id: *mut c::rdma_cm_id) {
    // SAFETY: no code uses the id any more.
    unsafe {
        rdma_destroy_qp(id);
        assert_eq!(rdma_destroy_id(id), 0);
    }
}

impl Program {
    /// Creates a program with a non-blocking channel.
    fn new() -> Self {
        let channel = rdma_create_event_channel();
        // SAFETY: the channel was just created.
        let fd = unsafe { BorrowedFd::borrow_raw((*channel).fd) };
        fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        Self { channel, ids: Vec::new(), events: 0 }
    }

    fn id(&self) -> *mut c::rdma_cm_id {
        let mut id = ptr::null_mut();
        // SAFETY: the channel exists.
        assert_eq!(unsafe { rdma_create_id(self.channel, &raw mut id, ptr::null_mut(), c::RDMA_PS_TCP) }, 0);
        id
    }

    fn listener(&self, transport: Transport) -> (*mut c::rdma_cm_id, u16) {
        let id = self.id();
        transport.select(id);
        // SAFETY: the id exists.
        unsafe {
            assert_eq!(rdma_bind_addr(id, transport.address().as_ptr().cast_mut().cast()), 0);
            assert_eq!(rdma_listen(id, 0), 0);
            (id, u16::from_be(rdma_get_src_port(id)))
        }
    }

    /// Returns the kind and the id of the next event.
    fn next(&mut self) -> Option<(c::rdma_cm_event_type, *mut c::rdma_cm_id)> {
        let mut event = ptr::null_mut();
        // SAFETY: the channel exists. The event exists until it is acknowledged.
        unsafe {
            if rdma_get_cm_event(self.channel, &raw mut event) != 0 {
                return None;
            }
            let seen = ((*event).event, (*event).id);
            assert_eq!(rdma_ack_cm_event(event), 0);
            self.events += 1;
            Some(seen)
        }
    }

    fn expect(&mut self, kind: c::rdma_cm_event_type) -> *mut c::rdma_cm_id {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some((seen, id)) = self.next() {
                assert_eq!(seen, kind);
                return id;
            }
            assert!(Instant::now() < until, "event {kind} has not arrived");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Handles all queued events. Answers each request in a random way.
    fn handle(&mut self, rng: &mut Rng) {
        while let Some((kind, id)) = self.next() {
            if kind != c::RDMA_CM_EVENT_CONNECT_REQUEST {
                continue;
            }
            let (mut param, way) = (bare_param(), rng.below(5));
            // SAFETY: the id was just created. The peer of the id may have left already.
            unsafe {
                match way {
                    0 => drop(rdma_accept(id, &raw mut param)),
                    1 => drop(rdma_reject(id, ptr::null(), 0)),
                    2 => {
                        destroy(id);
                        continue;
                    }
                    3 => {
                        create_qp(id);
                        rdma_accept(id, ptr::null_mut());
                    }
                    _ => {}
                }
            }
            self.ids.push(id);
        }
    }

    fn destroy_ids(&mut self) {
        self.ids.drain(..).for_each(destroy);
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: no id reports to the channel any more.
        unsafe { rdma_destroy_event_channel(self.channel) }
    }
}

/// Returns a random message, which may be invalid in the current phase.
fn any_message(rng: &mut Rng) -> Message {
    let Message::Request { endpoint, .. } = message() else { unreachable!("it is a request") };
    let endpoint = Endpoint { initiator_depth: rng.next() as u8, responder_resources: rng.next() as u8, ..endpoint };
    let mut private = |most: usize| vec![7; rng.below(most as u64 + 1) as usize];
    let (reply, reject) = (private(REPLY_PRIVATE), private(REJECT_PRIVATE));
    let (asked, found) = (private(LOOKUP_PRIVATE), private(LOOKUP_REPLY_PRIVATE));
    match rng.below(10) {
        0 | 1 => message(),
        8 => {
            let host = Host::of((std::net::Ipv4Addr::LOCALHOST, 0).into());
            Message::Addresses { source: host, destination: host }
        }
        2 => Message::Reply { endpoint, private: reply },
        3 => Message::ReadyToUse,
        4 => Message::Reject { reason: 1 + rng.below(60) as u16, private: reject },
        5 => Message::DisconnectRequest,
        6 => Message::DisconnectReply,
        7 => Message::Lookup { private: asked },
        _ => {
            let (qpn, qkey) = (Qpn::new(rng.below(1 << 24) as u32), QKey::new(rng.next() as u32));
            Message::LookupReply { status: rng.below(3) as u8, gid: endpoint.gid, qpn, qkey, private: found }
        }
    }
}

/// Sends a random number of random messages, and then closes the connection. Calls `between` after each step, so that
/// the program can act.
fn misbehave(mut stream: Socket, first: Option<Message>, rng: &mut Rng, mut between: impl FnMut(&mut Rng)) {
    stream.set_nonblocking(true).unwrap();
    let mut heard = Vec::new();
    let mut said = first.map(|first| first.emit()).unwrap_or_default();
    let mut next = said.clone();
    for _ in 0..rng.below(12) {
        // The hostile peer ignores errors. So it continues for a while after the program has closed the connection.
        let at = rng.below(next.len() as u64 + 1) as usize;
        let _ = stream.write(&next[..at]);
        between(rng);
        let _ = stream.write(&next[at..]);
        said.extend(&next);
        between(rng);
        let mut bytes = [0; 256];
        if let Ok(count) = stream.read(&mut bytes) {
            heard.extend(&bytes[..count]);
        }
        next = match rng.below(12) {
            0 => heard.clone(), // all bytes received so far
            1 => said.clone(),  // all bytes sent so far
            2 => (0..rng.below(600)).map(|_| rng.next() as u8).collect(),
            3 => {
                let mut bytes = any_message(rng).emit();
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << rng.below(8);
                bytes
            }
            4 => [any_message(rng), any_message(rng), any_message(rng)].iter().flat_map(Message::emit).collect(),
            _ => any_message(rng).emit(),
        };
        said.truncate(4096);
        if rng.below(4) == 0 {
            std::thread::sleep(Duration::from_millis(1)); // let the service thread run
        }
    }
    match rng.below(3) {
        0 => drop(stream.shutdown(std::net::Shutdown::Write)),
        1 => drop(stream.set_linger(Some(Duration::ZERO))), // closing resets the connection
        _ => {}
    }
    between(rng);
}

/// Two connected ids of this process. They must get no event.
struct Bystanders {
    passive: Program,
    active: Program,
    ends: [*mut c::rdma_cm_id; 3],
}

impl Bystanders {
    fn new() -> Self {
        let (mut passive, mut active) = (Program::new(), Program::new());
        let (listener, port) = passive.listener(Transport::Unix);
        let client = resolved(&mut active, port, Transport::Unix);
        create_qp(client);
        // SAFETY: the ids exist.
        unsafe {
            assert_eq!(rdma_connect(client, ptr::null_mut()), 0);
            let server = passive.expect(c::RDMA_CM_EVENT_CONNECT_REQUEST);
            create_qp(server);
            assert_eq!(rdma_accept(server, ptr::null_mut()), 0);
            active.expect(c::RDMA_CM_EVENT_ESTABLISHED);
            passive.expect(c::RDMA_CM_EVENT_ESTABLISHED);
            Self { passive, active, ends: [client, server, listener] }
        }
    }

    fn end(mut self) {
        assert_eq!(
            (self.passive.next(), self.active.next()),
            (None, None),
            "the connection of the bystanders got an event"
        );
        let [client, server, listener] = self.ends;
        // SAFETY: the ids exist.
        unsafe {
            assert_eq!(((*(*client).qp).state, (*(*server).qp).state), (c::IBV_QPS_RTS, c::IBV_QPS_RTS));
            assert_eq!(rdma_disconnect(client), 0);
        }
        self.active.expect(c::RDMA_CM_EVENT_DISCONNECTED);
        self.passive.expect(c::RDMA_CM_EVENT_DISCONNECTED);
        [client, server, listener].into_iter().for_each(destroy);
    }
}

fn resolved(program: &mut Program, port: u16, transport: Transport) -> *mut c::rdma_cm_id {
    let id = program.id();
    // SAFETY: the id exists.
    unsafe {
        assert_eq!(rdma_resolve_addr(id, ptr::null_mut(), local(port).as_ptr().cast_mut().cast(), 1000), 0);
        program.expect(c::RDMA_CM_EVENT_ADDR_RESOLVED);
        assert_eq!(rdma_resolve_route(id, 1000), 0);
        program.expect(c::RDMA_CM_EVENT_ROUTE_RESOLVED);
    }
    transport.select(id);
    id
}

fn seed() -> u64 {
    let seed = std::env::var("DOORBELL_SEED").ok().map_or(1, |text| text.parse().expect("a number"));
    eprintln!("DOORBELL_SEED={seed}");
    seed
}

#[test]
fn a_listener_survives_any_messages_of_peers() {
    Transport::BOTH.into_iter().for_each(a_listener_survives);
}

fn a_listener_survives(transport: Transport) {
    let mut rng = Rng::new(seed());
    let bystanders = Bystanders::new();
    let mut program = Program::new();
    let (listener, port) = program.listener(transport);
    for peer in 0..PEERS {
        let stream = transport.call(port);
        let first = (rng.below(4) > 0).then(message);
        misbehave(stream, first, &mut rng, |rng| program.handle(rng));
        // Events of earlier peers may arrive late, so the limit covers all peers so far.
        let most = (peer as usize + 1) * MOST_EVENTS;
        assert!(program.events <= most, "{} events of {} peers", program.events, peer + 1);
        if rng.below(4) > 0 {
            program.destroy_ids();
        }
    }
    program.destroy_ids();
    // Wait until only this test and the listener hold references to the listener's `line`. Each accepted connection
    // holds a reference until its connection request has arrived.
    // SAFETY: the listener exists.
    let line = Arc::clone(&unsafe { object::<Id>(listener) }.unwrap().line);
    let until = Instant::now() + line::ARRIVAL + PATIENCE;
    while Arc::strong_count(&line) > 3 {
        assert!(Instant::now() < until, "{} references to the listener are left", Arc::strong_count(&line));
        program.handle(&mut rng);
        program.destroy_ids();
        std::thread::sleep(Duration::from_millis(10));
    }
    // The listener must still serve clients.
    let mut active = Program::new();
    let client = resolved(&mut active, port, transport);
    // SAFETY: the ids exist.
    unsafe {
        assert_eq!(rdma_connect(client, &mut bare_param()), 0);
        let until = Instant::now() + PATIENCE;
        let answer = loop {
            // Requests of the bare peers may arrive before the client's request, so reject all requests.
            if let Some((c::RDMA_CM_EVENT_CONNECT_REQUEST, server)) = program.next() {
                rdma_reject(server, ptr::null(), 0);
                program.ids.push(server);
            }
            if let Some((answer, _)) = active.next() {
                break answer;
            }
            assert!(Instant::now() < until, "the listener has not served the client");
        };
        assert_eq!(answer, c::RDMA_CM_EVENT_REJECTED);
        program.destroy_ids();
        [client, listener].into_iter().for_each(destroy);
    }
    drop(line);
    bystanders.end();
    assert_eq!(service::panics(), 0, "the service thread panicked");
}

#[test]
fn a_client_survives_any_messages_of_a_listener() {
    Transport::BOTH.into_iter().for_each(a_client_survives);
}

fn a_client_survives(transport: Transport) {
    let mut rng = Rng::new(seed());
    let bystanders = Bystanders::new();
    let bare = BareListener::new(transport);
    let mut program = Program::new();
    for peer in 0..PEERS {
        let client = resolved(&mut program, bare.port, transport);
        let before = program.events;
        let (with_qp, mut param) = (rng.below(2) == 0, bare_param());
        if with_qp {
            create_qp(client);
        }
        // SAFETY: the id exists.
        assert_eq!(unsafe { rdma_connect(client, if with_qp { ptr::null_mut() } else { &raw mut param }) }, 0);
        let stream = bare.accept();
        let first = (rng.below(4) > 0).then(|| {
            let Message::Request { endpoint, .. } = message() else { unreachable!("it is a request") };
            Message::Reply { endpoint, private: Vec::new() }
        });
        misbehave(stream, first, &mut rng, |rng| {
            program.handle(rng);
            if rng.below(8) == 0 {
                // SAFETY: the id exists. Without a connection, the call fails.
                unsafe { rdma_disconnect(client) };
            }
        });
        assert!(program.events - before <= MOST_EVENTS, "peer {peer}: {} events", program.events - before);
        destroy(client);
        assert_eq!(program.next(), None, "the destroyed id has an event");
    }
    bystanders.end();
    assert_eq!(service::panics(), 0, "the service thread panicked");
}
