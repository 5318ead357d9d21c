//! Buffered-Write: the sender writes into a ring in the receiver's memory.
//!
//! ```text
//! sender                                                 receiver
//!   send -> id   WRITE with immediate [message]      ->  a completion
//!      or        WRITE [length | message] ...
//!                WRITE of the tail's offset          ->  polls the tail's offset
//!      or        WRITE [message | length, signal]    ->  polls the byte where the next signal will be
//!                <-  SEND of the head, after each eighth of the ring
//!      or        READ of the head, when space is short
//! ```
//!
//! One message costs one WRITE. Notification by the *tail's offset* costs one more WRITE for each batch. Notification
//! by *immediate data* consumes a receive for each message, and is the only notification that wakes a sleeping
//! receiver. *Reverse* writing fills the ring from its end to its start, so the last byte of a message lies next to the
//! previous message. The receiver therefore knows the position of the next signal byte. The receiver zeroes the memory
//! that it frees, since any byte may become a signal byte.
//!
//! If the sender READs the head and the notification is not immediate data, the receiver is passive: it posts no work
//! requests.
//!
//! Messages of any length follow each other without gaps. The program frees messages in any order, but the head stops
//! at the oldest message that is still held. The head counts bytes, not messages. A held message blocks later messages
//! once the ring is full, and is never overwritten.

mod incoming;
mod outgoing;

use std::sync::Arc;

use doorbell_protocols::Protocol;
use doorbell_verbs::{Access, MemoryKind, Pd, Region};

use crate::connection::carrier::{Queues, Unconnected};
use crate::connection::config::Config;
use crate::connection::duplex::{Duplex, WORD_RECEIVES};
use crate::connection::engine::{self, Recipe};
use crate::connection::error::ConnectError;
use crate::connection::outbox::Outbox;
use crate::connection::ring::{LONGEST_RING, Ring, UNIT, WORD, ring_bytes};
use crate::setup::{EndpointDescription, RemoteRegion};
pub(crate) use doorbell_protocols::ring_receives as notices;
use incoming::Written;
use outgoing::Writes;
pub(crate) use outgoing::{FARTHEST, Head};

pub use crate::connection::ring::RingMessage as Message;

/// Way in which the sender notifies the receiver of a message. Both ends must use the same way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Notification {
    /// Immediate data of the WRITE of the message.
    #[default]
    Immediate,
    /// A WRITE of the tail's offset after the messages of a batch.
    TailOffset,
    /// A signal byte at the end of the message. The sender fills the ring from its end to its start.
    Reverse,
}

/// Way in which the sender is informed of free space in the ring. Both ends must use the same way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Acknowledge {
    /// The receiver SENDs the head after each freed eighth of the ring.
    #[default]
    Send,
    /// The sender READs the head when space is short.
    Read,
}

/// The protocol Buffered-Write, in one of its variants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferedWrite {
    /// Way in which the sender notifies the receiver of a message.
    pub notification: Notification,
    /// Way in which the sender is informed of free space in the ring.
    pub acknowledge: Acknowledge,
}

/// One end of a connection that is not connected yet.
pub type Endpoint = engine::Endpoint<BufferedWrite>;
/// A connection of this protocol.
pub type Connection = engine::Connection<BufferedWrite>;

/// Offset of the tail in the region `words`. The sender WRITEs the tail.
const TAIL: usize = 0;
/// Offset of the head in the region `words`. The sender READs the head.
pub(crate) const HEAD: usize = 64;
/// Bytes of the region `words`, which holds the tail and the head.
pub(crate) const WORDS: usize = 128;

/// Maximum number of SENDs of the head in flight: one SEND for each eighth of the ring, and two more.
const WORDS_OUT: usize = 10;

/// Memory that an endpoint allocates before it knows the description of the peer.
#[derive(Debug)]
pub struct Memory {
    ring: Arc<Ring>,
    words: Region,
}

impl Recipe for BufferedWrite {
    type Memory = Memory;
    type Machine = Duplex<Writes, Written>;

