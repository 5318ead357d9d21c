//! Each misuse returns an error that states what is wrong and why.

use doorbell_verbs::{
    Access, Error, MemoryError, MemoryKind, ModifyError, ObjectError, PathMtu, PostError, PostErrorKind, QpAttributes,
    QpCapacities, QpKind, QpOptions, QpState, RKey, RecvRequest, SendOperation, SendRequest, Status,
};

use crate::Open;
use crate::common::*;

/// Checks that the text of the error contains all of `words`.
#[track_caller]
fn says(error: &impl std::error::Error, words: &[&str]) {
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "{text:?} does not contain {word:?}");
    }
}

#[track_caller]
fn memory_error(result: Result<(), PostError>) -> MemoryError {
    match result {
        Err(PostError { index: 0, kind: PostErrorKind::Memory { index: 0, error } }) => error,
        other => panic!("{other:?}"),
    }
}

pub fn foreign_protection_domains(open: Open<'_>) {
    let devices = open();
    let (a, b) = Plan::rc().connect(&devices);
    let foreign = devices.0.create_pd().unwrap().allocate(64, ALL_ACCESS, MemoryKind::Plain).unwrap();
    let error = memory_error(a.qp.post_send(&[signalled(1, SendOperation::Send, &[foreign.sge(0, 8)])]));
    assert!(matches!(error, MemoryError::ForeignPd { .. }));
    says(&error, &["another protection domain"]);
    let error = memory_error(a.qp.post_recv(&[RecvRequest { wr_id: 1, sges: &[foreign.sge(0, 8)] }]));
    assert!(matches!(error, MemoryError::ForeignPd { .. }));
    // Likewise, the shared receive queue may not belong to another protection domain.
    let srq = devices.0.create_pd().unwrap().create_srq(4, 1).unwrap();
    let result = a.pd.create_qp(QpOptions {
        kind: QpKind::Rc,
        send_cq: &a.cq,
        recv_cq: &a.cq,
        srq: Some(&srq),
        capacities: Plan::rc().capacities(),
        signal_all: false,
    });
    assert!(matches!(result, Err(Error::Object(ObjectError::ForeignPd("shared receive queue")))), "{result:?}");
    // The peer accesses a region in another protection domain than that of its own queue pair.
    let foreign = devices.1.create_pd().unwrap().allocate(64, ALL_ACCESS, MemoryKind::Plain).unwrap();
    let mine = a.memory(8);
    a.post(2, write_to(&foreign, 0), &[mine.sge(0, 8)]);
    a.expect_refusal(2, Status::RemoteAccess);
    eventually("the peer is in error, too", || b.state() == QpState::Error);
}

pub fn foreign_devices(open: Open<'_>) {
    let (one, other) = open();
    let pd = one.create_pd().unwrap();
    let (own, foreign) = (one.create_cq(4).unwrap(), other.create_cq(4).unwrap());
    let srq = other.create_pd().unwrap().create_srq(4, 1).unwrap();
    let options = |send_cq, recv_cq, srq| QpOptions {
        kind: QpKind::Rc,
        send_cq,
        recv_cq,
        srq,
        capacities: Plan::rc().capacities(),
        signal_all: false,
    };
    for (options, what) in [
        (options(&foreign, &own, None), "send completion queue"),
        (options(&own, &foreign, None), "receive completion queue"),
        (options(&own, &own, Some(&srq)), "shared receive queue"),
    ] {
        let error = pd.create_qp(options).unwrap_err();
        assert!(matches!(error, Error::ForeignDevice(named) if named == what));
        says(&error, &[what, "another device"]);
    }
    let error = one.create_cq_on(4, &other.create_channel().unwrap()).unwrap_err();
    says(&error, &["completion channel", "another device"]);
    // The memory belongs to another device, so its key is unknown on this device.
    let (a, _b) = Plan::rc().connect(&(one, other.clone()));
    let region = other.create_pd().unwrap().allocate(64, ALL_ACCESS, MemoryKind::Plain).unwrap();
    let error = memory_error(a.qp.post_send(&[signalled(1, SendOperation::Send, &[region.sge(0, 8)])]));
    says(&error, &["no memory region has the key"]);
}

