//! Costs of the steps of a protocol.

use doorbell_protocols::{End, Joined, Protocol, Role, Step, When};

use crate::workload::Workload;

/// Step of a protocol, with its frequency and cost for a workload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Charged {
    pub(crate) step: Step,
    /// Purpose of the step. A fenced operation whose end awaits the completion has the role of delivery, because only
    /// this completion shows that the READ before the fence is complete.
    pub(crate) role: Role,
    /// Whether the end that posts the step waits for its completion.
    pub(crate) awaited: bool,
    /// Number of completions per operation that the end polls if `awaited` is set. One completion can report several
    /// operations.
    pub(crate) completions: f64,
    /// Whether the step is posted together with the previous step and arrives right after the previous step.
    pub(crate) chained: bool,
    /// Factor of the step's latency. For a step that polls, the factor covers half a poll, the mean wait for the next
    /// poll.
    pub(crate) waits: f64,
    /// Number of times that the step is posted per message.
    pub(crate) per_message: f64,
    /// Number of times that the step is posted per message while the CPU of the posting end binds. Such a receiver
    /// finds many messages per poll. The program frees them after the poll, and the next poll reports them together.
    /// The sender fills the space of one report while the receiver takes the messages of the other half.
    pub(crate) per_message_busy: f64,
    /// Share of the receiver's space that is free but not yet reported to the sender.
    pub(crate) unreported: f64,
}

impl Charged {
    fn new(step: Step, next: Option<&Step>, workload: &Workload) -> Self {
        let awaits_fence = |step: &Step| step.joined == Joined::Fenced { awaited: true };
        let is_awaited_fence = awaits_fence(&step);
        let spaces = workload.spaces().max(1);
        let per_message = step.when.per_message(workload.batch, spaces);
        Self {
            role: if is_awaited_fence { Role::Delivery } else { step.role },
            awaited: is_awaited_fence || step.is_two_way() && !next.is_some_and(awaits_fence),
            completions: 1.0,
            chained: step.joined != Joined::Alone,
            waits: if step.when == When::Polled { 1.5 } else { 1.0 },
            per_message,
            per_message_busy: match step.when {
                // One completion queue serves all connections of a thread, so a poll finds few messages of each.
                _ if workload.protocol == Protocol::SendReceive => per_message,
                When::Freed { most: 2.., .. } => per_message.min(2.0 / f64::from(spaces)),
                _ => per_message,
            },
            unreported: match (step.when, step.when.freed_at_once(spaces)) {
                // With two parts, a sender asks for new space when half of the space is used. It uses the other half
                // until the response arrives.
                (When::Short { parts }, _) => 1.0 - 1.0 / f64::from(parts.max(1)),
                (_, Some(freed)) => f64::from(freed) / f64::from(spaces),
                (_, None) => 0.0,
            },
            step,
        }
    }

    /// Returns the step of an operation of a bare queue pair. If `awaited` is set, the requester polls for the
    /// completion.
    pub(crate) fn of_operation(step: Step, awaited: bool) -> Self {
        Self {
            role: step.role,
            awaited,
            completions: 1.0,
            chained: false,
            waits: 1.0,
            per_message: 1.0,
            per_message_busy: 1.0,
            unreported: 0.0,
            step,
        }
    }

    /// Returns the payload bytes of an operation that covers `together` messages.
    pub(crate) fn payload(&self, workload: &Workload, together: u32) -> u64 {
        let told = self.step.when.freed_at_once(workload.spaces()).unwrap_or(together);
        self.step.size.bytes(workload.bytes, told.into())
    }
}

/// Returns the steps of a workload's protocol.
pub(crate) fn charged(workload: &Workload) -> Vec<Charged> {
    let steps: Vec<Step> = workload
        .protocol
        .steps()
        .iter()
        // If both ends send, the messages carry the credits, so no separate step returns credits.
        .filter(|step| step.is_part(workload.credits) && !(workload.bidirectional && step.rides()))
        .copied()
        .collect();
    steps.iter().enumerate().map(|(index, &step)| Charged::new(step, steps.get(index + 1), workload)).collect()
}

/// Returns whether the receiver fetches the messages from a passive sender. The receiver then fetches all waiting
/// messages, independent of the sender's batch.
pub(crate) fn is_pulled(workload: &Workload) -> bool {
    workload.protocol.properties().passive == Some(End::Sender)
}
