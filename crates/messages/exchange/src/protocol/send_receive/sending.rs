//! The sending half: window, batches, inline messages, and credits.

use doorbell_verbs::{Payload, PostError, Qp, Region, SendFlags, SendOperation, SendRequest, Sge};
use smallvec::SmallVec;

use crate::connection::config::{Config, LONGEST_TRANSFER, MAX_BATCH};
use crate::connection::outbox::Source;
use crate::connection::receives::credits::{SendCredits, Word};
use crate::connection::receives::pool::Pool;
use crate::connection::{Backpressure, MessageId};
use crate::setup::EndpointDescription;

/// A message that waits for a full batch.
struct Pending {
    id: MessageId,
    /// `Ok` with the memory of the message, or `Err` with the length of a message in the inline store.
    place: Result<Sge, usize>,
}

/// The sending half of Send-Receive.
pub(super) struct Sending {
    window: u64,
    batch: usize,
    signal_each: bool,
    /// Maximum bytes of an inline message.
    inline: usize,
    inline_store: Box<[u8]>,
    /// Send buffers for copied messages. `None` if the configuration has no send buffers.
    region: Option<Region>,
    /// Number of send buffers.
    buffers: u64,
    stride: usize,
    /// Bytes of the longest message that the peer accepts.
    longest: usize,
    /// Bytes of the longest message that this half can copy.
    longest_copied: usize,
    pub(super) next_id: MessageId,
    /// Id of the latest message that is done.
    pub(super) completed: MessageId,
    pending: Vec<Pending>,
    /// Credits from the peer. `None` without flow control.
    pub(super) credits: Option<SendCredits>,
    pub(super) stalled_on_credits: u64,
}

impl Sending {
    /// Makes the half. `region` has the send buffers for copied messages.
    pub(super) fn new(config: &Config, region: Option<Region>, peer: &EndpointDescription) -> Self {
        let longest = usize::try_from(peer.max_message).unwrap_or(usize::MAX).min(LONGEST_TRANSFER);
        let copied = if region.is_some() { config.max_message.max(config.inline) } else { config.inline };
        Self {
            window: config.window as u64,
            batch: config.batch,
            signal_each: config.signal_each,
            inline: config.inline,
            inline_store: vec![0; config.batch * config.inline].into(),
            region,
            buffers: config.send_buffers as u64,
            stride: config.stride(),
            longest,
            longest_copied: copied.min(longest),
            next_id: 1,
            completed: 0,
            pending: Vec::with_capacity(config.batch),
            credits: config.credits.then(|| SendCredits::new(peer.depth.into())),
            stalled_on_credits: 0,
        }
    }

    #[inline]
    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    #[inline]
    pub(super) fn longest_copied(&self) -> usize {
        self.longest_copied
    }

    /// Returns the reason for which a message is not accepted now, or `None` if a message is accepted.
    #[inline]
    pub(super) fn refusal(&mut self) -> Option<Backpressure> {
        // If each message has its own completion, a new batch starts only if the whole batch fits into the window.
        // Otherwise the posts would become smaller and smaller.
        let wanted = if self.signal_each && self.pending.is_empty() { self.batch as u64 } else { 1 };
        if self.next_id - 1 - self.completed + wanted > self.window {
            return Some(Backpressure::Window);
        }
        if let Some(credits) = &self.credits
            && !credits.has_credit()
        {
            self.stalled_on_credits += 1;
            return Some(Backpressure::Credits);
        }
        None
    }

    /// Accepts a message. If the batch is then full, posts the batch, whose messages carry the grant of `pool`.
    #[inline]
    pub(super) fn send(&mut self, qp: &Qp, source: Source<'_>, pool: &Pool) -> Result<MessageId, PostError> {
        let id = self.next_id;
        let length = source.len();
        let place = if length <= self.inline {
            let at = self.pending.len() * self.inline;
            source.copy_to(&mut self.inline_store[at..at + length]);
            Err(length)
        } else {
            match source {
                Source::Bytes(message) => {
                    // Without send buffers, `longest_copied` is at most the inline size, so this code is not reached.
                    let Some(region) = &self.region else {
                        unreachable!("messages above the inline size need send buffers")
                    };
                    let at = (id % self.buffers) as usize * self.stride;
                    region.copy_in(at, message);
                    Ok(region.sge(at, length))
                }
                Source::Memory { region, offset, length } => Ok(region.sge(offset, length)),
            }
        };
        self.next_id += 1;
        if let Some(credits) = &mut self.credits {
            credits.sent();
        }
        self.pending.push(Pending { id, place });
        if self.pending.len() >= self.batch {
            self.flush(qp, pool)?;
        }
        Ok(id)
    }

    /// Posts messages that wait for a full batch.
    #[inline]
    pub(super) fn flush(&mut self, qp: &Qp, pool: &Pool) -> Result<(), PostError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let operation = match pool.credits() {
            Some(credits) => {
                let granted = pool.granted();
                credits.rides(granted);
                SendOperation::SendImmediate(Word::new(false, granted).encode())
            }
            None => SendOperation::Send,
        };
        let request = |index: usize, pending: &Pending, payload| SendRequest {
            wr_id: pending.id,
            operation,
            // Messages complete in order, so the completion of the last message covers the whole list.
            flags: if self.signal_each || index + 1 == self.pending.len() {
                SendFlags::SIGNALED
            } else {
                SendFlags::empty()
            },
            payload,
            destination: None,
        };
        let payload = |index: usize, pending| -> Payload<'_> {
            match pending {
                &Pending { place: Err(length), .. } => {
                    let at = index * self.inline;
                    Payload::Inline(&self.inline_store[at..at + length])
                }
                Pending { place: Ok(sge), .. } => Payload::Sges(std::slice::from_ref(sge)),
            }
        };
        let result = if let [one] = &self.pending[..] {
            qp.post_send(&[request(0, one, payload(0, one))])
        } else {
            // `push` fills the list in place. `collect` would move the long list.
            let mut list: SmallVec<[SendRequest<'_>; MAX_BATCH]> = SmallVec::new();
            for (index, pending) in self.pending.iter().enumerate() {
                list.push(request(index, pending, payload(index, pending)));
            }
            qp.post_send(&list)
        };
        self.pending.clear();
        result
    }

    pub(super) fn end(&mut self) {
        self.pending.clear();
    }
}
