//! Fit of parameters to measurements.
//!
//! The fit minimises the squares of `ln(predicted / measured)` over the logarithms of the parameters. All errors are
//! therefore relative, and all parameters stay positive. Throughput is the minimum of its bounds, and this minimum has
//! kinks. The fit therefore descends from several starting points with a soft minimum, which approaches the true
//! minimum step by step. A weak pull keeps parameters without influence on the data near their starting values.
//!
//! The uncertainty of the parameters follows from the Jacobian of the errors and from other optima that explain the
//! data equally well. For example, if the slower of two CPUs binds, the data may not show
//! which of the two CPUs is the slower one. See [`Estimate`].

mod identify;

use levenberg_marquardt::{LeastSquaresProblem, LevenbergMarquardt};
use nalgebra::storage::Owned;
use nalgebra::{DMatrix, DVector, Dyn};

use crate::cost::{Cost, TERMS, Values};
use crate::observation::{Observation, Residual, median_and_p90, residuals};
use crate::parameters::{Parameters, ParametersError};
use crate::predict::Forms;
use crate::setting::Setting;
use crate::workload::WorkloadError;

pub use identify::{Estimate, Unit};
use identify::{Knowledge, View};

/// Minimum number of measured figures.
pub const LEAST_FIGURES: usize = 4;
/// Maximum number of measured figures, which limits memory and time.
pub const MOST_FIGURES: usize = 20_000;

/// Allowed latencies of an observation, in nanoseconds.
const LATENCY_NS: (f64, f64) = (1.0, 1e11);
/// Allowed rates of an observation.
const MESSAGES_PER_S: (f64, f64) = (1e-3, 1e12);
const WEIGHT: (f64, f64) = (1e-6, 1e6);

/// Exponents p of the p-norm that approximates the maximum of the times, one for each step of a descent. A larger
/// exponent is closer to the maximum.
const HARDNESS: [f64; 4] = [3.0, 10.0, 40.0, 160.0];
/// Number of descents that run through all exponents of [`HARDNESS`].
const SOFT_STARTS: u64 = 8;
/// Number of descents that use only the largest exponent of [`HARDNESS`].
const HARD_STARTS: u64 = 16;
/// Spread of the starting points around the first one, in logarithms: parameters differ by a factor of up to e^2.5.
const SPREAD: f64 = 2.5;
/// Weight of the pull of a parameter towards its starting value, relative to a figure of weight 1.
const PULL: f64 = 1e-3;
/// Relative change of errors and of parameters below which a descent ends.
const TOLERANCE: f64 = 1e-8;
/// Maximum number of evaluations of one descent, per parameter.
const PATIENCE: usize = 30;

/// Error of a fit.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FitError {
    /// The number of figures is out of its range.
    #[error("{given} measured figures (latencies and rates); a fit needs {least} to {most}")]
    Count {
        /// Number of figures.
        given: usize,
        /// Minimum number.
        least: usize,
        /// Maximum number.
        most: usize,
    },
    /// A figure is out of the range of measurements.
    #[error("{observation}: {field} is {given}, allowed is {least} to {most}")]
    Figure {
        /// Name of the observation.
        observation: String,
        /// Name of the figure.
        field: &'static str,
        /// Value of the figure.
        given: f64,
        /// Least allowed value.
        least: f64,
        /// Largest allowed value.
        most: f64,
    },
    /// A workload is impossible.
    #[error("{observation}: {error}")]
    Workload {
        /// Name of the observation.
        observation: String,
        /// Error of the workload.
        error: WorkloadError,
    },
    /// The starting point or the result is not a valid set of parameters.
    #[error("no parameters within their ranges explain these figures: {0}")]
    Parameters(#[from] ParametersError),
}

