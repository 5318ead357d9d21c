//! Surroundings of a lane's rounds. These are folders and, if the user is root, separate file systems and namespaces.
//! With them, a check finds only what the programs of this lane left.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};

use super::make;
use super::plan::Plan;
use super::process::Process;
use crate::programs::{doorbell, ports};
use crate::shell::{command, output_of, run};

/// Environment variable with the folder of Doorbell's published counters.
pub(super) const COUNTERS_VARIABLE: &str = "DOORBELL_COUNTERS_DIR";

/// Environment variable that marks the processes of a lane.
const MARK: &str = "XTASK_CHAOS";

/// Size in KiB of the small file system that fills up.
pub(super) const SMALL_KIB: u64 = 64;
/// KiB that are free in the small file system at the start. `doorbell run` rejects a capture if it cannot write its
/// beginning.
pub(super) const START_KIB: u64 = 16;

/// Surroundings of a lane.
pub(super) struct Surroundings {
    folder: PathBuf,
    /// Whether the networks, `/dev/shm` and the small file system belong to this lane alone.
    is_own: bool,
}

impl Surroundings {
    /// Creates surroundings for the calling thread and the processes that it starts.
    pub(super) fn new(folder: PathBuf) -> Result<Self, String> {
        let place = Self { is_own: crate::peers::is_root() && unshare(CloneFlags::CLONE_NEWNS).is_ok(), folder };
        [place.full(), place.counters()].iter().try_for_each(|folder| make(folder))?;
        if place.is_own {
            let small = format!("size={SMALL_KIB}k,mode=700");
            run(command("mount", &["--make-rprivate", "/"]))?;
            run(command("mount", &["-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm"]))?;
            run(command("mount", &["-t", "tmpfs", "-o", &small, "tmpfs", &place.full().to_string_lossy()]))?;
        }
        Ok(place)
    }

    pub(super) fn is_own(&self) -> bool {
        self.is_own
    }

    /// Returns the path of a file system of 64 KiB. Without root, this is a normal folder without a limit.
    pub(super) fn full(&self) -> PathBuf {
        self.folder.join("full")
    }

    pub(super) fn counters(&self) -> PathBuf {
        self.folder.join("counters")
    }

