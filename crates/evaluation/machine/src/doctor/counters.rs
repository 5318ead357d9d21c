//! Counters of congestion and loss, which should not change before a measurement begins.

use std::collections::BTreeMap;

use super::{Finding, Severity};
use crate::Root;

/// Names of counters of congestion and loss, grouped by subject. Each group has a subject, the names that different
/// drivers use, and the meaning of a change.
const WATCHED: [(&str, &[&str], &str); 4] = [
    (
        "ECN",
        &["np_cnp_sent", "rp_cnp_handled", "np_ecn_marked_roce_packets", "InCEPkts"],
        "packets are marked by ECN: other traffic congests the network",
    ),
    (
        "PFC",
        &["rx_prio", "tx_prio", "rx_global_pause", "tx_global_pause", "rx_pause_ctrl_phy", "tx_pause_ctrl_phy"],
        "pause frames are sent or received: a queue on the path is full",
    ),
    (
        "loss",
        &["out_of_sequence", "packet_seq_err", "rx_discards_phy", "rx_out_of_buffer", "out_of_buffer", "RcvbufErrors"],
        "arriving packets are dropped before a program receives them",
    ),
    (
        "retransmission",
        &["local_ack_timeout_err", "rnr_nak_retry_err", "implied_nak_seq_err"],
        "an RNIC of this machine retransmits packets",
    ),
];

/// Counters of congestion and loss at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CounterSnapshot {
    counters: BTreeMap<String, u64>,
    /// Interface whose driver reports no counters through `ethtool`.
    silent: Option<String>,
}

/// Returns the index of the group in [`WATCHED`] to which a counter's name belongs.
fn kind(name: &str) -> Option<usize> {
    let is = |watched: &str| match watched {
        // Of the counters of a priority, only pause counters match, such as rx_prio3_pause.
        "rx_prio" | "tx_prio" => name.starts_with(watched) && name.ends_with("_pause"),
        _ => name == watched,
    };
    WATCHED.iter().position(|(_, names, _)| names.iter().any(|watched| is(watched)))
}

/// Parses the counters of `/proc/net/snmp` or `/proc/net/netstat`. In these files, a line of names precedes each line
/// of values.
fn of_kernel(text: &str) -> impl Iterator<Item = (&str, u64)> {
    let lines: Vec<&str> = text.lines().collect();
    let pairs: Vec<_> = lines
        .chunks_exact(2)
        .flat_map(|pair| pair[0].split_whitespace().skip(1).zip(pair[1].split_whitespace().skip(1)))
        .collect();
    pairs.into_iter().filter_map(|(name, value)| Some((name, value.parse().ok()?)))
}

impl CounterSnapshot {
    /// Reads the current counters of the kernel, of a device's port, and of an interface. The callback `ethtool`
    /// returns the statistics of an interface as text.
    pub(super) fn now(
        root: &Root,
        device: Option<(&str, u8)>,
        interface: Option<&str>,
        ethtool: impl FnOnce(&str) -> Option<String>,
    ) -> Self {
        let mut all = Self::default();
        for file in ["proc/net/snmp", "proc/net/netstat"] {
            let text = root.text(file).unwrap_or_default();
            for (name, value) in of_kernel(&text) {
                all.add(name, value);
            }
        }
        if let Some((device, port)) = device {
            let directory = format!("sys/class/infiniband/{device}/ports/{port}/hw_counters");
            for name in root.names(&directory) {
                if let Some(value) = root.number(format!("{directory}/{name}")).and_then(|value| value.try_into().ok())
                {
                    all.add(&name, value);
                }
            }
        }
        if let Some(interface) = interface {
            match ethtool(interface) {
                None => all.silent = Some(interface.to_owned()),
                Some(text) => {
                    for (name, value) in text.lines().filter_map(|line| line.split_once(':')) {
                        if let Ok(value) = value.trim().parse() {
                            all.add(name.trim(), value);
                        }
                    }
                }
            }
        }
        all
    }

