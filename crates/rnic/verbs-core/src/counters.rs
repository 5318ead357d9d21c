//! Counters. A counter has the name that vendors use, if such a name exists.

macro_rules! counters {
    ($(#[$doc:meta])* $name:ident { $($(#[doc = $about:literal])* $field:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[doc = $about])* pub $field: u64,)*
        }

        impl $name {
            /// Names of the counters, in the order of [`values`](Self::values).
            pub const NAMES: &'static [&'static str] = &[$(stringify!($field)),*];

            /// Descriptions of the counters, in the order of [`NAMES`](Self::NAMES). Each begins with a space.
            pub const ABOUT: &'static [&'static str] = &[$(concat!($($about),*)),*];

            /// Returns the values, in the order of [`NAMES`](Self::NAMES).
            pub fn values(&self) -> [u64; Self::NAMES.len()] {
                [$(self.$field),*]
            }

            /// Returns how much each counter has grown since `earlier`.
            pub fn since(&self, earlier: &Self) -> Self {
                Self { $($field: self.$field.wrapping_sub(earlier.$field),)* }
            }

            /// Returns the sum of these counters and `other`.
            pub fn plus(&self, other: &Self) -> Self {
                Self { $($field: self.$field.wrapping_add(other.$field),)* }
            }
        }
    };
}

counters! {
    /// Counters of one engine. The byte counters count Ethernet frames without FCS, as those of vendors do.
    Counters {
        /// RDMA packets sent, all kinds, including packets to multicast groups.
        tx_vport_rdma_unicast_packets,
        /// Bytes of the packets in `tx_vport_rdma_unicast_packets`.
        tx_vport_rdma_unicast_bytes,
        /// RDMA packets received, all kinds, including packets to multicast groups and packets dropped later.
        rx_vport_rdma_unicast_packets,
        /// Bytes of the packets in `rx_vport_rdma_unicast_packets`.
        rx_vport_rdma_unicast_bytes,
        /// First transmissions of request packets (SEND, WRITE, READ request, atomics).
        tx_data_packets,
        /// Bytes of the packets in `tx_data_packets`.
        tx_data_bytes,
        /// First transmissions of zero-length SENDs with immediate data. `tx_data_packets` counts them too. Such a SEND
        /// carries no message of a program, but for example the credits of a connection.
        tx_word_packets,
        /// Bytes of the packets in `tx_word_packets`.
        tx_word_bytes,
        /// ACK and NAK packets sent.
        tx_ack_packets,
        /// Bytes of the packets in `tx_ack_packets`.
        tx_ack_bytes,
        /// READ and atomic response packets sent.
        tx_response_packets,
        /// Bytes of the packets in `tx_response_packets`.
        tx_response_bytes,
        /// Retransmitted request packets.
        tx_retransmitted_packets,
        /// Bytes of the packets in `tx_retransmitted_packets`.
        tx_retransmitted_bytes,
        /// Requests that arrived ahead of the expected sequence number.
        out_of_sequence,
        /// NAK "PSN sequence error" received.
        packet_seq_err,
        /// RNR NAKs sent.
        rnr_nak_sent,
        /// RNR NAKs received.
        rnr_nak_received,
        /// Work requests that failed because the RNR retries were exhausted.
        rnr_nak_retry_err,
        /// Expirations of the configured acknowledgement timeout.
        local_ack_timeout_err,
        /// Expirations of the adaptive early timeout.
        early_retransmit,
        /// Responses from which the requester inferred that an earlier response was lost.
        implied_nak_seq_err,
        /// Duplicate requests received.
        duplicate_request,
        /// Packets dropped because their ICRC was wrong.
        rx_icrc_encapsulated,
        /// Packets dropped because they are no RoCE v2 packets of a known form.
        rx_malformed,
        /// Packets dropped because no queue pair has the destination QPN, or because that queue pair has another
        /// transport.
        rx_unknown_qp,
        /// Packets dropped because their source is not the queue pair's peer.
        rx_foreign_source,
        /// Packets dropped because the state of the queue pair does not accept them.
        rx_wrong_state,
        /// Packets dropped because of their partition key or Q_Key.
        rx_key_violation,
        /// UC and UD messages dropped because no receive was posted, the message was too long, or one of its packets
        /// was missing.
        rx_dropped_messages,
        /// Responses that match no outstanding request.
        rx_unexpected_response,
        /// Congestion notification packets received.
        rx_cnp,
        /// NAK "invalid request" sent.
        resp_invalid_request,
        /// NAK "remote access error" sent.
        resp_remote_access_errors,
        /// NAK "remote operational error" sent.
        resp_remote_operational_errors,
        /// NAK "invalid request" received.
        req_remote_invalid_request,
        /// NAK "remote access error" received.
        req_remote_access_errors,
        /// NAK "remote operational error" received.
        req_remote_operational_errors,
        /// READ requests answered.
        rx_read_requests,
        /// WRITE messages received.
        rx_write_requests,
        /// SEND messages received.
        rx_send_requests,
        /// Atomic requests executed.
        rx_atomic_requests,
    }
}