pub fn ranges_outside_a_region(open: Open<'_>) {
    let (a, _b) = Plan::rc().connect(&open());
    let region = a.memory(100);
    let bad = [
        region.sge(0, 101),
        region.sge(100, 1),
        region.sge(101, 1),
        region.sge(usize::MAX, 2),
        region.sge(50, usize::MAX),
    ];
    for sge in bad {
        let error = memory_error(a.qp.post_send(&[signalled(1, SendOperation::Send, &[sge])]));
        assert!(matches!(error, MemoryError::OutOfBounds { region_length: 100, .. }), "{error}");
        says(&error, &["are not inside the memory region", "100 bytes"]);
        memory_error(a.qp.post_recv(&[RecvRequest { wr_id: 1, sges: &[sge] }]));
    }
    let mut stale = region.sge(0, 8);
    drop(region);
    let error = memory_error(a.qp.post_send(&[signalled(1, SendOperation::Send, &[stale])]));
    says(&error, &["deregistered"]);
    // An element of length 0 refers to no memory, so its key is not checked.
    stale.length = 0;
    a.post_recv(1, &[stale]);
    let second = a.memory(8);
    let result = a.qp.post_send(&[signalled(1, SendOperation::Send, &[second.sge(0, 8), second.sge(4, 8)])]);
    assert!(matches!(result, Err(PostError { kind: PostErrorKind::Memory { index: 1, .. }, .. })), "{result:?}");
}

pub fn rights_that_were_not_granted(open: Open<'_>) {
    let (a, b) = Plan::rc().connect(&open());
    let readable = a.pd.allocate(64, Access::REMOTE_READ, MemoryKind::Plain).unwrap();
    let sges = [readable.sge(0, 8)];
    a.qp.post_send(&[signalled(1, SendOperation::Write { remote_address: 0, rkey: readable.rkey() }, &sges[..0])])
        .unwrap();
    a.expect(1);
    let error = memory_error(a.qp.post_recv(&[RecvRequest { wr_id: 1, sges: &sges }]));
    assert!(matches!(error, MemoryError::Forbidden { needed: Access::LOCAL_WRITE, .. }));
    says(&error, &["LOCAL_WRITE", "REMOTE_READ"]);
    let region = b.memory(64);
    for operation in [read_from(&region, 0), fetch_add(&region, 0, 1)] {
        let error = memory_error(a.qp.post_send(&[signalled(1, operation, &sges)]));
        assert!(matches!(error, MemoryError::Forbidden { .. }));
    }
}

