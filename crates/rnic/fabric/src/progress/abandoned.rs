//! Work of a port whose descriptors the program has closed.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::ThreadState;
use crate::driver::Acks;

/// Time between two looks at the timers. No descriptor can wake the thread.
const LOOK: Duration = Duration::from_millis(20);

impl ThreadState {
    /// Drives the RNIC's timers until the device is closed. Requests time out, so that callers which sleep until a
    /// completion get one. The numbers of the descriptors may belong to files of the program by now, so neither the
    /// link nor a caller uses them any more.
    pub(super) fn run_without_descriptors(&self) {
        self.lock().link_mut().cut();
        while !self.stop.load(Ordering::SeqCst) {
            let mut driver = self.lock_behind_callers();
            let pumped = driver.pump(self.now_ns(), Acks::Now);
            self.report(pumped);
            self.leave(driver);
            std::thread::sleep(LOOK);
        }
        self.lock().link_mut().write_records();
    }
}
