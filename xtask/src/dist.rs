//! `cargo xtask dist`: artefacts with the command `doorbell`, the libraries that `doorbell run` needs, manual pages and
//! shell completions.

mod chroot;
mod container;
mod debian;
mod gitlab;
pub(crate) mod wheel;
mod zig;

use std::fs;
use std::path::{Path, PathBuf};

use crate::place::Lock;
use crate::programs::DROP_INS;
use crate::shell::{cargo, command, host, output_of, root, run, target};
use crate::test::StepEnd;
use crate::{action, packages, peers, place, programs};
use zig::{Machine, Purpose};

/// Options of `cargo xtask dist`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Directory of the artefacts [default: `dist` in the target directory]
    #[arg(long, value_name = "DIRECTORY")]
    out: Option<PathBuf>,
    /// Makes all artefacts: the archive, the Debian packages, the crates and the wheels for both processors. Prints
    /// their sizes and digests, and writes the digests to SHA256SUMS.
    #[arg(long)]
    all: bool,
    /// Makes only the wheel `doorbell-rdma`. The first run installs ziglang from PyPI, which links the programs, into
    /// the target directory.
    #[arg(long, conflicts_with = "all")]
    wheel: bool,
    /// Processor of the wheel [default: that of this machine]
    #[arg(long, value_name = "PROCESSOR", requires = "wheel", conflicts_with = "all")]
    target: Option<Machine>,
    /// Also compiles the programs twice, each time from nothing. Both builds must have the same bytes.
    #[arg(long, requires = "all")]
    rebuild: bool,
}

/// Files of which the artefacts are made.
struct Sources {
    /// Folder with [`BUILT`] and [`DROP_INS`], without information for debuggers.
    built: PathBuf,
    /// Folder with completions and manual pages.
    printed: PathBuf,
}

/// Built files of the archive, each with its name in the build directory and its path in the archive. `doorbell run`
/// finds the library at this path relative to the command. The drop-in libraries have the same path in both.
const BUILT: [(&str, &str); 2] =
    [("doorbell", "bin/doorbell"), ("libdoorbell_ibverbs.so", "lib/libdoorbell_ibverbs.so")];

/// Files of the repository that go into the archive.
const TEXTS: [&str; 4] = ["CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT", "README.md"];

/// Arguments with which the command prints shell completions, and the paths at which systems look for these texts.
const PRINTED: [(&[&str], &str); 3] = [
    (&["completions", "bash"], "share/bash-completion/completions/doorbell"),
    (&["completions", "zsh"], "share/zsh/site-functions/_doorbell"),
    (&["completions", "fish"], "share/fish/vendor_completions.d/doorbell.fish"),
];

/// Directory of manual pages.
const MANUAL: &str = "share/man/man1";

impl Sources {
    /// Prepares the files in a folder. The step of the build comes before.
    fn prepare(folder: &Path) -> Result<Self, String> {
        let sources = Self { built: folder.join("built"), printed: folder.join("printed") };
        strip(&programs::built(), &sources.built)?;
        print(&programs::doorbell(), &sources.printed)?;
        Ok(sources)
    }
}

/// Makes the files of an artefact twice, in different empty folders, and checks that they have the same bytes. Moves
/// them to `out`, and returns their paths there.
fn publish(
    name: &str,
    out: &Path,
    make: impl Fn(&Path) -> Result<Vec<PathBuf>, String>,
) -> Result<Vec<PathBuf>, String> {
    let make = |turn: &str| {
        let folder = place::own_file(&format!("{}-{turn}", name.replace(' ', "-")));
        empty(&folder)?;
        make(&folder)
    };
    let made = || -> Result<Vec<PathBuf>, String> {
        let (first, second) = (make("first")?, make("second")?);
        compare(&first, &second)?;
        fs::create_dir_all(out).map_err(|error| format!("{}: {error}", out.display()))?;
        let publish = |file: &PathBuf| {
            let published = out.join(file.file_name().unwrap_or_default());
            place::publish(file, &published).map(|()| published)
        };
        first.iter().map(publish).collect()
    };
    made().map_err(|why| format!("{name}: {why}"))
}

