//! Admission of visitors to a TCP listener: each speaks its opening before it gets a turn.
//!
//! A visitor is a peer that has connected and has not shown yet that it belongs here. [`Admission`] decides without
//! IO which visitor is handled next, which one makes room for another and when its time is over. [`Lobby`] does the
//! IO for it. An [`Opening`] judges the words of one visitor: a token, or the first words of the protocol where the
//! service has no token.
//!
//! A visitor cannot delay others. Its reads and writes do not block. Its input and its total time are bounded, even
//! if it keeps sending bytes.

mod lobby;

use std::collections::BTreeMap;
use std::time::Duration;

pub use lobby::{Event, Hello, Line, LineError, Lobby, Step, Why};

/// Judgement of an opening after some of its bytes.
#[derive(Debug)]
pub enum Verdict<T, R> {
    /// The opening needs more bytes.
    Continue,
    /// The visitor has completed a step of its opening and gets these bytes.
    Reply(Vec<u8>),
    /// The visitor has completed its opening and gets its turn.
    Admit(T),
    /// The visitor gets these bytes and no turn. `why` is for the operator. An answered question has none.
    Dismiss {
        /// Last bytes to the visitor.
        reply: Vec<u8>,
        /// Reason of the refusal.
        why: Option<R>,
    },
}

/// Words that a visitor of a listener speaks before it gets its turn. Each visitor has its own copy.
pub trait Opening: Clone {
    /// Contents of a completed opening.
    type Admitted;
    /// Reason of a refusal.
    type Refusal;

    /// Judges the next bytes of `peer`. Returns the number of bytes that belong to the opening: the next protocol
    /// reads the rest. With [`Verdict::Continue`] all of them do.
    ///
    /// An opening keeps the number of bytes that it stores bounded.
    fn hear(&mut self, peer: &str, bytes: &[u8]) -> (usize, Verdict<Self::Admitted, Self::Refusal>);
}

/// Bounds on the visitors of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of visitors at a time.
    pub visitors: usize,
    /// Time of a visitor from its arrival to the end of its opening.
    pub total: Duration,
    /// Silence after which a visitor makes room for another one. An honest visitor speaks again within a round trip.
    pub patience: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { visitors: 256, total: Duration::from_secs(10), patience: Duration::from_millis(100) }
    }
}

/// Number of a visitor, unique for its listener.
pub type Number = u64;

#[derive(Clone, Copy, Debug)]
struct Visitor {
    until: Duration,
    /// Time at which its last bytes came, or at which it arrived.
    heard: Duration,
    /// Steps of the opening that it has completed.
    steps: u32,
    /// Turns of reading that completed no step.
    fruitless: u32,
    is_dismissed: bool,
}

/// Outcome of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Number of the new visitor.
    pub number: Number,
    /// Visitor that makes room for it and has to be disconnected.
    pub evicted: Option<Number>,
}

/// Visitors of a listener, without their streams. All times count from one instant that the caller chooses.
///
/// The caller asks [`has_place`](Self::has_place) before each [`arrive`](Self::arrive). It handles the visitor that
/// [`choose`](Self::choose) names, and reports the outcome with [`heard`](Self::heard). It removes visitors that are
/// admitted, gone or [`expired`](Self::expired) with [`leave`](Self::leave).
#[derive(Debug)]
pub struct Admission {
    limits: Limits,
    visitors: BTreeMap<Number, Visitor>,
    next: Number,
}

impl Admission {
    /// Makes a listener's admission, without visitors.
    pub fn new(limits: Limits) -> Self {
        Self { limits, visitors: BTreeMap::new(), next: 0 }
    }

    /// Sets the total time of visitors that arrive from now on.
    pub fn set_total(&mut self, total: Duration) {
        self.limits.total = total;
    }

    /// Returns the visitor that makes room first: one that was dismissed, or else the one that has been silent for
    /// longest.
    fn longest_silent(&self) -> Option<(Number, Visitor)> {
        let by_silence = |(number, visitor): &(Number, Visitor)| (!visitor.is_dismissed, visitor.heard, *number);
        self.visitors.iter().map(|(number, visitor)| (*number, *visitor)).min_by_key(by_silence)
    }

