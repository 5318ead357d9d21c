//! Calls that may have to wait, in which a thread may be cancelled and signals arrive.
//!
//! `pthread_cancel` unwinds the stack of a thread that sleeps in the C library. Frames of Rust that hold
//! something (a lock, a reference that counts) cannot be unwound so, and would leave it held. So a call
//! that may wait runs in steps ([`in_steps`]): each does what can be done now, with cancellation
//! switched off ([`Uncancelled`]), and returns what to wait for. Only then, with nothing held and
//! nothing to drop in any frame, the thread sleeps. These functions are the ones that may be unwound.
//!
//! To wait for an event is to read its descriptor, as libibverbs and librdmacm do: so it is the kernel
//! that decides whether a signal ends the wait (SA_RESTART), and whether there is one (O_NONBLOCK).
//!
//! A thread that made itself cancellable at any moment (PTHREAD_CANCEL_ASYNCHRONOUS) must not call this
//! library, as it must not call most of POSIX.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, RawFd};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};

use crate::answer::{Answer, Refused, guarded, set_errno};

/// What `pthread_cleanup_push` of the C library keeps on the stack.
#[repr(C)]
struct Cleanup {
    routine: *mut c_void,
    argument: *mut c_void,
    kind: c_int,
    previous: *mut c_void,
}

// These may unwind, which the declarations of the crate `libc` do not allow.
unsafe extern "C-unwind" {
    fn read(fd: c_int, place: *mut c_void, length: usize) -> isize;
    fn pthread_testcancel();
    fn pthread_cond_wait(condition: *mut libc::pthread_cond_t, mutex: *mut libc::pthread_mutex_t) -> c_int;
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    fn _pthread_cleanup_push(place: *mut Cleanup, routine: extern "C" fn(*mut c_void), argument: *mut c_void);
    fn _pthread_cleanup_pop(place: *mut Cleanup, execute: c_int);
}

const CANCEL_DISABLE: c_int = 1;

const INTERRUPTED: &str = "waiting for an event was interrupted";

/// While it lives, the thread is not cancelled: most calls of the C library that reach the kernel are
/// points where it would be. Posting and polling have none ([`uncancelled`](crate::device::Device::uncancelled)).
pub(crate) struct Uncancelled(c_int);

impl Uncancelled {
    #[inline]
    pub(crate) fn new() -> Self {
        let mut before = 0;
        // SAFETY: it changes nothing but the thread's own state.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut before) };
        Self(before)
    }
}

impl Drop for Uncancelled {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: as above. Being cancelled is noticed where the thread waits next, not here.
        unsafe { pthread_setcancelstate(self.0, &raw mut self.0) };
    }
}

/// How a step of a call ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// The call returns this.
    Done(c_int),
    /// The next step comes after one read of this eventfd.
    Read(RawFd),
    /// The next step comes when all these events are acknowledged.
    Acknowledged(*const Unacknowledged),
}

/// What there was to take, or how to wait for it.
pub(crate) type Found<T> = Result<T, Step>;

/// How a step of a call begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Nothing was waited for yet.
    First,
    /// The descriptor was read: one count was taken from it.
    Read,
    /// What had to be acknowledged was.
    Acknowledged,
}

/// What a call returns that fails with an errno.
pub(crate) type Failure = fn(c_int) -> c_int;

/// Calls that return a number, or -1.
pub(crate) const NUMBER: Failure = |_| -1;

/// Calls that return 0 or the errno.
pub(crate) const STATUS: Failure = |errno| errno;

/// A cancellation that was asked for takes place, as at the beginning of each call of the originals that reads
/// or writes. Called where no frame up to the program's has anything to drop.
pub(crate) fn cancellation_point() {
    // SAFETY: no frame from here to the program's holds anything.
    unsafe { pthread_testcancel() }
}

