//! Simulated threads: their clocks, their turns, and what they wait for.

use super::watch::{Change, ThreadId};
use super::{What, World};
use crate::time::Ps;

/// The least that a turn takes: a thread that does nothing but yield does not stop time.
const LEAST_TURN: Ps = Ps(1_000);

/// Why a thread's turn ended, as its tasks say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Suspension {
    /// Until when it waits at the latest.
    pub(crate) deadline: Option<Ps>,
    /// It sleeps on a channel, instead of polling.
    pub(crate) sleeps: bool,
}

/// What a thread does between turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadState {
    /// Its next turn is an event.
    Runnable,
    /// It waits until something that it looked at changes, or for its deadline.
    Waiting {
        /// How long one look takes.
        period: Ps,
        deadline: Option<Ps>,
        sleeps: bool,
        /// Its next turn is an event already, because something changed.
        is_woken: bool,
    },
    /// It has ended.
    Over,
}

/// A simulated thread, without its future.
#[derive(Debug)]
pub(crate) struct Thread {
    pub(crate) name: String,
    pub(crate) node: usize,
    pub(crate) clock: Ps,
    pub(crate) turn: u64,
    pub(crate) state: ThreadState,
    /// When the turn began.
    began: Ps,
    /// What it spent in this turn on looking into empty queues.
    in_vain: Ps,
    /// What it spent on reading words of memory, which is in vain if it waits then.
    loading: Ps,
    pub(crate) suspension: Option<Suspension>,
    /// Its waker was called since its future was polled.
    poked: bool,
    /// Time that it spent on what it had to do.
    pub(crate) worked: Ps,
    /// Time that it spent looking for something that was not there.
    pub(crate) polled: Ps,
    pub(crate) slept: Ps,
}

impl Thread {
    pub(crate) fn new(name: String, node: usize, clock: Ps) -> Self {
        Self {
            name,
            node,
            clock,
            turn: 0,
            state: ThreadState::Runnable,
            began: clock,
            in_vain: Ps::ZERO,
            loading: Ps::ZERO,
            suspension: None,
            poked: false,
            worked: Ps::ZERO,
            polled: Ps::ZERO,
            slept: Ps::ZERO,
        }
    }
}

/// The first time from `clock` on, in steps of `period`, that is not before `at`.
fn round_up(clock: Ps, period: Ps, at: Ps) -> Ps {
    clock + period.times(at.since(clock).0.div_ceil(period.0.max(1)))
}

impl World {
    /// Enters a thread, whose first turn is now.
    pub(crate) fn add_thread(&mut self, node: usize, name: String) -> ThreadId {
        let thread = self.threads.len();
        let now = self.now();
        self.threads.push(Thread::new(name, node, now));
        self.push(now, What::Turn { thread: thread as u32, turn: 0 });
        thread
    }

    /// The running thread spends time.
    #[inline]
    pub(crate) fn charge(&mut self, time: Ps) {
        if let Some(thread) = self.current {
            self.threads[thread].clock += time;
        }
    }

    /// The running thread spends time on a look that finds nothing.
    #[inline]
    pub(crate) fn charge_in_vain(&mut self, time: Ps) {
        if let Some(thread) = self.current {
            let thread = &mut self.threads[thread];
            thread.clock += time;
            thread.in_vain += time;
        }
    }

    /// The running thread spends time on reading a word that another may write.
    #[inline]
    pub(crate) fn charge_load(&mut self, time: Ps) {
        if let Some(thread) = self.current {
            let thread = &mut self.threads[thread];
            thread.clock += time;
            thread.loading += time;
        }
    }

    /// The running thread and its turn.
    #[inline]
    pub(crate) fn looker(&self) -> Option<(ThreadId, u64)> {
        self.current.map(|thread| (thread, self.threads[thread].turn))
    }

    pub(super) fn begin_turn(&mut self, thread: ThreadId) {
        let now = self.now();
        self.counts.turns += 1;
        self.mix(now.0);
        self.mix(thread as u64);
        let own = &mut self.threads[thread];
        let passed = now.since(own.clock);
        if let ThreadState::Waiting { sleeps: true, .. } = own.state {
            own.slept += passed;
        } else {
            own.polled += passed;
        }
        own.turn += 1;
        own.clock = own.clock.max(now);
        own.began = own.clock;
        own.in_vain = Ps::ZERO;
        own.loading = Ps::ZERO;
        own.state = ThreadState::Runnable;
        self.current = Some(thread);
    }

    /// The future of a thread is about to be polled.
    pub(crate) fn poll_begins(&mut self, thread: ThreadId) {
        self.threads[thread].poked = false;
        self.threads[thread].suspension = None;
    }

    pub(super) fn end_of_turn_length(&mut self, thread: ThreadId) {
        let own = &mut self.threads[thread];
        let length = own.clock.since(own.began);
        own.worked += length.since(own.in_vain);
        own.polled += own.in_vain.min(length);
        self.counts.longest_turn_ps = self.counts.longest_turn_ps.max(length.0);
        if length > self.least_latency {
            self.counts.long_turns += 1;
        }
    }

