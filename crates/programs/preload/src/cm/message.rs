//! Messages between two connection managers. They correspond to the messages of IBTA (Vol 1, 12.6 and 12.11), and each
//! has a header of 8 bytes. Numbers are in network byte order. Within one machine, the client first sends a message
//! with the addresses of both sides, since Unix sockets have no IP addresses.
//!
//! | bytes | |
//! |---|---|
//! | 0..4 | `DBcm` |
//! | 4 | version of the format, [`VERSION`] |
//! | 5 | kind of the message |
//! | 6..8 | number of bytes after the header |
//!
//! The maximum size of messages limits the memory that a peer can occupy. If a message cannot be parsed, the receiver
//! ends the connection.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use doorbell_verbs::{PathMtu, Psn, QKey, QpKind, Qpn};

/// Version of the message format. Each change of the format increments the version.
pub(super) const VERSION: u8 = 1;

const MAGIC: [u8; 4] = *b"DBcm";
const HEADER_BYTES: usize = 8;

/// Maximum size of a message, in bytes.
pub(super) const MAX_BYTES: usize = 256;

/// Maximum private data of each kind of message, in bytes. The limits are those of IBTA's messages. For IP addresses,
/// the rdma_cm uses 36 of the 92 bytes of a connection request (REQ) and of the 216 bytes of a lookup (SIDR_REQ). See
/// RDMA IP CM Service, annex A11.
pub(super) const REQUEST_PRIVATE: usize = 56;
pub(super) const REPLY_PRIVATE: usize = 196;
pub(super) const REJECT_PRIVATE: usize = 148;
pub(super) const LOOKUP_PRIVATE: usize = 180;
pub(super) const LOOKUP_REPLY_PRIVATE: usize = 136;

/// Reasons for a rejection (IBTA Vol 1, 12.6.7.2).
pub(super) mod reason {
    pub(in crate::cm) const NO_RESOURCES: u16 = 3;
    pub(in crate::cm) const INVALID_SERVICE_ID: u16 = 8;
    pub(in crate::cm) const CONSUMER_DEFINED: u16 = 28;
    pub(in crate::cm) const VENDOR_OPTION: u16 = 35;
}

/// Status values of a lookup reply, SIDR_REP (IBTA Vol 1, 12.11.2).
pub(super) mod lookup {
    pub(in crate::cm) const SUCCESS: u8 = 0;
    pub(in crate::cm) const UNSUPPORTED: u8 = 1;
    pub(in crate::cm) const REJECTED: u8 = 2;
}

/// Parameters of a queue pair that the peer needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) gid: Ipv6Addr,
    pub(super) qpn: Qpn,
    pub(super) psn: Psn,
    pub(super) path_mtu: PathMtu,
    /// Maximum number of READs and atomics that the queue pair answers concurrently.
    pub(super) responder_resources: u8,
    /// Maximum number of READs and atomics that the queue pair may have outstanding.
    pub(super) initiator_depth: u8,
    pub(super) rnr_retry: u8,
    pub(super) flow_control: bool,
    pub(super) srq: bool,
}

/// An IP address without port. An IPv4 address is stored as IPv4-mapped IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Host {
    ip: Ipv6Addr,
    /// Scope ID of a link-local address, or 0.
    scope: u32,
}

impl Host {
    pub(super) fn of(address: SocketAddr) -> Self {
        match address {
            SocketAddr::V4(v4) => Self { ip: v4.ip().to_ipv6_mapped(), scope: 0 },
            SocketAddr::V6(v6) => Self { ip: *v6.ip(), scope: v6.scope_id() },
        }
    }

    pub(super) fn at(self, port: u16) -> SocketAddr {
        match self.ip.to_canonical() {
            IpAddr::V4(ip) => SocketAddr::from((ip, port)),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, self.scope).into(),
        }
    }

    fn emit(self, bytes: &mut Vec<u8>) {
        bytes.extend(self.ip.octets());
        bytes.extend(self.scope.to_be_bytes());
    }

    fn parse(fields: &mut Fields<'_>) -> Option<Self> {
        Some(Self { ip: fields.take::<16>()?.into(), scope: u32::from_be_bytes(fields.take()?) })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// REQ of IBTA.
    Request { kind: QpKind, endpoint: Endpoint, retry_count: u8, private: Vec<u8> },
    /// REP of IBTA.
    Reply { endpoint: Endpoint, private: Vec<u8> },
    /// RTU of IBTA.
    ReadyToUse,
    /// REJ of IBTA.
    Reject { reason: u16, private: Vec<u8> },
    /// DREQ of IBTA.
    DisconnectRequest,
    /// DREP of IBTA.
    DisconnectReply,
    /// SIDR_REQ of IBTA.
    Lookup { private: Vec<u8> },
    /// SIDR_REP of IBTA.
    LookupReply { status: u8, gid: Ipv6Addr, qpn: Qpn, qkey: QKey, private: Vec<u8> },
    /// Addresses of the client and of the listener. The client sends this message first, and only within one machine.
    Addresses { source: Host, destination: Host },
}

