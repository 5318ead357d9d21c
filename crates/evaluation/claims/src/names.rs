//! Error for a name that no testbed has.

use doorbell_data::{NAMES, Names};

/// Error for a name that no testbed has. Its text lists the names of all testbeds, the nearest first.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no testbed {given}; allowed is {}", allowed(.given))]
pub struct UnknownTestbed {
    /// The given name.
    pub given: String,
}

impl UnknownTestbed {
    /// Returns the error for a given name.
    pub fn new(given: &str) -> Self {
        Self { given: given.to_owned() }
    }
}

/// Returns the long and short names of all testbeds in the order of their similarity to a given name.
fn allowed(given: &str) -> String {
    let given = given.to_ascii_lowercase();
    let like = |own: &str| strsim::normalized_damerau_levenshtein(&given, own);
    let similarity = |names: &Names| like(names.short).max(like(names.long));
    let mut all: Vec<&Names> = NAMES.iter().collect();
    all.sort_by(|one, other| similarity(other).total_cmp(&similarity(one)));
    all.iter().map(|Names { short, long }| format!("{long} ({short})")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_names_come_first() {
        for (given, first) in [
            ("connectx9", "connectx5-100g (t1), "),
            ("connectx5-far", "connectx5-100g-far (t3), "),
            ("Counter", "counters-100g (t2), "),
            ("t9", "connectx5-100g (t1), counters-100g (t2), connectx5-100g-far (t3)"),
        ] {
            let text = UnknownTestbed::new(given).to_string();
            let words = format!("there is no testbed {given}; allowed is {first}");
            assert!(text.starts_with(&words), "{text}");
        }
    }
}
