//! Random operations on objects.

use super::life::Life;
use super::model::{Fate, Program, Qp};
use crate::common::tally::Hit;
use crate::common::trace::trace;
use doorbell_verbs_core::{ObjectError, QpAttributes, QpKind, QpState};

impl Life {
    /// Performs random actions of the programs. With `eager`, performs all possible actions. At the end of a run,
    /// starts no more work.
    pub(crate) fn act(&mut self, eager: bool) {
        for node in 0..self.programs.len() {
            if !self.is_alive(node) {
                continue;
            }
            if eager || self.rng.chance(600) {
                self.reap(node);
            }
            if eager || self.rng.chance(500) {
                self.take_events(node);
            }
            if eager || self.rng.chance(300) {
                let most = self.rng.below(8) as usize + usize::from(eager);
                self.post_shared_receives(node, most);
            }
        }
        for index in 0..self.qps.len() {
            if !self.qps[index].live || !self.is_alive(self.qps[index].node) {
                continue;
            }
            self.go_on(index, eager);
        }
        if self.operations_left > 0 && self.rng.chance(60) {
            self.operations_left -= 1;
            self.operate();
        }
        if self.rng.chance(if self.operations_left > 0 { 100 } else { 30 }) {
            self.repair();
        }
    }

    /// Continues the work of one queue pair.
    fn go_on(&mut self, index: usize, eager: bool) {
        if let Some((conn, 1)) = self.qps[index].conn
            && !self.conns[conn].ready[1]
            && self.rng.chance(if eager { 500 } else { 60 })
        {
            self.complete_connection(conn);
        }
        match self.state(index) {
            QpState::SqError => {
                self.qps[index].was_sq_error = true;
                self.world.tally.hit(Hit::SqErrorLeft);
                self.modify(index, QpAttributes { state: Some(QpState::ReadyToSend), ..QpAttributes::default() });
            }
            QpState::SqDrain if self.qps[index].drained_at.is_some() && (eager || self.rng.chance(300)) => {
                let at = self.qps[index].drained_at.take();
                assert_eq!(at, Some(self.sent_packets(index)), "a drained queue pair sent requests");
                self.modify(index, QpAttributes { state: Some(QpState::ReadyToSend), ..QpAttributes::default() });
            }
            _ => {}
        }
        let receives = !matches!(self.state(index), QpState::Reset | QpState::Error);
        if receives && !self.qps[index].shares && (eager || self.rng.chance(250)) {
            let most = self.rng.below(6) as usize + usize::from(eager);
            self.post_receives(index, most);
        }
        if self.posts_left > 0 && (eager || self.rng.chance(200)) {
            for _ in 0..self.rng.within(1, 4) {
                self.post_send(index);
            }
        }
    }

    fn live_qps(&self, wanted: impl Fn(&Self, usize) -> bool) -> Vec<usize> {
        (0..self.qps.len())
            .filter(|&at| self.qps[at].live && self.is_alive(self.qps[at].node) && wanted(self, at))
            .collect()
    }

    fn pick_qp(&mut self, wanted: impl Fn(&Self, usize) -> bool) -> Option<usize> {
        let candidates = self.live_qps(wanted);
        (!candidates.is_empty()).then(|| *self.rng.pick(&candidates))
    }

    fn pick_node(&mut self) -> Option<usize> {
        let alive: Vec<usize> = (0..self.programs.len()).filter(|&node| self.is_alive(node)).collect();
        (!alive.is_empty()).then(|| *self.rng.pick(&alive))
    }

    fn pick_conn(&mut self, wanted: impl Fn(&Self, usize) -> bool) -> Option<usize> {
        let candidates: Vec<usize> = (0..self.conns.len()).filter(|&at| wanted(self, at)).collect();
        (!candidates.is_empty()).then(|| *self.rng.pick(&candidates))
    }

