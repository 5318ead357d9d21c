//! Counters of the devices of a process. The served counter files show them, and with `--stats` the library prints them
//! on standard error when the process ends.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, Once, TryLockError};
use std::time::{Duration, Instant};

use doorbell_sync::IgnorePoison;
use doorbell_verbs::raw::Provider;
use doorbell_verbs::soft::MAX_DEVICES;
use doorbell_verbs::{Counters, LinkCounters};

use crate::objects::device::{self, Device};
use crate::process::config;
use crate::process::fork::{self, Inside, say};

/// Counters of closed devices by the number of the device, and the fork generation of the process to which the counters
/// belong.
static CLOSED: Mutex<(u32, [Counted; MAX_DEVICES])> = Mutex::new((0, [NOTHING; MAX_DEVICES]));

const COUNTERS: usize = Counters::NAMES.len() + LinkCounters::NAMES.len();

/// Values of the counters, in the order of [`names`].
pub(crate) type Counted = [u64; COUNTERS];

const NOTHING: Counted = [0; COUNTERS];

/// Maximum value that [`total`] has returned for each counter of each device. While a device is being closed, its
/// counters are missing from the sum for a moment. The maximum hides this gap.
static SAID: [[AtomicU64; COUNTERS]; MAX_DEVICES] = [const { [const { AtomicU64::new(0) }; COUNTERS] }; MAX_DEVICES];
static SAID_IN: AtomicU32 = AtomicU32::new(0);

/// Time for which [`total`] tries to get the locks.
const PATIENCE: Duration = Duration::from_millis(20);

/// Returns the names of the counters.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    Counters::NAMES.iter().chain(LinkCounters::NAMES).copied()
}

/// Returns the counters of the device of this number in this process, since the process has started. If a signal
/// handler interrupted a thread that holds a lock, the function cannot read the counters in bounded time. Then it
/// returns the counters of its last successful call.
pub(crate) fn total(number: usize) -> Counted {
    let until = Instant::now() + PATIENCE;
    let sum = loop {
        match try_total(number) {
            Some(sum) => break sum,
            None if Instant::now() < until => std::thread::yield_now(),
            None => break NOTHING,
        }
    };
    if SAID_IN.swap(fork::generation(), Ordering::Relaxed) != fork::generation() {
        SAID.iter().flatten().for_each(|said| said.store(0, Ordering::Relaxed));
    }
    let mut said = SAID.get(number).into_iter().flatten();
    sum.map(|value| said.next().map_or(value, |said| said.fetch_max(value, Ordering::Relaxed).max(value)))
}

fn try_total(number: usize) -> Option<Counted> {
    let _inside = Inside::try_new()?;
    let device = device::try_current(number).ok()?;
    let now = match &device {
        Some(device) => in_order(device.provider.try_counters()?),
        None => NOTHING,
    };
    let closed = match CLOSED.try_lock() {
        Ok(closed) => closed,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return None,
    };
    Some(plus(&of_closed(&closed, number), &now))
}

/// Returns the counters of the closed device of this number, unless they belong to the parent of this process.
fn of_closed(closed: &(u32, [Counted; MAX_DEVICES]), number: usize) -> Counted {
    let (generation, closed) = closed;
    closed.get(number).filter(|_| *generation == fork::generation()).copied().unwrap_or(NOTHING)
}

/// When the process ends, prints the counters if the environment requests them, and the rules of the fault plan that
/// never fired if there is a journal.
pub(crate) fn print_at_exit() {
    static ONCE: Once = Once::new();
    if config::wants_stats() || config::prints_unfired_rules() {
        ONCE.call_once(|| {
            // SAFETY: the handler has the required type, and stays loaded for as long as the library.
            let failed = unsafe { libc::atexit(at_exit) };
            debug_assert_eq!(failed, 0, "atexit fails only for lack of memory");
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

/// Adds the counters of a device that is being closed to the counters of closed devices.
pub(crate) fn keep(device: &Device) {
    let mut closed = CLOSED.lock().ignore_poison();
    if closed.0 != fork::generation() {
        closed.0 = fork::generation();
        closed.1.fill(NOTHING);
    }
    if let Some(closed) = closed.1.get_mut(device.number) {
        *closed = plus(closed, &counted(device));
    }
}

/// Returns a sentence for each required rule of the fault plan of a device that no process has fired so far.
fn unfired_rules(number: usize) -> Vec<String> {
    let plan = config::options(number).ok().and_then(|options| Some((options.faults?, options.fault_journal?)));
    let Some((plan, journal)) = plan else { return Vec::new() };
    std::fs::read_to_string(journal).map(|journal| plan.unfired(&journal)).unwrap_or_default()
}

extern "C" fn at_exit() {
    // When the process ends, a locked mutex may stay locked forever. Print nothing instead of waiting.
    let Ok(closed) = CLOSED.try_lock() else { return };
    let count = config::devices().map_or(1, <[_]>::len);
    let mut sums: Vec<Counted> = (0..count).map(|number| of_closed(&closed, number)).collect();
    drop(closed);
    for (number, sum) in sums.iter_mut().enumerate() {
        if let Ok(Some(device)) = device::try_current(number) {
            *sum = plus(sum, &counted(&device));
            // Do not close the device: closing it now would only add the same counters again.
            std::mem::forget(device);
        }
    }
    let process = std::process::id();
    // A forked child may have used no device of its own, and a program may leave some devices unused.
    let used = (0..count).filter(|&number| sums[number] != NOTHING);
    let mut sentences: Vec<String> = Vec::new();
    for sentence in used.filter(|_| config::prints_unfired_rules()).flat_map(unfired_rules) {
        // Devices with the same plan have the same rules.
        if !sentences.contains(&sentence) {
            sentences.push(sentence);
        }
    }
    for sentence in sentences {
        say(&format!("doorbell[{process}]: {sentence}"));
    }
    if !config::wants_stats() {
        return;
    }
    for (number, sum) in sums.into_iter().enumerate() {
        let name = if count == 1 { String::new() } else { format!("doorbell{number} ") };
        for (counter, value) in names().zip(sum).filter(|&(_, value)| value > 0) {
            say(&format!("doorbell[{process}]: {name}{counter} {value}"));
        }
    }
}
