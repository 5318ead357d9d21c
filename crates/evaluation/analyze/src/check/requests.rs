//! Requests of one queue pair: order, and contents of messages.

mod credits;
mod repeats;
mod responses;

use std::collections::VecDeque;

use doorbell_wire::{Opcode, PacketOperation, Psn, Transport, rnr_timer_ns};

use super::Limits;
use super::findings::{Draft, Drafts, Settled};
use super::missing::Missing;
use super::packet::{Packet, Place};
use super::recovery::Recovery;
use super::rules::RuleId;
use super::sent::{SHORTEST_MTU, Sent, is_rest, name, response_packets, target};
use crate::decode::directions::Span;
use credits::Credits;

/// Maximum number of request packets that are remembered.
const MAX_SENT: usize = 1024;
/// Maximum jump of a PSN. A larger jump is a new connection, or a wrong PSN.
const MAX_STRIDE: u32 = 1 << 17;
/// Maximum distance of the PSNs of remembered packets, so that their order is distinct.
const MAX_SPAN: u32 = 1 << 22;
/// Maximum distance to the next PSN of a packet that belongs to the same connection without doubt.
const NEAR: u32 = 64;
/// Round trips within which a retransmission shows that a NAK has arrived. The timeout of a queue pair is longer.
const FEW_ROUND_TRIPS: u64 = 16;

/// Position within the messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Message {
    /// Unknown, at the start of the capture or after a missing packet.
    #[default]
    Unknown,
    /// Between two messages.
    Between,
    /// Within a message, of which `left` bytes follow if the RETH was captured.
    Within { operation: PacketOperation, left: Option<u32> },
}

/// RNR NAK that asks for a retransmission.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    psn: Psn,
    place: Place,
    /// Delay that an RNR NAK asks for.
    delay_ns: u64,
    /// Maximum time until a retransmission that the NAK can have caused, if the network may have lost the NAK.
    most_ns: Option<u64>,
    /// Whether the next transmission is one that the NAK has caused.
    is_certain: bool,
}

#[derive(Debug, Default)]
pub(super) struct Requests {
    sent: VecDeque<Sent>,
    /// PSN of the next new request.
    next: Option<Psn>,
    /// Number of PSNs that the last READ may have used beyond its first one.
    slack: u32,
    /// PSN of the previous packet of the stream.
    previous: Option<Psn>,
    /// Newest packet of the stream.
    last: Option<Place>,
    message: Message,
    messages: u32,
    /// Number of skips of PSNs.
    holes: u64,
    /// Number of READs whose successor skips PSNs that the READ may have used.
    doubts: u64,
    /// Packet with a PSN far from those before.
    jump: Option<Place>,
    /// Finding about a repeated PSN with other contents. Two in a row are a new connection.
    suspect: Option<Draft>,
    /// Number of connections that ended.
    generation: u32,
    mtu: Settled<u32>,
    rereads: VecDeque<Psn>,
    pub(super) recovery: Recovery,
    rnr: Option<Awaited>,
    /// PSN after the newest acknowledged one.
    acknowledged: Option<Psn>,
    /// Transmissions of the oldest unacknowledged request since the last answer.
    unanswered: u32,
    /// Path MTU that the responses to READs show.
    read_mtu: Option<u32>,
    /// Skipped PSNs, if the capture is complete.
    missing: Missing,
    /// Packet number from which all answers are judged.
    judged_from: Option<u64>,
    /// Whether the responder has refused a request, which ends the connection.
    is_refused: bool,
    /// Whether READs or atomics were sent, whose lost responses are repeated without a NAK.
    has_reads: bool,
    /// First captured request, if it begins a message.
    opening: Option<Psn>,
    /// Whether the MSNs show that the first captured message is the first one of the connection.
    is_whole: Option<bool>,
    /// Findings about the first request before any answer. They hold only if no earlier request exists.
    early: Vec<Draft>,
    credits: Credits,
}

impl Requests {
    /// Returns whether PSNs are missing, so that messages cannot be counted.
    pub(super) fn is_incomplete(&self) -> bool {
        self.holes + self.doubts > 0
    }

    /// Returns whether the requester has sent a request.
    pub(super) fn has_any(&self) -> bool {
        self.next.is_some()
    }

