//! The crates of the workspace, their floors, and the dependencies between crates, which are called arrows.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::shell::root;
use crate::workspace::{Package, packages};

/// Folders of `crates/`, from the lowest floor to the highest. Dependencies point down or stay on their floor.
const FLOORS: [&str; 7] = ["rnic", "messages", "memory", "programs", "evaluation", TESTING, "tools"];
/// Floor of the crate `data`, below all other floors.
const DATA: &str = "data";
/// Folder of the crates with suites and test helpers. Any crate may use them in its tests, and the tools elsewhere too.
const TESTING: &str = "testing";

/// A crate of the workspace.
#[derive(Debug)]
struct Member {
    folder: PathBuf,
    floor: String,
    /// Crates of the workspace on which this crate depends.
    uses: BTreeSet<String>,
    /// Crates of the workspace that only the tests, examples and benches of this crate use.
    tests_use: BTreeSet<String>,
}

/// All crates, by name without the prefix `doorbell-`.
#[derive(Debug)]
pub(super) struct House(BTreeMap<String, Member>);

fn short(name: &str) -> String {
    name.strip_prefix("doorbell-").unwrap_or(name).to_owned()
}

/// Reads the crates from Cargo's metadata. `xtask` is a tool of the workspace, so the result does not contain it.
pub(super) fn read() -> Result<House, String> {
    Ok(House::new(packages(&root())?, &root()))
}

impl House {
    fn new(packages: Vec<Package>, root: &Path) -> Self {
        let names: BTreeSet<String> = packages.iter().map(|package| package.name.clone()).collect();
        let members = packages.into_iter().filter(|package| package.name != "xtask").map(|package| {
            let folder = package.folder().to_path_buf();
            let own = package.name;
            let of_kind = |is_wanted: fn(Option<&str>) -> bool| {
                let those = package.dependencies.iter().filter(|it| is_wanted(it.kind.as_deref()));
                let own = &own;
                those
                    .map(|it| it.name.clone())
                    .filter(|name| names.contains(name) && name != own)
                    .map(|it| short(&it))
                    .collect()
            };
            let uses: BTreeSet<String> = of_kind(|kind| kind != Some("dev"));
            let tests_use: BTreeSet<String> = of_kind(|kind| kind == Some("dev"));
            let tests_use = &tests_use - &uses;
            let floor = floor_of(folder.strip_prefix(root).unwrap_or(&folder));
            (short(&own), Member { folder, floor, uses, tests_use })
        });
        Self(members.collect())
    }

    /// Returns the number of floors below a crate's floor. Crates in unknown folders are above all floors.
    fn height(&self, name: &str) -> usize {
        let floor = self.0.get(name).map_or("", |member| member.floor.as_str());
        if floor == DATA { 0 } else { 1 + FLOORS.iter().position(|known| *known == floor).unwrap_or(FLOORS.len()) }
    }

    /// Returns the dependencies of crates on crates of a higher floor.
    pub(super) fn up(&self) -> BTreeSet<String> {
        let mut up = BTreeSet::new();
        for (name, member) in &self.0 {
            let is_above = |other: &&String| self.height(other) > self.height(name);
            up.extend(member.uses.iter().filter(is_above).map(|other| format!("{name} uses {other}")));
            let is_testing = |other: &&String| self.0.get(*other).is_some_and(|it| it.floor == TESTING);
            let tests = member.tests_use.iter().filter(|other| is_above(other) && !is_testing(other));
            up.extend(tests.map(|other| format!("tests of {name} use {other}")));
        }
        up
    }

    /// Returns the names of all crates, and the root file of each.
    pub(super) fn sources(&self) -> impl Iterator<Item = (&str, PathBuf)> {
        self.0.iter().filter_map(|(name, member)| {
            let roots = ["src/lib.rs", "src/main.rs"].map(|file| member.folder.join(file));
            roots.into_iter().find(|file| file.exists()).map(|file| (name.as_str(), file))
        })
    }

    /// Returns the crates by floor from the highest one, each with its arrows. An arrow that follows from others is
    /// left out.
    pub(super) fn drawing(&self) -> String {
        let mut text = String::new();
        let floors = FLOORS.iter().rev().copied().chain([DATA]);
        for floor in floors {
            let members = self.0.iter().filter(|(_, member)| member.floor == floor);
            for (index, (name, member)) in members.enumerate() {
                let floor = if index == 0 { floor } else { "" };
                let direct: Vec<&str> =
                    member.uses.iter().map(String::as_str).filter(|it| !self.follows(member, it)).collect();
                let _ = match direct.is_empty() {
                    true => writeln!(text, "{floor:<11} {name}"),
                    false => writeln!(text, "{floor:<11} {name:<11} -> {}", direct.join(", ")),
                };
            }
        }
        text
    }

    /// Returns whether another dependency of a member leads to the crate `name`.
    fn follows(&self, member: &Member, name: &str) -> bool {
        member.uses.iter().filter(|other| *other != name).any(|other| self.reaches(other, name))
    }

    fn reaches(&self, from: &str, to: &str) -> bool {
        let uses = self.0.get(from).map(|member| &member.uses);
        uses.is_some_and(|uses| uses.iter().any(|other| other == to || self.reaches(other, to)))
    }
}

/// Returns the floor of a crate in this folder of the repository.
fn floor_of(folder: &Path) -> String {
    let mut names = folder.iter().filter_map(|name| name.to_str());
    match names.next() {
        Some("crates") => names.next().unwrap_or_default().to_owned(),
        first => first.unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Dependency;

    fn house(crates: &[(&str, &str, &[&str], &[&str])]) -> House {
        let dependency = |kind: Option<&str>| {
            let kind = kind.map(str::to_owned);
            move |name: &&str| Dependency {
                name: format!("doorbell-{name}"),
                kind: kind.clone(),
                req: "*".to_owned(),
                path: None,
            }
        };
        let package = |&(name, folder, uses, tests_use): &(&str, &str, &[&str], &[&str])| Package {
            name: format!("doorbell-{name}"),
            manifest_path: Path::new("/root").join(folder).join(name).join("Cargo.toml"),
            dependencies: uses
                .iter()
                .map(dependency(None))
                .chain(tests_use.iter().map(dependency(Some("dev"))))
                .collect(),
            publish: None,
        };
        House::new(crates.iter().map(package).collect(), Path::new("/root"))
    }

    #[test]
    fn arrows_to_higher_floors_are_found_and_testing_is_free_for_tests() {
        let house = house(&[
            ("wire", "crates/rnic", &[], &[]),
            ("exchange", "crates/messages", &["wire"], &["rng"]),
            ("farmem", "crates/memory", &["exchange", "sim"], &["sim"]),
            ("steer", "crates/memory", &["wire"], &["sim"]),
            ("sim", "crates/evaluation", &["farmem"], &[]),
            ("rng", "crates/testing", &["exchange"], &[]),
            ("cli", "crates/tools", &["rng", "sim"], &[]),
        ]);
        let up: Vec<String> = house.up().into_iter().collect();
        assert_eq!(up, ["farmem uses sim", "tests of steer use sim"]);
    }

    #[test]
    fn the_drawing_leaves_out_arrows_that_follow_from_others() {
        let house = house(&[
            ("wire", "crates/rnic", &[], &[]),
            ("verbs", "crates/rnic", &["wire"], &[]),
            ("exchange", "crates/messages", &["verbs", "wire"], &[]),
        ]);
        let drawing = house.drawing();
        let lines: Vec<String> =
            drawing.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(lines, ["messages exchange -> verbs", "rnic verbs -> wire", "wire"]);
    }
}
