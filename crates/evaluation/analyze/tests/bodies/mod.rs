//! Fuzz bodies for untrusted input.

use doorbell_analyze::check::{Limits, check};
use doorbell_analyze::decode::{Options, decode};

/// Decodes and judges a capture of either format.
pub(crate) fn fuzz_captures(data: &[u8]) {
    let limits = Limits { timeout_ns: Some(1), retry_count: Some(1), cnp_interval_ns: Some(1), complete: true };
    let options = Options { drop_bad_icrc: false, ..Options::default() };
    if let Ok(report) = check(data, &options, &limits) {
        assert!(serde_json::to_string(&report).is_ok());
    }
    let Ok(summary) = decode(data, &Options::default()) else { return };
    assert!(serde_json::to_string(&summary).is_ok());
}
