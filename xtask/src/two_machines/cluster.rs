//! `doorbell study` on many machines, which are network namespaces. A bridge connects their interfaces.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::network::{INTERFACE, Namespaces};
use super::{ONE_LOST_IN, PATIENCE, TOKEN, TwoMachines};
use crate::place;
use crate::programs::doorbell;
use crate::shell::{Running, output_of, succeeds};
use crate::test::StepEnd;

/// Runs a study and a study of far memory on four machines, of which one loses packets. Then runs a study on eight
/// machines. Checks that all points are complete, that all machines take part, and that the numbers of packets are as
/// predicted.
pub(crate) fn cluster() -> StepEnd {
    if let Some(left_out) = TwoMachines::are_impossible() {
        return left_out;
    }
    study_everywhere().into()
}

fn study_everywhere() -> Result<(), String> {
    let small = Cluster::new(4, 1500)?;
    small.lose_packets(3)?;
    let records = small.study("four", &["hosts", "direct-read/one-to-n"])?;
    let resent = check(&records, 1024, 4)?;
    if resent == 0 {
        return Err(format!("one in {ONE_LOST_IN} packets to a machine is dropped, but no packet was retransmitted"));
    }
    eprintln!(
        "four machines, MTU 1500, one of them with loss: {} points, {resent} retransmitted packets",
        records.len()
    );
    let records = small.study("far", &["far-memory/contention"])?;
    check(&records, 1024, 4)?;
    check_parties(&records)?;
    eprintln!("four machines: {} points of far memory, each party on a separate machine", records.len());
    drop(small);
    let large = Cluster::new(8, 9000)?;
    let records = large.study("eight", &["direct-write/n-to-1"])?;
    check(&records, 4096, 8)?;
    eprintln!("eight machines, MTU 9000: {} points", records.len());
    Ok(())
}

/// Namespaces of machines, whose interfaces are connected to one bridge. The bridge is in the last namespace.
pub(super) struct Cluster {
    namespaces: Namespaces,
    machines: usize,
}

impl Cluster {
    /// Creates `machines` machines whose interfaces have an MTU of `mtu` bytes.
    pub(super) fn new(machines: usize, mtu: u64) -> Result<Self, String> {
        let cluster = Self { namespaces: Namespaces::new(machines + 1)?, machines };
        let (bridge, mtu) = (machines, mtu.to_string());
        let ip = |machine, words: &str| cluster.namespaces.ip(machine, &words.split(' ').collect::<Vec<_>>());
        ip(bridge, "link add bridge0 type bridge")?;
        ip(bridge, "link set bridge0 up")?;
        for machine in 0..machines {
            let at = cluster.namespaces.path(machine);
            let made = format!("link add port{machine} mtu {mtu} type veth peer name {INTERFACE} netns {at} mtu {mtu}");
            ip(bridge, &made)?;
            ip(bridge, &format!("link set port{machine} master bridge0 up"))?;
            ip(machine, &format!("address add {}/24 dev {INTERFACE}", address(machine)))?;
            ip(machine, &format!("link set {INTERFACE} up"))?;
        }
        Ok(cluster)
    }

    /// Returns the number of machines.
    pub(super) fn machines(&self) -> usize {
        self.machines
    }

    /// Returns a command on one of the machines, as [`Namespaces::command`].
    pub(super) fn command(&self, machine: usize, program: &str, arguments: &[&str]) -> Command {
        self.namespaces.command(machine, program, arguments)
    }

    /// Makes the network drop some of the RoCE packets to one machine.
    pub(super) fn lose_packets(&self, machine: usize) -> Result<(), String> {
        let percent = format!("{}%", 100 / ONE_LOST_IN);
        let port = format!("port{machine}");
        let netem = ["qdisc", "add", "dev", &port, "root", "netem", "loss", &percent];
        if succeeds(self.namespaces.command(self.machines, "tc", &netem)) {
            return Ok(());
        }
        let rule = format!(
            "table inet loss {{ chain input {{ type filter hook input priority 0; \
             udp dport 4791 numgen random mod {ONE_LOST_IN} < 1 counter drop; }}; }}"
        );
        output_of(self.namespaces.command(machine, "nft", &[&rule])).map(drop)
    }

    /// Runs a default study of `experiments` from the first machine with all other machines, and returns its records.
    fn study(&self, name: &str, experiments: &[&str]) -> Result<Vec<(PathBuf, Value)>, String> {
        self.study_into(&place::own().join(format!("study-{name}")), experiments, PATIENCE)
    }

