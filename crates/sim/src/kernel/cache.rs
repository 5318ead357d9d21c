//! What threads have in their cores' caches: queues that they take messages from push each other out.

use doorbell_verbs_core::SrqId;
use doorbell_wire::Qpn;
use rustc_hash::FxHashMap;

use super::World;
use super::watch::ThreadId;
use crate::testbed::Cpu;
use crate::time::Ps;

/// A queue of receives: of a queue pair's own, or shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Receives {
    Own(Qpn),
    Shared(SrqId),
}

/// Which queues each thread takes messages from.
#[derive(Debug, Default)]
pub(crate) struct Caches {
    /// Of each queue, by node, the thread that took from it last.
    users: FxHashMap<(usize, Receives), ThreadId>,
    /// Of each thread, how many queues those are.
    queues: Vec<u64>,
    /// The queue that a message was taken from last, and by whom: nearly always the next one comes from there too.
    last: Option<(usize, Qpn, ThreadId)>,
}

impl Caches {
    /// A thread takes a message from a queue: what the lines cost that are not in its cache.
    ///
    /// Messages come from all queues alike, so the share of lines that miss is the share of what the thread touches in
    /// turn that the cache has no room for.
    fn take(&mut self, cpu: &Cpu, thread: ThreadId, node: usize, receives: Receives) -> Ps {
        if self.queues.len() <= thread {
            self.queues.resize(thread + 1, 0);
        }
        let before = self.users.insert((node, receives), thread);
        if before != Some(thread) {
            self.queues[thread] += 1;
            if let Some(before) = before {
                self.queues[before] -= 1;
            }
        }
        self.cost(cpu, thread)
    }

    /// The lines that a thread waits for with each message.
    fn cost(&self, cpu: &Cpu, thread: ThreadId) -> Ps {
        let touched = self.queues[thread].saturating_mul(cpu.queue_pair);
        let beyond = touched.saturating_sub(cpu.cache);
        if beyond == 0 {
            return Ps::ZERO;
        }
        let all = u128::from(cpu.cache_miss.times(cpu.lines_per_message).0);
        // No more than all of them, so it fits.
        Ps((all * u128::from(beyond) / u128::from(touched)) as u64)
    }
}

impl World {
    /// Queue pairs come or go on a node: a number may be another's now.
    pub(crate) fn forget_last_queue(&mut self) {
        self.caches.last = None;
    }

    /// The running thread takes a message that came on a queue pair: what it waits for lines that its cache does not
    /// have.
    pub(crate) fn misses(&mut self, node: usize, qpn: Qpn) -> Ps {
        let Some(thread) = self.current else { return Ps::ZERO };
        if self.caches.last == Some((node, qpn, thread)) {
            return self.caches.cost(&self.testbed.cpu, thread);
        }
        self.caches.last = Some((node, qpn, thread));
        let host = &self.nodes[node];
        let srq = host.slot(qpn).and_then(|slot| host.queue_pairs[slot].srq);
        self.caches.take(&self.testbed.cpu, thread, node, srq.map_or(Receives::Own(qpn), Receives::Shared))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed;

    #[test]
    fn lines_miss_once_a_thread_takes_from_more_queues_than_its_cache_has_room_for() {
        let mut cpu = testbed::by_name("connectx5-100g").expect("a testbed").cpu.clone();
        (cpu.cache, cpu.queue_pair, cpu.lines_per_message, cpu.cache_miss) = (8192, 4096, 3, Ps(1000));
        let mut caches = Caches::default();
        let own = |number| Receives::Own(Qpn::new(number));
        let mut take = |thread, receives| caches.take(&cpu, thread, 0, receives);
        assert_eq!([1, 2, 1].map(|number| take(0, own(number))), [Ps::ZERO; 3]);
        assert_eq!([3, 4].map(|number| take(0, own(number))), [Ps(1000), Ps(1500)]);
        assert_eq!([1, 2, 3, 4].map(|number| take(0, own(number))), [Ps(1500); 4], "no queue is counted twice");
        assert_eq!(take(1, own(4)), Ps::ZERO, "a queue goes to the thread that takes from it");
        assert_eq!(take(0, own(1)), Ps(1000));
        let shared = Receives::Shared(SrqId(7));
        assert_eq!([take(2, shared), take(2, shared)], [Ps::ZERO; 2], "one queue, whoever shares it");
    }
}
