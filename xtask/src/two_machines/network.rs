//! Two machines on one: network namespaces with a cable between them, which go with their handle.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::peers;
use crate::shell::{command, output_of};
use crate::test::Outcome;

/// Both ends of the cable.
pub(super) const INTERFACE: &str = "veth0";

/// How long the kernel may take to make them ready: protection against waiting for ever.
const PATIENCE: Duration = Duration::from_secs(30);

/// What namespaces of this program are called, before the number of its process.
const PREFIX: &str = "doorbell-test-";

/// Which IP they speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) const BOTH: [Self; 2] = [Self::V4, Self::V6];

    /// The address of a machine: of the ranges for documentation (RFC 5737, RFC 3849), which lead
    /// nowhere.
    pub(crate) fn address(self, machine: usize) -> String {
        match self {
            Self::V4 => format!("192.0.2.{}", machine + 1),
            Self::V6 => format!("2001:db8::{}", machine + 1),
        }
    }

    /// Bytes of its header, without options.
    pub(super) fn header_bytes(self) -> u64 {
        match self {
            Self::V4 => 20,
            Self::V6 => 40,
        }
    }
}

/// Two network namespaces with an Ethernet cable between them.
pub(crate) struct TwoMachines {
    names: [String; 2],
}

impl TwoMachines {
    /// Why there can be none here, if so.
    pub(crate) fn are_impossible() -> Option<Outcome> {
        if !peers::is_root() {
            return Some(Outcome::LeftOut("only root can make network namespaces".to_owned()));
        }
        let missing: Vec<_> = [("ip", "-V", "iproute2"), ("ethtool", "--version", "ethtool")]
            .into_iter()
            .filter(|(program, version, _)| !crate::shell::succeeds(command(program, &[version])))
            .map(|(program, _, package)| format!("there is no {program}; Debian's package is {package}"))
            .collect();
        (!missing.is_empty()).then(|| Outcome::LeftOut(missing.join("; ")))
    }

    /// Makes them, with interfaces of this MTU in bytes.
    pub(crate) fn new(mtu: u64) -> Result<Self, String> {
        remove_stale();
        let pid = std::process::id();
        // From here on dropping it removes what there is.
        let machines = Self { names: [0, 1].map(|machine| format!("{PREFIX}{pid}-{machine}")) };
        let [one, other] = &machines.names;
        let mtu = mtu.to_string();
        for name in [one, other] {
            ip(&["netns", "add", name])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
        }
        let pair = ["type", "veth", "peer", "name", INTERFACE, "netns", other, "mtu", &mtu];
        ip(&[&["-n", one, "link", "add", INTERFACE, "mtu", &mtu][..], &pair].concat())?;
        for (machine, name) in machines.names.iter().enumerate() {
            let (v4, v6) = (Family::V4.address(machine) + "/24", Family::V6.address(machine) + "/64");
            ip(&["-n", name, "address", "add", &v4, "dev", INTERFACE])?;
            // Nobody else is there who could have the address: it can be used at once.
            ip(&["-n", name, "address", "add", &v6, "dev", INTERFACE, "nodad"])?;
            ip(&["-n", name, "link", "set", INTERFACE, "up"])?;
        }
        let until = Instant::now() + PATIENCE;
        while !machines.are_ready()? {
            if Instant::now() > until {
                return Err("the kernel makes no routes between two network namespaces".to_owned());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(machines)
    }

    /// Has the kernel made the routes? It does so in its own time.
    fn are_ready(&self) -> Result<bool, String> {
        for (machine, name) in self.names.iter().enumerate() {
            let state = output_of(self.command(machine, "cat", &[&format!("/sys/class/net/{INTERFACE}/operstate")]))?;
            let local = ip(&["-n", name, "-6", "route", "show", "table", "local"])?;
            let own = format!("local {} ", Family::V6.address(machine));
            if state.trim() != "up" || !local.contains(&own) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A command on one of them.
    pub(crate) fn command(&self, machine: usize, program: &str, arguments: &[&str]) -> Command {
        command("ip", &[&["netns", "exec", &self.names[machine], program][..], arguments].concat())
    }

    /// From now on only single frames with whole checksums pass the cable, as on a real one: the
    /// kernel cuts segmented sends up before it hands them over, and puts nothing together again.
    pub(super) fn without_offload(&self) -> Result<(), String> {
        let off = ["gso", "gro", "tx-udp-segmentation", "tx"].map(|feature| [feature, "off"]).concat();
        for machine in [0, 1] {
            output_of(self.command(machine, "ethtool", &[&["-K", INTERFACE][..], &off].concat()))?;
        }
        Ok(())
    }

    /// What the kernels of both dropped so far between the cable and the sockets, by cause.
    pub(super) fn dropped(&self) -> Result<Vec<String>, String> {
        let mut found = Vec::new();
        for machine in [0, 1] {
            let text = output_of(self.command(machine, "ip", &["-j", "-s", "link", "show", INTERFACE]))?;
            let link: Value = serde_json::from_str(&text).map_err(|error| format!("ip's answer: {error}"))?;
            for (way, what) in [("rx", "dropped"), ("rx", "errors"), ("tx", "dropped"), ("tx", "errors")] {
                let count = link.pointer(&format!("/0/stats64/{way}/{what}")).and_then(Value::as_u64);
                match count {
                    None => return Err(format!("ip does not say how many packets are {way} {what}: {text}")),
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

    /// UDP's counters of packets that it received and threw away.
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
        if all.len() == 2 * ERRORS.len() { Ok(all) } else { Err("the kernel does not show UDP's counters".to_owned()) }
    }
}

impl Drop for TwoMachines {
    fn drop(&mut self) {
        for name in &self.names {
            // Where it was not made, there is nothing to remove.
            let _ = ip(&["netns", "delete", name]);
        }
    }
}

/// Removes what a process that was killed has left behind.
fn remove_stale() {
    let names = ip(&["netns", "list"]).unwrap_or_default();
    for name in names.lines().filter_map(|line| line.split_whitespace().next()) {
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-'));
        if owner.is_some_and(|(pid, _)| !std::path::Path::new("/proc").join(pid).exists()) {
            let _ = ip(&["netns", "delete", name]);
        }
    }
}

fn ip(arguments: &[&str]) -> Result<String, String> {
    output_of(command("ip", arguments))
}
