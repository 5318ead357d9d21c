//! The link of a device that shares memory with devices of its machine, and reaches all others over UDP.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use doorbell_rnic::{HEADERS_BYTES_MAX, MAX_RUN_BYTES, MAX_RUN_PACKETS, Run, TransmitBatch};
use doorbell_verbs_core::LinkCounters;
use doorbell_wire::{Flow, ICRC_LEN, Outer};
use rustc_hash::FxHashMap;

use super::LinkChoice;
use super::meet::{ANSWER_WITHIN, Meeting, News};
use super::message::Datagram;
use super::ring::{Header, Memory, Reader, Record, Writer};
use super::sys::Ring;
use crate::link::{Link, LinkProperties, ReceivedRun, SharedRun, Sink};
use crate::udp::UdpLink;

/// While packets go to a destination without shared memory, it is asked again after this time, in which a device may
/// have been opened there, and each time after twice as long as before.
const ASK_AGAIN_AFTER_NS: u64 = 10_000_000;

/// It is asked again at least this often; where only shared memory is allowed, always after the first time.
const ASK_AGAIN_WITHIN_NS: u64 = 1_000_000_000;

/// How long packets to other destinations wait behind one whose device was asked and is silent: one that is stopped, say.
const OTHERS_WAIT_NS: u64 = 2_000_000;

/// Destinations that are remembered to be reached over UDP; with more of them all are asked again.
const UDP_ROUTES_MAX: usize = 4096;

/// How many peers one call of receive looks at, unless somebody slept, beside those that sent something lately.
const PEERS_PER_RECEIVE: usize = 16;

/// So many of those, where there are more peers than one call looks at: most of many peers are silent.
const LATELY: usize = 4;

/// How much one call of receive takes from one ring, so that other rings have their turn and acknowledgements leave.
const RECORDS_PER_RING: usize = 8;
const BYTES_PER_RING: usize = 64 << 10;

/// While packets come through memory and none over UDP, the socket is looked at this often.
const UDP_EVERY_NS: u64 = 20_000;

/// A ring from which packets came within this time is taken to be still in use.
const TRAFFIC_NS: u64 = 1_000_000;

/// How packets to one destination go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    /// Its device was invited at this time, and may take a moment to answer.
    Asked { at_ns: u64 },
    /// Through the rings of this peer.
    Shared { place: usize },
    /// Over UDP, since nobody there shares memory. Its device is asked again at this time, and later after that wait.
    Udp { ask_at_ns: u64, wait_ns: u64 },
}

/// The same of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// It has to wait for an answer.
    Unknown,
    Shared(usize),
    Udp,
}

/// A device that shares memory with this one.
#[derive(Debug)]
struct Peer {
    id: u64,
    address: IpAddr,
    writer: Writer<Ring>,
    reader: Reader<Ring>,
    /// Something was written in this call, and the peer may sleep.
    is_touched: bool,
    /// Nothing is read before the socket was found empty: what the peer sent over UDP before is not overtaken.
    is_behind_udp: bool,
    /// It closed or died; what it wrote before is still read.
    is_gone: bool,
}

/// A UDP socket, and rings in memory to the devices of this machine and user that have them as well.
///
/// Packets through memory carry no ICRC: no network can alter them. A sink that wants one, as a capture does, gets
/// one that fits what a socket would have sent.
#[derive(Debug)]
pub struct SharedMemoryLink {
    udp: UdpLink,
    choice: LinkChoice,
    /// `None` where the operating system gave none: then everything goes over UDP.
    meeting: Option<Meeting>,
    routes: FxHashMap<IpAddr, Route>,
    /// When the first of those that were asked has to have answered.
    asked_until_ns: Option<u64>,
    /// Packets to other destinations wait behind those to one that was asked.
    others_wait: bool,
    /// By place; a place whose peer is gone is free.
    peers: Vec<Option<Peer>>,
    /// The place that the next call of receive looks at first.
    next_peer: usize,
    /// Places of peers that sent something lately, and which of these is replaced next.
    lately: [usize; LATELY],
    next_lately: usize,
    /// Some peer's ring is not read yet.
    has_newcomers: bool,
    /// All rings are to be looked at, not only some.
    look_at_all: bool,
    buffer: Box<[u8]>,
    sealed: Vec<u8>,
    last_shared_ns: Option<u64>,
    last_udp_ns: Option<u64>,
    udp_looked_at_ns: u64,
    counters: SharedMemoryCounters,
    has_explained: bool,
}

