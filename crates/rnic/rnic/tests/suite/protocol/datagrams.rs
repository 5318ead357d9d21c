//! Contents of the headers of datagrams.

use crate::common::script::{OWN, PEER_QPN, Script};
use crate::common::{End, QKEY};
use doorbell_verbs_core::{
    Payload, QpAttributes, QpKind, QpState, RecvRequest, SendFlags, SendOperation, SendRequest, UdDestination,
};
use doorbell_wire::{BTH_LEN, DethPacket, PathMtu, QKey, Qpn};

fn post(script: &mut Script, to: Qpn, qkey: QKey) {
    let destination = Some(UdDestination { address: script.address(), qpn: to, qkey });
    let (operation, flags, payload) = (SendOperation::Send, SendFlags::SIGNALED, Payload::Inline(b"datagram"));
    let (now_ns, qpn) = (script.world.now_ns, script.qpn);
    let request = SendRequest { wr_id: 1, operation, flags, payload, destination };
    script.rnic().post_send(now_ns, qpn, &[request]).expect("the device has room");
}

/// Returns the Q_Key of the datagram that the RNIC sends now.
fn sent_qkey(script: &mut Script) -> QKey {
    let sent = script.sent();
    assert_eq!(sent.len(), 1);
    DethPacket::new_checked(&sent[0].bytes[BTH_LEN..]).expect("a datagram").qkey()
}

#[test]
fn a_qkey_with_the_high_bit_selects_the_queue_pairs_qkey() {
    let mut script = Script::with(QpKind::Ud, PathMtu::Mtu256, &End::default());
    for given in [0, 1, QKEY.get() ^ 1, 0x7fff_ffff].map(QKey::new) {
        post(&mut script, PEER_QPN, given);
        assert_eq!(sent_qkey(&mut script), given, "another Q_Key was sent than the given one");
    }
    for given in [0x8000_0000, 0x8000_0000 | QKEY.get(), u32::MAX].map(QKey::new) {
        post(&mut script, PEER_QPN, given);
        assert_eq!(sent_qkey(&mut script), QKEY, "{given}");
    }
    // The datagram must carry the Q_Key that the queue pair has at the time of transmission, not of the post.
    post(&mut script, PEER_QPN, QKey::new(0x8000_0000));
    let (qpn, renewed) = (script.qpn, QKey::new(77));
    let state = Some(QpState::ReadyToSend);
    script.world.modify(OWN, qpn, QpAttributes { state, qkey: Some(renewed), ..QpAttributes::default() });
    assert_eq!(sent_qkey(&mut script), renewed);
}

#[test]
fn a_receiver_compares_the_whole_qkey() {
    let mut script = Script::with(QpKind::Ud, PathMtu::Mtu256, &End::default());
    let sges = [script.world.nodes[OWN].sge(0, 64)];
    let qpn = script.qpn;
    script.rnic().post_recv(qpn, &[RecvRequest { wr_id: 5, sges: &sges }]).expect("the device has room");
    // In a received packet, the highest bit of the Q_Key has no special meaning.
    for wrong in [0x8000_0000, 0x8000_0000 | QKEY.get()].map(QKey::new) {
        let said = script.say(doorbell_wire::Opcode::UD_SEND_ONLY).quiet().deth(wrong, PEER_QPN).payload(&[1; 8]);
        script.hear(&said);
    }
    assert_eq!((script.reap().len(), script.counters().rx_key_violation), (0, 2));
}
