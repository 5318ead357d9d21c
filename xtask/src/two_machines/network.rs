//! Simulated machines, which are network namespaces with a cable between them. The namespaces have no names, so runs do
//! not collide. A namespace disappears when its handle is dropped or this process ends.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use serde_json::Value;

use crate::peers;
use crate::shell::{command, output_of};
use crate::test::StepEnd;

/// Name of the interface at both ends of the cable.
pub(super) const INTERFACE: &str = "veth0";

/// Time within which the kernel must make the interfaces ready.
const PATIENCE: Duration = Duration::from_secs(120);

/// Version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) const BOTH: [Self; 2] = [Self::V4, Self::V6];

    /// Returns the address of a machine, from ranges for documentation (RFC 5737, RFC 3849), which are not routed.
    pub(crate) fn address(self, machine: usize) -> String {
        match self {
            Self::V4 => format!("192.0.2.{}", machine + 1),
            Self::V6 => format!("2001:db8::{}", machine + 1),
        }
    }

    /// Returns the bytes of an IP header without options.
    pub(super) fn header_bytes(self) -> u64 {
        match self {
            Self::V4 => 20,
            Self::V6 => 40,
        }
    }
}

/// Network namespaces, each of which is the network of one machine. A namespace exists while this handle has it open or
/// a process runs in it.
pub(crate) struct Namespaces(Vec<File>);

impl Namespaces {
    /// Creates `count` machines. Each machine has only a loopback interface, which is up.
    pub(crate) fn new(count: usize) -> Result<Self, String> {
        let namespaces = Self((0..count).map(|_| namespace()).collect::<Result<_, _>>()?);
        (0..count).try_for_each(|machine| namespaces.ip(machine, &["link", "set", "lo", "up"]).map(drop))?;
        Ok(namespaces)
    }

    /// Returns a command on a machine. The command sees the files of the host, but below `/proc` and `/sys` it sees the
    /// network of the machine.
    pub(crate) fn command(&self, machine: usize, program: &str, arguments: &[&str]) -> Command {
        const WITH_OWN_SYSFS: &str = "umount --lazy /sys; mount -t sysfs sysfs /sys && exec \"$0\" \"$@\"";
        let enter = format!("--net={}", self.path(machine));
        let apart = [&enter, "unshare", "--mount", "sh", "-c", WITH_OWN_SYSFS, program];
        command("nsenter", &[&apart[..], arguments].concat())
    }

    /// Returns a path at which other processes can open a namespace.
    pub(crate) fn path(&self, machine: usize) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0[machine].as_raw_fd())
    }

    pub(crate) fn ip(&self, machine: usize, arguments: &[&str]) -> Result<String, String> {
        output_of(self.command(machine, "ip", arguments))
    }
}

/// Two network namespaces with an Ethernet cable between them.
pub(crate) struct TwoMachines {
    namespaces: Namespaces,
}

impl TwoMachines {
    /// Returns the reason if this system does not allow two machines.
    pub(crate) fn are_impossible() -> Option<StepEnd> {
        if !peers::is_root() {
            return Some(StepEnd::LeftOut("only root can create network namespaces".to_owned()));
        }
        let programs = [("ip", "-V", "iproute2"), ("ethtool", "--version", "ethtool"), ("nsenter", "-V", "util-linux")];
        let missing: Vec<_> = programs
            .into_iter()
            .filter(|(program, version, _)| !crate::shell::succeeds(command(program, &[version])))
            .map(|(program, _, package)| format!("there is no {program}; Debian's package is {package}"))
            .collect();
        (!missing.is_empty()).then(|| StepEnd::LeftOut(missing.join("; ")))
    }

