//! `doorbell bench`, both sides on this machine.

use std::path::PathBuf;

use doorbell_machine::{Machine, Root};
use doorbell_wire::{BTH_LEN, BthRepr, Check, Flow, ICRC_LEN, parse_frame};
use pcap_file::pcapng::{Block, PcapNgReader};
use serde_json::{Value, json};

use crate::command::{list, measuring, number, positive, run};

pub(crate) const ENDS: [&str; 2] = ["client", "server"];

/// Runs a measurement, checks the invariants of all records, and returns the record.
#[track_caller]
pub(crate) fn record(arguments: &str) -> Value {
    let record = {
        let _one_at_a_time = measuring();
        run(&format!("bench {arguments} --json")).expect_status(0).json()
    };
    let protocol = record["parameters"]["protocol"].as_str().expect("a protocol").to_owned();
    for result in list(&record, "/results") {
        check_packets(&protocol, result);
    }
    record
}

/// Checks that data packets and bytes match the prediction. Checks acknowledgements too if nothing was retransmitted.
#[track_caller]
pub(crate) fn check_packets(protocol: &str, result: &Value) {
    assert_eq!(number(result, "/damaged"), 0);
    let repeated: u64 = ENDS.iter().map(|end| number(result, &format!("/counted/{end}/retransmitted_packets"))).sum();
    let refused: u64 = ENDS.iter().map(|end| number(result, &format!("/counters/{end}/rnr_nak_sent"))).sum();
    for end in ENDS {
        let counted = |what: &str| number(result, &format!("/counted/{end}/{what}"));
        let predicted = |what: &str| number(result, &format!("/predicted/{end}/{what}"));
        let flag = |what: &str| result["predicted"][end][what] == true;
        let [packets, bytes] = ["packets", "bytes"].map(|unit| {
            let unit = format!("data_{unit}");
            let (counted, least, most) = (counted(&unit), predicted(&unit), predicted(&format!("{unit}_max")));
            let most = if flag("asks") { u64::MAX } else { most };
            assert!((least..=most).contains(&counted), "{end} in {result:#}");
            (counted, least)
        });
        // Only requests of one size have a fixed ratio of bytes to packets. Other protocols have requests of several
        // sizes.
        if protocol == "send-receive" {
            assert_eq!(bytes.0 * packets.1, packets.0 * bytes.1, "{end} in {result:#}");
        }
        assert_eq!(predicted("ack_packets_min"), 0);
        let [packets, bytes] = ["packets", "bytes"].map(|unit| {
            let unit = format!("response_{unit}");
            assert!(counted(&unit) >= predicted(&unit), "{end} in {result:#}");
            counted(&unit)
        });
        if repeated == 0 && refused == 0 {
            assert!(counted("ack_packets") <= predicted("ack_packets_max"), "{end} in {result:#}");
            assert!(flag("is_asked") || packets <= predicted("response_packets_max"), "{end} in {result:#}");
            assert!(flag("is_asked") || bytes <= predicted("response_bytes_max"), "{end} in {result:#}");
        }
    }
}

#[test]
fn messages_share_a_given_number_of_buffers() {
    for (arguments, buffers) in [("--op send", 1), ("--op send -e -b", 3), ("--op write", 1), ("--op read", 2)] {
        for result in list(&record(&format!("bw -n 500 -s 64,65536 {arguments} --buffers {buffers}")), "/results") {
            assert_eq!(number(result, "/fitted/send_buffers"), buffers, "{arguments}");
            assert!(number(result, "/fitted/window") >= 8, "the window is as without the option: {arguments}");
            assert_eq!(number(result, "/messages"), if arguments.contains("-b") { 1000 } else { 500 }, "{arguments}");
        }
    }
    assert_eq!(number(&record("lat -n 500 -s 64 --buffers 1"), "/results/0/fitted/send_buffers"), 1);
}

