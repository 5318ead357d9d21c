//! A ring of messages of any length, freed in any order.
//!
//! Positions count bytes since the beginning and never wrap; a message lies at its position modulo
//! the length of the ring. The memory is mirrored, so that what wraps around is contiguous. The
//! *head* is behind the last byte that is free again: a message that is freed before an older one
//! waits for it. That makes it impossible to hand out the memory of a message that is still held,
//! however many others were freed.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, TryLockError};

use doorbell_verbs::{Access, MemoryKind, Pd, Region};

use crate::config::{Config, LONGEST_TRANSFER};
use crate::connection::Received;
use crate::error::ConnectError;

/// Messages begin at multiples of this.
pub(crate) const UNIT: usize = 16;

/// Beside the bytes of a message there may be so many more, which tell of it.
pub(crate) const WORD: usize = 8;

const PAGE: usize = 4096;

/// Marks units that a message lies in which was received; otherwise it is free again.
const HELD: u32 = 1 << 31;

/// Bytes of a ring that a message with so many bytes, all told, takes.
#[inline]
pub(crate) fn space(bytes: usize) -> usize {
    bytes.next_multiple_of(UNIT).max(UNIT)
}

/// No ring is longer: one READ takes all that waits in it, and heads and answers count units modulo more than it has.
pub(crate) const LONGEST_RING: usize = LONGEST_TRANSFER;

/// How long a ring is in which `depth` messages of the longest kind find room, even if up to an
/// eighth of it is free without the sender's knowing.
///
/// # Errors
///
/// It would be longer than any ring.
pub(crate) fn ring_bytes(config: &Config) -> Result<usize, ConnectError> {
    let bytes = (config.depth * space(config.max_message + WORD) * 8).div_ceil(7).next_multiple_of(PAGE);
    if bytes > LONGEST_RING {
        let what = "the length of the ring that the depth and the longest message need";
        return Err(ConnectError::Setting { what, given: bytes as u64, allowed: "up to 2147483648 B" });
    }
    Ok(bytes)
}

/// The receiver's side of a ring.
pub(crate) struct Ring {
    region: Region,
    bytes: usize,
    /// What zeroes the memory of messages that are free again, if that is wanted.
    erases: bool,
    /// For each unit: how many units the message has that begins there, and whether it is held. 0
    /// if none is known to begin there.
    units: Box<[AtomicU32]>,
    head: AtomicU64,
    /// Where else the head is written to, for peers that read it.
    head_word: Option<(Region, usize)>,
    /// Who moves the head.
    mover: Mutex<()>,
}

impl Ring {
    pub(crate) fn new(
        pd: &Pd,
        bytes: usize,
        access: Access,
        erases: bool,
        head_word: Option<(Region, usize)>,
    ) -> Result<Arc<Self>, ConnectError> {
        let region = pd.allocate(bytes, access, MemoryKind::Mirrored)?;
        let units = (0..bytes / UNIT).map(|_| AtomicU32::new(0)).collect();
        Ok(Arc::new(Self { region, bytes, erases, units, head: AtomicU64::new(0), head_word, mover: Mutex::new(()) }))
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where in the memory a position lies.
    #[inline]
    pub(crate) fn offset(&self, position: u64) -> usize {
        (position % self.bytes as u64) as usize
    }

    #[inline]
    fn unit(&self, position: u64) -> &AtomicU32 {
        &self.units[self.offset(position) / UNIT]
    }

    /// Behind the last byte that is free again.
    #[inline]
    pub(crate) fn head(&self) -> u64 {
        self.head.load(Ordering::Acquire)
    }

    /// Is there a message at this position, held or free?
    pub(crate) fn is_taken(&self, position: u64) -> bool {
        self.unit(position).load(Ordering::Acquire) != 0
    }

    /// Lends `space` bytes at `position`, of which the message has `length` bytes at `offset`.
    #[inline]
    pub(crate) fn lend(self: &Arc<Self>, position: u64, space: usize, offset: usize, length: usize) -> RingMessage {
        self.unit(position).store(HELD | (space / UNIT) as u32, Ordering::Relaxed);
        RingMessage { ring: Arc::clone(self), position, offset, length }
    }

    /// Frees bytes that no message was lent for.
    pub(crate) fn free(&self, position: u64, space: usize) {
        self.unit(position).store((space / UNIT) as u32, Ordering::Release);
    }

    /// Moves the head over what is free again. Returns over how many messages.
    #[inline]
    pub(crate) fn advance(&self) -> usize {
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
            if self.erases {
                // From the end of the ring to its start: see `reversed`.
                self.region.fill(self.reversed(head) - space, space, 0);
            }
            head += space as u64;
            count += 1;
        }
        self.head.store(head, Ordering::Release);
        if let Some((region, offset)) = &self.head_word {
            region.store_release_u64(*offset, head.to_le());
        }
        count
    }

    /// In a ring that is filled from its end to its start: the offset behind the message at this
    /// position.
    #[inline]
    pub(crate) fn reversed(&self, position: u64) -> usize {
        2 * self.bytes - self.offset(position)
    }

    /// Frees everything before `limit` that no message was received for: who reserved it is dead.
    pub(crate) fn skip(&self, limit: u64) {
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
            self.free(hole, (at - hole) as usize);
        }
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("bytes", &self.bytes).field("head", &self.head()).finish_non_exhaustive()
    }
}

/// A received message in a ring. Dropping it frees its memory, from any thread and in any order.
pub struct RingMessage {
    ring: Arc<Ring>,
    position: u64,
    offset: usize,
    length: usize,
}

impl Received for RingMessage {
    fn len(&self) -> usize {
        self.length
    }

    #[inline]
    fn copy_to(&self, out: &mut [u8]) -> usize {
        let length = out.len().min(self.length);
        self.ring.region.copy_out(self.offset, &mut out[..length]);
        length
    }
}

impl std::fmt::Debug for RingMessage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RingMessage").field("length", &self.length).finish_non_exhaustive()
    }
}

impl Drop for RingMessage {
    #[inline]
    fn drop(&mut self) {
        let unit = self.ring.unit(self.position);
        unit.store(unit.load(Ordering::Relaxed) & !HELD, Ordering::Release);
    }
}
