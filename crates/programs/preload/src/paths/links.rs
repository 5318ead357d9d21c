//! Functions that read links and canonical paths.

use std::ffi::{c_char, c_int};
use std::ptr;

use super::plan::{Kind, Node};
use super::route::Buffer;
use super::{End, Served, answered, led, may_concern, next, was_missed};

/// # Safety
///
/// `into` has room for `size` bytes.
unsafe fn readlink_led(
    folder: c_int,
    path: *const c_char,
    into: *mut c_char,
    size: usize,
    real: impl Fn(c_int, *const c_char) -> isize,
) -> isize {
    let answer = |node: &'static Node| {
        let Kind::Link(target) = &node.kind else { return Served::Refused(libc::EINVAL) };
        let length = (target.len() - 1).min(size);
        match (length, into.is_null()) {
            (0, _) => Served::Refused(libc::EINVAL),
            (_, true) => Served::Refused(libc::EFAULT),
            (length, false) => {
                // SAFETY: the caller guarantees that `into` has room for `size` bytes. Target and buffer have at least
                // `length` bytes.
                unsafe { ptr::copy_nonoverlapping(target.as_ptr().cast(), into, length) };
                Served::Done(length as isize)
            }
        }
    };
    led(folder, path, End::Itself, -1, real, |node, _| answered(node, || answer(node)))
}

macro_rules! readlinks {
    ($($name:ident($($room:ident)?);)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(
                path: *const c_char, into: *mut c_char, size: usize $(, $room: usize)?
            ) -> isize {
                // SAFETY: the program passed these arguments, and obeys the contract of the C library's function.
                unsafe {
                    if !may_concern(libc::AT_FDCWD, path) $(|| size > $room)? {
                        return next::$name(path, into, size $(, $room)?);
                    }
                    readlink_led(libc::AT_FDCWD, path, into, size, |_, path| {
                        next::$name(path, into, size $(, $room)?)
                    })
                }
            }
        )*
    };
}

macro_rules! readlinks_at {
    ($($name:ident($($room:ident)?);)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(
                folder: c_int, path: *const c_char, into: *mut c_char, size: usize $(, $room: usize)?
            ) -> isize {
                // SAFETY: the program passed these arguments, and obeys the contract of the C library's function.
                unsafe {
                    // If the size exceeds the buffer's size, call the C library's function, which ends the program.
                    if !may_concern(folder, path) $(|| size > $room)? {
                        let length = next::$name(folder, path, into, size $(, $room)?);
                        if length != -1 || !was_missed(folder, path) {
                            return length;
                        }
                    }
                    readlink_led(folder, path, into, size, |folder, path| {
                        next::$name(folder, path, into, size $(, $room)?)
                    })
                }
            }
        )*
    };
}

readlinks! {
    readlink();
    __readlink_chk(room);
}

readlinks_at! {
    readlinkat();
    __readlinkat_chk(room);
}

/// # Safety
///
/// `into` is null, or has room for any path.
unsafe fn realpath_led(
    path: *const c_char,
    into: *mut c_char,
    real: impl Fn(*const c_char) -> *mut c_char,
) -> *mut c_char {
    let answer = |found: &[u8]| {
        // SAFETY: a caller without a buffer frees the result, which must be memory of the C library.
        let into = if into.is_null() { unsafe { libc::malloc(found.len()) }.cast() } else { into };
        if into.is_null() {
            return Served::Refused(libc::ENOMEM);
        }
        // SAFETY: `into` has room for the whole path.
        unsafe { ptr::copy_nonoverlapping(found.as_ptr().cast(), into, found.len()) };
        Served::Done(into)
    };
    let serve = |node: &'static Node, found: &mut Buffer| answered(node, || answer(found.with_zero()));
    led(libc::AT_FDCWD, path, End::Followed, ptr::null_mut(), |_, path| real(path), serve)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn realpath(path: *const c_char, into: *mut c_char) -> *mut c_char {
    // SAFETY: the program passed these arguments, and obeys the contract of the C library's function.
    unsafe {
        if !may_concern(libc::AT_FDCWD, path) {
            return next::realpath(path, into);
        }
        realpath_led(path, into, |path| next::realpath(path, into))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __realpath_chk(path: *const c_char, into: *mut c_char, room: usize) -> *mut c_char {
    // SAFETY: the program passed these arguments, and obeys the contract of the C library's function. That function
    // ends a program whose buffer is too small.
    unsafe {
        if !may_concern(libc::AT_FDCWD, path) || room < libc::PATH_MAX as usize {
            return next::__realpath_chk(path, into, room);
        }
        realpath_led(path, into, |path| next::__realpath_chk(path, into, room))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
    // SAFETY: the program passed these arguments, and obeys the contract of the C library's function.
    unsafe {
        if !may_concern(libc::AT_FDCWD, path) {
            return next::canonicalize_file_name(path);
        }
        realpath_led(path, ptr::null_mut(), |path| next::canonicalize_file_name(path))
    }
}
