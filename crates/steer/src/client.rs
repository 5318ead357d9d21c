//! The box as a client sees it: a responder that answers once the node has answered (IBTA Vol 1, 9.7.4, 9.7.5).

use std::collections::VecDeque;
use std::net::IpAddr;

use doorbell_wire::{AethRepr, BthRepr, Msn, NakCode, Opcode, PartitionKey, Psn, Qpn, RKey, Syndrome};

use crate::config::ClientEnd;
use crate::message::Message;
use crate::output::{Output, Path};

/// Results of atomics that are kept for repetitions, for each client: as many as it may have outstanding
/// (IBTA Vol 1, 9.7.4.4), and some more.
const ATOMICS_KEPT: usize = 64;

/// READs that went elsewhere, kept so that a repetition goes there too.
const REDIRECTS_KEPT: usize = 64;

/// Repetitions of a client that wait for their turn.
const REPETITIONS: usize = 128;

/// What is answered once more, in the order in which the client asked.
#[derive(Debug)]
pub(crate) enum Repetition {
    /// A READ, which the node carries out again.
    Read(Message),
    /// That READ is at the node.
    ReadInFlight,
    Atomic {
        psn: Psn,
        original: u64,
    },
    Acknowledge,
}

/// What becomes of a client's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Open,
    /// The request at the next PSN is refused, once everything before it is answered.
    Refusing(NakCode),
    /// The queue pair with the node failed while nothing of this client was there: its next request hears of it.
    Failing,
    /// The request at this PSN was refused, and nothing after it is carried out.
    Refused(Psn, NakCode),
}

/// Where a READ went instead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Redirect {
    pub(crate) psn: Psn,
    pub(crate) packets: u32,
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) node_rkey: RKey,
}

#[derive(Debug)]
pub(crate) struct Client {
    /// The number that the client sends to.
    pub(crate) own_qpn: Qpn,
    pub(crate) peer: ClientEnd,
    pub(crate) phase: Phase,
    /// The PSN of the next new packet.
    pub(crate) expected: Psn,
    /// Everything before this is answered.
    pub(crate) answered: Psn,
    /// Requests accepted, and answered.
    pub(crate) accepted_msn: Msn,
    pub(crate) answered_msn: Msn,
    /// A WRITE of which packets are missing, and the payload bytes that are there.
    pub(crate) assembly: Option<(Message, u32)>,
    /// When the last packet of it arrived.
    pub(crate) assembly_ns: u64,
    /// Requests that wait for their turn at the node.
    pub(crate) waiting: VecDeque<Message>,
    /// Requests at the node.
    pub(crate) in_flight: usize,
    /// Bytes of packets that are held for it.
    pub(crate) held_bytes: usize,
    pub(crate) repetitions: VecDeque<Repetition>,
    atomics: VecDeque<(Psn, u64)>,
    redirects: VecDeque<Redirect>,
    /// It has a place in the box's list of clients with something to send to the node, or waits for something
    /// that puts it there.
    pub(crate) scheduled: bool,
    pub(crate) touched: bool,
    /// A NAK was made for the PSN that is expected.
    nak_made: bool,
    nak_due: bool,
    ack_due: bool,
    /// Packets of an incomplete message are to be acknowledged.
    partial_ack_due: bool,
    /// DSCP of its requests, for acknowledgements.
    pub(crate) traffic_class: u8,
    partition_key: PartitionKey,
}

impl Client {
    pub(crate) fn new(own_qpn: Qpn, peer: ClientEnd) -> Self {
        Self {
            own_qpn,
            peer,
            phase: Phase::Open,
            expected: peer.first_psn,
            answered: peer.first_psn,
            accepted_msn: Msn::new(0),
            answered_msn: Msn::new(0),
            assembly: None,
            assembly_ns: 0,
            waiting: VecDeque::new(),
            in_flight: 0,
            held_bytes: 0,
            repetitions: VecDeque::new(),
            atomics: VecDeque::new(),
            redirects: VecDeque::new(),
            scheduled: false,
            touched: false,
            nak_made: false,
            nak_due: false,
            ack_due: false,
            partial_ack_due: false,
            traffic_class: 0,
            partition_key: PartitionKey::new(0xffff),
        }
    }

    /// Is there a request of this client that is not answered? One that is incomplete does not count.
    pub(crate) fn is_answered(&self) -> bool {
        self.waiting.is_empty() && self.in_flight == 0
    }

    /// Is a repetition at the node, or on its way there? Answers to later requests wait until it is answered, since
    /// the client could not use them.
    pub(crate) fn is_repeating(&self) -> bool {
        !self.repetitions.is_empty()
    }

    /// The PSN after the last request that is complete.
    pub(crate) fn complete_end(&self) -> Psn {
        self.assembly.as_ref().map_or(self.expected, |(message, _)| message.psn)
    }

    /// A packet with the expected PSN has arrived.
    pub(crate) fn arrived(&mut self, packets: u32) {
        self.expected = self.expected.add(packets);
        (self.nak_made, self.nak_due) = (false, false);
    }

    /// A packet ahead of the expected one has arrived. True if that is news.
    pub(crate) fn missed(&mut self) -> bool {
        self.nak_due |= !self.nak_made;
        !std::mem::replace(&mut self.nak_made, true)
    }

    pub(crate) fn want_ack(&mut self) {
        self.ack_due = true;
    }

    pub(crate) fn want_partial_ack(&mut self) {
        self.partial_ack_due = true;
    }

