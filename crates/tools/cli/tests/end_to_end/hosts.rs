//! A study on several hosts. In these tests, the hosts are processes of this machine.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use doorbell_study::session;
use serde_json::Value;
use socket2::SockRef;

use crate::command::{PATIENCE, Running, address_without_a_listener, doorbell, list, measuring, number, run};
use crate::study::{Scratch, records, repetitions};

/// Starts another host of a study at this address. With port 0, the host chooses its port. The host listens on
/// loopback, so it needs no token.
fn listen(address: &str) -> (Running, String) {
    let mut host = Running::start(doorbell(&format!("study -d doorbell0 --listen {address}")));
    let address = host.text_after("waiting for a client on ");
    (host, address)
}

fn record(file: &std::path::Path) -> Value {
    serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_else(|| panic!("{pointer} is no text in {value:#}"))
}

#[test]
fn records_of_a_study_name_each_host_with_its_role() {
    let _one_at_a_time = measuring();
    let scratch = Scratch::new("hosts");
    let (_hosts, addresses): (Vec<_>, Vec<_>) = (0..3).map(|_| listen("127.0.0.1:0")).unzip();
    let study = format!("study -d doorbell0 --out {} hosts {}", scratch.path(), addresses.join(" "));
    let finished = run(&study).expect_status(0);
    for (number, address) in addresses.iter().enumerate() {
        let line = format!("host {}: ", number + 1);
        assert!(finished.stderr.contains(&line) && finished.stderr.contains(address), "{}", finished.stderr);
    }
    let mut all_to_all = 0;
    for file in records(&scratch.0) {
        let record = record(&file);
        assert_eq!(list(&record, "/environment/hosts").len(), 3, "{record}");
        for result in list(&record, "/repetitions") {
            let roles: Vec<&str> = list(result, "/hosts").iter().map(|host| text(host, "/role")).collect();
            let is_whole = record["x"] == 4.0;
            let expected: &[&str] = match (text(&record, "/experiment"), is_whole) {
                ("hosts/pairs", true) => &["sender", "receiver", "sender", "receiver"],
                ("hosts/pairs", false) => &["sender", "receiver"],
                (_, true) => &["sender"; 4],
                (_, false) => &["sender"; 2],
            };
            assert_eq!(roles, expected, "{}", file.display());
            for host in list(result, "/hosts") {
                let packets = |of: &str| number(host, &format!("/{of}"));
                let counted = packets("counted/data_packets");
                let (least, most) = (packets("predicted/data_packets"), packets("predicted/data_packets_max"));
                assert!(least <= counted && counted <= most, "{host}");
            }
        }
        all_to_all += usize::from(text(&record, "/experiment") == "hosts/all-to-all");
    }
    assert_eq!((records(&scratch.0).len(), all_to_all), (8, 4));
    let page = fs::read_to_string(scratch.0.join("report.html")).unwrap();
    assert!(page.contains("hosts/all-to-all") && page.contains("CPU time, s"));
}

#[test]
fn a_study_names_a_dead_host_and_continues_after_its_return() {
    let _one_at_a_time = measuring();
    for has_third in [true, false] {
        let scratch = Scratch::new("dying");
        let stays = has_third.then(|| listen("127.0.0.1:0"));
        let stays_at = stays.as_ref().map_or("", |(_, address)| address);
        let (dies, dies_at) = listen("127.0.0.1:0");
        let study = format!("study -d doorbell0 --out {} direct-write/n-to-1 {stays_at} {dies_at}", scratch.path());
        let first = Running::start(doorbell(&study));
        let until = Instant::now() + PATIENCE;
        while records(&scratch.0).len() < 2 {
            assert!(Instant::now() < until, "no records");
            std::thread::sleep(Duration::from_millis(5));
        }
        dies.kill();
        let finished = first.finish().expect_status(1);
        for words in ["a host is gone", &dies_at, "goes on from there"] {
            assert!(finished.stderr.contains(words), "{words}: {}", finished.stderr);
        }
        let kept: usize = records(&scratch.0).iter().map(|file| repetitions(file)).sum();
        assert!(finished.stderr.contains(&format!("; {kept} measurements are in")), "{kept}: {}", finished.stderr);
        // Without the host, the study is rejected before any measurement. When the host is back, the study is
        // completed.
        let refused = run(&study).expect_status(1);
        assert!(refused.stderr.contains(&format!("cannot connect to {dies_at}")), "{}", refused.stderr);
        let _back = listen(&dies_at);
        run(&study).expect_status(0);
        assert!(records(&scratch.0).iter().all(|file| repetitions(file) == 3));
    }
}

