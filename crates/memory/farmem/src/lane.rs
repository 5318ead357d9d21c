//! A queue pair to a memory node, shared by the slots of a client. Each slot posts lists of verbs and is notified when
//! a list is complete.

use std::cell::Cell;
use std::rc::Rc;
use std::task::Poll;

use doorbell_exchange::rc::RcSettings;
use doorbell_exchange::setup::EndpointDescription;
use doorbell_verbs::{
    Access, Completion, MemoryKind, Payload, Pd, PostErrorKind, RKey, Region, SendFlags, SendOperation, SendRequest,
    Status,
};
use serde::{Deserialize, Serialize};

use crate::error::{OpenError, StoreError};
use crate::layout::{Geometry, NodeVersion, Word};
use crate::memory::{MemoryDescription, MemoryQp};

/// Maximum number of verbs that a slot posts in one list.
const MAX_LIST: usize = 4;
/// Maximum number of work requests that a slot has in the send queue: one list that an operation waits for, and one
/// list without a waiting operation.
const SLOT_DEPTH: usize = 2 * MAX_LIST;
/// Maximum number of completions taken at a time.
const POLL_LIST: usize = 32;

/// A verb on the memory node. `remote` is an offset in the memory node's region, and `local` is an offset in the slot's
/// memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Verb {
    Read { remote: u64, local: usize, length: usize },
    Write { remote: u64, local: usize, length: usize },
    CompareSwap { remote: u64, local: usize, compare: u64, swap: u64 },
}

/// Counters of the verbs that a client posted and of their payload on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerbCounts {
    /// READs.
    pub reads: u64,
    /// Payload bytes of the READs.
    pub read_bytes: u64,
    /// WRITEs.
    pub writes: u64,
    /// Payload bytes of the WRITEs.
    pub written_bytes: u64,
    /// CASes.
    pub compare_swaps: u64,
    /// Posts that operations waited for. With one memory node, this is the number of the operations' round trips. With
    /// two memory nodes, each post to either node counts.
    pub awaited_posts: u64,
}

/// A lane that is not connected yet.
#[derive(Debug)]
pub(crate) struct LaneEnd {
    qp: MemoryQp,
    slots: usize,
    settings: RcSettings,
}

impl LaneEnd {
    pub(crate) fn new(pd: &Pd, slots: usize, settings: RcSettings) -> Result<Self, OpenError> {
        Ok(Self { qp: MemoryQp::new(pd, slots * SLOT_DEPTH, Access::empty())?, slots, settings })
    }

    pub(crate) fn description(&self) -> EndpointDescription {
        self.qp.description()
    }

    /// Connects the lane. `verbs_left` is the number of verbs that may still be posted, which all lanes of a client
    /// share.
    pub(crate) fn connect(self, memory: &MemoryDescription, verbs_left: &VerbsLeft) -> Result<Lane, OpenError> {
        let geometry = memory.geometry;
        geometry.check_region(&memory.region)?;
        self.qp.connect(&memory.endpoint, &self.settings)?;
        let area_bytes = 2 * geometry.node_bytes() + WORDS_BYTES;
        let local = self.qp.qp.pd().allocate(self.slots * area_bytes, Access::LOCAL_WRITE, MemoryKind::Plain)?;
        Ok(Lane {
            qp: self.qp,
            local,
            area_bytes,
            base: memory.region.address,
            rkey: memory.region.rkey,
            geometry,
            slots: (0..self.slots).map(|_| Cell::default()).collect(),
            failed: Cell::new(None),
            counts: Cell::default(),
            verbs_left: Rc::clone(verbs_left),
        })
    }
}

/// Number of verbs that a client may still post before it stops. `None` means unlimited.
pub(crate) type VerbsLeft = Rc<Cell<Option<u64>>>;

/// Bytes at the start of a slot's memory for the results of READs and CASes of one word.
const WORDS_BYTES: usize = 64;
/// Offsets of the one-word results in a slot's memory.
pub(crate) const WORDS: [usize; 4] = [0, 8, 24, 32];
/// Offset, in a slot's memory, of the shortcut to be written.
const NEW_SHORTCUT: usize = 16;

