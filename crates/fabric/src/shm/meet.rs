//! How devices of one machine find each other: a thread of each device that hosts a name and invites others.
//!
//! The name is an abstract Unix socket, made of the device's address and port and of the network namespace, so it goes
//! with its process. `message.rs` has what the two sides say. Nothing here is on the data path: a link asks for a peer
//! once, before its first packet to it, and hears what came of it.

mod connection;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

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

/// Peers at a time, those included that are not accepted yet. Each takes a descriptor, of which the program keeps half.
const PEERS_MAX: usize = 4096;

/// Guests at a time that have not proved their address. More wait in the queue of the listener.
const GUESTS_MAX: usize = 64;

/// How long a guest may take once there are so many: those who say nothing must not keep out those who do.
const CROWDED_WITHIN: Duration = Duration::from_millis(100);

/// How long the thread leaves alone what the operating system refuses for now: guests when there are no descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// How long it waits before it tries again to host the name.
const HOST_AGAIN: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 1000 });

/// How often a name is tried that must be had, and how long it is waited between two tries.
const HOST_TRIES: u32 = 10;
const HOST_NAP: Duration = Duration::from_millis(10);

/// What a link hears.
#[derive(Debug)]
pub(super) enum News {
    /// Memory is shared with the device that has this address. The inviter has the rings as their maker has.
    Arrived { id: u64, address: IpAddr, mapping: Mapping, made_here: bool },
    /// It is not, and why, unless nobody hosts that name.
    Absent { address: IpAddr, why: Option<String> },
    /// The device at the other end closed, or died.
    Gone { id: u64 },
    /// The thread has ended, since the program has closed its descriptors: no memory will be shared any more.
    Ended,
}

/// What a link asks for.
#[derive(Debug)]
enum Wish {
    Invite(IpAddr),
    Challenged { from: IpAddr, invited: Nonce, asked: Nonce },
    Leave { id: u64 },
}

#[derive(Debug)]
struct Shared {
    kick: OwnEvent,
    stop: AtomicBool,
    has_news: AtomicBool,
    news: Mutex<Vec<News>>,
    wishes: Mutex<Vec<Wish>>,
    /// Nonces of those who were invited and have sent no challenge: anybody may send one with another nonce.
    awaited: Mutex<FxHashSet<Nonce>>,
}

