//! Bottleneck of a run: the station that was busy longest.

use std::fmt;

use crate::kernel::NodeTimes;
use crate::simulation::Summary;
use crate::time::Ps;

/// A station of a simulated testbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Station {
    /// A thread. The time of polls that found nothing does not count as busy.
    Thread,
    /// A processing unit of a NIC.
    Unit,
    /// The send stage that all units of a NIC share.
    Send,
    /// The stage of a NIC that begins to fetch payloads.
    Gather,
    /// The stage of a NIC that handles arriving packets.
    Receive,
    /// PCIe towards the NIC: data that the NIC fetches from memory.
    Fetch,
    /// PCIe towards memory: data that the NIC writes.
    Write,
    /// A node's port.
    Port,
    /// A switch's port.
    SwitchPort,
}

impl Station {
    /// Returns the name of the station.
    pub fn name(self) -> &'static str {
        match self {
            Self::Thread => "thread",
            Self::Unit => "processing unit",
            Self::Send => "NIC, sending",
            Self::Gather => "NIC, gathering payloads",
            Self::Receive => "NIC, receiving",
            Self::Fetch => "PCIe, fetching",
            Self::Write => "PCIe, writing",
            Self::Port => "port",
            Self::SwitchPort => "switch port",
        }
    }
}

/// The station that was busy longest in a run, and its busy share of the run.
///
/// If this station was busy nearly all the time, it limits the run. Otherwise, all stations waited for responses of the
/// peer, and the window or the latency limits the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bottleneck {
    /// The station.
    pub station: Station,
    /// The node of the station; `None` for a port of the switch.
    pub node: Option<usize>,
    /// Busy share of the run, from 0 to 1.
    pub share: f64,
}

/// Minimum busy share of a station that limits a run. The share is below 1 because all stations are idle at the begin
/// and at the end of a run.
const BINDS: f64 = 0.9;

impl Bottleneck {
    /// Returns the bottleneck of a run.
    pub fn of(summary: &Summary) -> Self {
        let most = |of: fn(&NodeTimes) -> Ps| {
            let busy = summary.nodes.iter().map(of).enumerate().map(|(node, busy)| (busy, Some(node)));
            busy.max_by_key(|(busy, _)| *busy).unwrap_or_default()
        };
        let threads = summary.threads.iter().map(|thread| (thread.worked, Some(thread.node)));
        let stations = [
            (Station::Thread, threads.max_by_key(|(worked, _)| *worked).unwrap_or_default()),
            (Station::Unit, most(|node| node.unit)),
            (Station::Send, most(|node| node.send)),
            (Station::Gather, most(|node| node.gather)),
            (Station::Receive, most(|node| node.receive)),
            (Station::Fetch, most(|node| node.fetch)),
            (Station::Write, most(|node| node.write)),
            // If several stations were busy equally long, `max_by_key` returns the last one. A full line keeps the port
            // of the switch and the port of the node equally busy. The messages wait at the port of the node, so it is
            // the last one in this list.
            (Station::SwitchPort, (summary.switch_port, None)),
            (Station::Port, most(|node| node.port)),
        ];
        let longest = stations.into_iter().max_by_key(|(_, (busy, _))| *busy);
        let (station, (busy, node)) = longest.unwrap_or((Station::Thread, (Ps::ZERO, None)));
        Self { station, node, share: busy.0 as f64 / summary.ended.0.max(1) as f64 }
    }

    /// Returns whether the station was busy nearly all the time.
    pub fn binds(self) -> bool {
        self.share >= BINDS
    }
}

impl fmt::Display for Bottleneck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = self.share * 100.0;
        match self.binds() {
            true => write!(f, "{} ({share:.0} %)", self.station.name()),
            false => write!(f, "latency ({} {share:.0} %)", self.station.name()),
        }
    }
}