    /// The future of the running thread was polled: it is over, or its turn is.
    pub(crate) fn end_turn(&mut self, thread: ThreadId, is_over: bool) {
        self.wake();
        if !is_over && self.threads[thread].clock == self.threads[thread].began {
            self.charge_in_vain(LEAST_TURN);
        }
        self.end_of_turn_length(thread);
        self.current = None;
        let wake = self.testbed.cpu.wake;
        let own = &mut self.threads[thread];
        let turn = What::Turn { thread: thread as u32, turn: own.turn as u32 };
        let clock = own.clock;
        if is_over {
            own.state = ThreadState::Over;
            return;
        }
        if own.poked {
            return self.push(clock, turn);
        }
        let never = Suspension { deadline: None, sleeps: true };
        let Suspension { deadline, sleeps } = own.suspension.unwrap_or(never);
        own.worked = own.worked.since(own.loading);
        own.polled += own.loading;
        // What it does again and again while it waits is what it did in vain.
        let period = match own.in_vain + own.loading {
            Ps::ZERO => clock.since(own.began),
            looks => looks,
        };
        let period = period.max(LEAST_TURN);
        own.state = ThreadState::Waiting { period, deadline, sleeps, is_woken: false };
        if let Some(deadline) = deadline {
            let at = if sleeps { deadline.max(clock) + wake } else { round_up(clock, period, deadline) };
            self.push(at, turn);
        }
    }

    /// A task of the running thread waits.
    pub(crate) fn suspend(&mut self, suspension: Suspension) {
        let Some(thread) = self.current else { return };
        let place = &mut self.threads[thread].suspension;
        *place = Some(match *place {
            None => suspension,
            Some(other) => Suspension {
                deadline: match (other.deadline, suspension.deadline) {
                    (Some(one), Some(other)) => Some(one.min(other)),
                    (one, other) => one.or(other),
                },
                // A task that polls keeps the thread awake.
                sleeps: other.sleeps && suspension.sleeps,
            },
        });
    }

    /// Threads whose things changed have their turn: now, rounded up to when they look.
    #[inline]
    pub(crate) fn wake(&mut self) {
        let mut taken = std::mem::take(&mut self.taken);
        self.changes.take(&mut taken);
        let at = self.clock();
        for change in taken.drain(..) {
            self.wake_one(change, at);
        }
        self.taken = taken;
    }

    fn wake_one(&mut self, change: Change, at: Ps) {
        let wake = self.testbed.cpu.wake;
        let own = &mut self.threads[change.thread];
        let poked = change.turn == Change::ANY_TURN;
        own.poked |= poked;
        let ThreadState::Waiting { period, sleeps, is_woken, .. } = &mut own.state else { return };
        let concerns = poked || (change.turn == own.turn && (change.notifies || !*sleeps));
        if !concerns || std::mem::replace(is_woken, true) {
            return;
        }
        let at = if *sleeps { at.max(own.clock) + wake } else { round_up(own.clock, *period, at) };
        let turn = What::Turn { thread: change.thread as u32, turn: own.turn as u32 };
        self.push(at, turn);
    }

    /// What each thread does and each queue pair has outstanding: sentences.
    pub(crate) fn report(&self) -> String {
        use std::fmt::Write;
        let mut text = String::new();
        for thread in &self.threads {
            let what = match thread.state {
                ThreadState::Over => "has ended".to_owned(),
                ThreadState::Runnable => "can run".to_owned(),
                ThreadState::Waiting { deadline, sleeps, .. } => {
                    let how = if sleeps { "sleeps" } else { "polls and finds nothing" };
                    match deadline {
                        Some(deadline) => format!("{how}, until {deadline} at the latest"),
                        None => format!("{how}, without a deadline"),
                    }
                }
            };
            let (name, node, clock) = (&thread.name, thread.node, thread.clock);
            let _ = writeln!(text, "thread {name} on node {node} at {clock}: {what}");
        }
        for (number, node) in self.nodes.iter().enumerate() {
            for (_, qp) in &node.queue_pairs {
                let Some(info) = node.rnic.query_qp(qp.qpn) else { continue };
                let (outstanding, unsent) = (info.outstanding_sends, node.rnic.pending_work(qp.qpn));
                let _ = writeln!(
                    text,
                    "queue pair {} of node {number}: {:?}, {outstanding} sends outstanding, {unsent} of them not sent, \
                     next PSN {:?}, expects {:?}, {} RNR NAKs received",
                    qp.qpn.get(),
                    info.state,
                    info.attributes.send_psn.map(doorbell_wire::Psn::get),
                    info.attributes.receive_psn.map(doorbell_wire::Psn::get),
                    info.counters.rnr_nak_received,
                );
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_looks_again_in_steps_of_its_period() {
        let round = |at| round_up(Ps(100), Ps(30), Ps(at));
        assert_eq!([0, 100, 101, 130, 131].map(round), [Ps(100), Ps(100), Ps(130), Ps(130), Ps(160)]);
    }
}
