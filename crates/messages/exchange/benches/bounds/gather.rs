//! The rate of segmented sends over UDP through loopback, by four ways to bring payloads and ICRCs into a send.
//!
//! The software RNIC copies payloads behind their headers into a batch, and computes the ICRCs of the batch. It passes
//! each run to the kernel in one send. A gathered send saves the copy: its vector refers to headers, to payloads in the
//! region, and to ICRCs. The trailer of a packet and the header of the next one share an entry, so a run of `n` packets
//! has `2n + 1` entries. `UIO_MAXIOV` is 1024, and the longest run of packets with 1 KiB has 125. The kernel copies all
//! entries into its buffers before it splits them, so `UDP_SEGMENT` works with any vector.
//!
//! Each run is one `sendmsg`, while the RNIC sends the runs of a batch by one `sendmmsg`.

use std::io::{ErrorKind, IoSlice};
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use doorbell_rnic::MAX_RUN_BYTES;
use doorbell_wire::{BTH_LEN, Check, Flow, ICRC_LEN, Icrc, ROCE_UDP_PORT};
use nix::sys::socket::{setsockopt, sockopt};
use socket2::SockRef;

use super::turns::{self, Moved, Turn};
use super::{in_rounds, spread};

/// Bytes of a payload: the path MTU over loopback.
const PAYLOAD: usize = 4096;
/// Bytes of a packet from the BTH to the ICRC.
const SEGMENT: usize = BTH_LEN + PAYLOAD + ICRC_LEN;
/// Packets of the longest run.
const RUN: u16 = (MAX_RUN_BYTES / SEGMENT) as u16;
/// Bytes of a message, whose buffers the sender and the receiver use in turn.
const MESSAGE: usize = 1 << 20;
/// Numbers of buffers at each end: one that stays in a cache, and those that rotate beyond it.
const BUFFERS: [usize; 2] = [1, 12];
/// Requested size of the receive buffer in bytes, that of the software RNIC.
const RECEIVE_BUFFER_BYTES: usize = 16 << 20;
/// Maximum bytes that the receiver has not read yet.
const WINDOW_BYTES: usize = 1 << 20;

/// Way to bring payloads and ICRCs into a send.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Copies two runs, and then computes their ICRCs.
    Batch,
    /// Computes the ICRC of each packet right after its copy, while the packet is in the first cache.
    Block,
    /// Copies nothing, and computes the ICRCs over the region.
    Gathered,
    /// Does the same as `Batch` with a third run of one packet, as in a batch of 128 KiB.
    Third,
}

impl Way {
    /// Order of the printed lines. Ratios compare with the first one.
    const ALL: [Self; 4] = [Self::Batch, Self::Block, Self::Gathered, Self::Third];

    fn name(self) -> &'static str {
        match self {
            Self::Batch => "copy of two runs, then ICRC",
            Self::Block => "ICRC after the copy of a packet",
            Self::Gathered => "gathered, ICRC over the region",
            Self::Third => "copy, third run of one packet",
        }
    }

    /// Returns the numbers of packets in the runs of a batch.
    fn runs(self) -> &'static [u16] {
        if self == Self::Third { &[RUN, RUN, 1] } else { &[RUN, RUN] }
    }

    /// Returns the index of each packet of a batch within its run.
    fn indices(self) -> impl Iterator<Item = u16> {
        self.runs().iter().flat_map(|&run| 0..run)
    }
}

/// Work of the receiver besides reading.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Task {
    /// Counts packets.
    Count,
    /// Checks the ICRC of each packet, and copies its payload to a region.
    Place,
}

impl Task {
    const ALL: [Self; 2] = [Self::Count, Self::Place];

    fn name(self) -> &'static str {
        match self {
            Self::Count => "counts",
            Self::Place => "checks and copies",
        }
    }
}

/// A measured case.
#[derive(Clone, Copy)]
struct Case {
    buffers: usize,
    task: Task,
    way: Way,
}

impl Case {
    /// Returns all cases in the order of the printed lines.
    fn all() -> Vec<Self> {
        let mut cases = Vec::new();
        for buffers in BUFFERS {
            for task in Task::ALL {
                cases.extend(Way::ALL.map(|way| Self { buffers, task, way }));
            }
        }
        cases
    }

    /// Returns the payload bytes that arrive per second.
    fn measure(self) -> f64 {
        let (mut sender, mut receiver) = connect(self);
        let work: Vec<Turn> = vec![Box::new(move || sender.send()), Box::new(move || receiver.receive())];
        turns::rate(work) * PAYLOAD as f64
    }
}

