//! Invalid packets, which the device silently drops and counts.

use crate::common::script::{OWN, PEER, PEER_PSN, PEER_QPN, Script};
use crate::common::{End, QKEY};
use doorbell_verbs_core::{Counters, QpKind, QpState};
use doorbell_wire::{Opcode, PartitionKey, PathMtu, Psn, QKey, Qpn};

/// Returns the names and increments of the counters that changed, without the count of all packets.
fn counted(script: &Script, before: &Counters) -> Vec<(&'static str, u64)> {
    let since = script.counters().since(before);
    let all = Counters::NAMES.iter().copied().zip(since.values());
    all.filter(|&(name, count)| count > 0 && !name.starts_with("rx_vport")).collect()
}

/// Checks that the packet changes only one counter, and gets no answer.
fn dropped(script: &mut Script, bytes: &[u8], counter: &'static str) {
    let before = script.counters();
    script.world.inject(PEER, OWN, bytes);
    assert_eq!(counted(script, &before), [(counter, 1)], "{bytes:02x?}");
    assert_eq!(script.sent().len(), 0, "the device answered the packet");
    assert_eq!(script.reap().len(), 0, "the packet led to a completion");
    assert_eq!(script.rnic().poll_timeout(), None, "the packet started a timer");
}

#[test]
fn strangers_and_strange_headers_are_dropped() {
    let mut script = Script::new();
    script.receive(0, 64);
    let good = script.say(Opcode::RC_SEND_ONLY).payload(&[1; 8]);
    let with = |change: &dyn Fn(&mut crate::common::script::Say)| {
        let mut said = good.clone();
        change(&mut said);
        said.bytes()
    };
    let qpn = script.qpn;
    let other = Qpn::new(qpn.get() ^ 0x5_0000);
    dropped(&mut script, &with(&|said| said.bth.dest_qpn = other), "rx_unknown_qp");
    dropped(&mut script, &with(&|said| said.bth.dest_qpn = Qpn::new(0)), "rx_unknown_qp");
    dropped(&mut script, &with(&|said| said.bth.opcode = Opcode::UC_SEND_ONLY), "rx_unknown_qp");
    dropped(&mut script, &with(&|said| said.bth.version = 1), "rx_malformed");
    dropped(&mut script, &with(&|said| said.bth.opcode = Opcode(0x1f)), "rx_malformed");
    dropped(&mut script, &with(&|said| said.bth.opcode = Opcode(0xe0)), "rx_malformed");
    dropped(&mut script, &with(&|said| said.bth.partition_key = PartitionKey::new(0xfffe)), "rx_key_violation");
    dropped(&mut script, &with(&|said| said.bth.opcode = Opcode::CNP), "rx_cnp");
    dropped(&mut script, &[], "rx_malformed");
    dropped(&mut script, &[4; 11], "rx_malformed");
    // The device accepts a limited member of the same partition.
    let limited = with(&|said| said.bth.partition_key = PartitionKey::new(0x7fff));
    script.world.inject(PEER, OWN, &limited);
    assert_eq!(script.reap().len(), 1);
}

#[test]
fn packets_from_a_foreign_source_are_dropped() {
    for opcode in [Opcode::RC_SEND_ONLY, Opcode::RC_ACKNOWLEDGE, Opcode::RC_READ_REQUEST] {
        let mut script = Script::new();
        script.receive(0, 64);
        script.post(doorbell_verbs_core::SendOperation::Send, 8);
        script.sent();
        let bytes = script.say(opcode).psn(PEER_PSN).bytes();
        let before = script.counters();
        let mut outer = script.world.outer(PEER, OWN);
        outer.src = crate::common::address_of(77);
        let now_ns = script.world.now_ns;
        script.rnic().handle_packet(now_ns, &outer, &bytes);
        assert_eq!(counted(&script, &before), [("rx_foreign_source", 1)]);
        assert_eq!(script.sent().len(), 0);
    }
}

#[test]
fn states_that_do_not_receive_drop() {
    let mut script = Script::silent(PathMtu::Mtu256);
    let end = End::default();
    script.qpn = script.world.create_qp(OWN, QpKind::Rc, &end);
    let qpn = script.qpn;
    let send = script.say(Opcode::RC_SEND_ONLY).bytes();
    dropped(&mut script, &send, "rx_foreign_source");
    script.world.bring_to_init(OWN, qpn, QpKind::Rc, &end);
    script.world.bring_to_rtr(OWN, qpn, QpKind::Rc, PathMtu::Mtu256, &end, (PEER, PEER_QPN, PEER_PSN));
    // In RTR, the queue pair accepts no responses.
    let mut ack = script.say(Opcode::RC_ACKNOWLEDGE);
    ack.extension = vec![0; 4];
    dropped(&mut script, &ack.bytes(), "rx_wrong_state");
    script.world.bring_to(OWN, qpn, QpState::Error);
    dropped(&mut script, &send, "rx_wrong_state");
    dropped(&mut script, &ack.bytes(), "rx_wrong_state");
}

