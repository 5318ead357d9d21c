//! `cargo xtask seeds`: runs the simulation that creates and destroys objects of RNICs, for a number of hours.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::shell::{cargo, run};

/// Test binary and test of the simulation.
const SIMULATION: [&str; 2] = ["suite", "lifecycle::completions_stay_true"];

/// Runs consecutive seeds for `hours` hours. The first seed is `from`, or a new seed. Without `hours`, runs only the
/// seed `from`.
pub(crate) fn try_for(hours: Option<f64>, from: Option<u64>) -> Result<(), String> {
    let [binary, test] = SIMULATION;
    let mut command = cargo(&["test", "-p", "doorbell-rnic", "--test", binary, test]);
    // Use the time in nanoseconds as the first seed, so that each run has different seeds.
    let now_ns = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    let from = from.unwrap_or_else(now_ns);
    match hours {
        None => {
            command.env("SEED", from.to_string());
        }
        Some(hours) => {
            let seconds = (hours * 3600.0).ceil() as u64;
            eprintln!("seeds from {from} on, for {seconds} s");
            // Remove the variable, because with it the test would run only one seed.
            command.env_remove("SEED");
            command.env("DOORBELL_SEEDS_FROM", from.to_string()).env("DOORBELL_SEEDS_S", seconds.to_string());
        }
    }
    run(command)
}
