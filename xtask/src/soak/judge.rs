//! Growth of the lasting processes, the verdict, and the files of a run.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::plot::{Line, Panel, svg};
use super::worker::{COUNTS, Sample, TABLES};

/// Minimum duration of a long run. The growth of memory is limited in percent for a long run, in KiB for a shorter run.
const LONG_MINUTES: f64 = 10.0;
/// Maximum growth of memory in a long run, in percent.
const MOST_PERCENT: f64 = 1.0;
/// Maximum growth of memory in a shorter run, in KiB. Memory still grows in such a run, because allocators fill up and
/// code pages are loaded.
const MOST_KIB: f64 = 2048.0;

/// Title of a panel of the plot, and the function that returns the plotted value of a sample.
type Quantity = (&'static str, fn(&Sample) -> u64);

/// A lasting process, with all its samples, and two samples without visitors: after the warm-up and at the end.
#[derive(Debug)]
pub(super) struct Lasting {
    pub(super) name: String,
    pub(super) samples: Vec<Sample>,
    pub(super) ends: (Sample, Sample),
}

/// Results of one link.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) link: &'static str,
    pub(super) verified: u64,
    pub(super) errors: u64,
    pub(super) finished: u64,
    pub(super) killed: u64,
    pub(super) pairs: u64,
    pub(super) processes: Vec<Lasting>,
    pub(super) failures: Vec<String>,
}

impl Outcome {
    pub(super) fn failed(why: &str) -> Self {
        Self { failures: vec![why.to_owned()], ..Self::default() }
    }
}

/// Returns the name, the old value and the new value of each number that has grown.
pub(super) fn grown(before: &Sample, after: &Sample) -> Vec<(&'static str, u64, u64)> {
    let pairs = before.returning().into_iter().zip(after.returning());
    pairs
        .map(|((name, before), (_, after))| (name, before, after))
        .filter(|(_, before, after)| after > before)
        .collect()
}

/// Returns the reasons why the run fails because of a process.
fn judge(process: &Lasting, minutes: f64) -> Vec<String> {
    let (before, after) = &process.ends;
    let mut failures: Vec<String> = grown(before, after)
        .iter()
        .map(|(name, before, after)| format!("{name} of {} grew from {before} to {after}", process.name))
        .collect();
    let (from, to) = (before.resident_kib as f64, after.resident_kib as f64);
    let most = if minutes >= LONG_MINUTES { from * MOST_PERCENT / 100.0 } else { MOST_KIB };
    if to - from > most {
        let name = &process.name;
        failures.push(format!("memory of {name} grew from {from} to {to} KiB, allowed are {most:.0} KiB"));
    }
    failures
}

/// All results of a run.
pub(super) struct Report {
    pub(super) minutes: f64,
    pub(super) seed: u64,
    pub(super) outcomes: Vec<Outcome>,
}

impl Report {
    pub(super) fn failures(&self) -> Vec<String> {
        let of = |outcome: &Outcome| {
            let grown = outcome.processes.iter().flat_map(|process| judge(process, self.minutes));
            let errors = (outcome.errors > 0).then(|| format!("{} errors", outcome.errors));
            let counts = [
                ("verified message", outcome.verified),
                ("visitor that finished", outcome.finished),
                ("visitor that was killed", outcome.killed),
                ("lasting process", outcome.processes.len() as u64),
            ];
            let is_missing = |(_, count): &(&str, u64)| *count == 0 && outcome.failures.is_empty();
            let missing = counts.into_iter().filter(is_missing).map(|(what, _)| format!("no {what}"));
            let found = grown.chain(errors).chain(missing).map(|why| format!("{}: {why}", outcome.link));
            let found: Vec<String> = found.collect();
            [&outcome.failures[..], &found].concat()
        };
        self.outcomes.iter().flat_map(of).collect()
    }

    pub(super) fn summary(&self) -> String {
        let sum = |count: fn(&Outcome) -> u64| self.outcomes.iter().map(count).sum::<u64>();
        let (verified, errors) = (sum(|outcome| outcome.verified), sum(|outcome| outcome.errors));
        let mut out = format!(
            "soak: {} minutes, seed {}, {verified} verified messages, {errors} errors, {} failures\n",
            self.minutes,
            self.seed,
            self.failures().len()
        );
        for outcome in &self.outcomes {
            let Outcome { link, verified, errors, finished, killed, pairs, .. } = outcome;
            // Writing to a string cannot fail.
            let _ = writeln!(
                out,
                "{link}: {verified} verified messages, {errors} errors, {finished} visitors finished, {killed} killed, \
                 {pairs} pairs of perftest"
            );
            for Lasting { name, ends: (before, after), .. } in &outcome.processes {
                let (from, to) = (before.resident_kib as f64, after.resident_kib as f64);
                let percent = (to - from) / from * 100.0;
                let _ = write!(out, "{link} {name}: resident KiB {from} to {to} ({percent:+.2} %)");
                for ((number, before), (_, after)) in before.returning().into_iter().zip(after.returning()) {
                    let _ = write!(out, ", {number} {before} to {after}");
                }
                out.push('\n');
            }
        }
        out
    }

