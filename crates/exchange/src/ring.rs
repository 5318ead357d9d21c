//! A ring of messages of any length, freed in any order.
//!
//! Positions count bytes since the beginning and never wrap; a message lies at its position modulo
//! the length of the ring. The memory is mirrored, so that what wraps around is contiguous. The
//! *head* is behind the last byte that is free again: a message that is freed before an older one
//! waits for it. That makes it impossible to hand out the memory of a message that is still held,
//! however many others were freed.

mod units;
/// Atomics and the lock of [`units`], which a model checker replaces by its own.
mod sync {
    pub(super) use std::sync::Mutex;
    pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
}

use std::sync::Arc;

use doorbell_verbs::{Access, MemoryKind, Pd, Region};

use crate::config::{Config, LONGEST_TRANSFER};
use crate::connection::Received;
use crate::error::ConnectError;
pub(crate) use units::UNIT;
use units::Units;

/// Beside the bytes of a message there may be so many more, which tell of it.
pub(crate) const WORD: usize = 8;

const PAGE: usize = 4096;

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
    units: Units,
    /// Where else the head is written to, for peers that read it.
    head_word: Option<(Region, usize)>,
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
        Ok(Arc::new(Self { region, bytes, erases, units: Units::new(bytes), head_word }))
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
        self.units.offset(position)
    }

    /// Behind the last byte that is free again.
    #[inline]
    pub(crate) fn head(&self) -> u64 {
        self.units.head()
    }

    /// Is there a message at this position, held or free?
    pub(crate) fn is_taken(&self, position: u64) -> bool {
        self.units.is_taken(position)
    }

    /// Lends `space` bytes at `position`, of which the message has `length` bytes at `offset`.
    #[inline]
    pub(crate) fn lend(self: &Arc<Self>, position: u64, space: usize, offset: usize, length: usize) -> RingMessage {
        self.units.hold(position, space);
        RingMessage { ring: Arc::clone(self), position, offset, length }
    }

    /// Moves the head over what is free again. Returns over how many messages.
    #[inline]
    pub(crate) fn advance(&self) -> usize {
        let erase = |position, space| {
            if self.erases {
                // From the end of the ring to its start: see `reversed`.
                self.region.fill(self.reversed(position) - space, space, 0);
            }
        };
        let publish = |head: u64| {
            if let Some((region, offset)) = &self.head_word {
                region.store_release_u64(*offset, head.to_le());
            }
        };
        self.units.advance(erase, publish)
    }

    /// In a ring that is filled from its end to its start: the offset behind the message at this
    /// position.
    #[inline]
    pub(crate) fn reversed(&self, position: u64) -> usize {
        2 * self.bytes - self.offset(position)
    }

    /// Frees everything before `limit` that holds no received message: its sender is dead.
    pub(crate) fn skip(&self, limit: u64) {
        self.units.skip(limit);
        // Another thread that tried meanwhile has found the head locked.
        self.advance();
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
        self.ring.units.release(self.position);
    }
}
