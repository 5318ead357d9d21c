//! A client's connection with the box. To the client, the box is a responder that answers a request once the node has
//! answered it (IBTA Vol 1, 9.7.4, 9.7.5).

use std::collections::VecDeque;
use std::net::IpAddr;

use doorbell_wire::{AethRepr, BthRepr, Msn, NakCode, Opcode, PartitionKey, Psn, Qpn, RKey, Syndrome};

use crate::config::ClientEnd;
use crate::message::Message;
use crate::output::{Output, Path};

/// Number of results of atomics that the box keeps for each client, for repeated requests. This exceeds the maximum
/// number of outstanding atomics (IBTA Vol 1, 9.7.4.4).
const ATOMICS_KEPT: usize = 64;

/// Number of steered READs of each client that the box remembers, so that a repeated READ goes to the same node.
const REDIRECTS_KEPT: usize = 64;

/// Maximum number of repeated requests of a client that wait for an answer.
const REPETITIONS: usize = 128;

/// A repeated request that needs an answer again. The box answers repeated requests in the order in which the client
/// repeated them.
#[derive(Debug)]
pub(crate) enum Repetition {
    /// A READ that the node must execute again.
    Read(Message),
    /// A READ that the node is executing again.
    ReadInFlight,
    Atomic {
        psn: Psn,
        original: u64,
    },
    Acknowledge,
}

/// State of a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Open,
    /// The box refuses the request at the next PSN. The NAK waits until all earlier requests are answered.
    Refusing(NakCode),
    /// The queue pair with the node failed while this client had no outstanding request. The client's next request gets
    /// a NAK.
    Failing,
    /// The box has refused the request at this PSN with this NAK, and drops later requests.
    Refused(Psn, NakCode),
}

/// A steered READ, with the address that the client named and the address that the box chose.
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
    /// The queue pair number of the box for this client.
    pub(crate) own_qpn: Qpn,
    pub(crate) peer: ClientEnd,
    pub(crate) phase: Phase,
    /// The PSN of the next new packet from the client.
    pub(crate) expected: Psn,
    /// The first PSN of the oldest unanswered request, or of the next request if all are answered.
    pub(crate) answered: Psn,
    /// Number of accepted requests. `answered_msn` is the number of answered requests.
    pub(crate) accepted_msn: Msn,
    pub(crate) answered_msn: Msn,
    /// A WRITE with missing packets, and the number of payload bytes that have arrived.
    pub(crate) assembly: Option<(Message, u32)>,
    /// Arrival time of the last packet of the incomplete WRITE.
    pub(crate) assembly_ns: u64,
    /// Complete requests that wait for room at the node.
    pub(crate) waiting: VecDeque<Message>,
    /// Number of outstanding requests at the node.
    pub(crate) in_flight: usize,
    /// Bytes of packets that the box holds for this client.
    pub(crate) held_bytes: usize,
    pub(crate) repetitions: VecDeque<Repetition>,
    atomics: VecDeque<(Psn, u64)>,
    redirects: VecDeque<Redirect>,
    /// Whether the client is in the box's `ready` list of clients with requests for the node, or waits for an event
    /// that puts it into this list.
    pub(crate) scheduled: bool,
    pub(crate) touched: bool,
    /// Whether the client has already caused a NAK for the expected PSN.
    nak_made: bool,
    nak_due: bool,
    ack_due: bool,
    /// Whether packets of an incomplete WRITE need an acknowledgement.
    partial_ack_due: bool,
    /// Traffic class of the client's requests, used for acknowledgements.
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

    /// Returns whether all complete requests of the client are answered.
    pub(crate) fn is_answered(&self) -> bool {
        self.waiting.is_empty() && self.in_flight == 0
    }

    /// Returns whether a repeated request still waits for its answer. Answers to later requests wait too, since the
    /// client would drop them as out of order.
    pub(crate) fn is_repeating(&self) -> bool {
        !self.repetitions.is_empty()
    }

    /// Returns the PSN after the last complete request.
    pub(crate) fn complete_end(&self) -> Psn {
        self.assembly.as_ref().map_or(self.expected, |(message, _)| message.psn)
    }

    /// Records that `packets` packets with the expected PSNs have arrived.
    pub(crate) fn arrived(&mut self, packets: u32) {
        self.expected = self.expected.add(packets);
        (self.nak_made, self.nak_due) = (false, false);
    }

    /// Records that a packet ahead of the expected PSN has arrived. Returns true for the first such packet at this
    /// expected PSN.
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

    /// Queues a repeated request. Returns false if there is no room; then the client has to send the request again.
    pub(crate) fn repeat(&mut self, repetition: Repetition) -> bool {
        let has_room = self.repetitions.len() < REPETITIONS;
        if has_room {
            self.repetitions.push_back(repetition);
        }
        has_room
    }

    /// Records that the READ at the head of the repetitions is answered.
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

    /// Returns the redirect of the READ with this PSN, if the READ was steered.
    pub(crate) fn redirect_of(&self, psn: Psn) -> Option<Redirect> {
        self.redirects.iter().rev().find(|redirect| psn.distance_from(redirect.psn) < redirect.packets).copied()
    }

    pub(crate) fn keep_redirect(&mut self, redirect: Redirect) {
        if self.redirects.len() == REDIRECTS_KEPT {
            self.redirects.pop_front();
        }
        self.redirects.push_back(redirect);
    }

    /// Records that a request is answered. [`settle`](Self::settle) sends the acknowledgement.
    pub(crate) fn completed(&mut self, message: &Message) {
        self.in_flight -= 1;
        self.answered = message.psn.add(message.packets);
        self.answered_msn = message.msn;
    }

    /// Sends the answer to an atomic at once, or queues the answer behind the repetitions.
    pub(crate) fn answer_atomic(&mut self, psn: Psn, original: u64, from: IpAddr, out: &mut Output) {
        if self.is_repeating() {
            self.repeat(Repetition::Atomic { psn, original });
        } else {
            self.ack_due = false; // the answer acknowledges all earlier requests
            self.send_atomic(psn, original, from, out);
        }
    }

    /// Sends the packets that may be sent now: answers to repeated requests up to the first READ, and then
    /// acknowledgements and NAKs. Returns true if an acknowledgement was sent.
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
        // A NAK also acknowledges all earlier requests (IBTA Vol 1, 9.7.5.1.2), so it waits until these requests are
        // answered.
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

    /// Returns whether the box must send a NAK for a lost request now.
    pub(crate) fn is_nak_due(&self) -> bool {
        self.nak_due && self.is_answered() && !self.is_repeating()
    }

    /// Returns the path for packets from the box to the client.
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

/// The two bits of a traffic class with which routers mark congestion (RFC 3168).
pub(crate) const ECN: u8 = 0b11;
