//! Unreliable connections and datagrams.

use std::net::IpAddr;

use doorbell_verbs::{
    Attachment, CompletionOpcode, QKey, QpKind, QpState, SendOperation, SendRequest, Status, UdDestination,
};

use crate::Open;
use crate::common::*;

/// Number of bytes that precede the payload in the receive of a datagram (the GRH).
const GRH_BYTES: usize = 40;

pub fn unreliable_connections_carry_sends_and_writes(open: Open<'_>) {
    let (a, b) = Plan::new(QpKind::Uc).connect(&open());
    for size in [0, 1, 3, 4, 1023, 1024, 1025, 2048, 10_000] {
        let (from, to) = (a.patterned(size.max(1), 1), b.memory(size.max(1)));
        let whole = pattern(size, 1);
        b.post_recv(1, &[to.sge(0, size)]);
        a.post(1, SendOperation::Send, &[from.sge(0, size)]);
        a.expect(1);
        assert_eq!(b.expect(1).byte_len as usize, size);
        assert_bytes(&to, 0, &whole, "SEND");
        to.fill(0, size, 0);
        b.post_recv(2, &[to.sge(0, size)]);
        a.post(2, SendOperation::SendImmediate(77), &[from.sge(0, size)]);
        a.expect(2);
        assert_eq!(b.expect(2).attachment, Attachment::Immediate(77));
        assert_bytes(&to, 0, &whole, "SEND with immediate");
        to.fill(0, size, 0);
        a.post(3, write_to(&to, 0), &[from.sge(0, size)]);
        a.expect(3);
        b.post_recv(4, &[]);
        let operation = SendOperation::WriteImmediate { remote_address: to.address(), rkey: to.rkey(), immediate: 78 };
        a.post(4, operation, &[]);
        a.expect(4);
        // A later WRITE with immediate has arrived, so this WRITE has arrived too.
        let received = b.expect(4);
        assert_eq!(received.attachment, Attachment::Immediate(78));
        assert_eq!((received.opcode, received.byte_len), (CompletionOpcode::ReceiveWriteImmediate, 0));
        assert_bytes(&to, 0, &whole, "WRITE");
    }
}

pub fn unreliable_connections_drop_messages_without_a_receive(open: Open<'_>) {
    let (a, b) = Plan::new(QpKind::Uc).connect(&open());
    let (from, to) = (a.patterned(4096, 1), b.memory(4096));
    let before = b.device.counters().unwrap_or_default();
    a.post(1, SendOperation::Send, &[from.sge(0, 4096)]);
    a.expect(1); // a sent request is complete, even without a receiver
    eventually_counted("the message was dropped", &b.device, |counted| counted.since(&before).rx_dropped_messages == 1);
    // Both queue pairs still work.
    b.post_recv(2, &[to.sge(0, 4096)]);
    a.post(2, SendOperation::Send, &[from.sge(0, 4096)]);
    a.expect(2);
    b.expect(2);
    assert_bytes(&to, 0, &pattern(4096, 1), "the next message");
    // The receiver drops a refused WRITE, too.
    let operation = SendOperation::Write { remote_address: to.address(), rkey: wrong(to.rkey()) };
    a.post(3, operation, &[from.sge(0, 100)]);
    a.expect(3);
    eventually_counted("the WRITE was dropped", &b.device, |counted| counted.since(&before).rx_dropped_messages == 2);
}

/// Checks all fields of the IP header that a receiver knows, for a datagram with `payload` bytes.
#[track_caller]
fn check_header(grh: &[u8], source: IpAddr, destination: IpAddr, payload: usize, with_checksum: bool) {
    // Number of bytes after the IP header: UDP, BTH, DETH, the padded payload, ICRC.
    let behind = 8 + 12 + 8 + payload.next_multiple_of(4) + 4;
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            assert_eq!(grh[..20], [0; 20]);
            let ip = &grh[20..];
            assert_eq!(ip[0], 0x45);
            assert_eq!(usize::from(u16::from_be_bytes([ip[2], ip[3]])), 20 + behind);
            assert_eq!((ip[8], ip[9]), (64, 17), "time to live, UDP");
            assert_eq!((&ip[12..16], &ip[16..20]), (&source.octets()[..], &destination.octets()[..]));
            if !with_checksum {
                return;
            }
            let sum: u32 = ip.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
            assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "the header's checksum");
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            assert_eq!(grh[..4], [0x60, 0, 0, 0], "version, traffic class, flow label");
            assert_eq!(usize::from(u16::from_be_bytes([grh[4], grh[5]])), behind);
            assert_eq!((grh[6], grh[7]), (17, 64), "UDP, hop limit");
            assert_eq!((&grh[8..24], &grh[24..40]), (&source.octets()[..], &destination.octets()[..]));
        }
        mixed => panic!("{mixed:?} belong to two address families"),
    }
}

