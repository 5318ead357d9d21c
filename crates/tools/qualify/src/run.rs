//! The parts of a qualification, as processes of the command, and the archive of their results.

mod captures;

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use doorbell_machine::Root;
use doorbell_output::files;
use serde_json::Value;

use crate::archive::tar;
use crate::report::{CaseResult, Deviation, DeviceFacts, Outcome, Part, PartResult, Qualification, SCHEMA, State};
use crate::scrub::Scrubber;
use crate::suites::{Supervisor, cases};

/// Folder of all files in the archive.
const FOLDER: &str = "doorbell-qualification";

/// Minimum time between two archives during a part.
const WRITE_EVERY: Duration = Duration::from_secs(5);

/// Maximum time of a case. The longest wait of a case takes two minutes.
const PATIENCE: Duration = Duration::from_secs(300);

/// Settings of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Path of the command `doorbell`.
    pub program: PathBuf,
    /// Arguments with which commands choose the device.
    pub device_arguments: Vec<String>,
    /// The device.
    pub device: DeviceFacts,
    /// Other machine, on which `doorbell study --listen` runs, as HOST or HOST:PORT.
    pub host: Option<String>,
    /// Parts to carry out.
    pub parts: Vec<Part>,
    /// Text that the names of the cases to run contain. The empty text is in all names.
    pub cases: String,
    /// Experiments of the study. Without any, the study has its default.
    pub experiments: Vec<String>,
    /// Archive to write.
    pub archive: PathBuf,
}

/// Reason why a part has no complete result, as a sentence without a full stop.
#[derive(Debug)]
enum Stop {
    Failed(String),
    LeftOut(String),
}

impl From<String> for Stop {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

/// Summary of a part, or the reason why it has no complete result.
type Ended = Result<String, Stop>;

/// A qualification that runs.
pub struct Run<'a> {
    plan: &'a Plan,
    /// Directory of files that still have addresses and names. Only this user can access it.
    work: PathBuf,
    result: Qualification,
    scrubber: Scrubber,
    /// Results of parts by their names in the archive, before addresses and names are removed.
    documents: BTreeMap<String, Value>,
    written: Option<Instant>,
    note: &'a dyn Fn(&str),
}

impl std::fmt::Debug for Run<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run").field("plan", &self.plan).field("work", &self.work).finish_non_exhaustive()
    }
}

impl<'a> Run<'a> {
    /// Creates the working directory, and writes an archive without results, so that a path that cannot be written is
    /// an error now. `note` prints a line of progress.
    ///
    /// # Errors
    ///
    /// The directory or the archive cannot be written. The error is a sentence.
    pub fn new(plan: &'a Plan, root: &Root, note: &'a dyn Fn(&str)) -> Result<Self, String> {
        let mut scrubber = Scrubber::of_machine(root);
        if let Some(host) = &plan.host {
            let name = host.rsplit_once(':').map_or(host.as_str(), |(name, _)| name);
            scrubber.host(name);
        }
        let part = |part: Part| {
            let (state, what) = match plan.parts.contains(&part) {
                true => (State::NotFinished, "the run ended before or during this part"),
                false => (State::LeftOut, "this part was not asked for"),
            };
            PartResult { part, state, what: what.to_owned() }
        };
        let result = Qualification {
            schema: SCHEMA,
            doorbell: env!("CARGO_PKG_VERSION"),
            kernel: root.text("proc/sys/kernel/osrelease").unwrap_or_default(),
            cpu: root.cpu_field("model name").unwrap_or_else(|| "unknown".to_owned()),
            device: plan.device.clone(),
            parts: Part::ALL.map(part).into(),
            deviations: Vec::new(),
            cases: Vec::new(),
        };
        let work = working_directory()?;
        scrubber.path(&work.to_string_lossy());
        scrubber.path(&plan.program.parent().unwrap_or(Path::new("/")).to_string_lossy());
        let documents = BTreeMap::new();
        let mut run = Self { plan, work, result, scrubber, documents, written: None, note };
        run.write()?;
        Ok(run)
    }

