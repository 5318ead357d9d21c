//! Points that the ends of a study cannot measure.

use doorbell_exchange::admission::Note;

use doorbell_record::FarPoint;
use doorbell_study::Usage;
use doorbell_study::experiment::{Experiment, Point};

/// Reason why links cannot be compared between machines, as the end of a sentence.
pub const BETWEEN_MACHINES: &str = "here each host opens its own device, with the link of its own options";
/// Reason why links of a hardware RNIC cannot be compared, as the end of a sentence.
pub const HARDWARE: &str = "a hardware RNIC has only one link";
/// Reason why links of a testbed cannot be compared, as the end of a sentence.
pub const VIRTUAL: &str = "in virtual time there is only the link of the testbed";

/// Leaves out the experiments that compare links, and notes the reason.
///
/// # Errors
///
/// No other experiment was requested.
pub fn leave_out_links(experiments: &mut Vec<Experiment>, why: &str, note: Note) -> Result<(), Usage> {
    let all = experiments.len();
    experiments.retain(|experiment| !experiment.compares_links());
    if experiments.len() == all {
        return Ok(());
    }
    let sentence = format!("links are compared between two software RNICs of one machine alone: {why}");
    if experiments.is_empty() {
        return Err(Usage(sentence));
    }
    note(&sentence);
    Ok(())
}

/// Leaves out points whose path MTU exceeds `most`, the path MTU of the devices in bytes. Notes the names of their
/// series.
///
/// # Errors
///
/// No point remains.
pub fn leave_out_longer_packets(experiments: &mut Vec<Experiment>, most: usize, note: Note) -> Result<(), Usage> {
    let mut sentence = None;
    for experiment in experiments.iter_mut() {
        let is_longer = |point: &Point| point.parameters.far.as_deref().and_then(FarPoint::path_mtu) > Some(most);
        let mut series: Vec<_> =
            experiment.points.iter().filter(|point| is_longer(point)).map(|point| point.series.clone()).collect();
        series.dedup();
        if !series.is_empty() {
            experiment.points.retain(|point| !is_longer(point));
            let said = format!("{} omits {}: the path MTU is {most} B here", experiment.name, series.join(", "));
            note(&said);
            sentence = Some(said);
        }
    }
    experiments.retain(|experiment| !experiment.points.is_empty());
    match sentence {
        Some(sentence) if experiments.is_empty() => Err(Usage(sentence)),
        _ => Ok(()),
    }
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
            leave_out_longer_packets(&mut experiments, most, |_| {}).map(|()| {
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
