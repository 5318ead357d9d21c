//! The state machine.

use std::collections::VecDeque;
use std::sync::Arc;

use doorbell_protocols::POLL_LIST;
use doorbell_verbs::{
    Access, Attachment, Channel, Completion, Payload, PostError, Qp, RecvRequest, Region, SendFlags, SendOperation,
    SendRequest, Sge, Status,
};
use smallvec::{SmallVec, smallvec};

use super::message::Message;
use super::request::{MAX_APPLICATION_BYTES, MAX_REQUEST_BYTES, RemotePlace, Request};
use super::{Acknowledge, DirectRead};
use crate::config::{Config, LONGEST_TRANSFER, MAX_BATCH};
use crate::connection::{Backpressure, Connector, MessageConnection, MessageId, Submit};
use crate::error::{ConnectionError, Misuse};
use crate::line::{CONTROL_TAG, Closing, Line, RECEIVE_TAG};
use crate::slots::Slots;

/// READs in flight at most (facts of the published evaluation: nothing is gained above).
pub(super) const READS_IN_FLIGHT: usize = 32;

/// From one buffer for a read request to the next.
pub(super) const REQUEST_STRIDE: usize = MAX_REQUEST_BYTES.next_multiple_of(64);

/// Marks the work requests of READs.
const READ_TAG: u64 = 1 << 61;
/// Marks the work requests of acknowledgements.
const ACKNOWLEDGE_TAG: u64 = CONTROL_TAG | 3;

/// Marks the immediate data of the goodbye; otherwise it is how many messages were read, modulo
/// 2^31.
const GOODBYE: u32 = 1 << 31;

/// What a signal byte becomes when its message was read.
const READ: u8 = 1;

/// Names a READ of a connection. Ids rise by one.
pub type ReadId = u64;

/// Buffers for read requests.
pub(super) struct Receives {
    pub(super) region: Region,
}

impl Receives {
    pub(super) fn sge(&self, slot: u32) -> Sge {
        self.region.sge(slot as usize * REQUEST_STRIDE, MAX_REQUEST_BYTES)
    }
}

/// A message that is being read.
pub(super) struct Reading {
    remote: RemotePlace,
    place: Place,
}

pub(super) enum Place {
    /// A buffer of the pool.
    Slot(u32),
    /// Memory of the program, which lives as long.
    Region { _held: Region },
}

/// A connection of the protocol Direct-Read.
pub struct Connection {
    pub(super) line: Line,
    pub(super) protocol: DirectRead,
    pub(super) config: Config,
    /// What the peer may do to memory that it was told of.
    pub(super) access: Access,
    /// Messages that may be unread: no more than the peer has receives.
    pub(super) window: u64,
    pub(super) peer_max_message: u64,
    /// Buffers for messages that are copied, and how many. Without send buffers those are for the messages of no bytes,
    /// which have a signal byte, too.
    pub(super) send_region: Region,
    pub(super) send_places: u64,
    pub(super) stride: usize,
    pub(super) next_id: MessageId,
    /// Last id that was read.
    pub(super) completed: MessageId,
    /// Last id whose announcement has left the send queue.
    pub(super) announced: MessageId,
    pub(super) pending: Vec<(MessageId, SmallVec<[u8; MAX_REQUEST_BYTES]>)>,
    /// Where the signal bytes of unread messages are, oldest first.
    pub(super) signals: VecDeque<(Region, usize)>,
    pub(super) receives: Receives,
    pub(super) pool: Option<Arc<Slots>>,
    /// Messages of the peer that wait to be read.
    pub(super) requests: VecDeque<Request>,
    pub(super) reads: VecDeque<Reading>,
    pub(super) reads_begun: ReadId,
    pub(super) reads_done: ReadId,
    pub(super) inbox: VecDeque<(u32, usize)>,
    pub(super) acknowledgements: u64,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("qpn", &self.line.qp.qpn())
            .field("next_id", &self.next_id)
            .field("completed", &self.completed)
            .field("reads_done", &self.reads_done)
            .field("over", &self.line.over)
            .finish_non_exhaustive()
    }
}

