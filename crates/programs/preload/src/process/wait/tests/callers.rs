//! Threads of the C library that make one call, which a test cancels or interrupts.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};
use std::time::{Duration, Instant};

use nix::sys::eventfd::EventFd;

unsafe extern "C-unwind" {
    fn pthread_create(
        thread: *mut libc::pthread_t,
        attributes: *const c_void,
        body: extern "C-unwind" fn(*mut c_void) -> *mut c_void,
        argument: *mut c_void,
    ) -> c_int;
}

unsafe extern "C" {
    fn pthread_cancel(thread: libc::pthread_t) -> c_int;
}

/// Time after which a test that hangs fails. No test takes this long, even on slow machines.
pub(super) const PATIENCE: Duration = Duration::from_secs(90);

/// Result of `pthread_join` for a cancelled thread (`PTHREAD_CANCELED`).
const CANCELED: *mut c_void = ptr::without_provenance_mut(usize::MAX);

/// A thread of the C library that makes one call.
pub(super) struct Caller<'a> {
    call: &'a (dyn Fn() -> c_int + Sync),
    /// Whether the thread cancels itself before the call.
    cancels_itself: bool,
    tid: AtomicI32,
    result: AtomicI32,
    errno: AtomicI32,
    has_returned: AtomicBool,
    thread: libc::pthread_t,
}

extern "C-unwind" fn run(caller: *mut c_void) -> *mut c_void {
    // SAFETY: the thread that started this thread waits for it, so `caller` exists.
    let caller = unsafe { &*caller.cast::<Caller<'_>>() };
    // SAFETY: these calls change only this thread.
    unsafe {
        caller.tid.store(libc::gettid(), Ordering::SeqCst);
        if caller.cancels_itself {
            pthread_cancel(libc::pthread_self());
        }
    }
    caller.result.store((caller.call)(), Ordering::SeqCst);
    // SAFETY: each thread has its own `errno`.
    caller.errno.store(unsafe { *libc::__errno_location() }, Ordering::SeqCst);
    caller.has_returned.store(true, Ordering::SeqCst);
    ptr::null_mut()
}

impl<'a> Caller<'a> {
    pub(super) fn start(call: &'a (dyn Fn() -> c_int + Sync), cancels_itself: bool) -> Box<Self> {
        let zero = || AtomicI32::new(0);
        let mut caller = Box::new(Self {
            call,
            cancels_itself,
            tid: zero(),
            result: zero(),
            errno: zero(),
            has_returned: AtomicBool::new(false),
            thread: 0,
        });
        let place = &raw mut *caller;
        // SAFETY: the box exists until the thread is joined.
        assert_eq!(unsafe { pthread_create(&raw mut (*place).thread, ptr::null(), run, place.cast()) }, 0);
        caller
    }

    /// Returns whether the thread is in the system call that waits for an event or an acknowledgement.
    fn is_asleep(&self) -> bool {
        let path = format!("/proc/self/task/{}/syscall", self.tid.load(Ordering::SeqCst));
        let text = std::fs::read_to_string(path).unwrap_or_default();
        [libc::SYS_futex, libc::SYS_futex_waitv].iter().any(|call| text.starts_with(&format!("{call} ")))
    }

    pub(super) fn sleeps(&self) {
        let until = Instant::now() + PATIENCE;
        // The thread may first sleep for a short time to get a lock. So require two observations.
        let mut looks = 0;
        while looks < 2 {
            looks = if self.is_asleep() { looks + 1 } else { 0 };
            let goes_on = !self.has_returned.load(Ordering::SeqCst) && Instant::now() < until;
            assert!(goes_on, "the call returned {} instead of waiting", self.result.load(Ordering::SeqCst));
            std::thread::sleep(Duration::from_millis(if looks == 0 { 1 } else { 5 }));
        }
    }

    pub(super) fn cancel(&self) {
        // SAFETY: the thread has not been joined.
        assert_eq!(unsafe { pthread_cancel(self.thread) }, 0);
    }

    pub(super) fn signal(&self, number: c_int) {
        // SAFETY: the thread has not been joined.
        unsafe { libc::pthread_kill(self.thread, number) };
    }

    /// Returns the result and the errno of the call, or `None` if the call was cancelled.
    pub(super) fn join(&self) -> Option<(c_int, c_int)> {
        let mut returned = ptr::null_mut();
        // SAFETY: the thread was started, and this is the only join.
        assert_eq!(unsafe { libc::pthread_join(self.thread, &raw mut returned) }, 0);
        let ended = (self.result.load(Ordering::SeqCst), self.errno.load(Ordering::SeqCst));
        if returned == CANCELED { None } else { Some(ended) }
    }
}

/// Puts another eventfd at the number of the descriptor, like a program that closes foreign descriptors and then
/// creates channels. If the test only closed the descriptor, another test would get its number.
fn replace(descriptor: c_int) {
    let other = EventFd::new().unwrap();
    // SAFETY: the number belongs to a descriptor of this test.
    assert_eq!(unsafe { libc::dup2(other.as_fd().as_raw_fd(), descriptor) }, descriptor);
}

/// Checks that a waiting call ends if the program replaces the descriptor that the call watches.
#[track_caller]
pub(super) fn ends_without_its_descriptor(call: &(dyn Fn() -> c_int + Sync), descriptor: c_int) {
    let caller = Caller::start(call, false);
    caller.sleeps();
    replace(descriptor);
    let until = Instant::now() + PATIENCE;
    while !caller.has_returned.load(Ordering::SeqCst) {
        assert!(Instant::now() < until, "the call still waits after its descriptor was replaced");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(caller.join(), Some((-1, libc::EBADF)));
}

/// Checks that a cancellation ends a call that waits forever, once the call sleeps.
#[track_caller]
pub(super) fn cancelled_asleep(call: &(dyn Fn() -> c_int + Sync)) {
    let caller = Caller::start(call, false);
    caller.sleeps();
    caller.cancel();
    assert_eq!(caller.join(), None, "the call was not cancelled while it slept");
}

/// Checks that a cancellation ends a call, both when it arrives during the sleep and when it is pending before the
/// call.
#[track_caller]
pub(super) fn cancelled_anyhow(call: &(dyn Fn() -> c_int + Sync)) {
    assert_eq!(Caller::start(call, true).join(), None, "the call was not cancelled at its beginning");
    cancelled_asleep(call);
}

/// A pointer that several threads use.
pub(super) struct SharedPointer<T>(pub(super) AtomicPtr<T>);

impl<T> SharedPointer<T> {
    pub(super) fn new(pointer: *mut T) -> Self {
        assert!(!pointer.is_null());
        Self(AtomicPtr::new(pointer))
    }

    pub(super) fn get(&self) -> *mut T {
        self.0.load(Ordering::SeqCst)
    }
}
