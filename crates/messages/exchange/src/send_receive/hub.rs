//! One receiver for many senders. A single completion queue serves all connections, so one poll finds the messages of
//! all. The queue pair number in a completion identifies the connection.

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

/// Number of connections that each empty poll handles in turn.
const LOOKED_AFTER: usize = 8;

/// Share of a connection in the completion queue of a hub.
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
    /// Whether the end of the connection is recorded.
    is_ended: bool,
}

/// Name of a connection of a hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(usize);

/// Connections that are polled together.
#[derive(Debug)]
pub struct Hub {
    pd: Pd,
    cq: Cq,
    /// Completions that the connections may leave in the queue, and the capacity of the queue.
    claimed: Arc<AtomicUsize>,
    depth: usize,
    /// Maximum number of completions that one poll takes.
    poll_list: usize,
    connections: Slab<Member>,
    by_number: FxHashMap<Qpn, usize>,
    /// Connections whose messages have arrived, in order.
    arrived: VecDeque<usize>,
    /// Connections that have ended and that [`Hub::next_ended`] has not returned yet.
    ended: VecDeque<usize>,
    next_idle: usize,
    /// Connections that may have work and were not handled since the last completion.
    unattended: usize,
}

impl Hub {
    /// Makes a hub whose completion queue has `depth` entries. Each connection needs its window, its depth and eleven
    /// more entries.
    ///
    /// # Errors
    ///
    /// The channel belongs to another device, `depth` is out of range, or the device rejects the completion queue.
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

    /// Makes a hub with room for `connections` of this configuration. Each poll takes up to `config.poll_list`
    /// completions.
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

    /// Makes an end whose connection this hub will poll. [`add`](Self::add) the connection once it is connected,
    /// before any other call.
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

    /// Adds a connection whose end this hub has made.
    ///
    /// # Errors
    ///
    /// Another hub, or none, has made its end. This hub would never see its completions.
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

    /// Advances all connections: takes one list of completions, passes each one to its connection, and reposts
    /// receives. Returns whether anything happened, or may happen in the next poll, since a poll handles only a few
    /// connections. [`next_ended`](Self::next_ended) returns the connections that have ended. The others continue.
    ///
    /// # Errors
    ///
    /// Completions were lost, so no connection is reliable any more.
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

    /// Takes one list of completions. Returns their number.
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

    /// Returns the next message of any connection, in the order of arrival. Polls if none has arrived.
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

    /// Returns the next message that a poll has received.
    pub fn take(&mut self) -> Option<(Key, Message)> {
        while let Some(key) = self.arrived.pop_front() {
            // A connection that was removed, or emptied by its own `take`, has no message.
            if let Some(message) = self.connections.get_mut(key).and_then(|member| member.connection.take()) {
                return Some((Key(key), message));
            }
        }
        None
    }

    /// Returns a connection that has ended, and the reason. Returns each connection once.
    pub fn next_ended(&mut self) -> Option<(Key, ConnectionError)> {
        while let Some(key) = self.ended.pop_front() {
            if let Some(error) = self.connections.get(key).and_then(|member| member.connection.over()) {
                return Some((Key(key), error));
            }
        }
        None
    }

    /// Returns a connection, for queries.
    pub fn get(&self, key: Key) -> Option<&Connection> {
        self.connections.get(key.0).map(|member| &member.connection)
    }

    /// Returns a connection, mutably, to send on it or to close it. The hub's poll advances it.
    pub fn get_mut(&mut self, key: Key) -> Option<&mut Connection> {
        self.unattended = self.connections.len();
        self.connections.get_mut(key.0).map(|member| &mut member.connection)
    }

    /// Returns the number of connections.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Returns whether the hub has no connections.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Returns the names of all connections.
    pub fn keys(&self) -> impl Iterator<Item = Key> {
        self.connections.iter().map(|(key, _)| Key(key))
    }

    /// Removes a connection. Drops its messages that were not taken.
    pub fn remove(&mut self, key: Key) -> bool {
        let Some(member) = self.connections.get_mut(key.0) else { return false };
        member.connection.end(ConnectionError::Closed);
        // The completions of the connection are taken out, so that shared buffers go back to the others. The queue
        // holds at most `depth` of them. Later ones belong to other connections, which may send forever.
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

    /// Returns the channel, if there is one.
    pub fn channel(&self) -> Option<&Channel> {
        self.cq.channel()
    }
}
