//! Measures the simulator: Send-Receive messages simulated per second on one core, with the code and RNICs of both
//! ends.
//!
//! Run it with `cargo run --release -p doorbell-sim --example speed`. On Linux, the seconds are the CPU time of the
//! core, so other programs do not count. `speed batched 100000` makes only the run `batched`, with 100000 messages. To
//! count the instructions per message, make runs of two lengths under `valgrind --tool=callgrind`. Divide the
//! difference of the counts by the difference of the lengths.

use std::time::{Duration, Instant};

/// Returns the CPU time of this thread, or `None` if the kernel does not report it.
fn on_core() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}

use doorbell_exchange::asynchronous::{Async, Waiter};
use doorbell_exchange::{Config, Connector, MessageConnection, SendReceive, Submit};
use doorbell_sim::{Simulation, Topology, VirtualWaiter, testbed};

type Connection = <SendReceive as Connector>::Connection;

async fn send(mut connection: Connection, waiter: VirtualWaiter, messages: u64) {
    let mut sent = 0;
    while sent < messages {
        while sent < messages
            && let Submit::Accepted(_) = connection.send(&[7; 16]).expect("the message is sent")
        {
            sent += 1;
            waiter.breathe().await;
        }
        if !connection.poll().expect("the connection works") {
            waiter.wait(None, None).await;
        }
    }
    Async::new(connection, waiter).finish().await.expect("both ends close the connection");
}

async fn receive(mut connection: Connection, waiter: VirtualWaiter, messages: u64) {
    let mut received = 0;
    while received < messages {
        if !connection.poll().expect("the connection works") {
            waiter.wait(None, None).await;
        }
        while let Some(message) = connection.take() {
            drop(message);
            received += 1;
            waiter.breathe().await;
        }
    }
    Async::new(connection, waiter).finish().await.expect("both ends close the connection");
}

fn run(name: &str, topology: Topology, config: &Config, messages: u64) {
    let t1 = testbed::by_name("connectx5-100g").expect("a built-in testbed");
    let mut simulation = Simulation::new(t1, topology, 1).expect("a simulation");
    let waiter = simulation.polling();
    let senders = topology.nodes() - 1;
    let each = messages / senders as u64;
    let config = config.clone().keepalive(Duration::ZERO).max_message(64);
    for node in 1..topology.nodes() {
        let end = |node: usize| {
            let pd = simulation.device(node).create_pd().expect("the device has room");
            SendReceive.endpoint(&pd, &config, None).expect("the device has room")
        };
        let (a, b) = (end(node), end(0));
        let (of_a, of_b) = (SendReceive.describe(&a), SendReceive.describe(&b));
        let a = SendReceive.connect(a, &of_b).expect("both ends connect");
        let b = SendReceive.connect(b, &of_a).expect("both ends connect");
        simulation.spawn(node, format!("sender {node}"), send(a, waiter.clone(), each));
        simulation.spawn(0, format!("receiver {node}"), receive(b, waiter.clone(), each));
    }
    let (began, core_began) = (Instant::now(), on_core());
    let summary = simulation.run().expect("the simulation ends");
    let passed = began.elapsed();
    let on_core = on_core().zip(core_began).map_or(passed, |(now, before)| now.saturating_sub(before));
    let seconds = on_core.as_secs_f64();
    let messages = each * senders as u64;
    let counts = summary.counts;
    println!(
        "{name}: {:.3} M messages/s simulated in {seconds:.3} s of a core ({:.3} s passed); {:.2} events, {:.2} packets, {:.2} turns per message; \
         {} long turns; virtual {:.2} M messages/s, digest {:016x}",
        messages as f64 / seconds / 1e6,
        passed.as_secs_f64(),
        counts.events as f64 / messages as f64,
        counts.packets as f64 / messages as f64,
        counts.turns as f64 / messages as f64,
        counts.long_turns,
        messages as f64 / (summary.ended.0 as f64 / 1e12) / 1e6,
        summary.digest,
    );
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (only, messages) = (arguments.next().unwrap_or_default(), arguments.next());
    let messages = messages.map_or(1_000_000, |number| number.parse().expect("a number of messages"));
    for (name, topology, config) in [
        ("batched 1:1", Topology::Pair, Config::batched()),
        ("unbatched 1:1", Topology::Pair, Config::unbatched()),
        ("incast of 256 nodes", Topology::Star { nodes: 257 }, Config::unbatched()),
    ] {
        if name.starts_with(&only) {
            run(name, topology, &config, messages);
        }
    }
}
