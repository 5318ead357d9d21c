//! Functions on folders: listing a folder, changing the working folder, and matching patterns of names.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use super::anonymous::{self, Unserved};
use super::listing::{self, Copies};
use super::plan::Node;
use super::route::{is_folder_of_ours, note_folder};
use super::{End, Served, answered, led, made, may_concern, names, next, sys, was_missed};
use crate::objects::answer::set_errno;

/// Follows a path that may lead to a served folder.
fn folder_led<R>(
    folder: c_int,
    path: *const c_char,
    failed: R,
    real: impl Fn(c_int, *const c_char) -> R,
    serve: impl FnOnce(&'static Node) -> Served<R>,
) -> R {
    led(folder, path, End::Followed, failed, real, |node, _| {
        if node.is_folder() { serve(node) } else { Served::Refused(libc::ENOTDIR) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn opendir(path: *const c_char) -> *mut libc::DIR {
    let real = |path| {
        // SAFETY: the program passed these arguments, and obeys the contract of the C library's function.
        unsafe { next::opendir(path) }
    };
    // SAFETY: the path is an argument of the C library's function.
    if !unsafe { may_concern(libc::AT_FDCWD, path) } {
        return real(path);
    }
    folder_led(
        libc::AT_FDCWD,
        path,
        ptr::null_mut(),
        |_, path| real(path),
        |node| {
            made(node, anonymous::make(node), |folder| {
                // SAFETY: the descriptor is new. If the stream is created, the stream owns the descriptor.
                let stream = unsafe { next::fdopendir(folder.raw()) };
                if stream.is_null() {
                    return Served::Refused(sys::errno());
                }
                folder.into_raw();
                listing::remember(stream, node);
                Served::Done(stream)
            })
        },
    )
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn chdir(path: *const c_char) -> c_int {
    let real = |path| {
        // SAFETY: the program passed these arguments, and obeys the contract of the C library's function.
        unsafe { next::chdir(path) }
    };
    // SAFETY: the path is an argument of the C library's function.
    if !unsafe { may_concern(libc::AT_FDCWD, path) } {
        return real(path);
    }
    folder_led(
        libc::AT_FDCWD,
        path,
        -1,
        |_, path| real(path),
        |node| {
            let entered = anonymous::make(node).and_then(|folder| sys::fchdir(&folder).map_err(Unserved::from));
            made(node, entered, |()| Served::Done(0))
        },
    )
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fchdir(fd: c_int) -> c_int {
    // SAFETY: the program passed these arguments, and obeys the contract of the C library's function.
    let result = unsafe { next::fchdir(fd) };
    if result == 0 {
        let errno = sys::errno();
        // The call records a served folder as a side effect. From now on, relative paths may lead to nodes. The record
        // may not exist yet if another process opened the folder.
        is_folder_of_ours(fd);
        set_errno(errno);
    }
    result
}

/// Answers `getcwd` if the working folder is a removed folder of this library. For a removed folder, the kernel returns
/// ENOENT.
///
/// # Safety
///
/// `into` is null, or has room for `size` bytes.
#[cold]
unsafe fn getcwd_answer(into: *mut c_char, size: usize) -> *mut c_char {
    let refused = |errno| {
        set_errno(errno);
        ptr::null_mut()
    };
    let errno = sys::errno();
    if errno != libc::ENOENT {
        return ptr::null_mut();
    }
    let Some(node) = names::node_of_working_folder() else { return refused(errno) };
    note_folder();
    let bytes = node.path.len() + 1;
    // Without a buffer and with a size of 0, the C library's function allocates as much memory as the path needs.
    let room = if size == 0 && into.is_null() { bytes } else { size };
    if room < bytes {
        return refused(libc::ERANGE);
    }
    // SAFETY: a caller that passes no buffer frees the result.
    let into = if into.is_null() { unsafe { libc::malloc(room) }.cast() } else { into };
    if into.is_null() {
        return refused(libc::ENOMEM);
    }
    // SAFETY: `into` has room for the path and a zero byte.
    unsafe {
        ptr::copy_nonoverlapping(node.path.as_ptr().cast(), into, bytes - 1);
        into.add(bytes - 1).write(0);
    }
    into
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn getcwd(into: *mut c_char, size: usize) -> *mut c_char {
    // SAFETY: the program passed these arguments, and obeys the contract of the C library's function.
    unsafe {
        let found = next::getcwd(into, size);
        if found.is_null() { getcwd_answer(into, size) } else { found }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __getcwd_chk(into: *mut c_char, size: usize, room: usize) -> *mut c_char {
    // SAFETY: the program passed these arguments, and obeys the contract of the C library's function. That function
    // ends a program whose buffer is too small.
    unsafe {
        let found = next::__getcwd_chk(into, size, room);
        if found.is_null() { getcwd_answer(into, size) } else { found }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn get_current_dir_name() -> *mut c_char {
    // SAFETY: the function has no arguments.
    unsafe {
        let found = next::get_current_dir_name();
        if found.is_null() { getcwd_answer(ptr::null_mut(), 0) } else { found }
    }
}

type List = *mut *mut *mut c_void;
type Function = *const c_void;

/// Outcome of the first part of `scandir`, before the program's functions run.
#[derive(Clone, Copy)]
enum Scanned {
    /// The call is complete and returns this number.
    Done(c_int),
    /// The program's functions must select and sort these entries.
    Copied(Copies),
}

/// Lists a folder that may be a served folder.
///
/// # Safety
///
/// The arguments are those of `scandir`.
unsafe fn scandir_led(
    folder: c_int,
    path: *const c_char,
    (list, filter, order): (List, Function, Function),
    real: impl Fn(c_int, *const c_char) -> c_int,
) -> c_int {
    let failed = Scanned::Done(-1);
    let copy = |node| match Copies::of(node) {
        Some(copies) => Served::Done(Scanned::Copied(copies)),
        None => Served::Refused(libc::ENOMEM),
    };
    let real = |folder, path| Scanned::Done(real(folder, path));
    match folder_led(folder, path, failed, real, |node| answered(node, || copy(node))) {
        Scanned::Done(result) => result,
        // SAFETY: the caller guarantees that the arguments are those of `scandir`.
        Scanned::Copied(copies) => unsafe { copies.select(filter, order).hand_over(list) },
    }
}

macro_rules! scandirs {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(
                path: *const c_char, list: List, filter: Function, order: Function
            ) -> c_int {
                // SAFETY: the program passed these arguments, and obeys the contract of the C library's function.
                unsafe {
                    if !may_concern(libc::AT_FDCWD, path) {
                        return next::$name(path, list, filter, order);
                    }
                    scandir_led(libc::AT_FDCWD, path, (list, filter, order), |_, path| {
                        next::$name(path, list, filter, order)
                    })
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
                // SAFETY: the program passed these arguments, and obeys the contract of the C library's function.
                unsafe {
                    if !may_concern(folder, path) {
                        let count = next::$name(folder, path, list, filter, order);
                        if count != -1 || !was_missed(folder, path) {
                            return count;
                        }
                    }
                    scandir_led(folder, path, (list, filter, order), |folder, path| {
                        next::$name(folder, path, list, filter, order)
                    })
                }
            }
        )*
    };
}

scandirs! { scandir scandir64 }
scandirs_at! { scandirat scandirat64 }

/// Flag `GLOB_ALTDIRFUNC`: `glob` calls the folder functions that the structure contains.
const OWN_FUNCTIONS: c_int = 1 << 9;

/// The C library's `glob_t`, including the folder functions that `glob` may call.
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

/// Makes `glob` list folders with this library's functions, if the pattern begins with a served path.
///
/// # Safety
///
/// `into` is null, or points to a `glob_t`.
unsafe fn glob_led(pattern: *const c_char, flags: c_int, into: *mut Glob, real: impl Fn(c_int) -> c_int) -> c_int {
    if flags & OWN_FUNCTIONS != 0 || into.is_null() {
        return real(flags);
    }
    // SAFETY: the caller guarantees that `into` is a `glob_t`. The C library reads these fields only if the flag is
    // set.
    unsafe {
        let into = &mut *into;
        into.closedir = libc::closedir as *const c_void;
        into.readdir = libc::readdir64 as *const c_void;
        into.opendir = opendir as *const c_void;
        into.lstat = super::status::lstat_function();
        into.stat = super::status::stat_function();
        debug_assert!(!CStr::from_ptr(pattern).is_empty(), "a served pattern must not be empty");
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
                // SAFETY: the program passed these arguments, and obeys the contract of the C library's function.
                unsafe {
                    if !may_concern(libc::AT_FDCWD, pattern) {
                        return next::$name(pattern, flags, failed, into);
                    }
                    glob_led(pattern, flags, into.cast(), |flags| next::$name(pattern, flags, failed, into))
                }
            }
        )*
    };
}

globs! { glob glob64 }
