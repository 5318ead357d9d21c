//! `doorbell qualify`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use doorbell_qualify::is_address;
use serde_json::Value;

use crate::command::{PATIENCE, Running, address_without_a_listener, doorbell, list, measuring};

/// A folder for the archive of a test.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("there is room for a directory"))
    }

    fn archive(&self) -> PathBuf {
        self.0.path().join("out.tar")
    }

    /// Returns a command that qualifies the software RNIC.
    fn qualify(&self, arguments: &str) -> Command {
        let mut command = doorbell(&format!("qualify -d doorbell0 {arguments} --out"));
        command.arg(self.archive()).env("TMPDIR", self.0.path()).env("DOORBELL_MESSAGES", "500");
        command
    }

    /// Unpacks the archive, and returns its folder.
    fn unpacked(&self) -> PathBuf {
        let status = Command::new("tar").arg("-xf").arg(self.archive()).arg("-C").arg(self.0.path()).status();
        assert!(status.expect("tar is installed").success());
        self.0.path().join("doorbell-qualification")
    }

    /// Returns the number of working directories that commands have left.
    fn working_directories(&self) -> usize {
        let entries = std::fs::read_dir(self.0.path()).expect("a directory").flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("doorbell-qualify-")).count()
    }
}

fn json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the contents of all files below a folder.
fn contents(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a directory").flatten() {
        match entry.path() {
            path if path.is_dir() => found.extend(contents(&path)),
            path => found.push((path.clone(), std::fs::read_to_string(&path).expect("text"))),
        }
    }
    found
}

/// Checks that no file has an address, the name of this machine or of its user.
#[track_caller]
fn assert_anonymous(files: &[(PathBuf, String)]) {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let user = std::env::var("USER").unwrap_or_default();
    let names: Vec<&str> = [host.trim(), user.trim()]
        .into_iter()
        .filter(|name| name.len() > 1 && !["root", "localhost", "(none)"].contains(name))
        .collect();
    // A kernel release may have the form of an address.
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    for (path, text) in files {
        // So may a section of a standard.
        let text = text.replace(kernel.trim(), "").replace("IBTA Vol 1, ", "IBTA Vol 1, section");
        for word in text.split(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '.' | ':' | '%')) {
            let word = word.trim_end_matches(['.', ':']);
            assert!(!is_address(word), "{}: {word}", path.display());
        }
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        for name in &names {
            let found = text
                .match_indices(name)
                .find(|(at, _)| !text[..*at].ends_with(is_part) && !text[at + name.len()..].starts_with(is_part));
            assert_eq!(found, None, "{}: {name}", path.display());
        }
    }
}

/// All parts on the software RNIC: a few cases of each suite, two points of a study, and a capture.
#[test]
fn the_software_rnic_has_no_deviation() {
    let _one_at_a_time = measuring();
    let place = Place::new();
    let command = place.qualify("--cases a_quiet_connection_lives --experiments wire/request-response --json");
    let finished = Running::start(command).finish().expect_status(0);
    let result = finished.json();
    assert_eq!(result["schema"], "doorbell-qualification/1");
    assert_eq!(list(&result, "/deviations"), [] as [Value; 0]);
    let states: Vec<_> = list(&result, "/parts").iter().map(|part| (&part["part"], &part["state"])).collect();
    let expected =
        [("doctor", "done"), ("verbs", "left_out"), ("exchange", "done"), ("study", "done"), ("captures", "done")];
    for ((part, state), expected) in states.iter().zip(expected) {
        assert_eq!((part.as_str(), state.as_str()), (Some(expected.0), Some(expected.1)), "{result:#}");
    }
    let cases = list(&result, "/cases");
    assert_eq!(cases.len(), 17, "one per variant of a protocol");
    assert!(cases.iter().all(|case| case["outcome"] == "passed"), "{cases:#?}");
    let folder = place.unpacked();
    assert_eq!(json(&folder.join("qualification.json")), result);
    assert_eq!(json(&folder.join("doctor.json"))["schema"], "doorbell-doctor/1");
    assert!(json(&folder.join("wire-check.json"))["packets"].as_u64().is_some_and(|packets| packets > 600));
    let records = contents(&folder.join("study"));
    assert!(records.len() >= 2, "{records:?}");
    let page = std::fs::read_to_string(folder.join("deviations.md")).expect("a page");
    assert!(page.starts_with("# Qualification of doorbell0\n") && page.ends_with("None was found.\n"), "{page}");
    assert_anonymous(&contents(&folder));
    assert_eq!(place.working_directories(), 0);
}

#[test]
fn cases_of_verbs_run_on_the_software_rnic() {
    let _one_at_a_time = measuring();
    let place = Place::new();
    let finished = Running::start(place.qualify("--only verbs --cases rnr")).finish().expect_status(0);
    assert!(
        finished.stdout.contains("| verbs | done | 2 of 2 cases passed, with 0 known departures |"),
        "{finished:?}"
    );
    let result = json(&place.unpacked().join("qualification.json"));
    let names: Vec<_> = list(&result, "/cases").iter().map(|case| case["name"].as_str().unwrap_or_default()).collect();
    assert_eq!(names, ["verbs/states/rnr_retries_end", "verbs/states/rnr_retries_wait_for_a_receive"]);
    assert_eq!(result["parts"][3]["state"], "left_out");
}

/// The archive of a run that is interrupted during its cases has the results until then.
#[test]
fn an_interrupted_run_leaves_an_archive() {
    let _one_at_a_time = measuring();
    let place = Place::new();
    let mut running = Running::start(place.qualify("--only doctor,verbs"));
    running.wait_for("doctor: worst finding");
    // The archive is written at the end of the part, after the line.
    let until = Instant::now() + PATIENCE;
    while !std::fs::read(place.archive()).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains("doctor.json")) {
        assert!(Instant::now() < until, "the archive has no result of the doctor");
        std::thread::sleep(Duration::from_millis(10));
    }
    running.interrupt();
    let folder = place.unpacked();
    let result = json(&folder.join("qualification.json"));
    assert_eq!((&result["parts"][0]["state"], &result["parts"][1]["state"]), (&"done".into(), &"not_finished".into()));
    assert_eq!(json(&folder.join("doctor.json"))["schema"], "doorbell-doctor/1");
    assert_anonymous(&contents(&folder));
}

#[test]
fn errors_come_before_the_first_part() {
    let place = Place::new();
    let complaint = |command: Command, status: i32, words: &[&str]| {
        Running::start(command).finish().expect_complaint(status, words);
        assert_eq!(place.working_directories(), 0);
    };
    let (nothing_listens, _sockets) = address_without_a_listener();
    complaint(
        place.qualify(&nothing_listens.to_string()),
        1,
        &["cannot be reached", "doorbell study --listen", "DOORBELL_TOKEN"],
    );
    complaint(place.qualify("--only everything"), 2, &["everything", "doctor, verbs, exchange, study, captures"]);
    complaint(doorbell("qualify -d none9"), 1, &[]);
    let mut unwritable = doorbell("qualify -d doorbell0 --only doctor --out");
    unwritable.arg(place.archive().join("out.tar")).env("TMPDIR", place.0.path());
    complaint(unwritable, 1, &["out.tar cannot be written", "--out"]);
    assert!(!place.archive().exists());
}
