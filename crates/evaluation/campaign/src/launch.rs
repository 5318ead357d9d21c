//! Launcher of this process, and the meeting point of the processes of a launch.
//!
//! `mpirun`, `srun` and similar launchers start the same command several times. They pass each process its number in
//! the environment, but not the address of process number 0. If all processes are on one machine, number 0 writes its
//! address to a file in a directory of this user. Between machines, the user gives HOST:PORT of number 0, or a shared
//! directory for this file.

use std::fmt::Display;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use doorbell_exchange::address::{Listen, with_port};
use doorbell_output::files;
use nix::fcntl::OFlag;
use nix::unistd::AccessFlags;
use serde_json::{Value, json};

use doorbell_study::session::Token;
use doorbell_study::{Failure, Usage};

/// Launch that this process belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Number of this process. Process number 0 coordinates.
    pub rank: usize,
    /// Number of processes.
    pub ranks: usize,
    /// Meeting point of the processes.
    pub place: Rendezvous,
    /// Whether all processes are on this machine.
    is_local: bool,
}

/// Meeting point at which the processes of a launch find process number 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rendezvous {
    /// A host and port.
    Address(String),
    /// A file that contains the host and port.
    File(PathBuf),
}

/// Names of the environment variables of a launcher. The variable `rank` has the number of a process, `ranks` the count
/// of all processes, and `here` the count of processes on this machine.
struct Variables {
    rank: &'static str,
    ranks: &'static str,
    here: &'static str,
}

/// Known launchers. Open MPI comes before Slurm, since Slurm may start the processes of Open MPI.
const LAUNCHERS: [Variables; 3] = [
    Variables { rank: "OMPI_COMM_WORLD_RANK", ranks: "OMPI_COMM_WORLD_SIZE", here: "OMPI_COMM_WORLD_LOCAL_SIZE" },
    // Slurm sets this variable of `ranks` only in a step. A batch script is no step, and runs alone.
    Variables { rank: "SLURM_PROCID", ranks: "SLURM_STEP_NUM_TASKS", here: "" },
    // MPICH and its derivatives.
    Variables { rank: "PMI_RANK", ranks: "PMI_SIZE", here: "MPI_LOCALNRANKS" },
];

/// Environment variables with the name of a launch, which keeps the files of simultaneous launches apart.
const JOBS: [&str; 2] = ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"];

impl Launch {
    /// Returns the launch in the environment, or `None` if this process runs alone. `given` is the meeting point, if
    /// the user gave one.
    ///
    /// # Errors
    ///
    /// The environment lacks the address of process number 0, and the user gave no meeting point.
    pub fn of(
        variable: impl Fn(&str) -> Option<String>,
        given: Option<&str>,
        port: u16,
    ) -> Result<Option<Self>, Usage> {
        let number = |name: &str| variable(name).and_then(|text| text.parse::<usize>().ok());
        let found = LAUNCHERS.iter().find_map(|it| Some((it, number(it.rank)?, number(it.ranks)?)));
        let Some((launcher, rank, ranks)) = found.filter(|(_, rank, ranks)| *ranks > 1 && rank < ranks) else {
            return Ok(None);
        };
        let is_local = match launcher.rank {
            "SLURM_PROCID" => number("SLURM_STEP_NUM_NODES") == Some(1),
            _ => number(launcher.here) == Some(ranks),
        };
        let slurm = || Some(format!("slurm-{}-{}", variable("SLURM_JOB_ID")?, variable("SLURM_STEP_ID")?));
        let job = match launcher.rank {
            "SLURM_PROCID" => slurm(),
            _ => JOBS.iter().find_map(|name| variable(name)),
        };
        let place = match given {
            // `plain` removes the slashes of a job name, so that the name is not a path.
            Some(directory) if directory.contains('/') => Rendezvous::File(
                Path::new(directory).join(format!("{SHARED_PREFIX}{}", plain(job.as_deref().unwrap_or("study")))),
            ),
            Some(address) => Rendezvous::Address(with_port(address, port)),
            None if is_local => {
                // A launcher that sets no job name is the parent of all its processes.
                let job = job.unwrap_or_else(|| format!("parent-{}", std::os::unix::process::parent_id()));
                Rendezvous::File(own_directory().join(plain(&job)))
            }
            None => match variable("SLURM_STEP_NODELIST").as_deref().and_then(first_node) {
                Some(node) if launcher.rank == "SLURM_PROCID" => Rendezvous::Address(with_port(&node, port)),
                _ => {
                    return Err(Usage(
                        "the launcher's environment lacks the address of process 0: give all processes the same \
                         --rendezvous, its HOST:PORT or a directory that all machines share (with a slash in its name)"
                            .to_owned(),
                    ));
                }
            },
        };
        Ok(Some(Self { rank, ranks, place, is_local }))
    }

