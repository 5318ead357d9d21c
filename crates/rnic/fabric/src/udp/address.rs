//! Addresses that links bind to, and the errors of binding.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::AsFd;

use doorbell_wire::ROCE_UDP_PORT;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use thiserror::Error;

use super::{DEFAULT_HOP_LIMIT, DEFAULT_TRAFFIC_CLASS, UdpLink, interface, sys};
use crate::own_process::{Opening, OwnProcess};

/// Default size of the receive buffer in bytes, as `getsockopt` shows it. The kernel doubles the requested size to make
/// room for its own data.
pub const DEFAULT_RECEIVE_BUFFER_BYTES: usize = 16 << 20;

/// Requested size of the send buffer in bytes, as `getsockopt` shows it.
const SEND_BUFFER_BYTES: usize = 4 << 20;

/// Maximum number of loopback addresses that [`bind`] tries.
const LOOPBACK_TRIES: usize = 65_536;

/// Loopback addresses that users hardly ever request. If the port is taken on each of these addresses, the reason must
/// be a socket that holds the port on all addresses (0.0.0.0).
const UNLIKELY_ADDRESSES: [Ipv4Addr; 3] =
    [Ipv4Addr::new(127, 251, 139, 83), Ipv4Addr::new(127, 241, 67, 199), Ipv4Addr::new(127, 211, 179, 31)];

/// Address and options of a link to bind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindRequest {
    /// The address; `None` means the first free loopback address.
    pub address: Option<IpAddr>,
    /// The loopback address behind which the search begins if `address` is `None`. `None` means the first of all.
    pub search_after: Option<Ipv4Addr>,
    /// The UDP port of the device and its peers.
    pub port: u16,
    /// The size of the receive buffer in bytes, as `getsockopt` should show it. `None` means
    /// [`DEFAULT_RECEIVE_BUFFER_BYTES`]. The kernel may grant less: [`UdpLink::receive_buffer_bytes`] returns the
    /// granted size.
    pub receive_buffer_bytes: Option<usize>,
    /// Whether to let the kernel split runs into datagrams. Otherwise, and on kernels without segmentation, each packet
    /// is sent as a separate datagram.
    pub segmentation: bool,
}

impl Default for BindRequest {
    fn default() -> Self {
        Self { address: None, search_after: None, port: ROCE_UDP_PORT, receive_buffer_bytes: None, segmentation: true }
    }
}

/// Reason why a link could not be bound.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BindError {
    /// Another socket has this address and port.
    #[error(
        "UDP port {port} of {address} is taken by another socket; use another address (--bind, \
         DOORBELL_BIND), or another port on both ends (--udp-port, DOORBELL_PORT)"
    )]
    InUse {
        /// The address.
        address: IpAddr,
        /// The port.
        port: u16,
    },
    /// Another socket has the port on all addresses.
    #[error(
        "UDP port {port} is taken on all addresses of this network namespace, for example by the \
         kernel's rdma_rxe; use another port on both ends (--udp-port, DOORBELL_PORT)"
    )]
    PortHeld {
        /// The port.
        port: u16,
    },
    /// All tried loopback addresses are taken.
    #[error(
        "UDP port {port} is taken on all {tried} loopback addresses from 127.0.0.1 on; use another \
         address (--bind, DOORBELL_BIND), or another port on both ends (--udp-port, DOORBELL_PORT)"
    )]
    LoopbackExhausted {
        /// The port.
        port: u16,
        /// Number of addresses that were tried.
        tried: usize,
    },
    /// The address belongs to no interface.
    #[error("{address} is not an address of this machine: {known}")]
    NotOfThisMachine {
        /// The address.
        address: IpAddr,
        /// A sentence that lists this machine's addresses.
        known: String,
    },
    /// The address is not a unicast address.
    #[error(
        "the address {address} must be a unicast address of this machine, since the device's GID \
         is made from the address"
    )]
    NotUnicast {
        /// The address.
        address: IpAddr,
    },
    /// The requested port is 0.
    #[error("the UDP port is 0, but must be from 1 to 65535 and the same on both ends; the default is 4791")]
    PortZero,
    /// The operating system refused for another reason.
    #[error("cannot {what} for {address}, UDP port {port}: {source}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The address.
        address: IpAddr,
        /// The port.
        port: u16,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// Binds a link.
