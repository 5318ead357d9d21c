//! Decisions about the next action of a port's thread: rules (d) to (f) of `progress.rs`, as a state machine without a
//! thread, socket or clock.
//!
//! The thread carries out an [`Action`] and reports its result to the [`Policy`] as an [`Event`]. The policy returns
//! the next action. A [`Glance`] shows the policy the state of callers and engine.

use std::mem;

use super::habits::{HABITS, Lingering, Naps};
use crate::driver::Acks;

/// Result of the last action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The thread has started and taken no action yet.
    Started,
    /// The thread has driven the engine until all arrived packets were handled.
    Pumped {
        /// Number of packets.
        packets: usize,
    },
    /// A nap is over.
    Napped {
        /// Whether a caller ended the nap early.
        kicked: bool,
    },
    /// The thread has watched the socket.
    Watched {
        /// Whether a packet arrived, or a full link has room again.
        ready: bool,
    },
    /// The thread has lingered.
    Lingered {
        /// Whether no packet arrived and no caller polled.
        in_vain: bool,
    },
}

/// Next action of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Drive the engine until all arrived packets are handled.
    Pump(Acks),
    /// Sleep without watching the socket, while callers drive the engine.
    Nap {
        /// End of the nap, unless the thread is kicked before.
        until_ns: u64,
        /// Whether the nap is so short that callers need not end it for a deadline.
        briefly: bool,
    },
    /// Sleep until a packet arrives.
    Watch {
        /// End of the sleep, unless the thread is kicked before.
        until_ns: u64,
        /// Whether the sleep is so short that callers need not end it for a deadline.
        briefly: bool,
    },
    /// Look for packets again and again, unless a caller polls.
    Linger {
        /// Time at which lingering ends at the latest.
        until_ns: u64,
        /// Current value of [`Glance::polls`]. Lingering ends when a poll changes the value.
        polls: u64,
    },
}

/// State of callers and engine when the policy decides.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Glance {
    /// Number of polls plus number of packets that polls received.
    pub(super) polls: u64,
    /// Number of posts.
    pub(super) posts: u64,
    /// Deadline of the next pump of the engine.
    pub(super) deadline_ns: u64,
    /// Whether another thread is driving the engine.
    pub(super) is_driven: bool,
    /// Whether the last poll found nothing.
    pub(super) found_nothing: bool,
    /// Whether a notification is armed and no caller lingers for it.
    pub(super) is_armed: bool,
    /// Value of [`polls`](Self::polls) when a notification was armed most recently.
    pub(super) armed_at: u64,
}

impl Glance {
    /// Returns whether a program sleeps until it is notified, or is about to. Returns false if the program has armed a
    /// notification but continues to poll, since its polls drive the engine. For example, UCX arms the queue of its
    /// datagrams and polls the queue of its connections.
    fn is_awaited(&self) -> bool {
        self.is_armed && self.polls.wrapping_sub(self.armed_at) < HABITS.polls_before_sleep
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The next action does not depend on the last result, only on the [`Glance`].
    Open,
    /// The thread naps for this time.
    Napping {
        nap_ns: u64,
    },
    /// The thread handles an expired deadline, and then naps for this time.
    Overdue {
        nap_ns: u64,
    },
    /// The thread checks whether packets waited in the socket during the whole nap.
    Judging,
    Watching {
        answers: bool,
    },
    /// The thread handles the packets that ended its watching, and may linger afterwards.
    Serving {
        answers: bool,
    },
    Lingering {
        answers: bool,
    },
}

/// State machine that decides on the thread's next action.
#[derive(Debug)]
pub(super) struct Policy {
    phase: Phase,
    naps: Naps,
    lingering: Lingering,
    /// Value of [`Glance::polls`] at the most recent decision to nap or to check all work. The field `posts` holds the
    /// value of [`Glance::posts`] at that time.
    polls: u64,
    posts: u64,
    /// Time of the last post.
    posted_ns: u64,
    /// Value of [`Glance::polls`] at the end of the last nap without a poll. While the value stays the same, the caller
    /// whose last poll found nothing is not expected to poll again.
    deserted_at: Option<u64>,
}

impl Policy {
    pub(super) fn new() -> Self {
        Self {
            phase: Phase::Open,
            naps: Naps::default(),
            lingering: Lingering::default(),
            polls: 0,
            posts: 0,
            posted_ns: 0,
            deserted_at: None,
        }
    }

