//! Conversion of C addresses, and lookup of the source address for a destination.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::ptr;

use doorbell_fabric::udp::interface_mtu;
use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};
use socket2::SockAddr;

use crate::objects::answer::{Answer, Refused};

/// Reads an address. Returns `None` for a null pointer and for the family `AF_UNSPEC`.
///
/// # Safety
///
/// `address` is null, or points to an address with the length of its family.
pub(super) unsafe fn read(address: *const sockaddr) -> Answer<Option<SocketAddr>> {
    // SAFETY: the caller guarantees that the address is valid. The read works for any alignment.
    let Some(family) = (!address.is_null()).then(|| unsafe { (&raw const (*address).sa_family).read_unaligned() })
    else {
        return Ok(None);
    };
    match i32::from(family) {
        libc::AF_UNSPEC => Ok(None),
        libc::AF_INET => {
            // SAFETY: the caller guarantees that an `AF_INET` address is a `sockaddr_in`.
            let own = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(own.sin_addr.s_addr));
            Ok(Some(SocketAddr::new(ip.into(), u16::from_be(own.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: the caller guarantees that an `AF_INET6` address is a `sockaddr_in6`.
            let own = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(own.sin6_addr.s6_addr);
            let port = u16::from_be(own.sin6_port);
            Ok(Some(std::net::SocketAddrV6::new(ip, port, own.sin6_flowinfo, own.sin6_scope_id).into()))
        }
        family => Err(Refused::new(
            libc::EAFNOSUPPORT,
            format!("address family {family} is not supported: use an IPv4 or IPv6 address"),
        )),
    }
}

/// Writes an address to a `sockaddr_storage`. Returns the length of the address.
///
/// # Safety
///
/// `place` points to writable memory of the size of a `sockaddr_storage`.
pub(super) unsafe fn write(place: *mut sockaddr_storage, address: SocketAddr) -> socklen_t {
    let own = SockAddr::from(address);
    // SAFETY: the caller guarantees the size of `place`. No address is longer than a `sockaddr_storage`.
    unsafe { ptr::copy_nonoverlapping(own.as_ptr().cast::<u8>(), place.cast(), own.len() as usize) };
    own.len()
}

/// Returns the source address that the kernel would use to send to `destination`. The port of the source address is 0.
/// A link-local source address includes its scope.
pub(super) fn source_for(mut destination: SocketAddr) -> io::Result<SocketAddr> {
    let any: IpAddr = if destination.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let probe = UdpSocket::bind((any, 0))?;
    // Connecting a UDP socket sends nothing. The kernel rejects a connection to port 0, so use port 1 instead.
    destination.set_port(destination.port().max(1));
    probe.connect(destination)?;
    let mut source = probe.local_addr()?;
    source.set_port(0);
    Ok(source)
}

/// Returns whether an interface in this process's network namespace has the address.
pub(super) fn is_here(address: SocketAddr) -> bool {
    let ip = address.ip();
    // To send to the first address of an interface of this machine, the kernel uses the same address as source.
    // `interface_mtu` finds the further addresses of an interface.
    ip.is_loopback() || source_for(address).is_ok_and(|source| source.ip() == ip) || interface_mtu(ip).is_ok()
}

/// Converts an IPv4-mapped IPv6 address to IPv4, since dual-stack sockets report IPv4 peers in this form. Returns other
/// addresses unchanged.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mapped_addresses_change_and_link_local_ones_keep_their_scope() {
        for (shown, meant) in [
            ("[::ffff:127.0.0.3]:7", "127.0.0.3:7"),
            ("127.0.0.3:7", "127.0.0.3:7"),
            ("[fe80::1%4]:7", "[fe80::1%4]:7"),
        ] {
            assert_eq!(canonical(shown.parse().unwrap()), meant.parse().unwrap());
        }
    }

    #[test]
    fn loopback_addresses_belong_to_this_machine_and_documentation_addresses_do_not() {
        for (address, here) in [
            ("127.0.0.1:7", true),
            ("127.3.4.5:7", true),
            ("0.0.0.0:7", false),
            ("192.0.2.77:7", false),
            ("239.1.1.1:7", false),
            ("[2001:db8::77]:7", false),
            ("[fe80::77%999]:7", false),
        ] {
            assert_eq!(is_here(address.parse().unwrap()), here, "{address}");
        }
    }

    #[test]
    fn a_source_has_port_zero() {
        assert_eq!(source_for("127.0.0.1:9".parse().unwrap()).unwrap(), "127.0.0.1:0".parse().unwrap());
    }
}
