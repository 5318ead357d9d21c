//! Exchange of endpoint descriptions with the peer over TCP.
//!
//! Each end sends one hello: a magic, a version, the number of descriptions and the descriptions. All numbers are big
//! endian. One deadline bounds the whole exchange.
#![expect(clippy::disallowed_methods, reason = "TCP has no device, and its deadlines need a clock")]

use std::io::{self, Read, Write};
use std::net::{Ipv6Addr, TcpStream};
use std::time::{Duration, Instant};

use doorbell_protocols::WireId;
use doorbell_verbs::{PathMtu, Psn, Qp, Qpn, RKey, Region};

/// Version of the hello and of the message protocols.
pub const VERSION: u16 = 6;

/// Byte that each end sends after the hellos, once its queue pairs are connected.
pub const READY: u8 = 1;

/// First bytes of each hello.
const MAGIC: [u8; 8] = *b"DOORBELL";

const DESCRIPTION_BYTES: usize = 1 + 16 + 4 + 4 + 1 + 2 + 4 + 8 + 1 + 2 * RemoteRegion::BYTES;

/// Maximum number of connections that one exchange of hellos can set up.
pub const MAX_ENDPOINTS: usize = 4096;

/// Memory that a peer may access by RDMA operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteRegion {
    /// Address of the first byte of the memory.
    pub address: u64,
    /// Number of bytes. 0 means no memory.
    pub length: u64,
    /// Key of the memory.
    pub rkey: RKey,
}

impl RemoteRegion {
    const BYTES: usize = 8 + 8 + 4;

    /// Description of no memory.
    pub const NONE: Self = Self { address: 0, length: 0, rkey: RKey::new(0) };

    /// Returns the description of the whole region.
    pub fn of(region: &Region) -> Self {
        Self { address: region.address(), length: region.len() as u64, rkey: region.rkey() }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.address.to_be_bytes());
        out.extend(self.length.to_be_bytes());
        out.extend(self.rkey.get().to_be_bytes());
    }
}

/// Description that one end of a connection sends to its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointDescription {
    /// Protocol that the end uses.
    pub protocol: WireId,
    /// GID of the end's device.
    pub gid: Ipv6Addr,
    /// Number of the end's queue pair.
    pub qpn: Qpn,
    /// First packet sequence number that the end sends.
    pub psn: Psn,
    /// Largest path MTU that the end can use.
    pub path_mtu: PathMtu,
    /// UDP port of the end's device.
    pub udp_port: u16,
    /// Number of receives that the end posts for data.
    pub depth: u32,
    /// Bytes of the longest message that the end accepts.
    pub max_message: u64,
    /// Whether the end uses flow control by credits.
    pub credits: bool,
    /// Memory of the end that the peer accesses in this protocol.
    pub regions: [RemoteRegion; 2],
}

impl EndpointDescription {
    /// Returns the description of a queue pair that a program uses through verbs only. The description has no receives,
    /// no flow control and no memory for the peer. Its path MTU is the largest of the device.
    pub fn bare(qp: &Qp, psn: Psn) -> Self {
        let attributes = qp.pd().device().attributes();
        Self::one_sided(attributes.gid, qp.qpn(), psn, attributes.active_mtu, attributes.udp_port)
    }

    /// Returns the description of a queue pair that is no [`Qp`] of this process, such as a queue pair of a middlebox.
    pub fn one_sided(gid: Ipv6Addr, qpn: Qpn, psn: Psn, path_mtu: PathMtu, udp_port: u16) -> Self {
        Self {
            protocol: WireId::ONE_SIDED,
            gid,
            qpn,
            psn,
            path_mtu,
            udp_port,
            depth: 0, // message connections have a depth of at least 1
            max_message: 0,
            credits: false,
            regions: [RemoteRegion::NONE; 2],
        }
    }
}

