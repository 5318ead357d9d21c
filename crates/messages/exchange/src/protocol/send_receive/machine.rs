//! The machine of both halves, which share the pool of receives. Sent messages carry the grants of the pool, and
//! received messages carry the grants of the peer.

use std::collections::VecDeque;
use std::sync::Arc;

use doorbell_verbs::{Attachment, Completion, Cq, PostError, Qp};

use super::hub::Claim;
use super::sending::Sending;
use crate::connection::carrier::{Carrier, RECEIVE_TAG};
use crate::connection::config::{Config, MAX_POLL_LIST};
use crate::connection::engine::Machine;
use crate::connection::error::ConnectionError;
use crate::connection::lent::{Buffers, Lent};
use crate::connection::outbox::Source;
use crate::connection::receives::credits::Word;
use crate::connection::receives::pool::{Message, Pool};
use crate::connection::{Backpressure, MessageId};

/// Minimum number of returned buffers that are reposted together while messages arrive.
const REPOST_BATCH: usize = 16;

/// Content of a received SEND.
enum Arrival {
    /// A message for the program.
    Data,
    /// A credit message or the goodbye.
    Word,
}

/// The machine of the protocol Send-Receive.
pub struct Pooled {
    pub(super) config: Config,
    pub(super) sending: Sending,
    pub(super) pool: Arc<Pool>,
    /// Number of receives that the peer has for data.
    pub(super) peer_depth: u64,
    pub(super) inbox: VecDeque<(u32, u32)>,
    /// Number of credit messages that the peer has sent.
    pub(super) credit_words: u64,
    /// Share of this connection in the completion queue of a [`Hub`](super::Hub). `None` if the connection polls its
    /// own queue.
    pub(super) claim: Option<Claim>,
    /// Completion queue that `drop` drains, since the completed receives in the queue occupy shared buffers. `None` if
    /// the receives are not shared, or if a hub polls the queue.
    pub(super) left_behind: Option<Cq>,
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if !self.pool.is_shared() {
            return; // the buffers are dropped together with the queue pair
        }
        // Shared buffers go back to the shared receive queue: the buffers of receives that were not polled, and the
        // buffers of messages that the program has not taken.
        let mut list = [Completion::default(); MAX_POLL_LIST];
        while let Some(cq) = &self.left_behind
            && let Ok(count @ 1..) = cq.poll(&mut list)
        {
            for completion in list[..count].iter().filter(|completion| completion.wr_id & RECEIVE_TAG != 0) {
                let _ = self.pool.post(completion.wr_id as u32);
            }
        }
        while let Some((slot, _)) = self.inbox.pop_front() {
            self.pool.give_back(slot);
        }
        let _ = self.pool.repost();
        self.pool.dismiss();
    }
}

impl Pooled {
    /// Returns whether the program has returned enough buffers for a repost while messages arrive.
    #[inline]
    pub(super) fn has_list_to_repost(&self) -> bool {
        self.pool.returned() >= REPOST_BATCH.min(self.config.repost_list)
    }

    /// Posts the returned buffers, and reports them to the peer if a report is due.
    #[inline]
    pub(super) fn repost(&self) -> Result<(), PostError> {
        self.pool.repost()?;
        self.pool.report();
        Ok(())
    }

    /// Classifies a successful receive, and checks that the protocol allows the message.
    #[inline]
    fn judge(&mut self, carrier: &mut Carrier, completion: &Completion) -> Result<Arrival, ConnectionError> {
        Carrier::check_is_send(completion)?;
        let length = completion.byte_len as usize;
        let word = match completion.attachment {
            Attachment::Immediate(immediate) => Some(Word::decode(immediate)),
            _ => None,
        };
        if let Some(word) = word
            && let Some(send_credits) = &mut self.sending.credits
            && !send_credits.grant(word, self.peer_depth)
        {
            return Err(ConnectionError::Protocol("more credits than it has receives"));
        }
        if let Some(word) = word
            && word.alone
        {
            return self.judge_word(carrier, word, length);
        }
        carrier.check_may_send()?;
        // The NIC does not enforce the maximum length if a shared buffer is longer than the longest message of this
        // connection.
        if length > self.config.max_message {
            return Err(ConnectionError::TooLong { length, most: self.config.max_message });
        }
        match (self.pool.credits(), word) {
            (None, None) => {}
            (Some(_), None) => return Err(ConnectionError::Protocol("a message without credits")),
            (None, Some(_)) => return Err(ConnectionError::Protocol("credits although flow control is off")),
            (Some(credits), Some(_)) => {
                if credits.received() > self.pool.granted() {
                    return Err(ConnectionError::Protocol("more messages than it has credits for"));
                }
            }
        }
        Ok(Arrival::Data)
    }

