//! Measurement of all points of a study.

use doorbell_record::{Environment, PointResult};
use doorbell_study::Failure;
use doorbell_study::experiment::{Experiment, Point, RunDirectory};

/// Number of consecutive failed measurements after which the study ends.
const MAX_FAILURES_IN_A_ROW: usize = 3;

/// Outcome of a study.
pub struct Studied {
    /// Number of points.
    pub points: usize,
    /// Number of repetitions that this run has measured.
    pub measured: usize,
    /// Sentences about measurements that failed.
    pub failures: Vec<String>,
    /// Number of repetitions that remain to be measured.
    pub missing: usize,
}

/// Source of points.
pub trait Source {
    /// Returns the environment of the records of the points.
    fn environment(&self) -> &Environment;

    /// Returns whether a required host has gone.
    fn is_lost(&self) -> bool;

    /// Measures or simulates a point once.
    ///
    /// # Errors
    ///
    /// The measurement or the simulation failed.
    fn measure(&self, experiment: &Experiment, point: &Point) -> Result<PointResult, Failure>;
}

/// Display of the progress of a study. Dropping it ends the display.
pub trait Progress {
    /// Shows the point that is measured now.
    fn show(&self, point: &str);

    /// Adds a measurement.
    fn advance(&self);

    /// Shows that all measurements of an experiment are done.
    fn finish(&self, experiment: &str);

    /// Shows that a round over all points has ended, and that others follow. Rounds count from 1.
    fn end_round(&self, round: usize, rounds: usize);

    /// Shows a note about a failed measurement.
    fn note(&self, text: &str);
}

/// Measures every point the required number of times, in rounds over all points. If the machine becomes slower during
/// a study, the spread of each point is wider, but no step appears between two points. `progress` makes the display of
/// the progress from the number of all measurements and of those in the directory.
///
/// # Errors
///
/// A host is gone, several measurements failed one after another, or the directory cannot be read or written.
pub fn measure_all<P: Progress>(
    source: &dyn Source,
    directory: &RunDirectory,
    experiments: &[Experiment],
    repetitions: usize,
    progress: impl FnOnce(u64, u64) -> P,
) -> Result<Studied, Failure> {
    let points: Vec<(usize, &Experiment, &Point)> = experiments
        .iter()
        .enumerate()
        .flat_map(|(index, experiment)| experiment.points.iter().map(move |point| (index, experiment, point)))
        .collect();
    let environment = source.environment();
    // Number of measurements of each point, and number of missing ones of each experiment.
    let (mut done, mut missing) = (Vec::new(), vec![0; experiments.len()]);
    for &(index, experiment, point) in &points {
        let environment = point.environment(environment);
        let count = directory.get(experiment, point, &environment)?.map_or(0, |record| record.repetitions.len());
        missing[index] += repetitions.saturating_sub(count);
        done.push(count);
    }
    let already: usize = done.iter().map(|&count| count.min(repetitions)).sum();
    let progress = progress((points.len() * repetitions) as u64, already as u64);
    let mut outcome = Studied { points: points.len(), measured: 0, failures: Vec::new(), missing: 0 };
    let mut failed_in_a_row = 0;
    // In one additional round, repeat measurements that have failed once, such as on a busy machine.
    for round in 1..=repetitions + 1 {
        let measured_before = outcome.measured;
        for (&(index, experiment, point), done) in points.iter().zip(&mut done) {
            if *done >= round.min(repetitions) {
                continue;
            }
            progress.show(&format!("{}, {}, {}", experiment.name, point.series, point.x));
            match source.measure(experiment, point) {
                Ok(result) => {
                    let environment = point.environment(environment);
                    let environment = Environment { unix_time_s: Environment::now_s(), ..environment };
                    directory.add(experiment, point, &environment, result)?;
                    *done += 1;
                    outcome.measured += 1;
                    failed_in_a_row = 0;
                    progress.advance();
                    missing[index] -= 1;
                    if missing[index] == 0 {
                        progress.finish(&experiment.name);
                    }
                }
                Err(error) => {
                    let what = format!("{}, {}, {}: {error}", experiment.name, point.series, point.x);
                    progress.note(&what);
                    outcome.failures.push(what);
                    failed_in_a_row += 1;
                    if source.is_lost() {
                        return Err(format!(
                            "a host is gone: {error}; {} measurements are in {}: the same command goes on from there",
                            already + outcome.measured,
                            directory.path().display()
                        )
                        .into());
                    }
                    if failed_in_a_row == MAX_FAILURES_IN_A_ROW {
                        return Err(format!(
                            "{failed_in_a_row} measurements failed in a row, the last of them {error}"
                        )
                        .into());
                    }
                }
            }
        }
        if round < repetitions && outcome.measured > measured_before {
            progress.end_round(round, repetitions);
        }
    }
    drop(progress);
    outcome.missing = done.iter().map(|&count| repetitions.saturating_sub(count)).sum();
    Ok(outcome)
}
