//! The unchanged code of each protocol on simulated hosts.

use std::time::Duration;

use doorbell_exchange::asynchronous::{Async, Waiter};
use doorbell_exchange::{Config, Connector, MessageConnection, Received, SendReceive, with_connector};
use doorbell_protocols::Protocol;
use doorbell_sim::{Ps, Simulation, SimulationError, Summary, Testbed, Topology, VirtualWaiter, testbed};

fn t1() -> Testbed {
    testbed::by_name("connectx5-100g").expect("a built-in testbed").clone()
}

type Pair<P> = (<P as Connector>::Connection, <P as Connector>::Connection);

fn join<P: Connector>(simulation: &Simulation<'_>, protocol: &P, nodes: [usize; 2], config: &Config) -> Pair<P> {
    let end = |node| {
        let pd = simulation.device(node).create_pd().expect("a device has room for a domain");
        protocol.endpoint(&pd, config, None).expect("a device has room for a connection")
    };
    let (a, b) = (end(nodes[0]), end(nodes[1]));
    let (of_a, of_b) = (protocol.describe(&a), protocol.describe(&b));
    (protocol.connect(a, &of_b).expect("both ends connect"), protocol.connect(b, &of_a).expect("both ends connect"))
}

fn quiet(config: Config) -> Config {
    config.keepalive(Duration::ZERO).max_message(10_000)
}

fn payload(number: u64, length: usize) -> Vec<u8> {
    (0..length).map(|at| (number as usize * 131 + at * 7 + (at >> 8)) as u8).collect()
}

async fn send_all<C: MessageConnection>(connection: C, waiter: VirtualWaiter, messages: u64, length: usize) {
    let mut connection = Async::new(connection, waiter.clone());
    let mut last = 0;
    for number in 0..messages {
        last = connection.send(&payload(number, length)).await.expect("the message is sent");
        waiter.breathe().await;
    }
    connection.get_mut().flush().expect("the messages are posted");
    connection.wait(last).await.expect("the last message arrives");
    connection.finish().await.expect("both ends close the connection");
}

async fn receive_all<C: MessageConnection>(connection: C, waiter: VirtualWaiter, length: usize) -> u64 {
    let mut connection = Async::new(connection, waiter.clone());
    let mut received = 0;
    while let Ok(message) = connection.receive().await {
        assert!(message.to_vec() == payload(received, length), "message {received} of {length} B");
        received += 1;
        drop(message);
        waiter.breathe().await;
    }
    connection.finish().await.expect("both ends close the connection");
    received
}

/// Runs one connection, or many connections to one node.
fn streams<P: Connector>(protocol: &P, topology: Topology, config: &Config, messages: u64, length: usize) -> Summary {
    let mut simulation = Simulation::new(&t1(), topology, 1).expect("a simulation");
    let waiter = simulation.polling();
    let receivers: Vec<_> = (1..topology.nodes())
        .map(|node| {
            let (a, b) = join(&simulation, protocol, [node, 0], config);
            simulation.spawn(node, format!("sender {node}"), send_all(a, waiter.clone(), messages, length));
            simulation.spawn(0, format!("receiver {node}"), receive_all(b, waiter.clone(), length))
        })
        .collect();
    let summary = simulation.run().unwrap_or_else(|error| panic!("{}: {error}", protocol.protocol().name()));
    assert!(receivers.iter().all(|receiver| receiver.take() == Some(messages)), "{}", protocol.protocol().name());
    summary
}

#[test]
fn every_protocol_carries_messages_of_every_length_intact() {
    for protocol in Protocol::ALL {
        for config in [Config::sequential(), Config::unbatched(), Config::batched()] {
            for length in [0, 1, 16, 64, 65, 4096, 10_000] {
                let config = quiet(config.clone());
                with_connector!(protocol, connector => streams(&connector, Topology::Pair, &config, 60, length));
            }
        }
    }
}

#[test]
fn many_senders_reach_one_node_through_a_switch() {
    for protocol in Protocol::ALL {
        let (topology, config) = (Topology::Star { nodes: 5 }, quiet(Config::unbatched()));
        let summary = with_connector!(protocol, connector => streams(&connector, topology, &config, 300, 512));
        assert!(summary.counts.packets > 0 && summary.counts.dropped == 0, "{}", protocol.name());
    }
}

