//! perftest through the box. Its programs tell each other over TCP where their queue pairs and memory are, each queue pair in
//! a line of a fixed length. The box passes on what they say, and puts its own queue pairs, key and address into these lines:
//! so the server takes the box for its client, and the client takes the box for its server.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use doorbell_exchange::admission::{Opening, Verdict};
use doorbell_steer::{ClientEnd, NodeEnd, Region};
use doorbell_wire::{PathMtu, Psn, Qpn, RKey};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::SockRef;

use super::control::{ALL_ACCESS, KEEPALIVE, NODE_TIMEOUT_NS, Plane, Refusal, spawn, to_gid};
use crate::Failure;
use crate::admission::{Client, Clients};
use crate::control::reach;
use crate::output::note;

/// Bytes of a line, with the NUL at its end.
const LENGTH: usize = 108;

/// The form of a line, perftest's `KEY_PRINT_FMT_GID`: each `x` stands for a hexadecimal digit. The fields are the LID, how many
/// READs the queue pair takes at a time, its number, its first PSN, the memory's rkey and address, the GID, and the number of a
/// shared receive queue.
const FORM: &[u8; LENGTH] = b"xxxx:xxxx:xxxxxx:xxxxxx:xxxxxxxx:xxxxxxxxxxxxxxxx:\
xx:xx:xx:xx:xx:xx:xx:xx:xx:xx:xx:xx:xx:xx:xx:xx:xxxxxxxx:\0";

const READS: Range<usize> = 5..9;
const QPN: Range<usize> = 10..16;
const PSN: Range<usize> = 17..23;
const RKEY: Range<usize> = 24..32;
const GID: usize = 50;

/// What may end in the beginning of a line is held back for so many milliseconds, and then passed on: a line comes at one time.
const HOLD_MS: u16 = 100;

/// Time of two programs from the client's greeting until their queue pairs are connected. They register memory meanwhile.
const SETUP: Duration = Duration::from_secs(30);

/// Bytes of perftest's version, with which its client begins.
const VERSION: usize = 16;

/// The opening of perftest's client: its version, such as `6.06`, filled up with NULs.
#[derive(Clone, Debug, Default)]
struct VersionOpening(Vec<u8>);

/// Error of an opening that is not perftest's version.
#[derive(Debug, thiserror::Error)]
#[error("it does not begin as perftest does, with a version of 16 bytes such as 6.06")]
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
            && filling.iter().all(|&byte| byte == 0);
        let verdict = match is_version {
            false => Verdict::Dismiss { reply: Vec::new(), why: Some(NotPerftest) },
            true if self.0.len() < VERSION => Verdict::Continue,
            true => Verdict::Admit(std::mem::take(&mut self.0)),
        };
        (used, verdict)
    }
}

/// Which of the two programs says something.
const CLIENT: usize = 0;
const SERVER: usize = 1;

/// Where a queue pair and its memory are.
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

/// What is next in a stream.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// So many bytes that belong to no line.
    Pass(usize),
    Line(Line),
    /// What may become a line.
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
    /// The last two bytes that each said before its first line: the code of its path MTU and a NUL.
    before: [[u8; 2]; 2],
    /// Lines that were passed on, as they were said and as the other side got them.
    told: [HashMap<Qpn, Line>; 2],
    /// The client's queue pair that the server has not answered yet.
    asking: Option<ClientEnd>,
    /// The box's queue pairs with the client, and its regions: each by the server's key, with the key that the client has.
    clients: Vec<Qpn>,
    regions: Vec<(RKey, RKey)>,
}

impl Plane {
    /// Listens for perftest's clients, and has a thread connect one after another with the server that listens at the node.
    pub(super) fn start_perftest(self: &Arc<Self>, listen: &str) -> Result<(), Failure> {
        let listener = TcpListener::bind(listen).map_err(|error| format!("cannot listen on {listen}: {error}"))?;
        note!("serving clients at {} for perftest at {}", listener.local_addr()?, self.own.node);
        let mut clients = Clients::new(listener, VersionOpening::default())?;
        let plane = Arc::clone(self);
        spawn("perftest", move || {
            loop {
                let Client { stream, from, opening, .. } = clients.next();
                if let Err(why) = plane.serve_pair(&stream, opening) {
                    plane.refused(&format!("{from}: {why}"));
                }
            }
        })?;
        Ok(())
    }

    /// Connects a client with the server, and passes on what the two say until both have ended their connections.
    fn serve_pair(&self, client: &TcpStream, version: Vec<u8>) -> Result<(), Failure> {
        let server = reach(&self.own.node, "; does a server of perftest listen there?")?;
        for stream in [client, &server] {
            SockRef::from(stream).set_tcp_keepalive(&KEEPALIVE)?;
            stream.set_nodelay(true)?;
        }
        let node_side = self.with(|steer| steer.node_side())?;
        let mut pair = Pair {
            plane: self,
            node_side,
            is_attached: false,
            before: Default::default(),
            told: Default::default(),
            asking: None,
            clients: Vec::new(),
            regions: Vec::new(),
        };
        let result = pair.carry([client, &server], version);
        pair.part()?;
        result
    }
}

/// A program may end its connection with something unread in it: that is an end like any other.
fn end_or<T: Default>(result: io::Result<T>) -> io::Result<T> {
    use io::ErrorKind::{BrokenPipe, ConnectionReset};
    result.or_else(
        |error| if matches!(error.kind(), BrokenPipe | ConnectionReset) { Ok(T::default()) } else { Err(error) },
    )
}

