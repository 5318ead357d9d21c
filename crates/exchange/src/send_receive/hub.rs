//! One receiver for many senders: a single completion queue serves all connections, so that one
//! poll looks for the messages of all. The queue pair's number in a completion says whose it is.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use doorbell_verbs::{Channel, Completion, Cq, Notify, Overrun, Pd, Qpn};
use rustc_hash::FxHashMap;
use slab::Slab;

use super::pool::Message;
use super::shared::SharedReceives;
use super::{Connection, Endpoint, SendReceive};
use crate::carrier::RECEIVE_TAG;
use crate::config::{Config, MAX_POLL_LIST};
use crate::connection::MessageConnection;
use crate::engine::Recipe;
use crate::error::{ConnectError, ConnectionError};

/// Connections that are looked after in each poll that brings nothing, in turn.
const LOOKED_AFTER: usize = 8;

/// A connection's place in a hub's completion queue: so many completions it may leave there.
#[derive(Debug)]
pub(super) struct Claim {
    claimed: Arc<AtomicUsize>,
    completions: usize,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.claimed.fetch_sub(self.completions, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Member {
    connection: Connection,
    /// That it ended is known.
    is_ended: bool,
}

/// Names a connection of a hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(usize);

/// Connections that are polled together.
#[derive(Debug)]
pub struct Hub {
    pd: Pd,
    cq: Cq,
    /// Completions that the connections may leave in the queue, and what it holds.
    claimed: Arc<AtomicUsize>,
    depth: usize,
    /// Completions taken by one poll at most.
    poll_list: usize,
    connections: Slab<Member>,
    by_number: FxHashMap<Qpn, usize>,
    /// Whose messages have arrived, in order.
    arrived: VecDeque<usize>,
    /// Connections that ended and were not told of.
    ended: VecDeque<usize>,
    next_idle: usize,
    /// Connections that may have work and were not handled since.
    unattended: usize,
}

impl Hub {
    /// A hub for connections of so many completions together: each needs its window, its depth and
    /// some eleven more.
    ///
    /// # Errors
    ///
    /// The channel belongs to another device, `depth` is out of range, or the device refuses the completion queue.
    pub fn new(pd: &Pd, depth: usize, channel: Option<&Channel>) -> Result<Self, ConnectError> {
        let device = pd.device();
        let cq = match channel {
            Some(channel) => device.create_cq_on(depth, channel)?,
            None => device.create_cq(depth)?,
        };
        Ok(Self {
            pd: pd.clone(),
            cq,
            claimed: Arc::default(),
            depth,
            poll_list: MAX_POLL_LIST,
            connections: Slab::new(),
            by_number: FxHashMap::default(),
            arrived: VecDeque::new(),
            ended: VecDeque::new(),
            next_idle: 0,
            unattended: 0,
        })
    }

    /// A hub that has room for `connections` of this configuration, and whose polls take as many completions as
    /// `config.poll_list` says.
    ///
    /// # Errors
    ///
    /// The configuration is not allowed ([`ConnectError::Setting`]), or as [`new`](Self::new).
    pub fn for_connections(
        pd: &Pd,
        config: &Config,
        connections: usize,
        channel: Option<&Channel>,
    ) -> Result<Self, ConnectError> {
        config.check()?;
        let hub = Self::new(pd, SendReceive.queues(config).completions().saturating_mul(connections), channel)?;
        Ok(Self { poll_list: config.poll_list, ..hub })
    }

    /// Makes an end whose connection will be polled here: [`add`](Self::add) it once it is
    /// connected, before anything else.
    ///
    /// # Errors
    ///
    /// The hub has no room for the completions of another connection ([`ConnectError::Crowded`]), the longest message
    /// does not fit the shared buffers, or as [`Connector::endpoint`](crate::Connector::endpoint).
    pub fn endpoint(&mut self, config: Config, shared: Option<&SharedReceives>) -> Result<Endpoint, ConnectError> {
        config.check()?;
        let completions = SendReceive.queues(&config).completions();
        if self.claimed.load(Ordering::Relaxed) + completions > self.depth {
            return Err(ConnectError::Crowded("completion queue"));
        }
        self.claimed.fetch_add(completions, Ordering::Relaxed);
        let claim = Claim { claimed: Arc::clone(&self.claimed), completions };
        Endpoint::of_hub(&self.pd, &config, shared, self.cq.clone(), claim)
    }

    /// Takes a connection in, whose end was made here.
    ///
    /// # Errors
    ///
    /// Its end was made elsewhere: its completions would never be seen.
    pub fn add(&mut self, connection: Connection) -> Result<Key, ConnectError> {
        let is_ours = connection.machine.claim.as_ref().is_some_and(|claim| Arc::ptr_eq(&claim.claimed, &self.claimed));
        if !is_ours {
            return Err(ConnectError::Unfit("its end was made by another hub, or by none"));
        }
        let number = connection.qp().qpn();
        let key = self.connections.insert(Member { connection, is_ended: false });
        self.by_number.insert(number, key);
        Ok(Key(key))
    }

    /// Moves all connections along: takes one list of completions, hands each to its connection,
    /// reposts receives. Returns whether anything happened, or may happen in the next poll: a poll handles only a few
    /// connections. [`next_ended`](Self::next_ended) returns the connections that end; the others go on.
    ///
    /// # Errors
    ///
    /// Completions were lost: no connection can be relied on any more.
    pub fn poll(&mut self) -> Result<bool, Overrun> {
        if self.reap()? > 0 {
            self.unattended = self.connections.len();
            return Ok(true);
        }
        let ended = self.ended.len();
        self.look_after_some();
        self.unattended = self.unattended.saturating_sub(LOOKED_AFTER);
        Ok(self.unattended > 0 || self.ended.len() > ended)
    }

    /// Takes one list of completions. Returns how many.
    #[inline]
    fn reap(&mut self) -> Result<usize, Overrun> {
        let mut list = [Completion::default(); MAX_POLL_LIST];
        let count = self.cq.poll(&mut list[..self.poll_list])?;
        let now_ns = self.pd.device().now_ns();
        for completion in &list[..count] {
            let Some(&key) = self.by_number.get(&completion.qpn) else { continue }; // it was removed
            let connection = &mut self.connections[key].connection;
            let before = connection.machine.inbox.len();
            let result = connection.hand_in(completion, now_ns);
            if connection.machine.inbox.len() > before {
                self.arrived.push_back(key);
            }
            let result = match result {
                Ok(()) if completion.wr_id & RECEIVE_TAG != 0 && connection.machine.has_list_to_repost() => {
                    let reposted = connection.machine.repost();
                    connection.explained(reposted)
                }
                Ok(()) => connection.flush(),
                Err(error) => Err(error),
            };
            self.note(key, result);
        }
        Ok(count)
    }

    fn look_after_some(&mut self) {
        for _ in 0..LOOKED_AFTER.min(self.connections.len()) {
            let capacity = self.connections.capacity();
            // Slabs are dense unless many connections were removed.
            while !self.connections.contains(self.next_idle % capacity) {
                self.next_idle += 1;
            }
            let key = self.next_idle % capacity;
            self.next_idle = key + 1;
            let connection = &mut self.connections[key].connection;
            if connection.over().is_none() {
                let result = connection.flush().and_then(|()| connection.settle(0).map(drop));
                self.note(key, result);
            }
        }
    }

    fn note(&mut self, key: usize, result: Result<(), ConnectionError>) {
        if let Err(error) = result {
            let member = &mut self.connections[key];
            member.connection.end(error);
            if !std::mem::replace(&mut member.is_ended, true) {
                self.ended.push_back(key);
            }
        }
    }

    /// The next message of any connection, in the order of arrival. Polls if none has arrived.
    ///
    /// # Errors
    ///
    /// As [`poll`](Self::poll).
    pub fn receive(&mut self) -> Result<Option<(Key, Message)>, Overrun> {
        if self.arrived.is_empty() {
            self.poll()?;
        }
        Ok(self.take())
    }

    /// The next message of those that a poll has brought.
    pub fn take(&mut self) -> Option<(Key, Message)> {
        while let Some(key) = self.arrived.pop_front() {
            // A connection that was removed, or emptied by its own `take`, has none.
            if let Some(message) = self.connections.get_mut(key).and_then(|member| member.connection.take()) {
                return Some((Key(key), message));
            }
        }
        None
    }

    /// A connection that has ended, and why; each is told of once.
    pub fn next_ended(&mut self) -> Option<(Key, ConnectionError)> {
        while let Some(key) = self.ended.pop_front() {
            if let Some(error) = self.connections.get(key).and_then(|member| member.connection.over()) {
                return Some((Key(key), error));
            }
        }
        None
    }

    /// A connection, to look at.
    pub fn get(&self, key: Key) -> Option<&Connection> {
        self.connections.get(key.0).map(|member| &member.connection)
    }

    /// A connection, to send on and to close. It is moved along by the hub's poll.
    pub fn get_mut(&mut self, key: Key) -> Option<&mut Connection> {
        self.unattended = self.connections.len();
        self.connections.get_mut(key.0).map(|member| &mut member.connection)
    }

    /// Connections.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// The names of all connections.
    pub fn keys(&self) -> impl Iterator<Item = Key> {
        self.connections.iter().map(|(key, _)| Key(key))
    }

    /// Lets go of a connection: messages of it that were not taken are gone.
    pub fn remove(&mut self, key: Key) -> bool {
        let Some(member) = self.connections.get_mut(key.0) else { return false };
        member.connection.end(ConnectionError::Closed);
        // What it left in the queue is taken out, so that shared buffers go back to the others. The queue holds no
        // more than all claims together; what comes behind that is of others, who may send without end.
        let mut left = self.depth;
        while left > 0
            && let Ok(count @ 1..) = self.reap()
        {
            left = left.saturating_sub(count);
        }
        let connection = self.connections.remove(key.0).connection;
        self.by_number.remove(&connection.qp().qpn());
        self.arrived.retain(|&other| other != key.0);
        self.ended.retain(|&other| other != key.0);
        true
    }

    /// Arms one notification on the hub's channel. Poll once more before waiting.
    pub fn arm(&self) {
        self.cq.arm(Notify::Next);
    }

    /// The channel, if there is one.
    pub fn channel(&self) -> Option<&Channel> {
        self.cq.channel()
    }
}
