//! Reports of the thread that shares memory with other devices, and peers that arrive and depart.

use std::net::IpAddr;
use std::sync::atomic::Ordering;

use doorbell_rnic::PathEnd;

use super::super::LinkChoice;
use super::super::meet::{Meeting, News};
use super::super::peer::Peer;
use super::SharedMemoryLink;

/// Maximum time between the two connections of a device that has invited this device and was invited by it at the same
/// time. If the same engine of that address connects later than that, it is a new device. The link then ends its
/// connections with the old device.
pub(super) const SAME_DEVICE_NS: u64 = 1_000_000_000;

/// Maximum number of departed peers whose rings are still read. If there are more, the oldest ring is dropped with its
/// packets. Without a limit, a peer that fills a ring and departs, again and again, would use up the mappings of this
/// process.
pub(super) const DEPARTED_MAX: usize = 64;

impl SharedMemoryLink {
    #[cold]
    pub(super) fn learn(&mut self, now_ns: u64, news: Vec<News>) {
        for news in news {
            match news {
                News::Arrived { id, peer: end, mapping, made_here } => {
                    let peer = Peer::new(id, end, now_ns, mapping, made_here);
                    let free = self.peers.iter().position(Option::is_none);
                    let place = free.unwrap_or(self.peers.len());
                    if free.is_none() {
                        self.peers.push(None);
                    }
                    self.peers[place] = Some(peer);
                    self.leave_predecessors(end, now_ns);
                    self.routes.arrived(end, place);
                }
                News::Absent { peer: end, why } => {
                    self.routes.absent(end, now_ns);
                    match why {
                        Some(why) => self.explain(end.address, &why),
                        None if self.choice == LinkChoice::Shm => tracing::info!(
                            "no device of this machine, user and network namespace is at {}, or it shares no memory: \
                             packets to it are dropped (--link shm)",
                            end.address
                        ),
                        None => {}
                    }
                }
                News::Gone { id } => {
                    let is_it = |peer: &Option<Peer>| peer.as_ref().is_some_and(|peer| peer.id == id);
                    if let Some(place) = self.peers.iter().position(is_it) {
                        self.is_gone(place);
                    }
                }
                News::Ended => {
                    (0..self.peers.len()).for_each(|place| self.is_gone(place));
                    let is_first = self.meeting.as_ref().is_some_and(Meeting::is_first);
                    // The descriptor numbers may belong to files of the program by now, so do not close them.
                    std::mem::forget(self.meeting.take());
                    self.routes.end();
                    if is_first {
                        self.counters.refusals += 1;
                        let own = self.udp.local_address();
                        tracing::info!(
                            "{own} shares no memory any more: the program has closed descriptors of the device"
                        );
                    }
                }
            }
        }
    }

    /// Ends the connections with engines of older devices, after the same engine of a new device has proved that it
    /// owns their address.
    fn leave_predecessors(&mut self, end: PathEnd, now_ns: u64) {
        for place in 0..self.peers.len() {
            let is_old = |peer: &Peer| peer.end == end && now_ns.saturating_sub(peer.since_ns) > SAME_DEVICE_NS;
            let Some(peer) = self.peers[place].as_ref().filter(|peer| !peer.has_departed() && is_old(peer)) else {
                continue;
            };
            if let Some(meeting) = &self.meeting {
                meeting.leave(peer.id);
            }
            self.is_gone(place);
        }
    }

    pub(super) fn is_gone(&mut self, place: usize) {
        let Some(peer) = &mut self.peers[place] else { return };
        peer.depart();
        self.counters.full += peer.held.clear();
        let end = peer.end;
        self.look_at_all = true;
        self.reroute(place, end);
        let departed = |peer: &Option<Peer>| peer.as_ref().filter(|peer| peer.has_departed()).map(|peer| peer.id);
        if self.peers.iter().filter_map(departed).count() > DEPARTED_MAX {
            let oldest =
                self.peers.iter_mut().filter(|peer| departed(peer).is_some()).min_by_key(|peer| departed(peer));
            oldest.into_iter().for_each(|peer| *peer = None);
        }
    }

    /// Finds another route for packets to `end`, since the peer at `place` reads no further packets.
    pub(super) fn reroute(&mut self, place: usize, end: PathEnd) {
        self.routes.forget(place);
        // If two devices invited each other at the same time, there are two pairs of rings, and the other pair may
        // still be in use.
        let is_same = |peer: &Peer| peer.end == end && !peer.has_ended();
        match self.peers.iter().position(|peer| peer.as_ref().is_some_and(is_same)) {
            Some(other) => self.routes.arrived(end, other),
            None if self.is_within_batch => self.gone_within_batch.push(end),
            None => {}
        }
    }

    #[cold]
    pub(super) fn explain(&mut self, address: IpAddr, why: &str) {
        self.counters.refusals += 1;
        if !self.has_explained.swap(true, Ordering::Relaxed) {
            tracing::info!(
                "{address} is a device of this machine that shares no memory with this one: {why}; packets to it {} \
                 until a later try succeeds, and this is logged once",
                if self.choice == LinkChoice::Shm { "are dropped (--link shm)" } else { "go over UDP" }
            );
        }
    }
}
