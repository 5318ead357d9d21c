use doorbell_wire::{MessageKind, OuterKind, PathMtu, Response, Transport, message_cost};
use proptest::prelude::*;

use super::*;

/// Returns the rates of a host that receives the requests of its peer.
fn incoming(packets: (f64, f64), bytes: (f64, f64)) -> Rates {
    Rates { rx_packets: packets.0, rx_bytes: packets.0 * bytes.0, tx_packets: packets.1, tx_bytes: packets.1 * bytes.1 }
}

#[test]
fn rates_and_numbers_have_their_units() {
    use sentences::{byte_rate, number_of};

    let rates = [0.0, 5.48, 999.0, 1000.0, 3.13e6, 12.4e9].map(byte_rate);
    assert_eq!(rates, ["0 B/s", "5.48 B/s", "999 B/s", "1.00 kB/s", "3.13 MB/s", "12.4 GB/s"]);
    assert_eq!([0, 1, 2].map(|count| number_of(count, "packet")), ["0 packets", "1 packet", "2 packets"]);
}

/// Returns the rank of the first explanation with this operation, pattern and payload whose rate includes the true
/// one.
fn rank(
    answer: &Answer,
    kind: MessageKind,
    patterns: &[Pattern],
    requester: Requester,
    bytes: u64,
    rate: f64,
) -> Option<usize> {
    answer.explanations.iter().position(|it| {
        it.operations.contains(&kind)
            && patterns.contains(&it.pattern)
            && it.requester == requester
            && it.payload_bytes.contains(bytes)
            && it.received_payload_bytes.is_none_or(|received| received.contains(bytes))
            && it.operations_per_s.contains(rate)
    })
}

fn listed(answer: &Answer) -> String {
    let line = |it: &Explanation| format!("  {:.2} {}\n", it.implausibility, it.summary);
    answer.explanations.iter().map(line).collect::<String>() + &answer.verdict
}

/// Published figures from `data/published/t2.toml`.
mod published {
    use doorbell_claims::row;

    use super::*;

    /// Returns a published number, per second or in bytes.
    fn of(id: &str) -> f64 {
        row(id).unwrap_or_else(|| panic!("no row {id}")).value.in_base()
    }

    fn best(rates: &Rates) -> Explanation {
        explain(rates, &Hints::default()).unwrap().explanations.remove(0)
    }

    #[test]
    fn zero_length_writes() {
        let (packets_in, packets_out) = (of("one-sided/write-0-packets-in"), of("one-sided/write-0-packets-out"));
        let rates = incoming((packets_in, packets_out), (of("wire/write-0-frame"), of("wire/ack-frame")));
        let answer = explain(&rates, &Hints::default()).unwrap();
        let place = rank(&answer, MessageKind::Write, &[Pattern::OneWay], Requester::Peer, 0, 4.40e6);
        assert!(place.is_some_and(|place| place < 2), "{}", listed(&answer));
        // A SEND of 16 bytes has the same length. A READ without payload has the same rates.
        assert!(rank(&answer, MessageKind::Send, &[Pattern::OneWay], Requester::Peer, 16, 4.40e6).is_some());
        let same = explain(&incoming((4.40e6, 4.40e6), (74.0, 62.0)), &Hints::default()).unwrap();
        assert!(rank(&same, MessageKind::Read, &[Pattern::Fetch], Requester::Peer, 0, 4.40e6).is_some());
    }

    #[test]
    fn writes_of_one_to_four_and_five_to_eight_bytes() {
        for (frame, least, most) in [(of("wire/write-1-frame"), 1, 4), (of("wire/write-5-frame"), 5, 8)] {
            let packets = (of("one-sided/write-1-packets-in"), of("one-sided/write-1-packets-out"));
            let it = best(&incoming(packets, (frame, of("wire/ack-frame"))));
            assert_eq!(it.operations, [MessageKind::Write]);
            assert_eq!(it.payload_bytes, Span { min: least, max: most });
            assert_eq!((it.requester, it.pattern), (Requester::Peer, Pattern::OneWay));
            assert!(it.operations_per_s.contains(of("one-sided/write-1-operations")));
            assert!(it.acks_per_packet.unwrap().contains(1.0));
        }
    }

