//! The receiving half: READs announced messages and acknowledges them.

use std::collections::VecDeque;
use std::sync::Arc;

use doorbell_protocols::POLL_LIST;
use doorbell_verbs::{
    Access, MemoryKind, Payload, PostError, Qp, RecvRequest, Region, SendFlags, SendOperation, SendRequest, Sge,
};
use smallvec::SmallVec;

use super::Message;
use super::request::{MAX_REQUEST_BYTES, RemotePlace, Request};
use super::{Acknowledge, DirectRead, Fence, Placement};
use crate::connection::carrier::{CONTROL_TAG, RECEIVE_TAG, Unconnected};
use crate::connection::config::Config;
use crate::connection::engine::GOODBYE;
use crate::connection::error::{ConnectError, ConnectionError};
use crate::connection::lent::{Buffers, Lent};
use crate::connection::slots::Slots;

/// Maximum number of READs in flight. The published evaluation found no gain above this number.
pub(super) const READS_IN_FLIGHT: usize = 32;

/// Distance in bytes between two buffers for read requests.
const REQUEST_STRIDE: usize = MAX_REQUEST_BYTES.next_multiple_of(64);

/// Marks the work requests of READs.
pub(super) const READ_TAG: u64 = 1 << 61;
/// Id of acknowledgements.
const ACKNOWLEDGE_TAG: u64 = CONTROL_TAG | 3;

/// Value of a signal byte after the receiver has read the message.
pub(super) const READ: u8 = 1;

/// Number of a READ in its connection. The ids of consecutive READs rise by one.
pub type ReadId = u64;

/// A message whose READ is in flight.
struct Reading {
    remote: RemotePlace,
    place: Destination,
}

/// Destination of a READ.
pub(super) enum Destination {
    /// A buffer of the pool.
    Slot(u32),
    /// Memory of the program. The handle keeps the region registered.
    Region { _held: Region },
}

/// Destinations of the next READs, in the order of the messages.
pub(super) type Places = SmallVec<[(Sge, Destination); READS_IN_FLIGHT]>;

/// The receiving half of Direct-Read.
pub(super) struct Receiving {
    protocol: DirectRead,
    depth: usize,
    /// Bytes of the longest message that this end accepts.
    longest: usize,
    /// Buffers for read requests.
    receives: Region,
    pub(super) pool: Option<Arc<Slots>>,
    /// Messages of the peer that wait for a READ.
    pub(super) requests: VecDeque<Request>,
    reads: VecDeque<Reading>,
    pub(super) reads_begun: ReadId,
    pub(super) reads_done: ReadId,
    inbox: VecDeque<(u32, usize)>,
    pub(super) acknowledgements: u64,
    /// Receives that the current list of completions has consumed. `repost` posts these receives again.
    taken: Vec<u32>,
    /// Messages whose READs the current list of completions has completed.
    read: Vec<RemotePlace>,
}

impl Receiving {
    /// Allocates buffers, and posts `count` receives.
    pub(super) fn new(
        protocol: DirectRead,
        carrier: &Unconnected,
        config: &Config,
        count: usize,
    ) -> Result<Self, ConnectError> {
        let pd = &carrier.pd;
        let receives = pd.allocate(count * REQUEST_STRIDE, Access::LOCAL_WRITE, MemoryKind::Plain)?;
        let pool = match protocol.placement {
            Placement::ByHand => None,
            Placement::Pool => {
                let stride = config.stride();
                let region = pd.allocate(config.depth * stride, Access::LOCAL_WRITE, MemoryKind::Plain)?;
                Some(Slots::new(region, stride, config.depth, 0..config.depth as u32))
            }
        };
        let mut receiving = Self {
            protocol,
            depth: config.depth,
            longest: protocol.longest_received(config),
            receives,
            pool,
            requests: VecDeque::with_capacity(config.depth),
            reads: VecDeque::with_capacity(READS_IN_FLIGHT),
            reads_begun: 0,
            reads_done: 0,
            inbox: VecDeque::with_capacity(config.depth),
            acknowledgements: 0,
            taken: Vec::with_capacity(POLL_LIST),
            read: Vec::with_capacity(POLL_LIST),
        };
        for slot in 0..count as u32 {
            receiving.taken.push(slot);
            if receiving.taken.len() == POLL_LIST {
                receiving.repost(&carrier.qp)?;
            }
        }
        receiving.repost(&carrier.qp)?;
        Ok(receiving)
    }

