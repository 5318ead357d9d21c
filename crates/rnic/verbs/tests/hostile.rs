//! Devices that share memory with a hostile peer or with another user, and devices that lack resources.
//!
//! These tests have a process of their own, since they count its shared mappings.

use doorbell_verbs_conformance::common;

use std::io::{BufRead, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use common::peer::{BYTES, CHILD, Peer, connect, describe, held_now, plan};
use common::*;
use doorbell_sync::IgnorePoison;
use doorbell_verbs::soft::{LinkChoice, SoftOptions};
use doorbell_verbs::{Device, RKey, Region, SendOperation, Status};
use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use nix::sys::time::TimeValLike;
use nix::unistd::{Gid, Pid, Uid, setgid, setgroups, setuid};

/// Name of the test that the other processes run.
const TEST: &str = "others_play_their_parts";

/// Time during which a test measures the CPU time of an idle process.
const WATCHED: Duration = Duration::from_millis(500);

/// Lock that serializes the tests of this file, since some tests count resources of the whole process.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().ignore_poison()
}

fn auto(address: Option<&str>) -> Device {
    let address = address.map(|text| text.parse().unwrap());
    open_soft(SoftOptions { address, link: Some(LinkChoice::Auto), ..SoftOptions::default() })
}

/// Makes the system call `call` fail with `errno`. For `socket`, only calls that create Unix sockets fail.
fn forbid(call: libc::c_long, errno: libc::c_int) {
    let step = |code: u32, jt, jf, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = |offset| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset);
    let unless = |value: u32, skipped| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, skipped, value);
    let end = |with| step(libc::BPF_RET | libc::BPF_K, 0, 0, with);
    let fails = end(libc::SECCOMP_RET_ERRNO | errno as u32);
    // In the input of the filter, the number of the call is at offset 0 and the first argument (64 bits) at offset 16.
    let mut steps = vec![load(0), unless(call as u32, 1), fails, end(libc::SECCOMP_RET_ALLOW)];
    if call == libc::SYS_socket {
        steps[1] = unless(call as u32, 3);
        steps.splice(2..2, [load(if cfg!(target_endian = "big") { 20 } else { 16 }), unless(libc::AF_UNIX as u32, 1)]);
    }
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: `program` lives during the call, and the kernel copies it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

/// Restricts the process as `word` requests, before the process opens a device.
fn prepare(word: &str) {
    match word.split_once('=') {
        Some(("user", id)) => {
            let id: u32 = id.parse().unwrap();
            setgroups(&[]).unwrap();
            setgid(Gid::from_raw(id)).unwrap();
            setuid(Uid::from_raw(id)).unwrap();
        }
        None if word == "no-unix-sockets" => forbid(libc::SYS_socket, libc::EPERM),
        None if word == "no-memfd" => forbid(libc::SYS_memfd_create, libc::ENOSYS),
        _ => panic!("{word:?}"),
    }
}

#[test]
fn others_play_their_parts() {
    let Ok(part) = std::env::var(CHILD) else { return };
    let mut words = part.split(' ');
    let name = words.next().unwrap();
    let (address, words): (Vec<_>, Vec<_>) = words.partition(|word| word.starts_with("127."));
    words.into_iter().for_each(prepare);
    match name {
        "pair" => pair(),
        "tight" => tight(),
        "squat" => squat(address[0]),
        "target" => target(address.first().copied()),
        _ => panic!("{part:?}"),
    }
}

/// Connects two devices of one process, and exchanges messages.
fn pair() {
    let devices = (auto(None), auto(None));
    // Exchange at least three messages, and continue until the first device has found out that it cannot share memory.
    let mut rounds = 0;
    eventually("the device knows that no memory is shared", || {
        let (a, b) = plan().connect(&devices);
        b.post_recv(1, &[]);
        a.post(1, SendOperation::Send, &[]);
        a.expect(1);
        b.expect(1);
        rounds += 1;
        rounds > 2 && refused(&devices.0) > 0
    });
    let counted = devices.0.link_counters();
    println!("refused {} shared {}", counted.shared_memory_refused, counted.tx_shared_memory_packets);
}

