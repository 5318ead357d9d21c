//! The sending half: reserves space in the peer's ring, then writes messages into the space.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use doorbell_verbs::{Access, MemoryKind, Payload, Pd, PostError, Qp, Region, SendFlags, SendOperation, SendRequest};
use smallvec::SmallVec;

use super::{Reserves, TAIL};
use crate::connection::config::{Config, MAX_BATCH};
use crate::connection::duplex::{OUTGOING_TAG, Outgoing, TO_RECEIVER, UNEXPECTED_WORD};
use crate::connection::error::{ConnectError, ConnectionError};
use crate::connection::outbox::{Outbox, Source, Staged, Word};
use crate::connection::ring::{UNIT, space};
use crate::connection::{Backpressure, MessageId};
use crate::protocol::buffered_write::{FARTHEST, Head, PeerRing, notices};
use crate::setup::EndpointDescription;

/// Id of FETCH_ADDs.
pub(super) const RESERVE: u64 = OUTGOING_TAG | 2;
/// Id of SENDs of answers.
const ANSWER: u64 = OUTGOING_TAG | 3;

/// Word that asks this sender for its first unwritten reservation, after another sender has died.
pub(super) const QUESTION: u32 = 1;
/// Flag of an answer: this sender has written all its reservations, and the answer has no position.
pub(super) const ALL_WRITTEN: u32 = 1 << 29;
/// Modulus of the positions in answers. The positions count units of the ring.
pub(super) const ANSWER_UNITS: u64 = 1 << 29;

/// A message that waits for its reservation, or for room in the ring.
struct Waiting {
    staged: Staged,
    space: u64,
}

/// State of answering a question of the receiver.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Question {
    No,
    /// The question arrived after this half had begun this number of reservations.
    Asked(u64),
    /// This half posted a READ of the head after the question arrived.
    Reading(u64),
    /// The READ of the head is complete, so this half knows which reservations fit into the ring.
    Known(u64),
}

/// The sending half of Shared-Write.
pub struct Reserved {
    outbox: Outbox,
    peer: PeerRing,
    peer_max_message: usize,
    head: Head,
    /// Position after the latest reservation of this half.
    reserved_to: u64,
    /// Messages that this half has accepted and not yet posted, oldest first.
    waiting: VecDeque<Waiting>,
    /// Complete reservations for waiting messages, oldest first: the position of the next message of the reservation,
    /// and the number of its unposted messages.
    placed: VecDeque<(u64, usize)>,
    /// Reservations in flight, oldest first: the number of messages of the reservation, and their bytes.
    reserving: VecDeque<(usize, u64)>,
    reservations_begun: u64,
    reservations_done: u64,
    /// Memory into which each FETCH_ADD returns the previous tail.
    landing: Region,
    /// Content of `landing` until the device writes a result. The number is odd, unlike each valid tail. It is also
    /// random, so a peer cannot choose it as an invalid tail.
    no_result: u64,
    /// Number of waiting messages for which no FETCH_ADD was posted.
    unreserved: usize,
    reserves: Reserves,
    /// End positions of written messages that the peer has not freed. Each of these messages occupies a receive of the
    /// peer.
    ends: VecDeque<u64>,
    receives: usize,
    batch: usize,
    question: Question,
}

impl Reserved {
    pub(super) fn new(
        pd: &Pd,
        config: &Config,
        reserves: Reserves,
        peer: &EndpointDescription,
        ring: PeerRing,
    ) -> Result<Self, ConnectError> {
        Ok(Self {
            outbox: Outbox::new(pd, config, peer.max_message)?,
            peer: ring,
            peer_max_message: usize::try_from(peer.max_message).unwrap_or(usize::MAX),
            head: Head::new(pd, ring)?,
            reserved_to: 0,
            waiting: VecDeque::with_capacity(config.window),
            placed: VecDeque::with_capacity(config.window),
            reserving: VecDeque::with_capacity(reserves.in_flight()),
            reservations_begun: 0,
            reservations_done: 0,
            landing: pd.allocate(reserves.in_flight() * 8, Access::LOCAL_WRITE, MemoryKind::Plain)?,
            no_result: RandomState::new().build_hasher().finish() | 1,
            unreserved: 0,
            reserves,
            ends: VecDeque::with_capacity(notices(peer.depth as usize)),
            receives: notices(peer.depth as usize),
            batch: config.batch,
            question: Question::No,
        })
    }

