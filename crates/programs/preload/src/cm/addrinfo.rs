//! Lookup of names and services: `rdma_getaddrinfo`.

use std::ffi::{c_char, c_int};
use std::mem;
use std::net::SocketAddr;
use std::ptr;

use doorbell_ibverbs_sys as c;
use libc::{addrinfo, sockaddr, sockaddr_storage};

use super::address;
use crate::objects::answer::{Answer, Refused, number};
use crate::process::fork::outside;

/// Result of a lookup, together with the addresses to which its pointers refer.
#[repr(C)]
struct Found {
    c: c::rdma_addrinfo,
    source: sockaddr_storage,
    destination: sockaddr_storage,
}

/// Lookup that a program requests. Fields that the program left at zero have default values.
struct Wanted {
    flags: u32,
    family: c_int,
    port_space: c_int,
    qp_type: c_int,
    source: Option<SocketAddr>,
    destination: Option<SocketAddr>,
}

/// # Safety
///
/// The C contract of `rdma_getaddrinfo`.
unsafe fn wanted(hints: Option<&c::rdma_addrinfo>) -> Answer<Wanted> {
    let none = c::rdma_addrinfo::default();
    let hints = hints.unwrap_or(&none);
    let (mut port_space, mut qp_type) = (hints.ai_port_space, hints.ai_qp_type);
    if port_space == 0 {
        let datagrams = qp_type as u32 == c::IBV_QPT_UD;
        port_space = (if datagrams { c::RDMA_PS_UDP } else { c::RDMA_PS_TCP }) as c_int;
    }
    if qp_type == 0 {
        let kind = super::id::kind_of(port_space as c::rdma_port_space)?;
        qp_type = crate::objects::qp::kind_number(kind) as c_int;
    }
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    let (source, destination) = unsafe { (address::read(hints.ai_src_addr)?, address::read(hints.ai_dst_addr)?) };
    Ok(Wanted { flags: hints.ai_flags as u32, family: hints.ai_family, port_space, qp_type, source, destination })
}

/// Looks up a name and a service with `getaddrinfo` of the C library.
///
/// # Safety
///
/// The C contract of `getaddrinfo`.
unsafe fn look_up(node: *const c_char, service: *const c_char, wanted: &Wanted) -> Answer<Vec<SocketAddr>> {
    // SAFETY: zeros are a valid value of each field of `addrinfo`.
    let mut hints: addrinfo = unsafe { mem::zeroed() };
    hints.ai_family = wanted.family;
    hints.ai_socktype = libc::SOCK_STREAM; // one result per address
    if wanted.flags & c::RAI_PASSIVE != 0 {
        hints.ai_flags |= libc::AI_PASSIVE;
    }
    if wanted.flags & c::RAI_NUMERICHOST != 0 {
        hints.ai_flags |= libc::AI_NUMERICHOST;
    }
    let mut found: *mut addrinfo = ptr::null_mut();
    // A name server may take long to answer. So run the lookup outside the gate, where forks do not wait for it.
    let (error, errno) = outside(|| {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let error = unsafe { libc::getaddrinfo(node, service, &raw const hints, &raw mut found) };
        (error, std::io::Error::last_os_error().raw_os_error())
    });
    if error != 0 {
        let errno = match error {
            libc::EAI_SYSTEM => errno.unwrap_or(libc::EIO),
            libc::EAI_MEMORY => libc::ENOMEM,
            libc::EAI_AGAIN => libc::EAGAIN,
            libc::EAI_NONAME => libc::ENODATA,
            libc::EAI_FAMILY => libc::EAFNOSUPPORT,
            _ => libc::EINVAL,
        };
        return Err(Refused::new(errno, "the host name or the service name is unknown"));
    }
    let mut addresses = Vec::new();
    let mut next = found;
    // SAFETY: the list comes from the C library, and a null pointer ends it.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: the addresses come from the C library. The loop skips addresses of unsupported families.
        addresses.extend(unsafe { address::read(entry.ai_addr) }.ok().flatten());
        next = entry.ai_next;
    }
    // SAFETY: the list came from `getaddrinfo`.
    unsafe { libc::freeaddrinfo(found) };
    Ok(addresses)
}

fn result(wanted: &Wanted, source: Option<SocketAddr>, destination: Option<SocketAddr>) -> Box<Found> {
    // SAFETY: zeros are a valid value of each field of `Found`.
    let mut found: Box<Found> = Box::new(unsafe { mem::zeroed() });
    // SAFETY: `source` and `destination` of `Found` have room for any address.
    let (source_length, destination_length) = unsafe {
        (
            source.map_or(0, |source| address::write(&raw mut found.source, source)),
            destination.map_or(0, |destination| address::write(&raw mut found.destination, destination)),
        )
    };
    let place =
        |length, place: *mut sockaddr_storage| if length == 0 { ptr::null_mut() } else { place.cast::<sockaddr>() };
    let (source_place, destination_place) = (&raw mut found.source, &raw mut found.destination);
    let family =
        if source.or(destination).is_some_and(|address| address.is_ipv6()) { libc::AF_INET6 } else { libc::AF_INET };
    found.c = c::rdma_addrinfo {
        ai_flags: wanted.flags as c_int,
        ai_family: family,
        ai_qp_type: wanted.qp_type,
        ai_port_space: wanted.port_space,
        ai_src_len: source_length,
        ai_dst_len: destination_length,
        ai_src_addr: place(source_length, source_place),
        ai_dst_addr: place(destination_length, destination_place),
        ..c::rdma_addrinfo::default()
    };
    found
}

/// # Safety
///
/// The C contract of `rdma_getaddrinfo`.
unsafe fn resolve(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&c::rdma_addrinfo>,
) -> Answer<*mut c::rdma_addrinfo> {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    let wanted = unsafe { wanted(hints) }?;
    let mut results: Vec<Box<Found>> = if node.is_null() && service.is_null() {
        if wanted.source.or(wanted.destination).is_none() {
            return Err(Refused::invalid(
                "the host name, the service and the addresses are all missing: give at least one of them",
            ));
        }
        vec![result(&wanted, wanted.source, wanted.destination)]
    } else {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let addresses = unsafe { look_up(node, service, &wanted) }?;
        let passive = wanted.flags & c::RAI_PASSIVE != 0;
        let of = |address: SocketAddr| {
            let source = wanted.source.filter(|source| source.is_ipv4() == address.is_ipv4());
            if passive { result(&wanted, Some(address), None) } else { result(&wanted, source, Some(address)) }
        };
        addresses.into_iter().map(of).collect()
    };
    let mut first = ptr::null_mut();
    while let Some(mut found) = results.pop() {
        found.c.ai_next = first;
        first = Box::into_raw(found).cast();
    }
    if first.is_null() {
        Err(Refused::new(libc::ENODATA, "the host name has no IPv4 or IPv6 address"))
    } else {
        Ok(first)
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const c::rdma_addrinfo,
    place: *mut *mut c::rdma_addrinfo,
) -> c_int {
    number("rdma_getaddrinfo", || {
        if place.is_null() {
            return Err(Refused::invalid("the pointer to the result is null"));
        }
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        unsafe { place.write(resolve(node, service, hints.as_ref())?) };
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_freeaddrinfo(mut list: *mut c::rdma_addrinfo) {
    while !list.is_null() {
        // SAFETY: each element came from `rdma_getaddrinfo`.
        let found = unsafe { Box::from_raw(list.cast::<Found>()) };
        list = found.c.ai_next;
    }
}
