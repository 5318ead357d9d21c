//! Devices in two processes: the same as in one, and what is left when one of them dies.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use common::*;
use doorbell_verbs::soft::{LINK_VARIABLE, LinkChoice, SoftOptions};
use doorbell_verbs::{AddressVector, Psn, QpAttributes, QpState, Qpn, RKey, SendOperation, Status};

/// Set for the process that plays the peer, to the part that it plays.
const CHILD: &str = "DOORBELL_TEST_PEER";

/// Rounds of the test that kills peers, if not 1,000.
const ROUNDS: &str = "DOORBELL_ROUNDS";

const BYTES: usize = 100_000;

/// Tests here take turns: one counts what the whole process holds.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn plan() -> Plan {
    Plan { timeout: 14, retry_count: 3, ..Plan::rc() }
}

/// What the other end must know, as one line.
fn describe(side: &Side, psn: Psn, region: &doorbell_verbs::Region) -> String {
    let address = side.device.attributes().address;
    format!("peer {address} {} {} {} {}", side.qp.qpn().get(), psn.get(), region.address(), region.rkey().get())
}

/// Connects to the end that a line describes: where its memory lies.
fn connect(plan: Plan, side: &Side, send_psn: Psn, line: &str) -> (u64, RKey) {
    let mut words = line.trim().split(' ').skip(1);
    let mut next = || words.next().unwrap_or_else(|| panic!("{line:?} is no description"));
    let address = next().parse().unwrap();
    let (qpn, psn) = (Qpn::new(next().parse().unwrap()), Psn::new(next().parse().unwrap()));
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
    let (remote_address, rkey) = connect(plan(), &side, psn, &line);
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
    fn start(part: &str, link: LinkChoice) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "two_processes_exchange_and_survive_each_other", "--nocapture"]);
        command.env(CHILD, part).env(LINK_VARIABLE, link.name());
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
    match std::env::var(CHILD).as_deref() {
        Ok("stream") => return stream(),
        Ok(_) => return be_the_peer(),
        Err(_) => {}
    }
    let _turn = turn();
    for link in [LinkChoice::Udp, LinkChoice::Shm, LinkChoice::Auto] {
        exchange_and_survive(link);
    }
}

fn exchange_and_survive(link: LinkChoice) {
    let side = plan().side(&open_soft(SoftOptions { link: Some(link), ..SoftOptions::default() }));
    let memory = side.patterned(BYTES, 1);
    let mut peer = Peer::start("peer", link);
    let line = peer.answer("peer ");
    let psn = side.device.random_psn();
    writeln!(peer.commands, "{}", describe(&side, psn, &memory)).unwrap();
    connect(plan(), &side, psn, &line);
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
    let other = open_soft(SoftOptions { link: Some(link), ..SoftOptions::default() });
    let (a, b) = plan().connect(&(side.device.clone(), other));
    b.post_recv(1, &[]);
    a.post(1, SendOperation::Send, &[]);
    a.expect(1);
    b.expect(1);
}

/// A process that takes a given address, and writes to its peer's memory until it is killed.
fn stream() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let address = Some(line.trim().parse().unwrap());
    let side = hasty().side(&open_soft(SoftOptions { address, ..SoftOptions::default() }));
    let memory = side.patterned(BYTES, 1);
    let psn = side.device.random_psn();
    println!("{}", describe(&side, psn, &memory));
    line.clear();
    std::io::stdin().read_line(&mut line).unwrap();
    let (remote_address, rkey) = connect(hasty(), &side, psn, &line);
    println!("ready");
    for length in (1..).map(|number| number * 37 % BYTES) {
        side.post(1, SendOperation::Write { remote_address, rkey }, &[memory.sge(0, length)]);
        side.expect(1);
    }
}

/// So that the death of a peer is noticed within milliseconds.
fn hasty() -> Plan {
    Plan { timeout: 8, retry_count: 1, ..Plan::rc() }
}

