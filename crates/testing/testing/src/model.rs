//! Parts that the models of several crates share: atomics whose `SeqCst` accesses the model checker loom handles
//! correctly, and a queue that replaces `crossbeam_queue::ArrayQueue`.
//!
//! Loom remembers only the last access to a word. So a model of a thread that reads and then writes a word must also
//! let the other side begin (`counters/tests/suite/sequence.rs`).
#![allow(missing_docs, reason = "the items have the names and meanings of those that they replace")]

use loom::cell::UnsafeCell;
pub use loom::sync::atomic::Ordering;
use loom::sync::atomic::fence;

/// Returns the ordering to use under loom, and whether fences are needed. Loom treats `SeqCst` as `AcqRel`, so fences
/// follow writes and surround exchanges. On x86 the machine code is similar, since a `SeqCst` load is a plain load
/// there.
fn weaker(order: Ordering, of_seq_cst: Ordering) -> (Ordering, bool) {
    if order == Ordering::SeqCst { (of_seq_cst, true) } else { (order, false) }
}

fn fence_if(is_wanted: bool) {
    if is_wanted {
        fence(Ordering::SeqCst);
    }
}

macro_rules! atomic {
    ($name:ident, $int:ty) => {
        #[derive(Debug)]
        pub struct $name(loom::sync::atomic::$name);

        impl $name {
            pub fn new(value: $int) -> Self {
                Self(loom::sync::atomic::$name::new(value))
            }

            #[track_caller]
            pub fn load(&self, order: Ordering) -> $int {
                self.0.load(weaker(order, Ordering::Acquire).0)
            }

            #[track_caller]
            pub fn store(&self, value: $int, order: Ordering) {
                let (order, is_fenced) = weaker(order, Ordering::Release);
                self.0.store(value, order);
                fence_if(is_fenced);
            }

            /// # Errors
            ///
            /// The value that the integer had, if it was not `old`.
            #[track_caller]
            pub fn compare_exchange(
                &self,
                old: $int,
                new: $int,
                order: Ordering,
                failure: Ordering,
            ) -> Result<$int, $int> {
                let (order, is_fenced) = weaker(order, Ordering::AcqRel);
                fence_if(is_fenced);
                let result = self.0.compare_exchange(old, new, order, weaker(failure, Ordering::Acquire).0);
                fence_if(is_fenced);
                result
            }

            #[track_caller]
            pub fn fetch_add(&self, value: $int, order: Ordering) -> $int {
                let (order, is_fenced) = weaker(order, Ordering::AcqRel);
                fence_if(is_fenced);
                let before = self.0.fetch_add(value, order);
                fence_if(is_fenced);
                before
            }

            #[track_caller]
            pub fn fetch_sub(&self, value: $int, order: Ordering) -> $int {
                self.fetch_add(value.wrapping_neg(), order)
            }

            /// # Errors
            ///
            /// The value for which `change` returned nothing.
            #[track_caller]
            pub fn fetch_update(
                &self,
                order: Ordering,
                failure: Ordering,
                mut change: impl FnMut($int) -> Option<$int>,
            ) -> Result<$int, $int> {
                let mut before = self.load(failure);
                while let Some(after) = change(before) {
                    match self.compare_exchange(before, after, order, failure) {
                        Ok(before) => return Ok(before),
                        Err(now) => before = now,
                    }
                }
                Err(before)
            }
        }
    };
}

atomic!(AtomicU32, u32);
atomic!(AtomicUsize, usize);

/// A queue with the algorithm and the orderings of `crossbeam_queue::ArrayQueue`. Unlike there, the model checker sees
/// every access.
#[derive(Debug)]
pub struct ArrayQueue<T> {
    head: AtomicUsize,
    tail: AtomicUsize,
    slots: Box<[Slot<T>]>,
}

#[derive(Debug)]
struct Slot<T> {
    stamp: AtomicUsize,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: the model checker reports an error if two accesses to a cell are not ordered.
unsafe impl<T: Send> Sync for ArrayQueue<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for ArrayQueue<T> {}

impl<T> ArrayQueue<T> {
    pub fn new(capacity: usize) -> Self {
        let slot = |stamp| Slot { stamp: AtomicUsize::new(stamp), value: UnsafeCell::new(None) };
        let slots = (0..capacity).map(slot).collect();
        Self { head: AtomicUsize::new(0), tail: AtomicUsize::new(0), slots }
    }

    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    pub fn len(&self) -> usize {
        loop {
            let tail = self.tail.load(Ordering::SeqCst);
            let head = self.head.load(Ordering::SeqCst);
            if self.tail.load(Ordering::SeqCst) == tail {
                return tail - head;
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        let head = self.head.load(Ordering::SeqCst);
        self.tail.load(Ordering::SeqCst) == head
    }

    /// # Errors
    ///
    /// The value, if the queue is full.
    pub fn push(&self, value: T) -> Result<(), T> {
        let capacity = self.capacity();
        let mut tail = self.tail.load(Ordering::Relaxed);
        loop {
            let slot = &self.slots[tail % capacity];
            let stamp = slot.stamp.load(Ordering::Acquire);
            if stamp == tail {
                match self.tail.compare_exchange(tail, tail + 1, Ordering::SeqCst, Ordering::Relaxed) {
                    Ok(_) => {
                        // SAFETY: the model checker reports an error if two accesses to the cell are not ordered.
                        slot.value.with_mut(|place| unsafe { *place = Some(value) });
                        slot.stamp.store(tail + 1, Ordering::Release);
                        return Ok(());
                    }
                    Err(now) => tail = now,
                }
                continue;
            }
            if stamp + capacity == tail + 1 {
                fence(Ordering::SeqCst);
                if self.head.load(Ordering::Relaxed) + capacity == tail {
                    return Err(value);
                }
            }
            loom::thread::yield_now();
            tail = self.tail.load(Ordering::Relaxed);
        }
    }

    pub fn pop(&self) -> Option<T> {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            let slot = &self.slots[head % self.capacity()];
            let stamp = slot.stamp.load(Ordering::Acquire);
            if stamp == head + 1 {
                match self.head.compare_exchange(head, head + 1, Ordering::SeqCst, Ordering::Relaxed) {
                    Ok(_) => {
                        // SAFETY: as above.
                        let value = slot.value.with_mut(|place| unsafe { (*place).take() });
                        slot.stamp.store(head + self.capacity(), Ordering::Release);
                        return value;
                    }
                    Err(now) => head = now,
                }
                continue;
            }
            if stamp == head {
                fence(Ordering::SeqCst);
                if self.tail.load(Ordering::Relaxed) == head {
                    return None;
                }
            }
            loom::thread::yield_now();
            head = self.head.load(Ordering::Relaxed);
        }
    }
}
