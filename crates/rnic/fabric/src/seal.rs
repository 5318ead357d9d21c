//! Computation and check of the ICRC of packets that are sent and received through a UDP socket.
//!
//! The ICRC covers the IPv4 identification and the bit DF. A program can neither set nor read these fields through the
//! socket. DF is set, since the socket forbids fragmentation. A separate datagram has the identification 0. When the
//! kernel or the NIC splits a segmented send, its datagrams get the identifications 0, 1, 2, .... So the identification
//! of a packet is its index in its run.
//!
//! Other RoCE stacks choose other identifications, which the ICRC reveals (see [`doorbell_wire::explain_difference`]).
//! But some altered packets look like unaltered packets with another identification, for example all packets in which
//! bit 1387 was flipped. So once a peer's packets have the identifications of a socket, the checker rejects packets of
//! this peer with other identifications.

use std::net::IpAddr;

use doorbell_rnic::{Path, TransmitBatch};
use doorbell_wire::{BTH_LEN, Check, Flow, ICRC_LEN};

use crate::link::ReceivedRun;

/// Computes the ICRCs of packets that leave one socket.
#[derive(Clone, Debug)]
pub struct Sealer {
    local: IpAddr,
    port: u16,
    flows: FlowCache,
}

impl Sealer {
    /// Creates a sealer for the socket with this address and port. All peers use the same port.
    pub fn new(local: IpAddr, port: u16) -> Self {
        Self { local, port, flows: FlowCache::new() }
    }

    /// Writes the ICRC of each packet of the batch into the trailer after the packet.
    ///
    /// # Panics
    ///
    /// If the batch has no trailers of four bytes.
    pub fn seal(&mut self, batch: &mut TransmitBatch) {
        self.seal_to(batch, |_| true);
    }

    /// Writes the ICRCs of the packets on paths for which `wants` returns true.
    ///
    /// # Panics
    ///
    /// If the batch has no trailers of four bytes.
    #[inline]
    pub fn seal_to(&mut self, batch: &mut TransmitBatch, wants: impl Fn(&Path) -> bool) {
        assert_eq!(batch.trailer_bytes(), ICRC_LEN, "an ICRC needs a trailer of its length");
        let (runs, bytes) = batch.runs_and_bytes_mut();
        for run in runs.iter().filter(|run| wants(&run.path)) {
            let flow = self.flow_to(run.path.destination);
            let packets = &mut bytes[run.start..run.start + run.total_bytes];
            for (index, packet) in packets.chunks_mut(run.segment_bytes).enumerate() {
                write_icrc(&flow, index as u16, packet);
            }
        }
    }

    /// Rewrites the ICRCs of the packets of one run, so that each packet can be sent as a separate datagram.
    pub(crate) fn reseal_separate(&mut self, destination: IpAddr, segment_bytes: usize, packets: &mut [u8]) {
        let flow = self.flow_to(destination);
        for packet in packets.chunks_mut(segment_bytes) {
            write_icrc(&flow, 0, packet);
        }
    }

    pub(crate) fn flow_to(&mut self, destination: IpAddr) -> Flow {
        let (local, port) = (self.local, self.port);
        self.flows.get(destination, port, || Flow::new(local, destination, port, port))
    }
}

/// Checks the ICRCs of packets that arrive at one socket.
#[derive(Clone, Debug)]
pub struct Checker {
    local: IpAddr,
    port: u16,
    flows: FlowCache,
    counters: CheckCounters,
}

/// Counters of a [`Checker`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckCounters {
    /// Packets with a correct ICRC.
    pub ok: u64,
    /// Packets whose ICRC is correct for an IPv4 identification that no socket of this link would use.
    pub ok_other_identification: u64,
    /// Packets whose ICRC is wrong for every IPv4 identification, or correct only for one that their sender does not
    /// use.
    pub failed: u64,
    /// Packets too short for a BTH and an ICRC.
    pub short: u64,
}

impl Checker {
    /// Creates a checker for the socket with this address and port.
    pub fn new(local: IpAddr, port: u16) -> Self {
        Self { local, port, flows: FlowCache::new(), counters: CheckCounters::default() }
    }

    /// Checks the packet at this index of a run. Returns the packet without its ICRC, or `None` if the ICRC is wrong or
    /// the packet is too short.
    #[inline]
    pub fn check<'a>(&mut self, run: &ReceivedRun<'_>, index: usize, packet: &'a [u8]) -> Option<&'a [u8]> {
        if packet.len() < BTH_LEN + ICRC_LEN {
            self.counters.short += 1;
            return None;
        }
        match self.find(run, index, packet) {
            // Packets to multicast groups are accepted with any identification, since the cache does not store their
            // flows.
            Check::Valid { identification, dont_fragment }
                if run.outer.dst.is_multicast() || self.flows.believe(identification, dont_fragment, index) =>
            {
                self.counters.ok += 1;
                let assumed = identification == index as u16 && dont_fragment;
                self.counters.ok_other_identification += u64::from(!assumed);
                Some(&packet[..packet.len() - ICRC_LEN])
            }
            _ => {
                self.counters.failed += 1;
                None
            }
        }
    }

