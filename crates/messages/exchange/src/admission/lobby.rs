//! The IO of admission: one thread handles all visitors of a listener, without blocking on any visitor.
#![expect(clippy::disallowed_methods, reason = "TCP has no device, and its deadlines need a clock")]

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::mem;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use doorbell_admission::Clock;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::socket::{Backlog, listen};

use super::{Admission, Limits, Number, Opening, Progress, Verdict};

/// Maximum number of bytes that one turn of a visitor reads. The longest step of an opening takes few turns.
const PIECE: usize = 64 << 10;

/// Maximum number of bytes that the lobby reads from a dismissed visitor and drops. If these bytes stayed unread, the
/// kernel would reset the connection, and the visitor could not read the reason of its dismissal.
const DROPPED_MAX: usize = 64 << 10;

/// Remaining time of a client whose deadline lies beyond the range of `Instant`.
const NEVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Maximum number of connections that the kernel queues for a listener. `net.core.somaxconn` may reduce it.
const BACKLOG: i32 = 4096;

/// Time for which the lobby accepts no connections after `accept` has failed, for example because no descriptor is
/// left.
const PAUSE: Duration = Duration::from_millis(100);

/// Key of the listener in epoll. The key of a visitor is its number.
const LISTENER: u64 = u64::MAX;

/// Event that a lobby reports to its owner.
#[derive(Debug)]
pub enum Event<T, R> {
    /// A visitor has completed its opening, and the owner can serve the visitor.
    Admitted {
        /// Stream of the visitor, in blocking mode. The bytes after the opening are unread.
        stream: TcpStream,
        /// Address of the visitor.
        from: SocketAddr,
        /// Deadline of the visitor's set-up.
        until: Instant,
        /// Contents of the visitor's opening.
        opening: T,
    },
    /// The lobby has rejected a visitor.
    Refused {
        /// Address of the visitor.
        from: SocketAddr,
        /// Reason of the refusal.
        why: Why<R>,
    },
}

/// Reason for which a lobby has rejected a visitor.
#[derive(Debug, thiserror::Error)]
pub enum Why<R> {
    /// The opening of the visitor is invalid.
    #[error("{0}")]
    Refused(R),
    /// The visitor did not complete its opening in time.
    #[error("the peer did not complete its opening within {} s", .0.as_secs_f64())]
    Deadline(Duration),
    /// The visitor had been silent for the longest time when a new visitor arrived.
    #[error("the peer was disconnected to make room for a new connection: of all peers, it had been silent longest")]
    Evicted,
    /// The connection of the visitor ended.
    #[error("the connection ended during the opening: {0}")]
    Ended(io::Error),
}

/// Number of visitors that [`Lobby::next`] handles after its instant. So a caller that never waits reaches its clients
/// beside strangers, and strangers that are always ready do not keep the caller for long.
const LATE_STEPS: usize = 16;

/// Outcome of [`Lobby::step`].
#[derive(Debug)]
pub enum Step<T, R> {
    /// No visitor was ready.
    Idle,
    /// The lobby has handled or accepted a visitor.
    Handled,
    /// The lobby has handled or accepted a visitor, and reports an event to its owner.
    Event(Event<T, R>),
}

impl<T, R> Step<T, R> {
    fn handled(event: Option<Event<T, R>>) -> Self {
        event.map_or(Self::Handled, Self::Event)
    }
}

/// Visitors of a listener and their streams.
///
/// The descriptor of a lobby is an epoll descriptor, which an event loop can watch. The descriptor becomes readable
/// when the lobby can handle a visitor or accept a connection.
#[derive(Debug)]
pub struct Lobby<O> {
    listener: TcpListener,
    /// Initial opening, of which each visitor gets a copy.
    opening: O,
    limits: Limits,
    admission: Admission,
    guests: HashMap<Number, Guest<O>>,
    epoll: Epoll,
    events: Vec<EpollEvent>,
    /// Visitors whose bytes stay unread until they may complete their first step. Epoll does not watch their streams.
    parked: BTreeSet<Number>,
    begun: Instant,
    clock: Clock,
    is_listening: bool,
    paused_until: Option<Duration>,
    /// Whether the lobby looks for an arrival before it looks for a ready visitor. Both take turns, so that neither a
    /// flood of connections nor visitors that are always ready can keep a client waiting.
    is_arrivals_turn: bool,
    /// Addresses of evicted visitors that the lobby has not reported yet.
    evicted: VecDeque<SocketAddr>,
    piece: Box<[u8]>,
    /// Addresses of visitors, in the order in which the lobby handled the visitors.
    #[cfg(test)]
    handled: Vec<SocketAddr>,
}