pub fn datagrams_bring_their_header(open: Open<'_>) {
    let (a, b) = Plan::new(QpKind::Ud).connect(&open());
    let mtu = a.device.attributes().active_mtu.bytes();
    let (from, to) = (a.patterned(mtu, 1), b.memory(GRH_BYTES + mtu));
    let with_checksum = !rxe_departs(&b.device, "the IP header of a looped-back datagram has no checksum");
    for size in [0, 1, 2, 3, 4, 100, mtu - 1, mtu] {
        for immediate in [None, Some(5)] {
            to.fill(0, GRH_BYTES + mtu, 0xee);
            b.post_recv(1, &[to.sge(0, GRH_BYTES + mtu)]);
            let operation = immediate.map_or(SendOperation::Send, SendOperation::SendImmediate);
            a.qp.post_send(&[datagram(1, operation, &[from.sge(0, size)], &b)]).unwrap();
            a.expect(1);
            let received = b.expect(1);
            assert_eq!(received.attachment, immediate.map_or(Attachment::None, Attachment::Immediate));
            assert!(received.has_grh);
            assert_eq!((received.byte_len as usize, received.source_qpn), (GRH_BYTES + size, a.qp.qpn()));
            let extra = if immediate.is_some() { 4 } else { 0 };
            let addresses = (a.device.attributes().address, b.device.attributes().address);
            check_header(&bytes_of(&to, 0, GRH_BYTES), addresses.0, addresses.1, size + extra, with_checksum);
            assert_bytes(&to, GRH_BYTES, &pattern(mtu, 1)[..size], "datagram");
            assert_bytes(&to, GRH_BYTES + size, &vec![0xee; mtu - size], "the bytes after the payload");
        }
    }
}

/// A provider may defer datagrams that a program posts in a row, but not until the program polls.
pub fn datagrams_in_a_row_arrive_although_their_sender_does_not_poll(open: Open<'_>) {
    const DATAGRAMS: usize = 40;
    const LENGTH: usize = 64;
    let plan = Plan { depth: DATAGRAMS, ..Plan::new(QpKind::Ud) };
    let (a, b) = plan.connect(&open());
    let (from, to) = (a.patterned(DATAGRAMS * LENGTH, 2), b.memory(DATAGRAMS * (GRH_BYTES + LENGTH)));
    let received = |number| to.sge(number * (GRH_BYTES + LENGTH), GRH_BYTES + LENGTH);
    (0..DATAGRAMS).for_each(|number| b.post_recv(number as u64, &[received(number)]));
    for number in 0..DATAGRAMS {
        let sges = [from.sge(number * LENGTH, LENGTH)];
        a.qp.post_send(&[datagram(number as u64, SendOperation::Send, &sges, &b)]).unwrap();
    }
    for (number, completion) in b.reap(DATAGRAMS).into_iter().enumerate() {
        assert_eq!((completion.wr_id, completion.status), (number as u64, Status::Success));
        let sent = &pattern(DATAGRAMS * LENGTH, 2)[number * LENGTH..][..LENGTH];
        assert_bytes(&to, number * (GRH_BYTES + LENGTH) + GRH_BYTES, sent, "datagram");
    }
    assert_eq!(a.reap(DATAGRAMS).len(), DATAGRAMS);
}

