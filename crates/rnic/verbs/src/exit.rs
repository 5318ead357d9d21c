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
/// returning from `main`. Forked children inherit the callbacks, which do nothing there.
pub(crate) fn flush_at_exit() {
    // Not a `Once`: if another thread forked the process during the call, the child would wait forever.
    static DONE: AtomicBool = AtomicBool::new(false);
    if !DONE.swap(true, Ordering::Relaxed) {
        // SAFETY: the callback lives as long as the code, and only sends held-back acknowledgements. The two calls fail
        // only if memory is exhausted. A device still sends its acknowledgements when the program closes the device.
        unsafe {
            atexit(flush);
            at_quick_exit(flush);
        }
    }
}
