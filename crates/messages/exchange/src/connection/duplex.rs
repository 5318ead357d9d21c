//! A machine of two independent halves: a sending half and a receiving half.
//!
//! Direct-Write, Buffered-Write, Shared-Write and Buffered-Read use this machine. The module has the parts that these
//! protocols share: receives without buffers, and words. A word goes from a half of one end to the opposite half of the
//! peer.

use doorbell_protocols::POLL_LIST;
use doorbell_verbs::{Attachment, Completion, CompletionOpcode, PostError, Qp, RecvRequest};

use crate::connection::carrier::{Carrier, RECEIVE_TAG, Unconnected};
use crate::connection::config::LONGEST_TRANSFER;
use crate::connection::engine::{GOODBYE, Machine};
use crate::connection::error::ConnectionError;
use crate::connection::outbox::Source;
use crate::connection::ring::WORD;
use crate::connection::{Backpressure, MessageId, Received};

/// Marks the work requests of the receiving half.
pub(crate) const INCOMING_TAG: u64 = 1 << 61;
/// Marks work requests of the sending half that carry no message.
pub(crate) const OUTGOING_TAG: u64 = 1 << 60;

/// Marks a word for the receiving half of the peer. A word is the immediate data of a SEND of 0 B. Words without this
/// mark are for the sending half of the peer, except the goodbye.
pub(crate) const TO_RECEIVER: u32 = 1 << 30;

/// Error of a half that received a word which its protocol does not define.
pub(crate) const UNEXPECTED_WORD: ConnectionError =
    ConnectionError::Protocol("a SEND of 0 B whose immediate data the protocol does not define");
/// Error of a half that received a WRITE with immediate data although its protocol does not use immediate data.
pub(crate) const UNEXPECTED_NOTICE: ConnectionError =
    ConnectionError::Protocol("a WRITE with immediate data, which the protocol does not use");

/// Number of receives for words: for the goodbye, and for the words between the halves.
pub(crate) const WORD_RECEIVES: usize = 32;

/// The sending half of a [`Duplex`].
pub trait Outgoing {
    /// Returns the bytes of the longest message that this half can copy.
    fn max_send(&self) -> usize;
    /// Returns the bytes of the longest message that the peer accepts.
    fn max_received(&self) -> usize;
    /// Returns the reason for which a message of this length is not accepted now, or `None` if the message is accepted.
    fn refusal(&mut self, length: usize) -> Option<Backpressure>;
    /// Accepts a message for which [`refusal`](Self::refusal) returned `None`.
    fn send(&mut self, qp: &Qp, source: Source<'_>) -> Result<MessageId, PostError>;
    /// Posts messages that wait for a full batch.
    fn flush(&mut self, qp: &Qp) -> Result<(), PostError>;
    /// Advances the half. Returns the number of events.
    fn poll(&mut self, qp: &Qp) -> Result<usize, ConnectionError>;
    /// Takes the completion of a request. Returns whether the completion is news. A completion is no news if a repeated
    /// READ returned the same value again.
    fn take_completion(&mut self, wr_id: u64) -> Result<bool, ConnectionError>;
    /// Takes a word that the opposite half of the peer has sent.
    fn take_word(&mut self, _word: u32) -> Result<(), ConnectionError> {
        Err(UNEXPECTED_WORD)
    }
    /// Returns the id of the latest message that is done.
    fn last_done(&self) -> MessageId;
    /// Returns the id of the latest message that this half has accepted.
    fn last_accepted(&self) -> MessageId;
    /// Returns whether every event that this half waits for raises a notification.
    fn notifies(&self) -> bool;
}

/// The receiving half of a [`Duplex`].
pub trait Incoming {
    /// Type of the received messages.
    type Message: Received;
    /// Looks for new messages in memory. Returns the number of new messages.
    fn look(&mut self) -> Result<usize, ConnectionError>;
    /// Sends grants or the head to the peer, or posts READs from the peer's memory. Returns the number of events.
    /// [`Duplex`] no longer calls this function after the peer has sent its goodbye.
    fn tell(&mut self, qp: &Qp, is_idle: bool) -> Result<usize, ConnectionError>;
    /// Takes the completion of a request. Returns whether the completion is news, as [`Outgoing::take_completion`]
    /// does.
    fn take_completion(&mut self, wr_id: u64) -> Result<bool, ConnectionError>;
    /// Takes a word that the opposite half of the peer has sent.
    fn take_word(&mut self, _word: u32) -> Result<(), ConnectionError> {
        Err(UNEXPECTED_WORD)
    }
    /// Takes a WRITE with immediate data of `_length` bytes.
    fn take_notice(&mut self, _immediate: u32, _length: usize) -> Result<(), ConnectionError> {
        Err(UNEXPECTED_NOTICE)
    }
    /// Returns the next message.
    fn take(&mut self) -> Option<Self::Message>;
    /// Ends the half. `_in_peace` is true if the peer has sent its goodbye.
    fn end(&mut self, _in_peace: bool) {}
    /// Returns whether every event that this half waits for raises a notification.
    fn notifies(&self) -> bool;
}

/// A machine that consists of a sending half and a receiving half.
pub struct Duplex<O, I> {
    outgoing: O,
    incoming: I,
    /// Number of receives that the current list of completions has consumed. `end_of_list` posts the same number of
    /// receives.
    taken: usize,
}

impl<O: Outgoing, I: Incoming> Duplex<O, I> {
    /// Makes the machine from its two halves, and posts `receives` receives.
    pub(crate) fn new(carrier: &Unconnected, receives: usize, outgoing: O, incoming: I) -> Result<Self, PostError> {
        post_receives(&carrier.qp, receives)?;
        Ok(Self { outgoing, incoming, taken: 0 })
    }
}

/// Posts receives without memory, for words and for WRITEs with immediate data.
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
            return Err(ConnectionError::Protocol("a SEND without immediate data, which the protocol requires"));
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

    /// Posts receives. `advance` reports free space to the peer only after this call, so a receive always exists for a
    /// message of the peer.
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
