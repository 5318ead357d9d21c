//! A process of the program `doorbell-soak`, and samples of its state.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use doorbell_sync::IgnorePoison as _;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::place;

/// Names of counters in the output of a process. The counters only rise.
pub(super) const COUNTS: [&str; 4] = ["verified", "finished", "departed", "errors"];
/// Names of tables in the output of a process, which prints the size of each table.
pub(super) const TABLES: [&str; 7] = ["conversations", "qps", "cqs", "regions", "pds", "destinations", "stale_keys"];

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().ignore_poison()
}

/// Newest value of each name in the output of a process, and the number of printed lines.
#[derive(Clone, Debug, Default)]
struct Printed {
    lines: u64,
    values: BTreeMap<String, u64>,
}

impl Printed {
    /// Parses a line of pairs of names and numbers.
    fn take(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        for pair in words.chunks_exact(2) {
            if let Ok(value) = pair[1].parse() {
                self.values.insert(pair[0].to_owned(), value);
            }
        }
        self.lines += 1;
    }

    /// Returns a number of a sample that no line has.
    fn lacks(&self) -> Option<&'static str> {
        COUNTS.into_iter().chain(TABLES).find(|name| !self.values.contains_key(*name))
    }
}

/// State of a process at one time.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample {
    pub(super) second: f64,
    pub(super) resident_kib: u64,
    pub(super) descriptors: u64,
    pub(super) threads: u64,
    pub(super) counts: [u64; COUNTS.len()],
    pub(super) tables: [u64; TABLES.len()],
}

impl Sample {
    /// Returns the numbers that must return to their earlier values: descriptors, threads and sizes of tables.
    pub(super) fn returning(&self) -> Vec<(&'static str, u64)> {
        let own = [("descriptors", self.descriptors), ("threads", self.threads)];
        own.into_iter().chain(TABLES.into_iter().zip(self.tables)).collect()
    }
}

/// A process. Dropping this handle kills the process.
pub(super) struct Worker {
    pub(super) name: String,
    child: Mutex<Child>,
    pid: u32,
    input: Mutex<Option<ChildStdin>>,
    printed: Arc<Mutex<Printed>>,
    reader: Mutex<Option<std::thread::JoinHandle<()>>>,
    log: PathBuf,
}