    /// Performs one random operation on objects.
    fn operate(&mut self) {
        match self.rng.below(100) {
            0..12 => {
                if let Some(index) = self.pick_qp(|life, at| life.state(at) != QpState::Reset) {
                    self.reset_qp(index);
                }
            }
            12..26 => {
                if let Some(index) = self.pick_qp(|_, _| true) {
                    self.destroy_qp(index);
                }
            }
            26..40 => self.drain(),
            40..44 => {
                if let Some(index) = self.pick_qp(|life, at| !matches!(life.state(at), QpState::Reset | QpState::Error))
                {
                    self.move_to_error(index);
                }
            }
            44..52 => self.close_area(),
            52..56 => self.lose_buffers(),
            56..60 => self.destroy_window(),
            60..70 => self.change_cq(),
            70..78 => self.change_srq(),
            78..86 => {
                if let Some(node) = self.pick_node() {
                    let for_ns = self.rng.within(1, 3_000_000);
                    self.world.fill_link(node, for_ns);
                }
            }
            86..92 => {
                if let Some(node) = self.pick_node() {
                    let alike = self.rng.chance(500);
                    self.restart(node, alike);
                }
            }
            92..94 => {
                if let Some(node) = self.pick_node() {
                    trace(|| format!("{:>10} node {node} vanishes", self.world.now_ns));
                    self.world.tally.hit(Hit::Vanished);
                    self.world.nodes[node].alive = false;
                    self.note_death(node);
                }
            }
            _ => {
                if let Some(node) = self.pick_node() {
                    trace(|| format!("{:>10} node {node}: numbers come again", self.world.now_ns));
                    self.world.nodes[node].rnic.repeat_numbers();
                }
            }
        }
    }

    pub(crate) fn move_to_error(&mut self, index: usize) {
        let (node, qpn, _) = self.named(index);
        trace(|| format!("{:>10} node {node}: QP {:#x} moved to error", self.world.now_ns, qpn.get()));
        self.world.tally.hit(Hit::ToError);
        self.qps[index].moved_to_error = true;
        if let Some((conn, _)) = self.qps[index].conn {
            self.conns[conn].reasons.moved = true;
        }
        self.world.bring_to(node, qpn, QpState::Error);
    }

    /// Moves a queue pair to SQD and requests the event.
    fn drain(&mut self) {
        let Some(index) = self.pick_qp(|life, at| life.state(at) == QpState::ReadyToSend) else { return };
        let (node, qpn, _) = self.named(index);
        trace(|| format!("{:>10} node {node}: QP {:#x} to SQD", self.world.now_ns, qpn.get()));
        self.world.tally.hit(Hit::Drain);
        let busy = self.outstanding(index) > 0;
        self.world.tally.add(Hit::DrainBusy, busy.into());
        self.qps[index].may_drain += 1;
        self.qps[index].drained_at = None;
        let attributes =
            QpAttributes { state: Some(QpState::SqDrain), sqd_notify: Some(true), ..QpAttributes::default() };
        self.modify(index, attributes);
    }

    /// Deregisters a region that peers use.
    fn close_area(&mut self) {
        let wanted = |life: &Self, at: usize, from: usize| {
            let c = &life.conns[at];
            c.alive[1 - from]
                && life.is_alive(life.qps[c.ends[1 - from]].node)
                && c.directions[from].region.is_some()
                && c.kind == QpKind::Rc
        };
        let Some(conn) = self.pick_conn(|life, at| wanted(life, at, 0) || wanted(life, at, 1)) else { return };
        let from = if wanted(self, conn, 0) { 0 } else { 1 };
        self.deregister_area(conn, from, false);
    }

