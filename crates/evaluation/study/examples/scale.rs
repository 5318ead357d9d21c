//! Measures workloads with many devices or many connections: the rate of N senders to one receiver, and the memory,
//! connect rate and close rate of many connections in one process.
//!
//! `cargo run --release -p doorbell-study --example scale`
#![expect(clippy::disallowed_methods, reason = "the example measures in real time")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use doorbell_exchange::MessageConnection;
use doorbell_exchange::send_receive::{Config, Connection, Endpoint, Submit};
use doorbell_verbs::soft::{self, SoftOptions};
use doorbell_verbs::{Access, Device, MemoryKind};

const BYTES: usize = 4096;
const RECEIVE_BUFFER_BYTES: usize = 212_992;
const SECONDS: f64 = 1.5;

fn device(receive_buffer_bytes: Option<usize>) -> Device {
    soft::open(&SoftOptions { receive_buffer_bytes, ..SoftOptions::default() }).expect("a software RNIC opens")
}

fn connect(one: Endpoint, other: Endpoint) -> (Connection, Connection) {
    let (of_one, of_other) = (one.description(), other.description());
    (one.connect(&of_other).expect("the end connects"), other.connect(&of_one).expect("the end connects"))
}

/// Returns the messages per second from `senders` devices to one device, and the numbers of retransmitted and of data
/// packets.
fn n_to_one(senders: usize) -> (f64, u64, u64) {
    let config = Config::default().window(64).depth(128).max_message(BYTES).send_buffers(0);
    let receiver = device(Some(RECEIVE_BUFFER_BYTES));
    let receiver_pd = receiver.create_pd().expect("a protection domain");
    let stop = Arc::new(AtomicBool::new(false));
    let arrived = Arc::new(AtomicU64::new(0));
    let (mut sending, mut receiving) = (Vec::new(), Vec::new());
    for _ in 0..senders {
        let device = device(Some(RECEIVE_BUFFER_BYTES));
        let pd = device.create_pd().expect("a protection domain");
        let region = pd.allocate(BYTES, Access::empty(), MemoryKind::Plain).expect("memory");
        let one = Endpoint::new(&pd, config.clone(), None).expect("an endpoint");
        let other = Endpoint::new(&receiver_pd, config.clone(), None).expect("an endpoint");
        let (one, other) = connect(one, other);
        sending.push((device, region, one));
        receiving.push(other);
    }
    let sender = {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                for (_, region, connection) in &mut sending {
                    while let Submit::Accepted(_) = connection.send_from(region, 0, BYTES).expect("sends") {}
                    connection.poll().expect("lives");
                }
            }
            sending
        })
    };
    let counting = {
        let (stop, arrived) = (Arc::clone(&stop), Arc::clone(&arrived));
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                for connection in &mut receiving {
                    connection.poll().expect("lives");
                    let mut count = 0;
                    while connection.take().is_some() {
                        count += 1;
                    }
                    arrived.fetch_add(count, Ordering::Relaxed);
                }
            }
            receiving
        })
    };
    std::thread::sleep(Duration::from_millis(300)); // warm-up
    let (before, began) = (arrived.load(Ordering::Relaxed), Instant::now());
    std::thread::sleep(Duration::from_secs_f64(SECONDS));
    let rate = (arrived.load(Ordering::Relaxed) - before) as f64 / began.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    let sending = sender.join().expect("the sending thread does not panic");
    drop(counting.join().expect("the receiving thread does not panic"));
    let counters =
        sending.iter().filter_map(|(device, ..)| device.counters()).reduce(|a, b| a.plus(&b)).unwrap_or_default();
    (rate, counters.tx_retransmitted_packets, counters.tx_data_packets)
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or_default();
    let kib: usize = line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    kib << 10
}

fn many_connections(count: usize) {
    let config = Config::default().max_message(64).send_buffers(0);
    let (one, other) = (device(None), device(None));
    let (one_pd, other_pd) = (one.create_pd().expect("a domain"), other.create_pd().expect("a domain"));
    let before = resident_bytes();
    let began = Instant::now();
    let connections: Vec<_> = (0..count)
        .map(|_| {
            let a = Endpoint::new(&one_pd, config.clone(), None).expect("an endpoint");
            let b = Endpoint::new(&other_pd, config.clone(), None).expect("an endpoint");
            connect(a, b)
        })
        .collect();
    let connected = began.elapsed();
    // Both ends of each connection are in this process.
    let ends = 2 * count;
    let per_end = (resident_bytes() - before) / ends;
    let buffers = config.memory_bytes();
    let began = Instant::now();
    drop(connections);
    let closed = began.elapsed();
    println!(
        "{count} connections: {per_end} B per end, of which {buffers} B are its receive buffers; \
         {:.0} connections/s made, {:.0} closed (both ends)",
        count as f64 / connected.as_secs_f64(),
        count as f64 / closed.as_secs_f64()
    );
}

fn main() {
    println!("{BYTES} B messages, receive buffer {RECEIVE_BUFFER_BYTES} B, window 64:");
    for senders in [1, 2, 4, 16] {
        let (rate, repeated, packets) = n_to_one(senders);
        println!(
            "{senders:>3} senders: {rate:>9.0} messages/s arrive, {:.2} % of packets repeated",
            100.0 * repeated as f64 / packets as f64
        );
    }
    many_connections(1000);
}
