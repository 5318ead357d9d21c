//! A side that listens and a side that connects: two commands, as on two machines.

use std::net::{Ipv4Addr, TcpListener};
use std::process::{Command, Stdio};

use crate::bench::check_packets;
use crate::command::{Running, doorbell, list, measuring, number, run};

/// Starts a side that listens. Returns the side and its address.
pub(crate) fn listen(arguments: &str) -> (Running, String) {
    let mut server = Running::start(doorbell(&format!("bench {arguments} --listen 127.0.0.1:0")));
    let address = server.text_after("waiting for a client on ");
    (server, address)
}

#[test]
fn a_client_measures_with_a_server() {
    let _one_at_a_time = measuring();
    for arguments in
        ["bw -n 2000 -s 0,16,5000 --verify", "lat -n 500 -s 16,5000 --verify", "bw -b -e -q 3 -n 500 -s 16"]
    {
        let kind = &arguments[..arguments.find(' ').unwrap_or_default()];
        let (server, address) = listen(kind);
        let client = Running::start(doorbell(&format!("bench {arguments} {address} --json")));
        let record = client.finish().expect_status(0).json();
        for result in list(&record, "/results") {
            assert!(number(result, "/messages") >= 500);
        }
        let server = server.finish().expect_status(0);
        assert_eq!(server.stdout, "", "only the side that asked prints the result");
        assert!(server.stderr.contains("serving 127.0.0.1:"), "{}", server.stderr);
    }
}

#[test]
fn port_and_host_may_be_given_apart() {
    let _one_at_a_time = measuring();
    let mut server = Running::start(doorbell("bench bw --listen -p 0"));
    // Without a token the server serves only this machine.
    let port = server.text_after("waiting for a client on 127.0.0.1:");
    let client = Running::start(doorbell(&format!("bench bw -n 100 -s 16 -p {port} localhost")));
    client.finish().expect_status(0);
    server.finish().expect_status(0);
}

/// Starts a `doorbell` command with a token.
fn with_token(arguments: &str, token: &str) -> Running {
    let mut command = doorbell(arguments);
    command.env("DOORBELL_TOKEN", token);
    Running::start(command)
}

#[test]
fn a_server_with_a_token_waits_for_a_client_that_shows_it() {
    let _one_at_a_time = measuring();
    let mut server = with_token("bench bw --listen -p 0", "a secret");
    let at = server.text_after("waiting for a client on ");
    let port = at.rsplit(':').next().expect("the address has a port");
    let client = |host: &str| format!("bench bw -n 100 -s 16 -p {port} {host}");
    // Clients of IPv4 and IPv6 reach the server, if this machine has both.
    let ipv6 = if TcpListener::bind("[::1]:0").is_ok() { "[::1]" } else { "127.0.0.1" };
    run(&client("127.0.0.1")).expect_complaint(1, &["shows no token"]);
    with_token(&client(ipv6), "another").finish().expect_complaint(1, &["another token"]);
    with_token(&client("localhost"), "a secret").finish().expect_status(0);
    let said = server.finish().expect_status(0).stderr;
    assert!(said.contains("shows no token") && said.contains("shows another token"), "{said}");
    // The output shows an IPv4 client by its IPv4 address.
    assert!(said.contains("serving 127.0.0.1:") && !said.contains("::ffff"), "{said}");
    // A server without a token does not start if other machines could connect.
    let mapped =
        Running::start(doorbell("bench bw --listen ::ffff:127.0.0.1 -p 0")).text_after("waiting for a client on ");
    assert!(mapped.contains("127.0.0.1"), "{mapped}");
    run("bench bw --listen 0.0.0.0").expect_complaint(2, &["--listen 0.0.0.0", "--token", "--anyone"]);
}

/// Returns a loopback address that no other run of these tests uses. The address contains 20 bits of the process ID and
/// 3 bits of `number`.
fn own_address(number: u8) -> Ipv4Addr {
    let [_, a, b, c] = (std::process::id() << 3 | u32::from(number)).to_be_bytes();
    // Devices without a given address take the first loopback addresses, so set a high bit here.
    Ipv4Addr::new(127, 0x80 | a, b, c)
}

