//! Limits and errors of objects and work requests.

use crate::common::script::{OWN, PEER, PEER_PSN, PEER_QPN, Script};
use crate::common::{Block, End, QKEY, World, address_of};
use doorbell_rnic::LIMITS;
use doorbell_verbs_core::{
    Access, AddressVector, CqId, LKey, MemoryError, ModifyError, ObjectError, Payload, PdId, PostErrorKind,
    QpAttributes, QpCapacities, QpInit, QpKind, QpState, RecvRequest, SendFlags, SendOperation as Op, SendRequest, Sge,
    SrqId, Status, UdDestination,
};
use doorbell_wire::{Opcode, PathMtu, Psn, Qpn, RKey};

fn request<'a>(operation: Op, payload: Payload<'a>) -> SendRequest<'a> {
    SendRequest { wr_id: 1, operation, flags: SendFlags::SIGNALED, payload, destination: None }
}

fn refused(script: &mut Script, request: SendRequest<'_>) -> PostErrorKind {
    let (now_ns, qpn) = (script.world.now_ns, script.qpn);
    let error = script.rnic().post_send(now_ns, qpn, &[request]).expect_err("the request must be rejected");
    assert_eq!(error.index, 0);
    assert!(!error.to_string().is_empty());
    error.kind
}

fn small() -> End {
    let capacities = QpCapacities { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 8 };
    End { capacities, ..End::default() }
}

#[test]
fn queues_of_one_hold_exactly_one() {
    let mut script = Script::rc(&small());
    script.post(Op::Send, 8);
    let sge = [script.world.nodes[OWN].sge(0, 8)];
    let kind = refused(&mut script, request(Op::Send, Payload::Sges(&sge)));
    assert_eq!(kind, PostErrorKind::QueueFull { queue: "send queue", depth: 1 });
    script.sent();
    let kind = refused(&mut script, request(Op::Send, Payload::Sges(&sge)));
    assert!(
        matches!(kind, PostErrorKind::QueueFull { .. }),
        "a sent request without its acknowledgement must occupy the queue"
    );
    for index in 0..5 {
        script.ack(Psn::new(100 + index));
        script.post(Op::Send, 8);
        script.sent();
    }
    script.receive(0, 8);
    let qpn = script.qpn;
    let error = script.rnic().post_recv(qpn, &[RecvRequest { wr_id: 0, sges: &sge }]).expect_err("the queue is full");
    assert_eq!(error.kind, PostErrorKind::QueueFull { queue: "receive queue", depth: 1 });
    for index in 0..5 {
        script.hear(&script.say(Opcode::RC_SEND_ONLY).psn(PEER_PSN.add(index)));
        script.receive(0, 8);
    }
}

#[test]
fn a_list_is_accepted_up_to_the_first_refused_request() {
    let capacities = QpCapacities { max_send_wr: 3, max_recv_wr: 2, ..small().capacities };
    let mut script = Script::rc(&End { capacities, ..End::default() });
    let (qpn, now_ns) = (script.qpn, script.world.now_ns);
    let list = [request(Op::Send, Payload::Inline(&[1; 8])); 5];
    let error = script.rnic().post_send(now_ns, qpn, &list).expect_err("three fit");
    assert_eq!(error.index, 3);
    assert_eq!(script.sent().len(), 3);
    let receives = [RecvRequest { wr_id: 0, sges: &[] }; 3];
    let error = script.rnic().post_recv(qpn, &receives).expect_err("two fit");
    assert_eq!(error.index, 2);
}

#[test]
fn post_all_sends_accepts_the_whole_list_or_nothing() {
    let capacities = QpCapacities { max_send_wr: 3, ..small().capacities };
    let mut script = Script::rc(&End { capacities, ..End::default() });
    let (qpn, now_ns) = (script.qpn, script.world.now_ns);
    let mut list = [request(Op::Send, Payload::Inline(&[1; 8])); 4];
    for attempt in 0..2 {
        let error = script.rnic().post_all_sends(now_ns, qpn, &list).expect_err("three fit");
        assert_eq!((error.index, script.rnic().pending_work(qpn)), (3, 0), "attempt {attempt}");
    }
    script.rnic().post_all_sends(now_ns, qpn, &list[..3]).expect("three fit");
    assert_eq!(script.sent().len(), 3);
    // When the queue pair enters the error state, it flushes only the accepted requests.
    script.world.bring_to(OWN, qpn, QpState::Error);
    assert_eq!(script.ends().len(), 3);
    list[1].payload = Payload::Inline(&[0; 9]);
    let error = script.rnic().post_all_sends(now_ns, qpn, &list[..3]).expect_err("one request has too many bytes");
    assert_eq!(error.index, 1);
    assert!(script.ends().is_empty());
    script.rnic().post_all_sends(now_ns, qpn, &list[..1]).expect("it fits");
    assert_eq!(script.ends(), [(1, Status::WorkRequestFlushed)]);
}