/// A thread may poll for one completion, take it, and then wait. Both the completions that the queue still has and
/// later completions have to wake this thread.
#[test]
fn threads_that_take_single_completions_are_woken_again() {
    for protocol in Protocol::ALL {
        let config = quiet(Config::unbatched()).signal_each(true).poll_list(1);
        for (nodes, length) in [(2, 16), (5, 512), (5, 8192)] {
            let topology = Topology::Star { nodes };
            with_connector!(protocol, connector => streams(&connector, topology, &config, 200, length));
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_result() {
    let run = || streams(&SendReceive, Topology::Star { nodes: 4 }, &quiet(Config::batched()), 500, 16);
    let (one, other) = (run(), run());
    assert_eq!(one, other);
}

/// Sends messages between two nodes under a fault plan. Returns the number of firings of each rule, too.
fn under_faults(plan: &str) -> (Summary, Vec<u64>) {
    let mut simulation = Simulation::new(&t1(), Topology::Pair, 1).expect("a simulation");
    simulation.inject(&plan.parse().expect("a plan"));
    let (waiter, config) = (simulation.polling(), quiet(Config::unbatched()));
    let (a, b) = join(&simulation, &SendReceive, [1, 0], &config);
    simulation.spawn(1, format!("sender under {plan}"), send_all(a, waiter.clone(), 300, 512));
    let received = simulation.spawn(0, format!("receiver under {plan}"), receive_all(b, waiter.clone(), 512));
    let summary = simulation.run().unwrap_or_else(|error| panic!("{plan}: {error}"));
    assert_eq!(received.take(), Some(300), "{plan}");
    (summary, simulation.fired())
}

#[test]
fn messages_survive_the_rules_of_a_fault_plan() {
    let (quiet_run, none) = under_faults("seed=1");
    assert_eq!(none, Vec::<u64>::new());
    for plan in [
        "drop opcode=ack nth=1",
        "drop opcode=send nth=10",
        "duplicate opcode=send nth=20 copies=2 for=3us",
        "delay opcode=send nth=30 for=50us",
        "reorder opcode=send nth=40 behind=2",
        "black-hole opcode=send nth=50 count=3",
        "drop opcode=send nth=10;delay opcode=ack nth=2 for=20us",
        "drop direction=out opcode=ack nth=1",
        "duplicate direction=out opcode=send nth=20 copies=2 for=3us",
        "delay direction=out opcode=send nth=30 for=50us",
        "reorder direction=out opcode=send nth=40 behind=2",
        "drop direction=out opcode=send nth=10;drop opcode=send nth=50",
        "port-down opcode=send nth=60 for=100us",
        "slow-poll operation=receive nth=30 for=50us",
        "drop opcode=ack nth=1;slow-poll operation=send nth=1 for=20us",
    ] {
        let (summary, fired) = under_faults(plan);
        assert!(fired.iter().all(|count| *count >= 1), "{plan}: {fired:?}");
        assert_ne!(summary, quiet_run, "{plan}");
        assert_eq!(under_faults(plan), (summary, fired), "{plan}");
    }
}

#[test]
fn calls_fail_in_virtual_time() {
    let mut simulation = Simulation::new(&t1(), Topology::Pair, 1).expect("a simulation");
    simulation.inject(&"call-error call=alloc-pd nth=2 errno=EAGAIN".parse().expect("a plan"));
    let device = simulation.device(0);
    device.create_pd().expect("the first call succeeds");
    let error = device.create_pd().expect_err("the second call fails");
    assert!(error.to_string().starts_with("the fault plan refuses ibv_alloc_pd"), "{error}");
    simulation.device(1).create_pd().expect("each host has a plan of its own");
    assert_eq!(simulation.fired(), [1]);
}

#[test]
fn threads_that_sleep_are_woken_by_notifications() {
    let mut simulation = Simulation::new(&t1(), Topology::Pair, 1).expect("a simulation");
    let config = quiet(Config::unbatched());
    let end = |node: usize| {
        let pd = simulation.device(node).create_pd().expect("the device has room");
        let channel = simulation.device(node).create_channel().expect("the device has room");
        SendReceive.endpoint(&pd, &config, Some(&channel)).expect("the device has room")
    };
    let (a, b) = (end(0), end(1));
    let (of_a, of_b) = (SendReceive.describe(&a), SendReceive.describe(&b));
    let (a, b) = (
        SendReceive.connect(a, &of_b).expect("both ends connect"),
        SendReceive.connect(b, &of_a).expect("both ends connect"),
    );
    let waiter = simulation.sleeping();
    simulation.spawn(0, "sender", send_all(a, waiter.clone(), 500, 16));
    let received = simulation.spawn(1, "receiver", receive_all(b, waiter, 16));
    let summary = simulation.run().expect("the simulation ends");
    assert_eq!(received.take(), Some(500));
    assert!(summary.threads.iter().all(|thread| thread.slept > Ps::ZERO), "{:?}", summary.threads);
}

#[test]
fn a_deadlock_is_reported_with_each_thread_and_queue_pair() {
    let mut simulation = Simulation::new(&t1(), Topology::Pair, 1).expect("a simulation");
    let (a, b) = join(&simulation, &SendReceive, [0, 1], &quiet(Config::sequential()));
    let waiter = simulation.polling();
    // Both threads wait for a message, and no thread sends a message.
    simulation.spawn(0, "one", receive_all(a, waiter.clone(), 1));
    simulation.spawn(1, "other", receive_all(b, waiter, 1));
    let Err(error) = simulation.run() else { panic!("the run must end in a deadlock, because no thread sends") };
    assert!(matches!(error, SimulationError::Deadlock { waiting: 2, threads: 2, .. }), "{error}");
    let text = error.to_string();
    for needed in ["thread one on node 0", "thread other on node 1", "of node 0: ReadyToSend", "of node 1: ReadyToSend"]
    {
        assert!(text.contains(needed), "{needed} is missing:\n{text}");
    }
}
