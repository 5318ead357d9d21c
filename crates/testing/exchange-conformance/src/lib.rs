//! One suite of functions with the requirements for every protocol and variant. The suite runs on the devices of a
//! provider, and [`exchange_suite!`] generates the tests.
//!
//! `DOORBELL_MESSAGES` sets the number of messages of the long case and of the case with packet loss (default 20,000).
//! A smaller number also shortens the cases with messages in both directions and with uneven ends.

#![allow(missing_docs, clippy::missing_panics_doc, reason = "cases have the names of what they check")]

mod cases;
pub mod direct_read;
pub mod grants;
pub mod known_failures;
mod tests_of_a_provider;

pub use cases::{Case, cases, run};

use std::any::Any;
use std::sync::OnceLock;
use std::time::Duration;

use doorbell_exchange::direct_read::{DirectRead, Fence};
use doorbell_exchange::shared_write::SharedWrite;
use doorbell_exchange::{
    Backpressure, Config, ConnectError, ConnectionError, Connector, MessageConnection, Outcome, Received, Replication,
    Submit,
};
use doorbell_protocols::End;
use doorbell_verbs::{Access, Channel, Device, MemoryKind, Pd, Region};

/// Functions that open the devices on which the suite runs.
#[derive(Clone, Copy, Debug)]
pub struct Provider {
    /// Whether devices still make progress while all threads of the program sleep in the kernel.
    pub works_while_callers_sleep: bool,
    /// Opens a device that can reach the other opened devices.
    pub device: fn() -> Device,
    /// Opens two devices between which packets are lost; `None` if the set-up does not support packet loss.
    pub lossy: fn() -> Option<[Device; 2]>,
}

static PROVIDER: OnceLock<Provider> = OnceLock::new();

/// Sets the provider of this process. Only the first call has an effect.
pub fn set_provider(provider: Provider) {
    let _ = PROVIDER.set(provider);
}

fn provider() -> &'static Provider {
    PROVIDER.get().expect("each test sets the provider first")
}

fn device() -> Device {
    (provider().device)()
}

type Pair<P> = (<P as Connector>::Connection, <P as Connector>::Connection);

fn join<P: Connector>(
    protocol: &P,
    devices: [&Device; 2],
    configs: [&Config; 2],
    channel: Option<&Channel>,
) -> Pair<P> {
    let end =
        |device: &Device, config, channel| protocol.endpoint(&device.create_pd().unwrap(), config, channel).unwrap();
    let (a, b) = (end(devices[0], configs[0], None), end(devices[1], configs[1], channel));
    let (of_a, of_b) = (protocol.describe(&a), protocol.describe(&b));
    (protocol.connect(a, &of_b).unwrap(), protocol.connect(b, &of_a).unwrap())
}

fn pair<P: Connector>(protocol: &P, config: &Config) -> Pair<P> {
    join(protocol, [&device(), &device()], [config, config], None)
}

fn payload(id: u64, length: usize) -> Vec<u8> {
    (0..length).map(|at| (id as usize * 131 + at * 7 + (at >> 8)) as u8).collect()
}

fn long() -> u64 {
    std::env::var("DOORBELL_MESSAGES").ok().map_or(20_000, |text| text.parse().expect("a number of messages"))
}

/// Returns `most`, or the number of messages of the long case if that is smaller.
fn at_most(most: u64) -> u64 {
    most.min(long())
}

/// Message lengths around every boundary: padding, inline data, path MTU, page, and the longest message.
const LENGTHS: [usize; 21] =
    [0, 1, 2, 3, 4, 5, 63, 64, 65, 255, 256, 257, 1023, 1024, 1025, 4095, 4096, 4097, 8192, 8193, 10_000];

/// One direction of a conversation: counts of sent and received messages, and the messages that the program holds.
struct Direction<M> {
    salt: u64,
    sent: u64,
    received: u64,
    held: Vec<M>,
    /// Whether a message that the program holds for long blocks later messages. If so, the program frees all held
    /// messages from time to time, in any order. Otherwise it holds some messages for long.
    blocks: bool,
}

