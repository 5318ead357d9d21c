//! Calls that may wait. While a call waits, its thread may be cancelled and may receive signals.
//!
//! `pthread_cancel` unwinds the stack of a thread that sleeps in the C library. The unwinding must not reach Rust
//! frames that hold a lock or a counted reference, since these would never be released. So a call that may wait runs in
//! steps ([`in_steps`]). With cancellation disabled ([`Uncancelled`]), each step does the work that is possible now,
//! and returns the event to wait for. Then the thread sleeps. During the sleep, no frame holds a lock or has a value to
//! drop, and only the functions that implement the sleep may be unwound.
//!
//! A thread waits for an event on a word in memory ([`Sleepers`]). The original libraries, libibverbs and librdmacm,
//! read the event's descriptor instead. Their reader sleeps forever if the program closes the descriptor. As for a
//! read, the kernel decides whether a signal ends the wait (SA_RESTART). The flags of the descriptor decide whether a
//! call waits (O_NONBLOCK). Every [`LOOK`] seconds, a sleeping thread checks whether its descriptor is still open.
//!
//! A thread with asynchronous cancellation (PTHREAD_CANCEL_ASYNCHRONOUS) must not call this library. POSIX also forbids
//! such a thread to call most functions of the C library.
//!
//! A handler may leave a wait by `siglongjmp`, as programs do that limit the time of a wait by SIGALRM. The handlers
//! run while the thread sleeps, or between two steps, when the thread holds nothing. `siglongjmp` of the C library runs
//! the thread's cleanups, if the handler runs on the stack of the thread. Between sleeps, a handler runs at any
//! instruction of the library. As with the original libraries, it must not leave by `siglongjmp` then.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use doorbell_fabric::EventIdentity;
use doorbell_verbs::raw::Sleepers;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};

use crate::objects::answer::{Answer, Refused, guarded, set_errno};

/// Data that `pthread_cleanup_push` of the C library keeps on the stack.
#[repr(C)]
struct Cleanup {
    routine: *mut c_void,
    argument: *mut c_void,
    kind: c_int,
    previous: *mut c_void,
}

// These functions may unwind. The declarations of the crate `libc` do not allow unwinding.
unsafe extern "C-unwind" {
    fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int;
    fn pthread_testcancel();
    fn pthread_cond_wait(condition: *mut libc::pthread_cond_t, mutex: *mut libc::pthread_mutex_t) -> c_int;
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    fn _pthread_cleanup_push(place: *mut Cleanup, routine: extern "C" fn(*mut c_void), argument: *mut c_void);
    fn _pthread_cleanup_pop(place: *mut Cleanup, execute: c_int);
}

#[cfg(test)]
const CANCEL_ENABLE: c_int = 0;
const CANCEL_DISABLE: c_int = 1;
const CANCEL_DEFERRED: c_int = 0;
const CANCEL_ASYNCHRONOUS: c_int = 1;

/// Interval, in seconds, at which a sleeping thread checks that the program has not closed the thread's descriptor.
const LOOK: libc::time_t = 1;

/// Signals that a fault of the thread itself raises.
const FAULTS: [Signal; 6] =
    [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL, Signal::SIGTRAP, Signal::SIGSYS];

const INTERRUPTED: &str = "waiting for an event was interrupted";

/// Guard that disables cancellation of the thread. Calls use this guard since most C library functions that enter the
/// kernel are cancellation points. Posting and polling contain no cancellation point
/// ([`uncancelled`](crate::objects::device::Device::uncancelled)).
pub(crate) struct Uncancelled(c_int);

impl Uncancelled {
    #[inline]
    pub(crate) fn new() -> Self {
        let mut before = 0;
        // SAFETY: `pthread_setcancelstate` changes only the state of this thread.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut before) };
        Self(before)
    }
}

