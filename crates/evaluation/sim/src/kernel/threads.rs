//! Simulated threads: clocks, turns and waiting.

use std::sync::Arc;

use doorbell_rnic::CompletionQueue;

use super::World;
use super::events::{Event, EventKind};
use super::watch::{Change, ThreadId};
use crate::time::Ps;

/// Minimum length of a turn. Without this minimum, virtual time would stop while a thread only yields.
const LEAST_TURN: Ps = Ps(1_000);

/// Maximum number of clock readings in a row that take no virtual time. A thread that reads its clock more often is
/// waiting for a point in time, so each further reading takes [`READING`].
const READINGS_AT_ONCE: u32 = 8;

/// Time of a clock reading: the instruction for the time-stamp counter and the call around it.
const READING: Ps = Ps(20_000);

/// Conditions that end the wait of a thread, combined over its tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Suspension {
    /// Deadline of the wait.
    pub(crate) deadline: Option<Ps>,
    /// Whether the thread sleeps on a channel instead of polling.
    pub(crate) sleeps: bool,
    /// Whether the thread polls unregistered memory for results of other threads of its host.
    pub(crate) follows: bool,
}

impl Suspension {
    /// A sleep without a deadline. Only the waker of the thread ends this sleep.
    const ASLEEP: Self = Self { deadline: None, sleeps: true, follows: false };
}

/// State of a thread between turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadState {
    /// The thread has its turn, or its next turn is already an event.
    Runnable,
    /// The thread waits until an object that it looked at changes, or until its deadline.
    Waiting {
        /// Time that the thread needs to look once at all these objects.
        period: Ps,
        /// Latest time of the next turn.
        until: Option<Ps>,
        sleeps: bool,
        follows: bool,
        /// Whether the next turn is already an event, because one of these objects has changed.
        is_woken: bool,
    },
    /// The thread has ended.
    Over,
}

/// A simulated thread, without its future.
#[derive(Debug)]
pub(crate) struct Thread {
    pub(crate) name: String,
    pub(crate) node: usize,
    /// The thread that created this thread. The future of the parent contains the future of this thread.
    pub(crate) parent: Option<ThreadId>,
    pub(crate) clock: Ps,
    pub(crate) turn: u64,
    pub(crate) state: ThreadState,
    /// Begin of the current turn.
    began: Ps,
    /// Time that this turn spent on polls of empty queues.
    in_vain: Ps,
    /// Time that this turn spent on reading words of memory. This time counts as polling if the thread waits
    /// afterwards.
    loading: Ps,
    pub(crate) suspension: Option<Suspension>,
    /// Whether the waker of the thread was called since the last poll of its future.
    poked: bool,
    /// Queues that had more completions than the thread asked for in this turn.
    unread: Vec<Arc<CompletionQueue>>,
    /// Whether the thread runs several tasks in turns.
    pub(crate) has_tasks: bool,
    /// Whether the future of a thread with a parent has finished.
    pub(crate) is_done: bool,
    /// Clock of the thread after its last reading of the clock.
    read_at: Ps,
    /// Number of clock readings in a row without other work.
    readings: u32,
    /// Time of the earliest scheduled alarm.
    alarm_at: Ps,
    /// Time spent on useful work.
    pub(crate) worked: Ps,
    /// Time spent on polls that found nothing.
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
    /// Gives the thread another turn before it waits.
    pub(super) fn poke(&mut self) {
        self.poked = true;
    }

    /// Records a queue that has more completions than the thread took. If the thread polls next, it finds the remaining
    /// completions at once and does not wait for a change.
    pub(crate) fn left_completions_in(&mut self, queue: &Arc<CompletionQueue>) {
        if !self.unread.iter().any(|other| Arc::ptr_eq(other, queue)) {
            self.unread.push(Arc::clone(queue));
        }
    }

    /// Returns whether one of the `unread` queues still has completions, and clears `unread`.
    fn take_unread(&mut self) -> bool {
        let finds = self.unread.iter().any(|queue| !queue.is_empty());
        self.unread.clear();
        finds
    }
}

/// Returns the first time in steps of `period` from `clock` that is not before `at`.
fn round_up(clock: Ps, period: Ps, at: Ps) -> Ps {
    clock + period.times(at.since(clock).0.div_ceil(period.0.max(1)))
}

impl World {
    /// Adds a thread. Its first turn is at the clock of the running thread, or at the time of the hardware.
    pub(crate) fn add_thread(&mut self, node: usize, name: String) -> ThreadId {
        let thread = self.threads.len();
        let at = self.clock();
        self.threads.push(Thread::new(name, node, self.current, at));
        self.push(at, EventKind::Turn { thread: thread as u32, turn: 0 });
        thread
    }

