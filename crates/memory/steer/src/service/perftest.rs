//! perftest through the box. The programs of perftest exchange the addresses of their queue pairs and memory over TCP,
//! each queue pair in a line of a fixed length. The box forwards these bytes, and replaces queue pair, key and GID in
//! each line with its own. So the server treats the box as its client, and the client treats the box as its server.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use doorbell_exchange::address::reach;
use doorbell_exchange::admission::{Client, Clients, Opening, Verdict};
use doorbell_exchange::setup::Timed;
use doorbell_wire::{PathMtu, Psn, Qpn, RKey, to_gid};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::SockRef;

use super::plane::{ALL_ACCESS, KEEPALIVE, Plane, spawn};
use super::{NODE_TIMEOUT_NS, ServiceError};
use crate::{ClientEnd, NodeEnd, Region};

/// Length of a line in bytes, with the NUL at its end.
const LENGTH: usize = 108;

/// Format of a line, perftest's `KEY_PRINT_FMT_GID`: each `x` stands for a hexadecimal digit. The fields are the LID,
/// maximum number of concurrent READs of the queue pair, the queue pair number and the first PSN. The rkey and address
/// of the memory, the GID, and the number of a shared receive queue follow.
const FORM: &[u8; LENGTH] = b"xxxx:xxxx:xxxxxx:xxxxxx:xxxxxxxx:xxxxxxxxxxxxxxxx:\
xx:xx:xx:xx:xx:xx:xx:xx:xx:xx:xx:xx:xx:xx:xx:xx:xxxxxxxx:\0";

const READS: Range<usize> = 5..9;
const QPN: Range<usize> = 10..16;
const PSN: Range<usize> = 17..23;
const RKEY: Range<usize> = 24..32;
const GID: usize = 50;

/// Time in milliseconds for which the box holds back bytes that may be the start of a line. The rest of a line arrives
/// within this time, since perftest writes a line at once.
const HOLD_MS: u16 = 100;

/// Maximum number of bytes of a program that the box holds back, longer than any write of perftest. Without this bound,
/// a stream of digits, of which each may be the start of a line, would fill the memory.
const HELD_MAX: usize = 4096;

/// Time within which client and server must connect their queue pairs after the client's greeting. Both programs
/// register memory in this time.
const SETUP: Duration = Duration::from_secs(30);

/// Length of perftest's version in bytes. A client of perftest sends the version first.
const VERSION: usize = 16;

/// Opening of a client of perftest: the version of perftest, such as `6.06`, filled up with NULs.
#[derive(Clone, Debug, Default)]
struct VersionOpening(Vec<u8>);

/// Error of an opening that is not perftest's version.
#[derive(Debug, thiserror::Error)]
#[error("the first 16 bytes from a client must be its version number of perftest, such as 6.06")]
struct NotPerftest;

impl Opening for VersionOpening {
    type Admitted = Vec<u8>;
    type Refusal = NotPerftest;

    fn hear(&mut self, _peer: &str, bytes: &[u8]) -> (usize, Verdict<Vec<u8>, NotPerftest>) {
        let used = bytes.len().min(VERSION - self.0.len());
        self.0.extend_from_slice(&bytes[..used]);
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(self.0.len());
        let (version, filling) = self.0.split_at(end);
        let is_version = version.first().is_some_and(u8::is_ascii_digit)
            && version.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.')
            && filling.iter().all(|&byte| byte == 0)
            && end < VERSION;
        let verdict = match is_version {
            false => Verdict::Dismiss { reply: Vec::new(), why: Some(NotPerftest) },
            true if self.0.len() < VERSION => Verdict::Continue,
            true => Verdict::Admit(std::mem::take(&mut self.0)),
        };
        (used, verdict)
    }
}

/// Indices of the client and the server in arrays with a value for each program.
const CLIENT: usize = 0;
const SERVER: usize = 1;

/// Line with the addresses of a queue pair and of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line([u8; LENGTH]);

impl Line {
    fn number(&self, field: Range<usize>) -> u32 {
        self.0[field].iter().fold(0, |number, digit| number << 4 | (*digit as char).to_digit(16).unwrap_or(0))
    }

    fn qpn(&self) -> Qpn {
        Qpn::new(self.number(QPN))
    }

    fn rkey(&self) -> RKey {
        RKey::new(self.number(RKEY))
    }

