//! Protection of the process when an RNIC accesses memory that the program has unmapped, protected or truncated.
//!
//! After [`guard_memory`], such an access fails instead of ending the process. There are two methods:
//!
//! - A handler of SIGSEGV and SIGBUS (`handler.rs`). If the RNIC's copy code faults, the handler makes the thread
//!   continue at the *landing*: an instruction of the copy code from which the copy returns an error. A copy without a
//!   fault costs as much as a plain copy. For all other faults, the handler calls the program's own handlers.
//! - Copies by the kernel (`copier.rs`), which take about a microsecond each. They serve machines for which the copy
//!   code has no landing, and programs that replace the handler again and again.
//!
//! The kernel ends a process if a thread faults while it blocks the signal of the fault. So each thread unblocks both
//! signals before it first drives an RNIC. [`unblocked`] removes both signals from the masks that programs set later.
#![allow(unsafe_code)]

mod copier;
mod handler;
mod paging;

use std::cell::Cell;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

use doorbell_rnic::copy_through;
use doorbell_sync::IgnorePoison;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};

use copier::KernelCopier;
pub use handler::{Action, exchange_action};
pub use paging::{OwnMemory, bring_in, can_bring_in};

/// The signals that the kernel raises if accessed memory is unmapped, protected or truncated.
const FAULTS: [Signal; 2] = [Signal::SIGSEGV, Signal::SIGBUS];

/// Maximum number of times that [`guard_memory`] installs the handlers again after other code has replaced them. After
/// that, the kernel copies.
const REPLACEMENTS_MAX: u32 = 3;

/// Whether [`guard_memory`] has installed the handlers.
static GUARDS: AtomicBool = AtomicBool::new(false);

/// Method by which copies survive accesses to memory that is unmapped, protected or truncated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyMethod {
    /// The RNIC copies, and a handler of SIGSEGV and SIGBUS handles faults.
    Handler,
    /// The kernel copies.
    Kernel,
}

/// State of [`guard_memory`] in this process.
#[derive(Default)]
struct State {
    way: Option<CopyMethod>,
    replacements: u32,
}

static STATE: Mutex<State> = Mutex::new(State { way: None, replacements: 0 });

/// Makes accesses of RNICs to unmapped, protected or truncated memory fail instead of ending the process, from now on
/// until the process ends.
///
/// Each call checks whether the handlers are still installed. If other code has replaced them by a system call, this
/// call installs them again. After the handlers were replaced more than three times, the kernel copies instead.
pub fn guard_memory() -> CopyMethod {
    let mut state = STATE.lock().ignore_poison();
    if state.way == Some(CopyMethod::Kernel) {
        return CopyMethod::Kernel;
    }
    let way = match handler::install() {
        Ok(replaced) => {
            state.replacements += u32::from(replaced && state.way.is_some());
            if state.replacements <= REPLACEMENTS_MAX { CopyMethod::Handler } else { CopyMethod::Kernel }
        }
        Err(error) => {
            tracing::debug!(%error, "faults cannot be handled: the kernel copies");
            CopyMethod::Kernel
        }
    };
    state.way = Some(way);
    match way {
        CopyMethod::Handler => GUARDS.store(true, Ordering::Release),
        CopyMethod::Kernel => copy_through(&KernelCopier),
    }
    way
}

/// Makes the kernel copy from now on, as [`guard_memory`] does if it cannot install the handlers.
pub fn copy_by_kernel() {
    STATE.lock().ignore_poison().way = Some(CopyMethod::Kernel);
    copy_through(&KernelCopier);
}

/// Returns whether [`guard_memory`] has installed the handlers.
pub fn has_handlers() -> bool {
    GUARDS.load(Ordering::Acquire)
}

/// Removes SIGSEGV and SIGBUS from a set of signals that a thread is about to block, and returns the set.
pub fn unblocked(mut set: SigSet) -> SigSet {
    FAULTS.into_iter().for_each(|signal| set.remove(signal));
    set
}

/// Unblocks SIGSEGV and SIGBUS in the calling thread, once. Each thread must call this before it drives an RNIC.
#[inline]
pub(crate) fn admit_thread() {
    thread_local! {
        static IS_ADMITTED: Cell<bool> = const { Cell::new(false) };
    }
    if GUARDS.load(Ordering::Relaxed) && !IS_ADMITTED.replace(true) {
        unblock_faults();
    }
}

#[cold]
fn unblock_faults() {
    let mut faults = SigSet::empty();
    FAULTS.into_iter().for_each(|signal| faults.add(signal));
    // If the call fails, the signals stay blocked, and a fault ends the process.
    let _ = faults.thread_swap_mask(SigmaskHow::SIG_UNBLOCK);
}

/// Starts a thread that blocks all signals except SIGSEGV and SIGBUS, so that only the program's threads handle the
/// program's signals.
///
/// # Errors
///
/// The operating system provides no thread or does not change the mask of signals.
pub fn spawn_without_signals<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    // The new thread inherits this mask.
    let before = unblocked(SigSet::all()).thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let thread = Builder::new().name(name.to_owned()).spawn(body);
    before.thread_set_mask()?;
    thread
}

#[cfg(test)]
mod tests;