pub fn remote_accesses_that_are_refused(open: Open<'_>) {
    let devices = open();
    type Case<'a> = (&'a str, Access, Access, fn(&doorbell_verbs::Region) -> SendOperation, Status);
    // Remote write access requires local write access (ibv_reg_mr(3)).
    let (everything, writable) = (ALL_ACCESS, Access::REMOTE_WRITE | Access::LOCAL_WRITE);
    let cases: [Case<'_>; 11] = [
        (
            "a wrong key",
            everything,
            everything,
            |r| SendOperation::Write { remote_address: r.address(), rkey: wrong(r.rkey()) },
            Status::RemoteAccess,
        ),
        ("beyond the end", everything, everything, |r| write_to(r, 57), Status::RemoteAccess),
        ("before the start", everything, everything, |r| read_from(r, usize::MAX), Status::RemoteAccess),
        ("no right to WRITE the region", Access::REMOTE_READ, everything, |r| write_to(r, 0), Status::RemoteAccess),
        ("no right to READ the region", writable, everything, |r| read_from(r, 0), Status::RemoteAccess),
        ("no right to atomics on the region", writable, everything, |r| fetch_add(r, 0, 1), Status::RemoteAccess),
        (
            "no right to WRITE through the queue pair",
            everything,
            Access::REMOTE_READ,
            |r| write_to(r, 0),
            Status::RemoteAccess,
        ),
        (
            "no right to WRITE through the queue pair, though no bytes",
            everything,
            Access::REMOTE_READ,
            |_| SendOperation::Write { remote_address: 0, rkey: RKey::new(0) },
            Status::RemoteAccess,
        ),
        (
            "no right to READ through the queue pair",
            everything,
            Access::REMOTE_WRITE,
            |r| read_from(r, 0),
            Status::RemoteAccess,
        ),
        (
            "no right to atomics through the queue pair",
            everything,
            Access::REMOTE_WRITE,
            |r| fetch_add(r, 0, 1),
            Status::RemoteAccess,
        ),
        ("an atomic that is not aligned", everything, everything, |r| fetch_add(r, 4, 1), Status::RemoteInvalidRequest),
    ];
    for (what, of_region, of_qp, operation, status) in cases {
        let (a, b) = Plan { access: of_qp, ..Plan::with_an_end() }.connect(&devices);
        let region = b.pd.allocate(64, of_region, MemoryKind::Plain).unwrap();
        let mine = a.patterned(64, 1);
        let mine_of_eight = [mine.sge(0, 8)];
        let bytes = if what.contains("no bytes") { &[][..] } else { &mine_of_eight };
        let refused = signalled(1, operation(&region), bytes);
        let posted = a.qp.post_send(&[refused, signalled(2, SendOperation::Send, &[])]);
        if what.contains("not aligned") && rxe_departs(&a.device, "posting refuses an unaligned atomic") {
            assert!(matches!(posted, Err(PostError { index: 0, .. })), "{posted:?}");
            continue;
        }
        posted.unwrap();
        let done = a.reap(2);
        let status = if what.contains("through the queue pair")
            && rxe_departs(
                &a.device,
                "an access that the queue pair forbids is an invalid request, not an access error",
            ) {
            Status::RemoteInvalidRequest
        } else {
            status
        };
        assert_eq!(done[0].wr_id, 1);
        assert_refusal(done[0].status, status, what);
        assert_eq!((done[1].wr_id, done[1].status), (2, Status::WorkRequestFlushed), "{what}");
        assert_eq!(a.state(), QpState::Error, "{what}");
        eventually("the peer is in error, too", || b.state() == QpState::Error);
        assert_bytes(&region, 0, &[0; 64], what);
        assert_bytes(&mine, 0, &pattern(64, 1), what);
    }
}

pub fn full_queues_and_lists_that_are_too_long(open: Open<'_>) {
    let plan = Plan { depth: 5, sges: 2, inline: 10, ..Plan::rc() };
    let (a, _b) = plan.connect(&open());
    let region = a.memory(64);
    for _ in 0..5 {
        a.post_recv(1, &[]);
        a.post(1, SendOperation::Send, &[]);
    }
    let error = a.qp.post_send(&[signalled(1, SendOperation::Send, &[])]).unwrap_err();
    assert!(matches!(error.kind, PostErrorKind::QueueFull { queue: "send queue", depth: 5 }));
    says(&error, &["send queue", "full", "5"]);
    let error = a.qp.post_recv(&[RecvRequest { wr_id: 1, sges: &[] }]).unwrap_err();
    says(&error, &["receive queue", "full", "5"]);
    let (a, _b) = plan.connect(&(a.device.clone(), a.device.clone()));
    let region_of_a = a.memory(64);
    let three = [region_of_a.sge(0, 1); 3];
    let error = a.qp.post_send(&[signalled(1, SendOperation::Send, &three)]).unwrap_err();
    assert_eq!(error.kind, PostErrorKind::TooManySges { given: 3, allowed: 2 });
    says(&error, &["3", "at most 2"]);
    let error = a.qp.post_recv(&[RecvRequest { wr_id: 1, sges: &three }]).unwrap_err();
    assert_eq!(error.kind, PostErrorKind::TooManySges { given: 3, allowed: 2 });
    let error = a.qp.post_send(&[inline(1, SendOperation::Send, &[0; 11])]).unwrap_err();
    assert_eq!(error.kind, PostErrorKind::InlineTooLong { given: 11, allowed: 10 });
    says(&error, &["11 B", "10 B"]);
    let error = a.qp.post_send(&[inline(1, read_from(&region, 0), &[0; 8])]).unwrap_err();
    says(&error, &["RDMA READ", "inline"]);
    let srq = a.pd.create_srq(2, 1).unwrap();
    let error = srq.post_recv(&[RecvRequest { wr_id: 1, sges: &three }]).unwrap_err();
    assert_eq!(error.kind, PostErrorKind::TooManySges { given: 3, allowed: 1 });
}

