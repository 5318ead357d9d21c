//! `cargo xtask profile`: costs per message of a workload by group of functions, with its system calls and context
//! switches.
//!
//! callgrind counts instructions of the counting program with two lengths, by function and source file. `groups.rs` has
//! the table of groups. `docs/internals/profile.md` describes the output.

mod callgrind;
mod groups;
mod kernel;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use crate::instructions::{self, IN_MEMORY, ON_LINKS, Workload};
use crate::shell::{root, target};
use crate::{peers, place};

use callgrind::Costs;
use groups::Group;
use kernel::PerMessage;

/// Number of functions in the table of a single workload.
const FUNCTIONS: usize = 20;

/// Options of `cargo xtask profile`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Workloads of benchmarks/README.md [default: all]
    #[arg(value_name = "WORKLOAD", value_parser = names())]
    workloads: Vec<String>,
    /// File for the figures, as JSON.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Another build of `doorbell-instructions` to profile, instead of a build of this folder.
    #[arg(long, value_name = "BINARY")]
    program: Option<PathBuf>,
}

fn workloads() -> impl Iterator<Item = &'static Workload> {
    IN_MEMORY.iter().chain(ON_LINKS)
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

/// Profiles workloads, prints tables in Markdown, and writes the figures to the file of the options.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    peers::install_for_profiles()?;
    let _alone = place::measuring()?;
    let home = target().join("xtask").join("profile");
    fs::create_dir_all(&home).map_err(|error| format!("{}: {error}", home.display()))?;
    let program = match &options.program {
        Some(program) => program.canonicalize().map_err(|error| format!("--program {}: {error}", program.display()))?,
        None => instructions::build(&home, &root(), "this")?,
    };
    let is_wanted = |name: &str| options.workloads.is_empty() || options.workloads.iter().any(|wanted| wanted == name);
    let mut profiles = Vec::new();
    for workload in workloads().filter(|workload| is_wanted(workload.name)) {
        eprintln!("{}", workload.name);
        profiles.push(Profile::take(&home, &program, workload)?);
    }
    print!("{}", table(&profiles));
    if let [only] = &*profiles {
        print!("\n{}", only.functions());
    }
    if let Some(out) = &options.out {
        let profiles: Vec<Value> = profiles.iter().map(Profile::json).collect();
        let text = json!({ "schema": "doorbell-profile/1", "workloads": profiles });
        fs::write(out, format!("{text:#}\n")).map_err(|error| format!("{}: {error}", out.display()))?;
    }
    Ok(())
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

    fn system_calls(&self) -> f64 {
        self.kernel.calls.values().fold(0.0, |sum, calls| sum + calls)
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
            let _ = write!(text, " {:.0} |", profile.groups.get(&group).copied().unwrap_or_default().max(0.0));
        }
        let switches = profile.kernel.voluntary_switches.max(0.0);
        let _ = writeln!(text, " {:.2} | {switches:.2} |", profile.system_calls());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> Profile {
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
    fn figures_are_per_message_in_json() {
        let json = profile().json();
        let messages = IN_MEMORY[0].messages();
        assert_eq!(json["groups"]["CRC"], 80.0 / messages);
        assert_eq!(json["functions"][0]["group"], "CRC");
        assert_eq!(json["functions"][0]["instructions"], 80.0 / messages);
        assert_eq!(json["system_calls"]["recvmsg"], 1.5);
    }

    #[test]
    fn names_of_workloads_are_unique() {
        let names: Vec<&str> = workloads().map(|workload| workload.name).collect();
        assert!(names.iter().all(|name| names.iter().filter(|other| other == &name).count() == 1), "{names:?}");
        assert!(workloads().all(|workload| workload.short < workload.long));
    }
}
