//! Plain accesses, for machines without routines in machine code. A fault ends the process.

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
        WordOperation::CompareSwap { compare, swap } => {
            word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire).unwrap_or_else(|actual| actual)
        }
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
