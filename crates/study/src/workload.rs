//! The workloads, written once: they run wherever there are connections.

use doorbell_exchange::asynchronous::{Async, Waiter, yield_now};
use doorbell_exchange::direct_read::Replication;
use doorbell_exchange::send_receive::{self, Hub, Key};
use doorbell_exchange::{Backpressure, ConnectionError, MessageConnection, Received, Submit};
use doorbell_verbs::{Device, Region};
use hdrhistogram::Histogram;

use crate::parameters::Extent;
use crate::payload;
use crate::record::Buckets;

/// What one side of one connection sends.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Bytes per message.
    pub bytes: usize,
    /// Messages unacknowledged at most, requests not answered.
    pub window: usize,
    /// How much.
    pub extent: Extent,
    /// Messages per second, if not as many as go.
    pub rate: Option<f64>,
    /// Payloads are made to be checked.
    pub verify: bool,
    /// Buffers, one stride apart, that messages are sent from in turn.
    pub buffers: usize,
}

/// The memory that a plan sends from.
#[derive(Clone, Debug)]
pub struct SendMemory {
    /// Registered.
    pub region: Region,
    /// From one buffer to the next.
    pub stride: usize,
}

/// What one side of one connection has done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Messages sent and acknowledged.
    pub sent: u64,
    /// Messages received.
    pub received: u64,
    /// Of those, damaged.
    pub damaged: u64,
    /// When the first message was sent, of those that only warm up.
    pub first_ns: u64,
    /// When the first message that counts was sent.
    pub began_ns: u64,
    /// When the last one was acknowledged.
    pub ended_ns: u64,
    /// Times that a sender found no credit.
    pub stalled_on_credits: u64,
    /// Messages that asked whether the peer lives.
    pub keepalives: u64,
    /// Messages that carried no data.
    pub control_sends: u64,
}

impl Tally {
    /// Takes over what a connection has counted itself, at its end.
    fn close(&mut self, connection: &impl MessageConnection) {
        self.keepalives = connection.keepalives();
        self.control_sends = connection.control_sends();
    }
}

/// How a receiver treats messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reception {
    /// Payloads are checked.
    pub verify: bool,
    /// Pause before a message is freed.
    pub pause_ns: u64,
}

/// How much, how long and how fast: a plan at work.
///
/// Its clock is read now and then: reading it costs as much as sending a small message.
pub(crate) struct Pace {
    device: Device,
    began_ns: u64,
    most: u64,
    ends_ns: u64,
    countdown: u32,
    interval_ns: Option<f64>,
}

impl Pace {
    pub(crate) fn start(device: &Device, plan: &Plan) -> Self {
        let began_ns = device.now_ns();
        let (most, ends_ns) = match plan.extent {
            Extent::Messages(messages) => (messages, u64::MAX),
            Extent::Seconds(seconds) => (u64::MAX, began_ns.saturating_add((seconds * 1e9) as u64)),
        };
        let interval_ns = plan.rate.map(|rate| 1e9 / rate);
        Self { device: device.clone(), began_ns, most, ends_ns, countdown: 0, interval_ns }
    }

    pub(crate) fn began_ns(&self) -> u64 {
        self.began_ns
    }

    /// Messages that may be sent when so many were.
    pub(crate) fn left(&mut self, sent: u64) -> u64 {
        if self.ends_ns < u64::MAX {
            if self.countdown > 0 {
                self.countdown -= 1;
            } else if self.device.now_ns() >= self.ends_ns {
                self.most = sent;
            } else {
                self.countdown = 15;
            }
        }
        self.most - sent
    }

    /// Is the next message ahead of its time? An offered rate is not made up for by bursts.
    pub(crate) fn is_early(&self, sent: u64) -> bool {
        self.interval_ns.is_some_and(|interval| (self.device.now_ns() - self.began_ns) as f64 <= sent as f64 * interval)
    }
}

/// Messages of a plan, one after the other.
struct Source {
    plan: Plan,
    memory: SendMemory,
    slot: usize,
    is_filled: bool,
    sent: u64,
    stalled_on_credits: u64,
    scratch: Vec<u8>,
}