    /// Returns all samples, one per line.
    fn csv(&self) -> String {
        let names = [&COUNTS[..], &TABLES].concat().join(",");
        let mut out = format!("second,link,process,resident_kib,descriptors,threads,{names}\n");
        for outcome in &self.outcomes {
            for (process, sample) in outcome.processes.iter().flat_map(|one| one.samples.iter().map(move |s| (one, s)))
            {
                let Sample { second, resident_kib, descriptors, threads, counts, tables } = sample;
                let values: Vec<_> = counts.iter().chain(tables).map(u64::to_string).collect();
                let (link, name, values) = (outcome.link, &process.name, values.join(","));
                let _ = writeln!(out, "{second:.1},{link},{name},{resident_kib},{descriptors},{threads},{values}");
            }
        }
        out
    }

    fn plot(&self) -> String {
        let quantities: [Quantity; 5] = [
            ("resident memory, KiB", |sample| sample.resident_kib),
            ("descriptors", |sample| sample.descriptors),
            ("threads", |sample| sample.threads),
            ("conversations", |sample| sample.tables[0]),
            ("verified messages", |sample| sample.counts[0]),
        ];
        let panels = quantities.map(|(title, value)| {
            let of = |outcome: &Outcome, process: &Lasting| Line {
                name: format!("{} {}", outcome.link, process.name),
                points: process.samples.iter().map(|sample| (sample.second, value(sample) as f64)).collect(),
            };
            let lines = self.outcomes.iter().flat_map(|one| one.processes.iter().map(move |process| of(one, process)));
            Panel { title, lines: lines.collect() }
        });
        svg(&panels)
    }

    pub(super) fn write(&self, folder: &Path) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        fs::create_dir_all(folder).map_err(failed)?;
        let failures: String = self.failures().iter().map(|why| format!("FAILED: {why}\n")).collect();
        fs::write(folder.join("summary.txt"), self.summary() + &failures).map_err(failed)?;
        fs::write(folder.join("samples.csv"), self.csv()).map_err(failed)?;
        fs::write(folder.join("plot.svg"), self.plot()).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(second: u64, resident_kib: u64, qps: u64) -> Sample {
        let mut tables = [0; TABLES.len()];
        tables[1] = qps;
        Sample { second: second as f64, resident_kib, descriptors: 20, threads: 4, counts: [0; COUNTS.len()], tables }
    }

    fn process(before: Sample, after: Sample) -> Lasting {
        let samples = (0..100).map(|second| sample(second, 100_000, 7)).collect();
        Lasting { name: "server".to_owned(), samples, ends: (before, after) }
    }

    #[test]
    fn memory_growth_fails_long_and_short_runs() {
        let grows_by = |kib: u64| process(sample(10, 100_000, 7), sample(99, 100_000 + kib, 7));
        assert_eq!(judge(&grows_by(1000), 60.0), [""; 0]);
        assert_eq!(judge(&grows_by(1001), 60.0).len(), 1);
        assert_eq!(judge(&grows_by(2048), 1.0), [""; 0]);
        assert_eq!(judge(&grows_by(2049), 1.0).len(), 1);
    }

    #[test]
    fn growing_tables_fail_a_run() {
        let leak = process(sample(10, 100_000, 7), sample(99, 100_000, 8));
        assert_eq!(judge(&leak, 1.0), ["qps of server grew from 7 to 8"]);
    }

    #[test]
    fn a_report_has_a_line_per_sample_and_plot_series() {
        let rest = process(sample(10, 100_000, 7), sample(99, 100_000, 7));
        let processes = vec![rest];
        let outcome =
            Outcome { link: "udp", processes, verified: 9, finished: 3, killed: 4, errors: 2, ..Outcome::default() };
        let report = Report { minutes: 1.0, seed: 5, outcomes: vec![outcome] };
        assert_eq!(report.csv().lines().count(), 101);
        assert_eq!(report.plot().matches("<polyline").count(), 5);
        assert!(report.summary().contains("seed 5, 9 verified messages, 2 errors, 1 failures"), "{}", report.summary());
        assert_eq!(report.failures(), ["udp: 2 errors"]);
    }

    #[test]
    fn a_run_without_traffic_fails() {
        let report = Report { minutes: 1.0, seed: 5, outcomes: vec![Outcome { link: "shm", ..Outcome::default() }] };
        let missing = ["verified message", "visitor that finished", "visitor that was killed", "lasting process"];
        assert_eq!(report.failures(), missing.map(|what| format!("shm: no {what}")));
    }
}
