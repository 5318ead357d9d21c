//! Admission of visitors to a listener, without IO. All listeners of Doorbell use it, over TCP and over Unix sockets.
//!
//! A visitor is a peer that has connected and has not completed its opening yet. The opening is a token, or the
//! beginning of the listener's protocol. [`Admission`] decides which visitor is handled next, which visitor is evicted
//! to make room for another visitor, and when the deadline of a visitor has passed. [`Clock`] measures the time that
//! counts.

mod clock;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

pub use clock::Clock;

/// Bounds on the visitors of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of visitors at the same time.
    pub visitors: usize,
    /// Maximum number of visitors that have completed a step of the opening, for an opening that then uses memory.
    /// Further visitors wait before their first step, until such a visitor has left or was silent for `patience`.
    pub stepped: usize,
    /// Maximum time from the arrival of a visitor to the end of its opening.
    pub total: Duration,
    /// Silence after which a visitor may be evicted to make room for another visitor. A visitor is silent while it
    /// completes no step of its opening. An honest visitor completes its next step within a round trip.
    pub patience: Duration,
    /// Time that is added to `patience` after a visitor has completed a step, for an opening whose next step takes
    /// longer than a round trip.
    pub patience_after_step: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let (total, patience) = (Duration::from_secs(10), Duration::from_millis(100));
        Self { visitors: 256, stepped: usize::MAX, total, patience, patience_after_step: Duration::ZERO }
    }
}

/// Number of times that a ready visitor lets visitors with later steps go first.
const PASSES: u32 = 8;

/// Number of a visitor. All visitors of a listener have different numbers.
pub type Number = u64;

/// Progress of a visitor in one turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The visitor has sent nothing.
    Nothing,
    /// The visitor has sent bytes that complete no step of its opening.
    Bytes,
    /// The visitor has completed a step of its opening.
    Step,
}

#[derive(Clone, Copy, Debug)]
struct Visitor {
    until: Duration,
    /// Time at which the visitor last completed a step of the opening, or at which it arrived. Single bytes are no
    /// step: otherwise, a visitor that sends slowly could keep its place.
    stepped: Duration,
    has_stepped: bool,
    /// Number of the visitor's turns that read bytes and completed no step of the opening.
    fruitless: u32,
    /// Number of times that the visitor was ready and another visitor was chosen.
    passes: u32,
    /// Whether the visitor has sent bytes that the caller leaves unread until there is room for its first step.
    waits: bool,
    is_dismissed: bool,
    /// Whether a dismissed visitor has got its last bytes.
    is_answered: bool,
}

