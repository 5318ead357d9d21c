//! A link that captures its packets as Ethernet frames.

mod file;

use std::io::{self, Write};
use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use doorbell_rnic::{MAX_RUN_BYTES, TransmitBatch};
use doorbell_verbs_core::LinkCounters;
use doorbell_wire::{Check, FaultMarks, Outer};

pub use file::{FrameDirection, FrameNotes, PcapFile};

use crate::link::{Link, LinkProperties, ReceivedRun, SentPacket, Sink};
use crate::seal::{Checker, Sealer};
use crate::struck::RuleNumbers;

/// Maximum time from the capture of a packet until it is written to the file, if a processor is free. If the process is
/// killed, the file lacks at most the packets of this time before the kill.
const FLUSH_INTERVAL_NS: u64 = 10_000_000;

/// A link that captures the packets of another link, with their direction. If the other link is
/// [`Faults`](crate::Faults), the capture also contains dropped packets, and marks each packet that a fault struck.
///
/// A socket shows neither MAC addresses nor the IPv4 identification. The capture derives locally administered MAC
/// addresses from the IP addresses. The identification in a frame is the one with which the ICRC was computed. For
/// received packets, the capture finds it by the ICRC. If the link has no ICRC, the capture computes one for each
/// frame.
///
/// The time of a frame is the time at which the driver received the packet from the link, or passed it to the link. All
/// packets of one run have the same time.
///
/// Packets reach the file within 10 ms. If writing the file fails, the link logs one error, and the traffic
/// continues.
pub struct Pcap<L> {
    inner: L,
    capture: Capture,
    /// Whether the link sends other packets than it gets, because of injected faults, and reports them.
    reports_sent: bool,
}

impl<L: Link> Pcap<L> {
    /// Captures the packets of `inner`. `local` and `port` are the address and UDP port of the device.
    ///
    /// `clock` maps the link's `now_ns` to the time since 1970. The capture calls `clock` for each received run and for
    /// each send. `clock` may return a more precise time than `now_ns`, which stays the same during a whole call of the
    /// driver.
    ///
    /// # Errors
    ///
    /// The file's header cannot be written.
    pub fn new(
        mut inner: L,
        local: IpAddr,
        port: u16,
        to: impl Write + Send + 'static,
        clock: impl Fn(u64) -> Duration + Send + 'static,
    ) -> io::Result<Self> {
        let sealed = inner.properties().sealed;
        let mut capture = Capture {
            file: PcapFile::of_plan(to, inner.plan_texts()),
            is_broken: false,
            local,
            port,
            sealed,
            sealer: Sealer::new(local, port),
            checker: Checker::new(local, port),
            clock: Box::new(clock),
            flush_at_ns: None,
            packets: 0,
        };
        // Write the header now, so that a file that cannot be written is reported as an error.
        capture.file.flush()?;
        let reports_sent = inner.report_sent();
        Ok(Self { inner, capture, reports_sent })
    }

    /// Returns the number of captured packets.
    pub fn packets(&self) -> u64 {
        self.capture.packets
    }

    /// Returns the wrapped link.
    pub fn inner(&self) -> &L {
        &self.inner
    }
}

impl<L: Link> Link for Pcap<L> {
    fn inner(&self) -> Option<&dyn Link> {
        Some(&self.inner)
    }

    fn inner_mut(&mut self) -> Option<&mut dyn Link> {
        Some(&mut self.inner)
    }

    fn properties(&self) -> LinkProperties {
        self.inner.properties()
    }

    fn transmit(&mut self, now_ns: u64, batch: &TransmitBatch, next: &mut usize) -> io::Result<()> {
        let from = *next;
        // Read the time before the send, so that no peer seems to receive a packet before it was sent. Capture the
        // packets after the send, so that writing the file does not delay them.
        let at = self.capture.moment(now_ns);
        let result = self.inner.transmit(now_ns, batch, next);
        if self.reports_sent {
            self.capture.reported(at, self.inner.take_sent());
        } else {
            self.capture.sent(at, batch, from..*next);
        }
        self.capture.flush_if_due(now_ns);
        result
    }

    fn receive(&mut self, now_ns: u64, sink: &mut dyn Sink) -> io::Result<usize> {
        let Self { inner, capture, reports_sent } = self;
        let result = inner.receive(now_ns, &mut Captured { capture, now_ns, above: sink });
        if *reports_sent {
            // Packets that a fault delayed may have left.
            capture.reported(capture.moment(now_ns), inner.take_sent());
        }
        capture.flush_if_due(now_ns);
        result
    }

    fn poll_timeout(&self) -> Option<u64> {
        self.inner.poll_timeout().into_iter().chain(self.capture.flush_at_ns).min()
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
        let Self { inner, capture, .. } = self;
        f.debug_struct("Pcap").field("inner", inner).field("packets", &capture.packets).finish()
    }
}

