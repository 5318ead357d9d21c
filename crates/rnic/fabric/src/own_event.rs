//! Eventfds of this library, and checks that the program has not closed them.
//!
//! Daemons often close all descriptors, also those of libraries. Afterwards, the descriptor number of a closed eventfd
//! may belong to a file of the program, even to another eventfd. `/proc` shows a unique ID of each eventfd, which
//! reveals the change. It also shows the data with which an epoll instance watches a file.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};

use nix::sys::eventfd::{EfdFlags, EventFd};

/// Prefix of the line of `/proc/self/fdinfo/N` that contains the kernel's ID of an eventfd (since Linux 5.2).
const ID_LINE: &str = "eventfd-id:";

/// Prefix of a line of the same file that describes a file that an epoll instance watches, and the field with the
/// hexadecimal data of that file.
const WATCHED_LINE: &str = "tfd:";
const DATA_FIELD: &str = "data:";

/// Identity of an eventfd, independent of its descriptors. The identity of an epoll instance is the data of the first
/// file that it watches. The creator of the instance must choose data that no other instance has.
///
/// If the kernel shows no IDs, all eventfds and epoll instances count as equal. This happens without `/proc`, on Linux
/// before 5.2, and if the process has no free descriptor to open the file in `/proc`.
#[derive(Clone, Copy, Debug)]
pub struct EventIdentity(Option<u64>);

impl EventIdentity {
    /// Reads the identity of an eventfd or epoll instance.
    pub fn of(descriptor: BorrowedFd<'_>) -> Self {
        Self(shown_identity(descriptor).ok().flatten())
    }

    /// Returns whether `descriptor` refers to the eventfd or epoll instance with this identity.
    pub fn is_of(self, descriptor: BorrowedFd<'_>) -> bool {
        is_event(descriptor)
            && match (self.0, shown_identity(descriptor)) {
                (Some(own), Ok(found)) => found == Some(own),
                _ => true,
            }
    }
}

/// Reads the identity that `/proc` shows. Returns `None` if it shows no ID and no watched file.
fn shown_identity(descriptor: BorrowedFd<'_>) -> io::Result<Option<u64>> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd()))?;
    Ok(info.lines().find_map(|line| {
        if let Some(watched) = line.strip_prefix(WATCHED_LINE) {
            let (_, data) = watched.split_once(DATA_FIELD)?;
            return u64::from_str_radix(data.split_whitespace().next()?, 16).ok();
        }
        line.strip_prefix(ID_LINE)?.trim().parse().ok()
    }))
}

/// Returns whether a descriptor refers to an eventfd, or to another file without a type, such as an epoll instance.
/// `fstat` shows no file type for them.
fn is_event(descriptor: BorrowedFd<'_>) -> bool {
    nix::sys::stat::fstat(descriptor).is_ok_and(|status| status.st_mode & libc::S_IFMT == 0)
}

/// A non-blocking eventfd that belongs to a thread of this library.
#[derive(Debug)]
pub struct OwnEvent {
    fd: EventFd,
    identity: EventIdentity,
}

impl OwnEvent {
    /// Creates an eventfd with count 0.
    ///
    /// # Errors
    ///
    /// The process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        let fd = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        let identity = EventIdentity::of(fd.as_fd());
        Ok(Self { fd, identity })
    }

    /// Returns whether the descriptor still refers to the eventfd that [`new`](Self::new) created.
    pub fn is_intact(&self) -> bool {
        self.identity.is_of(self.fd.as_fd())
    }

    /// Returns whether the descriptor refers to an eventfd, possibly another one, or to another file without a type.
    /// This takes one system call; [`is_intact`](Self::is_intact) takes several.
    pub fn is_event(&self) -> bool {
        is_event(self.fd.as_fd())
    }

    /// Increments the count, so that the eventfd becomes readable. Does nothing if the count is at its maximum, since
    /// the eventfd is readable then. Returns false if the descriptor is closed or refers to another kind of file.
    pub fn signal(&self) -> bool {
        let one = 1_u64;
        // SAFETY: the kernel reads the eight bytes of `one`. The code does not call `write` of the C library, because
        // that function is a cancellation point.
        let written =
            unsafe { libc::syscall(libc::SYS_write, self.fd.as_fd().as_raw_fd(), &raw const one, size_of_val(&one)) };
        written >= 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN)
    }

    /// Resets the count to 0. Returns false if the descriptor refers to another kind of file.
    pub fn reset(&self) -> bool {
        matches!(self.fd.read(), Ok(_) | Err(nix::Error::EAGAIN)) // EAGAIN: the count is 0
    }
}

impl AsFd for OwnEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

    use super::*;

    #[test]
    fn another_file_under_the_descriptor_is_detected() {
        let event = OwnEvent::new().unwrap();
        assert!(event.is_intact());
        let number = event.as_fd().as_raw_fd();
        let kept = event.fd.as_fd().try_clone_to_owned().unwrap();
        assert!(event.identity.is_of(kept.as_fd()), "a duplicate has another identity than its eventfd");
        let files: [std::os::fd::OwnedFd; 3] = [
            EventFd::from_flags(EfdFlags::EFD_CLOEXEC).unwrap().into(),
            std::fs::File::open("/dev/null").unwrap().into(),
            Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap().0,
        ];
        for other in files {
            // SAFETY: the descriptor number belongs to this test.
            assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
            assert!(!event.is_intact(), "{other:?}");
        }
        // The number belongs to the epoll instance now.
        assert!(!event.signal() && !event.reset());
    }

    #[test]
    fn the_data_of_a_watched_file_identifies_an_epoll_instance() {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).unwrap();
        let [own, same, other, empty] = [Some(0x1234_5678_9abc), Some(0x1234_5678_9abc), Some(7), None].map(|data| {
            let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
            data.into_iter().for_each(|data| epoll.add(&event, EpollEvent::new(EpollFlags::EPOLLIN, data)).unwrap());
            epoll.0
        });
        let identity = EventIdentity::of(own.as_fd());
        assert_eq!(identity.0, Some(0x1234_5678_9abc));
        assert!(identity.is_of(own.try_clone().unwrap().as_fd()) && identity.is_of(same.as_fd()));
        assert!(!identity.is_of(other.as_fd()) && !identity.is_of(empty.as_fd()) && !identity.is_of(event.as_fd()));
    }

    #[test]
    fn a_closed_descriptor_is_reported() {
        let event = OwnEvent::new().unwrap();
        assert!(event.signal());
        event.reset();
        // No open descriptor of this process has this number.
        let high = 900_000;
        // SAFETY: the value is never dropped, and the number belongs to no file.
        let fd = unsafe { EventFd::from_owned_fd(std::os::fd::FromRawFd::from_raw_fd(high)) };
        let closed = OwnEvent { fd, identity: event.identity };
        let closed = std::mem::ManuallyDrop::new(closed);
        assert!(!closed.signal() && !closed.is_intact());
    }
}
