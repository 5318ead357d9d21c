//! Histories of operations, and whether each key of one is a linearizable register that may be absent. The crate
//! `todc-utils` judges (Wing and Gong's algorithm with Lowe's memory of states, as Horn and Kroening describe it).

use todc_utils::linearizability::WGLChecker;
use todc_utils::linearizability::history::{Action, History};
use todc_utils::specifications::Specification;

/// An operation on one key and its result. Values are numbers. It is unknown whether operations without an answer
/// took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A get, and what it found.
    Get(Option<u64>),
    /// A put of a value, and whether the key was there.
    Put(u64, bool),
    /// An insert of a value, and whether the key was made.
    Insert(u64, bool),
    /// A delete, and whether the key was there.
    Delete(bool),
    /// A put without an answer.
    PerhapsPut(u64),
    /// An insert without an answer.
    PerhapsInsert(u64),
    /// A delete without an answer.
    PerhapsDelete,
}

/// A register that may be absent.
struct Register;

impl Specification for Register {
    type State = Option<u64>;
    type Operation = Event;

    fn init() -> Option<u64> {
        None
    }

    fn apply(event: &Event, state: &Option<u64>) -> (bool, Option<u64>) {
        let is_there = state.is_some();
        match *event {
            Event::Get(value) => (value == *state, *state),
            Event::Put(value, found) => (found == is_there, if found { Some(value) } else { *state }),
            Event::Insert(value, made) => (made != is_there, if made { Some(value) } else { *state }),
            Event::Delete(found) => (found == is_there, None),
            Event::PerhapsPut(value) => (true, state.map(|_| value)),
            Event::PerhapsInsert(value) => (true, state.or(Some(value))),
            Event::PerhapsDelete => (true, None),
        }
    }
}

/// The times of an operation; one without an answer never ends ([`NEVER`]).
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Its begin, on any clock that all clients share.
    pub from: u64,
    /// Its end.
    pub to: u64,
    /// The operation and its result.
    pub event: Event,
}

/// The end of an operation without an answer.
pub const NEVER: u64 = u64::MAX;

/// Returns whether the operations on one key, which does not exist at first, are linearizable. Then they have an
/// order in which each has its recorded result, and which keeps the order of those that did not overlap.
pub fn is_linearizable(spans: &[Span]) -> bool {
    let mut actions = Vec::new();
    for (process, span) in spans.iter().enumerate() {
        // At one moment, calls come first: such operations are concurrent.
        actions.push(((span.from, 0), (process, Action::Call(span.event))));
        actions.push(((span.to, 1), (process, Action::Response(span.event))));
    }
    actions.sort_by_key(|&(at, (process, _))| (at, process));
    let actions: Vec<_> = actions.into_iter().map(|(_, action)| action).collect();
    actions.is_empty() || WGLChecker::<Register>::is_linearizable(History::from_actions(actions))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checker_notices_a_stale_read_and_a_lost_update() {
        let span = |from, to, event| Span { from, to, event };
        let written = [span(0, 1, Event::Insert(1, true)), span(2, 3, Event::Put(2, true))];
        let judge = |event| is_linearizable(&[written[0], written[1], span(4, 5, event)]);
        assert!(judge(Event::Get(Some(2))));
        assert!(!judge(Event::Get(Some(1))) && !judge(Event::Get(None)) && !judge(Event::Insert(3, true)));
        assert!(judge(Event::PerhapsPut(3)) && !judge(Event::Delete(false)));
    }
}
