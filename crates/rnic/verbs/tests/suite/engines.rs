//! Devices with several engines.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use doorbell_testing::{in_own_process, refuse_socket_option, refuse_threads};
use doorbell_verbs::soft::{self, LinkChoice, Soft, SoftOptions};
use doorbell_verbs::{
    AsyncEvent, Cq, Device, MemoryKind, Notify, PortOrder, PortState, QpKind, QpOptions, QpState, RecvRequest,
    SendOperation, Status,
};
use doorbell_verbs_conformance::common::*;

const MESSAGES: u64 = 300;

over_each_link! {
    super::LinkChoice::Udp, super::LinkChoice::Shm;

    a_device_has_an_engine_for_each_processor
    each_thread_with_a_queue_pair_of_its_own_has_an_engine
    devices_with_different_numbers_of_engines_reach_each_other
    polls_of_one_queue_drive_all_engines_that_complete_to_it
    a_program_that_sleeps_is_notified_of_the_work_of_every_engine
    engines_share_a_receive_queue_and_regions
    losses_between_devices_with_different_numbers_of_engines_are_repaired
    a_second_device_cannot_take_the_address_of_a_device_with_several_engines
    orders_to_the_port_concern_every_engine
}

fn open(link: LinkChoice, engines: usize) -> (Arc<Soft>, Device) {
    let options = SoftOptions { link: Some(link), engines: Some(engines), ..SoftOptions::default() };
    let soft = soft::open_provider(&options).unwrap();
    (Arc::clone(&soft), Device::new(soft))
}

/// Returns the engine of a queue pair.
fn engine_of(side: &Side) -> u32 {
    side.qp.qpn().get() >> 20
}

/// Exchanges messages of 2,000 bytes, one at a time.
fn ping_pong(a: &Side, b: &Side, messages: u64) {
    let (mine, theirs) = (a.patterned(2_000, 7), b.memory(2_000));
    for number in 0..messages {
        b.post_recv(number, &[theirs.sge(0, 2_000)]);
        a.post(number, SendOperation::Send, &[mine.sge(0, 2_000)]);
        b.expect(number);
        a.expect(number);
    }
}

fn each_thread_with_a_queue_pair_of_its_own_has_an_engine(link: LinkChoice) {
    for engines in [2, 4] {
        let (a, b) = (open(link, engines), open(link, engines));
        let pairs: Vec<_> = (0..engines).map(|_| Plan::rc().connect(&(a.1.clone(), b.1.clone()))).collect();
        let mut used: Vec<u32> = pairs.iter().map(|(a, _)| engine_of(a)).collect();
        used.sort_unstable();
        assert_eq!(used, (0..engines as u32).collect::<Vec<_>>());
        thread::scope(|scope| {
            pairs.iter().for_each(|(a, b)| drop(scope.spawn(move || ping_pong(a, b, MESSAGES))));
        });
        for counters in b.0.engine_counters() {
            assert_eq!((counters.rx_send_requests, counters.rx_unknown_qp), (MESSAGES, 0));
        }
        let sum = b.1.counters().unwrap();
        assert_eq!(sum.rx_send_requests, MESSAGES * engines as u64);
        drop(pairs);
        assert_eq!((b.0.objects().qps, b.0.objects().cqs, b.0.objects().cq_ports), (0, 0, 0));
    }
}

/// Returns the engines of the queue pairs that five threads create one after the other, without repetitions.
fn default_engines(link: LinkChoice) -> Vec<u32> {
    let options = SoftOptions { link: Some(link), ..SoftOptions::default() };
    let [a, b] = [(); 2].map(|()| soft::open(&options).unwrap());
    let of_thread = || {
        let pairs: Vec<_> = (0..2).map(|_| Plan::rc().connect(&(a.clone(), b.clone()))).collect();
        pairs.iter().for_each(|(a, b)| ping_pong(a, b, 3));
        let used: Vec<u32> = pairs.iter().flat_map(|(a, b)| [engine_of(a), engine_of(b)]).collect();
        assert!(used.iter().all(|engine| *engine == used[0]), "a thread has several engines: {used:?}");
        used[0]
    };
    let mut used: Vec<u32> = (0..5).map(|_| thread::scope(|scope| scope.spawn(of_thread).join().unwrap())).collect();
    used.sort_unstable();
    used.dedup();
    used
}

fn a_device_has_an_engine_for_each_processor(link: LinkChoice) {
    let processors = thread::available_parallelism().unwrap().get().min(4) as u32;
    assert_eq!(default_engines(link), (0..processors).collect::<Vec<_>>());
}

