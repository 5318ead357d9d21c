//! Binding of ids, and resolution of their destinations.

use std::ffi::c_int;
use std::net::SocketAddr;

use doorbell_ibverbs_sys as c;
use libc::sockaddr;

use super::channel::Detail;
use super::id::{self, BEGUN, Id};
use super::line::Phase;
use super::{address, device};
use crate::objects::answer::{Answer, Refused, number};
use crate::process::fork::say;

/// Binds an id to an address and a port. With an unspecified address, the id is not bound to the device yet.
pub(super) fn bind(own: &Id, wanted: SocketAddr) -> Answer<()> {
    let bound = own.line.bind(wanted)?;
    own.show_addresses(Some(bound), None);
    if bound.ip().is_unspecified() { Ok(()) } else { own.bind_device(Some(bound)) }
}

/// Returns `address` if its IP address is specified. Otherwise returns the IP address of `from` with the port of
/// `address`.
fn placed(address: SocketAddr, mut from: SocketAddr) -> SocketAddr {
    if !address.ip().is_unspecified() {
        return address;
    }
    from.set_port(address.port());
    from
}

/// Resolves the local and the remote address of an id for a destination. Binds the id unless it is already bound.
///
/// As in the kernel, the source address decides about the device: the address to which the id is bound, or `source`, or
/// the address that the kernel would use.
fn way(own: &Id, source: Option<SocketAddr>, destination: SocketAddr) -> Answer<()> {
    let failed = |error: std::io::Error| {
        let errno = error.raw_os_error().unwrap_or(libc::ENETUNREACH);
        Refused::new(errno, format!("no route to {}: {error}", destination.ip()))
    };
    let is_group = destination.ip().is_multicast();
    let routed = if is_group { None } else { Some(address::source_for(destination).map_err(failed)?) };
    let given = own.line.state().local.or(source).filter(|given| !given.ip().is_unspecified());
    own.bind_device(given.or(routed))?;
    let rnic = device::context_of(own)?.device.attributes.address;
    let from = routed.unwrap_or(SocketAddr::new(rnic, 0)); // an id joins groups at the address of the device
    if !own.line.is_bound() {
        bind(own, source.map_or(from, |source| placed(source, from)))?;
    }
    // As in the kernel, an unspecified destination address means this machine.
    let destination = placed(destination, from);
    let here = from.ip().is_loopback() || address::is_here(destination);
    if rnic.is_loopback() && !here {
        let why = format!(
            "the software RNIC has the address {rnic} and cannot reach {}: choose another address with DOORBELL_BIND \
             (`doorbell run --bind`)",
            destination.ip()
        );
        // The user must change the settings, and no errno tells the user so. Therefore print the reason.
        say(&format!("doorbell: {why}"));
        return Err(Refused::new(libc::EHOSTUNREACH, why));
    }
    let mut state = own.line.state();
    state.local = state.local.map(|local| placed(local, from));
    state.remote = Some(destination);
    state.is_far = !here;
    Ok(())
}

/// # Safety
///
/// The C contract of `rdma_resolve_addr`.
pub(super) unsafe fn resolve_address(
    id: *mut c::rdma_cm_id,
    source: *const sockaddr,
    destination: *const sockaddr,
) -> Answer<()> {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    let (own, source, destination) = unsafe { (id::own(id)?, address::read(source)?, address::read(destination)?) };
    let destination = destination.ok_or_else(|| Refused::invalid("the destination address is missing"))?;
    let local = own.line.state().local;
    if own.line.state().phase != Phase::Idle {
        return Err(Refused::invalid("the id is already resolved, connected or listening"));
    }
    if source.or(local).is_some_and(|source| source.is_ipv4() != destination.is_ipv4()) {
        return Err(Refused::invalid(format!(
            "destination {} is not of the address family of the source: both must be IPv4 or both IPv6",
            destination.ip()
        )));
    }
    let result = way(own, source, destination);
    let (local, remote) = {
        let state = own.line.state();
        (state.local, state.remote)
    };
    own.show_addresses(local, remote);
    let mut state = own.line.state();
    match result {
        Ok(()) => {
            state.phase = Phase::AddressResolved;
            state.tell(c::RDMA_CM_EVENT_ADDR_RESOLVED, 0, Detail::Nothing);
        }
        Err(refused) => {
            refused.tell("rdma_resolve_addr");
            state.tell(c::RDMA_CM_EVENT_ADDR_ERROR, -refused.errno, Detail::Nothing);
        }
    }
    Ok(())
}

/// # Safety
///
/// The C contract of `rdma_resolve_route`.
pub(super) unsafe fn resolve_route(id: *mut c::rdma_cm_id) -> Answer<()> {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    let own = unsafe { id::own(id) }?;
    {
        let mut state = own.line.state();
        if state.phase != Phase::AddressResolved {
            return Err(Refused::invalid("the id has no resolved address: call rdma_resolve_addr first"));
        }
        state.phase = Phase::RouteResolved;
    }
    own.show_route()?;
    own.line.state().tell(c::RDMA_CM_EVENT_ROUTE_RESOLVED, 0, Detail::Nothing);
    Ok(())
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_bind_addr(id: *mut c::rdma_cm_id, wanted: *mut sockaddr) -> c_int {
    number("rdma_bind_addr", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let (own, wanted) = unsafe { (id::own(id)?, address::read(wanted)?) };
        bind(own, wanted.ok_or_else(|| Refused::new(libc::EAFNOSUPPORT, "the address to bind to is missing"))?)?;
        Ok(0)
    })
}

/// Resolves an address. The call knows the result at once, so the timeout has no effect.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn rdma_resolve_addr(
    id: *mut c::rdma_cm_id,
    source: *mut sockaddr,
    destination: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    unsafe {
        id::synchronously("rdma_resolve_addr", id, move || resolve_address(id, source, destination).map(|()| BEGUN))
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn rdma_resolve_route(id: *mut c::rdma_cm_id, _timeout_ms: c_int) -> c_int {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    unsafe { id::synchronously("rdma_resolve_route", id, move || resolve_route(id).map(|()| BEGUN)) }
}

/// Returns the port of an address in network byte order, or 0 if the address is missing.
fn port(address: Option<SocketAddr>) -> c::__be16 {
    address.map_or(0, |address| address.port().to_be())
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_get_src_port(id: *mut c::rdma_cm_id) -> c::__be16 {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    unsafe { id::own(id) }.map_or(0, |own| port(own.line.state().local))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_get_dst_port(id: *mut c::rdma_cm_id) -> c::__be16 {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    unsafe { id::own(id) }.map_or(0, |own| port(own.line.state().remote))
}
