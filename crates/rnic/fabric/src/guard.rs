//! Accesses of RNICs to memory that the program may have unmapped, protected or truncated.
//!
//! [`guard_memory`] makes such an access fail instead of ending the process. There are two ways:
//!
//! - A handler of SIGSEGV and SIGBUS lands faults of the RNIC's own copies (`handler.rs`). An access without a fault
//!   costs as much as a plain copy. For all other faults, the handler calls the program's own handlers.
//! - The kernel copies (`copier.rs`), for about a microsecond per access. This is for machines without landing code
//!   and for programs that replace the handler again and again.
//!
//! The kernel ends a process if a thread faults while it blocks the signal. So every thread unblocks both signals
//! before it first drives an RNIC, and [`unblocked`] removes them from the masks that programs set later.
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

/// The signals by which the kernel reports that memory is gone.
const FAULTS: [Signal; 2] = [Signal::SIGSEGV, Signal::SIGBUS];

/// Maximum number of times that other code may replace the handlers. After that, the kernel copies.
const REPLACEMENTS_MAX: u32 = 3;

/// Whether a handler of this module is or was installed.
static GUARDS: AtomicBool = AtomicBool::new(false);

/// Method of surviving accesses to memory that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyMethod {
    /// A handler of SIGSEGV and SIGBUS lands faults.
    Handler,
    /// The kernel copies.
    Kernel,
}

/// The state of the guard of this process.
#[derive(Default)]
struct State {
    way: Option<CopyMethod>,
    replacements: u32,
}

static STATE: Mutex<State> = Mutex::new(State { way: None, replacements: 0 });

/// Makes RNICs of this process survive memory that is gone, from now on until the process ends.
///
/// Each call checks whether the handlers are still installed. If other code has replaced them by system calls of its
/// own, the call installs them again. After three times, the kernel copies instead.
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

/// Returns whether the handlers are installed.
pub fn has_handlers() -> bool {
    GUARDS.load(Ordering::Acquire)
}

/// Returns a set of signals to block, without those that the handlers need.
pub fn unblocked(mut set: SigSet) -> SigSet {
    FAULTS.into_iter().for_each(|signal| set.remove(signal));
    set
}

/// Lets the calling thread survive faults. Each thread calls it before it drives an RNIC.
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
    // A failure leaves the thread as it was: a fault would end the process.
    let _ = faults.thread_swap_mask(SigmaskHow::SIG_UNBLOCK);
}

/// Starts a thread that handles no signals of the program; the program's threads take them. The new thread takes only
/// its own faults.
///
/// # Errors
///
/// The operating system provides no thread or does not change the mask of signals.
pub fn spawn_without_signals<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    // The thread inherits the mask.
    let before = unblocked(SigSet::all()).thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let thread = Builder::new().name(name.to_owned()).spawn(body);
    before.thread_set_mask()?;
    thread
}

#[cfg(test)]
mod tests;
