//! The network between nodes: switches with their ports, routes and pauses.
//!
//! A port is a [`Lane`]. When a frame reaches a port, the lane computes when the frame leaves, so the departure needs
//! no event. A later pause of the port (IEEE 802.1Qbb) delays each frame that had not begun to leave. The arrival of
//! such a frame is already an event. When this event comes, the kernel finds the pause and schedules a later arrival.
//! Of all delayed frames of a port, only the first is scheduled. In a large network with pauses, most frames in flight
//! wait in paused ports, and each pause would otherwise cost an event for each of them.

use std::collections::VecDeque;

use doorbell_wire::scramble;

use super::Counts;
use super::hop::Hop;
use super::node::{Frame, line_bytes};
use super::stations::Lane;
use crate::testbed::{Forwarding, Link, Switch, WhenFull};
use crate::time::{Ps, Rate};
use crate::topology::Topology;

/// Pauses of one port that sends to a switch.
#[derive(Debug, Default)]
struct Pauses {
    /// Begin of each pause, and the delay of the frames that had not begun to leave at that time.
    list: VecDeque<(Ps, Ps)>,
    /// Number of pauses removed from the list because all frames that they delay have arrived.
    past: u64,
    /// Time until which the port sends nothing.
    until: Ps,
    /// Frames that pauses delay, in the order in which they leave: the number of each frame, and its arrival with the
    /// pauses that it knows. Only the first frame is scheduled.
    delayed: VecDeque<(u32, Ps)>,
}

/// Arrival of a frame at a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The frame has arrived. The next delayed frame of its port, if any, is to be scheduled: the number of this frame,
    /// and its arrival with the pauses that it knows.
    Now(Option<(u32, Ps)>),
    /// A pause delayed the frame. The frame arrives at the given time.
    Later(Ps),
    /// The frame follows a delayed frame of its port, and is scheduled once that frame has arrived.
    Behind,
}

/// Result of forwarding a frame at a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forwarded {
    /// The queue had no room, so the switch dropped the frame.
    Dropped,
    /// The frame arrives at its node at the given time.
    AtNode(Ps),
    /// The frame arrives at the next switch at the given time.
    AtSwitch(Ps),
}

/// A pause of a port. The pause delays frames that the port has already scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Paused {
    /// The node whose port pauses. `None` for the port of a switch, because [`Network`] has already paused that port.
    pub(crate) node: Option<usize>,
    pub(crate) from: Ps,
    pub(crate) by: Ps,
    /// The queue to check at the end of the pause.
    pub(crate) check: Check,
    /// Time of the check.
    pub(crate) check_at: Ps,
}

/// A port that pauses, and the queue that caused the pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    /// Index among all ports that send to switches.
    port: u32,
    /// Index among the ports of switches.
    queue: u32,
}

/// Switches and the cables between them.
#[derive(Debug)]
pub(crate) struct Network {
    topology: Topology,
    rate: Rate,
    propagation: Ps,
    /// Ports of switches, in three groups: ports to nodes, in the order of nodes; ports of leaves to spines, leaf by
    /// leaf; ports of spines to leaves, spine by spine.
    ports: Vec<Lane>,
    /// Index of the first port of a leaf to a spine, and of the first port of a spine.
    groups: [usize; 2],
    /// Pauses of all ports that send to switches: first the ports of nodes, then [`Self::ports`].
    pauses: Vec<Pauses>,
}

impl Network {
    pub(crate) fn new(topology: Topology, link: &Link) -> Self {
        let nodes = topology.nodes();
        let upward = match topology {
            Topology::Pair | Topology::Star { .. } => 0,
            Topology::Clos { spines, .. } => topology.leaves() * spines,
        };
        let ports = if topology.switches() == 0 { 0 } else { nodes + 2 * upward };
        Self {
            topology,
            rate: link.rate,
            propagation: link.propagation,
            ports: vec![Lane::new(link.rate); ports],
            groups: [nodes, nodes + upward],
            pauses: (0..nodes + ports).map(|_| Pauses::default()).collect(),
        }
    }

    /// Returns whether there is a switch between nodes.
    pub(crate) fn has_switch(&self) -> bool {
        !self.ports.is_empty()
    }

    /// Returns the number of switches.
    pub(crate) fn switches(&self) -> usize {
        self.topology.switches()
    }

    /// Returns the busy time of the busiest switch port.
    pub(crate) fn busy(&self) -> Ps {
        self.ports.iter().map(Lane::busy).max().unwrap_or_default()
    }

    /// Sends a frame to the switch of its node. The first bit of the frame leaves at `begins`.
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

    /// Returns the port by which a frame leaves a switch, and the next switch. `None` means that the port leads to the
    /// node of the frame.
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

