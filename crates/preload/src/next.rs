//! Functions of the C library (or of another preloaded one) that ours stand before.

use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

/// The thread that looks for a function just now. Looking may allocate, and an allocator may open files.
static SEEKER: AtomicI32 = AtomicI32::new(0);

/// A function of the C library that ours stands before.
pub(crate) struct Next {
    name: &'static CStr,
    real: AtomicPtr<libc::c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, real: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The one of this name, which ends with a zero.
    pub(crate) const fn of(name: &'static str) -> Self {
        match CStr::from_bytes_with_nul(name.as_bytes()) {
            Ok(name) => Self::new(name),
            Err(_) => panic!("a name ends with a zero"),
        }
    }

    /// Looks for it. This is done when the library is loaded: a child between fork and exec could not, since another
    /// thread may have held the loader's lock.
    #[cold]
    pub(crate) fn find(&self) -> *mut libc::c_void {
        // SAFETY: it only asks for the thread's number.
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

    /// What is to be called behind ours; null where there is no such function, and in the midst of looking for one.
    #[inline]
    pub(crate) fn get(&self) -> *mut libc::c_void {
        match self.real.load(Ordering::Relaxed) {
            // Called by another library's constructor, before ours has run.
            real if real.is_null() => self.find(),
            real => real,
        }
    }
}
