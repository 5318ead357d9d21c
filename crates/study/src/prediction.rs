//! What the arithmetic of packets says of a point, from the operations that a message takes.

use doorbell_wire::{MessageKind, OuterKind, PathMtu, Response, Transport, message_cost};
use serde::{Deserialize, Serialize};

use crate::parameters::Operation;
use crate::protocol::Protocol;

/// What one end must have sent, by the arithmetic of packets.
///
/// A requester is free to ask for a long READ in pieces, each with a request and a response of its
/// own: then the least is what one request per READ costs. Other ranges come from operations that
/// one message or several may share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Predicted {
    /// Request packets of data messages, at least.
    pub data_packets: u64,
    /// Their frame bytes, at least.
    pub data_bytes: u64,
    /// Request packets at most.
    #[serde(default)]
    pub data_packets_max: u64,
    /// Their frame bytes at most.
    #[serde(default)]
    pub data_bytes_max: u64,
    /// This end asks the other by READ, as often as it likes: of its requests nothing but the least
    /// is known, whatever is said of the most.
    #[serde(default)]
    pub asks: bool,
    /// Acknowledgements at least.
    pub ack_packets_min: u64,
    /// Acknowledgements at most, control messages of the peer included.
    pub ack_packets_max: u64,
    /// Packets that answer READs and atomics, at least.
    #[serde(default)]
    pub response_packets: u64,
    /// The same at most. 0 in records that were written before it could be more than the least.
    #[serde(default)]
    pub response_packets_max: u64,
    /// Their frame bytes, at least.
    #[serde(default)]
    pub response_bytes: u64,
    /// Their frame bytes at most, given the requests that were counted: where a READ is cut, two
    /// more packets have an AETH.
    #[serde(default)]
    pub response_bytes_max: u64,
    /// The other end asks by READ: of answers and what they are acknowledged by, nothing but the
    /// least is known.
    #[serde(default)]
    pub is_asked: bool,
}

/// Bytes of an ACK extended transport header.
const AETH_BYTES: u64 = 4;

/// How messages travel: what their cost follows from.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// What a message is.
    pub operation: Operation,
    /// How it travels.
    pub protocol: Protocol,
    /// Its bytes.
    pub bytes: usize,
    /// Path MTU.
    pub mtu: PathMtu,
    /// Messages of Send-Receive carry credits.
    pub credits: bool,
    /// Messages unacknowledged at most.
    pub window: usize,
    /// Messages per post.
    pub batch: usize,
    /// Messages that may wait at a receiver, of all connections.
    pub depth: usize,
    /// IPv6 instead of IPv4.
    pub ipv6: bool,
}

/// Operations of one kind that an end posts.
#[derive(Clone, Copy, Debug)]
struct Posts {
    kind: MessageKind,
    bytes: u64,
    least: u64,
    /// `None` if nobody knows beforehand.
    most: Option<u64>,
}

impl Posts {
    fn exactly(count: u64, kind: MessageKind, bytes: u64) -> Self {
        Self { kind, bytes, least: count, most: Some(count) }
    }

    fn range(least: u64, most: u64, kind: MessageKind, bytes: u64) -> Self {
        Self { kind, bytes, least: least.min(most), most: Some(most) }
    }

    /// READs of an offset, as often as an end likes that has `sent` so many.
    fn asking(sent: u64) -> Self {
        Self { kind: MessageKind::Read, bytes: WORD, least: 0, most: if sent == 0 { Some(0) } else { None } }
    }
}

/// Bytes of a read request.
const REQUEST: u64 = 16;
/// Bytes of a grant.
const GRANT: u64 = 16;
/// Bytes of an offset, and of what tells of a message beside it.
const WORD: u64 = 8;

