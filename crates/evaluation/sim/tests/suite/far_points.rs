//! Points of the shared-memory study, on the testbed of the published study (T3).

use doorbell_record::{
    FarPoint, Figure, HotPoint, Operation, OrderPoint, PointResult, ScopePoint, StorePoint, Strategy, TearingPoint, Way,
};
use doorbell_sim::far::simulate;
use doorbell_sim::testbed;

fn simulated_with(changes: &[(&str, &str)], point: &FarPoint) -> (PointResult, u64) {
    let t3 = testbed::by_name("connectx5-100g-far").expect("a built-in testbed").clone();
    let testbed =
        changes.iter().fold(t3, |testbed, (path, value)| testbed.with(path, value).expect("an allowed value"));
    let found = simulate(&testbed, point, 1).unwrap_or_else(|error| panic!("{point:?}: {error}"));
    (found.result, found.summary.digest)
}

fn simulated(point: &FarPoint) -> PointResult {
    simulated_with(&[], point).0
}

fn order(operation: Operation, queue_pairs: usize) -> OrderPoint {
    OrderPoint { operation, queue_pairs, addresses: 1024, zipf: 0.99, rate_per_s: 1e6, outstanding: 16, requests: 2000 }
}

#[test]
fn only_requests_of_one_queue_pair_are_answered_in_order() {
    for operation in [Operation::Read, Operation::Write, Operation::CompareSwap] {
        let one = simulated(&FarPoint::Order(order(operation, 1)));
        assert_eq!([one.far[&Figure::InOrder], one.far[&Figure::LargestGap]], [100.0, 1.0], "{operation:?}");
        assert_eq!((one.messages, one.far[&Figure::SameAddressOutOfOrder]), (2000, 0.0), "{operation:?}");
    }
    // The hottest word receives more CASes than the NIC can serve. CASes of other words overtake the CASes that wait
    // for this word.
    let many = OrderPoint { rate_per_s: 20e6, ..order(Operation::CompareSwap, 16) };
    let even = [("pcie.slow_every", "0")];
    let (result, digest) = simulated_with(&even, &FarPoint::Order(many.clone()));
    assert!(result.far[&Figure::InOrder] < 95.0 && result.far[&Figure::LargestGap] > 5.0, "{:?}", result.far);
    assert!(result.far[&Figure::SameAddressOutOfOrder] < 1.0, "CASes on one word hardly ever overtake each other");
    let again = simulated_with(&even, &FarPoint::Order(many));
    assert_eq!((again.1, &again.0.far), (digest, &result.far));
}

#[test]
fn slow_accesses_reorder_requests_of_several_queue_pairs() {
    let found = |every: &str, queue_pairs| {
        let point = FarPoint::Order(OrderPoint { requests: 20_000, ..order(Operation::Read, queue_pairs) });
        let far = simulated_with(&[("pcie.slow_every", every)], &point).0.far;
        [far[&Figure::InOrder], far[&Figure::LargestGap], far[&Figure::SameAddressOutOfOrder]]
    };
    assert_eq!(found("0", 32), [100.0, 1.0, 0.0]);
    let [in_order, gap, same_address] = found("20", 32);
    assert!((80.0..95.0).contains(&in_order) && gap > 10.0 && same_address > 0.0, "{in_order} {gap} {same_address}");
    assert_eq!(found("20", 1), [100.0, 1.0, 0.0], "requests of one queue pair stay in order");
    // The testbed's values were fitted to about 97 % of requests in order, and displacements of up to 15.
    let far = simulated(&FarPoint::Order(OrderPoint { requests: 20_000, ..order(Operation::Read, 32) })).far;
    assert!((96.0..98.0).contains(&far[&Figure::InOrder]), "{far:?}");
    assert!((8.0..=20.0).contains(&far[&Figure::LargestGap]), "{far:?}");
}

#[test]
fn other_queue_pairs_do_not_wait_for_a_slow_access() {
    let rate = |every: &str, queue_pairs, operation| {
        let point = OrderPoint { rate_per_s: 1e15, outstanding: 4, ..order(operation, queue_pairs) };
        simulated_with(&[("pcie.slow_every", every)], &FarPoint::Order(point)).0.messages_per_s
    };
    for operation in [Operation::Read, Operation::Write] {
        let [one, many] = [1, 16].map(|pairs| rate("50", pairs, operation) / rate("0", pairs, operation));
        assert!((0.5..0.97).contains(&one), "{operation:?}: a queue pair waits for its own slow accesses: {one}");
        assert!(many > 0.6 * one, "{operation:?}: 16 queue pairs lose as much as one: {many} after {one}");
    }
}

