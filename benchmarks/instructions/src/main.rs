//! `doorbell-instructions WORKLOAD MESSAGES`: both ends of a workload in one process, for an instruction counter.
//!
//! `rnic` is two RNICs on a clock of their own; `exchange` and `bench` run on the software RNIC's engine, over a wire in
//! memory. `bench` is what `doorbell bench` runs once its processes are connected. `shm` and `udp` are `bench` between
//! two devices with these links. Both ends are in one thread, except those of `events`.

mod events;
#[path = "../../../crates/rnic/rnic/benches/in_process/pair.rs"]
mod pair;
#[path = "../../../crates/messages/exchange/benches/protocols/wire.rs"]
mod wire;
/// Older revisions have them in another crate.
mod words {
    pub(crate) use doorbell_verbs::*;
}

use std::process::ExitCode;

// No `Connector` and no list of a configuration's values: both changed their form between revisions. In older ones the
// calls are methods of Send-Receive's connection itself, and the import of the trait is unused.
use doorbell_exchange::{Config, MessageConnection, Submit, send_receive};
use doorbell_study::executor::{self, Idle};
use doorbell_study::workload::{Plan, Reception, SendMemory, Sizes, ping, respond, stream};
use doorbell_verbs::soft::{self, LinkChoice, SoftOptions};
use doorbell_verbs::{Access, Device, MemoryKind, Pd};
use serde::de::DeserializeOwned;

