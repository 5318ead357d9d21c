use std::time::Duration;

use super::tests::{PORT, Plain, acquainted, eventually, link, now_ns, send};
use super::*;
use crate::link::ReceivedRun;
use crate::seal::Sealer;
use crate::shm::held::{HELD_BYTES_MAX, RETRY_NS, STOPPED_NS};
use crate::shm::sys::RING_BYTES;
use crate::testing::{batch_of, packet, path};

/// Lengths of the packets of one run, which nearly fills the largest run.
const LENGTHS: [usize; 15] = [4108; 15];
/// Number of these runs that fit into a ring, or one more.
const RING_RUNS: usize = RING_BYTES / (15 * 4108);

/// Sends `rounds` runs at one time. The tests choose the time, so that a busy machine does not look like a stopped
/// reader.
fn send_at(now_ns: u64, from: &mut SharedMemoryLink, to: IpAddr, rounds: usize) {
    let mut batch = batch_of(to, &LENGTHS);
    Sealer::new(from.udp.local_address(), PORT).seal(&mut batch);
    for _ in 0..rounds {
        let mut next = 0;
        from.transmit(now_ns, &batch, &mut next).unwrap();
        assert_eq!(next, batch.runs().len(), "a full ring held the batch back");
    }
}

/// Lets a link look for room at a time.
fn look_for_room(now_ns: u64, link: &mut SharedMemoryLink) {
    link.receive(now_ns, &mut |_: ReceivedRun<'_>| panic!("a packet came in the other direction")).unwrap();
}

#[test]
fn a_slow_reader_loses_nothing() {
    let (mut a, mut b) = acquainted();
    let now = now_ns();
    let rounds = 3 * RING_RUNS;
    send_at(now, &mut a, b.udp.local_address(), rounds);
    assert!(a.holds_packets() && a.counters().held > 0);
    let mut full = Vec::new();
    a.full_destinations(&mut full);
    assert_eq!(full, [path(b.udp.local_address()).end()]);
    assert!(a.poll_timeout().is_some_and(|at| at <= now + RETRY_NS), "the link asks for no further call");
    let mut seen = Plain::default();
    // The reader empties part of its ring at a time, and the whole takes longer than a stopped reader may take.
    let mut later = now;
    eventually("all packets arrive", || {
        b.receive(now_ns(), &mut seen).unwrap();
        later += STOPPED_NS / 10;
        look_for_room(later, &mut a);
        seen.0.len() == rounds * LENGTHS.len()
    });
    assert!(later > now + STOPPED_NS);
    let expected: Vec<_> = LENGTHS.iter().enumerate().map(|(number, &len)| packet(number, len)).collect();
    assert!(seen.0.chunks(LENGTHS.len()).all(|run| run == expected), "packets are not in order");
    assert_eq!((a.counters().full, a.holds_packets()), (0, false));
    full.clear();
    a.full_destinations(&mut full);
    assert!(full.is_empty());
    assert_eq!(a.counters().packets_sent, 1 + (rounds * LENGTHS.len()) as u64);
}

#[test]
fn a_stopped_reader_costs_a_bounded_number_of_bytes() {
    let (mut a, mut b) = acquainted();
    let before = a.counters().packets_sent;
    let (to, now) = (b.udp.local_address(), now_ns());
    let rounds = RING_RUNS + HELD_BYTES_MAX as usize / (15 * 4108) + 10;
    send_at(now, &mut a, to, rounds);
    let sent = (rounds * LENGTHS.len()) as u64;
    let counted = a.counters();
    let in_ring = counted.packets_sent - before;
    assert_eq!(in_ring + counted.held + counted.full, sent);
    assert!(counted.full > 0 && counted.held * 4108 <= HELD_BYTES_MAX, "{counted:?}");
    look_for_room(now + STOPPED_NS - 1, &mut a);
    assert_eq!(a.counters(), counted, "the reader counts as stopped too early");
    look_for_room(now + STOPPED_NS, &mut a);
    assert_eq!(
        a.counters().full,
        sent - in_ring,
        "not all waiting packets of a stopped reader are dropped and counted"
    );
    assert!(!a.holds_packets());
    // Later packets do not wait for a reader that has stopped.
    send_at(now + STOPPED_NS, &mut a, to, 1);
    assert_eq!(a.counters().full, sent - in_ring + LENGTHS.len() as u64);
    assert_eq!(a.link_counters().tx_ring_full, a.counters().full);
    // The packets that fitted into the ring arrive. Afterwards packets go through the ring again, and may wait.
    let mut seen = Plain::default();
    eventually("the ring is emptied", || b.receive(now_ns(), &mut seen).unwrap() == 0);
    assert_eq!(seen.0.len() as u64, in_ring);
    let counted = a.counters();
    send_at(now + 2 * STOPPED_NS, &mut a, to, RING_RUNS + 2);
    assert!(a.holds_packets());
    assert_eq!(a.counters().full, counted.full);
}

#[test]
fn a_full_ring_delays_no_other_peer() {
    let (mut a, b) = acquainted();
    let mut c = link();
    send(&mut a, &mut c, &[12]);
    let now = now_ns();
    send_at(now, &mut a, b.udp.local_address(), 2 * RING_RUNS);
    assert!(a.holds_packets());
    send_at(now, &mut a, c.udp.local_address(), 1);
    let mut seen = Plain::default();
    eventually("the packets to the other peer arrive", || {
        c.receive(now_ns(), &mut seen).unwrap();
        seen.0.len() == 1 + LENGTHS.len()
    });
    assert!(a.holds_packets(), "packets to the peer that reads nothing no longer wait");
}

#[test]
fn a_sleeping_reader_is_woken_for_packets_that_waited() {
    let (mut a, mut b) = acquainted();
    let now = now_ns();
    send_at(now, &mut a, b.udp.local_address(), RING_RUNS + 2);
    let mut seen = Plain::default();
    eventually("the reader has emptied its ring and sleeps", || {
        b.receive(now_ns(), &mut seen).unwrap();
        b.prepare_sleep()
    });
    let wakes = a.counters().wakes;
    look_for_room(now, &mut a);
    assert_eq!((a.counters().wakes, a.holds_packets()), (wakes + 1, false));
    assert!(b.udp.wait_readable(Duration::from_secs(10)).unwrap(), "the socket of the sleeper is not readable");
    eventually("all packets arrive", || {
        b.receive(now_ns(), &mut seen).unwrap();
        seen.0.len() == (RING_RUNS + 2) * LENGTHS.len()
    });
}

#[test]
fn packets_that_wait_for_a_departed_peer_are_dropped_and_counted() {
    let (mut a, b) = acquainted();
    let now = now_ns();
    send_at(now, &mut a, b.udp.local_address(), 2 * RING_RUNS);
    let held = a.counters().held;
    assert!(held > 0);
    drop(b);
    eventually("the waiting packets are dropped", || {
        look_for_room(now, &mut a);
        !a.holds_packets()
    });
    assert_eq!(a.counters().full, held);
}
