//! Rules of a fault plan that struck a packet, and the texts of the plan for comments of captures.

/// Maximum number of rules of a fault plan.
pub(crate) const RULES_MAX: usize = 256;

/// Texts of a fault plan for comments of captures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanTexts {
    /// The whole plan, as an option of the command accepts it.
    pub plan: String,
    /// Number and name of each rule, in the order of the plan.
    pub rules: Vec<String>,
}

/// Numbers of the rules of a fault plan that struck a packet. The first rule of a plan has the number 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleNumbers([u64; RULES_MAX / 64]);

impl RuleNumbers {
    /// Adds a number from 1 to [`RULES_MAX`].
    pub(crate) fn insert(&mut self, number: usize) {
        let bit = number - 1;
        self.0[bit / 64] |= 1 << (bit % 64);
    }

    /// Returns the numbers in ascending order.
    pub fn numbers(&self) -> impl Iterator<Item = usize> {
        (1..=RULES_MAX).filter(|number| (self.0[(number - 1) / 64] >> ((number - 1) % 64)) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_kept_in_order() {
        let mut numbers = RuleNumbers::default();
        assert_eq!(numbers.numbers().count(), 0);
        [RULES_MAX, 1, 65, 64, 1].into_iter().for_each(|number| numbers.insert(number));
        assert_eq!(numbers.numbers().collect::<Vec<_>>(), [1, 64, 65, RULES_MAX]);
    }
}