/// Sending end.
struct Sender {
    socket: UdpSocket,
    way: Way,
    flow: Flow,
    region: Vec<u8>,
    batch: Vec<u8>,
    /// Number of packets sent.
    sent: u64,
    /// Number of packets that the receiver has read.
    read: Arc<AtomicU64>,
    /// Maximum number of packets that the receiver has not read yet.
    window: u64,
}

/// Receiving end.
struct Receiver {
    socket: UdpSocket,
    task: Task,
    flow: Flow,
    region: Vec<u8>,
    message: Vec<u8>,
    /// Number of packets that have arrived.
    arrived: u64,
    /// The same number, for the sender.
    read: Arc<AtomicU64>,
}

/// Creates both ends.
fn connect(case: Case) -> (Sender, Receiver) {
    let [sending, receiving] =
        [(); 2].map(|()| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port"));
    sending.connect(receiving.local_addr().expect("an address")).expect("loopback has a route");
    setsockopt(&sending, sockopt::UdpGsoSegment, &(SEGMENT as i32)).expect("the kernel splits sends");
    setsockopt(&receiving, sockopt::UdpGroSegment, &true).expect("the kernel combines datagrams");
    receiving.set_nonblocking(true).expect("a socket");
    let options = SockRef::from(&receiving);
    // The kernel doubles the size. Only a privileged program may exceed `net.core.rmem_max`.
    if setsockopt(&receiving, sockopt::RcvBufForce, &(RECEIVE_BUFFER_BYTES / 2)).is_err() {
        options.set_recv_buffer_size(RECEIVE_BUFFER_BYTES / 2).expect("a socket");
    }
    // The kernel counts the memory of a message, which is more than its bytes.
    let granted = options.recv_buffer_size().expect("a socket") / 2;
    let window = (granted.min(WINDOW_BYTES) / SEGMENT) as u64;
    assert!(
        window >= case.way.indices().count() as u64,
        "the receive buffer has room for {window} packets, and must have room for a batch: raise net.core.rmem_max"
    );
    let local = Ipv4Addr::LOCALHOST.into();
    let flow = Flow::new(local, local, ROCE_UDP_PORT, ROCE_UDP_PORT);
    let read = Arc::new(AtomicU64::new(0));
    // Values other than 0, so that the kernel provides the pages now.
    let region = |value: u8| vec![value; MESSAGE * case.buffers];
    let sender = Sender {
        socket: sending,
        way: case.way,
        flow,
        region: region(7),
        batch: vec![1; case.way.indices().count() * SEGMENT],
        sent: 0,
        read: Arc::clone(&read),
        window,
    };
    let message = vec![1; MAX_RUN_BYTES];
    let receiver = Receiver { socket: receiving, task: case.task, flow, region: region(1), message, arrived: 0, read };
    (sender, receiver)
}

/// Returns the header of the packet with this number.
fn header_of(number: u64) -> [u8; BTH_LEN] {
    let mut header = [0; BTH_LEN];
    header[BTH_LEN - 4..].copy_from_slice(&(number as u32).to_be_bytes());
    header
}

/// Returns the offset of the payload of the packet with this number in a region of `region_bytes`.
fn place_of(number: u64, region_bytes: usize) -> usize {
    number as usize % (region_bytes / PAYLOAD) * PAYLOAD
}

/// Returns the payload of the packet with this number.
fn payload_of(region: &[u8], number: u64) -> &[u8] {
    &region[place_of(number, region.len())..][..PAYLOAD]
}

/// Writes the ICRC of a packet into its trailer.
fn seal(flow: &Flow, index: u16, packet: &mut [u8]) {
    let (packet, icrc) = packet.split_last_chunk_mut::<ICRC_LEN>().expect("a packet has a trailer");
    *icrc = flow.icrc(index, true, packet).to_le_bytes();
}

impl Sender {
    /// Sends the runs of a batch if the window has room.
    fn send(&mut self) -> Moved {
        let packets = self.way.indices().count() as u64;
        if self.sent + packets > self.read.load(Ordering::Relaxed) + self.window {
            return Moved { accepted: 0, received: 0 };
        }
        if self.way == Way::Gathered {
            self.send_gathered();
        } else {
            self.send_copied();
        }
        self.sent += packets;
        Moved { accepted: packets, received: 0 }
    }

    fn send_copied(&mut self) {
        let Self { socket, way, flow, region, batch, sent, .. } = self;
        for ((index, packet), number) in way.indices().zip(batch.chunks_exact_mut(SEGMENT)).zip(*sent..) {
            packet[..BTH_LEN].copy_from_slice(&header_of(number));
            packet[BTH_LEN..][..PAYLOAD].copy_from_slice(payload_of(region, number));
            if *way == Way::Block {
                seal(flow, index, packet);
            }
        }
        if *way != Way::Block {
            for (index, packet) in way.indices().zip(batch.chunks_exact_mut(SEGMENT)) {
                seal(flow, index, packet);
            }
        }
        let mut rest = &batch[..];
        for &run in way.runs() {
            let (message, after) = rest.split_at(usize::from(run) * SEGMENT);
            socket.send(message).expect("the kernel takes a run");
            rest = after;
        }
    }

    fn send_gathered(&self) {
        let Self { socket, way, flow, region, sent, .. } = self;
        let mut first = *sent;
        for &run in way.runs() {
            // Each entry has the ICRC of a packet and the header of the next one.
            let mut edges = [[0; ICRC_LEN + BTH_LEN]; RUN as usize + 1];
            for ((index, at), number) in (0..run).zip(0..).zip(first..) {
                let header = header_of(number);
                let mut icrc = Icrc::new(flow, index, true, BTH_LEN + PAYLOAD);
                icrc.update(&header);
                icrc.update(payload_of(region, number));
                edges[at][ICRC_LEN..].copy_from_slice(&header);
                edges[at + 1][..ICRC_LEN].copy_from_slice(&icrc.finish().to_le_bytes());
            }
            let run = usize::from(run);
            let mut parts = Vec::with_capacity(2 * run + 1);
            parts.push(IoSlice::new(&edges[0][ICRC_LEN..]));
            for (at, number) in (1..=run).zip(first..) {
                parts.push(IoSlice::new(payload_of(region, number)));
                let end = if at == run { ICRC_LEN } else { ICRC_LEN + BTH_LEN };
                parts.push(IoSlice::new(&edges[at][..end]));
            }
            SockRef::from(socket).send_vectored(&parts).expect("the kernel takes a run");
            first += run as u64;
        }
    }
}

impl Receiver {
    /// Reads one message, whose packets the kernel has combined.
    fn receive(&mut self) -> Moved {
        let Self { socket, task, flow, region, message, arrived, read } = self;
        let length = match socket.recv(message) {
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Moved { accepted: 0, received: 0 },
            Err(error) => panic!("the socket of the receiver failed: {error}"),
        };
        let before = *arrived;
        for (index, packet) in (0..).zip(message[..length].chunks(SEGMENT)) {
            assert_eq!(packet[..BTH_LEN], header_of(*arrived), "a packet was lost: the receive buffer is too small");
            if *task == Task::Place {
                assert_ne!(flow.check(index, packet), Check::Invalid, "the ICRC of packet {arrived} is wrong");
                let place = place_of(*arrived, region.len());
                region[place..place + PAYLOAD].copy_from_slice(&packet[BTH_LEN..][..PAYLOAD]);
            }
            *arrived += 1;
        }
        read.store(*arrived, Ordering::Relaxed);
        Moved { accepted: 0, received: *arrived - before }
    }
}

/// Measures all cases and prints a table.
pub(crate) fn compare(rounds: usize, about: &str) {
    let cases = Case::all();
    let rates = in_rounds(rounds, cases.len(), |case, _| cases[case].measure());
    println!("packets of {PAYLOAD} B in runs of {RUN} over UDP, GB/s of payload, {about}");
    println!("{:>7} {:<17} {:<31} {:>6} {:>7}  least to most", "buffers", "receiver", "sender", "GB/s", "ratio");
    for (cases, rates) in cases.chunks(Way::ALL.len()).zip(rates.chunks(Way::ALL.len())) {
        for (case, of_case) in cases.iter().zip(rates) {
            let median = spread(of_case.iter().map(|rate| rate / 1e9))[0];
            let [ratio, least, most] = spread(of_case.iter().zip(&rates[0]).map(|(rate, base)| rate / base));
            println!(
                "{:>7} {:<17} {:<31} {median:>6.2} {ratio:>7.2}  {least:.2} to {most:.2}",
                case.buffers,
                case.task.name(),
                case.way.name()
            );
        }
    }
}
