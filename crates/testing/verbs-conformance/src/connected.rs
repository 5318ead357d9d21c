//! Reliable connections with every operation, every message size and every path MTU.

use std::time::Duration;

use doorbell_verbs::{
    Attachment, CompletionOpcode, PathMtu, Payload, Psn, QpState, SendFlags, SendOperation, SendRequest, Status,
};

use crate::Open;
use crate::common::*;

/// Returns message sizes around each multiple of a path MTU.
fn sizes(mtu: usize) -> Vec<usize> {
    let mut sizes = vec![0, 1, 2, 3, 4, 5, 7, 8, 63, 64, 65];
    for packets in [1, 2, 3, 16, 64, 65] {
        let boundary = packets * mtu;
        sizes.extend([boundary - 1, boundary, boundary + 1]);
    }
    sizes
}

pub fn sends_of_every_size_arrive(open: Open<'_>) {
    let (a, b) = Plan::rc().connect(&open());
    for (wr_id, size) in (0_u64..).zip(sizes(1024)) {
        let (from, to) = (a.patterned(size.max(1), wr_id), b.memory(size + 16));
        b.post_recv(wr_id, &[to.sge(8, size)]);
        a.post(wr_id, SendOperation::Send, &[from.sge(0, size)]);
        let sent = a.expect(wr_id);
        assert_eq!((sent.opcode, sent.qpn), (CompletionOpcode::Send, a.qp.qpn()));
        let received = b.expect(wr_id);
        assert_eq!((received.opcode, received.byte_len as usize), (CompletionOpcode::Receive, size));
        assert_eq!((received.qpn, received.attachment), (b.qp.qpn(), Attachment::None));
        let expected = [vec![0; 8], pattern(size, wr_id), vec![0; 8]].concat();
        assert_bytes(&to, 0, &expected, &format!("a SEND of {size} B"));
    }
}

pub fn writes_of_every_size_arrive(open: Open<'_>) {
    let (a, b) = Plan::rc().connect(&open());
    for (wr_id, size) in (0_u64..).zip(sizes(1024)) {
        let (from, to) = (a.patterned(size.max(1), wr_id), b.memory(size + 16));
        a.post(wr_id, write_to(&to, 8), &[from.sge(0, size)]);
        assert_eq!(a.expect(wr_id).opcode, CompletionOpcode::Write);
        let expected = [vec![0; 8], pattern(size, wr_id), vec![0; 8]].concat();
        assert_bytes(&to, 0, &expected, &format!("a WRITE of {size} B"));
    }
}

pub fn reads_of_every_size_arrive(open: Open<'_>) {
    let (a, b) = Plan::rc().connect(&open());
    for (wr_id, size) in (0_u64..).zip(sizes(1024)) {
        let (from, to) = (b.patterned(size + 8, wr_id), a.memory(size + 16));
        a.post(wr_id, read_from(&from, 8), &[to.sge(8, size)]);
        let read = a.expect(wr_id);
        assert_eq!((read.opcode, read.byte_len as usize), (CompletionOpcode::Read, size));
        let expected = [&[0; 8], &pattern(size + 8, wr_id)[8..], &[0; 8]].concat();
        assert_bytes(&to, 0, &expected, &format!("a READ of {size} B"));
    }
}

pub fn every_path_mtu_carries_every_operation(open: Open<'_>) {
    let devices = open();
    for mtu in PathMtu::ALL {
        if mtu > devices.0.attributes().active_mtu {
            continue;
        }
        let (a, b) = Plan { mtu, ..Plan::rc() }.connect(&devices);
        for size in [0, 1, mtu.bytes() - 1, mtu.bytes(), mtu.bytes() + 1, 5 * mtu.bytes() + 3] {
            let (mine, yours) = (a.patterned(size.max(8), 1), b.memory(size.max(8)));
            let whole = pattern(size, 1);
            b.post_recv(1, &[yours.sge(0, size)]);
            a.post(1, SendOperation::Send, &[mine.sge(0, size)]);
            b.expect(1);
            assert_bytes(&yours, 0, &whole, "SEND");
            yours.fill(0, size, 0);
            a.post(2, write_to(&yours, 0), &[mine.sge(0, size)]);
            a.expect(1);
            a.expect(2);
            assert_bytes(&yours, 0, &whole, "WRITE");
            mine.fill(0, size, 0);
            a.post(3, read_from(&yours, 0), &[mine.sge(0, size)]);
            a.expect(3);
            assert_bytes(&mine, 0, &whole, "READ");
        }
    }
}

