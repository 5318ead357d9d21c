//! Faults that a plan injects into the packets of a node.

use std::io::Write;
use std::iter;

use doorbell_fabric::{FaultFilter, FaultPlan, PlannedOrder, ReceivedRun};
use doorbell_rnic::{Path, Rnic};
use doorbell_verbs::{AsyncEvent, PortError, PortState};
use doorbell_wire::{BTH_LEN, BthRepr, Outer};

use super::node::{Frame, address_of, node_of};
use super::{EventKind, Leaves, World};
use crate::time::Ps;

/// Number of the only port of a node.
const PORT: u8 = 1;

/// Injected faults of one node.
#[derive(Debug)]
pub(crate) struct InjectedFaults {
    arriving: FaultFilter,
    /// Faults of the packets that leave; `None` without rules for them.
    leaving: Option<FaultFilter>,
    port: Result<PortState, PortError>,
    /// Time at which the port comes up again.
    up_at: Option<Ps>,
    /// Time of the earliest event that releases held packets.
    release_at: Option<Ps>,
}

/// A packet that leaves a node.
struct Leaving {
    outer: Outer,
    source_port: u16,
    bytes: Vec<u8>,
}

impl Leaving {
    fn new(run: &ReceivedRun<'_>) -> Self {
        Self { outer: run.outer, source_port: run.source_port, bytes: run.bytes.to_vec() }
    }
}

impl InjectedFaults {
    pub(crate) fn new(plan: &FaultPlan) -> Self {
        // Simulated packets have no ICRC.
        let (arriving, leaving) = (FaultFilter::new(plan.clone(), false), FaultFilter::outbound(plan, false));
        Self { arriving, leaving, port: Ok(PortState::Active), up_at: None, release_at: None }
    }

