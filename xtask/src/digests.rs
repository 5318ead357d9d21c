//! Check that simulations give the same result in every build and on every machine.

use crate::programs;
use crate::shell::{command, output_of, root};

/// Digests that every build must reproduce. A test of `doorbell-sim` checks the test build.
const FILE: &str = "crates/evaluation/sim/tests/digests.txt";

/// Repeats the runs with stored digests, with the release build.
pub(crate) fn compare() -> Result<(), String> {
    let file = root().join(FILE);
    let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut runs = 0;
    for line in text.lines() {
        let (digest, settings) = line.split_once(' ').ok_or_else(|| format!("{}: {line}", file.display()))?;
        let mut sweep = command(programs::doorbell(), &["sim", "sweep", "--json", "--seed", "7"]);
        settings.split_whitespace().for_each(|setting| _ = sweep.args(["--set", setting]));
        let output: serde_json::Value =
            serde_json::from_str(&output_of(sweep)?).map_err(|error| format!("{settings}: {error}"))?;
        let found = output.pointer("/points/0/digest").and_then(serde_json::Value::as_str).unwrap_or("nothing");
        if found != digest {
            return Err(format!("{settings}: the digest is {found}, {} has {digest}", file.display()));
        }
        runs += 1;
    }
    eprintln!("{runs} simulations have their stored digests");
    if runs > 0 { Ok(()) } else { Err(format!("{} has no digests", file.display())) }
}
