//! Descriptors that are readable while a list has an entry, and threads that an entry wakes without a descriptor.
//! Signalling and taking use libc's `syscall`. Unlike `write`, it is no cancellation point in POSIX, so
//! `pthread_cancel` ends no thread inside these calls.

mod count;
mod tally;
/// Atomics that [`tally`] uses. `tests/suite/sleepers.rs` compiles `tally` with the atomics of a model checker instead.
mod sync {
    pub(super) use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
}

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use count::EventCount;
use doorbell_sync::IgnorePoison;
use doorbell_verbs_core::{AsyncEvent, EventQueue};
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::libc;
use nix::sys::epoll::Epoll;
use nix::unistd::dup3_raw;
use sync::AtomicU32;
use tally::{Signals, Tally};

/// A descriptor that is readable while a device's queue has asynchronous events, and never writable.
#[derive(Debug)]
pub struct EventSignal(EventCount);

impl EventSignal {
    /// Creates a signal for an empty queue.
    ///
    /// # Errors
    ///
    /// The operating system cannot create an eventfd or an epoll instance.
    pub fn new() -> nix::Result<Self> {
        EventCount::new().map(Self)
    }

    /// Makes the descriptor readable for one more event of the queue.
    pub fn signal(&self) {
        self.0.signal();
    }

    /// Takes the oldest event of the queue. The caller must have called [`signal`](Self::signal) for each event of the
    /// queue.
    pub fn next(&self, queue: &EventQueue) -> Option<AsyncEvent> {
        if let Some(event) = queue.pop() {
            // One read per event: the descriptor stays readable while more events wait.
            self.0.take();
            return Some(event);
        }
        // The queue is empty, but the eventfd may still count an event that another thread took or that was purged with
        // its queue pair. Reset the count, then look for an event that arrived meanwhile.
        while self.0.take() {}
        let event = queue.pop();
        if event.is_some() {
            self.signal(); // further events may wait
        }
        event
    }
}

impl AsFd for EventSignal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Threads that wait until an entry is added to a list of [`Notices`], and the descriptor of that list.
///
/// The threads sleep on a word in memory, so they still get entries if the program closes the descriptor. If an entry
/// wakes a thread, the eventfd does not count the entry. An entry therefore costs the adding thread one system call,
/// and a woken thread another one. An entry that a lingering thread takes costs none.
#[derive(Debug)]
pub struct Sleepers(Tally<EventCount>);

impl Signals for EventCount {
    fn signal(&self) {
        self.signal();
    }

    fn take(&self) {
        self.take();
    }

    fn wake(&self, word: &AtomicU32) {
        let wake = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: `word` is a valid reference. The kernel uses only its address, to find the threads.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), wake, 1) };
    }
}

impl Sleepers {
    /// Returns the number of all entries ever added to the list. A thread calls this function before it looks for an
    /// entry, and sleeps only while the number stays the same.
    pub fn added(&self) -> u32 {
        self.0.added()
    }

    /// Begins a sleep of the calling thread. The caller passes the returned word to a futex wait with the value that
    /// [`added`](Self::added) returned.
    pub fn begin(&self) -> *const u32 {
        self.0.begin().as_ptr()
    }

    /// Ends a sleep of the calling thread, which then looks for an entry.
    pub fn end(&self) {
        self.0.end();
    }

    /// Ends a sleep of the calling thread, which then does not look for an entry. If an entry woke this thread, the
    /// entry is left to another thread.
    pub fn end_in_vain(&self) {
        self.0.end_in_vain();
    }

    /// Runs `look`, which looks for an entry again and again, and returns what it returns: whether it has found one.
    /// The caller then takes an entry. Until then, the descriptor need not be readable for this entry.
    pub fn linger(&self, look: impl FnOnce() -> bool) -> bool {
        self.0.linger();
        let lingers = Lingers(&self.0);
        let has_found = look();
        if has_found {
            std::mem::forget(lingers);
            self.0.end_lingering();
        }
        has_found
    }
}

/// A thread that lingers, and takes no entry if this value is dropped.
struct Lingers<'a>(&'a Tally<EventCount>);

impl Drop for Lingers<'_> {
    fn drop(&mut self) {
        self.0.end_lingering_in_vain();
    }
}

/// A list with a descriptor, which is readable while the list has an entry that no waiting thread will take, and never
/// writable. A thread holds the lock only briefly, and never blocks on the eventfd that counts these entries, so
/// no thread can block the others.
#[derive(Debug)]
pub struct Notices<T> {
    sleepers: Arc<Sleepers>,
    entries: Mutex<VecDeque<T>>,
}

