//! Discovery between devices of one machine: a thread of each device that hosts a name and invites others.
//!
//! The name is an abstract Unix socket, made of the device's address and port and of the network namespace, so the
//! name ends with its process. `message.rs` defines the messages of the two sides. Nothing here is on the data path:
//! a link asks for a peer once, before its first packet to it, and receives the result as [`News`].

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
use super::own_process::{Opening, OwnProcess};
use super::sys::{self, Mapping};
use crate::guard::spawn_without_signals;
use crate::own_event::OwnEvent;
use crate::udp::send_alone;

/// How long a guest may take for each step.
const GUEST_WITHIN: Duration = Duration::from_secs(1);

/// Maximum number of peers at a time, including peers that are not accepted yet. Each takes a descriptor, of which
/// the program keeps half.
const PEERS_MAX: usize = 4096;

/// Maximum number of guests that have not proved their address. Further guests wait in the queue of the listener.
const GUESTS_MAX: usize = 64;

/// How long a guest may take once that maximum is reached: silent guests must not keep out others.
const CROWDED_WITHIN: Duration = Duration::from_millis(100);

/// How long the thread pauses an operation that the operating system refuses for now, such as accepting guests
/// without descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// How long the thread waits before it tries again to host the name.
const HOST_AGAIN: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 1000 });

/// Number of tries for a name that is mandatory, and the time between two tries.
const HOST_TRIES: u32 = 10;
const HOST_NAP: Duration = Duration::from_millis(10);

/// Reports of the thread to its link.
#[derive(Debug)]
pub(super) enum News {
    /// Memory is shared with the device that has this address. `made_here` states whether this side created the
    /// rings.
    Arrived { id: u64, address: IpAddr, mapping: Mapping, made_here: bool },
    /// No memory is shared with this device, and the reason, unless no device hosts that name.
    Absent { address: IpAddr, why: Option<String> },
    /// The device at the other end closed, or died.
    Gone { id: u64 },
    /// The thread has ended, since the program has closed its descriptors. No memory will be shared any more.
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
    /// Nonces of invited devices that have sent no challenge. Any process may send a challenge with another nonce.
    awaited: Mutex<FxHashSet<Nonce>>,
}

/// Handle of the thread for its link.
#[derive(Debug)]
pub(super) struct Meeting {
    shared: Arc<MeetingState>,
    thread: Option<JoinHandle<()>>,
}

impl Meeting {
    /// Hosts the name of the device at `local`, which has the UDP socket `udp`, and invites others. Invited devices
    /// have to answer within `answer_within`.
    ///
    /// Without `must_host`, the device may lack its name. Then the second value is the reason. The thread invites
    /// others nevertheless, and tries again to host the name.
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
                // The last device of this address may be about to end. A program that its process has just started may
                // also still hold the name.
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

    /// Returns the reports since the last call.
    #[inline]
    pub(super) fn news(&self) -> Vec<News> {
        if !self.shared.has_news.load(Ordering::Relaxed) {
            return Vec::new();
        }
        self.shared.has_news.store(false, Ordering::Relaxed);
        std::mem::take(&mut lock(&self.shared.news))
    }

    /// Asks for memory shared with the device that has this address. A report will follow.
    pub(super) fn invite(&self, address: IpAddr) {
        self.wish(Wish::Invite(address));
    }

    /// Passes on a challenge that arrived in UDP. A challenge of a device that was not invited costs no more than
    /// this call.
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
            // The number may belong to another file by now, which this library does not close.
            std::mem::forget(Arc::clone(&self.shared));
        }
        // The join of a thread that received no signal to stop would never end.
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

/// Progress of the exchange with a peer.
#[derive(Debug)]
enum Stage {
    /// A guest that has sent nothing.
    Guest,
    /// A guest that was asked to prove its address.
    Asked { address: IpAddr, mapping: Mapping, nonce: Nonce },
    /// A host that was invited. It has answered once `is_welcome` is true. Once `is_late` is true, no packet waits
    /// for it any more. It may still answer, so it is not invited a second time meanwhile.
    Invited { address: IpAddr, mapping: Mapping, nonce: Nonce, is_welcome: bool, is_late: bool },
    /// Memory is shared.
    Sharing { id: u64 },
    /// The peer is about to be removed.
    Over,
}

#[derive(Debug)]
struct Peer {
    connection: OwnProcess,
    until: Option<Instant>,
    stage: Stage,
}

/// State of the thread. Fields are dropped in this order: the name is free before the address is, which the next
/// device may use at once.
struct Host {
    /// `None` while the name is unavailable.
    listener: Option<OwnProcess>,
    /// Time to try the plain name again. `Some` while another user has it and the listener has a name beside it.
    plain_again: Option<Instant>,
    /// End of the pause of the listener, or, without one, time to try again to host the name.
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
            // `None`: the program has closed descriptors that it did not open, as daemons do.
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

    /// Waits for the next event. Returns whether a guest connects, and which peers have sent a message. Returns
    /// `None` if the program has closed the descriptors.
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
        // Further guests wait in the queue of the listener, or the kernel refuses them.
        let takes_guests = self.paused_until.is_none() && self.has_room();
        fds.extend(self.listener.as_ref().filter(|_| takes_guests).map(|listener| watched(listener.as_fd())));
        match poll(&mut fds, timeout) {
            Ok(_) => {}
            Err(nix::Error::EINTR) => return Some((false, Vec::new())),
            Err(_) => {
                // The process may have fewer descriptors by now than these, or no memory is left. Check everything,
                // but slowly.
                std::thread::sleep(PAUSE);
                return Some((takes_guests, (0..self.peers.len()).collect()));
            }
        }
        let ready = |fd: &PollFd<'_>| fd.any().unwrap_or(false);
        // The number may belong to another file by now, which only the program may read.
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

