//! The count of the entries of a list, which makes a descriptor readable.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::libc;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// Data of the first [`EventCount`]. Each further one has the next number, so that the data identifies the epoll
/// instance. The letters make equal data of an epoll instance of the program unlikely.
const FIRST_DATA: u64 = u64::from_be_bytes(*b"door\0\0\0\0");

static NEXT_DATA: AtomicU64 = AtomicU64::new(FIRST_DATA);

/// Number of descriptors whose owners are known. Only very large programs have higher descriptor numbers.
const OWNED: usize = 1 << 16;

/// Data of the newest [`EventCount`] that got each descriptor number for its eventfd. An older owner of the number has
/// lost its eventfd. The array has no lock, which another thread might hold during a fork.
static OWNERS: [AtomicU64; OWNED] = [const { AtomicU64::new(0) }; OWNED];

/// Commands of `fcntl` that set and get the signal of a file (linux/fcntl.h). The crate `libc` lacks them.
const F_SETSIG: libc::c_int = 10;
const F_GETSIG: libc::c_int = 11;

/// Number of signals that `F_SETSIG` accepts, from 1 on.
const SIGNALS: u64 = 64;

/// A count of events, and a descriptor for the program that is readable while the count is above 0.
///
/// An eventfd counts. `poll` reports eventfds as writable, but a program that polls for reading and writing sleeps only
/// if the descriptor is never writable, as those of the kernel's verbs. The program therefore gets the descriptor of an
/// epoll instance that watches the eventfd. It is readable while the eventfd is, never writable, and each further event
/// is an edge for an edge-triggered epoll. The program can neither read the count nor change the eventfd's flags.
///
/// The program does not know the number of the eventfd. A daemon that closes all descriptors except its own closes the
/// eventfd too, and the number may then belong to a file of the daemon. Therefore the eventfd has a mark, which is
/// checked before each use of the number: the signal that `F_SETSIG` sets. The kernel sends this signal only for files
/// with `O_ASYNC`, which the eventfd lacks. A file of the program rarely has any signal. One check takes one short
/// system call, whereas reading the identity in `/proc` would take several long ones. The number may also belong to the
/// eventfd of a newer list, whose mark may be equal. An array in memory ([`OWNERS`]) shows this.
///
/// No cheaper check protects such files. Only a system call shows that a descriptor is closed, and a program can close
/// it without a function of the C library. No system call checks the identity of an eventfd and also changes its count.
/// `epoll_ctl` compares the file of a number, but a change of interest is no edge for each event. Therefore the calls
/// of the library that wait for an entry do not use the eventfd ([`Sleepers`](super::Sleepers)).
#[derive(Debug)]
pub(super) struct EventCount {
    /// The eventfd, which is closed only while the number still belongs to it.
    count: ManuallyDrop<EventFd>,
    /// Signal of the eventfd; `None` if the kernel cannot set or show it. The number is then used unchecked.
    mark: Option<libc::c_long>,
    /// Data with which the epoll instance watches the eventfd, unique in this process.
    data: u64,
    /// Instance of which the program gets the descriptor.
    pub(super) shown: Epoll,
}

impl EventCount {
    /// Creates an eventfd with count 0 in semaphore mode: each read takes one event, so no event is lost or seen twice.
    pub(super) fn new() -> nix::Result<Self> {
        let count = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_SEMAPHORE)?;
        Self::with(count, NEXT_DATA.fetch_add(1, Ordering::Relaxed))
    }

    /// Marks an eventfd, notes its owner, and creates an epoll instance that watches it with `data`.
    fn with(count: EventFd, data: u64) -> nix::Result<Self> {
        let shown = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        shown.add(&count, EpollEvent::new(EpollFlags::EPOLLIN, data))?;
        let mark = 1 + (data % SIGNALS) as libc::c_long;
        // SAFETY: the descriptor is open, and the call changes only the signal of the new eventfd.
        let is_set = unsafe { libc::syscall(libc::SYS_fcntl, count.as_raw_fd(), F_SETSIG, mark) } == 0;
        let mut made = Self { count: ManuallyDrop::new(count), mark: is_set.then_some(mark), data, shown };
        if let Some(owner) = made.owner() {
            owner.store(data, Ordering::Relaxed);
        }
        if !made.is_intact() {
            made.mark = None;
        }
        Ok(made)
    }

    /// Returns the entry of [`OWNERS`] for the number of the eventfd.
    fn owner(&self) -> Option<&'static AtomicU64> {
        OWNERS.get(self.count.as_raw_fd() as usize)
    }

    /// Returns whether the number of the eventfd still belongs to it.
    fn is_intact(&self) -> bool {
        if self.owner().is_some_and(|owner| owner.load(Ordering::Relaxed) != self.data) {
            return false;
        }
        self.mark.is_none_or(|mark| {
            // SAFETY: the call changes nothing, and fails if the number belongs to no file.
            unsafe { libc::syscall(libc::SYS_fcntl, self.count.as_raw_fd(), F_GETSIG) == mark }
        })
    }

    /// Adds one event to the count. Does nothing if the program has closed the eventfd.
    pub(super) fn signal(&self) {
        if !self.is_intact() {
            return;
        }
        let (raw, one) = (self.count.as_raw_fd(), 1_u64);
        // SAFETY: the kernel reads `size_of_val(&one)` bytes. The number belongs to the eventfd, unless the program
        // closes it right now. The call fails if the counter is full. The descriptor is readable then, so the failure
        // is harmless.
        unsafe { libc::syscall(libc::SYS_write, raw, &raw const one, size_of_val(&one)) };
    }

    /// Takes one event from the count. Returns false if the count is 0, or the program has closed the eventfd. Never
    /// blocks, even if the program closes it right now, and its number then belongs to a blocking file.
    pub(super) fn take(&self) -> bool {
        if !self.is_intact() {
            return false;
        }
        let mut count = [0_u8; 8];
        let place = libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
        let raw = self.count.as_raw_fd();
        // SAFETY: the buffer has room for a count. The file offset -1 is passed as two halves.
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
                // SAFETY: the poll entry and the timeout live during `ppoll`, and the buffer has room for the count
                // that `read` returns.
                unsafe {
                    libc::syscall(libc::SYS_ppoll, &raw mut readable, 1_usize, &raw const no_time, no_mask, 0_usize)
                        == 1
                        && libc::syscall(libc::SYS_read, raw, count.as_mut_ptr(), count.len()) > 0
                }
            }
            _ => false,
        }
    }
}

