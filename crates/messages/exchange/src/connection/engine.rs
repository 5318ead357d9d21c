//! The engine of the connections of all protocols. The engine takes completions, posts waiting messages and finds the
//! reason of failed posts. It also ends the connection, and sends the goodbye and the keepalives.
//!
//! A [`Machine`] implements the protocol, and the engine calls the machine. The four protocols whose sending and
//! receiving halves are independent share one machine, [`Duplex`](crate::connection::duplex::Duplex). The engine is
//! generic over the machine, so the compiler generates separate code for each protocol.

use doorbell_protocols::Protocol;
use doorbell_verbs::{Access, Channel, Completion, Cq, Pd, PostError, Qp, Region, Srq, Status};

use crate::connection::carrier::{CONTROL_TAG, Carrier, Closing, Queues, RECEIVE_TAG, Unconnected};
use crate::connection::config::{Config, MAX_POLL_LIST};
use crate::connection::error::{ConnectError, ConnectionError, Misuse};
use crate::connection::outbox::Source;
use crate::connection::{Backpressure, Connector, Group, MessageConnection, MessageId, Received, Submit};
use crate::setup::{EndpointDescription, RemoteRegion};

/// Immediate data of the goodbye, in protocols whose other words leave the top bit clear.
pub(crate) const GOODBYE: u32 = 1 << 31;

/// The protocol-specific part of one connection: its sending half and its receiving half.
///
/// If a machine's post fails, the machine returns the error of the post. The engine then looks for the reason in the
/// completions, and ends the connection. A machine never ends the connection itself.
pub trait Machine {
    /// Type of the received messages.
    type Message: Received;

    /// Returns the bytes of the longest message that the machine can copy.
    fn max_send(&self) -> usize;
    /// Returns the bytes of the longest message that the program may send from its own memory.
    fn max_send_from(&self) -> usize;
    /// Checks that a message can be sent from this memory.
    #[inline]
    fn check_source(&self, region: &Region, offset: usize, length: usize) -> Result<(), Misuse> {
        Misuse::check_length(length, self.max_send_from())?;
        Misuse::check_inside(region, offset, length)
    }
    /// Returns the reason for which a message of this length is not accepted now, or `None` if the message is accepted.
    fn refusal(&mut self, length: usize) -> Option<Backpressure>;
    /// Accepts a message for which [`refusal`](Self::refusal) returned `None`.
    fn send(&mut self, qp: &Qp, source: Source<'_>) -> Result<MessageId, PostError>;
    /// Posts messages that wait for a full batch.
    fn flush(&mut self, qp: &Qp) -> Result<(), PostError>;

    /// Returns whether the connection polls its own completion queue. If not, a hub polls the queue and passes the
    /// completions to [`Connection::hand_in`].
    #[inline]
    fn takes_completions(&self) -> bool {
        true
    }
    /// Returns whether this work request only serves the peer, such as a report of free space. After the goodbye, the
    /// engine ignores the failure of such a request.
    #[inline]
    fn serves_the_peer(_wr_id: u64) -> bool {
        false
    }
    /// Takes the completion of a request. Returns whether the completion is news. A completion is no news if a repeated
    /// READ returned the same value again.
    fn take_completion(&mut self, wr_id: u64) -> Result<bool, ConnectionError>;
    /// Takes the completion of a successful receive. The received message may be the peer's goodbye.
    fn take_receive(&mut self, carrier: &mut Carrier, completion: &Completion) -> Result<(), ConnectionError>;
    /// Takes the completion of a failed receive, whose buffer holds no message.
    #[inline]
    fn take_flushed(&mut self, _wr_id: u64) -> Result<(), PostError> {
        Ok(())
    }
    /// Posts the requests that a whole list of completions requires. The engine calls this function only if no
    /// completion of the list was an error.
    #[inline]
    fn end_of_list(&mut self, _qp: &Qp) -> Result<(), PostError> {
        Ok(())
    }
    /// Advances the machine. `news` is the number of completions since the previous call that the machine reported as
    /// events. Returns the number of events that this call causes in addition.
    fn advance(&mut self, carrier: &Carrier, news: usize) -> Result<usize, ConnectionError>;

    /// Returns the immediate data for this side's goodbye. The engine then sends the goodbye.
    #[inline]
    fn goodbye(&mut self) -> u32 {
        GOODBYE
    }
    /// Ends the machine. `in_peace` is true if the peer has sent its goodbye. The engine may call this function twice.
    fn end(&mut self, in_peace: bool);

    /// Returns the next message that has arrived, if any.
    fn take(&mut self) -> Option<Self::Message>;
    /// Returns the id of the latest message that is done.
    fn last_done(&self) -> MessageId;
    /// Returns the id of the latest message that the machine has accepted.
    fn last_accepted(&self) -> MessageId;
    /// Returns whether every event that the machine waits for raises a notification on the completion channel.
    fn notifies(&self) -> bool;
    /// Returns the number of sent messages without data that the RNIC's counters cannot distinguish from empty
    /// messages. Returns 0 if the counters can distinguish them.
    fn control_sends(&self, _transport: &Carrier) -> u64 {
        0
    }
}

/// A constructor of the endpoints of a protocol. Each `Recipe` is a [`Connector`].
pub trait Recipe: Clone {
    /// Memory that an endpoint allocates before it knows the description of the peer.
    type Memory: std::fmt::Debug;
    /// The machine of the protocol's connections.
    type Machine: Machine;

