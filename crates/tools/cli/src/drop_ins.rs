//! The drop-in libraries of a command that `cargo install` has installed. The installation has programs only, so the
//! command contains these libraries and writes them into the user's cache.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use doorbell_output::files::{private_directory, random_name, replace};
use doorbell_reach::{LIBRARY, LibraryError};

use crate::output::note;

/// Files by name, such as `libibverbs.so.1`, with their contents.
type Files<'a> = &'a [(&'a str, &'a [u8])];

/// The libraries that `build.rs` has found. There are none for other C libraries and for some processors.
const DROP_INS: Files<'static> = include!(concat!(env!("OUT_DIR"), "/drop_ins.rs"));

/// Returns the variables of the dynamic linker for the library and its drop-ins, as [`doorbell_reach::variables`].
///
/// # Errors
///
/// The reasons of that function. Drop-ins that cannot be written cause a note only, since few programs need them.
pub(crate) fn variables() -> Result<Vec<(&'static str, OsString)>, LibraryError> {
    doorbell_reach::variables(|library| {
        let written = cache().and_then(|cache| write(&cache, library, DROP_INS));
        let say = |error: &io::Error| {
            note!(
                "doorbell: no drop-in for programs that open libibverbs themselves: {error}; set XDG_CACHE_HOME to a \
                 folder that can be written"
            );
        };
        written.inspect_err(say).ok()
    })
}

/// Returns the folder for caches of the user.
fn cache() -> io::Result<PathBuf> {
    let folder = |variable: &str| env::var_os(variable).map(PathBuf::from).filter(|folder| folder.is_absolute());
    let found = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")));
    found.ok_or_else(|| io::Error::other("neither XDG_CACHE_HOME nor HOME is the path of a folder"))
}

/// Writes drop-in libraries below the folder `cache`, and returns their folder. Each library and each version of the
/// drop-ins has a folder of its own.
fn write(cache: &Path, library: &Path, files: Files<'_>) -> io::Result<PathBuf> {
    let mut hash = DefaultHasher::new();
    (library, files).hash(&mut hash);
    let cannot = |path: &Path, error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let own = fs::create_dir_all(cache).and_then(|()| private_directory(cache, "doorbell"));
    let folder = own.map_err(|error| cannot(cache, error))?.join(format!("{:016x}", hash.finish()));
    let fill = || -> io::Result<()> {
        fs::create_dir_all(&folder)?;
        for (name, content) in files {
            let path = folder.join(name);
            if !fs::read(&path).is_ok_and(|found| found == *content) {
                replace(&path, content)?;
            }
            link(Path::new(name), &path.with_extension(""))?;
        }
        // Without preloading, the dynamic linker looks for the library in the same folder.
        link(library, &folder.join(LIBRARY))
    };
    fill().map_err(|error| cannot(&folder, error))?;
    Ok(folder)
}

/// Makes `path` a link to `target`, also while other processes do the same.
fn link(target: &Path, path: &Path) -> io::Result<()> {
    if fs::read_link(path).is_ok_and(|found| found == target) {
        return Ok(());
    }
    let fresh = path.with_file_name(format!(".{}.tmp", random_name()?));
    symlink(target, &fresh)?;
    fs::rename(&fresh, path).inspect_err(|_| drop(fs::remove_file(&fresh)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn drop_ins_are_written_once_and_repaired() {
        let home = tempfile::tempdir().unwrap();
        let (cache, library) = (home.path().join("cache"), home.path().join("library"));
        let files: Files<'_> = &[("libibverbs.so.1", b"verbs".as_slice()), ("librdmacm.so.1", b"cm".as_slice())];
        let folder = write(&cache, &library, files).unwrap();
        let (drop_in, inode) = (folder.join("libibverbs.so.1"), |path: &Path| fs::metadata(path).unwrap().ino());
        let first = inode(&drop_in);
        for (name, content) in [("libibverbs.so", b"verbs".as_slice()), ("librdmacm.so", b"cm".as_slice())] {
            assert_eq!(fs::read(folder.join(name)).unwrap(), content, "{name}");
        }
        assert_eq!(fs::read_link(folder.join(LIBRARY)).unwrap(), library);
        assert_eq!(write(&cache, &library, files).unwrap(), folder);
        assert_eq!(inode(&drop_in), first, "the file was written again");
        fs::write(&drop_in, "changed").unwrap();
        assert_eq!(write(&cache, &library, files).unwrap(), folder);
        assert_eq!(fs::read(&drop_in).unwrap(), b"verbs");
        // Another installation keeps its own files.
        let other = write(&cache, &home.path().join("other"), files).unwrap();
        assert_ne!(other, folder);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 5, "temporary files are left");
    }

    #[test]
    fn a_cache_that_is_no_folder_is_named() {
        let home = tempfile::tempdir().unwrap();
        let cache = home.path().join("cache");
        fs::write(&cache, "").unwrap();
        let why = write(&cache, &home.path().join("library"), &[]).unwrap_err().to_string();
        assert!(why.starts_with(&cache.display().to_string()), "{why}");
    }

    #[test]
    #[cfg(all(target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn the_command_contains_both_drop_ins() {
        assert_eq!(DROP_INS.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["libibverbs.so.1", "librdmacm.so.1"]);
        assert!(DROP_INS.iter().all(|(_, content)| content.starts_with(b"\x7fELF")));
    }
}
