//! Published shapes and goals, and the verdicts of the data on them.

use doorbell_published::{Row, Shape};

use super::sweep::Experiment;
use super::view::View;

/// Outcome of a judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finding {
    /// The data have the shape.
    Holds,
    /// The data have another shape.
    DoesNotHold,
    /// The cause of the shape is missing on this provider.
    CannotShow,
    /// Points are missing.
    NotMeasured,
}

impl Finding {
    /// Returns the outcome as text.
    pub fn name(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::DoesNotHold => "does not hold here",
            Self::CannotShow => "cannot show on this provider",
            Self::NotMeasured => "not measured",
        }
    }
}

/// Outcome, and a sentence with the numbers on which it is based.
pub(super) type Judgement = (Finding, String);

/// Published shape or number of an experiment, or a goal.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// Unique name.
    pub id: &'static str,
    /// The shape or the number, as a sentence.
    pub says: &'static str,
    source: Source,
}

/// Kind of a claim with its judge. The judge returns `None` if points are missing.
#[derive(Clone, Copy, Debug)]
enum Source {
    Shape(&'static Shape, fn(View<'_>, &Shape) -> Option<Judgement>),
    Row(&'static Row, fn(View<'_>, &Row) -> Option<Judgement>),
    /// Goal of Doorbell; no publication states it.
    Goal(fn(View<'_>) -> Option<Judgement>),
}

/// Verdict on a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The claim, as a sentence.
    pub says: &'static str,
    /// Whether the claim is a goal of Doorbell, without a publication.
    pub is_goal: bool,
    /// Outcome of the judgement.
    pub outcome: Finding,
    /// Reason, with numbers.
    pub because: String,
}

/// A verdict mentions the span of repetitions if it typically exceeds this share of their median.
const RESTLESS: f64 = 0.5;

impl Claim {
    pub(super) fn of_shape(shape: &'static Shape, judge: fn(View<'_>, &Shape) -> Option<Judgement>) -> Self {
        Self { id: &shape.id, says: &shape.says, source: Source::Shape(shape, judge) }
    }

    pub(super) fn of_row(row: &'static Row, judge: fn(View<'_>, &Row) -> Option<Judgement>) -> Self {
        Self { id: &row.id, says: &row.says, source: Source::Row(row, judge) }
    }

    pub(super) fn of_goal(id: &'static str, says: &'static str, judge: fn(View<'_>) -> Option<Judgement>) -> Self {
        Self { id, says, source: Source::Goal(judge) }
    }

    /// Returns whether the claim is a goal of Doorbell, without a publication.
    pub fn is_goal(&self) -> bool {
        matches!(self.source, Source::Goal(_))
    }

    /// Judges the points of this experiment in a run.
    pub fn judge(&self, view: View<'_>, experiment: &Experiment) -> Verdict {
        let missing = || (Finding::NotMeasured, "the points that it takes are not among the records".to_owned());
        let judgement = match self.source {
            Source::Shape(shape, judge) => judge(view, shape),
            Source::Row(row, judge) => judge(view, row),
            Source::Goal(judge) => judge(view),
        };
        let (outcome, mut because) = judgement.unwrap_or_else(missing);
        if let Some(span) = experiment.quantities.first().and_then(|quantity| view.span(&experiment.name, *quantity))
            && span > RESTLESS
        {
            because.push_str(&format!("; but repetitions differ by {:.0} %: the machine was not quiet", span * 100.0));
        }
        Verdict { says: self.says, is_goal: self.is_goal(), outcome, because }
    }
}

/// Returns a judgement that holds or does not.
pub(super) fn holds_if(holds: bool, because: String) -> Option<Judgement> {
    Some((if holds { Finding::Holds } else { Finding::DoesNotHold }, because))
}

pub(super) fn cannot(because: String) -> Option<Judgement> {
    Some((Finding::CannotShow, because))
}

/// Returns the first position where a curve reaches a share of its maximum, and the maximum.
pub(super) fn knee(curve: &[(f64, f64)], share: f64) -> Option<(f64, f64)> {
    let most = curve.iter().map(|point| point.1).reduce(f64::max)?;
    curve.iter().find(|point| point.1 >= share * most).map(|point| (point.0, most))
}

/// Fits `y = base + slope * x` with the least sum of squared *relative* errors. Returns base, slope and greatest
/// relative error, or `None` with fewer than three points.
pub(super) fn line(curve: &[(f64, f64)]) -> Option<(f64, f64, f64)> {
    if curve.len() < 3 || curve.iter().any(|point| point.1 <= 0.0) {
        return None;
    }
    // The weights 1/y^2 make errors relative.
    let sum = |term: fn(f64, f64) -> f64| -> f64 { curve.iter().map(|&(x, y)| term(x, y) / (y * y)).sum() };
    let (w, wx, wy, wxx, wxy) = (sum(|_, _| 1.0), sum(|x, _| x), sum(|_, y| y), sum(|x, _| x * x), sum(|x, y| x * y));
    let determinant = w * wxx - wx * wx;
    if determinant <= 0.0 {
        return None;
    }
    let slope = (w * wxy - wx * wy) / determinant;
    let base = (wy - slope * wx) / w;
    let worst = curve.iter().map(|&(x, y)| ((base + slope * x - y) / y).abs()).fold(0.0, f64::max);
    Some((base, slope, worst))
}