impl<M: Received> Direction<M> {
    fn new(salt: u64, blocks: bool) -> Self {
        Self { salt, sent: 0, received: 0, held: Vec::new(), blocks }
    }

    fn length(&self, number: u64, lengths: &[usize]) -> usize {
        lengths[(number.wrapping_mul(7).wrapping_add(self.salt) % lengths.len() as u64) as usize]
    }

    fn send<C: MessageConnection>(
        &mut self,
        connection: &mut C,
        messages: u64,
        lengths: &[usize],
    ) -> Result<(), ConnectionError> {
        if self.sent < messages {
            let message = payload(self.sent + self.salt, self.length(self.sent, lengths));
            if let Submit::Accepted(id) = connection.send(&message)? {
                self.sent += 1;
                assert_eq!(id, self.sent, "ids do not rise by one");
            }
        }
        connection.poll()?;
        Ok(())
    }

    /// Receives messages, and frees held messages in any order until at most `hold` messages remain.
    fn receive<C: MessageConnection<Message = M>>(
        &mut self,
        connection: &mut C,
        hold: usize,
        lengths: &[usize],
    ) -> Result<(), ConnectionError> {
        while let Some(message) = connection.receive()? {
            let expected = payload(self.received + self.salt, self.length(self.received, lengths));
            assert!(message.to_vec() == expected, "message {}", self.received);
            self.received += 1;
            self.held.push(message);
            let keep = if self.blocks && self.held.len() > hold { 0 } else { hold };
            while self.held.len() > keep {
                self.held.swap_remove((self.received as usize * 13) % self.held.len());
            }
        }
        Ok(())
    }
}

fn converse<P: Connector>(protocol: &P, pair: &mut Pair<P>, messages: [u64; 2], hold: usize, lengths: &[usize]) {
    let stood = converse_until_it_stands(protocol, pair, messages, hold, lengths).unwrap();
    assert_eq!(stood, None, "no progress");
}

/// Exchanges messages in both directions. If progress stops, returns the number of messages that arrived in each
/// direction.
fn converse_until_it_stands<P: Connector>(
    protocol: &P,
    (a, b): &mut Pair<P>,
    messages: [u64; 2],
    hold: usize,
    lengths: &[usize],
) -> Result<Option<[u64; 2]>, ConnectionError> {
    let blocks = protocol.protocol().properties().slow_message_blocks;
    let (mut there, mut back) = (Direction::new(1, blocks), Direction::new(2, blocks));
    let (clock, mut still) = (a.qp().pd().device().clone(), Still::default());
    while there.received < messages[0] || back.received < messages[1] {
        there.send(a, messages[0], lengths)?;
        back.send(b, messages[1], lengths)?;
        there.receive(b, hold, lengths)?;
        back.receive(a, hold, lengths)?;
        if still.for_long(clock.now_ns(), [there.sent, there.received, back.sent, back.received]) {
            return Ok(Some([there.received, back.received]));
        }
    }
    while a.last_done() < messages[0] || b.last_done() < messages[1] {
        a.poll()?;
        b.poll()?;
        if still.for_long(clock.now_ns(), [a.last_done(), b.last_done(), 0, 0]) {
            return Ok(Some([there.received, back.received]));
        }
    }
    assert_eq!(a.outcome(messages[0]), Outcome::Done);
    assert_eq!((a.unacknowledged(), b.unacknowledged()), (0, 0));
    Ok(None)
}

/// Detects when counts no longer change.
#[derive(Default)]
struct Still {
    counts: [u64; 4],
    looked_ns: u64,
    still_ns: u64,
}

impl Still {
    /// Returns whether the counts stayed the same for much longer than all retries take. A long pause between two calls
    /// counts only little, since other processes may use the processor.
    fn for_long(&mut self, now_ns: u64, counts: [u64; 4]) -> bool {
        let since_ns = (now_ns - self.looked_ns).min(10_000_000);
        let moved = std::mem::replace(&mut self.counts, counts) != counts;
        self.looked_ns = now_ns;
        self.still_ns = if moved { 0 } else { self.still_ns + since_ns };
        self.still_ns > 10_000_000_000
    }
}

