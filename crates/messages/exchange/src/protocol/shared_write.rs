//! Shared-Write: many senders write into one ring of the receiver.
//!
//! ```text
//! sender                                                     receiver
//!   send -> id   FETCH_ADD on the tail: reserves space   ->
//!                WRITE with immediate [message]          ->  completion with position and length
//!                <-  READ of the head, when space is short
//! ```
//!
//! One message costs a WRITE and a share of a FETCH_ADD, which reserves space for all waiting messages. With
//! [`Reserves::Each`], each message has a FETCH_ADD of its own. All senders share one ring.
//! Its length depends on the messages that all senders together have in the ring, not on the number of senders.
//! Reservations are in order. A message that the program holds for long, or that its sender writes late, blocks all
//! later messages once the ring is full.
//!
//! # Death of a sender with reserved space
//!
//! A dead sender leaves a hole in the ring that no sender will fill, and the receiver does not know the length of the
//! hole. When a connection ends without a goodbye, the receiver moves its queue pair to the error state, so the dead
//! sender cannot write any more. The receiver then records the tail: all reservations of the dead sender lie before the
//! tail.
//!
//! Then the receiver sends a question to every other sender. A sender answers once it has written all its earlier
//! reservations that fit into the ring. The answer contains the position of the sender's first unwritten reservation,
//! if any. RC delivers in order, so the written messages arrive before the answer. A gap before the recorded tail and
//! before the first unwritten reservation of every live sender belongs to the dead sender. The receiver frees such
//! gaps. The receiver uses no clock, and waits for slow senders.

mod incoming;
mod outgoing;
mod recovery;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use doorbell_protocols::{Protocol, RESERVATIONS_IN_FLIGHT};
use doorbell_verbs::{Access, Channel, MemoryKind, Pd, Region};

use crate::connection::carrier::{Queues, Unconnected};
use crate::connection::config::{Config, MAX_WINDOW};
use crate::connection::duplex::{Duplex, WORD_RECEIVES};
use crate::connection::engine::{self, Recipe};
use crate::connection::error::ConnectError;
use crate::connection::outbox::Outbox;
use crate::connection::ring::{Ring, ring_bytes};
use crate::connection::{Connector, Group};
use crate::protocol::buffered_write::{HEAD, PeerRing, WORDS, notices};
use crate::setup::{EndpointDescription, RemoteRegion};
use incoming::RingReceiver;
use outgoing::Reserved;
use recovery::Recovery;

pub use crate::connection::ring::RingMessage as Message;

/// Number of messages for which a sender reserves space by one FETCH_ADD. Only the sender uses this setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reserves {
    /// All messages that wait for a reservation.
    #[default]
    Waiting,
    /// One message.
    Each,
}

impl Reserves {
    /// Returns the maximum number of FETCH_ADDs that a sender has in flight.
    const fn in_flight(self) -> usize {
        match self {
            Self::Waiting => RESERVATIONS_IN_FLIGHT as usize,
            // RNICs have at most 16 READs and atomics of a queue pair in flight.
            Self::Each => 16,
        }
    }
}

/// The protocol Shared-Write, in one of its variants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedWrite {
    /// Number of messages for which this end reserves space by one FETCH_ADD.
    pub reserves: Reserves,
}

/// One end of a connection that is not connected yet.
pub type Endpoint = engine::Endpoint<SharedWrite>;
/// A connection of this protocol.
pub type Connection = engine::Connection<SharedWrite>;

/// Offset of the tail in the region `words`. Senders add to the tail by FETCH_ADD. Tail and head count bytes.
const TAIL: usize = 0;

/// A ring that many senders write into.
#[derive(Clone, Debug)]
pub struct SharedRing {
    shared: Arc<Common>,
    pd: Pd,
}

/// State that all connections of one ring share.
#[derive(Debug)]
pub struct Common {
    ring: Arc<Ring>,
    words: Region,
    recovery: Recovery,
}

impl Common {
    fn new(pd: &Pd, config: &Config) -> Result<Arc<Self>, ConnectError> {
        let writable = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let words = pd.allocate(WORDS, writable | Access::REMOTE_READ | Access::REMOTE_ATOMIC, MemoryKind::Plain)?;
        let ring = Ring::new(pd, ring_bytes(config)?, writable, false, Some((words.clone(), HEAD)))?;
        Ok(Arc::new(Self { ring, words, recovery: Recovery::default() }))
    }

