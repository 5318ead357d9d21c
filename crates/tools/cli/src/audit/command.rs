//! A benchmark that runs while the counters of all devices are read.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use doorbell_audit::Counted;
use doorbell_counters::{Look, Monitor};
use doorbell_sync::IgnorePoison;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill};
use nix::sys::time::TimeValLike;
use nix::unistd::Pid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::failure::{Failure, Usage};
use crate::output::note;

/// Interval between two readings of the counters.
const INTERVAL: Duration = Duration::from_millis(500);
/// Interval between two checks whether the command has ended, or a signal has arrived.
const CHECK: Duration = Duration::from_millis(20);
/// Maximum bytes of the output that are kept.
const MOST_BYTES: usize = 16 << 20;

/// Results of a command.
pub(super) struct Ran {
    /// Copy of the output, of both standard output and standard error.
    pub(super) output: String,
    pub(super) counted: Vec<Counted>,
    /// CPUs that the command used on average.
    pub(super) busy_cpus: Option<f64>,
    pub(super) succeeded: bool,
    pub(super) notes: Vec<String>,
}

/// Runs a command to its end. The command keeps the standard input of this process, and its output appears on standard
/// error. Signals that would end this process go to the command.
pub(super) fn run(words: &[OsString], software: bool, sysfs: &Path) -> Result<Ran, Failure> {
    let [program, arguments @ ..] = words else {
        return Err(Usage("no command is given: use doorbell audit -- COMMAND".to_owned()).into());
    };
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    if software {
        command.env("LD_PRELOAD", doorbell_reach::preloaded(doorbell_reach::library()?));
    }
    let signal = Arc::new(AtomicUsize::new(0));
    for number in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register_usize(number, Arc::clone(&signal), number as usize)?;
    }
    let mut monitor = Monitor::new(sysfs);
    let mut counters = Counters::default();
    counters.add(monitor.look());
    let name = program.to_string_lossy();
    let (started, cpu_before_s) = (Instant::now(), cpu_of_children_s());
    let mut child = command.spawn().map_err(|error| format!("{name} could not be started: {error}"))?;
    let copy = Arc::new(Mutex::new(Vec::new()));
    let readers = [
        child.stdout.take().map(|pipe| relay(pipe, Arc::clone(&copy))),
        child.stderr.take().map(|pipe| relay(pipe, Arc::clone(&copy))),
    ];
    let status = wait(&mut child, &signal, || counters.add(monitor.look()))?;
    counters.add(monitor.look());
    let seconds = started.elapsed().as_secs_f64();
    let busy_cpus = cpu_before_s.zip(cpu_of_children_s()).map(|(before, after)| (after - before) / seconds);
    for reader in readers.into_iter().flatten() {
        // A reader that panicked has written its message already.
        let _ = reader.join();
    }
    let bytes = std::mem::take(&mut *copy.lock().ignore_poison());
    let mut notes = counters.notes;
    if bytes.len() >= MOST_BYTES {
        notes.push(format!("only the first {MOST_BYTES} bytes of the output are used"));
    }
    if !status.success() {
        notes.push(format!("{name} ended with {status}"));
    }
    Ok(Ran {
        output: String::from_utf8_lossy(&bytes).into_owned(),
        counted: counters.devices.into_values().collect(),
        busy_cpus,
        succeeded: status.success(),
        notes,
    })
}

/// Waits for the end of the command, forwards signals, and calls `look` at each interval.
fn wait(child: &mut Child, signal: &AtomicUsize, mut look: impl FnMut()) -> Result<ExitStatus, Failure> {
    let mut next = Instant::now() + INTERVAL;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        let number = signal.swap(0, Ordering::Relaxed);
        if let Ok(signal) = Signal::try_from(number as i32)
            && let Ok(id) = i32::try_from(child.id())
        {
            // The command may have ended meanwhile.
            let _ = kill(Pid::from_raw(id), signal);
        }
        if Instant::now() >= next {
            look();
            next += INTERVAL;
        }
        sleep(CHECK);
    }
}

/// Copies the lines of a pipe, and writes them to standard error.
fn relay(pipe: impl Read + Send + 'static, copy: Arc<Mutex<Vec<u8>>>) -> JoinHandle<()> {
    spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut line = Vec::new();
        while pipe.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            note!("{}", String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(&line)));
            let mut copy = copy.lock().ignore_poison();
            let room = MOST_BYTES - copy.len();
            copy.extend_from_slice(&line[..line.len().min(room)]);
            line.clear();
        }
    })
}

/// Returns the CPU time of all ended child processes in seconds.
fn cpu_of_children_s() -> Option<f64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).ok()?;
    let microseconds = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Some(microseconds as f64 / 1e6)
}

/// Growth of the counters of all devices.
#[derive(Default)]
struct Counters {
    devices: BTreeMap<String, Counted>,
    notes: Vec<String>,
}

impl Counters {
    fn add(&mut self, look: Look) {
        for note in look.notes {
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
        for device in look.devices {
            let Some(rates) = device.rates else { continue };
            let label = device.sample.identity.label;
            self.devices.entry(label.clone()).or_insert_with(|| Counted::new(label)).add(&rates);
        }
    }
}
