//! Accesses to memory of programs. If the memory is gone, an access returns an error.
//!
//! A program may unmap, protect or truncate memory while the memory is registered. A hardware RNIC holds the pages, so
//! its accesses still succeed. This software RNIC has only the mapping of the program, so its access may fault. On
//! x86-64, the routines below make every access. They are leaf functions without a stack frame. A handler of SIGSEGV
//! and SIGBUS can therefore recover if the program counter is inside [`GuardedCode`]. The handler then *lands* the
//! fault: it continues at [`GuardedCode::landing`], and the routine returns an error. Without such a handler, a fault
//! ends the process, like any other fault.
//!
//! A process that cannot install the handler uses [`copy_through`] instead of the routines.

#[cfg(not(target_arch = "x86_64"))]
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Payload;
#[cfg(not(target_arch = "x86_64"))]
use portable as code;
#[cfg(target_arch = "x86_64")]
use x86_64 as code;

/// Error of an access to memory that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gone;

/// Alternative access to memory of this process, for processes without a fault handler.
pub trait Copier: Send + Sync {
    /// Copies bytes in the order of their addresses. Returns false if one of the ranges is not mapped.
    fn copy(&self, from: *const u8, to: *mut u8, length: usize) -> bool;

    /// Maps the memory for reading, and also for writing if `written`. Returns false if that is impossible.
    fn bring_in(&self, base: *mut u8, length: usize, written: bool) -> bool;
}

/// Address range of the machine code that accesses memory of programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardedCode {
    /// Address of the first instruction.
    pub start: usize,
    /// Address after the last instruction.
    pub end: usize,
    /// Address at which a routine continues after a fault.
    pub landing: usize,
}

static COPIER: OnceLock<&'static dyn Copier> = OnceLock::new();
static USES_COPIER: AtomicBool = AtomicBool::new(false);

/// Makes all RNICs of this process access memory through `copier` from now on. Only the first call has an effect.
pub fn copy_through(copier: &'static dyn Copier) {
    let _ = COPIER.set(copier);
    USES_COPIER.store(true, Ordering::Release);
}

/// Returns whether accesses go through a [`Copier`]. The functions of the module `copier` are not inlined, so that an
/// access without a copier is short and saves no registers.
#[inline]
fn uses_copier() -> bool {
    USES_COPIER.load(Ordering::Acquire) // so this thread sees the copier
}

/// An atomic operation on a word of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WordOperation {
    /// Stores `swap` if the word equals `compare`.
    CompareSwap { compare: u64, swap: u64 },
    /// Adds to the word.
    FetchAdd(u64),
}

/// Copies out of a program's memory.
///
/// # Safety
///
/// `from` is memory of a program, which other threads may write. The memory must be mapped, unless a handler lands
/// faults or a [`Copier`] is set. `to` has room for `length` bytes, which no other thread of this process uses.
#[inline]
pub(super) unsafe fn copy_out(from: *const u8, to: *mut u8, length: usize) -> Result<(), Gone> {
    if uses_copier() {
        return copier::copy(from, to, length);
    }
    code::copy_out(to, from, length)
}

/// Copies into a program's memory. The last byte is stored last, with release ordering.
///
/// # Safety
///
/// As for [`copy_out`], with `to` in place of `from`.
#[inline]
pub(super) unsafe fn copy_in(data: Payload<'_>, to: *mut u8) -> Result<(), Gone> {
    if data.is_empty() {
        return Ok(());
    }
    if uses_copier() {
        return copier::copy_last_byte_last(data.start(), to, data.len());
    }
    code::copy_in(to, data.start(), data.len())
}

/// Loads an aligned word with acquire ordering.
///
/// # Safety
///
/// As for [`copy_out`], with `word` in place of `from`.
#[inline]
pub(super) unsafe fn load(word: *const u64) -> Result<u64, Gone> {
    let mut value = 0;
    if uses_copier() {
        copier::copy(word.cast(), (&raw mut value).cast(), 8)?;
    } else {
        code::load(word, &mut value)?;
    }
    Ok(value)
}

/// Stores an aligned word with release ordering.
///
/// # Safety
///
/// As for [`copy_out`], with `word` in place of `from`.
#[inline]
pub(super) unsafe fn store(word: *mut u64, value: u64) -> Result<(), Gone> {
    if uses_copier() {
        return copier::store(word, value);
    }
    code::store(word, value)
}

/// Runs an atomic operation on an aligned word and returns the previous value.
///
/// A [`Copier`] has no atomic operations. With a copier, the function therefore asks the copier to map the word and
/// then operates on the word directly.
///
/// # Safety
///
/// As for [`copy_out`], with `word` in place of `from`.
pub(super) unsafe fn operate(word: *mut u64, operation: WordOperation) -> Result<u64, Gone> {
    if uses_copier() {
        copier::bring_in(word.cast(), 8, true)?;
    }
    code::operate(word, operation)
}

