//! Work requests in queues, and the send queue.

use doorbell_verbs_core::{
    MAX_MESSAGE_BYTES, Payload, PdId, RecvRequest, SendFlags, SendOperation, Sge, UdDestination,
};
use doorbell_wire::Psn;
use smallvec::SmallVec;

/// A send work request in the send queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWqe {
    pub(crate) wr_id: u64,
    pub(crate) operation: SendOperation,
    pub(crate) flags: SendFlags,
    pub(crate) inline: bool,
    pub(crate) sges: u8,
    pub(crate) length: u32,
    /// Number of packet sequence numbers that the request takes: the number of its packets; for a READ, the number of
    /// response packets; for an operation that sends no packet, 0.
    pub(crate) packets: u32,
    /// Sequence number of the first packet. The field is valid once the first packet was sent.
    pub(crate) first_psn: Psn,
    /// Number of response packets of a READ or atomic that have arrived.
    pub(crate) received: u32,
}

impl SendWqe {
    /// Content of an unused place.
    const EMPTY: Self = Self {
        wr_id: 0,
        operation: SendOperation::Send,
        flags: SendFlags::empty(),
        inline: false,
        sges: 0,
        length: 0,
        packets: 0,
        first_psn: Psn::new(0),
        received: 0,
    };
}

/// The send queue: a ring. It accepts exactly as many requests as the program has asked for (`depth`).
#[derive(Debug)]
pub(crate) struct SendQueue {
    /// Places of the ring; their number is a power of two. Only the places from `head` to before `tail` hold requests.
    wqes: Box<[SendWqe]>,
    mask: usize,
    depth: usize,
    sges: Box<[Sge]>,
    pub(crate) max_sges: usize,
    inline: Box<[u8]>,
    pub(crate) max_inline: usize,
    destinations: Box<[Option<UdDestination>]>,
    /// Index of the oldest request that is not done.
    pub(crate) head: u64,
    /// Index of the next request to be posted.
    pub(crate) tail: u64,
    /// Doorbell index: the device sees only the requests below this index.
    pub(crate) rung: u64,
}

impl SendQueue {
    pub(crate) fn new(depth: usize, max_sges: usize, max_inline: usize, ud: bool) -> Self {
        let slots = depth.next_power_of_two();
        Self {
            wqes: vec![SendWqe::EMPTY; slots].into(),
            mask: slots - 1,
            depth,
            sges: vec![Sge::default(); slots * max_sges].into(),
            max_sges,
            inline: vec![0; slots * max_inline].into(),
            max_inline,
            destinations: vec![None; if ud { slots } else { 0 }].into(),
            head: 0,
            tail: 0,
            rung: 0,
        }
    }

    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    pub(crate) fn len(&self) -> usize {
        (self.tail - self.head) as usize
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.depth
    }

    fn slot(&self, index: u64) -> usize {
        index as usize & self.mask
    }

    #[inline]
    pub(crate) fn push(&mut self, wqe: SendWqe, payload: Payload<'_>, destination: Option<UdDestination>) {
        let slot = self.slot(self.tail);
        match payload {
            Payload::Sges(sges) => {
                let start = slot * self.max_sges;
                self.sges[start..start + sges.len()].copy_from_slice(sges);
            }
            Payload::Inline(bytes) => {
                let start = slot * self.max_inline;
                self.inline[start..start + bytes.len()].copy_from_slice(bytes);
            }
        }
        if let Some(place) = self.destinations.get_mut(slot) {
            *place = destination;
        }
        self.wqes[slot] = wqe;
        self.tail += 1;
    }

    /// Removes the `count` newest requests.
    pub(crate) fn take_back(&mut self, count: usize) {
        debug_assert!(count <= self.len());
        self.tail -= count as u64;
    }

    /// Returns the request with this index, which must lie between head and tail.
    #[inline]
    pub(crate) fn get(&self, index: u64) -> &SendWqe {
        debug_assert!((self.head..self.tail).contains(&index));
        &self.wqes[self.slot(index)]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u64) -> &mut SendWqe {
        debug_assert!((self.head..self.tail).contains(&index));
        let slot = self.slot(index);
        &mut self.wqes[slot]
    }

    pub(crate) fn sges_of(&self, index: u64) -> &[Sge] {
        let slot = self.slot(index);
        let start = slot * self.max_sges;
        &self.sges[start..start + usize::from(self.get(index).sges)]
    }

    pub(crate) fn inline_of(&self, index: u64) -> &[u8] {
        let slot = self.slot(index);
        let start = slot * self.max_inline;
        &self.inline[start..start + self.get(index).length as usize]
    }

    pub(crate) fn destination_of(&self, index: u64) -> Option<UdDestination> {
        self.destinations.get(self.slot(index)).copied().flatten()
    }

    /// Removes and returns the oldest request.
    #[inline]
    pub(crate) fn pop(&mut self) -> SendWqe {
        assert!(self.head < self.tail, "the send queue must hold a request");
        let slot = self.slot(self.head);
        self.head += 1;
        self.wqes[slot]
    }
}

/// Scatter-gather elements of a receive. More than two elements are stored on the heap.
pub(crate) type SgeList = SmallVec<[Sge; 2]>;

/// A receive work request in a receive queue.
#[derive(Clone, Debug)]
pub struct RecvWqe {
    pub(crate) wr_id: u64,
    pub(crate) pd: PdId,
    pub(crate) length: u64,
    pub(crate) sges: SgeList,
}

impl Default for RecvWqe {
    /// Returns the content of an unused place.
    fn default() -> Self {
        Self { wr_id: 0, pd: PdId(0), length: 0, sges: SgeList::new() }
    }
}

impl RecvWqe {
    pub(crate) fn new(pd: PdId, request: &RecvRequest<'_>) -> Self {
        let mut wqe = Self::default();
        wqe.fill(pd, request);
        wqe
    }

    /// Overwrites this place with another receive.
    #[inline]
    pub(crate) fn fill(&mut self, pd: PdId, request: &RecvRequest<'_>) {
        self.wr_id = request.wr_id;
        self.pd = pd;
        // A message must not be longer than IBTA's maximum, even if the receive has more room (IBTA Vol 1, 9.4.1).
        self.length = request.sges.iter().map(|sge| u64::from(sge.length)).sum::<u64>().min(MAX_MESSAGE_BYTES);
        self.sges.clear();
        match request.sges {
            [sge] => self.sges.push(*sge),
            sges => self.sges.extend_from_slice(sges),
        }
    }
}
