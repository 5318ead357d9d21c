//! What one message takes is the sum of what each station takes, to the picosecond.

use doorbell_exchange::asynchronous::Waiter;
use doorbell_sim::{Ps, Simulation, Testbed, Topology, VirtualWaiter, testbed};
use doorbell_verbs::{
    Access, AddressVector, Completion, Cq, Device, MemoryKind, PathMtu, Payload, Psn, Qp, QpAttributes, QpCapacities,
    QpKind, QpOptions, QpState, RecvRequest, Region, SendFlags, SendOperation, SendRequest, Status,
};

struct End {
    qp: Qp,
    cq: Cq,
    memory: Region,
}

fn end(device: &Device) -> End {
    let pd = device.create_pd().expect("room for a domain");
    let cq = device.create_cq(16).expect("room for a queue");
    let capacities = QpCapacities { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline: 64 };
    let options = QpOptions { kind: QpKind::Rc, send_cq: &cq, recv_cq: &cq, srq: None, capacities, signal_all: true };
    let qp = pd.create_qp(options).expect("room for a queue pair");
    let memory = pd.allocate(8192, Access::LOCAL_WRITE | Access::REMOTE_READ, MemoryKind::Plain).expect("memory");
    End { qp, cq, memory }
}

fn connect(own: &End, peer: &End) {
    let steps = [
        QpAttributes {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: Some(Access::REMOTE_READ),
            ..QpAttributes::default()
        },
        QpAttributes {
            state: Some(QpState::ReadyToReceive),
            address: Some(AddressVector::to(peer.qp.pd().device().attributes().address)),
            path_mtu: Some(PathMtu::Mtu1024),
            dest_qpn: Some(peer.qp.qpn()),
            receive_psn: Some(Psn::new(1)),
            max_dest_rd_atomic: Some(4),
            min_rnr_timer: Some(1),
            ..QpAttributes::default()
        },
        QpAttributes {
            state: Some(QpState::ReadyToSend),
            send_psn: Some(Psn::new(1)),
            timeout: Some(14),
            retry_count: Some(3),
            rnr_retry: Some(7),
            max_rd_atomic: Some(4),
            ..QpAttributes::default()
        },
    ];
    steps.iter().for_each(|step| own.qp.modify(step).expect("a valid transition"));
}

fn post(end: &End, operation: SendOperation, payload: Payload<'_>) {
    let request = SendRequest { wr_id: 7, operation, payload, flags: SendFlags::SIGNALED, destination: None };
    end.qp.post_send(&[request]).expect("the queue has room");
}

/// Polls until a completion is there: when the poll that found it had it.
async fn completion(cq: Cq, waiter: VirtualWaiter) -> Ps {
    let mut out = [Completion::default(); 1];
    while cq.poll(&mut out).expect("no overrun") == 0 {
        waiter.wait(None, None).await;
    }
    assert_eq!(out[0].status, Status::Success);
    waiter.now()
}

fn t1() -> Testbed {
    testbed::by_name("connectx5-100g").expect("a testbed of the program").clone()
}

/// When a thread that looks every `period` from 0 on sees what is there `at` some time, and has taken it.
fn seen(testbed: &Testbed, at: Ps, inline: bool) -> Ps {
    let cpu = &testbed.cpu;
    let period = cpu.poll_call;
    let look = period.times(at.0.div_ceil(period.0));
    look + cpu.poll_call + cpu.poll_completion + if inline { cpu.inline_receive } else { Ps::ZERO }
}

/// The bus carries `bytes` as one packet with such a header.
fn bus(testbed: &Testbed, bytes: u64, header: u64) -> Ps {
    testbed.pcie.rate.time_of(bytes + header)
}

/// The line of 16 B in a SEND: preamble 8, Ethernet 14, IPv4 20, UDP 8, BTH 12, payload, ICRC 4, FCS 4, gap 12.
const LINE_BYTES: u64 = 82 + 16;

/// From the doorbell's end to the last bit on the other side, for a work request that came with its doorbell.
fn flight(t: &Testbed, line_bytes: u64) -> Ps {
    t.nic.transmit + t.link.rate.time_of(line_bytes) + t.link.propagation
}

