//! Who makes progress.
//!
//! An engine has one lock, and whoever holds it drives it. Programs drive it from their own
//! calls; a thread drives it when no program does. The rules:
//!
//! - (a) A post transmits at once when nothing of its engine is in flight; otherwise it may wait
//!   for the caller's next poll or the next inbound packet, so that single posts become runs.
//! - (b) A due acknowledgement may outlive the call that received its request, so that it leaves
//!   behind the reply, for a moment while someone polls, and not at all otherwise.
//! - (c) Work that is left when a call returns always has an owner: an inbound packet that is
//!   certain to come, or the thread's deadline.
//! - (d) If the last poll found nothing, the caller is coming back: a thread that is woken then
//!   leaves the packets, and looks again after a nap in which it does not watch the socket. If
//!   the last poll returned something, or a notification is armed, the thread stays armed: the
//!   program may spin on memory next.
//!
//! A wake-up costs whoever sends the packet several microseconds, which is why the thread does
//! not watch the socket while someone polls.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::Instant;

use doorbell_rnic::{Completion, CompletionQueue, MAX_RUN_PACKETS, Overrun, Rnic};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::sys::time::TimeSpec;

use crate::driver::{Acks, Driver};
use crate::link::Link;

/// How long the thread leaves the packets to a caller that polls.
const NAP_NS: u64 = 100_000;

/// Naps grow up to this while polls keep coming.
const LONGEST_NAP_NS: u64 = 300_000;

const NEVER: u64 = u64::MAX;

/// What the thread is doing.
mod mode {
    /// It drives, or is about to look around.
    pub(super) const AWAKE: u8 = 0;
    /// It sleeps on the socket.
    pub(super) const WATCHING: u8 = 1;
    /// It sleeps and lets the callers drive.
    pub(super) const NAPPING: u8 = 2;
}

struct Shared {
    driver: Mutex<Driver<Box<dyn Link>>>,
    epoch: Instant,
    kick: EventFd,
    mode: AtomicU8,
    /// When the thread wakes up by itself.
    wakes_ns: AtomicU64,
    /// When the engine wants to be driven at the latest.
    deadline_ns: AtomicU64,
    /// The link is full: something waits for room.
    link_full: AtomicBool,
    /// Counts polls, to tell whether anyone polls.
    polls: AtomicU64,
    last_poll_found_nothing: AtomicBool,
    /// Notifications that are armed.
    armed: Arc<AtomicUsize>,
    stop: AtomicBool,
    failed: AtomicBool,
}

/// An RNIC on a link, driven by its callers and by a thread of its own.
pub struct Port {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Port").finish_non_exhaustive()
    }
}

