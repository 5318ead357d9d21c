//! Writes what crosses a link to a pcap file, as the Ethernet frames that it would travel in.

use std::io::{self, Write};
use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use doorbell_rnic::{MAX_RUN_BYTES, TransmitBatch};
use doorbell_verbs_core::LinkCounters;
use doorbell_wire::{Check, Encapsulation, Outer};
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, PcapError, TsResolution};

use crate::link::{Link, LinkProperties, ReceivedRun, Sink};
use crate::seal::{Checker, Sealer};
use crate::shm::OwnProcess;

/// Bytes that are gathered before they go to the file.
const BUFFER_BYTES: usize = 1 << 20;

/// How long a captured packet waits at most until it is written, if a processor is free. A process that is killed loses
/// the packets of this time.
const FLUSH_INTERVAL_NS: u64 = 10_000_000;

/// The longest frame that the file's header announces: more than any has.
const SNAP_LEN: u32 = 1 << 18;

/// A link of which all packets are captured.
///
/// A socket shows neither MAC addresses nor the IPv4 identification. The former are made from the
/// IP addresses, locally administered; the latter is the one that the ICRC was computed with,
/// which the ICRC of a received packet tells. Where the link has no ICRC, frames get one.
///
/// A packet's time is that at which the program took it from the link, or handed it to the link. Those of one run
/// go together, and have one time.
///
/// If the file cannot be written any more, that is said once, and the traffic goes on.
pub struct Pcap<L> {
    inner: L,
    capture: Capture,
}

impl<L: Link> Pcap<L> {
    /// Captures what crosses `inner`, whose end has this address and UDP port.
    ///
    /// `clock` tells the time since 1970. It is asked for each run that arrives and each time that runs leave,
    /// since much happens within one call of a driver, which has one `now_ns` for all of it; it is given that
    /// number.
    ///
    /// # Errors
    ///
    /// The file's header cannot be written.
    pub fn new(
        inner: L,
        local: IpAddr,
        port: u16,
        to: impl Write + Send + 'static,
        clock: impl Fn(u64) -> Duration + Send + 'static,
    ) -> io::Result<Self> {
        let sealed = inner.properties().sealed;
        let mut capture = Capture {
            file: PcapFile::new(to)?,
            local,
            port,
            sealed,
            sealer: Sealer::new(local, port),
            checker: Checker::new(local, port),
            clock: Box::new(clock),
            flush_at_ns: None,
            packets: 0,
        };
        // A file that cannot be written at all is better known now.
        capture.file.flush()?;
        Ok(Self { inner, capture })
    }

    /// How many packets have been captured.
    pub fn packets(&self) -> u64 {
        self.capture.packets
    }

    /// The link below.
    pub fn inner(&self) -> &L {
        &self.inner
    }
}

impl<L: Link> Link for Pcap<L> {
    fn properties(&self) -> LinkProperties {
        self.inner.properties()
    }

    fn transmit(&mut self, now_ns: u64, batch: &TransmitBatch, next: &mut usize) -> io::Result<()> {
        let from = *next;
        // The time is taken before, so that no peer seems to have had a packet that was not sent yet; the rest comes
        // after, so that the file costs the packets nothing.
        let at = self.capture.moment(now_ns);
        let result = self.inner.transmit(now_ns, batch, next);
        self.capture.sent(at, batch, from..*next);
        self.capture.flush_if_due(now_ns);
        result
    }

    fn receive(&mut self, now_ns: u64, sink: &mut dyn Sink) -> io::Result<usize> {
        let Self { inner, capture } = self;
        let result = inner.receive(now_ns, &mut |run: ReceivedRun<'_>| {
            capture.received(capture.moment(now_ns), &run);
            sink.receive(run);
        });
        capture.flush_if_due(now_ns);
        result
    }

    fn prepare_sleep(&mut self) -> bool {
        self.inner.prepare_sleep()
    }

    fn shows_arrivals(&self) -> bool {
        self.inner.shows_arrivals()
    }

    fn awaits(&self) -> Option<IpAddr> {
        self.inner.awaits()
    }

    fn hurry(&mut self) {
        self.inner.hurry();
    }

    fn poll_timeout(&self) -> Option<u64> {
        self.inner.poll_timeout().into_iter().chain(self.capture.flush_at_ns).min()
    }

    fn join(&mut self, group: IpAddr) -> io::Result<OwnProcess> {
        self.inner.join(group)
    }

    fn leave(&mut self, group: IpAddr) {
        self.inner.leave(group);
    }

    fn holds_records(&self) -> bool {
        self.capture.flush_at_ns.is_some() || self.inner.holds_records()
    }

    fn write_records(&mut self) {
        self.capture.flush();
        self.inner.write_records();
    }

    fn link_counters(&self) -> LinkCounters {
        self.inner.link_counters()
    }
}

