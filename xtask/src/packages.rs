//! Checks of the crates that users add: their manifests, their combinations of features, and a build from the packaged
//! files alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::shell::{cargo, command, elsewhere, output_of, root, run, succeeds, target};
use crate::test::StepEnd;
use crate::workspace::{self, Package};
use crate::{place, programs};

/// Crates that users add or install. All other published crates are dependencies of these.
const ADDED: [&str; 3] = ["doorbell", "doorbell-wire", INSTALLED];

/// Crate with the command. It has no features, so [`install`] compiles its only combination.
const INSTALLED: &str = "doorbell-cli";

/// Files that each package needs.
const NEEDED: [&str; 3] = ["README.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// Parts of a crate's manifest that a registry shows, and its features.
#[derive(Deserialize)]
struct Described {
    #[serde(flatten)]
    package: Package,
    version: String,
    description: Option<String>,
    license: Option<String>,
    readme: Option<String>,
    keywords: Vec<String>,
    categories: Vec<String>,
    features: BTreeMap<String, Vec<String>>,
    /// Oldest version of Rust that the crate supports.
    rust_version: Option<String>,
}

impl Described {
    /// Returns the names of the texts that the manifest lacks.
    fn lacking(&self) -> Vec<&'static str> {
        let texts = [
            ("description", self.description.is_some()),
            ("license", self.license.is_some()),
            ("readme", self.readme.is_some()),
            ("keywords", !self.keywords.is_empty()),
            ("categories", !self.categories.is_empty()),
            ("rust-version", self.rust_version.is_some()),
        ];
        texts.into_iter().filter(|(_, is_there)| !is_there).map(|(name, _)| name).collect()
    }

    /// Returns the combinations of features to check: none, each feature alone, and all.
    fn combinations(&self) -> BTreeSet<String> {
        let names: Vec<&str> = self.features.keys().map(String::as_str).filter(|name| *name != "default").collect();
        let alone = names.iter().map(|name| (*name).to_owned());
        alone.chain([String::new(), names.join(",")]).collect()
    }
}

/// Returns the dependencies of published crates that a registry would reject, and the crates that are published without
/// need.
fn violations(packages: &[&Package]) -> Vec<String> {
    let published: BTreeMap<&str, &Package> =
        packages.iter().filter(|package| package.is_published()).map(|package| (&*package.name, *package)).collect();
    let mut found = Vec::new();
    for (name, package) in &published {
        for used in package.dependencies.iter().filter(|used| used.path.is_some()) {
            let is_dev = used.kind.as_deref() == Some("dev");
            let has_version = used.req != "*";
            let problem = match published.contains_key(&*used.name) {
                true if !is_dev && !has_version => "has no version",
                false if !is_dev => "is not published",
                false if has_version => "is not published, so it must have no version",
                _ => continue,
            };
            found.push(format!("{name} depends on {}, which {problem}", used.name));
        }
    }
    let mut needed = BTreeSet::new();
    let mut open: Vec<&str> = ADDED.to_vec();
    while let Some(name) = open.pop() {
        if let Some(package) = published.get(name)
            && needed.insert(name)
        {
            let used = package.dependencies.iter().filter(|used| used.kind.as_deref() != Some("dev"));
            open.extend(used.map(|used| &*used.name));
        }
    }
    let surplus = published.keys().filter(|name| !needed.contains(**name));
    found.extend(surplus.map(|name| format!("{name} is published, but no crate that users add needs it")));
    found
}

/// Returns the published crates.
fn published() -> Result<Vec<Described>, String> {
    let mut packages: Vec<Described> = workspace::described(&root())?;
    packages.retain(|described| described.package.is_published());
    Ok(packages)
}

