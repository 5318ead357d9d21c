//! Nodes behind switches: waiting, drops, pauses and routes.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::{Arc, Mutex};

use doorbell_protocols::Protocol;
use doorbell_record::{Extent, Kind, Operation, Parameters};
use doorbell_sim::traffic::{Carried, Pattern, Run, Traffic, TrafficError};
use doorbell_sim::{Ps, Testbed, Topology, testbed};
use pcap_file::pcapng::{Block, PcapNgReader};

fn t1() -> Testbed {
    testbed::by_name("connectx5-100g").expect("a built-in testbed").clone()
}

/// Returns T1 with other values of the switch.
fn switch(values: &[(&str, &str)]) -> Testbed {
    let replace = |testbed: Testbed, (name, value): &(&str, &str)| {
        testbed.with(&format!("switch.{name}"), value).unwrap_or_else(|error| panic!("{error}"))
    };
    values.iter().fold(t1(), replace)
}

fn traffic(pattern: Pattern, n: usize, bytes: usize, messages: u64) -> Traffic {
    let mut parameters = Parameters::plain(Kind::Bandwidth, Operation::Send, bytes);
    parameters.extent = Extent::Messages(messages);
    parameters.verify = true;
    Traffic { pattern, n, parameters, bytes }
}

fn run(testbed: &Testbed, topology: Topology, traffic: &Traffic) -> Carried {
    let run = Run { testbed, topology, seed: 1, memory: 1 << 30, capture: None, progress: None };
    let carried = traffic.run(run).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(carried.damaged, 0);
    carried
}

/// Returns the rate in messages per second at which messages of 4096 B fill a line. Each message takes 4096 + 82 B.
fn line_rate(testbed: &Testbed) -> f64 {
    testbed.link.rate.bits_per_s() as f64 / 8.0 / (4096.0 + 82.0)
}

#[test]
fn queues_that_overflow_drop_and_connections_recover() {
    let values = [("when_full", "drop"), ("resume_at", "0B"), ("pause_at", "64KiB"), ("queue", "64KiB")];
    let testbed = switch(&values);
    let carried = run(&testbed, Topology::Star { nodes: 5 }, &traffic(Pattern::ManyToOne, 4, 4096, 300));
    let counts = carried.summary.counts;
    assert!(counts.dropped > 0 && carried.retransmitted > 0, "{counts:?}");
    assert!(counts.longest_queue_bytes() <= 64 << 10, "{counts:?}");
    assert_eq!((carried.messages, counts.pauses), (1200, 0));
}

/// N:1 has as many receiving threads as senders, or the given number. All threads of a node share its RNIC.
#[test]
fn receiving_threads_of_a_node_are_the_senders_or_a_given_number() {
    let with = |server_threads, reply| {
        let mut asked = traffic(Pattern::ManyToOne, 6, 16, 1000);
        asked.parameters.serving.server_threads = server_threads;
        asked.parameters.reply = reply;
        if reply.is_some() {
            asked.parameters.operation = Operation::RequestResponse;
        }
        let carried = run(&t1(), Topology::Star { nodes: 7 }, &asked);
        let receiving = if server_threads == 0 { 6 } else { server_threads };
        assert_eq!((carried.messages, carried.summary.threads.len()), (6000, 6 + receiving));
        carried.messages_per_s
    };
    for reply in [None, Some(64)] {
        let [each, one, two] = [0, 1, 2].map(|threads| with(threads, reply));
        assert!(one < 0.8 * each && one < 0.9 * two, "{each} {one} {two}");
    }
}

/// The replies of 64 KiB to three senders leave their node over one line.
#[test]
fn replies_of_another_size_return_to_each_sender() {
    let mut asked = traffic(Pattern::ManyToOne, 3, 200, 50);
    asked.parameters.operation = Operation::RequestResponse;
    asked.parameters.reply = Some(65_536);
    let carried = run(&t1(), Topology::Star { nodes: 4 }, &asked);
    let line_ns = 65_536.0 * 8e9 / t1().link.rate.bits_per_s() as f64;
    assert_eq!((carried.messages, carried.lost), (150, 0));
    assert!(carried.messages_per_s < 1e9 / line_ns, "{}", carried.messages_per_s);
    assert!(carried.latency_ns.is_some_and(|ns| ns as f64 > line_ns), "{:?}", carried.latency_ns);
    asked.parameters.kind = Kind::Latency;
    asked.pattern = Pattern::OneToOne;
    let alone = run(&t1(), Topology::Star { nodes: 2 }, &asked);
    assert!(alone.latency_ns.is_some_and(|ns| ns as f64 > line_ns), "a whole round trip: {:?}", alone.latency_ns);
    assert!(alone.latency_ns < carried.latency_ns);
}

