//! Functions that open descriptors and streams.

use std::ffi::{c_char, c_int, c_uint};
use std::ptr;

use super::plan::{Kind, Node};
use super::route::Buffer;
use super::{End, Served, anonymous, led, made, may_concern, next, sys, was_missed};

/// Returns the errno if a node cannot be opened with these flags. Programs can neither write nor create nodes.
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

/// Opens a path that may lead to a node. `real` calls the C library's function.
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
        None if matches!(node.kind, Kind::Character { .. }) => call_on(anonymous::STAND_IN, path),
        None => made(node, anonymous::open(node, flags), |opened| Served::Done(opened.into_raw())),
    })
}

fn call_on<R>(other: &[u8], path: &mut Buffer) -> Served<R> {
    path.truncate(0);
    path.push(other).map_or_else(Served::Refused, |()| Served::Call)
}

/// Defines functions that open a descriptor. The C library's functions take a mode after the flags, and read the mode
/// only if the flags require a mode.
macro_rules! opens {
    ($($name:ident($($mode:ident)?);)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(path: *const c_char, flags: c_int $(, $mode: c_uint)?) -> c_int {
                // SAFETY: the program passed these arguments, and obeys the contract of the C library's function.
                unsafe {
                    if !may_concern(libc::AT_FDCWD, path) {
                        return next::$name(path, flags $(, $mode)?);
                    }
                    open_led(libc::AT_FDCWD, path, flags, |_, path| next::$name(path, flags $(, $mode)?))
                }
            }
        )*
    };
}

/// Defines functions that open a descriptor for a path relative to a folder.
macro_rules! opens_at {
    ($($name:ident($($mode:ident)?);)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(folder: c_int, path: *const c_char, flags: c_int $(, $mode: c_uint)?) -> c_int {
                // SAFETY: the program passed these arguments, and obeys the contract of the C library's function.
                unsafe {
                    if !may_concern(folder, path) {
                        let opened = next::$name(folder, path, flags $(, $mode)?);
                        if opened != -1 || !was_missed(folder, path) {
                            return opened;
                        }
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
                // SAFETY: the program passed these arguments, and obeys the contract of the C library's function.
                unsafe {
                    if !may_concern(libc::AT_FDCWD, path) {
                        return next::$name(path, mode);
                    }
                    open_led(libc::AT_FDCWD, path, FLAGS, |_, path| next::$name(path, mode))
                }
            }
        )*
    };
}

creates! { creat creat64 }

/// Returns the flags of `open` that correspond to a mode string of `fopen`.
///
/// # Safety
///
/// `mode` is a C string.
unsafe fn flags_of(mode: *const c_char) -> c_int {
    // SAFETY: the caller guarantees that `mode` is a C string.
    let mode = unsafe { std::ffi::CStr::from_ptr(mode) }.to_bytes();
    // A comma ends the access mode. The text after the comma selects a character set.
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
    let exclusive = if has(b'x') { libc::O_EXCL } else { 0 };
    let cloexec = if has(b'e') { libc::O_CLOEXEC } else { 0 };
    access | made | exclusive | cloexec
}

/// Opens a stream on a path that may lead to a node. `serve` opens a node with the given flags.
fn stream_led(
    path: *const c_char,
    mode: *const c_char,
    real: impl Fn(*const c_char) -> *mut libc::FILE,
    serve: impl FnOnce(&'static Node, c_int, &mut Buffer) -> Served<*mut libc::FILE>,
) -> *mut libc::FILE {
    // SAFETY: every caller passes the mode of the program's call, which is a C string.
    let flags = unsafe { flags_of(mode) };
    let end = if flags & libc::O_CREAT != 0 { End::Made { followed: true } } else { End::Followed };
    let real = |_, path| real(path);
    led(libc::AT_FDCWD, path, end, ptr::null_mut(), real, |node, path| match refusal(node, flags) {
        Some(errno) => Served::Refused(errno),
        None if matches!(node.kind, Kind::Character { .. }) => call_on(anonymous::STAND_IN, path),
        None => serve(node, flags, path),
    })
}

macro_rules! fopens {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
                let real = |path| {
                    // SAFETY: the program passed these arguments, and obeys the contract of the C library's function.
                    unsafe { next::$name(path, mode) }
                };
                // SAFETY: the path is an argument of the C library's function.
                if !unsafe { may_concern(libc::AT_FDCWD, path) } {
                    return real(path);
                }
                stream_led(path, mode, real, |node, flags, _| made(node, anonymous::open(node, flags), |opened| {
                    // SAFETY: the descriptor is new. If the stream is created, the stream owns the descriptor. `mode`
                    // is a C string.
                    let stream = unsafe { libc::fdopen(opened.raw(), mode) };
                    if stream.is_null() {
                        return Served::Refused(sys::errno());
                    }
                    opened.into_raw();
                    Served::Done(stream)
                }))
            }
        )*
    };
}

fopens! { fopen fopen64 }

macro_rules! freopens {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(
                path: *const c_char, mode: *const c_char, stream: *mut libc::FILE
            ) -> *mut libc::FILE {
                let real = |path| {
                    // SAFETY: the program passed these arguments, and obeys the contract of the C library's function.
                    unsafe { next::$name(path, mode, stream) }
                };
                // SAFETY: the path is an argument of the C library's function.
                if !unsafe { may_concern(libc::AT_FDCWD, path) } {
                    return real(path);
                }
                // Let the C library reopen the stream by a path, so that the stream keeps its descriptor number.
                stream_led(path, mode, real, |node, _, path| made(node, anonymous::make(node), |made| {
                    match call_on(sys::DescriptorPath::new(made.raw()).bytes(), path) {
                        Served::Call => Served::CallOn(made),
                        refused => refused,
                    }
                }))
            }
        )*
    };
}

freopens! { freopen freopen64 }
