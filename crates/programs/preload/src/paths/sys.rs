//! System calls without the C library. They are no cancellation points, no other library intercepts them, and signal
//! handlers may make them. None allocates.

use std::ffi::{c_char, c_int};
use std::io::Write as _;
use std::mem::MaybeUninit;
use std::ops::ControlFlow;

/// A descriptor that is closed with its handle.
pub(super) struct Fd(c_int);

impl Fd {
    pub(super) fn raw(&self) -> c_int {
        self.0
    }

    /// Passes the descriptor to the program.
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

/// Returns the error number of the last system call of this thread.
pub(super) fn errno() -> c_int {
    // SAFETY: the C library has one location per thread, which is valid for as long as the thread.
    unsafe { *libc::__errno_location() }
}

fn checked(result: libc::c_long) -> Result<usize, c_int> {
    usize::try_from(result).map_err(|_| errno())
}

macro_rules! call {
    ($number:ident $(, $argument:expr)*) => {
        // SAFETY: each caller below passes pointers to memory of at least the length that it names.
        checked(unsafe { libc::syscall(libc::$number $(, $argument)*) })
    };
}

/// Returns a pointer to a path or to other bytes that end with a zero.
fn c(path: &[u8]) -> *const c_char {
    debug_assert_eq!(path.last(), Some(&0), "a path ends with a zero");
    path.as_ptr().cast()
}

pub(super) fn euid() -> u32 {
    call!(SYS_geteuid).unwrap_or_default() as u32
}

pub(super) fn uid() -> u32 {
    call!(SYS_getuid).unwrap_or_default() as u32
}

/// Opens a file with close-on-exec.
pub(super) fn openat(folder: c_int, path: &[u8], flags: c_int, mode: u32) -> Result<Fd, c_int> {
    call!(SYS_openat, folder, c(path), flags | libc::O_CLOEXEC, mode).map(|fd| Fd(fd as c_int))
}

/// Maximum length of a descriptor's path below `/proc`.
const DESCRIPTOR_PATH_MAX: usize = 32;

/// The path of a descriptor below `/proc`, with a zero at its end.
pub(super) struct DescriptorPath([u8; DESCRIPTOR_PATH_MAX]);

impl DescriptorPath {
    pub(super) fn new(fd: c_int) -> Self {
        let mut path = [0; DESCRIPTOR_PATH_MAX];
        // The 14 bytes of the prefix and at most 11 digits fit.
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

/// Creates an anonymous file that can be sealed. Its name, which ends with a zero, appears below `/proc`.
pub(super) fn memfd(name: &[u8]) -> Result<Fd, c_int> {
    /// Flag that newer kernels may require (`vm.memfd_noexec`).
    const NOEXEC_SEAL: u32 = 8;
    let make = |flags: u32| call!(SYS_memfd_create, c(name), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | flags);
    match make(NOEXEC_SEAL) {
        Err(libc::EINVAL) => make(0),
        made => made,
    }
    .map(|fd| Fd(fd as c_int))
}

/// Forbids all changes of an anonymous file's content.
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

/// Moves the file of `from` to the number of `to`, in place of the file there, and closes `from`.
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
    // SAFETY: the call succeeded, so the structure was written. The C library's structure equals the kernel's on
    // these machines.
    Ok(unsafe { found.assume_init() })
}

/// Returns the status of an entry of a folder. For a link, this is the status of the link itself.
pub(super) fn lstatat(folder: c_int, name: &[u8]) -> Result<libc::stat, c_int> {
    let mut found = MaybeUninit::<libc::stat>::uninit();
    call!(SYS_newfstatat, folder, c(name), found.as_mut_ptr(), libc::AT_SYMLINK_NOFOLLOW)?;
    // SAFETY: as above.
    Ok(unsafe { found.assume_init() })
}

/// Stores the path of the working folder, and returns its length.
pub(super) fn getcwd(into: &mut [u8]) -> Result<usize, c_int> {
    // The kernel counts the zero at the end.
    call!(SYS_getcwd, into.as_mut_ptr(), into.len()).map(|length| length.saturating_sub(1))
}

pub(super) fn readlink(path: &[u8], into: &mut [u8]) -> Result<usize, c_int> {
    call!(SYS_readlinkat, libc::AT_FDCWD, c(path), into.as_mut_ptr(), into.len())
}

/// Returns the position of a descriptor.
pub(super) fn position(fd: c_int) -> Result<usize, c_int> {
    call!(SYS_lseek, fd, 0_i64, libc::SEEK_CUR)
}

pub(super) fn set_position(fd: c_int, position: usize) -> Result<(), c_int> {
    call!(SYS_lseek, fd, position, libc::SEEK_SET).map(drop)
}

/// Returns eight bytes that another user cannot guess. The fallback, before the kernel has random bytes, is
/// guessable.
pub(super) fn random() -> u64 {
    let mut bytes = [0; 8];
    if call!(SYS_getrandom, bytes.as_mut_ptr(), bytes.len(), libc::GRND_NONBLOCK) == Ok(bytes.len()) {
        return u64::from_ne_bytes(bytes);
    }
    let mut now = MaybeUninit::<libc::timespec>::zeroed();
    let _ = call!(SYS_clock_gettime, libc::CLOCK_MONOTONIC, now.as_mut_ptr());
    // SAFETY: the memory is zeros, or was written by the call.
    let now = unsafe { now.assume_init() };
    let thread = call!(SYS_gettid).unwrap_or_default() as u64;
    (now.tv_nsec as u64 ^ (now.tv_sec as u64) << 30 ^ thread << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// An entry of a folder of the kernel.
pub(super) struct Entry<'a> {
    pub(super) inode: u64,
    /// Kind of the entry, such as `DT_DIR`.
    pub(super) kind: u8,
    /// Name of the entry, with a zero at the end.
    pub(super) name: &'a [u8],
}

/// Calls `each` for the entries of a folder until it returns `Break`.
pub(super) fn entries(folder: &Fd, mut each: impl FnMut(Entry<'_>) -> ControlFlow<()>) -> Result<(), c_int> {
    /// Offsets in `linux_dirent64`: inode, offset, length of the record, type, name.
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
