//! Safe creation of files in directories that other users can write to.
//!
//! In such a directory, an existing name may be a link or a file of another user. Therefore no function here writes to
//! an existing file, except to a pipe or a device that the user named. A new file is created under a random name in the
//! same directory (`O_EXCL`) and then renamed. If the final name is a link, the rename replaces the link and does not
//! follow it. A journal, to which several processes append, is opened without following a link.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::unistd::geteuid;

/// Maximum number of attempts to find an unused random name.
const TRIES: usize = 16;

/// Returns a random text that no other user can predict.
///
/// # Errors
///
/// The operating system provides no random bytes.
pub fn random_name() -> io::Result<String> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}

/// Creates a file that does not exist yet. Fails if the path names a link.
///
/// # Errors
///
/// The name already exists, or the file cannot be created.
pub fn create_new(path: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(mode).custom_flags(OFlag::O_NOFOLLOW.bits()).open(path)
}

/// Creates a file with a random name in the directory of `path`.
fn create_beside(path: &Path, mode: u32) -> io::Result<(PathBuf, File)> {
    let Some(name) = path.file_name() else {
        let why = format!("{}: the path must end with the name of a file", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    };
    for _ in 0..TRIES {
        let mut random = std::ffi::OsString::from(".");
        random.push(random_name()?);
        random.push(".tmp");
        let beside = path.with_file_name(random);
        match create_new(&beside, mode) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|file| (beside, file)),
        }
    }
    Err(io::Error::new(
        io::ErrorKind::AlreadyExists,
        format!("all {TRIES} random names that were tried beside {name:?} are taken"),
    ))
}

/// Replaces a file atomically. Readers see either the old or the new content.
///
/// # Errors
///
/// The new file cannot be created in the directory, or its content cannot be written. The old file is then unchanged.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    if let Some(mut special) = open_special(path)? {
        return special.write_all(content);
    }
    let (beside, mut file) = create_beside(path, 0o666)?;
    let written = file.write_all(content).and_then(|()| file.sync_data()).and_then(|()| fs::rename(&beside, path));
    written.inspect_err(|_| drop(fs::remove_file(&beside)))
}

/// Checks that [`replace`] could create its file, and changes nothing. A command that works for a long time calls this
/// function first.
///
/// # Errors
///
/// The path names a directory, or no file can be created beside it.
pub fn check_replaceable(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
        // `replace` opens these files directly. Opening a pipe has an effect on its reader, so do not try it here.
        Ok(found) if is_pipe_or_device(found.file_type()) || is_safe_link(path, found.file_type()) => return Ok(()),
        _ => {}
    }
    let (beside, _) = create_beside(path, 0o666)?;
    fs::remove_file(beside)
}

/// Replaces a file by an empty one, for content that the caller writes over time. Opens pipes and devices directly.
///
/// # Errors
///
/// The file cannot be created in its directory, or the path names a directory. Or it names a pipe or device of a user
/// other than root or the user of this process.
pub fn create(path: &Path) -> io::Result<File> {
    if let Some(special) = open_special(path)? {
        return Ok(special);
    }
    let (beside, file) = create_beside(path, 0o666)?;
    fs::rename(&beside, path).inspect_err(|_| drop(fs::remove_file(&beside)))?;
    Ok(file)
}

/// A file of a library. The program that uses the library may close all descriptors, including the one of this file.
/// Its number may then name another file. The guard neither writes to that other file nor closes it.
#[derive(Debug)]
pub struct GuardedFile {
    /// The guarded file; `None` only while the guard is dropped.
    file: Option<File>,
    /// Device and inode of the file.
    identity: (u64, u64),
}

impl GuardedFile {
    /// Guards `file` against reuse of its descriptor's number.
    ///
    /// # Errors
    ///
    /// The device and inode of the file cannot be read.
    pub fn new(file: File) -> io::Result<Self> {
        let identity = identity(&file)?;
        Ok(Self { file: Some(file), identity })
    }

    fn file(&self) -> io::Result<&File> {
        let file = self.file.as_ref().filter(|file| identity(file).is_ok_and(|found| found == self.identity));
        file.ok_or_else(|| io::Error::other("the program has closed the descriptor of the file"))
    }
}

impl io::Write for GuardedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file()?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for GuardedFile {
    fn drop(&mut self) {
        if self.file().is_err() {
            std::mem::forget(self.file.take());
        }
    }
}