impl Source {
    fn new(plan: Plan, memory: SendMemory) -> Self {
        let scratch = vec![0; if plan.verify { plan.bytes } else { 0 }];
        Self { plan, memory, slot: 0, is_filled: false, sent: 0, stalled_on_credits: 0, scratch }
    }

    fn offset(&self) -> usize {
        self.slot * self.memory.stride
    }

    /// Writes the payload of the next message, if it is to be checked and its buffer is free.
    fn fill(&mut self, connection: &impl MessageConnection) {
        // There is one buffer for each message of the window.
        if connection.unacknowledged() < self.plan.window as u64 {
            self.write();
        }
    }

    /// The same, where its buffer is known to be free.
    fn write(&mut self) {
        if self.plan.verify && !self.is_filled {
            payload::fill(self.sent, &mut self.scratch);
            self.memory.region.copy_in(self.offset(), &self.scratch);
            self.is_filled = true;
        }
    }

    /// Sends the next message, if the connection takes it.
    fn offer(&mut self, connection: &mut impl MessageConnection) -> Result<bool, ConnectionError> {
        self.fill(connection);
        let submit = connection.send_from(&self.memory.region, self.offset(), self.plan.bytes)?;
        Ok(self.note(submit))
    }

    /// Was the message taken? Then the next one is next.
    fn note(&mut self, submit: Submit) -> bool {
        if let Submit::Full(why) = submit {
            self.stalled_on_credits += u64::from(why == Backpressure::Credits);
            return false;
        }
        self.is_filled = false;
        self.sent += 1;
        self.slot = if self.slot + 1 == self.plan.buffers { 0 } else { self.slot + 1 };
        true
    }

    /// Tells what was sent.
    fn close(&self, tally: &mut Tally) {
        tally.sent = self.sent;
        tally.stalled_on_credits = self.stalled_on_credits;
    }
}

/// The side that receives, at work.
struct Ear<'a> {
    device: &'a Device,
    reception: Reception,
    scratch: Vec<u8>,
}

impl<'a> Ear<'a> {
    fn new(device: &'a Device, reception: Reception) -> Self {
        Self { device, reception, scratch: Vec::new() }
    }

    /// It pauses, so that all messages that have arrived would take long.
    fn is_slow(&self) -> bool {
        self.reception.pause_ns > 0
    }

    /// Takes the messages that have arrived, or one of them if that takes long.
    fn take_all(&mut self, connection: &mut impl MessageConnection, tally: &mut Tally) -> usize {
        let mut count = 0;
        while let Some(message) = connection.take() {
            self.hear(message, tally);
            count += 1;
            if self.is_slow() {
                break;
            }
        }
        count
    }

    /// Takes the messages that have arrived. Others have their turn after each that takes long, and then.
    async fn take_in_turns(&mut self, connection: &mut impl MessageConnection, tally: &mut Tally) -> usize {
        let mut count = 0;
        loop {
            let taken = self.take_all(connection, tally);
            count += taken;
            yield_now().await;
            if taken == 0 || !self.is_slow() {
                return count;
            }
        }
    }

    /// Does with a message what a receiver does.
    fn hear(&mut self, message: impl Received, tally: &mut Tally) {
        if self.reception.verify {
            self.scratch.resize(message.len(), 0);
            message.copy_to(&mut self.scratch);
            tally.damaged += u64::from(!payload::is_intact(tally.received, &self.scratch));
        }
        if self.reception.pause_ns > 0 {
            let until_ns = self.device.now_ns() + self.reception.pause_ns;
            while self.device.now_ns() < until_ns {
                std::hint::spin_loop();
            }
        }
        tally.received += 1;
    }
}

