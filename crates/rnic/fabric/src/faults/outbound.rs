//! Packets that leave a device under a plan with rules for them.
//!
//! A run may lose packets and gain copies, and a packet is sealed with its index in its run. So the remaining packets
//! form new runs, and a packet that gets another index gets another ICRC.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;

use doorbell_rnic::{EngineId, Path, TransmitBatch};
use doorbell_wire::{BTH_LEN, BthPacket, FaultMarks, Flow, ICRC_LEN, Outer};

use super::FaultFilter;
use crate::driver::BATCH_BYTES;
use crate::link::{Link, ReceivedRun, SentPacket, Sink};
use crate::struck::RuleNumbers;

/// Time until the next attempt to send packets that were released while the link was full. The driver does not know
/// of these packets, so it does not wait for room.
const RETRY_NS: u64 = 50_000;

/// The faults of leaving packets, and the packets that remain.
#[derive(Debug)]
pub(super) struct Outbound {
    pub(super) filter: FaultFilter,
    sealed: bool,
    /// Packets that have passed the filter and are not in the batch yet.
    ready: Ready,
    batch: TransmitBatch,
    /// Index of the first run of the batch that the link has not accepted yet.
    next_run: usize,
    /// Packets of the batch, with the dropped packets between them.
    in_batch: Vec<SentPacket>,
    /// Whether the current batch of the driver has passed the filter. Its last run counts as accepted only when all
    /// ready packets are sent. Until then, the driver waits for room.
    has_filtered: bool,
    retry_at_ns: Option<u64>,
    /// Sent packets that the capture has not taken; `None` without a capture.
    reported: Option<Vec<SentPacket>>,
}

/// Packets that have passed the filter, in order.
#[derive(Debug, Default)]
struct Ready(VecDeque<SentPacket>);

impl Sink for Ready {
    fn receive(&mut self, run: ReceivedRun<'_>) {
        self.receive_faulty(run, FaultMarks::NONE, RuleNumbers::default());
    }

    fn receive_faulty(&mut self, run: ReceivedRun<'_>, marks: FaultMarks, rules: RuleNumbers) {
        let packet = |bytes: &[u8]| SentPacket { outer: run.outer, bytes: bytes.to_vec(), marks, rules };
        let packets = run.segments().map(packet);
        self.0.extend(packets);
    }
}

impl Outbound {
    pub(super) fn new(filter: FaultFilter, sealed: bool) -> Self {
        Self {
            filter,
            sealed,
            ready: Ready::default(),
            // Each packet fits, since the batch of the driver has this size too.
            batch: TransmitBatch::new(BATCH_BYTES, if sealed { ICRC_LEN } else { 0 }),
            next_run: 0,
            in_batch: Vec::new(),
            has_filtered: false,
            retry_at_ns: None,
            reported: None,
        }
    }

    /// Reports sent packets from now on.
    pub(super) fn report(&mut self) {
        self.reported = Some(Vec::new());
    }

