//! The queue pair between the box and the memory node. The box is one requester, whose requests the node executes in
//! order (IBTA Vol 1, 9.7.3).

use std::collections::VecDeque;
use std::net::IpAddr;

use doorbell_wire::{BthPacket, Psn, Qpn};

use crate::config::NodeEnd;
use crate::counters::Counters;
use crate::message::{Kind, Message};
use crate::output::{Output, Path};

/// Maximum distance in packets between two packets that request an acknowledgement.
const ACK_EVERY: u32 = 16;

/// Maximum number of times that the timeout doubles.
const BACKOFF_MOST: u32 = 6;

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) end: NodeEnd,
    pub(crate) own_qpn: Qpn,
    pub(crate) failed: bool,
    /// Whether the queue pair failed because the node did not answer.
    pub(crate) is_silent: bool,
    /// The PSN of the next new request.
    next: Psn,
    /// Outstanding requests in the order in which the box sent them.
    pub(crate) in_flight: VecDeque<Message>,
    /// Number of outstanding READs and atomics. `cost` and `response_cost` are the buffer bytes that all outstanding
    /// requests and their responses use.
    responses: usize,
    cost: u64,
    response_cost: u64,
    /// Whether the box must retransmit all outstanding requests.
    rewind: bool,
    /// The PSN of the response that was lost most recently. The box retransmits only once for this PSN, until a request
    /// makes progress.
    asked: Option<Psn>,
    /// Number of packets since the last packet that requested an acknowledgement.
    unasked: u32,
    tries: u32,
    pub(crate) deadline_ns: Option<u64>,
}

impl Node {
    pub(crate) fn new(end: NodeEnd, own_qpn: Qpn, first_psn: Psn) -> Self {
        Self {
            end,
            own_qpn,
            failed: false,
            is_silent: false,
            next: first_psn,
            in_flight: VecDeque::new(),
            responses: 0,
            cost: 0,
            response_cost: 0,
            rewind: false,
            asked: None,
            unasked: 0,
            tries: 0,
            deadline_ns: None,
        }
    }

    /// Returns the PSN of the oldest unanswered packet.
    pub(crate) fn oldest(&self) -> Psn {
        self.in_flight.front().map_or(self.next, |message| message.node_psn.add(message.done))
    }

    /// Returns whether a response with this PSN answers an outstanding request. A NAK may also have the PSN of the next
    /// request.
    pub(crate) fn is_outstanding(&self, psn: Psn) -> bool {
        let oldest = self.oldest();
        psn.distance_from(oldest) < self.next.distance_from(oldest)
    }

    pub(crate) fn next_psn(&self) -> Psn {
        self.next
    }

    /// Returns whether the box may send another READ or atomic to the node now.
    pub(crate) fn takes_response(&self, message: &Message, window_bytes: u64) -> bool {
        self.responses < usize::from(self.end.max_rd_atomic)
            && (self.response_cost == 0 || self.response_cost + message.response_cost() <= window_bytes)
    }

    /// Returns whether the box may send this request to the node now.
    pub(crate) fn takes(&self, message: &Message, window_bytes: u64) -> bool {
        // At most half of the PSNs may be in flight, so that the node can distinguish duplicates from new packets.
        let psns = self.next.distance_from(self.oldest()) + message.packets;
        (self.cost == 0 || self.cost + message.request_cost() <= window_bytes) && psns < 1 << 22
    }

    /// Sends a request for the first time.
    pub(crate) fn launch(
        &mut self,
        now_ns: u64,
        mut message: Message,
        is_last: bool,
        from: IpAddr,
        out: &mut Output,
    ) -> u32 {
        message.node_psn = self.next;
        self.next = self.next.add(message.packets);
        self.cost += message.request_cost();
        self.response_cost += message.response_cost();
        self.responses += usize::from(message.has_response());
        let sent = send(&message, &self.end, from, out, |last| {
            self.unasked += 1;
            last && (is_last || self.unasked >= ACK_EVERY)
        });
        if is_last || message.has_response() || self.unasked >= ACK_EVERY {
            self.unasked = 0;
        }
        if self.in_flight.is_empty() {
            self.arm(now_ns);
        }
        self.in_flight.push_back(message);
        sent
    }

