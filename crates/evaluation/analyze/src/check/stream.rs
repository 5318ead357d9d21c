//! Assignment of packets to streams.

use std::collections::HashSet;

use doorbell_wire::{
    BTH_LEN, BthRepr, CNP_RESERVED_LEN, Datagram, FaultMarks, Opcode, PacketOperation, PartitionKey, SyndromeKind,
    Transport,
};

use super::Limits;
use super::answers::Answers;
use super::fields;
use super::findings::{Draft, Drafts, Needs, Settled};
use super::packet::{Packet, Place};
use super::report::{Event, EventKind, Finding, QueuePair, Report, RuleCount, SCHEMA};
use super::requests::{Requests, is_followed, passed_ns};
use super::rules::{COUNT, RULES, RuleId, Severity};
use crate::decode::Options;
use crate::decode::capture::{CapturedFrame, LinkType};
use crate::decode::copies::{Copies, Point, identity};
use crate::decode::directions::{Directions, Joined, Key};
use crate::decode::layers::udp_frame;
use crate::decode::packets::{Flows, Found, longer_than_a_packet};

/// ECN bits of the traffic class (RFC 3168). Without them, a switch drops packets instead of marking them.
const ECN: u8 = 0b11;
/// Maximum number of findings of a report.
const MAX_FINDINGS: usize = 10_000;
/// Maximum number of sampled events, and of rare events, per stream.
const MAX_EVENTS: usize = 256;

/// Returns whether the capturing host sent a frame, from pcapng's flags or from the packet type of a Linux cooked
/// header. Types 0 to 2 are received frames, 4 are sent ones.
fn is_outbound(frame: &CapturedFrame<'_>) -> Option<bool> {
    let cooked = match frame.link_type {
        LinkType::LINUX_SLL => frame.bytes.get(1),
        LinkType::LINUX_SLL2 => frame.bytes.get(10),
        _ => None,
    };
    match (frame.direction, cooked) {
        (1, _) | (0, Some(0..=2)) => Some(false),
        (2, _) | (0, Some(4)) => Some(true),
        _ => None,
    }
}

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
    /// Whether requests are missing in an earlier opposite direction.
    lacks_earlier_requests: bool,
    packets: u64,
    repeated: u64,
    requests: Requests,
    answers: Answers,
    transport: Settled<Transport>,
    migration: Settled<bool>,
    partition_key: Settled<PartitionKey>,
    last_cnp: Option<Place>,
    /// Whether switches may have marked a packet.
    is_markable: bool,
    drafts: Drafts,
    timeline: Timeline,
}

impl Stream {
    fn new() -> Self {
        Self {
            lacks_earlier_requests: false,
            packets: 0,
            repeated: 0,
            requests: Requests::default(),
            answers: Answers::default(),
            transport: Settled::default(),
            migration: Settled::default(),
            partition_key: Settled::default(),
            last_cnp: None,
            is_markable: false,
            drafts: Drafts::new(),
            timeline: Timeline { sampled: Vec::new(), rare: Vec::new(), stride: 1, seen: 0 },
        }
    }

