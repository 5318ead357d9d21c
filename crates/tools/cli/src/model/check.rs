//! `doorbell model check`: published numbers beside the model's predictions.

use std::io;

use clap::Args;
use doorbell_claims::{CheckedShape, Finding, Testbed, Value as Published, Verdict, known_testbed, tolerance};
use doorbell_model::check::{Analytic, Checked, Lack, Status, check, check_shapes, lack_of};
use doorbell_model::parameters::Parameters;
use serde_json::{Value, json};

use super::about;
use super::arguments::digits;
use crate::failure::Failure;
use crate::output::line;

#[derive(Args)]
pub(crate) struct Check {
    /// Check only this published testbed: t1 (connectx5-100g), t2 (counters-100g) or t3 (connectx5-100g-far); may be
    /// given several times [default: all]
    #[arg(long, value_name = "NAME", value_parser = known_testbed)]
    testbed: Vec<&'static Testbed>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// A published testbed, its parameters, and each of its rows and shapes beside the prediction.
struct Report {
    testbed: &'static Testbed,
    parameters: Option<Parameters>,
    rows: Vec<Checked<'static>>,
    shapes: Vec<CheckedShape<'static>>,
}

pub(super) fn run(arguments: &Check) -> Result<(), Failure> {
    let all: Vec<&Testbed> = doorbell_claims::all().iter().collect();
    let testbeds = if arguments.testbed.is_empty() { &all } else { &arguments.testbed };
    let reports: Vec<Report> = testbeds
        .iter()
        .map(|testbed| {
            let parameters = Parameters::of_testbed(&testbed.name);
            let mut model = Analytic::new(parameters.as_ref());
            let (rows, shapes) = (check(testbed, &mut model), check_shapes(testbed, &mut model));
            Report { testbed, rows, shapes, parameters }
        })
        .collect();
    if arguments.json {
        let reports: Vec<Value> = reports.iter().map(Report::json).collect();
        line(json!({ "schema": "doorbell-model-check/1", "testbeds": reports }))?;
        return Ok(());
    }
    for (index, report) in reports.iter().enumerate() {
        if index > 0 {
            line("")?;
        }
        report.print()?;
    }
    Ok(())
}

/// Returns the word for a verdict on a shape in tables and JSON.
const fn word(finding: Finding) -> &'static str {
    match finding {
        Finding::Holds => "yes",
        Finding::DoesNotHold => "no",
        Finding::CannotShow | Finding::NoValues => "no model",
    }
}

impl Report {
    fn count(&self, status: Status) -> usize {
        self.rows.iter().filter(|checked| checked.status() == status).count()
    }

    fn print(&self) -> io::Result<()> {
        let Testbed { name, about: subject, hardware, .. } = self.testbed;
        line(format_args!("{name}: {subject}; {hardware}"))?;
        match &self.parameters {
            Some(parameters) => about(parameters),
            None => line(format_args!("The model has no parameters of {name}, so it predicts none of these rows."))?,
        }
        if self.parameters.is_some() {
            line(format_args!(
                "{:<40} {:<26} {:<14} {:>9}   {:<22} status",
                "row", "published", "model", "deviation", "binds"
            ))?;
        }
        for checked in &self.rows {
            let Ok(compared) = &checked.outcome else { continue };
            let (predicted, binding) = (compared.found, checked.binding);
            line(format_args!(
                "{:<40} {:<26} {:<14} {:>9}   {:<22} {}{}",
                checked.row.id,
                checked.published(),
                format_args!("{} {}", digits(predicted.number), predicted.unit).to_string(),
                compared.deviation_of(checked.row.relation),
                binding.map_or("-", |binding| binding.name),
                checked.status(),
                if checked.is_fitted { ", fitted to" } else { "" },
            ))?;
            if let (Status::Beyond, Some(lack)) = (checked.status(), lack_of(&checked.row.id)) {
                line(format_args!("  {lack}"))?;
            }
        }
        self.print_lacks()?;
        self.print_shapes()?;
        let counts: Vec<String> =
            Status::ALL.iter().map(|status| format!("{} {status}", self.count(*status))).collect();
        line(format_args!(
            "{name}: {} (within is at most {:.0} % off, {:.0} % for rates of operations and packets).",
            counts.join(", "),
            tolerance::ROW * 100.0,
            tolerance::OPERATION_RATE * 100.0
        ))
    }

    /// Prints each reason for a missing prediction, followed by the rows that it concerns.
    fn print_lacks(&self) -> io::Result<()> {
        let mut reasons: Vec<&Lack> = Vec::new();
        for lack in self.rows.iter().filter_map(|checked| checked.outcome.as_ref().err()) {
            if !reasons.contains(&lack) {
                reasons.push(lack);
            }
        }
        for reason in reasons {
            line(format_args!("no model: {reason}"))?;
            for checked in self.rows.iter().filter(|checked| checked.outcome.as_ref().err() == Some(reason)) {
                line(format_args!("  {:<42} {}", checked.row.id, checked.published()))?;
            }
        }
        Ok(())
    }

    /// Prints the published sentences with the model's verdicts.
    fn print_shapes(&self) -> io::Result<()> {
        if self.parameters.is_none() {
            return Ok(());
        }
        line("\npublished shapes")?;
        for checked in &self.shapes {
            let Verdict { finding, because } = &checked.verdict;
            line(format_args!("{:<42} {:<10} {because}", checked.shape.id, word(*finding)))?;
        }
        let count = |wanted| self.shapes.iter().filter(|shape| shape.verdict.finding == wanted).count();
        let counts = [Finding::Holds, Finding::DoesNotHold, Finding::NoValues]
            .map(|wanted| format!("{} {}", count(wanted), word(wanted)));
        line(format_args!("{}: the model has of the published shapes: {}.", self.testbed.name, counts.join(", ")))
    }

    fn json(&self) -> Value {
        let number = |value: &Published| json!({ "number": value.number, "unit": value.unit.name() });
        let row = |checked: &Checked<'_>| {
            let compared = checked.outcome.as_ref().ok();
            json!({
                "id": checked.row.id,
                "says": checked.row.says,
                "experiment": checked.row.experiment,
                "subject": checked.row.subject.name(),
                "relation": checked.row.relation.words().trim_end(),
                "published": number(&checked.row.value),
                "predicted": compared.map(|compared| number(&compared.found)),
                "deviation_percent": compared.map(|compared| compared.deviation * 100.0),
                "bottleneck": checked.binding.map(|binding| binding.name),
                "status": checked.status().name(),
                "fitted_to": compared.map(|_| checked.is_fitted),
                "reason": match checked.status() {
                    Status::Beyond => lack_of(&checked.row.id).map(str::to_owned),
                    _ => checked.outcome.as_ref().err().map(ToString::to_string),
                },
            })
        };
        let shape = |checked: &CheckedShape<'_>| {
            let (shape, Verdict { finding, because }) = (checked.shape, &checked.verdict);
            json!({
                "id": shape.id,
                "says": shape.says,
                "experiment": shape.experiment,
                "subject": shape.subject.name(),
                "model_has_it": word(*finding),
                "because": because,
            })
        };
        json!({
            "testbed": self.testbed.name,
            "about": self.testbed.about,
            "parameters": self.parameters,
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
            "shapes": self.shapes.iter().map(shape).collect::<Vec<_>>(),
            "summary": {
                "within": self.count(Status::Within),
                "beyond": self.count(Status::Beyond),
                "no_model": self.count(Status::NoModel),
            },
        })
    }
}