/// PSNs of both ends wrap within a message of five packets, at each packet.
pub fn sequence_numbers_wrap(open: Open<'_>) {
    const BYTES: usize = 5000;
    let (devices, plan) = (open(), Plan::rc());
    let whole = pattern(BYTES, 1);
    for packets_before in 1..5 {
        let first = Psn::new(Psn::MASK + 1 - packets_before);
        let connect = || {
            let (a, b) = (plan.side(&devices.0), plan.side(&devices.1));
            plan.join_at(&a, &b, [first; 2]);
            (a, b)
        };
        let (a, b) = connect();
        let (mine, yours) = (a.patterned(BYTES, 1), b.memory(BYTES));
        b.post_recv(1, &[yours.sge(0, BYTES)]);
        a.post(1, SendOperation::Send, &[mine.sge(0, BYTES)]);
        a.expect(1);
        b.expect(1);
        assert_bytes(&yours, 0, &whole, "a SEND across the wrap");
        let (a, b) = connect();
        let (mine, yours) = (a.patterned(BYTES, 1), b.memory(BYTES));
        a.post(2, write_to(&yours, 0), &[mine.sge(0, BYTES)]);
        a.expect(2);
        assert_bytes(&yours, 0, &whole, "a WRITE across the wrap");
        let (a, b) = connect();
        let (mine, yours) = (a.memory(BYTES), b.patterned(BYTES, 1));
        a.post(3, read_from(&yours, 0), &[mine.sge(0, BYTES)]);
        a.expect(3);
        assert_bytes(&mine, 0, &whole, "a READ across the wrap");
        let (a, b) = connect();
        let (mine, yours) = (a.memory(8), b.memory(8));
        for number in 0..5 {
            a.post(number, fetch_add(&yours, 0, 1), &[mine.sge(0, 8)]);
            a.expect(number);
            assert_eq!(mine.load_acquire_u64(0), number, "a FETCH_ADD across the wrap");
        }
    }
}

pub fn immediate_data_and_invalidation(open: Open<'_>) {
    let (a, b) = Plan::with_an_end().connect(&open());
    let (mine, yours) = (a.patterned(3000, 5), b.memory(3000));
    for size in [0, 10, 1024, 3000] {
        b.post_recv(1, &[yours.sge(0, 3000)]);
        a.post(1, SendOperation::SendImmediate(0xdead_beef), &[mine.sge(0, size)]);
        a.expect(1);
        let received = b.expect(1);
        assert_eq!(received.attachment, Attachment::Immediate(0xdead_beef));
        assert_eq!((received.opcode, received.byte_len as usize), (CompletionOpcode::Receive, size));

        // A WRITE with immediate consumes a receive, which needs no memory.
        b.post_recv(2, &[]);
        yours.fill(0, 3000, 0);
        let operation =
            SendOperation::WriteImmediate { remote_address: yours.address(), rkey: yours.rkey(), immediate: 7 };
        a.post(2, operation, &[mine.sge(0, size)]);
        a.expect(2);
        let received = b.expect(2);
        assert_eq!(received.attachment, Attachment::Immediate(7));
        assert_eq!((received.opcode, received.byte_len as usize), (CompletionOpcode::ReceiveWriteImmediate, size));
        assert_bytes(&yours, 0, &pattern(size, 5), "WRITE with immediate");
    }
    if a.device.attributes().provider == "system" {
        println!("this provider offers no memory windows: SEND with invalidate is left out");
        return;
    }
    let mut lent = b.lend(64);
    let write = |lent: &Lent| SendOperation::Write { remote_address: lent.region.address(), rkey: lent.rkey() };
    for size in [0, 1, 2500] {
        a.post(3, write(&lent), &[mine.sge(0, 64)]);
        a.expect(3);
        b.post_recv(4, &[yours.sge(0, 3000)]);
        a.post(4, SendOperation::SendInvalidate(lent.rkey()), &[mine.sge(0, size)]);
        a.expect(4);
        assert_eq!(b.expect(4).attachment, Attachment::Invalidated(lent.rkey()));
        // The owner can still use the memory, and opens it to the peer again.
        b.post_recv(5, &[lent.region.sge(0, 64)]);
        a.post(5, SendOperation::Send, &[mine.sge(0, 64)]);
        a.expect(5);
        b.expect(5);
        b.lend_again(&mut lent);
    }
    b.post_recv(7, &[]);
    a.post(7, SendOperation::SendInvalidate(lent.rkey()), &[]);
    a.expect(7);
    b.expect(7);
    a.post(8, write(&lent), &[mine.sge(0, 64)]);
    a.expect_refusal(8, Status::RemoteAccess);
}

