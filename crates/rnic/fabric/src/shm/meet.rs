//! Discovery between devices of one machine. Each device has a thread that listens at the device's name and invites
//! other devices to share memory.
//!
//! The name is that of an abstract Unix socket, which disappears with its process. It consists of the network namespace
//! and the device's address and port. `message.rs` defines the messages. A link requests an invitation before its first
//! packet to an engine of an address, and receives the result as [`News`]. After that, packets do not involve this
//! thread. The links of all engines of a device have one thread.

mod absences;
mod connection;
mod guests;
mod handle;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use doorbell_admission::{Admission, Clock, Number, Progress};
use doorbell_rnic::{ENGINES_MAX, EngineId, PathEnd};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit};

use self::absences::Absences;
use self::connection::{Heard, call, hear, host, host_or_beside, send};
pub(super) use self::handle::{Meeting, News};
use self::handle::{MeetingState, Wish, lock};
use super::message::{Answer, Datagram, Message, Nonce, VERSION};
use super::sys::Mapping;
use crate::own_process::OwnProcess;
use crate::udp::send_alone;

/// Maximum number of peers at a time, including guests and invited devices. Each peer takes a descriptor. At most half
/// of the process's descriptors are used for peers.
const PEERS_MAX: usize = 4096;

/// Time that the thread waits after the operating system has refused an operation, such as accepting a guest without a
/// free descriptor.
const PAUSE: Duration = Duration::from_millis(100);

/// Time between two tries to listen at the device's name.
const HOST_AGAIN: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 1000 });

fn random_nonce() -> io::Result<Nonce> {
    let mut nonce = Nonce::default();
    getrandom::fill(&mut nonce).map_err(io::Error::other)?;
    Ok(nonce)
}

/// Stage of the exchange with a peer.
#[derive(Debug)]
enum Stage {
    /// A guest that has not sent its [`Message::Hello`].
    Guest,
    /// A guest that has not returned the nonce of the challenge sent to its address. Its engine `peer` is to share
    /// memory with the engine `own`.
    Asked { own: EngineId, peer: PathEnd, mapping: Mapping, nonce: Nonce },
    /// A device that this device has invited, for the engine `own`. `is_welcome` states whether the invited device has
    /// accepted. Once `is_late` is true, packets no longer wait for its answer. The answer may still come, so the
    /// device is invited again only if it has accepted.
    Invited { own: EngineId, peer: PathEnd, mapping: Mapping, nonce: Nonce, is_welcome: bool, is_late: bool },
    /// The peer shares memory with the engine `own`.
    Sharing { id: u64, own: EngineId },
    /// The exchange has ended, and `Host::tidy` will remove the peer.
    Over,
}

#[derive(Debug)]
struct Peer {
    connection: OwnProcess,
    /// Deadline of an invited device. [`Admission`] has those of guests.
    until: Option<Instant>,
    /// Number of a guest that has not proved its address yet.
    guest: Option<Number>,
    stage: Stage,
}

/// State of the thread. `listener` is dropped before `udp`, so that the name is free before the address. A new device
/// may use the address and the name as soon as the address is free.
struct Host {
    /// Socket that listens at the device's name; `None` while the name is unavailable.
    listener: Option<OwnProcess>,
    /// Time of the next try to listen at the plain name. `Some` only while another user has the plain name, and
    /// `listener` has a name beside it.
    plain_again: Option<Instant>,
    /// End of a pause in accepting guests. If `listener` is `None`, time of the next try to listen at the name.
    paused_until: Option<Instant>,
    peers: Vec<Peer>,
    udp: OwnProcess,
    shared: Arc<MeetingState>,
    local: SocketAddr,
    answer_within: Duration,
    next_id: u64,
    absences: Absences,
    admission: Admission,
    begun: Instant,
    clock: Clock,
    /// Whether the thread accepts a guest before it handles a guest that has sent a message. Both take turns.
    is_arrivals_turn: bool,
    /// Numbers of guests, in the order in which the thread handled them.
    #[cfg(test)]
    handled: Vec<Number>,
}

