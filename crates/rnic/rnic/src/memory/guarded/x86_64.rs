//! Routines in machine code. Each routine returns 0, or 1 if it faulted.
//!
//! While a routine runs, the registers `r8` and `r9` hold the start and the length of the memory of the program. A
//! handler can therefore land the faults of this memory only, and let all other faults end the process.
//!
//! Long copies are loops of vector instructions. `rep movsb` is as fast within the cache of one processor. But on an
//! AMD EPYC, it takes two to three times as long for bytes that another processor has just written or read, as in a
//! ring of shared memory. It is also slow if the destination is a few bytes beyond the source, modulo 4096.

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
    // Copies rdx bytes from rsi to rdi, the last one first.
    ".macro doorbell_backwards is_in",
    "lea rsi, [rsi + rdx - 1]",
    "lea rdi, [rdi + rdx - 1]",
    "mov rcx, rdx",
    "std",
    "rep movsb",
    "cld",
    "doorbell_end \\is_in",
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
    "6: doorbell_backwards \\is_in",
    ".endm",
    // Copies like `doorbell_copy`, by the registers of AVX, and at least 64 bytes. After a fault, their upper halves
    // are in use until other code clears them, such as the next wide copy forwards. That costs time only.
    ".macro doorbell_copy_wide is_in",
    "mov rax, rdi",
    "sub rax, rsi",
    "cmp rax, rdx",
    "jb 6f",
    "vmovups ymm2, [rsi + rdx - 64]",
    "vmovups ymm3, [rsi + rdx - 32]",
    "lea rcx, [rdi + rdx - 64]",
    "7: vmovups ymm0, [rsi]",
    "vmovups ymm1, [rsi + 32]",
    "vmovups [rdi], ymm0",
    "vmovups [rdi + 32], ymm1",
    "add rsi, 64",
    "add rdi, 64",
    "cmp rdi, rcx",
    "jb 7b",
    "vmovups [rcx], ymm2",
    "vmovups [rcx + 32], ymm3",
    "vzeroupper",
    "doorbell_end \\is_in",
    "6: doorbell_backwards \\is_in",
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
    ".p2align 6",
    "doorbell_routine copy_out_wide",
    "mov r8, rsi",
    "mov r9, rdx",
    "doorbell_copy_wide 0",
    "doorbell_routine_end copy_out_wide",
    ".p2align 6",
    "doorbell_routine copy_in_wide",
    "mov r8, rdi",
    "mov r9, rdx",
    "dec rdx",
    "movzx r10d, byte ptr [rsi + rdx]",
    "doorbell_copy_wide 1",
    "doorbell_routine_end copy_in_wide",
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
    ".purgem doorbell_copy_wide",
    ".purgem doorbell_copy",
    ".purgem doorbell_backwards",
    ".purgem doorbell_end",
    ".popsection",
);

unsafe extern "C" {
    static doorbell_guarded_start: u8;
    static doorbell_guarded_end: u8;
    static doorbell_guarded_landing: u8;
    fn doorbell_guarded_copy_out(to: *mut u8, from: *const u8, length: usize) -> u32;
    fn doorbell_guarded_copy_in(to: *mut u8, from: *const u8, length: usize) -> u32;
    fn doorbell_guarded_copy_out_wide(to: *mut u8, from: *const u8, length: usize) -> u32;
    fn doorbell_guarded_copy_in_wide(to: *mut u8, from: *const u8, length: usize) -> u32;
    fn doorbell_guarded_load(word: *const u64, value: *mut u64) -> u32;
    fn doorbell_guarded_store(word: *mut u64, value: u64) -> u32;
    fn doorbell_guarded_compare_swap(word: *mut u64, compare: u64, swap: u64, before: *mut u64) -> u32;
    fn doorbell_guarded_fetch_add(word: *mut u64, add: u64, before: *mut u64) -> u32;
    fn doorbell_guarded_touch(byte: *mut u8, is_written: u32) -> u32;
}

fn result(code: u32) -> Result<(), Gone> {
    if code == 0 { Ok(()) } else { Err(Gone) }
}

/// Minimum length in bytes of a copy by the registers of AVX. For a shorter copy, they save less than their test costs.
const WIDE_BYTES_MIN: usize = 512;

/// Returns whether to copy by the registers of AVX.
#[inline]
fn is_wide(length: usize) -> bool {
    length >= WIDE_BYTES_MIN && std::arch::is_x86_feature_detected!("avx")
}

#[inline]
pub(super) fn copy_out(to: *mut u8, from: *const u8, length: usize) -> Result<(), Gone> {
    // SAFETY: only `super::copy_out` calls this function, and it has the same contract. The wide routine has the same
    // contract for its lengths, and the processor has its instructions.
    result(unsafe {
        if is_wide(length) {
            doorbell_guarded_copy_out_wide(to, from, length)
        } else {
            doorbell_guarded_copy_out(to, from, length)
        }
    })
}

/// Copies at least one byte.
#[inline]
pub(super) fn copy_in(to: *mut u8, from: *const u8, length: usize) -> Result<(), Gone> {
    // SAFETY: as in `copy_out`, for `super::copy_in`.
    result(unsafe {
        if is_wide(length) {
            doorbell_guarded_copy_in_wide(to, from, length)
        } else {
            doorbell_guarded_copy_in(to, from, length)
        }
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    type Routine = unsafe extern "C" fn(*mut u8, *const u8, usize) -> u32;

    /// Moves bytes within one buffer, by a distance in each direction, and compares the buffer with the expected one.
    fn move_both_ways(name: &str, routine: Routine, length: usize, distance: usize) {
        for (from, to) in [(distance, 0), (0, distance)] {
            let mut memory: Vec<u8> = (0..length + distance).map(|index| (index * 7 + index / 251) as u8).collect();
            let mut expected = memory.clone();
            expected.copy_within(from..from + length, to);
            let base = memory.as_mut_ptr();
            // SAFETY: both ranges lie inside the memory, which has no other user.
            let code = unsafe { routine(base.wrapping_add(to), base.wrapping_add(from), length) };
            assert!(code == 0 && memory == expected, "{name}: {length} B from {from} to {to}");
        }
    }

    #[test]
    fn narrow_and_wide_copies_move_the_same_bytes() {
        let routines: [(&str, Routine); 4] = [
            ("copy_out", doorbell_guarded_copy_out),
            ("copy_in", doorbell_guarded_copy_in),
            ("copy_out_wide", doorbell_guarded_copy_out_wide),
            ("copy_in_wide", doorbell_guarded_copy_in_wide),
        ];
        let offered = if is_wide(WIDE_BYTES_MIN) { 4 } else { 2 };
        for (name, routine) in routines.into_iter().take(offered) {
            for length in [512, 513, 575, 576, 577, 4095, 4096, 4097, 9001] {
                for distance in [1, 31, 32, 33, 63, 64, 65, 200, length, length + 12] {
                    move_both_ways(name, routine, length, distance);
                }
            }
        }
    }
}
