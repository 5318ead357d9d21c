//! Histories of operations, and a check whether each key behaves as a linearizable register that may be absent. The
//! check is in the crate `todc-utils`: Wing and Gong's algorithm with Lowe's cache of states, as described by Horn and
//! Kroening.

use todc_utils::linearizability::WGLChecker;
use todc_utils::linearizability::history::{Action, History};
use todc_utils::specifications::Specification;

/// An operation on one key and its result. Values are numbers. An operation without an answer may or may not have taken
/// effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A get, and the value that it found, if any.
    Get(Option<u64>),
    /// A put of a value, and whether the key existed.
    Put(u64, bool),
    /// An insert of a value, and whether the insert created the key.
    Insert(u64, bool),
    /// A delete, and whether the key existed.
    Delete(bool),
    /// A put without an answer.
    PerhapsPut(u64),
    /// An insert without an answer.
    PerhapsInsert(u64),
    /// A delete without an answer.
    PerhapsDelete,
}

/// Specification of a register that may be absent.
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

/// Begin and end of an operation. An operation without an answer ends at [`NEVER`].
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Time of the begin, on a clock that all clients share.
    pub from: u64,
    /// Time of the end.
    pub to: u64,
    /// The operation and its result.
    pub event: Event,
}

/// The end of an operation without an answer.
pub const NEVER: u64 = u64::MAX;

/// Returns whether the operations on one key, which does not exist at first, are linearizable. Then an order exists in
/// which each operation has its recorded result, and in which operations that did not overlap keep their order.
pub fn is_linearizable(spans: &[Span]) -> bool {
    let mut actions = Vec::new();
    for (process, span) in spans.iter().enumerate() {
        // If a call and a response have the same time, the call comes first, so that the two operations are concurrent.
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
