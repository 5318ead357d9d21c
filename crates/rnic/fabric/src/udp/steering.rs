//! One socket for each engine of a device, all with the address of the device. The kernel passes each datagram to the
//! socket of the engine that its destination queue pair number names.
//!
//! A classic BPF program chooses the socket. It loads the first byte of the destination QPN, whose upper four bits
//! name the engine. Engine 0 gets datagrams that are too short, and those that name no engine of the device. The kernel
//! may merge datagrams of several engines into one message (UDP_GRO), so an engine may receive packets of another one.

use std::os::fd::AsFd;

use super::address::{BindError, BindRequest, bind, bind_beside};
use super::{UdpLink, sys};

/// Place of the first byte of the destination QPN in a datagram. Opcode, flags, partition key and a reserved byte
/// precede it. The upper four bits of the byte name the engine.
pub(crate) const ENGINE_BYTE_AT: usize = 5;

/// Returns the program that chooses one of `engines` sockets.
fn program(engines: u32) -> [libc::sock_filter; 5] {
    let step = |code: u32, jt, k| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    [
        // A datagram that is too short yields 0.
        step(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, ENGINE_BYTE_AT as u32),
        step(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, 0, 4),
        step(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 1, engines),
        step(libc::BPF_RET | libc::BPF_A, 0, 0),
        step(libc::BPF_RET | libc::BPF_K, 0, 0),
    ]
}

/// Binds the links of a device with `engines` engines, in the order of the engines.
///
/// The first socket is bound as [`bind`] does, so it fails if another device has the address. Only then do its options
/// allow further sockets. Other devices bind their first socket without the option, so they cannot join.
///
/// # Errors
///
/// As [`bind`]. Or the kernel cannot choose sockets by a program.
pub fn bind_engines(request: BindRequest, engines: usize) -> Result<Vec<UdpLink>, BindError> {
    let first = bind(request)?;
    if engines <= 1 {
        return Ok(vec![first]);
    }
    let local = first.local_socket_address();
    let failed = |what| move |source| BindError::System { what, address: local.ip(), port: local.port(), source };
    sys::set_option(first.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)
        .map_err(failed("let several engines share a UDP socket's address"))?;
    let mut links = vec![first];
    for _ in 1..engines {
        links.push(bind_beside(local, &request)?);
    }
    sys::steer(links[0].as_fd(), &mut program(engines as u32))
        .map_err(failed("distribute the datagrams of a UDP socket to several engines"))?;
    Ok(links)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
    use std::time::Duration;

    use super::*;
    use crate::link::{Link as _, ReceivedRun};

    /// Returns the indices of the links that have received a datagram.
    fn receivers(links: &mut [UdpLink]) -> Vec<usize> {
        let mut found = Vec::new();
        for (index, link) in links.iter_mut().enumerate() {
            let mut packets = 0;
            link.receive(0, &mut |run: ReceivedRun<'_>| packets += run.segments().len()).unwrap();
            found.extend(std::iter::repeat_n(index, packets));
        }
        found
    }

    fn each_engine_gets_its_packets(address: IpAddr, port: u16) {
        let request = BindRequest { address: Some(address), port, ..BindRequest::default() };
        let mut links = bind_engines(request, 3).unwrap();
        assert!(matches!(bind(request), Err(BindError::InUse { .. })), "another device took the same address");
        assert!(matches!(bind_engines(request, 2), Err(BindError::InUse { .. })));
        let sender = UdpSocket::bind((address, 0)).unwrap();
        let expected = [(0x00, 0), (0x1f, 1), (0x20, 2), (0x30, 0), (0xff, 0)];
        for (first_byte, engine) in expected {
            let datagram = [4, 0, 0xff, 0xff, 0, first_byte, 0x12, 0x34, 0, 0, 0, 0];
            sender.send_to(&datagram, (address, port)).unwrap();
            assert!(links[engine].wait_readable(Duration::from_secs(10)).unwrap(), "{first_byte:#x}");
            assert_eq!(receivers(&mut links), [engine], "{first_byte:#x}");
        }
        sender.send_to(&[1, 2], (address, port)).unwrap();
        assert!(links[0].wait_readable(Duration::from_secs(10)).unwrap());
        assert_eq!(receivers(&mut links), [0], "a short datagram");
        drop(links);
        bind(request).unwrap();
    }

    #[test]
    fn each_engine_gets_the_packets_to_its_queue_pairs() {
        each_engine_gets_its_packets(Ipv4Addr::new(127, 93, 0, 1).into(), 4791);
    }

    #[test]
    fn each_engine_gets_its_packets_over_ipv6() {
        each_engine_gets_its_packets(Ipv6Addr::LOCALHOST.into(), 4793);
    }
}