    /// Returns the next action.
    pub(super) fn on(&mut self, event: Event, seen: &Glance, now_ns: u64) -> Action {
        match (mem::replace(&mut self.phase, Phase::Open), event) {
            (Phase::Napping { nap_ns }, Event::Napped { kicked }) => self.after_nap(nap_ns, kicked, seen, now_ns),
            (Phase::Overdue { nap_ns }, _) => self.nap(nap_ns, seen, now_ns),
            (Phase::Judging, Event::Pumped { packets: 1.. }) => {
                self.naps.was_wrong(now_ns);
                self.look_around(seen, now_ns)
            }
            (Phase::Watching { answers }, Event::Watched { ready: true }) => {
                if self.is_coming_back(seen) && self.naps.are_allowed(now_ns) {
                    return self.nap(HABITS.nap_ns, seen, now_ns);
                }
                self.phase = Phase::Serving { answers };
                Action::Pump(Self::acks(answers))
            }
            (Phase::Watching { answers }, _) => Action::Pump(Self::acks(answers)),
            (Phase::Serving { answers }, _) => self.linger(answers, seen, now_ns),
            (Phase::Lingering { answers }, Event::Lingered { in_vain }) => {
                self.lingering.ended(in_vain);
                if in_vain { self.look_around(seen, now_ns) } else { self.linger(answers, seen, now_ns) }
            }
            _ => self.look_around(seen, now_ns),
        }
    }

    /// Returns whether a caller is expected to poll again soon. A caller is expected if the last poll found nothing, or
    /// if a caller has polled since the thread's last decision. The second condition is needed because a packet may
    /// wake the thread while a caller's poll receives that packet. No caller is expected while a program sleeps until
    /// it is notified.
    fn is_coming_back(&self, seen: &Glance) -> bool {
        let found_nothing = seen.found_nothing && self.deserted_at != Some(seen.polls);
        (seen.polls != self.polls || found_nothing) && !seen.is_awaited()
    }

    /// Returns how long acknowledgements may wait. `answers` means that a program reads memory without polling, and
    /// answers by posting. Then acknowledgements wait for the answer and leave with it.
    fn acks(answers: bool) -> Acks {
        if answers { Acks::Wait } else { Acks::Now }
    }

    fn nap(&mut self, nap_ns: u64, seen: &Glance, now_ns: u64) -> Action {
        (self.polls, self.posts) = (seen.polls, seen.posts);
        self.phase = Phase::Napping { nap_ns };
        Action::Nap { until_ns: now_ns + nap_ns, briefly: nap_ns <= HABITS.brief_ns }
    }

    fn after_nap(&mut self, nap_ns: u64, kicked: bool, seen: &Glance, now_ns: u64) -> Action {
        let polls = seen.polls.wrapping_sub(self.polls);
        // If a caller is driving the engine now, its poll is not counted yet.
        let is_used = polls > 0 || seen.is_driven;
        if is_used {
            self.naps.was_right();
        } else {
            self.deserted_at = Some(seen.polls);
        }
        if polls > 0 && self.is_coming_back(seen) {
            let all_the_time = polls.saturating_mul(HABITS.polls_all_the_time_ns) >= nap_ns;
            let longest_ns = if all_the_time { HABITS.longest_nap_ns } else { HABITS.brief_ns };
            let nap_ns = (2 * nap_ns).min(longest_ns);
            // Callers drive the engine, but the deadline has expired, so the thread drives it once.
            if seen.deadline_ns <= now_ns {
                self.phase = Phase::Overdue { nap_ns };
                return Action::Pump(Acks::Now);
            }
            return self.nap(nap_ns, seen, now_ns);
        }
        self.phase = if is_used || kicked { Phase::Open } else { Phase::Judging };
        Action::Pump(Acks::Now)
    }

    /// Checks all work: drives the engine if the deadline has expired, and otherwise watches the socket.
    fn look_around(&mut self, seen: &Glance, now_ns: u64) -> Action {
        let (polled, posted) = (seen.polls != self.polls, seen.posts != self.posts);
        (self.polls, self.posts) = (seen.polls, seen.posts);
        if posted {
            self.posted_ns = now_ns;
        }
        let answers = now_ns - self.posted_ns < HABITS.brief_ns && !self.naps.are_allowed(now_ns);
        if seen.deadline_ns <= now_ns {
            return Action::Pump(Self::acks(answers));
        }
        self.phase = Phase::Watching { answers };
        let briefly = polled || posted;
        let soon_ns = if briefly { now_ns + HABITS.brief_ns } else { u64::MAX };
        Action::Watch { until_ns: seen.deadline_ns.min(soon_ns), briefly }
    }

    fn linger(&mut self, answers: bool, seen: &Glance, now_ns: u64) -> Action {
        if answers || seen.polls != self.polls || !self.lingering.begins() {
            return self.look_around(seen, now_ns);
        }
        self.phase = Phase::Lingering { answers };
        Action::Linger { until_ns: now_ns + HABITS.linger_ns, polls: self.polls }
    }
}

#[cfg(test)]
mod tests;