fn devices_with_different_numbers_of_engines_reach_each_other(link: LinkChoice) {
    let (a, b) = (open(link, 4), open(link, 1));
    for _ in 0..4 {
        let (a, b) = Plan::rc().connect(&(a.1.clone(), b.1.clone()));
        ping_pong(&a, &b, MESSAGES);
        ping_pong(&b, &a, MESSAGES);
    }
    assert!(a.0.engine_counters().iter().all(|counters| counters.rx_unknown_qp == 0));
}

fn losses_between_devices_with_different_numbers_of_engines_are_repaired(link: LinkChoice) {
    for seed in 0..20 {
        let engines = [1, 2, 4][seed % 3];
        // A device with faults has one engine.
        let faults = format!("drop=0.05,seed={seed};drop direction=out share=0.05").parse().unwrap();
        let a = open_soft(SoftOptions { link: Some(link), faults: Some(faults), ..SoftOptions::default() });
        let b = open(link, engines);
        for _ in 0..engines {
            let (a, b) = Plan::rc().connect(&(a.clone(), b.1.clone()));
            ping_pong(&a, &b, 15);
            ping_pong(&b, &a, 15);
        }
        let each = b.0.engine_counters();
        assert!(each.iter().all(|counters| counters.rx_send_requests >= 15), "seed {seed}: {each:?}");
    }
}

/// Creates an end whose send and receive requests complete to different queues.
fn across(a: &Side, send_cq: &Cq, recv_cq: &Cq) -> Side {
    let capacities = Plan::rc().capacities();
    let kind = QpKind::Rc;
    let qp = a.pd.create_qp(QpOptions { kind, send_cq, recv_cq, srq: None, capacities, signal_all: false }).unwrap();
    Side { device: a.device.clone(), pd: a.pd.clone(), cq: recv_cq.clone(), qp }
}

fn polls_of_one_queue_drive_all_engines_that_complete_to_it(link: LinkChoice) {
    let (a, b) = (open(link, 2), open(link, 2));
    let plan = Plan::rc();
    let (first, second) = (plan.side(&b.1), plan.side(&b.1));
    // Its sends complete to the first queue, so it shares the engine of the first queue pair. Its receives complete to
    // the second queue, where those of the other engine complete too.
    let third = across(&second, &first.cq, &second.cq);
    assert_eq!(engine_of(&third), engine_of(&first));
    assert_ne!(engine_of(&second), engine_of(&first));
    let peers = [plan.side(&a.1), plan.side(&a.1)];
    plan.join(&peers[0], &second);
    plan.join(&peers[1], &third);
    let (memory, sources) = (second.memory(64), peers.each_ref().map(|peer| peer.memory(8)));
    for number in 0..MESSAGES {
        for ((peer, source), own) in peers.iter().zip(&sources).zip([&second, &third]) {
            own.post_recv(number, &[memory.sge(0, 64)]);
            peer.post(number, SendOperation::Send, &[source.sge(0, 8)]);
        }
        let both = second.reap(2);
        assert!(both.iter().all(|completion| completion.status == Status::Success && completion.wr_id == number));
        assert_ne!(both[0].qpn, both[1].qpn);
        for peer in &peers {
            peer.expect(number);
        }
    }
}

fn a_program_that_sleeps_is_notified_of_the_work_of_every_engine(link: LinkChoice) {
    let (a, b) = (open(link, 2), open(link, 2));
    let plan = Plan::rc();
    let channel = b.1.create_channel().unwrap();
    let cqs = [0, 1].map(|_| b.1.create_cq_on(64, &channel).unwrap());
    let pd = b.1.create_pd().unwrap();
    let sides = cqs.each_ref().map(|cq| plan.side_on(&pd, cq, None));
    assert_ne!(engine_of(&sides[0]), engine_of(&sides[1]));
    let peers = [0, 1].map(|_| plan.side(&a.1));
    for (peer, own) in peers.iter().zip(&sides) {
        plan.join(peer, own);
    }
    let (memory, sources) = (sides[0].memory(64), peers.each_ref().map(|peer| peer.memory(8)));
    for number in 0..50 {
        for ((peer, source), own) in peers.iter().zip(&sources).zip(&sides) {
            own.post_recv(number, &[memory.sge(0, 64)]);
            own.cq.arm(Notify::Next);
            peer.post(number, SendOperation::Send, &[source.sge(0, 8)]);
            assert!(channel.wait(Some(Duration::from_secs(60))).unwrap(), "no notification arrived");
            assert!(channel.next().is_some());
            own.expect(number);
            peer.expect(number);
        }
    }
}

