//! Where files of counters lie: a directory that belongs to this user alone.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat, renameat};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::{UnlinkatFlags, geteuid, mkdir, unlinkat};

/// Names the one directory for publishers and readers, in place of the usual ones.
pub const DIRECTORY_VARIABLE: &str = "DOORBELL_COUNTERS_DIR";

/// Most files that a directory may hold.
pub const MAX_FILES: usize = 256;

/// Directories in which this user's processes may publish, the preferred one first.
pub(crate) fn candidates() -> Vec<PathBuf> {
    if let Some(directory) = std::env::var_os(DIRECTORY_VARIABLE).filter(|value| !value.is_empty()) {
        return vec![directory.into()];
    }
    let uid = geteuid();
    let is_own = |path: &Path| path.metadata().is_ok_and(|found| found.is_dir() && found.uid() == uid.as_raw());
    // Processes of one user may have been started with and without the variable.
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let usual = PathBuf::from(format!("/run/user/{uid}"));
    let mut found: Vec<PathBuf> = runtime.into_iter().chain([usual]).filter(|path| is_own(path)).collect();
    found.dedup();
    found.iter_mut().for_each(|path| path.push("doorbell"));
    found.push(format!("/dev/shm/doorbell-{uid}").into());
    found
}

/// Why a directory is not used: a sentence that begins with its path.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DirectoryError {
    #[error("{} does not exist", .0.display())]
    Missing(PathBuf),
    #[error("{} cannot be used: {errno}", .path.display())]
    Os { path: PathBuf, errno: Errno },
    #[error("{} belongs to user {owner}, not to {own}", .path.display())]
    Foreign { path: PathBuf, owner: u32, own: u32 },
    #[error("{} is open to others: its mode is {mode:o}, allowed is 700", .path.display())]
    Open { path: PathBuf, mode: u32 },
    #[error("{} holds {MAX_FILES} files of devices, which is as many as may be", .path.display())]
    Full { path: PathBuf },
}

#[derive(Debug)]
pub(crate) struct Directory {
    fd: OwnedFd,
    pub(crate) path: PathBuf,
}

impl Directory {
    /// Opens a directory if it is ours alone. No symbolic link is followed to it.
    pub(crate) fn open(path: &Path) -> Result<Self, DirectoryError> {
        let os = |errno| match errno {
            Errno::ENOENT => DirectoryError::Missing(path.to_owned()),
            errno => DirectoryError::Os { path: path.to_owned(), errno },
        };
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fd = open(path, flags, Mode::empty()).map_err(os)?;
        let found = fstat(&fd).map_err(os)?;
        let own = geteuid().as_raw();
        if found.st_uid != own {
            return Err(DirectoryError::Foreign { path: path.to_owned(), owner: found.st_uid, own });
        }
        if found.st_mode & 0o077 != 0 {
            return Err(DirectoryError::Open { path: path.to_owned(), mode: found.st_mode & 0o777 });
        }
        Ok(Self { fd, path: path.to_owned() })
    }

    /// Opens it, and makes it before if need be.
    pub(crate) fn create(path: &Path) -> Result<Self, DirectoryError> {
        match mkdir(path, Mode::S_IRWXU) {
            Ok(()) | Err(Errno::EEXIST) => Self::open(path),
            Err(errno) => Err(DirectoryError::Os { path: path.to_owned(), errno }),
        }
    }

    /// Names of its files, in order; as many as may be there, and the temporary ones.
    pub(crate) fn list(&self) -> Result<Vec<String>, Errno> {
        let again = openat(&self.fd, ".", OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
        let mut names = Vec::new();
        for entry in Dir::from_fd(again)?.iter().take(4 * MAX_FILES) {
            let name = entry?.file_name().to_str().map(str::to_owned);
            names.extend(name.ok().filter(|name| !matches!(name.as_str(), "." | "..")));
        }
        names.sort();
        Ok(names)
    }

    /// Opens a file of it to read: a regular one of ours, no link.
    pub(crate) fn open_file(&self, name: &str) -> Result<File, String> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        let file = File::from(openat(&self.fd, name, flags, Mode::empty()).map_err(|errno| errno.to_string())?);
        let found = file.metadata().map_err(|error| error.to_string())?;
        if !found.is_file() {
            return Err("it is no regular file".to_owned());
        }
        if found.uid() != geteuid().as_raw() || found.permissions().mode() & 0o022 != 0 {
            return Err("others may have written it".to_owned());
        }
        Ok(file)
    }

    /// Makes a file that does not exist yet, for us alone.
    pub(crate) fn create_file(&self, name: &str) -> Result<File, Errno> {
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        Ok(File::from(openat(&self.fd, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?))
    }

    pub(crate) fn rename(&self, from: &str, to: &str) -> Result<(), Errno> {
        renameat(&self.fd, from, &self.fd, to)
    }

    /// Removes a file. One that is gone already is as good.
    pub(crate) fn remove(&self, name: &str) {
        if let Ok(name) = CString::new(name) {
            let _ = unlinkat(&self.fd, name.as_c_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_directory_is_made_for_us_alone_and_found_again() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("doorbell");
        assert!(Directory::open(&path).unwrap_err().to_string().ends_with("does not exist"));
        Directory::create(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        Directory::create(&path).unwrap();
        assert!(Directory::open(&path).unwrap().list().unwrap().is_empty());
    }

    #[test]
    fn what_others_could_have_made_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("open");
        std::fs::create_dir(&path).unwrap();
        set_mode(&path, 0o755);
        let error = Directory::create(&path).unwrap_err().to_string();
        assert!(error.contains("its mode is 755, allowed is 700"), "{error}");
        set_mode(&path, 0o700);
        let link = root.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(matches!(Directory::create(&link), Err(DirectoryError::Os { .. })), "a link is not followed");
        if geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(12_345), None).unwrap();
            let error = Directory::open(&path).unwrap_err().to_string();
            assert!(error.contains("belongs to user 12345, not to 0"), "{error}");
        }
    }

    #[test]
    fn only_regular_files_of_ours_are_read() {
        let root = tempfile::tempdir().unwrap();
        set_mode(root.path(), 0o700);
        let directory = Directory::open(root.path()).unwrap();
        drop(directory.create_file("mine").unwrap());
        assert!(directory.create_file("mine").is_err(), "never over another");
        assert!(directory.open_file("mine").is_ok());
        symlink("/etc/passwd", root.path().join("link")).unwrap();
        assert!(directory.open_file("link").is_err());
        nix::unistd::mkfifo(&root.path().join("fifo"), Mode::S_IRWXU).unwrap();
        assert_eq!(directory.open_file("fifo").unwrap_err(), "it is no regular file");
        set_mode(&root.path().join("mine"), 0o666);
        assert_eq!(directory.open_file("mine").unwrap_err(), "others may have written it");
        directory.remove("mine");
        directory.remove("mine");
        assert_eq!(directory.list().unwrap(), ["fifo", "link"]);
    }
}