/// Cuts each packet at each length. No call panics, and the device accepts only complete packets.
#[test]
fn truncated_packets_are_malformed_or_refused() {
    for kind in [QpKind::Rc, QpKind::Uc, QpKind::Ud] {
        for &opcode in Opcode::KNOWN {
            for cut in 0..12 + opcode.extension_len() {
                let mut script = Script::with(kind, PathMtu::Mtu256, &End::default());
                script.receive(0, 512);
                let mut said = script.say(opcode);
                said.extension = vec![0; opcode.extension_len()];
                let bytes = said.bytes();
                let before = script.counters();
                script.world.inject(PEER, OWN, &bytes[..cut]);
                let counted = counted(&script, &before);
                assert_eq!(counted.len(), 1, "{kind:?} {opcode} cut to {cut} B: {counted:?}");
                let expected = ["rx_malformed", "rx_unknown_qp", "rx_unexpected_response", "rx_cnp"];
                assert!(expected.contains(&counted[0].0), "{kind:?} {opcode} cut to {cut} B: {counted:?}");
                assert_eq!(script.reap().len(), 0, "{kind:?} {opcode} cut to {cut} B");
            }
        }
    }
}

#[test]
fn more_padding_than_payload_is_malformed() {
    let mut script = Script::new();
    script.receive(0, 64);
    let mut said = script.say(Opcode::RC_SEND_ONLY);
    said.bth.pad_count = 3;
    let mut bytes = said.bytes();
    bytes[1] |= 0x30;
    dropped(&mut script, &bytes, "rx_malformed");
}

#[test]
fn unexpected_answers_are_counted() {
    let mut script = Script::new();
    for (opcode, extension) in [
        (Opcode::RC_ACKNOWLEDGE, 4),
        (Opcode::RC_READ_RESPONSE_ONLY, 4),
        (Opcode::RC_READ_RESPONSE_MIDDLE, 0),
        (Opcode::RC_ATOMIC_ACKNOWLEDGE, 12),
    ] {
        let mut said = script.say(opcode).psn(Psn::new(200));
        said.extension = vec![0; extension];
        dropped(&mut script, &said.bytes(), "rx_unexpected_response");
    }
    script.post(doorbell_verbs_core::SendOperation::Send, 8);
    script.sent();
    let mut unknown = script.say(Opcode::RC_ACKNOWLEDGE).psn(Psn::new(100));
    unknown.extension = vec![0xff, 0, 0, 0];
    let before = script.counters();
    script.hear(&unknown);
    assert_eq!(counted(&script, &before), [("rx_malformed", 1)], "a syndrome that IBTA reserves must be counted");
    // A READ response to a SEND is invalid.
    script.respond(Opcode::RC_READ_RESPONSE_ONLY, Psn::new(100), &[0; 8]);
    script.respond_atomic(Psn::new(100), 1);
    assert_eq!(script.reap().len(), 0);
}

#[test]
fn datagrams_need_the_key_and_a_receive_that_holds_them() {
    let mut script = Script::with(QpKind::Ud, PathMtu::Mtu4096, &End::default());
    let from = Qpn::new(55);
    let said = |script: &Script, length: usize| {
        script.say(Opcode::UD_SEND_ONLY).quiet().deth(QKEY, from).payload(&vec![5; length])
    };
    let wrong = script.say(Opcode::UD_SEND_ONLY).deth(QKey::new(1), from).payload(&[5; 8]).bytes();
    dropped(&mut script, &wrong, "rx_key_violation");
    let none = said(&script, 8).bytes();
    dropped(&mut script, &none, "rx_dropped_messages");
    script.receive(0, 40 + 8);
    let long = said(&script, 9).bytes();
    dropped(&mut script, &long, "rx_dropped_messages");
    let oversized = said(&script, 4100).bytes();
    dropped(&mut script, &oversized, "rx_dropped_messages");
    script.world.inject(PEER, OWN, &none);
    let completion = script.reap()[0];
    assert_eq!((completion.wr_id, completion.byte_len, completion.source_qpn), (0, 48, from));
    assert!(completion.has_grh, "the receive of the dropped longer message is missing");
}

