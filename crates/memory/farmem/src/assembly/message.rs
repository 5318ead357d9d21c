//! Messages between parties, and their format: bytes, or the same bytes as hexadecimal digits.

use std::fmt;

use doorbell_exchange::setup::EndpointDescription;
use doorbell_verbs::{Qpn, RKey};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::AssemblyError;
use crate::layout::{MAX_KEY, NodeVersion};
use crate::memory::{ClientDescription, MemoryDescription};

/// First byte of each message. It changes whenever the format does.
const FORMAT: u8 = 1;

/// Maximum length of a message in bytes.
pub const MAX_BYTES: usize = 64 + MAX_KEY;

/// Maximum length of the text of a refusal in bytes.
const MAX_TEXT: usize = 512;

/// Party of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Party {
    /// Memory node with this index: 0 or 1.
    Memory(u8),
    /// Middlebox in front of the first memory node.
    Middlebox,
    /// Metadata service.
    Metadata,
    /// Client with this number, counted from 1.
    Client(u32),
}

impl Party {
    /// Returns the number by which a memory node knows a party that enters.
    pub(crate) fn number(self) -> Option<u32> {
        match self {
            Self::Metadata => Some(0),
            Self::Middlebox => Some(crate::steering::BOX),
            Self::Client(number) => Some(number),
            Self::Memory(_) => None,
        }
    }

    fn encode(self, out: &mut Vec<u8>) {
        let (kind, number) = match self {
            Self::Memory(index) => (0, index.into()),
            Self::Middlebox => (1, 0),
            Self::Metadata => (2, 0),
            Self::Client(number) => (3, number),
        };
        out.push(kind);
        out.extend(u32::to_be_bytes(number));
    }
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(index) => write!(f, "memory node {index}"),
            Self::Middlebox => f.write_str("the middlebox"),
            Self::Metadata => f.write_str("the metadata service"),
            Self::Client(number) => write!(f, "client {number}"),
        }
    }
}

/// Identity of a client at its middlebox. Each middlebox has another key, so the key identifies the middlebox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Queue pair of the middlebox to which the client sends.
    pub qpn: Qpn,
    /// Key of the memory that the middlebox chose for its clients.
    pub rkey: RKey,
}

impl Path {
    /// Returns the path that the description of a middlebox contains.
    pub(super) fn of(memory: &MemoryDescription) -> Self {
        Self { qpn: memory.endpoint.qpn, rkey: memory.region.rkey }
    }
}

/// Content of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Requests a queue pair to the memory. Contains the ends of the sender.
    Enter(ClientDescription),
    /// Answers `Enter`. Contains the ends at the memory node or middlebox; the first region of the lane is the store's
    /// memory.
    Entered(ClientDescription),
    /// Requests a connection with the metadata service.
    Join {
        /// End of the client.
        end: EndpointDescription,
        /// Path of the client through a middlebox, if there is one.
        path: Option<Path>,
    },
    /// Answers `Join`. Contains the end of the metadata service.
    Joined(EndpointDescription),
    /// Requests that the receiver shut out a client.
    Fence {
        /// Number of the client.
        client: u32,
        /// Path of the client through a middlebox, if there is one.
        path: Option<Path>,
    },
    /// Answers `Fence`: the memory executes no further request of the client.
    Fenced {
        /// Number of the client.
        client: u32,
    },
    /// Requests that a memory node stop for good.
    Stop,
    /// Answers `Stop`: the memory node executes no further request.
    Stopped,
    /// Requests another lease for a memory node.
    AskLease,
    /// Answers `AskLease`. The lease counts from the request.
    Lease,
    /// Asks whether a node is intact and has a key.
    Check {
        /// Place of the node.
        place: NodeVersion,
        /// Key.
        key: Vec<u8>,
    },
    /// Answers `Check`.
    Checked {
        /// Whether the node is intact and has the key.
        is_intact: bool,
    },
    /// Answers a request that cannot be met, with the reason.
    Refused(String),
    /// Reports that the sender has ended. The carrier of its messages sends this message in its name.
    Ended,
}