impl Host {
    /// Makes the state of the thread. `hosted` is the socket that listens for guests, and whether its name is one
    /// beside the device's name.
    fn new(
        shared: Arc<MeetingState>,
        local: SocketAddr,
        udp: OwnProcess,
        answer_within: Duration,
        hosted: Option<(OwnProcess, bool)>,
    ) -> Self {
        let again = Instant::now() + HOST_AGAIN;
        let is_beside = hosted.as_ref().is_some_and(|(_, is_beside)| *is_beside);
        Self {
            shared,
            local,
            udp,
            answer_within,
            paused_until: hosted.is_none().then_some(again),
            listener: hosted.map(|(listener, _)| listener),
            plain_again: is_beside.then_some(again),
            peers: Vec::new(),
            next_id: 0,
            absences: Absences::new(false),
            admission: Admission::new(guests::LIMITS),
            begun: Instant::now(),
            clock: Clock::default(),
            is_arrivals_turn: false,
            #[cfg(test)]
            handled: Vec::new(),
        }
    }

    fn run(mut self) {
        while !self.shared.stop.load(Ordering::Acquire) {
            if !self.round() {
                return self.note_end();
            }
        }
    }

    /// Waits for the next event, and handles all invited devices and peers, but at most one guest. Returns false if the
    /// program has closed the thread's descriptors, as daemons do.
    fn round(&mut self) -> bool {
        let Some((is_called, ready)) = self.wait() else { return false };
        let (guests, devices): (Vec<_>, Vec<_>) =
            ready.into_iter().partition(|&index| self.peers[index].guest.is_some());
        for index in devices {
            self.listen_to(index);
        }
        self.handle_guest(is_called, &guests);
        let wishes = std::mem::take(&mut *lock(&self.shared.wishes));
        for wish in wishes {
            self.grant(wish);
        }
        self.tidy();
        true
    }

    /// Waits for the next event. Returns whether a guest has connected, and the indices of the peers that have sent a
    /// message. Returns `None` if the program has closed the thread's descriptors.
    fn wait(&mut self) -> Option<(bool, Vec<usize>)> {
        // Without room, guests wait in the queue of the listener. If the queue is full, the kernel refuses them.
        let takes_guests = self.paused_until.is_none() && self.has_room();
        let own = [self.paused_until, self.plain_again, self.guests_wake_at()].into_iter().flatten();
        let until = self.peers.iter().filter_map(|peer| peer.until).chain(own).min();
        let timeout = until.map_or(PollTimeout::NONE, |until| {
            let left = until.saturating_duration_since(Instant::now());
            let rounded = left + Duration::from_micros(if left.is_zero() { 0 } else { 999 });
            PollTimeout::try_from(rounded).unwrap_or(PollTimeout::MAX)
        });
        let watched = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = vec![watched(self.shared.kick.as_fd())];
        fds.extend(self.peers.iter().map(|peer| watched(peer.connection.as_fd())));
        fds.extend(self.listener.as_ref().filter(|_| takes_guests).map(|listener| watched(listener.as_fd())));
        let waited = poll(&mut fds, timeout);
        self.clock.return_at(self.begun.elapsed());
        match waited {
            Ok(_) => {}
            Err(nix::Error::EINTR) => return Some((false, Vec::new())),
            Err(_) => {
                // The process may have lowered its limit of descriptors below the length of `fds`, or no memory is
                // left. Check all peers, after a pause so that the thread does not spin.
                std::thread::sleep(PAUSE);
                return Some((takes_guests, (0..self.peers.len()).collect()));
            }
        }
        let ready = |fd: &PollFd<'_>| fd.any().unwrap_or(false);
        // Read the descriptor only if it is intact: its number may belong to a file of the program by now.
        if ready(&fds[0]) {
            if !self.shared.kick.is_intact() {
                return None;
            }
            self.shared.kick.reset();
        }
        let (peers, listener) = fds[1..].split_at(self.peers.len());
        let peers: Vec<usize> = peers.iter().enumerate().filter(|(_, fd)| ready(fd)).map(|(index, _)| index).collect();
        let are_intact = peers.iter().all(|&index| self.peers[index].connection.is_intact());
        are_intact.then(|| (listener.iter().any(ready), peers))
    }

