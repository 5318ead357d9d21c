//! State that the programs of a run know: their objects, their work, and the possible outcomes of this work.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use doorbell_rnic::{CompletionQueue, Region, SharedReceiveQueue};
use doorbell_verbs_core::{Attachment, CompletionOpcode, CqId, QpKind, SrqId, Status};
use doorbell_wire::{PathMtu, Qpn, RKey};

use crate::common::End;

/// Size of the buffer of a message or receive.
pub(crate) const SLOT_BYTES: usize = 2048;
pub(crate) const SLOTS: usize = 320;
/// Size of the area that one end of a connection opens to its peer: bytes to WRITE, bytes to READ, and a counter.
pub(crate) const AREA_BYTES: usize = 2048;
pub(crate) const WRITE_BYTES: usize = 1024;
pub(crate) const READ_AT: usize = WRITE_BYTES;
pub(crate) const READ_BYTES: usize = AREA_BYTES - WRITE_BYTES - 8;
pub(crate) const COUNTER_AT: usize = AREA_BYTES - 8;
pub(crate) const AREAS: usize = 128;
/// Offset of the destination of UC WRITEs. No program reads these bytes.
pub(crate) const SCRATCH_AT: usize = SLOTS * SLOT_BYTES + AREAS * AREA_BYTES;
pub(crate) const MEMORY_BYTES: usize = SCRATCH_AT + SLOT_BYTES;

/// Outcome of a work request, as far as the program knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Open,
    Done(Status),
    /// The queue pair was reset or destroyed, or the device died. The work request therefore has no completion (IBTA
    /// Vol 1, 10.3.1.1).
    Dropped,
    /// The completion queue overran, and the program saw the error.
    Lost,
}

/// A work request. The number of the work request is its index.
#[derive(Debug)]
pub(crate) struct Wr {
    /// Index of the queue pair; `None` for a receive of a shared receive queue.
    pub(crate) qp: Option<usize>,
    pub(crate) node: usize,
    pub(crate) fate: Fate,
    pub(crate) slot: Option<usize>,
    pub(crate) send: Option<SendWork>,
}

#[derive(Debug)]
pub(crate) struct SendWork {
    pub(crate) opcode: CompletionOpcode,
    pub(crate) length: usize,
    pub(crate) signaled: bool,
    /// Whether the work request uses a receive of the peer.
    pub(crate) message: bool,
    pub(crate) attachment: Attachment,
    /// Whether the program of the peer saw the completion of the receive.
    pub(crate) received: bool,
    pub(crate) check: Check,
    /// Index of the connection, and the end that posted the work request.
    pub(crate) conn: Option<(usize, usize)>,
    /// Whether the remote key was already invalid at the time of the post. The work request must then fail.
    pub(crate) dead_key: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    Nothing,
    /// A READ of the area, from offset `at` on.
    Read {
        at: usize,
    },
    FetchAdd,
    Bind {
        key: RKey,
    },
    Invalidate,
    /// Invalidation of the peer's window with this key. If no window has the key, the message must fail.
    TakeBack {
        key: RKey,
    },
}

pub(crate) struct Qp {
    pub(crate) node: usize,
    pub(crate) qpn: Qpn,
    pub(crate) kind: QpKind,
    pub(crate) live: bool,
    pub(crate) end: End,
    pub(crate) shares: bool,
    /// Index of the completion queue of sends, in the list of the node.
    pub(crate) send_cq: usize,
    /// Index of the completion queue of receives, in the list of the node.
    pub(crate) recv_cq: usize,
    pub(crate) sends: VecDeque<u64>,
    pub(crate) receives: VecDeque<u64>,
    pub(crate) conn: Option<(usize, usize)>,
    /// Number of `CommunicationEstablished` events that may still come, because an earlier action caused them.
    pub(crate) may_establish: u32,
    /// Number of `SqDrained` events that may still come, because an earlier action caused them.
    pub(crate) may_drain: u32,
    pub(crate) errors: u32,
    /// Number of request packets that the queue pair had sent when the drained event came. The number must not grow
    /// until the next move to RTS.
    pub(crate) drained_at: Option<u64>,
    /// Whether the queue pair (UC or UD) was in SQE since its creation or its most recent reset.
    pub(crate) was_sq_error: bool,
    /// Whether the program moved the queue pair to the error state since its creation or its most recent reset.
    pub(crate) moved_to_error: bool,
    /// Number of the send whose failure put the queue pair into the error state or SQE.
    pub(crate) first_failure: Option<u64>,
    /// Whether completions get lost because the completion queue is too small.
    pub(crate) overruns: bool,
}

