//! The run of a seed and its end. All work must finish, and a destroyed object must leave nothing behind.

use std::sync::Arc;

use super::life::{Life, Options};
use super::model::Fate;
use crate::common::fuzz::check_bounds;
use crate::common::tally::{Hit, Tally};
use doorbell_verbs_core::{QpKind, QpState, Status};

/// Number of steps after which the programs start no more work.
const STEPS: usize = 3_000;

/// Runs one seed, from the creation of the first object to the destruction of the last.
pub(crate) fn run(seed: u64, options: &Options) -> (Tally, u64) {
    let mut life = Life::new(seed, options);
    for _ in 0..STEPS {
        if life.posts_left == 0 && life.operations_left == 0 {
            break;
        }
        life.step();
    }
    life.come_to_rest();
    life.check_rest();
    life.destroy_everything();
    for node in &life.world.nodes {
        life.world.tally.counters(node.rnic.counters());
    }
    (life.world.tally, life.print)
}

impl Life {
    fn step(&mut self) {
        self.act(false);
        if !self.world.step() {
            self.act(true);
        }
        for node in &self.world.nodes {
            check_bounds(&node.rnic);
            let backlog = node.rnic.backlog();
            let reads = backlog.waiting_for_responses;
            self.world.tally.add(Hit::WindowStall, (backlog.waiting > reads).into());
            self.world.tally.add(Hit::ReadStall, (reads > 0).into());
        }
    }

    fn is_at_rest(&self) -> bool {
        (0..self.qps.len()).filter(|&at| self.qps[at].live && self.is_alive(self.qps[at].node)).all(|at| {
            match self.state(at) {
                QpState::ReadyToSend => self.outstanding(at) == 0,
                // A queue pair in SQD or SQE can continue later.
                QpState::SqDrain | QpState::SqError => false,
                _ => true,
            }
        })
    }

    /// Finishes all started work and starts no other work.
    fn come_to_rest(&mut self) {
        (self.posts_left, self.operations_left) = (0, 0);
        let mut steps = 0;
        while !self.is_at_rest() {
            self.step();
            steps += 1;
            assert!(steps < 100_000, "the work did not end by {} ns", self.world.now_ns);
        }
        for _ in 0..3 {
            self.world.settle();
            self.act(true);
        }
        self.world.settle();
        self.world.assert_at_rest();
    }

    /// Checks the state after all work has finished.
    fn check_rest(&mut self) {
        for index in 0..self.qps.len() {
            let qp = &self.qps[index];
            if !qp.live || !self.is_alive(qp.node) || qp.overruns {
                continue;
            }
            let state = self.state(index);
            if matches!(state, QpState::ReadyToSend | QpState::Error) {
                self.expect_done(index);
            }
            if state == QpState::Error {
                assert!(self.qps[index].receives.is_empty(), "a queue pair in error kept a receive");
            }
        }
        for conn in &self.conns {
            for from in 0..2 {
                let (sender, receiver) = (conn.ends[from], conn.ends[1 - from]);
                let sees = conn.alive[1 - from] && self.is_alive(self.qps[receiver].node);
                if !sees || conn.kind != QpKind::Rc || self.qps[receiver].overruns || self.qps[sender].overruns {
                    continue;
                }
                for &wr in &conn.directions[from].expected {
                    let fate = self.wrs[wr as usize].fate;
                    assert_ne!(fate, Fate::Done(Status::Success), "message {wr} was acknowledged but never received");
                }
            }
        }
        self.check_areas();
        for (node, program) in self.programs.iter().enumerate() {
            let Some(srq) = program.srq.as_ref().filter(|_| self.is_alive(node)) else { continue };
            let holders = self.qps.iter().filter(|qp| qp.live && qp.node == node && qp.shares).count();
            let held = srq.open.len().checked_sub(srq.queue.len());
            assert!(
                held.is_some_and(|held| held <= holders + srq.unseen),
                "node {node}: {holders} queue pairs hold {held:?} receives"
            );
        }
    }

    /// Checks that a queue pair has no outstanding work. A work request without a completion must be unsignalled and
    /// have succeeded.
    fn expect_done(&mut self, index: usize) {
        for wr in self.qps[index].sends.drain(..).collect::<Vec<_>>() {
            let signaled = self.wrs[wr as usize].send.as_ref().is_some_and(|send| send.signaled);
            assert!(!signaled, "work request {wr} was signalled and has no completion");
            self.succeeded(wr);
        }
    }

    fn destroy_everything(&mut self) {
        let alive: Vec<usize> = (0..self.programs.len()).filter(|&node| self.is_alive(node)).collect();
        for &node in &alive {
            for index in 0..self.qps.len() {
                if self.qps[index].live && self.qps[index].node == node {
                    self.end_qp(node, index);
                }
            }
        }
        for _ in 0..2 {
            // The first round destroys windows, and the second round the objects that the windows kept in use.
            (0..self.conns.len()).for_each(|conn| self.close_connection(conn));
        }
        for &node in &alive {
            self.take_events(node);
            self.reap(node);
            self.destroy_srq(node);
            for cq in 0..self.programs[node].cqs.len() {
                if self.programs[node].cqs[cq].live {
                    let queue = &self.programs[node].cqs[cq].queue;
                    assert!(queue.is_empty(), "node {node}: a completion names a destroyed queue pair");
                    self.destroy_cq(node, cq);
                }
            }
            if let Some(region) = self.programs[node].buffers.take() {
                self.world.nodes[node].rnic.deregister(&region).expect("no window is bound to the region");
            }
        }
        self.check_areas();
        self.world.settle();
        for &node in &alive {
            self.take_events(node);
            let rnic = &self.world.nodes[node].rnic;
            let now = (rnic.objects(), rnic.backlog());
            assert_eq!(now, self.at_start[node], "node {node} holds other objects than at the start");
        }
        for (node, program) in self.programs.iter().enumerate().filter(|&(node, _)| self.is_alive(node)) {
            let open = self.wrs.iter().position(|wr| wr.node == node && wr.fate == Fate::Open && wr.slot.is_some());
            assert_eq!(open, None, "a work request of node {node} has not ended");
            assert_eq!(program.free_slots.len(), super::model::SLOTS, "buffers of node {node} are missing");
        }
        // The objects of a vanished device are gone with the device.
        for node in 0..self.programs.len() {
            if !self.is_alive(node) {
                self.programs[node].buffers = None;
                let counters = *self.world.nodes[node].rnic.counters();
                self.world.tally.counters(&counters);
                self.world.nodes[node].restart([0; 32]);
            }
        }
        self.conns.iter_mut().flat_map(|conn| &mut conn.directions).for_each(|direction| direction.region = None);
        assert_eq!(Arc::strong_count(&self.owner), 1, "an object keeps deregistered memory");
    }

    /// Ends a queue pair in a randomly chosen way.
    fn end_qp(&mut self, node: usize, index: usize) {
        let state = self.state(index);
        match self.rng.below(3) {
            0 if !matches!(state, QpState::Reset | QpState::Error) => {
                self.move_to_error(index);
                self.reap(node);
                if !self.qps[index].overruns {
                    self.expect_done(index);
                    assert!(self.qps[index].receives.is_empty(), "the move to error did not flush all receives");
                }
            }
            1 if state != QpState::Reset => self.reset_qp(index),
            _ => {}
        }
        self.destroy_qp(index);
    }
}