fn identity(file: &File) -> io::Result<(u64, u64)> {
    file.metadata().map(|found| (found.dev(), found.ino()))
}

/// Opens a path for writing if it names an existing special file: a pipe, a device, or a descriptor below `/dev` or
/// `/proc`.
fn open_special(path: &Path) -> io::Result<Option<File>> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(None) };
    let kind = found.file_type();
    if is_safe_link(path, kind) {
        // The descriptor may be a regular file, to which other processes append too.
        return OpenOptions::new().append(true).open(path).map(Some);
    }
    if !is_pipe_or_device(kind) {
        return Ok(None);
    }
    let file = OpenOptions::new().write(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(path)?;
    let opened = file.metadata()?;
    if (opened.ino(), opened.dev()) != (found.ino(), found.dev()) || !is_trusted(opened.uid()) {
        let why = format!(
            "{} must belong to user {} or root, but belongs to user {}",
            path.display(),
            own_user(),
            opened.uid()
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(Some(file))
}

fn is_pipe_or_device(kind: fs::FileType) -> bool {
    kind.is_fifo() || kind.is_char_device()
}

/// Returns whether a path of this kind is a link that only root can create, so that following it is safe.
fn is_safe_link(path: &Path, kind: fs::FileType) -> bool {
    let is_standard = path == Path::new("/dev/stdout") || path == Path::new("/dev/stderr");
    kind.is_symlink() && (is_standard || path.starts_with("/dev/fd") || path.starts_with("/proc"))
}

/// Returns the user id with which this process accesses files.
pub fn own_user() -> u32 {
    geteuid().as_raw()
}

/// Returns whether a file of this user may be used: root and the user of this process are trusted.
fn is_trusted(owner: u32) -> bool {
    [0, own_user()].contains(&owner)
}

/// Creates a directory and its parents, unless they exist. After a failure, removes the directories that it created.
/// Rejects a directory of another user, since that user could replace the files in it. Rejects a link of another user,
/// who could make our files appear in any of our directories.
///
/// The mode does not matter. Container orchestrators give a volume to root, with mode 0777 and without the sticky bit.
///
/// # Errors
///
/// The directory cannot be created, or the path names no directory. Or the directory, or a link to it, belongs to a
/// user other than root or the user of this process. Or the file system gives the new directory to another user.
pub fn own_directory(path: &Path) -> io::Result<()> {
    // Without its last slash, a path names the link itself.
    let plain: PathBuf = path.components().collect();
    let mut created = Vec::new();
    let used = create_with_parents(&plain, &mut created).and_then(|()| match created.last() {
        Some(last) if *last == plain => expect_own(&plain, is_trusted),
        _ => Ok(()),
    });
    // The removal keeps a directory that another process has put a file into.
    used.inspect_err(|_| created.iter().rev().for_each(|directory| drop(fs::remove_dir(directory))))?;
    expect_trusted(&fs::symlink_metadata(plain)?, "the path")?;
    expect_trusted(&fs::metadata(path)?, "the directory")
}

/// Creates a directory and its parents, unless they exist. Adds each directory that did not exist to `created`.
fn create_with_parents<'a>(path: &'a Path, created: &mut Vec<&'a Path>) -> io::Result<()> {
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty() && !parent.is_dir()) {
        create_with_parents(parent, created)?;
    }
    match fs::create_dir(path) {
        Ok(()) => created.push(path),
        Err(_) if path.is_dir() => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Rejects a directory that this process has just created and that belongs to another user. A file server that maps
/// users does that, and this process could not distinguish such a directory from that of another user.
fn expect_own(created: &Path, is_allowed: impl Fn(u32) -> bool) -> io::Result<()> {
    let (owner, own) = (fs::symlink_metadata(created)?.uid(), own_user());
    if is_allowed(owner) {
        return Ok(());
    }
    let why = format!(
        "{}: this process runs as user {own}, but its new directory belongs to user {owner}. The file system maps users, \
         as NFS does with root_squash. Use a user that it does not map, or a local directory",
        created.display()
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// Rejects a file of another user, or a link of another user to any file.
///
/// # Errors
///
/// The file does not exist, or belongs to a user other than root or the user of this process.
pub fn own_file(path: &Path) -> io::Result<()> {
    expect_trusted(&fs::symlink_metadata(path)?, "the file")
}

fn expect_trusted(found: &fs::Metadata, what: &str) -> io::Result<()> {
    if is_trusted(found.uid()) {
        return Ok(());
    }
    let (owner, own) = (found.uid(), own_user());
    let why = format!("{what} belongs to user {owner}, allowed are user {own} and root");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// Finds or creates a directory that only this user can access, in a parent that all users can write to. The directory
/// is called `stem`, or has a random suffix if `stem` belongs to another user.
///
/// # Errors
///
/// No directory can be created in `parent`, or its file system gives new directories to another user.
pub fn private_directory(parent: &Path, stem: &str) -> io::Result<PathBuf> {
    let make = |path: &Path| fs::DirBuilder::new().mode(0o700).create(path);
    for _ in 0..TRIES {
        let path = private_path(parent, stem)?;
        match make(&path) {
            // Another process has just created a file or directory with this name. The next attempt finds out whether
            // it belongs to this user.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !is_own(&path) => {}
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            made => {
                if made.is_ok() {
                    expect_own(&path, |owner| owner == own_user()).inspect_err(|_| drop(fs::remove_dir(&path)))?;
                }
                // If two processes of this user each created a directory, `private_path` returns the older one to both.
                return private_path(parent, stem);
            }
        }
    }
    Err(io::Error::new(
        io::ErrorKind::AlreadyExists,
        format!("{}: other users took all {TRIES} names that were tried for {stem}", parent.display()),
    ))
}

fn is_own(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == own_user())
}

/// Returns the directory that an earlier call of [`private_directory`] created, or else a path for a new directory.
///
/// # Errors
///
/// The operating system provides no random bytes.
pub fn private_path(parent: &Path, stem: &str) -> io::Result<PathBuf> {
    let plain = parent.join(stem);
    if is_own(&plain) || fs::symlink_metadata(&plain).is_err() {
        return Ok(plain);
    }
    match private_directories(parent, stem).into_iter().next() {
        Some(found) => Ok(found),
        None => Ok(parent.join(format!("{stem}.{}", random_name()?))),
    }
}

/// Returns this user's directories whose names begin with `stem`, the oldest first. Ignores directories of other users.
fn private_directories(parent: &Path, stem: &str) -> Vec<PathBuf> {
    let prefix = format!("{stem}.");
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix));
    let mut found: Vec<_> = named.map(|entry| entry.path()).filter(|path| is_own(path)).collect();
    found.sort_by_cached_key(|path| (path.metadata().and_then(|found| found.created()).ok(), path.clone()));
    found
}

/// Opens a file for locking, and creates the file if it does not exist. Rejects links and files of other users.
///
/// # Errors
///
/// The file cannot be opened, is not a regular file, or belongs to another user.
pub fn open_lock(path: &Path) -> io::Result<File> {
    open_regular(path, |owner| owner == own_user())
}

/// Opens a file to which several processes append, and creates the file if it does not exist. Opens pipes and devices
/// directly.
///
/// # Errors
///
/// The file cannot be opened, is a link, or belongs to a user other than root or the user of this process.
pub fn append(path: &Path) -> io::Result<File> {
    match open_special(path)? {
        Some(special) => Ok(special),
        None => open_regular(path, is_trusted),
    }
}

/// Opens a regular file for appending, or creates it. Does not follow a link.
fn open_regular(path: &Path, is_allowed: impl Fn(u32) -> bool) -> io::Result<File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = OpenOptions::new().append(true).create(true).custom_flags(flags.bits()).open(path)?;
    let found = file.metadata()?;
    if found.is_file() && is_allowed(found.uid()) {
        return Ok(file);
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("{} must be a regular file of user {}", path.display(), own_user()),
    ))
}

