//! `cargo xtask seeds`: the simulation of RNICs whose objects come and go, for as long as one likes.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::shell::{cargo, run};

/// The simulation: its test binary, and its test.
const SIMULATION: [&str; 2] = ["lifecycle", "completions_stay_true"];

/// Tries seeds for a number of hours, starting with `from` or with a seed that was never tried. Without hours it
/// replays the seed `from`.
pub(crate) fn try_for(hours: Option<f64>, from: Option<u64>) -> Result<(), String> {
    let [binary, test] = SIMULATION;
    let mut command = cargo(&["test", "-p", "doorbell-rnic", "--test", binary, test]);
    // Nanoseconds, so that no two runs meet the same seeds.
    let now_ns = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    let from = from.unwrap_or_else(now_ns);
    match hours {
        None => {
            command.env("SEED", from.to_string());
        }
        Some(hours) => {
            let seconds = (hours * 3600.0).ceil() as u64;
            eprintln!("seeds from {from} on, for {seconds} s");
            // One that is left in the environment would be the only one.
            command.env_remove("SEED");
            command.env("DOORBELL_SEEDS_FROM", from.to_string()).env("DOORBELL_SEEDS_S", seconds.to_string());
        }
    }
    run(command)
}