/// A peer may invalidate only a window of type 2, and only through the queue pair that bound it.
pub fn a_peer_invalidates_only_windows_bound_for_it(open: Open<'_>) {
    let devices = open();
    let (c, d) = Plan::with_an_end().connect(&devices);
    if d.device.attributes().provider == "system" {
        println!("this provider offers no memory windows, and its driver decides what a peer may invalidate: left out");
        return;
    }
    let plan = Plan::with_an_end();
    let (region, lent) = (d.memory(64), d.lend(64));
    let mine = c.patterned(64, 1);
    for key in [region.rkey(), lent.rkey()] {
        // Create another connection whose end at `d` is in the same protection domain.
        let (a, b) = (plan.side(&devices.0), plan.side_on(&d.pd, &devices.1.create_cq(plan.cq_depth).unwrap(), None));
        plan.join(&a, &b);
        b.post_recv(1, &[]);
        b.post_recv(2, &[]);
        a.post(1, SendOperation::SendInvalidate(key), &[]);
        a.expect_refusal(1, Status::RemoteAccess);
        b.expect_failure(1, Status::LocalAccess);
        b.expect_failure(2, Status::WorkRequestFlushed);
        assert_eq!((a.state(), b.state()), (QpState::Error, QpState::Error));
        // Peers on other connections still have access.
        for (at, rkey) in [(&region, region.rkey()), (&lent.region, lent.rkey())] {
            c.post(3, SendOperation::Write { remote_address: at.address(), rkey }, &[mine.sge(0, 64)]);
            c.expect(3);
            assert_bytes(at, 0, &pattern(64, 1), "a WRITE of another peer");
        }
    }
}

pub fn atomics_change_memory_and_return_the_old_value(open: Open<'_>) {
    let (a, b) = Plan::rc().connect(&open());
    let (old, word) = (a.memory(64), b.memory(64));
    word.store_release_u64(16, u64::MAX - 1);
    for (add, before) in [(1, u64::MAX - 1), (5, u64::MAX), (0, 4)] {
        a.post(1, fetch_add(&word, 16, add), &[old.sge(8, 8)]);
        let done = a.expect(1);
        assert_eq!((done.opcode, done.byte_len), (CompletionOpcode::FetchAdd, 8));
        assert_eq!(old.load_acquire_u64(8), before);
    }
    for (compare, swap, before, after) in [(4, 9, 4, 9), (4, 1, 9, 9), (9, u64::MAX, 9, u64::MAX)] {
        let operation =
            SendOperation::CompareSwap { remote_address: word.address() + 16, rkey: word.rkey(), compare, swap };
        a.post(2, operation, &[old.sge(0, 3), old.sge(24, 5)]);
        assert_eq!(a.expect(2).opcode, CompletionOpcode::CompareSwap);
        let bytes: [u8; 8] = [bytes_of(&old, 0, 3), bytes_of(&old, 24, 5)].concat().try_into().unwrap();
        assert_eq!(u64::from_ne_bytes(bytes), before);
        assert_eq!(word.load_acquire_u64(16), after);
    }
    assert_eq!((word.load_acquire_u64(8), word.load_acquire_u64(24)), (0, 0));
}