#[test]
fn silent_and_garbage_strangers_end_no_study() {
    let _one_at_a_time = measuring();
    let scratch = Scratch::new("strangers");
    let (_host, address) = listen("127.0.0.1:0");
    let study = format!("study -d doorbell0 --out {} wire/request-response {address}", scratch.path());
    let running = Running::start(doorbell(&study));
    let mut strangers = Vec::new();
    let until = Instant::now() + PATIENCE;
    while records(&scratch.0).len() < 2 {
        assert!(Instant::now() < until, "no records");
        let mut stranger = TcpStream::connect(&address).unwrap();
        if strangers.len() % 4 == 0 {
            stranger.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        }
        strangers.push(stranger);
        std::thread::sleep(Duration::from_millis(20));
    }
    running.finish().expect_status(0);
    assert!(records(&scratch.0).iter().all(|file| repetitions(file) == 3));
    assert!(strangers.len() > 4);
}

/// Returns the address of a listener that calls `serve` for each connection, until the process of the test ends.
fn listener(serve: impl Fn(TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("a bound socket has an address").to_string();
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            serve(stream)
        }
    });
    address
}

/// Returns the address of a proxy for a host. The proxy replaces the text `said` of the host by `instead`.
fn pretending(host: &str, said: &'static str, instead: &'static str) -> String {
    let host = host.to_owned();
    listener(move |mut client| {
        let mut server = TcpStream::connect(&host).expect("the host is there");
        let (mut from, mut to) = (client.try_clone().expect("a stream"), server.try_clone().expect("a stream"));
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(std::net::Shutdown::Write);
        });
        let mut said_now = vec![0; 1 << 16];
        while let Ok(count @ 1..) = server.read(&mut said_now) {
            // Forward binary data of the set-up unchanged.
            let bytes = match std::str::from_utf8(&said_now[..count]) {
                Ok(text) => text.replace(said, instead).into_bytes(),
                Err(_) => said_now[..count].to_vec(),
            };
            if client.write_all(&bytes).is_err() {
                return;
            }
        }
    })
}

