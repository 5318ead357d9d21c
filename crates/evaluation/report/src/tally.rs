//! Numbers of verdicts.

use std::fmt;

use doorbell_claims::Finding;

use crate::Found;

/// Numbers of verdicts. Those from a machine that was not quiet are counted apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Outcomes on a quiet machine, each with its number. Outcomes that do not occur are left out.
    pub findings: Vec<(Finding, usize)>,
    /// Number of verdicts from a machine that was not quiet.
    pub restless: usize,
}

impl Tally {
    /// Words after the number of verdicts from a machine that was not quiet.
    pub(crate) const RESTLESS: &str = "measured on a machine that was not quiet";

    /// Counts verdicts.
    pub fn of<'a>(found: impl IntoIterator<Item = &'a Found>) -> Self {
        let (restless, quiet): (Vec<&Found>, Vec<&Found>) = found.into_iter().partition(|found| found.is_restless);
        let count = |outcome| (outcome, quiet.iter().filter(|found| found.verdict.finding == outcome).count());
        Self {
            findings: Finding::ALL.into_iter().map(count).filter(|(_, count)| *count > 0).collect(),
            restless: restless.len(),
        }
    }

    /// Returns whether there are no verdicts.
    pub fn is_empty(&self) -> bool {
        self.findings.is_empty() && self.restless == 0
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let findings = self.findings.iter().map(|(outcome, count)| format!("{} {count}", outcome.name()));
        let restless = (self.restless > 0).then(|| format!("{} {}", self.restless, Self::RESTLESS));
        f.write_str(&findings.chain(restless).collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_of_a_restless_machine_are_counted_apart() {
        let tally = Tally { findings: vec![(Finding::Holds, 25), (Finding::NoValues, 1)], restless: 35 };
        assert_eq!(tally.to_string(), "holds 25, not measured 1, 35 measured on a machine that was not quiet");
        assert!(!tally.is_empty() && Tally::default().is_empty() && Tally::of([]) == Tally::default());
        assert_eq!(Tally { restless: 0, ..tally }.to_string(), "holds 25, not measured 1");
    }
}
