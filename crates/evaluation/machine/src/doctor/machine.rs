//! Findings about the settings and the load of a machine.

use doorbell_fabric::udp::DEFAULT_RECEIVE_BUFFER_BYTES;
use doorbell_verbs::{DeviceAttributes, PathMtu};

use super::{Finding, Severity};
use crate::{Adapter, Machine, pinning};

/// Maximum wake-up time in microseconds of a harmless idle state. Longer wake-up times are significant compared with a
/// round trip.
const SHALLOW_US: u64 = 2;

/// Minimum number of processors for a measurement with both ends on this machine: one for each end's program and one
/// for each end's software RNIC.
const FOR_BOTH_ENDS: usize = 4;

/// Maximum acceptable load of other programs, as a share of the processors.
const QUIET: f64 = 0.2;

pub(super) fn memlock(machine: &Machine, is_soft: bool, memory_bytes: usize) -> Finding {
    const SUBJECT: &str = "locked memory";
    let mib = |bytes: u64| bytes >> 20;
    match machine.memlock_bytes {
        _ if is_soft => Finding::fine(SUBJECT, "the software RNIC locks no memory"),
        None => Finding::fine(SUBJECT, "unlimited"),
        Some(limit) if limit >= memory_bytes as u64 => Finding::fine(SUBJECT, format!("up to {} MiB", mib(limit))),
        Some(limit) => Finding::new(
            SUBJECT,
            Severity::Spoils,
            format!(
                "this user may lock {} KiB, but a measurement registers up to {} MiB, so the RNIC's driver refuses",
                limit >> 10,
                mib(memory_bytes as u64)
            ),
            "run `ulimit -l unlimited`; or add a line `* - memlock unlimited` to /etc/security/limits.conf and log in again; \
             or register less memory with --memory",
        ),
    }
}

pub(super) fn processors(machine: &Machine) -> Finding {
    const SUBJECT: &str = "processors";
    match machine.cpus.len() {
        0 => Finding::new(SUBJECT, Severity::Unknown, "/proc does not list the usable processors", ""),
        few if few < FOR_BOTH_ENDS => Finding::new(
            SUBJECT,
            Severity::Shifts,
            format!(
                "{few} usable; if both ends are on this machine, their threads take turns on these processors, \
                 and latencies have long tails"
            ),
            "measure between two machines, or let this process use more processors (taskset, cpusets, the scheduler's job)",
        ),
        many => Finding::fine(SUBJECT, format!("{many} usable")),
    }
}

pub(super) fn governor(machine: &Machine) -> Finding {
    const SUBJECT: &str = "frequency governor";
    let slow: Vec<&str> = machine.governors.iter().filter(|name| *name != "performance").map(String::as_str).collect();
    match (machine.governors.is_empty(), machine.is_virtual) {
        (true, true) => Finding::new(
            SUBJECT,
            Severity::Unknown,
            "this machine runs on a hypervisor, which hides the processors' frequency",
            "",
        ),
        (true, false) => Finding::new(SUBJECT, Severity::Unknown, "the kernel has no frequency governor", ""),
        (false, _) if slow.is_empty() => Finding::fine(SUBJECT, "performance"),
        (false, _) => Finding::new(
            SUBJECT,
            Severity::Shifts,
            format!("{} lowers the frequency under low load", slow.join(", ")),
            "`cpupower frequency-set -g performance`",
        ),
    }
}

pub(super) fn idle(machine: &Machine) -> Finding {
    const SUBJECT: &str = "idle states";
    match &machine.idle {
        None => Finding::new(SUBJECT, Severity::Unknown, "the kernel lists no idle states", ""),
        Some(state) if state.latency_us <= SHALLOW_US => {
            Finding::fine(SUBJECT, format!("the deepest is {}, with {} us to wake up", state.name, state.latency_us))
        }
        Some(state) => Finding::new(
            SUBJECT,
            Severity::Shifts,
            format!(
                "a processor in {} takes {} us to wake up, which delays programs that sleep",
                state.name, state.latency_us
            ),
            format!("`cpupower idle-set -D {SHALLOW_US}`; programs that poll are not affected"),
        ),
    }
}

pub(super) fn load(machine: &Machine) -> Finding {
    const SUBJECT: &str = "other programs";
    let cpus = machine.cpus.len().max(1) as f64;
    match machine.load {
        None => Finding::new(SUBJECT, Severity::Unknown, "/proc/loadavg cannot be read", ""),
        Some(load) if load > QUIET * cpus => Finding::new(
            SUBJECT,
            Severity::Shifts,
            format!("{load:.1} processes were runnable on average in the last minute, on {cpus} processors"),
            "end the other programs, or measure later",
        ),
        Some(load) => {
            Finding::fine(SUBJECT, format!("{load:.1} processes were runnable on average in the last minute"))
        }
    }
}

