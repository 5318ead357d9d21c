//! Published rows on simulated testbeds: what is reproduced stays reproduced.

use doorbell_sim::reproduce::{Effort, Runs};
use doorbell_sim::testbed;

/// Rows that deviate by more than they may, which docs/reproduction.md explains.
const BEYOND: &[&str] = &["send-receive/poll-gain", "send-receive/inline-receive-size"];

#[test]
fn rows_are_within_their_tolerance_but_for_those_that_are_known_not_to_be() {
    let mut beyond = Vec::new();
    for testbed in testbed::all() {
        let published = testbed.published.as_deref().and_then(doorbell_published::testbed).expect("published rows");
        let mut runs = Runs::new(testbed, Effort::QUICK);
        for row in &published.rows {
            match runs.reproduce(row).outcome {
                Ok(compared) => {
                    println!(
                        "{:<44} {}{} -> {:.4} ({:+.1} %)",
                        row.id,
                        row.relation.words(),
                        row.value,
                        compared.simulated.number,
                        compared.deviation * 100.0
                    );
                    if !compared.is_within() {
                        beyond.push(row.id.as_str());
                    }
                }
                Err(lack) => println!("{:<44} not simulated: {lack}", row.id),
            }
        }
    }
    assert_eq!(beyond, BEYOND);
}
