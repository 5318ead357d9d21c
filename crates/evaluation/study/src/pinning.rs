//! Selection of CPUs for the threads of an end.
//!
//! A polling thread keeps a CPU busy. The scheduler may move an unpinned thread to a CPU that another polling thread
//! uses, or to one that is far from the device. An end therefore pins its threads while they poll. It uses the CPUs
//! of the device's NUMA node first, and one hardware thread of each core before the second of any core.
//!
//! The thread of a software RNIC stays unpinned. It started before any thread was pinned, so it shares the CPU of a
//! polling thread only if no other CPU is idle.
//!
//! A point on shared memory has more than two parties, each with a polling thread. A store has one polling thread for
//! each client.
//!
//! If more threads poll than there are CPUs, none is pinned. Two threads pinned to one CPU would wait for each other
//! while another CPU may be idle.

use std::fmt;
use std::str::FromStr;

use doorbell_verbs::DeviceAttributes;
use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::environment::Environment;
use crate::parameters::Parameters;
use crate::roles::Part;
use crate::serving::SharedBy;
use doorbell_machine::{Adapter, Root};

/// Choice of CPUs for pinning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CpuChoice {
    /// CPUs selected by this module.
    #[default]
    Sensible,
    /// No CPU: the scheduler moves threads freely.
    Unpinned,
    /// These CPUs, in this order.
    Listed(Vec<usize>),
}

/// Reason why CPUs cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpuError {
    /// The text is not a list of CPUs.
    #[error("`{0}` is no list of CPUs: allowed are numbers and ranges with commas between, such as 0,2,4-7, or none")]
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
    #[error("CPU {cpu} is not among those that this process may use: {}", list(.allowed))]
    Forbidden {
        /// The CPU.
        cpu: usize,
        /// All CPUs that the process may use.
        allowed: Vec<usize>,
    },
    /// There are fewer CPUs than processes.
    #[error(
        "--cpus names {cpus} CPU(s), and {processes} processes measure on this machine: name a CPU for each, or say none"
    )]
    TooFew {
        /// Number of CPUs.
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
            for cpu in doorbell_machine::cpu_range(part).ok_or_else(no_list)? {
                if cpus.contains(&cpu) {
                    return Err(CpuError::Twice(cpu));
                }
                cpus.push(cpu);
            }
        }
        if cpus.is_empty() { Err(no_list()) } else { Ok(Self::Listed(cpus)) }
    }
}

/// Formats the choice as on a command line.
impl fmt::Display for CpuChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sensible => Ok(()),
            Self::Unpinned => f.write_str("none"),
            Self::Listed(cpus) => f.write_str(&list(cpus)),
        }
    }
}

/// Formats CPUs in their order, as [`CpuChoice`] parses them. Consecutive CPUs become a range.
pub fn list(cpus: &[usize]) -> String {
    let runs = cpus.chunk_by(|one, next| one.checked_add(1) == Some(*next));
    let text = |run: &[usize]| match run {
        [first, .., last] => format!("{first}-{last}"),
        run => run.iter().map(ToString::to_string).collect(),
    };
    runs.map(text).collect::<Vec<_>>().join(",")
}

/// Index of a process among those of a study that share the CPUs of a machine.
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
    /// Returns the positions of the processes of a study, in the order of their environments. Processes share CPUs if
    /// they run on one kernel and may use the same CPUs. A launcher that gives each process its own CPUs has already
    /// distributed them.
    pub fn among(environments: &[&Environment]) -> Vec<Self> {
        let shares = |one: &Environment, other: &Environment| {
            one.machine.boot.is_some()
                && (&one.machine.boot, &one.machine.cpus) == (&other.machine.boot, &other.machine.cpus)
        };
        let place = |(index, own): (usize, &&Environment)| Self {
            number: environments[..index].iter().filter(|other| shares(own, other)).count(),
            of: environments.iter().filter(|other| shares(own, other)).count().max(1),
        };
        environments.iter().enumerate().map(place).collect()
    }
}

