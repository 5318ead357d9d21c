//! UCX on the software RNIC: `ucx_perftest`, programs of this repository that check each byte, and Open MPI over UCX.

use std::fs;
use std::process::Command;

use super::ports::{on_free_port, wait_until_listening};
use super::{PATIENCE, Started, compile, on_doorbell, opens, start};
use crate::place;
use crate::shell::{command, output_of};
use crate::two_machines::{Family, TwoMachines};

/// Values of `UCX_TLS`, each with the transports that an endpoint must then use. `rc_v` selects `rc_verbs`, and
/// `ud_verbs` only for connecting. With `rc_verbs` alone, UCX cannot connect programs that exchange addresses.
const TRANSPORTS: &[(&str, &[&str])] = &[
    ("rc_v", &["rc_verbs/doorbell0:1"]),
    ("ud_verbs", &["ud_verbs/doorbell0:1"]),
    ("rc_v,ud_v", &["rc_verbs/doorbell0:1"]),
];

/// Tests of `ucx_perftest`, which checks no data. They use messages and memory accesses of UCP over the transports in
/// `UCX_TLS`.
const TESTS: &[&str] = &[
    "-t tag_lat -s 8 -n 500",
    "-t tag_lat -s 1048576 -n 20",
    "-t tag_lat -E sleep -s 8 -n 2000",
    "-t tag_bw -s 16 -n 2000",
    "-t tag_bw -s 16777216 -n 4",
    "-t tag_sync_lat -s 64 -n 500",
    "-t tag_sync_bw -s 65536 -n 200",
    "-t tag_bw -D iov,iov -s 100,2000,30 -n 500",
    "-t tag_bw -U -C -s 4096 -n 500",
    "-t tag_bw -E sleep -s 65536 -n 500",
    "-t stream_lat -s 8 -n 500",
    "-t stream_bw -s 65536 -n 200",
    "-t stream_bw -r recv_data -s 65536 -n 200",
    "-t ucp_am_lat -s 8 -n 500",
    "-t ucp_am_lat -e -s 65536 -n 100",
    "-t ucp_am_bw -s 1048576 -n 40",
    "-t ucp_put_lat -s 8 -n 200",
    "-t ucp_put_bw -s 65536 -n 200",
    "-t ucp_put_bw -z -s 16777216 -n 4",
    "-t ucp_get -s 8 -n 200",
    "-t ucp_get -s 1048576 -n 20",
    "-t ucp_add -s 4 -n 200",
    "-t ucp_add -s 8 -n 200",
    "-t ucp_fadd -s 4 -n 200",
    "-t ucp_fadd -s 8 -n 200",
    "-t ucp_swap -s 4 -n 200",
    "-t ucp_swap -s 8 -n 200",
    "-t ucp_cswap -s 4 -n 200",
    "-t ucp_cswap -s 8 -n 200",
];

/// Tests of UCT, directly over `rc_verbs`. Atomic operations run on the RNIC, if UCX offers them.
const TESTS_OF_RC: &[&str] = &[
    "-d doorbell0:1 -x rc_verbs -t am_lat -s 8 -n 500",
    "-d doorbell0:1 -x rc_verbs -t am_bw -D zcopy -s 8000 -n 500",
    "-d doorbell0:1 -x rc_verbs -t put_lat -s 8 -n 200",
    "-d doorbell0:1 -x rc_verbs -t put_bw -D zcopy -s 1048576 -n 40",
    "-d doorbell0:1 -x rc_verbs -t get -D bcopy -s 4096 -n 200",
    "-d doorbell0:1 -x rc_verbs -t get -D zcopy -s 1048576 -n 20",
    "-d doorbell0:1 -x rc_verbs -t add_lat -s 8 -n 200",
    "-d doorbell0:1 -x rc_verbs -t add_mr -s 8 -n 500",
    "-d doorbell0:1 -x rc_verbs -t fadd -s 8 -n 200",
    "-d doorbell0:1 -x rc_verbs -t cswap -s 8 -n 200",
];
const TESTS_OF_UD: &[&str] = &[
    "-d doorbell0:1 -x ud_verbs -t am_lat -s 8 -n 500",
    "-d doorbell0:1 -x ud_verbs -t am_bw -D bcopy -s 2000 -n 500",
    "-d doorbell0:1 -x ud_verbs -t am_bw -D zcopy -s 2000 -n 500",
];

/// Tests with several threads. Each test needs a separate pair of processes.
const TESTS_OF_THREADS: &[&str] = &[
    "-T 4 -M multi -t tag_lat -s 64 -n 200",
    "-T 4 -M multi -t tag_bw -s 65536 -n 100",
    "-T 4 -M multi -t ucp_put_bw -s 4096 -n 200",
];