///
/// The socket has neither SO_REUSEADDR nor SO_REUSEPORT, because two devices with the same address would receive each
/// other's packets. [`bind_engines`](super::bind_engines) binds several sockets of one device.
///
/// # Errors
///
/// The port is 0 or held by another socket, or the address is not a unicast address of this machine. Further reasons:
/// no loopback address is free, or the operating system refuses the socket or one of its options.
pub fn bind(request: BindRequest) -> Result<UdpLink, BindError> {
    let port = request.port;
    if port == 0 {
        return Err(BindError::PortZero);
    }
    let socket = match request.address {
        Some(address) => bind_to(address.to_canonical(), port)?,
        None => bind_to_free_loopback(port, request.search_after)?,
    };
    equip(socket, &request)
}

/// Binds a further link of the device with the address `local`, whose socket allows that.
pub(super) fn bind_beside(local: SocketAddr, request: &BindRequest) -> Result<UdpLink, BindError> {
    let (address, port) = (local.ip(), local.port());
    let bound = open(local, true);
    let bound =
        bound.map_err(|source| BindError::System { what: "bind a further UDP socket", address, port, source })?;
    equip(bound, request)
}

fn bind_to(address: IpAddr, port: u16) -> Result<Bound, BindError> {
    let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    if address.is_unspecified() || address.is_multicast() || broadcast {
        return Err(BindError::NotUnicast { address });
    }
    try_bind(address, port).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse if port_is_held(address, port) => BindError::PortHeld { port },
        io::ErrorKind::AddrInUse => BindError::InUse { address, port },
        io::ErrorKind::AddrNotAvailable => BindError::NotOfThisMachine { address, known: interface::list_addresses() },
        _ => BindError::System { what: "bind a UDP socket", address, port, source },
    })
}

fn bind_to_free_loopback(port: u16, search_after: Option<Ipv4Addr>) -> Result<Bound, BindError> {
    let mut tried = 0;
    let candidates = loopback_addresses().filter(|&address| Some(address) > search_after);
    for address in candidates.take(LOOPBACK_TRIES) {
        match try_bind(address.into(), port) {
            Ok(bound) => return Ok(bound),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                if tried == 0 && port_is_held(address.into(), port) {
                    return Err(BindError::PortHeld { port });
                }
                tried += 1;
            }
            Err(source) => {
                let address = address.into();
                return Err(BindError::System { what: "bind a UDP socket", address, port, source });
            }
        }
    }
    Err(BindError::LoopbackExhausted { port, tried })
}

/// Returns loopback addresses in order. Skips addresses that end in 0 or 255, since they look like network or broadcast
/// addresses.
fn loopback_addresses() -> impl Iterator<Item = Ipv4Addr> {
    let first = u32::from(Ipv4Addr::LOCALHOST);
    let last = u32::from(Ipv4Addr::new(127, 255, 255, 254));
    (first..=last).filter(|bits| !matches!(bits & 0xff, 0 | 0xff)).map(Ipv4Addr::from)
}

/// A bound socket and its address.
struct Bound {
    socket: OwnProcess,
    local: SocketAddr,
}

fn try_bind(address: IpAddr, port: u16) -> io::Result<Bound> {
    let local = match address {
        IpAddr::V4(_) => SocketAddr::new(address, port),
        IpAddr::V6(v6) => {
            let scope = interface::scope_of(address).unwrap_or_default();
            SocketAddrV6::new(v6, port, 0, scope).into()
        }
    };
    open(local, false)
}

/// Opens a socket and binds it. If `shares_address`, other sockets of this user may have the address too, provided that
/// all of them were opened so.
fn open(local: SocketAddr, shares_address: bool) -> io::Result<Bound> {
    let opening = Opening::begin();
    let socket = Socket::new(Domain::for_address(local), Type::DGRAM, Some(Protocol::UDP))?;
    if local.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    if shares_address {
        socket.set_reuse_port(true)?;
    }
    socket.bind(&local.into())?;
    Ok(Bound { socket: OwnProcess::new(socket.into(), &opening), local })
}

/// Returns whether a socket seems to hold the port on all addresses, and not only on `address`.
fn port_is_held(address: IpAddr, port: u16) -> bool {
    let taken = |address: IpAddr| matches!(try_bind(address, port), Err(e) if e.kind() == io::ErrorKind::AddrInUse);
    match address {
        IpAddr::V4(_) => UNLIKELY_ADDRESSES.iter().all(|&unlikely| taken(unlikely.into())),
        // IPv6 has only one loopback address. If the port is taken on that address, either one device has the address,
        // or a socket holds the port on all addresses. The error about a single address is correct in both cases.
        IpAddr::V6(v6) => v6 != Ipv6Addr::LOCALHOST && taken(Ipv6Addr::LOCALHOST.into()),
    }
}