/// CPUs to which threads are pinned, or the reason why they are not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pinning {
    /// The CPUs in the order in which threads take them; empty if no thread is pinned.
    pub cpus: Vec<usize>,
    /// Whether both ends are processes of this machine. Then they take the CPUs in turn: the asking end the first,
    /// the other end the second.
    pub both_ends: bool,
    /// Reason for these CPUs, or for none.
    pub because: String,
}

impl Pinning {
    /// Returns a pinning without CPUs, with the reason.
    pub fn none(because: impl Into<String>) -> Self {
        Self { because: because.into(), ..Self::default() }
    }

    /// Selects CPUs for processes that use this device.
    ///
    /// # Errors
    ///
    /// A listed CPU is not available to this process.
    pub fn of(choice: &CpuChoice, device: &DeviceAttributes) -> Result<Self, CpuError> {
        let root = Root::default();
        let is_of_machine = device.provider != doorbell_verbs::soft::PROVIDER;
        let adapter = is_of_machine.then(|| Adapter::of(&root, &device.name, device.port)).flatten();
        let pinning = Self::choose(&root, choice, adapter.and_then(|adapter| adapter.node))?;
        // If the user requested no CPUs, a sandbox that forbids pinning must not cause an error.
        match (choice, pinning.cpus.first().map(|&cpu| Pinned::to(cpu))) {
            (CpuChoice::Sensible, Some(Err(error))) => Ok(Self::none(error.to_string())),
            _ => Ok(pinning),
        }
    }

    /// Selects CPUs for processes that use a device next to the NUMA node `near`, if there is one.
    ///
    /// # Errors
    ///
    /// A listed CPU is not available to this process.
    pub fn choose(root: &Root, choice: &CpuChoice, near: Option<usize>) -> Result<Self, CpuError> {
        let (allowed, online) = (doorbell_machine::allowed_cpus(root), doorbell_machine::online_cpus(root));
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
            CpuChoice::Sensible if allowed.is_empty() => Ok(Self::none("the kernel does not say which CPUs there are")),
            CpuChoice::Sensible => {
                let node = near.map(|node| format!("the device is next to NUMA node {node}; ")).unwrap_or_default();
                let because = format!("{node}one of each core first");
                Ok(Self { cpus: in_order(root, allowed, near), because, both_ends: false })
            }
        }
    }

    /// Marks both ends as processes of this machine.
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

    /// Returns the part of one of several processes that share the CPUs. All parts have the same size.
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

    /// Returns the CPUs that are pinned while a point is measured. For a point on shared memory, this covers one
    /// process with all parties. [`Environment::of_point`] covers parties on several hosts.
    #[must_use]
    pub fn of_point(&self, parameters: &Parameters) -> Self {
        if let Some(point) = &parameters.far {
            return Self { both_ends: false, ..self.clone() }.of_threads(point.threads());
        }
        let threads = threads(parameters);
        self.of_threads(if self.both_ends { 2 * threads } else { threads })
    }

    /// Returns the pinning while this number of threads polls.
    #[must_use]
    pub(crate) fn of_threads(&self, threads: usize) -> Self {
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

    /// Pins the calling thread to the CPU at index `number` until the result is dropped. An index out of range pins
    /// nothing.
    pub fn pin(&self, number: usize) -> Pinned {
        Pinned::to_one_of(&self.cpus, number)
    }
}

