//! Devices in two processes behave as in one process. After one process dies, the other process keeps no resources of
//! it.
//!
//! These tests have a process of their own, since they count its shared mappings and its descriptors.

use doorbell_verbs_conformance::common;

use std::io::Write;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use common::peer::{BYTES, CHILD, Peer, connect, describe, held_now, plan};
use common::*;
use doorbell_sync::IgnorePoison;
use doorbell_verbs::soft::{LinkChoice, SoftOptions};
use doorbell_verbs::{QpState, RKey, SendOperation, Status};

/// Name of the test that the peer process runs.
const TEST: &str = "two_processes_exchange_and_survive_each_other";

/// Environment variable with the number of rounds of the test that kills peers; the default is 1,000.
const ROUNDS: &str = "DOORBELL_ROUNDS";

/// Lock that serializes the tests of this file, since one test counts resources of the whole process.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().ignore_poison()
}

/// Runs the peer process: doubles each number that it receives, then waits until the first process kills it.
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
    let _ = std::io::stdin().read_line(&mut line); // until the first process kills this one
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
        for engines in [[1, 1], [2, 4], [4, 1], [1, 2]] {
            exchange_and_survive(link, engines);
        }
    }
}

/// Exchanges messages with a peer and kills it. `engines` are the numbers of engines of this device and the peer.
fn exchange_and_survive(link: LinkChoice, engines: [usize; 2]) {
    let [own, theirs] = engines;
    let options = SoftOptions { link: Some(link), engines: Some(own), ..SoftOptions::default() };
    let side = plan().side(&open_soft(options));
    let memory = side.patterned(BYTES, 1);
    let mut peer = Peer::start_with(TEST, "peer", link, theirs);
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
    assert_bytes(&memory, 0, &doubled, "the doubled numbers");
    // Kill the peer while a request is outstanding.
    peer.child.kill().unwrap();
    peer.child.wait().unwrap();
    side.post(3, SendOperation::Send, &[]);
    side.expect_failure(3, Status::RetryExceeded);
    assert_eq!(side.state(), QpState::Error);
    // The device still works, and a new peer can connect to it.
    let other = open_soft(SoftOptions { link: Some(link), ..SoftOptions::default() });
    let (a, b) = plan().connect(&(side.device.clone(), other));
    b.post_recv(1, &[]);
    a.post(1, SendOperation::Send, &[]);
    a.expect(1);
    b.expect(1);
}

/// Runs a peer process: opens a device at the address that the test process sends. Then writes to the memory of the
/// test process until the test process kills this process.
fn stream() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let address = Some(line.trim().parse().unwrap());
    let side = plan().side(&open_soft(SoftOptions { address, ..SoftOptions::default() }));
    let memory = side.patterned(BYTES, 1);
    let psn = side.device.random_psn();
    println!("{}", describe(&side, psn, &memory));
    line.clear();
    std::io::stdin().read_line(&mut line).unwrap();
    let (remote_address, rkey) = connect(plan(), &side, psn, &line);
    println!("ready");
    for length in (1..).map(|number| number * 37 % BYTES) {
        side.post(1, SendOperation::Write { remote_address, rkey }, &[memory.sge(0, length)]);
        side.expect(1);
    }
}

/// Returns a plan with a short timeout, so that a requester detects the death of its peer within milliseconds. The
/// peer has none: on a busy machine, this process may not answer for milliseconds either.
fn hasty() -> Plan {
    Plan { timeout: 8, retry_count: 1, ..Plan::rc() }
}

#[test]
fn a_peer_killed_at_any_moment_leaves_no_resources() {
    let _turn = turn();
    let rounds = std::env::var(ROUNDS).ok().map_or(1000, |text| text.parse().expect("a number of rounds"));
    // No other test uses these addresses.
    let (own, theirs) = ("127.77.41.1", "127.77.41.2");
    let device = open_soft(SoftOptions {
        address: Some(own.parse().unwrap()),
        link: Some(LinkChoice::Shm),
        engines: Some(2),
        ..SoftOptions::default()
    });
    let other = open_soft(SoftOptions { link: Some(LinkChoice::Shm), ..SoftOptions::default() });
    let mut held = (0, 0);
    for round in 0..rounds {
        let side = hasty().side(&device);
        let memory = side.memory(BYTES);
        let mut peer = Peer::start_with(TEST, "stream", LinkChoice::Shm, 1 + round as usize % 3);
        // In each round, the address and the socket name of the killed peer are free again.
        writeln!(peer.commands, "{theirs}").unwrap();
        let line = peer.answer("peer ");
        let psn = side.device.random_psn();
        writeln!(peer.commands, "{}", describe(&side, psn, &memory)).unwrap();
        connect(hasty(), &side, psn, &line);
        peer.answer("ready");
        // Wait for the first byte of a WRITE, then kill the peer in the middle of the WRITE.
        let mut first = [0];
        eventually("the first byte of the peer arrives", || {
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
        // Connections to other devices still work.
        let (a, b) = plan().connect(&(device.clone(), other.clone()));
        b.post_recv(1, &[]);
        a.post(1, SendOperation::Send, &[]);
        a.expect(1);
        b.expect(1);
        drop((side, memory, a, b));
        // This process must keep no shared mappings and no descriptors of killed peers. The first rounds show how many
        // belong to the two surviving devices.
        if round < 5 {
            let now = held_now();
            held = (held.0.max(now.0), held.1.max(now.1));
            continue;
        }
        eventually("the memory shared with the dead peer is unmapped", || {
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
    // Retries last for minutes, so that this end does not give up while the peer is stopped.
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
    eventually("all threads of the peer have stopped", || {
        let tasks = std::fs::read_dir(&tasks).unwrap().map(|task| task.unwrap().path().join("stat"));
        tasks.map(|stat| std::fs::read_to_string(stat).unwrap()).all(|stat| stat.contains(") T "))
    });
    // Post more WRITEs than the ring to the peer holds, but no more than the send window allows.
    let writes: Vec<u64> = (10..40).collect();
    for &wr_id in &writes {
        side.post(wr_id, SendOperation::Write { remote_address, rkey }, &[memory.sge(0, BYTES)]);
    }
    // While the peer is stopped, the same device serves another peer, and another device serves a third peer.
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
