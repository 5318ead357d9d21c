//! Advice on a simulated testbed, beside the model.

use doorbell_model::advise::{Advice, Goal, Need, advise};
use doorbell_model::parameters::Parameters;
use doorbell_model::workload::Peers;
use doorbell_protocols::Protocol;
use doorbell_sim::advise::{departs, simulate};
use doorbell_sim::{Testbed, testbed};

fn t1() -> &'static Testbed {
    testbed::by_name("t1").expect("a built-in testbed")
}

/// Returns the advice on Send-Receive for a need.
fn send_receive(need: &Need) -> Advice {
    let all = advise(&Parameters::t1(), need).expect("advice");
    all.into_iter().find(|advice| advice.protocol == Protocol::SendReceive).expect("Send-Receive")
}

/// Returns the loaded latency of Send-Receive for a need, by the model and by simulation.
fn loaded(need: &Need) -> [f64; 2] {
    let advice = send_receive(need);
    let simulated = simulate(t1(), need, &advice).expect("a simulation");
    [advice.loaded_ns, simulated.loaded_ns].map(|ns| ns.expect("a latency with load"))
}

#[test]
fn requests_have_a_latency_alone_and_with_load() {
    let need = Need {
        peers: Peers::many_to_one(4),
        reply_bytes: Some(4096),
        window: Some(8),
        receiver_holds: true,
        ..Need::new(64, Goal::Throughput)
    };
    let simulated = simulate(t1(), &need, &send_receive(&need)).expect("a simulation");
    let loaded_ns = simulated.loaded_ns.expect("full windows");
    assert!(loaded_ns > simulated.latency_ns && simulated.latency_ns > 3000.0, "{simulated:?}");
    // Little's law for 32 requests in flight, which are fewer at the end of the run.
    let in_flight = loaded_ns * simulated.messages_per_s / 1e9;
    assert!((24.0..=33.0).contains(&in_flight), "{in_flight}: {simulated:?}");
}

#[test]
fn the_model_knows_the_latency_at_offered_rates() {
    for rate in [5e5, 3e6, 5e6] {
        let need = Need {
            peers: Peers::many_to_one(16),
            reply_bytes: Some(200),
            messages_per_s: Some(rate),
            window: Some(64),
            ..Need::new(200, Goal::Latency)
        };
        let [model, simulated] = loaded(&need);
        assert!(!departs(model, simulated), "{rate} requests/s: {model} and {simulated} ns");
    }
}

/// Requests of 16 B wait for requests of 1 MiB, which the clients send at one tenth of the rate.
#[test]
fn sizes_share_an_offered_rate() {
    let need = Need {
        sizes: vec![(16, 9.0), (1 << 20, 1.0)],
        peers: Peers::many_to_one(24),
        reply_bytes: Some(64),
        messages_per_s: Some(5e4),
        window: Some(1),
        ..Need::new(16, Goal::Latency)
    };
    let advice = send_receive(&need);
    let simulated = simulate(t1(), &need, &advice).expect("a simulation");
    let [model_ns, loaded_ns] = [advice.loaded_ns, simulated.loaded_ns].map(|ns| ns.expect("a latency with load"));
    assert!(!departs(model_ns, loaded_ns) && loaded_ns > simulated.latency_ns, "{model_ns} ns, {simulated:?}");
    assert!((0.98..=1.01).contains(&(simulated.messages_per_s / 5e4)), "{simulated:?}");
}

#[test]
fn sizes_of_both_sides_have_a_stream_each() {
    let need = Need {
        sizes: vec![(64, 1.0), (4096, 1.0)],
        messages_per_s: Some(1e4),
        bidirectional: true,
        ..Need::new(64, Goal::Latency)
    };
    let advice = send_receive(&Need { bidirectional: false, ..need.clone() });
    let simulated = simulate(t1(), &need, &advice).expect("a simulation");
    assert_eq!((simulated.loaded_ns, simulated.messages_per_s), (None, 1e4), "{simulated:?}");
}

#[test]
fn the_model_knows_the_latency_of_clients_that_think() {
    for think_us in [5, 200] {
        let need = Need {
            peers: Peers::many_to_one(16),
            reply_bytes: Some(65_536),
            think_us,
            window: Some(1),
            ..Need::new(200, Goal::Latency)
        };
        let [model, simulated] = loaded(&need);
        assert!(!departs(model, simulated), "{think_us} us of think time: {model} and {simulated} ns");
    }
}

#[test]
fn one_receiving_thread_serves_all_senders() {
    let need = Need { peers: Peers::many_to_one(16), ..Need::new(64, Goal::Throughput) };
    let pairs = Need { peers: Peers::pairs(16), ..need.clone() };
    for advice in advise(&Parameters::t1(), &need).expect("advice") {
        if !["send-receive", "buffered-write-tail-send"].contains(&advice.protocol.name()) {
            continue;
        }
        let [one, many] = [&need, &pairs].map(|need| simulate(t1(), need, &advice).expect("a simulation"));
        assert!(one.messages_per_s < many.messages_per_s, "{advice:?}: {one:?}, {many:?}");
    }
}
