//! Rates of a host in a capture.

use std::net::IpAddr;

use doorbell_wire::IpVersion;

use super::{Hints, Rates, Seen};
use crate::decode::{HostTotals, Summary};

/// Maximum number of addresses in an error.
const SHOWN_HOSTS: usize = 8;

/// Reasons why a capture shows no rates. Each text is a sentence whose subject, the file, is left out.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CapturedError {
    /// Reading stopped before the end.
    #[error("{0}: its rates are unknown")]
    Stopped(String),
    /// No host sends or receives a packet.
    #[error("has no RoCE v2 packets to count: {0}")]
    NoPackets(String),
    /// The given host sends and receives no packet.
    #[error("has no packets of the host {host}, must be one of {known}")]
    OtherHost {
        /// The given host.
        host: IpAddr,
        /// Hosts with packets.
        known: String,
    },
    /// Each host sends and receives only some of the packets.
    #[error("has no host with a part in all packets: choose the host among {0}")]
    SeveralHosts(String),
    /// All packets have the same time.
    #[error("has packets of one moment only, so there are no rates")]
    NoTime,
}

/// Traffic of a host in a capture.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Captured {
    /// The host.
    pub host: HostTotals,
    /// Rates of its packets.
    pub rates: Rates,
}

impl Captured {
    /// Returns the traffic of a host. Without a host, takes the one that sends or receives all packets.
    ///
    /// # Errors
    ///
    /// The capture has no such host, or no duration.
    pub fn of(summary: &Summary, host: Option<IpAddr>) -> Result<Self, CapturedError> {
        if let Some(stopped) = &summary.stopped {
            return Err(CapturedError::Stopped(stopped.clone()));
        }
        let host = observed(summary, host)?;
        if summary.duration_ns == 0 {
            return Err(CapturedError::NoTime);
        }
        let per_s = |count: u64| count as f64 * 1e9 / summary.duration_ns as f64;
        let rates = Rates {
            rx_bytes: per_s(host.rx_bytes),
            rx_packets: per_s(host.rx_packets),
            tx_bytes: per_s(host.tx_bytes),
            tx_packets: per_s(host.tx_packets),
        };
        Ok(Self { host, rates })
    }

    /// Returns the hints with the facts that the capture shows: the version of IP, and the operations of the host.
    pub fn hints(&self, summary: &Summary, hints: Hints) -> Hints {
        let ip = if self.host.address.is_ipv4() { IpVersion::V4 } else { IpVersion::V6 };
        Hints { ip: Some(ip), seen: Seen::of(summary, self.host.address), ..hints }
    }
}

fn observed(summary: &Summary, named: Option<IpAddr>) -> Result<HostTotals, CapturedError> {
    let known = || {
        let shown: Vec<_> = summary.hosts.iter().take(SHOWN_HOSTS).map(|host| host.address.to_string()).collect();
        shown.join(", ") + if summary.hosts.len() > SHOWN_HOSTS { ", ..." } else { "" }
    };
    if summary.hosts.is_empty() {
        return Err(CapturedError::NoPackets(summary.notes.join(" ")));
    }
    if let Some(host) = named {
        let found = summary.hosts.iter().find(|totals| totals.address == host);
        return found.copied().ok_or_else(|| CapturedError::OtherHost { host, known: known() });
    }
    let all = summary.packets - summary.other_conversations_packets;
    let everywhere = summary.hosts.iter().filter(|host| host.rx_packets + host.tx_packets >= all);
    everywhere.min_by_key(|host| host.address).copied().ok_or_else(|| CapturedError::SeveralHosts(known()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{Options, decode};

    /// Returns the summary of a capture without packets, with these hosts.
    fn summary(hosts: &[HostTotals]) -> Summary {
        let header: [u32; 6] = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1];
        let bytes: Vec<u8> = header.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut summary = decode(&bytes[..], &Options::default()).expect("a pcap file may have no packet");
        summary.hosts = hosts.to_vec();
        summary.packets = hosts.iter().map(|host| host.tx_packets).sum();
        summary.duration_ns = 500_000_000;
        summary
    }

    fn host(last: u8, rx_packets: u64, tx_packets: u64) -> HostTotals {
        let address = IpAddr::from([10, 0, 0, last]);
        HostTotals { address, rx_packets, rx_bytes: 62 * rx_packets, tx_packets, tx_bytes: 78 * tx_packets }
    }

    #[test]
    fn the_host_is_the_one_with_all_packets() {
        let star = summary(&[host(1, 30, 10), host(2, 5, 20), host(3, 5, 10)]);
        let captured = Captured::of(&star, None).expect("10.0.0.1 has a part in all packets");
        assert_eq!(captured.host.address, IpAddr::from([10, 0, 0, 1]));
        assert_eq!((captured.rates.rx_packets, captured.rates.tx_bytes), (60.0, 20.0 * 78.0));
        let other = Captured::of(&star, Some(IpAddr::from([10, 0, 0, 3]))).expect("10.0.0.3 has packets");
        assert_eq!(other.rates.tx_packets, 20.0);
        assert_eq!(captured.hints(&star, Hints::default()).ip, Some(IpVersion::V4));
    }

    #[test]
    fn captures_without_rates_are_explained() {
        let pairs = summary(&[host(1, 0, 10), host(2, 10, 0), host(3, 0, 10), host(4, 10, 0)]);
        let given = Captured::of(&pairs, Some(IpAddr::from([10, 0, 0, 9]))).expect_err("10.0.0.9 has no packets");
        assert!(
            given.to_string().starts_with("has no packets of the host 10.0.0.9, must be one of 10.0.0.1,"),
            "{given}"
        );
        assert!(matches!(Captured::of(&pairs, None), Err(CapturedError::SeveralHosts(_))));
        assert!(matches!(Captured::of(&summary(&[]), None), Err(CapturedError::NoPackets(_))));
        let mut moment = summary(&[host(1, 1, 1)]);
        moment.duration_ns = 0;
        assert_eq!(Captured::of(&moment, None), Err(CapturedError::NoTime));
        moment.stopped = Some("ends in a packet".to_owned());
        let stopped = Captured::of(&moment, None).expect_err("the rates are unknown");
        assert_eq!(stopped.to_string(), "ends in a packet: its rates are unknown");
    }
}