/// Checks the manifests of published crates, and that their packages contain a README and the licences.
pub(crate) fn check() -> Result<(), String> {
    let all: Vec<Package> = workspace::packages(&root())?;
    let mut wrong = violations(&all.iter().collect::<Vec<_>>());
    for described in published()? {
        let name = &described.package.name;
        wrong.extend(described.lacking().into_iter().map(|lacking| format!("the manifest of {name} has no {lacking}")));
        let files = output_of(cargo(&["package", "--list", "--quiet", "--allow-dirty", "--package", name]))?;
        let missing = NEEDED.iter().filter(|needed| !files.lines().any(|file| file == **needed));
        wrong.extend(missing.map(|needed| format!("the package of {name} lacks {needed}")));
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// Checks that each published crate compiles with no feature, with each feature alone and with all features. The
/// compiler is the oldest one that the crates support. If it is also the one of this run, [`install`] compiles
/// [`INSTALLED`] in the same way, so this check leaves it out.
pub(crate) fn features() -> StepEnd {
    let checked = || -> Result<Option<String>, String> {
        let packages = published()?;
        let oldest = packages.iter().find_map(|described| described.rust_version.clone()).unwrap_or_default();
        let compiler = Compiler::of(&oldest)?;
        let is_compiled_later = |described: &Described| {
            described.package.name == INSTALLED && described.features.is_empty() && compiler == Compiler::Oldest
        };
        for described in packages.iter().filter(|described| !is_compiled_later(described)) {
            for combination in described.combinations() {
                let name = &*described.package.name;
                let mut check = compiler.cargo(&["check", "--quiet", "--package", name]);
                check.args(["--no-default-features", "--features", &combination]);
                run(check)?;
            }
        }
        let left_out = format!("checked with another Rust: `rustup toolchain install {oldest}` adds the oldest one");
        Ok((compiler == Compiler::Other).then_some(left_out))
    };
    match checked() {
        Ok(None) => StepEnd::Passed,
        Ok(Some(left_out)) => StepEnd::LeftOut(left_out),
        Err(why) => StepEnd::Failed(why),
    }
}

/// Compiler of the check of features.
#[derive(Debug, PartialEq, Eq)]
enum Compiler {
    /// The compiler of this run is the oldest one.
    Oldest,
    /// The oldest compiler, which rustup has under this name.
    Installed(String),
    /// The compiler of this run, since the oldest one is not installed.
    Other,
}

impl Compiler {
    /// Returns the compiler for `oldest`, such as 1.95.
    fn of(oldest: &str) -> Result<Self, String> {
        let version = output_of(command("rustc", &["--version"]))?;
        if is_of(&version, oldest) {
            return Ok(Self::Oldest);
        }
        let has_it = succeeds(command("rustup", &["run", oldest, "cargo", "--version"]));
        Ok(if has_it { Self::Installed(oldest.to_owned()) } else { Self::Other })
    }

    fn cargo(&self, arguments: &[&str]) -> Command {
        let Self::Installed(name) = self else { return cargo(arguments) };
        let mut cargo = command("rustup", &["run", name, "cargo"]);
        // The files of two compilers in one folder would replace each other.
        cargo.args(arguments).env("CARGO_TARGET_DIR", target().join("oldest"));
        cargo
    }
}

/// Returns whether `rustc --version` printed a version of the release `release`, such as 1.95.
fn is_of(printed: &str, release: &str) -> bool {
    let version = printed.split(' ').nth(1).and_then(|version| version.strip_prefix(release));
    version.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Packs the published crates into a folder, and returns their archives.
pub(crate) fn archives(folder: &Path) -> Result<Vec<PathBuf>, String> {
    pack(&published()?, folder)
}

/// Rehearses the publication of all crates, without an upload. The registry only states which crates it has.
/// `--no-verify` compiles nothing, since [`install`] compiles the packaged files.
pub(crate) fn rehearse() -> Result<(), String> {
    let mut publish = cargo(&["publish", "--workspace", "--dry-run", "--no-verify", "--allow-dirty", "--quiet"]);
    publish.env("CARGO_TARGET_DIR", place::own().join("rehearsal"));
    output_of(publish).map(drop)
}

/// Rehearses the publication of all crates, if the registry can be reached.
pub(crate) fn rehearsal() -> StepEnd {
    match rehearse() {
        Err(why) if is_unreachable(&why) => StepEnd::LeftOut(format!("the registry cannot be reached: {why}")),
        other => other.into(),
    }
}

/// Returns whether cargo failed because it cannot download the index of the registry.
fn is_unreachable(why: &str) -> bool {
    why.contains("download of ") || why.contains("--offline was specified")
}

/// Packs crates below the folder `place`, and returns their archives.
fn pack(packages: &[Described], place: &Path) -> Result<Vec<PathBuf>, String> {
    let mut pack = cargo(&["package", "--offline", "--no-verify", "--allow-dirty", "--quiet"]);
    for described in packages {
        pack.args(["--package", &described.package.name]);
    }
    pack.env("CARGO_TARGET_DIR", place);
    run(pack)?;
    let archive = |described: &Described| format!("{}-{}.crate", described.package.name, described.version);
    Ok(packages.iter().map(|described| place.join("package").join(archive(described))).collect())
}

/// Builds the crates that users add from their packaged files alone, as a registry would give them, and installs the
/// command. The dependencies of other projects are those of this run.
pub(crate) fn install() -> Result<(), String> {
    let place = place::own().join("packages");
    let sources = place.join("sources");
    let failed = |error| format!("{} could not be written: {error}", sources.display());
    fs::create_dir_all(&sources).map_err(failed)?;
    let packages = published()?;
    let archives = pack(&packages, &place)?;
    let folders: Vec<(&str, String)> = packages
        .iter()
        .map(|described| (&*described.package.name, format!("{}-{}", described.package.name, described.version)))
        .collect();
    for archive in archives {
        // Files in an archive have the same old time in each version. Cargo compares times, and the packages have the
        // same names in each run's folder, so without `--touch` cargo would reuse the builds of an earlier run.
        run(command("tar", &["-xzf", &archive.to_string_lossy(), "--touch", "-C", &sources.to_string_lossy()]))?;
    }
    fs::write(sources.join("Cargo.toml"), workspace_of(&folders)).map_err(failed)?;
    fs::copy(root().join("Cargo.lock"), sources.join("Cargo.lock")).map_err(failed)?;
    let there = |arguments: &[&str]| elsewhere(&sources, arguments);
    // Remove the crates from the lock file that are not published.
    run(there(&["update", "--workspace", "--offline", "--quiet"]))?;
    let (command_folder, installed) = (folder_of(&folders, INSTALLED)?, place.join("installed"));
    let mut install = there(&["install", "--offline", "--locked", "--debug", "--no-track", "--quiet"]);
    install.arg("--path").arg(sources.join(command_folder)).arg("--root").arg(&installed);
    run(install)?;
    // With the command and its features, the build of both libraries shares all other crates with the installation.
    // [`features`] checks the libraries with their own features alone.
    let mut build = there(&["build", "--offline", "--locked", "--quiet", "--no-default-features"]);
    build.args(["--features", "doorbell-wire/std"]);
    for name in ADDED {
        build.args(["--package", name]);
    }
    run(build)?;
    check_installed(&installed)
}

/// Checks the installed command and library. Only the library may define functions of libibverbs and of the C library.
fn check_installed(installed: &Path) -> Result<(), String> {
    let cache = installed.join("cache");
    let doorbell = |arguments: &[&str]| {
        let mut doorbell = command(installed.join("bin/doorbell"), arguments);
        doorbell.env("XDG_CACHE_HOME", &cache);
        for variable in ["DOORBELL_PRELOAD_LIB", "LD_PRELOAD", "LD_LIBRARY_PATH"] {
            doorbell.env_remove(variable);
        }
        output_of(doorbell)
    };
    let cost = doorbell(&["wire", "cost", "--op", "write", "--size", "1"])?;
    if !cost.contains("78") {
        return Err(format!("a WRITE of 1 B takes 78 B, which is missing in:\n{cost}"));
    }
    let exported = defined(&installed.join("bin/libdoorbell_ibverbs"), &["--dynamic"])?;
    for function in ["ibv_open_device", "rdma_connect", "sigaction"] {
        if !exported.contains(function) {
            return Err(format!("the installed library does not export {function}"));
        }
    }
    if let Some(symbol) = exported.iter().find(|symbol| symbol.starts_with("_R") || symbol.starts_with("_ZN")) {
        return Err(format!("the installed library exports {symbol}, allowed are functions of C"));
    }
    if defined(&installed.join("bin/doorbell"), &[])?.contains("ibv_open_device") {
        return Err("the installed command has the functions of the library".to_owned());
    }
    let variables = doorbell(&["env"])?;
    let expected = format!("LD_PRELOAD={}\n", installed.join("bin/libdoorbell_ibverbs").display());
    if !variables.contains(&expected) {
        return Err(format!("`doorbell env` does not print {expected:?}:\n{variables}"));
    }
    // This step installs no package, and each machine with Rust has a linker with a C compiler.
    let opened = programs::compile("cc", "opened", &["-ldl"])?;
    let said = doorbell(&["run", "--", &opened])?;
    if !said.lines().any(|line| line == "doorbell0") {
        return Err(format!("there is no doorbell0 in:\n{said}"));
    }
    let is_drop_in = |line: &str| line.contains(&*cache.to_string_lossy()) && line.ends_with("/libibverbs.so.1");
    if said.lines().any(is_drop_in) { Ok(()) } else { Err(format!("there is no drop-in library in:\n{said}")) }
}

/// Returns the symbols that a file defines, without their versions. Without options, these are the symbols for
/// debuggers.
fn defined(file: &Path, options: &[&str]) -> Result<BTreeSet<String>, String> {
    let mut list = command("nm", &["--defined-only"]);
    list.args(options).arg(file);
    let listed = output_of(list)?;
    let name = |line: &str| line.split_whitespace().last().and_then(|name| name.split('@').next()).map(str::to_owned);
    Ok(listed.lines().filter_map(name).collect())
}

fn folder_of<'a>(folders: &'a [(&str, String)], name: &str) -> Result<&'a str, String> {
    let found = folders.iter().find(|(other, _)| *other == name).map(|(_, folder)| &**folder);
    found.ok_or_else(|| format!("{name} is not published"))
}

/// Returns the manifest of a workspace of unpacked packages. In it, the packages are dependencies of each other, since
/// the registry may not have them yet.
fn workspace_of(folders: &[(&str, String)]) -> String {
    let mut text = String::from("[workspace]\nresolver = \"3\"\nmembers = [");
    for (_, folder) in folders {
        let _ = write!(text, "\"{folder}\", ");
    }
    text.push_str("]\n\n[patch.crates-io]\n");
    for (name, folder) in folders {
        let _ = writeln!(text, "{name} = {{ path = \"{folder}\" }}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Dependency;

    fn package(name: &str, publish: Option<Vec<String>>, uses: &[(&str, Option<&str>, &str)]) -> Package {
        let dependency = |&(name, kind, req): &(&str, Option<&str>, &str)| Dependency {
            name: name.to_owned(),
            kind: kind.map(str::to_owned),
            req: req.to_owned(),
            path: Some(Path::new("/root").join(name)),
        };
        Package {
            name: name.to_owned(),
            manifest_path: Path::new("/root").join(name).join("Cargo.toml"),
            dependencies: uses.iter().map(dependency).collect(),
            publish,
        }
    }

    #[test]
    fn dependencies_that_a_registry_rejects_are_found() {
        let packages = [
            package(
                "doorbell",
                None,
                &[
                    ("doorbell-wire", None, "*"),
                    ("doorbell-testing", None, "^0.1"),
                    ("doorbell-testing", Some("dev"), "^0.1"),
                    ("doorbell-testing", Some("dev"), "*"),
                ],
            ),
            package("doorbell-wire", None, &[]),
            package("doorbell-testing", Some(Vec::new()), &[]),
            package("doorbell-other", None, &[("doorbell-wire", None, "^0.1")]),
        ];
        assert_eq!(
            violations(&packages.iter().collect::<Vec<_>>()),
            [
                "doorbell depends on doorbell-wire, which has no version",
                "doorbell depends on doorbell-testing, which is not published",
                "doorbell depends on doorbell-testing, which is not published, so it must have no version",
                "doorbell-other is published, but no crate that users add needs it",
            ]
        );
    }

    #[test]
    fn each_feature_is_checked_alone_and_with_the_others() {
        let features = |names: &[&str]| {
            let features = names.iter().map(|name| ((*name).to_owned(), Vec::new())).collect();
            let described = Described {
                package: package("doorbell", None, &[]),
                version: "0.1.0".to_owned(),
                description: None,
                license: Some("MIT".to_owned()),
                readme: None,
                keywords: Vec::new(),
                categories: Vec::new(),
                features,
                rust_version: None,
            };
            assert_eq!(described.lacking(), ["description", "readme", "keywords", "categories", "rust-version"]);
            described.combinations().into_iter().collect::<Vec<_>>()
        };
        assert_eq!(features(&[]), [""]);
        assert_eq!(features(&["default", "std"]), ["", "std"]);
        assert_eq!(features(&["a", "b"]), ["", "a", "a,b", "b"]);
    }

    #[test]
    fn a_missing_network_is_no_failure_of_a_rehearsal() {
        assert!(is_unreachable("`cargo publish` failed: exit status: 101\nerror: download of config.json failed\n"));
        assert!(!is_unreachable("error: failed to verify manifest at `Cargo.toml`\n"));
    }

    #[test]
    fn releases_of_rust_are_compared_as_wholes() {
        for (printed, is_it) in
            [("rustc 1.95.0 (59807616e 2026-04-14)", true), ("rustc 1.950.0 (x)", false), ("rustc 1.96.0 (x)", false)]
        {
            assert_eq!(is_of(printed, "1.95"), is_it, "{printed}");
        }
    }

    #[test]
    fn unpacked_packages_depend_on_each_other() {
        let folders = [("doorbell", "doorbell-0.1.0".to_owned()), ("doorbell-wire", "doorbell-wire-0.1.0".to_owned())];
        let manifest: toml::Table = toml::from_str(&workspace_of(&folders)).expect("a manifest is TOML");
        assert_eq!(manifest["workspace"]["members"].as_array().map(Vec::len), Some(2));
        assert_eq!(manifest["patch"]["crates-io"]["doorbell-wire"]["path"].as_str(), Some("doorbell-wire-0.1.0"));
        assert_eq!(folder_of(&folders, "doorbell"), Ok("doorbell-0.1.0"));
        assert_eq!(folder_of(&folders, "doorbell-cli"), Err("doorbell-cli is not published".to_owned()));
    }
}
