//! Common counters of all devices, and the vendors' names for these counters.

use std::collections::BTreeMap;

/// Place from which a counter is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Set {
    /// A file that a software RNIC published.
    Published,
    /// Output of `ethtool -S` for the device's network interface.
    Ethtool,
    /// Directory `hw_counters` of the kernel. The names depend on the driver.
    Hardware,
    /// Directory `counters` of the kernel. The names are the same for all devices (IBTA 16.1.3.5 and 16.1.4.11).
    Port,
    /// Files of the kernel with the state of a port: `state_id`, `physical_state_id`, `rate_bytes_per_second`. These
    /// are levels, not counters.
    State,
}

impl Set {
    /// Returns the name of the place for output.
    pub const fn name(self) -> &'static str {
        match self {
            Set::Published => "published",
            Set::Ethtool => "ethtool",
            Set::Hardware => "hw_counters",
            Set::Port => "counters",
            Set::State => "state",
        }
    }
}

/// Identity of a vendor's counter: its place and its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// Place of the counter.
    pub set: Set,
    /// Name of the counter in this place.
    pub name: String,
}

impl Name {
    /// Creates the identity of the counter `name` in the place `set`.
    pub fn new(set: Set, name: impl Into<String>) -> Self {
        Self { set, name: name.into() }
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.set.name(), self.name)
    }
}

/// Values of a device under the names of its vendor. Counters that the device lacks are absent.
pub type Raw = BTreeMap<Name, u64>;

/// A counter with the same meaning for all devices. Doorbell shows it for each device that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Common {
    /// RDMA bytes transmitted.
    TxBytes,
    /// RDMA packets transmitted.
    TxPackets,
    /// Operations that the device requested of peers.
    TxOperations,
    /// RDMA bytes received.
    RxBytes,
    /// RDMA packets received.
    RxPackets,
    /// Operations that peers requested of the device.
    RxOperations,
    /// Retransmitted packets or retransmission events, depending on the vendor.
    Retransmissions,
    /// RNR NAKs sent.
    RnrSent,
    /// RNR NAKs received.
    RnrReceived,
    /// Packets that arrived with a sequence number above the expected one.
    OutOfSequence,
    /// Congestion notification packets sent.
    CnpSent,
    /// Congestion notification packets received.
    CnpReceived,
}

/// Number of common counters.
pub const COMMON: usize = Common::ALL.len();

impl Common {
    /// All common counters, in the order of output.
    pub const ALL: [Common; 12] = [
        Common::TxBytes,
        Common::TxPackets,
        Common::TxOperations,
        Common::RxBytes,
        Common::RxPackets,
        Common::RxOperations,
        Common::Retransmissions,
        Common::RnrSent,
        Common::RnrReceived,
        Common::OutOfSequence,
        Common::CnpSent,
        Common::CnpReceived,
    ];

    /// Returns the name of the counter in JSON. The Prometheus name has an additional prefix and suffix.
    pub const fn name(self) -> &'static str {
        match self {
            Common::TxBytes => "tx_bytes",
            Common::TxPackets => "tx_packets",
            Common::TxOperations => "tx_operations",
            Common::RxBytes => "rx_bytes",
            Common::RxPackets => "rx_packets",
            Common::RxOperations => "rx_operations",
            Common::Retransmissions => "retransmissions",
            Common::RnrSent => "rnr_sent",
            Common::RnrReceived => "rnr_received",
            Common::OutOfSequence => "out_of_sequence",
            Common::CnpSent => "cnp_sent",
            Common::CnpReceived => "cnp_received",
        }
    }

    /// Returns a description of the counter for users.
    pub const fn description(self) -> &'static str {
        match self {
            Common::TxBytes => "Bytes of RDMA packets transmitted",
            Common::TxPackets => "RDMA packets transmitted",
            Common::TxOperations => "RDMA operations requested of peers",
            Common::RxBytes => "Bytes of RDMA packets received",
            Common::RxPackets => "RDMA packets received",
            Common::RxOperations => "RDMA operations requested by peers",
            Common::Retransmissions => "Retransmitted packets, or retransmission events on devices that count those",
            Common::RnrSent => "Receiver-not-ready NAKs sent",
            Common::RnrReceived => "Receiver-not-ready NAKs received",
            Common::OutOfSequence => "Packets received ahead of the expected sequence number",
            Common::CnpSent => "Congestion notification packets sent",
            Common::CnpReceived => "Congestion notification packets received",
        }
    }

    /// Returns the first rule for this counter in [`TABLE`] that applies to the device with the values `raw`.
    pub fn rule(self, raw: &Raw) -> Option<&'static Rule> {
        TABLE.iter().find(|rule| rule.common == self && rule.present(raw).next().is_some())
    }

    /// Returns the value of the common counter in its unit: the scaled sum of the vendor's counters of
    /// [`rule`](Self::rule).
    pub fn total(self, raw: &Raw) -> Option<u64> {
        let rule = self.rule(raw)?;
        let sum = rule.present(raw).fold(0, |sum: u64, (_, value)| sum.saturating_add(value));
        Some(sum.saturating_mul(rule.scale))
    }
}