    #[test]
    fn writes_of_one_byte_with_eight_outstanding() {
        let packets = (of("one-sided/write-1-eight-packets-in"), of("one-sided/write-1-eight-packets-out"));
        let it = best(&incoming(packets, (of("wire/write-1-frame"), of("wire/ack-frame"))));
        assert_eq!(it.operations, [MessageKind::Write]);
        assert_eq!(it.payload_bytes, Span { min: 1, max: 4 });
        assert!(it.operations_per_s.contains(of("one-sided/write-1-eight-operations")));
        assert!(it.acks_per_packet.unwrap().contains(3.08 / 3.13));
    }

    /// The publication counted 64.00 bytes per packet, but no packet of 1 B has that length. A message of 1 B with
    /// immediate data has 66 bytes and an ACK 62, so half of the packets are ACKs.
    #[test]
    fn request_response_as_counted() {
        let (packets, bytes) = (of("request-response/counted-packets-in"), of("request-response/counted-bytes-in"));
        assert_eq!(bytes / packets, of("request-response/counted-bytes-per-packet"));
        let rates = Rates { rx_packets: packets, rx_bytes: bytes, tx_packets: packets, tx_bytes: bytes };
        let answer = explain(&rates, &Hints::default()).unwrap();
        let place = rank(&answer, MessageKind::SendImm, &[Pattern::RequestResponse], Requester::Both, 1, packets / 2.0)
            .unwrap();
        assert!(place < answer.named, "{}", listed(&answer));
        let said = &answer.explanations[place].summary;
        assert!(said.contains("231.6 k if one is outstanding, else 222 k to 482 k round trips/s (RC)"), "{said}");
        assert!(answer.explanations[0].pattern == Pattern::RequestResponse, "{}", listed(&answer));
        // SENDs of 5 to 8 B also have 66 bytes.
        assert!(
            rank(&answer, MessageKind::Send, &[Pattern::RequestResponse], Requester::Both, 8, packets / 2.0).is_some()
        );
    }

    /// 463 k packets/s in each direction are 231 k requests and responses. SENDs without immediate data have 62
    /// bytes.
    #[test]
    fn request_response_of_one_byte() {
        let packets = (of("request-response/packets-in"), of("request-response/packets-out"));
        let answer = explain(&incoming(packets, (62.0, 62.0)), &Hints::default()).unwrap();
        let place = rank(&answer, MessageKind::Send, &[Pattern::RequestResponse], Requester::Both, 1, 231.5e3);
        assert!(place.is_some_and(|place| place < 3), "{}", listed(&answer));
        // SENDs in one direction with an ACK each have the same lengths, whichever side sends.
        for side in [Requester::ThisHost, Requester::Peer] {
            assert!(
                rank(&answer, MessageKind::Send, &[Pattern::OneWay], side, 1, 463e3).is_some(),
                "{}",
                listed(&answer)
            );
        }
    }

    /// 4154.0625 bytes per packet are 256 packets per message, one of which has a RETH. The counters showed 4154.0639,
    /// since they are read in the middle of messages.
    #[test]
    fn writes_of_one_mib() {
        let packets = (of("one-sided/write-1mib-packets-in"), of("one-sided/write-1mib-packets-out"));
        for mean in ["wire/write-1mib-bytes-per-packet", "wire/write-1mib-counted-bytes-per-packet"] {
            is_a_write_of_one_mib(&incoming(packets, (of(mean), of("wire/ack-frame"))));
        }
        // Less precise counters only show that messages are long.
        let rough = explain(&incoming((3.005e6, 0.105e6), (4154.0, 62.0)), &Hints::default()).unwrap();
        let place = rank(&rough, MessageKind::Write, &[Pattern::OneWay], Requester::Peer, 1 << 20, 3.005e6 / 256.0);
        assert!(place.is_some_and(|place| place < 2), "{}", listed(&rough));
    }

    fn is_a_write_of_one_mib(rates: &Rates) {
        let it = best(rates);
        assert_eq!(it.operations, [MessageKind::Write]);
        assert_eq!(it.payload_bytes, Span { min: 1 << 20, max: 1 << 20 });
        assert_eq!(it.path_mtu, Some(4096));
        assert!(it.operations_per_s.contains(3.005e6 / 256.0));
        // The publication states 12.3 GB/s.
        assert!(it.goodput_bytes_per_s.min < 12.31e9 && it.goodput_bytes_per_s.max > 12.3e9);
        // The publication states about 9 ACKs per message.
        let acks_per_message = it.acks_per_packet.unwrap().min * 256.0..=it.acks_per_packet.unwrap().max * 256.0;
        assert!(acks_per_message.contains(&8.95), "{acks_per_message:?}");
    }

