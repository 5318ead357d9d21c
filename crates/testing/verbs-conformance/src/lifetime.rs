//! Destruction of objects while other objects use them.

use std::sync::atomic::{AtomicBool, Ordering};

use doorbell_verbs::{Completion, QpState, RecvRequest, SendOperation, Status};

use crate::Open;
use crate::common::*;

pub fn handles_keep_their_dependencies(open: Open<'_>) {
    let plan = Plan::rc();
    let (a, b) = plan.connect(&open());
    let (from, to) = (a.patterned(100, 1), b.memory(100));
    // From here on, only the handles of the queue pairs and of the memory remain.
    let (a, b) = (a.qp, b.qp);
    b.post_recv(&[RecvRequest { wr_id: 1, sges: &[to.sge(0, 100)] }]).unwrap();
    a.post_send(&[signalled(1, SendOperation::Send, &[from.sge(0, 100)])]).unwrap();
    assert_eq!(reap(a.send_cq(), 1)[0].status, Status::Success);
    assert_eq!(reap(b.recv_cq(), 1)[0].status, Status::Success);
    assert_bytes(&to, 0, &pattern(100, 1), "the message");
    let (clone, pd) = (a.clone(), a.pd().clone());
    drop(a);
    assert_eq!(clone.query().state, QpState::ReadyToSend, "a clone is the same queue pair");
    drop(clone);
    // The memory outlives the queue pairs, and the handles of the protection domain and the device.
    drop((pd, b));
    assert_bytes(&to, 0, &pattern(100, 1), "the message, afterwards");
    from.fill(0, 100, 0);
}

/// Returns the status of a work request whose memory has been deregistered (IBTA Vol 1, 10.10.3).
fn protection_error(device: &doorbell_verbs::Device) -> Status {
    if rxe_departs(
        device,
        "an access to deregistered memory ends with a local queue pair operation error, not a protection error",
    ) {
        Status::LocalQpOperation
    } else {
        Status::LocalProtection
    }
}

pub fn a_region_dropped_under_a_send(open: Open<'_>) {
    let (a, b) = Plan::rc().connect(&open());
    // The peer has posted no receive, so the request waits. The device retransmits the request after the region is
    // deregistered.
    let from = a.patterned(1000, 1);
    a.post(1, SendOperation::Send, &[from.sge(0, 1000)]);
    a.post(2, SendOperation::Send, &[]);
    drop(from);
    eventually_counted("the message arrived without a receive", &b.device, |counted| {
        counted.rnr_nak_sent > 0 || a.state() == QpState::Error
    });
    a.expect_failure(1, protection_error(&a.device));
    a.expect_failure(2, Status::WorkRequestFlushed);
    assert_eq!(a.state(), QpState::Error);
}

pub fn a_region_dropped_under_a_receive(open: Open<'_>) {
    let (a, b) = Plan::with_an_end().connect(&open());
    let to = b.memory(1000);
    b.post_recv(1, &[to.sge(0, 1000)]);
    drop(to);
    let from = a.patterned(1000, 1);
    a.post(1, SendOperation::Send, &[from.sge(0, 1000)]);
    a.expect_refusal(1, Status::RemoteOperation);
    b.expect_failure(1, protection_error(&b.device));
}

pub fn a_region_dropped_under_remote_access(open: Open<'_>) {
    let devices = open();
    for operation in [write_to, read_from, |region: &_, offset| fetch_add(region, offset, 1)] {
        let (a, b) = Plan::with_an_end().connect(&devices);
        let to = b.memory(64);
        let mine = a.memory(64);
        a.post(1, operation(&to, 0), &[mine.sge(0, 8)]);
        a.expect(1);
        let operation = operation(&to, 0);
        drop(to);
        a.post(2, operation, &[mine.sge(0, 8)]);
        a.expect_refusal(2, Status::RemoteAccess);
    }
}

