//! Checks of the record of a run between two machines.

use serde_json::Value;

use super::network::Family;

/// Properties of a run that are known before it starts.
#[derive(Clone, Copy)]
pub(super) struct Expected {
    pub(super) family: Family,
    /// Path MTU in bytes.
    pub(super) path_mtu: u64,
    /// Bytes per message. Each size is a point.
    pub(super) sizes: &'static [u64],
    /// Messages that the client sends per point.
    pub(super) client: u64,
    /// Messages that the server sends per point.
    pub(super) server: u64,
}

/// Bytes of Ethernet, UDP, BTH and ICRC in each frame, without the IP header.
const FRAME_BYTES: u64 = 14 + 8 + 12 + 4;

/// Bytes of the immediate data, which carry credits.
const IMMEDIATE_BYTES: u64 = 4;

impl Expected {
    /// Returns the numbers of packets and of frame bytes of `messages` messages with `bytes` bytes. This calculation is
    /// independent of Doorbell's own prediction.
    pub(super) fn cost(&self, messages: u64, bytes: u64) -> (u64, u64) {
        let packets = bytes.div_ceil(self.path_mtu).max(1);
        let headers = packets * (FRAME_BYTES + self.family.header_bytes());
        (messages * packets, messages * (headers + IMMEDIATE_BYTES + bytes.next_multiple_of(4)))
    }
}

/// Checks that the record has each expected point, and that every message arrived intact. In each direction, the
/// numbers of packets and bytes must match the messages.
pub(super) fn compare(record: &Value, expected: &Expected) -> Result<(), String> {
    same("the active MTU", number(record, "/environment/active_mtu")?, expected.path_mtu)?;
    let results = results(record)?;
    same("points", results.len() as u64, expected.sizes.len() as u64)?;
    for (result, &bytes) in results.iter().zip(expected.sizes) {
        let compare = || -> Result<(), String> {
            same("bytes", number(result, "/bytes")?, bytes)?;
            same("the path MTU", number(result, "/mtu")?, expected.path_mtu)?;
            same("damaged messages", number(result, "/damaged")?, 0)?;
            for (side, messages) in [("client", expected.client), ("server", expected.server)] {
                let (packets, frame_bytes) = expected.cost(messages, bytes);
                for (name, cost) in [("data_packets", packets), ("data_bytes", frame_bytes)] {
                    for source in ["counted", "predicted"] {
                        let pointer = format!("/{source}/{side}/{name}");
                        same(&pointer, number(result, &pointer)?, cost)?;
                    }
                }
            }
            Ok(())
        };
        compare().map_err(|why| format!("messages of {bytes} B over {:?}: {why}", expected.family))?;
    }
    Ok(())
}

/// Maximum number of packets that may be in flight when one end reads its counters. These packets end the connection.
pub(super) const LAST_PACKETS: u64 = 8;

/// Checks retransmissions on a network without loss. Their only allowed causes are an end that was slower than a timer,
/// and a peer that was not ready. The peer must have received and recognised each retransmitted packet. Returns the
/// number of retransmitted packets.
pub(super) fn explain_retransmissions(record: &Value) -> Result<u64, String> {
    let mut all = 0;
    for result in results(record)? {
        for (from, to) in [("client", "server"), ("server", "client")] {
            let sent = |name: &str| counter(result, from, name);
            let arrived = |name: &str| counter(result, to, name);
            let repeated = sent("tx_retransmitted_packets")?;
            let recognised = arrived("duplicate_request")?;
            let mut too_early = arrived("rx_foreign_source")? + arrived("rx_wrong_state")? + arrived("rx_unknown_qp")?;
            if too_early > 0 {
                too_early += arrived("out_of_sequence")?; // packets after the early ones
            }
            let packets = (sent("tx_vport_rdma_unicast_packets")?, arrived("rx_vport_rdma_unicast_packets")?);
            let underway = packets.0.saturating_sub(packets.1);
            let bytes = number(result, "/bytes")?;
            let because =
                sent("early_retransmit")? + sent("local_ack_timeout_err")? + sent("packet_seq_err")? + underway;
            // The last retransmitted packets may arrive after the peer has read its counters.
            if underway > LAST_PACKETS + repeated
                || repeated > recognised + too_early + underway
                || (repeated > 0 && because == 0)
            {
                return Err(format!(
                    "messages of {bytes} B: the {from} sent {} packets and retransmitted {repeated}, after {because} \
                     timeouts and NAKs. The {to} received {}, with {recognised} duplicates, and {too_early} before \
                     it was ready",
                    packets.0, packets.1
                ));
            }
            all += repeated;
        }
    }
    Ok(all)
}

/// Returns the sum of a counter of one end over all points.
pub(super) fn sum(record: &Value, side: &str, name: &str) -> Result<u64, String> {
    results(record)?.iter().map(|result| counter(result, side, name)).sum()
}

fn results(record: &Value) -> Result<&Vec<Value>, String> {
    record.pointer("/results").and_then(Value::as_array).ok_or_else(|| format!("the record has no results: {record}"))
}

fn counter(result: &Value, side: &str, name: &str) -> Result<u64, String> {
    number(result, &format!("/counters/{side}/{name}"))
}

fn number(value: &Value, pointer: &str) -> Result<u64, String> {
    value.pointer(pointer).and_then(Value::as_u64).ok_or_else(|| format!("the record has no number at {pointer}"))
}

fn same(what: &str, found: u64, expected: u64) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found}, expected {expected}")) }
}