    /// Carries out the parts of the plan, and writes the archive after each step. Returns the results, from which
    /// addresses and names are removed, and the page of these results in Markdown.
    ///
    /// # Errors
    ///
    /// The archive cannot be written. The error is a sentence. A part that fails is a result.
    pub fn carry_out(mut self) -> Result<(Value, String, bool), String> {
        let plan = self.plan;
        for part in Part::ALL.into_iter().filter(|part| plan.parts.contains(part)) {
            let ended = match part {
                Part::Doctor => self.doctor(),
                Part::Verbs => self.suite("verbs/"),
                Part::Exchange => self.suite("exchange/"),
                Part::Study => self.study(),
                Part::Captures => captures::judge(&mut self),
            };
            let (state, what) = match ended {
                Ok(what) => (State::Done, what),
                Err(Stop::Failed(why)) => (State::Failed, why),
                Err(Stop::LeftOut(why)) => (State::LeftOut, why),
            };
            (self.note)(&format!("{}: {what}", part.name()));
            if let Some(result) = self.result.parts.iter_mut().find(|result| result.part == part) {
                *result = PartResult { part, state, what };
            }
            self.write()?;
        }
        let page = self.scrubber.text(&self.result.page());
        Ok((self.scrubbed_result()?, page, self.result.has_failed()))
    }

