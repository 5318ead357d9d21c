//! Fuzz bodies for untrusted input.

use doorbell_analyze::decode::{Options, decode};

/// Decodes a capture of either format.
pub(crate) fn fuzz_captures(data: &[u8]) {
    let Ok(summary) = decode(data, &Options::default()) else { return };
    assert!(serde_json::to_string(&summary).is_ok());
}
