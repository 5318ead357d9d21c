//! Eventfds that are readable while a list has an entry, and threads that an entry wakes without a descriptor. All
//! system calls go through libc's `syscall`. Unlike `write`, it is no cancellation point in POSIX, so `pthread_cancel`
//! ends no thread inside these calls.

mod tally;
/// Atomics that [`tally`] uses. `tests/suite/sleepers.rs` compiles `tally` with the atomics of a model checker instead.
mod sync {
    pub(super) use std::sync::atomic::{AtomicU32, Ordering};
}

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use doorbell_sync::IgnorePoison;
use doorbell_verbs_core::{AsyncEvent, EventQueue};
use nix::libc;
use nix::sys::eventfd::{EfdFlags, EventFd};
use sync::AtomicU32;
use tally::{Signals, Tally};

/// Creates an eventfd in semaphore mode: each read takes one notification, so no notification is lost or seen twice.
fn event_fd() -> nix::Result<EventFd> {
    EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_SEMAPHORE)
}

fn signal(fd: &EventFd) {
    let one = 1_u64;
    // SAFETY: the kernel reads `size_of_val(&one)` bytes. The call fails only if the counter is full. The descriptor is
    // readable then, so the failure is harmless.
    unsafe { libc::syscall(libc::SYS_write, fd.as_fd().as_raw_fd(), &raw const one, size_of_val(&one)) };
}

/// An eventfd that counts the asynchronous events in a device's queue, and is readable while the queue has events.
#[derive(Debug)]
pub struct EventSignal(EventFd);

impl EventSignal {
    /// Creates a signal for an empty queue.
    ///
    /// # Errors
    ///
    /// The operating system cannot create an eventfd.
    pub fn new() -> nix::Result<Self> {
        Ok(Self(event_fd()?))
    }

    /// Makes the descriptor readable for one more event of the queue.
    pub fn signal(&self) {
        signal(&self.0);
    }

    /// Takes the oldest event of the queue. The caller must have called [`signal`](Self::signal) for each event of the
    /// queue.
    pub fn next(&self, queue: &EventQueue) -> Option<AsyncEvent> {
        if let Some(event) = queue.pop() {
            // One read per event: the eventfd stays readable while more events wait.
            take(&self.0);
            return Some(event);
        }
        // The queue is empty, but the eventfd may still count an event that another thread took or that was purged with
        // its queue pair. Reset the count, then look for an event that arrived meanwhile.
        while take(&self.0) {}
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

/// Takes one count from an eventfd in semaphore mode. Never blocks, even if the program made the descriptor blocking.
/// Returns false if the count is 0, for example because the program itself has read the descriptor.
fn take(fd: &EventFd) -> bool {
    let mut count = [0_u8; 8];
    let place = libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
    let raw = fd.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open, and the buffer has room for a count. The file offset -1 is passed as two halves.
    let read = unsafe {
        libc::syscall(libc::SYS_preadv2, raw, &raw const place, 1_usize, -1_isize, -1_isize, libc::RWF_NOWAIT)
    };
    if read >= 0 {
        return read > 0;
    }
    match nix::Error::last() {
        // Kernels before 5.8 do not support `preadv2` with `RWF_NOWAIT` on an eventfd.
        nix::Error::EOPNOTSUPP | nix::Error::ENOSYS => {
            let mut readable = libc::pollfd { fd: raw, events: libc::POLLIN, revents: 0 };
            let no_time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            let no_mask = std::ptr::null::<libc::sigset_t>();
            // SAFETY: the poll entry and the timeout live during `ppoll`, and the buffer has room for the count that
            // `read` returns.
            unsafe {
                libc::syscall(libc::SYS_ppoll, &raw mut readable, 1_usize, &raw const no_time, no_mask, 0_usize) == 1
                    && libc::syscall(libc::SYS_read, raw, count.as_mut_ptr(), count.len()) > 0
            }
        }
        _ => false,
    }
}

/// Threads that sleep until an entry is added to a list of [`Notices`], and the eventfd of that list.
///
/// The threads sleep on a word in memory, so they still get entries if the program closes the eventfd. If an entry
/// wakes a thread, the eventfd does not count the entry. An entry therefore costs the adding thread one system call,
/// and a woken thread another one.
#[derive(Debug)]
pub struct Sleepers(Tally<EventFd>);

impl Signals for EventFd {
    fn signal(&self) {
        signal(self);
    }

    fn take(&self) {
        take(self);
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
}

/// A list with an eventfd. The eventfd is readable while the list has an entry for which no sleeping thread was woken,
/// and counts these entries. A thread holds the lock only briefly, and never blocks on the eventfd, so no thread can
/// block the others.
#[derive(Debug)]
pub struct Notices<T> {
    sleepers: Arc<Sleepers>,
    entries: Mutex<VecDeque<T>>,
}

impl<T> Notices<T> {
    /// Creates an empty list. Its descriptor is non-blocking unless the program makes it blocking.
    ///
    /// # Errors
    ///
    /// The operating system cannot create an eventfd.
    pub fn new() -> nix::Result<Self> {
        Ok(Self::on(event_fd()?))
    }

    /// Creates an empty list on an eventfd in semaphore mode with count 0.
    pub fn on(fd: EventFd) -> Self {
        Self { sleepers: Arc::new(Sleepers(Tally::new(fd))), entries: Mutex::default() }
    }

    /// Returns the descriptor of the eventfd.
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

/// The locked entries of [`Notices`]. Each change of the list also updates the eventfd.
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

    /// Removes and returns the oldest entry, and decrements the count of the eventfd.
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
    use std::time::Duration;

    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    fn is_readable(notices: &Notices<u32>) -> bool {
        poll(&mut [PollFd::new(notices.fd(), PollFlags::POLLIN)], PollTimeout::ZERO) == Ok(1)
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
    fn reading_a_blocking_descriptor_blocks_no_other_call() {
        let notices = Notices::new().unwrap();
        fcntl(notices.fd(), FcntlArg::F_SETFL(OFlag::empty())).unwrap();
        (0..3).for_each(|number| notices.lock().push(number));
        for _ in 0..3 {
            notices.sleepers.0.signals.read().unwrap();
        }
        // The eventfd is in blocking mode, and its count is 0. Each of these calls would block forever if it called
        // `read`.
        let (done, ends) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            assert_eq!(notices.lock().pop(), Some(0));
            assert_eq!(notices.lock().remove(|&number| number == 1), [1]);
            assert_eq!(notices.lock().pop(), Some(2));
            assert!(!is_readable(&notices));
            let _ = done.send(());
        });
        assert!(ends.recv_timeout(Duration::from_secs(30)).is_ok(), "the thread waits, or has failed");
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
        // Replace the eventfd by another file under the same number. A closed number could go to a file of another
        // test.
        let null = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: the descriptor number belongs to the list.
        unsafe { libc::dup2(null.as_raw_fd(), notices.fd().as_raw_fd()) };
        notices.lock().push(7);
        assert!(sleeper.join().unwrap(), "the thread slept until its timeout");
        assert_eq!(notices.lock().pop(), Some(7));
    }
}
