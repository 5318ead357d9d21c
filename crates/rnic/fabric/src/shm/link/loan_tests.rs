//! Tests of messages whose payloads are copied from the region to the ring.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use doorbell_rnic::{CompletionQueue, Config, Rnic, TransmitInfo};
use doorbell_verbs_core::{
    Access, AddressVector, Completion, Payload, QpAttributes, QpCapacities, QpInit, QpKind, QpState, RecvRequest,
    SendFlags, SendOperation, SendRequest, Sge, Status,
};
use doorbell_wire::{ICRC_LEN, PathMtu, Psn, Qpn, RKey};

use super::super::meet::News;
use super::tests::{PORT, Plain, acquainted, eventually, link, now_ns, send};
use super::*;
use crate::driver::{Acks, Driver};
use crate::link::ReceivedRun;
use crate::testing::{info, packet, path};
use crate::{Counted, FaultPlan, Faults, Pcap};

const BYTES: usize = 1 << 18;

/// A device with one queue pair and one region.
struct Side {
    driver: Driver<SharedMemoryLink>,
    qpn: Qpn,
    queue: Arc<CompletionQueue>,
    memory: *mut [u8],
    lkey: doorbell_verbs_core::LKey,
    rkey: RKey,
}

impl Side {
    fn new() -> Self {
        let link = link();
        let address = link.udp.local_address();
        let config = Config { address, active_mtu: PathMtu::Mtu4096, receive_buffer_bytes: 8 << 20, seed: [7; 32] };
        let mut rnic = Rnic::new(config, None);
        let pd = rnic.create_pd();
        // The tests leak the memory, so that it outlives the region.
        let memory: *mut [u8] = Box::leak(vec![0; BYTES].into_boxed_slice());
        let base = memory.cast::<u8>();
        // SAFETY: the memory is never freed, and the test accesses it only by raw copies.
        let region = unsafe { rnic.register(pd, base, BYTES, base as u64, Access::all(), None) }.unwrap();
        let (lkey, rkey) = (region.lkey(), region.rkey());
        let (cq, queue) = rnic.create_cq(8, None).unwrap();
        let capacities =
            QpCapacities { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 2, max_recv_sge: 1, max_inline: 16 };
        let init = QpInit { kind: QpKind::Rc, pd, send_cq: cq, recv_cq: cq, srq: None, capacities, signal_all: true };
        let qpn = rnic.create_qp(init).unwrap();
        Self { driver: Driver::new(rnic, link, PORT), qpn, queue, memory, lkey, rkey }
    }

    fn connect(&mut self, peer: &Self) {
        let steps = [
            QpAttributes {
                state: Some(QpState::Init),
                pkey_index: Some(0),
                port: Some(1),
                access: Some(Access::all()),
                ..QpAttributes::default()
            },
            QpAttributes {
                state: Some(QpState::ReadyToReceive),
                address: Some(AddressVector::to(peer.driver.link().udp.local_address())),
                path_mtu: Some(PathMtu::Mtu4096),
                dest_qpn: Some(peer.qpn),
                receive_psn: Some(Psn::new(0)),
                max_dest_rd_atomic: Some(4),
                min_rnr_timer: Some(12),
                ..QpAttributes::default()
            },
            QpAttributes {
                state: Some(QpState::ReadyToSend),
                send_psn: Some(Psn::new(0)),
                timeout: Some(18),
                retry_count: Some(7),
                rnr_retry: Some(7),
                max_rd_atomic: Some(4),
                ..QpAttributes::default()
            },
        ];
        for step in steps {
            self.driver.rnic_mut().modify_qp(self.qpn, &step).unwrap();
        }
    }

    fn address(&self) -> u64 {
        self.memory.cast::<u8>() as u64
    }

    fn sge(&self, from: usize, length: usize) -> Sge {
        Sge { address: self.address() + from as u64, length: length as u32, lkey: self.lkey }
    }

