//! Record of one point of a study, stored as one JSON file.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::described::described;
use crate::environment::Environment;
use crate::link::Carried;
use crate::parameters::Parameters;
use crate::quantity::{Quantity, Spread};
use crate::result::PointResult;

const FORMAT: &str = "doorbell-study-point";
const SCHEMA: u64 = 1;

/// Maximum number of repetitions of a point.
const MAX_REPETITIONS: usize = 1000;
/// Maximum of seconds, messages per second and bytes per second in a record. No machine reaches this value.
const MAX_VALUE: f64 = 1e15;
/// Maximum bytes of a name.
const MAX_NAME: usize = 200;

described! {
    /// Point with the results of all repetitions.
    #[derive(Clone, Debug, Serialize, Deserialize)]
    pub struct PointRecord {
        /// Format of the file: `doorbell-study-point`.
        pub format: String,
        /// Version of the schema: 1. Later releases may add fields, so a reader ignores unknown fields.
        pub schema: u64,
        /// Name of the experiment.
        pub experiment: String,
        /// Name of the curve.
        pub series: String,
        /// Position on the axis of the experiment, such as the message size.
        pub x: f64,
        /// Machine and device.
        pub environment: Environment,
        /// Requested parameters. `sizes` has one size.
        pub parameters: Parameters,
        /// Result of each repetition, at most 1,000.
        pub repetitions: Vec<PointResult>,
    }
}

/// Reason why a text is not the record of a point.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The text is not JSON, or the JSON is not a record.
    #[error("{0}")]
    Damaged(String),
    /// A later release wrote the record.
    #[error("field `schema` is {0}, this release reads up to {SCHEMA}: use a newer release")]
    Newer(u64),
}

impl PointRecord {
    /// Value of the field [`format`](Self::format) of every record.
    pub const FORMAT: &str = FORMAT;
    /// Schema of a record. Later releases may add fields to a schema.
    pub const SCHEMA: u64 = SCHEMA;

    /// Creates a record without repetitions.
    pub fn new(experiment: &str, series: &str, x: f64, environment: Environment, parameters: Parameters) -> Self {
        Self {
            format: FORMAT.to_owned(),
            schema: SCHEMA,
            experiment: experiment.to_owned(),
            series: series.to_owned(),
            x,
            environment,
            parameters,
            repetitions: Vec::new(),
        }
    }

    /// Parses and validates a record.
    ///
    /// # Errors
    ///
    /// The text is not JSON, is not the record of a point, was written by a later release, or has a field that is
    /// missing, unknown or out of range.
    pub fn parse(json: &[u8]) -> Result<Self, RecordError> {
        let damaged = |what: String| Err(RecordError::Damaged(what));
        let value: Value = match serde_json::from_slice(json) {
            Ok(value) => value,
            Err(error) => return damaged(format!("the text is not JSON: {error}")),
        };
        match value.get("format") {
            Some(format) if format == FORMAT => {}
            Some(other) => return damaged(format!("field `format` is {}: must be \"{FORMAT}\"", brief(other))),
            None => return damaged(format!("field `format` is missing: must be \"{FORMAT}\"")),
        }
        match value.get("schema").map(|schema| (schema, schema.as_u64())) {
            Some((_, Some(1..=SCHEMA))) => {}
            Some((_, Some(schema))) if schema > SCHEMA => return Err(RecordError::Newer(schema)),
            Some((other, _)) => {
                return damaged(format!("field `schema` is {}: must be a number from 1 to {SCHEMA}", brief(other)));
            }
            None => return damaged("field `schema` is missing".to_owned()),
        }
        let record: Self = match serde_path_to_error::deserialize(value) {
            Ok(record) => record,
            Err(error) => return damaged(format!("field `{}`: {}", error.path(), error.inner())),
        };
        record.check().map_err(RecordError::Damaged)?;
        Ok(record)
    }

