//! Choices that the specification leaves to the device, as values.

/// Longest time, in nanoseconds, that a due acknowledgement is held back over UDP.
pub const ACK_HOLD_NS: u64 = 20_000;

/// Choices of a device that IBTA leaves open.
///
/// The default suits a link of UDP datagrams, whose packets land in the receive buffer of a socket. A lossless link,
/// or a device that behaves like hardware, uses other values. [`Policy::UNBOUNDED`] disables every mechanism that
/// exists for UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Longest time that a due acknowledgement of a WRITE without immediate data is held back, in nanoseconds.
    pub ack_hold_ns: u64,
    /// Maximum packets between two acknowledgement requests of a requester. The end of each message also requests
    /// one.
    pub ack_request_packets: u32,
    /// Maximum bytes in flight to one destination, and of READ responses to this device, as the kernel counts bytes;
    /// [`u64::MAX`] means unlimited.
    pub max_window_bytes: u64,
    /// Number of READ pieces that fill the window for responses; 0 requests each READ as a whole.
    pub read_pieces_per_window: u64,
    /// Minimum early timeout in nanoseconds, after which the requester sends again unasked; `None` waits for the
    /// timeout configured on the queue pair.
    pub least_early_timeout_ns: Option<u64>,
    /// Whether work requests stay unseen until [`ring_sends`](crate::Rnic::ring_sends),
    /// [`ring_receives`](crate::Rnic::ring_receives) or [`ring_shared_receives`](crate::Rnic::ring_shared_receives).
    /// For a driver that decides when the device learns of a post.
    pub waits_for_doorbells: bool,
    /// Whether sends of UC and UD complete with [`sends_departed`](crate::Rnic::sends_departed), instead of when the
    /// driver takes their packets. For a driver that decides when packets have left.
    pub waits_for_departures: bool,
}

impl Policy {
    /// Policy for UDP datagrams.
    pub const DATAGRAMS: Policy = Policy {
        ack_hold_ns: ACK_HOLD_NS,
        // So that the window moves within long messages.
        ack_request_packets: 16,
        // Enough for any loopback round trip, and little enough to stay in a cache.
        max_window_bytes: 1 << 20,
        read_pieces_per_window: 4,
        least_early_timeout_ns: Some(500_000),
        waits_for_doorbells: false,
        waits_for_departures: false,
    };

    /// Policy without windows, pieces of READs, early retransmission and held acknowledgements.
    pub const UNBOUNDED: Policy = Policy {
        ack_hold_ns: 0,
        ack_request_packets: u32::MAX,
        max_window_bytes: u64::MAX,
        read_pieces_per_window: 0,
        least_early_timeout_ns: None,
        waits_for_doorbells: false,
        waits_for_departures: false,
    };
}

impl Default for Policy {
    fn default() -> Self {
        Self::DATAGRAMS
    }
}
