//! Send-Receive: messages over RC SEND, into buffers that the receiver has posted.
//!
//! ```text
//! sender                                  receiver
//!   send -> id    SEND (with immediate: credits)  ->   receive -> Message
//!                 <-  ACK                               ... dropped: reposted
//!   is_done(id)   <-  SEND of 0 B with immediate: credits, every quarter of the depth
//! ```
//!
//! One message costs one SEND and one receive; a credit message is spent per quarter of the depth
//! unless data goes the other way too. Ids rise; RC completes in order, so one number, the last
//! completed id, answers every wait. The window of unacknowledged messages decides throughput;
//! several messages in one post (*doorbell batching*) save CPU on the sending side.

mod credits;
mod pool;

use std::collections::VecDeque;
use std::sync::Arc;

use doorbell_verbs::{
    Access, AddressVector, Attachment, Channel, Completion, Cq, MemoryKind, Notify, PathMtu, Payload, Pd, Psn, Qp,
    QpAttributes, QpCapacities, QpKind, QpOptions, QpState, Qpn, RKey, Region, SendFlags, SendOperation, SendRequest,
    Sge, Status,
};
use smallvec::SmallVec;

use crate::error::{ConnectError, ConnectionError};
use crate::setup::EndpointDescription;
use credits::{CREDIT_RECEIVES, SendCredits, Word};
use pool::{CONTROL_TAG, GOODBYE_TAG, KEEPALIVE_TAG, Pool, RECEIVE_TAG};

pub use pool::Message;

/// Names a message of a connection. Ids rise by one.
pub type MessageId = u64;

/// The most messages in one post.
pub const MAX_BATCH: usize = 64;
/// The largest window and the greatest depth.
pub const MAX_WINDOW: usize = 1 << 14;

/// Completions taken at a time (facts of the published evaluation: nearly half as much again
/// over taking them one by one).
const POLL_LIST: usize = 32;

/// Receives are reposted in lists of at least this many while messages flow.
const REPOST_BATCH: usize = 16;

/// Room in the send queue for messages that carry no data.
const CONTROL_SENDS: usize = 8;

/// What a connection is made with.
#[derive(Clone, Debug)]
pub struct Config {
    /// Messages unacknowledged at most.
    pub window: usize,
    /// Messages per post; fewer are posted by [`Connection::flush`] or the next poll.
    pub batch: usize,
    /// Receive buffers that the peer may fill.
    pub depth: usize,
    /// Messages up to this many bytes go inline.
    pub inline: usize,
    /// Bytes of the longest message that can be received, and of the longest sent by copying.
    pub max_message: usize,
    /// Send buffers for messages that are copied. As many as the window, or none, if all messages
    /// are sent from regions of the program.
    pub send_buffers: usize,
    /// Flow control by credits. Without it a slow receiver provokes RNR NAKs.
    pub credits: bool,
    /// The path MTU to ask for; `None` takes the largest that both ends carry.
    pub path_mtu: Option<PathMtu>,
    /// Acknowledgement timeout exponent: 4.096 us times two to it.
    pub timeout: u8,
    /// Times that the timeout may expire in a row.
    pub retry_count: u8,
    /// Times that an RNR NAK may come in a row; 7 is without end.
    pub rnr_retry: u8,
    /// Code of the least time that the peer is to wait after an RNR NAK.
    pub min_rnr_timer: u8,
    /// A peer from which nothing was heard for so long is asked whether it lives; 0 is never.
    pub keepalive_ns: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            window: 64,
            batch: 1,
            depth: 128,
            inline: 64,
            max_message: 4096,
            send_buffers: 64,
            credits: true,
            path_mtu: None,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            keepalive_ns: 1_000_000_000,
        }
    }
}

impl Config {
    /// One message unacknowledged at a time.
    pub fn sequential() -> Self {
        Self { window: 1, batch: 1, send_buffers: 1, ..Self::default() }
    }

    /// 64 unacknowledged, posted one by one.
    pub fn unbatched() -> Self {
        Self { window: 64, batch: 1, send_buffers: 64, ..Self::default() }
    }

