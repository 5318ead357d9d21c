//! A hub: one receiver for many senders. All its connections share one completion queue, so one poll finds the messages
//! of all connections. The queue pair number in a completion identifies the connection.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use doorbell_verbs::{Channel, Completion, Cq, Notify, Overrun, Pd, Qpn};
use rustc_hash::FxHashMap;
use slab::Slab;

use super::{Connection, Endpoint, SendReceive};
use crate::connection::MessageConnection;
use crate::connection::carrier::RECEIVE_TAG;
use crate::connection::config::{Config, MAX_POLL_LIST};
use crate::connection::engine::Recipe;
use crate::connection::error::{ConnectError, ConnectionError};
use crate::connection::receives::pool::Message;
use crate::connection::receives::shared::SharedReceives;

/// Maximum number of connections that one `poll` advances if the completion queue is empty. The next `poll` continues
/// with the connections after these.
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
    /// Whether the connection has ended and was added to `Hub::ended`.
    is_ended: bool,
}

/// Key of a connection in its hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(usize);

/// Send-Receive connections that share a completion queue and are polled together.
#[derive(Debug)]
pub struct Hub {
    pd: Pd,
    cq: Cq,
    /// Sum of the completions that the connections and ends of the hub can have in the queue at once.
    claimed: Arc<AtomicUsize>,
    /// Capacity of the completion queue.
    depth: usize,
    /// Maximum number of completions that one poll takes.
    poll_list: usize,
    connections: Slab<Member>,
    by_number: FxHashMap<Qpn, usize>,
    /// Keys of the connections whose messages have arrived, one key for each message, in the order of arrival.
    arrived: VecDeque<usize>,
    /// Keys of connections that have ended and that [`Hub::next_ended`] has not returned yet.
    ended: VecDeque<usize>,
    next_idle: usize,
    /// Number of connections that may have work and that no poll has advanced since the latest completion.
    unattended: usize,
}

impl Hub {
    /// Makes a hub whose completion queue has `depth` entries. Each connection needs as many entries as its window and
    /// its depth together, and eleven more entries.
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

    /// Makes a hub with room for `connections` connections of this configuration. Each poll takes up to
    /// `config.poll_list` completions.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`new`](Self::new), or [`ConnectError::Setting`] if the configuration is not allowed.
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

    /// Makes an end whose completions go to the queue of this hub. After the program has connected the end, pass the
    /// connection to [`add`](Self::add) before any other call on the connection.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Connector::endpoint`](crate::Connector::endpoint). Returns [`ConnectError::Crowded`] if
    /// the queue has no room for the completions of another connection, and [`ConnectError::TooLongForShared`] if the
    /// longest message does not fit into the shared buffers.
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

    /// Adds a connection whose end was made by [`endpoint`](Self::endpoint) of this hub.
    ///
    /// # Errors
    ///
    /// The end of the connection was not made by this hub, so its completions do not go to the queue of this hub.
    pub fn add(&mut self, connection: Connection) -> Result<Key, ConnectError> {
        let is_ours = connection.machine.claim.as_ref().is_some_and(|claim| Arc::ptr_eq(&claim.claimed, &self.claimed));
        if !is_ours {
            return Err(ConnectError::Unfit("its end must be made by Hub::endpoint of this hub"));
        }
        let number = connection.qp().qpn();
        let key = self.connections.insert(Member { connection, is_ended: false });
        self.by_number.insert(number, key);
        Ok(Key(key))
    }

    /// Takes one list of completions, passes each completion to its connection, and reposts receives. If there are no
    /// completions, advances a few connections. Returns true if anything happened, or if connections that this poll did
    /// not advance may have work. [`next_ended`](Self::next_ended) returns the connections that have ended. Other
    /// connections continue.
    ///
    /// # Errors
    ///
    /// The completion queue has lost completions, so no connection of the hub is usable any more.
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

    /// Takes one list of completions. Returns the number of completions.
    #[inline]
    fn reap(&mut self) -> Result<usize, Overrun> {
        let mut list = [Completion::default(); MAX_POLL_LIST];
        let count = self.cq.poll(&mut list[..self.poll_list])?;
        let now_ns = self.pd.device().now_ns();
        for completion in &list[..count] {
            let Some(&key) = self.by_number.get(&completion.qpn) else { continue }; // the connection was removed
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
            // The loop is short: the slab has few gaps unless many connections were removed.
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

    /// Returns the next message of any connection, in the order of arrival. Polls if no message has arrived.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`poll`](Self::poll).
    pub fn receive(&mut self) -> Result<Option<(Key, Message)>, Overrun> {
        if self.arrived.is_empty() {
            self.poll()?;
        }
        Ok(self.take())
    }

    /// Returns the next message that a poll has received, if any.
    pub fn take(&mut self) -> Option<(Key, Message)> {
        while let Some(key) = self.arrived.pop_front() {
            // The connection may have been removed, or the program may have called `take` on the connection itself.
            if let Some(message) = self.connections.get_mut(key).and_then(|member| member.connection.take()) {
                return Some((Key(key), message));
            }
        }
        None
    }

    /// Returns the key of a connection that has ended, and the reason. Returns each connection only once.
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

    /// Returns a mutable reference to a connection, for sending messages and for closing. [`poll`](Self::poll) of the
    /// hub advances the connection.
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

    /// Returns the keys of all connections.
    pub fn keys(&self) -> impl Iterator<Item = Key> {
        self.connections.iter().map(|(key, _)| Key(key))
    }

    /// Removes a connection and drops its messages that the program has not taken. Returns whether the hub had the
    /// connection.
    pub fn remove(&mut self, key: Key) -> bool {
        let Some(member) = self.connections.get_mut(key.0) else { return false };
        member.connection.end(ConnectionError::Closed);
        // The queue may hold completions of this connection, whose receives occupy shared buffers. So take these
        // completions before the removal. Taking `depth` completions is sufficient, since the queue holds at most
        // `depth`. Do not wait for an empty queue, since the other connections may add completions forever.
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

    /// Arms one notification on the hub's channel. Before the program waits, it must poll once more.
    pub fn arm(&self) {
        self.cq.arm(Notify::Next);
    }

    /// Returns the completion channel of the hub, if the hub has one.
    pub fn channel(&self) -> Option<&Channel> {
        self.cq.channel()
    }
}