    #[test]
    fn middle_packets_at_path_mtu_4096() {
        let answer = explain(&incoming((1e6, 1e5), (4154.0, 62.0)), &Hints::default()).unwrap();
        // The traffic has one packet per message, or any number of full packets.
        let first = &answer.explanations[0];
        assert_eq!(
            (first.operations.as_slice(), first.path_mtu),
            (&[MessageKind::Send][..], None),
            "{}",
            listed(&answer)
        );
        assert!(first.payload_bytes.contains(4096));
        assert!(rank(&answer, MessageKind::Send, &[Pattern::OneWay], Requester::Peer, 1 << 20, 1e6 / 256.0).is_some());
    }

    /// 4166 bytes are 4162, and probably a VLAN tag.
    #[test]
    fn datagrams_with_a_vlan_tag() {
        let rates = incoming((1e6, 0.0), (of("wire/ud-4096-frame"), 0.0));
        let answer = explain(&rates, &Hints::default()).unwrap();
        let tagged = &answer.explanations[0];
        assert!(tagged.vlan && tagged.transports == [Transport::Ud], "{}", listed(&answer));
        assert_eq!(tagged.operations, [MessageKind::Send]);
        // Immediate data instead of the tag gives the same length.
        let immediate = |it: &Explanation| it.operations == [MessageKind::SendImm] && !it.vlan && it.misfit == 0.0;
        assert!(answer.named().iter().any(immediate), "{}", listed(&answer));
        // Datagrams of 4162 bytes give no reason to assume a tag, and neither do those of 4165 bytes.
        let plain = explain(&incoming((1e6, 0.0), (4162.0, 0.0)), &Hints::default()).unwrap();
        assert!(
            !plain.explanations[0].vlan && plain.explanations[0].transports == [Transport::Ud],
            "{}",
            listed(&plain)
        );
        let near = explain(&incoming((1e6, 0.0), (4165.0, 0.0)), &Hints::default()).unwrap();
        assert!(!near.explanations[0].vlan, "{}", listed(&near));
        assert_eq!((tagged.nearest_payload_bytes, tagged.misfit), (Some(Span { min: 4093, max: 4096 }), 0.0));
        let told = explain(&rates, &Hints { vlan: true, ..Hints::default() }).unwrap();
        assert!(told.explanations.iter().all(|it| it.vlan));
    }

    #[test]
    fn share_of_the_line() {
        let hints = Hints { link_bits_per_s: Some(100e9), mtu: Some(PathMtu::Mtu4096), ..Hints::default() };
        let packets = 100e9 / 8.0 / 4178.0;
        let answer = explain(&incoming((packets, 0.1 * packets), (4154.0, 62.0)), &hints).unwrap();
        let link = answer.link.unwrap();
        assert!((link.rx_share - 1.0).abs() < 1e-9);
        assert!((link.tx_share - 0.1 * 86.0 / 4178.0).abs() < 1e-9);
        let goodput = link.goodput_share_of_used.unwrap();
        assert!(goodput.min <= 0.9804 && (goodput.max - 4096.0 / 4178.0).abs() < 1e-9, "{goodput:?}");
        let hints = Hints { link_bits_per_s: Some(10e9), ..hints };
        let answer = explain(&incoming((packets, 0.1 * packets), (4154.0, 62.0)), &hints).unwrap();
        assert!(
            answer.notes.iter().any(|note| note.contains("1000.0 % of what the link carries")),
            "{:?}",
            answer.notes
        );
    }
}

/// Traffic of a workload on the link.
#[derive(Clone, Copy, Debug)]
struct Workload {
    kind: MessageKind,
    /// Whether both sides send one message per operation.
    both_ways: bool,
    bytes: u64,
    mtu: PathMtu,
    outer: OuterKind,
    /// ACKs per request packet.
    acks: f64,
    /// Credit messages per message.
    credits: f64,
    requester: Requester,
    per_s: f64,
}

