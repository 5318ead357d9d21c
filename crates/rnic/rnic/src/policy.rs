//! Choices that the IBTA specification leaves to the device, as values.

/// Maximum time in nanoseconds for which the device holds a due acknowledgement back over UDP.
pub const ACK_HOLD_NS: u64 = 20_000;

/// Choices of a device that IBTA leaves open.
///
/// The default suits a link of UDP datagrams, whose packets arrive in the receive buffer of a socket. A lossless link,
/// or a device that behaves like hardware, uses other values. [`Policy::UNBOUNDED`] turns off every mechanism that
/// exists for UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Maximum time in nanoseconds for which the device holds back a due acknowledgement of a WRITE without immediate
    /// data.
    pub ack_hold_ns: u64,
    /// Maximum number of packets between two acknowledgement requests of a requester. The last packet of each message
    /// also requests an acknowledgement.
    pub ack_request_packets: u32,
    /// Maximum bytes in flight to one destination, and maximum bytes of READ responses in flight to this device. Bytes
    /// are counted as the kernel counts them; [`u64::MAX`] means unlimited.
    pub max_window_bytes: u64,
    /// Number of READ pieces that fill the window for responses; 0 means that the requester requests each READ as a
    /// whole.
    pub read_pieces_per_window: u64,
    /// Minimum early timeout in nanoseconds. After the early timeout, the requester retransmits before the timeout that
    /// the program has configured. `None` turns off early retransmission.
    pub least_early_timeout_ns: Option<u64>,
    /// Whether the device ignores posted work requests until [`ring_sends`](crate::Rnic::ring_sends),
    /// [`ring_receives`](crate::Rnic::ring_receives) or [`ring_shared_receives`](crate::Rnic::ring_shared_receives) is
    /// called. A driver sets this if it decides when the device learns of a post.
    pub waits_for_doorbells: bool,
    /// Whether sends of UC and UD complete when the driver calls [`sends_departed`](crate::Rnic::sends_departed).
    /// Otherwise they complete when the driver takes their packets. A driver sets this if it decides when packets have
    /// left.
    pub waits_for_departures: bool,
}

impl Policy {
    /// Policy for UDP datagrams.
    pub const DATAGRAMS: Policy = Policy {
        ack_hold_ns: ACK_HOLD_NS,
        // This value lets the window move within long messages.
        ack_request_packets: 16,
        // This is enough for any round trip over loopback, and so little that the data stays in a cache.
        max_window_bytes: 1 << 20,
        read_pieces_per_window: 4,
        least_early_timeout_ns: Some(500_000),
        waits_for_doorbells: false,
        waits_for_departures: false,
    };

    /// Policy without windows, READ pieces, early retransmission and held acknowledgements.
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