#[test]
fn a_peer_killed_at_any_moment_leaves_nothing_behind() {
    let _turn = turn();
    let rounds = std::env::var(ROUNDS).ok().map_or(1000, |text| text.parse().expect("a number of rounds"));
    // One that no test takes without being asked.
    let (own, theirs) = ("127.77.41.1", "127.77.41.2");
    let device = open_soft(SoftOptions {
        address: Some(own.parse().unwrap()),
        link: Some(LinkChoice::Shm),
        ..SoftOptions::default()
    });
    let other = open_soft(SoftOptions { link: Some(LinkChoice::Shm), ..SoftOptions::default() });
    let mut held = (0, 0);
    for round in 0..rounds {
        let side = hasty().side(&device);
        let memory = side.memory(BYTES);
        let mut peer = Peer::start("stream", LinkChoice::Shm);
        // Its address, and the name that goes with it, are free again in each round.
        writeln!(peer.commands, "{theirs}").unwrap();
        let line = peer.answer("peer ");
        let psn = side.device.random_psn();
        writeln!(peer.commands, "{}", describe(&side, psn, &memory)).unwrap();
        connect(hasty(), &side, psn, &line);
        peer.answer("ready");
        // The first byte of what it writes arrives; then it dies somewhere in the middle.
        let mut first = [0];
        eventually("it writes", || {
            assert!(reap_within(&side.cq, 1, Duration::ZERO).is_empty());
            side.device.drive();
            memory.copy_out(0, &mut first);
            first == pattern(1, 1)[..]
        });
        std::thread::sleep(Duration::from_micros(round * 997 % 3001));
        peer.child.kill().unwrap();
        peer.child.wait().unwrap();
        side.post(2, SendOperation::Write { remote_address: 8, rkey: RKey::new(1) }, &[memory.sge(0, 5000)]);
        side.expect_failure(2, Status::RetryExceeded);
        // Others notice nothing.
        let (a, b) = plan().connect(&(device.clone(), other.clone()));
        b.post_recv(1, &[]);
        a.post(1, SendOperation::Send, &[]);
        a.expect(1);
        b.expect(1);
        drop((side, memory, a, b));
        // Nor does this process keep anything of it: neither memory that both mapped, nor descriptors. The first rounds
        // show how much belongs to the two devices that live on.
        if round < 5 {
            let now = held_now();
            held = (held.0.max(now.0), held.1.max(now.1));
            continue;
        }
        eventually("what was shared with the dead is given back", || {
            device.drive();
            other.drive();
            let now = held_now();
            now.0 <= held.0 && now.1 <= held.1
        });
    }
}

/// How many mappings of rings and how many descriptors this process has.
fn held_now() -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let rings = maps.lines().filter(|line| line.contains("memfd:doorbell")).count();
    (rings, std::fs::read_dir("/proc/self/fd").unwrap().count())
}

#[test]
fn a_stopped_peer_holds_nobody_up() {
    let _turn = turn();
    let device = open_soft(SoftOptions { link: Some(LinkChoice::Shm), ..SoftOptions::default() });
    let patient = Plan { timeout: 16, retry_count: 7, ..Plan::rc() };
    let side = patient.side(&device);
    let memory = side.patterned(BYTES, 1);
    let mut peer = Peer::start("peer", LinkChoice::Shm);
    let line = peer.answer("peer ");
    let psn = side.device.random_psn();
    writeln!(peer.commands, "{}", describe(&side, psn, &memory)).unwrap();
    let (remote_address, rkey) = connect(patient, &side, psn, &line);
    peer.answer("ready");
    let process = nix::unistd::Pid::from_raw(peer.child.id().cast_signed());
    nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGSTOP).unwrap();
    let tasks = format!("/proc/{process}/task");
    eventually("all its threads have stopped", || {
        let tasks = std::fs::read_dir(&tasks).unwrap().map(|task| task.unwrap().path().join("stat"));
        tasks.map(|stat| std::fs::read_to_string(stat).unwrap()).all(|stat| stat.contains(") T "))
    });
    // More than the ring to it holds, whatever the window allows.
    let writes: Vec<u64> = (10..40).collect();
    for &wr_id in &writes {
        side.post(wr_id, SendOperation::Write { remote_address, rkey }, &[memory.sge(0, BYTES)]);
    }
    // Another peer is served by the same device meanwhile, and by a device of its own.
    let open = || open_soft(SoftOptions { link: Some(LinkChoice::Shm), ..SoftOptions::default() });
    for devices in [(device.clone(), open()), (open(), open())] {
        let (a, b) = plan().connect(&devices);
        for number in 0..500 {
            b.post_recv(number, &[]);
            a.post(number, SendOperation::Send, &[]);
            a.expect(number);
            b.expect(number);
        }
    }
    assert!(reap_within(&side.cq, 1, Duration::ZERO).is_empty(), "the peer is stopped");
    nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGCONT).unwrap();
    let done: Vec<_> = side.reap(writes.len()).iter().map(|completion| (completion.wr_id, completion.status)).collect();
    assert_eq!(done, writes.iter().map(|&wr_id| (wr_id, Status::Success)).collect::<Vec<_>>());
}
