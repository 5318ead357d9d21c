//! What an experiment is made of.

use super::judge::Claim;
use super::quantity::Quantity;
use crate::parameters::{Extent, Kind, Operation, Parameters};

/// How much time a study takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Fewer and shorter points: within three minutes on two processors.
    Quick,
    /// A few minutes: ten at most.
    Usual,
    /// Every power of two, and longer.
    Full,
}

impl Effort {
    /// One of three, by effort.
    pub(super) fn pick<T>(self, quick: T, usual: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Usual => usual,
            Self::Full => full,
        }
    }

    /// How often each point is measured, with every other point between.
    pub fn repetitions(self) -> usize {
        self.pick(3, 3, 7)
    }

    /// How long once.
    pub fn seconds(self) -> f64 {
        self.pick(0.1, 0.2, 1.0)
    }
}

/// A named sweep.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// FAMILY/WHAT.
    pub name: String,
    /// What it answers.
    pub question: &'static str,
    /// What stays as it is.
    pub setting: &'static str,
    /// What is swept: the axis, with its unit.
    pub sweep: &'static str,
    /// What is measured: the first is what a plot shows at first.
    pub quantities: &'static [Quantity],
    /// What there is to measure.
    pub points: Vec<Point>,
    /// What is published of it.
    pub claims: &'static [Claim],
}

/// One point of a sweep.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// The curve that it belongs to.
    pub series: String,
    /// Where it lies on the axis.
    pub x: f64,
    /// What is measured, of one size.
    pub parameters: Parameters,
}

impl Point {
    /// One connection without anything special, for messages of this size; what differs is changed
    /// by the caller.
    pub(super) fn parameters(effort: Effort, kind: Kind, operation: Operation, bytes: usize) -> Parameters {
        Parameters { extent: Extent::Seconds(effort.seconds()), ..Parameters::plain(kind, operation, bytes) }
    }
}
