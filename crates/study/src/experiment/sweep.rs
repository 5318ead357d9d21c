//! What an experiment is made of.

use super::claims;
use super::far_memory::FAMILY as FAR_MEMORY;
use super::hosts::FAMILY as HOSTS;
use super::judge::Claim;
use super::links::FAMILY as LINKS;
use super::quantity::Quantity;
use crate::layout::Layout;
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
    pub quantities: Vec<Quantity>,
    /// What there is to measure.
    pub points: Vec<Point>,
    /// What is published of it, and what its goals are.
    pub claims: Vec<Claim>,
    /// How its connections lie between hosts, where there are several.
    pub layout: Layout,
}

/// Stands behind what an experiment is about: lists, inline data and interrupts are claims about CPU time.
const CPU: [Quantity; 4] = [Quantity::AskingCpu, Quantity::AnsweringCpu, Quantity::AskingWork, Quantity::AnsweringWork];

impl Experiment {
    /// An experiment with everything that is published of it.
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

    /// It is no part of a study that names no experiments, between so many hosts: far memory is another question, and takes
    /// as long as all others together; what wants many hosts shows little between two; and links are there to choose
    /// between on one machine alone.
    pub fn has_to_be_named(&self, hosts: usize) -> bool {
        let is_of = |family: &str| self.name.strip_prefix(family).is_some_and(|rest| rest.starts_with('/'));
        is_of(FAR_MEMORY) || is_of(LINKS) || (is_of(HOSTS) && hosts < 3)
    }

    /// It compares links, so each of its points has one of its own.
    pub fn compares_links(&self) -> bool {
        self.points.iter().any(|point| point.parameters.link.is_some())
    }

    /// The same, with connections that lie so between hosts.
    pub(super) fn laid_out(self, layout: Layout) -> Self {
        Self { layout, ..self }
    }
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
