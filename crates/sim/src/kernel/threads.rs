//! Simulated threads: their clocks, their turns, and what they wait for.

use std::sync::Arc;

use doorbell_rnic::CompletionQueue;

use super::World;
use super::events::{Event, What};
use super::watch::{Change, ThreadId};
use crate::time::Ps;

/// The least that a turn takes: a thread that does nothing but yield does not stop time.
const LEAST_TURN: Ps = Ps(1_000);

/// So often a thread may read its clock without doing anything between: then it waits for a time, and each reading takes
/// some.
const READINGS_AT_ONCE: u32 = 8;

/// What reading the clock takes: a time-stamp counter's instruction, and the call around it.
const READING: Ps = Ps(20_000);

/// Why a thread's turn ended, as its tasks say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Suspension {
    /// Until when it waits at the latest.
    pub(crate) deadline: Option<Ps>,
    /// It sleeps on a channel, instead of polling.
    pub(crate) sleeps: bool,
    /// It polls for what other threads of its host leave in memory that is not registered.
    pub(crate) follows: bool,
}

impl Suspension {
    /// Nobody says until when: a waker ends it.
    const ASLEEP: Self = Self { deadline: None, sleeps: true, follows: false };
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
        /// When it has its turn at the latest.
        until: Option<Ps>,
        sleeps: bool,
        follows: bool,
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
    /// The thread that made it, whose future has the future of this one in it.
    pub(crate) parent: Option<ThreadId>,
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
    /// Queues that had more completions than it asked for in this turn.
    unread: Vec<Arc<CompletionQueue>>,
    /// It runs several tasks in turns.
    pub(crate) has_tasks: bool,
    /// Its future is done, which lies in that of its parent.
    pub(crate) is_done: bool,
    /// When it read its clock last, and how often it did so without doing anything between.
    read_at: Ps,
    readings: u32,
    /// The earliest of its alarms.
    alarm_at: Ps,
    /// Time that it spent on what it had to do.
    pub(crate) worked: Ps,
    /// Time that it spent looking for something that was not there.
    pub(crate) polled: Ps,
    pub(crate) slept: Ps,
}

impl Thread {
    pub(crate) fn new(name: String, node: usize, parent: Option<ThreadId>, clock: Ps) -> Self {
        Self {
            name,
            node,
            parent,
            clock,
            turn: 0,
            state: ThreadState::Runnable,
            began: clock,
            in_vain: Ps::ZERO,
            loading: Ps::ZERO,
            suspension: None,
            poked: false,
            unread: Vec::new(),
            has_tasks: false,
            is_done: false,
            read_at: Ps::MAX,
            readings: 0,
            alarm_at: Ps::MAX,
            worked: Ps::ZERO,
            polled: Ps::ZERO,
            slept: Ps::ZERO,
        }
    }
}

impl Thread {
    /// It is to have another turn before it waits.
    pub(super) fn poke(&mut self) {
        self.poked = true;
    }

    /// It has taken as many completions as it asked for, and there are more. If it polls then, it finds them at once:
    /// nothing has to change first.
    pub(crate) fn left_completions_in(&mut self, queue: &Arc<CompletionQueue>) {
        if !self.unread.iter().any(|other| Arc::ptr_eq(other, queue)) {
            self.unread.push(Arc::clone(queue));
        }
    }

    /// Does one of those queues still have completions? They are forgotten.
    fn take_unread(&mut self) -> bool {
        let finds = self.unread.iter().any(|queue| !queue.is_empty());
        self.unread.clear();
        finds
    }
}

/// The first time from `clock` on, in steps of `period`, that is not before `at`.
fn round_up(clock: Ps, period: Ps, at: Ps) -> Ps {
    clock + period.times(at.since(clock).0.div_ceil(period.0.max(1)))
}

impl World {
    /// Enters a thread. Its first turn is when it is made: at the clock of the running thread, if that makes it.
    pub(crate) fn add_thread(&mut self, node: usize, name: String) -> ThreadId {
        let thread = self.threads.len();
        let at = self.clock();
        self.threads.push(Thread::new(name, node, self.current, at));
        self.push(at, What::Turn { thread: thread as u32, turn: 0 });
        thread
    }

