//! A side that listens and one that connects: two commands, as on two machines.

use crate::command::{Running, doorbell, free_address, list, measuring, number};

/// Starts a side that listens, and says where.
pub(crate) fn listen(arguments: &str) -> (Running, String) {
    let address = free_address().to_string();
    let mut server = Running::start(doorbell(&format!("bench {arguments} --listen {address}")));
    server.wait_for("waiting for a client");
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
    let port = free_address().port();
    let mut server = Running::start(doorbell(&format!("bench bw --listen -p {port}")));
    server.wait_for(&format!("waiting for a client on 0.0.0.0:{port}"));
    let client = Running::start(doorbell(&format!("bench bw -n 100 -s 16 -p {port} localhost")));
    client.finish().expect_status(0);
    server.finish().expect_status(0);
}

#[test]
fn an_address_may_be_chosen() {
    let _one_at_a_time = measuring();
    let (server, address) = listen("bw --bind 127.77.0.1");
    let client = Running::start(doorbell(&format!("bench bw -n 100 -s 16 --bind 127.77.0.2 {address}")));
    client.finish().expect_status(0);
    server.finish().expect_status(0);
}

#[test]
fn two_devices_cannot_have_one_address() {
    let _one_at_a_time = measuring();
    let (server, _) = listen("bw --bind 127.77.0.3");
    let second = Running::start(doorbell("bench bw -n 100 -s 16 --bind 127.77.0.3"));
    second.finish().expect_complaint(1, &["UDP port 4791 of 127.77.0.3 is taken", "--udp-port"]);
    drop(server);
}

#[test]
fn the_smaller_path_mtu_of_both_ends_is_used_whatever_was_asked_for() {
    let _one_at_a_time = measuring();
    let (server, address) = listen("bw");
    let client = Running::start(doorbell(&format!("bench bw -m 512 -n 100 -s 5000 --json {address}")));
    let record = client.finish().expect_status(0).json();
    assert_eq!(number(&record, "/results/0/mtu"), 512);
    server.finish().expect_status(0);
}
