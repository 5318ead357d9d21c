//! Workloads in which each message has an answer.

use std::collections::VecDeque;

use doorbell_exchange::asynchronous::{Async, Waiter, yield_now};
use doorbell_exchange::{ConnectionError, MessageConnection, Received};
use doorbell_verbs::Device;
use hdrhistogram::Histogram;

use super::buffers::{Receiver, Source};
use super::streams::close;
use super::{Pace, Plan, Progress, Reception, SendMemory, Tally};
use doorbell_record::{Buckets, Extent};

/// Slots of a window of requests, and the latencies of answered requests.
struct Slots {
    /// Times from which the latencies of unanswered requests count, oldest first.
    unanswered: VecDeque<u64>,
    /// Times at which the idle slots have thought, earliest first. Replies arrive in order, so their slots follow in
    /// order too.
    idle: VecDeque<u64>,
    think_ns: u64,
    /// Time from which the latency of the next request counts, once the connection has refused that request.
    refused_since_ns: Option<u64>,
    histogram: Histogram<u64>,
}

impl Slots {
    /// Makes the slots of a plan that begins at `began_ns`.
    fn new(plan: &Plan, began_ns: u64) -> Self {
        Self {
            unanswered: VecDeque::with_capacity(plan.window),
            idle: vec![began_ns; plan.window].into(),
            think_ns: if plan.rate.is_some() { 0 } else { plan.think_ns },
            refused_since_ns: None,
            histogram: Buckets::empty_histogram(),
        }
    }

    /// Returns the time until which the next slot thinks, or `None` if a slot is ready or all slots have requests.
    fn thinks_until_ns(&self, device: &Device) -> Option<u64> {
        let until_ns = *self.idle.front().filter(|_| self.think_ns > 0)?;
        (device.now_ns() < until_ns).then_some(until_ns)
    }

    /// Records that the connection has accepted a request.
    fn sent(&mut self, since_ns: u64) {
        self.refused_since_ns = None;
        self.idle.pop_front();
        self.unanswered.push_back(since_ns);
    }

    /// Records that the `count` oldest requests were answered by now.
    fn answered(&mut self, count: usize, device: &Device) {
        if count == 0 {
            return;
        }
        let now_ns = device.now_ns();
        for since_ns in self.unanswered.drain(..count.min(self.unanswered.len())) {
            // The histogram grows automatically, so recording a value cannot fail.
            let _ = self.histogram.record(now_ns.saturating_sub(since_ns));
            self.idle.push_back(now_ns.saturating_add(self.think_ns));
        }
    }
}

/// Runs the asking side: sends requests by a plan, with at most [`Plan::window`] unanswered requests. The histogram
/// records the time of each request until its reply was received. Without a rate, the time begins when the connection
/// was first asked to send the request (closed loop). With a rate, it begins when the request was due, even if the
/// request was sent later (open loop).
///
/// # Errors
///
/// The connection ended before every request was answered and both sides had closed.
pub async fn request<C: MessageConnection, W: Waiter + Clone>(
    connection: C,
    waiter: W,
    device: Device,
    plan: Plan,
    memory: SendMemory,
    progress: Progress<'_>,
) -> Result<(Tally, Histogram<u64>), ConnectionError> {
    let mut connection = Async::new(connection, waiter.clone());
    let mut receiver = Receiver::new(&device, Reception { verify: plan.verify, pause_ns: 0 });
    let window = plan.window as u64;
    let mut pace = Pace::start(&device, &plan).delayed(memory.phase);
    let mut slots = Slots::new(&plan, pace.began_ns());
    let mut source = Source::new(plan, memory);
    let mut tally = Tally { first_ns: pace.began_ns(), began_ns: pace.began_ns(), ..Tally::default() };
    let mut is_answering = false;
    loop {
        let left = pace.left(source.sent);
        let unanswered = source.sent - tally.received;
        if left == 0 && unanswered == 0 {
            break;
        }
        is_answering = plan.in_rounds && (unanswered == window || is_answering && unanswered > 0);
        let early_until_ns = pace.early_until_ns(source.sent).or_else(|| slots.thinks_until_ns(&device));
        let early_until_ns = early_until_ns.filter(|_| left > 0);
        if left > 0 && unanswered < window && !is_answering && early_until_ns.is_none() {
            let due_ns = slots.refused_since_ns.or_else(|| pace.due_ns(source.sent));
            let since_ns = due_ns.unwrap_or_else(|| device.now_ns());
            if source.offer(connection.get_mut())? {
                slots.sent(since_ns);
                waiter.breathe().await;
                continue;
            }
            slots.refused_since_ns = Some(since_ns);
        }
        if early_until_ns.is_some() {
            connection.get_mut().flush()?; // post deferred requests
        }
        let moved = connection.get_mut().poll()?;
        let taken = receiver.take_all(connection.get_mut(), &waiter, &mut tally).await;
        slots.answered(taken, &device);
        if moved || taken > 0 {
            progress(tally.received);
            yield_now().await;
        } else if early_until_ns.is_some() {
            waiter.wait(None, early_until_ns).await;
        } else {
            connection.progress().await?;
        }
    }
    tally.ended_ns = device.now_ns();
    source.close(&mut tally);
    close(&mut connection, &waiter, &mut receiver, &mut tally, progress).await?;
    Ok((tally, slots.histogram))
}

