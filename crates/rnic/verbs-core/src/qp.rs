//! States of a queue pair and the table of transitions between them (IBTA Vol 1, 10.3.1 and table 92 of 11.2.5.2).

use std::net::IpAddr;

use doorbell_wire::{PathMtu, Psn, QKey, Qpn};

use crate::address::AddressVector;
use crate::counters::QpCounters;
use crate::memory::{Access, PdId};
use crate::object::{CqId, Limits, SrqId, refusal};

/// Transport of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpKind {
    /// Reliable connected.
    Rc,
    /// Unreliable connected.
    Uc,
    /// Unreliable datagram.
    Ud,
}

impl QpKind {
    /// Returns "RC", "UC" or "UD".
    pub fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
        }
    }
}

/// State of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpState {
    /// The queue pair accepts no work requests. This is its state after creation.
    Reset,
    /// The queue pair accepts receives.
    Init,
    /// The queue pair receives packets.
    ReadyToReceive,
    /// The queue pair sends and receives packets.
    ReadyToSend,
    /// The queue pair finishes requests in progress and starts no others.
    SqDrain,
    /// A send failed (UC, UD). The queue pair continues to receive.
    SqError,
    /// The queue pair flushes all posted work requests.
    Error,
}

impl QpState {
    /// All states.
    pub const ALL: [QpState; 7] =
        [Self::Reset, Self::Init, Self::ReadyToReceive, Self::ReadyToSend, Self::SqDrain, Self::SqError, Self::Error];
}

bitflags::bitflags! {
    /// Set of attributes that a modification of a queue pair names.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct AttributeMask: u32 {
        /// Current state of the queue pair, as the program expects it.
        const CURRENT_STATE = 1 << 1;
        /// Whether the device raises an event when the send queue is drained.
        const SQD_NOTIFY = 1 << 2;
        /// Rights of peers.
        const ACCESS = 1 << 3;
        /// Index of the partition key.
        const PKEY_INDEX = 1 << 4;
        /// Port number.
        const PORT = 1 << 5;
        /// Q_Key.
        const QKEY = 1 << 6;
        /// Address of the peer.
        const ADDRESS = 1 << 7;
        /// Path MTU.
        const PATH_MTU = 1 << 8;
        /// Acknowledgement timeout.
        const TIMEOUT = 1 << 9;
        /// Retry count.
        const RETRY_COUNT = 1 << 10;
        /// RNR retry count.
        const RNR_RETRY = 1 << 11;
        /// Packet sequence number that the first received packet must have.
        const RECEIVE_PSN = 1 << 12;
        /// Maximum number of READs and atomics that this queue pair may have outstanding at the peer.
        const MAX_RD_ATOMIC = 1 << 13;
        /// RNR NAK timer.
        const MIN_RNR_TIMER = 1 << 15;
        /// Packet sequence number of the first packet sent.
        const SEND_PSN = 1 << 16;
        /// Maximum number of READs and atomics that the peer may have outstanding at this queue pair.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// The peer's queue pair.
        const DEST_QPN = 1 << 20;
    }
}