    /// Reserves space for the messages without a reservation, until the maximum number of reservations is in flight.
    fn reserve(&mut self, qp: &Qp) -> Result<(), PostError> {
        while self.unreserved > 0 && self.reserving.len() < self.reserves.in_flight() {
            let count = match self.reserves {
                Reserves::Waiting => self.unreserved,
                Reserves::Each => 1,
            };
            self.reserve_for(count, qp)?;
        }
        Ok(())
    }

    /// Reserves space for the oldest `count` messages without a reservation.
    fn reserve_for(&mut self, count: usize, qp: &Qp) -> Result<(), PostError> {
        let reserved = self.waiting.len() - self.unreserved;
        let bytes = self.waiting.range(reserved..reserved + count).map(|waiting| waiting.space).sum();
        let slot = self.reservations_begun as usize % self.reserves.in_flight();
        self.landing.store_release_u64(slot * 8, self.no_result);
        let sges = [self.landing.sge(slot * 8, 8)];
        qp.post_send(&[SendRequest {
            wr_id: RESERVE,
            operation: SendOperation::FetchAdd {
                remote_address: self.peer.words.address.wrapping_add(TAIL as u64),
                rkey: self.peer.words.rkey,
                add: bytes,
            },
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges(&sges),
            destination: None,
        }])?;
        self.reserving.push_back((count, bytes));
        self.reservations_begun += 1;
        self.unreserved -= count;
        Ok(())
    }

    /// Returns the position of the oldest waiting message, if its reservation is complete.
    fn next_position(&self) -> Option<u64> {
        self.placed.front().map(|&(position, _)| position)
    }

    /// Posts WRITEs of the messages that have room in the ring. Returns the number of these messages.
    fn write(&mut self, qp: &Qp) -> Result<usize, PostError> {
        let mut list: SmallVec<[(Staged, SendOperation); MAX_BATCH]> = SmallVec::new();
        while list.len() < MAX_BATCH
            && self.ends.len() < self.receives
            && let Some((position, left)) = self.placed.front_mut()
            && let Some(next) = self.waiting.front()
            && *position + next.space <= self.head.position() + self.peer.bytes
        {
            let at = *position;
            *position += next.space;
            *left -= 1;
            if *left == 0 {
                self.placed.pop_front();
            }
            let Some(Waiting { staged, space }) = self.waiting.pop_front() else { break };
            self.ends.push_back(at + space);
            let operation = SendOperation::WriteImmediate {
                remote_address: self.peer.address(at),
                rkey: self.peer.ring.rkey,
                immediate: (at % self.peer.bytes / UNIT as u64) as u32,
            };
            list.push((staged, operation));
        }
        self.outbox.post(qp, list.iter().map(|(staged, operation)| (staged, *operation)), None)?;
        Ok(list.len())
    }

    /// Answers the question, once this half has written all its earlier reservations that fit into the ring.
    fn answer(&mut self, qp: &Qp) -> Result<(), ConnectionError> {
        let Question::Known(begun) = self.question else { return Ok(()) };
        if self.reservations_done < begun {
            return Ok(());
        }
        // The caller has just called `write`, which posts messages for which the ring has room and the peer has a
        // receive. All messages that still wait count as unwritten.
        let word = match self.next_position() {
            Some(position) => (position / UNIT as u64 % ANSWER_UNITS) as u32,
            None => ALL_WRITTEN,
        };
        qp.post_send(&[SendRequest {
            wr_id: ANSWER,
            operation: SendOperation::SendImmediate(TO_RECEIVER | word),
            flags: SendFlags::SIGNALED,
            payload: Payload::Inline(&[]),
            destination: None,
        }])?;
        self.question = Question::No;
        Ok(())
    }
}

