//! Requests to the kernel to bring pages into memory.

use std::ffi::c_void;
use std::io;
use std::sync::OnceLock;

use doorbell_rnic::Pager;
use nix::unistd::{SysconfVar, sysconf};

/// [`Pager`] of this process's memory, for memory regions that are paged on demand.
#[derive(Clone, Copy, Debug, Default)]
pub struct OwnMemory;

impl Pager for OwnMemory {
    fn bring_in(&self, base: *mut u8, length: usize, written: bool) -> bool {
        bring_in(base, length, written).is_ok()
    }
}

/// Brings pages of this process into memory, so that they can be read. If `written` is true, they can also be written.
///
/// # Errors
///
/// A page of the range is not mapped or does not allow the access, or the kernel is older than 5.14.
pub fn bring_in(base: *mut u8, length: usize, written: bool) -> io::Result<()> {
    if length == 0 {
        return Ok(());
    }
    let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten().unwrap_or(4096) as usize;
    let start = base as usize / page * page;
    let end = (base as usize).checked_add(length).and_then(|end| end.checked_next_multiple_of(page));
    let end = end.ok_or_else(|| io::Error::from_raw_os_error(libc::EFAULT))?;
    let advice = if written { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    // SAFETY: the call only changes which pages are in memory, for any range.
    match unsafe { libc::madvise(start as *mut c_void, end - start, advice) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns whether the kernel supports [`bring_in`].
pub fn can_bring_in() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| bring_in((&raw const CAN).cast_mut().cast(), 1, false).is_ok())
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    #[test]
    fn only_mapped_memory_is_brought_in() {
        static CONSTANT: [u8; 8] = [1; 8];
        if !can_bring_in() {
            return doorbell_testing::leave_out("tests of memory that is paged in: the kernel is older than 5.14");
        }
        let mut own = vec![0_u8; 100_000];
        let constant = CONSTANT.as_ptr().cast_mut();
        let nowhere = ptr::without_provenance_mut(0x1000);
        let end = ptr::without_provenance_mut(usize::MAX - 1);
        assert!(bring_in(own.as_mut_ptr(), own.len(), true).is_ok());
        assert!(bring_in(constant, 8, false).is_ok());
        assert!(bring_in(constant, 8, true).is_err(), "constant memory was made writable");
        assert!(bring_in(nowhere, 1, false).is_err(), "an unmapped address was accepted");
        assert!(bring_in(end, 2, false).is_err(), "a range beyond the address space was accepted");
        assert!(bring_in(nowhere, 0, true).is_ok(), "an empty range was rejected");
    }
}