impl Pair<'_> {
    /// Forwards the bytes of both programs.
    ///
    /// Until they are connected, the two have the time of one set-up. So a client that only greets cannot keep others
    /// waiting.
    fn carry(&mut self, streams: [&TcpStream; 2], version: Vec<u8>) -> Result<(), Failure> {
        let until = Instant::now() + SETUP;
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
            // A signal that came in between is no reason to stop: the thread that forwards packets sees it.
            let has_timed_out = matches!(poll(&mut polled, timeout), Ok(0));
            if self.clients.is_empty() && left.is_zero() {
                return Err(Refusal::Unconnected.into());
            }
            let ready: Vec<bool> = polled.iter().map(|one| one.any().unwrap_or(false)).collect();
            for (side, is_ready) in sides.into_iter().zip(ready) {
                let mut said = [0; 4096];
                let count = if is_ready { end_or((&mut &*streams[side]).read(&mut said))? } else { 0 };
                held[side].extend_from_slice(&said[..count]);
                is_open[side] = !is_ready || count > 0;
                let is_all = has_timed_out || !is_open[side];
                let passed = self.pass(side, &mut held[side], is_all)?;
                end_or((&mut &*streams[1 - side]).write_all(&passed))?;
                if !is_open[side] {
                    let _ = streams[1 - side].shutdown(Shutdown::Write); // it may have ended first
                }
            }
        }
        Ok(())
    }

    /// What the other side is to get for what one side said. Nothing, if that ends in what may become a line: the programs
    /// read what was written at one time at one time, so it is not parted. With `is_all` nothing is held back.
    fn pass(&mut self, side: usize, held: &mut Vec<u8>, is_all: bool) -> Result<Vec<u8>, Refusal> {
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
                Next::More => return Ok(Vec::new()),
            };
            for &byte in &rest[..count] {
                self.before[side] = [self.before[side][1], byte];
            }
            passed.extend_from_slice(&rest[..count]);
            at += count;
        }
        held.clear();
        Ok(passed)
    }

    /// Returns the line that the other program gets in place of this one. perftest repeats its lines where its programs wait for
    /// each other: then the other program gets the same line again.
    fn translate(&mut self, side: usize, line: &Line) -> Result<Line, Refusal> {
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

    /// The client names a queue pair. To the server it is the box's; where there are several, the box uses the first alone.
    fn ask(&mut self, line: &Line) -> Result<Line, Refusal> {
        let address = self.address_of(CLIENT, line)?;
        let first_psn = Psn::new(line.number(PSN));
        let asking = ClientEnd { address, qpn: line.qpn(), first_psn, path_mtu: self.path_mtu(CLIENT)? };
        if self.asking.replace(asking).is_some() {
            return Err(Refusal::OutOfTurn { who: "client" });
        }
        let mut told = *line;
        told.put(QPN, self.node_side.0.get());
        told.put(PSN, self.node_side.1.get());
        Ok(told)
    }

    /// The server answers with a queue pair and its memory. To the client they are the box's.
    fn answer(&mut self, line: &Line) -> Result<Line, Refusal> {
        let client = self.asking.take().ok_or(Refusal::OutOfTurn { who: "server" })?;
        let path_mtu = client.path_mtu.min(self.path_mtu(SERVER)?);
        if path_mtu > self.plane.own.path_mtu {
            return Err(Refusal::PathMtu { theirs: path_mtu.bytes(), own: self.plane.own.path_mtu.bytes() });
        }
        if !self.is_attached {
            let end = NodeEnd {
                qpn: line.qpn(),
                max_rd_atomic: self.plane.own.reads.min(u8::try_from(line.number(READS)).unwrap_or(u8::MAX)).max(1),
                timeout_ns: NODE_TIMEOUT_NS,
                retries: self.plane.own.node_retries,
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

    /// The key by which the client reaches memory of the server. A program does not say how long its memory is, so
    /// the server's RNIC alone knows its bounds.
    fn region(&mut self, node_rkey: RKey) -> Result<RKey, Refusal> {
        if let Some((_, rkey)) = self.regions.iter().find(|(known, _)| *known == node_rkey) {
            return Ok(*rkey);
        }
        let rkey = RKey::new(getrandom::u32().map_err(|error| Refusal::NoKey(error.to_string()))?);
        let region = Region { rkey, node_rkey, address: 0, length: u64::MAX, access: ALL_ACCESS, exclusive: false };
        self.plane.with(move |steer| steer.add_region(region))??;
        self.regions.push((node_rkey, rkey));
        Ok(rkey)
    }

    fn address_of(&self, side: usize, line: &Line) -> Result<IpAddr, Refusal> {
        let peer = if side == CLIENT { "the client" } else { "the server" };
        self.plane.own.reachable(peer, line.gid())
    }

    /// The path MTU that a side asks for: each says IBTA's code of it before its first line.
    fn path_mtu(&self, side: usize) -> Result<PathMtu, Refusal> {
        let [code, nul] = self.before[side];
        let found = PathMtu::ALL.into_iter().find(|mtu| code == b'0' + mtu.code() && nul == 0);
        found.ok_or(Refusal::NoPathMtu)
    }

    /// Gives up what was set up.
    fn part(self) -> Result<(), Refusal> {
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
    use super::*;

    /// As ib_atomic_lat of perftest 4.5 said it.
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
            assert_eq!(next(&SAID[..cut]), Next::More, "{cut} bytes of it");
        }
        assert_eq!(next(b"done\0"), Next::Pass(5));
        assert_eq!(next(b"0000:00g0"), Next::Pass(8), "what may begin anew at the last digit is held back");
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
}