    /// Returns the PSNs near the newest one that the requester has sent, with those of responses to its READs.
    pub(super) fn span(&self) -> Option<Span> {
        let (first, next) = (self.sent.front()?.psn, self.next?);
        Some(Span { first, length: next.add(self.slack).distance_from(first) })
    }

    /// Returns whether the requester has sent a PSN near its newest one.
    pub(super) fn has_sent(&self, psn: Psn) -> bool {
        self.span().is_some_and(|span| span.contains(psn))
    }

    /// Returns by how much a PSN exceeds the newest sent one, or `None` if it was sent.
    pub(super) fn beyond(&self, psn: Psn) -> Option<u32> {
        let end = self.next?.add(self.slack);
        let beyond = psn.distance_from(end);
        (beyond < 1 << 23).then_some(beyond)
    }

    /// Returns whether the requester has sent a request after the one with this PSN.
    pub(super) fn has_later(&self, psn: Psn) -> bool {
        self.sent.back().is_some_and(|newest| psn.is_before(newest.psn))
    }

    fn index(&self, psn: Psn) -> Option<usize> {
        let first = self.sent.front()?.psn;
        let distance = psn.distance_from(first);
        if distance >= 1 << 23 {
            return None;
        }
        self.sent.partition_point(|sent| sent.psn.distance_from(first) <= distance).checked_sub(1)
    }

    /// Returns the request whose PSNs contain `psn`, if it is remembered.
    pub(super) fn covering(&mut self, psn: Psn) -> Option<&mut Sent> {
        let at = self.index(psn)?;
        self.sent.get_mut(at)
    }

    /// Returns the request packet with exactly this PSN.
    pub(super) fn exactly(&self, psn: Psn) -> Option<&Sent> {
        self.index(psn).and_then(|at| self.sent.get(at)).filter(|sent| sent.psn == psn)
    }

    /// Returns the number of messages up to the SEND or WRITE packet with this PSN, if no packet is missing.
    pub(super) fn messages_up_to(&self, psn: Psn) -> Option<u32> {
        let sent = self.exactly(psn).filter(|_| !self.is_incomplete())?;
        matches!(sent.opcode.operation(), Some(PacketOperation::Send | PacketOperation::Write)).then_some(sent.messages)
    }

    /// Returns the number of messages that the requester has sent.
    pub(super) fn messages(&self) -> u32 {
        self.messages
    }

    /// Returns whether a READ request was repeated from this PSN on.
    pub(super) fn is_reread(&self, psn: Psn) -> bool {
        self.rereads.contains(&psn)
    }

    /// Records an answer of the responder that acknowledges everything before `end`.
    pub(super) fn answered(&mut self, end: Psn, answer: Place) {
        self.unanswered = 0;
        self.missing.acknowledge(end, answer);
        if self.acknowledged.is_none_or(|known| known.is_before(end)) {
            self.acknowledged = Some(end);
        }
        self.recovery.received(end, answer);
    }

    /// Returns whether the newest packet may begin a new connection.
    pub(super) fn is_jumping(&self) -> bool {
        self.jump.is_some()
    }

    /// Returns whether the newest request comes later in the file than an answer, but has an earlier time.
    pub(super) fn is_out_of_order(&self, answer: Place) -> bool {
        self.last.is_some_and(|last| last.packet > answer.packet && last.at_ns < answer.at_ns)
    }

    /// Returns whether the newest request comes after an answer, in the file and in time.
    pub(super) fn is_later(&self, answer: Place) -> bool {
        self.last.is_some_and(|last| last.packet > answer.packet && last.at_ns >= answer.at_ns)
    }

    /// Returns the number of connections with this queue pair that ended.
    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    /// Records the path MTU that the responses to READs show. It determines the PSNs of all READs.
    pub(super) fn learn_mtu(&mut self, mtu: Option<u32>) {
        self.read_mtu = mtu.filter(|mtu| *mtu > 0);
        let Some(mtu) = self.read_mtu else { return };
        let end = |sent: &Sent| sent.target.map(|(_, length)| sent.psn.add(response_packets(length, mtu)));
        if self.slack > 0
            && let Some(end) = self.sent.back().and_then(end)
        {
            self.next = Some(end);
            self.slack = 0;
        }
        if self.doubts > 0 {
            for at in 0..self.sent.len() {
                if let Some(end) = Some(&self.sent[at]).filter(|sent| sent.is_doubtful).and_then(end) {
                    self.settle(at, end);
                }
            }
        }
    }