    /// Judges the fields that need no other stream.
    fn look(&mut self, packet: &Packet<'_>) {
        let (place, bth) = (packet.place, &packet.bth);
        let opcode = bth.opcode;
        let drafts = &mut self.drafts;
        fields::padding(packet, drafts);
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
        self.transport(opcode.transport(), place);
        let drafts = &mut self.drafts;
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

    /// Judges the transport of a packet.
    fn transport(&mut self, transport: Transport, place: Place) {
        self.drafts.judged(RuleId::Transport);
        if let Some((settled, odd, place)) = self.transport.see(transport, place) {
            self.drafts.add(RuleId::Transport, place, settled.to_string(), odd.to_string());
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
        let Some(last) = last else { return };
        let Some(passed_ns) = passed_ns(last.at_ns, packet.place.at_ns) else {
            drafts.unjudged(RuleId::CnpRate);
            return;
        };
        drafts.judged(RuleId::CnpRate);
        if passed_ns < least_ns {
            let places = (packet.place, last.packet);
            let expected = format!("at least {least_ns} ns after the last CNP");
            drafts.relate(RuleId::CnpRate, places, Needs::Nothing, expected, format!("{passed_ns} ns"));
        }
    }
}

/// Parts of a packet that the ICRC check found.
#[derive(Clone, Copy)]
struct Sighting<'a> {
    datagram: &'a Datagram<'a>,
    point: Point,
    bytes: &'a [u8],
    whole_bytes: usize,
    is_cut: bool,
    /// Whether the ICRC is right, if it could be checked.
    is_right: Option<bool>,
}

pub(super) struct Checker {
    options: Options,
    limits: Limits,
    flows: Flows,
    copies: Copies,
    /// Streams by the numbers of their directions.
    streams: Vec<Stream>,
    directions: Directions,
    frames: u64,
    packets: u64,
    unfollowed: u64,
    right_icrcs: u64,
    wrong_icrcs: u64,
    /// Whether frames were left out that may hold packets of a followed queue pair.
    lacks_packets: bool,
    /// Findings about packets whose queue pair is unknown.
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
            directions: Directions::default(),
            frames: 0,
            packets: 0,
            unfollowed: 0,
            right_icrcs: 0,
            wrong_icrcs: 0,
            lacks_packets: false,
            damaged: Drafts::new(),
        }
    }

    pub(super) fn frame(&mut self, frame: &CapturedFrame<'_>) {
        self.frames += 1;
        let Ok(udp) = udp_frame(frame, self.options.udp_port) else { return };
        let datagram = &udp.datagram;
        let point = Point::new(frame, udp.layers, datagram.outer.hop_limit);
        let (bytes, whole_bytes) = (datagram.payload, datagram.payload_len);
        let sighting = |is_right| Sighting { datagram, point, bytes, whole_bytes, is_cut: false, is_right };
        match self.flows.look(datagram) {
            Found::Right => self.sighted(frame, &sighting(Some(true))),
            Found::Wrong => self.sighted(frame, &sighting(Some(false))),
            Found::Undefined => self.sighted(frame, &sighting(None)),
            Found::Cut if longer_than_a_packet(bytes, whole_bytes) => {
                self.unfollowed += 1;
                self.lacks_packets = true;
            }
            Found::Cut => self.sighted(frame, &Sighting { is_cut: true, ..sighting(None) }),
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
        let Sighting { datagram, point, bytes, whole_bytes, is_cut, is_right } = *sighting;
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
        let Some((header, rest)) = bytes.split_first_chunk::<BTH_LEN>() else {
            self.unfollowed += 1;
            self.lacks_packets = true;
            return;
        };
        let bth = BthRepr::read(header);
        // Without a right ICRC, the bytes may be those of another protocol. The ICRC does not cover the congestion
        // bits, so an injected fault may have changed them.
        if is_right == Some(true) && !frame.faults.has(FaultMarks::CORRUPTED) {
            fields::header(header, &bth, place, &mut self.damaged);
        } else {
            for rule in [RuleId::Version, RuleId::Opcode, RuleId::Reserved] {
                self.damaged.unjudged(rule);
            }
        }
        let is_cnp = bth.opcode == Opcode::CNP;
        let key = Key { from: datagram.outer.src, to: datagram.outer.dst, to_qpn: bth.dest_qpn };
        if bth.version != 0 || !is_cnp && (!is_followed(bth.opcode) || bth.opcode.operation().is_none()) {
            self.unfollowed += 1;
            if let Some(at) = self.directions.find(key).filter(|_| bth.version == 0 && is_right == Some(true)) {
                self.streams[at].transport(bth.opcode.transport(), place);
            }
            return;
        }
        let Some(at) = self.stream(key) else {
            self.unfollowed += 1;
            self.lacks_packets = true;
            return;
        };
        let is_outbound = is_outbound(frame);
        let is_markable = datagram.outer.traffic_class & ECN != 0 || frame.faults.has(FaultMarks::ECN_MARKED);
        let packet = Packet { place, bth, rest, whole_bytes, is_cut, faults: frame.faults, is_markable, is_outbound };
        self.packet(at, &packet, is_cnp);
    }

    fn packet(&mut self, at: usize, packet: &Packet<'_>, is_cnp: bool) {
        let opcode = packet.bth.opcode;
        let stream = &mut self.streams[at];
        stream.packets += 1;
        stream.look(packet);
        stream.is_markable |= packet.is_markable;
        let mut kind = EventKind::Request;
        if is_cnp {
            stream.notify(packet, &self.limits);
            self.cause(at, packet.place);
            kind = EventKind::Cnp;
        } else if packet.body_bytes().is_none() {
            return;
        } else if opcode.is_request() {
            if stream.requests.add(packet, &self.limits, &mut stream.drafts) {
                stream.repeated += 1;
                kind = EventKind::Repeated;
            }
            self.directions.sent(at, stream.requests.span());
        } else {
            kind = match (packet.operation(), packet.aeth().map(|aeth| aeth.syndrome.kind())) {
                (Some(PacketOperation::Acknowledge), Some(SyndromeKind::RnrNak { .. })) => EventKind::RnrNak,
                (Some(PacketOperation::Acknowledge), Some(SyndromeKind::Nak(_))) => EventKind::Nak,
                (Some(PacketOperation::Acknowledge), _) => EventKind::Ack,
                _ => EventKind::Response,
            };
            stream.answers.look(packet, &mut stream.drafts);
            // The requester never received an answer that an injected fault dropped.
            if packet.faults.has(FaultMarks::DROPPED) {
                stream.answers.length(packet, &mut stream.drafts);
            } else {
                self.answer(at, packet);
            }
        }
        let Place { packet: number, at_ns } = packet.place;
        self.streams[at].timeline.add(Event { packet: number, at_ns, psn: packet.bth.psn.get(), kind });
    }

    /// Judges whether the network could mark a packet of the queue pair that a CNP goes to.
    fn cause(&mut self, at: usize, place: Place) {
        if !self.limits.complete {
            return;
        }
        let is_markable = self.directions.opposite(at).map(|opposite| self.streams[opposite].is_markable);
        let drafts = &mut self.streams[at].drafts;
        let Some(is_markable) = is_markable else { return drafts.unjudged(RuleId::CnpCause) };
        drafts.judged(RuleId::CnpCause);
        if !is_markable {
            drafts.push(Draft {
                rule: RuleId::CnpCause,
                place,
                related: None,
                needs: Needs::PeerRequests,
                expected: "a packet with ECT from the queue pair before".to_owned(),
                found: "only packets without ECT".to_owned(),
            });
        }
    }

    fn answer(&mut self, at: usize, packet: &Packet<'_>) {
        let opposite = self.opposite(at, packet);
        let Some(opposite) = opposite.filter(|opposite| *opposite != at) else {
            let stream = &mut self.streams[at];
            stream.answers.length(packet, &mut stream.drafts);
            stream.drafts.unjudged(RuleId::Unsent);
            return;
        };
        if let Ok([own, other]) = self.streams.get_disjoint_mut([at, opposite]) {
            own.answers.judge(packet, &mut other.requests, &self.limits, &mut own.drafts);
            // Responses show which PSNs a READ has used.
            self.directions.sent(opposite, other.requests.span());
        }
    }

    /// Returns the stream of a packet, and creates the stream if the number of streams is below the limit.
    fn stream(&mut self, key: Key) -> Option<usize> {
        if let Some(at) = self.directions.find(key) {
            return Some(at);
        }
        if self.streams.len() >= 2 * self.options.max_conversations {
            return None;
        }
        self.streams.push(Stream::new());
        Some(self.directions.add(key))
    }

    /// Returns the stream with the requests that the answers of stream `at` belong to. A queue pair may get another
    /// peer in a later connection.
    fn opposite(&mut self, at: usize, packet: &Packet<'_>) -> Option<usize> {
        let psn = packet.bth.psn;
        let Self { directions, streams, .. } = self;
        let known = directions.opposite(at);
        let is_settled = known.is_some_and(|known| !Answers::is_foreign(&streams[known].requests, psn));
        let joined = directions.join(at, is_settled, psn);
        if let Joined { opposite: Some(opposite), before: Some(before) } = joined {
            let lacks_requests = streams[before].requests.is_incomplete();
            let generation = streams[opposite].requests.generation();
            streams[at].lacks_earlier_requests |= lacks_requests;
            streams[at].answers.start_anew(generation);
        }
        joined.opposite
    }

    /// Reports answers to queue pairs that have sent nothing, although requests of their host were captured.
    fn report_strangers(&mut self) {
        let Self { directions, streams, .. } = self;
        let route = |at: usize| (directions.key(at).from, directions.key(at).to);
        let with_requests: HashSet<_> =
            (0..streams.len()).filter(|&at| streams[at].requests.has_any()).map(route).collect();
        for (at, stream) in streams.iter_mut().enumerate() {
            let first = stream.answers.first.filter(|_| directions.opposite(at).is_none());
            let Some((psn, place)) = first else { continue };
            let Key { from, to, to_qpn } = directions.key(at);
            if with_requests.contains(&(to, from)) && !directions.is_explained(at, psn) {
                let expected = format!("requests of queue pair {to_qpn} at {to}");
                let found = "an answer to a queue pair that has sent none".to_owned();
                stream.drafts.add(RuleId::Captured, place, expected, found);
            }
        }
    }

    pub(super) fn finish(mut self, format: &'static str, stopped: Option<String>) -> Report {
        for at in 0..self.streams.len() {
            let stream = &mut self.streams[at];
            stream.requests.confirm(&mut stream.drafts);
            stream.requests.recovery.confirm(&mut stream.drafts);
            if !self.lacks_packets {
                stream.requests.report_missing(&mut stream.drafts);
            }
            if let Some(opposite) = self.directions.opposite(at)
                && let Ok([own, other]) = self.streams.get_disjoint_mut([at, opposite])
            {
                own.answers.finish(&other.requests, &mut own.drafts);
            }
        }
        if self.limits.complete && !self.lacks_packets {
            self.report_strangers();
        }
        let mut counts = [(0_u64, 0_u64, 0_u64); COUNT];
        let mut findings = Vec::new();
        let is_incomplete: Vec<_> = self.streams.iter().map(|stream| stream.requests.is_incomplete()).collect();
        let has_right_icrcs = self.right_icrcs > self.wrong_icrcs;
        let all = self.streams.iter().enumerate().map(|(at, stream)| {
            let opposite = self.directions.opposite(at).filter(|_| !stream.lacks_earlier_requests);
            (Some(at), opposite, &stream.drafts)
        });
        for (at, opposite, drafts) in all.chain([(None, None, &self.damaged)]) {
            for (index, count) in counts.iter_mut().enumerate() {
                count.1 += u64::from(drafts.judged[index]);
                count.2 += u64::from(drafts.unjudged[index]);
            }
            let is_complete = |at: Option<usize>| at.is_some_and(|at| !is_incomplete[at]);
            let holds = |needs| match needs {
                Needs::Nothing => true,
                Needs::Requests => is_complete(at),
                Needs::PeerRequests => is_complete(opposite),
                Needs::RightIcrcs => has_right_icrcs,
            };
            for (count, found) in counts.iter_mut().zip(&drafts.found) {
                for (needs, found) in Needs::ALL.into_iter().zip(found) {
                    *(if holds(needs) { &mut count.0 } else { &mut count.2 }) += found;
                }
            }
            for draft in drafts.list.iter().filter(|draft| holds(draft.needs)) {
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
        }
        findings.sort_by_key(|finding| finding.packet);
        findings.truncate(MAX_FINDINGS);
        let of_severity = |severity| {
            let of_rules = RULES.iter().zip(&counts).filter(move |(rule, _)| rule.severity == severity);
            of_rules.map(|(_, count)| count.0).sum::<u64>()
        };
        let (errors, warnings) = (of_severity(Severity::Error), of_severity(Severity::Warning));
        let rules = RULES.iter().zip(counts);
        let rules =
            rules.map(|(rule, (findings, judged, unjudged))| RuleCount { rule: *rule, findings, judged, unjudged });
        let directions = &self.directions;
        let queue_pair = |(at, stream): (usize, Stream)| {
            let (Key { from, to, to_qpn }, opposite) = (directions.key(at), directions.opposite(at));
            QueuePair {
                from,
                from_qpn: opposite.map(|other| directions.key(other).to_qpn.get()),
                to,
                to_qpn: to_qpn.get(),
                opposite,
                packets: stream.packets,
                repeated: stream.repeated,
                complete: !stream.requests.is_incomplete(),
                events: stream.timeline.all(),
            }
        };
        Report {
            schema: SCHEMA,
            format,
            stopped,
            frames: self.frames,
            packets: self.packets,
            unfollowed_packets: self.unfollowed,
            rules: rules.collect(),
            more_findings: errors + warnings - findings.len() as u64,
            findings,
            errors,
            warnings,
            queue_pairs: self.streams.into_iter().enumerate().map(queue_pair).collect(),
        }
    }
}
