use std::net::UdpSocket;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use doorbell_rnic::Path;

use super::*;
use crate::seal::Checker;
use crate::testing::{OwnedRun, batch_of, info, packet, packets_of, path, receive_once, transmit_all};
use crate::{Counted, Faults, Pcap};
use doorbell_verbs_core::LinkCounters;

/// UDP port of these tests. It differs from RoCE's port, since other programs may use that port at the same time.
const PORT: u16 = 24_791;

fn link() -> UdpLink {
    bind(BindRequest { port: PORT, ..BindRequest::default() }).unwrap()
}

fn separate_link() -> UdpLink {
    bind(BindRequest { port: PORT, segmentation: false, ..BindRequest::default() }).unwrap()
}

/// Receives runs until `packets` packets have arrived.
fn receive(link: &mut UdpLink, packets: usize) -> Vec<OwnedRun> {
    let mut runs = Vec::new();
    while runs.iter().map(|run: &OwnedRun| run.packets.len()).sum::<usize>() < packets {
        assert!(link.wait_readable(Duration::from_secs(10)).unwrap(), "packets are missing");
        runs.extend(receive_once(link, 0));
    }
    runs
}

fn sealed(from: &UdpLink, to: &UdpLink, lengths: &[usize]) -> TransmitBatch {
    let mut batch = batch_of(to.local_address(), lengths);
    Sealer::new(from.local_address(), from.port()).seal(&mut batch);
    batch
}

fn check_all(link: &UdpLink, runs: &[OwnedRun]) -> Checker {
    let mut checker = Checker::new(link.local_address(), link.port());
    for run in runs {
        let bytes = run.packets.concat();
        let received = ReceivedRun {
            outer: run.outer,
            source_port: run.source_port,
            bytes: &bytes,
            segment_bytes: run.packets[0].len(),
        };
        for (index, packet) in received.segments().enumerate() {
            assert!(checker.check(&received, index, packet).is_some());
        }
    }
    checker
}

#[test]
fn runs_arrive_as_they_were_sent() {
    let (mut a, mut b) = (link(), link());
    let shapes: [&[usize]; 5] = [&[32], &[32; 64], &[4108; 15], &[64, 64, 64, 12], &[12, 12]];
    for lengths in shapes {
        let batch = sealed(&a, &b, lengths);
        assert_eq!(batch.runs().len(), 1);
        transmit_all(&mut a, 0, &batch);
        let runs = receive(&mut b, lengths.len());
        let expected: Vec<_> = lengths.iter().enumerate().map(|(number, &len)| packet(number, len)).collect();
        assert_eq!(packets_of(&runs, 4), expected);
        assert_eq!(runs.len(), 1, "the loopback interface split a run");
        assert_eq!(runs[0].outer, crate::testing::outer(a.local_address(), b.local_address()));
        assert_eq!(runs[0].source_port, PORT);
        assert_eq!(check_all(&b, &runs).counters().ok_other_identification, 0);
    }
    let sent: usize = shapes.iter().map(|lengths| lengths.len()).sum();
    let (out, back) = (a.counters(), b.counters());
    assert_eq!((out.datagrams_sent, back.datagrams_received), (sent as u64, sent as u64));
    assert_eq!(out.bytes_sent, back.bytes_received);
    assert_eq!(out.send_calls, 5);
}

#[test]
fn many_runs_leave_in_one_call_and_arrive_in_order() {
    let (mut a, mut b) = (link(), link());
    let lengths: Vec<usize> = (0..100).map(|number| 12 + 4 * (number % 7)).collect();
    let batch = sealed(&a, &b, &lengths);
    assert!(batch.runs().len() > sys::MAX_RECEIVE_MESSAGES);
    transmit_all(&mut a, 0, &batch);
    let expected: Vec<_> = lengths.iter().enumerate().map(|(number, &len)| packet(number, len)).collect();
    assert_eq!(packets_of(&receive(&mut b, 100), 4), expected);
    assert!(a.counters().send_calls <= 2);
}

#[test]
fn without_segmentation_each_packet_is_one_datagram() {
    let (mut a, mut b) = (separate_link(), link());
    assert!(!a.identification_follows_run() && b.identification_follows_run());
    let lengths = [vec![32; 64], vec![1036; 9], vec![16]].concat();
    let batch = sealed(&a, &b, &lengths);
    transmit_all(&mut a, 0, &batch);
    let runs = receive(&mut b, lengths.len());
    assert!(runs.iter().all(|run| run.packets.len() == 1));
    let expected: Vec<_> = lengths.iter().enumerate().map(|(number, &len)| packet(number, len)).collect();
    assert_eq!(packets_of(&runs, 4), expected);
    assert_eq!(check_all(&b, &runs).counters().ok_other_identification, 0);
    assert_eq!(a.counters().datagrams_sent, lengths.len() as u64);
}

