//! Link that carries packets between two software RNICs of one machine, and numbers of packets on each link.

use std::collections::BTreeMap;
use std::fmt;

use doorbell_verbs::soft::LinkChoice;
use serde::{Deserialize, Serialize};

/// A link between two processes of one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Link {
    /// Datagrams of a socket.
    Udp,
    /// Memory that both processes map.
    SharedMemory,
}

impl Link {
    /// Both links.
    pub const ALL: [Self; 2] = [Self::Udp, Self::SharedMemory];

    /// Returns the name of the link for messages to users.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Udp => "UDP",
            Self::SharedMemory => "shared memory",
        }
    }

    /// Returns the choice with which a device is opened to use this link. If two processes cannot share memory, packets
    /// go over UDP and the study continues. [`Carried`] then reports packets over UDP.
    pub const fn choice(self) -> LinkChoice {
        match self {
            Self::Udp => LinkChoice::Udp,
            Self::SharedMemory => LinkChoice::Auto,
        }
    }
}

/// Links that carried the packets of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CarriedBy {
    /// UDP carried all packets.
    Udp,
    /// Shared memory carried all packets.
    SharedMemory,
    /// Each of the two links carried some packets.
    Both,
}

/// Number of packets sent over each link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Packets sent over UDP.
    pub udp: u64,
    /// Packets sent through shared memory.
    pub shared_memory: u64,
}

impl Carried {
    /// Returns the numbers of packets that an end's counters report. Earlier releases did not count packets over UDP.
    /// Records of such a release count all packets of the RNIC, so the function subtracts the packets through shared
    /// memory. Otherwise a run over both links would appear to use shared memory only.
    pub(crate) fn of(link: &BTreeMap<String, u64>, counters: &BTreeMap<String, u64>) -> Self {
        let shared_memory = link.get("tx_shared_memory_packets").copied().unwrap_or(0);
        let all = || counters.get("tx_vport_rdma_unicast_packets").copied().unwrap_or(0);
        let udp = link.get("tx_udp_packets").copied().unwrap_or_else(|| all().saturating_sub(shared_memory));
        Self { udp, shared_memory }
    }

    /// Adds the packets of another end.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            udp: self.udp.saturating_add(other.udp),
            shared_memory: self.shared_memory.saturating_add(other.shared_memory),
        }
    }

    /// Returns the links that carried packets. Returns `None` if no packets were counted, as with a hardware RNIC or in
    /// virtual time.
    pub fn by(self) -> Option<CarriedBy> {
        match (self.udp > 0, self.shared_memory > 0) {
            (true, false) => Some(CarriedBy::Udp),
            (false, true) => Some(CarriedBy::SharedMemory),
            (true, true) => Some(CarriedBy::Both),
            (false, false) => None,
        }
    }
}

impl fmt::Display for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [udp, memory] = Link::ALL.map(Link::name);
        match self.by() {
            None => Ok(()),
            Some(CarriedBy::Udp) => f.write_str(udp),
            Some(CarriedBy::SharedMemory) => f.write_str(memory),
            Some(CarriedBy::Both) => {
                write!(f, "{memory} ({} packets) and {udp} ({} packets)", self.shared_memory, self.udp)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(pairs: &[(&str, u64)]) -> BTreeMap<String, u64> {
        pairs.iter().map(|&(name, count)| (name.to_owned(), count)).collect()
    }

    #[test]
    fn counters_of_each_release_name_the_link() {
        let all = counted(&[("tx_vport_rdma_unicast_packets", 9)]);
        for (link, counters, by, words) in [
            (&[("tx_udp_packets", 7), ("tx_shared_memory_packets", 0)][..], &all, Some(CarriedBy::Udp), "UDP"),
            (
                &[("tx_udp_packets", 0), ("tx_shared_memory_packets", 9)],
                &all,
                Some(CarriedBy::SharedMemory),
                "shared memory",
            ),
            (
                &[("tx_udp_packets", 2), ("tx_shared_memory_packets", 7)],
                &all,
                Some(CarriedBy::Both),
                "shared memory (7 packets) and UDP (2 packets)",
            ),
            // Records of releases that did not count packets over UDP, and records of releases without shared memory.
            (&[("tx_shared_memory_packets", 9)], &all, Some(CarriedBy::SharedMemory), "shared memory"),
            (&[("tx_shared_memory_packets", 0)], &all, Some(CarriedBy::Udp), "UDP"),
            (&[("rx_overflow", 0)], &all, Some(CarriedBy::Udp), "UDP"),
            // A hardware RNIC counts neither.
            (&[("tx_udp_packets", 0), ("tx_shared_memory_packets", 0)], &counted(&[]), None, ""),
            (&[], &counted(&[]), None, ""),
        ] {
            let carried = Carried::of(&counted(link), counters);
            assert_eq!((carried.by(), carried.to_string().as_str()), (by, words), "{link:?}");
        }
    }
}
