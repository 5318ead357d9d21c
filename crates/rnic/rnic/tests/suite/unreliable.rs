//! UC and UD under faults: messages arrive completely or not at all.

use crate::common::workload::pattern;
use crate::common::{End, Link, QKEY, Rng, World};
use doorbell_verbs_core::{
    AddressVector, Attachment, CompletionOpcode, Payload, QpKind, RecvRequest, SendFlags, SendOperation, SendRequest,
    Status, UdDestination,
};
use doorbell_wire::PathMtu;

const SLOT: usize = 1 << 15;
const MESSAGES: u32 = 48;
/// Number of slots for received messages.
const RECEIVE_SLOTS: u64 = 16;
/// Maximum number of posted receives.
const MOST_RECEIVES: u64 = 4;

/// Sends numbered messages on a UC queue pair. Returns the numbers of the messages that arrived, and the count of
/// dropped messages.
fn unreliable_connection(seed: u64, link: Link) -> (Vec<u32>, u64) {
    let mut rng = Rng::new(seed);
    let mut world = World::new(seed, 2, 8 << 20, 1024, link);
    let mtu = *rng.pick(&PathMtu::ALL);
    let end = End { signal_all: true, ..End::default() };
    let (a, b) = world.connect(QpKind::Uc, mtu, (0, &end), (1, &end));
    let mut arrived = Vec::new();
    let (mut next, mut lengths) = (0, Vec::new());
    // No two posted receives use the same memory, since the test must check a message before a later message overwrites
    // its bytes.
    let mut free: Vec<u64> = (0..RECEIVE_SLOTS).map(|slot| slot * SLOT as u64).collect();
    let base = world.nodes[1].memory.address();
    let (targets, rkey) = (4 << 20, world.nodes[1].region.rkey());
    loop {
        // Sometimes post too few receives, so that a message finds no receive.
        while free.len() as u64 > RECEIVE_SLOTS - MOST_RECEIVES && rng.chance(700) {
            let slot = free.swap_remove(rng.below(free.len() as u64) as usize);
            let sge = world.nodes[1].sge(slot as usize, SLOT);
            world.nodes[1]
                .rnic
                .post_recv(b, &[RecvRequest { wr_id: slot, sges: &[sge] }])
                .expect("the device has room");
        }
        if next < MESSAGES {
            let length = rng.below(4 * mtu.bytes() as u64) as usize;
            let bytes = pattern(next.into(), length);
            world.nodes[0].memory.write(next as usize * SLOT, &bytes);
            let sge = [world.nodes[0].sge(next as usize * SLOT, length)];
            let operation = if next % 3 == 2 {
                let remote_address = base + targets + u64::from(next) * SLOT as u64;
                SendOperation::WriteImmediate { remote_address, rkey, immediate: next }
            } else {
                SendOperation::SendImmediate(next)
            };
            let payload = Payload::Sges(&sge);
            let flags = SendFlags::empty();
            let request = SendRequest { wr_id: next.into(), operation, flags, payload, destination: None };
            let now_ns = world.now_ns;
            world.nodes[0]
                .rnic
                .post_send(now_ns, a, &[request])
                .expect("the send queue has room, since UC sends complete when they leave");
            lengths.push(length);
            next += 1;
        }
        let moved = world.step();
        for completion in world.nodes[1].reap() {
            assert_eq!(completion.status, Status::Success, "a receive completed without a whole message");
            let Attachment::Immediate(number) = completion.attachment else {
                panic!("message without its immediate: {completion:?}")
            };
            let length = lengths[number as usize];
            assert_eq!(completion.byte_len as usize, length, "message {number} has another length");
            let from = match completion.opcode {
                CompletionOpcode::Receive => completion.wr_id as usize,
                _ => targets as usize + number as usize * SLOT,
            };
            assert!(
                world.nodes[1].memory.read(from, length) == pattern(number.into(), length),
                "message {number} has changed"
            );
            assert!(!free.contains(&completion.wr_id), "a receive completed twice");
            free.push(completion.wr_id);
            arrived.push(number);
        }
        if !moved && next == MESSAGES {
            break;
        }
    }
    let sent: Vec<u64> = world.nodes[0].reap().iter().map(|completion| completion.wr_id).collect();
    assert!(sent.iter().copied().eq(0..u64::from(MESSAGES)), "sends are missing or completed out of order");
    world.assert_at_rest();
    (arrived, world.nodes[1].rnic.counters().rx_dropped_messages)
}