/// Sets all options of a bound socket.
fn equip(bound: Bound, request: &BindRequest) -> Result<UdpLink, BindError> {
    let Bound { socket, local } = bound;
    let failed = |what| move |source| BindError::System { what, address: local.ip(), port: local.port(), source };
    let receive_buffer_bytes = request.receive_buffer_bytes.unwrap_or(DEFAULT_RECEIVE_BUFFER_BYTES);
    let options = SockRef::from(&socket);
    let coalesces =
        equip_receiver(&options, local.is_ipv6(), receive_buffer_bytes).map_err(failed("set the socket's options"))?;
    set_buffer(&options, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, SEND_BUFFER_BYTES)
        .map_err(failed("set the send buffer"))?;
    let granted = options.recv_buffer_size().map_err(failed("read the receive buffer back"))?;
    if granted < receive_buffer_bytes {
        tracing::info!(
            "the receive buffer of {local} is {granted} bytes, but {receive_buffer_bytes} bytes were \
             requested; the sysctl net.core.rmem_max limits it"
        );
    }

    // Test once whether the kernel knows the option. A kernel without the option would send a whole run as one
    // datagram.
    let segments = sys::set_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, 0);
    let segmentation = request.segmentation && segments.is_ok();
    if let Err(error) = segments.and(coalesces) {
        tracing::warn!(
            "the kernel cannot send or receive several datagrams of {local} as one message ({error}): small packets \
             are slower by an order of magnitude"
        );
    }
    Ok(UdpLink::new(socket, local, granted, segmentation))
}

/// Sets the options for receiving. The inner result states whether the kernel combines received datagrams.
pub(super) fn equip_receiver(socket: &Socket, ipv6: bool, receive_buffer_bytes: usize) -> io::Result<io::Result<()>> {
    socket.set_nonblocking(true)?;
    set_ip_options(socket, ipv6)?;
    // The option only provides a counter, so a kernel without the option is no error.
    let _ = sys::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1);
    set_buffer(socket, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, receive_buffer_bytes)?;
    Ok(sys::set_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1))
}

/// Sets the options of IP: no fragmentation, the default traffic class and hop limit, and reports of both fields for
/// received packets.
fn set_ip_options(socket: &Socket, ipv6: bool) -> io::Result<()> {
    let hop_limit = i32::from(DEFAULT_HOP_LIMIT);
    let traffic_class = i32::from(DEFAULT_TRAFFIC_CLASS);
    let (level, options) = if ipv6 {
        let options = [
            (libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO),
            (libc::IPV6_UNICAST_HOPS, hop_limit),
            (libc::IPV6_MULTICAST_HOPS, hop_limit),
            (libc::IPV6_TCLASS, traffic_class),
            (libc::IPV6_RECVTCLASS, 1),
            (libc::IPV6_RECVHOPLIMIT, 1),
        ];
        (libc::IPPROTO_IPV6, options)
    } else {
        let options = [
            (libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO),
            (libc::IP_TTL, hop_limit),
            (libc::IP_MULTICAST_TTL, hop_limit),
            (libc::IP_TOS, traffic_class),
            (libc::IP_RECVTOS, 1),
            (libc::IP_RECVTTL, 1),
        ];
        (libc::IPPROTO_IP, options)
    };
    options.iter().try_for_each(|&(name, value)| sys::set_option(socket.as_fd(), level, name, value))
}

/// Requests a buffer that `getsockopt` shows as `shown` bytes, which is twice the value passed to the kernel. First
/// tries `forced`, an option that requires a privilege and ignores the administrator's limit. Then tries `plain`, an
/// option that obeys the limit.
fn set_buffer(socket: &Socket, forced: i32, plain: i32, shown: usize) -> io::Result<()> {
    let value = i32::try_from(shown / 2).unwrap_or(i32::MAX / 2);
    let fd = socket.as_fd();
    sys::set_option(fd, libc::SOL_SOCKET, forced, value)
        .or_else(|_| sys::set_option(fd, libc::SOL_SOCKET, plain, value))
}
