//! Comparison of counted packets with their prediction.

use std::ops::RangeInclusive;

use doorbell_fabric::FaultPlan;
use doorbell_protocols::Protocol;

use doorbell_record::prediction::range;
use doorbell_record::{Counted, Parameters, PointResult};

/// Returns sentences about damaged payloads, and about counted packets that do not match the prediction.
pub fn complaints(parameters: &Parameters, fault: Option<&FaultPlan>, result: &PointResult) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut complain = |what: String| complaints.push(what);
    if result.damaged > 0 {
        complain(format!("{} messages arrived damaged", result.damaged));
    }
    let ends = [
        ("this side", &result.counted.client, &result.predicted.client),
        ("the other side", &result.counted.server, &result.predicted.server),
    ];
    // Faults, losses and refusals at either end cause acknowledgements and retransmissions.
    let quiet = |counted: &Counted| counted.retransmitted_packets == 0 && counted.rnr_naks == 0;
    let is_known = [&result.counters.client, &result.counters.server].map(|counters| !counters.is_empty());
    // The acknowledgements and answers of an end depend on all packets that the other end sends, also on
    // retransmissions.
    let all_known = is_known == [true, true];
    let undisturbed =
        all_known && fault.is_none() && parameters.credits && ends.iter().all(|(_, counted, _)| quiet(counted));
    let duplicated = fault.is_some_and(FaultPlan::duplicates);
    for ((name, counted, predicted), is_known) in ends.into_iter().zip(is_known) {
        if !is_known {
            continue; // the counters of that device are in the kernel, and include packets of all programs
        }
        // In one-sided operations and Send-Receive, all requests have one size, even if several READs fetch a message.
        let is_uniform = parameters.protocol == Protocol::SendReceive;
        let whole = counted.data_bytes * predicted.data_packets == counted.data_packets * predicted.data_bytes;
        let packets = open(predicted.data_packets, predicted.data_packets_max, predicted.asks);
        let bytes = open(predicted.data_bytes, predicted.data_bytes_max, predicted.asks);
        let fits = packets.contains(&counted.data_packets) && bytes.contains(&counted.data_bytes);
        if !(fits && (whole || !is_uniform)) {
            complain(format!(
                "{name} sent {} data packets of {} B in all, predicted are {} of {} B",
                counted.data_packets,
                counted.data_bytes,
                range(predicted.data_packets, predicted.data_packets_max, predicted.asks),
                range(predicted.data_bytes, predicted.data_bytes_max, predicted.asks),
            ));
        }
        // An end answers a repeated request again, so that the number of answers has no upper bound.
        let is_open = predicted.is_asked || !undisturbed;
        let answers = open(predicted.response_packets, predicted.response_packets_max, is_open);
        let bytes = open(predicted.response_bytes, predicted.response_bytes_max, is_open);
        if !(answers.contains(&counted.response_packets) && bytes.contains(&counted.response_bytes)) {
            complain(format!(
                "{name} sent {} response packets of {} B in all, predicted are {} of {} B",
                counted.response_packets,
                counted.response_bytes,
                range(predicted.response_packets, predicted.response_packets_max, is_open),
                range(predicted.response_bytes, predicted.response_bytes_max, is_open),
            ));
        }
        // Each arriving packet is acknowledged at most once.
        if all_known && !duplicated && counted.ack_packets > predicted.ack_packets_max {
            complain(format!(
                "{name} sent {} acknowledgements, predicted are {} at most",
                counted.ack_packets, predicted.ack_packets_max
            ));
        }
    }
    complaints
}

/// Returns the range from `least` to `most`, or without an upper bound if `is_open`.
fn open(least: u64, most: u64, is_open: bool) -> RangeInclusive<u64> {
    least..=if is_open { u64::MAX } else { most }
}