    /// The running thread runs so many tasks in turns from now on. Returns which it is, and whether it ran several before.
    pub(crate) fn set_tasks(&mut self, tasks: usize) -> Option<(ThreadId, bool)> {
        let thread = self.current?;
        Some((thread, std::mem::replace(&mut self.threads[thread].has_tasks, tasks > 1)))
    }

    /// The thread at the root of those that made this one.
    pub(crate) fn root_of(&self, thread: ThreadId) -> ThreadId {
        std::iter::successors(Some(thread), |&thread| self.threads[thread].parent).last().unwrap_or(thread)
    }

    /// A thread that was made by another has nothing more to do.
    pub(crate) fn end_thread(&mut self, thread: ThreadId) {
        self.threads[thread].is_done = true;
        if self.current != Some(thread) {
            self.threads[thread].state = ThreadState::Over;
        }
    }

    /// The thread whose turn it is reads its clock. To read it again and again is to wait.
    pub(crate) fn read_clock(&mut self) -> Ps {
        let Some(thread) = self.current else { return self.now() };
        let own = &mut self.threads[thread];
        if own.read_at != own.clock {
            own.readings = 0;
        }
        own.readings += 1;
        if own.readings > READINGS_AT_ONCE {
            own.clock += READING;
        }
        own.read_at = own.clock;
        own.clock
    }

    /// CPU time of a node's threads so far, and how much of it they spent looking for something that was not there.
    pub(crate) fn cpu_time(&self, node: usize) -> (Ps, Ps) {
        let mut sum = (Ps::ZERO, Ps::ZERO);
        let clock = self.clock();
        for (number, thread) in self.threads.iter().enumerate().filter(|(_, thread)| thread.node == node) {
            let (mut worked, mut polled) = (thread.worked, thread.polled);
            match thread.state {
                ThreadState::Waiting { sleeps: false, .. } => polled += clock.since(thread.clock),
                ThreadState::Runnable if self.current == Some(number) => {
                    worked += thread.clock.since(thread.began).since(thread.in_vain);
                    polled += thread.in_vain;
                }
                _ => {}
            }
            sum = (sum.0 + worked + polled, sum.1 + polled);
        }
        sum
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
        if own.alarm_at <= now {
            own.alarm_at = Ps::MAX;
        }
        own.clock = own.clock.max(now);
        own.began = own.clock;
        own.in_vain = Ps::ZERO;
        own.loading = Ps::ZERO;
        if let ThreadState::Waiting { follows: true, .. } = own.state {
            self.followers.retain(|&follower| follower != thread);
        }
        own.state = ThreadState::Runnable;
        self.current = Some(thread);
    }

    /// The future of a thread is about to be polled.
    pub(crate) fn poll_begins(&mut self, thread: ThreadId) {
        self.threads[thread].poked = false;
        self.threads[thread].suspension = None;
    }

    /// A turn is over. If it `did` something, threads of the host that poll for that see it.
    pub(super) fn end_of_turn_length(&mut self, thread: ThreadId, did: bool) {
        let own = &mut self.threads[thread];
        let length = own.clock.since(own.began);
        own.worked += length.since(own.in_vain);
        own.polled += own.in_vain.min(length);
        self.counts.longest_turn_ps = self.counts.longest_turn_ps.max(length.0);
        if length > self.least_latency {
            self.counts.long_turns += 1;
        }
        if did && !self.followers.is_empty() {
            self.wake_followers(thread);
        }
    }

    /// A thread has done something, of which others of its host that poll for that see the result.
    fn wake_followers(&mut self, thread: ThreadId) {
        let Thread { node, clock, .. } = self.threads[thread];
        for place in 0..self.followers.len() {
            let follower = self.followers[place];
            let other = &self.threads[follower];
            if other.node == node && follower != thread {
                self.wake_one(Change { thread: follower, turn: other.turn, notifies: true }, clock);
            }
        }
    }

