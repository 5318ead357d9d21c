//! The queues that hold work requests.

use doorbell_verbs_core::{
    MAX_MESSAGE_BYTES, Payload, PdId, RecvRequest, SendFlags, SendOperation, Sge, UdDestination,
};
use doorbell_wire::Psn;
use smallvec::SmallVec;

/// A send work request as the queue holds it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWqe {
    pub(crate) wr_id: u64,
    pub(crate) operation: SendOperation,
    pub(crate) flags: SendFlags,
    pub(crate) inline: bool,
    pub(crate) sges: u8,
    pub(crate) length: u32,
    /// Sequence numbers that it takes: request packets, or response packets of a READ; none if it
    /// concerns only this device.
    pub(crate) packets: u32,
    /// Valid once the first packet was sent.
    pub(crate) first_psn: Psn,
    /// READ: response packets that arrived.
    pub(crate) received: u32,
}

/// The send queue: a ring with places for exactly as many requests as were asked for.
#[derive(Debug)]
pub(crate) struct SendQueue {
    wqes: Box<[Option<SendWqe>]>,
    mask: usize,
    depth: usize,
    sges: Box<[Sge]>,
    pub(crate) max_sges: usize,
    inline: Box<[u8]>,
    pub(crate) max_inline: usize,
    destinations: Box<[Option<UdDestination>]>,
    /// The oldest request that is not done.
    pub(crate) head: u64,
    /// Where the next request goes.
    pub(crate) tail: u64,
    /// The doorbell index: the device knows of the requests below.
    pub(crate) rung: u64,
}

impl SendQueue {
    pub(crate) fn new(depth: usize, max_sges: usize, max_inline: usize, ud: bool) -> Self {
        let slots = depth.next_power_of_two();
        Self {
            wqes: vec![None; slots].into(),
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
        self.wqes[slot] = Some(wqe);
        self.tail += 1;
    }

    /// Takes back the requests that were pushed last.
    pub(crate) fn take_back(&mut self, count: usize) {
        for _ in 0..count {
            self.tail -= 1;
            let slot = self.slot(self.tail);
            self.wqes[slot] = None;
        }
    }

    /// The request with this index, which must lie between head and tail.
    #[inline]
    pub(crate) fn get(&self, index: u64) -> &SendWqe {
        debug_assert!((self.head..self.tail).contains(&index));
        self.wqes[self.slot(index)].as_ref().expect("requests between head and tail are there")
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u64) -> &mut SendWqe {
        debug_assert!((self.head..self.tail).contains(&index));
        let slot = self.slot(index);
        self.wqes[slot].as_mut().expect("requests between head and tail are there")
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

    pub(crate) fn pop(&mut self) -> SendWqe {
        let slot = self.slot(self.head);
        self.head += 1;
        self.wqes[slot].take().expect("requests between head and tail are there")
    }
}

/// Scatter-gather elements of a receive. More than two are kept on the heap.
pub(crate) type SgeList = SmallVec<[Sge; 2]>;

/// A receive work request as a queue holds it.
#[derive(Clone, Debug)]
pub struct RecvWqe {
    pub(crate) wr_id: u64,
    pub(crate) pd: PdId,
    pub(crate) length: u64,
    pub(crate) sges: SgeList,
}

impl RecvWqe {
    pub(crate) fn new(pd: PdId, request: &RecvRequest<'_>) -> Self {
        Self {
            wr_id: request.wr_id,
            pd,
            // No message is longer, whatever room there is (IBTA Vol 1, 9.4.1).
            length: request.sges.iter().map(|sge| u64::from(sge.length)).sum::<u64>().min(MAX_MESSAGE_BYTES),
            sges: SgeList::from_slice(request.sges),
        }
    }
}
