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

/// WRITEs of `captured.c`.
const WRITES: u64 = 10;

/// Ends of `captured.c`, which are its arguments.
const ENDS: [&str; 9] = ["close", "return", "exit", "_exit", "_Exit", "quick_exit", "exec", "daemon", "thread"];

/// Server and client of foreign programs that end without closing the device. The port is added.
const PAIRS: [(&str, &str); 3] = [
    ("ib_write_bw -R -n 500", "ib_write_bw -R -n 500 127.0.0.1"),
    ("ib_send_lat -R -n 500", "ib_send_lat -R -n 500 127.0.0.1"),
    ("rping -s -C 10", "rping -c -a 127.0.0.1 -C 10"),
];

/// Runs a program for each end, one that is killed, and pairs of programs. Each capture must be complete.
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

/// Runs a pair, and checks that each side's capture has packets. Accepts a failure of perftest with [`NO_CLOCK`].
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

/// Kills a program. SIGKILL leaves no time to write, so the capture must be complete before.
fn killed(program: &str, file: &Path) -> Result<(), String> {
    let started = start(on_doorbell(&["--pcap", &file.to_string_lossy()], &[program, "wait"]))?;
    let until = Instant::now() + PATIENCE;
    while writes_in(file).ok() != Some(WRITES) {
        if Instant::now() > until {
            return Err(format!("the capture of a waiting program is not complete\n{}", started.said()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(started); // kills it
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

/// Returns the number of WRITEs in a capture. Each counts once, although both ends are in the capture.
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
