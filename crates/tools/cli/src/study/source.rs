//! Source of the points of a study.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::File;
use std::rc::Rc;
use std::sync::Arc;

use doorbell_campaign::callers::Callers;
use doorbell_campaign::hosts::{self, Hosts, Listening, Others};
use doorbell_campaign::omissions;
use doorbell_campaign::rounds::Source;
use doorbell_fabric::FaultPlan;
use doorbell_record::{Environment, PointResult};
use doorbell_sim::reproduce::SEED;
use doorbell_sim::{Testbed, far as simulated_far, session};
use doorbell_study::experiment::{Experiment, Point};
use doorbell_verbs::soft;

use super::ends::Ends;
use super::{Own, Study};
use crate::failure::{Failure, Usage};
use crate::output::{note, print_note};

/// Source of points.
pub(super) enum PointSource<'a> {
    /// Two ends with RNICs.
    Measured(Box<Ends<'a>>),
    /// Several hosts with RNICs.
    Together(Box<Hosts<'a>>),
    /// A testbed in virtual time.
    Simulated(Box<Simulated>),
}

/// A testbed in virtual time, under a fault plan if there is one.
pub(super) struct Simulated {
    testbed: Testbed,
    environment: Environment,
    faults: Option<FaultPlan>,
    journal: Option<Arc<File>>,
    /// Rules of the plan that have fired at any point, by their numbers.
    fired: RefCell<BTreeSet<usize>>,
}

impl Simulated {
    fn measure(&self, point: &Point) -> Result<PointResult, Failure> {
        if let Some(far) = &point.parameters.far {
            return Ok(simulated_far::simulate(&self.testbed, far, SEED)?.result);
        }
        let bytes = *point.parameters.sizes.first().ok_or("a point has one size")?;
        let faults = self.faults.as_ref();
        let journal = self.journal.as_ref();
        let (measured, counts) =
            session::simulate_under(&self.testbed, &point.parameters, bytes, SEED, faults, journal)?;
        self.fired.borrow_mut().extend((1..).zip(counts).filter(|(_, count)| *count > 0).map(|(rule, _)| rule));
        Ok(measured.result)
    }
}

impl<'a> PointSource<'a> {
    /// Connects to the other ends, and checks whether this end can measure with them. `callers` are processes that a
    /// launcher has started.
    pub(super) fn new(
        study: &Study,
        own: &'a Own<'a>,
        callers: Option<Rc<Callers>>,
        mut hosts: Vec<String>,
    ) -> Result<Self, Failure> {
        let others: Option<Box<dyn Others>> = match callers {
            Some(callers) => Some(Box::new(callers)),
            None if study.via.is_some() => {
                Some(Box::new(Rc::new(Callers::by_ssh(&hosts, &study.remote, &study.arguments(), print_note)?)))
            }
            None if hosts.len() > 1 => {
                Some(Box::new(Listening::new(std::mem::take(&mut hosts), study.meeting.token())?))
            }
            None => None,
        };
        Ok(match others {
            Some(others) => Self::Together(Box::new(Hosts::meet(own, others, print_note)?)),
            None => Self::Measured(Box::new(Ends::meet(own, hosts.pop())?)),
        })
    }

    /// Returns the points of a testbed. The journal gets a line for each rule of the plan that fires at a point.
    pub(super) fn simulated(
        testbed: Testbed,
        faults: Option<FaultPlan>,
        journal: Option<Arc<File>>,
    ) -> Result<Self, Failure> {
        note!("simulating {}: {}", testbed.name, testbed.about);
        let fault_plan = faults.as_ref().map(ToString::to_string);
        let environment = Environment { fault_plan, ..session::environment(&testbed)? };
        Ok(Self::Simulated(Box::new(Simulated { testbed, environment, faults, journal, fired: RefCell::default() })))
    }

    /// Returns a sentence for each rule of the fault plan that fired at no simulated point, unless it is optional.
    pub(super) fn unfired(&self) -> Vec<String> {
        let Self::Simulated(simulated) = self else { return Vec::new() };
        let fired = simulated.fired.borrow();
        let plan = simulated.faults.as_ref();
        plan.map(|plan| plan.unfired_by(|rule| fired.contains(&rule))).unwrap_or_default()
    }

    /// Leaves out series that the hosts cannot measure together, and the comparison of links if points cannot choose
    /// their link.
    pub(super) fn fit(&self, experiments: &mut Vec<Experiment>) -> Result<(), Usage> {
        if let Some(why) = self.lacks_links() {
            omissions::leave_out_links(experiments, why, print_note)?;
        }
        if !matches!(self, Self::Simulated(..)) {
            omissions::leave_out_longer_packets(experiments, self.environment().active_mtu, print_note)?;
        }
        match self {
            Self::Together(hosts) => hosts.fit(experiments),
            Self::Measured(ends) => match &ends.other {
                Some((_, reach)) => {
                    let all = std::iter::once(&ends.environment).chain(ends.environment.peer.as_deref());
                    reach.fit(experiments, &ends.queue_pairs, hosts::are_soft(all))
                }
                None => Ok(()),
            },
            Self::Simulated(..) => Ok(()),
        }
    }

    /// Returns the reason why points cannot choose their link, or `None` if points can choose it.
    fn lacks_links(&self) -> Option<&'static str> {
        match self {
            Self::Measured(ends) if ends.other.is_some() => Some(omissions::BETWEEN_MACHINES),
            Self::Measured(ends) if ends.environment.provider != soft::PROVIDER => Some(omissions::HARDWARE),
            Self::Measured(_) => None,
            Self::Together(_) => Some(omissions::BETWEEN_MACHINES),
            Self::Simulated(..) => Some(omissions::VIRTUAL),
        }
    }

    /// Tells other hosts, which wait for the next point, that the study has ended.
    pub(super) fn dismiss(&self) {
        if let Self::Together(hosts) = self {
            hosts.dismiss();
        }
    }
}

impl Source for PointSource<'_> {
    fn environment(&self) -> &Environment {
        match self {
            Self::Measured(ends) => &ends.environment,
            Self::Together(hosts) => &hosts.environment,
            Self::Simulated(simulated) => &simulated.environment,
        }
    }

    fn is_lost(&self) -> bool {
        match self {
            Self::Measured(ends) => ends.is_lost(),
            Self::Together(hosts) => hosts.is_lost(),
            Self::Simulated(..) => false,
        }
    }

    fn measure(&self, experiment: &Experiment, point: &Point) -> Result<PointResult, Failure> {
        match self {
            Self::Measured(ends) => ends.measure(point),
            Self::Together(hosts) => hosts.measure(experiment.layout, &point.parameters),
            Self::Simulated(simulated) => simulated.measure(point),
        }
    }
}
