//! Named experiments. An experiment has swept parameters and published claims, and the measured data decide whether a
//! claim holds.
//!
//! [`all`] returns all experiments. A [`RunDirectory`] stores one [`PointRecord`](doorbell_record::PointRecord) per
//! point. A [`View`] selects records of a run, and a [`Claim`] judges the selected records.

mod claims;
mod directory;
mod families;
mod far_memory;
mod goals;
mod hosts;
mod links;
mod measured;
mod operations;
mod requests;
mod rows;
mod sweep;
mod sweeps;
#[cfg(test)]
pub(crate) mod tests;

mod view;

pub use crate::layout::{Layout, Share};
pub use claims::Claim;
pub use directory::{DirectoryError, RunDirectory};
pub use families::COMPARED_SIZES;
pub use far_memory::COMPARING;
pub use links::{Compared, LINK_FIGURES, LinkFigure, compared, subject_and_link};
pub use requests::{OwnRequests, REQUESTS, own_requests};
pub use sweep::{Effort, Experiment, FAR_MEMORY, Point};
pub use sweeps::all;
pub use view::{QUIET_SPAN, View};
