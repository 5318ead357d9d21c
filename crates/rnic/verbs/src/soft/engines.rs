//! Engines of a software RNIC, and the distribution of queue pairs to them.
//!
//! A thread that polls a completion queue drives the engines of the queue pairs that complete to it. So the queue pairs
//! of one completion queue get the same engine, and other queue pairs get the engines in turn.

use std::collections::HashMap;
use std::iter;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use doorbell_fabric::DrivenRnic;
use doorbell_rnic::{CompletionQueue, ENGINES_MAX, Objects, Rnic};
use doorbell_sync::IgnorePoison;
use doorbell_verbs_core::{Completion, Counters, CqId, LinkCounters, Overrun};

/// Engines of one device, in the order of their identifiers.
pub(super) struct Engines {
    all: Box<[Arc<DrivenRnic>]>,
    placement: Mutex<Placement>,
}

struct Placement {
    /// Engine of the next queue pair whose completion queues are unused.
    next: usize,
    cqs: HashMap<CqId, Arc<CqEngines>>,
}

/// Engines of the queue pairs that complete to one queue. Polls of the queue drive them.
#[derive(Debug, Default)]
pub(super) struct CqEngines {
    /// Engine of the first queue pair, or engine 0 if the queue is unused.
    home: AtomicUsize,
    /// Further engines, as bits.
    further: AtomicU32,
    /// Number of polls that had several engines to drive.
    polls: AtomicUsize,
    /// Number of work queues of each engine that complete to the queue.
    users: Mutex<[u32; ENGINES_MAX]>,
}

impl CqEngines {
    fn users(&self) -> MutexGuard<'_, [u32; ENGINES_MAX]> {
        self.users.lock().ignore_poison()
    }

    /// Returns the engine for a further queue pair, if the queue has queue pairs.
    fn used_home(&self) -> Option<usize> {
        self.users().iter().any(|&users| users > 0).then(|| self.home.load(Ordering::Relaxed))
    }

    fn change(&self, engine: usize, change: impl FnOnce(&mut u32)) {
        let mut users = self.users();
        change(&mut users[engine]);
        let mut home = self.home.load(Ordering::Relaxed);
        if users[home] == 0 {
            home = users.iter().position(|&users| users > 0).unwrap_or(0);
        }
        let others = (0..ENGINES_MAX).filter(|&other| other != home && users[other] > 0);
        self.further.store(others.fold(0, |bits, other| bits | 1 << other), Ordering::Relaxed);
        self.home.store(home, Ordering::Relaxed);
    }

    /// Returns the engines as bits.
    fn bits(&self) -> u32 {
        1 << self.home.load(Ordering::Relaxed) | self.further.load(Ordering::Relaxed)
    }

    /// Returns the engines, in their order from the home on.
    fn list(&self) -> impl Iterator<Item = usize> + use<> {
        let further = self.further.load(Ordering::Relaxed);
        let others = (0..ENGINES_MAX).filter(move |&other| further & 1 << other != 0);
        iter::once(self.home.load(Ordering::Relaxed)).chain(others)
    }
}

impl Engines {
    /// Creates the list of at least one engine.
    pub(super) fn new(all: Vec<DrivenRnic>) -> Self {
        // Engine 0 also gets the packets that name no engine. So the other engines come first.
        let placement = Placement { next: all.len() - 1, cqs: HashMap::new() };
        Self { all: all.into_iter().map(Arc::new).collect(), placement: Mutex::new(placement) }
    }

    /// Returns the engine that creates and destroys objects other than queue pairs.
    #[inline]
    pub(super) fn first(&self) -> &Arc<DrivenRnic> {
        &self.all[0]
    }

    pub(super) fn all(&self) -> &[Arc<DrivenRnic>] {
        &self.all
    }