impl Drop for EventCount {
    fn drop(&mut self) {
        if self.is_intact() {
            // SAFETY: this code runs once, and no code uses the field afterwards.
            unsafe { ManuallyDrop::drop(&mut self.count) };
        }
    }
}

impl AsFd for EventCount {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shown.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{FromRawFd, OwnedFd};

    use nix::fcntl::{FcntlArg, fcntl};

    use super::super::Notices;
    use super::super::tests::is_readable;
    use super::*;

    #[test]
    fn a_file_under_the_number_of_the_closed_eventfd_is_left_alone() {
        let (reader, writer) = nix::unistd::pipe().unwrap();
        let foreign = EventFd::from_value_and_flags(5, EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC).unwrap();
        for other in [reader.as_fd(), writer.as_fd(), foreign.as_fd()] {
            let notices = Notices::new().unwrap();
            notices.lock().push(1);
            let count = &notices.sleepers.0.signals;
            assert!(count.mark.is_some() && count.is_intact());
            let number = count.count.as_raw_fd();
            nix::unistd::write(&writer, b"8 bytes.").unwrap();
            // SAFETY: the number belongs to the list. The other file replaces the eventfd, as in a daemon that closes
            // all descriptors and opens its own.
            assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
            assert!(!count.is_intact());
            notices.lock().push(2);
            assert_eq!(notices.lock().pop(), Some(1));
            assert_eq!(notices.lock().pop(), Some(2));
            drop(notices);
            // SAFETY: only this test uses the number, which the list has forgotten.
            let kept = unsafe { OwnedFd::from_raw_fd(number) };
            assert!(fcntl(&kept, FcntlArg::F_GETFD).is_ok(), "the list has closed the other file");
            let mut bytes = [0; 64];
            assert_eq!(nix::unistd::read(&reader, &mut bytes), Ok(8));
            assert_eq!(&bytes[..8], b"8 bytes.");
        }
        assert_eq!(foreign.read(), Ok(5));
    }

    #[test]
    fn a_list_leaves_the_eventfd_of_a_newer_list_with_the_same_mark_alone() {
        let older = Notices::new().unwrap();
        older.lock().push(1);
        let lost = &older.sleepers.0.signals;
        let number = lost.count.as_raw_fd();
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_SEMAPHORE;
        let other = EventFd::from_flags(flags).unwrap();
        // SAFETY: the number belongs to the older list, and from now on to the newer one. It is never free in between,
        // so no other test gets it.
        let count = unsafe {
            assert_eq!(libc::dup3(other.as_raw_fd(), number, libc::O_CLOEXEC), number);
            EventFd::from_owned_fd(OwnedFd::from_raw_fd(number))
        };
        drop(other);
        let newer = Notices::with(EventCount::with(count, lost.data + SIGNALS).unwrap());
        assert_eq!(newer.sleepers.0.signals.mark, lost.mark);
        assert!(!lost.is_intact() && newer.sleepers.0.signals.is_intact());
        older.lock().push(2);
        assert!(!is_readable(&newer), "the older list signals the newer one");
        newer.lock().push(3);
        assert_eq!(older.lock().pop(), Some(1));
        drop(older);
        assert!(is_readable(&newer), "the older list takes the entry of the newer one, or closes its eventfd");
        assert_eq!(newer.lock().pop(), Some(3));
        assert!(!is_readable(&newer));
    }
}
