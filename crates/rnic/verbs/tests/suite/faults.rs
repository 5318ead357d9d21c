//! Tests each operation over a network that loses, repeats, reorders, delays and alters packets, and checks every byte.
//! The seed of a plan determines the fault of each packet.

use doorbell_verbs_conformance::common;

use std::time::Instant;

use common::*;
use doorbell_verbs::soft::SoftOptions;
use doorbell_verbs::{Attachment, Completion, Device, PathMtu, QpKind, Region, SendFlags, SendOperation};

const PLANS: [&str; 6] = [
    "drop=0.05,seed=1",
    "duplicate=0.1,seed=2",
    "reorder=0.1,seed=3",
    "corrupt=0.05,seed=4",
    "delay=50us,seed=5",
    "drop=0.02,duplicate=0.02,reorder=0.02,corrupt=0.02,delay=20us,seed=6",
];

/// Number of messages of each operation under each plan.
const MESSAGES: u64 = 300;

const LARGEST: usize = 40_000;

fn open(plan: &str) -> Device {
    open_soft(SoftOptions { faults: Some(plan.parse().unwrap()), ..SoftOptions::default() })
}

fn size_of(message: u64) -> usize {
    [0, 1, 4, 100, 1023, 1024, 1025, 5000, LARGEST][message as usize % 9]
}

/// Checks that the faults of the plan affected packets.
fn assert_struck(plan: &str, a: &Side, b: &Side) {
    let counted = a.device.counters().unwrap().plus(&b.device.counters().unwrap());
    let lost = counted.tx_retransmitted_packets > 0;
    if plan.contains("drop") || plan.contains("corrupt") {
        assert!(lost, "{plan}: no packet was lost");
    }
    if plan.contains("corrupt") {
        assert!(counted.rx_icrc_encapsulated > 0, "{plan}: no packet was altered");
    }
}

/// Runs `body` under every plan. `body` gets both ends and the memory of each end.
fn under_every_plan(body: impl Fn(&str, &Side, &Side, &Region, &Region) + Sync) {
    std::thread::scope(|scope| {
        for plan in PLANS {
            let body = &body;
            scope.spawn(move || {
                let (a, b) = Plan::rc().connect(&(open(plan), open(plan)));
                let (mine, theirs) = (a.memory(LARGEST), b.memory(LARGEST));
                body(plan, &a, &b, &mine, &theirs);
                assert_struck(plan, &a, &b);
            });
        }
    });
}

#[test]
fn sends_arrive_once_in_order_and_intact() {
    const DEPTH: u64 = 16;
    std::thread::scope(|scope| {
        for plan in PLANS {
            scope.spawn(move || {
                let (a, b) = Plan::rc().connect(&(open(plan), open(plan)));
                let (mine, theirs) = (a.memory(DEPTH as usize * LARGEST), b.memory(DEPTH as usize * LARGEST));
                let slot = |message: u64| (message % DEPTH) as usize * LARGEST;
                let receive = |message: u64| b.post_recv(message, &[theirs.sge(slot(message), LARGEST)]);
                (0..DEPTH).for_each(receive);
                let (mut posted, mut sent, mut received) = (0, 0, 0);
                let mut out = [Completion::default(); 8];
                // Keep several messages in flight, so that faults also strike between messages.
                while received < 4 * MESSAGES {
                    while posted < 4 * MESSAGES && posted < sent + DEPTH && posted < received + DEPTH {
                        let message = pattern(size_of(posted), posted);
                        mine.copy_in(slot(posted), &message);
                        let operation = SendOperation::SendImmediate(posted as u32);
                        a.post(posted, operation, &[mine.sge(slot(posted), message.len())]);
                        posted += 1;
                    }
                    let count = a.cq.poll(&mut out).unwrap();
                    for completion in &out[..count] {
                        assert_eq!(completion.status, doorbell_verbs::Status::Success, "{plan}");
                        assert_eq!(completion.wr_id, sent, "{plan}");
                        sent += 1;
                    }
                    let count = b.cq.poll(&mut out).unwrap();
                    for completion in &out[..count] {
                        assert_eq!(completion.wr_id, received, "{plan}");
                        assert_eq!(completion.attachment, Attachment::Immediate(received as u32), "{plan}");
                        assert_eq!(completion.byte_len as usize, size_of(received), "{plan}");
                        let expected = pattern(size_of(received), received);
                        assert_bytes(&theirs, slot(received), &expected, plan);
                        receive(received + DEPTH);
                        received += 1;
                    }
                }
                assert_struck(plan, &a, &b);
            });
        }
    });
}

