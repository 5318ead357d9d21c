mod rings;

use std::time::{Duration, Instant};

use doorbell_wire::{Check, ICRC_LEN};

use super::*;
use crate::link::{ReceivedRun, SharedRun};
use crate::seal::{Checker, Sealer};
use crate::shm::routes::OTHERS_WAIT_NS;
use crate::testing::{OwnedRun, batch_of, info, packet, packets_of, path, receive_once};
use crate::{BindRequest, bind};

/// UDP port of these tests. It differs from RoCE's port, since other programs may use that port at the same time.
pub(in crate::shm) const PORT: u16 = 24_793;

pub(in crate::shm) fn link_at(address: Option<IpAddr>, choice: LinkChoice) -> SharedMemoryLink {
    let udp = bind(BindRequest { address, port: PORT, ..BindRequest::default() }).unwrap();
    only(SharedMemoryLink::start(vec![udp], choice).unwrap())
}

/// Returns the link of a device with one engine.
fn only(mut links: Vec<SharedMemoryLink>) -> SharedMemoryLink {
    assert_eq!(links.len(), 1);
    links.swap_remove(0)
}

pub(in crate::shm) fn link() -> SharedMemoryLink {
    link_at(None, LinkChoice::Auto)
}

/// Returns the nanoseconds since the first call.
pub(in crate::shm) fn now_ns() -> u64 {
    static BEGUN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    BEGUN.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Waits until `holds` returns true. Panics after 60 seconds.
pub(in crate::shm) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "timed out waiting until {what}");
        std::thread::yield_now();
    }
}

/// Sink that accepts runs from rings without an ICRC, as a driver's sink does.
#[derive(Default)]
pub(in crate::shm) struct Plain(pub(in crate::shm) Vec<Vec<u8>>);

impl Sink for Plain {
    fn receive(&mut self, run: ReceivedRun<'_>) {
        panic!("{} bytes came over UDP", run.bytes.len());
    }

    fn receive_shared(&mut self, run: &SharedRun<'_>) -> bool {
        self.0.extend(run.packets().map(|packet| {
            let mut bytes = vec![0; packet.bytes().len()];
            packet.bytes().copy_to(&mut bytes);
            bytes
        }));
        true
    }
}

/// Sends packets of the given lengths from one link to another.
pub(in crate::shm) fn send(from: &mut SharedMemoryLink, to: &mut SharedMemoryLink, lengths: &[usize]) {
    let mut batch = batch_of(to.udp.local_address(), lengths);
    Sealer::new(from.udp.local_address(), PORT).seal(&mut batch);
    let mut next = 0;
    eventually("the batch leaves", || {
        let nothing = &mut |_: ReceivedRun<'_>| panic!("a packet came in the other direction");
        from.receive(now_ns(), nothing).unwrap();
        from.transmit(now_ns(), &batch, &mut next).unwrap();
        next == batch.runs().len()
    });
}

/// Returns two links that share memory with each other.
pub(in crate::shm) fn acquainted() -> (SharedMemoryLink, SharedMemoryLink) {
    acquainted_with(link())
}

fn acquainted_with(mut b: SharedMemoryLink) -> (SharedMemoryLink, SharedMemoryLink) {
    let mut a = link();
    send(&mut a, &mut b, &[12]);
    let mut seen = Plain::default();
    eventually("the first packet arrives", || b.receive(now_ns(), &mut seen).unwrap() > 0);
    assert_eq!(seen.0, [packet(0, 12)]);
    assert_eq!((a.counters().packets_sent, b.counters().packets_received), (1, 1));
    (a, b)
}