/// Reason why bytes cannot be parsed as a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Malformed {
    #[error("the peer is not Doorbell's connection manager: its message does not begin with DBcm")]
    Magic,
    #[error(
        "the peer uses version {0} of the set-up, this side uses version {VERSION}: use the same release of Doorbell"
    )]
    Version(u8),
    #[error("message kind {0} does not exist: must be {REQUEST} to {ADDRESSES}")]
    Kind(u8),
    #[error("a message of kind {kind} cannot have {bytes} bytes after its header")]
    Length { kind: u8, bytes: usize },
    #[error("a message of kind {0} has a field whose value the message format does not allow")]
    Value(u8),
}

const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const READY_TO_USE: u8 = 3;
const REJECT: u8 = 4;
const DISCONNECT_REQUEST: u8 = 5;
const DISCONNECT_REPLY: u8 = 6;
const LOOKUP: u8 = 7;
const LOOKUP_REPLY: u8 = 8;
const ADDRESSES: u8 = 9;

const FLOW_CONTROL: u8 = 1;
const SRQ: u8 = 2;

/// Returns the size of a message of this kind without private data, and the maximum size of its private data.
fn sizes(kind: u8) -> Option<(usize, usize)> {
    Some(match kind {
        REQUEST => (2 + ENDPOINT_BYTES, REQUEST_PRIVATE),
        REPLY => (ENDPOINT_BYTES, REPLY_PRIVATE),
        READY_TO_USE | DISCONNECT_REQUEST | DISCONNECT_REPLY => (0, 0),
        REJECT => (2, REJECT_PRIVATE),
        LOOKUP => (0, LOOKUP_PRIVATE),
        LOOKUP_REPLY => (1 + 16 + 4 + 4, LOOKUP_REPLY_PRIVATE),
        ADDRESSES => (2 * (16 + 4), 0),
        _ => return None,
    })
}

const ENDPOINT_BYTES: usize = 16 + 4 + 4 + 5;

const _: () = assert!(HEADER_BYTES + ENDPOINT_BYTES + REPLY_PRIVATE <= MAX_BYTES);
const _: () = assert!(HEADER_BYTES + LOOKUP_PRIVATE <= MAX_BYTES);

impl Message {
    fn kind(&self) -> u8 {
        match self {
            Self::Request { .. } => REQUEST,
            Self::Reply { .. } => REPLY,
            Self::ReadyToUse => READY_TO_USE,
            Self::Reject { .. } => REJECT,
            Self::DisconnectRequest => DISCONNECT_REQUEST,
            Self::DisconnectReply => DISCONNECT_REPLY,
            Self::Lookup { .. } => LOOKUP,
            Self::LookupReply { .. } => LOOKUP_REPLY,
            Self::Addresses { .. } => ADDRESSES,
        }
    }

    /// Encodes the message. The caller must not exceed the maximum private data of the message's kind.
    pub(super) fn emit(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(MAX_BYTES);
        bytes.extend(MAGIC);
        bytes.extend([VERSION, self.kind(), 0, 0]);
        match self {
            Self::Request { kind, endpoint, retry_count, private } => {
                bytes.extend([if *kind == QpKind::Uc { 1 } else { 0 }, *retry_count]);
                endpoint.emit(&mut bytes);
                bytes.extend(private);
            }
            Self::Reply { endpoint, private } => {
                endpoint.emit(&mut bytes);
                bytes.extend(private);
            }
            Self::ReadyToUse | Self::DisconnectRequest | Self::DisconnectReply => {}
            Self::Reject { reason, private } => {
                bytes.extend(reason.to_be_bytes());
                bytes.extend(private);
            }
            Self::Lookup { private } => bytes.extend(private),
            Self::LookupReply { status, gid, qpn, qkey, private } => {
                bytes.push(*status);
                bytes.extend(gid.octets());
                bytes.extend(qpn.get().to_be_bytes());
                bytes.extend(qkey.get().to_be_bytes());
                bytes.extend(private);
            }
            Self::Addresses { source, destination } => {
                source.emit(&mut bytes);
                destination.emit(&mut bytes);
            }
        }
        let rest = (bytes.len() - HEADER_BYTES) as u16;
        bytes[6..HEADER_BYTES].copy_from_slice(&rest.to_be_bytes());
        bytes
    }

