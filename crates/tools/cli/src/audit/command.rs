//! A benchmark that runs while the counters of all devices are read.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io::{ErrorKind, Read, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread::spawn;
use std::time::{Duration, Instant};

use doorbell_audit::Counted;
use doorbell_counters::{Identity, Look, Monitor};
use doorbell_sync::IgnorePoison;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

use crate::drop_ins;
use crate::ending;
use crate::failure::{Failure, Usage};
use crate::forwarding::Forwarding;
use crate::output::Log;

/// Interval between two readings of the counters.
const INTERVAL: Duration = Duration::from_millis(500);
/// Maximum bytes of standard output, and of standard error, that are kept.
const MOST_BYTES: usize = 16 << 20;
/// Bytes that are read and written at once.
const CHUNK_BYTES: usize = 16 << 10;
/// Time after the end of the command in which the rest of its output is read. Programs that the command has started may
/// keep its output open for longer.
const REST: Duration = Duration::from_secs(1);

/// Results of a command.
pub(super) struct Ran {
    /// Copy of the standard output.
    pub(super) output: String,
    /// Copy of the standard error.
    pub(super) errors: String,
    pub(super) counted: Vec<Counted>,
    /// CPUs that the command used on average.
    pub(super) busy_cpus: Option<f64>,
    pub(super) succeeded: bool,
    pub(super) notes: Vec<String>,
}

/// Runs a command to its end. The command keeps the standard input of this process, and its output appears on standard
/// error. Signals that would end this process go to the command until its end. `device` selects the devices that count
/// ([`Identity::is_meant_by`]), also if another program has them.
pub(super) fn run(words: &[OsString], software: bool, device: Option<&str>, sysfs: &Path) -> Result<Ran, Failure> {
    let [program, arguments @ ..] = words else {
        return Err(Usage("no command is given: use doorbell audit -- COMMAND".to_owned()).into());
    };
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    if software {
        command.envs(drop_ins::variables()?);
    }
    let forwarding = Forwarding::begin()?;
    let mut monitor = Monitor::new(sysfs);
    let mut counters = Counters { named: device.map(str::to_owned), ..Counters::default() };
    counters.add(monitor.look());
    let name = program.to_string_lossy();
    let (started, cpu_before_s) = (Instant::now(), cpu_of_children_s());
    let mut child = command.spawn().map_err(|error| format!("{name} could not be started: {error}"))?;
    ending::set_program(i32::try_from(child.id()).unwrap_or(0));
    counters.command = Some(child.id());
    let (output, errors) = (child.stdout.take().map(relay), child.stderr.take().map(relay));
    let mut next = Instant::now() + INTERVAL;
    let status = forwarding.wait(&mut child, || {
        if Instant::now() >= next {
            counters.add(monitor.look());
            next += INTERVAL;
        }
    });
    ending::set_program(0);
    let status = status?;
    counters.add(monitor.look());
    let seconds = started.elapsed().as_secs_f64();
    let busy_cpus = cpu_before_s.zip(cpu_of_children_s()).map(|(before, after)| (after - before) / seconds);
    let (counted, mut notes) = counters.finish();
    let deadline = Instant::now() + REST;
    let [output, errors] = [output, errors].map(|relayed| {
        let Some(relayed) = relayed else { return String::new() };
        let rest = deadline.saturating_duration_since(Instant::now());
        if relayed.is_open.recv_timeout(rest) == Err(RecvTimeoutError::Timeout) {
            notes.push(format!("a program that {name} has started keeps the output open: the rest is not used"));
        }
        let bytes = std::mem::take(&mut *relayed.copy.lock().ignore_poison());
        if bytes.len() >= MOST_BYTES {
            notes.push(format!("only the first {MOST_BYTES} bytes of the output are used"));
        }
        String::from_utf8_lossy(&bytes).into_owned()
    });
    if !status.success() {
        notes.push(format!("{name} ended with {status}"));
    }
    Ok(Ran { output, errors, counted, busy_cpus, succeeded: status.success(), notes })
}