fn no_rnr<P: Connector>((a, b): &Pair<P>) {
    for connection in [a, b] {
        // The kernel counts for devices of the machine, and its counters include all tests. So check only other
        // devices.
        if let Some(counters) = connection.qp().pd().device().counters() {
            assert_eq!((counters.rnr_nak_sent, counters.rnr_nak_received), (0, 0));
        }
    }
}

pub fn every_length_arrives_in_order_and_intact<P: Connector>(protocol: P) {
    for config in [Config::sequential(), Config::unbatched(), Config::batched()] {
        let config = config.max_message(10_000);
        let mut pair = pair(&protocol, &config);
        converse(&protocol, &mut pair, [10 * LENGTHS.len() as u64, 0], 20, &LENGTHS);
        no_rnr::<P>(&pair);
    }
}

pub fn both_directions_at_once<P: Connector>(protocol: P) {
    let messages = at_most(3000);
    // The program holds all buffers but one, so each side often has no credits.
    for depth in [1, 2, 5, 16] {
        let config = Config::default().window(8).batch(2).depth(depth).max_message(300);
        let mut pair = pair(&protocol, &config);
        converse(&protocol, &mut pair, [messages, messages * 2 / 3], depth - 1, &[0, 1, 64, 65, 300]);
        no_rnr::<P>(&pair);
    }
}

pub fn uneven_ends<P: Connector>(protocol: P) {
    let wide = Config::default().window(256).batch(8).depth(3).max_message(100);
    let narrow = Config::default().window(2).depth(512).max_message(5000);
    let mut pair = join(&protocol, [&device(), &device()], [&wide, &narrow], None);
    assert_eq!((pair.0.max_send(), pair.1.max_send()), (100, 100), "as long as both ends can");
    converse(&protocol, &mut pair, [at_most(2000); 2], 2, &[0, 33, 100]);
    no_rnr::<P>(&pair);
}

pub fn a_long_stream_wraps_every_index<P: Connector>(protocol: P) {
    let config = Config::default().window(64).batch(8).depth(100).max_message(64);
    let mut pair = pair(&protocol, &config);
    converse(&protocol, &mut pair, [long(), 0], 7, &[16, 0, 1, 64, 33]);
    no_rnr::<P>(&pair);
}

pub fn loss_is_not_seen<P: Connector + 'static>(protocol: P) {
    let Some(devices) = (provider().lossy)() else { return };
    let config = Config::default().max_message(10_000);
    let mut pair = join(&protocol, [&devices[0], &devices[1]], [&config, &config], None);
    let ended = converse_until_it_stands(&protocol, &mut pair, [long() / 2; 2], 10, &LENGTHS);
    if matches!(ended, Ok(None)) {
        return;
    }
    // Two departures of rdma_rxe are known. A retransmitted fenced request waits forever for later READs. An atomic
    // operation completes without its result if a retransmitted SEND or WRITE before it is acknowledged with the
    // sequence number of the atomic. `a_fence_waits_only_for_earlier_reads` and
    // `a_lost_result_of_an_atomic_is_sent_again` of the verbs suite show them.
    let any = &protocol as &dyn Any;
    let is_fenced = any.downcast_ref::<DirectRead>().is_some_and(|direct_read| direct_read.fence != Fence::Nothing);
    let is_known = match ended {
        Ok(_) => is_fenced,
        Err(error) => error == ConnectionError::NoResult && any.is::<SharedWrite>(),
    };
    assert!(is_known && devices[0].attributes().name.starts_with("rxe"), "{ended:?}");
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    println!("rdma_rxe of Linux {}: {ended:?}", kernel.trim());
}

pub fn a_stopped_receiver_causes_back_pressure<P: Connector>(protocol: P) {
    let config = Config::default().window(32).depth(16).max_message(64);
    let (mut a, mut b) = pair(&protocol, &config);
    let mut accepted = 0_u64;
    let mut refused = None;
    for _ in 0..20_000 {
        match a.send(b"hello").unwrap() {
            Submit::Accepted(id) => accepted = id,
            Submit::Full(why) => refused = Some(why),
        }
        a.poll().unwrap();
    }
    // A sender that writes into a ring of the peer may accept more messages than senders of other protocols.
    assert!(accepted <= 4096 / 16 && refused.is_some(), "{accepted} were accepted, {refused:?}");
    assert!(matches!(refused, Some(Backpressure::Window | Backpressure::Credits)));
    let mut received = 0;
    while received < accepted {
        received += u64::from(b.receive().unwrap().is_some());
        a.poll().unwrap();
    }
    while !matches!(a.send(b"again").unwrap(), Submit::Accepted(_)) {
        a.poll().unwrap();
        b.poll().unwrap();
    }
    no_rnr::<P>(&(a, b));
}

