//! Forks. A child inherits the objects, but not the threads. The socket of the inherited RNIC still belongs to the
//! parent. So calls on inherited objects return errors. When the child opens the device again, the child gets its own
//! device.
//!
//! A lock of an inherited object may stay locked forever in the child, since the thread that holds the lock does not
//! exist there. So the child does not touch the locks of objects. The child needs the locks of the process, which guard
//! the open device and the printed messages. A fork therefore waits at the gate until no thread is in a call that may
//! hold such a lock. Calls that wait leave the gate before they sleep (`wait.rs`). Calls of the data path do not enter
//! the gate, since they use only locks of objects.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use doorbell_sync::IgnorePoison;

/// Number of forks between the first process and this process. Each fork increments the number in the child.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The gate of the first process.
static FIRST: RwLock<()> = RwLock::new(());

/// The gate of this process. Calls are readers of the gate, and a forking thread is the writer.
static GATE: AtomicPtr<RwLock<()>> = AtomicPtr::new((&raw const FIRST).cast_mut());

thread_local! {
    /// Number of nested calls of this thread that are inside the gate.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// Read guard of the gate, which the outermost of the nested calls holds.
    static INSIDE: Cell<Option<ManuallyDrop<RwLockReadGuard<'static, ()>>>> = const { Cell::new(None) };
    /// Write guard of this thread while it forks.
    static FORKING: Cell<Option<ManuallyDrop<RwLockWriteGuard<'static, ()>>>> = const { Cell::new(None) };
}

fn gate() -> &'static RwLock<()> {
    // SAFETY: the pointer refers to a static, or to a leaked box.
    unsafe { &*GATE.load(Ordering::Acquire) }
}

/// Returns the number of forks between the first process and this process.
#[inline]
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Guard that keeps all other threads from forking.
pub(crate) struct Inside(());

impl Inside {
    pub(crate) fn new() -> Self {
        if DEPTH.replace(DEPTH.get() + 1) == 0 {
            enter();
        }
        Self(())
    }
}

impl Inside {
    /// Enters the gate. Returns `None` if the caller would have to wait for a forking thread. Signal handlers may call
    /// this function.
    pub(crate) fn try_new() -> Option<Self> {
        // Increment the depth first. Then a signal handler that interrupts this function does not touch `INSIDE`.
        if DEPTH.replace(DEPTH.get() + 1) == 0 {
            let guard = match gate().try_read() {
                Ok(guard) => guard,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    DEPTH.set(0);
                    return None;
                }
            };
            INSIDE.set(Some(ManuallyDrop::new(guard)));
        }
        Some(Self(()))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // Decrement the depth last. Then a signal handler that interrupts this function does not touch `INSIDE`.
        if DEPTH.get() == 1 {
            leave();
        }
        DEPTH.set(DEPTH.get() - 1);
    }
}

fn enter() {
    let guard = gate().read().ignore_poison();
    INSIDE.set(Some(ManuallyDrop::new(guard)));
}

fn leave() {
    drop(INSIDE.take().map(ManuallyDrop::into_inner));
}

/// Runs a long part of a call outside the gate. This part holds no lock of the process, so forks need not wait for it.
pub(crate) fn outside<R>(body: impl FnOnce() -> R) -> R {
    leave();
    let result = body();
    enter();
    result
}

extern "C" fn before() {
    // If this thread is already inside the gate, then a signal handler that interrupted a call of this thread is
    // forking. Do not wait for the interrupted call, since it continues only after the handler returns.
    if DEPTH.get() == 0 {
        let guard = gate().write().ignore_poison();
        FORKING.set(Some(ManuallyDrop::new(guard)));
    }
}

extern "C" fn in_parent() {
    drop(FORKING.take().map(ManuallyDrop::into_inner));
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    // Threads that do not exist in the child may hold the old gate or wait for it, so the child gets a new gate.
    GATE.store(Box::leak(Box::default()), Ordering::Release);
    FORKING.set(None);
}

