//! Judges whether both processes of a pair ended in a way that the disturbance allows.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::plan::{Disturbance, End, Plan, Programs};
use super::process::Process;
use super::{Pair, process};

/// Exit statuses of `xtask/programs/chaos.c`.
const FINISHED: i32 = 0;
const ENDED: i32 = 3;
const REFUSED: i32 = 4;
const LEFT: i32 = 7;

/// Exit status of a Rust program whose main thread has panicked.
const PANICKED: i32 = 101;

/// Time after which a foreign program whose peer has died gets SIGTERM. Verbs do not report a dead peer to a program
/// that only receives.
const PASSIVE: Duration = Duration::from_secs(5);

/// Waits until both processes have ended, and compares their exit statuses with the plan.
pub(super) fn judge(plan: &Plan, pair: &mut Pair, patience: Duration) -> Result<(), String> {
    let end = plan.kind.end;
    let disturbed = match end {
        // A server without descriptors cannot accept its client, and waits for the next one. A client waits for none.
        End::Ends if plan.disturbs_server => end_of(&mut pair.disturbed, patience)?,
        _ => pair.disturbed.wait(patience)?,
    };
    if !is_allowed(end, disturbed) {
        return Err(format!("the disturbed process ended with {disturbed}, allowed is {end:?}"));
    }
    if plan.kind.programs != Programs::Own {
        return judge_foreign(plan, pair, patience);
    }
    let other = pair.other.wait(patience)?;
    let is_killed = plan.kind.disturbance == Disturbance::KillBoth && is_allowed(End::Dies(Signal::SIGKILL), other);
    let allowed: &[i32] = if end == End::Finishes { &[FINISHED] } else { &[FINISHED, ENDED] };
    if is_killed || other.code().is_some_and(|code| allowed.contains(&code)) {
        return Ok(());
    }
    Err(format!("the other process ended with {other}, allowed are the statuses {allowed:?}"))
}

/// Checks the foreign program whose peer was disturbed. If the peer has died, the program must end with some error. A
/// program that only receives must end after SIGTERM. A client of `bench` has a TCP connection to its server, so it
/// must end by itself.
fn judge_foreign(plan: &Plan, pair: &mut Pair, patience: Duration) -> Result<(), String> {
    let end = plan.kind.end;
    let is_bench = matches!(plan.kind.programs, Programs::Bench | Programs::Soft);
    let status = match end {
        End::Finishes => pair.other.wait(patience)?,
        _ if is_bench && plan.disturbs_server => pair.other.wait(patience)?,
        _ => end_of(&mut pair.other, patience)?,
    };
    if end == End::Finishes && !status.success() {
        return Err(format!("the other process ended with {status}, although its peer was only stopped for a while"));
    }
    match process::crash(status) {
        Some(signal) => Err(format!("the other process crashed by {signal}")),
        None if status.code() == Some(PANICKED) => Err("the other process has panicked".to_owned()),
        None => Ok(()),
    }
}

/// Waits until a foreign program ends. Sends SIGTERM if it does not end by itself.
fn end_of(process: &mut Process, patience: Duration) -> Result<ExitStatus, String> {
    match process.wait_at_most(PASSIVE.min(patience)) {
        Some(status) => Ok(status),
        None => {
            process.signal(Signal::SIGTERM)?;
            process.wait(patience)
        }
    }
}