impl Workload {
    fn patterns(&self) -> &'static [Pattern] {
        match self.kind {
            _ if self.both_ways => &[Pattern::RequestResponse],
            MessageKind::Read | MessageKind::CompareSwap | MessageKind::FetchAdd => &[Pattern::Fetch],
            _ => &[Pattern::OneWay, Pattern::OneWayWithCredits],
        }
    }

    fn side(&self) -> Requester {
        if self.both_ways { Requester::Both } else { self.requester }
    }

    fn rates(&self) -> Rates {
        let cost = message_cost(self.kind, Transport::Rc, self.bytes, self.mtu, self.outer).unwrap();
        let ack = |share: f64| {
            let Response::Range { max, .. } =
                message_cost(MessageKind::Send, Transport::Rc, 0, self.mtu, self.outer).unwrap().response
            else {
                unreachable!("a SEND has an ACK as response")
            };
            (max.packets as f64 * share, max.frame_bytes as f64 * share)
        };
        let data = (cost.request.packets as f64, cost.request.frame_bytes as f64);
        let plus = |a: (f64, f64), b: (f64, f64)| (a.0 + b.0, a.1 + b.1);
        let (forth, back) = match cost.response {
            Response::Exact(response) => (data, (response.packets as f64, response.frame_bytes as f64)),
            _ if self.both_ways => {
                let one = plus(data, ack(data.0 * self.acks));
                (one, one)
            }
            // Credit messages have the length of ACKs.
            _ => (plus(data, ack(self.credits * self.acks)), ack(data.0 * self.acks + self.credits)),
        };
        let (rx, tx) = if self.requester == Requester::ThisHost { (back, forth) } else { (forth, back) };
        Rates {
            rx_packets: rx.0 * self.per_s,
            rx_bytes: rx.1 * self.per_s,
            tx_packets: tx.0 * self.per_s,
            tx_bytes: tx.1 * self.per_s,
        }
    }

    fn rank(&self, answer: &Answer) -> Option<usize> {
        rank(answer, self.kind, self.patterns(), self.side(), self.bytes, self.per_s)
    }
}

const SIZES: [u64; 7] = [0, 1, 8, 64, 512, 4096, 1 << 20];

/// Returns the workloads of the bench.
fn workloads() -> Vec<Workload> {
    let mut all = Vec::new();
    for mtu in [PathMtu::Mtu1024, PathMtu::Mtu4096] {
        for bytes in SIZES {
            let packets = bytes.div_ceil(mtu.bytes() as u64).max(1) as f64;
            // Numbers of ACKs per packet: none, one per 64, 8 and 2 messages, one per message, and one per packet.
            for acks in [0.0, 1.0 / 64.0 / packets, 1.0 / 8.0 / packets, 0.5 / packets, 1.0 / packets, 1.0] {
                for requester in [Requester::ThisHost, Requester::Peer] {
                    let base = Workload {
                        kind: MessageKind::Send,
                        both_ways: false,
                        bytes,
                        mtu,
                        outer: OuterKind::IPV4,
                        acks,
                        credits: 0.0,
                        requester,
                        per_s: 1e5,
                    };
                    for kind in [MessageKind::Send, MessageKind::SendImm, MessageKind::Write, MessageKind::Read] {
                        all.push(Workload { kind, ..base });
                    }
                    for credits in [1.0 / 64.0, 1.0 / 32.0, 0.25, 1.0] {
                        all.push(Workload { kind: MessageKind::SendImm, credits, ..base });
                    }
                    for kind in [MessageKind::Send, MessageKind::SendImm, MessageKind::Write] {
                        all.push(Workload { kind, both_ways: true, ..base });
                    }
                    for kind in [MessageKind::CompareSwap, MessageKind::FetchAdd] {
                        all.push(Workload { kind, bytes: 8, ..base });
                    }
                }
            }
        }
    }
    all
}

/// Returns the number of distinct flows of traffic, which distinguish the parts of a verdict.
fn flows(answer: &Answer) -> usize {
    let mut flows: Vec<_> = answer
        .named()
        .iter()
        .map(|it| format!("{:?} {:?} {} {}", it.pattern, it.requester, it.ip_version, it.vlan))
        .collect();
    flows.sort();
    flows.dedup();
    flows.len()
}

