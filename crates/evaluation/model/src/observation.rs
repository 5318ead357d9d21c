//! Measurements, and the deviations of predictions from measurements.

use crate::operation::{Posted, operation_forms, predict_operation};
use crate::parameters::Parameters;
use crate::predict::{Forms, Prediction, forms, predict};
use crate::setting::Setting;
use crate::workload::{Workload, WorkloadError};

/// Load of an RNIC.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// Messages of a protocol.
    Messages(Workload),
    /// Operations of bare queue pairs.
    Operations(Posted),
}

impl Load {
    /// Returns the prediction of the load with these parameters.
    ///
    /// # Errors
    ///
    /// Returns an error if the load is impossible: see [`Workload::check`] and [`Posted::check`].
    pub fn predict(&self, parameters: &Parameters) -> Result<Prediction, WorkloadError> {
        match self {
            Self::Messages(workload) => predict(parameters, workload),
            Self::Operations(posted) => predict_operation(parameters, posted),
        }
    }

    pub(crate) fn forms(&self, setting: &Setting) -> Result<Forms, WorkloadError> {
        match self {
            Self::Messages(workload) => forms(setting, workload),
            Self::Operations(posted) => operation_forms(setting, posted),
        }
    }

    /// Checks that all numbers are in their ranges.
    ///
    /// # Errors
    ///
    /// Returns an error if a number is out of range: see [`Workload::check`] and [`Posted::check`].
    pub fn check(&self) -> Result<(), WorkloadError> {
        match self {
            Self::Messages(workload) => workload.check(),
            Self::Operations(posted) => posted.check(),
        }
    }
}

/// A measurement of a load.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// Name of the measurement.
    pub name: String,
    /// The measured load.
    pub load: Load,
    /// Latency: half of the round trip of a ping-pong, or for operations the time from post to completion.
    pub latency_ns: Option<f64>,
    /// Messages or operations per second, over all connections and both directions.
    pub messages_per_s: Option<f64>,
    /// Weight in a fit, relative to other observations; usually 1.
    pub weight: f64,
}

/// Quantity of a [`Residual`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Quantity {
    /// Latency in nanoseconds: half of a round trip, or the time of an operation.
    LatencyNs,
    /// Messages per second.
    MessagesPerS,
}

/// Measurement with its prediction.
#[derive(Clone, Debug, PartialEq)]
pub struct Residual {
    /// Name of the observation.
    pub name: String,
    /// Compared quantity.
    pub quantity: Quantity,
    /// Measured value.
    pub measured: f64,
    /// Predicted value.
    pub predicted: f64,
}

impl Residual {
    /// Returns the relative error of the prediction: 0.1 means 10 % too high, -0.1 means 10 % too low.
    pub fn relative_error(&self) -> f64 {
        self.predicted / self.measured - 1.0
    }
}

/// Returns the median and the 90th percentile of the absolute relative errors, or `None` without residuals.
pub fn median_and_p90(residuals: &[Residual]) -> Option<(f64, f64)> {
    let mut errors: Vec<f64> = residuals.iter().map(|residual| residual.relative_error().abs()).collect();
    errors.sort_by(f64::total_cmp);
    let last = errors.len().checked_sub(1)?;
    let quantile = |share: f64| errors[(last as f64 * share).round() as usize];
    Some((quantile(0.5), quantile(0.9)))
}

/// Returns each measured value with the value that the parameter set predicts.
///
/// # Errors
///
/// Returns the error of [`Workload::check`] if the load of an observation is impossible.
pub fn residuals(parameters: &Parameters, observations: &[Observation]) -> Result<Vec<Residual>, WorkloadError> {
    let mut residuals = Vec::new();
    for observation in observations {
        let prediction = observation.load.predict(parameters)?;
        let mut push = |quantity, measured: Option<f64>, predicted| {
            let name = observation.name.clone();
            residuals.extend(measured.map(|measured| Residual { name, quantity, measured, predicted }));
        };
        push(Quantity::LatencyNs, observation.latency_ns, prediction.latency_ns);
        push(Quantity::MessagesPerS, observation.messages_per_s, prediction.messages_per_s);
    }
    Ok(residuals)
}

/// Returns the range of message sizes, in bytes, for which a shared receive queue is slower than the link. Both limits
/// are exclusive. Returns `None` if the parameters have no limit of the shared receive queue.
pub fn srq_slow_sizes(parameters: &Parameters) -> Option<(u64, u64)> {
    let rate = Some(1e9 / parameters.o_srq_ns).filter(|rate| rate.is_finite())?;
    let from = parameters.limits.srq_unlimited_up_to_bytes;
    let fills = |bytes: u64| {
        let prediction = predict(parameters, &Workload { credits: false, ..Workload::unbatched(bytes) });
        prediction
            .ok()
            .and_then(|prediction| prediction.bound(crate::predict::BoundKind::Link))
            .is_none_or(|link| link.messages_per_s() <= rate)
    };
    // Line bytes grow with the payload, so bisection finds the smallest size that fills the link.
    let (mut low, mut high) = (from, crate::workload::MAX_BYTES);
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        if fills(middle) { high = middle } else { low = middle }
    }
    Some((from, high))
}
