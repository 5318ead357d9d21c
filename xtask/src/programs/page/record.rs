//! `cargo xtask compare --programs`: figures of the page, on Doorbell and over TCP, for each round.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{Row, Unit, page, read_text, rows, text, write_text};
use crate::figures::{Ratio, spread};
use crate::programs::compare::{cpus, kernel, load, revision};
use crate::programs::{build, transfers};
use crate::shell::{command, output_of, root};
use crate::{peers, place};

const SCHEMA: &str = "doorbell-programs/2";

/// Packages of Debian with the libraries of the rows that run programs of this repository.
const LIBRARIES: [&str; 3] = ["libgloo0", "librpma0", "mpich"];

/// Schema of records whose rates of fio include the sleep of its client.
const SCHEMA_WITH_SLEEP: &str = "doorbell-programs/1";

/// Measures all rows, writes each figure of each round to `out`, and updates the page.
pub(crate) fn measure(rounds: u32, out: Option<&Path>) -> Result<(), String> {
    let date = output_of(command("date", &["+%F"]))?.trim().to_owned();
    let out = match out {
        Some(path) => std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))?,
        None => root().join("benchmarks").join(&date).join("programs.json"),
    };
    // The page names the record by its path from the root.
    let named = out.strip_prefix(root()).map_err(|_| {
        format!("--out {}: must be below {}, because the page names the file", out.display(), root().display())
    })?;
    // Report it before the measurement, which takes minutes.
    if out.is_dir() {
        let file = out.join("programs.json");
        return Err(format!("--out {}: is a directory, must be a file, such as {}", out.display(), file.display()));
    }
    peers::install_for_page()?;
    peers::install_for_transfers()?;
    transfers::python().map_err(|why| format!("packages of PyPI cannot be installed: {why}"))?;
    build()?;
    let _alone = place::measuring()?;
    let (load_before, revision) = (load(), revision());
    let mut measured: Vec<Measured> = rows().map(Measured::new).collect();
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}");
        measured.iter_mut().try_for_each(|measured| measured.add_round(round))?;
    }
    let record = json!({
        "schema": SCHEMA,
        "date": date,
        "revision": revision,
        "kernel": kernel(),
        "cpus": cpus(),
        "load_before": load_before,
        "load_after": load(),
        "versions": versions(),
        "wheels": transfers::wheels().collect::<Vec<_>>(),
        "rounds": rounds,
        "rows": measured.iter().flat_map(Measured::records).collect::<Vec<_>>(),
    });
    write_text(&out, &format!("{record:#}\n"))?;
    text::write_from(&page(), Some(named))
}

/// Figures of a row from all rounds so far.
struct Measured {
    row: &'static Row,
    /// For each figure of the row: values on Doorbell, and values over TCP.
    figures: Vec<[Vec<f64>; 2]>,
}

impl Measured {
    fn new(row: &'static Row) -> Self {
        Self { row, figures: row.figures.iter().map(|_| Default::default()).collect() }
    }

    /// Measures the row. Even rounds run TCP first, since a run may affect the next.
    fn add_round(&mut self, round: u32) -> Result<(), String> {
        let row = self.row;
        if row.figures.is_empty() {
            return Ok(());
        }
        let at_fault = |why| format!("{}, {}: {why}", row.program, row.what);
        let ours = || row.run(&row.ours, false).map_err(at_fault);
        let tcp = || row.tcp.as_ref().map(|commands| row.run(commands, false)).transpose().map_err(at_fault);
        let (ours, tcp) = if round.is_multiple_of(2) {
            let tcp = tcp()?;
            (ours()?, tcp)
        } else {
            (ours()?, tcp()?)
        };
        for (figure, [own, beside]) in row.figures.iter().zip(&mut self.figures) {
            own.push(figure.read(figure.read, &ours).map_err(at_fault)?);
            // A row without separate commands over TCP is qperf's, which measures TCP in the same run.
            if let Some(read) = figure.tcp {
                beside.push(figure.read(read, tcp.as_ref().unwrap_or(&ours)).map_err(at_fault)?);
            }
        }
        Ok(())
    }

    fn records(&self) -> impl Iterator<Item = Value> {
        self.row.figures.iter().zip(&self.figures).map(|(figure, [own, beside])| {
            json!({
                "program": self.row.program, "what": self.row.what, "of": figure.of, "unit": figure.unit.name(),
                "ours": own, "tcp": beside,
            })
        })
    }
}

/// Returns the installed versions of Debian's packages.
fn versions() -> Value {
    let version = |package: &str| {
        let query = command("dpkg-query", &["--show", "--showformat", "${Version}", package]);
        output_of(query).map_or(Value::Null, |text| text.trim().into())
    };
    let packages = peers::FOR_PAGE.iter().map(|&(package, _)| package).chain(LIBRARIES);
    packages.map(|package| (package.to_owned(), version(package))).collect()
}