#[test]
fn uc_messages_arrive_whole_and_in_order_under_loss() {
    let mut total = 0;
    for seed in 0..300 {
        let link = Link { loss: seed % 7 * 50, ..Link::default() };
        let (arrived, dropped) = unreliable_connection(seed, link);
        // If the end of one message and the start of the next are lost, the responder may count both as one dropped
        // message. But it must never count one message twice.
        assert!(dropped + arrived.len() as u64 <= u64::from(MESSAGES), "seed {seed}: a message was counted twice");
        assert!(arrived.is_sorted_by(|a, b| a < b), "seed {seed}: messages arrived out of order: {arrived:?}");
        total += arrived.len();
    }
    assert!(total > 3_000, "too few messages arrived: {total}");
}

#[test]
fn uc_messages_are_whole_when_packets_are_duplicated_and_reordered() {
    for seed in 0..300 {
        let link = Link { loss: 30, duplicate: 200, jitter_ns: 5_000, ..Link::default() };
        unreliable_connection(seed, link);
    }
}

#[test]
fn ud_messages_come_with_their_routing_header_or_not_at_all() {
    for seed in 0..100 {
        let mut rng = Rng::new(seed);
        let link = Link { loss: 100, duplicate: 100, jitter_ns: 5_000, ..Link::default() };
        let mut world = World::new(seed, 3, 8 << 20, 1024, link);
        let end = End { signal_all: true, ..End::default() };
        let qpns: Vec<_> = (0..3).map(|node| world.datagram_qp(node, &end)).collect();
        for slot in 0..64 {
            let sge = world.nodes[2].sge(slot * SLOT, 40 + 4096);
            world.nodes[2]
                .rnic
                .post_recv(qpns[2], &[RecvRequest { wr_id: slot as u64, sges: &[sge] }])
                .expect("the device has room");
        }
        let mut lengths = Vec::new();
        for number in 0..40_u32 {
            let from = number as usize % 2;
            let length = rng.below(4097) as usize;
            let bytes = pattern(number.into(), length);
            world.nodes[from].memory.write(number as usize * SLOT, &bytes);
            let sge = [world.nodes[from].sge(number as usize * SLOT, length)];
            // Every eighth message has a wrong Q_Key.
            let qkey = if number % 8 == 7 { doorbell_wire::QKey::new(1) } else { QKEY };
            let address = AddressVector::to(world.nodes[2].address);
            let request = SendRequest {
                wr_id: number.into(),
                operation: SendOperation::SendImmediate(number),
                flags: SendFlags::empty(),
                payload: Payload::Sges(&sge),
                destination: Some(UdDestination { address, qpn: qpns[2], qkey }),
            };
            let now_ns = world.now_ns;
            world.nodes[from].rnic.post_send(now_ns, qpns[from], &[request]).expect("the device has room");
            lengths.push(length);
            world.step();
        }
        world.settle();
        world.assert_at_rest();
        for completion in world.nodes[2].reap() {
            let Attachment::Immediate(number) = completion.attachment else {
                panic!("message without its immediate: {completion:?}")
            };
            let (from, length) = (number as usize % 2, lengths[number as usize]);
            assert_ne!(number % 8, 7, "a message with a wrong Q_Key arrived");
            assert_eq!(completion.status, Status::Success);
            assert!(completion.has_grh, "a UD receive has no routing header");
            assert_eq!(completion.byte_len as usize, 40 + length, "the byte count does not include the routing header");
            assert_eq!(completion.source_qpn, qpns[from]);
            let bytes = world.nodes[2].memory.read(completion.wr_id as usize * SLOT, 40 + length);
            assert_eq!(bytes[..20], [0; 20], "the first half of the routing header is not zero");
            assert_eq!(
                (bytes[20], bytes[29]),
                (0x45, 17),
                "the second half of the routing header is no IPv4 header for UDP"
            );
            // Bytes of IPv4, UDP, BTH, DETH and immediate data, padded payload, and ICRC.
            let total = 20 + 8 + 12 + 8 + 4 + length.next_multiple_of(4) + 4;
            assert_eq!(
                usize::from(u16::from_be_bytes([bytes[22], bytes[23]])),
                total,
                "the total length in the IPv4 header is wrong"
            );
            assert_eq!(bytes[32..36], [10, 0, 0, 1 + from as u8], "the source");
            assert_eq!(bytes[36..40], [10, 0, 0, 3], "the destination");
            let sum: u32 = bytes[20..40].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
            assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "the checksum of the IPv4 header is wrong");
            assert!(bytes[40..] == pattern(number.into(), length), "message {number} has changed");
        }
        assert!(world.nodes[2].rnic.counters().rx_key_violation > 0, "wrong keys were not counted");
    }
}