    /// Returns a command with the arguments that choose the device. Its input is empty.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.plan.program);
        command.args(words).args(&self.plan.device_arguments).stdin(Stdio::null());
        command
    }

    /// Prints a line of progress.
    fn note(&self, line: &str) {
        (self.note)(line);
    }

    /// Adds a document to the archive.
    fn keep(&mut self, name: &str, document: Value) {
        self.documents.insert(name.to_owned(), document);
    }

    /// Adds a deviation.
    fn deviates(&mut self, deviation: Deviation) {
        self.result.deviations.push(deviation);
    }

    fn doctor(&mut self) -> Ended {
        let mut command = self.command(&["doctor", "--json"]);
        command.args(&self.plan.host).stderr(Stdio::inherit());
        let output = command.output().map_err(|error| format!("the doctor could not be started: {error}"))?;
        let document: Value = serde_json::from_slice(&output.stdout)
            .map_err(|_| format!("the doctor ended without a result ({})", output.status))?;
        let worst = |machine: &Value| machine["worst"].as_str().unwrap_or("unknown").to_owned();
        let machines = document["machines"].as_array().map(Vec::as_slice).unwrap_or_default();
        let worst: Vec<String> = machines.iter().map(worst).collect();
        self.keep("doctor.json", document);
        Ok(format!("worst finding of each machine: {}", worst.join(", ")))
    }

    /// Runs the cases of a suite.
    fn suite(&mut self, suite: &str) -> Ended {
        let plan = self.plan;
        let chosen: Vec<_> = cases()
            .into_iter()
            .filter(|case| case.name.starts_with(suite) && case.name.contains(&plan.cases))
            .collect();
        if chosen.is_empty() {
            return Err(Stop::LeftOut(format!("no case of this suite has {} in its name", plan.cases)));
        }
        let rules: BTreeMap<&str, &str> = chosen.iter().map(|case| (case.name.as_str(), case.rule)).collect();
        let names: Vec<String> = chosen.iter().map(|case| case.name.clone()).collect();
        let supervisor = Supervisor { program: &plan.program, device: &plan.device_arguments, patience: PATIENCE };
        let (mut passed, mut departures, mut unwritten) = (0, 0, None);
        supervisor.run(names, |result: CaseResult| {
            passed += usize::from(result.outcome == Outcome::Passed);
            departures += result.departures.len();
            if let Outcome::Failed(why) | Outcome::Hung(why) | Outcome::Died(why) = &result.outcome {
                self.note(&format!("{}: {why}", result.name));
            }
            let rule = rules.get(result.name.as_str()).copied().unwrap_or_default();
            self.result.deviations.extend(Deviation::of_case(&result, rule));
            self.result.cases.push(result);
            unwritten = unwritten.take().or(self.write_sometimes().err());
        })?;
        unwritten.map_or(Ok(()), Err)?;
        Ok(format!("{passed} of {} cases passed, with {departures} known departures", chosen.len()))
    }

    fn study(&mut self) -> Ended {
        let records = self.work.join("study");
        let plan = self.plan;
        self.measure(&records, &plan.experiments)?;
        let count = self.records().len();
        Ok(format!("{count} records"))
    }

    /// Runs a study that writes its records to a directory.
    fn measure(&mut self, records: &Path, experiments: &[String]) -> Result<(), String> {
        let mut command = self.command(&["study"]);
        command.arg("--out").arg(records).args(experiments).args(&self.plan.host);
        // The study ends if the reader of its output has gone, so it does not outlive this process. It writes too
        // little to fill the pipe.
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("the study could not be started: {error}"))?;
        let lines = child.stderr.take().map(|stderr| BufReader::new(stderr).lines());
        let mut last = String::new();
        for line in lines.into_iter().flatten().map_while(Result::ok) {
            self.note(&line);
            self.write_sometimes()?;
            last = line;
        }
        let status = child.wait().map_err(|error| format!("the study cannot be waited for: {error}"))?;
        if status.success() { Ok(()) } else { Err(format!("the study ended with {status}: {last}")) }
    }

    /// Returns the records of the study that exist now, by their names.
    fn records(&self) -> BTreeMap<String, Value> {
        let entries = fs::read_dir(self.work.join("study")).into_iter().flatten().flatten();
        let record = |entry: fs::DirEntry| {
            let name = entry.file_name().into_string().ok().filter(|name| name.ends_with(".json"))?;
            let text = fs::read_to_string(entry.path()).ok()?;
            Some((format!("study/{name}"), serde_json::from_str(&text).ok()?))
        };
        entries.filter_map(record).collect()
    }

    /// Writes the archive, unless it was written a short time ago.
    fn write_sometimes(&mut self) -> Result<(), String> {
        if self.written.is_some_and(|written| written.elapsed() < WRITE_EVERY) { Ok(()) } else { self.write() }
    }

    fn scrubbed_result(&mut self) -> Result<Value, String> {
        let result =
            serde_json::to_value(&self.result).map_err(|error| format!("the results have no JSON: {error}"))?;
        Ok(self.scrubber.json(&result))
    }

    /// Writes the archive with all results until now.
    fn write(&mut self) -> Result<(), String> {
        let mut documents = self.records();
        documents.extend(self.documents.clone());
        // A name is removed from all documents, also from those before the one that states it.
        documents.values().for_each(|document| self.scrubber.learn(document));
        let result = self.scrubbed_result()?;
        let mut entries: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        let mut add = |name: &str, text: String| entries.insert(format!("{FOLDER}/{name}"), text.into_bytes());
        for (name, document) in &documents {
            add(&self.scrubber.text(name), format!("{}\n", self.scrubber.json(document)));
        }
        add("qualification.json", format!("{result:#}\n"));
        add("deviations.md", self.scrubber.text(&self.result.page()));
        let archive = &self.plan.archive;
        files::replace(archive, &tar(&entries)?)
            .map_err(|error| format!("{} cannot be written: {error}; choose another --out", archive.display()))?;
        self.written = Some(Instant::now());
        Ok(())
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        // The files have addresses and names. If the removal fails, only this user can read them.
        let _ = fs::remove_dir_all(&self.work);
    }
}

