//! `doorbell report`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use doorbell_claims::{Testbed, known_testbed};
use doorbell_report::{Fitted, Written, csv, read_runs, write_report};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::links;
use crate::output::{line, note, pretty, write_text};

/// Write one self-contained HTML file with plots, tables and verdicts.
#[derive(Args)]
pub(crate) struct Report {
    /// Directories with records of `doorbell study`, each with one run. The report shows all runs together, and for two
    /// runs also the changes from the first run to the second
    #[arg(value_name = "DIR", required = true)]
    directories: Vec<PathBuf>,
    /// Draw the published figures of this testbed beside the measured figures: t1 (connectx5-100g), t2
    /// (counters-100g) or t3 (connectx5-100g-far)
    #[arg(long, value_name = "TESTBED", value_parser = known_testbed)]
    published: Option<&'static Testbed>,
    /// File to write
    #[arg(long, value_name = "FILE", default_value = "report.html")]
    out: PathBuf,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Print all curves as CSV, and write no report. docs/record.md describes the columns
    #[arg(long, conflicts_with_all = ["json", "published", "out"])]
    csv: bool,
}

pub(crate) fn run(report: &Report) -> Result<ExitCode, Failure> {
    if report.csv {
        let runs = read_runs(&report.directories)?.concat();
        write_text(&csv(&runs, Some(&Fitted::new(&runs))))?;
        return Ok(ExitCode::SUCCESS);
    }
    let written = write_report(&report.directories, report.published, &report.out)?;
    if report.json {
        pretty(&json!({
            "schema": "doorbell-report/1",
            "report": written.path,
            "verdicts": written.verdicts,
            "links": links_as_json(&written),
            "changes": written.changes,
        }))?;
    } else {
        print(&written)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the path, the verdicts on published shapes and goals, and the compared links.
pub(crate) fn print(written: &Written) -> Result<(), Failure> {
    for run in &written.runs {
        links::table(run).iter().for_each(|line| note!("{line}"));
    }
    for (what, counts) in ["published shapes", "goals"].into_iter().zip(&written.counts) {
        if !counts.is_empty() {
            note!("{what}: {counts}");
        }
    }
    Ok(line(written.path.display())?)
}

/// Returns the compared links as JSON.
pub(crate) fn links_as_json(written: &Written) -> Vec<Value> {
    written.runs.iter().flat_map(links::as_json).collect()
}