    /// Records that the receive with this buffer is complete. `end_of_list` reposts the receive.
    #[inline]
    pub(super) fn taken(&mut self, slot: u32) {
        self.taken.push(slot);
    }

    /// Takes a read request.
    #[inline]
    pub(super) fn take_request(&mut self, slot: u32, length: usize) -> Result<(), ConnectionError> {
        let mut bytes = [0; MAX_REQUEST_BYTES];
        // Receives have room for the longest read request, and not for more bytes.
        let bytes = &mut bytes[..length.min(MAX_REQUEST_BYTES)];
        self.receives.copy_out(slot as usize * REQUEST_STRIDE, bytes);
        let request = Request::decode(bytes).ok_or(ConnectionError::Protocol("a malformed read request"))?;
        if request.len() > self.longest {
            return Err(ConnectionError::TooLong { length: request.len(), most: self.longest });
        }
        // Messages count against the window of the peer until the peer has their acknowledgements. If this side awaits
        // the completions of acknowledgements, the peer may already have those of all READs in flight, so these READs
        // do not count.
        let unacknowledged = match self.protocol.fence {
            Fence::AcknowledgementCompletion => 0,
            Fence::Nothing | Fence::ReadCompletion => self.reads.len(),
        };
        if self.requests.len() + unacknowledged >= self.depth {
            return Err(ConnectionError::Protocol("more messages than its window allows"));
        }
        self.requests.push_back(request);
        Ok(())
    }

    /// Returns whether the maximum number of READs is in flight.
    pub(super) fn is_full(&self) -> bool {
        self.reads.len() >= READS_IN_FLIGHT
    }

    /// Posts READs of waiting messages into free buffers, up to the maximum number of READs in flight.
    #[inline]
    pub(super) fn begin_into_pool(&mut self, qp: &Qp) -> Result<(), PostError> {
        let Some(pool) = &self.pool else { return Ok(()) };
        let mut places = Places::new();
        for request in self.requests.iter().take(READS_IN_FLIGHT - self.reads.len()) {
            let Some(slot) = pool.get() else { break };
            places.push((pool.region().sge(pool.offset(slot), request.len()), Destination::Slot(slot)));
        }
        if places.is_empty() { Ok(()) } else { self.begin(qp, &mut places) }
    }