/// Installs the fork handlers when the library is loaded, since a fork may happen during the first call.
extern "C" fn watch() {
    // Register the handlers of `fabric` first. Then `before` runs before them, and waits for calls while these may
    // still open and close descriptors.
    doorbell_fabric::watch_forks();
    // SAFETY: the handlers stay loaded for as long as the library.
    let failed = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    debug_assert_eq!(failed, 0, "pthread_atfork fails only for lack of memory");
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = watch;

/// Writes a line to standard error, in one piece. The function does not use the standard library's lock. In a forked
/// child, a thread that does not exist there may hold this lock.
pub(crate) fn say(line: &str) {
    let line = format!("{}\n", doorbell_output::escape(line));
    // SAFETY: the bytes are initialised. A failure of `write` cannot be reported.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}

/// Returns whether this thread is inside the gate.
#[cfg(test)]
pub(crate) fn is_inside() -> bool {
    DEPTH.get() > 0
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use doorbell_fabric::Opening;

    use super::*;
    use crate::objects::context::{ibv_close_device, ibv_open_device};
    use crate::objects::device;

    /// Opens and closes the device. Returns whether both succeeded.
    fn opens() -> bool {
        // SAFETY: the device in the list always exists, and the context was just opened.
        unsafe {
            let context = ibv_open_device(device::listed(0).unwrap());
            !context.is_null() && ibv_close_device(context) == 0
        }
    }

    /// Forks a child that opens the device, and checks that the child ended with status 0.
    #[track_caller]
    fn child_opens(what: &str) {
        // SAFETY: the child runs only this code, and then exits.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "{what}: no fork");
        if child == 0 {
            // SAFETY: the signal ends a child that hangs.
            unsafe {
                libc::signal(libc::SIGALRM, libc::SIG_DFL);
                libc::alarm(20);
                libc::_exit(if opens() { 0 } else { 2 });
            }
        }
        let mut status = 0;
        // SAFETY: the child was just forked.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "{what}: the child ended with {status:#x}");
    }

    #[test]
    fn a_child_opens_the_device_whatever_other_threads_did_when_it_was_forked() {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    assert!(opens());
                }
            });
            let rounds = std::panic::catch_unwind(|| (0..60).for_each(|round| child_opens(&format!("fork {round}"))));
            over.store(true, Ordering::Relaxed);
            rounds.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
    }

    /// Runs alone, since a fork within a call does not wait for other threads. If a test of another thread held a lock
    /// of the process at that time, then the child would wait for this lock forever.
    #[test]
    fn a_fork_does_not_wait_for_calls_of_its_own_thread() {
        let body = || {
            let inside = Inside::new();
            child_opens("within a call");
            outside(|| child_opens("outside"));
            drop(inside);
            child_opens("afterwards");
        };
        doorbell_testing::in_own_process(|_| {}, body);
    }

    /// If the fork held back descriptors while it waits for a call, then a call that opens or closes a descriptor would
    /// wait for the fork.
    #[test]
    fn a_fork_holds_no_descriptors_back_while_it_waits_for_calls() {
        let patience = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let wait = |is_reached: fn() -> bool| {
            while std::time::Instant::now() < patience {
                if is_reached() {
                    return true;
                }
                std::thread::yield_now();
            }
            false
        };
        drop(Opening::begin()); // now all handlers are registered
        let inside = Inside::new();
        let forking = std::thread::spawn(|| child_opens("during a call of another thread"));
        // No reader enters the gate while a fork waits for this thread.
        let is_waiting = wait(|| gate().try_read().is_err());
        // Forks of other tests may hold descriptors back for a moment.
        let is_free = wait(|| !Opening::would_wait());
        drop(inside);
        forking.join().unwrap();
        assert!(is_waiting, "the fork does not wait for the call");
        assert!(is_free, "the fork holds descriptors back while it waits for the call");
    }

    #[test]
    fn nested_calls_hold_the_gate_once() {
        let outer = Inside::new();
        drop(Inside::new());
        assert!(gate().try_write().is_err(), "the outer call must still be inside the gate");
        drop(outer);
        assert_eq!(DEPTH.get(), 0);
        assert!(INSIDE.take().is_none());
    }
    #[test]
    fn a_signal_handler_that_interrupts_entering_and_leaving_leaves_the_gate_free() {
        static HANDLED: AtomicU32 = AtomicU32::new(0);
        const SIGNALS: u32 = 20_000;
        extern "C" fn handle(_: libc::c_int) {
            drop(Inside::try_new());
            HANDLED.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the handler waits for no lock, and allocates nothing.
        unsafe { libc::signal(libc::SIGUSR2, handle as extern "C" fn(_) as libc::sighandler_t) };
        // SAFETY: `pthread_self` returns the calling thread, and changes nothing.
        let own = unsafe { libc::pthread_self() };
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for sent in 0..SIGNALS {
                    // SAFETY: the thread lives until the scope ends.
                    assert_eq!(unsafe { libc::pthread_kill(own, libc::SIGUSR2) }, 0);
                    // Pending signals of the same number merge, so wait until this signal is handled.
                    while HANDLED.load(Ordering::Relaxed) <= sent {
                        std::thread::yield_now(); // without its own processor, the other thread gets this processor
                    }
                }
            });
            while HANDLED.load(Ordering::Relaxed) < SIGNALS {
                drop(Inside::try_new());
            }
        });
        // Other tests enter the gate occasionally. So repeat the attempt until the gate is free for a moment.
        let patience = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while gate().try_write().is_err() {
            assert!(std::time::Instant::now() < patience, "the gate stays held, though no call is inside");
            std::thread::yield_now();
        }
    }
}
