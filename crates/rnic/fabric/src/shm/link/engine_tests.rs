//! Tests of devices with several engines.

use std::time::Duration;

use doorbell_rnic::EngineId;

use super::tests::{PORT, Plain, eventually, fall_asleep, now_ns};
use super::*;
use crate::link::ReceivedRun;
use crate::seal::Sealer;
use crate::testing::{info, packet, path};
use crate::{BindRequest, bind_engines};

/// Returns the links of a device whose engines have queue pairs.
fn links(engines: usize) -> Vec<SharedMemoryLink> {
    let mut links = waiting_links(engines);
    links.iter_mut().for_each(Link::begin);
    links
}

/// Returns the links of a device. Only the first engine has begun.
fn waiting_links(engines: usize) -> Vec<SharedMemoryLink> {
    let udps = bind_engines(BindRequest { port: PORT, ..BindRequest::default() }, engines).unwrap();
    SharedMemoryLink::start(udps, LinkChoice::Auto).unwrap()
}

fn end_of(device: &[SharedMemoryLink], engine: u8) -> PathEnd {
    PathEnd { address: device[0].udp.local_address(), engine: EngineId(engine) }
}

/// Returns a batch of packets of 4,108 bytes to one engine.
fn batch_to(from: &SharedMemoryLink, to: PathEnd, packets: usize) -> TransmitBatch {
    let mut batch = TransmitBatch::new(1 << 20, doorbell_wire::ICRC_LEN);
    let path = Path { engine: to.engine, ..path(to.address) };
    (0..packets).for_each(|number| batch.push(&path, 4108, info()).copy_from_slice(&packet(number, 4108)));
    Sealer::new(from.udp.local_address(), PORT).seal(&mut batch);
    batch
}

