//! Calls that may have to wait, in which a thread may be cancelled and signals arrive.
//!
//! `pthread_cancel` unwinds the stack of a thread that sleeps in the C library. Frames of Rust that hold
//! something (a lock, a reference that counts) cannot be unwound so, and would leave it held. So a call
//! that may wait runs in steps ([`in_steps`]): each does what can be done now, with cancellation
//! switched off ([`Uncancelled`]), and returns what to wait for. Only then, with nothing held and
//! nothing to drop in any frame, the thread sleeps. These functions are the ones that may be unwound.
//!
//! A thread waits for an event on a word in memory ([`Sleepers`]). libibverbs and librdmacm read the event's descriptor
//! instead: if a program closed it, the reader would sleep for ever. The kernel decides, as for a read, whether a signal
//! ends the wait (SA_RESTART). The flags of the descriptor decide whether a call waits (O_NONBLOCK). A sleeping thread
//! checks once in [`LOOK`] whether its descriptor is still open.
//!
//! A thread that made itself cancellable at any moment (PTHREAD_CANCEL_ASYNCHRONOUS) must not call this
//! library, as it must not call most of POSIX.

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
    fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int;
    fn pthread_testcancel();
    fn pthread_cond_wait(condition: *mut libc::pthread_cond_t, mutex: *mut libc::pthread_mutex_t) -> c_int;
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    fn _pthread_cleanup_push(place: *mut Cleanup, routine: extern "C" fn(*mut c_void), argument: *mut c_void);
    fn _pthread_cleanup_pop(place: *mut Cleanup, execute: c_int);
}

const CANCEL_DISABLE: c_int = 1;
const CANCEL_ASYNCHRONOUS: c_int = 1;

/// Interval at which a sleeping thread checks whether the program has closed its descriptor.
const LOOK: libc::time_t = 1;

/// Signals that a thread causes itself.
const FAULTS: [Signal; 6] =
    [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL, Signal::SIGTRAP, Signal::SIGSYS];

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
    /// The next step comes after an entry was added, or after a while.
    Sleep(Sleep),
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
    /// The thread has slept.
    Woken,
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
            Ok(Step::Sleep(sleep)) => match sleep.sleep() {
                0 => turn = Turn::Woken,
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
    // It is no refusal for a program that asks without waiting, as UCX does all the time.
    if refused.errno != libc::EAGAIN {
        refused.tell(call);
    }
    set_errno(refused.errno);
    Err(refused.errno)
}

/// Explains why a wait ended.
#[inline(never)]
fn interrupted(call: &str, errno: c_int) -> c_int {
    Refused::new(errno, INTERRUPTED).tell(call);
    set_errno(errno);
    errno
}

/// A sleep until an entry is added to a list. It owns a reference to the list's sleepers, which its end gives back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sleep {
    sleepers: *const Sleepers,
    /// Entries that had been added before the list was found empty.
    added: u32,
}

/// `struct futex_waitv` of the kernel.
#[repr(C)]
struct FutexWait {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

const FUTEX2_SIZE_U32: u32 = 2;
const FUTEX2_PRIVATE: u32 = 128;

/// Whether the kernel (before 5.16) or a filter of system calls lacks `futex_waitv`.
static LACKS_WAITV: AtomicBool = AtomicBool::new(false);

impl Sleep {
    /// Makes a sleep. The caller read `added` before it found the list empty.
    pub(crate) fn new(sleepers: &Arc<Sleepers>, added: u32) -> Self {
        Self { sleepers: Arc::into_raw(Arc::clone(sleepers)), added }
    }

