//! Counts of the events in simulated runs. An event that happens in no run is not tested, so each event must happen at
//! least once.

use doorbell_verbs_core::{Access, AsyncEvent, Counters, Status};

macro_rules! hits {
    ($($name:ident = $text:literal,)*) => {
        /// Event that must happen at least once in the runs of all seeds.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Hit {
            $($name,)*
        }

        const NAMES: &[&str] = &[$($text,)*];
    };
}

hits! {
    Lost = "fault: packet lost",
    Duplicated = "fault: packet duplicated",
    Reordered = "fault: packet overtaken",
    Delayed = "fault: packet delayed",
    Overflow = "fault: receive buffer overflowed",
    LinkFull = "fault: link full, nothing sent for a while",
    Vanished = "fault: peer vanished",
    Restarted = "fault: peer restarted with its address",
    RestartedAlike = "fault: peer restarted with its address and numbers",
    Reset = "life: QP reset",
    ResetBusy = "life: QP reset with work outstanding",
    Reconnected = "life: connected anew",
    ToError = "life: QP moved to error by its program",
    Destroyed = "life: QP destroyed",
    DestroyedBusy = "life: QP destroyed with work outstanding",
    DestroyedPeerBusy = "life: QP destroyed with work of its peer outstanding",
    QpnReused = "life: QPN given again at once",
    KeyReused = "life: key given again at once",
    CqReused = "life: CQ number given again at once",
    SrqReused = "life: SRQ number given again at once",
    Drain = "life: SQD",
    DrainBusy = "life: SQD with work outstanding",
    SqErrorLeft = "life: SQE, and back to RTS",
    RegionGone = "life: region of peers deregistered under traffic",
    BufferGone = "life: region of buffers deregistered under traffic",
    RegionKept = "life: region with a window refused to go",
    WindowBound = "life: window bound",
    WindowTaken = "life: window invalidated by its owner",
    WindowTakenByPeer = "life: window invalidated by the peer",
    RegionTakenByPeer = "life: region invalidated by the peer, refused",
    WindowDestroyed = "life: window destroyed under traffic",
    CqResized = "life: CQ resized",
    CqResizeRefused = "life: CQ resized below what it holds, refused",
    CqDestroyed = "life: CQ destroyed",
    CqDestroyRefused = "life: CQ in use destroyed, refused",
    CqOverrun = "life: CQ overran",
    SrqDestroyed = "life: SRQ destroyed with receives in it",
    SrqDestroyRefused = "life: SRQ in use destroyed, refused",
    SrqRc = "SRQ: receive taken by RC",
    SrqUc = "SRQ: receive taken by UC",
    SrqUd = "SRQ: receive taken by UD",
    SrqHeldAtReset = "SRQ: message half received at reset or destruction",
    SendOverSized = "work: message longer than the receive",
    ReadPiece = "work: READ asked for in pieces",
    WindowStall = "stall: window to a peer full",
    ReadStall = "stall: window for READ responses full",
    PromiseKept = "receive completed, and so the send succeeded",
    PromiseTested = "receive completed, its QP went, and the send succeeded",
    SeqNak = "NAK received: PSN sequence error",
    RnrNakSent = "NAK sent: RNR",
    RnrNak = "NAK received: RNR",
    InvalidSent = "NAK sent: invalid request",
    Invalid = "NAK received: invalid request",
    AccessSent = "NAK sent: remote access error",
    Access = "NAK received: remote access error",
    OperationalSent = "NAK sent: remote operational error",
    Operational = "NAK received: remote operational error",
    ImpliedNak = "response missing: implied NAK",
    DuplicateRequest = "duplicate request",
    OutOfSequence = "request out of sequence",
    Retransmitted = "packet retransmitted",
    EarlyTimeout = "timeout: early",
    Timeout = "timeout: configured",
    UnknownQp = "dropped: no such QP",
    WrongState = "dropped: wrong state",
    WrongKey = "dropped: wrong Q_Key",
    Unreliable = "dropped: UC or UD message",
    Unexpected = "dropped: response to nothing",
    Established = "event: communication established",
    Drained = "event: SQ drained",
    Fatal = "event: QP fatal",
    RequestError = "event: QP request error",
    AccessError = "event: QP access error",
    LastWqe = "event: last WQE reached",
    CqError = "event: CQ error",
    SrqLimit = "event: SRQ limit reached",
    Success = "status: success",
    LocalLength = "status: local length",
    LocalProtection = "status: local protection",
    Flushed = "status: flushed",
    WindowBind = "status: memory window",
    LocalAccess = "status: local access",
    RemoteInvalid = "status: remote invalid request",
    RemoteAccess = "status: remote access",
    RemoteOperation = "status: remote operation",
    RetryExceeded = "status: retries exceeded",
    RnrRetryExceeded = "status: RNR retries exceeded",
}