#[test]
fn messages_of_every_size_cross_intact_one_way() {
    let record = record("bw -n 2000 -s 0,1,16,64,65,4096,4097,65536 --verify");
    for (result, bytes) in list(&record, "/results").iter().zip([0_u64, 1, 16, 64, 65, 4096, 4097, 65_536]) {
        assert_eq!((number(result, "/bytes"), number(result, "/messages")), (bytes, 2000));
        assert_eq!(number(result, "/mtu"), 4096);
        let packets = bytes.div_ceil(4096).max(1);
        assert_eq!(number(result, "/counted/client/data_packets"), 2000 * packets);
        // Each packet has 58 B of headers. The last packet also has 4 B of immediate data with the credits.
        let padded = bytes.next_multiple_of(4);
        assert_eq!(number(result, "/counted/client/data_bytes"), 2000 * (packets * 58 + 4 + padded));
        assert_eq!(number(result, "/counted/server/data_packets"), 0);
        assert_eq!(number(result, "/counters/server/rnr_nak_sent"), 0);
    }
}

#[test]
fn messages_of_every_size_cross_intact_there_and_back() {
    let record = record("lat -n 500 -s 0,1,64,65,4096,4097,65536 --verify");
    assert_eq!(list(&record, "/results").len(), 7);
    for result in list(&record, "/results") {
        assert_eq!(number(result, "/messages"), 500);
        let latency = ["min", "p50", "p99", "p999", "max"].map(|name| number(result, &format!("/latency_ns/{name}")));
        assert!(latency[0] > 0 && latency.is_sorted(), "{result:#}");
        positive(result, "/latency_ns/mean");
        // The figures are computed from the whole histogram, which contains every round.
        let buckets = list(result, "/histogram_ns");
        assert_eq!(buckets.iter().map(|bucket| number(bucket, "/1")).sum::<u64>(), 500);
        assert_eq!(number(&buckets[buckets.len() - 1], "/0"), latency[4]);
        assert!(buckets.iter().map(|bucket| number(bucket, "/0")).is_sorted());
    }
}

#[test]
fn messages_of_a_mebibyte_cross_intact() {
    for kind in ["lat -n 50", "bw -n 100", "bw -n 100 -b"] {
        let record = record(&format!("{kind} -s 1048576 --verify"));
        assert_eq!(number(&record, "/results/0/bytes"), 1 << 20);
    }
}

#[test]
fn both_sides_send() {
    let record = record("bw -b -n 2000 -s 0,16,5000 --verify");
    for result in list(&record, "/results") {
        assert_eq!(number(result, "/messages"), 4000);
        let [here, there] = ENDS.map(|end| number(result, &format!("/counted/{end}/data_packets")));
        assert!(here == there && here >= 2000, "{result:#}");
    }
}

#[test]
fn several_connections_share_the_work() {
    for (kind, messages) in [("bw", 2000), ("bw -b", 4000), ("lat", 2000)] {
        let record = record(&format!("{kind} -q 4 -n 500 -s 16,5000 --verify"));
        assert_eq!(number(&record, "/parameters/connections"), 4);
        for result in list(&record, "/results") {
            assert_eq!(number(result, "/messages"), messages, "{kind}");
        }
    }
}