#[test]
fn reads_are_torn_only_between_packets() {
    let torn = |bytes, mtu| {
        let result = simulated(&FarPoint::Tearing(TearingPoint { bytes, mtu, reads: 500 }));
        (result.far[&Figure::Torn], result.far.get(&Figure::TornAtPackets).copied())
    };
    assert_eq!(torn(8, 1024), (0.0, None));
    let (percent, at_packets) = torn(4096, 1024);
    assert!(percent > 0.0, "{percent}");
    assert_eq!(at_packets, Some(100.0));
}

#[test]
fn a_cas_waits_only_for_atomics_of_its_scope() {
    let latency = |scope: &str, operation, distance, others| {
        let point = ScopePoint { operation, distance, others, outstanding: 16, operations: 100 };
        let result = simulated_with(&[("nic.atomic_lock", scope)], &FarPoint::Scope(point)).0;
        result.far[&Figure::ProbeLatency]
    };
    let alone = latency("address", Operation::CompareSwap, 0, 0);
    assert!(latency("address", Operation::CompareSwap, 0, 7) > 5.0 * alone, "CASes on one word share a lock");
    assert!(latency("address", Operation::CompareSwap, 64, 7) < 1.2 * alone, "CASes on other words take other locks");
    assert!(latency("address", Operation::Read, 0, 7) < 1.2 * alone, "READs take no lock");
    assert!(latency("device", Operation::CompareSwap, 64, 7) > 5.0 * alone, "all words of a device share one lock");
}

#[test]
fn a_middlebox_that_turns_cases_into_writes_takes_no_lock() {
    let rate = |way| {
        let point = HotPoint { clients: 4, outstanding: 16, operations: 1000, way };
        // The box has one queue pair to the memory node, which would wait for each slow access.
        simulated_with(&[("pcie.slow_every", "0")], &FarPoint::Hot(point)).0.messages_per_s
    };
    let [straight, through, converted] = [Way::Straight, Way::Box, Way::BoxToWrite].map(rate);
    assert!((straight / through - 1.0).abs() < 0.05, "{straight} and {through} per second");
    assert!(converted > 3.0 * straight, "{converted} of {straight} per second");
}

#[test]
fn a_store_point_has_only_the_figures_of_its_operations() {
    let store = |strategy, write_percent| {
        let point = StorePoint {
            strategy,
            write_percent,
            clients: 4,
            warm_up_us: 20.0,
            measure_us: 200.0,
            ..StorePoint::default()
        };
        simulated(&FarPoint::Store(point))
    };
    let mixed = store(Strategy::Optimistic, 50.0);
    for figure in [Figure::GetP99, Figure::PutP99, Figure::PutSuccess, Figure::BytesOverLeast, Figure::ClientFairness] {
        assert!(mixed.far[&figure] > 0.0, "{figure:?}: {:?}", mixed.far);
    }
    assert!(mixed.messages > 20 && mixed.messages_per_s > 1e5 && mixed.bytes == 128, "{mixed:?}");
    assert_eq!(mixed.far[&Figure::MemoryCores], 0.0, "the memory node's CPU takes no part");
    let offered = StorePoint { clients: 4, outstanding: 16, rate_per_s: Some(4e5), ..StorePoint::default() };
    let open = simulated(&FarPoint::Store(StorePoint { warm_up_us: 500.0, measure_us: 4000.0, ..offered }));
    assert!((open.messages_per_s / 4e5 - 1.0).abs() < 0.1, "an open loop keeps its rate: {open:?}");
    let over_least = open.far[&Figure::BytesOverLeast];
    assert!(over_least < 1.6, "a store with unused nodes does not recycle nodes: {over_least}");
    let gets = store(Strategy::Server, 0.0);
    assert!(gets.far[&Figure::MemoryCores] > 0.0 && gets.far.contains_key(&Figure::GetP99), "{:?}", gets.far);
    for figure in [Figure::PutP99, Figure::PutAttempts, Figure::PutSuccess] {
        assert!(!gets.far.contains_key(&figure), "{figure:?}: the run had no puts");
    }
}