    /// Deregisters the region of one direction of a connection. If `with_window`, destroys the window of this direction
    /// first.
    pub(crate) fn deregister_area(&mut self, conn: usize, from: usize, with_window: bool) {
        let node = self.qps[self.conns[conn].ends[1 - from]].node;
        let Some(region) = self.conns[conn].directions[from].region.clone() else { return };
        if with_window {
            self.drop_window(conn, from);
        }
        trace(|| format!("{:>10} node {node}: region {:#x} goes", self.world.now_ns, region.rkey().get()));
        match self.world.nodes[node].rnic.deregister(&region) {
            Ok(()) => {
                self.world.tally.hit(Hit::RegionGone);
                self.programs[node].dead_keys.insert(region.rkey().get() >> 8);
                self.conns[conn].reasons.key_dead = true;
                self.conns[conn].reasons.window |= self.conns[conn].directions[from].window.is_some();
                self.conns[conn].directions[from].region = None;
                self.freeze(conn, from);
            }
            Err(error) => {
                assert!(
                    matches!(error, ObjectError::Busy { .. }),
                    "the region was kept for another reason than a window: {error}"
                );
                // A window over the region can be bound although the run has destroyed its window. A binding that was
                // posted before the destruction may bind a later window, which has the same key.
                let c = &self.conns[conn];
                let may_be_bound = c.directions[from].window.is_some() || c.reasons.window;
                assert!(may_be_bound, "the region {:#x} was kept without a window", region.rkey().get());
                self.world.tally.hit(Hit::RegionKept);
            }
        }
    }

    pub(crate) fn drop_window(&mut self, conn: usize, from: usize) {
        let node = self.qps[self.conns[conn].ends[1 - from]].node;
        let Some(window) = self.conns[conn].directions[from].window.take() else { return };
        trace(|| format!("{:>10} node {node}: window {:#x} goes", self.world.now_ns, window.name.get()));
        self.world.nodes[node].rnic.destroy_window(window.name).expect("the window exists");
        self.programs[node].dead_keys.insert(window.name.get() >> 8);
        let reasons = &mut self.conns[conn].reasons;
        (reasons.key_dead, reasons.window) = (true, true);
    }

    fn destroy_window(&mut self) {
        let wanted = |life: &Self, at: usize, from: usize| {
            let c = &life.conns[at];
            life.is_alive(life.qps[c.ends[1 - from]].node) && c.alive[1 - from] && c.directions[from].window.is_some()
        };
        let Some(conn) = self.pick_conn(|life, at| wanted(life, at, 0) || wanted(life, at, 1)) else { return };
        let from = if wanted(self, conn, 0) { 0 } else { 1 };
        self.world.tally.hit(Hit::WindowDestroyed);
        self.drop_window(conn, from);
    }

    /// Deregisters the second region, which some scatter-gather elements name, and registers another region in its
    /// place.
    fn lose_buffers(&mut self) {
        let Some(node) = self.pick_node() else { return };
        let Some(region) = self.programs[node].buffers.take() else { return };
        trace(|| format!("{:>10} node {node}: buffers {:#x} go", self.world.now_ns, region.rkey().get()));
        self.world.tally.hit(Hit::BufferGone);
        self.programs[node].lost_buffers = true;
        for conn in 0..self.conns.len() {
            let ends = self.conns[conn].ends;
            self.conns[conn].reasons.buffer_dead |= ends.iter().any(|&end| self.qps[end].node == node);
        }
        self.world.nodes[node].rnic.deregister(&region).expect("no window is bound to the region");
        self.programs[node].dead_keys.insert(region.rkey().get() >> 8);
        if self.rng.chance(700) {
            self.make_buffers(node);
        }
    }

    fn change_cq(&mut self) {
        let Some(node) = self.pick_node() else { return };
        let live: Vec<usize> = (0..self.programs[node].cqs.len())
            .filter(|&at| self.programs[node].cqs[at].live && !self.programs[node].cqs[at].tiny)
            .collect();
        if live.is_empty() {
            return;
        }
        let at = *self.rng.pick(&live);
        let cq = &self.programs[node].cqs[at];
        let (id, held, reserved) = (cq.id, cq.queue.len(), cq.reserved);
        let rnic = &mut self.world.nodes[node].rnic;
        match self.rng.below(3) {
            0 => {
                let depth = reserved.max(1) + self.rng.below(50) as usize;
                rnic.resize_cq(id, depth).expect("the queue holds fewer completions");
                self.world.tally.hit(Hit::CqResized);
                // Increase the depth again: queue pairs that the program creates later may need 300 entries.
                rnic.resize_cq(id, 300.max(depth)).expect("the queue holds fewer completions");
            }
            1 if held > 1 => {
                let refused = rnic.resize_cq(id, held - 1);
                assert!(
                    matches!(refused, Err(ObjectError::Range { .. })),
                    "the resize would drop completions: {refused:?}"
                );
                self.world.tally.hit(Hit::CqResizeRefused);
            }
            _ => self.destroy_cq(node, at),
        }
    }

