//! Signals that a process takes for the program that it has started.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// Signals that the kernel has sent, and those that processes have sent, as sets with one bit for each number.
static FROM_KERNEL: AtomicU64 = AtomicU64::new(0);
static FROM_PROCESSES: AtomicU64 = AtomicU64::new(0);

/// Signal that has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrived {
    /// The signal.
    pub signal: Signal,
    /// Whether the kernel has sent the signal, as it does for keys of a terminal, and no process.
    pub is_from_kernel: bool,
}

/// Signals that are kept, instead of ending or stopping this process. Dropping this restores their default action.
///
/// The sets of arrived signals belong to the process, so only one value may exist at a time.
#[derive(Debug)]
pub struct KeptSignals {
    /// In the order of their numbers.
    signals: Vec<Signal>,
}

impl KeptSignals {
    /// Begins to keep these signals, except those that this process ignores.
    ///
    /// # Errors
    ///
    /// A signal cannot be kept, such as SIGKILL.
    pub fn begin(signals: &[Signal]) -> io::Result<Self> {
        let mut kept = Self { signals: Vec::new() };
        for &signal in signals {
            let before = set(signal, SigHandler::SigAction(keep))?;
            if matches!(before, SigHandler::SigIgn) {
                set(signal, SigHandler::SigIgn)?;
            } else {
                kept.signals.push(signal);
            }
        }
        kept.signals.sort_by_key(|&signal| signal as i32);
        Ok(kept)
    }

    /// Takes the signals that have arrived since the last call, in the order of their numbers. A signal that has
    /// arrived several times appears once for each kind of sender.
    pub fn take(&mut self) -> Vec<Arrived> {
        let sets = [(&FROM_KERNEL, true), (&FROM_PROCESSES, false)];
        let sets = sets.map(|(set, is_from_kernel)| (set.swap(0, Ordering::Relaxed), is_from_kernel));
        let of = |signal: Signal| {
            let in_set = sets.into_iter().filter(move |(set, _)| set & bit(signal as i32) != 0);
            in_set.map(move |(_, is_from_kernel)| Arrived { signal, is_from_kernel })
        };
        self.signals.iter().flat_map(|&signal| of(signal)).collect()
    }
}

impl Drop for KeptSignals {
    fn drop(&mut self) {
        for &signal in &self.signals {
            // The number was accepted before.
            let _ = set(signal, SigHandler::SigDfl);
        }
    }
}

/// Keeps ended children of this process until it has waited for them. Returns whether it ignored SIGCHLD before, so
/// that the kernel discarded their status.
///
/// # Errors
///
/// The kernel refuses the default action of SIGCHLD, which it never should.
pub fn keep_ended_children() -> io::Result<bool> {
    Ok(matches!(set(Signal::SIGCHLD, SigHandler::SigDfl)?, SigHandler::SigIgn))
}

/// Ignores SIGCHLD, as does then the program that replaces this process. Undoes [`keep_ended_children`].
///
/// # Errors
///
/// The kernel refuses to ignore SIGCHLD, which it never should.
pub fn discard_ended_children() -> io::Result<()> {
    set(Signal::SIGCHLD, SigHandler::SigIgn).map(drop)
}

/// Sets the action of a signal, and returns the previous one.
fn set(signal: Signal, handler: SigHandler) -> io::Result<SigHandler> {
    let action = SigAction::new(handler, SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: `keep`, the only function that is ever a handler here, only reads its argument and changes atomics.
    Ok(unsafe { sigaction(signal, &action) }?.handler())
}

/// Notes a signal that arrives.
extern "C" fn keep(number: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid `info`, since `SigAction::new` sets SA_SIGINFO for a handler of this type.
    let code = unsafe { (*info).si_code };
    let set = if code == libc::SI_KERNEL { &FROM_KERNEL } else { &FROM_PROCESSES };
    set.fetch_or(bit(number), Ordering::Relaxed);
}

/// Returns the bit of a signal in a set.
fn bit(number: i32) -> u64 {
    1 << number
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::raise;

    use super::*;

    #[test]
    fn kept_signals_appear_once_in_the_order_of_their_numbers() {
        // No other test of this crate uses these signals.
        set(Signal::SIGUSR2, SigHandler::SigIgn).unwrap();
        let mut kept = KeptSignals::begin(&[Signal::SIGWINCH, Signal::SIGUSR2, Signal::SIGUSR1]).unwrap();
        for signal in [Signal::SIGWINCH, Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGUSR1] {
            raise(signal).unwrap();
        }
        let expected = [Signal::SIGUSR1, Signal::SIGWINCH].map(|signal| Arrived { signal, is_from_kernel: false });
        assert_eq!(kept.take(), expected);
        assert!(kept.take().is_empty());
        drop(kept);
        assert!(matches!(set(Signal::SIGUSR1, SigHandler::SigDfl).unwrap(), SigHandler::SigDfl));
        // The process ignores the signal as before.
        assert!(matches!(set(Signal::SIGUSR2, SigHandler::SigDfl).unwrap(), SigHandler::SigIgn));
    }
}
