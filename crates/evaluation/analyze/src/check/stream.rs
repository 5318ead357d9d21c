//! Assignment of packets to streams, and of streams to each other.

use std::collections::HashMap;
use std::net::IpAddr;

use doorbell_wire::{
    BTH_LEN, BthRepr, CNP_RESERVED_LEN, Datagram, FaultMarks, Opcode, PacketOperation, PartitionKey, PathMtu, Qpn,
    SyndromeKind,
};

use super::Limits;
use super::answers::Answers;
use super::findings::{Draft, Drafts, Needs, Settled};
use super::packet::{Packet, Place};
use super::report::{Event, EventKind, Finding, QueuePair, Report, RuleCount, SCHEMA};
use super::requests::{Requests, is_followed};
use super::rules::{COUNT, RULES, RuleId};
use crate::decode::Options;
use crate::decode::capture::CapturedFrame;
use crate::decode::copies::{Copies, Point, identity};
use crate::decode::layers::udp_frame;
use crate::decode::packets::{Flows, Found, longer_than_a_packet};

/// Maximum number of searches for the opposite direction of a stream.
const MAX_SEARCHES: u32 = 1000;
/// Maximum number of findings of a report.
const MAX_FINDINGS: usize = 10_000;
/// Maximum number of sampled events, and of rare events, per stream.
const MAX_EVENTS: usize = 256;

/// Direction of frames that the capturing host sent, in pcapng's flags.
const OUTBOUND: u8 = 2;

/// Sample of events with equal distances.
#[derive(Debug)]
struct Timeline {
    sampled: Vec<Event>,
    rare: Vec<Event>,
    /// Number of events per sampled event, a power of two.
    stride: u64,
    seen: u64,
}

impl Timeline {
    fn add(&mut self, event: Event) {
        if event.kind.is_rare() {
            if self.rare.len() < MAX_EVENTS {
                self.rare.push(event);
            }
            return;
        }
        if self.seen.is_multiple_of(self.stride) {
            if self.sampled.len() == MAX_EVENTS {
                let mut index = 0;
                self.sampled.retain(|_| {
                    index += 1;
                    index % 2 == 1
                });
                self.stride *= 2;
            }
            if self.seen.is_multiple_of(self.stride) {
                self.sampled.push(event);
            }
        }
        self.seen += 1;
    }

    fn all(self) -> Vec<Event> {
        let mut all = self.sampled;
        all.extend(self.rare);
        all.sort_by_key(|event| event.packet);
        all
    }
}

#[derive(Debug)]
struct Stream {
    from: IpAddr,
    to: IpAddr,
    to_qpn: Qpn,
    opposite: Option<usize>,
    searches: u32,
    packets: u64,
    repeated: u64,
    requests: Requests,
    answers: Answers,
    migration: Settled<bool>,
    partition_key: Settled<PartitionKey>,
    last_cnp: Option<Place>,
    drafts: Drafts,
    timeline: Timeline,
}

impl Stream {
    fn new(from: IpAddr, to: IpAddr, to_qpn: Qpn) -> Self {
        Self {
            from,
            to,
            to_qpn,
            opposite: None,
            searches: 0,
            packets: 0,
            repeated: 0,
            requests: Requests::default(),
            answers: Answers::default(),
            migration: Settled::default(),
            partition_key: Settled::default(),
            last_cnp: None,
            drafts: Drafts::new(),
            timeline: Timeline { sampled: Vec::new(), rare: Vec::new(), stride: 1, seen: 0 },
        }
    }