    /// Creates two machines whose interfaces have an MTU of `mtu` bytes.
    pub(crate) fn new(mtu: u64) -> Result<Self, String> {
        let machines = Self { namespaces: Namespaces::new(2)? };
        let other = machines.namespaces.path(1);
        let mtu = mtu.to_string();
        let pair = ["type", "veth", "peer", "name", INTERFACE, "netns", &other, "mtu", &mtu];
        machines.ip(0, &[&["link", "add", INTERFACE, "mtu", &mtu][..], &pair].concat())?;
        for machine in [0, 1] {
            let (v4, v6) = (Family::V4.address(machine) + "/24", Family::V6.address(machine) + "/64");
            machines.ip(machine, &["address", "add", &v4, "dev", INTERFACE])?;
            // No other machine has the address, so duplicate address detection is unnecessary (`nodad`).
            machines.ip(machine, &["address", "add", &v6, "dev", INTERFACE, "nodad"])?;
            machines.ip(machine, &["link", "set", INTERFACE, "up"])?;
        }
        let until = Instant::now() + PATIENCE;
        while !machines.are_ready()? {
            if Instant::now() > until {
                return Err("the kernel has created no routes between two network namespaces".to_owned());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(machines)
    }

    /// Returns whether the kernel has created the routes. The kernel creates them asynchronously.
    fn are_ready(&self) -> Result<bool, String> {
        for machine in [0, 1] {
            let link = self.ip(machine, &["link", "show", INTERFACE])?;
            let local = self.ip(machine, &["-6", "route", "show", "table", "local"])?;
            let own = format!("local {} ", Family::V6.address(machine));
            if !link.contains(" state UP ") || !local.contains(&own) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns a command on one of the machines, as [`Namespaces::command`].
    pub(crate) fn command(&self, machine: usize, program: &str, arguments: &[&str]) -> Command {
        self.namespaces.command(machine, program, arguments)
    }

    fn ip(&self, machine: usize, arguments: &[&str]) -> Result<String, String> {
        self.namespaces.ip(machine, arguments)
    }

    /// Turns offloading off. Then only single frames with complete checksums pass the cable, as on a real cable. The
    /// kernel splits segmented sends before the interface gets them, and does not coalesce received frames.
    pub(super) fn without_offload(&self) -> Result<(), String> {
        let off = ["gso", "gro", "tx-udp-segmentation", "tx"].map(|feature| [feature, "off"]).concat();
        for machine in [0, 1] {
            output_of(self.command(machine, "ethtool", &[&["-K", INTERFACE][..], &off].concat()))?;
        }
        Ok(())
    }

    /// Returns the packets that the kernels of both machines dropped between the cable and the sockets, by cause.
    pub(super) fn dropped(&self) -> Result<Vec<String>, String> {
        let mut found = Vec::new();
        for machine in [0, 1] {
            let text = self.ip(machine, &["-j", "-s", "link", "show", INTERFACE])?;
            let link: Value = serde_json::from_str(&text).map_err(|error| format!("ip's answer: {error}"))?;
            for (way, what) in [("rx", "dropped"), ("rx", "errors"), ("tx", "dropped"), ("tx", "errors")] {
                let count = link.pointer(&format!("/0/stats64/{way}/{what}")).and_then(Value::as_u64);
                match count {
                    None => return Err(format!("the output of ip has no counter {way} {what}: {text}")),
                    Some(0) => {}
                    Some(count) => found.push(format!("machine {machine}: {way} {what} {count}")),
                }
            }
            for (name, count) in self.udp_errors(machine)? {
                if count > 0 {
                    found.push(format!("machine {machine}: {name} {count}"));
                }
            }
        }
        Ok(found)
    }

    /// Returns UDP's counters of received packets that the kernel dropped.
    fn udp_errors(&self, machine: usize) -> Result<Vec<(String, u64)>, String> {
        const ERRORS: [&str; 3] = ["InErrors", "RcvbufErrors", "InCsumErrors"];
        let v4 = output_of(self.command(machine, "cat", &["/proc/net/snmp"]))?;
        let mut lines = v4.lines().filter_map(|line| line.strip_prefix("Udp: ")).map(str::split_whitespace);
        let (names, values) = (lines.next(), lines.next());
        let v4 = names.into_iter().flatten().zip(values.into_iter().flatten());
        let v6 = output_of(self.command(machine, "cat", &["/proc/net/snmp6"]))?;
        let v6 = v6.lines().filter_map(|line| line.strip_prefix("Udp6")?.split_once(char::is_whitespace));
        let all: Vec<_> = v4
            .chain(v6.map(|(name, value)| (name, value.trim())))
            .filter(|(name, _)| ERRORS.contains(name))
            .filter_map(|(name, value)| Some((format!("Udp{name}"), value.parse().ok()?)))
            .collect();
        if all.len() == 2 * ERRORS.len() {
            Ok(all)
        } else {
            Err("/proc/net/snmp or snmp6 lacks counters of UDP".to_owned())
        }
    }
}

/// Creates a network namespace. A new thread creates it, so that the calling thread stays in its own namespace.
fn namespace() -> Result<File, String> {
    let made = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET)?;
        File::open("/proc/thread-self/ns/net")
    });
    let made = made
        .join()
        .unwrap_or_else(|_| Err(std::io::Error::other("the thread that creates the namespace has panicked")));
    made.map_err(|error| format!("no network namespace: {error}"))
}
