//! Network interfaces: the interface of an address, and the path MTU that its MTU allows.

use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsFd;

use doorbell_wire::{BTH_LEN, ICRC_LEN, IMM_DT_LEN, PathMtu, RETH_LEN};

use super::sys::{self, InterfaceAddress};

/// Bytes of an IPv4 header without options.
const IPV4_LEN: usize = 20;

/// Bytes of an IPv6 header without extensions.
const IPV6_LEN: usize = 40;

/// Bytes of a UDP header.
const UDP_LEN: usize = 8;

/// Maximum bytes of headers after the IP header, including the ICRC. An RC or UC WRITE Only with Immediate has the
/// longest headers. Those of a UD SEND with immediate are 8 bytes shorter.
const TRANSPORT_LEN: usize = UDP_LEN + BTH_LEN + RETH_LEN + IMM_DT_LEN + ICRC_LEN;

/// Returns the largest path MTU whose packets, with all headers, fit into an interface MTU. Returns `None` if even a
/// path MTU of 256 bytes is too large.
pub fn largest_path_mtu(interface_mtu: usize, ipv6: bool) -> Option<PathMtu> {
    let ip = if ipv6 { IPV6_LEN } else { IPV4_LEN };
    PathMtu::largest_within(interface_mtu.checked_sub(ip + TRANSPORT_LEN)?)
}

/// Returns the active MTU of a port with this address: the largest path MTU that the MTU of the address's interface
/// allows.
///
/// # Errors
///
/// As [`interface_mtu`]; or the interface's MTU is too small for a path MTU of 256 bytes and all headers.
pub fn active_mtu(address: IpAddr) -> io::Result<PathMtu> {
    let (interface, mtu) = interface_mtu(address)?;
    largest_path_mtu(mtu, address.is_ipv6()).ok_or_else(|| {
        let least = PathMtu::Mtu256.bytes() + TRANSPORT_LEN + if address.is_ipv6() { IPV6_LEN } else { IPV4_LEN };
        io::Error::other(format!(
            "the MTU of {interface} ({address}) is {mtu} bytes, and RoCE v2 needs at least {least} \
             there, for a path MTU of 256 and its headers"
        ))
    })
}

/// Returns the interface that has this address, and its MTU in bytes.
///
/// # Errors
///
/// No interface has the address ([`io::ErrorKind::AddrNotAvailable`]), or the operating system does not list its
/// interfaces or report the MTU.
pub fn interface_mtu(address: IpAddr) -> io::Result<(String, usize)> {
    let interface = interface_name(address)?;
    let socket = UdpSocket::bind(if address.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" })?;
    let mtu = sys::interface_mtu(socket.as_fd(), &interface)?;
    Ok((interface, mtu))
}

/// Returns the interface that has this address, and its index.
///
/// # Errors
///
/// No interface has the address ([`io::ErrorKind::AddrNotAvailable`]), or the operating system does not list its
/// interfaces.
pub fn interface_index(address: IpAddr) -> io::Result<(String, u32)> {
    let interface = interface_name(address)?;
    let gone = || io::Error::new(io::ErrorKind::AddrNotAvailable, format!("the interface {interface} is gone"));
    let index = sys::interface_index(&interface).ok_or_else(gone)?;
    Ok((interface, index))
}

fn interface_name(address: IpAddr) -> io::Result<String> {
    let addresses = sys::interface_addresses()?;
    interface_of(address, &addresses).map(str::to_owned).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::AddrNotAvailable,
            format!("no interface has the address {address}; {}", list(&addresses)),
        )
    })
}

/// Returns the index of the interface of a link-local address. Returns `None` for other addresses, which need no index.
pub(super) fn scope_of(address: IpAddr) -> Option<u32> {
    let IpAddr::V6(v6) = address else { return None };
    if !v6.is_unicast_link_local() {
        return None;
    }
    let addresses = sys::interface_addresses().ok()?;
    sys::interface_index(interface_of(address, &addresses)?)
}

/// Returns a sentence that lists the addresses of this machine.
pub(super) fn list_addresses() -> String {
    match sys::interface_addresses() {
        Ok(addresses) => list(&addresses),
        Err(error) => format!("this machine's addresses cannot be listed: {error}"),
    }
}

fn list(addresses: &[InterfaceAddress]) -> String {
    let mut text = String::from("this machine has ");
    if addresses.is_empty() {
        text.push_str("no address");
    }
    for (index, entry) in addresses.iter().enumerate() {
        let comma = if index == 0 { "" } else { ", " };
        let _ = write!(text, "{comma}{} ({})", entry.address, entry.interface);
    }
    text
}

/// Finds the interface of an address. All addresses of 127.0.0.0/8 belong to the loopback interface, although the list
/// contains only 127.0.0.1. On other interfaces, only listed addresses count.
fn interface_of(address: IpAddr, addresses: &[InterfaceAddress]) -> Option<&str> {
    let exact = addresses.iter().find(|entry| entry.address == address);
    let found = exact.or_else(|| {
        addresses
            .iter()
            .find(|entry| address.is_loopback() && entry.address.is_loopback() && same_network(address, entry))
    });
    found.map(|entry| entry.interface.as_str())
}

fn same_network(address: IpAddr, entry: &InterfaceAddress) -> bool {
    match (address, entry.address, entry.netmask) {
        (IpAddr::V4(a), IpAddr::V4(b), Some(IpAddr::V4(mask))) => {
            u32::from(a) & u32::from(mask) == u32::from(b) & u32::from(mask)
        }
        (IpAddr::V6(a), IpAddr::V6(b), Some(IpAddr::V6(mask))) => {
            u128::from(a) & u128::from(mask) == u128::from(b) & u128::from(mask)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_mtu_leaves_room_for_all_headers() {
        let table = [
            (0, None, None),
            (319, None, None),
            (320, Some(256), None),
            (340, Some(256), Some(256)),
            (576, Some(512), Some(256)),
            (1087, Some(512), Some(512)),
            (1088, Some(1024), Some(512)),
            (1280, Some(1024), Some(1024)),
            (1500, Some(1024), Some(1024)),
            (2112, Some(2048), Some(1024)),
            (4159, Some(2048), Some(2048)),
            (4160, Some(4096), Some(2048)),
            (4180, Some(4096), Some(4096)),
            (9000, Some(4096), Some(4096)),
            (65_536, Some(4096), Some(4096)),
        ];
        for (mtu, over_ipv4, over_ipv6) in table {
            let bytes = |ipv6| largest_path_mtu(mtu, ipv6).map(PathMtu::bytes);
            assert_eq!((bytes(false), bytes(true)), (over_ipv4, over_ipv6), "MTU {mtu}");
        }
    }

    #[test]
    fn all_loopback_addresses_belong_to_the_loopback_interface() {
        let (first, mtu) = interface_mtu("127.0.0.1".parse().unwrap()).unwrap();
        let (also, index) = interface_index("127.0.0.1".parse().unwrap()).unwrap();
        assert_eq!((also, sys::interface_index(&first)), (first.clone(), Some(index)));
        assert_eq!(interface_mtu("127.9.8.7".parse().unwrap()).unwrap(), (first, mtu));
        let expected = largest_path_mtu(mtu, false).unwrap();
        assert_eq!(active_mtu("127.9.8.7".parse().unwrap()).unwrap(), expected);
    }

    #[test]
    fn an_unknown_address_is_an_error_that_lists_the_known_ones() {
        let error = active_mtu("192.0.2.77".parse().unwrap()).unwrap_err().to_string();
        assert!(error.contains("192.0.2.77") && error.contains("127.0.0.1"), "{error}");
    }
}
