//! N:1 over a Clos network, with pauses and with drops.

use doorbell_protocols::Protocol;
use doorbell_record::{Extent, Kind, Operation, Parameters};
use doorbell_sim::sweep::{Axis, Base, MANY_TO_ONE, Sweep};
use doorbell_sim::testbed;
use doorbell_sim::traffic::{Carried, Pattern, Run, Traffic};
use doorbell_sim::{Testbed, Topology};

/// Bytes that a port may hold with [`SHORT`]. They are less than the windows of seven senders.
const QUEUE: u64 = 128 << 10;

/// Settings of short queues.
const SHORT: [(&str, &str); 3] =
    [("switch.resume_at", "32KiB"), ("switch.pause_at", "64KiB"), ("switch.queue", "128KiB")];

fn t1() -> &'static Testbed {
    testbed::by_name("connectx5-100g").expect("a built-in testbed")
}

/// Runs the sweep of 7000 messages per point with other settings and axes. Returns the values and the result of each
/// point.
fn sweep(settings: &[(&str, &str)], axes: &[&str]) -> Vec<(String, Carried)> {
    let axes: Vec<Axis> = axes.iter().map(|axis| axis.parse().expect("an axis")).collect();
    let settings = settings.iter().chain(&[("total_messages", "7000")]);
    let settings: Vec<_> = settings.map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
    let (settings, axes) = MANY_TO_ONE.with(&settings, axes);
    let mut base = Base::new(t1());
    settings.iter().for_each(|(name, value)| base.set(name, value).unwrap_or_else(|error| panic!("{error}")));
    let sweep = Sweep::new(&base, axes, 1 << 30).unwrap_or_else(|error| panic!("{error}"));
    let run = |point: &doorbell_sim::sweep::Point| {
        let carried = point.run(1, 1 << 30, None, None).unwrap_or_else(|error| panic!("{:?}: {error}", point.values));
        (point.values.join(" "), carried)
    };
    sweep.points().iter().map(run).collect()
}

#[test]
fn eight_hosts_pause_without_drops_or_retransmit_without_pauses() {
    // The axes of the preset are the protocol and `switch.when_full`, before the given one.
    let points = sweep(&SHORT, &["senders=7"]);
    assert_eq!(points.len(), 6);
    for (values, carried) in &points {
        let counts = carried.summary.counts;
        assert_eq!(carried.messages, 7000, "{values}");
        assert!(counts.longest_queue_bytes() <= QUEUE, "{values}: {counts:?}");
        let fairness = carried.fairness.expect("all senders sent messages");
        assert!((1.0 / 7.0..=1.0 + 1e-9).contains(&fairness), "{values}: {fairness}");
        if values.contains("pause") {
            assert_eq!((counts.dropped, carried.retransmitted), (0, 0), "{values}");
        } else {
            assert_eq!((counts.pauses, counts.paused_ps), (0, 0), "{values}");
        }
    }
    // Senders of Send-Receive fill the queue of the receiver's port with their windows.
    let of = |name: &str| &points.iter().find(|(values, _)| values == name).expect("a point").1;
    let (paused, dropped) = (of("send-receive pause 7"), of("send-receive drop 7"));
    assert!(paused.summary.counts.pauses > 0 && paused.summary.counts.paused_ps > 0, "{:?}", paused.summary.counts);
    assert!(dropped.summary.counts.dropped > 0 && dropped.retransmitted > 0, "{:?}", dropped.summary.counts);
}

#[test]
fn hosts_behind_fewer_ports_get_less_of_a_paused_receiver() {
    // Of 63 senders, 15 are at the receiver's leaf with a port each. 48 share the ports from 16 spines to that leaf.
    let points = sweep(&[], &["senders=63", "protocol=send-receive", "switch.when_full=pause"]);
    let [(_, carried)] = &points[..] else { panic!("{} points", points.len()) };
    let counts = carried.summary.counts;
    assert_eq!((counts.dropped, carried.retransmitted), (0, 0), "{counts:?}");
    let fairness = carried.fairness.expect("all senders sent messages");
    assert!((1.0 / 63.0..1.0).contains(&fairness), "{fairness}");
    // The queues grow from the receiver back to the spines.
    let [to_nodes, _, to_leaves] = counts.longest_queues;
    assert!(to_nodes > 0 && to_leaves > 0, "{counts:?}");
}

#[test]
fn senders_of_shared_write_deliver_all_messages_into_one_ring() {
    let mut parameters = Parameters::plain(Kind::Bandwidth, Operation::Send, 600);
    (parameters.protocol, parameters.extent) = (Protocol::SharedWrite, Extent::Messages(500));
    parameters.verify = true;
    let traffic = Traffic { pattern: Pattern::ManyToOne, n: 8, parameters, bytes: 600 };
    let topology = Topology::Clos { nodes: 9, hosts: 3, spines: 2 };
    let run = Run { testbed: t1(), topology, seed: 1, memory: 1 << 30, capture: None, progress: None };
    let carried = traffic.run(run).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((carried.messages, carried.damaged, carried.retransmitted), (4000, 0, 0));
}

#[test]
fn a_broken_connection_is_the_error_of_a_run() {
    let replace = |testbed: Testbed, (name, value): (&str, &str)| testbed.with(name, value).expect("an allowed value");
    let switch = [
        ("switch.when_full", "drop"),
        ("switch.resume_at", "4KiB"),
        ("switch.pause_at", "4KiB"),
        ("switch.queue", "4KiB"),
    ];
    let testbed = switch.into_iter().fold(t1().clone(), replace);
    let mut parameters = Parameters::plain(Kind::Bandwidth, Operation::Send, 4096);
    parameters.extent = Extent::Messages(200);
    // The sender gives up after the first timeout, 8 us.
    (parameters.timeout, parameters.retry_count) = (1, 0);
    let traffic = Traffic { pattern: Pattern::ManyToOne, n: 4, parameters, bytes: 4096 };
    let topology = Topology::Star { nodes: 5 };
    let run = Run { testbed: &testbed, topology, seed: 1, memory: 1 << 30, capture: None, progress: None };
    let error = traffic.run(run).expect_err("a port holds less than one frame");
    assert!(error.is_broken_connection(), "{error}");
    assert!(error.to_string().starts_with("a connection broke: "), "{error}");
}

/// Below saturation, the rate of all senders together is the offered one.
#[test]
fn senders_share_the_offered_rate() {
    let mut base = Base::new(t1());
    for (name, value) in [("pattern", "N:1"), ("senders", "4"), ("reply", "64"), ("messages", "200")] {
        base.set(name, value).unwrap_or_else(|error| panic!("{error}"));
    }
    let axes = ["rate=100000,400000".parse().expect("an axis"), "sizes=64:0.9+4096:0.1".parse().expect("an axis")];
    let sweep = Sweep::new(&base, axes.to_vec(), 1 << 30).expect("a sweep");
    for (point, rate) in sweep.points().iter().zip([1e5, 4e5]) {
        assert_eq!(point.numbers, [Some((rate, "messages/s")), None]);
        let carried = point.run(1, 1 << 30, None, None).unwrap_or_else(|error| panic!("{error}"));
        assert!((carried.messages_per_s / rate - 1.0).abs() < 0.05, "{} of {rate}", carried.messages_per_s);
        assert!(carried.latency_ns.is_some_and(|ns| ns < 20_000), "{:?}", carried.latency_ns);
    }
}