    fn gid(&self) -> Ipv6Addr {
        let octets: [u8; 16] = std::array::from_fn(|at| self.number(GID + 3 * at..GID + 3 * at + 2) as u8);
        octets.into()
    }

    fn put(&mut self, field: Range<usize>, number: u32) {
        let digits = format!("{number:0width$x}", width = field.len());
        self.0[field].copy_from_slice(digits.as_bytes());
    }

    fn put_gid(&mut self, gid: Ipv6Addr) {
        for (at, octet) in gid.octets().into_iter().enumerate() {
            self.put(GID + 3 * at..GID + 3 * at + 2, octet.into());
        }
    }
}

/// Next part of a stream.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// Number of bytes that belong to no line.
    Pass(usize),
    Line(Line),
    /// The bytes may be the start of a line.
    More,
}

fn next(bytes: &[u8]) -> Next {
    let is_like = |(byte, form): (&u8, &u8)| if *form == b'x' { byte.is_ascii_hexdigit() } else { byte == form };
    let start = (0..bytes.len()).find(|&at| bytes[at..].iter().zip(FORM).all(is_like));
    match (start, bytes.first_chunk()) {
        (Some(0), Some(line)) => Next::Line(Line(*line)),
        (Some(0), None) => Next::More,
        (Some(at), _) => Next::Pass(at),
        (None, _) => Next::Pass(bytes.len()),
    }
}

/// Two programs that are connected through the box.
struct Pair<'a> {
    plane: &'a Plane,
    /// The box's end of the queue pair with the server.
    node_side: (Qpn, Psn),
    is_attached: bool,
    /// Last two bytes that each program sent outside of lines. Before the first line of a program, they are the code of
    /// the program's path MTU and a NUL.
    before: [[u8; 2]; 2],
    /// Translated lines of each program, by the queue pair in the original line.
    told: [HashMap<Qpn, Line>; 2],
    /// Queue pair of the client to which the server has not answered with a queue pair yet.
    asking: Option<ClientEnd>,
    /// Queue pairs of the box with the client.
    clients: Vec<Qpn>,
    /// Regions of the box: the server's key of each region, and the key for the client.
    regions: Vec<(RKey, RKey)>,
}

impl Plane {
    /// Listens for clients of perftest, and starts a thread that connects one client after another to the server at
    /// the node.
    pub(crate) fn start_perftest(self: &Arc<Self>, listen: &str) -> Result<(), ServiceError> {
        let listener =
            TcpListener::bind(listen).map_err(|error| ServiceError::Listen { listen: listen.to_owned(), error })?;
        (self.note)(&format!("serving clients at {} for perftest at {}", listener.local_addr()?, self.own.node));
        let mut clients = Clients::new(listener, VersionOpening::default(), self.note)?;
        let plane = Arc::clone(self);
        spawn("perftest", move || {
            loop {
                let Client { stream, from, opening, .. } = clients.wait();
                if let Err(why) = plane.serve_pair(&stream, opening) {
                    plane.refused(&format!("{from}: {why}"));
                }
            }
        })?;
        Ok(())
    }

    /// Connects a client to the server, and forwards the bytes of both until both have ended their connections.
    fn serve_pair(&self, client: &TcpStream, version: Vec<u8>) -> Result<(), ServiceError> {
        let server = reach(&self.own.node, "; does a server of perftest listen there?")?;
        for stream in [client, &server] {
            SockRef::from(stream).set_tcp_keepalive(&KEEPALIVE)?;
            stream.set_nodelay(true)?;
        }
        let node_side = self.with(|steer| steer.node_side())?;
        let mut pair = Pair::new(self, node_side);
        let result = pair.carry([client, &server], version, SETUP);
        pair.part()?;
        result
    }
}

/// Turns the error of a connection that the peer has closed, with unread bytes, into a normal end.
fn end_or<T: Default>(result: io::Result<T>) -> io::Result<T> {
    use io::ErrorKind::{BrokenPipe, ConnectionReset};
    result.or_else(
        |error| if matches!(error.kind(), BrokenPipe | ConnectionReset) { Ok(T::default()) } else { Err(error) },
    )
}

/// Returns the error of a write that did not end before the programs had to connect their queue pairs.
fn unconnected(error: io::Error) -> ServiceError {
    match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => ServiceError::Unconnected,
        _ => error.into(),
    }
}

