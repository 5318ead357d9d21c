//! Work of a port whose descriptors the program has closed.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::ThreadState;

/// Time between two looks at the timers. No descriptor can wake the thread.
const LOOK: Duration = Duration::from_millis(20);

impl ThreadState {
    /// Drives the RNIC's timers until the device is closed. Requests time out, so that callers which sleep until a
    /// completion get one. The thread does not use the link, since the numbers of its descriptors may belong to files
    /// of the program by now.
    pub(super) fn run_without_descriptors(&self) {
        while !self.stop.load(Ordering::SeqCst) {
            let mut driver = self.lock_behind_callers();
            driver.time_out(self.now_ns());
            self.leave(driver);
            self.serve_port();
            std::thread::sleep(LOOK);
        }
    }
}