#[derive(Debug)]
struct Guest<O> {
    stream: TcpStream,
    from: SocketAddr,
    name: String,
    /// Opening of the visitor. `None` after the visitor was dismissed.
    opening: Option<O>,
    /// Bytes that the lobby has not yet written to the stream.
    output: Vec<u8>,
    dropped: usize,
}

/// Outcome of a visitor's turn.
enum Turn<O: Opening> {
    Stays(Progress),
    Dismissed(Option<O::Refusal>),
    Admitted(O::Admitted),
    Gone(Option<io::Error>),
}

/// Returns the maximum number of visitors of a process that may open this number of descriptors.
fn most_visitors(wanted: usize, descriptors: u64) -> usize {
    wanted.min(usize::try_from(descriptors / 4).unwrap_or(usize::MAX)).max(1)
}

impl<O: Opening> Lobby<O> {
    /// Makes a lobby for a listener. Each visitor gets a copy of `opening`. Visitors use at most a quarter of the
    /// descriptors that this process may open.
    ///
    /// # Errors
    ///
    /// The operating system rejects an option of the listener, or cannot make or use an epoll descriptor.
    pub fn new(listener: TcpListener, opening: O, mut limits: Limits) -> io::Result<Self> {
        let (descriptors, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
        limits.visitors = most_visitors(limits.visitors, descriptors);
        listener.set_nonblocking(true)?;
        // The backlog of the standard library is short. If other peers filled it, clients would wait for seconds.
        listen(&listener, Backlog::new(BACKLOG)?)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
        Ok(Self {
            listener,
            opening,
            limits,
            admission: Admission::new(limits),
            guests: HashMap::new(),
            epoll,
            events: vec![EpollEvent::empty(); limits.visitors + 1],
            parked: BTreeSet::new(),
            begun: Instant::now(),
            clock: Clock::default(),
            is_listening: true,
            paused_until: None,
            is_arrivals_turn: false,
            evicted: VecDeque::new(),
            piece: vec![0; PIECE].into(),
            #[cfg(test)]
            handled: Vec::new(),
        })
    }

    /// Returns the address that visitors connect to.
    ///
    /// # Errors
    ///
    /// The operating system does not know the address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Sets [`Limits::total`] for visitors that arrive from now on.
    pub fn set_total(&mut self, total: Duration) {
        self.limits.total = total;
        self.admission.set_total(total);
    }

    /// Handles visitors until a visitor is admitted or rejected, or until the instant `until`. If `until` is `None`,
    /// the call waits without limit.
    ///
    /// # Errors
    ///
    /// The operating system failed to accept a connection. The caller may call again at once.
    pub fn next(&mut self, until: Option<Instant>) -> io::Result<Option<Event<O::Admitted, O::Refusal>>> {
        let mut late_steps = LATE_STEPS;
        loop {
            let is_last = until.is_some_and(|until| Instant::now() >= until);
            match self.step()? {
                Step::Event(event) => return Ok(Some(event)),
                Step::Idle if is_last => return Ok(None),
                Step::Handled if is_last && late_steps == 0 => return Ok(None),
                Step::Handled => late_steps -= usize::from(is_last),
                Step::Idle => {
                    let ends = [self.wakes_at(), until].into_iter().flatten().min();
                    let nap = ends.map(|end| end.saturating_duration_since(Instant::now()));
                    self.ready(nap)?;
                }
            }
        }
    }

    /// Handles one visitor or accepts one connection, without waiting. A caller that waits for visitors calls again at
    /// [`wakes_at`](Self::wakes_at) at the latest: of the time between two calls, at most a tenth of a second counts.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`next`](Self::next).
    pub fn step(&mut self) -> io::Result<Step<O::Admitted, O::Refusal>> {
        if let Some(from) = self.evicted.pop_front() {
            return Ok(Step::Event(Event::Refused { from, why: Why::Evicted }));
        }
        let now = self.clock.return_at(self.begun.elapsed());
        let (mut ready, has_arrival) = self.ready(Some(Duration::ZERO))?;
        self.parked.retain(|number| self.guests.contains_key(number));
        if self.admission.step_at() <= now {
            ready.extend(&self.parked);
        }
        // A visitor with unread bytes gets one more turn, even if its deadline passed while others had theirs. A
        // visitor that has sent bytes without a step gets none, or it could stay while others go first.
        let has_turn = |number: &Number| ready.contains(number) && !self.admission.is_fruitless(*number);
        let expired = self.admission.expired(now).find(|number| !has_turn(number));
        if let Some(number) = expired {
            return Ok(Step::handled(self.part(number, Why::Deadline(self.limits.total))));
        }
        let chosen = if has_arrival && self.is_arrivals_turn { None } else { self.admission.choose(ready) };
        self.is_arrivals_turn = chosen.is_some();
        match (chosen, has_arrival) {
            (Some(number), _) => Ok(Step::handled(self.turn(number, now))),
            (None, true) => Ok(Step::handled(self.handle_arrival(now)?)),
            (None, false) => Ok(Step::Idle),
        }
    }

    #[cfg(test)]
    pub(crate) fn counted(&self) -> Duration {
        self.clock.counted()
    }

    /// Returns the time of the next [`step`](Self::step) if no stream is ready before. Without visitors and pauses, the
    /// result is `None`.
    pub fn wakes_at(&self) -> Option<Instant> {
        let step_at = if self.parked.is_empty() { Duration::ZERO } else { self.admission.step_at() };
        let opens_at = [self.opens_at(), step_at].into_iter().filter(|&at| at > self.clock.counted());
        let next = self.admission.deadline().into_iter().chain(opens_at).min();
        next.and_then(|at| self.begun.checked_add(self.clock.wake(at)))
    }

    /// Returns the time at which the lobby accepts connections again. Until then, new connections wait in the kernel's
    /// queue.
    fn opens_at(&self) -> Duration {
        self.paused_until.unwrap_or_default().max(self.admission.place_at())
    }

    /// Starts or stops watching the listener. While the lobby does not watch it, new connections wait in the kernel's
    /// queue.
    fn listen(&mut self, is_listening: bool) -> io::Result<()> {
        if self.is_listening != is_listening {
            let flags = if is_listening { EpollFlags::EPOLLIN } else { EpollFlags::empty() };
            self.epoll.modify(&self.listener, &mut EpollEvent::new(flags, LISTENER))?;
            self.is_listening = is_listening;
        }
        Ok(())
    }

    /// Returns the visitors whose streams are ready, and whether a connection can be accepted. Waits for at most the
    /// time `within`, or without limit if `within` is `None`.
    fn ready(&mut self, within: Option<Duration>) -> io::Result<(Vec<Number>, bool)> {
        let is_open = self.opens_at() <= self.clock.counted();
        self.listen(is_open)?;
        // The timeout is rounded up to whole milliseconds. Otherwise the loop would spin for the last millisecond.
        let rounded = |within: Duration| EpollTimeout::try_from(within + Duration::from_micros(999));
        let timeout = within.map_or(EpollTimeout::NONE, |within| match within.is_zero() {
            true => EpollTimeout::ZERO,
            false => rounded(within).unwrap_or(EpollTimeout::MAX),
        });
        let count = match self.epoll.wait(&mut self.events, timeout) {
            Ok(count) => count,
            Err(nix::Error::EINTR) => 0,
            Err(error) => return Err(error.into()),
        };
        let ready = self.events[..count].iter().map(EpollEvent::data).filter(|&number| number != LISTENER);
        let ready = ready.collect::<Vec<_>>();
        let has_arrival = ready.len() < count;
        Ok((ready, has_arrival))
    }

    /// Accepts a connection. If there is no room, first evicts a visitor.
    fn handle_arrival(&mut self, now: Duration) -> io::Result<Option<Event<O::Admitted, O::Refusal>>> {
        if let Some(number) = self.admission.in_the_way() {
            // The token of this visitor may have just arrived, so the visitor gets a last turn.
            let event = self.turn(number, now);
            let is_silent = self.admission.in_the_way() == Some(number) && self.admission.has_place(now);
            match event {
                None if is_silent => self.evict(number),
                None if self.admission.in_the_way().is_none() && self.admission.has_place(now) => {} // it is gone
                event => return Ok(event),
            }
        }
        self.accept(now)
    }

    /// Removes a visitor to make room. The next call of [`step`](Self::step) reports it.
    fn evict(&mut self, number: Number) {
        self.admission.leave(number);
        let guest = self.guests.remove(&number).filter(|guest| guest.opening.is_some());
        self.evicted.extend(guest.map(|guest| guest.from));
    }

    /// Accepts one connection and handles the new visitor for the first time: an honest client has often sent its first
    /// bytes already.
    fn accept(&mut self, now: Duration) -> io::Result<Option<Event<O::Admitted, O::Refusal>>> {
        let (stream, from) = match self.listener.accept() {
            Ok(accepted) => accepted,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => {
                    return Ok(None);
                }
                _ => {
                    // The process may have no descriptor left. An evicted visitor frees one.
                    if let Some(number) = self.admission.dispensable(now) {
                        self.evict(number);
                    }
                    self.paused_until = Some(now + PAUSE);
                    return Err(error);
                }
            },
        };
        self.paused_until = None;
        if stream.set_nonblocking(true).is_err() {
            return Ok(None); // the visitor is gone
        }
        let _ = stream.set_nodelay(true); // without this option, the visitor is only slower
        let number = self.admission.arrive(now);
        // A listener for both address families sees IPv4 addresses as mapped IPv6 addresses, so convert them to IPv4.
        let from = SocketAddr::new(from.ip().to_canonical(), from.port());
        if let Err(error) = self.epoll.add(&stream, EpollEvent::new(EpollFlags::EPOLLIN, number)) {
            self.admission.leave(number);
            return Err(error.into());
        }
        let opening = Some(self.opening.clone());
        let guest = Guest { stream, from, name: from.to_string(), opening, output: Vec::new(), dropped: 0 };
        self.guests.insert(number, guest);
        Ok(self.turn(number, now))
    }

