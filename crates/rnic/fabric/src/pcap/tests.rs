use std::sync::{Arc, Mutex};

use doorbell_wire::{Flow, parse_frame};
use pcap_file::DataLink;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::{Block, PcapNgReader};

use super::file::mac_of;
use super::*;
use crate::counted::Counted;
use crate::faults::{FaultPlan, Faults};
use crate::memory::{MemoryLink, MemoryNetwork, MemoryOptions};
use crate::testing::{batch_of, packet, packets_of, receive_all, transmit_all};

const PORT: u16 = 4791;

const EPOCH: Duration = Duration::from_secs(1_700_000_000);

/// A file in memory that a test can read. Writes beyond its maximum size fail.
#[derive(Clone)]
struct BoundedFile(Arc<Mutex<Vec<u8>>>, usize);

impl Write for BoundedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut file = self.0.lock().unwrap();
        if file.len() + bytes.len() > self.1 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        file.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl BoundedFile {
    fn new(limit: usize) -> Self {
        Self(Arc::new(Mutex::new(Vec::new())), limit)
    }

    fn read(&self) -> Vec<Frame> {
        let bytes = self.0.lock().unwrap().clone();
        let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
        let mut frames = Vec::new();
        while let Some(block) = reader.next_block() {
            let Block::EnhancedPacket(packet) = block.unwrap() else { continue };
            assert_eq!(packet.original_len as usize, packet.data.len());
            let mut frame = Frame { at: packet.timestamp, bytes: packet.data.into_owned(), ..Frame::default() };
            for option in &packet.options {
                match option {
                    EnhancedPacketOption::Flags(flags) => frame.flags = *flags,
                    EnhancedPacketOption::Comment(text) => {
                        frame.marks = FaultMarks::parse(text.as_bytes()).unwrap();
                        frame.comment = String::from(&**text);
                    }
                    other => panic!("{other:?}"),
                }
            }
            frames.push(frame);
        }
        assert_eq!(reader.interfaces().len(), 1);
        assert_eq!(reader.interfaces()[0].linktype, DataLink::ETHERNET);
        frames
    }

    fn frames(&self) -> Vec<(Duration, Vec<u8>)> {
        self.read().into_iter().map(|frame| (frame.at, frame.bytes)).collect()
    }
}

/// A frame of a capture.
#[derive(Default)]
struct Frame {
    at: Duration,
    bytes: Vec<u8>,
    flags: u32,
    marks: FaultMarks,
    comment: String,
}

fn address(host: u8) -> IpAddr {
    [10, 0, 0, host].into()
}

fn ends(options: MemoryOptions) -> (MemoryLink, MemoryLink) {
    let network = MemoryNetwork::new(options);
    (network.attach(address(1)), network.attach(address(2)))
}

fn capture<L: Link>(link: L, host: u8, file: &BoundedFile) -> Pcap<L> {
    Pcap::new(link, address(host), PORT, file.clone(), |now_ns| EPOCH + Duration::from_nanos(now_ns)).unwrap()
}

/// Checks the ICRC in a frame with the frame's identification. Returns the outer headers and the packet.
fn packet_in(frame: &[u8]) -> (Outer, Vec<u8>) {
    let frame = parse_frame(frame).unwrap();
    let (outer, ports) = (frame.outer, frame.encapsulation);
    let flow = Flow::new(outer.src, outer.dst, ports.src_port, ports.dst_port);
    let (packet, icrc) = frame.payload.split_last_chunk().unwrap();
    let expected = flow.icrc(outer.identification.unwrap(), true, packet);
    assert_eq!(u32::from_le_bytes(*icrc), expected);
    assert_eq!((ports.src_mac, ports.dst_mac), (mac_of(outer.src), mac_of(outer.dst)));
    assert_eq!(outer.dont_fragment, Some(true));
    (outer, packet.to_vec())
}

#[test]
fn both_ends_capture_the_same_packets_with_right_icrcs() {
    for sealed in [true, false] {
        let (a, b) = ends(MemoryOptions { sealed, ..MemoryOptions::default() });
        let files = [BoundedFile::new(usize::MAX), BoundedFile::new(usize::MAX)];
        let mut a = capture(a, 1, &files[0]);
        let mut b = capture(b, 2, &files[1]);
        let lengths = [vec![32; 64], vec![1036, 16]].concat();
        let mut batch = batch_of(address(2), &lengths);
        if sealed {
            Sealer::new(address(1), PORT).seal(&mut batch);
        } else {
            let mut bare = TransmitBatch::new(1 << 16, 0);
            for (number, &len) in lengths.iter().enumerate() {
                bare.push(&crate::testing::path(address(2)), len, crate::testing::info())
                    .copy_from_slice(&packet(number, len));
            }
            batch = bare;
        }
        transmit_all(&mut a, 5, &batch);
        receive_all(&mut b, 2_000);
        drop((a, b));
        let (sent, received) = (files[0].frames(), files[1].frames());
        assert_eq!(sent[0].0, Duration::new(1_700_000_000, 5));
        assert_eq!(received[0].0, Duration::new(1_700_000_000, 2_000));
        assert_eq!((sent.len(), received.len()), (66, 66));
        for (number, (sent, received)) in sent.iter().zip(&received).enumerate() {
            assert_eq!(sent.1, received.1);
            let (outer, bytes) = packet_in(&sent.1);
            assert_eq!(bytes, packet(number, lengths[number]));
            assert_eq!(outer.identification, Some((number % 64 % 65) as u16));
        }
    }
}