/// Makes the archive or all artefacts, and prints their paths.
pub(crate) fn make(options: &Options) -> Result<(), String> {
    let out = match &options.out {
        Some(given) => std::path::absolute(given).map_err(|error| format!("{}: {error}", given.display()))?,
        None => target().join("dist"),
    };
    let (machines, left_out) = machines(options)?;
    programs::build()?;
    if options.rebuild {
        rebuild(&machines)?;
    }
    let mut published = Vec::new();
    if !options.wheel {
        let sources = Sources::prepare(&place::own().join("sources"))?;
        published = publish("archive", &out, |folder| archive(&sources, folder))?;
        if options.all {
            published.extend(publish("Debian packages", &out, |folder| debian::packages(&sources, folder))?);
            packages::rehearse()?;
            published.extend(publish("crates", &out, packages::archives)?);
        }
    }
    for machine in machines {
        let wheels = wheel::make(machine, Purpose::Users, &out)?;
        if Ok(machine) != Machine::of_host() {
            for wheel in &wheels {
                let unchecked = wheel::emulated(machine, wheel).map_err(|why| format!("{}: {why}", wheel.display()))?;
                unchecked.into_iter().for_each(|why| eprintln!("LEFT OUT: {why}"));
            }
        }
        published.extend(wheels);
    }
    if options.all {
        list(&published, &out)?;
    } else {
        published.iter().for_each(|file| println!("{}", file.display()));
    }
    left_out.into_iter().for_each(|why| eprintln!("LEFT OUT: {why}"));
    Ok(())
}

/// Returns the processors of the wheels, and the reasons for processors that this machine cannot link for.
fn machines(options: &Options) -> Result<(Vec<Machine>, Vec<String>), String> {
    if !options.wheel && !options.all {
        return Ok((Vec::new(), Vec::new()));
    }
    let host = Machine::of_host()?;
    let mut wanted = if options.all { Machine::ALL.to_vec() } else { vec![options.target.unwrap_or(host)] };
    for other in wanted.iter().filter(|machine| **machine != host) {
        peers::install_for_emulation(other.name(), other.unwinder_package());
    }
    if !options.all {
        return Ok((wanted, Vec::new()));
    }
    let mut left_out = Vec::new();
    wanted.retain(|machine| {
        let missing = machine.missing();
        let is_there = missing.is_none();
        left_out.extend(missing.map(|why| format!("the wheel for {}: {why}", machine.name())));
        is_there
    });
    Ok((wanted, left_out))
}

/// Prints path, size and SHA-256 of files in the folder `out`, and writes the digests to `SHA256SUMS` there.
fn list(files: &[PathBuf], out: &Path) -> Result<(), String> {
    let mut digest = command("sha256sum", &["--"]);
    digest.args(files.iter().filter_map(|file| file.file_name())).current_dir(out);
    let digests = output_of(digest)?;
    let sums = out.join("SHA256SUMS");
    fs::write(&sums, &digests).map_err(|error| format!("{}: {error}", sums.display()))?;
    for (file, line) in files.iter().zip(digests.lines()) {
        let bytes = fs::metadata(file).map_err(|error| format!("{}: {error}", file.display()))?.len();
        let digest = line.split(' ').next().unwrap_or_default();
        println!("{}  {bytes} B  sha256 {digest}", file.display());
    }
    Ok(())
}

/// Compiles the programs twice, also those of wheels for these processors, and compares the files without information
/// for debuggers.
fn rebuild(machines: &[Machine]) -> Result<(), String> {
    // The build id depends on the paths of generated sources, so both builds use the same folder.
    let folder = target().join("xtask").join("rebuild");
    let _alone = Lock::take(&folder.with_extension("lock"), "the folder of repeated builds")?;
    let build = |turn: &str| {
        empty(&folder)?;
        let mut build = cargo(programs::BUILD);
        build.arg("--target-dir").arg(&folder);
        run(build)?;
        let rebuilt = place::own().join("rebuilt").join(turn);
        let built = rebuilt.join("release");
        strip(&folder.join("release"), &built)?;
        let names = BUILT.into_iter().map(|(name, _)| name).chain(DROP_INS);
        let mut files: Vec<PathBuf> = names.map(|name| built.join(name)).collect();
        for machine in machines {
            let linked = rebuilt.join(machine.name());
            zig::link(*machine, Purpose::Users, &folder, &linked)?;
            files.extend(zig::LINKED.into_iter().chain(DROP_INS).map(|name| linked.join(name)));
        }
        Ok::<_, String>(files)
    };
    let (first, second) = (build("first")?, build("second")?);
    fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    compare(&first, &second)
}

