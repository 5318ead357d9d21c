//! What the devices of a process counted: for who looks, and on standard error when it ends, for who asked with
//! `--stats`.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, Once, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use doorbell_verbs::raw::Provider;
use doorbell_verbs::{Counters, LinkCounters};

use crate::config;
use crate::device::{self, Device};
use crate::fork::{self, Inside, say};

/// What devices counted that are closed, and in which process of a row of forks.
static CLOSED: Mutex<(u32, Counted)> = Mutex::new((0, NOTHING));

const COUNTERS: usize = Counters::NAMES.len() + LinkCounters::NAMES.len();

/// Values, in the order of [`names`].
pub(crate) type Counted = [u64; COUNTERS];

const NOTHING: Counted = [0; COUNTERS];

/// The most that was ever said of each: a device that is just being closed counts for nothing for a moment.
static SAID: [AtomicU64; COUNTERS] = [const { AtomicU64::new(0) }; COUNTERS];
static SAID_IN: AtomicU32 = AtomicU32::new(0);

/// How long [`total`] tries.
const PATIENCE: Duration = Duration::from_millis(20);

/// What is counted.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    Counters::NAMES.iter().chain(LinkCounters::NAMES).copied()
}

/// Returns the counters of all devices of this process. If a signal handler interrupted a holder of a lock, they cannot be
/// read in bounded time. Then the function returns the counters that it returned last.
pub(crate) fn total() -> Counted {
    let until = Instant::now() + PATIENCE;
    let sum = loop {
        match try_total() {
            Some(sum) => break sum,
            None if Instant::now() < until => std::thread::yield_now(),
            None => break NOTHING,
        }
    };
    if SAID_IN.swap(fork::generation(), Ordering::Relaxed) != fork::generation() {
        SAID.iter().for_each(|said| said.store(0, Ordering::Relaxed));
    }
    let mut said = SAID.iter();
    sum.map(|value| said.next().map_or(value, |said| said.fetch_max(value, Ordering::Relaxed).max(value)))
}

fn try_total() -> Option<Counted> {
    let _inside = Inside::try_new()?;
    let device = device::try_current().ok()?;
    let now = match &device {
        Some(device) => in_order(device.provider.try_counters()?),
        None => NOTHING,
    };
    let closed = match CLOSED.try_lock() {
        Ok(closed) => closed,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return None,
    };
    Some(if closed.0 == fork::generation() { plus(&closed.1, &now) } else { now })
}

/// Prints them at the end of the process, if they are asked for.
pub(crate) fn print_at_exit() {
    static ONCE: Once = Once::new();
    if config::wants_stats() {
        ONCE.call_once(|| {
            // SAFETY: the handler has the type that is asked for, and stays loaded with the library.
            let failed = unsafe { libc::atexit(at_exit) };
            debug_assert_eq!(failed, 0, "only lack of memory makes it fail");
        });
    }
}

fn in_order((rnic, link): (Counters, LinkCounters)) -> Counted {
    let mut all = NOTHING;
    let values = rnic.values().into_iter().chain(link.values());
    all.iter_mut().zip(values).for_each(|(place, value)| *place = value);
    all
}

fn counted(device: &Device) -> Counted {
    in_order((device.provider.counters().unwrap_or_default(), device.provider.link_counters()))
}

fn plus(a: &Counted, b: &Counted) -> Counted {
    let mut b = b.iter();
    a.map(|value| value + b.next().unwrap_or(&0))
}

/// Keeps what a device counted that is being closed.
pub(crate) fn keep(device: &Device) {
    let mut closed = CLOSED.lock().unwrap_or_else(PoisonError::into_inner);
    if closed.0 != fork::generation() {
        *closed = (fork::generation(), NOTHING);
    }
    closed.1 = plus(&closed.1, &counted(device));
}

extern "C" fn at_exit() {
    // What is locked now stays so, and this is the end: say nothing rather than hang.
    let Ok(closed) = CLOSED.try_lock() else { return };
    let mut sum = if closed.0 == fork::generation() { closed.1 } else { NOTHING };
    drop(closed);
    if let Ok(Some(device)) = device::try_current() {
        sum = plus(&sum, &counted(&device));
        // It stays open: closing it now would only add what was just added.
        std::mem::forget(device);
    }
    let process = std::process::id();
    for (name, value) in names().zip(sum).filter(|&(_, value)| value > 0) {
        say(&format!("doorbell[{process}]: {name} {value}"));
    }
}