    /// Judges the fields that need no other stream.
    fn look(&mut self, packet: &Packet<'_>) {
        let (place, bth) = (packet.place, &packet.bth);
        let opcode = bth.opcode;
        let drafts = &mut self.drafts;
        padding(packet, drafts);
        drafts.judged(RuleId::Solicited);
        let may_solicit = opcode.is_last()
            && match packet.operation() {
                Some(PacketOperation::Send) => true,
                Some(PacketOperation::Write) => opcode.has_imm(),
                _ => false,
            };
        if bth.solicited && !may_solicit {
            let expected = "no solicited bit".to_owned();
            drafts.add(RuleId::Solicited, place, expected, format!("the bit is set in {opcode}"));
        }
        // A CNP belongs to no request, and may have flags of its own.
        if opcode == Opcode::CNP {
            return;
        }
        drafts.judged(RuleId::Migration);
        if let Some((settled, odd, place)) = self.migration.see(bth.migrated, place) {
            let bit = |set: bool| format!("a migration bit of {}", u8::from(set));
            drafts.add(RuleId::Migration, place, bit(settled), bit(odd));
        }
        drafts.judged(RuleId::PartitionKey);
        if let Some((settled, odd, place)) = self.partition_key.see(bth.partition_key, place) {
            drafts.add(RuleId::PartitionKey, place, settled.to_string(), odd.to_string());
        }
    }

    /// Judges a CNP to the queue pair.
    fn notify(&mut self, packet: &Packet<'_>, limits: &Limits) {
        let drafts = &mut self.drafts;
        drafts.judged(RuleId::Cnp);
        let reserved = packet.rest.get(..CNP_RESERVED_LEN.min(packet.rest.len())).unwrap_or_default();
        if !packet.bth.becn || reserved.iter().any(|byte| *byte != 0) {
            let found = format!("BECN {} and reserved bytes {reserved:02x?}", u8::from(packet.bth.becn));
            drafts.add(RuleId::Cnp, packet.place, "BECN 1 and reserved bytes of 0".to_owned(), found);
        }
        let last = self.last_cnp.replace(packet.place);
        let Some(least_ns) = limits.cnp_interval_ns else { return };
        if let Some(last) = last
            && let (Some(before_ns), Some(now_ns)) = (last.at_ns, packet.place.at_ns)
        {
            drafts.judged(RuleId::CnpRate);
            let passed_ns = now_ns.saturating_sub(before_ns);
            if passed_ns < least_ns {
                let places = (packet.place, last.packet);
                let expected = format!("at least {least_ns} ns after the last CNP");
                drafts.relate(RuleId::CnpRate, places, Needs::Nothing, expected, format!("{passed_ns} ns"));
            }
        }
    }
}

/// Judges padding, and the length of the payload by itself.
fn padding(packet: &Packet<'_>, drafts: &mut Drafts) {
    let opcode = packet.bth.opcode;
    let pad = usize::from(packet.bth.pad_count);
    drafts.judged(RuleId::Padding);
    let Some(body) = packet.body_bytes() else {
        let found = format!("{} bytes, too short for {opcode}", packet.whole_bytes);
        drafts.add(RuleId::Padding, packet.place, "all headers of the opcode".to_owned(), found);
        return;
    };
    let fits = if opcode.has_payload() { body.is_multiple_of(4) && pad <= body } else { body == 0 && pad == 0 };
    if !fits {
        let expected =
            if opcode.has_payload() { "padding to a multiple of 4 bytes" } else { "neither payload nor padding" };
        let found = format!("{body} bytes after the headers, with a pad count of {pad}, in {opcode}");
        drafts.add(RuleId::Padding, packet.place, expected.to_owned(), found);
        return;
    }
    let payload = body - pad;
    let is_path_mtu = PathMtu::from_bytes(payload).is_some();
    if opcode.has_payload() && (payload > PathMtu::Mtu4096.bytes() || !opcode.is_last() && !is_path_mtu) {
        let found = format!("{payload} bytes in {opcode}");
        drafts.add(RuleId::Mtu, packet.place, "a path MTU of 256 to 4096 bytes".to_owned(), found);
    }
}

type Key = (IpAddr, IpAddr, Qpn);