    /// 256 unacknowledged, eight per post.
    pub fn batched() -> Self {
        Self { window: 256, batch: 8, depth: 512, send_buffers: 256, ..Self::default() }
    }

    /// The configuration of this name, as published evaluations use them.
    pub fn by_name(name: &str) -> Option<Self> {
        match name {
            "sequential" => Some(Self::sequential()),
            "unbatched" => Some(Self::unbatched()),
            "batched" => Some(Self::batched()),
            _ => None,
        }
    }

    fn check(&self) -> Result<(), ConnectError> {
        let within = |what, given: usize, range: std::ops::RangeInclusive<usize>, allowed| {
            if range.contains(&given) {
                Ok(())
            } else {
                Err(ConnectError::Setting { what, given: given as u64, allowed })
            }
        };
        within("the window", self.window, 1..=MAX_WINDOW, "1 to 16384")?;
        within("the batch", self.batch, 1..=MAX_BATCH.min(self.window), "1 to 64, and no more than the window")?;
        within("the receive depth", self.depth, 1..=MAX_WINDOW, "1 to 16384")?;
        within("the longest message", self.max_message, 0..=1 << 30, "0 to 1073741824 B")?;
        if self.send_buffers != 0 && self.send_buffers < self.window {
            return Err(ConnectError::Setting {
                what: "the number of send buffers",
                given: self.send_buffers as u64,
                allowed: "0, or at least the window",
            });
        }
        Ok(())
    }

    fn stride(&self) -> usize {
        self.max_message.next_multiple_of(64).max(64)
    }

    /// Bytes of message memory that an endpoint of this configuration allocates.
    pub fn memory_bytes(&self) -> usize {
        (self.depth + CREDIT_RECEIVES + self.send_buffers) * self.stride()
    }
}

/// One end of a connection to be: made, but not connected.
#[derive(Debug)]
pub struct Endpoint {
    config: Config,
    pd: Pd,
    qp: Qp,
    cq: Cq,
    psn: Psn,
}

impl Endpoint {
    /// Makes an end. With a channel, [`Connection::arm`] notifies there.
    pub fn new(pd: &Pd, config: Config, channel: Option<&Channel>) -> Result<Self, ConnectError> {
        config.check()?;
        let device = pd.device();
        let attributes = device.attributes();
        let max_send_wr = config.window + CONTROL_SENDS;
        let max_recv_wr = config.depth + CREDIT_RECEIVES;
        let cq_depth = max_send_wr + max_recv_wr;
        let cq = match channel {
            Some(channel) => device.create_cq_on(cq_depth, channel)?,
            None => device.create_cq(cq_depth)?,
        };
        let qp = pd.create_qp(QpOptions {
            kind: QpKind::Rc,
            send_cq: &cq,
            recv_cq: &cq,
            srq: None,
            capacities: QpCapacities {
                max_send_wr,
                max_recv_wr,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline: config.inline.min(attributes.max_inline),
            },
            signal_all: false,
        })?;
        Ok(Self { pd: pd.clone(), psn: device.random_psn(), config, qp, cq })
    }

    /// What the peer needs to know.
    pub fn description(&self) -> EndpointDescription {
        let attributes = self.pd.device().attributes();
        EndpointDescription {
            gid: attributes.gid,
            qpn: self.qp.qpn(),
            psn: self.psn,
            path_mtu: self.config.path_mtu.unwrap_or(attributes.active_mtu),
            udp_port: attributes.udp_port,
            depth: self.config.depth as u32,
            max_message: self.config.max_message as u64,
            credits: self.config.credits,
        }
    }

