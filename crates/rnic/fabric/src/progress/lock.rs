//! The lock of an engine. A thread logs the deaths of queue pairs after it has released the lock, since a subscriber
//! may be slow, and may call the device.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{MutexGuard, TryLockError};

use doorbell_sync::IgnorePoison;
use doorbell_verbs_core::QpDeath;

use super::ThreadState;
use crate::deaths::log_deaths;
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
pub(super) struct Deaths<'a> {
    list: Vec<QpDeath>,
    /// Number of further deaths, which the engine only counted.
    omitted: u64,
    _counted: Counted<'a>,
}

/// Counts this thread among those that log, until this value is dropped. The count also ends if a subscriber panics.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(logging: &'a AtomicUsize) -> Self {
        logging.fetch_add(1, Ordering::Relaxed);
        Self(logging)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

#[cold]
fn take_deaths<'a>(engine: &mut Engine, logging: &'a AtomicUsize) -> Box<Deaths<'a>> {
    // Count this thread before the lock is released, so that the end of the process waits for the lines.
    let counted = Counted::new(logging);
    let (list, omitted) = engine.rnic_mut().take_deaths();
    Box::new(Deaths { list, omitted, _counted: counted })
}

impl<'a> Guard<'a> {
    /// Releases the lock. Returns the deaths that the caller logs, after it has woken the thread.
    #[inline]
    pub(super) fn unlock(mut self) -> Option<Box<Deaths<'a>>> {
        let deaths = self.driver.rnic().has_deaths().then(|| take_deaths(&mut self.driver, self.logging));
        drop(self);
        deaths
    }
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
        log_deaths(&self.list, self.omitted);
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

#[cfg(test)]
mod tests {
    use std::fmt::Debug;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::{Arc, Mutex};

    use doorbell_verbs_core::{PortOrder, QP_DEATHS};
    use tracing::field::Field;
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;
    use crate::driver::Acks;
    use crate::driver::tests::{connected, message};
    use crate::memory::{MemoryNetwork, MemoryOptions};
    use crate::progress::clock::Clock;
    use crate::progress::{PortHandle, VirtualClock};

    /// Subscriber that collects the lines about dead queue pairs, and calls `each` before it collects one.
    struct Lines {
        lines: Arc<Mutex<Vec<String>>>,
        each: Box<dyn Fn() + Send + Sync>,
    }

    impl Subscriber for Lines {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == QP_DEATHS
        }

        fn event(&self, event: &Event<'_>) {
            (self.each)();
            event.record(&mut |_: &Field, value: &dyn Debug| self.lines.lock().unwrap().push(format!("{value:?}")));
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    /// Returns an engine with a queue pair that has died, since its peer does not exist.
    fn with_a_death() -> ThreadState {
        let link: Box<dyn Link> = Box::new(MemoryNetwork::new(MemoryOptions::default()).attach([10, 0, 0, 1].into()));
        let (mut driver, qpn, _queue) = connected(link);
        let request = message(b"one");
        driver.rnic_mut().post_send(0, qpn, &[request]).unwrap();
        let mut now_ns = 0;
        loop {
            driver.pump(now_ns, Acks::Now).unwrap();
            if driver.rnic().has_deaths() {
                break;
            }
            now_ns = driver.poll_timeout().expect("an unanswered request has a deadline").max(now_ns);
            assert!(now_ns < 10_000_000_000);
        }
        let clock = VirtualClock::default();
        clock.advance_to(now_ns);
        ThreadState::new(driver, Clock::Virtual(clock)).unwrap()
    }

    #[test]
    fn a_death_is_logged_after_the_lock_is_released_and_the_thread_may_have_been_kicked() {
        let (shared, lines) = (with_a_death(), Arc::default());
        let subscriber = Lines { lines: Arc::clone(&lines), each: Box::new(|| {}) };
        tracing::subscriber::with_default(subscriber, || {
            let deaths = shared.leave(shared.lock());
            assert!(deaths.is_some() && lines.lock().unwrap().is_empty());
            assert!(shared.try_lock().is_some(), "the lock is released before the death is logged");
            assert_eq!(shared.logging.load(Ordering::Acquire), 1);
            drop(deaths);
            assert_eq!(lines.lock().unwrap().len(), 1);
            assert_eq!(shared.logging.load(Ordering::Acquire), 0);
            assert!(shared.leave(shared.lock()).is_none());
        });
    }

    #[test]
    fn a_death_that_an_order_to_the_port_finds_is_logged_after_the_lock_of_the_callback_is_released() {
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let shared = Arc::new(with_a_death());
        let (of, logged) = (Arc::clone(&shared), Arc::clone(&lines));
        *shared.port_service.lock().unwrap() = Some(Box::new(move |port: &PortHandle<'_>| {
            port.order(PortOrder::Down).unwrap();
            assert!(logged.lock().unwrap().is_empty(), "the death is logged below the callback");
        }));
        let each = move || assert!(of.port_service.try_lock().is_ok(), "the callback of the port is locked");
        let subscriber = Lines { lines: Arc::clone(&lines), each: Box::new(each) };
        tracing::subscriber::with_default(subscriber, || shared.serve_port());
        assert_eq!(lines.lock().unwrap().len(), 1);
        assert_eq!(shared.logging.load(Ordering::Acquire), 0);
    }

    #[test]
    fn the_number_of_omitted_deaths_is_logged() {
        let (logging, lines) = (AtomicUsize::new(0), Arc::default());
        let subscriber = Lines { lines: Arc::clone(&lines), each: Box::new(|| {}) };
        tracing::subscriber::with_default(subscriber, || {
            drop(Deaths { list: Vec::new(), omitted: 3, _counted: Counted::new(&logging) });
        });
        assert_eq!(*lines.lock().unwrap(), ["3 further queue pairs died, and are not listed"]);
    }

    #[test]
    fn a_subscriber_that_panics_does_not_delay_the_end_of_the_process() {
        fn panics() {
            panic!("the subscriber panics");
        }
        let shared = with_a_death();
        let subscriber = Lines { lines: Arc::default(), each: Box::new(panics) };
        tracing::subscriber::with_default(subscriber, || {
            assert!(catch_unwind(AssertUnwindSafe(|| drop(shared.lock()))).is_err());
        });
        assert_eq!(shared.logging.load(Ordering::Acquire), 0);
    }
}
