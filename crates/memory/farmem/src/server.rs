//! The table of the memory node's CPU, which executes the operations of strategy `server`. It is the baseline for the
//! strategies in which the CPU takes no part.

use std::collections::BTreeMap;

use doorbell_exchange::setup::EndpointDescription;
use doorbell_exchange::{
    Config, ConnectionError, Connector, MessageConnection, Received, SendReceive, Submit, send_receive,
};
use doorbell_verbs::{Pd, Region};
use rustc_hash::FxHashMap;

use crate::calls::{self, Answer, Call};
use crate::error::OpenError;
use crate::layout::{Geometry, KeyBytes};
use crate::operation::{Kind, Outcome};

/// Maximum number of requests of one client that the server executes in a row.
const TURN: usize = 16;

#[derive(Clone, Copy, Debug)]
struct Entry {
    node: u32,
    length: u32,
}

/// The table and the sessions of its clients. One thread serves all clients.
#[derive(Default)]
pub(crate) struct Server {
    table: FxHashMap<KeyBytes, Entry>,
    /// Nodes that contained a value and are free again.
    free: Vec<u32>,
    /// Number of nodes that have ever contained a value.
    used: u32,
    sessions: BTreeMap<u32, Session>,
    request: Vec<u8>,
}

struct Session {
    connection: send_receive::Connection,
    /// Bytes of the answer, kept while the connection has no room for it.
    answer: Vec<u8>,
    waits: bool,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("keys", &self.table.len()).finish_non_exhaustive()
    }
}

impl Server {
    pub(crate) fn accept(
        &mut self,
        pd: &Pd,
        geometry: &Geometry,
        client: u32,
        peer: &EndpointDescription,
    ) -> Result<EndpointDescription, OpenError> {
        let config = calls::config(&Config::default().window(peer.depth.max(1) as usize), geometry);
        let endpoint = SendReceive.endpoint(pd, &config, None)?;
        let own = SendReceive.describe(&endpoint);
        let connection = SendReceive.connect(endpoint, peer)?;
        self.sessions.insert(client, Session { connection, answer: Vec::new(), waits: false });
        Ok(own)
    }

    /// Adds a key before any client is accepted.
    pub(crate) fn fill(&mut self, region: &Region, geometry: &Geometry, key: &[u8], value: &[u8]) {
        let call = Call { kind: Kind::Insert, tag: 0, key, value };
        let Self { table, free, used, request, .. } = self;
        Shelf { table, free, used, region, geometry }.execute(&call, request);
    }

    pub(crate) fn part(&mut self, client: u32) {
        self.sessions.remove(&client);
    }

    /// Returns the number of keys, of free nodes that were used before, and of nodes that were ever used.
    pub(crate) fn counts(&self) -> (usize, usize, u32) {
        (self.table.len(), self.free.len(), self.used)
    }

    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.sessions.values().filter_map(|session| session.connection.poll_timeout_ns()).min()
    }

    /// Serves up to `TURN` requests of each client. Returns whether anything changed.
    pub(crate) fn poll(&mut self, region: &Region, geometry: &Geometry) -> bool {
        let Self { table, free, used, sessions, request } = self;
        let mut shelf = Shelf { table, free, used, region, geometry };
        let mut happened = false;
        sessions.retain(|_, session| match session.serve(&mut shelf, request) {
            Some(did) => {
                happened |= did;
                true
            }
            None => {
                happened = true;
                false
            }
        });
        happened
    }
}

impl Session {
    /// Serves one client. Returns `None` if the connection is over or the client breaks the protocol.
    fn serve(&mut self, shelf: &mut Shelf<'_>, request: &mut Vec<u8>) -> Option<bool> {
        let mut happened = false;
        for _ in 0..TURN {
            if self.waits {
                match self.connection.send(&self.answer).ok()? {
                    Submit::Accepted(_) => self.waits = false,
                    Submit::Full(_) => {
                        happened |= self.connection.poll().ok()?;
                        return Some(happened);
                    }
                }
            }
            let message = match self.connection.receive_noting(&mut happened) {
                Ok(Some(message)) => message,
                Ok(None) => break,
                // Acknowledge the client's close message before the queue pair is destroyed. Otherwise the client would
                // repeat it until its retries are used up.
                Err(ConnectionError::PeerClosed) => {
                    self.connection.close();
                    happened |= self.connection.poll().ok()?;
                    return (!self.connection.is_closed()).then_some(happened);
                }
                Err(_) => return None,
            };
            request.resize(message.len(), 0);
            message.copy_to(request);
            drop(message);
            shelf.execute(&Call::decode(request)?, &mut self.answer);
            self.waits = true;
        }
        self.connection.flush().ok()?;
        Some(happened)
    }
}

/// The parts of the server that a request accesses: the table and the memory for values.
struct Shelf<'a> {
    table: &'a mut FxHashMap<KeyBytes, Entry>,
    free: &'a mut Vec<u32>,
    used: &'a mut u32,
    region: &'a Region,
    geometry: &'a Geometry,
}

impl Shelf<'_> {
    fn execute(&mut self, call: &Call<'_>, answer: &mut Vec<u8>) {
        if self.geometry.check_sizes(call.key, call.value).is_err() {
            return Answer::Outcome(Outcome::Absent).encode(call.tag, answer); // no client sends such a request
        }
        let known = self.table.get_mut(call.key);
        let result = match (call.kind, known) {
            (Kind::Get, Some(entry)) => {
                Answer::Outcome(Outcome::Done).encode(call.tag, answer);
                answer.resize(calls::HEAD_BYTES + entry.length as usize, 0);
                let from = self.geometry.node(entry.node) as usize;
                return self.region.copy_out(from, &mut answer[calls::HEAD_BYTES..]);
            }
            (Kind::Put, Some(entry)) => {
                entry.length = call.value.len() as u32;
                self.region.copy_in(self.geometry.node(entry.node) as usize, call.value);
                Answer::Outcome(Outcome::Done)
            }
            (Kind::Insert, Some(_)) => Answer::Outcome(Outcome::Exists),
            (Kind::Insert, None) => self.insert(call),
            (Kind::Delete, Some(&mut Entry { node, .. })) => {
                self.table.remove(call.key);
                self.free.push(node);
                Answer::Outcome(Outcome::Done)
            }
            (_, None) => Answer::Outcome(Outcome::Absent),
        };
        result.encode(call.tag, answer);
    }

    fn insert(&mut self, call: &Call<'_>) -> Answer {
        if self.table.len() >= self.geometry.keys as usize {
            return Answer::TooManyKeys;
        }
        let node = match self.free.pop() {
            Some(node) => node,
            None if *self.used < self.geometry.nodes => {
                *self.used += 1;
                *self.used - 1
            }
            None => return Answer::Full,
        };
        self.region.copy_in(self.geometry.node(node) as usize, call.value);
        self.table.insert(call.key.into(), Entry { node, length: call.value.len() as u32 });
        Answer::Outcome(Outcome::Done)
    }
}
