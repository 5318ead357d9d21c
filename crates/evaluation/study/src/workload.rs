//! Workloads over any kind of connection.

mod buffers;
mod rounds;
mod streams;

use std::sync::Arc;

use doorbell_exchange::MessageConnection;
use doorbell_verbs::{Device, Region};
use serde::{Deserialize, Serialize};

use doorbell_record::{Extent, Parameters, Role, SizeSequence};

pub(crate) use rounds::{Rounds, WARM_UP_ROUNDS};
pub use rounds::{ping, request, respond};
pub use streams::stream;
pub(crate) use streams::{gather, publish};

/// Callback that receives the number of completed messages of one connection from time to time. A type parameter
/// instead of this trait object would instantiate the workloads of all protocols for each caller.
pub type Progress<'a> = &'a dyn Fn(u64);

/// Plan of the messages that one side of one connection sends.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Bytes per message. With other [`SendMemory::sizes`], bytes of the longest message.
    pub bytes: usize,
    /// Maximum number of unacknowledged messages or unanswered requests.
    pub window: usize,
    /// Whether requests go out in rounds: a whole window of requests, after each request of the window before was
    /// answered.
    pub in_rounds: bool,
    /// Number of messages or duration of the plan.
    pub extent: Extent,
    /// Messages per second, or `None` for the maximum rate.
    pub rate: Option<f64>,
    /// Time between a reply and the next request of the same slot of the window, in nanoseconds. It has no effect with
    /// a rate.
    pub think_ns: u64,
    /// Whether payloads are filled for verification.
    pub verify: bool,
    /// Number of send buffers, which messages use in turn. The distance from one buffer to the next is
    /// [`SendMemory::stride`].
    pub buffers: usize,
}

/// Registered memory with the send buffers of a plan, and the sizes of the messages.
#[derive(Clone, Debug)]
pub struct SendMemory {
    /// The registered memory.
    pub region: Region,
    /// Distance from one buffer to the next in bytes.
    pub stride: usize,
    /// Sizes of the messages.
    pub sizes: Sizes,
    /// Delay of the first request or ping if a rate is set, as a share of the time from one to the next. Connections
    /// with different delays spread their messages evenly. A stream begins without a delay.
    pub phase: f64,
}

/// Sizes of the messages that an end sends.
#[derive(Clone, Debug)]
pub enum Sizes {
    /// Each message has [`Plan::bytes`].
    Planned,
    /// The sizes of a sequence, from the message with this number.
    Mixed(Arc<SizeSequence>, u64),
    /// Each reply has the size of its request.
    AsReceived,
}

/// Distance in the sequence of sizes from one connection to the next. The golden ratio of the period spreads any number
/// of connections evenly.
const SEQUENCE_STEP: u64 = 40_503;

impl Sizes {
    /// Returns the sizes of the messages of an end.
    pub fn of(parameters: &Parameters, role: Role) -> Self {
        match (&parameters.mix, role) {
            (Some(mix), Role::Requester | Role::Sender) => Self::Mixed(Arc::new(mix.sequence()), 0),
            (Some(_), Role::Responder) if parameters.reply.is_none() => Self::AsReceived,
            _ => Self::Planned,
        }
    }

    /// Returns the sizes for the connection with this number. Connections begin at different places of a sequence, so
    /// that long messages do not coincide.
    #[must_use]
    pub fn of_connection(&self, number: usize) -> Self {
        match self {
            Self::Mixed(sequence, _) => Self::Mixed(Arc::clone(sequence), number as u64 * SEQUENCE_STEP),
            sizes => sizes.clone(),
        }
    }
}

/// Counters of one side of one connection.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    /// Messages sent and acknowledged.
    pub sent: u64,
    /// Messages received.
    pub received: u64,
    /// Received messages with damaged payloads.
    pub damaged: u64,
    /// Time at which the first message was sent, warm-up included.
    pub first_ns: u64,
    /// Time at which the first message after the warm-up was sent.
    pub began_ns: u64,
    /// Time at which the last message was acknowledged.
    pub ended_ns: u64,
    /// Number of attempts to send that failed for lack of credits.
    pub stalled_on_credits: u64,
    /// Messages that checked whether the peer is alive.
    pub keepalives: u64,
    /// Messages without data.
    pub control_sends: u64,
    /// Number of the first message in the sequence of sizes, if the messages have a mix of sizes.
    #[serde(default)]
    pub sequence_from: u64,
}