impl<'a> Pair<'a> {
    fn new(plane: &'a Plane, node_side: (Qpn, Psn)) -> Self {
        Self {
            plane,
            node_side,
            is_attached: false,
            before: Default::default(),
            told: Default::default(),
            asking: None,
            clients: Vec::new(),
            regions: Vec::new(),
        }
    }

    /// Forwards the bytes of both programs.
    ///
    /// Fails if the programs have not connected a queue pair within the time `setup`. So a client that only sends a
    /// greeting, or that does not read, cannot delay other clients for long.
    fn carry(&mut self, streams: [&TcpStream; 2], version: Vec<u8>, setup: Duration) -> Result<(), ServiceError> {
        let until = Instant::now() + setup;
        (&mut &*streams[SERVER]).write_all(&version)?;
        let mut held: [Vec<u8>; 2] = Default::default();
        let mut is_open = [true; 2];
        while is_open.contains(&true) {
            let sides: Vec<usize> = (0..2).filter(|&side| is_open[side]).collect();
            let mut polled: Vec<PollFd<'_>> =
                sides.iter().map(|&side| PollFd::new(streams[side].as_fd(), PollFlags::POLLIN)).collect();
            let is_holding = held.iter().any(|bytes| !bytes.is_empty());
            let left = until.saturating_duration_since(Instant::now());
            let timeout = match (is_holding, self.clients.is_empty()) {
                (true, _) => PollTimeout::from(HOLD_MS),
                (false, true) => PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX),
                (false, false) => PollTimeout::NONE,
            };
            // If a signal interrupts `poll`, the loop continues, since the forwarding thread handles signals.
            let has_timed_out = matches!(poll(&mut polled, timeout), Ok(0));
            if self.clients.is_empty() && left.is_zero() {
                return Err(ServiceError::Unconnected);
            }
            let ready: Vec<bool> = polled.iter().map(|one| one.any().unwrap_or(false)).collect();
            for (side, is_ready) in sides.into_iter().zip(ready) {
                let mut said = [0; 4096];
                let count = if is_ready { end_or((&mut &*streams[side]).read(&mut said))? } else { 0 };
                held[side].extend_from_slice(&said[..count]);
                is_open[side] = !is_ready || count > 0;
                let is_all = has_timed_out || !is_open[side];
                let passed = self.pass(side, &mut held[side], is_all)?;
                let within = if self.clients.is_empty() { left } else { Duration::MAX };
                let written = end_or(Timed::new(streams[1 - side], within).write_all(&passed));
                written.map_err(|error| if self.clients.is_empty() { unconnected(error) } else { error.into() })?;
                if !is_open[side] {
                    let _ = streams[1 - side].shutdown(Shutdown::Write); // fails if the connection has ended already
                }
            }
        }
        Ok(())
    }

    /// Returns the bytes for the other side. Returns no bytes if `held` ends with the possible start of a line. A
    /// program expects the bytes of one write in one read, so the box must not split these bytes. With `is_all`, the
    /// box holds back nothing. Of more than [`HELD_MAX`] bytes, the box holds back only the possible start of a line.
    fn pass(&mut self, side: usize, held: &mut Vec<u8>, is_all: bool) -> Result<Vec<u8>, ServiceError> {
        let mut passed = Vec::new();
        let mut at = 0;
        while at < held.len() {
            let rest = &held[at..];
            let count = match next(rest) {
                Next::Line(line) => {
                    passed.extend_from_slice(&self.translate(side, &line)?.0);
                    at += LENGTH;
                    continue;
                }
                Next::Pass(count) => count,
                Next::More if is_all => rest.len(),
                Next::More if held.len() <= HELD_MAX => return Ok(Vec::new()),
                Next::More => break,
            };
            for &byte in &rest[..count] {
                self.before[side] = [self.before[side][1], byte];
            }
            passed.extend_from_slice(&rest[..count]);
            at += count;
        }
        held.drain(..at);
        Ok(passed)
    }

    /// Returns the line that the other program gets in place of this line. A program of perftest repeats its line while
    /// it waits for the other program. The other program then gets the same translated line again.
    fn translate(&mut self, side: usize, line: &Line) -> Result<Line, ServiceError> {
        if let Some(told) = self.told[side].get(&line.qpn()) {
            return Ok(*told);
        }
        let mut told = match side {
            CLIENT => self.ask(line)?,
            _ => self.answer(line)?,
        };
        told.put_gid(to_gid(self.plane.own.address));
        self.told[side].insert(line.qpn(), told);
        Ok(told)
    }

    /// Translates a line of the client. The server sees the box's queue pair instead of the client's. If the client has
    /// several queue pairs, all share the one queue pair of the box with the server.
    fn ask(&mut self, line: &Line) -> Result<Line, ServiceError> {
        let address = self.address_of(CLIENT, line)?;
        let first_psn = Psn::new(line.number(PSN));
        let asking = ClientEnd { address, qpn: line.qpn(), first_psn, path_mtu: self.path_mtu(CLIENT)? };
        if self.asking.replace(asking).is_some() {
            return Err(ServiceError::OutOfTurn { who: "client" });
        }
        let mut told = *line;
        told.put(QPN, self.node_side.0.get());
        told.put(PSN, self.node_side.1.get());
        Ok(told)
    }

    /// Translates a line of the server. The client sees a queue pair and a key of the box instead of the server's. Only
    /// the first queue pair of the server is used, for all queue pairs of the client.
    fn answer(&mut self, line: &Line) -> Result<Line, ServiceError> {
        let client = self.asking.take().ok_or(ServiceError::OutOfTurn { who: "server" })?;
        let path_mtu = client.path_mtu.min(self.path_mtu(SERVER)?);
        if path_mtu > self.plane.own.path_mtu {
            return Err(ServiceError::PathMtu { theirs: path_mtu.bytes(), own: self.plane.own.path_mtu.bytes() });
        }
        if !self.is_attached {
            let end = NodeEnd {
                qpn: line.qpn(),
                max_rd_atomic: self.plane.own.reads.min(u8::try_from(line.number(READS)).unwrap_or(u8::MAX)).max(1),
                timeout_ns: NODE_TIMEOUT_NS,
                retries: self.plane.own.node_retries(),
                ..NodeEnd::at(self.address_of(SERVER, line)?, path_mtu)
            };
            self.plane.with(move |steer| steer.attach(end))??;
            self.is_attached = true;
            self.plane.counts.attached.fetch_add(1, Ordering::Relaxed);
        }
        let rkey = self.region(line.rkey())?;
        let qpn = self.plane.with(move |steer| steer.connect(ClientEnd { path_mtu, ..client }))??;
        self.clients.push(qpn);
        self.plane.counts.served.fetch_add(1, Ordering::Relaxed);
        let mut told = *line;
        told.put(QPN, qpn.get());
        told.put(RKEY, rkey.get());
        Ok(told)
    }

    /// Returns the key by which the client reaches memory of the server. The box cannot check bounds, because perftest
    /// does not send the length of the memory. The RNIC of the server checks the bounds.
    fn region(&mut self, node_rkey: RKey) -> Result<RKey, ServiceError> {
        if let Some((_, rkey)) = self.regions.iter().find(|(known, _)| *known == node_rkey) {
            return Ok(*rkey);
        }
        let rkey = RKey::new(getrandom::u32()?);
        let region = Region { rkey, node_rkey, address: 0, length: u64::MAX, access: ALL_ACCESS, exclusive: false };
        self.plane.with(move |steer| steer.add_region(region))??;
        self.regions.push((node_rkey, rkey));
        Ok(rkey)
    }

    fn address_of(&self, side: usize, line: &Line) -> Result<IpAddr, ServiceError> {
        let peer = if side == CLIENT { "the client" } else { "the server" };
        self.plane.own.reachable(peer, line.gid())
    }

    /// Returns the path MTU of a program. Each program sends the IBTA code of its path MTU before its first line.
    fn path_mtu(&self, side: usize) -> Result<PathMtu, ServiceError> {
        let [code, nul] = self.before[side];
        let found = PathMtu::ALL.into_iter().find(|mtu| code == b'0' + mtu.code() && nul == 0);
        found.ok_or(ServiceError::NoPathMtu)
    }

    /// Removes the queue pairs and regions of this pair from the box.
    fn part(self) -> Result<(), ServiceError> {
        let (clients, regions) = (self.clients, self.regions);
        self.plane.with(move |steer| {
            for qpn in clients {
                steer.disconnect(qpn);
            }
            for (_, rkey) in regions {
                steer.remove_region(rkey);
            }
            steer.detach();
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Settings;
    use super::*;

    /// A line of ib_atomic_lat, perftest 4.5.
    const SAID: &[u8; LENGTH] =
        b"0000:0010:02007a:88b8d5:4b468481:000055e95926c000:00:00:00:00:00:00:00:00:00:00:ff:ff:7f:00:00:02:00000000:\0";

    #[test]
    fn a_line_is_found_at_any_offset_and_cut() {
        let mut stream = b"6.06\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\0\0\0\0@5\0".to_vec();
        let before = stream.len();
        stream.extend_from_slice(SAID);
        assert_eq!(next(&stream), Next::Pass(before));
        assert_eq!(next(&stream[before..]), Next::Line(Line(*SAID)));
        for cut in 1..LENGTH {
            assert_eq!(next(&SAID[..cut]), Next::More, "{cut} bytes of a line");
        }
        assert_eq!(next(b"done\0"), Next::Pass(5));
        assert_eq!(next(b"0000:00g0"), Next::Pass(8), "a line may begin at the last digit, so this digit is held back");
    }

    #[test]
    fn numbers_of_a_line_are_read_and_replaced() {
        let mut line = Line(*SAID);
        assert_eq!((line.number(READS), line.qpn(), line.number(PSN)), (16, Qpn::new(0x02_007a), 0x88_b8d5));
        assert_eq!((line.rkey(), line.gid()), (RKey::new(0x4b46_8481), "::ffff:127.0.0.2".parse().unwrap()));
        line.put(QPN, 0xab);
        line.put(RKEY, 0xffff_fffe);
        line.put_gid("fd00::1".parse().unwrap());
        let expected = b"0000:0010:0000ab:88b8d5:fffffffe:000055e95926c000:fd:00:00:00:00:00:00:00:00:00:00:00:00:00:00:01:00000000:\0";
        assert_eq!(line, Line(*expected));
        assert_eq!(next(&line.0), Next::Line(line));
    }

    #[test]
    fn a_version_is_short_and_filled_up() {
        let is_version = |bytes: &[u8]| matches!(VersionOpening::default().hear("", bytes).1, Verdict::Admit(_));
        assert!(is_version(b"6.06\0\0\0\0\0\0\0\0\0\0\0\0"));
        for other in [b"0000000000000000", b"6.06\0\0\0\0\0\0\0\0\0\0\x001", b"GET / HTTP/1.0\r\n"] {
            assert!(!is_version(other), "{}", other.escape_ascii());
        }
    }

    /// Each digit may be the start of a line, and no line comes.
    #[test]
    fn a_stream_of_digits_is_passed_on() {
        let (plane, _jobs) = Plane::new(Settings::for_tests(), false, |_| {}).unwrap();
        let mut pair = Pair::new(&plane, (Qpn::new(1), Psn::new(1)));
        let (mut held, mut passed) = (Vec::new(), 0);
        for _ in 0..64 {
            held.extend_from_slice(&[b'0'; HELD_MAX]);
            passed += pair.pass(CLIENT, &mut held, false).unwrap().len();
            assert!(held.len() <= HELD_MAX, "{} bytes are held back", held.len());
        }
        assert_eq!(passed + held.len(), 64 * HELD_MAX);
    }

    /// Returns the two ends of a TCP connection.
    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (stream, listener.accept().unwrap().0)
    }

    /// The client never stops to send, and the server does not read.
    #[test]
    fn programs_that_do_not_read_are_given_up() {
        let (plane, _jobs) = Plane::new(Settings::for_tests(), false, |_| {}).unwrap();
        let ((mut client, to_client), (to_server, _server)) = (connection(), connection());
        let flooding = std::thread::spawn(move || while client.write_all(&[b'y'; 1 << 16]).is_ok() {});
        let mut pair = Pair::new(&plane, (Qpn::new(1), Psn::new(1)));
        let ended = pair.carry([&to_client, &to_server], b"6.06".to_vec(), Duration::from_millis(300));
        assert!(matches!(ended, Err(ServiceError::Unconnected)), "{ended:?}");
        drop(to_client);
        flooding.join().unwrap();
    }
}