#[test]
fn work_requests_are_refused_for_the_right_reason() {
    let mut script = Script::rc(&small());
    let sge = script.world.nodes[OWN].sge(0, 8);
    let rkey = RKey::new(1);
    let read = Op::Read { remote_address: 0, rkey };
    let add = Op::FetchAdd { remote_address: 0, rkey, add: 1 };
    let two = [sge; 2];
    let mut why = |operation, payload| refused(&mut script, request(operation, payload));
    assert_eq!(why(Op::Send, Payload::Sges(&two)), PostErrorKind::TooManySges { given: 2, allowed: 1 });
    assert_eq!(why(Op::Send, Payload::Inline(&[0; 9])), PostErrorKind::InlineTooLong { given: 9, allowed: 8 });
    assert!(matches!(why(read, Payload::Inline(&[0; 8])), PostErrorKind::InlineRead(_)));
    let seven = [Sge { length: 7, ..sge }];
    assert_eq!(why(add, Payload::Sges(&seven)), PostErrorKind::AtomicLength(7));
    let memory = |kind| match kind {
        PostErrorKind::Memory { index: 0, error } => error,
        other => panic!("expected a memory error, got {other}"),
    };
    let wrong = [Sge { lkey: LKey(3), ..sge }];
    assert_eq!(memory(why(Op::Send, Payload::Sges(&wrong))), MemoryError::UnknownKey { key: 3 });
    let beyond = [Sge { length: 1 << 30, ..sge }];
    assert!(matches!(memory(why(Op::Send, Payload::Sges(&beyond))), MemoryError::OutOfBounds { .. }));
    let region = script.region(0, 64, Access::empty());
    let read_only = [Sge { lkey: region.lkey(), ..sge }];
    let kind = refused(&mut script, request(read, Payload::Sges(&read_only)));
    assert!(matches!(memory(kind), MemoryError::Forbidden { needed: Access::LOCAL_WRITE, .. }));
    let pd = script.rnic().create_pd();
    let (base, address) = (script.world.nodes[OWN].memory.base(), script.base());
    // SAFETY: the block lives as long as the node's RNIC.
    let foreign =
        unsafe { script.rnic().register(pd, base, 64, address, Access::all(), None) }.expect("the device has room");
    let foreign = [Sge { lkey: foreign.lkey(), ..sge }];
    let kind = refused(&mut script, request(Op::Send, Payload::Sges(&foreign)));
    assert!(matches!(memory(kind), MemoryError::ForeignPd { .. }));
    // An element without bytes refers to no memory.
    let (qpn, now_ns) = (script.qpn, script.world.now_ns);
    let empty = [Sge { address: 5, length: 0, lkey: LKey(9) }];
    script
        .rnic()
        .post_send(now_ns, qpn, &[request(Op::Send, Payload::Sges(&empty))])
        .expect("an element without bytes refers to no memory");

    // Together, the elements are longer than the maximum message.
    let mut script = Script::new();
    let pd = script.world.nodes[OWN].pd;
    // SAFETY: the memory is never accessed, since the request is rejected.
    let huge = unsafe { script.rnic().register(pd, std::ptr::null_mut(), 1 << 31, 0, Access::all(), None) };
    let huge = huge.expect("the device has room for a region");
    let sges =
        [Sge { address: 0, length: 1 << 31, lkey: huge.lkey() }, Sge { address: 0, length: 1, lkey: huge.lkey() }];
    let refusal = refused(&mut script, request(Op::Send, Payload::Sges(&sges)));
    assert_eq!(refusal, PostErrorKind::MessageTooLong { given: (1 << 31) + 1, allowed: 1 << 31 });
    let destination = UdDestination { address: script.address(), qpn: PEER_QPN, qkey: QKEY };
    let with = SendRequest { destination: Some(destination), ..request(Op::Send, Payload::Inline(&[])) };
    assert!(matches!(refused(&mut script, with), PostErrorKind::Destination(_)));
    let mut script = Script::rc(&End { max_rd_atomic: 0, ..End::default() });
    let sge = [script.world.nodes[OWN].sge(0, 8)];
    assert_eq!(refused(&mut script, request(read, Payload::Sges(&sge))), PostErrorKind::NoReadResources);
    assert_eq!(
        script.rnic().post_send(1, Qpn::new(5), &[request(Op::Send, Payload::Inline(&[]))]).expect_err("unknown").kind,
        PostErrorKind::UnknownQp(Qpn::new(5))
    );
    assert_eq!(
        script.rnic().post_recv(Qpn::new(5), &[]).expect_err("unknown").kind,
        PostErrorKind::UnknownQp(Qpn::new(5))
    );
}

