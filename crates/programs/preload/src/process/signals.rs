//! The program's calls for SIGSEGV and SIGBUS. The RNIC needs a handler for each of these two signals once a device has
//! been opened.
//!
//! The RNIC's handlers stay installed. The program sets and reads its own actions as usual. For each fault outside the
//! RNIC's copies, the RNIC's handler calls the program's action. Programs cannot block the two signals, since a fault
//! while the signal is blocked ends the process. The library silently removes the two signals from each set of signals
//! to block.
//!
//! The library does not see system calls that bypass the C library, such as those of Go's runtime. When the program
//! registers memory, `doorbell_fabric::guard_memory` finds the handlers that the runtime installed.

use std::ffi::c_int;
use std::{mem, ptr};

use doorbell_fabric::{Action, exchange_action, has_handlers, unblocked};
use libc::{sighandler_t, sigset_t};
use nix::sys::signal::SigSet;

use crate::process::next::Next;

static SIGACTION: Next = Next::of("sigaction\0");
static SIGNAL: Next = Next::of("signal\0");
static SYSV_SIGNAL: Next = Next::of("sysv_signal\0");
static SIGSET: Next = Next::of("sigset\0");
static PTHREAD_SIGMASK: Next = Next::of("pthread_sigmask\0");
static SIGPROCMASK: Next = Next::of("sigprocmask\0");

/// Looks up the replaced functions of the C library when this library is loaded.
pub(crate) fn find_all() {
    for next in [&SIGACTION, &SIGNAL, &SYSV_SIGNAL, &SIGSET, &PTHREAD_SIGMASK, &SIGPROCMASK] {
        next.find();
    }
}

/// Returns whether a program's calls reach the functions of this library that replace those of the C library. If the
/// program finds this library only through a drop-in, the dynamic linker finds the C library first.
pub(crate) fn replaces_the_c_library() -> bool {
    // SAFETY: the name is a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"sigaction".as_ptr()) };
    found.cast_const().cast::<()>() == sigaction as *const ()
}

/// Value of the handler argument with which `sigset` blocks the signal.
const SIG_HOLD: sighandler_t = 2;

type Simple = unsafe extern "C" fn(c_int, sighandler_t) -> sighandler_t;
type Sigaction = unsafe extern "C" fn(c_int, *const Action, *mut Action) -> c_int;
type Mask = unsafe extern "C" fn(c_int, *const sigset_t, *mut sigset_t) -> c_int;

/// Calls the replaced function of the C library. Returns `$missing` if the process has no such function.
macro_rules! real {
    ($next:ident as $type:ty, $missing:expr, ($($argument:expr),*)) => {
        match $next.get() {
            real if real.is_null() => $missing,
            // SAFETY: the function of this name has this type, and the caller of the macro obeys the function's
            // contract.
            real => unsafe { mem::transmute::<*mut libc::c_void, $type>(real)($($argument),*) },
        }
    };
}

/// Sets and returns the program's action for a signal.
///
/// # Safety
///
/// The contract of the C library's `sigaction`.
#[unsafe(no_mangle)]
unsafe extern "C" fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    // SAFETY: by the contract of `sigaction`, each pointer is null or points to an action.
    let (mut wanted, old_action) = unsafe { (new.as_ref().copied(), old.as_mut()) };
    if exchange_action(signal, wanted.as_ref(), old_action) {
        return 0;
    }
    if let Some(action) = &mut wanted
        && has_handlers()
    {
        action.sa_mask = without_faults(&action.sa_mask);
    }
    let new = wanted.as_ref().map_or(ptr::null(), ptr::from_ref);
    real!(SIGACTION as Sigaction, -1, (signal, new, old))
}

/// Exchanges the program's handler as `signal` does. Returns `None` if the C library must exchange the handler.
fn exchange_handler(signal: c_int, handler: sighandler_t, flags: c_int) -> Option<sighandler_t> {
    // SAFETY: the structure consists of integers and optional functions. Zero is a valid value of each field.
    let (mut new, mut old): (Action, Action) = unsafe { mem::zeroed() };
    new.sa_sigaction = handler;
    new.sa_flags = flags;
    exchange_action(signal, Some(&new), Some(&mut old)).then_some(old.sa_sigaction)
}

/// Sets the program's handler for a signal, and returns the old handler.
#[unsafe(no_mangle)]
extern "C" fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    exchange_handler(signal, handler, libc::SA_RESTART)
        .unwrap_or_else(|| real!(SIGNAL as Simple, libc::SIG_ERR, (signal, handler)))
}

/// Sets the program's handler for a signal: another name of [`signal`].
#[unsafe(no_mangle)]
extern "C" fn bsd_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    signal(number, handler)
}

/// Sets the program's handler for the next signal only, and returns the old handler.
#[unsafe(no_mangle)]
extern "C" fn sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    exchange_handler(signal, handler, libc::SA_RESETHAND | libc::SA_NODEFER)
        .unwrap_or_else(|| real!(SYSV_SIGNAL as Simple, libc::SIG_ERR, (signal, handler)))
}

/// Sets the program's handler for the next signal only. Programs of the X/Open standard call `signal` under this name.
#[unsafe(no_mangle)]
extern "C" fn __sysv_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    sysv_signal(number, handler)
}

/// Sets the program's handler for a signal, and returns the old handler. `SIG_HOLD` does not block the two signals that
/// the RNIC needs.
#[unsafe(no_mangle)]
extern "C" fn sigset(signal: c_int, handler: sighandler_t) -> sighandler_t {
    if handler == SIG_HOLD && has_handlers() {
        // SAFETY: the structure consists of integers and optional functions. Zero is a valid value of each field.
        let mut old: Action = unsafe { mem::zeroed() };
        if exchange_action(signal, None, Some(&mut old)) {
            return old.sa_sigaction;
        }
    }
    exchange_handler(signal, handler, 0).unwrap_or_else(|| real!(SIGSET as Simple, libc::SIG_ERR, (signal, handler)))
}

/// Returns the set without the two signals that the RNIC needs.
fn without_faults(set: &sigset_t) -> sigset_t {
    // SAFETY: the program passed this set to a function of the C library, so the set is valid.
    *unblocked(unsafe { SigSet::from_sigset_t_unchecked(*set) }).as_ref()
}

/// Calls a function of the C library with the set, without the two signals that the RNIC needs.
///
/// # Safety
///
/// `set` is null or points to a set of signals.
unsafe fn mask(how: c_int, set: *const sigset_t, change: impl FnOnce(*const sigset_t) -> c_int) -> c_int {
    if set.is_null() || how == libc::SIG_UNBLOCK || !has_handlers() {
        return change(set);
    }
    // SAFETY: the caller guarantees that the pointer is valid.
    let set = without_faults(unsafe { &*set });
    change(&raw const set)
}

/// Changes the blocked signals of the thread.
///
/// # Safety
///
/// The contract of the C library's `pthread_sigmask`.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_sigmask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
    let change = |set| real!(PTHREAD_SIGMASK as Mask, libc::ENOSYS, (how, set, old));
    // SAFETY: by the contract, `set` is null or points to a set.
    unsafe { mask(how, set, change) }
}

/// Changes the blocked signals of the thread.
///
/// # Safety
///
/// The contract of the C library's `sigprocmask`.
#[unsafe(no_mangle)]
unsafe extern "C" fn sigprocmask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
    let change = |set| real!(SIGPROCMASK as Mask, -1, (how, set, old));
    // SAFETY: by the contract, `set` is null or points to a set.
    unsafe { mask(how, set, change) }
}