    /// Reports the findings that hold only if no packet is missing: acknowledged PSNs and responses that never came,
    /// SENDs without credits, and repetitions before the first answer.
    pub(super) fn report_missing(&mut self, drafts: &mut Drafts) {
        self.missing.report(drafts);
        self.credits.report(drafts);
        self.report_early(drafts);
        self.report_unanswered(drafts);
    }

    /// Settles whether PSNs are missing after a READ. `end` is the PSN after those that the READ uses.
    fn settle(&mut self, at: usize, end: Psn) {
        self.sent[at].is_doubtful = false;
        self.doubts -= 1;
        self.holes += u64::from(self.sent.get(at + 1).is_some_and(|next| next.psn != end));
    }

    /// Records the last packet of the response to a READ, which shows how many PSNs the READ uses.
    pub(super) fn end_of_read(&mut self, psn: Psn, payload: Option<u32>) {
        let Some(at) = self.index(psn).filter(|&at| self.sent[at].can_end(psn, payload)) else { return };
        if self.sent[at].is_doubtful {
            self.settle(at, psn.next());
        } else if self.slack > 0 && at + 1 == self.sent.len() {
            self.next = Some(psn.next());
            self.slack = 0;
        }
    }

    /// Records a NAK for a missing packet.
    pub(super) fn nak(&mut self, psn: Psn, place: Place) {
        // If the missing packet was not captured, the capture is behind the loss and may lose retransmissions too. If
        // the packet is acknowledged, the network has delayed the NAK.
        let is_acknowledged = self.acknowledged.is_some_and(|end| psn.is_before(end));
        if let Some(sent) = self.exactly(psn).filter(|_| !is_acknowledged) {
            let is_first = sent.times == 1;
            self.recovery.nak(psn, place, is_first);
        }
    }

    /// Records an RNR NAK. `is_outbound` is whether the capturing host sent the NAK, if the capture shows that.
    pub(super) fn rnr(&mut self, psn: Psn, timer: u8, place: Place, is_outbound: Option<bool>) {
        self.rnr = self.exactly(psn).map(|sent| {
            let most_ns = passed_ns(sent.last_ns, place.at_ns).unwrap_or(0).saturating_mul(FEW_ROUND_TRIPS);
            let most_ns = (is_outbound != Some(false)).then_some(most_ns);
            // A second transmission may have been on its way before the NAK arrived. The network may lose a NAK that
            // the responder has captured, and the requester then repeats the request after its own timeout.
            let is_certain = sent.times == 1 && is_outbound != Some(true);
            Awaited { psn, place, delay_ns: rnr_timer_ns(timer), most_ns, is_certain }
        });
    }

