//! Second copies of packets. A capture of several interfaces, of both ends of a link, or of both sides of a router
//! holds each packet more than once.
//!
//! A packet that one point of observation sees again was transmitted again. A packet that another point sees as often
//! as the first one is the same transmission.

use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};

use doorbell_wire::{BTH_LEN, Datagram, ICRC_LEN};
use rustc_hash::{FxBuildHasher, FxHasher};

use super::capture::{CapturedFrame, LinkType};

/// Number of remembered packets, more than any switch or router holds back.
const WINDOW: usize = 1 << 16;

/// Maximum number of points distinguished per packet. A host with a bond, VLANs, a bridge and veth pairs has fewer.
const MAX_POINTS: usize = 8;

/// The byte of the BTH that switches may change: congestion marks, which the ICRC does not cover either.
const CONGESTION_BYTE: usize = 4;

/// A point of observation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Point(u64);

impl Point {
    /// Returns the point that captured a frame with this hop limit, and with these layers between link and IP header.
    pub(super) fn new(frame: &CapturedFrame<'_>, layers: impl Hash, hop_limit: u8) -> Self {
        let mut hasher = FxHasher::default();
        (frame.interface, frame.direction, frame.link_type.0, hop_limit).hash(&mut hasher);
        layers.hash(&mut hasher);
        // Addresses; of cooked captures also the interface and whether the host sent the frame.
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

/// Returns the digest of the facts that distinguish a packet from others at every point. `bytes` are the captured bytes
/// from the BTH on.
pub(super) fn identity(datagram: &Datagram<'_>, bytes: &[u8], whole_bytes: usize) -> u64 {
    let mut hasher = FxHasher::default();
    (datagram.outer.src, datagram.outer.dst, datagram.src_port, whole_bytes).hash(&mut hasher);
    let mut bth = [0; BTH_LEN];
    let captured = bytes.len().min(BTH_LEN);
    bth[..captured].copy_from_slice(&bytes[..captured]);
    bth[CONGESTION_BYTE] = 0;
    bth.hash(&mut hasher);
    if bytes.len() == whole_bytes {
        // The ICRC covers the rest.
        bytes.last_chunk::<ICRC_LEN>().hash(&mut hasher);
    } else {
        datagram.outer.identification.hash(&mut hasher);
    }
    hasher.finish()
}

/// Points that saw a packet, with their counts.
#[derive(Debug, Default)]
struct Seen {
    /// Maximum count of one point.
    transmissions: u32,
    points: [Option<(Point, u32)>; MAX_POINTS],
}

/// Recent packets.
#[derive(Debug, Default)]
pub(super) struct Copies {
    seen: HashMap<u64, Seen, FxBuildHasher>,
    /// Identities in the order in which they were first seen.
    order: VecDeque<u64>,
}

impl Copies {
    /// Notes a packet. Returns whether another point has seen this transmission already.
    pub(super) fn is_second(&mut self, identity: u64, point: Point) -> bool {
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