    fn placement(&self) -> MutexGuard<'_, Placement> {
        self.placement.lock().ignore_poison()
    }

    /// Runs an operation on the first engine that destroys a region or a window. Then makes the others forget it.
    pub(super) fn destroy<R, E>(&self, operation: impl FnOnce(&mut Rnic) -> Result<R, E>) -> Result<R, E> {
        let done = self.first().with(operation)?;
        self.all[1..].iter().for_each(|engine| engine.with(Rnic::forget_gone));
        Ok(done)
    }

    /// Enters a completion queue without queue pairs.
    pub(super) fn enter_cq(&self, cq: CqId) -> Arc<CqEngines> {
        let engines = Arc::<CqEngines>::default();
        self.placement().cqs.insert(cq, Arc::clone(&engines));
        engines
    }

    /// Removes a completion queue, before its number is free for another one.
    pub(super) fn leave_cq(&self, cq: CqId) {
        self.placement().cqs.remove(&cq);
    }

    /// Returns the engine of a new queue pair, and counts the queue pair as a user of its completion queues.
    pub(super) fn place(&self, cqs: [CqId; 2]) -> usize {
        let mut placement = self.placement();
        let mut homes = cqs.iter().filter_map(|cq| placement.cqs.get(cq)?.used_home());
        let engine = homes.next().unwrap_or(placement.next);
        if engine == placement.next {
            placement.next = (engine + 1) % self.all.len();
        }
        for cq in cqs {
            if let Some(engines) = placement.cqs.get(&cq) {
                engines.change(engine, |users| *users += 1);
            }
        }
        engine
    }

    /// Counts a queue pair of an engine no longer as a user of its completion queues.
    pub(super) fn displace(&self, engine: usize, cqs: [CqId; 2]) {
        let placement = self.placement();
        for cq in cqs {
            if let Some(engines) = placement.cqs.get(&cq) {
                engines.change(engine, |users| *users -= 1);
            }
        }
    }

    /// Returns completions from a queue. If the queue is empty, drives its engines until it has completions.
    #[inline]
    pub(super) fn poll(
        &self,
        engines: &CqEngines,
        queue: &CompletionQueue,
        out: &mut [Completion],
    ) -> Result<usize, Overrun> {
        if engines.further.load(Ordering::Relaxed) != 0 {
            return self.poll_several(engines, queue, out);
        }
        self.all[engines.home.load(Ordering::Relaxed)].poll(queue, out)
    }

    #[cold]
    fn poll_several(
        &self,
        engines: &CqEngines,
        queue: &CompletionQueue,
        out: &mut [Completion],
    ) -> Result<usize, Overrun> {
        // Begin with another engine each time, so that none of them waits for the others to have no completions.
        let skipped = engines.polls.fetch_add(1, Ordering::Relaxed) % engines.list().count();
        for engine in engines.list().skip(skipped).chain(engines.list().take(skipped)) {
            let count = self.all[engine].poll(queue, out)?;
            if count > 0 {
                return Ok(count);
            }
        }
        Ok(0)
    }

    /// Ends naps of the threads of a queue's engines, because a caller is about to sleep until it is notified.
    pub(super) fn rouse(&self, engines: &CqEngines) {
        engines.list().for_each(|engine| self.all[engine].rouse());
    }

    /// Lingers with the engines of several completion queues, as [`DrivenRnic::linger`] does.
    pub(super) fn linger(&self, queues: &Mutex<Vec<Arc<CqEngines>>>, notified: impl Fn() -> bool) -> bool {
        if self.all.len() == 1 {
            return self.first().linger(&[], notified);
        }
        let engines = queues.lock().ignore_poison().iter().fold(0, |engines, queue| engines | queue.bits());
        let mut used = [&**self.first(); ENGINES_MAX];
        let mut count = 0;
        for (index, engine) in self.all.iter().enumerate() {
            if engines & 1 << index != 0 {
                used[count] = engine;
                count += 1;
            }
        }
        used[0].linger(&used[1..count.max(1)], notified)
    }

    pub(super) fn drive(&self) {
        for engine in &self.all {
            engine.drive();
        }
    }

    pub(super) fn counters(&self) -> impl Iterator<Item = Counters> {
        self.all.iter().map(|engine| engine.with(|rnic| *rnic.counters()))
    }

    pub(super) fn link_counters(&self) -> LinkCounters {
        let each = self.all.iter().map(|engine| engine.link_counters());
        each.fold(LinkCounters::default(), |sum, counters| sum.plus(&counters))
    }

    /// Returns the counters of the device and its link; `None` while another call uses an engine.
    pub(super) fn try_counters(&self) -> Option<(Counters, LinkCounters)> {
        let none = (Counters::default(), LinkCounters::default());
        self.all.iter().try_fold(none, |(sum, link_sum), engine| {
            let (counters, link_counters) = engine.try_counters()?;
            Some((sum.plus(&counters), link_sum.plus(&link_counters)))
        })
    }

    pub(super) fn objects(&self) -> Objects {
        let mut each = self.all.iter().map(|engine| engine.with(|rnic| rnic.objects()));
        let first = each.next().unwrap_or_default();
        each.fold(first, |sum, objects| sum.with_engine(&objects))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_keeps_its_home_until_the_last_queue_pair_of_that_engine_is_gone() {
        let engines = CqEngines::default();
        assert_eq!(engines.used_home(), None);
        engines.change(2, |users| *users += 2);
        engines.change(0, |users| *users += 1);
        engines.change(3, |users| *users += 1);
        assert_eq!((engines.used_home(), engines.list().collect::<Vec<_>>()), (Some(2), vec![2, 0, 3]));
        engines.change(2, |users| *users -= 2);
        assert_eq!((engines.used_home(), engines.list().collect::<Vec<_>>()), (Some(0), vec![0, 3]));
        engines.change(3, |users| *users -= 1);
        engines.change(0, |users| *users -= 1);
        assert_eq!((engines.used_home(), engines.list().collect::<Vec<_>>()), (None, vec![0]));
    }
}