impl Path {
    /// What an end posts that sends and receives so many messages, beside SENDs without bytes.
    fn posts(&self, sent: u64, received: u64) -> Vec<Posts> {
        use MessageKind::{CompareSwap, FetchAdd, Read, Send, SendImm, Write, WriteImm};
        let bytes = self.bytes as u64;
        let data = |kind, more| Posts::exactly(sent, kind, bytes + more);
        match self.operation {
            Operation::Write => return vec![data(Write, 0)],
            Operation::Read => return vec![data(Read, 0)],
            Operation::CompareSwap => return vec![data(CompareSwap, 0)],
            Operation::FetchAdd => return vec![data(FetchAdd, 0)],
            Operation::Send | Operation::RequestResponse => {}
        }
        match self.protocol {
            Protocol::SendReceive => vec![data(if self.credits { SendImm } else { Send }, 0)],
            Protocol::DirectRead | Protocol::DirectReadFenced => vec![
                Posts::exactly(sent, Send, REQUEST),
                Posts::exactly(received, Read, bytes),
                Posts::exactly(received, Write, 1),
            ],
            Protocol::DirectReadSend | Protocol::DirectReadFencedSend => {
                vec![Posts::exactly(sent, Send, REQUEST), Posts::exactly(received, Read, bytes)]
            }
            Protocol::DirectWrite => {
                // Each buffer that is free again may be granted by itself, and those beyond what is
                // granted at first.
                let grants = if received == 0 { 0 } else { received + self.depth as u64 };
                vec![data(Write, WORD), Posts::range(0, grants, Write, GRANT), Posts::range(0, grants, Write, WORD)]
            }
            Protocol::BufferedWriteImmediateSend => vec![data(WriteImm, 0)],
            Protocol::BufferedWriteImmediateRead => vec![data(WriteImm, 0), Posts::asking(sent)],
            // One offset behind all that is posted together.
            Protocol::BufferedWriteTailSend => vec![data(Write, WORD), self.offsets(sent)],
            Protocol::BufferedWriteTailRead => vec![data(Write, WORD), self.offsets(sent), Posts::asking(sent)],
            Protocol::BufferedWriteReverseSend => vec![data(Write, WORD)],
            Protocol::BufferedWriteReverseRead => vec![data(Write, WORD), Posts::asking(sent)],
            // Space is reserved for what waits, which is a window at most.
            Protocol::SharedWrite => {
                let reservations = sent.div_ceil(self.window.max(1) as u64);
                vec![data(WriteImm, 0), Posts::range(reservations, sent, FetchAdd, WORD), Posts::asking(sent)]
            }
            // The tail, what is new, and now and then the head.
            // One READ of the tail tells of a window at most, and one READ of messages brings no more.
            Protocol::BufferedRead => {
                let least = received.div_ceil(self.window.max(1) as u64);
                // Also by an end that nobody sends to.
                let reads = Posts { kind: Read, bytes: WORD, least, most: None };
                vec![reads, reads, Posts::range(u64::from(received > 0), 2 * received, Write, WORD)]
            }
        }
    }

    fn offsets(&self, sent: u64) -> Posts {
        Posts::range(sent.div_ceil(self.batch.max(1) as u64), sent, MessageKind::Write, WORD)
    }