/// Timeouts that shorten the test of broken connections. The defaults of UCX are half a minute or more.
pub(super) const SHORT_TIMEOUTS: &[(&str, &str)] = &[
    ("UCX_KEEPALIVE_INTERVAL", "500ms"),
    ("UCX_RC_VERBS_TIMEOUT", "50ms"),
    ("UCX_RC_VERBS_RETRY_COUNT", "3"),
    ("UCX_UD_VERBS_TIMEOUT", "2s"),
];

/// Transports without verbs: TCP and shared memory.
pub(super) const OWN_TRANSPORTS: [&str; 2] = ["tcp", "posix"];

/// Returns the command of `ucx_perftest` over one of [`OWN_TRANSPORTS`], or over verbs on the software RNIC.
pub(super) fn perftest(transports: &str, words: &[&str]) -> Command {
    if OWN_TRANSPORTS.contains(&transports) {
        let mut plain = command("ucx_perftest", words);
        plain.env("UCX_TLS", transports).env("UCX_LOG_LEVEL", "error");
        if transports == "tcp" {
            plain.env("UCX_NET_DEVICES", "lo");
        }
        return plain;
    }
    on_verbs(transports, &[&["ucx_perftest"], words].concat())
}

/// Returns the command of a program on the software RNIC, with only these transports of UCX.
fn on_verbs(transports: &str, program: &[&str]) -> Command {
    let mut own = on_doorbell(&[], program);
    own.envs([("UCX_TLS", transports), ("UCX_LOG_LEVEL", "error")]);
    own
}

/// Runs a pair of `ucx_perftest`, and returns the output of the client.
fn pair(transports: &str, words: &[&str]) -> Result<String, String> {
    on_free_port(|port| {
        let words = [&["-w", "10", "-f", "-p", port], words].concat();
        let mut server = start(perftest(transports, &words))?;
        wait_until_listening(port, &mut server)?;
        let client = start(perftest(transports, &[&words[..], &["127.0.0.1"]].concat()))?;
        both(client, server)
    })
    .map_err(|why| format!("UCX_TLS={transports} ucx_perftest {}: {why}", words.join(" ")))
}

fn both(client: Started, server: Started) -> Result<String, String> {
    let [client, server] = [client, server].map(|end| end.finish(PATIENCE).and_then(opens::check));
    match (client, server) {
        (Ok(said), Ok(_)) => Ok(said),
        (Err(client), Err(server)) => Err(format!("{client}\nthe server: {server}")),
        (Err(why), Ok(_)) | (Ok(_), Err(why)) => Err(why),
    }
}

/// Runs several tests in one pair of processes, and checks that each prints a line of figures.
fn tests(transports: &str, tests: &[&str]) -> Result<(), String> {
    let path = place::own_file("ucx.txt");
    let lines: String = tests.iter().enumerate().map(|(number, test)| format!("test{number} {test}\n")).collect();
    fs::write(&path, lines).map_err(|error| format!("{} could not be written: {error}", path.display()))?;
    let said = pair(transports, &["-b", &path.to_string_lossy()])?;
    for (number, test) in tests.iter().enumerate() {
        let name = format!("test{number}");
        if !said.lines().any(|line| line.split_whitespace().next() == Some(&name)) {
            return Err(format!("UCX_TLS={transports} ucx_perftest {test} prints no figures:\n{said}"));
        }
    }
    Ok(())
}

/// Checks that UCX finds its transports for verbs of any vendor on the device.
fn device() -> Result<(), String> {
    let said = output_of(on_verbs("all", &["ucx_info", "-d"]))?;
    for words in ["Memory domain: doorbell0", "Transport: rc_verbs", "Transport: ud_verbs", "Device: doorbell0:1"] {
        if !said.contains(words) {
            return Err(format!("{words:?} is missing in:\n{said}"));
        }
    }
    Ok(())
}

/// Runs programs of this repository, which compare every byte and end connections in several ways.
fn own_programs() -> Result<(), String> {
    let libraries = ["-lucp", "-lucs", "-lpthread"];
    let (data, ends) = (compile("cc", "ucx", &libraries)?, compile("cc", "ucx_ends", &libraries)?);
    for (transports, used) in TRANSPORTS {
        let data = on_verbs(transports, &[&[data.as_str()], *used].concat());
        let ended = start(data)?.finish(PATIENCE).and_then(opens::check);
        ended.map_err(|why| format!("UCX_TLS={transports}, data: {why}"))?;
    }
    for transports in ["rc_v", "ud_v"] {
        let mut ends = on_verbs(transports, &[&ends]);
        ends.envs(SHORT_TIMEOUTS.iter().copied());
        start(ends)?.finish(PATIENCE).map_err(|why| format!("UCX_TLS={transports}, ends: {why}"))?;
    }
    Ok(())
}