/// Modification of a queue pair. An attribute that is `None` does not change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpAttributes {
    /// New state.
    pub state: Option<QpState>,
    /// Current state of the queue pair, as the program expects it.
    pub current_state: Option<QpState>,
    /// Whether the device raises an event when the send queue is drained.
    pub sqd_notify: Option<bool>,
    /// Rights of peers.
    pub access: Option<Access>,
    /// Index of the partition key; only the default key exists.
    pub pkey_index: Option<u16>,
    /// Port number; only port 1 exists.
    pub port: Option<u8>,
    /// Q_Key (UD).
    pub qkey: Option<QKey>,
    /// Address of the peer.
    pub address: Option<AddressVector>,
    /// Path MTU.
    pub path_mtu: Option<PathMtu>,
    /// Exponent of the acknowledgement timeout, which is 4.096 us times two to the power of the exponent; 0 means
    /// unlimited.
    pub timeout: Option<u8>,
    /// Maximum number of consecutive retries after acknowledgement timeouts.
    pub retry_count: Option<u8>,
    /// Maximum number of consecutive retries after RNR NAKs; 7 means unlimited.
    pub rnr_retry: Option<u8>,
    /// Packet sequence number that the first received packet must have.
    pub receive_psn: Option<Psn>,
    /// Packet sequence number of the first packet sent.
    pub send_psn: Option<Psn>,
    /// Maximum number of READs and atomics that this queue pair may have outstanding at the peer.
    pub max_rd_atomic: Option<u8>,
    /// Maximum number of READs and atomics that the peer may have outstanding at this queue pair.
    pub max_dest_rd_atomic: Option<u8>,
    /// RNR NAK timer code.
    pub min_rnr_timer: Option<u8>,
    /// The peer's queue pair.
    pub dest_qpn: Option<Qpn>,
}

impl QpAttributes {
    /// Returns the set of the attributes that are not `None`, except the new state: the set has no bit for it.
    pub fn mask(&self) -> AttributeMask {
        use AttributeMask as A;
        [
            (self.current_state.is_some(), A::CURRENT_STATE),
            (self.sqd_notify.is_some(), A::SQD_NOTIFY),
            (self.access.is_some(), A::ACCESS),
            (self.pkey_index.is_some(), A::PKEY_INDEX),
            (self.port.is_some(), A::PORT),
            (self.qkey.is_some(), A::QKEY),
            (self.address.is_some(), A::ADDRESS),
            (self.path_mtu.is_some(), A::PATH_MTU),
            (self.timeout.is_some(), A::TIMEOUT),
            (self.retry_count.is_some(), A::RETRY_COUNT),
            (self.rnr_retry.is_some(), A::RNR_RETRY),
            (self.receive_psn.is_some(), A::RECEIVE_PSN),
            (self.max_rd_atomic.is_some(), A::MAX_RD_ATOMIC),
            (self.min_rnr_timer.is_some(), A::MIN_RNR_TIMER),
            (self.send_psn.is_some(), A::SEND_PSN),
            (self.max_dest_rd_atomic.is_some(), A::MAX_DEST_RD_ATOMIC),
            (self.dest_qpn.is_some(), A::DEST_QPN),
        ]
        .into_iter()
        .filter_map(|(named, attribute)| named.then_some(attribute))
        .fold(A::empty(), |mask, attribute| mask | attribute)
    }
}

/// Error of modifying a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModifyError {
    /// The queue pair does not exist.
    #[error("there is no queue pair {0}")]
    UnknownQp(Qpn),
    /// The transition does not exist.
    #[error("a {} queue pair cannot go from state {from:?} to state {to:?}", kind.name())]
    NoTransition {
        /// Transport.
        kind: QpKind,
        /// Current state.
        from: QpState,
        /// Requested state.
        to: QpState,
    },
    /// The queue pair is in another state than the program expects.
    #[error("the queue pair is in state {actual:?}, but the request expects state {believed:?}")]
    NotInState {
        /// Current state.
        actual: QpState,
        /// State that the program expects.
        believed: QpState,
    },
    /// Required attributes of the transition are missing, or some given attributes are not allowed.
    #[error(
        "a {} queue pair cannot go from state {from:?} to state {to:?} with these attributes: \
         required but missing are {missing:?}, given but not allowed are {surplus:?}",
        kind.name()
    )]
    Attributes {
        /// Transport.
        kind: QpKind,
        /// Current state.
        from: QpState,
        /// Requested state.
        to: QpState,
        /// Required attributes that are missing.
        missing: AttributeMask,
        /// Given attributes that are not allowed.
        surplus: AttributeMask,
    },
    /// The value of an attribute is out of range.
    #[error("{attribute} is {given}, allowed is {}", span(*least, *most))]
    Value {
        /// Name of the attribute.
        attribute: &'static str,
        /// Given value.
        given: usize,
        /// Minimum.
        least: usize,
        /// Maximum.
        most: usize,
    },
    /// The path MTU exceeds the active MTU of the port.
    #[error(
        "path MTU {given} is larger than this port's active MTU {active}, which follows from the MTU of \
         the network interface"
    )]
    PathMtu {
        /// Requested bytes.
        given: usize,
        /// Active MTU of the port in bytes.
        active: usize,
    },
    /// A hardware RNIC rejected the modification.
    #[error("the RNIC refuses the modification of the queue pair: {}", refusal(*errno))]
    Refused {
        /// Error number from the RNIC.
        errno: i32,
    },
    /// The families of the addresses differ.
    #[error("the peer's address {peer} and this device's address {own} must both be IPv4 or both be IPv6")]
    AddressFamily {
        /// Address of the peer.
        peer: IpAddr,
        /// Address of the device.
        own: IpAddr,
    },
    /// The device has failed.
    #[error("the device has failed, so its queue pairs can only be destroyed: open the device again")]
    DeviceFatal,
}

