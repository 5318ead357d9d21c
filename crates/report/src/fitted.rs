//! The performance model, fitted to the records that it is then drawn over.
//!
//! Parameters are fitted to every fourth point only, so that the line over the other three is a
//! prediction, and its error says what the model is worth. Fits take the best repetition of a point:
//! other programs only ever slow one down.

use std::collections::HashMap;

use doorbell_model::fit::{Fit, fit};
use doorbell_model::observation::{Observation, residuals};
use doorbell_model::parameters::{Parameters, RnicKind};
use doorbell_model::predict::predict;
use doorbell_model::record::observations;
use doorbell_model::workload::Workload;
use doorbell_study::experiment::{PointRecord, Quantity};

use crate::{Account, Errors, Intervention, Model, Parameter, Prediction, Run};

/// Of so many points one is fitted to.
const EVERY: usize = 4;

/// A change of throughput by more than this is one.
const CHANGES: f64 = 0.1;

/// The model of each run, as far as one can be fitted.
#[derive(Debug, Default)]
pub struct Fitted {
    runs: HashMap<String, OfRun>,
}

#[derive(Debug)]
struct OfRun {
    parameters: Parameters,
    workloads: HashMap<Place, Workload>,
    account: Account,
}

/// A point: its experiment, its curve, its place on the axis.
type Place = (String, String, u64);

fn place(record: &PointRecord) -> Place {
    (record.experiment.clone(), record.series.clone(), record.x.to_bits())
}

impl Fitted {
    /// Fits the model to each run. Of a run with too few points, or such that no parameters explain,
    /// it says nothing.
    pub fn new(runs: &[Run]) -> Self {
        Self { runs: runs.iter().filter_map(|run| Some((run.name.clone(), OfRun::new(run)?))).collect() }
    }
}

impl Model for Fitted {
    fn predict(&self, run: &Run, record: &PointRecord, quantity: Quantity) -> Option<Prediction> {
        let of_run = self.runs.get(&run.name)?;
        let workload = of_run.workloads.get(&place(record))?;
        let prediction = predict(&of_run.parameters, workload).ok()?;
        let is_latency = matches!(record.parameters.kind, doorbell_study::parameters::Kind::Latency);
        let value = match (quantity, is_latency) {
            (Quantity::MedianLatency, true) => prediction.latency_ns / 1e3,
            (Quantity::MessageRate, false) => prediction.messages_per_s / 1e6,
            (Quantity::Throughput, false) => prediction.bytes_per_s * 8.0 / 1e9,
            _ => return None,
        };
        let bottleneck = match is_latency {
            true => "one message at a time".to_owned(),
            false => bottleneck(&prediction),
        };
        Some(Prediction { value, bottleneck })
    }

    fn account(&self, run: &Run) -> Option<&Account> {
        self.runs.get(&run.name).map(|of_run| &of_run.account)
    }
}

/// What binds, and how far away the next bound is.
fn bottleneck(prediction: &doorbell_model::predict::Prediction) -> String {
    let bottleneck = prediction.bottleneck();
    match bottleneck.next {
        Some(next) if bottleneck.factor < 10.0 => {
            format!("{}; {} at {:.1} times as much", bottleneck.binding.kind, next.kind, bottleneck.factor)
        }
        _ => bottleneck.binding.kind.to_string(),
    }
}

