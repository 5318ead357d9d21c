//! Runs of packets that wait for room in a ring, because its reader is slower than the senders of this device.
//!
//! While runs to a device wait here, the RNIC starts no further packets to this device on UC and UD. So besides the
//! packets of one batch, only packets with a window wait here.
//!
//! A reader that reads nothing for [`STOPPED_NS`] counts as stopped. Its waiting runs are dropped. Later runs wait
//! again only after the reader has made room.

use std::collections::VecDeque;
use std::iter;

use super::ring::{Header, Memory, Writer};

/// Maximum size in bytes of the records that wait for room in one ring.
pub(super) const HELD_BYTES_MAX: u64 = 8 << 20;

/// Time without room after which the reader counts as stopped. A process that waits for a processor gets one sooner.
pub(super) const STOPPED_NS: u64 = 200_000_000;

/// Time after which the link looks for room again. The reader reads at most a few hundred KiB in this time, so a ring
/// does not run empty while runs wait.
pub(super) const RETRY_NS: u64 = 50_000;

#[derive(Debug)]
struct HeldRun {
    header: Header,
    packets: Vec<u8>,
}

/// Runs that wait for room in one ring, in order.
#[derive(Debug, Default)]
pub(super) struct Held {
    runs: VecDeque<HeldRun>,
    /// Size of the waiting runs as records of the ring.
    bytes: u64,
    /// Time at which the ring had room last, or at which the first run began to wait.
    room_at_ns: u64,
    /// Whether the reader counts as stopped.
    has_stopped: bool,
}

impl Held {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Records that the ring had room for a run.
    #[inline]
    pub(super) fn note_room(&mut self) {
        self.has_stopped = false;
    }

    /// Adds a run with a copy of its packets. Returns false if the run must be dropped: the reader has stopped, or too
    /// many bytes wait.
    #[cold]
    pub(super) fn push<'a>(&mut self, now_ns: u64, header: Header, packets: impl Iterator<Item = &'a [u8]>) -> bool {
        let bytes = header.record_bytes();
        if self.has_stopped || self.bytes + bytes > HELD_BYTES_MAX {
            return false;
        }
        if self.runs.is_empty() {
            self.room_at_ns = now_ns;
        }
        let mut joined = Vec::with_capacity(header.total_bytes);
        packets.for_each(|packet| joined.extend_from_slice(packet));
        self.runs.push_back(HeldRun { header, packets: joined });
        self.bytes += bytes;
        true
    }

    /// Writes waiting runs to the ring while it has room. Returns the number of packets written, and the number of
    /// packets dropped because the reader has stopped.
    #[cold]
    pub(super) fn flush<M: Memory>(&mut self, now_ns: u64, writer: &mut Writer<M>) -> (u64, u64) {
        let mut written = 0;
        while let Some(run) = self.runs.front() {
            if !writer.push(run.header, iter::once(&*run.packets)) {
                break;
            }
            written += run.header.packets() as u64;
            self.bytes -= run.header.record_bytes();
            self.runs.pop_front();
        }
        if written > 0 {
            self.room_at_ns = now_ns;
        } else if !self.is_empty() && now_ns.saturating_sub(self.room_at_ns) >= STOPPED_NS {
            self.has_stopped = true;
            return (0, self.clear());
        }
        (written, 0)
    }

    /// Drops all waiting runs. Returns the number of their packets.
    #[cold]
    pub(super) fn clear(&mut self) -> u64 {
        let dropped = self.runs.iter().map(|run| run.header.packets() as u64).sum();
        self.bytes = 0;
        // Free the memory too, since most rings never fill again.
        self.runs = VecDeque::new();
        dropped
    }
}
