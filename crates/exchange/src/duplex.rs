//! A connection of two halves that know nothing of each other: one that sends, one that receives.
//!
//! The protocols that write into the peer's memory or read from it are made so. What they have in
//! common stands here: completions, receives without buffers, the end.

use doorbell_protocols::{POLL_LIST, Protocol};
use doorbell_verbs::{
    Access, Attachment, Channel, Completion, CompletionOpcode, Pd, PostError, Qp, RecvRequest, Status,
};

use crate::config::{Config, LONGEST_TRANSFER};
use crate::connection::{Backpressure, Connector, Group, MessageConnection, MessageId, Received, Submit};
use crate::error::{ConnectError, ConnectionError, Misuse};
use crate::line::{CONTROL_TAG, Closing, Line, LineEnd, Queues, RECEIVE_TAG};
use crate::outbox::Source;
use crate::ring::WORD;
use crate::setup::{EndpointDescription, RemoteRegion};

/// Marks the work requests of the half that receives.
pub(crate) const INCOMING_TAG: u64 = 1 << 61;
/// Marks what the half that sends posts beside messages.
pub(crate) const OUTGOING_TAG: u64 = 1 << 60;

/// Words (the immediate data of SENDs without bytes): the goodbye.
const GOODBYE: u32 = 1 << 31;
/// A word for the half that receives; others are for the half that sends.
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

/// A protocol of two halves.
pub trait Halves: Clone {
    /// What is allocated before the peer is known.
    type Memory: std::fmt::Debug;
    /// The half that sends.
    type Out: Outgoing;
    /// The half that receives.
    type In: Incoming;

    /// Which protocol and variant.
    fn id(&self) -> Protocol;
    /// Allocates.
    fn memory(&self, pd: &Pd, config: &Config) -> Result<Self::Memory, ConnectError>;
    /// Makes several ends.
    fn ends(&self, group: &Group<'_>, config: &Config) -> Result<Vec<Endpoint<Self>>, ConnectError> {
        (0..group.count).map(|_| self.endpoint(group.pd, config, group.channel)).collect()
    }
    /// What the peer is told of it.
    fn regions(memory: &Self::Memory) -> [RemoteRegion; 2];
    /// What the peer may do.
    fn access(&self) -> Access;
    /// How long queues must be; receives beside [`WORD_RECEIVES`].
    fn queues(&self, config: &Config) -> Queues;
    /// Makes the halves.
    fn halves(
        &self,
        pd: &Pd,
        config: &Config,
        memory: Self::Memory,
        peer: &EndpointDescription,
    ) -> Result<(Self::Out, Self::In), ConnectError>;
}

/// One end of a connection to be: made, but not connected.
#[derive(Debug)]
pub struct Endpoint<H: Halves> {
    halves: H,
    config: Config,
    end: LineEnd,
    memory: H::Memory,
}

impl<H: Halves> Endpoint<H> {
    pub(crate) fn with_memory(
        halves: &H,
        pd: &Pd,
        config: &Config,
        channel: Option<&Channel>,
        memory: H::Memory,
    ) -> Result<Self, ConnectError> {
        let queues = Self::queues(halves, config);
        let cq = LineEnd::completion_queue(pd, queues, channel)?;
        let end = LineEnd::new(pd, queues, None, cq, halves.id())?;
        Ok(Self { halves: halves.clone(), config: config.clone(), end, memory })
    }

    fn queues(halves: &H, config: &Config) -> Queues {
        let queues = halves.queues(config);
        Queues { receives: queues.receives + WORD_RECEIVES, ..queues }
    }

    /// What the peer needs to know.
    pub fn description(&self) -> EndpointDescription {
        EndpointDescription { regions: H::regions(&self.memory), ..self.end.description(&self.config) }
    }

