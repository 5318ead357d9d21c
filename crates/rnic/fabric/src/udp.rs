//! RoCE v2 over a UDP socket: no privileges, no kernel module.
//!
//! A separate datagram costs the kernel about 2.5 us, so packets cross this boundary in *runs*. On sending, with
//! `UDP_SEGMENT`, the kernel splits one message into datagrams as late as possible. On receiving, with `UDP_GRO`, it
//! combines datagrams of one sender. Both take a few system calls per 64 packets.

mod address;
mod control;
mod group;
mod interface;
pub(crate) mod sys;

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use doorbell_rnic::{Run, TransmitBatch};
use doorbell_verbs_core::LinkCounters;
use doorbell_wire::Outer;

pub use address::{BindError, BindRequest, DEFAULT_RECEIVE_BUFFER_BYTES, bind};
pub use interface::{active_mtu, interface_index, interface_mtu, largest_path_mtu};

use crate::link::{Link, LinkProperties, ReceivedRun, Sink};
use crate::seal::Sealer;
use crate::shm::OwnProcess;
use group::Group;
use sys::{Incoming, Outgoing};

/// The socket's traffic class, which needs no control message.
pub const DEFAULT_TRAFFIC_CLASS: u8 = 0;

/// The socket's hop limit, which needs no control message.
pub const DEFAULT_HOP_LIMIT: u8 = 64;

/// Maximum number of errors in a row that count as errors of earlier datagrams. Afterwards, an error counts as one of
/// the current datagram.
const PENDING_ERRORS: usize = 8;

/// Bytes of a message from which on it is a run that is worth handling on its own.
const LONG_RUN_BYTES: usize = 32 << 10;

/// Counters of a UDP link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpCounters {
    /// Datagrams that the kernel accepted.
    pub datagrams_sent: u64,
    /// UDP payload bytes of these datagrams.
    pub bytes_sent: u64,
    /// System calls that sent messages, or tried to.
    pub send_calls: u64,
    /// System calls that found the send buffer full.
    pub send_full: u64,
    /// Datagrams received.
    pub datagrams_received: u64,
    /// UDP payload bytes of these datagrams.
    pub bytes_received: u64,
    /// System calls that received messages, or tried to.
    pub receive_calls: u64,
    /// Outbound packets dropped because they exceed the MTU.
    pub oversize: u64,
    /// Outbound packets dropped because the kernel has no route to their destination, or forbids sending.
    pub unreachable: u64,
    /// Errors that a peer's host reported about earlier datagrams, such as a closed port.
    pub refused: u64,
    /// Messages dropped because they were longer than UDP allows.
    pub truncated: u64,
    /// Messages that the kernel dropped because the receive buffer was full. The kernel counts a combined run as one.
    /// The count is only known after a later message is received.
    pub receive_queue_overflows: u64,
}

/// A UDP socket as a link, created by [`bind`].
#[derive(Debug)]
pub struct UdpLink {
    socket: OwnProcess,
    local: SocketAddr,
    receive_buffer_bytes: usize,
    /// Whether the kernel splits runs.
    segmentation: bool,
    /// A run that is sent as separate datagrams and met a full buffer, and the number of its packets that were sent.
    stuck: Option<(Run, usize)>,
    last_look: Look,
    /// Rewrites the ICRCs of runs that are sent as separate datagrams, in `separate`.
    sealer: Sealer,
    separate: Vec<u8>,
    buffers: Box<[u8]>,
    /// Number of messages that the next call asks for. A call that asks for more than there are pays for finding
    /// none. So the link does not ask for seven others together with a single packet.
    ask: usize,
    /// The kernel's count of overflows in the last received message.
    overflows_seen: u32,
    /// Joined multicast groups.
    groups: Vec<Group>,
    counters: UdpCounters,
    reported: Reported,
}

/// Warnings that were logged, and are not logged again.
#[derive(Debug, Default)]
struct Reported {
    oversize: bool,
    unreachable: bool,
}

/// Result of the last receive from the socket, also if it got no packets.
#[derive(Clone, Copy, Debug, Default)]
struct Look {
    messages: usize,
    was_empty: bool,
}

/// Reaction to a refused send.
enum Verdict {
    Again,
    Full,
    Drop,
    SendSeparately,
}

