//! The state machine: what it knows, receiving, and moving along.

use std::collections::VecDeque;
use std::sync::Arc;

use doorbell_verbs::{Attachment, Channel, Completion, PostError, Qp, Qpn, Region, Status};

use super::credits::{SendCredits, Word};
use super::hub::Claim;
use super::pool::{Message, Pool};
use super::sending::Pending;
use crate::config::{Config, MAX_POLL_LIST};
use crate::connection::{MessageConnection, MessageId, Submit};
use crate::error::ConnectionError;
use crate::transport::{CONTROL_TAG, Closing, RECEIVE_TAG, Transport};

/// Receives are reposted in lists of at least this many while messages flow.
pub(super) const REPOST_BATCH: usize = 16;

/// What a receive has brought.
enum Arrival {
    /// A message.
    Data,
    /// Nothing but the word in its immediate data.
    Word,
}

/// A connection: a non-blocking state machine.
///
/// Call [`poll`](Self::poll) (or [`receive`](Self::receive), which polls) again and again;
/// nothing moves otherwise but what was posted already. When the connection is over, every call
/// says why, and [`outcome`](Self::outcome) tells of each message whether it arrived.
pub struct Connection {
    pub(super) config: Config,
    pub(super) line: Transport,
    pub(super) pool: Arc<Pool>,
    pub(super) send_region: Option<Region>,
    pub(super) stride: usize,
    pub(super) next_id: MessageId,
    /// Last id that was posted.
    pub(super) posted: MessageId,
    /// Last id that is done.
    pub(super) completed: MessageId,
    pub(super) pending: Vec<Pending>,
    pub(super) inline_store: Box<[u8]>,
    pub(super) send_credits: Option<SendCredits>,
    pub(super) peer_depth: u64,
    pub(super) peer_max_message: u64,
    pub(super) inbox: VecDeque<(u32, u32)>,
    pub(super) stalled_on_credits: u64,
    /// Messages of the peer that carried nothing but credits.
    pub(super) credit_words: u64,
    /// Its place in the completion queue of a [`Hub`](super::Hub), which takes its completions.
    pub(super) claim: Option<Claim>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.line.fail();
        if !self.pool.is_shared() {
            return; // buffers and queue pair go together
        }
        // Shared buffers go back to the others: those that hold messages nobody took, and one that
        // the queue pair may hold itself.
        self.line.over.get_or_insert(ConnectionError::Closed);
        let mut list = [Completion::default(); MAX_POLL_LIST];
        while self.claim.is_none()
            && let Ok(count @ 1..) = self.line.cq.poll(&mut list)
        {
            for completion in &list[..count] {
                let _ = self.take_completion(completion); // flushed: that is no news
            }
        }
        while let Some((slot, _)) = self.inbox.pop_front() {
            self.pool.give_back(slot);
        }
        let _ = self.pool.repost();
        self.pool.dismiss();
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("qpn", &self.line.qp.qpn())
            .field("next_id", &self.next_id)
            .field("completed", &self.completed)
            .field("over", &self.line.over)
            .finish_non_exhaustive()
    }
}

/// Receiving, and moving along.
impl Connection {
    /// The next message, if one has arrived. Polls if none has.
    ///
    /// # Errors
    ///
    /// The connection is over; or the peer has closed its side and every message was taken
    /// ([`ConnectionError::PeerClosed`]: sending is still possible then).
    #[inline]
    pub fn receive(&mut self) -> Result<Option<Message>, ConnectionError> {
        if self.inbox.is_empty() && !self.line.peer_closed {
            self.poll()?;
        }
        match self.take() {
            None if self.line.peer_closed => Err(ConnectionError::PeerClosed),
            message => Ok(message),
        }
    }

    /// The next message of those that a poll has brought.
    #[inline]
    pub fn take(&mut self) -> Option<Message> {
        let (slot, length) = self.inbox.pop_front()?;
        Some(Message::new(&self.pool, slot, length as usize))
    }

    /// Moves the connection along: posts what waits, takes completions, reposts receives, tells
    /// the peer of them. Returns whether anything happened.
    ///
    /// # Errors
    ///
    /// The connection is over. Messages that arrived before can still be taken.
    #[inline]
    pub fn poll(&mut self) -> Result<bool, ConnectionError> {
        if let Some(error) = self.line.over {
            return Err(error);
        }
        self.flush()?;
        let count = self.reap()?;
        if count == 0 {
            self.poll_idle()?;
        } else {
            if self.pool.returned() >= REPOST_BATCH.min(self.config.repost_list) {
                self.repost()?;
            }
            // Not only when nothing else is to be done: the peer may never stop sending.
            self.part()?;
        }
        Ok(count > 0)
    }

