//! Model of the private caches of cores. The receive queues from which one thread takes messages evict each other from
//! the cache of its core.

use doorbell_verbs_core::SrqId;
use doorbell_wire::Qpn;
use rustc_hash::FxHashMap;

use super::World;
use super::watch::ThreadId;
use crate::testbed::Cpu;
use crate::time::Ps;

/// A receive queue: owned by a queue pair, or shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Receives {
    Own(Qpn),
    Shared(SrqId),
}

/// Receive queues from which each thread takes messages.
#[derive(Debug, Default)]
pub(crate) struct Caches {
    /// For each node and queue, the last thread that took a message from the queue.
    users: FxHashMap<(usize, Receives), ThreadId>,
    /// For each thread, the number of its queues in `users`.
    queues: Vec<u64>,
    /// The queue of the last message and the thread that took it. Nearly always, the next message comes from the same
    /// queue.
    last: Option<(usize, Qpn, ThreadId)>,
}

impl Caches {
    /// Records that a thread takes a message from a queue. Returns the time to load the lines that the cache of its
    /// core lacks.
    ///
    /// The model assumes that messages come evenly from all queues of the thread. The share of lines that miss then
    /// equals the share of the working set that exceeds the cache.
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

    /// Returns the time that a thread waits for cache lines with each message.
    fn cost(&self, cpu: &Cpu, thread: ThreadId) -> Ps {
        let touched = self.queues[thread].saturating_mul(cpu.queue_pair);
        let beyond = touched.saturating_sub(cpu.cache);
        if beyond == 0 {
            return Ps::ZERO;
        }
        let all = u128::from(cpu.cache_miss.times(cpu.lines_per_message).0);
        // The result is at most `all`, so it fits into 64 bits.
        Ps((all * u128::from(beyond) / u128::from(touched)) as u64)
    }
}

impl World {
    /// Forgets the last queue, since its queue pair number may now belong to another queue pair of the node.
    pub(crate) fn forget_last_queue(&mut self) {
        self.caches.last = None;
    }

    /// Returns the time that the running thread waits for cache lines when it takes a message of a queue pair.
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
    fn lines_miss_once_the_queues_of_a_thread_exceed_its_cache() {
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
        assert_eq!([take(2, shared), take(2, shared)], [Ps::ZERO; 2], "a shared queue counts once");
    }
}
