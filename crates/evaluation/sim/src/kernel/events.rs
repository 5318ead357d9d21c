//! Events in the order of time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use doorbell_wire::Qpn;

use super::network::Check;
use crate::time::Ps;

/// Kind of an event. The type is small, because events are moved often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventKind {
    /// A doorbell reaches a NIC.
    Doorbell { doorbell: u32 },
    /// A processing unit takes its next packet.
    Transmit { node: u32, unit: u32 },
    /// A CPU sees the completion of a message that no peer acknowledges.
    Departure { departure: u32 },
    /// A NIC sends more responses of a READ.
    Answer { node: u32, qpn: Qpn },
    /// The last bit of a frame reaches a switch.
    Switch { frame: u32 },
    /// The pause of a port is about to end.
    Pause { check: Check },
    /// The middlebox handles a frame.
    Steer { frame: u32 },
    /// A timer of the middlebox expires.
    SteerTimeout,
    /// A packet reaches its destination.
    Delivery { frame: u32 },
    /// A packet that an injected fault has held back reaches its destination, or leaves its node.
    Released { node: u32 },
    /// A timer of an RNIC expires.
    Timeout { node: u32 },
    /// A thread gets its turn, unless it has had another turn since this event was created.
    Turn { thread: u32, turn: u32 },
    /// The deadline of a waiting thread may have passed.
    Alarm { thread: u32 },
}

const _: () = assert!(size_of::<Event>() <= 32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) at: Ps,
    /// Sequence number. Of two events at the same time, the event with the lower number comes first.
    number: u64,
    pub(super) kind: EventKind,
}

impl Event {
    /// Returns the sort key as one number, since comparisons are the most frequent operation on events.
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

/// Number of ordered lists to which [`Events`] appends.
const LANES: usize = 6;
/// Index of the heap in `Events::firsts`. The heap holds the events that fit into no list.
const HEAP: usize = LANES;

/// Pending events, in the order of time. Of two events at the same time, the event that was created first comes first.
///
/// The kernel creates the events of packets to one node in the order of their times. The same holds for doorbells and
/// for turns of threads. A few ordered lists therefore hold most events. An event goes to the end of the first list
/// whose last event is not later. If there is no such list, the event goes into a heap. `firsts` shows which list has
/// the earliest event.
#[derive(Debug)]
pub(super) struct Events {
    /// The earliest event; `None` if there are no events at all.
    next: Option<Event>,
    lanes: [VecDeque<Event>; LANES],
    heap: BinaryHeap<Reverse<Event>>,
    /// Key of the first event of each lane and of the heap, or the maximum if the lane or heap is empty.
    firsts: [u128; LANES + 1],
    /// Key of the last event of each lane, or zero if the lane is empty.
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
    /// Adds an event.
    #[inline]
    pub(super) fn push(&mut self, at: Ps, kind: EventKind) {
        self.number += 1;
        let event = Event { at, number: self.number, kind };
        let Some(next) = &mut self.next else {
            self.next = Some(event);
            return;
        };
        if event < *next {
            // `later` was the earliest event, so it precedes all events of each lane.
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

    /// Returns the earliest event without removing it.
    #[inline]
    pub(super) fn peek(&self) -> Option<Event> {
        self.next
    }

    /// Removes and returns the earliest event.
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
        /// `Events` returns the same order as a sorted list, for all mixes of `push` and `pop`.
        #[test]
        fn events_come_in_the_order_of_time_and_of_creation(steps in prop::collection::vec(0..40_u64, 0..200)) {
            let (mut events, mut sorted) = (Events::default(), BTreeSet::new());
            let mut made = 0;
            for step in steps {
                if step < 25 {
                    made += 1;
                    events.push(Ps(step), EventKind::SteerTimeout);
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