    /// Returns the protocol and variant.
    fn id(&self) -> Protocol;
    /// Allocates the memory of an endpoint, and checks the capabilities of the device.
    fn memory(&self, pd: &Pd, config: &Config) -> Result<Self::Memory, ConnectError>;
    /// Makes several endpoints.
    fn ends(&self, group: &Group<'_>, config: &Config) -> Result<Vec<Endpoint<Self>>, ConnectError> {
        (0..group.count).map(|_| self.endpoint(group.pd, config, group.channel)).collect()
    }
    /// Returns the regions whose keys this end sends to the peer.
    fn regions(_memory: &Self::Memory) -> [RemoteRegion; 2] {
        [RemoteRegion::NONE; 2]
    }
    /// Returns the bytes of the longest message that an endpoint of this configuration accepts.
    fn max_received(&self, config: &Config) -> usize {
        config.max_message
    }
    /// Returns the access that the queue pair grants to the peer.
    fn access(&self) -> Access;
    /// Returns the lengths of the queues of a connection.
    fn queues(&self, config: &Config) -> Queues;
    /// Makes the machine, and posts its receives. The queue pair is not connected yet, so the peer cannot send.
    fn machine(
        &self,
        carrier: &Unconnected,
        config: &Config,
        memory: Self::Memory,
        peer: &EndpointDescription,
    ) -> Result<Self::Machine, ConnectError>;
    /// Returns the value of [`Connector::source_access`].
    fn access_of_sources(&self) -> Access {
        Access::empty()
    }
    /// Returns the value of [`Connector::bytes_behind`].
    fn bytes_behind_messages(&self) -> usize {
        0
    }
}

/// One end of a connection that is not connected yet.
#[derive(Debug)]
pub struct Endpoint<R: Recipe> {
    recipe: R,
    config: Config,
    carrier: Unconnected,
    memory: R::Memory,
}

impl<R: Recipe> Endpoint<R> {
    /// Makes an endpoint with its own completion queue.
    pub(crate) fn with_memory(
        recipe: &R,
        pd: &Pd,
        config: &Config,
        channel: Option<&Channel>,
        srq: Option<&Srq>,
        memory: R::Memory,
    ) -> Result<Self, ConnectError> {
        let cq = Unconnected::completion_queue(pd, recipe.queues(config), channel)?;
        Self::on(recipe, pd, config, cq, srq, memory)
    }

    /// Makes an endpoint whose completions go to the queue `cq`.
    pub(crate) fn on(
        recipe: &R,
        pd: &Pd,
        config: &Config,
        cq: Cq,
        srq: Option<&Srq>,
        memory: R::Memory,
    ) -> Result<Self, ConnectError> {
        let carrier = Unconnected::new(pd, recipe.queues(config), srq, cq, recipe.id())?;
        Ok(Self { recipe: recipe.clone(), config: config.clone(), carrier, memory })
    }

    /// Returns the description that the peer needs.
    pub fn description(&self) -> EndpointDescription {
        let max_message = self.recipe.max_received(&self.config) as u64;
        let regions = R::regions(&self.memory);
        EndpointDescription { max_message, regions, ..self.carrier.description(&self.config) }
    }

    /// Connects to the peer with this description. Posts receives before the peer can send.
    pub fn connect(self, peer: &EndpointDescription) -> Result<Connection<R>, ConnectError> {
        let Self { recipe, config, carrier, memory } = self;
        carrier.prepare(&config, peer, recipe.access())?;
        let machine = recipe.machine(&carrier, &config, memory, peer)?;
        let bytes_behind = recipe.bytes_behind_messages();
        Ok(Connection { carrier: carrier.connect(&config, peer)?, machine, bytes_behind })
    }
}

impl<R: Recipe> Connector for R {
    type Endpoint = Endpoint<R>;
    type Connection = Connection<R>;

    fn protocol(&self) -> Protocol {
        self.id()
    }

    fn source_access(&self) -> Access {
        self.access_of_sources()
    }

    fn bytes_behind(&self) -> usize {
        self.bytes_behind_messages()
    }