/// Opens devices with a limit on descriptors that is at first too low, and rises by a few with each attempt.
fn tight() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let count = || std::fs::read_dir("/proc/self/fd").unwrap().count() - 1; // without the directory itself
    drop(auto(None));
    let before = count();
    let (mut opened, mut refused) = (0, 0);
    for free in 0..40 {
        setrlimit(Resource::RLIMIT_NOFILE, (before + free) as u64, hard).unwrap();
        let options = SoftOptions { link: Some(LinkChoice::Auto), publish: false, ..SoftOptions::default() };
        let device = doorbell_verbs::soft::open(&options);
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
        match device {
            Ok(device) => {
                // The device that opened works like any other device.
                let (a, b) = plan().connect(&(device, auto(None)));
                b.post_recv(1, &[]);
                a.post(1, SendOperation::Send, &[]);
                a.expect(1);
                b.expect(1);
                opened += 1;
            }
            Err(_) => refused += 1,
        }
        eventually("all descriptors are closed", || count() == before);
    }
    assert!(opened > 0 && refused > 0, "opened {opened}, refused {refused}");
    println!("done");
}

/// Returns the socket name on which a device with this address listens for requests to share memory.
fn name_of(address: &str) -> UnixAddr {
    let namespace = std::fs::read_link("/proc/self/ns/net").unwrap();
    UnixAddr::new_abstract(format!("doorbell-link/{}/{address}/4791", namespace.display()).as_bytes()).unwrap()
}

fn squat(address: &str) {
    let taken = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(taken.as_raw_fd(), &name_of(address)).unwrap();
    listen(&taken, Backlog::MAXCONN).unwrap();
    println!("squats");
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

fn cpu() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    Duration::from_nanos((usage.user_time() + usage.system_time()).num_nanoseconds() as u64)
}

/// Executes the commands that the test sends, while the test writes to the memory of this process.
fn target(address: Option<&str>) {
    let side = plan().side(&auto(address));
    let memory = side.memory(BYTES);
    let psn = side.device.random_psn();
    println!("{}", describe(&side, psn, &memory));
    let mut lines = std::io::stdin().lock().lines().map(Result::unwrap);
    connect(plan(), &side, psn, &lines.next().unwrap());
    println!("ready");
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let mut replaced = Vec::new();
    for line in lines {
        match &*line {
            "starve" => setrlimit(Resource::RLIMIT_NOFILE, 3, hard).unwrap(),
            "feed" => setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap(),
            "watch" => {
                let before = cpu();
                std::thread::sleep(WATCHED);
                println!("spent {}", (cpu() - before).as_millis());
                continue;
            }
            // SAFETY: only the device uses the closed descriptors. The test checks that the device copes with the
            // close.
            "close all" => assert_eq!(unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) }, 0),
            "replace all" => {
                replaced = replace_all();
            }
            "look" => {
                println!("left {} of {}", replaced.iter().filter(|file| is_untouched(file)).count(), replaced.len());
                continue;
            }
            "fork" => {
                // SAFETY: the child only waits until it is killed.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    loop {
                        // SAFETY: `pause` has no arguments.
                        unsafe { libc::pause() };
                    }
                }
                println!("child {child}");
                continue;
            }
            "end" => break,
            _ => panic!("{line:?}"),
        }
        println!("done");
    }
}

/// Replaces all descriptors of the device by other files with the same numbers. A program can cause this if it closes
/// descriptors that it did not open. Returns the files: sockets with one readable datagram each.
fn replace_all() -> Vec<UnixDatagram> {
    let all: Vec<RawFd> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .collect();
    // SAFETY: `fcntl` takes only numbers here.
    let is_open = |number: RawFd| unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0;
    // `all` includes the descriptor through which this function read `/proc/self/fd`. It is closed by now, so keep only
    // open numbers.
    let numbers: Vec<RawFd> = all.into_iter().filter(|&number| number > 2 && is_open(number)).collect();
    let mut files = Vec::new();
    for number in numbers {
        let (reader, writer) = UnixDatagram::pair().unwrap();
        reader.set_nonblocking(true).unwrap();
        writer.send(DATAGRAM).unwrap();
        // SAFETY: only the device uses the replaced descriptors. The test checks that the device copes with the
        // replacement.
        assert_eq!(unsafe { libc::dup2(reader.as_raw_fd(), number) }, number);
        files.push(reader);
    }
    files
}

/// Datagram that waits in each file of the program.
const DATAGRAM: &[u8] = &[0x5a; 64];

/// Returns whether the datagram of the file is still unread.
fn is_untouched(file: &UnixDatagram) -> bool {
    let mut buffer = [0; 128];
    file.recv(&mut buffer).is_ok_and(|length| &buffer[..length] == DATAGRAM)
}