    /// Returns the counters.
    pub fn counters(&self) -> CheckCounters {
        self.counters
    }

    /// Finds the identification for which the ICRC of a packet is right. Does not change the counters.
    #[inline]
    pub(crate) fn find(&mut self, run: &ReceivedRun<'_>, index: usize, packet: &[u8]) -> Check {
        self.flow_from(run).check(index as u16, packet)
    }

    #[inline]
    pub(crate) fn flow_from(&mut self, run: &ReceivedRun<'_>) -> Flow {
        let (source, source_port) = (run.outer.src, run.source_port);
        let (local, port) = (self.local, self.port);
        if run.outer.dst.is_multicast() {
            return Flow::new(source, run.outer.dst, source_port, port);
        }
        self.flows.get(source, source_port, || Flow::new(source, local, source_port, port))
    }
}

#[inline]
fn write_icrc(flow: &Flow, identification: u16, packet: &mut [u8]) {
    if let Some((packet, icrc)) = packet.split_last_chunk_mut::<ICRC_LEN>() {
        *icrc = flow.icrc(identification, true, packet).to_le_bytes();
    }
}

/// Number of slots in the cache of peers' flows.
const CACHED_FLOWS: usize = 64;

/// Cache of the flows of recent peers. A hash of the peer selects one of a fixed number of slots, and a new peer takes
/// over the slot of an older one. To compute a flow again costs less than to handle a packet.
#[derive(Clone, Debug)]
struct FlowCache {
    slots: Box<[Option<CachedFlow>; CACHED_FLOWS]>,
    last: usize,
}

#[derive(Clone, Copy, Debug)]
struct CachedFlow {
    peer: IpAddr,
    port: u16,
    flow: Flow,
    /// Number of consecutive packets whose identification a socket's packet may have, up to [`CERTAIN`]. `None` before
    /// the first packet.
    like_a_socket: Option<u8>,
}

/// Maximum number of segments of one send. Packets of a socket have identifications below this number.
const SEGMENTS_MAX: u16 = 128;

/// Number of consecutive packets with identifications below [`SEGMENTS_MAX`] after which a peer counts as a socket. A
/// peer that increments the identification with each packet never counts as a socket, since it sends at most 128 such
/// packets in a row.
const CERTAIN: u8 = 255;

impl FlowCache {
    fn new() -> Self {
        Self { slots: Box::new([None; CACHED_FLOWS]), last: 0 }
    }

    #[inline]
    fn get(&mut self, peer: IpAddr, port: u16, make: impl FnOnce() -> Flow) -> Flow {
        match self.slots[self.last] {
            Some(cached) if cached.peer == peer && cached.port == port => cached.flow,
            _ => self.look_up(peer, port, make),
        }
    }

    #[inline(never)]
    fn look_up(&mut self, peer: IpAddr, port: u16, make: impl FnOnce() -> Flow) -> Flow {
        self.last = slot_of(peer, port);
        match self.slots[self.last] {
            Some(cached) if cached.peer == peer && cached.port == port => cached.flow,
            _ => {
                let flow = make();
                self.slots[self.last] = Some(CachedFlow { peer, port, flow, like_a_socket: None });
                flow
            }
        }
    }

    /// Returns whether the peer of the most recent lookup would send a packet with this identification. The peer counts
    /// as a socket at once if the identification of its first packet is the index of this packet in its run. A peer
    /// that is no socket passes this test with a probability of 2^-16. Then one of its next packets is rejected by
    /// mistake.
    #[inline]
    fn believe(&mut self, identification: u16, dont_fragment: bool, index: usize) -> bool {
        let Some(cached) = &mut self.slots[self.last] else { return true };
        if dont_fragment && identification < SEGMENTS_MAX {
            let first = if usize::from(identification) == index { CERTAIN } else { 1 };
            cached.like_a_socket = Some(cached.like_a_socket.map_or(first, |packets| packets.saturating_add(1)));
            return true;
        }
        cached.like_a_socket.replace(0) != Some(CERTAIN)
    }
}