    /// Returns the packets that were sent or dropped since the last call.
    pub(super) fn take_sent(&mut self) -> Vec<SentPacket> {
        self.reported.as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub(super) fn poll_timeout(&self) -> Option<u64> {
        self.filter.next_due().into_iter().chain(self.retry_at_ns).min()
    }

    /// Sends the packets of a batch that remain after the faults. Otherwise works like [`Link::transmit`].
    pub(super) fn transmit<L: Link>(
        &mut self,
        now_ns: u64,
        local: (IpAddr, u16),
        link: &mut L,
        batch: &TransmitBatch,
        next: &mut usize,
    ) -> io::Result<()> {
        let runs = batch.runs().len();
        self.send(now_ns, local, link)?;
        if !self.has_filtered && self.has_sent_all() && *next < runs {
            self.filter_runs(now_ns, local, batch, *next);
            self.has_filtered = true;
            self.send(now_ns, local, link)?;
        }
        if self.has_filtered {
            self.has_filtered = !self.has_sent_all();
            *next = if self.has_filtered { runs.saturating_sub(1).max(*next) } else { runs };
        }
        Ok(())
    }

    /// Sends the packets that were held back until now.
    pub(super) fn release<L: Link>(&mut self, now_ns: u64, local: (IpAddr, u16), link: &mut L) -> io::Result<()> {
        self.filter.release(now_ns, &mut self.ready);
        self.send(now_ns, local, link)
    }

    /// Forgets the packets that have passed the filter and are not sent, because the driver drops its batch.
    pub(super) fn forget(&mut self) {
        self.ready.0.clear();
        self.batch.clear();
        self.next_run = 0;
        self.has_filtered = false;
    }

    fn has_sent_all(&self) -> bool {
        self.ready.0.is_empty() && self.next_run == self.batch.runs().len()
    }

    /// Passes the runs of a batch from `from` on through the filter.
    fn filter_runs(&mut self, now_ns: u64, (address, port): (IpAddr, u16), batch: &TransmitBatch, from: usize) {
        let unsealed_bytes = if self.sealed { 0 } else { batch.trailer_bytes() };
        for run in &batch.runs()[from..] {
            for (index, segment) in run.segments().enumerate() {
                let bytes = &batch.bytes()[segment.start..segment.end - unsealed_bytes];
                let outer = Outer {
                    src: address,
                    dst: run.path.destination,
                    traffic_class: run.path.traffic_class,
                    hop_limit: run.path.hop_limit,
                    identification: Some(index as u16),
                    dont_fragment: Some(true),
                };
                let packet = ReceivedRun { outer, source_port: port, bytes, segment_bytes: bytes.len() };
                self.filter.pass(now_ns, packet, &mut self.ready);
            }
        }
    }

    fn send<L: Link>(&mut self, now_ns: u64, local: (IpAddr, u16), link: &mut L) -> io::Result<()> {
        let result = self.send_ready(now_ns, local, link);
        if result.is_err() {
            self.forget(); // the link is broken, and the driver drops its batch too
        }
        let is_unknown_to_driver = !self.has_sent_all() && !self.has_filtered;
        self.retry_at_ns = is_unknown_to_driver.then(|| now_ns.saturating_add(RETRY_NS));
        result
    }

    fn send_ready<L: Link>(&mut self, now_ns: u64, local: (IpAddr, u16), link: &mut L) -> io::Result<()> {
        loop {
            if self.next_run == self.batch.runs().len() {
                self.note_sent();
                self.fill();
                if self.batch.is_empty() {
                    self.note_sent();
                    if self.ready.0.is_empty() {
                        return Ok(());
                    }
                    continue;
                }
            }
            if self.loses_corrupted(now_ns, local, link)? {
                self.next_run = self.batch.runs().len();
                continue;
            }
            link.transmit(now_ns, &self.batch, &mut self.next_run)?;
            if self.next_run < self.batch.runs().len() {
                return Ok(());
            }
        }
    }

    /// Reports the packets of the batch, which all are sent or dropped.
    fn note_sent(&mut self) {
        match &mut self.reported {
            Some(reported) => reported.append(&mut self.in_batch),
            None => self.in_batch.clear(),
        }
    }

    /// Moves ready packets into the empty batch. A corrupted packet gets a batch of its own.
    fn fill(&mut self) {
        self.batch.clear();
        self.next_run = 0;
        while let Some(packet) = self.ready.0.front() {
            let is_dropped = packet.marks.has(FaultMarks::DROPPED);
            let is_corrupted = packet.marks.has(FaultMarks::CORRUPTED) && !is_dropped;
            let len = packet.bytes.len() - self.batch.trailer_bytes();
            let has_room = is_dropped || self.batch.is_empty() || self.batch.has_room(len);
            if !has_room || (is_corrupted && !self.in_batch.is_empty()) {
                break;
            }
            if !is_dropped {
                self.batch.push_copy(&path_of(packet), &packet.bytes[..len]);
            }
            self.in_batch.extend(self.ready.0.pop_front());
            if is_corrupted {
                break;
            }
        }
        let (runs, bytes) = self.batch.runs_and_bytes_mut();
        let places = runs.iter().flat_map(|run| run.segments().enumerate());
        let packets = self.in_batch.iter_mut().filter(|packet| !packet.marks.has(FaultMarks::DROPPED));
        for (packet, (index, segment)) in packets.zip(places) {
            if self.sealed {
                renumber(packet, index as u16);
            }
            bytes[segment].copy_from_slice(&packet.bytes);
        }
    }

    /// Returns whether the only packet of the batch is lost because its ICRC is wrong. Shared memory carries no ICRC,
    /// so the receiver would accept a packet that a faulty cable would have made invalid.
    fn loses_corrupted<L: Link>(
        &mut self,
        now_ns: u64,
        (address, port): (IpAddr, u16),
        link: &mut L,
    ) -> io::Result<bool> {
        let [packet] = &mut self.in_batch[..] else { return Ok(false) };
        if !self.sealed || !packet.marks.has(FaultMarks::CORRUPTED) {
            return Ok(false);
        }
        // A link learns of new routes when it transmits, even if there is nothing to send.
        link.transmit(now_ns, &TransmitBatch::new(0, ICRC_LEN), &mut 0)?;
        if link.seals(&path_of(packet)) || is_sealed(packet, address, port) {
            return Ok(false);
        }
        packet.marks = packet.marks.and(FaultMarks::DROPPED);
        Ok(true)
    }
}

/// Returns the path of a packet. A packet without a whole BTH goes to the first engine, as over UDP.
fn path_of(packet: &SentPacket) -> Path {
    let Outer { dst: destination, traffic_class, hop_limit, .. } = packet.outer;
    let has_bth = packet.bytes.len() >= BTH_LEN;
    let qpn = has_bth.then(|| BthPacket::new_unchecked(&packet.bytes[..]).dest_qpn());
    Path { engine: qpn.map(EngineId::of).unwrap_or_default(), destination, traffic_class, hop_limit }
}

/// Changes the IPv4 identification that the ICRC of a packet covers. The CRC is linear, so a wrong ICRC stays wrong.
fn renumber(packet: &mut SentPacket, identification: u16) {
    let old = packet.outer.identification.replace(identification);
    let Some(old) = old.filter(|old| *old != identification) else { return };
    let Some((content, icrc)) = packet.bytes.split_last_chunk_mut::<ICRC_LEN>() else { return };
    let flow = Flow::new(packet.outer.src, packet.outer.dst, 0, 0);
    let difference = flow.icrc(old, true, content) ^ flow.icrc(identification, true, content);
    *icrc = (u32::from_le_bytes(*icrc) ^ difference).to_le_bytes();
}

/// Returns whether the ICRC of a packet is right.
fn is_sealed(packet: &SentPacket, address: IpAddr, port: u16) -> bool {
    let Some((content, icrc)) = packet.bytes.split_last_chunk::<ICRC_LEN>() else { return false };
    let flow = Flow::new(address, packet.outer.dst, port, port);
    flow.icrc(packet.outer.identification.unwrap_or_default(), true, content) == u32::from_le_bytes(*icrc)
}
