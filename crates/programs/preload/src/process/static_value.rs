//! Values that are created once and exist until the process ends.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A value that the first access creates. The type has no lock: a forked child could inherit a locked lock, and a
/// signal handler could wait for it. If two threads create a value, `StaticValue` keeps the value of the thread that
/// finishes first.
pub(crate) struct StaticValue<T>(AtomicPtr<T>);

impl<T> StaticValue<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Returns a pointer to the value, which is never freed.
    pub(crate) fn get_or_make(&self, make: impl FnOnce() -> Box<T>) -> *mut T {
        let known = self.0.load(Ordering::Acquire);
        if !known.is_null() {
            return known;
        }
        let made = Box::into_raw(make());
        match self.0.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => made,
            Err(other) => {
                // SAFETY: the pointer was just created from a box, and no other thread has the pointer.
                drop(unsafe { Box::from_raw(made) });
                other
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn a_child_does_not_wait_for_a_thread_that_was_making_the_value_when_it_was_forked() {
        static VALUE: StaticValue<u32> = StaticValue::new();
        let (made_by_thread, made_by_child) = (1, 2);
        let (begun, forked) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                VALUE.get_or_make(|| {
                    begun.wait();
                    forked.wait();
                    Box::new(made_by_thread)
                }) as usize
            });
            begun.wait();
            // SAFETY: the child runs only this code, and then exits.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: the signal ends a child that hangs. The value was just created, and is never freed.
                unsafe {
                    libc::signal(libc::SIGALRM, libc::SIG_DFL);
                    libc::alarm(20);
                    let value = *VALUE.get_or_make(|| Box::new(made_by_child));
                    libc::_exit(if value == made_by_child { 0 } else { 2 });
                }
            }
            let mut status = 0;
            // SAFETY: `child` was just forked, or is -1.
            let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
            forked.wait();
            assert_eq!((waited, status), (child, 0), "the child ended with {status:#x}");
            let value = thread.join().unwrap() as *mut u32;
            // SAFETY: the value is never freed.
            assert_eq!(unsafe { *value }, made_by_thread);
        });
    }
}
