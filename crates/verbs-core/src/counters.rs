//! Counters, under the names that vendors use where they have one.

macro_rules! counters {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: u64,)*
        }

        impl $name {
            /// Names, in the order of [`values`](Self::values).
            pub const NAMES: &'static [&'static str] = &[$(stringify!($field)),*];

            /// Values, in the order of [`NAMES`](Self::NAMES).
            pub fn values(&self) -> [u64; Self::NAMES.len()] {
                [$(self.$field),*]
            }

            /// What was counted since `earlier`.
            pub fn since(&self, earlier: &Self) -> Self {
                Self { $($field: self.$field.wrapping_sub(earlier.$field),)* }
            }

            /// Both together.
            pub fn plus(&self, other: &Self) -> Self {
                Self { $($field: self.$field.wrapping_add(other.$field),)* }
            }
        }
    };
}

counters! {
    /// What one engine counted. Bytes are those of Ethernet frames without FCS, as vendors count.
    Counters {
        /// RDMA packets sent, all kinds, those to multicast groups included.
        tx_vport_rdma_unicast_packets,
        /// Their bytes.
        tx_vport_rdma_unicast_bytes,
        /// RDMA packets received, all kinds, those to multicast groups included, also those dropped later.
        rx_vport_rdma_unicast_packets,
        /// Their bytes.
        rx_vport_rdma_unicast_bytes,
        /// Request packets (SEND, WRITE, READ request, atomics) sent the first time.
        tx_data_packets,
        /// Their bytes.
        tx_data_bytes,
        /// Zero-length SENDs with immediate data among them: words that carry no message, such as credits of connections.
        tx_word_packets,
        /// Their bytes.
        tx_word_bytes,
        /// ACK and NAK packets sent.
        tx_ack_packets,
        /// Their bytes.
        tx_ack_bytes,
        /// READ and atomic responses sent.
        tx_response_packets,
        /// Their bytes.
        tx_response_bytes,
        /// Request packets sent again.
        tx_retransmitted_packets,
        /// Their bytes.
        tx_retransmitted_bytes,
        /// Requests that arrived ahead of the expected sequence number.
        out_of_sequence,
        /// NAK "PSN sequence error" received.
        packet_seq_err,
        /// RNR NAKs sent.
        rnr_nak_sent,
        /// RNR NAKs received.
        rnr_nak_received,
        /// Work requests that ended because RNR retries were spent.
        rnr_nak_retry_err,
        /// The configured acknowledgement timeout expired.
        local_ack_timeout_err,
        /// The adaptive early timeout expired.
        early_retransmit,
        /// Responses that showed an earlier response to be lost.
        implied_nak_seq_err,
        /// Duplicate requests received.
        duplicate_request,
        /// Packets dropped because their ICRC was wrong.
        rx_icrc_encapsulated,
        /// Packets dropped because they are not RoCE v2 packets of a known form.
        rx_malformed,
        /// Packets dropped because no queue pair has the number, or it is of another transport.
        rx_unknown_qp,
        /// Packets dropped because their source is not the queue pair's peer.
        rx_foreign_source,
        /// Packets dropped because the state does not take them.
        rx_wrong_state,
        /// Packets dropped because of their partition key or Q_Key.
        rx_key_violation,
        /// UC and UD messages dropped: no receive posted, too long, or a gap.
        rx_dropped_messages,
        /// Responses that answer nothing that is outstanding.
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
        /// Atomic requests carried out.
        rx_atomic_requests,
    }
}

counters! {
    /// Packets that a link lost or could not carry: the RNIC never sees them, or takes them for sent. Further counters show
    /// the path of packets that have two, and the effects of injected faults.
    LinkCounters {
        /// Messages dropped because the receive buffer was full. A run that the kernel held together
        /// counts as one, and what was dropped is known only once something is received afterwards.
        rx_overflow,
        /// Messages dropped because they were longer than any packet.
        rx_truncated,
        /// Packets not sent because they exceed the MTU of the interface or path.
        tx_oversize,
        /// Packets not sent because no way leads to their destination, or it is forbidden.
        tx_unreachable,
        /// Packets that a peer's host reported to have refused, such as for a closed port.
        tx_refused,
        /// Packets dropped because the memory shared with their destination was full.
        tx_ring_full,
        /// How often a device of this machine was asked for shared memory and did not share it.
        shared_memory_refused,
        /// Packets sent over UDP.
        tx_udp_packets,
        /// Packets sent through memory shared with their destination.
        tx_shared_memory_packets,
        /// Packets received through memory shared with their sender.
        rx_shared_memory_packets,
        /// Received packets dropped by fault injection.
        fault_dropped,
        /// Received packets that fault injection passed on twice.
        fault_duplicated,
        /// Received packets that fault injection held back until later ones had passed.
        fault_reordered,
        /// Received packets in which fault injection flipped a bit. Links without an ICRC drop them.
        fault_corrupted,
        /// Received packets that fault injection delayed, additional copies included.
        fault_delayed,
    }
}

/// What a queue pair counted. Packets are counted once per transmission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCounters {
    /// Request packets sent the first time.
    pub tx_data_packets: u64,
    /// Request packets sent again.
    pub tx_retransmitted_packets: u64,
    /// ACK and NAK packets sent.
    pub tx_ack_packets: u64,
    /// READ and atomic responses sent.
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
