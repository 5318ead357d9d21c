//! Comparison of completions and memory with the model.

use super::{AREA_BYTES, Check, Workload, pattern};
use doorbell_verbs_core::{Completion, CompletionOpcode, QpState, Status};

impl Workload {
    pub(super) fn completed(&mut self, node: usize, completion: &Completion) {
        let index = self
            .sides
            .iter()
            .position(|side| side.node == node && side.qpn == completion.qpn)
            .expect("completions name a queue pair of the device");
        if completion.status != Status::Success {
            let peer_lives = self.world.nodes[self.sides[index].peer_node].alive;
            assert!(!peer_lives, "side {index} failed though its peer lives: {completion:?}");
            return self.failed(index, completion);
        }
        match completion.opcode {
            CompletionOpcode::Receive | CompletionOpcode::ReceiveWriteImmediate => self.received(index, completion),
            _ => self.sent(index, completion),
        }
    }

    /// Checks a completion with an error. The completions of failed sends and failed receives differ only in their
    /// numbers. In this workload, sends are numbered from 0, and the number of a receive is its offset. The number
    /// therefore shows whether a send or a receive failed.
    fn failed(&mut self, index: usize, completion: &Completion) {
        let side = &mut self.sides[index];
        match completion.opcode {
            CompletionOpcode::Receive | CompletionOpcode::ReceiveWriteImmediate => {
                assert_eq!(completion.status, Status::WorkRequestFlushed, "a receive failed without being flushed");
                if side.end.srq.is_none() {
                    let (wr_id, _) = side.receives.pop_front().expect("a receive that failed was posted");
                    assert_eq!(completion.wr_id, wr_id, "receives were flushed out of order");
                }
            }
            _ => {
                // Sends fail in order, so all sends before this one have succeeded. A signalled one among them would
                // have completed, so all that are still posted must be unsignalled.
                let before = side.posted.iter().position(|posted| posted.wr_id == completion.wr_id);
                let before = before.expect("a send that failed was posted");
                assert!(
                    side.posted.drain(..before).all(|posted| !posted.signaled),
                    "a send failed before an earlier signalled send completed"
                );
                side.posted.pop_front();
                let expected = if side.failed { Status::WorkRequestFlushed } else { Status::RetryExceeded };
                assert_eq!(
                    completion.status, expected,
                    "the first failed send must exceed its retries, and all later sends must be flushed"
                );
                side.failed = true;
            }
        }
    }

    fn sent(&mut self, index: usize, completion: &Completion) {
        let side = &mut self.sides[index];
        assert!(!side.failed, "a work request succeeded after a failure");
        loop {
            let posted = side.posted.pop_front().expect("a completed work request was posted");
            let (node, peer_node) = (&self.world.nodes[side.node], side.peer_node);
            match posted.check {
                Check::Nothing => {}
                Check::Read { offset, ref expected } => {
                    assert_eq!(
                        &node.memory.read(offset, expected.len()),
                        expected,
                        "READ {} of side {index} returned other bytes",
                        posted.wr_id
                    );
                }
                Check::CompareSwap { offset, old } => {
                    assert_eq!(
                        node.memory.word(offset),
                        old,
                        "the CAS {} of side {index} found another value",
                        posted.wr_id
                    );
                }
                Check::FetchAdd { offset } => {
                    let count = node.memory.word(offset);
                    assert!(
                        side.last_count.is_none_or(|last| last < count),
                        "the count did not grow: {count} on side {index}"
                    );
                    side.last_count = Some(count);
                    self.counts[peer_node].push(count);
                }
            }
            if posted.signaled {
                assert_eq!(completion.wr_id, posted.wr_id, "completions of side {index} are out of order");
                assert_eq!(completion.opcode, posted.opcode, "the completion names another operation");
                assert_eq!(completion.byte_len as usize, posted.length, "the completion has another length");
                return;
            }
        }
    }

    fn received(&mut self, index: usize, completion: &Completion) {
        let side = &mut self.sides[index];
        let expected = side.expected.pop_front().expect("each received message was sent once");
        let offset = completion.wr_id as usize;
        match side.end.srq {
            Some(_) => {
                let shared = self.shared[side.node].as_mut().expect("the node has a shared queue");
                shared.posted -= 1;
                shared.slots.push(offset);
            }
            None => {
                let (wr_id, _) = side.receives.pop_front().expect("a receive that completes was posted");
                assert_eq!(wr_id, completion.wr_id, "receives completed out of order");
                side.slots.push(offset);
            }
        }
        let opcode = if expected.immediate_write {
            CompletionOpcode::ReceiveWriteImmediate
        } else {
            let bytes = self.world.nodes[side.node].memory.read(offset, expected.length);
            assert!(bytes == pattern(expected.tag, expected.length), "message {:#x} has changed", expected.tag);
            CompletionOpcode::Receive
        };
        assert_eq!(completion.opcode, opcode, "the receive completed with another opcode");
        assert_eq!(completion.byte_len as usize, expected.length, "message {:#x} has another length", expected.tag);
        assert_eq!(completion.attachment, expected.attachment, "message {:#x} has another attachment", expected.tag);
        assert_eq!(completion.solicited, expected.solicited, "message {:#x} has another solicited flag", expected.tag);
    }

    /// Checks that all peers of a vanished node are in error and got their work requests back.
    pub fn check_failures(&mut self) {
        for (index, side) in self.sides.iter().enumerate() {
            if !self.world.nodes[side.node].alive || !side.failed {
                continue;
            }
            assert_eq!(self.world.state_of(side.node, side.qpn), QpState::Error, "side {index} is not in error");
            assert!(side.posted.is_empty(), "sends of side {index} remain");
            assert!(side.receives.is_empty(), "receives of side {index} remain");
        }
    }

    /// Checks the contents of memory after all work succeeded.
    pub fn check_memory(&mut self) {
        for (index, side) in self.sides.iter_mut().enumerate() {
            let node = &self.world.nodes[side.node];
            for posted in side.posted.drain(..) {
                assert!(!posted.signaled, "a signalled send of side {index} made no completion");
                match posted.check {
                    Check::Nothing => {}
                    Check::Read { offset, expected } => {
                        assert_eq!(
                            node.memory.read(offset, expected.len()),
                            expected,
                            "READ {} of side {index} returned other bytes",
                            posted.wr_id
                        );
                    }
                    Check::CompareSwap { offset, old } => {
                        assert_eq!(
                            node.memory.word(offset),
                            old,
                            "the CAS {} of side {index} returned another value",
                            posted.wr_id
                        );
                    }
                    Check::FetchAdd { offset } => self.counts[side.peer_node].push(node.memory.word(offset)),
                }
            }
            let peer = &self.world.nodes[side.peer_node].memory;
            assert!(
                peer.read(side.write_area, AREA_BYTES) == side.write_model,
                "WRITEs of side {index} are missing or out of order"
            );
            assert_eq!(
                peer.word(side.cas_offset),
                side.cas_value,
                "a CAS of side {index} was not executed exactly once"
            );
        }
        for (node, counts) in self.counts.iter_mut().enumerate() {
            counts.sort_unstable();
            assert!(
                counts.iter().copied().eq(0..counts.len() as u64),
                "a fetch-and-add on node {node} was not executed exactly once: {counts:?}"
            );
            let total = self.world.nodes[node].memory.word(self.counters[node]);
            assert_eq!(total, counts.len() as u64, "node {node} missed a fetch-and-add");
        }
    }
}
