//! `cargo xtask compare --build`: times of release builds of two revisions, each from an empty directory.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Instant;

use serde_json::json;

use super::{Revision, order};
use crate::shell::{cargo, run, target};
use crate::{figures, place, programs};

/// Number of rounds without `--rounds`. A build takes minutes.
pub(crate) const ROUNDS: u32 = 3;

/// Seconds of both builds of a round.
type Pair = [f64; 2];

/// Builds both revisions in turns, prints a table, and writes the times of all rounds to `out`.
pub(crate) fn compare(revisions: [&str; 2], rounds: u32, out: Option<&Path>) -> Result<(), String> {
    let _alone = place::measuring()?;
    let home = target().join("xtask").join("builds");
    let [own, other] = revisions;
    let revisions = [Revision::check_out(&home.join("own"), own)?, Revision::check_out(&home.join("other"), other)?];
    for Revision { tree, .. } in &revisions {
        // Download everything first, so that no measured build waits for the network.
        let mut fetch = cargo(&["fetch", "--quiet", "--locked"]);
        fetch.current_dir(tree);
        run(fetch)?;
    }
    let built = home.join("target");
    let pairs = in_turns(rounds, |index| seconds(&revisions[index].tree, &built))?;
    let ids = revisions.each_ref().map(|revision| revision.id.get(..8).unwrap_or(&revision.id));
    print!("{}", summary(ids, &pairs));
    let Some(out) = out else { return Ok(()) };
    let figures = json!({ "schema": "doorbell-build-times/1", "revisions": ids, "seconds": pairs });
    fs::write(out, format!("{figures:#}\n")).map_err(|error| format!("{}: {error}", out.display()))
}

/// Measures both builds in each round. `measure` gets the index of the build.
fn in_turns(rounds: u32, mut measure: impl FnMut(usize) -> Result<f64, String>) -> Result<Vec<Pair>, String> {
    let mut pairs = Vec::new();
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        let mut pair: Pair = [0.0; 2];
        for index in order(round) {
            pair[index] = measure(index)?;
        }
        pairs.push(pair);
    }
    Ok(pairs)
}

/// Returns the time of a release build in the folder `built`, which it empties before.
fn seconds(tree: &Path, built: &Path) -> Result<f64, String> {
    match fs::remove_dir_all(built) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(format!("{}: {error}", built.display())),
        _ => (),
    }
    let mut build = cargo(programs::BUILD);
    build.arg("--quiet").current_dir(tree).env("CARGO_TARGET_DIR", built);
    let begun = Instant::now();
    run(build)?;
    Ok(begun.elapsed().as_secs_f64())
}

/// Returns a line for each build, and a line for the ratio, with median, minimum and maximum.
fn summary(names: [&str; 2], pairs: &[Pair]) -> String {
    let text = |figures: Vec<f64>, digits: usize| {
        let (median, least, most) = figures::spread(figures).unwrap_or((f64::NAN, f64::NAN, f64::NAN));
        format!("{median:.digits$} ({least:.digits$}-{most:.digits$})")
    };
    let side = |index: usize| text(pairs.iter().map(|pair| pair[index]).collect(), 1);
    let ratio = text(pairs.iter().map(|[own, other]| own / other).collect(), 3);
    let [own, other] = names;
    format!("{own:<10} {} s\n{other:<10} {} s\n{:<10} {ratio}\n", side(0), side(1), "ratio")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_builds_are_measured_in_each_round() {
        let mut measured = Vec::new();
        let pairs = in_turns(2, |index| {
            measured.push(index);
            Ok(measured.len() as f64)
        });
        assert_eq!(pairs.unwrap(), [[2.0, 1.0], [3.0, 4.0]]);
        assert_eq!(measured, [1, 0, 0, 1]);
        assert_eq!(in_turns(2, |index| Err(format!("build {index} failed"))).unwrap_err(), "build 1 failed");
    }

    #[test]
    fn a_summary_has_both_times_and_their_ratio() {
        let text = summary(["b50abb4e", "fb5e2958"], &[[60.0, 100.0], [55.0, 110.0], [66.0, 100.0]]);
        let expected = "\
b50abb4e   60.0 (55.0-66.0) s
fb5e2958   100.0 (100.0-110.0) s
ratio      0.600 (0.500-0.660)
";
        assert_eq!(text, expected);
    }
}
