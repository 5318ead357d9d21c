//! Predicted packets of a point, computed from the operations that each message consists of.

use doorbell_protocols::{End, Posts, Protocol, Run, Size, When};
use doorbell_wire::{MessageKind, OuterKind, PathMtu, Response, message_cost};
use serde::{Deserialize, Serialize};

use crate::words::{Operation, Transport};

/// Predicted number of packets that one end sends in a point.
///
/// Some numbers are ranges. A requester may split a long READ into pieces, each with its own request and response. The
/// minimum assumes one request per READ. Other ranges exist since one operation may serve one message or several
/// messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Predicted {
    /// Minimum number of request packets of data messages.
    pub data_packets: u64,
    /// Minimum frame bytes of the request packets of data messages.
    pub data_bytes: u64,
    /// Maximum number of request packets of data messages.
    #[serde(default)]
    pub data_packets_max: u64,
    /// Maximum frame bytes of the request packets of data messages.
    #[serde(default)]
    pub data_bytes_max: u64,
    /// Whether this end polls the other end by READs, whose number is unlimited. In that case, only the minimum number
    /// of requests is known, and the maximum has no meaning.
    #[serde(default)]
    pub asks: bool,
    /// Minimum number of acknowledgements.
    pub ack_packets_min: u64,
    /// Maximum number of acknowledgements, including those for control messages of the peer.
    pub ack_packets_max: u64,
    /// Minimum number of packets that answer READs and atomics.
    #[serde(default)]
    pub response_packets: u64,
    /// Maximum number of packets that answer READs and atomics. Records of earlier releases have 0, since they lack
    /// this field.
    #[serde(default)]
    pub response_packets_max: u64,
    /// Minimum frame bytes of the packets that answer READs and atomics.
    #[serde(default)]
    pub response_bytes: u64,
    /// Maximum frame bytes of the packets that answer READs and atomics, for the counted number of requests. Each split
    /// of a READ adds an AETH to two packets.
    #[serde(default)]
    pub response_bytes_max: u64,
    /// Whether the other end polls this end by READs. In that case, only the minimum numbers of answers and
    /// acknowledgements are known.
    #[serde(default)]
    pub is_asked: bool,
}

/// Formats the range from `least` to `most`: one number if both are equal, only the lower end if the range has no upper
/// bound.
pub fn range(least: u64, most: u64, is_open: bool) -> String {
    match (least, most) {
        _ if is_open || most == u64::MAX => format!("{least}.."),
        _ if least == most => least.to_string(),
        _ => format!("{least}..{most}"),
    }
}

/// Bytes of an ACK extended transport header.
const AETH_BYTES: u64 = 4;

/// Properties of messages that determine the number of packets per message.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// Operation that a message consists of.
    pub operation: Operation,
    /// Protocol that carries the message.
    pub protocol: Protocol,
    /// Transport that carries the message.
    pub transport: Transport,
    /// Bytes of a message that the end sends, or of a one-sided operation.
    pub bytes: usize,
    /// Bytes of a message that the end receives, such as a reply, or of a one-sided operation.
    pub received_bytes: usize,
    /// Path MTU.
    pub mtu: PathMtu,
    /// Whether messages of Send-Receive carry credits.
    pub credits: bool,
    /// Maximum number of unacknowledged messages.
    pub window: usize,
    /// Messages per post.
    pub batch: usize,
    /// Maximum number of messages that wait at a receiver, over all connections.
    pub depth: usize,
    /// Whether packets use IPv6 instead of IPv4.
    pub ipv6: bool,
}

/// Messages of one direction.
#[derive(Clone, Copy, Debug)]
struct Direction<'a> {
    /// Bytes and number of the messages of each size.
    sizes: &'a [(u64, u64)],
}

impl Direction<'_> {
    fn messages(self) -> u64 {
        self.sizes.iter().fold(0, |sum: u64, &(_, messages)| sum.saturating_add(messages))
    }

    /// Returns the bytes of the first size, for operations whose bytes do not depend on the sizes of messages.
    fn first_bytes(self) -> u64 {
        self.sizes.first().map_or(0, |&(bytes, _)| bytes)
    }
}

