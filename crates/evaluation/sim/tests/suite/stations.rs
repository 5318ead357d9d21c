//! The time of one message is the sum of the times of its stations, to the picosecond.

use crate::common::{completion, connect, destination, end, post, t1};
use doorbell_sim::{Ps, Simulation, Testbed, Topology};
use doorbell_verbs::{Payload, QpKind, RecvRequest, SendOperation};

/// Exponent of an acknowledgement timeout that does not expire in these tests.
const TIMEOUT: u8 = 14;

/// Returns the time at which a thread has taken a completion that is in the queue from `at` on. The thread begins to
/// poll at time 0, and each poll takes `period`.
fn seen(testbed: &Testbed, at: Ps, inline: bool) -> Ps {
    let cpu = &testbed.cpu;
    let period = cpu.poll_call;
    let look = period.times(at.0.div_ceil(period.0));
    look + cpu.poll_call + cpu.poll_completion + if inline { cpu.inline_receive } else { Ps::ZERO }
}

/// Returns the time for which the bus carries `bytes` as one packet with a header of this size.
fn bus(testbed: &Testbed, bytes: u64, header: u64) -> Ps {
    testbed.pcie.rate.time_of(bytes + header)
}

/// Bytes on the line of a SEND of 16 B: preamble 8, Ethernet 14, IPv4 20, UDP 8, BTH 12, payload, ICRC 4, FCS 4, gap
/// 12.
const LINE_BYTES: u64 = 82 + 16;

/// Returns the time from the arrival of a doorbell at the NIC to the arrival of the packet's last bit at the other
/// node. The doorbell contains the work request.
fn flight(t: &Testbed, line_bytes: u64) -> Ps {
    t.nic.transmit + t.link.rate.time_of(line_bytes) + t.link.propagation
}