    pub(crate) fn destroy_cq(&mut self, node: usize, at: usize) {
        let id = self.programs[node].cqs[at].id;
        let used = self.qps.iter().any(|qp| qp.live && qp.node == node && (qp.send_cq == at || qp.recv_cq == at));
        trace(|| format!("{:>10} node {node}: CQ {} goes, used: {used}", self.world.now_ns, id.0));
        match self.world.nodes[node].rnic.destroy_cq(id) {
            Ok(()) => {
                assert!(!used, "a completion queue in use was destroyed");
                self.world.tally.hit(Hit::CqDestroyed);
                self.programs[node].cqs[at].live = false;
                self.programs[node].dead_cqs.insert(id.0);
            }
            Err(error) => {
                assert!(used, "node {node}: CQ {} is unused, but was kept: {error}", id.0);
                self.world.tally.hit(Hit::CqDestroyRefused);
            }
        }
    }

    /// Arms the limit of a shared queue, or replaces the queue.
    fn change_srq(&mut self) {
        let Some(node) = self.pick_node() else { return };
        let Some(srq) = &mut self.programs[node].srq else { return self.make_srq(node) };
        if self.rng.chance(600) {
            // Arming the limit again causes at most one more limit event. The event comes now, or when messages take
            // receives.
            let limit = self.rng.within(1, srq.queue.depth() as u64) as usize;
            srq.may_reach_limit += 1;
            srq.queue.arm_limit(limit);
            return;
        }
        // In most cases, destroy the queue pairs that use the shared receive queue first. Otherwise the queue cannot be
        // destroyed.
        if self.rng.chance(700) {
            for index in self.live_qps(|life, at| life.qps[at].node == node && life.qps[at].shares) {
                self.destroy_qp(index);
            }
        }
        if self.destroy_srq(node) && self.rng.chance(800) {
            self.make_srq(node);
        }
    }

    pub(crate) fn destroy_srq(&mut self, node: usize) -> bool {
        let Some(srq) = &self.programs[node].srq else { return false };
        let used = self.qps.iter().any(|qp| qp.live && qp.node == node && qp.shares);
        if !used {
            let away = srq.open.len().checked_sub(srq.queue.len());
            let known = away.is_some_and(|away| away <= srq.unseen);
            assert!(known, "node {node}: {away:?} receives of the shared queue are missing, {} unseen", srq.unseen);
        }
        trace(|| format!("{:>10} node {node}: SRQ {} goes, used: {used}", self.world.now_ns, srq.id.0));
        match self.world.nodes[node].rnic.destroy_srq(srq.id) {
            Ok(()) => assert!(!used, "a shared receive queue in use was destroyed"),
            Err(error) => {
                assert!(used, "node {node}: the shared queue is unused, but was kept: {error}");
                self.world.tally.hit(Hit::SrqDestroyRefused);
                return false;
            }
        }
        let srq = self.programs[node].srq.take().expect("the node has a shared receive queue");
        self.world.tally.add(Hit::SrqDestroyed, (!srq.open.is_empty()).into());
        self.programs[node].dead_srqs.insert(srq.id.0);
        for wr in srq.open {
            self.end_work(wr, Fate::Dropped);
        }
        true
    }

