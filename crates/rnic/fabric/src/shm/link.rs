//! The link of a device that shares memory with devices of its machine, and reaches all other devices over UDP.

mod newcomers;
mod news;
mod waiting;
mod writing;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{io, iter};

use doorbell_rnic::{Loan, MAX_RUN_PACKETS, Path, PathEnd, Run, TransmitBatch, earliest};
use doorbell_verbs_core::LinkCounters;

use self::writing::Loans;
use super::LinkChoice;
use super::datagrams::WithoutMessages;
use super::idle::Idle;
use super::meet::Meeting;
use super::peer::{Peer, RunBuffers};
use super::routes::{Routes, RunRoute, answer_within};
use crate::link::{Link, LinkProperties, Sink};
use crate::own_process::OwnProcess;
use crate::udp::UdpLink;

/// Maximum number of rings that one call of `receive` checks in turn. The call also checks the rings of [`LATELY`]
/// recent senders. After a wake-up, it checks all rings.
const PEERS_PER_RECEIVE: usize = 16;

/// Number of recent senders whose rings each call of `receive` checks, if there are more than [`PEERS_PER_RECEIVE`]
/// peers.
const LATELY: usize = 4;

/// Time between two reads of the UDP socket while packets arrive through rings and none over UDP.
const UDP_EVERY_NS: u64 = 20_000;

/// Time after the last received packets during which rings, or the UDP socket, count as in use.
const TRAFFIC_NS: u64 = 1_000_000;

/// A UDP socket, and rings in shared memory to other devices of the same machine and user. Each engine of a device has
/// such a link.
///
/// Packets through rings carry no ICRC, since no network can alter them. A sink that needs an ICRC, such as a capture,
/// gets the ICRC that the packet would have had over UDP.
#[derive(Debug)]
pub struct SharedMemoryLink {
    udp: UdpLink,
    choice: LinkChoice,
    /// Thread that shares memory with other devices. `None` if the operating system provided no thread or descriptor;
    /// then all packets go over UDP.
    meeting: Option<Meeting>,
    routes: Routes,
    /// The peers. The index of a peer is called its place. `None` marks the free place of a removed peer.
    peers: Vec<Option<Peer>>,
    /// Place of the peer whose ring was checked last. The next call of `receive` continues after it.
    next_peer: usize,
    /// Places of the peers that sent packets recently. `next_lately` is the index of the entry that is replaced next.
    lately: [usize; LATELY],
    next_lately: usize,
    /// Whether some ring must not be read yet, because earlier packets of its device are still unread.
    has_newcomers: bool,
    /// Whether the next call of `receive` checks all rings.
    look_at_all: bool,
    /// Destination of the run at which the last call of `transmit` stopped, because the destination's device has not
    /// answered an invitation.
    awaits: Option<PathEnd>,
    /// Whether the driver holds, outside of the current batch, packets to destinations other than `awaits`.
    others_behind: bool,
    /// Whether a batch is partly sent. The batch's packets to devices that shared memory when the batch was sealed have
    /// no ICRC, so they must not go over UDP.
    is_within_batch: bool,
    /// Engines that shared memory when the current batch was sealed and have departed since.
    gone_within_batch: Vec<PathEnd>,
    loans: Loans,
    buffers: RunBuffers,
    idle: Idle,
    /// Time of the next look for room in full rings. `None` while no run waits for room.
    retry_at_ns: Option<u64>,
    last_shared_ns: Option<u64>,
    last_udp_ns: Option<u64>,
    udp_looked_at_ns: u64,
    /// Whether the last call of `receive` read the UDP socket for another reason than the time since the last read.
    expects_udp: bool,
    counters: SharedMemoryCounters,
    /// Whether a refusal of shared memory was logged. The links of all engines of the device share it.
    has_explained: Arc<AtomicBool>,
}

/// Counters of a link with shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedMemoryCounters {
    /// Number of packets written to rings.
    pub packets_sent: u64,
    /// Number of packets read from rings.
    pub packets_received: u64,
    /// Number of packets that waited for room in the ring to their destination.
    pub held: u64,
    /// Packets dropped because the ring to their destination was full, and its reader had stopped or departed, or too
    /// many bytes waited already.
    pub full: u64,
    /// Number of packets dropped because only shared memory is allowed and their destination does not share memory. The
    /// number includes packets without an ICRC whose receiver departed after the batch was sealed.
    pub without: u64,
    /// Number of times that a device of this machine was found but did not share memory, or that this device could not
    /// share memory itself.
    pub refusals: u64,
    /// Number of peers that wrote an invalid record to their ring.
    pub broken: u64,
    /// Number of datagrams sent to wake sleeping peers.
    pub wakes: u64,
}

