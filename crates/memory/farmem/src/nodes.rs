//! The memory nodes of a store, as a client uses them: one, or two with the same content.
//!
//! While both memory nodes serve, clients read the first one, and the words at the first one decide which writes have
//! taken effect. After the metadata service has given one up, clients use only the other one.

use std::cell::Cell;

use crate::counts::ClientCounts;
use crate::error::StoreError;
use crate::lane::Lane;
use crate::layout::Geometry;

/// Maximum number of memory nodes of a store.
pub(crate) const MAX_REPLICAS: usize = 2;

#[derive(Debug)]
pub(crate) struct Nodes {
    lanes: Vec<Lane>,
    pub(crate) geometry: Geometry,
    /// Index of the memory node that this client reads.
    read: Cell<usize>,
    /// Whether the store has two memory nodes and both serve, as far as this client knows.
    are_both: Cell<bool>,
    /// The error of a memory node that the service reaches but this client does not. All operations fail with this
    /// error.
    over: Cell<Option<StoreError>>,
}

impl Nodes {
    /// Returns the memory nodes: one, or two with the same geometry.
    pub(crate) fn new(first: Lane, second: Option<Lane>) -> Self {
        let (geometry, are_both) = (first.geometry, Cell::new(second.is_some()));
        let lanes = [first].into_iter().chain(second).collect();
        Self { lanes, geometry, read: Cell::new(0), are_both, over: Cell::new(None) }
    }

    /// Returns the lane to the memory node that this client reads.
    pub(crate) fn lane(&self) -> &Lane {
        &self.lanes[self.read.get()]
    }

    /// Returns the index of the memory node that this client reads.
    pub(crate) fn read(&self) -> usize {
        self.read.get()
    }

    /// Returns the lane to the second memory node, if both serve.
    pub(crate) fn replica(&self) -> Option<&Lane> {
        self.are_both.get().then(|| &self.lanes[1])
    }

    /// Returns whether the store was made with two memory nodes.
    pub(crate) fn are_two(&self) -> bool {
        self.lanes.len() == MAX_REPLICAS
    }

    /// Returns the error with which all operations fail, if any. While both memory nodes serve, the failure of one does
    /// not fail operations.
    pub(crate) fn failed(&self) -> Option<StoreError> {
        if !self.are_both.get() {
            return self.lane().failed();
        }
        let is_dead = self.lanes.iter().any(|lane| lane.failed() == Some(StoreError::Dead));
        if is_dead { Some(StoreError::Dead) } else { self.over.get() }
    }

    /// Returns the index of a memory node whose lane has failed, if both memory nodes are to serve.
    pub(crate) fn failing(&self) -> Option<usize> {
        self.lanes.iter().position(|lane| self.are_both.get() && lane.failed().is_some())
    }

    /// Records that this memory node serves alone from now on.
    pub(crate) fn alone(&self, node: usize) {
        if self.are_both.replace(false) && node < MAX_REPLICAS {
            self.lanes[1 - node].abandon();
            self.read.set(node);
        }
    }

    /// Makes all operations fail with this error from now on.
    pub(crate) fn give_up(&self, error: StoreError) {
        self.over.set(Some(self.over.get().unwrap_or(error)));
    }

    /// Takes completions of all lanes. Returns whether there were any.
    pub(crate) fn poll(&self) -> bool {
        self.lanes.iter().fold(false, |happened, lane| lane.poll() | happened)
    }

    /// Returns the counters of all verbs posted to the memory nodes.
    pub(crate) fn counts(&self) -> ClientCounts {
        let of = |lane: &Lane| ClientCounts { verbs: lane.counts(), ..ClientCounts::default() };
        self.lanes.iter().fold(ClientCounts::default(), |sum, lane| sum.and(&of(lane)))
    }
}
