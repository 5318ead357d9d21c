//! Performance model, fitted to the records of a run and drawn over their points.
//!
//! The model is fitted to every fourth point, so its line at the other points is a prediction. The error of this
//! prediction shows how good the model is. Fits use the best repetition of a point, because other programs can only
//! slow a repetition down. Points that the model cannot tell apart count as one load, with the figure of the fastest.

use std::collections::{BTreeMap, HashMap};

use doorbell_model::fit::{Fit, fit};
use doorbell_model::observation::{Load, Observation, median_and_p90, residuals};
use doorbell_model::parameters::{Parameters, RnicKind};
use doorbell_model::predict::{Requests, predict, predict_requests};
use doorbell_model::record::{observations_of, requests_of};
use doorbell_model::workload::Workload;
use doorbell_record::{PointRecord, Quantity};

use crate::view::comparison;
use crate::{Account, Errors, Intervention, Model, Parameter, Prediction, Run};

/// The model is fitted to one of each `EVERY` points.
const EVERY: usize = 4;
/// Maximum number of points in a fit. The time of a fit grows with this number.
const MOST_FITTED: usize = 500;

/// Minimum relative change of the throughput that counts as an effect of a doubled parameter.
const CHANGES: f64 = 0.1;

/// Models of the runs that could be fitted.
#[derive(Debug, Default)]
pub struct Fitted {
    runs: HashMap<String, Result<OfRun, String>>,
}

#[derive(Debug)]
struct OfRun {
    parameters: Parameters,
    loads: HashMap<PointKey, Load>,
    account: Account,
}

/// Key of a point: experiment, curve and position on the axis.
type PointKey = (String, String, u64);

fn place(record: &PointRecord) -> PointKey {
    (record.experiment.clone(), record.series.clone(), record.x.to_bits())
}

impl Fitted {
    /// Fits the model to each run. A run with too few points, or with points that no parameters explain, has no
    /// model.
    pub fn new(runs: &[Run]) -> Self {
        Self { runs: runs.iter().map(|run| (run.name.clone(), OfRun::new(run))).collect() }
    }
}

impl Model for Fitted {
    fn predict(&self, run: &Run, record: &PointRecord, quantity: Quantity) -> Option<Prediction> {
        let of_run = self.runs.get(&run.name)?.as_ref().ok()?;
        if let Some(requests) = requests_of(record) {
            return of_requests(&of_run.parameters, &requests, quantity);
        }
        let prediction = of_run.loads.get(&place(record))?.predict(&of_run.parameters).ok()?;
        let is_latency = matches!(record.parameters.kind, doorbell_record::Kind::Latency);
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

    fn account(&self, run: &Run) -> Result<&Account, &str> {
        match self.runs.get(&run.name) {
            Some(Ok(of_run)) => Ok(&of_run.account),
            Some(Err(why)) => Err(why),
            None => Err("the model was not fitted to this run"),
        }
    }
}

/// Returns the prediction for requests with replies. Fits leave them out. The predicted latency is the mean with this
/// load.
fn of_requests(parameters: &Parameters, requests: &Requests, quantity: Quantity) -> Option<Prediction> {
    let prediction = predict_requests(parameters, requests).ok()?;
    let value = match quantity {
        Quantity::MeanLatency => requests.loaded_ns(&prediction) / 1e3,
        Quantity::MessageRate => prediction.messages_per_s / 1e6,
        Quantity::Throughput => prediction.bytes_per_s * 8.0 / 1e9,
        _ => return None,
    };
    Some(Prediction { value, bottleneck: bottleneck(&prediction) })
}

/// Returns the bottleneck and the distance of the next bottleneck.
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
    fn new(run: &Run) -> Result<Self, String> {
        let mut rnic = None;
        let mut loads = HashMap::new();
        let mut best: Vec<Observation> = Vec::new();
        let mut left_out: BTreeMap<String, usize> = BTreeMap::new();
        for record in &run.records {
            let (kind, one) = match best_observed(record) {
                Ok(observed) => observed,
                Err(why) => {
                    *left_out.entry(why).or_default() += 1;
                    continue;
                }
            };
            if *rnic.get_or_insert(kind) != kind {
                *left_out.entry("of another kind of RNIC than others".to_owned()).or_default() += 1;
                continue;
            }
            loads.insert(place(record), one.load);
            // The comparison of protocols has the same point, with other names of the experiment and the curve.
            if let Some((experiment, series)) = comparison::name(record) {
                loads.insert((experiment, series, record.x.to_bits()), one.load);
            }
            // A load that is a point of several experiments counts once.
            match best.iter_mut().find(|other| other.load == one.load && is_same_kind(other, &one)) {
                Some(other) if time_ns(other) <= time_ns(&one) => {}
                Some(other) => *other = one,
                None => best.push(one),
            }
        }
        let base = Parameters::starting_point(rnic.unwrap_or(RnicKind::Software));
        let every = best.len().div_ceil(MOST_FITTED).max(EVERY);
        let (chosen, others): (Vec<_>, Vec<_>) =
            // Choose another position in each group of `every` points. Otherwise, curves of four points would all be
            // fitted at the same position.
            best.iter().cloned().enumerate().partition(|(index, _)| (index + index / every).is_multiple_of(every));
        let plain = |numbered: Vec<(usize, Observation)>| numbered.into_iter().map(|(_, one)| one).collect::<Vec<_>>();
        let (chosen, others) = (plain(chosen), plain(others));
        let fitted = fit(&base, &chosen).map_err(|error| error.to_string())?;
        let of_others = residuals(&fitted.parameters, &others).map_err(|error| error.to_string())?;
        let (median, p90) = median_and_p90(&of_others).unwrap_or_default();
        let account = Account {
            fitted: Errors { figures: chosen.len(), median: fitted.median_error, p90: fitted.p90_error },
            predicted: Errors { figures: of_others.len(), median, p90 },
            left_out,
            parameters: parameters(&fitted),
            interventions: interventions(&fitted.parameters, &best),
        };
        Ok(Self { parameters: fitted.parameters, loads, account })
    }
}