/// Checks that two lists have files of the same names and bytes.
fn compare(first: &[PathBuf], second: &[PathBuf]) -> Result<(), String> {
    if first.len() != second.len() {
        return Err(format!("{} files were made first, and {} then", first.len(), second.len()));
    }
    let read = |file: &Path| fs::read(file).map_err(|error| format!("{}: {error}", file.display()));
    for (one, other) in first.iter().zip(second) {
        if one.file_name() != other.file_name() || read(one)? != read(other)? {
            let (one, other) = (one.display(), other.display());
            return Err(format!("{one} and {other} differ: both must have the same name and bytes"));
        }
    }
    Ok(())
}

/// Copies [`BUILT`] and [`DROP_INS`] to another folder, without the information for debuggers.
fn strip(built: &Path, to: &Path) -> Result<(), String> {
    empty(to)?;
    for (name, _) in BUILT {
        let mut strip = command("strip", &["--strip-unneeded", "--remove-section=.comment", "-o"]);
        strip.arg(to.join(name)).arg(built.join(name));
        run(strip)?;
    }
    DROP_INS.iter().try_for_each(|name| copy(&built.join(name), &to.join(name)))
}

/// Copies a file, and creates the folder of the copy.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let failed = |error| format!("{} could not be copied to {}: {error}", from.display(), to.display());
    fs::create_dir_all(to.parent().unwrap_or(to)).map_err(failed)?;
    fs::copy(from, to).map(drop).map_err(failed)
}

/// Writes the completions and manual pages that the command prints to a folder.
fn print(doorbell: &Path, folder: &Path) -> Result<(), String> {
    empty(folder)?;
    for (arguments, to) in PRINTED {
        let to = folder.join(to);
        let failed = |error| format!("{} could not be written: {error}", to.display());
        fs::create_dir_all(to.parent().unwrap_or(folder)).map_err(failed)?;
        fs::write(&to, output_of(command(doorbell, arguments))?).map_err(failed)?;
    }
    run(command(doorbell, &["man", "--out", &folder.join(MANUAL).to_string_lossy()]))
}

/// Makes the archive in a folder.
fn archive(sources: &Sources, folder: &Path) -> Result<Vec<PathBuf>, String> {
    let name = format!("doorbell-{}-{}", env!("CARGO_PKG_VERSION"), host()?);
    pack(&sources.built, Some(&sources.printed), folder, &name).map(|archive| vec![archive])
}

