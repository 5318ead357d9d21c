//! The sending half: writes messages at the tail of the peer's ring.

use std::collections::VecDeque;

use doorbell_verbs::{Access, MemoryKind, Payload, Pd, PostError, Qp, Region, SendFlags, SendOperation, SendRequest};

use super::{Acknowledge, BufferedWrite, HEAD, Notification, PeerRing, TAIL, notices};
use crate::connection::config::Config;
use crate::connection::duplex::{OUTGOING_TAG, Outgoing, UNEXPECTED_WORD};
use crate::connection::error::{ConnectError, ConnectionError};
use crate::connection::outbox::{Outbox, Source, Staged, Word};
use crate::connection::ring::{UNIT, WORD, space};
use crate::connection::{Backpressure, MessageId};
use crate::setup::EndpointDescription;

/// Id of READs of the head.
const READ_HEAD: u64 = OUTGOING_TAG | 1;

/// Modulus of the heads in SENDs. These heads count units of the ring.
pub(super) const HEAD_WORDS: u64 = 1 << 30;

/// Maximum position that the protocol accepts from a peer, so that additions cannot overflow. No connection reaches
/// this position in its life.
pub(crate) const FARTHEST: u64 = 1 << 62;

/// Maximum number of READs in a row that may return an impossible head before the connection ends. The peer's CPU may
/// store the head while the READ copies it. No standard promises that a READ returns a word from before or after such a
/// store. Linux's `rdma_rxe` copies the bytes one by one on some machines. The next READ returns a consistent head.
const MOST_TORN: u32 = 16;

/// This side's copy of the head of the peer's ring.
pub(crate) struct Head {
    peer: PeerRing,
    /// Memory into which the head is read.
    landing: Region,
    position: u64,
    is_being_read: bool,
    /// Number of READs in a row that returned an impossible head.
    torn: u32,
}

impl Head {
    pub(crate) fn new(pd: &Pd, peer: PeerRing) -> Result<Self, ConnectError> {
        let landing = pd.allocate(8, Access::LOCAL_WRITE, MemoryKind::Plain)?;
        Ok(Self { peer, landing, position: 0, is_being_read: false, torn: 0 })
    }

    #[inline]
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    pub(crate) fn is_being_read(&self) -> bool {
        self.is_being_read
    }

    /// Posts a READ of the head.
    pub(crate) fn read(&mut self, qp: &Qp) -> Result<(), PostError> {
        let sges = [self.landing.sge(0, 8)];
        qp.post_send(&[SendRequest {
            wr_id: READ_HEAD,
            operation: SendOperation::Read {
                remote_address: self.peer.words.address.wrapping_add(HEAD as u64),
                rkey: self.peer.words.rkey,
            },
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges(&sges),
            destination: None,
        }])?;
        self.is_being_read = true;
        Ok(())
    }

