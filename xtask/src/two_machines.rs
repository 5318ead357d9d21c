//! The `doorbell` command on two machines, which are network namespaces with a cable between them. Unlike loopback, the
//! cable has an Ethernet MTU and real segmentation.

mod capture;
mod cluster;
mod network;
mod record;
mod slurm;
mod ssh;
mod study;
mod whole_study;

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::packets;
use crate::peers;
use crate::place;
use crate::programs::doorbell;
use crate::shell::{Running, command, output_of, root, run, succeeds};
use crate::test::StepEnd;
pub(crate) use cluster::cluster;
use network::INTERFACE;
pub(crate) use network::{Family, TwoMachines};
use record::Expected;
pub(crate) use slurm::slurm;
pub(crate) use ssh::ssh;
pub(crate) use study::study;
pub(crate) use whole_study::hosts;

/// Time after which a command counts as hanging. No command takes this long, even on a slow machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// Secret that both sides of a measurement share.
const TOKEN: &str = "a-secret-of-this-test";

/// MTUs of the interfaces in bytes, each with the path MTU that connections must use.
const MTUS: [(u64, u64); 2] = [(1500, 1024), (9000, 4096)];

/// Average number of packets of which one is lost, in the check with loss.
const ONE_LOST_IN: u64 = 100;

/// Message sizes: empty, less than a word, several words, one packet, several packets with a padded last packet, and a
/// long run of packets.
const SIZES: &[u64] = &[0, 1, 16, 1024, 5001, 65_536];

/// Runs `doorbell bench` between two machines, over IPv4 and IPv6, with normal and jumbo frames. Checks that all
/// messages arrive intact, and that the numbers of packets and bytes are as predicted.
pub(crate) fn exchange() -> StepEnd {
    if let Some(left_out) = TwoMachines::are_impossible() {
        return left_out;
    }
    exchange_everywhere().into()
}

fn exchange_everywhere() -> Result<(), String> {
    for (interface_mtu, path_mtu) in MTUS {
        let machines = TwoMachines::new(interface_mtu)?;
        for family in Family::BOTH {
            let expected = Expected { family, path_mtu, sizes: SIZES, client: 800, server: 800 };
            let record = bench(&machines, &expected, "bw -b -q 2 -n 400")?;
            record::compare(&record, &expected)?;
            let repeated = record::explain_retransmissions(&record)?;
            eprintln!(
                "{family:?}, MTU {interface_mtu}: path MTU {path_mtu}, packets and bytes as predicted, {repeated} \
                 packets retransmitted although none was lost"
            );
        }
        let dropped = machines.dropped()?;
        if !dropped.is_empty() {
            return Err(format!("packets were lost on a cable without loss: {}", dropped.join(", ")));
        }
    }
    Ok(())
}

/// Runs `doorbell bench` between two machines whose network drops packets. Checks that all messages arrive.
pub(crate) fn with_loss() -> StepEnd {
    if let Some(left_out) = TwoMachines::are_impossible() {
        return left_out;
    }
    let losing = || {
        for family in Family::BOTH {
            let machines = TwoMachines::new(1500)?;
            machines.without_offload()?; // so that single packets are lost, not whole runs
            let loss = Loss::start(&machines)?;
            let sizes = &[16, 5001, 65_536];
            let expected = Expected { family, path_mtu: 1024, sizes, client: 600, server: 600 };
            let record = bench(&machines, &expected, "bw -b -n 600")?;
            record::compare(&record, &expected)?;
            let lost = loss.count(&machines)?;
            let repeated = record::sum(&record, "client", "tx_retransmitted_packets")?
                + record::sum(&record, "server", "tx_retransmitted_packets")?;
            if lost == 0 || repeated == 0 {
                return Err(format!(
                    "{lost} packets were lost and {repeated} retransmitted, but one in {ONE_LOST_IN} is dropped"
                ));
            }
            eprintln!(
                "{family:?}: {lost} packets lost by {}, {repeated} retransmitted, all messages arrived",
                loss.name()
            );
        }
        Ok(())
    };
    losing().into()
}

/// Method of losing packets.
#[derive(Clone, Copy)]
enum Loss {
    /// The queues of both interfaces drop packets (`sch_netem`).
    Netem,
    /// A rule of nftables drops packets that arrive at both interfaces. This is used if the kernel has no `sch_netem`.
    Nftables,
}