impl Body {
    /// Returns the kind of the content as words.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Enter(_) => "a request to enter",
            Self::Entered(_) => "ends of the memory",
            Self::Join { .. } => "a request to join",
            Self::Joined(_) => "an end of the metadata service",
            Self::Fence { .. } => "a request to shut out a client",
            Self::Fenced { .. } => "the answer that a client is shut out",
            Self::Stop => "a request to stop",
            Self::Stopped => "the answer that a memory node has stopped",
            Self::AskLease => "a request for a lease",
            Self::Lease => "a lease",
            Self::Check { .. } => "a request to check a node",
            Self::Checked { .. } => "the result of a check",
            Self::Refused(_) => "a refusal",
            Self::Ended => "the end of a party",
        }
    }
}

/// Message between two parties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Sender.
    pub from: Party,
    /// Receiver.
    pub to: Party,
    /// Content.
    pub body: Body,
}

fn put_end(out: &mut Vec<u8>, end: &EndpointDescription) {
    let at = out.len();
    out.push(0);
    end.encode(out);
    // A description has fewer than 256 bytes.
    out[at] = (out.len() - at - 1) as u8;
}

fn put_ends(out: &mut Vec<u8>, ends: &ClientDescription) {
    put_end(out, &ends.lane);
    out.push(ends.calls.is_some().into());
    if let Some(calls) = &ends.calls {
        put_end(out, calls);
    }
}

fn put_path(out: &mut Vec<u8>, path: Option<Path>) {
    out.push(path.is_some().into());
    if let Some(Path { qpn, rkey }) = path {
        out.extend(qpn.get().to_be_bytes());
        out.extend(rkey.get().to_be_bytes());
    }
}

/// Reader of the fields of a message.
struct Fields<'a>(&'a [u8]);

type Field<T> = Result<T, &'static str>;

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Field<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or("too few bytes")?;
        self.0 = rest;
        Ok(*head)
    }

    fn number(&mut self) -> Field<u32> {
        self.take().map(u32::from_be_bytes)
    }

    fn flag(&mut self) -> Field<bool> {
        match self.take()? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err("a flag that is neither 0 nor 1"),
        }
    }

    fn party(&mut self) -> Field<Party> {
        match (self.take()?, self.number()?) {
            ([0], index @ 0..=1) => Ok(Party::Memory(index as u8)),
            ([1], 0) => Ok(Party::Middlebox),
            ([2], 0) => Ok(Party::Metadata),
            ([3], number @ 1..) if number != crate::steering::BOX => Ok(Party::Client(number)),
            _ => Err("a party that does not exist"),
        }
    }

    fn end(&mut self) -> Field<EndpointDescription> {
        let [length] = self.take()?;
        let (end, rest) = self.0.split_at_checked(length.into()).ok_or("too few bytes")?;
        self.0 = rest;
        EndpointDescription::decode(end)
    }

    fn ends(&mut self) -> Field<ClientDescription> {
        let lane = self.end()?;
        let calls = if self.flag()? { Some(self.end()?) } else { None };
        Ok(ClientDescription { lane, calls })
    }

    fn path(&mut self) -> Field<Option<Path>> {
        Ok(match self.flag()? {
            true => Some(Path { qpn: Qpn::new(self.number()?), rkey: RKey::new(self.number()?) }),
            false => None,
        })
    }

    fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0).to_vec()
    }

    fn body(&mut self) -> Field<Body> {
        Ok(match self.take()? {
            [0] => Body::Enter(self.ends()?),
            [1] => Body::Entered(self.ends()?),
            [2] => Body::Join { end: self.end()?, path: self.path()? },
            [3] => Body::Joined(self.end()?),
            [4] => Body::Fence { client: self.number()?, path: self.path()? },
            [5] => Body::Fenced { client: self.number()? },
            [6] => Body::Stop,
            [7] => Body::Stopped,
            [8] => Body::AskLease,
            [9] => Body::Lease,
            [10] => {
                let place = NodeVersion::from_bits(u64::from_be_bytes(self.take()?)).ok_or("no place of a node")?;
                Body::Check { place, key: self.rest() }
            }
            [11] => Body::Checked { is_intact: self.flag()? },
            [12] => Body::Refused(String::from_utf8(self.rest()).map_err(|_| "a text that is not UTF-8")?),
            [13] => Body::Ended,
            _ => return Err("a kind that does not exist"),
        })
    }
}