/// Runs the answering side: answers each message with one of [`Plan::bytes`].
///
/// # Errors
///
/// The connection ended before both sides had closed.
pub async fn respond<C: MessageConnection, W: Waiter + Clone>(
    connection: C,
    waiter: W,
    device: Device,
    plan: Plan,
    memory: SendMemory,
    reception: Reception,
) -> Result<Tally, ConnectionError> {
    let mut connection = Async::new(connection, waiter.clone());
    let mut source = Source::new(plan, memory);
    let mut receiver = Receiver::new(&device, reception);
    let mut tally = Tally::default();
    loop {
        let message = match connection.get_mut().take() {
            Some(message) => message,
            None => {
                connection.get_mut().flush()?;
                yield_now().await; // let other connections run, even if messages keep arriving on this connection
                match connection.receive().await {
                    Ok(message) => message,
                    Err(ConnectionError::PeerClosed) => break,
                    Err(error) => return Err(error),
                }
            }
        };
        source.size_reply(message.len());
        receiver.receive(message, &mut tally);
        if receiver.is_slow() {
            yield_now().await;
        }
        while !source.offer(connection.get_mut())? {
            connection.progress().await?;
        }
        waiter.breathe().await;
    }
    source.close(&mut tally);
    connection.close().await?;
    tally.close(connection.get());
    Ok(tally)
}

/// Number of rounds before the measured ones.
pub(crate) const WARM_UP_ROUNDS: u64 = 200;

/// Rounds of a ping-pong. Rounds after the first [`WARM_UP_ROUNDS`] are measured.
pub(crate) struct Rounds {
    device: Device,
    plan: Plan,
    divisor: u64,
    /// Number of rounds so far, warm-up included.
    count: u64,
    ends_ns: u64,
    /// Time at which the last round ended.
    last_ns: u64,
    pub(crate) tally: Tally,
    pub(crate) histogram: Histogram<u64>,
}

impl Rounds {
    /// Starts to count rounds. The histogram records the time of each round divided by `divisor`. At a rate, `phase` is
    /// the delay of the first round, as a share of the time from one round to the next.
    pub(crate) fn new(device: &Device, plan: Plan, divisor: u64, phase: f64) -> Self {
        let histogram = Buckets::empty_histogram();
        let (device, mut tally) = (device.clone(), Tally::default());
        if let Some(rate) = plan.rate {
            tally.first_ns = device.now_ns().saturating_add((phase * 1e9 / rate) as u64);
        }
        Self { device, plan, divisor, count: 0, ends_ns: u64::MAX, last_ns: 0, tally, histogram }
    }

