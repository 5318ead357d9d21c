//! Steps of `cargo xtask test` that run in the guest.

use std::path::PathBuf;
use std::time::Duration;

use super::{Guest, missing, sysfs};
use crate::programs;
use crate::shell::{root, target};
use crate::test::{EXCHANGE, StepEnd, VERBS, conformance_suites};

/// Time limit of a guest. No script of these steps takes this long, even if three runs share two processors.
pub(super) const LIMIT: Duration = Duration::from_secs(900);

/// Number of work requests in the long test of the suite of verbs, which has requests of 50 lengths, 16 of each.
const REQUESTS: u32 = 800;

/// Number of messages in long tests of the suite of the protocols. All rings of these tests wrap: those of 100 places
/// several times, and the one of 512 places once.
const MESSAGES: u32 = 600;

/// Number of messages that the suites send in tests with loss, of which each loses dozens of packets.
const LOSSY_MESSAGES: u32 = 2_000;

const COMMANDS: &str = script!("sysfs", "dmabuf", "commands");
const LOSS: &str = script!("two_rxe", "loss");
const TWO_HOSTS: &str = script!("two_rxe", "two_hosts");
const ON_THE_WIRE: &str = script!("cable", "wire");
const BOX: &str = script!("cable", "box", "plans");
const QUALIFY: &str = script!("two_rxe", "qualify");
const CAPTURE: &str = script!("cable", "capture");
const CAPTURE_BOTH: &str = script!("two_rxe", "capture_both");

/// Runs connections between rdma_rxe and the software RNIC over a cable between two network namespaces.
pub(crate) fn on_the_wire(guest: Guest) -> StepEnd {
    in_guest(&guest, ON_THE_WIRE)
}

/// Runs rdma_rxe as the memory node behind a middlebox, also under fault plans.
pub(crate) fn middlebox(guest: Guest) -> StepEnd {
    in_guest(&guest, BOX)
}

/// Runs a study between two devices of rdma_rxe.
pub(crate) fn two_hosts(guest: Guest) -> StepEnd {
    in_guest(&guest, TWO_HOSTS)
}

/// Qualifies rdma_rxe, and keeps the page with its deviations in `target/xtask/qualified`.
pub(crate) fn qualify(guest: Guest) -> StepEnd {
    if let Some(why) = missing() {
        return StepEnd::LeftOut(why);
    }
    // The suite of verbs, a study and captures take longer than the other scripts.
    let guest = Guest { limit: 2 * LIMIT, ..guest };
    let kept = guest.run(QUALIFY).and_then(|ended| {
        ended.passed()?;
        ended.keep(&target().join("xtask").join("qualified"))
    });
    kept.into()
}

/// Captures packets of rdma_rxe and the software RNIC, and replaces the captures that tests of `wire` and `rnic` read.
pub(crate) fn capture() -> Result<(), String> {
    missing().map_or(Ok(()), Err)?;
    for (suites, script) in [(&[][..], CAPTURE), (&[("verbs", VERBS)], CAPTURE_BOTH)] {
        let ended = with_programs(Guest::new(LIMIT), suites)?.run(script)?;
        ended.passed()?;
        ended.keep(&root().join("crates/rnic/wire/tests/data"))?;
    }
    Ok(())
}

/// Runs the conformance suite of verbs on the provider `system`.
pub(crate) fn verbs(guest: Guest) -> StepEnd {
    suite(guest, VERBS, REQUESTS, "--ignored conformance::system::")
}

/// Runs the command on rxe, compares the sysfs files of rxe and the software RNIC, and registers a DMA buffer.
pub(crate) fn commands(mut guest: Guest) -> StepEnd {
    if let Some(why) = missing() {
        return StepEnd::LeftOut(why);
    }
    let compared = programs::of_dma_buffers().and_then(|program| {
        guest.files.push(("dmabuf".to_owned(), program));
        let ended = guest.run(COMMANDS)?;
        ended.passed()?;
        sysfs::compare(&ended.text("rxe.txt")?, &ended.text("own.txt")?)
    });
    compared.into()
}

/// Runs the conformance suite of the protocols. Skips the test with loss, since the loopback of rxe loses no packets.
/// The step [`loss`] runs this test.
pub(crate) fn exchange(guest: Guest) -> StepEnd {
    suite(guest, EXCHANGE, MESSAGES, "conformance:: --skip loss_is_not_seen")
}

/// Runs both suites over a network that loses packets.
pub(crate) fn loss(guest: Guest) -> StepEnd {
    let script = format!("messages={LOSSY_MESSAGES}\n{LOSS}");
    with_test_programs(guest, &[("verbs", VERBS), ("exchange", EXCHANGE)], &script)
}

fn suite(guest: Guest, package: &str, messages: u32, arguments: &str) -> StepEnd {
    // Run one test at a time, because the tests and the kernel's part of rxe share two emulated processors.
    let script = format!(
        "DOORBELL_TEST_DEVICE=rxe0 DOORBELL_MESSAGES={messages} conformance --test-threads=1 --show-output {arguments}"
    );
    with_test_programs(guest, &[("conformance", package)], &script)
}

/// Runs a script in a guest with conformance suites. Each pair has the name by which the script calls the suite, and
/// the folder of its package.
fn with_test_programs(guest: Guest, suites: &[(&str, &str)], script: &str) -> StepEnd {
    match with_programs(guest, suites) {
        Ok(guest) => in_guest(&guest, script),
        Err(why) => StepEnd::Failed(why),
    }
}

/// Adds conformance suites to a guest. Each pair has the name in the guest and the folder of a package.
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

/// Builds the conformance suite of the package in a folder, and returns the path of its program.
fn test_program(package: &str) -> Result<PathBuf, String> {
    let program = conformance_suites()?.into_iter().find(|(_, folder)| folder.ends_with(package));
    program.map(|(program, _)| program).ok_or_else(|| format!("{package} has no conformance suite"))
}
