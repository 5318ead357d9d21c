//! UC and UD on simulated hosts, with the workloads that measure them on real hosts.

use doorbell_record::{Extent, Kind, Operation, Parameters, Transport};
use doorbell_sim::session::{Point, simulate};
use doorbell_sim::sweep::{Base, Sweep};
use doorbell_sim::testbed;
use doorbell_sim::traffic::Carried;

const MESSAGES: u64 = 500;

fn point(kind: Kind, transport: Transport, bytes: usize) -> Point {
    let t1 = testbed::by_name("connectx5-100g").expect("a built-in testbed");
    let extent = Extent::Messages(MESSAGES);
    let parameters = Parameters { transport, extent, verify: true, ..Parameters::plain(kind, Operation::Send, bytes) };
    simulate(t1, &parameters, bytes, 1).unwrap_or_else(|error| panic!("{transport}: {error}"))
}

#[test]
fn messages_arrive_intact_in_the_predicted_packets() {
    let of_both = [0, 16, 1024].map(|bytes| [(Transport::Uc, bytes), (Transport::Ud, bytes)]);
    for (transport, bytes) in of_both.into_iter().flatten().chain([(Transport::Uc, 10_000)]) {
        let Point { result, summary } = point(Kind::Bandwidth, transport, bytes);
        let what = format!("{transport}, {bytes} B: {result:?}");
        assert_eq!((result.messages, result.lost, result.damaged), (MESSAGES, 0, 0), "{what}");
        for (counted, predicted) in
            [(&result.counted.client, &result.predicted.client), (&result.counted.server, &result.predicted.server)]
        {
            assert_eq!(counted.data_packets, predicted.data_packets, "{what}");
        }
        let predicted = result.predicted.client.data_packets + result.predicted.server.data_packets;
        assert_eq!(summary.counts.packets, predicted, "{what}");
        assert_eq!(summary.long_turns(), None, "{what}");
    }
}

#[test]
fn acknowledgements_hardly_change_a_round_trip() {
    // A ping-pong does not wait for acknowledgements. `stations.rs` tests the additional time of a datagram to the
    // picosecond.
    let median_ns = |transport| point(Kind::Latency, transport, 16).result.latency_ns.expect("a latency").p50;
    let rc = median_ns(Transport::Rc);
    for transport in [Transport::Uc, Transport::Ud] {
        let median = median_ns(transport);
        assert!(median.abs_diff(rc) * 5 < rc, "{median} ns over {transport}, {rc} ns over RC");
    }
}

fn carried(settings: &[&str]) -> Carried {
    let mut base = Base::new(testbed::by_name("connectx5-100g").expect("a built-in testbed"));
    for setting in settings {
        let (name, value) = setting.split_once('=').expect("a setting");
        base.set(name, value).unwrap_or_else(|error| panic!("{error}"));
    }
    let sweep = Sweep::new(&base, Vec::new(), 1 << 30).unwrap_or_else(|error| panic!("{settings:?}: {error}"));
    sweep.points()[0].run(1, 1 << 30, None, None).unwrap_or_else(|error| panic!("{settings:?}: {error}"))
}

#[test]
fn each_transport_carries_traffic_and_loses_dropped_frames() {
    for transport in ["transport=uc", "transport=ud"] {
        for pattern in ["pattern=1:1", "pattern=N:1", "pattern=1:N", "pattern=N:N"] {
            let found = carried(&[transport, pattern, "senders=3", "size=1000", "messages=200"]);
            let connections = if pattern == "pattern=1:1" { 1 } else { 3 };
            let counts = found.summary.counts;
            assert_eq!(
                (found.messages, found.lost, found.damaged),
                (200 * connections, 0, 0),
                "{transport}, {pattern}"
            );
            // Each packet is a message, since there are no acknowledgements.
            assert_eq!((counts.packets, found.retransmitted), (found.messages, 0), "{transport}, {pattern}");
            assert_eq!(found.summary.long_turns(), None, "{transport}, {pattern}");
        }
        // Each dropped frame is a message of one packet. The run ends when no packet is in flight.
        let drops = ["switch.when_full=drop", "switch.resume_at=0B", "switch.pause_at=64KiB", "switch.queue=64KiB"];
        let incast = [transport, "pattern=N:1", "senders=4", "size=4096", "messages=300"];
        let found = carried(&[&drops[..], &incast[..]].concat());
        let counts = found.summary.counts;
        assert!(found.lost > 0 && counts.dropped > 0, "{transport}: {counts:?}");
        assert_eq!((found.lost, found.messages + found.lost), (counts.dropped, 1200), "{transport}");
        // At a rate, the senders take turns. Their frames would form a queue if all senders sent at the same time.
        let found = carried(&[transport, "pattern=N:1", "senders=4", "size=4096", "messages=50", "rate=400000"]);
        assert_eq!((found.messages, found.summary.counts.longest_queue_bytes()), (200, 0), "{transport}");
        let latency =
            |transport| carried(&[transport, "measure=latency", "messages=100"]).latency_ns.expect("a latency");
        let (with, without) = (latency("transport=rc"), latency(transport));
        assert!(without.abs_diff(with) * 5 < with, "{without} ns over {transport}, {with} ns over RC");
    }
}