pub fn atomics_of_many_are_atomic(open: Open<'_>) {
    const EACH: u64 = 500;
    let (one, other) = open();
    let plan = Plan::rc();
    let (pd, cq) = (other.create_pd().unwrap(), other.create_cq(16).unwrap());
    let pairs: Vec<_> = (0..4).map(|_| (plan.side(&one), plan.side_on(&pd, &cq, None))).collect();
    pairs.iter().for_each(|(a, b)| plan.join(a, b));
    let word = pairs[0].1.memory(8);
    let mut seen: Vec<u64> = std::thread::scope(|scope| {
        let adders: Vec<_> = pairs
            .iter()
            .map(|(a, _)| {
                let word = &word;
                scope.spawn(move || {
                    let old = a.memory(8);
                    let add = |round| {
                        a.post(round, fetch_add(word, 0, 1), &[old.sge(0, 8)]);
                        a.expect(round);
                        old.load_acquire_u64(0)
                    };
                    (0..EACH).map(add).collect::<Vec<_>>()
                })
            })
            .collect();
        adders.into_iter().flat_map(|adder| adder.join().unwrap()).collect()
    });
    seen.sort_unstable();
    assert_eq!(seen, (0..4 * EACH).collect::<Vec<_>>(), "two atomics returned the same value");
    assert_eq!(word.load_acquire_u64(0), 4 * EACH);
}

pub fn inline_data_is_copied(open: Open<'_>) {
    let devices = open();
    let most = devices.0.attributes().limits.max_inline;
    let (a, b) = Plan { inline: most, ..Plan::rc() }.connect(&devices);
    let to = b.memory(most);
    for size in [0, 1, 5, 64, most - 1, most] {
        let mut bytes = pattern(size, 3);
        b.post_recv(1, &[to.sge(0, most)]);
        a.qp.post_send(&[inline(1, SendOperation::Send, &bytes)]).unwrap();
        bytes.fill(0xff); // inline data belongs to the program again when the call returns
        a.expect(1);
        assert_eq!(b.expect(1).byte_len as usize, size);
        assert_bytes(&to, 0, &pattern(size, 3), "inline SEND");
        to.fill(0, most, 0);
        a.qp.post_send(&[inline(2, write_to(&to, 0), &pattern(size, 4))]).unwrap();
        a.expect(2);
        assert_bytes(&to, 0, &pattern(size, 4), "inline WRITE");
    }
}

pub fn scatter_gather_lists(open: Open<'_>) {
    let devices = open();
    let most = devices.0.attributes().limits.max_sges;
    let (a, b) = Plan { sges: most, depth: 8, ..Plan::rc() }.connect(&devices);
    let (from, to) = (a.patterned(8192, 9), b.memory(8192));
    let source = pattern(8192, 9);
    // The elements have odd lengths, some of them 0, and are in reverse order of their addresses.
    let pieces: Vec<(usize, usize)> = (0..most).map(|index| ((most - 1 - index) * 256, index * 7 % 200)).collect();
    let sges: Vec<_> = pieces.iter().map(|&(offset, length)| from.sge(offset, length)).collect();
    let message: Vec<u8> =
        pieces.iter().flat_map(|&(offset, length)| &source[offset..offset + length]).copied().collect();
    let into: Vec<_> = (0..most).map(|index| to.sge(index * 256, 150)).collect();
    b.post_recv(1, &into);
    a.post(1, SendOperation::Send, &sges);
    a.expect(1);
    assert_eq!(b.expect(1).byte_len as usize, message.len());
    for (index, expected) in message.chunks(150).enumerate() {
        assert_bytes(&to, index * 256, expected, "scattered SEND");
    }
    to.fill(0, 8192, 0);
    a.post(2, write_to(&to, 1), &sges);
    a.expect(2);
    assert_bytes(&to, 1, &message, "gathered WRITE");
    let back = a.memory(8192);
    let into: Vec<_> = (0..most).map(|index| back.sge(index * 256, message.len() / most)).collect();
    let length = message.len() / most * most;
    a.post(3, read_from(&to, 1), &into);
    assert_eq!(a.expect(3).byte_len as usize, length);
    for (index, expected) in message[..length].chunks(message.len() / most).enumerate() {
        assert_bytes(&back, index * 256, expected, "scattered READ");
    }
}

