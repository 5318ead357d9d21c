//! `cargo xtask profile`: costs per message of a workload by group of functions, with its system calls and context
//! switches.
//!
//! callgrind counts instructions of the counting program with two lengths, by function and source file. `groups.rs` has
//! the table of groups, and `changes.rs` the table of costs before and after a change. `docs/internals/profile.md`
//! describes the output.

mod builds;
mod callgrind;
mod changes;
mod groups;
mod kernel;
mod perftest;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use crate::instructions::{self, Workload, workloads};
use crate::regressions::git;
use crate::shell::{output_of, root, target};
use crate::{peers, place};

use builds::{Build, Earlier, Lacking};
use callgrind::Costs;
use groups::Group;
use kernel::PerMessage;

/// Number of functions in the table of a single workload.
const FUNCTIONS: usize = 20;

/// Page that has the table of all workloads.
const PAGE: &str = "docs/internals/profile.md";
/// Lines around the table of the page.
const BEGIN: &str = "<!-- generated: `cargo xtask profile --write-docs` -->";
const END: &str = "<!-- end of generated part -->";

/// Options of `cargo xtask profile`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Workloads of benchmarks/README.md [default: all]
    #[arg(value_name = "WORKLOAD", value_parser = names())]
    workloads: Vec<String>,
    /// Folder for all tables (`profile.md`) and all figures (`profile.json`), such as one below `benchmarks`.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Another build of `doorbell-instructions` to profile, instead of a build of this folder.
    #[arg(long, value_name = "BINARY")]
    program: Option<PathBuf>,
    /// Revision to profile, instead of this folder.
    #[arg(long, value_name = "REVISION", conflicts_with = "program")]
    revision: Option<String>,
    /// Revision before a change. It is profiled too, workload by workload, and a table compares both.
    #[arg(long, value_name = "REVISION")]
    before: Option<String>,
    /// A build of `doorbell-instructions` before a change, instead of a revision.
    #[arg(long, value_name = "BINARY", conflicts_with = "before")]
    before_program: Option<PathBuf>,
    /// Revision before a change for the workloads on links, which the revision of --before may lack.
    #[arg(long, value_name = "REVISION")]
    links_before: Option<String>,
    /// Writes the table of docs/internals/profile.md anew.
    #[arg(long, conflicts_with_all = ["workloads", "program", "revision"])]
    write_docs: bool,
    /// Counts system calls and context switches of `ib_send_lat` and `ib_send_lat -e` over both links instead. `--out`
    /// gets `perftest.md` and `perftest.json`.
    #[arg(long, conflicts_with_all = [
        "workloads", "program", "revision", "before", "before_program", "links_before", "write_docs"
    ])]
    perftest: bool,
}

fn names() -> clap::builder::PossibleValuesParser {
    workloads().map(|workload| workload.name).collect::<Vec<_>>().into()
}

/// Costs of a workload.
struct Profile {
    workload: &'static Workload,
    /// Difference of the long and the short run.
    costs: Costs,
    groups: BTreeMap<Group, f64>,
    kernel: PerMessage,
}