/// Sends by a plan (if there is one) and receives what comes, until both sides have closed.
pub async fn stream<C: MessageConnection, W: Waiter>(
    connection: C,
    waiter: W,
    device: Device,
    plan: Option<(Plan, SendMemory)>,
    reception: Reception,
    progress: impl Fn(u64),
) -> Result<Tally, ConnectionError> {
    let mut connection = Async::new(connection, waiter);
    let mut tally = Tally { began_ns: device.now_ns(), ..Tally::default() };
    let mut ear = Ear::new(&device, reception);
    if let Some((plan, memory)) = plan {
        send_all(&mut connection, &device, plan, memory, &mut ear, &mut tally, &progress).await?;
    }
    close(&mut connection, &mut ear, &mut tally, &progress).await?;
    Ok(tally)
}

/// Receives what comes on all connections of a hub, until every peer has closed: one tally each.
pub async fn gather<W: Waiter>(
    mut hub: Hub,
    waiter: W,
    device: Device,
    reception: Reception,
) -> Result<Vec<Tally>, ConnectionError> {
    let mut keys: Vec<Key> = hub.keys().collect();
    keys.sort_unstable();
    let mut tallies = vec![Tally::default(); keys.len()];
    keys.iter().filter_map(|&key| hub.get_mut(key).map(send_receive::Connection::close)).count();
    let mut ear = Ear::new(&device, reception);
    loop {
        let mut moved = hub.poll().map_err(ConnectionError::Overrun)?;
        while let Some((key, message)) = hub.take() {
            if let Ok(index) = keys.binary_search(&key) {
                ear.hear(message, &mut tallies[index]);
            }
            if ear.is_slow() {
                moved = true;
                break;
            }
        }
        if let Some((_, error)) = hub.next_ended() {
            return Err(error);
        }
        if moved {
            yield_now().await;
            continue;
        }
        let is_over = |connection: &send_receive::Connection| connection.is_peer_closed() && connection.is_closed();
        if keys.iter().all(|&key| hub.get(key).is_none_or(is_over)) {
            break;
        }
        waiter.wait(None, None).await;
    }
    for (key, tally) in keys.into_iter().zip(&mut tallies) {
        if let Some(connection) = hub.get(key) {
            tally.close(connection);
        }
    }
    Ok(tallies)
}

/// Closes this side, and receives until the peer has closed its own.
async fn close<C: MessageConnection, W: Waiter>(
    connection: &mut Async<W, C>,
    ear: &mut Ear<'_>,
    tally: &mut Tally,
    progress: &impl Fn(u64),
) -> Result<(), ConnectionError> {
    connection.get_mut().close();
    while !(connection.get().is_peer_closed() && connection.get().is_closed()) {
        connection.progress().await?;
        if ear.take_in_turns(connection.get_mut(), tally).await > 0 {
            progress(tally.received);
        }
    }
    while ear.take_in_turns(connection.get_mut(), tally).await > 0 {}
    tally.close(connection.get());
    Ok(())
}

async fn send_all<C: MessageConnection, W: Waiter>(
    connection: &mut Async<W, C>,
    device: &Device,
    plan: Plan,
    memory: SendMemory,
    ear: &mut Ear<'_>,
    tally: &mut Tally,
    progress: &impl Fn(u64),
) -> Result<(), ConnectionError> {
    let mut pace = Pace::start(device, &plan);
    let mut source = Source::new(plan, memory);
    (tally.first_ns, tally.began_ns) = (pace.began_ns(), pace.began_ns());
    while pace.left(source.sent) > 0 {
        let is_early = pace.is_early(source.sent);
        if is_early {
            connection.get_mut().flush()?; // what waits for its time is posted
        } else if source.offer(connection.get_mut())? {
            continue;
        }
        let moved = connection.get_mut().poll()?;
        let taken = ear.take_all(connection.get_mut(), tally);
        if moved || taken > 0 {
            progress(source.sent);
            yield_now().await;
        } else if is_early {
            yield_now().await;
        } else {
            connection.progress().await?;
        }
    }
    connection.get_mut().flush()?;
    while connection.get().last_done() < source.sent {
        connection.progress().await?;
        ear.take_in_turns(connection.get_mut(), tally).await;
    }
    tally.ended_ns = device.now_ns();
    source.close(tally);
    Ok(())
}

