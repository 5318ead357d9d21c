//! `bind` of the C library, for programs that listen for RDMA and for TCP at one port, as targets of storage do.
//!
//! An adapter has ports of its own. A listener here that other machines reach has the TCP port of the same number, and
//! the program may want that one too. Then the program gets it, and the listener is left to programs of this machine: so
//! it is the same whichever of the two comes first.

use std::ffi::c_int;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use socket2::{Protocol, SockAddr, SockAddrStorage, SockRef, Socket};

use super::service;
use crate::answer::set_errno;
use crate::fork::Inside;
use crate::next::Next;
use crate::wait::Uncancelled;

static NEXT: Next = Next::new(c"bind");

/// Looks for the C library's function. This runs when the library is loaded.
pub(crate) fn find_next() {
    NEXT.find();
}

/// The C library's function.
///
/// # Safety
///
/// What it asks of its caller.
unsafe fn real_bind(socket: c_int, address: *const libc::sockaddr, length: libc::socklen_t) -> c_int {
    type Bind = unsafe extern "C" fn(c_int, *const libc::sockaddr, libc::socklen_t) -> c_int;
    let found = NEXT.get();
    if found.is_null() {
        // SAFETY: the arguments are those of the call.
        return unsafe { libc::syscall(libc::SYS_bind, socket, address, length) } as c_int;
    }
    // SAFETY: the function of this name has this type.
    unsafe { mem::transmute::<*mut libc::c_void, Bind>(found)(socket, address, length) }
}

/// Binds a socket of this library, which takes no port from another one.
pub(super) fn bind_own(socket: &Socket, address: &SockAddr) -> io::Result<()> {
    // SAFETY: the address is as long as it says.
    match unsafe { real_bind(socket.as_raw_fd(), address.as_ptr().cast(), address.len()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Binds a socket of the program.
#[unsafe(no_mangle)]
unsafe extern "C" fn bind(socket: c_int, address: *const libc::sockaddr, length: libc::socklen_t) -> c_int {
    // SAFETY: what our caller hands over is for the C library's function.
    let again = || unsafe { real_bind(socket, address, length) };
    let bound = again();
    if bound == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EADDRINUSE) {
        return bound;
    }
    // SAFETY: the kernel has just read the address.
    let wanted = unsafe { wanted(socket, address, length) };
    let bound = wanted.and_then(|wanted| {
        let _uncancelled = Uncancelled::new();
        // A handler of signals may call this, and must not wait for a thread that forks, or not for long.
        let _inside = service::soon(Inside::try_new)?;
        catch_unwind(AssertUnwindSafe(|| service::leaving_tcp(wanted, || again() == 0))).ok()
    });
    if bound == Some(true) {
        return 0;
    }
    set_errno(libc::EADDRINUSE);
    -1
}

/// Which address of TCP the program wants.
///
/// # Safety
///
/// `address` can be read as far as `length` says.
unsafe fn wanted(socket: c_int, address: *const libc::sockaddr, length: libc::socklen_t) -> Option<SocketAddr> {
    let mut storage = SockAddrStorage::zeroed();
    if address.is_null() || length > storage.size_of() {
        return None;
    }
    // SAFETY: the descriptor is open, or else the kernel had said so; it stays the caller's for the time of the call.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
    if SockRef::from(&socket).protocol().ok()? != Some(Protocol::TCP) {
        return None;
    }
    // SAFETY: the caller's promise, and all of it fits. What is behind it is zero, which is valid in any address.
    let wanted = unsafe {
        let place = ptr::from_mut(storage.view_as::<libc::sockaddr_storage>()).cast::<u8>();
        place.copy_from_nonoverlapping(address.cast(), length as usize);
        SockAddr::new(storage, length)
    };
    wanted.as_socket()
}
