//! Opening: descriptors and streams.

use std::ffi::{c_char, c_int, c_uint};
use std::ptr;

use super::plan::{Kind, Node};
use super::{End, Served, led, may_concern, next, served_by_call};

/// Which of what `open` may be asked for has no place in the tree: nobody writes to it or adds to it.
fn refusal(node: &Node, flags: c_int) -> Option<c_int> {
    let has = |flag: c_int| flags & flag == flag;
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY || has(libc::O_TRUNC);
    if has(libc::O_PATH) {
        let is_folder = node.is_folder();
        return (has(libc::O_DIRECTORY) && !is_folder).then_some(libc::ENOTDIR);
    }
    if has(libc::O_CREAT | libc::O_EXCL) {
        return Some(libc::EEXIST);
    }
    match node.kind {
        Kind::Folder { .. } if has(libc::O_TMPFILE) => Some(libc::EOPNOTSUPP),
        Kind::Folder { .. } => (writes || has(libc::O_CREAT)).then_some(libc::EISDIR),
        _ if has(libc::O_DIRECTORY) => Some(libc::ENOTDIR),
        Kind::Link(_) => Some(libc::ELOOP),
        Kind::File(_) => writes.then_some(libc::EACCES),
        Kind::Character { .. } => None,
    }
}

/// Opens a path that may be ours. `real` is the C library's function.
fn open_led(folder: c_int, path: *const c_char, flags: c_int, real: impl Fn(c_int, *const c_char) -> c_int) -> c_int {
    let has = |flag: c_int| flags & flag == flag;
    let followed = !has(libc::O_NOFOLLOW) && !has(libc::O_CREAT | libc::O_EXCL);
    let end = match (has(libc::O_CREAT), followed) {
        (true, followed) => End::Made { followed },
        (false, true) => End::Followed,
        (false, false) => End::Itself,
    };
    led(folder, path, end, -1, real, |node, path| match refusal(node, flags) {
        Some(errno) => Served::Refused(errno),
        None => served_by_call(node, path),
    })
}

/// Defines functions that open a descriptor. Those of the C library take a mode behind the flags, and look for it only
/// where the flags say so.
macro_rules! opens {
    ($($name:ident($($mode:ident)?);)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(path: *const c_char, flags: c_int $(, $mode: c_uint)?) -> c_int {
                // SAFETY: what our caller hands over is for the C library's function.
                unsafe {
                    if !may_concern(path) {
                        return next::$name(path, flags $(, $mode)?);
                    }
                    open_led(libc::AT_FDCWD, path, flags, |_, path| next::$name(path, flags $(, $mode)?))
                }
            }
        )*
    };
}

/// The same, below a folder.
macro_rules! opens_at {
    ($($name:ident($($mode:ident)?);)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(folder: c_int, path: *const c_char, flags: c_int $(, $mode: c_uint)?) -> c_int {
                // SAFETY: what our caller hands over is for the C library's function.
                unsafe {
                    if !may_concern(path) {
                        return next::$name(folder, path, flags $(, $mode)?);
                    }
                    open_led(folder, path, flags, |folder, path| next::$name(folder, path, flags $(, $mode)?))
                }
            }
        )*
    };
}

opens! {
    open(mode);
    open64(mode);
    __open_2();
    __open64_2();
}

opens_at! {
    openat(mode);
    openat64(mode);
    __openat_2();
    __openat64_2();
}

macro_rules! creates {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(path: *const c_char, mode: c_uint) -> c_int {
                const FLAGS: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
                // SAFETY: what our caller hands over is for the C library's function.
                unsafe {
                    if !may_concern(path) {
                        return next::$name(path, mode);
                    }
                    open_led(libc::AT_FDCWD, path, FLAGS, |_, path| next::$name(path, mode))
                }
            }
        )*
    };
}

creates! { creat creat64 }

/// What `fopen` asks `open` for, as far as it matters here: it adds and follows as the first letter says.
///
/// # Safety
///
/// `mode` is a C string.
unsafe fn flags_of(mode: *const c_char) -> c_int {
    // SAFETY: our caller's promise.
    let mode = unsafe { std::ffi::CStr::from_ptr(mode) }.to_bytes();
    // What stands behind a comma is about characters.
    let letters = mode.split(|&letter| letter == b',').next().unwrap_or_default();
    let has = |letter: u8| letters.contains(&letter);
    let access = match (letters.first(), has(b'+')) {
        (_, true) => libc::O_RDWR,
        (Some(b'r'), false) => libc::O_RDONLY,
        _ => libc::O_WRONLY,
    };
    let made = match letters.first() {
        Some(b'w') => libc::O_CREAT | libc::O_TRUNC,
        Some(b'a') => libc::O_CREAT,
        _ => 0,
    };
    access | made | if has(b'x') { libc::O_EXCL } else { 0 }
}

/// Opens a stream on a path that may be ours.
fn fopen_led(
    path: *const c_char,
    mode: *const c_char,
    real: impl Fn(*const c_char) -> *mut libc::FILE,
) -> *mut libc::FILE {
    // SAFETY: every caller passes on the program's mode.
    let flags = unsafe { flags_of(mode) };
    let end = if flags & libc::O_CREAT != 0 { End::Made { followed: true } } else { End::Followed };
    led(
        libc::AT_FDCWD,
        path,
        end,
        ptr::null_mut(),
        |_, path| real(path),
        |node, path| match refusal(node, flags) {
            Some(errno) => Served::Refused(errno),
            None => served_by_call(node, path),
        },
    )
}

macro_rules! streams {
    ($($name:ident($($stream:ident)?);)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(
                path: *const c_char, mode: *const c_char $(, $stream: *mut libc::FILE)?
            ) -> *mut libc::FILE {
                // SAFETY: what our caller hands over is for the C library's function.
                unsafe {
                    if !may_concern(path) {
                        return next::$name(path, mode $(, $stream)?);
                    }
                    fopen_led(path, mode, |path| next::$name(path, mode $(, $stream)?))
                }
            }
        )*
    };
}

streams! {
    fopen();
    fopen64();
    freopen(stream);
    freopen64(stream);
}
