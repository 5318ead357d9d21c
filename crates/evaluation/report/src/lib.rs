//! Generator of self-contained HTML reports from the records of studies: plots, tables and verdicts.
//!
//! ```
//! use doorbell_report::{Fitted, Run, html};
//!
//! let runs = [Run { name: "this machine".to_owned(), records: Vec::new() }]; // the records of `doorbell study`
//! let page = html(&runs, Some(&Fitted::new(&runs)), None); // without published figures
//! assert!(page.starts_with("<!DOCTYPE html>"));
//! ```
//!
//! [`html`] is a pure function of records. Records are untrusted input: [`html`] escapes every text in them, and the
//! policy of the page forbids to load anything.
#![forbid(unsafe_code)]

mod answers;
mod beside;
pub mod choice;
mod csv;
mod directories;
mod figure;
mod fitted;
mod format;
mod matrix;
mod page;
mod records;
mod reproduction;
mod sweep;
mod table;
mod tally;
mod timeline;
mod view;

use std::collections::BTreeMap;

use doorbell_claims::{Finding, Testbed, Verdict};
use doorbell_record::{PointRecord, Quantity};
use doorbell_study::experiment::{self, Claim, Effort, Experiment, Layout};

pub use csv::{COLUMNS, csv};
pub use directories::{Written, read_runs, write_report, write_whole};
pub use fitted::Fitted;
pub use records::read_observations;
pub use reproduction::{Reproduction, reproduction_html};
pub use sweep::{Sweep, SweepPoint, sweep_html};
pub use tally::Tally;
pub use timeline::{JudgedCapture, Timeline, TimelinePoint, judged_captures_html};
pub use view::Changed;
use view::{curves, published};

/// Records of a study.
#[derive(Clone, Debug)]
pub struct Run {
    /// Name of the run on the page, which must differ from the names of the other runs.
    pub name: String,
    /// The records.
    pub records: Vec<PointRecord>,
}

impl Run {
    /// Splits a directory's records into runs. Measured and simulated records never share a curve, a verdict or a
    /// fit, so each simulated testbed is a run of its own. The name of a simulated run states the testbed.
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

    /// Returns the simulated testbed, or `None` if the run was measured.
    pub fn testbed(&self) -> Option<&str> {
        let record = self.records.first()?;
        record.environment.testbed.as_ref().map(|testbed| testbed.name.as_str())
    }

    /// Returns the records of an experiment.
    fn records_of<'a>(&'a self, experiment: &str) -> impl Iterator<Item = &'a PointRecord> {
        self.records.iter().filter(move |record| record.experiment == experiment)
    }
}

/// Prediction of a model for a point, in the unit of the requested quantity.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// Predicted value.
    pub value: f64,
    /// The bottleneck.
    pub bottleneck: String,
}

/// Predictor of points. The page draws the predictions as a line over the measurements, and lists the predictions in
/// the tables.
pub trait Model {
    /// Returns the prediction of this quantity at this point, or `None` if the model does not cover such points.
    fn predict(&self, run: &Run, record: &PointRecord, quantity: Quantity) -> Option<Prediction>;

    /// Returns the quality of the model for this run.
    ///
    /// # Errors
    ///
    /// The model was not fitted to this run, or the fit failed. The text states the reason.
    fn account(&self, run: &Run) -> Result<&Account, &str>;
}

/// Parameters of a run's model, and the quality of its predictions.
#[derive(Clone, Debug, PartialEq)]
pub struct Account {
    /// Errors at the points to which the parameters were fitted.
    pub fitted: Errors,
    /// Errors at the other points.
    pub predicted: Errors,
    /// Numbers of points that the fit leaves out, by reason.
    pub left_out: BTreeMap<String, usize>,
    /// Parameters, and sums of parameters.
    pub parameters: Vec<Parameter>,
    /// Effects of doublings, measured and predicted.
    pub interventions: Vec<Intervention>,
}

/// Errors of predictions, relative to measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Errors {
    /// Number of figures.
    pub figures: usize,
    /// Median of the errors.
    pub median: f64,
    /// 90th percentile of the errors.
    pub p90: f64,
}

/// A fitted parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// The name.
    pub name: String,
    /// The value.
    pub value: f64,
    /// The unit.
    pub unit: &'static str,
    /// 95 % confidence interval, or `None` if the data does not separate the parameter from others.
    pub interval: Option<(f64, f64)>,
}

/// Effect of doubling a window or a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Intervention {
    /// The changed parameter and the configuration.
    pub what: String,
    /// Bottleneck before the change, by the model.
    pub bottleneck: String,
    /// Measured ratio of messages per second, after over before.
    pub measured: f64,
    /// Ratio by the model.
    pub predicted: f64,
    /// Whether measurement and model agree that the doubling helps, or agree that the doubling does not help.
    pub agrees: bool,
}

/// Verdict on an experiment of a run.
#[derive(Clone, Debug)]
pub struct Found {
    /// The run.
    pub run: String,
    /// The experiment.
    pub experiment: String,
    /// The claim that was judged.
    pub claim: Claim,
    /// The verdict.
    pub verdict: Verdict,
    /// Whether the verdict is from a machine that was not quiet while the experiment was measured.
    pub is_restless: bool,
}

/// Returns the verdicts of each run on the experiments of which the run has points.
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
    let view = experiment::View::new(&run.records);
    let is_there = run.records_of(&experiment.name).next().is_some();
    let is_restless = view.restlessness(experiment).is_some();
    experiment.claims().into_iter().filter(move |_| is_there).map(move |claim| {
        let verdict = claim.judge(view, experiment);
        let is_restless = is_restless && verdict.finding != Finding::NoValues;
        Found { run: run.name.clone(), experiment: experiment.name.clone(), claim, verdict, is_restless }
    })
}

/// Returns the changes between two runs in each experiment of which both runs have points. The result is empty unless
/// there are exactly two runs, and both runs were measured or both were simulated.
pub fn changes(runs: &[Run]) -> Vec<Changed> {
    let pair = view::pair(runs);
    pair.into_iter().flat_map(|pair| experiments(runs).into_iter().filter_map(move |it| pair.changed(&it))).collect()
}

/// Renders the report of these runs as one HTML document. With two runs, the report lists the changes between them.
///
/// With a testbed, the report also shows the published figures. Published numbers become points of the plots. A
/// published sentence becomes a curve if it describes one. The section of each experiment lists all numbers and
/// sentences.
pub fn html(runs: &[Run], model: Option<&dyn Model>, published: Option<&Testbed>) -> String {
    page::page(&view::View::new(runs, model, published))
}

/// Returns the experiments of which the runs have points. Known experiments come first, in the order of their table,
/// and unknown experiments follow by name.
fn experiments(runs: &[Run]) -> Vec<Experiment> {
    let is_there = |name: &str| runs.iter().any(|run| run.records_of(name).next().is_some());
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
        layout: Layout::default(),
    };
    let others: Vec<_> = others.into_iter().map(unknown).collect();
    all.retain(|experiment| is_there(&experiment.name));
    all.extend(others);
    all
}
