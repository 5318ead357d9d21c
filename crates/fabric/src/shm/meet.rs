//! How devices of one machine find each other: a thread of each device that hosts a name and invites others.
//!
//! The name is an abstract Unix socket, made of the device's address and port and of the network namespace, so it goes
//! with its process. `message.rs` has what the two sides say. Nothing here is on the data path: a link asks for a peer
//! once, before its first packet to it, and hears what came of it.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::cmsg_space;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr, accept4, bind,
    connect, getsockopt, listen, recvmsg, sendmsg, socket, sockopt::PeerCredentials,
};
use nix::unistd::geteuid;

use super::message::{Datagram, MAX_BYTES, Message, Nonce, VERSION};
use super::sys::{Mapping, OwnProcess, own_received};
use crate::udp::{send_alone, signal};

/// How long a device may take to answer an invitation. Then its packets go over UDP.
/// Tests of links are to see what memory carries, be the machine busy.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_millis(if cfg!(test) { 20_000 } else { 20 });

/// How long a guest may take for each step.
const GUEST_WITHIN: Duration = Duration::from_secs(1);

/// Peers at a time, those included that are not accepted yet.
const PEERS_MAX: usize = 4096;

/// What a user reads as that the user namespace does not map (`/proc/sys/kernel/overflowuid` as the kernel starts).
const OVERFLOW_UID: u32 = 65_534;

/// What a link hears.
#[derive(Debug)]
pub(super) enum News {
    /// Memory is shared with the device that has this address. The inviter has the rings as their maker has.
    Arrived { id: u64, address: IpAddr, mapping: Mapping, made_here: bool },
    /// It is not, and why, unless nobody hosts that name.
    Absent { address: IpAddr, why: Option<String> },
    /// The device at the other end closed, or died.
    Gone { id: u64 },
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
    kick: EventFd,
    stop: AtomicBool,
    has_news: AtomicBool,
    news: Mutex<Vec<News>>,
    wishes: Mutex<Vec<Wish>>,
}

/// The thread, as its link sees it.
#[derive(Debug)]
pub(super) struct Meeting {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Meeting {
    /// Hosts the name of the device at `local`, whose UDP socket this is.
    pub(super) fn start(local: SocketAddr, udp: OwnedFd) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            kick: EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?,
            stop: AtomicBool::new(false),
            has_news: AtomicBool::new(false),
            news: Mutex::default(),
            wishes: Mutex::default(),
        });
        let listener = endpoint()?;
        bind(listener.as_raw_fd(), &name_of(local.ip(), local.port())?)?;
        listen(&listener, Backlog::MAXCONN)?;
        let host = Host {
            shared: Arc::clone(&shared),
            local,
            udp,
            listener: OwnProcess::new(listener),
            peers: Vec::new(),
            next_id: 0,
        };
        // Signals are the program's: the thread is born with all of them blocked.
        let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
        let thread = std::thread::Builder::new().name(crate::MEETING_THREAD.into()).spawn(move || host.run());
        before.thread_set_mask()?;
        Ok(Self { shared, thread: Some(thread?) })
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

    /// A challenge arrived in UDP.
    pub(super) fn challenged(&self, from: IpAddr, invited: Nonce, asked: Nonce) {
        self.wish(Wish::Challenged { from, invited, asked });
    }

    /// Ends the connection with a peer.
    pub(super) fn leave(&self, id: u64) {
        self.wish(Wish::Leave { id });
    }

    fn wish(&self, wish: Wish) {
        let mut wishes = lock(&self.shared.wishes);
        // A flood of challenges grows nothing.
        if wishes.len() < PEERS_MAX {
            wishes.push(wish);
        }
        drop(wishes);
        signal(self.shared.kick.as_fd());
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        signal(self.shared.kick.as_fd());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed by the panic handler.
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn endpoint() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?)
}

/// The name of the device with this address and port, in this process's network namespace.
fn name_of(address: IpAddr, port: u16) -> io::Result<UnixAddr> {
    let namespace = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    let name = format!("doorbell-link/{}/{address}/{port}", namespace.display());
    Ok(UnixAddr::new_abstract(name.as_bytes())?)
}

