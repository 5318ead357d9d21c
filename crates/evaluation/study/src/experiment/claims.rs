//! Published claims and goals of experiments, and their verdicts on the records of a run.
//!
//! Sentences and numbers come from `data/published/`, and rules and tolerances from `doorbell_claims`. The figures of
//! testbed T1 were measured with ConnectX-5 RNICs over 100 Gb/s Ethernet. Rates and latencies are those of each
//! point's best repetition, since other programs can only slow a measurement down.

use doorbell_claims::{Finding, Gap, Row, Shape, Verdict, judge};

use super::goals::{self, Goal};
use super::measured::Measured;
use super::rows;
use super::sweep::Experiment;
use super::view::View;

/// Claim about an experiment: a published shape, a published number, or a goal of Doorbell.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// Unique id of the claim.
    pub id: &'static str,
    /// The shape or the number, as a sentence.
    pub says: &'static str,
    source: Source,
}

/// Kind of a claim.
#[derive(Clone, Copy, Debug)]
enum Source {
    Shape(&'static Shape),
    Row(&'static Row),
    /// Goal of Doorbell, which no publication states.
    Goal(&'static Goal),
}

impl Experiment {
    /// Returns all published claims and goals of the experiment.
    pub fn claims(&self) -> Vec<Claim> {
        let testbeds = doorbell_claims::all();
        let shapes = testbeds.iter().flat_map(|testbed| &testbed.shapes);
        let rows = testbeds.iter().flat_map(|testbed| &testbed.rows).filter(|row| rows::IDS.contains(&row.id.as_str()));
        let shapes = shapes.filter(|shape| shape.experiment == self.name);
        let rows = rows.filter(|row| row.experiment == self.name);
        let goals = goals::ALL.iter().filter(|goal| goal.experiment == self.name);
        shapes
            .map(|shape| Claim { id: &shape.id, says: &shape.says, source: Source::Shape(shape) })
            .chain(rows.map(|row| Claim { id: &row.id, says: &row.says, source: Source::Row(row) }))
            .chain(goals.map(|goal| Claim { id: goal.id, says: goal.says, source: Source::Goal(goal) }))
            .collect()
    }
}

impl Claim {
    /// Returns whether the claim is a goal of Doorbell instead of a published result.
    pub fn is_goal(&self) -> bool {
        matches!(self.source, Source::Goal(_))
    }

    /// Judges the claim by the records of `experiment` in a run.
    pub fn judge(&self, view: View<'_>, experiment: &Experiment) -> Verdict {
        let missing = || Gap::NoValues("the points that it takes are not among the records".to_owned()).into();
        let mut verdict = match self.source {
            Source::Shape(shape) => judge(shape, &mut Measured { view }),
            Source::Row(row) => rows::judge(view, row).unwrap_or_else(missing),
            Source::Goal(goal) => goal.judge(view).unwrap_or_else(missing),
        };
        if verdict.finding == Finding::NoValues {
            return missing();
        }
        if let Some(plan) = view.fault_plan() {
            let why = format!("the claim needs a clean link, but faults were injected: {plan}");
            return Gap::CannotShow(why).into();
        }
        if let Some(span) = view.restlessness(experiment) {
            let noise = format!("; but repetitions differ by {:.0} %: the machine was not quiet", span * 100.0);
            verdict.because.push_str(&noise);
        }
        verdict
    }
}