/// Number of occurrences of each event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally(Vec<u64>);

impl Default for Tally {
    fn default() -> Self {
        Self(vec![0; NAMES.len()])
    }
}

impl Tally {
    pub fn hit(&mut self, hit: Hit) {
        self.add(hit, 1);
    }

    pub fn add(&mut self, hit: Hit, count: u64) {
        self.0[hit as usize] += count;
    }

    pub fn count(&self, hit: Hit) -> u64 {
        self.0[hit as usize]
    }

    pub fn event(&mut self, event: AsyncEvent) {
        self.hit(match event {
            AsyncEvent::CommunicationEstablished(_) => Hit::Established,
            AsyncEvent::SqDrained(_) => Hit::Drained,
            AsyncEvent::QpFatal(_) => Hit::Fatal,
            AsyncEvent::QpRequestError(_) => Hit::RequestError,
            AsyncEvent::QpAccessError(_) => Hit::AccessError,
            AsyncEvent::QpLastWqeReached(_) => Hit::LastWqe,
            AsyncEvent::CqError(_) => Hit::CqError,
            AsyncEvent::SrqLimitReached(_) => Hit::SrqLimit,
            other => panic!("an event that the simulation does not know: {other:?}"),
        });
    }

    pub fn status(&mut self, status: Status) {
        self.hit(match status {
            Status::Success => Hit::Success,
            Status::LocalLength => Hit::LocalLength,
            Status::LocalProtection => Hit::LocalProtection,
            Status::WorkRequestFlushed => Hit::Flushed,
            Status::MemoryWindowBind => Hit::WindowBind,
            Status::LocalAccess => Hit::LocalAccess,
            Status::RemoteInvalidRequest => Hit::RemoteInvalid,
            Status::RemoteAccess => Hit::RemoteAccess,
            Status::RemoteOperation => Hit::RemoteOperation,
            Status::RetryExceeded => Hit::RetryExceeded,
            Status::RnrRetryExceeded => Hit::RnrRetryExceeded,
            // Only a peer that breaks the protocol, or a defective RNIC, causes these statuses.
            other => panic!("no RNIC of this world causes the status {other:?}"),
        });
    }

    /// Adds the counters of a device at the end of its life.
    pub fn counters(&mut self, counters: &Counters) {
        let c = counters;
        for (hit, count) in [
            (Hit::SeqNak, c.packet_seq_err),
            (Hit::RnrNakSent, c.rnr_nak_sent),
            (Hit::RnrNak, c.rnr_nak_received),
            (Hit::InvalidSent, c.resp_invalid_request),
            (Hit::Invalid, c.req_remote_invalid_request),
            (Hit::AccessSent, c.resp_remote_access_errors),
            (Hit::Access, c.req_remote_access_errors),
            (Hit::OperationalSent, c.resp_remote_operational_errors),
            (Hit::Operational, c.req_remote_operational_errors),
            (Hit::ImpliedNak, c.implied_nak_seq_err),
            (Hit::DuplicateRequest, c.duplicate_request),
            (Hit::OutOfSequence, c.out_of_sequence),
            (Hit::Retransmitted, c.tx_retransmitted_packets),
            (Hit::EarlyTimeout, c.early_retransmit),
            (Hit::Timeout, c.local_ack_timeout_err),
            (Hit::UnknownQp, c.rx_unknown_qp),
            (Hit::WrongState, c.rx_wrong_state),
            (Hit::WrongKey, c.rx_key_violation),
            (Hit::Unreliable, c.rx_dropped_messages),
            (Hit::Unexpected, c.rx_unexpected_response),
        ] {
            self.add(hit, count);
        }
    }

    /// Returns a table with one line for each event.
    pub fn table(&self) -> String {
        NAMES.iter().zip(&self.0).map(|(name, count)| format!("{count:>12}  {name}\n")).collect()
    }

    /// Returns the events that never happened.
    pub fn missing(&self) -> Vec<&'static str> {
        NAMES.iter().zip(&self.0).filter(|&(_, &count)| count == 0).map(|(&name, _)| name).collect()
    }
}

impl doorbell_testing::seeds::Tally for Tally {
    fn plus(&mut self, other: &Self) {
        for (own, other) in self.0.iter_mut().zip(&other.0) {
            *own += other;
        }
    }
}