    /// Connects with the peer whose description this is. Receives are posted before it can send.
    pub fn connect(self, peer: &EndpointDescription) -> Result<Connection, ConnectError> {
        let own = self.description();
        let Self { config, pd, qp, cq, psn } = self;
        let differs = |what, own: u64, peer: u64| ConnectError::Mismatch { what, own, peer };
        if own.udp_port != peer.udp_port {
            return Err(differs("the UDP port", own.udp_port.into(), peer.udp_port.into()));
        }
        if own.credits != peer.credits {
            return Err(differs("flow control by credits", own.credits.into(), peer.credits.into()));
        }
        if peer.depth == 0 || peer.depth as usize > MAX_WINDOW {
            let (given, allowed) = (peer.depth.into(), "1 to 16384");
            return Err(ConnectError::Setting { what: "the peer's receive depth", given, allowed });
        }
        qp.modify(&QpAttributes {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: Some(Access::empty()),
            ..QpAttributes::default()
        })?;
        let stride = config.stride();
        let slots = config.depth + CREDIT_RECEIVES;
        let receive_region = pd.allocate(slots * stride, Access::LOCAL_WRITE, MemoryKind::Plain)?;
        let pool = Pool::new(
            qp.clone(),
            receive_region,
            config.max_message,
            stride,
            config.depth,
            CREDIT_RECEIVES,
            config.credits,
        );
        let all: Vec<u32> = (0..slots as u32).collect();
        pool.post(&all)?;
        qp.modify(&QpAttributes {
            state: Some(QpState::ReadyToReceive),
            address: Some(AddressVector::to(peer.gid.to_canonical())),
            path_mtu: Some(own.path_mtu.min(peer.path_mtu)),
            dest_qpn: Some(peer.qpn),
            receive_psn: Some(peer.psn),
            max_dest_rd_atomic: Some(16),
            min_rnr_timer: Some(config.min_rnr_timer),
            ..QpAttributes::default()
        })?;
        qp.modify(&QpAttributes {
            state: Some(QpState::ReadyToSend),
            send_psn: Some(psn),
            timeout: Some(config.timeout),
            retry_count: Some(config.retry_count),
            rnr_retry: Some(config.rnr_retry),
            max_rd_atomic: Some(16),
            ..QpAttributes::default()
        })?;
        let send_region = if config.send_buffers > 0 {
            Some(pd.allocate(config.send_buffers * stride, Access::empty(), MemoryKind::Plain)?)
        } else {
            None
        };
        let now_ns = pd.device().now_ns();
        Ok(Connection {
            send_credits: config.credits.then(|| SendCredits::new(peer.depth.into())),
            peer_depth: peer.depth.into(),
            peer_max_message: peer.max_message,
            inline_store: vec![0; config.batch * config.inline].into(),
            pending: Vec::with_capacity(config.batch),
            pd,
            qp,
            cq,
            pool,
            send_region,
            stride,
            next_id: 1,
            posted: 0,
            completed: 0,
            inbox: VecDeque::with_capacity(config.depth),
            closing: Closing::Open,
            peer_closed: false,
            over: None,
            heard_ns: now_ns,
            keepalive_out: false,
            stalled_on_credits: 0,
            keepalives: 0,
            config,
        })
    }
}

/// What became of an attempt to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submit {
    /// Taken: it is done when [`Connection::is_done`] says so of this id.
    Accepted(MessageId),
    /// Not taken, and nothing is wrong: poll and try again.
    Full(Backpressure),
}

/// Why a message was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backpressure {
    /// As many messages as the window allows are unacknowledged.
    Window,
    /// The peer has no receive left: it must free messages first.
    Credits,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The peer's RNIC has it.
    Done,
    /// It is on its way.
    Pending,
    /// The connection ended before it was known to have arrived.
    Failed(ConnectionError),
}

/// A message that waits for its batch to be full.
struct Pending {
    id: MessageId,
    /// Memory, or how many bytes of the inline store.
    place: Result<Sge, usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    Open,
    /// Goodbye is to be said once everything is acknowledged.
    Wanted,
    /// It was said, and is not acknowledged yet.
    Said,
    /// It was acknowledged.
    Done,
}

