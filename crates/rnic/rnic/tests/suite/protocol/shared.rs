//! Receives of a shared receive queue that a message took and did not use up. Each such receive must return to the
//! queue or complete. None may be lost or withheld from other queue pairs.

use std::sync::Arc;

use crate::common::script::{OWN, PEER_PSN, PEER_QPN, Script};
use crate::common::{End, QKEY};
use doorbell_rnic::SharedReceiveQueue;
use doorbell_verbs_core::{Access, AsyncEvent, Completion, QpKind, QpState, RecvRequest, SrqId, Status};
use doorbell_wire::{Opcode, PathMtu, Qpn};

/// Several queue pairs of one kind that share a receive queue. Receive number `n` has `LENGTH` bytes at offset `n *
/// LENGTH`.
struct SharingQueuePairs {
    script: Script,
    id: SrqId,
    queue: Arc<SharedReceiveQueue>,
    qpns: Vec<Qpn>,
}

const LENGTH: usize = 512;
const DEPTH: usize = 4;

impl SharingQueuePairs {
    fn new(kind: QpKind, queue_pairs: usize) -> Self {
        let mut script = Script::silent(PathMtu::Mtu256);
        let pd = script.world.nodes[OWN].pd;
        let (id, queue) = script.rnic().create_srq(pd, DEPTH, 1).expect("the device has room");
        let end = End { srq: Some(id), ..End::default() };
        let qpns = (0..queue_pairs).map(|_| script.add_qp(kind, PathMtu::Mtu256, &end)).collect();
        Self { script, id, queue, qpns }
    }

    fn post(&mut self, number: u64) {
        let sges = [self.script.world.nodes[OWN].sge(number as usize * LENGTH, LENGTH)];
        self.script
            .rnic()
            .post_srq_recv(self.id, &[RecvRequest { wr_id: number, sges: &sges }])
            .expect("the device has room");
    }

    /// Sends a packet of the peer to the queue pair with this index.
    fn hear(&mut self, index: usize, opcode: Opcode, psn: u32, length: usize) {
        self.script.qpn = self.qpns[index];
        let said = self.script.say(opcode).psn(PEER_PSN.add(psn)).quiet();
        let said = if opcode == Opcode::UD_SEND_ONLY { said.deth(QKEY, PEER_QPN) } else { said };
        self.script.hear(&said.payload(&vec![3; length]));
    }

    /// Returns the completed receives, with their queue pairs and statuses.
    fn ends(&mut self) -> Vec<(u64, Qpn, Status)> {
        let end = |completion: &Completion| (completion.wr_id, completion.qpn, completion.status);
        self.script.reap().iter().map(end).collect()
    }
}

/// Ways in which a queue pair ends while it receives a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gone {
    Reset,
    Destroy,
}

#[test]
fn an_oversized_datagram_leaves_the_receive_to_the_others() {
    let mut shared = SharingQueuePairs::new(QpKind::Ud, 3);
    shared.post(0);
    // The datagram and its routing header are together longer than the receive, which is the only one.
    for oversized in 0..3 {
        shared.hear(0, Opcode::UD_SEND_ONLY, oversized, LENGTH - 40 + 1);
        assert_eq!(shared.queue.len(), 1, "the receive left the queue");
    }
    // The next datagram is longer than the path MTU.
    shared.hear(1, Opcode::UD_SEND_ONLY, 0, 4097);
    assert_eq!(shared.ends(), []);
    assert_eq!(shared.script.counters().rx_dropped_messages, 4);
    shared.hear(2, Opcode::UD_SEND_ONLY, 0, 8);
    assert_eq!(shared.ends(), [(0, shared.qpns[2], Status::Success)]);
}

#[test]
fn a_dropped_datagram_neither_reorders_receives_nor_uses_up_the_limit() {
    let mut shared = SharingQueuePairs::new(QpKind::Ud, 2);
    for number in 0..3 {
        shared.post(number);
    }
    shared.queue.arm_limit(3);
    shared.hear(0, Opcode::UD_SEND_ONLY, 0, LENGTH);
    assert_eq!((shared.script.events(), shared.queue.limit()), (vec![], 3), "a receive left the queue");
    for (index, psn) in [(1, 0), (0, 1), (1, 1)] {
        shared.hear(index, Opcode::UD_SEND_ONLY, psn, 8);
    }
    let taken: Vec<_> = shared.ends().iter().map(|&(number, ..)| number).collect();
    assert_eq!(taken, [0, 1, 2]);
    assert_eq!(shared.script.events(), [AsyncEvent::SrqLimitReached(shared.id.0)]);
}