impl<L> Drop for Pcap<L> {
    fn drop(&mut self) {
        self.capture.flush();
    }
}

impl<L: std::fmt::Debug> std::fmt::Debug for Pcap<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { inner, capture } = self;
        f.debug_struct("Pcap").field("inner", inner).field("packets", &capture.packets).finish()
    }
}

/// Makes frames and writes them.
struct Capture {
    file: PcapFile,
    local: IpAddr,
    port: u16,
    sealed: bool,
    sealer: Sealer,
    checker: Checker,
    clock: Box<dyn Fn(u64) -> Duration + Send>,
    /// When what has been captured must go to the file.
    flush_at_ns: Option<u64>,
    packets: u64,
}

/// When packets cross the link.
#[derive(Clone, Copy)]
struct Moment {
    /// On the link's clock.
    now_ns: u64,
    since_1970: Duration,
}

impl Capture {
    fn moment(&self, now_ns: u64) -> Moment {
        Moment { now_ns, since_1970: (self.clock)(now_ns) }
    }

    fn sent(&mut self, at: Moment, batch: &TransmitBatch, taken: Range<usize>) {
        if self.file.broken {
            return;
        }
        let bytes = batch.bytes();
        for run in &batch.runs()[taken] {
            for (index, segment) in run.segments().enumerate() {
                let outer = Outer {
                    src: self.local,
                    dst: run.path.destination,
                    traffic_class: run.path.traffic_class,
                    hop_limit: run.path.hop_limit,
                    identification: Some(index as u16),
                    dont_fragment: Some(true),
                };
                let packet = &bytes[segment];
                if self.sealed {
                    self.write(at, &outer, self.port, packet, &[]);
                } else {
                    let packet = &packet[..packet.len() - batch.trailer_bytes()];
                    let flow = self.sealer.flow_to(outer.dst);
                    let icrc = flow.icrc(index as u16, true, packet).to_le_bytes();
                    self.write(at, &outer, self.port, packet, &icrc);
                }
            }
        }
    }

    fn received(&mut self, at: Moment, run: &ReceivedRun<'_>) {
        if self.file.broken {
            return;
        }
        for (index, packet) in run.segments().enumerate() {
            let (mut identification, mut dont_fragment) = (index as u16, true);
            let mut appended = None;
            if !self.sealed {
                let flow = self.checker.flow_from(run);
                appended = Some(flow.icrc(identification, true, packet).to_le_bytes());
            } else if let Check::Valid { identification: found, dont_fragment: df } =
                self.checker.find(run, index, packet)
            {
                (identification, dont_fragment) = (found, df);
            }
            let outer = Outer { identification: Some(identification), dont_fragment: Some(dont_fragment), ..run.outer };
            let icrc = appended.as_ref().map_or(&[][..], |icrc| &icrc[..]);
            self.write(at, &outer, run.source_port, packet, icrc);
        }
    }

    /// Writes one packet as a frame; `icrc` follows it where it has none.
    fn write(&mut self, at: Moment, outer: &Outer, src_port: u16, packet: &[u8], icrc: &[u8]) {
        // Longer ones exist in memory only, and fit no frame.
        if self.file.broken || packet.len() + icrc.len() > MAX_RUN_BYTES {
            return;
        }
        match self.file.add(at.since_1970, outer, [src_port, self.port], packet, icrc) {
            Ok(()) => {
                self.packets += 1;
                self.flush_at_ns.get_or_insert(at.now_ns.saturating_add(FLUSH_INTERVAL_NS));
            }
            Err(error) => self.give_up(&error),
        }
    }

