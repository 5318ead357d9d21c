//! Workloads to predict.

use doorbell_protocols::{Protocol, Store, ring_bytes, ring_receives, ring_space};
use doorbell_wire::{MessageKind, OuterKind, PathMtu};

/// Threads and connections of a workload. The section "Terms" of `docs/model.md` defines patterns such as N:1.
///
/// Each sending and receiving thread has its own CPU. All connections share one link, because they leave by one port
/// or arrive at one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peers {
    /// Sending threads.
    pub senders: u32,
    /// Receiving threads.
    pub receivers: u32,
    /// Total number of connections between the senders and the receivers.
    pub connections: u32,
}

impl Peers {
    /// One sender, one receiver, one connection.
    pub const ONE_TO_ONE: Peers = Peers { senders: 1, receivers: 1, connections: 1 };

    /// Returns `count` senders on one node, each with its own receiver on the other node.
    pub const fn pairs(count: u32) -> Peers {
        Peers { senders: count, receivers: count, connections: count }
    }

    /// Returns `count` senders to one receiver.
    pub const fn many_to_one(count: u32) -> Peers {
        Peers { senders: count, receivers: 1, connections: count }
    }

    /// Returns one sender to `count` receivers. Each message goes to one receiver.
    pub const fn one_to_many(count: u32) -> Peers {
        Peers { senders: 1, receivers: count, connections: count }
    }

    /// Returns one sending and one receiving thread with `count` connections between them.
    pub const fn connections(count: u32) -> Peers {
        Peers { senders: 1, receivers: 1, connections: count }
    }
}

/// Writes the pattern: `24:1 (24 sending threads, 1 receiving thread, 24 connections)`.
impl std::fmt::Display for Peers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { senders, receivers, connections } = *self;
        let counted = |count: u32, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        let (sending, receiving) = (counted(senders, "sending thread"), counted(receivers, "receiving thread"));
        write!(f, "{senders}:{receivers} ({sending}, {receiving}, {})", counted(connections, "connection"))
    }
}

/// A workload to predict: messages of one size in one direction or in both.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workload {
    /// Protocol of the messages.
    pub protocol: Protocol,
    /// Bytes of payload per message.
    pub bytes: u64,
    /// Maximum number of unacknowledged messages per connection.
    pub window: u32,
    /// Messages per post.
    pub batch: u32,
    /// Completions per poll. A busy receiver always finds this number of completions. Doorbell's connections poll for
    /// up to 32 completions.
    pub receive_batch: u32,
    /// Number of receives in a list that the receiver posts.
    pub repost_batch: u32,
    /// Messages for which the receiver has space, per connection: posted receives, granted buffers, or slots of a
    /// ring.
    pub depth: u32,
    /// Maximum number of bytes of a message that is sent inline.
    pub inline_bytes: u64,
    /// Whether Send-Receive uses credits.
    pub credits: bool,
    /// Whether the receiver's connections share a receive queue (Send-Receive only).
    pub srq: bool,
    /// Whether a single thread reposts all receives of the shared queue.
    pub repost_thread: bool,
    /// Whether both ends send. Rates then count the messages of both directions.
    pub bidirectional: bool,
    /// Path MTU; `None` means the path MTU of the parameters.
    pub path_mtu: Option<PathMtu>,
    /// Encapsulation of the packets.
    pub outer: OuterKind,
    /// Threads and connections.
    pub peers: Peers,
}

impl Workload {
    /// Returns a workload of Send-Receive from one sender to one receiver with credits. The receiver polls and reposts
    /// in batches.
    pub fn new(bytes: u64, window: u32, batch: u32) -> Self {
        Self {
            protocol: Protocol::SendReceive,
            bytes,
            window,
            batch,
            receive_batch: 32,
            repost_batch: 32,
            depth: Self::default_depth(window),
            inline_bytes: 64,
            credits: true,
            srq: false,
            repost_thread: false,
            bidirectional: false,
            path_mtu: None,
            outer: OuterKind::IPV4,
            peers: Peers::ONE_TO_ONE,
        }
    }

    /// Returns the depth of Doorbell's connections for a window: twice the window, at least 64.
    pub const fn default_depth(window: u32) -> u32 {
        let twice = window.saturating_mul(2);
        if twice < 64 { 64 } else { twice }
    }