    /// Returns the address at which process number 0 listens.
    pub fn listens_on(&self) -> Listen {
        match &self.place {
            // Listen on all addresses: the host name may resolve to different addresses in different processes.
            Rendezvous::Address(address) => match address.rsplit(':').next().and_then(|port| port.parse().ok()) {
                Some(port) if !is_loopback(address) => Listen::All { port },
                _ => Listen::At(address.clone()),
            },
            Rendezvous::File(_) if self.is_local => Listen::At("127.0.0.1:0".to_owned()),
            Rendezvous::File(_) => Listen::All { port: 0 },
        }
    }

    /// Returns the token of all processes. If the user gave no token, the token is random, and the file of number 0
    /// passes it on.
    ///
    /// # Errors
    ///
    /// Process number 0 at an address of several machines has no token.
    pub fn token(&self, given: Option<Token>) -> Result<Option<Token>, Failure> {
        match &self.place {
            _ if given.is_some() => Ok(given),
            Rendezvous::File(_) => Ok(Some(Token::random()?)),
            Rendezvous::Address(address) if is_loopback(address) => Ok(None),
            Rendezvous::Address(address) => Err(Usage(format!(
                "process 0 at {address} must have a token, or any client could measure: give all processes the \
                 same DOORBELL_TOKEN"
            ))
            .into()),
        }
    }

    /// Checks that process number 0 can write its file, and that the other processes can read the file. Each process
    /// runs this check, since number 0 cannot report an error to the others without the file.
    ///
    /// # Errors
    ///
    /// The directory of the file does not exist, number 0 cannot write to it, or another process cannot read it. Or
    /// other users can write to the directory of this user.
    pub fn check(&self) -> Result<(), Failure> {
        let Rendezvous::File(path) = &self.place else { return Ok(()) };
        let directory = path.parent().unwrap_or(path);
        let failed = |why: &dyn Display| Failure::from(format!("{}: {why}", directory.display()));
        if directory == own_directory() {
            return check_own_directory(&std::env::temp_dir()).map_err(|error| Failure::from(error.to_string()));
        }
        if !directory.is_dir() {
            return Err(failed(&"this machine has no such directory: --rendezvous must be a shared directory"));
        }
        let needed = if self.rank == 0 { AccessFlags::W_OK | AccessFlags::X_OK } else { AccessFlags::X_OK };
        let allowed = nix::unistd::access(directory, needed);
        allowed.map_err(|error| failed(&format_args!("processes of the launch cannot meet there: {error}")))
    }

    /// Writes the file with the address of process number 0. Dropping the announcement removes the file.
    ///
    /// # Errors
    ///
    /// The file cannot be written ([`check`](Self::check)).
    pub fn announce(&self, port: u16, token: Option<&Token>) -> Result<Announcement, Failure> {
        self.check()?;
        let Rendezvous::File(path) = &self.place else { return Ok(Announcement(None)) };
        let host = if self.is_local { "127.0.0.1".to_owned() } else { host_name()? };
        let told = json!({ "address": with_port(&host, port), "token": token });
        let directory = path.parent().unwrap_or(path);
        match directory == own_directory() {
            true => remove_left_behind(directory, "", LEFT_HERE),
            false => remove_left_behind(directory, SHARED_PREFIX, LEFT_ELSEWHERE),
        }
        let write = || {
            let temporary = path.with_extension(format!("{}.tmp", files::random_name()?));
            let mut file = files::create_new(&temporary, 0o600)?;
            // This process holds the lock until it ends. Ignore an error: on a file system without locks, other
            // processes do not recognize the file of a dead process.
            let _ = file.try_lock();
            file.write_all(told.to_string().as_bytes())?;
            fs::rename(&temporary, path)?;
            Ok(file)
        };
        let file = write().map_err(|error: io::Error| format!("{}: {error}", path.display()))?;
        Ok(Announcement(Some((path.clone(), file))))
    }

