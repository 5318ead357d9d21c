//! Messages that two devices of one machine exchange before they share memory.
//!
//! ```text
//! inviter                                           host
//!    | -- connects to the host's name --------------> |  each checks the other's user
//!    | -- Hello: engines, nonce A, the ring file ---> |
//!    | <- Welcome: yes or no ------------------------ |
//!    | <= Challenge in UDP: nonce A, nonce B ======== |  only the owner of the host's address can send it
//!    | -- Proof: nonce B ---------------------------> |  only the owner of the inviter's address got it
//! ```
//!
//! Then one engine of each device uses the rings until the connection ends. Datagrams name the engine that gets them in
//! the same bits as packets, since the same program distributes them to the sockets of a device.

use std::net::{IpAddr, Ipv6Addr};

use doorbell_rnic::EngineId;
use doorbell_wire::to_gid;

use crate::udp::ENGINE_BYTE_AT;

/// Version of the messages and of the ring format. Two devices share memory only if their versions are equal.
pub(super) const VERSION: u16 = 2;

/// First version in which the invitation names engines.
const ENGINES_SINCE: u16 = 2;

/// Random bytes. A device that returns them proves that it received the message that contained them.
pub(super) type Nonce = [u8; 16];

/// First bytes of each message, over the Unix socket and over UDP. No RoCE packet begins with these bytes, since 0xff
/// is no opcode.
const MAGIC: [u8; 8] = *b"\xffdoorbel";

/// Kinds of messages.
const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const PROOF: u8 = 3;
const CHALLENGE: u8 = 4;
const WAKE: u8 = 5;

/// Maximum size of a message in bytes.
pub(super) const MAX_BYTES: usize = 64;

/// Messages over the Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// The invitation: the inviter's address and UDP port, and the nonce that the host must send to that address. The
    /// engine `from` of the inviter is to share memory with the engine `to` of the host. The descriptor of the file
    /// with the rings is attached.
    Hello { version: u16, address: IpAddr, port: u16, nonce: Nonce, from: EngineId, to: EngineId },
    /// The host's answer.
    Welcome { version: u16, answer: Answer },
    /// The nonce `asked` of the host's challenge, which the inviter returns.
    Proof { nonce: Nonce },
}

/// Answer of a host to an invitation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The host shares no memory with the inviter.
    Rejected = 0,
    /// The host shares memory.
    Accepted = 1,
    /// The host has no engine with this identifier, or the engine has had no queue pair yet.
    NoEngine = 2,
}

/// Messages over UDP, each to one engine. Each is a separate datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Datagram {
    /// The inviter's nonce, which proves that the host sent the datagram, and the host's nonce, which the inviter
    /// returns.
    Challenge { to: EngineId, invited: Nonce, asked: Nonce },
    /// Wake-up of a sleeping engine: its ring holds a record.
    Wake { to: EngineId },
}

/// Parser that takes bytes off the front of a message.
struct Parser<'a>(&'a [u8]);

impl Parser<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    /// Returns the message if all bytes were parsed.
    fn end<T>(self, message: T) -> Option<T> {
        self.0.is_empty().then_some(message)
    }
}

fn begin(kind: u8) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(MAX_BYTES);
    bytes.extend_from_slice(&MAGIC);
    bytes.push(kind);
    bytes
}

/// Begins a datagram to an engine. The magic bytes of a datagram lack the bits that name the engine.
fn begin_datagram(kind: u8, to: EngineId) -> Vec<u8> {
    let mut bytes = begin(kind);
    bytes[ENGINE_BYTE_AT] = to.0 << 4 | (MAGIC[ENGINE_BYTE_AT] & 0xf);
    bytes
}

fn kind_of(bytes: &[u8]) -> Option<(u8, Parser<'_>)> {
    let mut parser = Parser(bytes);
    let is_ours = parser.take() == Some(MAGIC);
    let [kind] = parser.take()?;
    is_ours.then_some((kind, parser))
}

