//! Where the records of one run lie: one file for each point.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use doorbell_output::files;

use super::record::{PointRecord, RecordError};
use super::sweep::{Experiment, Point};
use crate::environment::Environment;
use crate::record::PointResult;

/// Bytes of the longest record that is read.
const MAX_RECORD_BYTES: u64 = 64 << 20;
/// The most files of a directory.
const MAX_RECORDS: usize = 100_000;

/// The file that is locked while a process writes to a directory. It stays there: whoever removed it could not know that nobody
/// else has just locked it.
const LOCK: &str = ".lock";

/// A directory of records, to which no other process writes meanwhile.
#[derive(Debug)]
pub struct RunDirectory {
    path: PathBuf,
    /// Locked until it is closed, however this process ends.
    _lock: File,
}

/// Why the records of a directory are of no use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// The directory, or a file in it, cannot be read or written.
    #[error("{}: {error}", .path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It is no directory.
    #[error("{} is a file, and --out names a directory: choose another one", .0.display())]
    NoDirectory(PathBuf),
    /// Nothing can be written to it.
    #[error("{}: no records and no report can be written there: {error}", .path.display())]
    ReadOnly {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Another process writes to it.
    #[error("another study writes to {} at the moment: wait until it has ended, or choose another --out", .0.display())]
    InUse(PathBuf),
    /// A file is no record.
    #[error("{}: {error}", .path.display())]
    Record {
        /// Which.
        path: PathBuf,
        /// Why.
        error: RecordError,
    },
    /// There are no records.
    #[error("{}: there is no record (*.json) in it; `doorbell study --out {}` makes some", .0.display(), .0.display())]
    Empty(PathBuf),
    /// There are more than anybody makes.
    #[error("{}: there are more than {MAX_RECORDS} records in it", .0.display())]
    TooMany(PathBuf),
    /// A file holds something else than what is to be measured.
    #[error("{}: field `{field}` differs from what is measured now ({}): choose another --out", .path.display(), .why)]
    Differs {
        /// Which.
        path: PathBuf,
        /// What of it.
        field: &'static str,
        /// How.
        why: String,
    },
}

impl RunDirectory {
    /// Takes a directory to write to, and makes it if it is not there.
    ///
    /// # Errors
    ///
    /// It cannot be made or is no directory, nothing can be written to it, or another process writes to it.
    pub fn create(path: &Path) -> Result<Self, DirectoryError> {
        if path.exists() && !path.is_dir() {
            return Err(DirectoryError::NoDirectory(path.to_owned()));
        }
        files::own_directory(path).map_err(|error| DirectoryError::Io { path: path.to_owned(), error })?;
        let read_only = |error| DirectoryError::ReadOnly { path: path.to_owned(), error };
        let lock = files::open_lock(&path.join(LOCK)).map_err(read_only)?;
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) => return Err(DirectoryError::InUse(path.to_owned())),
            // A file system without locks: two studies at once are then not noticed.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        // The lock file may have been there before, in a directory that takes no new ones.
        let probe = || {
            let probe = path.join(format!(".{}.new", files::random_name()?));
            files::create_new(&probe, 0o600).and_then(|_| fs::remove_file(&probe))
        };
        probe().map_err(read_only)?;
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads all records of a directory, in the order of their names.
    ///
    /// # Errors
    ///
    /// It is no directory, there are none, or a `*.json` in it is none.
    pub fn read(path: &Path) -> Result<Vec<PointRecord>, DirectoryError> {
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
        if files.is_empty() {
            return Err(DirectoryError::Empty(path.to_owned()));
        }
        files.sort_unstable();
        files.iter().map(|file| read(file)).collect()
    }

    /// Where a point's record lies: its name says what it is.
    pub fn file(&self, experiment: &Experiment, point: &Point) -> PathBuf {
        let name = format!("{} {} {}", experiment.name, point.series, point.x).to_lowercase();
        let plain: String = name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect();
        self.path.join(format!("{plain}.json"))
    }

    /// The record of a point, if there is one already.
    ///
    /// # Errors
    ///
    /// The file is damaged, or holds something else than this point, measured as it is to be now:
    /// nothing of that is overwritten.
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
            return differs("parameters", "another release, or another --quick, --full".to_owned());
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
            // Hosts of one name may be different machines, and the same machine may be another one by now.
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
        // Earlier releases pinned nothing and did not say so.
        let pinned = |e: &Environment| -> Vec<Option<Vec<usize>>> {
            std::iter::once(e).chain(e.others()).map(|e| Some(e.pinning.as_ref()?.cpus.clone())).collect()
        };
        if then.pinning.is_some() && pinned(then) != pinned(now) {
            let why = now.pinning.as_ref().map_or_else(String::new, ToString::to_string);
            return differs("environment.pinning", why);
        }
        Ok(Some(record))
    }

    /// Adds one repetition to a point's record, which is there as it was or as it is to be, but never
    /// half.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get), or the file cannot be written: then the record is as it was.
    pub fn add(
        &self,
        experiment: &Experiment,
        point: &Point,
        environment: &Environment,
        result: PointResult,
    ) -> Result<(), DirectoryError> {
        let mut record = self
            .get(experiment, point, environment)?
            .unwrap_or_else(|| PointRecord::new(experiment, point, environment.clone()));
        record.repetitions.push(result);
        write_whole(&self.file(experiment, point), &record)
    }
}

fn read(path: &Path) -> Result<PointRecord, DirectoryError> {
    let io = |error| DirectoryError::Io { path: path.to_owned(), error };
    let json = files::read_regular(path, MAX_RECORD_BYTES).map_err(io)?;
    PointRecord::parse(&json).map_err(|error| DirectoryError::Record { path: path.to_owned(), error })
}

fn write_whole(path: &Path, record: &PointRecord) -> Result<(), DirectoryError> {
    let write = || -> io::Result<()> {
        // In one piece: a writer that is handed each word of a record by itself makes thousands of system calls.
        let mut text = serde_json::to_vec(record)?;
        text.push(b'\n');
        files::replace(path, &text)
    };
    write().map_err(|error| DirectoryError::Io { path: path.to_owned(), error })
}
