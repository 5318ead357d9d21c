//! Metrics under the names of node_exporter's collector `infiniband`, for dashboards that exist.
//!
//! Names, labels and units are those of `collector/infiniband_linux.go` of node_exporter. A port without the kernel's
//! counters of traffic shows the [`Common`] ones, as newer versions of node_exporter do for EFA. The counters of
//! kernels before 4.5 (`legacy_*`) and `lifespan_seconds` are left out.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use crate::{Common, Kind, Name, Sample, Set};

/// Traffic of a port: name of the metric, name of the kernel's counter, factor to the unit, counter of all devices that
/// replaces an absent one, and help.
const TRAFFIC: [(&str, &str, u64, Common, &str); 4] = [
    ("port_data_received_bytes", "port_rcv_data", WORD, Common::RxBytes, "Bytes received"),
    ("port_data_transmitted_bytes", "port_xmit_data", WORD, Common::TxBytes, "Bytes transmitted"),
    (
        "port_packets_received",
        "port_rcv_packets",
        1,
        Common::RxPackets,
        "Packets received, including packets with errors",
    ),
    (
        "port_packets_transmitted",
        "port_xmit_packets",
        1,
        Common::TxPackets,
        "Packets transmitted, including packets with errors",
    ),
];

/// Bytes of a word, which the kernel's counters of data count (IBTA 16.1.3.5).
const WORD: u64 = 4;

/// State of a port: name of the metric and of the value in [`Set::State`], and help.
const STATE: [(&str, &str); 3] = [
    ("state_id", "State of the port: 1 down, 2 init, 3 armed, 4 active, 5 active deferred"),
    (
        "physical_state_id",
        "Physical state of the port: 1 sleep, 2 polling, 3 disabled, 4 training, 5 link up, 6 error recovery, 7 test",
    ),
    ("rate_bytes_per_second", "Rate of the link"),
];

/// Rows of a table of counters.
type Rows = &'static [(&'static str, &'static str, &'static str)];

/// Other counters by place: name of the metric, name of the kernel's counter, and help.
const COUNTERS: [(Set, Rows); 2] = [
    (
        Set::Port,
        &[
            (
                "excessive_buffer_overrun_errors",
                "excessive_buffer_overrun_errors",
                "Periods of flow control with a buffer overrun",
            ),
            ("link_downed", "link_downed", "Failed recoveries of the link, after which it went down"),
            ("link_error_recovery", "link_error_recovery", "Successful recoveries of the link from errors"),
            (
                "local_link_integrity_errors",
                "local_link_integrity_errors",
                "Times that local physical errors exceeded the threshold",
            ),
            (
                "multicast_packets_received",
                "multicast_rcv_packets",
                "Multicast packets received, including packets with errors",
            ),
            (
                "multicast_packets_transmitted",
                "multicast_xmit_packets",
                "Multicast packets transmitted, including packets with errors",
            ),
            (
                "port_constraint_errors_received",
                "port_rcv_constraint_errors",
                "Packets received and discarded because of a constraint",
            ),
            (
                "port_constraint_errors_transmitted",
                "port_xmit_constraint_errors",
                "Packets not transmitted because of a constraint",
            ),
            (
                "port_discards_received",
                "port_rcv_discards",
                "Received packets discarded because the port was down or congested",
            ),
            (
                "port_discards_transmitted",
                "port_xmit_discards",
                "Packets to transmit discarded because the port was down or congested",
            ),
            ("port_errors_received", "port_rcv_errors", "Packets received with an error"),
            (
                "port_receive_remote_physical_errors",
                "port_rcv_remote_physical_errors",
                "Packets received with the mark of a bad packet",
            ),
            (
                "port_receive_switch_relay_errors",
                "port_rcv_switch_relay_errors",
                "Packets that the switch could not forward",
            ),
            ("port_transmit_wait", "port_xmit_wait", "Ticks in which the port had data and sent none"),
            ("symbol_error", "symbol_error", "Minor errors of the link on its lanes"),
            (
                "unicast_packets_received",
                "unicast_rcv_packets",
                "Unicast packets received, including packets with errors",
            ),
            (
                "unicast_packets_transmitted",
                "unicast_xmit_packets",
                "Unicast packets transmitted, including packets with errors",
            ),
            ("vl15_dropped", "VL15_dropped", "Management packets dropped for lack of resources"),
        ],
    ),
    (
        Set::Hardware,
        &[
            ("duplicate_requests_packets", "duplicate_request", "Requests received again"),
            ("implied_nak_seq_errors", "implied_nak_seq_err", "ACKs beyond the expected PSN of a READ or its response"),
            ("local_ack_timeout_errors", "local_ack_timeout_err", "Timeouts of the requester for an ACK"),
            ("np_cnp_packets_sent", "np_cnp_sent", "CNPs sent for received packets with congestion marks"),
            (
                "np_ecn_marked_roce_packets_received",
                "np_ecn_marked_roce_packets",
                "RoCE packets received with congestion marks",
            ),
            ("out_of_buffer_drops", "out_of_buffer", "Packets dropped for lack of a posted receive"),
            ("out_of_sequence_packets_received", "out_of_sequence", "Packets received ahead of the expected PSN"),
            ("packet_sequence_errors", "packet_seq_err", "NAKs of sequence errors received"),
            ("req_cqes_errors", "req_cqe_error", "Completions of the requester with an error"),
            ("req_cqes_flush_errors", "req_cqe_flush_error", "Completions of the requester that were flushed"),
            ("req_remote_access_errors", "req_remote_access_errors", "Remote access errors that the requester saw"),
            (
                "req_remote_invalid_request_errors",
                "req_remote_invalid_request",
                "Remote invalid request errors that the requester saw",
            ),
            ("resp_cqes_errors", "resp_cqe_error", "Completions of the responder with an error"),
            ("resp_cqes_flush_errors", "resp_cqe_flush_error", "Completions of the responder that were flushed"),
            ("resp_local_length_errors", "resp_local_length_error", "Local length errors of the responder"),
            ("resp_remote_access_errors", "resp_remote_access_errors", "Remote access errors of the responder"),
            ("rnr_nak_retry_packets_received", "rnr_nak_retry_err", "RNR NAKs received"),
            ("roce_adp_retransmits", "roce_adp_retrans", "Adaptive retransmissions"),
            ("roce_adp_retransmits_timeout", "roce_adp_retrans_to", "Timeouts of adaptive retransmission"),
            ("roce_slow_restart_used", "roce_slow_restart", "Uses of slow restart"),
            ("roce_slow_restart_cnps", "roce_slow_restart_cnps", "CNPs that slow restart generated"),
            ("roce_slow_restart", "roce_slow_restart_trans", "Changes of state to slow restart"),
            ("rp_cnp_packets_handled", "rp_cnp_handled", "CNPs received that slowed the transmitter down"),
            ("rp_cnp_ignored_packets_received", "rp_cnp_ignored", "CNPs received and ignored"),
            ("rx_atomic_requests", "rx_atomic_requests", "Atomic requests received"),
            (
                "rx_dct_connect_requests",
                "rx_dct_connect",
                "Connection requests received for dynamically connected transport",
            ),
            ("rx_read_requests", "rx_read_requests", "READ requests received"),
            ("rx_write_requests", "rx_write_requests", "WRITE requests received"),
            ("rx_icrc_encapsulated_errors", "rx_icrc_encapsulated", "RoCE packets received with a wrong ICRC"),
        ],
    ),
];