pub(super) fn receive_buffer(granted_bytes: usize, machine: &Machine) -> Finding {
    const SUBJECT: &str = "receive buffer";
    // The kernel counts its own overhead too, and therefore grants up to twice the requested bytes.
    let asked = DEFAULT_RECEIVE_BUFFER_BYTES;
    if granted_bytes >= asked {
        return Finding::fine(SUBJECT, format!("{} KiB, as requested", granted_bytes >> 10));
    }
    let limit = machine.receive_buffer_max_bytes.map_or_else(|| "unknown".to_owned(), |bytes| bytes.to_string());
    Finding::new(
        SUBJECT,
        Severity::Shifts,
        format!(
            "the kernel grants {} KiB of {} KiB (net.core.rmem_max is {limit}): windows shrink to this size, and \
             further datagrams are dropped and retransmitted",
            granted_bytes >> 10,
            asked >> 10
        ),
        format!("`sysctl -w net.core.rmem_max={asked}`"),
    )
}

pub(super) fn numa(machine: &Machine, adapter: &Adapter) -> Finding {
    const SUBJECT: &str = "NUMA";
    let (Some(node), true) = (adapter.node, machine.nodes.len() > 1) else {
        return Finding::fine(SUBJECT, "one node");
    };
    let near = machine.cpus_of(node);
    if near.len() == machine.cpus.len() {
        return Finding::fine(SUBJECT, format!("all usable processors are in node {node}, next to {}", adapter.name));
    }
    // The kernel places memory on the node of the first thread that accesses the memory. Polling threads are pinned
    // before they access memory, so pinning also determines the node of the memory.
    let remedy = match near.is_empty() {
        true => format!("let this process use CPUs of node {node} (taskset, cpusets, the scheduler's job)"),
        false => format!(
            "`--cpus {}` on this machine pins polling threads to the near CPUs; without --cpus, `study` takes one CPU of \
             each core, the near CPUs first, and `bench` pins no thread",
            pinning::list(&near)
        ),
    };
    let how = if near.is_empty() {
        "none of the usable processors is".to_owned()
    } else {
        format!("only {} of the {} usable processors are", near.len(), machine.cpus.len())
    };
    let farthest = machine.nodes.iter().find(|known| known.number == node).and_then(|node| node.distances.iter().max());
    let distance =
        farthest.map_or_else(String::new, |distance| format!("; the farthest node has NUMA distance {distance}"));
    Finding::new(SUBJECT, Severity::Shifts, format!("{how} in node {node}, next to {}{distance}", adapter.name), remedy)
}

pub(super) fn pcie(adapter: &Adapter) -> Finding {
    const SUBJECT: &str = "PCIe";
    match (&adapter.pcie, &adapter.pcie_max) {
        (Some(now), Some(most)) if now == most => Finding::fine(SUBJECT, now.to_string()),
        (Some(now), Some(most)) => Finding::new(
            SUBJECT,
            Severity::Shifts,
            format!("{} has a link of {now}, and supports {most}", adapter.name),
            "use another slot, or change the firmware's settings of this slot",
        ),
        _ => Finding::new(
            SUBJECT,
            Severity::Unknown,
            format!("the kernel does not report the link of {}", adapter.name),
            "",
        ),
    }
}

pub(super) fn interface(adapter: &Adapter) -> Finding {
    const SUBJECT: &str = "MTU";
    // Bytes of an IP packet of RoCE v2 with path MTU 4096, rounded up. The headers over IPv6 take 92 bytes: 40 of IP, 8
    // of UDP, 12 of BTH, at most 28 of extended headers, and 4 of ICRC. Some drivers need slightly more space, so their
    // guides recommend an MTU of 4,200.
    const ROOM: u64 = 4200;
    match (&adapter.interface, adapter.mtu) {
        (Some(name), Some(mtu)) if mtu >= ROOM => Finding::fine(SUBJECT, format!("{mtu} B on {name}")),
        (Some(name), Some(mtu)) => Finding::new(
            SUBJECT,
            Severity::Shifts,
            format!("{name} carries IP packets of {mtu} B, so RoCE's path MTU of 4096 does not fit"),
            format!("`ip link set {name} mtu {ROOM}` on both hosts, with a switch that supports this MTU"),
        ),
        _ => Finding::new(
            SUBJECT,
            Severity::Unknown,
            format!("the kernel does not report the interface of {}", adapter.name),
            "",
        ),
    }
}