/// Parts of a packet that the ICRC check found.
#[derive(Clone, Copy)]
struct Sighting<'a> {
    datagram: &'a Datagram<'a>,
    point: Point,
    bytes: &'a [u8],
    whole_bytes: usize,
    /// Whether the ICRC is right, if it could be checked.
    is_right: Option<bool>,
}

pub(super) struct Checker {
    options: Options,
    limits: Limits,
    flows: Flows,
    copies: Copies,
    streams: Vec<Stream>,
    by_key: HashMap<Key, usize>,
    /// Streams without an opposite direction, by source and destination.
    alone: HashMap<(IpAddr, IpAddr), Vec<usize>>,
    last: usize,
    frames: u64,
    packets: u64,
    unfollowed: u64,
    right_icrcs: u64,
    wrong_icrcs: u64,
    /// Findings about ICRCs. The queue pair of such a packet is unknown.
    damaged: Drafts,
}

impl Checker {
    pub(super) fn new(options: &Options, limits: &Limits) -> Self {
        Self {
            options: *options,
            limits: *limits,
            flows: Flows::new(),
            copies: Copies::default(),
            streams: Vec::new(),
            by_key: HashMap::new(),
            alone: HashMap::new(),
            last: 0,
            frames: 0,
            packets: 0,
            unfollowed: 0,
            right_icrcs: 0,
            wrong_icrcs: 0,
            damaged: Drafts::new(),
        }
    }

    pub(super) fn frame(&mut self, frame: &CapturedFrame<'_>) {
        self.frames += 1;
        let Ok(udp) = udp_frame(frame, self.options.udp_port) else { return };
        let datagram = &udp.datagram;
        let point = Point::new(frame, udp.layers, datagram.outer.hop_limit);
        let (bytes, whole_bytes) = (datagram.payload, datagram.payload_len);
        let sighting = |is_right| Sighting { datagram, point, bytes, whole_bytes, is_right };
        match self.flows.look(datagram) {
            Found::Right => self.sighted(frame, &sighting(Some(true))),
            Found::Wrong => self.sighted(frame, &sighting(Some(false))),
            Found::Undefined => self.sighted(frame, &sighting(None)),
            Found::Cut if longer_than_a_packet(bytes, whole_bytes) => self.unfollowed += 1,
            Found::Cut => self.sighted(frame, &sighting(None)),
            Found::Segments(length) => {
                for (index, segment) in bytes.chunks(length).enumerate() {
                    let is_right = Some(self.flows.segment_is_right(datagram, index, segment));
                    let whole_bytes = segment.len();
                    self.sighted(frame, &Sighting { bytes: segment, whole_bytes, is_right, ..sighting(None) });
                }
            }
        }
    }

    fn sighted(&mut self, frame: &CapturedFrame<'_>, sighting: &Sighting<'_>) {
        let Sighting { datagram, point, bytes, whole_bytes, is_right } = *sighting;
        self.packets += 1;
        let is_duplicate = frame.faults.has(FaultMarks::DUPLICATE);
        if is_duplicate || self.copies.is_second(identity(datagram, bytes, whole_bytes), point) {
            self.unfollowed += 1;
            return;
        }
        let place = Place { packet: self.frames, at_ns: frame.timestamp_ns };
        match is_right {
            Some(true) => self.right_icrcs += 1,
            Some(false) if frame.faults.has(FaultMarks::CORRUPTED) => return self.damaged.unjudged(RuleId::Icrc),
            Some(false) => {
                self.wrong_icrcs += 1;
                self.damaged.push(Draft {
                    rule: RuleId::Icrc,
                    place,
                    related: None,
                    needs: Needs::RightIcrcs,
                    expected: "the ICRC of the packet".to_owned(),
                    found: format!("another ICRC, from {} to {}", datagram.outer.src, datagram.outer.dst),
                });
                if self.options.drop_bad_icrc {
                    return;
                }
            }
            None => self.damaged.unjudged(RuleId::Icrc),
        }
        if is_right.is_some() {
            self.damaged.judged(RuleId::Icrc);
        }
        let Some((bth, rest)) = bytes.split_first_chunk::<BTH_LEN>() else {
            self.unfollowed += 1;
            return;
        };
        let bth = BthRepr::read(bth);
        let is_cnp = bth.opcode == Opcode::CNP;
        if bth.version != 0 || !is_cnp && (!is_followed(bth.opcode) || bth.opcode.operation().is_none()) {
            self.unfollowed += 1;
            return;
        }
        let Some(at) = self.stream((datagram.outer.src, datagram.outer.dst, bth.dest_qpn)) else {
            self.unfollowed += 1;
            return;
        };
        let is_outbound = frame.direction == OUTBOUND;
        let packet = Packet { place, bth, rest, whole_bytes, faults: frame.faults, is_outbound };
        self.packet(at, &packet, is_cnp);
    }