impl Drop for Uncancelled {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: `pthread_setcancelstate` changes only the state of this thread. A pending cancellation acts at the
        // next cancellation point, not in this call.
        unsafe { pthread_setcancelstate(self.0, &raw mut self.0) };
    }
}

/// Outcome of a step of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// The call returns this value.
    Done(c_int),
    /// The next step runs after an entry was added, or after [`LOOK`].
    Sleep(Sleep),
    /// The next step runs after the handlers of these signals.
    Handle(Held),
    /// The next step runs when all these events are acknowledged.
    Acknowledged(*const Unacknowledged),
}

/// A value, or the step with which the call waits for the value.
pub(crate) type Found<T> = Result<T, Step>;

/// Reason for the start of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The call has not waited yet.
    First,
    /// The call has driven the device, and a signal may have interrupted this.
    Lingered { interrupted: bool },
    /// The thread has slept.
    Woken,
    /// The program has acknowledged the events that the call waited for.
    Acknowledged,
}

/// Conversion of an errno to the return value of a failed call.
pub(crate) type Failure = fn(c_int) -> c_int;

/// Conversion for calls that return a number, or -1.
pub(crate) const NUMBER: Failure = |_| -1;

/// Conversion for calls that return 0 or the errno.
pub(crate) const STATUS: Failure = |errno| errno;

/// Acts on a pending cancellation, as the original library does at the beginning of each call that reads or writes. The
/// caller guarantees that no Rust frame between the program and this function has a value to drop.
pub(crate) fn cancellation_point() {
    // SAFETY: the caller guarantees that no Rust frame above this one has a value to drop.
    unsafe { pthread_testcancel() }
}

/// Runs a call that may wait. The thread may be cancelled while the call waits. The caller guarantees that no Rust
/// frame between the program and this function has a value to drop.
pub(crate) fn in_steps<S>(call: &'static str, failure: Failure, step: S) -> c_int
where
    S: Fn(Turn) -> Answer<Step> + Copy, // a `Copy` type has nothing to drop
{
    let mut turn = Turn::First;
    loop {
        match taken(call, &step, turn) {
            Ok(Step::Done(result)) => return result,
            Ok(Step::Sleep(sleep)) => match sleep.sleep() {
                0 => turn = Turn::Woken,
                errno => return failure(interrupted(call, errno)),
            },
            Ok(Step::Handle(held)) => turn = held.handle(),
            Ok(Step::Acknowledged(events)) => {
                // SAFETY: the object that owns `events` exists until the call that destroys it stops waiting.
                unsafe { Unacknowledged::wait(events) };
                turn = Turn::Acknowledged;
            }
            Err(errno) => return failure(errno),
        }
    }
}

/// Runs one step. If the step fails, sets the errno, explains the error, and returns the errno.
#[inline(never)]
fn taken(call: &str, step: &impl Fn(Turn) -> Answer<Step>, turn: Turn) -> Result<Step, c_int> {
    let refused = match guarded(|| step(turn)) {
        Ok(step) => return Ok(step),
        Err(refused) => refused,
    };
    // Do not explain EAGAIN: programs like UCX often call without waiting.
    if refused.errno != libc::EAGAIN {
        refused.tell(call);
    }
    set_errno(refused.errno);
    Err(refused.errno)
}

/// Explains why a wait ended.
#[inline(never)]
fn interrupted(call: &str, errno: c_int) -> c_int {
    interruption().tell(call);
    set_errno(errno);
    errno
}

/// A sleep until an entry is added to a list. The sleep owns a reference to the list's sleepers, and releases the
/// reference when the sleep ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sleep {
    sleepers: *const Sleepers,
    /// Number of entries that had been added when the caller found the list empty.
    added: u32,
}

