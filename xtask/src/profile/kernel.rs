//! System calls and context switches of the counting program.

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

/// Runs the counting program with both lengths, under strace for the system calls and without it for the switches.
/// `summary` is the file of strace's summary.
pub(super) fn count(program: &Path, workload: &Workload, summary: &Path) -> Result<PerMessage, String> {
    let messages = workload.messages();
    let calls = |length| system_calls(program, workload.name, length, summary);
    let (short, long) = (calls(workload.short)?, calls(workload.long)?);
    let calls = differences(&short, &long, messages);
    let (short, long) =
        (switches(program, workload.name, workload.short)?, switches(program, workload.name, workload.long)?);
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
fn parse(summary: &str) -> Option<BTreeMap<String, u64>> {
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

/// Returns the numbers of voluntary and involuntary context switches of a run.
fn switches(program: &Path, workload: &str, length: u64) -> Result<[i64; 2], String> {
    let now = || {
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN).map_err(|error| format!("getrusage failed: {error}"))?;
        Ok::<_, String>([usage.voluntary_context_switches(), usage.involuntary_context_switches()])
    };
    let before = now()?;
    let mut run = command(program, &[workload, &length.to_string()]);
    run.env("DOORBELL_PUBLISH", "0");
    output_of(run)?;
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
    fn a_summary_without_a_table_is_refused() {
        for text in ["", "strace: attach: Operation not permitted\n", SUMMARY.split("28.57").next().unwrap()] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