#[test]
fn runs_of_one_turn_have_separate_times() {
    let (mut a, b) = ends(MemoryOptions { latency_ns: 0, ..MemoryOptions::default() });
    let file = BoundedFile::new(usize::MAX);
    // This clock advances by one nanosecond with each call.
    let looks = std::sync::atomic::AtomicU64::new(0);
    let clock = move |_| EPOCH + Duration::from_nanos(looks.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    let mut b = Pcap::new(b, address(2), PORT, file.clone(), clock).unwrap();
    for lengths in [[32, 32], [48, 48]] {
        transmit_all(&mut a, 0, &batch_of(address(2), &lengths));
    }
    let answer = batch_of(address(1), &[32]);
    // Two runs arrive and one packet is sent, all with the same `now_ns`.
    assert_eq!(receive_all(&mut b, 7).len(), 2);
    transmit_all(&mut b, 7, &answer);
    drop(b);
    let times: Vec<_> = file.frames().iter().map(|(at, _)| (*at - EPOCH).as_nanos()).collect();
    assert_eq!(times.len(), 5);
    assert!(times.is_sorted(), "{times:?}");
    assert!(times[0] == times[1] && times[2] == times[3], "packets of one run have different times: {times:?}");
    assert!(times[1] < times[2] && times[3] < times[4], "{times:?}");
}

#[test]
fn the_identification_of_a_received_packet_is_found() {
    let (mut a, b) = ends(MemoryOptions { latency_ns: 0, ..MemoryOptions::default() });
    let file = BoundedFile::new(usize::MAX);
    // Half of the packets are dropped, so the position of a packet in a received run differs from the index with which
    // its ICRC was computed.
    let plan = "drop=0.5,seed=1".parse().unwrap();
    let mut b = capture(Faults::new(b, plan), 2, &file);
    let mut batch = batch_of(address(2), &[32; 64]);
    Sealer::new(address(1), PORT).seal(&mut batch);
    transmit_all(&mut a, 0, &batch);
    receive_all(&mut b, 0);
    drop(b);
    let frames = file.read();
    assert_eq!(frames.len(), 64);
    let lost = frames.iter().filter(|frame| frame.marks == FaultMarks::DROPPED).count();
    assert!((10..54).contains(&lost));
    for frame in frames {
        let (outer, bytes) = packet_in(&frame.bytes);
        assert_eq!(bytes, packet(usize::from(outer.identification.unwrap()), 32));
    }
}

#[test]
fn captured_packets_reach_the_file_in_bounded_time() {
    // Maximum age of unwritten packets, which the documentation of [`Pcap`] promises.
    const BOUND_NS: u64 = 10_000_000;
    let (mut a, b) = ends(MemoryOptions { latency_ns: 0, ..MemoryOptions::default() });
    let file = BoundedFile::new(usize::MAX);
    let mut b = capture(b, 2, &file);
    assert_eq!((file.frames().len(), b.poll_timeout()), (0, None));
    transmit_all(&mut a, 0, &batch_of(address(2), &[32]));
    receive_all(&mut b, 7);
    // The driver calls `receive` at the deadline, with or without new packets.
    assert_eq!((file.frames().len(), b.poll_timeout()), (0, Some(7 + BOUND_NS)));
    receive_all(&mut b, 7 + BOUND_NS);
    assert_eq!((file.frames().len(), b.poll_timeout()), (1, None));
    transmit_all(&mut a, 0, &batch_of(address(2), &[32]));
    receive_all(&mut b, 8 + BOUND_NS);
    drop(b);
    assert_eq!(file.frames().len(), 2);
}

#[test]
fn records_are_written_when_the_driver_asks() {
    let (mut a, b) = ends(MemoryOptions { latency_ns: 0, ..MemoryOptions::default() });
    let file = BoundedFile::new(usize::MAX);
    // Each wrapper calls `write_records` of the link that it wraps.
    let plan = "seed=1".parse().unwrap();
    let mut b: Box<dyn Link> = Box::new(Counted::new(Faults::new(capture(b, 2, &file), plan)));
    assert!(!b.holds_records());
    transmit_all(&mut a, 0, &batch_of(address(2), &[32]));
    receive_all(&mut b, 0);
    assert_eq!((b.holds_records(), file.frames().len()), (true, 0));
    b.write_records();
    assert_eq!((b.holds_records(), file.frames().len()), (false, 1));
}

#[test]
fn a_capture_of_the_sender_has_the_packets_as_they_left() {
    let own = |marks: FaultMarks| marks.and(FaultMarks::OUTBOUND);
    let none = FaultMarks::NONE;
    for (plan, expected) in [
        ("drop direction=out nth=2", [none, own(FaultMarks::DROPPED), none].to_vec()),
        ("duplicate direction=out nth=2", [none, none, own(FaultMarks::DUPLICATE), none].to_vec()),
        ("delay direction=out nth=1 for=5us", [none, none, own(FaultMarks::DELAYED)].to_vec()),
        ("reorder direction=out nth=2 behind=1", [none, none, own(FaultMarks::REORDERED)].to_vec()),
        ("corrupt direction=out nth=1", [own(FaultMarks::CORRUPTED), none, none].to_vec()),
    ] {
        let (mut a, b) = ends(MemoryOptions { latency_ns: 0, ..MemoryOptions::default() });
        let file = BoundedFile::new(usize::MAX);
        let mut b = capture(Faults::new(b, plan.parse().unwrap()).of_device(address(2), PORT), 2, &file);
        let mut batch = batch_of(address(1), &[32; 3]);
        Sealer::new(address(2), PORT).seal(&mut batch);
        transmit_all(&mut b, 0, &batch);
        receive_all(&mut b, 5_000);
        drop(b);
        let frames = file.read();
        assert_eq!(frames.iter().map(|frame| frame.marks).collect::<Vec<_>>(), expected, "{plan}");
        assert!(frames.iter().all(|frame| frame.flags == 2), "{plan}");
        let whole = frames.iter().filter(|frame| !frame.marks.has(FaultMarks::CORRUPTED));
        let captured: Vec<_> = whole.filter(|frame| !frame.marks.has(FaultMarks::DROPPED)).collect();
        let arrived = packets_of(&receive_all(&mut a, 5_000), 4);
        assert!(captured.iter().all(|frame| arrived.contains(&packet_in(&frame.bytes).1)), "{plan}");
    }
}

#[test]
fn comments_name_the_plan_and_the_rules() {
    let plan: FaultPlan = "drop name=lost nth=1;delay nth=2 for=5us;duplicate nth=2".parse().unwrap();
    let (mut a, b) = ends(MemoryOptions { latency_ns: 0, ..MemoryOptions::default() });
    let file = BoundedFile::new(usize::MAX);
    let mut b = capture(Faults::new(b, plan.clone()), 2, &file);
    transmit_all(&mut a, 0, &batch_of(address(2), &[32; 3]));
    receive_all(&mut b, 0);
    receive_all(&mut b, 5_000);
    drop(b);
    let comments: Vec<_> = file.read().into_iter().map(|frame| frame.comment).collect();
    let expected = [
        "doorbell fault: dropped, rule 1 lost",
        "",
        "doorbell fault: delayed, rule 2, rule 3",
        "doorbell fault: duplicate, delayed, rule 2, rule 3",
    ];
    assert_eq!(comments, expected);
    let bytes = file.0.lock().unwrap().clone();
    assert!(String::from_utf8_lossy(&bytes).contains(&format!("doorbell fault plan: {plan}")), "{plan}");

    // The packets that leave have the rules of their direction.
    let (_a, b) = ends(MemoryOptions { latency_ns: 0, ..MemoryOptions::default() });
    let plan = "ecn nth=1;drop direction=out name=own nth=2".parse().unwrap();
    let file = BoundedFile::new(usize::MAX);
    let mut b = capture(Faults::new(b, plan).of_device(address(2), PORT), 2, &file);
    let mut batch = batch_of(address(1), &[32; 2]);
    Sealer::new(address(2), PORT).seal(&mut batch);
    transmit_all(&mut b, 0, &batch);
    drop(b);
    let comments: Vec<_> = file.read().into_iter().map(|frame| frame.comment).collect();
    assert_eq!(comments, ["", "doorbell fault: dropped, outbound, rule 2 own"]);
}

#[test]
fn long_comments_are_cut() {
    let rule = "peer=ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff7 nth=1..99999999999 every=99999999999 share=0.123456789 \
                opcode=rc-rdma-write-middle qp-order=1000000..2000000 psn=1..16777215 \
                message-offset=1000000..2000000 after=1ns before=60s field=psn value=16777215";
    let rules: Vec<_> = (0..256).map(|number| format!("corrupt name={number:0>64} {rule}")).collect();
    let plan: FaultPlan = rules.join(";").parse().unwrap();
    assert!(plan.to_string().len() > usize::from(u16::MAX));
    let (_a, b) = ends(MemoryOptions::default());
    let file = BoundedFile::new(usize::MAX);
    drop(capture(Faults::new(b, plan), 2, &file));
    assert_eq!(file.read().len(), 0, "the header can be read");
}

#[test]
fn captured_frames_show_their_direction_and_faults() {
    let delayed = FaultMarks::DELAYED;
    let cases = [
        ("seed=1", true, vec![FaultMarks::NONE; 3]),
        ("drop=1", true, vec![FaultMarks::DROPPED; 3]),
        ("duplicate=1", true, [FaultMarks::NONE, FaultMarks::DUPLICATE].repeat(3)),
        ("corrupt=1", true, vec![FaultMarks::CORRUPTED; 3]),
        ("corrupt=1", false, vec![FaultMarks::CORRUPTED.and(FaultMarks::DROPPED); 3]),
        ("delay=5us,duplicate=1", true, [delayed, delayed.and(FaultMarks::DUPLICATE)].repeat(3)),
        ("reorder=1", true, vec![FaultMarks::REORDERED; 3]),
    ];
    for (plan, sealed, expected) in cases {
        let (mut a, b) = ends(MemoryOptions { latency_ns: 0, sealed, ..MemoryOptions::default() });
        let file = BoundedFile::new(usize::MAX);
        let mut b = capture(Faults::new(b, plan.parse().unwrap()), 2, &file);
        transmit_all(&mut a, 0, &batch_of(address(2), &[32; 3]));
        let mut arrived = packets_of(&receive_all(&mut b, 0), 0).len();
        arrived += packets_of(&receive_all(&mut b, 100_000), 0).len();
        transmit_all(&mut b, 100_000, &batch_of(address(1), &[32]));
        let counted = b.link_counters();
        drop(b);
        let frames = file.read();
        let marks: Vec<_> = frames.iter().map(|frame| frame.marks).collect();
        assert_eq!(marks, [&expected[..], &[FaultMarks::NONE]].concat(), "{plan}");
        let flags: Vec<_> = frames.iter().map(|frame| frame.flags).collect();
        assert_eq!(flags, [vec![1; expected.len()], vec![2]].concat(), "{plan}");
        let with = |mark| expected.iter().filter(|marks| marks.has(mark)).count();
        assert_eq!(arrived, expected.len() - with(FaultMarks::DROPPED), "{plan}");
        // Without an ICRC, corrupted packets are dropped too, but the counter `fault_dropped` does not include them.
        let dropped = if sealed { with(FaultMarks::DROPPED) as u64 } else { 0 };
        let expected = LinkCounters {
            fault_dropped: dropped,
            fault_duplicated: with(FaultMarks::DUPLICATE) as u64,
            fault_reordered: with(FaultMarks::REORDERED) as u64,
            fault_corrupted: with(FaultMarks::CORRUPTED) as u64,
            fault_delayed: with(FaultMarks::DELAYED) as u64,
            ..counted
        };
        assert_eq!(counted, expected, "{plan}");
        let at = frames[0].at - EPOCH;
        let is_late = plan.starts_with("delay") || plan.starts_with("reorder");
        assert_eq!(at, Duration::from_micros(if is_late { 100 } else { 0 }), "{plan}");
    }
}

#[test]
fn a_full_disk_ends_the_capture_and_not_the_traffic() {
    let (mut a, b) = ends(MemoryOptions { latency_ns: 0, ..MemoryOptions::default() });
    let file = BoundedFile::new(100);
    let mut b = capture(b, 2, &file);
    for round in 0..4 {
        transmit_all(&mut a, 0, &batch_of(address(2), &[32; 10]));
        let now_ns = round * FLUSH_INTERVAL_NS;
        assert_eq!(receive_all(&mut b, now_ns)[0].packets.len(), 10);
    }
    assert_eq!((b.packets(), b.poll_timeout()), (20, None));
    assert!(Pcap::new(a, address(1), PORT, BoundedFile::new(0), Duration::from_nanos).is_err());
}

#[test]
fn groups_have_the_ethernet_addresses_of_groups() {
    let cases = [
        ("10.1.2.3", [0x02, 0, 10, 1, 2, 3]),
        ("239.129.2.3", [0x01, 0, 0x5e, 1, 2, 3]),
        ("ff02::1:2", [0x33, 0x33, 0, 1, 0, 2]),
    ];
    for (address, mac) in cases {
        assert_eq!(mac_of(address.parse().unwrap()), mac, "{address}");
    }
}
