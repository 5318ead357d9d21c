//! The units of a ring of messages: which are free, and where the head is.
//!
//! Threads that drop messages, connections that move the head and peers that write to free memory meet here.
//! `tests/ring.rs` has a model checker go through all their interleavings.

use std::sync::TryLockError;

use doorbell_sync::IgnorePoison;

use super::sync::{AtomicU32, AtomicU64, Mutex, Ordering};

/// Messages begin at multiples of this.
pub(crate) const UNIT: usize = 16;

/// Marks the unit of a message that was received and is not dropped yet. Without the mark, the message is free again.
const HELD: u32 = 1 << 31;

/// Units of a ring, with the messages that begin at them.
pub(super) struct Units {
    /// Number of units of the message that begins at each unit, with [`HELD`] if it is held; 0 if no message is known
    /// to begin there.
    units: Box<[AtomicU32]>,
    head: AtomicU64,
    /// Held by the thread that moves the head, or that looks for holes.
    mover: Mutex<()>,
}

impl Units {
    /// Makes the units of a ring with this number of bytes, all free.
    pub(super) fn new(bytes: usize) -> Self {
        let units = (0..bytes / UNIT).map(|_| AtomicU32::new(0)).collect();
        Self { units, head: AtomicU64::new(0), mover: Mutex::new(()) }
    }

    /// Returns the offset in memory of a position.
    #[inline]
    pub(super) fn offset(&self, position: u64) -> usize {
        (position % (self.units.len() * UNIT) as u64) as usize
    }

    #[inline]
    fn unit(&self, position: u64) -> &AtomicU32 {
        &self.units[self.offset(position) / UNIT]
    }

    /// Returns the position after the last byte that is free again.
    #[inline]
    pub(super) fn head(&self) -> u64 {
        self.head.load(Ordering::Acquire)
    }

    /// Returns whether a message, held or free, begins at this position.
    pub(super) fn is_taken(&self, position: u64) -> bool {
        self.unit(position).load(Ordering::Acquire) != 0
    }

    /// Marks a message of `space` bytes at `position` as held.
    #[inline]
    pub(super) fn hold(&self, position: u64, space: usize) {
        self.unit(position).store(HELD | (space / UNIT) as u32, Ordering::Relaxed);
    }

    /// Marks the message at `position` as dropped.
    #[inline]
    pub(super) fn release(&self, position: u64) {
        let unit = self.unit(position);
        unit.store(unit.load(Ordering::Relaxed) & !HELD, Ordering::Release);
    }

    /// Moves the head over all messages that are free again, and returns their number. Passes each message to
    /// `erase`, by its position and its bytes, before the head shows that it is free. Passes the new head to
    /// `publish`.
    #[inline]
    pub(super) fn advance(&self, mut erase: impl FnMut(u64, usize), publish: impl FnOnce(u64)) -> usize {
        let first = self.head();
        if matches!(self.unit(first).load(Ordering::Acquire), 0 | HELD..) {
            return 0;
        }
        let _mover = match self.mover.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return 0, // another thread is at it
        };
        let mut head = self.head();
        let mut count = 0;
        while let units @ 1..HELD = self.unit(head).load(Ordering::Acquire) {
            let space = units as usize * UNIT;
            self.unit(head).store(0, Ordering::Relaxed);
            erase(head, space);
            head += space as u64;
            count += 1;
        }
        self.head.store(head, Ordering::Release);
        publish(head);
        count
    }

    /// Frees everything before `limit` that holds no received message.
    pub(super) fn skip(&self, limit: u64) {
        // A unit that another thread cleared would look like a hole.
        let _mover = self.mover.lock().ignore_poison();
        let mut at = self.head();
        while at < limit {
            let units = self.unit(at).load(Ordering::Acquire) & !HELD;
            if units > 0 {
                at += u64::from(units) * UNIT as u64;
                continue;
            }
            let hole = at;
            while at < limit && !self.is_taken(at) {
                at += UNIT as u64;
            }
            self.unit(hole).store(((at - hole) / UNIT as u64) as u32, Ordering::Release);
        }
    }
}
