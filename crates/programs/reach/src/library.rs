//! The library that is preloaded before libibverbs, the drop-in libraries beside it, and the variables that make the
//! dynamic linker find both.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// File name of the library, and its soname.
pub const LIBRARY: &str = "libdoorbell_ibverbs.so";

/// File name of the library where `cargo install` puts it, beside the command.
const INSTALLED: &str = "libdoorbell_ibverbs";

/// Drop-in library for programs that open libibverbs themselves. The folder has the other drop-ins too.
const DROP_IN: &str = "libibverbs.so.1";

/// Command that builds the library.
const BUILD: &str = "cargo build --release --package doorbell-ibverbs";

/// Reason why there is no library that could be preloaded.
#[derive(Debug)]
pub enum LibraryError {
    /// The variable DOORBELL_PRELOAD_LIB names no file.
    NoFile(PathBuf),
    /// None of these folders has the library.
    Missing(Vec<PathBuf>),
    /// The dynamic linker takes a space or a colon in LD_PRELOAD as the end of a path.
    Separator(PathBuf),
    /// LD_PRELOAD of this process names the library of another installation.
    Another {
        /// The library of this installation.
        own: PathBuf,
        /// The library in LD_PRELOAD.
        other: PathBuf,
    },
    /// The path of this program or the current folder is unknown.
    Path(io::Error),
}

