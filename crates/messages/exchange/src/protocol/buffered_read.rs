//! Buffered-Read: with one READ, the receiver reads all messages that wait in the sender's ring.
//!
//! ```text
//! sender                                          receiver
//!   send -> id   writes [length | message]
//!                and the tail's offset into
//!                its own memory
//!                <-  READ of the tail's offset,     polls the tail
//!                    READ up to the tail        ->  splits the bytes into messages
//!   is_done(id)  <-  WRITE of the head
//! ```
//!
//! The sender is passive: it posts no work requests. All waiting messages together cost one READ of the tail, one READ
//! of the messages, and one WRITE of the head. The receiver therefore reads messages in batches without any setting.
//! The disadvantage is that the receiver reads the tail all the time, even when no message waits, and cannot sleep. A
//! message waits until the next READ of the tail.
//!
//! Both ends have a ring. The sender frees a message in its ring as soon as the receiver has read the message. The
//! receiver frees a message in its ring when the program has dropped this message and all messages before it.

use std::collections::VecDeque;
use std::sync::Arc;

use doorbell_protocols::Protocol;
use doorbell_verbs::{Access, MemoryKind, Payload, Pd, PostError, Qp, Region, SendFlags, SendOperation, SendRequest};
use smallvec::SmallVec;

use crate::connection::carrier::{Queues, Unconnected};
use crate::connection::config::Config;
use crate::connection::duplex::{Duplex, INCOMING_TAG, Incoming, Outgoing, WORD_RECEIVES};
use crate::connection::engine::{self, Recipe};
use crate::connection::error::{ConnectError, ConnectionError};
use crate::connection::outbox::{Source, Word};
use crate::connection::ring::{Ring, RingMessage, WORD, ring_bytes, space};
use crate::connection::{Backpressure, MessageId};
use crate::protocol::buffered_write::{HEAD, PeerRing, WORDS};
use crate::setup::{EndpointDescription, RemoteRegion};

pub use crate::connection::ring::RingMessage as Message;

/// The protocol Buffered-Read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferedRead;

/// One end of a connection that is not connected yet.
pub type Endpoint = engine::Endpoint<BufferedRead>;
/// A connection of this protocol.
pub type Connection = engine::Connection<BufferedRead>;

/// Offset of the tail in the region `words`. The receiver READs the tail.
const TAIL: usize = 0;

/// Marks READs of the tail.
const READ_TAIL: u64 = 1;
/// Marks READs of messages.
const READ_MESSAGES: u64 = 2;
/// Marks WRITEs of the head.
const WRITE_HEAD: u64 = 3;
/// Maximum number of requests of the receiving half in the send queue: one READ of the tail, one READ of messages, and
/// two WRITEs of the head.
const REQUESTS: usize = 4;

/// Memory that an endpoint allocates before it knows the description of the peer.
#[derive(Debug)]
pub struct Memory {
    ring: Region,
    words: Region,
}

impl Recipe for BufferedRead {
    type Memory = Memory;
    type Machine = Duplex<Passive, Puller>;

    fn id(&self) -> Protocol {
        Protocol::BufferedRead
    }

    fn memory(&self, pd: &Pd, config: &Config) -> Result<Memory, ConnectError> {
        let words = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        Ok(Memory {
            ring: pd.allocate(ring_bytes(config)?, Access::REMOTE_READ, MemoryKind::Mirrored)?,
            words: pd.allocate(WORDS, words, MemoryKind::Plain)?,
        })
    }

    fn regions(memory: &Memory) -> [RemoteRegion; 2] {
        [RemoteRegion::of(&memory.ring), RemoteRegion::of(&memory.words)]
    }

    fn access(&self) -> Access {
        Access::REMOTE_WRITE | Access::REMOTE_READ
    }

    fn queues(&self, _config: &Config) -> Queues {
        Queues { sends: REQUESTS, receives: WORD_RECEIVES, inline: WORD, sges: 1 }
    }

