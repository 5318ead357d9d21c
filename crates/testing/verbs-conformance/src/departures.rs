//! Known departures from the rules that a case found and accepted, for programs that report them.

use std::sync::Mutex;

use doorbell_sync::IgnorePoison;

static FOUND: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Notes a departure. `how` is a sentence.
pub fn note(how: &str) {
    FOUND.lock().ignore_poison().push(how.to_owned());
}

/// Returns the departures since the last call, each once.
pub fn take() -> Vec<String> {
    let mut found = std::mem::take(&mut *FOUND.lock().ignore_poison());
    found.sort_unstable();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_departure_is_returned_once() {
        super::note("b");
        super::note("a");
        super::note("b");
        assert_eq!(super::take(), ["a", "b"]);
        assert!(super::take().is_empty());
    }
}
