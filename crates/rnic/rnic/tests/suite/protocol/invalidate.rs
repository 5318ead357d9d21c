//! SEND with Invalidate. A peer may invalidate only the key of a type 2 window, and only through the queue pair that
//! bound the window (IBTA Vol 1, 9.4.1.1.3, 9.9.3, 10.6.7.2.6).

use super::windows::{Windows, next};
use crate::common::script::{OWN, PEER_PSN, PEER_QPN, Script, nak_of};
use crate::common::{End, QKEY};
use doorbell_verbs_core::{
    Access, AsyncEvent, Completion, QpKind, QpState, RecvRequest, SendOperation as Op, Sge, Status, WindowKind,
};
use doorbell_wire::{NakCode, Opcode, PathMtu, RKey};

/// Function that creates the key for the message of the peer.
type Key = fn(&mut Windows) -> RKey;

/// Binds the window for the queue pair that receives from the peer, and returns its key.
fn bound(own: &mut Windows) -> RKey {
    let binding = own.binding();
    assert_eq!(own.bind(binding), Status::Success);
    binding.rkey
}

/// Replaces the queue pair that receives from the peer by another queue pair of the same protection domain.
fn hear_elsewhere(own: &mut Windows) {
    let end = End { srq: own.shared.as_ref().map(|(id, _)| *id), ..End::default() };
    own.script.qpn = own.script.add_qp(QpKind::Rc, PathMtu::Mtu256, &end);
}

const REFUSED: [(WindowKind, &str, Key); 10] = [
    (WindowKind::Type2, "the region that the window is bound to", |own| {
        bound(own);
        own.region.rkey()
    }),
    (WindowKind::Type2, "a region that is open to all peers", |own| own.script.rkey()),
    (WindowKind::Type2, "a region of another domain", |own| {
        let pd = own.script.rnic().create_pd();
        let (base, address) = (own.script.world.nodes[OWN].memory.base(), own.script.base());
        // SAFETY: the block lives as long as the node's RNIC.
        let region = unsafe { own.script.rnic().register(pd, base, 64, address, Access::all(), None) };
        region.expect("the device has room for a region").rkey()
    }),
    (WindowKind::Type2, "no key at all", |_| RKey::new(0x5555_5555)),
    (WindowKind::Type1, "a window of type 1", bound),
    (WindowKind::Type2, "a window that is not bound", |own| own.key),
    (WindowKind::Type2, "another key of the window", |own| next(bound(own))),
    (WindowKind::Type2, "a window that its owner invalidated", |own| {
        let key = bound(own);
        assert_eq!(own.run(Op::LocalInvalidate(key)), Status::Success);
        key
    }),
    (WindowKind::Type2, "a window of another queue pair", |own| {
        let key = bound(own);
        hear_elsewhere(own);
        key
    }),
    (WindowKind::Type2, "a window of another domain", |own| {
        let pd = own.script.rnic().create_pd();
        own.script.rnic().create_window(pd, WindowKind::Type2).expect("the device has room for a window")
    }),
];

/// Posts a receive of 300 B. The number of the work request is the offset.
fn receive(own: &mut Windows, offset: usize) {
    match &own.shared {
        None => own.script.receive(offset, 300),
        Some((id, _)) => {
            let (id, sges) = (*id, [own.script.world.nodes[OWN].sge(offset, 300)]);
            own.script
                .rnic()
                .post_srq_recv(id, &[RecvRequest { wr_id: offset as u64, sges: &sges }])
                .expect("the device has room");
        }
    }
}

/// Lets the peer send a message that invalidates `key`. Returns the answer of the RNIC, which must be one packet.
fn send(own: &mut Windows, key: RKey, packets: u32) -> crate::common::world::Sent {
    let say = |opcode| own.script.say(opcode);
    let (first, last) = match packets {
        1 => (None, say(Opcode::RC_SEND_ONLY_INV)),
        _ => (Some(say(Opcode::RC_SEND_FIRST).quiet().payload(&[5; 256])), say(Opcode::RC_SEND_LAST_INV)),
    };
    if let Some(first) = first {
        own.script.hear(&first);
    }
    own.script.hear(&last.psn(PEER_PSN.add(packets - 1)).invalidate(key).payload(&[6; 8]));
    own.heard = packets;
    let mut sent = own.script.sent();
    assert_eq!(sent.len(), 1, "the RNIC must send one answer");
    assert_eq!(sent[0].psn(), PEER_PSN.add(packets - 1), "the answer must be to the packet with the key");
    sent.remove(0)
}

