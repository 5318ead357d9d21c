//! Qualification of an RDMA device.
//!
//! [`Run`] examines the machine, runs the conformance suites of verbs and of message connections, measures a study, and
//! judges captured packets. The software RNIC passes all cases of the suites. A case that a device fails is therefore a
//! deviation of this device, and so is each departure that a case knows and accepts ([`Deviation`]). Each deviation
//! has the rule that the case checks.
//!
//! The results are in one archive, from which [`Scrubber`] has removed addresses and names. The archive is written
//! again after each step, so an interrupted run leaves an archive too.
//!
//! The parts of a run are processes of the command `doorbell`: the cases in one ([`run_cases`]), and the commands
//! `doctor`, `study`, `bench` and `wire check`. A case that hangs or crashes ends its process alone. [`Run`] then
//! starts another process for the remaining cases.
#![forbid(unsafe_code)]

mod archive;
mod report;
mod run;
mod scrub;
mod suites;

/// Lock of tests that start a script which they wrote. A process that another test forks meanwhile would hold the
/// script open for writing, so it could not start.
#[cfg(test)]
static SCRIPTS: std::sync::Mutex<()> = std::sync::Mutex::new(());

pub use archive::tar;
pub use report::{CaseResult, Deviation, DeviceFacts, Outcome, Part, PartResult, Qualification, SCHEMA, State};
pub use run::{Plan, Run};
pub use scrub::{Scrubber, is_address};
pub use suites::{CaseEntry, RUN_CASES, cases, run_cases};