    /// Handles a visitor whose stream may be ready. If too many others have completed a step, and none of them was
    /// silent for long, the visitor waits. It also waits behind older visitors that wait.
    fn turn(&mut self, number: Number, now: Duration) -> Option<Event<O::Admitted, O::Refusal>> {
        if let Some(oldest) = self.admission.in_the_way_of(number) {
            // The next bytes of this visitor may have just arrived, so the visitor gets a last turn.
            let event = if self.admission.step_at() <= now { self.handle(oldest, now) } else { None };
            if event.is_some() {
                return event;
            }
        }
        if self.admission.must_wait(number, now) {
            match self.guests.get(&number)?.stream.peek(&mut [0]) {
                Ok(1..) => {
                    return self.watch(number, false).err().and_then(|error| self.part(number, Why::Ended(error)));
                }
                // A visitor that has sent nothing is silent, and does not wait.
                Err(error) if is_for_later(&error) => return None,
                _ => {} // the connection has ended
            }
        }
        match self.watch(number, true) {
            Ok(()) => self.handle(number, now),
            Err(error) => self.part(number, Why::Ended(error)),
        }
    }

    /// Starts or stops watching the stream of a visitor.
    fn watch(&mut self, number: Number, is_watched: bool) -> io::Result<()> {
        let Some(guest) = self.guests.get(&number) else { return Ok(()) };
        self.admission.set_waits(number, !is_watched);
        if is_watched && self.parked.remove(&number) {
            self.epoll.add(&guest.stream, EpollEvent::new(EpollFlags::EPOLLIN, number))?;
        }
        if !is_watched && self.parked.insert(number) {
            self.epoll.delete(&guest.stream)?;
        }
        Ok(())
    }

