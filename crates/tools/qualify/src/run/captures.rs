//! Captures of the device's packets, judged by `doorbell wire check`.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::{Ended, Run, Stop};
use crate::report::{Deviation, rule_text};

/// Experiment whose packets are captured: short, with requests and replies.
const EXPERIMENT: &str = "wire/request-response";

/// Time within which tcpdump begins to capture or ends.
const BEGINNING: Duration = Duration::from_secs(5);

/// Time in seconds after which tcpdump ends if nothing else ends it.
const LONGEST_S: &str = "900";

/// Length of the header of a capture file, which tcpdump writes when it begins.
const HEADER_BYTES: u64 = 24;

/// Captures packets and judges them.
pub(super) fn judge(run: &mut Run<'_>) -> Ended {
    let file = run.work.join("capture.pcap");
    match run.plan.device.provider.as_str() {
        "soft" => capture_software_rnic(run, &file)?,
        _ => capture_interface(run, &file)?,
    }
    let output = Command::new(&run.plan.program)
        .args(["wire", "check", "--json"])
        .arg(&file)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| format!("wire check could not be started: {error}"))?;
    let mut document: Value = serde_json::from_slice(&output.stdout).map_err(|_| {
        let said = String::from_utf8_lossy(&output.stderr);
        format!("wire check ended without a result ({}): {}", output.status, said.trim())
    })?;
    // The path of the capture says nothing, and the file is removed.
    document["file"] = "capture.pcap".into();
    let packets = document["packets"].as_u64().unwrap_or(0);
    let deviations: Vec<Deviation> = document["rules"].as_array().into_iter().flatten().filter_map(deviation).collect();
    let summary = format!("{packets} packets, which violate {} rules", deviations.len());
    deviations.into_iter().for_each(|deviation| run.deviates(deviation));
    run.keep("wire-check.json", document);
    match packets {
        0 => {
            Err(Stop::LeftOut("the device does not show its packets to the kernel: no packet was captured".to_owned()))
        }
        _ => Ok(summary),
    }
}

/// Returns the deviation that an entry of the rules shows, if packets violate the rule.
fn deviation(rule: &Value) -> Option<Deviation> {
    let text = |key: &str| rule[key].as_str().unwrap_or_default();
    let findings = rule["findings"].as_u64().filter(|&findings| findings > 0)?;
    Some(Deviation {
        found_by: format!("wire check, {}", text("name")),
        rule: rule_text(text("section")),
        what: format!("{findings} packets violate this sentence: {}", text("sentence")),
    })
}

/// Captures packets of a short measurement on the software RNIC, which writes them itself.
fn capture_software_rnic(run: &Run<'_>, file: &Path) -> Result<(), Stop> {
    let mut command = run.command(&["bench", "bw", "-n", "200", "-s", "64,4096,65536"]);
    let mut option = OsString::from("--pcap=");
    option.push(file);
    let output = command.arg(option).output().map_err(|error| format!("bench could not be started: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Stop::Failed(format!("bench ended with {}: {}", output.status, said.trim())))
}

/// Captures packets of a short study on the device's network interface.
fn capture_interface(run: &mut Run<'_>, file: &Path) -> Result<(), Stop> {
    if run.plan.host.is_none() {
        let why = "packets between two ends on one device do not pass its network interface: give a HOST";
        return Err(Stop::LeftOut(why.to_owned()));
    }
    let interface = run.plan.device.adapter.as_ref().and_then(|adapter| adapter.interface.clone());
    let interface = interface.ok_or_else(|| Stop::LeftOut("the device has no network interface".to_owned()))?;
    let mut tcpdump = begin(&interface, file)?;
    let records = run.work.join("captured");
    let measured = run.measure(&records, &[EXPERIMENT.to_owned()]);
    if let Ok(id) = i32::try_from(tcpdump.id()) {
        // tcpdump may have ended by itself.
        let _ = kill(Pid::from_raw(id), Signal::SIGINT);
    }
    let _ = tcpdump.wait();
    measured.map_err(Stop::from)
}

/// Starts tcpdump on a network interface, and waits until it captures.
fn begin(interface: &str, file: &Path) -> Result<Child, Stop> {
    let mut command = Command::new("tcpdump");
    // As another user than root, tcpdump could not write into the working directory.
    command.args(["-Z", "root", "-U", "-G", LONGEST_S, "-W", "1", "-i", interface, "-w"]);
    command.arg(file).args(["udp", "port", "4791"]);
    let left_out = |why: &dyn std::fmt::Display| Stop::LeftOut(format!("no capture is possible on {interface}: {why}"));
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| left_out(&format_args!("tcpdump could not be started: {error}")))?;
    let start = Instant::now();
    while fs::metadata(file).map_or(0, |found| found.len()) < HEADER_BYTES {
        if let Ok(Some(status)) = child.try_wait() {
            return Err(left_out(&format_args!(
                "tcpdump ended with {status}; it requires root, or the right to capture"
            )));
        }
        if start.elapsed() > BEGINNING {
            let _ = child.kill();
            let _ = child.wait();
            return Err(left_out(&"tcpdump did not begin"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(child)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rules_with_findings_are_deviations() {
        let rule = json!({ "name": "msn", "section": "9.7.7", "sentence": "The MSN counts.", "findings": 3 });
        let found = deviation(&rule).unwrap();
        assert_eq!((found.found_by.as_str(), found.rule.as_str()), ("wire check, msn", "IBTA Vol 1, 9.7.7"));
        assert_eq!(found.what, "3 packets violate this sentence: The MSN counts.");
        assert_eq!(deviation(&json!({ "name": "msn", "section": "9.7.7", "findings": 0 })), None);
    }

    #[test]
    fn an_interface_that_does_not_exist_leaves_captures_out() {
        let folder = tempfile::tempdir().unwrap();
        let Err(Stop::LeftOut(why)) = begin("no-such-netdev", &folder.path().join("capture.pcap")) else {
            panic!("tcpdump captures on an interface that does not exist");
        };
        assert!(why.starts_with("no capture is possible on no-such-netdev: tcpdump "), "{why}");
    }
}
