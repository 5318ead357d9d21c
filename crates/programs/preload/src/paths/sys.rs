//! System calls that bypass the C library. They are no cancellation points, no other library intercepts them, and
//! signal handlers may make them. No function of this module allocates memory.

use std::ffi::{c_char, c_int};
use std::io::Write as _;
use std::mem::MaybeUninit;
use std::ops::ControlFlow;

/// A file descriptor that is closed when the handle is dropped.
pub(super) struct Fd(c_int);

impl Fd {
    pub(super) fn raw(&self) -> c_int {
        self.0
    }

    /// Returns the descriptor, which the program then owns.
    pub(super) fn into_raw(self) -> c_int {
        std::mem::ManuallyDrop::new(self).0
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: the handle owns the descriptor.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

/// Returns the `errno` of this thread.
pub(super) fn errno() -> c_int {
    // SAFETY: each thread has its own location, which is valid for as long as the thread runs.
    unsafe { *libc::__errno_location() }
}

fn checked(result: libc::c_long) -> Result<usize, c_int> {
    usize::try_from(result).map_err(|_| errno())
}

macro_rules! call {
    ($number:ident $(, $argument:expr)*) => {
        // SAFETY: each caller passes pointers to memory of at least the length that the call's arguments state.
        checked(unsafe { libc::syscall(libc::$number $(, $argument)*) })
    };
}

/// Returns a pointer to a path, or to other bytes that end with a zero byte.
fn c(path: &[u8]) -> *const c_char {
    debug_assert_eq!(path.last(), Some(&0), "the path must end with a zero byte");
    path.as_ptr().cast()
}

pub(super) fn euid() -> u32 {
    call!(SYS_geteuid).unwrap_or_default() as u32
}

pub(super) fn uid() -> u32 {
    call!(SYS_getuid).unwrap_or_default() as u32
}

/// Opens a file. The descriptor is closed at exec.
pub(super) fn openat(folder: c_int, path: &[u8], flags: c_int, mode: u32) -> Result<Fd, c_int> {
    call!(SYS_openat, folder, c(path), flags | libc::O_CLOEXEC, mode).map(|fd| Fd(fd as c_int))
}

/// Maximum length of a descriptor's path below `/proc`.
const DESCRIPTOR_PATH_MAX: usize = 32;

/// The path of a descriptor below `/proc`, with a zero byte at its end.
pub(super) struct DescriptorPath([u8; DESCRIPTOR_PATH_MAX]);

impl DescriptorPath {
    pub(super) fn new(fd: c_int) -> Self {
        let mut path = [0; DESCRIPTOR_PATH_MAX];
        // The 14 bytes of the prefix and at most 11 bytes of the number fit.
        let _ = write!(&mut path[..DESCRIPTOR_PATH_MAX - 1], "/proc/self/fd/{fd}");
        Self(path)
    }

    pub(super) fn with_zero(&self) -> &[u8] {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(0);
        &self.0[..=end]
    }

    pub(super) fn bytes(&self) -> &[u8] {
        let path = self.with_zero();
        &path[..path.len() - 1]
    }
}

/// Creates an anonymous file that can be sealed. `name` ends with a zero byte. The kernel shows the name below `/proc`.
pub(super) fn memfd(name: &[u8]) -> Result<Fd, c_int> {
    /// Flag `MFD_NOEXEC_SEAL`, which newer kernels may require (`vm.memfd_noexec`).
    const NOEXEC_SEAL: u32 = 8;
    let make = |flags: u32| call!(SYS_memfd_create, c(name), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | flags);
    match make(NOEXEC_SEAL) {
        Err(libc::EINVAL) => make(0),
        made => made,
    }
    .map(|fd| Fd(fd as c_int))
}

/// Seals an anonymous file, so that no process can change its content.
pub(super) fn seal(file: &Fd) {
    const SEALS: c_int = libc::F_SEAL_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    let _ = call!(SYS_fcntl, file.raw(), libc::F_ADD_SEALS, SEALS);
}

/// Writes to the beginning of a file.
pub(super) fn write(file: &Fd, bytes: &[u8]) -> Result<(), c_int> {
    match call!(SYS_pwrite64, file.raw(), bytes.as_ptr(), bytes.len(), 0_i64)? {
        written if written == bytes.len() => Ok(()),
        _ => Err(libc::ENOSPC),
    }
}

pub(super) fn fchmod(file: &Fd, mode: u32) -> Result<(), c_int> {
    call!(SYS_fchmod, file.raw(), mode).map(drop)
}

/// Moves the file of `from` to the descriptor number of `to`, which then no longer refers to its old file. Closes
/// `from`.
pub(super) fn take_number(from: Fd, to: Fd, cloexec: bool) -> Result<Fd, c_int> {
    let flags = if cloexec { libc::O_CLOEXEC } else { 0 };
    call!(SYS_dup3, from.raw(), to.raw(), flags)?;
    Ok(to)
}

pub(super) fn clear_cloexec(file: &Fd) -> Result<(), c_int> {
    call!(SYS_fcntl, file.raw(), libc::F_SETFD, 0).map(drop)
}

pub(super) fn mkdir(path: &[u8], mode: u32) -> Result<(), c_int> {
    call!(SYS_mkdirat, libc::AT_FDCWD, c(path), mode).map(drop)
}

/// Removes an empty folder.
pub(super) fn rmdirat(folder: c_int, name: &[u8]) -> Result<(), c_int> {
    call!(SYS_unlinkat, folder, c(name), libc::AT_REMOVEDIR).map(drop)
}

pub(super) fn fchdir(folder: &Fd) -> Result<(), c_int> {
    call!(SYS_fchdir, folder.raw()).map(drop)
}

pub(super) fn exists(path: &[u8]) -> bool {
    call!(SYS_faccessat, libc::AT_FDCWD, c(path), libc::F_OK).is_ok()
}

pub(super) fn fstat(fd: c_int) -> Result<libc::stat, c_int> {
    let mut found = MaybeUninit::<libc::stat>::uninit();
    call!(SYS_fstat, fd, found.as_mut_ptr())?;
    // SAFETY: the call succeeded, so the kernel has written the structure. On x86-64 and AArch64, the C library's
    // structure is the same as the kernel's.
    Ok(unsafe { found.assume_init() })
}

/// Returns the status of an entry of a folder. If the entry is a link, returns the status of the link itself.
pub(super) fn lstatat(folder: c_int, name: &[u8]) -> Result<libc::stat, c_int> {
    let mut found = MaybeUninit::<libc::stat>::uninit();
    call!(SYS_newfstatat, folder, c(name), found.as_mut_ptr(), libc::AT_SYMLINK_NOFOLLOW)?;
    // SAFETY: the call succeeded, so the kernel has written the structure.
    Ok(unsafe { found.assume_init() })
}

/// Stores the path of the working folder in `into`, and returns the length of the path.
pub(super) fn getcwd(into: &mut [u8]) -> Result<usize, c_int> {
    // The kernel counts the zero byte at the end.
    call!(SYS_getcwd, into.as_mut_ptr(), into.len()).map(|length| length.saturating_sub(1))
}

pub(super) fn readlink(path: &[u8], into: &mut [u8]) -> Result<usize, c_int> {
    call!(SYS_readlinkat, libc::AT_FDCWD, c(path), into.as_mut_ptr(), into.len())
}

/// Returns the read position of a descriptor.
pub(super) fn position(fd: c_int) -> Result<usize, c_int> {
    call!(SYS_lseek, fd, 0_i64, libc::SEEK_CUR)
}

pub(super) fn set_position(fd: c_int, position: usize) -> Result<(), c_int> {
    call!(SYS_lseek, fd, position, libc::SEEK_SET).map(drop)
}

/// Returns eight bytes that another user cannot guess. If the kernel has no random bytes yet, returns bytes from the
/// time and the thread id, which another user can guess.
pub(super) fn random() -> u64 {
    let mut bytes = [0; 8];
    if call!(SYS_getrandom, bytes.as_mut_ptr(), bytes.len(), libc::GRND_NONBLOCK) == Ok(bytes.len()) {
        return u64::from_ne_bytes(bytes);
    }
    let mut now = MaybeUninit::<libc::timespec>::zeroed();
    let _ = call!(SYS_clock_gettime, libc::CLOCK_MONOTONIC, now.as_mut_ptr());
    // SAFETY: the memory is initialised with zeros, or the call has written it.
    let now = unsafe { now.assume_init() };
    let thread = call!(SYS_gettid).unwrap_or_default() as u64;
    (now.tv_nsec as u64 ^ (now.tv_sec as u64) << 30 ^ thread << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// An entry that the kernel lists in a folder.
pub(super) struct Entry<'a> {
    pub(super) inode: u64,
    /// Kind of the entry, such as `DT_DIR`.
    pub(super) kind: u8,
    /// Name of the entry, with a zero byte at the end.
    pub(super) name: &'a [u8],
}

/// Calls `each` for each entry of a folder until `each` returns `Break`.
pub(super) fn entries(folder: &Fd, mut each: impl FnMut(Entry<'_>) -> ControlFlow<()>) -> Result<(), c_int> {
    /// Offset of the record's length in `linux_dirent64`, whose fields are inode, offset, length, type and name.
    const LENGTH_AT: usize = 16;
    const KIND_AT: usize = 18;
    const NAME_AT: usize = 19;
    let mut buffer = [0_u64; 256];
    loop {
        let length = call!(SYS_getdents64, folder.raw(), buffer.as_mut_ptr(), size_of_val(&buffer))?;
        if length == 0 {
            return Ok(());
        }
        // SAFETY: any bytes are valid, and the kernel has written `length` bytes of the buffer.
        let bytes = unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), length) };
        let mut at = 0;
        while let Some(record) = bytes.get(at..).filter(|record| record.len() > NAME_AT) {
            let name = &record[NAME_AT..];
            let end = name.iter().position(|&byte| byte == 0).unwrap_or(0);
            if !matches!(&name[..end], b"" | b"." | b"..") {
                let inode = record.first_chunk().map_or(0, |inode| u64::from_ne_bytes(*inode));
                if each(Entry { inode, kind: record[KIND_AT], name: &name[..=end] }).is_break() {
                    return Ok(());
                }
            }
            at += usize::from(u16::from_ne_bytes([record[LENGTH_AT], record[LENGTH_AT + 1]])).max(NAME_AT);
        }
    }
}
