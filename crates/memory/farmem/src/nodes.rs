//! The memory nodes of a store, as one of its clients sees them: one, or two that hold the same.
//!
//! As long as both serve, the first one is read, and its words decide which writes have taken effect. After the
//! metadata service has given one up, the other one is used as if there had never been another.

use std::cell::Cell;

use crate::counts::ClientCounts;
use crate::error::StoreError;
use crate::lane::Lane;
use crate::layout::Geometry;

/// The memory nodes that a store has at most.
pub(crate) const MAX_REPLICAS: usize = 2;

#[derive(Debug)]
pub(crate) struct Nodes {
    lanes: Vec<Lane>,
    pub(crate) geometry: Geometry,
    /// The one that is read.
    read: Cell<usize>,
    /// There are two, and both serve as far as this client knows.
    are_both: Cell<bool>,
    /// The service reaches the node that this client does not.
    over: Cell<Option<StoreError>>,
}

impl Nodes {
    /// Returns the nodes: one, or two of the same sizes.
    pub(crate) fn new(first: Lane, second: Option<Lane>) -> Self {
        let (geometry, are_both) = (first.geometry, Cell::new(second.is_some()));
        let lanes = [first].into_iter().chain(second).collect();
        Self { lanes, geometry, read: Cell::new(0), are_both, over: Cell::new(None) }
    }

    /// Returns the lane of the node that is read.
    pub(crate) fn lane(&self) -> &Lane {
        &self.lanes[self.read.get()]
    }

    /// Its number.
    pub(crate) fn read(&self) -> usize {
        self.read.get()
    }

    /// Returns the lane of the second node, if both serve.
    pub(crate) fn replica(&self) -> Option<&Lane> {
        self.are_both.get().then(|| &self.lanes[1])
    }

    /// Returns whether the store has two nodes.
    pub(crate) fn are_two(&self) -> bool {
        self.lanes.len() == MAX_REPLICAS
    }

    /// Returns the error for which no operation can go on any more. A node that fails while both serve is no such
    /// error.
    pub(crate) fn failed(&self) -> Option<StoreError> {
        if !self.are_both.get() {
            return self.lane().failed();
        }
        let is_dead = self.lanes.iter().any(|lane| lane.failed() == Some(StoreError::Dead));
        if is_dead { Some(StoreError::Dead) } else { self.over.get() }
    }

    /// Returns the node that fails, if both are to serve.
    pub(crate) fn failing(&self) -> Option<usize> {
        self.lanes.iter().position(|lane| self.are_both.get() && lane.failed().is_some())
    }

    /// Makes this node serve alone from now on.
    pub(crate) fn alone(&self, node: usize) {
        if self.are_both.replace(false) && node < MAX_REPLICAS {
            self.lanes[1 - node].abandon();
            self.read.set(node);
        }
    }

    /// Fails all operations from now on.
    pub(crate) fn give_up(&self, error: StoreError) {
        self.over.set(Some(self.over.get().unwrap_or(error)));
    }

    /// Takes completions. Returns whether there were any.
    pub(crate) fn poll(&self) -> bool {
        self.lanes.iter().fold(false, |happened, lane| lane.poll() | happened)
    }

    /// Returns the counters of all verbs posted to the nodes.
    pub(crate) fn counts(&self) -> ClientCounts {
        let of = |lane: &Lane| ClientCounts { verbs: lane.counts(), ..ClientCounts::default() };
        self.lanes.iter().fold(ClientCounts::default(), |sum, lane| sum.and(&of(lane)))
    }
}
