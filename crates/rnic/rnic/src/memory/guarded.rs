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

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Payload;

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

/// Routines in machine code. Each routine returns 0, or 1 if it faulted.
///
/// While a routine runs, the registers `r8` and `r9` hold the start and the length of the memory of the program. A
/// handler can therefore land the faults of this memory only, and let all other faults end the process.
#[cfg(target_arch = "x86_64")]
mod code {
    use super::{Gone, GuardedCode, WordOperation};

    // The labels are hidden, so that they do not clash with those of another library that contains the same code.
    core::arch::global_asm!(
        ".pushsection .text.doorbell_guarded, \"ax\", @progbits",
        // End of a copy. In a copy into memory of a program, the last byte is in r10b and is stored last.
        ".macro doorbell_end is_in",
        ".if \\is_in",
        "mov byte ptr [r8 + r9 - 1], r10b",
        ".endif",
        "xor eax, eax",
        "ret",
        ".endm",
        // Copies rdx bytes from rsi to rdi. If the ranges may overlap, all loads come before the stores.
        ".macro doorbell_copy is_in",
        "cmp rdx, 16",
        "jb 2f",
        "cmp rdx, 32",
        "ja 3f",
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi + rdx - 16]",
        "movups [rdi], xmm0",
        "movups [rdi + rdx - 16], xmm1",
        "doorbell_end \\is_in",
        // Fewer than 16 bytes.
        "2: cmp edx, 8",
        "jb 21f",
        "mov rax, [rsi]",
        "mov rcx, [rsi + rdx - 8]",
        "mov [rdi], rax",
        "mov [rdi + rdx - 8], rcx",
        "doorbell_end \\is_in",
        "21: cmp edx, 4",
        "jb 22f",
        "mov eax, [rsi]",
        "mov ecx, [rsi + rdx - 4]",
        "mov [rdi], eax",
        "mov [rdi + rdx - 4], ecx",
        "doorbell_end \\is_in",
        "22: cmp edx, 2",
        "jb 23f",
        "movzx eax, word ptr [rsi]",
        "movzx ecx, byte ptr [rsi + rdx - 1]",
        "mov [rdi], ax",
        "mov [rdi + rdx - 1], cl",
        "doorbell_end \\is_in",
        "23: test edx, edx",
        "jz 24f",
        "movzx eax, byte ptr [rsi]",
        "mov [rdi], al",
        "24: doorbell_end \\is_in",
        // More than 32 bytes.
        "3: cmp rdx, 64",
        "ja 4f",
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi + 16]",
        "movups xmm2, [rsi + rdx - 32]",
        "movups xmm3, [rsi + rdx - 16]",
        "movups [rdi], xmm0",
        "movups [rdi + 16], xmm1",
        "movups [rdi + rdx - 32], xmm2",
        "movups [rdi + rdx - 16], xmm3",
        "doorbell_end \\is_in",
        // More than 64 bytes: copies forwards, unless the destination starts inside the source.
        "4: mov rax, rdi",
        "sub rax, rsi",
        "cmp rax, rdx",
        "jb 6f",
        "cmp rdx, 512",
        "jae 5f",
        "movups xmm4, [rsi + rdx - 64]",
        "movups xmm5, [rsi + rdx - 48]",
        "movups xmm6, [rsi + rdx - 32]",
        "movups xmm7, [rsi + rdx - 16]",
        "lea rcx, [rdi + rdx - 64]",
        "41: movups xmm0, [rsi]",
        "movups xmm1, [rsi + 16]",
        "movups xmm2, [rsi + 32]",
        "movups xmm3, [rsi + 48]",
        "movups [rdi], xmm0",
        "movups [rdi + 16], xmm1",
        "movups [rdi + 32], xmm2",
        "movups [rdi + 48], xmm3",
        "add rsi, 64",
        "add rdi, 64",
        "cmp rdi, rcx",
        "jb 41b",
        "movups [rcx], xmm4",
        "movups [rcx + 16], xmm5",
        "movups [rcx + 32], xmm6",
        "movups [rcx + 48], xmm7",
        "doorbell_end \\is_in",
        "5: mov rcx, rdx",
        "rep movsb",
        "doorbell_end \\is_in",
        "6: lea rsi, [rsi + rdx - 1]",
        "lea rdi, [rdi + rdx - 1]",
        "mov rcx, rdx",
        "std",
        "rep movsb",
        "cld",
        "doorbell_end \\is_in",
        ".endm",
        // Declare the type and the size of each routine, since debuggers and valgrind find a routine by them.
        ".macro doorbell_routine name",
        ".hidden doorbell_guarded_\\name",
        ".globl doorbell_guarded_\\name",
        ".type doorbell_guarded_\\name, @function",
        "doorbell_guarded_\\name:",
        ".cfi_startproc",
        ".endm",
        ".macro doorbell_routine_end name",
        ".cfi_endproc",
        ".size doorbell_guarded_\\name, . - doorbell_guarded_\\name",
        ".endm",
        ".hidden doorbell_guarded_start",
        ".hidden doorbell_guarded_end",
        ".hidden doorbell_guarded_landing",
        ".globl doorbell_guarded_start",
        ".globl doorbell_guarded_end",
        ".globl doorbell_guarded_landing",
        ".p2align 6",
        "doorbell_guarded_start:",
        "doorbell_routine copy_out",
        "mov r8, rsi",
        "mov r9, rdx",
        "doorbell_copy 0",
        "doorbell_routine_end copy_out",
        ".p2align 6",
        "doorbell_routine copy_in",
        "mov r8, rdi",
        "mov r9, rdx",
        "dec rdx",
        "movzx r10d, byte ptr [rsi + rdx]",
        "doorbell_copy 1",
        "doorbell_routine_end copy_in",
        ".p2align 4",
        "doorbell_routine load",
        "mov r8, rdi",
        "mov r9d, 8",
        "mov rax, [rdi]",
        "mov [rsi], rax",
        "xor eax, eax",
        "ret",
        "doorbell_routine_end load",
        ".p2align 4",
        "doorbell_routine store",
        "mov r8, rdi",
        "mov r9d, 8",
        "mov [rdi], rsi",
        "xor eax, eax",
        "ret",
        "doorbell_routine_end store",
        ".p2align 4",
        "doorbell_routine compare_swap",
        "mov r8, rdi",
        "mov r9d, 8",
        "mov rax, rsi",
        "lock cmpxchg [rdi], rdx",
        "mov [rcx], rax",
        "xor eax, eax",
        "ret",
        "doorbell_routine_end compare_swap",
        ".p2align 4",
        "doorbell_routine fetch_add",
        "mov r8, rdi",
        "mov r9d, 8",
        "lock xadd [rdi], rsi",
        "mov [rdx], rsi",
        "xor eax, eax",
        "ret",
        "doorbell_routine_end fetch_add",
        ".p2align 4",
        "doorbell_routine touch",
        "mov r8, rdi",
        "mov r9d, 1",
        "movzx eax, byte ptr [rdi]",
        "test esi, esi",
        "jz 1f",
        "lock or byte ptr [rdi], 0",
        "1: xor eax, eax",
        "ret",
        // If a routine faults, the handler makes it continue at this label. The stack then holds only the return
        // address.
        "doorbell_guarded_landing:",
        "cld",
        "mov eax, 1",
        "ret",
        "doorbell_routine_end touch",
        "doorbell_guarded_end:",
        ".purgem doorbell_routine",
        ".purgem doorbell_routine_end",
        ".purgem doorbell_copy",
        ".purgem doorbell_end",
        ".popsection",
    );

    unsafe extern "C" {
        static doorbell_guarded_start: u8;
        static doorbell_guarded_end: u8;
        static doorbell_guarded_landing: u8;
        fn doorbell_guarded_copy_out(to: *mut u8, from: *const u8, length: usize) -> u32;
        fn doorbell_guarded_copy_in(to: *mut u8, from: *const u8, length: usize) -> u32;
        fn doorbell_guarded_load(word: *const u64, value: *mut u64) -> u32;
        fn doorbell_guarded_store(word: *mut u64, value: u64) -> u32;
        fn doorbell_guarded_compare_swap(word: *mut u64, compare: u64, swap: u64, before: *mut u64) -> u32;
        fn doorbell_guarded_fetch_add(word: *mut u64, add: u64, before: *mut u64) -> u32;
        fn doorbell_guarded_touch(byte: *mut u8, is_written: u32) -> u32;
    }

    fn result(code: u32) -> Result<(), Gone> {
        if code == 0 { Ok(()) } else { Err(Gone) }
    }

    #[inline]
    pub(super) fn copy_out(to: *mut u8, from: *const u8, length: usize) -> Result<(), Gone> {
        // SAFETY: only `super::copy_out` calls this function, and it has the same contract.
        result(unsafe { doorbell_guarded_copy_out(to, from, length) })
    }

    /// Copies at least one byte.
    #[inline]
    pub(super) fn copy_in(to: *mut u8, from: *const u8, length: usize) -> Result<(), Gone> {
        // SAFETY: only `super::copy_in` calls this function, and it has the same contract.
        result(unsafe { doorbell_guarded_copy_in(to, from, length) })
    }

    #[inline]
    pub(super) fn load(word: *const u64, value: &mut u64) -> Result<(), Gone> {
        // SAFETY: only `super::load` calls this function, and it has the same contract.
        result(unsafe { doorbell_guarded_load(word, value) })
    }

    #[inline]
    pub(super) fn store(word: *mut u64, value: u64) -> Result<(), Gone> {
        // SAFETY: only `super::store` calls this function, and it has the same contract.
        result(unsafe { doorbell_guarded_store(word, value) })
    }

    pub(super) fn operate(word: *mut u64, operation: WordOperation) -> Result<u64, Gone> {
        let mut before = 0;
        // SAFETY: only `super::operate` calls this function, and it has the same contract.
        result(unsafe {
            match operation {
                WordOperation::CompareSwap { compare, swap } => {
                    doorbell_guarded_compare_swap(word, compare, swap, &mut before)
                }
                WordOperation::FetchAdd(add) => doorbell_guarded_fetch_add(word, add, &mut before),
            }
        })?;
        Ok(before)
    }

    pub(super) fn touch(byte: *mut u8, written: bool) -> Result<(), Gone> {
        // SAFETY: only `super::bring_in` calls this function, and it has the same contract.
        result(unsafe { doorbell_guarded_touch(byte, written.into()) })
    }

    impl GuardedCode {
        /// Returns the address range of the routines; `None` on an architecture without them, where no handler can
        /// land a fault.
        pub fn own() -> Option<Self> {
            Some(Self {
                start: (&raw const doorbell_guarded_start).addr(),
                end: (&raw const doorbell_guarded_end).addr(),
                landing: (&raw const doorbell_guarded_landing).addr(),
            })
        }
    }
}

