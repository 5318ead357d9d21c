//! Senders without windows, which slow down to the rate at which their peer reads.

use std::sync::Arc;

use doorbell_rnic::{CompletionQueue, Config, HEADERS_BYTES_MAX, Rnic};
use doorbell_testing::ConnectionEnd;
use doorbell_verbs_core::{
    AddressVector, Completion, CqId, LKey, Payload, PdId, PostErrorKind, QpCapacities, QpInit, QpKind, SendFlags,
    SendOperation, SendRequest, Sge, Status, UdDestination,
};
use doorbell_wire::{PathMtu, QKey, Qpn};

use super::tests::{PORT, Plain, acquainted, eventually, link, now_ns, send};
use super::*;
use crate::driver::{Acks, BATCH_BYTES, Driver};
use crate::link::{ReceivedRun, SharedRun};
use crate::shm::held::STOPPED_NS;
use crate::shm::sys::RING_BYTES;

/// Depth of each send queue.
const DEPTH: usize = 64;

/// Payload of the longest packet.
const PACKET_BYTES: usize = 4096;

/// A device that sends zeros.
struct Sender {
    driver: Driver<SharedMemoryLink>,
    pd: PdId,
    cq: CqId,
    queue: Arc<CompletionQueue>,
    lkey: LKey,
}

impl Sender {
    fn new(link: SharedMemoryLink) -> Self {
        let address = link.udp.local_address();
        let config = Config { address, active_mtu: PathMtu::Mtu4096, receive_buffer_bytes: 1 << 20, seed: [7; 32] };
        let mut rnic = Rnic::new(config, None);
        let pd = rnic.create_pd();
        let lkey = rnic.register_null(pd).unwrap().lkey();
        let (cq, queue) = rnic.create_cq(4 * DEPTH, None).unwrap();
        Self { driver: Driver::new(rnic, link, PORT), pd, cq, queue, lkey }
    }

