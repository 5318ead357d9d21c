//! Payloads for verification. The number of a message determines each byte of its payload.

fn word(number: u64, index: u64) -> u64 {
    // `scramble` makes every bit of the result depend on every bit of its input.
    let z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(index.wrapping_mul(0xbf58_476d_1ce4_e5b9));
    doorbell_wire::scramble(z)
}

/// Writes the payload of message `number`.
pub(crate) fn fill(number: u64, out: &mut [u8]) {
    for (index, chunk) in out.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&word(number, index as u64).to_le_bytes()[..chunk.len()]);
    }
}

/// Returns whether the bytes are the payload of message `number`.
pub(crate) fn is_intact(number: u64, bytes: &[u8]) -> bool {
    bytes.chunks(8).enumerate().all(|(index, chunk)| *chunk == word(number, index as u64).to_le_bytes()[..chunk.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_bit_or_another_number_is_noticed() {
        for length in [1, 7, 8, 9, 4096] {
            let mut bytes = vec![0; length];
            fill(42, &mut bytes);
            assert!(is_intact(42, &bytes));
            assert!(length < 2 || !is_intact(43, &bytes));
            bytes[length / 2] ^= 4;
            assert!(!is_intact(42, &bytes));
        }
    }
}
