//! What was published beside what something predicts: each number and each sentence of a testbed.
//!
//! A row is compared in its configuration as published. Whatever predicts is a [`Predictor`]: the model, as
//! [`Analytic`], or a simulator. All of them have their rows read and their shapes judged by the same code. A row that
//! needs something that its predictor does not have is not compared, and a [`Lack`] says what is missing.
//!
//! ```
//! use doorbell_model::check::{Analytic, Status, check};
//! use doorbell_model::parameters::Parameters;
//!
//! let testbed = doorbell_published::testbed("t1").ok_or("a testbed")?;
//! let parameters = Parameters::of_testbed(&testbed.name);
//! let checked = check(testbed, &mut Analytic::new(parameters.as_ref()));
//! let latency = checked.iter().find(|checked| checked.row.id == "send-receive/base-latency").ok_or("a row")?;
//! assert_eq!(latency.status(), Status::Within);
//! # Ok::<(), &str>(())
//! ```

mod analytic;
mod configured;
mod predictor;
mod recorder;
mod rows;
mod shapes;

use doorbell_published::{Amount, Relation, Row, Shape, Testbed, Value};

use crate::workload::WorkloadError;

pub use analytic::{Analytic, LATENCY_TOLERANCE, THROUGHPUT_TOLERANCE, lack_of};
pub use configured::observations;
pub use predictor::{Binding, Manner, Needed, Packets, Predictor, Rated};
pub use recorder::{Answer, Field, Recorder, Said};
pub use shapes::Judged;

/// A published number beside a prediction.
#[derive(Clone, Debug, PartialEq)]
pub struct Checked<'a> {
    /// What was published.
    pub row: &'a Row,
    /// Something of the predictor was fitted to this row, so that the comparison is no test of it.
    pub is_fitted: bool,
    /// What is predicted, or what is missing for a prediction.
    pub outcome: Result<Compared, Lack>,
}

/// A prediction beside the published number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compared {
    /// What is predicted, in the unit of the row.
    pub predicted: Value,
    /// How far it is off: 0.1 is a tenth too high. 0 where the row is a bound that the prediction keeps.
    pub deviation: f64,
    /// How far it may be off.
    pub tolerance: f64,
    /// What binds the throughput, where the number is one.
    pub binding: Option<Binding>,
}

impl Compared {
    /// Does the row's tolerance hold?
    pub fn is_within(&self) -> bool {
        self.deviation.abs() <= self.tolerance
    }

    /// The deviation in words: of a bound that is kept there is none.
    pub fn deviation_of(&self, relation: Relation) -> String {
        match relation {
            Relation::AtLeast | Relation::AtMost if self.deviation == 0.0 => "kept".to_owned(),
            _ => format!("{:+.1} %", self.deviation * 100.0),
        }
    }
}

/// A published sentence beside what is predicted.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedShape<'a> {
    /// What was published.
    pub shape: &'a Shape,
    /// Something of the predictor was fitted to this sentence.
    pub is_fitted: bool,
    /// Whether the predictions have the shape, or what is missing to say something.
    pub outcome: Result<Judged, Lack>,
}

/// How a row compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// The prediction is within the tolerance.
    Within,
    /// It is not.
    Beyond,
    /// There is no prediction.
    NoModel,
}

impl Status {
    /// All, in the order in which summaries have them.
    pub const ALL: [Self; 3] = [Self::Within, Self::Beyond, Self::NoModel];

    /// As tables and JSON have it.
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

/// Whether predictions have a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// They have.
    Yes,
    /// They have not.
    No,
    /// There is no prediction.
    NoModel,
}

impl Verdict {
    /// All, in the order in which summaries have them.
    pub const ALL: [Self; 3] = [Self::Yes, Self::No, Self::NoModel];
}

/// What is missing for a prediction.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Lack {
    /// The row is neither about messages of a protocol nor about single operations.
    #[error("predictions are of messages of protocols and of single operations, not of {0}")]
    Subject(&'static str),
    /// The row is about a protocol that Doorbell does not have.
    #[error("there is no protocol {0}")]
    Protocol(String),
    /// The row's number is none that is predicted.
    #[error("nothing predicts {0}")]
    Quantity(&'static str),
    /// There is no parameter set.
    #[error("the model has no parameters of the testbed")]
    Parameters,
    /// A field of the row's configuration has no number.
    #[error("the publication does not state `{0}`, which a prediction needs")]
    Unstated(&'static str),
    /// A field has a range where a prediction needs one number.
    #[error("`{field}` is {amount}, and a prediction needs one number")]
    Range {
        /// Which field.
        field: &'static str,
        /// The range.
        amount: Amount,
    },
    /// A field has one number, and the row's quantity needs a range.
    #[error("`{field}` is {amount}, and the quantity needs a range")]
    NoRange {
        /// Which field.
        field: &'static str,
        /// The number.
        amount: Amount,
    },
    /// The predictor does not have a feature that the row is about: a sentence.
    #[error("{0}")]
    Feature(&'static str),
    /// The parameter set has no number for something that the row is about.
    #[error("the parameters have no {0}")]
    Parameter(&'static str),
    /// The configuration cannot be.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// A run that should have given the number failed.
    #[error("the run failed: {0}")]
    Failed(String),
}

impl<'a> Checked<'a> {
    /// One number beside what is predicted.
    pub fn of(row: &'a Row, by: &mut dyn Predictor) -> Self {
        Self { row, is_fitted: by.is_fitted(&row.id), outcome: rows::compare(row, by) }
    }

    /// The number as published, in words.
    pub fn published(&self) -> String {
        format!("{}{}", self.row.relation.words(), self.row.value)
    }

    /// How the row compares.
    pub fn status(&self) -> Status {
        match &self.outcome {
            Ok(compared) if compared.is_within() => Status::Within,
            Ok(_) => Status::Beyond,
            Err(_) => Status::NoModel,
        }
    }
}

impl<'a> CheckedShape<'a> {
    /// Whether predictions have the shape, in a word, and why.
    pub fn verdict(&self) -> (Verdict, String) {
        match &self.outcome {
            Ok(Judged { is_had: true, because }) => (Verdict::Yes, because.clone()),
            Ok(Judged { is_had: false, because }) => (Verdict::No, because.clone()),
            Err(lack) => (Verdict::NoModel, lack.to_string()),
        }
    }

    /// One sentence, judged on what is predicted.
    pub fn of(shape: &'a Shape, by: &mut dyn Predictor) -> Self {
        Self { shape, is_fitted: by.is_fitted(&shape.id), outcome: shapes::judge(shape, by) }
    }
}

/// All numbers of a testbed beside what is predicted.
pub fn check<'a>(testbed: &'a Testbed, by: &mut dyn Predictor) -> Vec<Checked<'a>> {
    testbed.rows.iter().map(|row| Checked::of(row, by)).collect()
}

/// All sentences of a testbed beside what is predicted.
pub fn check_shapes<'a>(testbed: &'a Testbed, by: &mut dyn Predictor) -> Vec<CheckedShape<'a>> {
    testbed.shapes.iter().map(|shape| CheckedShape::of(shape, by)).collect()
}