    fn add_qp(&mut self, kind: QpKind, to: IpAddr) -> Qpn {
        let (pd, send_cq, recv_cq) = (self.pd, self.cq, self.cq);
        let capacities =
            QpCapacities { max_send_wr: DEPTH, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        let init = QpInit { kind, pd, send_cq, recv_cq, srq: None, capacities, signal_all: true };
        let rnic = self.driver.rnic_mut();
        let qpn = rnic.create_qp(init).unwrap();
        for step in ConnectionEnd::new(kind, (to, Qpn::new(2)), PathMtu::Mtu4096).steps() {
            rnic.modify_qp(qpn, &step).unwrap();
        }
        qpn
    }

    /// Posts a message. Returns false if the send queue is full.
    fn post(&mut self, qpn: Qpn, length: usize, to: IpAddr) -> bool {
        let sges = [Sge { address: 0, length: length as u32, lkey: self.lkey }];
        let rnic = self.driver.rnic_mut();
        let is_ud = rnic.query_qp(qpn).unwrap().kind == QpKind::Ud;
        let address = AddressVector::to(to);
        let request = SendRequest {
            wr_id: 1,
            operation: SendOperation::Send,
            flags: SendFlags::empty(),
            payload: Payload::Sges(&sges),
            destination: is_ud.then(|| UdDestination { address, qpn: Qpn::new(2), qkey: QKey::new(0) }),
        };
        match rnic.post_send(0, qpn, &[request]) {
            Ok(()) => true,
            Err(error) if matches!(error.kind, PostErrorKind::QueueFull { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// Drives the device. Returns the number of new completions.
    fn pump(&mut self, now_ns: u64) -> usize {
        self.driver.pump(now_ns, Acks::Now).unwrap();
        let mut out = [Completion::default(); 4 * DEPTH];
        let count = self.queue.poll(&mut out).unwrap();
        assert!(out[..count].iter().all(|completion| completion.status == Status::Success));
        count
    }

    fn counters(&self) -> SharedMemoryCounters {
        self.driver.link().counters()
    }
}

/// Sink that notes the sequence numbers of packets from rings.
#[derive(Default)]
struct Psns(Vec<u32>);

impl Sink for Psns {
    fn receive(&mut self, run: ReceivedRun<'_>) {
        panic!("{} bytes came over UDP", run.bytes.len());
    }

    fn receive_shared(&mut self, run: &SharedRun<'_>) -> bool {
        let headers = run.headers.chunks(run.segment_bytes.min(HEADERS_BYTES_MAX));
        self.0.extend(headers.map(|header| u32::from_be_bytes([0, header[9], header[10], header[11]])));
        true
    }
}

/// Sends 64 MiB to a reader that empties a small part of its ring at a time.
fn outrun_a_reader(kind: QpKind, message_bytes: usize) {
    const BYTES: usize = 64 << 20;
    let (a, mut b) = acquainted();
    let to = b.udp.local_address();
    let mut sender = Sender::new(a);
    let qpn = sender.add_qp(kind, to);
    let messages = BYTES / message_bytes;
    let (mut posted, mut done) = (0, 0);
    let mut seen = Psns::default();
    let mut now = now_ns();
    eventually("all packets arrive", || {
        while posted < messages && sender.post(qpn, message_bytes, to) {
            posted += 1;
        }
        done += sender.pump(now);
        b.receive(now_ns(), &mut seen).unwrap();
        now += STOPPED_NS / 10;
        seen.0.len() == BYTES / PACKET_BYTES
    });
    done += sender.pump(now);
    assert_eq!((posted, done), (messages, messages));
    assert!(seen.0.iter().copied().eq(0..(BYTES / PACKET_BYTES) as u32), "packets are not in order");
    let counted = sender.counters();
    assert!(counted.full == 0 && counted.held > 0, "{counted:?}");
    assert!(!sender.driver.link().holds_packets() && !sender.driver.rnic().has_full_destinations());
}

#[test]
fn datagrams_to_a_slow_reader_wait() {
    outrun_a_reader(QpKind::Ud, PACKET_BYTES);
}

#[test]
fn unacknowledged_messages_to_a_slow_reader_wait() {
    outrun_a_reader(QpKind::Uc, 1 << 20);
}

fn outrun_a_stopped_reader(kind: QpKind) {
    let (mut a, mut b) = acquainted();
    let mut c = link();
    send(&mut a, &mut c, &[12]);
    let mut first = Plain::default();
    eventually("the first packet arrives", || c.receive(now_ns(), &mut first).unwrap() > 0);
    let (to, other) = (b.udp.local_address(), c.udp.local_address());
    let mut sender = Sender::new(a);
    let (qpn, of_other) = (sender.add_qp(kind, to), sender.add_qp(kind, other));
    let now = now_ns();
    let (mut posted, mut done) = (0, 0);
    loop {
        while sender.post(qpn, PACKET_BYTES, to) {
            posted += 1;
        }
        let completed = sender.pump(now);
        done += completed;
        if completed == 0 {
            break;
        }
    }
    let counted = sender.counters();
    assert_eq!((posted - done, counted.full), (DEPTH, 0));
    assert!(done * PACKET_BYTES <= RING_BYTES + BATCH_BYTES, "{done} sends are done");
    assert!(counted.held > 0 && counted.held as usize * PACKET_BYTES <= BATCH_BYTES, "{counted:?}");
    // Another peer gets its packets meanwhile.
    assert!(sender.post(of_other, PACKET_BYTES, other));
    assert_eq!(sender.pump(now), 1);
    let mut seen = Psns::default();
    eventually("the packet to the other peer arrives", || c.receive(now_ns(), &mut seen).unwrap() > 0);
    assert_eq!(seen.0, [0]);

    assert_eq!(sender.pump(now + STOPPED_NS - 1), 0, "the reader counts as stopped too early");
    let before = sender.counters();
    assert_eq!(sender.pump(now + STOPPED_NS), DEPTH);
    let after = sender.counters();
    // A short run may find room in a ring that has no room for a long one.
    let (lost, sent) = (after.full - before.full, after.packets_sent - before.packets_sent);
    assert!(lost > before.held && lost + sent == before.held + DEPTH as u64, "{before:?}, {after:?}");
    assert_eq!(sender.driver.link_counters().tx_ring_full, lost);

    // Once the reader reads again, packets arrive again.
    let mut seen = Psns::default();
    eventually("the ring is emptied", || b.receive(now_ns(), &mut seen).unwrap() == 0);
    assert!(sender.post(qpn, PACKET_BYTES, to));
    assert_eq!(sender.pump(now + STOPPED_NS + 1), 1);
    assert_eq!(sender.counters().full, after.full);
    let last = posted as u32;
    eventually("the last packet arrives", || {
        b.receive(now_ns(), &mut seen).unwrap();
        seen.0.last() == Some(&last)
    });
}

#[test]
fn datagrams_to_a_stopped_reader_are_lost_and_counted() {
    outrun_a_stopped_reader(QpKind::Ud);
}

#[test]
fn unacknowledged_messages_to_a_stopped_reader_are_lost_and_counted() {
    outrun_a_stopped_reader(QpKind::Uc);
}