impl Message {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        match self {
            Self::Hello { version, address, port, nonce, from, to } => {
                let mut bytes = begin(HELLO);
                bytes.extend_from_slice(&version.to_le_bytes());
                let address = to_gid(address);
                bytes.extend_from_slice(&address.octets());
                bytes.extend_from_slice(&port.to_le_bytes());
                bytes.extend_from_slice(&nonce);
                if version >= ENGINES_SINCE {
                    bytes.extend_from_slice(&[from.0, to.0]);
                }
                bytes
            }
            Self::Welcome { version, answer } => {
                let mut bytes = begin(WELCOME);
                bytes.extend_from_slice(&version.to_le_bytes());
                bytes.push(answer as u8);
                bytes
            }
            Self::Proof { nonce } => {
                let mut bytes = begin(PROOF);
                bytes.extend_from_slice(&nonce);
                bytes
            }
        }
    }

    /// Parses a message. Returns `None` if the bytes are no message. Messages of another version may have further
    /// bytes, which are ignored.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (kind, mut parser) = kind_of(bytes)?;
        match kind {
            HELLO => {
                let version = u16::from_le_bytes(parser.take()?);
                let address = Ipv6Addr::from(parser.take::<16>()?).to_canonical();
                let port = u16::from_le_bytes(parser.take()?);
                let nonce = parser.take()?;
                let [from, to] =
                    if version >= ENGINES_SINCE { parser.take::<2>()?.map(EngineId) } else { Default::default() };
                let message = Self::Hello { version, address, port, nonce, from, to };
                if version == VERSION { parser.end(message) } else { Some(message) }
            }
            WELCOME => {
                let version = u16::from_le_bytes(parser.take()?);
                let [answer] = parser.take()?;
                let known = [Answer::Accepted, Answer::NoEngine].into_iter().find(|known| *known as u8 == answer);
                let message = Self::Welcome { version, answer: known.unwrap_or(Answer::Rejected) };
                if version == VERSION { parser.end(message) } else { Some(message) }
            }
            PROOF => {
                let nonce = parser.take()?;
                parser.end(Self::Proof { nonce })
            }
            _ => None,
        }
    }
}

impl Datagram {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        match self {
            Self::Challenge { to, invited, asked } => {
                let mut bytes = begin_datagram(CHALLENGE, to);
                bytes.extend_from_slice(&invited);
                bytes.extend_from_slice(&asked);
                bytes
            }
            Self::Wake { to } => begin_datagram(WAKE, to),
        }
    }

    /// Parses a message. Returns `None` if the bytes are a packet or otherwise no message.
    #[inline]
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        // Nearly all datagrams are packets.
        if bytes.first() != Some(&MAGIC[0]) {
            return None;
        }
        let mut parser = Parser(bytes);
        let (mut magic, [kind]) = (parser.take::<{ MAGIC.len() }>()?, parser.take()?);
        let to = EngineId(magic[ENGINE_BYTE_AT] >> 4);
        magic[ENGINE_BYTE_AT] = magic[ENGINE_BYTE_AT] & 0xf | MAGIC[ENGINE_BYTE_AT] & 0xf0;
        if magic != MAGIC {
            return None;
        }
        match kind {
            CHALLENGE => {
                let message = Self::Challenge { to, invited: parser.take()?, asked: parser.take()? };
                parser.end(message)
            }
            WAKE => parser.end(Self::Wake { to }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_round_trip_and_truncated_ones_are_rejected() {
        let (nonce, from, to) = ([7; 16], EngineId(15), EngineId(0));
        let messages = [
            Message::Hello { version: VERSION, address: [127, 0, 0, 9].into(), port: 4791, nonce, from, to },
            Message::Hello { version: VERSION + 1, address: Ipv6Addr::LOCALHOST.into(), port: 1, nonce, from, to },
            Message::Hello { version: 1, address: Ipv6Addr::LOCALHOST.into(), port: 1, nonce, from: to, to },
            Message::Welcome { version: VERSION, answer: Answer::Accepted },
            Message::Welcome { version: VERSION, answer: Answer::Rejected },
            Message::Welcome { version: VERSION, answer: Answer::NoEngine },
            Message::Proof { nonce },
        ];
        for message in messages {
            let bytes = message.to_bytes();
            assert!(bytes.len() <= MAX_BYTES);
            assert_eq!(Message::parse(&bytes), Some(message));
            assert!((0..bytes.len()).all(|cut| Message::parse(&bytes[..cut]).is_none()));
        }
        let datagrams = [from, to]
            .map(|to| [Datagram::Challenge { to, invited: nonce, asked: [8; 16] }, Datagram::Wake { to }])
            .concat();
        for datagram in datagrams {
            let bytes = datagram.to_bytes();
            assert_ne!(bytes.len() % 4, 0, "a RoCE packet could have this length");
            assert_eq!(Datagram::parse(&bytes), Some(datagram));
            assert!((0..bytes.len()).all(|cut| Datagram::parse(&bytes[..cut]).is_none()));
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_not_misread(mut bytes in prop::collection::vec(any::<u8>(), 0..MAX_BYTES), ours: bool) {
            if ours && bytes.len() >= MAGIC.len() {
                bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
            }
            if let Some(message) = Message::parse(&bytes) {
                prop_assert!(message.to_bytes().len() <= bytes.len());
            }
            if let Some(datagram) = Datagram::parse(&bytes) {
                prop_assert_eq!(datagram.to_bytes(), bytes);
            }
        }
    }
}
