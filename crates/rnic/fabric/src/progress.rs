//! Division of work between the callers of an engine and the engine's thread. An engine is an RNIC with its link and
//! driver.
//!
//! Each engine has one lock, and the holder of the lock drives the engine. Callers drive the engine during their polls
//! and posts. The engine's thread drives it when no caller does. The rules are:
//!
//! - (a) A post sends immediately if no packet of its engine is in flight, or if many packets wait. If little is in
//!   flight, fewer waiting packets suffice. Otherwise the posted request waits briefly for the caller's next poll or
//!   the next inbound packet, so that several posts form one run. Datagrams count as in flight if a caller posts them
//!   in quick succession and meanwhile neither polls nor gets a packet. Deferred packets leave when a caller arms.
//! - (b) A due acknowledgement may be held back after the call that received its request, so that it leaves together
//!   with the program's reply. Acknowledgements are held back briefly, and only while a caller polls or posts. The
//!   acknowledgement of a receive is held back only if the program has answered recent messages, which the crate `rnic`
//!   decides. Otherwise the acknowledgement is sent before the program sees the completion. A held acknowledgement is
//!   sent with the next post, with the next poll that finds nothing, or before the process exits normally.
//! - (c) Work may remain when a call returns. Then either an inbound packet that is certain to arrive triggers the
//!   work, or the thread does the work by the deadline of the work.
//! - (d) If the last poll found nothing, the caller is expected to poll again. If a packet wakes the thread then, the
//!   thread leaves the packet to the caller and naps without watching the socket. The thread watches the socket if the
//!   last poll returned completions, since the program may read only memory next. It also watches the socket if a
//!   notification is armed and the program has stopped polling. If packets waited for a whole nap because no caller
//!   polled, the thread takes no naps for some time.
//! - (e) To linger is to look for packets again and again for about the time that a wake-up takes. In an exchange of
//!   messages, the answer arrives within that time. The thread lingers after it has received packets. A caller lingers
//!   before it sleeps until a notification. Both linger only if no other caller polls. If no answer arrives, lingering
//!   becomes rare.
//! - (f) While callers are active, the thread watches the socket only briefly. So callers need not wake the thread for
//!   the deadlines that their posts leave. While the thread naps, callers drive the engine.
//!
//! Waking a thread costs the sender of the packet several microseconds. Therefore the thread does not watch the socket
//! while a caller polls.

mod abandoned;
mod clock;
mod engines;
mod exit;
mod flush;
mod habits;
mod lock;
mod policy;
mod port;
mod scheduling;
mod thread;
mod wake;

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use doorbell_rnic::{CompletionQueue, Rnic};
use doorbell_sync::IgnorePoison;

use crate::driver::{Acks, Driver};
use crate::guard;
use crate::link::Link;
use crate::observe::Observer;
use crate::own_event::OwnEvent;
use crate::own_process::OwnProcess;
use crate::port::PortView;
use clock::Clock;
pub use clock::VirtualClock;
use doorbell_verbs_core::{Completion, Counters, LinkCounters, Overrun};
pub use engines::EngineParts;
use engines::{EngineThread, Inbox};
pub use exit::flush_before_exit;
use flush::Flushes;
use habits::{Burst, HABITS, Lingering, Yields};
use lock::{Deaths, Guard};
pub use port::{PortHandle, PortService};
use wake::{NEVER, Wakeups};

/// Atomics of `wake.rs` and `flush.rs`. The tests with the model checker replace them by those of loom.
mod sync {
    pub(super) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};
}

/// Number of looks for packets per read of the clock while a thread lingers. A read takes as long as a look at a ring.
const LOOKS_PER_CLOCK: u32 = 8;

