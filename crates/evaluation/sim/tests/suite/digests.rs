//! The same seed gives the same result on each machine and with each build, regardless of earlier runs. The digest
//! covers the time of each delivery of a packet and of each turn.
//!
//! `tests/digests.txt` stores the digests. `cargo xtask test` checks that the release build of the command finds the
//! same digests. After an intended change of the simulator or of a testbed, update the file with
//! `DOORBELL_UPDATE_DIGESTS=1 cargo test -p doorbell-sim --test suite digests::`.

use std::path::Path;

use doorbell_protocols::Protocol;
use doorbell_sim::sweep::{Base, Sweep};
use doorbell_sim::testbed;

/// Settings of further runs, in addition to one run per protocol. These runs cover lists, latencies, pauses, drops and
/// a network of several switches.
const RUNS: [&str; 5] = [
    "batch=8 messages=2000",
    "measure=latency window=1 size=4096 messages=200",
    "pattern=N:1 senders=6 size=4096 messages=200 switch.resume_at=32KiB switch.pause_at=64KiB",
    "pattern=N:1 senders=6 size=4096 messages=200 switch.when_full=drop switch.resume_at=0B switch.pause_at=64KiB \
     switch.queue=64KiB",
    "network=clos leaf_nodes=4 oversubscription=2 pattern=N:N senders=8 size=1000 messages=100",
];

/// Returns a line with the digest and the settings.
fn digest(settings: &str, seed: u64) -> String {
    let mut base = Base::new(testbed::by_name("connectx5-100g").expect("a built-in testbed"));
    for setting in settings.split_whitespace() {
        let (name, value) = setting.split_once('=').expect("a setting");
        base.set(name, value).unwrap_or_else(|error| panic!("{error}"));
    }
    let sweep = Sweep::new(&base, Vec::new(), 1 << 30).unwrap_or_else(|error| panic!("{settings}: {error}"));
    let run = sweep.points()[0].run(seed, 1 << 30, None, None);
    let carried = run.unwrap_or_else(|error| panic!("{settings}: {error}"));
    format!("{:016x} {settings}\n", carried.summary.digest)
}

#[test]
fn equal_seeds_give_equal_digests() {
    let mut runs: Vec<String> = Protocol::ALL.iter().map(|it| format!("protocol={} messages=300", it.name())).collect();
    runs.extend(RUNS.map(str::to_owned));
    let found: Vec<String> = runs.iter().map(|settings| digest(settings, 7)).collect();
    // Run again in another order. The allocation moves the memory of these runs to other addresses.
    let held = vec![1_u8; 12_345];
    let again: Vec<String> = runs.iter().rev().map(|settings| digest(settings, 7)).collect();
    drop(held);
    assert!(found.iter().eq(again.iter().rev()), "{found:#?}\n{again:#?}");
    // Queue pair numbers depend on the seed.
    assert_ne!(digest(&runs[0], 8), found[0]);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/digests.txt");
    if std::env::var_os("DOORBELL_UPDATE_DIGESTS").is_some() {
        std::fs::write(&file, found.concat()).expect("the file can be written");
    }
    let kept = std::fs::read_to_string(&file).expect("the file is part of the crate");
    assert_eq!(
        found.concat(),
        kept,
        "digests differ from {}; after an intended change, DOORBELL_UPDATE_DIGESTS=1 updates the file",
        file.display()
    );
}