/// Fitted parameters and their uncertainty.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// Fitted parameters. If the data does not separate a parameter from others, its value is only plausible.
    pub parameters: Parameters,
    /// Estimate of each parameter.
    pub estimates: Vec<Estimate>,
    /// Sums of parameters that the data determines, although the data does not determine each parameter of the sum.
    pub sums: Vec<Estimate>,
    /// Each measured figure with its prediction.
    pub residuals: Vec<Residual>,
    /// Median of the absolute relative errors.
    pub median_error: f64,
    /// 90th percentile of the absolute relative errors.
    pub p90_error: f64,
    /// Number of directions in the parameter space that the data determines.
    pub rank: usize,
}

/// Fits the parameters to observations, starting from `base`.
///
/// The limits, the path MTU and the batch come from `base`. A parameter that is zero in `base` stays zero.
///
/// # Errors
///
/// There are too few figures, a figure is out of range, or no allowed parameters come near the figures.
pub fn fit(base: &Parameters, observations: &[Observation]) -> Result<Fit, FitError> {
    base.check(&base.name)?;
    let data = Data::new(base, observations)?;
    let start = base.values();
    let free: Vec<usize> = (0..TERMS).filter(|&index| start[index] > 0.0).collect();
    let origin = DVector::from_iterator(free.len(), free.iter().map(|&index| start[index].ln()));
    let scaled = origin.add_scalar(data.offset(&start));

    // Soft descents use all orders of `HARDNESS` and are pulled to the first starting point. They come near the best
    // optimum. Hard descents start around this optimum, and each is pulled to its own starting point. They find other
    // explanations of the data.
    let descent = LevenbergMarquardt::new().with_patience(PATIENCE).with_tol(TOLERANCE);
    let mut optima: Vec<Optimum> = Vec::new();
    for (starts, hardness) in [(SOFT_STARTS, &HARDNESS[..]), (HARD_STARTS, &HARDNESS[HARDNESS.len() - 1..])] {
        let around = best_of(&optima).map_or(&scaled, |best| &best.at).clone();
        for attempt in 0..starts {
            let at = scattered(&around, attempt);
            let origin = if hardness.len() > 1 { scaled.clone() } else { at.clone() };
            let mut problem = Problem { data: &data, free: &free, start, origin, at, hardness: 0.0 };
            for &hardness in hardness {
                problem.hardness = hardness;
                problem = descent.minimize(problem).0;
            }
            let values = problem.values();
            let loss = data.loss(&values);
            if loss.is_finite() {
                optima.push(Optimum { loss, at: problem.at, values });
            }
        }
    }
    let values = best_of(&optima).map_or(start, |best| best.values);
    let parameters = Parameters {
        name: format!("fitted from {}", base.name),
        source: format!("fitted to {} measured figures", data.rows.len()),
        open_points: Vec::new(),
        ..base.with_values(&values)
    };
    parameters.check("fit")?;

    let view = |values: &Values| {
        let jacobian = data.jacobian(values, &free, HARDNESS[HARDNESS.len() - 1]);
        View::of(&jacobian, &data.errors(values, f64::INFINITY), &free, *values)
    };
    let best = view(&values);
    let rank = best.rank();
    let most = data.loss(&values) + best.indistinguishable();
    let others = optima.iter().filter(|other| other.loss <= most).map(|other| view(&other.values));
    let knowledge = Knowledge(std::iter::once(best).chain(others).collect());
    let estimates = identify::estimates(&knowledge, &parameters);
    let sums = identify::sums(&knowledge, &parameters, &estimates);
    let residuals = residuals(&parameters, observations)
        .map_err(|error| FitError::Workload { observation: String::new(), error })?;
    // There are at least `LEAST_FIGURES` residuals, so the default is never used.
    let (median_error, p90_error) = median_and_p90(&residuals).unwrap_or_default();
    Ok(Fit {
        parameters: with_open_points(parameters, &estimates),
        estimates,
        sums,
        residuals,
        median_error,
        p90_error,
        rank,
    })
}

/// Adds the parameters that the data does not determine to the open points of the fitted set.
fn with_open_points(mut parameters: Parameters, estimates: &[Estimate]) -> Parameters {
    let unknown: Vec<&str> = estimates
        .iter()
        .filter(|estimate| estimate.interval.is_none())
        .map(|estimate| estimate.name.as_str())
        .collect();
    if !unknown.is_empty() {
        let point = format!("Not separated by the data, so the values are no measurements: {}.", unknown.join(", "));
        parameters.open_points.push(point);
    }
    parameters
}