/// Labels of a port. Devices of the kernel have the labels of node_exporter. Several software RNICs have the same name,
/// so the label tells them apart.
fn labels(sample: &Sample) -> [(&'static str, String); 2] {
    let identity = &sample.identity;
    let device = match identity.kind {
        Kind::Kernel => &identity.name,
        Kind::Software => &identity.label,
    };
    [("device", device.clone()), ("port", identity.port.unwrap_or(1).to_string())]
}

/// Returns the value of a counter or level of a port.
fn value(port: &Sample, set: Set, name: &str) -> Option<u64> {
    port.raw.get(&Name::new(set, name)).copied()
}

/// Encodes the metrics of all ports. A metric that no port has is left out.
///
/// # Errors
///
/// A text could not be written.
pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, ports: &[&Sample]) -> fmt::Result {
    for (name, help) in STATE {
        family(encoder, ports, (name, help, MetricType::Gauge), |port| value(port, Set::State, name))?;
    }
    for (name, file, factor, common, help) in TRAFFIC {
        family(encoder, ports, (name, help, MetricType::Counter), |port| {
            let of_port = value(port, Set::Port, file).map(|value| value.saturating_mul(factor));
            of_port.or_else(|| common.total(&port.raw))
        })?;
    }
    for (set, counters) in COUNTERS {
        for &(name, file, help) in counters {
            family(encoder, ports, (name, help, MetricType::Counter), |port| value(port, set, file))?;
        }
    }
    boards(encoder, ports)
}

/// Encodes one metric of the ports that have it.
fn family(
    encoder: &mut DescriptorEncoder<'_>,
    ports: &[&Sample],
    (name, help, kind): (&str, &str, MetricType),
    value: impl Fn(&Sample) -> Option<u64>,
) -> fmt::Result {
    let found: Vec<_> = ports.iter().filter_map(|&port| Some((labels(port), value(port)?))).collect();
    if found.is_empty() {
        return Ok(());
    }
    let name = format!("node_infiniband_{name}");
    let mut family = encoder.encode_descriptor(&name, help, None, kind)?;
    for (labels, value) in &found {
        let mut metric = family.encode_family(labels)?;
        match kind {
            MetricType::Gauge => metric.encode_gauge(value)?,
            _ => metric.encode_counter::<NoLabelSet, _, u64>(value, None)?,
        }
    }
    Ok(())
}

/// Encodes `node_infiniband_info`, once per device.
fn boards(encoder: &mut DescriptorEncoder<'_>, ports: &[&Sample]) -> fmt::Result {
    let board = |port: &Sample| Some((port.identity.name.clone(), port.identity.board.clone()?));
    let mut found: Vec<_> = ports.iter().filter_map(|&port| board(port)).collect();
    found.dedup_by(|(name, _), (before, _)| name == before);
    if found.is_empty() {
        return Ok(());
    }
    let mut family = encoder.encode_descriptor("node_infiniband", "Boards of devices", None, MetricType::Info)?;
    for (name, board) in &found {
        let labels = [
            ("device", name.as_str()),
            ("board_id", board.id.as_str()),
            ("firmware_version", board.firmware.as_str()),
            ("hca_type", board.hca_type.as_str()),
        ];
        // An empty label value equals an absent label (OpenMetrics 1.0).
        let labels: Vec<_> = labels.into_iter().filter(|(_, value)| !value.is_empty()).collect();
        family.encode_info(&labels)?;
    }
    Ok(())
}