    /// Removes the files of the previous round, and fills a part of the small file system.
    pub(super) fn begin(&self, plan: &Plan) -> Result<(), String> {
        for entry in fs::read_dir(self.full()).into_iter().flatten().flatten() {
            let _ = fs::remove_dir_all(entry.path()).or_else(|_| fs::remove_file(entry.path()));
        }
        let counters = self.full().join("counters");
        make(&counters)?;
        use std::os::unix::fs::PermissionsExt as _;
        for folder in [counters, self.counters()] {
            let private = fs::Permissions::from_mode(0o700);
            fs::set_permissions(&folder, private).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        if self.is_own {
            // Ignore an error of the write, which fails once the file system is full.
            let _ = fs::write(self.full().join("used"), vec![0; plan.used_kib as usize * 1024]);
        }
        for name in ["server", "client"] {
            let _ = fs::remove_dir_all(self.folder.join(name));
        }
        Ok(())
    }

    /// Starts a process of the round.
    pub(super) fn start(
        &self,
        name: &'static str,
        mut run: Command,
        program: &str,
        link: Stdio,
    ) -> Result<Process, String> {
        run.env(MARK, &self.folder);
        Process::start(name, run, program, &self.folder.join(name), link)
    }

    /// Waits until a server listens on a port of TCP or `rdma_cm`.
    pub(super) fn wait_until_listening(
        &self,
        server: &mut Process,
        port: u16,
        patience: Duration,
    ) -> Result<(), String> {
        let until = Instant::now() + patience;
        while !ports::is_listening(server.id(), port) {
            if server.ended().is_some() || Instant::now() > until {
                return Err(format!("the server does not listen on port {port}\n{}", server.report()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Checks that no process and no socket is left. Also checks that no file is left after a further process has
    /// removed the files of killed processes.
    pub(super) fn check(&self, patience: Duration) -> Result<(), String> {
        self.expect_no_process(patience)?;
        self.expect_no_socket()?;
        self.look()?;
        self.expect_no_file()
    }

    fn expect_no_process(&self, patience: Duration) -> Result<(), String> {
        let until = Instant::now() + patience;
        let mut left = self.processes();
        while !left.is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
            left = self.processes();
        }
        if left.is_empty() { Ok(()) } else { Err(format!("processes are left: {left:?}")) }
    }

    /// Checks that no socket is left in a separate network. In a shared network, the function checks nothing, because
    /// sockets may belong to other programs.
    fn expect_no_socket(&self) -> Result<(), String> {
        let sockets = if self.is_own { self.sockets() } else { Vec::new() };
        if sockets.is_empty() { Ok(()) } else { Err(format!("sockets are left:\n{}", sockets.join("\n"))) }
    }

    /// Starts a reader of the counters and a program under `doorbell run`. Both remove the files that killed processes
    /// have left.
    fn look(&self) -> Result<(), String> {
        for counters in [self.counters(), self.full().join("counters")] {
            for words in [&["run", "--processes"][..], &["run", "--", "ls", "/sys/class/infiniband"]] {
                let mut look = command(doorbell(), words);
                look.env(COUNTERS_VARIABLE, &counters);
                // On the full disk, the command may fail because the tree of sysfs files has no room.
                let looked = output_of(look);
                if counters == self.counters() {
                    looked?;
                }
            }
        }
        Ok(())
    }

    fn expect_no_file(&self) -> Result<(), String> {
        let mut folders = vec![self.counters(), self.full().join("counters")];
        if self.is_own {
            folders.push("/dev/shm".into());
        }
        let files: Vec<PathBuf> = folders.iter().flat_map(|folder| files_below(folder)).collect();
        if files.is_empty() { Ok(()) } else { Err(format!("files are left: {files:?}")) }
    }

    /// Returns the remaining processes of this lane.
    fn processes(&self) -> Vec<String> {
        let wanted = format!("{MARK}={}", self.folder.display()).into_bytes();
        let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let is_of_it = |pid: &u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|&byte| byte == 0).any(|variable| variable == wanted)
        };
        let named = |pid: u32| {
            let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            format!("{pid} {}", line.replace('\0', " "))
        };
        pids.filter(is_of_it).map(named).collect()
    }

    /// Returns the sockets of the network, except closed TCP connections in the state TIME-WAIT.
    fn sockets(&self) -> Vec<String> {
        let lines = |table: &str, is_left: fn(&str) -> bool| {
            let text = fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default();
            let lines = text.lines().skip(1).filter(|line| is_left(line));
            lines.map(|line| format!("{table} {line}")).collect::<Vec<_>>()
        };
        let listens = |line: &str| line.split_whitespace().nth(3) == Some("0A");
        let is_ours = |line: &str| line.contains("@doorbell");
        let mut left = lines("unix", is_ours);
        left.extend(["udp", "udp6"].iter().flat_map(|table| lines(table, |_| true)));
        left.extend(["tcp", "tcp6"].iter().flat_map(|table| lines(table, listens)));
        left
    }
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let below = |entry: fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => files_below(&entry.path()),
        _ => vec![entry.path()],
    };
    entries.flat_map(below).collect()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixListener};
    use std::thread;

    use super::*;
    use crate::network;

    const SHORT: Duration = Duration::from_millis(50);
    const PATIENCE: Duration = Duration::from_secs(120);

    /// Runs a test in separate surroundings, and removes them afterwards.
    fn in_surroundings(name: &str, body: impl FnOnce(&Surroundings) + Send) {
        let folder = std::env::temp_dir().join(format!("chaos-place-{}-{name}", std::process::id()));
        let ended: Result<(), String> = network::apart(|| {
            let place = Surroundings::new(folder.clone())?;
            body(&place);
            Ok(())
        });
        let _ = fs::remove_dir_all(folder);
        assert_eq!(ended, Ok(()));
    }

    #[test]
    fn remaining_processes_are_reported() {
        in_surroundings("process", |place| {
            let start = |script: &str| {
                let run = command("sh", &["-c", script]);
                place.start("server", run, "sh", Stdio::null()).unwrap()
            };
            let mut parent = start("sleep 1000 >&2 & echo $!");
            assert!(parent.wait(PATIENCE).unwrap().success());
            let why = place.expect_no_process(SHORT).unwrap_err();
            assert!(why.contains("sleep 1000"), "{why}");
            let child = fs::read_to_string(place.folder.join("server/output.txt")).unwrap();
            assert!(start(&format!("kill -9 {}", child.trim())).wait(PATIENCE).unwrap().success());
            assert_eq!(place.expect_no_process(PATIENCE), Ok(()));
        });
    }

    /// Without root, the test shares the network with other programs, and `expect_no_socket` reports nothing.
    #[test]
    fn remaining_sockets_are_reported() {
        in_surroundings("socket", |place| {
            let expected = |words: &str| {
                let found = place.expect_no_socket();
                let is_found = found.as_ref().is_err_and(|why| why.contains(words));
                assert!(is_found == place.is_own, "{words}: {found:?}");
            };
            assert_eq!(place.expect_no_socket(), Ok(()));
            let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
            expected("udp ");
            drop(udp);
            let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
            expected("tcp ");
            drop(tcp);
            let address = SocketAddr::from_abstract_name(format!("doorbell-chaos-{}", std::process::id())).unwrap();
            let unix = UnixListener::bind_addr(&address).unwrap();
            expected("@doorbell-chaos");
            drop(unix);
            // A process that another test forks has copies of the sockets until it executes a program.
            let until = Instant::now() + Duration::from_secs(60);
            while place.expect_no_socket().is_err() && Instant::now() < until {
                thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(place.expect_no_socket(), Ok(()));
        });
    }

    #[test]
    fn remaining_files_are_reported() {
        in_surroundings("file", |place| {
            make(&place.full().join("counters")).unwrap();
            assert_eq!(place.expect_no_file(), Ok(()));
            let mut folders = vec![place.counters(), place.full().join("counters")];
            if place.is_own {
                folders.push("/dev/shm".into());
            }
            for folder in folders {
                let left = folder.join("doorbell-left");
                fs::write(&left, "").unwrap();
                let why = place.expect_no_file().unwrap_err();
                assert!(why.contains("doorbell-left"), "{why}");
                fs::remove_file(left).unwrap();
                assert_eq!(place.expect_no_file(), Ok(()));
            }
        });
    }
}
