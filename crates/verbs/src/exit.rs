//! Programs that end without closing their devices: what `exit` and `quick_exit` leave time for.

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

/// From now on acknowledgements that are held back leave when the process ends by `exit`, by `quick_exit` or by
/// returning from `main`. Forked children inherit that; there it does nothing.
pub(crate) fn flush_at_exit() {
    // Not a `Once`: a process that forks in the midst of it would leave its child waiting for ever.
    static DONE: AtomicBool = AtomicBool::new(false);
    if !DONE.swap(true, Ordering::Relaxed) {
        // SAFETY: the callback lives as long as the code, and only sends what is held back. Only lack of memory
        // makes them fail, and then devices that are closed still send it.
        unsafe {
            atexit(flush);
            at_quick_exit(flush);
        }
    }
}