/// A replication sends each message from one memory to all readers, over each protocol that leaves the bytes after the
/// message alone.
pub fn readers_receive_messages_from_the_same_memory<P: Connector>(protocol: P) {
    const READERS: usize = 3;
    const MESSAGES: u64 = 40;
    let config = Config::default().window(4).depth(4).max_message(4096);
    let pd = device().create_pd().unwrap();
    let mut replication = Replication::new();
    let mut readers = Vec::new();
    for _ in 0..READERS {
        let own = protocol.endpoint(&pd, &config, None).unwrap();
        let reader = protocol.endpoint(&device().create_pd().unwrap(), &config, None).unwrap();
        let (of_own, of_reader) = (protocol.describe(&own), protocol.describe(&reader));
        readers.push(protocol.connect(reader, &of_own).unwrap());
        let added = replication.add(protocol.connect(own, &of_reader).unwrap());
        if protocol.bytes_behind() > 0 {
            assert!(matches!(added, Err(ConnectError::Unfit(_))), "readers share the byte after a message");
            return;
        }
        added.unwrap();
    }
    // Each message has its own part of the region, so the source need not wait for readers before it sends the next.
    let region = pd.allocate(MESSAGES as usize * 4096, protocol.source_access(), MemoryKind::Plain).unwrap();
    let mut published = 0;
    let mut received = [0; READERS];
    while received.iter().any(|count| *count < MESSAGES) || replication.last_done() < MESSAGES {
        let offset = published as usize * 4096;
        if published < MESSAGES {
            region.copy_in(offset, &payload(published, 4096));
            if let Submit::Accepted(number) = replication.publish(&region, offset, 4096).unwrap() {
                published += 1;
                assert_eq!(number, published);
            }
        }
        replication.poll();
        for (reader, count) in readers.iter_mut().zip(&mut received) {
            if let Some(message) = reader.receive().unwrap() {
                assert!(message.to_vec() == payload(*count, 4096), "message {count}");
                *count += 1;
            }
        }
    }
    assert_eq!(received, [MESSAGES; READERS]);
    assert_eq!(replication.next_ended(), None);
}

/// A sender that retries whenever a poll reports an event must never stall.
pub fn poll_reports_the_end_of_back_pressure<P: Connector>(protocol: P) {
    // Number of polls in a row without an event after which the test fails. Keepalives are off, so only messages cause
    // events on this connection.
    const PATIENCE: u64 = 3_000_000;
    let config = Config::default().window(32).depth(4).max_message(64);
    let config = config.keepalive(Duration::ZERO);
    let (mut a, mut b) = pair(&protocol, &config);
    let (mut sent, mut received, mut waited) = (0, 0, 0);
    while sent < 2000 {
        if waited == 0 && matches!(a.send(&payload(sent, 40)).unwrap(), Submit::Accepted(_)) {
            sent += 1;
            continue;
        }
        waited = if a.poll().unwrap() { 0 } else { waited + 1 };
        assert!(waited < PATIENCE, "no event reports new room after {sent} messages");
        received += u64::from(b.receive().unwrap().is_some());
    }
    assert!(received > 1000);
}

pub fn memory_of_the_program_is_sent_without_copying<P: Connector>(protocol: P) {
    let config = Config::default().window(4).send_buffers(0).depth(8).max_message(9000);
    let (mut a, mut b) = pair(&protocol, &config);
    let region = memory(a.qp().pd(), 9001);
    for number in 0..20 {
        let length = [9000, 0, 1, 4097][number as usize % 4];
        region.copy_in(0, &payload(number, length));
        let id = loop {
            match a.send_from(&region, 0, length).unwrap() {
                Submit::Accepted(id) => break id,
                // The sender has no room until it learns that the receiver has freed space.
                Submit::Full(_) => {
                    a.poll().unwrap();
                    b.poll().unwrap();
                }
            }
        };
        let message = loop {
            a.poll().unwrap();
            if let Some(message) = b.receive().unwrap() {
                break message;
            }
        };
        assert_eq!(message.to_vec(), payload(number, length));
        drop(message);
        while !a.is_done(id) {
            a.poll().unwrap();
            b.poll().unwrap();
        }
    }
}