impl Loss {
    fn start(machines: &TwoMachines) -> Result<Self, String> {
        let percent = format!("{}%", 100 / ONE_LOST_IN);
        let netem = ["qdisc", "add", "dev", INTERFACE, "root", "netem", "loss", &percent];
        if succeeds(machines.command(0, "tc", &netem)) {
            output_of(machines.command(1, "tc", &netem))?;
            return Ok(Self::Netem);
        }
        eprintln!("the kernel has no sch_netem, so a rule of nftables drops packets");
        let rule = format!(
            "table inet loss {{ chain input {{ type filter hook input priority 0; \
             udp dport 4791 numgen random mod {ONE_LOST_IN} < 1 counter drop; }}; }}"
        );
        for machine in [0, 1] {
            output_of(machines.command(machine, "nft", &[&rule]))?;
        }
        Ok(Self::Nftables)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Netem => "sch_netem",
            Self::Nftables => "nftables",
        }
    }

    /// Returns the number of packets lost so far.
    fn count(self, machines: &TwoMachines) -> Result<u64, String> {
        let mut lost = 0;
        for machine in [0, 1] {
            let (text, before) = match self {
                Self::Netem => {
                    (machines.command(machine, "tc", &["-s", "qdisc", "show", "dev", INTERFACE]), "(dropped ")
                }
                Self::Nftables => (machines.command(machine, "nft", &["list", "ruleset"]), "counter packets "),
            };
            let text = output_of(text)?;
            let count = text.split_once(before).map(|(_, rest)| rest.split(|c: char| !c.is_ascii_digit()).next());
            let count = count.flatten().and_then(|digits| digits.parse::<u64>().ok());
            lost += count.ok_or_else(|| format!("{} prints no number of dropped packets: {text}", self.name()))?;
        }
        Ok(lost)
    }
}

/// Checks real frames that dumpcap captured on the cable. The ICRC of each packet must match the IP header that the
/// kernel wrote, even if the kernel segmented a send. tshark and scapy must report no error.
pub(crate) fn frames() -> StepEnd {
    let missing = [
        (!succeeds(command("dumpcap", &["--version"])) || !peers::has_tshark(), "tshark"),
        (peers::python_with_scapy().is_none(), "python3-scapy"),
    ];
    if let Some(left_out) = TwoMachines::are_impossible() {
        return left_out;
    }
    if let Some((_, package)) = missing.iter().find(|(is_missing, _)| *is_missing) {
        return StepEnd::LeftOut(format!("this needs Debian's package {package}"));
    }
    check_frames().into()
}

fn check_frames() -> Result<(), String> {
    let directory = place::own().join("frames");
    for (interface_mtu, path_mtu) in MTUS {
        for offload in [false, true] {
            let machines = TwoMachines::new(interface_mtu)?;
            if !offload {
                machines.without_offload()?;
            }
            for family in Family::BOTH {
                // scapy computes no ICRC over IPv6. tshark and scapy treat an unsplit send as one packet, so both
                // programs check only the captures in the folder `cut`.
                let of = if offload { "offload" } else { "cut" };
                let capture = directory.join(of).join(format!("{family:?}-{interface_mtu}.pcap"));
                let expected =
                    Expected { family, path_mtu, sizes: &[1, 16, 1024, 5001, 65_536], client: 40, server: 40 };
                let record = captured(&machines, &expected, "bw -b -n 40", &capture)?;
                record::compare(&record, &expected)?;
                check_capture(&capture, interface_mtu, &expected, offload, &record)?;
            }
        }
    }
    let python = peers::python_with_scapy().unwrap_or("python3");
    let mut scapy = command(python, &["-B"]);
    scapy.arg(root().join("xtask").join("tests").join("icrc.py")).arg(directory.join("cut")).arg("V4-*.pcap");
    run(scapy)
}

