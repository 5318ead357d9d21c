//! Reports from directories of records.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use doorbell_claims::Testbed;
use doorbell_output::files;
use doorbell_study::experiment::RunDirectory;
use doorbell_study::{Failure, Usage};
use serde_json::{Value, json};

use crate::view::sentences;
use crate::{Fitted, Run, Tally};

/// A report that was written.
#[derive(Debug)]
pub struct Written {
    /// Path of the report.
    pub path: PathBuf,
    /// Verdicts on each published shape and each goal.
    pub verdicts: Vec<Value>,
    /// Changes between two runs, one for each experiment that both runs have.
    pub changes: Vec<Value>,
    /// Numbers of verdicts: first those on published shapes, then those on goals.
    pub counts: [Tally; 2],
    /// Sentences on the first run, one for each compared size that it measured, with the best protocols.
    pub answers: Vec<String>,
    /// Runs of the report.
    pub runs: Vec<Run>,
}

/// Writes a file completely or not at all. If writing fails, the file keeps its old contents.
///
/// # Errors
///
/// The file cannot be written.
pub fn write_whole(out: &Path, text: &str) -> io::Result<()> {
    files::replace(out, text.as_bytes())
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", out.display())))
}

/// Rejects a report that would replace a record, as after `--out *.json`. Every record states its schema.
fn check_is_no_record(out: &Path) -> Result<(), Usage> {
    let read = || std::fs::read(out).ok().and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    // Reading a pipe would wait for its writer.
    if out.is_file() && read().is_some_and(|value| value.get("schema").is_some()) {
        return Err(Usage(format!("--out: {} is a record, allowed is another file", out.display())));
    }
    Ok(())
}

/// Rejects two runs without a common experiment.
fn have_something_in_common(
    (one, its_runs): (&Path, &[Run]),
    (other, other_runs): (&Path, &[Run]),
) -> Result<(), Usage> {
    let experiments = |runs: &[Run]| -> BTreeSet<String> {
        runs.iter().flat_map(|run| &run.records).map(|record| record.experiment.clone()).collect()
    };
    let (its, others) = (experiments(its_runs), experiments(other_runs));
    if its.is_disjoint(&others) {
        let named = |experiments: BTreeSet<String>| experiments.into_iter().collect::<Vec<_>>().join(", ");
        return Err(Usage(format!(
            "{} and {} have no experiment in common, so there is nothing to compare: {} has {}; {} has {}",
            one.display(),
            other.display(),
            one.display(),
            named(its),
            other.display(),
            named(others)
        )));
    }
    Ok(())
}

/// Reads the runs in directories of records. A directory has a run for its measurements, and one for each simulated
/// testbed.
///
/// # Errors
///
/// A directory has no records, or two directories are the same.
pub fn read_runs(directories: &[PathBuf]) -> Result<Vec<Vec<Run>>, Failure> {
    let (mut runs, mut names, mut places) = (Vec::new(), Vec::new(), Vec::new());
    for path in directories {
        if !path.is_dir() {
            return Err(Usage(format!("{} is no directory", path.display())).into());
        }
        let place = path.canonicalize()?;
        if let Some(index) = places.iter().position(|known| *known == place) {
            let (one, other) = (directories[index].display(), path.display());
            return Err(Usage(format!("{one} and {other} are the same directory: name each run once")).into());
        }
        let name =
            place.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
        // Runs on different machines often have the same name: add the path, or a number, to tell the runs apart.
        let is_taken = |name: &str| names.iter().any(|taken| taken == name);
        let name = if is_taken(&name) { path.display().to_string() } else { name };
        let name = if is_taken(&name) { format!("{name} ({})", names.len() + 1) } else { name };
        names.push(name.clone());
        places.push(place);
        runs.push(Run::of(&name, RunDirectory::read(path)?));
    }
    Ok(runs)
}

/// Writes the report of the runs in these directories.
///
/// # Errors
///
/// A directory has no records, two directories are the same or have no experiment in common, or the report cannot be
/// written. The report would replace a record.
pub fn write_report(directories: &[PathBuf], published: Option<&Testbed>, out: &Path) -> Result<Written, Failure> {
    check_is_no_record(out)?;
    let runs = read_runs(directories)?;
    if let [one, other] = directories {
        have_something_in_common((one, &runs[0]), (other, &runs[1]))?;
    }
    let runs = runs.concat();
    let verdicts = crate::verdicts(&runs);
    let html = crate::html(&runs, Some(&Fitted::new(&runs)), published);
    write_whole(out, &html)?;
    let counts =
        [false, true].map(|is_goal| Tally::of(verdicts.iter().filter(|found| found.claim.is_goal() == is_goal)));
    let changes = crate::changes(&runs).into_iter().map(|it| {
        json!({
            "experiment": it.experiment,
            "quantity": it.quantity,
            "points": it.points,
            "more": it.more,
            "less": it.less,
            "apart_by_chance": it.by_chance,
            "ratio": it.ratio,
            "less_is_better": it.less_is_better,
        })
    });
    let changes = changes.collect();
    let verdicts = verdicts
        .into_iter()
        .map(|found| {
            json!({
                "run": found.run,
                "experiment": found.experiment,
                if found.claim.is_goal() { "goal" } else { "published" }: found.claim.says,
                "outcome": found.verdict.finding.name(),
                "because": found.verdict.because,
                "quiet": !found.is_restless,
            })
        })
        .collect();
    let answers = runs.first().map(sentences).unwrap_or_default();
    Ok(Written { path: out.to_owned(), verdicts, changes, counts, answers, runs })
}
