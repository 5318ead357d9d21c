//! Keys and values of the store in workloads.

use crate::layout::NodeVersion;

/// Returns the key of rank `rank`.
pub fn key(rank: u64) -> [u8; 8] {
    rank.to_le_bytes()
}

/// Returns the number in the value of key `rank` before the key's first write.
pub fn first_number(rank: u64) -> u64 {
    number_of(u64::MAX, rank)
}

/// Returns the number of a value, which identifies writer and operation. Each word of the value contains this number.
fn number_of(writer: u64, operation: u64) -> u64 {
    writer.rotate_left(40) ^ operation
}

/// Writes the initial value of key `rank` to `out`.
pub(crate) fn first_value(rank: u64, out: &mut Vec<u8>, bytes: usize) {
    value(u64::MAX, rank, out, bytes);
}

/// Writes the value of a client's put to `out`.
pub(crate) fn value(writer: u64, operation: u64, out: &mut Vec<u8>, bytes: usize) {
    out.clear();
    let word = number_of(writer, operation).to_le_bytes();
    out.extend(word.iter().cycle().take(bytes));
}

/// Returns the place of the node of key `rank` in a store that was filled before any client was accepted.
pub(crate) fn first_place(rank: u64) -> NodeVersion {
    NodeVersion::new(rank as u32, 1)
}
