//! The program's calls for SIGSEGV and SIGBUS. The RNIC needs a handler for each of these two signals once a device has
//! been opened.
//!
//! The RNIC's handlers stay installed. The program sets and reads its own actions as usual. For each fault outside the
//! RNIC's copies, the RNIC's handler calls the program's action. Programs cannot block the two signals, since a fault
//! while the signal is blocked ends the process. The library silently removes the two signals from each set of signals
//! to block. This includes the masks of waits, such as `ppoll` and `sigsuspend`, with which handlers run.
//!
//! The functions of the C library call each other without the dynamic linker. So this module replaces each function
//! that changes a mask or an action, also those that could be written with another one. `posix_spawn` blocks all
//! signals in its own code only.
//!
//! The library does not see system calls that bypass the C library, such as those of Go's runtime. When the program
//! registers memory, `doorbell_fabric::guard_memory` finds the handlers that the runtime installed. The library also
//! does not see a mask that `siglongjmp`, `setcontext` or the end of a handler restores. Such a mask blocks the two
//! signals only if it was saved before the thread first used a device.

use std::ffi::{c_int, c_void};
use std::{mem, ptr};

use doorbell_fabric::{Action, exchange_action, has_handlers, unblocked};
use libc::{sighandler_t, sigset_t, timespec};
use nix::sys::signal::SigSet;

use crate::objects::answer::set_errno;
use crate::process::next::Next;

static SIGACTION: Next = Next::of("sigaction\0");
static SIGNAL: Next = Next::of("signal\0");
static SYSV_SIGNAL: Next = Next::of("sysv_signal\0");
static SIGSET: Next = Next::of("sigset\0");
static PTHREAD_SIGMASK: Next = Next::of("pthread_sigmask\0");
static SIGPROCMASK: Next = Next::of("sigprocmask\0");
static SIGHOLD: Next = Next::of("sighold\0");
static SIGIGNORE: Next = Next::of("sigignore\0");
static SIGBLOCK: Next = Next::of("sigblock\0");
static SIGSETMASK: Next = Next::of("sigsetmask\0");
static SIGPAUSE: Next = Next::of("__sigpause\0");

/// Looks up the replaced functions of the C library when this library is loaded.
pub(crate) fn find_all() {
    for next in [&SIGACTION, &SIGNAL, &SYSV_SIGNAL, &SIGSET, &PTHREAD_SIGMASK, &SIGPROCMASK] {
        next.find();
    }
    for next in [&SIGHOLD, &SIGIGNORE, &SIGBLOCK, &SIGSETMASK, &SIGPAUSE] {
        next.find();
    }
    find_waits();
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
            real => unsafe { mem::transmute::<*mut c_void, $type>(real)($($argument),*) },
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

/// Sets and returns the program's action for a signal: another name of [`sigaction`].
///
/// # Safety
///
/// The contract of the C library's `sigaction`.
#[unsafe(no_mangle)]
unsafe extern "C" fn __sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    // SAFETY: the caller obeys the contract.
    unsafe { sigaction(signal, new, old) }
}

/// Sets the program's handler for a signal: another name of [`signal`].
#[unsafe(no_mangle)]
extern "C" fn bsd_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    signal(number, handler)
}

/// Sets the program's handler for a signal: another name of [`signal`].
#[unsafe(no_mangle)]
extern "C" fn ssignal(number: c_int, handler: sighandler_t) -> sighandler_t {
    signal(number, handler)
}