/// Is whoever is at the other end this process's user?
fn check_user(connection: &impl AsFd) -> Result<(), String> {
    let own = geteuid().as_raw();
    let peer = getsockopt(connection, PeerCredentials).map_err(|error| format!("its user is unknown: {error}"))?.uid();
    if peer != own || own == OVERFLOW_UID {
        return Err(format!("it runs as user {peer}, this process as {own}; memory is shared within one user"));
    }
    Ok(())
}

fn random_nonce() -> io::Result<Nonce> {
    let mut nonce = Nonce::default();
    io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut nonce)?;
    Ok(nonce)
}

fn send(connection: &impl AsFd, message: Message, file: Option<RawFd>) -> io::Result<()> {
    let bytes = message.to_bytes();
    let files: Vec<_> = file.into_iter().collect();
    let rights = [ControlMessage::ScmRights(&files)];
    let control = if files.is_empty() { &[][..] } else { &rights };
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    sendmsg::<()>(connection.as_fd().as_raw_fd(), &[IoSlice::new(&bytes)], control, flags, None)?;
    Ok(())
}

/// What a look at a connection gives.
enum Heard {
    Nothing,
    /// A message, and a descriptor that came along.
    Said(Message, Option<OwnedFd>),
    /// It ended, or said what nobody says.
    Ended,
}

fn hear(connection: &impl AsFd) -> Heard {
    let mut bytes = [0; MAX_BYTES];
    let mut vector = [IoSliceMut::new(&mut bytes)];
    let mut control = cmsg_space!([RawFd; 1]);
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
    let (length, files, is_whole) =
        match recvmsg::<()>(connection.as_fd().as_raw_fd(), &mut vector, Some(&mut control), flags) {
            Ok(message) => {
                let rights = message.cmsgs().into_iter().flatten().filter_map(|control| match control {
                    ControlMessageOwned::ScmRights(files) => Some(files),
                    _ => None,
                });
                let files: Vec<OwnedFd> = rights.flatten().map(own_received).collect();
                let cut = MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC;
                (message.bytes, files, !message.flags.intersects(cut))
            }
            Err(nix::Error::EAGAIN | nix::Error::EINTR) => return Heard::Nothing,
            Err(_) => return Heard::Ended,
        };
    match Message::parse(&bytes[..length]) {
        Some(message) if is_whole && files.len() <= 1 => Heard::Said(message, files.into_iter().next()),
        _ => Heard::Ended,
    }
}

