//! The client's end of the connection with the memory node's CPU, for strategy `server`, and the messages on this
//! connection.

use std::cell::Cell;

use doorbell_exchange::{Config, ConnectionError, MessageConnection, Received, Submit, send_receive};
use rustc_hash::FxHashMap;

use crate::error::StoreError;
use crate::layout::Geometry;
use crate::operation::{Kind, Outcome};

/// Length in bytes of the header of a request or answer, before key and value.
pub(crate) const HEAD_BYTES: usize = 8;

/// Returns the options of a connection for calls, with room for the longest operation and for all concurrent
/// operations.
pub(crate) fn config(config: &Config, geometry: &Geometry) -> Config {
    config.clone().max_message(HEAD_BYTES + geometry.max_key + geometry.max_value)
}

const KINDS: [Kind; 4] = [Kind::Get, Kind::Put, Kind::Insert, Kind::Delete];

/// A parsed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call<'a> {
    pub(crate) kind: Kind,
    pub(crate) tag: u16,
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
}

impl<'a> Call<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.clear();
        out.extend([self.kind as u8, 0]);
        out.extend(self.tag.to_le_bytes());
        out.extend((self.key.len() as u32).to_le_bytes());
        out.extend(self.key);
        out.extend(self.value);
    }

    /// Parses a request. Returns `None` if the bytes are no request.
    pub(crate) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
        let [kind, zero, tag0, tag1, length @ ..] = *head;
        let (key, value) = rest.split_at_checked(u32::from_le_bytes(length) as usize)?;
        let kind = KINDS.into_iter().find(|&known| known as u8 == kind && zero == 0)?;
        let has_value = matches!(kind, Kind::Put | Kind::Insert);
        (has_value || value.is_empty()).then_some(Self { kind, tag: u16::from_le_bytes([tag0, tag1]), key, value })
    }
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Outcome(Outcome),
    TooManyKeys,
    Full,
}

const ANSWERS: [Answer; 5] = [
    Answer::Outcome(Outcome::Done),
    Answer::Outcome(Outcome::Absent),
    Answer::Outcome(Outcome::Exists),
    Answer::TooManyKeys,
    Answer::Full,
];

impl Answer {
    /// Writes the header of an answer. For a get, the caller appends the value.
    pub(crate) fn encode(self, tag: u16, out: &mut Vec<u8>) {
        out.clear();
        let number = ANSWERS.iter().position(|&answer| answer == self).unwrap_or_default();
        out.extend((number as u32).to_le_bytes());
        out.extend(u32::from(tag).to_le_bytes());
    }

    fn decode(bytes: &[u8]) -> Option<(Self, u16, &[u8])> {
        let (head, value) = bytes.split_first_chunk::<HEAD_BYTES>()?;
        let [n0, n1, n2, n3, t0, t1, 0, 0] = *head else { return None };
        let answer = *ANSWERS.get(u32::from_le_bytes([n0, n1, n2, n3]) as usize)?;
        Some((answer, u16::from_le_bytes([t0, t1]), value))
    }

    fn result(self) -> Result<Outcome, StoreError> {
        match self {
            Self::Outcome(outcome) => Ok(outcome),
            Self::TooManyKeys => Err(StoreError::TooManyKeys),
            Self::Full => Err(StoreError::Full),
        }
    }
}

/// The client's connection with the memory node's CPU.
pub(crate) struct Calls {
    connection: send_receive::Connection,
    /// Answers by slot.
    answers: FxHashMap<u16, Result<Outcome, StoreError>>,
    values: Vec<Vec<u8>>,
    over: Option<StoreError>,
    /// Whether the connection has failed without a notification to the operations that wait for an answer.
    is_news: bool,
    /// Whether an operation found no room on the connection. This operation must try again, since no answer will wake
    /// it.
    was_full: bool,
    scratch: Vec<u8>,
    verbs_left: Cell<Option<u64>>,
    exchanged: (u64, u64),
}

impl std::fmt::Debug for Calls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Calls").field("exchanged", &self.exchanged).finish_non_exhaustive()
    }
}

impl Calls {
    pub(crate) fn new(
        connection: send_receive::Connection,
        geometry: &Geometry,
        slots: usize,
        death: Option<u64>,
    ) -> Self {
        Self {
            connection,
            answers: FxHashMap::default(),
            values: (0..slots).map(|_| Vec::with_capacity(geometry.max_value)).collect(),
            over: None,
            is_news: false,
            was_full: false,
            scratch: Vec::with_capacity(HEAD_BYTES + geometry.max_key + geometry.max_value),
            verbs_left: Cell::new(death),
            exchanged: (0, 0),
        }
    }

    /// Returns the number of requests, and the sum of the bytes of requests and answers.
    pub(crate) fn exchanged(&self) -> (u64, u64) {
        self.exchanged
    }

    pub(crate) fn failed(&self) -> Option<StoreError> {
        self.over
    }

    fn fail(&mut self, error: StoreError) -> StoreError {
        self.is_news = true;
        *self.over.get_or_insert(error)
    }