/// Rule that computes a common counter from counters of a vendor.
#[derive(Debug)]
pub struct Rule {
    /// Common counter that the rule computes.
    pub common: Common,
    /// Place of the vendor's counters.
    pub set: Set,
    /// Names of the vendor's counters. The values of all counters that the device has are added.
    pub names: &'static [&'static str],
    /// Counter that a device must have for the rule to apply. This counter distinguishes drivers whose other counters
    /// have the same names.
    pub only_with: Option<&'static str>,
    /// Factor that converts the vendor's unit to the unit of the common counter.
    pub scale: u64,
    /// Exact meaning of the vendor's counters.
    pub counts: &'static str,
}

impl Rule {
    /// Returns the counters of this rule that the device has, with their values.
    pub fn present<'a>(&'a self, raw: &'a Raw) -> impl Iterator<Item = (&'a Name, u64)> {
        let holds = self.only_with.is_none_or(|name| raw.contains_key(&Name::new(self.set, name)));
        // A device has some dozens of counters, so the linear search is fast enough.
        raw.iter()
            .filter(move |(name, _)| holds && name.set == self.set && self.names.contains(&name.name.as_str()))
            .map(|(name, &value)| (name, value))
    }

    const fn only_with(mut self, name: &'static str) -> Self {
        self.only_with = Some(name);
        self
    }
}

const fn rule(common: Common, set: Set, names: &'static [&'static str], counts: &'static str) -> Rule {
    Rule { common, set, names, only_with: None, scale: 1, counts }
}

const fn words(common: Common, name: &'static [&'static str]) -> Rule {
    let counts = "4-octet words (IBTA 16.1.3.5), converted to bytes; on InfiniBand all traffic of the port";
    Rule { common, set: Set::Port, names: name, only_with: None, scale: 4, counts }
}

const FRAMES: &str = "bytes of Ethernet frames without FCS, only RDMA unicast";
const IP: &str = "bytes of IP packets, without Ethernet header";
const ROCE_ONLY: &str = "only bytes of RoCE frames";
const FUNCTION: &str = "of the RDMA function";
const UNICAST: &str = "unicast of the RDMA function";
const SEGMENTS: &str = "TCP segments of all offloaded connections";
const PACKETS: &str = "packets";
const PORT_PACKETS: &str = "packets of the port, including packets with errors";
const RNR: &str = "RNR NAKs";
const NO_RECEIVE: &str = "packets without a posted receive; on RC, each causes an RNR NAK";
const REQUESTS: &str = "requests";
const WITHOUT_SENDS: &str = "WRITEs, READs and atomics; SENDs are not counted";
const AGAIN: &str = "retransmitted packets";
const OCCASIONS: &str = "timeouts, sequence NAKs and missing responses: events, not packets";