    /// Judges a request packet. Returns whether its PSN was sent before.
    pub(super) fn add(&mut self, packet: &Packet<'_>, limits: &Limits, drafts: &mut Drafts) -> bool {
        let psn = packet.bth.psn;
        self.last = Some(packet.place);
        self.recovery.is_complete = limits.complete;
        let Some(next) = self.next else {
            // The queue pair begins in the midst of a message. The network may still have lost the packets before.
            if limits.complete && !packet.bth.opcode.is_first() {
                self.missing.add(psn.sub(1), psn, packet.place, drafts);
            }
            self.opening = packet.bth.opcode.is_first().then_some(psn);
            self.push_new(packet, drafts);
            return false;
        };
        let ahead = psn.distance_from(next);
        let behind = next.distance_from(psn);
        if ahead < MAX_STRIDE || behind < MAX_STRIDE {
            if let Some(place) = self.jump.take() {
                let expected = format!("PSN {next}, or one sent before");
                drafts.add(RuleId::Psn, place, expected, "a PSN far from those before and after".to_owned());
            }
            drafts.judged(RuleId::Psn);
        } else if self.jump.is_none() {
            self.jump = Some(packet.place);
            drafts.unjudged(RuleId::Mtu);
            return false;
        } else {
            // Two packets in a row are far from the last connection: a new connection has the number of the queue pair.
            self.start_anew(drafts);
            self.push_new(packet, drafts);
            return false;
        }
        // A lost READ request has skipped the PSNs of its responses.
        let psns = match packet.operation() {
            Some(PacketOperation::ReadRequest) => {
                response_packets(target(packet).map_or(u64::MAX, |(_, length)| length), SHORTEST_MTU)
            }
            _ => 1,
        };
        self.missing.find(psn, psns);
        let is_repeated = ahead >= MAX_STRIDE || self.slack > 0 && ahead <= self.slack && self.is_rest_of_read(packet);
        if is_repeated {
            if limits.complete && packet.bth.opcode.transport() == Transport::Uc && behind <= NEAR {
                let expected = format!("PSN {next}, since UC repeats no request");
                drafts.add(RuleId::Psn, packet.place, expected, format!("PSN {psn}"));
            }
            self.repeat(packet, limits, drafts);
        } else {
            self.confirm(drafts);
            self.recovery.confirm(drafts);
            // After a READ of unknown length, a message that does not start with its first packet has lost that one.
            if ahead > self.slack || ahead > 0 && !packet.bth.opcode.is_first() {
                self.holes += 1;
                self.message = Message::Unknown;
                drafts.unjudged(RuleId::Psn);
                drafts.unjudged(RuleId::Order);
                if limits.complete {
                    let first = if ahead > self.slack { next.add(self.slack) } else { psn.sub(1) };
                    self.missing.add(first, psn, packet.place, drafts);
                }
            } else if ahead > 0
                && let Some(read) = self.sent.back_mut()
            {
                read.is_doubtful = true;
                self.doubts += 1;
            }
            self.push_new(packet, drafts);
        }
        self.previous = Some(psn);
        is_repeated
    }

    /// Reports the finding that waited for the next packet.
    pub(super) fn confirm(&mut self, drafts: &mut Drafts) {
        if let Some(draft) = self.suspect.take() {
            drafts.push(draft);
        }
    }

    fn start_anew(&mut self, drafts: &mut Drafts) {
        self.report_missing(drafts);
        *self = Self {
            holes: self.holes + self.doubts,
            generation: self.generation + 1,
            last: self.last,
            ..Self::default()
        };
    }

    fn push_new(&mut self, packet: &Packet<'_>, drafts: &mut Drafts) {
        let opcode = packet.bth.opcode;
        self.length_of_payload(packet, drafts);
        self.follow(packet, drafts);
        self.credits.send(packet, self.messages.wrapping_add(1), drafts);
        if opcode.is_last() {
            self.messages = self.messages.wrapping_add(1);
        }
        let is_far = |sent: &Sent| packet.bth.psn.distance_from(sent.psn) >= MAX_SPAN;
        while self.sent.len() == MAX_SENT || self.sent.front().is_some_and(is_far) {
            self.judge_response(0, drafts);
            let is_doubtful = self.sent.pop_front().is_some_and(|sent| sent.is_doubtful);
            self.doubts -= u64::from(is_doubtful);
            self.holes += u64::from(is_doubtful);
        }
        let target = target(packet);
        self.sent.push_back(Sent {
            psn: packet.bth.psn,
            opcode,
            payload: packet.has_known_payload().then(|| packet.payload_bytes()),
            target,
            solicited: packet.bth.solicited,
            immediate: packet.immediate(),
            messages: self.messages,
            times: 1,
            place: packet.place,
            last_ns: packet.place.at_ns,
            answer: None,
            is_doubtful: false,
            rests: 0,
            responses: 0,
        });
        self.next = Some(packet.bth.psn.next());
        self.previous = Some(packet.bth.psn);
        self.slack = 0;
        match packet.operation() {
            Some(PacketOperation::ReadRequest) => {
                self.has_reads = true;
                match (target, self.read_mtu) {
                    (Some((_, length)), Some(mtu)) => {
                        self.next = Some(packet.bth.psn.add(response_packets(length, mtu)));
                    }
                    (target, _) => {
                        let length = target.map_or(u64::MAX, |(_, length)| length);
                        self.slack = (response_packets(length, SHORTEST_MTU) - 1).min(MAX_STRIDE - 1);
                    }
                }
            }
            Some(PacketOperation::CompareSwap | PacketOperation::FetchAdd) => self.has_reads = true,
            _ => {}
        }
    }

