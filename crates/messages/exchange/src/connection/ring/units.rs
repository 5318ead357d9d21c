//! The state of a ring in units of [`UNIT`] bytes: the messages that begin at each unit, and the head.
//!
//! Threads that drop messages and connections that move the head use [`Units`] at the same time. In
//! `tests/suite/ring.rs`, a model checker runs all interleavings of these threads.

use std::sync::TryLockError;

use doorbell_sync::IgnorePoison;

use super::sync::{AtomicU32, AtomicU64, Mutex, Ordering};

/// Alignment of messages in bytes.
pub(crate) const UNIT: usize = doorbell_protocols::RING_UNIT;

/// Flag of a unit whose message was received and is not dropped yet. A message without this flag is free.
const HELD: u32 = 1 << 31;

/// Messages of a ring by the units at which they begin, and the head.
pub(super) struct Units {
    /// For each unit, the number of units of the message that begins there, with [`HELD`] if the program holds the
    /// message. 0 if no message is known to begin at the unit.
    units: Box<[AtomicU32]>,
    head: AtomicU64,
    /// Lock of the thread that moves the head or searches for holes: reserved space that holds no received message.
    mover: Mutex<()>,
}

impl Units {
    /// Makes the units of an empty ring with this number of bytes.
    pub(super) fn new(bytes: usize) -> Self {
        let units = (0..bytes / UNIT).map(|_| AtomicU32::new(0)).collect();
        Self { units, head: AtomicU64::new(0), mover: Mutex::new(()) }
    }

    /// Converts a position to an offset in the ring.
    #[inline]
    pub(super) fn offset(&self, position: u64) -> usize {
        (position % (self.units.len() * UNIT) as u64) as usize
    }

    #[inline]
    fn unit(&self, position: u64) -> &AtomicU32 {
        &self.units[self.offset(position) / UNIT]
    }

    /// Returns the position up to which all messages are freed.
    #[inline]
    pub(super) fn head(&self) -> u64 {
        self.head.load(Ordering::Acquire)
    }

    /// Returns whether a message begins at this position. The message may be held, or freed and not yet passed by the
    /// head.
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

    /// Moves the head over all freed messages, and returns the number of these messages. Calls `erase` with the
    /// position and the bytes of each message before the head moves. Calls `publish` with the new head.
    #[inline]
    pub(super) fn advance(&self, mut erase: impl FnMut(u64, usize), publish: impl FnOnce(u64)) -> usize {
        let first = self.head();
        if matches!(self.unit(first).load(Ordering::Acquire), 0 | HELD..) {
            return 0;
        }
        let _mover = match self.mover.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return 0, // another thread moves the head
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

    /// Marks the holes before `limit` as freed messages. A hole is space that holds no received message.
    pub(super) fn skip(&self, limit: u64) {
        // `advance` of another thread clears the units of freed messages before it moves the head. Without the lock,
        // such a unit would look like a hole.
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