/// Way in which `doorbell run` and `mpirun` start the processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Starts {
    /// `doorbell run -- mpirun ... PROGRAM`
    Mpirun,
    /// `mpirun ... doorbell run -- PROGRAM`
    Program,
}

/// Transports, number of ranks, and start of the processes.
const MPI: &[(&str, &str, Starts)] = &[
    ("rc_v", "2", Starts::Mpirun),
    ("rc_v", "4", Starts::Program),
    ("ud_v", "2", Starts::Program),
    ("ud_v", "4", Starts::Mpirun),
    ("rc_v,ud_v", "2", Starts::Mpirun),
    ("rc_v,ud_v", "4", Starts::Program),
];

/// Runs an MPI program of this repository that checks its data.
fn mpi() -> Result<(), String> {
    const OVER_UCX: &str =
        "--allow-run-as-root --oversubscribe --mca pml ucx --mca osc ucx --mca btl ^openib,vader,uct";
    let program = compile("mpicc", "mpi", &[])?;
    for &(transports, ranks, starts) in MPI {
        let transports = format!("UCX_TLS=self,{transports}");
        let mpirun =
            [&["mpirun", "-n", ranks, "-x", &transports], &OVER_UCX.split(' ').collect::<Vec<_>>()[..]].concat();
        let run = match starts {
            Starts::Mpirun => on_doorbell(&[], &[&mpirun[..], &[&program]].concat()),
            Starts::Program => {
                let own = on_doorbell(&[], &[&program]);
                let mut run = command(mpirun[0], &mpirun[1..]);
                run.arg(own.get_program()).args(own.get_args());
                run
            }
        };
        let text = format!("{run:?}");
        let said = start(run)?.finish(PATIENCE).and_then(opens::check).map_err(|why| format!("{text}: {why}"))?;
        if !said.contains(&format!("all bytes of {ranks} ranks are right")) {
            return Err(format!("{text}: {said}"));
        }
    }
    Ok(())
}

/// Checks that UCX between two machines prefers the RNIC to TCP. UCX treats processes with common namespaces of IPC and
/// process ids as processes of one machine. Each process therefore gets its own namespaces, as in containers.
fn two_machines() -> Result<(), String> {
    if TwoMachines::are_impossible().is_some() {
        eprintln!("UCX between two machines is left out: it needs root, ip and ethtool");
        return Ok(());
    }
    let machines = TwoMachines::new(9000)?;
    for family in Family::BOTH {
        let addresses = [0, 1].map(|machine| family.address(machine));
        let perftest = |machine: usize, words: &[&str]| {
            // Without line buffering, the message "Waiting for connection" would stay in the server's buffer.
            let perftest = [&["stdbuf", "-oL", "ucx_perftest"], words].concat();
            let own = on_doorbell(&["--bind", &addresses[machine]], &perftest);
            let apart = ["--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"];
            let mut apart = machines.command(machine, "unshare", &apart);
            apart.arg(own.get_program()).args(own.get_args()).envs([("UCX_TLS", "all"), ("UCX_LOG_LEVEL", "info")]);
            apart
        };
        let test = ["-w", "10", "-f", "-t", "tag_bw", "-s", "65536", "-n", "200"];
        let six: &[&str] = if family == Family::V6 { &["-6"] } else { &[] };
        let mut server = start(perftest(0, six))?;
        server.wait_until(|server| server.said().contains("Waiting for connection") || server.has_ended())?;
        let client = start(perftest(1, &[&test, six, &[addresses[0].as_str()]].concat()))?;
        let said = both(client, server)?;
        if !said.contains("tag(rc_verbs/doorbell0:1") {
            return Err(format!("UCX does not choose the RNIC:\n{said}"));
        }
    }
    Ok(())
}

/// Runs all tests of UCX.
pub(crate) fn all() -> Result<(), String> {
    device()?;
    own_programs()?;
    for (transports, _) in TRANSPORTS {
        tests(transports, TESTS)?;
        for test in TESTS_OF_THREADS {
            pair(transports, &test.split(' ').collect::<Vec<_>>())?;
        }
    }
    tests("all", TESTS_OF_RC)?;
    tests("all", TESTS_OF_UD)?;
    two_machines()?;
    mpi()
}
