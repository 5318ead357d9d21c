use super::*;
use crate::testing::{batch_of, packet, packets_of, receive_all, receive_once, transmit_all};
use doorbell_verbs_core::LinkCounters;

fn address(host: u8) -> IpAddr {
    [10, 0, 0, host].into()
}

fn expected(lengths: &[usize]) -> Vec<Vec<u8>> {
    lengths.iter().enumerate().map(|(number, &len)| packet(number, len)).collect()
}

#[test]
fn packets_arrive_after_the_latency_in_order_and_in_runs() {
    let network = MemoryNetwork::new(MemoryOptions { latency_ns: 500, ..Default::default() });
    let mut a = network.attach(address(1));
    let mut b = network.attach(address(2));
    let lengths = [vec![32; 70], vec![16, 64, 12]].concat();
    transmit_all(&mut a, 1_000, &batch_of(address(2), &lengths));
    assert_eq!((network.next_delivery(), a.poll_timeout()), (Some(1_500), None));
    assert_eq!(b.poll_timeout(), Some(1_500));
    assert!(receive_once(&mut b, 1_499).is_empty());
    let runs = receive_once(&mut b, 1_500);
    assert_eq!(packets_of(&runs, 4), expected(&lengths));
    assert_eq!(runs.iter().map(|run| run.packets.len()).collect::<Vec<_>>(), [64, 7, 2]);
    assert_eq!(runs[0].outer, crate::testing::outer(address(1), address(2)));
    assert_eq!(network.next_delivery(), None);
    let counters = MemoryCounters { sent: 73, delivered: 73, ..Default::default() };
    assert_eq!(network.counters(), counters);
}

#[test]
fn one_call_hands_over_a_bounded_amount() {
    let network = MemoryNetwork::new(MemoryOptions::default());
    let mut a = network.attach(address(1));
    let mut b = network.attach(address(2));
    let lengths = vec![32; 64 * 20];
    transmit_all(&mut a, 0, &batch_of(address(2), &lengths));
    assert_eq!(receive_once(&mut b, 5_000).len(), RUNS_PER_RECEIVE);
    assert_eq!(network.next_delivery(), Some(1_000));
    assert_eq!(receive_all(&mut b, 5_000).len(), 20 - RUNS_PER_RECEIVE);
}

#[test]
fn the_bandwidth_limit_spreads_packets_across_sends() {
    let options = MemoryOptions { latency_ns: 100, bandwidth_bytes_per_s: Some(1_000_000_000), ..Default::default() };
    let network = MemoryNetwork::new(options);
    let mut a = network.attach(address(1));
    let mut b = network.attach(address(2));
    for _ in 0..2 {
        transmit_all(&mut a, 0, &batch_of(address(2), &[996, 996]));
    }
    for arrival_ns in [1_100, 2_100, 3_100, 4_100] {
        assert_eq!(network.next_delivery(), Some(arrival_ns));
        assert!(receive_once(&mut b, arrival_ns - 1).is_empty());
        assert_eq!(packets_of(&receive_once(&mut b, arrival_ns), 4).len(), 1);
    }
}

#[test]
fn a_receive_buffer_overflows_as_the_kernels_does() {
    for (payload, fit) in [(36, 246), (4112, 44)] {
        let options = MemoryOptions { queue_bytes: Some(212_992), ..Default::default() };
        let network = MemoryNetwork::new(options);
        let mut a = network.attach(address(1));
        let mut b = network.attach(address(2));
        let lengths = vec![payload - 4; 200];
        for _ in 0..3 {
            transmit_all(&mut a, 0, &batch_of(address(2), &lengths));
        }
        let received = packets_of(&receive_all(&mut b, 1_000), 4);
        assert_eq!((received.len(), network.counters().overflows), (fit, 600 - fit as u64));
        let lost = LinkCounters { rx_overflow: 600 - fit as u64, ..LinkCounters::default() };
        assert_eq!((a.link_counters(), b.link_counters()), (LinkCounters::default(), lost));
        transmit_all(&mut a, 2_000, &batch_of(address(2), &[16]));
        assert_eq!(receive_all(&mut b, 3_000).len(), 1, "receiving made no room");
    }
}

#[test]
fn jitter_keeps_the_order_and_replays() {
    let arrivals = |seed| {
        let options = MemoryOptions { seed, jitter_ns: 10_000, ..Default::default() };
        let network = MemoryNetwork::new(options);
        let mut a = network.attach(address(1));
        let mut b = network.attach(address(2));
        let lengths = vec![32; 50];
        transmit_all(&mut a, 0, &batch_of(address(2), &lengths));
        let (mut times, mut packets) = (Vec::new(), Vec::new());
        while let Some(now_ns) = network.next_delivery() {
            times.push(now_ns);
            packets.extend(packets_of(&receive_all(&mut b, now_ns), 4));
        }
        assert_eq!(packets, expected(&lengths));
        assert!(times.is_sorted() && times[0] >= 1_000 && times[times.len() - 1] <= 11_000);
        times
    };
    assert_eq!(arrivals(7), arrivals(7));
    assert_ne!(arrivals(7), arrivals(8));
}

#[test]
fn packets_to_unknown_addresses_are_counted_as_lost() {
    let network = MemoryNetwork::new(MemoryOptions::default());
    let mut a = network.attach(address(1));
    let b = network.attach(address(2));
    transmit_all(&mut a, 0, &batch_of(address(3), &[32, 32]));
    transmit_all(&mut a, 0, &batch_of(address(2), &[32]));
    drop(b);
    assert_eq!(network.next_delivery(), None);
    assert_eq!(network.counters().undeliverable, 2);
    assert_eq!(a.link_counters(), LinkCounters { tx_unreachable: 2, ..LinkCounters::default() });
    network.attach(address(2));
}