#[test]
fn writes_arrive_intact() {
    under_every_plan(|plan, a, b, mine, theirs| {
        for message in 0..MESSAGES {
            let bytes = pattern(size_of(message), message);
            mine.copy_in(0, &bytes);
            theirs.fill(0, LARGEST, 0xaa);
            if message % 2 == 0 {
                a.post(message, write_to(theirs, 0), &[mine.sge(0, bytes.len())]);
            } else {
                b.post_recv(message, &[]);
                let (remote_address, rkey) = (theirs.address(), theirs.rkey());
                let immediate = message as u32;
                let operation = SendOperation::WriteImmediate { remote_address, rkey, immediate };
                a.post(message, operation, &[mine.sge(0, bytes.len())]);
                assert_eq!(b.expect(message).attachment, Attachment::Immediate(immediate), "{plan}");
            }
            a.expect(message);
            assert_bytes(theirs, 0, &bytes, plan);
            assert_bytes(theirs, bytes.len(), &vec![0xaa; LARGEST - bytes.len()], plan);
        }
    });
}

#[test]
fn reads_arrive_intact() {
    under_every_plan(|plan, a, _b, mine, theirs| {
        for message in 0..MESSAGES {
            let bytes = pattern(size_of(message), message);
            theirs.copy_in(0, &bytes);
            mine.fill(0, LARGEST, 0xaa);
            // Post two READs in one list, one for each half of the message.
            let half = bytes.len() / 2;
            let pieces = [(0, half), (half, bytes.len() - half)];
            let sges = pieces.map(|(offset, length)| [mine.sge(offset, length)]);
            let requests = [0, 1].map(|index| signalled(message, read_from(theirs, pieces[index].0), &sges[index]));
            a.qp.post_send(&requests).unwrap();
            a.expect(message);
            a.expect(message);
            assert_bytes(mine, 0, &bytes, plan);
            assert_bytes(mine, bytes.len(), &vec![0xaa; LARGEST - bytes.len()], plan);
        }
    });
}

#[test]
fn atomics_happen_exactly_once() {
    under_every_plan(|plan, a, _b, mine, theirs| {
        let word = |value| theirs.store_release_u64(0, value);
        word(0);
        for round in 0..MESSAGES {
            let sges = [0, 1, 2, 3].map(|slot| [mine.sge(slot * 8, 8)]);
            let requests =
                [0, 1, 2, 3].map(|slot| signalled(round, fetch_add(theirs, 0, 1 << (16 * slot)), &sges[slot]));
            a.qp.post_send(&requests).unwrap();
            (0..4).for_each(|_| _ = a.expect(round));
            for slot in 0..4 {
                let before: u64 = (0..4).map(|other| (round + u64::from(other < slot)) << (16 * other)).sum();
                assert_eq!(mine.load_acquire_u64(slot as usize * 8), before, "{plan}");
            }
        }
        for round in 0..MESSAGES {
            word(round);
            let (remote_address, rkey) = (theirs.address(), theirs.rkey());
            let operation = SendOperation::CompareSwap { remote_address, rkey, compare: round, swap: round + 7 };
            a.post(round, operation, &[mine.sge(0, 8)]);
            a.expect(round);
            // If an atomic ran twice, it would return the value that its first run wrote.
            assert_eq!((mine.load_acquire_u64(0), theirs.load_acquire_u64(0)), (round, round + 7), "{plan}");
        }
    });
}

#[test]
fn fences_hold_when_requests_are_sent_again() {
    under_every_plan(|plan, a, b, _mine, _theirs| {
        for (pairs, read_flags) in [(1, SendFlags::FENCE), (4, SendFlags::empty())] {
            assert_eq!(fenced_lists(a, b, pairs, read_flags, MESSAGES / 2, PATIENCE), MESSAGES / 2, "{plan}");
        }
    });
}

