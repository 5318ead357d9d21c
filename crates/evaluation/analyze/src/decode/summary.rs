//! Results of [`decode`](super::decode).

use std::net::IpAddr;

use hdrhistogram::Histogram;
use serde::Serialize;

/// Name of the layout of a [`Summary`].
pub const SCHEMA: &str = "doorbell-wire-decode/1";

/// Contents of a capture.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Summary {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// `pcap` or `pcapng`.
    pub format: &'static str,
    /// UDP destination port of RoCE v2 packets.
    pub udp_port: u16,
    /// Reason why reading stopped before the end. The text is a sentence whose subject, the file, is left out.
    pub stopped: Option<String>,
    /// Frames in the capture.
    pub frames: u64,
    /// Frames without a UDP datagram to `udp_port`.
    pub other_frames: u64,
    /// Kinds of the other frames, the most frequent first; at most 32.
    pub other_kinds: Vec<KindCount>,
    /// Frames to `udp_port` that came in tunnels, by kind of tunnel. A frame in several tunnels counts once for each
    /// tunnel.
    pub tunnels: Vec<TunnelCount>,
    /// Frames to `udp_port` without a valid packet, because they are too short or of an unknown version.
    pub malformed_packets: u64,
    /// Reasons of the malformed packets, the most frequent first; at most 32.
    pub malformed_reasons: Vec<MalformedCount>,
    /// RoCE v2 packets.
    pub packets: u64,
    /// Frame bytes of the packets, as counters of a NIC show them.
    pub frame_bytes: u64,
    /// Payload bytes, repeated ones included.
    pub payload_bytes: u64,
    /// Packets whose end was not captured.
    pub cut_packets: u64,
    /// Packets that the snap length cut within the BTH. Their queue pair is unknown, so they belong to no
    /// conversation.
    pub cut_bths: u64,
    /// Second copies, which no other field counts: packets that were captured earlier at another interface, in the
    /// other direction, or after another link header, VLAN tag, tunnel or router.
    pub second_copies: u64,
    /// Injected faults that a software RNIC's own capture marks.
    pub faults: FaultCounts,
    /// Results of the ICRC checks.
    pub icrc: Icrc,
    /// Frames that were captured before the kernel or the NIC cut them into packets.
    pub super_packets: SuperPackets,
    /// Nanoseconds since 1970 of the first packet with a time.
    pub first_timestamp_ns: Option<u64>,
    /// Nanoseconds from the first packet to the last.
    pub duration_ns: u64,
    /// Packets per second, if any time passed.
    pub packets_per_s: Option<f64>,
    /// Frame bytes per second, if any time passed.
    pub frame_bytes_per_s: Option<f64>,
    /// Congestion notification packets.
    pub cnps: u64,
    /// Packets that a switch has marked (ECN CE).
    pub congestion_marked_packets: u64,
    /// Packets with opcodes that the decoder only counts: opcodes of RD, of vendors, and reserved opcodes.
    pub unfollowed_packets: u64,
    /// Packets by opcode, in the order of the codes.
    pub opcodes: Vec<OpcodeCount>,
    /// Retransmitted packets of all conversations.
    pub retransmitted_packets: u64,
    /// NAKs without RNR NAKs.
    pub naks: u64,
    /// RNR NAKs.
    pub rnr_naks: u64,
    /// Times to acknowledgement in all conversations.
    pub time_to_ack: Option<Times>,
    /// Conversations, those with the most bytes first.
    pub conversations: Vec<Conversation>,
    /// Packets of conversations beyond the maximum number.
    pub other_conversations_packets: u64,
    /// Traffic of each host, those with the most bytes first.
    pub hosts: Vec<HostTotals>,
    /// Further facts, as sentences.
    pub notes: Vec<String>,
}

/// Results of the ICRC checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Icrc {
    /// Number of correct ICRCs.
    pub right: u64,
    /// Number of wrong ICRCs.
    pub wrong: u64,
    /// Number of unchecked ICRCs, because the packet's end was not captured or the IP header has options.
    pub unchecked: u64,
}

/// Frames of one kind that hold no packet.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct KindCount {
    /// Name and number: `RoCE v1 (EtherType 0x8915)`, `UDP to port 53`.
    pub kind: String,
    /// Number of frames.
    pub frames: u64,
}

/// Malformed packets of one reason.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct MalformedCount {
    /// The reason: `shorter than a BTH`, `of transport header version 3`.
    pub reason: String,
    /// Number of packets.
    pub packets: u64,
}

/// Frames of one kind of tunnel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct TunnelCount {
    /// Name of the kind.
    pub tunnel: &'static str,
    /// Number of frames.
    pub frames: u64,
}

/// Packets that injected faults struck. Except for `dropped`, all counts are of packets that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct FaultCounts {
    /// Packets that the fault injection dropped. They count in no other field.
    pub dropped: u64,
    /// Additional copies. They belong to no operation.
    pub duplicates: u64,
    /// Packets with a flipped bit. Dropped packets among them count as dropped too.
    pub corrupted: u64,
    /// Packets held back for a fixed time.
    pub delayed: u64,
    /// Packets held back until later packets have passed.
    pub reordered: u64,
}

