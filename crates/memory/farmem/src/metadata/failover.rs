//! Detection of failed memory nodes, where two hold the same content, and the choice of the one that serves.

use super::maintenance::Lanes;
use crate::lane::{Awaited, Verb};
use crate::layout::NodeVersion;

/// Event that a client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Concern {
    /// A memory node does not answer it.
    Lost,
    /// A client does not let go of a lock.
    Suspect(u32),
    /// A link to this node stays locked.
    Stuck(NodeVersion),
    /// The service's own: this client keeps others from nodes for longer than its lease.
    Late,
}

/// A waiting client, its concern, and the tag of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) client: u32,
    pub(super) tag: u32,
    pub(super) concern: Concern,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// There is one memory node, or one that is left.
    One,
    Both,
    /// This node is to stop before any client learns of it.
    Stopping {
        node: usize,
        is_asked: bool,
    },
}

/// Result of checking the nodes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// The nodes that serve answer, so it is a client that is slow, or cannot reach them.
    pub(super) answered: Vec<Waiting>,
    /// A node was given up meanwhile.
    pub(super) over: Vec<Waiting>,
}

pub(super) struct Failover {
    lanes: Lanes,
    /// Its slot of the lanes.
    slot: usize,
    state: State,
    /// The node that serves alone, of two.
    alone: Option<usize>,
    /// READs that say whether the nodes answer, and who waits for that.
    probe: Option<([u64; 2], Vec<Waiting>)>,
    /// Clients that came after these READs were posted: the READs prove nothing about later events.
    waiting: Vec<Waiting>,
    /// Clients that waited when a node was given up.
    over: Vec<Waiting>,
}

impl Failover {
    pub(super) fn new(lanes: Lanes, slot: usize) -> Self {
        let state = if lanes.replica().is_some() { State::Both } else { State::One };
        Self { lanes, slot, state, alone: None, probe: None, waiting: Vec::new(), over: Vec::new() }
    }

    /// Returns the node that serves alone since the other one was given up.
    pub(super) fn alone(&self) -> Option<usize> {
        self.alone
    }

    /// Returns whether all serving nodes have answered each time a client doubted it.
    pub(super) fn is_quiet(&self) -> bool {
        !matches!(self.state, State::Stopping { .. }) && self.probe.is_none() && self.waiting.is_empty()
    }

    /// Adds a concern of a client.
    pub(super) fn report(&mut self, waiting: Waiting) {
        self.waiting.push(waiting);
    }

    /// Adds a concern that a client repeats, once.
    pub(super) fn hear_once(&mut self, waiting: Waiting) {
        let is_probed = self.probe.as_ref().is_some_and(|(_, probed)| probed.contains(&waiting));
        if !is_probed && !self.waiting.contains(&waiting) && !self.over.contains(&waiting) {
            self.waiting.push(waiting);
        }
    }

    /// Removes a client that is gone.
    pub(super) fn part(&mut self, client: u32) {
        let of_probe = self.probe.as_mut().map(|(_, waiting)| waiting);
        for waiting in of_probe.into_iter().chain([&mut self.waiting, &mut self.over]) {
            waiting.retain(|waiting| waiting.client != client);
        }
    }

    /// Gives up a node: it is to stop.
    pub(super) fn lose(&mut self, node: usize) {
        if self.state == State::Both && node < 2 {
            self.state = State::Stopping { node, is_asked: false };
            if let Some((_, probed)) = self.probe.take() {
                self.waiting.extend(probed);
            }
        }
    }

    /// Returns the node that is to stop, once.
    pub(super) fn next_stop(&mut self) -> Option<usize> {
        match &mut self.state {
            State::Stopping { node, is_asked } if !*is_asked => {
                *is_asked = true;
                Some(*node)
            }
            _ => None,
        }
    }

    /// Records that a node serves no client any more. Returns the one that serves alone from now on, if this changes
    /// anything.
    pub(super) fn stopped(&mut self, stopped: usize) -> Option<usize> {
        self.lose(stopped);
        match self.state {
            State::Stopping { node, .. } if node == stopped => {
                let left = 1 - node;
                self.lanes.alone(left);
                (self.state, self.alone) = (State::One, Some(left));
                self.over = std::mem::take(&mut self.waiting);
                self.alone
            }
            _ => None,
        }
    }

    /// Checks whether the nodes answer, if a client is concerned.
    pub(super) fn poll(&mut self) -> Found {
        match self.state {
            State::One => Found { over: std::mem::take(&mut self.over), answered: std::mem::take(&mut self.waiting) },
            State::Stopping { .. } => Found::default(),
            State::Both => self.look(),
        }
    }

    fn look(&mut self) -> Found {
        let lanes = [Some(self.lanes.current()), self.lanes.replica()];
        if let Some(node) = lanes.iter().flatten().position(|lane| lane.failed().is_some()) {
            self.lose(node);
            return Found::default();
        }
        let lanes = lanes.into_iter().flatten();
        if let Some((numbers, _)) = &self.probe {
            if lanes.zip(numbers).all(|(lane, &number)| lane.is_done(self.slot, number).is_ready()) {
                let answered = self.probe.take().map(|(_, waiting)| waiting).unwrap_or_default();
                return Found { answered, ..Found::default() };
            }
        } else if !self.waiting.is_empty() {
            let mut numbers = [0; 2];
            for (lane, number) in lanes.zip(&mut numbers) {
                // If that fails, so has the lane.
                *number =
                    lane.post(self.slot, &[Verb::Read { remote: 0, local: 0, length: 8 }], Awaited::All).unwrap_or(0);
            }
            self.probe = Some((numbers, std::mem::take(&mut self.waiting)));
        }
        Found::default()
    }
}
