//! RoCE v2 packets in UDP datagrams.

use std::net::IpAddr;

use doorbell_wire::{ATOMIC_ETH_LEN, BTH_LEN, Check, Datagram, Flow, ICRC_LEN, Opcode, PathMtu, XRCETH_LEN};

/// Maximum length of a RoCE v2 packet after the UDP header: BTH, the longest extension headers, 4096 bytes of payload
/// and the ICRC.
const LONGEST_PACKET: usize = BTH_LEN + XRCETH_LEN + ATOMIC_ETH_LEN + PathMtu::Mtu4096.bytes() + ICRC_LEN;

/// Returns whether a UDP payload is longer than one packet. `payload` may be only its captured beginning.
pub(crate) fn longer_than_a_packet(payload: &[u8], payload_len: usize) -> bool {
    let extension = payload.first().map_or(0, |opcode| Opcode(*opcode).extension_len());
    payload_len > BTH_LEN + extension + PathMtu::Mtu4096.bytes() + ICRC_LEN
}

/// Maximum number of frames with a wrong ICRC that the decoder tries to parse as several packets. The maximum limits
/// the work for a file of random bytes.
const MAX_TRIES: usize = 64;

/// Result of the ICRC check of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// One packet with a correct ICRC.
    Right,
    /// One packet with a wrong ICRC, or no packet.
    Wrong,
    /// One packet whose end was not captured.
    Cut,
    /// One packet whose IP header has options, which the ICRC's definition does not cover.
    Undefined,
    /// Several packets in a frame that was captured before segmentation. All packets have this length, except that the
    /// last packet may be shorter.
    Segments(usize),
}

/// Addresses and ports of a flow.
type FlowKey = (IpAddr, IpAddr, u16, u16);

/// Flows whose ICRC registers were computed recently.
#[derive(Debug)]
pub(crate) struct Flows {
    recent: [Option<(FlowKey, Flow)>; 8],
}

impl Flows {
    pub(crate) fn new() -> Self {
        Self { recent: [None; 8] }
    }

    fn get(&mut self, datagram: &Datagram<'_>) -> Flow {
        let key = (datagram.outer.src, datagram.outer.dst, datagram.src_port, datagram.dst_port);
        let low = |address: IpAddr| match address {
            IpAddr::V4(address) => address.octets()[3],
            IpAddr::V6(address) => address.octets()[15],
        };
        let slot = low(key.0).wrapping_mul(3).wrapping_add(low(key.1)).wrapping_add(key.2 as u8) as usize;
        let slot = &mut self.recent[slot % 8];
        match slot {
            Some((known, flow)) if *known == key => *flow,
            _ => {
                let flow = Flow::new(key.0, key.1, key.2, key.3);
                *slot = Some((key, flow));
                flow
            }
        }
    }

    /// Checks the ICRC of a frame. If the ICRC is wrong, checks whether the frame holds several consecutive packets, as
    /// a sender passes them to the kernel or NIC for segmentation (UDP_SEGMENT).
    pub(crate) fn look(&mut self, datagram: &Datagram<'_>) -> Found {
        let payload = datagram.payload;
        if payload.len() < datagram.payload_len {
            return Found::Cut;
        }
        if datagram.has_options {
            return Found::Undefined;
        }
        let Some((packet, icrc)) = payload.split_last_chunk::<ICRC_LEN>() else { return Found::Wrong };
        if packet.len() < BTH_LEN {
            return Found::Wrong;
        }
        let flow = self.get(datagram);
        let identification = datagram.outer.identification.unwrap_or(0);
        let dont_fragment = datagram.outer.dont_fragment.unwrap_or(true);
        if payload.len() <= LONGEST_PACKET
            && flow.icrc(identification, dont_fragment, packet) == u32::from_le_bytes(*icrc)
        {
            return Found::Right;
        }
        match segment_bytes(&flow, identification, payload) {
            Some(bytes) => Found::Segments(bytes),
            None => Found::Wrong,
        }
    }

    /// Returns whether the ICRC of one segment is correct for any IPv4 identification.
    pub(crate) fn segment_is_right(&mut self, datagram: &Datagram<'_>, index: usize, segment: &[u8]) -> bool {
        let identification = datagram.outer.identification.unwrap_or(0).wrapping_add(index as u16);
        self.get(datagram).check(identification, segment) != Check::Invalid
    }
}

/// Returns the length of each packet of a frame with several packets: the first length with a correct ICRC that bytes
/// like a BTH follow.
fn segment_bytes(flow: &Flow, identification: u16, payload: &[u8]) -> Option<usize> {
    let looks_like_bth = |at: usize| {
        payload.get(at..at + BTH_LEN).is_some_and(|bth| {
            // Partition key, and version.
            bth[2..4] == payload[2..4] && bth[1] & 0x0f == 0 && Opcode(bth[0]).operation().is_some()
        })
    };
    let most = payload.len().saturating_sub(BTH_LEN + ICRC_LEN).min(LONGEST_PACKET);
    (BTH_LEN + ICRC_LEN..=most)
        .step_by(4)
        .filter(|&at| looks_like_bth(at))
        .take(MAX_TRIES)
        .find(|&at| flow.check(identification, &payload[..at]) != Check::Invalid)
}