    /// Judges the place of a new packet within its message.
    fn follow(&mut self, packet: &Packet<'_>, drafts: &mut Drafts) {
        let opcode = packet.bth.opcode;
        let Some(operation) = packet.operation() else {
            self.message = Message::Unknown;
            return;
        };
        let expected = match self.message {
            Message::Within { operation: was, .. } if opcode.is_first() || was != operation => {
                Some(format!("a middle or last packet of the {}", name(was)))
            }
            Message::Between if !opcode.is_first() => Some("the first packet of a message".to_owned()),
            _ => None,
        };
        if self.message != Message::Unknown {
            drafts.judged(RuleId::Order);
        }
        let is_in_order = expected.is_none();
        if let Some(expected) = expected {
            drafts.add(RuleId::Order, packet.place, expected, opcode.to_string());
        }
        let left = match self.message {
            _ if opcode.is_first() && operation == PacketOperation::Write => packet.reth().map(|reth| reth.dma_length),
            Message::Within { left, .. } if is_in_order && !opcode.is_first() => left,
            _ => None,
        };
        if left.is_some() && !packet.has_known_payload() {
            drafts.unjudged(RuleId::Length);
        }
        let left = left.filter(|_| packet.has_known_payload());
        let payload = packet.payload_bytes();
        if let Some(left) = left {
            drafts.judged(RuleId::Length);
            let fits = if opcode.is_last() { payload == left } else { payload < left };
            if !fits {
                let expected = if opcode.is_last() { format!("{left} bytes") } else { format!("below {left} bytes") };
                drafts.add(RuleId::Length, packet.place, expected, format!("{payload} bytes in {opcode}"));
            }
        }
        self.message = if opcode.is_last() {
            Message::Between
        } else {
            Message::Within { operation, left: left.and_then(|left| left.checked_sub(payload)) }
        };
    }

    fn length_of_payload(&mut self, packet: &Packet<'_>, drafts: &mut Drafts) {
        if matches!(packet.operation(), Some(PacketOperation::Send | PacketOperation::Write)) {
            payload_of_path(&mut self.mtu, packet, drafts);
        }
    }

    /// Returns whether the packet asks for the rest of the newest READ.
    fn is_rest_of_read(&self, packet: &Packet<'_>) -> bool {
        self.sent.back().is_some_and(|sent| is_rest(sent, packet))
    }
}

/// Returns the time between two packets. Returns `None` if a packet has no time, or if the clock did not advance: then
/// the capture has no times, or too coarse ones.
pub(super) fn passed_ns(before_ns: Option<u64>, now_ns: Option<u64>) -> Option<u64> {
    now_ns?.checked_sub(before_ns?).filter(|passed| *passed > 0)
}

/// Judges the payload of a packet against the path MTU of its stream.
pub(super) fn payload_of_path(mtu: &mut Settled<u32>, packet: &Packet<'_>, drafts: &mut Drafts) {
    let (opcode, payload) = (packet.bth.opcode, packet.payload_bytes());
    if !packet.has_known_payload() {
        drafts.unjudged(RuleId::Mtu);
        return;
    }
    drafts.judged(RuleId::Mtu);
    if !opcode.is_last() {
        if let Some((settled, odd, place)) = mtu.see(payload, packet.place) {
            let expected = format!("{settled} bytes, the path MTU of the queue pair");
            drafts.add(RuleId::Mtu, place, expected, format!("{odd} bytes"));
        }
        return;
    }
    if let Some(most) = mtu.get()
        && payload > most
    {
        drafts.add(RuleId::Mtu, packet.place, format!("at most {most} bytes"), format!("{payload} bytes in {opcode}"));
    }
    if payload == 0 && !opcode.is_first() {
        drafts.add(RuleId::Mtu, packet.place, "at least 1 byte".to_owned(), format!("no payload in {opcode}"));
    }
}

/// Returns whether the rules follow the PSNs of a transport.
pub(super) fn is_followed(opcode: Opcode) -> bool {
    matches!(opcode.transport(), Transport::Rc | Transport::Uc)
}
