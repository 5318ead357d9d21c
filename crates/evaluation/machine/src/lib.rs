//! Properties of a machine from `/proc` and `/sys` that matter for a measurement.
//!
//! Any property may be absent: a container hides most files, and a virtual machine has no frequency governor. An
//! unreadable property is `None` or empty, and never an error.

mod adapter;
pub mod cpu;
pub mod doctor;
pub mod limit;
pub mod pinning;

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use adapter::{Adapter, PcieLink};

/// Directory that holds `proc` and `sys`.
#[derive(Clone, Debug)]
pub struct Root(PathBuf);

impl Default for Root {
    fn default() -> Self {
        Self("/".into())
    }
}

impl Root {
    /// Returns a root at another directory that holds `proc` and `sys`. Tests use such directories.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Returns the path of an entry below the root. `path` has no leading slash.
    fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.0.join(path)
    }

    /// Returns the text of a file without surrounding white space, or `None` if the file is unreadable or empty.
    pub fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        let text = fs::read_to_string(self.path(path)).ok()?;
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// Returns the number in a file.
    pub fn number(&self, path: impl AsRef<Path>) -> Option<i64> {
        self.text(path)?.parse().ok()
    }

    /// Returns the sorted names in a directory. The result is empty if the directory is missing.
    pub fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_unstable();
        names
    }

    /// Returns a field of the first processor in `/proc/cpuinfo`.
    pub fn cpu_field(&self, name: &str) -> Option<String> {
        let cpuinfo = self.text("proc/cpuinfo")?;
        let mut fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned())
    }

    /// Returns the last component of a symbolic link's target.
    fn link_name(&self, path: impl AsRef<Path>) -> Option<String> {
        fs::read_link(self.path(path)).ok()?.file_name()?.to_str().map(str::to_owned)
    }

    /// Resolves all symbolic links of a path. In the resulting root, `..` leads to the device's parent in sysfs.
    fn canonical(&self, path: impl AsRef<Path>) -> Option<Self> {
        fs::canonicalize(self.path(path)).ok().map(Self)
    }
}

/// Properties of a machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// Host name.
    pub host: String,
    /// Identifier of the boot. All containers and namespaces of one machine have the same identifier.
    pub boot: Option<String>,
    /// Processors that this process may use.
    pub cpus: Vec<usize>,
    /// Distinct frequency governors of `cpus`. The governor `performance` keeps the frequency high.
    pub governors: Vec<String>,
    /// Deepest enabled idle state of a processor.
    pub idle: Option<IdleState>,
    /// NUMA nodes with their processors.
    pub nodes: Vec<Node>,
    /// Maximum bytes of locked memory of this process. `None` means unlimited.
    pub memlock_bytes: Option<u64>,
    /// Largest receive buffer of a socket in bytes (`net.core.rmem_max`).
    pub receive_buffer_max_bytes: Option<u64>,
    /// Average number of runnable processes over one minute.
    pub load: Option<f64>,
    /// Whether the machine runs below a hypervisor.
    pub is_virtual: bool,
}

/// Idle state of a processor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleState {
    /// Name of the idle state in the kernel.
    pub name: String,
    /// Wake-up time in microseconds.
    pub latency_us: u64,
}

/// NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Number of the node.
    pub number: usize,
    /// Processors of the node.
    pub cpus: Vec<usize>,
    /// NUMA distances from this node to all nodes, in the order of [`Machine::nodes`]. The distance of a node to itself
    /// is 10.
    pub distances: Vec<u32>,
}

