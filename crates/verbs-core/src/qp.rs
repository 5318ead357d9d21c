//! The states of a queue pair and the table of transitions between them (IBTA Vol 1, 10.3.1 and
//! table 92 of 11.2.5.2).

use std::net::IpAddr;

use doorbell_wire::{PathMtu, Psn, QKey, Qpn};

use crate::counters::QpCounters;
use crate::memory::{Access, PdId};
use crate::object::{CqId, Limits, SrqId};
use crate::work::{AddressVector, refusal};

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
    /// RC, UC or UD.
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
    /// Created; nothing may be posted.
    Reset,
    /// Receives may be posted.
    Init,
    /// Packets are received.
    ReadyToReceive,
    /// Packets are sent and received.
    ReadyToSend,
    /// What was started is finished, nothing new is started.
    SqDrain,
    /// A send failed (UC, UD); receives go on.
    SqError,
    /// Everything posted is flushed.
    Error,
}

impl QpState {
    /// All states.
    pub const ALL: [QpState; 7] =
        [Self::Reset, Self::Init, Self::ReadyToReceive, Self::ReadyToSend, Self::SqDrain, Self::SqError, Self::Error];
}

bitflags::bitflags! {
    /// Which attributes a modification names.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct AttributeMask: u32 {
        /// State the program believes the queue pair to be in.
        const CURRENT_STATE = 1 << 1;
        /// Raise an event when the send queue is drained.
        const SQD_NOTIFY = 1 << 2;
        /// What peers may do.
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
        /// First expected sequence number.
        const RECEIVE_PSN = 1 << 12;
        /// READs and atomics it may have outstanding.
        const MAX_RD_ATOMIC = 1 << 13;
        /// RNR NAK timer.
        const MIN_RNR_TIMER = 1 << 15;
        /// First sequence number sent.
        const SEND_PSN = 1 << 16;
        /// READs and atomics the peer may have outstanding.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// The peer's queue pair.
        const DEST_QPN = 1 << 20;
    }
}

/// A modification: what is `None` stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpAttributes {
    /// The state to go to.
    pub state: Option<QpState>,
    /// The state that the program believes the queue pair to be in.
    pub current_state: Option<QpState>,
    /// Raise an event when the send queue is drained.
    pub sqd_notify: Option<bool>,
    /// What peers may do.
    pub access: Option<Access>,
    /// Index of the partition key: there is one, the default.
    pub pkey_index: Option<u16>,
    /// Port number: there is one, 1.
    pub port: Option<u8>,
    /// Q_Key (UD).
    pub qkey: Option<QKey>,
    /// Address of the peer.
    pub address: Option<AddressVector>,
    /// Path MTU.
    pub path_mtu: Option<PathMtu>,
    /// Acknowledgement timeout exponent: 4.096 us times two to it; 0 waits for ever.
    pub timeout: Option<u8>,
    /// Times that the timeout may expire in a row.
    pub retry_count: Option<u8>,
    /// Times that an RNR NAK may come in a row; 7 is without end.
    pub rnr_retry: Option<u8>,
    /// First expected sequence number.
    pub receive_psn: Option<Psn>,
    /// First sequence number sent.
    pub send_psn: Option<Psn>,
    /// READs and atomics it may have outstanding.
    pub max_rd_atomic: Option<u8>,
    /// READs and atomics that the peer may have outstanding.
    pub max_dest_rd_atomic: Option<u8>,
    /// RNR NAK timer code.
    pub min_rnr_timer: Option<u8>,
    /// The peer's queue pair.
    pub dest_qpn: Option<Qpn>,
}

