//! CRC-32 of Ethernet and the ICRC: polynomial 0x04C11DB7, bits reflected.
//!
//! A *register* is the state of the CRC between two bytes, without the final inversion. For long inputs, crc32fast
//! computes the CRC with carry-less multiplication. In most packets, the part after the BTH is so short that a call of
//! crc32fast takes longer than [`update_short`], which uses tables.

/// The register before the first byte.
pub(crate) const INITIAL: u32 = !0;

/// Returns the register after `bytes`, starting from `initial`.
#[inline]
pub(crate) fn update(initial: u32, bytes: &[u8]) -> u32 {
    if bytes.len() < LONG { update_short(initial, bytes) } else { update_long(initial, bytes) }
}

/// Does the same as [`update`] with tables only.
#[inline]
pub(crate) fn update_short(mut register: u32, mut bytes: &[u8]) -> u32 {
    while let Some((chunk, rest)) = bytes.split_first_chunk::<16>() {
        register = step(register, chunk);
        bytes = rest;
    }
    while let Some((chunk, rest)) = bytes.split_first_chunk::<4>() {
        register = step(register, chunk);
        bytes = rest;
    }
    while let Some((byte, rest)) = bytes.split_first() {
        register = register >> 8 ^ TABLES[0][(register as u8 ^ *byte) as usize];
        bytes = rest;
    }
    register
}

/// Processes 4 to 16 bytes at once and returns the register after them. CRC is linear, so this register is the
/// exclusive or of one contribution per byte. The old register takes part by an exclusive or with the first four bytes.
#[inline(always)]
pub(crate) const fn step<const N: usize>(register: u32, bytes: &[u8; N]) -> u32 {
    const { assert!(N >= 4 && N <= TABLES.len()) };
    let head = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) ^ register;
    let mut after = TABLES[N - 1][(head & 0xff) as usize]
        ^ TABLES[N - 2][(head >> 8 & 0xff) as usize]
        ^ TABLES[N - 3][(head >> 16 & 0xff) as usize]
        ^ TABLES[N - 4][(head >> 24) as usize];
    let mut i = 4;
    while i < N {
        after ^= TABLES[N - 1 - i][bytes[i] as usize];
        i += 1;
    }
    after
}

/// Returns a table of contributions. Entry `b` is the part of a register that an input byte `b` causes, if `zeros` more
/// bytes follow the byte.
pub(crate) const fn contributions(zeros: usize) -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut register = byte as u32;
        let mut bits = 8 * (zeros + 1);
        while bits > 0 {
            register = times_x(register);
            bits -= 1;
        }
        table[byte] = register;
        byte += 1;
    }
    table
}

/// Returns the register from which `zeros` zero bytes lead to `register`. May return `None` if `zeros` exceeds the
/// maximum length of an IP packet.
#[inline]
pub(crate) fn rewind(register: u32, zeros: usize) -> Option<u32> {
    let coarse = *REWIND_COARSE.get(zeros / REWIND_FINE.len())?;
    let fine = REWIND_FINE[zeros % REWIND_FINE.len()];
    Some(multiply(multiply(register, fine), coarse))
}

/// Minimum bytes of an input for which crc32fast was measured to be faster than the tables.
const LONG: usize = 32;

/// The CRC polynomial, reflected.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// The polynomial 1, reflected.
const ONE: u32 = 0x8000_0000;

/// `TABLES[n]` is `contributions(n)`.
static TABLES: [[u32; 256]; 16] = {
    let mut tables = [[0; 256]; 16];
    tables[0] = contributions(0);
    let mut n = 1;
    while n < tables.len() {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[n - 1][byte];
            tables[n][byte] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        n += 1;
    }
    tables
};

/// Entry `n` is x^(-8n). Multiplication by this entry rewinds a register by `n` zero bytes.
static REWIND_FINE: [u32; 64] = powers(over_x(ONE, 8));

/// Entry `n` is x^(-8 * 64n). Multiplication by this entry rewinds a register by `64 * n` zero bytes. The last entry
/// rewinds by 65,600 bytes, more than the maximum length of an IP packet.
static REWIND_COARSE: [u32; 1026] = powers(over_x(ONE, 8 * 64));

fn update_long(register: u32, bytes: &[u8]) -> u32 {
    // crc32fast expects a final CRC as its initial value. A final CRC is the inverted register.
    let mut hasher = crc32fast::Hasher::new_with_initial(!register);
    hasher.update(bytes);
    !hasher.finalize()
}

const fn powers<const N: usize>(base: u32) -> [u32; N] {
    let mut powers = [ONE; N];
    let mut n = 1;
    while n < N {
        powers[n] = multiply(powers[n - 1], base);
        n += 1;
    }
    powers
}

/// Returns the product of two polynomials modulo the CRC polynomial.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        product ^= b & (a >> bit & 1).wrapping_neg();
        b = times_x(b);
    }
    product
}

/// Multiplies by x: returns the register after one zero bit of input.
const fn times_x(register: u32) -> u32 {
    register >> 1 ^ POLYNOMIAL & (register & 1).wrapping_neg()
}

/// Divides by x^`bits`: returns the register from which `bits` zero bits lead to `register`.
const fn over_x(mut register: u32, bits: usize) -> u32 {
    let mut n = 0;
    while n < bits {
        // `times_x` shifts a zero into the upper bit. If it shifts a one out, it then adds the polynomial, whose upper
        // bit is set. The upper bit of the register therefore shows whether `times_x` added the polynomial.
        let carry = register >> 31;
        register = (register ^ POLYNOMIAL & carry.wrapping_neg()) << 1 | carry;
        n += 1;
    }
    register
}
