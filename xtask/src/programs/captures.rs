//! Captures of programs that do not close their device before they end.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::ports::{on_free_port, wait_until_listening};
use super::{NO_CLOCK, PATIENCE, compile, doorbell, on_doorbell, start};
use crate::place;
use crate::shell::{command, output_of};

/// Name by which `cargo xtask programs` selects this test.
pub(super) const NAME: &str = "captures";

/// Number of WRITEs of `captured.c`.
const WRITES: u64 = 10;

/// Arguments of `captured.c`, each of which selects a way to end.
const ENDS: [&str; 9] = ["close", "return", "exit", "_exit", "_Exit", "quick_exit", "exec", "daemon", "thread"];

/// Server and client of foreign programs that end without closing the device. `pair` adds the port to each command
/// line.
const PAIRS: [(&str, &str); 3] = [
    ("ib_write_bw -R -n 500", "ib_write_bw -R -n 500 127.0.0.1"),
    ("ib_send_lat -R -n 500", "ib_send_lat -R -n 500 127.0.0.1"),
    ("rping -s -C 10", "rping -c -a 127.0.0.1 -C 10"),
];

/// Runs `captured.c` once for each of [`ENDS`], once until it is killed, and then the pairs of [`PAIRS`]. Each capture
/// must be complete.
pub(super) fn check_captures() -> Result<(), String> {
    let program = compile("cc", "captured", &["-Wl,--as-needed", "-libverbs"])?;
    let folder = place::own_file("captures");
    make(&folder)?;
    for end in ENDS {
        let file = folder.join(end).with_extension("pcap");
        let words = [program.as_str(), end];
        start(on_doorbell(&["--pcap", &file.to_string_lossy()], &words))?
            .finish(PATIENCE)
            .map_err(|why| format!("captured {end}: {why}"))?;
        let writes = writes_in(&file)?;
        if writes != WRITES {
            return Err(format!("captured {end}: the capture has {writes} WRITEs, allowed is {WRITES}"));
        }
    }
    killed(&program, &folder.join("killed.pcap"))?;
    for (server, client) in PAIRS {
        pair(&folder, server, client).map_err(|why| format!("{client}: {why}"))?;
    }
    fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))
}

/// Runs a pair, and checks that the captures of server and client have packets. A failure of perftest with [`NO_CLOCK`]
/// is accepted.
fn pair(folder: &Path, server: &str, client: &str) -> Result<(), String> {
    let files = ["server", "client"].map(|side| folder.join(side).with_extension("pcap"));
    let begin = |line: &str, file: &Path, port: &str| {
        let words: Vec<&str> = line.split(' ').chain(["-p", port]).collect();
        start(on_doorbell(&["--pcap", &file.to_string_lossy()], &words))
    };
    let said = on_free_port(|port| {
        let mut server = begin(server, &files[0], port)?;
        wait_until_listening(port, &mut server)?;
        let client = begin(client, &files[1], port)?.finish(PATIENCE);
        let server = server.finish(PATIENCE);
        client.and(server)
    });
    if said.is_err() && !said.as_ref().is_err_and(|why| why.contains(NO_CLOCK)) {
        return said.map(drop);
    }
    let packets = [packets_in(&files[0])?, packets_in(&files[1])?];
    if packets.contains(&0) {
        return Err(format!("packets in the captures of server and client: {packets:?}, allowed are more than 0"));
    }
    Ok(())
}

/// Checks the capture of a killed program. SIGKILL leaves no time to write, so the capture must be complete before.
fn killed(program: &str, file: &Path) -> Result<(), String> {
    let started = start(on_doorbell(&["--pcap", &file.to_string_lossy()], &[program, "wait"]))?;
    let until = Instant::now() + PATIENCE;
    while writes_in(file).ok() != Some(WRITES) {
        if Instant::now() > until {
            return Err(format!("the capture of a waiting program is not complete\n{}", started.said()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(started); // kills the program
    match writes_in(file)? {
        WRITES => Ok(()),
        writes => Err(format!("the capture of a killed program has {writes} WRITEs, allowed is {WRITES}")),
    }
}

fn decode(file: &Path) -> Result<serde_json::Value, String> {
    let mut decode = command(doorbell(), &["wire", "decode", "--json"]);
    decode.arg(file);
    let text = output_of(decode)?;
    serde_json::from_str(&text).map_err(|error| format!("{}: {error}: {text}", file.display()))
}

fn packets_in(file: &Path) -> Result<u64, String> {
    Ok(decode(file)?["packets"].as_u64().unwrap_or(0))
}

/// Returns the number of WRITEs in a capture. Each WRITE counts once, although the capture has the packets of both
/// ends.
fn writes_in(file: &Path) -> Result<u64, String> {
    let found = decode(file)?;
    Ok(found
        .pointer("/conversations/0/from_a/operations/0/messages")
        .and_then(|messages| messages.as_u64())
        .unwrap_or(0))
}

fn make(folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))
}