impl Message {
    /// Returns the encoded message.
    pub fn encode(&self) -> Vec<u8> {
        let out = &mut vec![FORMAT];
        self.from.encode(out);
        self.to.encode(out);
        let mut kind = |number: u8| out.push(number);
        match &self.body {
            Body::Enter(ends) => {
                kind(0);
                put_ends(out, ends);
            }
            Body::Entered(ends) => {
                kind(1);
                put_ends(out, ends);
            }
            Body::Join { end, path } => {
                kind(2);
                put_end(out, end);
                put_path(out, *path);
            }
            Body::Joined(end) => {
                kind(3);
                put_end(out, end);
            }
            Body::Fence { client, path } => {
                kind(4);
                out.extend(client.to_be_bytes());
                put_path(out, *path);
            }
            Body::Fenced { client } => {
                kind(5);
                out.extend(client.to_be_bytes());
            }
            Body::Stop => kind(6),
            Body::Stopped => kind(7),
            Body::AskLease => kind(8),
            Body::Lease => kind(9),
            Body::Check { place, key } => {
                kind(10);
                out.extend(place.bits().to_be_bytes());
                out.extend(key);
            }
            Body::Checked { is_intact } => out.extend([11, u8::from(*is_intact)]),
            Body::Refused(why) => {
                kind(12);
                out.extend(&why.as_bytes()[..why.floor_char_boundary(MAX_TEXT)]);
            }
            Body::Ended => kind(13),
        }
        std::mem::take(out)
    }

    /// Decodes a message.
    ///
    /// # Errors
    ///
    /// The bytes are no message. The error names the defect.
    pub fn decode(bytes: &[u8]) -> Result<Self, AssemblyError> {
        let parse = || -> Field<Self> {
            if bytes.len() > MAX_BYTES {
                return Err("too many bytes");
            }
            let mut fields = Fields(bytes);
            if fields.take()? != [FORMAT] {
                return Err("another format: use the same release for all parties");
            }
            let message = Self { from: fields.party()?, to: fields.party()?, body: fields.body()? };
            if fields.0.is_empty() { Ok(message) } else { Err("too many bytes") }
        };
        parse().map_err(AssemblyError::Format)
    }

    /// Returns the encoded message as hexadecimal digits, for a transport of text.
    pub fn to_text(&self) -> String {
        self.encode().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Decodes the output of [`to_text`](Self::to_text).
    ///
    /// # Errors
    ///
    /// The text is no message. The error names the defect.
    pub fn from_text(text: &str) -> Result<Self, AssemblyError> {
        let text = text.as_bytes();
        if text.len() > 2 * MAX_BYTES {
            return Err(AssemblyError::Format("too many digits"));
        }
        let digit = |byte: &u8| char::from(*byte).to_digit(16).map(|digit| digit as u8);
        let byte = |pair: &[u8]| match pair {
            [high, low] => Some(digit(high)? << 4 | digit(low)?),
            _ => None,
        };
        let bytes: Option<Vec<u8>> = text.chunks(2).map(byte).collect();
        Self::decode(&bytes.ok_or(AssemblyError::Format("characters that are no pairs of hexadecimal digits"))?)
    }
}

impl Serialize for Message {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.to_text())
    }
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::from_text(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}