pub fn operations_that_a_transport_does_not_have(open: Open<'_>) {
    let devices = open();
    let region = Plan::rc().side(&devices.1).memory(64);
    let (write, read, atomic) = (write_to(&region, 0), read_from(&region, 0), fetch_add(&region, 0, 1));
    let invalidate = SendOperation::SendInvalidate(region.rkey());
    for (kind, refused) in
        [(QpKind::Uc, &[read, atomic, invalidate][..]), (QpKind::Ud, &[write, read, atomic, invalidate])]
    {
        let (a, b) = Plan::new(kind).connect(&devices);
        for &operation in refused {
            let destination = (kind == QpKind::Ud).then(|| b.as_destination());
            let request = SendRequest { destination, ..signalled(1, operation, &[]) };
            let error = a.qp.post_send(&[request]).unwrap_err();
            assert!(
                matches!(error.kind, PostErrorKind::UnsupportedOperation { .. }),
                "{kind:?} {operation:?}: {error}"
            );
            says(&error, &[kind.name()]);
        }
        // UD requests need a destination; requests of other kinds must have none.
        let destination = (kind != QpKind::Ud).then(|| b.as_destination());
        let error =
            a.qp.post_send(&[SendRequest { destination, ..signalled(1, SendOperation::Send, &[]) }]).unwrap_err();
        assert!(matches!(error.kind, PostErrorKind::Destination(_)), "{error}");
        if kind == QpKind::Ud {
            let mtu = a.device.attributes().active_mtu.bytes();
            let memory = a.memory(mtu + 1);
            let error = a.qp.post_send(&[datagram(1, SendOperation::Send, &[memory.sge(0, mtu + 1)], &b)]).unwrap_err();
            assert_eq!(error.kind, PostErrorKind::MessageTooLong { given: mtu as u64 + 1, allowed: mtu as u64 });
        }
    }
    let (a, _b) = Plan { rd_atomic: 0, ..Plan::rc() }.connect(&devices);
    let memory = a.memory(16);
    let error = a.qp.post_send(&[signalled(1, read, &[memory.sge(0, 8)])]).unwrap_err();
    assert_eq!(error.kind, PostErrorKind::NoReadResources);
    says(&error, &["max_rd_atomic"]);
    let (a, _b) = Plan::rc().connect(&devices);
    let memory = a.memory(16);
    for length in [0, 7, 9] {
        let error = a.qp.post_send(&[signalled(1, atomic, &[memory.sge(0, length)])]).unwrap_err();
        assert_eq!(error.kind, PostErrorKind::AtomicLength(length as u64));
    }
}