#[test]
fn transports_have_their_operations() {
    let rkey = RKey::new(1);
    let read = Op::Read { remote_address: 0, rkey };
    let add = Op::FetchAdd { remote_address: 0, rkey, add: 1 };
    let write = Op::Write { remote_address: 0, rkey };
    for (kind, operations) in
        [(QpKind::Uc, &[read, add, Op::SendInvalidate(rkey)][..]), (QpKind::Ud, &[read, add, write][..])]
    {
        let mut script = Script::with(kind, PathMtu::Mtu4096, &End::default());
        for &operation in operations {
            let refusal = refused(&mut script, request(operation, Payload::Sges(&[])));
            assert!(matches!(refusal, PostErrorKind::UnsupportedOperation { .. }), "{kind:?} {operation:?}: {refusal}");
        }
    }
    let mut script = Script::with(QpKind::Ud, PathMtu::Mtu4096, &End::default());
    let refusal = refused(&mut script, request(Op::Send, Payload::Inline(&[])));
    assert!(matches!(refusal, PostErrorKind::Destination(_)), "{refusal}");
    let sge = [script.world.nodes[OWN].sge(0, 4097)];
    let mut to = UdDestination { address: script.address(), qpn: PEER_QPN, qkey: QKEY };
    let long = SendRequest { destination: Some(to), ..request(Op::Send, Payload::Sges(&sge)) };
    assert_eq!(refused(&mut script, long), PostErrorKind::MessageTooLong { given: 4097, allowed: 4096 });
    to.address = AddressVector::to("fd00::1".parse().expect("an address"));
    let far = SendRequest { destination: Some(to), ..request(Op::Send, Payload::Inline(&[])) };
    assert!(
        matches!(refused(&mut script, far), PostErrorKind::Destination(_)),
        "an IPv6 destination was accepted on an IPv4 device"
    );
}

#[test]
fn each_state_accepts_only_its_allowed_work() {
    let mut script = Script::silent(PathMtu::Mtu256);
    let end = End::default();
    script.qpn = script.world.create_qp(OWN, QpKind::Rc, &end);
    let qpn = script.qpn;
    let receive = |script: &mut Script| script.rnic().post_recv(qpn, &[RecvRequest { wr_id: 5, sges: &[] }]);
    let send = |script: &mut Script| {
        script.rnic().post_send(1, qpn, &[request(Op::Send, Payload::Inline(&[]))]).map_err(|error| error.kind)
    };
    let wrong = |kind| matches!(kind, PostErrorKind::WrongState { .. });
    assert!(wrong(receive(&mut script).expect_err("reset").kind));
    assert!(wrong(send(&mut script).expect_err("reset")));
    script.world.bring_to_init(OWN, qpn, QpKind::Rc, &end);
    receive(&mut script).expect("init takes receives");
    assert!(wrong(send(&mut script).expect_err("init")));
    script.world.bring_to_rtr(OWN, qpn, QpKind::Rc, PathMtu::Mtu256, &end, (PEER, PEER_QPN, PEER_PSN));
    assert!(wrong(send(&mut script).expect_err("RTR")));
    script.world.bring_to_rts(OWN, qpn, QpKind::Rc, &end);
    send(&mut script).expect("RTS takes sends");
    script.world.bring_to(OWN, qpn, QpState::Error);
    let flushed = Status::WorkRequestFlushed;
    assert_eq!(script.ends(), [(1, flushed), (5, flushed)]);
    receive(&mut script).expect("error takes receives");
    send(&mut script).expect("error takes sends");
    assert_eq!(script.ends(), [(5, flushed), (1, flushed)], "the error state did not flush the requests");
}