    /// Returns whether there is room for more peers and guests. The program has other uses for descriptors, and the
    /// device has to read earlier reports first.
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
        // The device may sleep.
        if self.udp.is_intact() {
            send_alone(self.udp.as_fd(), self.local, self.local.ip(), &Datagram::Wake.to_bytes());
        }
    }

    fn accept(&mut self) {
        // Guests of other users take no place, but may connect again and again. The limit gives other peers their
        // turn.
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
                    // The program closed the listener.
                    self.listener = None;
                    self.paused_until = Some(Instant::now() + HOST_AGAIN);
                    return;
                }
                Err(_) => {
                    // No descriptors or no memory are left. The waiting guests would keep this thread busy.
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
            Wish::Invite(address) if self.is_invited(address, false) => {}
            // The answer may still come, but no packet has to wait for it.
            Wish::Invite(address) if self.is_invited(address, true) => self.tell(News::Absent { address, why: None }),
            Wish::Invite(address) => match self.invite(address) {
                Ok(Some(peer)) => self.peers.push(peer),
                Ok(None) => self.tell(News::Absent { address, why: None }),
                Err(why) => self.tell(News::Absent { address, why: Some(why) }),
            },
            Wish::Challenged { from, invited, asked } => {
                let index = self.peers.iter().position(|peer| {
                    matches!(peer.stage, Stage::Invited { address, nonce, .. } if address == from && nonce == invited)
                });
                let Some(index) = index else { return };
                // The host sent its welcome before.
                self.listen_to(index);
                let peer = &self.peers[index];
                if !matches!(peer.stage, Stage::Invited { is_welcome: true, .. }) {
                    return self.fail(index, "it sent a challenge before its welcome");
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

    /// Returns whether the device at this address was invited and has neither accepted nor refused. `late` selects
    /// devices that are late or not late with their answer.
    fn is_invited(&self, guest: IpAddr, late: bool) -> bool {
        let is_it = |stage: &Stage| matches!(*stage, Stage::Invited { address, is_late, .. } if address == guest && is_late == late);
        self.peers.iter().any(|peer| is_it(&peer.stage))
    }

    /// Connects to a name. Returns `None` if no device hosts it.
    fn invite(&self, address: IpAddr) -> Result<Option<Peer>, String> {
        let Some(connection) = call(address, self.local.port())? else { return Ok(None) };
        let most = peers_max();
        if self.peers.len() >= most {
            return Err(format!("too many devices (maximum {most}: {PEERS_MAX}, or half of the descriptors allowed)"));
        }
        let (mapping, file) = Mapping::create().map_err(|error| format!("no memory to share: {error}"))?;
        let nonce = random_nonce().map_err(|error| format!("no randomness: {error}"))?;
        let hello = Message::Hello { version: VERSION, address: self.local.ip(), port: self.local.port(), nonce };
        // Stored before the invitation: the challenge may arrive before the next line runs.
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
                send_alone(self.udp.as_fd(), self.local, address, &challenge.to_bytes());
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
                    self.fail(index, "it refused");
                } else {
                    self.fail(index, &format!("it has version {version} of shared memory, this process {VERSION}"));
                }
            }
            _ => self.fail(index, "it ended the connection"),
        }
    }

    /// Reports shared memory, after both sides have proved their addresses.
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

    /// Gives up a peer. [`tidy`](Self::tidy) removes it later, so that the indices of other peers stay valid.
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

    /// Gives up peers that took too long, and closes the connections of all peers that were given up.
    fn tidy(&mut self) {
        let now = Instant::now();
        let is_late = |peer: &Peer| peer.until.is_some_and(|until| until <= now);
        for index in 0..self.peers.len() {
            if !is_late(&self.peers[index]) {
                continue;
            }
            // The peer's message may have arrived while this thread had no processor.
            self.listen_to(index);
            let peer = &mut self.peers[index];
            if !is_late(peer) {
                continue;
            }
            let Stage::Invited { address, is_late, .. } = &mut peer.stage else {
                self.fail(index, "it did not answer in time");
                continue;
            };
            // The peer's process may be stopped. It still finds the invitation when it continues.
            (*is_late, peer.until) = (true, None);
            let why = Some("it did not answer in time".to_owned());
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
                // Guests that have connected already are served while there is room.
                self.accept();
                (self.listener, self.plain_again) = (Some(listener), None);
            }
        }
    }
}

/// Returns whether this can be the address of a device that the device at `own` reaches. A group is none: all its
/// packets would go to one guest.
fn reaches(own: IpAddr, address: IpAddr) -> bool {
    address.is_ipv4() == own.is_ipv4()
        && !address.is_unspecified()
        && !address.is_multicast()
        && address != Ipv4Addr::BROADCAST
}

/// Returns the maximum number of peers that this process may have now.
fn peers_max() -> usize {
    let descriptors = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
    PEERS_MAX.min(usize::try_from(descriptors / 2).unwrap_or(usize::MAX))
}

/// Returns a device's name without a thread that serves it, as if its process were stopped.
#[cfg(test)]
pub(super) fn silent_host(local: SocketAddr) -> OwnProcess {
    host(local).unwrap()
}

#[cfg(test)]
mod tests;
