//! Combined result of the hosts of a point: the time during which all asking hosts measured, and the work of each host.

use doorbell_verbs::PathMtu;

use super::super::SessionError;
use super::super::report::{Performed, Report};
use super::super::result::{Seen, Ways, acknowledged_besides};
use super::{Clock, Dealt, HostError};
use crate::layout::Share;
use crate::workload::Tally;
use doorbell_machine::cpu::CpuPerMessage;
use doorbell_record::{Buckets, Counted, HostResult, Parameters, PointResult};

/// Report of one host.
pub(super) enum SeenBy {
    Asking(Performed),
    Answering(Report),
}

impl SeenBy {
    fn report(&self) -> &Report {
        match self {
            Self::Asking(performed) => &performed.report,
            Self::Answering(report) => report,
        }
    }
}

/// Point of many hosts, after all hosts have sent their reports.
pub(super) struct Together<'a> {
    pub(super) names: Vec<String>,
    pub(super) parameters: &'a Parameters,
    pub(super) bytes: usize,
    pub(super) dealt: &'a Dealt,
    pub(super) clocks: Vec<Clock>,
    pub(super) mtu: PathMtu,
    pub(super) ipv6: bool,
    pub(super) start_ns: u64,
}

/// Time during which an asking host measured, on the coordinator's clock.
#[derive(Clone, Copy, Debug)]
pub(in crate::session) struct Interval {
    pub(in crate::session) began_ns: u64,
    pub(in crate::session) ended_ns: u64,
    pub(in crate::session) sent: u64,
}

/// Returns the common time, during which all hosts measured, and the share of all messages that were sent in that time.
/// The function assumes that each host sends at a constant rate. If there is no common time, it returns the host that
/// began last, and the nanoseconds between the first host's end and this host's beginning.
pub(in crate::session) fn in_common(intervals: &[Option<Interval>]) -> Result<(u64, f64), (usize, u64)> {
    let known = || intervals.iter().enumerate().filter_map(|(host, interval)| Some((host, (*interval)?)));
    let Some((last, began_ns)) = known().map(|(host, it)| (host, it.began_ns)).max_by_key(|(_, began)| *began) else {
        return Ok((1, 1.0));
    };
    let ended_ns = known().map(|(_, it)| it.ended_ns).min().unwrap_or(began_ns);
    if ended_ns <= began_ns {
        return Err((last, began_ns - ended_ns));
    }
    let common_ns = ended_ns - began_ns;
    let all: f64 = known().map(|(_, it)| it.sent as f64).sum();
    let within = |it: Interval| it.sent as f64 * common_ns as f64 / (it.ended_ns - it.began_ns) as f64;
    let sent: f64 = known().map(|(_, it)| within(it)).sum();
    Ok((common_ns, if all > 0.0 { sent / all } else { 1.0 }))
}

/// Reduces the result of a point to the common time `common_ns`. `within` is the share of messages that were sent in
/// that time.
pub(in crate::session) fn of_common_time(all: PointResult, common_ns: u64, within: f64) -> PointResult {
    let (seconds, messages) = (common_ns as f64 / 1e9, all.messages as f64 * within);
    let messages_per_s = messages / seconds;
    let per_message = if all.messages_per_s > 0.0 { all.bytes_per_s / all.messages_per_s } else { 0.0 };
    let bytes_per_s = messages_per_s * per_message;
    PointResult { messages: messages.round() as u64, seconds, messages_per_s, bytes_per_s, ..all }
}