    fn add(&mut self, name: &str, value: u64) {
        if kind(name).is_some() {
            *self.counters.entry(name.to_owned()).or_default() += value;
        }
    }

    /// Returns the findings about counters that increased since `before`.
    pub(super) fn since(&self, before: &Self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (index, (subject, _, meaning)) in WATCHED.iter().enumerate() {
            let moved: Vec<String> = self
                .counters
                .iter()
                .filter(|(name, _)| kind(name) == Some(index))
                .filter_map(|(name, now)| {
                    let grown = now.checked_sub(*before.counters.get(name)?)?;
                    (grown > 0).then(|| format!("{name} by {grown}"))
                })
                .collect();
            if !moved.is_empty() {
                let what = format!("{meaning} ({})", moved.join(", "));
                let remedy = "find the sender of the traffic, or measure while there is no other traffic";
                findings.push(Finding::new(subject, Severity::Shifts, what, remedy));
            }
        }
        if findings.is_empty() {
            let what = format!("none of {} counters of congestion and loss increases", self.counters.len());
            findings.push(Finding::fine("congestion", what));
        }
        if let Some(interface) = &self.silent {
            let what =
                format!("pause frames of {interface} are unknown, since `ethtool -S {interface}` does not list them");
            findings.push(Finding::new("PFC", Severity::Unknown, what, "install ethtool"));
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::made_of;

    const SNMP: &str = "Ip: Forwarding InReceives\nIp: 2 9\nUdp: InDatagrams InErrors RcvbufErrors\nUdp: 7 0 ";
    const NETSTAT: &str = "IpExt: InNoRoutes InCEPkts\nIpExt: 0 5\n";

    fn at(lost: u64, marked: u64, paused: Option<u64>) -> CounterSnapshot {
        let snmp = format!("{SNMP}{lost}\n");
        let marked = format!("{marked}\n");
        let (_directory, root) = made_of(&[
            ("proc/net/snmp", &snmp),
            ("proc/net/netstat", NETSTAT),
            ("sys/class/infiniband/mlx5_0/ports/1/hw_counters/np_ecn_marked_roce_packets", &marked),
            ("sys/class/infiniband/mlx5_0/ports/1/hw_counters/lifespan", "10\n"),
        ]);
        let ethtool = |_: &str| {
            paused.map(|paused| {
                format!("NIC statistics:\n     rx_prio3_pause: {paused}\n     rx_prio3_packets: {}\n", paused * 9)
            })
        };
        CounterSnapshot::now(&root, Some(("mlx5_0", 1)), Some("ens1"), ethtool)
    }

    #[test]
    fn counters_that_stand_still_are_fine() {
        let still = at(3, 4, Some(5));
        let found = still.since(&still);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].severity, found[0].subject.as_str()), (Severity::Fine, "congestion"));
        assert!(found[0].what.contains("none of 4 counters"), "{}", found[0].what);
    }

    #[test]
    fn each_counter_that_moves_is_named() {
        let found = at(4, 9, Some(7)).since(&at(3, 4, Some(5)));
        let subjects: Vec<_> = found.iter().map(|finding| (finding.subject.as_str(), finding.severity)).collect();
        assert_eq!(subjects, [("ECN", Severity::Shifts), ("PFC", Severity::Shifts), ("loss", Severity::Shifts)]);
        assert!(found[0].what.contains("np_ecn_marked_roce_packets by 5"), "{}", found[0].what);
        assert!(found[1].what.ends_with("(rx_prio3_pause by 2)"), "{}", found[1].what);
    }

    #[test]
    fn silent_driver_is_reported() {
        let silent = at(3, 4, None);
        let found = silent.since(&silent);
        assert_eq!(found.last().map(|finding| finding.severity), Some(Severity::Unknown));
    }

    #[test]
    fn a_counter_that_was_set_back_has_not_moved() {
        assert_eq!(at(1, 1, Some(1)).since(&at(3, 4, Some(5))).len(), 1);
    }
}