/// A process that receives WRITEs, with the address and key of its memory.
struct Target {
    peer: Peer,
    side: Side,
    memory: Region,
    remote: (u64, RKey),
}

impl Target {
    fn start(device: &Device, part: &str) -> Self {
        let side = plan().side(device);
        let memory = side.patterned(BYTES, 1);
        let mut peer = Peer::start(TEST, part, LinkChoice::Auto);
        let line = peer.answer("peer ");
        let psn = side.device.random_psn();
        writeln!(peer.commands, "{}", describe(&side, psn, &memory)).unwrap();
        let remote = connect(plan(), &side, psn, &line);
        peer.answer("ready");
        Self { peer, side, memory, remote }
    }

    fn write(&self) {
        let (remote_address, rkey) = self.remote;
        self.side.post(7, SendOperation::Write { remote_address, rkey }, &[self.memory.sge(0, BYTES)]);
        self.side.expect(7);
    }

    /// Writes until a message passes through shared memory. The first messages may leave over UDP, until both ends
    /// share memory.
    fn write_through_memory(&self, device: &Device) {
        let before = shared(device);
        eventually("memory is shared", || {
            self.write();
            shared(device) > before
        });
    }

    /// Writes repeatedly, until the device has found out that the peer shares no memory.
    fn write_until_refused(&self, device: &Device) {
        let before = refused(device);
        eventually("the device knows that no memory is shared", || {
            self.write();
            refused(device) > before
        });
    }

    fn tell(&mut self, command: &str, answer: &str) -> String {
        writeln!(self.peer.commands, "{command}").unwrap();
        self.peer.answer(answer)
    }

    /// Checks that the target uses little CPU time while it is idle.
    fn is_calm(&mut self) {
        let spent = self.tell("watch", "spent ");
        let spent_ms: u64 = spent.trim().split(' ').nth(1).unwrap().parse().unwrap();
        assert!(spent_ms < WATCHED.as_millis() as u64 / 2, "the target used {spent_ms} ms CPU time in {WATCHED:?}");
    }
}

fn shared(device: &Device) -> u64 {
    device.link_counters().tx_shared_memory_packets
}

fn refused(device: &Device) -> u64 {
    device.link_counters().shared_memory_refused
}

/// Returns whether this process is root, since only root can become another user.
fn may_be_others() -> bool {
    doorbell_testing::root_or_leave_out("tests that become another user")
}

#[test]
fn forbidden_system_calls_are_counted_and_udp_is_used() {
    let _turn = turn();
    for part in ["pair no-unix-sockets", "pair no-memfd"] {
        let line = Peer::start(TEST, part, LinkChoice::Auto).answer("refused ");
        let words: Vec<_> = line.trim().split(' ').collect();
        assert!(words[1] != "0" && words[3] == "0", "{part}: {line}");
    }
}

#[test]
fn a_device_that_lacks_descriptors_leaks_none() {
    let _turn = turn();
    Peer::start(TEST, "tight", LinkChoice::Auto).answer("done");
}

#[test]
fn other_users_are_reached_over_udp_and_counted() {
    let _turn = turn();
    if !may_be_others() {
        return;
    }
    // 65534 is the overflow user: the kernel shows it as the owner of files whose user is unmapped.
    for user in [1000, 65_533, 65_534] {
        let device = auto(None);
        let target = Target::start(&device, &format!("target user={user}"));
        target.write_until_refused(&device);
        (0..10).for_each(|_| target.write());
        assert_eq!(shared(&device), 0, "user {user}");
    }
    // Two processes of the overflow user do not trust each other either, since unmapped users also appear as the
    // overflow user.
    let line = Peer::start(TEST, "pair user=65534", LinkChoice::Auto).answer("refused ");
    assert!(line.ends_with(" shared 0\n") && !line.starts_with("refused 0 "), "{line}");
}

#[test]
fn a_name_taken_by_another_user_is_avoided() {
    let _turn = turn();
    if !may_be_others() {
        return;
    }
    let address = "127.77.45.1";
    let mut squatter = Peer::start(TEST, &format!("squat {address} user=1000"), LinkChoice::Auto);
    squatter.answer("squats");
    let device = auto(None);
    let target = Target::start(&device, &format!("target {address}"));
    assert!(has_name(&format!("/{address}/4791+beside.")), "the device has no name");
    target.write_through_memory(&device);
    drop(squatter);
    let plain = format!("/{address}/4791\n");
    eventually("the device takes the plain name", || has_name(&plain));
}

