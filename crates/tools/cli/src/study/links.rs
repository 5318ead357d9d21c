//! Comparison of links, which requires two processes of this machine with software RNICs.

use doorbell_study::experiment::Experiment;

use crate::failure::Usage;
use crate::output::note;

/// Reasons why links cannot be compared, as ends of a sentence.
pub(super) const BETWEEN_MACHINES: &str = "here each host opens its own device, with the link that it was given";
pub(super) const HARDWARE: &str = "an RNIC of the machine has one way for its packets";
pub(super) const VIRTUAL: &str = "in virtual time there is one link, the testbed's";

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