/// Reason for which the set-up of a connection failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The peer sent other first bytes than a hello.
    #[error(
        "{peer} does not speak Doorbell's set-up: it sent \"{}\" where \"{}\" is expected",
        .got.escape_ascii(),
        MAGIC.escape_ascii()
    )]
    NotDoorbell {
        /// Name of the peer.
        peer: String,
        /// First bytes of the peer.
        got: [u8; 8],
    },
    /// The peer speaks another version of the set-up.
    #[error("{peer} speaks version {theirs} of Doorbell's set-up, this side speaks {VERSION}: use the same release")]
    Version {
        /// Name of the peer.
        peer: String,
        /// Version of the peer.
        theirs: u16,
    },
    /// The peer sets up another number of connections than this side.
    #[error("{peer} sets up {theirs} connections, but this side sets up {ours}: both numbers must be equal")]
    Count {
        /// Name of the peer.
        peer: String,
        /// Number of connections that the peer sets up.
        theirs: usize,
        /// Number of connections that this side sets up.
        ours: usize,
    },
    /// This side tries to set up too many connections at once.
    #[error("cannot set up {0} connections at once: at most {MAX_ENDPOINTS} are allowed")]
    TooMany(usize),
    /// A description of the peer is invalid.
    #[error("{peer} sent a description with {what}")]
    Description {
        /// Name of the peer.
        peer: String,
        /// Defect of the description, in words that follow "with".
        what: &'static str,
    },
    /// The peer did not answer before the deadline.
    #[error("{peer} did not answer within {seconds} s")]
    Deadline {
        /// Name of the peer.
        peer: String,
        /// Time that the peer had, in seconds.
        seconds: f64,
    },
    /// The TCP connection to the peer broke.
    #[error("the connection to {peer} broke: {error}")]
    Io {
        /// Name of the peer.
        peer: String,
        /// Error of the TCP stream.
        error: io::Error,
    },
}

impl SetupError {
    /// Classifies an error of the TCP stream to a peer. `deadline` is the time that the peer had.
    pub fn broke(peer: &str, error: io::Error, deadline: Duration) -> Self {
        let peer = peer.to_owned();
        match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                Self::Deadline { peer, seconds: deadline.as_secs_f64() }
            }
            _ => Self::Io { peer, error },
        }
    }
}

impl EndpointDescription {
    /// Appends the encoded description to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.protocol.get());
        out.extend(self.gid.octets());
        out.extend(self.qpn.get().to_be_bytes());
        out.extend(self.psn.get().to_be_bytes());
        out.push(self.path_mtu.code());
        out.extend(self.udp_port.to_be_bytes());
        out.extend(self.depth.to_be_bytes());
        out.extend(self.max_message.to_be_bytes());
        out.push(self.credits.into());
        for region in &self.regions {
            region.encode(out);
        }
    }

    /// Decodes the description of a peer.
    ///
    /// # Errors
    ///
    /// Returns a text that names the defect of the description.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, &'static str> {
        fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], &'static str> {
            let (head, rest) = bytes.split_first_chunk::<N>().ok_or("too few bytes")?;
            *bytes = rest;
            Ok(*head)
        }
        fn region(bytes: &mut &[u8]) -> Result<RemoteRegion, &'static str> {
            Ok(RemoteRegion {
                address: u64::from_be_bytes(take(bytes)?),
                length: u64::from_be_bytes(take(bytes)?),
                rkey: RKey::new(u32::from_be_bytes(take(bytes)?)),
            })
        }
        let bytes = &mut bytes;
        let [number] = take(bytes)?;
        let description = Self {
            protocol: WireId::known(number).ok_or("a protocol that is not known")?,
            gid: Ipv6Addr::from(take::<16>(bytes)?),
            qpn: Qpn::new(u32::from_be_bytes(take(bytes)?)),
            psn: Psn::new(u32::from_be_bytes(take(bytes)?)),
            path_mtu: PathMtu::try_from(take::<1>(bytes)?[0]).map_err(|_| "a path MTU that does not exist")?,
            udp_port: u16::from_be_bytes(take(bytes)?),
            depth: u32::from_be_bytes(take(bytes)?),
            max_message: u64::from_be_bytes(take(bytes)?),
            credits: match take::<1>(bytes)?[0] {
                0 => false,
                1 => true,
                _ => return Err("a flag for credits that is neither 0 nor 1"),
            },
            regions: [region(bytes)?, region(bytes)?],
        };
        if bytes.is_empty() { Ok(description) } else { Err("too many bytes") }
    }
}

/// A TCP stream with one deadline for all reads and writes together.
#[derive(Debug)]
pub struct Timed<'a> {
    stream: &'a TcpStream,
    until: Option<Instant>,
}

impl<'a> Timed<'a> {
    /// Starts the deadline. Reads and writes change the timeouts of `stream`, and do not restore them.
    pub fn new(stream: &'a TcpStream, deadline: Duration) -> Self {
        // A deadline that the clock cannot express means that the stream has no deadline.
        Self { stream, until: Instant::now().checked_add(deadline) }
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let Some(until) = self.until else { return Ok(None) };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }

