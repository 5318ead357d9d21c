//! Weights of [`Explanation::implausibility`](super::Explanation::implausibility). All weights are estimates. Other
//! modules compute which explanations are possible.

/// Maximum distance in implausibility from the best explanation for the verdict.
pub(super) const AS_PLAUSIBLE: f64 = 1.25;

pub(super) const VLAN: f64 = 1.5;
pub(super) const IPV6: f64 = 1.5;
/// Datagrams that fill a path MTU to the byte: no other datagram has that length.
pub(super) const FULL_DATAGRAM: f64 = -1.0;
/// A VLAN tag, if with it and not without it the datagrams fill a path MTU to the byte.
pub(super) const VLAN_OF_FULL_DATAGRAM: f64 = 0.3;
/// No power of two among the payloads, or only within the tolerance.
pub(super) const ODD_SIZE: f64 = 1.0;
pub(super) const ROUND_WITHIN_TOLERANCE: f64 = 0.5;
pub(super) const NO_PAYLOAD: f64 = 0.2;
/// Noise is needed to explain the length.
pub(super) const INEXACT: f64 = 0.2;
pub(super) const MISFIT: f64 = 0.3;
/// Segmented messages of unknown length.
pub(super) const OPEN_LENGTH: f64 = 0.7;
pub(super) const PARTLY_FILLED: f64 = 1.0;
pub(super) const UNUSUAL_MTU: f64 = 1.5;
pub(super) const MTU_2048: f64 = 0.5;
/// Both directions show what this operation alone would show.
pub(super) const SIGNATURE: f64 = -1.0;
pub(super) const EMPTY_READ: f64 = 0.5;
pub(super) const WITH_CREDITS: f64 = 0.75;
pub(super) const BOTH_WAYS: f64 = 0.3;
/// The packets of the other direction have the length of ACKs.
pub(super) const ANSWERS_LIKE_ACKS: f64 = 0.6;
pub(super) const UNLIKE_SIZES: f64 = 1.5;
pub(super) const DATAGRAMS_BOTH_WAYS: f64 = 1.0;
/// Of ten messages of one packet less than one is acknowledged.
pub(super) const FEW_ACKS: f64 = 0.5;
/// Most packets of long messages are acknowledged.
pub(super) const MANY_ACKS: f64 = 0.3;