/// Reads a regular file of at most `limit` bytes. If the path names a pipe, the function fails instead of blocking.
///
/// # Errors
///
/// The file is unreadable, is not regular, or is longer than `limit`.
pub fn read_regular(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::other(format!("the file is longer than {limit} B")));
    }
    Ok(bytes)
}

/// Reads the text of a file that has at most `limit` bytes. The file may be a pipe.
///
/// # Errors
///
/// The file is unreadable, is no text, or is longer than `limit`. The error names the file.
pub fn read_text(path: &Path, limit: u64) -> io::Result<String> {
    let name = path.display();
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(limit + 1).read_to_string(&mut text))
        .map_err(|error| io::Error::new(error.kind(), format!("{name} cannot be read: {error}")))?;
    if text.len() as u64 > limit {
        return Err(io::Error::other(format!("{name} has more than {limit} B, the allowed maximum")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::*;

    #[test]
    fn a_link_at_the_name_is_replaced_and_its_target_stays() {
        let root = tempfile::tempdir().unwrap();
        let (target, link) = (root.path().join("target"), root.path().join("link"));
        fs::write(&target, "precious").unwrap();
        symlink(&target, &link).unwrap();
        replace(&link, b"new").unwrap();
        assert_eq!((fs::read(&target).unwrap(), fs::read(&link).unwrap()), (b"precious".to_vec(), b"new".to_vec()));
        fs::remove_file(&link).unwrap();
        symlink(&target, &link).unwrap();
        create(&link).unwrap().write_all(b"frames").unwrap();
        assert_eq!((fs::read(&target).unwrap(), fs::read(&link).unwrap()), (b"precious".to_vec(), b"frames".to_vec()));
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 2, "nothing else stays");
    }

    #[test]
    fn a_check_of_a_file_changes_nothing() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("page");
        check_replaceable(&file).unwrap();
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
        fs::write(&file, "old").unwrap();
        check_replaceable(&file).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"old");
        check_replaceable(Path::new("/dev/null")).unwrap();
        // Other users can write to /dev/shm, so its files are replaced as in any directory.
        let in_shm = PathBuf::from("/dev/shm/doorbell-test-of-no-directory/page");
        for wrong in [root.path().to_owned(), root.path().join("none/page"), file.join("page"), in_shm] {
            assert!(check_replaceable(&wrong).is_err() && replace(&wrong, b"new").is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_closed_descriptor_does_not_write_to_another_file() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        let file = create(&path("capture")).unwrap();
        let number = file.as_raw_fd();
        let mut guarded = GuardedFile::new(file).unwrap();
        guarded.write_all(b"frames").unwrap();
        nix::unistd::close(number).unwrap();
        // `create` normally gets the number of the closed descriptor. If another thread's file gets that number
        // instead, the test still checks the same property.
        let own = File::create(path("own")).unwrap();
        assert!(guarded.write_all(b"more frames").is_err());
        drop(guarded);
        (&own).write_all(b"own").unwrap();
        let read = |name: &str| fs::read(path(name)).unwrap();
        assert_eq!((read("capture"), read("own")), (b"frames".to_vec(), b"own".to_vec()));
    }

    #[test]
    fn new_files_and_locks_follow_no_link() {
        let root = tempfile::tempdir().unwrap();
        let (target, link) = (root.path().join("target"), root.path().join("link"));
        symlink(&target, &link).unwrap();
        assert!(create_new(&link, 0o600).is_err());
        assert!(open_lock(&link).is_err());
        assert!(!target.exists());
        drop(open_lock(&root.path().join("lock")).unwrap());
        drop(open_lock(&root.path().join("lock")).unwrap());
    }

    #[test]
    fn a_journal_follows_no_link_and_keeps_what_others_appended() {
        let root = tempfile::tempdir().unwrap();
        let (target, link, journal) =
            (root.path().join("target"), root.path().join("link"), root.path().join("journal"));
        fs::write(&target, "precious").unwrap();
        symlink(&target, &link).unwrap();
        assert!(append(&link).is_err());
        assert_eq!(fs::read(&target).unwrap(), b"precious");
        let (mut one, mut other) = (append(&journal).unwrap(), append(&journal).unwrap());
        one.write_all(b"1").unwrap();
        other.write_all(b"2").unwrap();
        // A path below `/proc/self/fd` opens the file of the descriptor again.
        let again = PathBuf::from(format!("/proc/self/fd/{}", one.as_raw_fd()));
        append(&again).unwrap().write_all(b"3").unwrap();
        create(&again).unwrap().write_all(b"4").unwrap();
        assert_eq!(fs::read(&journal).unwrap(), b"1234");
        drop(append(Path::new("/dev/null")).unwrap());
        if own_user() == 0 {
            chown(&journal, Some(65_534), None).unwrap();
            assert!(append(&journal).is_err(), "the file of another user");
        }
    }

    #[test]
    fn a_link_of_another_user_to_a_directory_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let (own, link) = (root.path().join("own"), root.path().join("link"));
        own_directory(&own).unwrap();
        for mode in [0o777, 0o1777] {
            fs::set_permissions(&own, fs::Permissions::from_mode(mode)).unwrap();
            own_directory(&own).unwrap();
        }
        symlink(&own, &link).unwrap();
        own_directory(&link).unwrap();
        if !doorbell_testing::root_or_leave_out("tests that change the owner of files") {
            return;
        }
        own_file(&link).unwrap();
        std::os::unix::fs::lchown(&link, Some(65_534), None).unwrap();
        assert!(own_file(&link).unwrap_err().to_string().contains("the file belongs to user 65534"));
        for path in [link.clone(), link.join(""), link.join(".")] {
            let why = own_directory(&path).unwrap_err().to_string();
            assert!(why.contains("the path belongs to user 65534"), "{path:?}: {why}");
        }
    }

    #[test]
    fn pipes_and_devices_that_the_user_names_are_written_to() {
        replace(Path::new("/dev/null"), b"x").unwrap();
        drop(create(Path::new("/dev/null")).unwrap());
        assert!(fs::symlink_metadata("/dev/null").unwrap().file_type().is_char_device());
    }

    #[test]
    fn a_directory_of_another_user_is_refused_and_its_name_ignored() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(private_directory(root.path(), "own").unwrap(), root.path().join("own"));
        assert_eq!(private_directory(root.path(), "own").unwrap(), root.path().join("own"));
        let theirs = root.path().join("theirs");
        fs::create_dir(&theirs).unwrap();
        own_directory(&theirs).unwrap();
        if !doorbell_testing::root_or_leave_out("tests that change the owner of files") {
            return;
        }
        chown(&theirs, Some(65_534), None).unwrap();
        assert!(own_directory(&theirs).unwrap_err().to_string().contains("belongs to user 65534"));
        let own = private_directory(root.path(), "theirs").unwrap();
        assert!(own.file_name().unwrap().to_string_lossy().starts_with("theirs."), "{own:?}");
        assert_eq!(own.metadata().unwrap().mode() & 0o777, 0o700);
        assert_eq!(private_directory(root.path(), "theirs").unwrap(), own);
        assert_eq!(private_path(root.path(), "theirs").unwrap(), own);
    }

    /// NFS with root_squash gives files that root creates to another user. The file system user of a thread has the
    /// same effect.
    #[test]
    fn a_new_directory_of_a_mapped_user_is_an_error_with_a_way_out() {
        if !doorbell_testing::root_or_leave_out("tests that change the owner of files") {
            return;
        }
        let root = tempfile::tempdir().unwrap();
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let kept = root.path().join("kept");
        fs::create_dir(&kept).unwrap();
        fs::set_permissions(&kept, fs::Permissions::from_mode(0o777)).unwrap();
        let create = || {
            nix::unistd::setfsuid(nix::unistd::Uid::from_raw(65_534));
            let of_study = own_directory(&root.path().join("kept/new/study"));
            [of_study, private_directory(root.path(), "private").map(drop)]
        };
        let results = std::thread::scope(|scope| scope.spawn(create).join().unwrap());
        for (result, name) in results.into_iter().zip(["study", "private"]) {
            let why = result.unwrap_err().to_string();
            assert!(why.contains("user 0, but its new directory belongs to user 65534"), "{why}");
            assert!(why.contains(name) && why.contains("root_squash") && why.contains("local directory"), "{why}");
        }
        assert_eq!(fs::read_dir(&kept).unwrap().count(), 0, "a directory that cannot be used stays, or its parent");
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1, "a directory that existed before is gone");
        own_directory(&kept.join("new/study")).unwrap();
    }

    #[test]
    fn a_pipe_in_place_of_a_file_does_not_block_a_reader() {
        let root = tempfile::tempdir().unwrap();
        let pipe = root.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(read_regular(&pipe, 10).unwrap_err().to_string(), "not a regular file");
        let file = root.path().join("file");
        fs::write(&file, "0123456789").unwrap();
        assert_eq!(read_regular(&file, 10).unwrap(), b"0123456789");
        assert!(read_regular(&file, 9).is_err());
    }
}