impl Path {
    /// Returns the posts of an end with these sent and received messages. SENDs without bytes are omitted, since they
    /// count as control messages.
    fn posts(&self, sent: Direction<'_>, received: Direction<'_>) -> Vec<Posts> {
        let one_sided = |operation| {
            let (messages, bytes) = (sent.messages(), sent.first_bytes());
            vec![Posts { operation, bytes, all_bytes: None, least: messages, most: Some(messages) }]
        };
        match self.operation {
            // Each message carries its number as immediate data.
            Operation::Send if self.transport != Transport::Rc => return one_sided(MessageKind::SendImm),
            Operation::Write => return one_sided(MessageKind::Write),
            Operation::Read => return one_sided(MessageKind::Read),
            Operation::CompareSwap => return one_sided(MessageKind::CompareSwap),
            Operation::FetchAdd => return one_sided(MessageKind::FetchAdd),
            Operation::Send | Operation::RequestResponse => {}
        }
        let run = Run {
            window: self.window as u64,
            batch: self.batch as u64,
            depth: self.depth as u64,
            credits: self.credits,
            ..Run::default()
        };
        let steps = self.protocol.steps().iter().filter(|step| step.is_part(self.credits));
        let mut all = Vec::new();
        for step in steps.filter(|step| step.size != Size::Fixed(0)) {
            let direction = if step.by == End::Sender { sent } else { received };
            // Steps of single messages have the bytes of each message. Other steps have the same bytes for all sizes.
            if step.when == When::Message && step.size.carries_messages() {
                let of_size = |&(bytes, messages): &(u64, u64)| step.posts(&Run { messages, bytes, ..run });
                all.extend(direction.sizes.iter().map(of_size));
            } else {
                let (messages, bytes) = (direction.messages(), direction.first_bytes());
                all.push(step.posts(&Run { messages, bytes, ..run }));
            }
        }
        all
    }

    /// Returns the predicted packets of an end. `sent` is the number of messages that the end sent, or of one-sided
    /// operations that it posted. `received` is the number of messages that it received, or of operations that it
    /// served. `requests` is the number of request packets that the other end sent.
    pub fn predict(&self, sent: u64, received: u64, requests: u64) -> Predicted {
        let (sent, received) = ([(self.bytes as u64, sent)], [(self.received_bytes as u64, received)]);
        self.predict_sizes(&sent, &received, requests)
    }