fn memory(pd: &Pd, length: usize) -> Region {
    pd.allocate(length, Access::REMOTE_READ | Access::REMOTE_WRITE | Access::LOCAL_WRITE, MemoryKind::Plain).unwrap()
}

pub fn goodbye_and_death_are_distinguished<P: Connector>(protocol: P) {
    let config = Config::default().timeout_exponent(14).retry_count(2).keepalive(Duration::from_millis(20));
    let (mut a, mut b) = pair(&protocol, &config);
    assert!(matches!(a.send(b"last words").unwrap(), Submit::Accepted(_)));
    a.close();
    assert_eq!(a.send(b"more"), Err(ConnectionError::Closed));
    let mut heard = Vec::new();
    let end = loop {
        a.poll().unwrap();
        match b.receive() {
            Ok(message) => heard.extend(message.map(|message| message.to_vec())),
            Err(error) => break error,
        }
    };
    assert_eq!((heard, end), (vec![b"last words".to_vec()], ConnectionError::PeerClosed));
    // After the goodbye, the other direction still works.
    assert!(matches!(b.send(b"reply").unwrap(), Submit::Accepted(_)));
    b.close();
    while !(a.is_closed() && b.is_closed() && a.is_peer_closed()) {
        a.poll().unwrap();
        b.poll().unwrap();
    }
    assert_eq!(a.take().map(|message| message.to_vec()).as_deref(), Some(&b"reply"[..]));

    for is_holding in [false, true] {
        let (mut a, mut b) = pair(&protocol, &config);
        let mut held = None;
        let mut sent = 0;
        if is_holding {
            assert!(matches!(a.send(b"held").unwrap(), Submit::Accepted(1)));
            while a.last_done() == 0 || held.is_none() {
                a.poll().unwrap();
                b.poll().unwrap();
                held = held.or_else(|| b.take());
            }
            sent = 1;
        }
        assert_eq!(a.send(b"hello").unwrap(), Submit::Accepted(sent + 1));
        drop(b); // its device is dropped with it, unless the program holds a message
        let reason = loop {
            if let Err(error) = a.poll() {
                break error;
            }
        };
        assert!(matches!(reason, ConnectionError::PeerUnreachable(_)), "{reason:?}");
        // The message may or may not have arrived before the peer died. In both cases, its id has a final outcome.
        assert_ne!(a.outcome(sent + 1), Outcome::Pending);
        assert_eq!(a.send(b"more"), Err(reason));
        assert_eq!(held.map(|message| message.to_vec()).as_deref(), is_holding.then_some(&b"held"[..]));
    }
}

/// Idle peers send each other keepalives, so the connection stays open.
pub fn a_quiet_connection_lives<P: Connector>(protocol: P) {
    let config = Config::default().keepalive(Duration::from_millis(5)).max_message(64);
    let (mut a, mut b) = pair(&protocol, &config);
    let clock = a.qp().pd().device().clone();
    let start_ns = clock.now_ns();
    // A receiver that polls the memory of the peer gets answers from its READs, so it needs no keepalives.
    let asks_anyway = protocol.protocol().properties().passive == Some(End::Sender);
    while if asks_anyway { clock.now_ns() < start_ns + 50_000_000 } else { a.keepalives().min(b.keepalives()) < 3 } {
        a.poll().unwrap();
        b.poll().unwrap();
    }
    converse(&protocol, &mut (a, b), [10, 10], 0, &[40]);
}