/// How far one is with a peer.
#[derive(Debug)]
enum Stage {
    /// A guest that has said nothing.
    Guest,
    /// A guest that was asked to prove its address.
    Asked { address: IpAddr, mapping: Mapping, nonce: Nonce },
    /// A host that was invited. It has answered, once `is_welcome`.
    Invited { address: IpAddr, mapping: Mapping, nonce: Nonce, is_welcome: bool },
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

/// The thread's own.
struct Host {
    shared: Arc<Shared>,
    local: SocketAddr,
    udp: OwnedFd,
    listener: OwnProcess,
    peers: Vec<Peer>,
    next_id: u64,
}

impl Host {
    fn run(mut self) {
        while !self.shared.stop.load(Ordering::Acquire) {
            let (is_called, ready) = self.wait();
            let _ = self.shared.kick.read();
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

    /// Waits for whatever is next: whether somebody calls, and which peers have something to say.
    fn wait(&self) -> (bool, Vec<usize>) {
        let until = self.peers.iter().filter_map(|peer| peer.until).min();
        let timeout = until.map_or(PollTimeout::NONE, |until| {
            let left = until.saturating_duration_since(Instant::now()).as_millis() as u64 + 1;
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
        });
        let watched = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = vec![watched(self.shared.kick.as_fd()), watched(self.listener.as_fd())];
        fds.extend(self.peers.iter().map(|peer| watched(peer.connection.as_fd())));
        if poll(&mut fds, timeout).is_err() {
            return (false, Vec::new());
        }
        let ready = |fd: &PollFd<'_>| fd.any().unwrap_or(false);
        let peers = fds[2..].iter().enumerate().filter(|(_, fd)| ready(fd)).map(|(index, _)| index);
        (ready(&fds[1]), peers.collect())
    }

    fn tell(&self, news: News) {
        lock(&self.shared.news).push(news);
        self.shared.has_news.store(true, Ordering::Release);
        // The device may sleep.
        send_alone(self.udp.as_fd(), self.local, self.local.ip(), &Datagram::Wake.to_bytes());
    }

    fn accept(&mut self) {
        // Whoever finds no place waits in the queue of the listener, or is refused by the kernel.
        while self.peers.len() < PEERS_MAX {
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            let Ok(connection) = accept4(self.listener.as_fd().as_raw_fd(), flags) else { return };
            let connection = OwnProcess::new(own_received(connection));
            if check_user(&connection).is_ok() {
                let until = Some(Instant::now() + GUEST_WITHIN);
                self.peers.push(Peer { connection, until, stage: Stage::Guest });
            }
        }
        // Do not spin on a queue that has to wait.
        std::thread::sleep(Duration::from_millis(10));
    }

    fn grant(&mut self, wish: Wish) {
        match wish {
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

    /// Connects to a name. `None` if nobody hosts it.
    fn invite(&self, address: IpAddr) -> Result<Option<Peer>, String> {
        let connection = endpoint().map_err(|error| format!("no socket: {error}"))?;
        let name = name_of(address, self.local.port()).map_err(|error| format!("no name: {error}"))?;
        match connect(connection.as_raw_fd(), &name) {
            Ok(()) => {}
            Err(nix::Error::ECONNREFUSED) => return Ok(None),
            Err(error) => return Err(format!("its name cannot be reached: {error}")),
        }
        check_user(&connection)?;
        if self.peers.len() >= PEERS_MAX {
            return Err(format!("too many devices (maximum {PEERS_MAX})"));
        }
        let (mapping, file) = Mapping::create().map_err(|error| format!("no memory to share: {error}"))?;
        let nonce = random_nonce().map_err(|error| format!("no randomness: {error}"))?;
        let hello = Message::Hello { version: VERSION, address: self.local.ip(), port: self.local.port(), nonce };
        send(&connection, hello, Some(file.as_raw_fd())).map_err(|error| format!("it hears nothing: {error}"))?;
        let stage = Stage::Invited { address, mapping, nonce, is_welcome: false };
        Ok(Some(Peer { connection: OwnProcess::new(connection), until: Some(Instant::now() + ANSWER_WITHIN), stage }))
    }

    /// Takes what a peer says.
    fn listen_to(&mut self, index: usize) {
        let peer = &mut self.peers[index];
        match (hear(&peer.connection), &mut peer.stage) {
            (Heard::Nothing, _) => {}
            (Heard::Said(Message::Hello { version, address, port, nonce }, Some(file)), Stage::Guest) => {
                let accepted = version == VERSION && port == self.local.port();
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
            Stage::Invited { address, .. } => self.tell(News::Absent { address, why: Some(why.to_owned()) }),
            Stage::Sharing { id } => self.tell(News::Gone { id }),
            Stage::Guest | Stage::Asked { .. } | Stage::Over => {}
        }
    }

    /// Lets go of whoever took too long, and closes the connections of all that were let go of.
    fn tidy(&mut self) {
        let now = Instant::now();
        for index in 0..self.peers.len() {
            if self.peers[index].until.is_some_and(|until| until <= now) {
                self.fail(index, "it did not answer in time");
            }
        }
        self.peers.retain(|peer| !matches!(peer.stage, Stage::Over));
    }
}

/// A device's name with nobody behind it, as if its process were stopped.
#[cfg(test)]
pub(super) fn silent_host(local: SocketAddr) -> OwnedFd {
    let listener = endpoint().unwrap();
    bind(listener.as_raw_fd(), &name_of(local.ip(), local.port()).unwrap()).unwrap();
    listen(&listener, Backlog::MAXCONN).unwrap();
    listener
}