    /// Writes one line of JSON to a journal for each rule that fires.
    pub(crate) fn with_journal(mut self, journal: &(impl Write + Clone + Send + 'static)) -> Self {
        self.arriving = self.arriving.with_journal(journal.clone());
        self.leaving = self.leaving.map(|filter| filter.with_journal(journal.clone()));
        self
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

    fn filters(&self) -> impl Iterator<Item = &FaultFilter> {
        iter::once(&self.arriving).chain(&self.leaving)
    }

    /// Returns whether no packet is held back.
    pub(crate) fn is_empty(&self) -> bool {
        self.filters().all(|filter| filter.poll_timeout().is_none())
    }

    /// Returns the number of firings of each rule, with the number of the rule in the plan, from 1.
    pub(crate) fn fired(&self) -> impl Iterator<Item = (usize, u64)> {
        self.filters().flat_map(FaultFilter::fired)
    }

    /// Returns whether the plan has rules for packets that leave.
    pub(super) fn strike_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// Passes an arriving frame to the RNIC, unless a fault strikes it. Returns the time of a new event that must
    /// release held packets, or bring the port up.
    pub(super) fn receive(&mut self, now: Ps, frame: &Frame, rnic: &mut Rnic) -> Option<Ps> {
        let (outer, source_port, bytes) = (frame.outer(), frame.source_port, &frame.bytes[..]);
        let run = ReceivedRun { outer, source_port, bytes, segment_bytes: bytes.len() };
        let is_up = self.is_up();
        self.arriving.pass(now.as_ns(), run, &mut |run: ReceivedRun<'_>| {
            if is_up {
                handle(now, &run, rnic);
            }
        });
        while let Some(order) = self.arriving.take_order() {
            self.obey(now, order, rnic);
        }
        self.next_release()
    }

    /// Passes a packet that leaves at the time `leaves` through the faults, and adds the remaining packets to `left`.
    /// Returns the time of a new event that must release held packets, or bring the port up.
    fn send(&mut self, leaves: Ps, run: ReceivedRun<'_>, rnic: &mut Rnic, left: &mut Vec<Leaving>) -> Option<Ps> {
        let filter = self.leaving.as_mut()?;
        filter.pass(leaves.as_ns(), run, &mut |run: ReceivedRun<'_>| left.push(Leaving::new(&run)));
        while let Some(order) = self.leaving.as_mut().and_then(FaultFilter::take_order) {
            self.obey(leaves, order, rnic);
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

    /// Passes the arriving packets to the RNIC that were held back until now, and adds the leaving ones to `left`.
    /// Brings the port up if it is time. Returns the time of the next call.
    fn release(&mut self, now: Ps, rnic: &mut Rnic, left: &mut Vec<Leaving>) -> Option<Ps> {
        if self.release_at.is_some_and(|at| at <= now) {
            self.release_at = None;
        }
        if self.up_at.is_some_and(|at| at <= now) {
            (self.port, self.up_at) = (Ok(PortState::Active), None);
            rnic.events().push(AsyncEvent::PortActive(PORT));
            rnic.events().push(AsyncEvent::GidChange(PORT));
        }
        let is_up = self.is_up();
        self.arriving.release(now.as_ns(), &mut |run: ReceivedRun<'_>| {
            if is_up {
                handle(now, &run, rnic);
            }
        });
        if let Some(filter) = &mut self.leaving {
            filter.release(now.as_ns(), &mut |run: ReceivedRun<'_>| {
                if is_up {
                    left.push(Leaving::new(&run));
                }
            });
        }
        self.next_release()
    }

    fn next_release(&mut self) -> Option<Ps> {
        let held = self.filters().filter_map(FaultFilter::poll_timeout).min().map(Ps::from_ns);
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
    /// Puts a packet on the line that leaves a node at the time `leaves`, unless an injected fault strikes it.
    pub(super) fn send_under_faults(&mut self, node: usize, leaves: Ps, path: &Path, source_port: u16, bytes: &[u8]) {
        let outer = Outer {
            src: address_of(node),
            dst: path.destination,
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit,
            identification: None,
            dont_fragment: None,
        };
        let run = ReceivedRun { outer, source_port, bytes, segment_bytes: bytes.len() };
        let mut left = Vec::new();
        let due = self.faults[node].send(leaves, run, &mut self.nodes[node].rnic, &mut left);
        self.launch_all(node, leaves, left);
        if let Some(due) = due {
            self.push(due, EventKind::Released { node: node as u32 });
        }
    }

    /// Delivers and sends the packets of a node that an injected fault has held back until now.
    pub(super) fn release_delayed(&mut self, node: usize) {
        let now = self.now;
        let host = &mut self.nodes[node];
        host.ring_receives(now);
        let mut left = Vec::new();
        let due = self.faults[node].release(now, &mut host.rnic, &mut left);
        // The packets of the port that have not left yet go first.
        let leaves = host.port.free().max(now);
        self.launch_all(node, leaves, left);
        if let Some(due) = due {
            self.push(due, EventKind::Released { node: node as u32 });
        }
        self.moved_at = now;
        self.pump(node, Leaves::Now);
    }

    fn launch_all(&mut self, from: usize, leaves: Ps, packets: Vec<Leaving>) {
        let places = self.nodes.len() + usize::from(self.middlebox.is_some());
        for Leaving { outer, source_port, bytes } in packets {
            let to = node_of(outer.dst).filter(|&to| to < places);
            let Some(to) = to else { continue }; // no such node: the packet is lost
            let header = bytes.first_chunk::<BTH_LEN>().map(BthRepr::read).unwrap_or_default();
            let others = BTH_LEN + header.opcode.extension_len() + usize::from(header.pad_count);
            let number = self.frames.take(&bytes);
            let frame = &mut self.frames[number];
            (frame.from, frame.to, frame.opcode) = (from, to, header.opcode);
            (frame.payload, frame.traffic_class) = (bytes.len().saturating_sub(others) as u64, outer.traffic_class);
            frame.source_port = source_port;
            self.launch(number, leaves);
        }
    }
}
