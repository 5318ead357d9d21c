//! System calls without the C library: they are no points of cancellation, no other library sees them, and a signal
//! handler may make them. None allocates.

use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;

/// A descriptor that is closed with its handle.
pub(super) struct Fd(c_int);

impl Fd {
    pub(super) fn raw(&self) -> c_int {
        self.0
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: it is ours.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

/// The number of the error of the last system call of this thread.
pub(super) fn errno() -> c_int {
    // SAFETY: the C library gives each thread a place of its own.
    unsafe { *libc::__errno_location() }
}

fn checked(result: libc::c_long) -> Result<usize, c_int> {
    usize::try_from(result).map_err(|_| errno())
}

macro_rules! call {
    ($number:ident $(, $argument:expr)*) => {
        // SAFETY: each caller below hands over pointers to memory of the length that it names.
        checked(unsafe { libc::syscall(libc::$number $(, $argument)*) })
    };
}

/// A path that ends with a zero, or bytes that do.
fn c(path: &[u8]) -> *const c_char {
    debug_assert_eq!(path.last(), Some(&0), "a path ends with a zero");
    path.as_ptr().cast()
}

pub(super) fn pid() -> u32 {
    call!(SYS_getpid).unwrap_or_default() as u32
}

pub(super) fn euid() -> u32 {
    call!(SYS_geteuid).unwrap_or_default() as u32
}

pub(super) fn uid() -> u32 {
    call!(SYS_getuid).unwrap_or_default() as u32
}

pub(super) fn openat(folder: c_int, path: &[u8], flags: c_int, mode: u32) -> Result<Fd, c_int> {
    call!(SYS_openat, folder, c(path), flags | libc::O_CLOEXEC, mode).map(|fd| Fd(fd as c_int))
}

pub(super) fn mkdir(path: &[u8], mode: u32) -> Result<(), c_int> {
    call!(SYS_mkdirat, libc::AT_FDCWD, c(path), mode).map(drop)
}

pub(super) fn chmod(path: &[u8], mode: u32) -> Result<(), c_int> {
    call!(SYS_fchmodat, libc::AT_FDCWD, c(path), mode).map(drop)
}

pub(super) fn symlink(target: &[u8], path: &[u8]) -> Result<(), c_int> {
    call!(SYS_symlinkat, c(target), libc::AT_FDCWD, c(path)).map(drop)
}

pub(super) fn exists(path: &[u8]) -> bool {
    call!(SYS_faccessat, libc::AT_FDCWD, c(path), libc::F_OK).is_ok()
}

/// Of a link itself.
pub(super) fn lstat(path: &[u8]) -> Result<libc::stat, c_int> {
    let mut found = MaybeUninit::<libc::stat>::uninit();
    call!(SYS_newfstatat, libc::AT_FDCWD, c(path), found.as_mut_ptr(), libc::AT_SYMLINK_NOFOLLOW)?;
    // SAFETY: the call succeeded, so it was written; the C library's structure is the kernel's on these machines.
    Ok(unsafe { found.assume_init() })
}

pub(super) fn lstatx(path: &[u8], flags: c_int, mask: u32) -> Result<libc::statx, c_int> {
    let mut found = MaybeUninit::<libc::statx>::zeroed();
    call!(SYS_statx, libc::AT_FDCWD, c(path), flags | libc::AT_SYMLINK_NOFOLLOW, mask, found.as_mut_ptr())?;
    // SAFETY: zeros, or what the call wrote.
    Ok(unsafe { found.assume_init() })
}

/// The working folder.
pub(super) fn getcwd(into: &mut [u8]) -> Result<usize, c_int> {
    // The kernel counts the zero at the end.
    call!(SYS_getcwd, into.as_mut_ptr(), into.len()).map(|length| length.saturating_sub(1))
}

pub(super) fn readlink(path: &[u8], into: &mut [u8]) -> Result<usize, c_int> {
    call!(SYS_readlinkat, libc::AT_FDCWD, c(path), into.as_mut_ptr(), into.len())
}

/// Makes a file hold these bytes. One that holds them already is not written.
pub(super) fn set_content(file: &Fd, bytes: &[u8]) -> Result<(), c_int> {
    let mut now = [0; super::plan::MAX_VALUE_BYTES + 1];
    let length = call!(SYS_pread64, file.raw(), now.as_mut_ptr(), now.len(), 0_i64)?;
    if &now[..length] == bytes {
        return Ok(());
    }
    call!(SYS_pwrite64, file.raw(), bytes.as_ptr(), bytes.len(), 0_i64)?;
    if length > bytes.len() {
        call!(SYS_ftruncate, file.raw(), bytes.len())?;
    }
    Ok(())
}

pub(super) fn fchmod(file: &Fd, mode: u32) -> Result<(), c_int> {
    call!(SYS_fchmod, file.raw(), mode).map(drop)
}

pub(super) fn unlink(folder: c_int, name: &[u8], flags: c_int) -> Result<(), c_int> {
    call!(SYS_unlinkat, folder, c(name), flags).map(drop)
}

/// Calls `each` for the name of each entry of a folder, with its zero.
pub(super) fn entries(folder: &Fd, mut each: impl FnMut(&[u8])) -> Result<(), c_int> {
    /// As `linux_dirent64` begins: inode, offset, length of the record, type; then the name.
    const NAME_AT: usize = 19;
    let mut buffer = [0_u64; 256];
    loop {
        let length = call!(SYS_getdents64, folder.raw(), buffer.as_mut_ptr(), size_of_val(&buffer))?;
        if length == 0 {
            return Ok(());
        }
        // SAFETY: any bytes are good, and the kernel has written so many of the buffer.
        let bytes = unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), length) };
        let mut at = 0;
        while let Some(record) = bytes.get(at..).filter(|record| record.len() > NAME_AT) {
            let name = &record[NAME_AT..];
            let end = name.iter().position(|&byte| byte == 0).unwrap_or(0);
            if !matches!(&name[..end], b"" | b"." | b"..") {
                each(&name[..=end]);
            }
            at += usize::from(u16::from_ne_bytes([record[16], record[17]])).max(NAME_AT);
        }
    }
}

/// Deeper than any tree of ours.
const MAX_DEPTH: usize = 16;

/// Removes a folder with all that is in it. No link is followed.
pub(super) fn remove_folder(path: &[u8]) {
    // A folder that shrinks while it is listed may show only a part of itself.
    for _ in 0..4 {
        empty(libc::AT_FDCWD, path, MAX_DEPTH);
        if unlink(libc::AT_FDCWD, path, libc::AT_REMOVEDIR) != Err(libc::ENOTEMPTY) {
            break;
        }
    }
}

fn empty(folder: c_int, name: &[u8], depth: usize) {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let Some(depth) = depth.checked_sub(1) else { return };
    let Ok(open) = openat(folder, name, flags, 0) else { return };
    let _ = entries(&open, |entry| {
        if unlink(open.raw(), entry, 0).is_err_and(|errno| errno == libc::EISDIR) {
            empty(open.raw(), entry, depth);
            let _ = unlink(open.raw(), entry, libc::AT_REMOVEDIR);
        }
    });
}