#[test]
fn invalidation_happens_with_its_message() {
    under_every_plan(|plan, a, b, mine, theirs| {
        for message in 0..MESSAGES / 2 {
            let lent = b.lend(8);
            let bytes = pattern(size_of(message), message);
            mine.copy_in(0, &bytes);
            b.post_recv(message, &[theirs.sge(0, LARGEST)]);
            a.post(message, SendOperation::SendInvalidate(lent.rkey()), &[mine.sge(0, bytes.len())]);
            a.expect(message);
            assert_eq!(b.expect(message).attachment, Attachment::Invalidated(lent.rkey()), "{plan}");
            assert_bytes(theirs, 0, &bytes, plan);
        }
    });
}

#[test]
fn receivers_that_are_not_ready_lose_nothing() {
    under_every_plan(|plan, a, b, mine, theirs| {
        for message in 0..MESSAGES / 4 {
            let bytes = pattern(size_of(message), message);
            mine.copy_in(0, &bytes);
            a.post(message, SendOperation::Send, &[mine.sge(0, bytes.len())]);
            std::thread::sleep(std::time::Duration::from_micros(300 * (message % 4)));
            b.post_recv(message, &[theirs.sge(0, LARGEST)]);
            b.expect(message);
            a.expect(message);
            assert_bytes(theirs, 0, &bytes, plan);
        }
    });
}

#[test]
fn unreliable_messages_arrive_intact() {
    for (plan, kind) in PLANS.into_iter().flat_map(|plan| [(plan, QpKind::Uc), (plan, QpKind::Ud)]) {
        let header = if kind == QpKind::Ud { 40 } else { 0 };
        let devices = (open(plan), open(plan));
        let (a, b) = Plan { mtu: PathMtu::Mtu1024, cq_depth: 1024, ..Plan::new(kind) }.connect(&devices);
        let largest = if kind == QpKind::Ud { 4000 } else { 5000 };
        let mine = a.memory(largest);
        let theirs = b.memory((header + largest) * 16);
        let receive =
            |slot: usize| b.post_recv(slot as u64, &[theirs.sge(slot * (header + largest), header + largest)]);
        (0..16).for_each(receive);
        let (mut arrived, mut out) = (0, [Completion::default(); 16]);
        let (start, mut left) = (Instant::now(), 4 * MESSAGES);
        for message in 0.. {
            // The path to the other device may not be open yet when the first datagrams leave. The device queues
            // datagrams for that path in a bounded queue, and drops the rest. So the count begins with the first
            // datagram that arrives.
            if arrived == 0 {
                assert!(start.elapsed() < PATIENCE, "{plan} {kind:?}: no message arrives");
            } else if left == 0 {
                break;
            } else {
                left -= 1;
            }
            let size = size_of(message).min(largest);
            mine.copy_in(0, &pattern(size, message));
            let operation = SendOperation::SendImmediate(message as u32);
            let sges = [mine.sge(0, size)];
            let request =
                if kind == QpKind::Ud { datagram(1, operation, &sges, &b) } else { signalled(1, operation, &sges) };
            a.qp.post_send(&[request]).unwrap();
            a.expect(1);
            let count = b.cq.poll(&mut out).unwrap();
            for completion in &out[..count] {
                let Attachment::Immediate(number) = completion.attachment else { panic!("no immediate") };
                let size = size_of(number.into()).min(largest);
                assert_eq!(completion.byte_len as usize, header + size, "{plan}");
                let at = completion.wr_id as usize * (header + largest) + header;
                assert_bytes(&theirs, at, &pattern(size, number.into()), plan);
                receive(completion.wr_id as usize);
                arrived += 1;
            }
        }
        assert!(arrived > MESSAGES, "{plan} {kind:?}: only {arrived} messages arrived");
    }
}

#[test]
fn connections_begin_with_the_chosen_psn() {
    let psn = doorbell_verbs::Psn::new(0xff_fffa);
    let device = open_soft(SoftOptions::default()).with_first_psn(psn);
    assert_eq!(device.create_pd().unwrap().device().first_psn(), psn);
    let drawn: Vec<_> = (0..4).map(|_| device.random_psn()).collect();
    assert!(drawn.iter().any(|drawn| *drawn != psn), "{drawn:?}");
}
