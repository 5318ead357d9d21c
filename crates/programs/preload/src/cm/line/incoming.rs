//! Work of the service thread on a line: accepting connections, handling messages, and handling deadlines.

use std::collections::BTreeSet;
use std::ffi::c_int;
use std::io;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use doorbell_admission::Progress;
use doorbell_fabric::{Opening, OwnProcess};
use doorbell_ibverbs_sys as c;
use doorbell_verbs::QpKind;
use nix::sys::epoll::EpollFlags;
use socket2::{SockAddr, SockRef};

use super::transport::prepare;
use super::{Line, Phase, READ, State, refused};
use crate::cm::address::{canonical, is_here};
use crate::cm::channel::Detail;
use crate::cm::message::{Endpoint, Host, Message, lookup, reason};
use crate::cm::ports;
use crate::cm::service::{Deadline, Number};
use crate::objects::answer::{Answer, Refused};

/// Deadline for a peer to send its request after it has connected.
pub(in crate::cm) const ARRIVAL: Duration = Duration::from_secs(10);

/// Time for which a listener that cannot accept connections stops accepting.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

impl Line {
    /// Returns the listener that decides when the service thread handles this line: the line itself if it listens, or
    /// the listener that the line visits. `None` for other lines, which the thread handles in each round.
    pub(in crate::cm) fn listener(self: &Arc<Self>) -> Option<Arc<Self>> {
        let state = self.state();
        match state.phase {
            Phase::Listening { .. } => Some(Arc::clone(self)),
            Phase::Arriving => state.listener.clone(),
            _ => None,
        }
    }

    /// Handles the ready socket of a line that neither listens nor visits a listener.
    pub(in crate::cm) fn on_ready(self: &Arc<Self>) {
        let mut state = self.state();
        match state.phase {
            Phase::Connecting { connected: false } => self.on_connected(&mut state),
            Phase::Crowded | Phase::Listening { .. } => {}
            _ => {
                self.read(&mut state);
            }
        }
    }

    /// Accepts a connection of this listener, or handles one of its visitors. `ready` contains the numbers of its ready
    /// visitors, and its own number if a connection is waiting.
    pub(in crate::cm) fn take_turn(self: &Arc<Self>, ready: &BTreeSet<Number>) {
        let mut state = self.state();
        let is_called = ready.contains(&self.number);
        match state.visitors.choose(ready, is_called) {
            Some(visitor) => {
                drop(state);
                self.hear(visitor);
            }
            None if is_called => self.accept_next(state),
            None => {}
        }
    }

    /// Reads and handles the messages that have arrived. For a visitor, each message is a step.
    fn read(self: &Arc<Self>, state: &mut State) -> Progress {
        let before = state.inbox.len();
        let end = state.receive();
        let mut progress = if state.inbox.len() > before { Progress::Bytes } else { Progress::Nothing };
        loop {
            match Message::parse(&state.inbox) {
                Ok(Some((message, length))) => {
                    state.inbox.drain(..length);
                    progress = Progress::Step;
                    self.on_message(state, message);
                }
                Ok(None) => break,
                Err(malformed) => {
                    Refused::new(libc::EPROTO, malformed.to_string()).tell("rdma_cm");
                    self.on_end(state, libc::EPROTO);
                    return progress;
                }
            }
        }
        if let Err(error) = end {
            self.on_end(state, error.raw_os_error().unwrap_or(libc::ECONNRESET));
        }
        progress
    }

    /// Lets a visitor of this listener have a turn. The caller holds no lock.
    fn hear(&self, visitor: Number) {
        let Some(line) = self.service.line(visitor) else { return };
        #[cfg(test)]
        self.state().visitors.handled.push(visitor);
        let progress = line.read(&mut line.state());
        let now = self.service.counted();
        self.state().visitors.heard(visitor, now, progress);
    }

