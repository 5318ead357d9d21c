//! Directory for the records of one run: one file for each point.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use doorbell_output::files;

use super::sweep::{Experiment, Point};
use doorbell_record::settings::{MIX, SETTINGS, Setting};
use doorbell_record::{Environment, Parameters, PointRecord, PointResult, RecordError};

/// Maximum bytes of a record.
const MAX_RECORD_BYTES: u64 = 64 << 20;
/// Maximum number of records in a directory.
const MAX_RECORDS: usize = 100_000;

/// Name of the file that a process locks while it writes to the directory. The file is never removed, since another
/// process may lock the file just before the removal.
const LOCK: &str = ".lock";

/// Directory of records. A lock excludes other processes that write to the same directory.
#[derive(Debug)]
pub struct RunDirectory {
    path: PathBuf,
    /// Lock file, which stays locked until it is closed. The kernel also closes it when the process ends.
    _lock: File,
}

/// Reason why the records of a directory are unusable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// The directory, or a file in it, cannot be read or written.
    #[error("{}: {error}", .path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// The path is not a directory.
    #[error("{} is a file, but --out names a directory: choose another path", .0.display())]
    NoDirectory(PathBuf),
    /// The directory is not writable.
    #[error("{}: no records and no report can be written there: {error}", .path.display())]
    ReadOnly {
        /// The path.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// Another process writes to the directory.
    #[error("another study writes to {}: wait until that study has ended, or choose another --out", .0.display())]
    InUse(PathBuf),
    /// A file is not a record.
    #[error("{}: {error}", .path.display())]
    Record {
        /// The path.
        path: PathBuf,
        /// The cause.
        error: RecordError,
    },
    /// There are no records.
    #[error(
        "{}: the directory has no records (*.json); `doorbell study --out {}` creates records",
        .0.display(),
        .0.display()
    )]
    Empty(PathBuf),
    /// There are more than 100,000 records.
    #[error("{}: the directory has more than {MAX_RECORDS} records", .0.display())]
    TooMany(PathBuf),
    /// A file contains a point with other parameters or from another environment.
    #[error(
        "{}: field `{field}` differs from the current measurement ({}): choose another --out",
        .path.display(),
        .why
    )]
    Differs {
        /// The path.
        path: PathBuf,
        /// The field.
        field: &'static str,
        /// The difference.
        why: String,
    },
}

impl RunDirectory {
    /// Opens a directory for writing, and creates it if necessary.
    ///
    /// # Errors
    ///
    /// The directory cannot be created, the path is not a directory, the directory is not writable, or another
    /// process writes to it. Or the directory, or a record in it, belongs to another user.
    pub fn create(path: &Path) -> Result<Self, DirectoryError> {
        if path.exists() && !path.is_dir() {
            return Err(DirectoryError::NoDirectory(path.to_owned()));
        }
        files::own_directory(path).map_err(|error| DirectoryError::Io { path: path.to_owned(), error })?;
        let read_only = |error| DirectoryError::ReadOnly { path: path.to_owned(), error };
        let lock = files::open_lock(&path.join(LOCK)).map_err(read_only)?;
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) => return Err(DirectoryError::InUse(path.to_owned())),
            // If the file system does not support locks, two concurrent studies stay undetected.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        // Check that the directory accepts new files. The lock file may already exist in a read-only directory.
        let probe = || {
            let probe = path.join(format!(".{}.new", files::random_name()?));
            files::create_new(&probe, 0o600).and_then(|_| fs::remove_file(&probe))
        };
        probe().map_err(read_only)?;
        // Others may write to a directory of mode 0777. Their records must not join ours.
        for record in records(path)? {
            files::own_file(&record).map_err(|error| DirectoryError::Io { path: record, error })?;
        }
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads all records of a directory, in the order of their names.
    ///
    /// # Errors
    ///
    /// The path is not a directory, the directory has no records, or a `*.json` in it is not a record.
    pub fn read(path: &Path) -> Result<Vec<PointRecord>, DirectoryError> {
        let files = records(path)?;
        if files.is_empty() {
            return Err(DirectoryError::Empty(path.to_owned()));
        }
        files.iter().map(|file| read(file)).collect()
    }

    /// Returns the path of a point's record. The file name consists of experiment, series and position.
    pub(super) fn file(&self, experiment: &Experiment, point: &Point) -> PathBuf {
        let name = format!("{} {} {}", experiment.name, point.series, point.x).to_lowercase();
        let plain: String = name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect();
        self.path.join(format!("{plain}.json"))
    }