/// What a link of shared memory has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedMemoryCounters {
    /// Packets that were written to rings.
    pub packets_sent: u64,
    /// Packets that were read from rings.
    pub packets_received: u64,
    /// Packets dropped because the ring to their destination was full.
    pub full: u64,
    /// Packets dropped because only shared memory is allowed and there is none to their destination.
    pub without: u64,
    /// How often a device of this machine was there and shared no memory.
    pub refusals: u64,
    /// Peers that wrote something to their ring that is no record.
    pub broken: u64,
    /// Peers that slept, and were sent a datagram.
    pub wakes: u64,
}

impl SharedMemoryLink {
    /// Puts shared memory beside a UDP link. With [`LinkChoice::Shm`] nothing goes over UDP. Otherwise everything does where
    /// there is no shared memory to be had: that is counted and explained.
    ///
    /// # Errors
    ///
    /// Only shared memory is allowed, and the name of the device is taken, which only another process of this address and
    /// port can have done, or the operating system gives no socket, descriptor or thread.
    pub fn start(udp: UdpLink, choice: LinkChoice) -> io::Result<Self> {
        let local = udp.local_socket_address();
        let started = udp.as_fd().try_clone_to_owned().and_then(|socket| Meeting::start(local, socket));
        let (meeting, refused) = match started {
            Ok(meeting) => (Some(meeting), None),
            Err(error) if choice == LinkChoice::Shm => return Err(error),
            Err(error) => (None, Some(error)),
        };
        let mut link = Self {
            udp,
            choice,
            meeting,
            routes: FxHashMap::default(),
            asked_until_ns: None,
            others_wait: false,
            peers: Vec::new(),
            next_peer: 0,
            lately: [0; LATELY],
            next_lately: 0,
            has_newcomers: false,
            look_at_all: false,
            buffer: vec![0; MAX_RUN_BYTES].into(),
            sealed: Vec::new(),
            last_shared_ns: None,
            last_udp_ns: None,
            udp_looked_at_ns: 0,
            counters: SharedMemoryCounters::default(),
            has_explained: false,
        };
        if let Some(error) = refused {
            link.counters.refusals += 1;
            link.has_explained = true;
            tracing::info!("{local} shares no memory with other devices of this machine: {error}; packets go over UDP");
        }
        Ok(link)
    }

    /// What the link has done so far.
    pub fn counters(&self) -> SharedMemoryCounters {
        self.counters
    }

    /// The UDP link beside.
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

    #[cold]
    fn learn(&mut self, now_ns: u64, news: Vec<News>) {
        for news in news {
            match news {
                News::Arrived { id, address, mapping, made_here } => {
                    let [first, second] = Ring::both(mapping);
                    let (written, read) = if made_here { (first, second) } else { (second, first) };
                    let peer = Peer {
                        id,
                        address,
                        writer: Writer::new(written),
                        reader: Reader::new(read),
                        is_touched: false,
                        is_behind_udp: true,
                        is_gone: false,
                    };
                    let free = self.peers.iter().position(Option::is_none);
                    let place = free.unwrap_or(self.peers.len());
                    if free.is_none() {
                        self.peers.push(None);
                    }
                    self.peers[place] = Some(peer);
                    self.has_newcomers = true;
                    // The peer reads its socket before this ring, so what went over UDP is not overtaken.
                    if !matches!(self.routes.get(&address), Some(Route::Shared { .. })) {
                        self.routes.insert(address, Route::Shared { place });
                    }
                }
                News::Absent { address, why } => {
                    if let Some(Route::Asked { .. }) = self.routes.get(&address) {
                        self.goes_over_udp(address, now_ns);
                    }
                    if let Some(why) = why {
                        self.explain(address, &why);
                    }
                }
                News::Gone { id } => {
                    if let Some(peer) = self.peers.iter_mut().flatten().find(|peer| peer.id == id) {
                        peer.is_gone = true;
                        self.look_at_all = true;
                    }
                    // What is sent from now on would never be read.
                    let peers = &self.peers;
                    self.routes.retain(|_, route| match *route {
                        Route::Shared { place } => peers[place].as_ref().is_some_and(|peer| !peer.is_gone),
                        _ => true,
                    });
                }
            }
        }
        self.note_asked();
    }