/// Completions for which an operation waits after it has posted a list of verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// No verb: the list notifies no operation.
    Nothing,
    /// All verbs: the list notifies the operation once.
    All,
    /// The first verb, and then, if the operation asks for them, all verbs.
    First,
}

/// Number of signaled completions that a slot has requested, and number of those that have arrived. They arrive in the
/// order of the posts.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    posted: u64,
    done: u64,
}

#[derive(Debug)]
pub(crate) struct Lane {
    qp: MemoryQp,
    local: Region,
    area_bytes: usize,
    base: u64,
    rkey: RKey,
    pub(crate) geometry: Geometry,
    slots: Vec<Cell<Progress>>,
    failed: Cell<Option<StoreError>>,
    counts: Cell<VerbCounts>,
    verbs_left: VerbsLeft,
}

impl Lane {
    /// Returns the offset, in the slot's memory, of the node to be written.
    pub(crate) fn outgoing(&self) -> usize {
        WORDS_BYTES
    }

    /// Returns the offset, in the slot's memory, of the node that was read.
    pub(crate) fn incoming(&self) -> usize {
        WORDS_BYTES + self.geometry.node_bytes()
    }

    pub(crate) fn copy_in(&self, slot: usize, local: usize, bytes: &[u8]) {
        self.local.copy_in(slot * self.area_bytes + local, bytes);
    }

    pub(crate) fn copy_out(&self, slot: usize, local: usize, out: &mut [u8]) {
        self.local.copy_out(slot * self.area_bytes + local, out);
    }

    pub(crate) fn word(&self, slot: usize, local: usize) -> u64 {
        self.local.load_acquire_u64(slot * self.area_bytes + local)
    }

    pub(crate) fn set_word(&self, slot: usize, local: usize, word: u64) {
        self.local.store_release_u64(slot * self.area_bytes + local, word);
    }

    pub(crate) fn counts(&self) -> VerbCounts {
        self.counts.get()
    }

    pub(crate) fn failed(&self) -> Option<StoreError> {
        self.failed.get()
    }

    /// Fails all outstanding verbs. The memory node has stopped, so no answer will come.
    pub(crate) fn abandon(&self) {
        self.failed.set(Some(self.failed.get().unwrap_or(StoreError::Memory(Status::WorkRequestFlushed))));
    }

    /// Posts a list of verbs, which the memory node executes in order. Returns the number for
    /// [`is_done`](Self::is_done), which stands for the first awaited completion of the list.
    pub(crate) fn post(&self, slot: usize, list: &[Verb], awaited: Awaited) -> Result<u64, StoreError> {
        if let Some(error) = self.failed.get() {
            return Err(error);
        }
        let alive = match self.verbs_left.get() {
            Some(left) => {
                self.verbs_left.set(Some(left.saturating_sub(list.len() as u64)));
                &list[..list.len().min(left as usize)]
            }
            None => list,
        };
        let mut sges = [doorbell_verbs::Sge::default(); MAX_LIST];
        let nothing = SendRequest {
            wr_id: slot as u64,
            operation: SendOperation::Send,
            flags: SendFlags::empty(),
            payload: Payload::Sges(&[]),
            destination: None,
        };
        let mut counts = self.counts.get();
        let rkey = self.rkey;
        let mut operations = [SendOperation::Send; MAX_LIST];
        for (index, verb) in alive.iter().enumerate() {
            let (operation, local, length) = match *verb {
                Verb::Read { remote, local, length } => {
                    counts.reads += 1;
                    counts.read_bytes += length as u64;
                    (SendOperation::Read { remote_address: self.base + remote, rkey }, local, length)
                }
                Verb::Write { remote, local, length } => {
                    counts.writes += 1;
                    counts.written_bytes += length as u64;
                    (SendOperation::Write { remote_address: self.base + remote, rkey }, local, length)
                }
                Verb::CompareSwap { remote, local, compare, swap } => {
                    counts.compare_swaps += 1;
                    let remote_address = self.base + remote;
                    (SendOperation::CompareSwap { remote_address, rkey, compare, swap }, local, 8)
                }
            };
            operations[index] = operation;
            sges[index] = self.local.sge(slot * self.area_bytes + local, length);
        }
        let mut requests = [nothing; MAX_LIST];
        for (index, request) in requests[..alive.len()].iter_mut().enumerate() {
            let is_last = index + 1 == list.len();
            let is_awaited = match awaited {
                Awaited::Nothing => false,
                Awaited::All => is_last,
                Awaited::First => is_last || index == 0,
            };
            let flags = if is_awaited { SendFlags::SIGNALED } else { SendFlags::empty() };
            let payload = Payload::Sges(std::slice::from_ref(&sges[index]));
            *request = SendRequest { operation: operations[index], flags, payload, ..nothing };
        }
        self.qp.qp.post_send(&requests[..alive.len()]).map_err(|error| self.explain(error))?;
        counts.awaited_posts += u64::from(awaited != Awaited::Nothing);
        self.counts.set(counts);
        let Progress { posted, done } = self.slots[slot].get();
        let more = match awaited {
            Awaited::Nothing => 0,
            Awaited::First if list.len() > 1 => 2,
            _ => 1,
        };
        self.slots[slot].set(Progress { posted: posted + more, done });
        if alive.len() < list.len() {
            self.failed.set(Some(StoreError::Dead));
        }
        Ok(posted + more.min(1))
    }