    fn fill(&self, byte: impl Fn(usize) -> u8) {
        let bytes: Vec<u8> = (0..BYTES).map(byte).collect();
        // SAFETY: the memory has `BYTES` bytes, and no other thread uses it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.memory.cast(), BYTES) };
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; BYTES];
        // SAFETY: as in `fill`.
        unsafe { std::ptr::copy_nonoverlapping(self.memory.cast(), bytes.as_mut_ptr(), BYTES) };
        bytes
    }

    fn pump(&mut self) {
        self.driver.pump(now_ns(), Acks::Now).unwrap();
    }

    /// Posts a request for one message of two elements.
    fn post(&mut self, operation: SendOperation, length: usize) {
        let first = length / 3;
        let sges = [self.sge(0, first), self.sge(first, length - first)];
        let request = SendRequest {
            wr_id: 1,
            operation,
            flags: SendFlags::empty(),
            payload: Payload::Sges(&sges),
            destination: None,
        };
        let qpn = self.qpn;
        self.driver.rnic_mut().post_send(now_ns(), qpn, &[request]).unwrap();
    }
}

fn pair() -> [Side; 2] {
    let [mut a, mut b] = [Side::new(), Side::new()];
    a.connect(&b);
    b.connect(&a);
    [a, b]
}

fn until_done(a: &mut Side, b: &mut Side) {
    let mut found = [Completion::default()];
    eventually("the request completes", || {
        a.pump();
        b.pump();
        a.queue.poll(&mut found).unwrap() > 0
    });
    assert_eq!(found[0].status, Status::Success);
}

#[test]
fn messages_of_all_lengths_arrive_through_lent_memory() {
    let [mut a, mut b] = pair();
    let pattern = |number: usize| move |at: usize| (at * 31 + at / 256 + number * 7) as u8;
    // Lengths with padding, and lengths on both sides of the shortest payload that is lent.
    let lengths = [1, 1023, 1024, 1025, 4096, 5001, 65_539, 200_001, BYTES];
    for (number, length) in lengths.into_iter().cycle().take(3 * lengths.len()).enumerate() {
        let (remote_address, rkey) = (b.address(), b.rkey);
        let kind = number / lengths.len();
        let operation = match kind {
            0 => SendOperation::Send,
            1 => SendOperation::Write { remote_address, rkey },
            _ => SendOperation::Read { remote_address, rkey },
        };
        let is_read = kind == 2;
        let (from, to) = if is_read { (&b, &a) } else { (&a, &b) };
        from.fill(pattern(number));
        to.fill(|_| 0xee);
        if kind == 0 {
            let (sge, qpn) = (b.sge(0, BYTES), b.qpn);
            b.driver.rnic_mut().post_recv(qpn, &[RecvRequest { wr_id: 2, sges: &[sge] }]).unwrap();
        }
        a.post(operation, length);
        until_done(&mut a, &mut b);
        let to = if is_read { &a } else { &b };
        let expected: Vec<u8> = (0..BYTES).map(|at| if at < length { pattern(number)(at) } else { 0xee }).collect();
        assert!(to.bytes() == expected, "{operation:?} of {length} B");
        let _ = b.queue.poll(&mut [Completion::default()]);
    }
    for side in [&a, &b] {
        assert!(side.driver.link().loans.runs > 0, "no payload was copied straight to the ring");
        assert_eq!(side.driver.link().counters().without, 0);
    }
}

#[test]
fn a_failed_copy_retracts_its_packet_from_the_loan() {
    let [mut a, mut b] = pair();
    let (remote_address, rkey) = (b.address(), b.rkey);
    let write = SendOperation::Write { remote_address, rkey };
    a.fill(|at| at as u8);
    for _ in 0..2 {
        a.post(write, 65_536);
        until_done(&mut a, &mut b);
    }
    // The second request names memory beyond the region, which the device notices when it copies the third packet.
    let qpn = a.qpn;
    a.driver.rnic_mut().check_elements_late();
    let sges = [a.sge(0, 10_000), a.sge(BYTES - 10, 20_000)];
    let payload = Payload::Sges(&sges);
    let request = SendRequest { wr_id: 3, operation: write, flags: SendFlags::empty(), payload, destination: None };
    a.driver.rnic_mut().post_send(now_ns(), qpn, &[request]).unwrap();
    let mut found = [Completion::default()];
    eventually("the request fails", || {
        a.pump();
        b.pump();
        a.queue.poll(&mut found).unwrap() > 0
    });
    assert_eq!((found[0].wr_id, found[0].status), (3, Status::LocalProtection));
    assert_eq!(b.driver.rnic().counters().rx_malformed, 0);
    assert_eq!(a.driver.link().counters().without, 0);
}