    /// Sets the number of tasks that the running thread runs in turns. Returns the thread, and whether it ran several
    /// tasks before.
    pub(crate) fn set_tasks(&mut self, tasks: usize) -> Option<(ThreadId, bool)> {
        let thread = self.current?;
        Some((thread, std::mem::replace(&mut self.threads[thread].has_tasks, tasks > 1)))
    }

    /// Returns the root of a thread. This is the thread itself if no other thread created it, or else its oldest
    /// ancestor.
    pub(crate) fn root_of(&self, thread: ThreadId) -> ThreadId {
        std::iter::successors(Some(thread), |&thread| self.threads[thread].parent).last().unwrap_or(thread)
    }

    /// Ends a thread that another thread created.
    pub(crate) fn end_thread(&mut self, thread: ThreadId) {
        self.threads[thread].is_done = true;
        if self.current != Some(thread) {
            self.threads[thread].state = ThreadState::Over;
        }
    }

    /// Reads the clock of the running thread. After [`READINGS_AT_ONCE`] readings in a row, each reading takes time.
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

    /// Returns the CPU time of a node's threads so far, and the part of this time spent on polls that found nothing.
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

    /// Charges time to the running thread.
    #[inline]
    pub(crate) fn charge(&mut self, time: Ps) {
        if let Some(thread) = self.current {
            self.threads[thread].clock += time;
        }
    }

    /// Charges the running thread the time of a poll that found nothing.
    #[inline]
    pub(crate) fn charge_in_vain(&mut self, time: Ps) {
        if let Some(thread) = self.current {
            let thread = &mut self.threads[thread];
            thread.clock += time;
            thread.in_vain += time;
        }
    }

    /// Charges the running thread the time to read a word that another thread may write.
    #[inline]
    pub(crate) fn charge_load(&mut self, time: Ps) {
        if let Some(thread) = self.current {
            let thread = &mut self.threads[thread];
            thread.clock += time;
            thread.loading += time;
        }
    }

    /// Returns the running thread and the number of its turn.
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

    /// Resets the state of a thread before its future is polled.
    pub(crate) fn poll_begins(&mut self, thread: ThreadId) {
        self.threads[thread].poked = false;
        self.threads[thread].suspension = None;
    }

    /// Adds the length of a turn to the times of the thread. If the turn `did` useful work, wakes the threads of the
    /// host that poll for results of this thread.
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

    /// Wakes the followers of a thread: threads of the same host that poll for its results.
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

    /// Ends the turn of the running thread after its future was polled, and ends the thread if `is_over`.
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
        let turn = EventKind::Turn { thread: thread as u32, turn: own.turn as u32 };
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
        // The period is the time of the polls that found nothing, since the thread repeats these polls while it waits.
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

    /// Schedules an alarm for a thread, unless an earlier alarm is scheduled. A thread that waits many times for
    /// distant deadlines therefore needs only one alarm at a time.
    fn set_alarm(&mut self, thread: ThreadId, at: Ps) {
        if at < self.threads[thread].alarm_at {
            self.threads[thread].alarm_at = at;
            self.push(at, EventKind::Alarm { thread: thread as u32 });
        }
    }

    /// Schedules the next alarm of a thread after an alarm that did not start a turn.
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

    /// Returns the thread whose turn an event starts.
    pub(super) fn turn_of(&self, event: Event) -> Option<ThreadId> {
        match event.kind {
            EventKind::Turn { thread, turn } => {
                let thread = thread as usize;
                let awaited = &self.threads[thread];
                (awaited.turn as u32 == turn && awaited.state != ThreadState::Over).then_some(thread)
            }
            EventKind::Alarm { thread } => {
                let thread = thread as usize;
                let is_due = matches!(self.threads[thread].state, ThreadState::Waiting { until: Some(until), .. } if until <= event.at);
                is_due.then_some(thread)
            }
            _ => None,
        }
    }

    /// Records that a task of the running thread waits.
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

    /// Wakes the threads that looked at changed objects. A polling thread has its turn at its first look after the
    /// change.
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
        let turn = EventKind::Turn { thread: change.thread as u32, turn: own.turn as u32 };
        self.push(at, turn);
    }

    /// Describes the state of each thread and the outstanding work of each queue pair.
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
                let _ = writeln!(
                    text,
                    "node {number} dropped {dropped} messages of UC and UD, which are not retransmitted"
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
    fn a_thread_looks_again_at_multiples_of_its_period() {
        let round = |at| round_up(Ps(100), Ps(30), Ps(at));
        assert_eq!([0, 100, 101, 130, 131].map(round), [Ps(100), Ps(100), Ps(130), Ps(130), Ps(160)]);
    }
}
