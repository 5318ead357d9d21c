//! The receiving half: finds messages in its ring.

use std::collections::VecDeque;
use std::sync::Arc;

use doorbell_verbs::{Payload, Qp, Region, SendFlags, SendOperation, SendRequest};

use super::outgoing::HEAD_WORDS;
use super::{Acknowledge, BufferedWrite, Notification, TAIL, WORDS_OUT, notices};
use crate::connection::config::Config;
use crate::connection::duplex::{INCOMING_TAG, Incoming, UNEXPECTED_NOTICE};
use crate::connection::error::ConnectionError;
use crate::connection::outbox::Word;
use crate::connection::ring::{Ring, RingMessage, UNIT, WORD, space};

/// The receiving half of Buffered-Write.
pub struct Written {
    variant: BufferedWrite,
    ring: Arc<Ring>,
    words: Region,
    max_message: usize,
    /// Position of the next message.
    position: u64,
    inbox: VecDeque<RingMessage>,
    /// Latest head that was sent to the peer.
    told: u64,
    /// Number of SENDs of the head that are not complete.
    words_out: usize,
    /// Number of messages that were freed since the latest head was sent.
    untold: usize,
    /// Value of `untold` at which a new head is due. Used with immediate data, where each message occupies a receive.
    tell_at: usize,
}

impl Written {
    pub(super) fn new(variant: BufferedWrite, config: &Config, ring: Arc<Ring>, words: Region) -> Self {
        let inbox = VecDeque::with_capacity(config.depth);
        Self {
            variant,
            ring,
            words,
            max_message: config.max_message,
            position: 0,
            inbox,
            told: 0,
            words_out: 0,
            untold: 0,
            tell_at: match variant.notification {
                Notification::Immediate => (notices(config.depth) / 8).max(1),
                Notification::TailOffset | Notification::Reverse => usize::MAX,
            },
        }
    }

    /// Takes the message at the current position. Its bytes lie at `offset` of the region.
    #[inline]
    fn take_message(&mut self, space: usize, offset: usize, length: usize) -> Result<(), ConnectionError> {
        let free = self.ring.bytes() as u64 - (self.position - self.ring.head());
        if space as u64 > free {
            return Err(ConnectionError::Protocol("a message that is longer than the free space of the ring"));
        }
        self.inbox.push_back(self.ring.lend(self.position, space, offset, length));
        self.position += space as u64;
        Ok(())
    }

    /// Returns the length in the word at this offset.
    #[inline]
    fn length_at(&self, offset: usize) -> Result<usize, ConnectionError> {
        let mut word = [0; WORD];
        self.ring.region().copy_out(offset, &mut word);
        let length = Word::number(word);
        self.check_length(length)?;
        Ok(length)
    }

    #[inline]
    fn check_length(&self, length: usize) -> Result<(), ConnectionError> {
        if length > self.max_message {
            return Err(ConnectionError::TooLong { length, most: self.max_message });
        }
        Ok(())
    }

    #[inline]
    fn look_at_tail(&mut self) -> Result<usize, ConnectionError> {
        let tail = u64::from_le(self.words.load_acquire_u64(TAIL));
        let mut count = 0;
        while self.position < tail {
            let offset = self.ring.offset(self.position);
            let length = self.length_at(offset)?;
            let space = space(length + WORD);
            if tail - self.position < space as u64 {
                return Err(ConnectionError::Protocol("a tail that is inside a message"));
            }
            self.take_message(space, offset + WORD, length)?;
            count += 1;
        }
        Ok(count)
    }

    #[inline]
    fn look_at_signals(&mut self) -> Result<usize, ConnectionError> {
        let mut count = 0;
        // In a full ring, the byte at the next position is the signal byte of the oldest message, so the loop must not
        // read it.
        while self.position - self.ring.head() < self.ring.bytes() as u64 {
            let end = self.ring.reversed(self.position);
            if self.ring.region().load_acquire_u8(end - 1) == 0 {
                break;
            }
            let length = self.length_at(end - WORD)?;
            self.take_message(space(length + WORD), end - WORD - length, length)?;
            count += 1;
        }
        Ok(count)
    }
}

impl Incoming for Written {
    type Message = RingMessage;

    #[inline]
    fn look(&mut self) -> Result<usize, ConnectionError> {
        match self.variant.notification {
            Notification::Immediate => Ok(0),
            Notification::TailOffset => self.look_at_tail(),
            Notification::Reverse => self.look_at_signals(),
        }
    }

    /// Frees messages in order. Sends the head once an eighth of the ring was freed since it sent the previous head.
    #[inline]
    fn tell(&mut self, qp: &Qp, _is_idle: bool) -> Result<usize, ConnectionError> {
        let freed = self.ring.advance();
        self.untold += freed;
        let head = self.ring.head();
        let is_due = head - self.told >= self.ring.bytes() as u64 / 8 || self.untold >= self.tell_at;
        if self.variant.acknowledge == Acknowledge::Read || !is_due || self.words_out >= WORDS_OUT {
            return Ok(freed);
        }
        qp.post_send(&[SendRequest {
            wr_id: INCOMING_TAG,
            operation: SendOperation::SendImmediate((head / UNIT as u64 % HEAD_WORDS) as u32),
            flags: SendFlags::SIGNALED,
            payload: Payload::Inline(&[]),
            destination: None,
        }])?;
        self.told = head;
        self.untold = 0;
        self.words_out += 1;
        Ok(freed)
    }

    fn take_completion(&mut self, _wr_id: u64) -> Result<bool, ConnectionError> {
        self.words_out -= 1;
        Ok(true)
    }

    #[inline]
    fn take_notice(&mut self, _immediate: u32, length: usize) -> Result<(), ConnectionError> {
        if self.variant.notification != Notification::Immediate {
            return Err(UNEXPECTED_NOTICE);
        }
        self.check_length(length)?;
        let offset = self.ring.offset(self.position);
        self.take_message(space(length), offset, length)
    }

    #[inline]
    fn take(&mut self) -> Option<RingMessage> {
        self.inbox.pop_front()
    }

    fn notifies(&self) -> bool {
        self.variant.notification == Notification::Immediate
    }
}
