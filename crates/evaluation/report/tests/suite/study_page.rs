//! Checks that the table of verdicts in docs/study.md has the verdicts of the judge on the stored records.
//!
//! `DOORBELL_UPDATE_STUDY=1 cargo test -p doorbell-report --test suite study_page::` rewrites the table.

use std::fmt::Write as _;

use doorbell_claims::Finding;
use doorbell_record::PointRecord;
use doorbell_report::{Found, Run, verdicts};

use crate::common::{self, MEASURED, SIMULATED, root};

const HEADER: &str = "| experiment | published | software RNIC | simulated |\n|---|---|---|---|\n";

fn cell(found: &Found) -> String {
    let word = match found.verdict.finding {
        Finding::Holds => "yes",
        Finding::DoesNotHold => "**no**",
        Finding::CannotShow => "cannot",
        Finding::NoValues => "not measured",
    };
    format!("{word}: {}", found.verdict.because)
}

fn run(name: &str, records: Vec<PointRecord>) -> Run {
    Run { name: name.to_owned(), records }
}

#[test]
fn table_of_verdicts_is_that_of_the_judge() {
    let [measured, simulated] = common::records();
    let (soft, sim) = (verdicts(&[run(MEASURED, measured)]), verdicts(&[run(SIMULATED, simulated)]));

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