/// Maps the pages of a program's memory for reading, and also for writing if `written`.
///
/// # Safety
///
/// As for [`copy_out`], with the range in place of `from`.
pub(super) unsafe fn bring_in(base: *mut u8, length: usize, written: bool) -> Result<(), Gone> {
    /// Minimum page size of all supported machines.
    const PAGE_BYTES: usize = 4096;
    if uses_copier() {
        return copier::bring_in(base, length, written);
    }
    let Some(last) = length.checked_sub(1) else { return Ok(()) };
    let touch = |offset: usize| code::touch(base.wrapping_add(offset), written);
    (0..length).step_by(PAGE_BYTES).chain([last]).try_for_each(touch)
}

/// Accesses through the [`Copier`] of the process.
mod copier {
    use super::{COPIER, Copier, Gone};

    fn of_process() -> Result<&'static dyn Copier, Gone> {
        COPIER.get().copied().ok_or(Gone)
    }

    fn result(succeeded: bool) -> Result<(), Gone> {
        if succeeded { Ok(()) } else { Err(Gone) }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn copy(from: *const u8, to: *mut u8, length: usize) -> Result<(), Gone> {
        result(of_process()?.copy(from, to, length))
    }

    /// Copies at least one byte.
    #[cold]
    #[inline(never)]
    pub(super) fn copy_last_byte_last(from: *const u8, to: *mut u8, length: usize) -> Result<(), Gone> {
        let body = length - 1;
        copy(from, to, body)?;
        copy(from.wrapping_add(body), to.wrapping_add(body), 1)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn store(word: *mut u64, value: u64) -> Result<(), Gone> {
        copy((&raw const value).cast(), word.cast(), 8)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn bring_in(base: *mut u8, length: usize, written: bool) -> Result<(), Gone> {
        result(of_process()?.bring_in(base, length, written))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(length: usize) -> Vec<u8> {
        (0..length).map(|index| (index * 7 + index / 251) as u8).collect()
    }

    /// Returns lengths on both sides of each boundary between the copy methods.
    fn lengths() -> impl Iterator<Item = usize> {
        (0..=300).chain([511, 512, 513, 514, 1024, 4095, 4096, 4097, 9001])
    }

    #[test]
    fn copies_of_every_length_change_only_their_bytes() {
        for length in lengths() {
            for shift in [0, 1, 8] {
                let source = pattern(length + shift);
                let from = &source[shift..];
                let mut out = vec![0xee; length + 2];
                // SAFETY: both ranges are private memory of this length.
                unsafe { copy_out(from.as_ptr(), out.as_mut_ptr().wrapping_add(1), length) }.unwrap();
                assert_eq!((&out[1..=length], out[0], out[length + 1]), (from, 0xee, 0xee), "{length} B out");
                let mut memory = vec![0xee; length + 2];
                // SAFETY: the range lies inside the memory.
                unsafe { copy_in(Payload::from(from), memory.as_mut_ptr().wrapping_add(1)) }.unwrap();
                assert_eq!((&memory[1..=length], memory[0], memory[length + 1]), (from, 0xee, 0xee), "{length} B in");
            }
        }
    }

    #[test]
    fn overlapping_copies_move_the_original_bytes() {
        for length in lengths().filter(|&length| length > 0) {
            for distance in [1, 3, 15, 16, 40, 63, 64, 65, 200] {
                for forwards in [true, false] {
                    let mut memory = pattern(length + distance);
                    let (from, to) = if forwards { (distance, 0) } else { (0, distance) };
                    let mut expected = memory.clone();
                    expected.copy_within(from..from + length, to);
                    let base = memory.as_mut_ptr();
                    // SAFETY: both ranges lie inside the memory, which has no other user.
                    unsafe {
                        let data = Payload::shared(base.wrapping_add(from), length);
                        copy_in(data, base.wrapping_add(to)).unwrap();
                    }
                    assert!(memory == expected, "{length} B by {distance}, forwards: {forwards}");
                }
            }
        }
    }

    #[test]
    fn words_are_loaded_stored_and_operated_on() {
        let mut word = 5_u64;
        let place = &raw mut word;
        // SAFETY: `place` points to a word of this function.
        unsafe {
            store(place, 9).unwrap();
            assert_eq!(load(place), Ok(9));
            assert_eq!(operate(place, WordOperation::FetchAdd(u64::MAX)), Ok(9));
            assert_eq!(operate(place, WordOperation::CompareSwap { compare: 9, swap: 1 }), Ok(8));
            assert_eq!(operate(place, WordOperation::CompareSwap { compare: 8, swap: 1 }), Ok(8));
            assert_eq!(load(place), Ok(1));
            bring_in(place.cast(), 8, true).unwrap();
            assert_eq!(load(place), Ok(1));
        }
    }
}