/// Checks whether a thread can be pinned to each of these CPUs. The calling thread keeps its affinity.
pub(crate) fn try_all(cpus: &[usize]) -> Result<(), PinError> {
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

/// Returns the number of polling threads at the end that has more of them.
fn threads(parameters: &Parameters) -> usize {
    let cast = parameters.cast();
    let of = |part: Part| part.threads + usize::from(part.shared_receives == Some(SharedBy::Thread));
    of(cast.asking).max(of(cast.answering))
}

/// Returns the CPUs in the order in which threads take them. One CPU of each core comes before the second of any
/// core, the device's NUMA node before others, and near nodes before far ones. If the device has no node, the node
/// with most of these CPUs replaces it.
fn in_order(root: &Root, allowed: Vec<usize>, near: Option<usize>) -> Vec<usize> {
    let nodes = doorbell_machine::nodes(root);
    let node_of = |cpu: usize| nodes.iter().position(|node| node.cpus.contains(&cpu));
    let has = |index: usize| allowed.iter().filter(|&&cpu| node_of(cpu) == Some(index)).count();
    let home = near.and_then(|near| nodes.iter().position(|node| node.number == near));
    let home = home.or_else(|| (0..nodes.len()).rev().max_by_key(|&index| has(index)));
    let distance = |cpu: usize| {
        let (home, node) = (home?, node_of(cpu)?);
        // If the kernel does not report distances, all other nodes count as equally far.
        let known = nodes[home].distances.get(node).copied();
        Some((known.unwrap_or(if node == home { 10 } else { u32::MAX }), node))
    };
    let mut ranked: Vec<_> = allowed
        .iter()
        .map(|&cpu| {
            let siblings = doorbell_machine::cpu_siblings(root, cpu);
            let before = siblings.iter().filter(|&&other| other < cpu && allowed.contains(&other)).count();
            (before, distance(cpu).unwrap_or((u32::MAX, usize::MAX)), cpu)
        })
        .collect();
    ranked.sort_unstable();
    ranked.into_iter().map(|(.., cpu)| cpu).collect()
}

/// Failure to pin a thread to a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a thread cannot be pinned to CPU {cpu}: {error}; --cpus says which to use, or none")]
pub struct PinError {
    cpu: usize,
    error: Errno,
}

/// Guard that keeps a thread pinned. Dropping the guard restores the previous affinity of the thread.
#[derive(Debug, Default)]
#[must_use = "dropping it lets the thread go"]
pub struct Pinned(Option<CpuSet>);

/// The calling thread, in calls that take a process.
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
    pub(crate) fn to_one_of(cpus: &[usize], number: usize) -> Self {
        cpus.get(number).and_then(|&cpu| Self::to(cpu).ok()).unwrap_or_default()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            // The kernel refuses if a CPU was removed in the meantime. The thread then stays on its CPU.
            let _ = sched_setaffinity(THIS_THREAD, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::experiment::tests::environment;
    use crate::far::{FarPoint, StorePoint, Strategy};
    use crate::parameters::{Kind, Operation};
    use crate::serving::Serving;
    use doorbell_machine::Machine;
    use doorbell_testing::files::folder_with;

    fn made_of(files: &[(&str, &str)]) -> (impl AsRef<Path> + use<>, Root) {
        let folder = folder_with(files);
        let root = Root::at(folder.path());
        (folder, root)
    }

    /// Returns a machine with two NUMA nodes of two cores each, each core with two hardware threads. CPUs 0-3 are the
    /// first threads of the cores on nodes 0 and 1, CPUs 4-7 the second threads.
    fn two_nodes(allowed: &str) -> (impl AsRef<Path> + use<>, Root) {
        let status = format!("Cpus_allowed_list:\t{allowed}\n");
        let mut files = vec![
            ("proc/self/status".to_owned(), status),
            ("sys/devices/system/cpu/online".to_owned(), "0-7\n".to_owned()),
            ("sys/devices/system/node/node0/cpulist".to_owned(), "0-1,4-5\n".to_owned()),
            ("sys/devices/system/node/node0/distance".to_owned(), "10 21\n".to_owned()),
            ("sys/devices/system/node/node1/cpulist".to_owned(), "2-3,6-7\n".to_owned()),
            ("sys/devices/system/node/node1/distance".to_owned(), "21 10\n".to_owned()),
        ];
        for cpu in 0..8 {
            let siblings = format!("{},{}\n", cpu % 4, cpu % 4 + 4);
            files.push((format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"), siblings));
        }
        made_of(&files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect::<Vec<_>>())
    }

    fn chosen(allowed: &str, near: Option<usize>) -> Vec<usize> {
        let (_directory, root) = two_nodes(allowed);
        Pinning::choose(&root, &CpuChoice::Sensible, near).unwrap().cpus
    }

    #[test]
    fn near_cpus_and_first_threads_of_cores_come_first() {
        assert_eq!(chosen("0-7", Some(0)), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(chosen("0-7", Some(1)), [2, 3, 0, 1, 6, 7, 4, 5]);
        // A software RNIC has no node. The node with most CPUs of this process replaces it.
        assert_eq!(chosen("0-7", None), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(chosen("1-3,6", None), [2, 3, 1, 6]);
        // If the first thread of a core is not allowed, the second takes its place.
        assert_eq!(chosen("4,6-7", Some(1)), [6, 7, 4]);
        // An unknown node counts as no node.
        assert_eq!(chosen("0-1", Some(7)), [0, 1]);
    }

    #[test]
    fn a_machine_that_shows_nothing_pins_nothing() {
        let (_directory, root) = made_of(&[]);
        let pinning = Pinning::choose(&root, &CpuChoice::Sensible, Some(0)).unwrap();
        assert_eq!((pinning.cpus.len(), pinning.because.as_str()), (0, "the kernel does not say which CPUs there are"));
        let (_directory, root) = made_of(&[("proc/self/status", "Cpus_allowed_list:\t3,1\n")]);
        let pinning = Pinning::choose(&root, &CpuChoice::Sensible, None).unwrap();
        assert_eq!(pinning.cpus, [1, 3], "without a topology");
    }

    #[test]
    fn cpu_lists_are_parsed_in_order_or_rejected() {
        let parsed = |text: &str| text.parse::<CpuChoice>();
        assert_eq!(parsed("none"), Ok(CpuChoice::Unpinned));
        assert_eq!(parsed("4-6,0,2"), Ok(CpuChoice::Listed(vec![4, 5, 6, 0, 2])));
        assert_eq!(parsed("4-6,0,2").unwrap().to_string(), "4-6,0,2");
        for no_list in
            ["", ",", "0,", "x", "3-1", "-1", "0-99999999999999", "0-18446744073709551615", "0 1", "1.5", "None"]
        {
            let said = parsed(no_list).unwrap_err().to_string();
            assert!(
                said.contains(&format!("`{no_list}` is no list of CPUs")) && said.contains("0,2,4-7, or none"),
                "{said}"
            );
        }
        assert_eq!(parsed("0-3,2").unwrap_err().to_string(), "CPU 2 is named twice: name each CPU once");

        let (_directory, root) = two_nodes("0-1,4");
        let refused = |text: &str| Pinning::choose(&root, &parsed(text).unwrap(), None).unwrap_err().to_string();
        assert_eq!(refused("0,9"), "CPU 9 does not exist or is offline: this machine has 0-7");
        assert_eq!(refused("0,5"), "CPU 5 is not among those that this process may use: 0-1,4");
        let listed = Pinning::choose(&root, &parsed("4,1").unwrap(), Some(0)).unwrap();
        assert_eq!(listed.cpus, [4, 1]);
        let alone = parsed("4").unwrap();
        let both = Pinning::choose(&root, &alone, None).unwrap().for_both_ends(&alone);
        assert_eq!(both, Err(CpuError::TooFew { cpus: 1, processes: 2 }));
    }

    #[test]
    fn processes_of_one_machine_take_cpus_in_turn() {
        let pinning = Pinning { cpus: vec![2, 3, 0, 1, 6], ..Pinning::default() };
        let share = |number, of| pinning.share(ProcessPosition { number, of }).cpus;
        assert_eq!((share(0, 2), share(1, 2)), (vec![2, 0], vec![3, 1]), "equally many");
        assert_eq!((share(0, 1), share(4, 5), share(0, 6)), (pinning.cpus.clone(), vec![6], vec![]));
        // No study passes these values, but a peer may.
        assert_eq!((share(7, 0), share(usize::MAX, 2)), (pinning.cpus.clone(), vec![3, 1]));
        let too_many =
            Pinning { because: "so".to_owned(), ..pinning }.share(ProcessPosition { number: 0, of: 6 }).to_string();
        assert_eq!(too_many, "threads are not pinned (6 processes, and 5 CPU(s) for them: so)");
    }

    #[test]
    fn processes_share_equal_cpu_sets_of_one_kernel() {
        let host = |boot: Option<&str>, cpus: &[usize]| {
            let machine = Machine { boot: boot.map(str::to_owned), cpus: cpus.to_vec(), ..Machine::default() };
            Environment { machine, ..environment("soft", cpus.len()) }
        };
        let hosts = [
            host(Some("a"), &[0, 1]),
            host(Some("b"), &[0, 1]),
            host(Some("a"), &[0, 1]),
            // The launcher assigned a CPU to this process.
            host(Some("a"), &[1]),
            // Records of earlier releases lack the boot identifier.
            host(None, &[0, 1]),
            host(None, &[0, 1]),
            host(Some("a"), &[0, 1]),
        ];
        let places: Vec<_> = ProcessPosition::among(&hosts.iter().collect::<Vec<_>>())
            .into_iter()
            .map(|place| (place.number, place.of))
            .collect();
        assert_eq!(places, [(0, 3), (0, 1), (1, 3), (0, 1), (0, 1), (0, 1), (2, 3)]);
    }

    #[test]
    fn record_lists_the_pinned_cpus_of_each_host() {
        let pinned = |cpus: &[usize]| Some(Pinning { cpus: cpus.to_vec(), ..Pinning::default() });
        let other = Environment { pinning: pinned(&[4]), ..environment("soft", 2) };
        let all = Environment {
            pinning: pinned(&[0, 1, 2]),
            peer: Some(Box::new(other.clone())),
            hosts: vec![other, environment("soft", 2)],
            ..environment("soft", 4)
        };
        let cpus = |threads: usize| {
            let parameters = Parameters {
                connections: threads,
                serving: Serving { threads, ..Serving::default() },
                ..Parameters::plain(Kind::Bandwidth, Operation::Send, 8)
            };
            let recorded = all.of_point(&parameters);
            let all: Vec<_> =
                std::iter::once(&recorded).chain(recorded.others()).map(|it| it.pinning.clone()).collect();
            all.into_iter().map(|pinning| pinning.map(|pinning| pinning.cpus)).collect::<Vec<_>>()
        };
        assert_eq!(cpus(1), [Some(vec![0]), Some(vec![4]), Some(vec![4]), None]);
        assert_eq!(cpus(2), [Some(vec![0, 1]), Some(vec![]), Some(vec![]), None]);
    }

    #[test]
    fn shared_memory_point_takes_a_cpu_per_polling_thread() {
        let with = |strategy, clients| {
            let store = StorePoint { strategy, clients, ..StorePoint::default() };
            let far = Some(Box::new(FarPoint::Store(store)));
            Parameters { far, ..Parameters::plain(Kind::Bandwidth, Operation::Write, 8) }
        };
        let cpus = |environment: &Environment| environment.pinning.as_ref().map(|pinning| pinning.cpus.clone());
        let pinning = |cpus: &[usize]| Some(Pinning { cpus: cpus.to_vec(), both_ends: true, because: "so".to_owned() });
        // One process also has the memory node, the metadata service and the middlebox.
        let here = Environment { pinning: pinning(&[3, 2, 1, 0]), ..environment("soft", 4) };
        assert_eq!(cpus(&here.of_point(&with(Strategy::Lock, 2))), Some(vec![3, 2, 1, 0]));
        assert_eq!(cpus(&here.of_point(&with(Strategy::Lock, 1))), Some(vec![3, 2, 1]));
        assert_eq!(cpus(&here.of_point(&with(Strategy::Steered, 1))), Some(vec![3, 2, 1, 0]));
        let none = here.of_point(&with(Strategy::Steered, 2)).pinning.unwrap().to_string();
        assert_eq!(none, "threads are not pinned (5 thread(s) poll, and 4 CPU(s) for them: so)");
        let one = here.of_point(&with(Strategy::Lock, 1)).pinning.unwrap().to_string();
        assert_eq!(one, "threads are pinned to CPU 3,2,1 (so)");
        // Hosts have one thread for each client, and one for every other party.
        let host = Environment { pinning: pinning(&[0, 1]), ..environment("soft", 2) };
        let others = |count| Environment { hosts: vec![host.clone(); count], ..host.clone() };
        let of = |environment: Environment, strategy, clients| {
            let recorded = environment.of_point(&with(strategy, clients));
            std::iter::once(&recorded).chain(recorded.others()).map(cpus).map(Option::unwrap).collect::<Vec<_>>()
        };
        assert_eq!(of(others(3), Strategy::Steered, 2), [vec![0, 1], vec![0], vec![0], vec![0]]);
        assert_eq!(of(others(3), Strategy::Lock, 3), [vec![], vec![0], vec![], vec![0]]);
        assert_eq!(of(others(4), Strategy::Lock, 3)[4], [0]);
        let with_peer = Environment { peer: Some(Box::new(host.clone())), ..host.clone() };
        assert_eq!(of(with_peer, Strategy::Lock, 2), [vec![0, 1], vec![0]]);
        let idle = others(3).of_point(&with(Strategy::Lock, 1)).hosts[1].pinning.clone().unwrap().to_string();
        assert_eq!(idle, "threads are not pinned (this host has no part in this point)");
    }

    #[test]
    fn point_takes_a_cpu_per_thread_or_none() {
        let with = |threads, shared_receives| Parameters {
            serving: Serving { threads, shared_receives, ..Serving::default() },
            ..Parameters::plain(Kind::Bandwidth, Operation::Send, 8)
        };
        let pinning = Pinning { cpus: vec![4, 5, 6], because: "so".to_owned(), both_ends: false };
        let cpus = |pinning: &Pinning, threads| pinning.of_point(&with(threads, None)).cpus;
        assert_eq!([1, 2, 3, 4].map(|threads| cpus(&pinning, threads)), [vec![4], vec![4, 5], vec![4, 5, 6], vec![]]);
        assert_eq!(pinning.of_point(&with(2, Some(SharedBy::Thread))).cpus, [4, 5, 6], "one posts receives again");
        let both = pinning.for_both_ends(&CpuChoice::Sensible).unwrap();
        assert_eq!([1, 2].map(|threads| cpus(&both, threads)), [vec![4, 5], vec![]]);
        assert_eq!(
            both.of_point(&with(1, None)).to_string(),
            "threads are pinned to CPU 4 at the end that asks, 5 at the other (so)"
        );
        let none = both.of_point(&with(2, None)).to_string();
        assert_eq!(none, "threads are not pinned (4 thread(s) poll, and 3 CPU(s) for them: so)");
        // Each process of one machine decides on its own, and both reach the same decision.
        let shares = [0, 1].map(|number| both.share(ProcessPosition { number, of: 2 }).of_point(&with(2, None)).cpus);
        assert!(shares.iter().all(Vec::is_empty), "{shares:?}");
    }

    #[test]
    fn a_thread_is_pinned_until_it_is_let_go() {
        let before = sched_getaffinity(THIS_THREAD).unwrap();
        let cpu = (0..CpuSet::count()).find(|&cpu| before.is_set(cpu).unwrap()).unwrap();
        let pinned = Pinned::to(cpu).unwrap();
        let within = sched_getaffinity(THIS_THREAD).unwrap();
        let allowed: Vec<usize> = (0..CpuSet::count()).filter(|&cpu| within.is_set(cpu).unwrap()).collect();
        assert_eq!(allowed, [cpu]);
        drop(pinned);
        assert_eq!(sched_getaffinity(THIS_THREAD).unwrap(), before);
        let refused = Pinned::to(CpuSet::count()).unwrap_err().to_string();
        assert!(refused.contains("cannot be pinned to CPU 1024") && refused.contains("--cpus"), "{refused}");
        assert_eq!(sched_getaffinity(THIS_THREAD).unwrap(), before, "a refusal changes nothing");
    }
}