    fn machine(
        &self,
        carrier: &Unconnected,
        config: &Config,
        memory: Memory,
        peer: &EndpointDescription,
    ) -> Result<Duplex<Passive, Puller>, ConnectError> {
        let pd = &carrier.pd;
        let Memory { ring, words } = memory;
        let most = usize::try_from(peer.max_message).unwrap_or(usize::MAX);
        let bytes = ring.len() / 2;
        let out = Passive {
            max_message: config.max_message.min(most),
            window: config.window as u64,
            batch: config.batch,
            ring,
            bytes,
            words,
            tail: 0,
            published: 0,
            waiting: 0,
            ends: VecDeque::with_capacity(config.window),
            last_accepted: 0,
            last_done: 0,
        };
        let incoming = Puller {
            peer: PeerRing::of(peer)?,
            ring: Ring::new(pd, ring_bytes(config)?, Access::LOCAL_WRITE, false, None)?,
            landing: pd.allocate(8, Access::LOCAL_WRITE, MemoryKind::Plain)?,
            max_message: config.max_message,
            tail: 0,
            asked: 0,
            pulled: 0,
            position: 0,
            told: 0,
            is_asking: false,
            heads_out: 0,
            inbox: VecDeque::with_capacity(config.depth),
        };
        Ok(Duplex::new(carrier, self.queues(config).receives, out, incoming)?)
    }
}

/// The sending half, which only writes into its own memory.
pub struct Passive {
    max_message: usize,
    window: u64,
    batch: usize,
    ring: Region,
    bytes: usize,
    words: Region,
    tail: u64,
    published: u64,
    waiting: usize,
    /// End positions of the messages that the peer has not read, oldest first.
    ends: VecDeque<u64>,
    last_accepted: MessageId,
    last_done: MessageId,
}

impl Passive {
    fn head(&self) -> u64 {
        u64::from_le(self.words.load_acquire_u64(HEAD))
    }
}

impl Outgoing for Passive {
    fn max_send(&self) -> usize {
        self.max_message
    }

    fn max_received(&self) -> usize {
        self.max_message
    }

    #[inline]
    fn refusal(&mut self, length: usize) -> Option<Backpressure> {
        if self.last_accepted - self.last_done >= self.window {
            return Some(Backpressure::Window);
        }
        let oldest = self.ends.front().map_or(self.tail, |_| self.head());
        let used = self.tail.saturating_sub(oldest) as usize;
        (space(length + WORD) + used > self.bytes).then_some(Backpressure::Credits)
    }

    #[inline]
    fn send(&mut self, qp: &Qp, source: Source<'_>) -> Result<MessageId, PostError> {
        let length = source.len();
        let offset = (self.tail % self.bytes as u64) as usize;
        self.ring.copy_in(offset, &Word::signal(length));
        match source {
            Source::Bytes(bytes) => self.ring.copy_in(offset + WORD, bytes),
            Source::Memory { region, offset: from, length } => {
                // Messages wait in the ring, so this protocol always copies them. The copy goes through a small buffer,
                // since other threads or peers may write to the source at the same time.
                let mut piece = [0; 4096];
                for at in (0..length).step_by(piece.len()) {
                    let piece = &mut piece[..(length - at).min(4096)];
                    region.copy_out(from + at, piece);
                    self.ring.copy_in(offset + WORD + at, piece);
                }
            }
        }
        self.tail += space(length + WORD) as u64;
        self.ends.push_back(self.tail);
        self.last_accepted += 1;
        self.waiting += 1;
        if self.waiting >= self.batch {
            self.flush(qp)?;
        }
        Ok(self.last_accepted)
    }

    #[inline]
    fn flush(&mut self, _qp: &Qp) -> Result<(), PostError> {
        if self.published != self.tail {
            self.words.store_release_u64(TAIL, self.tail.to_le());
            self.published = self.tail;
        }
        self.waiting = 0;
        Ok(())
    }

    #[inline]
    fn poll(&mut self, _qp: &Qp) -> Result<usize, ConnectionError> {
        if self.ends.is_empty() {
            return Ok(0);
        }
        let head = self.head();
        if head > self.tail {
            return Err(ConnectionError::Protocol("a head that is beyond the tail"));
        }
        let before = self.last_done;
        while self.ends.front().is_some_and(|&end| end <= head) {
            self.ends.pop_front();
            self.last_done += 1;
        }
        Ok((self.last_done - before) as usize)
    }

    fn take_completion(&mut self, _wr_id: u64) -> Result<bool, ConnectionError> {
        Ok(true)
    }

    fn last_done(&self) -> MessageId {
        self.last_done
    }

    fn last_accepted(&self) -> MessageId {
        self.last_accepted
    }

    /// The head arrives by a WRITE, which raises no notification.
    fn notifies(&self) -> bool {
        self.ends.is_empty()
    }
}

