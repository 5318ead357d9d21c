//! Discovery between devices of one machine. Each device has a thread that listens at the device's name and invites
//! other devices to share memory.
//!
//! The name is that of an abstract Unix socket, which disappears with its process. It consists of the network namespace
//! and the device's address and port. `message.rs` defines the messages. A link requests an invitation before its first
//! packet to an address, and receives the result as [`News`]. After that, packets do not involve this thread.

mod connection;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use doorbell_sync::IgnorePoison;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit};
use rustc_hash::FxHashSet;

use self::connection::{Heard, call, check_user, hear, host, host_or_beside, send};
use super::message::{Datagram, Message, Nonce, VERSION};
use super::sys::{self, Mapping};
use crate::guard::spawn_without_signals;
use crate::own_event::OwnEvent;
use crate::own_process::{Opening, OwnProcess};
use crate::udp::send_alone;

/// Time after which a guest is disconnected if it has not sent the next message. A guest is a process that has
/// connected to this device's name.
const GUEST_WITHIN: Duration = Duration::from_secs(1);

/// Maximum number of peers at a time, including guests and invited devices. Each peer takes a descriptor. At most half
/// of the process's descriptors are used for peers.
const PEERS_MAX: usize = 4096;

/// Maximum number of guests at a time that have not proved their address. Further guests wait in the queue of the
/// listener.
const GUESTS_MAX: usize = 64;

/// Time after which a guest that has sent nothing is disconnected while there are [`GUESTS_MAX`] guests, so that silent
/// guests do not keep out others.
const CROWDED_WITHIN: Duration = Duration::from_millis(100);

/// Time that the thread waits after the operating system has refused an operation, such as accepting a guest without a
/// free descriptor.
const PAUSE: Duration = Duration::from_millis(100);

/// Time between two tries to listen at the device's name.
const HOST_AGAIN: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 1000 });

/// Maximum number of tries to listen at the device's name, if the device may use only shared memory. A device that may
/// also use UDP starts after one try.
const HOST_TRIES: u32 = 10;
const HOST_NAP: Duration = Duration::from_millis(10);

/// Reports of the thread to its link.
#[derive(Debug)]
pub(super) enum News {
    /// The device at this address shares memory. `made_here` states whether this device created the rings.
    Arrived { id: u64, address: IpAddr, mapping: Mapping, made_here: bool },
    /// The device at this address does not share memory, for the reason `why`. `None` means that no socket listens at
    /// the name of that device, or that the device has not answered an earlier invitation.
    Absent { address: IpAddr, why: Option<String> },
    /// The peer has closed or died.
    Gone { id: u64 },
    /// The thread has ended, since the program has closed the thread's descriptors. From now on, the device shares
    /// memory with no peer.
    Ended,
}

/// Requests of a link to the thread.
#[derive(Debug)]
enum Wish {
    Invite(IpAddr),
    Challenged { from: IpAddr, invited: Nonce, asked: Nonce },
    Leave { id: u64 },
}

#[derive(Debug)]
struct MeetingState {
    kick: OwnEvent,
    stop: AtomicBool,
    has_news: AtomicBool,
    news: Mutex<Vec<News>>,
    wishes: Mutex<Vec<Wish>>,
    /// Nonces of the invitations that no challenge has answered yet. Challenges with other nonces are ignored, since
    /// any process may send them.
    awaited: Mutex<FxHashSet<Nonce>>,
}

/// Handle of the thread for its link.
#[derive(Debug)]
pub(super) struct Meeting {
    shared: Arc<MeetingState>,
    thread: Option<JoinHandle<()>>,
}

impl Meeting {
    /// Starts the thread of the device at `local`, whose UDP socket is `udp`. Invited devices must answer within
    /// `answer_within`.
    ///
    /// If `must_host` is false and the thread cannot listen at the device's name, the second returned value is the
    /// reason. Then the thread still invites devices, and tries again later to listen at the name.
    pub(super) fn start(
        local: SocketAddr,
        udp: OwnProcess,
        answer_within: Duration,
        must_host: bool,
    ) -> io::Result<(Self, Option<io::Error>)> {
        let shared = Arc::new(MeetingState {
            kick: OwnEvent::new()?,
            stop: AtomicBool::new(false),
            has_news: AtomicBool::new(false),
            news: Mutex::default(),
            wishes: Mutex::default(),
            awaited: Mutex::default(),
        });
        let mut tries = if must_host { HOST_TRIES } else { 1 };
        let (hosted, refused) = loop {
            tries -= 1;
            match host_or_beside(local) {
                Ok(hosted) => break (Some(hosted), None),
                // The name may still belong to an earlier device at this address whose process is about to end. A child
                // that was just forked may also still hold the name.
                Err(error) if tries > 0 && error.kind() == io::ErrorKind::AddrInUse => std::thread::sleep(HOST_NAP),
                Err(error) if must_host && error.kind() == io::ErrorKind::AddrInUse => {
                    let why = format!("another process has the name by which devices find {local}");
                    return Err(io::Error::new(error.kind(), why));
                }
                Err(error) if must_host => return Err(error),
                Err(error) => break (None, Some(error)),
            }
        };
        let is_beside = hosted.as_ref().is_some_and(|(_, is_beside)| *is_beside);
        let host = Host {
            shared: Arc::clone(&shared),
            local,
            udp,
            answer_within,
            paused_until: refused.is_some().then(|| Instant::now() + HOST_AGAIN),
            listener: hosted.map(|(listener, _)| listener),
            plain_again: is_beside.then(|| Instant::now() + HOST_AGAIN),
            peers: Vec::new(),
            next_id: 0,
        };
        let thread = spawn_without_signals(crate::MEETING_THREAD, move || host.run())?;
        Ok((Self { shared, thread: Some(thread) }, refused))
    }