    /// Returns whether a frame whose arrival at a switch is due has arrived. `number` is the number of the frame.
    pub(crate) fn arrive(&mut self, now: Ps, number: u32, hop: &mut Hop) -> Arrival {
        let delayed = &mut self.pauses[hop.port as usize].delayed;
        if delayed.front().is_some_and(|&(first, _)| first != number) {
            // The frames of a port leave in order, so the pauses that delay the first frame delay this one too.
            delayed.push_back((number, now));
            return Arrival::Behind;
        }
        let later = self.held_up(hop);
        let delayed = &mut self.pauses[hop.port as usize].delayed;
        if later > Ps::ZERO {
            if delayed.is_empty() {
                delayed.push_back((number, now));
            }
            return Arrival::Later(now + later);
        }
        delayed.pop_front();
        Arrival::Now(delayed.front().copied())
    }

    /// Forwards a frame that has arrived at a switch. Also returns the port that has to pause, if any.
    pub(crate) fn forward(
        &mut self,
        now: Ps,
        switch: &Switch,
        frame: &mut Frame,
        counts: &mut Counts,
    ) -> (Forwarded, Option<Paused>) {
        let (port, _) = self.route(frame.hop.switch as usize, frame);
        let header = match switch.forwarding {
            // The switch began to send once the header had arrived, which is about one frame time before the last bit.
            Forwarding::CutThrough => self.ports[port].time_of(line_bytes(frame.bytes.len())),
            Forwarding::StoreAndForward => Ps::ZERO,
        };
        let at = (now + switch.latency).since(header);
        self.enter_port(now, at, switch, Some(frame.hop.port), frame, counts)
    }

    /// Forwards a frame that leaves the middlebox of a switch at the time `at`. The switch cannot pause the middlebox.
    /// If the queue is full, the switch drops the frame, and the middlebox retransmits the packet.
    pub(crate) fn leave_box(&mut self, at: Ps, switch: &Switch, frame: &mut Frame, counts: &mut Counts) -> Forwarded {
        frame.hop = Hop::default();
        self.enter_port(at, at, switch, None, frame, counts).0
    }

    /// Puts a frame into the queue of the port by which it leaves its switch. `from` is the port over which the frame
    /// came. If the queue is too long, the port `from` has to pause.
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
        let longest = &mut counts.longest_queues[self.group(port)];
        *longest = waiting.max(*longest);
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

    /// Returns the group of a port, in the order of [`Counts::longest_queues`].
    fn group(&self, port: usize) -> usize {
        self.groups.iter().filter(|&&first| port >= first).count()
    }

    /// Returns the number of bytes that wait for a port. These are the bytes that the port sends from `at`, or from the
    /// end of its pause, until it is free.
    fn waiting(&self, at: Ps, port: usize) -> u64 {
        let begins = at.max(self.pauses[self.topology.nodes() + port].until);
        self.rate.bytes_in(self.ports[port].free().since(begins))
    }

    /// Checks a pause that is about to end, and extends the pause if the queue is still too long.
    pub(crate) fn check(&mut self, now: Ps, switch: &Switch, check: Check, counts: &mut Counts) -> Option<Paused> {
        let is_last = self.pauses[check.port as usize].until == now + self.propagation;
        let is_long = self.waiting(now, check.queue as usize) > switch.resume_at;
        if is_last && is_long { self.pause(now, switch, check, counts) } else { None }
    }