    /// Begins a round and returns the time from which its latency counts: now, or with a rate the time at which the
    /// round was due.
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
        self.due_ns().map_or(now_ns, |due_ns| due_ns.min(now_ns))
    }

    /// Returns the time at which the next round is due, or `None` if no rate is set. After its delay, the first round
    /// was due when it began.
    fn due_ns(&self) -> Option<u64> {
        Some(self.tally.first_ns.saturating_add((self.count as f64 * 1e9 / self.plan.rate?) as u64))
    }

    /// Ends a round and records its time. Returns `true` if this round was the last.
    pub(crate) fn end(&mut self, began_ns: u64, progress: Progress<'_>) -> bool {
        let now_ns = self.device.now_ns();
        let is_last = self.count_one(now_ns);
        if let Some(measured @ 1..) = self.count.checked_sub(WARM_UP_ROUNDS) {
            // The histogram grows automatically, so recording a value cannot fail.
            let _ = self.histogram.record((now_ns - began_ns) / self.divisor);
            if measured.is_multiple_of(1024) {
                progress(measured);
            }
        }
        is_last
    }

    /// Ends a round without an answer, and records no time. Returns `true` if this round was the last.
    pub(crate) fn lost(&mut self) -> bool {
        let now_ns = self.device.now_ns();
        self.count_one(now_ns)
    }

    fn count_one(&mut self, now_ns: u64) -> bool {
        self.count += 1;
        self.last_ns = now_ns;
        self.tally.sent = self.count;
        let Some(measured @ 1..) = self.count.checked_sub(WARM_UP_ROUNDS) else { return false };
        self.tally.ended_ns = now_ns;
        now_ns >= self.ends_ns || matches!(self.plan.extent, Extent::Messages(messages) if measured >= messages)
    }

    /// Returns the time at which the next round begins, or `None` if that round may begin at once. A round begins when
    /// it is due, or without a rate after the think time. The first round has no think time.
    pub(crate) fn early_until_ns(&self) -> Option<u64> {
        let thinks = self.plan.think_ns > 0 && self.count > 0;
        let thought_ns = || thinks.then(|| self.last_ns.saturating_add(self.plan.think_ns));
        let due_ns = self.due_ns().or_else(thought_ns)?;
        (self.device.now_ns() < due_ns).then_some(due_ns)
    }
}

/// Runs the measuring side of a ping-pong. The histogram records each round trip divided by `divisor`. [`respond`] is
/// the other side.
///
/// # Errors
///
/// The connection ended before the last round was over and both sides had closed.
pub async fn ping<C: MessageConnection, W: Waiter + Clone>(
    connection: C,
    waiter: W,
    device: Device,
    plan: Plan,
    memory: SendMemory,
    divisor: u64,
    progress: Progress<'_>,
) -> Result<(Tally, Histogram<u64>), ConnectionError> {
    let mut connection = Async::new(connection, waiter.clone());
    let mut receiver = Receiver::new(&device, Reception { verify: plan.verify, pause_ns: 0 });
    let mut rounds = Rounds::new(&device, plan, divisor, memory.phase);
    let mut source = Source::new(plan, memory);
    loop {
        while let Some(until_ns) = rounds.early_until_ns() {
            connection.get_mut().poll()?;
            waiter.wait(None, Some(until_ns)).await;
        }
        source.fill(connection.get()); // filling the buffer is not part of the timed round
        let began_ns = rounds.begin();
        while !source.offer(connection.get_mut())? {
            connection.progress().await?;
        }
        connection.get_mut().flush()?;
        let answer = connection.receive().await?;
        let is_last = rounds.end(began_ns, progress);
        receiver.receive(answer, &mut rounds.tally);
        waiter.breathe().await;
        if is_last {
            break;
        }
    }
    let Rounds { mut tally, histogram, .. } = rounds;
    source.close(&mut tally);
    close(&mut connection, &waiter, &mut receiver, &mut tally, progress).await?;
    Ok((tally, histogram))
}