impl SharedMemoryLink {
    /// Adds shared memory to the UDP links of a device's engines, which share an address. With [`LinkChoice::Shm`],
    /// only multicast packets go over UDP. With other choices, all packets go over UDP if shared memory is unavailable;
    /// the link counts and logs this.
    ///
    /// # Errors
    ///
    /// Only shared memory is allowed, and another process has the name of a device at this address and port. Or only
    /// shared memory is allowed, and the operating system provides no socket, descriptor or thread.
    pub fn start(udps: Vec<UdpLink>, choice: LinkChoice) -> io::Result<Vec<Self>> {
        let Some(first) = udps.first() else { return Ok(Vec::new()) };
        let local = first.local_socket_address();
        let (engines, must_host) = (udps.len(), choice == LinkChoice::Shm);
        let started = first
            .readable()
            .and_then(|socket| Meeting::start(local, engines, socket, answer_within(choice), must_host));
        let (meetings, refused) = match started {
            Ok((meetings, refused)) => (meetings, refused),
            Err(error) if choice == LinkChoice::Shm => return Err(error),
            Err(error) => (Vec::new(), Some(error)),
        };
        let meetings = meetings.into_iter().map(Some).chain(iter::repeat_with(|| None));
        let has_explained = Arc::<AtomicBool>::default();
        let new = |(udp, meeting)| Self::new(udp, choice, meeting, Arc::clone(&has_explained));
        let links = udps.into_iter().zip(meetings).map(new);
        let mut links: Vec<Self> = links.collect();
        if let Some(error) = refused {
            links[0].counters.refusals += 1;
            has_explained.store(true, Ordering::Relaxed);
            tracing::info!(
                "{local} cannot offer shared memory to devices of this machine ({error}): devices that send to it first use UDP"
            );
        }
        Ok(links)
    }

    fn new(udp: UdpLink, choice: LinkChoice, meeting: Option<Meeting>, has_explained: Arc<AtomicBool>) -> Self {
        let local = udp.local_socket_address();
        Self {
            udp,
            choice,
            meeting,
            routes: Routes::new(choice, local.ip()),
            peers: Vec::new(),
            next_peer: 0,
            lately: [0; LATELY],
            next_lately: 0,
            has_newcomers: false,
            look_at_all: false,
            awaits: None,
            others_behind: false,
            is_within_batch: false,
            gone_within_batch: Vec::new(),
            loans: Loans::default(),
            buffers: RunBuffers::new(local),
            idle: Idle::default(),
            retry_at_ns: None,
            last_shared_ns: None,
            last_udp_ns: None,
            udp_looked_at_ns: 0,
            expects_udp: true,
            counters: SharedMemoryCounters::default(),
            has_explained,
        }
    }

    /// Returns the counters of the link.
    pub fn counters(&self) -> SharedMemoryCounters {
        self.counters
    }

    /// Returns the UDP link.
    pub fn udp(&self) -> &UdpLink {
        &self.udp
    }

    #[inline]
    fn take_news(&mut self, now_ns: u64) {
        let Some(meeting) = &self.meeting else { return };
        let news = meeting.news();
        if !news.is_empty() {
            self.learn(now_ns, news);
        }
    }

    /// Returns the route of packets to a destination, and invites the destination's device if necessary.
    #[inline]
    fn way(&mut self, now_ns: u64, destination: PathEnd) -> RunRoute {
        let Some(meeting) = &self.meeting else { return RunRoute::Udp };
        self.routes.way(now_ns, destination, meeting)
    }

    /// Returns whether packets to a destination may go over UDP. Multicast packets always may, since a ring connects
    /// only two devices.
    fn may_use_udp(&self, destination: IpAddr) -> bool {
        self.choice != LinkChoice::Shm || destination.is_multicast()
    }

    /// Returns whether the engine `destination` shared memory when the current batch was sealed, and has departed
    /// since. If so, the batch's packets to that device have no ICRC, so they cannot go over UDP.
    #[inline]
    fn is_gone_within_batch(&self, destination: PathEnd) -> bool {
        !self.gone_within_batch.is_empty() && self.gone_within_batch.contains(&destination)
    }

    /// Reads records from a peer's ring. Returns the number of packets.
    #[inline]
    fn read(&mut self, place: usize, sink: &mut dyn Sink) -> usize {
        let Some(peer) = &mut self.peers[place] else { return 0 };
        if !peer.may_be_read() {
            if peer.is_newcomer() {
                self.receive_newcomer(place);
            }
            return 0;
        }
        let packets = peer.read(&mut self.buffers, sink);
        self.counters.packets_received += packets as u64;
        if packets == 0 && peer.has_ended() {
            self.remove(place);
        }
        packets
    }

