//! Descriptors that are readable while something waits. They are read and written by `syscall`, since that is no point
//! where a thread is cancelled (POSIX makes `write` one).

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use doorbell_verbs_core::{AsyncEvent, EventQueue};
use nix::libc;
use nix::sys::eventfd::{EfdFlags, EventFd};

/// A semaphore: each notification is taken by one read, so none is lost or seen twice.
fn event_fd() -> nix::Result<EventFd> {
    EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_SEMAPHORE)
}

fn signal(fd: &EventFd) {
    let one = 1_u64;
    // SAFETY: the kernel reads as many bytes as the number has. That it fails where it is full does no harm: it is
    // readable already.
    unsafe { libc::syscall(libc::SYS_write, fd.as_fd().as_raw_fd(), &raw const one, size_of_val(&one)) };
}

/// A descriptor that is readable while asynchronous events wait in a device's queue: an eventfd that counts them.
#[derive(Debug)]
pub struct EventSignal(EventFd);

impl EventSignal {
    /// No event waits yet.
    ///
    /// # Errors
    ///
    /// The operating system gives no eventfd.
    pub fn new() -> nix::Result<Self> {
        Ok(Self(event_fd()?))
    }

    /// An event was queued.
    pub fn signal(&self) {
        signal(&self.0);
    }

    /// The oldest event of the queue, for each event of which the descriptor was signalled.
    pub fn next(&self, queue: &EventQueue) -> Option<AsyncEvent> {
        if let Some(event) = queue.pop() {
            // One read for one event: the descriptor stays readable while more wait.
            take(&self.0);
            return Some(event);
        }
        // An event may have been taken before its signal came, or have gone with its queue pair:
        // the descriptor must not stay readable for it. One that comes just now is seen here.
        while take(&self.0) {}
        let event = queue.pop();
        if event.is_some() {
            self.signal(); // it came perhaps not alone
        }
        event
    }
}

impl AsFd for EventSignal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Takes one count from a semaphore, without waiting even where the program made the descriptor a
/// blocking one. False if there is none, which may be: programs can read the descriptor too.
fn take(fd: &EventFd) -> bool {
    let mut count = [0_u8; 8];
    let place = libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
    let raw = fd.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open, and the one place has room for its bytes. The position is -1, in two halves.
    let read = unsafe {
        libc::syscall(libc::SYS_preadv2, raw, &raw const place, 1_usize, -1_isize, -1_isize, libc::RWF_NOWAIT)
    };
    if read >= 0 {
        return read > 0;
    }
    match nix::Error::last() {
        // Kernels before 5.8 cannot do this with an eventfd.
        nix::Error::EOPNOTSUPP | nix::Error::ENOSYS => {
            let mut readable = libc::pollfd { fd: raw, events: libc::POLLIN, revents: 0 };
            let no_time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            let no_mask = std::ptr::null::<libc::sigset_t>();
            // SAFETY: one entry and one time, both live; the descriptor is read into a place with room for a count.
            unsafe {
                libc::syscall(libc::SYS_ppoll, &raw mut readable, 1_usize, &raw const no_time, no_mask, 0_usize) == 1
                    && libc::syscall(libc::SYS_read, raw, count.as_mut_ptr(), count.len()) > 0
            }
        }
        _ => false,
    }
}

/// A list, and a descriptor that is readable while something is in it: an eventfd that counts the
/// entries. Neither the list's users nor the program, whatever it does with the descriptor, can make
/// another user wait for it.
#[derive(Debug)]
pub struct Notices<T> {
    fd: EventFd,
    entries: Mutex<VecDeque<T>>,
}

impl<T> Notices<T> {
    /// An empty list. Reading its descriptor does not block unless somebody makes it to.
    ///
    /// # Errors
    ///
    /// The operating system gives no eventfd.
    pub fn new() -> nix::Result<Self> {
        Ok(Self::on(event_fd()?))
    }

    /// An empty list on an eventfd that counts nothing yet, and counts down by one with each read.
    pub fn on(fd: EventFd) -> Self {
        Self { fd, entries: Mutex::default() }
    }