/// The thread, as its link sees it.
#[derive(Debug)]
pub(super) struct Meeting {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Meeting {
    /// Hosts the name of the device at `local`, whose UDP socket this is, and invites others.
    /// Devices that are invited have to answer within `answer_within`.
    ///
    /// Without `must_host` the device may be without its name: the second value says why it has none. The thread invites
    /// others all the same, and tries for the name again.
    pub(super) fn start(
        local: SocketAddr,
        udp: OwnProcess,
        answer_within: Duration,
        must_host: bool,
    ) -> io::Result<(Self, Option<io::Error>)> {
        let shared = Arc::new(Shared {
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
                // The last device of this address may be about to end, or a program that its process has just started.
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

    /// What happened since the last call.
    #[inline]
    pub(super) fn news(&self) -> Vec<News> {
        if !self.shared.has_news.load(Ordering::Relaxed) {
            return Vec::new();
        }
        self.shared.has_news.store(false, Ordering::Relaxed);
        std::mem::take(&mut lock(&self.shared.news))
    }

    /// Asks for memory shared with the device that has this address. News will tell.
    pub(super) fn invite(&self, address: IpAddr) {
        self.wish(Wish::Invite(address));
    }

    /// A challenge arrived in UDP. That of somebody who was not invited costs no more than this call.
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
            // The number may be that of another file by now, which is not closed.
            std::mem::forget(Arc::clone(&self.shared));
        }
        // A thread that cannot be told would be waited for without end.
        if let Some(thread) = self.thread.take().filter(|_| is_told) {
            // A panic of the thread was printed by the panic handler.
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn random_nonce() -> io::Result<Nonce> {
    let mut nonce = Nonce::default();
    getrandom::fill(&mut nonce).map_err(io::Error::other)?;
    Ok(nonce)
}

/// How far one is with a peer.
#[derive(Debug)]
enum Stage {
    /// A guest that has said nothing.
    Guest,
    /// A guest that was asked to prove its address.
    Asked { address: IpAddr, mapping: Mapping, nonce: Nonce },
    /// A host that was invited. It has answered, once `is_welcome`. Once `is_late` it is not waited for any more, and
    /// may answer all the same: it is not asked a second time meanwhile.
    Invited { address: IpAddr, mapping: Mapping, nonce: Nonce, is_welcome: bool, is_late: bool },
    /// Memory is shared.
    Sharing { id: u64 },
    /// It is let go of.
    Over,
}

#[derive(Debug)]
struct Peer {
    connection: OwnProcess,
    until: Option<Instant>,
    stage: Stage,
}

/// The thread's own. Fields are dropped in this order: the name is free before the address is, which the next device may
/// take at once.
struct Host {
    /// `None` while the name cannot be had.
    listener: Option<OwnProcess>,
    /// Time to try the plain name again. `Some` while another user has it and the listener has a name beside it.
    plain_again: Option<Instant>,
    /// The listener is left alone until then, or the name is, which is tried again then.
    paused_until: Option<Instant>,
    peers: Vec<Peer>,
    udp: OwnProcess,
    shared: Arc<Shared>,
    local: SocketAddr,
    answer_within: Duration,
    next_id: u64,
}

impl Host {
    fn run(mut self) {
        while !self.shared.stop.load(Ordering::Acquire) {
            // The program has closed descriptors that it did not open, as daemons do.
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

    /// Waits for whatever is next: whether somebody calls, and which peers have something to say. `None` if the program
    /// has closed the descriptors.
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
        // Whoever finds no place waits in the queue of the listener, or is refused by the kernel.
        let takes_guests = self.paused_until.is_none() && self.has_room();
        fds.extend(self.listener.as_ref().filter(|_| takes_guests).map(|listener| watched(listener.as_fd())));
        match poll(&mut fds, timeout) {
            Ok(_) => {}
            Err(nix::Error::EINTR) => return Some((false, Vec::new())),
            Err(_) => {
                // More descriptors than this process may have by now, or no memory: everything is looked at, but slowly.
                std::thread::sleep(PAUSE);
                return Some((takes_guests, (0..self.peers.len()).collect()));
            }
        }
        let ready = |fd: &PollFd<'_>| fd.any().unwrap_or(false);
        // The number may be that of another file by now, which is the program's to read.
        if ready(&fds[0]) {
            if !self.shared.kick.is_intact() {
                return None;
            }
            self.shared.kick.reset();
        }
        let (peers, listener) = fds[1..].split_at(self.peers.len());
        let peers = peers.iter().enumerate().filter(|(_, fd)| ready(fd)).map(|(index, _)| index);
        Some((listener.iter().any(ready), peers.collect()))
    }

    /// May there be more peers, and guests? The program has other uses for descriptors, and the device has to take note
    /// of those before.
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
        send_alone(self.udp.as_fd(), self.local, self.local.ip(), &Datagram::Wake.to_bytes());
    }

    fn accept(&mut self) {
        // Those of other users take no place, and come again and again if they like: others have their turn.
        for _ in 0..GUESTS_MAX {
            if !self.has_room() {
                break;
            }
            let Some(listener) = &self.listener else { return };
            let opening = Opening::begin();
            let accepted = sys::accept(listener.as_fd()).map(|connection| OwnProcess::new(connection, &opening));
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
                    // The program closed it.
                    self.listener = None;
                    self.paused_until = Some(Instant::now() + HOST_AGAIN);
                    return;
                }
                Err(_) => {
                    // There are no descriptors, or no memory: whoever calls would keep this thread busy.
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
            // Its answer may still come, but nobody has to wait for it.
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
                // The welcome was sent before.
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

    /// Was the device at this address invited, has it not said yes or no, and is it late with that?
    fn is_invited(&self, guest: IpAddr, late: bool) -> bool {
        let is_it = |stage: &Stage| matches!(*stage, Stage::Invited { address, is_late, .. } if address == guest && is_late == late);
        self.peers.iter().any(|peer| is_it(&peer.stage))
    }

    /// Connects to a name. `None` if nobody hosts it.
    fn invite(&self, address: IpAddr) -> Result<Option<Peer>, String> {
        let Some(connection) = call(address, self.local.port())? else { return Ok(None) };
        let most = peers_max();
        if self.peers.len() >= most {
            return Err(format!("too many devices (maximum {most}: {PEERS_MAX}, or half of the descriptors allowed)"));
        }
        let (mapping, file) = Mapping::create().map_err(|error| format!("no memory to share: {error}"))?;
        let nonce = random_nonce().map_err(|error| format!("no randomness: {error}"))?;
        let hello = Message::Hello { version: VERSION, address: self.local.ip(), port: self.local.port(), nonce };
        // Before it is invited: the challenge may be here before the next line.
        lock(&self.shared.awaited).insert(nonce);
        send(&connection, hello, Some(file.as_raw_fd())).map_err(|error| {
            lock(&self.shared.awaited).remove(&nonce);
            format!("the invitation could not be sent: {error}")
        })?;
        let stage = Stage::Invited { address, mapping, nonce, is_welcome: false, is_late: false };
        let until = Some(Instant::now() + self.answer_within);
        Ok(Some(Peer { connection, until, stage }))
    }

    /// Takes what a peer says.
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

    /// Both have proved their addresses.
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

    /// Lets go of a peer: [`tidy`](Self::tidy) removes it, so that the places of others stay as they are.
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

    /// Lets go of whoever took too long, and closes the connections of all that were let go of.
    fn tidy(&mut self) {
        let now = Instant::now();
        let is_late = |peer: &Peer| peer.until.is_some_and(|until| until <= now);
        for index in 0..self.peers.len() {
            if !is_late(&self.peers[index]) {
                continue;
            }
            // What it said may have come while this thread had no processor.
            self.listen_to(index);
            let peer = &mut self.peers[index];
            if !is_late(peer) {
                continue;
            }
            let Stage::Invited { address, is_late, .. } = &mut peer.stage else {
                self.fail(index, "it did not answer in time");
                continue;
            };
            // Its process may be stopped: it still finds the invitation when it goes on.
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
                // Guests that have called already are served while there is room.
                self.accept();
                (self.listener, self.plain_again) = (Some(listener), None);
            }
        }
    }
}

/// Can this be the address of a device that the one with its own address reaches? A group's packets would all go to
/// one guest.
fn reaches(own: IpAddr, address: IpAddr) -> bool {
    address.is_ipv4() == own.is_ipv4()
        && !address.is_unspecified()
        && !address.is_multicast()
        && address != Ipv4Addr::BROADCAST
}

/// How many peers this process may have just now.
fn peers_max() -> usize {
    let descriptors = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
    PEERS_MAX.min(usize::try_from(descriptors / 2).unwrap_or(usize::MAX))
}

/// A device's name with nobody behind it, as if its process were stopped.
#[cfg(test)]
pub(super) fn silent_host(local: SocketAddr) -> OwnProcess {
    host(local).unwrap()
}

#[cfg(test)]
mod tests;
