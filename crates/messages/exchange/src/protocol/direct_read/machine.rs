//! The machine of both halves, and the additional methods of Direct-Read connections.

use doorbell_verbs::{Access, Attachment, Completion, PostError, Qp, Region};
use smallvec::smallvec;

use super::Connection;
use super::Message;
use super::receiving::{Destination, READ_TAG, ReadId, Receiving};
use super::request::{MAX_APPLICATION_BYTES, Request};
use super::sending::Sending;
use crate::connection::carrier::Carrier;
use crate::connection::engine::{GOODBYE, Machine};
use crate::connection::error::{ConnectionError, Misuse};
use crate::connection::outbox::Source;
use crate::connection::{Backpressure, MessageConnection, MessageId, Submit};

/// The machine of the protocol Direct-Read.
pub struct Direct {
    pub(super) sending: Sending,
    pub(super) receiving: Receiving,
}

impl Machine for Direct {
    type Message = Message;

    fn max_send(&self) -> usize {
        self.sending.longest_copied()
    }

    fn max_send_from(&self) -> usize {
        self.sending.longest()
    }

    fn check_source(&self, region: &Region, offset: usize, length: usize) -> Result<(), Misuse> {
        self.sending.check_source(region, offset, length)
    }

    #[inline]
    fn refusal(&mut self, _length: usize) -> Option<Backpressure> {
        self.sending.refusal()
    }

    #[inline]
    fn send(&mut self, qp: &Qp, source: Source<'_>) -> Result<MessageId, PostError> {
        self.sending.send(qp, source, &[])
    }

    #[inline]
    fn flush(&mut self, qp: &Qp) -> Result<(), PostError> {
        self.sending.flush(qp)
    }

    #[inline]
    fn take_completion(&mut self, wr_id: u64) -> Result<bool, ConnectionError> {
        if wr_id & READ_TAG == 0 {
            self.sending.announced(wr_id);
        } else {
            self.receiving.read(wr_id & !READ_TAG);
        }
        Ok(true)
    }

    #[inline]
    fn take_receive(&mut self, carrier: &mut Carrier, completion: &Completion) -> Result<(), ConnectionError> {
        let slot = completion.wr_id as u32;
        self.receiving.taken(slot);
        Carrier::check_is_send(completion)?;
        let Attachment::Immediate(word) = completion.attachment else {
            carrier.check_may_send()?;
            return self.receiving.take_request(slot, completion.byte_len as usize);
        };
        if completion.byte_len > 0 {
            return Err(ConnectionError::Protocol("message bytes in a SEND whose immediate data allows none"));
        }
        match word {
            GOODBYE => carrier.take_goodbye(),
            word => self.sending.take_word(word),
        }
    }

    /// Posts receives before acknowledgements, since the peer may send new messages after an acknowledgement.
    #[inline]
    fn end_of_list(&mut self, qp: &Qp) -> Result<(), PostError> {
        self.receiving.repost(qp)?;
        self.receiving.acknowledge(qp)
    }

    #[inline]
    fn advance(&mut self, carrier: &Carrier, _news: usize) -> Result<usize, ConnectionError> {
        self.receiving.begin_into_pool(&carrier.qp)?;
        Ok(self.sending.look_at_signals())
    }

    fn end(&mut self, _in_peace: bool) {
        self.sending.end();
    }

    #[inline]
    fn take(&mut self) -> Option<Message> {
        self.receiving.take()
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
        self.sending.notifies()
    }
}

impl Connection {
    /// Sends a message by copying it. The read request carries the bytes of `application`, at most
    /// [`MAX_APPLICATION_BYTES`].
    ///
    /// # Errors
    ///
    /// The connection has ended, or the message or its application bytes are too long ([`ConnectionError::Misuse`]).
    /// After a misuse, the connection stays usable.
    pub fn send_with(&mut self, message: &[u8], application: &[u8]) -> Result<Submit, ConnectionError> {
        Misuse::check_length(message.len(), self.max_send())?;
        check_application(application)?;
        self.submit(message.len(), |machine, qp| machine.sending.send(qp, Source::Bytes(message), application))
    }

    /// Sends a message from memory of the program. The read request carries the bytes of `application`, at most
    /// [`MAX_APPLICATION_BYTES`]. The region must be registered for remote reads. With signal bytes, the region must
    /// also be registered for remote writes, and must contain the byte after the message.
    ///
    /// # Errors
    ///
    /// The connection has ended. Or the region lacks this access or the byte after the message, or the message or its
    /// application bytes are too long ([`ConnectionError::Misuse`]). After a misuse, the connection stays usable.
    pub fn send_from_with(
        &mut self,
        region: &Region,
        offset: usize,
        length: usize,
        application: &[u8],
    ) -> Result<Submit, ConnectionError> {
        self.machine.check_source(region, offset, length)?;
        check_application(application)?;
        let source = Source::Memory { region, offset, length };
        self.submit(length, |machine, qp| machine.sending.send(qp, source, application))
    }

    /// Returns the oldest message that waits to be read. Always returns `None` unless the program places messages by
    /// hand.
    pub fn request(&self) -> Option<&Request> {
        let receiving = &self.machine.receiving;
        if receiving.pool.is_some() { None } else { receiving.requests.front() }
    }

    /// Posts a READ of the oldest waiting message into memory of the program, without waiting for the READ. The memory
    /// must be registered for local writes. Returns `None` if no message waits or the maximum number of READs is in
    /// flight: poll and try again.
    ///
    /// # Errors
    ///
    /// The connection has ended. Or the region has no room for the message at this offset, or does not allow local
    /// writes ([`ConnectionError::Misuse`]). After a misuse, the connection stays usable.
    pub fn read_into(&mut self, region: &Region, offset: usize) -> Result<Option<ReadId>, ConnectionError> {
        if let Some(error) = self.carrier.over {
            return Err(error);
        }
        let receiving = &mut self.machine.receiving;
        if receiving.pool.is_some() || receiving.is_full() {
            return Ok(None);
        }
        let Some(request) = receiving.requests.front() else { return Ok(None) };
        let length = request.len();
        Misuse::check_inside(region, offset, length)?;
        if length > 0 {
            Misuse::check_access(region, Access::LOCAL_WRITE)?;
        }
        let place = (region.sge(offset, length), Destination::Region { _held: region.clone() });
        let begun = receiving.begin(&self.carrier.qp, &mut smallvec![place]);
        self.explained(begun)?;
        Ok(Some(self.machine.receiving.reads_begun))
    }

    /// Returns whether the READ with this id is complete.
    pub fn is_read(&self, id: ReadId) -> bool {
        id <= self.machine.receiving.reads_done
    }

    /// Returns the number of acknowledgements that this end has posted: WRITEs of a signal byte, or SENDs.
    pub fn acknowledgements(&self) -> u64 {
        self.machine.receiving.acknowledgements
    }
}

/// Checks the length of the application bytes of a message.
fn check_application(application: &[u8]) -> Result<(), Misuse> {
    let (given, allowed) = (application.len(), MAX_APPLICATION_BYTES);
    if given > allowed { Err(Misuse::Application { given, allowed }) } else { Ok(()) }
}
