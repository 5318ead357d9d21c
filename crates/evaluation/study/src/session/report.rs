//! Report of one end about a point.

use std::collections::BTreeMap;

use doorbell_verbs::{Counters, Device, LinkCounters};
use serde::{Deserialize, Serialize};

use crate::workload::Tally;
use doorbell_machine::cpu::CpuTime;
use doorbell_record::{Buckets, Figures, counters_by_name, link_by_name};

/// Counters of a device before a point.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before {
    counters: Option<Counters>,
    link: LinkCounters,
}

impl Before {
    pub(super) fn now(device: &Device) -> Self {
        Self { counters: device.counters(), link: device.link_counters() }
    }
}

/// Report of one end about a point.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) damaged: u64,
    pub(super) stalled_on_credits: u64,
    pub(super) keepalives: u64,
    pub(super) control_sends: u64,
    pub(super) counters: BTreeMap<String, u64>,
    pub(super) link: BTreeMap<String, u64>,
    #[serde(default)]
    pub(super) cpu: CpuTime,
    /// Figures about the order of the requests that a middlebox forwarded.
    #[serde(default, skip_serializing_if = "Figures::is_empty")]
    pub(super) far: Figures,
}

/// Report of a host that performed the asking part in a session of many hosts.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Performed {
    /// Tally of each connection of the host. Times are those of the host's device.
    pub(super) tallies: Vec<Tally>,
    /// Times of rounds, if the workload measures them.
    pub(super) histogram_ns: Option<Buckets>,
    pub(super) report: Report,
}

impl Report {
    /// Adds the report of another host that performs the same part.
    pub(super) fn and(self, other: &Self) -> Self {
        let both = |mut one: BTreeMap<String, u64>, other: &BTreeMap<String, u64>| {
            for (name, count) in other {
                let sum = one.entry(name.clone()).or_default();
                *sum = sum.saturating_add(*count);
            }
            one
        };
        Self {
            sent: self.sent.saturating_add(other.sent),
            received: self.received.saturating_add(other.received),
            damaged: self.damaged.saturating_add(other.damaged),
            stalled_on_credits: self.stalled_on_credits.saturating_add(other.stalled_on_credits),
            keepalives: self.keepalives.saturating_add(other.keepalives),
            control_sends: self.control_sends.saturating_add(other.control_sends),
            counters: both(self.counters, &other.counters),
            link: both(self.link, &other.link),
            cpu: self.cpu.and(other.cpu),
            far: self.far.into_iter().chain(other.far.clone()).collect(),
        }
    }

    /// Creates the report of a point. `before` contains the counters of the device before the point, and `cpu` the CPU
    /// time since then.
    pub(super) fn new(tallies: &[Tally], device: &Device, before: &Before, cpu: CpuTime) -> Self {
        let sum = |field: fn(&Tally) -> u64| tallies.iter().map(field).sum();
        Self {
            sent: sum(|t| t.sent),
            received: sum(|t| t.received),
            damaged: sum(|t| t.damaged),
            stalled_on_credits: sum(|t| t.stalled_on_credits),
            keepalives: sum(|t| t.keepalives),
            control_sends: sum(|t| t.control_sends),
            counters: device
                .counters()
                .zip(before.counters)
                .map(|(now, before)| counters_by_name(&now.since(&before)))
                .unwrap_or_default(),
            link: link_by_name(&device.link_counters(), &before.link),
            cpu,
            far: Figures::new(),
        }
    }
}
