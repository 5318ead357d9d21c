//! Checks of completions and events.

use doorbell_verbs_core::{AsyncEvent, Attachment, Completion, CompletionOpcode, QpKind, QpState, Status};
use doorbell_wire::{Opcode, Psn};

use super::life::Life;
use super::model::{COUNTER_AT, Check, Fate, SLOT_BYTES, SendWork};
use crate::common::tally::Hit;
use crate::common::trace::trace;
use crate::common::workload::pattern;
use crate::common::world::LostResponse;

impl Life {
    /// Reaps the completion queues of a node.
    pub(crate) fn reap(&mut self, node: usize) {
        let mut out = [Completion::default(); 16];
        for cq in 0..self.programs[node].cqs.len() {
            let mut found = false;
            loop {
                let entry = &self.programs[node].cqs[cq];
                if !entry.live {
                    break;
                }
                match entry.queue.poll(&mut out) {
                    Ok(0) => {
                        // A loop that found completions before does not count as an empty poll: the program first works
                        // on these completions. Only a loop that finds no completion counts.
                        if !found {
                            entry.queue.note_empty_poll();
                        }
                        break;
                    }
                    Ok(count) => {
                        found = true;
                        out[..count].iter().for_each(|completion| self.completed(node, cq, completion));
                    }
                    Err(_) => {
                        assert!(
                            entry.tiny,
                            "node {node}: CQ {} overran, although it has room for all completions",
                            entry.id.0
                        );
                        if !entry.overran {
                            self.world.tally.hit(Hit::CqOverrun);
                            self.programs[node].cqs[cq].overran = true;
                        }
                        break;
                    }
                }
            }
        }
    }

    fn completed(&mut self, node: usize, cq: usize, completion: &Completion) {
        trace(|| {
            let (at, number, wr, status) =
                (self.world.now_ns, completion.qpn.get(), completion.wr_id, completion.status);
            format!("{at:>10} node {node}: QP {number:#x}: work request {wr} completed: {status:?}")
        });
        self.world.tally.status(completion.status);
        self.mix(completion.wr_id << 8 | completion.status as u64);
        let index = *self
            .by_number
            .get(&(node, completion.qpn))
            .unwrap_or_else(|| panic!("a completion names the destroyed queue pair {:#x}", completion.qpn.get()));
        let work = &self.wrs[completion.wr_id as usize];
        assert_eq!(work.fate, Fate::Open, "work request {} has a second completion", completion.wr_id);
        assert_eq!(work.node, node, "a completion came to another node than its work request");
        let qp = &self.qps[index];
        if work.send.is_some() {
            assert_eq!(cq, qp.send_cq, "a send completed in another CQ than that of the send queue");
            self.sent(index, completion);
        } else {
            assert_eq!(cq, qp.recv_cq, "a receive completed in another CQ than that of the receive queue");
            self.received(index, completion);
        }
    }

    fn sent(&mut self, index: usize, completion: &Completion) {
        loop {
            let wr = self.qps[index].sends.pop_front().expect("the completed send was posted on this queue pair");
            let send = self.wrs[wr as usize].send.as_ref().expect("a send");
            if wr == completion.wr_id {
                break;
            }
            let may_be_lost = self.qps[index].overruns;
            assert!(!send.signaled || may_be_lost, "work request {wr} was signalled, and a later one completed first");
            if may_be_lost {
                self.end_work(wr, Fate::Lost);
            } else {
                self.succeeded(wr);
            }
        }
        if completion.status == Status::Success {
            let send = self.wrs[completion.wr_id as usize].send.as_ref().expect("a send");
            assert!(send.signaled, "unsignalled work request {} has a completion", completion.wr_id);
            assert_eq!(completion.opcode, send.opcode, "the completion names another operation");
            assert_eq!(completion.byte_len as usize, send.length, "the completion has another length");
            self.succeeded(completion.wr_id);
        } else {
            self.check_reason(index, completion);
            let cause = completion.status != Status::WorkRequestFlushed && self.qps[index].kind == QpKind::Rc;
            let first = *self.qps[index].first_failure.get_or_insert(completion.wr_id);
            // If the memory of a send is gone, the send fails only after all earlier sends have completed.
            assert!(!cause || first == completion.wr_id, "work request {first} was flushed before the failed one");
            self.end_work(completion.wr_id, Fate::Done(completion.status));
            self.check_promise(completion.wr_id);
        }
    }