const SMALL: usize = 16;
const LARGE: usize = 65536;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let messages = arguments.get(1).and_then(|number| number.parse::<u64>().ok());
    let (Some(workload), Some(messages)) = (arguments.first(), messages) else {
        eprintln!("usage: doorbell-instructions WORKLOAD MESSAGES");
        return ExitCode::FAILURE;
    };
    match workload.as_str() {
        "rnic" => rnic(SMALL, 1, messages),
        "rnic-batched" => rnic(SMALL, 8, messages),
        "rnic-64k" => rnic(LARGE, 1, messages),
        "exchange" => exchange(SMALL, 1, messages),
        "exchange-batched" => exchange(SMALL, 8, messages),
        "bench-lat" => bench_lat(wire::devices(), SMALL, messages),
        "bench-bw" => bench_bw(wire::devices(), SMALL, 1, 64, messages),
        "bench-bw-batched" => bench_bw(wire::devices(), SMALL, 8, 256, messages),
        "bench-bw-64k" => bench_bw(wire::devices(), LARGE, 1, 16, messages),
        "shm-lat" => bench_lat(devices_on(LinkChoice::Shm), SMALL, messages),
        "shm-bw" => bench_bw(devices_on(LinkChoice::Shm), SMALL, 1, 64, messages),
        "shm-bw-64k" => bench_bw(devices_on(LinkChoice::Shm), LARGE, 1, 16, messages),
        "udp-lat" => bench_lat(devices_on(LinkChoice::Udp), SMALL, messages),
        "udp-bw" => bench_bw(devices_on(LinkChoice::Udp), SMALL, 1, 64, messages),
        "udp-bw-64k" => bench_bw(devices_on(LinkChoice::Udp), LARGE, 1, 16, messages),
        "shm-events" => events::ping_pong(devices_on(LinkChoice::Shm), SMALL, messages),
        "udp-events" => events::ping_pong(devices_on(LinkChoice::Udp), SMALL, messages),
        other => {
            eprintln!("there is no workload {other:?}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn rnic(bytes: usize, per_post: usize, messages: u64) {
    let mut pair = pair::Pair::new(bytes);
    for _ in 0..messages / pair.window() as u64 {
        pair.round(per_post);
    }
}

/// An end of a connection, with what it was made from.
struct End {
    connection: send_receive::Connection,
    device: Device,
    pd: Pd,
}

/// Opens two devices with a link of the software RNIC. They retransmit only after the timeout of the queue pair, since
/// packets take many times longer under an instruction counter.
fn devices_on(link: LinkChoice) -> [Device; 2] {
    let options = SoftOptions { link: Some(link), retransmits_early: false, publish: false, ..SoftOptions::default() };
    [(); 2].map(|()| soft::open(&options).expect("a software RNIC opens"))
}

fn connected(devices: [Device; 2], config: &Config) -> [End; 2] {
    let made = devices.map(|device| {
        let pd = device.create_pd().expect("room");
        let endpoint = send_receive::Endpoint::new(&pd, config.clone(), None).expect("an end");
        (device, pd, endpoint)
    });
    let described = made.each_ref().map(|(_, _, endpoint)| endpoint.description());
    let mut peers = described.into_iter().rev();
    made.map(|(device, pd, endpoint)| {
        let peer = peers.next().expect("there are two");
        End { connection: endpoint.connect(&peer).expect("the ends fit"), device, pd }
    })
}

fn exchange(bytes: usize, batch: usize, messages: u64) {
    let mut config = Config::default();
    (config.batch, config.max_message) = (batch, bytes);
    let [mut a, mut b] = connected(wire::devices(), &config);
    let message = vec![7; bytes];
    let (mut sent, mut received) = (0, 0);
    while a.connection.last_done() < messages || received < messages {
        while sent < messages
            && let Submit::Accepted(id) = a.connection.send(&message).expect("a connection")
        {
            sent = id;
        }
        a.connection.flush().expect("a connection");
        a.connection.poll().expect("a connection");
        b.connection.poll().expect("a connection");
        while let Some(message) = b.connection.take() {
            drop(message);
            received += 1;
        }
    }
}

fn plan(bytes: usize, window: usize, messages: u64) -> Plan {
    Plan {
        bytes,
        window,
        in_rounds: false,
        extent: extent(messages),
        rate: None,
        think_ns: 0,
        verify: false,
        buffers: window,
    }
}

/// Returns the extent of a plan. Its type is found by inference, since it lies in different crates in different revisions.
fn extent<E: DeserializeOwned>(messages: u64) -> E {
    serde_json::from_value(serde_json::json!({ "messages": messages })).expect("an extent is a number of messages")
}

fn memory(end: &End, plan: &Plan) -> SendMemory {
    let region = end.pd.allocate(plan.bytes * plan.buffers, Access::empty(), MemoryKind::Plain).expect("room");
    SendMemory { region, stride: plan.bytes, sizes: Sizes::Planned, phase: 0.0 }
}

fn bench_lat(devices: [Device; 2], bytes: usize, messages: u64) {
    let mut config = Config::default();
    (config.max_message, config.send_buffers) = (bytes, 0);
    let [a, b] = connected(devices, &config);
    let plan = plan(bytes, 1, messages);
    let (of_a, of_b) = (memory(&a, &plan), memory(&b, &plan));
    let idle = Idle::spin();
    let (waiter, other) = (idle.clone(), idle.clone());
    type Task = std::pin::Pin<Box<dyn Future<Output = u64>>>;
    let pinging: Task = Box::pin(async move {
        ping(a.connection, waiter, a.device, plan, of_a, 2, &|_| {}).await.expect("a connection").0.sent
    });
    let answering: Task = Box::pin(async move {
        respond(b.connection, other, b.device, plan, of_b, Reception::default()).await.expect("a connection").received
    });
    let done = executor::run(&idle, [pinging, answering]);
    assert!(done.iter().all(|&count| count >= messages), "{done:?}");
}

fn bench_bw(devices: [Device; 2], bytes: usize, batch: usize, window: usize, messages: u64) {
    let mut config = Config::default();
    (config.batch, config.window, config.depth) = (batch, window, 2 * window);
    (config.max_message, config.send_buffers) = (bytes, 0);
    let [a, b] = connected(devices, &config);
    let plan = plan(bytes, window, messages);
    let memory = memory(&a, &plan);
    let idle = Idle::spin();
    let (waiter, other) = (idle.clone(), idle.clone());
    let reception = Reception::default();
    let sending = stream(a.connection, waiter, a.device, Some((plan, memory)), reception, &|_: u64| {});
    let receiving = stream(b.connection, other, b.device, None, reception, &|_: u64| {});
    type Task = std::pin::Pin<Box<dyn Future<Output = u64>>>;
    let sending: Task = Box::pin(async move { sending.await.expect("a connection").sent });
    let receiving: Task = Box::pin(async move { receiving.await.expect("a connection").received });
    let done = executor::run(&idle, [sending, receiving]);
    assert!(done.iter().all(|&count| count >= messages), "{done:?}");
}