#[test]
fn packets_of_all_lengths_go_through_memory_without_an_icrc() {
    let (mut a, mut b) = acquainted();
    // Send more packets than the ring holds, in both directions.
    for round in 0..200 {
        let lengths: Vec<usize> = [vec![32; 64], vec![4108; 15], vec![12 + 4 * round]].concat();
        for direction in 0..2 {
            let (from, to) = if direction == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
            assert!(!from.seals(&path(to.udp.local_address())));
            send(from, to, &lengths);
            let mut seen = Plain::default();
            eventually("all packets arrive", || {
                to.receive(now_ns(), &mut seen).unwrap();
                seen.0.len() == lengths.len()
            });
            let expected: Vec<_> = lengths.iter().enumerate().map(|(number, &len)| packet(number, len)).collect();
            assert_eq!(seen.0, expected);
        }
    }
    assert_eq!((a.counters().full, b.counters().full), (0, 0));
}

#[test]
fn a_sink_that_wants_icrcs_gets_socket_icrcs() {
    let (mut a, mut b) = acquainted();
    let lengths = [64, 64, 64, 20];
    send(&mut a, &mut b, &lengths);
    let runs = receive_once(&mut b, now_ns());
    assert_eq!(runs.len(), 1);
    let expected: Vec<_> = lengths.iter().enumerate().map(|(number, &len)| packet(number, len)).collect();
    assert_eq!(packets_of(&runs, ICRC_LEN), expected);
    let OwnedRun { outer, source_port, packets } = &runs[0];
    let bytes = packets.concat();
    let run = ReceivedRun { outer: *outer, source_port: *source_port, bytes: &bytes, segment_bytes: 68 };
    let mut checker = Checker::new(b.udp.local_address(), PORT);
    for (index, packet) in run.segments().enumerate() {
        let found = checker.find(&run, index, packet);
        assert_eq!(found, Check::Valid { identification: index as u16, dont_fragment: true });
    }
}

#[test]
fn a_device_with_a_taken_name_invites_others_and_retries() {
    // This test binds the address twice, so no other test may use it.
    let address: IpAddr = [127, 77, 42, 1].into();
    let open = || bind(BindRequest { address: Some(address), port: PORT, ..BindRequest::default() }).unwrap();
    let udp = open();
    let squatter = crate::shm::meet::silent_host(udp.local_socket_address());
    let mut a = only(SharedMemoryLink::start(vec![udp], LinkChoice::Auto).unwrap());
    assert_eq!(a.link_counters().shared_memory_refused, 1);
    let mut b = link();
    send(&mut a, &mut b, &[12]);
    assert_eq!(a.counters().packets_sent, 1, "a device that may only invite was not reached through memory");
    drop(squatter);
    let mut c = link();
    let mut next = 0;
    let mut batch = batch_of(address, &[32]);
    Sealer::new(c.udp.local_address(), PORT).seal(&mut batch);
    eventually("the device has its name and shares memory", || {
        next %= batch.runs().len();
        c.transmit(now_ns(), &batch, &mut next).unwrap();
        let nothing = &mut |_: ReceivedRun<'_>| {};
        a.receive(now_ns(), nothing).unwrap();
        c.receive(now_ns(), nothing).unwrap();
        c.counters().packets_sent > 0
    });
    drop(a);
    let udp = open();
    let squatter = crate::shm::meet::silent_host(udp.local_socket_address());
    let error = SharedMemoryLink::start(vec![udp], LinkChoice::Shm).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    drop(squatter);
    link_at(Some(address), LinkChoice::Shm);
}

#[test]
fn a_device_skips_an_address_whose_name_outlived_its_socket() {
    // No other test may use this port, since the test takes the first free loopback address.
    let request = BindRequest { port: PORT + 7, ..BindRequest::default() };
    let udp = bind(request).unwrap();
    let (first, name) = (udp.local_address(), crate::shm::meet::silent_host(udp.local_socket_address()));
    drop(udp);
    let device = only(SharedMemoryLink::bind(request, LinkChoice::Shm, 1).unwrap());
    assert_ne!(device.udp().local_address(), first);
    let error =
        SharedMemoryLink::bind(BindRequest { address: Some(first), ..request }, LinkChoice::Shm, 1).unwrap_err();
    assert!(error.to_string().contains("another process has the name"), "{error}");
    drop(name);
    let device = only(SharedMemoryLink::bind(request, LinkChoice::Shm, 1).unwrap());
    assert_eq!(device.udp().local_address(), first);
}

