//! Copies by the kernel, which fail if a page is not mapped.

use std::sync::atomic::{AtomicBool, Ordering};

use doorbell_rnic::Copier;

use super::paging::bring_in;

/// Copies within this process by `process_vm_writev`.
pub(super) struct KernelCopier;

/// Whether the kernel or a sandbox has refused `process_vm_writev`.
static IS_REFUSED: AtomicBool = AtomicBool::new(false);

impl Copier for KernelCopier {
    fn copy(&self, from: *const u8, to: *mut u8, length: usize) -> bool {
        if length == 0 {
            return true;
        }
        if !IS_REFUSED.load(Ordering::Relaxed) {
            let local = libc::iovec { iov_base: from.cast_mut().cast(), iov_len: length };
            let remote = libc::iovec { iov_base: to.cast(), iov_len: length };
            // SAFETY: both ranges belong to this process, and the kernel checks that they are mapped. By the contract
            // of `copy`, the ranges may be read and written.
            let copied =
                unsafe { libc::process_vm_writev(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
            // The kernel stops copying at the first page that it cannot access. It then returns fewer bytes than
            // `length`.
            if let Ok(copied) = usize::try_from(copied) {
                return copied == length;
            }
            match std::io::Error::last_os_error().raw_os_error() {
                Some(libc::EPERM | libc::ENOSYS) => IS_REFUSED.store(true, Ordering::Relaxed),
                _ => return false,
            }
        }
        // Without `process_vm_writev`, check both ranges and then copy. If another thread unmaps a range between check
        // and copy, the process still ends.
        if bring_in(from.cast_mut(), length, false).is_err() || bring_in(to, length, true).is_err() {
            return false;
        }
        // SAFETY: the check above found both ranges mapped. By the contract of `copy`, the ranges may be read and
        // written.
        unsafe { std::ptr::copy(from, to, length) };
        true
    }

    fn bring_in(&self, base: *mut u8, length: usize, written: bool) -> bool {
        bring_in(base, length, written).is_ok()
    }
}
