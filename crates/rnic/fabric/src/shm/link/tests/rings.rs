//! Tests with rings that the test holds in place of a peer, and of the order of rings and datagrams.

use std::sync::atomic::{AtomicBool, Ordering};

use doorbell_rnic::{EngineId, MAX_RUN_BYTES};

use super::*;
use crate::shm::link::newcomers::DATAGRAM_BYTES_MIN;
use crate::shm::link::news::{DEPARTED_MAX, SAME_DEVICE_NS};
use crate::shm::meet::News;
use crate::shm::message::Datagram;
use crate::shm::ring::{Header, Memory as _, Reader, Writer};
use crate::shm::sys::{Mapping, RING_BYTES, Ring};

fn wake() -> Datagram {
    Datagram::Wake { to: EngineId(0) }
}

/// Adds a peer to a device, and returns the ring to that device. The test writes the ring in place of the peer.
fn in_our_hands(link: &mut SharedMemoryLink, address: IpAddr) -> Ring {
    both_in_our_hands(link, address).0
}

/// Adds a peer to a device, and returns the ring to that device and the ring from that device.
fn both_in_our_hands(link: &mut SharedMemoryLink, address: IpAddr) -> (Ring, Ring) {
    in_our_hands_as(link, 1 << 40, address)
}

/// Adds a peer with this ID to a device, and returns the ring to that device and the ring from that device.
fn in_our_hands_as(link: &mut SharedMemoryLink, id: u64, address: IpAddr) -> (Ring, Ring) {
    let (mapping, file) = Mapping::create().unwrap();
    let [written, read] = Ring::both(mapping);
    let mapping = Mapping::adopt(std::os::fd::AsFd::as_fd(&file)).unwrap();
    link.learn(now_ns(), vec![News::Arrived { id, peer: path(address).end(), mapping, made_here: false }]);
    (written, read)
}

/// Header of a run with one short packet.
const SHORT: Header = Header { total_bytes: 32, segment_bytes: 32, traffic_class: 0, hop_limit: 64 };

/// Fills a ring with records of one cache line each, so that a reader always finds a next record.
fn fill(ring: &Ring) {
    let word = crate::shm::ring::word_of(SHORT);
    (0..RING_BYTES).step_by(crate::shm::ring::LINE_BYTES).for_each(|at| ring.store(at, word));
}

#[test]
fn an_endlessly_full_ring_ends_with_its_writer() {
    let (mut a, mut b) = acquainted();
    let ring = in_our_hands(&mut a, [127, 77, 42, 3].into());
    fill(&ring);
    let mut seen = Plain::default();
    eventually("the link has read more than the ring holds, since it cannot detect the end", || {
        a.receive(now_ns(), &mut seen).unwrap();
        seen.0.len() > 2 * RING_BYTES / 64
    });
    send(&mut b, &mut a, &[2000]);
    eventually("packets of other devices arrive", || {
        a.receive(now_ns(), &mut seen).unwrap();
        seen.0.iter().any(|packet| packet.len() == 2000)
    });
    a.learn(now_ns(), vec![News::Gone { id: 1 << 40 }]);
    let before = seen.0.len();
    eventually("the ring of the departed peer ends", || a.receive(now_ns(), &mut seen).unwrap() == 0);
    assert!(seen.0.len() - before <= RING_BYTES / 64);
    assert_eq!(a.peers.iter().flatten().count(), 1, "the departed peer remains");
}