impl<T> Notices<T> {
    /// Creates an empty list. Its descriptor is closed by `exec`, and has no other flags.
    ///
    /// # Errors
    ///
    /// The operating system cannot create an eventfd or an epoll instance.
    pub fn new() -> nix::Result<Self> {
        EventCount::new().map(Self::with)
    }

    fn with(count: EventCount) -> Self {
        Self { sleepers: Arc::new(Sleepers(Tally::new(count))), entries: Mutex::default() }
    }

    /// Creates an empty list for a forked child. The descriptor of the new list has the number and flags of this list's
    /// descriptor. The child keeps its copy of the eventfd of this list until it ends or calls `exec`.
    ///
    /// # Errors
    ///
    /// The operating system cannot create an eventfd or an epoll instance, or the program has closed the descriptor.
    ///
    /// # Safety
    ///
    /// After this call, no code uses or drops `self`.
    pub unsafe fn renewed(&self) -> nix::Result<Self> {
        let own = self.fd();
        let status = OFlag::from_bits_retain(fcntl(own, FcntlArg::F_GETFL)?) & OFlag::O_NONBLOCK;
        let closes = FdFlag::from_bits_retain(fcntl(own, FcntlArg::F_GETFD)?).contains(FdFlag::FD_CLOEXEC);
        let mut renewed = EventCount::new()?;
        fcntl(&renewed.shown.0, FcntlArg::F_SETFL(status))?;
        let flags = if closes { OFlag::O_CLOEXEC } else { OFlag::empty() };
        // SAFETY: the caller no longer uses or drops this list, so the number is free for another owner.
        renewed.shown = Epoll(unsafe { dup3_raw(&renewed.shown.0, own.as_raw_fd(), flags)? });
        Ok(Self::with(renewed))
    }

    /// Returns the descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.sleepers.0.signals.as_fd()
    }

    /// Returns the threads that sleep until an entry is added to the list.
    pub fn sleepers(&self) -> &Arc<Sleepers> {
        &self.sleepers
    }

    /// Locks the list against changes of other threads.
    pub fn lock(&self) -> LockedNotices<'_, T> {
        let entries = self.entries.lock().ignore_poison();
        LockedNotices { sleepers: &self.sleepers, entries }
    }
}

/// The locked entries of [`Notices`]. Each change of the list also updates the count of the descriptor.
#[derive(Debug)]
pub struct LockedNotices<'a, T> {
    sleepers: &'a Sleepers,
    entries: MutexGuard<'a, VecDeque<T>>,
}