    /// Waits for bytes, copies them into `out` without consuming them, and returns their number. Returns 0 at the end
    /// of the stream.
    ///
    /// # Errors
    ///
    /// The deadline has passed ([`io::ErrorKind::TimedOut`] or [`io::ErrorKind::WouldBlock`]), or the stream is broken.
    pub fn peek(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            self.stream.set_read_timeout(self.left()?)?;
            match self.stream.peek(out) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    /// Reads bytes until `out` is full.
    ///
    /// # Errors
    ///
    /// The deadline has passed, as in [`peek`](Self::peek). Or the peer ends the stream early
    /// ([`io::ErrorKind::UnexpectedEof`]). Or the stream is broken.
    pub fn read_exact(&mut self, mut out: &mut [u8]) -> io::Result<()> {
        while !out.is_empty() {
            self.stream.set_read_timeout(self.left()?)?;
            match self.stream.read(out) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => out = &mut out[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes all bytes of `bytes`.
    ///
    /// # Errors
    ///
    /// The deadline has passed, as in [`peek`](Self::peek), or the stream is broken.
    pub fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.stream.set_write_timeout(self.left()?)?;
            match self.stream.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Sends this side's descriptions and receives the same number from the peer, within `deadline`.
///
/// # Errors
///
/// There are more than [`MAX_ENDPOINTS`] descriptions. Or the peer does not answer within `deadline`, the stream is
/// broken, or [`parse`] rejects the hello of the peer.
pub fn exchange(
    stream: &TcpStream,
    own: &[EndpointDescription],
    deadline: Duration,
) -> Result<Vec<EndpointDescription>, SetupError> {
    if own.len() > MAX_ENDPOINTS {
        return Err(SetupError::TooMany(own.len()));
    }
    let peer = stream.peer_addr().map_or_else(|_| "the peer".to_owned(), |address| address.to_string());
    let mut timed = Timed::new(stream, deadline);
    let result = exchange_within(&mut timed, &peer, own, deadline);
    let restored = stream.set_read_timeout(None).and_then(|()| stream.set_write_timeout(None));
    match (result, restored) {
        (Ok(_), Err(error)) => Err(SetupError::Io { peer, error }),
        (result, _) => result,
    }
}

/// Returns the encoded hello of this side. The peer decodes the hello by [`parse`].
pub fn hello(own: &[EndpointDescription]) -> Vec<u8> {
    let mut hello = MAGIC.to_vec();
    hello.extend(VERSION.to_be_bytes());
    hello.extend((own.len() as u32).to_be_bytes());
    for description in own {
        description.encode(&mut hello);
    }
    hello
}

/// Result of parsing the first bytes of a hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// The parser needs this number of further bytes before it can continue. The number is at least one.
    Incomplete(usize),
    /// The hello is complete and has these descriptions.
    Complete(Vec<EndpointDescription>),
}

/// Parses the bytes of a peer's hello that have arrived. The hello must hold `ours` descriptions. Programs that do not
/// use [`exchange`] call this function.
///
/// # Errors
///
/// The hello is invalid. The error contains `peer` as the name of the peer.
pub fn parse(peer: &str, bytes: &[u8], ours: usize) -> Result<Parsed, SetupError> {
    let Some((magic, rest)) = bytes.split_first_chunk::<8>() else {
        return Ok(Parsed::Incomplete(MAGIC.len() - bytes.len()));
    };
    if *magic != MAGIC {
        return Err(SetupError::NotDoorbell { peer: peer.to_owned(), got: *magic });
    }
    let Some((version, rest)) = rest.split_first_chunk::<2>() else { return Ok(Parsed::Incomplete(2 - rest.len())) };
    let theirs = u16::from_be_bytes(*version);
    if theirs != VERSION {
        return Err(SetupError::Version { peer: peer.to_owned(), theirs });
    }
    let Some((count, rest)) = rest.split_first_chunk::<4>() else { return Ok(Parsed::Incomplete(4 - rest.len())) };
    let theirs = u32::from_be_bytes(*count) as usize;
    if theirs != ours {
        return Err(SetupError::Count { peer: peer.to_owned(), theirs, ours });
    }
    let expected = ours.saturating_mul(DESCRIPTION_BYTES);
    if rest.len() < expected {
        return Ok(Parsed::Incomplete(expected - rest.len()));
    }
    let description = |bytes| {
        EndpointDescription::decode(bytes).map_err(|what| SetupError::Description { peer: peer.to_owned(), what })
    };
    Ok(Parsed::Complete(rest[..expected].chunks_exact(DESCRIPTION_BYTES).map(description).collect::<Result<_, _>>()?))
}

fn exchange_within(
    timed: &mut Timed<'_>,
    peer: &str,
    own: &[EndpointDescription],
    deadline: Duration,
) -> Result<Vec<EndpointDescription>, SetupError> {
    timed.write_all(&hello(own)).map_err(|error| SetupError::broke(peer, error, deadline))?;
    receive(timed, peer, own.len(), deadline)
}

/// Receives the peer's hello, which must hold `ours` descriptions. An end whose own hello depends on the peer's hello
/// calls this function instead of [`exchange`]. `deadline` must be the deadline that `timed` was made with, since
/// errors contain `deadline`.
///
/// # Errors
///
/// Returns the errors of [`exchange`], except [`SetupError::TooMany`].
pub fn receive(
    timed: &mut Timed<'_>,
    peer: &str,
    ours: usize,
    deadline: Duration,
) -> Result<Vec<EndpointDescription>, SetupError> {
    let mut bytes = Vec::new();
    loop {
        match parse(peer, &bytes, ours)? {
            Parsed::Complete(descriptions) => return Ok(descriptions),
            Parsed::Incomplete(more) => {
                let known = bytes.len();
                bytes.resize(known + more, 0);
                timed.read_exact(&mut bytes[known..]).map_err(|error| SetupError::broke(peer, error, deadline))?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use doorbell_protocols::Protocol;

    use super::*;

    fn description() -> EndpointDescription {
        EndpointDescription {
            protocol: Protocol::SendReceive.wire_id(),
            gid: "::ffff:127.0.0.1".parse().unwrap(),
            qpn: Qpn::new(0x12345),
            psn: Psn::new(0xabcdef),
            path_mtu: PathMtu::Mtu4096,
            udp_port: 4791,
            depth: 128,
            max_message: 1 << 20,
            credits: true,
            regions: [
                RemoteRegion { address: 1 << 40, length: 4096, rkey: RKey::new(0xfedc_ba98) },
                RemoteRegion::NONE,
            ],
        }
    }

    /// Exchanges descriptions with a peer that sends only `bytes`, and returns the error.
    fn against(bytes: &[u8], deadline: Duration) -> SetupError {
        let bytes = bytes.to_vec();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let peer = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(&bytes).unwrap();
            // The other end has not read all bytes, so it may reset the connection. Ignore that error.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let stream = TcpStream::connect(address).unwrap();
        let error = exchange(&stream, &[description()], deadline).unwrap_err();
        drop(stream);
        peer.join().unwrap();
        error
    }

    #[test]
    fn both_ends_learn_of_each_other() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let other = EndpointDescription { credits: false, depth: 1, ..description() };
        let peer = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            exchange(&stream, &[other, other], Duration::from_secs(5)).unwrap()
        });
        let stream = TcpStream::connect(address).unwrap();
        let theirs = exchange(&stream, &[description(), description()], Duration::from_secs(5)).unwrap();
        assert_eq!(theirs, [other, other]);
        assert_eq!(peer.join().unwrap(), [description(), description()]);
    }

    /// Each byte arrives in time, but the whole hello does not.
    #[test]
    fn a_dripping_peer_is_bounded_by_the_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let peer = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut hello = MAGIC.to_vec();
            hello.extend(VERSION.to_be_bytes());
            hello.extend(1_u32.to_be_bytes());
            description().encode(&mut hello);
            for byte in hello {
                std::thread::sleep(Duration::from_millis(30));
                if stream.write_all(&[byte]).is_err() {
                    return; // the other end has hung up
                }
            }
        });
        let stream = TcpStream::connect(address).unwrap();
        let error = exchange(&stream, &[description()], Duration::from_millis(300)).unwrap_err();
        assert!(matches!(error, SetupError::Deadline { .. }), "{error}");
        drop(stream);
        peer.join().unwrap();
    }

    #[test]
    fn too_many_descriptions_are_refused_before_any_is_sent() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let error = exchange(&stream, &[description(); MAX_ENDPOINTS + 1], Duration::MAX).unwrap_err();
        assert_eq!(error.to_string(), "cannot set up 4097 connections at once: at most 4096 are allowed");
    }

    #[test]
    fn garbage_other_versions_and_silence_are_distinct_errors() {
        // The deadline is long, so that a busy machine that delivers the bytes late does not change the error.
        let said = |bytes| against(bytes, Duration::from_secs(60));
        let error = said(b"HTTP/1\r\n\0");
        assert!(matches!(error, SetupError::NotDoorbell { .. }));
        let (got, wanted) = (r#"it sent "HTTP/1\r\n" where"#, r#""DOORBELL" is expected"#);
        assert!(error.to_string().contains(got) && error.to_string().ends_with(wanted), "{error}");
        assert!(matches!(said(b"DOORBELL\0\x63\0\0\0\x01"), SetupError::Version { theirs: 99, .. }));
        let seven = [&MAGIC[..], &VERSION.to_be_bytes(), &7_u32.to_be_bytes()].concat();
        assert!(matches!(said(&seven[..]), SetupError::Count { theirs: 7, ours: 1, .. }));
        let unsaid = |bytes| against(bytes, Duration::from_millis(100));
        assert!(matches!(unsaid(b""), SetupError::Deadline { .. }));
        assert!(matches!(unsaid(b"DOORBELL\0"), SetupError::Deadline { .. }));
    }
}
