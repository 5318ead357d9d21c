//! Choices that the IBTA specification leaves to the device, as values.

/// Value of [`Policy::ack_hold_ns`] for a link of UDP datagrams.
pub const ACK_HOLD_NS: u64 = 20_000;

/// Choices of a device that IBTA leaves open.
///
/// The default suits a link of UDP datagrams, whose packets arrive in the receive buffer of a socket. A lossless link,
/// or a device that behaves like hardware, uses other values. [`Policy::UNBOUNDED`] turns off every mechanism that
/// exists for UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Maximum time in nanoseconds for which the device holds back a due acknowledgement. One acknowledgement then
    /// covers all requests that arrive meanwhile. The device does not hold back an acknowledgement that must leave
    /// before the program sees the completion of a receive ([`completions_await_acks`](Self::completions_await_acks)).
    pub ack_hold_ns: u64,
    /// Whether the acknowledgement of a message must leave before the program sees the completion of its receive. A
    /// software device needs this order, since it ends together with its program. A device of hardware sends the
    /// acknowledgement even after the program has ended.
    pub completions_await_acks: bool,
    /// Whether a due acknowledgement waits while its queue pair has a request to send, and leaves after that request.
    /// It then covers all requests of the peer that arrive meanwhile.
    pub acks_follow_requests: bool,
    /// Maximum number of packets between two acknowledgement requests of a requester. The last packet of each message
    /// also requests an acknowledgement.
    pub ack_request_packets: u32,
    /// Maximum bytes in flight to one destination, and maximum bytes of READ responses in flight to this device. Each
    /// datagram counts with the memory that the kernel uses for it. [`u64::MAX`] means unlimited.
    pub max_window_bytes: u64,
    /// Number of READ pieces whose responses together fill the initial window for responses. The requester splits long
    /// READs into such pieces. With 0, it never splits a READ.
    pub read_pieces_per_window: u64,
    /// Minimum of the early timeout in nanoseconds. The early timeout adapts to the round trip time. When it expires,
    /// the requester retransmits, although the timeout that the program has configured has not expired. `None` turns
    /// off early retransmission.
    pub least_early_timeout_ns: Option<u64>,
    /// Whether the device ignores posted work requests until the driver calls
    /// [`ring_sends`](crate::Rnic::ring_sends), [`ring_receives`](crate::Rnic::ring_receives) or
    /// [`ring_shared_receives`](crate::Rnic::ring_shared_receives). For drivers that simulate the time at which a
    /// doorbell reaches the device.
    pub waits_for_doorbells: bool,
    /// Whether sends of UC and UD complete when the driver calls [`sends_departed`](crate::Rnic::sends_departed).
    /// Otherwise they complete when the driver takes their packets. For drivers that simulate the time at which packets
    /// leave.
    pub waits_for_departures: bool,
}

impl Policy {
    /// Policy for UDP datagrams.
    pub const DATAGRAMS: Policy = Policy {
        ack_hold_ns: ACK_HOLD_NS,
        completions_await_acks: true,
        acks_follow_requests: false,
        // Low enough that acknowledgements make room in the window before a long message ends.
        ack_request_packets: 16,
        // Enough for the full rate at any round trip time over loopback, and so little that the data stays in the cache
        // of the CPU.
        max_window_bytes: 1 << 20,
        read_pieces_per_window: 4,
        least_early_timeout_ns: Some(500_000),
        waits_for_doorbells: false,
        waits_for_departures: false,
    };

    /// Policy without windows, READ pieces, early retransmission and held acknowledgements.
    pub const UNBOUNDED: Policy = Policy {
        ack_hold_ns: 0,
        completions_await_acks: true,
        acks_follow_requests: false,
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
