//! Addresses of C, and which of them lead where.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::ptr;

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};
use socket2::SockAddr;

use crate::outcome::{Outcome, Refused};

/// Reads an address. None is a null pointer, or one that names no family.
///
/// # Safety
///
/// `address` is null or points to an address as long as its family has it.
pub(super) unsafe fn read(address: *const sockaddr) -> Outcome<Option<SocketAddr>> {
    // SAFETY: by the caller's promise; whatever alignment C programs gave it.
    let Some(family) = (!address.is_null()).then(|| unsafe { (&raw const (*address).sa_family).read_unaligned() })
    else {
        return Ok(None);
    };
    match i32::from(family) {
        libc::AF_UNSPEC => Ok(None),
        libc::AF_INET => {
            // SAFETY: by the caller's promise.
            let own = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(own.sin_addr.s_addr));
            Ok(Some(SocketAddr::new(ip.into(), u16::from_be(own.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: by the caller's promise.
            let own = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(own.sin6_addr.s6_addr);
            let port = u16::from_be(own.sin6_port);
            Ok(Some(std::net::SocketAddrV6::new(ip, port, own.sin6_flowinfo, own.sin6_scope_id).into()))
        }
        family => Err(Refused::new(
            libc::EAFNOSUPPORT,
            format!("addresses of family {family} are not offered: those of IPv4 and IPv6 are"),
        )),
    }
}

/// Writes an address where C has room for any.
///
/// # Safety
///
/// `place` points to as many bytes as a `sockaddr_storage` has.
pub(super) unsafe fn write(place: *mut sockaddr_storage, address: SocketAddr) -> socklen_t {
    let own = SockAddr::from(address);
    // SAFETY: by the caller's promise; no address is longer.
    unsafe { ptr::copy_nonoverlapping(own.as_ptr().cast::<u8>(), place.cast(), own.len() as usize) };
    own.len()
}

/// The address that the kernel would send from to get to `destination`.
pub(super) fn source_for(destination: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = if destination.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let probe = UdpSocket::bind((any, 0))?;
    // Nothing is sent. Port 0 is not connected to.
    probe.connect(SocketAddr::new(destination.ip(), destination.port().max(1)))?;
    Ok(probe.local_addr()?.ip())
}
