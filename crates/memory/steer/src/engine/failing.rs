//! Failures: of the queue pair with the node, of clients that leave, and of WRITEs that stay incomplete.

use doorbell_wire::{NakCode, Qpn};

use super::{Steer, owner};
use crate::client::{Phase, Repetition};

impl Steer {
    /// Drops all knowledge of the node's memory, since others may change the memory from now on.
    pub(super) fn forget(&mut self) {
        self.values.clear();
        if let Some(steering) = &mut self.steering {
            steering.clear();
        }
    }

    /// Records the failure of the queue pair with the node. The client whose request caused the failure gets its NAK
    /// code; all other clients get the NAK code for a failed node.
    pub(super) fn fail_node(&mut self, culprit: Option<(Qpn, NakCode)>) {
        let Some(node) = self.node.as_mut().filter(|node| !node.failed) else { return };
        node.failed = true;
        self.counters.node_failures += 1;
        while let Some(message) = node.retire() {
            if let Some(client) = owner(&mut self.clients, &message) {
                client.held_bytes -= message.held;
            }
            self.held_bytes -= message.held;
        }
        for slot in 0..self.clients.len() as u32 {
            self.drop_requests(slot);
            let Some(client) = self.clients[slot as usize].as_mut() else { continue };
            let code = match culprit {
                Some((qpn, code)) if qpn == client.own_qpn => code,
                _ => NakCode::REMOTE_OPERATIONAL_ERROR,
            };
            if matches!(client.phase, Phase::Refused(..)) {
                continue;
            }
            if client.expected == client.answered {
                client.phase = Phase::Failing;
            } else {
                client.phase = Phase::Refused(client.answered, code);
                client.send_nak(client.answered, code, self.config.address, &mut self.out);
            }
        }
        self.ready.clear();
        self.response_waiters.clear();
        // It is unknown whether the node has executed the outstanding requests.
        self.forget();
    }

    /// Drops the requests of a client that are not at the node yet.
    pub(super) fn drop_requests(&mut self, slot: u32) {
        let Some(client) = self.clients[slot as usize].as_mut() else { return };
        client.scheduled = false;
        client.in_flight = 0;
        let repetitions = client.repetitions.drain(..).filter_map(|repetition| match repetition {
            Repetition::Read(message) => Some(message),
            _ => None,
        });
        let messages =
            client.waiting.drain(..).chain(repetitions).chain(client.assembly.take().map(|(message, _)| message));
        let bytes: usize = messages.map(|message| message.held).sum();
        client.held_bytes -= bytes;
        self.held_bytes -= bytes;
    }

    /// Disconnects clients that have left a WRITE incomplete for too long.
    pub(super) fn give_up_incomplete(&mut self, now_ns: u64) {
        let patience_ns = self.config.limits.incomplete_ns;
        let mut next_ns = None;
        for slot in 0..self.clients.len() as u32 {
            let Some(client) = self.clients[slot as usize].as_mut() else { continue };
            if client.assembly.is_none() {
                continue;
            }
            let due_ns = client.assembly_ns.saturating_add(patience_ns);
            if due_ns > now_ns {
                next_ns = Some(next_ns.map_or(due_ns, |at_ns: u64| at_ns.min(due_ns)));
                continue;
            }
            self.counters.incomplete += 1;
            let held = client.assembly.take().map_or(0, |(message, _)| message.held);
            client.held_bytes -= held;
            self.held_bytes -= held;
            client.phase = Phase::Refusing(NakCode::REMOTE_OPERATIONAL_ERROR);
            self.touch(slot);
        }
        self.sweep_ns = next_ns;
    }
}