#[test]
fn every_workload_of_the_bench_is_named() {
    let (mut one_or_two, mut all) = (0, 0);
    for workload in workloads() {
        for mtu in [None, Some(workload.mtu)] {
            let answer = explain(&workload.rates(), &Hints { mtu, ..Hints::default() }).unwrap();
            let rank = workload.rank(&answer);
            assert!(
                rank.is_some_and(|rank| rank < answer.named),
                "{rank:?} of {workload:?} (path MTU hint {mtu:?})\n{}",
                listed(&answer)
            );
            // A verdict that names too many flows proves nothing.
            let flows = flows(&answer);
            assert!(flows <= 5 && answer.named <= 12, "{workload:?}\n{}", listed(&answer));
            one_or_two += usize::from(flows <= 2);
            all += 1;
        }
    }
    assert!(one_or_two * 3 >= all * 2, "only {one_or_two} of {all} verdicts name one or two flows");
}

#[test]
fn equally_long_operations_are_all_named() {
    // SENDs of 64 bytes have the length of WRITEs of 48, and WRITEs of 1 to 4 that of SENDs of 17 to 20.
    for (frame, send, write) in [(122.0, 64, 48), (78.0, 20, 4), (586.0, 528, 512)] {
        let answer = explain(&incoming((1e6, 0.2e6), (frame, 62.0)), &Hints::default()).unwrap();
        for (kind, bytes) in [(MessageKind::Send, send), (MessageKind::Write, write)] {
            let span = Span { min: bytes - 3, max: bytes };
            let named =
                answer.named().iter().any(|it| it.operations == [kind] && it.nearest_payload_bytes == Some(span));
            assert!(named, "{kind} of {bytes}\n{}", listed(&answer));
            assert!(answer.verdict.contains(&format!("{kind} of {}", sentences::payload(span))), "{}", answer.verdict);
        }
        assert!(answer.verdict.contains("counters cannot tell these apart"), "{}", answer.verdict);
    }
    // A single named explanation is not certain if others fit too.
    let answer = explain(&incoming((1e6, 1e6), (86.0, 70.0)), &Hints::default()).unwrap();
    assert_eq!(answer.named, 1);
    assert!(answer.explanations.len() > 1 && answer.verdict.contains("less plausible"), "{}", answer.verdict);
}

/// A requester asks for READs of 1 MiB in pieces of 256 KiB.
#[test]
fn split_reads_may_be_longer_than_each_request() {
    let rates = incoming((4e3, 256e3), (74.0, 4154.0 + 8.0 / 64.0));
    let answer = explain(&rates, &Hints::default()).unwrap();
    assert_eq!(rank(&answer, MessageKind::Read, &[Pattern::Fetch], Requester::Peer, 1 << 20, 1e3), Some(0));
    let piece = answer.explanations[0].nearest_payload_bytes.unwrap();
    assert!(piece.contains(256 << 10) && piece.max < 300 << 10, "{piece:?}");
    assert!(
        answer.verdict.contains("or of more, asked for in such pieces, by the peer, up to 4"),
        "{}",
        answer.verdict
    );
}

#[test]
fn an_unambiguous_operation_is_named_first() {
    let base = Workload {
        kind: MessageKind::Read,
        both_ways: false,
        bytes: 8,
        mtu: PathMtu::Mtu4096,
        outer: OuterKind::IPV4,
        acks: 1.0,
        credits: 0.0,
        requester: Requester::ThisHost,
        per_s: 2e6,
    };
    for bytes in [1, 8, 64, 512, 4096, 1 << 20] {
        for (requester, outer) in
            [(Requester::ThisHost, OuterKind::IPV4), (Requester::Peer, OuterKind::IPV6.with_vlan())]
        {
            let workload = Workload { bytes, requester, outer, ..base };
            let is_peer = requester == Requester::Peer;
            let hints = Hints { ip: is_peer.then_some(IpVersion::V6), vlan: is_peer, ..Hints::default() };
            let answer = explain(&workload.rates(), &hints).unwrap();
            assert_eq!(workload.rank(&answer), Some(0), "{workload:?}\n{}", listed(&answer));
        }
    }
    let workload = Workload { kind: MessageKind::CompareSwap, ..base };
    let answer = explain(&workload.rates(), &Hints::default()).unwrap();
    assert_eq!(workload.rank(&answer), Some(0));
    // Both atomic operations have the same bytes and appear together.
    assert_eq!(answer.explanations[0].operations, [MessageKind::CompareSwap, MessageKind::FetchAdd]);
    for (kind, bytes) in [(MessageKind::Write, 8), (MessageKind::Send, 64), (MessageKind::SendImm, 64)] {
        let workload = Workload { kind, bytes, acks: 0.2, ..base };
        let answer = explain(&workload.rates(), &Hints::default()).unwrap();
        assert_eq!(workload.rank(&answer), Some(0), "{workload:?}\n{}", listed(&answer));
        assert_eq!(answer.explanations[0].nearest_payload_bytes, Some(Span { min: bytes - 3, max: bytes }));
    }
}

