//! The thread that serves the connections of this process's ids, and their deadlines.
//!
//! It starts with the first id that needs it, blocks all signals, and belongs to one process: after a
//! fork the child starts one of its own.

use std::collections::HashMap;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
#[cfg(test)]
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use doorbell_fabric::spawn_without_signals;

use super::line::Line;
use crate::answer::{Answer, Refused};
use crate::fork::{self, say};

/// Names a line to the thread; no number is used twice.
pub(super) type Number = u64;

/// The number of the descriptor that wakes the thread.
const WAKE: Number = 0;

/// The name of the thread.
pub(crate) const THREAD: &str = "doorbell-cm";

/// How often a lock is tried whose holder may be the thread that a signal has interrupted.
const ATTEMPTS: usize = 20;

/// Sockets that are looked at in one turn.
const TURN: usize = 64;

pub(super) struct Service {
    epoll: Epoll,
    wake: EventFd,
    table: Mutex<Table>,
}

struct Table {
    next: Number,
    lines: HashMap<Number, Served>,
}

struct Served {
    line: Arc<Line>,
    deadline: Option<Instant>,
}

fn failed(error: nix::Error) -> Refused {
    Refused::new(error as c_int, format!("the connection manager could not wait for its sockets: {error}"))
}

/// That of this process, with the number of the process in its row of forks.
static SERVICE: Mutex<Option<(u32, Arc<Service>)>> = Mutex::new(None);

/// The service of this process, started if it is not.
pub(super) fn get() -> Answer<Arc<Service>> {
    let mut service = SERVICE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((generation, service)) = &*service
        && *generation == fork::generation()
    {
        return Ok(Arc::clone(service));
    }
    let new = Service::start()?;
    // The parent's is not to be dropped here: locks in it may be held by threads that do not exist.
    std::mem::forget(service.replace((fork::generation(), Arc::clone(&new))));
    Ok(new)
}

/// Calls `wanted` while no listener of this process has that port of TCP. They have it again where that fails.
///
/// A lock that is not to be had soon is given up: a handler of signals may call this, whose thread holds it.
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

/// Takes a lock that others hold for an instant only, unless whoever holds it waits for us.
pub(super) fn attempt<T>(lock: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    soon(|| match lock.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    })
}

/// Tries something for some milliseconds, until it succeeds.
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
    fn start() -> Answer<Arc<Self>> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed)?;
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map_err(failed)?;
        epoll.add(&wake, EpollEvent::new(EpollFlags::EPOLLIN, WAKE)).map_err(failed)?;
        let table = Mutex::new(Table { next: WAKE + 1, lines: HashMap::new() });
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

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for a new line.
    pub(super) fn number(&self) -> Number {
        let mut table = self.table();
        table.next += 1;
        table.next
    }

    /// Keeps a line whose socket has nothing to wait for until its deadline.
    pub(super) fn keep(&self, line: &Arc<Line>, deadline: Option<Instant>) {
        self.table().lines.insert(line.number, Served { line: Arc::clone(line), deadline });
        self.wake();
    }

    /// Serves a line from now on.
    pub(super) fn serve(
        &self,
        line: &Arc<Line>,
        socket: impl AsFd,
        interest: EpollFlags,
        deadline: Option<Instant>,
    ) -> Answer<()> {
        self.keep(line, deadline);
        self.watch(line.number, socket, interest).inspect_err(|_| {
            self.table().lines.remove(&line.number);
        })?;
        self.wake();
        Ok(())
    }

    /// Watches one socket more of a line that is served.
    pub(super) fn watch(&self, number: Number, socket: impl AsFd, interest: EpollFlags) -> Answer<()> {
        self.epoll.add(socket, EpollEvent::new(interest, number)).map_err(failed)
    }

    /// Changes what a line waits for.
    pub(super) fn expect(&self, number: Number, socket: impl AsFd, interest: EpollFlags) {
        // It is registered, so nothing but a defect could make this fail.
        let done = self.epoll.modify(socket, &mut EpollEvent::new(interest, number));
        debug_assert_eq!(done, Ok(()));
    }

    pub(super) fn set_deadline(&self, number: Number, deadline: Option<Instant>) {
        if let Some(served) = self.table().lines.get_mut(&number) {
            served.deadline = deadline;
        }
        self.wake();
    }

    /// None of these waits any longer than until then.
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

    /// Before a socket is closed: a forked child may hold it too, and would keep it registered.
    pub(super) fn forget_socket(&self, socket: impl AsFd) {
        // One that was never registered is as good.
        let _ = self.epoll.delete(socket);
    }

    pub(super) fn forget(&self, number: Number) {
        let gone = self.table().lines.remove(&number);
        drop(gone); // after the lock: it may be the last of its line
    }

    fn wake(&self) {
        let _ = self.wake.write(1);
    }

    fn run(&self) {
        let mut events = [EpollEvent::empty(); TURN];
        loop {
            let ready = match self.epoll.wait(&mut events, self.timeout()) {
                Ok(ready) => ready,
                Err(nix::Error::EINTR) => continue,
                Err(error) => {
                    say(&format!("doorbell: {}", failed(error)));
                    return;
                }
            };
            for event in &events[..ready] {
                if event.data() == WAKE {
                    let _ = self.wake.read();
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
        }
    }

    fn timeout(&self) -> EpollTimeout {
        let next = self.table().lines.values().filter_map(|served| served.deadline).min();
        let Some(next) = next else { return EpollTimeout::NONE };
        timeout_for(next.saturating_duration_since(Instant::now()))
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

/// A defect that one line meets must not stop the others.
fn apart(body: impl FnOnce()) {
    let _panic = catch_unwind(AssertUnwindSafe(body));
    #[cfg(test)]
    PANICS.fetch_add(usize::from(_panic.is_err()), Ordering::Relaxed);
}

#[cfg(test)]
static PANICS: AtomicUsize = AtomicUsize::new(0);

/// How often a line met a defect.
#[cfg(test)]
pub(super) fn panics() -> usize {
    PANICS.load(Ordering::Relaxed)
}

/// A longer wait ends early: what is left of it is seen then.
fn timeout_for(wait: Duration) -> EpollTimeout {
    // A millisecond more, or it would wake just before.
    EpollTimeout::from(u16::try_from(wait.as_millis() + 1).unwrap_or(u16::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_deadline_is_slept_through() {
        let cases: [(u64, u16); 6] =
            [(0, 1), (69, 70), (65_534, 65_535), (65_535, 65_535), (69_000, 65_535), (u64::MAX, 65_535)];
        for (wait_ms, timeout_ms) in cases {
            assert_eq!(timeout_for(Duration::from_millis(wait_ms)), EpollTimeout::from(timeout_ms), "{wait_ms} ms");
        }
    }
}