/// Runs a bench, and captures all packets at the second machine's end of the cable to the file `to`.
fn captured(machines: &TwoMachines, expected: &Expected, arguments: &str, to: &Path) -> Result<Value, String> {
    let directory = to.parent().unwrap_or(to);
    std::fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let to = to.to_string_lossy();
    let options = ["-P", "-q", "-i", INTERFACE, "-B", "256", "-f", "udp port 4791", "-w", &to];
    let mut dumpcap = Running::start(machines.command(1, "dumpcap", &options))?;
    dumpcap.wait_for("File:", PATIENCE)?;
    let record = bench(machines, expected, arguments)?;
    // dumpcap gets packets from the kernel in blocks. Wait, because the kernel delivers the last block after a delay.
    std::thread::sleep(Duration::from_secs(1));
    dumpcap.interrupt()?;
    let (_, said) = dumpcap.finish(PATIENCE)?;
    // "Packets received/dropped on interface 'veth0': 1234/0 (pcap:0/dumpcap:0/flushed:0/ps_ifdrop:0) (100.0%)"
    let counts =
        said.lines().find_map(|line| line.strip_prefix("Packets received/dropped on interface")?.split_once(": "));
    match counts.and_then(|(_, counts)| counts.split(' ').next()?.split_once('/')) {
        Some((_, "0")) => Ok(record),
        _ => Err(format!("dumpcap has dropped packets: {said}")),
    }
}

fn check_capture(
    path: &Path,
    interface_mtu: u64,
    expected: &Expected,
    offload: bool,
    record: &Value,
) -> Result<(), String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let in_capture = |why: String| format!("{name}{}: {why}", if offload { ", with offload" } else { "" });
    let seen = capture::read(path, interface_mtu).map_err(in_capture)?;
    capture::compare(&seen, expected, record).map_err(in_capture)?;
    let (cut, uncut) = (seen.cut, seen.uncut);
    // Over IPv6, the packets of a split run cannot be distinguished from other packets.
    let as_set = if offload { uncut.longest > 1 } else { uncut.count == 0 };
    if !as_set || (!offload && expected.family == Family::V4 && cut.longest < 2) {
        return Err(in_capture(format!(
            "segmentation is not as configured: runs that the kernel split: {cut:?}, unsplit runs: {uncut:?}"
        )));
    }
    if !offload {
        compare_with_tshark(path, &seen).map_err(in_capture)?;
    }
    eprintln!(
        "{name}: {} packets; segmented sends: {} that the kernel split, of up to {} packets, {} unsplit ones, of up to \
         {}",
        seen.packets.len(),
        cut.count,
        cut.longest,
        uncut.count,
        uncut.longest
    );
    Ok(())
}

/// Checks that tshark reports no error, and finds the same packets as [`capture::read`]. tshark also checks the
/// checksums that the kernel wrote.
fn compare_with_tshark(path: &Path, seen: &capture::Seen) -> Result<(), String> {
    let dissected = packets::dissect_one(path)?;
    if dissected.len() != seen.packets.len() {
        return Err(format!("tshark finds {} packets, must be {}", dissected.len(), seen.packets.len()));
    }
    for (index, (theirs, ours)) in dissected.iter().zip(&seen.packets).enumerate() {
        let number = |name| packets::number(theirs.value(name));
        let found = (theirs.source.as_str(), number("opcode"), number("psn"), number("dqpn"));
        let source = ours.source.to_string();
        let expected = (
            source.as_str(),
            Some(ours.opcode.0.into()),
            Some(ours.psn.get().into()),
            Some(ours.destination.get().into()),
        );
        if found != expected {
            return Err(format!("tshark dissects packet {} as {found:?}, expected {expected:?}", index + 1));
        }
    }
    Ok(())
}

/// Runs `doorbell bench` with `arguments` on the first machine, and a listening `doorbell bench` on the second machine.
/// Returns the record.
fn bench(machines: &TwoMachines, expected: &Expected, arguments: &str) -> Result<Value, String> {
    let doorbell = doorbell();
    let doorbell = doorbell.to_string_lossy();
    let kind = arguments.split(' ').next().unwrap_or_default();
    let there = expected.family.address(1);
    let with_token = |machine, words: &[&str]| {
        let mut command = machines.command(machine, &doorbell, words);
        command.env("DOORBELL_TOKEN", TOKEN);
        Running::start(command)
    };
    let mut server = with_token(1, &["bench", kind, "--listen", &there])?;
    server.wait_for("waiting for a client", PATIENCE)?;
    let sizes: Vec<String> = expected.sizes.iter().map(u64::to_string).collect();
    let mut words = vec!["bench"];
    words.extend(arguments.split(' '));
    let sizes = sizes.join(",");
    words.extend(["-s", &sizes, "--verify", "--json", &there]);
    let client = with_token(0, &words)?;
    let (stdout, _) = client.finish(PATIENCE)?;
    server.finish(PATIENCE)?;
    serde_json::from_str(&stdout).map_err(|error| format!("the output is no JSON: {error}:\n{stdout}"))
}
