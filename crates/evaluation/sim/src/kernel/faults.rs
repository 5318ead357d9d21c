//! Faults that a plan injects into the packets of a node.

use doorbell_fabric::{FaultFilter, FaultPlan, PlannedOrder, ReceivedRun};
use doorbell_rnic::Rnic;
use doorbell_verbs::{AsyncEvent, PortError, PortState};

use super::node::Frame;
use super::{EventKind, Leaves, World};
use crate::time::Ps;

/// Number of the only port of a node.
const PORT: u8 = 1;

/// Injected faults of one node.
#[derive(Debug)]
pub(crate) struct InjectedFaults {
    filter: FaultFilter,
    port: Result<PortState, PortError>,
    /// Time at which the port comes up again.
    up_at: Option<Ps>,
    /// Time of the earliest event that releases held packets.
    release_at: Option<Ps>,
}

impl InjectedFaults {
    pub(crate) fn new(plan: &FaultPlan) -> Self {
        // Simulated packets have no ICRC.
        let filter = FaultFilter::new(plan.clone(), false);
        Self { filter, port: Ok(PortState::Active), up_at: None, release_at: None }
    }

    /// Returns the state of the node's port.
    ///
    /// # Errors
    ///
    /// The device has failed.
    pub(crate) fn port_state(&self) -> Result<PortState, PortError> {
        self.port
    }

    /// Returns whether packets pass the port of the node.
    pub(super) fn is_up(&self) -> bool {
        self.port == Ok(PortState::Active)
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
    /// release held packets, or bring the port up.
    pub(super) fn receive(&mut self, now: Ps, frame: &Frame, rnic: &mut Rnic) -> Option<Ps> {
        let (outer, source_port, bytes) = (frame.outer(), frame.source_port, &frame.bytes[..]);
        let run = ReceivedRun { outer, source_port, bytes, segment_bytes: bytes.len() };
        let is_up = self.is_up();
        self.filter.receive(now.as_ns(), run, &mut |run: ReceivedRun<'_>| {
            if is_up {
                handle(now, &run, rnic);
            }
        });
        while let Some(order) = self.filter.take_order() {
            self.obey(now, order, rnic);
        }
        self.next_release()
    }

    /// Carries out an order of the plan to the port. An order to a port that is down has no effect.
    fn obey(&mut self, now: Ps, order: PlannedOrder, rnic: &mut Rnic) {
        match (self.port, order) {
            (Ok(PortState::Active), PlannedOrder::Down { for_ns }) => {
                self.port = Ok(PortState::Down);
                self.up_at = Some(now + Ps::from_ns(for_ns));
                rnic.events().push(AsyncEvent::PortError(PORT));
            }
            (Ok(_), PlannedOrder::DeviceFatal) => {
                self.port = Err(PortError::DeviceFatal);
                self.up_at = None;
                rnic.fail();
            }
            _ => {}
        }
    }

    /// Passes the packets to the RNIC that were held back until now, and brings the port up if it is time. Returns the
    /// time of the next call.
    pub(super) fn release(&mut self, now: Ps, rnic: &mut Rnic) -> Option<Ps> {
        if self.release_at.is_some_and(|at| at <= now) {
            self.release_at = None;
        }
        if self.up_at.is_some_and(|at| at <= now) {
            (self.port, self.up_at) = (Ok(PortState::Active), None);
            rnic.events().push(AsyncEvent::PortActive(PORT));
            rnic.events().push(AsyncEvent::GidChange(PORT));
        }
        let is_up = self.is_up();
        self.filter.release(now.as_ns(), &mut |run: ReceivedRun<'_>| {
            if is_up {
                handle(now, &run, rnic);
            }
        });
        self.next_release()
    }

    fn next_release(&mut self) -> Option<Ps> {
        let held = self.filter.poll_timeout().map(Ps::from_ns);
        let due = held.into_iter().chain(self.up_at).min()?;
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
