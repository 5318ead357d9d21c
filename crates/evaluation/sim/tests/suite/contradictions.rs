//! Published figures that contradict each other under each mechanism of the simulator. Each experiment varies the one
//! value that moves a figure to its published number, and shows that another figure then misses its own.
//!
//! `DOORBELL_UPDATE_CONTRADICTIONS=1 cargo test -p doorbell-sim --test suite contradictions:: -- --nocapture` prints
//! the results and writes them to docs/reproduction.md.

use std::fmt::Write as _;

use doorbell_model::check::{Checked, Ordered, Predictor as _, Status};
use doorbell_model::operation::PostedOperation;
use doorbell_sim::reproduce::{Effort, Runs};
use doorbell_sim::{Testbed, testbed};

use crate::pages;

/// Environment variable with which the test writes the table.
const UPDATE: &str = "DOORBELL_UPDATE_CONTRADICTIONS";
const BEGIN: &str = "<!-- generated: `crates/evaluation/sim/tests/suite/contradictions.rs` -->\n\n";

/// Two figures under one value of the testbed.
struct Seen {
    value: String,
    /// Each figure in words, and whether it is as published.
    figures: [(String, bool); 2],
}

/// Two published figures, and the values that were tried.
struct Contradiction {
    figures: [&'static str; 2],
    seen: Vec<Seen>,
}

fn with(testbed: &str, path: &str, value: &str) -> Testbed {
    let testbed = testbed::by_name(testbed).expect("a built-in testbed");
    testbed.with(path, value).unwrap_or_else(|error| panic!("{error}"))
}

fn runs(testbed: &Testbed) -> Runs<'_> {
    Runs::new(testbed, Effort::QUICK)
}

/// Returns the simulated number of a published row, and whether it is within the tolerance.
fn row(id: &str, runs: &mut Runs<'_>) -> (String, bool) {
    let checked = Checked::of(doorbell_claims::row(id).expect("a published row"), runs);
    let compared = checked.outcome.as_ref().unwrap_or_else(|lack| panic!("{id}: {lack}"));
    (format!("{:.3} {}", compared.found.number, compared.found.unit), checked.status() == Status::Within)
}

/// A gain by lists of completions needs a receiver that binds. Then single completions give less than the ceiling.
fn lists_of_completions() -> Contradiction {
    let seen = |ns: &&str| {
        let testbed = with("t1", "cpu.poll_call", &format!("{ns} ns"));
        let mut runs = runs(&testbed);
        Seen {
            value: format!("`cpu.poll_call` of {ns} ns"),
            figures: ["send-receive/poll-gain", "send-receive/batch-ceiling-messages"].map(|id| row(id, &mut runs)),
        }
    };
    Contradiction {
        figures: [
            "`send-receive/poll-gain`: lists of completions gain nearly 1.5 times",
            "`send-receive/batch-ceiling-messages`: 14 M/s with one completion per poll",
        ],
        seen: ["40", "60", "80"].iter().map(seen).collect(),
    }
}

/// A request that is delayed by `d` disturbs three answers if another request comes within `d`. It is late at its own
/// address only if that request has the same address.
fn order() -> Contradiction {
    let seen = |every: &&str| {
        let testbed = with("t3", "pcie.slow_every", every);
        let asked = Ordered {
            operation: PostedOperation::Read,
            connections: 32,
            window: 16,
            addresses: 1024,
            zipf: 0.99,
            rate_per_s: Some(1e6),
        };
        let order = runs(&testbed).order(&asked).expect("an order");
        let (in_order, late) = (100.0 * order.in_order, 100.0 * order.same_address_late);
        Seen {
            value: format!("`pcie.slow_every` of {every}"),
            figures: [
                (format!("{in_order:.1} %"), (in_order - 97.0).abs() <= 100.0 * doorbell_claims::tolerance::ORDER),
                (format!("{late:.2} %"), late >= 7.0 / doorbell_claims::tolerance::LATE),
            ],
        }
    };
    Contradiction {
        figures: [
            "`far-memory/in-order`: 97 % in order at 1 M requests/s over 32 queue pairs",
            "`far-memory/out-of-order-32`: over 7 % late at the same address, if that is the same load",
        ],
        seen: ["100", "10", "3", "1"].iter().map(seen).collect(),
    }
}

fn table(all: &[Contradiction]) -> String {
    let mut text = String::new();
    for Contradiction { figures: [one, other], seen } in all {
        let _ = writeln!(text, "| value | {one} | {other} |\n|---|---|---|");
        for Seen { value, figures } in seen {
            let cell = |(words, is_met): &(String, bool)| if *is_met { format!("{words}, yes") } else { words.clone() };
            let _ = writeln!(text, "| {value} | {} | {} |", cell(&figures[0]), cell(&figures[1]));
        }
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

#[test]
fn no_value_gives_both_of_two_contradictory_figures() {
    let all = [lists_of_completions(), order()];
    let table = table(&all);
    println!("{table}");
    for Contradiction { figures, seen } in &all {
        assert!(seen.iter().all(|seen| !(seen.figures[0].1 && seen.figures[1].1)), "no contradiction: {figures:?}");
    }
    pages::check("reproduction.md", BEGIN, &table, UPDATE);
}
