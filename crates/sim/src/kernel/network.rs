//! What lies between nodes: switches with their ports, the way that a frame takes, and pauses.
//!
//! A port is a [`Lane`]: a frame is given its time on the line when it comes to the port, with no event when it leaves.
//! A pause (IEEE 802.1Qbb) then moves what the port has promised: each frame that had not begun to leave comes later by
//! the pause. Such a frame's arrival is an event already, so it learns of the pause there, and comes again.

use std::collections::VecDeque;

use doorbell_wire::scramble;

use super::Counts;
use super::node::{Frame, line_bytes};
use super::stations::Lane;
use crate::testbed::{Forwarding, Link, Switch, WhenFull};
use crate::time::{Ps, Rate};
use crate::topology::Topology;

/// Pauses of one port that sends to a switch.
#[derive(Debug, Default)]
struct Pauses {
    /// From when, and by how much what had not begun then is later.
    list: VecDeque<(Ps, Ps)>,
    /// Pauses that are no longer in the list, since all frames that they concern have arrived.
    past: u64,
    /// It sends nothing before.
    until: Ps,
}

/// What a frame needs to learn of pauses of the port that it came over.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hop {
    /// The switch that it comes to.
    switch: u32,
    /// The port that it comes over, among all that send to switches.
    port: u32,
    /// When its first bit leaves that port, as far as is known.
    begins: Ps,
    /// Pauses that there had been when it was given its time.
    made: u64,
    /// Pauses that its time has in it.
    seen: u64,
}

/// What becomes of a frame at a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forwarded {
    /// It was held up by a pause, and comes later.
    Later(Ps),
    /// No room: it is gone.
    Dropped,
    /// It arrives at its node.
    AtNode(Ps),
    /// It arrives at the next switch.
    AtSwitch(Ps),
}

/// A port pauses, and what it has promised for later moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Paused {
    /// The node whose port it is; a switch's port has moved already.
    pub(crate) node: Option<usize>,
    pub(crate) from: Ps,
    pub(crate) by: Ps,
    /// Is what it pauses for over?
    pub(crate) check: Check,
    /// When that is to be looked at.
    pub(crate) check_at: Ps,
}

/// A port that pauses because of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    /// Among all that send to switches.
    port: u32,
    /// Among the ports of switches.
    queue: u32,
}

/// Switches and the cables between them.
#[derive(Debug)]
pub(crate) struct Network {
    topology: Topology,
    rate: Rate,
    propagation: Ps,
    /// Ports of switches: first those to nodes, in their order; then those of leaves to spines, leaf by leaf; then those
    /// of spines to leaves, spine by spine.
    ports: Vec<Lane>,
    /// Of all ports that send to switches: first those of nodes, then [`Self::ports`].
    pauses: Vec<Pauses>,
}

impl Network {
    pub(crate) fn new(topology: Topology, link: &Link) -> Self {
        let nodes = topology.nodes();
        let between = match topology {
            Topology::Pair | Topology::Star { .. } => 0,
            Topology::Clos { spines, .. } => 2 * topology.leaves() * spines,
        };
        let ports = if topology.switches() == 0 { 0 } else { nodes + between };
        Self {
            topology,
            rate: link.rate,
            propagation: link.propagation,
            ports: vec![Lane::new(link.rate); ports],
            pauses: (0..nodes + ports).map(|_| Pauses::default()).collect(),
        }
    }

    /// Is there a switch between nodes?
    pub(crate) fn has_switch(&self) -> bool {
        !self.ports.is_empty()
    }

    /// How many switches there are.
    pub(crate) fn switches(&self) -> usize {
        self.topology.switches()
    }

    /// How long the busiest port of a switch sent.
    pub(crate) fn busy(&self) -> Ps {
        self.ports.iter().map(Lane::busy).max().unwrap_or_default()
    }

    /// A frame leaves its node, its first bit at this time: it is on its way to its node's switch.
    pub(crate) fn enter(&self, frame: &mut Frame, begins: Ps) {
        let switch = match self.topology {
            Topology::Pair | Topology::Star { .. } => 0,
            Topology::Clos { hosts, .. } => frame.from / hosts,
        };
        frame.hop = self.hop(switch, frame.from, begins);
    }

    fn hop(&self, switch: usize, port: usize, begins: Ps) -> Hop {
        let pauses = &self.pauses[port];
        let made = pauses.past + pauses.list.len() as u64;
        Hop { switch: switch as u32, port: port as u32, begins, made, seen: made }
    }

    /// Which port of a switch a frame leaves by, and which switch is there; `None` is its node.
    fn route(&self, switch: usize, frame: &Frame) -> (usize, Option<usize>) {
        let Topology::Clos { nodes, hosts, spines } = self.topology else { return (frame.to, None) };
        let (leaves, home) = (self.topology.leaves(), frame.to / hosts);
        if switch == home {
            (frame.to, None)
        } else if switch < leaves {
            let spine = spine_of(frame, spines);
            (nodes + switch * spines + spine, Some(leaves + spine))
        } else {
            (nodes + leaves * spines + (switch - leaves) * leaves + home, Some(home))
        }
    }

