//! Faults that a plan injects into the packets of a node.

use doorbell_fabric::{FaultFilter, FaultPlan, ReceivedRun};
use doorbell_rnic::Rnic;

use super::node::Frame;
use super::{EventKind, Leaves, World};
use crate::time::Ps;

/// Injected faults of one node.
#[derive(Debug)]
pub(crate) struct InjectedFaults {
    filter: FaultFilter,
    /// Time of the earliest event that releases held packets.
    release_at: Option<Ps>,
}

impl InjectedFaults {
    pub(crate) fn new(plan: &FaultPlan) -> Self {
        // Simulated packets have no ICRC.
        Self { filter: FaultFilter::new(plan.clone(), false), release_at: None }
    }

    /// Returns whether no packet is held back.
    pub(crate) fn is_empty(&self) -> bool {
        self.filter.poll_timeout().is_none()
    }

    /// Returns the number of firings of each rule, with the number of the rule in the plan, from 1.
    pub(crate) fn fired(&self) -> impl Iterator<Item = (usize, u64)> {
        self.filter.fired()
    }

    /// Passes an arriving frame to the RNIC, unless a fault strikes it. Returns the time of a new event that must
    /// release held packets.
    pub(super) fn receive(&mut self, now: Ps, frame: &Frame, rnic: &mut Rnic) -> Option<Ps> {
        let (outer, source_port, bytes) = (frame.outer(), frame.source_port, &frame.bytes[..]);
        let run = ReceivedRun { outer, source_port, bytes, segment_bytes: bytes.len() };
        self.filter.receive(now.as_ns(), run, &mut |run: ReceivedRun<'_>| handle(now, &run, rnic));
        self.next_release()
    }

    /// Passes the packets to the RNIC that were held back until now. Returns the time of the next release.
    pub(super) fn release(&mut self, now: Ps, rnic: &mut Rnic) -> Option<Ps> {
        if self.release_at.is_some_and(|at| at <= now) {
            self.release_at = None;
        }
        self.filter.release(now.as_ns(), &mut |run: ReceivedRun<'_>| handle(now, &run, rnic));
        self.next_release()
    }

    fn next_release(&mut self) -> Option<Ps> {
        let due = self.filter.poll_timeout().map(Ps::from_ns)?;
        if self.release_at.is_some_and(|at| at <= due) {
            return None;
        }
        self.release_at = Some(due);
        Some(due)
    }
}

fn handle(now: Ps, run: &ReceivedRun<'_>, rnic: &mut Rnic) {
    for packet in run.segments() {
        rnic.handle_packet(now.as_ns(), &run.outer, packet);
    }
}

impl World {
    /// Delivers the packets of a node that an injected fault has held back until now.
    pub(super) fn release_delayed(&mut self, node: usize) {
        let now = self.now;
        let host = &mut self.nodes[node];
        host.ring_receives(now);
        if let Some(due) = self.faults[node].release(now, &mut host.rnic) {
            self.push(due, EventKind::Released { node: node as u32 });
        }
        self.moved_at = now;
        self.pump(node, Leaves::Now);
    }
}
