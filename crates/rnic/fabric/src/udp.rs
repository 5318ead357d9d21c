//! RoCE v2 over a UDP socket, without privileges or a kernel module.
//!
//! Sending a separate datagram costs about 2.5 us in the kernel, so the link passes *runs* of packets to the kernel.
//! With `UDP_SEGMENT`, the kernel splits a sent message into datagrams as late as possible. With `UDP_GRO`, the kernel
//! combines received datagrams of one sender into one message. So 64 packets take only a few system calls.

mod address;
mod control;
mod counters;
mod group;
mod interface;
mod steering;
pub(crate) mod sys;

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use doorbell_rnic::{Run, TransmitBatch};
use doorbell_verbs_core::LinkCounters;
use doorbell_wire::Outer;

pub use address::{BindError, BindRequest, DEFAULT_RECEIVE_BUFFER_BYTES, bind};
pub use counters::UdpCounters;
pub use interface::{active_mtu, interface_index, interface_mtu, largest_path_mtu};
pub(crate) use steering::ENGINE_BYTE_AT;
pub use steering::bind_engines;

use crate::link::{Link, LinkProperties, ReceivedRun, Sink};
use crate::own_process::OwnProcess;
use crate::seal::Sealer;
use control::Outgoing;
use group::Group;
use sys::Incoming;

/// Traffic class of the socket. Packets with this traffic class need no control message.
pub const DEFAULT_TRAFFIC_CLASS: u8 = 0;

/// Hop limit of the socket. Packets with this hop limit need no control message.
pub const DEFAULT_HOP_LIMIT: u8 = 64;

/// Maximum number of consecutive errors that are attributed to earlier datagrams, as ICMP reports them. After that, an
/// error is attributed to the current datagram.
const PENDING_ERRORS: usize = 8;

/// Minimum average size of received messages in bytes at which the link receives messages one by one.
const LONG_RUN_BYTES: usize = 32 << 10;

/// A UDP socket as a link, created by [`bind`].
#[derive(Debug)]
pub struct UdpLink {
    socket: OwnProcess,
    local: SocketAddr,
    receive_buffer_bytes: usize,
    /// Whether the kernel splits a sent message into the packets of a run.
    segmentation: bool,
    /// A run whose packets are sent as separate datagrams, if the send buffer became full within the run. The number
    /// counts the packets of the run that are already sent.
    stuck: Option<(Run, usize)>,
    last_look: Look,
    /// Rewrites the ICRCs of runs that are sent as separate datagrams.
    sealer: Sealer,
    separate: Vec<u8>,
    buffers: Box<[u8]>,
    /// Number of messages that the next system call requests: one, or the maximum. Requesting more messages than have
    /// arrived costs time. So the link requests the maximum only if the previous call returned as many messages as it
    /// requested, and they were short on average.
    ask: usize,
    /// Number of overflows that the kernel reported with the last received message.
    overflows_seen: u32,
    /// Joined multicast groups.
    groups: Vec<Group>,
    counters: UdpCounters,
    reported: Reported,
}

/// Warnings that were logged once and are not logged again.
#[derive(Debug, Default)]
struct Reported {
    oversize: bool,
    unreachable: bool,
}

/// Result of the last receive from the socket.
#[derive(Clone, Copy, Debug, Default)]
struct Look {
    messages: usize,
    was_empty: bool,
}

/// Reaction to a failed send.
enum Verdict {
    Again,
    Full,
    Drop,
    SendSeparately,
}

impl UdpLink {
    /// Creates a link from a socket that is bound and has all options set.
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

    /// Returns the address of the device, to which the socket is bound.
    pub fn local_address(&self) -> IpAddr {
        self.local.ip()
    }

    /// Returns the UDP port of this device and its peers.
    pub fn port(&self) -> u16 {
        self.local.port()
    }

    /// Returns the size of the receive buffer that the kernel granted, as `getsockopt` shows it. The kernel counts
    /// several hundred bytes for each datagram in addition to the payload.
    pub fn receive_buffer_bytes(&self) -> usize {
        self.receive_buffer_bytes
    }

    /// Returns the counters of the link.
    pub fn counters(&self) -> UdpCounters {
        self.counters
    }

    /// Returns whether the packets of a run carry the IPv4 identifications 0, 1, 2, .... This is so if the kernel
    /// splits runs. Otherwise the link sends each packet as a separate datagram with identification 0, and rewrites the
    /// ICRC accordingly.
    pub fn identification_follows_run(&self) -> bool {
        self.segmentation
    }

    /// Returns the address and port to which the socket is bound.
    pub(crate) fn local_socket_address(&self) -> SocketAddr {
        self.local
    }

    /// Returns whether the last receive found the socket empty.
    pub(crate) fn was_empty(&self) -> bool {
        self.last_look.was_empty
    }

    /// Returns the number of messages that the last receive took from the socket, including invalid messages.
    pub(crate) fn messages_taken(&self) -> usize {
        self.last_look.messages
    }

    /// Returns a second descriptor of the socket. It becomes readable when packets arrive. Forked children give up both
    /// descriptors.
    ///
    /// # Errors
    ///
    /// The process has no descriptor left.
    pub fn readable(&self) -> io::Result<OwnProcess> {
        self.socket.duplicate()
    }

    /// Sends a datagram that is no packet to the device at `destination`, as the function [`send_alone`] does.
    pub(crate) fn send_alone(&self, destination: IpAddr, bytes: &[u8]) -> bool {
        send_alone(self.socket.as_fd(), self.local, destination, bytes)
    }

    /// Waits until a message arrives or the timeout expires. Returns whether a message arrived.
    ///
    /// # Errors
    ///
    /// The operating system cannot wait for the socket. A signal ends the wait like the timeout, without an error.
    pub fn wait_readable(&self, timeout: Duration) -> io::Result<bool> {
        sys::wait_readable(self.socket.as_fd(), timeout)
    }

    /// Sends the runs of a batch from `*next` to `end`. Otherwise works like [`Link::transmit`].
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

    /// Returns the message for a run.
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

    /// Decides how to handle a failed send. Returns an error only if the socket is unusable. An error that concerns one
    /// destination must not stop the traffic to other destinations.
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
            // Kernels report these errors in two cases: the segments are larger than the MTU, or the kernel does not
            // support segmentation. Sending the segments separately shows which case it is.
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
            // A link-local address needs the index of its interface.
            let scope = if ip.is_unicast_link_local() { local.scope_id() } else { 0 };
            SocketAddrV6::new(ip, local.port(), 0, scope).into()
        }
        (ip, local) => SocketAddr::new(ip, local.port()),
    }
}

/// Sends a datagram that is no packet from a socket bound to `local`. Returns false if the send buffer is full, or if
/// [`PENDING_ERRORS`] tries in a row fail, for example with ICMP errors of earlier datagrams.
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

/// Passes the packets of one received message to the sink. Returns the number of packets.
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

    fn forget_batch(&mut self) {
        self.stuck = None;
    }

    fn receive(&mut self, _now_ns: u64, sink: &mut dyn Sink) -> io::Result<usize> {
        let Self { socket, local, buffers, ask, overflows_seen, groups, counters, last_look, .. } = self;
        let mut packets = 0;
        for group in groups {
            // Take one message of each group. The next call takes further messages, since the group's socket stays
            // readable.
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
                    // If the messages are long on average, request one message per call. Then the RNIC acknowledges
                    // each run separately, and the sender can send the next run earlier.
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
                    // ICMP errors of datagrams sent earlier. The requester's timers detect a peer that is gone.
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