    /// A frame's last bit is at a switch: it goes on, if there is room. The second is a port that pauses.
    pub(crate) fn forward(
        &mut self,
        now: Ps,
        switch: &Switch,
        frame: &mut Frame,
        counts: &mut Counts,
    ) -> (Forwarded, Option<Paused>) {
        let later = self.held_up(&mut frame.hop);
        if later > Ps::ZERO {
            return (Forwarded::Later(now + later), None);
        }
        let (port, _) = self.route(frame.hop.switch as usize, frame);
        let header = match switch.forwarding {
            // It was known where to when the first bits were there.
            Forwarding::CutThrough => self.ports[port].time_of(line_bytes(frame.bytes.len())),
            Forwarding::StoreAndForward => Ps::ZERO,
        };
        let at = (now + switch.latency).since(header);
        self.enter_port(now, at, switch, Some(frame.hop.port), frame, counts)
    }

    /// A frame on its way to the middlebox of its switch: how much later than promised it is there.
    pub(crate) fn held_up_before_box(&mut self, frame: &mut Frame) -> Ps {
        self.held_up(&mut frame.hop)
    }

    /// A frame leaves the middlebox of a switch `at` some time. Nobody has it pause: what a queue has no room for is
    /// lost, and the box sends it again.
    pub(crate) fn leave_box(&mut self, at: Ps, switch: &Switch, frame: &mut Frame, counts: &mut Counts) -> Forwarded {
        frame.hop = Hop::default();
        self.enter_port(at, at, switch, None, frame, counts).0
    }

    /// A frame comes to the port that it leaves its switch by. `from` is the port that it came over, which may have to
    /// pause.
    fn enter_port(
        &mut self,
        now: Ps,
        at: Ps,
        switch: &Switch,
        from: Option<u32>,
        frame: &mut Frame,
        counts: &mut Counts,
    ) -> (Forwarded, Option<Paused>) {
        let (port, next) = self.route(frame.hop.switch as usize, frame);
        let bytes = line_bytes(frame.bytes.len());
        let service = self.ports[port].time_of(bytes);
        let waiting = self.waiting(at, port);
        counts.longest_queue_bytes = counts.longest_queue_bytes.max(waiting);
        if waiting + bytes > switch.queue {
            counts.dropped += 1;
            return (Forwarded::Dropped, None);
        }
        if switch.mark_at > 0 && waiting >= switch.mark_at {
            counts.marked += 1;
        }
        let mut paused = None;
        if waiting >= switch.pause_at
            && switch.when_full == WhenFull::Pause
            && let Some(from) = from
        {
            paused = self.pause(now, switch, Check { port: from, queue: port as u32 }, counts);
        }
        let leaves = self.ports[port].carry(at, bytes);
        let arrives = leaves + self.propagation;
        let Some(next) = next else { return (Forwarded::AtNode(arrives), paused) };
        frame.hop = self.hop(next, self.topology.nodes() + port, leaves.since(service));
        (Forwarded::AtSwitch(arrives), paused)
    }

    /// Bytes that wait for a port: what it will carry until it is free, where it carries nothing in a pause.
    fn waiting(&self, at: Ps, port: usize) -> u64 {
        let begins = at.max(self.pauses[self.topology.nodes() + port].until);
        self.rate.bytes_in(self.ports[port].free().since(begins))
    }

    /// A pause is about to end: it goes on if the queue that it was for is still too long.
    pub(crate) fn check(&mut self, now: Ps, switch: &Switch, check: Check, counts: &mut Counts) -> Option<Paused> {
        let is_last = self.pauses[check.port as usize].until == now + self.propagation;
        let is_long = self.waiting(now, check.queue as usize) > switch.resume_at;
        if is_last && is_long { self.pause(now, switch, check, counts) } else { None }
    }

    /// How much later than promised a frame arrives, because of pauses that began since.
    fn held_up(&mut self, hop: &mut Hop) -> Ps {
        let pauses = &mut self.pauses[hop.port as usize];
        // Frames of a port arrive in the order in which they were given their times, so none that is to come needs to
        // learn of pauses before that.
        while pauses.past < hop.made && pauses.list.pop_front().is_some() {
            pauses.past += 1;
        }
        let mut later = Ps::ZERO;
        let known = hop.seen.saturating_sub(pauses.past) as usize;
        for &(from, by) in pauses.list.iter().skip(known) {
            if hop.begins + later >= from {
                later += by;
            }
        }
        hop.begins += later;
        hop.seen = pauses.past + pauses.list.len() as u64;
        later
    }