fn send_to(from: &mut SharedMemoryLink, to: PathEnd, packets: usize) {
    let batch = batch_to(from, to, packets);
    let mut next = 0;
    eventually("the batch leaves", || {
        from.receive(now_ns(), &mut |_: ReceivedRun<'_>| panic!("a packet came in the other direction")).unwrap();
        from.transmit(now_ns(), &batch, &mut next).unwrap();
        next == batch.runs().len()
    });
}

/// Sends a packet through memory.
fn exchange(from: &mut SharedMemoryLink, to: PathEnd, receiver: &mut SharedMemoryLink) {
    let before = (from.counters().packets_sent, receiver.counters().packets_received);
    send_to(from, to, 1);
    let mut seen = Plain::default();
    eventually("the packet arrives", || receiver.receive(now_ns(), &mut seen).unwrap() > 0);
    let after = (from.counters().packets_sent, receiver.counters().packets_received);
    assert_eq!(after, (before.0 + 1, before.1 + 1));
    assert_eq!(seen.0, [packet(0, 4108)]);
}

/// Returns the links of a device with one engine and of a device with two, which share memory, and the ends of the
/// second device.
fn one_and_two_engines() -> (Vec<SharedMemoryLink>, Vec<SharedMemoryLink>, [PathEnd; 2]) {
    let (mut one, mut two) = (links(1), links(2));
    let ends = [0, 1].map(|engine| end_of(&two, engine));
    for (end, engine) in ends.into_iter().zip(&mut two) {
        exchange(&mut one[0], end, engine);
    }
    (one, two, ends)
}

fn peers_of(link: &SharedMemoryLink) -> Vec<PathEnd> {
    link.peers.iter().flatten().map(|peer| peer.end).collect()
}

#[test]
fn pairs_of_engines_that_exchange_packets_have_rings() {
    let (mut a, mut b) = (links(2), links(3));
    let (from, to) = ([0, 1].map(|engine| end_of(&a, engine)), [0, 1, 2].map(|engine| end_of(&b, engine)));
    for (sender, receiver) in [(0, 2), (1, 2), (1, 0), (0, 2)] {
        exchange(&mut a[sender], to[receiver], &mut b[receiver]);
    }
    // The answers go through the same rings.
    exchange(&mut b[2], from[1], &mut a[1]);
    exchange(&mut b[0], from[1], &mut a[1]);
    let of_a: Vec<_> = a.iter().map(peers_of).collect();
    let of_b: Vec<_> = b.iter().map(peers_of).collect();
    assert_eq!(of_a, [vec![to[2]], vec![to[2], to[0]]]);
    assert_eq!(of_b, [vec![from[1]], vec![], vec![from[0], from[1]]]);
    drop(a);
    for link in &mut b {
        eventually("the engine knows that the device is gone", || {
            link.receive(now_ns(), &mut Plain::default()).unwrap();
            peers_of(link).is_empty()
        });
    }
}

#[test]
fn a_record_wakes_only_its_engine() {
    let (mut a, mut b, to) = one_and_two_engines();
    for link in &mut b {
        fall_asleep(link, &mut Plain::default());
    }
    send_to(&mut a[0], to[1], 1);
    assert_eq!(a[0].counters().wakes, 1);
    assert!(b[1].udp.wait_readable(Duration::from_secs(10)).unwrap());
    assert!(!b[0].udp.wait_readable(Duration::ZERO).unwrap(), "an engine without packets was woken");
}

#[test]
fn packets_to_an_engine_that_a_device_lacks_go_over_udp() {
    let (mut a, mut b) = (links(2), links(2));
    let to = end_of(&b, 5);
    send_to(&mut a[1], to, 1);
    let mut arrived = 0;
    eventually("the packet arrives", || {
        b[0].receive(now_ns(), &mut |run: ReceivedRun<'_>| arrived += run.segments().len()).unwrap();
        arrived == 1
    });
    assert_eq!(peers_of(&a[1]), []);
    let counted = a[1].link_counters();
    assert_eq!((counted.tx_udp_packets, counted.tx_shared_memory_packets, counted.shared_memory_refused), (1, 0, 0));
}

/// Receives all packets that the peer has sent.
fn receive_all(link: &mut SharedMemoryLink, from: &SharedMemoryLink) {
    eventually("all packets arrive", || {
        link.receive(now_ns(), &mut Plain::default()).unwrap();
        link.counters().packets_received == from.counters().packets_sent
    });
}

#[test]
fn an_engine_shares_memory_from_its_first_queue_pair_on() {
    let (mut a, mut b) = (links(1), waiting_links(2));
    let to = end_of(&b, 1);
    send_to(&mut a[0], to, 1);
    let counted = a[0].link_counters();
    assert_eq!((counted.tx_udp_packets, counted.tx_shared_memory_packets, counted.shared_memory_refused), (1, 0, 0));
    assert!(b[1].meeting.as_ref().unwrap().news().is_empty(), "the engine has a report that no thread takes");
    b[1].begin();
    eventually("the engines share memory", || {
        send_to(&mut a[0], to, 1);
        receive_all(&mut b[1], &a[0]);
        a[0].counters().packets_sent > 0
    });
    exchange(&mut a[0], to, &mut b[1]);
}

#[test]
fn a_device_logs_one_refusal_for_all_its_engines() {
    let mut a = links(2);
    assert!(!a[1].has_explained.load(Ordering::Relaxed));
    a[0].explain([127, 77, 43, 19].into(), "the device rejected the invitation");
    assert!(a[1].has_explained.load(Ordering::Relaxed));
    assert_eq!((a[0].counters().refusals, a[1].counters().refusals), (1, 0));
}

#[test]
fn a_full_ring_delays_no_other_engine() {
    let (mut a, mut b, to) = one_and_two_engines();
    while a[0].counters().held == 0 {
        send_to(&mut a[0], to[0], 15);
    }
    let mut full = Vec::new();
    a[0].full_destinations(&mut full);
    assert_eq!(full, [to[0]]);
    exchange(&mut a[0], to[1], &mut b[1]);
}
