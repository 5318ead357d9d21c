//! Injection of faults into completions.

use std::cmp::Reverse;

use doorbell_verbs_core::{Completion, CqId, Status};
use doorbell_wire::Qpn;

use super::Rnic;
use crate::faults::{Completed, CompletionFaults, InjectedFaults, is_receive};

/// Slot of entries in the timer list that belong to no queue pair, but to completions that a fault holds back.
pub(super) const NO_SLOT: u32 = u32::MAX;

impl Rnic {
    /// Injects faults into all completions from now on. Without this call, faults cost nothing.
    pub fn inject(&mut self, source: Box<dyn CompletionFaults>) {
        self.core.inject(InjectedFaults::new(source));
    }

    /// Decides on the faults of the staged completions, and stages those that the program can see now.
    #[cold]
    pub(super) fn strike(&mut self) {
        let Some(mut faults) = self.core.faults.take() else { return };
        let now_ns = self.core.now_ns;
        let mut failed = Vec::new();
        // A fault that ends a queue pair stages the completions of the flushed requests.
        loop {
            let staged = self.core.take_staged();
            if staged.is_empty() {
                break;
            }
            for (port, mut completion) in staged {
                let delay_ns = match completion.status {
                    Status::Success => self.judge(&mut faults, port, &mut completion, &mut failed),
                    _ => 0,
                };
                faults.hold(port, now_ns.saturating_add(delay_ns), completion);
            }
        }
        for (port, completion) in faults.release(now_ns) {
            self.core.stage(port, completion);
        }
        if let Some(at_ns) = faults.arm() {
            self.timers.push(Reverse((at_ns, NO_SLOT, Qpn::new(0))));
        }
        self.core.faults = Some(faults);
    }

    /// Decides on the faults of a successful completion. Returns its delay. `failed` has the work queues that a fault
    /// has ended: the number of the queue pair, and whether it is the receive queue.
    fn judge(
        &mut self,
        faults: &mut InjectedFaults,
        port: u32,
        completion: &mut Completion,
        failed: &mut Vec<(Qpn, bool)>,
    ) -> u64 {
        let queue = (completion.qpn, is_receive(completion));
        if failed.contains(&queue) {
            // The device had executed the request already, but an RNIC reports no success after an error.
            completion.status = Status::WorkRequestFlushed;
            return 0;
        }
        let slot = self.slot(completion.qpn);
        let srq = slot.and_then(|slot| self.qps[slot as usize].init.srq);
        let cq = CqId(self.core.cq_of(port));
        let fate = faults.source.judge(self.core.now_ns, &Completed { completion: &*completion, cq, srq });
        completion.status = fate.status;
        for event in fate.events {
            self.core.events.push(event);
        }
        if fate.ends_queue_pair
            && let Some(slot) = slot
        {
            failed.push(queue);
            self.qps[slot as usize].end_by_fault(&mut self.core, queue.1);
            self.settle(slot);
        }
        fate.delay_ns
    }
}
