//! Eventfds of this library, and checks that the program has not closed them.
//!
//! Daemons often close all descriptors, also those of libraries. Afterwards, the descriptor number of a closed eventfd
//! may belong to a file of the program, even to another eventfd. `/proc` shows a unique ID of each eventfd, which
//! reveals the change.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};

use nix::sys::eventfd::{EfdFlags, EventFd};

/// Prefix of the line of `/proc/self/fdinfo/N` that contains the kernel's ID of an eventfd (since Linux 5.2).
const ID_LINE: &str = "eventfd-id:";

/// Identity of an eventfd, independent of its descriptors.
///
/// If the kernel shows no IDs, all eventfds count as equal. This happens without `/proc`, on Linux before 5.2, and if
/// the process has no free descriptor to open the file in `/proc`.
#[derive(Clone, Copy, Debug)]
pub struct EventIdentity(Option<u64>);

impl EventIdentity {
    /// Reads the identity of an eventfd.
    pub fn of(eventfd: BorrowedFd<'_>) -> Self {
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", eventfd.as_raw_fd()));
        let number = |info: String| info.lines().find_map(|line| line.strip_prefix(ID_LINE)?.trim().parse().ok());
        Self(info.ok().and_then(number))
    }

    /// Returns whether `descriptor` refers to the eventfd with this identity.
    pub fn is_of(self, descriptor: BorrowedFd<'_>) -> bool {
        is_event(descriptor)
            && match (self.0, Self::of(descriptor).0) {
                (Some(own), Some(found)) => own == found,
                _ => true,
            }
    }
}

/// Returns whether a descriptor refers to an eventfd: `fstat` shows no file type for eventfds.
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

    /// Returns whether the descriptor refers to an eventfd, possibly another one. This takes one system call;
    /// [`is_intact`](Self::is_intact) takes several.
    pub fn is_event(&self) -> bool {
        is_event(self.fd.as_fd())
    }

    /// Increments the count, so that the eventfd becomes readable. Does nothing if the count is at its maximum, since
    /// the eventfd is readable then. Returns false if the descriptor is closed.
    pub fn signal(&self) -> bool {
        let one = 1_u64;
        // SAFETY: the kernel reads the eight bytes of `one`. The code does not call `write` of the C library, because
        // that function is a cancellation point.
        let written =
            unsafe { libc::syscall(libc::SYS_write, self.fd.as_fd().as_raw_fd(), &raw const one, size_of_val(&one)) };
        written >= 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EBADF)
    }

    /// Resets the count to 0.
    pub fn reset(&self) {
        let _ = self.fd.read(); // the read fails if the count is 0
    }
}

impl AsFd for OwnEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_file_under_the_descriptor_is_detected() {
        let event = OwnEvent::new().unwrap();
        assert!(event.is_intact());
        let number = event.as_fd().as_raw_fd();
        let kept = event.fd.as_fd().try_clone_to_owned().unwrap();
        assert!(event.identity.is_of(kept.as_fd()), "a duplicate has another identity than its eventfd");
        let files: [std::os::fd::OwnedFd; 2] = [
            EventFd::from_flags(EfdFlags::EFD_CLOEXEC).unwrap().into(),
            std::fs::File::open("/dev/null").unwrap().into(),
        ];
        for other in files {
            // SAFETY: the descriptor number belongs to this test.
            assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
            assert!(!event.is_intact(), "{other:?}");
        }
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
