//! A side that dies, speaks another protocol, or does not exist.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::command::{PATIENCE, Running, address_without_a_listener, measuring, run};
use crate::counters::World;
use crate::two_sides::listen;

#[test]
fn a_missing_listener_is_an_error() {
    let (address, _taken) = address_without_a_listener();
    run(&format!("bench bw -n 100 -s 16 {address}"))
        .expect_complaint(1, &[&format!("cannot connect to {address}"), "--listen"]);
}

/// Checks the error of a client whose server sends these bytes, and then nothing.
fn client_against(hello: &'static [u8], words: &[&str]) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let address = listener.local_addr().expect("a bound socket has an address");
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the client connects");
        stream.write_all(hello).expect("the client is there");
        // Wait until the client gives up.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    run(&format!("bench bw -n 100 -s 16 {address}")).expect_complaint(1, words);
    server.join().expect("the server is done");
}

/// Checks that a server names its reason when it rejects a client with this greeting, and serves the next client.
fn server_against(hello: &[u8], words: &[&str]) {
    let _one_at_a_time = measuring();
    let (mut server, address) = listen("bw");
    let mut stream = TcpStream::connect(&address).expect("the server listens");
    stream.write_all(hello).expect("the server is there");
    words.iter().for_each(|word| server.wait_for(word));
    run(&format!("bench bw -n 100 -s 16 {address}")).expect_status(0);
    server.finish().expect_status(0);
}

#[test]
fn garbage_on_the_port_is_an_error() {
    client_against(
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        &["127.0.0.1:", "does not speak Doorbell's set-up: it sent \"HTTP/1.1\""],
    );
    server_against(b"GET / HTTP/1.1\r\n\r\n", &["127.0.0.1:", "does not speak Doorbell's set-up"]);
    // The greeting is right, but other bytes follow.
    let version = u8::try_from(doorbell_exchange::setup::VERSION).expect("there are few versions");
    let greeting = [b"DOORBELL\0".as_slice(), &[version], b"\0\0\0\0garbage\n"].concat();
    server_against(&greeting, &["the peer sent an unexpected message: garbage"]);
}

/// Errors quote lines of a server and of a stranger, without characters that control a terminal.
#[test]
fn text_of_a_peer_is_escaped() {
    let greeting_and = |line: &[u8]| [doorbell_exchange::setup::hello(&[]).as_slice(), line].concat();
    client_against(greeting_and(b"\x1b[2J\n").leak(), &[r"the peer sent an unexpected message: \u001b[2J"]);
    client_against(greeting_and(b"{\"failed\":\"\\u001b[2J\"}\n").leak(), &[r"the peer failed: \u001b[2J"]);
    server_against(&greeting_and(b"\x1b]0;x\x07\n"), &[r"the peer sent an unexpected message: \u001b]0;x\u0007"]);
}

#[test]
fn another_version_is_an_error() {
    client_against(b"DOORBELL\0\x63\0\0\0\0", &["speaks version 99", "use the same release"]);
    server_against(b"DOORBELL\0\x63\0\0\0\0", &["speaks version 99", "use the same release"]);
}

#[test]
fn a_peer_that_hangs_up_is_noticed() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let address = listener.local_addr().expect("a bound socket has an address");
    let server = std::thread::spawn(move || drop(listener.accept().expect("the client connects")));
    run(&format!("bench bw -n 100 -s 16 {address}")).expect_complaint(1, &["the connection to 127.0.0.1:", "broke"]);
    server.join().expect("the server is done");
}

#[test]
fn a_client_gives_up_a_silent_server() {
    client_against(b"", &["did not answer within 10 s"]);
}

/// Error of a side whose peer was killed. The TCP connection with the peer ends long before the RNIC gives up.
const HUNG_UP: &str = "doorbell: the peer is gone: it hung up while a point ran";

/// Runs a test on a server and its client during a measurement, one pair for each kind of load.
fn in_the_middle(test: impl Fn(&str, Running, Running)) {
    let _one_at_a_time = measuring();
    for arguments in [
        "bw -s 16",
        "bw -s 1048576 -b",
        "bw -s 16 -e",
        "lat -s 16",
        "lat -s 16 -e",
        "bw --op write -s 16",
        "lat --op read -s 16 -e",
    ] {
        let kind = &arguments[..arguments.find(' ').unwrap_or_default()];
        let world = World::new();
        let mut server = Running::start(world.command(&format!("bench {kind} --listen 127.0.0.1:0")));
        let address = server.text_after("waiting for a client on ");
        let client = Running::start(world.command(&format!("bench {arguments} -D 3600 {address}")));
        world.wait_for_packets();
        test(arguments, server, client);
    }
}

#[test]
fn a_server_that_is_killed_ends_its_client() {
    in_the_middle(|arguments, server, client| {
        server.kill();
        let client = client.finish().expect_status(1);
        assert!(client.stderr.contains(HUNG_UP), "{arguments}: {}", client.stderr);
        assert!(!client.stderr.contains("panicked"), "{}", client.stderr);
    });
}

#[test]
fn a_client_that_is_killed_ends_its_server() {
    in_the_middle(|_, server, client| {
        client.kill();
        server.finish().expect_complaint(1, &["doorbell: ", "the peer"]);
    });
}

#[test]
fn a_server_rejects_memory_beyond_its_limit() {
    let (server, address) = listen("bw --memory 64");
    let said = "the client requests 134217728 B of message memory, but this side has 67108864 B";
    run(&format!("bench bw -n 100 -s 16 --memory 128 {address}")).expect_complaint(1, &["the peer failed", said]);
    server.finish().expect_complaint(1, &[said]);
}

/// Returns the folder in /proc of the process that process number `process` has started.
fn second_process_of(process: u32) -> PathBuf {
    let children = format!("/proc/{process}/task/{process}/children");
    let until = Instant::now() + PATIENCE;
    loop {
        let list = std::fs::read_to_string(&children).unwrap_or_default();
        if let Some(child) = list.split_whitespace().next() {
            return PathBuf::from("/proc").join(child);
        }
        assert!(Instant::now() < until, "no second process was started");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_second_process_does_not_outlive_the_first() {
    let _one_at_a_time = measuring();
    for arguments in ["bw -s 16", "lat -s 16 -e"] {
        let world = World::new();
        let first = Running::start(world.command(&format!("bench {arguments} -D 3600")));
        let second = second_process_of(first.id());
        world.wait_for_packets();
        first.kill();
        let until = Instant::now() + PATIENCE;
        // Wait until the process has gone, or is a zombie that its parent has not reaped.
        while std::fs::read_to_string(second.join("status")).is_ok_and(|status| !status.contains("State:\tZ")) {
            assert!(Instant::now() < until, "the second process is still there");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn the_first_process_notices_that_the_second_is_gone() {
    let _one_at_a_time = measuring();
    let world = World::new();
    let first = Running::start(world.command("bench bw -s 16 -D 3600"));
    let second = second_process_of(first.id());
    world.wait_for_packets();
    let id = second.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok()).expect("a number");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(id), nix::sys::signal::Signal::SIGKILL)
        .expect("the process can be killed");
    let first = first.finish().expect_status(1);
    assert!(first.stderr.contains(HUNG_UP), "{}", first.stderr);
}
