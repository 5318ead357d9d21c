//! Words that one process writes while others read them. A sequence number lets a reader get all of them or none.
//!
//! `tests/sequence.rs` checks all interleavings of writer and reader with a model checker.

use super::sync::{AtomicU64, Ordering, fence};

/// Writes values to the words after the sequence number, which is the first word.
pub(crate) fn write<'a>(word: impl Fn(usize) -> &'a AtomicU64, values: impl Iterator<Item = u64>) {
    let sequence = word(0).load(Ordering::Relaxed) & !1;
    word(0).store(sequence | 1, Ordering::Relaxed);
    // A reader that sees a new value then sees the odd number. A reader that sees the even number sees all values.
    fence(Ordering::Release);
    for (index, value) in values.enumerate() {
        word(1 + index).store(value, Ordering::Relaxed);
    }
    word(0).store(sequence.wrapping_add(2), Ordering::Release);
}

/// Reads values by calling `all`. Returns whether they are consistent: the sequence number shows that the writer did
/// not write meanwhile.
///
/// # Errors
///
/// The errors of `sequence` and `all`.
pub(crate) fn read<E>(
    mut sequence: impl FnMut() -> Result<u64, E>,
    all: impl FnOnce() -> Result<(), E>,
) -> Result<bool, E> {
    let before = sequence()?;
    // The loads of each step happen before those of the next.
    fence(Ordering::Acquire);
    all()?;
    fence(Ordering::Acquire);
    let after = sequence()?;
    Ok(before.is_multiple_of(2) && before == after)
}
