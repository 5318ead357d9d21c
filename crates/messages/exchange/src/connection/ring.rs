//! A ring of received messages of any length. The program frees the messages in any order.
//!
//! Positions count all bytes since the connection began, and never wrap. A message lies in memory at its position
//! modulo the length of the ring. The memory is mapped twice in a row, so a message that wraps around the end is
//! contiguous. The *head* is the position up to which all messages are freed. A message that is freed before an older
//! message stays in place until the older message is freed. The memory of a held message is therefore never reused,
//! regardless of the number of other messages that were freed.

mod units;
/// Atomics and the lock that [`units`] uses. `tests/suite/ring.rs` replaces them by the types of a model checker.
mod sync {
    pub(super) use std::sync::Mutex;
    pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
}

use std::sync::Arc;

use doorbell_verbs::{Access, MemoryKind, Pd, Region};

use crate::connection::Received;
use crate::connection::config::{Config, LONGEST_TRANSFER};
use crate::connection::error::ConnectError;
pub(crate) use units::UNIT;
use units::Units;

pub(crate) use doorbell_protocols::{RING_WORD as WORD, ring_space as space};

/// Maximum bytes of a ring. This limit lets one READ read all messages in the ring. It also keeps the number of units
/// in the ring below the moduli of the heads and answers that the ends send (`HEAD_WORDS`, `ANSWER_UNITS`).
pub(crate) const LONGEST_RING: usize = LONGEST_TRANSFER;

/// Returns the bytes of a ring with room for `depth` messages of maximum length ([`doorbell_protocols::ring_bytes`]).
///
/// # Errors
///
/// The ring would be longer than [`LONGEST_RING`].
pub(crate) fn ring_bytes(config: &Config) -> Result<usize, ConnectError> {
    let bytes = doorbell_protocols::ring_bytes(config.depth, config.max_message);
    if bytes > LONGEST_RING {
        let what = "the length of the ring that the depth and the longest message need";
        return Err(ConnectError::Setting { what, given: bytes as u64, allowed: "up to 2147483648 B" });
    }
    Ok(bytes)
}

/// The ring of a receiver, with the state of its messages.
pub(crate) struct Ring {
    region: Region,
    bytes: usize,
    /// Whether the ring zeroes the memory of freed messages.
    erases: bool,
    units: Units,
    /// Region and offset of a copy of the head. Peers READ this copy.
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

    /// Converts a position to an offset in the region.
    #[inline]
    pub(crate) fn offset(&self, position: u64) -> usize {
        self.units.offset(position)
    }

    /// Returns the position up to which all messages are freed.
    #[inline]
    pub(crate) fn head(&self) -> u64 {
        self.units.head()
    }

    /// Returns whether a message begins at this position. The message may be held, or freed and not yet passed by the
    /// head.
    pub(crate) fn is_taken(&self, position: u64) -> bool {
        self.units.is_taken(position)
    }

    /// Makes a message that holds `space` bytes of the ring at `position`. The message itself has `length` bytes at
    /// `offset` of the region.
    #[inline]
    pub(crate) fn lend(self: &Arc<Self>, position: u64, space: usize, offset: usize, length: usize) -> RingMessage {
        self.units.hold(position, space);
        RingMessage { ring: Arc::clone(self), position, offset, length }
    }

    /// Moves the head over freed messages. Returns the number of these messages.
    #[inline]
    pub(crate) fn advance(&self) -> usize {
        let erase = |position, space| {
            if self.erases {
                // The ring is filled from its end to its start: see `reversed`.
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

    /// Returns the offset directly after the message at this position, in a ring that is filled from its end to its
    /// start.
    #[inline]
    pub(crate) fn reversed(&self, position: u64) -> usize {
        2 * self.bytes - self.offset(position)
    }

    /// Frees all bytes before `limit` that hold no received message. The sender that reserved these bytes is dead.
    pub(crate) fn skip(&self, limit: u64) {
        self.units.skip(limit);
        // While `skip` held the lock, other threads could not move the head, so this thread moves it.
        self.advance();
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("bytes", &self.bytes).field("head", &self.head()).finish_non_exhaustive()
    }
}

/// A received message in a ring. Dropping the message frees its memory, from any thread and in any order.
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
