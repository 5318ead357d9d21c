//! Tracker that assigns the packets of a capture to streams and counts them.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use doorbell_wire::{
    AETH_LEN, AethRepr, BTH_LEN, BthRepr, Datagram, FaultMarks, ICRC_LEN, Opcode, Qpn, RETH_LEN, RethRepr, XRCETH_LEN,
};

use super::Options;
use super::capture::{CapturedFrame, LinkType};
use super::copies::{Copies, Point, identity};
use super::directions::{Directions, Key};
use super::layers::{Layer, TunnelKind, udp_frame};
use super::packets::{Flows, Found, longer_than_a_packet};
use super::reasons::{Malformed, OtherFrame, by_count, is_unfollowed_request, listed, opcode_name};
use super::stream::{Packet, Stream, TimeHistogram, time_histogram};
use super::summary::{
    Conversation, Direction, FaultCounts, HostTotals, Icrc, KindCount, MalformedCount, OpcodeCount, SCHEMA, Summary,
    SuperPackets, Times, TunnelCount,
};

/// ECN: congestion experienced (RFC 3168).
const CONGESTION_EXPERIENCED: u8 = 0b11;

/// Maximum number of entries in [`Summary::other_kinds`] and in [`Summary::malformed_reasons`].
const MAX_KINDS: usize = 32;

/// Outcome of the check of an ICRC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Checked {
    Right,
    Wrong,
    /// The ICRC was not captured.
    Cut,
    /// The definition of the ICRC does not cover the IP header.
    Undefined,
}

/// A packet as captured at one point of observation.
#[derive(Clone, Copy, Debug)]
struct Sighting<'a> {
    frame: &'a CapturedFrame<'a>,
    datagram: &'a Datagram<'a>,
    point: Point,
    /// Captured bytes from the BTH on.
    bytes: &'a [u8],
    /// Length of the packet from the BTH on.
    whole_bytes: usize,
    frame_bytes: u64,
    icrc: Checked,
}

pub(super) struct Tracker {
    options: Options,
    flows: Flows,
    /// Streams by the numbers of their directions.
    streams: Vec<Stream>,
    directions: Directions,
    frames: u64,
    /// Numbers of frames without a RoCE v2 packet, by kind. The numbers of EtherTypes, protocols, ports and link types
    /// limit the number of kinds.
    others: BTreeMap<OtherFrame, u64>,
    /// Numbers of packets in tunnels, in the order of [`TunnelKind::ALL`].
    tunnels: [u64; TunnelKind::ALL.len()],
    malformed: BTreeMap<Malformed, u64>,
    unfollowed: u64,
    packets: u64,
    frame_bytes: u64,
    payload_bytes: u64,
    cut: u64,
    /// Packets that the snap length cut within the BTH.
    cut_bths: u64,
    copies: Copies,
    second_copies: u64,
    faults: FaultCounts,
    icrc: Icrc,
    /// Packets whose ICRC is not checked, because their IP header has options.
    with_options: u64,
    super_packets: SuperPackets,
    opcodes: Box<[(u64, u64); 256]>,
    marked: u64,
    /// Packets of conversations beyond [`Options::max_conversations`].
    beyond: u64,
    /// Damaged packets to queue pairs that received no correct packet.
    stray: u64,
    first_ns: Option<u64>,
    last_ns: u64,
    times: TimeHistogram,
}