fn span(least: usize, most: usize) -> String {
    if least == most { least.to_string() } else { format!("{least} to {most}") }
}

/// Capacities of a queue pair. The device enforces exactly these numbers and rounds none of them up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCapacities {
    /// Maximum number of outstanding send work requests.
    pub max_send_wr: usize,
    /// Maximum number of outstanding receive work requests.
    pub max_recv_wr: usize,
    /// Maximum number of scatter-gather elements of a send work request.
    pub max_send_sge: usize,
    /// Maximum number of scatter-gather elements of a receive work request.
    pub max_recv_sge: usize,
    /// Maximum bytes of inline data.
    pub max_inline: usize,
}

/// Options of a new queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpInit {
    /// Transport.
    pub kind: QpKind,
    /// Protection domain.
    pub pd: PdId,
    /// Completion queue of send work requests.
    pub send_cq: CqId,
    /// Completion queue of receive work requests.
    pub recv_cq: CqId,
    /// Shared receive queue; `None` if the queue pair has its own receive queue.
    pub srq: Option<SrqId>,
    /// Capacities of the queue pair.
    pub capacities: QpCapacities,
    /// Whether every send generates a completion.
    pub signal_all: bool,
}

/// Current properties of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpInfo {
    /// Transport.
    pub kind: QpKind,
    /// State.
    pub state: QpState,
    /// Current attributes. None of them is `None`.
    pub attributes: QpAttributes,
    /// Capacities of the queue pair.
    pub capacities: QpCapacities,
    /// Whether every send generates a completion.
    pub signal_all: bool,
    /// Counters of the queue pair.
    pub counters: QpCounters,
    /// Number of send work requests that are not complete.
    pub outstanding_sends: usize,
}

/// Attributes that a transition requires, and attributes that it also accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Required attributes.
    pub required: AttributeMask,
    /// Optional attributes.
    pub optional: AttributeMask,
}

