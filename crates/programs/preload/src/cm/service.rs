//! The service thread, which handles the sockets and deadlines of this process's ids.
//!
//! The thread starts when the first id is created, and blocks all signals. The thread belongs to one process. A forked
//! child starts its own thread.
//!
//! A program may close the descriptors of this thread, for example as a daemon that closes all descriptors. Then the
//! thread waits for files that no longer have descriptors, and no call can wake the thread. So the thread checks its
//! descriptors at each interval [`LOOK`]. If the program has closed them, the thread ends all lines. The next new id
//! starts another thread.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::c_int;
use std::net::SocketAddr;
#[cfg(test)]
use std::os::fd::{AsFd as _, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
#[cfg(test)]
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use doorbell_admission::Clock;
use doorbell_sync::IgnorePoison;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use doorbell_fabric::{OwnEvent, OwnProcess, spawn_without_signals};

use super::line::{Line, refused};
use crate::objects::answer::{Answer, Refused};
use crate::process::fork;

/// Number of a line, unique within a service.
pub(super) type Number = u64;

/// Number that stands for the eventfd in epoll events. The eventfd wakes the thread. No line has this number.
const WAKE: Number = 0;

/// Name of the service thread.
pub(crate) const THREAD: &str = "doorbell-cm";

/// Maximum number of attempts to take a lock. The number is limited, since a signal handler that takes the lock may
/// have interrupted the thread that holds it.
const ATTEMPTS: usize = 20;

/// Interval at which the service thread checks its descriptors.
const LOOK: Duration = Duration::from_secs(1);

pub(super) struct Service {
    epoll: Epoll,
    wake: OwnEvent,
    table: Mutex<Table>,
}

struct Table {
    next: Number,
    /// Whether the service thread has ended.
    is_over: bool,
    lines: HashMap<Number, Served>,
    /// Time that counts for the visitors of all listeners, for which the service thread waits together. The real times
    /// of the clock are relative to `begun`.
    clock: Clock,
    begun: Instant,
}

struct Served {
    line: Arc<Line>,
    deadline: Option<Deadline>,
}

/// Deadline of a line.
#[derive(Clone, Copy, Debug)]
pub(super) enum Deadline {
    /// Instant of real time.
    Real(Instant),
    /// Time as [`Service::counted`] returns it. Of a stop of the process, at most a tenth of a second counts.
    Counted(Duration),
}

impl Table {
    /// Returns the instant at which the service thread must continue because of a deadline. `None` if the instant is
    /// too far in the future.
    fn wakes_at(&self, deadline: Deadline) -> Option<Instant> {
        match deadline {
            Deadline::Real(instant) => Some(instant),
            Deadline::Counted(counted) => self.begun.checked_add(self.clock.wake(counted)),
        }
    }

    fn has_passed(&self, deadline: Deadline, now: Instant) -> bool {
        match deadline {
            Deadline::Real(instant) => instant <= now,
            Deadline::Counted(counted) => counted <= self.clock.counted(),
        }
    }
}

fn failed(error: nix::Error) -> Refused {
    Refused::new(error as c_int, format!("the connection manager could not wait for its sockets: {error}"))
}

fn closed() -> Refused {
    Refused::new(libc::EBADF, "the program has closed the descriptors of the connection manager")
}

fn is_woken() -> EpollEvent {
    EpollEvent::new(EpollFlags::EPOLLIN, WAKE)
}

/// Service of this process, and the fork generation of the process that created it.
static SERVICE: Mutex<Option<(u32, Arc<Service>)>> = Mutex::new(None);

/// Returns the service of this process. Starts a service if none exists, or if the program has closed the descriptors
/// of the old service.
pub(super) fn get() -> Answer<Arc<Service>> {
    let mut service = SERVICE.lock().ignore_poison();
    if let Some((generation, service)) = &*service
        && *generation == fork::generation()
        && service.is_intact()
    {
        return Ok(Arc::clone(service));
    }
    let new = Service::start()?;
    // Do not drop the old service. Threads of the parent may hold its locks, and its descriptor numbers may now refer
    // to other files.
    std::mem::forget(service.replace((fork::generation(), Arc::clone(&new))));
    Ok(new)
}

/// Closes the TCP sockets that the listeners of this process have at `port`, and calls `wanted`. If `wanted` fails, the
/// listeners listen at the TCP port again. Returns whether `wanted` succeeded.
///
/// Returns false if a lock stays held. A signal handler may call this function while its own thread holds the lock.
pub(super) fn leaving_tcp(port: SocketAddr, wanted: impl FnOnce() -> bool) -> bool {
    let lines: Vec<_> = {
        let Some(service) = attempt(&SERVICE) else { return false };
        let Some((generation, service)) = &*service else { return false };
        let Some(table) = (*generation == fork::generation()).then(|| attempt(&service.table)).flatten() else {
            return false;
        };
        table.lines.values().map(|served| Arc::clone(&served.line)).collect()
    };
    let left: Vec<_> = lines.iter().filter(|line| line.leave_tcp(port)).collect();
    if left.is_empty() {
        return false;
    }
    let is_done = wanted();
    for line in left {
        if is_done {
            line.tell_left_tcp(port);
        } else {
            line.return_to_tcp();
        }
    }
    is_done
}

/// Takes a lock that other threads hold only briefly. Returns `None` if the lock stays held. The thread that holds the
/// lock may be this thread, interrupted by a signal.
pub(super) fn attempt<T>(lock: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    soon(|| match lock.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    })
}

