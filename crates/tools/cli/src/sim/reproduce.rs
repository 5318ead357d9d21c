//! `doorbell sim reproduce`: published results beside simulated results.

use std::cell::Cell;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;

use clap::Args;
use doorbell_claims::{CheckedShape, Finding, Testbed as Published, Verdict, tolerance};
use doorbell_model::check::{Answer, Checked, Recorder, Status, check_shape};
use doorbell_report::{Reproduction, reproduction_html, write_whole};
use doorbell_sim::reproduce::{Effort, Runs};
use doorbell_sim::{Testbed, testbed};
use serde_json::{Value, json};

use super::arguments::{Bounds, Replaced, read_testbed};
use crate::failure::{Failure, Usage};
use crate::output::line;
use crate::progress::{bar, show};

#[derive(Args)]
pub(crate) struct Reproduce {
    /// Simulate only this testbed: a name of `sim testbeds`, or a file; may be given several times [default: all]
    #[arg(long, value_name = "NAME|FILE")]
    testbed: Vec<String>,
    #[command(flatten)]
    replaced: Replaced,
    /// Simulate shorter runs
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    bounds: Bounds,
    /// Write rows, shapes and plots to this HTML file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// The published rows and shapes of a testbed, each with its simulated result.
struct Reproduced {
    testbed: Testbed,
    published: &'static Published,
    rows: Vec<Simulated<Checked<'static>>>,
    shapes: Vec<Simulated<CheckedShape<'static>>>,
    /// Simulated results, each with the experiment for which it was simulated.
    answers: Vec<(&'static str, Answer)>,
}

/// A published row or shape, with the captures of the runs that were simulated for it and not before.
struct Simulated<T> {
    checked: T,
    captures: Vec<PathBuf>,
}

pub(super) fn run(arguments: &Reproduce) -> Result<(), Failure> {
    let testbeds: Vec<Testbed> = if arguments.testbed.is_empty() {
        testbed::all().to_vec()
    } else {
        arguments.testbed.iter().map(|name| read_testbed(name)).collect::<Result<_, _>>()?
    };
    let simulated = |testbed: &Testbed| {
        let testbed = arguments.replaced.apply(testbed)?;
        let published = testbed.published.as_deref().and_then(doorbell_claims::testbed);
        let published = published.ok_or_else(|| {
            let problem = "published must name the published testbed whose rows are to be simulated";
            Usage(format!("{}: {problem}", testbed.name))
        })?;
        Ok((testbed, published))
    };
    let testbeds = testbeds.iter().map(simulated).collect::<Result<Vec<_>, Failure>>()?;
    // The captures of all testbeds are numbered together.
    let captured = Rc::new(Cell::new(0));
    let mut all = Vec::new();
    for (testbed, published) in testbeds {
        let reproduced = reproduce(arguments, testbed, published, &captured)?;
        if !arguments.json {
            reproduced.print()?;
        }
        all.push(reproduced);
    }
    if let Some(out) = &arguments.out {
        write_whole(out, &reproduction_html(&all.iter().map(Reproduced::page).collect::<Vec<_>>()))?;
        if !arguments.json {
            line(format_args!("page: {}", out.display()))?;
        }
    }
    if arguments.json {
        let all: Vec<Value> = all.iter().map(Reproduced::json).collect();
        line(json!({ "schema": "doorbell-sim-reproduce/1", "testbeds": all }))?;
    }
    Ok(())
}

fn reproduce(
    arguments: &Reproduce,
    testbed: Testbed,
    published: &'static Published,
    captured: &Rc<Cell<usize>>,
) -> Result<Reproduced, Failure> {
    let effort = if arguments.quick { Effort::QUICK } else { Effort::USUAL };
    let mut runs = Runs::new(&testbed, effort).with_memory(arguments.bounds.memory());
    let captures = arguments.bounds.captures()?;
    if let Some(captures) = captures.clone() {
        let captured = Rc::clone(captured);
        runs = runs.with_captures(move || {
            captured.set(captured.get() + 1);
            captures.open(captured.get())
        });
    }
    let since = |before: usize| {
        let numbers = before + 1..=captured.get();
        captures.iter().flat_map(|captures| numbers.clone().map(|number| captures.path(number))).collect()
    };
    let bar = bar((published.rows.len() + published.shapes.len()) as u64, 0);
    let at = |id: &str| {
        show(&bar, &format!("{}: {id}", testbed.name));
        bar.inc(1);
        captured.get()
    };
    let (mut rows, mut shapes, mut answers) = (Vec::new(), Vec::new(), Vec::new());
    let mut keep = |experiment: &'static str, recorder: &mut Recorder<'_>| {
        for answer in recorder.take() {
            if !answers.contains(&(experiment, answer.clone())) {
                answers.push((experiment, answer));
            }
        }
    };
    let mut recorder = Recorder::new(&mut runs);
    for row in &published.rows {
        let before = at(&row.id);
        let checked = Checked::of(row, &mut recorder);
        rows.push(Simulated { checked, captures: since(before) });
        keep(&row.experiment, &mut recorder);
    }
    for shape in &published.shapes {
        let before = at(&shape.id);
        let checked = check_shape(shape, &mut recorder);
        shapes.push(Simulated { checked, captures: since(before) });
        keep(&shape.experiment, &mut recorder);
    }
    bar.finish_and_clear();
    drop(runs);
    Ok(Reproduced { testbed, published, rows, shapes, answers })
}

const MISSING: &str = "not simulated";

const fn status(status: Status) -> &'static str {
    match status {
        Status::NoModel => MISSING,
        status => status.name(),
    }
}

const fn holds(finding: Finding) -> &'static str {
    match finding {
        Finding::Holds => "holds",
        Finding::DoesNotHold => "does not",
        Finding::CannotShow | Finding::NoValues => MISSING,
    }
}

