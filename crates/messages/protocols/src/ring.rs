//! Sizes of rings of messages.

/// Alignment of the messages in a ring, in bytes.
pub const RING_UNIT: usize = 16;
/// Maximum number of bytes that a protocol adds to a message in a ring.
pub const RING_WORD: usize = 8;

/// Granularity of the length of a ring, in bytes.
const PAGE: usize = 4096;

/// Returns the bytes of a ring that a message occupies. `bytes` includes the bytes that the protocol adds.
#[inline]
pub const fn ring_space(bytes: usize) -> usize {
    if bytes == 0 { RING_UNIT } else { bytes.next_multiple_of(RING_UNIT) }
}

/// Returns the bytes of a ring with room for `depth` messages of up to `longest` bytes. One eighth of the ring is extra
/// space, since the receiver may have freed this much space without reporting it yet. The result is a whole number of
/// pages, so a ring has room for more than `depth` short messages.
pub const fn ring_bytes(depth: usize, longest: usize) -> usize {
    (depth * ring_space(longest + RING_WORD) * 8).div_ceil(7).next_multiple_of(PAGE)
}

/// Returns the number of receives for WRITEs with immediate data. The number is larger than `depth`, since the receiver
/// may have freed up to an eighth of the receives without having reported them yet.
pub const fn ring_receives(depth: usize) -> usize {
    (depth * 8).div_ceil(7)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_have_whole_pages_and_an_eighth_of_extra_space() {
        assert_eq!([0, 1, 16, 17].map(ring_space), [16, 16, 16, 32]);
        // 32 messages of 16 B need 1,171 B, and one page has room for 128 of them.
        assert_eq!(ring_bytes(32, 16), PAGE);
        // 28 messages of 4,088 B are seven eighths of 32 pages.
        assert_eq!(ring_bytes(28, 4088), 32 * PAGE);
        assert_eq!([7, 8, 32].map(ring_receives), [8, 10, 37]);
    }
}