impl UdpLink {
    /// Wraps a socket that is bound and has all its options.
    fn new(socket: OwnProcess, local: SocketAddr, receive_buffer_bytes: usize, segmentation: bool) -> Self {
        let buffers = vec![0; sys::MAX_RECEIVE_MESSAGES * sys::RECEIVE_BUFFER_BYTES].into();
        Self {
            socket,
            local,
            receive_buffer_bytes,
            segmentation,
            stuck: None,
            sealer: Sealer::new(local.ip(), local.port()),
            separate: Vec::new(),
            buffers,
            ask: 1,
            last_look: Look::default(),
            overflows_seen: 0,
            groups: Vec::new(),
            counters: UdpCounters::default(),
            reported: Reported::default(),
        }
    }

    /// Returns the address of this end, which is also the device's.
    pub fn local_address(&self) -> IpAddr {
        self.local.ip()
    }

    /// Returns the UDP port of both ends.
    pub fn port(&self) -> u16 {
        self.local.port()
    }

    /// Returns the receive buffer that the kernel granted, in bytes of *its* memory, as `getsockopt` shows it. A
    /// datagram takes several hundred bytes more there than it has.
    pub fn receive_buffer_bytes(&self) -> usize {
        self.receive_buffer_bytes
    }

    /// Returns the counters of the link.
    pub fn counters(&self) -> UdpCounters {
        self.counters
    }

    /// Returns whether the packets of a run carry the IPv4 identifications 0, 1, 2, .... They do if the kernel splits
    /// runs. Otherwise each packet is a separate datagram with identification 0, and the link rewrites the ICRC of
    /// such packets itself.
    pub fn identification_follows_run(&self) -> bool {
        self.segmentation
    }

    /// Returns the socket's own address.
    pub(crate) fn local_socket_address(&self) -> SocketAddr {
        self.local
    }

    /// Returns whether the last receive found the socket empty.
    pub(crate) fn was_empty(&self) -> bool {
        self.last_look.was_empty
    }

    /// Returns the number of messages of the last receive, valid or not.
    pub(crate) fn messages_taken(&self) -> usize {
        self.last_look.messages
    }

    /// Returns a second descriptor of the socket, which becomes readable when packets arrive. Forked children give up
    /// both.
    ///
    /// # Errors
    ///
    /// The process has no descriptor left.
    pub fn readable(&self) -> io::Result<OwnProcess> {
        self.socket.duplicate()
    }

    /// Sends a datagram that is no packet, as [`send_alone`] does.
    pub(crate) fn send_alone(&self, destination: IpAddr, bytes: &[u8]) -> bool {
        send_alone(self.socket.as_fd(), self.local, destination, bytes)
    }

    /// Waits until a message arrives or the timeout expires. Returns whether a message arrived.
    ///
    /// # Errors
    ///
    /// The operating system cannot wait for the socket. A signal is no error: it ends the wait as the timeout does.
    pub fn wait_readable(&self, timeout: Duration) -> io::Result<bool> {
        sys::wait_readable(self.socket.as_fd(), timeout)
    }

