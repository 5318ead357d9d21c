//! `doorbell doctor` and `doorbell study` between two machines.

use std::process::Output;

use serde_json::Value;

use super::{Family, PATIENCE, TOKEN, TwoMachines};
use crate::place;
use crate::programs::doorbell;
use crate::shell::{Running, output_of};
use crate::test::StepEnd;

/// Experiments of the study between two machines. The first one uses messages, the second one one-sided operations.
const EXPERIMENTS: [&str; 2] = ["direct-write/latency", "one-sided/atomics"];

/// Checks that the doctor reports no fault between two sound machines, and reports each injected fault. A study between
/// the machines must have all its points and name both machines in each record.
pub(crate) fn study() -> StepEnd {
    if let Some(left_out) = TwoMachines::are_impossible() {
        return left_out;
    }
    study_everything().into()
}

fn study_everything() -> Result<(), String> {
    let machines = TwoMachines::new(9000)?;
    check_rejections(&machines)?;
    for family in Family::BOTH {
        let listen = match family {
            Family::V4 => "0.0.0.0",
            Family::V6 => "::",
        };
        let doorbell = doorbell();
        let mut there = machines.command(1, &doorbell.to_string_lossy(), &["study", "--listen", listen]);
        there.env("DOORBELL_TOKEN", TOKEN);
        let mut server = Running::start(there)?;
        server.wait_for("waiting for a client", PATIENCE)?;
        match family {
            Family::V4 => diagnose(&machines, family)?,
            Family::V6 => measure(&machines, family)?,
        }
    }
    Ok(())
}

/// Runs a `doorbell` command on the first machine.
fn here(machines: &TwoMachines, arguments: &[&str], token: Option<&str>) -> Result<Output, String> {
    let mut command = machines.command(0, &doorbell().to_string_lossy(), arguments);
    command.env_remove("DOORBELL_TOKEN");
    if let Some(token) = token {
        command.env("DOORBELL_TOKEN", token);
    }
    command.output().map_err(|error| format!("{command:?}: {error}"))
}

/// Checks that a command ended with the status `status` and printed all of `words`.
pub(super) fn expect(output: &Output, status: i32, words: &[&str]) -> Result<(), String> {
    let text = [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat();
    match words.iter().find(|words| !text.contains(**words)) {
        None if output.status.code() == Some(status) => Ok(()),
        None => Err(format!("the status is {:?}, expected {status}:\n{text}", output.status.code())),
        Some(missing) => Err(format!("`{missing}` is missing in:\n{text}")),
    }
}

/// Checks that the commands reject a listener without a token, a peer that does not listen, and an unknown
/// experiment.
fn check_rejections(machines: &TwoMachines) -> Result<(), String> {
    let [own, other] = [0, 1].map(|machine| Family::V4.address(machine));
    for command in ["study", "doctor"] {
        expect(&here(machines, &[command, "--listen", &own], None)?, 2, &["--token", "--anyone"])?;
    }
    expect(&here(machines, &["study", &other], None)?, 1, &["cannot connect to", "doorbell study --listen"])?;
    expect(&here(machines, &["study", "no-such-experiment"], None)?, 2, &["no experiment no-such-experiment"])
}

/// A fault between the machines. It is a rule for packets that arrive at the second machine, with the status and the
/// words with which the doctor must end.
struct Fault {
    rule: &'static str,
    status: i32,
    words: &'static [&'static str],
}

const FAULTS: [Fault; 2] = [
    Fault {
        rule: "udp dport 4791 udp length > 1500 drop",
        status: 1,
        words: &["SPOILS", "path MTU of 4096 B", "packets with 1024 B do"],
    },
    Fault { rule: "udp dport 4791 drop", status: 1, words: &["SPOILS", "no packet of RoCE v2", "UDP port 4791"] },
];