    /// Runs a study as [`Self::study`], with records in `directory`. If `experiments` is empty, runs all default
    /// experiments.
    pub(super) fn study_into(
        &self,
        directory: &Path,
        experiments: &[&str],
        patience: Duration,
    ) -> Result<Vec<(PathBuf, Value)>, String> {
        let doorbell = doorbell();
        let doorbell = doorbell.to_string_lossy();
        let mut servers = Vec::new();
        for machine in 1..self.machines {
            let mut there = self.namespaces.command(machine, &doorbell, &["study", "-d", "doorbell0", "--listen"]);
            there.env("DOORBELL_TOKEN", TOKEN);
            servers.push(Running::start(there)?);
        }
        for server in &mut servers {
            server.wait_for("waiting for a client", PATIENCE)?;
        }
        let out = directory.to_string_lossy();
        let others: Vec<String> = (1..self.machines).map(address).collect();
        let mut words = vec!["study", "-d", "doorbell0", "--out", &out];
        words.extend(experiments);
        words.extend(others.iter().map(String::as_str));
        let mut here = self.namespaces.command(0, &doorbell, &words);
        here.env("DOORBELL_TOKEN", TOKEN);
        Running::start(here)?.finish(patience)?;
        read(directory)
    }
}

/// Returns the address of a machine, from a range for documentation (RFC 5737).
pub(super) fn address(machine: usize) -> String {
    format!("192.0.2.{}", machine + 1)
}

pub(super) fn read(directory: &Path) -> Result<Vec<(PathBuf, Value)>, String> {
    let failed = |error| format!("{}: {error}", directory.display());
    let mut records = Vec::new();
    for file in std::fs::read_dir(directory).map_err(failed)?.flatten().map(|file| file.path()) {
        if file.extension().is_some_and(|extension| extension == "json") {
            let text = std::fs::read(&file).map_err(failed)?;
            let record = serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", file.display()))?;
            records.push((file, record));
        }
    }
    if records.is_empty() { Err(format!("{} has no records", directory.display())) } else { Ok(records) }
}

/// Checks that every point has its repetitions, with packets as predicted at each machine, and that all machines take
/// part in some points. Returns the number of retransmitted packets.
pub(super) fn check(records: &[(PathBuf, Value)], mtu: u64, machines: usize) -> Result<u64, String> {
    let (mut resent, mut most) = (0, 0);
    for (file, record) in records {
        let failed = |why: String| format!("{}: {why}", file.display());
        // If there is only one other machine, records have it as `peer` instead of in the list `hosts`.
        let one = usize::from(record.pointer("/environment/peer").is_some_and(Value::is_object));
        let others = record.pointer("/environment/hosts").and_then(Value::as_array).map_or(one, Vec::len);
        let repetitions = record["repetitions"].as_array().map_or(&[][..], Vec::as_slice);
        if others + 1 != machines || repetitions.len() != 3 {
            return Err(failed(format!("{others} other hosts, {} repetitions", repetitions.len())));
        }
        for result in repetitions {
            if result["mtu"].as_u64() != Some(mtu) {
                return Err(failed(format!("a path MTU of {} instead of {mtu}", result["mtu"])));
            }
            let hosts = result["hosts"].as_array().map_or(&[][..], Vec::as_slice);
            let sides = ["client", "server"];
            let parts: Vec<[&Value; 2]> = match hosts {
                [] => sides.iter().map(|side| [&result["counted"][side], &result["predicted"][side]]).collect(),
                hosts => hosts.iter().map(|host| [&host["counted"], &host["predicted"]]).collect(),
            };
            most = most.max(parts.len());
            for [counted, predicted] in parts {
                let number = |of: &Value, name: &str| of[name].as_u64().unwrap_or(0);
                let data = number(counted, "data_packets");
                let (least, greatest) = (number(predicted, "data_packets"), number(predicted, "data_packets_max"));
                // With `asks`, one end polls the memory of the other end by READ, so the number of packets has no
                // maximum.
                let is_bounded = predicted["asks"] != Value::Bool(true);
                if data < least || (is_bounded && data > greatest) {
                    return Err(failed(format!("{data} data packets, predicted are {least} to {greatest}: {counted}")));
                }
                resent += number(counted, "retransmitted_packets");
            }
        }
    }
    if most == machines {
        Ok(resent)
    } else {
        Err(format!("no point uses all {machines} machines; the maximum is {most}"))
    }
}

/// Checks that each party of a store is on a separate machine, and that clients completed operations.
fn check_parties(records: &[(PathBuf, Value)]) -> Result<(), String> {
    for (file, record) in records {
        let is_steered = record["series"].as_str().is_some_and(|series| series.starts_with("steered"));
        for result in record["repetitions"].as_array().map_or(&[][..], Vec::as_slice) {
            let hosts = result["hosts"].as_array().map_or(&[][..], Vec::as_slice);
            let roles: Vec<(u64, &str)> = hosts
                .iter()
                .map(|host| (host["number"].as_u64().unwrap_or(u64::MAX), host["role"].as_str().unwrap_or_default()))
                .collect();
            let all = [(0, "clients"), (1, "memory node"), (2, "middlebox"), (3, "metadata service")];
            let expected: Vec<_> = all.into_iter().filter(|(_, role)| is_steered || *role != "middlebox").collect();
            if roles != expected || result["messages"].as_u64().is_none_or(|messages| messages == 0) {
                return Err(format!("{}: {} operations, machines: {roles:?}", file.display(), result["messages"]));
            }
        }
    }
    Ok(())
}