    /// Removes the oldest outstanding request, which the node has answered.
    pub(crate) fn retire(&mut self) -> Option<Message> {
        let message = self.in_flight.pop_front()?;
        self.cost -= message.request_cost();
        self.response_cost -= message.response_cost();
        self.responses -= usize::from(message.has_response());
        Some(message)
    }

    /// Records that the node has made progress.
    pub(crate) fn progress(&mut self, now_ns: u64) {
        self.tries = 0;
        self.asked = None;
        self.deadline_ns = None;
        if !self.in_flight.is_empty() {
            self.arm(now_ns);
        }
    }

    fn arm(&mut self, now_ns: u64) {
        let wait_ns = self.end.timeout_ns << self.tries.min(BACKOFF_MOST);
        self.deadline_ns = Some(now_ns.saturating_add(wait_ns));
    }

    /// Prepares the retransmission of all outstanding requests, since the node has sent a NAK for a lost packet.
    pub(crate) fn ask_for_rewind(&mut self) {
        self.rewind = true;
    }

    /// Prepares the retransmission of all outstanding requests after a delay, since the node is not ready.
    pub(crate) fn pause(&mut self, now_ns: u64, delay_ns: u64) {
        self.deadline_ns = Some(now_ns.saturating_add(delay_ns));
    }

    /// Handles a lost response to the oldest outstanding request. Prepares the retransmission of all outstanding
    /// requests, but only once until a request makes progress.
    pub(crate) fn lost_response(&mut self) -> bool {
        let oldest = self.oldest();
        let is_news = self.asked.replace(oldest) != Some(oldest);
        self.rewind |= is_news;
        is_news
    }

    /// Handles a timeout of the node. Returns false if the number of retransmissions in a row has reached its maximum.
    pub(crate) fn timed_out(&mut self, now_ns: u64) -> bool {
        self.tries += 1;
        self.rewind = true;
        self.asked = None;
        self.arm(now_ns);
        self.tries <= u32::from(self.end.retries)
    }

    /// Retransmits all outstanding requests, if a retransmission was prepared. The packets are the same as the first
    /// time.
    pub(crate) fn resend(&mut self, now_ns: u64, from: IpAddr, out: &mut Output, counters: &mut Counters) {
        if !std::mem::take(&mut self.rewind) || self.in_flight.is_empty() {
            return;
        }
        let newest = self.in_flight.len() - 1;
        for (index, message) in self.in_flight.iter().enumerate() {
            counters.to_node_again += u64::from(send(message, &self.end, from, out, |last| last && index == newest));
        }
        if self.deadline_ns.is_none() {
            self.arm(now_ns);
        }
    }
}

/// Sends the packets of a request that the node has not acknowledged, with the PSNs of the node's queue pair.
fn send(message: &Message, end: &NodeEnd, from: IpAddr, out: &mut Output, mut asks: impl FnMut(bool) -> bool) -> u32 {
    let path = Path { source: from, destination: end.address, traffic_class: message.traffic_class, hop_limit: 64 };
    let mut packets = message.request_packets(end.path_mtu.bytes()).enumerate().peekable();
    let mut sent = 0;
    while let Some((index, range)) = packets.next() {
        let is_last = packets.peek().is_none();
        // Skip the acknowledged packets of a WRITE. A READ has only one packet, which requests the whole response.
        if message.kind == Kind::Write && (index as u32) < message.done {
            continue;
        }
        let packet = out.push(path, &message.bytes[range]);
        let mut bth = BthPacket::new_unchecked(packet);
        bth.set_dest_qpn(end.qpn);
        bth.set_psn(message.node_psn.add(index as u32));
        if asks(is_last) {
            bth.set_ack_request(true);
        }
        sent += 1;
    }
    sent
}