/// Returns the starting point of an attempt: `origin` for attempt 0, and pseudo-random points around `origin` for the
/// other attempts.
fn scattered(origin: &DVector<f64>, attempt: u64) -> DVector<f64> {
    let mut state = attempt.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    origin.map(|value| {
        if attempt == 0 {
            return value;
        }
        let share = (doorbell_wire::split_mix(&mut state) >> 11) as f64 / (1_u64 << 53) as f64;
        value + SPREAD * (2.0 * share - 1.0)
    })
}

fn values_at(start: &Values, free: &[usize], at: &DVector<f64>) -> Values {
    let mut values = *start;
    for (&index, logarithm) in free.iter().zip(at.iter()) {
        values[index] = logarithm.exp();
    }
    values
}

/// Result of a descent.
struct Optimum {
    loss: f64,
    at: DVector<f64>,
    values: Values,
}

/// Returns the first optimum whose loss is about equal to the smallest loss. Early optima are preferred, because
/// parameters without influence on the data have stayed nearer to their starting values there.
fn best_of(optima: &[Optimum]) -> Option<&Optimum> {
    let least = optima.iter().map(|optimum| optimum.loss).fold(f64::INFINITY, f64::min);
    optima.iter().find(|optimum| optimum.loss <= least * 1.01 + 1e-9)
}

/// Measured figure. The largest of its costs is the prediction of the measured time.
struct Row {
    costs: Vec<Cost>,
    measured_ns: f64,
    weight: f64,
}

struct Data {
    rows: Vec<Row>,
}

impl Data {
    fn new(base: &Parameters, observations: &[Observation]) -> Result<Self, FitError> {
        let figures = |observation: &Observation| {
            usize::from(observation.latency_ns.is_some()) + usize::from(observation.messages_per_s.is_some())
        };
        let given = observations.iter().map(figures).sum();
        if !(LEAST_FIGURES..=MOST_FIGURES).contains(&given) {
            return Err(FitError::Count { given, least: LEAST_FIGURES, most: MOST_FIGURES });
        }
        let setting = Setting::of(base);
        let mut rows = Vec::with_capacity(given);
        for observation in observations {
            let within = |field, given: f64, (least, most): (f64, f64)| {
                let observation = observation.name.clone();
                if (least..=most).contains(&given) {
                    Ok(given)
                } else {
                    Err(FitError::Figure { observation, field, given, least, most })
                }
            };
            let weight = within("the weight", observation.weight, WEIGHT)?.sqrt();
            let Forms { latency, bounds } = observation
                .load
                .forms(&setting)
                .map_err(|error| FitError::Workload { observation: observation.name.clone(), error })?;
            if let Some(given) = observation.latency_ns {
                let measured_ns = within("latency_ns", given, LATENCY_NS)?;
                rows.push(Row { costs: vec![latency], measured_ns, weight });
            }
            if let Some(given) = observation.messages_per_s {
                let measured_ns = 1e9 / within("messages_per_s", given, MESSAGES_PER_S)?;
                rows.push(Row { costs: bounds.iter().map(|form| form.cost).collect(), measured_ns, weight });
            }
        }
        Ok(Self { rows })
    }

    /// Returns the logarithm of the factor that scales the times predicted from `start` to the measured times.
    fn offset(&self, start: &Values) -> f64 {
        let mut errors: Vec<f64> = self.rows.iter().map(|row| -row.error(start, f64::INFINITY)).collect();
        errors.sort_by(f64::total_cmp);
        errors[errors.len() / 2].clamp(-10.0, 10.0)
    }

    /// Returns the errors of the figures, each multiplied by its weight.
    fn errors(&self, values: &Values, hardness: f64) -> DVector<f64> {
        DVector::from_iterator(self.rows.len(), self.rows.iter().map(|row| row.weight * row.error(values, hardness)))
    }