impl Port {
    /// Starts driving `rnic` over `link`. `readable` becomes readable when the link has received
    /// something: the socket. `port` is the UDP port of both ends.
    pub fn start(rnic: Rnic, link: Box<dyn Link>, readable: OwnedFd, port: u16) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            driver: Mutex::new(Driver::new(rnic, link, port)),
            epoch: Instant::now(),
            kick: EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?,
            mode: AtomicU8::new(mode::AWAKE),
            wakes_ns: AtomicU64::new(0),
            deadline_ns: AtomicU64::new(NEVER),
            link_full: AtomicBool::new(false),
            polls: AtomicU64::new(0),
            last_poll_found_nothing: AtomicBool::new(false),
            armed: Arc::default(),
            stop: AtomicBool::new(false),
            failed: AtomicBool::new(false),
        });
        // Signals are the program's: the thread is born with all of them blocked.
        let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
        let thread = {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().name("doorbell".into()).spawn(move || shared.run(&readable))
        };
        before.thread_set_mask()?;
        Ok(Self { shared, thread: Some(thread?) })
    }

    /// Nanoseconds since the port was started.
    pub fn now_ns(&self) -> u64 {
        self.shared.now_ns()
    }

    /// Runs something on the RNIC that sends nothing by itself: objects, receives, queries.
    pub fn with<R>(&self, operation: impl FnOnce(&mut Rnic) -> R) -> R {
        operation(self.shared.lock().rnic_mut())
    }

    /// Runs something on the RNIC that may leave something to send, and sends it if nothing else
    /// is certain to (rule (a)). `operation` says how much waits to be sent.
    pub fn post<R>(&self, operation: impl FnOnce(&mut Rnic, u64) -> (R, usize)) -> R {
        let mut driver = self.shared.lock();
        let now_ns = self.shared.now_ns();
        let idle = !driver.rnic().has_in_flight();
        let (result, waiting) = operation(driver.rnic_mut(), now_ns);
        if idle || waiting >= MAX_RUN_PACKETS || !driver.rnic().has_in_flight() {
            let sent = driver.transmit(now_ns);
            self.shared.report(sent);
        }
        self.shared.leave(driver);
        result
    }

    /// Reaps completions; drives the engine if there are none.
    #[inline]
    pub fn poll(&self, queue: &CompletionQueue, out: &mut [Completion]) -> Result<usize, Overrun> {
        let mut count = queue.poll(out)?;
        if count == 0 {
            self.shared.drive();
            count = queue.poll(out)?;
        }
        self.note_poll(count == 0);
        Ok(count)
    }

    /// Drives the engine once. True if it was free to be driven.
    pub fn drive(&self) -> bool {
        self.shared.drive()
    }

    fn note_poll(&self, found_nothing: bool) {
        let shared = &self.shared;
        // Not exact where several threads poll: a change is all that matters.
        shared.polls.store(shared.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        shared.last_poll_found_nothing.store(found_nothing, Ordering::Relaxed);
    }

    /// Counts the notifications that are armed. Whoever arms one adds one and calls
    /// [`rouse`](Self::rouse); whoever is notified takes one away.
    pub fn armed(&self) -> &Arc<AtomicUsize> {
        &self.shared.armed
    }

    /// Ends a nap of the thread: somebody is going to sleep until it notifies.
    pub fn rouse(&self) {
        if self.shared.mode.load(Ordering::SeqCst) != mode::WATCHING {
            self.shared.kick();
        }
    }

    /// Did the link fail for good?
    pub fn has_failed(&self) -> bool {
        self.shared.failed.load(Ordering::Relaxed)
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.kick();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed by the panic handler; there is nothing to add.
            let _ = thread.join();
        }
    }
}

type Guard<'a> = MutexGuard<'a, Driver<Box<dyn Link>>>;