    fn id(&self) -> Protocol {
        use Notification::{Immediate, Reverse, TailOffset};
        match (self.notification, self.acknowledge) {
            (Immediate, Acknowledge::Send) => Protocol::BufferedWriteImmediateSend,
            (Immediate, Acknowledge::Read) => Protocol::BufferedWriteImmediateRead,
            (TailOffset, Acknowledge::Send) => Protocol::BufferedWriteTailSend,
            (TailOffset, Acknowledge::Read) => Protocol::BufferedWriteTailRead,
            (Reverse, Acknowledge::Send) => Protocol::BufferedWriteReverseSend,
            (Reverse, Acknowledge::Read) => Protocol::BufferedWriteReverseRead,
        }
    }

    fn memory(&self, pd: &Pd, config: &Config) -> Result<Memory, ConnectError> {
        let erases = self.notification == Notification::Reverse;
        let writable = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let words = pd.allocate(WORDS, writable | Access::REMOTE_READ, MemoryKind::Plain)?;
        let ring = Ring::new(pd, ring_bytes(config)?, writable, erases, Some((words.clone(), HEAD)))?;
        Ok(Memory { ring, words })
    }

    fn regions(memory: &Memory) -> [RemoteRegion; 2] {
        [RemoteRegion::of(memory.ring.region()), RemoteRegion::of(&memory.words)]
    }

    fn access(&self) -> Access {
        Access::REMOTE_WRITE | Access::REMOTE_READ
    }

    fn queues(&self, config: &Config) -> Queues {
        let notices = match self.notification {
            Notification::Immediate => notices(config.depth),
            Notification::TailOffset | Notification::Reverse => 0,
        };
        Queues {
            // The queue holds a WRITE for each message, a WRITE of the tail after each message, a READ of the head, and
            // SENDs of the head.
            sends: 2 * config.window + 1 + WORDS_OUT,
            receives: notices + WORD_RECEIVES,
            inline: Outbox::inline_bytes(config),
            sges: 2,
        }
    }

    fn machine(
        &self,
        carrier: &Unconnected,
        config: &Config,
        memory: Memory,
        peer: &EndpointDescription,
    ) -> Result<Duplex<Writes, Written>, ConnectError> {
        let pd = &carrier.pd;
        let Memory { ring, words } = memory;
        let (out, incoming) = (Writes::new(*self, pd, config, peer)?, Written::new(*self, config, ring, words));
        Ok(Duplex::new(carrier, self.queues(config).receives, out, incoming)?)
    }
}

/// Location and length of the peer's ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerRing {
    pub(crate) ring: RemoteRegion,
    pub(crate) words: RemoteRegion,
    /// Bytes of the ring. The region maps the ring twice in a row.
    pub(crate) bytes: u64,
}

impl PeerRing {
    pub(crate) fn of(peer: &EndpointDescription) -> Result<Self, ConnectError> {
        let [ring, words] = peer.regions;
        let bytes = ring.length / 2;
        let given = |what, given, allowed| Err(ConnectError::Setting { what, given, allowed });
        if bytes == 0 || !bytes.is_multiple_of(4096) || bytes > LONGEST_RING as u64 {
            return given("the length of the peer's ring", bytes, "a multiple of 4096 B up to 2147483648 B");
        }
        if words.length < WORDS as u64 {
            return given("the memory beside the peer's ring", words.length, "at least 128 B");
        }
        if peer.max_message.saturating_add((WORD + UNIT) as u64) > bytes {
            return given("the longest message of the peer", peer.max_message, "less than the peer's ring");
        }
        Ok(Self { ring, words, bytes })
    }

    /// Returns the remote address of a position in the ring.
    #[inline]
    pub(crate) fn address(&self, position: u64) -> u64 {
        self.ring.address.wrapping_add(position % self.bytes)
    }

    /// Returns the remote address directly after the message at a position, in a ring that is filled from its end to
    /// its start.
    #[inline]
    pub(crate) fn reversed(&self, position: u64) -> u64 {
        self.ring.address.wrapping_add(2 * self.bytes - position % self.bytes)
    }
}
