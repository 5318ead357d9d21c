//! Selection of CPUs for the threads of an end.
//!
//! A polling thread keeps a CPU busy. The scheduler may move an unpinned thread to a CPU that another polling thread
//! uses, or to a CPU far from the device. An end therefore pins its threads while they poll. The end uses the CPUs of
//! the device's NUMA node first. It uses one hardware thread of each core before it uses the second hardware thread of
//! any core.
//!
//! The thread of a software RNIC stays unpinned, since it started before any thread was pinned. The scheduler puts it
//! on the CPU of a polling thread only if no other CPU is idle.
//!
//! A point on shared memory has more than two parties: clients, a memory node, and others. Each party has a polling
//! thread.
//!
//! If there are more polling threads than CPUs, no thread is pinned. Two threads pinned to one CPU would wait for each
//! other while another CPU may be idle.

use std::fmt;
use std::str::FromStr;

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::{Machine, Root};

/// Choice of CPUs for pinning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CpuChoice {
    /// Let this module select the CPUs.
    #[default]
    Sensible,
    /// Pin no thread: the scheduler moves threads freely.
    Unpinned,
    /// Use these CPUs, in this order.
    Listed(Vec<usize>),
}

/// Reason why a choice of CPUs cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpuError {
    /// The text is not a list of CPUs.
    #[error("`{0}` is not a list of CPUs: use numbers and ranges separated by commas, such as 0,2,4-7, or none")]
    NoList(String),
    /// The list contains a CPU more than once.
    #[error("CPU {0} is named twice: name each CPU once")]
    Twice(usize),
    /// The machine has no such CPU.
    #[error("CPU {cpu} does not exist or is offline: this machine has {}", list(.online))]
    Absent {
        /// The CPU.
        cpu: usize,
        /// All online CPUs.
        online: Vec<usize>,
    },
    /// A cgroup, `taskset` or a launcher excludes the CPU.
    #[error("this process may not use CPU {cpu}: use CPUs from {}", list(.allowed))]
    Forbidden {
        /// The CPU.
        cpu: usize,
        /// All CPUs that the process may use.
        allowed: Vec<usize>,
    },
    /// The choice lists fewer CPUs than processes measure on this machine.
    #[error(
        "--cpus names {cpus} CPU(s) for {processes} processes on this machine: name a CPU for each, or use --cpus none"
    )]
    TooFew {
        /// Number of listed CPUs.
        cpus: usize,
        /// Number of processes.
        processes: usize,
    },
}

impl FromStr for CpuChoice {
    type Err = CpuError;

    fn from_str(text: &str) -> Result<Self, CpuError> {
        if text == "none" {
            return Ok(Self::Unpinned);
        }
        let no_list = || CpuError::NoList(text.to_owned());
        let mut cpus = Vec::new();
        for part in text.split(',') {
            for cpu in crate::cpu_range(part).ok_or_else(no_list)? {
                if cpus.contains(&cpu) {
                    return Err(CpuError::Twice(cpu));
                }
                cpus.push(cpu);
            }
        }
        if cpus.is_empty() { Err(no_list()) } else { Ok(Self::Listed(cpus)) }
    }
}

/// Formats the choice as a value of `--cpus`.
impl fmt::Display for CpuChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sensible => Ok(()),
            Self::Unpinned => f.write_str("none"),
            Self::Listed(cpus) => f.write_str(&list(cpus)),
        }
    }
}

/// Formats CPUs in the given order, in the notation that [`CpuChoice`] parses. Consecutive CPUs become a range.
pub fn list(cpus: &[usize]) -> String {
    let runs = cpus.chunk_by(|one, next| one.checked_add(1) == Some(*next));
    let text = |run: &[usize]| match run {
        [first, .., last] => format!("{first}-{last}"),
        run => run.iter().map(ToString::to_string).collect(),
    };
    runs.map(text).collect::<Vec<_>>().join(",")
}

/// Position of a process among the processes of a study that share the CPUs of one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessPosition {
    /// Number of the process, from 0.
    pub number: usize,
    /// Number of processes.
    pub of: usize,
}

impl Default for ProcessPosition {
    fn default() -> Self {
        Self { number: 0, of: 1 }
    }
}

impl ProcessPosition {
    /// Returns the positions of the processes of a study, in the order of their machines. Processes share CPUs if they
    /// run on one kernel and may use the same CPUs. If a launcher gave each process its own CPUs, processes share none.
    pub fn among(machines: &[&Machine]) -> Vec<Self> {
        let shares =
            |one: &Machine, other: &Machine| one.boot.is_some() && (&one.boot, &one.cpus) == (&other.boot, &other.cpus);
        let place = |(index, own): (usize, &&Machine)| Self {
            number: machines[..index].iter().filter(|other| shares(own, other)).count(),
            of: machines.iter().filter(|other| shares(own, other)).count().max(1),
        };
        machines.iter().enumerate().map(place).collect()
    }
}

