//! Counters of the UDP link.

/// Counters of a UDP link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpCounters {
    /// Datagrams that the kernel accepted.
    pub datagrams_sent: u64,
    /// UDP payload bytes of the datagrams that the kernel accepted.
    pub bytes_sent: u64,
    /// System calls for sending, whether they succeeded or not.
    pub send_calls: u64,
    /// System calls for sending that failed because the send buffer was full.
    pub send_full: u64,
    /// Datagrams that the kernel passed to the link.
    pub datagrams_received: u64,
    /// UDP payload bytes of the datagrams that the kernel passed to the link.
    pub bytes_received: u64,
    /// System calls for receiving, whether they succeeded or not.
    pub receive_calls: u64,
    /// Outbound packets dropped because they exceed the MTU.
    pub oversize: u64,
    /// Outbound packets dropped because the kernel has no route to their destination, or forbids sending.
    pub unreachable: u64,
    /// Errors that a peer's host reported about earlier datagrams, such as a closed port.
    pub refused: u64,
    /// Messages dropped because they were longer than UDP allows.
    pub truncated: u64,
    /// Messages that the kernel dropped because the receive buffer was full. A combined run counts as one message. The
    /// kernel reports the number with the next received message.
    pub receive_queue_overflows: u64,
}