pub fn datagrams_with_a_wrong_qkey_are_dropped(open: Open<'_>) {
    let (a, b) = Plan::new(QpKind::Ud).connect(&open());
    let to = b.memory(100);
    b.post_recv(1, &[to.sge(0, 100)]);
    let before = b.device.counters().unwrap_or_default();
    let right = b.as_destination();
    let wrong = UdDestination { qkey: QKey::new(QKEY.get() ^ 1), ..right };
    let request = inline(1, SendOperation::Send, b"secret");
    a.qp.post_send(&[SendRequest { destination: Some(wrong), ..request }]).unwrap();
    a.expect(1);
    eventually_counted("the datagram was refused", &b.device, |counted| counted.since(&before).rx_key_violation == 1);
    a.qp.post_send(&[SendRequest { destination: Some(right), ..inline(2, SendOperation::Send, b"public") }]).unwrap();
    a.expect(2);
    b.expect(1);
    assert_bytes(&to, GRH_BYTES, b"public", "the only datagram that was accepted");
}

pub fn a_qkey_with_the_high_bit_selects_the_senders_qkey(open: Open<'_>) {
    let (a, b) = Plan::new(QpKind::Ud).connect(&open());
    if rxe_departs(&a.device, "a Q_Key with its highest bit set is sent as it is") {
        return;
    }
    let to = b.memory(100);
    for qkey in [0x8000_0000, u32::MAX].map(QKey::new) {
        b.post_recv(1, &[to.sge(0, 100)]);
        let destination = Some(UdDestination { qkey, ..b.as_destination() });
        a.qp.post_send(&[SendRequest { destination, ..inline(1, SendOperation::Send, b"either") }]).unwrap();
        a.expect(1);
        b.expect(1);
    }
}

pub fn datagrams_that_do_not_fit_are_dropped(open: Open<'_>) {
    let (a, b) = Plan::new(QpKind::Ud).connect(&open());
    let (from, to) = (a.patterned(200, 1), b.memory(200));
    let before = b.device.counters().unwrap_or_default();
    b.post_recv(1, &[to.sge(0, GRH_BYTES + 100)]);
    if rxe_departs(&b.device, "a datagram longer than its receive puts the receive and the queue pair into error") {
        a.qp.post_send(&[datagram(1, SendOperation::Send, &[from.sge(0, 101)], &b)]).unwrap();
        a.expect(1);
        assert_ne!(b.reap(1)[0].status, Status::Success);
        return assert_eq!(b.state(), QpState::Error);
    }
    for size in [101, 100] {
        a.qp.post_send(&[datagram(size, SendOperation::Send, &[from.sge(0, size as usize)], &b)]).unwrap();
        a.expect(size);
    }
    assert_eq!(b.expect(1).byte_len as usize, GRH_BYTES + 100, "the longer datagram took a receive");
    // Without a posted receive, the device drops the datagram.
    a.qp.post_send(&[datagram(3, SendOperation::Send, &[], &b)]).unwrap();
    a.expect(3);
    eventually_counted("two were dropped", &b.device, |counted| counted.since(&before).rx_dropped_messages == 2);
}

pub fn one_datagram_queue_pair_serves_many(open: Open<'_>) {
    let (one, other) = open();
    let plan = Plan::new(QpKind::Ud);
    let hub = plan.side(&one);
    let spokes: Vec<_> = (0..8).map(|index| plan.side(if index % 2 == 0 { &one } else { &other })).collect();
    for side in spokes.iter().chain([&hub]) {
        side.qp.modify(&plan.to_init()).unwrap();
        side.qp.modify(&plan.to_rtr(side, side.device.random_psn())).unwrap();
        side.qp.modify(&plan.to_rts(side.device.random_psn())).unwrap();
    }
    let memory = hub.memory(64 * 8);
    for (index, spoke) in (0_u64..).zip(&spokes) {
        hub.post_recv(index, &[memory.sge(index as usize * 64, 64)]);
        let bytes = [index as u8; 4];
        let request = inline(index, SendOperation::Send, &bytes);
        spoke.qp.post_send(&[SendRequest { destination: Some(hub.as_destination()), ..request }]).unwrap();
        spoke.expect(index);
        let received = hub.expect(index);
        assert_eq!(received.source_qpn, spoke.qp.qpn());
        // Send the answer to the source of the datagram.
        let into = spoke.memory(64);
        spoke.post_recv(9, &[into.sge(0, 64)]);
        hub.qp
            .post_send(&[datagram(9, SendOperation::Send, &[memory.sge(index as usize * 64 + GRH_BYTES, 4)], spoke)])
            .unwrap();
        hub.expect(9);
        spoke.expect(9);
        assert_bytes(&into, GRH_BYTES, &[index as u8; 4], "the answer");
    }
}