/// The kernel's `struct futex_waitv`.
#[repr(C)]
struct FutexWait {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

const FUTEX2_SIZE_U32: u32 = 2;
const FUTEX2_PRIVATE: u32 = 128;

/// Whether `futex_waitv` is unavailable: the kernel is older than 5.16, or a filter of system calls denies it.
static LACKS_WAITV: AtomicBool = AtomicBool::new(false);

impl Sleep {
    /// Creates a sleep. The caller must read `added` before it finds the list empty.
    pub(crate) fn new(sleepers: &Arc<Sleepers>, added: u32) -> Self {
        Self { sleepers: Arc::into_raw(Arc::clone(sleepers)), added }
    }

    /// Sleeps, and returns 0 or EINTR. A cancellation of the thread may unwind this function.
    fn sleep(self) -> c_int {
        let mut cleanup = MaybeUninit::<Cleanup>::uninit();
        // SAFETY: the reference is valid until it is released. It is released once, either here or by `end_in_vain`
        // when the thread is cancelled. The cleanup stays in place until `_pthread_cleanup_pop` removes it.
        unsafe {
            let word = (*self.sleepers).begin();
            _pthread_cleanup_push(cleanup.as_mut_ptr(), leave, self.sleepers.cast_mut().cast());
            let ended = wait_on(word, self.added);
            _pthread_cleanup_pop(cleanup.as_mut_ptr(), 0);
            let sleepers = Arc::from_raw(self.sleepers);
            if ended == 0 {
                sleepers.end()
            } else {
                sleepers.end_in_vain()
            }
            ended
        }
    }
}

/// Ends the sleep of a thread that takes no entry, since the thread is cancelled, or a handler leaves by `siglongjmp`.
extern "C" fn leave(sleepers: *mut c_void) {
    let mut asleep = 0;
    // SAFETY: the call changes only the state of this thread, to the state in which every call of the library begins.
    unsafe { pthread_setcanceltype(CANCEL_DEFERRED, &raw mut asleep) };
    // SAFETY: the sleep owns this reference.
    unsafe { Arc::from_raw(sleepers.cast_const().cast::<Sleepers>()) }.end_in_vain();
}

/// Waits while a word has this value, for at most [`LOOK`]. Returns 0 or EINTR. A cancellation of the thread may unwind
/// this function.
///
/// After a handler with SA_RESTART, the kernel restarts `futex_waitv` although this call has a timeout. The kernel
/// restarts no other wait with a timeout.
///
/// # Safety
///
/// The word stays valid during the call.
unsafe fn wait_on(word: *const u32, value: u32) -> c_int {
    let lacks_waitv = LACKS_WAITV.load(Ordering::Relaxed);
    // SAFETY: the caller guarantees that the word stays valid.
    let ended = unsafe { if lacks_waitv { wait_older(word, value) } else { wait_newer(word, value) } };
    match ended {
        libc::EINTR if lacks_waitv && all_restart() => 0,
        libc::EINTR => libc::EINTR,
        // The word has changed, or the time has elapsed.
        0 | libc::EAGAIN | libc::ETIMEDOUT => 0,
        _ => {
            LACKS_WAITV.store(true, Ordering::Relaxed);
            0
        }
    }
}

/// Waits with `futex_waitv`. Returns 0 or the errno. A cancellation of the thread may unwind this function.
#[inline(never)]
unsafe fn wait_newer(word: *const u32, value: u32) -> c_int {
    let flags = FUTEX2_SIZE_U32 | FUTEX2_PRIVATE;
    let wait = FutexWait { value: value.into(), address: word.addr() as u64, flags, reserved: 0 };
    let mut until = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let mut before = 0;
    // SAFETY: the variables live until the calls return, and the kernel only compares the word. While the thread can be
    // cancelled at any instruction, this function makes only a system call. No Rust frame between the program and this
    // function has a value to drop.
    unsafe {
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut until);
        until.tv_sec += LOOK;
        pthread_setcanceltype(CANCEL_ASYNCHRONOUS, &raw mut before);
        let (wait, until, clock) = (&raw const wait, &raw const until, libc::CLOCK_MONOTONIC as usize);
        let done = libc::syscall(libc::SYS_futex_waitv, wait, 1_usize, 0_usize, until, clock);
        pthread_setcanceltype(before, &raw mut before);
        if done < 0 { *libc::__errno_location() } else { 0 }
    }
}

