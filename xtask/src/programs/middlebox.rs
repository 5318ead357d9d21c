//! perftest through a middlebox that is invisible to clients and servers.

use serde_json::Value;

use super::{NO_CLOCK, OTHER_TRIES, PATIENCE, doorbell, on_doorbell, ports, start};
use crate::shell::{Running, command};

/// Programs with a passive server, each with the number of requests of its client.
const PAIRS: &[(&str, u64)] = &[
    ("ib_write_bw -n 500", 500),
    ("ib_write_bw -n 500 -q 4 -s 5000 -m 1024", 2000),
    ("ib_read_bw -n 500 -q 2", 1000),
    ("ib_read_lat -n 500", 500),
    ("ib_atomic_bw -n 500 -A CMP_AND_SWAP", 500),
    ("ib_atomic_lat -n 500 -A FETCH_AND_ADD", 500),
];

/// Runs all pairs through a middlebox. For every second pair, the middlebox injects packet loss.
pub(crate) fn run() -> Result<(), String> {
    for (index, (line, requests)) in PAIRS.iter().enumerate() {
        let fault = if index % 2 == 1 { &["--fault", "drop=0.005,seed=3"][..] } else { &[] };
        let mut result = pair(line, fault, *requests);
        for _ in 0..OTHER_TRIES {
            if !result.as_ref().is_err_and(|why| why.contains(NO_CLOCK)) {
                break;
            }
            result = pair(line, fault, *requests);
        }
        result.map_err(|why| format!("{line}, through a middlebox: {why}"))?;
    }
    eprintln!("{} programs through a middlebox", PAIRS.len());
    Ok(())
}

fn pair(line: &str, fault: &[&str], requests: u64) -> Result<(), String> {
    let words: Vec<&str> = line.split(' ').collect();
    ports::on_free_port(|port| {
        let mut server = start(on_doorbell(&[], &[&words[..], &["-p", port]].concat()))?;
        ports::wait_until_listening(port, &mut server)?;
        let node = format!("127.0.0.1:{port}");
        let options = [&["steer", &node, "--perftest", "-p", "0", "--json"][..], fault].concat();
        let mut running = Running::start(command(doorbell(), &options))?;
        let address = running.word_after("serving clients at ", PATIENCE)?;
        let (host, own) = address.rsplit_once(':').ok_or_else(|| format!("{address:?} is no address with a port"))?;
        let client = start(on_doorbell(&[], &[&words[..], &["-p", own, host]].concat()))?;
        let (client, server) = (client.finish(PATIENCE), server.finish(PATIENCE));
        client.and(server)?;
        let text = running.end(PATIENCE)?;
        let counted: Value = serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
        let count = |name: &str| counted["counters"][name].as_u64();
        let is_right = count("requests") == Some(requests)
            && counted["clients"]["refused"] == 0
            && counted["driver"]["damaged"] == 0
            && (fault.is_empty() || count("to_node_again") > Some(0) || count("duplicates") > Some(0));
        if is_right { Ok(()) } else { Err(format!("expected {requests} requests and no failure: {counted:#}")) }
    })
}