/// A stored record of figures.
pub(super) struct Record {
    pub(super) path: PathBuf,
    value: Value,
}

/// Medians of one figure.
#[derive(Debug, PartialEq)]
pub(super) struct Medians {
    pub(super) ours: f64,
    pub(super) tcp: Option<f64>,
    /// Ratios of all rounds.
    pub(super) ratio: Option<Ratio>,
}

impl Record {
    /// Reads a record. `path` is relative to the root of the repository.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let text = read_text(&root().join(path))?;
        let value: Value = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        if value["schema"] != SCHEMA && value["schema"] != SCHEMA_WITH_SLEEP {
            let found = &value["schema"];
            return Err(format!("{}: the schema is {found}, must be {SCHEMA} or {SCHEMA_WITH_SLEEP}", path.display()));
        }
        Ok(Self { path: path.to_owned(), value })
    }

    /// Returns the words that state whether rates of fio exclude or include the sleep of its client.
    pub(super) fn sleep_of_fio(&self) -> &'static str {
        if self.value["schema"] == SCHEMA { "exclude" } else { "include" }
    }

    pub(super) fn text(&self, key: &str) -> String {
        match &self.value[key] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        }
    }

    /// Returns the medians of a figure, if it was measured.
    pub(super) fn medians(&self, row: &Row, of: &str, unit: Unit) -> Option<Medians> {
        let found = self.value["rows"].as_array()?.iter().find(|found| {
            found["program"] == row.program
                && found["what"] == row.what
                && found["of"] == of
                && found["unit"] == unit.name()
        })?;
        let figures =
            |key: &str| -> Vec<f64> { found[key].as_array().into_iter().flatten().filter_map(Value::as_f64).collect() };
        let (ours, tcp) = (figures("ours"), figures("tcp"));
        let median = |figures: Vec<f64>| spread(figures).map(|(median, ..)| median);
        Some(Medians { ratio: Ratio::of(&ours, &tcp), ours: median(ours)?, tcp: median(tcp) })
    }

    /// Returns the versions of the packages, each as code.
    pub(super) fn versions(&self) -> String {
        let versions = self.value["versions"].as_object();
        let known = versions.into_iter().flatten().filter_map(|(name, version)| Some((name, version.as_str()?)));
        known.map(|(name, version)| format!("`{name} {version}`")).collect::<Vec<_>>().join(", ")
    }

    /// Returns a part of a sentence with the measured revision. Records without it are older than the lengths of the
    /// rows' runs.
    pub(super) fn revision(&self) -> String {
        let without = || ", with other lengths of runs than those below".to_owned();
        self.value["revision"].as_str().map_or_else(without, |revision| format!(" at `{revision}`"))
    }

    /// Returns the end of a sentence, and a sentence with the packages of PyPI, if the record has them.
    pub(super) fn wheels(&self) -> String {
        let names = self.value["wheels"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
        if names.is_empty() { String::new() } else { format!(". Those of PyPI are {}", names.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_medians_over_the_rounds() {
        let row = rows().find(|row| row.figures.iter().any(|figure| figure.tcp.is_some())).unwrap();
        let figure = row.figures.iter().find(|figure| figure.tcp.is_some()).unwrap();
        let value = json!({"rows": [{
            "program": row.program, "what": row.what, "of": figure.of, "unit": figure.unit.name(),
            "ours": [6.0, 8.0, 1.0], "tcp": [2.0, 4.0, 1.0],
        }]});
        let record = Record { path: PathBuf::new(), value };
        let medians = record.medians(row, figure.of, figure.unit);
        // The ratios of the three rounds are 3, 2 and 1.
        let ratio = Ratio { median: 2.0, interval: None };
        assert_eq!(medians, Some(Medians { ours: 6.0, tcp: Some(2.0), ratio: Some(ratio) }));
        assert_eq!(record.medians(row, "something else", figure.unit), None);
    }

    #[test]
    fn a_record_names_its_revision_or_other_runs_and_its_packages_of_pypi() {
        let record = |value| Record { path: PathBuf::new(), value };
        assert_eq!(record(json!({})).wheels(), "");
        assert_eq!(record(json!({})).revision(), ", with other lengths of runs than those below");
        assert_eq!(record(json!({"revision": "0123456789ab-dirty"})).revision(), " at `0123456789ab-dirty`");
        let both = json!({"wheels": ["ibverbs 1.2", "numpy 3.4"]});
        assert_eq!(record(both).wheels(), ". Those of PyPI are `ibverbs 1.2`, `numpy 3.4`");
    }
}