impl Outgoing for Reserved {
    fn max_send(&self) -> usize {
        self.outbox.max_message()
    }

    fn max_received(&self) -> usize {
        self.peer_max_message
    }

    #[inline]
    fn refusal(&mut self, _length: usize) -> Option<Backpressure> {
        self.outbox.is_full().then_some(Backpressure::Window)
    }

    #[inline]
    fn send(&mut self, qp: &Qp, source: Source<'_>) -> Result<MessageId, PostError> {
        let space = space(source.len()) as u64;
        let staged = self.outbox.stage(source, Word::Absent);
        let id = staged.id;
        self.waiting.push_back(Waiting { staged, space });
        self.unreserved += 1;
        if self.reserves == Reserves::Each || self.unreserved >= self.batch {
            self.reserve(qp)?;
        }
        Ok(id)
    }

    #[inline]
    fn flush(&mut self, qp: &Qp) -> Result<(), PostError> {
        self.reserve(qp)
    }

    #[inline]
    fn poll(&mut self, qp: &Qp) -> Result<usize, ConnectionError> {
        let written = self.write(qp)?;
        let wants_head = written == 0 && self.next_position().is_some();
        let is_asked = matches!(self.question, Question::Asked(_));
        if (wants_head || is_asked) && !self.head.is_being_read() {
            self.head.read(qp)?;
            if let Question::Asked(begun) = self.question {
                self.question = Question::Reading(begun);
            }
        }
        if self.question != Question::No {
            self.answer(qp)?;
        }
        Ok(written)
    }

    #[inline]
    fn take_completion(&mut self, wr_id: u64) -> Result<bool, ConnectionError> {
        let before = self.head.position();
        match wr_id {
            RESERVE => {
                let slot = self.reservations_done as usize % self.reserves.in_flight();
                let position = self.landing.load_acquire_u64(slot * 8);
                let Some((count, bytes)) = self.reserving.pop_front() else { return Ok(true) };
                if position == self.no_result {
                    return Err(ConnectionError::NoResult);
                }
                if position < self.reserved_to || !position.is_multiple_of(UNIT as u64) || position > FARTHEST {
                    return Err(ConnectionError::Protocol(
                        "a tail inside space that was reserved before, or a tail that no ring can have",
                    ));
                }
                self.reservations_done += 1;
                self.reserved_to = position + bytes;
                self.placed.push_back((position, count));
            }
            ANSWER => {}
            // This half cannot check the head against the tail, since other senders also add to the tail.
            id if self.head.take_completion(id, u64::MAX)? => {
                while self.ends.front().is_some_and(|&end| end <= self.head.position()) {
                    self.ends.pop_front();
                }
                if let Question::Reading(begun) = self.question {
                    self.question = Question::Known(begun);
                    return Ok(true);
                }
                return Ok(self.head.position() != before);
            }
            id => self.outbox.complete(id),
        }
        Ok(true)
    }

    fn take_word(&mut self, word: u32) -> Result<(), ConnectionError> {
        if word != QUESTION || self.question != Question::No {
            return Err(UNEXPECTED_WORD);
        }
        self.question = Question::Asked(self.reservations_begun);
        Ok(())
    }

    fn last_done(&self) -> MessageId {
        self.outbox.last_done()
    }

    fn last_accepted(&self) -> MessageId {
        self.outbox.last_accepted()
    }

    fn notifies(&self) -> bool {
        // While messages wait for space, this half must read the head again and again, and no notification announces a
        // new head. So this side cannot sleep then.
        self.placed.is_empty()
    }
}
