//! Words that one process writes while others read them: a sequence number lets a reader take all of them or none.
//!
//! `tests/sequence.rs` has a model checker go through all interleavings of the two.

use super::sync::{AtomicU64, Ordering, fence};

/// Writes values to the words that follow the sequence number, which is the first word.
pub(crate) fn write<'a>(word: impl Fn(usize) -> &'a AtomicU64, values: impl Iterator<Item = u64>) {
    let sequence = word(0).load(Ordering::Relaxed) & !1;
    word(0).store(sequence | 1, Ordering::Relaxed);
    // The values are not seen before the odd number is, nor after the even one.
    fence(Ordering::Release);
    for (index, value) in values.enumerate() {
        word(1 + index).store(value, Ordering::Relaxed);
    }
    word(0).store(sequence.wrapping_add(2), Ordering::Release);
}

/// Reads values by `all`. Returns whether they belong together: by its sequence number, the writer was at rest meanwhile.
///
/// # Errors
///
/// The errors of `sequence` and `all`.
pub(crate) fn read<E>(
    mut sequence: impl FnMut() -> Result<u64, E>,
    all: impl FnOnce() -> Result<(), E>,
) -> Result<bool, E> {
    let before = sequence()?;
    // The loads of each look come before those of the next.
    fence(Ordering::Acquire);
    all()?;
    fence(Ordering::Acquire);
    let after = sequence()?;
    Ok(before.is_multiple_of(2) && before == after)
}
