//! Programs of a wheel, linked by zig, which has the symbols of each version of glibc and of each processor. So they
//! run on older distributions than the one of this machine.
//!
//! For the processor of this machine, only the last crates are compiled and linked again, in a copy of the release
//! build. All crates below them are those of the release build. If the settings of cargo named another linker, cargo
//! would compile all crates again.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{copy, empty, host};
use crate::peers;
use crate::place::Lock;
use crate::programs::{BUILD, DROP_INS};
use crate::shell::{cargo, command, output_of, root, run, target};

/// Packages of PyPI that link the programs.
const LINKER: &[&str] = &["ziglang==0.17.1"];

/// Newest version of glibc whose symbols the programs may need.
pub(super) const GLIBC: (u32, u32) = (2, 28);

/// Files that zig links, with the names of cargo.
pub(super) const LINKED: [&str; 3] = ["doorbell", "libdoorbell_ibverbs.so", "libdoorbell_python.so"];

/// Files with which cargo records that it has built [`LINKED`].
const RECORDS: [&str; 3] = ["bin-doorbell", "lib-doorbell_ibverbs", "lib-doorbell_python"];

/// Files in which rustc lists the sources of the libraries in [`LINKED`]. The name of the program's list has a hash.
const SOURCES: [&str; 2] = ["doorbell_ibverbs.d", "doorbell_python.d"];

/// Arguments of cargo that build the module of Python. In a build together with [`BUILD`], pyo3 would change features
/// of crates that the command needs, and cargo would compile the command twice.
const MODULE: &[&str] = &["build", "--release", "--package", "doorbell-python"];

/// Arguments that select the programs of [`BUILD`]. The other program of doorbell-cli is for `cargo install`, and zig
/// cannot link it.
const SELECTED: &[&str] = &["--bin", "doorbell", "--lib"];

/// Processor of a wheel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Machine {
    #[value(name = "x86_64")]
    X86,
    #[value(name = "aarch64")]
    Arm,
}

impl Machine {
    pub(super) const ALL: [Self; 2] = [Self::X86, Self::Arm];

    /// Returns the name in target triples, in tags of wheels and in names of programs.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::X86 => "x86_64",
            Self::Arm => "aarch64",
        }
    }

    /// Returns the name in the output of `readelf`.
    const fn name_in_elf(self) -> &'static str {
        match self {
            Self::X86 => "Advanced Micro Devices X86-64",
            Self::Arm => "AArch64",
        }
    }

    /// Returns the name of Debian's package with libgcc_s for this processor.
    pub(super) const fn unwinder_package(self) -> &'static str {
        match self {
            Self::X86 => "libgcc-s1-amd64-cross",
            Self::Arm => "libgcc-s1-arm64-cross",
        }
    }

    fn triple(self) -> String {
        format!("{}-unknown-linux-gnu", self.name())
    }

    /// Returns the folder with the libraries of C for this processor, as Debian's packages for other processors have
    /// it.
    pub(super) fn libraries(self) -> PathBuf {
        format!("/usr/{}-linux-gnu", self.name()).into()
    }

    /// Returns the processor of this machine.
    pub(super) fn of_host() -> Result<Self, String> {
        let host = host()?;
        let found = Self::ALL.into_iter().find(|machine| machine.triple() == host);
        found.ok_or_else(|| format!("wheels are for x86_64 and aarch64 with glibc, and this machine is {host}"))
    }

    /// Returns the reason why this machine cannot link for the processor.
    pub(super) fn missing(self) -> Option<String> {
        if Self::of_host() == Ok(self) {
            return None;
        }
        self.lacking(&self.library(), &unwinder_of(&self.libraries()))
    }

    /// Adds Rust's library for the processor through rustup, if the library is missing.
    pub(super) fn install_library(self) {
        if !self.library().exists() {
            peers::add_target(&self.triple());
        }
    }

    /// Returns the folder of Rust's library for the processor. The folder exists only with the library.
    fn library(self) -> PathBuf {
        let found = output_of(command("rustc", &["--print", "target-libdir", "--target", &self.triple()]));
        found.as_deref().unwrap_or_default().trim().into()
    }

    /// Returns the remedy if Rust's library in the folder `std` or the library `unwinder` does not exist.
    fn lacking(self, std: &Path, unwinder: &Path) -> Option<String> {
        let (triple, package) = (self.triple(), self.unwinder_package());
        if !std.exists() {
            return Some(format!("Rust has no library for {triple}: `rustup target add {triple}` adds it"));
        }
        (!unwinder.exists()).then(|| format!("there is no {}: Debian's {package} has it", unwinder.display()))
    }

    /// Checks that a built file is for this processor.
    pub(super) fn check(self, file: &Path) -> Result<(), String> {
        let mut read = command("readelf", &["--file-header", &file.to_string_lossy()]);
        read.env("LC_ALL", "C");
        let head = output_of(read)?;
        let found = head.lines().find_map(|line| line.trim().strip_prefix("Machine:")).map_or("", str::trim);
        let needed = self.name_in_elf();
        if found == needed { Ok(()) } else { Err(format!("{} is for {found:?}, must be for {needed}", file.display())) }
    }
}

