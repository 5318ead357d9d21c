//! Checks that the table of verdicts in docs/study.md has the verdicts of the judge on the stored records.
//!
//! `DOORBELL_UPDATE_STUDY=1 cargo test -p doorbell-report --test suite study_page::` rewrites the table.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use doorbell_claims::Finding;
use doorbell_report::{Found, Run, verdicts};
use doorbell_study::experiment::RunDirectory;

/// Archive of the records of both runs.
const RECORDS: &str = "benchmarks/2026-11-23/study.tar.xz";
const HEADER: &str = "| experiment | published | software RNIC | simulated |\n|---|---|---|---|\n";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn cell(found: &Found) -> String {
    let word = match found.verdict.finding {
        Finding::Holds => "yes",
        Finding::DoesNotHold => "**no**",
        Finding::CannotShow => "cannot",
        Finding::NoValues => "not measured",
    };
    format!("{word}: {}", found.verdict.because)
}

#[test]
fn table_of_verdicts_is_that_of_the_judge() {
    let unpacked = tempfile::tempdir().unwrap();
    let unpack = Command::new("tar").arg("-xJf").arg(root().join(RECORDS)).arg("-C").arg(unpacked.path()).status();
    assert!(unpack.unwrap().success(), "tar and xz must be able to unpack {RECORDS}: install tar and xz-utils");
    let run = |name: &str| {
        let records = RunDirectory::read(&unpacked.path().join(name)).unwrap();
        verdicts(&[Run { name: name.to_owned(), records }])
    };
    let (soft, sim) = (run("soft"), run("sim"));

    let mut table = HEADER.to_owned();
    for soft in &soft {
        let sim = sim.iter().find(|sim| sim.claim.id == soft.claim.id).unwrap_or_else(|| panic!("{}", soft.claim.id));
        let (experiment, says) = (&soft.experiment, soft.claim.says);
        let _ = writeln!(table, "| `{experiment}` | {says} | {} | {} |", cell(soft), cell(sim));
    }
    let path = root().join("docs/study.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let start = page.find(HEADER).expect("a table of verdicts");
    let end = start + page[start..].find("\n\n").expect("the end of the table") + 1;
    if std::env::var_os("DOORBELL_UPDATE_STUDY").is_some() {
        std::fs::write(&path, format!("{}{table}{}", &page[..start], &page[end..])).unwrap();
    } else {
        assert_eq!(page[start..end], table, "DOORBELL_UPDATE_STUDY=1 rewrites the table");
    }
}
