//! Source of the points of a study, and the measurement of all of them.

use std::rc::Rc;

use doorbell_sim::reproduce::SEED;
use doorbell_sim::{Testbed, far as simulated_far, session};
use doorbell_study::environment::Environment;
use doorbell_study::experiment::{Experiment, Point, RunDirectory};
use doorbell_study::far::FarPoint;
use doorbell_study::record::PointResult;
use doorbell_verbs::soft;

use super::callers::Callers;
use super::ends::Ends;
use super::hosts::{self, Hosts, Listening, Others};
use super::{Study, links};
use crate::failure::{Failure, Usage};
use crate::output::note;
use crate::progress;

/// Number of consecutive failed measurements after which the study ends.
const MAX_FAILURES_IN_A_ROW: usize = 3;

/// Leaves out points whose path MTU exceeds `most`, the path MTU of the devices in bytes. Prints the names of their
/// series.
fn leave_out_longer_packets(experiments: &mut Vec<Experiment>, most: usize) -> Result<(), Usage> {
    let mut sentence = None;
    for experiment in experiments.iter_mut() {
        let is_longer = |point: &Point| point.parameters.far.as_deref().and_then(FarPoint::path_mtu) > Some(most);
        let mut series: Vec<_> =
            experiment.points.iter().filter(|point| is_longer(point)).map(|point| point.series.clone()).collect();
        series.dedup();
        if !series.is_empty() {
            experiment.points.retain(|point| !is_longer(point));
            let said = format!("{} omits {}: the path MTU is {most} B here", experiment.name, series.join(", "));
            note!("{said}");
            sentence = Some(said);
        }
    }
    experiments.retain(|experiment| !experiment.points.is_empty());
    match sentence {
        Some(sentence) if experiments.is_empty() => Err(Usage(sentence)),
        _ => Ok(()),
    }
}

/// Outcome of a study.
pub(super) struct Studied {
    pub(super) points: usize,
    /// Number of repetitions that this run has measured.
    pub(super) measured: usize,
    pub(super) failures: Vec<String>,
    /// Number of repetitions that remain to be measured.
    pub(super) missing: usize,
}

/// Source of points.
pub(super) enum Source {
    /// Two ends with RNICs.
    Measured(Box<Ends>),
    /// Several hosts with RNICs.
    Together(Box<Hosts>),
    /// A testbed in virtual time.
    Simulated(Box<Testbed>, Box<Environment>),
}

impl Source {
    /// Connects to the other ends, and checks whether this end can measure with them. `callers` are processes that a
    /// launcher has started.
    pub(super) fn new(
        study: &Study,
        testbed: Option<Testbed>,
        callers: Option<Rc<Callers>>,
        mut hosts: Vec<String>,
    ) -> Result<Self, Failure> {
        let token = study.meeting.token();
        let others: Option<Box<dyn Others>> = match callers {
            Some(callers) => Some(Box::new(callers)),
            None if study.via.is_some() => {
                Some(Box::new(Rc::new(Callers::by_ssh(&hosts, &study.remote, &study.arguments())?)))
            }
            None if hosts.len() > 1 => Some(Box::new(Listening::new(std::mem::take(&mut hosts), token)?)),
            None => None,
        };
        if let Some(others) = others {
            study.udp.note_if_other();
            return Ok(Self::Together(Box::new(Hosts::meet(study, study.choose()?, others)?)));
        }
        match testbed {
            None => {
                study.udp.note_if_other();
                Ok(Self::Measured(Box::new(Ends::meet(study, study.choose()?, hosts.pop())?)))
            }
            Some(testbed) => {
                note!("simulating {}: {}", testbed.name, testbed.about);
                let environment = session::environment(&testbed)?;
                Ok(Self::Simulated(Box::new(testbed), Box::new(environment)))
            }
        }
    }

    fn testbed(&self) -> Option<&Testbed> {
        match self {
            Self::Measured(_) | Self::Together(_) => None,
            Self::Simulated(testbed, _) => Some(testbed),
        }
    }

    /// Returns the environment of the records of the points.
    pub(super) fn environment(&self) -> &Environment {
        match self {
            Self::Measured(ends) => &ends.environment,
            Self::Together(hosts) => &hosts.environment,
            Self::Simulated(_, environment) => environment,
        }
    }

    /// Leaves out series that the hosts cannot measure together, and the comparison of links if points cannot choose
    /// their link.
    pub(super) fn fit(&self, experiments: &mut Vec<Experiment>) -> Result<(), Usage> {
        if let Some(why) = self.lacks_links() {
            links::leave_out(experiments, why)?;
        }
        if self.testbed().is_none() {
            leave_out_longer_packets(experiments, self.environment().active_mtu)?;
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
            Self::Measured(ends) if ends.other.is_some() => Some(links::BETWEEN_MACHINES),
            Self::Measured(ends) if ends.environment.provider != soft::PROVIDER => Some(links::HARDWARE),
            Self::Measured(_) => None,
            Self::Together(_) => Some(links::BETWEEN_MACHINES),
            Self::Simulated(..) => Some(links::VIRTUAL),
        }
    }

