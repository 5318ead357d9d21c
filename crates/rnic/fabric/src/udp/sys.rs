//! The system calls that neither `std` nor `socket2` offers, behind safe functions.
//!
//! Each function keeps its headers and control messages on its own stack, so no raw pointer outlives the function. The
//! headers that the kernel writes to are new for each call.
//!
//! Messages are sent and received through `syscall`. The functions `sendmsg` and `recvmsg` of the C library are
//! cancellation points, at which `pthread_cancel` unwinds a thread (pthreads(7)). Unwinding through Rust frames is
//! undefined behaviour. To disable cancellation during each post and poll would cost C programs more than the calls
//! themselves.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::mem::{self, MaybeUninit};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use super::control::{self, Outgoing};

/// Maximum number of messages per call of [`send`].
pub(super) const MAX_SEND_MESSAGES: usize = 64;

/// Maximum number of messages per call of [`receive`].
pub(super) const MAX_RECEIVE_MESSAGES: usize = 8;

/// Size in bytes of the buffer for one received message. No UDP payload over IP is longer.
pub(super) const RECEIVE_BUFFER_BYTES: usize = 64 * 1024;

/// One received message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Incoming<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) source: SocketAddr,
    /// Control data of the message.
    pub(super) control: control::Received,
    /// Whether the message was longer than the buffer.
    pub(super) truncated: bool,
}

/// A socket address in the kernel's layout.
#[derive(Clone, Copy)]
#[repr(C)]
union RawAddress {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl RawAddress {
    fn new(address: SocketAddr) -> (Self, libc::socklen_t) {
        match address {
            SocketAddr::V4(address) => {
                let v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                    sin_zero: [0; 8],
                };
                (Self { v4 }, mem::size_of::<libc::sockaddr_in>() as libc::socklen_t)
            }
            SocketAddr::V6(address) => {
                let v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: address.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                    sin6_scope_id: address.scope_id(),
                };
                (Self { v6 }, mem::size_of::<libc::sockaddr_in6>() as libc::socklen_t)
            }
        }
    }
}