    #[cold]
    fn remove(&mut self, place: usize) {
        let Some(mut peer) = self.peers[place].take() else { return };
        self.counters.full += peer.held.clear();
        if !peer.has_departed() {
            self.counters.broken += 1;
            if let Some(meeting) = &self.meeting {
                meeting.leave(peer.id);
            }
            self.explain(peer.end.address, "the device wrote an invalid record to its ring");
            self.reroute(place, peer.end);
        }
    }

    /// Reads records from all rings, or from some rings in turn if there are many. Returns the number of packets.
    fn receive_shared(&mut self, sink: &mut dyn Sink) -> usize {
        let looks_at_all = std::mem::take(&mut self.look_at_all) || self.peers.len() <= PEERS_PER_RECEIVE;
        let mut packets = 0;
        if !looks_at_all {
            for index in 0..LATELY {
                packets += self.read(self.lately[index], sink);
            }
        }
        let count = if looks_at_all { self.peers.len() } else { PEERS_PER_RECEIVE };
        for _ in 0..count {
            self.next_peer = if self.next_peer + 1 < self.peers.len() { self.next_peer + 1 } else { 0 };
            let read = self.read(self.next_peer, sink);
            if read > 0 && !self.lately.contains(&self.next_peer) {
                self.lately[self.next_lately] = self.next_peer;
                self.next_lately = (self.next_lately + 1) % LATELY;
            }
            packets += read;
        }
        packets
    }

    /// Returns whether to read the UDP socket now, which costs a system call.
    fn looks_at_udp(&mut self, now_ns: u64) -> bool {
        let lately = |at: Option<u64>| at.is_some_and(|at| now_ns.saturating_sub(at) < TRAFFIC_NS);
        self.expects_udp = self.has_newcomers
            || self.routes.asked_until_ns().is_some()
            || !lately(self.last_shared_ns)
            || lately(self.last_udp_ns);
        self.expects_udp || now_ns.saturating_sub(self.udp_looked_at_ns) >= UDP_EVERY_NS
    }
}

impl Link for SharedMemoryLink {
    fn properties(&self) -> LinkProperties {
        self.udp.properties()
    }

    #[inline]
    fn seals(&self, path: &Path) -> bool {
        !self.routes.is_shared(path.end())
    }

    #[inline]
    fn lend(&mut self) -> Option<Loan> {
        self.loans.lend(&mut self.peers, &self.routes)
    }

    fn transmit(&mut self, now_ns: u64, batch: &TransmitBatch, next: &mut usize) -> io::Result<()> {
        self.is_within_batch = true;
        self.take_news(now_ns);
        self.flush_held(now_ns);
        let runs = batch.runs();
        let mut touched = [0; MAX_RUN_PACKETS];
        let mut touched_count = 0;
        let mut result = Ok(());
        self.awaits = None;
        while let Some(run) = runs.get(*next) {
            if self.is_gone_within_batch(run.path.end()) {
                self.counters.without += run.packets as u64;
                *next += 1;
                continue;
            }
            match self.way(now_ns, run.path.end()) {
                RunRoute::Unknown => {
                    let is_other = |other: &Run| other.path.end() != run.path.end();
                    let others_wait = self.others_behind || runs[*next..].iter().any(is_other);
                    if !self.routes.note_others(others_wait) {
                        self.awaits = Some(run.path.end());
                        break;
                    }
                }
                RunRoute::Shared(place) => {
                    let was_touched = self.peers[place].as_ref().is_none_or(|peer| peer.is_touched);
                    if !was_touched && touched_count == touched.len() {
                        self.wake(&touched);
                        touched_count = 0;
                    }
                    self.write(now_ns, place, run, batch);
                    if !was_touched {
                        touched[touched_count] = place;
                        touched_count += 1;
                    }
                    *next += 1;
                }
                RunRoute::Udp if run.is_lent || !self.may_use_udp(run.path.destination) => {
                    self.counters.without += run.packets as u64;
                    *next += 1;
                }
                RunRoute::Udp => {
                    let mut end = *next + 1;
                    while let Some(run) = runs.get(end)
                        && !run.is_lent
                        && self.may_use_udp(run.path.destination)
                        && !self.is_gone_within_batch(run.path.end())
                        && self.way(now_ns, run.path.end()) == RunRoute::Udp
                    {
                        end += 1;
                    }
                    result = self.udp.transmit_until(batch, next, end);
                    if result.is_err() || *next < end {
                        break;
                    }
                }
            }
        }
        self.wake(&touched[..touched_count]);
        self.others_behind = self.others_behind && self.awaits.is_some();
        self.is_within_batch = result.is_ok() && *next < runs.len();
        if !self.is_within_batch {
            self.gone_within_batch.clear();
        }
        result
    }