    fn packet(&mut self, at: usize, packet: &Packet<'_>, is_cnp: bool) {
        let opcode = packet.bth.opcode;
        let stream = &mut self.streams[at];
        stream.packets += 1;
        stream.look(packet);
        let mut kind = EventKind::Request;
        if is_cnp {
            stream.notify(packet, &self.limits);
            kind = EventKind::Cnp;
        } else if packet.body_bytes().is_none() {
            return;
        } else if opcode.is_request() {
            if stream.requests.add(packet, &self.limits, &mut stream.drafts) {
                stream.repeated += 1;
                kind = EventKind::Repeated;
            }
        } else {
            kind = match (packet.operation(), packet.aeth().map(|aeth| aeth.syndrome.kind())) {
                (Some(PacketOperation::Acknowledge), Some(SyndromeKind::RnrNak { .. })) => EventKind::RnrNak,
                (Some(PacketOperation::Acknowledge), Some(SyndromeKind::Nak(_))) => EventKind::Nak,
                (Some(PacketOperation::Acknowledge), _) => EventKind::Ack,
                _ => EventKind::Response,
            };
            stream.answers.look(packet, &mut stream.drafts);
            // The requester never received an answer that an injected fault dropped.
            if !packet.faults.has(FaultMarks::DROPPED) {
                self.answer(at, packet);
            }
        }
        let Place { packet: number, at_ns } = packet.place;
        self.streams[at].timeline.add(Event { packet: number, at_ns, psn: packet.bth.psn.get(), kind });
    }

    fn answer(&mut self, at: usize, packet: &Packet<'_>) {
        let opposite = self.opposite(at, packet);
        let Some(opposite) = opposite.filter(|opposite| *opposite != at) else {
            self.streams[at].drafts.unjudged(RuleId::Unsent);
            return;
        };
        if let Ok([own, other]) = self.streams.get_disjoint_mut([at, opposite]) {
            own.answers.judge(packet, &mut other.requests, &mut own.drafts);
        }
    }

    /// Returns the stream of a packet, and creates the stream if the number of streams is below the limit.
    fn stream(&mut self, key: Key) -> Option<usize> {
        let is = |stream: &Stream| (stream.from, stream.to, stream.to_qpn) == key;
        if self.streams.get(self.last).is_some_and(is) {
            return Some(self.last);
        }
        if let Some(&at) = self.by_key.get(&key) {
            self.last = at;
            return Some(at);
        }
        if self.streams.len() >= 2 * self.options.max_conversations {
            return None;
        }
        let at = self.streams.len();
        self.streams.push(Stream::new(key.0, key.1, key.2));
        self.by_key.insert(key, at);
        self.alone.entry((key.0, key.1)).or_default().push(at);
        self.last = at;
        Some(at)
    }