    /// Reports to all links that the thread ends.
    fn note_end(&self) {
        self.shared.reports.iter().for_each(|reports| reports.add(News::Ended));
    }

    /// Reports to the link of the engine `own`.
    fn tell(&self, own: EngineId, news: News) {
        let Some(reports) = self.shared.reports.get(usize::from(own.0)) else { return };
        reports.add(news);
        // The engine's driver may be asleep. This datagram to its socket wakes it.
        if self.udp.is_intact() {
            send_alone(self.udp.as_fd(), self.local, self.local.ip(), &Datagram::Wake { to: own }.to_bytes());
        }
    }

    fn grant(&mut self, wish: Wish) {
        match wish {
            Wish::Invite { own, peer } => self.invite_unless_invited(own, peer),
            Wish::Challenged { from, invited, asked } => {
                let index = self.peers.iter().position(|peer| {
                    matches!(peer.stage, Stage::Invited { peer, nonce, .. } if peer.address == from && nonce == invited)
                });
                let Some(index) = index else { return };
                // The host sends its welcome before the challenge. The welcome may still be unread in the connection,
                // so read it now.
                self.listen_to(index);
                let peer = &self.peers[index];
                if !matches!(peer.stage, Stage::Invited { is_welcome: true, .. }) {
                    return self.fail(index, "the device sent a challenge before its welcome");
                }
                match send(&peer.connection, Message::Proof { nonce: asked }, None) {
                    Ok(()) => self.share(index),
                    Err(error) => self.fail(index, &format!("the proof could not be sent: {error}")),
                }
            }
            Wish::Leave { id } => {
                self.peers.retain(|peer| !matches!(peer.stage, Stage::Sharing { id: other, .. } if other == id));
            }
        }
    }

    /// Invites a device for the engine `own`, unless an earlier invitation may still be answered. Reports the device as
    /// absent if packets must not wait for an answer.
    fn invite_unless_invited(&mut self, own: EngineId, guest: PathEnd) {
        let pair = (own, guest);
        let pauses = self.absences.pauses(guest.address, Instant::now());
        let is_it = |peer: &Peer| matches!(peer.stage, Stage::Invited { own, peer, .. } if (own, peer) == pair);
        if let Some(index) = self.peers.iter().position(is_it) {
            match self.peers[index].stage {
                Stage::Invited { is_late: false, .. } => return,
                // The device's process may be stopped. When it continues, it still finds the invitation.
                Stage::Invited { is_welcome: false, .. } => {
                    return self.tell(own, News::Absent { peer: guest, why: None });
                }
                // The device has answered, so its challenge was probably lost: it is a datagram. Begin again, since the
                // device sends one challenge per invitation.
                _ => self.fail(index, "the challenge of the device did not arrive"),
            }
        }
        let invited = if pauses { Ok(None) } else { self.invite(own, guest) };
        let why = match invited {
            Ok(Some(peer)) => return self.peers.push(peer),
            Ok(None) => None,
            Err(why) => Some(why),
        };
        self.absences.add(guest.address, Instant::now());
        self.tell(own, News::Absent { peer: guest, why });
    }

