//! Next action of the thread: rules (d) to (f) as a state machine without a thread, a socket or a clock.
//!
//! The thread carries out an [`Action`] and reports its result to the [`Policy`] as an [`Event`]. The policy returns
//! the next action. A [`Glance`] shows the policy the calls of callers since then.

use std::mem;

use super::habits::{HABITS, Lingering, Naps};
use crate::driver::Acks;

/// Result of the last action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// There was no action yet.
    Started,
    /// The engine was driven until everything that had arrived was handled.
    Pumped {
        /// Number of packets.
        packets: usize,
    },
    /// A nap is over.
    Napped {
        /// Another thread ended it early.
        kicked: bool,
    },
    /// The socket was watched.
    Watched {
        /// A packet arrived, or a full link has room again.
        ready: bool,
    },
    /// The thread lingered.
    Lingered {
        /// No packet arrived, and no caller polled.
        in_vain: bool,
    },
}

/// Next action of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Drive the engine until everything that has arrived is handled.
    Pump(Acks),
    /// Sleep without watching the socket: callers drive.
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
    /// Look for packets again and again, unless a caller does.
    Linger {
        /// Latest end of lingering.
        until_ns: u64,
        /// Value of [`Glance::polls`]: a caller that polls changes it.
        polls: u64,
    },
}

/// State of callers and engine when the policy decides.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Glance {
    /// Counts polls, and packets that polls received.
    pub(super) polls: u64,
    /// Counts posts.
    pub(super) posts: u64,
    /// Deadline of the next pump of the engine.
    pub(super) deadline_ns: u64,
    /// Whether another thread is driving the engine.
    pub(super) is_driven: bool,
    /// Whether the last poll found nothing.
    pub(super) found_nothing: bool,
    /// Whether a notification is armed and no caller lingers for it.
    pub(super) is_armed: bool,
    /// Value of [`polls`](Self::polls) when a notification was armed last.
    pub(super) armed_at: u64,
}

impl Glance {
    /// Returns whether a program is asleep until notified, or about to be. A program that continues to poll after it
    /// has armed a notification is neither: its polls drive the engine, which raises the notification. UCX arms the
    /// queue of its datagrams and polls the queue of its connections.
    fn is_awaited(&self) -> bool {
        self.is_armed && self.polls.wrapping_sub(self.armed_at) < HABITS.polls_before_sleep
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The last result implies no next action: the policy looks at everything anew.
    Open,
    /// The thread naps for this time.
    Napping {
        nap_ns: u64,
    },
    /// The thread does the overdue work, and then naps for this time.
    Overdue {
        nap_ns: u64,
    },
    /// The thread checks whether packets waited in the socket for a whole nap.
    Judging,
    Watching {
        answers: bool,
    },
    /// The thread handles the packets that it has watched for, and may linger then.
    Serving {
        answers: bool,
    },
    Lingering {
        answers: bool,
    },
}

/// Decides what the thread does next.
#[derive(Debug)]
pub(super) struct Policy {
    phase: Phase,
    naps: Naps,
    lingering: Lingering,
    /// Values of [`Glance`] when the thread looked at everything last.
    polls: u64,
    posts: u64,
    /// Time of the last post.
    posted_ns: u64,
    /// Number of polls at the end of a nap without a poll. While the number stays the same, an empty last poll does
    /// not mean that its caller will poll again.
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

    /// Returns whether a caller is going to poll again soon. This is so if the last poll found nothing, or if there
    /// was a poll since the thread looked last. The latter counts since a packet wakes the thread just when a
    /// caller's poll finds that packet. It is not so while a program sleeps until notified.
    fn is_coming_back(&self, seen: &Glance) -> bool {
        let found_nothing = seen.found_nothing && self.deserted_at != Some(seen.polls);
        (seen.polls != self.polls || found_nothing) && !seen.is_awaited()
    }

    /// Returns how acknowledgements may wait. A program that only looks at memory answers by posting; then an
    /// acknowledgement leaves with the answer.
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
        // A caller that is driving the engine now has begun a poll that is not counted yet.
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
            // Callers drive the engine, but the thread does overdue work.
            if seen.deadline_ns <= now_ns {
                self.phase = Phase::Overdue { nap_ns };
                return Action::Pump(Acks::Now);
            }
            return self.nap(nap_ns, seen, now_ns);
        }
        self.phase = if is_used || kicked { Phase::Open } else { Phase::Judging };
        Action::Pump(Acks::Now)
    }

    /// Looks at everything anew, and watches the socket unless work is overdue.
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
