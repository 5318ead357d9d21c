//! Host with clients. Each client of a store has its own thread, while all queue pairs to bare memory share one thread.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use doorbell_exchange::asynchronous::yield_now;
use doorbell_exchange::setup::RemoteRegion;
use doorbell_farmem::assembly::{Body, ClientParty, Message, Party, Plan};
use doorbell_farmem::workload::{self, HostTally, Load, Tally};
use doorbell_farmem::{ClientDescription, ClientOptions, HostCache};
use doorbell_verbs::Device;

use super::super::SessionError;
use super::super::messages::{ClientsDone, Duties, FromServer, Seat, ToServer};
use super::super::peer::{Peer, Presence, Watch};
use super::control::{Began, Control, hear, hear_start, plan, say};
use crate::executor::{Idle, block_on, run_while};
use crate::far::{Shape, run_pairs, words};
use crate::one_sided::RemoteMemory;
use doorbell_machine::pinning::Pinning;
use doorbell_record::{FarPoint, StorePoint};

/// Seed of the clients' operations. A point on one machine uses the same seed.
const SEED: u64 = 1;

/// Time after which other clients assume that the holder of a lock has died, in nanoseconds. On a busy machine, a
/// thread may be delayed for less than this time.
const LEASE_NS: u64 = 2_000_000_000;

/// Interval at which the host checks whether its clients have ended or the peer is gone.
const LOOK: Duration = Duration::from_millis(1);

/// Messages of a client, and whether the client is connected.
type Sent = (Vec<Message>, bool);

/// Runs the clients of this host until the peer ends the session.
pub(super) fn be(
    device: &Device,
    peer: &mut Control,
    point: &FarPoint,
    (duties, pinning): (&Duties, &Pinning),
) -> Result<(), SessionError> {
    if duties.memory || duties.metadata || duties.middlebox {
        return Err(SessionError::Unexpected("clients on a host with other parties".to_owned()));
    }
    let began = match point.store() {
        Some(store) => clients(device, peer, store, (&duties.clients, pinning))?,
        None => {
            let _pinned = pinning.pin(0);
            queue_pairs(device, peer, point, &duties.clients)?
        }
    };
    loop {
        match hear(peer)? {
            ToServer::Done { .. } => say(peer, FromServer::Report(Box::new(began.report(Some(device)))))?,
            ToServer::End => return Ok(()),
            other => return Err(other.instead_of("the end of a point")),
        }
    }
}

/// Sends the messages of this host's clients. Unless all clients are connected, returns the messages to them.
fn carry(peer: &mut Control, messages: Vec<Message>, are_ready: bool) -> Result<Vec<Message>, SessionError> {
    say(peer, FromServer::Carried { messages, are_ready })?;
    match are_ready {
        true => Ok(Vec::new()),
        false => match hear(peer)? {
            ToServer::Carry(messages) => Ok(messages),
            other => Err(other.instead_of("messages for clients")),
        },
    }
}

/// Runs queue pairs to bare memory.
fn queue_pairs(device: &Device, peer: &mut Control, point: &FarPoint, seats: &[Seat]) -> Result<Began, SessionError> {
    let count = seats.len();
    let Shape { slots, bytes, mtu, memory_bytes } =
        Shape::of(point).filter(|shape| shape.slots.len() == count).ok_or_else(|| {
            SessionError::Unexpected(format!("a request for {count} queue pairs, but the point has another number"))
        })?;
    let pd = device.create_pd()?;
    let pairs: Vec<_> =
        slots.iter().map(|&slots| words::Pair::new(&pd, slots, bytes, mtu)).collect::<Result<_, _>>()?;
    let enter = |(seat, pair): (&Seat, &words::Pair)| {
        let body = Body::Enter(ClientDescription { lane: pair.description(), calls: None });
        Message { from: Party::Client(seat.number), to: Party::Memory(0), body }
    };
    let mut messages: Vec<Message> = seats.iter().zip(&pairs).map(enter).collect();
    let (mut pending, mut region) = ((0..count).collect::<BTreeSet<usize>>(), RemoteRegion::NONE);
    while !pending.is_empty() {
        for message in carry(peer, std::mem::take(&mut messages), false)? {
            let index = seats.iter().position(|seat| Party::Client(seat.number) == message.to);
            let (Some(index), Body::Entered(ends)) = (index.filter(|index| pending.remove(index)), &message.body)
            else {
                return Err(SessionError::Unexpected(format!("{} for {}", message.body.name(), message.to)));
            };
            pairs[index].connect(&ends.lane)?;
            region = ends.lane.regions[0];
        }
    }
    carry(peer, Vec::new(), true)?;
    let start_ns = hear_start(peer, device)?;
    let began = Began::now(Some(device));
    while device.now_ns() < start_ns {
        std::thread::yield_now();
    }
    let memory = RemoteMemory { address: region.address, rkey: region.rkey.get(), bytes: region.length };
    if memory.bytes < memory_bytes as u64 {
        return Err(SessionError::Unexpected(format!(
            "{} B of memory: must be at least {memory_bytes} B",
            memory.bytes
        )));
    }
    let asked = {
        let watch = Watch { look: &|| peer.look(), device, is_to_be_silent: true, rounds_are_long: false };
        let broke = |error| SessionError::Connection { bytes, error };
        block_on(peer.watched(async { run_pairs(&pairs, memory, point, watch.check(), broke) }))?
    };
    say(peer, FromServer::Asked(Box::new(asked)))?;
    Ok(began)
}