impl QpAttributes {
    /// Returns which attributes are named, apart from the state.
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

/// Why a modification was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModifyError {
    /// No such queue pair.
    #[error("there is no queue pair {0}")]
    UnknownQp(Qpn),
    /// There is no such transition.
    #[error("a {} queue pair does not go from {from:?} to {to:?}", kind.name())]
    NoTransition {
        /// Transport.
        kind: QpKind,
        /// State it is in.
        from: QpState,
        /// State asked for.
        to: QpState,
    },
    /// The program is wrong about the state.
    #[error("the queue pair is in {actual:?}, not in {believed:?}")]
    NotInState {
        /// State it is in.
        actual: QpState,
        /// State that was named.
        believed: QpState,
    },
    /// Attributes that the transition needs are missing, or some that it does not take are named.
    #[error("{from:?} to {to:?} of a {} queue pair: missing {missing:?}, not allowed here {surplus:?}", kind.name())]
    Attributes {
        /// Transport.
        kind: QpKind,
        /// State it is in.
        from: QpState,
        /// State asked for.
        to: QpState,
        /// Needed but not named.
        missing: AttributeMask,
        /// Named but not taken.
        surplus: AttributeMask,
    },
    /// An attribute has a value that it cannot have.
    #[error("{attribute} is {given}, allowed is {}", span(*least, *most))]
    Value {
        /// Which.
        attribute: &'static str,
        /// What was given.
        given: usize,
        /// The least allowed.
        least: usize,
        /// The most allowed.
        most: usize,
    },
    /// The path MTU is larger than the port carries.
    #[error("path MTU {given} is larger than this port's active MTU {active}, which its interface's MTU sets")]
    PathMtu {
        /// Bytes asked for.
        given: usize,
        /// Bytes that the port carries.
        active: usize,
    },
    /// An RNIC that is not ours does not do it.
    #[error("the RNIC refuses it: {}", refusal(*errno))]
    Refused {
        /// What it says.
        errno: i32,
    },
    /// IPv4 and IPv6 do not mix.
    #[error("the peer's address {peer} is of another family than this device's {own}")]
    AddressFamily {
        /// The peer's.
        peer: IpAddr,
        /// The device's.
        own: IpAddr,
    },
}

fn span(least: usize, most: usize) -> String {
    if least == most { least.to_string() } else { format!("{least} to {most}") }
}

/// What a queue pair is created for. Each number is enforced as given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCapacities {
    /// Send work requests outstanding at most.
    pub max_send_wr: usize,
    /// Receive work requests outstanding at most.
    pub max_recv_wr: usize,
    /// Scatter-gather elements of a send work request at most.
    pub max_send_sge: usize,
    /// Scatter-gather elements of a receive work request at most.
    pub max_recv_sge: usize,
    /// Bytes of inline data at most.
    pub max_inline: usize,
}

/// What a queue pair is created with.
#[derive(Clone, Copy, Debug)]
pub struct QpInit {
    /// Transport.
    pub kind: QpKind,
    /// Protection domain.
    pub pd: PdId,
    /// Completion queue of its sends.
    pub send_cq: CqId,
    /// Completion queue of its receives.
    pub recv_cq: CqId,
    /// Where its receives come from, if not from a queue of its own.
    pub srq: Option<SrqId>,
    /// Depths.
    pub capacities: QpCapacities,
    /// Every send makes a completion.
    pub signal_all: bool,
}

/// What is known of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpInfo {
    /// Transport.
    pub kind: QpKind,
    /// State.
    pub state: QpState,
    /// Attributes as they are set, each of them named.
    pub attributes: QpAttributes,
    /// Depths.
    pub capacities: QpCapacities,
    /// Every send makes a completion.
    pub signal_all: bool,
    /// What it counted.
    pub counters: QpCounters,
    /// Send work requests that are not done.
    pub outstanding_sends: usize,
}

/// What one transition needs and takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Attributes that must be named.
    pub required: AttributeMask,
    /// Attributes that may be named beside them.
    pub optional: AttributeMask,
}

/// Returns the transition table. `None`: there is no such transition.
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

/// Checks a modification against the table and the attributes' ranges, and says where it leads.
///
/// # Errors
///
/// The program is wrong about the current state, there is no such transition, attributes that it needs are missing, it
/// does not take some of those that are named, or a value is out of range. [`ModifyError`] says which.
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
    // The fields of three and five bits that carry them; one port, one partition key.
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

    /// All pairs of states, for each transport, as one picture: a change shows as a diff.
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
        // Columns and rows: Reset Init RTR RTS SQD SQE Error.
        assert_eq!(picture(QpKind::Rc), ["xx....x", "xxx...x", "x..x..x", "x..xx.x", "x..xx.x", "x.....x", "x.....x"]);
        for kind in [QpKind::Uc, QpKind::Ud] {
            assert_eq!(picture(kind), ["xx....x", "xxx...x", "x..x..x", "x..xx.x", "x..xx.x", "x..x..x", "x.....x"]);
        }
    }

    #[test]
    fn a_refusal_says_what_is_missing_and_what_is_too_much() {
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
    fn values_are_held_to_the_range_that_the_device_reports() {
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
