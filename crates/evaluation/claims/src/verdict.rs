//! Verdicts on published sentences, and comparisons of published numbers.

use crate::{Relation, Row, Shape, Value, tolerance};

/// Outcome of the judgement of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Finding {
    /// The values have the shape.
    Holds,
    /// The values have another shape.
    DoesNotHold,
    /// The source lacks the cause of the shape.
    CannotShow,
    /// The source lacks values that the claim needs: points that were not measured, or a feature of a model.
    NoValues,
}

impl Finding {
    /// All findings, in the order of summaries.
    pub const ALL: [Self; 4] = [Self::Holds, Self::DoesNotHold, Self::CannotShow, Self::NoValues];

    /// Returns the outcome for measured values as text.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::DoesNotHold => "does not hold here",
            Self::CannotShow => "cannot show on this provider",
            Self::NoValues => "not measured",
        }
    }
}

/// Reason why a source has no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gap {
    /// The source lacks the value.
    NoValues(String),
    /// The source lacks the cause of the shape.
    CannotShow(String),
}

/// Outcome, and a sentence with the numbers that justify the outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Outcome of the judgement.
    pub finding: Finding,
    /// Reason for the outcome.
    pub because: String,
}

impl Verdict {
    /// Returns [`Finding::Holds`] or [`Finding::DoesNotHold`].
    pub fn new(holds: bool, because: String) -> Self {
        Self { finding: if holds { Finding::Holds } else { Finding::DoesNotHold }, because }
    }
}

impl From<Gap> for Verdict {
    fn from(gap: Gap) -> Self {
        match gap {
            Gap::NoValues(because) => Self { finding: Finding::NoValues, because },
            Gap::CannotShow(because) => Self { finding: Finding::CannotShow, because },
        }
    }
}

/// Published sentence with its verdict.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedShape<'a> {
    /// Published sentence.
    pub shape: &'a Shape,
    /// Whether the source was fitted to this sentence.
    pub is_fitted: bool,
    /// The verdict.
    pub verdict: Verdict,
}

/// Value of a source beside a published number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compared {
    /// Value of the source, in the unit of the row.
    pub found: Value,
    /// Relative deviation: 0.1 means that the value is 10 % too high. The deviation is 0 if the row is a bound and the
    /// value keeps the bound.
    pub deviation: f64,
    /// Maximum relative deviation that counts as within tolerance.
    pub tolerance: f64,
}

impl Compared {
    /// Compares `found`, a value in the base unit of the row, with the published number. `noise` is that of the source.
    pub fn of(row: &Row, found: f64, noise: f64) -> Self {
        Self {
            found: Value { number: row.value.unit.from_base(found), unit: row.value.unit },
            deviation: row.relation.deviation(row.value.in_base(), found),
            tolerance: tolerance::of_row(row) + noise,
        }
    }

    /// Returns whether the deviation is within the tolerance.
    pub fn is_within(&self) -> bool {
        self.deviation.abs() <= self.tolerance
    }

    /// Returns the deviation in words. A bound that the value keeps is "kept".
    pub fn deviation_of(&self, relation: Relation) -> String {
        match relation {
            Relation::AtLeast | Relation::AtMost if self.deviation == 0.0 => "kept".to_owned(),
            _ => format!("{:+.1} %", self.deviation * 100.0),
        }
    }
}
