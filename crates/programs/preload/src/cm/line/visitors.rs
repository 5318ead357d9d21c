//! Visitors of a listener: connections whose peers have not sent their request yet.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use doorbell_admission::{Admission, Limits};

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

/// Visitors of a listener. The service thread always waits for visitors, so all real time counts.
pub(super) struct Visitors {
    admission: Admission,
    begun: Instant,
    /// Numbers of the visitors' lines, by the numbers of the visitors in the admission.
    lines: BTreeMap<doorbell_admission::Number, Number>,
    /// Index of the listener's socket whose connection is accepted next.
    pub(super) turn: usize,
}

impl Visitors {
    pub(super) fn new() -> Self {
        Self { admission: Admission::new(LIMITS), begun: Instant::now(), lines: BTreeMap::new(), turn: 0 }
    }

    /// Returns the time for which further connections wait, because no visitor may be evicted yet.
    pub(super) fn wait(&self) -> Option<Duration> {
        self.admission.place_at().checked_sub(self.begun.elapsed()).filter(|wait| !wait.is_zero())
    }

    /// Returns the line that must end before a new visitor can be added. `None` if there is room.
    pub(super) fn in_the_way(&self) -> Option<Number> {
        self.lines.get(&self.admission.in_the_way()?).copied()
    }

    /// Returns the line to end if the process has no descriptor for a new visitor.
    pub(super) fn dispensable(&self) -> Option<Number> {
        self.lines.get(&self.admission.dispensable(self.begun.elapsed())?).copied()
    }

    pub(super) fn arrive(&mut self, line: Number) {
        let number = self.admission.arrive(self.begun.elapsed());
        self.lines.insert(number, line);
    }

    /// Removes a visitor. Returns whether the maximum number of visitors existed before.
    pub(super) fn leave(&mut self, line: Number) -> bool {
        let was_full = self.admission.in_the_way().is_some();
        for (number, _) in self.lines.extract_if(.., |_, own| *own == line) {
            self.admission.leave(number);
        }
        was_full
    }
}