#[test]
fn refused_segmentation_switches_to_separate_datagrams() {
    let (mut a, mut b) = (link(), link());
    // With SO_NO_CHECK, the kernel refuses segmented sends on the socket.
    sys::set_option(a.as_fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
    for round in 0..2 {
        let lengths = [vec![32; 64], vec![64; 3]].concat();
        let batch = sealed(&a, &b, &lengths);
        assert_eq!(a.identification_follows_run(), round == 0);
        transmit_all(&mut a, 0, &batch);
        assert!(!a.identification_follows_run());
        let runs = receive(&mut b, lengths.len());
        assert_eq!(packets_of(&runs, 4).len(), lengths.len());
        assert_eq!(check_all(&b, &runs).counters().ok_other_identification, 0);
    }
    let counters = a.counters();
    assert_eq!((counters.datagrams_sent, counters.oversize, counters.unreachable), (134, 0, 0));
}

#[test]
fn traffic_class_and_hop_limit_arrive() {
    let (mut a, mut b) = (link(), link());
    let mut batch = TransmitBatch::new(1 << 16, 4);
    let path = Path { traffic_class: 0x6a, hop_limit: 3, ..path(b.local_address()) };
    batch.push(&path, 32, info()).fill(1);
    batch.push(&path, 32, info()).fill(2);
    transmit_all(&mut a, 0, &batch);
    let runs = receive(&mut b, 2);
    assert_eq!((runs[0].outer.traffic_class, runs[0].outer.hop_limit), (0x6a, 3));
    assert_eq!(runs[0].packets.len(), 2);
}

#[test]
fn ipv6_works_the_same() {
    let address = Some(IpAddr::V6(std::net::Ipv6Addr::LOCALHOST));
    let request = BindRequest { address, port: PORT, ..BindRequest::default() };
    // Skip the test on machines without IPv6.
    let Ok(mut link) = bind(request) else { return };
    let mut batch = TransmitBatch::new(1 << 16, 4);
    let path = Path { traffic_class: 0x6a, hop_limit: 3, ..path(link.local_address()) };
    for number in 0..64 {
        batch.push(&path, 32, info()).copy_from_slice(&packet(number, 32));
    }
    Sealer::new(link.local_address(), PORT).seal(&mut batch);
    transmit_all(&mut link, 0, &batch);
    let runs = receive(&mut link, 64);
    assert_eq!((runs.len(), runs[0].outer.traffic_class, runs[0].outer.hop_limit), (1, 0x6a, 3));
    assert_eq!(check_all(&link, &runs).counters().ok, 64);
    assert!(matches!(bind(request), Err(BindError::InUse { .. })));
}

#[test]
fn unsendable_packets_are_dropped_and_counted() {
    for mut a in [link(), separate_link()] {
        let mut b = link();
        let mut batch = TransmitBatch::new(1 << 18, 4);
        // The socket has no permission to broadcast.
        let unreachable = path(Ipv4Addr::BROADCAST.into());
        batch.push(&unreachable, 32, info()).fill(1);
        batch.push(&unreachable, 32, info()).fill(1);
        let wrong_family = path("2001:db8::1".parse().unwrap());
        batch.push(&wrong_family, 32, info()).fill(1);
        // This packet is longer than any datagram.
        batch.push(&path(b.local_address()), 65_600, info()).fill(1);
        batch.push(&path(b.local_address()), 32, info()).fill(9);
        transmit_all(&mut a, 0, &batch);
        let runs = receive(&mut b, 1);
        assert_eq!(packets_of(&runs, 4), [vec![9; 32]]);
        let counters = a.counters();
        assert_eq!((counters.oversize, counters.unreachable), (1, 3));
        // Each wrapper includes the counters of the link that it wraps.
        let local = a.local_address();
        let boxed: Box<dyn Link> = Box::new(a);
        let stacked = Pcap::new(Counted::new(boxed), local, PORT, std::io::sink(), Duration::from_nanos).unwrap();
        let stacked = Faults::new(stacked, "drop=0.5".parse().unwrap());
        let expected = LinkCounters { tx_oversize: 1, tx_unreachable: 3, tx_udp_packets: 1, ..Default::default() };
        assert_eq!(stacked.link_counters(), expected);
        assert_eq!(counters.datagrams_sent, 1);
    }
}

#[test]
fn a_full_receive_buffer_shows_as_overflows() {
    let mut a = link();
    let request =
        BindRequest { port: PORT, receive_buffer_bytes: Some(212_992), segmentation: false, ..BindRequest::default() };
    let mut b = bind(request).unwrap();
    assert_eq!(b.receive_buffer_bytes(), 212_992);
    for _ in 0..40 {
        let batch = sealed(&a, &b, &[1000; 64]);
        transmit_all(&mut a, 0, &batch);
    }
    let mut received = 0;
    while b.wait_readable(Duration::ZERO).unwrap() {
        received += receive_once(&mut b, 0).iter().map(|run| run.packets.len()).sum::<usize>();
    }
    assert!(received < 40 * 64);
    // Send one more message, with which the kernel reports the overflow.
    let batch = sealed(&a, &b, &[12]);
    transmit_all(&mut a, 0, &batch);
    receive(&mut b, 1);
    assert!(b.counters().receive_queue_overflows > 0);
    assert_eq!(b.link_counters().rx_overflow, b.counters().receive_queue_overflows);
}

#[test]
fn links_of_one_process_get_addresses_of_their_own() {
    let links: Vec<UdpLink> = (0..3).map(|_| link()).collect();
    let mut addresses: Vec<_> = links.iter().map(UdpLink::local_address).collect();
    assert!(addresses.iter().all(|address| address.is_loopback()));
    addresses.dedup();
    assert_eq!(addresses.len(), 3);

    let taken = BindRequest { address: Some(addresses[0]), port: PORT, ..BindRequest::default() };
    let error = bind(taken).unwrap_err();
    assert!(matches!(error, BindError::InUse { .. }), "{error}");
    assert!(error.to_string().contains(&addresses[0].to_string()));
}

#[test]
fn a_port_held_on_all_addresses_is_an_error_of_its_own() {
    let holder = UdpSocket::bind("0.0.0.0:0").unwrap();
    let port = holder.local_addr().unwrap().port();
    for address in [None, Some(Ipv4Addr::new(127, 0, 0, 9).into())] {
        let error = bind(BindRequest { address, port, ..BindRequest::default() }).unwrap_err();
        assert!(matches!(error, BindError::PortHeld { port: held } if held == port), "{error}");
        assert!(error.to_string().contains("--udp-port"));
    }
    drop(holder);
}

#[test]
fn addresses_unsuitable_for_a_device_are_refused() {
    let bind_to = |address: &str, port| {
        let address = Some(address.parse().unwrap());
        bind(BindRequest { address, port, ..BindRequest::default() }).unwrap_err()
    };
    let foreign = bind_to("192.0.2.7", PORT);
    assert!(matches!(foreign, BindError::NotOfThisMachine { .. }), "{foreign}");
    assert!(foreign.to_string().contains("127.0.0.1"));
    for address in ["0.0.0.0", "::", "224.0.0.1", "255.255.255.255"] {
        assert!(matches!(bind_to(address, PORT), BindError::NotUnicast { .. }), "{address}");
    }
    assert!(matches!(bind_to("127.0.0.1", 0), BindError::PortZero));
}

#[test]
fn members_of_a_group_receive_its_packets() {
    // The group's address contains the process ID, so that tests that run at the same time use different groups.
    let number = std::process::id().to_be_bytes();
    let group = IpAddr::V4(Ipv4Addr::new(239, number[1], number[2], number[3]));
    let mut links = [link(), link(), link()];
    let readable = [links[0].join(group).unwrap(), links[1].join(group).unwrap()];
    links[1].join(group).expect("a second join has no effect");
    let mut batch = batch_of(group, &[32; 64]);
    Sealer::new(links[0].local_address(), PORT).seal(&mut batch);
    transmit_all(&mut links[0], 0, &batch);
    for (link, readable) in links.iter_mut().zip(&readable) {
        let mut packets = 0;
        while packets < 64 {
            assert!(sys::wait_readable(readable.as_fd(), Duration::from_secs(10)).unwrap(), "packets are missing");
            let runs = receive_once(link, 0);
            assert!(runs.iter().all(|run| run.outer.dst == group));
            check_all(link, &runs);
            packets += runs.iter().map(|run| run.packets.len()).sum::<usize>();
        }
        assert_eq!(packets, 64);
    }
    assert!(receive_once(&mut links[2], 0).is_empty(), "a link that has not joined received a packet");
    links[1].leave(group);
    transmit_all(&mut links[0], 0, &batch);
    assert!(sys::wait_readable(readable[0].as_fd(), Duration::from_secs(10)).unwrap());
    assert!(receive_once(&mut links[1], 0).is_empty(), "a link that has left received a packet");
    for wrong in ["127.0.0.1", "ff02::1"] {
        let refused = links[0].join(wrong.parse().unwrap()).expect_err(wrong);
        assert_eq!(refused.kind(), io::ErrorKind::Unsupported);
    }
}