    /// Parses the message at the start of `bytes`. Returns the message and its length, or `None` if the message is
    /// incomplete.
    pub(super) fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, Malformed> {
        let known = bytes.len().min(MAGIC.len());
        if bytes[..known] != MAGIC[..known] {
            return Err(Malformed::Magic);
        }
        if let Some(&version) = bytes.get(4)
            && version != VERSION
        {
            return Err(Malformed::Version(version));
        }
        let Some((header, rest)) = bytes.split_at_checked(HEADER_BYTES) else { return Ok(None) };
        let (kind, length) = (header[5], usize::from(u16::from_be_bytes([header[6], header[7]])));
        let (fixed, most_private) = sizes(kind).ok_or(Malformed::Kind(kind))?;
        if !(fixed..=fixed + most_private).contains(&length) {
            return Err(Malformed::Length { kind, bytes: length });
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        let message = Self::of(kind, Fields(body)).ok_or(Malformed::Value(kind))?;
        Ok(Some((message, HEADER_BYTES + length)))
    }

    fn of(kind: u8, mut fields: Fields<'_>) -> Option<Self> {
        Some(match kind {
            REQUEST => {
                let [kind, retry_count] = fields.take()?;
                let kind = [QpKind::Rc, QpKind::Uc].get(usize::from(kind)).copied()?;
                if retry_count > 7 {
                    return None;
                }
                Self::Request { kind, endpoint: Endpoint::of(&mut fields)?, retry_count, private: fields.rest() }
            }
            REPLY => Self::Reply { endpoint: Endpoint::of(&mut fields)?, private: fields.rest() },
            READY_TO_USE => Self::ReadyToUse,
            REJECT => {
                let reason = u16::from_be_bytes(fields.take()?);
                // Reason 0 does not exist (IBTA Vol 1, 12.6.7.2). A program would take this reason for success.
                if reason == 0 {
                    return None;
                }
                Self::Reject { reason, private: fields.rest() }
            }
            DISCONNECT_REQUEST => Self::DisconnectRequest,
            DISCONNECT_REPLY => Self::DisconnectReply,
            LOOKUP => Self::Lookup { private: fields.rest() },
            LOOKUP_REPLY => {
                let [status] = fields.take()?;
                let gid = Ipv6Addr::from(fields.take::<16>()?);
                let qpn = fields.number24()?;
                let qkey = QKey::new(u32::from_be_bytes(fields.take()?));
                Self::LookupReply { status, gid, qpn: Qpn::new(qpn), qkey, private: fields.rest() }
            }
            ADDRESSES => Self::Addresses { source: Host::parse(&mut fields)?, destination: Host::parse(&mut fields)? },
            _ => return None,
        })
    }
}

impl Endpoint {
    fn emit(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.gid.octets());
        bytes.extend(self.qpn.get().to_be_bytes());
        bytes.extend(self.psn.get().to_be_bytes());
        bytes.extend([self.path_mtu.code(), self.responder_resources, self.initiator_depth, self.rnr_retry]);
        bytes.push(if self.flow_control { FLOW_CONTROL } else { 0 } | if self.srq { SRQ } else { 0 });
    }

    fn of(fields: &mut Fields<'_>) -> Option<Self> {
        let gid = Ipv6Addr::from(fields.take::<16>()?);
        let (qpn, psn) = (fields.number24()?, fields.number24()?);
        let [mtu, responder_resources, initiator_depth, rnr_retry, flags] = fields.take()?;
        let address = gid.to_canonical();
        let nobody = address.is_unspecified() || address.is_multicast();
        if nobody || rnr_retry > 7 || flags & !(FLOW_CONTROL | SRQ) != 0 {
            return None;
        }
        Some(Self {
            gid,
            qpn: Qpn::new(qpn),
            psn: Psn::new(psn),
            path_mtu: PathMtu::try_from(mtu).ok()?,
            responder_resources,
            initiator_depth,
            rnr_retry,
            flow_control: flags & FLOW_CONTROL != 0,
            srq: flags & SRQ != 0,
        })
    }
}

