//! Two RNICs in one thread, and the loop that carries packets between them.

use std::alloc::{Layout, alloc_zeroed};
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use doorbell_rnic::{Budget, CompletionQueue, Config, Filter, Rnic, TransmitBatch};
use doorbell_wire::{Check, Flow, ICRC_LEN, Outer, PathMtu, Psn, Qpn, ROCE_UDP_PORT};

// The program that includes this file defines the module `words`.
use super::words::{
    Access, AddressVector, Completion, Payload, QpAttributes, QpCapacities, QpInit, QpKind, QpState, RecvRequest,
    SendFlags, SendOperation, SendRequest, Sge,
};

const WINDOW: usize = 64;
/// Number of packets that the receiver gets in one call of `handle_packets`. The receiver sends one acknowledgement for
/// all of them.
pub(crate) const BURST: usize = 16;

/// Methods that `Rnic` lacks in older revisions. `cargo xtask compare` also builds this file with those revisions. If
/// `Rnic` has an inherent method of the same name, Rust calls the inherent method.
#[allow(dead_code)]
trait Later {
    fn transmitted(&mut self) {}
}

impl Later for Rnic {}

struct Side {
    rnic: Rnic,
    qpn: Qpn,
    queue: Arc<CompletionQueue>,
    sge: Sge,
    batch: TransmitBatch,
    flow: Flow,
    outer: Outer,
    reaped: [Completion; BURST],
}

fn address(last: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, last).into()
}

fn side(own: u8, peer: u8, bytes: usize) -> Side {
    let config =
        Config { address: address(own), active_mtu: PathMtu::Mtu4096, receive_buffer_bytes: 8 << 20, seed: [own; 32] };
    let mut rnic = Rnic::new(config, None);
    let pd = rnic.create_pd();
    let layout = Layout::from_size_align(bytes, 4096).expect("the block is small");
    // SAFETY: the layout is not empty; the block is never freed.
    let base = unsafe { alloc_zeroed(layout) };
    assert!(!base.is_null());
    // SAFETY: the block is never freed, and no reference to it is ever made.
    let region =
        unsafe { rnic.register(pd, base, bytes, base as u64, Access::all(), None) }.expect("the device has room");
    let (cq, queue) = rnic.create_cq(4 * WINDOW, None).expect("the device has room");
    let capacities =
        QpCapacities { max_send_wr: WINDOW, max_recv_wr: 2 * WINDOW, max_send_sge: 1, max_recv_sge: 1, max_inline: 64 };
    let init = QpInit { kind: QpKind::Rc, pd, send_cq: cq, recv_cq: cq, srq: None, capacities, signal_all: true };
    let qpn = rnic.create_qp(init).expect("the device has room");
    let sge = Sge { address: base as u64, length: bytes as u32, lkey: region.lkey() };
    let outer = Outer {
        src: address(own),
        dst: address(peer),
        traffic_class: 0,
        hop_limit: 64,
        identification: Some(0),
        dont_fragment: Some(true),
    };
    let flow = Flow::new(address(own), address(peer), ROCE_UDP_PORT, ROCE_UDP_PORT);
    let batch = TransmitBatch::new(1 << 21, ICRC_LEN);
    Side { rnic, qpn, queue, sge, batch, flow, outer, reaped: [Completion::default(); BURST] }
}

fn connect(own: &mut Side, peer: &Side) {
    let psn = Psn::new(0);
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
            address: Some(AddressVector::to(peer.outer.src)),
            path_mtu: Some(PathMtu::Mtu4096),
            dest_qpn: Some(peer.qpn),
            receive_psn: Some(psn),
            max_dest_rd_atomic: Some(4),
            min_rnr_timer: Some(12),
            ..QpAttributes::default()
        },
        QpAttributes {
            state: Some(QpState::ReadyToSend),
            send_psn: Some(psn),
            timeout: Some(14),
            retry_count: Some(7),
            rnr_retry: Some(7),
            max_rd_atomic: Some(4),
            ..QpAttributes::default()
        },
    ];
    for step in steps {
        own.rnic.modify_qp(own.qpn, &step).expect("each queue pair can go from reset to RTS");
    }
}

