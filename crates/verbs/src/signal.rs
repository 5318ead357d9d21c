//! Descriptors that are readable while something waits.

use doorbell_rnic::{AsyncEvent, EventQueue};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// A semaphore: each notification is taken by one read, so none is lost or seen twice.
pub(crate) fn event_fd() -> nix::Result<EventFd> {
    EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_SEMAPHORE)
}

pub(crate) fn signal(fd: &EventFd) {
    // It can only fail when 2^64 - 2 notifications wait, and then it is readable.
    let _ = fd.write(1);
}

/// The oldest event of a queue for each of which the descriptor was signalled.
pub(crate) fn next_event(queue: &EventQueue, fd: &EventFd) -> Option<AsyncEvent> {
    if let Some(event) = queue.pop() {
        // One read for one event: the descriptor stays readable while more wait.
        let _ = fd.read();
        return Some(event);
    }
    // An event may have been taken before its signal came, or have gone with its queue pair:
    // the descriptor must not stay readable for it. One that comes just now is seen here.
    while fd.read().is_ok() {}
    let event = queue.pop();
    if event.is_some() {
        signal(fd); // it came perhaps not alone
    }
    event
}