    /// Sends a request. Returns false if the connection has no room for it now.
    pub(crate) fn ask(&mut self, slot: usize, kind: Kind, key: &[u8], value: &[u8]) -> Result<bool, StoreError> {
        if let Some(error) = self.over {
            return Err(error);
        }
        if self.verbs_left.get() == Some(0) {
            return Err(self.fail(StoreError::Dead));
        }
        let value = if matches!(kind, Kind::Put | Kind::Insert) { value } else { &[] };
        Call { kind, tag: slot as u16, key, value }.encode(&mut self.scratch);
        match self.connection.send(&self.scratch) {
            Ok(Submit::Accepted(_)) => {
                self.verbs_left.set(self.verbs_left.get().map(|left| left - 1));
                self.exchanged = (self.exchanged.0 + 1, self.exchanged.1 + self.scratch.len() as u64);
                Ok(true)
            }
            Ok(Submit::Full(_)) => {
                self.was_full = true;
                Ok(false)
            }
            Err(error) => Err(self.fail(StoreError::ServerGone(error))),
        }
    }

    /// Takes the answer for a slot. Stores the value of a get in `value`.
    pub(crate) fn take(&mut self, slot: usize, kind: Kind, value: &mut Vec<u8>) -> Option<Result<Outcome, StoreError>> {
        let answer = self.answers.remove(&(slot as u16));
        match (answer, self.over) {
            (Some(answer), _) => {
                if kind == Kind::Get && answer == Ok(Outcome::Done) {
                    std::mem::swap(value, &mut self.values[slot]);
                }
                Some(answer)
            }
            (None, Some(error)) => Some(Err(error)),
            (None, None) => None,
        }
    }

    /// Processes received answers. Returns whether anything changed.
    pub(crate) fn poll(&mut self) -> bool {
        if self.over.is_some() {
            return std::mem::take(&mut self.is_news);
        }
        let mut happened = false;
        loop {
            match self.connection.receive_noting(&mut happened) {
                Ok(Some(message)) => {
                    self.scratch.resize(message.len(), 0);
                    message.copy_to(&mut self.scratch);
                    drop(message);
                    self.exchanged.1 += self.scratch.len() as u64;
                    let answer = Answer::decode(&self.scratch);
                    match answer
                        .and_then(|(answer, tag, value)| Some((answer, tag, value, self.values.get_mut(tag as usize)?)))
                    {
                        Some((answer, tag, value, place)) => {
                            place.clear();
                            place.extend_from_slice(value);
                            self.answers.insert(tag, answer.result());
                        }
                        None => drop(self.fail(StoreError::Protocol("the memory node's CPU sent no answer"))),
                    }
                }
                Ok(None) => return std::mem::take(&mut self.was_full) || happened,
                Err(ConnectionError::PeerClosed) if self.connection.is_closed() => return happened,
                Err(error) => {
                    self.fail(StoreError::ServerGone(error));
                    return true;
                }
            }
        }
    }

    /// Returns whether the next [`poll`](Self::poll) will report a failed connection to waiting operations.
    pub(crate) fn has_news(&self) -> bool {
        self.is_news
    }

    pub(crate) fn close(&mut self) {
        if self.over.is_none() {
            self.connection.close();
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.over.is_some() || self.connection.is_closed()
    }

    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.over.is_none().then(|| self.connection.poll_timeout_ns()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use doorbell_exchange::{Connector, SendReceive};
    use doorbell_verbs::soft::{SoftOptions, open};

    use super::*;

    /// An operation whose request found no room must be woken to try again, since no answer wakes it.
    #[test]
    fn an_operation_without_room_to_ask_retries() {
        let geometry = Geometry::default();
        let config = config(&Config::default().window(1), &geometry);
        let [(own, endpoint), (_peers, peer)] = [0, 1].map(|_| {
            let device = open(&SoftOptions { publish: false, ..SoftOptions::default() }).unwrap();
            let endpoint = SendReceive.endpoint(&device.create_pd().unwrap(), &config, None).unwrap();
            (device, endpoint)
        });
        let (described, peers) = (SendReceive.describe(&endpoint), SendReceive.describe(&peer));
        let connection = SendReceive.connect(endpoint, &peers).unwrap();
        let _silent = SendReceive.connect(peer, &described).unwrap();
        let mut calls = Calls::new(connection, &geometry, 1, None);
        assert!(!calls.poll(), "a poll without an event reported one");
        // The other end receives no message, so the room on the connection runs out.
        let asked = (0..10_000).take_while(|_| calls.ask(0, Kind::Get, b"key", b"") == Ok(true)).count();
        assert!((1..10_000).contains(&asked), "{asked} requests were sent");
        assert!(calls.poll(), "the waiting operation was not woken");
        // Later polls may report acknowledgements of the requests.
        assert!(!calls.was_full, "a poll wakes the operation again without another try");
        drop(own);
    }

    #[test]
    fn messages_round_trip_and_truncated_ones_are_rejected() {
        let mut bytes = Vec::new();
        for kind in KINDS {
            let value: &[u8] = if matches!(kind, Kind::Put | Kind::Insert) { b"value" } else { b"" };
            let call = Call { kind, tag: 300, key: b"key", value };
            call.encode(&mut bytes);
            assert_eq!(Call::decode(&bytes), Some(call));
            assert_eq!(Call::decode(&bytes[..HEAD_BYTES + 2]), None, "a request with a truncated key was decoded");
        }
        bytes.push(1);
        assert_eq!(Call::decode(&bytes), None, "a delete with a value was decoded");
        for answer in ANSWERS {
            answer.encode(7, &mut bytes);
            bytes.extend(b"value");
            assert_eq!(Answer::decode(&bytes), Some((answer, 7, &b"value"[..])));
            assert_eq!(Answer::decode(&bytes[..HEAD_BYTES - 1]), None);
        }
    }
}
