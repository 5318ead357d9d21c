//! `cargo xtask seeds`: the simulations of RNICs, for as long as one likes.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::shell::{cargo, run};

/// The simulation whose objects come and go: its test binary, and its test.
const SIMULATION: [&str; 2] = ["lifecycle", "what_completed_stays_true"];

/// Tries seeds from `from` on (else from one that was never tried) for so many hours, or replays one.
pub(crate) fn try_for(hours: Option<f64>, from: Option<u64>) -> Result<(), String> {
    let [binary, test] = SIMULATION;
    let mut command = cargo(&["test", "-p", "doorbell-rnic", "--test", binary, test]);
    match (hours, from) {
        (None, None) => return Err("give --hours N, or --from SEED to replay one seed, or both".to_owned()),
        (None, Some(seed)) => {
            command.env("SEED", seed.to_string());
        }
        (Some(hours), from) => {
            if !(hours > 0.0 && hours <= 24.0 * 365.0) {
                return Err(format!("--hours is {hours}: it must be more than 0, and a year at most"));
            }
            // Nanoseconds, so that no two runs meet the same seeds.
            let now_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
            let from = from.unwrap_or(now_ns);
            let seconds = (hours * 3600.0).ceil() as u64;
            eprintln!("seeds from {from} on, for {seconds} s");
            command.env("DOORBELL_SEEDS_FROM", from.to_string()).env("DOORBELL_SEEDS_S", seconds.to_string());
        }
    }
    run(command)
}
