//! Rules for packets that leave.

use doorbell_wire::BTH_LEN;

use super::rules::message;
use super::*;
use crate::seal::Sealer;

/// Returns the ends of a network. The second end injects faults.
fn ends(plan: &str) -> (MemoryLink, Faults<MemoryLink>) {
    let (a, b) = pair(plan, true);
    (a, b.of_device(address(2), ROCE_UDP_PORT))
}

/// Returns a sealed batch from the second end to the first.
fn batch_of_packets(packets: &[Vec<u8>]) -> TransmitBatch {
    let mut batch = TransmitBatch::new(1 << 16, ICRC_LEN);
    for bytes in packets {
        batch.push(&crate::testing::path(address(1)), bytes.len(), crate::testing::info()).copy_from_slice(bytes);
    }
    Sealer::new(address(2), ROCE_UDP_PORT).seal(&mut batch);
    batch
}

/// Returns the identification that the ICRC of a packet covers; `None` if the ICRC is wrong.
fn identification(packet: &[u8]) -> Option<u16> {
    let flow = Flow::new(address(2), address(1), ROCE_UDP_PORT, ROCE_UDP_PORT);
    let (content, icrc) = packet.split_last_chunk::<ICRC_LEN>()?;
    (0..64).find(|identification| flow.icrc(*identification, true, content).to_le_bytes() == *icrc)
}

/// Sends the packets of a message 1 us apart. Returns the numbers of those that arrive at the peer.
pub(super) fn leaving(plan: &str) -> Vec<u8> {
    let (mut a, mut b) = ends(plan);
    let mut runs = Vec::new();
    for (now_ns, packet) in (0..).step_by(1_000).zip(message()) {
        receive_all(&mut b, now_ns);
        transmit_all(&mut b, now_ns, &batch_of_packets(&[packet]));
        runs.extend(receive_all(&mut a, now_ns));
    }
    while let Some(due_ns) = b.poll_timeout() {
        receive_all(&mut b, due_ns);
        runs.extend(receive_all(&mut a, due_ns));
    }
    assert_eq!(b.unfired(), Vec::<String>::new(), "{plan}");
    let arrived = packets_of(&runs, 0);
    assert!(arrived.iter().all(|packet| identification(packet).is_some()), "{plan}: an ICRC is wrong");
    arrived.iter().map(|packet| packet[packet.len() - ICRC_LEN - 1]).collect()
}

#[test]
fn the_remaining_packets_of_a_run_form_a_run_with_their_icrcs() {
    let packets: Vec<_> = (0..8).map(|number| packet(number, LEN)).collect();
    for (plan, expected) in [
        ("drop direction=out nth=3", vec![0, 1, 3, 4, 5, 6, 7]),
        ("duplicate direction=out nth=2", vec![0, 1, 1, 2, 3, 4, 5, 6, 7]),
        ("reorder direction=out nth=1 behind=2", vec![1, 2, 0, 3, 4, 5, 6, 7]),
        ("corrupt direction=out nth=1 byte=0 value=99 icrc=valid; drop direction=out nth=2", vec![2, 3, 4, 5, 6, 7]),
    ] {
        let (mut a, mut b) = ends(plan);
        transmit_all(&mut b, 0, &batch_of_packets(&packets));
        let arrived = packets_of(&receive_all(&mut a, 0), 0);
        let (icrcs, numbers): (Vec<_>, Vec<_>) = arrived
            .iter()
            .map(|bytes| {
                let content = &bytes[..LEN];
                (identification(bytes), packets.iter().position(|packet| packet == content))
            })
            .unzip();
        let whole: Vec<_> = numbers.iter().flatten().copied().collect();
        assert_eq!(whole, expected, "{plan}");
        // A packet whose bytes changed has a batch of its own, so the next run begins with 0 again.
        let changed = numbers.len() - whole.len();
        let places = (0..changed).map(|_| 0).chain(0..whole.len() as u16).map(Some);
        assert_eq!(icrcs, places.collect::<Vec<_>>(), "{plan}");
    }
}

