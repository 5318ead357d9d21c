//! Calls of an observer with the RNIC's counters, so seldom that they cost almost nothing.

use doorbell_verbs_core::Counters;

/// Callback that receives the counters of an RNIC.
pub type Observer = Box<dyn FnMut(&Counters) + Send>;

/// Minimum time between two calls of the observer while the driver has no other work. A busy driver calls less often.
const QUIET_NS: u64 = 1_000_000;

/// An observer, and the time at which the driver must call it again.
pub(crate) struct Observation {
    observer: Observer,
    within_ns: u64,
    shown_ns: Option<u64>,
    /// Time of the first change of a counter since the last call of the observer.
    news_ns: Option<u64>,
}

impl Observation {
    pub(crate) fn new(observer: Observer, within_ns: u64) -> Self {
        Self { observer, within_ns, shown_ns: None, news_ns: None }
    }

    /// Records that a counter has changed or may have changed.
    #[inline]
    pub(crate) fn note(&mut self, now_ns: u64) {
        self.news_ns.get_or_insert(now_ns);
    }

    /// Calls the observer if a call is due. `quiet` means that the driver has no other work now.
    #[inline]
    pub(crate) fn look(&mut self, now_ns: u64, quiet: bool, counters: &Counters) {
        let Some(news_ns) = self.news_ns else { return };
        let is_due = now_ns >= news_ns.saturating_add(self.within_ns);
        let is_seldom = || self.shown_ns.is_none_or(|shown_ns| now_ns >= shown_ns.saturating_add(QUIET_NS));
        if is_due || (quiet && is_seldom()) {
            self.shown_ns = Some(now_ns);
            self.news_ns = None;
            (self.observer)(counters);
        }
    }

    /// Returns the deadline of the next call of [`look`](Self::look).
    #[inline]
    pub(crate) fn poll_timeout(&self) -> Option<u64> {
        self.news_ns.map(|news_ns| news_ns.saturating_add(self.within_ns))
    }

    /// Calls the observer with the final values, before the driver is dropped.
    pub(crate) fn finish(&mut self, counters: &Counters) {
        (self.observer)(counters);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    const MS: u64 = 1_000_000;

    fn observation() -> (Observation, Arc<Mutex<Vec<u64>>>) {
        let shown = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&shown);
        let observer = move |counters: &Counters| into.lock().unwrap().push(counters.tx_data_packets);
        (Observation::new(Box::new(observer), 20 * MS), shown)
    }

    fn packets(packets: u64) -> Counters {
        Counters { tx_data_packets: packets, ..Counters::default() }
    }

    #[test]
    fn an_idle_device_shows_nothing_and_sets_no_timer() {
        let (mut observation, shown) = observation();
        for ms in 0..100 {
            observation.look(ms * MS, true, &packets(0));
            assert_eq!(observation.poll_timeout(), None);
        }
        assert_eq!(*shown.lock().unwrap(), []);
    }

    #[test]
    fn counters_are_shown_when_the_device_is_quiet() {
        let (mut observation, shown) = observation();
        observation.note(5 * MS);
        observation.look(5 * MS, false, &packets(1));
        assert_eq!(observation.poll_timeout(), Some(25 * MS), "expected the deadline of the next display");
        observation.look(5 * MS + 1, true, &packets(2));
        assert_eq!((shown.lock().unwrap().as_slice(), observation.poll_timeout()), ([2].as_slice(), None));
        // Soon after a call, a quiet driver does not call the observer again before the deadline.
        observation.note(5 * MS + 2);
        observation.look(5 * MS + 3, true, &packets(3));
        assert_eq!(observation.poll_timeout(), Some(25 * MS + 2));
        observation.look(25 * MS + 2, false, &packets(4));
        assert_eq!(*shown.lock().unwrap(), [2, 4]);
    }

    #[test]
    fn a_busy_device_shows_its_counters_regularly() {
        let (mut observation, shown) = observation();
        for us in 0..100_000 {
            let now_ns = us * 1000;
            observation.note(now_ns);
            observation.look(now_ns, us % 3 == 0, &packets(us));
        }
        let shown = shown.lock().unwrap();
        assert!((5..=100).contains(&shown.len()), "the counters were shown {} times in 100 ms", shown.len());
        assert!(shown.windows(2).all(|pair| pair[1] - pair[0] <= 20_000), "{shown:?}");
    }
}
