use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::eventfd::EventFd;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;

use super::*;
use crate::objects::context::{ibv_close_device, ibv_open_device};
use crate::objects::device::listed;
use crate::objects::pd::{ibv_alloc_pd, ibv_dealloc_pd};

const PAGE: u64 = PAGE_BYTES;
const WRITES: c_uint = c::IBV_ACCESS_LOCAL_WRITE | c::IBV_ACCESS_REMOTE_WRITE;

/// A context with a protection domain.
struct Opened {
    context: *mut c::ibv_context,
    pd: *mut c::ibv_pd,
}

impl Opened {
    fn new() -> Self {
        // SAFETY: the context exists until the value is dropped.
        let context = unsafe { ibv_open_device(listed(0).unwrap()) };
        // SAFETY: as above.
        Self { context, pd: unsafe { ibv_alloc_pd(context) } }
    }

    fn register(&self, offset: u64, length: u64, address: u64, fd: c_int, flags: c_uint) -> *mut c::ibv_mr {
        // SAFETY: the protection domain exists.
        unsafe { ibv_reg_dmabuf_mr(self.pd, offset, length as usize, address, fd, flags as c_int) }
    }

    /// Registers memory and deregisters it again. Returns the errno of a refused registration.
    fn outcome(&self, offset: u64, length: u64, fd: c_int, flags: c_uint) -> Option<c_int> {
        let region = self.register(offset, length, offset, fd, flags);
        if region.is_null() {
            return io::Error::last_os_error().raw_os_error();
        }
        // SAFETY: the region exists, and the test does not use it any more.
        assert_eq!(unsafe { mr::ibv_dereg_mr(region) }, 0);
        None
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: the test has destroyed all regions.
        unsafe { assert_eq!((ibv_dealloc_pd(self.pd), ibv_close_device(self.context)), (0, 0)) }
    }
}

/// Returns an anonymous file of three pages.
fn three_pages(name: &str) -> OwnedFd {
    let file = memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap();
    ftruncate(&file, 3 * PAGE as i64).unwrap();
    file
}

fn is_mapped(name: &str) -> bool {
    fs::read_to_string("/proc/self/maps").unwrap().contains(&format!("/memfd:{name}"))
}

#[test]
fn a_region_lies_inside_the_memory_of_its_descriptor() {
    let (opened, file) = (Opened::new(), three_pages("bounds"));
    let outcome = |offset: u64, length: u64| opened.outcome(offset, length, file.as_raw_fd(), WRITES);
    for (offset, length) in [(0, 1), (0, 3 * PAGE), (PAGE, 2 * PAGE), (2 * PAGE + 4095, 1), (17, PAGE)] {
        assert_eq!(outcome(offset, length), None, "{length} B at {offset}");
    }
    for (offset, length) in
        [(0, 0), (0, 3 * PAGE + 1), (PAGE, 2 * PAGE + 1), (3 * PAGE, 1), (u64::MAX - 4095, 4096), (0, u64::MAX)]
    {
        assert_eq!(outcome(offset, length), Some(libc::EINVAL), "{length} B at {offset}");
    }
    let register = |offset: u64, address: u64| opened.register(offset, 64, address, file.as_raw_fd(), WRITES);
    let region = register(PAGE + 8, 0x5000_0008);
    // SAFETY: the region exists until the test deregisters it.
    unsafe {
        assert_eq!(((*region).addr.addr(), (*region).length), (PAGE as usize + 8, 64));
        assert_eq!(mr::ibv_dereg_mr(region), 0);
    }
    assert!(register(PAGE + 8, 0x5000_0010).is_null(), "another position within the page was accepted");
}

#[test]
fn only_rights_of_the_kernel_are_accepted() {
    let (opened, file) = (Opened::new(), three_pages("rights"));
    let outcome = |flags: c_uint| opened.outcome(0, PAGE, file.as_raw_fd(), flags);
    for flags in [0, c::IBV_ACCESS_REMOTE_READ, WRITES | c::IBV_ACCESS_REMOTE_ATOMIC | c::IBV_ACCESS_RELAXED_ORDERING] {
        assert_eq!(outcome(flags), None, "{flags:#x}");
    }
    for flags in [
        c::IBV_ACCESS_REMOTE_WRITE,
        c::IBV_ACCESS_ZERO_BASED,
        WRITES | c::IBV_ACCESS_ON_DEMAND,
        WRITES | c::IBV_ACCESS_MW_BIND,
    ] {
        assert_eq!(outcome(flags), Some(libc::EINVAL), "{flags:#x}");
    }
}

#[test]
fn descriptors_without_memory_are_refused() {
    let opened = Opened::new();
    for closed in [-1, c_int::MAX] {
        assert_eq!(opened.outcome(0, PAGE, closed, WRITES), Some(libc::EBADF), "{closed}");
    }
    let files = ["/dev/null", "/dev/zero", "/", "/proc/self/status"].map(|path| File::open(path).unwrap());
    let (pipe, event) = (io::pipe().unwrap(), EventFd::new().unwrap());
    let others = [pipe.0.as_raw_fd(), pipe.1.as_raw_fd(), event.as_raw_fd()];
    for fd in files.iter().map(File::as_raw_fd).chain(others) {
        assert_eq!(opened.outcome(0, PAGE, fd, 0), Some(libc::EOPNOTSUPP));
    }
}

#[test]
fn seals_and_the_mode_of_a_descriptor_permit_or_refuse_writing() {
    let opened = Opened::new();
    for seal in [SealFlag::F_SEAL_WRITE, SealFlag::F_SEAL_FUTURE_WRITE] {
        let file = three_pages("sealed");
        let outcome = |flags: c_uint| opened.outcome(0, PAGE, file.as_raw_fd(), flags);
        assert_eq!((outcome(0), outcome(WRITES)), (None, None));
        fcntl(&file, FcntlArg::F_ADD_SEALS(seal)).unwrap();
        assert_eq!((outcome(c::IBV_ACCESS_REMOTE_READ), outcome(WRITES)), (None, Some(libc::EPERM)), "{seal:?}");
    }
    // The kernel seals no file that a region can write.
    let file = three_pages("written");
    let region = opened.register(0, PAGE, 0, file.as_raw_fd(), WRITES);
    assert!(!region.is_null());
    assert_eq!(fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE)), Err(Errno::EBUSY));
    // SAFETY: the region exists, and the test does not use it any more.
    assert_eq!(unsafe { mr::ibv_dereg_mr(region) }, 0);
    let read_only = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    let outcome = |flags: c_uint| opened.outcome(0, PAGE, read_only.as_raw_fd(), flags);
    assert_eq!((outcome(c::IBV_ACCESS_REMOTE_READ), outcome(WRITES)), (None, Some(libc::EACCES)));
}

#[test]
fn a_region_keeps_its_memory_until_it_is_deregistered() {
    let (opened, name) = (Opened::new(), "kept-by-a-region");
    let file = three_pages(name);
    let region = opened.register(PAGE, PAGE, PAGE, file.as_raw_fd(), WRITES);
    assert!(!region.is_null());
    drop(file);
    assert!(is_mapped(name));
    let changes = c::IBV_REREG_MR_CHANGE_ACCESS as c_int;
    // SAFETY: the region exists until the test deregisters it.
    unsafe {
        let changed = mr::ibv_rereg_mr(region, changes, ptr::null_mut(), ptr::null_mut(), 0, 0);
        assert_eq!(changed, c::IBV_REREG_MR_ERR_INPUT);
        assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EOPNOTSUPP));
        assert_eq!(mr::ibv_dereg_mr(region), 0);
    }
    assert!(!is_mapped(name));
}
