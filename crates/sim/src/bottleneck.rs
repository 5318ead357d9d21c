//! What binds a run: the station that was busy longest.

use std::fmt;

use crate::simulation::{NodeTimes, Summary};
use crate::time::Ps;

/// What may be busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Station {
    /// A thread, its empty looks not counted.
    Thread,
    /// A processing unit of a NIC.
    Unit,
    /// What all units of a NIC share when they send.
    Send,
    /// What handles packets that arrive at a NIC.
    Receive,
    /// PCIe, with what a NIC fetches from memory.
    Fetch,
    /// PCIe, with what a NIC writes to memory.
    Write,
    /// A node's port.
    Port,
    /// A switch's port.
    SwitchPort,
}

impl Station {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Thread => "thread",
            Self::Unit => "processing unit",
            Self::Send => "NIC, sending",
            Self::Receive => "NIC, receiving",
            Self::Fetch => "PCIe, fetching",
            Self::Write => "PCIe, writing",
            Self::Port => "port",
            Self::SwitchPort => "switch port",
        }
    }
}

/// The station that was busy longest, and the share of the run for which it was.
///
/// A station that was busy nearly all the time is what binds. Where none was, everything waited for answers: the
/// window or the latency binds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bottleneck {
    /// Which.
    pub station: Station,
    /// Whose; none is the switch's.
    pub node: Option<usize>,
    /// Its share of the run, from 0 to 1.
    pub share: f64,
}

/// A station that was busy for this share of a run, which has a beginning and an end without load, binds it.
const BINDS: f64 = 0.9;

impl Bottleneck {
    /// That of a run.
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
            (Station::Receive, most(|node| node.receive)),
            (Station::Fetch, most(|node| node.fetch)),
            (Station::Write, most(|node| node.write)),
            // Of stations that were busy equally long the last is taken: a full line fills the ports on both sides of a
            // switch, and the node's is where messages wait.
            (Station::SwitchPort, (summary.switch_port, None)),
            (Station::Port, most(|node| node.port)),
        ];
        let longest = stations.into_iter().max_by_key(|(_, (busy, _))| *busy);
        let (station, (busy, node)) = longest.unwrap_or((Station::Thread, (Ps::ZERO, None)));
        Self { station, node, share: busy.0 as f64 / summary.ended.0.max(1) as f64 }
    }

    /// Was it busy nearly all the time?
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