#[test]
fn an_address_may_be_chosen() {
    let _one_at_a_time = measuring();
    let [one, other] = [1, 2].map(own_address);
    let (server, address) = listen(&format!("bw --bind {one}"));
    let client = Running::start(doorbell(&format!("bench bw -n 100 -s 16 --bind {other} {address}")));
    client.finish().expect_status(0);
    server.finish().expect_status(0);
}

#[test]
fn two_devices_cannot_have_one_address() {
    let _one_at_a_time = measuring();
    let address = own_address(3);
    let (server, _) = listen(&format!("bw --bind {address}"));
    let second = Running::start(doorbell(&format!("bench bw -n 100 -s 16 --bind {address}")));
    second.finish().expect_complaint(1, &[&format!("UDP port 4791 of {address} is taken"), "--udp-port"]);
    drop(server);
}

#[test]
fn both_ends_use_the_smaller_path_mtu() {
    let _one_at_a_time = measuring();
    let (server, address) = listen("bw");
    let client = Running::start(doorbell(&format!("bench bw -m 512 -n 100 -s 5000 --json {address}")));
    let record = client.finish().expect_status(0).json();
    assert_eq!(number(&record, "/results/0/mtu"), 512);
    server.finish().expect_status(0);
}

/// Returns a command that runs in its own network namespace. No privileges are needed if the system allows namespaces
/// to all users.
fn in_own_network(script: &str, arguments: &str) -> Command {
    wrapped(&["unshare", "--user", "--map-root-user", "--net", "sh", "-c", script], arguments)
}

/// Returns a command line that consists of these words and the `doorbell` command.
fn wrapped(words: &[&str], arguments: &str) -> Command {
    let inner = doorbell(arguments);
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).arg(inner.get_program()).args(inner.get_args()).stdin(Stdio::null());
    for (variable, _) in inner.get_envs().filter(|(_, value)| value.is_none()) {
        command.env_remove(variable);
    }
    command
}

/// Script that adds two IPv6 addresses to loopback, one for each device. It waits until the addresses are no longer
/// tentative, since a tentative address cannot be bound.
const TWO_ADDRESSES: &str = "ip link set lo up && ip -6 address add fd00::1/128 dev lo && \
    ip -6 address add fd00::2/128 dev lo && \
    until [ -z \"$(ip -6 address show tentative)\" ]; do sleep 0.01; done && exec \"$0\" \"$@\"";

#[test]
fn both_sides_speak_ipv6() {
    let probe = in_own_network(TWO_ADDRESSES, "--version").output();
    if !probe.as_ref().is_ok_and(|output| output.status.success()) {
        return doorbell_testing::leave_out(&format!("IPv6 between two devices: no network namespace: {probe:?}"));
    }
    let _one_at_a_time = measuring();
    for arguments in ["bw -b -n 500 -s 0,16,64,65,5000 --verify", "lat -n 200 -s 0,16,5000 --verify"] {
        let kind = &arguments[..arguments.find(' ').unwrap_or_default()];
        let mut server =
            Running::start(in_own_network(TWO_ADDRESSES, &format!("bench {kind} --listen ::1 --bind fd00::1")));
        server.wait_for("waiting for a client on [::1]:18515");
        let process = server.id().to_string();
        let client = format!("bench {arguments} --json --bind fd00::2 [::1]:18515");
        let enter = ["nsenter", "--target", &process, "--user", "--net", "--preserve-credentials"];
        let record = Running::start(wrapped(&enter, &client)).finish().expect_status(0).json();
        for result in list(&record, "/results") {
            check_packets("send-receive", result);
            // Each packet has 20 B more than over IPv4.
            let (packets, bytes) = (number(result, "/counted/client/data_packets"), number(result, "/bytes"));
            assert_eq!(packets % bytes.div_ceil(4096).max(1), 0);
            let messages = packets / bytes.div_ceil(4096).max(1);
            let expected = packets * 78 + messages * (4 + bytes.next_multiple_of(4));
            assert_eq!(number(result, "/counted/client/data_bytes"), expected);
        }
        server.finish().expect_status(0);
    }
}