/// Returns the address of a proxy for a host. The proxy drops long packets from the client, or from the host. After the
/// first dropped packet, no packet passes in this direction, since TCP would retransmit the dropped packet forever.
fn behind_a_black_hole(host: &str, of_client: bool) -> String {
    let host = host.to_owned();
    listener(move |mut client| {
        let segment = SockRef::from(&client).tcp_mss().expect("TCP says it");
        let pass = move |from: &mut TcpStream, to: &mut TcpStream, drops: bool| {
            let (mut piece, mut is_stalled) = (vec![0; 1 << 16], false);
            while let Ok(count @ 1..) = from.read(&mut piece) {
                is_stalled |= drops && segment > 1000 && count > 1000;
                if !is_stalled && to.write_all(&piece[..count]).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(std::net::Shutdown::Both);
        };
        let mut server = TcpStream::connect(&host).expect("the host is there");
        let (mut from, mut to) = (client.try_clone().expect("a stream"), server.try_clone().expect("a stream"));
        std::thread::spawn(move || pass(&mut from, &mut to, of_client));
        pass(&mut server, &mut client, !of_client);
    })
}

#[test]
fn doctor_detects_dropped_long_control_packets() {
    let (_host, address) = listen("127.0.0.1:0");
    for of_client in [true, false] {
        let there = behind_a_black_hole(&address, of_client);
        let begun = Instant::now();
        let found = run(&format!("doctor -d doorbell0 {there}")).expect_status(1).stdout;
        for words in ["control", "long packets are dropped on the way", "raise its MTU", "B of payload come through"] {
            assert!(found.contains(words), "{words}: {found}");
        }
        assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
    }
    let found = run(&format!("doctor -d doorbell0 {address}")).stdout;
    assert!(!found.contains("long packets"), "{found}");
}

#[test]
fn incompatible_hosts_are_rejected_before_measuring() {
    let scratch = Scratch::new("refused");
    let (_host, address) = listen("127.0.0.1:0");
    let with = |experiment: &str, hosts: &str| {
        run(&format!("study -d doorbell0 --out {} {experiment} {hosts}", scratch.path()))
    };
    // Name the host alone, and together with another host.
    let refuses = |host: &str, status: i32, words: &[&str]| {
        let words = [&[host], words].concat();
        for hosts in [host.to_owned(), format!("{address} {host}")] {
            with("send-receive/rnr", &hosts).expect_complaint(status, &words);
        }
    };
    with("send-receive/rnr", &format!("{address} {address}")).expect_complaint(2, &[&address, "are the same host"]);
    // Name a host twice, by two names of its address.
    let port = address.rsplit(':').next().unwrap();
    with("send-receive/rnr", &format!("{address} localhost:{port}")).expect_complaint(2, &["are the same host"]);
    refuses("no-such-host.invalid:1", 2, &["no host of that name is found"]);
    let (deaf, _taken) = address_without_a_listener();
    refuses(&deaf.to_string(), 1, &["cannot connect to", "doorbell study --listen"]);
    let mut guarded = doorbell("study -d doorbell0 --listen 127.0.0.1:0");
    guarded.env("DOORBELL_TOKEN", "a secret");
    let mut guarded = Running::start(guarded);
    let closed = guarded.text_after("waiting for a client on ");
    refuses(&closed, 1, &["no token"]);
    let mut other = doorbell(&format!("study -d doorbell0 --out {} send-receive/rnr {closed}", scratch.path()));
    other.env("DOORBELL_TOKEN", "another secret");
    Running::start(other).finish().expect_complaint(1, &[&closed, "another token"]);
    let mut other_port = Running::start(doorbell("study -d doorbell0 --udp-port 4792 --listen 127.0.0.1:0"));
    let other = other_port.text_after("waiting for a client on ");
    refuses(&other, 1, &["at 4792", "--udp-port"]);
    // Start another host behind the proxy: with the first host behind it, the study would have one host twice.
    let (_behind, behind) = listen("127.0.0.1:0");
    let release = concat!("\"doorbell\":\"", env!("CARGO_PKG_VERSION"), "\"");
    refuses(&pretending(&behind, release, "\"doorbell\":\"0.0.1\""), 1, &["has release 0.0.1", "use the same"]);
    let mtu = "\"active_mtu\":1024";
    refuses(&pretending(&behind, "\"active_mtu\":4096", mtu), 1, &["path MTU of 1024 B", "the same MTU"]);
    let few = pretending(&behind, "\"max_qps\":", "\"max_qps\":1,\"before\":");
    with("direct-write/n-to-1", &few).expect_complaint(2, &[&few, "queue pairs of a host", "has 1: leave out "]);
    with("far-memory/skew", &few).expect_complaint(2, &[&few, "queue pairs of a host", "has 1: leave out "]);
    let deviceless = listener(|stream| drop(session::refuse(stream, "there is no RDMA device mlx5_9")));
    refuses(&deviceless, 1, &["there is no RDMA device mlx5_9"]);
    // Experiments that two hosts cannot run are rejected before any measurement too.
    with("far-memory/reordering", &address).expect_complaint(2, &["on 2 hosts", "name another host"]);
    assert!(records(&scratch.0).is_empty());
}

#[test]
fn one_host_under_two_addresses_is_rejected_before_measuring() {
    let scratch = Scratch::new("twice-named");
    let with_token = |arguments: &str| {
        let mut command = doorbell(arguments);
        command.env("DOORBELL_TOKEN", "a secret");
        Running::start(command)
    };
    let mut host = with_token("study -d doorbell0 --listen -p 0");
    let at = host.text_after("waiting for a client on ");
    let port = at.rsplit(':').next().expect("the address has a port");
    let [one, other] = [1, 2].map(|number| format!("127.0.0.{number}:{port}"));
    let study = format!("study -d doorbell0 --out {} hosts {one} {other}", scratch.path());
    let begun = Instant::now();
    with_token(&study).finish().expect_complaint(2, &[&one, &other, "are the same host: name each host once"]);
    assert!(begun.elapsed() < Duration::from_secs(9), "the study must notice the same host before a timeout");
    assert!(records(&scratch.0).is_empty());
    let examined = with_token(&format!("doctor -d doorbell0 {one} {other}")).finish().expect_status(1).stdout;
    assert!(examined.contains(&format!("{one} and {other} are the same host")), "{examined}");
    // The host serves the next client.
    let finished = with_token(&format!("doctor -d doorbell0 {one} {one}")).finish().expect_status(1).stdout;
    assert!(
        finished.contains(&format!("{one} is named twice")) && finished.contains("name each host once"),
        "{finished}"
    );
}

/// An MPI launcher on this machine.
struct Launcher {
    program: &'static str,
    /// Options with which the launcher runs as root and with few CPUs.
    options: &'static [&'static str],
}

impl Launcher {
    /// Returns the installed launchers of Open MPI and MPICH. Debian has a name for each of them; on other systems,
    /// `mpirun` is one of the two.
    fn all() -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for program in ["mpirun", "mpirun.openmpi", "mpirun.mpich"] {
            let Ok(said) = std::process::Command::new(program).arg("--version").output() else { continue };
            // The launcher of MPICH is named Hydra.
            let is_hydra = String::from_utf8_lossy(&said.stdout).contains("HYDRA");
            let options: &[&str] =
                if is_hydra { &[] } else { &["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"] };
            if all.iter().all(|known| known.options != options) {
                all.push(Self { program, options });
            }
        }
        if all.len() < 2 {
            eprintln!("{} of 2 left out: there is no mpirun of Open MPI (openmpi-bin) or MPICH (mpich)", 2 - all.len());
        }
        all
    }

    fn run(&self, ranks: usize, arguments: &str) -> std::process::Command {
        let doorbell = doorbell(arguments);
        let mut mpirun = std::process::Command::new(self.program);
        mpirun.args(self.options).args(["-np", &ranks.to_string()]);
        mpirun.arg(doorbell.get_program()).args(doorbell.get_args()).stdin(std::process::Stdio::null());
        mpirun
    }
}