    /// Connects with the peer whose description this is. Receives are posted before it can send.
    pub fn connect(self, peer: &EndpointDescription) -> Result<Connection<H>, ConnectError> {
        let Self { halves, config, end, memory } = self;
        end.prepare(&config, peer, halves.access())?;
        let (outgoing, incoming) = halves.halves(&end.pd, &config, memory, peer)?;
        post_receives(&end.qp, Self::queues(&halves, &config).receives)?;
        Ok(Connection { line: end.connect(&config, peer)?, outgoing, incoming })
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

impl<H: Halves> Connector for H {
    type Endpoint = Endpoint<H>;
    type Connection = Connection<H>;

    fn protocol(&self) -> Protocol {
        self.id()
    }

    fn endpoint(&self, pd: &Pd, config: &Config, channel: Option<&Channel>) -> Result<Endpoint<H>, ConnectError> {
        config.check()?;
        Endpoint::with_memory(self, pd, config, channel, self.memory(pd, config)?)
    }

    fn endpoints(&self, group: &Group<'_>, config: &Config) -> Result<Vec<Endpoint<H>>, ConnectError> {
        self.ends(group, config)
    }

    fn describe(&self, endpoint: &Endpoint<H>) -> EndpointDescription {
        endpoint.description()
    }

    fn connect(&self, endpoint: Endpoint<H>, peer: &EndpointDescription) -> Result<Connection<H>, ConnectError> {
        endpoint.connect(peer)
    }
}

/// A connection: a non-blocking state machine, see [`MessageConnection`].
pub struct Connection<H: Halves> {
    line: Line,
    outgoing: H::Out,
    incoming: H::In,
}

impl<H: Halves> std::fmt::Debug for Connection<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("qpn", &self.line.qp.qpn())
            .field("last_accepted", &self.outgoing.last_accepted())
            .field("last_done", &self.outgoing.last_done())
            .field("over", &self.line.over)
            .finish_non_exhaustive()
    }
}

impl<H: Halves> Drop for Connection<H> {
    fn drop(&mut self) {
        // The peer reaches nothing any more from here on.
        self.line.fail();
        self.incoming.end(self.line.peer_closed);
    }
}

impl<H: Halves> Connection<H> {
    /// Takes completions, one list. Returns how many are news.
    #[inline]
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
        let mut receives = 0;
        let mut news = 0;
        let mut failed = None;
        for completion in &list[..count] {
            receives += usize::from(completion.wr_id & RECEIVE_TAG != 0 && completion.status == Status::Success);
            match self.take_completion(completion) {
                Ok(is_news) => news += usize::from(is_news),
                // The first error is the reason; flushed requests behind it are consequences.
                Err(error) => {
                    failed.get_or_insert(error);
                }
            }
        }
        if let Some(error) = failed {
            return Err(self.end(error));
        }
        // Before the peer learns that there is room for more.
        match post_receives(&self.line.qp, receives) {
            Ok(()) => Ok(news),
            Err(error) => Err(self.end(ConnectionError::Post(error))),
        }
    }

    #[inline]
    fn take_completion(&mut self, completion: &Completion) -> Result<bool, ConnectionError> {
        let wr_id = completion.wr_id;
        if wr_id & RECEIVE_TAG != 0 {
            return self.take_receive(completion).map(|()| true);
        }
        if wr_id & CONTROL_TAG != 0 {
            return self.line.take_control(completion).map(|()| true);
        }
        if completion.status != Status::Success {
            return match self.line.has_said_goodbye() && wr_id & INCOMING_TAG != 0 {
                // A peer that has heard the goodbye may be gone: it needs nothing any more.
                true => Ok(true),
                false => Err(ConnectionError::from_send(completion.status)),
            };
        }
        if wr_id & INCOMING_TAG != 0 {
            self.incoming.take_completion(wr_id & !INCOMING_TAG)
        } else {
            self.outgoing.take_completion(wr_id)
        }
    }

    #[inline]
    fn take_receive(&mut self, completion: &Completion) -> Result<(), ConnectionError> {
        if completion.status != Status::Success {
            return self.line.receive_failed(completion.status);
        }
        let Attachment::Immediate(word) = completion.attachment else {
            return Err(ConnectionError::Protocol("a SEND without the word that it has to carry"));
        };
        if completion.opcode == CompletionOpcode::ReceiveWriteImmediate {
            self.line.check_may_send()?;
            return self.incoming.take_notice(word, completion.byte_len as usize);
        }
        Line::check_is_send(completion)?;
        match word {
            GOODBYE => self.line.take_goodbye(),
            word if word & GOODBYE != 0 => Err(UNEXPECTED_WORD),
            word if word & TO_RECEIVER != 0 => self.incoming.take_word(word & !TO_RECEIVER),
            word => self.outgoing.take_word(word),
        }
    }

    fn posted<T>(&mut self, result: Result<T, PostError>) -> Result<T, ConnectionError> {
        result.or_else(|error| {
            // The queue pair may have failed meanwhile; then its completions say why.
            self.reap()?;
            Err(self.end(ConnectionError::Post(error)))
        })
    }

    fn submit(&mut self, source: Source<'_>) -> Result<Submit, ConnectionError> {
        self.line.check_open()?;
        if let Some(full) = self.outgoing.refusal(source.len()) {
            return Ok(Submit::Full(full));
        }
        let result = self.outgoing.send(&self.line.qp, source);
        self.posted(result).map(Submit::Accepted)
    }

    fn end(&mut self, reason: ConnectionError) -> ConnectionError {
        let reason = self.line.end(reason);
        self.incoming.end(self.line.peer_closed);
        reason
    }

    /// Posts what waits, takes completions, lets both halves move along.
    fn advance(&mut self) -> Result<bool, ConnectionError> {
        self.flush()?;
        let mut moved = self.reap()?;
        moved += self.outgoing.poll(&self.line.qp)?;
        moved += self.incoming.look()?;
        if !self.line.peer_closed {
            moved += self.incoming.tell(&self.line.qp, moved == 0)?;
        }
        Ok(moved > 0)
    }
}