/// Packs [`BUILT`] and [`DROP_INS`] from the folder `built`, [`TEXTS`], and all files of `printed` into
/// `place/NAME.tar.gz`. In the archive, all files are below a folder NAME.
fn pack(built: &Path, printed: Option<&Path>, place: &Path, name: &str) -> Result<PathBuf, String> {
    let same_path = DROP_INS.iter().map(|path| (*path, *path));
    let files = BUILT.into_iter().chain(same_path).map(|(from, to)| (built.join(from), to));
    let texts = TEXTS.iter().map(|text| (root().join(text), *text));
    let folder = place.join(name);
    empty(&folder)?;
    files.chain(texts).try_for_each(|(from, to)| copy(&from, &folder.join(to)))?;
    if let Some(printed) = printed {
        run(command("cp", &["--recursive", &printed.join(".").to_string_lossy(), &folder.to_string_lossy()]))?;
    }
    let archive = folder.with_file_name(format!("{name}.tar.gz"));
    // With these options, the same files give the same archive, regardless of the user and the time.
    let same = ["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "--mode=u+rw,go-w,a+rX"];
    let (place, to) = (place.to_string_lossy().into_owned(), archive.to_string_lossy().into_owned());
    let rest = ["--use-compress-program=gzip -9n", "--create", "--file", &to, "--directory", &place, name];
    run(command("tar", &[&same[..], &rest].concat()))?;
    fs::remove_dir_all(&folder).map_err(|error| format!("{} could not be removed: {error}", folder.display()))?;
    Ok(archive)
}

fn empty(folder: &Path) -> Result<(), String> {
    let fresh = || -> std::io::Result<()> {
        if folder.exists() {
            fs::remove_dir_all(folder)?;
        }
        fs::create_dir_all(folder)
    };
    fresh().map_err(|error| format!("{} could not be emptied: {error}", folder.display()))
}

/// Checks the archive, and runs the files with which other projects use the archive in their CI.
pub(crate) fn check_archive() -> StepEnd {
    let make = || {
        let sources = Sources::prepare(&place::own().join("archive"))?;
        publish("archive", &place::own().join("dist"), |folder| archive(&sources, folder))
    };
    let check = |archives: Vec<PathBuf>| {
        let archive = archives.first().ok_or("there is no archive")?;
        check_unpacked(archive)?;
        action::check(archive, &place::own().join("ci"))?;
        let left_out = [gitlab::check(archive)?, container::check(archive)?];
        Ok::<Vec<String>, String>(left_out.into_iter().flatten().collect())
    };
    ended(make().and_then(check))
}

/// Returns the end of a step in which parts could not run, for these reasons.
fn ended(left_out: Result<Vec<String>, String>) -> StepEnd {
    match left_out {
        Ok(reasons) if reasons.is_empty() => StepEnd::Passed,
        Ok(reasons) => StepEnd::LeftOut(reasons.join("; ")),
        Err(why) => StepEnd::Failed(why),
    }
}

/// Unpacks the archive in another folder, and runs the command from this folder.
fn check_unpacked(archive: &Path) -> Result<(), String> {
    let place = place::own().join("unpacked");
    empty(&place)?;
    run(command("tar", &["-xzf", &archive.to_string_lossy(), "-C", &place.to_string_lossy()]))?;
    let folder = only_entry(&place)?;
    let doorbell = |arguments: &[&str]| {
        let mut doorbell = command(folder.join("bin/doorbell"), arguments);
        // The command must find the library of the archive.
        for variable in ["DOORBELL_PRELOAD_LIB", "LD_PRELOAD", "LD_LIBRARY_PATH"] {
            doorbell.env_remove(variable);
        }
        output_of(doorbell)
    };
    let variables = doorbell(&["env"])?;
    for (variable, path) in
        [("LD_PRELOAD", "bin/../lib/libdoorbell_ibverbs.so"), ("LD_LIBRARY_PATH", "bin/../lib/doorbell")]
    {
        let expected = format!("{variable}={}\n", folder.join(path).display());
        if !variables.contains(&expected) {
            return Err(format!("`doorbell env` does not print {expected:?}:\n{variables}"));
        }
    }
    for file in PRINTED
        .iter()
        .map(|(_, file)| Path::new(file).to_owned())
        .chain([Path::new(MANUAL).join("doorbell-bench-bw.1")])
    {
        let length = fs::metadata(folder.join(&file)).map(|about| about.len());
        if !length.as_ref().is_ok_and(|length| *length > 0) {
            return Err(format!("the archive has no {}: {length:?}", file.display()));
        }
    }
    let devices = doorbell(&["run", "--", "ibv_devices"])?;
    if !devices.contains("doorbell0") {
        return Err(format!("there is no doorbell0 in:\n{devices}"));
    }
    Ok(())
}

/// Checks the Debian packages, and runs programs in a chroot that has them.
pub(crate) fn check_packages() -> StepEnd {
    let make = || {
        let sources = Sources::prepare(&place::own().join("packages"))?;
        publish("Debian packages", &place::own().join("dist"), |folder| debian::packages(&sources, folder))
    };
    match debian::missing() {
        Some(why) => StepEnd::LeftOut(why),
        None => ended(make().and_then(|packages| debian::check(&packages))),
    }
}

/// Returns the only entry of a folder.
fn only_entry(folder: &Path) -> Result<PathBuf, String> {
    let failed = |error| format!("{} could not be read: {error}", folder.display());
    let entries: Vec<_> = fs::read_dir(folder).map_err(failed)?.collect::<Result<_, _>>().map_err(failed)?;
    match &entries[..] {
        [entry] => Ok(entry.path()),
        _ => Err(format!("the archive has {} entries at its top, allowed is one folder", entries.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_have_one_folder_and_are_reproducible() {
        let home = tempfile::tempdir().expect("a temporary folder can be created");
        let place = home.path();
        let built = place.join("built");
        empty(&built.join("lib/doorbell")).expect("the temporary folder can be written");
        for name in BUILT.map(|(name, _)| name).into_iter().chain(DROP_INS) {
            fs::write(built.join(name), name).expect("the temporary folder can be written");
        }
        let put = place.join("place");
        let archive = pack(&built, None, &put, "doorbell-1").expect("all files of the archive exist");
        let first = fs::read(&archive).expect("the archive was made");
        let list = output_of(command("tar", &["-tzf", &archive.to_string_lossy()])).expect("tar reads the archive");
        let files: Vec<&str> = list.lines().filter(|line| !line.ends_with('/')).collect();
        assert_eq!(
            files,
            [
                "doorbell-1/CHANGELOG.md",
                "doorbell-1/LICENSE-APACHE",
                "doorbell-1/LICENSE-MIT",
                "doorbell-1/README.md",
                "doorbell-1/bin/doorbell",
                "doorbell-1/lib/doorbell/libibverbs.so",
                "doorbell-1/lib/doorbell/libibverbs.so.1",
                "doorbell-1/lib/doorbell/librdmacm.so",
                "doorbell-1/lib/doorbell/librdmacm.so.1",
                "doorbell-1/lib/libdoorbell_ibverbs.so",
            ]
        );
        pack(&built, None, &put, "doorbell-1").expect("the archive can be made again");
        assert_eq!(first, fs::read(&archive).expect("the archive was made"));
        fs::remove_file(built.join("doorbell")).expect("the file was written");
        let missing = pack(&built, None, &put, "doorbell-1").expect_err("one file is missing");
        assert!(missing.contains("doorbell could not be copied"), "{missing}");
    }

    #[test]
    fn other_bytes_and_names_are_no_repetition() {
        let home = tempfile::tempdir().expect("a temporary folder can be created");
        let file = |name: &str, bytes: &str| {
            let path = home.path().join(name);
            fs::create_dir_all(path.parent().unwrap_or(home.path())).expect("the temporary folder can be written");
            fs::write(&path, bytes).expect("the temporary folder can be written");
            vec![path]
        };
        let first = file("first/a", "bytes");
        assert_eq!(compare(&first, &file("second/a", "bytes")), Ok(()));
        for other in [file("third/a", "other"), file("third/b", "bytes")] {
            let why = compare(&first, &other).expect_err("the files differ");
            assert!(why.contains("third"), "{why}");
        }
        assert!(compare(&first, &[]).expect_err("a file is missing").contains("1 files were made first, and 0 then"));
    }

    #[test]
    fn published_files_are_listed_with_their_digests() {
        let home = tempfile::tempdir().expect("a temporary folder can be created");
        let file = home.path().join("a");
        fs::write(&file, "abc").expect("the temporary folder can be written");
        list(&[file], home.path()).expect("the file can be read");
        let sums = fs::read_to_string(home.path().join("SHA256SUMS")).expect("the digests are written");
        // The example of FIPS 180-2.
        assert_eq!(sums, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  a\n");
        assert!(list(&[home.path().join("b")], home.path()).expect_err("there is no file").contains("sha256sum"));
    }

    /// Checks that each test step of the workflow in docs/ci.md writes packets to files that the last step keeps. Each
    /// step must use different file names.
    #[test]
    fn every_step_of_the_workflow_keeps_its_packets() {
        let page = fs::read_to_string(root().join("docs/ci.md")).expect("docs/ci.md exists");
        let steps: Vec<&str> = page.lines().filter_map(|line| line.trim().strip_prefix("run: doorbell run ")).collect();
        assert!(steps.len() >= 2, "{steps:?}");
        let captured = |step: &&str| {
            let (_, rest) = step.split_once("--pcap \"$RUNNER_TEMP/").unwrap_or_else(|| panic!("no capture: {step}"));
            rest.split('"').next().unwrap_or_default().to_owned()
        };
        let captures: std::collections::BTreeSet<String> = steps.iter().map(captured).collect();
        assert_eq!(captures.len(), steps.len(), "one step overwrites the captures of another: {steps:?}");
        let kept = page.lines().find_map(|line| line.trim().strip_prefix("path: ${{ runner.temp }}/*."));
        let kept = kept.expect("the last step keeps captures");
        assert!(captures.iter().all(|name| name.contains("%p") && name.ends_with(&format!(".{kept}"))), "{captures:?}");
    }
}
