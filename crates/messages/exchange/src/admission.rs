//! Admission of visitors to a TCP listener. The listener serves a visitor only after the visitor has sent a valid
//! opening.
//!
//! A visitor is a peer that has connected and has not completed its opening yet. [`Admission`] decides which visitor is
//! handled next, which visitor is evicted to make room for a new visitor, and when the deadline of a visitor has
//! passed. [`Admission`] does no IO; [`Lobby`] does the IO. An [`Opening`] checks the first bytes of one visitor: a
//! token, or the beginning of the service's protocol if the service has no token.
//!
//! A visitor cannot delay other visitors. Reads from a visitor and writes to a visitor do not block. The input of a
//! visitor and its total time are bounded, even if the visitor keeps sending bytes.

mod clients;
mod lobby;

use std::collections::BTreeMap;
use std::time::Duration;

pub use clients::{Client, Clients, Note};
pub use lobby::{Event, Hello, Line, LineError, Lobby, Step, Why};

/// Result of checking the next bytes of an opening.
#[derive(Debug)]
pub enum Verdict<T, R> {
    /// The opening needs more bytes.
    Continue,
    /// The visitor has completed a step of its opening, and the listener sends these bytes to the visitor.
    Reply(Vec<u8>),
    /// The visitor has completed its opening, and the listener will serve the visitor.
    Admit(T),
    /// The listener sends the bytes of `reply` to the visitor, and does not serve the visitor.
    Dismiss {
        /// Last bytes that the listener sends to the visitor.
        reply: Vec<u8>,
        /// Reason for which the visitor is dismissed.
        why: Option<R>,
    },
}

/// Parser of the bytes that a visitor must send before the listener serves it. Each visitor has its own copy of the
/// parser.
pub trait Opening: Clone {
    /// Contents of a completed opening.
    type Admitted;
    /// Reason for which an opening dismisses a visitor.
    type Refusal;

    /// Checks the next bytes of `peer`. Returns the number of bytes that belong to the opening. The protocol after the
    /// opening reads the remaining bytes. With [`Verdict::Continue`], all bytes belong to the opening.
    ///
    /// An implementation must bound the number of bytes that it stores.
    fn hear(&mut self, peer: &str, bytes: &[u8]) -> (usize, Verdict<Self::Admitted, Self::Refusal>);
}

/// Bounds on the visitors of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of visitors at the same time.
    pub visitors: usize,
    /// Maximum time from the arrival of a visitor to the end of its opening.
    pub total: Duration,
    /// Silence after which a visitor may be evicted to make room for a new visitor. An honest visitor sends its next
    /// bytes within a round trip.
    pub patience: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { visitors: 256, total: Duration::from_secs(10), patience: Duration::from_millis(100) }
    }
}

/// Number of a visitor. All visitors of a listener have different numbers.
pub type Number = u64;

#[derive(Clone, Copy, Debug)]
struct Visitor {
    until: Duration,
    /// Time at which the visitor last sent bytes, or at which it arrived if it has sent no bytes.
    heard: Duration,
    /// Number of steps of the opening that the visitor has completed.
    steps: u32,
    /// Number of the visitor's turns that completed no step of the opening.
    fruitless: u32,
    is_dismissed: bool,
}

/// Result of adding a visitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Number of the new visitor.
    pub number: Number,
    /// Visitor that was evicted to make room for the new visitor. The caller must disconnect the evicted visitor.
    pub evicted: Option<Number>,
}

/// State of a listener's visitors, without their streams. All times are relative to one instant that the caller
/// chooses.
///
/// The caller checks [`has_place`](Self::has_place) before each [`arrive`](Self::arrive). The caller handles the
/// visitor that [`choose`](Self::choose) returns, and reports the result by [`heard`](Self::heard). By
/// [`leave`](Self::leave), the caller removes visitors that are admitted, gone or [`expired`](Self::expired).
#[derive(Debug)]
pub struct Admission {
    limits: Limits,
    visitors: BTreeMap<Number, Visitor>,
    next: Number,
}

impl Admission {
    /// Makes the admission of a listener that has no visitors.
    pub fn new(limits: Limits) -> Self {
        Self { limits, visitors: BTreeMap::new(), next: 0 }
    }