    /// The descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The list, while nobody else changes it.
    pub fn lock(&self) -> LockedNotices<'_, T> {
        LockedNotices { fd: &self.fd, entries: self.entries.lock().unwrap_or_else(PoisonError::into_inner) }
    }
}

/// The entries of [`Notices`]: list and descriptor change together.
#[derive(Debug)]
pub struct LockedNotices<'a, T> {
    fd: &'a EventFd,
    entries: MutexGuard<'a, VecDeque<T>>,
}

impl<T> LockedNotices<'_, T> {
    /// Adds an entry.
    pub fn push(&mut self, entry: T) {
        self.entries.push_back(entry);
        signal(self.fd);
    }

    /// Takes the oldest entry.
    pub fn pop(&mut self) -> Option<T> {
        let oldest = self.entries.pop_front()?;
        take(self.fd);
        Some(oldest)
    }

    /// Takes the oldest entry for a caller that has read the descriptor itself. There may be none:
    /// what it read for may have been removed meanwhile, or taken by another.
    pub fn pop_read(&mut self) -> Option<T> {
        let oldest = self.entries.pop_front();
        if self.entries.is_empty() {
            // Of several callers that read, some may have found nothing, and this one an entry that
            // came after its reading: a count is left then, and nothing that it stands for.
            while take(self.fd) {}
        }
        oldest
    }

    /// Removes the entries that `of` picks, and returns them in their order.
    pub fn remove(&mut self, of: impl Fn(&T) -> bool) -> VecDeque<T> {
        let (removed, kept): (VecDeque<T>, _) = self.entries.drain(..).partition(of);
        *self.entries = kept;
        for _ in &removed {
            take(self.fd);
        }
        removed
    }

    /// The entries, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter()
    }

    /// Is nothing in it?
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
    fn the_descriptor_is_readable_exactly_while_something_is_in_the_list() {
        let notices = Notices::new().unwrap();
        assert!(!is_readable(&notices));
        (0..5).for_each(|number| notices.lock().push(number));
        assert_eq!(notices.lock().pop(), Some(0));
        assert_eq!(notices.lock().remove(|number| number % 2 == 1), [1, 3]);
        assert_eq!(notices.lock().iter().copied().collect::<Vec<_>>(), [2, 4]);
        assert!(is_readable(&notices));
        notices.fd.read().unwrap();
        assert_eq!(notices.lock().pop_read(), Some(2));
        assert!(is_readable(&notices));
        assert_eq!(notices.lock().pop(), Some(4));
        assert!(!is_readable(&notices));
        assert_eq!(notices.lock().pop(), None);
        assert!(notices.lock().is_empty());
    }

    #[test]
    fn a_program_that_reads_a_blocking_descriptor_makes_nobody_wait() {
        let notices = Notices::new().unwrap();
        fcntl(notices.fd(), FcntlArg::F_SETFL(OFlag::empty())).unwrap();
        (0..3).for_each(|number| notices.lock().push(number));
        for _ in 0..3 {
            notices.fd.read().unwrap();
        }
        // Each of these would wait for ever if it read as the descriptor says.
        let (done, ends) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            assert_eq!(notices.lock().pop(), Some(0));
            assert_eq!(notices.lock().remove(|&number| number == 1), [1]);
            assert_eq!(notices.lock().pop_read(), Some(2));
            assert!(!is_readable(&notices));
            let _ = done.send(());
        });
        assert!(ends.recv_timeout(Duration::from_secs(30)).is_ok(), "it waits, or has failed");
    }

    #[test]
    fn a_count_that_was_read_for_an_entry_that_went_is_no_entry() {
        let notices = Notices::new().unwrap();
        notices.lock().push(1);
        notices.fd.read().unwrap();
        notices.lock().remove(|_| true);
        // The reader has not come for it yet when the next one comes.
        notices.lock().push(2);
        assert_eq!(notices.lock().pop_read(), Some(2));
        assert!(!is_readable(&notices), "nothing is left that it could tell of");
        assert_eq!(notices.lock().pop_read(), None);
    }
}
