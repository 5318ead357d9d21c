//! The latest events of a run. A thread keeps its events only between [`start`] and [`stop`].

use std::cell::RefCell;
use std::collections::VecDeque;

struct Events {
    kept: VecDeque<String>,
    most: usize,
}

thread_local! {
    static EVENTS: RefCell<Option<Events>> = const { RefCell::new(None) };
}

/// From now on, keeps the latest `most` events of the calling thread.
pub fn start(most: usize) {
    EVENTS.with_borrow_mut(|events| *events = Some(Events { kept: VecDeque::new(), most }));
}

/// Returns the kept events since [`start`], the oldest first. Afterwards the thread keeps no events.
pub fn stop() -> Vec<String> {
    EVENTS.with_borrow_mut(Option::take).map_or(Vec::new(), |events| events.kept.into())
}

/// Keeps an event, if the calling thread keeps events.
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