impl Together<'_> {
    fn interval(&self, index: usize, seen: &SeenBy) -> Option<Interval> {
        let SeenBy::Asking(Performed { tallies, .. }) = seen else { return None };
        let clock = self.clocks[index];
        Some(Interval {
            began_ns: clock.back(tallies.iter().map(|tally| tally.began_ns).min()?),
            ended_ns: clock.back(tallies.iter().map(|tally| tally.ended_ns).max()?),
            sent: tallies.iter().fold(0, |sum, tally| sum.saturating_add(tally.sent)),
        })
    }

    pub(super) fn result(self, seen: Vec<SeenBy>) -> Result<PointResult, HostError> {
        let Self { parameters, bytes, mtu, ipv6, .. } = self;
        let failed = |host: usize, error| HostError { host: self.names[host].clone(), error };
        let fitted = parameters.fit(bytes).map_err(|error| failed(0, error.into()))?;
        let intervals: Vec<_> = seen.iter().enumerate().map(|(index, seen)| self.interval(index, seen)).collect();
        let (common_ns, within) =
            in_common(&intervals).map_err(|(host, late_ns)| failed(host, SessionError::Apart(late_ns as f64 / 1e9)))?;
        let ways = Ways { parameters, bytes, fitted: &fitted, mtu, ipv6 };
        let hosts = self.each(&seen, &intervals, ways);
        let (mut tallies, mut own, mut report) = (Vec::new(), None, None);
        let mut histogram = None;
        for (seen, clock) in seen.iter().zip(&self.clocks) {
            let sum = if matches!(seen, SeenBy::Asking(_)) { &mut own } else { &mut report };
            *sum = Some(sum.take().map_or_else(|| seen.report().clone(), |sum: Report| sum.and(seen.report())));
            let SeenBy::Asking(performed) = seen else { continue };
            tallies.extend(performed.tallies.iter().map(|tally| Tally {
                first_ns: clock.back(tally.first_ns),
                began_ns: clock.back(tally.began_ns),
                ended_ns: clock.back(tally.ended_ns),
                ..*tally
            }));
            if let Some(buckets) = &performed.histogram_ns {
                // The histogram resizes automatically, so adding values cannot fail.
                let _ = histogram.get_or_insert_with(Buckets::empty_histogram).add(buckets.to_histogram());
            }
        }
        let (own, report) = (own.unwrap_or_default(), report.unwrap_or_default());
        let fitted = fitted.clone();
        let all = Seen { parameters, bytes, fitted, mtu, ipv6, tallies: &tallies, histogram, own, report }.result();
        Ok(PointResult { hosts, ..of_common_time(all, common_ns, within) })
    }

    /// Returns the result of each host.
    fn each(&self, seen: &[SeenBy], intervals: &[Option<Interval>], ways: Ways<'_>) -> Vec<HostResult> {
        let counted: Vec<Counted> = seen.iter().map(|seen| ways.counted(seen.report())).collect();
        let (cast, shares) = (self.parameters.cast(), &self.dealt.shares);
        let host = |(index, (seen, share)): (usize, (&SeenBy, &Share))| {
            // Hosts that share a connection with this host. Such a peer may exchange messages with further hosts too.
            let is_peer = |other: &&Share| {
                let lanes = || other.lanes.iter().map(|&lane| self.dealt.lanes[lane]);
                other.host != share.host && lanes().any(|lane| lane.asks == share.host || lane.answers == share.host)
            };
            let peers = shares.iter().zip(&counted).filter(|(other, _)| is_peer(other)).map(|(_, counted)| counted);
            let requests = peers.clone().fold(0, |sum: u64, peer| sum.saturating_add(peer.data_packets));
            let besides = peers.fold(0, |sum: u64, peer| sum.saturating_add(acknowledged_besides(peer)));
            let report = seen.report();
            let mut predicted =
                ways.path(share.lanes.len(), share.asks).predict(report.sent, report.received, requests);
            predicted.ack_packets_max = predicted.ack_packets_max.saturating_add(besides);
            let part = if share.asks { cast.asking } else { cast.answering };
            let host = HostResult {
                number: share.host,
                name: self.names[index].clone(),
                role: part.role.to_string(),
                asks: share.asks,
                connections: share.lanes.len(),
                sent: report.sent,
                received: report.received,
                counted: counted[index],
                predicted,
                cpu: report.cpu,
                cpu_per_message: CpuPerMessage::default(),
                link: report.link.clone(),
                late_ns: intervals[index].map(|interval| interval.began_ns.saturating_sub(self.start_ns)),
                clock_ns: self.clocks[index].error_ns,
            };
            HostResult { cpu_per_message: host.cpu_by_message(), ..host }
        };
        seen.iter().zip(shares).enumerate().map(host).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_count_only_the_common_time() {
        let interval = |began_ns, ended_ns, sent| Some(Interval { began_ns, ended_ns, sent });
        assert_eq!(in_common(&[interval(10, 110, 500)]), Ok((100, 1.0)));
        // One host sends 100 messages in 100 ns. Another host sends 300 messages in the second half of that time. A
        // third host has no part.
        let (common_ns, share) = in_common(&[interval(0, 100, 100), None, interval(50, 100, 300)]).unwrap();
        assert_eq!((common_ns, share), (50, 350.0 / 400.0));
        assert_eq!(in_common(&[interval(0, 10, 1), interval(30, 40, 1)]), Err((1, 20)));
        assert_eq!(in_common(&[None, None]), Ok((1, 1.0)));
    }
}
