//! `doorbell report`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use doorbell_output::files;
use doorbell_published::Testbed;
use doorbell_report::{Fitted, Run};
use doorbell_study::experiment::{Finding, RunDirectory};
use serde_json::{Value, json};

use crate::failure::{Failure, Usage};
use crate::links;
use crate::output::{line, note};

/// Write one self-contained HTML file with plots, tables and verdicts.
#[derive(Args)]
pub(crate) struct Report {
    /// Directories with records of `doorbell study`, each with one run. The report shows all runs together, and for two
    /// runs also the changes from the first run to the second
    #[arg(value_name = "DIR", required = true)]
    directories: Vec<PathBuf>,
    /// Draw the published figures of this testbed beside the measured figures: T1, T2 or T3
    #[arg(long, value_name = "TESTBED", value_parser = testbed)]
    published: Option<&'static Testbed>,
    /// File to write
    #[arg(long, value_name = "FILE", default_value = "report.html")]
    out: PathBuf,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(report: &Report) -> Result<ExitCode, Failure> {
    let written = write_report(&report.directories, report.published, &report.out)?;
    if report.json {
        line(serde_json::to_string_pretty(&json!({
            "schema": "doorbell-report/1",
            "report": written.path,
            "verdicts": written.verdicts,
            "links": written.links_as_json(),
            "changes": written.changes,
        }))?)?;
    } else {
        written.print()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns a testbed by its name.
fn testbed(name: &str) -> Result<&'static Testbed, String> {
    doorbell_published::testbed(name).ok_or_else(|| {
        let names: Vec<&str> = doorbell_published::all().iter().map(|testbed| testbed.name.as_str()).collect();
        format!("must be a published testbed: {}", names.join(", "))
    })
}

/// A report that was written.
pub(crate) struct Written {
    /// Path of the report.
    pub(crate) path: PathBuf,
    /// Verdicts on each published shape and each goal.
    pub(crate) verdicts: Vec<Value>,
    /// Changes between two runs, one for each experiment that both runs have.
    changes: Vec<Value>,
    /// Numbers of verdicts with each outcome: first those on published shapes, then those on goals.
    counts: [Vec<(Finding, usize)>; 2],
    runs: Vec<Run>,
}

impl Written {
    /// Prints the path, the verdicts on published shapes and goals, and the compared links.
    pub(crate) fn print(&self) -> Result<(), Failure> {
        for run in &self.runs {
            links::table(run).iter().for_each(|line| note!("{line}"));
        }
        for (what, counts) in ["published shapes", "goals"].into_iter().zip(&self.counts) {
            let counts: Vec<_> = counts.iter().map(|(outcome, count)| format!("{} {count}", outcome.name())).collect();
            if !counts.is_empty() {
                note!("{what}: {}", counts.join(", "));
            }
        }
        Ok(line(self.path.display())?)
    }

    /// Returns the compared links as JSON.
    pub(crate) fn links_as_json(&self) -> Vec<Value> {
        self.runs.iter().flat_map(links::as_json).collect()
    }
}

/// Writes a file completely or not at all. If writing fails, the file keeps its old contents.
pub(crate) fn write_whole(out: &Path, text: &str) -> Result<(), Failure> {
    Ok(files::replace(out, text.as_bytes()).map_err(|error| format!("{}: {error}", out.display()))?)
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

/// Writes the report of these runs.
pub(crate) fn write_report(
    directories: &[PathBuf],
    published: Option<&Testbed>,
    out: &Path,
) -> Result<Written, Failure> {
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
    if let [one, other] = directories {
        have_something_in_common((one, &runs[0]), (other, &runs[1]))?;
    }
    let runs = runs.concat();
    let verdicts = doorbell_report::verdicts(&runs);
    let html = doorbell_report::html(&runs, Some(&Fitted::new(&runs)), published);
    write_whole(out, &html)?;
    let all = [Finding::Holds, Finding::DoesNotHold, Finding::CannotShow, Finding::NotMeasured];
    let counts = [false, true].map(|is_goal| {
        let those = || verdicts.iter().map(|found| &found.verdict).filter(|verdict| verdict.is_goal == is_goal);
        let count = |outcome| (outcome, those().filter(|verdict| verdict.outcome == outcome).count());
        all.into_iter().map(count).filter(|(_, count)| *count > 0).collect()
    });
    let changes = doorbell_report::changes(&runs).into_iter().map(|it| {
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
                if found.verdict.is_goal { "goal" } else { "published" }: found.verdict.says,
                "outcome": found.verdict.outcome.name(),
                "because": found.verdict.because,
            })
        })
        .collect();
    Ok(Written { path: out.to_owned(), verdicts, changes, counts, runs })
}
