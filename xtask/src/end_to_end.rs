//! Checks of the `doorbell` command as a whole: it is run as a user would run it.

use crate::test::StepEnd;
use crate::{network, two_machines};

/// A step's name and body.
type Check = (&'static str, fn() -> StepEnd);

const CHECKS: &[Check] = &[
    ("two machines", two_machines::exchange),
    ("two machines, with loss", two_machines::with_loss),
    ("two machines, real frames", two_machines::frames),
    ("two machines, study", two_machines::study),
    ("many machines, study", two_machines::cluster),
    ("many machines, ssh", two_machines::ssh),
    ("many machines, Slurm", || network::apart_with_interface(two_machines::slurm)),
];

/// Runs them, each as a step of its own.
pub(crate) fn run(step: &mut dyn FnMut(&'static str, fn() -> StepEnd)) {
    for &(name, check) in CHECKS {
        step(name, check);
    }
}
