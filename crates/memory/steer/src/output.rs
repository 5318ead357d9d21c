//! Packets on their way out.

use std::net::IpAddr;
use std::ops::Range;

use doorbell_wire::{AETH_LEN, AethRepr, BTH_LEN, BthRepr};

/// How the outer headers of a packet are to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The source address.
    pub source: IpAddr,
    /// The destination address.
    pub destination: IpAddr,
    /// DSCP and ECN: a congestion mark that a packet arrived with is in the packet that follows from it.
    pub traffic_class: u8,
    /// Time to live, or hop limit.
    pub hop_limit: u8,
}

/// Packets in one buffer, which is used again and again.
#[derive(Debug, Default)]
pub(crate) struct Output {
    bytes: Vec<u8>,
    packets: Vec<(Path, Range<usize>)>,
}

impl Output {
    /// Adds a packet and returns it, so that its header can be changed.
    pub(crate) fn push(&mut self, path: Path, packet: &[u8]) -> &mut [u8] {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(packet);
        self.packets.push((path, start..self.bytes.len()));
        &mut self.bytes[start..]
    }

    /// Adds an acknowledgement, with what follows its AETH.
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