/// Returns the observation from the best repetition of a point, or the reason why the point has no observation.
fn best_observed(record: &PointRecord) -> Result<(RnicKind, Observation), String> {
    let observed = observations_of("", record).map_err(|error| error.to_string())?;
    let reason = observed.left_out.first().and_then(|why| why.split_once("left out: ")).map(|(_, why)| why);
    let best = observed.observations.into_iter().min_by(|a, b| time_ns(a).total_cmp(&time_ns(b)));
    match best {
        // Times above a minute or below a picosecond are impossible. With such a time, a fit would reject all other
        // points too.
        Some(one) if !(1e-3..=6e10).contains(&time_ns(&one)) => Err("the figure is impossible".to_owned()),
        Some(one) => Ok((observed.rnic, one)),
        None => Err(reason.unwrap_or("there is no repetition").to_owned()),
    }
}

/// Returns the time of one message.
fn time_ns(one: &Observation) -> f64 {
    one.latency_ns.or(one.messages_per_s.map(|rate| 1e9 / rate)).unwrap_or(f64::MAX)
}

fn is_same_kind(one: &Observation, other: &Observation) -> bool {
    one.latency_ns.is_some() == other.latency_ns.is_some()
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

/// Returns the measured and the predicted effect of each doubling of a window or a batch. Both the smaller and the
/// doubled value must have been measured.
fn interventions(parameters: &Parameters, observations: &[Observation]) -> Vec<Intervention> {
    // Ignore the depth: the number of receive buffers grows with the window, so its growth is a part of the change.
    let apart = |workload: &Workload| Workload { window: 1, batch: 1, depth: 1, ..*workload };
    let mut found = Vec::new();
    let messages = |one: &Observation| match one.load {
        Load::Messages(workload) => Some((workload, one.messages_per_s?)),
        Load::Operations(_) => None,
    };
    for (of, slow) in observations.iter().filter_map(messages) {
        for (to, fast) in observations.iter().filter_map(messages).filter(|(to, _)| apart(to) == apart(&of)) {
            let change = if to.window == 2 * of.window && to.batch == of.batch {
                format!("batch {}, {} B: window {} to {}", of.batch, of.bytes, of.window, to.window)
            } else if to.batch == 2 * of.batch && to.window == of.window {
                format!("window {}, {} B: batch {} to {}", of.window, of.bytes, of.batch, to.batch)
            } else {
                continue;
            };
            let (Ok(first), Ok(second)) = (predict(parameters, &of), predict(parameters, &to)) else { continue };
            let (measured, predicted) = (fast / slow, second.messages_per_s / first.messages_per_s);
            let helps = |factor: f64| factor > 1.0 + CHANGES;
            found.push(Intervention {
                what: format!("{} {change}", of.protocol.name()),
                bottleneck: first.bottleneck().binding.kind.to_string(),
                measured,
                predicted,
                agrees: helps(measured) == helps(predicted),
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use doorbell_study::experiment::REQUESTS;

    use super::*;
    use crate::view::tests::run;

    /// Returns the last point of requests, which has 16 clients.
    fn asked() -> PointRecord {
        let mut record = run("here", REQUESTS, 1e5).records.pop().expect("a point");
        for result in &mut record.repetitions {
            (result.bytes, result.mtu) = (200, 4096);
            (result.fitted.window, result.fitted.batch, result.fitted.depth) = (1, 1, 16);
        }
        record
    }

    #[test]
    fn requests_are_predicted_with_their_load() {
        let requests = requests_of(&asked()).expect("requests");
        let of = |quantity| of_requests(&Parameters::t1(), &requests, quantity).map(|it| it.value);
        let [mean_us, rate, gbps] = [Quantity::MeanLatency, Quantity::MessageRate, Quantity::Throughput]
            .map(|it| of(it).expect("a prediction"));
        // Little's law for 16 clients with one request each. Replies have 64 KiB.
        assert!((mean_us * rate - 16.0).abs() < 1e-9, "{mean_us} us, {rate} M/s");
        assert!((gbps - rate * 65_536.0 * 8.0 / 1e3).abs() < 1e-6, "{gbps} Gb/s, {rate} M/s");
        assert!(mean_us > 60.0, "16 replies of 64 KiB take 84 us on the line: {mean_us}");
        assert_eq!(of(Quantity::MedianLatency), None, "the model has means");
    }
}
