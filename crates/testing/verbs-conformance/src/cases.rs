//! The cases as a table, for programs that run them on a device.

use crate::Open;

/// A case of the suite.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Module and function of the case, as in `states/rnr_retries_end`.
    pub name: &'static str,
    /// Rule that the case checks: a section of IBTA Vol 1, a manual page, or a contract of Doorbell.
    pub rule: &'static str,
    /// Runs the case. It panics if the devices depart from the rule.
    pub run: fn(Open<'_>),
}

macro_rules! table {
    ($($module:ident: $($case:ident $rule:literal),+);+) => {
        &[$($(Case {
            name: concat!(stringify!($module), "/", stringify!($case)),
            rule: $rule,
            run: crate::$module::$case,
        }),+),+]
    };
}

/// All cases that every device passes, in the order of the suite.
pub const CASES: &[Case] = crate::verbs_cases!([table]);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::CASES;

    #[test]
    fn each_case_has_a_name_of_its_own_and_a_rule() {
        let names: BTreeSet<&str> = CASES.iter().map(|case| case.name).collect();
        assert_eq!(names.len(), CASES.len());
        assert!(CASES.len() > 60 && CASES.iter().all(|case| !case.rule.is_empty()));
        assert!(names.contains("states/rnr_retries_end"));
    }
}
