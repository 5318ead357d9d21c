//! `cargo xtask dist`: an archive of the command `doorbell`, the libraries that `doorbell run` needs, manual pages and
//! shell completions. `cargo install` installs only the command.

use std::fs;
use std::path::{Path, PathBuf};

use crate::programs::DROP_INS;
use crate::shell::{command, output_of, root, run, target};
use crate::{action, place, programs};

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

/// Builds the archive in a folder, and returns its path.
pub(crate) fn build(out: Option<&Path>) -> Result<PathBuf, String> {
    programs::build()?;
    let out = match out {
        Some(given) => std::path::absolute(given).map_err(|error| format!("{}: {error}", given.display()))?,
        None => target().join("dist"),
    };
    let name = format!("doorbell-{}-{}", env!("CARGO_PKG_VERSION"), host()?);
    let printed = place::own().join("printed");
    print(&programs::doorbell(), &printed)?;
    pack(&programs::built(), Some(&printed), &place::own().join("pack"), &out, &name)
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

/// Returns the target triple of this machine.
fn host() -> Result<String, String> {
    let about = output_of(command("rustc", &["-vV"]))?;
    let line = about.lines().find_map(|line| line.strip_prefix("host: "));
    line.map(str::to_owned).ok_or_else(|| format!("`rustc -vV` prints no line `host: ...`:\n{about}"))
}

/// Packs [`BUILT`] and [`DROP_INS`] from the folder `built`, [`TEXTS`], and all files of `printed` into
/// `out/NAME.tar.gz`. In the archive, all files are below a folder NAME. `place` is the working folder.
fn pack(built: &Path, printed: Option<&Path>, place: &Path, out: &Path, name: &str) -> Result<PathBuf, String> {
    let same_path = DROP_INS.iter().map(|path| (*path, *path));
    let files = BUILT.into_iter().chain(same_path).map(|(from, to)| (built.join(from), to));
    let texts = TEXTS.iter().map(|text| (root().join(text), *text));
    let folder = place.join(name);
    empty(&folder)?;
    for (from, to) in files.chain(texts) {
        let to = folder.join(to);
        let failed = |error| format!("{} could not be copied to {}: {error}", from.display(), to.display());
        fs::create_dir_all(to.parent().unwrap_or(&folder)).map_err(failed)?;
        fs::copy(&from, &to).map_err(failed)?;
    }
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
    fs::create_dir_all(out).map_err(|error| format!("{}: {error}", out.display()))?;
    let published = out.join(format!("{name}.tar.gz"));
    place::publish(&archive, &published)?;
    Ok(published)
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

/// Unpacks the archive in another folder, and runs the command from this folder. Also runs the files with which other
/// projects use the archive in their CI.
pub(crate) fn check() -> Result<(), String> {
    let archive = build(Some(&place::own().join("dist")))?;
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
    action::check(&archive, &place::own().join("ci"))
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
        let (put, out) = (place.join("place"), place.join("out"));
        let archive = pack(&built, None, &put, &out, "doorbell-1").expect("all files of the archive exist");
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
        pack(&built, None, &put, &out, "doorbell-1").expect("the archive can be made again");
        assert_eq!(first, fs::read(&archive).expect("the archive was made"));
        fs::remove_file(built.join("doorbell")).expect("the file was written");
        let missing = pack(&built, None, &put, &out, "doorbell-1").expect_err("one file is missing");
        assert!(missing.contains("doorbell could not be copied"), "{missing}");
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