#[test]
fn udp_reaches_devices_without_shared_memory_if_allowed() {
    let mut plain = bind(BindRequest { port: PORT, ..BindRequest::default() }).unwrap();
    let destination = plain.local_address();
    for (choice, arrives) in [(LinkChoice::Auto, true), (LinkChoice::Shm, false)] {
        let mut a = link_at(None, choice);
        let mut batch = batch_of(destination, &[32, 32]);
        Sealer::new(a.udp.local_address(), PORT).seal(&mut batch);
        let mut next = 0;
        eventually("the batch leaves", || {
            a.transmit(now_ns(), &batch, &mut next).unwrap();
            next == batch.runs().len()
        });
        assert!(a.seals(&path(destination)));
        let counted = a.link_counters();
        assert_eq!((counted.tx_udp_packets, counted.tx_unreachable), if arrives { (2, 0) } else { (0, 2) });
        assert_eq!((counted.tx_shared_memory_packets, counted.shared_memory_refused), (0, 0));
        assert_eq!(plain.wait_readable(Duration::from_millis(if arrives { 10_000 } else { 50 })).unwrap(), arrives);
        if arrives {
            let runs = receive_once(&mut plain, 0);
            assert_eq!(packets_of(&runs, ICRC_LEN), [packet(0, 32), packet(1, 32)]);
        }
    }
}

#[test]
fn a_silent_device_delays_packets_to_others_only_briefly() {
    // A socket listens at the name of `silent`, but no thread accepts connections, as if the process of `silent` were
    // stopped.
    let mut silent = bind(BindRequest { port: PORT, ..BindRequest::default() }).unwrap();
    let name = crate::shm::meet::silent_host(silent.local_socket_address());
    let (mut a, mut c) = (link(), link());
    send(&mut a, &mut c, &[12]);
    let mut batch = batch_of(silent.local_address(), &[32]);
    batch.push(&path(c.udp.local_address()), 64, info()).copy_from_slice(&packet(0, 64));
    Sealer::new(a.udp.local_address(), PORT).seal(&mut batch);
    let (mut next, mut now_ns) = (0, now_ns());
    a.transmit(now_ns, &batch, &mut next).unwrap();
    assert_eq!(next, 0, "the first packet to a destination waits for an answer");
    assert_eq!(a.poll_timeout(), Some(now_ns + OTHERS_WAIT_NS));
    now_ns += OTHERS_WAIT_NS;
    a.transmit(now_ns, &batch, &mut next).unwrap();
    assert_eq!(next, 2, "expected one packet over UDP to the silent device, and one through memory");
    assert_eq!(a.counters().packets_sent, 2);
    assert!(silent.wait_readable(Duration::from_secs(10)).unwrap());
    assert_eq!(packets_of(&receive_once(&mut silent, 0), ICRC_LEN), [packet(0, 32)]);
    // Without packets to other destinations, a packet to a silent device may wait longer.
    let mut b = link();
    let mut alone = batch_of(silent.local_address(), &[32]);
    Sealer::new(b.udp.local_address(), PORT).seal(&mut alone);
    b.transmit(now_ns, &alone, &mut 0).unwrap();
    assert!(b.poll_timeout().unwrap() > now_ns + OTHERS_WAIT_NS);
    drop(name);
}