    /// What an end must have sent that has sent `sent` messages (or posted as many one-sided
    /// operations) and received `received` (or served as many), where the other end took `requests`
    /// packets for what it asked.
    pub fn predict(&self, sent: u64, received: u64, requests: u64) -> Predicted {
        let outer = if self.ipv6 { OuterKind::IPV6 } else { OuterKind::IPV4 };
        let cost = |posts: &Posts| message_cost(posts.kind, Transport::Rc, posts.bytes, self.mtu, outer).ok();
        let mut predicted = Predicted::default();
        for posts in &self.posts(sent, received) {
            let Some(cost) = cost(posts) else { continue };
            predicted.data_packets += posts.least * cost.request.packets;
            predicted.data_bytes += posts.least * cost.request.frame_bytes;
            predicted.asks |= posts.most.is_none();
            // A READ may be asked for in as many pieces as the answer has packets.
            let pieces = if let Response::Exact(response) = cost.response { response.packets } else { 1 };
            let most = posts.most.unwrap_or(posts.least);
            predicted.data_packets_max += most * cost.request.packets * pieces;
            predicted.data_bytes_max += most * cost.request.frame_bytes * pieces;
        }
        let mut whole = 0;
        for posts in &self.posts(received, sent) {
            let Some(cost) = cost(posts) else { continue };
            let most = posts.most.unwrap_or(posts.least);
            whole += posts.least * cost.request.packets;
            predicted.is_asked |= posts.most.is_none();
            match cost.response {
                Response::None => {}
                Response::Range { min, max } => {
                    predicted.ack_packets_min += posts.least * min.packets;
                    predicted.ack_packets_max += most * max.packets;
                }
                Response::Exact(response) => {
                    predicted.response_packets += posts.least * response.packets;
                    predicted.response_packets_max += most * response.packets;
                    predicted.response_bytes += posts.least * response.frame_bytes;
                    predicted.response_bytes_max += most * response.frame_bytes;
                }
            }
        }
        if predicted.response_packets_max > 0 {
            predicted.response_bytes_max += 2 * AETH_BYTES * requests.saturating_sub(whole);
        }
        if self.protocol == Protocol::BufferedRead && !self.operation.is_one_sided() {
            // What the READs of messages bring, all told: each with the word before it, in places of 16 B.
            let places = sent * (self.bytes as u64 + WORD).next_multiple_of(16);
            predicted.response_bytes += places.saturating_sub(sent.div_ceil(self.window.max(1) as u64) * WORD);
        }
        predicted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(protocol: Protocol, bytes: usize) -> Path {
        let (operation, mtu) = (Operation::Send, PathMtu::Mtu4096);
        Path { operation, protocol, bytes, mtu, credits: true, window: 8, batch: 8, depth: 0, ipv6: false }
    }

    #[test]
    fn each_operation_of_a_message_is_counted_at_its_end() {
        let reading = path(Protocol::DirectRead, 8192);
        let (sender, receiver) = (reading.predict(10, 0, 30), reading.predict(0, 10, 10));
        // The read requests; two packets of data each.
        assert_eq!((sender.data_packets, sender.data_packets_max, sender.response_packets), (10, 10, 20));
        assert_eq!(sender.data_bytes, 10 * (58 + 16));
        assert_eq!(sender.response_bytes, 10 * (2 * (58 + 4096) + 8));
        assert_eq!(sender.response_bytes_max, sender.response_bytes + 8 * 10, "ten pieces more than READs");
        // READs, in one piece or two, and signal bytes.
        assert_eq!((receiver.data_packets, receiver.data_packets_max), (20, 30));
        assert_eq!((receiver.ack_packets_max, receiver.response_packets), (10, 0));

        let tail = path(Protocol::BufferedWriteTailSend, 16).predict(20, 0, 0);
        assert_eq!((tail.data_packets, tail.data_packets_max), (20 + 3, 20 + 20), "one offset per post");
        assert!(!tail.asks);
        let asking = path(Protocol::BufferedWriteTailRead, 16);
        assert!(asking.predict(20, 0, 0).asks && asking.predict(0, 20, 0).is_asked);
        let pulled = path(Protocol::BufferedRead, 16).predict(20, 0, 0);
        assert_eq!((pulled.data_packets, pulled.ack_packets_max), (0, 40), "the sender posts nothing");
    }

    #[test]
    fn one_sided_operations_are_what_they_are() {
        let path = Path { operation: Operation::FetchAdd, ..path(Protocol::SendReceive, 8) };
        let (client, server) = (path.predict(7, 0, 0), path.predict(0, 7, 7));
        assert_eq!((client.data_packets, client.data_packets_max, server.response_packets), (7, 7, 7));
        assert_eq!(server.response_bytes, server.response_bytes_max);
    }
}
