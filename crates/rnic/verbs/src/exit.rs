//! Sending of acknowledgements that are held back when a program ends by `exit` or `quick_exit` with open devices.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use doorbell_fabric::flush_before_exit;

unsafe extern "C" {
    fn atexit(callback: extern "C" fn()) -> c_int;
    fn at_quick_exit(callback: extern "C" fn()) -> c_int;
}

extern "C" fn flush() {
    flush_before_exit();
}

/// Arranges that acknowledgements that are held back are sent when the process ends by `exit`, by `quick_exit` or by
/// returning from `main`. Forked children inherit the callbacks, which have no effect there.
pub(crate) fn flush_at_exit() {
    // Not a `Once`: if a process forks during the call, its child would wait forever.
    static DONE: AtomicBool = AtomicBool::new(false);
    if !DONE.swap(true, Ordering::Relaxed) {
        // SAFETY: the callback lives as long as the code, and only sends acknowledgements that are held back. The two
        // calls fail only without memory. Devices that are closed send the acknowledgements even then.
        unsafe {
            atexit(flush);
            at_quick_exit(flush);
        }
    }
}
