//! Folders: listing them, going there, and patterns of names.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use super::{End, Served, led, may_concern, next, place, served_by_call};

fn folder_led<R>(folder: c_int, path: *const c_char, failed: R, real: impl Fn(c_int, *const c_char) -> R) -> R {
    led(folder, path, End::Followed, failed, real, |node, path| {
        if node.is_folder() { served_by_call(node, path) } else { Served::Refused(libc::ENOTDIR) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn opendir(path: *const c_char) -> *mut libc::DIR {
    // SAFETY: what our caller hands over is for the C library's function.
    unsafe {
        if !may_concern(path) {
            return next::opendir(path);
        }
        folder_led(libc::AT_FDCWD, path, ptr::null_mut(), |_, path| next::opendir(path))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn chdir(path: *const c_char) -> c_int {
    // SAFETY: what our caller hands over is for the C library's function.
    unsafe {
        if !may_concern(path) {
            return next::chdir(path);
        }
        folder_led(libc::AT_FDCWD, path, -1, |_, path| next::chdir(path))
    }
}

/// Takes the place of the tree out of the name of the working folder, in place.
///
/// # Safety
///
/// `found` is null, or a C string that belongs to the caller.
unsafe fn without_place(found: *mut c_char) -> *mut c_char {
    if found.is_null() {
        return found;
    }
    // SAFETY: our caller's promise.
    let path = unsafe { CStr::from_ptr(found) }.to_bytes_with_nul();
    if let Some(at) = place::strip(&path[..path.len() - 1]) {
        let (from, length) = (path[at..].as_ptr(), path.len() - at);
        // SAFETY: both lie in the string, the zero included.
        unsafe {
            if length == 1 {
                // The place itself stands for the root.
                found.write(b'/' as c_char);
                found.add(1).write(0);
            } else {
                ptr::copy(from.cast(), found, length);
            }
        }
    }
    found
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn getcwd(into: *mut c_char, size: usize) -> *mut c_char {
    // SAFETY: what our caller hands over is for the C library's function, which returns a string.
    unsafe { without_place(next::getcwd(into, size)) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __getcwd_chk(into: *mut c_char, size: usize, room: usize) -> *mut c_char {
    // SAFETY: as above.
    unsafe { without_place(next::__getcwd_chk(into, size, room)) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn get_current_dir_name() -> *mut c_char {
    // SAFETY: as above.
    unsafe { without_place(next::get_current_dir_name()) }
}

type List = *mut *mut *mut c_void;
type Function = *const c_void;

macro_rules! scandirs {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(
                path: *const c_char, list: List, filter: Function, order: Function
            ) -> c_int {
                // SAFETY: what our caller hands over is for the C library's function.
                unsafe {
                    if !may_concern(path) {
                        return next::$name(path, list, filter, order);
                    }
                    folder_led(libc::AT_FDCWD, path, -1, |_, path| next::$name(path, list, filter, order))
                }
            }
        )*
    };
}

macro_rules! scandirs_at {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(
                folder: c_int, path: *const c_char, list: List, filter: Function, order: Function
            ) -> c_int {
                // SAFETY: what our caller hands over is for the C library's function.
                unsafe {
                    if !may_concern(path) {
                        return next::$name(folder, path, list, filter, order);
                    }
                    folder_led(folder, path, -1, |folder, path| next::$name(folder, path, list, filter, order))
                }
            }
        )*
    };
}

scandirs! { scandir scandir64 }
scandirs_at! { scandirat scandirat64 }

/// The flag of `glob` that says that the functions for folders are in its structure.
const OWN_FUNCTIONS: c_int = 1 << 9;

/// The C library's `glob_t`, with the functions that it may call.
#[repr(C)]
struct Glob {
    count: usize,
    paths: *mut *mut c_char,
    reserved: usize,
    flags: c_int,
    closedir: *const c_void,
    readdir: *const c_void,
    opendir: *const c_void,
    lstat: *const c_void,
    stat: *const c_void,
}

/// Has `glob` list folders by our functions, if its pattern begins with what is served.
///
/// # Safety
///
/// `into` is a `glob_t`.
unsafe fn glob_led(pattern: *const c_char, flags: c_int, into: *mut Glob, real: impl Fn(c_int) -> c_int) -> c_int {
    if flags & OWN_FUNCTIONS != 0 || into.is_null() {
        return real(flags);
    }
    // SAFETY: our caller's promise. The C library reads these only where the flag is set.
    unsafe {
        let into = &mut *into;
        into.closedir = libc::closedir as *const c_void;
        into.readdir = libc::readdir64 as *const c_void;
        into.opendir = opendir as *const c_void;
        into.lstat = super::status::lstat_function();
        into.stat = super::status::stat_function();
        debug_assert!(!CStr::from_ptr(pattern).is_empty(), "a pattern that is served is not empty");
    }
    real(flags | OWN_FUNCTIONS)
}

macro_rules! globs {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(
                pattern: *const c_char, flags: c_int, failed: Function, into: *mut libc::glob64_t
            ) -> c_int {
                // SAFETY: what our caller hands over is for the C library's function.
                unsafe {
                    if !may_concern(pattern) {
                        return next::$name(pattern, flags, failed, into);
                    }
                    glob_led(pattern, flags, into.cast(), |flags| next::$name(pattern, flags, failed, into))
                }
            }
        )*
    };
}

globs! { glob glob64 }
