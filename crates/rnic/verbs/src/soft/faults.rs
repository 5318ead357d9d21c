//! Fault plans of software RNICs.

use std::path::Path;

use doorbell_fabric::{FaultPlan, VerbsFaults};
use doorbell_output::files::{self, GuardedFile};

use crate::error::Error;

/// Opens the journal of faults, to which several devices may append.
pub(super) fn open_journal(path: &Path) -> Result<GuardedFile, Error> {
    files::append(path).and_then(GuardedFile::new).map_err(Error::os("the journal of faults could not be opened"))
}

/// Returns the faults of a plan for calls and completions; `None` if it has none.
pub(super) fn of_plan(plan: Option<&FaultPlan>, journal: Option<&Path>) -> Result<Option<VerbsFaults>, Error> {
    let Some(faults) = plan.and_then(VerbsFaults::new) else { return Ok(None) };
    Ok(Some(match journal {
        Some(path) => faults.with_journal(open_journal(path)?),
        None => faults,
    }))
}