/// Sending.
impl Connection {
    /// Sends a message, which is copied, with up to [`MAX_APPLICATION_BYTES`] in its read request.
    ///
    /// # Errors
    ///
    /// The connection is over. Or the message or what goes with it is too long ([`ConnectionError::Misuse`]): then the
    /// connection goes on.
    pub fn send_with(&mut self, message: &[u8], application: &[u8]) -> Result<Submit, ConnectionError> {
        Misuse::check_length(message.len(), self.max_send())?;
        check_application(application)?;
        if let Some(full) = self.refusal()? {
            return Ok(Submit::Full(full));
        }
        let region = self.send_region.clone();
        let offset = (self.next_id % self.send_places) as usize * self.stride;
        region.copy_in(offset, message);
        self.announce(region, offset, message.len(), application)
    }

    /// Sends a message from memory of the program, with up to [`MAX_APPLICATION_BYTES`] in its read
    /// request. The region must be registered for remote reading; with signal bytes also for remote
    /// writing, and the byte behind the message is the signal byte.
    ///
    /// # Errors
    ///
    /// The connection is over. Or the region does not allow that, or has no byte behind the message, or the message or
    /// what goes with it is too long ([`ConnectionError::Misuse`]): then the connection goes on.
    pub fn send_from_with(
        &mut self,
        region: &Region,
        offset: usize,
        length: usize,
        application: &[u8],
    ) -> Result<Submit, ConnectionError> {
        self.check_source(region, offset, length)?;
        check_application(application)?;
        if let Some(full) = self.refusal()? {
            return Ok(Submit::Full(full));
        }
        self.announce(region.clone(), offset, length, application)
    }

    /// Checks that a message can be sent from there.
    pub(super) fn check_source(&self, region: &Region, offset: usize, length: usize) -> Result<(), Misuse> {
        Misuse::check_length(length, self.max_received())?;
        Misuse::check_inside(region, offset, length + self.protocol.bytes_behind())?;
        Misuse::check_access(region, self.access)
    }

    /// Bytes of the longest message that the peer takes.
    fn max_received(&self) -> usize {
        usize::try_from(self.peer_max_message).unwrap_or(usize::MAX).min(LONGEST_TRANSFER)
    }

    #[inline]
    pub(super) fn refusal(&self) -> Result<Option<Backpressure>, ConnectionError> {
        self.line.check_open()?;
        let last = self.next_id - 1;
        // A message may be read before the queue knows that its announcement arrived.
        let full = last - self.completed >= self.window || last - self.announced >= self.config.window as u64;
        Ok(full.then_some(Backpressure::Window))
    }

    #[inline]
    fn announce(
        &mut self,
        region: Region,
        offset: usize,
        length: usize,
        application: &[u8],
    ) -> Result<Submit, ConnectionError> {
        let id = self.next_id;
        self.next_id += 1;
        let place =
            RemotePlace { address: region.address() + offset as u64, rkey: region.rkey(), length: length as u32 };
        let request = Request { place, application: application.into() };
        self.pending.push((id, request.encode()));
        if self.protocol.acknowledge == Acknowledge::SignalByte {
            region.store_release_u8(offset + length, 0);
        }
        self.signals.push_back((region, offset + length));
        if self.pending.len() >= self.config.batch {
            self.post_announcements()?;
        }
        Ok(Submit::Accepted(id))
    }

    #[inline]
    fn post_announcements(&mut self) -> Result<(), ConnectionError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let last = self.pending.len() - 1;
        // Filled where it is: a list that is collected is moved, and it is long.
        let mut list: SmallVec<[SendRequest<'_>; MAX_BATCH]> = SmallVec::new();
        for (index, (id, bytes)) in self.pending.iter().enumerate() {
            list.push(SendRequest {
                wr_id: *id,
                operation: SendOperation::Send,
                flags: if index == last { SendFlags::SIGNALED } else { SendFlags::empty() },
                payload: Payload::Inline(bytes),
                destination: None,
            });
        }
        let result = self.line.qp.post_send(&list);
        drop(list);
        self.pending.clear();
        self.posted(result)
    }

    fn posted(&mut self, result: Result<(), PostError>) -> Result<(), ConnectionError> {
        result.or_else(|error| {
            // The queue pair may have failed meanwhile; then its completions say why.
            self.reap()?;
            Err(self.end(ConnectionError::Post(error)))
        })
    }

