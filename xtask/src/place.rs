//! Folders and locks of runs. Several runs may use one checkout at the same time, because each run has its own folder.
//! A lock serializes runs that need the same file or the whole machine.
//!
//! Folders and locks use `flock`, which the kernel releases when the holding process ends for any reason. A killed run
//! therefore blocks no other run. The next run removes the folder of the killed run and kills its remaining processes.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::shell::target;

/// Environment variable with the folder of a run. All processes of the run inherit it.
pub(crate) const VARIABLE: &str = "XTASK_RUN";

/// Name of a file that marks the folder of a failed run. Such a folder is kept for inspection.
const FAILED: &str = "failed";

/// Maximum number of kept folders of earlier failed runs, in addition to the folder of the current run.
const KEPT: usize = 3;

/// Time after which a killed process that has not ended is reported.
const TO_END: Duration = Duration::from_secs(10);

static OWN: OnceLock<Folder> = OnceLock::new();

/// Returns the folder of this run, and creates it at the first call.
pub(crate) fn own() -> &'static Path {
    let open = || Folder::open(&target().join("xtask").join("runs")).unwrap_or_else(|why| panic!("{why}"));
    &OWN.get_or_init(open).path
}

/// Returns the folder of this run if it exists. Unit tests of this program have no such folder.
pub(crate) fn own_if_open() -> Option<&'static Path> {
    OWN.get().map(|folder| folder.path.as_path())
}

/// Returns the path of a new file in this run's folder, with a unique number in its name.
pub(crate) fn own_file(name: &str) -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    own().join(format!("{}-{name}", NUMBER.fetch_add(1, Ordering::Relaxed)))
}

/// Removes the folder of this run. If the run has failed, keeps the folder and prints its path.
pub(crate) fn close(status: ExitCode) -> ExitCode {
    if let Some(folder) = OWN.get() {
        match folder.close(status == ExitCode::SUCCESS) {
            Ok(None) => {}
            Ok(Some(kept)) => eprintln!("files of this run: {}", kept.display()),
            Err(why) => eprintln!("{why}"),
        }
    }
    status
}

/// The folder of a run.
struct Folder {
    path: PathBuf,
    /// Lock of the folder, which this process holds until it ends.
    _lock: File,
}

impl Folder {
    /// Creates a folder in `home`, and removes the folders of ended runs.
    fn open(home: &Path) -> Result<Self, String> {
        let failed = |error| format!("{}: {error}", home.display());
        fs::create_dir_all(home).map_err(failed)?;
        // Other runs may use another path of the same target directory.
        let home = &home.canonicalize().map_err(failed)?;
        // Without this lock, another run could remove the new folder before this run locks the folder.
        let _making = Lock::take(&home.join("lock"), "a folder for this run")?;
        remove_abandoned(home).map_err(failed)?;
        let pid = std::process::id();
        for number in 0.. {
            let path = home.join(if number == 0 { pid.to_string() } else { format!("{pid}-{number}") });
            match fs::create_dir(&path) {
                Ok(()) => {
                    let lock = File::open(&path).map_err(failed)?;
                    lock.lock().map_err(failed)?;
                    return Ok(Self { path, _lock: lock });
                }
                // A failed run had the same process id, or a run in another container has the same process id.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(error)),
            }
        }
        unreachable!("some number is free");
    }

    /// Removes the folder. If the run failed and the folder has files, keeps the folder and returns its path.
    fn close(&self, succeeded: bool) -> Result<Option<&Path>, String> {
        let failed = |error| format!("{}: {error}", self.path.display());
        let is_empty = fs::read_dir(&self.path).map_err(failed)?.next().is_none();
        if succeeded || is_empty {
            fs::remove_dir_all(&self.path).map_err(failed)?;
            return Ok(None);
        }
        fs::write(self.path.join(FAILED), "").map_err(failed)?;
        Ok(Some(&self.path))
    }
}

