//! `bind` of the C library, for programs that listen for RDMA and for TCP at the same port, such as storage targets.
//!
//! The ports of an adapter are independent of TCP ports. But a listener of this library that other machines can reach
//! holds the TCP port of the same number, which the program may also want. Then the program gets the TCP port, and only
//! programs on this machine can reach the listener. The result is the same whichever of the two binds the port first.

use std::ffi::c_int;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use socket2::{Protocol, SockAddr, SockAddrStorage, SockRef, Socket};

use super::service;
use crate::objects::answer::set_errno;
use crate::process::fork::Inside;
use crate::process::next::Next;
use crate::process::wait::Uncancelled;

static NEXT: Next = Next::new(c"bind");

/// Looks up `bind` of the C library when this library is loaded.
pub(crate) fn find_next() {
    NEXT.find();
}

/// Calls `bind` of the C library.
///
/// # Safety
///
/// The C contract of `bind`.
unsafe fn real_bind(socket: c_int, address: *const libc::sockaddr, length: libc::socklen_t) -> c_int {
    type Bind = unsafe extern "C" fn(c_int, *const libc::sockaddr, libc::socklen_t) -> c_int;
    let found = NEXT.get();
    if found.is_null() {
        // SAFETY: the system call has the same arguments and the same contract.
        return unsafe { libc::syscall(libc::SYS_bind, socket, address, length) } as c_int;
    }
    // SAFETY: the C library's function of this name has this type.
    unsafe { mem::transmute::<*mut libc::c_void, Bind>(found)(socket, address, length) }
}

/// Binds a socket of this library. Unlike `bind` of a program, this function does not take the TCP port from a
/// listener.
pub(super) fn bind_own(socket: &Socket, address: &SockAddr) -> io::Result<()> {
    // SAFETY: the address reports its own length.
    match unsafe { real_bind(socket.as_raw_fd(), address.as_ptr().cast(), address.len()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Binds a socket of the program. If a listener of this process holds the TCP port, the listener closes its socket at
/// this port.
#[unsafe(no_mangle)]
unsafe extern "C" fn bind(socket: c_int, address: *const libc::sockaddr, length: libc::socklen_t) -> c_int {
    // SAFETY: the caller obeys the C contract of `bind`.
    let again = || unsafe { real_bind(socket, address, length) };
    let bound = again();
    if bound == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EADDRINUSE) {
        return bound;
    }
    // SAFETY: the kernel has just read the address.
    let wanted = unsafe { wanted(socket, address, length) };
    let bound = wanted.and_then(|wanted| {
        let _uncancelled = Uncancelled::new();
        // A signal handler may call `bind`, so `bind` must not wait long for a forking thread.
        let _inside = service::soon(Inside::try_new)?;
        catch_unwind(AssertUnwindSafe(|| service::leaving_tcp(wanted, || again() == 0))).ok()
    });
    if bound == Some(true) {
        return 0;
    }
    set_errno(libc::EADDRINUSE);
    -1
}

/// Returns the TCP address to which the program binds the socket. Returns `None` if the socket is not a TCP socket.
///
/// # Safety
///
/// `address` is null, or points to `length` readable bytes.
unsafe fn wanted(socket: c_int, address: *const libc::sockaddr, length: libc::socklen_t) -> Option<SocketAddr> {
    let mut storage = SockAddrStorage::zeroed();
    if address.is_null() || length > storage.size_of() {
        return None;
    }
    // SAFETY: the descriptor is open, since `bind` did not fail with EBADF. The caller owns the descriptor during the
    // call.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
    if SockRef::from(&socket).protocol().ok()? != Some(Protocol::TCP) {
        return None;
    }
    // SAFETY: the caller guarantees that `address` is readable, and its length fits. The bytes after the address are
    // zero, which is valid for any address.
    let wanted = unsafe {
        let place = ptr::from_mut(storage.view_as::<libc::sockaddr_storage>()).cast::<u8>();
        place.copy_from_nonoverlapping(address.cast(), length as usize);
        SockAddr::new(storage, length)
    };
    wanted.as_socket()
}