fn diagnose(machines: &TwoMachines, family: Family) -> Result<(), String> {
    let other = family.address(1);
    let asks = ["doctor", "-d", "doorbell0", &other];
    let directory = place::own().join("study-refused");
    let out = directory.to_string_lossy();
    let measures = ["study", "-d", "doorbell0", "--out", &out, EXPERIMENTS[0], &other];
    expect(&here(machines, &asks, None)?, 1, &["shows no token"])?;
    expect(&here(machines, &asks, Some("another"))?, 1, &["another token"])?;
    let sound = "packets with 4096 B of payload come through";
    expect(&here(machines, &asks, Some(TOKEN))?, 0, &[sound])?;
    for (index, Fault { rule, status, words }) in FAULTS.iter().enumerate() {
        let rule = format!("table inet fault {{ chain input {{ type filter hook input priority 0; {rule}; }}; }}");
        output_of(machines.command(1, "nft", &[&rule]))?;
        let said = here(machines, &asks, Some(TOKEN))?;
        // With a fault, a study must stop before it measures. Check this with only one fault, because it takes seconds.
        let refused = (index == 0).then(|| here(machines, &measures, Some(TOKEN))).transpose()?;
        output_of(machines.command(1, "nft", &["delete table inet fault"]))?;
        expect(&said, *status, words)?;
        if let Some(refused) = refused {
            expect(&refused, 1, &[&[other.as_str()], &words[1..]].concat())?;
        }
        let is_record = |file: &std::fs::DirEntry| file.path().extension().is_some_and(|extension| extension == "json");
        if directory.read_dir().is_ok_and(|files| files.flatten().any(|file| is_record(&file))) {
            return Err(format!("a study stored records in spite of the rule {rule}"));
        }
    }
    expect(&here(machines, &asks, Some(TOKEN))?, 0, &[sound])?;
    eprintln!("{family:?}: the doctor finds the machines sound, a short path MTU and a firewall");
    Ok(())
}

fn measure(machines: &TwoMachines, family: Family) -> Result<(), String> {
    let directory = place::own().join(format!("study-{family:?}"));
    let (out, other) = (directory.to_string_lossy(), family.address(1));
    let mut asks = vec!["study", "-d", "doorbell0", "--out", &out, &other];
    asks.extend(EXPERIMENTS);
    expect(&here(machines, &asks, Some(TOKEN))?, 0, &["report.html"])?;
    let files = std::fs::read_dir(&directory).map_err(|error| format!("{out}: {error}"))?;
    let mut records = 0;
    for file in files.flatten().map(|file| file.path()) {
        if file.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let name = file.display().to_string();
        let text = std::fs::read(&file).map_err(|error| format!("{name}: {error}"))?;
        let record: Value = serde_json::from_slice(&text).map_err(|error| format!("{name}: {error}"))?;
        for place in ["/environment/machine/host", "/environment/peer/machine/host", "/environment/peer/cpu"] {
            if record.pointer(place).and_then(Value::as_str).is_none_or(str::is_empty) {
                return Err(format!("{name} has no {place}"));
            }
        }
        let repetitions = record["repetitions"].as_array().map_or(0, Vec::len);
        if repetitions == 0 || record.pointer("/repetitions/0/mtu").and_then(Value::as_u64) != Some(4096) {
            return Err(format!(
                "{name}: {repetitions} repetitions, path MTU {:?}",
                record.pointer("/repetitions/0/mtu")
            ));
        }
        records += 1;
    }
    // A repeated study measures no point again. A study without the other machine must reject the stored records,
    // because they belong to another study.
    expect(&here(machines, &asks, Some(TOKEN))?, 0, &["points were in"])?;
    asks.retain(|word| *word != other);
    expect(&here(machines, &asks, Some(TOKEN))?, 1, &["environment.peer"])?;
    eprintln!("{family:?}: {records} points between two machines, with both machines in each record");
    if records == 0 { Err(format!("{out} has no records")) } else { Ok(()) }
}
