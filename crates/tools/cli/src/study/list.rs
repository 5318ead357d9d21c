//! Lists of experiments.

use doorbell_sim::Testbed;
use doorbell_study::experiment::Experiment;
use serde_json::json;

use super::Study;
use crate::failure::Failure;
use crate::output::{line, pretty};

/// Lists experiments.
pub(super) fn list(study: &Study, testbed: Option<&Testbed>, experiments: &[Experiment]) -> Result<(), Failure> {
    let claims = |experiment: &Experiment, are_goals| {
        let those = experiment.claims().into_iter().filter(|claim| claim.is_goal() == are_goals);
        those.map(|claim| claim.says).collect::<Vec<_>>()
    };
    if study.json {
        let list: Vec<_> = experiments
            .iter()
            .map(|experiment| {
                json!({
                    "experiment": experiment.name,
                    "question": experiment.question,
                    "setting": experiment.setting,
                    "sweep": experiment.sweep,
                    "points": experiment.points.len(),
                    "published": claims(experiment, false),
                    "goals": claims(experiment, true),
                })
            })
            .collect();
        return Ok(pretty(&list)?);
    }
    for experiment in experiments {
        line(format_args!("{:<32} {:>3} points  {}", experiment.name, experiment.points.len(), experiment.question))?;
    }
    let points: usize = experiments.iter().map(|experiment| experiment.points.len()).sum();
    match testbed {
        Some(testbed) => line(format_args!("{points} points, each once on {}, simulated", testbed.name))?,
        None => {
            let (repetitions, seconds) = (study.repetitions(None), study.effort().seconds());
            line(format_args!("{points} points, each {repetitions} times {seconds} s"))?;
        }
    }
    Ok(())
}