    /// Tells other hosts, which wait for the next point, that the study has ended.
    pub(super) fn dismiss(&self) {
        if let Self::Together(hosts) = self {
            hosts.dismiss();
        }
    }

    /// Returns whether a required host has gone.
    fn is_lost(&self) -> bool {
        match self {
            Self::Measured(ends) => ends.is_lost(),
            Self::Together(hosts) => hosts.is_lost(),
            Self::Simulated(..) => false,
        }
    }

    /// Measures or simulates a point once.
    fn measure(&self, study: &Study, experiment: &Experiment, point: &Point) -> Result<PointResult, Failure> {
        match self {
            Self::Measured(ends) => ends.measure(study, point),
            Self::Together(hosts) => hosts.measure(study, experiment.layout, &point.parameters),
            Self::Simulated(testbed, _) => {
                if let Some(far) = &point.parameters.far {
                    return Ok(simulated_far::simulate(testbed, far, SEED)?.result);
                }
                let bytes = *point.parameters.sizes.first().ok_or("a point has one size")?;
                Ok(session::simulate(testbed, &point.parameters, bytes, SEED)?.result)
            }
        }
    }
}

/// Measures every point the required number of times, in rounds over all points. If the machine becomes slower during
/// a study, the spread of each point is wider, but no step appears between two points.
pub(super) fn measure_all(
    study: &Study,
    source: &Source,
    directory: &RunDirectory,
    experiments: &[Experiment],
) -> Result<Studied, Failure> {
    let repetitions = study.repetitions(source.testbed());
    let points: Vec<(&Experiment, &Point)> = experiments
        .iter()
        .flat_map(|experiment| experiment.points.iter().map(move |point| (experiment, point)))
        .collect();
    let environment = source.environment();
    let mut done = Vec::new();
    for &(experiment, point) in &points {
        let environment = environment.of_point(&point.parameters);
        done.push(directory.get(experiment, point, &environment)?.map_or(0, |record| record.repetitions.len()));
    }
    let already: usize = done.iter().map(|&count| count.min(repetitions)).sum();
    let bar = progress::bar((points.len() * repetitions) as u64, already as u64);
    let mut outcome = Studied { points: points.len(), measured: 0, failures: Vec::new(), missing: 0 };
    let mut failed_in_a_row = 0;
    // In one additional round, repeat measurements that have failed once, such as on a busy machine.
    for round in 1..=repetitions + 1 {
        for (&(experiment, point), done) in points.iter().zip(&mut done) {
            if *done >= round.min(repetitions) {
                continue;
            }
            progress::show(&bar, &format!("{}, {}, {}", experiment.name, point.series, point.x));
            match source.measure(study, experiment, point) {
                Ok(result) => {
                    let environment = environment.of_point(&point.parameters);
                    let environment = Environment { unix_time_s: Environment::now_s(), ..environment };
                    directory.add(experiment, point, &environment, result)?;
                    *done += 1;
                    outcome.measured += 1;
                    failed_in_a_row = 0;
                    bar.inc(1);
                }
                Err(error) => {
                    let what = format!("{}, {}, {}: {error}", experiment.name, point.series, point.x);
                    bar.suspend(|| note!("{what}"));
                    outcome.failures.push(what);
                    failed_in_a_row += 1;
                    if source.is_lost() {
                        bar.finish_and_clear();
                        return Err(format!(
                            "a host is gone: {error}; {} measurements are in {}: the same command goes on from there",
                            already + outcome.measured,
                            directory.path().display()
                        )
                        .into());
                    }
                    if failed_in_a_row == MAX_FAILURES_IN_A_ROW {
                        bar.finish_and_clear();
                        return Err(format!(
                            "{failed_in_a_row} measurements failed in a row, the last of them {error}"
                        )
                        .into());
                    }
                }
            }
        }
    }
    bar.finish_and_clear();
    outcome.missing = done.iter().map(|&count| repetitions.saturating_sub(count)).sum();
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use doorbell_study::experiment::{Effort, all};

    use super::*;

    #[test]
    fn points_beyond_the_path_mtu_are_left_out() {
        let tearing = || -> Vec<Experiment> {
            all(Effort::Quick).into_iter().filter(|experiment| experiment.name == "far-memory/tearing").collect()
        };
        let series = |most| {
            let mut experiments = tearing();
            leave_out_longer_packets(&mut experiments, most).map(|()| {
                let mut series: Vec<String> = experiments[0].points.iter().map(|point| point.series.clone()).collect();
                series.dedup();
                series
            })
        };
        assert_eq!(series(4096).unwrap(), ["path MTU 256", "path MTU 1024", "path MTU 4096"]);
        assert_eq!(series(1024).unwrap(), ["path MTU 256", "path MTU 1024"]);
        let refused = series(128).unwrap_err().to_string();
        assert!(refused.contains("path MTU 256, path MTU 1024, path MTU 4096: the path MTU is 128 B"), "{refused}");
    }
}