/// Returns whether a READ of 8 B through a new queue pair succeeds.
fn is_open(own: &mut Windows, key: RKey, address: u64) -> bool {
    own.script.qpn = own.script.add_qp(QpKind::Rc, PathMtu::Mtu256, &End::default());
    own.script.hear(&own.script.say(Opcode::RC_READ_REQUEST).reth(address, key, 8));
    nak_of(&own.script.sent()[0]).is_none()
}

#[test]
fn only_windows_of_the_queue_pair_can_be_invalidated() {
    for (kind, what, make) in REFUSED {
        for (shares, packets) in [(false, 1), (false, 2), (true, 1), (true, 2)] {
            let what = format!("{what}, shared receives: {shares}, {packets} packets");
            let mut own = if shares { Windows::sharing(kind) } else { Windows::new(kind) };
            let key = make(&mut own);
            own.script.reap();
            receive(&mut own, 0);
            receive(&mut own, 512);
            let qpn = own.script.qpn;
            // At the requester, this NAK causes the status "remote access error".
            assert_eq!(nak_of(&send(&mut own, key, packets)), Some(NakCode::REMOTE_ACCESS_ERROR), "{what}");
            assert_eq!(own.script.state(), QpState::Error, "{what}");
            assert_eq!(own.script.counters().resp_remote_access_errors, 1, "{what}");
            let ends = own.script.ends();
            let events = own.script.events();
            if let Some((_, queue)) = &own.shared {
                assert_eq!(ends, [(0, Status::LocalAccess)], "{what}");
                assert_eq!(queue.len(), 1, "{what}: the unused receive must stay in the shared receive queue");
                assert_eq!(events, [AsyncEvent::QpAccessError(qpn), AsyncEvent::QpLastWqeReached(qpn)], "{what}");
            } else {
                assert_eq!(ends, [(0, Status::LocalAccess), (512, Status::WorkRequestFlushed)], "{what}");
                assert_eq!(events, [AsyncEvent::QpAccessError(qpn)], "{what}");
            }
        }
    }
}

#[test]
fn a_refused_invalidation_keeps_access_of_other_peers() {
    let mut own = Windows::new(WindowKind::Type1);
    let (region, window) = (own.script.rkey(), bound(&mut own));
    let address = own.region.address();
    for key in [region, window] {
        hear_elsewhere(&mut own);
        receive(&mut own, 0);
        send(&mut own, key, 1);
        assert!(is_open(&mut own, key, address), "{key:?} is closed to other peers");
    }
    let lkey = own.script.world.nodes[OWN].region.lkey();
    let sge = Sge { address, length: 8, lkey };
    let qpn = own.script.qpn;
    own.script.rnic().post_recv(qpn, &[RecvRequest { wr_id: 1, sges: &[sge] }]).expect("the local key is valid");

    // A type 2 window stays open to the peer of the queue pair that bound it.
    let mut own = Windows::new(WindowKind::Type2);
    let (binder, key) = (own.script.qpn, bound(&mut own));
    hear_elsewhere(&mut own);
    receive(&mut own, 0);
    send(&mut own, key, 1);
    let address = own.region.address();
    (own.script.qpn, own.heard) = (binder, 0);
    assert!(own.write(key, address, 8));
}