    /// A port is to send nothing until a queue has gone down. It learns of both the length of a cable later.
    fn pause(&mut self, now: Ps, switch: &Switch, check: Check, counts: &mut Counts) -> Option<Paused> {
        // What the queue's port sends from now on, unless it has to pause itself.
        let drained = self.ports[check.queue as usize].free().since(self.rate.time_of(switch.resume_at));
        let until = drained + self.propagation;
        let pauses = &mut self.pauses[check.port as usize];
        let from = (now + self.propagation).max(pauses.until);
        let by = until.since(from);
        if by == Ps::ZERO {
            return None;
        }
        counts.pauses += u64::from(from > pauses.until);
        counts.paused_ps = counts.paused_ps.saturating_add(by.0);
        pauses.until = until;
        pauses.list.push_back((from, by));
        let port = check.port as usize;
        let of_switch = port.checked_sub(self.topology.nodes());
        if let Some(port) = of_switch {
            self.ports[port].pause(from, by);
        }
        Some(Paused { node: of_switch.is_none().then_some(port), from, by, check, check_at: drained })
    }
}

/// The spine of a frame between leaves: equal-cost multipath by what identifies its flow.
fn spine_of(frame: &Frame, spines: usize) -> usize {
    let flow = (frame.from as u64) << 32 | (frame.to as u64) << 16 | u64::from(frame.source_port);
    (scramble(flow) % spines as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::{Testbed, by_name};

    fn t1() -> Testbed {
        by_name("connectx5-100g").expect("a testbed of the program").clone()
    }

    fn frame(from: usize, to: usize, source_port: u16) -> Frame {
        Frame { from, to, source_port, bytes: vec![0; 16], ..Frame::default() }
    }

    #[test]
    fn a_frame_between_leaves_goes_over_three_switches_and_home() {
        let topology = Topology::Clos { nodes: 17, hosts: 8, spines: 4 };
        let (t, mut counts) = (t1(), Counts::default());
        let mut network = Network::new(topology, &t.link);
        for (from, to, switches) in [(0, 7, 1), (0, 8, 3), (16, 3, 3), (9, 16, 3), (8, 15, 1)] {
            let mut frame = frame(from, to, 0xc123);
            network.enter(&mut frame, Ps::ZERO);
            let (mut hops, mut now) = (0, Ps(100));
            loop {
                hops += 1;
                match network.forward(now, &t.switch, &mut frame, &mut counts) {
                    (Forwarded::AtSwitch(at), None) => now = at,
                    (Forwarded::AtNode(at), None) => break assert!(at > now),
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(hops, switches, "from {from} to {to}");
        }
        assert_eq!((counts.dropped, counts.pauses), (0, 0));
    }

    #[test]
    fn flows_spread_over_all_spines_and_each_stays_on_one() {
        let mut found = [0; 4];
        for flow in 0..400 {
            let frame = frame(flow % 8, 8 + flow / 50, 0xc000 + flow as u16);
            let spine = spine_of(&frame, found.len());
            assert_eq!(spine, spine_of(&frame, found.len()));
            found[spine] += 1;
        }
        assert!(found.iter().all(|&flows| (60..140).contains(&flows)), "{found:?}");
    }

    #[test]
    fn a_pause_moves_what_had_not_begun_and_nothing_else() {
        let t = t1();
        let mut network = Network::new(Topology::Star { nodes: 2 }, &t.link);
        let mut counts = Counts::default();
        let mut hops = [50, 100, 150].map(|begins| network.hop(0, 0, t.link.propagation + Ps(begins)));
        let switch = &t.with("switch.resume_at", "0B").expect("an allowed value").switch;
        let (check, cable) = (Check { port: 0, queue: 1 }, t.link.propagation);
        // The queue is empty after 400, and the node learns of all a cable later.
        let queue = Ps(400) - network.ports[1].carry(Ps::ZERO, 0);
        network.ports[1].pause(Ps::ZERO, queue);
        let paused = network.pause(Ps(100), switch, check, &mut counts).expect("a pause");
        assert_eq!((paused.node, paused.from, paused.by), (Some(0), cable + Ps(100), Ps(300)));
        assert_eq!((paused.check, paused.check_at), (check, Ps(400)));
        // By then the queue has become longer, and later it is empty.
        network.ports[1].pause(Ps(400), Ps(100));
        let more = network.check(Ps(400), switch, check, &mut counts);
        assert_eq!(more.map(|it| (it.from, it.by, it.check_at)), Some((cable + Ps(400), Ps(100), Ps(500))));
        assert_eq!(network.check(Ps(450), switch, check, &mut counts), None, "another check is to come");
        assert_eq!(network.check(Ps(500), switch, check, &mut counts), None);
        assert_eq!((counts.pauses, counts.paused_ps), (1, 400));
        let after = network.hop(0, 0, t.link.propagation + Ps(600));
        // The second comes again before the third comes at all.
        assert_eq!([0, 1, 1, 2].map(|frame: usize| network.held_up(&mut hops[frame])), [0, 400, 0, 400].map(Ps));
        assert_eq!(hops.map(|hop| hop.begins - t.link.propagation), [Ps(50), Ps(500), Ps(550)]);
        // They have learnt of it, one by one, and what came later knew.
        assert_eq!(hops.each_mut().map(|hop| network.held_up(hop)), [Ps(0); 3]);
        assert_eq!(network.held_up(&mut { after }), Ps(0));
        assert!(network.pauses[0].list.is_empty(), "nobody will ask for these pauses");
    }
}