    fn note_asked(&mut self) {
        let asked = self.routes.values().filter_map(|route| match *route {
            Route::Asked { at_ns } => Some(at_ns),
            _ => None,
        });
        self.asked_until_ns = asked.min().map(|at_ns| at_ns + self.patience_ns());
    }

    /// How long an invited device may take to answer.
    fn patience_ns(&self) -> u64 {
        if self.others_wait && self.choice == LinkChoice::Auto {
            OTHERS_WAIT_NS
        } else {
            // The thread answers sooner, unless it does not run at all.
            2 * ANSWER_WITHIN.as_nanos() as u64
        }
    }

    /// Is that a change, whether packets to others wait?
    fn note_others(&mut self, wait: bool) -> bool {
        let is_new = std::mem::replace(&mut self.others_wait, wait) != wait;
        if is_new {
            self.note_asked();
        }
        is_new
    }

    fn goes_over_udp(&mut self, address: IpAddr, now_ns: u64) {
        if self.routes.len() >= UDP_ROUTES_MAX {
            self.routes.retain(|_, route| !matches!(route, Route::Udp { .. }));
        }
        let ask_at_ns = now_ns + ASK_AGAIN_AFTER_NS;
        self.routes.insert(address, Route::Udp { ask_at_ns, wait_ns: ASK_AGAIN_AFTER_NS });
    }

    #[cold]
    fn explain(&mut self, address: IpAddr, why: &str) {
        self.counters.refusals += 1;
        if !std::mem::replace(&mut self.has_explained, true) {
            tracing::info!(
                "{address} is a device of this machine that shares no memory with this one: {why}; packets go over UDP, \
                 and this is said once"
            );
        }
    }

    /// How packets to a destination go, now that there is one. It is asked for shared memory first.
    #[inline]
    fn way(&mut self, now_ns: u64, destination: IpAddr) -> Way {
        let patience_ns = self.patience_ns();
        let Some(meeting) = &self.meeting else { return Way::Udp };
        match self.routes.get_mut(&destination) {
            Some(Route::Shared { place }) => Way::Shared(*place),
            Some(Route::Udp { ask_at_ns, wait_ns }) => {
                if now_ns >= *ask_at_ns {
                    if self.choice == LinkChoice::Auto {
                        *wait_ns = (2 * *wait_ns).min(ASK_AGAIN_WITHIN_NS);
                    }
                    *ask_at_ns = now_ns + *wait_ns;
                    meeting.invite(destination);
                }
                Way::Udp
            }
            Some(Route::Asked { at_ns }) if now_ns < *at_ns + patience_ns => Way::Unknown,
            Some(Route::Asked { .. }) => {
                // The invitation may still be answered.
                self.goes_over_udp(destination, now_ns + ANSWER_WITHIN.as_nanos() as u64);
                self.note_asked();
                self.explain(destination, "it did not answer in time");
                Way::Udp
            }
            None if destination.is_multicast() => Way::Udp,
            None => {
                self.routes.insert(destination, Route::Asked { at_ns: now_ns });
                meeting.invite(destination);
                self.note_asked();
                Way::Unknown
            }
        }
    }

    /// Writes a run to a peer's ring, or drops it.
    #[inline]
    fn write(&mut self, place: usize, run: &Run, batch: &TransmitBatch) {
        let Some(peer) = &mut self.peers[place] else { return };
        let trailer_bytes = batch.trailer_bytes();
        let header = Header {
            total_bytes: run.total_bytes - run.packets * trailer_bytes,
            segment_bytes: run.segment_bytes - trailer_bytes,
            traffic_class: run.path.traffic_class,
            hop_limit: run.path.hop_limit,
        };
        let packets = run.segments().map(|segment| &batch.bytes()[segment.start..segment.end - trailer_bytes]);
        if peer.writer.push(header, packets) {
            peer.is_touched = true;
            self.counters.packets_sent += run.packets as u64;
        } else {
            self.counters.full += run.packets as u64;
        }
    }

    /// Wakes the peers that sleep and were written to.
    fn wake(&mut self, touched: &[usize]) {
        for &place in touched {
            let Some(peer) = &mut self.peers[place] else { continue };
            if std::mem::take(&mut peer.is_touched) && peer.writer.must_wake() {
                self.counters.wakes += 1;
                self.udp.send_alone(peer.address, &Datagram::Wake.to_bytes());
            }
        }
    }