/// A connection: a non-blocking state machine.
///
/// Call [`poll`](Self::poll) (or [`receive`](Self::receive), which polls) again and again;
/// nothing moves otherwise but what was posted already. When the connection is over, every call
/// says why, and [`outcome`](Self::outcome) tells of each message whether it arrived.
pub struct Connection {
    config: Config,
    pd: Pd,
    qp: Qp,
    cq: Cq,
    pool: Arc<Pool>,
    send_region: Option<Region>,
    stride: usize,
    next_id: MessageId,
    /// Last id that was posted.
    posted: MessageId,
    /// Last id that is done.
    completed: MessageId,
    pending: Vec<Pending>,
    inline_store: Box<[u8]>,
    send_credits: Option<SendCredits>,
    peer_depth: u64,
    peer_max_message: u64,
    inbox: VecDeque<(u32, u32)>,
    closing: Closing,
    peer_closed: bool,
    over: Option<ConnectionError>,
    heard_ns: u64,
    keepalive_out: bool,
    stalled_on_credits: u64,
    keepalives: u64,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("qpn", &self.qp.qpn())
            .field("next_id", &self.next_id)
            .field("completed", &self.completed)
            .field("over", &self.over)
            .finish_non_exhaustive()
    }
}

/// Sending.
impl Connection {
    /// Sends a message, which is copied (or goes inline).
    ///
    /// # Errors
    ///
    /// The connection is over. A message that is too long for this end's or the peer's buffers
    /// panics instead: see [`max_send`](Self::max_send).
    #[inline]
    pub fn send(&mut self, message: &[u8]) -> Result<Submit, ConnectionError> {
        assert!(message.len() <= self.max_send(), "{} B do not fit: at most {} B", message.len(), self.max_send());
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
    #[inline]
    pub fn send_from(&mut self, region: &Region, offset: usize, length: usize) -> Result<Submit, ConnectionError> {
        assert!(
            length as u64 <= self.peer_max_message,
            "{length} B do not fit the peer's buffers of {} B",
            self.peer_max_message
        );
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
        own.min(usize::try_from(self.peer_max_message).unwrap_or(usize::MAX))
    }

    /// Why a message cannot be taken now.
    #[inline]
    fn refusal(&mut self) -> Result<Option<Backpressure>, ConnectionError> {
        self.check_open()?;
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

    fn check_open(&self) -> Result<(), ConnectionError> {
        match (self.over, self.closing) {
            (Some(error), _) => Err(error),
            (None, Closing::Open) => Ok(()),
            (None, _) => Err(ConnectionError::Closed),
        }
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
        let operation = match &self.pool.credits {
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
            self.qp.post_send(&[request(0, one, payload(0, one))])
        } else {
            let list: SmallVec<[SendRequest<'_>; MAX_BATCH]> =
                self.pending.iter().enumerate().map(|(i, p)| request(i, p, payload(i, p))).collect();
            self.qp.post_send(&list)
        };
        self.pending.clear();
        match result {
            Ok(()) => {
                self.posted = last;
                Ok(())
            }
            // The queue pair may have failed meanwhile; then its completions say why.
            Err(error) => {
                self.reap()?;
                Err(self.end(ConnectionError::Post(error)))
            }
        }
    }

    /// Is this message acknowledged by the peer's RNIC?
    #[inline]
    pub fn is_done(&self, id: MessageId) -> bool {
        id <= self.completed
    }

    /// What became of a message.
    pub fn outcome(&self, id: MessageId) -> Outcome {
        match self.over {
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

/// Receiving, and moving along.
impl Connection {
    /// The next message, if one has arrived. Polls if none has.
    ///
    /// # Errors
    ///
    /// The connection is over; or the peer has closed its side and every message was taken
    /// ([`ConnectionError::PeerClosed`]: sending is still possible then).
    #[inline]
    pub fn receive(&mut self) -> Result<Option<Message>, ConnectionError> {
        if self.inbox.is_empty() && !self.peer_closed {
            self.poll()?;
        }
        match self.take() {
            None if self.peer_closed => Err(ConnectionError::PeerClosed),
            message => Ok(message),
        }
    }

    /// The next message of those that a poll has brought.
    #[inline]
    pub fn take(&mut self) -> Option<Message> {
        let (slot, length) = self.inbox.pop_front()?;
        Some(Message::new(&self.pool, slot, length as usize))
    }

    /// Moves the connection along: posts what waits, takes completions, reposts receives, tells
    /// the peer of them. Returns whether anything happened.
    ///
    /// # Errors
    ///
    /// The connection is over. Messages that arrived before can still be taken.
    #[inline]
    pub fn poll(&mut self) -> Result<bool, ConnectionError> {
        if let Some(error) = self.over {
            return Err(error);
        }
        self.flush()?;
        let count = self.reap()?;
        if count == 0 {
            self.poll_idle()?;
        } else if self.pool.returned() >= REPOST_BATCH {
            self.repost()?;
        }
        Ok(count > 0)
    }

    /// What can wait until nothing else is to be done.
    fn poll_idle(&mut self) -> Result<(), ConnectionError> {
        self.repost()?;
        if self.closing == Closing::Wanted && self.unacknowledged() == 0 {
            let word = Word::goodbye(self.pool.granted());
            self.post_control(GOODBYE_TAG, SendOperation::SendImmediate(word.encode()))?;
            self.closing = Closing::Said;
        }
        if self.config.keepalive_ns > 0 && !self.keepalive_out {
            let now_ns = self.pd.device().now_ns();
            if now_ns >= self.heard_ns + self.config.keepalive_ns {
                // A WRITE of no bytes needs no key and takes no receive: it only asks for an
                // acknowledgement.
                self.post_control(KEEPALIVE_TAG, SendOperation::Write { remote_address: 0, rkey: RKey::new(0) })?;
                self.keepalive_out = true;
                self.keepalives += 1;
            }
        }
        Ok(())
    }

    fn post_control(&mut self, wr_id: u64, operation: SendOperation) -> Result<(), ConnectionError> {
        let request = SendRequest {
            wr_id,
            operation,
            flags: SendFlags::SIGNALED,
            payload: Payload::Inline(&[]),
            destination: None,
        };
        self.qp.post_send(&[request]).map_err(|error| self.end(ConnectionError::Post(error)))
    }

    #[inline]
    fn repost(&mut self) -> Result<(), ConnectionError> {
        if let Err(error) = self.pool.repost() {
            return Err(self.end(ConnectionError::Post(error)));
        }
        self.pool.report();
        Ok(())
    }

    /// Takes completions, one list.
    #[inline]
    fn reap(&mut self) -> Result<usize, ConnectionError> {
        let mut list = [Completion::default(); POLL_LIST];
        let count = match self.cq.poll(&mut list) {
            Ok(count) => count,
            Err(error) => return Err(self.end(ConnectionError::Overrun(error))),
        };
        let mut failed = None;
        for completion in &list[..count] {
            if let Err(error) = self.take_completion(completion) {
                // The first error is the reason; flushed requests behind it are consequences.
                failed.get_or_insert(error);
            }
        }
        if count > 0 {
            self.heard_ns = self.pd.device().now_ns();
        }
        match failed {
            None => Ok(count),
            Some(error) => Err(self.end(error)),
        }
    }

    #[inline]
    fn take_completion(&mut self, completion: &Completion) -> Result<(), ConnectionError> {
        let wr_id = completion.wr_id;
        if wr_id & RECEIVE_TAG != 0 {
            return self.take_receive(completion, wr_id as u32);
        }
        let is_control = wr_id & CONTROL_TAG != 0;
        if completion.status != Status::Success {
            if is_control && matches!(self.closing, Closing::Said | Closing::Done) {
                // A peer that has heard the goodbye may be gone before its RNIC could say so.
                self.closing = Closing::Done;
                return Ok(());
            }
            return Err(ConnectionError::from_send(completion.status));
        }
        match wr_id {
            GOODBYE_TAG => self.closing = Closing::Done,
            KEEPALIVE_TAG => self.keepalive_out = false,
            _ if is_control => {} // credits: the peer has them
            id => self.completed = id,
        }
        Ok(())
    }

    #[inline]
    fn take_receive(&mut self, completion: &Completion, slot: u32) -> Result<(), ConnectionError> {
        if completion.status != Status::Success {
            return match (self.closing, self.peer_closed) {
                // Both sides have said goodbye: nothing is lost with the queue pair.
                (Closing::Done, true) => Ok(()),
                // The goodbye was not acknowledged, and the peer has not said its own.
                (Closing::Done, false) => Err(ConnectionError::PeerUnreachable(Status::RetryExceeded)),
                _ => Err(ConnectionError::Local(completion.status)),
            };
        }
        let Attachment::Immediate(immediate) = completion.attachment else {
            // Data without credits, if that is what was agreed on.
            if self.pool.credits.is_some() {
                return Err(ConnectionError::Protocol("a message without credits"));
            }
            self.inbox.push_back((slot, completion.byte_len));
            return Ok(());
        };
        let word = Word::decode(immediate);
        if let Some(send_credits) = &mut self.send_credits
            && !send_credits.grant(word, self.peer_depth)
        {
            return Err(ConnectionError::Protocol("more credits than the peer has receives"));
        }
        if !word.alone {
            match &self.pool.credits {
                Some(credits) => credits.received(),
                None => return Err(ConnectionError::Protocol("credits that were not agreed on")),
            }
            self.inbox.push_back((slot, completion.byte_len));
            return Ok(());
        }
        self.pool.post(&[slot])?; // it was not a receive for data: nothing is granted
        self.peer_closed |= word.goodbye;
        Ok(())
    }

    /// Ends the connection: the first reason stays.
    fn end(&mut self, reason: ConnectionError) -> ConnectionError {
        let reason = *self.over.get_or_insert(reason);
        self.pending.clear();
        // What is still on its way in or out is given up.
        let error = QpAttributes { state: Some(QpState::Error), ..QpAttributes::default() };
        let _ = self.qp.modify(&error);
        reason
    }

    /// Why the connection is over, if it is.
    pub fn over(&self) -> Option<ConnectionError> {
        self.over
    }

    /// Closes this side: nothing more can be sent, what was sent is still delivered, and then the
    /// peer is told. Poll until [`is_closed`](Self::is_closed). Messages of the peer can still be
    /// received until it has closed its side too.
    pub fn close(&mut self) {
        if self.closing == Closing::Open {
            self.closing = Closing::Wanted;
        }
    }

    /// Has the peer closed its side? Messages that arrived before can still be taken.
    #[inline]
    pub fn is_peer_closed(&self) -> bool {
        self.peer_closed
    }

    /// Has the peer's RNIC taken the goodbye, or is the connection over anyway?
    pub fn is_closed(&self) -> bool {
        self.closing == Closing::Done || self.over.is_some()
    }

    /// Arms one notification on the channel that the endpoint was made with. Poll once more
    /// before waiting: what is there already raises none.
    pub fn arm(&self) {
        self.cq.arm(Notify::Next);
    }

    /// The channel, if there is one.
    pub fn channel(&self) -> Option<&Channel> {
        self.cq.channel()
    }

    /// The queue pair.
    pub fn qpn(&self) -> Qpn {
        self.qp.qpn()
    }

    /// The queue pair itself, for queries.
    pub fn qp(&self) -> &Qp {
        &self.qp
    }

    /// What the connection was made with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Zero-length WRITEs sent to ask whether the peer lives.
    pub fn keepalives(&self) -> u64 {
        self.keepalives
    }

    /// Messages sent that carried no data: credits and the goodbye.
    pub fn control_sends(&self) -> u64 {
        self.pool.reports() + u64::from(matches!(self.closing, Closing::Said | Closing::Done))
    }

    /// When the connection wants to be polled even if nothing happens: to ask whether the peer
    /// lives.
    pub fn poll_timeout_ns(&self) -> Option<u64> {
        (self.config.keepalive_ns > 0 && !self.keepalive_out).then(|| self.heard_ns + self.config.keepalive_ns)
    }
}

#[cfg(test)]
mod tests;
