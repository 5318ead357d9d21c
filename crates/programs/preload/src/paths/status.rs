//! Functions that read the status, the rights or the extended attributes of a path without opening the file.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::plan::{Kind, Node, plan};
use super::{End, Served, answered, led, may_concern, names, next, sys, was_missed};
use crate::objects::answer::set_errno;

/// Size that the status of each file shows. As in the kernel, this is the size of a page.
const FILE_BYTES: u64 = 4096;

/// Returns the kind and the rights of a node.
fn mode(node: &Node) -> u32 {
    match node.kind {
        Kind::Folder { .. } => libc::S_IFDIR | 0o755,
        Kind::File(_) => libc::S_IFREG | 0o444,
        Kind::Link(_) => libc::S_IFLNK | 0o777,
        Kind::Character { .. } => libc::S_IFCHR | 0o666,
    }
}

fn bytes(node: &Node) -> u64 {
    match &node.kind {
        Kind::File(_) => FILE_BYTES,
        Kind::Link(target) => target.len() as u64 - 1,
        Kind::Folder { .. } | Kind::Character { .. } => 0,
    }
}

/// Device number that the status of all nodes shows. No file system of the kernel has this number.
const DEVICE: (u32, u32) = (0, 0xd_be11);

const BLOCK_BYTES: u32 = 4096;

/// Returns the number of links of a node. Each folder within a folder adds one link to the outer folder.
fn links(node: &Node) -> u32 {
    match node.kind {
        Kind::Folder { .. } => 2 + plan().within(node).filter(|node| node.is_folder()).count() as u32,
        _ => 1,
    }
}

/// Returns the status of a node that is named by its path. The status of a descriptor of this node has the same inode,
/// device, kind and rights.
fn stat_of(node: &Node) -> libc::stat {
    // SAFETY: zeros are a valid `stat`.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    found.st_dev = libc::makedev(DEVICE.0, DEVICE.1);
    found.st_ino = node.inode();
    found.st_mode = mode(node) as _;
    found.st_nlink = links(node) as _;
    found.st_size = bytes(node) as _;
    found.st_blksize = BLOCK_BYTES as _;
    (found.st_atime, found.st_mtime, found.st_ctime) = (plan().made, plan().made, plan().made);
    if let Kind::Character { major, minor } = node.kind {
        found.st_rdev = libc::makedev(major, minor);
    }
    found
}

/// Returns the status of a node for `statx`, with all fields that each file system provides.
fn statx_of(node: &Node) -> libc::statx {
    // SAFETY: zeros are a valid `statx`.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    found.stx_mask = libc::STATX_BASIC_STATS;
    (found.stx_dev_major, found.stx_dev_minor) = DEVICE;
    found.stx_ino = node.inode();
    found.stx_mode = mode(node) as u16;
    found.stx_nlink = links(node);
    found.stx_size = bytes(node);
    found.stx_blksize = BLOCK_BYTES;
    for time in [&mut found.stx_atime, &mut found.stx_mtime, &mut found.stx_ctime] {
        time.tv_sec = plan().made;
    }
    if let Kind::Character { major, minor } = node.kind {
        (found.stx_rdev_major, found.stx_rdev_minor) = (major, minor);
    }
    found
}

/// Replaces the status from the kernel by the status of a node, if the descriptor stands for a node. The size remains
/// that of the anonymous file, since programs that copy a file expect to read this number of bytes from its descriptor.
///
/// # Safety
///
/// `into` points to a status that the kernel has filled.
#[cold]
unsafe fn correct<S: Copy>(fd: c_int, into: *mut S, corrected: impl FnOnce(&Node, S) -> S) {
    let errno = sys::errno();
    if let Some(node) = names::node_of_unlinked(fd) {
        // SAFETY: the caller guarantees that `into` is valid.
        unsafe { into.write(corrected(node, into.read())) };
    }
    set_errno(errno);
}

fn corrected_stat(node: &Node, real: libc::stat) -> libc::stat {
    let mut found = stat_of(node);
    if matches!(node.kind, Kind::File(_)) {
        (found.st_size, found.st_blocks) = (real.st_size, real.st_blocks);
    }
    found
}

fn corrected_statx(node: &Node, real: libc::statx) -> libc::statx {
    let mut found = statx_of(node);
    if matches!(node.kind, Kind::File(_)) {
        (found.stx_size, found.stx_blocks) = (real.stx_size, real.stx_blocks);
    }
    found
}

