//! Debian packages: `doorbell` has the command, and `libdoorbell-ibverbs` the libraries that `doorbell run` preloads.
//!
//! The package of the libraries keeps them in a folder of their own, because `libibverbs.so.1` there must not replace
//! the system's library.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use super::chroot::Chroot;
use super::{BUILT, MANUAL, PRINTED, Sources, copy};
use crate::programs::{BUILD, DROP_INS, NO_CLOCK, OTHER_TRIES};
use crate::shell::{cargo, command, output_of, root, run};
use crate::{network, peers};

/// Version of the packages, with Debian's revision. Debian itself begins with revision 1, which replaces this one.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "-0doorbell1");

/// Maintainer of the packages. The domain `invalid` of RFC 2606 receives no mail.
const MAINTAINER: &str = "The Doorbell authors <maintainers@doorbell.invalid>";

/// A binary package.
struct Package {
    name: &'static str,
    /// Fields of the control file that only this package has. `VERSION` stands for [`VERSION`].
    fields: &'static str,
    description: &'static str,
}

const COMMAND: Package = Package {
    name: "doorbell",
    fields: "Suggests: ibverbs-utils, perftest\nSection: net\n",
    description: "software RNIC, measurements and a model of RDMA message exchange\n \
        Doorbell moves messages over RDMA, predicts how fast, and proves it on the\n \
        wire. \"doorbell run\" starts unmodified programs that use libibverbs on a\n \
        software RNIC in user space, without root, hardware or a kernel module.\n",
};

const LIBRARY: Package = Package {
    name: "libdoorbell-ibverbs",
    fields: "Source: doorbell\nMulti-Arch: same\nSection: libs\n",
    description: "software RNIC for programs that use libibverbs\n \
        The libraries implement the calls of libibverbs and librdmacm on a software\n \
        RNIC in user space. \"doorbell run\" of the package doorbell preloads them.\n",
};

