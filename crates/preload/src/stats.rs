//! Counters on standard error when a process ends, for who asked with `--stats`.

use std::sync::{Mutex, Once, PoisonError};

use doorbell_verbs::{Counters, LinkCounters};

use crate::config;
use crate::device::{self, Device};
use crate::fork::{self, say};

/// What devices counted that are closed, and in which process of a row of forks.
static CLOSED: Mutex<(u32, Counted)> = Mutex::new((0, Vec::new()));

/// Names and values, always in one order.
type Counted = Vec<(&'static str, u64)>;

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

fn counted(device: &Device) -> Counted {
    let (rnic, link) = (device.provider.counters().unwrap_or_default(), device.provider.link_counters());
    let rnic = Counters::NAMES.iter().copied().zip(rnic.values());
    rnic.chain(LinkCounters::NAMES.into_iter().zip(link.values())).collect()
}

fn add(sum: &mut Counted, more: Counted) {
    if sum.is_empty() {
        *sum = more;
        return;
    }
    for ((_, sum), (_, more)) in sum.iter_mut().zip(more) {
        *sum += more;
    }
}

/// Keeps what a device counted that is being closed.
pub(crate) fn keep(device: &Device) {
    let mut closed = CLOSED.lock().unwrap_or_else(PoisonError::into_inner);
    if closed.0 != fork::generation() {
        *closed = (fork::generation(), Vec::new());
    }
    add(&mut closed.1, counted(device));
}

extern "C" fn at_exit() {
    // What is locked now stays so, and this is the end: say nothing rather than hang.
    let Ok(closed) = CLOSED.try_lock() else { return };
    let mut sum = if closed.0 == fork::generation() { closed.1.clone() } else { Vec::new() };
    drop(closed);
    if let Some(device) = device::current() {
        add(&mut sum, counted(&device));
        // It stays open: closing it now would only add what was just added.
        std::mem::forget(device);
    }
    let process = std::process::id();
    for (name, value) in sum.into_iter().filter(|&(_, value)| value > 0) {
        say(&format!("doorbell[{process}]: {name} {value}"));
    }
}