#[test]
fn a_uc_message_that_is_dropped_leaves_the_receive_to_the_others() {
    type Packets = &'static [(Opcode, u32, usize)];
    let cases: [(&str, Packets); 4] = [
        ("lost middle", &[(Opcode::UC_SEND_FIRST, 0, 256), (Opcode::UC_SEND_LAST, 2, 8)]),
        ("short middle", &[(Opcode::UC_SEND_FIRST, 0, 256), (Opcode::UC_SEND_MIDDLE, 1, 8)]),
        (
            "too long",
            &[(Opcode::UC_SEND_FIRST, 0, 256), (Opcode::UC_SEND_MIDDLE, 1, 256), (Opcode::UC_SEND_LAST, 2, 1)],
        ),
        ("another operation", &[(Opcode::UC_SEND_FIRST, 0, 256), (Opcode::UC_WRITE_LAST, 1, 8)]),
    ];
    for (what, packets) in cases {
        let mut shared = SharingQueuePairs::new(QpKind::Uc, 2);
        shared.post(0);
        for &(opcode, psn, length) in packets {
            shared.hear(0, opcode, psn, length);
        }
        assert_eq!(shared.script.counters().rx_dropped_messages, 1, "{what}");
        assert_eq!(shared.queue.len(), 1, "{what}: the receive did not return");
        shared.hear(1, Opcode::UC_SEND_ONLY, 0, 8);
        assert_eq!(shared.ends(), [(0, shared.qpns[1], Status::Success)], "{what}");
    }
    // When the next message begins, it uses the receive of the unfinished message.
    let mut shared = SharingQueuePairs::new(QpKind::Uc, 1);
    shared.post(0);
    shared.hear(0, Opcode::UC_SEND_FIRST, 0, 256);
    assert_eq!(shared.queue.len(), 0, "an unfinished message did not keep its receive");
    shared.hear(0, Opcode::UC_SEND_ONLY, 2, 8);
    assert_eq!(shared.ends(), [(0, shared.qpns[0], Status::Success)]);
}

#[test]
fn reset_and_destroy_return_receives_of_unfinished_messages() {
    for (kind, first, only) in [
        (QpKind::Uc, Opcode::UC_SEND_FIRST, Opcode::UC_SEND_ONLY),
        (QpKind::Rc, Opcode::RC_SEND_FIRST, Opcode::RC_SEND_ONLY),
    ] {
        for how in [Gone::Reset, Gone::Destroy] {
            let mut shared = SharingQueuePairs::new(kind, 2);
            shared.post(0);
            shared.hear(0, first, 0, 256);
            assert_eq!(shared.queue.len(), 0);
            let qpn = shared.qpns[0];
            match how {
                Gone::Reset => shared.script.world.bring_to(OWN, qpn, QpState::Reset),
                Gone::Destroy => shared.script.rnic().destroy_qp(qpn).expect("the queue pair exists"),
            }
            assert_eq!(shared.queue.len(), 1, "{kind:?}, {how:?}");
            shared.hear(1, only, 0, 8);
            assert_eq!(shared.ends(), [(0, shared.qpns[1], Status::Success)], "{kind:?}, {how:?}");
        }
    }
}

#[test]
fn receives_of_unfinished_messages_complete_in_error() {
    for (kind, first) in [(QpKind::Uc, Opcode::UC_SEND_FIRST), (QpKind::Rc, Opcode::RC_SEND_FIRST)] {
        let mut shared = SharingQueuePairs::new(kind, 2);
        shared.post(0);
        shared.post(1);
        shared.hear(0, first, 0, 256);
        let qpn = shared.qpns[0];
        shared.script.world.bring_to(OWN, qpn, QpState::Error);
        assert_eq!(
            shared.ends(),
            [(0, qpn, Status::WorkRequestFlushed)],
            "{kind:?}: expected exactly one flushed receive"
        );
        assert_eq!(shared.queue.len(), 1);
        shared.script.world.bring_to(OWN, qpn, QpState::Reset);
        assert_eq!((shared.ends(), shared.queue.len()), (vec![], 1), "{kind:?}: the receive was flushed twice");
    }
}