/// Handle to a client's thread, for the thread that exchanges messages with the peer.
struct Client<'scope> {
    number: u32,
    sent: Receiver<Sent>,
    deliver: Sender<Vec<Message>>,
    start: Sender<u64>,
    thread: ScopedJoinHandle<'scope, Result<Tally, String>>,
}

/// Options and state that all clients of a host share.
struct Conditions<'a> {
    device: &'a Device,
    load: Load,
    plan: Plan,
    options: ClientOptions,
    is_over: AtomicBool,
}

/// Runs clients of a store.
fn clients(
    device: &Device,
    peer: &mut Control,
    store: &StorePoint,
    (seats, pinning): (&[Seat], &Pinning),
) -> Result<Began, SessionError> {
    // Let clients complete the operations that have begun, so that all clients can disconnect properly.
    let load = Load { drains: true, ..store.load() };
    let options = ClientOptions {
        outstanding: load.outstanding,
        seed: SEED,
        lease_ns: LEASE_NS,
        shortcut_delay_ns: store.shortcut_delay_ns(),
        ..ClientOptions::default()
    };
    let shared = Conditions { device, load, plan: plan(store), options, is_over: AtomicBool::new(false) };
    let mut caches: BTreeMap<usize, Arc<HostCache>> = BTreeMap::new();
    for seat in seats {
        caches.entry(seat.place).or_insert_with(|| {
            let cache = HostCache::new(4 * load.keys as usize);
            cache.fill(load.keys, load.value_bytes);
            Arc::new(cache)
        });
    }
    std::thread::scope(|scope| {
        let mut clients = Vec::new();
        for (index, seat) in seats.iter().enumerate() {
            let ((sending, sent), (deliver, delivered), (start, starts)) = (channel(), channel(), channel());
            let (shared, number, cache) = (&shared, seat.number, Arc::clone(&caches[&seat.place]));
            let run = move || {
                let _pinned = pinning.pin(index);
                let result = client(shared, number, &cache, (&sending, &delivered), &starts);
                if result.is_err() {
                    shared.is_over.store(true, Ordering::Release);
                }
                result
            };
            let thread = std::thread::Builder::new().name(format!("client {number}"));
            let thread = thread.spawn_scoped(scope, run).map_err(|error| SessionError::StoreClient {
                number,
                why: format!("the client's thread cannot be started: {error}"),
            })?;
            clients.push(Client { number, sent, deliver, start, thread });
        }
        let conducted = conduct(&shared, peer, &clients);
        if conducted.is_err() {
            shared.is_over.store(true, Ordering::Release);
        }
        // A client that has received no start signal ends when its channels are dropped.
        let ended: Vec<_> = clients
            .into_iter()
            .map(|Client { number, thread, deliver, start, .. }| {
                drop((deliver, start));
                let tally = thread.join().unwrap_or_else(|_| Err("the client's thread panicked".to_owned()));
                tally.map_err(|why| SessionError::StoreClient { number, why })
            })
            .collect();
        let stopped = |error: &SessionError| matches!(error, SessionError::StoreClient { why, .. } if why == STOPPED);
        let mut errors: Vec<SessionError> = Vec::new();
        let mut tallies: Vec<Tally> = Vec::new();
        for one in ended {
            match one {
                Ok(tally) => tallies.push(tally),
                Err(error) => errors.push(error),
            }
        }
        // Report the first error that is not merely the consequence of another client's error.
        let first = errors.iter().position(|error| !stopped(error));
        match (first, conducted) {
            (Some(first), _) => Err(errors.swap_remove(first)),
            (None, Err(error)) => Err(error),
            (None, Ok(began)) => {
                say(peer, FromServer::Stored(Box::new(ClientsDone::from(HostTally::of(&tallies)))))?;
                Ok(began)
            }
        }
    })
}

