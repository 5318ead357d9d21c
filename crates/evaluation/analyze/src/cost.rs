//! Packets and bytes of a message as a record, from the arithmetic of [`doorbell_wire::cost`].

use doorbell_wire::{
    CostError, Direction, LinkSide, MessageCost, MessageKind, OuterKind, PathMtu, Response, Transport, message_cost,
};
use serde::Serialize;

/// Name of the layout of a [`CostRecord`].
pub const SCHEMA: &str = "doorbell-wire-cost/1";

/// Names of operations, for options of commands and arguments of functions.
pub const OPERATIONS: [(&str, MessageKind); 8] = [
    ("send", MessageKind::Send),
    ("send-imm", MessageKind::SendImm),
    ("send-inv", MessageKind::SendInv),
    ("write", MessageKind::Write),
    ("write-imm", MessageKind::WriteImm),
    ("read", MessageKind::Read),
    ("compare-swap", MessageKind::CompareSwap),
    ("fetch-add", MessageKind::FetchAdd),
];

/// Names of the transports whose messages have a cost, as [`OPERATIONS`].
pub const TRANSPORTS: [(&str, Transport); 3] = [("rc", Transport::Rc), ("uc", Transport::Uc), ("ud", Transport::Ud)];

/// Cost of a message of one size at one path MTU.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct CostRecord {
    /// Payload of the message.
    pub bytes: u64,
    /// Path MTU in bytes.
    pub mtu: usize,
    /// Packets of the request.
    pub request: Packets,
    /// Packets of the response, or of the acknowledgements; `None` for an unreliable transport.
    pub response: Option<ResponsePackets>,
    /// Share of the payload in the line bytes that carry it; `None` if it is no finite number.
    pub goodput_share: Option<f64>,
    /// Maximum rate on a link, if the rate of the link is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<Link>,
    /// Cost from which this record was made.
    #[serde(skip)]
    pub cost: MessageCost,
}

/// Packets of one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Packets {
    /// Number of packets.
    pub packets: u64,
    /// Bytes of Ethernet frames without FCS, preamble and gap, as counters of vendors count them.
    pub frame_bytes: u64,
    /// Bytes of the line, with FCS, preamble and gap.
    pub line_bytes: u64,
}

/// Packets of a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(untagged)]
pub enum ResponsePackets {
    /// The response to a READ or an atomic operation.
    Exact {
        /// Its packets.
        exact: Packets,
    },
    /// Acknowledgements, of which one may cover several packets.
    Range {
        /// One acknowledgement of the whole message.
        min: Packets,
        /// One acknowledgement of each packet.
        max: Packets,
    },
}

/// Maximum rate of messages on a full-duplex link.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Link {
    /// Rate of the link in each direction, in bit/s.
    pub bits_per_s: f64,
    /// Messages per second, with the fewest acknowledgements.
    pub messages_per_s: f64,
    /// Payload per second, with the fewest acknowledgements.
    pub goodput_bytes_per_s: f64,
    /// Direction that is full: `request`, `response` or `both`.
    pub binding: &'static str,
    /// Messages per second, if each packet is acknowledged by itself.
    pub messages_per_s_most_acknowledged: f64,
    /// Direction that is full, if each packet is acknowledged by itself.
    pub binding_most_acknowledged: &'static str,
}

impl From<Direction> for Packets {
    fn from(direction: Direction) -> Self {
        let Direction { packets, frame_bytes, line_bytes } = direction;
        Self { packets, frame_bytes, line_bytes }
    }
}

impl CostRecord {
    /// Returns the cost of a message of `bytes` bytes without loss. `link_bits_per_s` is the rate of a link.
    ///
    /// # Errors
    ///
    /// The reasons of [`message_cost`].
    pub fn new(
        kind: MessageKind,
        transport: Transport,
        bytes: u64,
        mtu: PathMtu,
        outer: OuterKind,
        link_bits_per_s: Option<f64>,
    ) -> Result<Self, CostError> {
        let cost = message_cost(kind, transport, bytes, mtu, outer)?;
        let response = match cost.response {
            Response::None => None,
            Response::Exact(direction) => Some(ResponsePackets::Exact { exact: direction.into() }),
            Response::Range { min, max } => Some(ResponsePackets::Range { min: min.into(), max: max.into() }),
        };
        let goodput_share = Some(cost.goodput_share()).filter(|share| share.is_finite());
        let link = link_bits_per_s.map(|bits_per_s| {
            let limit = cost.link_limit(bits_per_s);
            Link {
                bits_per_s,
                messages_per_s: limit.messages_per_s,
                goodput_bytes_per_s: limit.messages_per_s * bytes as f64,
                binding: side(limit.binding),
                messages_per_s_most_acknowledged: limit.messages_per_s_most_acknowledged,
                binding_most_acknowledged: side(limit.binding_most_acknowledged),
            }
        });
        Ok(Self { bytes, mtu: mtu.bytes(), request: cost.request.into(), response, goodput_share, link, cost })
    }
}

/// Returns the name of a direction.
pub fn side(side: LinkSide) -> &'static str {
    match side {
        LinkSide::Request => "request",
        LinkSide::Response => "response",
        LinkSide::Both => "both",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record(kind: MessageKind, transport: Transport, bytes: u64, link: Option<f64>) -> serde_json::Value {
        let made = CostRecord::new(kind, transport, bytes, PathMtu::Mtu4096, OuterKind::IPV4, link);
        serde_json::to_value(made.expect("the message is possible")).expect("a record is JSON")
    }

    #[test]
    fn each_kind_of_message_has_one_name() {
        assert_eq!(OPERATIONS.map(|(_, kind)| kind), MessageKind::ALL);
        for (name, transport) in TRANSPORTS {
            assert_eq!(name.to_uppercase(), transport.to_string());
            record(MessageKind::Send, transport, 1, None);
        }
    }

    #[test]
    fn responses_have_their_kind() {
        let write = record(MessageKind::Write, Transport::Rc, 1, None);
        assert_eq!(write["request"], json!({ "packets": 1, "frame_bytes": 78, "line_bytes": 102 }));
        assert_eq!(write["response"]["max"]["frame_bytes"], 62);
        assert!(write.get("link").is_none() && write.get("cost").is_none(), "{write}");
        assert_eq!(record(MessageKind::Write, Transport::Uc, 1, None)["response"], json!(null));
        assert_eq!(record(MessageKind::Read, Transport::Rc, 0, None)["response"]["exact"]["packets"], 1);
    }

    #[test]
    fn a_link_has_a_rate_and_a_full_direction() {
        let write = record(MessageKind::Write, Transport::Rc, 8, Some(1e11));
        assert_eq!(write["link"]["binding"], "request");
        let rate = write["link"]["messages_per_s"].as_f64().expect("a rate is a number");
        assert!((117.9e6..118.0e6).contains(&rate), "{rate}");
    }
}
