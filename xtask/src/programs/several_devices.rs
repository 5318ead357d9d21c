//! Programs with two devices in each process, and transfers that go on when the port of one of them goes down.

use std::process::Command;
use std::time::Instant;

use super::transfers::{RIGHT, Source, Way, each_way, expect, pair, python, with_script, with_ucx};
use super::{PATIENCE, Started, doorbell, on_doorbell, start};
use crate::shell::{command, output_of, root};
use crate::test::StepEnd;

/// Option of `doorbell run` for two devices.
const TWO: [&str; 2] = ["--devices", "2"];

/// Variables with which UCX splits each message of some length over both devices.
const RAILS: [(&str, &str); 2] = [("UCX_MAX_RNDV_RAILS", "2"), ("UCX_MAX_EAGER_RAILS", "2")];

/// Transports that UCX must use.
const BOTH_RAILS: [&str; 2] = ["rc_verbs/doorbell0:1", "rc_verbs/doorbell1:1"];

/// Minimum number of bytes that a device of one process has carried in one direction. A device that only takes part in
/// set-up carries fewer.
const LEAST_BYTES: u64 = 1 << 20;

/// Options of the first device, whose port goes down in the middle of a WRITE, after some 30 MiB. A server sends no
/// WRITEs, so the rule fires in no server.
const PORT_DOWN: &str =
    "doorbell0:fault=port-down opcode=write position=middle direction=out nth=3000 for=60s optional";

/// Text of a program after which a port goes down.
const READY_FOR_FAULT: &str = "ready for the fault";

/// Runs all programs. The Mooncake Transfer Engine is left out if the packages of PyPI cannot be installed.
pub(crate) fn all() -> StepEnd {
    if let Err(why) = of_debian() {
        return StepEnd::Failed(why);
    }
    match python() {
        Ok(python) => mooncake(&python).into(),
        Err(why) => StepEnd::LeftOut(format!("packages of PyPI cannot be installed: {why}")),
    }
}

fn of_debian() -> Result<(), String> {
    let contexts = root().join("xtask/programs/two_contexts.py").to_string_lossy().into_owned();
    let data = Source { compiler: "cc", file: "ucx.c", options: &["-lucp", "-lucs", "-lpthread"] }.build()?;
    // These programs have both ends in one command, so no run kills an end.
    for way in [Way::Plain, Way::Loss] {
        let options = [&TWO[..], &["--stats"], way.options()].concat();
        let run = |name: &str, program: Command, words: &str| {
            let begun = Instant::now();
            let said = start(program)?.finish(PATIENCE).and_then(|said| expect(said, words));
            said.and_then(|said| both_have_carried(&said)).map_err(|why| format!("{name}, {way:?}: {why}"))?;
            eprintln!("{:>5.1} s  {name}, {way:?}", begun.elapsed().as_secs_f64());
            Ok::<(), String>(())
        };
        run("pyverbs, two contexts", on_doorbell(&options, &["/usr/bin/python3", &contexts]), RIGHT)?;
        let rails = on_doorbell(&options, &[&[data.as_str()][..], &BOTH_RAILS].concat());
        run("UCX, two rails", with_rails(rails), "")?;
    }
    let begun = Instant::now();
    ucx_fails_over().map_err(|why| format!("UCX, port down: {why}"))?;
    eprintln!("{:>5.1} s  UCX, port down", begun.elapsed().as_secs_f64());
    Ok(())
}

fn with_rails(program: Command) -> Command {
    let mut program = with_ucx(program, "rc_v");
    program.envs(RAILS);
    program
}

/// Takes the port of a UCX program's first device down. UCX reports an error, and the program continues on a new
/// context, which uses the other device.
fn ucx_fails_over() -> Result<(), String> {
    let program = Source { compiler: "cc", file: "ucx_failover.c", options: &["-lucp", "-lucs"] }.build()?;
    let mut program = start(with_rails(on_doorbell(&TWO, &[&program])))?;
    take_down_when_ready(&mut program)?;
    let said = expect(program.finish(PATIENCE)?, "messages are right")?;
    expect(said, "rank 0: ").map(drop)
}

/// Transfers through the Mooncake Transfer Engine over both devices. The engine itself goes on with the other device
/// when the port of one goes down.
fn mooncake(python: &str) -> Result<(), String> {
    const SCRIPT: &str = "mooncake_engine";
    each_way("Mooncake, two devices", |way| {
        let options = [&TWO[..], &["--stats"], way.options()].concat();
        let run = |server, client| pair(server, client, way);
        let said = with_script(python, SCRIPT, &options, way.word(), run)?;
        // A killed server may have received its bytes by one device.
        if way == Way::Killed { Ok(()) } else { both_have_carried(&said) }
    })?;
    let begun = Instant::now();
    let run = |server, client| pair(server, client, Way::Plain);
    let options = [&TWO[..], &["--stats", "--device", PORT_DOWN]].concat();
    with_script(python, SCRIPT, &options, "failover", run)
        .and_then(|said| both_have_carried(&said))
        .map_err(|why| format!("Mooncake, port down: {why}"))?;
    eprintln!("{:>5.1} s  Mooncake, port down", begun.elapsed().as_secs_f64());
    Ok(())
}

/// Checks in the counters of a program that both of its devices have carried data. A device may have sent it, or have
/// read it: the Mooncake Transfer Engine takes the devices in turn.
fn both_have_carried(said: &str) -> Result<(), String> {
    for device in ["doorbell0", "doorbell1"] {
        let counters = ["tx", "rx"].map(|way| format!("{device} {way}_vport_rdma_unicast_bytes "));
        let value = |line: &str| counters.iter().find_map(|counter| line.split_once(counter)?.1.parse::<u64>().ok());
        let most = said.lines().filter_map(value).max().unwrap_or(0);
        if most < LEAST_BYTES {
            return Err(format!("{device} has carried {most} B, must be at least {LEAST_BYTES} B:\n{said}"));
        }
    }
    Ok(())
}

/// Waits until a program is ready, and takes the port of its first device down. Fails if the program ends before.
fn take_down_when_ready(program: &mut Started) -> Result<(), String> {
    program.wait_until(|program| program.said().contains(READY_FOR_FAULT) || program.has_ended())?;
    if program.has_ended() {
        return Err(format!("the program has ended before its port went down:\n{}", program.said()));
    }
    // Devices of other network namespaces may have the same address, so only the process number is unique.
    let device = format!("doorbell0#{}", program.child.id());
    output_of(command(doorbell(), &["port", &device, "down"])).map(drop)
}