/// Returns a batch with one packet to `destination`, whose payload lies in memory that the link lends.
fn lent_batch(link: &mut SharedMemoryLink, destination: IpAddr) -> TransmitBatch {
    let mut batch = TransmitBatch::new(1 << 16, ICRC_LEN);
    batch.lend(link.lend().expect("the last packets to the peer were long"));
    batch.push(&path(destination), 4108, TransmitInfo { payload_bytes: 4096, ..info() }).fill(0);
    batch.end_loan();
    assert!(batch.runs()[0].is_lent);
    batch
}

#[test]
fn a_lent_run_is_lost_if_its_place_in_the_ring_is_taken_or_its_device_departs() {
    let (mut a, mut b) = acquainted();
    send(&mut a, &mut b, &[4108]);
    let to = b.udp.local_address();
    let mut seen = Plain::default();
    eventually("the long packet arrives", || {
        b.receive(now_ns(), &mut seen).unwrap();
        seen.0.len() == 1
    });
    // Another record takes the place that was lent.
    let batch = lent_batch(&mut a, to);
    send(&mut a, &mut b, &[32]);
    let mut next = 0;
    a.transmit(now_ns(), &batch, &mut next).unwrap();
    assert_eq!((next, a.counters().without), (1, 1));
    eventually("the other record arrives", || {
        b.receive(now_ns(), &mut seen).unwrap();
        seen.0.len() == 2
    });
    assert_eq!(seen.0[1], packet(0, 32));
    assert_eq!(b.receive(now_ns(), &mut seen).unwrap(), 0);
    // The payload lies in the ring alone, so the run cannot go over UDP.
    send(&mut a, &mut b, &[4108]);
    let batch = lent_batch(&mut a, to);
    let id = a.peers.iter().flatten().find(|peer| peer.end.address == to).unwrap().id;
    let over_udp = a.link_counters().tx_udp_packets;
    drop(b);
    a.learn(now_ns(), vec![News::Gone { id }]);
    next = 0;
    eventually("the run is lost", || {
        a.receive(now_ns(), &mut |_: ReceivedRun<'_>| panic!("no device sends to this one")).unwrap();
        a.transmit(now_ns(), &batch, &mut next).unwrap();
        next == 1
    });
    assert_eq!((a.counters().without, a.link_counters().tx_udp_packets), (2, over_udp));
}

#[test]
fn a_ring_with_waiting_runs_is_not_lent() {
    let (mut a, mut b) = acquainted();
    let lengths = [4108; 15];
    let (mut seen, mut sent) = (Plain::default(), 0);
    while a.counters().held == 0 {
        send(&mut a, &mut b, &lengths);
        sent += lengths.len() as u64;
    }
    assert!(a.lend().is_none(), "runs wait for room");
    eventually("all packets arrive, or were dropped since this thread was slow", || {
        b.receive(now_ns(), &mut seen).unwrap();
        a.receive(now_ns(), &mut |_: ReceivedRun<'_>| {}).unwrap();
        seen.0.len() as u64 + a.counters().full == sent
    });
    send(&mut a, &mut b, &lengths);
    assert!(a.lend().is_some(), "the ring has room");
}

#[test]
fn links_that_need_all_bytes_of_packets_are_lent_nothing() {
    let (mut a, mut b) = acquainted();
    send(&mut a, &mut b, &[4108]);
    let local = a.udp.local_address();
    let mut link: Box<dyn Link> = Box::new(a);
    assert!(link.lend().is_some());
    let mut counted = Counted::new(link);
    assert!(counted.lend().is_none());
    let mut faulty = Faults::new(counted, FaultPlan::default());
    assert!(faulty.lend().is_none());
    let mut captured = Pcap::new(faulty, local, PORT, io::sink(), Duration::from_nanos).unwrap();
    assert!(captured.lend().is_none());
}