impl Worker {
    pub(super) fn start(name: String, mut command: Command) -> Result<Self, String> {
        let log = place::own_file("soak.txt");
        let file = File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::from(file));
        let mut child = command.spawn().map_err(|error| format!("{command:?} could not be started: {error}"))?;
        let (pid, input) = (child.id(), Mutex::new(child.stdin.take()));
        let printed = Arc::new(Mutex::new(Printed::default()));
        let reader = child.stdout.take().map(|output| {
            let printed = Arc::clone(&printed);
            std::thread::spawn(move || {
                BufReader::new(output).lines().map_while(Result::ok).for_each(|line| locked(&printed).take(&line));
            })
        });
        Ok(Self { name, child: Mutex::new(child), pid, input, printed, reader: Mutex::new(reader), log })
    }

    /// Returns the newest value of a name, or 0 if the process has not printed a value yet.
    pub(super) fn value(&self, name: &str) -> u64 {
        locked(&self.printed).values.get(name).copied().unwrap_or(0)
    }

    /// Checks that the process has printed each number of a sample. A number that it never prints would never grow.
    pub(super) fn expect_all_numbers(&self) -> Result<(), String> {
        match locked(&self.printed).lacks() {
            Some(name) => Err(format!("{} prints no {name}", self.name)),
            None => Ok(()),
        }
    }

    pub(super) fn lines(&self) -> u64 {
        locked(&self.printed).lines
    }

    /// Waits until a value is not 0, such as the port of a server.
    pub(super) fn wait_for(&self, name: &str, patience: Duration) -> Result<u64, String> {
        let until = Instant::now() + patience;
        loop {
            match self.value(name) {
                0 if self.ended().is_some() || Instant::now() > until => {
                    return Err(format!("the process prints no {name}: {}", self.report()));
                }
                0 => std::thread::sleep(Duration::from_millis(20)),
                value => return Ok(value),
            }
        }
    }

    /// Returns the state now, or `None` if the process has ended.
    pub(super) fn sample(&self, second: f64) -> Option<Sample> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        let descriptors = fs::read_dir(format!("/proc/{}/fd", self.pid)).ok()?.count() as u64;
        let (resident_kib, threads) = (field("VmRSS:")?, field("Threads:")?);
        let printed = locked(&self.printed).clone();
        let value = |name: &str| printed.values.get(name).copied().unwrap_or(0);
        let (counts, tables) = (COUNTS.map(value), TABLES.map(value));
        Some(Sample { second, resident_kib, descriptors, threads, counts, tables })
    }

    pub(super) fn ended(&self) -> Option<ExitStatus> {
        locked(&self.child).try_wait().ok().flatten()
    }

    /// Stops the process for the time `time`. Has no effect if the process has ended.
    pub(super) fn stop_for(&self, time: Duration) {
        let pid = Pid::from_raw(self.pid as i32);
        let _ = kill(pid, Signal::SIGSTOP);
        std::thread::sleep(time);
        let _ = kill(pid, Signal::SIGCONT);
    }

    /// Closes the standard input of the process. A lasting process then ends.
    pub(super) fn ask_to_end(&self) {
        locked(&self.input).take();
    }

    /// Waits until the process has ended and its last line is read.
    pub(super) fn wait(&self, patience: Duration) -> Result<ExitStatus, String> {
        let until = Instant::now() + patience;
        while Instant::now() < until {
            if let Some(status) = self.ended() {
                if let Some(reader) = locked(&self.reader).take() {
                    // The reader thread ends when the process ends.
                    let _ = reader.join();
                }
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(format!("the process does not end within {} s: {}", patience.as_secs(), self.report()))
    }

    /// Returns the name, the exit status and the standard error of the process.
    pub(super) fn report(&self) -> String {
        let said = fs::read(&self.log).unwrap_or_default();
        let status = self.ended().map_or_else(|| "still running".to_owned(), |status| status.to_string());
        format!("{}, {status}\n{}", self.name, String::from_utf8_lossy(&said))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let mut child = locked(&self.child);
        // The process may have ended already.
        let _ = child.kill();
        let _ = child.wait();
        let _ = fs::remove_file(&self.log);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_value_of_a_name_counts() {
        let mut printed = Printed::default();
        printed.take("port 17");
        printed.take("verified 5 errors 0 qps");
        printed.take("verified 9 errors x");
        assert_eq!(printed.lines, 3);
        let values: Vec<_> = printed.values.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        assert_eq!(values, [("errors", 0), ("port", 17), ("verified", 9)]);
    }

    #[test]
    fn a_number_that_is_never_printed_is_missed() {
        let names: Vec<_> = COUNTS.into_iter().chain(TABLES).collect();
        let mut printed = Printed::default();
        let line = |names: &[&str]| names.iter().map(|name| format!("{name} 0 ")).collect::<String>();
        printed.take(&line(&names[1..]));
        assert_eq!(printed.lacks(), Some(names[0]));
        printed.take(&line(&names[..1]));
        assert_eq!(printed.lacks(), None);
    }

    #[test]
    fn a_worker_is_sampled_until_its_input_ends() {
        let worker = Worker::start("cat".to_owned(), crate::shell::command("cat", &[])).unwrap();
        let sample = worker.sample(0.0).unwrap();
        assert_eq!(sample.threads, 1);
        assert!(sample.descriptors >= 3 && sample.resident_kib > 0, "{sample:?}");
        worker.ask_to_end();
        assert!(worker.wait(Duration::from_secs(60)).unwrap().success());
        assert_eq!(worker.sample(0.0), None);
    }
}
