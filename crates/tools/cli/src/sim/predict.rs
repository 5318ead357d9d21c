//! `doorbell sim predict`: blind rows, as a page of Markdown.

use std::path::PathBuf;

use clap::Args;
use doorbell_report::write_whole;
use doorbell_sim::predict::{BlindRow, Predicted, page, predict, rows, testbeds};
use doorbell_sim::reproduce::Effort;
use doorbell_sim::testbed::{Testbed, by_name};
use serde_json::json;

use crate::failure::{Failure, Usage};
use crate::output::line;
use crate::progress::{bar, show};

#[derive(Args)]
pub(crate) struct Predict {
    /// Predict only rows that take less than a minute to simulate
    #[arg(long)]
    quick: bool,
    /// Predict only rows of this testbed; may be given several times
    #[arg(long, value_name = "NAME")]
    testbed: Vec<String>,
    /// Predict only rows of experiments whose name contains this text, such as "store"
    #[arg(long, value_name = "TEXT")]
    experiment: Option<String>,
    /// Write the page to this file instead of printing it
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print one JSON object instead of a page of Markdown
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Predict) -> Result<(), Failure> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut all = Vec::new();
    let of_all = rows();
    let allowed: Vec<&str> = testbeds().map(|testbed| testbed.name.as_str()).collect();
    let long = |name: &String| by_name(name).map_or(name.clone(), |testbed| testbed.name.clone());
    let asked: Vec<String> = arguments.testbed.iter().map(long).collect();
    if let Some(unknown) = asked.iter().find(|name| !allowed.contains(&name.as_str())) {
        return Err(Usage(format!(
            "--testbed is {unknown}, which has no blind rows; allowed is {}",
            allowed.join(", ")
        ))
        .into());
    }
    let is_asked = |testbed: &&Testbed| asked.is_empty() || asked.contains(&testbed.name);
    for testbed in testbeds().filter(is_asked) {
        let mut rows = of_all.clone();
        let is_meant = |name: &str| arguments.experiment.as_deref().is_none_or(|text| name.contains(text));
        rows.retain(|row| {
            row.testbed == testbed.name && (!arguments.quick || row.is_quick()) && is_meant(row.experiment)
        });
        let bar = bar(rows.iter().map(BlindRow::simulations).sum::<usize>() as u64, 0);
        show(&bar, &testbed.name);
        let predicted = predict(rows, testbed, Effort::QUICK, threads, || bar.inc(1))
            .map_err(|error| format!("{}: {error}", testbed.name))?;
        bar.finish_and_clear();
        all.push((testbed, predicted));
    }
    if let Some(out) = &arguments.out {
        write_whole(out, &page(&all))?;
    }
    if arguments.json {
        let row = |predicted: &Predicted| {
            let (row, found) = (&predicted.row, predicted.outcome.as_ref().ok());
            let lacks =
                predicted.lacks.iter().map(|(change, lack)| json!({ "with": change, "reason": lack.to_string() }));
            json!({
                "testbed": row.testbed, "experiment": row.experiment, "subject": row.subject, "bytes": row.bytes,
                "varied": row.at.0, "at": row.at.1, "unit": row.unit.name(),
                "predicted": found.map(|it| it.value),
                "least": found.map(|it| it.interval.0),
                "greatest": found.map(|it| it.interval.1),
                "error_on_similar_rows": predicted.error,
                "reason": predicted.outcome.as_ref().err().map(ToString::to_string),
                "changes_without_result": lacks.collect::<Vec<_>>(),
            })
        };
        let rows: Vec<_> = all.iter().flat_map(|(_, predicted)| predicted.iter().map(row)).collect();
        line(json!({ "schema": "doorbell-sim-predict/1", "rows": rows }))?;
    } else if arguments.out.is_none() {
        line(page(&all).trim_end())?;
    }
    Ok(())
}