    /// Returns the thread's reports since the last call.
    #[inline]
    pub(super) fn news(&self) -> Vec<News> {
        if !self.shared.has_news.load(Ordering::Relaxed) {
            return Vec::new();
        }
        self.shared.has_news.store(false, Ordering::Relaxed);
        std::mem::take(&mut lock(&self.shared.news))
    }

    /// Requests shared memory with the device at this address. The thread reports the result.
    pub(super) fn invite(&self, address: IpAddr) {
        self.wish(Wish::Invite(address));
    }

    /// Passes a challenge that arrived over UDP to the thread. Ignores the challenge if its nonce belongs to no
    /// invitation.
    pub(super) fn challenged(&self, from: IpAddr, invited: Nonce, asked: Nonce) {
        if lock(&self.shared.awaited).remove(&invited) {
            self.wish(Wish::Challenged { from, invited, asked });
        }
    }

    /// Ends the connection with a peer.
    pub(super) fn leave(&self, id: u64) {
        self.wish(Wish::Leave { id });
    }

    fn wish(&self, wish: Wish) {
        lock(&self.shared.wishes).push(wish);
        self.shared.kick.signal();
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        let is_told = self.shared.kick.is_intact() && self.shared.kick.signal();
        if !is_told {
            // The descriptor number may belong to a file of the program by now. Do not close that file.
            std::mem::forget(Arc::clone(&self.shared));
        }
        // A thread that was not signalled never ends, so do not join it.
        if let Some(thread) = self.thread.take().filter(|_| is_told) {
            // The panic handler has printed a panic of the thread.
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().ignore_poison()
}

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
    /// A guest that has not returned the nonce of the challenge sent to its address.
    Asked { address: IpAddr, mapping: Mapping, nonce: Nonce },
    /// A device that this device has invited. `is_welcome` states whether the invited device has accepted. Once
    /// `is_late` is true, packets no longer wait for its answer. The answer may still come, so the device is invited
    /// again only if it has accepted.
    Invited { address: IpAddr, mapping: Mapping, nonce: Nonce, is_welcome: bool, is_late: bool },
    /// The peer shares memory with this device.
    Sharing { id: u64 },
    /// The exchange has ended, and `Host::tidy` will remove the peer.
    Over,
}

#[derive(Debug)]
struct Peer {
    connection: OwnProcess,
    until: Option<Instant>,
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
}

impl Host {
    fn run(mut self) {
        while !self.shared.stop.load(Ordering::Acquire) {
            // `None` means that the program has closed the thread's descriptors, as daemons do.
            let Some((is_called, ready)) = self.wait() else { return self.note(News::Ended) };
            for index in ready {
                self.listen_to(index);
            }
            let wishes = std::mem::take(&mut *lock(&self.shared.wishes));
            for wish in wishes {
                self.grant(wish);
            }
            if is_called {
                self.accept();
            }
            self.tidy();
        }
    }