pub fn numbers_out_of_range(open: Open<'_>) {
    let device = open().0;
    let limits = device.attributes().limits;
    let pd = device.create_pd().unwrap();
    for depth in [0, limits.max_cq_depth + 1] {
        let error = device.create_cq(depth).unwrap_err();
        says(&error, &["completion queue's depth", &depth.to_string(), &limits.max_cq_depth.to_string()]);
    }
    let error = pd.create_srq(0, 1).unwrap_err();
    says(&error, &["shared receive queue's depth"]);
    let cq = device.create_cq(4).unwrap();
    let least = QpCapacities { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
    let create = |capacities| {
        pd.create_qp(QpOptions {
            kind: QpKind::Rc,
            send_cq: &cq,
            recv_cq: &cq,
            srq: None,
            capacities,
            signal_all: false,
        })
    };
    for (capacities, what) in [
        (QpCapacities { max_send_wr: limits.max_queue_depth + 1, ..least }, "max_send_wr"),
        (QpCapacities { max_recv_wr: limits.max_queue_depth + 1, ..least }, "max_recv_wr"),
        (QpCapacities { max_send_sge: limits.max_sges + 1, ..least }, "max_send_sge"),
        (QpCapacities { max_recv_sge: limits.max_sges + 1, ..least }, "max_recv_sge"),
        (QpCapacities { max_inline: limits.max_inline + 1, ..least }, "max_inline"),
    ] {
        says(&create(capacities).unwrap_err(), &[what]);
    }
    let plan = Plan::rc();
    let side = plan.side(&device);
    for (attributes, what) in [
        (QpAttributes { port: Some(2), ..plan.to_init() }, "port"),
        (QpAttributes { pkey_index: Some(1), ..plan.to_init() }, "partition key"),
    ] {
        let error = side.qp.modify(&attributes).unwrap_err();
        assert!(matches!(error, ModifyError::Value { .. }));
        says(&error, &[what]);
    }
    side.qp.modify(&plan.to_init()).unwrap();
    let rtr = plan.to_rtr(&side, device.random_psn());
    says(
        &side.qp.modify(&QpAttributes { min_rnr_timer: Some(32), ..rtr }).unwrap_err(),
        &["RNR NAK timer", "32", "0 to 31"],
    );
    says(
        &side.qp.modify(&QpAttributes { max_dest_rd_atomic: Some(17), ..rtr }).unwrap_err(),
        &["max_dest_rd_atomic", "17"],
    );
    if device.attributes().active_mtu < PathMtu::Mtu4096 {
        let error = side.qp.modify(&QpAttributes { path_mtu: Some(PathMtu::Mtu4096), ..rtr }).unwrap_err();
        says(&error, &["4096", "active MTU"]);
    }
    side.qp.modify(&rtr).unwrap();
    let rts = plan.to_rts(device.random_psn());
    says(&side.qp.modify(&QpAttributes { timeout: Some(32), ..rts }).unwrap_err(), &["timeout", "32"]);
    says(&side.qp.modify(&QpAttributes { retry_count: Some(8), ..rts }).unwrap_err(), &["retry count", "8"]);
    assert_eq!(side.state(), QpState::ReadyToReceive);
}

pub fn a_list_is_accepted_up_to_the_first_mistake(open: Open<'_>) {
    let (a, b) = Plan::rc().connect(&open());
    let region = a.patterned(64, 1);
    let (good, bad) = ([region.sge(0, 8)], [region.sge(60, 8)]);
    let into = b.memory(64);
    let error =
        b.qp.post_recv(&[
            RecvRequest { wr_id: 1, sges: &[into.sge(0, 64)] },
            RecvRequest { wr_id: 2, sges: &bad },
            RecvRequest { wr_id: 3, sges: &[] },
        ])
        .unwrap_err();
    assert_eq!(error.index, 1);
    says(&error, &["work request 1 of the list"]);
    let send = |wr_id, sges| signalled(wr_id, SendOperation::Send, sges);
    let error = a.qp.post_send(&[send(1, &good[..]), send(2, &bad[..]), send(3, &good[..])]).unwrap_err();
    assert_eq!(error.index, 1);
    a.expect(1);
    b.expect(1);
    let mut out = [Default::default()];
    assert_eq!((a.cq.poll(&mut out), a.qp.query().outstanding_sends), (Ok(0), 0));
}

pub fn receives_that_are_too_short(open: Open<'_>) {
    let devices = open();
    for size in [11, 5000] {
        let (a, b) = Plan::with_an_end().connect(&devices);
        let (from, to) = (a.patterned(size, 1), b.memory(size));
        b.post_recv(1, &[to.sge(0, size - 1)]);
        b.post_recv(2, &[]);
        a.post(1, SendOperation::Send, &[from.sge(0, size)]);
        let how = "a message longer than its receive is an operation error at both ends, not one of length";
        let (there, here) = if rxe_departs(&b.device, how) {
            (Status::RemoteOperation, Status::LocalQpOperation)
        } else {
            (Status::RemoteInvalidRequest, Status::LocalLength)
        };
        a.expect_refusal(1, there);
        b.expect_failure(1, here);
        b.expect_failure(2, Status::WorkRequestFlushed);
        assert_eq!(bytes_of(&to, size - 1, 1), [0]);
    }
}