    /// Returns a workload with one message unacknowledged.
    pub fn sequential(bytes: u64) -> Self {
        Self::new(bytes, 1, 1)
    }

    /// Returns a workload with 64 messages unacknowledged, posted one by one.
    pub fn unbatched(bytes: u64) -> Self {
        Self::new(bytes, 64, 1)
    }

    /// Returns a workload with 256 messages unacknowledged, eight per post.
    pub fn batched(bytes: u64) -> Self {
        Self::new(bytes, 256, 8)
    }

    /// Returns the number of messages for which the receiver has space, per connection. A ring has whole pages, so it
    /// has space for more than [`depth`](Self::depth) short messages. A WRITE with immediate data also needs a receive.
    pub(crate) fn spaces(&self) -> u32 {
        let description = self.protocol.description();
        let carrying = description.steps.iter().find(|step| step.size.carries_messages());
        let (Store::Ring, Some(step)) = (description.received_into, carrying) else { return self.depth };
        let whole = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let sharing = match description.shared_buffers {
            true => self.peers.connections.div_ceil(self.peers.receivers.max(1)).max(1) as usize,
            false => 1,
        };
        let ring = ring_bytes(self.depth as usize * sharing, whole(self.bytes));
        let spaces = ring / ring_space(whole(step.size.bytes(self.bytes, 1))) / sharing;
        let most = match step.operation {
            MessageKind::WriteImm => ring_receives(self.depth as usize),
            _ => usize::MAX,
        };
        u32::try_from(spaces.min(most)).unwrap_or(u32::MAX).max(1)
    }

    /// Checks that all numbers are in their ranges and consistent.
    ///
    /// # Errors
    ///
    /// Returns an error for the first number that is out of its range. Examples are a batch larger than the window,
    /// fewer connections than senders or receivers, and a count of 0 or above [`MAX_COUNT`].
    pub fn check(&self) -> Result<(), WorkloadError> {
        let within = |what, given: u64, least: u64, most: u64| {
            if (least..=most).contains(&given) { Ok(()) } else { Err(WorkloadError { what, given, least, most }) }
        };
        within("the message size", self.bytes, 0, MAX_BYTES)?;
        within("the window", self.window.into(), 1, MAX_COUNT)?;
        within("the batch", self.batch.into(), 1, MAX_COUNT.min(self.window.into()))?;
        within("the receive batch", self.receive_batch.into(), 1, MAX_COUNT)?;
        within("the list of receives", self.repost_batch.into(), 1, MAX_COUNT)?;
        within("the receive depth", self.depth.into(), 1, MAX_COUNT)?;
        within("the number of senders", self.peers.senders.into(), 1, MAX_COUNT)?;
        within("the number of receivers", self.peers.receivers.into(), 1, MAX_COUNT)?;
        let ends = self.peers.senders.max(self.peers.receivers).into();
        within("the number of connections", self.peers.connections.into(), ends, MAX_COUNT)?;
        if self.protocol.description().sent_from == Store::Ring {
            let most = (MAX_BYTES / (self.bytes + 64)).max(1);
            within("the batch that one READ fetches", self.batch.into(), 1, most)?;
        }
        Ok(())
    }
}

/// Maximum size in bytes of a message of Doorbell's connections. A message with all its headers stays below IBTA's
/// limit of 2^31 bytes.
pub const MAX_BYTES: u64 = 1 << 30;
/// Maximum of each count in a workload, such as the window, the batch and the number of connections.
pub const MAX_COUNT: u64 = 1 << 20;

/// Error for a number of a workload that is out of its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is {given}, allowed is {least} to {most}")]
pub struct WorkloadError {
    /// Name of the number.
    pub what: &'static str,
    /// Given value.
    pub given: u64,
    /// Least allowed value.
    pub least: u64,
    /// Largest allowed value.
    pub most: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_name_their_threads() {
        assert_eq!(Peers::ONE_TO_ONE.to_string(), "1:1 (1 sending thread, 1 receiving thread, 1 connection)");
        let many = "24:1 (24 sending threads, 1 receiving thread, 24 connections)";
        assert_eq!(Peers::many_to_one(24).to_string(), many);
    }
}