    /// Returns whether this completion belongs to a READ of the head, and if so, stores the new head.
    pub(crate) fn take_completion(&mut self, wr_id: u64, tail: u64) -> Result<bool, ConnectionError> {
        if wr_id != READ_HEAD {
            return Ok(false);
        }
        self.is_being_read = false;
        match self.set(u64::from_le(self.landing.load_acquire_u64(0)), tail) {
            Ok(()) => self.torn = 0,
            Err(_) if self.torn < MOST_TORN => self.torn += 1,
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    fn set(&mut self, head: u64, tail: u64) -> Result<(), ConnectionError> {
        if head < self.position || head > tail.min(FARTHEST) {
            return Err(ConnectionError::Protocol("a head that is not between the previous head and the tail"));
        }
        self.position = head;
        Ok(())
    }
}

/// The sending half of Buffered-Write.
pub struct Writes {
    variant: BufferedWrite,
    outbox: Outbox,
    peer: PeerRing,
    peer_max_message: usize,
    tail: u64,
    head: Head,
    /// Whether the ring had no space for the most recently submitted message.
    is_short: bool,
    /// End positions of messages that the peer has not freed. Used with immediate data, where each message occupies a
    /// receive of the peer.
    ends: VecDeque<u64>,
    /// Maximum number of messages that the peer has not freed: the number of receives of the peer. Unlimited without
    /// immediate data.
    receives: usize,
    batch: usize,
    pending: Vec<(Staged, SendOperation)>,
}

impl Writes {
    pub(super) fn new(
        variant: BufferedWrite,
        pd: &Pd,
        config: &Config,
        peer: &EndpointDescription,
    ) -> Result<Self, ConnectError> {
        let ring = PeerRing::of(peer)?;
        Ok(Self {
            variant,
            outbox: Outbox::new(pd, config, peer.max_message)?,
            peer: ring,
            peer_max_message: usize::try_from(peer.max_message).unwrap_or(usize::MAX),
            tail: 0,
            head: Head::new(pd, ring)?,
            is_short: false,
            ends: VecDeque::new(),
            receives: match variant.notification {
                Notification::Immediate => notices(peer.depth as usize),
                Notification::TailOffset | Notification::Reverse => usize::MAX,
            },
            batch: config.batch,
            pending: Vec::with_capacity(config.batch),
        })
    }

    /// Returns the bytes of the ring that a message of this length occupies.
    #[inline]
    fn space(&self, length: usize) -> u64 {
        match self.variant.notification {
            Notification::Immediate => space(length) as u64,
            Notification::TailOffset | Notification::Reverse => space(length + WORD) as u64,
        }
    }

    #[inline]
    fn freed(&mut self) {
        self.is_short = false;
        while self.ends.front().is_some_and(|&end| end <= self.head.position()) {
            self.ends.pop_front();
        }
    }
}

impl Outgoing for Writes {
    fn max_send(&self) -> usize {
        self.outbox.max_message()
    }

    fn max_received(&self) -> usize {
        self.peer_max_message
    }

    #[inline]
    fn refusal(&mut self, length: usize) -> Option<Backpressure> {
        if self.outbox.is_full() {
            return Some(Backpressure::Window);
        }
        let free = self.peer.bytes - (self.tail - self.head.position());
        if self.space(length) > free || self.ends.len() >= self.receives {
            self.is_short = true;
            return Some(Backpressure::Credits);
        }
        None
    }

    #[inline]
    fn send(&mut self, qp: &Qp, source: Source<'_>) -> Result<MessageId, PostError> {
        let length = source.len();
        let rkey = self.peer.ring.rkey;
        let at = self.peer.address(self.tail);
        let (operation, word) = match self.variant.notification {
            Notification::Immediate => {
                (SendOperation::WriteImmediate { remote_address: at, rkey, immediate: 0 }, Word::Absent)
            }
            Notification::TailOffset => {
                (SendOperation::Write { remote_address: at, rkey }, Word::Before(Word::signal(length)))
            }
            Notification::Reverse => {
                let remote_address = self.peer.reversed(self.tail).wrapping_sub((length + WORD) as u64);
                (SendOperation::Write { remote_address, rkey }, Word::Behind(Word::signal(length)))
            }
        };
        self.tail += self.space(length);
        if self.receives != usize::MAX {
            self.ends.push_back(self.tail);
        }
        let staged = self.outbox.stage(source, word);
        let id = staged.id;
        self.pending.push((staged, operation));
        if self.pending.len() >= self.batch {
            self.flush(qp)?;
        }
        Ok(id)
    }

    #[inline]
    fn flush(&mut self, qp: &Qp) -> Result<(), PostError> {
        let tail = self.tail.to_le_bytes();
        // WRITEs take effect in order (IBTA Vol 1, 10.8.3.3), so the new tail arrives after all messages before the
        // tail.
        let behind = (self.variant.notification == Notification::TailOffset).then_some((
            SendOperation::Write {
                remote_address: self.peer.words.address.wrapping_add(TAIL as u64),
                rkey: self.peer.words.rkey,
            },
            &tail[..],
        ));
        let result = self.outbox.post(qp, self.pending.iter().map(|(staged, operation)| (staged, *operation)), behind);
        self.pending.clear();
        result
    }

    #[inline]
    fn poll(&mut self, qp: &Qp) -> Result<usize, ConnectionError> {
        if self.variant.acknowledge == Acknowledge::Send || self.head.is_being_read() {
            return Ok(0);
        }
        // The sender reads the head when half of the ring is in use, so that the new head arrives before the ring is
        // full.
        let half = self.tail - self.head.position() > self.peer.bytes / 2;
        if self.is_short || half && self.outbox.unacknowledged() > 0 {
            self.head.read(qp)?;
        }
        Ok(0)
    }

    #[inline]
    fn take_completion(&mut self, wr_id: u64) -> Result<bool, ConnectionError> {
        let before = self.head.position();
        if self.head.take_completion(wr_id, self.tail)? {
            let has_moved = self.head.position() != before;
            if has_moved {
                self.freed();
            }
            // If space is still short, `poll` reads the head again.
            return Ok(has_moved);
        }
        self.outbox.complete(wr_id);
        Ok(true)
    }

    fn take_word(&mut self, word: u32) -> Result<(), ConnectionError> {
        if self.variant.acknowledge == Acknowledge::Read {
            return Err(UNEXPECTED_WORD);
        }
        let known = self.head.position();
        let newly = u64::from(word).wrapping_sub(known / UNIT as u64) % HEAD_WORDS;
        self.head.set(known + newly * UNIT as u64, self.tail)?;
        self.freed();
        Ok(())
    }

    fn last_done(&self) -> MessageId {
        self.outbox.last_done()
    }

    fn last_accepted(&self) -> MessageId {
        self.outbox.last_accepted()
    }

    fn notifies(&self) -> bool {
        // While space is short, this half must read the head again and again, and no notification announces a new head.
        // So this side cannot sleep then.
        self.variant.acknowledge == Acknowledge::Send || !self.is_short
    }
}
