//! Division of the work between the callers of an engine and its thread.
//!
//! An engine has one lock, and its holder drives the engine. Programs drive it from their own calls. A thread drives
//! it when no program does. The rules:
//!
//! - (a) A post transmits at once if nothing of its engine is in flight, or if many requests wait. If little is in
//!   flight, fewer requests suffice. Otherwise the post may wait a moment for the caller's next poll or the next
//!   inbound packet, so that single posts become runs.
//! - (b) A due acknowledgement may outlive the call that received its request, so that it leaves after the reply. It
//!   waits for a moment while a caller polls or posts, and not at all otherwise. The acknowledgement of a receive
//!   waits only if the program has answered recent messages (`rnic` decides that). Otherwise it leaves before the
//!   program sees the completion. A held acknowledgement leaves with the next post, with the next poll that finds
//!   nothing, or before the process exits normally.
//! - (c) Work that remains when a call returns always has an owner: an inbound packet that is certain to come, or the
//!   thread's deadline.
//! - (d) If the last poll found nothing, the caller is expected to poll again. A thread that a packet wakes then
//!   leaves the packets to the caller, and looks again after a nap in which it does not watch the socket. The thread
//!   stays armed if the last poll returned something, or if a notification is armed and its program has stopped
//!   polling: the program may spin on memory next. If a program does that after polling often, packets wait for a
//!   whole nap. Then the thread takes no naps for some time.
//! - (e) The thread lingers after packets, and a caller lingers before it sleeps for a notification, if no other
//!   caller polls. They linger for about as long as a wake-up takes: in an exchange, the answer arrives within that
//!   time. If no answer arrives, lingering becomes rare.
//! - (f) While callers are active, the thread never watches the socket for long. So they need not wake it for the
//!   deadlines that their posts leave. While it naps, they drive.
//!
//! A wake-up costs the sender of the packet several microseconds. Therefore the thread does not watch the socket
//! while a caller polls.

mod exit;
mod flush;
mod habits;
mod policy;
mod wake;

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread::JoinHandle;
use std::time::Instant;

use doorbell_rnic::{CompletionQueue, Rnic};
use doorbell_sync::IgnorePoison;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use crate::driver::{Acks, Driver};
use crate::guard;
use crate::link::Link;
use crate::observe::Observer;
use crate::own_event::OwnEvent;
use crate::shm::OwnProcess;
use doorbell_verbs_core::{Completion, Counters, LinkCounters, Overrun};
pub use exit::flush_before_exit;
use flush::Flushes;
use habits::{HABITS, Lingering};
use policy::{Action, Event, Glance, Policy};
use wake::{NEVER, Wakeups};

/// Atomics that the model checker replaces.
mod sync {
    pub(super) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};
}

/// How long closing a device waits for a link that is full.
const FINISH_WITHIN_NS: u64 = 100_000_000;

/// How long the thread sleeps when `ppoll` fails, so that it does not spin.
const REFUSED_WAIT: std::time::Duration = std::time::Duration::from_millis(1);

/// How often the thread yields before it takes the lock while callers wait for it.
const COURTESIES: usize = 1_000;

struct ThreadState {
    driver: Mutex<Driver<Box<dyn Link>>>,
    /// Number of callers that sleep until they get the lock.
    waiting: AtomicUsize,
    epoch: Instant,
    kick: OwnEvent,
    wakeups: Wakeups,
    /// Counts polls, and packets that polls received, to tell whether a caller polls, and how often.
    polls: AtomicU64,
    /// Value of `polls` when a notification was armed last.
    armed_at: AtomicU64,
    /// Counts posts, to tell whether a caller posts.
    posts: AtomicU64,
    stop: AtomicBool,
    /// The program has closed the descriptors, so the thread ends.
    is_abandoned: AtomicBool,
    /// Whether an acknowledgement is held back.
    holds_ack: AtomicBool,
    flushes: Flushes,
    failed: AtomicBool,
    /// Number of polls that still hold back no acknowledgement.
    wary_polls: AtomicUsize,
    /// Results of lingering of callers that wait for notifications.
    lingering: Mutex<Lingering>,
    /// Descriptors that the thread watches in addition to the socket.
    groups: Mutex<Vec<Arc<Joined>>>,
}

/// A multicast group, and the descriptor that becomes readable when a packet for it arrives.
struct Joined {
    group: IpAddr,
    readable: OwnProcess,
}

/// An RNIC on a link, driven by its callers and by a thread of its own.
pub struct DrivenRnic {
    shared: Arc<ThreadState>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for DrivenRnic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DrivenRnic").finish_non_exhaustive()
    }
}

