//! Engines of a software RNIC, and the distribution of queue pairs to them.
//!
//! A thread that polls a completion queue drives the engines of the queue pairs that complete to it. So the queue pairs
//! of one completion queue get the same engine. By default, so do the queue pairs that one thread creates, since that
//! thread may poll one of its queues and expect progress on all. Other queue pairs get the engines in turn.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::iter;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use doorbell_fabric::DrivenRnic;
use doorbell_rnic::{CompletionQueue, ENGINES_MAX, Objects, Rnic};
use doorbell_sync::IgnorePoison;
use doorbell_verbs_core::{Completion, Counters, CqId, LinkCounters, Overrun};
use nix::unistd::{Pid, gettid};

/// Engines of one device, in the order of their identifiers.
pub(super) struct Engines {
    all: Box<[Arc<DrivenRnic>]>,
    /// Engines that have had queue pairs, as bits.
    used: AtomicU32,
    placement: Mutex<Placement>,
}

struct Placement {
    /// Whether the queue pairs that one thread creates share an engine.
    by_creator: bool,
    /// Engine of the next queue pair that need not share one.
    next: usize,
    cqs: HashMap<CqId, Arc<CqEngines>>,
    /// Threads by their identifiers; none unless their queue pairs share an engine.
    creators: HashMap<Pid, Creator>,
}

/// Thread that has created queue pairs.
struct Creator {
    engine: usize,
    /// Number of queue pairs that exist.
    qps: usize,
}

/// Engine of a queue pair, and the thread that has created the queue pair.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) engine: usize,
    creator: Pid,
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

impl Placement {
    fn enter(&mut self, place: Place, cqs: [CqId; 2]) {
        if self.by_creator {
            self.creators.entry(place.creator).or_insert(Creator { engine: place.engine, qps: 0 }).qps += 1;
        }
        self.change(place, cqs, |users| *users += 1);
    }

    fn leave(&mut self, place: Place, cqs: [CqId; 2]) {
        if let Entry::Occupied(mut creator) = self.creators.entry(place.creator) {
            creator.get_mut().qps -= 1;
            if creator.get().qps == 0 {
                creator.remove();
            }
        }
        self.change(place, cqs, |users| *users -= 1);
    }

    fn change(&self, place: Place, cqs: [CqId; 2], change: impl Fn(&mut u32)) {
        for engines in cqs.iter().filter_map(|cq| self.cqs.get(cq)) {
            engines.change(place.engine, &change);
        }
    }
}

impl Engines {
    /// Creates the list of at least one engine.
    pub(super) fn new(all: Vec<DrivenRnic>) -> Self {
        let placement = Placement { by_creator: false, next: 0, cqs: HashMap::new(), creators: HashMap::new() };
        let all = all.into_iter().map(Arc::new).collect();
        Self { all, used: AtomicU32::new(0), placement: Mutex::new(placement) }
    }

    /// Makes the queue pairs that one thread creates share an engine. Call it before there are queue pairs.
    pub(super) fn place_by_creator(&self) {
        self.placement().by_creator = true;
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

    /// Chooses the engine of a new queue pair, and counts the queue pair as a user of its completion queues.
    pub(super) fn place(&self, cqs: [CqId; 2]) -> Place {
        let creator = gettid();
        let mut placement = self.placement();
        let mut homes = cqs.iter().filter_map(|cq| placement.cqs.get(cq)?.used_home());
        let shared = homes.next().or_else(|| placement.creators.get(&creator).map(|creator| creator.engine));
        let engine = shared.unwrap_or(placement.next);
        if shared.is_none() {
            placement.next = (engine + 1) % self.all.len();
        }
        let place = Place { engine, creator };
        self.enter(&mut placement, place, cqs);
        place
    }

    /// Moves a queue pair that does not exist yet to the first engine, whose thread began with the device.
    pub(super) fn place_first(&self, place: Place, cqs: [CqId; 2]) -> Place {
        let mut placement = self.placement();
        placement.leave(place, cqs);
        let place = Place { engine: 0, ..place };
        self.enter(&mut placement, place, cqs);
        place
    }

    fn enter(&self, placement: &mut Placement, place: Place, cqs: [CqId; 2]) {
        self.used.fetch_or(1 << place.engine, Ordering::Relaxed);
        placement.enter(place, cqs);
    }

    /// Counts a queue pair no longer as a user of its completion queues.
    pub(super) fn displace(&self, place: Place, cqs: [CqId; 2]) {
        self.placement().leave(place, cqs);
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

    /// Sends the packets of deferred posts of a queue's engines.
    pub(super) fn send_deferred(&self, engines: &CqEngines) {
        engines.list().for_each(|engine| self.all[engine].send_deferred());
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
        let engines = self.bits_of(queues);
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

    /// Returns the engines of several completion queues, as bits.
    fn bits_of(&self, queues: &Mutex<Vec<Arc<CqEngines>>>) -> u32 {
        let used = self.used.load(Ordering::Relaxed);
        let mut engines = 0;
        for queue in queues.lock().ignore_poison().iter() {
            engines |= queue.bits();
            if engines & used == used {
                break; // a channel may have thousands of queues
            }
        }
        engines
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