    /// Sleeps, and returns 0 or EINTR. May be unwound.
    fn sleep(self) -> c_int {
        let mut cleanup = MaybeUninit::<Cleanup>::uninit();
        // SAFETY: the reference lasts until it is given back, which happens once: here, or at a cancellation of the thread.
        // The cleanup stays in place until it is removed.
        unsafe {
            let word = (*self.sleepers).begin();
            _pthread_cleanup_push(cleanup.as_mut_ptr(), end_in_vain, self.sleepers.cast_mut().cast());
            let ended = wait_on(word, self.added);
            _pthread_cleanup_pop(cleanup.as_mut_ptr(), (ended != 0).into());
            if ended == 0 {
                Arc::from_raw(self.sleepers).end();
            }
            ended
        }
    }
}

/// Ends a sleep of a thread that takes no entry, since it is cancelled or interrupted.
extern "C" fn end_in_vain(sleepers: *mut c_void) {
    // SAFETY: the sleep owns this reference.
    unsafe { Arc::from_raw(sleepers.cast_const().cast::<Sleepers>()) }.end_in_vain();
}

/// Waits while a word has this value, at most for [`LOOK`]. Returns 0 or EINTR. May be unwound.
///
/// The kernel restarts `futex_waitv` after a handler with SA_RESTART, although the call has a timeout. It restarts no other
/// wait with a timeout.
///
/// # Safety
///
/// The word stays valid.
unsafe fn wait_on(word: *const u32, value: u32) -> c_int {
    let lacks_waitv = LACKS_WAITV.load(Ordering::Relaxed);
    // SAFETY: by the caller's promise.
    let ended = unsafe { if lacks_waitv { wait_older(word, value) } else { wait_newer(word, value) } };
    match ended {
        libc::EINTR if lacks_waitv && all_restart() => 0,
        libc::EINTR => libc::EINTR,
        // The word has changed, or the time is over.
        0 | libc::EAGAIN | libc::ETIMEDOUT => 0,
        _ => {
            LACKS_WAITV.store(true, Ordering::Relaxed);
            0
        }
    }
}

/// Returns 0 or the errno. May be unwound.
#[inline(never)]
unsafe fn wait_newer(word: *const u32, value: u32) -> c_int {
    let flags = FUTEX2_SIZE_U32 | FUTEX2_PRIVATE;
    let wait = FutexWait { value: value.into(), address: word.addr() as u64, flags, reserved: 0 };
    let mut until = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let mut before = 0;
    // SAFETY: the places live until the calls return, and the kernel only compares the word. While the thread can be
    // cancelled anywhere, it makes only a system call. No frame from here to the program's has a value to drop.
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

/// Does the same as [`wait_newer`], but each signal that is handled ends the wait.
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

/// Returns whether all handlers that may have run in this thread ask for restarts of calls. The handler that ran is
/// unknown.
fn all_restart() -> bool {
    let Ok(mut mask) = SigSet::thread_get_mask() else { return false };
    FAULTS.iter().for_each(|&fault| mask.add(fault)); // a sleeping thread gets none of them
    let mask: &libc::sigset_t = mask.as_ref();
    // SAFETY: the set is valid.
    (1..=libc::SIGRTMAX()).all(|number| unsafe { libc::sigismember(mask, number) } == 1 || !ends_waits(number))
}

/// Checks that a call without an event waits for one, on the descriptor of an eventfd.
///
/// # Errors
///
/// EBADF: the program has closed the descriptor. EAGAIN: the descriptor does not block.
pub(crate) fn expect_waiting(descriptor: RawFd, identity: EventIdentity, turn: Turn) -> Answer<()> {
    let closed =
        || Refused::new(libc::EBADF, format!("the program has closed descriptor {descriptor}, which tells of events"));
    // SAFETY: the descriptor is used for this call alone, which changes nothing.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let flags = fcntl(borrowed, FcntlArg::F_GETFL).map_err(|_| closed())?;
    // The number may now be that of another file.
    if turn == Turn::Woken && !identity.is_of(borrowed) {
        return Err(closed());
    }
    if OFlag::from_bits_retain(flags).contains(OFlag::O_NONBLOCK) {
        return Err(Refused::new(libc::EAGAIN, "no event waits"));
    }
    Ok(())
}

/// Does something that takes the place of the beginning of a sleep, and says whether there is an end to
/// that already. If there is none, a signal that came meanwhile interrupts the call as it would a sleep.
pub(crate) fn as_if_asleep(body: impl FnOnce() -> bool) -> Answer<bool> {
    let mut held = SigSet::all();
    for fault in FAULTS {
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
        // SAFETY: the sets are valid.
        let arrives =
            unsafe { libc::sigismember(&raw const pending, number) == 1 && libc::sigismember(mask, number) != 1 };
        arrives && ends_waits(number)
    })
}

/// Returns whether a signal has a handler that does not ask for restarts of calls.
fn ends_waits(number: c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: the action has its place, and a successful call fills it.
    unsafe {
        if libc::sigaction(number, ptr::null(), action.as_mut_ptr()) != 0 {
            return false;
        }
        let action = action.assume_init();
        let handled = action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN;
        handled && action.sa_flags & libc::SA_RESTART == 0
    }
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