/// Installs zig, and returns the path of a Python interpreter that has it.
pub(super) fn zig() -> Result<PathBuf, String> {
    peers::python_with("zig", &[LINKER])
}

/// Use of the programs for another processor than that of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Users get the programs.
    Users,
    /// Only tests run the programs, in an emulator. The compiler does not optimise, which takes much less time.
    Tests,
}

impl Purpose {
    /// Returns the profile of cargo for another processor than that of this machine.
    const fn profile(self) -> &'static str {
        match self {
            Self::Users => "release",
            Self::Tests => "emulated",
        }
    }
}

/// Links [`LINKED`] for a processor, and puts them into the folder `to`, with [`DROP_INS`]. The target directory
/// `built` has a release build of the same sources.
pub(super) fn link(machine: Machine, purpose: Purpose, built: &Path, to: &Path) -> Result<(), String> {
    machine.missing().map_or(Ok(()), Err)?;
    let zig = zig()?;
    empty(to)?;
    if machine == Machine::of_host()? {
        relink(machine, built, &zig, to)
    } else {
        cross_link(machine, purpose, built, &zig, to)
    }
}

/// Links the programs of the release build again.
fn relink(machine: Machine, built: &Path, zig: &Path, to: &Path) -> Result<(), String> {
    let in_folder = |folder: &Path, words: &[&str]| {
        let mut build = cargo(words);
        build.arg("--target-dir").arg(folder);
        build
    };
    run(in_folder(built, MODULE))?;
    let folder = built.join("xtask").join("relinked");
    let _alone = Lock::take(&folder.with_extension("lock"), "the folder of programs that zig links")?;
    empty(&folder)?;
    let release = folder.join("release");
    share(&built.join("release"), &release)?;
    forget(&release)?;
    let unwinder = output_of(command("cc", &["-print-file-name=libgcc_s.so.1"]))?;
    for words in [&[BUILD, SELECTED].concat()[..], MODULE] {
        let mut build = in_folder(&folder, words);
        with_zig(&mut build, machine, zig, Path::new(unwinder.trim()));
        build.env("RUSTC_WRAPPER", root().join("xtask/src/dist/zig-rustc.sh"));
        run(build)?;
    }
    // The drop-ins need no library of C, so those of the release build are for each version of glibc.
    take(&release, &LINKED, to)?;
    take(&built.join("release"), &DROP_INS, to)?;
    fs::remove_dir_all(&folder).map_err(at(&folder))
}

