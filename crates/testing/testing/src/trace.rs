//! Last events of a run, which a thread keeps only while a test asks for them.

use std::cell::RefCell;
use std::collections::VecDeque;

struct Events {
    kept: VecDeque<String>,
    most: usize,
}

thread_local! {
    static EVENTS: RefCell<Option<Events>> = const { RefCell::new(None) };
}

/// Makes this thread keep its last `most` events from now on.
pub fn start(most: usize) {
    EVENTS.with_borrow_mut(|events| *events = Some(Events { kept: VecDeque::new(), most }));
}

/// Returns the last events since [`start`], the oldest first, and stops keeping events.
pub fn stop() -> Vec<String> {
    EVENTS.with_borrow_mut(Option::take).map_or(Vec::new(), |events| events.kept.into())
}

/// Keeps an event, if this thread keeps any.
pub fn trace(event: impl FnOnce() -> String) {
    EVENTS.with_borrow_mut(|events| {
        if let Some(events) = events {
            if events.kept.len() == events.most {
                events.kept.pop_front();
            }
            events.kept.push_back(event());
        }
    });
}
