//! The replaced functions of the C library. If a function does not exist, or if its lookup is still running, this
//! module makes the system call instead.

use std::ffi::{c_char, c_int, c_long, c_uint, c_void};
use std::ptr;

use crate::objects::answer::set_errno;
use crate::process::next::Next;

type Stat = *mut libc::stat;
type Chars = *const c_char;
type Stream = *mut libc::FILE;
type Folder = *mut libc::DIR;
/// A function pointer, such as `int (*)(const struct dirent *)`. This library only passes the pointer on.
type Function = *const c_void;
type List = *mut *mut *mut c_void;

macro_rules! next {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty, else $instead:expr;)*) => {
        /// Looks up all functions when the library is loaded.
        pub(crate) fn find_all() {
            $($name::NEXT.find();)*
        }

        $(
            pub(super) mod $name {
                pub(super) static NEXT: super::Next = super::Next::of(concat!(stringify!($name), "\0"));
            }

            /// Calls the C library's function of this name.
            ///
            /// # Safety
            ///
            /// The contract of the C library's function.
            #[inline]
            #[allow(clippy::too_many_arguments)]
            pub(super) unsafe fn $name($($argument: $type),*) -> $result {
                let found = $name::NEXT.get();
                if found.is_null() {
                    return $instead;
                }
                // SAFETY: the function of this name has this type. On the machines for which this module is compiled,
                // variadic functions take the last argument like a fixed argument.
                unsafe {
                    let found = std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn($($type),*) -> $result>(found);
                    found($($argument),*)
                }
            }
        )*
    };
}

/// Sets the errno ENOSYS for a call whose function does not exist, and returns the failure value of the call.
fn missing<T>(failed: T) -> T {
    set_errno(libc::ENOSYS);
    failed
}

macro_rules! system_call {
    ($number:ident $(, $argument:expr)*) => {
        // SAFETY: the arguments are those of the program's call.
        unsafe { libc::syscall(libc::$number $(, $argument)*) as _ }
    };
}

const HERE: c_int = libc::AT_FDCWD;
const LINK: c_int = libc::AT_SYMLINK_NOFOLLOW;
const CREATE: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;

