//! Events in the order of time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use doorbell_wire::Qpn;

use super::network::Check;
use crate::time::Ps;

/// What happens at a time. It is small, since events are moved about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A doorbell arrives at a NIC.
    Doorbell { doorbell: u32 },
    /// A processing unit takes the next packet.
    Transmit { node: u32, unit: u32 },
    /// A CPU sees that a message which nobody acknowledges has left.
    Departure { departure: u32 },
    /// A NIC answers more of a READ.
    Answer { node: u32, qpn: Qpn },
    /// A frame's last bit is at a switch.
    Switch { frame: u32 },
    /// A port's pause is about to end.
    Pause { check: Check },
    /// The middlebox takes a frame.
    Steer { frame: u32 },
    /// A timer of the middlebox.
    SteerTimeout,
    /// A packet is where it goes to.
    Delivery { frame: u32 },
    /// A timer of an RNIC.
    Timeout { node: u32 },
    /// A thread's turn, unless it has had another one since.
    Turn { thread: u32, turn: u32 },
    /// A thread may have waited for as long as it wanted to.
    Alarm { thread: u32 },
}

const _: () = assert!(size_of::<Event>() <= 32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) at: Ps,
    /// Of two events at one time the one that was made first is first.
    number: u64,
    pub(super) what: What,
}

impl Event {
    /// What orders events, as one number: they are compared more often than anything else is done.
    #[inline]
    fn key(&self) -> u128 {
        u128::from(self.at.0) << 64 | u128::from(self.number)
    }
}

impl Ord for Event {
    #[inline]
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for Event {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }

    #[inline]
    fn lt(&self, other: &Self) -> bool {
        self.key() < other.key()
    }

    #[inline]
    fn le(&self, other: &Self) -> bool {
        self.key() <= other.key()
    }

    #[inline]
    fn gt(&self, other: &Self) -> bool {
        self.key() > other.key()
    }

    #[inline]
    fn ge(&self, other: &Self) -> bool {
        self.key() >= other.key()
    }
}

/// Lists of events that [`Events`] adds to at the end.
const LANES: usize = 6;
/// Where the rest is.
const HEAP: usize = LANES;

/// What is to happen: the earliest event comes first, and of two at one time the one that was made first.
///
/// Packets that come to a node are made in the order of their times, and so are doorbells, and turns of threads: a few
/// ordered sequences hold most events. So an event goes to the end of the first of a few lists whose last event is not later;
/// only what fits into none goes into a heap. Which list has the earliest event follows from a few numbers.
#[derive(Debug)]
pub(super) struct Events {
    /// The earliest of all. There is none only if there are no others.
    next: Option<Event>,
    lanes: [VecDeque<Event>; LANES],
    heap: BinaryHeap<Reverse<Event>>,
    /// Of each lane and of the heap the key of its first event, or the greatest there is.
    firsts: [u128; LANES + 1],
    /// Of each lane the key of its last event, or zero.
    lasts: [u128; LANES],
    number: u64,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            next: None,
            lanes: Default::default(),
            heap: BinaryHeap::new(),
            firsts: [u128::MAX; LANES + 1],
            lasts: [0; LANES],
            number: 0,
        }
    }
}

impl Events {
    /// Something happens at a time.
    #[inline]
    pub(super) fn push(&mut self, at: Ps, what: What) {
        self.number += 1;
        let event = Event { at, number: self.number, what };
        let Some(next) = &mut self.next else {
            self.next = Some(event);
            return;
        };
        if event < *next {
            // It was before all others, so it is before those of any lane.
            let later = std::mem::replace(next, event);
            self.firsts[0] = later.key();
            self.lasts[0] = self.lasts[0].max(later.key());
            self.lanes[0].push_front(later);
            return;
        }
        let key = event.key();
        let place = self.lasts.iter().position(|&last| last < key).unwrap_or(HEAP);
        self.firsts[place] = self.firsts[place].min(key);
        match self.lanes.get_mut(place) {
            Some(lane) => {
                self.lasts[place] = key;
                lane.push_back(event);
            }
            None => self.heap.push(Reverse(event)),
        }
    }

    /// The earliest event, which stays.
    #[inline]
    pub(super) fn peek(&self) -> Option<Event> {
        self.next
    }

    /// Takes the earliest event.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Event> {
        let event = self.next.take()?;
        let (mut first, mut place) = (self.firsts[HEAP], HEAP);
        for (number, &key) in self.firsts[..HEAP].iter().enumerate() {
            if key < first {
                (first, place) = (key, number);
            }
        }
        if first < u128::MAX {
            let behind;
            (self.next, behind) = match self.lanes.get_mut(place) {
                Some(lane) => (lane.pop_front(), lane.front().map(Event::key)),
                None => (self.heap.pop().map(|event| event.0), self.heap.peek().map(|event| event.0.key())),
            };
            self.firsts[place] = behind.unwrap_or(u128::MAX);
            if behind.is_none() && place < HEAP {
                self.lasts[place] = 0;
            }
        }
        Some(event)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.next.is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever is pushed and popped in between: what comes is what a sorted list would give.
        #[test]
        fn events_come_in_the_order_of_time_and_of_their_making(steps in prop::collection::vec(0..40_u64, 0..200)) {
            let (mut events, mut sorted) = (Events::default(), BTreeSet::new());
            let mut made = 0;
            for step in steps {
                if step < 25 {
                    made += 1;
                    events.push(Ps(step), What::SteerTimeout);
                    sorted.insert((Ps(step), made));
                } else {
                    let first = sorted.pop_first();
                    let of = |event: Option<Event>| event.map(|event| (event.at, event.number));
                    prop_assert_eq!(of(events.peek()), first);
                    prop_assert_eq!(of(events.pop()), first);
                    prop_assert_eq!(events.is_empty(), sorted.is_empty());
                }
            }
        }
    }
}