/// Runs a call that may have to wait. The thread may be cancelled in it, so it is called where no
/// frame up to the program's has anything to drop.
pub(crate) fn in_steps<S>(call: &'static str, failure: Failure, step: S) -> c_int
where
    S: Fn(Turn) -> Answer<Step> + Copy, // which has nothing to drop
{
    let mut turn = Turn::First;
    loop {
        match taken(call, &step, turn) {
            Ok(Step::Done(result)) => return result,
            Ok(Step::Read(fd)) => match read_one(fd) {
                0 => turn = Turn::Read,
                errno => return failure(interrupted(call, errno)),
            },
            Ok(Step::Acknowledged(events)) => {
                // SAFETY: the object of the events stays while a call waits to destroy it.
                unsafe { Unacknowledged::wait(events) };
                turn = Turn::Acknowledged;
            }
            Err(errno) => return failure(errno),
        }
    }
}

/// One step; the error is the errno, which was set and told.
#[inline(never)]
fn taken(call: &str, step: &impl Fn(Turn) -> Answer<Step>, turn: Turn) -> Result<Step, c_int> {
    let refused = match guarded(|| step(turn)) {
        Ok(step) => return Ok(step),
        Err(refused) => refused,
    };
    refused.tell(call);
    set_errno(refused.errno);
    Err(refused.errno)
}

/// Tells why a read ended without a count. That nothing waits is an answer to a program that asks without waiting, as
/// UCX does all the time, and no refusal.
#[inline(never)]
fn interrupted(call: &str, errno: c_int) -> c_int {
    if errno != libc::EAGAIN {
        Refused::new(errno, INTERRUPTED).tell(call);
    }
    set_errno(errno);
    errno
}

/// A read that may have taken its count when the thread is cancelled.
#[repr(C)]
struct Reading {
    count: u64,
    fd: c_int,
}

/// Gives back what a cancelled read had taken: others wait for it too.
extern "C" fn give_back(reading: *mut c_void) {
    // SAFETY: the frame that has it is being unwound, and still there.
    let Reading { count, fd } = unsafe { reading.cast::<Reading>().read() };
    if count > 0 {
        // SAFETY: the count is 8 bytes; an eventfd that was closed refuses it.
        unsafe { libc::write(fd, (&raw const count).cast(), size_of::<u64>()) };
    }
}

/// Reads one count, and returns 0 or the errno. May be unwound.
fn read_one(fd: RawFd) -> c_int {
    let mut reading = Reading { count: 0, fd };
    let mut cleanup = MaybeUninit::<Cleanup>::uninit();
    // SAFETY: both stay where they are until the cleanup is taken away, and the count has room for 8 bytes.
    unsafe {
        let place = &raw mut reading;
        _pthread_cleanup_push(cleanup.as_mut_ptr(), give_back, place.cast());
        let done = read(fd, (&raw mut (*place).count).cast(), size_of::<u64>());
        let errno = if done < 0 { *libc::__errno_location() } else { 0 };
        _pthread_cleanup_pop(cleanup.as_mut_ptr(), 0);
        errno
    }
}

/// Is the descriptor one whose reads wait?
pub(crate) fn is_blocking(fd: BorrowedFd<'_>) -> bool {
    let flags = fcntl(fd, FcntlArg::F_GETFL).unwrap_or(0);
    !OFlag::from_bits_truncate(flags).contains(OFlag::O_NONBLOCK)
}

/// Does something that takes the place of the beginning of a sleep, and says whether there is an end to
/// that already. If there is none, a signal that came meanwhile interrupts the call as it would a sleep.
pub(crate) fn as_if_asleep(body: impl FnOnce() -> bool) -> Answer<bool> {
    let mut held = SigSet::all();
    for fault in [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL, Signal::SIGTRAP, Signal::SIGSYS] {
        held.remove(fault); // blocked, they end the process
    }
    let Ok(before) = held.thread_swap_mask(SigmaskHow::SIG_BLOCK) else { return Ok(body()) };
    let over = body();
    let interrupted = !over && interrupts(&before);
    let _ = before.thread_set_mask(); // here the handlers run
    if interrupted {
        return Err(Refused::new(libc::EINTR, INTERRUPTED));
    }
    Ok(over)
}

/// Does a signal wait that `mask` lets through, and whose handler does not ask for calls to be restarted?
fn interrupts(mask: &SigSet) -> bool {
    let mut pending = MaybeUninit::uninit();
    // SAFETY: the set has its place, and is filled in where the call succeeds.
    let pending = unsafe {
        if libc::sigpending(pending.as_mut_ptr()) != 0 {
            return false;
        }
        pending.assume_init()
    };
    let mask: &libc::sigset_t = mask.as_ref();
    (1..=libc::SIGRTMAX()).any(|number| {
        // SAFETY: the sets are valid, and the action has its place.
        unsafe {
            if libc::sigismember(&raw const pending, number) != 1 || libc::sigismember(mask, number) == 1 {
                return false;
            }
            let mut action = MaybeUninit::<libc::sigaction>::uninit();
            if libc::sigaction(number, std::ptr::null(), action.as_mut_ptr()) != 0 {
                return false;
            }
            let action = action.assume_init();
            let handled = action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN;
            handled && action.sa_flags & libc::SA_RESTART == 0
        }
    })
}

/// Events that were handed out and must be acknowledged before their object goes.
///
/// Made of what the C library has for it, since a thread that waits may be cancelled: it leaves the
/// lock free then.
pub(crate) struct Unacknowledged {
    lock: UnsafeCell<libc::pthread_mutex_t>,
    none_left: UnsafeCell<libc::pthread_cond_t>,
    count: UnsafeCell<u64>,
}

// SAFETY: the count changes under the lock only.
unsafe impl Send for Unacknowledged {}
// SAFETY: as above.
unsafe impl Sync for Unacknowledged {}

impl Default for Unacknowledged {
    fn default() -> Self {
        Self {
            lock: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
            none_left: UnsafeCell::new(libc::PTHREAD_COND_INITIALIZER),
            count: UnsafeCell::new(0),
        }
    }
}

impl std::fmt::Debug for Unacknowledged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Unacknowledged").field(&self.with(|count| *count)).finish()
    }
}

