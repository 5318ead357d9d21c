//! Runs a fuzz body over its corpus, and on mutations of the corpus for a bounded time.
//!
//! `DOORBELL_FUZZ_SECONDS` sets how long a body runs on mutated inputs (default 2). `DOORBELL_SEED` selects the
//! mutations (default 1). Each test run repeats the same mutations, so more time would find little. `cargo xtask fuzz`
//! finds new inputs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::Rng;

/// Runs a fuzz body in a test of the crate that uses this macro. The corpus is in `tests/corpus/NAME` of that crate.
#[macro_export]
macro_rules! run_fuzz {
    ($name:literal, $body:expr) => {
        // `CARGO_TARGET_TMPDIR` exists only in integration tests.
        $crate::fuzz::runner::run($name, $body, env!("CARGO_MANIFEST_DIR"), option_env!("CARGO_TARGET_TMPDIR"))
    };
}

fn corpus(home: &str, name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(home).join("tests/corpus").join(name);
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("a readable file")).collect()
}

fn mutate(rng: &mut Rng, input: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..=rng.below(8) {
        let at = rng.below(input.len() as u64 + 1) as usize;
        match rng.below(5) {
            0 => input.insert(at, rng.next() as u8),
            1 if at < input.len() => input[at] = rng.next() as u8,
            2 if at < input.len() => {
                input.remove(at);
            }
            3 => {
                let from = rng.below(other.len() as u64 + 1) as usize;
                let upto = (from + rng.below(256) as usize).min(other.len());
                input.splice(at..at, other[from..upto].iter().copied());
            }
            _ => input.extend((0..rng.below(32)).map(|_| rng.next() as u8)),
        }
    }
    input.truncate(8192);
}

fn number(name: &str, default: u64) -> u64 {
    let parse = |text: String| text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a whole number"));
    std::env::var(name).map_or(default, parse)
}

/// Runs a body over the corpus of the crate in the directory `home`, and on mutations of the corpus. Stores a failing
/// input in `scratch`. Tests call this function through [`run_fuzz`](crate::run_fuzz!).
///
/// # Panics
///
/// If an input fails, or if the corpus is empty.
pub fn run(name: &str, body: fn(&[u8]), home: &str, scratch: Option<&str>) {
    let seconds = number("DOORBELL_FUZZ_SECONDS", 2);
    let seed = number("DOORBELL_SEED", 1);
    let scratch = scratch.map_or_else(std::env::temp_dir, PathBuf::from);
    let attempt = |input: &[u8]| {
        if catch_unwind(AssertUnwindSafe(|| body(input))).is_err() {
            let path = scratch.join(format!("{name}.failed"));
            std::fs::write(&path, input).expect("a writable folder");
            panic!(
                "an input of {} B failed: put {} into tests/corpus/{name} to replay it",
                input.len(),
                path.display()
            );
        }
    };
    let mut rng = Rng::new(seed);
    let mut inputs = corpus(home, name);
    assert!(!inputs.is_empty(), "tests/corpus/{name} is part of the repository");
    for length in [0, 1, 2, 3, 5, 8, 13, 100, 1000, 4000] {
        inputs.extend((0..4).map(|_| (0..length).map(|_| rng.next() as u8).collect::<Vec<_>>()));
    }
    for input in &inputs {
        attempt(input);
    }
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut count = 0_u64;
    while Instant::now() < until {
        let mut input = rng.pick(&inputs).clone();
        let other = rng.pick(&inputs);
        mutate(&mut rng, &mut input, other);
        attempt(&input);
        count += 1;
        if rng.chance(100) && input.len() > 8 {
            let at = rng.below(inputs.len() as u64) as usize;
            if inputs.len() < 256 {
                inputs.push(input);
            } else {
                inputs[at] = input;
            }
        }
    }
    eprintln!("{name}: {count} mutations in {seconds} s, DOORBELL_SEED={seed}");
}
