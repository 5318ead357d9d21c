//! Devices in other processes. Such a process runs this test program again, and plays the part of the peer.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use doorbell_verbs::soft::{ENGINES_VARIABLE, LINK_VARIABLE, LinkChoice};
use doorbell_verbs::{AddressVector, Psn, QpAttributes, Qpn, RKey, Region};

use super::{Plan, Side};

/// Environment variable that names the part that a peer process plays.
pub const CHILD: &str = "DOORBELL_TEST_PEER";

/// Length of the memory of each end, in bytes.
pub const BYTES: usize = 100_000;

pub fn plan() -> Plan {
    Plan { timeout: 14, retry_count: 3, ..Plan::rc() }
}

/// Returns one line with all data that the other end needs to connect.
pub fn describe(side: &Side, psn: Psn, region: &Region) -> String {
    let address = side.device.attributes().address;
    format!("peer {address} {} {} {} {}", side.qp.qpn().get(), psn.get(), region.address(), region.rkey().get())
}

/// Connects to the end that `line` describes. Returns the address and key of that end's memory.
pub fn connect(plan: Plan, side: &Side, send_psn: Psn, line: &str) -> (u64, RKey) {
    let mut words = line.trim().split(' ').skip(1);
    let mut next = || words.next().unwrap_or_else(|| panic!("{line:?} does not describe an end"));
    let address = next().parse().unwrap();
    let (qpn, psn) = (Qpn::new(next().parse().unwrap()), Psn::new(next().parse().unwrap()));
    side.qp.modify(&plan.to_init()).unwrap();
    let rtr = QpAttributes { address: Some(AddressVector::to(address)), dest_qpn: Some(qpn), ..plan.to_rtr(side, psn) };
    side.qp.modify(&rtr).unwrap();
    side.qp.modify(&plan.to_rts(send_psn)).unwrap();
    (next().parse().unwrap(), RKey::new(next().parse().unwrap()))
}

/// Returns how many ring mappings and how many descriptors this process has.
pub fn held_now() -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let rings = maps.lines().filter(|line| line.contains("memfd:doorbell")).count();
    (rings, std::fs::read_dir("/proc/self/fd").unwrap().count())
}

pub struct Peer {
    pub child: Child,
    pub commands: ChildStdin,
    pub answers: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts another process that runs one test of this program and plays the part `part`.
    pub fn start(test: &str, part: &str, link: LinkChoice) -> Self {
        Self::start_with(test, part, link, 1)
    }

    /// Starts a process like [`start`](Self::start), whose devices have this number of engines.
    pub fn start_with(test: &str, part: &str, link: LinkChoice, engines: usize) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]);
        command.env(CHILD, part).env(LINK_VARIABLE, link.name()).env(ENGINES_VARIABLE, engines.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let commands = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, commands, answers }
    }

    /// Returns the next line that begins with `start`. Skips other lines, which the test harness prints before.
    pub fn answer(&mut self, start: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.answers.read_line(&mut line).unwrap() > 0, "the peer ended before it printed {start:?}");
            // The first line that a test prints follows output of the test harness on the same line.
            if let Some(at) = line.find(start) {
                return line.split_off(at);
            }
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