    /// What can wait until nothing else is to be done.
    pub(super) fn poll_idle(&mut self) -> Result<(), ConnectionError> {
        self.repost()?;
        self.part()?;
        let asked = self.line.keep_alive();
        self.explained(asked)
    }

    /// Says goodbye, if that is wanted and everything was delivered.
    #[inline]
    fn part(&mut self) -> Result<(), ConnectionError> {
        if self.line.closing == Closing::Wanted && self.unacknowledged() == 0 {
            let granted = self.pool.granted();
            if let Some(credits) = self.pool.credits() {
                credits.rides(granted);
            }
            let said = self.line.say_goodbye(Word::goodbye(granted).encode());
            self.explained(said)?;
        }
        Ok(())
    }

    pub(super) fn explained(&mut self, result: Result<(), PostError>) -> Result<(), ConnectionError> {
        result.or_else(|error| {
            // The queue pair may have failed meanwhile; then its completions say why.
            self.reap()?;
            Err(self.end(ConnectionError::Post(error)))
        })
    }

    #[inline]
    pub(super) fn repost(&mut self) -> Result<(), ConnectionError> {
        let reposted = self.pool.repost();
        self.explained(reposted)?;
        self.pool.report();
        Ok(())
    }

    /// Takes completions, one list.
    #[inline]
    pub(super) fn reap(&mut self) -> Result<usize, ConnectionError> {
        if self.claim.is_some() {
            return Ok(0); // its completions come with those of others
        }
        let mut list = [Completion::default(); MAX_POLL_LIST];
        let count = match self.line.cq.poll(&mut list[..self.config.poll_list]) {
            Ok(count) => count,
            Err(error) => return Err(self.end(ConnectionError::Overrun(error))),
        };
        let mut failed = None;
        for completion in &list[..count] {
            if let Err(error) = self.take_completion(completion) {
                // The first error is the reason; flushed requests behind it are consequences.
                failed.get_or_insert(error);
            }
        }
        if count > 0 {
            self.line.heard();
        }
        match failed {
            None => Ok(count),
            Some(error) => Err(self.end(error)),
        }
    }

    #[inline]
    pub(super) fn take_completion(&mut self, completion: &Completion) -> Result<(), ConnectionError> {
        match completion.wr_id {
            id if id & RECEIVE_TAG != 0 => self.take_receive(completion, id as u32),
            id if id & CONTROL_TAG != 0 => self.line.take_control(completion),
            _ if completion.status != Status::Success => Err(ConnectionError::from_send(completion.status)),
            id => {
                self.completed = id;
                Ok(())
            }
        }
    }

    #[inline]
    fn take_receive(&mut self, completion: &Completion, slot: u32) -> Result<(), ConnectionError> {
        if completion.status != Status::Success {
            if self.pool.is_shared() {
                self.pool.post(slot)?; // the buffer is others' as well
            }
            return self.line.receive_failed(completion.status);
        }
        let arrival = self.judge(completion);
        match arrival {
            Ok(Arrival::Data) => self.take_data(slot, completion.byte_len),
            // It was not a receive for data: nothing is granted.
            Ok(Arrival::Word) => self.pool.post(slot)?,
            Err(_) if self.pool.is_shared() => self.pool.post(slot)?, // the buffer is others' as well
            Err(_) => {}
        }
        arrival.map(drop)
    }

    /// What a receive that succeeded has brought, if the peer may send that.
    #[inline]
    fn judge(&mut self, completion: &Completion) -> Result<Arrival, ConnectionError> {
        Transport::check_is_send(completion)?;
        let length = completion.byte_len as usize;
        let word = match completion.attachment {
            Attachment::Immediate(immediate) => Some(Word::decode(immediate)),
            _ => None,
        };
        if let Some(word) = word
            && let Some(send_credits) = &mut self.send_credits
            && !send_credits.grant(word, self.peer_depth)
        {
            return Err(ConnectionError::Protocol("more credits than it has receives"));
        }
        if let Some(word) = word
            && word.alone
        {
            return self.judge_word(word, length);
        }
        self.line.check_may_send()?;
        // Shared buffers may be longer than what this connection takes.
        if length > self.config.max_message {
            return Err(ConnectionError::TooLong { length, most: self.config.max_message });
        }
        match (self.pool.credits(), word) {
            (None, None) => {}
            (Some(_), None) => return Err(ConnectionError::Protocol("a message without credits")),
            (None, Some(_)) => return Err(ConnectionError::Protocol("credits that were not agreed on")),
            (Some(credits), Some(_)) => {
                if credits.received() > self.pool.granted() {
                    return Err(ConnectionError::Protocol("more messages than it was granted receives"));
                }
            }
        }
        Ok(Arrival::Data)
    }