    /// Accepts one connection. If there is no room, first ends the visitor that has been silent for the longest time.
    fn accept_next<'a>(self: &'a Arc<Self>, mut state: MutexGuard<'a, State>) {
        let now = self.service.counted();
        let place_at = state.visitors.place_at();
        if place_at > now {
            return self.pause(&mut state, place_at);
        }
        if let Some(visitor) = state.visitors.in_the_way() {
            // The order of locks is the line of a visitor, then its listener. So drop the listener's lock first.
            drop(state);
            self.evict(visitor);
            state = self.state();
            if !matches!(state.phase, Phase::Listening { .. }) || state.visitors.in_the_way().is_some() {
                return;
            }
        }
        let (count, first) = (state.listening.len(), state.visitors.turn);
        for index in (first..first + count).map(|index| index % count) {
            let Some(listening) = state.listening.get(index).filter(|socket| socket.is_intact()) else { continue };
            let opening = Opening::begin();
            match SockRef::from(listening).accept() {
                Ok((connection, from)) => {
                    let socket = OwnProcess::new(connection.into(), &opening);
                    drop(opening);
                    state.visitors.turn = index + 1;
                    let visitor = match self.arrive(&state, socket, &from, now) {
                        Ok(visitor) => visitor,
                        Err(why) => return why.tell("rdma_cm"),
                    };
                    state.visitors.arrive(visitor, now);
                    drop(state);
                    // An honest client has often sent its request already.
                    return self.hear(visitor);
                }
                Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM)) => {
                    drop(opening);
                    let Some(visitor) = state.visitors.dispensable(now) else {
                        return self.pause(&mut state, now + PAUSE);
                    };
                    drop(state);
                    // The next turn uses the descriptor of this visitor.
                    return self.evict(visitor);
                }
                // No connection is waiting, or the first waiting connection was aborted. In the second case, epoll
                // reports the remaining connections again.
                Err(_) => {}
            }
        }
    }

    /// Ends a visitor that has been silent for too long. The visitor first has a last turn, since its request may have
    /// just arrived. The caller holds no lock.
    fn evict(&self, visitor: Number) {
        self.hear(visitor);
        let now = self.service.counted();
        let is_silent = self.state().visitors.dispensable(now) == Some(visitor);
        let Some(line) = self.service.line(visitor).filter(|_| is_silent) else { return };
        let mut state = line.state();
        if state.phase == Phase::Arriving {
            line.on_end(&mut state, libc::ETIMEDOUT);
        }
    }

    /// Removes a visitor of this listener. A paused listener accepts connections again, since the visitor leaves a
    /// place or a descriptor.
    fn part_from(&self, state: &mut State, visitor: Number) {
        state.visitors.leave(visitor);
        self.resume(state);
    }

    /// Stops watching the sockets of a listener until the counted time is `until`. Otherwise, connections that the
    /// listener cannot accept would keep the service thread busy.
    fn pause(&self, state: &mut State, until: Duration) {
        for listening in &state.listening {
            self.service.expect(self.number, listening, EpollFlags::empty());
        }
        state.visitors.is_paused = true;
        self.service.set_deadline(self.number, Some(Deadline::Counted(until)));
    }

    fn resume(&self, state: &mut State) {
        if std::mem::take(&mut state.visitors.is_paused) {
            for listening in &state.listening {
                self.service.expect(self.number, listening, READ);
            }
        }
    }

    fn arrive(self: &Arc<Self>, state: &State, socket: OwnProcess, from: &SockAddr, now: Duration) -> Answer<Number> {
        let failed = |error: io::Error| refused("a connection to the listener could not be accepted", &error);
        let connection = SockRef::from(&socket);
        connection.set_nonblocking(true).map_err(failed)?;
        let child = Arc::new(Self::with(Arc::clone(&self.service), &state.queue, state.kind, state.space));
        // No other thread knows the new line yet, so taking the lock of its state does not wait.
        let mut own = child.state();
        own.phase = Phase::Arriving;
        own.options = state.options;
        if let Some(remote) = from.as_socket() {
            prepare(&socket);
            own.local = connection.local_addr().map_err(failed)?.as_socket().map(canonical);
            own.remote = Some(canonical(remote));
        } else {
            let caller = ports::caller(from).filter(|caller| caller.space == state.space);
            let bound = state.claim.as_ref().map(|claim| *claim.bound());
            own.called = Some(caller.zip(bound).ok_or_else(|| {
                Refused::new(libc::EPROTO, "a program of this machine connected from a socket that has no rdma_cm port")
            })?);
        }
        own.listener = Some(Arc::clone(self));
        self.service.serve(&child, &socket, READ, Some(Deadline::Counted(now + ARRIVAL)))?;
        own.socket = Some(socket);
        Ok(child.number)
    }

    fn on_connected(self: &Arc<Self>, state: &mut State) {
        let Some(socket) = &state.socket else { return };
        let connection = SockRef::from(socket);
        let error = match connection.take_error() {
            Ok(None) if connection.peer_addr().is_err() => return, // the socket is not connected yet
            Ok(error) => error,
            Err(error) => Some(error),
        };
        self.service.expect(self.number, socket, READ);
        let said = match (error, &state.request) {
            (Some(error), _) => Err(error),
            (None, Some(request)) => state.say(request),
            (None, None) => Ok(()),
        };
        match said {
            Ok(()) => state.phase = Phase::Connecting { connected: true },
            Err(error) => self.on_refusal(state, &error),
        }
    }

    fn on_message(self: &Arc<Self>, state: &mut State, message: Message) {
        use Message as M;
        match (state.phase, message) {
            (Phase::Arriving, M::Addresses { source, destination }) if state.called.is_some() => {
                if let Err(why) = state.learn_addresses(source, destination) {
                    why.tell("rdma_cm");
                    self.on_end(state, libc::EPROTO);
                }
            }
            (Phase::Arriving, M::Request { kind, endpoint, retry_count, private }) if state.called.is_none() => {
                state.kind = kind;
                state.terms.learn(endpoint);
                state.terms.retry_count = retry_count;
                self.on_request(state, Some(endpoint), retry_count, private);
            }
            (Phase::Arriving, M::Lookup { private }) if state.called.is_none() => {
                state.kind = QpKind::Ud;
                self.on_request(state, None, 0, private);
            }
            (Phase::Connecting { .. }, M::Reply { endpoint, private }) if state.kind != QpKind::Ud => {
                state.terms.learn(endpoint);
                state.phase = Phase::Answered;
                self.service.set_deadline(self.number, None);
                let retry_count = state.terms.retry_count;
                let detail = Detail::Connection { endpoint, retry_count, private };
                state.tell(c::RDMA_CM_EVENT_CONNECT_RESPONSE, 0, detail);
            }
            (Phase::Connecting { .. }, M::LookupReply { status, gid, qpn, qkey, private })
                if state.kind == QpKind::Ud =>
            {
                state.end(&self.service, self.number);
                if status == lookup::SUCCESS {
                    let detail = Detail::Datagram { gid, qpn, qkey, private };
                    state.tell(c::RDMA_CM_EVENT_ESTABLISHED, 0, detail);
                } else {
                    state.tell(c::RDMA_CM_EVENT_UNREACHABLE, status.into(), Detail::NoService { private });
                }
            }
            (
                Phase::Connecting { .. } | Phase::Requested | Phase::Accepted | Phase::Answered,
                M::Reject { reason, private },
            ) => {
                state.end(&self.service, self.number);
                state.tell(c::RDMA_CM_EVENT_REJECTED, reason.into(), Detail::Rejection { private });
            }
            (Phase::Accepted, M::ReadyToUse) => state.establish(&self.service, self.number),
            (Phase::Accepted | Phase::Answered | Phase::Established | Phase::Disconnecting, M::DisconnectRequest) => {
                // Ignore errors: the peer already considers the connection ended, and may have closed its socket.
                let _ = state.say(&Message::DisconnectReply);
                if state.phase == Phase::Accepted {
                    state.establish(&self.service, self.number);
                }
                state.disconnected(&self.service, self.number, 0);
            }
            (Phase::Disconnecting, M::DisconnectReply) => state.disconnected(&self.service, self.number, 0),
            // An RTU may follow after data has established the connection. After the end, the line ignores all
            // messages.
            (Phase::Established, M::ReadyToUse) | (Phase::Disconnected | Phase::Over, _) => {}
            (Phase::Disconnecting, M::ReadyToUse) => {}
            (phase, message) => {
                Refused::new(libc::EPROTO, format!("message {message:?} is not allowed in phase {phase:?}"))
                    .tell("rdma_cm");
                self.on_end(state, libc::EPROTO);
            }
        }
    }

    fn on_request(self: &Arc<Self>, state: &mut State, endpoint: Option<Endpoint>, retry_count: u8, private: Vec<u8>) {
        self.service.set_deadline(self.number, None);
        state.phase = Phase::Requested;
        let Some(listener) = state.listener.take() else { return };
        let mut listening = listener.state();
        listener.part_from(&mut listening, self.number);
        let datagrams = listening.kind == QpKind::Ud;
        let refusal = match listening.phase {
            // A datagram service accepts only lookups (SIDR_REQ), and any other listener accepts only connection
            // requests (REQ).
            Phase::Listening { .. } if datagrams != (state.kind == QpKind::Ud) => reason::INVALID_SERVICE_ID,
            Phase::Listening { backlog } if listening.queue.requests_of(listening.id) >= backlog => {
                reason::NO_RESOURCES
            }
            Phase::Listening { .. } => {
                let detail = Detail::Request { line: Arc::clone(self), endpoint, retry_count, private };
                state.queue = Arc::clone(&listening.queue);
                listening.tell(c::RDMA_CM_EVENT_CONNECT_REQUEST, 0, detail);
                return;
            }
            _ => reason::INVALID_SERVICE_ID,
        };
        drop(listening);
        let _ = state.say(&state.rejection(refusal));
        state.end(&self.service, self.number);
    }

    /// Ends a line whose connection is unusable. The peer closed the connection, died, sent a wrong message, or missed
    /// a deadline.
    fn on_end(&self, state: &mut State, errno: c_int) {
        let phase = state.phase;
        match phase {
            Phase::Established | Phase::Disconnecting | Phase::Answered => {
                state.disconnected(&self.service, self.number, 0);
                return;
            }
            Phase::Disconnected | Phase::Over => return,
            Phase::Arriving => {
                if let Some(listener) = state.listener.take() {
                    listener.part_from(&mut listener.state(), self.number);
                }
            }
            _ => {}
        }
        state.end(&self.service, self.number);
        if matches!(phase, Phase::Crowded | Phase::Connecting { .. } | Phase::Requested | Phase::Accepted) {
            state.tell(c::RDMA_CM_EVENT_UNREACHABLE, -errno, Detail::Nothing);
        }
    }

    /// Ends the line because the service thread ends, after the program has closed the thread's descriptors. A listener
    /// gets the event that Linux reports when a device is removed (`cma_remove_id_dev` in
    /// `drivers/infiniband/core/cma.c`).
    pub(in crate::cm) fn on_service_end(self: &Arc<Self>) {
        let mut state = self.state();
        if matches!(state.phase, Phase::Listening { .. }) {
            state.end(&self.service, self.number);
            state.tell(c::RDMA_CM_EVENT_DEVICE_REMOVAL, 0, Detail::Nothing);
        } else {
            self.on_end(&mut state, libc::EBADF);
        }
        let has_deadline = state.phase == Phase::Disconnected;
        drop(state);
        if has_deadline {
            self.on_deadline(); // the service thread will not call `on_deadline` any more
        }
    }

    /// Handles the expired deadline of the line.
    pub(in crate::cm) fn on_deadline(self: &Arc<Self>) {
        let mut state = self.state();
        match state.phase {
            Phase::Listening { .. } => self.resume(&mut state),
            Phase::Crowded => {
                if let Err(refused) = self.reach_out(&mut state) {
                    refused.tell("rdma_connect");
                    state.end(&self.service, self.number);
                    state.tell(c::RDMA_CM_EVENT_UNREACHABLE, -refused.errno, Detail::Nothing);
                }
            }
            Phase::Arriving | Phase::Connecting { .. } | Phase::Accepted => self.on_end(&mut state, libc::ETIMEDOUT),
            Phase::Disconnecting => state.disconnected(&self.service, self.number, -libc::ETIMEDOUT),
            Phase::Disconnected => {
                state.end(&self.service, self.number);
                state.phase = Phase::Disconnected;
                state.tell(c::RDMA_CM_EVENT_TIMEWAIT_EXIT, 0, Detail::Nothing);
            }
            _ => {}
        }
    }
}

impl State {
    /// Stores the addresses that a client of this machine sends. Rejects addresses that do not match the two ports, or
    /// that do not belong to this machine.
    fn learn_addresses(&mut self, source: Host, destination: Host) -> Answer<()> {
        let Some((caller, own)) = self.called.take() else { return Ok(()) };
        let (source, destination) = (source.at(caller.address.port()), destination.at(own.address.port()));
        let is_possible = caller.admits(source) && own.admits(destination);
        if !is_possible || !is_here(source) || !is_here(destination) {
            let why =
                format!("a client on this machine sent wrong addresses: source {source}, destination {destination}");
            return Err(Refused::new(libc::EPROTO, why));
        }
        (self.local, self.remote) = (Some(destination), Some(source));
        Ok(())
    }
}