/// Compiles and links the programs for another processor than that of this machine. They have a target directory of
/// their own. In the one of the release build, this long build would delay all other builds of the release profile.
fn cross_link(machine: Machine, purpose: Purpose, built: &Path, zig: &Path, to: &Path) -> Result<(), String> {
    let triple = machine.triple();
    let folder = built.join("xtask").join(format!("linked-{}", machine.name()));
    let profile = purpose.profile();
    let mut build = cargo(&["build", "--profile", profile]);
    build.args(&BUILD[2..]).args(&MODULE[2..]).args(SELECTED);
    build.arg("--target").arg(&triple).arg("--target-dir").arg(&folder);
    // The linker would remove the information for debuggers.
    build.env("CARGO_PROFILE_RELEASE_DEBUG", "0");
    with_zig(&mut build, machine, zig, &unwinder_of(&machine.libraries()));
    let linker = format!("CARGO_TARGET_{}_LINKER", triple.replace('-', "_").to_uppercase());
    build.env(linker, root().join("xtask/src/dist/zig-cc.sh"));
    run(build)?;
    let linked = folder.join(triple).join(profile);
    take(&linked, &LINKED, to)?;
    take(&linked, &DROP_INS, to)
}

fn unwinder_of(libraries: &Path) -> PathBuf {
    libraries.join("lib/libgcc_s.so.1")
}

/// Sets the variables of `zig-cc.sh`.
fn with_zig(build: &mut Command, machine: Machine, zig: &Path, unwinder: &Path) {
    let (major, minor) = GLIBC;
    build.env("ZIG_TARGET", format!("{}-linux-gnu.{major}.{minor}", machine.name()));
    build.env("ZIG_PYTHON", zig).env("LIBGCC_S", unwinder);
    // The home of a builder may be read-only.
    let cache = target().join("xtask/zig-cache");
    build.env("ZIG_GLOBAL_CACHE_DIR", &cache).env("ZIG_LOCAL_CACHE_DIR", cache);
}

/// Copies the compiled crates of a build, and cargo's records of them, to another folder. The copies keep their times,
/// which cargo compares. Compiled crates are hard links. So [`forget`] must remove each file that the later build
/// writes.
fn share(from: &Path, to: &Path) -> Result<(), String> {
    fs::create_dir_all(to).map_err(at(to))?;
    // Cargo holds this lock while it builds.
    let file = from.join(".cargo-lock");
    let lock = File::open(&file).map_err(at(&file))?;
    lock.lock().map_err(at(&file))?;
    let copy = |options: &[&str], name: &str| {
        let mut copy = command("cp", options);
        copy.arg(from.join(name)).arg(to);
        run(copy)
    };
    copy(&["--archive"], ".fingerprint")?;
    copy(&["--archive"], "build")?;
    copy(&["--archive", "--link"], "deps")
}

/// Removes [`LINKED`] and [`SOURCES`] from a copied build, and cargo's records of them. So cargo builds only these
/// again. Rustc and some linkers overwrite an existing file, and so would change the build from which it was copied.
fn forget(release: &Path) -> Result<(), String> {
    for folder in entries(&release.join(".fingerprint"))? {
        if RECORDS.iter().any(|record| folder.join(record).exists()) {
            fs::remove_dir_all(&folder).map_err(at(&folder))?;
        }
    }
    for file in entries(&release.join("deps"))? {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        // Cargo adds a hash to the names of programs, and none to those of libraries for other languages.
        if name.starts_with("doorbell-") || LINKED.contains(&&*name) || SOURCES.contains(&&*name) {
            fs::remove_file(&file).map_err(at(&file))?;
        }
    }
    Ok(())
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let listed = fs::read_dir(folder).map_err(at(folder))?;
    listed.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>().map_err(at(folder))
}

fn take(from: &Path, names: &[&str], to: &Path) -> Result<(), String> {
    names.iter().try_for_each(|name| copy(&from.join(name), &to.join(name)))
}