    /// Returns the delay of a frame by pauses that `hop.begins` does not include yet, and adds the delay to
    /// `hop.begins`. No earlier frame of the port may still be on its way.
    pub(crate) fn held_up(&mut self, hop: &mut Hop) -> Ps {
        let pauses = &mut self.pauses[hop.port as usize];
        // Frames of a port arrive in the order in which they entered its queue. This frame and all later frames include
        // the pauses before `hop.made`, so these pauses can be removed.
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

    /// Pauses a port until a queue has drained. Both the begin and the end of the pause reach the port after the
    /// propagation delay.
    fn pause(&mut self, now: Ps, switch: &Switch, check: Check, counts: &mut Counts) -> Option<Paused> {
        // Time at which the queue has drained, unless the port of the queue has to pause too.
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

/// Selects the spine of a frame between two leaves by a hash of its flow, as equal-cost multipath does.
fn spine_of(frame: &Frame, spines: usize) -> usize {
    let flow = (frame.from as u64) << 32 | (frame.to as u64) << 16 | u64::from(frame.source_port);
    (scramble(flow) % spines as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::{Testbed, by_name};

    fn t1() -> Testbed {
        by_name("connectx5-100g").expect("a built-in testbed").clone()
    }

    fn frame(from: usize, to: usize, source_port: u16) -> Frame {
        Frame { from, to, source_port, bytes: vec![0; 16], ..Frame::default() }
    }

    #[test]
    fn a_frame_between_leaves_passes_three_switches() {
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
    fn a_pause_delays_only_frames_that_had_not_begun() {
        let t = t1();
        let mut network = Network::new(Topology::Star { nodes: 2 }, &t.link);
        let mut counts = Counts::default();
        let mut hops = [50, 100, 150].map(|begins| network.hop(0, 0, t.link.propagation + Ps(begins)));
        let switch = &t.with("switch.resume_at", "0B").expect("an allowed value").switch;
        let (check, cable) = (Check { port: 0, queue: 1 }, t.link.propagation);
        // The queue is empty after 400 ps. The begin and the end of the pause reach the node one propagation delay
        // later.
        let queue = Ps(400) - network.ports[1].carry(Ps::ZERO, 0);
        network.ports[1].pause(Ps::ZERO, queue);
        let paused = network.pause(Ps(100), switch, check, &mut counts).expect("a pause");
        assert_eq!((paused.node, paused.from, paused.by), (Some(0), cable + Ps(100), Ps(300)));
        assert_eq!((paused.check, paused.check_at), (check, Ps(400)));
        // At 400 ps the queue has become longer, so the check extends the pause. At 500 ps the queue is empty.
        network.ports[1].pause(Ps(400), Ps(100));
        let more = network.check(Ps(400), switch, check, &mut counts);
        assert_eq!(more.map(|it| (it.from, it.by, it.check_at)), Some((cable + Ps(400), Ps(100), Ps(500))));
        assert_eq!(network.check(Ps(450), switch, check, &mut counts), None, "the check at 500 ps is still to come");
        assert_eq!(network.check(Ps(500), switch, check, &mut counts), None);
        assert_eq!((counts.pauses, counts.paused_ps), (1, 400));
        let after = network.hop(0, 0, t.link.propagation + Ps(600));
        // The second frame arrives again before the third frame arrives for the first time.
        assert_eq!([0, 1, 1, 2].map(|frame: usize| network.held_up(&mut hops[frame])), [0, 400, 0, 400].map(Ps));
        assert_eq!(hops.map(|hop| hop.begins - t.link.propagation), [Ps(50), Ps(500), Ps(550)]);
        // The times of all three frames include the pauses now. The time of a later frame includes them from the start.
        assert_eq!(hops.each_mut().map(|hop| network.held_up(hop)), [Ps(0); 3]);
        assert_eq!(network.held_up(&mut { after }), Ps(0));
        assert!(network.pauses[0].list.is_empty(), "no frame needs these pauses any more");
    }

    #[test]
    fn only_the_first_delayed_frame_of_a_port_is_scheduled() {
        let t = t1();
        let mut network = Network::new(Topology::Star { nodes: 2 }, &t.link);
        let mut counts = Counts::default();
        let switch = &t.with("switch.resume_at", "0B").expect("an allowed value").switch;
        let cable = t.link.propagation;
        let mut hops = [1000, 1050, 1100].map(|begins| network.hop(0, 0, cable + Ps(begins)));
        // The queue is empty after 5000 ps. The node learns of the pause at 500 ps of the other end's time.
        network.ports[1].pause(Ps::ZERO, Ps(5000));
        let paused = network.pause(Ps(500), switch, Check { port: 0, queue: 1 }, &mut counts).expect("a pause");
        assert_eq!(paused.by, Ps(4500));
        let due = |place: u64| cable + cable + Ps(1000 + 50 * place);
        assert_eq!(network.arrive(due(0), 7, &mut hops[0]), Arrival::Later(due(0) + Ps(4500)));
        assert_eq!(network.arrive(due(1), 8, &mut hops[1]), Arrival::Behind);
        assert_eq!(network.arrive(due(2), 9, &mut hops[2]), Arrival::Behind);
        assert_eq!(network.arrive(due(0) + Ps(4500), 7, &mut hops[0]), Arrival::Now(Some((8, due(1)))));
        assert_eq!(network.held_up(&mut hops[1]), Ps(4500));
        assert_eq!(network.arrive(due(1) + Ps(4500), 8, &mut hops[1]), Arrival::Now(Some((9, due(2)))));
        assert_eq!(network.held_up(&mut hops[2]), Ps(4500));
        assert_eq!(network.arrive(due(2) + Ps(4500), 9, &mut hops[2]), Arrival::Now(None));
        // A frame that no pause delays arrives when it is due.
        let mut last = network.hop(0, 0, cable + Ps(9000));
        assert_eq!(network.arrive(cable + cable + Ps(9000), 10, &mut last), Arrival::Now(None));
    }

    #[test]
    fn ports_are_grouped_by_the_switches_that_they_join() {
        let network = Network::new(Topology::Clos { nodes: 6, hosts: 2, spines: 2 }, &t1().link);
        // Six ports to nodes, six from three leaves to two spines, six back.
        let groups: Vec<usize> = (0..network.ports.len()).map(|port| network.group(port)).collect();
        assert_eq!(groups, [[0; 6], [1; 6], [2; 6]].concat());
    }
}
