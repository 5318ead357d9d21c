//! What programs learn of a path without opening it: status, rights, extended attributes.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::plan::{Kind, Node};
use super::route::Buffer;
use super::{End, Served, answered, led, may_concern, next, place, sys};

/// The kernel's own files belong to root, and are as long as a page.
const FILE_BYTES: u64 = 4096;

/// Kind and rights.
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

/// The status of a node. Its inode is the real one, which programs compare with that of what they opened.
fn stat_of(node: &'static Node, path: &mut Buffer) -> Result<libc::stat, place::Unprepared> {
    place::locate(node, path)?;
    let mut found = sys::lstat(path.with_zero())?;
    found.st_mode = mode(node) as _;
    (found.st_uid, found.st_gid) = (0, 0);
    found.st_size = bytes(node) as _;
    found.st_rdev = match node.kind {
        Kind::Character { major, minor } => libc::makedev(major, minor),
        _ => 0,
    };
    Ok(found)
}

fn statx_of(node: &'static Node, path: &mut Buffer, flags: c_int, mask: u32) -> Result<libc::statx, place::Unprepared> {
    place::locate(node, path)?;
    let mut found = sys::lstatx(path.with_zero(), flags, mask)?;
    found.stx_mode = mode(node) as u16;
    (found.stx_uid, found.stx_gid) = (0, 0);
    found.stx_size = bytes(node);
    if let Kind::Character { major, minor } = node.kind {
        (found.stx_rdev_major, found.stx_rdev_minor) = (major, minor);
    }
    Ok(found)
}

fn end(flags: c_int) -> End {
    if flags & libc::AT_SYMLINK_NOFOLLOW == 0 { End::Followed } else { End::Itself }
}

/// # Safety
///
/// `into` is the caller's place for a status, or null.
unsafe fn stat_led(
    folder: c_int,
    path: *const c_char,
    end: End,
    into: *mut libc::stat,
    real: impl Fn(c_int, *const c_char) -> c_int,
) -> c_int {
    led(folder, path, end, -1, real, |node, path| match stat_of(node, path) {
        Ok(_) if into.is_null() => Served::Refused(libc::EFAULT),
        Ok(found) => {
            // SAFETY: our caller's promise.
            unsafe { into.write(found) };
            Served::Done(0)
        }
        Err(unprepared) => Served::Refused(unprepared.errno(node)),
    })
}

/// Defines `stat` and `lstat`, and what programs call that were built with an old C library.
macro_rules! stats {
    ($($name:ident($($version:ident)?): $end:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name($($version: c_int,)? path: *const c_char, into: *mut libc::stat) -> c_int {
                // SAFETY: what our caller hands over is for the C library's function.
                unsafe {
                    if !may_concern(path) {
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
                // SAFETY: what our caller hands over is for the C library's function.
                unsafe {
                    if !may_concern(path) {
                        return next::$name($($version,)? folder, path, into, flags);
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

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn statx(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    into: *mut libc::statx,
) -> c_int {
    // SAFETY: what our caller hands over is for the C library's function.
    unsafe {
        if !may_concern(path) {
            return next::statx(folder, path, flags, mask, into);
        }
        let real = |folder, path| next::statx(folder, path, flags, mask, into);
        led(folder, path, end(flags), -1, real, |node, path| match statx_of(node, path, flags, mask) {
            Ok(_) if into.is_null() => Served::Refused(libc::EFAULT),
            Ok(found) => {
                into.write(found);
                Served::Done(0)
            }
            Err(unprepared) => Served::Refused(unprepared.errno(node)),
        })
    }
}

/// Whether a node may be used so, by somebody of this number.
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
                // SAFETY: what our caller hands over is for the C library's function.
                unsafe {
                    if !may_concern(path) {
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
    // SAFETY: what our caller hands over is for the C library's function.
    unsafe {
        if !may_concern(path) {
            return next::faccessat(folder, path, asked, flags);
        }
        access_led(folder, path, asked, flags, |folder, path| next::faccessat(folder, path, asked, flags))
    }
}

/// There are no extended attributes in the kernel's tree.
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
                // SAFETY: what our caller hands over is for the C library's function.
                unsafe {
                    if !may_concern(path) {
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

/// For `glob`, which calls them.
pub(super) fn stat_function() -> *const c_void {
    stat as *const c_void
}

pub(super) fn lstat_function() -> *const c_void {
    lstat as *const c_void
}