/// Removes folders and processes of ended runs. Keeps the newest [`KEPT`] folders of failed runs.
fn remove_abandoned(home: &Path) -> io::Result<()> {
    let mut failed: Vec<(SystemTime, PathBuf)> = Vec::new();
    for entry in fs::read_dir(home)? {
        let path = entry?.path();
        // Another run may end now and remove its folder.
        let Ok(folder) = File::open(&path) else { continue };
        if !path.is_dir() || folder.try_lock().is_err() {
            continue;
        }
        end_processes_of(&path);
        match fs::metadata(path.join(FAILED)).and_then(|marker| marker.modified()) {
            Ok(when) => failed.push((when, path)),
            Err(_) => remove(&path),
        }
    }
    failed.sort();
    let too_many = failed.len().saturating_sub(KEPT);
    failed[..too_many].iter().for_each(|(_, path)| remove(path));
    Ok(())
}

fn remove(path: &Path) {
    match fs::remove_dir_all(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => eprintln!("{}, the folder of an ended run, could not be removed: {error}", path.display()),
    }
}

/// Kills the remaining processes of a run that has ended. An inherited environment variable identifies them.
fn end_processes_of(folder: &Path) {
    let wanted = format!("{VARIABLE}={}", folder.display()).into_bytes();
    let is_of_it = |pid: i32| {
        // The environments of other users' processes and of ended processes cannot be read.
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|variable| variable == wanted)
    };
    let own = std::process::id() as i32;
    let until = Instant::now() + TO_END;
    loop {
        let processes = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let left: Vec<i32> = pids.filter(|&pid| pid != own && is_of_it(pid)).collect();
        if left.is_empty() {
            return;
        }
        if Instant::now() > until {
            eprintln!("processes {left:?} of an ended run do not end after SIGKILL");
            return;
        }
        for pid in left {
            // Ignore an error, because the process may just have ended.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A lock between runs. The run releases the lock when it drops this value or ends.
pub(crate) struct Lock(File);

impl Lock {
    /// Takes a lock. If another run holds the lock, prints the holder and waits. The file `file` names the holder, and
    /// is never removed.
    pub(crate) fn take(file: &Path, what_for: &str) -> Result<Self, String> {
        let failed = |error: io::Error| format!("{} cannot be locked: {error}", file.display());
        fs::create_dir_all(file.parent().unwrap_or(file)).map_err(failed)?;
        let mut options = OpenOptions::new();
        let mut lock = options.read(true).write(true).create(true).truncate(false).open(file).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::Error(error)) => return Err(failed(error)),
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = lock.read_to_string(&mut holder);
                let holder = if holder.is_empty() { "another run" } else { holder.trim_end() };
                eprintln!("{what_for}: waiting for {holder}");
                lock.lock().map_err(failed)?;
            }
        }
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let holder = format!("process {}, `cargo xtask {}`\n", std::process::id(), arguments.join(" "));
        let written = lock.rewind().and_then(|()| lock.set_len(0)).and_then(|()| lock.write_all(holder.as_bytes()));
        written.map_err(failed)?;
        Ok(Self(lock))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // If `set_len` fails, the message of a later run names this holder, although the holder has released the lock.
        let _ = self.0.set_len(0);
    }
}

/// Takes the lock of measurements. Two measurements at the same time would disturb each other.
pub(crate) fn measuring() -> Result<Lock, String> {
    Lock::take(&target().join("xtask").join("measuring.lock"), "a quiet machine")
}

/// Moves a file to its public path. At any time, readers find either the complete new file or the previous file.
pub(crate) fn publish(from: &Path, to: &Path) -> Result<(), String> {
    let move_it = || match fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
            let mut beside = to.as_os_str().to_owned();
            beside.push(format!(".{}.new", std::process::id()));
            fs::copy(from, &beside)?;
            fs::rename(&beside, to)?;
            fs::remove_file(from)
        }
        result => result,
    };
    move_it().map_err(|error| format!("{} could not be moved to {}: {error}", from.display(), to.display()))
}

/// Creates a hard link to a public file in the folder of this run. If another run replaces the public file, the link
/// keeps the old content.
pub(crate) fn link(from: &Path, to: &Path) -> Result<(), String> {
    let link_it = || -> io::Result<()> {
        if fs::symlink_metadata(to).is_ok() {
            fs::remove_file(to)?;
        }
        match fs::hard_link(from, to) {
            Err(error) if error.kind() == io::ErrorKind::CrossesDevices => fs::copy(from, to).map(drop),
            result => result,
        }
    };
    link_it().map_err(|error| format!("{} could not be linked to {}: {error}", from.display(), to.display()))
}

#[cfg(test)]
mod tests;
