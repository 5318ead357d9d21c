//! Strangers at the listeners of the commands. `beside_strangers` opens connections of all kinds that never become
//! clients, and checks that an honest client is served meanwhile.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use doorbell_exchange::setup;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::command::{PATIENCE, Running, doorbell, measuring};
use crate::counters::World;
use crate::study::Scratch;

/// Number of strangers of each kind that stays connected.
const OF_A_KIND: usize = 16;

/// Number of strangers that connect at the same time.
const CROWD: usize = 1000;

/// Pause between two bytes of a stranger that sends slowly.
const DRIP: Duration = Duration::from_millis(20);

/// Runs an honest client beside strangers that stay connected, send slowly, send too much, or connect at the same time.
fn beside_strangers(address: &str, honest: impl FnOnce()) {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, most, most).expect("a process may raise its own limit");
    let connect = || TcpStream::connect(address).expect("the server listens");
    let hello = setup::hello(&[]);
    let kinds: [&[u8]; 7] = [
        b"",                       // silent
        &[b'x'; 63 << 10],         // greedy
        b"GET / HTTP/1.0\r\n\r\n", // nonsense
        b"{\"rank\":1,\"ranks\":", // half a line
        &hello[..9],               // half a greeting
        &hello,                    // greets and stays
        b"\0\0\0\0\n\n\n\n",
    ];
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut staying = Vec::new();
        for stranger in (0..OF_A_KIND).flat_map(|_| kinds) {
            let mut stream = connect();
            // Ignore an error: the listener may have rejected the stranger before it has sent everything.
            let _ = stream.write_all(stranger);
            staying.push(stream);
        }
        let mut dripping: Vec<TcpStream> = (0..OF_A_KIND).map(|_| connect()).collect();
        let over = &is_over;
        scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                dripping.iter_mut().for_each(|stream| drop(stream.write_all(b"D")));
                std::thread::sleep(DRIP);
            }
        });
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for said in kinds {
                    let _ = TcpStream::connect(address).map(|mut stream| stream.write_all(said));
                }
                std::thread::sleep(DRIP);
            }
        });
        // Before a failure is reported, disconnect the strangers and end their threads.
        let served = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _crowd: Vec<TcpStream> = (0..CROWD).map(|_| connect()).collect();
            honest();
        }));
        is_over.store(true, Ordering::Relaxed);
        drop(staying);
        if let Err(panic) = served {
            std::panic::resume_unwind(panic);
        }
    });
}

fn with_token(arguments: &str) -> std::process::Command {
    let mut command = doorbell(arguments);
    command.env("DOORBELL_TOKEN", "a secret");
    command
}

#[test]
fn bench_with_a_token_serves_its_client_and_no_stranger_ends_it() {
    let _one_at_a_time = measuring();
    let mut server = Running::start(with_token("bench bw --listen 127.0.0.1:0"));
    let address = server.text_after("waiting for a client on ");
    beside_strangers(&address, || {
        Running::start(with_token(&format!("bench bw -n 100 -s 16 {address}"))).finish().expect_status(0);
    });
    server.finish().expect_status(0);
}

#[test]
fn bench_without_a_token_serves_its_client_and_no_stranger_ends_it() {
    let _one_at_a_time = measuring();
    let mut server = Running::start(doorbell("bench lat --listen 127.0.0.1:0"));
    let address = server.text_after("waiting for a client on ");
    beside_strangers(&address, || {
        Running::start(doorbell(&format!("bench lat -n 100 -s 16 {address}"))).finish().expect_status(0);
    });
    server.finish().expect_status(0);
}

/// `study --listen` and `doctor --listen` have the same kind of listener. In this test, only the study has a token.
#[test]
fn study_and_doctor_serve_their_clients_one_after_another() {
    let _one_at_a_time = measuring();
    for (listens, has_token) in [("study", true), ("doctor", false)] {
        let command = |arguments: &str| if has_token { with_token(arguments) } else { doorbell(arguments) };
        let mut host = Running::start(command(&format!("{listens} -d doorbell0 --listen 127.0.0.1:0")));
        let address = host.text_after("waiting for a client on ");
        beside_strangers(&address, || {
            for _ in 0..2 {
                let found = Running::start(command(&format!("doctor -d doorbell0 --json {address}"))).finish().json();
                assert!(found["machines"][1]["environment"].is_object(), "{listens}: {found:#}");
            }
        });
    }
}

#[test]
fn process_0_of_a_launch_serves_its_other_process() {
    let _one_at_a_time = measuring();
    let (scratch, meeting) = (Scratch::new("launch-strangers"), tempfile::tempdir().expect("a directory"));
    let job = format!("strangers-{}", std::process::id());
    let process = |rank: usize| {
        let meeting = meeting.path().display();
        let study = format!("study --out {} --rendezvous {meeting}/ direct-write/latency", scratch.path());
        let mut command = doorbell(&format!("{study} -d doorbell0"));
        command.env("OMPI_COMM_WORLD_RANK", rank.to_string());
        command.envs([("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")]);
        Running::start({
            command.env("PMIX_NAMESPACE", &job);
            command
        })
    };
    let zero = process(0);
    let file = meeting.path().join(format!("doorbell-{job}"));
    let until = Instant::now() + PATIENCE;
    let told: serde_json::Value = loop {
        assert!(Instant::now() < until, "process 0 does not say where it is");
        match std::fs::read(&file) {
            Ok(told) => break serde_json::from_slice(&told).expect("the file is JSON"),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let address = told["address"].as_str().expect("an address").to_owned();
    beside_strangers(&address, || drop(process(1).finish().expect_status(0)));
    zero.finish().expect_status(0);
}

#[test]
fn a_middlebox_connects_its_clients() {
    let mut running = Running::start(doorbell(&format!("steer {} -p 0 --clients 2", crate::steer::memory_node())));
    let address = running.text_after("serving clients at ");
    beside_strangers(&address, || crate::steer::add_one(&address));
}

#[test]
fn a_middlebox_of_perftest_connects_its_programs() {
    let servers = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let node = servers.local_addr().expect("a bound socket has an address");
    let mut running = Running::start(doorbell(&format!("steer {node} --perftest -p 0")));
    let address = running.text_after("serving clients at ");
    beside_strangers(&address, || drop(crate::steer::perftest(&servers, &address, [b"3\0", b"5\0"])));
}

#[test]
fn a_memory_node_admits_its_middlebox() {
    // No other test listens on this address of loopback.
    let free = TcpListener::bind("127.0.0.80:0").and_then(|listener| listener.local_addr()).expect("a free port");
    let mut store = Running::start(doorbell(&format!(
        "far verify -d doorbell0 --strategy steered --through {free} --node-at 127.0.0.1:0 --clients 2 --keys 8 -D 200ms --json"
    )));
    let node = store.text_after("now: doorbell steer ");
    let sizes = store.text_after("--store ");
    beside_strangers(&node, || {
        let steer = Running::start(doorbell(&format!("steer {node} --exclusive --store {sizes} --listen {free}")));
        let json = store.finish().expect_status(0).json();
        assert_eq!(json["linearizable"], true, "{json}");
        steer.kill();
    });
}

#[test]
fn the_exporter_answers() {
    let world = World::new();
    let mut exporter = Running::start(world.looking("counters --prometheus 0"));
    let address = exporter.text_after("serving http://");
    let address = address.trim_end_matches("/metrics");
    beside_strangers(address, || {
        let mut stream = TcpStream::connect(address).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("the connection is open");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("the exporter answers");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    });
}