    fn endpoint(&self, pd: &Pd, config: &Config, channel: Option<&Channel>) -> Result<Endpoint<R>, ConnectError> {
        config.check()?;
        Endpoint::with_memory(self, pd, config, channel, None, self.memory(pd, config)?)
    }

    fn endpoints(&self, group: &Group<'_>, config: &Config) -> Result<Vec<Endpoint<R>>, ConnectError> {
        self.ends(group, config)
    }

    fn describe(&self, endpoint: &Endpoint<R>) -> EndpointDescription {
        endpoint.description()
    }

    fn connect(&self, endpoint: Endpoint<R>, peer: &EndpointDescription) -> Result<Connection<R>, ConnectError> {
        endpoint.connect(peer)
    }
}

/// A connection of one protocol, as a non-blocking state machine: see [`MessageConnection`].
pub struct Connection<R: Recipe> {
    pub(crate) carrier: Carrier,
    pub(crate) machine: R::Machine,
    /// See [`Connector::bytes_behind`].
    bytes_behind: usize,
}

impl<R: Recipe> std::fmt::Debug for Connection<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("qpn", &self.carrier.qp.qpn())
            .field("last_accepted", &self.machine.last_accepted())
            .field("last_done", &self.machine.last_done())
            .field("over", &self.carrier.over)
            .finish_non_exhaustive()
    }
}

impl<R: Recipe> Drop for Connection<R> {
    fn drop(&mut self) {
        self.carrier.end_queue_pair();
        self.machine.end(self.carrier.peer_closed);
    }
}

impl<R: Recipe> Connection<R> {
    /// Takes one list of completions and posts the requests that the completions require. Returns the number of
    /// completions that were news.
    #[inline]
    fn reap(&mut self) -> Result<usize, ConnectionError> {
        let Some(news) = self.reap_list()? else { return Ok(0) };
        let posted = self.machine.end_of_list(&self.carrier.qp);
        self.explained(posted)?;
        Ok(news)
    }

    /// Takes one list of completions. Returns the number of completions that were news, or `None` if the list is empty.
    #[inline]
    fn reap_list(&mut self) -> Result<Option<usize>, ConnectionError> {
        if !self.machine.takes_completions() {
            return Ok(None);
        }
        let mut list = [Completion::default(); MAX_POLL_LIST];
        let count = match self.carrier.cq.poll(&mut list[..self.carrier.poll_list]) {
            Ok(count) => count,
            Err(error) => return Err(self.end(ConnectionError::Overrun(error))),
        };
        if count == 0 {
            return Ok(None);
        }
        self.carrier.heard();
        let mut news = 0;
        let mut failed = None;
        for completion in &list[..count] {
            match self.take_completion(completion) {
                Ok(is_news) => news += usize::from(is_news),
                // The first error is the reason. Requests that are flushed later are consequences of the first error.
                Err(error) => {
                    failed.get_or_insert(error);
                }
            }
        }
        match failed {
            None => Ok(Some(news)),
            Some(error) => Err(self.end(error)),
        }
    }

    /// Takes one completion. Returns whether the completion is news.
    #[inline]
    pub(crate) fn take_completion(&mut self, completion: &Completion) -> Result<bool, ConnectionError> {
        let Self { carrier, machine, .. } = self;
        let wr_id = completion.wr_id;
        if wr_id & RECEIVE_TAG != 0 {
            if completion.status != Status::Success {
                machine.take_flushed(wr_id)?;
                return carrier.receive_failed(completion.status).map(|()| true);
            }
            return machine.take_receive(carrier, completion).map(|()| true);
        }
        if wr_id & CONTROL_TAG != 0 {
            return carrier.take_control(completion).map(|()| true);
        }
        if completion.status != Status::Success {
            return match carrier.has_said_goodbye() && R::Machine::serves_the_peer(wr_id) {
                // After the goodbye, the peer may be gone. The failure of a request that only serves the peer is then
                // no error.
                true => Ok(true),
                false => Err(ConnectionError::from_send(completion.status)),
            };
        }
        machine.take_completion(wr_id)
    }

    /// Takes a completion that a hub has polled at the time `now_ns`. A hub never calls
    /// [`end_of_list`](Machine::end_of_list) of the machine.
    #[inline]
    pub(crate) fn hand_in(&mut self, completion: &Completion, now_ns: u64) -> Result<(), ConnectionError> {
        let result = self.take_completion(completion);
        self.carrier.heard_at(now_ns);
        result.map(drop)
    }