/// Leads clients through set-up. Returns when all clients have ended or the peer is gone.
fn conduct(shared: &Conditions<'_>, peer: &mut Control, clients: &[Client<'_>]) -> Result<Began, SessionError> {
    let lost = |client: &Client<'_>| SessionError::StoreClient { number: client.number, why: STOPPED.to_owned() };
    let mut pending: Vec<&Client<'_>> = clients.iter().collect();
    while !pending.is_empty() {
        let mut messages = Vec::new();
        let mut left = Vec::new();
        for client in pending {
            let (sent, is_connected) = client.sent.recv().map_err(|_| lost(client))?;
            messages.extend(sent);
            left.extend((!is_connected).then_some(client));
        }
        pending = left;
        let mut delivered: BTreeMap<Party, Vec<Message>> = BTreeMap::new();
        for message in carry(peer, messages, pending.is_empty())? {
            delivered.entry(message.to).or_default().push(message);
        }
        for client in &pending {
            let messages = delivered.remove(&Party::Client(client.number)).unwrap_or_default();
            client.deliver.send(messages).map_err(|_| lost(client))?;
        }
    }
    let start_ns = hear_start(peer, shared.device)?;
    let began = Began::now(Some(shared.device));
    clients.iter().try_for_each(|client| client.start.send(start_ns).map_err(|_| lost(client)))?;
    let watching = async {
        while !clients.iter().all(|client| client.thread.is_finished()) {
            if peer.look()? == Presence::Spoke {
                return Err(SessionError::Unexpected("something while a point ran".to_owned()));
            }
            pause();
        }
        Ok(())
    };
    block_on(peer.watched(watching))?;
    Ok(began)
}

#[expect(clippy::disallowed_methods, reason = "the threads of clients run in real time")]
fn pause() {
    std::thread::sleep(LOOK);
}

/// Error of a client that ended because another client or the peer failed.
const STOPPED: &str = "stopped because of another failure";

/// Runs one client, from the creation of its ends to its disconnect.
fn client(
    shared: &Conditions<'_>,
    number: u32,
    cache: &Arc<HostCache>,
    (sending, delivered): (&Sender<Sent>, &Receiver<Vec<Message>>),
    starts: &Receiver<u64>,
) -> Result<Tally, String> {
    fn sentence(error: impl std::fmt::Display) -> String {
        error.to_string()
    }
    let stopped = |_| STOPPED.to_owned();
    let Conditions { device, load, plan, options, is_over } = shared;
    let pd = device.create_pd().map_err(sentence)?;
    let mut party = ClientParty::new(&pd, plan, number, options.clone()).map_err(sentence)?;
    while !party.is_ready() {
        let messages = std::iter::from_fn(|| party.next_message()).collect();
        sending.send((messages, false)).map_err(|_| STOPPED.to_owned())?;
        let delivered = delivered.recv().map_err(stopped)?;
        delivered.into_iter().try_for_each(|message| party.receive(message)).map_err(sentence)?;
    }
    let mut client = party.connect(cache).map_err(sentence)?;
    sending.send((Vec::new(), true)).map_err(|_| STOPPED.to_owned())?;
    let start_ns = starts.recv().map_err(stopped)?;
    let idle = Idle::spin();
    let task = async {
        while device.now_ns() < start_ns {
            std::thread::yield_now();
            yield_now().await;
        }
        let of = (number.into(), SEED);
        let tally = workload::drive(&mut client, device, load, of, &idle, &mut ()).await;
        if tally.is_ok() {
            workload::close(client, &idle).await;
        }
        tally
    };
    let check = || if is_over.load(Ordering::Acquire) { Err(()) } else { Ok(()) };
    let ended = run_while(&idle, [task], check).map_err(|()| STOPPED.to_owned())?;
    ended.into_iter().next().ok_or("the client has no result")?.map_err(sentence)
}