#[test]
fn a_refused_write_with_immediate_flushes_no_shared_receive() {
    let mut shared = SharingQueuePairs::new(QpKind::Rc, 2);
    shared.post(0);
    let region = shared.script.region(8192, 512, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    shared.script.qpn = shared.qpns[0];
    let first = shared.script.say(Opcode::RC_WRITE_FIRST).reth(region.address(), region.rkey(), 264);
    shared.script.hear(&first.payload(&[1; 256]).quiet());
    shared.script.rnic().deregister(&region).expect("the region was registered");
    let last = shared.script.say(Opcode::RC_WRITE_LAST_IMM).psn(PEER_PSN.add(1)).immediate(5);
    shared.script.hear(&last.payload(&[1; 8]));
    assert_eq!(shared.script.state(), QpState::Error);
    assert_eq!((shared.ends(), shared.queue.len()), (vec![], 1), "the receive did not stay in the queue");
    shared.hear(1, Opcode::RC_SEND_ONLY, 0, 8);
    assert_eq!(shared.ends(), [(0, shared.qpns[1], Status::Success)]);
}

#[test]
fn a_receive_without_memory_fails_and_starves_no_others() {
    for (kind, only) in [(QpKind::Ud, Opcode::UD_SEND_ONLY), (QpKind::Uc, Opcode::UC_SEND_ONLY)] {
        let mut shared = SharingQueuePairs::new(kind, 2);
        let region = shared.script.region(8192, LENGTH, Access::LOCAL_WRITE);
        let sges = [doorbell_verbs_core::Sge { address: region.address(), length: LENGTH as u32, lkey: region.lkey() }];
        let id = shared.id;
        shared.script.rnic().post_srq_recv(id, &[RecvRequest { wr_id: 77, sges: &sges }]).expect("the device has room");
        shared.script.rnic().deregister(&region).expect("the region was registered");
        shared.post(0);
        shared.hear(0, only, 0, 8);
        let (broken, whole) = (shared.qpns[0], shared.qpns[1]);
        assert_eq!(shared.ends(), [(77, broken, Status::LocalProtection)], "{kind:?}");
        assert_eq!(shared.script.state(), QpState::Error, "{kind:?}");
        assert_eq!(shared.script.events(), [AsyncEvent::QpFatal(broken), AsyncEvent::QpLastWqeReached(broken)]);
        shared.hear(1, only, 0, 8);
        assert_eq!(shared.ends(), [(0, whole, Status::Success)], "{kind:?}");
    }
}

#[test]
fn a_returned_receive_goes_back_into_a_refilled_queue() {
    let mut shared = SharingQueuePairs::new(QpKind::Uc, 2);
    for number in 0..DEPTH as u64 {
        shared.post(number);
    }
    shared.hear(0, Opcode::UC_SEND_FIRST, 0, 256);
    shared.post(DEPTH as u64);
    let qpn = shared.qpns[0];
    shared.script.rnic().destroy_qp(qpn).expect("the queue pair exists");
    assert_eq!(shared.queue.len(), DEPTH + 1);
    // The queue stays full until messages take receives.
    let sges = [shared.script.world.nodes[OWN].sge(0, LENGTH)];
    let id = shared.id;
    shared.script.rnic().post_srq_recv(id, &[RecvRequest { wr_id: 9, sges: &sges }]).expect_err("the queue is full");
    for psn in 0..=DEPTH as u32 {
        shared.hear(1, Opcode::UC_SEND_ONLY, psn, 8);
    }
    let taken: Vec<_> = shared.ends().iter().map(|&(number, ..)| number).collect();
    assert_eq!(taken, [0, 1, 2, 3, 4], "receives were not taken in order");
    assert!(shared.queue.is_empty());
}
