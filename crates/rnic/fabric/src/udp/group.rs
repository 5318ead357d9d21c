//! Multicast groups. Each group has a separate socket, since the device's socket is bound to the device's unicast
//! address.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};

use super::address::equip_receiver;
use crate::own_process::{Opening, OwnProcess};

/// A group that a link has joined.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) address: Ipv4Addr,
    pub(super) socket: OwnProcess,
    /// Number of overflows that the kernel reported with the last received message.
    pub(super) overflows_seen: u32,
}

impl Group {
    /// Joins a group on the interface that has the address `local`.
    pub(super) fn join(address: Ipv4Addr, local: Ipv4Addr, port: u16, receive_buffer_bytes: usize) -> io::Result<Self> {
        let opening = Opening::begin();
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        // Allow several sockets of this machine to join the group. Each of them receives a copy of each datagram.
        socket.set_reuse_address(true)?;
        // Receive only packets to groups that this socket has joined, not to groups of other sockets of this machine.
        socket.set_multicast_all_v4(false)?;
        // The inner result is unused: a group also works if the kernel does not combine datagrams.
        let _ = equip_receiver(&socket, false, receive_buffer_bytes)?;
        socket.bind(&SocketAddr::new(address.into(), port).into())?;
        socket.join_multicast_v4(&address, &local)?;
        Ok(Self { address, socket: OwnProcess::new(socket.into(), &opening), overflows_seen: 0 })
    }

    /// Returns a descriptor that becomes readable when a packet arrives for the group.
    pub(super) fn readable(&self) -> io::Result<OwnProcess> {
        self.socket.duplicate()
    }
}

/// Returns the group and the device's address as IPv4 addresses. Fails unless both are IPv4 and the group is multicast.
pub(super) fn joinable(group: IpAddr, local: IpAddr) -> io::Result<(Ipv4Addr, Ipv4Addr)> {
    match (group, local) {
        (IpAddr::V4(group), IpAddr::V4(local)) if group.is_multicast() => Ok((group, local)),
        _ => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("a device at {local} cannot join {group}: both must be IPv4, and the group must be in 224.0.0.0/4"),
        )),
    }
}
