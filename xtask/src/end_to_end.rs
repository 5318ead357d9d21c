//! Checks of the `doorbell` command as a whole: it is run as a user would run it.

use crate::test::Outcome;

/// Runs them, each as a step of its own.
pub(crate) fn run(step: &mut dyn FnMut(&'static str, fn() -> Outcome)) {
    let checks: [(&'static str, fn() -> Outcome); 0] = [];
    for (name, check) in checks {
        step(name, check);
    }
}