    /// Returns the address of process number 0, and the token.
    ///
    /// # Errors
    ///
    /// Number 0 has not announced both yet.
    pub fn find(&self, given: Option<Token>) -> Result<(String, Option<Token>), Failure> {
        let path = match &self.place {
            Rendezvous::Address(address) => return Ok((address.clone(), given)),
            Rendezvous::File(path) => path,
        };
        let failed = |error| format!("{}: {error}", path.display());
        let mut file = open_own(path, false).map_err(failed)?;
        // Do not check the lock in a shared directory: locks of other machines may be invisible here.
        if self.is_local && file.try_lock_shared().is_ok() {
            return Err(format!("{} was left behind by a launch that has ended", path.display()).into());
        }
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(failed)?;
        let damaged = || Failure::from(format!("{} lacks the address of process 0", path.display()));
        let told: Value = serde_json::from_slice(&text).map_err(|_| damaged())?;
        let address = told["address"].as_str().ok_or_else(damaged)?;
        let token = told["token"].as_str().and_then(|token| token.parse().ok());
        Ok((address.to_owned(), given.or(token)))
    }
}

/// Prefix of the names of files in a shared directory with the address of process number 0.
const SHARED_PREFIX: &str = "doorbell-";

/// Minimum age at which an unlocked file of a launch on this machine is removed. A younger file may belong to a process
/// that has not locked it yet.
const LEFT_HERE: Duration = Duration::from_secs(10);

/// Minimum age at which a file in a shared directory is removed. Locks of other machines may be invisible there, but no
/// process still looks for a file of this age.
const LEFT_ELSEWHERE: Duration = Duration::from_secs(24 * 3600);

/// Opens a regular file that belongs to this user, without following a link. An exclusive lock on NFS requires a
/// `writable` file (flock(2)).
fn open_own(path: &Path, writable: bool) -> io::Result<fs::File> {
    let mut options = fs::OpenOptions::new();
    options.read(true).write(writable).custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits());
    let file = options.open(path)?;
    let found = file.metadata()?;
    if found.is_file() && found.uid() == files::own_user() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, "the file must belong to this user"))
}

/// Removes files with tokens that killed launches have left behind. Keeps files that cannot be removed.
fn remove_left_behind(directory: &Path, prefix: &str, age: Duration) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix)) {
        let path = entry.path();
        let is_left = || -> io::Result<bool> {
            let mut file = open_own(&path, true)?;
            let found = file.metadata()?;
            let is_old = found.modified()?.elapsed().is_ok_and(|elapsed| elapsed > age);
            if !is_old || file.try_lock().is_err() {
                return Ok(false);
            }
            let mut text = Vec::new();
            Read::by_ref(&mut file).take(LONGEST).read_to_end(&mut text)?;
            // A launch that is killed while it writes leaves an empty file or a part of the text.
            let is_ours = text.is_empty() || text.starts_with(b"{\"address\":");
            let still = fs::symlink_metadata(&path)?;
            Ok(is_ours && (still.ino(), still.dev()) == (found.ino(), found.dev()))
        };
        if is_left().unwrap_or(false) {
            let _ = fs::remove_file(&path);
        }
    }
}

/// Number of bytes that are read from a file to recognize it.
const LONGEST: u64 = 64;

/// The file with the address of process number 0. The file stays locked until this process ends.
#[derive(Debug)]
pub struct Announcement(Option<(PathBuf, fs::File)>);

impl Drop for Announcement {
    fn drop(&mut self) {
        if let Some((path, _)) = &self.0 {
            // Another launch may have replaced the file, and then this call removes the file of that launch. Its
            // processes that have not read the file yet fail with an error.
            let _ = fs::remove_file(path);
        }
    }
}

/// Returns the host name of this machine, by which other machines reach it.
fn host_name() -> Result<String, Failure> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname")?;
    Ok(name.trim().to_owned())
}

fn is_loopback(address: &str) -> bool {
    address.starts_with("127.") || address.starts_with("localhost:") || address.starts_with("[::1]:")
}

/// Replaces the characters of a name that are special in paths.
fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || "-_".contains(c) { c } else { '-' }).collect()
}

