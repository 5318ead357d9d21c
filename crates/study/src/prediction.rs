//! What the arithmetic of packets says of a point, from the operations that a message takes.

use doorbell_protocols::{End, Posts, Protocol, Run, Size, Step};
use doorbell_wire::{MessageKind, OuterKind, PathMtu, Response, message_cost};
use serde::{Deserialize, Serialize};

use crate::parameters::{Operation, Transport};

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
    /// Over what.
    pub transport: Transport,
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

impl Path {
    /// What an end posts that sends and receives so many messages, beside SENDs without bytes.
    fn posts(&self, sent: u64, received: u64) -> Vec<Posts> {
        let bytes = self.bytes as u64;
        let one_sided = |operation| vec![Posts { operation, bytes, all_bytes: None, least: sent, most: Some(sent) }];
        match self.operation {
            // Its number is immediate data.
            Operation::Send if self.transport != Transport::Rc => return one_sided(MessageKind::SendImm),
            Operation::Write => return one_sided(MessageKind::Write),
            Operation::Read => return one_sided(MessageKind::Read),
            Operation::CompareSwap => return one_sided(MessageKind::CompareSwap),
            Operation::FetchAdd => return one_sided(MessageKind::FetchAdd),
            Operation::Send | Operation::RequestResponse => {}
        }
        let run = Run {
            bytes,
            window: self.window as u64,
            batch: self.batch as u64,
            depth: self.depth as u64,
            credits: self.credits,
            ..Run::default()
        };
        let steps = self.protocol.steps().iter().filter(|step| step.is_part(self.credits));
        let posts =
            |step: &Step| step.posts(&Run { messages: if step.by == End::Sender { sent } else { received }, ..run });
        steps.filter(|step| step.size != Size::Fixed(0)).map(posts).collect()
    }

    /// What an end must have sent that has sent `sent` messages (or posted as many one-sided
    /// operations) and received `received` (or served as many), where the other end took `requests`
    /// packets for what it asked.
    pub fn predict(&self, sent: u64, received: u64, requests: u64) -> Predicted {
        let outer = if self.ipv6 { OuterKind::IPV6 } else { OuterKind::IPV4 };
        let transport = self.transport.of_packets();
        let cost = |posts: &Posts| message_cost(posts.operation, transport, posts.bytes, self.mtu, outer).ok();
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
                    // However few READs bring all of them.
                    let more = posts.all_bytes.map_or(0, |all| all.saturating_sub(posts.least * posts.bytes));
                    predicted.response_bytes += more;
                }
            }
        }
        if predicted.response_packets_max > 0 {
            predicted.response_bytes_max += 2 * AETH_BYTES * requests.saturating_sub(whole);
        }
        predicted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(protocol: Protocol, bytes: usize) -> Path {
        let (operation, mtu) = (Operation::Send, PathMtu::Mtu4096);
        Path {
            operation,
            protocol,
            transport: Transport::Rc,
            bytes,
            mtu,
            credits: true,
            window: 8,
            batch: 8,
            depth: 0,
            ipv6: false,
        }
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
    fn what_nobody_acknowledges_is_packets_one_way() {
        for (transport, headers) in [(Transport::Uc, 62), (Transport::Ud, 70)] {
            let path = Path { transport, ..path(Protocol::SendReceive, 1000) };
            let (sender, receiver) = (path.predict(7, 0, 0), path.predict(0, 7, 0));
            assert_eq!((sender.data_packets, sender.data_packets_max), (7, 7));
            assert_eq!(sender.data_bytes, 7 * (headers + 1000), "{transport}: Ethernet to BTH, DETH, immediate, ICRC");
            assert_eq!((receiver.data_packets, receiver.ack_packets_max, receiver.response_packets), (0, 0, 0));
        }
    }

    #[test]
    fn one_sided_operations_are_what_they_are() {
        let path = Path { operation: Operation::FetchAdd, ..path(Protocol::SendReceive, 8) };
        let (client, server) = (path.predict(7, 0, 0), path.predict(0, 7, 7));
        assert_eq!((client.data_packets, client.data_packets_max, server.response_packets), (7, 7, 7));
        assert_eq!(server.response_bytes, server.response_bytes_max);
    }
}