/// The side that asks: keeps a window of requests without answer, by a plan.
pub async fn request<C: MessageConnection, W: Waiter>(
    connection: C,
    waiter: W,
    device: Device,
    plan: Plan,
    memory: SendMemory,
    progress: impl Fn(u64),
) -> Result<Tally, ConnectionError> {
    let mut connection = Async::new(connection, waiter);
    let mut ear = Ear::new(&device, Reception { verify: plan.verify, pause_ns: 0 });
    let window = plan.window as u64;
    let mut pace = Pace::start(&device, &plan);
    let mut source = Source::new(plan, memory);
    let mut tally = Tally { first_ns: pace.began_ns(), began_ns: pace.began_ns(), ..Tally::default() };
    loop {
        let left = pace.left(source.sent);
        let unanswered = source.sent - tally.received;
        if left == 0 && unanswered == 0 {
            break;
        }
        let is_early = pace.is_early(source.sent);
        if left > 0 && unanswered < window && !is_early && source.offer(connection.get_mut())? {
            continue;
        }
        let moved = connection.get_mut().poll()?;
        let taken = ear.take_all(connection.get_mut(), &mut tally);
        if moved || taken > 0 {
            progress(tally.received);
            yield_now().await;
        } else if is_early && left > 0 {
            yield_now().await;
        } else {
            connection.progress().await?;
        }
    }
    tally.ended_ns = device.now_ns();
    source.close(&mut tally);
    close(&mut connection, &mut ear, &mut tally, &progress).await?;
    Ok(tally)
}

/// The side that answers each message with one of the same size.
pub async fn respond<C: MessageConnection, W: Waiter>(
    connection: C,
    waiter: W,
    device: Device,
    plan: Plan,
    memory: SendMemory,
    reception: Reception,
) -> Result<Tally, ConnectionError> {
    let mut connection = Async::new(connection, waiter);
    let mut source = Source::new(plan, memory);
    let mut ear = Ear::new(&device, reception);
    let mut tally = Tally::default();
    loop {
        let message = match connection.get_mut().take() {
            Some(message) => message,
            None => {
                connection.get_mut().flush()?;
                yield_now().await; // however much comes in here, other connections have their turn
                match connection.receive().await {
                    Ok(message) => message,
                    Err(ConnectionError::PeerClosed) => break,
                    Err(error) => return Err(error),
                }
            }
        };
        ear.hear(message, &mut tally);
        if ear.is_slow() {
            yield_now().await;
        }
        while !source.offer(connection.get_mut())? {
            connection.progress().await?;
        }
    }
    source.close(&mut tally);
    connection.close().await?;
    tally.close(connection.get());
    Ok(tally)
}

/// One source for many readers: publishes by a plan to all of them, from one memory. One tally each.
pub async fn publish<W: Waiter>(
    mut readers: Replication,
    count: usize,
    waiter: W,
    device: Device,
    (plan, memory): (Plan, SendMemory),
    progress: impl Fn(u64),
) -> Result<Vec<Tally>, ConnectionError> {
    let mut pace = Pace::start(&device, &plan);
    let mut source = Source::new(plan, memory);
    let mut waits_for_last = false;
    while !waits_for_last || readers.last_done() < source.sent {
        waits_for_last = pace.left(source.sent) == 0;
        if !waits_for_last && !pace.is_early(source.sent) {
            // There is one buffer for each message of the window.
            if source.sent - readers.last_done() < plan.window as u64 {
                source.write();
                let submit = readers.publish(&source.memory.region, source.offset(), plan.bytes)?;
                if source.note(submit) {
                    continue;
                }
            }
        }
        let moved = readers.poll();
        if let Some((_, error, _)) = readers.next_ended() {
            return Err(error);
        }
        if moved {
            progress(source.sent);
            yield_now().await;
        } else {
            waiter.wait(None, None).await;
        }
    }
    let mut tally = Tally { first_ns: pace.began_ns(), began_ns: pace.began_ns(), ..Tally::default() };
    tally.ended_ns = device.now_ns();
    source.close(&mut tally);
    let mut tallies = vec![tally; count];
    for (number, tally) in tallies.iter_mut().enumerate() {
        let Some(connection) = readers.connection_mut(number) else { continue };
        connection.close();
        while !(connection.is_closed() && connection.is_peer_closed()) {
            if !connection.poll()? {
                waiter.wait(None, None).await;
            }
        }
        tally.close(connection);
    }
    Ok(tallies)
}

