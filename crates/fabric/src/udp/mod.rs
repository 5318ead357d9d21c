//! RoCE v2 over a UDP socket: no privileges, no kernel module.
//!
//! A datagram of its own costs the kernel about 2.5 us, so packets cross this boundary in *runs*:
//! out with `UDP_SEGMENT`, where the kernel cuts one message into datagrams as late as it can, and
//! in with `UDP_GRO`, where it hands over datagrams of one sender together. Both are the same few
//! system calls per 64 packets.

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

/// The traffic class that costs nothing: it is the socket's.
pub const DEFAULT_TRAFFIC_CLASS: u8 = 0;

/// The hop limit that costs nothing: it is the socket's.
pub const DEFAULT_HOP_LIMIT: u8 = 64;

/// How often in a row an error that belongs to an earlier datagram is taken off the socket before
/// it is believed to belong to this one.
const PENDING_ERRORS: usize = 8;

/// So many bytes in a message make it a run that is worth handling on its own.
const LONG_RUN_BYTES: usize = 32 << 10;

/// What a UDP link has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpCounters {
    /// Datagrams that the kernel took.
    pub datagrams_sent: u64,
    /// UDP payload bytes of these.
    pub bytes_sent: u64,
    /// System calls that sent something, or tried to.
    pub send_calls: u64,
    /// System calls that found the send buffer full.
    pub send_full: u64,
    /// Datagrams received.
    pub datagrams_received: u64,
    /// UDP payload bytes of these.
    pub bytes_received: u64,
    /// System calls that received something, or tried to.
    pub receive_calls: u64,
    /// Packets dropped on the way out because they exceed the MTU.
    pub oversize: u64,
    /// Packets dropped on the way out because the kernel knows no way to their destination, or
    /// forbids it.
    pub unreachable: u64,
    /// Errors that a peer's host reported about earlier datagrams, such as a closed port.
    pub refused: u64,
    /// Messages that were longer than UDP allows, and dropped.
    pub truncated: u64,
    /// Messages that the kernel dropped because the receive buffer was full. It counts a run that
    /// it held together as one. Known only once something is received afterwards.
    pub receive_queue_overflows: u64,
}

/// A UDP socket as a link. [`bind`] makes it.
#[derive(Debug)]
pub struct UdpLink {
    socket: OwnProcess,
    local: SocketAddr,
    receive_buffer_bytes: usize,
    /// The kernel cuts runs up.
    segmentation: bool,
    /// Where a run that goes out as separate datagrams got stuck: which, and how many went.
    stuck: Option<(Run, usize)>,
    last_look: Look,
    /// Makes the ICRCs of runs that go out as separate datagrams anew, in `separate`.
    sealer: Sealer,
    separate: Vec<u8>,
    buffers: Box<[u8]>,
    /// How many messages the next call asks for: a call that asks for more than there are pays
    /// for finding nothing, so a single packet is not asked for together with seven others.
    ask: usize,
    /// The kernel's count of overflows when it was last seen.
    overflows_seen: u32,
    /// Multicast groups that were joined.
    groups: Vec<Group>,
    counters: UdpCounters,
    reported: Reported,
}

/// What has been said once and is not said again.
#[derive(Debug, Default)]
struct Reported {
    oversize: bool,
    unreachable: bool,
}

/// What a look at the socket found, be it packets or not.
#[derive(Clone, Copy, Debug, Default)]
struct Look {
    messages: usize,
    was_empty: bool,
}

/// What to do after a send was refused.
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

    /// The address of this end, which is also the device's.
    pub fn local_address(&self) -> IpAddr {
        self.local.ip()
    }

    /// The UDP port of both ends.
    pub fn port(&self) -> u16 {
        self.local.port()
    }

    /// The receive buffer that the kernel granted, in bytes of *its* memory, as `getsockopt`
    /// shows it: a datagram takes several hundred bytes more there than it has.
    pub fn receive_buffer_bytes(&self) -> usize {
        self.receive_buffer_bytes
    }

    /// What the link has done so far.
    pub fn counters(&self) -> UdpCounters {
        self.counters
    }

    /// Do the packets of a run carry the IPv4 identifications 0, 1, 2, ...? So they do where the
    /// kernel cuts runs up; where it does not, each packet is a datagram of its own with
    /// identification 0, and the link makes the ICRC of such packets anew itself.
    pub fn identification_follows_run(&self) -> bool {
        self.segmentation
    }

    /// The socket's own address.
    pub(crate) fn local_socket_address(&self) -> SocketAddr {
        self.local
    }

    /// Did the last look find the socket empty?
    pub(crate) fn was_empty(&self) -> bool {
        self.last_look.was_empty
    }

    /// What the last look took from the socket, whether it was of any use or not.
    pub(crate) fn messages_taken(&self) -> usize {
        self.last_look.messages
    }

    /// Returns a second descriptor of the socket, which becomes readable when packets arrive. Forked children give up both.
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

    /// Waits until something can be received, or the timeout expires, and says which.
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

    /// Sends one run as datagrams of their own. `Ok(false)` means that the link is full.
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

    /// Decides what a refusal means. An error is returned only if the socket itself is unusable:
    /// what concerns one destination must not stop the traffic to all others.
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
            // Kernels differ in what they say when the segments are larger than the MTU, so only
            // sending the segments separately tells that from a refusal to segment.
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
                         sent are dropped and counted, and this is said once",
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
             ({mtu}): such packets are dropped and counted, and this is said once; a smaller \
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

/// The socket of the device at `destination`, as one bound to `local` names it.
#[inline]
fn end_of(local: SocketAddr, destination: IpAddr) -> SocketAddr {
    match (destination, local) {
        (IpAddr::V6(ip), SocketAddr::V6(local)) => {
            // A link-local address means something only together with an interface.
            let scope = if ip.is_unicast_link_local() { local.scope_id() } else { 0 };
            SocketAddrV6::new(ip, local.port(), 0, scope).into()
        }
        (ip, local) => SocketAddr::new(ip, local.port()),
    }
}

/// Sends a datagram that is no packet from a socket bound to `local`. False if the kernel does not take it: it has no room,
/// or reports what came of earlier datagrams again and again.
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

/// Hands one message on, and says how many packets it has.
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
            // One message of each, and what is behind it next time: its socket stays readable.
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
                    // Long runs one by one: each is worth an acknowledgement of its own, and the
                    // sender goes on meanwhile.
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
                    // What ICMP reports of datagrams sent earlier; the timers of the transport
                    // notice a peer that is gone.
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