    /// Returns the predicted packets of an end that sent and received messages of several sizes, given as bytes and
    /// number of messages of each size. [`bytes`](Self::bytes) and [`received_bytes`](Self::received_bytes) have no
    /// effect.
    pub fn predict_sizes(&self, sent: &[(u64, u64)], received: &[(u64, u64)], requests: u64) -> Predicted {
        let outer = if self.ipv6 { OuterKind::IPV6 } else { OuterKind::IPV4 };
        let transport = self.transport.of_packets();
        let cost = |posts: &Posts| message_cost(posts.operation, transport, posts.bytes, self.mtu, outer).ok();
        let (sent, received) = (Direction { sizes: sent }, Direction { sizes: received });
        let mut predicted = Predicted::default();
        for posts in &self.posts(sent, received) {
            let Some(cost) = cost(posts) else { continue };
            predicted.data_packets += posts.least * cost.request.packets;
            predicted.data_bytes += posts.least * cost.request.frame_bytes;
            predicted.asks |= posts.most.is_none();
            // A READ may be split into as many requests as the answer has packets.
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
                    // All bytes arrive, even if few READs fetch them.
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
            received_bytes: bytes,
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
        // The sender answers each READ with two packets of data.
        assert_eq!((sender.data_packets, sender.data_packets_max, sender.response_packets), (10, 10, 20));
        assert_eq!(sender.data_bytes, 10 * (58 + 16));
        assert_eq!(sender.response_bytes, 10 * (2 * (58 + 4096) + 8));
        assert_eq!(sender.response_bytes_max, sender.response_bytes + 8 * 10, "ten pieces more than READs");
        // The receiver sends each READ in one or two pieces, and WRITEs signal bytes.
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

    /// A request of 200 B is one packet, and a reply of 64 KiB is 16 packets.
    #[test]
    fn requests_and_replies_have_their_own_sizes() {
        for protocol in [Protocol::SendReceive, Protocol::DirectRead] {
            let asking = Path { received_bytes: 65_536, ..path(protocol, 200) };
            let answering = Path { bytes: 65_536, received_bytes: 200, ..asking };
            let (client, server) = (asking.predict(10, 10, 10), answering.predict(10, 10, 10));
            let alike = [200, 65_536].map(|bytes| path(protocol, bytes));
            // Each direction costs as much as the same messages one way.
            let [small, large] = alike.map(|path| (path.predict(10, 0, 10), path.predict(0, 10, 10)));
            assert_eq!(client.data_packets, small.0.data_packets + large.1.data_packets);
            assert_eq!(client.data_bytes, small.0.data_bytes + large.1.data_bytes);
            assert_eq!(client.response_packets, small.0.response_packets + large.1.response_packets);
            assert_eq!(server.data_packets, large.0.data_packets + small.1.data_packets);
            assert_eq!(server.data_bytes, large.0.data_bytes + small.1.data_bytes);
            assert_eq!(server.response_packets, large.0.response_packets + small.1.response_packets);
        }
        let answering = Path { bytes: 65_536, received_bytes: 200, ..path(Protocol::SendReceive, 0) };
        assert_eq!((answering.predict(10, 10, 0).data_packets, answering.predict(0, 10, 0).data_packets), (160, 0));
    }

    #[test]
    fn messages_of_several_sizes_add_up() {
        for protocol in [Protocol::SendReceive, Protocol::DirectRead, Protocol::BufferedWriteTailSend] {
            let mixed = path(protocol, 0).predict_sizes(&[(64, 90), (8192, 10)], &[], 0);
            let [small, large] =
                [(64, 90), (8192, 10)].map(|(bytes, count)| path(protocol, bytes).predict(count, 0, 0));
            assert_eq!(mixed.data_packets_max, small.data_packets_max + large.data_packets_max, "{protocol}");
            assert_eq!(mixed.data_bytes_max, small.data_bytes_max + large.data_bytes_max, "{protocol}");
            assert_eq!(mixed.response_packets, small.response_packets + large.response_packets, "{protocol}");
            // One post has messages of both sizes, so the number of offsets of Buffered-Write is at least that of all.
            assert!(mixed.data_packets <= small.data_packets + large.data_packets, "{protocol}");
            assert!(mixed.data_packets >= large.data_packets && mixed.data_packets > small.data_packets, "{protocol}");
        }
    }

    #[test]
    fn unacknowledged_sends_are_packets_one_way() {
        for (transport, headers) in [(Transport::Uc, 62), (Transport::Ud, 70)] {
            let path = Path { transport, ..path(Protocol::SendReceive, 1000) };
            let (sender, receiver) = (path.predict(7, 0, 0), path.predict(0, 7, 0));
            assert_eq!((sender.data_packets, sender.data_packets_max), (7, 7));
            assert_eq!(sender.data_bytes, 7 * (headers + 1000), "{transport}: Ethernet to BTH, DETH, immediate, ICRC");
            assert_eq!((receiver.data_packets, receiver.ack_packets_max, receiver.response_packets), (0, 0, 0));
        }
    }

    #[test]
    fn one_sided_operations_have_exact_packet_counts() {
        let path = Path { operation: Operation::FetchAdd, ..path(Protocol::SendReceive, 8) };
        let (client, server) = (path.predict(7, 0, 0), path.predict(0, 7, 7));
        assert_eq!((client.data_packets, client.data_packets_max, server.response_packets), (7, 7, 7));
        assert_eq!(server.response_bytes, server.response_bytes_max);
    }
}