#[test]
fn an_inline_send_of_16_bytes_takes_the_sum_of_its_stations() {
    let t = t1();
    let mut simulation = Simulation::new(&t, Topology::Pair, 1).expect("a simulation");
    let (a, b) = (end(simulation.device(0)), end(simulation.device(1)));
    connect(&a, &b);
    connect(&b, &a);
    let sges = [b.memory.sge(0, 64)];
    b.qp.post_recv(&[RecvRequest { wr_id: 1, sges: &sges }]).expect("room for a receive");
    let waiter = simulation.polling();
    let (own, receiving) = (waiter.clone(), b.cq.clone());
    let posted = simulation.spawn(0, "sender", async move {
        post(&a, SendOperation::Send, Payload::Inline(&[5; 16]));
        let posted = own.now();
        (posted, completion(a.cq.clone(), own).await)
    });
    let received = simulation.spawn(1, "receiver", completion(receiving, waiter));
    simulation.run().expect("it ends");

    let (post_ends, _) = posted.take().expect("it has ended");
    assert_eq!(post_ends, t.cpu.post_list + t.cpu.post_wr + t.cpu.inline_per_byte.time_of(16));
    let request = t.nic.request + 16;
    let fetched = match request <= t.nic.stored_request {
        true => Ps::ZERO,
        false => t.pcie.read + bus(&t, request, t.pcie.completion_header),
    };
    let arrived = post_ends + t.pcie.doorbell + fetched + flight(&t, LINE_BYTES);
    let handled = arrived + t.nic.receive;
    let written = if t.nic.inline_receive >= 16 { 0 } else { 16 };
    let payload = if written > 0 { bus(&t, written, t.pcie.write_header) } else { Ps::ZERO };
    let at = handled + payload + bus(&t, t.nic.completion, t.pcie.write_header) + t.pcie.write;
    assert_eq!(received.take(), Some(seen(&t, at, written == 0)));
}

#[test]
fn a_send_from_memory_adds_the_fetch_of_its_payload_and_a_write_of_it() {
    let t = t1().with("nic.inline_receive", "0 B").expect("an allowed value");
    let mut simulation = Simulation::new(&t, Topology::Pair, 1).expect("a simulation");
    let (a, b) = (end(simulation.device(0)), end(simulation.device(1)));
    connect(&a, &b);
    connect(&b, &a);
    let sges = [b.memory.sge(0, 64)];
    b.qp.post_recv(&[RecvRequest { wr_id: 1, sges: &sges }]).expect("room for a receive");
    let waiter = simulation.polling();
    let (own, receiving) = (waiter.clone(), b.cq.clone());
    let posted = simulation.spawn(0, "sender", async move {
        let sges = [a.memory.sge(0, 16)];
        post(&a, SendOperation::Send, Payload::Sges(&sges));
        let posted = own.now();
        (posted, completion(a.cq.clone(), own).await)
    });
    let received = simulation.spawn(1, "receiver", completion(receiving, waiter));
    simulation.run().expect("it ends");

    let (post_ends, _) = posted.take().expect("it has ended");
    let read = |bytes| t.pcie.read + bus(&t, bytes, t.pcie.completion_header);
    let fetched = if t.nic.request <= t.nic.stored_request { Ps::ZERO } else { read(t.nic.request) };
    let arrived = post_ends + t.pcie.doorbell + fetched + read(16) + flight(&t, LINE_BYTES);
    let payload = bus(&t, 16, t.pcie.write_header);
    let completion = bus(&t, t.nic.completion, t.pcie.write_header);
    let at = arrived + t.nic.receive + payload + completion + t.pcie.write;
    assert_eq!(received.take(), Some(seen(&t, at, false)));
}

#[test]
fn a_read_of_16_bytes_takes_the_sum_of_its_stations_and_no_cpu_at_the_target() {
    let t = t1();
    let mut simulation = Simulation::new(&t, Topology::Pair, 1).expect("a simulation");
    let (a, b) = (end(simulation.device(0)), end(simulation.device(1)));
    connect(&a, &b);
    connect(&b, &a);
    b.memory.copy_in(0, b"sixteen bytes ..");
    let (remote_address, rkey) = (b.memory.address(), b.memory.rkey());
    let waiter = simulation.polling();
    let done = simulation.spawn(0, "reader", async move {
        let sges = [a.memory.sge(0, 16)];
        post(&a, SendOperation::Read { remote_address, rkey }, Payload::Sges(&sges));
        let posted = waiter.now();
        let done = completion(a.cq.clone(), waiter).await;
        let mut bytes = [0; 16];
        a.memory.copy_out(0, &mut bytes);
        assert_eq!(&bytes, b"sixteen bytes ..");
        (posted, done)
    });
    let summary = simulation.run().expect("it ends");
    assert_eq!(summary.threads.len(), 1);

    let (posted, done) = done.take().expect("it has ended");
    let read = |bytes| t.pcie.read + bus(&t, bytes, t.pcie.completion_header);
    let fetched = if t.nic.request <= t.nic.stored_request { Ps::ZERO } else { read(t.nic.request) };
    // BTH and RETH; back BTH, AETH and payload.
    let asked = posted + t.pcie.doorbell + fetched + flight(&t, 82 + 16) + t.nic.receive;
    let answered = asked + t.nic.read + read(16) + t.link.rate.time_of(82 + 4 + 16) + t.link.propagation;
    let payload = bus(&t, 16, t.pcie.write_header);
    let at = answered + t.nic.receive + payload + bus(&t, t.nic.completion, t.pcie.write_header) + t.pcie.write;
    // Its first look is after the post.
    let period = t.cpu.poll_call;
    let look = posted + period.times((at - posted).0.div_ceil(period.0));
    assert_eq!(done, look + t.cpu.poll_call + t.cpu.poll_completion);
}
