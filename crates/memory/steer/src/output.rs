//! Packets that the box sends.

use std::net::IpAddr;
use std::ops::Range;

use doorbell_wire::{AETH_LEN, AethRepr, BTH_LEN, BthRepr};

/// Fields of the outer headers of a packet to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The source address.
    pub source: IpAddr,
    /// The destination address.
    pub destination: IpAddr,
    /// DSCP and ECN. A forwarded packet keeps the congestion mark with which it arrived.
    pub traffic_class: u8,
    /// IPv4 time to live, or IPv6 hop limit.
    pub hop_limit: u8,
}

/// Queue of packets to send, in one buffer that is reused.
#[derive(Debug, Default)]
pub(crate) struct Output {
    bytes: Vec<u8>,
    packets: Vec<(Path, Range<usize>)>,
}

impl Output {
    /// Adds a packet. Returns its bytes, so that the caller can change its headers.
    pub(crate) fn push(&mut self, path: Path, packet: &[u8]) -> &mut [u8] {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(packet);
        self.packets.push((path, start..self.bytes.len()));
        &mut self.bytes[start..]
    }

    /// Adds a response packet with these headers. `rest` follows the AETH.
    pub(crate) fn push_response(&mut self, path: Path, bth: &BthRepr, aeth: &AethRepr, rest: &[u8]) {
        let start = self.bytes.len();
        let (mut head, mut extension) = ([0; BTH_LEN], [0; AETH_LEN]);
        bth.write(&mut head);
        aeth.write(&mut extension);
        for part in [&head[..], &extension, rest] {
            self.bytes.extend_from_slice(part);
        }
        self.packets.push((path, start..self.bytes.len()));
    }

    pub(crate) fn drain(&mut self, mut take: impl FnMut(&Path, &[u8])) -> usize {
        for (path, range) in &self.packets {
            take(path, &self.bytes[range.clone()]);
        }
        let count = self.packets.len();
        self.packets.clear();
        self.bytes.clear();
        count
    }
}
