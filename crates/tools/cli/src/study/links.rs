//! Comparison of links, which requires two processes on this machine with software RNICs.

use doorbell_study::experiment::Experiment;

use crate::failure::Usage;
use crate::output::note;

/// Reason why links cannot be compared between machines, as the end of a sentence.
pub(super) const BETWEEN_MACHINES: &str = "here each host opens its own device, with the link of its own options";
/// Reason why links of a hardware RNIC cannot be compared, as the end of a sentence.
pub(super) const HARDWARE: &str = "a hardware RNIC has only one link";
/// Reason why links of a testbed cannot be compared, as the end of a sentence.
pub(super) const VIRTUAL: &str = "in virtual time there is only the link of the testbed";

/// Leaves out the experiments that compare links, and prints the reason.
///
/// # Errors
///
/// No other experiment was requested.
pub(super) fn leave_out(experiments: &mut Vec<Experiment>, why: &str) -> Result<(), Usage> {
    let all = experiments.len();
    experiments.retain(|experiment| !experiment.compares_links());
    if experiments.len() == all {
        return Ok(());
    }
    let sentence = format!("links are compared between two software RNICs of one machine alone: {why}");
    if experiments.is_empty() {
        return Err(Usage(sentence));
    }
    note!("{sentence}");
    Ok(())
}
