//! The lock of an engine. A thread logs the deaths of queue pairs after it has released the lock, since a subscriber
//! may be slow, and may call the device.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{MutexGuard, TryLockError};

use doorbell_sync::IgnorePoison;
use doorbell_verbs_core::{QP_DEATHS, QpDeath};

use super::ThreadState;
use crate::driver::Driver;
use crate::guard;
use crate::link::Link;

/// Maximum number of times that the thread yields its processor to callers that wait for the lock, before it takes the
/// lock itself.
const COURTESIES: usize = 1_000;

type Engine = Driver<Box<dyn Link>>;

/// A locked engine. The fields are dropped in their order, so the lock is released before the deaths are logged.
pub(super) struct Guard<'a> {
    driver: MutexGuard<'a, Engine>,
    /// Present only while the guard is dropped.
    _deaths: Option<Box<Deaths<'a>>>,
    /// Number of threads that have taken deaths and have not logged them.
    logging: &'a AtomicUsize,
}

/// Deaths of queue pairs, which are logged when this value is dropped.
struct Deaths<'a> {
    list: Vec<QpDeath>,
    logging: &'a AtomicUsize,
}

#[cold]
fn take_deaths<'a>(engine: &mut Engine, logging: &'a AtomicUsize) -> Box<Deaths<'a>> {
    // Count this thread before the lock is released, so that the end of the process waits for the lines.
    logging.fetch_add(1, Ordering::Relaxed);
    Box::new(Deaths { list: engine.rnic_mut().take_deaths(), logging })
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.driver.rnic().has_deaths() {
            self._deaths = Some(take_deaths(&mut self.driver, self.logging));
        }
    }
}

impl Drop for Deaths<'_> {
    fn drop(&mut self) {
        for death in &self.list {
            tracing::info!(target: QP_DEATHS, "{death}");
        }
        self.logging.fetch_sub(1, Ordering::Release);
    }
}

impl Deref for Guard<'_> {
    type Target = Engine;

    #[inline]
    fn deref(&self) -> &Engine {
        &self.driver
    }
}

impl DerefMut for Guard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Engine {
        &mut self.driver
    }
}

impl ThreadState {
    #[inline]
    fn hold<'a>(&'a self, driver: MutexGuard<'a, Engine>) -> Guard<'a> {
        Guard { driver, _deaths: None, logging: &self.logging }
    }

    pub(super) fn lock(&self) -> Guard<'_> {
        guard::admit_thread();
        // Other threads usually hold the lock only for one pump, so a short spin is cheaper than sleeping.
        for _ in 0..200 {
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            std::hint::spin_loop();
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let driver = self.driver.lock().ignore_poison();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.hold(driver)
    }

    /// Locks the engine, unless another thread holds the lock.
    #[inline]
    pub(super) fn try_lock(&self) -> Option<Guard<'_>> {
        match self.driver.try_lock() {
            Ok(driver) => Some(self.hold(driver)),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.hold(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Locks the engine for the thread, after callers that are already waiting. While packets arrive, the thread takes
    /// the lock again and again, so callers might otherwise wait for a long time.
    pub(super) fn lock_behind_callers(&self) -> Guard<'_> {
        for _ in 0..COURTESIES {
            if self.waiting.load(Ordering::Relaxed) == 0 {
                break;
            }
            std::thread::yield_now();
        }
        self.lock()
    }
}
