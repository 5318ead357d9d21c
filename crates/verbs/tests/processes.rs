//! Devices in two processes: the same as in one, and what is left when one of them dies.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use common::*;
use doorbell_verbs::soft::SoftOptions;
use doorbell_verbs::{AddressVector, Psn, QpAttributes, QpState, Qpn, RKey, SendOperation, Status};

/// Set for the process that plays the peer.
const CHILD: &str = "DOORBELL_TEST_PEER";

const BYTES: usize = 100_000;

fn plan() -> Plan {
    Plan { timeout: 14, retry_count: 3, ..Plan::rc() }
}

/// What the other end must know, as one line.
fn describe(side: &Side, psn: Psn, region: &doorbell_verbs::Region) -> String {
    let address = side.device.attributes().address;
    format!("peer {address} {} {} {} {}", side.qp.qpn().get(), psn.get(), region.address(), region.rkey().get())
}

/// Connects to the end that a line describes: where its memory lies.
fn connect(side: &Side, send_psn: Psn, line: &str) -> (u64, RKey) {
    let mut words = line.trim().split(' ').skip(1);
    let mut next = || words.next().unwrap_or_else(|| panic!("{line:?} is no description"));
    let address = next().parse().unwrap();
    let (qpn, psn) = (Qpn::new(next().parse().unwrap()), Psn::new(next().parse().unwrap()));
    let plan = plan();
    side.qp.modify(&plan.to_init()).unwrap();
    let rtr = QpAttributes { address: Some(AddressVector::to(address)), dest_qpn: Some(qpn), ..plan.to_rtr(side, psn) };
    side.qp.modify(&rtr).unwrap();
    side.qp.modify(&plan.to_rts(send_psn)).unwrap();
    (next().parse().unwrap(), RKey::new(next().parse().unwrap()))
}

/// The other process: it doubles what it is told to, then waits until it is killed.
fn be_the_peer() {
    let side = plan().side(&open_soft(SoftOptions::default()));
    let memory = side.memory(BYTES);
    let psn = side.device.random_psn();
    println!("{}", describe(&side, psn, &memory));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let (remote_address, rkey) = connect(&side, psn, &line);
    side.post_recv(1, &[memory.sge(0, BYTES)]);
    println!("ready");
    side.expect(1);
    let mut bytes = bytes_of(&memory, 0, BYTES);
    bytes.iter_mut().for_each(|byte| *byte = byte.wrapping_mul(2));
    memory.copy_in(0, &bytes);
    side.post(2, SendOperation::Write { remote_address, rkey }, &[memory.sge(0, BYTES)]);
    side.expect(2);
    side.post(3, SendOperation::SendImmediate(3), &[]);
    side.expect(3);
    line.clear();
    let _ = std::io::stdin().read_line(&mut line); // until the first process has enough of it
}

struct Peer {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    fn start() -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "two_processes_exchange_and_survive_each_other", "--nocapture"]).env(CHILD, "1");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let commands = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, commands, answers }
    }

    /// The next line that starts so: a test program prints others before.
    fn answer(&mut self, start: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.answers.read_line(&mut line).unwrap() > 0, "the peer ended before it said {start:?}");
            // The first line of a test stands behind the runner's words.
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

#[test]
fn two_processes_exchange_and_survive_each_other() {
    if std::env::var_os(CHILD).is_some() {
        return be_the_peer();
    }
    let side = plan().side(&open_soft(SoftOptions::default()));
    let memory = side.patterned(BYTES, 1);
    let mut peer = Peer::start();
    let line = peer.answer("peer ");
    let psn = side.device.random_psn();
    writeln!(peer.commands, "{}", describe(&side, psn, &memory)).unwrap();
    connect(&side, psn, &line);
    side.post_recv(1, &[]);
    peer.answer("ready");
    side.post(2, SendOperation::Send, &[memory.sge(0, BYTES)]);
    let mut ids: Vec<u64> = side.reap(2).iter().map(|completion| completion.wr_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [1, 2]);
    let doubled: Vec<u8> = pattern(BYTES, 1).iter().map(|byte| byte.wrapping_mul(2)).collect();
    assert_bytes(&memory, 0, &doubled, "what came back");
    // It dies without a word, with a request under way.
    peer.child.kill().unwrap();
    peer.child.wait().unwrap();
    side.post(3, SendOperation::Send, &[]);
    side.expect_failure(3, Status::RetryExceeded);
    assert_eq!(side.state(), QpState::Error);
    // The device is as good as before: the next peer finds it.
    let (a, b) = plan().connect(&(side.device.clone(), open_soft(SoftOptions::default())));
    b.post_recv(1, &[]);
    a.post(1, SendOperation::Send, &[]);
    a.expect(1);
    b.expect(1);
}