/// Profiles workloads, prints tables in Markdown, and writes the files that the options name.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    if options.perftest {
        return perftest::run(options.out.as_deref());
    }
    peers::install_for_profiles()?;
    let _alone = place::measuring()?;
    let home = target().join("xtask").join("profile");
    for folder in [Some(&home), options.out.as_ref()].into_iter().flatten() {
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    // Build all programs first, so that no measurement is lost if a build fails.
    let before = Earlier::build(&home, options)?;
    let after = match (&options.program, &options.revision) {
        (Some(program), _) => Build::given("--program", program)?,
        (None, Some(revision)) => Build::of_revision(&home, revision, "after")?,
        (None, None) => Build { program: instructions::build(&home, &root(), "this")?, name: this_folder()? },
    };
    let is_wanted = |name: &str| options.workloads.is_empty() || options.workloads.iter().any(|wanted| wanted == name);
    let (mut profiles, mut earlier, mut lacking) = (Vec::new(), Vec::new(), Lacking::default());
    for workload in workloads().filter(|workload| is_wanted(workload.name)) {
        eprintln!("{}", workload.name);
        let Some(profile) = lacking.profile(&home, &after, workload)? else { continue };
        profiles.push(profile);
        let of_earlier = before.build_for(workload).map(|build| lacking.profile(&home, build, workload));
        earlier.push(of_earlier.transpose()?.flatten());
    }
    lacking.check(profiles.len())?;
    let name = after.name;
    let mut text = format!("Costs of one message, {name}:\n\n{}", table(&profiles));
    if let [only] = &*profiles {
        let _ = write!(text, "\n{}\n{}", only.functions(), only.calls());
    }
    if let Some(earlier_name) = before.names() {
        let _ = write!(text, "\nBefore: {earlier_name}. After: {name}.\n\n{}", changes::table(&earlier, &profiles));
    }
    text.push_str(&lacking.notes());
    print!("{text}");
    if options.write_docs {
        write_page(&root().join(PAGE), &format!("Revision {name}.\n\n{}", table(&profiles)))?;
    }
    let Some(out) = &options.out else { return Ok(()) };
    let mut figures = json!({
        "schema": "doorbell-profile/2",
        "build": name,
        "workloads": profiles.iter().map(Profile::json).collect::<Vec<_>>(),
        "lacking": lacking.by_build(),
    });
    if let Some(name) = before.names() {
        let workloads: Vec<Value> = earlier.iter().flatten().map(Profile::json).collect();
        figures["before"] = json!({ "build": name, "workloads": workloads });
    }
    for (file, text) in [("profile.md", text), ("profile.json", format!("{figures:#}\n"))] {
        let path = out.join(file);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// Returns the short hash of this folder's revision, with the addition "with changes" if files differ from it.
fn this_folder() -> Result<String, String> {
    let ask = |arguments: &[&str]| output_of(git(&root(), arguments)).map(|text| text.trim().to_owned());
    let revision = ask(&["rev-parse", "--short=8", "HEAD"])?;
    let is_changed = !ask(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Ok(if is_changed { format!("{revision} with changes") } else { revision })
}

/// Replaces the generated part of a page.
fn write_page(page: &Path, part: &str) -> Result<(), String> {
    let failed = |error| format!("{}: {error}", page.display());
    let old = fs::read_to_string(page).map_err(failed)?;
    fs::write(page, with_part(&old, part)?).map_err(failed)
}

fn with_part(page: &str, part: &str) -> Result<String, String> {
    let no_mark = |mark| format!("{PAGE} has no line {mark:?}");
    let (before, rest) = page.split_once(BEGIN).ok_or_else(|| no_mark(BEGIN))?;
    let (_, after) = rest.split_once(END).ok_or_else(|| no_mark(END))?;
    Ok(format!("{before}{BEGIN}\n\n{part}\n{END}{after}"))
}

impl Profile {
    fn take(home: &Path, program: &Path, workload: &'static Workload) -> Result<Self, String> {
        let costs = |length: u64| {
            let file = home.join(format!("{}-{length}.callgrind", workload.name));
            instructions::count(program, workload.name, length, &file)?;
            let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
            Costs::parse(&text).map_err(|why| format!("{}: {why}", file.display()))
        };
        let costs = costs(workload.long)?.without(&costs(workload.short)?);
        let messages = workload.messages();
        let mut groups = groups::sums(&costs);
        groups.values_mut().for_each(|sum| *sum /= messages);
        let kernel = kernel::count(program, workload, &home.join("strace.txt"))?;
        Ok(Self { workload, costs, groups, kernel })
    }

    fn instructions(&self) -> f64 {
        self.groups.values().sum()
    }

    /// Returns a table of the functions with the most instructions, without those of the functions that they call.
    fn functions(&self) -> String {
        let mut text = "| function | group | instructions |\n|---|---|---|\n".to_owned();
        for (name, group, cost) in groups::most_expensive(&self.costs, FUNCTIONS) {
            let group = group.map_or("of its callers", Group::name);
            let _ = writeln!(text, "| `{name}` | {group} | {:.1} |", cost as f64 / self.workload.messages());
        }
        text
    }

    /// Returns a table of the system calls, the most frequent first.
    fn calls(&self) -> String {
        let mut text = "| system call | number |\n|---|---|\n".to_owned();
        for (name, number) in self.kernel.by_frequency() {
            let _ = writeln!(text, "| `{name}` | {} |", rounded(number, 3));
        }
        text
    }

    fn json(&self) -> Value {
        let Self { workload, costs, groups, kernel } = self;
        let groups: BTreeMap<&str, f64> = groups.iter().map(|(group, cost)| (group.name(), *cost)).collect();
        let functions: Vec<Value> = groups::most_expensive(costs, FUNCTIONS)
            .into_iter()
            .map(|(name, group, cost)| {
                json!({ "name": name, "group": group.map(Group::name), "instructions": cost as f64 / workload.messages() })
            })
            .collect();
        json!({
            "name": workload.name,
            "messages": [workload.short, workload.long],
            "instructions": self.instructions(),
            "groups": groups,
            "functions": functions,
            "system_calls": kernel.calls,
            "voluntary_switches": kernel.voluntary_switches,
            "involuntary_switches": kernel.involuntary_switches,
        })
    }
}

/// Returns a table with a line per workload, in units per message of both ends together.
fn table(profiles: &[Profile]) -> String {
    let groups = Group::ALL.map(Group::name);
    let headings = ["workload", "instructions"].into_iter().chain(groups).chain(["system calls", "switches"]);
    let headings: Vec<&str> = headings.collect();
    let mut text = format!("| {} |\n|{}\n", headings.join(" | "), "---|".repeat(headings.len()));
    for profile in profiles {
        let _ = write!(text, "| `{}` | {:.0} |", profile.workload.name, profile.instructions());
        for group in Group::ALL {
            let _ = write!(text, " {} |", rounded(profile.groups.get(&group).copied().unwrap_or_default(), 0));
        }
        let (calls, switches) = (profile.kernel.system_calls(), profile.kernel.voluntary_switches);
        let _ = writeln!(text, " {} | {} |", rounded(calls, 2), rounded(switches, 2));
    }
    text
}

/// Returns a number with this count of digits after the point. A negative number that rounds to zero has no sign.
fn rounded(number: f64, digits: usize) -> String {
    let text = format!("{number:.digits$}");
    let is_zero = text.bytes().all(|byte| matches!(byte, b'-' | b'0' | b'.'));
    if is_zero { text.trim_start_matches('-').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instructions::IN_MEMORY;

    pub(super) fn profile() -> Profile {
        let costs = Costs::parse(callgrind::tests::SAMPLE).unwrap();
        let workload = &IN_MEMORY[0];
        let mut groups = groups::sums(&costs);
        groups.values_mut().for_each(|sum| *sum /= workload.messages());
        let calls = BTreeMap::from([("sendmsg".to_owned(), 1.0), ("recvmsg".to_owned(), 1.5)]);
        let kernel = PerMessage { calls, voluntary_switches: -0.001, involuntary_switches: 0.0 };
        Profile { workload, costs, groups, kernel }
    }

    #[test]
    fn a_table_has_a_column_for_each_group() {
        let mut profile = profile();
        profile.groups.values_mut().for_each(|sum| *sum *= profile.workload.messages());
        let text = table(&[profile]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        let columns = lines[0].matches('|').count();
        assert!(lines.iter().all(|line| line.matches('|').count() == columns), "{text}");
        assert_eq!(lines[2], "| `rnic` | 189 | 64 | 0 | 0 | 30 | 80 | 0 | 0 | 0 | 0 | 0 | 3 | 12 | 2.50 | 0.00 |");
    }

    #[test]
    fn a_profile_lists_its_system_calls() {
        let lines = "| system call | number |\n|---|---|\n| `recvmsg` | 1.500 |\n| `sendmsg` | 1.000 |\n";
        assert_eq!(profile().calls(), lines);
    }

    #[test]
    fn numbers_keep_their_sign_unless_they_round_to_zero() {
        let texts = [(-0.004, 2), (-0.006, 2), (0.0, 2), (-0.4, 0), (-12.0, 0), (10.0, 0)];
        let texts = texts.map(|(number, digits)| rounded(number, digits));
        assert_eq!(texts, ["0.00", "-0.01", "0.00", "0", "-12", "10"]);
    }

    #[test]
    fn the_page_has_the_marks_of_its_table() {
        let page = fs::read_to_string(root().join(PAGE)).unwrap();
        let written = with_part(&page, "a table").unwrap();
        assert!(written.contains(&format!("{BEGIN}\n\na table\n{END}\n")), "{written}");
        let prose = |text: &str| text.split_once(BEGIN).map(|(before, _)| before.to_owned());
        assert_eq!(prose(&written), prose(&page));
        assert!(with_part("no marks", "a table").unwrap_err().contains("has no line"));
    }

    #[test]
    fn figures_are_per_message_in_json() {
        let json = profile().json();
        let messages = IN_MEMORY[0].messages();
        assert_eq!(json["groups"]["CRC"], 80.0 / messages);
        assert_eq!(json["functions"][0]["group"], "CRC");
        assert_eq!(json["functions"][0]["instructions"], 80.0 / messages);
        assert_eq!(json["system_calls"]["recvmsg"], 1.5);
    }

    #[test]
    fn a_build_before_a_change_is_a_revision_or_a_program() {
        let parse = |arguments: &[&str]| {
            let words = ["profile"].into_iter().chain(arguments.iter().copied());
            Options::augment_args(clap::Command::new("profile")).try_get_matches_from(words)
        };
        assert!(parse(&["shm-lat", "--before", "56ec23c", "--links-before", "000e1b33"]).is_ok());
        assert!(parse(&["--before-program", "counting", "--links-before", "000e1b33"]).is_ok());
        assert!(parse(&["--before", "56ec23c", "--before-program", "counting"]).is_err());
        assert!(parse(&["--perftest", "--out", "folder"]).is_ok());
        assert!(parse(&["--perftest", "shm-lat"]).is_err());
    }

    #[test]
    fn names_of_workloads_are_unique() {
        let names: Vec<&str> = workloads().map(|workload| workload.name).collect();
        assert!(names.iter().all(|name| names.iter().filter(|other| other == &name).count() == 1), "{names:?}");
        assert!(workloads().all(|workload| workload.short < workload.long));
    }
}
