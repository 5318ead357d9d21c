//! What is made once and stays for as long as the process lives.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A value that is made when it is first asked for. There is no lock, which a forked child could inherit, or which a
/// signal handler could wait for: where two make one, the first that is ready stays.
pub(crate) struct Lasting<T>(AtomicPtr<T>);

impl<T> Lasting<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Where the value is. It is never freed.
    pub(crate) fn get_or_make(&self, make: impl FnOnce() -> Box<T>) -> *mut T {
        let known = self.0.load(Ordering::Acquire);
        if !known.is_null() {
            return known;
        }
        let made = Box::into_raw(make());
        match self.0.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => made,
            Err(other) => {
                // SAFETY: it was just made of a box, and nobody else has it.
                drop(unsafe { Box::from_raw(made) });
                other
            }
        }
    }
}
