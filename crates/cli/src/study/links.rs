//! Where links can be compared: between two processes of this machine that have software RNICs.

use doorbell_study::experiment::Experiment;

use crate::Usage;
use crate::output::note;

/// Why they cannot, as the end of a sentence.
pub(super) const BETWEEN_MACHINES: &str = "here each host opens its own device, with the link that it was given";
pub(super) const HARDWARE: &str = "an RNIC of the machine has one way for its packets";
pub(super) const VIRTUAL: &str = "in virtual time there is one link, the testbed's";

/// Leaves out the experiments that compare links, and says why.
///
/// # Errors
///
/// Nothing else was asked for.
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