fn at(path: &Path) -> impl FnOnce(std::io::Error) -> String {
    move |error| format!("{}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_linked_files_and_their_records_are_forgotten() {
        let home = tempfile::tempdir().expect("a temporary folder can be created");
        let (from, to) = (home.path().join("from"), home.path().join("to"));
        let kept = [
            ".fingerprint/doorbell-1/lib-doorbell",
            ".fingerprint/doorbell-cli-1/run-build-script-build-script-build",
            ".fingerprint/doorbell-cli-2/bin-libdoorbell_ibverbs",
            "build/doorbell-cli-1/output",
            "deps/libdoorbell-1.rlib",
            "deps/libdoorbell_ibverbs-2",
            "deps/doorbell_wire-5.d",
        ];
        let forgotten = [
            ".fingerprint/doorbell-cli-3/bin-doorbell",
            ".fingerprint/doorbell-ibverbs-4/lib-doorbell_ibverbs",
            ".fingerprint/doorbell-python-5/lib-doorbell_python",
            "deps/doorbell-3",
            "deps/doorbell-3.d",
            "deps/doorbell_ibverbs.d",
            "deps/doorbell_python.d",
            "deps/libdoorbell_ibverbs.so",
            "deps/libdoorbell_python.so",
        ];
        for name in kept.iter().chain(&forgotten).chain(&[".cargo-lock"]) {
            let file = from.join(name);
            fs::create_dir_all(file.parent().unwrap_or(&file)).expect("the temporary folder can be written");
            fs::write(&file, name).expect("the temporary folder can be written");
        }
        share(&from, &to).expect("the build can be copied");
        forget(&to).expect("the copy can be changed");
        for name in kept {
            let time = |folder: &Path| fs::metadata(folder.join(name)).and_then(|about| about.modified()).ok();
            assert!(time(&to).is_some() && time(&to) == time(&from), "{name}");
        }
        for name in forgotten {
            assert!(!to.join(name).exists() && from.join(name).exists(), "{name}");
        }
    }

    #[test]
    fn cargo_selects_the_same_crates_for_both_processors() {
        let crates = |words: &[&str]| -> Vec<String> {
            words.windows(2).filter(|pair| pair[0] == "--package").map(|pair| pair[1].to_owned()).collect()
        };
        assert_eq!(crates(BUILD), ["doorbell-cli", "doorbell-ibverbs"]);
        assert_eq!(crates(&MODULE[2..]), ["doorbell-python"]);
        assert_eq!(MODULE[..2], BUILD[..2]);
    }

    #[test]
    fn a_file_for_another_processor_is_found() {
        let own = std::env::current_exe().expect("this program has a path");
        let (right, wrong): (Vec<Machine>, Vec<Machine>) =
            Machine::ALL.into_iter().partition(|machine| machine.name() == std::env::consts::ARCH);
        assert_eq!(right.iter().map(|machine| machine.check(&own)).collect::<Vec<_>>(), [Ok(())]);
        for machine in wrong {
            let why = machine.check(&own).expect_err("the file is for this processor");
            assert!(why.contains(&format!("must be for {}", machine.name_in_elf())), "{why}");
        }
    }

    #[test]
    fn the_library_of_this_processor_is_installed() {
        let host = Machine::of_host().expect("this machine has one of the processors");
        assert!(host.library().exists(), "{}", host.library().display());
    }

    #[test]
    fn a_missing_library_of_another_processor_has_a_remedy() {
        let home = tempfile::tempdir().expect("a temporary folder can be created");
        let (here, gone) = (home.path(), home.path().join("gone"));
        assert_eq!(Machine::Arm.lacking(here, here), None);
        let why = Machine::Arm.lacking(&gone, here).expect("Rust's library is missing");
        assert!(why.contains("`rustup target add aarch64-unknown-linux-gnu`"), "{why}");
        let why = Machine::Arm.lacking(here, &gone).expect("the unwinder is missing");
        assert!(why.contains("libgcc-s1-arm64-cross"), "{why}");
    }
}