/// Rounds that are not measured.
pub const WARM_UP_ROUNDS: u64 = 200;

/// Rounds of which each is measured, after some that are not.
pub(crate) struct Rounds {
    device: Device,
    plan: Plan,
    divisor: u64,
    /// All so far.
    count: u64,
    ends_ns: u64,
    pub(crate) tally: Tally,
    pub(crate) histogram: Histogram<u64>,
}

impl Rounds {
    /// What is recorded is the time of each round by `divisor`.
    pub(crate) fn new(device: &Device, plan: Plan, divisor: u64) -> Self {
        let histogram = Buckets::empty_histogram();
        Self { device: device.clone(), plan, divisor, count: 0, ends_ns: u64::MAX, tally: Tally::default(), histogram }
    }

    /// A round begins now.
    pub(crate) fn begin(&mut self) -> u64 {
        let now_ns = self.device.now_ns();
        if self.count == 0 {
            self.tally.first_ns = now_ns;
        }
        if self.count == WARM_UP_ROUNDS {
            self.tally.began_ns = now_ns;
            if let Extent::Seconds(seconds) = self.plan.extent {
                self.ends_ns = now_ns.saturating_add((seconds * 1e9) as u64);
            }
        }
        now_ns
    }

    /// The round is over. True if it was the last.
    pub(crate) fn end(&mut self, began_ns: u64, progress: &impl Fn(u64)) -> bool {
        let now_ns = self.device.now_ns();
        self.count += 1;
        self.tally.sent = self.count;
        let Some(measured @ 1..) = self.count.checked_sub(WARM_UP_ROUNDS) else { return false };
        // It grows by itself, so there is nothing that it cannot record.
        let _ = self.histogram.record((now_ns - began_ns) / self.divisor);
        if measured.is_multiple_of(1024) {
            progress(measured);
        }
        self.tally.ended_ns = now_ns;
        now_ns >= self.ends_ns || matches!(self.plan.extent, Extent::Messages(messages) if measured >= messages)
    }

    /// Is it too early for the round after the one that began then?
    pub(crate) fn is_early(&self, began_ns: u64) -> bool {
        self.plan.rate.is_some_and(|rate| self.device.now_ns() < began_ns.saturating_add((1e9 / rate) as u64))
    }
}

/// The side of a ping-pong that measures: each round trip by `divisor`. [`respond`] is the other.
pub async fn ping<C: MessageConnection, W: Waiter>(
    connection: C,
    waiter: W,
    device: Device,
    plan: Plan,
    memory: SendMemory,
    divisor: u64,
    progress: impl Fn(u64),
) -> Result<(Tally, Histogram<u64>), ConnectionError> {
    let mut connection = Async::new(connection, waiter);
    let mut ear = Ear::new(&device, Reception { verify: plan.verify, pause_ns: 0 });
    let mut rounds = Rounds::new(&device, plan, divisor);
    let mut source = Source::new(plan, memory);
    loop {
        source.fill(connection.get()); // which is not part of the round
        let began_ns = rounds.begin();
        while !source.offer(connection.get_mut())? {
            connection.progress().await?;
        }
        connection.get_mut().flush()?;
        let answer = connection.receive().await?;
        let is_last = rounds.end(began_ns, &progress);
        ear.hear(answer, &mut rounds.tally);
        if is_last {
            break;
        }
        while rounds.is_early(began_ns) {
            connection.get_mut().poll()?;
            yield_now().await;
        }
    }
    let Rounds { mut tally, histogram, .. } = rounds;
    source.close(&mut tally);
    close(&mut connection, &mut ear, &mut tally, &progress).await?;
    Ok((tally, histogram))
}
