//! A machine of two halves that know nothing of each other: one that sends, one that receives.
//!
//! The protocols that write into the peer's ring or buffers, or read from its ring, are made so. What they have in
//! common stands here: receives without buffers, and words between the halves of both ends.

use doorbell_protocols::POLL_LIST;
use doorbell_verbs::{Attachment, Completion, CompletionOpcode, PostError, Qp, RecvRequest};

use crate::carrier::{Carrier, RECEIVE_TAG, Unconnected};
use crate::config::LONGEST_TRANSFER;
use crate::connection::{Backpressure, MessageId, Received};
use crate::engine::{GOODBYE, Machine};
use crate::error::ConnectionError;
use crate::outbox::Source;
use crate::ring::WORD;

/// Marks the work requests of the half that receives.
pub(crate) const INCOMING_TAG: u64 = 1 << 61;
/// Marks what the half that sends posts beside messages.
pub(crate) const OUTGOING_TAG: u64 = 1 << 60;

/// A word (the immediate data of a SEND without bytes) for the half that receives; others, but the goodbye, are for the
/// half that sends.
pub(crate) const TO_RECEIVER: u32 = 1 << 30;

/// What a half says of a word that its protocol does not have.
pub(crate) const UNEXPECTED_WORD: ConnectionError = ConnectionError::Protocol("a word where none is expected");
/// What a half says of immediate data that its protocol does not have.
pub(crate) const UNEXPECTED_NOTICE: ConnectionError =
    ConnectionError::Protocol("immediate data where none is expected");

/// Receives for words: the goodbye, and what halves tell each other.
pub(crate) const WORD_RECEIVES: usize = 32;

/// The half that sends.
pub trait Outgoing {
    /// Bytes of the longest message that is copied.
    fn max_send(&self) -> usize;
    /// Bytes of the longest message that the peer takes.
    fn max_received(&self) -> usize;
    /// Why a message of this length is not taken now.
    fn refusal(&mut self, length: usize) -> Option<Backpressure>;
    /// Takes a message, which was not refused.
    fn send(&mut self, qp: &Qp, source: Source<'_>) -> Result<MessageId, PostError>;
    /// Posts what waits for its batch to be full.
    fn flush(&mut self, qp: &Qp) -> Result<(), PostError>;
    /// Moves along; returns what happened.
    fn poll(&mut self, qp: &Qp) -> Result<usize, ConnectionError>;
    /// Something was sent or read. Returns whether that is news: a question that is asked again and
    /// again may be answered as before.
    fn take_completion(&mut self, wr_id: u64) -> Result<bool, ConnectionError>;
    /// The peer's other half says something.
    fn take_word(&mut self, _word: u32) -> Result<(), ConnectionError> {
        Err(UNEXPECTED_WORD)
    }
    /// The last message that is done.
    fn last_done(&self) -> MessageId;
    /// The last message that was accepted.
    fn last_accepted(&self) -> MessageId;
    /// Does what it waits for raise a notification?
    fn notifies(&self) -> bool;
}

/// The half that receives.
pub trait Incoming {
    /// What it hands out.
    type Message: Received;
    /// Looks for messages in memory; returns how many there are.
    fn look(&mut self) -> Result<usize, ConnectionError>;
    /// Tells the peer what it needs to know, or asks it; returns what was done. Nobody calls it any
    /// more once the peer has said goodbye.
    fn tell(&mut self, qp: &Qp, is_idle: bool) -> Result<usize, ConnectionError>;
    /// Something was sent or read. Returns whether that is news, as with the other half.
    fn take_completion(&mut self, wr_id: u64) -> Result<bool, ConnectionError>;
    /// The peer's other half says something.
    fn take_word(&mut self, _word: u32) -> Result<(), ConnectionError> {
        Err(UNEXPECTED_WORD)
    }
    /// A WRITE of so many bytes announces itself.
    fn take_notice(&mut self, _immediate: u32, _length: usize) -> Result<(), ConnectionError> {
        Err(UNEXPECTED_NOTICE)
    }
    /// The next message.
    fn take(&mut self) -> Option<Self::Message>;
    /// The peer is gone; it has said goodbye, or not.
    fn end(&mut self, _in_peace: bool) {}
    /// Does what it waits for raise a notification?
    fn notifies(&self) -> bool;
}

/// Both halves of a connection.
pub struct Duplex<O, I> {
    outgoing: O,
    incoming: I,
    /// Receives of the list of completions at hand, which are posted again at its end.
    taken: usize,
}

impl<O: Outgoing, I: Incoming> Duplex<O, I> {
    /// Joins the halves, and posts so many receives.
    pub(crate) fn new(carrier: &Unconnected, receives: usize, outgoing: O, incoming: I) -> Result<Self, PostError> {
        post_receives(&carrier.qp, receives)?;
        Ok(Self { outgoing, incoming, taken: 0 })
    }
}

/// Receives that have no memory: they take words and notices.
fn post_receives(qp: &Qp, count: usize) -> Result<(), PostError> {
    let mut left = count;
    while left > 0 {
        let list = &[RecvRequest { wr_id: RECEIVE_TAG, sges: &[] }; POLL_LIST][..left.min(POLL_LIST)];
        left -= list.len();
        qp.post_recv(list)?;
    }
    Ok(())
}

impl<O: Outgoing, I: Incoming> Machine for Duplex<O, I> {
    type Message = I::Message;