/// Returns the directory of this user on this machine for files with the address of process number 0, even if it cannot
/// be used. [`Launch::check`] reports the reason.
fn own_directory() -> PathBuf {
    let parent = std::env::temp_dir();
    own_directory_in(&parent).unwrap_or_else(|_| parent.join(own_stem()))
}

fn own_stem() -> String {
    format!("doorbell-{}", files::own_user())
}

/// Finds or creates the directory of this user, so that all processes of a launch find the same directory even if
/// another user has taken its usual name.
fn own_directory_in(parent: &Path) -> io::Result<PathBuf> {
    files::private_directory(parent, &own_stem())
}

/// Checks that no other user can put a file into the directory of this user. Each error names the directory.
fn check_own_directory(parent: &Path) -> io::Result<()> {
    let named = |error: io::Error| {
        let name = parent.join(own_stem()).display().to_string();
        let why = error.to_string();
        if why.contains(&name) { error } else { io::Error::new(error.kind(), format!("{name}: {why}")) }
    };
    let path = own_directory_in(parent).map_err(named)?;
    let found = fs::symlink_metadata(&path).map_err(named)?;
    let is_own = found.is_dir() && found.uid() == files::own_user() && found.mode() & 0o077 == 0;
    if is_own {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("{} must be a directory that only this user can use: remove it", path.display()),
    ))
}

