mod timers;

use std::net::IpAddr;

use doorbell_rnic::{CompletionQueue, Config};
use doorbell_testing::ConnectionEnd;
use doorbell_verbs_core::{
    Completion, LinkCounters, Payload, QpCapacities, QpInit, QpKind, SendFlags, SendOperation, SendRequest, Status,
};
use doorbell_wire::{BTH_LEN, PathMtu, Qpn};

use super::*;
use crate::link::LinkProperties;
use crate::testing::{info, path};

/// Returns a SEND with inline data.
pub(crate) fn message(text: &'static [u8]) -> SendRequest<'static> {
    SendRequest {
        wr_id: 1,
        operation: SendOperation::Send,
        flags: SendFlags::empty(),
        payload: Payload::Inline(text),
        destination: None,
    }
}

/// A link whose `receive` or `transmit` fails.
#[derive(Clone, Copy, Debug)]
struct Broken;

impl Link for Broken {
    fn properties(&self) -> LinkProperties {
        LinkProperties { sealed: false }
    }

    fn transmit(&mut self, _now_ns: u64, _batch: &TransmitBatch, _next: &mut usize) -> io::Result<()> {
        Err(io::ErrorKind::NotConnected.into())
    }

    fn receive(&mut self, _now_ns: u64, _sink: &mut dyn Sink) -> io::Result<usize> {
        Ok(0)
    }

    fn link_counters(&self) -> LinkCounters {
        LinkCounters::default()
    }
}

/// A link that waits for the route to one destination.
#[derive(Clone, Copy, Debug)]
struct Waits {
    awaits: IpAddr,
    is_hurried: bool,
}

impl Link for Waits {
    fn properties(&self) -> LinkProperties {
        LinkProperties { sealed: false }
    }

    fn transmit(&mut self, _now_ns: u64, _batch: &TransmitBatch, _next: &mut usize) -> io::Result<()> {
        Ok(())
    }

    fn receive(&mut self, _now_ns: u64, _sink: &mut dyn Sink) -> io::Result<usize> {
        Ok(0)
    }

    fn awaits(&self) -> Option<PathEnd> {
        Some(path(self.awaits).end())
    }

    fn hurry(&mut self) {
        self.is_hurried = true;
    }

    fn link_counters(&self) -> LinkCounters {
        LinkCounters::default()
    }
}

#[test]
fn a_link_is_hurried_when_packets_to_others_wait() {
    for (awaits, is_hurried) in [([10, 0, 0, 2], false), ([10, 0, 0, 3], true)] {
        let link = Waits { awaits: awaits.into(), is_hurried: false };
        let (mut driver, qpn, _) = connected(link);
        let post = |driver: &mut Driver<Waits>| {
            let request = message(b"one");
            driver.rnic_mut().post_send(0, qpn, &[request]).unwrap();
            driver.transmit(0).unwrap();
            driver.link().is_hurried
        };
        assert!(!post(&mut driver), "the link was hurried after the first packet");
        assert_eq!(post(&mut driver), is_hurried, "packets to {awaits:?} wait, and the next packet goes to 10.0.0.2");
    }
}

/// Creates a driver with one connected RC queue pair. The queue pair retries each request at most `RETRIES` times.
pub(crate) fn connected<L: Link>(link: L) -> (Driver<L>, Qpn, std::sync::Arc<CompletionQueue>) {
    connected_as(QpKind::Rc, link)
}

fn connected_as<L: Link>(kind: QpKind, link: L) -> (Driver<L>, Qpn, std::sync::Arc<CompletionQueue>) {
    let address = [10, 0, 0, 1].into();
    let config = Config { address, active_mtu: PathMtu::Mtu1024, receive_buffer_bytes: 1 << 20, seed: [7; 32] };
    let mut rnic = Rnic::new(config, None);
    let pd = rnic.create_pd();
    let (cq, queue) = rnic.create_cq(8, None).unwrap();
    let capacities = QpCapacities { max_send_wr: 4, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 16 };
    let init = QpInit { kind, pd, send_cq: cq, recv_cq: cq, srq: None, capacities, signal_all: true };
    let qpn = rnic.create_qp(init).unwrap();
    let peer = ([10, 0, 0, 2].into(), Qpn::new(2));
    let end = ConnectionEnd { retry_count: RETRIES, ..ConnectionEnd::new(kind, peer, PathMtu::Mtu1024) };
    for step in end.steps() {
        rnic.modify_qp(qpn, &step).unwrap();
    }
    (Driver::new(rnic, link, 4791), qpn, queue)
}

const RETRIES: u8 = 2;

#[test]
fn two_runs_of_long_packets_fill_a_batch() {
    for (mtu, trailer_bytes, packets) in [(4096, ICRC_LEN, [15, 15]), (4096, 0, [15, 15]), (2048, ICRC_LEN, [31, 30])] {
        let mut batch = TransmitBatch::new(BATCH_BYTES, trailer_bytes);
        let len = BTH_LEN + mtu;
        while batch.has_room(len) {
            batch.push(&path([10, 0, 0, 2].into()), len, info()).fill(1);
        }
        let runs: Vec<_> = batch.runs().iter().map(|run| run.packets).collect();
        assert_eq!(runs, packets, "a path MTU of {mtu} and a trailer of {trailer_bytes} B");
    }
}

#[test]
fn requests_time_out_on_a_broken_link() {
    let (mut driver, qpn, queue) = connected(Broken);
    let request = SendRequest {
        wr_id: 3,
        operation: SendOperation::Send,
        flags: SendFlags::empty(),
        payload: Payload::Inline(b"lost"),
        destination: None,
    };
    driver.rnic_mut().post_send(0, qpn, &[request]).unwrap();
    let mut found = [Completion::default(); 1];
    let mut now_ns = 0;
    loop {
        let _ = driver.pump(now_ns, Acks::Now);
        if queue.poll(&mut found).unwrap() > 0 {
            break;
        }
        now_ns = driver.poll_timeout().expect("an unanswered request has a deadline").max(now_ns);
        assert!(now_ns < 10_000_000_000);
    }
    assert_eq!((found[0].wr_id, found[0].status), (3, Status::RetryExceeded));
}

/// A link that is always full.
#[derive(Debug, Default)]
struct Full {
    forgotten: usize,
}

impl Link for Full {
    fn properties(&self) -> LinkProperties {
        LinkProperties { sealed: false }
    }

    fn transmit(&mut self, _now_ns: u64, _batch: &TransmitBatch, _next: &mut usize) -> io::Result<()> {
        Ok(())
    }

    fn receive(&mut self, _now_ns: u64, _sink: &mut dyn Sink) -> io::Result<usize> {
        Ok(0)
    }

    fn forget_batch(&mut self) {
        self.forgotten += 1;
    }

    fn link_counters(&self) -> LinkCounters {
        LinkCounters::default()
    }
}

#[test]
fn a_full_link_forgets_its_batch_when_the_port_goes_down() {
    let (mut driver, qpn, _) = connected(Full::default());
    let request = message(b"lost");
    driver.rnic_mut().post_send(0, qpn, &[request]).unwrap();
    driver.transmit(0).unwrap();
    assert!(driver.is_link_full());
    driver.order_port(1, PortOrder::Down).unwrap();
    assert_eq!((driver.is_link_full(), driver.link().forgotten), (false, 1));
    assert_eq!(driver.link_counters().tx_port_down, 1);
}

/// A link that accepts all packets, and says that they wait for room while `is_full` is true.
#[derive(Debug, Default)]
struct Holds {
    is_full: bool,
    /// Number of accepted packets.
    packets: usize,
}

impl Link for Holds {
    fn properties(&self) -> LinkProperties {
        LinkProperties { sealed: false }
    }

    fn transmit(&mut self, _now_ns: u64, batch: &TransmitBatch, next: &mut usize) -> io::Result<()> {
        self.packets += batch.infos().len();
        *next = batch.runs().len();
        Ok(())
    }

    fn receive(&mut self, _now_ns: u64, _sink: &mut dyn Sink) -> io::Result<usize> {
        Ok(0)
    }

    fn holds_packets(&self) -> bool {
        self.is_full
    }

    fn full_destinations(&self, destinations: &mut Vec<PathEnd>) {
        destinations.extend(self.is_full.then_some(path([10, 0, 0, 2].into()).end()));
    }

    fn link_counters(&self) -> LinkCounters {
        LinkCounters::default()
    }
}

#[test]
fn requests_without_a_window_wait_for_room_in_the_link() {
    let (mut driver, qpn, queue) = connected_as(QpKind::Uc, Holds::default());
    let post = |driver: &mut Driver<Holds>| {
        let request = message(b"one");
        driver.rnic_mut().post_send(0, qpn, &[request]).unwrap();
        driver.transmit(0).unwrap();
        driver.link().packets
    };
    let done = || queue.poll(&mut [Completion::default(); 4]).unwrap();
    driver.link_mut().is_full = true;
    assert_eq!((post(&mut driver), done()), (1, 1), "a link is full once it has accepted packets");
    assert_eq!((post(&mut driver), done()), (1, 0));
    driver.link_mut().is_full = false;
    driver.pump(1, Acks::Now).unwrap();
    assert_eq!((driver.link().packets, done()), (2, 1));
    // A port that goes down loses the requests that wait.
    driver.link_mut().is_full = true;
    assert_eq!((post(&mut driver), done()), (3, 1));
    assert_eq!((post(&mut driver), done()), (3, 0));
    driver.order_port(2, PortOrder::Down).unwrap();
    assert_eq!((driver.link().packets, done(), driver.link_counters().tx_port_down), (3, 1, 1));
}

/// A link with packets that arrive at no time, or at any time.
#[derive(Debug, Default)]
struct Arrivals {
    may_come: bool,
}

impl Link for Arrivals {
    fn properties(&self) -> LinkProperties {
        LinkProperties { sealed: false }
    }

    fn transmit(&mut self, _now_ns: u64, batch: &TransmitBatch, next: &mut usize) -> io::Result<()> {
        *next = batch.runs().len();
        Ok(())
    }

    fn receive(&mut self, _now_ns: u64, _sink: &mut dyn Sink) -> io::Result<usize> {
        Ok(0)
    }

    fn may_receive(&self) -> bool {
        self.may_come
    }

    fn link_counters(&self) -> LinkCounters {
        LinkCounters::default()
    }
}

#[test]
fn a_look_without_a_clock_finds_packets_and_posts() {
    let (mut driver, qpn, _) = connected(Arrivals::default());
    let pump = |driver: &mut Driver<Arrivals>, now_ns: u64| {
        driver.note_look(now_ns);
        driver.pump(now_ns, Acks::Now).unwrap();
    };
    pump(&mut driver, 1_000_000);
    assert!(!driver.look(), "the first look is a pump");
    pump(&mut driver, 1_000_100);
    assert!(driver.look(), "the caller polls in a tight loop");
    assert!(!driver.look());
    pump(&mut driver, 1_000_300);
    driver.link_mut().may_come = true;
    assert!(!driver.look(), "the look has overlooked a packet");
    driver.link_mut().may_come = false;
    let request = message(b"one");
    driver.rnic_mut().post_send(1_000_400, qpn, &[request]).unwrap();
    driver.defer_transmit(2_000_000);
    assert!(!driver.look(), "the look has left a deferred post");
    pump(&mut driver, 1_000_500);
    assert!(driver.look(), "the request has left");
    pump(&mut driver, 3_000_000);
    assert!(!driver.look(), "the caller polls slowly");
}