/// Returns the slot of a peer, by multiplicative hashing with the golden ratio. The slot is taken from the upper bits,
/// which depend on all bits of the address and port.
fn slot_of(peer: IpAddr, port: u16) -> usize {
    let address = match peer {
        IpAddr::V4(v4) => u64::from(v4.to_bits()),
        IpAddr::V6(v6) => (v6.to_bits() >> 64) as u64 ^ v6.to_bits() as u64,
    };
    let hash = (address ^ u64::from(port) << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash >> (u64::BITS - CACHED_FLOWS.ilog2())) as usize
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::testing::{batch_of, outer};

    const PORT: u16 = 4791;
    const A: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1));
    const B: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

    fn run(bytes: &[u8], segment_bytes: usize) -> ReceivedRun<'_> {
        ReceivedRun { outer: outer(A, B), source_port: PORT, bytes, segment_bytes }
    }

    #[test]
    fn a_sealed_run_passes_at_the_assumed_identifications() {
        let mut batch = batch_of(B, &[vec![32; 64], vec![4108, 4108, 20]].concat());
        Sealer::new(A, PORT).seal(&mut batch);
        let mut checker = Checker::new(B, PORT);
        let mut packets = 0;
        for sent in batch.runs() {
            let bytes = &batch.bytes()[sent.start..sent.start + sent.total_bytes];
            let run = run(bytes, sent.segment_bytes);
            for (index, packet) in run.segments().enumerate() {
                let inner = checker.check(&run, index, packet).unwrap();
                assert_eq!(inner.len() + ICRC_LEN, packet.len());
                packets += 1;
            }
        }
        assert_eq!(packets, 67);
        let counters = CheckCounters { ok: 67, ..CheckCounters::default() };
        assert_eq!(checker.counters(), counters);
    }

    #[test]
    fn any_identification_from_any_port_is_accepted() {
        let mut packet: Vec<u8> = (0..36).collect();
        let mut checker = Checker::new(B, PORT);
        let mut others = 0;
        for identification in (0..=u16::MAX).step_by(97).chain([1, u16::MAX]) {
            for dont_fragment in [true, false] {
                let flow = Flow::new(A, B, 49_152, PORT);
                let icrc = flow.icrc(identification, dont_fragment, &packet[..32]);
                packet[32..].copy_from_slice(&icrc.to_le_bytes());
                let run = ReceivedRun { source_port: 49_152, ..run(&packet, 36) };
                assert!(checker.check(&run, 5, &packet).is_some());
                others += u64::from(!(identification == 5 && dont_fragment));
            }
        }
        let counters = checker.counters();
        assert_eq!((counters.failed, counters.ok_other_identification), (0, others));
    }

    #[test]
    fn corrupted_and_short_packets_are_refused_and_counted() {
        let mut batch = batch_of(B, &[64]);
        Sealer::new(A, PORT).seal(&mut batch);
        let sealed = batch.bytes().to_vec();
        let mut checker = Checker::new(B, PORT);
        let mut bits = 0;
        for bit in 0..sealed.len() * 8 {
            // The ICRC does not cover the BTH's fifth byte, in which a switch may set congestion bits.
            if bit / 8 == 4 {
                continue;
            }
            let mut packet = sealed.clone();
            packet[bit / 8] ^= 1 << (bit % 8);
            assert!(checker.check(&run(&packet, 68), 0, &packet).is_none(), "bit {bit}");
            bits += 1;
        }
        for len in 0..BTH_LEN + ICRC_LEN {
            assert!(checker.check(&run(&sealed[..len], 68), 0, &sealed[..len]).is_none());
        }
        let counters = checker.counters();
        assert_eq!((counters.ok, counters.failed, counters.short), (0, bits, 16));
    }

    /// Returns a packet with this identification and its ICRC.
    fn sealed(identification: u16, bytes: usize) -> Vec<u8> {
        let mut packet = vec![7; bytes];
        let icrc = Flow::new(A, B, PORT, PORT).icrc(identification, true, &packet);
        packet.extend_from_slice(&icrc.to_le_bytes());
        packet
    }

    fn is_good(checker: &mut Checker, packet: &[u8]) -> bool {
        checker.check(&run(packet, packet.len()), 0, packet).is_some()
    }

    #[test]
    fn every_bit_flip_in_a_socket_packet_is_detected() {
        let good = sealed(0, 1052);
        let mut explained = 0;
        for bit in (0..good.len() * 8).filter(|bit| bit / 8 != 4) {
            let mut altered = good.clone();
            altered[bit / 8] ^= 1 << (bit % 8);
            explained += usize::from(Flow::new(A, B, PORT, PORT).check(0, &altered) != Check::Invalid);
            let mut checker = Checker::new(B, PORT);
            assert!(is_good(&mut checker, &good));
            assert!(!is_good(&mut checker, &altered), "bit {bit}");
            assert!(is_good(&mut checker, &good));
        }
        assert!(explained > 0, "no flip is explained by another identification");
    }

    #[test]
    fn a_peer_with_counted_identifications_loses_at_most_one() {
        for (start, lost) in [(0, 1), (1, 0), (100, 0), (60_000, 0)] {
            let mut checker = Checker::new(B, PORT);
            let packets = (0..100_000_u32).map(|packet| sealed((start + packet) as u16, 12));
            let refused = packets.filter(|packet| !is_good(&mut checker, packet)).count();
            assert_eq!(refused, lost, "the first identification is {start}");
        }
    }

    #[test]
    fn flows_stay_correct_when_the_flow_cache_overflows() {
        let mut sealer = Sealer::new(A, PORT);
        for round in 0..3 {
            for host in 0..200_u8 {
                let peer = IpAddr::V4(Ipv4Addr::new(10, 0, round, host));
                assert_eq!(sealer.flow_to(peer), Flow::new(A, peer, PORT, PORT));
            }
        }
    }
}