/// Tests many peers that connect and depart one after the other. Every 20th peer leaves a full ring.
#[test]
fn departed_peers_with_full_rings_keep_bounded_mappings() {
    let (mut a, mut b) = acquainted();
    let mut seen = 0;
    for id in 0..20 * DEPARTED_MAX as u64 {
        let (mapping, file) = Mapping::create().unwrap();
        let mut writer = Writer::new(Ring::both(mapping)[0].clone());
        while id % 20 == 0 && writer.push(SHORT, [&[7; 32][..]].into_iter()) {}
        assert!(id % 20 == 0 || writer.push(SHORT, [&[7; 32][..]].into_iter()));
        let mapping = Mapping::adopt(std::os::fd::AsFd::as_fd(&file)).unwrap();
        let address = [127, 77, 43, id as u8].into();
        let arrived = News::Arrived { id: (1 << 40) + id, peer: path(address).end(), mapping, made_here: false };
        a.learn(now_ns(), vec![arrived, News::Gone { id: (1 << 40) + id }]);
        assert!(a.peers.len() <= DEPARTED_MAX + 2);
        a.receive(now_ns(), &mut |run: ReceivedRun<'_>| seen += run.segments().len()).unwrap();
    }
    assert!(seen > DEPARTED_MAX, "records of departed peers were not read");
    send(&mut b, &mut a, &[2000]);
    let mut is_heard = false;
    eventually("packets of other devices arrive", || {
        a.receive(now_ns(), &mut |run: ReceivedRun<'_>| is_heard |= run.bytes.len() > 2000).unwrap();
        is_heard
    });
    eventually("all departed peers are removed", || {
        a.receive(now_ns(), &mut |_: ReceivedRun<'_>| {}).unwrap();
        a.peers.iter().flatten().count() == 1
    });
}

/// Tests a device that departs after a batch was sealed. The packets to it have no ICRC.
#[test]
fn packets_without_an_icrc_never_go_over_udp() {
    let (mut a, b) = acquainted();
    let (mut c, mut d) = (link(), bind(BindRequest { port: PORT, ..BindRequest::default() }).unwrap());
    send(&mut a, &mut c, &[12]);
    let (gone, other) = (b.udp.local_address(), d.local_address());
    let mut batch = batch_of(gone, &[32]);
    batch.push(&path(other), 64, info()).copy_from_slice(&packet(0, 64));
    batch.push(&path(gone), 64, info()).copy_from_slice(&packet(1, 64));
    Sealer::new(a.udp.local_address(), PORT).seal_to(&mut batch, |path| a.seals(path));
    let id = a.peers.iter().flatten().find(|peer| peer.end.address == gone).unwrap().id;
    let before = a.counters();
    let mut next = 0;
    a.is_within_batch = true;
    a.learn(now_ns(), vec![News::Gone { id }]);
    eventually("all packets are sent or lost", || {
        a.transmit(now_ns(), &batch, &mut next).unwrap();
        next == batch.runs().len()
    });
    assert_eq!(
        a.counters().without - before.without,
        2,
        "packets without an ICRC must count as written to the departed device"
    );
    assert_eq!(packets_of(&receive_once(&mut d, 0), ICRC_LEN), [packet(0, 64)]);
    assert_eq!(a.link_counters().tx_udp_packets, 1);
    // From now on, packets to the departed device are sealed and go over UDP.
    assert!(a.seals(&path(gone)) && !a.is_gone_within_batch(path(gone).end()));
    drop(b);
}

/// Tests a packet to a silent device while packets to other devices wait behind its batch. A driver reports such
/// packets by `hurry`.
#[test]
fn a_silent_device_delays_later_batches_only_briefly() {
    let silent = bind(BindRequest { port: PORT, ..BindRequest::default() }).unwrap();
    let name = crate::shm::meet::silent_host(silent.local_socket_address());
    let mut a = link();
    let mut batch = batch_of(silent.local_address(), &[32]);
    Sealer::new(a.udp.local_address(), PORT).seal(&mut batch);
    let (mut next, now_ns) = (0, now_ns());
    a.transmit(now_ns, &batch, &mut next).unwrap();
    assert_eq!((next, a.awaits()), (0, Some(path(silent.local_address()).end())));
    assert!(a.poll_timeout().unwrap() > now_ns + OTHERS_WAIT_NS);
    a.hurry();
    assert_eq!(a.poll_timeout(), Some(now_ns + OTHERS_WAIT_NS));
    a.transmit(now_ns + 1, &batch, &mut next).unwrap();
    assert_eq!(
        (next, a.poll_timeout()),
        (0, Some(now_ns + OTHERS_WAIT_NS)),
        "the batch did not wait until the deadline"
    );
    a.transmit(now_ns + OTHERS_WAIT_NS, &batch, &mut next).unwrap();
    assert_eq!((next, a.awaits()), (1, None));
    drop(name);
}

/// Tests a peer that departs, while a socket that never answers listens at its name.
#[test]
fn a_departed_peer_with_a_silent_name_delays_no_packets() {
    let silent = bind(BindRequest { port: PORT, ..BindRequest::default() }).unwrap();
    let mut a = link();
    drop(in_our_hands(&mut a, silent.local_address()));
    a.learn(now_ns(), vec![News::Gone { id: 1 << 40 }]);
    let name = crate::shm::meet::silent_host(silent.local_socket_address());
    let mut batch = batch_of(silent.local_address(), &[32]);
    Sealer::new(a.udp.local_address(), PORT).seal(&mut batch);
    let mut next = 0;
    a.transmit(now_ns(), &batch, &mut next).unwrap();
    assert_eq!((next, a.awaits()), (1, None));
    drop(name);
}

#[test]
fn the_current_owner_of_an_address_gets_its_packets() {
    let address: IpAddr = [127, 77, 42, 7].into();
    let mut a = link();
    let (_, ring) = both_in_our_hands(&mut a, address);
    assert!(!a.seals(&path(address)));
    let mut b = link_at(Some(address), LinkChoice::Auto);
    std::thread::sleep(Duration::from_nanos(SAME_DEVICE_NS));
    send(&mut b, &mut a, &[12]);
    let mut seen = Plain::default();
    eventually("packets of the new peer arrive", || a.receive(now_ns(), &mut seen).unwrap() > 0);
    send(&mut a, &mut b, &[32]);
    eventually("packets reach the new peer", || b.receive(now_ns(), &mut seen).unwrap() > 0);
    assert_eq!(seen.0, [packet(0, 12), packet(0, 32)]);
    assert_eq!(ring.load(0), 0, "a record went to the old ring");
    eventually("the departed peer is removed", || {
        a.receive(now_ns(), &mut seen).unwrap();
        a.peers.iter().flatten().count() == 1
    });
}

/// Two devices that invite each other at the same time share two pairs of rings. The test checks the order of their
/// packets while the first pair ends.
#[test]
fn a_second_ring_does_not_overtake_the_first() {
    let address: IpAddr = [127, 77, 42, 8].into();
    for first_is_read_before in [true, false] {
        let mut a = link();
        let [first, second] = [1 << 40, 1 << 41].map(|id| in_our_hands_as(&mut a, id, address).0);
        let (mut first, mut second) = (Writer::new(first), Writer::new(second));
        let mut seen = Plain::default();
        let mut count = 0_u32;
        let mut write = |writer: &mut Writer<Ring>, packets: usize| {
            for _ in 0..packets {
                count += 1;
                let mut packet = [0; 32];
                packet[..4].copy_from_slice(&count.to_le_bytes());
                assert!(writer.push(SHORT, [&packet[..]].into_iter()));
            }
        };
        if first_is_read_before {
            write(&mut first, 1);
            eventually("the first record is read", || a.receive(now_ns(), &mut seen).unwrap() > 0);
        }
        // Write more records than one call of `receive` reads. The next call begins with the second ring.
        write(&mut first, 100);
        write(&mut second, 10);
        a.next_peer = 0;
        let total = seen.0.len() + 110;
        let mut is_told = false;
        eventually("all records are read", || {
            a.receive(now_ns(), &mut seen).unwrap();
            if seen.0.len() > 50 && !std::mem::replace(&mut is_told, true) {
                a.learn(now_ns(), vec![News::Gone { id: 1 << 40 }]);
            }
            seen.0.len() >= total
        });
        let numbers: Vec<u32> =
            seen.0.iter().map(|packet| u32::from_le_bytes(packet[..4].try_into().unwrap())).collect();
        assert_eq!(numbers, (1..=total as u32).collect::<Vec<_>>());
        assert_eq!(a.peers.iter().flatten().count(), 1, "the first peer was not removed");
    }
}

/// Sink that stores the first byte of each packet, from rings and over UDP.
#[derive(Default)]
struct Both(Vec<u8>);

impl Sink for Both {
    fn receive(&mut self, run: ReceivedRun<'_>) {
        self.0.extend(run.segments().map(|packet| packet[0]));
    }

    fn receive_shared(&mut self, run: &SharedRun<'_>) -> bool {
        self.0.extend(run.packets().map(|packet| {
            let mut first = [0];
            packet.bytes().split_at(1).0.copy_to(&mut first);
            first[0]
        }));
        true
    }
}

/// Writes a packet of 32 bytes, each with the value `number`.
fn write_number(writer: &mut Writer<Ring>, number: u8) {
    assert!(writer.push(SHORT, [&[number; 32][..]].into_iter()));
}

/// Tests two rings from one address. One or both end, in any order, with or without a message in the UDP socket. The
/// device must read both rings, and must be able to sleep afterwards.
#[test]
fn two_rings_of_one_address_never_wait_for_each_other() {
    for case in 0..8 {
        let address: IpAddr = [127, 77, 42, 20 + case].into();
        let mut a = link();
        let other = bind(BindRequest { port: PORT, ..BindRequest::default() }).unwrap();
        let [mut first, mut second] = [1 << 40, 1 << 41].map(|id| Writer::new(in_our_hands_as(&mut a, id, address).0));
        let [one, two] = if case & 1 == 0 { [&mut first, &mut second] } else { [&mut second, &mut first] };
        write_number(one, 1);
        let mut seen = Both::default();
        // Send a message first, so that the link does not find the socket empty.
        assert!(other.send_alone(a.udp.local_address(), &wake().to_bytes()));
        if case & 2 == 0 {
            a.receive(now_ns(), &mut seen).unwrap();
        }
        write_number(two, 2);
        let gone = if case & 1 == 0 { [1 << 40, 1 << 41] } else { [1 << 41, 1 << 40] };
        let count = if case & 4 == 0 { 1 } else { 2 };
        a.learn(now_ns(), gone[..count].iter().map(|&id| News::Gone { id }).collect());
        eventually("both records are read", || {
            a.receive(now_ns(), &mut seen).unwrap();
            seen.0.len() == 2
        });
        assert!(seen.0 == [1, 2] || count == 2, "{case}: {:?}", seen.0);
        eventually("the device can sleep", || {
            a.receive(now_ns(), &mut seen).unwrap();
            a.prepare_sleep()
        });
        assert_eq!(a.peers.iter().flatten().count(), 2 - count, "{case}");
    }
}

#[test]
fn udp_packets_precede_the_ring_of_a_departed_peer() {
    let mut a = link();
    let other = bind(BindRequest { port: PORT, ..BindRequest::default() }).unwrap();
    let address = other.local_address();
    assert!(other.send_alone(a.udp.local_address(), &[1; 36]));
    let mut writer = Writer::new(in_our_hands_as(&mut a, 1 << 40, address).0);
    write_number(&mut writer, 2);
    a.learn(now_ns(), vec![News::Gone { id: 1 << 40 }]);
    let mut seen = Both::default();
    eventually("both records are read", || {
        a.receive(now_ns(), &mut seen).unwrap();
        seen.0.len() == 2
    });
    assert_eq!(seen.0, [1, 2]);
}

#[test]
fn a_hostile_ring_delays_the_next_ring_only_briefly() {
    let address: IpAddr = [127, 77, 42, 9].into();
    let mut a = link();
    let endless = in_our_hands_as(&mut a, 1 << 40, address).0;
    let mut next = Writer::new(in_our_hands_as(&mut a, 1 << 41, address).0);
    fill(&endless);
    let mut seen = Plain::default();
    eventually("the record is read", || a.receive(now_ns(), &mut seen).unwrap() > 0);
    assert!(next.push(SHORT, [&[7; 32][..]].into_iter()));
    eventually("the next record is read", || {
        seen.0.clear();
        a.receive(now_ns(), &mut seen).unwrap();
        seen.0.contains(&vec![7; 32])
    });
}

#[test]
fn a_second_ring_takes_over_in_the_midst_of_a_batch() {
    let address: IpAddr = [127, 77, 42, 10].into();
    let mut a = link();
    let [first, second] = [1 << 40, 1 << 41].map(|id| in_our_hands_as(&mut a, id, address).1);
    let (mut first, mut second) = (Reader::new(first), Reader::new(second));
    let mut batch = batch_of(address, &[32, 500]);
    Sealer::new(a.udp.local_address(), PORT).seal(&mut batch);
    assert_eq!(batch.runs().len(), 2, "packets of two lengths must form two runs");
    let mut sent = 1;
    a.write(now_ns(), 0, &batch.runs()[0], &batch);
    a.is_within_batch = true;
    a.learn(now_ns(), vec![News::Gone { id: 1 << 40 }]);
    a.transmit(now_ns(), &batch, &mut sent).unwrap();
    assert_eq!((sent, a.counters().without), (2, 0));
    assert_eq!(
        [first.pop(), second.pop()].map(|record| record.map(|record| record.header.total_bytes)),
        [Some(32), Some(500)]
    );
    assert!(!a.seals(&path(address)));
}

#[test]
fn an_idle_ring_releases_its_memory_and_still_works() {
    const SECOND: u64 = 1_000_000_000;
    let (mut a, mut b) = acquainted();
    assert_eq!(a.poll_timeout(), None, "a few packets must not start a timer to free memory");
    let lengths = [4108; 15];
    let exchange = |a: &mut SharedMemoryLink, b: &mut SharedMemoryLink, times: usize| {
        for _ in 0..times {
            send(a, b, &lengths);
            let mut seen = Plain::default();
            eventually("all packets arrive", || {
                b.receive(now_ns(), &mut seen).unwrap();
                seen.0.len() == lengths.len()
            });
            assert!(seen.0.iter().enumerate().all(|(number, bytes)| *bytes == packet(number, 4108)));
        }
    };
    let resident = |link: &SharedMemoryLink| link.peers.iter().flatten().map(Peer::resident_bytes).sum::<usize>();
    exchange(&mut a, &mut b, 100);
    assert!(resident(&a) >= RING_BYTES);
    // A ring that is written repeatedly keeps its memory.
    let mut at = a.poll_timeout().expect("a timer frees the ring's memory");
    for _ in 0..3 {
        a.receive(at, &mut Plain::default()).unwrap();
        assert!(resident(&a) >= RING_BYTES);
        exchange(&mut a, &mut b, 1);
        at = a.poll_timeout().unwrap();
    }
    // Unread records stay in the ring.
    send(&mut a, &mut b, &lengths);
    for later in 0..3 {
        a.receive(at + later * SECOND, &mut Plain::default()).unwrap();
    }
    assert!(resident(&a) >= RING_BYTES);
    let mut seen = Plain::default();
    eventually("the record is read", || {
        b.receive(now_ns(), &mut seen).unwrap();
        seen.0.len() == lengths.len()
    });
    // After the records were read, the ring's memory is given back, and the link sets no further deadline.
    a.receive(a.poll_timeout().unwrap(), &mut Plain::default()).unwrap();
    assert!(resident(&a) < 64 << 10, "{} bytes", resident(&a));
    assert_eq!((a.poll_timeout(), resident(&b)), (None, resident(&a)));
    exchange(&mut a, &mut b, 100);
    assert_eq!((a.counters().full, b.counters().broken), (0, 0));
}

#[test]
fn a_flood_over_udp_keeps_no_ring_closed() {
    let mut a = link();
    let flooder = std::net::UdpSocket::bind("127.77.42.4:0").unwrap();
    let ring = in_our_hands(&mut a, [127, 77, 42, 5].into());
    let header = Header { total_bytes: 32, segment_bytes: 32, traffic_class: 0, hop_limit: 64 };
    assert!(Writer::new(ring).push(header, [&[7; 32][..]].into_iter()));
    let to = a.udp.local_socket_address();
    let mut shared = 0;
    let mut looks = 0;
    while shared == 0 {
        // Send a datagram before each call of `receive`, so that the link never finds the socket empty.
        flooder.send_to(&[9; 40], to).unwrap();
        assert!(a.udp.wait_readable(Duration::from_secs(10)).unwrap());
        a.receive(now_ns(), &mut |_: ReceivedRun<'_>| {}).unwrap();
        shared = a.counters().packets_received;
        looks += 1;
    }
    assert!(looks > 1, "the record came before earlier UDP packets");
    assert!(looks <= a.udp.receive_buffer_bytes() / DATAGRAM_BYTES_MIN + 2);
}

#[test]
fn datagrams_of_strangers_have_no_effect() {
    let (mut a, _b) = acquainted();
    let nothing = &mut |_: ReceivedRun<'_>| {};
    eventually("no packet is left", || a.receive(now_ns(), nothing).unwrap() == 0);
    let before = (a.link_counters(), a.counters());
    a.look_at_all = false;
    let to = a.udp.local_socket_address();
    let words = [
        wake().to_bytes(),
        Datagram::Challenge { to: EngineId(0), invited: [0; 16], asked: [1; 16] }.to_bytes(),
        b"\xffdoorbel".to_vec(),
        b"\xffdoorbel\x04".to_vec(),
        vec![0xff; 70],
    ];
    // Send from another UDP port, and from the devices' UDP port at an address without a device.
    for from in ["127.77.42.6:0".to_owned(), format!("127.77.42.6:{PORT}")] {
        let stranger = std::net::UdpSocket::bind(from).unwrap();
        for _ in 0..1000 {
            words.iter().for_each(|word| drop(stranger.send_to(word, to)));
            a.last_shared_ns = None;
            a.receive(now_ns(), nothing).unwrap();
            assert!(!a.look_at_all);
        }
    }
    let after = LinkCounters { rx_overflow: before.0.rx_overflow, ..a.link_counters() };
    assert_eq!((after, a.counters()), before);
    assert_eq!(a.peers.len(), 1);
}

/// Tests rings to which a peer writes arbitrary values at arbitrary offsets all the time.
#[test]
fn a_hostile_peer_neither_stops_nor_crashes_the_other_side() {
    let (mapping, file) = Mapping::create().unwrap();
    let theirs = Ring::both(Mapping::adopt(std::os::fd::AsFd::as_fd(&file)).unwrap());
    let [written, read] = Ring::both(mapping);
    let (mut writer, mut reader) = (Writer::new(written), Reader::new(read.clone()));
    let stop = AtomicBool::new(false);
    let (mut popped, mut pushed, mut broken) = (0_u64, 0_u64, 0_u64);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut state = 0x9e37_79b9_7f4a_7c15_u64;
            let mut random = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state
            };
            while !stop.load(Ordering::Relaxed) {
                let (word, at) = (random(), random() as usize % (RING_BYTES / 8) * 8);
                let ring = &theirs[(word & 1) as usize];
                // Often write a word that is a possible header, at an offset near the start of the ring.
                let possible = 1 << 63 | (word % 4000) << 17 | (word % 60_000);
                ring.store(if word & 2 == 0 { at } else { at % 4096 }, if word & 4 == 0 { word } else { possible });
                if word & 0xf0 == 0 {
                    ring.set_head(if word & 8 == 0 { word } else { word % (4 * RING_BYTES as u64) });
                    ring.set_sleeps(word & 0x100 == 0);
                }
            }
        });
        let mut buffer = vec![0; MAX_RUN_BYTES];
        let begun = Instant::now();
        // On a busy machine, the peer may not run for the first 300 ms.
        let is_seen = |counts: [u64; 3]| !counts.contains(&0) || begun.elapsed() > Duration::from_secs(60);
        while begun.elapsed() < Duration::from_millis(300) || !is_seen([popped, pushed, broken]) {
            if let Some(record) = reader.pop() {
                reader.copy_out(&record, &mut buffer);
                reader.release();
                popped += 1;
            }
            if reader.is_broken() {
                broken += 1;
                reader = Reader::new(read.clone());
            }
            let header = Header { total_bytes: 3000, segment_bytes: 1000, traffic_class: 0, hop_limit: 1 };
            pushed += u64::from(writer.push(header, buffer[..3000].chunks(1000)));
            let _ = (writer.must_wake(), reader.arm());
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(popped > 0 && pushed > 0 && broken > 0, "popped {popped}, pushed {pushed}, broken {broken}");
}

#[test]
fn unsuitable_files_are_refused_as_rings() {
    let refused = |file: &std::fs::File| Mapping::adopt(std::os::fd::AsFd::as_fd(file)).unwrap_err().to_string();
    // The link rejects files on disk, files without seals, and files of another size.
    let disk = std::fs::File::open("/proc/self/exe").unwrap();
    assert!(refused(&disk).contains("not in memory"));
    let name = c"doorbell-test";
    let flags = nix::sys::memfd::MFdFlags::MFD_CLOEXEC;
    let file = std::fs::File::from(nix::sys::memfd::memfd_create(name, flags).unwrap());
    assert!(refused(&file).contains("another size"));
    let (_, sealed) = Mapping::create().unwrap();
    let sealed = std::fs::File::from(sealed);
    assert!(sealed.set_len(1).is_err(), "the seals hold");
    file.set_len(sealed.metadata().unwrap().len()).unwrap();
    assert!(refused(&file).contains("not sealed"));
}
