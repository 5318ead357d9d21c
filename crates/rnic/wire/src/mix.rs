//! SplitMix64, a pseudorandom generator without cryptographic strength (Steele, Lea and Flood, Fast Splittable
//! Pseudorandom Number Generators, OOPSLA 2014). The generator is not part of the wire format. It is in this crate
//! because all other crates depend on this crate.

/// Returns a number whose every bit depends on every bit of `value`: the finalizer of SplitMix64.
#[inline]
pub const fn scramble(value: u64) -> u64 {
    let mixed = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Advances `state` and returns the next number of SplitMix64. The initial state is the seed, which may be any number.
#[inline]
pub const fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    scramble(*state)
}

/// Returns the bytes of `number` at `8 * index`.
fn word(number: u64, index: u64) -> [u8; 8] {
    let value = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(index.wrapping_mul(0xbf58_476d_1ce4_e5b9));
    scramble(value).to_le_bytes()
}

/// Fills `out` with pseudorandom bytes, which depend on `number` and on their place. Programs send such bytes, and
/// check them with [`is_scrambled`] where they arrive.
// Not inlined, so that callers without optimization do not compile the loop anew.
#[inline(never)]
pub fn fill_scrambled(number: u64, out: &mut [u8]) {
    for (index, chunk) in out.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&word(number, index as u64)[..chunk.len()]);
    }
}

/// Returns whether the bytes are those that [`fill_scrambled`] writes for `number`.
#[inline(never)]
pub fn is_scrambled(number: u64, bytes: &[u8]) -> bool {
    bytes.chunks(8).enumerate().all(|(index, chunk)| *chunk == word(number, index as u64)[..chunk.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_bit_or_another_number_is_noticed() {
        for length in [1, 7, 8, 9, 4096] {
            let mut bytes = std::vec![0; length];
            fill_scrambled(42, &mut bytes);
            assert!(is_scrambled(42, &bytes));
            assert!(length < 2 || !is_scrambled(43, &bytes));
            bytes[length / 2] ^= 4;
            assert!(!is_scrambled(42, &bytes));
        }
    }

    /// The numbers are those of the reference implementation for the seed 1234567 (Vigna, splitmix64.c).
    #[test]
    fn numbers_match_the_reference_implementation() {
        let mut state = 1_234_567;
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
        ];
        assert_eq!([(); 4].map(|()| split_mix(&mut state)), expected);
    }
}