pub(super) fn gid(device: &DeviceAttributes) -> Finding {
    const SUBJECT: &str = "GID";
    let mtu = match device.active_mtu {
        PathMtu::Mtu4096 => String::new(),
        less => format!(", path MTU {}", less.bytes()),
    };
    if device.address.is_loopback() {
        return Finding::fine(
            SUBJECT,
            format!("{}: only peers on this machine can reach this address{mtu}", device.address),
        );
    }
    Finding::fine(SUBJECT, format!("{}{mtu}", device.gid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{IdleState, Node, PcieLink};

    fn two_nodes(cpus: Vec<usize>) -> Machine {
        let node = |number: usize, cpus: Vec<usize>, distances| Node { number, cpus, distances };
        Machine {
            nodes: vec![node(0, vec![0, 1], vec![10, 21]), node(1, vec![2, 3], vec![21, 10])],
            cpus,
            ..Machine::default()
        }
    }

    #[test]
    fn locked_memory_matters_to_hardware_alone() {
        let machine = Machine { memlock_bytes: Some(8 << 20), ..Machine::default() };
        assert_eq!(memlock(&machine, true, 256 << 20).severity, Severity::Fine);
        assert_eq!(memlock(&machine, false, 8 << 20).severity, Severity::Fine);
        let spoils = memlock(&machine, false, 256 << 20);
        assert_eq!(spoils.severity, Severity::Spoils);
        assert!(spoils.what.contains("8192 KiB") && spoils.what.contains("256 MiB"), "{}", spoils.what);
        assert_eq!(memlock(&Machine::default(), false, 256 << 20).severity, Severity::Fine);
    }

    #[test]
    fn a_governor_that_saves_power_shifts_figures() {
        let with = |governors: &[&str], is_virtual| {
            let governors = governors.iter().map(|&name| name.to_owned()).collect();
            governor(&Machine { governors, is_virtual, ..Machine::default() })
        };
        assert_eq!(with(&["performance"], false).severity, Severity::Fine);
        assert_eq!(with(&[], true).severity, Severity::Unknown);
        let mixed = with(&["performance", "powersave"], false);
        assert_eq!((mixed.severity, mixed.what.split(' ').next()), (Severity::Shifts, Some("powersave")));
    }

    #[test]
    fn deep_idle_states_and_load_shift_figures() {
        let with = |latency_us| {
            idle(&Machine { idle: Some(IdleState { name: "C6".to_owned(), latency_us }), ..Machine::default() })
                .severity
        };
        assert_eq!((with(0), with(2), with(3)), (Severity::Fine, Severity::Fine, Severity::Shifts));
        let with = |load| load_of(load, 4);
        assert_eq!((with(0.7), with(0.9)), (Severity::Fine, Severity::Shifts));
    }

    fn load_of(load: f64, cpus: usize) -> Severity {
        super::load(&Machine { load: Some(load), cpus: (0..cpus).collect(), ..Machine::default() }).severity
    }

    #[test]
    fn processors_far_from_the_adapter_shift_figures() {
        let adapter = Adapter { name: "mlx5_0".to_owned(), node: Some(1), ..Adapter::default() };
        assert_eq!(numa(&two_nodes(vec![2, 3]), &adapter).severity, Severity::Fine);
        let far = numa(&two_nodes(vec![0, 1]), &adapter);
        assert_eq!(far.severity, Severity::Shifts);
        assert!(far.what.starts_with("none of the usable processors") && far.what.contains("21"), "{}", far.what);
        assert!(far.remedy.starts_with("let this process use CPUs of node 1"), "{}", far.remedy);
        let mixed = numa(&two_nodes(vec![0, 1, 2, 3]), &adapter);
        assert!(mixed.what.starts_with("only 2 of the 4") && mixed.remedy.starts_with("`--cpus 2-3` "), "{mixed:?}");
        // The device is not next to any node.
        assert_eq!(numa(&two_nodes(vec![0, 1]), &Adapter { node: None, ..adapter }).severity, Severity::Fine);
    }

    #[test]
    fn a_link_below_its_best_and_a_small_mtu_shift_figures() {
        let link = |lanes| Some(PcieLink { speed: "8.0 GT/s PCIe".to_owned(), lanes });
        let adapter = Adapter { pcie: link(8), pcie_max: link(16), ..Adapter::default() };
        assert_eq!(pcie(&adapter).severity, Severity::Shifts);
        assert_eq!(pcie(&Adapter { pcie: link(16), ..adapter.clone() }).severity, Severity::Fine);
        assert_eq!(pcie(&Adapter::default()).severity, Severity::Unknown);
        let with = |mtu| interface(&Adapter { interface: Some("ens1".to_owned()), mtu, ..adapter.clone() }).severity;
        assert_eq!(
            (with(Some(1500)), with(Some(4200)), with(None)),
            (Severity::Shifts, Severity::Fine, Severity::Unknown)
        );
    }

    #[test]
    fn a_receive_buffer_that_the_kernel_cuts_shifts_figures() {
        let machine = Machine { receive_buffer_max_bytes: Some(212_992), ..Machine::default() };
        let cut = receive_buffer(425_984, &machine);
        assert_eq!(cut.severity, Severity::Shifts);
        assert!(cut.what.contains("416 KiB") && cut.what.contains("212992"), "{}", cut.what);
        assert_eq!(receive_buffer(2 * DEFAULT_RECEIVE_BUFFER_BYTES, &machine).severity, Severity::Fine);
    }
}
