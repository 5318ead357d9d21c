//! Shared-Write: many senders write into one ring of the receiver.
//!
//! ```text
//! sender                                                     receiver
//!   send -> id   FETCH_ADD on the tail: reserves space   ->
//!                WRITE with immediate [message]          ->  a completion: where, how long
//!                <-  READ of the head, when space is short
//! ```
//!
//! One message costs a WRITE and a share of a FETCH_ADD, which reserves space for a batch. All connections share the
//! buffers. The ring is as long as all senders together need, not as long as the sum of their limits. Reservations
//! are in order. A message that is held, or that its sender writes late, blocks all others once the ring is full.
//!
//! # A sender that dies after reserving
//!
//! A dead sender leaves a hole that no sender will fill, and the receiver does not know its length. When a connection
//! ends without a goodbye, the receiver moves its queue pair to the error state, so the dead sender cannot write any
//! more. The receiver then records the tail: all reservations of the dead sender lie before it.
//!
//! Then the receiver asks every other sender. Each sender answers once all its earlier reservations that fit into the
//! ring are written. The answer names its first unwritten reservation, if there is one. RC delivers in order, so
//! those messages arrive before the answer. A gap before the tail and before the first unwritten reservation of a
//! live sender belongs to the dead sender, so it is free. The receiver uses no clock, and it waits for slow senders.

mod incoming;
mod outgoing;
mod recovery;

use std::sync::Arc;

use doorbell_protocols::Protocol;
use doorbell_verbs::{Access, Channel, MemoryKind, Pd, Region};

use crate::buffered_write::{HEAD, PeerRing, WORDS, notices};
use crate::carrier::{Queues, Unconnected};
use crate::config::{Config, MAX_WINDOW};
use crate::connection::{Connector, Group};
use crate::duplex::{Duplex, WORD_RECEIVES};
use crate::engine::{self, Recipe};
use crate::error::ConnectError;
use crate::outbox::Outbox;
use crate::ring::{Ring, ring_bytes};
use crate::setup::{EndpointDescription, RemoteRegion};
use incoming::RingReceiver;
use outgoing::Reserved;
use recovery::Recovery;

pub use crate::ring::RingMessage as Message;

/// The protocol Shared-Write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedWrite;

/// One end of a future connection.
pub type Endpoint = engine::Endpoint<SharedWrite>;
/// A connection.
pub type Connection = engine::Connection<SharedWrite>;

/// Offset of the tail in the memory beside the ring. Senders add to it. Tail and head count bytes.
const TAIL: usize = 0;

/// Maximum number of FETCH_ADDs of a sender in flight.
const RESERVATIONS: usize = 8;

/// A ring that many senders write into.
#[derive(Clone, Debug)]
pub struct SharedRing {
    shared: Arc<Common>,
    pd: Pd,
}

/// State that the connections of a ring share.
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

    /// Returns the end of the reserved space.
    fn tail(&self) -> u64 {
        // Atomics use numbers in host order.
        self.words.load_acquire_u64(TAIL)
    }
}

impl SharedRing {
    /// Makes a ring for as many messages of maximum length as the depth in the configuration.
    ///
    /// # Errors
    ///
    /// The configuration is not allowed ([`ConnectError::Setting`]), the ring would exceed its maximum length, or its
    /// memory cannot be allocated.
    pub fn new(pd: &Pd, config: &Config) -> Result<Self, ConnectError> {
        config.check()?;
        Ok(Self { shared: Common::new(pd, config)?, pd: pd.clone() })
    }

    /// Makes an end whose peer writes into the ring. Each connection returns the messages of its own peer. Different
    /// threads may poll different connections.
    ///
    /// # Errors
    ///
    /// As [`Connector::endpoint`], or the longest message does not fit the ring.
    pub fn endpoint(&self, config: &Config, channel: Option<&Channel>) -> Result<Endpoint, ConnectError> {
        config.check()?;
        let needed = ring_bytes(&Config { depth: 1, ..config.clone() })?;
        if needed > self.shared.ring.bytes() {
            let what = "the longest message";
            let allowed = "what the shared ring has room for";
            return Err(ConnectError::Setting { what, given: config.max_message as u64, allowed });
        }
        Endpoint::with_memory(&SharedWrite, &self.pd, config, channel, None, Arc::clone(&self.shared))
    }

    /// Returns the number of dead senders whose possible reservations were freed.
    pub fn recovered(&self) -> u64 {
        self.shared.recovery.completed()
    }
}

impl Recipe for SharedWrite {
    type Memory = Arc<Common>;
    type Machine = Duplex<Reserved, RingReceiver>;

    fn id(&self) -> Protocol {
        Protocol::SharedWrite
    }

    fn memory(&self, pd: &Pd, config: &Config) -> Result<Arc<Common>, ConnectError> {
        Common::new(pd, config)
    }

    /// Makes the ends. If one thread receives from all of them, they share one ring.
    fn ends(&self, group: &Group<'_>, config: &Config) -> Result<Vec<Endpoint>, ConnectError> {
        if !group.one_thread {
            return (0..group.count).map(|_| self.endpoint(group.pd, config, group.channel)).collect();
        }
        let depth = (config.depth * group.count).min(MAX_WINDOW);
        let ring = SharedRing::new(group.pd, &Config { depth, ..config.clone() })?;
        (0..group.count).map(|_| ring.endpoint(config, group.channel)).collect()
    }

    fn regions(memory: &Arc<Common>) -> [RemoteRegion; 2] {
        [RemoteRegion::of(memory.ring.region()), RemoteRegion::of(&memory.words)]
    }

    fn access(&self) -> Access {
        Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
    }

    fn queues(&self, config: &Config) -> Queues {
        Queues {
            // Each message; reservations, a READ of the head, questions and answers.
            sends: config.window + RESERVATIONS + 3,
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
        let out = Reserved::new(pd, config, peer, PeerRing::of(peer)?)?;
        Ok(Duplex::new(carrier, self.queues(config).receives, out, RingReceiver::new(config, memory))?)
    }
}
