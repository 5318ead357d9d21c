//! State that the workers of a client share.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

use doorbell_verbs::Device;

use crate::cache::HostCache;
use crate::counts::ClientCounts;
use crate::lane::Awaited;
use crate::layout::NodeVersion;
use crate::methods::Strategy;
use crate::nodes::Nodes;
use crate::requests::Requests;
use crate::slots::Slot;

/// Maximum number of shortcuts that wait to be written in the background. A client posts one such WRITE at a time, so a
/// client with many concurrent operations may complete them faster than it writes their shortcuts.
const LATE_MAX: usize = 1024;

/// Shortcuts to be written later. Each entry has its due time, the number of the key, and the place of the node.
#[derive(Debug, Default)]
pub(crate) struct Late {
    pub(crate) delay_ns: u64,
    queue: RefCell<VecDeque<(u64, u32, NodeVersion)>>,
    /// Number of the post with the latest WRITE of a shortcut.
    posted: Cell<u64>,
}

impl Late {
    pub(crate) fn new(delay_ns: u64) -> Self {
        Self { delay_ns, ..Self::default() }
    }

    /// Appends a shortcut. A full queue first drops the oldest shortcut: shortcuts are hints, and a newer shortcut of
    /// the same key is likely to follow.
    pub(crate) fn push(&self, now_ns: u64, number: u32, place: NodeVersion) {
        let mut queue = self.queue.borrow_mut();
        if queue.len() == LATE_MAX {
            queue.pop_front();
        }
        queue.push_back((now_ns + self.delay_ns, number, place));
    }

    pub(crate) fn due_ns(&self) -> Option<u64> {
        self.queue.borrow().front().map(|&(due_ns, ..)| due_ns)
    }
}

/// State that the workers of a client share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) device: Device,
    pub(crate) nodes: Nodes,
    pub(crate) cache: Arc<HostCache>,
    pub(crate) requests: RefCell<Requests>,
    pub(crate) slots: Vec<Slot>,
    pub(crate) counts: Cell<ClientCounts>,
    pub(crate) random: Cell<u64>,
    pub(crate) lease_ns: u64,
    pub(crate) strategy: Strategy,
    pub(crate) late: Late,
    /// Number of locks that the client has taken.
    pub(crate) locks: Cell<u64>,
    /// The number under which the memory node and the metadata service know this client.
    pub(crate) number: u32,
}

impl Core {
    pub(crate) fn count(&self, change: impl FnOnce(&mut ClientCounts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    /// Writes the next shortcut in the background, if the shortcut is due and the previous WRITE of a shortcut is
    /// complete.
    pub(crate) fn write_late(&self, now_ns: u64) {
        let slot = self.slots.len();
        let lane = self.nodes.lane();
        let is_free = lane.is_done(slot, self.late.posted.get()).is_ready();
        let mut queue = self.late.queue.borrow_mut();
        if let Some(&(due_ns, number, place)) = queue.front()
            && is_free
            && due_ns <= now_ns
        {
            queue.pop_front();
            // The put, insert or delete has taken effect. If this WRITE cannot be posted, the next operation reports
            // the error.
            if let Ok(posted) = lane.write_shortcut(slot, number, place, Awaited::All) {
                self.late.posted.set(posted);
            }
        }
    }

    /// Continues with the memory node `node` alone, after the other memory node was given up.
    pub(crate) fn alone(&self, node: usize) {
        self.nodes.alone(node);
        self.late.posted.set(0); // no WRITE of a shortcut was posted to the other node
    }
}
