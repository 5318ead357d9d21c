//! Types that make up an experiment.

use super::claims;
use super::far_memory::FAMILY as FAR_MEMORY;
use super::hosts::FAMILY as HOSTS;
use super::judge::Claim;
use super::links::FAMILY as LINKS;
use super::quantity::Quantity;
use crate::layout::Layout;
use crate::parameters::{Extent, Kind, Operation, Parameters};

/// Effort of a study, which determines its duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Fewer and shorter points: at most three minutes on two processors.
    Quick,
    /// A few minutes: at most ten.
    Usual,
    /// Every power of two, with longer points.
    Full,
}

impl Effort {
    /// Returns one of three values, by effort.
    pub(super) fn pick<T>(self, quick: T, usual: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Usual => usual,
            Self::Full => full,
        }
    }

    /// Returns the number of repetitions of each point. All other points are measured between two repetitions.
    pub fn repetitions(self) -> usize {
        self.pick(3, 3, 7)
    }

    /// Returns the duration of one repetition in seconds.
    pub fn seconds(self) -> f64 {
        self.pick(0.1, 0.2, 1.0)
    }
}

/// Named sweep.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// Name, as FAMILY/SUBJECT.
    pub name: String,
    /// Question that the experiment answers.
    pub question: &'static str,
    /// Description of the fixed parameters.
    pub setting: &'static str,
    /// Name of the swept parameter with its unit: the axis.
    pub sweep: &'static str,
    /// Measured quantities. A plot first shows the first one.
    pub quantities: Vec<Quantity>,
    /// Points to measure.
    pub points: Vec<Point>,
    /// Published claims and goals.
    pub claims: Vec<Claim>,
    /// Distribution of the connections over hosts, if there are several.
    pub layout: Layout,
}

/// Quantities that follow those of the experiment: claims on lists, inline data and interrupts concern CPU time.
const CPU: [Quantity; 4] = [Quantity::AskingCpu, Quantity::AnsweringCpu, Quantity::AskingWork, Quantity::AnsweringWork];

impl Experiment {
    /// Creates an experiment with all its published claims.
    pub(super) fn new(
        name: impl Into<String>,
        question: &'static str,
        setting: &'static str,
        sweep: &'static str,
        quantities: &'static [Quantity],
        points: Vec<Point>,
    ) -> Self {
        let name = name.into();
        let claims = claims::of(&name);
        let quantities = quantities.iter().chain(&CPU).copied().collect();
        Self { name, question, setting, sweep, quantities, points, claims, layout: Layout::default() }
    }

    /// Returns whether a study between `hosts` hosts measures the experiment only if the user names it:
    ///
    /// - far memory answers other questions, and takes as long as all other experiments together,
    /// - an experiment for many hosts shows little between two,
    /// - a comparison of links makes sense only on one machine.
    pub fn has_to_be_named(&self, hosts: usize) -> bool {
        let is_of = |family: &str| self.name.strip_prefix(family).is_some_and(|rest| rest.starts_with('/'));
        is_of(FAR_MEMORY) || is_of(LINKS) || (is_of(HOSTS) && hosts < 3)
    }

    /// Returns whether the experiment compares links, so that each of its points requires a link.
    pub fn compares_links(&self) -> bool {
        self.points.iter().any(|point| point.parameters.link.is_some())
    }

    /// Returns the experiment with another distribution over hosts.
    pub(super) fn laid_out(self, layout: Layout) -> Self {
        Self { layout, ..self }
    }
}

/// Point of a sweep.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Name of the curve.
    pub series: String,
    /// Position on the axis.
    pub x: f64,
    /// Parameters with one size.
    pub parameters: Parameters,
}

impl Point {
    /// Returns the parameters of one plain connection for messages of this size. The caller changes the fields that
    /// differ.
    pub(super) fn parameters(effort: Effort, kind: Kind, operation: Operation, bytes: usize) -> Parameters {
        Parameters { extent: Extent::Seconds(effort.seconds()), ..Parameters::plain(kind, operation, bytes) }
    }
}