#[test]
fn datagrams_over_ipv6_come_with_the_whole_header() {
    let addresses: [std::net::IpAddr; 2] = ["fd00::1", "fd00::2"].map(|text| text.parse().expect("an address"));
    let config = doorbell_rnic::Config {
        address: addresses[0],
        active_mtu: PathMtu::Mtu1024,
        receive_buffer_bytes: 1 << 20,
        seed: [3; 32],
    };
    let mut rnic = doorbell_rnic::Rnic::new(config, None);
    let pd = rnic.create_pd();
    let block = crate::common::Block::new(4096);
    // SAFETY: the block outlives the device's use of it.
    let region =
        unsafe { rnic.register(pd, block.base(), 4096, block.address(), doorbell_verbs_core::Access::all(), None) };
    let region = region.expect("the device has room for a region");
    let (cq, queue) = rnic.create_cq(4, None).expect("the device has room for a queue");
    let init = doorbell_verbs_core::QpInit {
        kind: QpKind::Ud,
        pd,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        capacities: End::default().capacities,
        signal_all: true,
    };
    let qpn = rnic.create_qp(init).expect("the device has room for a queue pair");
    let to = |state| doorbell_verbs_core::QpAttributes { state: Some(state), ..Default::default() };
    let init =
        doorbell_verbs_core::QpAttributes { pkey_index: Some(0), port: Some(1), qkey: Some(QKEY), ..to(QpState::Init) };
    rnic.modify_qp(qpn, &init).expect("the transition is in the table");
    rnic.modify_qp(qpn, &to(QpState::ReadyToReceive)).expect("the transition is in the table");
    let sges = [doorbell_verbs_core::Sge { address: block.address(), length: 100, lkey: region.lkey() }];
    rnic.post_recv(qpn, &[doorbell_verbs_core::RecvRequest { wr_id: 1, sges: &sges }]).expect("the device has room");
    let mut said = Script::silent(PathMtu::Mtu1024).say(Opcode::UD_SEND_ONLY).deth(QKEY, Qpn::new(9)).payload(&[7; 5]);
    said.bth.dest_qpn = qpn;
    let outer = doorbell_wire::Outer {
        src: addresses[1],
        dst: addresses[0],
        traffic_class: 0xa5,
        hop_limit: 61,
        identification: None,
        dont_fragment: None,
    };
    rnic.handle_packet(1, &outer, &said.bytes());
    let mut out = [doorbell_verbs_core::Completion::default(); 2];
    assert_eq!(queue.poll(&mut out), Ok(1));
    assert_eq!((out[0].byte_len, out[0].has_grh), (45, true));
    let header = block.read(0, 40);
    // The payload length covers UDP, BTH, DETH, payload with padding, and ICRC.
    assert_eq!(header[..8], [0x6a, 0x50, 0, 0, 0, 8 + 12 + 8 + 8 + 4, 17, 61]);
    let octets = |address: std::net::IpAddr| match address {
        std::net::IpAddr::V6(address) => address.octets(),
        std::net::IpAddr::V4(_) => unreachable!("both addresses are IPv6"),
    };
    assert_eq!(header[8..24], octets(addresses[1]));
    assert_eq!(header[24..], octets(addresses[0]));
    assert_eq!(block.read(40, 5), [7; 5]);
}

#[test]
fn uc_silently_drops_messages_that_it_cannot_place() {
    let mut script = Script::with(QpKind::Uc, PathMtu::Mtu256, &End::default());
    let none = script.say(Opcode::UC_SEND_ONLY).payload(&[1; 8]).bytes();
    dropped(&mut script, &none, "rx_dropped_messages");
    script.receive(0, 300);
    script.receive(300, 300);
    let middle = script.say(Opcode::UC_SEND_MIDDLE).payload(&[1; 256]).psn(Psn::new(9)).bytes();
    dropped(&mut script, &middle, "rx_dropped_messages");
    // The device does not count the remaining packets of the same message again.
    let before = script.counters();
    script.hear(&script.say(Opcode::UC_SEND_LAST).psn(Psn::new(10)).payload(&[1; 8]));
    assert_eq!(counted(&script, &before), []);
    // A missing packet drops the whole message. The next message uses the receive of the dropped message.
    script.hear(&script.say(Opcode::UC_SEND_FIRST).psn(Psn::new(20)).payload(&[1; 256]));
    let before = script.counters();
    script.hear(&script.say(Opcode::UC_SEND_LAST).psn(Psn::new(22)).payload(&[1; 8]));
    assert_eq!(counted(&script, &before), [("rx_dropped_messages", 1)]);
    script.hear(&script.say(Opcode::UC_SEND_ONLY).psn(Psn::new(23)).payload(&[2; 8]));
    assert_eq!(script.reap()[0].wr_id, 0);
    // A WRITE that exceeds its region must write no byte.
    let end = script.base() + script.world.nodes[OWN].memory.len() as u64;
    let write = script.say(Opcode::UC_WRITE_FIRST).psn(Psn::new(24)).reth(end - 256, script.rkey(), 300);
    let bytes = write.payload(&[7; 256]).bytes();
    dropped(&mut script, &bytes, "rx_dropped_messages");
    let length = script.world.nodes[OWN].memory.len();
    assert_eq!(script.world.nodes[OWN].memory.read(length - 256, 256), [0; 256]);
    assert_eq!(script.state(), QpState::ReadyToSend);
    // When the queue pair enters the error state, it must flush the receive of the unfinished message exactly once.
    script.hear(&script.say(Opcode::UC_SEND_FIRST).psn(Psn::new(30)).payload(&[1; 256]));
    let qpn = script.qpn;
    script.world.bring_to(OWN, qpn, QpState::Error);
    assert_eq!(script.ends(), [(300, doorbell_verbs_core::Status::WorkRequestFlushed)]);
}