/// Calls `attempt` repeatedly for some milliseconds until it returns a value.
pub(super) fn soon<T>(mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    for _ in 1..ATTEMPTS {
        if let Some(value) = attempt() {
            return Some(value);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    attempt()
}

impl Service {
    pub(super) fn start() -> Answer<Arc<Self>> {
        let service = Self::new()?;
        let own = Arc::clone(&service);
        match spawn_without_signals(THREAD, move || own.run()) {
            Ok(_) => Ok(service),
            Err(error) => Err(Refused::new(
                error.raw_os_error().unwrap_or(libc::EAGAIN),
                format!("the thread of the connection manager could not be started: {error}"),
            )),
        }
    }

    /// Creates a service without its thread.
    pub(super) fn new() -> Answer<Arc<Self>> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed)?;
        let wake = OwnEvent::new()
            .map_err(|error| refused("an eventfd for the connection manager could not be created", &error))?;
        epoll.add(&wake, is_woken()).map_err(failed)?;
        let (clock, begun) = (Clock::default(), Instant::now());
        let table = Table { next: WAKE + 1, is_over: false, lines: HashMap::new(), clock, begun };
        Ok(Arc::new(Self { epoll, wake, table: Mutex::new(table) }))
    }

    /// Returns whether the program has left the descriptors of the service unchanged.
    pub(super) fn is_intact(&self) -> bool {
        // `modify` fails if the epoll's descriptor now refers to another epoll, since the other epoll does not contain
        // the eventfd. On the service's own epoll, `modify` changes nothing.
        self.wake.is_intact() && self.epoll.modify(&self.wake, &mut is_woken()).is_ok()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().ignore_poison()
    }

    /// Returns a number for a new line.
    pub(super) fn number(&self) -> Number {
        let mut table = self.table();
        table.next += 1;
        table.next
    }

    /// Adds a line that waits only for its deadline.
    pub(super) fn keep(&self, line: &Arc<Line>, deadline: Option<Deadline>) -> Answer<()> {
        let mut table = self.table();
        if table.is_over {
            return Err(closed());
        }
        table.lines.insert(line.number, Served { line: Arc::clone(line), deadline });
        drop(table);
        self.wake();
        Ok(())
    }

    /// Adds a line that waits for its socket and for its deadline.
    pub(super) fn serve(
        &self,
        line: &Arc<Line>,
        socket: &OwnProcess,
        interest: EpollFlags,
        deadline: Option<Deadline>,
    ) -> Answer<()> {
        self.keep(line, deadline)?;
        self.watch(line.number, socket, interest).inspect_err(|_| {
            self.table().lines.remove(&line.number);
        })?;
        self.wake();
        Ok(())
    }

    /// Watches another socket of a line that was added before.
    pub(super) fn watch(&self, number: Number, socket: &OwnProcess, interest: EpollFlags) -> Answer<()> {
        if !self.is_intact() || !socket.is_intact() {
            return Err(closed());
        }
        self.epoll.add(socket, EpollEvent::new(interest, number)).map_err(failed)
    }

    /// Changes the epoll events for which a socket of a line waits.
    pub(super) fn expect(&self, number: Number, socket: &OwnProcess, interest: EpollFlags) {
        // The socket is registered, so the call fails only if the program has closed a descriptor.
        let _ = self.epoll.modify(socket, &mut EpollEvent::new(interest, number));
    }

    pub(super) fn set_deadline(&self, number: Number, deadline: Option<Deadline>) {
        if let Some(served) = self.table().lines.get_mut(&number) {
            served.deadline = deadline;
        }
        self.wake();
    }

    pub(super) fn line(&self, number: Number) -> Option<Arc<Line>> {
        self.table().lines.get(&number).map(|served| Arc::clone(&served.line))
    }

    /// Removes a socket from the epoll before the line closes the socket. A forked child may also hold the socket, and
    /// the epoll would then keep reporting it.
    pub(super) fn forget_socket(&self, socket: &OwnProcess) {
        if socket.is_intact() {
            // Ignore the error for a socket that was never registered.
            let _ = self.epoll.delete(socket);
        }
    }

    pub(super) fn forget(&self, number: Number) {
        let gone = self.table().lines.remove(&number);
        drop(gone); // drop the line only after the lock is free
    }

    pub(super) fn wake(&self) {
        self.wake.signal();
    }

    /// Returns the time that counts for visitors, including the time since the last call. At most a tenth of a second
    /// counts between two calls.
    pub(super) fn counted(&self) -> Duration {
        let mut table = self.table();
        let real = table.begun.elapsed();
        table.clock.return_at(real)
    }

    fn run(&self) {
        let mut events = Vec::new();
        let mut look_at = Instant::now() + LOOK;
        while self.round(&mut events) {
            if Instant::now() >= look_at {
                if !self.is_intact() {
                    break;
                }
                look_at = Instant::now() + LOOK;
            }
        }
        self.end_all();
    }

    /// Waits for sockets and deadlines, and handles all lines that are ready. But each listener handles only one
    /// visitor or connection, so its strangers do not delay its clients and other lines. Epoll reports the remaining
    /// ones again in the next round. Returns false if the program has closed the descriptors of the service.
    pub(super) fn round(&self, events: &mut Vec<EpollEvent>) -> bool {
        let (sockets, timeout) = self.awaited();
        events.resize(sockets, EpollEvent::empty());
        let waited = self.epoll.wait(events, timeout);
        self.counted();
        let ready = match waited {
            Ok(ready) => ready,
            Err(nix::Error::EINTR) => 0,
            Err(_) => return false,
        };
        let mut listeners = BTreeMap::new();
        for number in events[..ready].iter().map(EpollEvent::data) {
            if number == WAKE {
                self.wake.reset();
                continue;
            }
            let Some(line) = self.line(number) else { continue };
            match line.listener() {
                Some(listener) => {
                    let (_, ready) = listeners.entry(listener.number).or_insert_with(|| (listener, BTreeSet::new()));
                    ready.insert(number);
                }
                None => apart(|| line.on_ready()),
            }
        }
        for (listener, ready) in listeners.into_values() {
            apart(|| listener.take_turn(&ready));
        }
        for line in self.take_expired() {
            apart(|| line.on_deadline());
        }
        true
    }

    /// Ends all lines. Called when the service thread ends.
    fn end_all(&self) {
        let lines = {
            let mut table = self.table();
            table.is_over = true;
            std::mem::take(&mut table.lines)
        };
        for served in lines.into_values() {
            apart(|| served.line.on_service_end());
        }
    }

    /// Returns the maximum number of ready sockets, and the time until the next deadline. If epoll returned fewer
    /// sockets than are ready, a client could be hidden behind strangers.
    pub(super) fn awaited(&self) -> (usize, EpollTimeout) {
        let table = self.table();
        let deadlines = table.lines.values().filter_map(|served| served.deadline);
        let next = deadlines.filter_map(|deadline| table.wakes_at(deadline)).min();
        let left = next.map_or(LOOK, |next| next.saturating_duration_since(Instant::now()).min(LOOK));
        // Round up, so that the thread does not wake before the deadline.
        let timeout = EpollTimeout::from(left.as_nanos().div_ceil(1_000_000) as u16);
        // A listener has at most two sockets, and another line has one. The eventfd is ready too.
        (2 * table.lines.len() + 1, timeout)
    }

    fn take_expired(&self) -> Vec<Arc<Line>> {
        let now = Instant::now();
        let mut table = self.table();
        let has_passed = |deadline| table.has_passed(deadline, now);
        let expired = table.lines.values().filter(|served| served.deadline.is_some_and(has_passed));
        let expired: Vec<_> = expired.map(|served| Arc::clone(&served.line)).collect();
        for line in &expired {
            if let Some(served) = table.lines.get_mut(&line.number) {
                served.deadline = None;
            }
        }
        expired
    }
}

#[cfg(test)]
impl Service {
    /// Returns the descriptors of the epoll and of the eventfd.
    pub(super) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.epoll.0.as_fd(), self.wake.as_fd()]
    }

    /// Lets time pass in one piece, as if the process were stopped.
    pub(super) fn stop_for(&self, time: Duration) {
        self.table().begun -= time;
        self.counted();
    }
}

/// Calls `body` and catches a panic, so that a defect in one line does not stop the other lines.
fn apart(body: impl FnOnce()) {
    let _panic = catch_unwind(AssertUnwindSafe(body));
    #[cfg(test)]
    PANICS.fetch_add(usize::from(_panic.is_err()), Ordering::Relaxed);
}

#[cfg(test)]
static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Returns the number of panics that the service thread has caught.
#[cfg(test)]
pub(super) fn panics() -> usize {
    PANICS.load(Ordering::Relaxed)
}
