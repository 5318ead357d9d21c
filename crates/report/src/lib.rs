//! From the records of studies to one HTML file that needs nothing else: plots, tables, verdicts.
//!
//! ```
//! use doorbell_report::{Fitted, Run, html};
//!
//! let runs = [Run { name: "this machine".to_owned(), records: Vec::new() }]; // those of `doorbell study`
//! let page = html(&runs, Some(&Fitted::new(&runs)), None); // and nothing published beside them
//! assert!(page.starts_with("<!DOCTYPE html>"));
//! ```
//!
//! [`html`] is a pure function of records, which are outside input: every text in them is escaped,
//! and the page forbids itself to load anything.
#![forbid(unsafe_code)]

mod changes;
mod comparison;
mod curves;
mod fitted;
mod format;
mod links;
mod model;
mod page;
mod plot;
mod published;
mod reproduction;
mod sentence;
mod strategies;
mod sweep;
mod table;

pub use changes::Changed;
pub use fitted::{Fitted, observed};
pub use reproduction::{Reproduction, reproduction_html};
pub use sweep::{Sweep, SweepPoint, sweep_html};

use std::collections::BTreeMap;

use doorbell_published::Testbed;
use doorbell_study::experiment::{self, Effort, Experiment, PointRecord, Quantity, Verdict, View};
use doorbell_study::layout::Layout;

/// What a study left behind.
#[derive(Clone, Debug)]
pub struct Run {
    /// What it is called where several are shown together.
    pub name: String,
    /// Its records.
    pub records: Vec<PointRecord>,
}

impl Run {
    /// The run of a directory's records. What was measured and what was simulated never share a curve, a verdict or a fit:
    /// where a directory has both, they are runs of their own, each simulated testbed too. A simulated run says so in its
    /// name.
    pub fn of(name: &str, records: Vec<PointRecord>) -> Vec<Self> {
        let mut by_substrate: BTreeMap<Option<String>, Vec<PointRecord>> = BTreeMap::new();
        for record in records {
            let testbed = record.environment.testbed.as_ref().map(|testbed| testbed.name.clone());
            by_substrate.entry(testbed).or_default().push(record);
        }
        let named = |testbed: Option<String>| match testbed {
            None => name.to_owned(),
            Some(testbed) => format!("{name} (simulated {testbed})"),
        };
        by_substrate.into_iter().map(|(testbed, records)| Self { name: named(testbed), records }).collect()
    }

    /// The testbed that was simulated, if it was not measured.
    pub fn testbed(&self) -> Option<&str> {
        let record = self.records.first()?;
        record.environment.testbed.as_ref().map(|testbed| testbed.name.as_str())
    }
}

/// What a model says of a point, in the unit of the quantity that it was asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// How much.
    pub value: f64,
    /// What binds.
    pub bottleneck: String,
}

/// Predicts points: drawn as a line over the measurements, and named in the tables.
pub trait Model {
    /// What it says of this quantity at this point, if it knows of such points.
    fn predict(&self, run: &Run, record: &PointRecord, quantity: Quantity) -> Option<Prediction>;

    /// What it is worth for this run, or why there is none.
    ///
    /// # Errors
    ///
    /// The model was not made of this run, or could not be; the text says why.
    fn account(&self, run: &Run) -> Result<&Account, &str>;
}

/// What a model of a run is made of, and how well it predicts.
#[derive(Clone, Debug, PartialEq)]
pub struct Account {
    /// Of the points that its parameters were fitted to.
    pub fitted: Errors,
    /// Of the others.
    pub predicted: Errors,
    /// Points that it does not speak of: how many for each reason.
    pub left_out: BTreeMap<String, usize>,
    /// Its parameters, and sums of them.
    pub parameters: Vec<Parameter>,
    /// Does a change help exactly where the model says so?
    pub interventions: Vec<Intervention>,
}

/// How far predictions are off, as shares of what was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Errors {
    /// How many figures.
    pub figures: usize,
    /// Half of the errors are no larger.
    pub median: f64,
    /// Nine tenths of them are no larger.
    pub p90: f64,
}

/// A fitted parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// It lies within with a probability of 95 %; `None` if the data does not separate it from others.
    pub interval: Option<(f64, f64)>,
}

/// A window or a batch that was doubled.
#[derive(Clone, Debug, PartialEq)]
pub struct Intervention {
    /// What was changed where.
    pub what: String,
    /// What binds before, by the model.
    pub bottleneck: String,
    /// How many times the messages per second came of it.
    pub measured: f64,
    /// And by the model.
    pub predicted: f64,
    /// Both say that it helps, or both that it does not.
    pub agrees: bool,
}

/// A verdict, and of what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The run.
    pub run: String,
    /// The experiment.
    pub experiment: String,
    /// What came of it.
    pub verdict: Verdict,
}

/// The verdicts of all runs on the experiments that they have points of.
pub fn verdicts(runs: &[Run]) -> Vec<Found> {
    let mut found = Vec::new();
    for experiment in &experiment::all(Effort::Usual) {
        for run in runs {
            found.extend(verdicts_of(run, experiment));
        }
    }
    found
}

fn verdicts_of<'a>(run: &'a Run, experiment: &'a Experiment) -> impl Iterator<Item = Found> + 'a {
    let view = View::new(&run.records);
    let is_there = view.of(&experiment.name).next().is_some();
    experiment.claims.iter().filter(move |_| is_there).map(move |claim| Found {
        run: run.name.clone(),
        experiment: experiment.name.clone(),
        verdict: claim.judge(view, experiment),
    })
}

/// What changed between two runs in each experiment that both have points of; nothing unless there are two, both measured
/// or both simulated.
pub fn changes(runs: &[Run]) -> Vec<Changed> {
    let pair = changes::pair(runs);
    pair.into_iter().flat_map(|pair| experiments(runs).into_iter().filter_map(move |it| pair.changed(&it))).collect()
}

/// The report of these runs, as one HTML document. Of two runs it says what changed.
///
/// With a testbed, what was published of it stands beside them: its numbers as points of the plots where they are points
/// of a plot, its sentences as curves where they say where a curve goes, and all of both under each experiment.
pub fn html(runs: &[Run], model: Option<&dyn Model>, published: Option<&Testbed>) -> String {
    page::page(runs, model, published)
}

/// The experiments that the runs have points of: those that are known in the order of the table, then
/// others by name.
fn experiments(runs: &[Run]) -> Vec<Experiment> {
    let is_there = |name: &str| runs.iter().any(|run| View::new(&run.records).of(name).next().is_some());
    let mut all = experiment::all(Effort::Usual);
    let mut others: Vec<&str> = runs
        .iter()
        .flat_map(|run| &run.records)
        .map(|record| record.experiment.as_str())
        .filter(|name| !all.iter().any(|known| known.name == *name))
        .collect();
    others.sort_unstable();
    others.dedup();
    let unknown = |name: &str| Experiment {
        name: name.to_owned(),
        question: "This release does not know this experiment.",
        setting: "its records are shown as they are",
        sweep: "x",
        quantities: vec![Quantity::MessageRate, Quantity::Throughput, Quantity::MedianLatency],
        points: Vec::new(),
        claims: Vec::new(),
        layout: Layout::default(),
    };
    let others: Vec<_> = others.into_iter().map(unknown).collect();
    all.retain(|experiment| is_there(&experiment.name));
    all.extend(others);
    all
}