#[test]
fn pauses_hold_senders_up_and_nothing_is_dropped() {
    let values = [("resume_at", "32KiB"), ("pause_at", "64KiB"), ("queue", "256KiB")];
    let testbed = switch(&values);
    let star = traffic(Pattern::ManyToOne, 8, 4096, 300);
    let carried = run(&testbed, Topology::Star { nodes: 9 }, &star);
    let counts = carried.summary.counts;
    assert!(counts.pauses > 0 && counts.paused_ps > 0, "{counts:?}");
    assert_eq!((counts.dropped, carried.retransmitted, carried.messages), (0, 0, 2400));
    // The queue grows beyond `pause_at` only by the bytes that were already in the cables of the senders.
    assert!((64 << 10..256 << 10).contains(&counts.longest_queue_bytes()), "{counts:?}");
    // The pauses cost no throughput, because the queue keeps the line of the receiver full.
    let share = carried.messages_per_s / line_rate(&testbed);
    assert!((0.9..=1.0).contains(&share), "{share}");
    // In a Clos network, the leaf of the receiver pauses the spines, the spines pause the other leaves, and these
    // leaves pause their nodes.
    let clos = Topology::Clos { nodes: 24, hosts: 8, spines: 4 };
    let carried = run(&testbed, clos, &traffic(Pattern::ManyToOne, 23, 4096, 200));
    let counts = carried.summary.counts;
    assert!(counts.pauses > 0, "{counts:?}");
    assert_eq!((counts.dropped, carried.retransmitted, carried.messages), (0, 0, 4600));
    assert!(counts.longest_queue_bytes() <= 256 << 10, "{counts:?}");
}

#[test]
fn frames_that_wait_behind_many_others_are_marked_and_counted() {
    let incast = traffic(Pattern::ManyToOne, 4, 4096, 300);
    let marked = |at: &str| {
        let carried = run(&switch(&[("mark_at", at)]), Topology::Star { nodes: 5 }, &incast);
        (carried.summary.counts.marked, carried.summary.counts.packets)
    };
    let ((few, packets), (many, _), (none, _)) = (marked("500KiB"), marked("20KiB"), marked("16MiB"));
    assert!(few > 0 && few < many && many < packets, "{few} and {many} of {packets}");
    assert_eq!(none, 0);
    assert_eq!(marked("0B").0, 0, "zero means never");
}

/// The cables to the spines limit the rate between two leaves, and the traffic nearly fills these cables.
#[test]
fn oversubscribed_leaves_carry_their_share() {
    let testbed = t1();
    // All nodes of one leaf send to the nodes of the other leaf.
    let across = traffic(Pattern::ManyToMany, 8, 4096, 400);
    let rate = |oversubscription| {
        let topology = Topology::clos(16, 8, oversubscription).expect("a network");
        let carried = run(&testbed, topology, &across);
        assert_eq!((carried.retransmitted, carried.summary.counts.dropped), (0, 0), "{oversubscription}");
        carried.messages_per_s / line_rate(&testbed)
    };
    let (one_spine, two, eight) = (rate(8), rate(4), rate(1));
    assert!((0.9..=1.0).contains(&one_spine), "one line: {one_spine}");
    assert!(two > 1.2 * one_spine && two <= 2.0, "two lines: {two}");
    assert!(eight > 1.5 * two && eight <= 8.0, "eight lines, not evenly used: {eight}");
}

