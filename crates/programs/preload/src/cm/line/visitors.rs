//! Visitors of a listener: connections whose peers have not sent their request yet.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use doorbell_admission::{Admission, Limits, Progress};

use super::ARRIVAL;
use crate::cm::service::Number;

/// Bounds on visitors. Further connections wait in the kernel's queue.
const LIMITS: Limits = Limits {
    visitors: 128,
    stepped: usize::MAX,
    total: ARRIVAL,
    patience: Duration::from_millis(100),
    patience_after_step: Duration::ZERO,
};

/// Visitors of a listener. All times are those that the service counts.
pub(super) struct Visitors {
    admission: Admission,
    /// Numbers of the visitors' lines, by the numbers of the visitors in the admission.
    lines: BTreeMap<doorbell_admission::Number, Number>,
    /// Index of the listener's socket whose connection is accepted next.
    pub(super) turn: usize,
    /// Whether the listener accepts a connection before it handles a ready visitor. Both take turns, so that neither a
    /// flood of connections nor visitors that are always ready can keep a client waiting.
    is_arrivals_turn: bool,
    /// Whether the service does not watch the sockets of the listener, because the listener cannot accept connections.
    pub(super) is_paused: bool,
    /// Numbers of the visitors' lines, in the order in which the listener handled the visitors.
    #[cfg(test)]
    pub(super) handled: Vec<Number>,
}

impl Visitors {
    pub(super) fn new() -> Self {
        Self {
            admission: Admission::new(LIMITS),
            lines: BTreeMap::new(),
            turn: 0,
            is_arrivals_turn: false,
            is_paused: false,
            #[cfg(test)]
            handled: Vec::new(),
        }
    }

    /// Returns the time until which further connections wait, because no visitor may be evicted before.
    pub(super) fn place_at(&self) -> Duration {
        self.admission.place_at()
    }

    /// Returns the line that must end before a new visitor can be added. `None` if there is room.
    pub(super) fn in_the_way(&self) -> Option<Number> {
        self.lines.get(&self.admission.in_the_way()?).copied()
    }

    /// Returns the line to end if the process has no descriptor for a new visitor.
    pub(super) fn dispensable(&self, now: Duration) -> Option<Number> {
        self.lines.get(&self.admission.dispensable(now)?).copied()
    }

    /// Returns the line of the visitor to handle next, among the lines that are `ready`. `None` if no visitor is ready,
    /// or if a connection is waiting (`is_called`) and has its turn.
    pub(super) fn choose(&mut self, ready: &BTreeSet<Number>, is_called: bool) -> Option<Number> {
        let lines = self.lines.iter().filter(|(_, line)| ready.contains(*line));
        let has_turn = !(is_called && self.is_arrivals_turn);
        let chosen = has_turn.then(|| self.admission.choose(lines.map(|(number, _)| *number))).flatten();
        self.is_arrivals_turn = chosen.is_some();
        self.lines.get(&chosen?).copied()
    }

    pub(super) fn arrive(&mut self, line: Number, now: Duration) {
        let number = self.admission.arrive(now);
        self.lines.insert(number, line);
    }

    /// Records the progress of a visitor in its turn. Ignores a visitor that has left.
    pub(super) fn heard(&mut self, line: Number, now: Duration, progress: Progress) {
        if let Some((&number, _)) = self.lines.iter().find(|(_, own)| **own == line) {
            self.admission.heard(number, now, progress);
        }
    }

    pub(super) fn leave(&mut self, line: Number) {
        for (number, _) in self.lines.extract_if(.., |_, own| *own == line) {
            self.admission.leave(number);
        }
    }
}

#[cfg(test)]
mod tests;
