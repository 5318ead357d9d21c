//! Handles of the thread that shares memory with other devices, one for the link of each engine.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use doorbell_rnic::{EngineId, PathEnd};
use doorbell_sync::IgnorePoison;
use rustc_hash::FxHashSet;

use super::Host;
use super::absences::Absences;
use super::connection::host_or_beside;
use crate::guard::spawn_without_signals;
use crate::own_event::OwnEvent;
use crate::own_process::OwnProcess;
use crate::shm::message::Nonce;
use crate::shm::sys::Mapping;

/// Maximum number of tries to listen at the device's name, if the device may use only shared memory. A device that may
/// also use UDP starts after one try.
const HOST_TRIES: u32 = 10;
const HOST_NAP: Duration = Duration::from_millis(10);

/// Reports of the thread to its link.
#[derive(Debug)]
pub(in crate::shm) enum News {
    /// The engine `peer` shares memory. `made_here` states whether this device created the rings.
    Arrived { id: u64, peer: PathEnd, mapping: Mapping, made_here: bool },
    /// The engine `peer` does not share memory, for the reason `why`. `None` means that no socket listens at the name
    /// of its device, or that the device has no such engine. It also means that the engine has had no queue pair, or
    /// that a recent invitation was not answered or had no success.
    Absent { peer: PathEnd, why: Option<String> },
    /// The peer has closed or died.
    Gone { id: u64 },
    /// The thread has ended, since the program has closed the thread's descriptors. From now on, the device shares
    /// memory with no peer.
    Ended,
}

/// Requests of a link to the thread.
#[derive(Debug)]
pub(super) enum Wish {
    Invite { own: EngineId, peer: PathEnd },
    Challenged { from: IpAddr, invited: Nonce, asked: Nonce },
    Leave { id: u64 },
}

/// Reports of the thread that the link of one engine has not taken.
#[derive(Debug, Default)]
pub(super) struct Reports {
    /// Whether the engine has a thread, which takes the reports.
    has_reader: AtomicBool,
    has_news: AtomicBool,
    news: Mutex<Vec<News>>,
}

impl Reports {
    pub(super) fn add(&self, news: News) {
        lock(&self.news).push(news);
        self.has_news.store(true, Ordering::Release);
    }

    /// Returns whether the engine takes its reports.
    pub(super) fn has_reader(&self) -> bool {
        self.has_reader.load(Ordering::Acquire)
    }

    /// Returns the number of reports.
    pub(super) fn waiting(&self) -> usize {
        lock(&self.news).len()
    }

    #[inline]
    pub(super) fn take(&self) -> Vec<News> {
        if !self.has_news.load(Ordering::Relaxed) {
            return Vec::new();
        }
        self.has_news.store(false, Ordering::Relaxed);
        std::mem::take(&mut lock(&self.news))
    }
}

/// State that the thread shares with the links.
#[derive(Debug)]
pub(super) struct MeetingState {
    pub(super) kick: OwnEvent,
    pub(super) stop: AtomicBool,
    /// Reports to the link of each engine.
    pub(super) reports: Box<[Arc<Reports>]>,
    pub(super) wishes: Mutex<Vec<Wish>>,
    /// Nonces of the invitations that no challenge has answered yet. Challenges with other nonces are ignored, since
    /// any process may send them.
    pub(super) awaited: Mutex<FxHashSet<Nonce>>,
}

impl MeetingState {
    pub(super) fn new(engines: usize) -> io::Result<Self> {
        // The thread of the first engine begins with the device.
        let reports = |engine| Arc::new(Reports { has_reader: AtomicBool::new(engine == 0), ..Reports::default() });
        Ok(Self {
            kick: OwnEvent::new()?,
            stop: AtomicBool::new(false),
            reports: (0..engines).map(reports).collect(),
            wishes: Mutex::default(),
            awaited: Mutex::default(),
        })
    }
}

/// The thread. The last handle that is dropped ends it.
#[derive(Debug)]
struct MeetingThread {
    shared: Arc<MeetingState>,
    thread: Option<JoinHandle<()>>,
}

/// Handle of the thread for the link of one engine.
#[derive(Debug)]
pub(in crate::shm) struct Meeting {
    engine: EngineId,
    reports: Arc<Reports>,
    thread: Arc<MeetingThread>,
}

impl Meeting {
    /// Starts the thread of the device at `local`, one of whose UDP sockets is `udp`. Returns a handle for each of
    /// `engines` engines. Invited devices must answer within `answer_within`.
    ///
    /// If `must_host` is false and the thread cannot listen at the device's name, the second returned value is the
    /// reason. Then the thread still invites devices, and tries again later to listen at the name.
    pub(in crate::shm) fn start(
        local: SocketAddr,
        engines: usize,
        udp: OwnProcess,
        answer_within: Duration,
        must_host: bool,
    ) -> io::Result<(Vec<Self>, Option<io::Error>)> {
        let shared = Arc::new(MeetingState::new(engines)?);
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
        let mut host = Host::new(Arc::clone(&shared), local, udp, answer_within, hosted);
        host.absences = Absences::new(must_host);
        let thread = Some(spawn_without_signals(crate::MEETING_THREAD, move || host.run())?);
        let all = Arc::clone(&shared);
        let thread = Arc::new(MeetingThread { shared, thread });
        let handles = all.reports.iter().zip(0..).map(|(reports, engine)| Self {
            engine: EngineId(engine),
            reports: Arc::clone(reports),
            thread: Arc::clone(&thread),
        });
        Ok((handles.collect(), refused))
    }

    /// Accepts invitations to the engine from now on. The caller must take the reports from now on.
    pub(in crate::shm) fn begin(&self) {
        self.reports.has_reader.store(true, Ordering::Release);
    }

    /// Returns the thread's reports since the last call.
    #[inline]
    pub(in crate::shm) fn news(&self) -> Vec<News> {
        self.reports.take()
    }

    /// Requests shared memory with an engine. The thread reports the result.
    pub(in crate::shm) fn invite(&self, peer: PathEnd) {
        self.wish(Wish::Invite { own: self.engine, peer });
    }

    /// Passes a challenge that arrived over UDP to the thread. Ignores the challenge if its nonce belongs to no
    /// invitation.
    pub(in crate::shm) fn challenged(&self, from: IpAddr, invited: Nonce, asked: Nonce) {
        if lock(&self.shared().awaited).remove(&invited) {
            self.wish(Wish::Challenged { from, invited, asked });
        }
    }

    /// Ends the connection with a peer.
    pub(in crate::shm) fn leave(&self, id: u64) {
        self.wish(Wish::Leave { id });
    }

    fn wish(&self, wish: Wish) {
        lock(&self.shared().wishes).push(wish);
        self.shared().kick.signal();
    }

    /// Returns whether this is the handle of the first engine.
    pub(in crate::shm) fn is_first(&self) -> bool {
        self.engine == EngineId(0)
    }

    pub(super) fn shared(&self) -> &MeetingState {
        &self.thread.shared
    }
}

impl Drop for MeetingThread {
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

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().ignore_poison()
}