#[test]
fn a_wrong_icrc_stays_wrong() {
    let packets: Vec<_> = (0..3).map(|number| packet(number, LEN)).collect();
    let (mut a, mut b) = ends("drop direction=out nth=1; corrupt direction=out nth=2 byte=1");
    transmit_all(&mut b, 0, &batch_of_packets(&packets));
    let arrived = packets_of(&receive_all(&mut a, 0), 0);
    assert_eq!(arrived.iter().map(|packet| identification(packet).is_some()).collect::<Vec<_>>(), [false, true]);
    assert_ne!(arrived[0][BTH_LEN + 1], packets[1][BTH_LEN + 1]);
    assert_eq!((b.counters().dropped, b.counters().corrupted), (1, 1));
}

/// A link that accepts nothing while it is full.
#[derive(Debug)]
struct Gate {
    inner: MemoryLink,
    is_full: bool,
}

impl Link for Gate {
    fn inner(&self) -> Option<&dyn Link> {
        Some(&self.inner)
    }

    fn inner_mut(&mut self) -> Option<&mut dyn Link> {
        Some(&mut self.inner)
    }

    fn properties(&self) -> LinkProperties {
        self.inner.properties()
    }

    fn transmit(&mut self, now_ns: u64, batch: &TransmitBatch, next: &mut usize) -> io::Result<()> {
        if self.is_full { Ok(()) } else { self.inner.transmit(now_ns, batch, next) }
    }

    fn receive(&mut self, now_ns: u64, sink: &mut dyn Sink) -> io::Result<usize> {
        self.inner.receive(now_ns, sink)
    }

    fn link_counters(&self) -> LinkCounters {
        self.inner.link_counters()
    }
}

/// Returns a receiver and a sender with faults on a link that is full.
fn full(plan: &str) -> (MemoryLink, Faults<Gate>) {
    let network = MemoryNetwork::new(MemoryOptions { latency_ns: 0, ..MemoryOptions::default() });
    let (a, inner) = (network.attach(address(1)), network.attach(address(2)));
    let b = Faults::new(Gate { inner, is_full: true }, plan.parse().unwrap());
    (a, b.of_device(address(2), ROCE_UDP_PORT))
}

#[test]
fn a_full_link_gets_each_packet_once_when_it_has_room() {
    let (mut a, mut b) = full("drop direction=out nth=2");
    // Packets of different lengths form several runs.
    let batch = batch_of_packets(&[packet(0, 32), packet(1, 36), packet(2, 40)]);
    let mut next = 0;
    for now_ns in 0..3 {
        b.transmit(now_ns, &batch, &mut next).unwrap();
        assert_eq!((next, b.poll_timeout()), (2, None), "the driver waits for room");
    }
    b.inner.is_full = false;
    b.transmit(3, &batch, &mut next).unwrap();
    assert_eq!((next, b.counters().packets), (3, 3));
    assert_eq!(packets_of(&receive_all(&mut a, 3), ICRC_LEN), [packet(0, 32), packet(2, 40)]);
}

#[test]
fn a_delayed_packet_leaves_later_if_the_link_is_full_at_its_time() {
    let (mut a, mut b) = full("delay direction=out nth=1 for=5us");
    transmit_all(&mut b, 0, &batch_of_packets(&[packet(0, LEN)]));
    assert_eq!(b.poll_timeout(), Some(5_000));
    receive_all(&mut b, 5_000);
    let again_ns = b.poll_timeout().expect("the packet waits for room");
    assert!(again_ns > 5_000);
    b.inner.is_full = false;
    receive_all(&mut b, again_ns);
    assert_eq!(packets_of(&receive_all(&mut a, again_ns), ICRC_LEN), [packet(0, LEN)]);
    assert_eq!(b.poll_timeout(), None);
}