#[test]
fn every_protocol_crosses_a_clos_network() {
    for protocol in Protocol::ALL {
        let mut traffic = traffic(Pattern::ManyToMany, 6, 600, 100);
        traffic.parameters.protocol = protocol;
        let carried = run(&t1(), Topology::Clos { nodes: 12, hosts: 4, spines: 2 }, &traffic);
        assert_eq!((carried.messages, carried.summary.counts.dropped), (600, 0), "{}", protocol.name());
        assert_eq!(carried.retransmitted, 0, "{}: no connection's packets overtake each other", protocol.name());
    }
}

#[test]
fn a_path_between_leaves_adds_two_switches_and_two_cables() {
    let testbed = t1();
    let mut ping = traffic(Pattern::OneToOne, 1, 16, 50);
    (ping.parameters.kind, ping.parameters.window) = (Kind::Latency, 1);
    let latency = |hosts| {
        let topology = Topology::Clos { nodes: 4, hosts, spines: 1 };
        run(&testbed, topology, &ping).latency_ns.expect("a latency")
    };
    let (within, between) = (latency(2), latency(1));
    let expected = (testbed.switch.latency + testbed.link.propagation).times(2);
    let found = Ps::from_ns(between - within);
    // A polling thread sees the message at its next poll.
    let look = testbed.cpu.poll_call.times(2);
    assert!(found + look > expected && found < expected + look, "{found}, expected {expected}");
}

#[test]
fn a_thousand_nodes_exchange_messages() {
    let topology = Topology::clos(1024, 32, 2).expect("a network");
    let carried = run(&t1(), topology, &traffic(Pattern::ManyToMany, 512, 16, 10));
    assert_eq!((carried.messages, carried.summary.nodes.len()), (5120, 1024));
}

#[test]
fn impossible_runs_are_rejected_before_they_start() {
    let testbed = t1();
    let refused = |topology, traffic: &Traffic, memory| {
        let run = Run { testbed: &testbed, topology, seed: 1, memory, capture: None, progress: None };
        traffic.run(run).expect_err("the settings must be rejected").to_string()
    };
    let incast = traffic(Pattern::ManyToOne, 5, 16, 1);
    let star = |nodes| Topology::Star { nodes };
    assert_eq!(refused(star(5), &incast, 1 << 30), "the pattern N:1 with N = 5 needs 6 nodes, but the topology has 5");
    assert_eq!(refused(star(1025), &incast, 1 << 30), "the topology has 1025 nodes, allowed are 2 to 1024");
    let words = refused(star(6), &incast, 1 << 20);
    assert!(words.starts_with("the run would need about ") && words.ends_with("allowed are 1 MiB"), "{words}");
    let mut ping = incast;
    ping.parameters.kind = Kind::Latency;
    ping.parameters.window = 1;
    let allowed = "a latency needs one connection: the pattern is N:1, allowed is 1:1";
    assert_eq!(refused(star(6), &ping, 1 << 30), allowed);
}

/// A file that a test can read.
#[derive(Clone, Default)]
struct MemoryFile(Arc<Mutex<Vec<u8>>>);

impl Write for MemoryFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no thread panics with the lock").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A writer that fails after the given number of bytes, as a full disk does.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(std::io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_capture_that_cannot_be_written_fails_the_run() {
    let testbed = t1();
    let run = |room| {
        let capture = Some(Box::new(Full(room)) as Box<dyn Write + Send>);
        let run =
            Run { testbed: &testbed, topology: Topology::Pair, seed: 1, memory: 1 << 30, capture, progress: None };
        traffic(Pattern::OneToOne, 1, 4096, 100).run(run)
    };
    assert!(matches!(run(10), Err(TrafficError::Capture(_))), "10 bytes are too few for the header");
    let error = run(1000).expect_err("the packets do not fit");
    assert!(error.to_string().starts_with("the capture cannot be written: "), "{error}");
}

/// Returns the time of each packet of a pcapng file in nanoseconds, and its bytes.
fn packets(file: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let mut reader = PcapNgReader::new(file).expect("a pcapng file");
    let mut found = Vec::new();
    while let Some(block) = reader.next_block() {
        if let Block::EnhancedPacket(packet) = block.expect("a whole block") {
            found.push((packet.timestamp.as_nanos() as u64, packet.data.into_owned()));
        }
    }
    found
}

