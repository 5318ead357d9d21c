//! The carrier of the messages of every protocol: an RC queue pair and its completion queue. The carrier connects the
//! queue pair, detects the death of the peer, and exchanges the goodbyes.

use doorbell_protocols::Protocol;
use doorbell_verbs::{
    Access, Attachment, Channel, Completion, CompletionOpcode, Cq, Notify, Payload, Pd, PostError, Psn, Qp,
    QpAttributes, QpCapacities, QpKind, QpOptions, QpState, RKey, SendFlags, SendOperation, SendRequest, Srq, Status,
};

use crate::connection::config::{Config, MAX_POLL_LIST, MAX_WINDOW};
use crate::connection::error::{ConnectError, ConnectionError};
use crate::connection::rc::{self, RcSettings};
use crate::setup::EndpointDescription;

/// Marks the ids of receive requests.
pub(crate) const RECEIVE_TAG: u64 = 1 << 63;

/// Marks the ids of requests that carry no data. The remaining bits distinguish the kinds of these requests.
pub(crate) const CONTROL_TAG: u64 = 1 << 62;
/// Id of the goodbye, the last message of this side.
pub(crate) const GOODBYE_TAG: u64 = CONTROL_TAG | 1;
/// Id of a keepalive, which makes the peer's RNIC send an acknowledgement.
pub(crate) const KEEPALIVE_TAG: u64 = CONTROL_TAG | 2;

/// Number of intervals of [`Config::keepalive_ns`] that a keepalive may stay unanswered. This side then logs a warning,
/// or closes a connection of which only the acknowledgement of its goodbye is missing.
const STANDSTILL_INTERVALS: u64 = 10;

/// Number of entries in the send queue for messages without data.
pub(crate) const CONTROL_SENDS: usize = 8;

/// Capacities of the queues of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Queues {
    pub(crate) sends: usize,
    pub(crate) receives: usize,
    pub(crate) inline: usize,
    /// Maximum number of scatter-gather elements of a send.
    pub(crate) sges: usize,
}

impl Queues {
    /// Returns the maximum number of completions that can be in the completion queue at once.
    pub(crate) fn completions(&self) -> usize {
        self.sends + CONTROL_SENDS + self.receives
    }
}

/// A carrier whose queue pair is not connected yet.
#[derive(Debug)]
pub struct Unconnected {
    pub(crate) pd: Pd,
    pub(crate) qp: Qp,
    pub(crate) cq: Cq,
    psn: Psn,
    protocol: Protocol,
    has_srq: bool,
}

impl Unconnected {
    /// Makes the completion queue of one carrier.
    pub(crate) fn completion_queue(pd: &Pd, queues: Queues, channel: Option<&Channel>) -> Result<Cq, ConnectError> {
        Ok(match channel {
            Some(channel) => pd.device().create_cq_on(queues.completions(), channel)?,
            None => pd.device().create_cq(queues.completions())?,
        })
    }

    pub(crate) fn new(
        pd: &Pd,
        queues: Queues,
        srq: Option<&Srq>,
        cq: Cq,
        protocol: Protocol,
    ) -> Result<Self, ConnectError> {
        let device = pd.device();
        let qp = pd.create_qp(QpOptions {
            kind: QpKind::Rc,
            send_cq: &cq,
            recv_cq: &cq,
            srq,
            capacities: QpCapacities {
                max_send_wr: queues.sends + CONTROL_SENDS,
                max_recv_wr: queues.receives,
                max_send_sge: queues.sges,
                max_recv_sge: 1,
                max_inline: queues.inline.min(device.attributes().limits.max_inline),
            },
            signal_all: false,
        })?;
        Ok(Self { pd: pd.clone(), psn: device.first_psn(), qp, cq, protocol, has_srq: srq.is_some() })
    }

    pub(crate) fn description(&self, config: &Config) -> EndpointDescription {
        let own = EndpointDescription::bare(&self.qp, self.psn);
        EndpointDescription {
            protocol: self.protocol.wire_id(),
            path_mtu: config.path_mtu.unwrap_or(own.path_mtu),
            depth: config.depth as u32,
            max_message: config.max_message as u64,
            credits: config.credits,
            ..own
        }
    }

