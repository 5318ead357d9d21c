//! UC and UD on simulated hosts, by the workloads that measure them on others.

use doorbell_sim::session::{Point, simulate};
use doorbell_sim::testbed;
use doorbell_study::parameters::{Extent, Kind, Operation, Parameters, Transport};

const MESSAGES: u64 = 500;

fn point(kind: Kind, transport: Transport, bytes: usize) -> Point {
    let t1 = testbed::by_name("connectx5-100g").expect("a testbed of the program");
    let extent = Extent::Messages(MESSAGES);
    let parameters = Parameters { transport, extent, verify: true, ..Parameters::plain(kind, Operation::Send, bytes) };
    simulate(t1, &parameters, bytes, 1).unwrap_or_else(|error| panic!("{transport}: {error}"))
}

#[test]
fn messages_arrive_whole_in_as_many_packets_as_predicted_and_no_others() {
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
fn a_round_trip_takes_about_as_long_with_and_without_acknowledgements() {
    // Nobody waits for an acknowledgement in a ping-pong. What a datagram adds, `stations.rs` has to the picosecond.
    let median_ns = |transport| point(Kind::Latency, transport, 16).result.latency_ns.expect("a latency").p50;
    let rc = median_ns(Transport::Rc);
    for transport in [Transport::Uc, Transport::Ud] {
        let median = median_ns(transport);
        assert!(median.abs_diff(rc) * 5 < rc, "{median} ns over {transport}, {rc} ns over RC");
    }
}