    /// Checks the effects of a successful send before its buffer is used again.
    pub(crate) fn succeeded(&mut self, wr: u64) {
        let work = &self.wrs[wr as usize];
        let (node, slot) = (work.node, work.slot.expect("an open send has its buffer"));
        let send = work.send.as_ref().expect("a send");
        let (length, conn, received) = (send.length, send.conn, send.received);
        assert!(!send.dead_key, "work request {wr} succeeded with a key that was dead when it was posted");
        match send.check.clone() {
            Check::Nothing => {}
            Check::Read { at } => {
                let (conn, end) = conn.expect("a READ has a connection");
                let (area, from) = (self.conns[conn].directions[end].area, at);
                let all = pattern(area as u64, super::model::READ_BYTES);
                let start = from - area - super::model::READ_AT;
                let bytes = self.world.nodes[node].memory.read(slot * SLOT_BYTES, length);
                assert!(bytes == all[start..start + length], "READ {wr} returned wrong bytes");
            }
            Check::FetchAdd => {
                let (conn, end) = conn.expect("an atomic has a connection");
                let old = self.world.nodes[node].memory.word(slot * SLOT_BYTES);
                let direction = &mut self.conns[conn].directions[end];
                assert!(direction.counted.is_none_or(|last| last < old), "fetch-and-add {wr} was executed again");
                direction.counted = Some(old);
            }
            Check::Bind { key } => {
                self.world.tally.hit(Hit::WindowBound);
                let (conn, end) = conn.expect("a window has a connection");
                if let Some(window) = &mut self.conns[conn].directions[1 - end].window {
                    window.bound = Some(key);
                }
            }
            Check::Invalidate => {}
            Check::TakeBack { key } => {
                let (conn, end) = conn.expect("a window has a connection");
                let keys = &self.conns[conn].directions[end].window_keys;
                assert!(
                    keys.contains(&key.get()),
                    "message {wr} invalidated the key {:#x}, which no window had",
                    key.get()
                );
            }
        }
        if let Some((conn, end)) = conn.filter(|_| received) {
            let gone = !self.conns[conn].alive[1 - end];
            self.world.tally.hit(if gone { Hit::PromiseTested } else { Hit::PromiseKept });
        }
        self.end_work(wr, Fate::Done(Status::Success));
    }

    /// Returns whether the peer of an end still answers.
    fn peer_answers(&self, conn: usize, end: usize) -> bool {
        let c = &self.conns[conn];
        let peer = &self.qps[c.ends[1 - end]];
        c.alive[1 - end] && self.is_alive(peer.node) && self.state(c.ends[1 - end]) != QpState::Error
    }

    /// Checks that the run contains a cause of the error.
    fn check_reason(&mut self, index: usize, completion: &Completion) {
        let (status, wr) = (completion.status, completion.wr_id);
        let qp = &self.qps[index];
        let in_error = matches!(self.state(index), QpState::Error | QpState::SqError) || qp.was_sq_error;
        assert!(in_error, "work request {wr} failed with {status:?}, and its queue pair is not in error");
        let Some((conn, end)) = qp.conn else {
            // A UD send fails only if its local memory is gone.
            assert!(
                matches!(status, Status::LocalProtection | Status::WorkRequestFlushed),
                "work request {wr} of a UD queue pair failed with {status:?}"
            );
            return;
        };
        let reasons = self.conns[conn].reasons;
        let known = match status {
            Status::RetryExceeded => !self.peer_answers(conn, end),
            Status::RnrRetryExceeded => reasons.rnr,
            Status::RemoteAccess | Status::LocalAccess => reasons.key_dead || reasons.window,
            Status::RemoteOperation => reasons.key_dead || reasons.buffer_dead || reasons.window,
            Status::RemoteInvalidRequest | Status::LocalLength => reasons.oversized,
            Status::LocalProtection => reasons.buffer_dead,
            Status::MemoryWindowBind => reasons.window,
            Status::WorkRequestFlushed => {
                reasons.any() || !self.is_alive(self.qps[self.conns[conn].ends[1 - end]].node)
            }
            _ => false,
        };
        assert!(known, "work request {wr} failed with {status:?}, for no reason: {reasons:?}");
    }