    /// Kills the device of a node and creates another device in its place. With `alike`, the new device assigns the
    /// same numbers and keys.
    fn restart(&mut self, node: usize, alike: bool) {
        trace(|| format!("{:>10} node {node} restarts, alike: {alike}", self.world.now_ns));
        self.world.tally.hit(if alike { Hit::RestartedAlike } else { Hit::Restarted });
        self.note_death(node);
        let counters = *self.world.nodes[node].rnic.counters();
        self.world.tally.counters(&counters);
        for index in 0..self.qps.len() {
            if self.qps[index].live && self.qps[index].node == node {
                self.forget_work(index);
                self.bury_qp(index);
            }
        }
        for conn in 0..self.conns.len() {
            for from in 0..2 {
                if self.qps[self.conns[conn].ends[1 - from]].node == node {
                    self.freeze(conn, from);
                    let direction = &mut self.conns[conn].directions[from];
                    (direction.region, direction.window) = (None, None);
                    self.conns[conn].reasons.key_dead = true;
                }
            }
        }
        if let Some(srq) = self.programs[node].srq.take() {
            for wr in srq.open {
                self.end_work(wr, Fate::Dropped);
            }
        }
        let seed = if alike { self.programs[node].seed } else { self.rng.bytes32() };
        let next_area = self.programs[node].next_area;
        self.programs[node] = Program { next_area, ..Program::new(seed) };
        self.world.nodes[node].restart(seed);
        self.start_program(node);
    }

    /// Reconnects broken connections, and destroys unused queues.
    fn repair(&mut self) {
        if let Some(node) = self.pick_node() {
            for cq in 0..self.programs[node].cqs.len() {
                let used = |qp: &Qp| qp.live && qp.node == node && (qp.send_cq == cq || qp.recv_cq == cq);
                if self.programs[node].cqs[cq].live && !self.qps.iter().any(used) {
                    self.destroy_cq(node, cq);
                }
            }
        }
        for node in 0..self.programs.len() {
            if self.is_alive(node) && self.programs[node].datagram_qp.is_none() && self.operations_left > 0 {
                self.make_datagram_qp(node);
            }
        }
        if let Some(index) = self.pick_qp(|life, at| {
            life.qps[at].kind == QpKind::Ud && matches!(life.state(at), QpState::Reset | QpState::Error)
        }) {
            if self.state(index) == QpState::Error {
                self.reset_qp(index);
            }
            self.qps[index].moved_to_error = false;
            self.raise_datagram_qp(index);
        }
        let broken = |life: &Self, at: usize| {
            let c = &life.conns[at];
            let nodes = c.ends.map(|end| life.qps[end].node);
            let failed = (0..2).any(|end| !c.alive[end] || life.state(c.ends[end]) == QpState::Error);
            !c.closed && failed && life.may_connect(nodes)
        };
        if self.operations_left == 0 {
            return;
        }
        let Some(conn) = self.pick_conn(broken) else { return };
        let (kind, ends) = (self.conns[conn].kind, self.conns[conn].ends);
        let nodes = ends.map(|end| self.qps[end].node);
        let mut again = ends;
        for (end, &index) in ends.iter().enumerate() {
            if self.conns[conn].alive[end] {
                match self.rng.chance(500) {
                    true => self.reset_qp(index),
                    false => self.destroy_qp(index),
                }
            }
        }
        self.close_connection(conn);
        for (end, &index) in ends.iter().enumerate() {
            // Use the same queue pair again, if it exists and has no other connection. After an overrun of its
            // completion queue, the queue pair is unusable, because the test does not know the lost receives.
            let qp = &self.qps[index];
            let usable = qp.live && qp.conn.is_none() && !qp.overruns;
            if !usable || self.state(index) != QpState::Reset || (end == 1 && again[0] == index) {
                again[end] = self.make_qp(nodes[end], kind);
            }
        }
        self.connect(kind, again);
    }

    /// Closes the areas that the ends of a finished connection opened to each other.
    pub(crate) fn close_connection(&mut self, conn: usize) {
        self.conns[conn].closed = true;
        for from in 0..2 {
            if self.is_alive(self.qps[self.conns[conn].ends[1 - from]].node) {
                self.deregister_area(conn, from, true);
                self.drop_window(conn, from);
            }
        }
    }
}