/// Reads a socket address of either family. Returns `None` for any other family.
///
/// # Safety
///
/// `address` must be null or point to a socket address that the kernel or the C library wrote, valid for the number
/// of bytes of its family.
unsafe fn read_address(address: *const libc::sockaddr) -> Option<SocketAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: by the contract, the non-null pointer refers to a socket address. The layout follows from the family, and
    // the reads assume no alignment.
    unsafe {
        let family = address.cast::<libc::sa_family_t>().read_unaligned();
        match i32::from(family) {
            libc::AF_INET => {
                let v4 = address.cast::<libc::sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
            }
            libc::AF_INET6 => {
                let v6 = address.cast::<libc::sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let port = u16::from_be(v6.sin6_port);
                Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

/// Sends up to [`MAX_SEND_MESSAGES`] messages. Returns the number of messages that the kernel accepted. Fails only if
/// the kernel refused the first message. If the kernel refuses a later message, the next call returns the error.
pub(super) fn send<'a>(socket: BorrowedFd<'_>, messages: impl Iterator<Item = Outgoing<'a>>) -> io::Result<usize> {
    let mut addresses = [const { MaybeUninit::<RawAddress>::uninit() }; MAX_SEND_MESSAGES];
    let mut vectors = [const { MaybeUninit::<libc::iovec>::uninit() }; MAX_SEND_MESSAGES];
    let mut controls = [const { MaybeUninit::<control::Buffer>::uninit() }; MAX_SEND_MESSAGES];
    let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; MAX_SEND_MESSAGES];
    let mut count = 0;
    let slots = addresses.iter_mut().zip(&mut vectors).zip(&mut controls).zip(&mut headers);
    // `zip` must not take a message for which no slot is left. So `messages` is its second iterator.
    for ((((address, vector), control), header), message) in slots.zip(messages) {
        let (raw, raw_len) = RawAddress::new(message.destination);
        let vector = vector.write(libc::iovec {
            // The kernel only reads these bytes, so the cast to a mutable pointer is harmless.
            iov_base: message.bytes.as_ptr().cast_mut().cast(),
            iov_len: message.bytes.len(),
        });
        // SAFETY: an `mmsghdr` consists of integers and pointers, for which zero is a value.
        let header = header.write(unsafe { mem::zeroed() });
        header.msg_hdr.msg_name = (address.write(raw) as *mut RawAddress).cast();
        header.msg_hdr.msg_namelen = raw_len;
        header.msg_hdr.msg_iov = vector;
        header.msg_hdr.msg_iovlen = 1;
        if message.segment_bytes.is_some() || message.traffic_class.is_some() || message.hop_limit.is_some() {
            let control = control.write(control::Buffer::EMPTY);
            let used = control.describe(&message);
            header.msg_hdr.msg_control = control.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = used as _;
        }
        count += 1;
    }
    let sent = match count {
        0 => return Ok(0),
        1 => {
            // SAFETY: the first header was written above. Its pointers refer to this function's arrays and to the
            // caller's bytes, all of which outlive the call.
            let sent = unsafe {
                libc::syscall(
                    libc::SYS_sendmsg,
                    socket.as_raw_fd(),
                    &raw const headers[0].assume_init_ref().msg_hdr,
                    libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
                )
            };
            if sent < 0 { -1 } else { 1 }
        }
        // SAFETY: the first `count` headers were written above. Their pointers refer to this function's arrays and to
        // the caller's bytes, all of which outlive the call.
        _ => unsafe {
            libc::syscall(
                libc::SYS_sendmmsg,
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                count as libc::c_uint,
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        },
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Receives messages and passes each to `take`. Returns the number of messages. This number is at most the least of
/// `limit`, [`MAX_RECEIVE_MESSAGES`] and the number of buffers of [`RECEIVE_BUFFER_BYTES`] in `buffers`.
pub(super) fn receive(
    socket: BorrowedFd<'_>,
    buffers: &mut [u8],
    limit: usize,
    mut take: impl FnMut(Incoming<'_>),
) -> io::Result<usize> {
    let mut addresses = [const { MaybeUninit::<RawAddress>::uninit() }; MAX_RECEIVE_MESSAGES];
    let mut vectors = [const { MaybeUninit::<libc::iovec>::uninit() }; MAX_RECEIVE_MESSAGES];
    let mut controls = [const { MaybeUninit::<control::Buffer>::uninit() }; MAX_RECEIVE_MESSAGES];
    let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; MAX_RECEIVE_MESSAGES];
    let mut count = 0;
    {
        let slots = addresses.iter_mut().zip(&mut vectors).zip(&mut controls).zip(&mut headers);
        let buffers = buffers.chunks_exact_mut(RECEIVE_BUFFER_BYTES).take(limit);
        for ((((address, vector), control), header), buffer) in slots.zip(buffers) {
            let vector = vector.write(libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() });
            // SAFETY: a `RawAddress` and an `mmsghdr` consist of integers and pointers, for which zero is a value.
            let (address, header) = unsafe { (address.write(mem::zeroed()), header.write(mem::zeroed())) };
            header.msg_hdr.msg_name = (address as *mut RawAddress).cast();
            header.msg_hdr.msg_namelen = mem::size_of::<RawAddress>() as libc::socklen_t;
            header.msg_hdr.msg_iov = vector;
            header.msg_hdr.msg_iovlen = 1;
            let control = control.write(control::Buffer::EMPTY);
            header.msg_hdr.msg_control = control.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = control::Buffer::BYTES as _;
            count += 1;
        }
    }
    let received = match count {
        0 => return Ok(0),
        1 => {
            // SAFETY: the first header was written above, nothing else refers to it, and its pointers refer to this
            // function's arrays and to `buffers`.
            unsafe {
                let header = headers[0].assume_init_mut();
                let place = &raw mut header.msg_hdr;
                let len = libc::syscall(libc::SYS_recvmsg, socket.as_raw_fd(), place, libc::MSG_DONTWAIT);
                header.msg_len = len.max(0) as libc::c_uint;
                if len < 0 { -1 } else { 1 }
            }
        }
        // SAFETY: the first `count` headers were written above, nothing else refers to them, and their pointers refer
        // to this function's arrays and to `buffers`.
        _ => unsafe {
            libc::syscall(
                libc::SYS_recvmmsg,
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                count as libc::c_uint,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut::<libc::timespec>(),
            )
        },
    };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    let slots = headers.iter().zip(&addresses).zip(&controls).take(received);
    for (((header, address), control), buffer) in slots.zip(buffers.chunks(RECEIVE_BUFFER_BYTES)) {
        // SAFETY: the kernel filled at most `count` messages, so header, address and control buffer of this message
        // were written above. The address is zero or was written by the kernel.
        let (header, source, control) =
            unsafe { (header.assume_init_ref(), read_address(address.as_ptr().cast()), control.assume_init_ref()) };
        let Some(source) = source else { continue };
        // The C libraries differ in the type of this length.
        #[allow(clippy::unnecessary_cast)]
        let control_len = header.msg_hdr.msg_controllen as usize;
        take(Incoming {
            bytes: &buffer[..(header.msg_len as usize).min(buffer.len())],
            source,
            control: control.read(control_len),
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
        });
    }
    Ok(received)
}

/// Sets a socket option with an integer value.
pub(super) fn set_option(socket: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: the kernel reads the bytes of `value`, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            mem::size_of_val(&value) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Attaches a program to the sockets that share the address of `socket`. It returns the index of the socket, in the
/// order in which they were bound, that gets a datagram.
pub(super) fn steer(socket: BorrowedFd<'_>, program: &mut [libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the kernel copies the program, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            mem::size_of_val(&program) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Waits until a message arrives or the timeout expires. Returns whether a message arrived.
pub(super) fn wait_readable(socket: BorrowedFd<'_>, timeout: Duration) -> io::Result<bool> {
    let mut entry = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let milliseconds = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: the kernel accesses exactly one entry, which outlives the call and is not shared.
    match unsafe { libc::poll(&mut entry, 1, milliseconds) } {
        0 => Ok(false),
        1.. => Ok(true),
        _ => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            error => Err(error),
        },
    }
}

/// One address of a network interface of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InterfaceAddress {
    pub(crate) interface: String,
    pub(crate) address: IpAddr,
    pub(crate) netmask: Option<IpAddr>,
}

/// Returns all addresses of this machine.
pub(crate) fn interface_addresses() -> io::Result<Vec<InterfaceAddress>> {
    let mut first = std::ptr::null_mut();
    // SAFETY: the C library stores the head of a list that it allocates.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut at = first;
    while !at.is_null() {
        // SAFETY: `at` is a non-null entry of the list, which is freed only below. The entry's name is a C string, and
        // its addresses are null or point to socket addresses.
        let (entry, interface, address, netmask) = unsafe {
            let entry = &*at;
            let name = CStr::from_ptr(entry.ifa_name).to_string_lossy().into_owned();
            (entry, name, read_address(entry.ifa_addr), read_address(entry.ifa_netmask))
        };
        if let Some(address) = address {
            let netmask = netmask.map(|mask| mask.ip());
            found.push(InterfaceAddress { interface, address: address.ip(), netmask });
        }
        at = entry.ifa_next;
    }
    // SAFETY: `getifaddrs` returned the list, which is freed only here, and nothing refers to the list any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// Returns the index of the interface with this name.
pub(crate) fn interface_index(interface: &str) -> Option<u32> {
    let name = std::ffi::CString::new(interface).ok()?;
    // SAFETY: the name is a C string that outlives the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => None,
        index => Some(index),
    }
}

/// Returns the MTU of the interface with this name. The query works with any socket.
pub(crate) fn interface_mtu(socket: BorrowedFd<'_>, interface: &str) -> io::Result<usize> {
    // SAFETY: an `ifreq` consists of integers, characters and a pointer, for which zero is a value.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    if interface.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: the request outlives the call, its name ends with zero, and the kernel writes only to the request.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU as _, &mut request) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so the kernel has written the MTU.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    usize::try_from(mtu).map_err(|_| io::ErrorKind::InvalidData.into())
}
