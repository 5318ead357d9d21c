//! Weights of [`Explanation::implausibility`](super::Explanation::implausibility). All weights are estimates. They
//! order the explanations that the other modules have found possible.

/// Maximum implausibility above the best explanation at which the verdict names an explanation.
pub(super) const AS_PLAUSIBLE: f64 = 1.25;

pub(super) const VLAN: f64 = 1.5;
pub(super) const IPV6: f64 = 1.5;
/// Datagrams that exactly fill a path MTU, since other datagrams rarely have such a length.
pub(super) const FULL_DATAGRAM: f64 = -1.0;
/// VLAN tag, if the datagrams exactly fill a path MTU only with the tag.
pub(super) const VLAN_OF_FULL_DATAGRAM: f64 = 0.3;
/// Payloads that are no power of two, or are a power of two only within the tolerance.
pub(super) const ODD_SIZE: f64 = 1.0;
pub(super) const ROUND_WITHIN_TOLERANCE: f64 = 0.5;
pub(super) const NO_PAYLOAD: f64 = 0.2;
/// Length that fits only with an error of the counters.
pub(super) const INEXACT: f64 = 0.2;
pub(super) const MISFIT: f64 = 0.3;
/// Segmented messages whose length the counters do not determine.
pub(super) const OPEN_LENGTH: f64 = 0.7;
pub(super) const PARTLY_FILLED: f64 = 1.0;
pub(super) const UNUSUAL_MTU: f64 = 1.5;
pub(super) const MTU_2048: f64 = 0.5;
/// Lengths in both directions that are typical of this operation alone.
pub(super) const SIGNATURE: f64 = -1.0;
pub(super) const EMPTY_READ: f64 = 0.5;
pub(super) const WITH_CREDITS: f64 = 0.75;
pub(super) const BOTH_WAYS: f64 = 0.3;
/// Packets with the length of an ACK in only one direction, which are explained as messages.
pub(super) const ANSWERS_LIKE_ACKS: f64 = 0.6;
pub(super) const UNLIKE_SIZES: f64 = 1.5;
pub(super) const DATAGRAMS_BOTH_WAYS: f64 = 1.0;
/// Less than one acknowledgement per ten messages of one packet.
pub(super) const FEW_ACKS: f64 = 0.5;
/// Acknowledgements for most packets of long messages.
pub(super) const MANY_ACKS: f64 = 0.3;