fn end(flags: c_int) -> End {
    if flags & libc::AT_SYMLINK_NOFOLLOW == 0 { End::Followed } else { End::Itself }
}

/// # Safety
///
/// `into` is null, or has room for a status.
unsafe fn stat_led(
    folder: c_int,
    path: *const c_char,
    end: End,
    into: *mut libc::stat,
    real: impl Fn(c_int, *const c_char) -> c_int,
) -> c_int {
    let answer = |node: &Node| {
        if into.is_null() {
            return Served::Refused(libc::EFAULT);
        }
        // SAFETY: the caller guarantees that `into` has room for a status.
        unsafe { into.write(stat_of(node)) };
        Served::Done(0)
    };
    led(folder, path, end, -1, real, |node, _| answered(node, || answer(node)))
}

/// Defines `stat`, `lstat`, and the functions that programs call in their place if they were built with an old C
/// library.
macro_rules! stats {
    ($($name:ident($($version:ident)?): $end:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name($($version: c_int,)? path: *const c_char, into: *mut libc::stat) -> c_int {
                // SAFETY: the program passed these arguments, and obeys the contract of the C library's function.
                unsafe {
                    if !may_concern(libc::AT_FDCWD, path) {
                        return next::$name($($version,)? path, into);
                    }
                    stat_led(libc::AT_FDCWD, path, $end, into, |_, path| next::$name($($version,)? path, into))
                }
            }
        )*
    };
}

macro_rules! stats_at {
    ($($name:ident($($version:ident)?);)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(
                $($version: c_int,)? folder: c_int, path: *const c_char, into: *mut libc::stat, flags: c_int
            ) -> c_int {
                // SAFETY: the program passed these arguments, and obeys the contract of the C library's function.
                unsafe {
                    if !may_concern(folder, path) {
                        let result = next::$name($($version,)? folder, path, into, flags);
                        if result == 0 && (*into).st_nlink == 0 && flags & libc::AT_EMPTY_PATH != 0 {
                            correct(folder, into, corrected_stat);
                        }
                        if result == 0 || !was_missed(folder, path) {
                            return result;
                        }
                    }
                    stat_led(folder, path, end(flags), into, |folder, path| {
                        next::$name($($version,)? folder, path, into, flags)
                    })
                }
            }
        )*
    };
}

stats! {
    stat(): End::Followed;
    stat64(): End::Followed;
    lstat(): End::Itself;
    lstat64(): End::Itself;
    __xstat(version): End::Followed;
    __xstat64(version): End::Followed;
    __lxstat(version): End::Itself;
    __lxstat64(version): End::Itself;
}

stats_at! {
    fstatat();
    fstatat64();
    __fxstatat(version);
    __fxstatat64(version);
}

/// Defines `fstat`. It replaces the status of a descriptor that stands for a node of the simulated file tree.
macro_rules! fstats {
    ($($name:ident($($version:ident)?);)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name($($version: c_int,)? fd: c_int, into: *mut libc::stat) -> c_int {
                // SAFETY: the program passed these arguments, and obeys the contract of the C library's function. If
                // the function returned 0, it has filled the status.
                unsafe {
                    let result = next::$name($($version,)? fd, into);
                    if result == 0 && (*into).st_nlink == 0 {
                        correct(fd, into, corrected_stat);
                    }
                    result
                }
            }
        )*
    };
}