/// Waits like [`wait_newer`], but with the older call `futex`. Each handled signal ends this call.
#[inline(never)]
unsafe fn wait_older(word: *const u32, value: u32) -> c_int {
    let time = libc::timespec { tv_sec: LOOK, tv_nsec: 0 };
    let operation = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
    let mut before = 0;
    // SAFETY: as in `wait_newer`.
    unsafe {
        pthread_setcanceltype(CANCEL_ASYNCHRONOUS, &raw mut before);
        let done = libc::syscall(libc::SYS_futex, word, operation, value as usize, &raw const time);
        pthread_setcanceltype(before, &raw mut before);
        if done < 0 { *libc::__errno_location() } else { 0 }
    }
}

/// Returns whether each handler that may have run in this thread restarts calls. Checks all handlers, since it is
/// unknown which handler ran.
fn all_restart() -> bool {
    let Ok(mut mask) = SigSet::thread_get_mask() else { return false };
    FAULTS.iter().for_each(|&fault| mask.add(fault)); // a sleeping thread receives none of these signals
    let mask: &libc::sigset_t = mask.as_ref();
    // SAFETY: the set is valid.
    (1..=libc::SIGRTMAX()).all(|number| unsafe { libc::sigismember(mask, number) } == 1 || !ends_waits(number))
}

/// Checks whether a call that found no event may wait for one. `descriptor` is the descriptor that signals events to
/// the program.
///
/// # Errors
///
/// EBADF if the program has closed the descriptor. EAGAIN if the descriptor has O_NONBLOCK.
pub(crate) fn expect_waiting(descriptor: RawFd, identity: EventIdentity, turn: Turn) -> Answer<()> {
    let closed =
        || Refused::new(libc::EBADF, format!("the program has closed descriptor {descriptor}, which signals events"));
    // SAFETY: only this call uses the borrowed descriptor, and `fcntl` changes nothing here.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let flags = fcntl(borrowed, FcntlArg::F_GETFL).map_err(|_| closed())?;
    // The program may have closed the descriptor during the sleep, and its number may now belong to another file.
    if turn == Turn::Woken && !identity.is_of(borrowed) {
        return Err(closed());
    }
    if OFlag::from_bits_retain(flags).contains(OFlag::O_NONBLOCK) {
        return Err(Refused::new(libc::EAGAIN, "no event is queued, and the descriptor has O_NONBLOCK"));
    }
    Ok(())
}

/// Signals that a thread has blocked while it was as if asleep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    /// Mask of the thread before; `None` if the mask was not changed.
    before: Option<SigSet>,
    next: Turn,
}

impl Held {
    /// Unblocks the signals, so that the handlers of pending ones run here, while the thread holds nothing. Returns the
    /// reason of the next step.
    fn handle(self) -> Turn {
        if let Some(before) = self.before {
            let _ = before.thread_set_mask();
        }
        self.next
    }
}

/// Runs `body` as if the thread slept during `body`. `body` returns whether the event has arrived, so that the call
/// need not sleep. If the event has not arrived, a signal that arrived during `body` interrupts the call. But the call
/// must then check whether it may wait: a signal interrupts only calls that may wait.
pub(crate) fn as_if_asleep(body: impl FnOnce() -> bool) -> Held {
    let mut held = SigSet::all();
    for fault in FAULTS {
        held.remove(fault); // a fault whose signal is blocked would end the process
    }
    let before = held.thread_swap_mask(SigmaskHow::SIG_BLOCK).ok();
    let next = match body() {
        true => Turn::First,
        false => Turn::Lingered { interrupted: before.as_ref().is_some_and(interrupts) },
    };
    Held { before, next }
}

/// Returns the error of a call that a signal has interrupted.
pub(crate) fn interruption() -> Refused {
    Refused::new(libc::EINTR, INTERRUPTED)
}