#[test]
fn bw_runs_threads_shared_receives_and_a_single_receiver() {
    for (options, connections, serving) in [
        ("--threads 2", 2, r#""threads":2"#),
        ("--threads 2 -q 4 --use-srq", 4, r#""shared_receives":"lock""#),
        ("-q 3 --use-srq=thread", 3, r#""shared_receives":"thread""#),
        ("-q 3 --single-receiver", 3, r#""single_receiver":true"#),
    ] {
        let record = record(&format!("bw -s 16,5000 -n 500 --verify {options}"));
        assert_eq!(number(&record, "/parameters/connections"), connections, "{options}");
        assert!(record["parameters"]["serving"].to_string().contains(serving), "{options}: {record:#}");
        for result in list(&record, "/results") {
            assert_eq!(number(result, "/messages"), 500 * connections, "{options}");
            for end in ENDS {
                assert!(number(result, &format!("/cpu/{end}/all_ns")) > 0, "both ends poll: {options}");
                number(result, &format!("/cpu/{end}/empty_ns"));
            }
        }
    }
    for (options, said) in [
        ("bw --threads 2 -q 1", "the number of threads (--threads) is 2, allowed is 1 to 1"),
        ("lat --single-receiver", "a single receiver (--single-receiver) is on"),
        (
            "bw --protocol direct-write --use-srq",
            "sharing receive buffers (--use-srq) is on, allowed is off for protocols other than send-receive",
        ),
    ] {
        run(&format!("bench {options}")).expect_complaint(2, &[said]);
    }
}

#[test]
fn sleeping_on_events_loses_nothing() {
    for kind in ["bw", "lat", "bw -q 4 -b"] {
        let record = record(&format!("{kind} -e -n 300 -s 0,16,65536 --verify"));
        assert_eq!(record.pointer("/parameters/events"), Some(&Value::Bool(true)));
    }
}

#[test]
fn configurations_have_names() {
    for (name, window, batch) in [("sequential", 1, 1), ("unbatched", 64, 1), ("batched", 256, 8)] {
        let record = record(&format!("bw --config {name} -n 2000 -s 16 --verify"));
        assert_eq!(number(&record, "/parameters/window"), window);
        assert_eq!(number(&record, "/parameters/batch"), batch);
        assert_eq!(number(&record, "/results/0/fitted/window"), window);
    }
    // An option overrides the value of the named configuration.
    let record = record("bw --config batched -l 4 -r 7 -n 2000 -s 16 --verify");
    let parameters = ["window", "batch", "depth"].map(|what| number(&record, &format!("/parameters/{what}")));
    assert_eq!(parameters, [256, 4, 7]);
}

#[test]
fn every_path_mtu_carries_messages() {
    for mtu in [256_u64, 512, 1024, 2048, 4096] {
        let record = record(&format!("bw -m {mtu} -n 500 -s 16,10000 --verify"));
        for (result, bytes) in list(&record, "/results").iter().zip([16_u64, 10_000]) {
            assert_eq!(number(result, "/mtu"), mtu);
            assert_eq!(number(result, "/counted/client/data_packets"), 500 * bytes.div_ceil(mtu));
        }
    }
}

#[test]
fn queues_of_one_and_inline_limits_work() {
    record("bw -t 1 -r 1 -n 500 -s 0,16,5000 --verify");
    record("bw -b -t 64 -r 1 -n 500 -s 16 --verify");
    for inline in [0, 1024] {
        record(&format!("bw -I {inline} -n 500 -s 0,1,1024,1025 --verify"));
    }
}

#[test]
fn bw_keeps_an_offered_rate_and_duration() {
    let record = record("bw --rate 2000 -D 0.2 -s 16 --verify");
    // The offered rate limits the number of messages at any time. The first message is sent at once.
    let (messages, seconds) = (number(&record, "/results/0/messages"), positive(&record, "/results/0/seconds"));
    assert!(messages > 0 && messages as f64 <= 2000.0 * seconds + 1.0, "{messages} messages in {seconds} s");
}

#[test]
fn all_sizes_are_measured_and_memory_is_bounded() {
    let finished = {
        let _one_at_a_time = measuring();
        run("bench bw -a -n 3 --json").expect_status(0)
    };
    let record = finished.json();
    let sizes: Vec<u64> = list(&record, "/results").iter().map(|result| number(result, "/bytes")).collect();
    assert_eq!(sizes, (1..=23).map(|exponent| 1 << exponent).collect::<Vec<u64>>());

    let finished = {
        let _one_at_a_time = measuring();
        run("bench bw -n 100 -s 65536 --memory 1 --verify").expect_status(0)
    };
    for what in ["65536 B: receive depth cut from 16 to", "65536 B: window cut from 8 to"] {
        assert!(finished.stderr.contains(what), "{what} is missing in:\n{}", finished.stderr);
    }
}

#[test]
fn credits_spare_a_slow_receiver() {
    let record = record("bw -n 500 -s 64 -r 8 --slow-receiver-us 50 --verify");
    let result = &list(&record, "/results")[0];
    assert_eq!(number(result, "/counters/server/rnr_nak_sent"), 0);
    assert!(number(result, "/stalled_on_credits") > 0);
}

#[test]
fn a_slow_receiver_without_credits_counts_rnr_naks() {
    let arguments = "bw -n 500 -s 64 -r 8 --slow-receiver-us 50 --no-credits --verify";
    let record = record(arguments);
    let result = &list(&record, "/results")[0];
    assert_eq!(record.pointer("/parameters/credits"), Some(&Value::Bool(false)));
    assert_eq!(number(result, "/messages"), 500, "messages wait, but no message is lost");
    assert!(number(result, "/counters/server/rnr_nak_sent") > 0, "{result:#}");
    assert!(number(result, "/counters/client/rnr_nak_received") > 0, "{result:#}");
    assert_eq!(number(result, "/counted/server/rnr_naks"), number(result, "/counters/server/rnr_nak_sent"));

    let _one_at_a_time = measuring();
    let finished = run(&format!("bench {arguments} -v")).expect_status(0);
    assert!(finished.stdout.contains("RNR NAKs: without credits"), "{}", finished.stdout);
    // Without credits and without RNR retries, the connection breaks.
    let finished = run(&format!("bench {arguments} --rnr-retry 0")).expect_status(1);
    assert!(finished.stderr.contains("(RNR retry counter exceeded)"), "{}", finished.stderr);
    // The second process has failed too, but only the first one reports it.
    let errors = finished.stderr.lines().filter(|line| line.starts_with("doorbell: ")).count();
    assert_eq!(errors, 1, "{}", finished.stderr);
}

#[test]
fn messages_survive_all_packet_faults() {
    for (fault, counter) in [
        ("drop=0.01,seed=7", "packet_seq_err"),
        ("duplicate=0.05,seed=7", "duplicate_request"),
        ("reorder=0.02,seed=7", "out_of_sequence"),
        ("corrupt=0.02,seed=7", "rx_icrc_encapsulated"),
        ("delay=200us", "rx_send_requests"),
        ("drop=0.01,duplicate=0.01,reorder=0.01,delay=5us,seed=7", "packet_seq_err"),
    ] {
        let record = record(&format!("bw -n 2000 -s 16 --verify --fault {fault}"));
        let result = &list(&record, "/results")[0];
        assert_eq!(number(result, "/messages"), 2000, "{fault}");
        let counted: u64 = ENDS.iter().map(|end| number(result, &format!("/counters/{end}/{counter}"))).sum();
        assert!(counted > 0, "{fault} leaves no trace in {counter}: {result:#}");
    }
    for kind in ["bw -n 200 -s 0,65536", "bw -b -q 4 -n 100 -s 5000", "lat -n 200 -s 16,5000"] {
        record(&format!("{kind} --verify --fault drop=0.01,seed=7"));
    }
}

#[test]
fn each_link_carries_its_packets_as_recorded() {
    for (link, expected, carried_by) in [
        ("udp", false, &["udp"][..]),
        ("shm", true, &["shared_memory"]),
        // On a busy machine, an end that waits too long for its peer sends the first packets over UDP.
        ("auto", true, &["shared_memory", "both", "udp"]),
    ] {
        let record = record(&format!("bw -n 2000 -s 16,70000 --verify --link {link}"));
        let results = list(&record, "/results");
        for (index, result) in results.iter().enumerate() {
            // In a short run, all messages may be sent before both ends share memory.
            let is_early = link == "auto" && index + 1 < results.len();
            let word = result["carried_by"].as_str().unwrap_or_default();
            assert!(carried_by.contains(&word), "{link}: {result:#}");
            for end in ENDS {
                let through_memory = number(result, &format!("/link/{end}/tx_shared_memory_packets"));
                let sent = number(result, &format!("/counters/{end}/tx_vport_rdma_unicast_packets"));
                assert!((through_memory > 0) == expected || is_early, "{link}: {result:#}");
                assert!(through_memory <= sent, "{link}: {result:#}");
                let over_udp = number(result, &format!("/link/{end}/tx_udp_packets"));
                assert!(link == "auto" || (over_udp > 0) != expected, "{link}: {result:#}");
                assert_eq!(number(result, &format!("/link/{end}/tx_ring_full")), 0, "{link}");
            }
        }
    }
    // Faults also apply to packets in shared memory. With faults, these packets have an ICRC, which detects flipped
    // bits.
    let record = record("bw -n 2000 -s 16 --verify --link shm --fault drop=0.01,corrupt=0.01,reorder=0.01,seed=7");
    let result = &list(&record, "/results")[0];
    let counted =
        |counter: &str| ENDS.map(|end| number(result, &format!("/counters/{end}/{counter}"))).iter().sum::<u64>();
    assert!(counted("rx_icrc_encapsulated") > 0 && counted("out_of_sequence") > 0, "{result:#}");

    let _one_at_a_time = measuring();
    let text = run("bench lat -n 100 -s 16 --link shm -v").expect_status(0).stdout;
    assert!(text.contains("All packets went through shared memory"), "{text}");
}

#[test]
fn the_record_has_all_documented_fields() {
    for kind in ["bw", "lat"] {
        let record = record(&format!("{kind} -n 200 -s 16"));
        assert_eq!(record.pointer("/schema"), Some(&Value::from("doorbell-bench/1")));
        for what in ["doorbell", "kernel", "cpu", "device", "provider"] {
            assert!(record.pointer(&format!("/environment/{what}")).is_some_and(Value::is_string), "{what}");
        }
        for what in ["cpus", "unix_time_s", "udp_port", "active_mtu", "receive_buffer_bytes"] {
            positive(&record, &format!("/environment/{what}"));
        }
        assert_eq!(record.pointer("/parameters/sizes"), Some(&Value::from(vec![16])));
        assert_eq!(number(&record, "/parameters/extent/messages"), 200);
        let result = &list(&record, "/results")[0];
        for what in ["messages_per_s", "bytes_per_s", "seconds"] {
            positive(result, &format!("/{what}"));
        }
        for end in ENDS {
            // Only some empty polls are timed, so a short run may have no time of empty polls.
            positive(result, &format!("/cpu_per_message/{end}/all_us"));
            for counter in [
                "tx_vport_rdma_unicast_packets",
                "rx_vport_rdma_unicast_bytes",
                "out_of_sequence",
                "packet_seq_err",
                "rnr_nak_retry_err",
                "local_ack_timeout_err",
                "duplicate_request",
                "rx_icrc_encapsulated",
                "tx_data_packets",
                "tx_ack_packets",
                "tx_word_packets",
                "tx_retransmitted_packets",
            ] {
                number(result, &format!("/counters/{end}/{counter}"));
            }
            // Every sent packet has one of these kinds.
            let count = |name: &str| number(result, &format!("/counters/{end}/{name}"));
            let kinds = ["tx_data", "tx_ack", "tx_response", "tx_retransmitted"];
            for unit in ["packets", "bytes"] {
                let sum: u64 = kinds.iter().map(|kind| count(&format!("{kind}_{unit}"))).sum();
                assert_eq!(sum, count(&format!("tx_vport_rdma_unicast_{unit}")), "{end}");
            }
        }
        let has_latency = result.pointer("/latency_ns").is_some_and(Value::is_object);
        assert_eq!(has_latency, kind == "lat");
    }
}

#[test]
fn the_limit_of_the_kernel_is_measured() {
    let _one_at_a_time = measuring();
    let record = run("bench limit --repetitions 1 -D 0.05 --json").expect_status(0).json();
    for link in [&record, &record["shared_memory"]] {
        positive(link, "/ping_pong_ns");
        let results = list(link, "/results");
        assert_eq!(results.len(), 2);
        for (result, frame_bytes) in results.iter().zip([78, 4154]) {
            assert_eq!(number(result, "/frame_bytes"), frame_bytes);
            positive(result, "/datagrams_per_s");
            positive(result, "/bytes_per_s");
        }
    }
    positive(&record, "/cache_line_ns");
    for copy in list(&record, "/copies") {
        positive(copy, "/bytes_per_s");
    }
    let text = run("bench limit --repetitions 1 -D 0.05").expect_status(0).stdout;
    for said in ["UDP over loopback", "memory that both processes share", "4154", "a cache line takes", "1024 KiB at"] {
        assert!(text.contains(said), "{said}: {text}");
    }
}

/// A file that is removed at the end of its test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        Self(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Ignore an error: a file that remains does no harm.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_capture_holds_every_packet_with_a_right_icrc() {
    let scratch = Scratch::new("bench.pcap");
    let file = scratch.0.display();
    let record = record(&format!("bw -n 300 -s 0,1,16,5000 --verify --pcap {file}"));
    let bytes = std::fs::read(&scratch.0).expect("the capture was written");
    let mut reader = PcapNgReader::new(bytes.as_slice()).expect("the capture is a pcapng file");
    let mut packets = 0;
    while let Some(block) = reader.next_block() {
        let Block::EnhancedPacket(packet) = block.expect("the file is whole") else { continue };
        let frame = parse_frame(&packet.data).expect("each packet is an Ethernet frame with UDP in it");
        let (ports, outer) = (frame.encapsulation, frame.outer);
        assert_eq!((ports.src_port, ports.dst_port), (4791, 4791));
        let flow = Flow::new(outer.src, outer.dst, ports.src_port, ports.dst_port);
        let (packet, icrc) = frame.payload.split_last_chunk::<ICRC_LEN>().expect("there is an ICRC");
        let identification = outer.identification.expect("IPv4 has an identification");
        let expected = flow.icrc(identification, outer.dont_fragment.unwrap_or_default(), packet);
        assert_eq!(u32::from_le_bytes(*icrc), expected, "packet {packets}");
        assert!(matches!(flow.check(identification, frame.payload), Check::Valid { .. }));
        let bth = BthRepr::read(packet.first_chunk::<BTH_LEN>().expect("there is a BTH"));
        assert!(bth.opcode.operation().is_some(), "packet {packets} has an opcode that does not exist");
        packets += 1;
    }
    // The first process writes the capture, with all packets that this process sends and receives.
    let counted: u64 = list(&record, "/results")
        .iter()
        .flat_map(|result| {
            ["tx", "rx"]
                .map(|way| format!("/counters/client/{way}_vport_rdma_unicast_packets"))
                .map(|at| number(result, &at))
        })
        .sum();
    assert!(packets >= counted && counted > 0, "{packets} packets captured, {counted} counted");
}

const PROTOCOLS: [&str; 16] = [
    "direct-read",
    "direct-read-fenced",
    "direct-read-fenced-awaited",
    "direct-read-send",
    "direct-read-fenced-send",
    "direct-write",
    "direct-write-each",
    "buffered-write-immediate-send",
    "buffered-write-immediate-read",
    "buffered-write-tail-send",
    "buffered-write-tail-read",
    "buffered-write-reverse-send",
    "buffered-write-reverse-read",
    "shared-write",
    "shared-write-each",
    "buffered-read",
];

/// The packets and bytes of a message match the operations of its protocol, where the protocol determines them.
#[test]
fn every_protocol_carries_messages_intact() {
    for protocol in PROTOCOLS {
        for (kind, connections) in
            [("lat -n 200", 1), ("bw -n 500 -l 8", 1), ("bw -n 500 -b", 1), ("bw -n 300 -q 3", 3)]
        {
            let record = record(&format!("{kind} --protocol {protocol} -s 0,16,5000 --verify"));
            assert_eq!(record["parameters"]["protocol"], protocol);
            for result in list(&record, "/results") {
                assert!(number(result, "/messages") >= 200 * connections, "{protocol}, {kind}");
            }
        }
        record(&format!("bw --op request-response -n 500 --protocol {protocol} -s 64 --verify"));
        record(&format!("bw -n 300 -t 8 --protocol {protocol} -s 200 --reply 20000 --verify"));
    }
    // These counts are exact: a read request for each message, and two packets of data.
    let record = record("bw -n 100 --protocol direct-read -s 8192");
    assert_eq!(number(&record, "/results/0/counted/client/data_packets"), 100);
    assert_eq!(number(&record, "/results/0/counted/client/data_bytes"), 100 * (58 + 16));
    // An end that does not run for a while on a busy machine causes repeated READs, which are answered again.
    let responses = number(&record, "/results/0/counted/client/response_packets");
    let repeated = number(&record, "/results/0/counted/server/retransmitted_packets");
    assert!(responses == 200 || (responses > 200 && repeated > 0), "{responses} responses, {repeated} repeated");
}

#[test]
fn one_source_reaches_all_readers() {
    let record = record("bw --protocol direct-read-send --replicate -q 4 -n 300 -s 16,100000 --verify");
    for result in list(&record, "/results") {
        assert_eq!(number(result, "/messages"), 1200);
        assert_eq!(result["sent_by_connection"], serde_json::json!([300, 300, 300, 300]));
    }
}

/// Without acknowledgements, received and lost messages add up to the sent messages, and packets match the prediction.
#[test]
fn unacknowledged_messages_are_counted() {
    for (arguments, sizes) in [("uc", "0,16,5000,100000"), ("ud", "0,16,1024"), ("ud -q 3 -l 4", "16,4096")] {
        let lost_by = |fault: &str| -> u64 {
            let record = record(&format!("bw --transport {arguments} -n 400 --rate 20000 -s {sizes} --verify {fault}"));
            let results = list(&record, "/results");
            assert_eq!(results.len(), sizes.split(',').count());
            let lost = |result: &Value| {
                let sent: u64 = list(result, "/sent_by_connection").iter().map(|sent| sent.as_u64().unwrap()).sum();
                assert_eq!(sent, if arguments.contains("-q 3") { 1200 } else { 400 });
                assert_eq!(number(result, "/messages") + number(result, "/lost"), sent);
                for what in ["data_packets", "data_bytes"] {
                    let [counted, predicted] =
                        ["counted", "predicted"].map(|of| number(result, &format!("/{of}/client/{what}")));
                    assert_eq!(counted, predicted, "{what} in {result:#}");
                }
                assert_eq!(number(result, "/counters/server/tx_vport_rdma_unicast_packets"), 0);
                number(result, "/lost")
            };
            results.iter().map(lost).sum()
        };
        lost_by("");
        assert!(lost_by("--fault drop=0.2,seed=3") > 100);
        // A duplicate counts once; otherwise more messages would have arrived than were sent.
        lost_by("--fault duplicate=0.2,reorder=0.1,seed=3");
    }
}

#[test]
fn unacknowledged_ping_pongs_end() {
    for transport in ["uc", "ud"] {
        let measure = || record(&format!("lat --transport {transport} -n 300 -s 16,1000 --verify"));
        // A late answer, as on a busy machine, counts neither as a round nor as lost.
        let none_is_late = |record: &Value| {
            let of = |result: &Value| number(result, "/messages") + number(result, "/lost");
            list(record, "/results").iter().all(|result| of(result) >= 300)
        };
        let honest = (0..5).map(|_| measure()).find(none_is_late).unwrap_or_else(measure);
        for result in list(&honest, "/results") {
            positive(result, "/latency_ns/p50");
            assert!(number(result, "/messages") + number(result, "/lost") >= 300);
            assert!(number(result, "/counted/client/data_packets") == 500, "200 of them to warm up");
        }
        let lossy = record(&format!("lat --transport {transport} -n 50 -s 16 --verify --fault drop=0.05,seed=3"));
        let result = &list(&lossy, "/results")[0];
        assert!((1..250).contains(&number(result, "/lost")), "{result:#}");
        assert_eq!(number(result, "/counted/client/data_packets"), 250);
    }
    let _one_at_a_time = measuring();
    let finished = run("bench bw -n 300 -s 16 --transport uc --verbose").expect_status(0);
    assert!(finished.stdout.contains("Messages that did not arrive"), "{}", finished.stdout);
    let wrong = [
        ("bw --transport ud -s 8192", "the message size (-s) is 8192 B", "allowed is 0 to 4096 B"),
        ("bw --transport ud -m 1024 -s 1025", "the message size (-s) is 1025 B", "allowed is 0 to 1024 B"),
        ("bw --transport uc --op write", "the transport (--transport) is uc", "rc for operations other than send"),
        ("bw --transport ud -e", "the transport (--transport) is ud", "rc for ends that sleep until an event"),
        ("lat --transport ud --protocol direct-read", "the transport (--transport) is ud", "rc for protocols"),
    ];
    for (arguments, given, allowed) in wrong {
        run(&format!("bench {arguments}")).expect_complaint(2, &[given, allowed]);
    }
}

#[test]
fn tables_mark_unpredictable_packet_counts() {
    let _one_at_a_time = measuring();
    let finished = run("bench bw -v -n 500 -s 64 --protocol buffered-write-tail-read").expect_status(0);
    assert!(finished.stdout.contains("One end asks the other by READ for its progress"), "{}", finished.stdout);
    let (_, spent) = finished.stdout.split_once("CPU time per message, us").expect("what processors were used for");
    let rows: Vec<Vec<&str>> = spent.lines().skip(2).take(2).map(|row| row.split_whitespace().collect()).collect();
    for (row, side) in rows.iter().zip(["this", "other"]) {
        assert_eq!(row[..2], ["64", side], "{spent}");
        let all: f64 = row[2].parse().expect("CPU time of this side is known");
        assert!(all > 0.0 && row[3].parse().is_ok_and(|useful: f64| useful <= all), "{spent}");
    }
}

/// Both processes receive their CPUs as arguments, and the record contains them.
#[test]
fn threads_are_pinned_to_given_cpus() {
    let allowed = Machine::of(&Root::default()).cpus;
    let [first, .., last] = allowed.as_slice() else {
        return eprintln!("left out: one CPU is not enough for two ends");
    };
    let found = record(&format!("bw -d doorbell0 -s 64 -n 2000 --cpus {last},{first}"));
    assert_eq!(found.pointer("/environment/pinning/cpus"), Some(&json!([last, first])), "{found}");
    // With more threads than CPUs, no thread is pinned, and the record states the reason.
    let found = record(&format!("bw -d doorbell0 -s 64 -n 2000 --threads 2 --cpus {last},{first}"));
    let pinning = &found["environment"]["pinning"];
    assert_eq!(pinning["cpus"], json!([]), "{pinning}");
    assert!(pinning["because"].as_str().is_some_and(|why| why.contains("4 thread(s) poll, and 2 CPU(s)")), "{pinning}");
    let alone = run(&format!("bench bw -d doorbell0 -n 1 --cpus {last}"));
    alone.expect_complaint(2, &["--cpus names 1 CPU(s) for 2 processes", "or use --cpus none"]);
}