pub(crate) struct Cq {
    pub(crate) id: CqId,
    pub(crate) queue: Arc<CompletionQueue>,
    pub(crate) live: bool,
    /// Whether the queue is too small on purpose, to provoke an overrun.
    pub(crate) tiny: bool,
    pub(crate) overran: bool,
    /// Number of work requests that may complete in this queue.
    pub(crate) reserved: usize,
}

pub(crate) struct Srq {
    pub(crate) id: SrqId,
    pub(crate) queue: Arc<SharedReceiveQueue>,
    /// Numbers of the posted receives without a completion.
    pub(crate) open: BTreeSet<u64>,
    pub(crate) may_reach_limit: u32,
    /// Number of completions that vanished with their queue pair before the program saw them. Each of them may belong
    /// to a receive in `open`.
    pub(crate) unseen: usize,
}

/// A window of type 2 over an area, with the same owner as the area.
pub(crate) struct Window {
    pub(crate) name: RKey,
    pub(crate) bound: Option<RKey>,
}

/// One direction of a connection: the messages that one end sends, and the area that the other end opens to it.
pub(crate) struct Direction {
    /// Numbers of the messages that the program of the peer has not seen yet, in order.
    pub(crate) expected: VecDeque<u64>,
    pub(crate) area: usize,
    pub(crate) region: Option<Arc<Region>>,
    pub(crate) rkey: RKey,
    pub(crate) window: Option<Window>,
    /// Keys of all posted bindings of a window to the area.
    pub(crate) window_keys: BTreeSet<u32>,
    /// Contents of the area when its region was deregistered. The contents must not change after that.
    pub(crate) frozen: Option<Vec<u8>>,
    /// Expected contents of the area after all posted WRITEs, in order.
    pub(crate) written: Vec<u8>,
    pub(crate) counted: Option<u64>,
    pub(crate) adds: u64,
}

/// Possible causes of errors of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reasons {
    pub(crate) key_dead: bool,
    pub(crate) buffer_dead: bool,
    pub(crate) oversized: bool,
    pub(crate) window: bool,
    pub(crate) overrun: bool,
    pub(crate) rnr: bool,
    pub(crate) moved: bool,
    pub(crate) peer_gone: bool,
}

impl Reasons {
    pub(crate) fn any(&self) -> bool {
        let Self { key_dead, buffer_dead, oversized, window, overrun, rnr, moved, peer_gone } = *self;
        key_dead || buffer_dead || oversized || window || overrun || rnr || moved || peer_gone
    }
}

/// Connection of two queue pairs. A reconnection of the same queue pairs is another `Conn`.
pub(crate) struct Conn {
    pub(crate) kind: QpKind,
    pub(crate) mtu: PathMtu,
    pub(crate) ends: [usize; 2],
    /// Whether each end is still part of this connection: not reset, destroyed or restarted.
    pub(crate) alive: [bool; 2],
    pub(crate) ready: [bool; 2],
    /// Whether the areas are closed because both ends have left the connection.
    pub(crate) closed: bool,
    /// Whether the device of an end died while acknowledgements may have waited in it. These acknowledgements are lost.
    pub(crate) died: bool,
    pub(crate) reasons: Reasons,
    pub(crate) directions: [Direction; 2],
}

impl Conn {
    pub(crate) fn is_whole(&self) -> bool {
        self.alive == [true, true]
    }
}

/// Objects of the program of one node.
pub(crate) struct Program {
    pub(crate) seed: [u8; 32],
    pub(crate) free_slots: Vec<usize>,
    pub(crate) next_area: usize,
    pub(crate) cqs: Vec<Cq>,
    pub(crate) srq: Option<Srq>,
    /// Second region over all memory. The run deregisters this region under traffic.
    pub(crate) buffers: Option<Arc<Region>>,
    /// Whether the run has deregistered a second region and registered another one. Receives of a shared receive queue
    /// may still name the old one.
    pub(crate) lost_buffers: bool,
    pub(crate) datagram_qp: Option<usize>,
    /// Numbers of destroyed queue pairs.
    pub(crate) dead_qpns: BTreeSet<u32>,
    pub(crate) dead_keys: BTreeSet<u32>,
    pub(crate) dead_cqs: BTreeSet<u32>,
    pub(crate) dead_srqs: BTreeSet<u32>,
}