impl Tally {
    /// Copies the counters of a connection that is about to close.
    fn close(&mut self, connection: &impl MessageConnection) {
        self.keepalives = connection.keepalives();
        self.control_sends = connection.control_sends();
    }
}

/// Treatment of received messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reception {
    /// Whether payloads are checked.
    pub verify: bool,
    /// Pause of the receiver before it frees a message.
    pub pause_ns: u64,
}

/// Progress of a plan: number, duration and rate of messages.
///
/// `Pace` reads the clock only occasionally, since a clock read costs as much as sending a small message.
pub(crate) struct Pace {
    device: Device,
    began_ns: u64,
    most: u64,
    ends_ns: u64,
    countdown: u32,
    interval_ns: Option<f64>,
    /// Time from the start until the first message is due.
    delay_ns: u64,
}

impl Pace {
    pub(crate) fn start(device: &Device, plan: &Plan) -> Self {
        let began_ns = device.now_ns();
        let (most, ends_ns) = match plan.extent {
            Extent::Messages(messages) => (messages, u64::MAX),
            Extent::Seconds(seconds) => (u64::MAX, began_ns.saturating_add((seconds * 1e9) as u64)),
        };
        let interval_ns = plan.rate.map(|rate| 1e9 / rate);
        Self { device: device.clone(), began_ns, most, ends_ns, countdown: 0, interval_ns, delay_ns: 0 }
    }

    /// Delays all messages by a share of the time from one message to the next, if a rate is set.
    pub(crate) fn delayed(self, phase: f64) -> Self {
        Self { delay_ns: self.interval_ns.map_or(0, |interval_ns| (phase * interval_ns) as u64), ..self }
    }

    pub(crate) fn began_ns(&self) -> u64 {
        self.began_ns
    }

    /// Returns how many messages the plan still allows after `sent` messages.
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

    /// Returns the time at which the next message is due, or `None` if no rate is set. `sent` is the number of messages
    /// sent so far.
    pub(crate) fn due_ns(&self, sent: u64) -> Option<u64> {
        let after_first_ns = (sent as f64 * self.interval_ns?) as u64;
        Some(self.began_ns.saturating_add(self.delay_ns).saturating_add(after_first_ns))
    }

    /// Returns the time at which the next message is due, or `None` if the message is already due or no rate is set.
    /// `sent` is the number of messages sent so far.
    pub(crate) fn early_until_ns(&self, sent: u64) -> Option<u64> {
        let due_ns = self.due_ns(sent)?;
        (self.device.now_ns() <= due_ns).then_some(due_ns + 1)
    }
}

#[cfg(test)]
mod tests {
    use doorbell_verbs::soft::{self, SoftOptions};

    use super::*;

    fn plan() -> Plan {
        Plan {
            bytes: 16,
            window: 1,
            in_rounds: false,
            extent: Extent::Messages(10),
            rate: Some(1000.0),
            think_ns: 0,
            verify: false,
            buffers: 1,
        }
    }

    #[test]
    fn connections_with_a_phase_take_turns() {
        let device = soft::open(&SoftOptions::default()).unwrap();
        let plan = plan();
        let due = |plan: &Plan, phase: f64, message: u64| {
            let pace = Pace::start(&device, plan).delayed(phase);
            pace.due_ns(message).map(|due_ns| due_ns - pace.began_ns())
        };
        assert_eq!([0.0, 0.25, 0.75].map(|phase| due(&plan, phase, 0)), [0, 250_000, 750_000].map(Some));
        assert_eq!(due(&plan, 0.25, 3), Some(3_250_000));
        assert_eq!(due(&Plan { rate: None, ..plan }, 0.25, 3), None);
    }

    /// A quarter of the time between two rounds is 250 s.
    #[test]
    fn the_first_round_is_delayed_by_the_phase() {
        const DELAY_NS: u64 = 250_000_000_000;
        let device = soft::open(&SoftOptions::default()).unwrap();
        let rare = Plan { rate: Some(0.001), ..plan() };
        let early_until_ns = |plan: Plan, phase: f64| Rounds::new(&device, plan, 2, phase).early_until_ns();
        let before_ns = device.now_ns();
        let until_ns = early_until_ns(rare, 0.25).expect("a delay");
        assert!((before_ns + DELAY_NS..=device.now_ns() + DELAY_NS).contains(&until_ns), "{until_ns}");
        assert_eq!(early_until_ns(rare, 0.0), None);
        // Without a rate, neither the phase nor the think time delays the first round.
        assert_eq!(early_until_ns(Plan { rate: None, think_ns: DELAY_NS, ..rare }, 0.25), None);
    }
}