    /// Advances the machine. `news` is the number of completions that were news. Sends the goodbye if it is due, and
    /// calls [`Carrier::keep_alive`] if nothing happened. Returns whether anything happened.
    #[inline]
    pub(crate) fn settle(&mut self, news: usize) -> Result<bool, ConnectionError> {
        let moved = match self.machine.advance(&self.carrier, news) {
            Ok(more) => news + more > 0,
            Err(ConnectionError::Post(error)) => return Err(self.unposted(error)),
            Err(error) => return Err(self.end(error)),
        };
        // The goodbye is sent even while messages of the peer arrive, since the peer may never stop sending.
        if self.carrier.closing == Closing::Wanted && self.unacknowledged() == 0 {
            let said = self.carrier.say_goodbye(self.machine.goodbye());
            self.explained(said)?;
        }
        if moved {
            return Ok(true);
        }
        let asked = self.carrier.keep_alive();
        self.explained(asked)
    }

    #[inline]
    pub(crate) fn explained<T>(&mut self, result: Result<T, PostError>) -> Result<T, ConnectionError> {
        result.map_err(|error| self.unposted(error))
    }

    /// Ends the connection after a failed post. If the queue pair had failed before, a completion contains the reason.
    #[cold]
    fn unposted(&mut self, error: PostError) -> ConnectionError {
        match self.reap_list() {
            Ok(_) => self.end(ConnectionError::Post(error)),
            Err(reason) => reason,
        }
    }

    /// Ends the connection. If the connection has already ended, keeps and returns the first reason.
    pub(crate) fn end(&mut self, reason: ConnectionError) -> ConnectionError {
        let reason = self.carrier.end(reason);
        self.machine.end(self.carrier.peer_closed);
        reason
    }

    /// Calls `send` to accept a message of this length, unless the machine refuses the message.
    #[inline]
    pub(crate) fn submit(
        &mut self,
        length: usize,
        send: impl FnOnce(&mut R::Machine, &Qp) -> Result<MessageId, PostError>,
    ) -> Result<Submit, ConnectionError> {
        if let Some(full) = self.refusal(length)? {
            return Ok(Submit::Full(full));
        }
        let result = send(&mut self.machine, &self.carrier.qp);
        self.explained(result).map(Submit::Accepted)
    }
}

impl<R: Recipe> MessageConnection for Connection<R> {
    type Message = <R::Machine as Machine>::Message;

    #[inline]
    fn send(&mut self, message: &[u8]) -> Result<Submit, ConnectionError> {
        Misuse::check_length(message.len(), self.machine.max_send())?;
        self.submit(message.len(), |machine, qp| machine.send(qp, Source::Bytes(message)))
    }

    #[inline]
    fn send_from(&mut self, region: &Region, offset: usize, length: usize) -> Result<Submit, ConnectionError> {
        self.machine.check_source(region, offset, length)?;
        self.submit(length, |machine, qp| machine.send(qp, Source::Memory { region, offset, length }))
    }

    fn check_source(&self, region: &Region, offset: usize, length: usize) -> Result<(), Misuse> {
        self.machine.check_source(region, offset, length)
    }

    #[inline]
    fn refusal(&mut self, length: usize) -> Result<Option<Backpressure>, ConnectionError> {
        self.carrier.check_open()?;
        Ok(self.machine.refusal(length))
    }

    fn bytes_behind(&self) -> usize {
        self.bytes_behind
    }

    #[inline]
    fn flush(&mut self) -> Result<(), ConnectionError> {
        let flushed = self.machine.flush(&self.carrier.qp);
        self.explained(flushed)
    }

    fn max_send(&self) -> usize {
        self.machine.max_send()
    }

    #[inline]
    fn poll(&mut self) -> Result<bool, ConnectionError> {
        if let Some(error) = self.carrier.over {
            return Err(error);
        }
        self.flush()?;
        let news = self.reap()?;
        self.settle(news)
    }

    #[inline]
    fn take(&mut self) -> Option<Self::Message> {
        self.machine.take()
    }

    #[inline]
    fn last_done(&self) -> MessageId {
        self.machine.last_done()
    }

    #[inline]
    fn unacknowledged(&self) -> u64 {
        self.machine.last_accepted() - self.machine.last_done()
    }

    fn close(&mut self) {
        self.carrier.close();
    }

    fn is_closed(&self) -> bool {
        self.carrier.is_closed()
    }

    #[inline]
    fn is_peer_closed(&self) -> bool {
        self.carrier.peer_closed
    }

    fn over(&self) -> Option<ConnectionError> {
        self.carrier.over
    }

    fn arm(&self) {
        self.carrier.arm();
    }

    fn channel(&self) -> Option<&Channel> {
        self.carrier.cq.channel()
    }

    fn notifies(&self) -> bool {
        self.machine.notifies()
    }

    fn poll_timeout_ns(&self) -> Option<u64> {
        self.carrier.poll_timeout_ns()
    }

    fn keepalives(&self) -> u64 {
        self.carrier.keepalives
    }

    fn control_sends(&self) -> u64 {
        self.machine.control_sends(&self.carrier)
    }

    fn qp(&self) -> &Qp {
        &self.carrier.qp
    }
}