#[test]
fn modifications_are_refused_for_the_right_reason() {
    let mut script = Script::silent(PathMtu::Mtu256);
    let qpn = script.world.create_qp(OWN, QpKind::Rc, &End::default());
    let mut modify =
        |qpn, attributes| script.rnic().modify_qp(qpn, &attributes).expect_err("the modification must be rejected");
    let to = |state| QpAttributes { state: Some(state), ..QpAttributes::default() };
    assert_eq!(modify(Qpn::new(9), to(QpState::Init)), ModifyError::UnknownQp(Qpn::new(9)));
    assert!(matches!(modify(qpn, to(QpState::ReadyToSend)), ModifyError::NoTransition { .. }));
    assert!(matches!(modify(qpn, to(QpState::Init)), ModifyError::Attributes { .. }));
    let believed = QpAttributes { current_state: Some(QpState::SqDrain), ..to(QpState::Error) };
    assert!(matches!(modify(qpn, believed), ModifyError::NotInState { .. }));
    let init = QpAttributes { pkey_index: Some(0), port: Some(1), access: Some(Access::all()), ..to(QpState::Init) };
    let error = modify(qpn, QpAttributes { port: Some(2), ..init });
    assert_eq!(error.to_string(), "the port is 2, allowed is 1");
    assert!(matches!(modify(qpn, QpAttributes { pkey_index: Some(1), ..init }), ModifyError::Value { .. }));
    script.world.modify(OWN, qpn, init);
    let rtr = QpAttributes {
        address: Some(script.address()),
        path_mtu: Some(PathMtu::Mtu256),
        dest_qpn: Some(PEER_QPN),
        receive_psn: Some(PEER_PSN),
        max_dest_rd_atomic: Some(1),
        min_rnr_timer: Some(1),
        ..to(QpState::ReadyToReceive)
    };
    let mut modify =
        |attributes| script.rnic().modify_qp(qpn, &attributes).expect_err("the modification must be rejected");
    for wrong in [QpAttributes { max_dest_rd_atomic: Some(17), ..rtr }, QpAttributes { min_rnr_timer: Some(32), ..rtr }]
    {
        assert!(matches!(modify(wrong), ModifyError::Value { .. }), "{wrong:?}");
    }
    let v6 = AddressVector::to("fd00::1".parse().expect("an address"));
    assert!(matches!(modify(QpAttributes { address: Some(v6), ..rtr }), ModifyError::AddressFamily { .. }));

    let config = doorbell_rnic::Config {
        address: address_of(3),
        active_mtu: PathMtu::Mtu1024,
        receive_buffer_bytes: 1 << 20,
        seed: [1; 32],
    };
    let mut narrow = doorbell_rnic::Rnic::new(config, None);
    let pd = narrow.create_pd();
    let (cq, _) = narrow.create_cq(4, None).expect("the device has room");
    let init_with = QpInit {
        kind: QpKind::Rc,
        pd,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        capacities: End::default().capacities,
        signal_all: true,
    };
    let qpn = narrow.create_qp(init_with).expect("the device has room");
    narrow.modify_qp(qpn, &init).expect("as above");
    let error =
        narrow.modify_qp(qpn, &QpAttributes { path_mtu: Some(PathMtu::Mtu2048), ..rtr }).expect_err("too large");
    assert_eq!(error, ModifyError::PathMtu { given: 2048, active: 1024 });
    narrow.modify_qp(qpn, &rtr).expect("the transition is valid");
    let info = narrow.query_qp(qpn).expect("it exists");
    assert_eq!((info.state, info.attributes.path_mtu), (QpState::ReadyToReceive, Some(PathMtu::Mtu256)));
    assert_eq!(info.attributes.receive_psn, Some(PEER_PSN));
}