/// Plain accesses, for machines without routines in machine code. A fault ends the process.
#[cfg(not(target_arch = "x86_64"))]
mod code {
    use std::ptr;
    use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

    use super::{Gone, GuardedCode, WordOperation};

    impl GuardedCode {
        /// Returns the address range of the routines; `None` on an architecture without them, where no handler can
        /// land a fault.
        pub fn own() -> Option<Self> {
            None
        }
    }

    pub(super) fn copy_out(to: *mut u8, from: *const u8, length: usize) -> Result<(), Gone> {
        // SAFETY: only `super::copy_out` calls this function, and it has the same contract.
        unsafe { ptr::copy(from, to, length) };
        Ok(())
    }

    pub(super) fn copy_in(to: *mut u8, from: *const u8, length: usize) -> Result<(), Gone> {
        let body = length - 1;
        // SAFETY: only `super::copy_in` calls this function, and it has the same contract.
        unsafe {
            let last = from.add(body).read();
            ptr::copy(from, to, body);
            AtomicU8::from_ptr(to.add(body)).store(last, Ordering::Release);
        }
        Ok(())
    }

    pub(super) fn load(word: *const u64, value: &mut u64) -> Result<(), Gone> {
        // SAFETY: only `super::load` calls this function, and it has the same contract.
        *value = unsafe { AtomicU64::from_ptr(word.cast_mut()) }.load(Ordering::Acquire);
        Ok(())
    }

    pub(super) fn store(word: *mut u64, value: u64) -> Result<(), Gone> {
        // SAFETY: only `super::store` calls this function, and it has the same contract.
        unsafe { AtomicU64::from_ptr(word) }.store(value, Ordering::Release);
        Ok(())
    }

    pub(super) fn operate(word: *mut u64, operation: WordOperation) -> Result<u64, Gone> {
        // SAFETY: only `super::operate` calls this function, and it has the same contract.
        let word = unsafe { AtomicU64::from_ptr(word) };
        Ok(match operation {
            WordOperation::CompareSwap { compare, swap } => word
                .compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire)
                .unwrap_or_else(|actual| actual),
            WordOperation::FetchAdd(add) => word.fetch_add(add, Ordering::AcqRel),
        })
    }

    pub(super) fn touch(byte: *mut u8, written: bool) -> Result<(), Gone> {
        // SAFETY: only `super::bring_in` calls this function, and it has the same contract.
        let byte = unsafe { AtomicU8::from_ptr(byte) };
        if written {
            byte.fetch_or(0, Ordering::Relaxed);
        } else {
            byte.load(Ordering::Relaxed);
        }
        Ok(())
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
