//! Claims of experiments, and their verdicts.

use doorbell_published::{Row, Shape};

use super::sweep::Experiment;
use super::view::View;

/// Outcome of the judgement of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finding {
    /// The data have the shape.
    Holds,
    /// The data have another shape.
    DoesNotHold,
    /// This provider lacks the cause of the shape.
    CannotShow,
    /// Points that the claim needs are missing.
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

/// Outcome, and a sentence with the numbers that justify the outcome.
pub(super) type Judgement = (Finding, String);

/// Claim about an experiment: a published shape, a published number, or a goal of Doorbell.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// Unique id of the claim.
    pub id: &'static str,
    /// The shape or the number, as a sentence.
    pub says: &'static str,
    source: Source,
}

/// Kind of a claim, with the function that judges the claim. The function returns `None` if points are missing.
#[derive(Clone, Copy, Debug)]
enum Source {
    Shape(&'static Shape, fn(View<'_>, &Shape) -> Option<Judgement>),
    Row(&'static Row, fn(View<'_>, &Row) -> Option<Judgement>),
    /// Goal of Doorbell, which no publication states.
    Goal(fn(View<'_>) -> Option<Judgement>),
}

/// Verdict on a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The claim, as a sentence.
    pub says: &'static str,
    /// Whether the claim is a goal of Doorbell instead of a published result.
    pub is_goal: bool,
    /// Outcome of the judgement.
    pub outcome: Finding,
    /// Reason for the outcome, with numbers.
    pub because: String,
}

/// Maximum spread of a typical point's repetitions, as a share of their median, that a verdict does not mention.
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

    /// Returns whether the claim is a goal of Doorbell instead of a published result.
    pub fn is_goal(&self) -> bool {
        matches!(self.source, Source::Goal(_))
    }

    /// Judges the claim by the records of `experiment` in a run.
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

/// Returns the judgement [`Finding::Holds`] or [`Finding::DoesNotHold`].
pub(super) fn holds_if(holds: bool, because: String) -> Option<Judgement> {
    Some((if holds { Finding::Holds } else { Finding::DoesNotHold }, because))
}

pub(super) fn cannot(because: String) -> Option<Judgement> {
    Some((Finding::CannotShow, because))
}

/// Returns the first x at which a curve reaches the share `share` of its maximum, and that maximum.
pub(super) fn knee(curve: &[(f64, f64)], share: f64) -> Option<(f64, f64)> {
    let most = curve.iter().map(|point| point.1).reduce(f64::max)?;
    curve.iter().find(|point| point.1 >= share * most).map(|point| (point.0, most))
}

/// Fits `y = base + slope * x` such that the sum of squared *relative* errors is minimal. Returns base, slope and the
/// greatest relative error, or `None` for fewer than three points.
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