/// Returns the attributes that a transition requires and accepts, or `None` if the transition does not exist.
pub fn transition(kind: QpKind, from: QpState, to: QpState) -> Option<Transition> {
    use AttributeMask as A;
    use QpKind::{Rc, Uc, Ud};
    use QpState::*;

    let none = A::empty();
    let connected = A::ADDRESS | A::PATH_MTU | A::DEST_QPN | A::RECEIVE_PSN;
    let running_rc = A::CURRENT_STATE | A::ACCESS | A::MIN_RNR_TIMER;
    let (required, optional) = match (from, to, kind) {
        (_, Reset | Error, _) => (none, A::CURRENT_STATE),
        (Reset, Init, Ud) => (A::PKEY_INDEX | A::PORT | A::QKEY, none),
        (Reset, Init, _) => (A::PKEY_INDEX | A::PORT | A::ACCESS, none),
        (Init, Init, Ud) => (none, A::PKEY_INDEX | A::PORT | A::QKEY),
        (Init, Init, _) => (none, A::PKEY_INDEX | A::PORT | A::ACCESS),
        (Init, ReadyToReceive, Ud) => (none, A::PKEY_INDEX | A::QKEY),
        (Init, ReadyToReceive, Uc) => (connected, A::ACCESS | A::PKEY_INDEX),
        (Init, ReadyToReceive, Rc) => (connected | A::MAX_DEST_RD_ATOMIC | A::MIN_RNR_TIMER, A::ACCESS | A::PKEY_INDEX),
        (ReadyToReceive, ReadyToSend, Ud) => (A::SEND_PSN, A::CURRENT_STATE | A::QKEY),
        (ReadyToReceive, ReadyToSend, Uc) => (A::SEND_PSN, A::CURRENT_STATE | A::ACCESS),
        (ReadyToReceive, ReadyToSend, Rc) => {
            (A::SEND_PSN | A::TIMEOUT | A::RETRY_COUNT | A::RNR_RETRY | A::MAX_RD_ATOMIC, running_rc)
        }
        (ReadyToSend | SqDrain, ReadyToSend, Rc) => (none, running_rc),
        (ReadyToSend | SqDrain, ReadyToSend, Uc) => (none, A::CURRENT_STATE | A::ACCESS),
        (ReadyToSend | SqDrain, ReadyToSend, Ud) => (none, A::CURRENT_STATE | A::QKEY),
        (ReadyToSend, SqDrain, _) => (none, A::SQD_NOTIFY),
        (SqDrain, SqDrain, Ud) => (none, A::PKEY_INDEX | A::QKEY),
        (SqDrain, SqDrain, Uc) => (none, A::ADDRESS | A::ACCESS | A::PKEY_INDEX),
        (SqDrain, SqDrain, Rc) => (
            none,
            A::PORT
                | A::ADDRESS
                | A::TIMEOUT
                | A::RETRY_COUNT
                | A::RNR_RETRY
                | A::MAX_RD_ATOMIC
                | A::MAX_DEST_RD_ATOMIC
                | A::ACCESS
                | A::PKEY_INDEX
                | A::MIN_RNR_TIMER,
        ),
        (SqError, ReadyToSend, Ud) => (none, A::CURRENT_STATE | A::QKEY),
        (SqError, ReadyToSend, Uc) => (none, A::CURRENT_STATE | A::ACCESS),
        _ => return None,
    };
    Some(Transition { required, optional })
}

