//! Helpers for tests of single work requests: a queue pair with its memory, and a thread that polls.
#![allow(dead_code, unreachable_pub)] // each test file uses only some of these helpers

use doorbell_exchange::asynchronous::Waiter;
use doorbell_sim::{Ps, Testbed, VirtualWaiter, testbed};
use doorbell_testing::ConnectionEnd;
use doorbell_verbs::{
    Access, AddressVector, Completion, Cq, Device, MemoryKind, PathMtu, Payload, Psn, QKey, Qp, QpCapacities, QpKind,
    QpOptions, Region, SendFlags, SendOperation, SendRequest, Status, UdDestination,
};

/// QKey of all datagrams in these tests.
const QKEY: QKey = QKey::new(7);

pub struct End {
    pub qp: Qp,
    pub cq: Cq,
    pub memory: Region,
    kind: QpKind,
}

/// Creates a queue pair that is not yet connected, with its completion queue and memory.
pub fn end(device: &Device, kind: QpKind) -> End {
    let pd = device.create_pd().expect("the device has room for a domain");
    let cq = device.create_cq(16).expect("the device has room for a queue");
    let capacities = QpCapacities { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline: 64 };
    let options = QpOptions { kind, send_cq: &cq, recv_cq: &cq, srq: None, capacities, signal_all: true };
    let qp = pd.create_qp(options).expect("the device has room for a queue pair");
    let memory = pd
        .allocate(8192, Access::LOCAL_WRITE | Access::REMOTE_READ, MemoryKind::Plain)
        .expect("memory can be allocated");
    End { qp, cq, memory, kind }
}

/// Connects an end to its peer. `timeout` is the exponent of the acknowledgement timeout.
pub fn connect(own: &End, peer: &End, timeout: u8) {
    let address = peer.qp.pd().device().attributes().address;
    let end = ConnectionEnd {
        access: Access::REMOTE_READ,
        qkey: QKEY,
        send_psn: Psn::new(1),
        receive_psn: Psn::new(1),
        timeout,
        retry_count: 3,
        ..ConnectionEnd::new(own.kind, (address, peer.qp.qpn()), PathMtu::Mtu1024)
    };
    end.steps().iter().for_each(|step| own.qp.modify(step).expect("a valid transition"));
}

/// Returns the destination of datagrams to an end.
pub fn destination(end: &End) -> UdDestination {
    UdDestination {
        address: AddressVector::to(end.qp.pd().device().attributes().address),
        qpn: end.qp.qpn(),
        qkey: QKEY,
    }
}

pub fn post(end: &End, operation: SendOperation, payload: Payload<'_>, destination: Option<UdDestination>) {
    let request = SendRequest { wr_id: 7, operation, payload, flags: SendFlags::SIGNALED, destination };
    end.qp.post_send(&[request]).expect("the queue has room");
}

/// Polls until a completion arrives. Returns the time at which the thread has taken the completion.
pub async fn completion(cq: Cq, waiter: VirtualWaiter) -> Ps {
    let mut out = [Completion::default(); 1];
    while cq.poll(&mut out).expect("no overrun") == 0 {
        waiter.wait(None, None).await;
    }
    assert_eq!(out[0].status, Status::Success);
    waiter.now()
}

pub fn t1() -> Testbed {
    testbed::by_name("connectx5-100g").expect("a built-in testbed").clone()
}