/// Names all operations that have equal lengths.
#[test]
fn alternatives_are_named() {
    let answer = explain(&incoming((1e6, 0.5e6), (78.0, 62.0)), &Hints::default()).unwrap();
    for (kind, bytes) in [(MessageKind::Write, 4), (MessageKind::Send, 20), (MessageKind::SendImm, 16)] {
        assert!(
            rank(&answer, kind, &[Pattern::OneWay], Requester::Peer, bytes, 1e6).is_some(),
            "{kind}\n{}",
            listed(&answer)
        );
    }
    // The lengths fit READs, and SENDs in both directions.
    let answer = explain(&incoming((1e6, 1e6), (74.0, 126.0)), &Hints::default()).unwrap();
    assert_eq!(rank(&answer, MessageKind::Read, &[Pattern::Fetch], Requester::Peer, 64, 1e6), Some(0));
    let both = answer.explanations.iter().find(|it| it.pattern == Pattern::RequestResponse).unwrap();
    assert!(both.payload_bytes.contains(68) && both.received_payload_bytes.unwrap().contains(16));
}

#[test]
fn short_requests_with_long_responses() {
    // 10 k requests of 64 bytes with responses of 1 MiB, and one ACK per message.
    let rates = Rates {
        tx_packets: 20e3,
        tx_bytes: 10e3 * (122.0 + 62.0),
        rx_packets: 2.57e6,
        rx_bytes: 2.56e6 * 4154.0 + 10e3 * 62.0,
    };
    let answer = explain(&rates, &Hints::default()).unwrap();
    let found = answer.explanations.iter().any(|it| {
        it.pattern == Pattern::RequestResponse
            && it.payload_bytes.contains(64)
            && it.received_payload_bytes.is_some_and(|received| received.contains(1 << 20))
            && it.operations_per_s.contains(10e3)
    });
    assert!(found, "{}", listed(&answer));
}

#[test]
fn the_verdict_reports_unexplained_rates() {
    let hints = Hints { mtu: Some(PathMtu::Mtu4096), ..Hints::default() };
    for rates in [
        // Ten times more packets go out than come in, and all are far longer than ACKs.
        Rates { tx_packets: 1e6, tx_bytes: 300e6, rx_packets: 1e5, rx_bytes: 30e6 },
        // WRITEs of 926 bytes go out. A tenth of that number, of 1024 bytes, come in among the ACKs.
        Rates { tx_packets: 1e6, tx_bytes: 1e9, rx_packets: 2e5, rx_bytes: 1e5 * (62.0 + 1098.0) },
    ] {
        let answer = explain(&rates, &hints).unwrap();
        assert!(answer.explanations.is_empty(), "{}", listed(&answer));
        assert!(answer.verdict.contains("no single operation explains"), "{}", answer.verdict);
    }
    let nothing = explain(&Rates::default(), &hints).unwrap();
    assert_eq!(nothing.verdict, "There is no RDMA traffic.");
    assert!(nothing.explanations.is_empty());
}