#[test]
fn a_capture_holds_every_packet_once_in_the_order_of_time() {
    let testbed = t1();
    let file = MemoryFile::default();
    let capture = Some(Box::new(file.clone()) as Box<dyn Write + Send>);
    let topology = Topology::Clos { nodes: 6, hosts: 2, spines: 2 };
    let run = Run { testbed: &testbed, topology, seed: 1, memory: 1 << 30, capture, progress: None };
    let carried = traffic(Pattern::ManyToOne, 5, 5000, 100).run(run).expect("the simulation ends");
    let found = packets(&file.0.lock().expect("no thread panics with the lock"));
    assert_eq!(found.len() as u64, carried.summary.counts.packets);
    assert!(found.is_sorted_by_key(|(at, _)| *at));
    assert!(found.last().is_some_and(|(at, _)| *at <= carried.summary.ended.as_ns()));
    for (at, bytes) in &found {
        let frame = doorbell_wire::parse_frame(bytes).unwrap_or_else(|error| panic!("at {at} ns: {error}"));
        assert!(frame.encapsulation.src_port >= 0xc000, "a port of RoCE v2 flows");
        let flow = doorbell_wire::Flow::new(frame.outer.src, frame.outer.dst, frame.encapsulation.src_port, 4791);
        let (packet, icrc) = frame.payload.split_at(frame.payload.len() - 4);
        assert_eq!(flow.icrc(0, true, packet).to_le_bytes(), icrc, "at {at} ns");
    }
}

/// `cargo xtask test` lets tshark and scapy read this capture, if `DOORBELL_PCAP_DIR` names a directory. The expected
/// results are stored next to the capture.
#[test]
fn a_capture_is_laid_out_for_other_programs() {
    let testbed = t1();
    let file = MemoryFile::default();
    let capture = Some(Box::new(file.clone()) as Box<dyn Write + Send>);
    let topology = Topology::Clos { nodes: 2, hosts: 1, spines: 1 };
    let run = Run { testbed: &testbed, topology, seed: 1, memory: 1 << 30, capture, progress: None };
    traffic(Pattern::OneToOne, 1, 5000, 40).run(run).expect("the simulation ends");
    let bytes = file.0.lock().expect("no thread panics with the lock").clone();
    let (mut requests, mut responses, mut acks) = (Vec::new(), Vec::new(), BTreeSet::new());
    for (at, bytes) in packets(&bytes) {
        let frame = doorbell_wire::parse_frame(&bytes).unwrap_or_else(|error| panic!("at {at} ns: {error}"));
        let bth = doorbell_wire::BthRepr::read(frame.payload.first_chunk().expect("a header"));
        let (opcode, psn, dqpn) = (bth.opcode, bth.psn.get(), bth.dest_qpn.get());
        let row = format!("opcode={} psn={psn} dqpn={dqpn}", opcode.0);
        if opcode == doorbell_wire::Opcode::RC_ACKNOWLEDGE {
            let msn_and_syndrome = &frame.payload[12..16];
            assert!(msn_and_syndrome[0] < 0x20, "no NAK on a network without loss");
            acks.insert((frame.outer.src, psn, msn_and_syndrome.to_vec()));
        } else if frame.outer.src.to_string() == "10.0.0.1" {
            requests.push(row);
        } else {
            responses.push(row);
        }
    }
    // Each of the 40 messages has two packets. The connection also sends messages of its own.
    assert!(requests.len() >= 80 && !acks.is_empty(), "{} requests", requests.len());
    if let Some(directory) = std::env::var_os("DOORBELL_PCAP_DIR") {
        let capture = std::path::Path::new(&directory).join("simulated.pcap");
        let lines = |sign: &str, rows: &[String]| rows.iter().map(|row| format!("{sign} {row}\n")).collect::<String>();
        let (requests, responses, acks) = (lines(">", &requests), lines("<", &responses), acks.len());
        let expected = format!("requester 10.0.0.1\n{requests}{responses}acks {acks} {acks}\n");
        std::fs::write(capture.with_extension("expected"), expected).expect("the directory can be written");
        std::fs::write(capture, bytes).expect("the directory can be written");
    }
}