/// Ignores a signal.
#[unsafe(no_mangle)]
extern "C" fn sigignore(signal: c_int) -> c_int {
    let real = || real!(SIGIGNORE as unsafe extern "C" fn(c_int) -> c_int, -1, (signal));
    exchange_handler(signal, libc::SIG_IGN, 0).map_or_else(real, |_| 0)
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

/// Blocks a signal, but not one of the two signals that the RNIC needs.
#[unsafe(no_mangle)]
extern "C" fn sighold(signal: c_int) -> c_int {
    if exchange_action(signal, None, None) {
        return 0;
    }
    real!(SIGHOLD as unsafe extern "C" fn(c_int) -> c_int, -1, (signal))
}

/// Removes the two signals that the RNIC needs from a set in the format of BSD: one bit per signal, from signal 1 on.
fn without_fault_bits(set: c_int) -> c_int {
    if !has_handlers() {
        return set;
    }
    [libc::SIGSEGV, libc::SIGBUS].iter().fold(set, |set, signal| set & !(1 << (signal - 1)))
}

/// Blocks further signals of the thread.
#[unsafe(no_mangle)]
extern "C" fn sigblock(set: c_int) -> c_int {
    real!(SIGBLOCK as unsafe extern "C" fn(c_int) -> c_int, -1, (without_fault_bits(set)))
}

/// Sets the blocked signals of the thread.
#[unsafe(no_mangle)]
extern "C" fn sigsetmask(set: c_int) -> c_int {
    real!(SIGSETMASK as unsafe extern "C" fn(c_int) -> c_int, -1, (without_fault_bits(set)))
}

/// Defines functions of the C library that wait with another mask. Each is a cancellation point, so its frame has
/// nothing to drop.
macro_rules! waits {
    ($($name:ident($($before:ident: $kind:ty),*; mask $(; $after:ident: $rest:ty)?);)*) => {
        $(
            mod $name {
                pub(super) static NEXT: super::Next = super::Next::of(concat!(stringify!($name), "\0"));
            }

            /// Waits with other blocked signals, but does not block the two signals that the RNIC needs.
            ///
            /// # Safety
            ///
            /// The contract of the C library's function.
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(
                $($before: $kind,)*
                mask: *const sigset_t
                $(, $after: $rest)?
            ) -> c_int {
                type Wait = unsafe extern "C-unwind" fn($($kind,)* *const sigset_t $(, $rest)?) -> c_int;
                let real = $name::NEXT.get();
                if real.is_null() {
                    set_errno(libc::ENOSYS);
                    return -1;
                }
                // SAFETY: by the contract, `mask` is null or points to a set.
                let set = unsafe { mask.as_ref() }.filter(|_| has_handlers()).map(without_faults);
                let mask = set.as_ref().map_or(mask, ptr::from_ref);
                // SAFETY: the function of this name has this type, and the caller obeys its contract.
                unsafe { mem::transmute::<*mut c_void, Wait>(real)($($before,)* mask $(, $after)?) }
            }
        )*

        /// Looks up the replaced functions that wait.
        fn find_waits() {
            $($name::NEXT.find();)*
        }
    };
}

waits! {
    sigsuspend(; mask);
    __sigsuspend(; mask);
    ppoll(list: *mut c_void, count: libc::nfds_t, time: *const timespec; mask);
    __ppoll_chk(list: *mut c_void, count: libc::nfds_t, time: *const timespec; mask; list_bytes: usize);
    pselect(count: c_int, read: *mut c_void, write: *mut c_void, except: *mut c_void, time: *const timespec; mask);
    epoll_pwait(fd: c_int, events: *mut c_void, room: c_int, timeout_ms: c_int; mask);
    epoll_pwait2(fd: c_int, events: *mut c_void, room: c_int, time: *const timespec; mask);
}

/// Waits until a signal is handled. `set` has the signals to block in the format of BSD, or is the number of a signal
/// to unblock.
///
/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __sigpause(set: c_int, is_number: c_int) -> c_int {
    type Pause = unsafe extern "C-unwind" fn(c_int, c_int) -> c_int;
    let set = if is_number == 0 { without_fault_bits(set) } else { set };
    real!(SIGPAUSE as Pause, -1, (set, is_number))
}

/// Waits until a signal is handled. `set` has the signals to block in the format of BSD.
///
/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sigpause(set: c_int) -> c_int {
    // SAFETY: the caller obeys the contract.
    unsafe { __sigpause(set, 0) }
}
