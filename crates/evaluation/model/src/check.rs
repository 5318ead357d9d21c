//! Comparison of published numbers and sentences of a testbed with predictions.
//!
//! A published number is a row, and a published sentence is a shape. The predictions come from a [`Predictor`], which
//! is either the model ([`Analytic`]) or a simulator. A predictor gets the published configuration of the row. If a
//! predictor lacks a feature that a row needs, the row is not compared, and a [`Lack`] states the reason.
//!
//! ```
//! use doorbell_model::check::{Analytic, Status, check};
//! use doorbell_model::parameters::Parameters;
//!
//! let testbed = doorbell_claims::testbed("t1").ok_or("a testbed")?;
//! let parameters = Parameters::of_testbed(&testbed.name);
//! let checked = check(testbed, &mut Analytic::new(parameters.as_ref()));
//! let latency = checked.iter().find(|checked| checked.row.id == "send-receive/base-latency").ok_or("a row")?;
//! assert_eq!(latency.status(), Status::Within);
//! # Ok::<(), &str>(())
//! ```

mod analytic;
mod configured;
mod predicted;
mod predictor;
mod recorder;
mod rows;

use doorbell_claims::{Amount, CheckedShape, Compared, Row, Shape, Testbed, judge};

use crate::workload::WorkloadError;

pub use analytic::{Analytic, lack_of};
pub use configured::observations;
pub use predictor::{Binding, Manner, Needed, Order, Ordered, Packets, Predictor, Rated, StoreFigures, Stored};
pub use recorder::{Answer, Field, Recorder, Said};

/// Published number with its comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct Checked<'a> {
    /// Published row.
    pub row: &'a Row,
    /// Whether the predictor or the row's configuration was fitted to this row. The comparison is then no test of the
    /// predictor.
    pub is_fitted: bool,
    /// Comparison, or the reason why there is none.
    pub outcome: Result<Compared, Lack>,
    /// Binding resource, if the number is a throughput.
    pub binding: Option<Binding>,
}

/// Result of a row's comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// The prediction is within the tolerance.
    Within,
    /// The prediction is beyond the tolerance.
    Beyond,
    /// There is no prediction.
    NoModel,
}

impl Status {
    /// All statuses, in the order of summaries.
    pub const ALL: [Self; 3] = [Self::Within, Self::Beyond, Self::NoModel];

    /// Returns the name in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Within => "within",
            Self::Beyond => "beyond",
            Self::NoModel => "no model",
        }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// Reason for a missing prediction.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Lack {
    /// The row is neither about messages of a protocol nor about single operations.
    #[error("there are predictions for messages of a protocol and for single operations, but not for {0}")]
    Subject(&'static str),
    /// The row is about a protocol that Doorbell does not have.
    #[error("there is no protocol {0}")]
    Protocol(String),
    /// No predictor knows the row's quantity.
    #[error("there is no prediction of {0}")]
    Quantity(&'static str),
    /// There is no parameter set.
    #[error("the model has no parameters of the testbed")]
    Parameters,
    /// A field of the row's configuration has no number.
    #[error("the publication does not state `{0}`, which a prediction needs")]
    Unstated(&'static str),
    /// A field has a range, and a prediction needs one number.
    #[error("`{field}` is {amount}, and a prediction needs one number")]
    Range {
        /// Name of the field.
        field: &'static str,
        /// Range of the field.
        amount: Amount,
    },
    /// A field has one number, and the row's quantity needs a range.
    #[error("`{field}` is the single number {amount}, but the row states a change over a range of `{field}`")]
    NoRange {
        /// Name of the field.
        field: &'static str,
        /// Number of the field.
        amount: Amount,
    },
    /// The predictor lacks a feature that the row needs. The sentence names the feature.
    #[error("{0}")]
    Feature(&'static str),
    /// The parameter set has no value that the row needs.
    #[error("the parameters have no {0}")]
    Parameter(&'static str),
    /// The configuration of the row is impossible.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The simulation failed. The text is its error.
    #[error("the run failed: {0}")]
    Failed(String),
}

impl<'a> Checked<'a> {
    /// Compares one number with its prediction.
    pub fn of(row: &'a Row, by: &mut dyn Predictor) -> Self {
        let found = rows::predict(row, by);
        let binding = found.as_ref().ok().and_then(|(_, binding)| *binding);
        let outcome = found.map(|(found, _)| Compared::of(row, found, 0.0));
        let is_fitted = by.is_fitted(&row.id) || !row.fitted.is_empty();
        Self { row, is_fitted, outcome, binding }
    }

    /// Returns the published number in words.
    pub fn published(&self) -> String {
        format!("{}{}", self.row.relation.words(), self.row.value)
    }

    /// Returns the status of the comparison.
    pub fn status(&self) -> Status {
        match &self.outcome {
            Ok(compared) if compared.is_within() => Status::Within,
            Ok(_) => Status::Beyond,
            Err(_) => Status::NoModel,
        }
    }
}

/// Judges one sentence by the predictions.
pub fn check_shape<'a>(shape: &'a Shape, by: &mut dyn Predictor) -> CheckedShape<'a> {
    let is_fitted = by.is_fitted(&shape.id);
    CheckedShape { shape, is_fitted, verdict: judge(shape, &mut predicted::Predicted { by }) }
}

/// Compares all numbers of a testbed with predictions.
pub fn check<'a>(testbed: &'a Testbed, by: &mut dyn Predictor) -> Vec<Checked<'a>> {
    testbed.rows.iter().map(|row| Checked::of(row, by)).collect()
}

/// Judges all sentences of a testbed by predictions.
pub fn check_shapes<'a>(testbed: &'a Testbed, by: &mut dyn Predictor) -> Vec<CheckedShape<'a>> {
    testbed.shapes.iter().map(|shape| check_shape(shape, by)).collect()
}