    fn receive(&mut self, now_ns: u64, sink: &mut dyn Sink) -> io::Result<usize> {
        self.take_news(now_ns);
        self.flush_held(now_ns);
        if self.idle.look_at_ns().is_some_and(|at| at <= now_ns) {
            // A batch that is partly sent may have payloads in a ring that seems empty.
            if self.is_within_batch {
                self.idle.watch_from(now_ns);
            } else {
                self.idle.look(now_ns, &mut self.peers);
            }
        }
        let mut packets = self.receive_shared(sink);
        if packets > 0 {
            self.last_shared_ns = Some(now_ns);
        }
        if self.looks_at_udp(now_ns) {
            self.udp_looked_at_ns = now_ns;
            let (meeting, peers, own) = (self.meeting.as_ref(), &self.peers[..], self.udp.local_socket_address());
            let mut without = WithoutMessages { sink, meeting, peers, own, packets: 0, is_woken: false };
            let received = self.udp.receive(now_ns, &mut without);
            let (from_udp, is_woken) = (without.packets, without.is_woken);
            if from_udp > 0 {
                self.last_udp_ns = Some(now_ns);
                self.expects_udp = true;
            }
            packets += from_udp;
            received?;
            let is_new = self.admit(self.udp.messages_taken());
            if is_woken {
                self.take_news(now_ns);
            }
            if is_woken || is_new {
                self.look_at_all = true;
                let woken = self.receive_shared(sink);
                if woken > 0 {
                    self.last_shared_ns = Some(now_ns);
                }
                packets += woken;
            }
        }
        Ok(packets)
    }

    #[inline]
    fn may_receive(&self) -> bool {
        let may_have_work = |peer: &Peer| peer.reader.has_record() || peer.has_ended();
        self.expects_udp
            || self.look_at_all
            || self.has_newcomers
            || self.routes.asked_until_ns().is_some()
            || self.retry_at_ns.is_some()
            || self.peers.len() > PEERS_PER_RECEIVE
            || self.peers.iter().flatten().any(may_have_work)
    }

    fn begin(&mut self) {
        if let Some(meeting) = &self.meeting {
            meeting.begin();
        }
    }

    fn look_everywhere(&mut self) {
        self.look_at_all = true;
        self.last_shared_ns = None;
    }

    fn prepare_sleep(&mut self) -> bool {
        self.look_everywhere(); // by the first call of `receive` after the sleep
        if self.has_newcomers {
            return false;
        }
        // If any ring has a record, the driver must not sleep.
        self.peers.iter().flatten().all(|peer| peer.reader.arm())
    }

    fn shows_arrivals(&self) -> bool {
        self.peers.iter().flatten().all(|peer| peer.has_departed() || peer.reader.is_armed())
    }

    fn awaits(&self) -> Option<PathEnd> {
        self.awaits
    }

    fn hurry(&mut self) {
        self.others_behind = true;
        self.routes.note_others(true);
    }

    fn forget_batch(&mut self) {
        (self.awaits, self.others_behind, self.is_within_batch) = (None, false, false);
        self.gone_within_batch.clear();
        self.udp.forget_batch();
    }

    fn holds_packets(&self) -> bool {
        self.retry_at_ns.is_some()
    }

    fn full_destinations(&self, destinations: &mut Vec<PathEnd>) {
        let held = self.peers.iter().flatten().filter(|peer| !peer.held.is_empty());
        destinations.extend(held.map(|peer| peer.end));
    }

    fn send_held(&mut self, now_ns: u64) {
        self.flush_held(now_ns);
    }

    fn poll_timeout(&self) -> Option<u64> {
        earliest([self.routes.asked_until_ns(), self.idle.look_at_ns(), self.retry_at_ns])
    }

    fn join(&mut self, group: IpAddr) -> io::Result<OwnProcess> {
        self.udp.join(group)
    }

    fn leave(&mut self, group: IpAddr) {
        self.udp.leave(group);
    }

    fn link_counters(&self) -> LinkCounters {
        let own = &self.counters;
        let udp = self.udp.link_counters();
        LinkCounters {
            tx_unreachable: udp.tx_unreachable + own.without,
            tx_ring_full: own.full,
            shared_memory_refused: own.refusals,
            tx_shared_memory_packets: own.packets_sent,
            rx_shared_memory_packets: own.packets_received,
            ..udp
        }
    }
}

#[cfg(test)]
mod engine_tests;
#[cfg(test)]
mod loan_tests;
#[cfg(test)]
pub(super) mod tests;
#[cfg(test)]
mod throttle_tests;
#[cfg(test)]
mod waiting_tests;