    /// Sends runs of a batch up to `end`, as [`Link::transmit`] sends all.
    pub(crate) fn transmit_until(&mut self, batch: &TransmitBatch, next: &mut usize, end: usize) -> io::Result<()> {
        let all = batch.bytes();
        let mut pending_errors = 0;
        while let Some(run) = batch.runs()[..end].get(*next) {
            let bytes = &all[run.start..run.start + run.total_bytes];
            if !self.segmentation {
                if !self.transmit_separately(run, bytes)? {
                    return Ok(());
                }
                *next += 1;
                continue;
            }
            self.counters.send_calls += 1;
            let runs = &batch.runs()[*next..end];
            let messages = runs.iter().map(|run| self.outgoing(run, &all[run.start..run.start + run.total_bytes]));
            match sys::send(self.socket.as_fd(), messages) {
                Ok(count) => {
                    for run in &runs[..count] {
                        self.count_sent(run.packets, run.total_bytes);
                    }
                    *next += count;
                    pending_errors = 0;
                }
                Err(error) => {
                    let why = error.to_string();
                    match self.judge(error, run, run.packets, &mut pending_errors)? {
                        Verdict::Again => {}
                        Verdict::Full => return Ok(()),
                        Verdict::Drop => *next += 1,
                        Verdict::SendSeparately => {
                            let oversize = self.counters.oversize;
                            let took = self.transmit_separately(run, bytes)?;
                            if self.counters.oversize == oversize {
                                self.give_segmentation_up(run, &why);
                            }
                            if !took {
                                return Ok(());
                            }
                            *next += 1;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Sends one run as separate datagrams. Returns `Ok(false)` if the link is full.
    fn transmit_separately(&mut self, run: &Run, sealed: &[u8]) -> io::Result<bool> {
        let mut separate = std::mem::take(&mut self.separate);
        separate.clear();
        separate.extend_from_slice(sealed);
        if run.packets > 1 {
            self.sealer.reseal_separate(run.path.destination, run.segment_bytes, &mut separate);
        }
        let done = self.transmit_datagrams(run, &separate);
        self.separate = separate;
        done
    }

    fn transmit_datagrams(&mut self, run: &Run, bytes: &[u8]) -> io::Result<bool> {
        let mut sent = match self.stuck.take() {
            Some((stuck, sent)) if stuck == *run => sent,
            _ => 0,
        };
        let mut pending_errors = 0;
        while sent < run.packets {
            self.counters.send_calls += 1;
            let from = sent * run.segment_bytes;
            let whole = Outgoing { segment_bytes: None, ..self.outgoing(run, bytes) };
            let datagrams = bytes[from..].chunks(run.segment_bytes);
            let messages = datagrams.map(|bytes| Outgoing { bytes, ..whole });
            match sys::send(self.socket.as_fd(), messages) {
                Ok(count) => {
                    let to = (from + count * run.segment_bytes).min(bytes.len());
                    self.count_sent(count, to - from);
                    sent += count;
                    pending_errors = 0;
                }
                Err(error) => match self.judge(error, run, run.packets - sent, &mut pending_errors)? {
                    Verdict::Again => {}
                    Verdict::Full => {
                        self.stuck = Some((*run, sent));
                        return Ok(false);
                    }
                    Verdict::Drop | Verdict::SendSeparately => return Ok(true),
                },
            }
        }
        Ok(true)
    }

    /// Describes a run as one message.
    #[inline]
    fn outgoing<'a>(&self, run: &Run, bytes: &'a [u8]) -> Outgoing<'a> {
        let destination = end_of(self.local, run.path.destination);
        let path = &run.path;
        Outgoing {
            bytes,
            destination,
            segment_bytes: (run.packets > 1).then_some(run.segment_bytes as u16),
            traffic_class: (path.traffic_class != DEFAULT_TRAFFIC_CLASS).then_some(path.traffic_class),
            hop_limit: (path.hop_limit != DEFAULT_HOP_LIMIT).then_some(path.hop_limit),
        }
    }

    #[inline]
    fn count_sent(&mut self, datagrams: usize, bytes: usize) {
        self.counters.datagrams_sent += datagrams as u64;
        self.counters.bytes_sent += bytes as u64;
    }

    /// Decides how to handle a refused send. Returns an error only if the socket itself is unusable: an error of one
    /// destination must not stop the traffic to all others.
    #[cold]
    fn judge(
        &mut self,
        error: io::Error,
        run: &Run,
        packets: usize,
        pending_errors: &mut usize,
    ) -> io::Result<Verdict> {
        let segmented = self.segmentation && run.packets > 1;
        match error.raw_os_error() {
            Some(libc::EINTR) => Ok(Verdict::Again),
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => {
                self.counters.send_full += 1;
                Ok(Verdict::Full)
            }
            // Kernels report different errors when the segments are larger than the MTU. Only sending the segments
            // separately tells that from a refusal to segment.
            Some(libc::EINVAL | libc::EIO | libc::EOPNOTSUPP | libc::ENOPROTOOPT) if segmented => {
                Ok(Verdict::SendSeparately)
            }
            Some(libc::EMSGSIZE) => {
                self.counters.oversize += packets as u64;
                if !self.reported.oversize {
                    self.reported.oversize = true;
                    self.report_oversize(run);
                }
                Ok(Verdict::Drop)
            }
            Some(libc::ECONNREFUSED | libc::ECONNRESET | libc::EPROTO) => {
                self.counters.refused += 1;
                *pending_errors += 1;
                Ok(if *pending_errors < PENDING_ERRORS { Verdict::Again } else { Verdict::Drop })
            }
            Some(
                libc::EHOSTUNREACH
                | libc::ENETUNREACH
                | libc::EHOSTDOWN
                | libc::ENETDOWN
                | libc::EACCES
                | libc::EPERM
                | libc::EADDRNOTAVAIL
                | libc::EAFNOSUPPORT
                | libc::EINVAL,
            ) => {
                self.counters.unreachable += packets as u64;
                if !self.reported.unreachable {
                    self.reported.unreachable = true;
                    tracing::warn!(
                        "the kernel refuses to send from {} to {}: {error}; packets that cannot be \
                         sent are dropped and counted, and this is logged once",
                        self.local,
                        run.path.destination,
                    );
                }
                Ok(Verdict::Drop)
            }
            _ => Err(error),
        }
    }

    fn report_oversize(&self, run: &Run) {
        let mtu = match interface_mtu(self.local.ip()) {
            Ok((interface, mtu)) => format!("the MTU of {interface} is {mtu}"),
            Err(error) => format!("the interface's MTU is unknown: {error}"),
        };
        tracing::error!(
            "a packet of {} bytes of UDP payload from {} to {} is larger than the path allows \
             ({mtu}). Such packets are dropped and counted, and this is logged once. A smaller \
             path MTU helps",
            run.segment_bytes,
            self.local,
            run.path.destination,
        );
    }

    #[cold]
    fn give_segmentation_up(&mut self, run: &Run, error: &str) {
        self.segmentation = false;
        tracing::warn!(
            "the kernel refuses segmented sends from {} to {} ({error}): from now on each packet \
             is a datagram of its own, which is slower by an order of magnitude for small packets",
            self.local,
            run.path.destination,
        );
    }
}

/// Returns the socket address of the device at `destination` for a socket bound to `local`.
#[inline]
fn end_of(local: SocketAddr, destination: IpAddr) -> SocketAddr {
    match (destination, local) {
        (IpAddr::V6(ip), SocketAddr::V6(local)) => {
            // A link-local address is only valid together with an interface.
            let scope = if ip.is_unicast_link_local() { local.scope_id() } else { 0 };
            SocketAddrV6::new(ip, local.port(), 0, scope).into()
        }
        (ip, local) => SocketAddr::new(ip, local.port()),
    }
}

/// Sends a datagram that is no packet from a socket bound to `local`. Returns false if the kernel does not accept the
/// datagram: it has no room, or reports errors of earlier datagrams again and again.
pub(crate) fn send_alone(socket: BorrowedFd<'_>, local: SocketAddr, destination: IpAddr, bytes: &[u8]) -> bool {
    let destination = end_of(local, destination);
    let message = || Outgoing { bytes, destination, segment_bytes: None, traffic_class: None, hop_limit: None };
    let mut tries = (0..PENDING_ERRORS).map(|_| sys::send(socket, std::iter::once(message())));
    tries
        .find_map(|sent| match sent {
            Ok(_) => Some(true),
            Err(error) => (error.kind() == io::ErrorKind::WouldBlock).then_some(false),
        })
        .unwrap_or(false)
}

/// Passes one message on. Returns the number of its packets.
#[inline]
fn take(
    message: &Incoming<'_>,
    to: IpAddr,
    overflows_seen: &mut u32,
    counters: &mut UdpCounters,
    sink: &mut dyn Sink,
) -> usize {
    if let Some(overflows) = message.control.overflows {
        let new = overflows.wrapping_sub(*overflows_seen);
        counters.receive_queue_overflows += u64::from(new);
        *overflows_seen = overflows;
    }
    if message.truncated || message.bytes.is_empty() {
        counters.truncated += u64::from(message.truncated);
        return 0;
    }
    let segment_bytes = match message.control.segment_bytes {
        Some(bytes) if bytes > 0 => bytes.min(message.bytes.len()),
        _ => message.bytes.len(),
    };
    let count = message.bytes.len().div_ceil(segment_bytes);
    counters.datagrams_received += count as u64;
    counters.bytes_received += message.bytes.len() as u64;
    sink.receive(ReceivedRun {
        outer: Outer {
            src: message.source.ip(),
            dst: to,
            traffic_class: message.control.traffic_class.unwrap_or_default(),
            hop_limit: message.control.hop_limit.unwrap_or_default(),
            identification: None,
            dont_fragment: None,
        },
        source_port: message.source.port(),
        bytes: message.bytes,
        segment_bytes,
    });
    count
}

impl Link for UdpLink {
    fn properties(&self) -> LinkProperties {
        LinkProperties { sealed: true }
    }

    fn transmit(&mut self, _now_ns: u64, batch: &TransmitBatch, next: &mut usize) -> io::Result<()> {
        self.transmit_until(batch, next, batch.runs().len())
    }

    fn receive(&mut self, _now_ns: u64, sink: &mut dyn Sink) -> io::Result<usize> {
        let Self { socket, local, buffers, ask, overflows_seen, groups, counters, last_look, .. } = self;
        let mut packets = 0;
        for group in groups {
            // One message of each group. The rest follows next time: the group's socket stays readable.
            let Group { address, socket, overflows_seen } = group;
            let taken = sys::receive(socket.as_fd(), buffers, 1, |message| {
                packets += take(&message, (*address).into(), overflows_seen, counters, sink);
            });
            match taken.map_err(|error| error.kind()) {
                Ok(_) | Err(io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(_) => counters.refused += 1,
            }
        }
        let bytes_before = counters.bytes_received;
        *last_look = Look::default();
        for _ in 0..PENDING_ERRORS {
            counters.receive_calls += 1;
            let received = sys::receive(socket.as_fd(), buffers, *ask, |message| {
                packets += take(&message, local.ip(), overflows_seen, counters, sink);
            });
            match received {
                Ok(count) => {
                    last_look.messages = count;
                    // Long runs one by one: each is worth an acknowledgement of its own, and the sender continues
                    // meanwhile.
                    let bytes = counters.bytes_received - bytes_before;
                    let long = bytes >= (count * LONG_RUN_BYTES) as u64;
                    *ask = if count == *ask && !long { sys::MAX_RECEIVE_MESSAGES } else { 1 };
                    return Ok(packets);
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => {
                        last_look.was_empty = true;
                        *ask = 1;
                        return Ok(packets);
                    }
                    Some(libc::EINTR) => {}
                    // ICMP errors of datagrams sent earlier. The timers of the transport notice a peer that is gone.
                    Some(
                        libc::ECONNREFUSED
                        | libc::ECONNRESET
                        | libc::EHOSTUNREACH
                        | libc::ENETUNREACH
                        | libc::EHOSTDOWN
                        | libc::ENETDOWN
                        | libc::EPROTO
                        | libc::EMSGSIZE
                        | libc::EACCES
                        | libc::ENOPROTOOPT,
                    ) => counters.refused += 1,
                    _ => return Err(error),
                },
            }
        }
        Ok(packets)
    }

    fn join(&mut self, group: IpAddr) -> io::Result<OwnProcess> {
        let (group, local) = group::joinable(group, self.local.ip())?;
        if let Some(joined) = self.groups.iter().find(|joined| joined.address == group) {
            return joined.readable();
        }
        let joined = Group::join(group, local, self.local.port(), self.receive_buffer_bytes)?;
        let readable = joined.readable()?;
        self.groups.push(joined);
        Ok(readable)
    }

    fn leave(&mut self, group: IpAddr) {
        self.groups.retain(|joined| joined.address != group);
    }

    fn link_counters(&self) -> LinkCounters {
        let counters = &self.counters;
        LinkCounters {
            rx_overflow: counters.receive_queue_overflows,
            rx_truncated: counters.truncated,
            tx_oversize: counters.oversize,
            tx_unreachable: counters.unreachable,
            tx_refused: counters.refused,
            tx_udp_packets: counters.datagrams_sent,
            ..LinkCounters::default()
        }
    }
}

impl AsFd for UdpLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for UdpLink {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_fd().as_raw_fd()
    }
}

#[cfg(test)]
mod tests;