impl Shared {
    fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    fn lock(&self) -> Guard<'_> {
        // The holder is another caller or the thread, for the length of one pump: worth a short
        // spin before going to sleep.
        for _ in 0..200 {
            match self.driver.try_lock() {
                Ok(guard) => return guard,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        self.driver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kick(&self) {
        // It can only fail when the counter is full, and then it is kicked already.
        let _ = self.kick.write(1);
    }

    fn report(&self, result: io::Result<impl Sized>) {
        if let Err(error) = result
            && !self.failed.swap(true, Ordering::Relaxed)
        {
            tracing::error!(%error, "the link failed: nothing is sent or received any more");
        }
    }

    /// Drives the engine on behalf of a caller that polls.
    #[inline]
    fn drive(&self) -> bool {
        let mut driver = match self.driver.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false, // the holder drives
        };
        // An acknowledgement may only wait while the thread is sure to look soon.
        let napping = self.mode.load(Ordering::Relaxed) == mode::NAPPING;
        let acks = if napping { Acks::MayWait } else { Acks::Now };
        let pumped = driver.pump(self.now_ns(), acks);
        self.report(pumped);
        self.leave(driver);
        true
    }

    /// Lets go of the engine, and sees to it that what is left has an owner (rule (c)).
    #[inline]
    fn leave(&self, driver: Guard<'_>) {
        let deadline_ns = driver.poll_timeout().unwrap_or(NEVER);
        let full = driver.is_link_full();
        drop(driver);
        self.deadline_ns.store(deadline_ns, Ordering::SeqCst);
        let was_full = self.link_full.load(Ordering::Relaxed);
        if full != was_full {
            self.link_full.store(full, Ordering::SeqCst);
        }
        match self.mode.load(Ordering::SeqCst) {
            // It looks again within a nap, which is soon enough for any deadline.
            mode::NAPPING | mode::AWAKE => {}
            _ => {
                if deadline_ns < self.wakes_ns.load(Ordering::SeqCst) || (full && !was_full) {
                    self.kick();
                }
            }
        }
    }

    /// The thread.
    fn run(&self, readable: &OwnedFd) {
        let mut nap_ns = 0;
        let mut polls_seen = self.polls.load(Ordering::Relaxed);
        while !self.stop.load(Ordering::SeqCst) {
            if nap_ns > 0 {
                self.sleep(mode::NAPPING, None, self.now_ns() + nap_ns);
                let polls = self.polls.load(Ordering::Relaxed);
                if polls != std::mem::replace(&mut polls_seen, polls) {
                    if self.is_caller_coming_back() {
                        // Callers drive; but what is overdue is overdue.
                        if self.deadline_ns.load(Ordering::SeqCst) <= self.now_ns() {
                            self.pump();
                        }
                        nap_ns = (2 * nap_ns).min(LONGEST_NAP_NS);
                        continue;
                    }
                } else {
                    // Nobody polled for a whole nap: nobody is coming back.
                    self.last_poll_found_nothing.store(false, Ordering::Relaxed);
                }
                nap_ns = 0;
                self.pump();
            }
            let deadline_ns = self.deadline_ns.load(Ordering::SeqCst);
            if deadline_ns > self.now_ns() {
                let woken_by_packets = self.sleep(mode::WATCHING, Some(readable), deadline_ns);
                if woken_by_packets && self.is_caller_coming_back() {
                    polls_seen = self.polls.load(Ordering::Relaxed);
                    nap_ns = NAP_NS;
                    continue;
                }
            }
            self.pump();
        }
    }

    /// Did the last poll find nothing, with nobody asking to be notified?
    fn is_caller_coming_back(&self) -> bool {
        self.last_poll_found_nothing.load(Ordering::Relaxed) && self.armed.load(Ordering::SeqCst) == 0
    }

    /// Sleeps until kicked, until `until_ns`, or until the socket is readable: true if that.
    fn sleep(&self, mode: u8, readable: Option<&OwnedFd>, until_ns: u64) -> bool {
        self.wakes_ns.store(until_ns, Ordering::SeqCst);
        self.mode.store(mode, Ordering::SeqCst);
        // A caller that left a deadline before it could see the mode: it is looked at once more.
        let woken = if readable.is_some() && self.deadline_ns.load(Ordering::SeqCst) < until_ns {
            false
        } else {
            self.sleep_on(readable, until_ns)
        };
        self.mode.store(mode::AWAKE, Ordering::SeqCst);
        woken
    }

    fn sleep_on(&self, readable: Option<&OwnedFd>, until_ns: u64) -> bool {
        let mut events = PollFlags::POLLIN;
        if self.link_full.load(Ordering::SeqCst) {
            events |= PollFlags::POLLOUT;
        }
        let kick = PollFd::new(self.kick.as_fd(), PollFlags::POLLIN);
        let (mut both, mut one);
        let fds: &mut [PollFd<'_>] = match readable {
            Some(fd) => {
                both = [kick, PollFd::new(fd.as_fd(), events)];
                &mut both
            }
            None => {
                one = [kick];
                &mut one
            }
        };
        let timeout = (until_ns != NEVER).then(|| {
            let left = until_ns.saturating_sub(self.now_ns());
            TimeSpec::from(std::time::Duration::from_nanos(left))
        });
        // An interruption is as good as any wake-up: the caller looks at everything again.
        let _ = ppoll(fds, timeout, None);
        let ready = |index: usize| fds.get(index).and_then(PollFd::any).unwrap_or(false);
        let (kicked, packets) = (ready(0), ready(1));
        if kicked {
            let _ = self.kick.read();
        }
        packets
    }

    fn pump(&self) {
        let mut driver = self.lock();
        let mut result = driver.pump(self.now_ns(), Acks::Now);
        // Nobody else drives: everything that has arrived is handled.
        while let Ok(received) = result
            && received > 0
            && !self.stop.load(Ordering::Relaxed)
        {
            result = driver.pump(self.now_ns(), Acks::Now);
        }
        let failed = result.is_err();
        self.report(result);
        self.leave(driver);
        if failed {
            // Do not spin on a socket that is broken.
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    }
}
