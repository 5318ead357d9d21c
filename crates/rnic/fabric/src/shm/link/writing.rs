//! Runs that the link writes to rings, and memory of rings that it lends to batches.
//!
//! A loan is the free memory of one ring. The RNIC copies long payloads straight to their places in the records of the
//! next batch, which begin at the writer's position. [`SharedMemoryLink::write`] publishes these records in order. If
//! the position differs from the place of a record, the record's run is lost, as in a network.

use doorbell_rnic::{LENT_PAYLOAD_BYTES_MIN, Loan, PathEnd, Run, TransmitBatch};

use super::super::held::RETRY_NS;
use super::super::message::Datagram;
use super::super::peer::{Peer, Written};
use super::super::ring::{LINE_BYTES, WORD_BYTES};
use super::super::routes::Routes;
use super::SharedMemoryLink;

/// Number of batches without long packets after which the link lends no more memory of a ring.
const LOANS_WITHOUT_USE: u8 = 16;

/// Memory of rings that is lent to batches.
#[derive(Debug, Default)]
pub(super) struct Loans {
    /// Place of the peer to whose ring long packets went last, and the number of batches for which the ring's memory is
    /// still lent if they have no long packets.
    to: Option<(usize, u8)>,
    /// Memory that was lent to the current batch.
    lent: Option<Lent>,
    /// Number of runs whose long payloads were copied straight to a ring.
    #[cfg(test)]
    pub(super) runs: u64,
}

/// Memory of a ring that was lent to a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lent {
    /// Place and number of the peer to which the ring leads.
    place: usize,
    id: u64,
    /// Position of the writer at the time of the loan. The records of the batch begin there.
    position: u64,
}

impl Loans {
    /// Lends the free memory of the ring to which long packets went last. Returns `None` if no long packets went to a
    /// ring lately, or the ring has little free memory.
    #[inline]
    pub(super) fn lend(&mut self, peers: &mut [Option<Peer>], routes: &Routes) -> Option<Loan> {
        self.lent = None;
        let (place, left) = self.to?;
        self.lend_ring(place, left, peers, routes)
    }

    #[inline(never)]
    fn lend_ring(&mut self, place: usize, left: u8, peers: &mut [Option<Peer>], routes: &Routes) -> Option<Loan> {
        self.to = left.checked_sub(1).map(|left| (place, left));
        let peer = peers.get_mut(place)?.as_mut()?;
        if !routes.lead_to(peer.end, place) {
            return None;
        }
        let memory = peer.lend()?;
        self.lent = Some(Lent { place, id: peer.id, position: peer.writer.position() });
        Some(Loan { destination: peer.end, memory, before_bytes: WORD_BYTES, align_bytes: LINE_BYTES })
    }

    /// Returns whether the payloads of a lent run lie at the place of the next record in the ring to `peer`.
    #[inline]
    fn is_next_record(&self, place: usize, peer: &Peer, run: &Run) -> bool {
        let lent = self.lent.filter(|lent| (lent.place, lent.id) == (place, peer.id));
        let record_at = run.record_at.and_then(|at| Some(lent?.position + at as u64));
        record_at == Some(peer.writer.position())
    }

    /// Notes a run to a ring, so that the next batches get the ring's memory if the run has long packets.
    #[inline]
    fn note(&mut self, place: usize, run: &Run) {
        if run.segment_bytes >= LENT_PAYLOAD_BYTES_MIN as usize {
            self.to = Some((place, LOANS_WITHOUT_USE));
        }
    }
}

impl SharedMemoryLink {
    /// Writes a run to a peer's ring. If the ring is full, the run waits for room, or is dropped and counted.
    #[inline]
    pub(super) fn write(&mut self, now_ns: u64, place: usize, run: &Run, batch: &TransmitBatch) {
        let Some(peer) = &mut self.peers[place] else { return };
        self.loans.note(place, run);
        let written = if !run.is_lent {
            peer.write(now_ns, run, batch)
        } else if self.loans.is_next_record(place, peer, run) {
            peer.publish(run, batch);
            #[cfg(test)]
            {
                self.loans.runs += 1;
            }
            Written::Sent
        } else {
            // If the destination has another ring since, the payloads lie in memory that no device reads.
            self.counters.without += run.packets as u64;
            return;
        };
        match written {
            Written::Sent => {
                self.counters.packets_sent += run.packets as u64;
                if self.idle.is_at_rest() && peer.keeps_memory() {
                    self.idle.watch_from(now_ns);
                }
            }
            Written::Held => {
                self.counters.held += run.packets as u64;
                self.retry_at_ns.get_or_insert(now_ns + RETRY_NS);
            }
            Written::Dropped => self.counters.full += run.packets as u64,
        }
    }

    /// Wakes each peer in `touched` that sleeps. `touched` contains the places of the peers to whose rings records were
    /// written.
    pub(super) fn wake(&mut self, touched: &[usize]) {
        for &place in touched {
            let Some(peer) = &mut self.peers[place] else { continue };
            if std::mem::take(&mut peer.is_touched) && peer.writer.must_wake() {
                self.counters.wakes += 1;
                let PathEnd { address, engine: to } = peer.end;
                if !self.udp.send_alone(address, &Datagram::Wake { to }.to_bytes()) {
                    peer.writer.failed_to_wake();
                }
            }
        }
    }
}