    /// Classifies a message without data: a credit message or the goodbye.
    fn judge_word(&mut self, carrier: &mut Carrier, word: Word, length: usize) -> Result<Arrival, ConnectionError> {
        if length > 0 {
            return Err(ConnectionError::Protocol("message bytes in a SEND whose immediate data allows none"));
        }
        if word.goodbye {
            carrier.take_goodbye()?;
            return Ok(Arrival::Word);
        }
        if self.pool.credits().is_none() {
            return Err(ConnectionError::Protocol("credits although flow control is off"));
        }
        // The peer may have one unanswered credit message, and only a message of this side answers a credit message:
        // see `ReceiveCredits`.
        self.credit_words += 1;
        if self.credit_words > self.sending.next_id {
            return Err(ConnectionError::Protocol("a credit message while its last credit message is unanswered"));
        }
        Ok(Arrival::Word)
    }
}

impl Machine for Pooled {
    type Message = Message;

    #[inline]
    fn max_send(&self) -> usize {
        self.sending.longest_copied()
    }

    #[inline]
    fn max_send_from(&self) -> usize {
        self.sending.longest()
    }

    #[inline]
    fn refusal(&mut self, _length: usize) -> Option<Backpressure> {
        self.sending.refusal()
    }

    #[inline]
    fn send(&mut self, qp: &Qp, source: Source<'_>) -> Result<MessageId, PostError> {
        self.sending.send(qp, source, &self.pool)
    }

    #[inline]
    fn flush(&mut self, qp: &Qp) -> Result<(), PostError> {
        self.sending.flush(qp, &self.pool)
    }

    #[inline]
    fn takes_completions(&self) -> bool {
        self.claim.is_none()
    }

    #[inline]
    fn take_completion(&mut self, wr_id: u64) -> Result<bool, ConnectionError> {
        self.sending.completed = wr_id;
        Ok(true)
    }

    #[inline]
    fn take_receive(&mut self, carrier: &mut Carrier, completion: &Completion) -> Result<(), ConnectionError> {
        let slot = completion.wr_id as u32;
        let arrival = self.judge(carrier, completion);
        match arrival {
            Ok(Arrival::Data) => {
                self.pool.taken();
                self.inbox.push_back((slot, completion.byte_len));
            }
            // The receive is one of the additional receives, so the repost changes no grant.
            Ok(Arrival::Word) => self.pool.post(slot)?,
            Err(_) if self.pool.is_shared() => self.pool.post(slot)?, // other connections need the buffer
            Err(_) => {}
        }
        arrival.map(drop)
    }

    fn take_flushed(&mut self, wr_id: u64) -> Result<(), PostError> {
        // A shared buffer must be reposted, since other connections need it.
        if self.pool.is_shared() { self.pool.post(wr_id as u32) } else { Ok(()) }
    }

    #[inline]
    fn advance(&mut self, _transport: &Carrier, news: usize) -> Result<usize, ConnectionError> {
        // Buffers are reposted when no completion was news, or when enough buffers were returned.
        if news == 0 || self.has_list_to_repost() {
            self.repost()?;
        }
        Ok(0)
    }

    /// Returns the word of the goodbye, which also carries a grant.
    fn goodbye(&mut self) -> u32 {
        let granted = self.pool.granted();
        if let Some(credits) = self.pool.credits() {
            credits.rides(granted);
        }
        Word::goodbye(granted).encode()
    }

    fn end(&mut self, _in_peace: bool) {
        self.sending.end();
    }

    #[inline]
    fn take(&mut self) -> Option<Message> {
        let (slot, length) = self.inbox.pop_front()?;
        // Receives of discarded messages share buffers, into which the RNIC may write at any time. Buffers of a shared
        // receive queue are shared with no other message.
        let is_discarded = self.config.discard_into.is_some() && !self.pool.is_shared();
        let length = if is_discarded { 0 } else { length };
        Some(Lent::new(&self.pool, slot, length as usize))
    }

    #[inline]
    fn last_done(&self) -> MessageId {
        self.sending.completed
    }

    #[inline]
    fn last_accepted(&self) -> MessageId {
        self.sending.next_id - 1
    }

    fn notifies(&self) -> bool {
        true
    }

    /// Returns the number of credit messages and goodbyes.
    fn control_sends(&self, carrier: &Carrier) -> u64 {
        self.pool.reports() + u64::from(carrier.has_said_goodbye())
    }
}