/// CPUs to which threads are pinned, or the reason why no thread is pinned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pinning {
    /// CPUs in the order in which threads take them. The list is empty if no thread is pinned.
    pub cpus: Vec<usize>,
    /// Whether both ends run on this machine. If so, the two ends take the CPUs in turn. The asking end takes the first
    /// CPU, the other end the second, and so on.
    pub both_ends: bool,
    /// Reason for the selection of these CPUs, or for the lack of CPUs.
    pub because: String,
}

impl Pinning {
    /// Returns a pinning without CPUs, with the reason.
    pub fn none(because: impl Into<String>) -> Self {
        Self { because: because.into(), ..Self::default() }
    }

    /// Selects CPUs of this machine for the polling threads of processes whose device is attached to the NUMA node
    /// `near`. `None` means that the node is unknown.
    ///
    /// # Errors
    ///
    /// A listed CPU is not available to this process.
    pub fn of(choice: &CpuChoice, near: Option<usize>) -> Result<Self, CpuError> {
        let pinning = Self::choose(&Root::default(), choice, near)?;
        // If the user listed no CPUs and a sandbox forbids pinning, leave threads unpinned without an error.
        match (choice, pinning.cpus.first().map(|&cpu| Pinned::to(cpu))) {
            (CpuChoice::Sensible, Some(Err(error))) => Ok(Self::none(error.to_string())),
            _ => Ok(pinning),
        }
    }

    /// Selects CPUs of the machine at `root`, as [`of`](Self::of).
    ///
    /// # Errors
    ///
    /// A listed CPU is not available to this process.
    pub fn choose(root: &Root, choice: &CpuChoice, near: Option<usize>) -> Result<Self, CpuError> {
        let (allowed, online) = (crate::allowed_cpus(root), crate::online_cpus(root));
        match choice {
            CpuChoice::Unpinned => Ok(Self::none("--cpus none")),
            CpuChoice::Listed(cpus) => {
                if let Some(&cpu) = cpus.iter().find(|cpu| !online.is_empty() && !online.contains(cpu)) {
                    return Err(CpuError::Absent { cpu, online });
                }
                if let Some(&cpu) = cpus.iter().find(|cpu| !allowed.contains(cpu)) {
                    return Err(CpuError::Forbidden { cpu, allowed });
                }
                Ok(Self { cpus: cpus.clone(), because: "--cpus".to_owned(), both_ends: false })
            }
            CpuChoice::Sensible if allowed.is_empty() => Ok(Self::none("the kernel does not list the CPUs")),
            CpuChoice::Sensible => {
                let node = near.map(|node| format!("the device is next to NUMA node {node}; ")).unwrap_or_default();
                let because = format!("{node}one of each core first");
                Ok(Self { cpus: in_order(root, allowed, near), because, both_ends: false })
            }
        }
    }

    /// Records that both ends run on this machine, and checks that the choice has a CPU for each end.
    ///
    /// # Errors
    ///
    /// `choice` lists fewer CPUs than there are ends.
    pub fn for_both_ends(self, choice: &CpuChoice) -> Result<Self, CpuError> {
        let cpus = self.cpus.len();
        if matches!(choice, CpuChoice::Listed(_)) && cpus < 2 {
            return Err(CpuError::TooFew { cpus, processes: 2 });
        }
        Ok(Self { both_ends: true, ..self })
    }

    /// Returns the share of one process if several processes share the CPUs. All shares have the same size.
    #[must_use]
    pub fn share(&self, place: ProcessPosition) -> Self {
        let processes = place.of.max(1);
        let each = self.cpus.len() / processes;
        if each == 0 && !self.cpus.is_empty() {
            let cpus = self.cpus.len();
            return Self::none(format!("{processes} processes, and {cpus} CPU(s) for them: {}", self.because));
        }
        let cpus = self.cpus.iter().skip(place.number % processes).step_by(processes).take(each);
        Self { cpus: cpus.copied().collect(), both_ends: false, because: self.because.clone() }
    }

    /// Returns the pinning for `threads` polling threads. If there are more threads than CPUs, no thread is pinned.
    #[must_use]
    pub fn of_threads(&self, threads: usize) -> Self {
        if threads > self.cpus.len() && !self.cpus.is_empty() {
            let (cpus, because) = (self.cpus.len(), &self.because);
            return Self::none(format!("{threads} thread(s) poll, and {cpus} CPU(s) for them: {because}"));
        }
        Self { cpus: self.cpus.iter().take(threads).copied().collect(), ..self.clone() }
    }

