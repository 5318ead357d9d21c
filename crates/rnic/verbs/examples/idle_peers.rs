//! Measures the CPU time and memory of a device that shares memory with many idle peers.
//!
//! `cargo run --release -p doorbell-verbs --example idle_peers [PEERS]` opens a device and its peers, by default 1,000.
//! The device exchanges a message with each peer, and then all devices are idle for ten seconds. All devices belong to
//! this process, so the printed cost covers both ends of each pair. `idle_peers PEERS MIB` first sends MIB MiB to each
//! peer.

use std::time::{Duration, Instant};

use doorbell_verbs::SendOperation;
use doorbell_verbs::soft::{LinkChoice, SoftOptions};
use doorbell_verbs_conformance::common::*;
use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
use nix::sys::time::TimeValLike;

/// Time during which all devices are idle.
const IDLE: Duration = Duration::from_secs(10);

fn cpu_ns() -> i64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("the process's own usage");
    (usage.user_time() + usage.system_time()).num_nanoseconds()
}

/// Returns the resident ring memory in KiB. Each page counts once, although it is mapped twice.
fn ring_kib() -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").expect("the process's own mappings");
    let mut is_ring = false;
    let mut sum = 0;
    for line in smaps.lines() {
        if line.contains("-") && line.contains(" rw") {
            is_ring = line.contains("memfd:doorbell-link");
        } else if let Some(kib) = line.strip_prefix("Pss:").filter(|_| is_ring) {
            sum += kib.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of KiB");
        }
    }
    sum
}

fn main() {
    let peers: usize = std::env::args().nth(1).map_or(1000, |text| text.parse().expect("a number of peers"));
    let mib: u64 = std::env::args().nth(2).map_or(0, |text| text.parse().expect("a number of MiB"));
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, most, most).expect("descriptors up to the hard limit");
    let open = || open_soft(SoftOptions { link: Some(LinkChoice::Shm), publish: false, ..SoftOptions::default() });
    let hub = open();
    let pairs: Vec<_> = (0..peers)
        .map(|number| {
            let (a, b) = Plan::rc().connect(&(hub.clone(), open()));
            b.post_recv(1, &[]);
            a.post(2, SendOperation::Send, &[]);
            b.expect(1);
            a.expect(2);
            if mib > 0 {
                let (from, to) = (a.memory(1 << 20), b.memory(1 << 20));
                for number in 0..mib {
                    b.post_recv(number, &[to.sge(0, 1 << 20)]);
                    a.post(number, SendOperation::Send, &[from.sge(0, 1 << 20)]);
                    b.expect(number);
                    a.expect(number);
                }
            }
            if number % 100 == 99 {
                eprintln!("{} peers", number + 1);
            }
            (a, b)
        })
        .collect();
    println!("{:.1} KiB of rings for each of them", ring_kib() as f64 / peers as f64);
    std::thread::sleep(Duration::from_secs(3));
    let before = cpu_ns();
    std::thread::sleep(IDLE);
    let share = (cpu_ns() - before) as f64 / IDLE.as_nanos() as f64;
    let kib = ring_kib() as f64 / peers as f64;
    println!("{peers} idle peers: {:.3} % of a processor, {kib:.1} KiB of rings for each", 100.0 * share);
    // Measure the messages of one pair. The many idle peers must not delay these messages.
    let (a, b) = &pairs[peers / 2];
    let mut times: Vec<Duration> = Vec::new();
    for number in 0..2000 {
        let begun = Instant::now();
        b.post_recv(number, &[]);
        a.post(number, SendOperation::Send, &[]);
        b.expect(number);
        a.expect(number);
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    println!(
        "a message to one of them and its acknowledgement, both ends on this thread: {:?}",
        times[times.len() / 2]
    );
    // Check that each pair is still connected.
    for (a, b) in &pairs {
        b.post_recv(3, &[]);
        a.post(4, SendOperation::Send, &[]);
        b.expect(3);
        a.expect(4);
    }
    println!("all of them answer");
}
