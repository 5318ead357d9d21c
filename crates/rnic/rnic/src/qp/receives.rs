//! The receive queue of one queue pair.

use doorbell_verbs_core::{PdId, RecvRequest};

use crate::work::RecvWqe;

/// Ring of receives, in the order in which messages take them. A post writes a receive into a place of the ring. The
/// message of a SEND Only on a reliable connection uses the receive without taking it out of the ring, which saves a
/// copy. A later post reuses the place and its allocation. All other messages take the receive out of the ring.
#[derive(Debug, Default)]
pub(crate) struct ReceiveRing {
    /// Places of the ring. Their number is 0 or a power of two.
    places: Vec<RecvWqe>,
    head: usize,
    len: usize,
    /// The newest `unrung` receives are hidden from the device: their doorbell was not rung.
    unrung: usize,
}

impl ReceiveRing {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn place(&self, index: usize) -> usize {
        (self.head + index) & (self.places.len() - 1)
    }

    /// Grows the ring if it has no place for one more receive.
    #[inline]
    fn reserve(&mut self) {
        if self.len == self.places.len() {
            self.grow();
        }
    }

    #[cold]
    fn grow(&mut self) {
        self.places.rotate_left(self.head);
        self.head = 0;
        self.places.resize_with((2 * self.len).max(1), RecvWqe::default);
    }

    /// Adds a receive. If `is_hidden`, the device sees the receive only after its [doorbell](Self::ring).
    #[inline]
    pub(crate) fn push(&mut self, pd: PdId, request: &RecvRequest<'_>, is_hidden: bool) {
        self.reserve();
        let place = self.place(self.len);
        self.places[place].fill(pd, request);
        self.len += 1;
        self.unrung += usize::from(is_hidden);
    }

    /// Makes the oldest `receives` of the hidden receives visible to the device.
    pub(crate) fn ring(&mut self, receives: usize) {
        self.unrung = self.unrung.saturating_sub(receives);
    }

    /// Returns the oldest visible receive.
    #[inline]
    pub(crate) fn front(&self) -> Option<&RecvWqe> {
        if self.len > self.unrung { self.places.get(self.head) } else { None }
    }

    /// Removes the oldest visible receive, which must exist.
    #[inline]
    pub(crate) fn drop_front(&mut self) {
        debug_assert!(self.len > self.unrung);
        self.head = self.place(1);
        self.len -= 1;
    }

    /// Removes and returns the oldest visible receive.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<RecvWqe> {
        if self.len <= self.unrung {
            return None;
        }
        let wqe = std::mem::take(&mut self.places[self.head]);
        self.drop_front();
        Some(wqe)
    }

    /// Returns a receive to the front of the ring, since the message that took it did not use it. The program may have
    /// posted another receive in the meantime. The ring may therefore hold one receive more than the receive queue
    /// allows.
    pub(crate) fn give_back(&mut self, wqe: RecvWqe) {
        self.reserve();
        self.head = self.place(self.places.len() - 1);
        self.places[self.head] = wqe;
        self.len += 1;
    }

    /// Removes all receives and returns them.
    pub(crate) fn drain(&mut self) -> Vec<RecvWqe> {
        self.unrung = 0;
        std::iter::from_fn(|| self.pop()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use doorbell_verbs_core::{LKey, Sge};

    use super::*;

    fn sges(wr_id: u64) -> Vec<Sge> {
        (0..wr_id % 4).map(|index| Sge { address: wr_id + index, length: 8, lkey: LKey(1) }).collect()
    }

    fn post(ring: &mut ReceiveRing, wr_id: u64, is_hidden: bool) {
        ring.push(PdId(1), &RecvRequest { wr_id, sges: &sges(wr_id) }, is_hidden);
    }

    /// Compares random operations on the ring with the same operations on a list.
    #[test]
    fn receives_are_taken_in_order_when_slots_are_reused() {
        let (mut ring, mut list) = (ReceiveRing::default(), VecDeque::new());
        let mut random = 1_u64;
        let mut next = 0;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            match random >> 60 {
                0..=6 if list.len() < 40 => {
                    post(&mut ring, next, false);
                    list.push_back(next);
                    next += 1;
                }
                7..=10 => {
                    let expected = list.pop_front();
                    let taken = ring.front().map(|wqe| (wqe.wr_id, wqe.sges.to_vec(), wqe.length));
                    assert_eq!(taken, expected.map(|wr_id| (wr_id, sges(wr_id), 8 * (wr_id % 4))));
                    if taken.is_some() {
                        ring.drop_front();
                    }
                }
                11..=13 => {
                    let taken = ring.pop();
                    assert_eq!(taken.as_ref().map(|wqe| wqe.wr_id), list.front().copied());
                    // Sometimes give the taken receive back.
                    match taken {
                        Some(wqe) if random & 1 << 40 != 0 => ring.give_back(wqe),
                        _ => drop(list.pop_front()),
                    }
                }
                14 if random & 31 << 40 == 0 => {
                    let ids: Vec<u64> = ring.drain().iter().map(|wqe| wqe.wr_id).collect();
                    assert_eq!(ids, list.drain(..).collect::<Vec<_>>());
                }
                _ => {}
            }
            assert_eq!(ring.len(), list.len());
        }
        assert!(next > 5_000, "only {next} receives were posted");
    }

    #[test]
    fn receives_are_taken_only_after_their_doorbell() {
        let mut ring = ReceiveRing::default();
        post(&mut ring, 1, true);
        post(&mut ring, 2, true);
        assert!(ring.front().is_none() && ring.pop().is_none());
        ring.ring(1);
        assert_eq!(ring.front().map(|wqe| wqe.wr_id), Some(1));
        ring.drop_front();
        assert!(ring.pop().is_none());
        assert_eq!(ring.drain().len(), 1, "drain must return the receive");
        assert_eq!(ring.len(), 0);
    }
}
