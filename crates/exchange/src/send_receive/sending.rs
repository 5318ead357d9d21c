//! Sending: windows, batches, inline messages.

use doorbell_verbs::{Payload, Region, SendFlags, SendOperation, SendRequest, Sge};
use smallvec::SmallVec;

use super::connection::Connection;
use super::credits::Word;
use crate::config::{LONGEST_TRANSFER, MAX_BATCH};
use crate::connection::{Backpressure, MessageId, Outcome, Submit};
use crate::error::{ConnectionError, Misuse};

/// A message that waits for its batch to be full.
pub(super) struct Pending {
    pub(super) id: MessageId,
    /// Memory, or how many bytes of the inline store.
    pub(super) place: Result<Sge, usize>,
}

/// Sending.
impl Connection {
    /// Sends a message, which is copied (or goes inline).
    ///
    /// # Errors
    ///
    /// The connection is over. Or the message is longer than [`max_send`](Self::max_send)
    /// ([`ConnectionError::Misuse`]): then the connection goes on.
    #[inline]
    pub fn send(&mut self, message: &[u8]) -> Result<Submit, ConnectionError> {
        Misuse::check_length(message.len(), self.max_send())?;
        if let Some(full) = self.refusal()? {
            return Ok(Submit::Full(full));
        }
        let place = if message.len() <= self.config.inline {
            let at = self.pending.len() * self.config.inline;
            self.inline_store[at..at + message.len()].copy_from_slice(message);
            Err(message.len())
        } else {
            // `max_send` is no more than the inline size without send buffers.
            let Some(region) = &self.send_region else { unreachable!("there are send buffers") };
            let slot = (self.next_id % self.config.send_buffers as u64) as usize;
            region.copy_in(slot * self.stride, message);
            Ok(region.sge(slot * self.stride, message.len()))
        };
        self.submit(place)
    }

    /// Sends a message from memory of the program, without copying. The memory must not change
    /// until the message is done; if it does, the peer may see either.
    ///
    /// # Errors
    ///
    /// The connection is over. Or the message is longer than the peer takes, or not inside the region
    /// ([`ConnectionError::Misuse`]): then the connection goes on.
    #[inline]
    pub fn send_from(&mut self, region: &Region, offset: usize, length: usize) -> Result<Submit, ConnectionError> {
        Misuse::check_length(length, self.max_received())?;
        Misuse::check_inside(region, offset, length)?;
        if let Some(full) = self.refusal()? {
            return Ok(Submit::Full(full));
        }
        let place = if length <= self.config.inline {
            let at = self.pending.len() * self.config.inline;
            region.copy_out(offset, &mut self.inline_store[at..at + length]);
            Err(length)
        } else {
            Ok(region.sge(offset, length))
        };
        self.submit(place)
    }

    /// Bytes of the longest message that [`send`](Self::send) takes.
    pub fn max_send(&self) -> usize {
        let own = if self.send_region.is_some() {
            self.config.max_message.max(self.config.inline)
        } else {
            self.config.inline
        };
        own.min(self.max_received())
    }

    /// Bytes of the longest message that the peer takes.
    fn max_received(&self) -> usize {
        usize::try_from(self.peer_max_message).unwrap_or(usize::MAX).min(LONGEST_TRANSFER)
    }

    /// Why a message cannot be taken now.
    #[inline]
    fn refusal(&mut self) -> Result<Option<Backpressure>, ConnectionError> {
        self.line.check_open()?;
        if self.next_id - 1 - self.completed >= self.config.window as u64 {
            return Ok(Some(Backpressure::Window));
        }
        if let Some(credits) = &self.send_credits
            && !credits.has_credit()
        {
            self.stalled_on_credits += 1;
            return Ok(Some(Backpressure::Credits));
        }
        Ok(None)
    }

    #[inline]
    fn submit(&mut self, place: Result<Sge, usize>) -> Result<Submit, ConnectionError> {
        let id = self.next_id;
        self.next_id += 1;
        if let Some(credits) = &mut self.send_credits {
            credits.sent();
        }
        self.pending.push(Pending { id, place });
        if self.pending.len() >= self.config.batch {
            self.flush()?;
        }
        Ok(Submit::Accepted(id))
    }

    /// Posts messages that wait for their batch to be full.
    #[inline]
    pub fn flush(&mut self) -> Result<(), ConnectionError> {
        let Some(last) = self.pending.last() else { return Ok(()) };
        let last = last.id;
        let granted = self.pool.granted();
        let operation = match self.pool.credits() {
            Some(credits) => {
                credits.rides(granted);
                SendOperation::SendImmediate(Word::new(false, granted).encode())
            }
            None => SendOperation::Send,
        };
        let request = |index: usize, pending: &Pending, payload| SendRequest {
            wr_id: pending.id,
            operation,
            // Messages complete in order: one completion tells of the whole list.
            flags: if index + 1 == self.pending.len() { SendFlags::SIGNALED } else { SendFlags::empty() },
            payload,
            destination: None,
        };
        let payload = |index: usize, pending| -> Payload<'_> {
            match pending {
                &Pending { place: Err(length), .. } => {
                    let at = index * self.config.inline;
                    Payload::Inline(&self.inline_store[at..at + length])
                }
                Pending { place: Ok(sge), .. } => Payload::Sges(std::slice::from_ref(sge)),
            }
        };
        let result = if let [one] = &self.pending[..] {
            self.line.qp.post_send(&[request(0, one, payload(0, one))])
        } else {
            // Filled where it is: a list that is collected is moved, and it is long.
            let mut list: SmallVec<[SendRequest<'_>; MAX_BATCH]> = SmallVec::new();
            for (index, pending) in self.pending.iter().enumerate() {
                list.push(request(index, pending, payload(index, pending)));
            }
            self.line.qp.post_send(&list)
        };
        self.pending.clear();
        self.explained(result)?;
        self.posted = last;
        Ok(())
    }

    /// Is this message acknowledged by the peer's RNIC?
    #[inline]
    pub fn is_done(&self, id: MessageId) -> bool {
        id <= self.completed
    }

    /// What became of a message.
    pub fn outcome(&self, id: MessageId) -> Outcome {
        match self.line.over {
            _ if self.is_done(id) => Outcome::Done,
            Some(error) => Outcome::Failed(error),
            None => Outcome::Pending,
        }
    }

    /// The last id that is done. All before it are done as well.
    #[inline]
    pub fn last_done(&self) -> MessageId {
        self.completed
    }

    /// Messages that are accepted and not done.
    #[inline]
    pub fn unacknowledged(&self) -> u64 {
        self.next_id - 1 - self.completed
    }

    /// Times that a message was not taken for lack of credits.
    pub fn stalled_on_credits(&self) -> u64 {
        self.stalled_on_credits
    }
}