impl<H: Halves> MessageConnection for Connection<H> {
    type Message = <H::In as Incoming>::Message;

    #[inline]
    fn send(&mut self, message: &[u8]) -> Result<Submit, ConnectionError> {
        Misuse::check_length(message.len(), self.max_send())?;
        self.submit(Source::Bytes(message))
    }

    #[inline]
    fn send_from(
        &mut self,
        region: &doorbell_verbs::Region,
        offset: usize,
        length: usize,
    ) -> Result<Submit, ConnectionError> {
        Misuse::check_length(length, self.outgoing.max_received().min(LONGEST_TRANSFER - WORD))?;
        Misuse::check_inside(region, offset, length)?;
        self.submit(Source::Memory { region, offset, length })
    }

    #[inline]
    fn flush(&mut self) -> Result<(), ConnectionError> {
        let result = self.outgoing.flush(&self.line.qp);
        self.posted(result)
    }

    fn max_send(&self) -> usize {
        self.outgoing.max_send()
    }

    #[inline]
    fn poll(&mut self) -> Result<bool, ConnectionError> {
        if let Some(error) = self.line.over {
            return Err(error);
        }
        let moved = match self.advance() {
            Ok(moved) => moved,
            Err(error) => {
                if let ConnectionError::Post(_) = error {
                    // The queue pair may have failed meanwhile; then its completions say why.
                    self.reap()?;
                }
                return Err(self.end(error));
            }
        };
        // Not only when nothing else is to be done: the peer may never stop sending.
        if self.line.closing == Closing::Wanted && self.unacknowledged() == 0 {
            let said = self.line.say_goodbye(GOODBYE);
            self.posted(said)?;
        }
        if !moved {
            let asked = self.line.keep_alive();
            self.posted(asked)?;
        }
        Ok(moved)
    }

    #[inline]
    fn take(&mut self) -> Option<Self::Message> {
        self.incoming.take()
    }

    #[inline]
    fn last_done(&self) -> MessageId {
        self.outgoing.last_done()
    }

    #[inline]
    fn unacknowledged(&self) -> u64 {
        self.outgoing.last_accepted() - self.outgoing.last_done()
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

    fn notifies(&self) -> bool {
        self.outgoing.notifies() && self.incoming.notifies()
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
