//! `doorbell sim predict`: blind rows as a page of Markdown.

use std::io::{self, IsTerminal};

use clap::Args;
use doorbell_sim::predict::{Predicted, page, predict, rows, testbeds};
use doorbell_sim::reproduce::Effort;
use serde_json::json;

use crate::Failure;
use crate::output::{line, note};

#[derive(Args)]
pub(crate) struct Predict {
    /// Longer runs
    #[arg(long)]
    long: bool,
    /// Print one JSON object instead of a page of Markdown
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Predict) -> Result<(), Failure> {
    let effort = if arguments.long { Effort::USUAL } else { Effort::QUICK };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut all = Vec::new();
    for testbed in testbeds() {
        let rows: Vec<_> = rows().into_iter().filter(|row| row.testbed == testbed.name).collect();
        if io::stderr().is_terminal() {
            note!("{}: {} rows", testbed.name, rows.len());
        }
        let predicted =
            predict(rows, testbed, effort, threads).map_err(|error| format!("{}: {error}", testbed.name))?;
        all.push((testbed, predicted));
    }
    if arguments.json {
        let row = |predicted: &Predicted| {
            let (row, (least, greatest)) = (&predicted.row, predicted.interval);
            json!({
                "testbed": row.testbed, "experiment": row.experiment, "subject": row.subject, "bytes": row.bytes,
                "varied": row.at.0, "at": row.at.1, "unit": row.unit.name(),
                "predicted": predicted.value, "least": least, "greatest": greatest,
            })
        };
        let rows: Vec<_> = all.iter().flat_map(|(_, predicted)| predicted.iter().map(row)).collect();
        return Ok(line(json!({ "schema": "doorbell-sim-predict/1", "rows": rows }))?);
    }
    line(page(&all).trim_end())?;
    Ok(())
}
