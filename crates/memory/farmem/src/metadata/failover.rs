//! Detection of failed memory nodes in a store with two, and the choice of the memory node that then serves alone.

use super::maintenance::Lanes;
use crate::lane::{Awaited, Verb};
use crate::layout::NodeVersion;

/// Reason for a check of the memory nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Concern {
    /// A memory node does not answer the client.
    Lost,
    /// The client with this number does not release a lock.
    Suspect(u32),
    /// A link to this node stays locked.
    Stuck(NodeVersion),
    /// The service itself found that this client delays the reuse of nodes for longer than its lease.
    Late,
}

/// A client that waits for the check, the reason, and the tag of the client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) client: u32,
    pub(super) tag: u32,
    pub(super) concern: Concern,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The store has one memory node, or the other one was given up.
    One,
    Both,
    /// The memory node `node` must stop before any client learns that the other one serves alone.
    Stopping {
        node: usize,
        is_asked: bool,
    },
}

/// Result of a check of the memory nodes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Clients for which all serving memory nodes have answered. So the reported client is slow or cannot reach a
    /// memory node.
    pub(super) answered: Vec<Waiting>,
    /// Clients that waited when a memory node was given up.
    pub(super) over: Vec<Waiting>,
}

pub(super) struct Failover {
    lanes: Lanes,
    /// The slot of the lanes for this check.
    slot: usize,
    state: State,
    /// The memory node that serves alone, in a store with two.
    alone: Option<usize>,
    /// Posted READs that check whether the memory nodes answer, and the clients that wait for the result.
    probe: Option<([u64; 2], Vec<Waiting>)>,
    /// Clients that came after the READs of `probe` were posted. They need another check, since these READs prove
    /// nothing about later events.
    waiting: Vec<Waiting>,
    /// Clients that waited when a memory node was given up.
    over: Vec<Waiting>,
}

impl Failover {
    pub(super) fn new(lanes: Lanes, slot: usize) -> Self {
        let state = if lanes.replica().is_some() { State::Both } else { State::One };
        Self { lanes, slot, state, alone: None, probe: None, waiting: Vec::new(), over: Vec::new() }
    }

    /// Returns the memory node that serves alone since the other one was given up.
    pub(super) fn alone(&self) -> Option<usize> {
        self.alone
    }

    /// Returns whether no check of the memory nodes is pending and no memory node is about to stop.
    pub(super) fn is_quiet(&self) -> bool {
        !matches!(self.state, State::Stopping { .. }) && self.probe.is_none() && self.waiting.is_empty()
    }

    /// Adds a client's reason for a check of the memory nodes.
    pub(super) fn report(&mut self, waiting: Waiting) {
        self.waiting.push(waiting);
    }

    /// Adds a client's reason for a check, unless the same reason is already waiting.
    pub(super) fn hear_once(&mut self, waiting: Waiting) {
        let is_probed = self.probe.as_ref().is_some_and(|(_, probed)| probed.contains(&waiting));
        if !is_probed && !self.waiting.contains(&waiting) && !self.over.contains(&waiting) {
            self.waiting.push(waiting);
        }
    }

    /// Removes the reasons of a client that is gone.
    pub(super) fn part(&mut self, client: u32) {
        let of_probe = self.probe.as_mut().map(|(_, waiting)| waiting);
        for waiting in of_probe.into_iter().chain([&mut self.waiting, &mut self.over]) {
            waiting.retain(|waiting| waiting.client != client);
        }
    }

    /// Gives up a memory node, which must stop.
    pub(super) fn lose(&mut self, node: usize) {
        if self.state == State::Both && node < 2 {
            self.state = State::Stopping { node, is_asked: false };
            if let Some((_, probed)) = self.probe.take() {
                self.waiting.extend(probed);
            }
        }
    }

    /// Returns the memory node that must stop. Later calls return `None`.
    pub(super) fn next_stop(&mut self) -> Option<usize> {
        match &mut self.state {
            State::Stopping { node, is_asked } if !*is_asked => {
                *is_asked = true;
                Some(*node)
            }
            _ => None,
        }
    }

    /// Records that a memory node serves no client any more. Returns the memory node that serves alone from now on, if
    /// this changes the state.
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

    /// Checks whether the memory nodes answer, if a client has a reason for the check.
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
                // A failed post means that the lane has failed, which a later poll detects.
                *number =
                    lane.post(self.slot, &[Verb::Read { remote: 0, local: 0, length: 8 }], Awaited::All).unwrap_or(0);
            }
            self.probe = Some((numbers, std::mem::take(&mut self.waiting)));
        }
        Found::default()
    }
}