/// Creates a directory for files that only this user may read.
fn working_directory() -> Result<PathBuf, String> {
    let cannot = |error: std::io::Error| format!("no working directory can be created: {error}; set TMPDIR");
    let path = std::env::temp_dir().join(format!("doorbell-qualify-{}", files::random_name().map_err(cannot)?));
    DirBuilder::new().mode(0o700).create(&path).map_err(cannot)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::os::unix::fs::PermissionsExt;

    use doorbell_sync::IgnorePoison;

    use super::*;

    fn plan(folder: &Path, parts: &[Part]) -> Plan {
        Plan {
            program: folder.join("doorbell"),
            device_arguments: vec!["-d".to_owned(), "rxe0".to_owned()],
            device: DeviceFacts {
                name: "rxe0".to_owned(),
                provider: "system".to_owned(),
                active_mtu: 1024,
                adapter: None,
            },
            host: Some("storage-7.example.org:18515".to_owned()),
            parts: parts.to_vec(),
            cases: String::new(),
            experiments: Vec::new(),
            archive: folder.join("out.tar"),
        }
    }

    /// A script in place of the command: the doctor finds a host, and the study writes a record and fails.
    const SCRIPT: &str = r#"#!/bin/sh
case $1 in
    doctor) echo '{"machines": [{"worst": "note", "environment": {"machine": {"host": "Storage-7"}, "at": "192.0.2.9"}}]}' ;;
    study)
        while [ "$1" != --out ]; do shift; done
        mkdir -p "$2"
        echo '{"environment": {"machine": {"host": "other-1"}}, "text": "from other-1 at 192.0.2.9"}' > "$2/a.json"
        echo "study of a: 1 of 2" >&2
        echo "doorbell: the peer has gone" >&2
        exit 1 ;;
esac
"#;

    #[test]
    fn results_of_parts_are_in_the_archive_without_names() {
        let _one_at_a_time = crate::SCRIPTS.lock().ignore_poison();
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("doorbell");
        fs::write(&program, SCRIPT).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let plan = plan(folder.path(), &[Part::Doctor, Part::Study]);
        let notes = RefCell::new(Vec::new());
        let note = |line: &str| notes.borrow_mut().push(line.to_owned());
        let run = Run::new(&plan, &Root::at(folder.path()), &note).unwrap();
        let empty = fs::read(&plan.archive).unwrap();
        assert!(String::from_utf8_lossy(&empty).contains("the run ended before or during this part"));
        let work = run.work.clone();
        let (result, page, has_failed) = run.carry_out().unwrap();
        assert!(has_failed && !work.exists());
        assert_eq!(result["parts"][0]["what"], "worst finding of each machine: note");
        assert_eq!(result["parts"][1]["state"], "left_out");
        assert_eq!(result["parts"][3]["what"], "the study ended with exit status: 1: doorbell: the peer has gone");
        assert!(page.contains("| doctor | done |") && page.contains("| study | failed |"), "{page}");
        assert!(notes.borrow().iter().any(|line| line == "study of a: 1 of 2"), "{notes:?}");
        let archive = String::from_utf8_lossy(&fs::read(&plan.archive).unwrap()).into_owned();
        for name in ["qualification.json", "deviations.md", "doctor.json", "study/a.json"] {
            assert!(archive.contains(&format!("{FOLDER}/{name}\0")), "{name}");
        }
        for secret in ["storage-7", "Storage-7", "other-1", "192.0.2.9"] {
            assert!(!archive.contains(secret), "{secret} is in the archive");
        }
        assert!(archive.contains(r#""text":"from host-"#), "{archive}");
    }

    #[test]
    fn an_archive_that_cannot_be_written_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let plan = Plan { archive: folder.path().join("none/out.tar"), ..plan(folder.path(), &[]) };
        let error = Run::new(&plan, &Root::at(folder.path()), &|_| {}).unwrap_err();
        assert!(error.contains("none/out.tar cannot be written") && error.contains("--out"), "{error}");
    }
}
