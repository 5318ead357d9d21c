//! Seeded runs of RNICs that create and destroy objects under traffic and faults. Queue pairs are reset, drained,
//! destroyed and connected again. Memory and windows are removed while peers use them. Queues are shared, resized and
//! replaced, numbers are reused at once, links are full, and devices vanish and restart.
//!
//! `completions` and `finish` hold the checks. The runs count events, and a run of all seeds fails if an event in the
//! table of [`Tally`] never happened.

mod completions;
mod finish;
mod life;
mod model;
mod operations;
mod work;

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::seeds::{Plan, for_seeds, say};
use crate::common::tally::Tally;
use crate::common::world::DEFAULT_BUFFER_BYTES;
use crate::common::{Acks, Link, Rng, Worst};
use doorbell_testing::seeded_test;
use finish::run;
use life::Options;

/// Names of the faults: each fault alone, and "mixed" for all of them.
const FAULTS: [&str; 8] = ["none", "loss", "duplicate", "reorder", "delay", "overflow", "full", "mixed"];

const WORST: Worst = Worst { loss: 150, buffer_bytes: 20_000, full: 300 };

fn options(seed: u64) -> Options {
    let mut rng = Rng::new(seed ^ 0x6f70_7469);
    let name = FAULTS[(seed % FAULTS.len() as u64) as usize];
    // Small buffers lead to small windows and split READs.
    let buffer_bytes = *rng.pick(&[5_000, 20_000, DEFAULT_BUFFER_BYTES]);
    let mut link = Link { latency_ns: rng.within(100, 30_000), buffer_bytes, ..Link::default() };
    link.disturb(name, &WORST, &mut rng);
    Options {
        nodes: rng.within(2, 3) as usize,
        reliable: rng.within(1, 3) as usize,
        unreliable: rng.chance(500),
        posts: rng.within(40, 400) as usize,
        operations: rng.within(4, 40) as usize,
        link,
        acks: *rng.pick(&[Acks::Released, Acks::AtRandom, Acks::Held]),
        strict: rng.chance(500),
        takes_regions_back: Rng::new(seed ^ 0x6261_636b).chance(200),
    }
}

/// Seeds that failed in the past.
///
/// - 953419300848: a peer invalidated the key of a deregistered region, but a new region already had the same key.
/// - 700000152160: late copies of one RNR NAK were counted as retries.
/// - 869091405605: a READ failed after its memory was gone, and the network lost its NAK.
const STORED: &[u64] = &[953_419_300_848, 700_000_152_160, 869_091_405_605];

fn one(seed: u64) -> Tally {
    run(seed, &options(seed)).0
}

/// Runs 10,000 fixed seeds, and 2,000 seeds that change with each commit.
#[test]
fn completions_stay_true_under_any_object_lifecycle() {
    let test = seeded_test!("completions_stay_true");
    if let Some(met) = for_seeds(test, Plan { fixed: 10_000, fresh: 2_000, stored: STORED }, one) {
        say(&format!("{}: how often each was met:\n{}", test.name, met.table()));
        assert_eq!(met.missing(), Vec::<&str>::new(), "these events never happened, so the run does not test them");
    }
}

#[test]
fn a_seed_replays_exactly() {
    let differ = AtomicUsize::new(0);
    for seed in (0..64).chain([u64::MAX / 3]) {
        let (first, again) = (run(seed, &options(seed)), run(seed, &options(seed)));
        assert_eq!(first, again, "seed {seed} gave two different runs");
        differ.fetch_add(usize::from(first.1 != run(seed + 1, &options(seed + 1)).1), Ordering::Relaxed);
    }
    assert!(differ.into_inner() > 60, "seeds differ");
}
