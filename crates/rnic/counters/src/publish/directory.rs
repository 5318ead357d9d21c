//! The directory of counter files, which only one user can access.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use doorbell_output::files;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat, renameat};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::{UnlinkatFlags, geteuid, mkdir, unlinkat};

/// Environment variable that names the directory for publishers and readers. This directory replaces the default
/// directories.
pub const DIRECTORY_VARIABLE: &str = "DOORBELL_COUNTERS_DIR";

/// Maximum number of device files in a directory.
pub const MAX_FILES: usize = 256;

/// Default directories. A user's files are in `RUNTIME/UID/doorbell` or in `SHARED` followed by the user id.
const RUNTIME: &str = "/run/user";
const SHARED: &str = "/dev/shm/doorbell-";

/// Returns the directories in which processes of this user may publish, the preferred directory first.
pub(crate) fn candidates() -> Vec<PathBuf> {
    if let Some(directory) = std::env::var_os(DIRECTORY_VARIABLE).filter(|value| !value.is_empty()) {
        return vec![directory.into()];
    }
    let uid = geteuid();
    let is_own = |path: &Path| path.metadata().is_ok_and(|found| found.is_dir() && found.uid() == uid.as_raw());
    // Some processes of this user may have this variable and others not, so the list has both directories.
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let usual = PathBuf::from(format!("{RUNTIME}/{uid}"));
    let mut found: Vec<PathBuf> = runtime.into_iter().chain([usual]).filter(|path| is_own(path)).collect();
    found.dedup();
    found.iter_mut().for_each(|path| path.push("doorbell"));
    // If another user owns the directory with this name, `private_path` returns a name with a random suffix.
    let shared = Path::new(SHARED);
    let stem = format!("{}{uid}", shared.file_name().unwrap_or_default().to_string_lossy());
    found.extend(files::private_path(shared.parent().unwrap_or(shared), &stem));
    found
}

/// Returns the directories to read, each with its required owner. For root, these are the directories of all users.
pub(crate) fn readable() -> Vec<(PathBuf, u32)> {
    let own = geteuid();
    let mut found: Vec<_> = candidates().into_iter().map(|path| (path, own.as_raw())).collect();
    let is_named = std::env::var_os(DIRECTORY_VARIABLE).is_some_and(|value| !value.is_empty());
    if own.is_root() && !is_named {
        found.extend(of_others(Path::new(RUNTIME), Path::new(SHARED), own.as_raw()));
    }
    found
}

/// Returns the directories of users other than `own`. The required owner is the user id in the name of the directory.
fn of_others(runtime: &Path, shared: &Path, own: u32) -> Vec<(PathBuf, u32)> {
    let numbered = |folder: &Path, prefix: &str| -> Vec<(PathBuf, u32)> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().take(4 * MAX_FILES);
        // If another user owns the plain name, a random suffix follows the user id.
        let of =
            |name: &str| name.strip_prefix(prefix)?.split('.').next()?.parse().ok().filter(|&owner: &u32| owner != own);
        entries.filter_map(|entry| Some((entry.path(), of(entry.file_name().to_str()?)?))).collect()
    };
    let runtime = numbered(runtime, "").into_iter().map(|(path, owner)| (path.join("doorbell"), owner));
    let folder = shared.parent().unwrap_or(Path::new("/"));
    let prefix = shared.file_name().unwrap_or_default().to_string_lossy();
    let mut found: Vec<_> = runtime.chain(numbered(folder, &prefix)).collect();
    found.sort();
    found
}

/// Reason why a directory cannot be used. The message is a sentence that begins with the path.
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
    #[error("{} holds {MAX_FILES} files of devices, which is the maximum", .path.display())]
    Full { path: PathBuf },
}

#[derive(Debug)]
pub(crate) struct Directory {
    fd: OwnedFd,
    pub(crate) path: PathBuf,
    /// Required owner of the directory and of its files.
    owner: u32,
}

impl Directory {
    /// Opens a directory if only the user of this process can access it. Does not follow a symbolic link.
    pub(crate) fn open(path: &Path) -> Result<Self, DirectoryError> {
        Self::open_of(path, geteuid().as_raw())
    }

    /// Opens a directory if only the user `owner` can access it.
    pub(crate) fn open_of(path: &Path, owner: u32) -> Result<Self, DirectoryError> {
        let os = |errno| match errno {
            Errno::ENOENT => DirectoryError::Missing(path.to_owned()),
            errno => DirectoryError::Os { path: path.to_owned(), errno },
        };
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fd = open(path, flags, Mode::empty()).map_err(os)?;
        let found = fstat(&fd).map_err(os)?;
        if found.st_uid != owner {
            return Err(DirectoryError::Foreign { path: path.to_owned(), owner: found.st_uid, own: owner });
        }
        if found.st_mode & 0o077 != 0 {
            return Err(DirectoryError::Open { path: path.to_owned(), mode: found.st_mode & 0o777 });
        }
        Ok(Self { fd, path: path.to_owned(), owner })
    }

    /// Opens a directory, and creates the directory if it does not exist.
    pub(crate) fn create(path: &Path) -> Result<Self, DirectoryError> {
        match mkdir(path, Mode::S_IRWXU) {
            Ok(()) | Err(Errno::EEXIST) => Self::open(path),
            Err(errno) => Err(DirectoryError::Os { path: path.to_owned(), errno }),
        }
    }

