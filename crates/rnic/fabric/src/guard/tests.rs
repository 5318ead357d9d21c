use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use doorbell_rnic::{Region, RegionTable};
use doorbell_verbs_core::{Access, MemoryError, PdId};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mprotect, munmap};
use nix::unistd::ftruncate;

use super::*;

const PAGE: usize = 4096;
const PD: PdId = PdId(1);

/// A mapping of four pages of a file, and a memory region over these pages.
struct Pages {
    file: OwnedFd,
    base: NonNull<std::ffi::c_void>,
    region: Arc<Region>,
}

impl Pages {
    fn new() -> Self {
        let file = memfd_create(c"pages", MFdFlags::empty()).unwrap();
        ftruncate(&file, 4 * PAGE as i64).unwrap();
        let (length, access) = (NonZeroUsize::new(4 * PAGE).unwrap(), ProtFlags::PROT_READ | ProtFlags::PROT_WRITE);
        // SAFETY: the kernel chooses the address of the new mapping.
        let base = unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, &file, 0) }.unwrap();
        let (table, rights) = (RegionTable::default(), Access::LOCAL_WRITE | Access::ON_DEMAND);
        // SAFETY: the tests guard memory, so an access to an unmapped page of the region only fails.
        let region = unsafe { table.insert(PD, base.as_ptr().cast(), 4 * PAGE, 0, rights, None, None, || 0x100) };
        Self { file, base, region: region.unwrap() }
    }

    fn page(&self, index: usize) -> NonNull<std::ffi::c_void> {
        // SAFETY: the page lies within the mapping.
        unsafe { self.base.byte_add(index * PAGE) }
    }

    fn touch(&self, offset: usize, length: usize, access: Access) -> Result<(), MemoryError> {
        self.region.prefetch(PD, offset as u64, length as u64, access)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this test, and unmapped pages stay unmapped.
        unsafe { munmap(self.base, 4 * PAGE) }.unwrap();
    }
}

fn is_gone(result: Result<(), MemoryError>) -> bool {
    matches!(result, Err(MemoryError::NotThere { .. }))
}

#[test]
fn only_missing_pages_are_errors() {
    assert_eq!(guard_memory(), if cfg!(target_arch = "x86_64") { CopyMethod::Handler } else { CopyMethod::Kernel });
    let pages = Pages::new();
    assert!(pages.touch(0, 4 * PAGE, Access::LOCAL_WRITE).is_ok());
    // SAFETY: no Rust code has references to the pages.
    unsafe {
        munmap(pages.page(1), PAGE).unwrap();
        mprotect(pages.page(2), PAGE, ProtFlags::PROT_READ).unwrap();
    }
    ftruncate(&pages.file, 3 * PAGE as i64).unwrap();
    for written in [Access::empty(), Access::LOCAL_WRITE] {
        assert!(pages.touch(0, PAGE, written).is_ok());
        assert!(is_gone(pages.touch(PAGE - 1, 2, written)), "unmapped");
        assert!(is_gone(pages.touch(3 * PAGE, 8, written)), "truncated");
        assert!(is_gone(pages.touch(0, 4 * PAGE, written)));
        assert_eq!(is_gone(pages.touch(2 * PAGE, PAGE, written)), !written.is_empty(), "protected");
    }
}

#[test]
fn library_threads_survive_faults_and_block_other_signals() {
    guard_memory();
    let body = || {
        let pages = Pages::new();
        // SAFETY: no Rust code has references to the pages.
        unsafe { munmap(pages.page(1), PAGE).unwrap() };
        assert!(is_gone(pages.touch(PAGE, 1, Access::empty())));
        SigSet::thread_get_mask().unwrap()
    };
    let mask = spawn_without_signals("test", body).unwrap().join().unwrap();
    assert!(Signal::iterator().all(|signal| {
        let is_kept = FAULTS.contains(&signal) || [Signal::SIGKILL, Signal::SIGSTOP].contains(&signal);
        mask.contains(signal) != is_kept
    }));
}

#[test]
fn a_thread_that_blocks_all_signals_survives_faults_once_it_is_admitted() {
    guard_memory();
    let blocked = std::thread::spawn(|| {
        SigSet::all().thread_set_mask().unwrap();
        admit_thread();
        let pages = Pages::new();
        // SAFETY: no Rust code has references to the pages.
        unsafe { munmap(pages.page(0), PAGE).unwrap() };
        assert!(is_gone(pages.touch(0, 1, Access::LOCAL_WRITE)));
    });
    blocked.join().unwrap();
}

#[test]
fn the_kernel_copies_between_ranges_that_are_there() {
    use doorbell_rnic::Copier as _;

    let pages = Pages::new();
    let (from, to) = (pages.page(0).as_ptr().cast::<u8>(), pages.page(2).as_ptr().cast::<u8>());
    // SAFETY: the page is mapped, and only this test uses it.
    unsafe { from.write_bytes(7, PAGE) };
    assert!(KernelCopier.copy(from, to, PAGE));
    // SAFETY: as above.
    assert_eq!(unsafe { to.add(PAGE - 1).read() }, 7);
    assert!(KernelCopier.copy(from, to, 0));
    // SAFETY: no Rust code has references to the page.
    unsafe { munmap(pages.page(3), PAGE).unwrap() };
    assert!(!KernelCopier.copy(from, to.wrapping_add(1), PAGE));
    assert!(!KernelCopier.copy(to.wrapping_add(PAGE - 1), from, 2));
    assert!(!KernelCopier.bring_in(to, PAGE + 1, false));
}