    fn loss(&self, values: &Values) -> f64 {
        self.errors(values, f64::INFINITY).norm_squared()
    }

    /// Returns the derivatives of the errors with respect to the logarithms of the free terms.
    fn jacobian(&self, values: &Values, free: &[usize], hardness: f64) -> DMatrix<f64> {
        let mut jacobian = DMatrix::zeros(self.rows.len(), free.len());
        for (index, row) in self.rows.iter().enumerate() {
            for (cost, ns, share) in row.shares(values, hardness) {
                let scale = row.weight * share / ns;
                for (column, &term) in free.iter().enumerate() {
                    jacobian[(index, column)] += scale * cost.coefficients[term] * values[term];
                }
            }
        }
        jacobian
    }
}

impl Row {
    /// Returns the times of all costs, and the largest of them.
    fn times_ns(&self, values: &Values) -> (Vec<f64>, f64) {
        let times: Vec<f64> = self.costs.iter().map(|cost| cost.ns(values)).collect();
        let largest = times.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        (times, largest)
    }

    /// Returns `ln(predicted / measured)` of the row's time.
    fn error(&self, values: &Values, hardness: f64) -> f64 {
        let (times, largest) = self.times_ns(values);
        let soft = if hardness.is_finite() {
            let sum: f64 = times.iter().map(|ns| (ns / largest).powf(hardness)).sum();
            sum.ln() / hardness
        } else {
            0.0
        };
        largest.ln() + soft - self.measured_ns.ln()
    }

    /// Returns the relevant costs, each with its time and its share in the soft maximum of the costs.
    fn shares(&self, values: &Values, hardness: f64) -> impl Iterator<Item = (&Cost, f64, f64)> {
        let (times, largest) = self.times_ns(values);
        let powers: Vec<f64> = times.iter().map(|ns| (ns / largest).powf(hardness)).collect();
        let sum: f64 = powers.iter().sum();
        let all = self.costs.iter().zip(times).zip(powers);
        all.map(move |((cost, ns), power)| (cost, ns, power / sum)).filter(|(.., share)| *share > 1e-12)
    }
}

/// Least-squares problem of a descent.
struct Problem<'a> {
    data: &'a Data,
    /// Fitted terms.
    free: &'a [usize],
    /// Initial values of all terms; terms that are not fitted keep them.
    start: Values,
    /// Logarithms to which the fitted terms are pulled.
    origin: DVector<f64>,
    /// Current logarithms of the fitted terms.
    at: DVector<f64>,
    hardness: f64,
}

impl Problem<'_> {
    fn values(&self) -> Values {
        values_at(&self.start, self.free, &self.at)
    }
}

impl LeastSquaresProblem<f64, Dyn, Dyn> for Problem<'_> {
    type ResidualStorage = Owned<f64, Dyn>;
    type JacobianStorage = Owned<f64, Dyn, Dyn>;
    type ParameterStorage = Owned<f64, Dyn>;

    fn set_params(&mut self, at: &DVector<f64>) {
        self.at.copy_from(at);
    }

    fn params(&self) -> DVector<f64> {
        self.at.clone()
    }

    fn residuals(&self) -> Option<DVector<f64>> {
        let errors = self.data.errors(&self.values(), self.hardness);
        let pulls = (&self.at - &self.origin) * PULL;
        let all = DVector::from_iterator(errors.len() + pulls.len(), errors.iter().chain(pulls.iter()).copied());
        all.iter().all(|error| error.is_finite()).then_some(all)
    }

    fn jacobian(&self) -> Option<DMatrix<f64>> {
        let data = self.data.jacobian(&self.values(), self.free, self.hardness);
        let (rows, columns) = data.shape();
        let mut all = data.resize_vertically(rows + columns, 0.0);
        for index in 0..columns {
            all[(rows + index, index)] = PULL;
        }
        all.iter().all(|derivative| derivative.is_finite()).then_some(all)
    }
}

#[cfg(test)]
mod tests;