/// Checks a modification against the table and the ranges of the attributes. Returns the resulting state.
///
/// # Errors
///
/// The program expects another state, the transition does not exist, required attributes are missing, given
/// attributes are not allowed, or a value is out of range. [`ModifyError`] describes the reason.
pub fn check_transition(
    kind: QpKind,
    from: QpState,
    attributes: &QpAttributes,
    limits: &Limits,
) -> Result<QpState, ModifyError> {
    let to = attributes.state.unwrap_or(from);
    if let Some(believed) = attributes.current_state
        && believed != from
    {
        return Err(ModifyError::NotInState { actual: from, believed });
    }
    let rule = transition(kind, from, to).ok_or(ModifyError::NoTransition { kind, from, to })?;
    let mask = attributes.mask();
    let missing = rule.required - mask;
    let surplus = mask - rule.required - rule.optional;
    if !missing.is_empty() || !surplus.is_empty() {
        return Err(ModifyError::Attributes { kind, from, to, missing, surplus });
    }
    // IBTA encodes the timeout and the RNR NAK timer in 5 bits, and the retry counts in 3 bits. A device has only one
    // port and one partition key.
    let ranges = [
        ("the acknowledgement timeout", attributes.timeout.map(usize::from), 0, 31),
        ("the retry count", attributes.retry_count.map(usize::from), 0, 7),
        ("the RNR retry count", attributes.rnr_retry.map(usize::from), 0, 7),
        ("the RNR NAK timer", attributes.min_rnr_timer.map(usize::from), 0, 31),
        ("the partition key index", attributes.pkey_index.map(usize::from), 0, 0),
        ("the port", attributes.port.map(usize::from), 1, 1),
        ("max_rd_atomic", attributes.max_rd_atomic.map(usize::from), 0, limits.max_rd_atomic),
        ("max_dest_rd_atomic", attributes.max_dest_rd_atomic.map(usize::from), 0, limits.max_rd_atomic),
    ];
    for (attribute, given, least, most) in ranges {
        if let Some(given) = given
            && !(least..=most).contains(&given)
        {
            return Err(ModifyError::Value { attribute, given, least, most });
        }
    }
    Ok(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes out all pairs of states of each transport, so that a changed table appears as a diff.
    #[test]
    fn every_pair_of_states_is_either_a_transition_or_refused() {
        let picture = |kind| -> Vec<String> {
            QpState::ALL
                .iter()
                .map(|&from| {
                    QpState::ALL
                        .iter()
                        .map(|&to| if transition(kind, from, to).is_some() { 'x' } else { '.' })
                        .collect()
                })
                .collect()
        };
        // Each string is an old state, each character a new state: Reset, Init, RTR, RTS, SQD, SQE, Error. An `x` is an
        // allowed transition.
        assert_eq!(picture(QpKind::Rc), ["xx....x", "xxx...x", "x..x..x", "x..xx.x", "x..xx.x", "x.....x", "x.....x"]);
        for kind in [QpKind::Uc, QpKind::Ud] {
            assert_eq!(picture(kind), ["xx....x", "xxx...x", "x..x..x", "x..xx.x", "x..xx.x", "x..x..x", "x.....x"]);
        }
    }

    #[test]
    fn errors_name_missing_and_surplus_attributes() {
        let attributes =
            QpAttributes { state: Some(QpState::Init), port: Some(1), timeout: Some(14), ..QpAttributes::default() };
        let error = check_transition(QpKind::Rc, QpState::Reset, &attributes, &Limits::default()).unwrap_err();
        assert_eq!(
            error,
            ModifyError::Attributes {
                kind: QpKind::Rc,
                from: QpState::Reset,
                to: QpState::Init,
                missing: AttributeMask::PKEY_INDEX | AttributeMask::ACCESS,
                surplus: AttributeMask::TIMEOUT,
            }
        );
    }

    #[test]
    fn values_outside_the_range_of_the_device_are_refused() {
        let limits = Limits { max_rd_atomic: 16, ..Limits::default() };
        let init = QpAttributes {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: Some(Access::empty()),
            ..QpAttributes::default()
        };
        let check = |from, attributes: &QpAttributes| check_transition(QpKind::Rc, from, attributes, &limits);
        assert_eq!(check(QpState::Reset, &init), Ok(QpState::Init));
        for port in [0, 2] {
            let refused = check(QpState::Reset, &QpAttributes { port: Some(port), ..init }).unwrap_err();
            assert_eq!(refused.to_string(), format!("the port is {port}, allowed is 1"));
        }
        let ready = QpAttributes {
            state: Some(QpState::ReadyToSend),
            send_psn: Some(Psn::new(0)),
            timeout: Some(14),
            retry_count: Some(7),
            rnr_retry: Some(7),
            max_rd_atomic: Some(16),
            ..QpAttributes::default()
        };
        assert_eq!(check(QpState::ReadyToReceive, &ready), Ok(QpState::ReadyToSend));
        let refused = check(QpState::ReadyToReceive, &QpAttributes { max_rd_atomic: Some(17), ..ready }).unwrap_err();
        assert_eq!(refused.to_string(), "max_rd_atomic is 17, allowed is 0 to 16");
    }
}