    /// Returns the record of a point, if it exists.
    ///
    /// # Errors
    ///
    /// The file is damaged, or contains another point, other parameters or another environment. The caller must not
    /// overwrite such a file.
    pub fn get(
        &self,
        experiment: &Experiment,
        point: &Point,
        environment: &Environment,
    ) -> Result<Option<PointRecord>, DirectoryError> {
        let path = self.file(experiment, point);
        if !path.exists() {
            return Ok(None);
        }
        let record = read(&path)?;
        let differs = |field, why: String| Err(DirectoryError::Differs { path: path.clone(), field, why });
        if (record.experiment.as_str(), record.series.as_str(), record.x) != (&experiment.name, &point.series, point.x)
        {
            let why = format!("{}, {}, {}", experiment.name, point.series, point.x);
            return differs("experiment", why);
        }
        if record.parameters != point.parameters {
            return differs("parameters", changes(&record.parameters, &point.parameters));
        }
        if record.environment.testbed != environment.testbed {
            return differs("environment.testbed", environment.substrate());
        }
        let machine = |e: &Environment| (e.cpu.clone(), e.cpus, e.provider.clone(), e.udp_port, e.active_mtu);
        let (then, now) = (&record.environment, environment);
        let said = |e: &Environment| {
            let Environment { cpu, cpus, provider, udp_port, active_mtu, .. } = e;
            format!("{cpu}, {cpus} CPUs, provider {provider}, UDP port {udp_port}, path MTU {active_mtu} B")
        };
        if machine(then) != machine(now) {
            return differs("environment", format!("{} instead of {}", said(now), said(then)));
        }
        let others = |e: &Environment| -> Vec<_> {
            e.others().map(|other| (other.machine.host.clone(), machine(other))).collect()
        };
        if others(then) != others(now) {
            let (here, before) = (others(now), others(then));
            let names = |of: &[(String, _)]| of.iter().map(|(host, _)| host.clone()).collect::<Vec<_>>();
            // If the host names are equal, compare more properties. Different machines may have the same name, and a
            // machine may have changed.
            let told = |e: &Environment, is_enough: bool| {
                let one = |other: &Environment| match is_enough {
                    true => other.machine.host.clone(),
                    false => format!("{} ({})", other.machine.host, said(other)),
                };
                match e.others().map(one).collect::<Vec<_>>() {
                    hosts if hosts.is_empty() => "none".to_owned(),
                    hosts => hosts.join("; "),
                }
            };
            let is_enough = names(&here) != names(&before);
            return differs(
                "environment.peer",
                format!("{} instead of {}", told(now, is_enough), told(then, is_enough)),
            );
        }
        if then.device != now.device {
            return differs("environment.device", format!("{} instead of {}", now.device, then.device));
        }
        if then.soft_options.is_some() && then.soft_options != now.soft_options {
            let options = |e: &Environment| e.soft_options.clone().unwrap_or_default();
            return differs("environment.soft_options", format!("{} instead of {}", options(now), options(then)));
        }
        // Earlier releases pinned no threads and recorded no pinning.
        let pinned = |e: &Environment| -> Vec<Option<Vec<usize>>> {
            std::iter::once(e).chain(e.others()).map(|e| Some(e.pinning.as_ref()?.cpus.clone())).collect()
        };
        if then.pinning.is_some() && pinned(then) != pinned(now) {
            let why = now.pinning.as_ref().map_or_else(String::new, ToString::to_string);
            return differs("environment.pinning", why);
        }
        Ok(Some(record))
    }

    /// Adds one repetition to a point's record, and replaces the file atomically.
    ///
    /// # Errors
    ///
    /// [`get`](Self::get) fails, or the file cannot be written. In both cases the record stays unchanged.
    pub fn add(
        &self,
        experiment: &Experiment,
        point: &Point,
        environment: &Environment,
        result: PointResult,
    ) -> Result<(), DirectoryError> {
        let mut record =
            self.get(experiment, point, environment)?.unwrap_or_else(|| point.record(experiment, environment.clone()));
        record.repetitions.push(result);
        write_whole(&self.file(experiment, point), &record)
    }
}

/// Returns the paths of all records of a directory, in the order of their names.
fn records(path: &Path) -> Result<Vec<PathBuf>, DirectoryError> {
    let io = |error| DirectoryError::Io { path: path.to_owned(), error };
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(io)? {
        let file = entry.map_err(io)?.path();
        if file.extension().is_some_and(|extension| extension == "json") {
            files.push(file);
        }
        if files.len() > MAX_RECORDS {
            return Err(DirectoryError::TooMany(path.to_owned()));
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// Returns the settings that differ, each with its present value and the value in the record.
fn changes(then: &Parameters, now: &Parameters) -> String {
    let shown = |setting: &Setting, of: &Parameters| {
        let values: Vec<String> = (setting.get)(of).into_iter().map(|value| setting.show(value)).collect();
        if values.is_empty() { "none".to_owned() } else { values.join(", ") }
    };
    let differing = SETTINGS.iter().copied().filter(|setting| (setting.get)(then) != (setting.get)(now));
    let mut changes: Vec<String> = differing
        .map(|setting| format!("{setting} is {} instead of {}", shown(setting, now), shown(setting, then)))
        .collect();
    if then.mix != now.mix {
        changes.push(format!("{MIX} is another one"));
    }
    if then.far != now.far {
        changes.push("the point on shared memory is another one".to_owned());
    }
    if changes.is_empty() { "in a parameter that has no option".to_owned() } else { changes.join("; ") }
}

fn read(path: &Path) -> Result<PointRecord, DirectoryError> {
    let io = |error| DirectoryError::Io { path: path.to_owned(), error };
    let json = files::read_regular(path, MAX_RECORD_BYTES).map_err(io)?;
    PointRecord::parse(&json).map_err(|error| DirectoryError::Record { path: path.to_owned(), error })
}

fn write_whole(path: &Path, record: &PointRecord) -> Result<(), DirectoryError> {
    let write = || -> io::Result<()> {
        // Serialize to memory first. Serialization directly to a file would make a system call for each word of a
        // record.
        let mut text = serde_json::to_vec(record)?;
        text.push(b'\n');
        files::replace(path, &text)
    };
    write().map_err(|error| DirectoryError::Io { path: path.to_owned(), error })
}