/// Pipe whose contents are copied.
struct Relayed {
    copy: Arc<Mutex<Vec<u8>>>,
    /// Disconnected after the end of the pipe.
    is_open: Receiver<()>,
}

/// Copies the contents of a pipe, and writes them to standard error.
fn relay(mut pipe: impl Read + Send + 'static) -> Relayed {
    let copy = Arc::new(Mutex::new(Vec::new()));
    let (open, is_open) = channel();
    let relayed = Relayed { copy: Arc::clone(&copy), is_open };
    spawn(move || {
        let _open = open;
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let read = match pipe.read(&mut chunk) {
                Ok(0) => return,
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return,
            };
            // Standard error may have no reader.
            let _ = Log.write_all(&chunk[..read]);
            let mut copy = copy.lock().ignore_poison();
            let room = MOST_BYTES - copy.len();
            copy.extend_from_slice(&chunk[..read.min(room)]);
        }
    });
    relayed
}

/// Returns the CPU time of all ended child processes in seconds.
fn cpu_of_children_s() -> Option<f64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).ok()?;
    let microseconds = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Some(microseconds as f64 / 1e6)
}

/// Growth of the counters of the kernel's devices, and of the software RNICs of the command.
#[derive(Default)]
struct Counters {
    /// Process of the command, after its start.
    command: Option<u32>,
    /// Selector of the devices that count in any case.
    named: Option<String>,
    /// Labels of the selected devices.
    meant: BTreeSet<String>,
    /// Labels of the software RNICs that count.
    own: BTreeSet<String>,
    /// Labels of the software RNICs of other programs.
    left_out: BTreeSet<String>,
    devices: BTreeMap<String, Counted>,
    notes: Vec<String>,
}

/// Maximum number of generations between the command and a program with a software RNIC.
const GENERATIONS: usize = 64;

/// Returns whether a process is `ancestor`, or descends from it.
fn descends(pid: u32, ancestor: u32) -> bool {
    let parent = |pid: u32| -> Option<u32> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
    };
    std::iter::successors(Some(pid), |pid| parent(*pid)).take(GENERATIONS).any(|pid| pid == ancestor)
}

impl Counters {
    fn add(&mut self, look: Look) {
        for note in look.notes {
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
        for device in look.devices {
            if !self.counts(&device.sample.identity) {
                continue;
            }
            let Some(rates) = device.rates else { continue };
            let label = device.sample.identity.label;
            self.devices.entry(label.clone()).or_insert_with(|| Counted::new(label)).add(&rates);
        }
    }

    /// Returns whether the counters of a device may be those of the benchmark. Leaves out software RNICs of other
    /// programs. A program of the command counts also after its end.
    fn counts(&mut self, identity: &Identity) -> bool {
        let label = || identity.label.clone();
        let is_meant = self.named.as_ref().is_some_and(|selector| identity.is_meant_by(selector));
        if is_meant {
            self.meant.insert(label());
        }
        let Some(pid) = identity.pid else { return true };
        let is_own = is_meant
            || self.own.contains(&identity.label)
            || self.command.is_some_and(|command| descends(pid, command));
        if is_own {
            self.left_out.remove(&identity.label);
            self.own.insert(label());
        } else {
            self.left_out.insert(label());
        }
        is_own
    }

    /// Returns the growth of the counters, and the notes. If selected devices have counters, only they count.
    fn finish(self) -> (Vec<Counted>, Vec<String>) {
        let Self { meant, left_out, mut devices, mut notes, .. } = self;
        if devices.keys().any(|label| meant.contains(label)) {
            devices.retain(|label, _| meant.contains(label));
        } else if !left_out.is_empty() {
            let labels: Vec<_> = left_out.into_iter().collect();
            let left_out = "the software RNICs of other programs are left out: select one by --device, of";
            notes.push(format!("{left_out} {}", labels.join(", ")));
        }
        (devices.into_values().collect(), notes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_processes_of_the_command_descend_from_it() {
        let (own, mut child) = (std::process::id(), Command::new("sleep").arg("60").spawn().unwrap());
        let found = (descends(child.id(), own), descends(own, own), descends(own, child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, (true, true, false));
    }
}
