//! A queue pair to a memory node, shared by the slots of a client: each slot posts a list of verbs and is notified
//! once all of it is done.

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

/// Verbs that a slot posts in one list at most.
const MAX_LIST: usize = 4;
/// Maximum of work requests of a slot in the send queue: a list, and one without a waiting operation.
const SLOT_DEPTH: usize = 2 * MAX_LIST;
/// Completions taken at a time.
const POLL_LIST: usize = 32;

/// A verb on the memory node. Offsets of `remote` count from the start of its region, those of `local` from the start
/// of the slot's own memory.
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
    /// Bytes that they brought.
    pub read_bytes: u64,
    /// WRITEs.
    pub writes: u64,
    /// Bytes that they carried.
    pub written_bytes: u64,
    /// CASes.
    pub compare_swaps: u64,
    /// Posts that operations waited for. With one memory node that is the number of their round trips; with two, a
    /// post to each of them counts.
    pub awaited_posts: u64,
}

/// An end of a lane that is not connected yet.
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

    /// Connects the lane. `verbs_left` counts down the verbs that may be posted; all lanes of a client have one
    /// count.
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

/// Number of verbs that may be posted until a client stops, if it is to stop.
pub(crate) type VerbsLeft = Rc<Cell<Option<u64>>>;

/// Bytes for the words that READs and CASes of a slot bring.
const WORDS_BYTES: usize = 64;
/// Offsets of the words in a slot's memory.
pub(crate) const WORDS: [usize; 4] = [0, 8, 24, 32];
/// Offset of a shortcut that is to be written.
const NEW_SHORTCUT: usize = 16;

/// The verbs of a list that the operation waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// None: no operation is notified.
    Nothing,
    /// All, together.
    All,
    /// The first one, and then perhaps all.
    First,
}

/// Completions that a slot has asked for, and that have come. They come in the order of the posts.
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
    /// Returns the offset, in the slot's memory, of a node to be written.
    pub(crate) fn outgoing(&self) -> usize {
        WORDS_BYTES
    }

    /// Returns the offset of a node that was read.
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

    /// Fails all verbs that are posted and have no answer yet: the memory node serves no client any more and never
    /// answers.
    pub(crate) fn abandon(&self) {
        self.failed.set(Some(self.failed.get().unwrap_or(StoreError::Memory(Status::WorkRequestFlushed))));
    }

    /// Posts a list of verbs, which are carried out in order. Returns the number with which
    /// [`is_done`](Self::is_done) reports the end of the verbs that are awaited first.
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

    /// WRITEs where a key's newest node is.
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

    /// Returns the error for a failed post. If the queue pair has failed, its completions show the reason.
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
            // Each slot has at most one completion, and each failed request one: the queue holds them all.
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
                // The first error is the reason; flushed requests behind it are consequences.
                status if self.failed.get().is_none() => self.failed.set(Some(StoreError::Memory(status))),
                _ => {}
            }
        }
        count > 0
    }

    /// Returns whether this slot still awaits completions.
    pub(crate) fn is_outstanding(&self, slot: usize) -> bool {
        let Progress { posted, done } = self.slots[slot].get();
        posted > done && self.failed.get().is_none()
    }

    /// Returns whether the post of a slot with this number is done.
    pub(crate) fn is_done(&self, slot: usize, number: u64) -> Poll<Result<(), StoreError>> {
        match (self.slots[slot].get().done >= number, self.failed.get()) {
            (true, _) => Poll::Ready(Ok(())),
            (false, Some(error)) => Poll::Ready(Err(error)),
            (false, None) => Poll::Pending,
        }
    }
}