impl fmt::Display for LibraryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFile(path) => write!(f, "DOORBELL_PRELOAD_LIB names {}, which is not a file", path.display()),
            Self::Missing(folders) => {
                let looked: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
                let looked = looked.join(", ");
                let remedies = format!("install it again, run `{BUILD}`, or set DOORBELL_PRELOAD_LIB to its path");
                write!(f, "{LIBRARY} is in none of {looked}: {remedies}")
            }
            Self::Separator(path) => {
                let rule = "its path must have no space or colon, so install doorbell in another folder";
                write!(f, "{} cannot be preloaded: {rule}", path.display())
            }
            Self::Another { own, other } => {
                let (own, other) = (own.display(), other.display());
                write!(f, "two versions of doorbell meet, {own} and {other} in LD_PRELOAD: unset LD_PRELOAD")
            }
            Self::Path(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LibraryError {}

impl From<io::Error> for LibraryError {
    fn from(error: io::Error) -> Self {
        Self::Path(error)
    }
}

/// Finds the library at the path in DOORBELL_PRELOAD_LIB, or in the build and installation folders of this program.
///
/// # Errors
///
/// The library is in none of these places, or LD_PRELOAD cannot name its path.
pub fn library() -> Result<PathBuf, LibraryError> {
    let found = match env::var_os("DOORBELL_PRELOAD_LIB").map(PathBuf::from) {
        Some(named) if !named.is_file() => return Err(LibraryError::NoFile(named)),
        Some(named) => std::path::absolute(named)?,
        None => {
            let own = env::current_exe()?;
            find(own.parent().unwrap_or(Path::new("/")))?
        }
    };
    if found.to_string_lossy().contains([':', ' ']) { Err(LibraryError::Separator(found)) } else { Ok(found) }
}

/// Finds the library of the command in `folder`.
fn find(folder: &Path) -> Result<PathBuf, LibraryError> {
    let places = places(folder);
    // With other C libraries, the file is a program.
    let installed = cfg!(target_env = "gnu").then(|| folder.join(INSTALLED));
    let mut files = places.iter().map(|place| place.join(LIBRARY)).chain(installed);
    files.find(|path| path.is_file()).ok_or_else(|| LibraryError::Missing(places.to_vec()))
}

/// Returns the folders that may have the library if the command lies in `folder`: those of a build, of the archive, and
/// of the Debian package.
fn places(folder: &Path) -> [PathBuf; 4] {
    let of_debian = format!("../lib/{}-linux-gnu/doorbell", env::consts::ARCH);
    [folder.to_path_buf(), folder.join("deps"), folder.join("../lib"), folder.join(of_debian)]
}

/// Returns the folder of the drop-in libraries, as the installation and the build place it beside the library. Returns
/// `None` if there is none, or if LD_LIBRARY_PATH cannot name its path.
pub fn drop_ins(library: &Path) -> Option<PathBuf> {
    let folder = library.parent()?;
    let mut places = ["doorbell", "lib/doorbell", "../lib/doorbell"].into_iter().map(|place| folder.join(place));
    places.find(|place| place.join(DROP_IN).is_file() && can_be_listed(place))
}

/// Returns whether LD_LIBRARY_PATH can name the folder.
fn can_be_listed(folder: &Path) -> bool {
    !folder.to_string_lossy().contains([':', ';'])
}

/// Returns the folder of the drop-in libraries of an installation. `written` is the one of [`variables`].
fn drop_ins_of(library: &Path, written: impl FnOnce(&Path) -> Option<PathBuf>) -> Option<PathBuf> {
    let is_installed_by_cargo = library.file_name().is_some_and(|name| name == INSTALLED);
    let instead = || if is_installed_by_cargo { written(library) } else { None };
    drop_ins(library).or_else(|| instead().filter(|folder| can_be_listed(folder)))
}

/// Returns the variables with which the dynamic linker puts the library before libibverbs, and finds the drop-in
/// libraries. The values keep what these variables of this process name.
///
/// `cargo install` installs no drop-in libraries. After such an installation, `written` gets the path of the library,
/// and returns a folder in which it has put drop-in libraries, if it could.
///
/// # Errors
///
/// The reasons of [`library`]. LD_PRELOAD of this process names the library of another installation.
pub fn variables(
    written: impl FnOnce(&Path) -> Option<PathBuf>,
) -> Result<Vec<(&'static str, OsString)>, LibraryError> {
    let library = library()?;
    if let Some(other) = env::var_os("LD_PRELOAD").and_then(|list| another(&library, &list)) {
        return Err(LibraryError::Another { own: library, other });
    }
    let mut variables = Vec::new();
    if let Some(folder) = drop_ins_of(&library, written) {
        variables.push(("LD_LIBRARY_PATH", before(&folder, env::var_os("LD_LIBRARY_PATH"), &[':', ';'])));
    }
    variables.push(("LD_PRELOAD", before(&library, env::var_os("LD_PRELOAD"), &[':', ' '])));
    Ok(variables)
}

/// Returns the library of another installation in a list of preloaded libraries. Two of them in one process would each
/// have devices of their own.
fn another(own: &Path, list: &OsStr) -> Option<PathBuf> {
    fn file(path: &Path) -> Option<(u64, u64)> {
        fs::metadata(path).ok().map(|about| (about.dev(), about.ino()))
    }
    let list = list.to_string_lossy();
    let is_named = |path: &&Path| path.file_name().is_some_and(|name| name == LIBRARY || name == INSTALLED);
    let mut others = list.split([':', ' ']).map(Path::new).filter(is_named);
    // The dynamic linker ignores files that do not exist.
    others.find(|path| file(path).is_some_and(|other| file(own) != Some(other))).map(Path::to_owned)
}

/// Returns the list with the path at its head. A list that has the path already stays as it is, since one
/// `doorbell run` may start another.
fn before(path: &Path, list: Option<OsString>, separators: &[char]) -> OsString {
    match list.filter(|list| !list.is_empty()) {
        Some(list) if list.to_string_lossy().split(separators).any(|other| Path::new(other) == path) => list,
        Some(list) => [path.as_os_str(), &list].join(OsStr::new(":")),
        None => path.as_os_str().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_listed_once() {
        let with = |list: &str| before(Path::new("/a/b.so"), Some(list.into()), &[':', ' ']);
        assert_eq!(with("/x.so:/a/b.so"), "/x.so:/a/b.so");
        assert_eq!(with("/x.so:/a/b.so.1"), "/a/b.so:/x.so:/a/b.so.1");
        assert_eq!(with(""), "/a/b.so");
        assert_eq!(before(Path::new("/a"), None, &[':']), "/a");
    }

    #[test]
    fn a_build_precedes_an_installation() {
        let [build, tests, archive, package] = places(Path::new("/usr/bin"));
        assert_eq!((build, tests), ("/usr/bin".into(), "/usr/bin/deps".into()));
        assert_eq!(archive, Path::new("/usr/bin/../lib"));
        // Debian's name of the folder for one processor.
        let triplet = if cfg!(target_arch = "x86_64") { "x86_64-linux-gnu" } else { env::consts::ARCH };
        assert!(package.starts_with("/usr/bin/../lib") && package.to_string_lossy().contains(triplet), "{package:?}");
    }

    #[test]
    #[cfg(target_env = "gnu")]
    fn cargo_installs_the_library_beside_the_command() {
        let home = tempfile::tempdir().unwrap();
        let missing = find(home.path()).unwrap_err().to_string();
        assert!(missing.contains(BUILD), "{missing}");
        let installed = home.path().join(INSTALLED);
        std::fs::write(&installed, "").unwrap();
        assert_eq!(find(home.path()).unwrap(), installed);
        // A build precedes it.
        let built = home.path().join(LIBRARY);
        std::fs::write(&built, "").unwrap();
        assert_eq!(find(home.path()).unwrap(), built);
    }

    #[test]
    fn a_library_of_another_installation_is_found() {
        let home = tempfile::tempdir().unwrap();
        let library = |folder: &str, name: &str| {
            let folder = home.path().join(folder);
            std::fs::create_dir_all(&folder).unwrap();
            let library = folder.join(name);
            std::fs::write(&library, "").unwrap();
            library
        };
        let (own, other, installed) = (library("own", LIBRARY), library("other", LIBRARY), library("bin", INSTALLED));
        let same = home.path().join("own/../own").join(LIBRARY);
        let missing = home.path().join("missing").join(LIBRARY);
        let listed = |paths: &[&Path]| {
            let texts: Vec<_> = paths.iter().map(|path| path.to_string_lossy()).collect();
            another(&own, OsStr::new(&texts.join(":")))
        };
        assert_eq!(listed(&[Path::new("/usr/lib/x.so"), own.as_path(), same.as_path(), missing.as_path()]), None);
        assert_eq!(listed(&[own.as_path(), other.as_path()]), Some(other.clone()));
        assert_eq!(listed(&[installed.as_path()]), Some(installed.clone()));
        let message = LibraryError::Another { own: own.clone(), other }.to_string();
        assert!(message.ends_with("unset LD_PRELOAD"), "{message}");
    }

    #[test]
    fn drop_ins_lie_beside_the_library() {
        let home = tempfile::tempdir().unwrap();
        let place = |text: &str| home.path().join(text);
        for folder in ["lib/doorbell", "release/lib/doorbell", "release/deps"] {
            std::fs::create_dir_all(place(folder)).unwrap();
        }
        // The command of a build has the name of the folder of an installation.
        std::fs::write(place("release/doorbell"), "").unwrap();
        assert_eq!(drop_ins(&place("release/library.so")), None, "no folder has a drop-in");
        for folder in ["lib/doorbell", "release/lib/doorbell"] {
            std::fs::write(place(folder).join(DROP_IN), "").unwrap();
        }
        for (library, folder) in [
            ("lib/library.so", "lib/doorbell"),
            ("release/library.so", "release/lib/doorbell"),
            ("release/deps/library.so", "release/deps/../lib/doorbell"),
        ] {
            assert_eq!(drop_ins(&place(library)), Some(place(folder)), "{library}");
        }
        // Only `cargo install` leaves them out.
        let written = |_: &Path| Some(PathBuf::from("/written"));
        assert_eq!(drop_ins_of(&place("other/library.so"), written), None);
        assert_eq!(drop_ins_of(&place("other").join(INSTALLED), written), Some("/written".into()));
        assert_eq!(drop_ins_of(&place("other").join(INSTALLED), |_| Some("/a:b".into())), None);
        assert_eq!(drop_ins_of(&place("release").join(INSTALLED), written), Some(place("release/lib/doorbell")));
    }
}
