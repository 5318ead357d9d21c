//! System calls and context switches of programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use nix::sys::resource::{UsageWho, getrusage};

use crate::instructions::Workload;
use crate::shell::{command, output_of};

/// System calls and context switches per message, of both ends.
#[derive(Debug)]
pub(super) struct PerMessage {
    /// System calls by name. The kernel's clock is not among them, since programs read it without a system call. A
    /// number is negative if the longer run made fewer calls, for example because its threads slept less often.
    pub(super) calls: BTreeMap<String, f64>,
    /// Switches because a thread waited.
    pub(super) voluntary_switches: f64,
    /// Switches because the kernel gave the processor to another thread.
    pub(super) involuntary_switches: f64,
}

impl PerMessage {
    /// Returns the number of all system calls.
    pub(super) fn system_calls(&self) -> f64 {
        self.calls.values().fold(0.0, |sum, calls| sum + calls)
    }

    /// Returns the system calls, the most frequent first.
    pub(super) fn by_frequency(&self) -> Vec<(&str, f64)> {
        let mut calls: Vec<(&str, f64)> = self.calls.iter().map(|(name, calls)| (&**name, *calls)).collect();
        calls.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        calls
    }
}

/// Runs the counting program with both lengths, under strace for the system calls and without it for the switches.
/// `summary` is the file of strace's summary.
pub(super) fn count(program: &Path, workload: &Workload, summary: &Path) -> Result<PerMessage, String> {
    let calls = |length| system_calls(program, workload.name, length, summary);
    between([workload.short, workload.long], calls, |length| {
        let mut run = command(program, &[workload.name, &length.to_string()]);
        run.env("DOORBELL_PUBLISH", "0");
        output_of(run).map(drop)
    })
}

/// Returns the costs per message of which a long run has more than a short one. `calls` counts the system calls of a
/// run with a number of messages, and `run` runs it undisturbed.
pub(super) fn between(
    [short, long]: [u64; 2],
    calls: impl Fn(u64) -> Result<BTreeMap<String, u64>, String>,
    run: impl Fn(u64) -> Result<(), String>,
) -> Result<PerMessage, String> {
    let messages = (long - short) as f64;
    let calls = differences(&calls(short)?, &calls(long)?, messages);
    let (short, long) = (switches(|| run(short))?, switches(|| run(long))?);
    let [voluntary_switches, involuntary_switches] = [0, 1].map(|kind| (long[kind] - short[kind]) as f64 / messages);
    Ok(PerMessage { calls, voluntary_switches, involuntary_switches })
}

/// Returns the calls per message by which the long run differs from the short run, without equal numbers. Negative
/// differences stay, because sums without them would be too large.
fn differences(short: &BTreeMap<String, u64>, long: &BTreeMap<String, u64>, messages: f64) -> BTreeMap<String, f64> {
    let names: BTreeSet<&String> = short.keys().chain(long.keys()).collect();
    let of = |run: &BTreeMap<String, u64>, name: &String| run.get(name).copied().unwrap_or_default() as f64;
    let differences = names.into_iter().map(|name| (name.clone(), (of(long, name) - of(short, name)) / messages));
    differences.filter(|(_, difference)| *difference != 0.0).collect()
}

/// Returns the number of system calls of a run, by name.
fn system_calls(program: &Path, workload: &str, length: u64, summary: &Path) -> Result<BTreeMap<String, u64>, String> {
    let mut strace = command("strace", &["-f", "-c", "-o"]);
    strace.arg(summary).arg(program).args([workload, &length.to_string()]).env("DOORBELL_PUBLISH", "0");
    output_of(strace)?;
    let text = fs::read_to_string(summary).map_err(|error| format!("{}: {error}", summary.display()))?;
    parse(&text).ok_or_else(|| format!("{}: strace wrote no summary of system calls:\n{text}", summary.display()))
}

/// Reads strace's summary: a table whose fourth column is the number of calls, and whose last is the name.
pub(super) fn parse(summary: &str) -> Option<BTreeMap<String, u64>> {
    let mut lines = summary.lines().skip_while(|line| !line.starts_with("% time")).skip(2);
    let mut calls = BTreeMap::new();
    loop {
        let line = lines.next()?;
        if line.starts_with("---") {
            return Some(calls);
        }
        let columns: Vec<&str> = line.split_whitespace().collect();
        calls.insert((*columns.last()?).to_owned(), columns.get(3)?.parse().ok()?);
    }
}

/// Returns the numbers of voluntary and involuntary context switches of the processes that `run` starts and waits for.
fn switches(run: impl FnOnce() -> Result<(), String>) -> Result<[i64; 2], String> {
    let now = || {
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN).map_err(|error| format!("getrusage failed: {error}"))?;
        Ok::<_, String>([usage.voluntary_context_switches(), usage.involuntary_context_switches()])
    };
    let before = now()?;
    run()?;
    let after = now()?;
    Ok([0, 1].map(|kind| after[kind] - before[kind]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUMMARY: &str = "\
strace: Process 7 attached
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ------------------
 71.43    0.000010           0      6400           sendmsg
 28.57    0.000004           0     12801      6401 recvmsg
------ ----------- ----------- --------- --------- ------------------
100.00    0.000014           0     19201      6401 total
";

    #[test]
    fn calls_are_read_with_and_without_errors() {
        let calls = [("sendmsg".to_owned(), 6400), ("recvmsg".to_owned(), 12_801)];
        assert_eq!(parse(SUMMARY), Some(BTreeMap::from(calls)));
    }

    #[test]
    fn differences_keep_their_sign() {
        let run = |calls: &[(&str, u64)]| calls.iter().map(|&(name, count)| (name.to_owned(), count)).collect();
        let short: BTreeMap<String, u64> = run(&[("futex", 50), ("mmap", 30), ("ppoll", 10), ("sendmsg", 100)]);
        let long = run(&[("mmap", 30), ("ppoll", 4), ("recvmsg", 8), ("sendmsg", 500)]);
        let differences = differences(&short, &long, 100.0);
        let expected = [("futex", -0.5), ("ppoll", -0.06), ("recvmsg", 0.08), ("sendmsg", 4.0)];
        assert_eq!(differences, BTreeMap::from(expected.map(|(name, calls)| (name.to_owned(), calls))));
    }

    #[test]
    fn costs_are_those_of_the_further_messages() {
        let undisturbed = std::cell::RefCell::new(Vec::new());
        let calls = |messages: u64| {
            let calls = [("openat".to_owned(), 30), ("write".to_owned(), 7 + 2 * messages)];
            Ok(BTreeMap::from(calls))
        };
        let run = |messages: u64| {
            undisturbed.borrow_mut().push(messages);
            Ok(())
        };
        let costs = between([10, 110], calls, run).unwrap();
        assert_eq!(costs.by_frequency(), [("write", 2.0)]);
        assert_eq!(costs.system_calls(), 2.0);
        assert_eq!(undisturbed.into_inner(), [10, 110]);
    }

    #[test]
    fn a_summary_without_a_table_is_refused() {
        for text in ["", "strace: attach: Operation not permitted\n", SUMMARY.split("28.57").next().unwrap()] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