/// The receiving half, which reads the tail and the messages from the peer, and writes the head to the peer.
pub struct Puller {
    peer: PeerRing,
    ring: Arc<Ring>,
    /// Memory into which the tail is read.
    landing: Region,
    max_message: usize,
    /// Tail of the peer that the latest READ returned.
    tail: u64,
    /// Position up to which READs of messages were posted.
    asked: u64,
    /// Position up to which READs of messages are complete.
    pulled: u64,
    /// Position of the next message.
    position: u64,
    /// Latest head that was written to the peer.
    told: u64,
    is_asking: bool,
    heads_out: usize,
    inbox: VecDeque<RingMessage>,
}

impl Puller {
    fn request<'a>(wr_id: u64, operation: SendOperation, payload: Payload<'a>) -> SendRequest<'a> {
        let wr_id = INCOMING_TAG | wr_id;
        SendRequest { wr_id, operation, flags: SendFlags::SIGNALED, payload, destination: None }
    }
}

impl Incoming for Puller {
    type Message = RingMessage;

    /// Splits the bytes that were read into messages. Leaves an incomplete last message for a later call.
    #[inline]
    fn look(&mut self) -> Result<usize, ConnectionError> {
        let mut count = 0;
        while self.pulled - self.position >= WORD as u64 {
            let offset = self.ring.offset(self.position);
            let mut word = [0; WORD];
            self.ring.region().copy_out(offset, &mut word);
            let length = Word::number(word);
            if length > self.max_message {
                return Err(ConnectionError::TooLong { length, most: self.max_message });
            }
            let space = space(length + WORD);
            if self.pulled - self.position < space as u64 {
                break;
            }
            self.inbox.push_back(self.ring.lend(self.position, space, offset + WORD, length));
            self.position += space as u64;
            count += 1;
        }
        Ok(count)
    }

    #[inline]
    fn tell(&mut self, qp: &Qp, _is_idle: bool) -> Result<usize, ConnectionError> {
        self.ring.advance();
        let RemoteRegion { address: words, rkey, .. } = self.peer.words;
        let head = self.pulled.to_le_bytes();
        let room = self.ring.bytes() as u64 - (self.asked - self.ring.head());
        let length = (self.tail - self.asked).min(room).min(self.peer.bytes);
        let messages = [self.ring.region().sge(self.ring.offset(self.asked), length as usize)];
        let tail = [self.landing.sge(0, 8)];
        let mut list: SmallVec<[SendRequest<'_>; REQUESTS]> = SmallVec::new();
        if self.told != self.pulled && self.heads_out < 2 {
            let remote_address = words.wrapping_add(HEAD as u64);
            list.push(Self::request(WRITE_HEAD, SendOperation::Write { remote_address, rkey }, Payload::Inline(&head)));
            self.told = self.pulled;
            self.heads_out += 1;
        }
        let is_pulling = self.asked != self.pulled;
        if length > 0 && !is_pulling {
            let (remote_address, rkey) = (self.peer.address(self.asked), self.peer.ring.rkey);
            let operation = SendOperation::Read { remote_address, rkey };
            list.push(Self::request(READ_MESSAGES, operation, Payload::Sges(&messages)));
            self.asked += length;
        }
        // Post another READ of the tail once the previous READ of the tail is complete and READs of all messages up to
        // that tail are posted.
        if !self.is_asking && self.tail == self.asked {
            let operation = SendOperation::Read { remote_address: words.wrapping_add(TAIL as u64), rkey };
            list.push(Self::request(READ_TAIL, operation, Payload::Sges(&tail)));
            self.is_asking = true;
        }
        if !list.is_empty() {
            qp.post_send(&list)?;
        }
        // Posting a READ of the tail does not count as an event.
        Ok(0)
    }

    #[inline]
    fn take_completion(&mut self, wr_id: u64) -> Result<bool, ConnectionError> {
        match wr_id {
            READ_TAIL => {
                let tail = u64::from_le(self.landing.load_acquire_u64(0));
                if tail < self.tail || tail - self.told > self.peer.bytes {
                    return Err(ConnectionError::Protocol(
                        "a tail before the previous tail, or more than a ring length after the head",
                    ));
                }
                let before = std::mem::replace(&mut self.tail, tail);
                self.is_asking = false;
                return Ok(tail != before);
            }
            READ_MESSAGES => self.pulled = self.asked,
            _ => self.heads_out -= 1,
        }
        Ok(true)
    }

    #[inline]
    fn take(&mut self) -> Option<RingMessage> {
        self.inbox.pop_front()
    }

    /// New messages raise no notification: this half finds them only by a READ of the tail.
    fn notifies(&self) -> bool {
        false
    }
}
