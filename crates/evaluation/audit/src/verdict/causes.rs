//! Probable causes, with the evidence that counters and settings have.

use doorbell_analyze::explain::sentences::{byte_rate, rate};
use doorbell_counters::Common;
use doorbell_verbs_core::Status;
use doorbell_wire::{MessageKind, PathMtu};

use super::{Audit, share_of_packets};
use crate::arithmetic::Arithmetic;
use crate::claim::{Claim, Tool};

/// Shortest time of a run in seconds that has more than warm-up.
pub(super) const SHORTEST_S: f64 = 0.01;
/// Share of a limit below which a rate counts as low.
pub(super) const LOW_SHARE: f64 = 0.5;
/// Largest message in bytes that usual devices send inline.
const LARGEST_INLINE: u64 = 220;

/// Adds the causes for which counters, statuses and settings have evidence, independent of the verdict.
pub(super) fn add(audit: &mut Audit) {
    of_counters(audit);
    of_path_mtu(audit);
    if audit.output.failures.contains(&Status::RetryExceeded)
        && let [own, other] = &audit.output.setup.gids[..]
        && is_mapped(own) != is_mapped(other)
    {
        let sentence =
            format!("the GIDs of the two ends are of different kinds: {own} and {other}; use -x at both ends");
        audit.find("gid", 95, sentence);
    }
    if audit.output.setup.cpu_is_slow {
        let sentence = "the tool found CPUs below their maximum frequency: set the governor `performance`".to_owned();
        audit.find("cpu", 35, sentence);
    }
}

/// Returns whether a GID, as perftest prints it, is an IPv4 address in an IPv6 address.
fn is_mapped(gid: &str) -> bool {
    gid.starts_with("00:00:00:00:00:00:00:00:00:00:255:255:")
}

fn of_counters(audit: &mut Audit) {
    let Some(counted) = audit.counted.clone() else { return };
    let causes = [
        (Common::Retransmissions, "retransmissions", "retransmissions: packets are lost or time out"),
        (Common::RnrReceived, "rnr", "RNR NAKs received: the peer posts receives too slowly"),
        (Common::RnrSent, "rnr", "RNR NAKs sent: this end posts receives too slowly"),
        (Common::OutOfSequence, "retransmissions", "packets out of sequence: packets are lost on the way to this end"),
        (Common::CnpReceived, "congestion", "congestion notifications: the peer slows this end down"),
    ];
    for (common, cause, why) in causes {
        if let Some((grown, share)) = share_of_packets(&counted, common) {
            // From 1 packet in 1000 on, losses shape a throughput.
            let weight = if share >= 1e-3 { 75 } else { 15 };
            audit.find(cause, weight, format!("{} counted {grown} {why}", counted.device));
        }
    }
}

/// Finds another path MTU than the assumed or printed one in the mean length of the packets.
fn of_path_mtu(audit: &mut Audit) {
    let (Some(counted), Some(arithmetic)) = (&audit.counted, &audit.arithmetic) else { return };
    let Some(mean) = counted.bytes_per_packet().filter(|_| arithmetic.bytes > arithmetic.path_mtu.bytes() as u64 / 2)
    else {
        return;
    };
    let is_near = |expected: f64| (mean / expected - 1.0).abs() < 0.03;
    if is_near(arithmetic.bytes_per_packet()) {
        return;
    }
    let setup = &audit.output.setup;
    let other = PathMtu::ALL.into_iter().filter(|mtu| *mtu != arithmetic.path_mtu).find(|mtu| {
        Arithmetic::of(setup, Some(*mtu), arithmetic.bytes).is_ok_and(|other| is_near(other.bytes_per_packet()))
    });
    if let Some(other) = other {
        let sentence = format!(
            "packets of {mean:.0} B fit a path MTU of {other}, not {}: compare the MTUs of interfaces and switches",
            arithmetic.path_mtu
        );
        audit.find("mtu", 80, sentence);
    }
}

/// Adds causes of a claim beyond the link. `limit` is the payload that the link carries, in bytes per second.
pub(super) fn of_excess(audit: &mut Audit, claim: &Claim, limit: f64) {
    let Some(average) = &claim.average else { return };
    let claimed = audit.one_way(average);
    if let [own, other] = &audit.output.setup.gids[..]
        && own == other
    {
        let sentence = format!("both ends have the GID {own}: the traffic is a loopback within the device");
        audit.find("loopback", 95, sentence);
    }
    if audit.output.tool == Some(Tool::UcxPerftest) {
        let sentence =
            "the client of ucx_perftest stops its clock when its sends have completed locally, before the data \
                        has arrived: read the figure of the server"
                .to_owned();
        audit.find("local-completion", 85, sentence);
    }
    if !audit.output.setup.is_bidirectional && claimed / 2.0 <= limit {
        let sentence = format!(
            "half of the claim, {}, fits: it may count both directions, or two ports or links",
            byte_rate(claimed / 2.0)
        );
        audit.find("both-directions", 50, sentence);
    }
    let decimal = average.printed * 1e6;
    if average.unit_bytes_per_s > 1e6 && average.unit.starts_with('M') && decimal <= limit {
        let sentence = format!("{} {} as 10^6 B/s would fit, but the tool's M is 2^20", average.printed, average.unit);
        audit.find("units", 45, sentence);
    }
    if claimed / 8.0 <= limit && claimed / 2.0 > limit {
        let sentence = format!("{} {} as bits would fit", average.printed, average.unit);
        audit.find("bits", 30, sentence);
    }
    audit.find(
        "another-path",
        20,
        "memory of one machine, or another device, may carry the data: compare with the device's counters".to_owned(),
    );
}

/// Adds causes of a claim far below the link.
pub(super) fn of_low_rate(audit: &mut Audit, claim: &Claim) {
    let setup = audit.output.setup.clone();
    let bytes = claim.bytes.unwrap_or(u64::MAX);
    if let Some(messages_per_s) = claim.messages_per_s.filter(|_| bytes < 4096) {
        let sentence = format!(
            "messages of {bytes} B are limited by {} messages/s, not by the link: use larger or batched messages",
            rate(messages_per_s)
        );
        audit.find("message-rate", 55, sentence);
    }
    // READs and atomics send no payload that a work request could hold.
    let has_payload =
        !matches!(setup.operation, Some(MessageKind::Read | MessageKind::CompareSwap | MessageKind::FetchAdd));
    if setup.inline == Some(0) && bytes <= LARGEST_INLINE && has_payload {
        audit.find("inline", 40, format!("messages of {bytes} B are not sent inline: try -I {bytes}"));
    }
    if setup.queue_pairs == Some(1) {
        audit.find("queue-pairs", 45, "one queue pair has one core and one window: try -q 4".to_owned());
    }
    if let Some(mtu) = setup.path_mtu.filter(|mtu| mtu.bytes() < 4096 && bytes > mtu.bytes() as u64) {
        audit.find("mtu", 40, format!("the path MTU is {mtu}: an interface MTU of 4200 or more allows 4096"));
    }
    if let Some(depth) = setup.depth.filter(|depth| *depth < 16) {
        audit.find("window", 45, format!("at most {depth} requests are outstanding: try -t 128"));
    }
    if let Some(cpus) = audit.given.busy_cpus.filter(|cpus| (0.95..1.1).contains(cpus)) {
        let sentence =
            format!("the command kept {cpus:.2} CPUs busy, so one CPU may be the limit; polling does so too");
        audit.find("cpu", 35, sentence);
    }
}