pub fn unsignalled_requests_complete_with_the_next_signalled(open: Open<'_>) {
    let devices = open();
    let (a, b) = Plan::rc().connect(&devices);
    let (from, to) = (a.patterned(64, 1), b.memory(64));
    for round in 0..100 {
        let sges = [from.sge(0, 64)];
        let quiet = |wr_id| SendRequest { flags: SendFlags::empty(), ..signalled(wr_id, write_to(&to, 0), &sges) };
        let list: Vec<_> = (0..15).map(quiet).chain([signalled(round, write_to(&to, 0), &sges)]).collect();
        a.qp.post_send(&list).unwrap();
        a.expect(round);
    }
    // A queue pair can also be created so that every send generates a completion.
    let (a, _b) = Plan { signal_all: true, ..Plan::rc() }.connect(&devices);
    let sges = [];
    a.qp.post_send(&[SendRequest {
        flags: SendFlags::empty(),
        ..signalled(5, SendOperation::Write { remote_address: 0, rkey: to.rkey() }, &sges)
    }])
    .unwrap();
    a.expect(5);
}

pub fn a_fence_waits_for_reads(open: Open<'_>) {
    let (a, b) = Plan::rc().connect(&open());
    let (word, yours) = (a.memory(4096), b.memory(4096));
    for round in 0..50_u64 {
        yours.store_release_u64(0, round);
        word.store_release_u64(0, u64::MAX);
        // The fenced WRITE starts after the READ completes, so it carries the bytes that the READ returned.
        let (read_into, write_from) = ([word.sge(0, 4096)], [word.sge(0, 8)]);
        let fenced = SendRequest {
            flags: SendFlags::SIGNALED | SendFlags::FENCE,
            ..signalled(2, write_to(&yours, 8), &write_from)
        };
        a.qp.post_send(&[signalled(1, read_from(&yours, 0), &read_into), fenced]).unwrap();
        a.expect(1);
        a.expect(2);
        assert_eq!(yours.load_acquire_u64(8), round);
    }
}

/// A fenced request that is retransmitted must wait only for the READs before it.
pub fn a_fence_waits_only_for_earlier_reads(open: Open<'_>) {
    const LISTS: u64 = 300;
    let (devices, plan) = (open(), Plan::with_an_end());
    for (pairs, read_flags) in [(1, SendFlags::empty()), (1, SendFlags::FENCE), (4, SendFlags::empty())] {
        let (a, b) = plan.connect(&devices);
        let is_alone = pairs == 1 && read_flags.is_empty();
        // Only the first of the three cases must always end. On a lossy network, wait for a shorter time for the
        // others.
        let patience = if system_is_lossy() && !is_alone { Duration::from_secs(5) } else { PATIENCE };
        let done = fenced_lists(&a, &b, pairs, read_flags, LISTS, patience);
        if done == LISTS {
            continue;
        }
        let how = format!(
            "a retransmitted fenced request waits forever for later READs, and a fenced READ for itself: after {done} \
             lists of {pairs} READs {read_flags:?} with fenced WRITEs"
        );
        assert!(!is_alone && system_is_lossy() && rxe_departs(&a.device, &how), "{how}");
    }
}

/// An acknowledgement with the sequence number of an atomic does not carry the result of the atomic. The requester must
/// request the result again (IBTA Vol 1, 9.7.5.2.8).
pub fn a_lost_result_of_an_atomic_is_sent_again(open: Open<'_>) {
    const LISTS: u64 = 300;
    const NO_RESULT: u64 = u64::MAX;
    let (a, b) = Plan::rc().connect(&open());
    let (mine, yours) = (a.memory(128), b.memory(128));
    for list in 0..LISTS {
        mine.store_release_u64(0, NO_RESULT);
        let (bytes, result) = ([mine.sge(64, 64)], [mine.sge(0, 8)]);
        a.qp.post_send(&[signalled(1, write_to(&yours, 64), &bytes), signalled(2, fetch_add(&yours, 0, 1), &result)])
            .unwrap();
        a.expect(1);
        a.expect(2);
        if mine.load_acquire_u64(0) == NO_RESULT {
            let how = format!("list {list}: a FETCH_ADD completed without its result, after a repeated WRITE");
            assert!(system_is_lossy() && rxe_departs(&a.device, &how), "{how}");
        } else {
            assert_eq!(mine.load_acquire_u64(0), list);
        }
    }
    assert_eq!(yours.load_acquire_u64(0), LISTS);
}

