//! Simulates published rows. Rows that the simulator once reproduced must stay reproduced.
//!
//! `DOORBELL_UPDATE_REPRODUCTION=1 cargo test -p doorbell-sim --test suite reproduction::` writes the simulated points
//! of published curves to docs/reproduction.md.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use doorbell_claims::Finding;
use doorbell_model::check::{Checked, Status, check_shape};
use doorbell_sim::reproduce::{Effort, Runs};
use doorbell_sim::testbed;

use crate::pages;

/// Length of the runs. With shorter runs, figures of the store come close to their tolerances.
const EFFORT: Effort = Effort { store_us: Effort::USUAL.store_us, ..Effort::QUICK };

/// Ids of rows beyond their tolerance, and of sentences that do not hold. docs/reproduction.md explains each of them.
const BEYOND: &[&str] = &[
    "send-receive/poll-gain",
    "send-receive/inline-receive-size",
    "send-receive/batch-wants-window",
    "send-receive/poll-lists-gain",
    "send-receive/srq-thread-hurts",
    "send-receive/srq-needs-throttling",
    "send-receive/n-to-1-one-queue",
    "direct-read/bandwidth-bends",
    "far-memory/read-success",
    "far-memory/bytes-50",
    "far-memory/bytes-100",
    "far-memory/tail-latency",
];

/// Results of the chosen rows and sentences.
#[derive(Default)]
struct Simulated {
    /// Ids of those whose simulated results differ from the published ones.
    beyond: Vec<&'static str>,
    /// Simulated numbers by row, in the units of the rows.
    numbers: BTreeMap<&'static str, f64>,
}

/// Simulates the chosen rows and sentences. Two tests check one part each, so that the parts run in parallel. Each part
/// simulates a configuration only once.
fn simulated(is_chosen: fn(&str) -> bool) -> Simulated {
    let mut simulated = Simulated::default();
    for testbed in testbed::all() {
        let published = testbed.published.as_deref().and_then(doorbell_claims::testbed).expect("published rows");
        let mut runs = Runs::new(testbed, EFFORT);
        for row in published.rows.iter().filter(|row| is_chosen(&row.id)) {
            let checked = Checked::of(row, &mut runs);
            println!("{:<44} {} -> {:?}", row.id, checked.published(), checked.outcome);
            if let Ok(compared) = &checked.outcome {
                simulated.numbers.insert(&row.id, compared.found.number);
            }
            if checked.status() == Status::Beyond {
                simulated.beyond.push(row.id.as_str());
            }
        }
        for shape in published.shapes.iter().filter(|shape| is_chosen(&shape.id)) {
            let verdict = check_shape(shape, &mut runs).verdict;
            println!("{:<44} {:?}: {}", shape.id, verdict.finding, verdict.because);
            if verdict.finding == Finding::DoesNotHold {
                simulated.beyond.push(shape.id.as_str());
            }
        }
    }
    simulated
}

/// Curve of published numbers: its name, and the id of a row without the position.
type Curve = (&'static str, &'static str);

/// Table of curves on the page.
struct Curves {
    begin: &'static str,
    over: &'static str,
    positions: &'static [u32],
    curves: &'static [Curve],
    digits: usize,
}

const PACKETS: Curves = Curves {
    begin: "<!-- generated: `crates/evaluation/sim/tests/suite/reproduction.rs`, T2 -->\n\n",
    over: "packets per operation, outstanding",
    positions: &[1, 8, 32, 64],
    curves: &[
        ("requests", "request-response/request-packets-per-operation"),
        ("responses", "request-response/response-packets-per-operation"),
    ],
    digits: 2,
};

const RATES: Curves = Curves {
    begin: "<!-- generated: `crates/evaluation/sim/tests/suite/reproduction.rs`, T3 -->\n\n",
    over: "M/s, outstanding",
    positions: &[24, 96, 168, 240, 312, 360],
    curves: &[
        ("WRITE", "far-memory/write-outstanding"),
        ("READ", "far-memory/read-outstanding"),
        ("CAS", "far-memory/cas-outstanding"),
    ],
    digits: 1,
};

impl Curves {
    /// Checks that the page has the simulated and the published points.
    fn check(&self, simulated: &Simulated) {
        let mut text = format!("| {} |", self.over);
        self.positions.iter().for_each(|position| _ = write!(text, " {position} |"));
        let _ = writeln!(text, "\n|---|{}", "---:|".repeat(self.positions.len()));
        let published = |id: &str| doorbell_claims::row(id).unwrap_or_else(|| panic!("no row {id}")).value.number;
        for (name, beginning) in self.curves {
            let ids = || self.positions.iter().map(|position| format!("{beginning}-{position}"));
            let mut line = |name: &str, numbers: Vec<f64>| {
                let _ = write!(text, "| {name} |");
                numbers.iter().for_each(|number| _ = write!(text, " {number:.*} |", self.digits));
                text.push('\n');
            };
            line(name, ids().map(|id| simulated.numbers[id.as_str()]).collect());
            line("published", ids().map(|id| published(&id)).collect());
        }
        pages::check("reproduction.md", self.begin, &text, "DOORBELL_UPDATE_REPRODUCTION");
    }
}

fn is_of_shared_receives(id: &str) -> bool {
    id.starts_with("send-receive/srq-")
}

#[test]
fn shared_receives_match_except_for_known_deviations() {
    let known: Vec<&str> = BEYOND.iter().copied().filter(|id| is_of_shared_receives(id)).collect();
    assert_eq!(simulated(is_of_shared_receives).beyond, known);
}

#[test]
fn all_other_rows_match_except_for_known_deviations() {
    let known: Vec<&str> = BEYOND.iter().copied().filter(|id| !is_of_shared_receives(id)).collect();
    let simulated = simulated(|id| !is_of_shared_receives(id));
    [PACKETS, RATES].iter().for_each(|curves| curves.check(&simulated));
    assert_eq!(simulated.beyond, known);
}
