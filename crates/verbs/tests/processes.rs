//! Devices in two processes: the same as in one, and what is left when one of them dies.

mod common;

use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use common::peer::{BYTES, CHILD, Peer, connect, describe, held_now, plan};
use common::*;
use doorbell_verbs::soft::{LinkChoice, SoftOptions};
use doorbell_verbs::{QpState, RKey, SendOperation, Status};

/// The test that a peer runs.
const TEST: &str = "two_processes_exchange_and_survive_each_other";

/// Rounds of the test that kills peers, if not 1,000.
const ROUNDS: &str = "DOORBELL_ROUNDS";

/// Tests here take turns: one counts what the whole process holds.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the other process: it doubles each number that it gets, then waits until it is killed.
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
    let mut peer = Peer::start(TEST, "peer", link);
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
    // The device still works: the next peer reaches it.
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
fn a_peer_killed_at_any_moment_leaves_no_resources() {
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
        let mut peer = Peer::start(TEST, "stream", LinkChoice::Shm);
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

#[test]
fn a_stopped_peer_delays_no_other_connection() {
    let _turn = turn();
    let device = open_soft(SoftOptions { link: Some(LinkChoice::Shm), ..SoftOptions::default() });
    // Some minutes, so that it does not give the stopped one up on any machine.
    let patient = Plan { timeout: 19, retry_count: 7, ..Plan::rc() };
    let side = patient.side(&device);
    let memory = side.patterned(BYTES, 1);
    let mut peer = Peer::start(TEST, "peer", LinkChoice::Shm);
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
