//! The sending half: announces messages and takes their acknowledgements.

use std::collections::VecDeque;

use doorbell_verbs::{Access, MemoryKind, Payload, Pd, PostError, Qp, Region, SendFlags, SendOperation, SendRequest};
use smallvec::SmallVec;

use super::receiving::READ;
use super::request::{MAX_REQUEST_BYTES, RemotePlace, Request};
use super::{Acknowledge, DirectRead};
use crate::connection::config::{Config, LONGEST_TRANSFER, MAX_BATCH};
use crate::connection::engine::GOODBYE;
use crate::connection::error::{ConnectError, ConnectionError, Misuse};
use crate::connection::outbox::Source;
use crate::connection::{Backpressure, Connector, MessageId};
use crate::setup::EndpointDescription;

/// The sending half of Direct-Read.
pub(super) struct Sending {
    pub(super) acknowledge: Acknowledge,
    /// Access that the region of a message needs.
    access: Access,
    /// Number of bytes that the protocol uses in memory directly after each message.
    bytes_behind: usize,
    batch: usize,
    signal_each: bool,
    /// Maximum number of announcements in the send queue.
    posted_most: u64,
    /// Maximum number of unread messages: the configured window, but at most the number of receives of the peer.
    window: u64,
    /// Bytes of the longest message that the peer accepts.
    longest: usize,
    /// Bytes of the longest message that this half can copy.
    longest_copied: usize,
    /// Buffers for copied messages. If `send_buffers` of the configuration is 0, each buffer has room only for the
    /// signal byte of an empty message.
    region: Region,
    /// Number of buffers in `region`.
    places: u64,
    stride: usize,
    pub(super) next_id: MessageId,
    /// Id of the latest message that the peer has read.
    pub(super) completed: MessageId,
    /// Id of the latest message whose announcement has left the send queue.
    announced: MessageId,
    pending: Vec<(MessageId, SmallVec<[u8; MAX_REQUEST_BYTES]>)>,
    /// Locations of the signal bytes of unread messages, oldest first.
    signals: VecDeque<(Region, usize)>,
}

impl Sending {
    pub(super) fn new(
        protocol: DirectRead,
        pd: &Pd,
        config: &Config,
        peer: &EndpointDescription,
    ) -> Result<Self, ConnectError> {
        let (places, copied) = match config.send_buffers {
            0 => (config.window, 0),
            buffers => (buffers, config.max_message),
        };
        let longest = usize::try_from(peer.max_message).unwrap_or(usize::MAX).min(LONGEST_TRANSFER);
        // Each buffer has one more byte, since the signal byte follows the message.
        let stride = (copied + 1).next_multiple_of(64);
        Ok(Self {
            acknowledge: protocol.acknowledge,
            access: protocol.source_access(),
            bytes_behind: protocol.bytes_behind(),
            batch: config.batch,
            signal_each: config.signal_each,
            posted_most: config.window as u64,
            window: config.window.min(peer.depth as usize) as u64,
            longest,
            longest_copied: copied.min(longest),
            region: pd.allocate(places * stride, protocol.source_access(), MemoryKind::Plain)?,
            places: places as u64,
            stride,
            next_id: 1,
            completed: 0,
            announced: 0,
            pending: Vec::with_capacity(config.batch),
            signals: VecDeque::with_capacity(config.window),
        })
    }

    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    pub(super) fn longest_copied(&self) -> usize {
        self.longest_copied
    }

    /// Checks that a message can be sent from this memory.
    pub(super) fn check_source(&self, region: &Region, offset: usize, length: usize) -> Result<(), Misuse> {
        Misuse::check_length(length, self.longest)?;
        Misuse::check_inside(region, offset, length + self.bytes_behind)?;
        Misuse::check_access(region, self.access)
    }

    #[inline]
    pub(super) fn refusal(&self) -> Option<Backpressure> {
        let last = self.next_id - 1;
        // The peer may acknowledge a message before the announcement of the message has left the send queue, so both
        // limits apply.
        let full = last - self.completed >= self.window || last - self.announced >= self.posted_most;
        full.then_some(Backpressure::Window)
    }

    /// Accepts a message. Its read request carries the bytes of `application`.
    #[inline]
    pub(super) fn send(&mut self, qp: &Qp, source: Source<'_>, application: &[u8]) -> Result<MessageId, PostError> {
        let (region, offset, length) = match source {
            Source::Bytes(message) => {
                let offset = (self.next_id % self.places) as usize * self.stride;
                self.region.copy_in(offset, message);
                (self.region.clone(), offset, message.len())
            }
            Source::Memory { region, offset, length } => (region.clone(), offset, length),
        };
        let id = self.next_id;
        self.next_id += 1;
        let place =
            RemotePlace { address: region.address() + offset as u64, rkey: region.rkey(), length: length as u32 };
        let request = Request { place, application: application.into() };
        self.pending.push((id, request.encode()));
        if self.acknowledge == Acknowledge::SignalByte {
            region.store_release_u8(offset + length, 0);
        }
        self.signals.push_back((region, offset + length));
        if self.pending.len() >= self.batch {
            self.flush(qp)?;
        }
        Ok(id)
    }

    /// Posts announcements that wait for a full batch.
    #[inline]
    pub(super) fn flush(&mut self, qp: &Qp) -> Result<(), PostError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let last = self.pending.len() - 1;
        // `push` fills the list in place. `collect` would move the long list.
        let mut list: SmallVec<[SendRequest<'_>; MAX_BATCH]> = SmallVec::new();
        for (index, (id, bytes)) in self.pending.iter().enumerate() {
            list.push(SendRequest {
                wr_id: *id,
                operation: SendOperation::Send,
                flags: if self.signal_each || index == last { SendFlags::SIGNALED } else { SendFlags::empty() },
                payload: Payload::Inline(bytes),
                destination: None,
            });
        }
        let result = qp.post_send(&list);
        drop(list);
        self.pending.clear();
        result
    }

    /// Records that the announcements up to this message have left the send queue.
    #[inline]
    pub(super) fn announced(&mut self, id: MessageId) {
        self.announced = id;
    }

    /// Reads the signal bytes of the oldest messages. Returns the number of messages that the peer has read.
    #[inline]
    pub(super) fn look_at_signals(&mut self) -> usize {
        if self.acknowledge == Acknowledge::Send {
            return 0;
        }
        let mut count = 0;
        while let Some((region, signal)) = self.signals.front()
            && region.load_acquire_u8(*signal) == READ
        {
            self.signals.pop_front();
            self.completed += 1;
            count += 1;
        }
        count
    }

    /// Takes a word of the peer: the number of messages that the peer has read.
    #[inline]
    pub(super) fn take_word(&mut self, word: u32) -> Result<(), ConnectionError> {
        let newly = word.wrapping_sub(self.completed as u32) & !GOODBYE;
        if word & GOODBYE != 0 || self.acknowledge != Acknowledge::Send || newly as usize > self.signals.len() {
            return Err(ConnectionError::Protocol("a number of read messages that exceeds the sent messages"));
        }
        self.signals.drain(..newly as usize);
        self.completed += u64::from(newly);
        Ok(())
    }

    /// The WRITE of a signal byte raises no notification.
    pub(super) fn notifies(&self) -> bool {
        self.acknowledge == Acknowledge::Send || self.signals.is_empty()
    }

    pub(super) fn end(&mut self) {
        self.pending.clear();
    }
}
