//! Strangers at the listeners of the commands. Each test checks that an honest client is served beside them.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use doorbell_exchange::setup;
use doorbell_testing::strangers;

use crate::command::{PATIENCE, Running, doorbell, measuring};
use crate::counters::World;
use crate::study::Scratch;

/// Runs an honest client beside strangers. Half and whole greetings of sessions are among their first bytes.
fn beside_strangers(address: &str, honest: impl FnOnce()) {
    strangers::beside(address, &setup::hello(&[]), honest);
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
