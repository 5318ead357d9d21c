//! Words that one process writes while others read them. A sequence number ensures that a reader gets either all words
//! of one write or none.
//!
//! A model checker in `tests/suite/sequence.rs` checks all interleavings of a writer and a reader.

use super::sync::{AtomicU64, Ordering, fence};

/// Writes `values` to the words 1 and following. Word 0 is the sequence number.
pub(crate) fn write<'a>(word: impl Fn(usize) -> &'a AtomicU64, values: impl Iterator<Item = u64>) {
    let sequence = word(0).load(Ordering::Relaxed) & !1;
    word(0).store(sequence | 1, Ordering::Relaxed);
    // A reader that sees any new value also sees the odd sequence number. A reader that sees the next even number sees
    // all new values.
    fence(Ordering::Release);
    for (index, value) in values.enumerate() {
        word(1 + index).store(value, Ordering::Relaxed);
    }
    word(0).store(sequence.wrapping_add(2), Ordering::Release);
}

/// Reads values by calling `all`, and reads the sequence number before and after. Returns whether the values are
/// consistent: the sequence number was even and did not change.
///
/// # Errors
///
/// Returns the errors of the closures `sequence` and `all`.
pub(crate) fn read<E>(
    mut sequence: impl FnMut() -> Result<u64, E>,
    all: impl FnOnce() -> Result<(), E>,
) -> Result<bool, E> {
    let before = sequence()?;
    // The fence keeps the loads of `all` between the two loads of the sequence number.
    fence(Ordering::Acquire);
    all()?;
    fence(Ordering::Acquire);
    let after = sequence()?;
    Ok(before.is_multiple_of(2) && before == after)
}