#[test]
fn a_device_that_closes_frees_its_name_and_is_found_again() {
    // This test binds the address repeatedly, so no other test may use it.
    let address: IpAddr = [127, 77, 42, 2].into();
    let (mut a, mut b) = acquainted_with(link_at(Some(address), LinkChoice::Auto));
    for _ in 0..3 {
        // The last packets of a departed device are still read.
        send(&mut b, &mut a, &[64]);
        drop(b);
        let mut seen = Plain::default();
        eventually("the link knows that the device is gone", || {
            a.receive(now_ns(), &mut seen).unwrap();
            a.seals(&path(address))
        });
        eventually("the last packet of the device is read", || {
            a.receive(now_ns(), &mut seen).unwrap();
            seen.0.len() == 1
        });
        b = link_at(Some(address), LinkChoice::Auto);
        let before = a.counters().packets_sent;
        eventually("the new device is invited, and reached over UDP meanwhile", || {
            send(&mut a, &mut b, &[32]);
            b.receive(now_ns(), &mut |_: ReceivedRun<'_>| {}).unwrap();
            a.counters().packets_sent > before
        });
        eventually("the packet arrives", || {
            b.receive(now_ns(), &mut |_: ReceivedRun<'_>| {}).unwrap();
            b.counters().packets_received == a.counters().packets_sent - before
        });
    }
    assert!(a.peers.iter().flatten().count() <= 1, "departed peers remain");
}

#[test]
fn a_sleeper_is_woken_once_and_not_while_it_is_awake() {
    let (mut a, mut b) = acquainted();
    send(&mut a, &mut b, &[12]);
    assert!(!b.prepare_sleep(), "the link may not sleep, since a packet has arrived");
    let mut seen = Plain::default();
    b.receive(now_ns(), &mut seen).unwrap();
    assert!(b.prepare_sleep());
    for _ in 0..3 {
        send(&mut a, &mut b, &[12]);
    }
    assert_eq!(a.counters().wakes, 1, "expected one wake-up, for the first packet");
    assert!(b.udp.wait_readable(Duration::from_secs(10)).unwrap(), "the socket of the sleeper is not readable");
    eventually("all packets arrive", || {
        b.receive(now_ns(), &mut seen).unwrap();
        seen.0.len() == 4
    });
    assert_eq!(b.link_counters().tx_refused, 0);
}

#[test]
fn a_link_knows_without_a_system_call_whether_a_packet_has_arrived() {
    let (mut a, mut b) = acquainted();
    let mut seen = Plain::default();
    for count in 1..4 {
        send(&mut a, &mut b, &[12]);
        assert!(b.may_receive(), "the packet is overlooked");
        let at_ns = now_ns();
        assert_eq!(b.receive(at_ns, &mut seen).unwrap(), 1);
        assert_eq!((b.receive(at_ns, &mut seen).unwrap(), seen.0.len()), (0, count));
        assert!(!b.may_receive(), "packets come through rings, and the rings are empty");
    }
    b.receive(now_ns() + 2 * TRAFFIC_NS, &mut seen).unwrap();
    assert!(b.may_receive(), "packets may come over UDP");
    send(&mut a, &mut b, &[12]);
    b.receive(now_ns() + 2 * TRAFFIC_NS, &mut seen).unwrap();
    assert!(!b.may_receive());
    assert!(b.prepare_sleep() && b.may_receive(), "the first read after a sleep reads all");
}

/// Reads until no packet keeps the link awake, and prepares the link to sleep.
pub(in crate::shm) fn fall_asleep(link: &mut SharedMemoryLink, seen: &mut Plain) {
    eventually("no packet keeps the link awake", || {
        link.receive(now_ns(), seen).unwrap();
        link.prepare_sleep()
    });
}

/// Tests a caller that reads the wake-up from the socket while another thread sleeps on the socket.
#[test]
fn a_sleeper_with_a_consumed_wake_up_is_not_woken_again() {
    let (mut a, mut b) = acquainted();
    let mut seen = Plain::default();
    fall_asleep(&mut b, &mut seen);
    assert!(b.shows_arrivals());
    send(&mut a, &mut b, &[12]);
    b.receive(now_ns(), &mut seen).unwrap();
    assert!(!b.shows_arrivals());
    send(&mut a, &mut b, &[12]);
    assert_eq!(a.counters().wakes, 1, "the sleeper was woken again without asking for it");
    fall_asleep(&mut b, &mut seen);
    assert!(b.shows_arrivals());
}

/// Tests an inviter that still sends a packet over UDP after its peer has begun to share memory.
#[test]
fn the_first_record_does_not_overtake_udp_packets() {
    let (mut a, mut b) = (link(), link());
    let to = b.udp.local_address();
    let sealed = |lengths: &[usize], from: &SharedMemoryLink| {
        let mut batch = batch_of(to, lengths);
        Sealer::new(from.udp.local_address(), PORT).seal(&mut batch);
        batch
    };
    let batch = sealed(&[12], &a);
    a.transmit(now_ns(), &batch, &mut 0).unwrap();
    eventually("the devices share memory, and the reader has found its socket empty", || {
        a.receive(now_ns(), &mut |_: ReceivedRun<'_>| {}).unwrap();
        b.receive(now_ns(), &mut |_: ReceivedRun<'_>| panic!("no packet was sent yet")).unwrap();
        let has_peer = |link: &SharedMemoryLink| link.peers.iter().any(Option::is_some);
        has_peer(&a) && has_peer(&b)
    });
    b.receive(now_ns(), &mut |_: ReceivedRun<'_>| panic!("no packet was sent yet")).unwrap();
    // Send one more packet over UDP, and then one through memory.
    let batch = sealed(&[32], &a);
    let mut next = 0;
    a.udp.transmit_until(&batch, &mut next, 1).unwrap();
    a.transmit(now_ns(), &sealed(&[64], &a), &mut 0).unwrap();
    assert_eq!((next, a.counters().packets_sent), (1, 1));
    let mut lengths = Vec::new();
    eventually("both arrive", || {
        b.receive(now_ns(), &mut |run: ReceivedRun<'_>| lengths.push(run.bytes.len() - ICRC_LEN)).unwrap();
        lengths.len() == 2
    });
    assert_eq!(lengths, [32, 64], "packets arrived out of order");
}

/// Tests a wake-up that cannot be sent. The next packet must cause another wake-up.
#[test]
fn a_sleeper_that_could_not_be_woken_is_woken_by_the_next_packet() {
    let (mut a, mut b) = acquainted();
    let mut seen = Plain::default();
    fall_asleep(&mut b, &mut seen);
    let place = a.peers.iter().position(Option::is_some).unwrap();
    assert!(a.peers[place].as_ref().unwrap().writer.must_wake(), "the sleeper did not ask to be woken");
    a.peers[place].as_ref().unwrap().writer.failed_to_wake();
    send(&mut a, &mut b, &[12]);
    assert_eq!(a.counters().wakes, 1);
}

#[test]
fn a_device_sends_to_itself_over_udp_until_memory_is_ready() {
    let mut a = link();
    let destination = a.udp.local_address();
    let mut batch = batch_of(destination, &[32, 64]);
    Sealer::new(destination, PORT).seal(&mut batch);
    let mut next = 0;
    a.transmit(now_ns(), &batch, &mut next).unwrap();
    assert_eq!(
        (next, a.counters().packets_sent),
        (batch.runs().len(), 0),
        "expected all packets to leave over UDP at once"
    );
    let mut packets = 0;
    eventually("packets go through memory", || {
        a.transmit(now_ns(), &batch, &mut 0).unwrap();
        packets += a.receive(now_ns(), &mut |_: ReceivedRun<'_>| {}).unwrap();
        a.counters().packets_sent > 0
    });
    eventually("packets sent over UDP and then packets sent through memory are read", || {
        packets += a.receive(now_ns(), &mut |_: ReceivedRun<'_>| {}).unwrap();
        a.counters().packets_received == a.counters().packets_sent
    });
    assert!(packets as u64 > a.counters().packets_received);
}