#[test]
fn an_inline_send_of_16_bytes_takes_the_sum_of_its_stations() {
    let t = t1();
    let mut simulation = Simulation::new(&t, Topology::Pair, 1).expect("a simulation");
    let (a, b) = (end(simulation.device(0), QpKind::Rc), end(simulation.device(1), QpKind::Rc));
    connect(&a, &b, TIMEOUT);
    connect(&b, &a, TIMEOUT);
    let sges = [b.memory.sge(0, 64)];
    b.qp.post_recv(&[RecvRequest { wr_id: 1, sges: &sges }]).expect("the receive queue has room");
    let waiter = simulation.polling();
    let (own, receiving) = (waiter.clone(), b.cq.clone());
    let posted = simulation.spawn(0, "sender", async move {
        post(&a, SendOperation::Send, Payload::Inline(&[5; 16]), None);
        let posted = own.now();
        (posted, completion(a.cq.clone(), own).await)
    });
    let received = simulation.spawn(1, "receiver", completion(receiving, waiter));
    simulation.run().expect("the simulation ends");

    let (post_ends, _) = posted.take().expect("the thread has ended");
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
fn a_send_from_memory_adds_a_fetch_and_a_write_of_its_payload() {
    let t = t1().with("nic.inline_receive", "0 B").expect("an allowed value");
    let mut simulation = Simulation::new(&t, Topology::Pair, 1).expect("a simulation");
    let (a, b) = (end(simulation.device(0), QpKind::Rc), end(simulation.device(1), QpKind::Rc));
    connect(&a, &b, TIMEOUT);
    connect(&b, &a, TIMEOUT);
    let sges = [b.memory.sge(0, 64)];
    b.qp.post_recv(&[RecvRequest { wr_id: 1, sges: &sges }]).expect("the receive queue has room");
    let waiter = simulation.polling();
    let (own, receiving) = (waiter.clone(), b.cq.clone());
    let posted = simulation.spawn(0, "sender", async move {
        let sges = [a.memory.sge(0, 16)];
        post(&a, SendOperation::Send, Payload::Sges(&sges), None);
        let posted = own.now();
        (posted, completion(a.cq.clone(), own).await)
    });
    let received = simulation.spawn(1, "receiver", completion(receiving, waiter));
    simulation.run().expect("the simulation ends");

    let (post_ends, _) = posted.take().expect("the thread has ended");
    let read = |bytes| t.pcie.read + bus(&t, bytes, t.pcie.completion_header);
    let fetched = if t.nic.request <= t.nic.stored_request { Ps::ZERO } else { read(t.nic.request) };
    let arrived = post_ends + t.pcie.doorbell + fetched + read(16) + flight(&t, LINE_BYTES);
    let payload = bus(&t, 16, t.pcie.write_header);
    let completion = bus(&t, t.nic.completion, t.pcie.write_header);
    let at = arrived + t.nic.receive + payload + completion + t.pcie.write;
    assert_eq!(received.take(), Some(seen(&t, at, false)));
}

#[test]
fn a_read_takes_the_sum_of_its_stations_and_no_target_cpu() {
    let t = t1();
    let mut simulation = Simulation::new(&t, Topology::Pair, 1).expect("a simulation");
    let (a, b) = (end(simulation.device(0), QpKind::Rc), end(simulation.device(1), QpKind::Rc));
    connect(&a, &b, TIMEOUT);
    connect(&b, &a, TIMEOUT);
    b.memory.copy_in(0, b"sixteen bytes ..");
    let (remote_address, rkey) = (b.memory.address(), b.memory.rkey());
    let waiter = simulation.polling();
    let done = simulation.spawn(0, "reader", async move {
        let sges = [a.memory.sge(0, 16)];
        post(&a, SendOperation::Read { remote_address, rkey }, Payload::Sges(&sges), None);
        let posted = waiter.now();
        let done = completion(a.cq.clone(), waiter).await;
        let mut bytes = [0; 16];
        a.memory.copy_out(0, &mut bytes);
        assert_eq!(&bytes, b"sixteen bytes ..");
        (posted, done)
    });
    let summary = simulation.run().expect("the simulation ends");
    assert_eq!(summary.threads.len(), 1);

    let (posted, done) = done.take().expect("the thread has ended");
    let read = |bytes| t.pcie.read + bus(&t, bytes, t.pcie.completion_header);
    let fetched = if t.nic.request <= t.nic.stored_request { Ps::ZERO } else { read(t.nic.request) };
    // The request has BTH and RETH. The response has BTH, AETH and payload.
    let asked = posted + t.pcie.doorbell + fetched + flight(&t, 82 + 16) + t.nic.receive;
    let answered = asked + t.nic.read + read(16) + t.link.rate.time_of(82 + 4 + 16) + t.link.propagation;
    let payload = bus(&t, 16, t.pcie.write_header);
    let at = answered + t.nic.receive + payload + bus(&t, t.nic.completion, t.pcie.write_header) + t.pcie.write;
    // The thread first polls after the post.
    let period = t.cpu.poll_call;
    let look = posted + period.times((at - posted).0.div_ceil(period.0));
    assert_eq!(done, look + t.cpu.poll_call + t.cpu.poll_completion);
}

#[test]
fn a_datagram_adds_a_grh_and_completes_on_departure() {
    let t = t1();
    let mut simulation = Simulation::new(&t, Topology::Pair, 1).expect("a simulation");
    let (a, b) = (end(simulation.device(0), QpKind::Ud), end(simulation.device(1), QpKind::Ud));
    connect(&a, &b, TIMEOUT);
    connect(&b, &a, TIMEOUT);
    let sges = [b.memory.sge(0, 64)];
    b.qp.post_recv(&[RecvRequest { wr_id: 1, sges: &sges }]).expect("the receive queue has room");
    let waiter = simulation.polling();
    let (own, receiving, to) = (waiter.clone(), b.cq.clone(), destination(&b));
    let posted = simulation.spawn(0, "sender", async move {
        post(&a, SendOperation::Send, Payload::Inline(&[5; 16]), Some(to));
        let posted = own.now();
        (posted, completion(a.cq.clone(), own).await)
    });
    let received = simulation.spawn(1, "receiver", completion(receiving, waiter));
    let summary = simulation.run().expect("the simulation ends");
    assert_eq!(summary.counts.packets, 1, "datagrams are not acknowledged");

    let (posted, completed) = posted.take().expect("the thread has ended");
    // The destination of the datagram takes a separate block of the work request.
    let request = 2 * t.nic.request + 16;
    let fetched = match request <= t.nic.stored_request {
        true => Ps::ZERO,
        false => t.pcie.read + bus(&t, request, t.pcie.completion_header),
    };
    // DETH is 8 B.
    let left = posted + t.pcie.doorbell + fetched + t.nic.transmit + t.link.rate.time_of(LINE_BYTES + 8);
    let completion = bus(&t, t.nic.completion, t.pcie.write_header) + t.pcie.write;
    // The thread first polls after the post.
    let period = t.cpu.poll_call;
    let look = posted + period.times((left + completion - posted).0.div_ceil(period.0));
    assert_eq!(completed, look + t.cpu.poll_call + t.cpu.poll_completion);
    // The GRH has 40 B, and the payload is not in the completion.
    let payload = bus(&t, 40 + 16, t.pcie.write_header);
    let at = left + t.link.propagation + t.nic.receive + payload + completion;
    assert_eq!(received.take(), Some(seen(&t, at, false)));
    let mut arrived = [0; 64];
    b.memory.copy_out(0, &mut arrived);
    assert_eq!(
        (arrived[20], &arrived[40..]),
        (0x45, &[[5; 16], [0; 16]].concat()[..24]),
        "an IPv4 header, the payload"
    );
}
