//! Packets and bytes of a benchmark's messages.

use doorbell_wire::{Direction, MessageKind, OuterKind, PathMtu, Response, Transport, message_cost};

use crate::claim::{LinkType, Setup};

/// Bytes of an InfiniBand packet besides payload and extension headers: LRH 8, BTH 12, ICRC 4, VCRC 2 (IBTA Vol 1,
/// chapter 5).
const INFINIBAND_BYTES: u64 = 26;
/// Bytes of the RETH of an RDMA WRITE's first packet (IBTA Vol 1, 9.3.3).
const RETH_BYTES: u64 = 16;

/// Packets and bytes of a message in the direction that carries the payload.
#[derive(Clone, Debug, PartialEq)]
pub struct Arithmetic {
    /// Operation of the message.
    pub operation: MessageKind,
    /// Path MTU.
    pub path_mtu: PathMtu,
    /// Payload bytes of the message.
    pub bytes: u64,
    /// Packets of the message.
    pub packets: u64,
    /// Bytes of the packets as counters of Ethernet devices show them.
    pub frame_bytes: u64,
    /// Share of the payload in the bytes that occupy the link.
    pub goodput_share: f64,
    /// Assumptions on values that the output does not show, as sentences.
    pub assumed: Vec<String>,
}

impl Arithmetic {
    /// Computes the packets of a message. `path_mtu` replaces the path MTU of the output.
    ///
    /// # Errors
    ///
    /// No such message can exist. The error is a sentence.
    pub(crate) fn of(setup: &Setup, path_mtu: Option<PathMtu>, bytes: u64) -> Result<Self, String> {
        let mut assumed = Vec::new();
        let mut or_assume = |what: &str| assumed.push(format!("the output does not show {what}"));
        let operation = setup.operation.unwrap_or_else(|| {
            or_assume("the operation: WRITE is assumed");
            MessageKind::Write
        });
        let path_mtu = path_mtu.or(setup.path_mtu).unwrap_or_else(|| {
            or_assume("the path MTU: 4096 is assumed, which needs the fewest packets");
            PathMtu::Mtu4096
        });
        if setup.link_type.is_none() {
            or_assume("the type of the link: InfiniBand is assumed, which has the shortest headers");
        }
        let transport = setup.transport.unwrap_or(Transport::Rc);
        let cost = message_cost(operation, transport, bytes, path_mtu, OuterKind::IPV4)
            .map_err(|error| format!("the packets of a message are unknown: {error}"))?;
        let carrier = match cost.response {
            Response::Exact(response) => response,
            Response::None | Response::Range { .. } => cost.request,
        };
        let Direction { packets, frame_bytes, line_bytes } = carrier;
        let on_link = match setup.link_type {
            Some(LinkType::Ethernet) => line_bytes,
            Some(LinkType::InfiniBand) | None => bytes + packets * INFINIBAND_BYTES + RETH_BYTES,
        };
        let goodput_share = bytes as f64 / on_link as f64;
        Ok(Self { operation, path_mtu, bytes, packets, frame_bytes, goodput_share, assumed })
    }

    /// Returns the mean bytes of the packets as counters show them.
    pub(crate) fn bytes_per_packet(&self) -> f64 {
        self.frame_bytes as f64 / self.packets as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_payload_depends_on_the_link() {
        let of = |link_type| {
            let setup = Setup { link_type, ..Setup::default() };
            Arithmetic::of(&setup, Some(PathMtu::Mtu4096), 1 << 20).unwrap()
        };
        let (ethernet, infiniband) = (of(Some(LinkType::Ethernet)), of(Some(LinkType::InfiniBand)));
        assert_eq!((ethernet.packets, infiniband.packets), (256, 256));
        assert!((ethernet.goodput_share - 0.9804).abs() < 1e-4, "{}", ethernet.goodput_share);
        assert!((infiniband.goodput_share - 0.9937).abs() < 1e-4, "{}", infiniband.goodput_share);
        assert_eq!(ethernet.assumed, ["the output does not show the operation: WRITE is assumed"]);
    }

    #[test]
    fn impossible_messages_have_a_sentence() {
        let setup = Setup { operation: Some(MessageKind::CompareSwap), ..Setup::default() };
        let why = Arithmetic::of(&setup, None, 64).unwrap_err();
        assert!(why.contains("64 bytes"), "{why}");
    }
}
