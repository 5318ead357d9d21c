//! Sends the acknowledgements that devices still hold back when the program ends by `exit` or `quick_exit`.

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

/// Registers callbacks that send held-back acknowledgements when the process ends by `exit`, by `quick_exit` or by
/// returning from `main`. In a forked child, the inherited callbacks do nothing.
pub(crate) fn flush_at_exit() {
    // Not a `Once`: if another thread is inside `call_once` during a fork, the child would wait forever for that
    // thread.
    static DONE: AtomicBool = AtomicBool::new(false);
    if !DONE.swap(true, Ordering::Relaxed) {
        // SAFETY: the callback lives as long as the code, and only sends held-back acknowledgements. `atexit` and
        // `at_quick_exit` fail only if memory is exhausted. After such a failure, the devices send their held-back
        // acknowledgements only when the program closes them.
        unsafe {
            atexit(flush);
            at_quick_exit(flush);
        }
    }
}
