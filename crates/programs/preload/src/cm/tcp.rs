//! `bind` of the C library, for programs that listen for RDMA and for TCP at one port, as storage targets do.
//!
//! An adapter has ports of its own. Here a listener that other machines can reach holds the TCP port of the same
//! number, which the program may want too. Then the program gets the port, and only programs of this machine reach the
//! listener. The result does not depend on which of the two comes first.

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

/// Looks for the C library's function. This runs when the library is loaded.
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

/// Binds a socket of this library. Unlike `bind` of a program, takes no port from a listener.
pub(super) fn bind_own(socket: &Socket, address: &SockAddr) -> io::Result<()> {
    // SAFETY: the address has the length that it reports.
    match unsafe { real_bind(socket.as_raw_fd(), address.as_ptr().cast(), address.len()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Binds a socket of the program. If a listener of this process holds the TCP port, the listener gives it up.
#[unsafe(no_mangle)]
unsafe extern "C" fn bind(socket: c_int, address: *const libc::sockaddr, length: libc::socklen_t) -> c_int {
    // SAFETY: the caller keeps the C contract of `bind`.
    let again = || unsafe { real_bind(socket, address, length) };
    let bound = again();
    if bound == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EADDRINUSE) {
        return bound;
    }
    // SAFETY: the kernel has just read the address.
    let wanted = unsafe { wanted(socket, address, length) };
    let bound = wanted.and_then(|wanted| {
        let _uncancelled = Uncancelled::new();
        // A signal handler may call this, so it must not wait long for a thread that forks.
        let _inside = service::soon(Inside::try_new)?;
        catch_unwind(AssertUnwindSafe(|| service::leaving_tcp(wanted, || again() == 0))).ok()
    });
    if bound == Some(true) {
        return 0;
    }
    set_errno(libc::EADDRINUSE);
    -1
}

/// Returns the TCP address that the program wants, or `None` if the socket is not one of TCP.
///
/// # Safety
///
/// `address` is null or points to `length` readable bytes.
unsafe fn wanted(socket: c_int, address: *const libc::sockaddr, length: libc::socklen_t) -> Option<SocketAddr> {
    let mut storage = SockAddrStorage::zeroed();
    if address.is_null() || length > storage.size_of() {
        return None;
    }
    // SAFETY: the descriptor is open, since the kernel did not refuse it, and the caller owns it during the call.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
    if SockRef::from(&socket).protocol().ok()? != Some(Protocol::TCP) {
        return None;
    }
    // SAFETY: by the caller's promise, and the address fits. The bytes after it are zero, which any address allows.
    let wanted = unsafe {
        let place = ptr::from_mut(storage.view_as::<libc::sockaddr_storage>()).cast::<u8>();
        place.copy_from_nonoverlapping(address.cast(), length as usize);
        SockAddr::new(storage, length)
    };
    wanted.as_socket()
}
