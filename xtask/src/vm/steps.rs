//! What `cargo xtask test` has the guest do.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use super::{Guest, missing, sysfs};
use crate::shell::{cargo, output_of, root};
use crate::test::StepEnd;

/// Longer than any of these takes on two processors that three runs share.
const LIMIT: Duration = Duration::from_secs(2700);

/// Messages of a long case, and of one with loss: as many as the suites have to carry.
const MESSAGES: u32 = 10_000;

const COMMANDS: &str = script!("sysfs", "commands");
const LOSS: &str = script!("two_rxe", "loss");
const ON_THE_WIRE: &str = script!("cable", "wire");
const CAPTURE: &str = script!("cable", "capture");
const CAPTURE_BOTH: &str = script!("two_rxe", "capture_both");

/// A step's name and body.
type Step = (&'static str, fn() -> StepEnd);

/// In the order in which they run, each in a guest of its own.
pub(crate) const STEPS: &[Step] = &[
    ("rdma_rxe, verbs", verbs),
    ("rdma_rxe, exchange", exchange),
    ("rdma_rxe, commands", commands),
    ("rdma_rxe, loss", loss),
    ("rdma_rxe, on the wire", || in_guest(Guest::new(LIMIT), ON_THE_WIRE)),
];

/// Captures packets of rdma_rxe and our RNIC anew, for the tests of `wire` and `rnic`.
pub(crate) fn capture() -> Result<(), String> {
    missing().map_or(Ok(()), Err)?;
    for (suites, script) in [(&[][..], CAPTURE), (&[("verbs", "doorbell-verbs")], CAPTURE_BOTH)] {
        let ended = guest_with(suites)?.run(script)?;
        if ended.status != 0 {
            return Err(format!("the command in the guest ended with status {}", ended.status));
        }
        ended.keep(&root().join("crates/wire/tests/data"))?;
    }
    Ok(())
}

/// The conformance suite of verbs on the provider `system`.
fn verbs() -> StepEnd {
    suite("doorbell-verbs", "--ignored system::")
}

/// The command on rxe, and what sysfs shows of both.
fn commands() -> StepEnd {
    if let Some(why) = missing() {
        return StepEnd::LeftOut(why);
    }
    let compared = Guest::new(LIMIT)
        .run(COMMANDS)
        .and_then(|ended| sysfs::compare(&ended.text("rxe.txt")?, &ended.text("own.txt")?).map(|()| ended.status));
    match compared {
        Ok(0) => StepEnd::Passed,
        Ok(status) => StepEnd::Failed(format!("the command in the guest ended with status {status}")),
        Err(why) => StepEnd::Failed(why),
    }
}

/// That of the protocols. rxe's own loopback loses nothing: [`loss`] has a network for that.
fn exchange() -> StepEnd {
    suite("doorbell-exchange", "--skip loss_is_not_seen")
}

/// Both suites over a network that loses packets.
fn loss() -> StepEnd {
    let script = format!("messages={MESSAGES}\n{LOSS}");
    with_test_programs(&[("verbs", "doorbell-verbs"), ("exchange", "doorbell-exchange")], &script)
}

fn suite(package: &str, arguments: &str) -> StepEnd {
    // Tests in parallel would share two emulated processors with the kernel's side of each.
    let script = format!(
        "DOORBELL_TEST_DEVICE=rxe0 DOORBELL_MESSAGES={MESSAGES} conformance --test-threads=1 --show-output {arguments}"
    );
    with_test_programs(&[("conformance", package)], &script)
}

/// A script that calls suites by these names.
fn with_test_programs(suites: &[(&str, &str)], script: &str) -> StepEnd {
    match guest_with(suites) {
        Ok(guest) => in_guest(guest, script),
        Err(why) => StepEnd::Failed(why),
    }
}

/// A guest with the suites of packages, by these names.
fn guest_with(suites: &[(&str, &str)]) -> Result<Guest, String> {
    let mut guest = Guest::new(LIMIT);
    for &(name, package) in suites {
        guest.files.push((name.to_owned(), test_program(package)?));
    }
    Ok(guest)
}

fn in_guest(guest: Guest, script: &str) -> StepEnd {
    if let Some(why) = missing() {
        return StepEnd::LeftOut(why);
    }
    match guest.run(script) {
        Ok(ended) if ended.status == 0 => StepEnd::Passed,
        Ok(ended) => StepEnd::Failed(format!("the command in the guest ended with status {}", ended.status)),
        Err(why) => StepEnd::Failed(why),
    }
}

/// Builds the suite of a crate, and says where it is.
fn test_program(package: &str) -> Result<PathBuf, String> {
    let build = ["test", "--no-run", "--package", package, "--test", "conformance", "--message-format=json"];
    let text = output_of(cargo(&build))?;
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let programs = messages.filter(|message| message["target"]["name"] == "conformance");
    let program = programs.filter_map(|message| message["executable"].as_str().map(PathBuf::from)).next_back();
    program.ok_or_else(|| format!("cargo names no program of {package}'s suite"))
}
