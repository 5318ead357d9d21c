mod outbound;
mod rules;

use std::net::IpAddr;

use super::engine::{REORDER_DISTANCE_MAX, REORDER_WAIT_NS};
use super::*;
use crate::memory::{MemoryLink, MemoryNetwork, MemoryOptions};
use crate::testing::{OwnedRun, batch_of, packet, packets_of, receive_all, transmit_all};

const LEN: usize = 32;

fn address(host: u8) -> IpAddr {
    [10, 0, 0, host].into()
}

/// Returns two links on a network without latency. The second link injects faults.
fn pair(plan: &str, sealed: bool) -> (MemoryLink, Faults<MemoryLink>) {
    let options = MemoryOptions { latency_ns: 0, sealed, ..MemoryOptions::default() };
    let network = MemoryNetwork::new(options);
    let plan = plan.parse().unwrap();
    (network.attach(address(1)), Faults::new(network.attach(address(2)), plan))
}

/// Sends packets in batches of 100 at intervals of 1 us. Receives all packets, including delayed packets.
fn run(plan: &str, packets: usize) -> (Vec<Vec<u8>>, FaultCounters) {
    let (mut a, mut b) = pair(plan, true);
    let (mut now_ns, mut runs) = (0, Vec::<OwnedRun>::new());
    for from in (0..packets).step_by(100) {
        let mut batch = TransmitBatch::new(1 << 16, 4);
        for number in from..(from + 100).min(packets) {
            let bytes = numbered(number);
            batch.push(&crate::testing::path(address(2)), LEN, crate::testing::info()).copy_from_slice(&bytes);
        }
        transmit_all(&mut a, now_ns, &batch);
        runs.extend(receive_all(&mut b, now_ns));
        now_ns += 1_000;
    }
    while let Some(due_ns) = b.poll_timeout() {
        now_ns = now_ns.max(due_ns);
        runs.extend(receive_all(&mut b, now_ns));
    }
    assert_eq!(b.filter.held_bytes, 0);
    (packets_of(&runs, 4), b.counters())
}

fn numbered(number: usize) -> Vec<u8> {
    let mut bytes = packet(number, LEN);
    bytes[24..].copy_from_slice(&(number as u64).to_be_bytes());
    bytes
}

fn numbers(packets: &[Vec<u8>]) -> Vec<u64> {
    packets.iter().map(|packet| u64::from_be_bytes(packet[24..].try_into().unwrap())).collect()
}

fn assert_share(count: u64, of: usize, share: f64) {
    let deviation = (of as f64 * share * (1.0 - share)).sqrt();
    let expected = of as f64 * share;
    assert!((count as f64 - expected).abs() < 5.0 * deviation, "{count} instead of {expected}");
}

#[test]
fn the_same_seed_does_the_same() {
    let plan = "drop=0.05,duplicate=0.05,reorder=0.1,corrupt=0.05,delay=3us,seed=";
    let first = run(&format!("{plan}7"), 5_000);
    assert_eq!(first, run(&format!("{plan}7"), 5_000));
    assert_ne!(first, run(&format!("{plan}8"), 5_000));
}

#[test]
fn dropped_packets_are_missing_at_the_rate_asked_for() {
    let (packets, counters) = run("drop=0.1,seed=1", 20_000);
    assert_share(counters.dropped, 20_000, 0.1);
    assert_eq!(packets.len() as u64, 20_000 - counters.dropped);
    assert!(numbers(&packets).is_sorted());
    let (packets, counters) = run("drop=1", 500);
    assert_eq!((packets.len(), counters.dropped), (0, 500));
}

#[test]
fn duplicated_packets_arrive_twice_in_a_row() {
    let (packets, counters) = run("duplicate=0.1,seed=2", 20_000);
    assert_share(counters.duplicated, 20_000, 0.1);
    assert_eq!(packets.len() as u64, 20_000 + counters.duplicated);
    let mut numbers = numbers(&packets);
    assert!(numbers.is_sorted());
    numbers.dedup();
    assert_eq!(numbers.len(), 20_000);
}

#[test]
fn reordered_packets_are_late_by_a_few_and_none_is_lost() {
    let (packets, counters) = run("reorder=0.05,seed=3", 20_000);
    assert_share(counters.reordered, 20_000, 0.05);
    let mut numbers = numbers(&packets);
    let late: Vec<i64> = numbers
        .iter()
        .enumerate()
        .map(|(place, number)| place as i64 - *number as i64)
        .filter(|late| *late > 0)
        .collect();
    assert!(late.len() as u64 <= counters.reordered);
    assert!(late.len() as u64 > counters.reordered / 2);
    // Packets that are held back at the same time also pass each other, so a packet may be late by twice the distance.
    assert!(late.iter().all(|late| *late <= 2 * i64::from(REORDER_DISTANCE_MAX)));
    numbers.sort_unstable();
    assert_eq!(numbers, (0..20_000).collect::<Vec<_>>());
}