    /// The same of a message that carries nothing but a word.
    fn judge_word(&mut self, word: Word, length: usize) -> Result<Arrival, ConnectionError> {
        if length > 0 {
            return Err(ConnectionError::Protocol("a word with a message behind it"));
        }
        if word.goodbye {
            self.line.take_goodbye()?;
            return Ok(Arrival::Word);
        }
        if self.pool.credits().is_none() {
            return Err(ConnectionError::Protocol("credits that were not agreed on"));
        }
        // The peer leaves one at most unanswered, and only a message of this side answers it: see `ReceiveCredits`.
        self.credit_words += 1;
        if self.credit_words > self.next_id {
            return Err(ConnectionError::Protocol("credits again and again, without an answer to the last"));
        }
        Ok(Arrival::Word)
    }

    #[inline]
    fn take_data(&mut self, slot: u32, length: u32) {
        self.pool.taken();
        self.inbox.push_back((slot, length));
    }

    /// Ends the connection: the first reason stays.
    pub(super) fn end(&mut self, reason: ConnectionError) -> ConnectionError {
        self.pending.clear();
        self.line.end(reason)
    }

    /// Why the connection is over, if it is.
    pub fn over(&self) -> Option<ConnectionError> {
        self.line.over
    }

    /// Closes this side: nothing more can be sent, what was sent is still delivered, and then the
    /// peer is told. Poll until [`is_closed`](Self::is_closed). Messages of the peer can still be
    /// received until it has closed its side too.
    pub fn close(&mut self) {
        self.line.close();
    }

    /// Has the peer closed its side? Messages that arrived before can still be taken.
    #[inline]
    pub fn is_peer_closed(&self) -> bool {
        self.line.peer_closed
    }

    /// Has the peer's RNIC taken the goodbye, or is the connection over anyway?
    pub fn is_closed(&self) -> bool {
        self.line.is_closed()
    }

    /// Arms one notification on the channel that the endpoint was made with. Poll once more
    /// before waiting: what is there already may raise none.
    pub fn arm(&self) {
        self.line.arm();
    }

    /// The channel, if there is one.
    pub fn channel(&self) -> Option<&Channel> {
        self.line.cq.channel()
    }

    /// The queue pair.
    pub fn qpn(&self) -> Qpn {
        self.line.qp.qpn()
    }

    /// The queue pair itself, for queries.
    pub fn qp(&self) -> &Qp {
        &self.line.qp
    }

    /// What the connection was made with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Zero-length WRITEs sent to ask whether the peer lives.
    pub fn keepalives(&self) -> u64 {
        self.line.keepalives
    }

    /// Messages sent that carried no data: credits and the goodbye.
    pub fn control_sends(&self) -> u64 {
        self.pool.reports() + u64::from(self.line.has_said_goodbye())
    }

    /// When the connection wants to be polled even if nothing happens: to ask whether the peer
    /// lives.
    pub fn poll_timeout_ns(&self) -> Option<u64> {
        self.line.poll_timeout_ns()
    }
}

impl MessageConnection for Connection {
    type Message = Message;

    #[inline]
    fn send(&mut self, message: &[u8]) -> Result<Submit, ConnectionError> {
        self.send(message)
    }

    #[inline]
    fn send_from(&mut self, region: &Region, offset: usize, length: usize) -> Result<Submit, ConnectionError> {
        self.send_from(region, offset, length)
    }

    #[inline]
    fn flush(&mut self) -> Result<(), ConnectionError> {
        self.flush()
    }

    fn max_send(&self) -> usize {
        self.max_send()
    }

    #[inline]
    fn poll(&mut self) -> Result<bool, ConnectionError> {
        self.poll()
    }

    #[inline]
    fn take(&mut self) -> Option<Message> {
        self.take()
    }

    #[inline]
    fn last_done(&self) -> MessageId {
        self.last_done()
    }

    #[inline]
    fn unacknowledged(&self) -> u64 {
        self.unacknowledged()
    }

    fn close(&mut self) {
        self.close();
    }

    fn is_closed(&self) -> bool {
        self.is_closed()
    }

    #[inline]
    fn is_peer_closed(&self) -> bool {
        self.is_peer_closed()
    }

    fn over(&self) -> Option<ConnectionError> {
        self.over()
    }

    fn arm(&self) {
        self.arm();
    }

    fn channel(&self) -> Option<&Channel> {
        self.channel()
    }

    fn poll_timeout_ns(&self) -> Option<u64> {
        self.line.poll_timeout_ns()
    }

    fn keepalives(&self) -> u64 {
        Connection::keepalives(self)
    }

    fn control_sends(&self) -> u64 {
        Connection::control_sends(self)
    }

    fn qp(&self) -> &Qp {
        self.qp()
    }
}