impl Side {
    /// Sends all waiting packets: writes their ICRC and hands them to the peer in bursts. Returns the number of
    /// packets.
    fn transmit(&mut self, peer: &mut Side, now_ns: u64, mut after: impl FnMut(&mut Side)) -> usize {
        self.batch.clear();
        let packets = self.rnic.poll_transmit(now_ns, Budget::UNLIMITED, Filter::All, &mut self.batch);
        if packets == 0 {
            return 0;
        }
        let flow = self.flow;
        let (runs, bytes) = self.batch.runs_and_bytes_mut();
        for run in runs {
            for (identification, segment) in run.segments().enumerate() {
                let (packet, trailer) = bytes[segment].split_last_chunk_mut::<ICRC_LEN>().expect("a trailer");
                *trailer = flow.icrc(identification as u16, true, packet).to_le_bytes();
            }
        }
        for run in self.batch.runs() {
            let bytes = self.batch.bytes();
            let mut segments = run.segments().enumerate();
            let mut left = run.packets;
            while left > 0 {
                let burst = left.min(BURST);
                left -= burst;
                let packets = segments.by_ref().take(burst).filter_map(|(identification, segment)| {
                    let sealed = &bytes[segment];
                    match flow.check(identification as u16, sealed) {
                        Check::Valid { .. } => Some(&sealed[..sealed.len() - ICRC_LEN]),
                        Check::Invalid => None,
                    }
                });
                peer.rnic.handle_packets(now_ns, &self.outer, packets);
                after(peer);
            }
        }
        self.rnic.transmitted();
        packets
    }

    fn reap(&mut self) -> usize {
        let count = self.queue.poll(&mut self.reaped).expect("the queue is deep enough");
        black_box(&self.reaped[..count]);
        count
    }

    fn receive(&mut self, count: usize) {
        let sges = [self.sge];
        let requests = [RecvRequest { wr_id: 1, sges: &sges }; BURST];
        self.rnic.post_recv(self.qpn, &requests[..count]).expect("the queue has room");
    }
}

/// Two connected queue pairs. The first queue pair sends messages to the second.
pub(crate) struct Pair {
    a: Side,
    b: Side,
    bytes: usize,
    now_ns: u64,
}

impl Pair {
    pub(crate) fn new(bytes: usize) -> Self {
        let (mut a, mut b) = (side(1, 2, bytes), side(2, 1, bytes));
        connect(&mut a, &b);
        connect(&mut b, &a);
        for _ in 0..2 * WINDOW / BURST {
            b.receive(BURST);
        }
        Self { a, b, bytes, now_ns: 1 }
    }

    /// Returns the number of messages in one round.
    pub(crate) fn window(&self) -> usize {
        if self.bytes > 4096 { 8 } else { WINDOW }
    }

    /// Sends a window of messages, `per_post` in each post, and runs both sides until all work requests are complete.
    pub(crate) fn round(&mut self, per_post: usize) {
        let window = self.window();
        let Self { a, b, now_ns, .. } = self;
        let sges = [a.sge];
        let request = SendRequest {
            wr_id: 7,
            operation: SendOperation::Send,
            flags: SendFlags::empty(),
            payload: Payload::Sges(&sges),
            destination: None,
        };
        let list = [request; WINDOW];
        for _ in 0..window / per_post {
            a.rnic.post_send(*now_ns, a.qpn, &list[..per_post]).expect("the window is the queue's depth");
        }
        let (mut done, mut received) = (0, 0);
        while done < window {
            *now_ns += 1_000;
            a.transmit(b, *now_ns, |b| b.rnic.release_acks());
            b.transmit(a, *now_ns, |_| {});
            loop {
                match b.reap() {
                    0 => break,
                    count => {
                        received += count;
                        b.receive(count);
                    }
                }
            }
            loop {
                match a.reap() {
                    0 => break,
                    count => done += count,
                }
            }
        }
        assert_eq!(received, window, "messages are missing");
    }

    /// Returns the number of packets that the receiver got for each acknowledgement that it sent.
    #[allow(dead_code)] // not all programs with this module call it
    pub(crate) fn packets_per_ack(&self) -> u64 {
        let counters = self.b.rnic.counters();
        counters.rx_vport_rdma_unicast_packets / counters.tx_ack_packets.max(1)
    }
}
