//! `doorbell sim reproduce`: published rows beside simulated ones.

use std::io;

use clap::Args;
use doorbell_published::{Relation, Row};
use doorbell_sim::reproduce::{Compared, Effort, RATE_TOLERANCE, Reproduced, Runs, TOLERANCE};
use doorbell_sim::{Testbed, testbed};
use serde_json::{Value, json};

use super::arguments::{Replaced, read_testbed};
use crate::output::line;
use crate::progress::bar;
use crate::{Failure, Usage};

#[derive(Args)]
pub(crate) struct Reproduce {
    /// Only this testbed: a name of `sim testbeds`, or a file; may be given several times [default: all]
    #[arg(long, value_name = "NAME|FILE")]
    testbed: Vec<String>,
    #[command(flatten)]
    replaced: Replaced,
    /// Shorter runs
    #[arg(long)]
    quick: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Reproduce) -> Result<(), Failure> {
    let testbeds: Vec<Testbed> = if arguments.testbed.is_empty() {
        testbed::all().to_vec()
    } else {
        arguments.testbed.iter().map(|name| read_testbed(name)).collect::<Result<_, _>>()?
    };
    let effort = if arguments.quick { Effort::QUICK } else { Effort::USUAL };
    let mut reports = Vec::new();
    for testbed in testbeds {
        let testbed = arguments.replaced.apply(&testbed)?;
        let published = testbed.published.as_deref().and_then(doorbell_published::testbed).ok_or_else(|| {
            Usage(format!(
                "{}: published: it must name a published testbed whose rows are to be simulated",
                testbed.name
            ))
        })?;
        let mut runs = Runs::new(&testbed, effort);
        let mut rows = Vec::new();
        let bar = bar(published.rows.len() as u64, 0);
        for row in &published.rows {
            bar.set_message(format!("{}: {}", testbed.name, row.id));
            rows.push(runs.reproduce(row));
            bar.inc(1);
        }
        bar.finish_and_clear();
        drop(runs);
        if arguments.json {
            reports.push(report(&testbed, &rows));
        } else {
            print(&testbed, &rows)?;
        }
    }
    if arguments.json {
        line(json!({ "schema": "doorbell-sim-reproduce/1", "testbeds": reports }))?;
    }
    Ok(())
}

/// A row's number as published.
fn published(row: &Row) -> String {
    format!("{}{}", row.relation.words(), row.value)
}

fn status(reproduced: &Reproduced<'_>) -> &'static str {
    match &reproduced.outcome {
        Ok(compared) if compared.is_within() => "within",
        Ok(_) => "beyond",
        Err(_) => "not simulated",
    }
}

/// Was the row used for fitting?
fn basis(reproduced: &Reproduced<'_>) -> &'static str {
    if reproduced.is_fitted { "fitted" } else { "predicted" }
}

fn count(rows: &[Reproduced<'_>], wanted: &str) -> usize {
    rows.iter().filter(|reproduced| status(reproduced) == wanted).count()
}

fn print(testbed: &Testbed, rows: &[Reproduced<'_>]) -> io::Result<()> {
    line(format_args!("{}: {} (simulated)", testbed.name, testbed.about))?;
    line(format_args!(
        "{:<44} {:<26} {:<18} {:>9}  {:<10} status",
        "row", "published", "simulated", "deviation", "basis"
    ))?;
    for reproduced in rows {
        let Reproduced { row, outcome: Ok(Compared { simulated, deviation, .. }), .. } = reproduced else { continue };
        line(format_args!(
            "{:<44} {:<26} {:<18} {:>9}  {:<10} {}",
            row.id,
            published(row),
            format!("{:.4} {}", simulated.number, simulated.unit),
            match row.relation {
                Relation::AtLeast | Relation::AtMost if *deviation == 0.0 => "kept".to_owned(),
                _ => format!("{:+.1} %", deviation * 100.0),
            },
            basis(reproduced),
            status(reproduced),
        ))?;
    }
    for reproduced in rows {
        if let Err(lack) = &reproduced.outcome {
            line(format_args!("not simulated: {:<44} {}: {lack}", reproduced.row.id, published(reproduced.row)))?;
        }
    }
    line(format_args!(
        "{}: {} within, {} beyond, {} not simulated (within is at most {:.0} % off, {:.0} % for rates of operations and packets).",
        testbed.name,
        count(rows, "within"),
        count(rows, "beyond"),
        count(rows, "not simulated"),
        TOLERANCE * 100.0,
        RATE_TOLERANCE * 100.0,
    ))
}

fn report(testbed: &Testbed, rows: &[Reproduced<'_>]) -> Value {
    let number = |value: &doorbell_published::Value| json!({ "number": value.number, "unit": value.unit.name() });
    let row = |reproduced: &Reproduced<'_>| {
        let (row, compared) = (reproduced.row, reproduced.outcome.as_ref().ok());
        json!({
            "id": row.id,
            "says": row.says,
            "experiment": row.experiment,
            "subject": row.subject.name(),
            "relation": row.relation.words().trim_end(),
            "published": number(&row.value),
            "simulated": compared.map(|compared| number(&compared.simulated)),
            "deviation_percent": compared.map(|compared| compared.deviation * 100.0),
            "tolerance_percent": compared.map(|compared| compared.tolerance * 100.0),
            "basis": basis(reproduced),
            "status": status(reproduced),
            "reason": reproduced.outcome.as_ref().err().map(ToString::to_string),
        })
    };
    json!({
        "testbed": testbed.name,
        "published": testbed.published,
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
        "summary": {
            "within": count(rows, "within"),
            "beyond": count(rows, "beyond"),
            "not_simulated": count(rows, "not simulated"),
        },
    })
}