/// Rules for each common counter, in order of preference. The table covers these drivers:
///
/// - mlx5 (q counters of adapters and of representors, and statistics of its network interface),
/// - mlx4, bnxt_re, irdma (names of three generations), hns, efa, mana,
/// - erdma (names inside and outside of the kernel tree), ionic, cxgb4, rxe,
/// - the software RNIC.
///
/// The table also covers the counters that every port of the kernel has. The drivers qedr, ocrdma and siw have no
/// counters of their own.
pub const TABLE: &[Rule] = {
    use Common as C;
    use Set::{Ethtool, Hardware, Port, Published};
    &[
        rule(C::TxBytes, Published, &["tx_vport_rdma_unicast_bytes"], FRAMES),
        rule(C::TxBytes, Ethtool, &["tx_vport_rdma_unicast_bytes"], FRAMES),
        rule(C::TxBytes, Hardware, &["tx_roce_only_bytes"], ROCE_ONLY),
        rule(C::TxBytes, Hardware, &["ip4OutOctets", "ip6OutOctets"], IP),
        rule(C::TxBytes, Hardware, &["tx_bytes"], FUNCTION),
        rule(C::TxBytes, Hardware, &["tx_bytes_cnt"], FUNCTION),
        rule(C::TxBytes, Hardware, &["hw_tx_bytes_cnt"], FUNCTION),
        rule(C::TxBytes, Hardware, &["tx_rdma_ucast_bytes"], UNICAST),
        words(C::TxBytes, &["port_xmit_data"]),
        rule(C::TxPackets, Published, &["tx_vport_rdma_unicast_packets"], PACKETS),
        rule(C::TxPackets, Ethtool, &["tx_vport_rdma_unicast_packets"], PACKETS),
        rule(C::TxPackets, Hardware, &["tx_roce_only_pkts"], PACKETS),
        rule(C::TxPackets, Hardware, &["ip4OutPkts", "ip6OutPkts"], PACKETS),
        rule(C::TxPackets, Hardware, &["tx_pkts"], FUNCTION),
        rule(C::TxPackets, Hardware, &["sent_pkts"], PACKETS),
        rule(C::TxPackets, Hardware, &["tx_pkt"], PACKETS),
        rule(C::TxPackets, Hardware, &["tx_packets"], PACKETS),
        rule(C::TxPackets, Hardware, &["tx_packets_cnt"], PACKETS),
        rule(C::TxPackets, Hardware, &["hw_tx_packets_cnt"], PACKETS),
        rule(C::TxPackets, Hardware, &["tx_rdma_ucast_pkts"], UNICAST),
        rule(C::TxPackets, Hardware, &["ip4OutSegs", "ip6OutSegs"], SEGMENTS),
        rule(C::TxPackets, Port, &["port_xmit_packets"], PORT_PACKETS),
        rule(C::TxOperations, Hardware, &["tx_send_req", "tx_write_req", "tx_read_req", "tx_atomic_req"], REQUESTS),
        rule(
            C::TxOperations,
            Hardware,
            &["OutRdmaSends", "OutRdmaWrites", "OutRdmaReads", "Tx atomics", "Tx ATS"],
            REQUESTS,
        ),
        rule(C::TxOperations, Hardware, &["iwOutRdmaSends", "iwOutRdmaWrites", "iwOutRdmaReads"], REQUESTS),
        rule(C::TxOperations, Hardware, &["rdma_sends"], "SENDs"),
        rule(C::TxOperations, Hardware, &["send_wrs", "rdma_read_wrs", "rdma_write_wrs"], REQUESTS),
        rule(C::TxOperations, Hardware, &["tx_reqs_cnt"], REQUESTS),
        rule(C::TxOperations, Hardware, &["hw_tx_reqs_cnt"], REQUESTS),
        rule(C::RxBytes, Published, &["rx_vport_rdma_unicast_bytes"], FRAMES),
        rule(C::RxBytes, Ethtool, &["rx_vport_rdma_unicast_bytes"], FRAMES),
        rule(C::RxBytes, Hardware, &["rx_roce_only_bytes"], ROCE_ONLY),
        rule(C::RxBytes, Hardware, &["ip4InOctets", "ip6InOctets"], IP),
        rule(C::RxBytes, Hardware, &["rx_bytes"], FUNCTION),
        rule(C::RxBytes, Hardware, &["rx_bytes_cnt"], FUNCTION),
        rule(C::RxBytes, Hardware, &["hw_rx_bytes_cnt"], FUNCTION),
        rule(C::RxBytes, Hardware, &["rx_rdma_ucast_bytes"], UNICAST),
        words(C::RxBytes, &["port_rcv_data"]),
        rule(C::RxPackets, Published, &["rx_vport_rdma_unicast_packets"], PACKETS),
        rule(C::RxPackets, Ethtool, &["rx_vport_rdma_unicast_packets"], PACKETS),
        rule(C::RxPackets, Hardware, &["rx_roce_only_pkts"], PACKETS),
        rule(C::RxPackets, Hardware, &["ip4InPkts", "ip6InPkts"], PACKETS),
        rule(C::RxPackets, Hardware, &["rx_pkts"], FUNCTION),
        rule(C::RxPackets, Hardware, &["rcvd_pkts"], PACKETS),
        rule(C::RxPackets, Hardware, &["rx_pkt"], PACKETS),
        rule(C::RxPackets, Hardware, &["rx_packets"], PACKETS),
        rule(C::RxPackets, Hardware, &["rx_packets_cnt"], PACKETS),
        rule(C::RxPackets, Hardware, &["hw_rx_packets_cnt"], PACKETS),
        rule(C::RxPackets, Hardware, &["rx_rdma_ucast_pkts"], UNICAST),
        rule(C::RxPackets, Hardware, &["ip4InSegs", "ip6InSegs"], SEGMENTS),
        rule(C::RxPackets, Port, &["port_rcv_packets"], PORT_PACKETS),
        rule(
            C::RxOperations,
            Published,
            &["rx_send_requests", "rx_write_requests", "rx_read_requests", "rx_atomic_requests"],
            REQUESTS,
        ),
        rule(C::RxOperations, Hardware, &["rx_send_req", "rx_write_req", "rx_read_req", "rx_atomic_req"], REQUESTS),
        rule(
            C::RxOperations,
            Hardware,
            &["InRdmaSends", "InRdmaWrites", "InRdmaReads", "Rx atomics", "Rx ATS"],
            REQUESTS,
        ),
        rule(C::RxOperations, Hardware, &["iwInRdmaSends", "iwInRdmaWrites", "iwInRdmaReads"], REQUESTS),
        rule(C::RxOperations, Hardware, &["rdma_recvs"], "SENDs"),
        // mana uses the same names as mlx5, but also counts SENDs. The rule for mana comes first, since the first rule
        // that applies is used.
        rule(C::RxOperations, Hardware, &["rx_send_requests", "rx_write_requests", "rx_read_requests"], REQUESTS)
            .only_with("rx_send_requests"),
        rule(
            C::RxOperations,
            Hardware,
            &["rx_write_requests", "rx_read_requests", "rx_atomic_requests"],
            WITHOUT_SENDS,
        ),
        rule(
            C::RxOperations,
            Hardware,
            &["vport_rx_write_requests", "vport_rx_read_requests", "vport_rx_atomic_requests"],
            WITHOUT_SENDS,
        ),
        rule(C::RxOperations, Hardware, &["recv_wrs"], "receives that completed"),
        rule(C::Retransmissions, Published, &["tx_retransmitted_packets"], "retransmitted request packets"),
        rule(C::Retransmissions, Hardware, &["completer_retry_err"], "restarts of the requester at an earlier packet"),
        rule(C::Retransmissions, Hardware, &["to_retransmits", "seq_err_naks_rcvd", "missing_resp"], OCCASIONS),
        rule(C::Retransmissions, Hardware, &["RetransSegs"], AGAIN),
        rule(C::Retransmissions, Hardware, &["tcpRetransSegs"], AGAIN),
        rule(
            C::Retransmissions,
            Hardware,
            &["local_ack_timeout_err", "packet_seq_err", "implied_nak_seq_err"],
            OCCASIONS,
        ),
        rule(
            C::Retransmissions,
            Hardware,
            &["vport_local_ack_timeout_err", "vport_packet_seq_err", "vport_implied_nak_seq_err"],
            OCCASIONS,
        ),
        rule(
            C::Retransmissions,
            Hardware,
            &["requester_timeout", "requester_oos_nak", "requester_implicit_nak"],
            OCCASIONS,
        ),
        rule(
            C::Retransmissions,
            Hardware,
            &["sq_num_to", "sq_num_oos"],
            "timeouts and sequence NAKs: events, not packets",
        ),
        rule(C::Retransmissions, Hardware, &["retrans_pkts"], AGAIN),
        rule(C::Retransmissions, Hardware, &["tx_rdma_retx_pkts"], AGAIN),
        rule(C::Retransmissions, Hardware, &["ip4RetransSegs", "ip6RetransSegs"], SEGMENTS),
        rule(C::RnrSent, Published, &["rnr_nak_sent"], RNR),
        rule(C::RnrSent, Hardware, &["send_rnr_err"], RNR),
        rule(C::RnrSent, Hardware, &["RNR sent"], RNR),
        rule(C::RnrSent, Hardware, &["responder_rnr_nak"], RNR),
        rule(C::RnrSent, Hardware, &["rq_num_rnr"], RNR),
        rule(C::RnrSent, Hardware, &["rx_out_of_buffer"], NO_RECEIVE),
        rule(C::RnrSent, Hardware, &["out_of_buffer"], NO_RECEIVE),
        rule(C::RnrSent, Hardware, &["vport_out_of_buffer"], NO_RECEIVE),
        rule(C::RnrReceived, Published, &["rnr_nak_received"], RNR),
        rule(C::RnrReceived, Hardware, &["rcvd_rnr_err"], RNR),
        rule(C::RnrReceived, Hardware, &["RNR received"], RNR),
        rule(C::RnrReceived, Hardware, &["rnr_naks_rcvd"], RNR),
        rule(C::RnrReceived, Hardware, &["rnr_nak_retry_err"], RNR),
        rule(C::RnrReceived, Hardware, &["vport_rnr_nak_retry_err"], RNR),
        rule(C::RnrReceived, Hardware, &["requester_rnr_nak"], RNR),
        rule(C::RnrReceived, Hardware, &["sq_num_rnr"], RNR),
        rule(C::OutOfSequence, Published, &["out_of_sequence"], PACKETS),
        rule(C::OutOfSequence, Hardware, &["out_of_sequence"], PACKETS),
        rule(C::OutOfSequence, Hardware, &["out_of_seq_request"], PACKETS),
        rule(C::OutOfSequence, Hardware, &["oos_drop_count"], PACKETS),
        rule(C::OutOfSequence, Hardware, &["Rcvd Out of order packets"], PACKETS),
        rule(C::OutOfSequence, Hardware, &["vport_out_of_sequence"], PACKETS),
        rule(C::OutOfSequence, Hardware, &["responder_oos"], PACKETS),
        rule(C::OutOfSequence, Hardware, &["rq_num_oos"], PACKETS),
        rule(C::OutOfSequence, Hardware, &["resp_rx_outouf_seq"], PACKETS),
        rule(C::CnpSent, Hardware, &["np_cnp_sent"], PACKETS),
        rule(C::CnpSent, Hardware, &["tx_cnp_pkts"], PACKETS),
        rule(C::CnpSent, Hardware, &["cnpSent"], PACKETS),
        rule(C::CnpSent, Hardware, &["tx_cnp_pkt"], PACKETS),
        rule(C::CnpSent, Hardware, &["sent_cnps"], PACKETS),
        rule(C::CnpSent, Hardware, &["tx_rdma_cnp_pkts"], PACKETS),
        rule(C::CnpReceived, Published, &["rx_cnp"], PACKETS),
        rule(C::CnpReceived, Hardware, &["rp_cnp_handled", "rp_cnp_ignored"], PACKETS),
        rule(C::CnpReceived, Hardware, &["rx_cnp_pkts"], PACKETS),
        rule(C::CnpReceived, Hardware, &["cnpHandled", "cnpIgnored"], PACKETS),
        rule(C::CnpReceived, Hardware, &["rx_cnp_pkt"], PACKETS),
        rule(C::CnpReceived, Hardware, &["received_cnps"], PACKETS),
        rule(C::CnpReceived, Hardware, &["rx_rdma_cnp_pkts"], PACKETS),
    ]
};