fstats! {
    fstat();
    fstat64();
    __fxstat(version);
    __fxstat64(version);
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn statx(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    into: *mut libc::statx,
) -> c_int {
    const FLAGS: c_int = libc::AT_EMPTY_PATH
        | libc::AT_SYMLINK_NOFOLLOW
        | libc::AT_NO_AUTOMOUNT
        | libc::AT_STATX_FORCE_SYNC
        | libc::AT_STATX_DONT_SYNC;
    let real = |folder, path| {
        // SAFETY: the program passed these arguments, and obeys the contract of the C library's function.
        unsafe { next::statx(folder, path, flags, mask, into) }
    };
    // SAFETY: the program passed these arguments, and obeys the contract of the C library's function. If the call
    // succeeds, it fills the status.
    unsafe {
        if !may_concern(folder, path) {
            let result = real(folder, path);
            if result == 0 && (*into).stx_nlink == 0 && flags & libc::AT_EMPTY_PATH != 0 {
                correct(folder, into, corrected_statx);
            }
            if result == 0 || !was_missed(folder, path) {
                return result;
            }
        }
    }
    let answer = |node: &Node| {
        if flags & !FLAGS != 0 || mask & libc::STATX__RESERVED as c_uint != 0 {
            return Served::Refused(libc::EINVAL);
        }
        if into.is_null() {
            return Served::Refused(libc::EFAULT);
        }
        // SAFETY: `into` is the argument of `statx`, which has room for a status.
        unsafe { into.write(statx_of(node)) };
        Served::Done(0)
    };
    led(folder, path, end(flags), -1, real, |node, _| answered(node, || answer(node)))
}

/// Returns the errno if this user may not access the node in the requested way.
fn refusal(node: &Node, asked: c_int, user: u32) -> Option<c_int> {
    if asked & !(libc::R_OK | libc::W_OK | libc::X_OK) != 0 {
        return Some(libc::EINVAL);
    }
    let has = |right: c_int| asked & right != 0;
    let is_allowed = match node.kind {
        Kind::Folder { .. } => !has(libc::W_OK) || user == 0,
        Kind::File(_) => !has(libc::X_OK) && (!has(libc::W_OK) || user == 0),
        Kind::Character { .. } => !has(libc::X_OK),
        Kind::Link(_) => true,
    };
    (!is_allowed).then_some(libc::EACCES)
}

fn access_led(
    folder: c_int,
    path: *const c_char,
    asked: c_int,
    flags: c_int,
    real: impl Fn(c_int, *const c_char) -> c_int,
) -> c_int {
    led(folder, path, end(flags), -1, real, |node, _| {
        let user = if flags & libc::AT_EACCESS == 0 { sys::uid() } else { sys::euid() };
        answered(node, || refusal(node, asked, user).map_or(Served::Done(0), Served::Refused))
    })
}

macro_rules! accesses {
    ($($name:ident: $flags:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(path: *const c_char, asked: c_int) -> c_int {
                // SAFETY: the program passed these arguments, and obeys the contract of the C library's function.
                unsafe {
                    if !may_concern(libc::AT_FDCWD, path) {
                        return next::$name(path, asked);
                    }
                    access_led(libc::AT_FDCWD, path, asked, $flags, |_, path| next::$name(path, asked))
                }
            }
        )*
    };
}

accesses! {
    access: 0;
    eaccess: libc::AT_EACCESS;
    euidaccess: libc::AT_EACCESS;
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn faccessat(folder: c_int, path: *const c_char, asked: c_int, flags: c_int) -> c_int {
    // SAFETY: the program passed these arguments, and obeys the contract of the C library's function.
    unsafe {
        if !may_concern(folder, path) {
            let result = next::faccessat(folder, path, asked, flags);
            if result == 0 || !was_missed(folder, path) {
                return result;
            }
        }
        access_led(folder, path, asked, flags, |folder, path| next::faccessat(folder, path, asked, flags))
    }
}

/// Answers a query of extended attributes. As in the kernel's tree, no node has extended attributes.
fn attributes_led(path: *const c_char, end: End, errno: Option<c_int>, real: impl Fn(*const c_char) -> isize) -> isize {
    led(
        libc::AT_FDCWD,
        path,
        end,
        -1,
        |_, path| real(path),
        |node, _| answered(node, || errno.map_or(Served::Done(0), Served::Refused)),
    )
}

macro_rules! attributes {
    ($($name:ident($($argument:ident: $type:ty),*): $end:expr, $errno:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(path: *const c_char, $($argument: $type),*) -> isize {
                // SAFETY: the program passed these arguments, and obeys the contract of the C library's function.
                unsafe {
                    if !may_concern(libc::AT_FDCWD, path) {
                        return next::$name(path, $($argument),*);
                    }
                    attributes_led(path, $end, $errno, |path| next::$name(path, $($argument),*))
                }
            }
        )*
    };
}

attributes! {
    getxattr(name: *const c_char, value: *mut c_void, size: usize): End::Followed, Some(libc::ENODATA);
    lgetxattr(name: *const c_char, value: *mut c_void, size: usize): End::Itself, Some(libc::ENODATA);
    listxattr(list: *mut c_char, size: usize): End::Followed, None;
    llistxattr(list: *mut c_char, size: usize): End::Itself, None;
}

/// Returns this library's `stat` as a function pointer for `glob`.
pub(super) fn stat_function() -> *const c_void {
    stat as *const c_void
}

pub(super) fn lstat_function() -> *const c_void {
    lstat as *const c_void
}