pub fn a_region_dropped_while_it_is_read(open: Open<'_>) {
    const BYTES: usize = 8 << 20;
    let (one, other) = open();
    // The responder's refusal has the PSN of the first packet of the READ, and rxe ignores the refusal as a duplicate.
    // So rxe sends the request again, without a limit if the plan allows seven retries.
    let departs = rxe_departs(&one, "a READ whose memory is deregistered meanwhile ends only after all retries");
    let plan = if departs { Plan { retry_count: 2, ..Plan::rc() } } else { Plan::rc() };
    for round in 0..6 {
        let (a, b) = plan.connect(&(one.clone(), other.clone()));
        let (mine, theirs) = (a.memory(BYTES), b.memory(BYTES));
        // Deregister the remote or the local region while bytes of the READ arrive.
        a.post(1, read_from(&theirs, 0), &[mine.sge(0, BYTES)]);
        std::thread::sleep(std::time::Duration::from_micros(100 * round));
        let (allowed, _kept) = if round % 2 == 0 {
            drop(theirs);
            (&[Status::Success, Status::RemoteOperation, Status::RemoteAccess][..], mine)
        } else {
            drop(mine);
            (&[Status::Success, Status::LocalProtection][..], theirs)
        };
        let done = a.reap(1)[0];
        let is_spent = departs && round % 2 == 0 && done.status == Status::RetryExceeded;
        assert!(allowed.contains(&done.status) || is_spent, "in round {round}: {done:?}");
    }
}

pub fn a_queue_pair_destroyed_under_traffic(open: Open<'_>) {
    let devices = open();
    for round in 0..8 {
        let plan = Plan { depth: 64, timeout: 8, retry_count: 1, ..Plan::rc() };
        let (a, b) = plan.connect(&devices);
        let (mine, theirs) = (a.memory(64 << 10), b.memory(64 << 10));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let sges = [mine.sge(0, 64 << 10)];
                let mut out = [Completion::default(); 16];
                while !stop.load(Ordering::Relaxed) {
                    let operation = if round % 2 == 0 { write_to(&theirs, 0) } else { read_from(&theirs, 0) };
                    let _ = a.qp.post_send(&[signalled(1, operation, &sges)]);
                    let _ = a.cq.poll(&mut out);
                }
            });
            std::thread::sleep(std::time::Duration::from_millis(5));
            drop(b);
            eventually("the other end notices", || a.state() == QpState::Error);
            stop.store(true, Ordering::Relaxed);
        });
        // Now destroy the end whose own work requests are outstanding.
        let (c, d) = plan.connect(&devices);
        let (mine, theirs) = (c.memory(1 << 20), d.memory(1 << 20));
        for wr_id in 0..16 {
            c.post(wr_id, write_to(&theirs, 0), &[mine.sge(0, 1 << 20)]);
        }
        drop(c.qp);
        let mut out = [Completion::default(); 32];
        if !rxe_departs(&c.device, "completions of a destroyed queue pair remain (IBTA Vol 1, 11.2.4.4 allows it)") {
            assert_eq!(c.cq.poll(&mut out), Ok(0), "a completion of a destroyed queue pair remains");
        }
    }
}

pub fn destroying_makes_room_for_others(open: Open<'_>) {
    const BYTES: usize = 4 << 20;
    // The peer of the first queue pair answers nothing. So the first queue pair uses up the limit of outstanding
    // packets to the other device, and the second queue pair waits for room under this limit. No call except
    // the destruction of the first queue pair drives the device.
    let devices = open();
    let (stuck, silent) = Plan { timeout: 0, ..Plan::rc() }.connect(&devices);
    let (waiting, answers) = Plan::rc().connect(&devices);
    silent.to_error();
    let (mine, theirs) = (stuck.memory(BYTES), waiting.patterned(BYTES, 1));
    let to = answers.memory(BYTES);
    stuck.post(1, write_to(&to, 0), &[mine.sge(0, BYTES)]);
    waiting.post(2, write_to(&to, 0), &[theirs.sge(0, BYTES)]);
    drop(stuck);
    eventually("the last byte arrived", || to.load_acquire_u8(BYTES - 1) == pattern(BYTES, 1)[BYTES - 1]);
    waiting.expect(2);
    assert_bytes(&to, 0, &pattern(BYTES, 1), "the WRITE that waited for room");
}