next! {
    open(path: Chars, flags: c_int, mode: c_uint) -> c_int, else system_call!(SYS_openat, HERE, path, flags, mode);
    open64(path: Chars, flags: c_int, mode: c_uint) -> c_int, else system_call!(SYS_openat, HERE, path, flags, mode);
    openat(folder: c_int, path: Chars, flags: c_int, mode: c_uint) -> c_int,
        else system_call!(SYS_openat, folder, path, flags, mode);
    openat64(folder: c_int, path: Chars, flags: c_int, mode: c_uint) -> c_int,
        else system_call!(SYS_openat, folder, path, flags, mode);
    __open_2(path: Chars, flags: c_int) -> c_int, else system_call!(SYS_openat, HERE, path, flags, 0);
    __open64_2(path: Chars, flags: c_int) -> c_int, else system_call!(SYS_openat, HERE, path, flags, 0);
    __openat_2(folder: c_int, path: Chars, flags: c_int) -> c_int, else system_call!(SYS_openat, folder, path, flags, 0);
    __openat64_2(folder: c_int, path: Chars, flags: c_int) -> c_int,
        else system_call!(SYS_openat, folder, path, flags, 0);
    creat(path: Chars, mode: c_uint) -> c_int, else system_call!(SYS_openat, HERE, path, CREATE, mode);
    creat64(path: Chars, mode: c_uint) -> c_int, else system_call!(SYS_openat, HERE, path, CREATE, mode);
    fopen(path: Chars, mode: Chars) -> Stream, else missing(ptr::null_mut());
    fopen64(path: Chars, mode: Chars) -> Stream, else missing(ptr::null_mut());
    freopen(path: Chars, mode: Chars, stream: Stream) -> Stream, else missing(ptr::null_mut());
    freopen64(path: Chars, mode: Chars, stream: Stream) -> Stream, else missing(ptr::null_mut());

    stat(path: Chars, into: Stat) -> c_int, else system_call!(SYS_newfstatat, HERE, path, into, 0);
    stat64(path: Chars, into: Stat) -> c_int, else system_call!(SYS_newfstatat, HERE, path, into, 0);
    lstat(path: Chars, into: Stat) -> c_int, else system_call!(SYS_newfstatat, HERE, path, into, LINK);
    lstat64(path: Chars, into: Stat) -> c_int, else system_call!(SYS_newfstatat, HERE, path, into, LINK);
    fstatat(folder: c_int, path: Chars, into: Stat, flags: c_int) -> c_int,
        else system_call!(SYS_newfstatat, folder, path, into, flags);
    fstatat64(folder: c_int, path: Chars, into: Stat, flags: c_int) -> c_int,
        else system_call!(SYS_newfstatat, folder, path, into, flags);
    __xstat(version: c_int, path: Chars, into: Stat) -> c_int, else system_call!(SYS_newfstatat, HERE, path, into, 0);
    __xstat64(version: c_int, path: Chars, into: Stat) -> c_int, else system_call!(SYS_newfstatat, HERE, path, into, 0);
    __lxstat(version: c_int, path: Chars, into: Stat) -> c_int,
        else system_call!(SYS_newfstatat, HERE, path, into, LINK);
    __lxstat64(version: c_int, path: Chars, into: Stat) -> c_int,
        else system_call!(SYS_newfstatat, HERE, path, into, LINK);
    __fxstatat(version: c_int, folder: c_int, path: Chars, into: Stat, flags: c_int) -> c_int,
        else system_call!(SYS_newfstatat, folder, path, into, flags);
    __fxstatat64(version: c_int, folder: c_int, path: Chars, into: Stat, flags: c_int) -> c_int,
        else system_call!(SYS_newfstatat, folder, path, into, flags);
    fstat(fd: c_int, into: Stat) -> c_int, else system_call!(SYS_fstat, fd, into);
    fstat64(fd: c_int, into: Stat) -> c_int, else system_call!(SYS_fstat, fd, into);
    __fxstat(version: c_int, fd: c_int, into: Stat) -> c_int, else system_call!(SYS_fstat, fd, into);
    __fxstat64(version: c_int, fd: c_int, into: Stat) -> c_int, else system_call!(SYS_fstat, fd, into);
    statx(folder: c_int, path: Chars, flags: c_int, mask: c_uint, into: *mut libc::statx) -> c_int,
        else system_call!(SYS_statx, folder, path, flags, mask, into);

    access(path: Chars, mode: c_int) -> c_int, else system_call!(SYS_faccessat, HERE, path, mode);
    eaccess(path: Chars, mode: c_int) -> c_int, else missing(-1);
    euidaccess(path: Chars, mode: c_int) -> c_int, else missing(-1);
    faccessat(folder: c_int, path: Chars, mode: c_int, flags: c_int) -> c_int,
        else if flags == 0 { system_call!(SYS_faccessat, folder, path, mode) } else { missing(-1) };
    getxattr(path: Chars, name: Chars, value: *mut c_void, size: usize) -> isize,
        else system_call!(SYS_getxattr, path, name, value, size);
    lgetxattr(path: Chars, name: Chars, value: *mut c_void, size: usize) -> isize,
        else system_call!(SYS_lgetxattr, path, name, value, size);
    listxattr(path: Chars, list: *mut c_char, size: usize) -> isize, else system_call!(SYS_listxattr, path, list, size);
    llistxattr(path: Chars, list: *mut c_char, size: usize) -> isize,
        else system_call!(SYS_llistxattr, path, list, size);

    readlink(path: Chars, into: *mut c_char, size: usize) -> isize,
        else system_call!(SYS_readlinkat, HERE, path, into, size);
    readlinkat(folder: c_int, path: Chars, into: *mut c_char, size: usize) -> isize,
        else system_call!(SYS_readlinkat, folder, path, into, size);
    __readlink_chk(path: Chars, into: *mut c_char, size: usize, room: usize) -> isize, else missing(-1);
    __readlinkat_chk(folder: c_int, path: Chars, into: *mut c_char, size: usize, room: usize) -> isize,
        else missing(-1);
    realpath(path: Chars, into: *mut c_char) -> *mut c_char, else missing(ptr::null_mut());
    __realpath_chk(path: Chars, into: *mut c_char, room: usize) -> *mut c_char, else missing(ptr::null_mut());
    canonicalize_file_name(path: Chars) -> *mut c_char, else missing(ptr::null_mut());

    opendir(path: Chars) -> Folder, else missing(ptr::null_mut());
    fdopendir(fd: c_int) -> Folder, else missing(ptr::null_mut());
    closedir(folder: Folder) -> c_int, else missing(-1);
    readdir(folder: Folder) -> *mut libc::dirent, else missing(ptr::null_mut());
    readdir64(folder: Folder) -> *mut libc::dirent64, else missing(ptr::null_mut());
    readdir_r(folder: Folder, into: *mut libc::dirent, found: *mut *mut libc::dirent) -> c_int, else libc::ENOSYS;
    readdir64_r(folder: Folder, into: *mut libc::dirent64, found: *mut *mut libc::dirent64) -> c_int, else libc::ENOSYS;
    rewinddir(folder: Folder) -> (), else set_errno(libc::ENOSYS);
    seekdir(folder: Folder, position: c_long) -> (), else set_errno(libc::ENOSYS);
    telldir(folder: Folder) -> c_long, else missing(-1);
    getdents64(fd: c_int, into: *mut c_void, size: usize) -> isize, else system_call!(SYS_getdents64, fd, into, size);
    scandir(path: Chars, list: List, filter: Function, order: Function) -> c_int, else missing(-1);
    scandir64(path: Chars, list: List, filter: Function, order: Function) -> c_int, else missing(-1);
    scandirat(folder: c_int, path: Chars, list: List, filter: Function, order: Function) -> c_int, else missing(-1);
    scandirat64(folder: c_int, path: Chars, list: List, filter: Function, order: Function) -> c_int, else missing(-1);
    getcwd(into: *mut c_char, size: usize) -> *mut c_char, else missing(ptr::null_mut());
    __getcwd_chk(into: *mut c_char, size: usize, room: usize) -> *mut c_char, else missing(ptr::null_mut());
    get_current_dir_name() -> *mut c_char, else missing(ptr::null_mut());
    chdir(path: Chars) -> c_int, else system_call!(SYS_chdir, path);
    fchdir(fd: c_int) -> c_int, else system_call!(SYS_fchdir, fd);
    glob(pattern: Chars, flags: c_int, failed: Function, into: *mut libc::glob64_t) -> c_int,
        else missing(libc::GLOB_ABORTED);
    glob64(pattern: Chars, flags: c_int, failed: Function, into: *mut libc::glob64_t) -> c_int,
        else missing(libc::GLOB_ABORTED);
}