    /// Checks that a send succeeds if its receive has completed. The responder hands its ACK to the link before the
    /// program sees the completion of the receive. The requester therefore gets the ACK, unless the network loses it.
    ///
    /// There are four exceptions:
    ///
    /// - The queue pair of the requester ends before the ACK arrives, because its program resets or destroys it, or
    ///   deregisters the memory of outstanding sends. A rejected request of the peer also ends the queue pair.
    /// - The device of the responder dies while acknowledgements wait in it.
    /// - A request found no receive, and the network held more copies of the request than the requester has tries. The
    ///   responder answers each copy with an RNR NAK, and the requester counts each NAK (IBTA Vol 1, 9.7.5.2.8). The
    ///   requester cannot tell which copy a NAK answers. It may therefore give up before its last try, which finds a
    ///   receive.
    /// - A READ or atomic was executed in order, but the memory of its answer is gone at one end. Later requests then
    ///   also fail, although the responder has executed them. If the network loses the NAK, earlier requests fail too.
    fn check_promise(&mut self, wr: u64) {
        let work = &self.wrs[wr as usize];
        let send = work.send.as_ref().expect("a send");
        let (Some((conn, end)), true) = (send.conn, send.received) else { return };
        let c = &self.conns[conn];
        let qp = &self.qps[c.ends[end]];
        let own_doing = qp.moved_to_error || qp.overruns || !c.alive[end];
        if c.kind != QpKind::Rc || own_doing || c.died || self.ended_otherwise(c.ends[end]) {
            return;
        }
        let watch = self.world.watch.as_ref().expect("a run watches its packets");
        // If the response to a READ or atomic is missing, no request after this READ or atomic can complete.
        let is_answered = |wr: &u64| {
            let send = self.wrs[*wr as usize].send.as_ref();
            send.is_some_and(|send| matches!(send.check, Check::Read { .. } | Check::FetchAdd))
        };
        let needed = match qp.first_failure.filter(is_answered) {
            Some(first) => watch.first_psns.get(&first),
            None => watch.last_psns.get(&wr),
        };
        let Some(&needed) = needed else { panic!("work request {wr} was received but never sent") };
        let lost = watch.lost_responses.get(&(qp.node, qp.qpn));
        // The requester accepts an ACK only after the answers to all earlier READs and atomics. If the last NAK is
        // lost, the requester cannot know which of its requests the responder executed.
        let matters =
            |lost: &LostResponse| lost.opcode != Opcode::RC_ACKNOWLEDGE || lost.is_last || !lost.psn.is_before(needed);
        let is_known = lost.is_some_and(|lost| lost.iter().any(matters));
        assert!(
            is_known || self.gave_up_early(c.ends[end], c.ends[1 - end]),
            "work request {wr} ended with {:?}, though its receive completed and no response was lost",
            work.fate
        );
    }

    /// Returns whether the requester gave up because the peer had no receive, and copies of one packet may have counted
    /// as retries.
    fn gave_up_early(&self, requester: usize, responder: usize) -> bool {
        let (qp, peer) = (&self.qps[requester], &self.qps[responder]);
        let is_without_receive = |wr: &u64| self.wrs[*wr as usize].fate == Fate::Done(Status::RnrRetryExceeded);
        let Some(first) = qp.first_failure.filter(is_without_receive) else { return false };
        let watch = self.world.watch.as_ref().expect("a run watches its packets");
        let (Some(&from), Some(&upto)) = (watch.first_psns.get(&first), watch.last_psns.get(&first)) else {
            return false;
        };
        let is_of_it = |psn: &Psn| !psn.is_before(from) && !upto.is_before(*psn);
        // If a packet was sent more often than the requester has RNR tries, RNR NAKs did not cause all transmissions.
        // A timeout, another NAK or a copy by the network caused the others.
        let tries = 1 + u32::from(qp.end.rnr_retry);
        if watch.tries.iter().any(|((wr, _), &count)| *wr == first && count > tries) {
            return true;
        }
        let requests = watch.late_requests.get(&(peer.node, peer.qpn)).into_iter().flatten();
        let copied = watch.copied_responses.get(&(qp.node, qp.qpn)).into_iter().flatten();
        let late = watch.lost_responses.get(&(qp.node, qp.qpn)).into_iter().flatten().map(|lost| &lost.psn);
        requests.chain(copied).chain(late).any(is_of_it)
    }