pub fn requests_complete_in_order(open: Open<'_>) {
    let (a, b) = Plan::rc().connect(&open());
    let (mine, yours) = (a.memory(16 << 10), b.memory(16 << 10));
    let mut wr_id = 0;
    let rounds = long_case().div_ceil(16);
    for round in 0..rounds {
        let sges = [mine.sge(0, 1 + round % 50 * 100)];
        let word = [mine.sge(8192, 8)];
        let mut list = Vec::new();
        for index in 0..16 {
            let (operation, sges) = match (index + round) % 4 {
                0 => (SendOperation::Send, &sges),
                1 => (write_to(&yours, 0), &sges),
                2 => (read_from(&yours, 0), &sges),
                _ => (fetch_add(&yours, 8192, 1), &word),
            };
            if operation == SendOperation::Send {
                b.post_recv(0, &[yours.sge(0, 8192)]);
            }
            list.push(signalled(wr_id, operation, sges));
            wr_id += 1;
        }
        a.qp.post_send(&list).unwrap();
        let done: Vec<u64> = a.reap(16).iter().map(|completion| completion.wr_id).collect();
        assert_eq!(done, (wr_id - 16..wr_id).collect::<Vec<_>>());
        b.reap(4);
    }
    assert_eq!(yours.load_acquire_u64(8192), 4 * rounds as u64);
}

pub fn a_message_larger_than_any_window(open: Open<'_>) {
    // After a lost packet, rxe often waits for its timer. With a loss of 1 %, three transfers of 16 MiB take a minute.
    // So lossy networks get smaller messages.
    let bytes = if system_is_lossy() { 2 << 20 } else { 16 << 20 } + 5;
    let (a, b) = Plan::rc().connect(&open());
    let (mine, yours) = (a.patterned(bytes, 1), b.memory(bytes));
    let whole = pattern(bytes, 1);
    b.post_recv(1, &[yours.sge(0, bytes)]);
    a.post(1, SendOperation::Send, &[mine.sge(0, bytes)]);
    a.expect(1);
    assert_eq!(b.expect(1).byte_len as usize, bytes);
    assert_bytes(&yours, 0, &whole, "a long SEND");
    mine.fill(0, bytes, 0);
    a.post(2, read_from(&yours, 0), &[mine.sge(0, bytes)]);
    a.expect(2);
    assert_bytes(&mine, 0, &whole, "a long READ");
    yours.fill(0, bytes, 0);
    a.post(3, write_to(&yours, 0), &[mine.sge(0, bytes)]);
    a.expect(3);
    assert_bytes(&yours, 0, &whole, "a long WRITE");
}

pub fn a_queue_pair_may_be_connected_to_itself(open: Open<'_>) {
    let plan = Plan::rc();
    let one = plan.side(&open().0);
    let psn = one.device.random_psn();
    one.qp.modify(&plan.to_init()).unwrap();
    one.qp.modify(&plan.to_rtr(&one, psn)).unwrap();
    one.qp.modify(&plan.to_rts(psn)).unwrap();
    let memory = one.patterned(4096, 2);
    one.post_recv(1, &[memory.sge(2048, 2048)]);
    one.qp
        .post_send(&[SendRequest {
            payload: Payload::Sges(&[memory.sge(0, 2048)]),
            ..signalled(2, SendOperation::Send, &[])
        }])
        .unwrap();
    let mut done: Vec<u64> = one.reap(2).iter().map(|completion| completion.wr_id).collect();
    done.sort_unstable();
    assert_eq!(done, [1, 2]);
    assert_bytes(&memory, 2048, &pattern(4096, 2)[..2048], "SEND to itself");
}