    /// Looks at the signal bytes of the oldest messages. Returns how many were read.
    #[inline]
    fn look_at_signals(&mut self) -> usize {
        if self.protocol.acknowledge == Acknowledge::Send {
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
}

/// Receiving.
impl Connection {
    /// The oldest message that waits to be read, where the program places messages by hand.
    pub fn request(&self) -> Option<&Request> {
        if self.pool.is_some() { None } else { self.requests.front() }
    }

    /// Begins to read the oldest message that waits into memory of the program, which must be
    /// registered for local writes. Does not wait. `None` if no message waits, or as many are
    /// being read as may be: poll and try again.
    ///
    /// # Errors
    ///
    /// The connection is over. Or the region has no room for the message there, or may not be written
    /// ([`ConnectionError::Misuse`]): then the connection goes on.
    pub fn read_into(&mut self, region: &Region, offset: usize) -> Result<Option<ReadId>, ConnectionError> {
        if let Some(error) = self.line.over {
            return Err(error);
        }
        if self.pool.is_some() || self.reads.len() >= READS_IN_FLIGHT {
            return Ok(None);
        }
        let Some(request) = self.requests.front() else { return Ok(None) };
        let length = request.len();
        Misuse::check_inside(region, offset, length)?;
        if length > 0 {
            Misuse::check_access(region, Access::LOCAL_WRITE)?;
        }
        let place = (region.sge(offset, length), Place::Region { _held: region.clone() });
        self.begin(&mut smallvec![place])?;
        Ok(Some(self.reads_begun))
    }

    /// Is this message read?
    pub fn is_read(&self, id: ReadId) -> bool {
        id <= self.reads_done
    }

    /// Begins as many READs as there are buffers for.
    #[inline]
    fn begin_into_pool(&mut self) -> Result<(), ConnectionError> {
        let Some(pool) = &self.pool else { return Ok(()) };
        let mut places = Places::new();
        for request in self.requests.iter().take(READS_IN_FLIGHT - self.reads.len()) {
            let Some(slot) = pool.get() else { break };
            places.push((pool.region().sge(pool.offset(slot), request.len()), Place::Slot(slot)));
        }
        if places.is_empty() { Ok(()) } else { self.begin(&mut places) }
    }

    /// Begins READs of the oldest requests, one for each place, in one post.
    fn begin(&mut self, places: &mut Places) -> Result<(), ConnectionError> {
        let mut list: SmallVec<[SendRequest<'_>; 2 * READS_IN_FLIGHT]> = SmallVec::new();
        for ((sge, _), (request, id)) in places.iter().zip(self.requests.iter().zip(self.reads_begun + 1..)) {
            list.push(SendRequest {
                wr_id: READ_TAG | id,
                operation: SendOperation::Read { remote_address: request.place.address, rkey: request.place.rkey },
                flags: SendFlags::SIGNALED,
                payload: Payload::Sges(if sge.length == 0 { &[] } else { std::slice::from_ref(sge) }),
                destination: None,
            });
            if self.protocol.fenced {
                list.push(acknowledgement(self.protocol.acknowledge, &request.place, id, SendFlags::FENCE));
            }
        }
        let result = self.line.qp.post_send(&list);
        drop(list);
        self.posted(result)?;
        for (_, place) in places.drain(..) {
            let Some(request) = self.requests.pop_front() else { break };
            self.reads.push_back(Reading { remote: request.place, place });
            self.reads_begun += 1;
        }
        Ok(())
    }

    /// Tells the peer what was read, unless that was posted with the READs.
    #[inline]
    fn acknowledge(&mut self, read: &[RemotePlace]) -> Result<(), ConnectionError> {
        let Some(last) = read.last() else { return Ok(()) };
        let mut list: SmallVec<[SendRequest<'_>; POLL_LIST]> = SmallVec::new();
        match self.protocol {
            DirectRead { fenced: true, .. } => {
                self.acknowledgements += read.len() as u64;
                return Ok(());
            }
            // One tells of all.
            DirectRead { acknowledge: Acknowledge::Send, .. } => {
                list.push(acknowledgement(Acknowledge::Send, last, self.reads_done, SendFlags::empty()));
            }
            DirectRead { acknowledge, .. } => {
                for place in read {
                    list.push(acknowledgement(acknowledge, place, 0, SendFlags::empty()));
                }
            }
        }
        self.acknowledgements += list.len() as u64;
        let result = self.line.qp.post_send(&list);
        self.posted(result)
    }

    /// Acknowledgements that were sent: WRITEs of a signal byte, or SENDs.
    pub fn acknowledgements(&self) -> u64 {
        self.acknowledgements
    }
}

/// Checks the length of what is to go with a message.
fn check_application(application: &[u8]) -> Result<(), Misuse> {
    let (given, allowed) = (application.len(), MAX_APPLICATION_BYTES);
    if given > allowed { Err(Misuse::Application { given, allowed }) } else { Ok(()) }
}

type Places = SmallVec<[(Sge, Place); READS_IN_FLIGHT]>;

/// Tells the peer that a message, and with SENDs all up to this id, was read. Not signaled: it has
/// left the queue when anything behind it has.
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

/// Completions.
impl Connection {
    /// Takes completions, one list.
    fn reap(&mut self) -> Result<usize, ConnectionError> {
        let mut list = [Completion::default(); POLL_LIST];
        let count = match self.line.cq.poll(&mut list) {
            Ok(count) => count,
            Err(error) => return Err(self.end(ConnectionError::Overrun(error))),
        };
        if count == 0 {
            return Ok(0);
        }
        self.line.heard();
        let mut taken = Taken { slots: SmallVec::new(), read: SmallVec::new() };
        let mut failed = None;
        for completion in &list[..count] {
            if let Err(error) = self.take_completion(completion, &mut taken) {
                // The first error is the reason; flushed requests behind it are consequences.
                failed.get_or_insert(error);
            }
        }
        if let Some(error) = failed {
            return Err(self.end(error));
        }
        // First the receives, then the acknowledgements, which let the peer send again.
        self.repost(&taken.slots)?;
        self.acknowledge(&taken.read)?;
        Ok(count)
    }

    fn take_completion(&mut self, completion: &Completion, taken: &mut Taken) -> Result<(), ConnectionError> {
        let wr_id = completion.wr_id;
        if wr_id & RECEIVE_TAG != 0 {
            return self.take_receive(completion, wr_id as u32, taken);
        }
        if wr_id & CONTROL_TAG != 0 {
            return self.line.take_control(completion);
        }
        if completion.status != Status::Success {
            return Err(ConnectionError::from_send(completion.status));
        }
        if wr_id & READ_TAG == 0 {
            self.announced = wr_id;
            return Ok(());
        }
        let Some(Reading { remote, place }) = self.reads.pop_front() else { return Ok(()) };
        self.reads_done = wr_id & !READ_TAG;
        if let Place::Slot(slot) = place {
            self.inbox.push_back((slot, remote.length as usize));
        }
        taken.read.push(remote);
        Ok(())
    }

    fn take_receive(&mut self, completion: &Completion, slot: u32, taken: &mut Taken) -> Result<(), ConnectionError> {
        if completion.status != Status::Success {
            return self.line.receive_failed(completion.status);
        }
        taken.slots.push(slot);
        Line::check_is_send(completion)?;
        let Attachment::Immediate(word) = completion.attachment else {
            self.line.check_may_send()?;
            return self.take_request(slot, completion.byte_len as usize);
        };
        if completion.byte_len > 0 {
            return Err(ConnectionError::Protocol("a word with a message behind it"));
        }
        if word == GOODBYE {
            return self.line.take_goodbye();
        }
        let newly = word.wrapping_sub(self.completed as u32) & !GOODBYE;
        if word & GOODBYE != 0 || self.protocol.acknowledge != Acknowledge::Send || newly as usize > self.signals.len()
        {
            return Err(ConnectionError::Protocol("word of messages read that were not sent"));
        }
        self.signals.drain(..newly as usize);
        self.completed += u64::from(newly);
        Ok(())
    }

    fn take_request(&mut self, slot: u32, length: usize) -> Result<(), ConnectionError> {
        let mut bytes = [0; MAX_REQUEST_BYTES];
        // No receive is longer.
        let bytes = &mut bytes[..length.min(MAX_REQUEST_BYTES)];
        self.receives.region.copy_out(slot as usize * REQUEST_STRIDE, bytes);
        let request = Request::decode(bytes).ok_or(ConnectionError::Protocol("a read request that is none"))?;
        let most = self.protocol.longest_received(&self.config);
        if request.len() > most {
            return Err(ConnectionError::TooLong { length: request.len(), most });
        }
        if self.requests.len() + self.reads.len() >= self.config.depth {
            return Err(ConnectionError::Protocol("more messages than its window allows"));
        }
        self.requests.push_back(request);
        Ok(())
    }

    fn repost(&mut self, slots: &[u32]) -> Result<(), ConnectionError> {
        if slots.is_empty() {
            return Ok(());
        }
        let mut sges: SmallVec<[Sge; POLL_LIST]> = SmallVec::new();
        for &slot in slots {
            sges.push(self.receives.sge(slot));
        }
        let mut list: SmallVec<[RecvRequest<'_>; POLL_LIST]> = SmallVec::new();
        for (&slot, sge) in slots.iter().zip(&sges) {
            list.push(RecvRequest { wr_id: RECEIVE_TAG | u64::from(slot), sges: std::slice::from_ref(sge) });
        }
        let result = self.line.qp.post_recv(&list);
        self.posted(result)
    }

    fn end(&mut self, reason: ConnectionError) -> ConnectionError {
        self.pending.clear();
        self.line.end(reason)
    }
}

/// What one list of completions has brought.
struct Taken {
    /// Receives to be posted again.
    slots: SmallVec<[u32; POLL_LIST]>,
    /// Messages that were read.
    read: SmallVec<[RemotePlace; POLL_LIST]>,
}

impl MessageConnection for Connection {
    type Message = Message;

    fn send(&mut self, message: &[u8]) -> Result<Submit, ConnectionError> {
        self.send_with(message, &[])
    }

    fn send_from(&mut self, region: &Region, offset: usize, length: usize) -> Result<Submit, ConnectionError> {
        self.send_from_with(region, offset, length, &[])
    }

    fn flush(&mut self) -> Result<(), ConnectionError> {
        self.post_announcements()
    }

    fn max_send(&self) -> usize {
        let own = if self.config.send_buffers > 0 { self.config.max_message } else { 0 };
        own.min(self.max_received())
    }

    fn poll(&mut self) -> Result<bool, ConnectionError> {
        if let Some(error) = self.line.over {
            return Err(error);
        }
        self.post_announcements()?;
        let count = self.reap()?;
        self.begin_into_pool()?;
        let read = self.look_at_signals();
        // Not only when nothing else is to be done: the peer may never stop sending.
        if self.line.closing == Closing::Wanted && self.unacknowledged() == 0 {
            let said = self.line.say_goodbye(GOODBYE);
            self.posted(said)?;
        }
        if count + read > 0 {
            return Ok(true);
        }
        let asked = self.line.keep_alive();
        self.posted(asked)?;
        Ok(false)
    }

    fn take(&mut self) -> Option<Message> {
        let (slot, length) = self.inbox.pop_front()?;
        self.pool.as_ref().map(|pool| Message::new(pool, slot, length))
    }

    fn last_done(&self) -> MessageId {
        self.completed
    }

    fn unacknowledged(&self) -> u64 {
        self.next_id - 1 - self.completed
    }

    fn close(&mut self) {
        self.line.close();
    }

    fn is_closed(&self) -> bool {
        self.line.is_closed()
    }

    fn is_peer_closed(&self) -> bool {
        self.line.peer_closed
    }

    fn over(&self) -> Option<ConnectionError> {
        self.line.over
    }

    fn arm(&self) {
        self.line.arm();
    }

    fn channel(&self) -> Option<&Channel> {
        self.line.cq.channel()
    }

    /// A signal byte raises no notification.
    fn notifies(&self) -> bool {
        self.protocol.acknowledge == Acknowledge::Send || self.signals.is_empty()
    }

    fn poll_timeout_ns(&self) -> Option<u64> {
        self.line.poll_timeout_ns()
    }

    fn keepalives(&self) -> u64 {
        self.line.keepalives
    }

    fn qp(&self) -> &Qp {
        &self.line.qp
    }
}