    /// Returns whether the queue pair failed for another reason, although later requests had been executed. Possible
    /// reasons: its responder entered the error state, its local memory was gone, or a READ or atomic failed.
    fn ended_otherwise(&self, index: usize) -> bool {
        let Some(first) = self.qps[index].first_failure.map(|wr| &self.wrs[wr as usize]) else { return false };
        let answered = |send: &SendWork| matches!(send.check, Check::Read { .. } | Check::FetchAdd);
        match first.fate {
            Fate::Done(Status::RemoteAccess | Status::RemoteOperation) => first.send.as_ref().is_some_and(answered),
            // The memory of the send was deregistered, perhaps before a retransmission needed it.
            Fate::Done(Status::LocalProtection | Status::WorkRequestFlushed) => true,
            _ => false,
        }
    }

    fn received(&mut self, index: usize, completion: &Completion) {
        let (wr, node) = (completion.wr_id, self.qps[index].node);
        let shares = self.qps[index].shares;
        if shares {
            let srq = self.programs[node].srq.as_mut().expect("the queue pair has a shared queue");
            assert!(srq.open.remove(&wr), "receive {wr} was not posted to the shared queue");
        } else {
            assert_eq!(self.wrs[wr as usize].qp, Some(index), "receive {wr} was not posted on this queue pair");
            loop {
                let first = self.qps[index].receives.pop_front().expect("the completed receive was posted");
                if first == wr {
                    break;
                }
                assert!(self.qps[index].overruns, "receives completed out of order: {wr} before {first}");
                self.end_work(first, Fate::Lost);
            }
        }
        if completion.status == Status::Success {
            let slot = self.wrs[wr as usize].slot.expect("an open receive has its buffer");
            let message = match self.qps[index].kind {
                QpKind::Rc => self.reliable_message(index),
                _ => match completion.attachment {
                    Attachment::Immediate(tag) => Some(u64::from(tag)),
                    other => panic!("message {wr} came without its immediate: {other:?}"),
                },
            };
            if let Some(message) = message {
                self.check_message(index, message, slot, completion);
            }
            if shares {
                self.world.tally.hit(match self.qps[index].kind {
                    QpKind::Rc => Hit::SrqRc,
                    QpKind::Uc => Hit::SrqUc,
                    QpKind::Ud => Hit::SrqUd,
                });
            }
            self.end_work(wr, Fate::Done(Status::Success));
            if let Some(message) = message
                && matches!(self.wrs[message as usize].fate, Fate::Done(status) if status != Status::Success)
            {
                self.check_promise(message);
            }
        } else {
            self.check_reason(index, completion);
            self.end_work(wr, Fate::Done(completion.status));
        }
    }

    /// Returns the next message of a reliable connection. Returns `None` if completions were lost: the test then does
    /// not know which message is the next.
    fn reliable_message(&mut self, index: usize) -> Option<u64> {
        let (conn, end) = self.qps[index].conn.expect("a queue pair that receives is connected");
        let expected = &mut self.conns[conn].directions[1 - end].expected;
        let message = expected.pop_front().expect("each received message was sent once");
        (!self.qps[index].overruns).then_some(message)
    }

    fn check_message(&mut self, index: usize, message: u64, slot: usize, completion: &Completion) {
        let node = self.qps[index].node;
        let kind = self.qps[index].kind;
        let sender = self.wrs[message as usize].qp.expect("a message has a queue pair");
        let now = self.world.now_ns;
        let send = self.wrs[message as usize].send.as_mut().expect("a message was sent");
        assert!(send.message, "work request {message} used a receive, but is no message");
        send.received = true;
        assert_eq!(completion.attachment, send.attachment, "message {message} has another attachment");
        let written = send.opcode == CompletionOpcode::Write;
        let opcode = if written { CompletionOpcode::ReceiveWriteImmediate } else { CompletionOpcode::Receive };
        assert_eq!(completion.opcode, opcode, "message {message} has another operation at {now} ns");
        let front = if kind == QpKind::Ud { 40 } else { 0 };
        assert_eq!(completion.byte_len as usize, send.length + front, "message {message} has another length");
        if !written {
            let bytes = self.world.nodes[node].memory.read(slot * SLOT_BYTES + front, send.length);
            assert!(bytes == pattern(message, send.length), "message {message} has changed");
        }
        if kind == QpKind::Ud {
            assert_eq!(completion.source_qpn, self.qps[sender].qpn, "message {message} names another sender");
        }
    }