    fn handle(&mut self, number: Number, now: Duration) -> Option<Event<O::Admitted, O::Refusal>> {
        let guest = self.guests.get_mut(&number)?;
        #[cfg(test)]
        self.handled.push(guest.from);
        let was_writing = !guest.output.is_empty();
        let turn = guest.turn(&mut self.piece);
        // The time in which the opening has worked is no silence of the visitor.
        let heard_at = self.clock.return_at(self.begun.elapsed());
        let is_writing = !guest.output.is_empty();
        if was_writing != is_writing {
            let flags = if is_writing { EpollFlags::EPOLLOUT } else { EpollFlags::EPOLLIN };
            if let Err(error) = self.epoll.modify(&guest.stream, &mut EpollEvent::new(flags, number)) {
                return self.part(number, Why::Ended(error.into()));
            }
        }
        match turn {
            Turn::Stays(progress) => {
                self.admission.heard(number, heard_at, progress);
                if guest.opening.is_none() {
                    self.admission.dismiss(number, !is_writing);
                }
                if let Some(other) = self.admission.surplus() {
                    self.evict(other);
                }
                match self.admission.is_over(number, now) {
                    true => self.part(number, Why::Deadline(self.limits.total)),
                    false => None,
                }
            }
            Turn::Dismissed(why) => {
                self.admission.heard(number, heard_at, Progress::Step);
                self.admission.dismiss(number, !is_writing);
                why.map(|why| Event::Refused { from: guest.from, why: Why::Refused(why) })
            }
            Turn::Gone(None) => {
                self.admission.leave(number);
                self.guests.remove(&number);
                None
            }
            Turn::Gone(Some(error)) => {
                let ended = match &guest.opening {
                    Some(opening) => opening.ended(&guest.name, error),
                    None => Err(error),
                };
                self.part(number, ended.map_or_else(Why::Ended, Why::Refused))
            }
            Turn::Admitted(opening) => {
                let until = self.clock.real(self.admission.until(number).unwrap_or(now));
                let until = self.begun.checked_add(until).unwrap_or_else(|| Instant::now() + NEVER);
                self.admission.leave(number);
                let Guest { stream, from, .. } = self.guests.remove(&number)?;
                let released = self.epoll.delete(&stream).map_err(io::Error::from);
                Some(match released.and_then(|()| stream.set_nonblocking(false)) {
                    Ok(()) => Event::Admitted { stream, from, until, opening },
                    Err(error) => Event::Refused { from, why: Why::Ended(error) },
                })
            }
        }
    }