    /// Sets [`Limits::total`] for visitors that arrive from now on.
    pub fn set_total(&mut self, total: Duration) {
        self.limits.total = total;
    }

    /// Returns the visitor to evict first: a dismissed visitor, or otherwise the visitor that has been silent for the
    /// longest time.
    fn longest_silent(&self) -> Option<(Number, Visitor)> {
        let by_silence = |(number, visitor): &(Number, Visitor)| (!visitor.is_dismissed, visitor.heard, *number);
        self.visitors.iter().map(|(number, visitor)| (*number, *visitor)).min_by_key(by_silence)
    }

    /// Returns the time at which a new visitor can be added. Until then, new connections wait in the kernel's queue.
    pub fn place_at(&self) -> Duration {
        if self.visitors.len() < self.limits.visitors {
            return Duration::ZERO;
        }
        match self.longest_silent() {
            Some((_, visitor)) if !visitor.is_dismissed => visitor.heard.saturating_add(self.limits.patience),
            _ => Duration::ZERO,
        }
    }

    /// Returns whether a new visitor can be added now.
    pub fn has_place(&self, now: Duration) -> bool {
        self.place_at() <= now
    }

    /// Adds a visitor. If the maximum number of visitors exists, first evicts a visitor as [`evict`](Self::evict) does.
    pub fn arrive(&mut self, now: Duration) -> Arrival {
        let evicted = if self.visitors.len() >= self.limits.visitors { self.evict() } else { None };
        let until = now.saturating_add(self.limits.total);
        let visitor = Visitor { until, heard: now, steps: 0, fruitless: 0, is_dismissed: false };
        let number = self.next;
        self.next += 1;
        self.visitors.insert(number, visitor);
        Arrival { number, evicted }
    }

    /// Removes a dismissed visitor, or otherwise the visitor that has been silent for the longest time. Returns its
    /// number.
    pub fn evict(&mut self) -> Option<Number> {
        let (number, _) = self.longest_silent()?;
        self.leave(number);
        Some(number)
    }

    /// Returns the next visitor to handle, among those whose streams are ready.
    ///
    /// Visitors with fewer turns that completed no step go first. Among visitors with an equal number of such turns,
    /// the visitor with more completed steps goes first. An honest visitor therefore waits for at most one other
    /// visitor, regardless of the number of visitors that send single bytes.
    pub fn choose(&self, ready: impl IntoIterator<Item = Number>) -> Option<Number> {
        let rank = |number: &Number| {
            let visitor = self.visitors.get(number)?;
            Some((visitor.is_dismissed, visitor.fruitless, u32::MAX - visitor.steps, visitor.heard, *number))
        };
        ready.into_iter().filter_map(|number| Some((rank(&number)?, number))).min().map(|(_, number)| number)
    }

    /// Records that the caller has handled bytes of a visitor, and whether these bytes completed a step of the opening.
    pub fn heard(&mut self, number: Number, now: Duration, has_completed_step: bool) {
        if let Some(visitor) = self.visitors.get_mut(&number) {
            visitor.heard = now;
            match has_completed_step {
                true => visitor.steps = visitor.steps.saturating_add(1),
                false => visitor.fruitless = visitor.fruitless.saturating_add(1),
            }
        }
    }

    /// Records that the listener will not serve a visitor. The visitor stays until it has received its last bytes, and
    /// is evicted before all other visitors.
    pub fn dismiss(&mut self, number: Number) {
        if let Some(visitor) = self.visitors.get_mut(&number) {
            visitor.is_dismissed = true;
        }
    }

    /// Removes a visitor.
    pub fn leave(&mut self, number: Number) {
        self.visitors.remove(&number);
    }

    /// Returns whether the deadline of a visitor has passed.
    pub fn is_over(&self, number: Number, now: Duration) -> bool {
        self.visitors.get(&number).is_some_and(|visitor| visitor.until <= now)
    }

    /// Returns the visitors whose deadlines have passed.
    pub fn expired(&self, now: Duration) -> impl Iterator<Item = Number> {
        self.visitors.iter().filter(move |(_, visitor)| visitor.until <= now).map(|(number, _)| *number)
    }