/// Returns whether the row was fitted or predicted, as a word.
const fn basis(is_fitted: bool) -> &'static str {
    if is_fitted { "fitted" } else { "predicted" }
}

impl Reproduced {
    fn page(&self) -> Reproduction<'_> {
        Reproduction {
            testbed: &self.testbed.name,
            about: &self.testbed.about,
            published: self.published,
            rows: self.rows.iter().map(|row| &row.checked).collect(),
            shapes: self.shapes.iter().map(|shape| &shape.checked).collect(),
            answers: self.answers.clone(),
        }
    }

    fn rows(&self, wanted: Status) -> usize {
        self.rows.iter().filter(|row| row.checked.status() == wanted).count()
    }

    fn shapes(&self, wanted: Finding) -> usize {
        self.shapes.iter().filter(|shape| shape.checked.verdict.finding == wanted).count()
    }

    fn print(&self) -> io::Result<()> {
        let Testbed { name, about, .. } = &self.testbed;
        line(format_args!("{name}: {about} (simulated)"))?;
        line(format_args!(
            "{:<44} {:<26} {:<18} {:>9}  {:<10} status",
            "row", "published", "simulated", "deviation", "basis"
        ))?;
        for Simulated { checked, .. } in &self.rows {
            let Ok(compared) = &checked.outcome else { continue };
            line(format_args!(
                "{:<44} {:<26} {:<18} {:>9}  {:<10} {}",
                checked.row.id,
                checked.published(),
                format!("{:.4} {}", compared.found.number, compared.found.unit),
                compared.deviation_of(checked.row.relation),
                basis(checked.is_fitted),
                status(checked.status()),
            ))?;
        }
        for Simulated { checked, .. } in &self.rows {
            if let Err(lack) = &checked.outcome {
                line(format_args!("{MISSING}: {:<44} {}: {lack}", checked.row.id, checked.published()))?;
            }
        }
        line("\npublished shapes")?;
        for Simulated { checked, .. } in &self.shapes {
            let Verdict { finding, because } = &checked.verdict;
            let basis = if checked.is_fitted { " (fitted)" } else { "" };
            line(format_args!("{:<44} {:<13} {because}{basis}", checked.shape.id, holds(*finding)))?;
        }
        line(format_args!(
            "{name}: {} within, {} beyond, {} not simulated (within is at most {:.0} % off, {:.0} % for rates of operations and packets).",
            self.rows(Status::Within),
            self.rows(Status::Beyond),
            self.rows(Status::NoModel),
            tolerance::ROW * 100.0,
            tolerance::OPERATION_RATE * 100.0,
        ))?;
        line(format_args!(
            "{name}: {} published shapes hold, {} do not, {} not simulated.",
            self.shapes(Finding::Holds),
            self.shapes(Finding::DoesNotHold),
            self.shapes(Finding::NoValues),
        ))
    }

    fn json(&self) -> Value {
        let number = |value: &doorbell_claims::Value| json!({ "number": value.number, "unit": value.unit.name() });
        let row = |Simulated { checked, captures }: &Simulated<Checked<'_>>| {
            let (row, compared) = (checked.row, checked.outcome.as_ref().ok());
            json!({
                "id": row.id,
                "says": row.says,
                "experiment": row.experiment,
                "subject": row.subject.name(),
                "relation": row.relation.words().trim_end(),
                "published": number(&row.value),
                "simulated": compared.map(|compared| number(&compared.found)),
                "deviation_percent": compared.map(|compared| compared.deviation * 100.0),
                "tolerance_percent": compared.map(|compared| compared.tolerance * 100.0),
                "binds": checked.binding.map(|binding| binding.name),
                "basis": basis(checked.is_fitted),
                "status": status(checked.status()),
                "reason": checked.outcome.as_ref().err().map(ToString::to_string),
                "captures": captures,
            })
        };
        let shape = |Simulated { checked, captures }: &Simulated<CheckedShape<'_>>| {
            let (shape, Verdict { finding, because }) = (checked.shape, &checked.verdict);
            json!({
                "id": shape.id,
                "says": shape.says,
                "experiment": shape.experiment,
                "subject": shape.subject.name(),
                "basis": basis(checked.is_fitted),
                "status": holds(*finding),
                "because": because,
                "captures": captures,
            })
        };
        json!({
            "testbed": self.testbed.name,
            "published": self.testbed.published,
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
            "shapes": self.shapes.iter().map(shape).collect::<Vec<_>>(),
            "summary": {
                "within": self.rows(Status::Within),
                "beyond": self.rows(Status::Beyond),
                "not_simulated": self.rows(Status::NoModel),
                "shapes_hold": self.shapes(Finding::Holds),
                "shapes_do_not": self.shapes(Finding::DoesNotHold),
                "shapes_not_simulated": self.shapes(Finding::NoValues),
            },
        })
    }
}
