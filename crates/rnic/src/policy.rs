//! What the specification leaves to the device, as values.

/// How long a due acknowledgement may be held back over UDP.
pub const ACK_HOLD_NS: u64 = 20_000;

/// What a device does where IBTA leaves it the choice.
///
/// The default suits a link of UDP datagrams, whose packets land in the receive buffer of a socket. A link that loses
/// nothing and a device with hardware's habits want other values: [`Policy::UNBOUNDED`] has none of what was made for
/// UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How long a due acknowledgement of a WRITE without immediate data may be held back, in nanoseconds.
    pub ack_hold_ns: u64,
    /// A requester asks for an acknowledgement at least once every so many packets, beside the end of each message.
    pub ack_request_packets: u32,
    /// The most that is in flight to one destination, and of READ responses to this device, in bytes as the kernel
    /// counts them; [`u64::MAX`] is no bound.
    pub max_window_bytes: u64,
    /// A READ is asked for in pieces, so many of which fill the window for responses; 0 asks for it as a whole.
    pub read_pieces_per_window: u64,
    /// The earliest that anything is sent again without being asked for, in nanoseconds; `None` waits for the
    /// timeout that the queue pair was configured with.
    pub least_early_timeout_ns: Option<u64>,
    /// Work requests stay unseen until [`ring_sends`](crate::Rnic::ring_sends),
    /// [`ring_receives`](crate::Rnic::ring_receives) or [`ring_shared_receives`](crate::Rnic::ring_shared_receives):
    /// for a driver that decides when the device learns of a post.
    pub waits_for_doorbells: bool,
    /// Sends of UC and UD complete with [`sends_departed`](crate::Rnic::sends_departed), not as soon as their packets are
    /// taken: for a driver that decides when they have left.
    pub waits_for_departures: bool,
}

impl Policy {
    /// For datagrams of UDP.
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

    /// Without windows, pieces of READs, early retransmission and held acknowledgements.
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