impl Tracker {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            options: *options,
            flows: Flows::new(),
            streams: Vec::new(),
            directions: Directions::default(),
            frames: 0,
            others: BTreeMap::new(),
            tunnels: [0; TunnelKind::ALL.len()],
            malformed: BTreeMap::new(),
            unfollowed: 0,
            packets: 0,
            frame_bytes: 0,
            payload_bytes: 0,
            cut: 0,
            cut_bths: 0,
            copies: Copies::default(),
            second_copies: 0,
            faults: FaultCounts::default(),
            icrc: Icrc::default(),
            with_options: 0,
            super_packets: SuperPackets::default(),
            opcodes: Box::new([(0, 0); 256]),
            marked: 0,
            beyond: 0,
            stray: 0,
            first_ns: None,
            last_ns: 0,
            times: time_histogram(),
        }
    }

    /// Returns a link type if the decoder supports the link type of no frame.
    pub(super) fn only_unknown_links(&self) -> Option<LinkType> {
        let unknown = |kind: &OtherFrame| matches!(kind, OtherFrame::LinkType(_));
        let frames: u64 = self.others.iter().filter(|(kind, _)| unknown(kind)).map(|(_, frames)| frames).sum();
        let first = self.others.keys().find_map(|kind| match kind {
            OtherFrame::LinkType(link_type) => Some(LinkType(*link_type)),
            _ => None,
        });
        first.filter(|_| frames == self.frames)
    }

    pub(super) fn frame(&mut self, frame: &CapturedFrame<'_>) {
        self.frames += 1;
        let udp = match udp_frame(frame, self.options.udp_port) {
            Ok(udp) => udp,
            Err(other) => return *self.others.entry(other).or_default() += 1,
        };
        for (index, kind) in TunnelKind::ALL.into_iter().enumerate() {
            let is_kind = |layer: &Layer| matches!(layer, Layer::Tunnel { kind: found, .. } if *found == kind);
            self.tunnels[index] += u64::from(udp.layers.as_slice().iter().any(is_kind));
        }
        let datagram = &udp.datagram;
        if let Some(now_ns) = frame.timestamp_ns {
            let first_ns = self.first_ns.get_or_insert(now_ns);
            *first_ns = now_ns.min(*first_ns);
            self.last_ns = self.last_ns.max(now_ns);
        }
        self.count_faults(frame.faults);
        if frame.faults.has(FaultMarks::DROPPED) {
            return;
        }
        let (bytes, whole_bytes, frame_bytes) = (datagram.payload, datagram.payload_len, udp.frame_bytes as u64);
        let point = Point::new(frame, udp.layers, datagram.outer.hop_limit);
        let sighting = |icrc| Sighting { frame, datagram, point, bytes, whole_bytes, frame_bytes, icrc };
        match self.flows.look(datagram) {
            Found::Right => self.packet(&sighting(Checked::Right)),
            Found::Wrong => self.packet(&sighting(Checked::Wrong)),
            Found::Undefined => self.packet(&sighting(Checked::Undefined)),
            Found::Cut if longer_than_a_packet(datagram.payload, datagram.payload_len) => {
                self.super_packets.cut_frames += 1;
            }
            Found::Cut => self.packet(&sighting(Checked::Cut)),
            Found::Segments(bytes) => {
                self.super_packets.frames += 1;
                let around = frame_bytes - datagram.payload_len as u64;
                for (index, segment) in datagram.payload.chunks(bytes).enumerate() {
                    self.super_packets.packets += 1;
                    let right = self.flows.segment_is_right(datagram, index, segment);
                    let icrc = if right { Checked::Right } else { Checked::Wrong };
                    let (whole_bytes, frame_bytes) = (segment.len(), around + segment.len() as u64);
                    self.packet(&Sighting { bytes: segment, whole_bytes, frame_bytes, ..sighting(icrc) });
                }
            }
        }
    }

    fn count_faults(&mut self, marks: FaultMarks) {
        let counts = &mut self.faults;
        for (mark, count) in [
            (FaultMarks::DROPPED, &mut counts.dropped),
            (FaultMarks::DUPLICATE, &mut counts.duplicates),
            (FaultMarks::CORRUPTED, &mut counts.corrupted),
            (FaultMarks::DELAYED, &mut counts.delayed),
            (FaultMarks::REORDERED, &mut counts.reordered),
        ] {
            *count += u64::from(marks.has(mark));
        }
    }

    fn packet(&mut self, sighting: &Sighting<'_>) {
        let Sighting { frame, datagram, point, bytes, whole_bytes, frame_bytes, icrc } = *sighting;
        let is_duplicate = frame.faults.has(FaultMarks::DUPLICATE);
        if !is_duplicate && self.copies.is_second(identity(datagram, bytes, whole_bytes), point) {
            self.second_copies += 1;
            return;
        }
        *match icrc {
            Checked::Right => &mut self.icrc.right,
            Checked::Wrong => &mut self.icrc.wrong,
            Checked::Cut | Checked::Undefined => &mut self.icrc.unchecked,
        } += 1;
        self.cut += u64::from(icrc == Checked::Cut);
        self.with_options += u64::from(icrc == Checked::Undefined);
        let right = icrc != Checked::Wrong;
        let Some((bth, rest)) = bytes.split_first_chunk::<BTH_LEN>() else {
            if whole_bytes < BTH_LEN {
                return *self.malformed.entry(Malformed::ShortBth).or_default() += 1;
            }
            self.cut_bths += 1;
            return self.count(bytes.first().map(|&code| Opcode(code)), frame_bytes, datagram);
        };
        let bth = BthRepr::read(bth);
        let opcode = bth.opcode;
        let around = BTH_LEN + opcode.extension_len() + usize::from(bth.pad_count) + ICRC_LEN;
        if bth.version != 0 {
            return *self.malformed.entry(Malformed::Version(bth.version)).or_default() += 1;
        }
        if whole_bytes < around {
            return *self.malformed.entry(Malformed::Short(opcode)).or_default() += 1;
        }
        self.unfollowed += u64::from(opcode.operation().is_none());
        let payload_bytes = if opcode.has_payload() { (whole_bytes - around) as u64 } else { 0 };
        self.payload_bytes += payload_bytes;
        self.count(Some(opcode), frame_bytes, datagram);
        let Some(at) = self.stream(datagram, bth.dest_qpn, right) else {
            let is_full = self.streams.len() >= 2 * self.options.max_conversations;
            return *(if is_full { &mut self.beyond } else { &mut self.stray }) += 1;
        };
        let stream = &mut self.streams[at];
        stream.packets += 1;
        stream.frame_bytes += frame_bytes;
        if !right {
            stream.bad_icrc_packets += 1;
            if self.options.drop_bad_icrc {
                return;
            }
        }
        if is_duplicate {
            return;
        }
        // In XRC requests, the header with the shared receive queue comes before all other extension headers.
        let rest = rest.get(if opcode.has_xrceth() { XRCETH_LEN } else { 0 }..).unwrap_or_default();
        // The snap length may have cut the packet within its headers.
        let reth = rest.first_chunk::<RETH_LEN>().filter(|_| opcode.has_reth()).map(RethRepr::read);
        let aeth = rest.first_chunk::<AETH_LEN>().filter(|_| opcode.has_aeth()).map(AethRepr::read);
        let packet = Packet { opcode, psn: bth.psn, payload_bytes, reth, aeth, timestamp_ns: frame.timestamp_ns };
        if opcode.is_request() || is_unfollowed_request(opcode) {
            stream.requests.add(&packet);
            self.directions.sent(at, stream.requests.sent());
        } else if opcode.is_response() {
            let acknowledged = stream.answers.add(&packet);
            if let Some(peer) = self.peer(at, &packet) {
                self.streams[peer].requests.acknowledged(acknowledged, frame.timestamp_ns, &mut self.times);
            }
        }
    }

    /// Counts a packet. `opcode` is `None` if the snap length cut the opcode.
    fn count(&mut self, opcode: Option<Opcode>, frame_bytes: u64, datagram: &Datagram<'_>) {
        self.packets += 1;
        self.frame_bytes += frame_bytes;
        if let Some(opcode) = opcode {
            let count = &mut self.opcodes[usize::from(opcode.0)];
            *count = (count.0 + 1, count.1 + frame_bytes);
        }
        if datagram.outer.traffic_class & CONGESTION_EXPERIENCED == CONGESTION_EXPERIENCED {
            self.marked += 1;
        }
    }

    /// Returns the stream of a packet, and creates the stream if the number of streams is below the limit.
    fn stream(&mut self, datagram: &Datagram<'_>, dest_qpn: Qpn, right: bool) -> Option<usize> {
        let key = Key { from: datagram.outer.src, to: datagram.outer.dst, to_qpn: dest_qpn };
        if let Some(at) = self.directions.find(key) {
            return Some(at);
        }
        // The queue pair number of a damaged packet may be wrong, so damaged packets create no stream.
        if self.streams.len() >= 2 * self.options.max_conversations || !right && self.options.drop_bad_icrc {
            return None;
        }
        self.streams.push(Stream::default());
        Some(self.directions.add(key))
    }

    /// Returns the stream with the requests that the answer `packet` in stream `at` belongs to.
    fn peer(&mut self, at: usize, packet: &Packet) -> Option<usize> {
        let is_settled = self.directions.opposite(at).is_some();
        self.directions.join(at, is_settled, packet.psn).opposite
    }

    pub(super) fn finish(self, format: &'static str, stopped: Option<String>) -> Summary {
        let duration_ns = self.first_ns.map_or(0, |first_ns| self.last_ns - first_ns);
        let per_s = |count: u64| (duration_ns > 0).then(|| count as f64 * 1e9 / duration_ns as f64);
        let cnps = self.opcodes[usize::from(Opcode::CNP.0)].0;
        let opcodes = (0..=255)
            .map(Opcode)
            .zip(self.opcodes.iter())
            .filter(|(_, count)| count.0 > 0)
            .map(|(opcode, &(packets, frame_bytes))| OpcodeCount {
                opcode: opcode.0,
                name: opcode_name(opcode),
                followed: opcode.operation().is_some(),
                packets,
                frame_bytes,
            })
            .collect();
        let of_requests = |count: fn(&Stream) -> u64| self.streams.iter().map(count).sum();
        Summary {
            schema: SCHEMA,
            format,
            udp_port: self.options.udp_port,
            stopped,
            frames: self.frames,
            other_frames: self.others.values().sum(),
            other_kinds: self.other_kinds(),
            tunnels: self.tunnels(),
            malformed_packets: self.malformed.values().sum(),
            malformed_reasons: self.malformed_reasons(),
            packets: self.packets,
            frame_bytes: self.frame_bytes,
            payload_bytes: self.payload_bytes,
            cut_packets: self.cut,
            cut_bths: self.cut_bths,
            second_copies: self.second_copies,
            faults: self.faults,
            icrc: self.icrc,
            super_packets: self.super_packets,
            first_timestamp_ns: self.first_ns,
            duration_ns,
            packets_per_s: per_s(self.packets),
            frame_bytes_per_s: per_s(self.frame_bytes),
            cnps,
            congestion_marked_packets: self.marked,
            unfollowed_packets: self.unfollowed,
            opcodes,
            retransmitted_packets: of_requests(|stream| stream.requests.retransmitted),
            naks: of_requests(|stream| stream.answers.all_naks()),
            rnr_naks: of_requests(|stream| stream.answers.rnr_naks),
            time_to_ack: Times::of(&self.times),
            conversations: self.conversations(),
            other_conversations_packets: self.beyond + self.stray,
            hosts: self.hosts(),
            notes: self.notes(),
        }
    }

    fn other_kinds(&self) -> Vec<KindCount> {
        let kinds = by_count(&self.others).into_iter().take(MAX_KINDS);
        kinds.map(|(kind, frames)| KindCount { kind: kind.to_string(), frames }).collect()
    }

    fn malformed_reasons(&self) -> Vec<MalformedCount> {
        let reasons = by_count(&self.malformed).into_iter().take(MAX_KINDS);
        reasons.map(|(reason, packets)| MalformedCount { reason: reason.to_string(), packets }).collect()
    }

    fn tunnels(&self) -> Vec<TunnelCount> {
        let counts = TunnelKind::ALL.into_iter().zip(self.tunnels).filter(|(_, frames)| *frames > 0);
        counts.map(|(kind, frames)| TunnelCount { tunnel: kind.name(), frames }).collect()
    }

    fn conversations(&self) -> Vec<Conversation> {
        let mut conversations = Vec::new();
        for (at, stream) in self.streams.iter().enumerate() {
            let peer_at = self.directions.opposite(at);
            let peer = peer_at.map(|peer| &self.streams[peer]);
            // Report each pair of streams once, from the requesting side. If both sides send requests, use the stream
            // that was seen first.
            let asks = |stream: &Stream| stream.requests.packets > 0;
            if let (Some(peer_at), Some(peer)) = (peer_at, peer) {
                let first = if asks(stream) == asks(peer) { at < peer_at } else { asks(stream) };
                if !first {
                    continue;
                }
            }
            let Key { from, to, to_qpn } = self.directions.key(at);
            conversations.push(Conversation {
                a: from,
                b: to,
                a_qpn: peer_at.map(|peer| self.directions.key(peer).to_qpn.get()),
                b_qpn: Some(to_qpn.get()),
                from_a: direction(stream, peer),
                from_b: peer.map_or_else(Direction::default, |peer| direction(peer, Some(stream))),
            });
        }
        conversations.sort_by_key(|it| std::cmp::Reverse(it.from_a.frame_bytes + it.from_b.frame_bytes));
        conversations
    }

    fn hosts(&self) -> Vec<HostTotals> {
        let mut hosts: HashMap<IpAddr, HostTotals> = HashMap::new();
        for (at, stream) in self.streams.iter().enumerate() {
            let Key { from, to, .. } = self.directions.key(at);
            let new = |address| HostTotals { address, rx_packets: 0, rx_bytes: 0, tx_packets: 0, tx_bytes: 0 };
            let sender = hosts.entry(from).or_insert_with(|| new(from));
            sender.tx_packets += stream.packets;
            sender.tx_bytes += stream.frame_bytes;
            let receiver = hosts.entry(to).or_insert_with(|| new(to));
            receiver.rx_packets += stream.packets;
            receiver.rx_bytes += stream.frame_bytes;
        }
        let mut hosts: Vec<_> = hosts.into_values().collect();
        hosts.sort_by_key(|host| (std::cmp::Reverse(host.rx_bytes + host.tx_bytes), host.address));
        hosts
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let malformed: u64 = self.malformed.values().sum();
        let (frames, port) = (self.frames, self.options.udp_port);
        if self.packets == 0 && self.super_packets.cut_frames == 0 {
            let others = by_count(&self.others).into_iter().map(|(kind, frames)| (kind.to_string(), frames));
            let others = listed(others);
            notes.push(match (malformed, self.others.is_empty()) {
                (0, true) => format!("No RoCE v2 packet among {frames} frames."),
                (0, false) => {
                    format!("No RoCE v2 packet among {frames} frames: none goes to UDP port {port}. They are {others}.")
                }
                _ => format!(
                    "No RoCE v2 packet among {frames} frames: all {malformed} that go to UDP port {port} are malformed."
                ),
            });
        }
        if malformed > 0 {
            let reasons = by_count(&self.malformed).into_iter().map(|(reason, packets)| (reason.to_string(), packets));
            notes.push(format!("{malformed} packets to UDP port {port} are malformed: {}.", listed(reasons)));
        }
        if self.unfollowed > 0 {
            let opcodes = (0..=255).map(Opcode).zip(self.opcodes.iter());
            let unfollowed = opcodes.filter(|(opcode, (packets, _))| *packets > 0 && opcode.operation().is_none());
            let unfollowed: Vec<_> =
                unfollowed.map(|(opcode, (packets, _))| (format!("of {}", opcode_name(opcode)), *packets)).collect();
            notes.push(format!(
                "{} packets are of opcodes that are counted and not followed: {}.",
                self.unfollowed,
                listed(unfollowed.into_iter())
            ));
        }
        for (kind, frames) in self.others.iter().filter(|(kind, _)| kind.may_be_rdma()) {
            notes.push(match kind {
                OtherFrame::Fragment => format!("{frames} IP fragments, which this command does not put together."),
                OtherFrame::TooDeep => format!("{frames} frames with {kind}, which this command does not decode."),
                _ => format!("{frames} frames of {kind}, which this command does not decode."),
            });
        }
        let tunnels: Vec<_> = self.tunnels().iter().map(|it| format!("{} of {}", it.frames, it.tunnel)).collect();
        if !tunnels.is_empty() {
            notes.push(format!(
                "Frames of tunnels: {}; addresses and bytes are those of the innermost frames.",
                tunnels.join(", ")
            ));
        }
        if self.icrc.wrong > 0 && self.icrc.right == 0 {
            notes.push(
                "Every ICRC is wrong: captured before the NIC made them, or this is not RoCE v2. The conversations can be \
                 followed all the same by leaving ICRCs unchecked."
                    .to_owned(),
            );
        } else if self.icrc.wrong > 0 && self.options.drop_bad_icrc {
            notes
                .push("Packets with a wrong ICRC are left out of the conversations, as an RNIC drops them.".to_owned());
        }
        let SuperPackets { frames, packets, cut_frames } = self.super_packets;
        if frames > 0 {
            notes.push(format!(
                "{frames} frames were captured before they were cut up (segmentation offload); they are counted as the \
                 {packets} packets in them, all at the frame's time."
            ));
        }
        if cut_frames > 0 {
            notes.push(format!(
                "{cut_frames} frames are longer than any packet and cut short: captured before segmentation, with too \
                 small a snap length to tell the packets in them, which are not counted."
            ));
        }
        if self.cut > 0 {
            notes.push(format!("{} packets are cut short by the snap length; their ICRC is not checked.", self.cut));
        }
        let of_streams = |count: fn(&Stream) -> u64| self.streams.iter().map(count).sum::<u64>();
        let (reads, acks) = (of_streams(|it| it.requests.unknown_sizes()), of_streams(|it| it.answers.cut_acks));
        if self.cut_bths + reads + acks > 0 {
            notes.push(format!(
                "The snap length cut headers: the BTH of {} packets (queue pair unknown), the RETH of {reads} READ requests \
                 (length unknown), and the AETH of {acks} ACKs or NAKs.",
                self.cut_bths
            ));
        }
        if self.second_copies > 0 {
            notes.push(format!(
                "{} packets were captured before at another interface, in the other direction, or behind another link \
                 header, VLAN tag, tunnel or hop; these second copies are left out of all counts.",
                self.second_copies
            ));
        }
        if self.faults != FaultCounts::default() {
            let FaultCounts { dropped, duplicates, corrupted, delayed, reordered } = self.faults;
            notes.push(format!(
                "Injected faults struck received packets: {dropped} dropped (in no other count), {duplicates} additional \
                 copies (part of no operation), {corrupted} corrupted, {delayed} delayed, {reordered} reordered."
            ));
        }
        if self.with_options > 0 {
            notes.push(format!(
                "{} packets have IP options or extension headers, which the ICRC's definition does not cover; their ICRC \
                 is not checked.",
                self.with_options
            ));
        }
        if self.beyond > 0 {
            notes.push(format!(
                "{} packets belong to conversations beyond the {} that are kept apart.",
                self.beyond, self.options.max_conversations
            ));
        }
        if self.stray > 0 {
            notes.push(format!(
                "{} packets with a wrong ICRC go to queue pairs that no packet with a right ICRC goes to; they belong to no \
                 conversation.",
                self.stray
            ));
        }
        notes
    }
}

/// Returns the summary of `stream`; `back` is the other direction.
fn direction(stream: &Stream, back: Option<&Stream>) -> Direction {
    let (requests, answers) = (&stream.requests, &stream.answers);
    let came_back = back.map(|back| back.answers.all_acknowledgements());
    Direction {
        packets: stream.packets,
        frame_bytes: stream.frame_bytes,
        request_packets: requests.packets,
        operations: requests.operations(),
        incomplete_messages: requests.incomplete_messages(),
        retransmitted_packets: requests.retransmitted,
        missing_packets: requests.missing_packets(),
        bad_icrc_packets: stream.bad_icrc_packets,
        acks: answers.acks,
        cut_acks: answers.cut_acks,
        read_response_packets: answers.read_response_packets,
        atomic_responses: answers.atomic_responses,
        naks: answers.naks(),
        rnr_naks: answers.rnr_naks,
        acks_per_request_packet: came_back
            .filter(|_| requests.plain_packets > 0)
            .map(|acks| acks as f64 / requests.plain_packets as f64),
        time_to_ack: requests.times(),
        unanswered: requests.silence.unanswered(),
    }
}
