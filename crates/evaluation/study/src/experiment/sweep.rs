//! Types that make up an experiment.

use crate::environment::of_point;
use crate::layout::Layout;
use doorbell_record::{Environment, Extent, Kind, Operation, Parameters, PointRecord, Quantity};

/// Family of experiments on far memory.
pub const FAR_MEMORY: &str = "far-memory";
/// Family of experiments for many hosts.
const HOSTS: &str = "hosts";
/// Family of comparisons of the links between two processes of one machine.
const LINKS: &str = "links";

/// Effort of a study, which determines its duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Fewer and shorter points, for at most three minutes on two processors. This is the default.
    Quick,
    /// Points for at most ten minutes on two processors.
    Usual,
    /// Longer points, with every power of two as message size.
    Full,
}

impl Effort {
    /// Returns the value for this effort.
    pub(super) fn pick<T>(self, quick: T, usual: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Usual => usual,
            Self::Full => full,
        }
    }

    /// Returns the number of repetitions of each point. Between two repetitions of a point, all other points are
    /// measured.
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
    /// Name in the form FAMILY/SUBJECT.
    pub name: String,
    /// Question that the experiment answers.
    pub question: &'static str,
    /// Description of the fixed parameters.
    pub setting: &'static str,
    /// Name of the swept parameter with its unit, which labels the axis.
    pub sweep: &'static str,
    /// Measured quantities. A plot initially shows the first quantity.
    pub quantities: Vec<Quantity>,
    /// Points to measure.
    pub points: Vec<Point>,
    /// Distribution of the connections over hosts, in a study with several hosts.
    pub layout: Layout,
}

/// Quantities that every experiment has in addition to its own. Claims about lists, inline data and interrupts refer to
/// CPU time.
const CPU: [Quantity; 4] = [Quantity::AskingCpu, Quantity::AnsweringCpu, Quantity::AskingWork, Quantity::AnsweringWork];

impl Experiment {
    /// Creates an experiment.
    pub(super) fn new(
        name: impl Into<String>,
        question: &'static str,
        setting: &'static str,
        sweep: &'static str,
        quantities: &'static [Quantity],
        points: Vec<Point>,
    ) -> Self {
        let name = name.into();
        let quantities = quantities.iter().chain(&CPU).copied().collect();
        Self { name, question, setting, sweep, quantities, points, layout: Layout::default() }
    }

    /// Returns whether a study with `hosts` hosts measures the experiment only if the user names the experiment. Such
    /// experiments are:
    ///
    /// - experiments on far memory, which take as long as all other experiments together,
    /// - experiments for many hosts, which show little with two hosts,
    /// - comparisons of links, which are useful only on one machine.
    pub fn has_to_be_named(&self, hosts: usize) -> bool {
        let is_of = |family: &str| self.name.strip_prefix(family).is_some_and(|rest| rest.starts_with('/'));
        is_of(FAR_MEMORY) || is_of(LINKS) || (is_of(HOSTS) && hosts < 3)
    }

    /// Returns whether the experiment compares links. Each point of such an experiment requires a certain link.
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
    /// Parameters of the point, with exactly one message size.
    pub parameters: Parameters,
}

impl Point {
    /// Creates a point on a curve.
    pub(super) fn new(series: impl Into<String>, x: usize, parameters: Parameters) -> Self {
        Self { series: series.into(), x: x as f64, parameters }
    }

    /// Creates the record of the point in an experiment, without repetitions.
    pub fn record(&self, experiment: &Experiment, environment: Environment) -> PointRecord {
        PointRecord::new(&experiment.name, &self.series, self.x, environment, self.parameters.clone())
    }

    /// Returns the environment with the pinning that applies while the point is measured.
    #[must_use]
    pub fn environment(&self, all: &Environment) -> Environment {
        of_point(all, &self.parameters)
    }

    /// Returns the parameters of one plain connection for messages of this size. The caller then changes the fields
    /// that shall differ.
    pub(super) fn parameters(effort: Effort, kind: Kind, operation: Operation, bytes: usize) -> Parameters {
        Parameters { extent: Extent::Seconds(effort.seconds()), ..Parameters::plain(kind, operation, bytes) }
    }
}

/// Returns 1, 2, 4, ... up to `most`.
pub(super) fn doubling(most: usize) -> Vec<usize> {
    std::iter::successors(Some(1), |count| Some(2 * count)).take_while(|&count| count <= most).collect()
}

#[cfg(test)]
mod tests {
    use super::super::all;
    use super::*;
    use doorbell_record::{Cast, Role};

    #[test]
    fn experiments_name_the_common_roles() {
        let mut named = Vec::new();
        for point in all(Effort::Usual).iter().flat_map(|experiment| &experiment.points) {
            let Cast { asking, answering } = point.parameters.cast();
            named.extend([asking.role, answering.role]);
        }
        for role in [Role::Sender, Role::Receiver, Role::Requester, Role::Responder] {
            assert!(named.contains(&role), "no experiment has a {role}");
        }
    }
}