    /// Posts READs of the oldest waiting messages with one post, one READ for each destination.
    pub(super) fn begin(&mut self, qp: &Qp, places: &mut Places) -> Result<(), PostError> {
        let mut list: SmallVec<[SendRequest<'_>; 2 * READS_IN_FLIGHT]> = SmallVec::new();
        let DirectRead { fence, acknowledge, .. } = self.protocol;
        // The message has arrived when the signaled request completes: the READ, or the awaited acknowledgement.
        let (read_flags, fenced_flags, fenced_tag) = match fence {
            Fence::AcknowledgementCompletion => {
                (SendFlags::empty(), SendFlags::FENCE | SendFlags::SIGNALED, Some(READ_TAG))
            }
            Fence::Nothing | Fence::ReadCompletion => (SendFlags::SIGNALED, SendFlags::FENCE, None),
        };
        for ((sge, _), (request, id)) in places.iter().zip(self.requests.iter().zip(self.reads_begun + 1..)) {
            list.push(SendRequest {
                wr_id: READ_TAG | id,
                operation: SendOperation::Read { remote_address: request.place.address, rkey: request.place.rkey },
                flags: read_flags,
                payload: Payload::Sges(if sge.length == 0 { &[] } else { std::slice::from_ref(sge) }),
                destination: None,
            });
            if fence != Fence::Nothing {
                let wr_id = fenced_tag.map_or(ACKNOWLEDGE_TAG, |tag| tag | id);
                list.push(SendRequest { wr_id, ..acknowledgement(acknowledge, &request.place, id, fenced_flags) });
            }
        }
        let result = qp.post_send(&list);
        drop(list);
        result?;
        for (_, place) in places.drain(..) {
            let Some(request) = self.requests.pop_front() else { break };
            self.reads.push_back(Reading { remote: request.place, place });
            self.reads_begun += 1;
        }
        Ok(())
    }

    /// Records that the oldest READ is complete. If acknowledgements are awaited, the acknowledgement of this READ is
    /// also complete.
    #[inline]
    pub(super) fn read(&mut self, id: ReadId) {
        let Some(Reading { remote, place }) = self.reads.pop_front() else { return };
        self.reads_done = id;
        if let Destination::Slot(slot) = place {
            self.inbox.push_back((slot, remote.length as usize));
        }
        self.read.push(remote);
    }

    /// Reposts the receives of the current list of completions.
    #[inline]
    pub(super) fn repost(&mut self, qp: &Qp) -> Result<(), PostError> {
        if self.taken.is_empty() {
            return Ok(());
        }
        let mut sges: SmallVec<[Sge; POLL_LIST]> = SmallVec::new();
        for &slot in &self.taken {
            sges.push(self.receives.sge(slot as usize * REQUEST_STRIDE, MAX_REQUEST_BYTES));
        }
        let mut list: SmallVec<[RecvRequest<'_>; POLL_LIST]> = SmallVec::new();
        for (&slot, sge) in self.taken.iter().zip(&sges) {
            list.push(RecvRequest { wr_id: RECEIVE_TAG | u64::from(slot), sges: std::slice::from_ref(sge) });
        }
        self.taken.clear();
        qp.post_recv(&list)
    }

    /// Acknowledges the messages that were read, unless the acknowledgements were posted with the READs.
    #[inline]
    pub(super) fn acknowledge(&mut self, qp: &Qp) -> Result<(), PostError> {
        let Some(last) = self.read.last() else { return Ok(()) };
        let mut list: SmallVec<[SendRequest<'_>; POLL_LIST]> = SmallVec::new();
        match self.protocol {
            DirectRead { fence: Fence::ReadCompletion | Fence::AcknowledgementCompletion, .. } => {
                self.acknowledgements += self.read.len() as u64;
                self.read.clear();
                return Ok(());
            }
            // One SEND acknowledges all messages that were read.
            DirectRead { acknowledge: Acknowledge::Send, .. } => {
                list.push(acknowledgement(Acknowledge::Send, last, self.reads_done, SendFlags::empty()));
            }
            DirectRead { acknowledge, .. } => {
                for place in &self.read {
                    list.push(acknowledgement(acknowledge, place, 0, SendFlags::empty()));
                }
            }
        }
        self.acknowledgements += list.len() as u64;
        self.read.clear();
        qp.post_send(&list)
    }

    #[inline]
    pub(super) fn take(&mut self) -> Option<Message> {
        let (slot, length) = self.inbox.pop_front()?;
        self.pool.as_ref().map(|pool| Lent::new(pool, slot, length))
    }
}

/// Returns the request that acknowledges a message. A SEND acknowledges all messages up to `id`. The request is
/// signaled only if `flags` contain the signal flag. An unsignaled request leaves the send queue when a later request
/// completes.
fn acknowledgement(kind: Acknowledge, place: &RemotePlace, id: ReadId, flags: SendFlags) -> SendRequest<'static> {
    let (operation, payload): (_, &'static [u8]) = match kind {
        Acknowledge::SignalByte => {
            let remote_address = place.address.wrapping_add(place.length.into());
            (SendOperation::Write { remote_address, rkey: place.rkey }, &[READ])
        }
        Acknowledge::Send => (SendOperation::SendImmediate(id as u32 & !GOODBYE), &[]),
    };
    SendRequest { wr_id: ACKNOWLEDGE_TAG, operation, flags, payload: Payload::Inline(payload), destination: None }
}
