//! The library that is preloaded before libibverbs, and the variable that preloads it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// File name of the library.
const LIBRARY: &str = "libdoorbell_ibverbs.so";

/// Command that builds the library.
const BUILD: &str = "cargo build --release --package doorbell-preload";

/// Reason why there is no library that could be preloaded.
#[derive(Debug)]
pub enum LibraryError {
    /// The variable DOORBELL_PRELOAD_LIB names no file.
    NoFile(PathBuf),
    /// None of these folders has the library.
    Missing(Vec<PathBuf>),
    /// The dynamic linker takes a space or a colon in LD_PRELOAD as the end of a path.
    Separator(PathBuf),
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
                write!(f, "{LIBRARY} is in none of {looked}: run `{BUILD}`, or set DOORBELL_PRELOAD_LIB to its path")
            }
            Self::Separator(path) => {
                write!(f, "{} cannot be preloaded: its path must have no space or colon", path.display())
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
            let folder = own.parent().unwrap_or(Path::new("/"));
            let places = [folder.to_path_buf(), folder.join("deps"), folder.join("../lib")];
            let found = places.iter().map(|place| place.join(LIBRARY)).find(|path| path.is_file());
            found.ok_or_else(|| LibraryError::Missing(places.to_vec()))?
        }
    };
    if found.to_string_lossy().contains([':', ' ']) { Err(LibraryError::Separator(found)) } else { Ok(found) }
}

/// Returns the value of LD_PRELOAD that preloads this library before the libraries of this process.
pub fn preloaded(library: PathBuf) -> OsString {
    match env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        // The library is already listed if one `doorbell run` starts another.
        Some(others) if is_listed(&library, &others) => others,
        Some(others) => [library.as_os_str(), &others].join(OsStr::new(":")),
        None => library.into_os_string(),
    }
}

fn is_listed(library: &Path, list: &OsStr) -> bool {
    list.to_string_lossy().split([':', ' ']).any(|other| Path::new(other) == library)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_preloaded_once() {
        assert!(is_listed(Path::new("/a/b.so"), OsStr::new("/x.so:/a/b.so")));
        assert!(!is_listed(Path::new("/a/b.so"), OsStr::new("/x.so:/a/b.so.1")));
    }
}