    /// Checks whether threads can be pinned to each of the CPUs.
    ///
    /// # Errors
    ///
    /// The operating system refuses a CPU.
    pub fn try_all(&self) -> Result<(), PinError> {
        try_all(&self.cpus)
    }

    /// Pins the calling thread to the CPU at index `number` until the result is dropped. If the index is out of range,
    /// the thread stays unpinned.
    pub fn pin(&self, number: usize) -> Pinned {
        Pinned::to_one_of(&self.cpus, number)
    }
}

/// Checks whether a thread can be pinned to each of these CPUs. The affinity of the calling thread is restored after
/// each check.
///
/// # Errors
///
/// The operating system refuses a CPU.
pub fn try_all(cpus: &[usize]) -> Result<(), PinError> {
    cpus.iter().try_for_each(|&cpu| Pinned::to(cpu).map(drop))
}

impl fmt::Display for Pinning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cpus, both_ends, because } = self;
        match cpus.is_empty() {
            true => write!(f, "threads are not pinned ({because})"),
            false if *both_ends => {
                let [one, other] = [0, 1].map(|number| list(&self.share(ProcessPosition { number, of: 2 }).cpus));
                write!(f, "threads are pinned to CPU {one} at the end that asks, {other} at the other ({because})")
            }
            false => write!(f, "threads are pinned to CPU {} ({because})", list(cpus)),
        }
    }
}

/// Returns the CPUs in the order in which threads take them. The first allowed CPU of each core comes before the second
/// CPU of any core. Within these groups, CPUs of the device's NUMA node come first, and then CPUs of near nodes before
/// CPUs of far nodes. If the device has no node, the node with most of the allowed CPUs replaces it.
fn in_order(root: &Root, allowed: Vec<usize>, near: Option<usize>) -> Vec<usize> {
    let nodes = crate::nodes(root);
    let node_of = |cpu: usize| nodes.iter().position(|node| node.cpus.contains(&cpu));
    let has = |index: usize| allowed.iter().filter(|&&cpu| node_of(cpu) == Some(index)).count();
    let home = near.and_then(|near| nodes.iter().position(|node| node.number == near));
    let home = home.or_else(|| (0..nodes.len()).rev().max_by_key(|&index| has(index)));
    let distance = |cpu: usize| {
        let (home, node) = (home?, node_of(cpu)?);
        // If the kernel does not report distances, all other nodes are treated as equally far.
        let known = nodes[home].distances.get(node).copied();
        Some((known.unwrap_or(if node == home { 10 } else { u32::MAX }), node))
    };
    let mut ranked: Vec<_> = allowed
        .iter()
        .map(|&cpu| {
            let siblings = crate::cpu_siblings(root, cpu);
            let before = siblings.iter().filter(|&&other| other < cpu && allowed.contains(&other)).count();
            (before, distance(cpu).unwrap_or((u32::MAX, usize::MAX)), cpu)
        })
        .collect();
    ranked.sort_unstable();
    ranked.into_iter().map(|(.., cpu)| cpu).collect()
}

/// Failure to pin a thread to a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a thread cannot be pinned to CPU {cpu}: {error}; choose other CPUs with --cpus, or use --cpus none")]
pub struct PinError {
    cpu: usize,
    error: Errno,
}

/// Guard that keeps a thread pinned. Dropping the guard restores the previous affinity of the thread.
#[derive(Debug, Default)]
#[must_use = "dropping the guard unpins the thread"]
pub struct Pinned(Option<CpuSet>);

/// Process id that denotes the calling thread in calls of the scheduler.
const THIS_THREAD: Pid = Pid::from_raw(0);

impl Pinned {
    /// Pins the calling thread, and all threads that it starts until the guard is dropped.
    ///
    /// # Errors
    ///
    /// The operating system refuses the CPU.
    pub fn to(cpu: usize) -> Result<Self, PinError> {
        let failed = |error| PinError { cpu, error };
        let before = sched_getaffinity(THIS_THREAD).map_err(failed)?;
        let mut one = CpuSet::new();
        one.set(cpu).and_then(|()| sched_setaffinity(THIS_THREAD, &one)).map_err(failed)?;
        Ok(Self(Some(before)))
    }

    /// Pins the calling thread to the CPU at index `number` of several tested CPUs. If the index is out of range, or
    /// the CPU has gone offline since the test, the thread stays unpinned.
    pub fn to_one_of(cpus: &[usize], number: usize) -> Self {
        cpus.get(number).and_then(|&cpu| Self::to(cpu).ok()).unwrap_or_default()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            // The kernel refuses if all CPUs of the previous affinity were removed. The thread then stays pinned.
            let _ = sched_setaffinity(THIS_THREAD, before);
        }
    }
}

#[cfg(test)]
mod tests;
