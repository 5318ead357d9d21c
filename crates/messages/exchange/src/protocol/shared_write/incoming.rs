//! The receiving half: takes the messages of one sender from the ring that all senders share.

use std::collections::VecDeque;
use std::sync::Arc;

use doorbell_verbs::{Payload, Qp, SendFlags, SendOperation, SendRequest};

use super::Common;
use super::outgoing::{ALL_WRITTEN, ANSWER_UNITS, QUESTION};
use super::recovery::Member;
use crate::connection::config::Config;
use crate::connection::duplex::{INCOMING_TAG, Incoming};
use crate::connection::error::ConnectionError;
use crate::connection::ring::{RingMessage, UNIT, space};

/// The receiving half of Shared-Write.
pub struct RingReceiver {
    common: Arc<Common>,
    member: Option<Member>,
    max_message: usize,
    inbox: VecDeque<RingMessage>,
    /// Round of recovery whose question was sent and is not answered yet.
    asked: Option<u64>,
}

impl RingReceiver {
    pub(super) fn new(config: &Config, common: Arc<Common>) -> Self {
        let member = Some(common.recovery.join());
        let inbox = VecDeque::with_capacity(config.depth);
        Self { common, member, max_message: config.max_message, inbox, asked: None }
    }
}

impl Incoming for RingReceiver {
    type Message = RingMessage;

    fn look(&mut self) -> Result<usize, ConnectionError> {
        Ok(0) // WRITEs with immediate data announce all messages
    }

    #[inline]
    fn tell(&mut self, qp: &Qp, _is_idle: bool) -> Result<usize, ConnectionError> {
        let Common { ring, recovery, .. } = &*self.common;
        ring.advance();
        recovery.look(ring);
        let Some(member) = &self.member else { return Ok(0) };
        if self.asked.is_none()
            && let Some(round) = recovery.question_for(member)
        {
            qp.post_send(&[SendRequest {
                wr_id: INCOMING_TAG,
                operation: SendOperation::SendImmediate(QUESTION),
                flags: SendFlags::SIGNALED,
                payload: Payload::Inline(&[]),
                destination: None,
            }])?;
            self.asked = Some(round);
        }
        Ok(0)
    }

    fn take_completion(&mut self, _wr_id: u64) -> Result<bool, ConnectionError> {
        Ok(true)
    }

    fn take_word(&mut self, word: u32) -> Result<(), ConnectionError> {
        let (Some(round), Some(member)) = (self.asked.take(), &mut self.member) else {
            return Err(ConnectionError::Protocol("an answer without a question"));
        };
        let Common { ring, recovery, .. } = &*self.common;
        let unwritten = (word & ALL_WRITTEN == 0).then(|| {
            let head = ring.head();
            let ahead = u64::from(word).wrapping_sub(head / UNIT as u64) % ANSWER_UNITS;
            head + ahead * UNIT as u64
        });
        recovery.answered(member, round, unwritten, ring);
        Ok(())
    }

    #[inline]
    fn take_notice(&mut self, immediate: u32, length: usize) -> Result<(), ConnectionError> {
        let ring = &self.common.ring;
        let (bytes, space) = (ring.bytes() as u64, space(length) as u64);
        let at = u64::from(immediate) * UNIT as u64;
        if length > self.max_message {
            return Err(ConnectionError::TooLong { length, most: self.max_message });
        }
        if at >= bytes {
            return Err(ConnectionError::Protocol("a message whose position lies outside the ring"));
        }
        let head = ring.head();
        let ahead = (at + bytes - head % bytes) % bytes;
        let position = head + ahead;
        if ahead + space > bytes || position + space > self.common.tail() || ring.is_taken(position) {
            return Err(ConnectionError::Protocol("a message in space that no sender has reserved"));
        }
        self.inbox.push_back(ring.lend(position, space as usize, ring.offset(position), length));
        Ok(())
    }

    #[inline]
    fn take(&mut self) -> Option<RingMessage> {
        self.inbox.pop_front()
    }

    fn end(&mut self, in_peace: bool) {
        let Some(member) = self.member.take() else { return };
        let Common { ring, recovery, .. } = &*self.common;
        // A peer that has sent its goodbye has written to all its reservations, so it leaves no hole, and recovery
        // needs no tail.
        let tail = (!in_peace).then(|| self.common.tail());
        recovery.leave(member, tail, ring);
    }

    fn notifies(&self) -> bool {
        true
    }
}