struct ThreadState {
    driver: Mutex<Driver<Box<dyn Link>>>,
    /// Number of callers that sleep until they get the lock.
    waiting: AtomicUsize,
    /// Number of threads that have taken deaths of queue pairs and have not logged them.
    logging: AtomicUsize,
    clock: Clock,
    /// Process that started the engine.
    process: u32,
    kick: OwnEvent,
    wakeups: Wakeups,
    /// Number of polls plus number of packets that polls received. From the changes of this number, the policy learns
    /// whether callers poll, and how often.
    polls: AtomicU64,
    /// Value of `polls` when a notification was armed most recently.
    armed_at: AtomicU64,
    /// Number of posts. From the changes of this number, the policy learns whether callers post.
    posts: AtomicU64,
    burst: Burst,
    stop: AtomicBool,
    /// Whether the program has closed the thread's descriptors. The thread then only drives timers.
    is_abandoned: AtomicBool,
    /// Whether an acknowledgement is held back.
    holds_ack: AtomicBool,
    /// Whether posts are deferred.
    has_deferred: AtomicBool,
    flushes: Flushes,
    failed: AtomicBool,
    /// Number of further polls during which callers are not trusted to answer soon (see
    /// [`Habits::wary_polls`](habits::Habits)). Only polls that receive packets count.
    wary_polls: AtomicUsize,
    /// Back-off of the lingering of callers that wait for notifications, and the schedule of their yields.
    lingering: Mutex<(Lingering, Yields)>,
    /// Multicast groups, whose descriptors the thread watches in addition to the socket.
    groups: Mutex<Vec<Arc<Joined>>>,
    /// State of the port.
    port: PortView,
    /// Packets that other engines of the device have received for this one.
    inbox: Inbox,
    /// All engines of the device, set if the device was started with its list of engines.
    engines: OnceLock<Arc<[Weak<ThreadState>]>>,
    /// Callback that the thread calls each time that it wakes up.
    port_service: Mutex<Option<PortService>>,
}

/// A multicast group, and the descriptor that becomes readable when a packet for it arrives.
struct Joined {
    group: IpAddr,
    readable: OwnProcess,
}

/// An RNIC on a link, driven by its callers and by a separate thread.
pub struct DrivenRnic {
    shared: Arc<ThreadState>,
    thread: Mutex<EngineThread>,
}

impl std::fmt::Debug for DrivenRnic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DrivenRnic").finish_non_exhaustive()
    }
}

impl DrivenRnic {
    /// Returns an RNIC on `link` that lives on a virtual clock. It has no thread. Its callers drive it, and the program
    /// moves the clock, at most to the time of [`poll_timeout`](Self::poll_timeout). `port` is the UDP port of this
    /// device and its peers.
    ///
    /// # Errors
    ///
    /// The operating system provides no eventfd.
    pub fn in_virtual_time(rnic: Rnic, link: Box<dyn Link>, port: u16, clock: VirtualClock) -> io::Result<Self> {
        let shared = Arc::new(ThreadState::new(Driver::new(rnic, link, port), Clock::Virtual(clock))?);
        Ok(Self { shared, thread: Mutex::new(EngineThread::None) })
    }