/// The rest of a message that is not parsed yet. The parser takes fields from its front.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    /// Takes a 24-bit number, such as a QPN or a PSN, from a field of 32 bits.
    fn number24(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.take()?)).filter(|number| number >> 24 == 0)
    }

    fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0).to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> Endpoint {
        Endpoint {
            gid: "::ffff:127.0.0.3".parse().unwrap(),
            qpn: Qpn::new(0x12_3456),
            psn: Psn::new(0xff_fffe),
            path_mtu: PathMtu::Mtu1024,
            responder_resources: 16,
            initiator_depth: 3,
            rnr_retry: 7,
            flow_control: true,
            srq: false,
        }
    }

    fn all() -> Vec<Message> {
        let gid = endpoint().gid;
        vec![
            Message::Request { kind: QpKind::Rc, endpoint: endpoint(), retry_count: 7, private: vec![7; 56] },
            Message::Request { kind: QpKind::Uc, endpoint: endpoint(), retry_count: 0, private: Vec::new() },
            Message::Reply { endpoint: Endpoint { srq: true, ..endpoint() }, private: vec![1; REPLY_PRIVATE] },
            Message::ReadyToUse,
            Message::Reject { reason: 28, private: b"no".to_vec() },
            Message::DisconnectRequest,
            Message::DisconnectReply,
            Message::Lookup { private: vec![3; LOOKUP_PRIVATE] },
            Message::LookupReply { status: 0, gid, qpn: Qpn::new(5), qkey: QKey::new(0x0123_4567), private: vec![9] },
            Message::Addresses {
                source: Host { ip: gid, scope: 0 },
                destination: Host { ip: gid, scope: 0x0102_0304 },
            },
        ]
    }

    #[test]
    fn a_request_has_these_bytes() {
        let request =
            Message::Request { kind: QpKind::Rc, endpoint: endpoint(), retry_count: 6, private: b"ab".to_vec() };
        let golden = [
            &b"DBcm"[..],
            &[1, 1, 0, 33],
            &[0, 6],
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 3],
            &[0, 0x12, 0x34, 0x56],
            &[0, 0xff, 0xff, 0xfe],
            &[3, 16, 3, 7, 1],
            b"ab",
        ]
        .concat();
        assert_eq!(request.emit(), golden);
    }

    #[test]
    fn messages_parse_back_and_are_incomplete_before_their_last_byte() {
        for message in all() {
            let mut bytes = message.emit();
            assert!(bytes.len() <= MAX_BYTES);
            for short in 0..bytes.len() {
                assert_eq!(Message::parse(&bytes[..short]), Ok(None), "{message:?} cut to {short}");
            }
            let length = bytes.len();
            bytes.extend(b"what follows");
            assert_eq!(Message::parse(&bytes), Ok(Some((message, length))));
        }
    }

    #[test]
    fn a_wrong_header_is_refused_before_the_message_is_complete() {
        assert_eq!(Message::parse(b"GET "), Err(Malformed::Magic));
        assert_eq!(Message::parse(b"DBcm\x02"), Err(Malformed::Version(2)));
        assert_eq!(Message::parse(b"DBcm\x01\x0a\0\0"), Err(Malformed::Kind(10)));
        assert_eq!(Message::parse(b"DBcm\x01\x00\0\0"), Err(Malformed::Kind(0)));
        let longest = [0xff, 0xff];
        for kind in REQUEST..=ADDRESSES {
            let header = [b"DBcm", &[VERSION, kind][..], &longest].concat();
            assert_eq!(Message::parse(&header), Err(Malformed::Length { kind, bytes: 0xffff }));
        }
    }

    #[test]
    fn an_address_keeps_its_scope() {
        for text in ["127.0.0.3:7", "[::1]:7", "[fe80::1%4]:7"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(Host::of(address).at(7), address);
        }
    }

    #[test]
    fn values_that_do_not_exist_are_refused() {
        let request = all()[0].emit();
        // Invalid values: service, retries, GID of a group, QPN and PSN of more than 24 bits, two MTUs, RNR retries and
        // flags.
        for (at, value) in [(8, 2), (9, 8), (22, 239), (26, 1), (30, 1), (34, 0), (34, 6), (37, 8), (38, 4)] {
            let mut bytes = request.clone();
            bytes[at] = value;
            assert_eq!(Message::parse(&bytes), Err(Malformed::Value(REQUEST)), "byte {at} is {value}");
        }
        let rejection = Message::Reject { reason: 0, private: b"no".to_vec() };
        assert_eq!(Message::parse(&rejection.emit()), Err(Malformed::Value(REJECT)));
    }

    #[test]
    fn random_bytes_neither_panic_nor_parse_beyond_the_largest_message() {
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        let mut parsed = 0;
        for message in all().iter().cycle().take(50_000) {
            let mut bytes = message.emit();
            for _ in 0..next() % 4 {
                let at = next() as usize % bytes.len();
                bytes[at] = next() as u8;
            }
            bytes.truncate(next() as usize % (bytes.len() * 2));
            match Message::parse(&bytes) {
                Ok(Some((message, length))) => {
                    assert!(length <= bytes.len().min(MAX_BYTES));
                    assert_eq!(message.emit(), bytes[..length]);
                    parsed += 1;
                }
                // A receiver that waits for the rest of a message buffers at most one message.
                Ok(None) => assert!(bytes.len() < MAX_BYTES),
                Err(_) => {}
            }
        }
        assert!(parsed > 1000);
    }
}
