//! Named experiments. An experiment has swept parameters and published claims, and the measured data decide whether a
//! claim holds.
//!
//! [`all`] returns all experiments. A [`RunDirectory`] stores one [`PointRecord`] per point. A [`View`] selects records
//! of a run, and a [`Claim`] judges the selected records.

mod claims;
mod directory;
mod far_memory;
mod hosts;
mod judge;
mod links;
mod operations;
mod quantity;
mod record;
mod sweep;
mod sweeps;
#[cfg(test)]
pub(crate) mod tests;

mod view;

pub use directory::{DirectoryError, RunDirectory};
pub use far_memory::{COMPARING, FAMILY as FAR_MEMORY};
pub use hosts::FAMILY as HOSTS;
pub use judge::{Claim, Finding, Verdict};
pub use links::{Compared, LINK_FIGURES, LinkFigure, compared, subject_and_link};
pub use quantity::{Quantity, Spread};
pub use record::{FORMAT, PointRecord, RecordError, SCHEMA};
pub use sweep::{Effort, Experiment, Point};
pub use sweeps::{COMPARED_SIZES, all};
pub use view::View;
