//! Eventfds whose numbers a program may reuse.
//!
//! A daemon may close descriptors that it did not open. Later, a file of its own may have the same number, perhaps
//! another eventfd. The kernel's number of an eventfd tells them apart.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};

use nix::sys::eventfd::{EfdFlags, EventFd};

/// The line of `/proc/self/fdinfo/N` that has the kernel's number of an eventfd (since Linux 5.2).
const ID_LINE: &str = "eventfd-id:";

/// Identity of an eventfd, independent of its descriptors.
///
/// If the kernel shows no numbers, any eventfd passes for any other. This is so without `/proc`, on Linux before 5.2,
/// and if the process has no descriptor left for reading.
#[derive(Clone, Copy, Debug)]
pub struct EventIdentity(Option<u64>);

impl EventIdentity {
    /// Reads the identity of an eventfd.
    pub fn of(eventfd: BorrowedFd<'_>) -> Self {
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", eventfd.as_raw_fd()));
        let number = |info: String| info.lines().find_map(|line| line.strip_prefix(ID_LINE)?.trim().parse().ok());
        Self(info.ok().and_then(number))
    }

    /// Returns whether the descriptor stands for the same eventfd.
    pub fn is_of(self, descriptor: BorrowedFd<'_>) -> bool {
        is_event(descriptor)
            && match (self.0, Self::of(descriptor).0) {
                (Some(own), Some(found)) => own == found,
                _ => true,
            }
    }
}

/// Returns whether a descriptor stands for an eventfd. Eventfds belong to no file system, so `stat` shows no file type.
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

    /// Returns whether the descriptor still stands for the eventfd.
    pub fn is_intact(&self) -> bool {
        self.identity.is_of(self.fd.as_fd())
    }

    /// Returns whether the descriptor stands for any eventfd. This takes one system call, while
    /// [`is_intact`](Self::is_intact) takes several.
    pub fn is_event(&self) -> bool {
        is_event(self.fd.as_fd())
    }

    /// Increments the count. A full count is readable already. Returns false if the descriptor is closed.
    pub fn signal(&self) -> bool {
        let one = 1_u64;
        // SAFETY: the kernel reads as many bytes as the number has. `write` of the C library would be a cancellation
        // point.
        let written =
            unsafe { libc::syscall(libc::SYS_write, self.fd.as_fd().as_raw_fd(), &raw const one, size_of_val(&one)) };
        written >= 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EBADF)
    }

    /// Resets the count.
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
        // A descriptor number that no other test uses.
        let high = 900_000;
        // SAFETY: the value is never dropped, and the number belongs to no file.
        let fd = unsafe { EventFd::from_owned_fd(std::os::fd::FromRawFd::from_raw_fd(high)) };
        let closed = OwnEvent { fd, identity: event.identity };
        let closed = std::mem::ManuallyDrop::new(closed);
        assert!(!closed.signal() && !closed.is_intact());
    }
}