    /// Takes what stands in a peer's ring. Returns the number of packets.
    #[inline]
    fn read(&mut self, place: usize, sink: &mut dyn Sink) -> usize {
        let Some(peer) = self.peers[place].as_mut().filter(|peer| !peer.is_behind_udp) else { return 0 };
        let (mut packets, mut bytes) = (0, 0);
        for _ in 0..RECORDS_PER_RING {
            let Some(record) = peer.reader.pop() else { break };
            let Record { header, at } = record;
            let Header { total_bytes, segment_bytes, traffic_class, hop_limit } = header;
            packets += total_bytes.div_ceil(segment_bytes);
            bytes += total_bytes;
            let (src, dst) = (peer.address, self.udp.local_address());
            let outer = Outer { src, dst, traffic_class, hop_limit, identification: None, dont_fragment: None };
            let shared = if segment_bytes <= HEADERS_BYTES_MAX {
                // The headers of short packets are all of them.
                peer.reader.copy_out(&record, &mut self.buffer);
                let private = &self.buffer[..total_bytes];
                SharedRun { outer, headers: private, bytes: private.into(), segment_bytes }
            } else {
                let ring = peer.reader.memory();
                let mut copied = 0;
                for from in (0..total_bytes).step_by(segment_bytes) {
                    let length = HEADERS_BYTES_MAX.min(total_bytes - from);
                    ring.copy_out(at + from, &mut self.buffer[copied..copied + length]);
                    copied += length;
                }
                let bytes = ring.payload(at, total_bytes);
                SharedRun { outer, headers: &self.buffer[..copied], bytes, segment_bytes }
            };
            if !sink.receive_shared(&shared) {
                peer.reader.copy_out(&record, &mut self.buffer);
                let source_port = self.udp.port();
                let run = ReceivedRun { outer, source_port, bytes: &self.buffer[..total_bytes], segment_bytes };
                seal(&run, &mut self.sealed);
                let segment_bytes = segment_bytes + ICRC_LEN;
                sink.receive(ReceivedRun { bytes: &self.sealed, segment_bytes, ..run });
            }
            peer.reader.release();
            if bytes >= BYTES_PER_RING {
                break;
            }
        }
        self.counters.packets_received += packets as u64;
        if packets == 0 && (peer.is_gone || peer.reader.is_broken()) {
            self.remove(place);
        }
        packets
    }

    #[cold]
    fn remove(&mut self, place: usize) {
        let Some(peer) = self.peers[place].take() else { return };
        if !peer.is_gone {
            self.counters.broken += 1;
            if let Some(meeting) = &self.meeting {
                meeting.leave(peer.id);
            }
            self.explain(peer.address, "it wrote something to its ring that is no packet");
        }
        self.routes.retain(|_, route| *route != Route::Shared { place });
    }

    /// Looks at the rings in turn.
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

    /// The socket is empty, so rings are read that waited for that. True if there are any.
    fn admit(&mut self) -> bool {
        std::mem::take(&mut self.has_newcomers) && {
            self.peers.iter_mut().flatten().for_each(|peer| peer.is_behind_udp = false);
            true
        }
    }

    /// Is it time to look at the socket, which costs a system call?
    fn looks_at_udp(&self, now_ns: u64) -> bool {
        let lately = |at: Option<u64>| at.is_some_and(|at| now_ns.saturating_sub(at) < TRAFFIC_NS);
        self.has_newcomers
            || self.asked_until_ns.is_some()
            || !lately(self.last_shared_ns)
            || lately(self.last_udp_ns)
            || now_ns.saturating_sub(self.udp_looked_at_ns) >= UDP_EVERY_NS
    }
}

/// Puts an ICRC behind each packet of a run: that which a socket's segmented send would have.
fn seal(run: &ReceivedRun<'_>, sealed: &mut Vec<u8>) {
    let flow = Flow::new(run.outer.src, run.outer.dst, run.source_port, run.source_port);
    sealed.clear();
    for (index, packet) in run.segments().enumerate() {
        sealed.extend_from_slice(packet);
        sealed.extend_from_slice(&flow.icrc(index as u16, true, packet).to_le_bytes());
    }
}