#[test]
fn impossible_rates_and_hints_are_rejected() {
    let refused = |rates: Rates, words: &[&str]| {
        let text = explain(&rates, &Hints::default()).unwrap_err().to_string();
        words.iter().for_each(|word| assert!(text.contains(word), "{word:?} is missing in: {text}"));
    };
    refused(incoming((-1.0, 0.0), (62.0, 0.0)), &["rx_bytes is -62"]);
    refused(incoming((f64::NAN, 0.0), (62.0, 0.0)), &["NaN"]);
    refused(incoming((f64::INFINITY, 0.0), (62.0, 0.0)), &["inf"]);
    refused(Rates { tx_bytes: 5.0, ..Rates::default() }, &["tx shows 5 bytes and 0 packets"]);
    refused(Rates { rx_packets: 5.0, ..Rates::default() }, &["rx shows 0 bytes and 5 packets"]);
    refused(incoming((1e6, 1e6), (40.0, 62.0)), &["rx shows 40.0 bytes per packet", "smallest RoCE v2 frame has 58"]);
    refused(incoming((1e6, 1e6), (62.0, 9000.0)), &["tx shows 9000.0 bytes per packet", "at most"]);
    let hints = Hints { mtu: Some(PathMtu::Mtu1024), ..Hints::default() };
    let text = explain(&incoming((1e6, 1e6), (4154.0, 62.0)), &hints).unwrap_err().to_string();
    assert!(text.contains("path MTU 1024"), "{text}");
    for (hints, word) in [
        (Hints { tolerance: 0.5, ..Hints::default() }, "tolerance is 0.5"),
        (Hints { tolerance: f64::NAN, ..Hints::default() }, "tolerance is NaN"),
        (Hints { link_bits_per_s: Some(0.0), ..Hints::default() }, "link's rate is 0"),
    ] {
        let text = explain(&incoming((1e6, 1e6), (78.0, 62.0)), &hints).unwrap_err().to_string();
        assert!(text.contains(word), "{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Each counter has half a percent of noise, and both directions are read at different moments.
    #[test]
    fn noise_does_not_hide_the_truth(
        which in 0..100_000_usize,
        noise in prop::array::uniform4(-0.005..0.005_f64),
        skew in -0.01..0.01_f64,
        hinted: bool,
    ) {
        let all = workloads();
        let workload = all[which % all.len()];
        let exact = workload.rates();
        let rates = Rates {
            rx_packets: exact.rx_packets * (1.0 + noise[0]) * (1.0 + skew),
            rx_bytes: exact.rx_bytes * (1.0 + noise[1]) * (1.0 + skew),
            tx_packets: exact.tx_packets * (1.0 + noise[2]) * (1.0 - skew),
            tx_bytes: exact.tx_bytes * (1.0 + noise[3]) * (1.0 - skew),
        };
        let hints = Hints { mtu: hinted.then_some(workload.mtu), ..Hints::default() };
        let answer = explain(&rates, &hints).unwrap();
        let rank = workload.rank(&answer);
        prop_assert!(
            rank.is_some_and(|rank| rank < answer.named),
            "{rank:?} of {workload:?}\n{}", listed(&answer)
        );
    }

    /// Any rates give an answer with finite numbers, or an error.
    #[test]
    fn any_numbers(
        rates in prop::array::uniform4(prop_oneof![any::<f64>(), 0.0..1e9, Just(0.0)]),
        means in (50.0..4300.0_f64, 50.0..4300.0_f64),
        tolerance in prop_oneof![Just(0.0), 0.0..0.1_f64],
    ) {
        let hints = Hints { tolerance, link_bits_per_s: Some(1e9), ..Hints::default() };
        let [a, b, c, d] = rates;
        for rates in [
            Rates { rx_packets: a, rx_bytes: b, tx_packets: c, tx_bytes: d },
            incoming((a, c), means),
        ] {
            match explain(&rates, &hints) {
                Err(error) => prop_assert!(!error.to_string().is_empty()),
                Ok(answer) => {
                    for it in &answer.explanations {
                        let ranges = [Some(it.operations_per_s), Some(it.goodput_bytes_per_s), it.acks_per_packet];
                        for range in ranges.into_iter().flatten() {
                            prop_assert!(range.min.is_finite() && range.max.is_finite() && range.min >= 0.0, "{it:?}");
                            prop_assert!(range.min <= range.max, "{it:?}");
                        }
                        prop_assert!(it.implausibility.is_finite() && it.misfit.is_finite());
                        prop_assert!(it.payload_bytes.min <= it.payload_bytes.max, "{it:?}");
                    }
                }
            }
        }
    }
}
