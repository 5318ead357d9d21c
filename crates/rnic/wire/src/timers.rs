//! Times that IBTA encodes in 5 bits.

/// Delay of each code in units of 10 us (IBTA Vol 1, table 45).
const RNR_TIMER_10US: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
    6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// Returns the time that an RNR NAK with this timer code asks the requester to wait (IBTA Vol 1, table 45).
///
/// The delays grow from code 1 (10 us) to code 31 (491.52 ms). Code 0 is the longest delay, 655.36 ms. Ignores bits
/// above the lower five.
pub const fn rnr_timer_ns(code: u8) -> u64 {
    RNR_TIMER_10US[(code & 0x1f) as usize] as u64 * 10_000
}

/// Returns the code of the shortest RNR delay of at least `ns`, or of the longest delay if `ns` exceeds all delays.
pub const fn rnr_timer_code_at_least(ns: u64) -> u8 {
    let mut code = 1;
    while code < 32 {
        if rnr_timer_ns(code) >= ns {
            return code;
        }
        code += 1;
    }
    0
}

/// Returns the time that a requester waits for an acknowledgement: 4.096 us times two to the power of `exponent`.
/// Returns `None` for 0, which means unlimited (IBTA Vol 1, chapter 9). Ignores bits above the lower five.
pub const fn ack_timeout_ns(exponent: u8) -> Option<u64> {
    match exponent & 0x1f {
        0 => None,
        exponent => Some(4096 << exponent),
    }
}