/// Reasons for findings of lintian that are no defects.
const OVERRIDES: &str = "\
# A drop-in library only jumps into libdoorbell_ibverbs.so, and calls no function of the C library.
libdoorbell-ibverbs: library-not-linked-against-libc [usr/lib/*/doorbell/doorbell/lib*.so.1]
";

/// Directory of completions for zsh in Debian. The archive has the upstream directory.
const ZSH: [&str; 2] = ["share/zsh/site-functions/", "share/zsh/vendor-completions/"];

/// Makes both packages in a folder.
pub(super) fn packages(sources: &Sources, folder: &Path) -> Result<Vec<PathBuf>, String> {
    missing().map_or(Ok(()), Err)?;
    let own_folder = format!("usr/lib/{}-linux-gnu/doorbell", std::env::consts::ARCH);
    let (tree, library_tree) = (folder.join(COMMAND.name), folder.join(LIBRARY.name));
    let [(doorbell, _), (library, _)] = BUILT;
    install(&sources.built.join(doorbell), &tree.join("usr/bin").join(doorbell), 0o755)?;
    for (_, path) in PRINTED {
        let to = tree.join("usr").join(path.replace(ZSH[0], ZSH[1]));
        install(&sources.printed.join(path), &to, 0o644)?;
    }
    for page in files_below(&sources.printed.join(MANUAL))? {
        install(&sources.printed.join(MANUAL).join(&page), &tree.join("usr").join(MANUAL).join(&page), 0o644)?;
    }
    let manual = tree.join("usr").join(MANUAL);
    run(command("gzip", &["--recursive", "-9n", &manual.to_string_lossy()]))?;

    let libraries = library_tree.join(own_folder);
    install(&sources.built.join(library), &libraries.join(library), 0o644)?;
    for drop_in in DROP_INS.map(Path::new) {
        let to = libraries.join("doorbell").join(drop_in.file_name().unwrap_or_default());
        match drop_in.extension() {
            // Programs also open the libraries by these names without a version.
            Some(extension) if extension == "so" => {
                let versioned = to.with_extension("so.1");
                fs::create_dir_all(to.parent().unwrap_or(&to)).map_err(at(&to))?;
                symlink(versioned.file_name().unwrap_or_default(), &to).map_err(at(&to))?;
            }
            _ => install(&sources.built.join(drop_in), &to, 0o644)?,
        }
    }
    write(&library_tree.join("usr/share/lintian/overrides").join(LIBRARY.name), OVERRIDES)?;

    let needed = dependencies(&sources.built.join(doorbell), &folder.join("shlibs"))?;
    let needed = format!("{} (= {VERSION}), {needed}", LIBRARY.name);
    let needed_by_library = dependencies(&sources.built.join(library), &folder.join("library-shlibs"))?;
    let (time, crates) = (time()?, crates()?);
    let packed = [(&COMMAND, &tree, needed), (&LIBRARY, &library_tree, needed_by_library)];
    packed.iter().map(|(package, tree, needed)| pack(package, tree, needed, &time, &crates, folder)).collect()
}

/// Adds the documents and the control files to the tree of a package, and packs it.
fn pack(
    package: &Package,
    tree: &Path,
    depends: &str,
    time: &str,
    crates: &BTreeSet<String>,
    folder: &Path,
) -> Result<PathBuf, String> {
    let documents = tree.join("usr/share/doc").join(package.name);
    let date = |format: &str| {
        let mut date = command("date", &["--utc", &format!("--date=@{time}"), format]);
        date.env("LC_ALL", "C");
        output_of(date).map(|text| text.trim().to_owned())
    };
    let (day, year) = (date("+%a, %d %b %Y %H:%M:%S +0000")?, date("+%Y")?);
    copy(&root().join("CHANGELOG.md"), &documents.join("changelog"))?;
    write(&documents.join("changelog.Debian"), &changelog(&day))?;
    let license = root().join("LICENSE-MIT");
    let license = fs::read_to_string(&license).map_err(at(&license))?;
    write(&documents.join("copyright"), &copyright(&year, &license, crates)?)?;
    let changelogs = ["changelog", "changelog.Debian"].map(|name| documents.join(name).to_string_lossy().into_owned());
    run(command("gzip", &["-9n", &changelogs[0], &changelogs[1]]))?;

    let files = files_below(tree)?;
    let mut sums = command("md5sum", &["--"]);
    sums.args(&files).current_dir(tree);
    let sums = output_of(sums)?;
    let architecture = output_of(command("dpkg", &["--print-architecture"]))?;
    let control = control(package, architecture.trim(), size(tree, &files)?, depends);
    write(&tree.join("DEBIAN/control"), &control)?;
    write(&tree.join("DEBIAN/md5sums"), &sums)?;
    // The umask of the user must not matter.
    run(command("chmod", &["--recursive", "u=rwX,go=rX", &tree.to_string_lossy()]))?;
    let packed = folder.join(format!("{}_{VERSION}_{}.deb", package.name, architecture.trim()));
    // A higher level takes five times as long, for a sixth of the bytes.
    let mut build = command("dpkg-deb", &["--root-owner-group", "-Zxz", "-z1", "--build"]);
    build.arg(tree).arg(&packed).env("SOURCE_DATE_EPOCH", time);
    output_of(build)?;
    Ok(packed)
}

/// Returns the control file of a package with files of `size` KiB.
fn control(package: &Package, architecture: &str, size: u64, depends: &str) -> String {
    let Package { name, fields, description } = package;
    format!(
        "Package: {name}\nVersion: {VERSION}\nArchitecture: {architecture}\nMaintainer: {MAINTAINER}\n\
        Installed-Size: {size}\nDepends: {depends}\n{fields}Priority: optional\nDescription: {description}"
    )
}

/// Returns Debian's changelog, which only has the current version. The project's own changelog lies beside it.
fn changelog(day: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "doorbell ({VERSION}) unstable; urgency=medium\n\n  * Package version {version}, whose changes are in \
        changelog.gz.\n\n -- {MAINTAINER}  {day}\n"
    )
}

/// Returns the copyright file in the format of DEP-5, with the crates that are linked into the programs.
fn copyright(year: &str, license: &str, crates: &BTreeSet<String>) -> Result<String, String> {
    let (_, terms) = license.split_once("\n\nPermission ").ok_or("LICENSE-MIT has no paragraph \"Permission ...\"")?;
    let mut text = "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
        Upstream-Name: doorbell\nComment: The programs contain these crates, each with its licence:\n"
        .to_owned();
    for name in crates {
        let _ = writeln!(text, "  {name}");
    }
    let _ = write!(text, "\nFiles: *\nCopyright: {year} The Doorbell authors\nLicense: MIT or Apache-2.0\n\n");
    text.push_str("License: MIT\n");
    for line in format!("Permission {}", terms.trim_end()).lines() {
        let _ = writeln!(text, " {}", if line.is_empty() { "." } else { line });
    }
    text.push_str("\nLicense: Apache-2.0\n On Debian systems, /usr/share/common-licenses/Apache-2.0 has the text.\n");
    Ok(text)
}

/// Returns the crates of other projects in the programs, each with its version and licence.
fn crates() -> Result<BTreeSet<String>, String> {
    let packages = BUILD.windows(2).filter(|pair| pair[0] == "--package").map(|pair| pair[1]);
    let mut tree = cargo(&["tree", "--offline", "--edges", "normal", "--prefix", "none", "--format", "{p}: {l}"]);
    packages.for_each(|package| {
        tree.args(["--package", package]);
    });
    Ok(foreign(&output_of(tree)?))
}

/// Returns the lines of `cargo tree` without the crates of this workspace, which have a path.
fn foreign(listed: &str) -> BTreeSet<String> {
    let lines = listed.lines().filter(|line| !line.is_empty() && !line.contains("(/"));
    lines.map(|line| line.trim_end_matches(" (*)").replace(" (proc-macro)", "")).collect()
}

/// Returns the packages that a program or library needs, as `dpkg-shlibdeps` finds them. `scratch` is a new folder.
fn dependencies(file: &Path, scratch: &Path) -> Result<String, String> {
    // The program needs some control file of a source.
    write(&scratch.join("debian/control"), "Source: doorbell\n\nPackage: doorbell\nArchitecture: any\n")?;
    let mut find = command("dpkg-shlibdeps", &["-O", &format!("-e{}", file.display())]);
    find.current_dir(scratch);
    let found = output_of(find)?;
    let needed = found.lines().find_map(|line| line.strip_prefix("shlibs:Depends="));
    needed.map(str::to_owned).ok_or_else(|| format!("{} needs no package:\n{found}", file.display()))
}

/// Returns the time of all files in the packages, in seconds since 1970. This is SOURCE_DATE_EPOCH if the variable is
/// set, otherwise the time of the commit, and without git the time of CHANGELOG.md.
fn time() -> Result<String, String> {
    if let Ok(given) = std::env::var("SOURCE_DATE_EPOCH") {
        let number = given.parse::<u32>();
        return number
            .map(|_| given.clone())
            .map_err(|_| format!("SOURCE_DATE_EPOCH={given}: must be seconds since 1970"));
    }
    if let Ok(committed) = output_of(command("git", &["log", "-1", "--format=%ct"])) {
        return Ok(committed.trim().to_owned());
    }
    let changelog = root().join("CHANGELOG.md");
    Ok(fs::metadata(&changelog).map_err(at(&changelog))?.mtime().to_string())
}

/// Returns the size of files in KiB, where each file begins a new one, as Debian's policy has it.
fn size(folder: &Path, files: &[PathBuf]) -> Result<u64, String> {
    let size = |file: &PathBuf| fs::metadata(folder.join(file)).map(|about| about.len().div_ceil(1024));
    files.iter().map(|file| size(file).map_err(at(file))).sum()
}

/// Returns the regular files below a folder, without symbolic links, as sorted paths relative to the folder.
fn files_below(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let (mut files, mut folders) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(relative) = folders.pop() {
        let path = folder.join(&relative);
        for entry in fs::read_dir(&path).map_err(at(&path))? {
            let entry = entry.map_err(at(&path))?;
            let kind = entry.file_type().map_err(at(&path))?;
            let name = relative.join(entry.file_name());
            if kind.is_dir() {
                folders.push(name);
            } else if kind.is_file() {
                files.push(name);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Copies a file, and sets the permissions of the copy.
fn install(from: &Path, to: &Path, mode: u32) -> Result<(), String> {
    copy(from, to)?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode)).map_err(at(to))
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    let folder = file.parent().unwrap_or(file);
    fs::create_dir_all(folder).and_then(|()| fs::write(file, text)).map_err(at(file))
}

fn at(path: &Path) -> impl FnOnce(std::io::Error) -> String {
    move |error| format!("{} could not be written or read: {error}", path.display())
}

/// Returns the reason why this machine cannot make packages.
pub(super) fn missing() -> Option<String> {
    let missing: Vec<_> = ["dpkg-deb", "dpkg-shlibdeps"].into_iter().filter(|program| !peers::has(program)).collect();
    (!missing.is_empty()).then(|| format!("packages of Debian need {}", missing.join(" and ")))
}

/// Command that runs after the installation: a perftest pair on the software RNIC. perftest listens at port 18515.
const PAIR: &str = "\
doorbell run -- ib_send_bw -n 500 >/tmp/server 2>&1 &
until grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6; do
    kill -0 $! || { cat /tmp/server >&2; exit 1; }
    sleep 0.05
done
doorbell run -- ib_send_bw -n 500 127.0.0.1 >&2 && wait $! || { cat /tmp/server >&2; exit 1; }
";

/// User id without rights, as Debian defines it.
const USER: &str = "65534";

/// Checks the packages with lintian. Installs them in a chroot, and runs the command and a perftest pair there. Returns
/// the reasons for parts that cannot run on this machine.
pub(super) fn check(packages: &[PathBuf]) -> Result<Vec<String>, String> {
    let mut left_out = Vec::new();
    if peers::has("lintian") {
        lintian(packages)?;
    } else {
        left_out.push("there is no lintian".to_owned());
    }
    match Chroot::new("packages") {
        Ok(chroot) => in_chroot(packages, &chroot)?,
        Err(why) => left_out.push(why),
    }
    Ok(left_out)
}

fn lintian(packages: &[PathBuf]) -> Result<(), String> {
    let mut lintian = command("lintian", &["--allow-root", "--no-cfg", "--fail-on", "error,warning"]);
    let output = lintian.args(packages).output().map_err(|error| format!("lintian could not be started: {error}"))?;
    let [found, why] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    if output.status.success() { Ok(()) } else { Err(format!("lintian: {}\n{found}{why}", output.status)) }
}

/// Installs the packages, and runs programs with them.
fn in_chroot(packages: &[PathBuf], chroot: &Chroot) -> Result<(), String> {
    for package in packages {
        let name = Path::new("tmp").join(package.file_name().unwrap_or_default());
        copy(package, &chroot.path(&name))?;
    }
    let install = "apt-get install --quiet --quiet --yes --no-install-recommends /tmp/*.deb ibverbs-utils perftest >&2";
    network::outside(|| chroot.output(None, &["sh", "-c", install]))?;
    for file in [MANUAL, "share/bash-completion/completions", "share/zsh/vendor-completions"] {
        let folder = chroot.path(Path::new("usr").join(file));
        let files = files_below(&folder)?;
        if !files.iter().any(|file| file.to_string_lossy().contains("doorbell")) {
            return Err(format!("the packages install no file of doorbell in {}", folder.display()));
        }
    }
    // Another user than root must find the library, too.
    let sh = |script: &str| chroot.output(Some(USER), &["sh", "-ec", script]);
    let shown = sh("doorbell --version; doorbell env; doorbell run -- ibv_devices")?;
    for words in [concat!("doorbell ", env!("CARGO_PKG_VERSION")), "LD_LIBRARY_PATH=", "doorbell0"] {
        if !shown.contains(words) {
            return Err(format!("{words:?} is missing in the output of the installed command:\n{shown}"));
        }
    }
    let mut pair = sh(PAIR);
    for _ in 0..OTHER_TRIES {
        if pair.as_ref().is_err_and(|why| why.contains(NO_CLOCK)) {
            pair = sh(PAIR);
        }
    }
    pair.map(drop).map_err(|why| format!("a perftest pair in the chroot: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_files_have_one_line_for_each_field() {
        for package in [&COMMAND, &LIBRARY] {
            let text = control(package, "amd64", 7, "libc6 (>= 2.34)");
            let (fields, description) = text.split_once("\nDescription: ").expect("there is a description");
            assert!(fields.lines().all(|line| line.split_once(": ").is_some()), "{fields}");
            assert!(fields.contains("\nInstalled-Size: 7\nDepends: libc6 (>= 2.34)\n"), "{fields}");
            let (synopsis, long) = description.split_once('\n').expect("there is a long description");
            assert!(synopsis.len() < 80 && long.lines().all(|line| line.starts_with(' ') && line.len() < 80), "{long}");
            assert!(text.ends_with(".\n"), "{text}");
        }
    }

    #[test]
    fn only_crates_of_other_projects_are_named() {
        let listed = "own v0.1.0 (/src/own): MIT\n\nserde v1.0.0: MIT OR Apache-2.0\nserde v1.0.0: MIT OR Apache-2.0 (*)\n\
            derive v2.0.0 (proc-macro): MIT\n";
        let expected = ["derive v2.0.0: MIT", "serde v1.0.0: MIT OR Apache-2.0"].map(str::to_owned);
        assert_eq!(foreign(listed), BTreeSet::from(expected));
    }

    #[test]
    fn the_copyright_file_has_all_paragraphs() {
        let license = fs::read_to_string(root().join("LICENSE-MIT")).expect("the licence exists");
        let text =
            copyright("2026", &license, &BTreeSet::from(["serde v1.0.0: MIT".to_owned()])).expect("it has terms");
        let paragraphs: Vec<&str> = text.split("\n\n").filter_map(|part| part.split(['\n', ':']).next()).collect();
        assert_eq!(paragraphs, ["Format", "Files", "License", "License"]);
        assert!(text.contains("\n  serde v1.0.0: MIT\n") && text.contains("\nLicense: MIT\n Permission is"), "{text}");
        assert!(copyright("2026", "none", &BTreeSet::new()).expect_err("no terms").contains("LICENSE-MIT"));
    }

    #[test]
    fn files_are_listed_in_order_without_links() {
        let home = tempfile::tempdir().expect("a temporary folder can be created");
        for (name, length) in [("b/c", 1024), ("a", 1), ("b/a", 1025)] {
            write(&home.path().join(name), &"x".repeat(length)).expect("the temporary folder can be written");
        }
        symlink("a", home.path().join("link")).expect("the temporary folder can be written");
        let files = files_below(home.path()).expect("the folder exists");
        assert_eq!(files, ["a", "b/a", "b/c"].map(PathBuf::from));
        assert_eq!(size(home.path(), &files), Ok(1 + 2 + 1));
    }
}
