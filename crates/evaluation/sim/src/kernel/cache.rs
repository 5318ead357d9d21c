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

/// A receive queue as a thread uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Use {
    thread: ThreadId,
    /// Bytes of the queue that the core of the thread touches.
    bytes: u64,
}

/// Receive queues from which each thread takes messages.
#[derive(Debug, Default)]
pub(crate) struct Caches {
    /// For each node and queue, the thread that took the last message from the queue.
    users: FxHashMap<(usize, Receives), Use>,
    /// For each thread, the bytes of its queues in `users`.
    touched: Vec<u64>,
    /// The queue of the last message, whether the message was in its completion, and the thread that took it. Nearly
    /// always, the next message comes from the same queue.
    last: Option<(usize, Qpn, bool, ThreadId)>,
}

/// Returns the bytes of a queue that a core touches. If messages are in their completions, the core copies them, and so
/// touches the buffers too.
fn bytes_of(cpu: &Cpu, is_inline: bool) -> u64 {
    cpu.queue_pair + if is_inline { cpu.inline_buffers } else { 0 }
}

impl Caches {
    /// Records that a thread takes a message from a queue, of which its core touches `bytes`.
    fn take(&mut self, thread: ThreadId, node: usize, receives: Receives, bytes: u64) {
        if self.touched.len() <= thread {
            self.touched.resize(thread + 1, 0);
        }
        if let Some(before) = self.users.insert((node, receives), Use { thread, bytes }) {
            self.touched[before.thread] -= before.bytes;
        }
        self.touched[thread] += bytes;
    }

    /// Returns the time that a thread waits with each message for the lines that the cache of its core lacks.
    ///
    /// The model assumes that messages come evenly from all queues of the thread. The share of lines that miss then
    /// equals the share of the working set that exceeds the cache.
    fn cost(&self, cpu: &Cpu, thread: ThreadId, is_inline: bool) -> Ps {
        let touched = self.touched[thread];
        let beyond = touched.saturating_sub(cpu.cache);
        if beyond == 0 {
            return Ps::ZERO;
        }
        let lines = cpu.lines_per_message + u64::from(is_inline);
        let all = u128::from(cpu.cache_miss.times(lines).0);
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
    /// `is_inline` states whether the message is in its completion.
    pub(crate) fn misses(&mut self, node: usize, qpn: Qpn, is_inline: bool) -> Ps {
        let Some(thread) = self.current else { return Ps::ZERO };
        let this = (node, qpn, is_inline, thread);
        if self.caches.last != Some(this) {
            self.caches.last = Some(this);
            let host = &self.nodes[node];
            let srq = host.slot(qpn).and_then(|slot| host.queue_pairs[slot].srq);
            let receives = srq.map_or(Receives::Own(qpn), Receives::Shared);
            self.caches.take(thread, node, receives, bytes_of(&self.testbed.cpu, is_inline));
        }
        self.caches.cost(&self.testbed.cpu, thread, is_inline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed;

    #[test]
    fn lines_miss_once_the_queues_of_a_thread_exceed_its_cache() {
        let mut cpu = testbed::by_name("connectx5-100g").expect("a testbed").cpu.clone();
        (cpu.cache, cpu.queue_pair, cpu.inline_buffers) = (8192, 4096, 8192);
        (cpu.lines_per_message, cpu.cache_miss) = (3, Ps(1000));
        let mut caches = Caches::default();
        let own = |number| Receives::Own(Qpn::new(number));
        let mut take = |thread, receives, is_inline| {
            caches.take(thread, 0, receives, bytes_of(&cpu, is_inline));
            caches.cost(&cpu, thread, is_inline)
        };
        assert_eq!([1, 2, 1].map(|number| take(0, own(number), false)), [Ps::ZERO; 3]);
        assert_eq!([3, 4].map(|number| take(0, own(number), false)), [Ps(1000), Ps(1500)]);
        assert_eq!([1, 2, 3, 4].map(|number| take(0, own(number), false)), [Ps(1500); 4], "no queue is counted twice");
        assert_eq!(take(1, own(4), false), Ps::ZERO, "a queue goes to the thread that takes from it");
        assert_eq!(take(0, own(1), false), Ps(1000));
        let shared = Receives::Shared(SrqId(7));
        assert_eq!([take(2, shared, false), take(2, shared, false)], [Ps::ZERO; 2], "a shared queue counts once");
        // The buffers of one queue exceed the cache by a third: 12,288 B in place of 4096 B.
        assert_eq!(take(3, own(9), true), Ps(4000 / 3));
        assert_eq!(take(3, own(9), false), Ps::ZERO);
    }
}