#[test]
fn the_last_packet_of_a_burst_is_held_back_for_a_bounded_time_only() {
    let (mut a, mut b) = pair("reorder=1", true);
    transmit_all(&mut a, 0, &batch_of(address(2), &[LEN]));
    assert!(receive_all(&mut b, 1_000).is_empty());
    assert_eq!(b.poll_timeout(), Some(1_000 + REORDER_WAIT_NS));
    assert_eq!(receive_all(&mut b, 1_000 + REORDER_WAIT_NS).len(), 1);
    assert_eq!(b.poll_timeout(), None);
}

#[test]
fn corrupted_packets_differ_by_one_bit() {
    let (packets, counters) = run("corrupt=0.1,seed=4", 20_000);
    assert_share(counters.corrupted, 20_000, 0.1);
    assert_eq!(packets.len(), 20_000);
    let mut wrong = 0;
    for (number, packet) in packets.iter().enumerate() {
        let pairs = packet.iter().zip(numbered(number));
        let bits: u32 = pairs.map(|(is, was)| (is ^ was).count_ones()).sum();
        assert!(bits <= 1);
        wrong += u64::from(bits);
    }
    // Some flipped bits belong to the ICRC. This test compares packets without it, so `wrong` is less than `corrupted`.
    assert!(wrong <= counters.corrupted && wrong > counters.corrupted * 8 / 10);
}

#[test]
fn corrupted_packets_are_dropped_on_links_without_icrc() {
    let (mut a, mut b) = pair("corrupt=1", false);
    transmit_all(&mut a, 0, &batch_of(address(2), &[LEN; 10]));
    assert!(receive_all(&mut b, 0).is_empty());
    assert_eq!(b.counters().corrupted, 10);
}

#[test]
fn delayed_packets_arrive_in_order_and_not_before_their_time() {
    let (mut a, mut b) = pair("delay=5us", true);
    transmit_all(&mut a, 0, &batch_of(address(2), &[LEN; 3]));
    assert!(receive_all(&mut b, 100).is_empty());
    transmit_all(&mut a, 200, &batch_of(address(2), &[64; 2]));
    assert!(receive_all(&mut b, 200).is_empty());
    assert_eq!(b.poll_timeout(), Some(5_100));
    assert_eq!(packets_of(&receive_all(&mut b, 5_100), 0).len(), 3);
    assert_eq!(b.poll_timeout(), Some(5_200));
    assert_eq!(packets_of(&receive_all(&mut b, 9_000), 0).len(), 2);
    assert_eq!((b.poll_timeout(), b.counters().delayed), (None, 5));
}

#[test]
fn held_bytes_are_bounded_and_the_oldest_leave_early() {
    let (mut a, mut b) = pair("delay=1s", true);
    let lengths = vec![65_000; 15];
    let per_batch = 15 * 65_004;
    let batches = HELD_BYTES_MAX / per_batch + 2;
    let mut early = 0;
    for _ in 0..batches {
        transmit_all(&mut a, 0, &batch_of(address(2), &lengths));
        while b.inner().poll_timeout().is_some() {
            early += packets_of(&receive_all(&mut b, 0), 0).len();
        }
        assert!(b.filter.held_bytes <= HELD_BYTES_MAX);
    }
    assert!(early > 0);
    assert_eq!(b.counters().overfull, early as u64);
}

#[test]
fn packets_without_faults_stay_in_their_run() {
    let (mut a, mut b) = pair("drop=0.1,seed=5", true);
    transmit_all(&mut a, 0, &batch_of(address(2), &[LEN; 64]));
    let runs = receive_all(&mut b, 0);
    let dropped = b.counters().dropped as usize;
    assert!(dropped > 0 && runs.len() <= dropped + 1);
    assert_eq!(packets_of(&runs, 0).len(), 64 - dropped);
}

#[test]
fn a_fault_hits_the_same_packets_beside_other_faults() {
    let missing = |plan: &str| {
        let (packets, _) = run(plan, 2_000);
        let mut numbers = numbers(&packets);
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    };
    assert_eq!(missing("drop=0.1,seed=6"), missing("drop=0.1,reorder=0.2,duplicate=0.3,seed=6"));
}