    /// WRITEs the place of a key's newest node to the key's shortcut.
    pub(crate) fn write_shortcut(
        &self,
        slot: usize,
        number: u32,
        place: NodeVersion,
        awaited: Awaited,
    ) -> Result<u64, StoreError> {
        self.set_word(slot, NEW_SHORTCUT, Word::Link(place).bits());
        let verb = Verb::Write { remote: self.geometry.shortcut(number), local: NEW_SHORTCUT, length: 8 };
        self.post(slot, &[verb], awaited)
    }

    /// Returns the error for a failed post. If the queue pair has failed, the first failed completion gives the reason.
    fn explain(&self, error: doorbell_verbs::PostError) -> StoreError {
        if matches!(error.kind, PostErrorKind::WrongState { .. }) {
            self.poll();
        }
        let error = self.failed.get().unwrap_or(StoreError::Post(error));
        self.failed.set(Some(error));
        error
    }

    /// Takes completions. Returns whether there were any.
    pub(crate) fn poll(&self) -> bool {
        let mut list = [Completion::default(); POLL_LIST];
        let Ok(count) = self.qp.cq.poll(&mut list) else {
            // This cannot happen: a slot has at most one completion, each failed request has one, and the queue has
            // room for all of them.
            self.failed.set(Some(self.failed.get().unwrap_or(StoreError::Memory(Status::LocalQpOperation))));
            return true;
        };
        for completion in &list[..count] {
            match completion.status {
                Status::Success => {
                    if let Some(slot) = self.slots.get(completion.wr_id as usize) {
                        let Progress { posted, done } = slot.get();
                        slot.set(Progress { posted, done: done + 1 });
                    }
                }
                // The first error is the reason. Later flushed requests are its consequences.
                status if self.failed.get().is_none() => self.failed.set(Some(StoreError::Memory(status))),
                _ => {}
            }
        }
        count > 0
    }

    /// Returns whether this slot has outstanding completions.
    pub(crate) fn is_outstanding(&self, slot: usize) -> bool {
        let Progress { posted, done } = self.slots[slot].get();
        posted > done && self.failed.get().is_none()
    }

    /// Returns whether the post with this number in this slot is complete.
    pub(crate) fn is_done(&self, slot: usize, number: u64) -> Poll<Result<(), StoreError>> {
        match (self.slots[slot].get().done >= number, self.failed.get()) {
            (true, _) => Poll::Ready(Ok(())),
            (false, Some(error)) => Poll::Ready(Err(error)),
            (false, None) => Poll::Pending,
        }
    }
}