impl<T> LockedNotices<'_, T> {
    /// Adds an entry.
    pub fn push(&mut self, entry: T) {
        self.entries.push_back(entry);
        self.sleepers.0.add();
    }

    /// Removes and returns the oldest entry, and decrements the count of the descriptor.
    pub fn pop(&mut self) -> Option<T> {
        let oldest = self.entries.pop_front()?;
        self.sleepers.0.remove();
        Some(oldest)
    }

    /// Removes the entries that `of` selects, and returns them in their order.
    pub fn remove(&mut self, of: impl Fn(&T) -> bool) -> VecDeque<T> {
        let (removed, kept): (VecDeque<T>, _) = self.entries.drain(..).partition(of);
        *self.entries = kept;
        removed.iter().for_each(|_| self.sleepers.0.remove());
        removed
    }

    /// Returns the entries, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter()
    }

    /// Returns whether the list has no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::{Duration, Instant};

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use nix::sys::epoll::{EpollCreateFlags, EpollEvent, EpollFlags};
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};

    use super::*;

    /// Returns the events that `poll` reports for a descriptor.
    fn reported(fd: BorrowedFd<'_>) -> PollFlags {
        let all = PollFlags::POLLIN | PollFlags::POLLOUT | PollFlags::POLLPRI | PollFlags::POLLWRNORM;
        let mut fds = [PollFd::new(fd, all)];
        poll(&mut fds, PollTimeout::ZERO).unwrap();
        fds[0].revents().unwrap()
    }

    /// Returns whether a descriptor is readable. Nothing else may be reported.
    pub(super) fn is_readable(notices: &Notices<u32>) -> bool {
        let reported = reported(notices.fd());
        assert!((PollFlags::POLLIN | PollFlags::POLLRDNORM).contains(reported), "{reported:?}");
        reported.contains(PollFlags::POLLIN)
    }

    #[test]
    fn the_descriptor_is_readable_while_the_list_has_entries() {
        let notices = Notices::new().unwrap();
        assert!(!is_readable(&notices));
        (0..5).for_each(|number| notices.lock().push(number));
        assert_eq!(notices.lock().pop(), Some(0));
        assert_eq!(notices.lock().remove(|number| number % 2 == 1), [1, 3]);
        assert_eq!(notices.lock().iter().copied().collect::<Vec<_>>(), [2, 4]);
        assert!(is_readable(&notices));
        assert_eq!(notices.lock().pop(), Some(2));
        assert!(is_readable(&notices));
        assert_eq!(notices.lock().pop(), Some(4));
        assert!(!is_readable(&notices));
        assert_eq!(notices.lock().pop(), None);
        assert!(notices.lock().is_empty());
    }

    #[test]
    fn an_edge_triggered_epoll_reports_each_entry_once() {
        let notices = Notices::new().unwrap();
        let edges = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
        let all = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
        edges.add(notices.fd(), EpollEvent::new(all, 1)).unwrap();
        let edge = || {
            let mut events = [EpollEvent::empty(); 2];
            let count = edges.wait(&mut events, PollTimeout::ZERO).unwrap();
            events[..count].iter().map(EpollEvent::events).collect::<Vec<_>>()
        };
        assert!(edge().is_empty());
        for number in 0..3 {
            notices.lock().push(number);
            assert_eq!(edge(), [EpollFlags::EPOLLIN]);
            assert!(edge().is_empty());
        }
        for number in 0..3 {
            assert_eq!(notices.lock().pop(), Some(number));
            assert!(edge().is_empty());
        }
        notices.lock().push(3);
        assert_eq!(edge(), [EpollFlags::EPOLLIN]);
    }

    #[test]
    fn the_program_cannot_take_an_entry_by_reading_the_descriptor() {
        let notices = Notices::new().unwrap();
        notices.lock().push(7);
        for flags in [OFlag::empty(), OFlag::O_NONBLOCK] {
            fcntl(notices.fd(), FcntlArg::F_SETFL(flags)).unwrap();
            assert_eq!(nix::unistd::read(notices.fd(), &mut [0; 8]), Err(nix::Error::EINVAL));
            assert_eq!(nix::unistd::write(notices.fd(), &[0; 8]), Err(nix::Error::EINVAL));
            assert!(is_readable(&notices));
        }
        assert_eq!(notices.lock().pop(), Some(7));
        assert!(!is_readable(&notices));
    }

    #[test]
    fn a_duplicate_of_the_descriptor_outlives_the_list() {
        let notices = Notices::new().unwrap();
        notices.lock().push(7);
        let kept = notices.fd().try_clone_to_owned().unwrap();
        assert!(reported(kept.as_fd()).contains(PollFlags::POLLIN));
        drop(notices);
        // A child that another test has just forked may hold a copy of the eventfd until it ends.
        let until = Instant::now() + Duration::from_secs(60);
        while !reported(kept.as_fd()).is_empty() {
            assert!(Instant::now() < until, "the descriptor is ready, although no entry can arrive any more");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_forked_child_can_renew_its_copy_of_a_list() {
        let notices = Notices::new().unwrap();
        fcntl(notices.fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        notices.lock().push(7);
        // SAFETY: the child uses only the lists, whose locks no other thread holds, and ends without unwinding. After
        // `is_renewed`, it does not use the old list.
        let child = unsafe {
            match fork().unwrap() {
                ForkResult::Parent { child } => child,
                ForkResult::Child => {
                    let is_right = catch_unwind(AssertUnwindSafe(|| is_renewed(&notices))).unwrap_or(false);
                    libc::_exit(i32::from(!is_right))
                }
            }
        };
        assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
        assert!(is_readable(&notices), "the child has changed the list of its parent");
        assert_eq!(notices.lock().pop(), Some(7));
        assert!(!is_readable(&notices));
    }

    /// Renews a list with one entry, and returns whether the new list is right.
    ///
    /// # Safety
    ///
    /// After this call, no code uses or drops the list.
    unsafe fn is_renewed(notices: &Notices<u32>) -> bool {
        let number = notices.fd().as_raw_fd();
        let had_entry = is_readable(notices);
        // SAFETY: the caller no longer uses or drops the list.
        let Ok(own) = (unsafe { notices.renewed() }) else { return false };
        let is_empty = !is_readable(&own) && own.lock().is_empty();
        let same = own.fd().as_raw_fd() == number
            && fcntl(own.fd(), FcntlArg::F_GETFL).is_ok_and(|flags| flags & libc::O_NONBLOCK != 0)
            && fcntl(own.fd(), FcntlArg::F_GETFD) == Ok(libc::FD_CLOEXEC);
        own.lock().push(1);
        let counts = is_readable(&own) && own.lock().pop() == Some(1) && !is_readable(&own);
        had_entry && is_empty && same && counts
    }

    #[test]
    fn an_entry_is_counted_once_its_sleeper_does_not_take_it() {
        let notices = Notices::new().unwrap();
        let sleepers = notices.sleepers();
        sleepers.begin();
        notices.lock().push(1);
        assert!(!is_readable(&notices), "the notice counts an entry although it woke the sleeper");
        notices.lock().push(2);
        assert!(is_readable(&notices), "one sleeper takes one entry");
        sleepers.end();
        assert_eq!(notices.lock().pop(), Some(1));
        assert!(is_readable(&notices));
        assert_eq!(notices.lock().pop(), Some(2));
        assert!(!is_readable(&notices));

        sleepers.begin();
        sleepers.begin();
        (3..5).for_each(|number| notices.lock().push(number));
        assert!(!is_readable(&notices));
        sleepers.end_in_vain();
        assert!(is_readable(&notices), "one sleeper remains for two entries");
        assert_eq!(notices.lock().remove(|_| true), [3, 4]);
        assert!(!is_readable(&notices));
        sleepers.end_in_vain();
        assert!(!is_readable(&notices), "the list is empty");
    }

    #[test]
    fn an_entry_for_a_lingering_thread_is_counted_only_if_that_thread_does_not_take_it() {
        let notices = Notices::new().unwrap();
        let has_found = notices.sleepers().linger(|| {
            notices.lock().push(1);
            assert!(!is_readable(&notices), "the descriptor counts the entry of the lingering thread");
            notices.lock().push(2);
            assert!(is_readable(&notices), "one lingering thread takes one entry");
            true
        });
        assert!(has_found);
        assert_eq!(notices.lock().pop(), Some(1));
        assert!(is_readable(&notices));
        assert_eq!(notices.lock().pop(), Some(2));
        assert!(!is_readable(&notices));

        let has_found = notices.sleepers().linger(|| {
            notices.lock().push(3);
            false // the entry arrived after the last look
        });
        assert!(!has_found && is_readable(&notices));
        assert_eq!(notices.lock().pop(), Some(3));
        assert!(!is_readable(&notices));

        let panics = || -> bool {
            notices.lock().push(4);
            panic!("the thread ends its look")
        };
        assert!(catch_unwind(AssertUnwindSafe(|| notices.sleepers().linger(panics))).is_err());
        assert!(is_readable(&notices));
        assert_eq!(notices.lock().pop(), Some(4));
        assert!(!is_readable(&notices));
    }

    #[test]
    fn an_entry_wakes_a_sleeper_although_the_descriptor_is_closed() {
        let notices = Arc::new(Notices::new().unwrap());
        let sleepers = Arc::clone(notices.sleepers());
        let (is_about_to_sleep, begins) = std::sync::mpsc::channel();
        let sleeper = std::thread::spawn(move || {
            let (added, word) = (sleepers.added(), sleepers.begin());
            // The timeout is longer than any step of this test takes, and only ends the test if the wake-up is lost.
            let patience = libc::timespec { tv_sec: 90, tv_nsec: 0 };
            // SAFETY: the word lives as long as `sleepers`.
            let woken = unsafe {
                is_about_to_sleep.send((libc::gettid(), word.addr())).unwrap();
                let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
                libc::syscall(libc::SYS_futex, word, wait, added, &raw const patience) == 0
            };
            sleepers.end();
            woken
        });
        let (thread, word) = begins.recv().unwrap();
        let (call, wait) = (format!("/proc/self/task/{thread}/syscall"), format!("{} {word:#x} ", libc::SYS_futex));
        while !sleeper.is_finished() && !std::fs::read_to_string(&call).unwrap_or_default().starts_with(&wait) {
            std::thread::yield_now();
        }
        // Replace the descriptor by another file under the same number. A closed number could go to a file of another
        // test.
        let null = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: the descriptor number belongs to the list.
        unsafe { libc::dup2(null.as_raw_fd(), notices.fd().as_raw_fd()) };
        notices.lock().push(7);
        assert!(sleeper.join().unwrap(), "the thread slept until its timeout");
        assert_eq!(notices.lock().pop(), Some(7));
    }
}
