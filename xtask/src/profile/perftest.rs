//! `cargo xtask profile --perftest`: system calls and context switches of `ib_send_lat`, which calls the C interface.
//! Its two ends are processes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::kernel::{self, PerMessage};
use super::rounded;
use crate::{peers, place, programs};

/// Lines of perftest that are measured: one polls, the other waits for notifications.
const LINES: [&str; 2] = ["ib_send_lat -s 16", "ib_send_lat -s 16 -e"];

/// Links over which each line is measured, as `doorbell run --link` takes them.
const LINKS: [&str; 2] = ["shm", "udp"];

/// Numbers of round trips of the short and the long run.
const ROUND_TRIPS: [u64; 2] = [1000, 11_000];

/// Number of system calls that the table names in each line.
const NAMED: usize = 8;

/// Costs of a round trip of a line over a link.
struct Measured {
    line: &'static str,
    link: &'static str,
    costs: PerMessage,
}

/// Measures all lines over all links, prints a table in Markdown, and writes it to the folder `out` with the figures.
pub(super) fn run(out: Option<&Path>) -> Result<(), String> {
    peers::install_for_profiles_of_perftest()?;
    let _alone = place::measuring()?;
    programs::build()?;
    let mut all = Vec::new();
    for line in LINES {
        for link in LINKS {
            eprintln!("{line}, {link}");
            all.push(Measured::take(line, link)?);
        }
    }
    let text = table(&all);
    print!("{text}");
    let Some(out) = out else { return Ok(()) };
    let workloads: Vec<Value> = all.iter().map(Measured::json).collect();
    let figures = json!({ "schema": "doorbell-perftest-calls/1", "round_trips": ROUND_TRIPS, "workloads": workloads });
    for (file, text) in [("perftest.md", text), ("perftest.json", format!("{figures:#}\n"))] {
        let path = out.join(file);
        fs::create_dir_all(out)
            .and_then(|()| fs::write(&path, text))
            .map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

impl Measured {
    fn take(line: &'static str, link: &'static str) -> Result<Self, String> {
        let run = |prefix: &str, round_trips: u64| {
            let line = format!("{prefix}{line} -n {round_trips}");
            programs::outputs_of_pair(&programs::doorbell(), &line, &["--link", link])
        };
        let calls = |round_trips| sum(&run("strace -f -c ", round_trips)?);
        let costs = kernel::between(ROUND_TRIPS, calls, |round_trips| run("", round_trips).map(drop))?;
        Ok(Self { line, link, costs })
    }

    fn json(&self) -> Value {
        let PerMessage { calls, voluntary_switches, involuntary_switches } = &self.costs;
        json!({
            "name": self.line,
            "link": self.link,
            "system_calls": calls,
            "voluntary_switches": voluntary_switches,
            "involuntary_switches": involuntary_switches,
        })
    }
}

/// Returns the number of system calls by name in strace's summaries, which are in the outputs of both ends.
fn sum(outputs: &[String; 2]) -> Result<BTreeMap<String, u64>, String> {
    let mut calls = BTreeMap::new();
    for output in outputs {
        let of_end = kernel::parse(output);
        let of_end = of_end.ok_or_else(|| format!("strace wrote no summary of system calls:\n{output}"))?;
        for (name, count) in of_end {
            *calls.entry(name).or_default() += count;
        }
    }
    Ok(calls)
}

/// Returns a table with a line for each measured program, in units per round trip of both ends together.
fn table(all: &[Measured]) -> String {
    let mut text =
        "| program | link | system calls | switches | most frequent calls |\n|---|---|---|---|---|\n".to_owned();
    for Measured { line, link, costs } in all {
        let named = costs.by_frequency().into_iter().take(NAMED);
        let named: Vec<String> = named.map(|(name, calls)| format!("`{name}` {}", rounded(calls, 2))).collect();
        let (calls, switches) = (rounded(costs.system_calls(), 2), rounded(costs.voluntary_switches, 2));
        let _ = writeln!(text, "| `{line}` | {link} | {calls} | {switches} | {} |", named.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(calls: &[(&str, u64)]) -> String {
        let mut text =
            "perftest's own output\n% time     seconds  usecs/call     calls    errors syscall\n------\n".to_owned();
        for (name, count) in calls {
            let _ = writeln!(text, "  1.00    0.000001           0 {count}           {name}");
        }
        text.push_str("------\n100.00    0.000014           0         1           total\n");
        text
    }

    #[test]
    fn calls_of_both_ends_are_added() {
        let ends = [output(&[("futex", 3), ("sendmsg", 5)]), output(&[("futex", 4)])];
        let expected = [("futex".to_owned(), 7), ("sendmsg".to_owned(), 5)];
        assert_eq!(sum(&ends), Ok(BTreeMap::from(expected)));
        let without = [ends[0].clone(), "strace: not permitted\n".to_owned()];
        assert!(sum(&without).unwrap_err().contains("strace: not permitted"));
    }

    #[test]
    fn a_line_names_the_most_frequent_calls() {
        let calls = [("fcntl", 2.0), ("futex_waitv", 0.5), ("mmap", -0.001), ("sched_yield", 12.0)];
        let calls = calls.map(|(name, calls)| (name.to_owned(), calls)).into();
        let costs = PerMessage { calls, voluntary_switches: 2.0, involuntary_switches: 0.0 };
        let text = table(&[Measured { line: LINES[1], link: "shm", costs }]);
        let named = "`sched_yield` 12.00, `fcntl` 2.00, `futex_waitv` 0.50, `mmap` 0.00";
        let expected = format!("| `ib_send_lat -s 16 -e` | shm | 14.50 | 2.00 | {named} |");
        assert_eq!(text.lines().next_back(), Some(&*expected));
    }
}