/// Sink that captures received packets and passes them to another sink.
struct Captured<'a> {
    capture: &'a mut Capture,
    now_ns: u64,
    above: &'a mut dyn Sink,
}

impl Sink for Captured<'_> {
    fn receive(&mut self, run: ReceivedRun<'_>) {
        self.capture.received(self.now_ns, &run, FaultMarks::NONE, RuleNumbers::default());
        self.above.receive(run);
    }

    fn receive_faulty(&mut self, run: ReceivedRun<'_>, marks: FaultMarks, rules: RuleNumbers) {
        self.capture.received(self.now_ns, &run, marks, rules);
        self.above.receive_faulty(run, marks, rules);
    }
}

/// State of a capture.
struct Capture {
    file: PcapFile,
    /// Whether a write to the file has failed.
    is_broken: bool,
    local: IpAddr,
    port: u16,
    sealed: bool,
    sealer: Sealer,
    checker: Checker,
    clock: Box<dyn Fn(u64) -> Duration + Send>,
    /// Time by which the captured packets must be written to the file. `None` if all are written.
    flush_at_ns: Option<u64>,
    packets: u64,
}

/// Time at which packets cross the link.
#[derive(Clone, Copy)]
struct Moment {
    /// Time of the link's clock.
    now_ns: u64,
    since_1970: Duration,
}

impl Capture {
    fn moment(&self, now_ns: u64) -> Moment {
        Moment { now_ns, since_1970: (self.clock)(now_ns) }
    }

    fn sent(&mut self, at: Moment, batch: &TransmitBatch, taken: Range<usize>) {
        if self.is_broken {
            return;
        }
        let bytes = batch.bytes();
        let (direction, faults, rules) = (FrameDirection::Outbound, FaultMarks::NONE, RuleNumbers::default());
        let notes = FrameNotes { at: at.since_1970, direction, faults, rules };
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
                    self.write(at.now_ns, &notes, &outer, self.port, packet, &[]);
                } else {
                    let packet = &packet[..packet.len() - batch.trailer_bytes()];
                    let flow = self.sealer.flow_to(outer.dst);
                    let icrc = flow.icrc(index as u16, true, packet).to_le_bytes();
                    self.write(at.now_ns, &notes, &outer, self.port, packet, &icrc);
                }
            }
        }
    }

    /// Captures packets as they left.
    fn reported(&mut self, at: Moment, sent: Vec<SentPacket>) {
        for SentPacket { outer, bytes, marks: faults, rules } in sent {
            let notes = FrameNotes { at: at.since_1970, direction: FrameDirection::Outbound, faults, rules };
            let outer = Outer { src: self.local, dont_fragment: Some(true), ..outer };
            if self.sealed {
                self.write(at.now_ns, &notes, &outer, self.port, &bytes, &[]);
            } else {
                let flow = self.sealer.flow_to(outer.dst);
                let icrc = flow.icrc(outer.identification.unwrap_or_default(), true, &bytes).to_le_bytes();
                self.write(at.now_ns, &notes, &outer, self.port, &bytes, &icrc);
            }
        }
    }

    fn received(&mut self, now_ns: u64, run: &ReceivedRun<'_>, faults: FaultMarks, rules: RuleNumbers) {
        if self.is_broken {
            return;
        }
        let at = self.moment(now_ns);
        let notes = FrameNotes { at: at.since_1970, direction: FrameDirection::Inbound, faults, rules };
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
            self.write(at.now_ns, &notes, &outer, run.source_port, packet, icrc);
        }
    }

    /// Writes one packet as a frame. `icrc` is empty if `packet` ends in an ICRC, and otherwise contains the ICRC.
    fn write(&mut self, now_ns: u64, notes: &FrameNotes, outer: &Outer, src_port: u16, packet: &[u8], icrc: &[u8]) {
        // Longer packets exist only on networks in memory, and do not fit into an IP packet.
        if self.is_broken || packet.len() + icrc.len() > MAX_RUN_BYTES {
            return;
        }
        match self.file.add(notes, outer, [src_port, self.port], packet, icrc) {
            Ok(()) => {
                self.packets += 1;
                self.flush_at_ns.get_or_insert(now_ns.saturating_add(FLUSH_INTERVAL_NS));
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
        if self.is_broken {
            return;
        }
        if let Err(error) = self.file.flush() {
            self.give_up(&error);
        }
    }

    #[cold]
    fn give_up(&mut self, error: &io::Error) {
        self.is_broken = true;
        self.flush_at_ns = None;
        tracing::error!(
            "the pcap file of {} cannot be written ({error}): capturing ends after {} packets, \
             some of which may be missing; the traffic goes on",
            self.local,
            self.packets,
        );
    }
}

#[cfg(test)]
mod tests;