    /// Returns the time at which a new visitor finds a place. Before that, it waits in the queue of the kernel.
    pub fn place_at(&self) -> Duration {
        if self.visitors.len() < self.limits.visitors {
            return Duration::ZERO;
        }
        match self.longest_silent() {
            Some((_, visitor)) if !visitor.is_dismissed => visitor.heard.saturating_add(self.limits.patience),
            _ => Duration::ZERO,
        }
    }

    /// Returns whether a new visitor finds a place now.
    pub fn has_place(&self, now: Duration) -> bool {
        self.place_at() <= now
    }

    /// Adds a visitor. If there is no room, the one that has been silent for longest is evicted.
    pub fn arrive(&mut self, now: Duration) -> Arrival {
        let evicted = if self.visitors.len() >= self.limits.visitors { self.evict() } else { None };
        let until = now.saturating_add(self.limits.total);
        let visitor = Visitor { until, heard: now, steps: 0, fruitless: 0, is_dismissed: false };
        let number = self.next;
        self.next += 1;
        self.visitors.insert(number, visitor);
        Arrival { number, evicted }
    }

    /// Removes the visitor that makes room first, and returns its number.
    pub fn evict(&mut self) -> Option<Number> {
        let (number, _) = self.longest_silent()?;
        self.leave(number);
        Some(number)
    }

    /// Returns the next visitor to handle, among those whose streams are ready.
    ///
    /// A visitor that completed a step in each of its turns goes before one that drips bytes. Of two such visitors,
    /// the one with more steps goes first. So an honest visitor waits for at most one stranger, regardless of the
    /// number of strangers that drip.
    pub fn choose(&self, ready: impl IntoIterator<Item = Number>) -> Option<Number> {
        let rank = |number: &Number| {
            let visitor = self.visitors.get(number)?;
            Some((visitor.is_dismissed, visitor.fruitless, u32::MAX - visitor.steps, visitor.heard, *number))
        };
        ready.into_iter().filter_map(|number| Some((rank(&number)?, number))).min().map(|(_, number)| number)
    }

    /// Records that bytes of a visitor were handled, and whether they completed a step of its opening.
    pub fn heard(&mut self, number: Number, now: Duration, has_completed_step: bool) {
        if let Some(visitor) = self.visitors.get_mut(&number) {
            visitor.heard = now;
            match has_completed_step {
                true => visitor.steps = visitor.steps.saturating_add(1),
                false => visitor.fruitless = visitor.fruitless.saturating_add(1),
            }
        }
    }

    /// Records that a visitor gets no turn. It stays until it has taken its last bytes, and makes room before all
    /// others.
    pub fn dismiss(&mut self, number: Number) {
        if let Some(visitor) = self.visitors.get_mut(&number) {
            visitor.is_dismissed = true;
        }
    }

    /// Removes a visitor.
    pub fn leave(&mut self, number: Number) {
        self.visitors.remove(&number);
    }

    /// Returns whether the time of a visitor is over.
    pub fn is_over(&self, number: Number, now: Duration) -> bool {
        self.visitors.get(&number).is_some_and(|visitor| visitor.until <= now)
    }

    /// Returns the visitors whose time is over.
    pub fn expired(&self, now: Duration) -> impl Iterator<Item = Number> {
        self.visitors.iter().filter(move |(_, visitor)| visitor.until <= now).map(|(number, _)| *number)
    }

    /// Returns when the time of the next visitor is over.
    pub fn deadline(&self) -> Option<Duration> {
        self.visitors.values().map(|visitor| visitor.until).min()
    }

    /// Returns the deadline of a visitor's set-up.
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
        // An honest visitor needs a round trip, so no visitor is evicted before that.
        assert_eq!(admission.place_at(), ms(101));
        assert!(!admission.has_place(ms(100)) && admission.has_place(ms(101)));
        assert_eq!(admission.arrive(ms(101)), Arrival { number: 4, evicted: Some(1) });
        assert_eq!(admission.place_at(), ms(102));
        assert_eq!(admission.arrive(ms(102)).evicted, Some(2));
        // A visitor that sends bytes without completing a step is not silent, but its total time is still bounded.
        admission.heard(3, ms(150), false);
        assert_eq!(admission.evict(), Some(0));
        // A dismissed visitor is evicted before all others, at once.
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

    /// 1,000 silent visitors arrive at once, and an honest one arrives last. Each silent visitor delays the honest one
    /// by a share of the patience, not by its own deadline.
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