    /// Returns the time at which the engine has work next, such as a packet that arrives or a timer that expires.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.shared.lock().poll_timeout()
    }

    /// Passes the RNIC's counters to `observer` from now on, as [`Driver::observe`] does.
    pub fn observe(&self, observer: Observer, within_ns: u64) {
        self.shared.lock().observe(observer, within_ns);
    }

    /// Returns the nanoseconds since the call of [`start`](Self::start), or the time of the virtual clock.
    pub fn now_ns(&self) -> u64 {
        self.shared.now_ns()
    }

    /// Runs an operation on the RNIC that causes no packets: a query, a posted receive, or an operation on objects.
    pub fn with<R>(&self, operation: impl FnOnce(&mut Rnic) -> R) -> R {
        operation(self.shared.lock().rnic_mut())
    }

    /// Runs an operation on the RNIC that posts requests. Sends the packets immediately or defers them (rule (a)).
    /// `operation` gets the current time, and returns its result and the number of packets that wait to be sent.
    /// `are_datagrams` is true if a UD queue pair posts them.
    pub fn post<R>(&self, are_datagrams: bool, operation: impl FnOnce(&mut Rnic, u64) -> (R, usize)) -> R {
        let mut driver = self.shared.lock();
        let now_ns = self.shared.now_ns();
        self.shared.note_held_acks(driver.rnic(), now_ns);
        self.shared.posts.store(self.shared.posts.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        let mut in_flight = driver.rnic().in_flight_packets();
        // In virtual time no thread sends the last datagrams of a burst.
        if are_datagrams && !self.shared.clock.is_virtual() {
            let received = driver.rnic().counters().rx_vport_rdma_unicast_packets;
            let events = self.shared.polls.load(Ordering::Relaxed).wrapping_add(received);
            in_flight += self.shared.burst.note(events, now_ns);
        }
        let (result, waiting) = operation(driver.rnic_mut(), now_ns);
        // Acknowledgements that wait for a reply leave together with the posted packets, now or later.
        driver.rnic_mut().release_acks();
        if HABITS.sends_at_once(in_flight, waiting) {
            let sent = driver.transmit(now_ns);
            self.shared.report(sent);
        } else {
            // Usually the answer to a packet in flight triggers the send. But the peer may be dead, so set a deadline.
            driver.defer_transmit(now_ns + HABITS.longest_deferral_ns);
        }
        self.shared.leave(driver);
        result
    }

    /// Sends the packets of deferred posts. Callers use it when they arm a notification, and may sleep next.
    pub fn send_deferred(&self) {
        let shared = &self.shared;
        if shared.has_deferred.load(Ordering::Relaxed) {
            let mut driver = shared.lock();
            let sent = driver.transmit(shared.now_ns());
            shared.report(sent);
            shared.leave(driver);
        }
    }

    /// Runs an operation that ends the work of a queue pair: it changes the state to error or reset, or destroys the
    /// queue pair. Before, the engine handles and acknowledges all packets that have arrived, as an RNIC does when they
    /// arrive. Otherwise requests would be flushed although the peer has acknowledged them, and requests of the peer
    /// would fail although their messages have arrived. Posted requests that wait to be sent may leave too.
    pub fn end<R>(&self, operation: impl FnOnce(&mut Rnic) -> R) -> R {
        let shared = &self.shared;
        let may_receive = shared.may_receive(); // takes several system calls, so not below the lock
        let mut driver = shared.lock();
        let now_ns = shared.now_ns();
        shared.note_held_acks(driver.rnic(), now_ns);
        if may_receive {
            if shared.inbox.has_packets() {
                shared.receive_strays(&mut driver);
            }
            let arrived = driver.receive_arrived(now_ns);
            shared.report(arrived);
            let sent = driver.flush(now_ns);
            shared.report(sent);
        }
        let result = operation(driver.rnic_mut());
        // Other queue pairs may wait until the packets of this one no longer count against the limit of outstanding
        // packets. An acknowledgement that was not sent before leaves now.
        let sent = driver.flush(now_ns);
        shared.report(sent);
        shared.leave_received(driver);
        result
    }

    /// Returns completions from a queue. If the queue is empty, drives the engine first.
    ///
    /// # Errors
    ///
    /// As [`CompletionQueue::poll`].
    #[inline]
    pub fn poll(&self, queue: &CompletionQueue, out: &mut [Completion]) -> Result<usize, Overrun> {
        let mut count = queue.poll(out)?;
        if count == 0 {
            // Flush only acknowledgements that were held back before this call. Packets that arrive during this call
            // may belong to another queue of the program, which had no chance to answer them yet.
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

    /// Drives the engine once. Returns false if another thread was driving the engine.
    pub fn drive(&self) -> bool {
        self.shared.drive()
    }

    fn note_poll(&self, found_nothing: bool) {
        let shared = &self.shared;
        shared.note_polls(1);
        shared.wakeups.note_poll(found_nothing);
    }

    /// Lingers on behalf of a caller that is about to sleep until it is notified. Drives the engine and those in
    /// `beside` until `notified` returns true or a short time is over. Does not linger if recent calls waited without
    /// success. Returns true if `notified` returned true.
    pub fn linger(&self, beside: &[&Self], notified: impl Fn() -> bool) -> bool {
        let engines = || std::iter::once(self).chain(beside.iter().copied());
        let shared = &self.shared;
        if notified() {
            return true;
        }
        if shared.clock.is_virtual() {
            self.drive();
            return notified(); // no time passes while this thread waits
        }
        let mut found = false;
        let (begins, mut yields) = {
            let mut lingering = shared.lingering.lock().ignore_poison();
            (lingering.0.begins(), lingering.1)
        };
        if begins {
            let begun_ns = shared.now_ns();
            let (mut now_ns, mut yielded_ns) = (begun_ns, begun_ns);
            let mut looks: u32 = 0;
            engines().for_each(|engine| engine.shared.wakeups.begin_lingering());
            while now_ns - begun_ns < HABITS.linger_ns {
                for engine in engines() {
                    engine.drive();
                    engine.note_poll(true);
                }
                if notified() {
                    found = true;
                    break;
                }
                looks += 1;
                if looks.is_multiple_of(LOOKS_PER_CLOCK) {
                    now_ns = shared.now_ns();
                }
                // Yield the processor, since the peer may wait for it. A caller that waits for the lock gets it more
                // easily meanwhile.
                if yields.is_due(now_ns - yielded_ns) || shared.waiting.load(Ordering::Relaxed) > 0 {
                    let before_ns = shared.now_ns();
                    std::thread::yield_now();
                    now_ns = shared.now_ns();
                    yields.yielded(now_ns - before_ns);
                    yielded_ns = now_ns;
                }
            }
            engines().for_each(|engine| engine.shared.wakeups.end_lingering());
            // Read the clock again: another thread may have run on this processor since.
            let elapsed_ns = shared.now_ns() - begun_ns;
            let mut lingering = shared.lingering.lock().ignore_poison();
            lingering.0.ended(!found || elapsed_ns > 2 * HABITS.linger_ns);
            lingering.1 = yields;
        }
        if !found {
            engines().for_each(Self::rouse);
        }
        found
    }

    /// Returns the number of armed notifications. A caller that arms a notification increments the number and calls
    /// [`rouse`](Self::rouse). A caller that is notified decrements the number.
    pub fn armed(&self) -> &Arc<AtomicUsize> {
        self.shared.wakeups.armed()
    }

    /// Ends a nap of the thread, because a caller is about to sleep until the thread notifies it.
    pub fn rouse(&self) {
        // Store the value before the kick, so that the thread reads it when it wakes up.
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

    /// Returns the counters of the link.
    pub fn link_counters(&self) -> LinkCounters {
        self.shared.lock().link_counters().plus(&self.shared.inbox.counters())
    }

    /// Returns the counters of the RNIC and the link. Returns `None` if another thread holds the engine's lock.
    pub fn try_counters(&self) -> Option<(Counters, LinkCounters)> {
        let driver = self.shared.try_lock()?;
        Some((*driver.rnic().counters(), driver.link_counters().plus(&self.shared.inbox.counters())))
    }
}

impl Drop for DrivenRnic {
    fn drop(&mut self) {
        if self.shared.clock.is_virtual() {
            // No thread sends the remaining packets, which the link may capture.
            let mut driver = self.shared.lock();
            let sent = driver.flush(self.shared.now_ns());
            self.shared.report(sent);
            driver.link_mut().write_records();
            return;
        }
        exit::remove(&self.shared);
        self.shared.stop.store(true, Ordering::SeqCst);
        let is_told = self.shared.kick.is_intact() && self.shared.kick.signal();
        if !is_told {
            // The program has closed the thread's descriptors, and their numbers may belong to files of the program by
            // now. Do not write to these files or close them.
            std::mem::forget(Arc::clone(&self.shared));
        }
        // A thread that was not kicked may never end, so do not join it.
        let thread = std::mem::take(self.thread.get_mut().ignore_poison());
        if let EngineThread::Running(thread) = thread
            && is_told
        {
            // If the thread panicked, the panic handler has printed the panic.
            let _ = thread.join();
        }
    }
}

impl ThreadState {
    fn new(driver: Driver<Box<dyn Link>>, clock: Clock) -> io::Result<Self> {
        Ok(Self {
            port: driver.port_view(),
            port_service: Mutex::default(),
            inbox: Inbox::default(),
            engines: OnceLock::new(),
            driver: Mutex::new(driver),
            waiting: AtomicUsize::new(0),
            logging: AtomicUsize::new(0),
            clock,
            process: std::process::id(),
            kick: OwnEvent::new()?,
            wakeups: Wakeups::new(),
            polls: AtomicU64::new(0),
            armed_at: AtomicU64::new(0),
            posts: AtomicU64::new(0),
            burst: Burst::default(),
            stop: AtomicBool::new(false),
            is_abandoned: AtomicBool::new(false),
            holds_ack: AtomicBool::new(false),
            has_deferred: AtomicBool::new(false),
            flushes: Flushes::new(),
            failed: AtomicBool::new(false),
            wary_polls: AtomicUsize::new(0),
            lingering: Mutex::default(),
            groups: Mutex::default(),
        })
    }

    #[inline]
    fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    fn groups(&self) -> MutexGuard<'_, Vec<Arc<Joined>>> {
        self.groups.lock().ignore_poison()
    }

    /// Wakes the thread. Returns false if the program has closed the descriptor of `kick`.
    fn kick(&self) -> bool {
        // In virtual time there is no thread to wake.
        !self.clock.is_virtual() && !self.is_abandoned.load(Ordering::Relaxed) && self.kick.signal()
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
        // If several threads poll at once, some polls are not counted. The missing counts are harmless, since the
        // policy mainly checks whether the number changes.
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(polls), Ordering::Relaxed);
    }

    /// Returns whether the link still belongs to this process. Otherwise the program has closed the descriptors, whose
    /// numbers may belong to files of its own, or this is a forked child, which has neither sockets nor rings.
    fn may_receive(&self) -> bool {
        self.clock.is_virtual()
            || self.process == std::process::id() && !self.is_abandoned.load(Ordering::Relaxed) && self.kick.is_intact()
    }

    /// Drives the engine on behalf of a caller that polls.
    #[inline]
    fn drive(&self) -> bool {
        guard::admit_thread();
        let Some(mut driver) = self.try_lock() else { return false }; // the holder drives
        if self.inbox.has_packets() {
            self.receive_strays(&mut driver);
        } else if driver.look() {
            return true; // without a pump, nothing changes that `leave` would pass on
        }
        let now_ns = self.now_ns();
        driver.note_look(now_ns);
        self.note_held_acks(driver.rnic(), now_ns);
        let pumped = driver.pump(now_ns, self.acks_of_a_caller());
        if let Ok(packets @ 1..) = pumped {
            self.note_polls(packets as u64);
            let wary = self.wary_polls.load(Ordering::Relaxed);
            self.wary_polls.store(wary.saturating_sub(1), Ordering::Relaxed);
        }
        self.report(pumped);
        self.leave_received(driver);
        true
    }

    /// Unlocks the engine as [`leave`](Self::leave) does, after a call that has received.
    #[inline]
    fn leave_received(&self, driver: Guard<'_>) {
        // A datagram announces packets in shared memory. If this call has read the datagram, or the datagram was lost,
        // it does not wake the thread. So the caller kicks the thread.
        let misses_arrivals = self.wakeups.is_watching() && !driver.link().shows_arrivals();
        let deaths = self.leave(driver);
        if misses_arrivals {
            self.kick();
        }
        drop(deaths);
    }

    /// Sends the acknowledgements that are held back, since the caller's poll found nothing to answer.
    #[inline]
    fn flush_held(&self) {
        if self.holds_ack.load(Ordering::Relaxed) {
            let mut driver = self.lock();
            let sent = driver.flush(self.now_ns());
            self.report(sent);
            self.leave(driver);
        }
    }

    /// If an acknowledgement was held back for too long, callers did not answer soon. So callers are not trusted for
    /// the next polls.
    #[inline]
    fn note_held_acks(&self, rnic: &Rnic, now_ns: u64) {
        if rnic.held_ack_since_ns().is_some_and(|since_ns| now_ns.saturating_sub(since_ns) > HABITS.brief_ns) {
            self.wary_polls.store(HABITS.wary_polls, Ordering::Relaxed);
        }
    }

    /// Returns whether acknowledgements may wait for the caller's next call. They may if the thread is awake or will
    /// wake up soon. They also may during a long nap, unless callers have recently kept an acknowledgement waiting for
    /// too long.
    #[inline]
    fn acks_of_a_caller(&self) -> Acks {
        if self.clock.is_virtual() {
            return Acks::Now; // the next call may be far away in virtual time
        }
        let trusted = self.wakeups.is_napping() && self.wary_polls.load(Ordering::Relaxed) == 0;
        if trusted || self.wakeups.looks_soon() { Acks::MayWait } else { Acks::Now }
    }

    /// Unlocks the engine, and kicks the thread if remaining work needs it (rule (c)). Returns the deaths of queue
    /// pairs, which are logged when they are dropped. A subscriber may be slow, so the thread is kicked before.
    #[inline]
    fn leave<'a>(&self, mut driver: Guard<'a>) -> Option<Box<Deaths<'a>>> {
        self.holds_ack.store(driver.rnic().held_ack_since_ns().is_some(), Ordering::Relaxed);
        self.has_deferred.store(driver.has_deferred(), Ordering::Relaxed);
        let needs_more = self.wakeups.leave(driver.poll_timeout().unwrap_or(NEVER), driver.wants_room());
        if driver.rnic().has_strays() {
            self.pass_on(driver.rnic_mut().take_strays());
        }
        let deaths = driver.unlock();
        if needs_more && self.wakeups.must_kick() {
            self.kick();
        }
        deaths
    }
}
