//! Thousands of seeded runs of two and more RNICs under faults. A failing seed is printed and replays exactly.

use crate::common::fuzz::{check_bounds, stage};
use crate::common::seeds::{self, Plan};
use crate::common::tally::Tally;
use crate::common::workload::{Options, Workload};
use crate::common::world::DEFAULT_BUFFER_BYTES;
use crate::common::{Acks, Link, Rng, Worst};
use doorbell_testing::seeded_test;

/// Names of the faults: each fault alone, and "mixed" for all of them.
const FAULTS: [&str; 8] = ["none", "loss", "duplicate", "reorder", "delay", "overflow", "held-acks", "mixed"];

const WORST: Worst = Worst { loss: 200, buffer_bytes: 40_000, full: 0 };

fn options(seed: u64) -> (&'static str, Options) {
    let mut rng = Rng::new(seed ^ 0x6f70_7469);
    let name = FAULTS[(seed % FAULTS.len() as u64) as usize];
    // Small buffers lead to small windows and split READs.
    let buffer_bytes = *rng.pick(&[5_000, 20_000, 60_000, DEFAULT_BUFFER_BYTES]);
    let mut link = Link { latency_ns: rng.within(100, 50_000), buffer_bytes, ..Link::default() };
    let mut acks = *rng.pick(&[Acks::Released, Acks::AtRandom]);
    link.disturb(name, &WORST, &mut rng);
    if name == "held-acks" {
        acks = Acks::Held;
    }
    // Use either two nodes with much work, or up to eight nodes with less work each.
    let nodes = if rng.chance(600) { 2 } else { rng.within(3, 8) as usize };
    let connections = rng.within(1, nodes as u64 + 1) as usize;
    let messages = 40 / connections + 2;
    (name, Options { nodes, connections, messages, link, acks, timeout: 14, retry_count: 7 })
}

fn run(seed: u64) {
    let (_, options) = options(seed);
    let mut workload = Workload::new(seed, &options);
    workload.finish();
    workload.check_memory();
}

/// Runs a fixed set of seeds.
fn for_seeds(test: seeds::Test, fixed: u64, body: impl Fn(u64) + Sync) {
    seeds::for_seeds(test, Plan { fixed, fresh: 0, stored: &[] }, |seed| {
        body(seed);
        Tally::default()
    });
}

/// Repeats the run of a seed. In each repetition, one node vanishes one step later.
fn vanish(seed: u64) {
    let mut rng = Rng::new(seed ^ 0x7661_6e69);
    let nodes = rng.within(2, 3) as usize;
    let link = Link { latency_ns: 3_000, loss: rng.below(50), ..Link::default() };
    let acks = *rng.pick(&[Acks::Released, Acks::AtRandom, Acks::Held]);
    let options = Options { nodes, connections: nodes, messages: 5, link, acks, timeout: 8, retry_count: 5 };
    let victim = rng.below(nodes as u64) as usize;
    let mut step = 0;
    loop {
        let mut workload = Workload::new(seed, &options);
        let mut done = false;
        for _ in 0..step {
            done = workload.is_done();
            workload.step();
        }
        workload.world.nodes[victim].alive = false;
        workload.finish();
        workload.act(true);
        workload.check_failures();
        if done {
            return;
        }
        step += 1;
    }
}

#[test]
fn a_peer_that_vanishes_is_reported_and_holds_no_resources() {
    for_seeds(seeded_test!("a_peer_that_vanishes"), 40, vanish);
}

/// Flips bytes in packets. No ICRC protects these packets, so the RNICs process them.
fn flips(seed: u64) {
    let (mut world, _secrets) = stage();
    world.rng = Rng::new(seed);
    world.link.flip = 10 + seed % 500;
    world.link.duplicate = 100;
    world.run_until(50_000_000);
    for node in &world.nodes {
        check_bounds(&node.rnic);
        let counters = node.rnic.counters();
        assert!(counters.tx_vport_rdma_unicast_packets < 100_000, "damaged packets led to endless traffic");
    }
}

#[test]
fn undetected_corruption_does_not_harm_the_device() {
    for_seeds(seeded_test!("undetected_corruption"), 2_000, flips);
}

#[test]
fn rc_delivers_everything_once_and_in_order_under_faults() {
    for_seeds(seeded_test!("rc_delivers_everything"), 10_000, run);
}