fn is_allowed(end: End, status: ExitStatus) -> bool {
    match end {
        End::Finishes => status.success(),
        End::Leaves => status.code() == Some(LEFT),
        End::Dies(signal) => status.signal() == Some(signal as i32) || matches!(status.code(), Some(FINISHED | ENDED)),
        End::Fails => status.code() == Some(ENDED),
        End::MayFail => matches!(status.code(), Some(FINISHED | ENDED | REFUSED)),
        End::Ends => match status.code() {
            Some(code) => code != PANICKED,
            None => status.signal() == Some(Signal::SIGTERM as i32),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;
    use crate::shell::command;

    /// Time after which a script counts as hanging. No script of these tests takes this long.
    const PATIENCE: Duration = Duration::from_secs(120);
    const SHORT: Duration = Duration::from_millis(50);

    /// Judges two scripts in place of the programs of a round. The plan is the first one for which `is_wanted` holds.
    fn judged(is_wanted: fn(&Plan) -> bool, scripts: [&str; 2], patience: Duration) -> Result<(), String> {
        let plan = (0..1000).map(Plan::new).find(is_wanted).expect("a seed below 1000 gives the wanted kind");
        let (process, thread) = (std::process::id(), std::thread::current().id());
        let folder = std::env::temp_dir().join(format!("chaos-judge-{process}-{thread:?}"));
        let started = |name, script: &str| {
            let run = command("sh", &["-c", script]);
            Process::start(name, run, "sh", &folder.join(name), Stdio::null()).unwrap()
        };
        let mut pair = Pair { disturbed: started("disturbed", scripts[0]), other: started("other", scripts[1]) };
        let judged = judge(&plan, &mut pair, patience);
        drop(pair);
        let _ = std::fs::remove_dir_all(&folder);
        judged
    }

    fn own_with_end(end: End) -> impl Fn(&Plan) -> bool {
        move |plan| plan.kind.programs == Programs::Own && plan.kind.end == end
    }

    /// Checks that `judge` reports the defect in the scripts `planted` with the text `words`. Also checks that the
    /// scripts `right` pass, which have no defect.
    #[track_caller]
    fn reported(is_wanted: fn(&Plan) -> bool, right: [&str; 2], planted: [&str; 2], words: &str) {
        assert_eq!(judged(is_wanted, right, PATIENCE), Ok(()));
        let patience = if planted.contains(&HANGS) { SHORT } else { PATIENCE };
        let why = judged(is_wanted, planted, patience).expect_err("the defect is not reported");
        assert!(why.contains(words), "{why}");
    }

    const HANGS: &str = "exec sleep 1000";

    #[test]
    fn a_process_that_hangs_is_reported() {
        let finishes = |plan: &Plan| own_with_end(End::Finishes)(plan);
        let right = ["exit 0", "exit 0"];
        reported(finishes, right, [HANGS, "exit 0"], "the disturbed does not end within");
        reported(finishes, right, ["sleep 0", HANGS], "does not end within");
    }

    #[test]
    fn lost_and_unexpected_errors_are_reported() {
        let fails = |plan: &Plan| own_with_end(End::Fails)(plan);
        reported(fails, ["exit 3", "exit 3"], ["exit 0", "exit 3"], "exit status: 0, allowed is Fails");
        let finishes = |plan: &Plan| own_with_end(End::Finishes)(plan);
        let right = ["exit 0", "exit 0"];
        reported(finishes, right, ["exit 3", "exit 0"], "exit status: 3, allowed is Finishes");
        reported(finishes, right, ["exit 0", "exit 3"], "the other process ended with exit status: 3");
        let leaves = |plan: &Plan| own_with_end(End::Leaves)(plan);
        reported(leaves, ["exit 7", "exit 3"], ["exit 0", "exit 3"], "exit status: 0, allowed is Leaves");
    }

    #[test]
    fn wrong_data_are_reported_under_each_disturbance() {
        let right = ["exit 4", "exit 3"];
        let may_fail = |plan: &Plan| own_with_end(End::MayFail)(plan);
        reported(may_fail, right, ["exit 1", "exit 3"], "exit status: 1, allowed is MayFail");
        reported(may_fail, right, ["exit 4", "exit 1"], "the other process ended with exit status: 1");
        let killed = |plan: &Plan| own_with_end(End::Dies(Signal::SIGKILL))(plan);
        reported(killed, ["kill -9 $$", "exit 3"], ["exit 1", "exit 3"], "exit status: 1, allowed is Dies(SIGKILL)");
    }

    #[test]
    fn a_crash_is_reported() {
        let finishes = |plan: &Plan| own_with_end(End::Finishes)(plan);
        let right = ["exit 0", "exit 0"];
        reported(finishes, right, ["kill -SEGV $$", "exit 0"], "signal: 11 (SIGSEGV)");
        let foreign = |plan: &Plan| plan.kind.programs == Programs::Rping;
        reported(foreign, ["kill -9 $$", "exit 1"], ["kill -9 $$", "kill -SEGV $$"], "crashed by SIGSEGV");
        let paused =
            |plan: &Plan| plan.kind.programs == Programs::Perftest && plan.kind.disturbance == Disturbance::Pause;
        reported(paused, right, ["exit 0", "exit 1"], "although its peer was only stopped for a while");
    }

    #[test]
    fn a_panic_is_reported_under_each_disturbance() {
        let ends = |plan: &Plan| plan.kind.end == End::Ends;
        let right = ["exit 1", "exit 1"];
        reported(ends, right, ["exit 101", "exit 1"], "exit status: 101, allowed is Ends");
        reported(ends, right, ["kill -SEGV $$", "exit 1"], "signal: 11 (SIGSEGV)");
        reported(ends, right, ["exit 1", "exit 101"], "the other process has panicked");
    }

    #[test]
    fn a_server_that_waits_for_a_further_client_is_asked_to_end() {
        let server_ends = |plan: &Plan| plan.kind.end == End::Ends && plan.disturbs_server;
        assert_eq!(judged(server_ends, [HANGS, "exit 1"], PATIENCE), Ok(()));
    }

    #[test]
    fn a_client_of_bench_that_outlives_its_server_is_reported() {
        let server_dies = |plan: &Plan| {
            plan.kind.programs == Programs::Soft && plan.disturbs_server && plan.kind.end == End::Dies(Signal::SIGKILL)
        };
        // On a busy machine, the killed script takes longer than the short patience too.
        reported(server_dies, ["kill -9 $$", "exit 1"], ["kill -9 $$", HANGS], "does not end within");
    }

    #[test]
    fn a_client_that_hangs_without_descriptors_is_reported() {
        let client_ends = |plan: &Plan| plan.kind.end == End::Ends && !plan.disturbs_server;
        reported(client_ends, ["exit 1", "exit 1"], [HANGS, "exit 1"], "the disturbed does not end within");
    }
}
