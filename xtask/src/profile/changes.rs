//! Table of costs before and after a change.

use std::fmt::Write as _;

use super::groups::Group;
use super::{Profile, rounded};

/// Minimum share of all instructions before the change by which a group must differ to have a place in the table.
const SHARE: f64 = 0.01;

/// Returns a line for each workload that both builds have: instructions, system calls, and the groups that changed.
pub(super) fn table(before: &[Option<Profile>], after: &[Profile]) -> String {
    let mut text =
        "| workload | instructions before | after | ratio | system calls before | after | groups |\n".to_owned();
    text.push_str("|---|---|---|---|---|---|---|\n");
    for (before, after) in before.iter().zip(after) {
        let Some(before) = before else { continue };
        let (old, new) = (before.instructions(), after.instructions());
        let _ = writeln!(
            text,
            "| `{}` | {old:.0} | {new:.0} | {:.3} | {} | {} | {} |",
            after.workload.name,
            new / old,
            rounded(before.kernel.system_calls(), 2),
            rounded(after.kernel.system_calls(), 2),
            changed_groups(before, after).join(", ")
        );
    }
    text
}

/// Returns the groups whose instructions changed, as `copies 45 to 30`.
fn changed_groups(before: &Profile, after: &Profile) -> Vec<String> {
    let of = |profile: &Profile, group| profile.groups.get(&group).copied().unwrap_or_default();
    let least = SHARE * before.instructions();
    let figures = Group::ALL.map(|group| (group, of(before, group), of(after, group)));
    let changed = figures.into_iter().filter(|(_, old, new)| (new - old).abs() >= least);
    changed.map(|(group, old, new)| format!("{} {old:.0} to {new:.0}", group.name())).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::profile;
    use super::*;

    #[test]
    fn a_line_names_the_groups_that_changed() {
        let [mut before, mut after] = [profile(), profile()];
        before.groups = [(Group::Copies, 40.0), (Group::Crc, 60.0), (Group::Driver, 100.0)].into();
        after.groups = [(Group::Copies, 20.0), (Group::Crc, 61.0), (Group::Driver, 100.0), (Group::Clock, 9.0)].into();
        let text = table(&[Some(before)], &[after]);
        let last = text.lines().last().unwrap();
        assert_eq!(last, "| `rnic` | 200 | 190 | 0.950 | 2.50 | 2.50 | copies 40 to 20, clock 0 to 9 |");
    }

    #[test]
    fn a_workload_that_the_earlier_build_lacks_has_no_line() {
        assert_eq!(table(&[None], &[profile()]).lines().count(), 2);
    }
}