/// Returns the number of processes whose command line contains this text.
fn processes_with(text: &str) -> usize {
    let lines = fs::read_dir("/proc").unwrap().flatten().map(|entry| fs::read(entry.path().join("cmdline")));
    lines.flatten().filter(|line| String::from_utf8_lossy(line).replace('\0', " ").contains(text)).count()
}

#[test]
fn launcher_ranks_are_hosts_and_only_rank_0_prints() {
    let _one_at_a_time = measuring();
    Launcher::all().iter().for_each(ranks_are_hosts);
}

fn ranks_are_hosts(launcher: &Launcher) {
    let scratch = Scratch::new("mpirun");
    let study = format!("study -d doorbell0 --out {} direct-write/n-to-1", scratch.path());
    let finished = Running::start(launcher.run(3, &study)).finish().expect_status(0);
    assert_eq!(finished.stdout.lines().count(), 1, "{}", finished.stdout);
    assert_eq!(finished.stderr.matches("host 2: ").count(), 1, "{}", finished.stderr);
    let whole = records(&scratch.0).iter().map(|file| record(file)).find(|record| record["x"] == 4.0).unwrap();
    let names: Vec<&str> = list(&whole, "/repetitions/0/hosts").iter().map(|host| text(host, "/name")).collect();
    assert_eq!(names, ["this machine", "rank 1", "rank 2"]);

    // An error is printed once, and the launcher fails.
    let wrong = Running::start(launcher.run(2, &format!("{study} 127.0.0.1"))).finish();
    assert!(!wrong.status.success() && wrong.stderr.contains("leave out 127.0.0.1"), "{}", wrong.stderr);

    // A killed launcher leaves no process behind, even during a study.
    let killed = Scratch::new("mpirun-killed");
    let study = format!("study --full -d doorbell0 --out {} direct-write/n-to-1", killed.path());
    let launched = Running::start(launcher.run(2, &study));
    let until = Instant::now() + PATIENCE;
    while records(&killed.0).is_empty() {
        assert!(Instant::now() < until, "no records");
        std::thread::sleep(Duration::from_millis(5));
    }
    launched.kill();
    while processes_with(&killed.path()) > 0 {
        assert!(Instant::now() < until, "processes stay");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Replacement of ssh. It runs the command on this machine, and sets `SSH_CONNECTION` like sshd.
const SSH: &str = "#!/bin/sh
while [ $1 != -- ]; do shift; done
shift 2
SSH_CONNECTION='127.0.0.1 1 127.0.0.1 22' exec \"$@\"
";

#[test]
fn ssh_starts_hosts_and_failed_hosts_are_named() {
    use std::os::unix::fs::PermissionsExt;
    let _one_at_a_time = measuring();
    let scratch = Scratch::new("ssh");
    let bin = scratch.0.join("bin");
    fs::create_dir_all(&bin).unwrap();
    fs::write(bin.join("ssh"), SSH).unwrap();
    fs::set_permissions(bin.join("ssh"), fs::Permissions::from_mode(0o755)).unwrap();
    let records_in = scratch.0.join("records");
    let remote = env!("CARGO_BIN_EXE_doorbell");
    let over_ssh = |remote: &str, hosts: &str| {
        let study = "study -d doorbell0 direct-write/n-to-1";
        let arguments = format!("{study} --out {} --via ssh --remote {remote} {hosts}", records_in.display());
        let mut command = doorbell(&arguments);
        command.env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default()));
        Running::start(command).finish()
    };
    over_ssh("/no/such/doorbell", "one two")
        .expect_complaint(1, &["one: ssh has ended", "no doorbell of this release"]);
    over_ssh(remote, "one one").expect_complaint(2, &["one is named twice"]);
    assert!(records(&records_in).is_empty());
    let finished = over_ssh(remote, "one two").expect_status(0);
    assert!(finished.stderr.contains("(two)"), "{}", finished.stderr);
    let whole = records(&records_in).iter().map(|file| record(file)).find(|record| record["x"] == 4.0).unwrap();
    let names: Vec<&str> = list(&whole, "/repetitions/0/hosts").iter().map(|host| text(host, "/name")).collect();
    assert_eq!(names, ["this machine", "one", "two"]);
    assert_eq!(processes_with("--called-by-ssh"), 0);
}