fn engines_share_a_receive_queue_and_regions(link: LinkChoice) {
    let (a, b) = (open(link, 4), open(link, 4));
    let plan = Plan::rc();
    let pd = b.1.create_pd().unwrap();
    let srq = pd.create_srq(64, 1).unwrap();
    let memory = pd.allocate(4096, ALL_ACCESS, MemoryKind::Plain).unwrap();
    let ends: Vec<_> = (0..4)
        .map(|_| {
            let own = plan.side_on(&pd, &b.1.create_cq(64).unwrap(), Some(&srq));
            let peer = plan.side(&a.1);
            plan.join(&peer, &own);
            (peer, own)
        })
        .collect();
    thread::scope(|scope| {
        for (peer, own) in &ends {
            let (srq, place) = (&srq, memory.sge(0, 64));
            scope.spawn(move || {
                let mine = peer.patterned(64, 3);
                for number in 0..MESSAGES {
                    srq.post_recv(&[RecvRequest { wr_id: 9, sges: &[place] }]).unwrap();
                    peer.post(number, SendOperation::Send, &[mine.sge(0, 64)]);
                    let completion = own.reap(1)[0];
                    assert_eq!((completion.wr_id, completion.status), (9, Status::Success));
                    peer.expect(number);
                }
            });
        }
    });
    // After its region is gone, no engine reaches it.
    let (address, rkey) = (memory.address(), memory.rkey());
    drop(memory);
    for (peer, own) in &ends {
        let mine = peer.memory(8);
        peer.post(1, SendOperation::Write { remote_address: address, rkey }, &[mine.sge(0, 8)]);
        peer.expect_failure(1, Status::RemoteAccess);
        assert_eq!(own.state(), QpState::Error);
    }
}

fn a_second_device_cannot_take_the_address_of_a_device_with_several_engines(link: LinkChoice) {
    let (_, device) = open(link, 3);
    let address = Some(device.attributes().address);
    for engines in [1, 2] {
        let options = SoftOptions { address, link: Some(link), engines: Some(engines), ..SoftOptions::default() };
        let error = soft::open(&options).unwrap_err().to_string();
        assert!(error.contains("is taken by another socket"), "{error}");
    }
}

fn orders_to_the_port_concern_every_engine(link: LinkChoice) {
    let (a, b) = (open(link, 2), open(link, 2));
    let pairs: Vec<_> = (0..2).map(|_| Plan::rc().connect(&(a.1.clone(), b.1.clone()))).collect();
    b.1.order_port(PortOrder::Down).unwrap();
    assert_eq!(b.1.port_state().unwrap(), PortState::Down);
    let memories: Vec<_> = pairs.iter().map(|(a, b)| (a.memory(8), b.memory(8))).collect();
    for ((a, b), (mine, theirs)) in pairs.iter().zip(&memories) {
        b.post_recv(1, &[theirs.sge(0, 8)]);
        a.post(1, SendOperation::Send, &[mine.sge(0, 8)]);
    }
    thread::sleep(Duration::from_millis(5));
    b.1.order_port(PortOrder::Up).unwrap();
    for (a, b) in &pairs {
        b.expect(1);
        a.expect(1);
    }
    b.1.order_port(PortOrder::DeviceFatal).unwrap();
    assert!(pairs.iter().all(|(_, b)| b.state() == QpState::Error));
    let events = std::iter::from_fn(|| b.1.poll_event());
    let fatal = events.filter(|event| matches!(event, AsyncEvent::DeviceFatal)).count();
    assert_eq!(fatal, 1);
}

/// A sandbox does not let the process choose among the sockets of an address.
#[test]
fn a_kernel_that_refuses_several_sockets_leaves_one_engine() {
    let body = || {
        refuse_socket_option(libc::SO_ATTACH_REUSEPORT_CBPF);
        for link in [LinkChoice::Udp, LinkChoice::Shm] {
            let requested = SoftOptions { link: Some(link), engines: Some(2), ..SoftOptions::default() };
            let error = soft::open(&requested).unwrap_err().to_string();
            assert!(error.contains("distribute the datagrams of a UDP socket to several engines"), "{error}");
            assert_eq!(default_engines(link), [0]);
        }
    };
    in_own_process(|_| (), body);
}

#[test]
fn a_process_without_further_threads_uses_the_first_engine() {
    let body = || {
        for link in [LinkChoice::Udp, LinkChoice::Shm] {
            let (a, b) = (open(link, 3), open(link, 3));
            let connect = || Plan::rc().connect(&(a.1.clone(), b.1.clone()));
            let both = |(a, b): &(Side, Side)| [engine_of(a), engine_of(b)];
            let before = connect();
            let without_threads = || {
                refuse_threads();
                let pairs = [connect(), connect()];
                pairs.iter().for_each(|(a, b)| ping_pong(a, b, 3));
                pairs.each_ref().map(both)
            };
            let without = thread::scope(|scope| scope.spawn(without_threads).join().unwrap());
            assert_eq!((both(&before), without), ([0, 0], [[0, 0], [0, 0]]));
        }
    };
    in_own_process(|_| (), body);
}
