//! Fuzz body that sends arbitrary packets to devices in the middle of their work.

use std::sync::OnceLock;

use doorbell_verbs_core::{Access, Payload, QpKind, RecvRequest, SendFlags, SendOperation as Op, SendRequest};
use doorbell_wire::{BthPacket, PathMtu, RKey};

use super::super::world::Acks;
use super::super::{Block, End, Link, World, workload};
use super::{Choices, check_bounds};

const SECRET: usize = 4096;

/// Creates three devices with queue pairs of every kind, posted work, and memory without access rights.
pub fn stage() -> (World, Vec<(Block, Vec<u8>)>) {
    let mut world = World::new(42, 3, 1 << 18, 1 << 12, Link { latency_ns: 1_000, ..Link::default() });
    world.acks = Acks::Released;
    let mut secrets = Vec::new();
    for node in &mut world.nodes {
        let secret = Block::new(SECRET);
        let bytes = workload::pattern(77, SECRET);
        secret.write(0, &bytes);
        // SAFETY: this function returns the block and the world together, and the caller keeps both.
        unsafe { node.rnic.register(node.pd, secret.base(), SECRET, secret.address(), Access::empty(), None) }
            .expect("the device has room for a region");
        secrets.push((secret, bytes));
    }
    let srq = {
        let node = &mut world.nodes[0];
        let (srq, _) = node.rnic.create_srq(node.pd, 4, 2).expect("the device has room for a queue");
        let sges = [node.sge(1 << 17, 1024)];
        node.rnic.post_srq_recv(srq, &[RecvRequest { wr_id: 9, sges: &sges }; 4]).expect("four fit");
        srq
    };
    let mut connected = Vec::new();
    for (kind, mtu, shared) in [
        (QpKind::Rc, PathMtu::Mtu256, false),
        (QpKind::Rc, PathMtu::Mtu1024, true),
        (QpKind::Rc, PathMtu::Mtu4096, false),
        (QpKind::Uc, PathMtu::Mtu256, false),
    ] {
        let end =
            End { srq: shared.then_some(srq), max_rd_atomic: 4, max_dest_rd_atomic: 4, timeout: 8, ..End::default() };
        let (a, b) = world.connect(kind, mtu, (0, &end), (1, &End { srq: None, ..end.clone() }));
        connected.push((kind, a, b));
    }
    for node in 0..3 {
        world.datagram_qp(node, &End::default());
    }
    let (remote_address, rkey) = (world.nodes[1].memory.address(), world.nodes[1].region.rkey());
    for (kind, a, b) in connected {
        for slot in 0..6 {
            let sges = [world.nodes[1].sge(1 << 16, 700)];
            world.nodes[1].rnic.post_recv(b, &[RecvRequest { wr_id: slot, sges: &sges }]).expect("the device has room");
        }
        let operations = [
            (Op::Send, 700),
            (Op::Write { remote_address, rkey }, 900),
            (Op::Read { remote_address, rkey }, 3000),
            (Op::SendImmediate(5), 0),
            (Op::FetchAdd { remote_address, rkey, add: 3 }, 8),
            (Op::WriteImmediate { remote_address, rkey, immediate: 4 }, 300),
            (Op::CompareSwap { remote_address, rkey, compare: 0, swap: 1 }, 8),
            (Op::SendInvalidate(RKey::new(1 << 20)), 1),
        ];
        for (index, (operation, length)) in operations.into_iter().enumerate() {
            let sges = [world.nodes[0].sge(index * 4096, length)];
            let request = SendRequest {
                wr_id: index as u64,
                operation,
                flags: SendFlags::SIGNALED,
                payload: Payload::Sges(&sges),
                destination: None,
            };
            let refused = world.nodes[0].rnic.post_send(1, a, &[request]).is_err();
            assert_eq!(refused, kind == QpKind::Uc && !matches!(index, 0 | 1 | 3 | 5));
        }
        // Also post some work in the other direction.
        let sges = [world.nodes[1].sge(0, 256)];
        let request = SendRequest {
            wr_id: 0,
            operation: Op::Send,
            flags: SendFlags::SOLICITED,
            payload: Payload::Sges(&sges),
            destination: None,
        };
        world.nodes[1].rnic.post_send(1, b, &[request]).expect("the device has room");
    }
    (world, secrets)
}

struct Recorded {
    from: usize,
    to: usize,
    bytes: Vec<u8>,
}

/// Returns the packets that the devices of the stage send without any faults.
fn recorded() -> &'static [Recorded] {
    static RECORDED: OnceLock<Vec<Recorded>> = OnceLock::new();
    RECORDED.get_or_init(|| {
        let (mut world, _secrets) = stage();
        world.recording = true;
        world.run_until(2_000_000);
        let all = world.log.iter();
        all.map(|sent| Recorded { from: sent.from, to: sent.to, bytes: sent.bytes.clone() }).collect()
    })
}

/// Sends arbitrary packets, and modified valid ones, to devices in the middle of their work.
pub fn fuzz_packets(data: &[u8]) {
    let (mut world, secrets) = stage();
    let mut choices = Choices(data);
    let valid = recorded();
    let mut steps = 0;
    while !choices.is_empty() && steps < 2_000 {
        steps += 1;
        let what = choices.byte() % 10;
        let chosen = &valid[choices.below(valid.len())];
        let mut bytes = chosen.bytes.clone();
        match what {
            0 => {
                let length = choices.below(300);
                bytes = choices.bytes(length);
            }
            1 => {}
            2 | 3 => {
                for _ in 0..=choices.below(4) {
                    // In half of the cases, change only the first 44 bytes, which hold the headers. Headers therefore
                    // change more often than payload.
                    let end = if choices.chance() { bytes.len() } else { bytes.len().min(44) };
                    let at = choices.below(end);
                    bytes[at] ^= choices.byte();
                }
            }
            4 => {
                let length = choices.below(4300);
                bytes.resize(length, choices.byte());
            }
            5 | 6 => {
                // Set a nearby sequence number, and sometimes another opcode of the same transport.
                let mut bth = BthPacket::new_unchecked(&mut bytes[..]);
                let psn = bth.psn().add(choices.byte().into()).sub(128);
                bth.set_psn(psn);
                if what == 6 {
                    bytes[0] = bytes[0] & 0xe0 | choices.byte() & 0x1f;
                }
            }
            7 => {
                let other = &valid[choices.below(valid.len())].bytes;
                bytes[5..8].copy_from_slice(&other[5..8]);
            }
            8 => {
                world.step();
                continue;
            }
            _ => {
                let until_ns = world.now_ns + (1 << (choices.byte() % 25));
                world.run_until(until_ns);
                continue;
            }
        }
        let (from, to) =
            if choices.byte() < 16 { (choices.below(3), choices.below(3)) } else { (chosen.from, chosen.to) };
        world.inject(from, to, &bytes);
        check_bounds(&world.nodes[to].rnic);
    }
    world.run_until(world.now_ns + 100_000_000);
    for (node, (secret, expected)) in world.nodes.iter_mut().zip(&secrets) {
        check_bounds(&node.rnic);
        assert!(node.queue.len() <= node.queue.depth(), "the queue holds more than its depth");
        assert!(secret.read(0, SECRET) == *expected, "memory without rights was written");
        let mut events = 0;
        while node.rnic.poll_event().is_some() {
            events += 1;
        }
        assert!(events <= 64, "{events} events, at most 64 expected");
    }
}