/// Takes what is no packet out of what the socket received.
struct WithoutWords<'a> {
    sink: &'a mut dyn Sink,
    meeting: Option<&'a Meeting>,
    port: u16,
    packets: usize,
    found_nothing: bool,
    /// Somebody wrote to a ring while this device slept.
    is_woken: bool,
}

impl Sink for WithoutWords<'_> {
    #[inline]
    fn receive(&mut self, run: ReceivedRun<'_>) {
        self.found_nothing = false;
        // The kernel puts datagrams of one length together, so the first tells of all, or nearly.
        if run.segments().all(|packet| Datagram::parse(packet).is_none()) {
            self.packets += run.segments().len();
            return self.sink.receive(run);
        }
        for packet in run.segments() {
            match Datagram::parse(packet) {
                Some(Datagram::Wake) => self.is_woken = true,
                Some(Datagram::Challenge { invited, asked }) if run.source_port == self.port => {
                    if let Some(meeting) = self.meeting {
                        meeting.challenged(run.outer.src, invited, asked);
                    }
                }
                Some(Datagram::Challenge { .. }) => {}
                None => {
                    self.packets += 1;
                    self.sink.receive(ReceivedRun { bytes: packet, segment_bytes: packet.len(), ..run });
                }
            }
        }
    }
}

impl Link for SharedMemoryLink {
    fn properties(&self) -> LinkProperties {
        self.udp.properties()
    }

    #[inline]
    fn seals(&self, destination: IpAddr) -> bool {
        !matches!(self.routes.get(&destination), Some(Route::Shared { .. }))
    }

    fn transmit(&mut self, now_ns: u64, batch: &TransmitBatch, next: &mut usize) -> io::Result<()> {
        self.take_news(now_ns);
        let runs = batch.runs();
        let mut touched = [0; MAX_RUN_PACKETS];
        let mut touched_count = 0;
        let mut result = Ok(());
        while let Some(run) = runs.get(*next) {
            match self.way(now_ns, run.path.destination) {
                Way::Unknown => {
                    let others_wait = runs[*next..].iter().any(|other| other.path.destination != run.path.destination);
                    if !self.note_others(others_wait) {
                        break;
                    }
                }
                Way::Shared(place) => {
                    let was_touched = self.peers[place].as_ref().is_none_or(|peer| peer.is_touched);
                    if !was_touched && touched_count == touched.len() {
                        self.wake(&touched);
                        touched_count = 0;
                    }
                    self.write(place, run, batch);
                    if !was_touched {
                        touched[touched_count] = place;
                        touched_count += 1;
                    }
                    *next += 1;
                }
                Way::Udp if self.choice == LinkChoice::Shm && !run.path.destination.is_multicast() => {
                    self.counters.without += run.packets as u64;
                    *next += 1;
                }
                Way::Udp => {
                    let mut end = *next + 1;
                    while let Some(run) = runs.get(end)
                        && self.way(now_ns, run.path.destination) == Way::Udp
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
        result
    }

    fn receive(&mut self, now_ns: u64, sink: &mut dyn Sink) -> io::Result<usize> {
        self.take_news(now_ns);
        let mut packets = self.receive_shared(sink);
        if packets > 0 {
            self.last_shared_ns = Some(now_ns);
        }
        if self.looks_at_udp(now_ns) {
            self.udp_looked_at_ns = now_ns;
            let (meeting, port) = (self.meeting.as_ref(), self.udp.port());
            let mut words = WithoutWords { sink, meeting, port, packets: 0, found_nothing: true, is_woken: false };
            let received = self.udp.receive(now_ns, &mut words);
            let (from_udp, is_woken, found_nothing) = (words.packets, words.is_woken, words.found_nothing);
            if from_udp > 0 {
                self.last_udp_ns = Some(now_ns);
            }
            packets += from_udp;
            received?;
            // Only those are admitted that were there before the look.
            let is_new = found_nothing && self.admit();
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

    fn prepare_sleep(&mut self) -> bool {
        // The next look after the sleep is at everything.
        self.look_at_all = true;
        self.last_shared_ns = None;
        if self.has_newcomers {
            return false;
        }
        // One that is not empty is enough to stay awake.
        self.peers.iter().flatten().all(|peer| peer.reader.arm())
    }

    fn poll_timeout(&self) -> Option<u64> {
        self.asked_until_ns
    }

    fn join(&mut self, group: IpAddr) -> io::Result<OwnedFd> {
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
mod tests;
