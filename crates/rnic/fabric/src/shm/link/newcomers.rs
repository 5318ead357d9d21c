//! Order of the rings of one device. A new ring waits until all earlier packets of its device are read.

use super::super::peer::Predecessors;
use super::super::sys::RING_BYTES;
use super::SharedMemoryLink;

/// Lower bound of the bytes that the kernel counts for a datagram in the receive buffer. The kernel's own header of a
/// datagram is larger.
pub(super) const DATAGRAM_BYTES_MIN: usize = 256;

impl SharedMemoryLink {
    /// Handles the first record in a ring: from now on, the ring waits until all earlier packets of its device are
    /// read.
    #[cold]
    pub(super) fn receive_newcomer(&mut self, place: usize) {
        let datagrams = self.udp.receive_buffer_bytes() / DATAGRAM_BYTES_MIN + 1;
        let Some(peer) = &self.peers[place] else { return };
        let (end, own) = (peer.end, peer.id);
        let (mut ring_bytes, mut taken) = (0, 0);
        for other in self.peers.iter().flatten().filter(|other| other.end == end && other.id != own) {
            ring_bytes += RING_BYTES as u64;
            taken += other.reader.position();
        }
        if let Some(peer) = &mut self.peers[place] {
            peer.behind = Predecessors::Others { datagrams, ring_bytes, taken };
        }
        self.has_newcomers = true;
    }

    /// Lets waiting rings be read once all earlier packets of their devices are read. `datagrams_taken` is the number
    /// of datagrams that the last read took from the socket. Returns true if any ring may be read now.
    pub(super) fn admit(&mut self, datagrams_taken: usize) -> bool {
        if !self.has_newcomers {
            return false;
        }
        let is_empty = self.udp.was_empty();
        let (mut admits, mut others_wait) = (false, false);
        for place in 0..self.peers.len() {
            let Some(peer) = &self.peers[place] else { continue };
            let Predecessors::Others { datagrams, mut ring_bytes, taken: before } = peer.behind else { continue };
            let datagrams = if is_empty { 0 } else { datagrams.saturating_sub(datagrams_taken) };
            let (mut taken, mut are_behind) = (0, false);
            // `ring_bytes` is nearly always 0, since an address rarely has two rings.
            if ring_bytes > 0 {
                let others = self.peers.iter().flatten();
                for other in others.filter(|other| other.end == peer.end && other.id != peer.id) {
                    taken += other.reader.position();
                    are_behind |= other.precedes(peer);
                }
                // `taken` is less than `before` if one of the other rings was removed since the last check.
                ring_bytes = ring_bytes.saturating_sub(taken.saturating_sub(before));
            }
            let waits = datagrams > 0 || (are_behind && ring_bytes > 0);
            if let Some(peer) = &mut self.peers[place] {
                peer.behind =
                    if waits { Predecessors::Others { datagrams, ring_bytes, taken } } else { Predecessors::Nothing };
            }
            admits |= !waits;
            others_wait |= waits;
        }
        self.has_newcomers = others_wait;
        admits
    }
}
