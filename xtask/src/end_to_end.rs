//! Checks of the `doorbell` command as a whole: it is run as a user would run it.

use crate::test::Outcome;

/// A step's name and body.
type Check = (&'static str, fn() -> Outcome);

const CHECKS: &[Check] = &[];

/// Runs them, each as a step of its own.
pub(crate) fn run(step: &mut dyn FnMut(&'static str, fn() -> Outcome)) {
    for &(name, check) in CHECKS {
        step(name, check);
    }
}
