//! Tests with many threads and many queue pairs.

use std::time::Instant;

use doorbell_verbs::{Attachment, QpCapacities, QpKind, QpOptions, SendOperation, Status};

use crate::Open;
use crate::common::*;

pub fn many_threads_share_a_device(open: Open<'_>) {
    let devices = open();
    std::thread::scope(|scope| {
        for thread in 0..6_u64 {
            let devices = &devices;
            scope.spawn(move || {
                let (a, b) = Plan::rc().connect(devices);
                let (from, to) = (a.memory(20_000), b.memory(20_000));
                for round in 0..150 {
                    let size = (round * 131 + thread * 977) as usize % 20_000;
                    let message = pattern(size, thread << 32 | round);
                    from.copy_in(0, &message);
                    b.post_recv(round, &[to.sge(0, 20_000)]);
                    a.post(round, SendOperation::Send, &[from.sge(0, size)]);
                    b.expect(round);
                    assert_bytes(&to, 0, &message, "a message of one of many threads");
                    a.expect(round);
                }
            });
        }
    });
}

pub fn many_threads_share_a_queue_pair(open: Open<'_>) {
    const EACH: u32 = 400;
    const THREADS: u32 = 4;
    let (a, b) = Plan { depth: 256, ..Plan::rc() }.connect(&open());
    let seen = std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let a = &a;
            scope.spawn(move || {
                for round in 0..EACH {
                    let operation = SendOperation::SendImmediate(thread << 16 | round);
                    while a.qp.post_send(&[signalled(0, operation, &[])]).is_err() {
                        std::thread::yield_now(); // the queue is full until another thread reaps
                    }
                }
            });
        }
        let reapers: Vec<_> = (0..2)
            .map(|_| {
                let (a, b) = (&a, &b);
                scope.spawn(move || {
                    let mut seen = Vec::new();
                    for _ in 0..EACH * THREADS / 2 {
                        b.post_recv(0, &[]);
                        let Attachment::Immediate(value) = b.expect(0).attachment else { panic!("no immediate") };
                        seen.push(value);
                        a.expect(0);
                    }
                    seen
                })
            })
            .collect();
        reapers.into_iter().flat_map(|reaper| reaper.join().unwrap()).collect::<Vec<_>>()
    });
    let mut sorted = seen;
    sorted.sort_unstable();
    let expected: Vec<u32> = (0..THREADS).flat_map(|thread| (0..EACH).map(move |round| thread << 16 | round)).collect();
    assert_eq!(sorted, expected, "a message arrived twice or never");
}

/// Returns the resident memory of this process in bytes.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or_default() * 4096
}

pub fn a_thousand_queue_pairs(open: Open<'_>) {
    const PAIRS: usize = 1_000;
    let (one, other) = open();
    let plan = Plan { depth: 16, sges: 1, ..Plan::rc() };
    let (pd_a, pd_b) = (one.create_pd().unwrap(), other.create_pd().unwrap());
    let (cq_a, cq_b) = (one.create_cq(2 * PAIRS).unwrap(), other.create_cq(2 * PAIRS).unwrap());
    let before = resident_bytes();
    let start = Instant::now();
    let pairs: Vec<_> = (0..PAIRS)
        .map(|_| {
            let (a, b) = (plan.side_on(&pd_a, &cq_a, None), plan.side_on(&pd_b, &cq_b, None));
            plan.join(&a, &b);
            (a, b)
        })
        .collect();
    let took = start.elapsed();
    // The test only prints the memory per queue pair, since other tests of this process also allocate memory.
    println!(
        "{PAIRS} connections of this process with both ends: {} B per queue pair, made in {took:?}",
        resident_bytes().saturating_sub(before) / (2 * PAIRS)
    );
    for (index, (a, b)) in pairs.iter().enumerate() {
        b.post_recv(index as u64, &[]);
        a.post(index as u64, SendOperation::SendImmediate(index as u32), &[]);
    }
    for completion in reap(&cq_b, PAIRS) {
        assert_eq!(completion.status, Status::Success);
        assert_eq!(completion.attachment, Attachment::Immediate(completion.wr_id as u32));
        assert_eq!(completion.qpn, pairs[completion.wr_id as usize].1.qp.qpn());
    }
    assert!(reap(&cq_a, PAIRS).iter().all(|completion| completion.status == Status::Success));
}

pub fn connections_come_and_go(open: Open<'_>) {
    let devices = open();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for round in 0..60 {
                    let (a, b) = Plan { depth: 4, ..Plan::rc() }.connect(&devices);
                    b.post_recv(round, &[]);
                    a.post(round, SendOperation::Send, &[]);
                    a.expect(round);
                    b.expect(round);
                }
            });
        }
    });
    // Create a queue pair that neither posts receives nor sends.
    let (pd, cq) = (devices.0.create_pd().unwrap(), devices.0.create_cq(1).unwrap());
    let nothing = QpCapacities { max_send_wr: 0, max_recv_wr: 0, max_send_sge: 0, max_recv_sge: 0, max_inline: 0 };
    pd.create_qp(QpOptions {
        kind: QpKind::Rc,
        send_cq: &cq,
        recv_cq: &cq,
        srq: None,
        capacities: nothing,
        signal_all: false,
    })
    .unwrap();
}