impl OfRun {
    fn new(run: &Run) -> Option<Self> {
        let mut rnic = None;
        let mut workloads = HashMap::new();
        let mut best: Vec<Observation> = Vec::new();
        let mut left_out = 0;
        for record in &run.records {
            let text = serde_json::to_string(record).ok()?;
            // Records that were read have been checked; one that the model cannot read is left out.
            let observed = observations(&record.experiment, &text).ok();
            let one = observed.as_ref().and_then(|observed| best_of(&observed.observations));
            let (Some(observed), Some(one)) = (observed, one) else {
                left_out += 1;
                continue;
            };
            // One fit is of one kind of RNIC.
            if *rnic.get_or_insert(observed.rnic) != observed.rnic {
                left_out += 1;
                continue;
            }
            workloads.insert(place(record), one.workload);
            // The same workload may be a point of several experiments: it counts once.
            match best.iter_mut().find(|other| other.workload == one.workload && is_same_kind(other, &one)) {
                Some(other) => *other = best_of(&[other.clone(), one])?,
                None => best.push(one),
            }
        }
        let base = Parameters::starting_point(rnic.unwrap_or(RnicKind::Software));
        let (chosen, others): (Vec<_>, Vec<_>) =
            best.iter().cloned().enumerate().partition(|(index, _)| index % EVERY == 0);
        let plain = |numbered: Vec<(usize, Observation)>| numbered.into_iter().map(|(_, one)| one).collect::<Vec<_>>();
        let (chosen, others) = (plain(chosen), plain(others));
        let fitted = fit(&base, &chosen).ok()?;
        let of_others: Vec<f64> = residuals(&fitted.parameters, &others)
            .ok()?
            .iter()
            .map(|residual| residual.relative_error().abs())
            .collect();
        let account = Account {
            fitted: Errors { figures: chosen.len(), median: fitted.median_error, p90: fitted.p90_error },
            predicted: Errors::of(of_others),
            left_out,
            parameters: parameters(&fitted),
            interventions: interventions(&fitted.parameters, &best),
        };
        Some(Self { parameters: fitted.parameters, workloads, account })
    }
}

fn is_same_kind(one: &Observation, other: &Observation) -> bool {
    one.latency_ns.is_some() == other.latency_ns.is_some()
}

/// The fastest of several measurements of one workload.
fn best_of(all: &[Observation]) -> Option<Observation> {
    let time = |one: &Observation| one.latency_ns.or(one.messages_per_s.map(|rate| 1e9 / rate)).unwrap_or(f64::MAX);
    all.iter().min_by(|a, b| time(a).total_cmp(&time(b))).cloned()
}

fn parameters(fitted: &Fit) -> Vec<Parameter> {
    let all = fitted.estimates.iter().chain(&fitted.sums);
    all.map(|estimate| Parameter {
        name: estimate.name.clone(),
        value: estimate.value,
        unit: estimate.unit.name(),
        interval: estimate.interval,
    })
    .collect()
}

/// What doubling a window or a batch did, wherever both were measured, beside what the model says
/// that it does.
fn interventions(parameters: &Parameters, observations: &[Observation]) -> Vec<Intervention> {
    // Receive buffers grow with the window: that is part of the change.
    let apart = |workload: &Workload| Workload { window: 1, batch: 1, depth: 1, ..*workload };
    let mut found = Vec::new();
    for before in observations {
        let of = &before.workload;
        for after in observations.iter().filter(|other| apart(&other.workload) == apart(of)) {
            let to = &after.workload;
            let what = if to.window == 2 * of.window && to.batch == of.batch {
                "window"
            } else if to.batch == 2 * of.batch && to.window == of.window {
                "batch"
            } else {
                continue;
            };
            let (Some(slow), Some(fast)) = (before.messages_per_s, after.messages_per_s) else { continue };
            let (Ok(first), Ok(second)) = (predict(parameters, of), predict(parameters, to)) else { continue };
            let (measured, predicted) = (fast / slow, second.messages_per_s / first.messages_per_s);
            let helps = |factor: f64| factor > 1.0 + CHANGES;
            found.push(Intervention {
                what: format!(
                    "{} {}, {} B: {what} {} to {}",
                    of.protocol.name(),
                    if what == "window" { format!("batch {}", of.batch) } else { format!("window {}", of.window) },
                    of.bytes,
                    if what == "window" { of.window } else { of.batch },
                    if what == "window" { to.window } else { to.batch },
                ),
                bottleneck: first.bottleneck().binding.kind.to_string(),
                measured,
                predicted,
                agrees: helps(measured) == helps(predicted),
            });
        }
    }
    found
}