#[test]
fn objects_have_limits_and_owners() {
    let mut script = Script::silent(PathMtu::Mtu256);
    let node = &mut script.world.nodes[OWN];
    let (rnic, pd, cq) = (&mut node.rnic, node.pd, node.cq);
    let out_of_range = |error| matches!(error, ObjectError::Range { .. });
    assert!(out_of_range(rnic.create_cq(0, None).expect_err("none")));
    assert!(out_of_range(rnic.create_cq(LIMITS.max_cq_depth + 1, None).expect_err("too deep")));
    assert!(out_of_range(rnic.create_srq(pd, 0, 1).expect_err("none")));
    assert!(out_of_range(rnic.create_srq(pd, LIMITS.max_queue_depth + 1, 1).expect_err("too deep")));
    assert!(out_of_range(rnic.create_srq(pd, 1, LIMITS.max_sges + 1).expect_err("too many elements")));
    let init = QpInit {
        kind: QpKind::Rc,
        pd,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        capacities: small().capacities,
        signal_all: false,
    };
    let c = init.capacities;
    for capacities in [
        QpCapacities { max_send_wr: LIMITS.max_queue_depth + 1, ..c },
        QpCapacities { max_recv_wr: LIMITS.max_queue_depth + 1, ..c },
        QpCapacities { max_send_sge: LIMITS.max_sges + 1, ..c },
        QpCapacities { max_recv_sge: LIMITS.max_sges + 1, ..c },
        QpCapacities { max_inline: LIMITS.max_inline + 1, ..c },
    ] {
        let error =
            rnic.create_qp(QpInit { capacities, ..init }).expect_err("the capacity exceeds the limit of the device");
        assert!(out_of_range(error), "{error}");
    }
    let none = QpCapacities { max_send_wr: 0, max_recv_wr: 0, max_send_sge: 0, max_recv_sge: 0, max_inline: 0 };
    let empty = rnic.create_qp(QpInit { capacities: none, ..init }).expect("a queue pair that only answers");
    rnic.destroy_qp(empty).expect("the queue pair exists");
    let unknown = |error| matches!(error, ObjectError::Unknown(_));
    assert!(unknown(rnic.create_qp(QpInit { send_cq: CqId(99), ..init }).expect_err("there is no such queue")));
    assert!(unknown(rnic.create_qp(QpInit { pd: PdId(99), ..init }).expect_err("there is no such protection domain")));
    assert!(unknown(rnic.create_qp(QpInit { srq: Some(SrqId(99)), ..init }).expect_err("there is no such queue")));
    assert!(unknown(rnic.create_srq(PdId(99), 1, 1).expect_err("there is no such protection domain")));
    assert!(unknown(rnic.destroy_qp(Qpn::new(3)).expect_err("there is no such queue pair")));
    assert!(unknown(rnic.destroy_cq(CqId(99)).expect_err("there is no such queue")));
    assert!(unknown(rnic.destroy_srq(SrqId(99)).expect_err("there is no such queue")));
    assert!(unknown(rnic.destroy_pd(PdId(99)).expect_err("there is no such protection domain")));

    let other = rnic.create_pd();
    let (foreign, _) = rnic.create_srq(other, 4, 1).expect("the device has room");
    let error = rnic
        .create_qp(QpInit { srq: Some(foreign), ..init })
        .expect_err("the shared receive queue belongs to another protection domain");
    assert!(matches!(error, ObjectError::ForeignPd(_)));
    let busy = |error| matches!(error, ObjectError::Busy { .. });
    assert!(busy(rnic.destroy_pd(other).expect_err("the shared receive queue uses the protection domain")));
    rnic.destroy_srq(foreign).expect("no queue pair uses the shared receive queue");
    rnic.destroy_pd(other).expect("no object uses the protection domain");

    let (srq, _) = rnic.create_srq(pd, 4, 1).expect("the device has room");
    let qpn = rnic.create_qp(QpInit { srq: Some(srq), ..init }).expect("the device has room");
    assert!(busy(rnic.destroy_srq(srq).expect_err("the queue pair uses the shared receive queue")));
    assert!(busy(rnic.destroy_cq(cq).expect_err("the queue pair uses the completion queue")));
    assert!(busy(rnic.destroy_pd(pd).expect_err("the queue pair uses the protection domain")));
    rnic.destroy_qp(qpn).expect("the queue pair exists");
    rnic.destroy_srq(srq).expect("no queue pair uses the shared receive queue");
    rnic.destroy_cq(cq).expect("no queue pair uses the completion queue");
    assert!(busy(rnic.destroy_pd(pd).expect_err("the region uses the protection domain")));
    let region = node.region.clone();
    rnic.deregister(&region).expect("the region was registered");
    assert!(unknown(rnic.deregister(&region).expect_err("the region was deregistered before")));
    rnic.destroy_pd(pd).expect("no object uses the protection domain");
    // SAFETY: the call is rejected before the pointer is used.
    let error = unsafe { rnic.register(other, std::ptr::null_mut(), 1, 0, Access::all(), None) };
    assert!(unknown(error.expect_err("the protection domain was destroyed")));
    let pd = rnic.create_pd();
    // SAFETY: the call is rejected before the pointer is used.
    let error = unsafe { rnic.register(pd, std::ptr::null_mut(), 9, u64::MAX - 8, Access::all(), None) };
    assert!(matches!(error, Err(ObjectError::Region { .. }) | Ok(_)));
    // SAFETY: as for the call before.
    let error = unsafe { rnic.register(pd, std::ptr::null_mut(), 10, u64::MAX - 8, Access::all(), None) };
    assert!(matches!(error, Err(ObjectError::Region { .. })), "a region that wraps around was accepted");
}