    /// Connects to a device and sends the invitation. Returns `None` if no socket listens at the device's name.
    fn invite(&self, own: EngineId, guest: PathEnd) -> Result<Option<Peer>, String> {
        let Some(connection) = call(guest.address, self.local.port())? else { return Ok(None) };
        let most = peers_max();
        if self.peers.len() >= most {
            return Err(format!("too many devices (maximum {most}: {PEERS_MAX}, or half of the descriptors allowed)"));
        }
        let (mapping, file) = Mapping::create().map_err(|error| format!("no memory to share: {error}"))?;
        let nonce = random_nonce().map_err(|error| format!("no randomness: {error}"))?;
        let (address, port) = (self.local.ip(), self.local.port());
        let hello = Message::Hello { version: VERSION, address, port, nonce, from: own, to: guest.engine };
        // Store the nonce before sending the invitation: the challenge may arrive before `send` returns.
        lock(&self.shared.awaited).insert(nonce);
        send(&connection, hello, Some(file.as_raw_fd())).map_err(|error| {
            lock(&self.shared.awaited).remove(&nonce);
            format!("the invitation could not be sent: {error}")
        })?;
        let stage = Stage::Invited { own, peer: guest, mapping, nonce, is_welcome: false, is_late: false };
        let until = Some(Instant::now() + self.answer_within);
        Ok(Some(Peer { connection, until, guest: None, stage }))
    }

    /// Handles the next message of a peer.
    fn listen_to(&mut self, index: usize) {
        let peer = &mut self.peers[index];
        match (hear(&peer.connection), &mut peer.stage) {
            (Heard::Nothing, _) => {}
            (Heard::Said(Message::Hello { version, address, port, nonce, from, to }, Some(file)), Stage::Guest) => {
                let is_fit = version == VERSION
                    && port == self.local.port()
                    && usize::from(from.0) < ENGINES_MAX
                    && reaches(self.local.ip(), address);
                let mapping = Mapping::adopt(file.as_fd()).ok().filter(|_| is_fit);
                // An engine without a thread would leave the reports unread. No packets go to it, since its first queue
                // pair has no number yet. The inviter uses UDP, and invites the engine again.
                let has_engine = self.shared.reports.get(usize::from(to.0)).is_some_and(|reports| reports.has_reader());
                let (mapping, answer) = match mapping {
                    Some(_) if !has_engine => (None, Answer::NoEngine),
                    Some(mapping) => (Some(mapping), Answer::Accepted),
                    None => (None, Answer::Rejected),
                };
                let welcome = Message::Welcome { version: VERSION, answer };
                let (Some(mapping), Ok(asked), Ok(())) =
                    (mapping, random_nonce(), send(&peer.connection, welcome, None))
                else {
                    return self.fail(index, "");
                };
                let guest = PathEnd { address, engine: from };
                peer.stage = Stage::Asked { own: to, peer: guest, mapping, nonce: asked };
                if let Some(number) = peer.guest {
                    self.admission.heard(number, self.clock.counted(), Progress::Step);
                }
                let challenge = Datagram::Challenge { to: from, invited: nonce, asked };
                if !send_alone(self.udp.as_fd(), self.local, address, &challenge.to_bytes()) {
                    self.fail(index, ""); // the guest sees the end, and invites this device again
                }
            }
            (Heard::Said(Message::Proof { nonce }, None), Stage::Asked { nonce: asked, .. }) if nonce == *asked => {
                self.share(index);
            }
            (Heard::Said(Message::Welcome { version, answer }, None), Stage::Invited { is_welcome, .. })
                if !*is_welcome =>
            {
                match answer {
                    _ if version != VERSION => self.fail(
                        index,
                        &format!("the device uses version {version} of shared memory, but this process uses {VERSION}"),
                    ),
                    Answer::Accepted => *is_welcome = true,
                    Answer::NoEngine => self.end(index, None),
                    Answer::Rejected => self.fail(index, "the device rejected the invitation"),
                }
            }
            _ => self.fail(index, "the device ended the connection"),
        }
    }

    /// Reports that the peer at `index` shares memory, after both devices have proved their addresses.
    fn share(&mut self, index: usize) {
        let id = self.next_id;
        self.next_id += 1;
        self.end_visit(index);
        let peer = &mut self.peers[index];
        peer.until = None;
        let (own, end, mapping, made_here) = match std::mem::replace(&mut peer.stage, Stage::Over) {
            Stage::Asked { own, peer, mapping, .. } => (own, peer, mapping, false),
            Stage::Invited { own, peer, mapping, .. } => (own, peer, mapping, true),
            Stage::Guest | Stage::Sharing { .. } | Stage::Over => return,
        };
        peer.stage = Stage::Sharing { id, own };
        self.absences.remove(end.address);
        self.tell(own, News::Arrived { id, peer: end, mapping, made_here });
    }

