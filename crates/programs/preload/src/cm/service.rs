//! Service thread, which handles the sockets and deadlines of this process's ids.
//!
//! The thread starts with the first id and blocks all signals. It belongs to one process: after a fork the child starts
//! a thread of its own.
//!
//! A program may close the thread's descriptors, like a daemon that closes all descriptors. The thread then waits for
//! files that have no descriptors, and no call can wake it. It checks its descriptors each [`LOOK`], and ends all lines
//! if they are gone. An id that is created later starts another thread.

use std::collections::HashMap;
use std::ffi::c_int;
use std::net::SocketAddr;
#[cfg(test)]
use std::os::fd::{AsFd as _, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
#[cfg(test)]
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use doorbell_sync::IgnorePoison;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use doorbell_fabric::{OwnEvent, OwnProcess, spawn_without_signals};

use super::line::{Line, refused};
use crate::objects::answer::{Answer, Refused};
use crate::process::fork;

/// Number of a line, unique within a service.
pub(super) type Number = u64;

/// Number of the descriptor that wakes the thread.
const WAKE: Number = 0;

/// Name of the thread.
pub(crate) const THREAD: &str = "doorbell-cm";

/// Number of attempts to take a lock whose holder may be the thread that a signal has interrupted.
const ATTEMPTS: usize = 20;

/// Interval at which the thread checks its descriptors.
const LOOK: Duration = Duration::from_secs(1);

/// Maximum number of sockets per call of epoll.
const TURN: usize = 64;

pub(super) struct Service {
    epoll: Epoll,
    wake: OwnEvent,
    table: Mutex<Table>,
}

struct Table {
    next: Number,
    /// Whether the thread has ended.
    is_over: bool,
    lines: HashMap<Number, Served>,
}

struct Served {
    line: Arc<Line>,
    deadline: Option<Instant>,
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

/// Service of this process, with the fork generation of the process.
static SERVICE: Mutex<Option<(u32, Arc<Service>)>> = Mutex::new(None);

/// Returns the service of this process. Starts one if there is none, or if the program has closed its descriptors.
pub(super) fn get() -> Answer<Arc<Service>> {
    let mut service = SERVICE.lock().ignore_poison();
    if let Some((generation, service)) = &*service
        && *generation == fork::generation()
        && service.is_intact()
    {
        return Ok(Arc::clone(service));
    }
    let new = Service::start()?;
    // The old service is not dropped. Threads of the parent may hold its locks, and its descriptors may now belong to
    // other files.
    std::mem::forget(service.replace((fork::generation(), Arc::clone(&new))));
    Ok(new)
}

/// Calls `wanted` while the listeners of this process give up the TCP port. If `wanted` fails, they take it again.
/// Returns whether `wanted` succeeded.
///
/// Returns false if a lock stays held: a signal handler may call this while its own thread holds the lock.
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

/// Takes a lock that other threads hold only briefly. Returns `None` if the lock stays held, since its holder may be
/// the thread that a signal has interrupted.
pub(super) fn attempt<T>(lock: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    soon(|| match lock.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    })
}

/// Calls `attempt` for some milliseconds until it succeeds.
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
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed)?;
        let wake = OwnEvent::new().map_err(|error| refused("the connection manager has no eventfd", &error))?;
        epoll.add(&wake, is_woken()).map_err(failed)?;
        let table = Mutex::new(Table { next: WAKE + 1, is_over: false, lines: HashMap::new() });
        let service = Arc::new(Self { epoll, wake, table });
        let own = Arc::clone(&service);
        match spawn_without_signals(THREAD, move || own.run()) {
            Ok(_) => Ok(service),
            Err(error) => Err(Refused::new(
                error.raw_os_error().unwrap_or(libc::EAGAIN),
                format!("the thread of the connection manager could not be started: {error}"),
            )),
        }
    }

    /// Returns whether the descriptors are still those of the service.
    pub(super) fn is_intact(&self) -> bool {
        // Another epoll does not contain this eventfd, so the call fails there. It does not change the own epoll.
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

    /// Adds a line that waits for its deadline and for no socket.
    pub(super) fn keep(&self, line: &Arc<Line>, deadline: Option<Instant>) -> Answer<()> {
        let mut table = self.table();
        if table.is_over {
            return Err(closed());
        }
        table.lines.insert(line.number, Served { line: Arc::clone(line), deadline });
        drop(table);
        self.wake();
        Ok(())
    }

    /// Adds a line that waits for its socket and its deadline.
    pub(super) fn serve(
        &self,
        line: &Arc<Line>,
        socket: &OwnProcess,
        interest: EpollFlags,
        deadline: Option<Instant>,
    ) -> Answer<()> {
        self.keep(line, deadline)?;
        self.watch(line.number, socket, interest).inspect_err(|_| {
            self.table().lines.remove(&line.number);
        })?;
        self.wake();
        Ok(())
    }

    /// Watches one more socket of a line that was added before.
    pub(super) fn watch(&self, number: Number, socket: &OwnProcess, interest: EpollFlags) -> Answer<()> {
        if !self.is_intact() || !socket.is_intact() {
            return Err(closed());
        }
        self.epoll.add(socket, EpollEvent::new(interest, number)).map_err(failed)
    }

    /// Changes the epoll events that a socket of a line waits for.
    pub(super) fn expect(&self, number: Number, socket: &OwnProcess, interest: EpollFlags) {
        // The socket is registered, so this fails only if the program has closed a descriptor.
        let _ = self.epoll.modify(socket, &mut EpollEvent::new(interest, number));
    }

    pub(super) fn set_deadline(&self, number: Number, deadline: Option<Instant>) {
        if let Some(served) = self.table().lines.get_mut(&number) {
            served.deadline = deadline;
        }
        self.wake();
    }

    /// Limits the deadlines of these lines to `until`.
    pub(super) fn hasten(&self, numbers: &[Number], until: Instant) {
        let mut table = self.table();
        for number in numbers {
            if let Some(served) = table.lines.get_mut(number) {
                served.deadline = Some(served.deadline.map_or(until, |deadline| deadline.min(until)));
            }
        }
        drop(table);
        self.wake();
    }

    /// Removes a socket from the epoll before it is closed. A forked child may hold the socket too, which would keep it
    /// registered.
    pub(super) fn forget_socket(&self, socket: &OwnProcess) {
        if socket.is_intact() {
            // The call fails for a socket that was never registered.
            let _ = self.epoll.delete(socket);
        }
    }

    pub(super) fn forget(&self, number: Number) {
        let gone = self.table().lines.remove(&number);
        drop(gone); // without the lock held, since this may drop the line
    }

    fn wake(&self) {
        self.wake.signal();
    }

    fn run(&self) {
        let mut events = [EpollEvent::empty(); TURN];
        let mut look_at = Instant::now() + LOOK;
        loop {
            let ready = match self.epoll.wait(&mut events, self.timeout()) {
                Ok(ready) => ready,
                Err(nix::Error::EINTR) => continue,
                Err(_) => return self.end_all(),
            };
            for event in &events[..ready] {
                if event.data() == WAKE {
                    self.wake.reset();
                    continue;
                }
                let line = self.table().lines.get(&event.data()).map(|served| Arc::clone(&served.line));
                if let Some(line) = line {
                    apart(|| line.on_ready());
                }
            }
            for line in self.take_expired() {
                apart(|| line.on_deadline());
            }
            if Instant::now() >= look_at {
                if !self.is_intact() {
                    return self.end_all();
                }
                look_at = Instant::now() + LOOK;
            }
        }
    }

    /// Ends all lines when the thread ends.
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

    fn timeout(&self) -> EpollTimeout {
        let next = self.table().lines.values().filter_map(|served| served.deadline).min();
        let left = next.map_or(LOOK, |next| next.saturating_duration_since(Instant::now()).min(LOOK));
        // The conversion to milliseconds rounds down, so add one.
        EpollTimeout::from(left.as_millis() as u16 + 1)
    }

    fn take_expired(&self) -> Vec<Arc<Line>> {
        let now = Instant::now();
        let mut table = self.table();
        let expired = table.lines.values_mut().filter(|served| served.deadline.is_some_and(|deadline| deadline <= now));
        expired
            .map(|served| {
                served.deadline = None;
                Arc::clone(&served.line)
            })
            .collect()
    }
}

#[cfg(test)]
impl Service {
    /// Returns the descriptors of the epoll and of the eventfd.
    pub(super) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.epoll.0.as_fd(), self.wake.as_fd()]
    }
}

/// Calls `body` and catches a panic, so that a defect in one line does not stop the others.
fn apart(body: impl FnOnce()) {
    let _panic = catch_unwind(AssertUnwindSafe(body));
    #[cfg(test)]
    PANICS.fetch_add(usize::from(_panic.is_err()), Ordering::Relaxed);
}

#[cfg(test)]
static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Returns the number of panics that the thread has caught.
#[cfg(test)]
pub(super) fn panics() -> usize {
    PANICS.load(Ordering::Relaxed)
}