counters! {
    /// Counters of a link. Most of them count packets that the link lost or did not send. The RNIC cannot count these
    /// packets, since it considers each packet that it has handed to the link as sent. Further counters tell packets
    /// over UDP from packets through shared memory, and show the effects of injected faults.
    LinkCounters {
        /// Datagrams that the kernel dropped because the receive buffer of the socket was full. Several datagrams that
        /// the kernel merged (UDP GRO) count as one. The kernel reports the drops only with the next datagram that it
        /// receives.
        rx_overflow,
        /// Received datagrams dropped because they were longer than the longest valid packet.
        rx_truncated,
        /// Packets not sent because they exceed the MTU of the interface or path.
        tx_oversize,
        /// Packets not sent because no route leads to their destination, or the route is forbidden.
        tx_unreachable,
        /// Packets that the host of the peer rejected, for example because the UDP port was closed.
        tx_refused,
        /// Packets dropped because the memory shared with the destination was full.
        tx_ring_full,
        /// Packets not sent because the port was down.
        tx_port_down,
        /// Received packets dropped because the port was down.
        rx_port_down,
        /// Failed attempts to share memory: another device of this machine declined, or this device could not offer
        /// shared memory.
        shared_memory_refused,
        /// Packets sent over UDP.
        tx_udp_packets,
        /// Packets sent through memory shared with the destination.
        tx_shared_memory_packets,
        /// Packets received through memory shared with the sender.
        rx_shared_memory_packets,
        /// Packets dropped by fault injection.
        fault_dropped,
        /// Packets that fault injection duplicated.
        fault_duplicated,
        /// Packets that fault injection delayed until later packets had passed.
        fault_reordered,
        /// Packets in which fault injection flipped a bit. A link without ICRC drops these packets.
        fault_corrupted,
        /// Packets that fault injection delayed by a fixed time, including delayed copies of duplicated packets.
        fault_delayed,
    }
}

/// Counters of a queue pair. Exactly one of the `tx_` counters counts each transmission of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCounters {
    /// First transmissions of request packets.
    pub tx_data_packets: u64,
    /// Retransmitted request packets.
    pub tx_retransmitted_packets: u64,
    /// ACK and NAK packets sent.
    pub tx_ack_packets: u64,
    /// READ and atomic response packets sent.
    pub tx_response_packets: u64,
    /// Packets received.
    pub rx_packets: u64,
    /// RNR NAKs received.
    pub rnr_nak_received: u64,
    /// RNR NAKs sent.
    pub rnr_nak_sent: u64,
    /// Duplicate requests received.
    pub duplicate_request: u64,
    /// Requests that arrived ahead of the expected sequence number.
    pub out_of_sequence: u64,
}
