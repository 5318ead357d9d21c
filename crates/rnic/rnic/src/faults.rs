//! Injected faults of completions, for tests of programs.

use std::collections::{BTreeMap, VecDeque};

use doorbell_verbs_core::{AsyncEvent, Completion, CompletionOpcode, CqId, SrqId, Status};
use doorbell_wire::Qpn;

/// Source of the faults of a device's completions. The device asks once for each successful completion, in the order
/// of the completions of each queue.
pub trait CompletionFaults: Send {
    /// Returns the fate of a completion.
    fn judge(&mut self, now_ns: u64, completed: &Completed<'_>) -> CompletionFate;
}

/// A successful completion, and the queues of its queue pair.
#[derive(Clone, Copy, Debug)]
pub struct Completed<'a> {
    /// The completion.
    pub completion: &'a Completion,
    /// Completion queue of the completion.
    pub cq: CqId,
    /// Shared receive queue of the queue pair, if it has one.
    pub srq: Option<SrqId>,
}

/// Faults of one completion. The default is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompletionFate {
    /// Status that the program sees.
    pub status: Status,
    /// Whether the queue pair fails with this completion, as after a failed request (IBTA Vol 1, 10.3.1): it enters the
    /// error state, and its other requests are flushed. After a failed send, a UC or UD queue pair enters SQE.
    pub ends_queue_pair: bool,
    /// Time until the program can see the completion. Later completions of the queue wait too.
    pub delay_ns: u64,
    /// Events to raise.
    pub events: Vec<AsyncEvent>,
}

/// The source of faults, and the completions that it holds back.
pub(crate) struct InjectedFaults {
    pub(crate) source: Box<dyn CompletionFaults>,
    /// Completions of each port, with the time at which the program can see them.
    held: BTreeMap<u32, VecDeque<(u64, Completion)>>,
    /// Time of the earliest entry in the timer list of the engine.
    armed_ns: u64,
}

impl InjectedFaults {
    pub(crate) fn new(source: Box<dyn CompletionFaults>) -> Self {
        Self { source, held: BTreeMap::new(), armed_ns: u64::MAX }
    }

    /// Holds a completion back until `due_ns`, and until the earlier ones of its port are released.
    pub(crate) fn hold(&mut self, port: u32, due_ns: u64, completion: Completion) {
        self.held.entry(port).or_default().push_back((due_ns, completion));
    }

    /// Removes and returns the completions that the program can see at `now_ns`, with their ports.
    pub(crate) fn release(&mut self, now_ns: u64) -> Vec<(u32, Completion)> {
        if self.armed_ns <= now_ns {
            self.armed_ns = u64::MAX;
        }
        let mut due = Vec::new();
        for (&port, held) in &mut self.held {
            while let Some(&(due_ns, completion)) = held.front()
                && due_ns <= now_ns
            {
                held.pop_front();
                due.push((port, completion));
            }
        }
        self.held.retain(|_, held| !held.is_empty());
        due
    }

    /// Returns the time of a new entry in the timer list, if one is necessary.
    pub(crate) fn arm(&mut self) -> Option<u64> {
        let next_ns = self.held.values().filter_map(|held| held.front()).map(|&(due_ns, _)| due_ns).min()?;
        if next_ns >= self.armed_ns {
            return None;
        }
        self.armed_ns = next_ns;
        Some(next_ns)
    }

    pub(crate) fn held_count(&self) -> usize {
        self.held.values().map(VecDeque::len).sum()
    }

    pub(crate) fn purge(&mut self, qpn: Qpn) {
        self.held.values_mut().for_each(|held| held.retain(|(_, completion)| completion.qpn != qpn));
    }

    pub(crate) fn remove_port(&mut self, port: u32) {
        self.held.remove(&port);
    }
}

/// Returns whether a completion is of a receive.
pub(crate) fn is_receive(completion: &Completion) -> bool {
    matches!(completion.opcode, CompletionOpcode::Receive | CompletionOpcode::ReceiveWriteImmediate)
}