    fn max_send(&self) -> usize {
        self.outgoing.max_send()
    }

    fn max_send_from(&self) -> usize {
        self.outgoing.max_received().min(LONGEST_TRANSFER - WORD)
    }

    #[inline]
    fn refusal(&mut self, length: usize) -> Option<Backpressure> {
        self.outgoing.refusal(length)
    }

    #[inline]
    fn send(&mut self, qp: &Qp, source: Source<'_>) -> Result<MessageId, PostError> {
        self.outgoing.send(qp, source)
    }

    #[inline]
    fn flush(&mut self, qp: &Qp) -> Result<(), PostError> {
        self.outgoing.flush(qp)
    }

    #[inline]
    fn serves_the_peer(wr_id: u64) -> bool {
        wr_id & INCOMING_TAG != 0
    }

    #[inline]
    fn take_completion(&mut self, wr_id: u64) -> Result<bool, ConnectionError> {
        if wr_id & INCOMING_TAG != 0 {
            self.incoming.take_completion(wr_id & !INCOMING_TAG)
        } else {
            self.outgoing.take_completion(wr_id)
        }
    }

    #[inline]
    fn take_receive(&mut self, carrier: &mut Carrier, completion: &Completion) -> Result<(), ConnectionError> {
        self.taken += 1;
        let Attachment::Immediate(word) = completion.attachment else {
            return Err(ConnectionError::Protocol("a SEND without the word that it has to carry"));
        };
        if completion.opcode == CompletionOpcode::ReceiveWriteImmediate {
            carrier.check_may_send()?;
            return self.incoming.take_notice(word, completion.byte_len as usize);
        }
        Carrier::check_is_send(completion)?;
        match word {
            GOODBYE => carrier.take_goodbye(),
            word if word & GOODBYE != 0 => Err(UNEXPECTED_WORD),
            word if word & TO_RECEIVER != 0 => self.incoming.take_word(word & !TO_RECEIVER),
            word => self.outgoing.take_word(word),
        }
    }

    /// Posts the receives before the peer learns that there is room for more.
    #[inline]
    fn end_of_list(&mut self, qp: &Qp) -> Result<(), PostError> {
        post_receives(qp, std::mem::take(&mut self.taken))
    }

    #[inline]
    fn advance(&mut self, carrier: &Carrier, news: usize) -> Result<usize, ConnectionError> {
        let mut moved = self.outgoing.poll(&carrier.qp)?;
        moved += self.incoming.look()?;
        if !carrier.peer_closed {
            moved += self.incoming.tell(&carrier.qp, news + moved == 0)?;
        }
        Ok(moved)
    }

    fn end(&mut self, in_peace: bool) {
        self.incoming.end(in_peace);
    }

    #[inline]
    fn take(&mut self) -> Option<I::Message> {
        self.incoming.take()
    }

    #[inline]
    fn last_done(&self) -> MessageId {
        self.outgoing.last_done()
    }

    #[inline]
    fn last_accepted(&self) -> MessageId {
        self.outgoing.last_accepted()
    }

    fn notifies(&self) -> bool {
        self.outgoing.notifies() && self.incoming.notifies()
    }
}