/// Returns whether a pending signal that `mask` does not block has a handler that does not restart calls.
fn interrupts(mask: &SigSet) -> bool {
    let mut pending = MaybeUninit::uninit();
    // SAFETY: the pointer refers to memory for a set, and a successful call fills the set.
    let pending = unsafe {
        if libc::sigpending(pending.as_mut_ptr()) != 0 {
            return false;
        }
        pending.assume_init()
    };
    let mask: &libc::sigset_t = mask.as_ref();
    (1..=libc::SIGRTMAX()).any(|number| {
        // SAFETY: both sets are valid.
        let arrives =
            unsafe { libc::sigismember(&raw const pending, number) == 1 && libc::sigismember(mask, number) != 1 };
        arrives && ends_waits(number)
    })
}

/// Returns whether the signal has a handler without SA_RESTART.
fn ends_waits(number: c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: the pointer refers to memory for an action, and a successful call fills the action.
    unsafe {
        if libc::sigaction(number, ptr::null(), action.as_mut_ptr()) != 0 {
            return false;
        }
        let action = action.assume_init();
        let handled = action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN;
        handled && action.sa_flags & libc::SA_RESTART == 0
    }
}

/// Events that the program has retrieved but not acknowledged. The program must acknowledge them before the object that
/// raised them is destroyed.
///
/// The type consists of primitives of the C library, since a waiting thread may be cancelled. A cancelled thread
/// releases the lock.
pub(crate) struct Unacknowledged {
    lock: UnsafeCell<libc::pthread_mutex_t>,
    none_left: UnsafeCell<libc::pthread_cond_t>,
    count: UnsafeCell<u64>,
}

// SAFETY: threads change the count only under the lock.
unsafe impl Send for Unacknowledged {}
// SAFETY: threads change the count only under the lock.
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
        // SAFETY: the lock is initialised, and this thread holds the lock while it uses the count. The lock does not
        // move, since `self` is borrowed.
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

    /// Acknowledges events. If `events` exceeds the number of outstanding events, acknowledges all of them.
    pub(crate) fn acknowledge(&self, events: u64) {
        self.with(|count| {
            *count = count.saturating_sub(events);
            if *count == 0 {
                // SAFETY: the condition is initialised. The broadcast happens under the lock. Once the lock is free,
                // the waiting thread may destroy the object.
                unsafe { libc::pthread_cond_broadcast(self.none_left.get()) };
            }
        });
    }

    /// Acknowledges all events. Called when the program can acknowledge no more events.
    pub(crate) fn give_up(&self) {
        self.acknowledge(u64::MAX);
    }

    /// Returns `Ok` if all events are acknowledged. Otherwise returns the step that waits for the acknowledgements,
    /// since destroying an object in verbs waits for them.
    pub(crate) fn none(&self) -> Found<()> {
        if self.with(|count| *count) == 0 { Ok(()) } else { Err(Step::Acknowledged(self)) }
    }

    #[cfg(test)]
    fn is_free(&self) -> bool {
        // SAFETY: the lock is initialised. The function unlocks the lock only after it has locked it.
        unsafe { libc::pthread_mutex_trylock(self.lock.get()) == 0 && libc::pthread_mutex_unlock(self.lock.get()) == 0 }
    }

    /// Waits until all events are acknowledged. A cancellation of the thread may unwind this function.
    ///
    /// # Safety
    ///
    /// `events` stays in place until the function returns or is unwound.
    unsafe fn wait(events: *const Self) {
        let mut cleanup = MaybeUninit::<Cleanup>::uninit();
        // SAFETY: the caller guarantees that `events` stays in place. The cleanup stays in place until it is removed.
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
    // SAFETY: the thread that runs this function holds the lock.
    unsafe { libc::pthread_mutex_unlock(lock.cast()) };
}

#[cfg(test)]
mod tests;