    /// Ends the exchange with a peer for the reason `why`, as [`end`](Self::end) does.
    fn fail(&mut self, index: usize, why: &str) {
        self.end(index, Some(why.to_owned()));
    }

    /// Ends the exchange with a peer, and reports the end to the link. [`tidy`](Self::tidy) removes the peer later, so
    /// that the indices of other peers stay valid.
    fn end(&mut self, index: usize, why: Option<String>) {
        self.end_visit(index);
        match std::mem::replace(&mut self.peers[index].stage, Stage::Over) {
            Stage::Invited { own, peer, nonce, is_late, .. } => {
                lock(&self.shared.awaited).remove(&nonce);
                if why.is_some() {
                    self.absences.add(peer.address, Instant::now());
                }
                if !is_late {
                    self.tell(own, News::Absent { peer, why });
                }
            }
            Stage::Sharing { id, own } => self.tell(own, News::Gone { id }),
            Stage::Guest | Stage::Asked { .. } | Stage::Over => {}
        }
    }

    /// Ends the exchange with a guest that is late, reports late invited devices as absent, and removes all peers whose
    /// exchange has ended. Also accepts guests again after a pause, and tries again to listen at the name.
    fn tidy(&mut self) {
        self.expire_guest();
        let now = Instant::now();
        let is_late = |peer: &Peer| peer.until.is_some_and(|until| until <= now);
        for index in 0..self.peers.len() {
            if !is_late(&self.peers[index]) {
                continue;
            }
            // The peer's message may have arrived in time, while this thread waited for a processor.
            self.listen_to(index);
            let peer = &mut self.peers[index];
            if !is_late(peer) {
                continue;
            }
            let Stage::Invited { own, peer: end, is_late, .. } = &mut peer.stage else { continue };
            // The peer's process may be stopped. When it continues, it still finds the invitation.
            (*is_late, peer.until) = (true, None);
            let why = Some("the device did not answer in time".to_owned());
            let (own, news) = (*own, News::Absent { peer: *end, why });
            self.tell(own, news);
        }
        self.peers.retain(|peer| !matches!(peer.stage, Stage::Over));
        if self.paused_until.is_some_and(|until| until <= now) {
            self.paused_until = None;
            if self.listener.is_none() {
                match host_or_beside(self.local) {
                    Ok((listener, is_beside)) => {
                        (self.listener, self.plain_again) = (Some(listener), is_beside.then(|| now + HOST_AGAIN));
                    }
                    Err(_) => self.paused_until = Some(now + HOST_AGAIN),
                }
            }
        }
        if self.plain_again.is_some_and(|again| again <= now) {
            self.plain_again = Some(now + HOST_AGAIN);
            if let Ok(listener) = host(self.local) {
                // This device now listens at the plain name. Accept the guests that have connected to the name beside
                // it, before that listener is closed.
                self.accept_waiting();
                (self.listener, self.plain_again) = (Some(listener), None);
            }
        }
    }
}

/// Returns whether `address` can belong to a device that the device at `own` reaches. Multicast addresses are rejected:
/// otherwise a guest that claims a group would get all its packets.
fn reaches(own: IpAddr, address: IpAddr) -> bool {
    address.is_ipv4() == own.is_ipv4()
        && !address.is_unspecified()
        && !address.is_multicast()
        && address != Ipv4Addr::BROADCAST
}

/// Returns the maximum number of peers under the current limit of descriptors.
fn peers_max() -> usize {
    let descriptors = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
    PEERS_MAX.min(usize::try_from(descriptors / 2).unwrap_or(usize::MAX))
}

/// Returns a socket that listens at the name of a device, without a thread that accepts connections. So the device
/// seems to belong to a stopped process.
#[cfg(test)]
pub(super) fn silent_host(local: SocketAddr) -> OwnProcess {
    host(local).unwrap()
}

#[cfg(test)]
mod tests;