    fn flush_if_due(&mut self, now_ns: u64) {
        if self.flush_at_ns.is_some_and(|due_ns| due_ns <= now_ns) {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.flush_at_ns = None;
        if let Err(error) = self.file.flush() {
            self.give_up(&error);
        }
    }

    #[cold]
    fn give_up(&mut self, error: &io::Error) {
        self.file.broken = true;
        self.flush_at_ns = None;
        tracing::error!(
            "the pcap file of {} cannot be written ({error}): capturing ends after {} packets, \
             some of which may be missing; the traffic goes on",
            self.local,
            self.packets,
        );
    }
}

/// A pcap file of RoCE v2 packets, as the Ethernet frames that they travel in. MAC addresses are made from the IP
/// addresses, locally administered.
///
/// It has a buffer of its own: the crate's writer gives no access to what it writes to, so it writes to memory, which is
/// moved to the file from time to time. What is not flushed at the end is lost.
pub struct PcapFile {
    to: Box<dyn Write + Send>,
    frame: Vec<u8>,
    /// Taken only while its buffer is emptied.
    writer: Option<PcapWriter<Vec<u8>>>,
    buffered: usize,
    /// Bytes at the start of the buffer that are in the file already: each writer begins with the
    /// file's header.
    skip: usize,
    broken: bool,
}

impl PcapFile {
    /// Begins a file.
    ///
    /// # Errors
    ///
    /// Its header does not fit into memory.
    pub fn new(to: impl Write + Send + 'static) -> io::Result<Self> {
        let writer = Some(start(Vec::new())?);
        Ok(Self { to: Box::new(to), frame: Vec::new(), writer, buffered: 0, skip: 0, broken: false })
    }

    /// Adds a packet (from its BTH on) at a time since 1970. `ports` are the UDP source and destination port; `icrc`
    /// follows the packet where it does not end in one.
    ///
    /// # Errors
    ///
    /// What was gathered cannot be written.
    ///
    /// # Panics
    ///
    /// If the packet fits no IP packet.
    pub fn add(
        &mut self,
        since_1970: Duration,
        outer: &Outer,
        [src_port, dst_port]: [u16; 2],
        packet: &[u8],
        icrc: &[u8],
    ) -> io::Result<()> {
        let Some(writer) = &mut self.writer else {
            return Ok(());
        };
        let (src_mac, dst_mac) = (mac_of(outer.src), mac_of(outer.dst));
        let encapsulation = Encapsulation { src_mac, dst_mac, vlan: None, src_port, dst_port };
        let frame = &mut self.frame;
        frame.resize(encapsulation.header_len(outer), 0);
        encapsulation.emit_frame_headers(outer, packet.len() + icrc.len(), frame);
        frame.extend_from_slice(packet);
        frame.extend_from_slice(icrc);
        let packet = PcapPacket::new(since_1970, frame.len() as u32, &frame[..]);
        self.buffered += writer.write_packet(&packet).map_err(into_io)?;
        if self.buffered < BUFFER_BYTES { Ok(()) } else { self.flush() }
    }

    /// Writes what was gathered.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.broken {
            return Ok(());
        }
        let Some(writer) = self.writer.take() else {
            return Ok(());
        };
        let mut buffer = writer.into_writer();
        self.to.write_all(&buffer[self.skip..])?;
        self.to.flush()?;
        buffer.clear();
        let writer = start(buffer)?;
        self.skip = FILE_HEADER_LEN;
        self.buffered = 0;
        self.writer = Some(writer);
        Ok(())
    }
}

impl std::fmt::Debug for PcapFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PcapFile").field("buffered", &self.buffered).finish_non_exhaustive()
    }
}

/// Bytes of a pcap file's header.
const FILE_HEADER_LEN: usize = 24;

fn start(buffer: Vec<u8>) -> io::Result<PcapWriter<Vec<u8>>> {
    let header = PcapHeader {
        datalink: DataLink::ETHERNET,
        ts_resolution: TsResolution::NanoSecond,
        snaplen: SNAP_LEN,
        ..PcapHeader::default()
    };
    PcapWriter::with_header(buffer, header).map_err(into_io)
}

fn into_io(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        error => io::Error::new(io::ErrorKind::InvalidData, error),
    }
}

/// A locally administered unicast MAC address made from an IP address: of IPv4 all of it, of IPv6
/// its end; or the address of a multicast group (RFC 1112, 6.4, and RFC 2464, 7).
fn mac_of(address: IpAddr) -> [u8; 6] {
    match address.to_canonical() {
        IpAddr::V4(v4) if v4.is_multicast() => {
            let [_, b, c, d] = v4.octets();
            [0x01, 0, 0x5e, b & 0x7f, c, d]
        }
        IpAddr::V6(v6) if v6.is_multicast() => {
            let [.., a, b, c, d] = v6.octets();
            [0x33, 0x33, a, b, c, d]
        }
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            [0x02, 0, a, b, c, d]
        }
        IpAddr::V6(v6) => {
            let [.., a, b, c, d, e] = v6.octets();
            [0x06, a, b, c, d, e]
        }
    }
}

#[cfg(test)]
mod tests;
