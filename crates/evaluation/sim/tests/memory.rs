//! Compares the estimated memory of runs with the memory that the runs take. This file has only one test, because the
//! kernel counts memory per process.

use doorbell_sim::sweep::{Base, Sweep};
use doorbell_sim::testbed;

/// Returns a value of `/proc/self/status` in bytes.
fn status(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("Linux has /proc/self/status");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
    let kib = line.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok()).expect("a number");
    kib << 10
}

#[test]
fn runs_take_about_the_estimated_memory() {
    let mut wrong = Vec::new();
    // Each run takes more memory than the run before, since the kernel reports only the peak of the process.
    for settings in [
        "messages=2000",
        "pattern=N:1 senders=200 messages=20",
        "network=clos pattern=N:N senders=512 messages=10",
        "pattern=N:1 senders=100 size=4096 messages=200 window=64 depth=128",
        "pattern=N:1 senders=16 size=65536 messages=100 window=64 depth=128",
    ] {
        let mut base = Base::new(testbed::by_name("connectx5-100g").expect("a built-in testbed"));
        for setting in settings.split_whitespace() {
            let (name, value) = setting.split_once('=').expect("a setting");
            base.set(name, value).unwrap_or_else(|error| panic!("{error}"));
        }
        let sweep = Sweep::new(&base, Vec::new(), u64::MAX).unwrap_or_else(|error| panic!("{settings}: {error}"));
        let estimated = sweep.points()[0].memory();
        let run = sweep.points()[0].run(1, u64::MAX, None, None);
        run.unwrap_or_else(|error| panic!("{settings}: {error}"));
        let taken = status("VmHWM");
        println!("{settings}: estimated {} MiB, taken {} MiB", estimated >> 20, taken >> 20);
        if taken > estimated + estimated / 4 || estimated > 3 * taken {
            wrong.push(format!("{settings}: {taken} B, estimated {estimated} B"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