    /// Returns the stream with the requests that the answers of stream `at` belong to. PSNs start at random, so usually
    /// only one stream has sent the PSN of the answer.
    fn opposite(&mut self, at: usize, packet: &Packet<'_>) -> Option<usize> {
        let stream = &mut self.streams[at];
        if stream.opposite.is_some() || stream.searches >= MAX_SEARCHES {
            return stream.opposite;
        }
        stream.searches += 1;
        let (from, to) = (stream.from, stream.to);
        let mut fitting = self
            .alone
            .get(&(to, from))?
            .iter()
            .copied()
            .filter(|&other| other != at && self.streams[other].requests.has_sent(packet.bth.psn));
        let (Some(other), None) = (fitting.next(), fitting.next()) else { return None };
        for (one, another) in [(at, other), (other, at)] {
            let key = (self.streams[one].from, self.streams[one].to);
            if let Some(alone) = self.alone.get_mut(&key) {
                alone.retain(|&stream| stream != one);
            }
            self.streams[one].opposite = Some(another);
        }
        Some(other)
    }

    pub(super) fn finish(mut self, format: &'static str, stopped: Option<String>) -> Report {
        for stream in &mut self.streams {
            stream.requests.confirm(&mut stream.drafts);
        }
        let mut counts = [(0, 0, 0); COUNT];
        let mut findings = Vec::new();
        let mut more_findings = 0;
        let is_incomplete: Vec<_> = self.streams.iter().map(|stream| stream.requests.is_incomplete()).collect();
        let has_right_icrcs = self.right_icrcs > self.wrong_icrcs;
        let all = self.streams.iter().enumerate().map(|(at, stream)| (Some(at), stream.opposite, &stream.drafts));
        for (at, opposite, drafts) in all.chain([(None, None, &self.damaged)]) {
            for (index, count) in counts.iter_mut().enumerate() {
                count.1 += u64::from(drafts.judged[index]);
                count.2 += u64::from(drafts.unjudged[index]);
            }
            let before = findings.len();
            for draft in &drafts.list {
                let is_complete = |at: Option<usize>| at.is_some_and(|at| !is_incomplete[at]);
                let holds = match draft.needs {
                    Needs::Nothing => true,
                    Needs::Requests => is_complete(at),
                    Needs::PeerRequests => is_complete(opposite),
                    Needs::RightIcrcs => has_right_icrcs,
                };
                let count = &mut counts[draft.rule as usize];
                if !holds {
                    count.2 += 1;
                    continue;
                }
                count.0 += 1;
                let rule = draft.rule.rule();
                findings.push(Finding {
                    packet: draft.place.packet,
                    at_ns: draft.place.at_ns,
                    related_packet: draft.related,
                    queue_pair: at,
                    rule: rule.name,
                    section: rule.section,
                    severity: rule.severity,
                    expected: draft.expected.clone(),
                    found: draft.found.clone(),
                });
            }
            // If no kept finding holds, those beyond the maximum hold neither.
            more_findings += if findings.len() > before { drafts.more } else { 0 };
        }
        findings.sort_by_key(|finding| finding.packet);
        more_findings += findings.len().saturating_sub(MAX_FINDINGS) as u64;
        findings.truncate(MAX_FINDINGS);
        let rules = RULES.iter().zip(counts);
        let rules =
            rules.map(|(rule, (findings, judged, unjudged))| RuleCount { rule: *rule, findings, judged, unjudged });
        let from_qpns: Vec<_> =
            self.streams.iter().map(|it| it.opposite.map(|at| self.streams[at].to_qpn.get())).collect();
        let queue_pair = |(stream, from_qpn): (Stream, Option<u32>)| QueuePair {
            from: stream.from,
            from_qpn,
            to: stream.to,
            to_qpn: stream.to_qpn.get(),
            opposite: stream.opposite,
            packets: stream.packets,
            repeated: stream.repeated,
            complete: !stream.requests.is_incomplete(),
            events: stream.timeline.all(),
        };
        Report {
            schema: SCHEMA,
            format,
            stopped,
            frames: self.frames,
            packets: self.packets,
            unfollowed_packets: self.unfollowed,
            rules: rules.collect(),
            findings,
            more_findings,
            queue_pairs: self.streams.into_iter().zip(from_qpns).map(queue_pair).collect(),
        }
    }
}