    /// Returns the earliest deadline of all visitors.
    pub fn deadline(&self) -> Option<Duration> {
        self.visitors.values().map(|visitor| visitor.until).min()
    }

    /// Returns the deadline of a visitor.
    pub fn until(&self, number: Number) -> Option<Duration> {
        self.visitors.get(&number).map(|visitor| visitor.until)
    }

    /// Returns the number of visitors.
    pub fn len(&self) -> usize {
        self.visitors.len()
    }

    /// Returns whether there are no visitors.
    pub fn is_empty(&self) -> bool {
        self.visitors.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    const LIMITS: Limits = Limits { visitors: 4, total: ms(10_000), patience: ms(100) };

    fn full(at: u64) -> Admission {
        let mut admission = Admission::new(LIMITS);
        (at..at + 4).for_each(|at| assert_eq!(admission.arrive(ms(at)).evicted, None));
        admission
    }

    #[test]
    fn the_total_time_of_a_visitor_is_bounded() {
        let mut admission = Admission::new(LIMITS);
        let Arrival { number, evicted } = admission.arrive(ms(0));
        assert_eq!(evicted, None);
        for at in (0..10_000).step_by(50) {
            assert!(!admission.is_over(number, ms(at)));
            assert_eq!(admission.deadline(), Some(ms(10_000)));
            admission.heard(number, ms(at), at % 100 == 0);
        }
        assert_eq!(admission.expired(ms(10_000)).collect::<Vec<_>>(), [number]);
        admission.leave(number);
        assert!(admission.is_empty() && admission.deadline().is_none());
    }

    #[test]
    fn the_longest_silent_visitor_is_evicted_first() {
        let mut admission = full(0);
        admission.heard(0, ms(60), true);
        // An honest visitor needs a round trip, so no visitor is evicted before it was silent for 100 ms.
        assert_eq!(admission.place_at(), ms(101));
        assert!(!admission.has_place(ms(100)) && admission.has_place(ms(101)));
        assert_eq!(admission.arrive(ms(101)), Arrival { number: 4, evicted: Some(1) });
        assert_eq!(admission.place_at(), ms(102));
        assert_eq!(admission.arrive(ms(102)).evicted, Some(2));
        // A visitor that sends bytes without completing a step is not silent, but its total time is still bounded.
        admission.heard(3, ms(150), false);
        assert_eq!(admission.evict(), Some(0));
        // A dismissed visitor is evicted before all other visitors, without a minimum silence.
        assert_eq!(admission.arrive(ms(151)).evicted, None);
        admission.dismiss(4);
        assert!(admission.has_place(ms(151)));
        assert_eq!(admission.arrive(ms(151)).evicted, Some(4));
        assert_eq!(admission.len(), 4);
    }

    #[test]
    fn honest_visitors_are_served_before_dripping_ones() {
        let mut admission = full(0);
        let (dripping, greeted, honest, silent) = (0, 1, 2, 3);
        admission.heard(dripping, ms(5), false);
        admission.heard(greeted, ms(5), true);
        admission.heard(greeted, ms(6), false);
        assert_eq!(admission.choose([dripping, greeted, honest]), Some(honest));
        admission.heard(honest, ms(7), true);
        assert_eq!(admission.choose([dripping, silent, honest, greeted]), Some(honest));
        assert_eq!(admission.choose([dripping, greeted]), Some(greeted));
        admission.dismiss(greeted);
        assert_eq!(admission.choose([greeted, dripping]), Some(dripping));
        assert_eq!(admission.choose([99]), None);
    }

    /// 1,000 silent visitors arrive at once. Since 250 visitors fit at the same time, all 1,000 visitors have been
    /// added after three times the patience.
    #[test]
    fn a_silent_crowd_passes_in_bounded_time() {
        let mut admission = Admission::new(Limits { visitors: 250, ..LIMITS });
        let mut now = Duration::ZERO;
        let mut arrived = 0;
        while arrived < 1000 {
            if admission.has_place(now) {
                admission.arrive(now);
                arrived += 1;
            } else {
                now = admission.place_at();
            }
        }
        assert_eq!((now, admission.len()), (ms(300), 250));
    }
}