    fn check(&self) -> Result<(), String> {
        for (field, name) in [("experiment", &self.experiment), ("series", &self.series)] {
            if name.is_empty() || name.len() > MAX_NAME {
                return Err(format!("field `{field}` has {} B: must have 1 to {MAX_NAME} B", name.len()));
            }
        }
        if !(self.x.is_finite() && self.x >= 0.0) {
            return Err(format!("field `x` is {}: must be at least 0", self.x));
        }
        if self.parameters.sizes.len() != 1 {
            let sizes = self.parameters.sizes.len();
            return Err(format!("field `parameters.sizes` has {sizes} sizes: must have one"));
        }
        self.parameters.check().map_err(|error| format!("field `parameters`: {error}"))?;
        if !(1..=MAX_REPETITIONS).contains(&self.repetitions.len()) {
            let count = self.repetitions.len();
            return Err(format!("field `repetitions` has {count} elements: must have 1 to {MAX_REPETITIONS}"));
        }
        for (index, result) in self.repetitions.iter().enumerate() {
            for (field, value) in [
                ("seconds", result.seconds),
                ("messages_per_s", result.messages_per_s),
                ("bytes_per_s", result.bytes_per_s),
            ] {
                if !(0.0..=MAX_VALUE).contains(&value) || (field == "seconds" && value == 0.0) {
                    let allowed = if field == "seconds" { "more than 0" } else { "0" };
                    let what = format!("is {value}: must be {allowed} to {MAX_VALUE}");
                    return Err(format!("field `repetitions[{index}].{field}` {what}"));
                }
            }
        }
        Ok(())
    }

    /// Returns the bytes per message.
    pub fn bytes(&self) -> usize {
        self.parameters.sizes.first().copied().unwrap_or(0)
    }

    /// Returns the number of packets by link, summed over all repetitions. The counts are zero in virtual time, and for
    /// hardware RNICs.
    pub fn carried(&self) -> Carried {
        let is_soft = self.environment.provider == doorbell_verbs::soft::PROVIDER && self.environment.testbed.is_none();
        let says = |result: &&PointResult| is_soft || result.link.client.contains_key("tx_udp_packets");
        self.repetitions.iter().filter(says).fold(Carried::default(), |all, result| all.and(result.carried()))
    }

    /// Returns the value of a quantity in each repetition.
    ///
    /// If clients think, or requests have a rate, windows are not always full. Little's law would then count the
    /// pauses, so [`Quantity::MeanLatency`] is the measured mean.
    pub fn values(&self, quantity: Quantity) -> Vec<f64> {
        let has_pauses = self.parameters.think_us > 0 || self.parameters.rate.is_some();
        let value = |result: &PointResult| match quantity {
            Quantity::MeanLatency if has_pauses => Some(result.latency_ns?.mean / 1e3),
            _ => quantity.of(result),
        };
        self.repetitions.iter().filter_map(value).collect()
    }

    /// Returns the spread of a quantity over the repetitions.
    pub fn spread(&self, quantity: Quantity) -> Option<Spread> {
        Spread::of(self.values(quantity))
    }
}

/// Returns a value for an error message, truncated if it is long.
fn brief(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::Latency;
    use crate::words::{Kind, Operation};

    /// A client that thinks has no request outstanding meanwhile, and neither has an open loop that waits for its time.
    #[test]
    fn mean_latency_has_no_pauses() {
        let mean = |think_us, rate| {
            let plain = Parameters::plain(Kind::Bandwidth, Operation::RequestResponse, 64);
            let parameters = Parameters { think_us, rate, ..plain };
            let mut record = PointRecord::new("requests/clients", "a curve", 1.0, Environment::default(), parameters);
            let latency = Latency { min: 9000, p50: 9000, mean: 10_000.0, p99: 9000, p999: 9000, max: 9000 };
            let mut result =
                PointResult { messages_per_s: 25_000.0, latency_ns: Some(latency), ..PointResult::default() };
            (result.fitted.window, result.sent_by_connection) = (1, vec![10]);
            record.repetitions = vec![result];
            record.values(Quantity::MeanLatency)
        };
        assert_eq!(mean(0, None), [40.0], "a window per 40 us");
        assert_eq!(mean(30, None), [10.0]);
        assert_eq!(mean(0, Some(25_000.0)), [10.0]);
    }
}