    /// Removes a visitor and returns the event of its rejection. Returns `None` if the visitor was already dismissed.
    fn part(&mut self, number: Number, why: Why<O::Refusal>) -> Option<Event<O::Admitted, O::Refusal>> {
        self.admission.leave(number);
        let guest = self.guests.remove(&number)?;
        guest.opening.is_some().then_some(Event::Refused { from: guest.from, why })
    }
}

impl<O> AsFd for Lobby<O> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

impl<O> AsRawFd for Lobby<O> {
    fn as_raw_fd(&self) -> RawFd {
        self.epoll.0.as_raw_fd()
    }
}

impl<O: Opening> Guest<O> {
    fn turn(&mut self, piece: &mut [u8]) -> Turn<O> {
        if !self.output.is_empty() {
            return self.write();
        }
        match self.opening.as_mut() {
            None => self.drop_input(piece),
            Some(_) => self.read(piece),
        }
    }

    /// Reads only up to the end of the opening. The protocol after the opening reads the remaining bytes.
    fn read(&mut self, piece: &mut [u8]) -> Turn<O> {
        let Some(opening) = self.opening.as_mut() else { return Turn::Stays(Progress::Nothing) };
        let there = match self.stream.peek(piece) {
            Ok(0) => return Turn::Gone(Some(io::ErrorKind::UnexpectedEof.into())),
            Ok(there) => there,
            Err(error) if is_for_later(&error) => return Turn::Stays(Progress::Nothing),
            Err(error) => return Turn::Gone(Some(error)),
        };
        let (used, verdict) = opening.hear(&self.name, &piece[..there]);
        if let Err(error) = self.stream.read_exact(&mut piece[..used.min(there)]) {
            return Turn::Gone(Some(error));
        }
        match verdict {
            Verdict::Continue => Turn::Stays(Progress::Bytes),
            Verdict::Admit(admitted) => Turn::Admitted(admitted),
            Verdict::Reply(reply) => {
                self.output = reply;
                match self.write() {
                    Turn::Stays(_) => Turn::Stays(Progress::Step),
                    turn => turn,
                }
            }
            Verdict::Dismiss { reply, why } => {
                self.opening = None;
                self.output = reply;
                // Later turns write the remaining bytes, and detect an error of the stream.
                let _ = self.write();
                Turn::Dismissed(why)
            }
        }
    }

    /// Writes bytes of `output` until the stream would block.
    fn write(&mut self) -> Turn<O> {
        let output = mem::take(&mut self.output);
        let mut rest = &output[..];
        let mut result = Ok(());
        while !rest.is_empty() && result.is_ok() {
            match self.stream.write(rest) {
                Ok(0) => result = Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => rest = &rest[count..],
                Err(error) => result = Err(error),
            }
        }
        self.output = rest.to_vec();
        match result {
            Err(error) if !is_for_later(&error) => {
                self.output.clear();
                Turn::Gone(Some(error))
            }
            Err(_) => Turn::Stays(Progress::Bytes),
            Ok(()) => {
                if self.opening.is_none() {
                    let _ = self.stream.shutdown(Shutdown::Write); // the peer may have closed the stream before
                }
                Turn::Stays(Progress::Bytes)
            }
        }
    }

    /// Reads and drops further input of a dismissed visitor. If this input stayed unread, the kernel would reset the
    /// connection, and the visitor could not read the reason of its dismissal.
    fn drop_input(&mut self, piece: &mut [u8]) -> Turn<O> {
        match self.stream.read(piece) {
            Ok(0) => Turn::Gone(None),
            Ok(count) => {
                self.dropped += count;
                if self.dropped > DROPPED_MAX { Turn::Gone(None) } else { Turn::Stays(Progress::Bytes) }
            }
            Err(error) if is_for_later(&error) => Turn::Stays(Progress::Nothing),
            Err(_) => Turn::Gone(None),
        }
    }
}

fn is_for_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests;