impl Machine {
    /// Reads the current properties of a machine.
    pub fn of(root: &Root) -> Self {
        let cpus = allowed_cpus(root);
        let mut governors: Vec<_> = cpus
            .iter()
            .filter_map(|cpu| root.text(format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor")))
            .collect();
        governors.sort_unstable();
        governors.dedup();
        let load = root.text("proc/loadavg").and_then(|text| text.split_whitespace().next()?.parse().ok());
        Self {
            host: root.text("proc/sys/kernel/hostname").unwrap_or_default(),
            boot: root.text("proc/sys/kernel/random/boot_id"),
            idle: cpus.first().and_then(|&cpu| deepest_idle(root, cpu)),
            nodes: nodes(root),
            memlock_bytes: memlock(root),
            receive_buffer_max_bytes: root.number("proc/sys/net/core/rmem_max").and_then(|n| n.try_into().ok()),
            is_virtual: root.cpu_field("flags").is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            cpus,
            governors,
            load,
        }
    }

    /// Returns the processors of the NUMA node `node` that this process may use.
    pub fn cpus_of(&self, node: usize) -> Vec<usize> {
        let mut of_node = self.nodes.iter().filter(|known| known.number == node).flat_map(|node| &node.cpus);
        let own = |cpu: &&usize| self.cpus.contains(cpu);
        of_node.by_ref().filter(own).copied().collect()
    }
}

/// Returns a field of `/proc/self/status`.
fn status(root: &Root, name: &str) -> Option<String> {
    let status = root.text("proc/self/status")?;
    let mut fields = status.lines().filter_map(|line| line.split_once(':'));
    fields.find(|(key, _)| *key == name).map(|(_, value)| value.trim().to_owned())
}

/// Returns the soft limit of locked memory from `/proc/self/limits`. Columns of that file are name, soft limit, hard
/// limit and unit.
fn memlock(root: &Root) -> Option<u64> {
    let limits = root.text("proc/self/limits")?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Maximum number of processors that Linux supports.
const MOST_CPUS: usize = 8192;

/// Parses a list of processors in the kernel's notation, such as `0-3,8`. Malformed parts are ignored. The result has
/// at most 8192 entries.
pub fn cpu_list(list: &str) -> Vec<usize> {
    let mut cpus: Vec<usize> = list.split(',').filter_map(cpu_range).flatten().take(MOST_CPUS).collect();
    cpus.sort_unstable();
    cpus.dedup();
    cpus
}

/// Parses one part of a list of processors: a number such as `8`, or a range such as `0-3`.
pub fn cpu_range(part: &str) -> Option<std::ops::RangeInclusive<usize>> {
    let (first, last) = part.split_once('-').unwrap_or((part, part));
    let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (first <= last && last < MOST_CPUS).then_some(first..=last)
}

/// Returns the online processors, or an empty list if the kernel does not report them.
pub fn online_cpus(root: &Root) -> Vec<usize> {
    root.text("sys/devices/system/cpu/online").map(|list| cpu_list(&list)).unwrap_or_default()
}

/// Returns the processors that this process may use. The process's cgroup, `taskset` or a launcher may exclude
/// processors.
pub fn allowed_cpus(root: &Root) -> Vec<usize> {
    let mut cpus = status(root, "Cpus_allowed_list").map(|list| cpu_list(&list)).unwrap_or_default();
    let online = online_cpus(root);
    cpus.retain(|cpu| online.is_empty() || online.contains(cpu));
    cpus
}

/// Returns all hardware threads of the core to which `cpu` belongs, including `cpu`. The list is empty if the kernel
/// does not report the topology.
pub fn cpu_siblings(root: &Root, cpu: usize) -> Vec<usize> {
    let list = root.text(format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"));
    list.map(|list| cpu_list(&list)).unwrap_or_default()
}

fn deepest_idle(root: &Root, cpu: usize) -> Option<IdleState> {
    let states = format!("sys/devices/system/cpu/cpu{cpu}/cpuidle");
    let state = |name: String| {
        let of = |field: &str| root.text(format!("{states}/{name}/{field}"));
        let is_on = of("disable").is_none_or(|disabled| disabled == "0");
        let latency_us = of("latency")?.parse().ok()?;
        is_on.then_some(IdleState { name: of("name").unwrap_or(name.clone()), latency_us })
    };
    root.names(&states).into_iter().filter_map(state).max_by_key(|state| state.latency_us)
}

/// Returns the NUMA nodes of a machine in ascending order.
pub fn nodes(root: &Root) -> Vec<Node> {
    let directory = "sys/devices/system/node";
    let node = |name: String| {
        let number = name.strip_prefix("node")?.parse().ok()?;
        let of = |field: &str| root.text(format!("{directory}/{name}/{field}")).unwrap_or_default();
        let distances = of("distance").split_whitespace().filter_map(|part| part.parse().ok()).collect();
        Some(Node { number, cpus: cpu_list(&of("cpulist")), distances })
    };
    let mut nodes: Vec<Node> = root.names(directory).into_iter().filter_map(node).collect();
    nodes.sort_unstable_by_key(|node| node.number);
    nodes
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Creates a machine from files.
    pub(crate) fn made_of(files: &[(&str, &str)]) -> (impl AsRef<Path> + use<>, Root) {
        let folder = doorbell_testing::files::folder_with(files);
        let root = Root::at(folder.path());
        (folder, root)
    }

    #[test]
    fn machine_without_proc_and_sysfs_is_empty() {
        let (_directory, root) = made_of(&[]);
        assert_eq!(Machine::of(&root), Machine::default());
    }

    #[test]
    fn machine_is_read_from_proc_and_sysfs() {
        let (_directory, root) = made_of(&[
            ("proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: fpu hypervisor sse\n"),
            ("proc/sys/kernel/hostname", "node7\n"),
            ("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-1,4\n"),
            (
                "proc/self/limits",
                "Limit  Soft Limit  Hard Limit  Units\nMax locked memory         8388608   8388608   bytes\n",
            ),
            ("proc/sys/net/core/rmem_max", "212992\n"),
            ("proc/loadavg", "1.50 0.2 0.1 1/100 7\n"),
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n"),
            ("sys/devices/system/cpu/cpu4/cpufreq/scaling_governor", "performance\n"),
            ("sys/devices/system/cpu/cpu0/cpuidle/state0/name", "POLL\n"),
            ("sys/devices/system/cpu/cpu0/cpuidle/state0/latency", "0\n"),
            ("sys/devices/system/cpu/cpu0/cpuidle/state2/name", "C6\n"),
            ("sys/devices/system/cpu/cpu0/cpuidle/state2/latency", "133\n"),
            ("sys/devices/system/cpu/cpu0/cpuidle/state3/name", "C10\n"),
            ("sys/devices/system/cpu/cpu0/cpuidle/state3/latency", "890\n"),
            ("sys/devices/system/cpu/cpu0/cpuidle/state3/disable", "1\n"),
            ("sys/devices/system/node/node0/cpulist", "0-3\n"),
            ("sys/devices/system/node/node0/distance", "10 21\n"),
            ("sys/devices/system/node/node1/cpulist", "4-7\n"),
            ("sys/devices/system/node/node1/distance", "21 10\n"),
        ]);
        assert_eq!(root.cpu_field("model name").as_deref(), Some("Some CPU @ 2 GHz"));
        let machine = Machine::of(&root);
        assert_eq!(machine.host, "node7");
        assert_eq!(machine.cpus, [0, 1, 4]);
        assert_eq!(machine.governors, ["performance", "powersave"]);
        assert_eq!(machine.idle, Some(IdleState { name: "C6".to_owned(), latency_us: 133 }));
        assert_eq!(machine.memlock_bytes, Some(8 << 20));
        assert_eq!(machine.receive_buffer_max_bytes, Some(212_992));
        assert_eq!(machine.load, Some(1.5));
        assert!(machine.is_virtual);
        assert_eq!((machine.cpus_of(0), machine.cpus_of(1)), (vec![0, 1], vec![4]));
        assert_eq!(machine.nodes[1].distances, [21, 10]);
        let json = serde_json::to_string(&machine).unwrap();
        assert_eq!(serde_json::from_str::<Machine>(&json).unwrap(), machine);
    }

    #[test]
    fn this_machine_has_a_name_and_a_processor() {
        let machine = Machine::of(&Root::default());
        assert!(!machine.host.is_empty() && !machine.cpus.is_empty(), "{machine:?}");
    }

    #[test]
    fn lists_of_processors_are_read_as_the_kernel_writes_them() {
        assert_eq!(cpu_list("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(cpu_list(""), [0_usize; 0]);
        assert_eq!(cpu_list("3-1,x,7"), [7]);
        assert_eq!(cpu_list("0-18446744073709551615"), [0_usize; 0]);
    }
}
