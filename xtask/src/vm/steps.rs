//! What `cargo xtask test` has the guest do.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Guest, missing, sysfs};
use crate::shell::{cargo, output_of, root};
use crate::test::StepEnd;

/// Longer than any of these takes on two processors that three runs share.
const LIMIT: Duration = Duration::from_secs(900);

/// Messages of a long case, and of one with loss: as many as the suites have to carry.
const MESSAGES: u32 = 10_000;

const COMMANDS: &str = script!("sysfs", "commands");
const LOSS: &str = script!("two_rxe", "loss");
const TWO_HOSTS: &str = script!("two_rxe", "two_hosts");
const ON_THE_WIRE: &str = script!("cable", "wire");
const BOX: &str = script!("cable", "box");
const CAPTURE: &str = script!("cable", "capture");
const CAPTURE_BOTH: &str = script!("two_rxe", "capture_both");

/// A step's name and body, which is given a guest that has not booted yet.
type Step = (&'static str, fn(Guest) -> StepEnd);

/// Each in a guest of its own, those that take longest first.
const STEPS: &[Step] = &[
    ("rdma_rxe, exchange", exchange),
    ("rdma_rxe, on the wire", |guest| in_guest(&guest, ON_THE_WIRE)),
    ("rdma_rxe, loss", loss),
    ("rdma_rxe, verbs", verbs),
    ("rdma_rxe, behind a box", |guest| in_guest(&guest, BOX)),
    ("rdma_rxe, two hosts", |guest| in_guest(&guest, TWO_HOSTS)),
    ("rdma_rxe, commands", commands),
];

/// Guests that run at the same time: one alone leaves the other of two processors idle for much of its time.
const AT_A_TIME: usize = 2;

/// Runs all of them, or those whose names contain `only`, and says of each how long it took and how it ended.
pub(crate) fn run(only: Option<&str>) -> Vec<(&'static str, Duration, StepEnd)> {
    let meant: Vec<&Step> = STEPS.iter().filter(|(name, _)| only.is_none_or(|only| name.contains(only))).collect();
    let next = AtomicUsize::new(0);
    let ended = Mutex::new(Vec::new());
    let lane = || {
        while let Some(&&(name, body)) = meant.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut guest = Guest::new(LIMIT);
            if meant.len() > 1 {
                guest.name = Some(name);
            }
            let start = Instant::now();
            let end = body(guest);
            ended.lock().unwrap_or_else(PoisonError::into_inner).push((name, start.elapsed(), end));
        }
    };
    thread::scope(|scope| {
        (0..AT_A_TIME.min(meant.len())).for_each(|_| drop(scope.spawn(lane)));
    });
    ended.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Captures packets of rdma_rxe and our RNIC anew, for the tests of `wire` and `rnic`.
pub(crate) fn capture() -> Result<(), String> {
    missing().map_or(Ok(()), Err)?;
    for (suites, script) in [(&[][..], CAPTURE), (&[("verbs", "doorbell-verbs")], CAPTURE_BOTH)] {
        let ended = with_programs(Guest::new(LIMIT), suites)?.run(script)?;
        ended.passed()?;
        ended.keep(&root().join("crates/wire/tests/data"))?;
    }
    Ok(())
}

/// The conformance suite of verbs on the provider `system`.
fn verbs(guest: Guest) -> StepEnd {
    suite(guest, "doorbell-verbs", "--ignored system::")
}

/// The command on rxe, and what sysfs shows of both.
fn commands(guest: Guest) -> StepEnd {
    if let Some(why) = missing() {
        return StepEnd::LeftOut(why);
    }
    let compared = guest.run(COMMANDS).and_then(|ended| {
        ended.passed()?;
        sysfs::compare(&ended.text("rxe.txt")?, &ended.text("own.txt")?)
    });
    compared.into()
}

/// That of the protocols. rxe's own loopback loses nothing: [`loss`] has a network for that.
fn exchange(guest: Guest) -> StepEnd {
    suite(guest, "doorbell-exchange", "--skip loss_is_not_seen")
}

/// Both suites over a network that loses packets.
fn loss(guest: Guest) -> StepEnd {
    let script = format!("messages={MESSAGES}\n{LOSS}");
    with_test_programs(guest, &[("verbs", "doorbell-verbs"), ("exchange", "doorbell-exchange")], &script)
}

fn suite(guest: Guest, package: &str, arguments: &str) -> StepEnd {
    // Tests in parallel would share two emulated processors with the kernel's side of each.
    let script = format!(
        "DOORBELL_TEST_DEVICE=rxe0 DOORBELL_MESSAGES={MESSAGES} conformance --test-threads=1 --show-output {arguments}"
    );
    with_test_programs(guest, &[("conformance", package)], &script)
}

/// A script that calls suites by these names.
fn with_test_programs(guest: Guest, suites: &[(&str, &str)], script: &str) -> StepEnd {
    match with_programs(guest, suites) {
        Ok(guest) => in_guest(&guest, script),
        Err(why) => StepEnd::Failed(why),
    }
}

/// A guest with the suites of packages, by these names.
fn with_programs(mut guest: Guest, suites: &[(&str, &str)]) -> Result<Guest, String> {
    for &(name, package) in suites {
        guest.files.push((name.to_owned(), test_program(package)?));
    }
    Ok(guest)
}

fn in_guest(guest: &Guest, script: &str) -> StepEnd {
    if let Some(why) = missing() {
        return StepEnd::LeftOut(why);
    }
    guest.run(script).and_then(|ended| ended.passed()).into()
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
