//! Measures several engines per device, and the bounds of two designs that the software RNIC does not have. The first
//! is messages that one copy places in the memory of the peer. The second is sends over UDP whose payloads the kernel
//! takes from the region.
//!
//! ```console
//! $ cargo bench -p doorbell-exchange --bench bounds -- engines [ROUNDS]
//! $ cargo bench -p doorbell-exchange --bench bounds -- copies [ROUNDS]
//! $ cargo bench -p doorbell-exchange --bench bounds -- gather [ROUNDS]
//! ```
//!
//! Each round measures every case once, every second round in reverse order. A ratio is the median of the ratios within
//! each round. With nine rounds, `engines` takes about three minutes, `copies` half a minute, and `gather` 40 seconds.
#![expect(clippy::disallowed_methods, reason = "the benchmark measures in real time")]

mod copies;
mod engines;
mod gather;
mod pair;
mod turns;
#[path = "../protocols/wire.rs"]
mod wire;

/// Number of rounds without an argument.
const ROUNDS: usize = 9;

/// Measures each of `cases` cases once in every round. Returns the figures of all rounds for each case.
fn in_rounds<T>(rounds: usize, cases: usize, mut measure: impl FnMut(usize, bool) -> T) -> Vec<Vec<T>> {
    let mut figures: Vec<Vec<T>> = (0..cases).map(|_| Vec::new()).collect();
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        let is_reversed = round % 2 == 1;
        for place in 0..cases {
            let case = if is_reversed { cases - 1 - place } else { place };
            figures[case].push(measure(case, is_reversed));
        }
    }
    figures
}

/// Returns median, minimum and maximum.
fn spread(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let last = values.len() - 1;
    [f64::midpoint(values[last / 2], values[last.div_ceil(2)]), values[0], values[last]]
}

fn main() {
    // Cargo passes the option `--bench` as well.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let rounds = arguments.get(1).map_or(ROUNDS, |text| text.parse().expect("a number of rounds"));
    assert!(rounds > 0, "{rounds} rounds: must be at least 1");
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let about = format!("medians of {rounds} rounds, {processors} processors");
    match arguments.first().map(String::as_str) {
        Some("engines") => engines::compare(rounds, &about),
        Some("copies") => copies::compare(rounds, &about),
        Some("gather") => gather::compare(rounds, &about),
        // `cargo bench` without a name runs all benches.
        None => {
            engines::compare(rounds, &about);
            copies::compare(rounds, &about);
            gather::compare(rounds, &about);
        }
        // Cargo passes a filter for benchmarks to all benches of the package.
        Some(_) => {}
    }
}