    /// The future of the running thread was polled: it is over, or its turn is.
    pub(crate) fn end_turn(&mut self, thread: ThreadId, is_over: bool) {
        self.wake();
        if !is_over && self.threads[thread].clock == self.threads[thread].began {
            self.charge_in_vain(LEAST_TURN);
        }
        let own = &self.threads[thread];
        let did = own.poked || own.clock.since(own.began) > own.in_vain;
        self.end_of_turn_length(thread, did);
        self.current = None;
        let wake = self.testbed.cpu.wake;
        let own = &mut self.threads[thread];
        let turn = What::Turn { thread: thread as u32, turn: own.turn as u32 };
        let clock = own.clock;
        if is_over || own.is_done {
            own.state = ThreadState::Over;
            return;
        }
        let finds = own.take_unread();
        if own.poked {
            return self.push(clock, turn);
        }
        let Suspension { deadline, sleeps, follows } = own.suspension.unwrap_or(Suspension::ASLEEP);
        if finds && !sleeps {
            return self.push(clock, turn);
        }
        own.worked = own.worked.since(own.loading);
        own.polled += own.loading;
        // What it does again and again while it waits is what it did in vain.
        let period = match own.in_vain + own.loading {
            Ps::ZERO => clock.since(own.began),
            looks => looks,
        };
        let period = period.max(LEAST_TURN);
        let until =
            deadline.map(|at| if sleeps { at.max(clock) + wake } else { round_up(clock, period, at).max(clock) });
        own.state = ThreadState::Waiting { period, until, sleeps, follows, is_woken: false };
        if follows {
            self.followers.push(thread);
        }
        if let Some(until) = until {
            self.set_alarm(thread, until);
        }
    }

    /// The thread has an event at this time or before. Those who wait again and again, until much later, have one in all.
    fn set_alarm(&mut self, thread: ThreadId, at: Ps) {
        if at < self.threads[thread].alarm_at {
            self.threads[thread].alarm_at = at;
            self.push(at, What::Alarm { thread: thread as u32 });
        }
    }

    /// An alarm came too early, or too late.
    pub(super) fn set_alarm_again(&mut self, thread: ThreadId) {
        let now = self.now();
        let own = &mut self.threads[thread];
        if own.alarm_at != now {
            return;
        }
        own.alarm_at = Ps::MAX;
        if let ThreadState::Waiting { until: Some(until), .. } = own.state {
            self.set_alarm(thread, until.max(now));
        }
    }

    /// The thread whose turn an event is.
    pub(super) fn turn_of(&self, event: Event) -> Option<ThreadId> {
        match event.what {
            What::Turn { thread, turn } => {
                let thread = thread as usize;
                let awaited = &self.threads[thread];
                (awaited.turn as u32 == turn && awaited.state != ThreadState::Over).then_some(thread)
            }
            What::Alarm { thread } => {
                let thread = thread as usize;
                let is_due = matches!(self.threads[thread].state, ThreadState::Waiting { until: Some(until), .. } if until <= event.at);
                is_due.then_some(thread)
            }
            _ => None,
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
                follows: other.follows || suspension.follows,
            },
        });
    }

    /// Threads whose things changed have their turn: now, rounded up to when they look.
    #[inline]
    pub(crate) fn wake(&mut self) {
        if self.changes.is_empty() {
            return;
        }
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
                ThreadState::Waiting { until, sleeps, .. } => {
                    let how = if sleeps { "sleeps" } else { "polls and finds nothing" };
                    match until {
                        Some(until) => format!("{how}, until {until} at the latest"),
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
                    "{} queue pair {} of node {number}: {:?}, {outstanding} sends outstanding, {unsent} of them not sent, \
                     next PSN {:?}, expects {:?}, {} RNR NAKs received",
                    info.kind.name(),
                    qp.qpn.get(),
                    info.state,
                    info.attributes.send_psn.map(doorbell_wire::Psn::get),
                    info.attributes.receive_psn.map(doorbell_wire::Psn::get),
                    info.counters.rnr_nak_received,
                );
            }
            let dropped = node.rnic.counters().rx_dropped_messages;
            if dropped > 0 {
                let _ =
                    writeln!(text, "node {number} dropped {dropped} messages of UC and UD, which nobody sends again");
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