/// Returns whether an abstract name contains this text.
fn has_name(text: &str) -> bool {
    std::fs::read_to_string("/proc/net/unix").unwrap().contains(text)
}

#[test]
fn no_memory_is_shared_with_another_user_of_an_address() {
    let _turn = turn();
    if !may_be_others() {
        return;
    }
    let (device, address) = (auto(None), "127.77.45.2");
    let first = Target::start(&device, &format!("target {address}"));
    first.write_through_memory(&device);
    drop(first);
    eventually("the memory of the peer is unmapped", || held_rings(&device) == 0);
    let second = Target::start(&device, &format!("target {address} user=1000"));
    let before = shared(&device);
    (0..5).for_each(|_| second.write());
    assert_eq!(shared(&device), before, "a packet went to the previous device of the address");
    drop(second);
    let third = Target::start(&device, &format!("target {address}"));
    eventually("memory is shared again", || {
        third.write();
        shared(&device) > before
    });
}

#[test]
fn a_process_without_descriptors_is_reached_over_udp() {
    let _turn = turn();
    let device = auto(None);
    let mut target = Target::start(&device, "target");
    target.tell("starve", "done");
    // The target has no free descriptor, so its device cannot accept a connection now. The device must not retry
    // without pause.
    target.write();
    target.is_calm();
    target.write();
    assert_eq!(shared(&device), 0);
    assert!(refused(&device) > 0);
    target.tell("feed", "done");
    eventually("memory is shared", || {
        target.write();
        shared(&device) > 0
    });
}

#[test]
fn closing_all_descriptors_neither_spins_nor_blocks_peers() {
    let _turn = turn();
    let device = auto(None);
    // Give the target an address that devices get only on request. After `close all`, this address is free, although
    // the target's thread still uses the shared ring.
    let mut target = Target::start(&device, "target 127.77.45.4");
    target.write();
    target.tell("close all", "done");
    target.is_calm();
    // The write succeeds or fails, depending on which thread of the target slept when the descriptors were closed.
    let (remote_address, rkey) = target.remote;
    target.side.post(8, SendOperation::Write { remote_address, rkey }, &[target.memory.sge(0, 100)]);
    assert!([Status::Success, Status::RetryExceeded].contains(&target.side.reap(1)[0].status));
    target.is_calm();
    let (a, b) = plan().connect(&(device.clone(), auto(None)));
    b.post_recv(1, &[]);
    a.post(1, SendOperation::Send, &[]);
    a.expect(1);
    b.expect(1);
    drop((a, b));
    // The target process still ends normally.
    writeln!(target.peer.commands, "end").unwrap();
    assert!(target.peer.child.wait().unwrap().success());
    eventually("the memory of the peer is unmapped", || held_rings(&device) == 0);
}

/// A program may close descriptors that belong to a device. If other files then get the numbers of these descriptors,
/// the device must not read those files.
#[test]
fn files_that_reuse_numbers_of_a_device_are_not_read() {
    let _turn = turn();
    let device = auto(None);
    let mut target = Target::start(&device, "target 127.77.45.5");
    target.write();
    target.is_calm(); // an awake thread may read once more
    target.tell("replace all", "done");
    // This process continues to write, so packets and wake-ups arrive for the target's device.
    let (remote_address, rkey) = target.remote;
    target.side.post(8, SendOperation::Write { remote_address, rkey }, &[target.memory.sge(0, 100)]);
    target.side.reap(1);
    target.is_calm();
    let looked = target.tell("look", "left ");
    let (left, all) = looked.trim().trim_start_matches("left ").split_once(" of ").unwrap();
    assert!(left == all && all != "0", "{looked}");
    writeln!(target.peer.commands, "end").unwrap();
    assert!(target.peer.child.wait().unwrap().success());
}

fn held_rings(device: &Device) -> usize {
    device.drive();
    held_now().0
}

#[test]
fn a_parent_that_dies_is_gone_although_its_child_lives() {
    let _turn = turn();
    let device = auto(None);
    let mut target = Target::start(&device, "target");
    target.write_through_memory(&device);
    let line = target.tell("fork", "child ");
    let child = Pid::from_raw(line.trim().split(' ').nth(1).unwrap().parse().unwrap());
    target.peer.child.kill().unwrap();
    target.peer.child.wait().unwrap();
    eventually("the memory of the peer is unmapped", || held_rings(&device) == 0);
    assert!(nix::sys::signal::kill(child, None).is_ok(), "the child has ended");
    nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL).unwrap();
}
