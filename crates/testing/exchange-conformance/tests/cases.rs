//! The table of cases.

use std::collections::BTreeSet;

use doorbell_exchange_conformance::cases;

#[test]
fn each_case_has_a_name_of_its_own() {
    let cases = cases();
    let names: BTreeSet<&str> = cases.iter().map(|case| case.name).collect();
    assert_eq!(names.len(), cases.len());
    assert_eq!(cases.iter().filter(|case| case.requires_loss()).count(), 17, "one per variant");
    assert!(names.contains("grants/a_peer_with_too_small_buffers_is_rejected"));
}