    /// Returns the sorted names of the files. Reads at most `4 * MAX_FILES` entries, which is enough for the maximum
    /// number of device files and some temporary files.
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

    /// Opens a file for reading. The file must be regular, must belong to the owner of the directory, and must not be a
    /// symbolic link.
    pub(crate) fn open_file(&self, name: &str) -> Result<File, String> {
        self.open_with(name, OFlag::O_RDONLY)
    }

    /// Opens a file as [`open_file`](Self::open_file) does, also for writing.
    pub(crate) fn open_to_write(&self, name: &str) -> Result<File, String> {
        self.open_with(name, OFlag::O_RDWR)
    }

    fn open_with(&self, name: &str, access: OFlag) -> Result<File, String> {
        let flags = access | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        let file = File::from(openat(&self.fd, name, flags, Mode::empty()).map_err(|errno| errno.to_string())?);
        let found = file.metadata().map_err(|error| error.to_string())?;
        if !found.is_file() {
            return Err("not a regular file".to_owned());
        }
        if found.uid() != self.owner || found.permissions().mode() & 0o022 != 0 {
            return Err("the file belongs to another user, or other users may write to it".to_owned());
        }
        Ok(file)
    }

    /// Creates a new file that only this user may access.
    pub(crate) fn create_file(&self, name: &str) -> Result<File, Errno> {
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        Ok(File::from(openat(&self.fd, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?))
    }

    pub(crate) fn rename(&self, from: &str, to: &str) -> Result<(), Errno> {
        renameat(&self.fd, from, &self.fd, to)
    }

    /// Removes a file. A file that does not exist is no error.
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
    fn a_directory_is_created_private_and_found_again() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("doorbell");
        assert!(Directory::open(&path).unwrap_err().to_string().ends_with("does not exist"));
        Directory::create(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        Directory::create(&path).unwrap();
        assert!(Directory::open(&path).unwrap().list().unwrap().is_empty());
    }

    #[test]
    fn directories_open_to_other_users_are_rejected() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("open");
        std::fs::create_dir(&path).unwrap();
        set_mode(&path, 0o755);
        let error = Directory::create(&path).unwrap_err().to_string();
        assert!(error.contains("its mode is 755, allowed is 700"), "{error}");
        set_mode(&path, 0o700);
        let link = root.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(matches!(Directory::create(&link), Err(DirectoryError::Os { .. })), "a symbolic link was followed");
        if geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(12_345), None).unwrap();
            let error = Directory::open(&path).unwrap_err().to_string();
            assert!(error.contains("belongs to user 12345, not to 0"), "{error}");
        }
    }

    #[test]
    fn directories_of_others_are_found_by_their_numbers() {
        let root = tempfile::tempdir().unwrap();
        let (runtime, shm) = (root.path().join("run"), root.path().join("shm"));
        for made in ["run/1000/doorbell", "run/1000/other", "run/0/doorbell", "run/lost+found", "shm/doorbell-1001"] {
            std::fs::create_dir_all(root.path().join(made)).unwrap();
        }
        for made in ["shm/doorbell-0", "shm/doorbell-x", "shm/sem.doorbell-7", "shm/doorbell--1"] {
            std::fs::create_dir_all(root.path().join(made)).unwrap();
        }
        let found = of_others(&runtime, &shm.join("doorbell-"), 0);
        assert_eq!(found, [(runtime.join("1000/doorbell"), 1000), (shm.join("doorbell-1001"), 1001)]);
        assert!(of_others(Path::new("/no/such"), Path::new("/no/such/x-"), 0).is_empty());
    }

    #[test]
    fn root_reads_only_files_of_the_directory_owner() {
        if !geteuid().is_root() {
            return; // only root can change the owner of files
        }
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("doorbell-12345");
        std::fs::create_dir(&path).unwrap();
        set_mode(&path, 0o700);
        std::fs::write(path.join("theirs"), "").unwrap();
        std::fs::write(path.join("ours"), "").unwrap();
        for given in [path.clone(), path.join("theirs")] {
            std::os::unix::fs::chown(given, Some(12_345), None).unwrap();
        }
        let directory = Directory::open_of(&path, 12_345).unwrap();
        assert!(directory.open_file("theirs").is_ok());
        assert_eq!(
            directory.open_file("ours").unwrap_err(),
            "the file belongs to another user, or other users may write to it"
        );
        assert!(matches!(Directory::open_of(&path, 12_346), Err(DirectoryError::Foreign { .. })));
    }

    #[test]
    fn only_regular_files_of_ours_are_read() {
        let root = tempfile::tempdir().unwrap();
        set_mode(root.path(), 0o700);
        let directory = Directory::open(root.path()).unwrap();
        drop(directory.create_file("mine").unwrap());
        assert!(directory.create_file("mine").is_err(), "an existing file was replaced");
        assert!(directory.open_file("mine").is_ok());
        symlink("/etc/passwd", root.path().join("link")).unwrap();
        assert!(directory.open_file("link").is_err());
        nix::unistd::mkfifo(&root.path().join("fifo"), Mode::S_IRWXU).unwrap();
        assert_eq!(directory.open_file("fifo").unwrap_err(), "not a regular file");
        set_mode(&root.path().join("mine"), 0o666);
        assert_eq!(
            directory.open_file("mine").unwrap_err(),
            "the file belongs to another user, or other users may write to it"
        );
        directory.remove("mine");
        directory.remove("mine");
        assert_eq!(directory.list().unwrap(), ["fifo", "link"]);
    }
}