    /// Checks that the settings of both ends match. Then moves the queue pair to the initial state, in which receives
    /// can be posted.
    pub(crate) fn prepare(
        &self,
        config: &Config,
        peer: &EndpointDescription,
        access: Access,
    ) -> Result<(), ConnectError> {
        let own = self.description(config);
        let differs = |what, own: u64, peer: u64| ConnectError::Mismatch { what, own, peer };
        if own.protocol != peer.protocol {
            return Err(ConnectError::Protocol { own: own.protocol, peer: peer.protocol });
        }
        if own.credits != peer.credits {
            return Err(differs("flow control by credits", own.credits.into(), peer.credits.into()));
        }
        if peer.depth == 0 || peer.depth as usize > MAX_WINDOW {
            let (given, allowed) = (peer.depth.into(), "1 to 16384");
            return Err(ConnectError::Setting { what: "the peer's receive depth", given, allowed });
        }
        // Allow remote writes, since the keepalive of the peer is a WRITE of 0 B. All other WRITEs also need the access
        // of a region.
        rc::initialise(&self.qp, access | Access::REMOTE_WRITE)?;
        Ok(())
    }

    /// Connects the queue pair. The caller has posted receives before.
    pub(crate) fn connect(self, config: &Config, peer: &EndpointDescription) -> Result<Carrier, ConnectError> {
        let own = self.description(config);
        let Self { pd, qp, cq, has_srq, .. } = self;
        let settings = RcSettings {
            timeout: config.timeout,
            retry_count: config.retry_count,
            rnr_retry: config.rnr_retry,
            min_rnr_timer: config.min_rnr_timer,
        };
        rc::connect(&qp, &own, peer, &settings)?;
        let heard_ns = pd.device().now_ns();
        Ok(Carrier {
            pd,
            qp,
            cq,
            closing: Closing::Open,
            peer_closed: false,
            over: None,
            heard_ns,
            was_heard: false,
            poll_list: config.poll_list.min(MAX_POLL_LIST),
            keepalive_ns: config.keepalive_ns,
            asked_ns: None,
            stands_still: false,
            keepalives: 0,
            has_srq,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closing {
    Open,
    /// The goodbye will be sent after all messages are acknowledged.
    Wanted,
    /// The goodbye was sent and is not acknowledged yet.
    Said,
    /// The goodbye was acknowledged.
    Done,
}

/// A connected queue pair with its completion queue and the state of the keepalive.
#[derive(Debug)]
pub struct Carrier {
    pub(crate) pd: Pd,
    pub(crate) qp: Qp,
    pub(crate) cq: Cq,
    pub(crate) closing: Closing,
    pub(crate) peer_closed: bool,
    pub(crate) over: Option<ConnectionError>,
    heard_ns: u64,
    /// Whether a completion has come since the time `heard_ns`.
    was_heard: bool,
    /// Maximum number of completions that one poll takes.
    pub(crate) poll_list: usize,
    keepalive_ns: u64,
    /// Time at which this side sent the keepalive that is not answered yet.
    asked_ns: Option<u64>,
    /// Whether this side has logged the warning about an unanswered keepalive. A completion or the goodbye of this side
    /// resets this.
    stands_still: bool,
    pub(crate) keepalives: u64,
    has_srq: bool,
}

impl Carrier {
    /// Moves the queue pair to the error state: all outstanding work requests are flushed.
    pub(crate) fn fail(&self) {
        let error = QpAttributes { state: Some(QpState::Error), ..QpAttributes::default() };
        let _ = self.qp.modify(&error);
    }

    /// Returns an error if no more messages can be sent.
    #[inline]
    pub(crate) fn check_open(&self) -> Result<(), ConnectionError> {
        match (self.over, self.closing) {
            (Some(error), _) => Err(error),
            (None, Closing::Open) => Ok(()),
            (None, _) => Err(ConnectionError::Closed),
        }
    }

    /// Ends the connection. If the connection has already ended, keeps and returns the first reason.
    pub(crate) fn end(&mut self, reason: ConnectionError) -> ConnectionError {
        let reason = *self.over.get_or_insert(reason);
        self.fail();
        reason
    }

    pub(crate) fn close(&mut self) {
        if self.closing == Closing::Open {
            self.closing = Closing::Wanted;
        }
    }

    /// Ends the queue pair before it is destroyed. Received messages that the program holds keep the queue pair alive.
    /// The error state makes the peer notice the end of the connection at once.
    ///
    /// After both goodbyes the peer may still wait for the acknowledgement of its own, and a queue pair in the error
    /// state sends none. But a queue pair that is left alive must not take shared receives, since the connection no
    /// longer reposts them.
    pub(crate) fn end_queue_pair(&self) {
        let in_peace = self.closing == Closing::Done && self.peer_closed && self.over.is_none() && !self.stands_still;
        if !in_peace || self.has_srq {
            self.fail();
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closing == Closing::Done || self.over.is_some()
    }

    /// Returns whether this side has sent its goodbye.
    pub(crate) fn has_said_goodbye(&self) -> bool {
        matches!(self.closing, Closing::Said | Closing::Done)
    }

    /// Records that the peer is alive. Does not read the clock, which would cost more than most of the work for a
    /// message. `keep_alive` reads the clock when no completion comes.
    #[inline]
    pub(crate) fn heard(&mut self) {
        self.was_heard = true;
    }

    #[inline]
    pub(crate) fn heard_at(&mut self, now_ns: u64) {
        self.heard_ns = now_ns;
        self.was_heard = false;
        self.stands_still = false;
    }

    /// Sends the goodbye with `word` as its immediate data.
    pub(crate) fn say_goodbye(&mut self, word: u32) -> Result<(), PostError> {
        self.post_control(GOODBYE_TAG, SendOperation::SendImmediate(word))?;
        self.closing = Closing::Said;
        // The wait for the acknowledgement begins now, even if a keepalive is still unanswered.
        self.stands_still = false;
        self.asked_ns = self.asked_ns.map(|_| self.pd.device().now_ns());
        Ok(())
    }

    /// Sends a keepalive if the peer was silent for the keepalive interval. Logs a warning if neither an answer nor an
    /// error comes. The connection continues after the warning: a peer without a receive for an earlier message answers
    /// once it has posted a receive. A peer that has sent its goodbye may be gone, so a missing acknowledgement of this
    /// side's goodbye then counts as received. Returns whether this closed the connection.
    pub(crate) fn keep_alive(&mut self) -> Result<bool, PostError> {
        if self.was_heard {
            self.heard_at(self.pd.device().now_ns());
            return Ok(false);
        }
        let Some(at_ns) = self.poll_timeout_ns() else { return Ok(false) };
        let now_ns = self.pd.device().now_ns();
        if now_ns < at_ns {
            return Ok(false);
        }
        if let Some(since_ns) = self.unanswered_since_ns() {
            self.stands_still = true;
            let silent_s = (now_ns - since_ns) as f64 / 1e9;
            if self.closing == Closing::Said && self.peer_closed {
                self.closing = Closing::Done;
                tracing::warn!(
                    qpn = %self.qp.qpn(),
                    "the peer's RNIC has not acknowledged the goodbye for {silent_s:.1} s, although retries are left: \
                     the connection is closed, since the peer has sent its goodbye and may be gone"
                );
                return Ok(true);
            }
            tracing::warn!(
                qpn = %self.qp.qpn(),
                "the peer's RNIC has not answered for {silent_s:.1} s, although retries are left: \
                 the peer has posted no receive, or a queue pair of the connection makes no progress"
            );
            return Ok(false);
        }
        // A WRITE of 0 B needs no key and consumes no receive. It only makes the peer's RNIC send an acknowledgement.
        self.post_control(KEEPALIVE_TAG, SendOperation::Write { remote_address: 0, rkey: RKey::new(0) })?;
        self.asked_ns = Some(now_ns);
        self.keepalives += 1;
        Ok(false)
    }

    /// Returns the time at which the connection must be polled even if no event occurs. The poll then sends a
    /// keepalive, or warns that no answer has come.
    pub(crate) fn poll_timeout_ns(&self) -> Option<u64> {
        let (since_ns, intervals) = match self.unanswered_since_ns() {
            Some(since_ns) => (since_ns, STANDSTILL_INTERVALS),
            None => (self.heard_ns, 1),
        };
        (self.keepalive_ns > 0 && !self.stands_still)
            .then(|| since_ns.saturating_add(self.keepalive_ns.saturating_mul(intervals)))
    }

    /// Returns the time since which the keepalive is unanswered, or `None` if no keepalive is. The time before the
    /// keepalive does not count: a program with little to send may poll less often than the keepalive interval.
    fn unanswered_since_ns(&self) -> Option<u64> {
        self.asked_ns.map(|asked_ns| asked_ns.max(self.heard_ns))
    }

    fn post_control(&self, wr_id: u64, operation: SendOperation) -> Result<(), PostError> {
        let request = SendRequest {
            wr_id,
            operation,
            flags: SendFlags::SIGNALED,
            payload: Payload::Inline(&[]),
            destination: None,
        };
        self.qp.post_send(&[request])
    }

    /// Takes the completion of a request that carries no data.
    #[inline]
    pub(crate) fn take_control(&mut self, completion: &Completion) -> Result<(), ConnectionError> {
        if completion.status != Status::Success {
            if self.has_said_goodbye() {
                // A peer that has received the goodbye may exit before its RNIC acknowledges the goodbye. A failure
                // after the goodbye therefore counts as the acknowledgement.
                self.closing = Closing::Done;
                return Ok(());
            }
            return Err(ConnectionError::from_send(completion.status));
        }
        match completion.wr_id {
            GOODBYE_TAG => self.closing = Closing::Done,
            KEEPALIVE_TAG => self.asked_ns = None,
            _ => {}
        }
        Ok(())
    }

    /// Classifies a failed receive.
    pub(crate) fn receive_failed(&self, status: Status) -> Result<(), ConnectionError> {
        match (self.closing, self.peer_closed) {
            _ if status == Status::LocalLength => {
                Err(ConnectionError::Protocol("a message that is longer than the receive posted for it"))
            }
            // Both sides have sent their goodbyes, so the failed queue pair loses no message.
            (Closing::Done, true) => Ok(()),
            // The queue pair failed before the peer sent its goodbye. `take_control` ignored the failure of this side's
            // goodbye or keepalive.
            (Closing::Done, false) => Err(ConnectionError::PeerUnreachable(Status::RetryExceeded)),
            _ => Err(ConnectionError::Local(status)),
        }
    }

    /// Checks that the completion of a receive comes from a SEND. A WRITE with immediate data also consumes a receive,
    /// but does not place its bytes in the receive's memory (IBTA Vol 1, 10.7.2.2).
    #[inline]
    pub(crate) fn check_is_send(completion: &Completion) -> Result<(), ConnectionError> {
        if completion.opcode != CompletionOpcode::Receive {
            return Err(ConnectionError::Protocol("a WRITE with immediate data where only SENDs are expected"));
        }
        if let Attachment::Invalidated(_) = completion.attachment {
            return Err(ConnectionError::Protocol("a SEND that invalidates a key"));
        }
        Ok(())
    }

    /// Checks that the peer has not sent its goodbye. After its goodbye, a peer may not send messages.
    #[inline]
    pub(crate) fn check_may_send(&self) -> Result<(), ConnectionError> {
        if self.peer_closed {
            return Err(ConnectionError::Protocol("a message after its goodbye"));
        }
        Ok(())
    }

    /// Records the goodbye of the peer. Rejects a second goodbye.
    pub(crate) fn take_goodbye(&mut self) -> Result<(), ConnectionError> {
        if std::mem::replace(&mut self.peer_closed, true) {
            return Err(ConnectionError::Protocol("a second goodbye"));
        }
        Ok(())
    }

    pub(crate) fn arm(&self) {
        self.cq.arm(Notify::Next);
    }
}