    /// Waits for the next event. Returns whether a guest has connected, and the indices of the peers that have sent a
    /// message. Returns `None` if the program has closed the thread's descriptors.
    fn wait(&self) -> Option<(bool, Vec<usize>)> {
        let until =
            self.peers.iter().filter_map(|peer| peer.until).chain(self.paused_until).chain(self.plain_again).min();
        let timeout = until.map_or(PollTimeout::NONE, |until| {
            let left = until.saturating_duration_since(Instant::now()).as_millis() as u64 + 1;
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
        });
        let watched = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = vec![watched(self.shared.kick.as_fd())];
        fds.extend(self.peers.iter().map(|peer| watched(peer.connection.as_fd())));
        // Without room, guests wait in the queue of the listener. If the queue is full, the kernel refuses them.
        let takes_guests = self.paused_until.is_none() && self.has_room();
        fds.extend(self.listener.as_ref().filter(|_| takes_guests).map(|listener| watched(listener.as_fd())));
        match poll(&mut fds, timeout) {
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

    /// Returns whether a further guest is allowed: peers, guests and unread reports must be below their limits.
    fn has_room(&self) -> bool {
        let is_guest = |peer: &&Peer| matches!(peer.stage, Stage::Guest | Stage::Asked { .. });
        self.peers.len() < peers_max()
            && self.peers.iter().filter(is_guest).count() < GUESTS_MAX
            && lock(&self.shared.news).len() < PEERS_MAX
    }

    fn note(&self, news: News) {
        lock(&self.shared.news).push(news);
        self.shared.has_news.store(true, Ordering::Release);
    }

    fn tell(&self, news: News) {
        self.note(news);
        // The device's driver may be asleep. This datagram to its own socket wakes it.
        if self.udp.is_intact() {
            send_alone(self.udp.as_fd(), self.local, self.local.ip(), &Datagram::Wake.to_bytes());
        }
    }

    fn accept(&mut self) {
        // Guests of other users are disconnected at once, so they do not count as guests. Such guests may connect again
        // and again, so the loop is limited.
        for _ in 0..GUESTS_MAX {
            if !self.has_room() {
                break;
            }
            let Some(listener) = &self.listener else { return };
            let opening = Opening::begin();
            let accepted = listener.expect_intact().and_then(|()| sys::accept(listener.as_fd()));
            let accepted = accepted.map(|connection| OwnProcess::new(connection, &opening));
            drop(opening);
            match accepted.map_err(|error| nix::Error::try_from(error).unwrap_or(nix::Error::UnknownErrno)) {
                Ok(connection) => {
                    if check_user(&connection).is_ok() {
                        let until = Some(Instant::now() + GUEST_WITHIN);
                        self.peers.push(Peer { connection, until, stage: Stage::Guest });
                    }
                }
                Err(nix::Error::EAGAIN | nix::Error::EINTR | nix::Error::ECONNABORTED) => return,
                Err(nix::Error::EBADF | nix::Error::ENOTSOCK | nix::Error::EINVAL | nix::Error::EOPNOTSUPP) => {
                    // The program has closed the listener's descriptor.
                    self.listener = None;
                    self.paused_until = Some(Instant::now() + HOST_AGAIN);
                    return;
                }
                Err(_) => {
                    // No descriptor or no memory is left. Without a pause, the waiting guests would keep this thread
                    // busy.
                    self.paused_until = Some(Instant::now() + PAUSE);
                    return;
                }
            }
        }
        if self.has_room() {
            return;
        }
        let soon = Instant::now() + CROWDED_WITHIN;
        for peer in self.peers.iter_mut().filter(|peer| matches!(peer.stage, Stage::Guest)) {
            peer.until = peer.until.map(|until| until.min(soon));
        }
    }

    fn grant(&mut self, wish: Wish) {
        match wish {
            Wish::Invite(address) => self.invite_unless_invited(address),
            Wish::Challenged { from, invited, asked } => {
                let index = self.peers.iter().position(|peer| {
                    matches!(peer.stage, Stage::Invited { address, nonce, .. } if address == from && nonce == invited)
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
                self.peers.retain(|peer| !matches!(peer.stage, Stage::Sharing { id: other } if other == id));
            }
        }
    }

    /// Invites the device at the address `guest`, unless an earlier invitation may still be answered. Reports the
    /// device as absent if packets must not wait for an answer.
    fn invite_unless_invited(&mut self, guest: IpAddr) {
        let is_it = |peer: &Peer| matches!(peer.stage, Stage::Invited { address, .. } if address == guest);
        if let Some(index) = self.peers.iter().position(is_it) {
            match self.peers[index].stage {
                Stage::Invited { is_late: false, .. } => return,
                // The device's process may be stopped. When it continues, it still finds the invitation.
                Stage::Invited { is_welcome: false, .. } => {
                    return self.tell(News::Absent { address: guest, why: None });
                }
                // The device has answered, so its challenge was probably lost: it is a datagram. Begin again, since the
                // device sends one challenge per invitation.
                _ => self.fail(index, "the challenge of the device did not arrive"),
            }
        }
        match self.invite(guest) {
            Ok(Some(peer)) => self.peers.push(peer),
            Ok(None) => self.tell(News::Absent { address: guest, why: None }),
            Err(why) => self.tell(News::Absent { address: guest, why: Some(why) }),
        }
    }

    /// Connects to the device at this address and sends the invitation. Returns `None` if no socket listens at the
    /// device's name.
    fn invite(&self, address: IpAddr) -> Result<Option<Peer>, String> {
        let Some(connection) = call(address, self.local.port())? else { return Ok(None) };
        let most = peers_max();
        if self.peers.len() >= most {
            return Err(format!("too many devices (maximum {most}: {PEERS_MAX}, or half of the descriptors allowed)"));
        }
        let (mapping, file) = Mapping::create().map_err(|error| format!("no memory to share: {error}"))?;
        let nonce = random_nonce().map_err(|error| format!("no randomness: {error}"))?;
        let hello = Message::Hello { version: VERSION, address: self.local.ip(), port: self.local.port(), nonce };
        // Store the nonce before sending the invitation: the challenge may arrive before `send` returns.
        lock(&self.shared.awaited).insert(nonce);
        send(&connection, hello, Some(file.as_raw_fd())).map_err(|error| {
            lock(&self.shared.awaited).remove(&nonce);
            format!("the invitation could not be sent: {error}")
        })?;
        let stage = Stage::Invited { address, mapping, nonce, is_welcome: false, is_late: false };
        let until = Some(Instant::now() + self.answer_within);
        Ok(Some(Peer { connection, until, stage }))
    }

    /// Handles the next message of a peer.
    fn listen_to(&mut self, index: usize) {
        let peer = &mut self.peers[index];
        match (hear(&peer.connection), &mut peer.stage) {
            (Heard::Nothing, _) => {}
            (Heard::Said(Message::Hello { version, address, port, nonce }, Some(file)), Stage::Guest) => {
                let accepted = version == VERSION && port == self.local.port() && reaches(self.local.ip(), address);
                let mapping = Mapping::adopt(file.as_fd()).ok().filter(|_| accepted);
                let welcome = Message::Welcome { version: VERSION, accepted: mapping.is_some() };
                let (Some(mapping), Ok(asked), Ok(())) =
                    (mapping, random_nonce(), send(&peer.connection, welcome, None))
                else {
                    return self.fail(index, "");
                };
                peer.stage = Stage::Asked { address, mapping, nonce: asked };
                peer.until = Some(Instant::now() + GUEST_WITHIN);
                let challenge = Datagram::Challenge { invited: nonce, asked };
                if !send_alone(self.udp.as_fd(), self.local, address, &challenge.to_bytes()) {
                    self.fail(index, ""); // the guest sees the end, and invites this device again
                }
            }
            (Heard::Said(Message::Proof { nonce }, None), Stage::Asked { nonce: asked, .. }) if nonce == *asked => {
                self.share(index);
            }
            (Heard::Said(Message::Welcome { version, accepted }, None), Stage::Invited { is_welcome, .. })
                if !*is_welcome =>
            {
                if accepted && version == VERSION {
                    *is_welcome = true;
                } else if version == VERSION {
                    self.fail(index, "the device rejected the invitation");
                } else {
                    self.fail(
                        index,
                        &format!("the device uses version {version} of shared memory, but this process uses {VERSION}"),
                    );
                }
            }
            _ => self.fail(index, "the device ended the connection"),
        }
    }

    /// Reports that the peer at `index` shares memory, after both devices have proved their addresses.
    fn share(&mut self, index: usize) {
        let id = self.next_id;
        self.next_id += 1;
        let peer = &mut self.peers[index];
        peer.until = None;
        let (address, mapping, made_here) = match std::mem::replace(&mut peer.stage, Stage::Sharing { id }) {
            Stage::Asked { address, mapping, .. } => (address, mapping, false),
            Stage::Invited { address, mapping, .. } => (address, mapping, true),
            Stage::Guest | Stage::Sharing { .. } | Stage::Over => return self.fail(index, ""),
        };
        self.tell(News::Arrived { id, address, mapping, made_here });
    }

    /// Ends the exchange with a peer, and reports the end to the link. [`tidy`](Self::tidy) removes the peer later, so
    /// that the indices of other peers stay valid.
    fn fail(&mut self, index: usize, why: &str) {
        match std::mem::replace(&mut self.peers[index].stage, Stage::Over) {
            Stage::Invited { address, nonce, is_late, .. } => {
                lock(&self.shared.awaited).remove(&nonce);
                if !is_late {
                    self.tell(News::Absent { address, why: Some(why.to_owned()) });
                }
            }
            Stage::Sharing { id } => self.tell(News::Gone { id }),
            Stage::Guest | Stage::Asked { .. } | Stage::Over => {}
        }
    }

    /// Ends the exchange with guests that are late, reports late invited devices as absent, and removes all peers whose
    /// exchange has ended. Also accepts guests again after a pause, and tries again to listen at the name.
    fn tidy(&mut self) {
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
            let Stage::Invited { address, is_late, .. } = &mut peer.stage else {
                self.fail(index, "the device did not answer in time");
                continue;
            };
            // The peer's process may be stopped. When it continues, it still finds the invitation.
            (*is_late, peer.until) = (true, None);
            let why = Some("the device did not answer in time".to_owned());
            let news = News::Absent { address: *address, why };
            self.tell(news);
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
                self.accept();
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