    /// Takes the events of a node. Checks that the object of each event exists and may have caused the event.
    pub(crate) fn take_events(&mut self, node: usize) {
        while let Some(event) = self.world.nodes[node].rnic.poll_event() {
            trace(|| format!("{:>10} node {node}: {event:x?}", self.world.now_ns));
            self.world.tally.event(event);
            self.mix(format!("{event:?}").bytes().fold(0, |mixed: u64, byte| mixed.rotate_left(8) ^ u64::from(byte)));
            self.check_event(node, event);
        }
    }

    fn check_event(&mut self, node: usize, event: AsyncEvent) {
        use AsyncEvent as E;
        let program = &mut self.programs[node];
        match event {
            E::CqError(id) => {
                let cq = program.cqs.iter().find(|cq| cq.live && cq.id.0 == id);
                let cq = cq.unwrap_or_else(|| panic!("{event:?} names a destroyed completion queue"));
                return assert!(cq.tiny, "{event:?} names a completion queue that cannot overrun");
            }
            E::SrqLimitReached(id) => {
                let srq = program.srq.as_mut().filter(|srq| srq.id.0 == id);
                let srq = srq.unwrap_or_else(|| panic!("{event:?} names a destroyed shared receive queue"));
                assert!(srq.may_reach_limit > 0, "{event:?} came without an armed limit");
                srq.may_reach_limit -= 1;
                return;
            }
            _ => {}
        }
        let (E::CommunicationEstablished(qpn)
        | E::SqDrained(qpn)
        | E::QpFatal(qpn)
        | E::QpRequestError(qpn)
        | E::QpAccessError(qpn)
        | E::QpLastWqeReached(qpn)) = event
        else {
            panic!("an event that the simulation does not know: {event:?}");
        };
        let index = self.by_number.get(&(node, qpn)).copied();
        let index = index.unwrap_or_else(|| panic!("{event:?} names a destroyed queue pair"));
        let in_error = self.state(index) == QpState::Error;
        let sent = self.sent_packets(index);
        let qp = &mut self.qps[index];
        match event {
            E::CommunicationEstablished(_) => {
                assert!(qp.may_establish > 0, "{event:?} came twice for a connection");
                qp.may_establish -= 1;
                if let Some((conn, _)) = qp.conn
                    && self.rng.chance(700)
                {
                    self.complete_connection(conn);
                }
            }
            E::SqDrained(_) => {
                assert!(qp.may_drain > 0, "{event:?} came without a request");
                qp.may_drain -= 1;
                qp.drained_at = Some(sent);
            }
            E::QpLastWqeReached(_) => {
                assert!(qp.shares, "{event:?} names a queue pair without shared receives");
                assert!(in_error || qp.errors > 0, "{event:?} came without the error state");
                if !in_error {
                    qp.errors -= 1;
                }
            }
            _ => {
                assert!(in_error || qp.errors > 0, "{event:?} came without the error state");
            }
        }
    }

    /// Returns the number of request packets that a queue pair sent.
    pub(crate) fn sent_packets(&self, index: usize) -> u64 {
        let qp = &self.qps[index];
        let info = self.world.nodes[qp.node].rnic.query_qp(qp.qpn).expect("the queue pair exists");
        info.counters.tx_data_packets + info.counters.tx_retransmitted_packets
    }

    /// Checks the contents of the areas of all connections without errors.
    pub(crate) fn check_areas(&self) {
        for (conn, c) in self.conns.iter().enumerate() {
            for from in 0..2 {
                let (d, node) = (&c.directions[from], self.qps[c.ends[1 - from]].node);
                let memory = &self.world.nodes[node].memory;
                if let Some(frozen) = &d.frozen {
                    let now = memory.read(d.area, frozen.len());
                    assert!(now == *frozen, "connection {conn}: deregistered memory was written");
                }
                let failed = c.reasons.any() || !c.is_whole() || c.kind != QpKind::Rc;
                if !failed && self.is_alive(node) && self.is_alive(self.qps[c.ends[from]].node) {
                    let now = memory.read(d.area, d.written.len());
                    assert!(now == d.written, "connection {conn}: WRITEs of end {from} are missing or out of order");
                    assert_eq!(
                        memory.word(d.area + COUNTER_AT),
                        d.adds,
                        "connection {conn}: a fetch-and-add was not executed exactly once"
                    );
                }
            }
        }
    }
}
