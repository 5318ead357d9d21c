//! A child that was forked inherits the objects but neither the thread nor the right to the
//! socket: its inherited objects answer errors, and opening the device anew gives it one of its
//! own.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Changes with each fork, in the child.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Which process of a row of forks this is.
#[inline]
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

extern "C" fn in_child() {
    // Nothing else is safe here: other threads may have held any lock.
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Watches for forks from now on.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only changes an atomic.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        debug_assert_eq!(failed, 0, "only lack of memory makes it fail");
    });
}