/// State of a listener's visitors, without their streams. All times are relative to one instant that the caller
/// chooses.
///
/// Before each [`arrive`](Self::arrive), the caller checks [`has_place`](Self::has_place), and removes the visitor that
/// [`in_the_way`](Self::in_the_way) returns. The caller handles the visitor that [`choose`](Self::choose) returns, and
/// reports the result by [`heard`](Self::heard). By [`leave`](Self::leave), the caller removes visitors that are
/// admitted, gone or [`expired`](Self::expired).
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

    /// Returns the time until which the silence of a visitor is no reason to evict it.
    fn silent_until(&self, visitor: &Visitor) -> Duration {
        let after_step = if visitor.has_stepped { self.limits.patience_after_step } else { Duration::ZERO };
        visitor.stepped.saturating_add(self.limits.patience).saturating_add(after_step)
    }

    /// Sets [`Limits::visitors`]. Visitors beyond the new limit stay, and make room for new ones one by one.
    pub fn set_visitors(&mut self, visitors: usize) {
        self.limits.visitors = visitors;
    }

    /// Sets [`Limits::total`] for visitors that arrive from now on.
    pub fn set_total(&mut self, total: Duration) {
        self.limits.total = total;
    }

    /// Returns the visitor to evict first: a visitor that has got its last bytes, or otherwise the visitor that may be
    /// evicted first for its silence. A visitor that waits for room is not silent, so a crowd cannot evict it unread. A
    /// visitor that has already sent bytes without a step has no such protection.
    fn longest_silent(&self) -> Option<(Number, Visitor)> {
        let by_silence = |(number, visitor): &(Number, Visitor)| {
            (!visitor.is_answered, self.silent_until(visitor), visitor.stepped, *number)
        };
        let visitors = self.visitors.iter().map(|(number, visitor)| (*number, *visitor));
        visitors.filter(|(_, visitor)| !visitor.waits || visitor.fruitless > 0).min_by_key(by_silence)
    }

    /// Returns whether the maximum number of visitors exists.
    fn is_full(&self) -> bool {
        self.visitors.len() >= self.limits.visitors
    }

    /// Returns the time at which the longest silent visitor may be evicted.
    fn evictable_at(&self) -> Option<Duration> {
        self.longest_silent().map(|(_, visitor)| match visitor.is_answered {
            true => Duration::ZERO,
            false => self.silent_until(&visitor),
        })
    }

    /// Returns the time at which a new visitor can be added. Until then, new connections wait in the kernel's queue.
    pub fn place_at(&self) -> Duration {
        if self.is_full() { self.evictable_at().unwrap_or(Duration::MAX) } else { Duration::ZERO }
    }

    /// Returns whether a new visitor can be added now.
    pub fn has_place(&self, now: Duration) -> bool {
        self.place_at() <= now
    }

    /// Returns the visitor that must leave before a new visitor can be added. `None` if there is room, or if all
    /// visitors wait for room for their first step.
    pub fn in_the_way(&self) -> Option<Number> {
        self.longest_silent().filter(|_| self.is_full()).map(|(number, _)| number)
    }

    /// Adds a visitor, and returns its number.
    pub fn arrive(&mut self, now: Duration) -> Number {
        let until = now.saturating_add(self.limits.total);
        let visitor = Visitor {
            until,
            stepped: now,
            has_stepped: false,
            fruitless: 0,
            passes: 0,
            waits: false,
            is_dismissed: false,
            is_answered: false,
        };
        let number = self.next;
        self.next += 1;
        self.visitors.insert(number, visitor);
        number
    }

    /// Returns the visitor to evict if the process has no descriptor for a new visitor. `None` if no visitor has been
    /// silent for long enough.
    pub fn dispensable(&self, now: Duration) -> Option<Number> {
        let (number, _) = self.longest_silent()?;
        self.evictable_at().filter(|&at| at <= now).map(|_| number)
    }

    /// Returns the visitor whose last step is oldest, if at least `count` visitors have completed a step.
    fn oldest_of(&self, count: usize) -> Option<(Number, Visitor)> {
        if count > self.visitors.len() {
            return None;
        }
        let stepped = || self.visitors.iter().filter(|(_, visitor)| visitor.has_stepped && !visitor.is_dismissed);
        let oldest = || stepped().min_by_key(|(number, visitor)| (visitor.stepped, **number));
        (stepped().count() >= count).then(oldest)?.map(|(number, visitor)| (*number, *visitor))
    }

    /// Returns the time at which a visitor may complete its first step. Until then, the bytes of such visitors stay
    /// unread.
    pub fn step_at(&self) -> Duration {
        let oldest = self.oldest_of(self.limits.stepped);
        oldest.map_or(Duration::ZERO, |(_, visitor)| self.silent_until(&visitor))
    }

    /// Returns whether a visitor has not completed its first step.
    fn is_before_first(&self, number: Number) -> bool {
        self.visitors.get(&number).is_some_and(|visitor| !visitor.has_stepped && !visitor.is_dismissed)
    }

    /// Returns the visitor that must leave if the visitor `number` completes its first step. `None` if there is room,
    /// or if the visitor has already completed a step.
    pub fn in_the_way_of(&self, number: Number) -> Option<Number> {
        self.is_before_first(number).then(|| self.oldest_of(self.limits.stepped))?.map(|(oldest, _)| oldest)
    }

    /// Returns whether the first step of the visitor `number` must wait: there is no room yet, or an older visitor
    /// waits for the room.
    pub fn must_wait(&self, number: Number, now: Duration) -> bool {
        let older = || self.visitors.range(..number).any(|(_, visitor)| visitor.waits && visitor.fruitless == 0);
        self.is_before_first(number) && (self.step_at() > now || older())
    }

    /// Records whether a visitor has sent bytes that stay unread until there is room for its first step.
    pub fn set_waits(&mut self, number: Number, waits: bool) {
        if let Some(visitor) = self.visitors.get_mut(&number) {
            visitor.waits = waits;
        }
    }

    /// Returns the visitor to evict because too many have completed a step: the one whose last step is oldest.
    pub fn surplus(&self) -> Option<Number> {
        self.oldest_of(self.limits.stepped.saturating_add(1)).map(|(number, _)| number)
    }

    /// Returns the next visitor to handle, among those whose streams are ready.
    ///
    /// Visitors with fewer turns that completed no step go first. Among visitors with an equal number of such turns,
    /// the visitor with the latest step goes first. An honest client has always just arrived or completed a step, so
    /// visitors that speak after a silence do not delay it. A visitor that was passed over eight times precedes those,
    /// so that a flood of new visitors does not delay it either. Visitors that waited for room come after the others,
    /// the oldest first.
    pub fn choose(&mut self, ready: impl IntoIterator<Item = Number>) -> Option<Number> {
        let mut first = None;
        for number in ready {
            let Some(visitor) = self.visitors.get_mut(&number) else { continue };
            let age = (visitor.stepped, number);
            // `Ok` precedes `Err`.
            let is_latest_first = visitor.passes < PASSES && !visitor.waits;
            let order = if is_latest_first { Err(Reverse(age)) } else { Ok(age) };
            visitor.passes = visitor.passes.saturating_add(1);
            let key = (visitor.is_dismissed, visitor.fruitless, visitor.waits, order, number);
            first = first.into_iter().chain([key]).min();
        }
        let (.., number) = first?;
        self.visitors.get_mut(&number)?.passes = 0;
        Some(number)
    }

    /// Records the progress of a visitor in its turn.
    pub fn heard(&mut self, number: Number, now: Duration, progress: Progress) {
        if let Some(visitor) = self.visitors.get_mut(&number) {
            match progress {
                Progress::Nothing => {}
                Progress::Bytes => visitor.fruitless = visitor.fruitless.saturating_add(1),
                Progress::Step => (visitor.stepped, visitor.has_stepped) = (now, true),
            }
        }
    }

    /// Records that the listener will not serve a visitor. The visitor stays until it has received its last bytes.
    /// Visitors that have received these bytes (`is_answered`) are evicted before all other visitors.
    pub fn dismiss(&mut self, number: Number, is_answered: bool) {
        if let Some(visitor) = self.visitors.get_mut(&number) {
            (visitor.is_dismissed, visitor.is_answered) = (true, is_answered);
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

    /// Returns whether a visitor has had a turn that read bytes and completed no step.
    pub fn is_fruitless(&self, number: Number) -> bool {
        self.visitors.get(&number).is_some_and(|visitor| visitor.fruitless > 0)
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

    const LIMITS: Limits = Limits {
        visitors: 4,
        stepped: usize::MAX,
        total: ms(10_000),
        patience: ms(100),
        patience_after_step: Duration::ZERO,
    };

    fn full(at: u64) -> Admission {
        let mut admission = Admission::new(LIMITS);
        (at..at + 4).for_each(|at| assert_eq!(arrive(&mut admission, at), None));
        admission
    }

    /// Adds a visitor, and returns the visitor that was evicted for it.
    fn arrive(admission: &mut Admission, at: u64) -> Option<Number> {
        assert!(admission.has_place(ms(at)));
        let evicted = admission.in_the_way();
        evicted.into_iter().for_each(|number| admission.leave(number));
        admission.arrive(ms(at));
        evicted
    }

    #[test]
    fn the_total_time_of_a_visitor_is_bounded() {
        let mut admission = Admission::new(LIMITS);
        let number = admission.arrive(ms(0));
        for at in (0..10_000).step_by(50) {
            assert!(!admission.is_over(number, ms(at)));
            assert_eq!(admission.deadline(), Some(ms(10_000)));
            admission.heard(number, ms(at), if at % 100 == 0 { Progress::Step } else { Progress::Bytes });
        }
        assert_eq!(admission.expired(ms(10_000)).collect::<Vec<_>>(), [number]);
        admission.leave(number);
        assert!(admission.is_empty() && admission.deadline().is_none());
    }

    #[test]
    fn the_longest_silent_visitor_is_evicted_first() {
        let mut admission = full(0);
        admission.heard(0, ms(60), Progress::Step);
        // An honest visitor needs a round trip, so no visitor is evicted before it was silent for 100 ms.
        assert_eq!(admission.place_at(), ms(101));
        assert!(!admission.has_place(ms(100)) && admission.dispensable(ms(100)).is_none());
        assert_eq!(admission.dispensable(ms(101)), Some(1));
        assert_eq!(arrive(&mut admission, 101), Some(1));
        assert_eq!(admission.place_at(), ms(102));
        assert_eq!(arrive(&mut admission, 102), Some(2));
        assert_eq!(admission.len(), 4);
    }

    #[test]
    fn the_number_of_places_can_change() {
        let mut admission = full(0);
        admission.set_visitors(5);
        assert_eq!((admission.place_at(), arrive(&mut admission, 10)), (ms(0), None));
        admission.set_visitors(3);
        assert_eq!((admission.place_at(), arrive(&mut admission, 100), admission.len()), (ms(100), Some(0), 5));
        (1..6).for_each(|number| admission.leave(number));
        admission.set_visitors(0);
        assert_eq!((admission.place_at(), admission.in_the_way()), (Duration::MAX, None));
    }

    /// The next step of an honest visitor may take longer than the first one, so silent visitors make room before.
    #[test]
    fn a_visitor_with_a_step_may_have_more_patience() {
        let mut admission = Admission::new(Limits { patience_after_step: ms(900), ..LIMITS });
        (0..4).for_each(|at| assert_eq!(arrive(&mut admission, at), None));
        (0..3).for_each(|number| admission.heard(number, ms(10 + number), Progress::Step));
        assert_eq!((admission.place_at(), admission.in_the_way()), (ms(103), Some(3)));
        admission.heard(3, ms(20), Progress::Step);
        assert_eq!((admission.place_at(), admission.in_the_way()), (ms(1010), Some(0)));
    }

    #[test]
    fn the_visitor_with_the_oldest_step_is_surplus() {
        let mut admission = Admission::new(Limits { stepped: 2, ..LIMITS });
        (0..4).for_each(|at| assert_eq!(arrive(&mut admission, at), None));
        for (number, at) in [(1, 10), (3, 20), (1, 30)] {
            admission.heard(number, ms(at), Progress::Step);
            assert_eq!(admission.surplus(), None);
        }
        admission.heard(0, ms(40), Progress::Bytes);
        assert_eq!(admission.surplus(), None, "bytes are no step");
        // An honest visitor needs a round trip for its next step, so the others wait until 100 ms after the oldest one.
        assert_eq!((admission.step_at(), admission.in_the_way_of(2)), (ms(120), Some(3)));
        assert_eq!(admission.in_the_way_of(1), None, "this visitor has completed a step");
        admission.heard(2, ms(120), Progress::Step);
        assert_eq!(admission.surplus(), Some(3));
        admission.leave(3);
        assert_eq!((admission.surplus(), admission.step_at()), (None, ms(130)));
        admission.dismiss(1, false);
        assert_eq!((admission.step_at(), admission.in_the_way_of(0)), (ms(0), None));
    }

    /// In each turn, a new visitor is ready too. The first visitor still has its turn.
    #[test]
    fn a_flood_of_new_visitors_passes_none_over_for_ever() {
        let mut admission = Admission::new(Limits { visitors: 250, ..LIMITS });
        let first = admission.arrive(ms(0));
        let turns = (1..250).take_while(|&at| {
            let newest = admission.arrive(ms(at));
            admission.choose([first, newest]) != Some(first)
        });
        assert_eq!(turns.count(), PASSES as usize);
    }

    /// Four visitors send single bytes at short intervals. A new visitor still finds a place after the patience.
    #[test]
    fn dripping_visitors_keep_no_place() {
        let mut admission = full(0);
        for at in (10..200).step_by(10) {
            (0..4).for_each(|number| admission.heard(number, ms(at), Progress::Bytes));
        }
        assert_eq!(admission.place_at(), ms(100));
        assert_eq!(arrive(&mut admission, 200), Some(0));
    }

    /// A visitor that has got its answer, and does not close its connection, makes room at once. A visitor whose
    /// answer is on its way stays.
    #[test]
    fn answered_visitors_make_room_first() {
        let mut admission = full(0);
        admission.dismiss(1, false);
        assert_eq!(admission.place_at(), ms(100));
        admission.dismiss(3, true);
        assert_eq!((admission.place_at(), admission.in_the_way()), (ms(0), Some(3)));
        assert_eq!(arrive(&mut admission, 4), Some(3));
        assert_eq!(admission.place_at(), ms(100));
        admission.dismiss(1, true);
        assert_eq!(arrive(&mut admission, 5), Some(1));
    }

    #[test]
    fn honest_visitors_are_served_before_dripping_and_silent_ones() {
        let mut admission = full(0);
        let (dripping, greeted, silent, honest) = (0, 1, 2, 3);
        admission.heard(dripping, ms(5), Progress::Bytes);
        admission.heard(greeted, ms(5), Progress::Step);
        admission.heard(honest, ms(6), Progress::Nothing);
        assert_eq!(admission.choose([dripping, silent, honest]), Some(honest));
        admission.heard(honest, ms(7), Progress::Step);
        // All visitors speak at the same time, some of them for the first time.
        assert_eq!(admission.choose([dripping, silent, honest, greeted]), Some(honest));
        assert_eq!(admission.choose([dripping, greeted, silent]), Some(greeted));
        admission.dismiss(greeted, true);
        assert_eq!(admission.choose([greeted, dripping]), Some(dripping));
        assert_eq!(admission.choose([99]), None);
    }

    /// All places are taken by visitors that wait for room and by one that has completed its step. A crowd evicts the
    /// visitor that is silent, and no visitor that is unread.
    #[test]
    fn a_visitor_that_waits_for_room_is_not_evicted() {
        let mut admission = Admission::new(Limits { stepped: 1, ..LIMITS });
        (0..4).for_each(|at| assert_eq!(arrive(&mut admission, at), None));
        admission.heard(2, ms(50), Progress::Step);
        for number in [0, 1, 3] {
            assert!(admission.must_wait(number, ms(60)));
            admission.set_waits(number, true);
        }
        assert_eq!((admission.place_at(), admission.in_the_way()), (ms(150), Some(2)));
        assert_eq!(arrive(&mut admission, 150), Some(2));
        // There is room for a step. The oldest visitor has it, and the others and the new one still wait.
        assert_eq!([0, 1, 3, 4].map(|number| admission.must_wait(number, ms(150))), [false, true, true, true]);
        assert_eq!(admission.choose([3, 1, 0]), Some(0));
        admission.set_waits(4, true);
        assert_eq!((admission.place_at(), admission.in_the_way()), (Duration::MAX, None));
        assert_eq!(admission.dispensable(ms(9999)), None);
        // The oldest visitor has sent only a part of its step, so it is silent like others.
        admission.set_waits(0, false);
        admission.heard(0, ms(151), Progress::Bytes);
        admission.set_waits(0, true);
        assert_eq!((admission.place_at(), admission.in_the_way()), (ms(100), Some(0)));
        assert_eq!(admission.choose([0, 3, 1]), Some(1));
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
                admission.in_the_way().into_iter().for_each(|number| admission.leave(number));
                admission.arrive(now);
                arrived += 1;
            } else {
                now = admission.place_at();
            }
        }
        assert_eq!((now, admission.len()), (ms(300), 250));
    }
}