/// Counters of mlx5 that are 32 bits wide in the adapter. The driver does not extend them to 64 bits.
const MLX5_Q_COUNTERS: [&str; 22] = [
    "rx_write_requests",
    "rx_read_requests",
    "rx_atomic_requests",
    "rx_dct_connect",
    "out_of_buffer",
    "out_of_sequence",
    "duplicate_request",
    "rnr_nak_retry_err",
    "packet_seq_err",
    "implied_nak_seq_err",
    "local_ack_timeout_err",
    "resp_local_length_error",
    "resp_cqe_error",
    "req_cqe_error",
    "req_remote_invalid_request",
    "req_remote_access_errors",
    "resp_remote_access_errors",
    "roce_adp_retrans",
    "roce_adp_retrans_to",
    "roce_slow_restart",
    "roce_slow_restart_cnps",
    "roce_slow_restart_trans",
];

/// Returns the width of a counter in bits. The counter wraps after this number of bits.
pub fn bits(name: &Name, raw: &Raw) -> u32 {
    if name.set != Set::Hardware {
        return 64;
    }
    let plain = name.name.strip_prefix("vport_").unwrap_or(&name.name);
    // Diagnostic counters of mlx4 have 32 bits.
    if plain.starts_with("rq_num_") || plain.starts_with("sq_num_") {
        return 32;
    }
    // rxe and mana use some names of mlx5, but their counters have 64 bits.
    let has = |name: &str| raw.contains_key(&Name::new(Set::Hardware, name));
    let is_mlx5 = || {
        ["out_of_buffer", "vport_out_of_buffer", "local_ack_timeout_err", "vport_local_ack_timeout_err"]
            .into_iter()
            .any(has)
    };
    let is_shared = SHARED_WITH_MLX5.contains(&plain);
    if MLX5_Q_COUNTERS.contains(&plain) && (!is_shared || is_mlx5()) { 32 } else { 64 }
}