/// Returns the first host of a list in Slurm's format: `node[03-07,9],other` begins with `node03`.
fn first_node(list: &str) -> Option<String> {
    let end = list.find([',', '[']).unwrap_or(list.len());
    let (name, rest) = list.split_at(end);
    let number = rest.strip_prefix('[').map(|numbers| numbers.split([',', '-', ']']).next().unwrap_or_default());
    let node = format!("{name}{}", number.unwrap_or_default());
    (!node.is_empty()).then_some(node)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn launch(variables: &[(&str, &str)], given: Option<&str>) -> Result<Option<Launch>, String> {
        let variable =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Launch::of(variable, given, 18515).map_err(|usage| usage.to_string())
    }

    #[test]
    fn launchers_are_known_by_their_environment() {
        assert_eq!(launch(&[], None), Ok(None));
        // A batch script of Slurm, or a single process, runs alone.
        assert_eq!(launch(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")], None), Ok(None));
        assert_eq!(launch(&[("PMI_RANK", "0"), ("PMI_SIZE", "1")], None), Ok(None));

        let open_mpi = [
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            ("PMIX_NAMESPACE", "12/3"),
        ];
        let found = launch(&open_mpi, None).unwrap().unwrap();
        let file = Rendezvous::File(own_directory().join("12-3"));
        assert_eq!((found.rank, found.ranks, &found.place), (1, 2, &file));
        assert_eq!(found.listens_on(), Listen::At("127.0.0.1:0".to_owned()));

        let mpich = [("PMI_RANK", "3"), ("PMI_SIZE", "4"), ("MPI_LOCALNRANKS", "2")];
        assert!(launch(&mpich, None).unwrap_err().contains("--rendezvous"));
        let found = launch(&mpich, Some("head:7")).unwrap().unwrap();
        assert_eq!((found.rank, found.place.clone()), (3, Rendezvous::Address("head:7".to_owned())));
        assert_eq!(found.listens_on(), Listen::All { port: 7 });
        assert!(found.token(None).unwrap_err().to_string().contains("DOORBELL_TOKEN"));
        let by_ipv6 = |given| launch(&mpich, Some(given)).unwrap().unwrap();
        assert_eq!(by_ipv6("[fd00::7]:8").listens_on(), Listen::All { port: 8 });
        assert_eq!(by_ipv6("[fd00::7]").place, Rendezvous::Address("[fd00::7]:18515".to_owned()));
        assert_eq!(by_ipv6("::1").listens_on(), Listen::At("[::1]:18515".to_owned()));
        let shared = launch(&mpich, Some("/home/shared")).unwrap().unwrap();
        assert_eq!(shared.place, Rendezvous::File("/home/shared/doorbell-study".into()));

        let slurm = [
            ("SLURM_PROCID", "0"),
            ("SLURM_STEP_NUM_TASKS", "4"),
            ("SLURM_STEP_NUM_NODES", "4"),
            ("SLURM_STEP_NODELIST", "node[07-09,12]"),
            ("SLURM_JOB_ID", "5"),
            ("SLURM_STEP_ID", "0"),
        ];
        let found = launch(&slurm, None).unwrap().unwrap();
        assert_eq!((found.rank, found.ranks, found.place), (0, 4, Rendezvous::Address("node07:18515".to_owned())));
    }

    #[test]
    fn the_first_of_a_list_of_hosts_is_found() {
        for (list, first) in
            [("a", "a"), ("a,b", "a"), ("n[3-5]", "n3"), ("n[03,05],m", "n03"), ("rack1-n[8]", "rack1-n8")]
        {
            assert_eq!(first_node(list).as_deref(), Some(first));
        }
        assert_eq!(first_node(""), None);
    }

    #[test]
    fn the_rendezvous_file_is_found_and_removed() {
        let directory = tempfile::tempdir().unwrap();
        let place = Rendezvous::File(directory.path().join("job"));
        let launch = Launch { rank: 0, ranks: 2, place, is_local: true };
        assert!(launch.find(None).is_err());
        let token = launch.token(None).unwrap();
        let announced = launch.announce(4711, token.as_ref()).unwrap();
        assert_eq!(launch.find(None).unwrap(), ("127.0.0.1:4711".to_owned(), token));
        drop(announced);
        assert!(launch.find(None).is_err());
    }

    /// NFS with root_squash gives directories that root creates to another user. The file system user of a thread has
    /// the same effect.
    #[test]
    fn a_directory_on_a_file_system_that_maps_users_is_explained() {
        if !doorbell_testing::root_or_leave_out("tests that change the owner of files") {
            return;
        }
        let root = tempfile::tempdir().unwrap();
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let check = || {
            nix::unistd::setfsuid(nix::unistd::Uid::from_raw(65_534));
            check_own_directory(root.path())
        };
        let why = std::thread::scope(|scope| scope.spawn(check).join().unwrap()).unwrap_err().to_string();
        let name = root.path().join(own_stem()).display().to_string();
        assert_eq!(why.matches(&name).count(), 1, "{why}");
        assert!(why.contains("root_squash") && why.contains("local directory"), "{why}");
        check_own_directory(root.path()).unwrap();
        let missing = check_own_directory(&root.path().join("missing")).unwrap_err().to_string();
        assert!(missing.contains("/missing/doorbell-") && missing.contains("No such file"), "{missing}");
    }

    #[test]
    fn files_of_killed_launches_are_ignored_and_removed() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let aged = |name: &str, text: &str| {
            let file = fs::File::create(at(name)).unwrap();
            fs::write(at(name), text).unwrap();
            file.set_modified(std::time::SystemTime::now() - 2 * LEFT_ELSEWHERE).unwrap();
            file
        };
        let told = "{\"address\":\"127.0.0.1:9\",\"token\":\"secret\"}";
        aged("doorbell-killed", told);
        aged("doorbell-notes", "of another program");
        aged("other", told);
        let lives = aged("doorbell-lives", told);
        lives.lock().unwrap();
        fs::write(at("doorbell-young"), told).unwrap();
        std::os::unix::fs::symlink(at("other"), at("doorbell-link")).unwrap();
        let launch = |name: &str| Launch { rank: 0, ranks: 2, place: Rendezvous::File(at(name)), is_local: true };
        let error = launch("doorbell-killed").find(None).unwrap_err().to_string();
        assert!(error.contains("left behind"), "{error}");
        assert!(launch("doorbell-link").find(None).is_err());
        assert!(launch("doorbell-lives").find(None).is_ok());
        let _announced = launch("doorbell-new").announce(1, None).unwrap();
        let mut left: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
        left.sort();
        let stay = ["doorbell-link", "doorbell-lives", "doorbell-new", "doorbell-notes", "doorbell-young", "other"];
        assert_eq!(left, stay);
    }

    #[test]
    fn each_process_reports_a_missing_meeting_directory() {
        let directory = tempfile::tempdir().unwrap();
        let place = Rendezvous::File(directory.path().join("none").join("doorbell-job"));
        let error = Launch { rank: 1, ranks: 2, place, is_local: false }.check().unwrap_err().to_string();
        assert!(error.contains("no such directory") && error.contains("--rendezvous"), "{error}");
    }
}