#[test]
fn a_peer_invalidates_a_window_only_once() {
    for shares in [false, true] {
        for packets in [1, 2] {
            let mut own = if shares { Windows::sharing(WindowKind::Type2) } else { Windows::new(WindowKind::Type2) };
            let key = bound(&mut own);
            receive(&mut own, 0);
            receive(&mut own, 512);
            assert_eq!(nak_of(&send(&mut own, key, packets)), None);
            let Completion { wr_id, status, attachment, .. } = own.script.reap()[0];
            assert_eq!((wr_id, status), (0, Status::Success));
            assert_eq!(attachment, doorbell_verbs_core::Attachment::Invalidated(key));
            assert_eq!(own.script.state(), QpState::ReadyToSend);
            // The responder acknowledges a duplicate of the message, and the duplicate has no other effect.
            own.script.hear(&own.script.say(Opcode::RC_SEND_ONLY_INV).psn(PEER_PSN.add(packets - 1)).invalidate(key));
            assert_eq!(nak_of(&own.script.sent()[0]), None);
            assert_eq!(own.script.state(), QpState::ReadyToSend);
            // The responder rejects another message with the same key.
            let again = own.script.say(Opcode::RC_SEND_ONLY_INV).psn(PEER_PSN.add(packets)).invalidate(key);
            own.script.hear(&again);
            assert_eq!(nak_of(&own.script.sent()[0]), Some(NakCode::REMOTE_ACCESS_ERROR));
        }
    }
}

#[test]
fn a_refused_message_ends_the_requester_with_a_remote_access_error() {
    let mut script = Script::new();
    let first = script.post(Op::SendInvalidate(RKey::new(0x777)), 8);
    let behind = script.post(Op::Send, 8);
    let psn = script.sent()[0].psn();
    script.nak(psn, NakCode::REMOTE_ACCESS_ERROR);
    assert_eq!(script.ends(), [(first, Status::RemoteAccess), (behind, Status::WorkRequestFlushed)]);
    assert_eq!(script.state(), QpState::Error);
    assert_eq!(script.counters().req_remote_access_errors, 1);
}

/// UC and UD have no SEND with invalidate (IBTA Vol 1, 9.4.1, the table of opcodes), so the packet is malformed and
/// dropped.
#[test]
fn unreliable_transports_invalidate_nothing() {
    for (kind, opcodes) in [(QpKind::Uc, [Opcode(0x36), Opcode(0x37)]), (QpKind::Ud, [Opcode(0x76), Opcode(0x77)])] {
        for opcode in opcodes {
            let mut own = Windows::new(WindowKind::Type2);
            let binder = own.script.qpn;
            if kind == QpKind::Uc {
                own.script.qpn = own.script.add_qp(kind, PathMtu::Mtu256, &End::default());
            }
            let (bound_on, key) = (own.script.qpn, bound(&mut own));
            if kind == QpKind::Ud {
                own.script.qpn = own.script.add_qp(kind, PathMtu::Mtu256, &End::default());
            }
            receive(&mut own, 0);
            let said = own.script.say(opcode).quiet();
            let said = if kind == QpKind::Ud { said.deth(QKEY, PEER_QPN) } else { said };
            own.script.hear(&said.invalidate(key).payload(&[7; 8]));
            assert_eq!(own.script.counters().rx_malformed, 1, "{kind:?} {opcode:?}");
            assert_eq!((own.script.ends(), own.script.state()), (vec![], QpState::ReadyToSend), "{kind:?} {opcode:?}");
            // The window is still bound, so a second binding is rejected.
            own.script.qpn = bound_on;
            let binding = own.binding();
            assert_eq!(
                own.bind(binding),
                Status::MemoryWindowBind,
                "{kind:?} {opcode:?}: the window must still be bound"
            );
            own.script.qpn = binder;
        }
    }
}

/// Destroying a queue pair must unbind its type 2 windows. A later queue pair may get the same number, and its peers
/// must not reach the windows.
#[test]
fn destroying_a_queue_pair_unbinds_its_type_2_windows() {
    for kind in [WindowKind::Type1, WindowKind::Type2] {
        let mut own = Windows::new(kind);
        let key = bound(&mut own);
        let (qpn, region) = (own.script.qpn, own.region.clone());
        own.script.rnic().destroy_qp(qpn).expect("it lives");
        let address = region.address();
        // A window of type 1 does not depend on a queue pair.
        assert_eq!(is_open(&mut own, key, address), kind == WindowKind::Type1, "{kind:?}");
        assert_eq!(
            own.script.rnic().deregister(&region).is_ok(),
            kind == WindowKind::Type2,
            "{kind:?}: the window is not bound"
        );
        own.script.rnic().destroy_window(key).expect("the window still exists");
    }
}