    /// Queues a repetition. False if there is no room: then the client will have to ask again.
    pub(crate) fn repeat(&mut self, repetition: Repetition) -> bool {
        let has_room = self.repetitions.len() < REPETITIONS;
        if has_room {
            self.repetitions.push_back(repetition);
        }
        has_room
    }

    /// The READ at the head of the repetitions is answered.
    pub(crate) fn repeated(&mut self) {
        if matches!(self.repetitions.front(), Some(Repetition::ReadInFlight)) {
            self.repetitions.pop_front();
        }
    }

    pub(crate) fn result_of(&self, psn: Psn) -> Option<u64> {
        self.atomics.iter().find(|(known, _)| *known == psn).map(|&(_, original)| original)
    }

    pub(crate) fn keep_result(&mut self, psn: Psn, original: u64) {
        if self.atomics.len() == ATOMICS_KEPT {
            self.atomics.pop_front();
        }
        self.atomics.push_back((psn, original));
    }

    /// Where the READ with this PSN went, if it went elsewhere.
    pub(crate) fn redirect_of(&self, psn: Psn) -> Option<Redirect> {
        self.redirects.iter().rev().find(|redirect| psn.distance_from(redirect.psn) < redirect.packets).copied()
    }

    pub(crate) fn keep_redirect(&mut self, redirect: Redirect) {
        if self.redirects.len() == REDIRECTS_KEPT {
            self.redirects.pop_front();
        }
        self.redirects.push_back(redirect);
    }

    /// A request is answered, apart from what [`settle`](Self::settle) sends.
    pub(crate) fn completed(&mut self, message: &Message) {
        self.in_flight -= 1;
        self.answered = message.psn.add(message.packets);
        self.answered_msn = message.msn;
    }

    /// The answer to an atomic: at once, or behind the repetitions.
    pub(crate) fn answer_atomic(&mut self, psn: Psn, original: u64, from: IpAddr, out: &mut Output) {
        if self.is_repeating() {
            self.repeat(Repetition::Atomic { psn, original });
        } else {
            self.ack_due = false; // it acknowledges everything before it
            self.send_atomic(psn, original, from, out);
        }
    }

    /// Sends what may be sent now: answers that were asked for again up to the first READ, then acknowledgements
    /// and refusals. True if an acknowledgement was among it.
    pub(crate) fn settle(&mut self, from: IpAddr, out: &mut Output) -> bool {
        loop {
            match self.repetitions.front() {
                Some(&Repetition::Atomic { psn, original }) => self.send_atomic(psn, original, from, out),
                Some(Repetition::Acknowledge) => self.ack_due = true,
                Some(Repetition::Read(_) | Repetition::ReadInFlight) => return false,
                None => break,
            }
            self.repetitions.pop_front();
        }
        let has_acked = std::mem::take(&mut self.ack_due);
        if has_acked {
            self.send_ack(self.answered.sub(1), from, out);
        }
        if !self.is_answered() {
            return has_acked;
        }
        // A NAK acknowledges everything before it (IBTA Vol 1, 9.7.5.1.2), so it waits until all of that is answered.
        if std::mem::take(&mut self.partial_ack_due) && self.expected != self.answered {
            self.send_ack(self.expected.sub(1), from, out);
        }
        if std::mem::take(&mut self.nak_due) {
            self.send_nak(self.expected, NakCode::PSN_SEQUENCE_ERROR, from, out);
        }
        if let Phase::Refusing(code) = self.phase {
            self.phase = Phase::Refused(self.expected, code);
            self.send_nak(self.expected, code, from, out);
        }
        has_acked
    }

    /// Is a NAK for a lost request about to leave?
    pub(crate) fn is_nak_due(&self) -> bool {
        self.nak_due && self.is_answered() && !self.is_repeating()
    }

    /// The way to the client for what the box itself says.
    pub(crate) fn path(&self, from: IpAddr) -> Path {
        Path { source: from, destination: self.peer.address, traffic_class: self.traffic_class & !ECN, hop_limit: 64 }
    }

    fn bth(&self, opcode: Opcode, psn: Psn) -> BthRepr {
        let (partition_key, dest_qpn) = (self.partition_key, self.peer.qpn);
        BthRepr { opcode, migrated: true, partition_key, dest_qpn, psn, ..BthRepr::default() }
    }

    fn send_ack(&mut self, psn: Psn, from: IpAddr, out: &mut Output) {
        let aeth = AethRepr { syndrome: Syndrome::ACK_UNLIMITED, msn: self.answered_msn };
        out.push_response(self.path(from), &self.bth(Opcode::RC_ACKNOWLEDGE, psn), &aeth, &[]);
    }

    pub(crate) fn send_nak(&mut self, psn: Psn, code: NakCode, from: IpAddr, out: &mut Output) {
        let aeth = AethRepr { syndrome: Syndrome::nak(code), msn: self.answered_msn };
        out.push_response(self.path(from), &self.bth(Opcode::RC_ACKNOWLEDGE, psn), &aeth, &[]);
    }

    fn send_atomic(&mut self, psn: Psn, original: u64, from: IpAddr, out: &mut Output) {
        let aeth = AethRepr { syndrome: Syndrome::ACK_UNLIMITED, msn: self.answered_msn };
        let bth = self.bth(Opcode::RC_ATOMIC_ACKNOWLEDGE, psn);
        out.push_response(self.path(from), &bth, &aeth, &original.to_be_bytes());
    }

    pub(crate) fn heard(&mut self, traffic_class: u8, partition_key: PartitionKey) {
        self.traffic_class = traffic_class;
        self.partition_key = partition_key;
    }
}

/// The bits of a traffic class that routers mark congestion in (RFC 3168).
pub(crate) const ECN: u8 = 0b11;
