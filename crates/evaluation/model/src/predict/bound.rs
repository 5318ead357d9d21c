//! Resources that can limit throughput, and bounds by them.

use crate::cost::Cost;

/// Resources that can limit throughput.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BoundKind {
    /// Window of unacknowledged messages, which limits the messages per round trip.
    RoundTrip,
    /// Rounds of requests: a list of them, of which each waits for all replies of the list before.
    Rounds,
    /// Accesses of a peer's memory that are slow, behind which the operations of a queue pair wait.
    SlowAccesses,
    /// Space of the receiver, whose reuse must wait until the sender learns that the space is free.
    ReceiverSpace,
    /// READs of a queue pair that run one after another, because a fenced operation follows each READ.
    Fence,
    /// CPU time of sending.
    SendingCpu,
    /// Transmission by the sender's NIC.
    SendingNic,
    /// Reception by the sender's NIC.
    SendingNicInbound,
    /// Bytes of the link from sender to receiver.
    Link,
    /// Bytes of the link from receiver to sender.
    LinkBackward,
    /// Reception by the receiver's NIC.
    ReceivingNic,
    /// Transmission by the receiver's NIC.
    ReceivingNicOutbound,
    /// CPU time of receiving.
    ReceivingCpu,
    /// Processing units of the sender's NIC that serve its connections.
    SendingUnits,
    /// Processing units of the receiver's NIC that serve its connections.
    ReceivingUnits,
    /// Payloads of a queue pair that the NIC fetches from memory at the same time.
    PayloadFetches,
    /// Message rate of the sender's whole NIC, for any number of connections.
    SendingCeiling,
    /// Message rate of the receiver's whole NIC, for any number of connections.
    ReceivingCeiling,
    /// Number of READs that a queue pair can have in flight.
    ReadsInFlight,
    /// Receive queue that several queue pairs share.
    Srq,
    /// Thread that reposts the receives of a shared queue.
    RepostThread,
    /// Atomic operations of a queue pair.
    Atomics,
    /// Atomic operations on one address.
    AtomicsOnAddress,
}

impl BoundKind {
    /// Returns the name of the bottleneck.
    pub const fn name(self) -> &'static str {
        match self {
            BoundKind::RoundTrip => "round trip",
            BoundKind::Rounds => "rounds of requests",
            BoundKind::SlowAccesses => "slow accesses",
            BoundKind::PayloadFetches => "payload fetches",
            BoundKind::ReceiverSpace => "receiver's space",
            BoundKind::Fence => "fence",
            BoundKind::SendingCpu => "sending CPU",
            BoundKind::SendingNic => "sending NIC",
            BoundKind::SendingNicInbound => "sending NIC, inbound",
            BoundKind::Link => "link",
            BoundKind::LinkBackward => "link, backward",
            BoundKind::ReceivingNic => "receiving NIC",
            BoundKind::ReceivingNicOutbound => "receiving NIC, outbound",
            BoundKind::ReceivingCpu => "receiving CPU",
            BoundKind::SendingUnits => "sending NIC's units",
            BoundKind::ReceivingUnits => "receiving NIC's units",
            BoundKind::SendingCeiling => "sending NIC's ceiling",
            BoundKind::ReceivingCeiling => "receiving NIC's ceiling",
            BoundKind::ReadsInFlight => "READs in flight",
            BoundKind::Srq => "shared receive queue",
            BoundKind::RepostThread => "reposting thread",
            BoundKind::Atomics => "atomics",
            BoundKind::AtomicsOnAddress => "atomics on one address",
        }
    }

    pub(super) const fn is_link(self) -> bool {
        matches!(self, BoundKind::Link | BoundKind::LinkBackward)
    }

    /// Returns whether the bound is the transmission or reception of a NIC. The time of such a bound includes the time
    /// of the bytes on the link.
    pub(super) const fn is_nic(self) -> bool {
        matches!(
            self,
            BoundKind::SendingNic
                | BoundKind::SendingNicInbound
                | BoundKind::ReceivingNic
                | BoundKind::ReceivingNicOutbound
        )
    }
}

impl std::fmt::Display for BoundKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// Bound as a linear form of the parameters, without values of the parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Form {
    pub(crate) kind: BoundKind,
    pub(crate) cost: Cost,
}

/// Bound on throughput.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// The limiting resource.
    pub kind: BoundKind,
    /// Time in nanoseconds that the limiting resource needs per message, over all connections and directions.
    pub ns_per_message: f64,
}

impl Bound {
    /// Returns the maximum number of messages per second under this bound.
    pub fn messages_per_s(&self) -> f64 {
        1e9 / self.ns_per_message
    }
}
