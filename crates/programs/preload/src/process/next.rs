//! Functions of the C library, or of another preloaded library, that this library's functions replace.

use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

/// The thread that is looking up a function, or 0. Detects recursion: the lookup may allocate, and the program's
/// allocator may open a file through a replaced function.
static SEEKER: AtomicI32 = AtomicI32::new(0);

/// A function of the C library that a function of this library replaces.
pub(crate) struct Next {
    name: &'static CStr,
    real: AtomicPtr<libc::c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, real: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Creates the entry for the function `name`, which must end with a zero byte.
    pub(crate) const fn of(name: &'static str) -> Self {
        match CStr::from_bytes_with_nul(name.as_bytes()) {
            Ok(name) => Self::new(name),
            Err(_) => panic!("the function name must end with a zero byte"),
        }
    }

    /// Looks up the function when the library is loaded. A child between fork and exec cannot look up functions, since
    /// another thread may have held the loader's lock during the fork.
    #[cold]
    pub(crate) fn find(&self) -> *mut libc::c_void {
        // SAFETY: `gettid` only reads the thread's number.
        let thread = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
        if SEEKER.load(Ordering::Relaxed) == thread {
            return ptr::null_mut();
        }
        let before = SEEKER.swap(thread, Ordering::Relaxed);
        // SAFETY: the name is a C string.
        let real = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        SEEKER.store(before, Ordering::Relaxed);
        self.real.store(real, Ordering::Relaxed);
        real
    }

    /// Returns the replaced function. Returns null if no such function exists, or if this thread is just looking up a
    /// function.
    #[inline]
    pub(crate) fn get(&self) -> *mut libc::c_void {
        match self.real.load(Ordering::Relaxed) {
            // The constructor of another library called the function before the constructor of this library ran.
            real if real.is_null() => self.find(),
            real => real,
        }
    }
}