#[test]
fn numbers_and_keys_are_random_and_replay_from_the_seed() {
    let world = || {
        let mut world = World::new(9, 2, 4096, 16, Default::default());
        let numbers: Vec<_> = (0..100).map(|_| world.create_qp(0, QpKind::Rc, &small()).get()).collect();
        let psns: Vec<_> = (0..100).map(|_| world.nodes[0].rnic.random_psn().get()).collect();
        let key = world.nodes[0].region.rkey().get();
        (numbers, psns, key)
    };
    let (numbers, psns, key) = world();
    assert_eq!(world(), (numbers.clone(), psns.clone(), key), "the same seed gave two different devices");
    let distinct: std::collections::HashSet<_> = numbers.iter().collect();
    assert_eq!(distinct.len(), 100);
    assert!(numbers.iter().all(|&number| number > 1 && number < 1 << 20), "numbers of engine 0 exceed 20 bits");
    assert!(!numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "numbers are consecutive");
    assert_ne!(key >> 8, 0);
}

#[test]
fn a_reregistered_region_keeps_its_keys() {
    let mut script = Script::new();
    let (first, second) = (Block::new(64), Block::new(32));
    let pd = script.world.nodes[OWN].pd;
    // SAFETY: the memory outlives the device.
    let region = unsafe {
        script.rnic().register(pd, first.base(), 64, first.address(), Access::all(), None).expect("the device has room")
    };
    let write = |script: &mut Script, address: u64, number: u8| {
        let psn = Psn::new(PEER_PSN.get() + u32::from(number) - 1);
        let said = script.say(Opcode::RC_WRITE_ONLY).psn(psn).reth(address, region.rkey(), 8);
        script.hear(&said.payload(&[number; 8]));
    };
    write(&mut script, first.address(), 1);
    assert_eq!(first.read(0, 8), [1; 8]);

    // SAFETY: as for the call before.
    let renewed = unsafe {
        script
            .rnic()
            .reregister(&region, pd, second.base(), 32, second.address(), Access::all())
            .expect("the region exists")
    };
    assert_eq!((renewed.lkey(), renewed.rkey(), renewed.length()), (region.lkey(), region.rkey(), 32));
    write(&mut script, second.address(), 2);
    assert_eq!(second.read(0, 8), [2; 8]);
    assert_eq!(first.read(0, 8), [1; 8], "the old memory was written");

    // SAFETY: the call is rejected before the pointer is used.
    let error = unsafe { script.rnic().reregister(&region, pd, second.base(), 9, u64::MAX - 8, Access::all()) };
    assert!(matches!(error, Err(ObjectError::Region { .. })));
    write(&mut script, second.address() + 8, 3);
    assert_eq!(second.read(8, 8), [3; 8], "a refused change had an effect");
}

#[test]
fn elements_that_are_checked_late_end_their_request() {
    let mut script = Script::new();
    script.rnic().check_elements_late();
    let wrong = [Sge { address: script.base(), length: 8, lkey: LKey(0x1234_5678) }];
    let (now_ns, qpn) = (script.world.now_ns, script.qpn);
    let list = [request(Op::Send, Payload::Sges(&wrong))];
    script.rnic().post_send(now_ns, qpn, &list).expect("memory is checked only at transmission");
    assert_eq!(script.sent().len(), 0);
    assert_eq!(script.ends(), [(1, Status::LocalProtection)]);
    assert_eq!(script.state(), QpState::Error);
}

#[test]
fn a_reset_takes_back_completions() {
    let mut script = Script::new();
    let (now_ns, qpn) = (script.world.now_ns, script.qpn);
    script.rnic().post_send(now_ns, qpn, &[request(Op::Send, Payload::Inline(&[1]))]).expect("the device has room");
    script.world.bring_to(OWN, qpn, QpState::Error);
    script.world.bring_to(OWN, qpn, QpState::Reset);
    assert_eq!(script.ends(), []);
}