    /// Returns the position after all reserved space.
    fn tail(&self) -> u64 {
        // The RNIC's atomics use numbers in the host's byte order.
        self.words.load_acquire_u64(TAIL)
    }
}

impl SharedRing {
    /// Makes a ring that has room for `config.depth` messages of maximum length.
    ///
    /// # Errors
    ///
    /// The configuration is not allowed ([`ConnectError::Setting`]), the ring would exceed its maximum length, or its
    /// memory cannot be allocated.
    pub fn new(pd: &Pd, config: &Config) -> Result<Self, ConnectError> {
        config.check()?;
        Ok(Self { shared: Common::new(pd, config)?, pd: pd.clone() })
    }

    /// Makes an end whose peer writes into the ring. The connection of an end returns only the messages of its own
    /// peer. Different threads may poll different connections of the ring.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Connector::endpoint`], or [`ConnectError::Setting`] if the longest message does not fit
    /// into the ring.
    pub fn endpoint(&self, config: &Config, channel: Option<&Channel>) -> Result<Endpoint, ConnectError> {
        self.endpoint_of(SharedWrite::default(), config, channel)
    }

    fn endpoint_of(
        &self,
        variant: SharedWrite,
        config: &Config,
        channel: Option<&Channel>,
    ) -> Result<Endpoint, ConnectError> {
        config.check()?;
        let needed = ring_bytes(&Config { depth: 1, ..config.clone() })?;
        if needed > self.shared.ring.bytes() {
            let what = "the longest message";
            let allowed = "at most the maximum of the shared ring";
            return Err(ConnectError::Setting { what, given: config.max_message as u64, allowed });
        }
        Endpoint::with_memory(&variant, &self.pd, config, channel, None, Arc::clone(&self.shared))
    }

    /// Returns the number of completed recoveries. A recovery frees all reservations of the senders that died before
    /// the recovery ended.
    pub fn recovered(&self) -> u64 {
        self.shared.recovery.completed()
    }
}

impl Recipe for SharedWrite {
    type Memory = Arc<Common>;
    type Machine = Duplex<Reserved, RingReceiver>;

    fn id(&self) -> Protocol {
        match self.reserves {
            Reserves::Waiting => Protocol::SharedWrite,
            Reserves::Each => Protocol::SharedWriteEach,
        }
    }

    fn memory(&self, pd: &Pd, config: &Config) -> Result<Arc<Common>, ConnectError> {
        Common::new(pd, config)
    }

    /// Makes the ends of a group. If one thread receives from all ends, the ends share one ring.
    fn ends(&self, group: &Group<'_>, config: &Config) -> Result<Vec<Endpoint>, ConnectError> {
        if !group.one_thread {
            return (0..group.count).map(|_| self.endpoint(group.pd, config, group.channel)).collect();
        }
        let depth = (config.depth * group.count).min(MAX_WINDOW);
        let ring = SharedRing::new(group.pd, &Config { depth, ..config.clone() })?;
        (0..group.count).map(|_| ring.endpoint_of(*self, config, group.channel)).collect()
    }

    fn regions(memory: &Arc<Common>) -> [RemoteRegion; 2] {
        [RemoteRegion::of(memory.ring.region()), RemoteRegion::of(&memory.words)]
    }

    fn access(&self) -> Access {
        Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
    }

    fn queues(&self, config: &Config) -> Queues {
        Queues {
            // The queue holds a WRITE for each message, the FETCH_ADDs, a READ of the head, a question and an answer.
            sends: config.window + self.reserves.in_flight() + 3,
            receives: notices(config.depth) + WORD_RECEIVES,
            inline: Outbox::inline_bytes(config),
            sges: 2,
        }
    }

    fn machine(
        &self,
        carrier: &Unconnected,
        config: &Config,
        memory: Arc<Common>,
        peer: &EndpointDescription,
    ) -> Result<Duplex<Reserved, RingReceiver>, ConnectError> {
        let pd = &carrier.pd;
        let out = Reserved::new(pd, config, self.reserves, peer, PeerRing::of(peer)?)?;
        Ok(Duplex::new(carrier, self.queues(config).receives, out, RingReceiver::new(config, memory))?)
    }
}
