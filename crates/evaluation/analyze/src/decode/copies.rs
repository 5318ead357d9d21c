//! Second copies of packets. A capture of several interfaces, of both ends of a link, or of both sides of a router
//! holds each packet more than once.
//!
//! If one point of observation sees a packet twice, the sender transmitted the packet twice. If two points see a packet
//! once each, they saw the same transmission.

use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};

use doorbell_wire::{BTH_LEN, Datagram, ICRC_LEN};
use rustc_hash::{FxBuildHasher, FxHasher};

use super::capture::{CapturedFrame, LinkType};

/// Number of packets that are remembered. No switch or router holds back more packets.
const WINDOW: usize = 1 << 16;

/// Maximum number of points of observation that are distinguished per packet. A host with a bond,
/// VLANs, a bridge and veth pairs has fewer.
const MAX_POINTS: usize = 8;

/// Index of the BTH byte with congestion marks. Switches may change this byte, and the ICRC does not cover it.
const CONGESTION_BYTE: usize = 4;

/// A point of observation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Point(u64);

impl Point {
    /// Returns the point that captured a frame with this hop limit, and with these layers between link and IP header.
    pub(crate) fn new(frame: &CapturedFrame<'_>, layers: impl Hash, hop_limit: u8) -> Self {
        let mut hasher = FxHasher::default();
        (frame.interface, frame.direction, frame.link_type.0, hop_limit).hash(&mut hasher);
        layers.hash(&mut hasher);
        // Hash the link addresses. Cooked headers also hold the interface and whether the host sent the frame.
        let bytes = match frame.link_type {
            LinkType::ETHERNET => 12,
            LinkType::LINUX_SLL => 14,
            LinkType::LINUX_SLL2 => 20,
            _ => 0,
        };
        frame.bytes.get(..bytes).hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// Returns a digest of those fields of a packet that are the same at every point of observation. `bytes` are the
/// captured bytes from the BTH on.
pub(crate) fn identity(datagram: &Datagram<'_>, bytes: &[u8], whole_bytes: usize) -> u64 {
    let mut hasher = FxHasher::default();
    (datagram.outer.src, datagram.outer.dst, datagram.src_port, whole_bytes).hash(&mut hasher);
    let mut bth = [0; BTH_LEN];
    let captured = bytes.len().min(BTH_LEN);
    bth[..captured].copy_from_slice(&bytes[..captured]);
    bth[CONGESTION_BYTE] = 0;
    bth.hash(&mut hasher);
    if bytes.len() == whole_bytes {
        // The ICRC covers the other bytes, so the ICRC identifies them.
        bytes.last_chunk::<ICRC_LEN>().hash(&mut hasher);
    } else {
        datagram.outer.identification.hash(&mut hasher);
    }
    hasher.finish()
}

/// Points that saw a packet, each with the number of times that it saw the packet.
#[derive(Debug, Default)]
struct Seen {
    /// Largest number of times that one point saw the packet.
    transmissions: u32,
    points: [Option<(Point, u32)>; MAX_POINTS],
}

/// Recent packets.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    seen: HashMap<u64, Seen, FxBuildHasher>,
    /// Identities in the order in which they were first seen.
    order: VecDeque<u64>,
}

impl Copies {
    /// Counts a packet at a point. Returns whether another point has already seen this transmission.
    pub(crate) fn is_second(&mut self, identity: u64, point: Point) -> bool {
        if !self.seen.contains_key(&identity) {
            if self.order.len() == WINDOW
                && let Some(oldest) = self.order.pop_front()
            {
                self.seen.remove(&oldest);
            }
            self.order.push_back(identity);
        }
        let seen = self.seen.entry(identity).or_default();
        let at = seen.points.iter().position(|known| known.is_none_or(|(known, _)| known == point));
        let Some(at) = at else { return true };
        let times = seen.points[at].map_or(0, |(_, times)| times).saturating_add(1);
        seen.points[at] = Some((point, times));
        let is_second = times <= seen.transmissions;
        seen.transmissions = seen.transmissions.max(times);
        is_second
    }
}