/// Frames that hold several packets, because they were captured before the kernel or the NIC cut them into packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct SuperPackets {
    /// Number of such frames.
    pub frames: u64,
    /// Number of packets in such frames. The other fields of the summary count these packets, too.
    pub packets: u64,
    /// Frames that are longer than a packet, but whose end was not captured. Their packets are not counted.
    pub cut_frames: u64,
}

/// Packets of one opcode.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct OpcodeCount {
    /// The code.
    pub opcode: u8,
    /// Name in the IBTA specification, or the transport with the code.
    pub name: String,
    /// Whether the decoder reassembles messages of this opcode.
    pub followed: bool,
    /// Number of packets.
    pub packets: u64,
    /// Frame bytes of the packets.
    pub frame_bytes: u64,
}

/// Traffic of a host, comparable with the counters of its NIC.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct HostTotals {
    /// Address of the host.
    pub address: IpAddr,
    /// Packets received.
    pub rx_packets: u64,
    /// Frame bytes received.
    pub rx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Frame bytes sent.
    pub tx_bytes: u64,
}

/// Traffic between two queue pairs. The number of a queue pair is unknown if no packet to it was captured, or no packet
/// that identifies it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Conversation {
    /// Address of the sender of the first request.
    pub a: IpAddr,
    /// Address of the other host.
    pub b: IpAddr,
    /// The queue pair at `a`.
    pub a_qpn: Option<u32>,
    /// The queue pair at `b`.
    pub b_qpn: Option<u32>,
    /// Traffic from `a` to `b`.
    pub from_a: Direction,
    /// Traffic from `b` to `a`.
    pub from_b: Direction,
}

/// Traffic that one side sent.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Direction {
    /// Packets.
    pub packets: u64,
    /// Frame bytes.
    pub frame_bytes: u64,
    /// Request packets, repeated ones included.
    pub request_packets: u64,
    /// Messages by operation, without repetitions.
    pub operations: Vec<OperationCount>,
    /// Messages whose first or last packet is not in the capture.
    pub incomplete_messages: u64,
    /// Request packets whose sequence number was seen before.
    pub retransmitted_packets: u64,
    /// Sequence numbers that are not in the capture, because packets were lost before or by the capture.
    pub missing_packets: u64,
    /// Packets with a wrong ICRC.
    pub bad_icrc_packets: u64,
    /// ACKs sent.
    pub acks: u64,
    /// ACKs or NAKs sent whose kind is unknown, because the snap length cut the AETH.
    pub cut_acks: u64,
    /// READ response packets sent.
    pub read_response_packets: u64,
    /// Responses to atomic operations sent.
    pub atomic_responses: u64,
    /// NAKs sent, by code.
    pub naks: Vec<NakCount>,
    /// RNR NAKs sent.
    pub rnr_naks: u64,
    /// ACKs and NAKs that the other side sent, per request packet that asks for no data.
    pub acks_per_request_packet: Option<f64>,
    /// Times from the last packet of a request to its acknowledgement, at the point of capture.
    pub time_to_ack: Option<Times>,
    /// Request that was repeated and not acknowledged up to the end of the capture.
    pub unanswered: Option<Unanswered>,
}

/// Request that was repeated and not acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Unanswered {
    /// Sequence number of the request packet.
    pub psn: u32,
    /// Transmissions of the packet.
    pub transmissions: u64,
    /// RNR NAKs for the packet.
    pub rnr_naks: u64,
    /// Time from the last acknowledgement to the last transmission. Without an acknowledgement, it begins at the second
    /// transmission.
    pub duration_ns: Option<u64>,
}

/// Messages of one operation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct OperationCount {
    /// Transport: RC, XRC, UC or UD.
    pub transport: String,
    /// Name of the operation in the IBTA specification.
    pub operation: String,
    /// Number of messages.
    pub messages: u64,
    /// Payload bytes of messages with a known length; for READs, the requested bytes.
    pub payload_bytes: u64,
    /// Shortest length, if any is known.
    pub min_bytes: Option<u64>,
    /// Longest length, if any is known.
    pub max_bytes: Option<u64>,
    /// Number of messages of each size, for the sizes that were seen first.
    pub sizes: Vec<SizeCount>,
    /// Messages of sizes that are not in `sizes`.
    pub other_sizes: u64,
    /// Messages of unknown size: READs whose RETH the snap length cut.
    pub unknown_sizes: u64,
}

/// Messages of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct SizeCount {
    /// Payload bytes.
    pub bytes: u64,
    /// Number of messages.
    pub messages: u64,
}

/// NAKs of one code.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct NakCount {
    /// The code.
    pub code: u8,
    /// Name of the code in the IBTA specification.
    pub name: String,
    /// Number of NAKs.
    pub naks: u64,
}

/// Statistics of times.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Times {
    /// Number of measured times.
    pub count: u64,
    /// Shortest time.
    pub min_ns: u64,
    /// Median.
    pub median_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Longest time.
    pub max_ns: u64,
}

impl Times {
    pub(super) fn of(histogram: &Histogram<u32>) -> Option<Times> {
        (!histogram.is_empty()).then(|| Times {
            count: histogram.len(),
            min_ns: histogram.min(),
            median_ns: histogram.value_at_quantile(0.5),
            p99_ns: histogram.value_at_quantile(0.99),
            max_ns: histogram.max(),
        })
    }
}
