//! The workloads, written once: they run wherever there are connections.

mod buffers;
mod rounds;
mod streams;

use doorbell_exchange::MessageConnection;
use doorbell_verbs::{Device, Region};
use serde::{Deserialize, Serialize};

use crate::parameters::Extent;

pub(crate) use rounds::Rounds;
pub use rounds::{WARM_UP_ROUNDS, ping, request, respond};
pub use streams::{gather, publish, stream};

/// Hears now and then how many messages of one connection are done. Not a type parameter: the workloads of all protocols
/// would be compiled again for each program that listens.
pub type Progress<'a> = &'a dyn Fn(u64);

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
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
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

    /// Until when the next message is ahead of its time, if it is. An offered rate is not made up for by bursts.
    pub(crate) fn early_until_ns(&self, sent: u64) -> Option<u64> {
        let due_ns = self.began_ns.saturating_add((sent as f64 * self.interval_ns?) as u64);
        (self.device.now_ns() <= due_ns).then_some(due_ns + 1)
    }
}