impl DrivenRnic {
    /// Starts driving `rnic` over `link`. `readable` is the socket, which becomes readable when the link has received
    /// a packet. `port` is the UDP port of both ends.
    ///
    /// # Errors
    ///
    /// The operating system provides no eventfd or no thread, or cannot block the signals of the new thread.
    pub fn start(rnic: Rnic, link: Box<dyn Link>, readable: OwnProcess, port: u16) -> io::Result<Self> {
        let shared = Arc::new(ThreadState {
            driver: Mutex::new(Driver::new(rnic, link, port)),
            waiting: AtomicUsize::new(0),
            epoch: Instant::now(),
            kick: OwnEvent::new()?,
            wakeups: Wakeups::new(),
            polls: AtomicU64::new(0),
            armed_at: AtomicU64::new(0),
            posts: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            is_abandoned: AtomicBool::new(false),
            holds_ack: AtomicBool::new(false),
            flushes: Flushes::new(),
            failed: AtomicBool::new(false),
            wary_polls: AtomicUsize::new(0),
            lingering: Mutex::default(),
            groups: Mutex::default(),
        });
        let thread = {
            let shared = Arc::clone(&shared);
            guard::spawn_without_signals(crate::DRIVER_THREAD, move || shared.run(&readable))?
        };
        exit::add(&shared);
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Passes the RNIC's counters to `observer` from now on, as [`Driver::observe`] does.
    pub fn observe(&self, observer: Observer, within_ns: u64) {
        self.shared.lock().observe(observer, within_ns);
    }

    /// Returns the nanoseconds since the port was started.
    pub fn now_ns(&self) -> u64 {
        self.shared.now_ns()
    }

    /// Runs an operation on the RNIC that sends nothing by itself, such as one on objects, receives or queries.
    pub fn with<R>(&self, operation: impl FnOnce(&mut Rnic) -> R) -> R {
        operation(self.shared.lock().rnic_mut())
    }

    /// Runs an operation on the RNIC that may leave packets to send. Sends them if no other call is certain to (rule
    /// (a)). `operation` also returns how much waits to be sent.
    pub fn post<R>(&self, operation: impl FnOnce(&mut Rnic, u64) -> (R, usize)) -> R {
        let mut driver = self.shared.lock();
        let now_ns = self.shared.now_ns();
        self.shared.note_held_acks(driver.rnic(), now_ns);
        self.shared.posts.store(self.shared.posts.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        let in_flight = driver.rnic().in_flight_packets();
        let (result, waiting) = operation(driver.rnic_mut(), now_ns);
        // An acknowledgement that waits for an answer leaves with the posted packets, now or later.
        driver.rnic_mut().release_acks();
        if HABITS.sends_at_once(in_flight, waiting) {
            let sent = driver.transmit(now_ns);
            self.shared.report(sent);
        } else {
            // A packet in flight is answered only if its peer lives.
            driver.defer_transmit(now_ns + HABITS.longest_deferral_ns);
        }
        self.shared.leave(driver);
        result
    }

    /// Reaps completions; drives the engine if there are none.
    ///
    /// # Errors
    ///
    /// As [`CompletionQueue::poll`].
    #[inline]
    pub fn poll(&self, queue: &CompletionQueue, out: &mut [Completion]) -> Result<usize, Overrun> {
        let mut count = queue.poll(out)?;
        if count == 0 {
            // Packets that arrive now may belong to another queue, and the program had no chance yet to answer them.
            // Programs with a queue for sends and one for receives poll them in turn.
            let held_before = self.shared.holds_ack.load(Ordering::Relaxed);
            self.shared.drive();
            count = queue.poll(out)?;
            if count == 0 {
                queue.note_empty_poll();
                if held_before {
                    self.shared.flush_held();
                }
            }
        }
        self.note_poll(count == 0);
        Ok(count)
    }

    /// Drives the engine once. Returns true unless another thread was driving it.
    pub fn drive(&self) -> bool {
        self.shared.drive()
    }

    fn note_poll(&self, found_nothing: bool) {
        let shared = &self.shared;
        shared.note_polls(1);
        shared.wakeups.note_poll(found_nothing);
    }

    /// Drives the engine for a moment for a caller that is about to sleep until it is notified, if that pays off
    /// here. Returns true if `notified` became true.
    pub fn linger(&self, notified: impl Fn() -> bool) -> bool {
        let shared = &self.shared;
        let lingering = || shared.lingering.lock().ignore_poison();
        if notified() {
            return true;
        }
        let mut found = false;
        if lingering().begins() {
            let begun_ns = shared.now_ns();
            let mut elapsed_ns = 0;
            shared.wakeups.begin_lingering();
            while !found && elapsed_ns < HABITS.linger_ns {
                self.drive();
                self.note_poll(true);
                found = notified();
                if !found {
                    // The peer may need this processor.
                    std::thread::yield_now();
                }
                elapsed_ns = shared.now_ns() - begun_ns;
            }
            shared.wakeups.end_lingering();
            lingering().ended(!found || elapsed_ns > 2 * HABITS.linger_ns);
        }
        if !found {
            self.rouse();
        }
        found
    }

    /// Returns the number of armed notifications. A caller that arms one increments it and calls
    /// [`rouse`](Self::rouse). A caller that is notified decrements it.
    pub fn armed(&self) -> &Arc<AtomicUsize> {
        self.shared.wakeups.armed()
    }

    /// Ends a nap of the thread: a caller is about to sleep until the thread notifies it.
    pub fn rouse(&self) {
        // Stored before the wake-up, so that the thread finds it.
        self.shared.armed_at.store(self.shared.polls.load(Ordering::Relaxed), Ordering::Release);
        if self.shared.wakeups.must_kick_for_notification() {
            self.shared.kick();
        }
    }

    /// Joins a multicast group.
    ///
    /// # Errors
    ///
    /// As [`Link::join`].
    pub fn join(&self, group: IpAddr) -> io::Result<()> {
        let readable = self.shared.lock().link_mut().join(group)?;
        self.shared.groups().push(Arc::new(Joined { group, readable }));
        self.shared.kick(); // the thread does not watch it yet
        Ok(())
    }

    /// Leaves a multicast group.
    pub fn leave(&self, group: IpAddr) {
        self.shared.groups().retain(|joined| joined.group != group);
        self.shared.lock().link_mut().leave(group);
        self.shared.kick();
    }

    /// Returns the number of packets that the link lost on this side.
    pub fn link_counters(&self) -> LinkCounters {
        self.shared.lock().link().link_counters()
    }

    /// Returns the counters of the RNIC and the link. Returns `None` if another thread is using them.
    pub fn try_counters(&self) -> Option<(Counters, LinkCounters)> {
        let driver = match self.shared.driver.try_lock() {
            Ok(driver) => driver,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some((*driver.rnic().counters(), driver.link().link_counters()))
    }
}

impl Drop for DrivenRnic {
    fn drop(&mut self) {
        exit::remove(&self.shared);
        self.shared.stop.store(true, Ordering::SeqCst);
        let is_told = self.shared.kick.is_intact() && self.shared.kick();
        if !is_told {
            // The program has closed descriptors that it did not open. Their numbers may be those of its own files by
            // now. This library neither writes into those files nor closes them.
            std::mem::forget(Arc::clone(&self.shared));
        }
        // The join of a thread that received no signal to stop would never end.
        if let Some(thread) = self.thread.take().filter(|_| is_told) {
            // The panic handler has printed a panic of the thread; there is nothing to add.
            let _ = thread.join();
        }
    }
}

type Guard<'a> = MutexGuard<'a, Driver<Box<dyn Link>>>;

impl ThreadState {
    fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    fn lock(&self) -> Guard<'_> {
        guard::admit_thread();
        // The holder is another caller or the thread, for the length of one pump. A short spin is cheaper than
        // sleeping.
        for _ in 0..200 {
            match self.driver.try_lock() {
                Ok(guard) => return guard,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let guard = self.driver.lock().ignore_poison();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// Locks for the thread, which comes back again and again while packets arrive. Callers that wait already go
    /// first. Otherwise they might wait for as long as the stream lasts.
    fn lock_behind_callers(&self) -> Guard<'_> {
        for _ in 0..COURTESIES {
            if self.waiting.load(Ordering::Relaxed) == 0 {
                break;
            }
            std::thread::yield_now();
        }
        self.lock()
    }

    fn groups(&self) -> MutexGuard<'_, Vec<Arc<Joined>>> {
        self.groups.lock().ignore_poison()
    }

    /// Wakes the thread. Returns false if that is impossible.
    fn kick(&self) -> bool {
        self.kick.signal()
    }

    fn report(&self, result: io::Result<impl Sized>) {
        if let Err(error) = result
            && !self.failed.swap(true, Ordering::Relaxed)
        {
            tracing::error!("the link failed, so nothing is sent or received any more: {error}");
        }
    }

    #[inline]
    fn note_polls(&self, polls: u64) {
        // Not exact if several threads poll: only a change matters.
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(polls), Ordering::Relaxed);
    }

    /// Drives the engine on behalf of a caller that polls.
    #[inline]
    fn drive(&self) -> bool {
        guard::admit_thread();
        let mut driver = match self.driver.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false, // the holder drives
        };
        let now_ns = self.now_ns();
        self.note_held_acks(driver.rnic(), now_ns);
        let pumped = driver.pump(now_ns, self.acks_of_a_caller());
        if let Ok(packets @ 1..) = pumped {
            self.note_polls(packets as u64);
            let wary = self.wary_polls.load(Ordering::Relaxed);
            self.wary_polls.store(wary.saturating_sub(1), Ordering::Relaxed);
        }
        self.report(pumped);
        // This call has read the datagram that announces packets in memory, or it was lost. So the thread will not
        // see it.
        let misses_arrivals = self.wakeups.is_watching() && !driver.link().shows_arrivals();
        self.leave(driver);
        if misses_arrivals {
            self.kick();
        }
        true
    }

    /// Sends acknowledgements that are held back, now that the caller has nothing to answer.
    #[inline]
    fn flush_held(&self) {
        if self.holds_ack.load(Ordering::Relaxed) {
            let mut driver = self.lock();
            let sent = driver.flush(self.now_ns());
            self.report(sent);
            self.leave(driver);
        }
    }

    /// Distrusts callers for some polls if an acknowledgement has waited for this caller for long.
    #[inline]
    fn note_held_acks(&self, rnic: &Rnic, now_ns: u64) {
        if rnic.held_ack_since_ns().is_some_and(|since_ns| now_ns.saturating_sub(since_ns) > HABITS.brief_ns) {
            self.wary_polls.store(HABITS.wary_polls, Ordering::Relaxed);
        }
    }

    /// Returns how acknowledgements may wait for the caller's next call. They may if the thread looks soon. They also
    /// may during a long nap, if callers have always come back quickly while an acknowledgement waited.
    #[inline]
    fn acks_of_a_caller(&self) -> Acks {
        let trusted = self.wakeups.is_napping() && self.wary_polls.load(Ordering::Relaxed) == 0;
        if trusted || self.wakeups.looks_soon() { Acks::MayWait } else { Acks::Now }
    }

    /// Unlocks the engine and ensures that remaining work has an owner (rule (c)).
    #[inline]
    fn leave(&self, driver: Guard<'_>) {
        self.holds_ack.store(driver.rnic().held_ack_since_ns().is_some(), Ordering::Relaxed);
        let changed = self.wakeups.leave(driver.poll_timeout().unwrap_or(NEVER), driver.wants_room());
        drop(driver);
        if changed && self.wakeups.must_kick() {
            self.kick();
        }
    }

    /// Runs the thread.
    fn run(&self, readable: &OwnProcess) {
        let mut policy = Policy::new();
        let mut event = Event::Started;
        while !self.stop.load(Ordering::SeqCst) {
            if self.is_abandoned.load(Ordering::Relaxed) {
                return;
            }
            if self.flushes.pending().is_some() {
                self.pump(Acks::Now);
            }
            event = match policy.on(event, &self.glance(event), self.now_ns()) {
                Action::Pump(acks) => Event::Pumped { packets: self.pump(acks) },
                Action::Nap { until_ns, briefly } => {
                    self.nap(readable, until_ns, briefly);
                    Event::Napped { kicked: self.now_ns() < until_ns }
                }
                Action::Watch { until_ns, briefly } => {
                    Event::Watched { ready: self.watch(readable, until_ns, briefly) }
                }
                Action::Linger { until_ns, polls } => Event::Lingered { in_vain: !self.linger(until_ns, polls) },
            };
        }
        self.finish(readable);
    }

    fn glance(&self, event: Event) -> Glance {
        Glance {
            polls: self.polls.load(Ordering::Relaxed),
            posts: self.posts.load(Ordering::Relaxed),
            deadline_ns: self.wakeups.deadline_ns(),
            // The policy asks only after naps. A caller that finds the lock taken leaves its packets to the holder.
            is_driven: matches!(event, Event::Napped { .. }) && self.driver.try_lock().is_err(),
            found_nothing: self.wakeups.found_nothing(),
            is_armed: self.wakeups.is_armed(),
            armed_at: self.armed_at.load(Ordering::Relaxed),
        }
    }

    /// Sends the packets that the queue pairs left, after the device was closed. Gives up if the link stays full for
    /// [`FINISH_WITHIN_NS`].
    fn finish(&self, readable: &OwnProcess) {
        let until_ns = self.now_ns() + FINISH_WITHIN_NS;
        loop {
            let mut driver = self.lock();
            let sent = driver.flush(self.now_ns());
            let (is_full, wants_room) = (sent.is_ok() && driver.is_link_full(), driver.wants_room());
            self.report(sent);
            drop(driver);
            let now_ns = self.now_ns();
            if !is_full || now_ns >= until_ns {
                break;
            }
            if !wants_room {
                std::thread::sleep(std::time::Duration::from_millis(1));
                continue;
            }
            let timeout = TimeSpec::from(std::time::Duration::from_nanos(until_ns - now_ns));
            let _ = ppoll(&mut [PollFd::new(readable.as_fd(), PollFlags::POLLOUT)], Some(timeout), None);
        }
        // If the program has closed the descriptors of a device, its link is never dropped.
        self.lock().link_mut().write_records();
    }

    /// Looks for packets, unless a caller does. Returns true if packets arrived or a caller polled.
    fn linger(&self, until_ns: u64, polls: u64) -> bool {
        while self.now_ns() < until_ns && !self.stop.load(Ordering::Relaxed) {
            if self.polls.load(Ordering::Relaxed) != polls || self.pump(Acks::Now) > 0 {
                return true;
            }
        }
        false
    }

    /// Sleeps until kicked or until `until_ns`.
    fn nap(&self, readable: &OwnProcess, until_ns: u64, briefly: bool) {
        self.wakeups.start_napping(briefly);
        self.sleep_on(readable, None, until_ns);
        self.wakeups.wake_up();
    }

    /// Sleeps until kicked, until `until_ns`, or until the socket is ready. Returns true if the socket is ready.
    fn watch(&self, readable: &OwnProcess, until_ns: u64, briefly: bool) -> bool {
        let woken = match self.wakeups.start_watching(until_ns, briefly) {
            Some(_) if !self.lock().link_mut().prepare_sleep() => true,
            Some(room) => {
                let events = if room { PollFlags::POLLIN | PollFlags::POLLOUT } else { PollFlags::POLLIN };
                self.sleep_on(readable, Some(events), until_ns)
            }
            None => false,
        };
        self.wakeups.wake_up();
        woken
    }

    /// Sleeps until kicked, until `until_ns`, or until one of these events of the socket. Returns true if the socket or
    /// that of a group is ready.
    fn sleep_on(&self, socket: &OwnProcess, events: Option<PollFlags>, until_ns: u64) -> bool {
        let groups = if events.is_some() { self.groups().clone() } else { Vec::new() };
        let watched = |readable| PollFd::new(readable, PollFlags::POLLIN);
        let mut fds = vec![watched(self.kick.as_fd())];
        fds.extend(events.map(|events| PollFd::new(socket.as_fd(), events)));
        fds.extend(groups.iter().map(|joined| watched(joined.readable.as_fd())));
        let timeout = (until_ns != NEVER).then(|| {
            let left = until_ns.saturating_sub(self.now_ns());
            TimeSpec::from(std::time::Duration::from_nanos(left))
        });
        // An interruption equals any other wake-up: the caller looks at everything again.
        if ppoll(&mut fds, timeout, None).is_err_and(|error| error != nix::Error::EINTR) {
            // The process may have fewer descriptors by now than these, or no memory is left. Look often, but do not
            // spin.
            std::thread::sleep(REFUSED_WAIT);
            return events.is_some();
        }
        let ready = |fd: &PollFd<'_>| fd.any().unwrap_or(false);
        let (kicked, packets) = (ready(&fds[0]), fds[1..].iter().any(ready));
        // A program that closes descriptors of others may have its own files under these numbers. The thread must not
        // read them. One system call per wake-up detects that.
        if !socket.is_intact() || kicked && !self.kick.is_event() {
            self.is_abandoned.store(true, Ordering::Relaxed);
            return false;
        }
        if kicked {
            self.kick.reset();
        }
        packets
    }

    /// Drives the engine until all arrived packets are handled, when no caller drives it. Returns the number of
    /// packets.
    fn pump(&self, acks: Acks) -> usize {
        let mut packets = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let mut driver = self.lock_behind_callers();
            let pending = self.flushes.pending();
            let pumped = driver.pump(self.now_ns(), if pending.is_some() { Acks::Now } else { acks });
            if let Some(request) = pending {
                driver.link_mut().write_records();
                if !driver.is_link_full() {
                    self.flushes.meet(request);
                }
            }
            self.leave(driver);
            match pumped {
                Ok(0) => break,
                Ok(received) => packets += received,

                Err(error) => {
                    self.report(Err::<(), _>(error));
                    // Do not spin on a socket that is broken.
                    std::thread::sleep(std::time::Duration::from_millis(100));
                    break;
                }
            }
        }
        packets
    }
}