/// Counters of mlx5 whose names other drivers also use.
const SHARED_WITH_MLX5: [&str; 3] = ["duplicate_request", "rx_write_requests", "rx_read_requests"];

/// Returns whether the counter is a gauge: its value can decrease without a reset.
pub fn is_gauge(name: &Name) -> bool {
    let levels = ["active_", "watermark_", "db_fifo_register", "num_qps_congested", "current_rate"];
    name.set == Set::State || (name.set == Set::Hardware && levels.iter().any(|start| name.name.starts_with(start)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(values: &[(Set, &str, u64)]) -> Raw {
        values.iter().map(|&(set, name, value)| (Name::new(set, name), value)).collect()
    }

    #[test]
    fn common_counters_are_ordered_and_each_has_a_rule() {
        for (index, common) in Common::ALL.into_iter().enumerate() {
            assert_eq!(common as usize, index);
            assert!(TABLE.iter().any(|rule| rule.common == common), "{}", common.name());
        }
        let names: std::collections::HashSet<_> = Common::ALL.iter().map(|common| common.name()).collect();
        assert_eq!(names.len(), COMMON);
    }

    #[test]
    fn no_counter_means_two_things() {
        let mut seen = std::collections::HashMap::new();
        for rule in TABLE {
            assert!(!rule.names.is_empty() && rule.scale > 0 && !rule.counts.is_empty());
            assert!(rule.only_with.is_none_or(|name| rule.names.contains(&name)));
            for name in rule.names {
                // Two rules may use the same name only if they compute the same common counter, and the earlier rule
                // applies only to some devices (`only_with`).
                let before: Option<&Rule> = seen.insert((rule.set, *name), rule);
                let narrower = |before: &Rule| before.only_with.is_some() && before.common == rule.common;
                assert!(before.is_none_or(narrower), "{name} appears twice");
            }
        }
    }

    #[test]
    fn port_words_become_bytes_unless_a_better_counter_exists() {
        let mut values = raw(&[(Set::Port, "port_xmit_data", 250)]);
        assert_eq!(Common::TxBytes.total(&values), Some(1000));
        values.extend(raw(&[(Set::Ethtool, "tx_vport_rdma_unicast_bytes", 77)]));
        assert_eq!(Common::TxBytes.total(&values), Some(77));
        assert_eq!(Common::RxBytes.total(&values), None, "an absent counter must not count as zero");
        let words = raw(&[(Set::Port, "port_xmit_data", u64::MAX)]);
        assert_eq!(Common::TxBytes.total(&words), Some(u64::MAX), "not wrapped");
    }

    #[test]
    fn existing_parts_of_a_counter_are_summed() {
        let four = raw(&[(Set::Hardware, "ip4InOctets", 5)]);
        assert_eq!(Common::RxBytes.total(&four), Some(5));
        let both = raw(&[(Set::Hardware, "ip4InOctets", 5), (Set::Hardware, "ip6InOctets", 7)]);
        assert_eq!(Common::RxBytes.total(&both), Some(12));
    }
}
