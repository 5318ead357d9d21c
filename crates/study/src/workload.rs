//! The workloads, written once: they run wherever there are connections.

use std::time::Duration;

use doorbell_exchange::ConnectionError;
use doorbell_exchange::asynchronous::{Async, Waiter, yield_now};
use doorbell_exchange::send_receive::{Connection, Submit};
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
    /// When the first message was sent.
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
    fn close(&mut self, connection: &Connection) {
        self.stalled_on_credits = connection.stalled_on_credits();
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

/// A clock that is read now and then: reading it costs as much as sending a small message.
struct Deadline {
    device: Device,
    ends_ns: Option<u64>,
    countdown: u32,
}

impl Deadline {
    fn new(device: Device, extent: Extent, now_ns: u64) -> Self {
        let ends_ns = match extent {
            Extent::Messages(_) => None,
            Extent::Seconds(seconds) => Some(now_ns + Duration::from_secs_f64(seconds).as_nanos() as u64),
        };
        Self { device, ends_ns, countdown: 0 }
    }

    fn is_over(&mut self) -> bool {
        let Some(ends_ns) = self.ends_ns else { return false };
        if self.countdown > 0 {
            self.countdown -= 1;
            return false;
        }
        self.countdown = 15;
        self.device.now_ns() >= ends_ns
    }
}

/// Sends by a plan (if there is one) and receives what comes, until both sides have closed.
pub async fn stream<W: Waiter>(
    connection: Connection,
    waiter: W,
    device: Device,
    plan: Option<(Plan, SendMemory)>,
    reception: Reception,
    progress: impl Fn(u64),
) -> Result<Tally, ConnectionError> {
    let mut connection = Async::new(connection, waiter);
    let mut tally = Tally { began_ns: device.now_ns(), ..Tally::default() };
    if let Some((plan, memory)) = plan {
        send_all(&mut connection, &device, plan, memory, reception, &mut tally, &progress).await?;
    }
    connection.get_mut().close();
    while !(connection.get().is_peer_closed() && connection.get().is_closed()) {
        connection.progress().await?;
        if take_all(connection.get_mut(), &device, reception, &mut tally) > 0 {
            progress(tally.received);
        }
        yield_now().await; // however much comes in here, other connections have their turn
    }
    while take_all(connection.get_mut(), &device, reception, &mut tally) > 0 {}
    tally.close(connection.get());
    Ok(tally)
}

async fn send_all<W: Waiter>(
    connection: &mut Async<W>,
    device: &Device,
    plan: Plan,
    memory: SendMemory,
    reception: Reception,
    tally: &mut Tally,
    progress: &impl Fn(u64),
) -> Result<(), ConnectionError> {
    let mut deadline = Deadline::new(device.clone(), plan.extent, tally.began_ns);
    let most = match plan.extent {
        Extent::Messages(messages) => messages,
        Extent::Seconds(_) => u64::MAX,
    };
    let interval_ns = plan.rate.map(|rate| 1e9 / rate);
    let mut scratch = vec![0; if plan.verify { plan.bytes } else { 0 }];
    let mut slot = 0;
    let mut sent = 0;
    while sent < most && !deadline.is_over() {
        let is_early =
            interval_ns.is_some_and(|interval| (device.now_ns() - tally.began_ns) as f64 <= sent as f64 * interval);
        if is_early {
            // An offered rate is not made up for by bursts: what waits for its time is posted.
            connection.get_mut().flush()?;
        } else {
            let offset = slot * memory.stride;
            if plan.verify {
                payload::fill(sent, &mut scratch);
                // The buffer is free: there is one for each message of the window.
                if connection.get().unacknowledged() < connection.get().config().window as u64 {
                    memory.region.copy_in(offset, &scratch);
                }
            }
            if let Submit::Accepted(_) = connection.get_mut().send_from(&memory.region, offset, plan.bytes)? {
                sent += 1;
                slot = if slot + 1 == plan.buffers { 0 } else { slot + 1 };
                continue;
            }
        }
        let moved = connection.get_mut().poll()?;
        let taken = take_all(connection.get_mut(), device, reception, tally);
        if moved || taken > 0 {
            progress(sent);
            yield_now().await;
        } else if is_early {
            yield_now().await;
        } else {
            connection.progress().await?;
        }
    }
    connection.get_mut().flush()?;
    while connection.get().last_done() < sent {
        connection.progress().await?;
        take_all(connection.get_mut(), device, reception, tally);
        yield_now().await;
    }
    tally.ended_ns = device.now_ns();
    tally.sent = sent;
    Ok(())
}

/// Takes the messages that have arrived.
fn take_all(connection: &mut Connection, device: &Device, reception: Reception, tally: &mut Tally) -> usize {
    let mut count = 0;
    while let Some(message) = connection.take() {
        if reception.verify && !payload::is_intact(tally.received, &message) {
            tally.damaged += 1;
        }
        if reception.pause_ns > 0 {
            let until_ns = device.now_ns() + reception.pause_ns;
            while device.now_ns() < until_ns {
                std::hint::spin_loop();
            }
        }
        tally.received += 1;
        count += 1;
    }
    count
}

/// Rounds that are not measured.
const WARM_UP_ROUNDS: u64 = 200;

/// The side of a ping-pong that measures: half of each round trip.
pub async fn ping<W: Waiter>(
    connection: Connection,
    waiter: W,
    device: Device,
    plan: Plan,
    memory: SendMemory,
    progress: impl Fn(u64),
) -> Result<(Tally, Histogram<u64>), ConnectionError> {
    let mut connection = Async::new(connection, waiter);
    let mut histogram = Buckets::empty_histogram();
    let mut tally = Tally::default();
    let mut scratch = vec![0; if plan.verify { plan.bytes } else { 0 }];
    let (mut rounds, mut ends_ns) = (0_u64, u64::MAX);
    loop {
        if rounds == WARM_UP_ROUNDS {
            tally.began_ns = device.now_ns();
            if let Extent::Seconds(seconds) = plan.extent {
                ends_ns = tally.began_ns + Duration::from_secs_f64(seconds).as_nanos() as u64;
            }
        }
        if plan.verify {
            payload::fill(rounds, &mut scratch);
            memory.region.copy_in(0, &scratch);
        }
        let sent_ns = device.now_ns();
        while !matches!(connection.get_mut().send_from(&memory.region, 0, plan.bytes)?, Submit::Accepted(_)) {
            connection.progress().await?;
        }
        connection.get_mut().flush()?;
        let answer = connection.receive().await?;
        let now_ns = device.now_ns();
        tally.received += 1;
        if plan.verify && !payload::is_intact(rounds, &answer) {
            tally.damaged += 1;
        }
        drop(answer);
        rounds += 1;
        if rounds > WARM_UP_ROUNDS {
            // It grows by itself, so there is nothing that it cannot record.
            let _ = histogram.record((now_ns - sent_ns) / 2);
            let measured = rounds - WARM_UP_ROUNDS;
            if measured.is_multiple_of(1024) {
                progress(measured);
            }
            let all = matches!(plan.extent, Extent::Messages(messages) if measured >= messages);
            if all || now_ns >= ends_ns {
                tally.ended_ns = now_ns;
                break;
            }
        }
        if let Some(rate) = plan.rate {
            let next_ns = sent_ns + (1e9 / rate) as u64;
            while device.now_ns() < next_ns {
                connection.get_mut().poll()?;
                yield_now().await;
            }
        }
    }
    tally.sent = rounds;
    connection.close().await?;
    while !connection.get().is_peer_closed() {
        connection.progress().await?;
    }
    tally.close(connection.get());
    Ok((tally, histogram))
}

/// Messages that a ping-pong exchanges before it is measured.
pub fn warm_up_rounds() -> u64 {
    WARM_UP_ROUNDS
}

/// The side of a ping-pong that answers.
pub async fn pong<W: Waiter>(
    connection: Connection,
    waiter: W,
    plan: Plan,
    memory: SendMemory,
) -> Result<Tally, ConnectionError> {
    let mut connection = Async::new(connection, waiter);
    let mut tally = Tally::default();
    let mut scratch = vec![0; if plan.verify { plan.bytes } else { 0 }];
    loop {
        match connection.receive().await {
            Ok(message) => {
                if plan.verify {
                    tally.damaged += u64::from(!payload::is_intact(tally.received, &message));
                    scratch.copy_from_slice(&message);
                    memory.region.copy_in(0, &scratch);
                }
                tally.received += 1;
            }
            Err(ConnectionError::PeerClosed) => break,
            Err(error) => return Err(error),
        }
        while !matches!(connection.get_mut().send_from(&memory.region, 0, plan.bytes)?, Submit::Accepted(_)) {
            connection.progress().await?;
        }
        connection.get_mut().flush()?;
        tally.sent += 1;
    }
    connection.close().await?;
    tally.close(connection.get());
    Ok(tally)
}