/// A side can send its goodbye even if the peer sends without pause.
pub fn goodbye_is_sent_while_the_peer_sends<P: Connector>(protocol: P) {
    let config = Config::default().max_message(64);
    let (mut a, mut b) = pair(&protocol, &config);
    assert_eq!(a.send(b"last words").unwrap(), Submit::Accepted(1));
    a.close();
    let (mut sent, mut received) = (0, 0);
    while !b.is_peer_closed() {
        while let Submit::Accepted(_) = b.send(&payload(sent, 40)).unwrap() {
            sent += 1;
        }
        a.poll().unwrap();
        while let Some(message) = a.take() {
            assert!(message.to_vec() == payload(received, 40), "message {received}");
            received += 1;
        }
        b.poll().unwrap();
        assert!(sent < 20_000, "no goodbye while {received} messages arrived");
    }
    assert_eq!(b.take().map(|message| message.to_vec()).as_deref(), Some(&b"last words"[..]));
}

/// A side may exit once it has received the last goodbye. Its RNIC must have acknowledged this goodbye by then, since
/// it cannot answer a retransmission after the exit.
pub fn the_last_goodbye_is_acknowledged<P: Connector>(protocol: P) {
    for round in 0..20 {
        let config = Config::default().timeout_exponent(19).retry_count(0).max_message(64);
        let (mut a, mut b) = pair(&protocol, &config);
        b.close();
        while !(b.is_closed() && a.is_peer_closed()) {
            a.poll().unwrap();
            b.poll().unwrap();
        }
        a.close();
        while !b.is_peer_closed() {
            a.poll().unwrap();
            b.poll().unwrap();
        }
        let device = a.qp().pd().device().clone();
        drop(b);
        while !a.is_closed() {
            a.poll().unwrap();
        }
        if let Some(counters) = device.counters() {
            assert_eq!(counters.local_ack_timeout_err, 0, "in round {round}");
        }
    }
}

/// Each message wakes a sleeping receiver, if the protocol allows receivers to sleep. This must also hold with an
/// edge-triggered epoll, which does not report a channel again that stays readable.
pub fn a_sleeping_receiver_is_woken_for_each_message<P: Connector>(protocol: P)
where
    P::Connection: Send,
{
    use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
    let devices = [device(), device()];
    let channel = devices[1].create_channel().unwrap();
    let config = Config::default().window(4).depth(4).max_message(64);
    let (mut a, mut b) = join(&protocol, [&devices[0], &devices[1]], [&config, &config], Some(&channel));
    assert_eq!(b.notifies(), protocol.protocol().properties().receiver_sleeps);
    if !b.notifies() || !provider().works_while_callers_sleep {
        return;
    }
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
    epoll.add(&channel, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0)).unwrap();
    const MESSAGES: u64 = 300;
    // On a busy machine, each message may arrive before the receiver polls, so that the receiver never sleeps. So the
    // sender starts only when the receiver is about to sleep.
    let is_sleepy = std::sync::atomic::AtomicBool::new(false);
    let is_sleepy = &is_sleepy;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut sent = 0;
            while !is_sleepy.load(std::sync::atomic::Ordering::Relaxed) {
                std::thread::yield_now();
            }
            while sent < MESSAGES || a.last_done() < MESSAGES {
                if sent < MESSAGES && matches!(a.send(&sent.to_be_bytes()).unwrap(), Submit::Accepted(_)) {
                    sent += 1;
                }
                if !a.poll().unwrap() {
                    std::thread::yield_now();
                }
            }
        });
        let (mut received, mut idle_waits) = (0_u64, 0);
        while received < MESSAGES {
            b.arm();
            let mut any = b.poll().unwrap();
            while let Some(message) = b.take() {
                assert_eq!(message.to_vec(), received.to_be_bytes());
                received += 1;
                any = true;
            }
            if !any {
                is_sleepy.store(true, std::sync::atomic::Ordering::Relaxed);
                let ready = epoll.wait(&mut [EpollEvent::empty()], EpollTimeout::from(5000_u16)).unwrap();
                assert_eq!(ready, 1, "a message came without a notification after {received}");
                idle_waits += 1;
                while channel.next().is_some() {}
            }
        }
        assert!(idle_waits > 0);
        for _ in 0..100 {
            b.poll().unwrap(); // for messages to the peer
        }
        while b.poll().unwrap() {}
    });
}