impl Unacknowledged {
    fn with<R>(&self, body: impl FnOnce(&mut u64) -> R) -> R {
        // SAFETY: the lock is initialised, and held while the count is used. It does not move while
        // somebody holds it, since that borrows it.
        unsafe {
            libc::pthread_mutex_lock(self.lock.get());
            let result = body(&mut *self.count.get());
            libc::pthread_mutex_unlock(self.lock.get());
            result
        }
    }

    pub(crate) fn add(&self) {
        self.with(|count| *count += 1);
    }

    /// Acknowledges some. More than were handed out are as good as all.
    pub(crate) fn acknowledge(&self, events: u64) {
        self.with(|count| {
            *count = count.saturating_sub(events);
            if *count == 0 {
                // SAFETY: initialised. Under the lock: once it is free, whoever waits may destroy the object.
                unsafe { libc::pthread_cond_broadcast(self.none_left.get()) };
            }
        });
    }

    /// Nobody will acknowledge any more.
    pub(crate) fn give_up(&self) {
        self.acknowledge(u64::MAX);
    }

    /// Are all acknowledged? Otherwise this is how to wait for it, as destroying an object does in verbs.
    pub(crate) fn none(&self) -> Found<()> {
        if self.with(|count| *count) == 0 { Ok(()) } else { Err(Step::Acknowledged(self)) }
    }

    #[cfg(test)]
    fn is_free(&self) -> bool {
        // SAFETY: the lock is initialised, and unlocked where it was locked.
        unsafe { libc::pthread_mutex_trylock(self.lock.get()) == 0 && libc::pthread_mutex_unlock(self.lock.get()) == 0 }
    }

    /// Waits until all are acknowledged. May be unwound.
    ///
    /// # Safety
    ///
    /// They stay where they are meanwhile.
    unsafe fn wait(events: *const Self) {
        let mut cleanup = MaybeUninit::<Cleanup>::uninit();
        // SAFETY: by the caller's promise; the cleanup stays in its place until it is taken away.
        unsafe {
            let lock = (*events).lock.get();
            libc::pthread_mutex_lock(lock);
            _pthread_cleanup_push(cleanup.as_mut_ptr(), unlock, lock.cast());
            while *(*events).count.get() > 0 {
                pthread_cond_wait((*events).none_left.get(), lock);
            }
            _pthread_cleanup_pop(cleanup.as_mut_ptr(), 1);
        }
    }
}

extern "C" fn unlock(lock: *mut c_void) {
    // SAFETY: the thread that runs this holds it.
    unsafe { libc::pthread_mutex_unlock(lock.cast()) };
}

#[cfg(test)]
mod tests;
