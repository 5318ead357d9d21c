//! Capture of the frames that arrive at nodes.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use doorbell_fabric::{FrameDirection, FrameNotes, PcapFile, RuleNumbers};
use doorbell_wire::{FaultMarks, Flow, Outer, ROCE_UDP_PORT};

use super::node::Frame;
use crate::time::Ps;

/// Maximum time between the capture of a frame and its arrival. The kernel captures a frame when it computes the time
/// of arrival, so frames are not captured in the order of arrival. Once the arrival of a captured frame is older than
/// this time, no later captured frame can arrive earlier.
const HORIZON: Ps = Ps(1_000_000_000);

/// A captured frame that is not yet written to the file.
struct Captured {
    outer: Outer,
    source_port: u16,
    bytes: Vec<u8>,
}

/// Capture of all frames that arrive at nodes.
pub(crate) struct Capture {
    file: PcapFile,
    /// Frames that are not yet written, by time of arrival and then by order of capture.
    waiting: BTreeMap<(Ps, u64), Captured>,
    number: u64,
    /// The first error of writing the file. After this error, no frame is captured.
    error: Option<io::Error>,
}

impl Capture {
    pub(crate) fn new(to: impl io::Write + Send + 'static) -> io::Result<Self> {
        let mut file = PcapFile::new(to);
        // Report an unwritable file at the start of the run.
        file.flush()?;
        Ok(Self { file, waiting: BTreeMap::new(), number: 0, error: None })
    }

    /// Captures a frame whose last bit arrives at the time `at`.
    pub(crate) fn arrived(&mut self, now: Ps, at: Ps, frame: &Frame) {
        if self.error.is_some() {
            return;
        }
        let outer = Outer { identification: Some(0), dont_fragment: Some(true), ..frame.outer() };
        let captured = Captured { outer, source_port: frame.source_port, bytes: frame.bytes.clone() };
        self.number += 1;
        self.waiting.insert((at, self.number), captured);
        while let Some((&(at, _), _)) = self.waiting.first_key_value()
            && at + HORIZON < now
            && self.error.is_none()
        {
            self.write_first();
        }
    }

    fn write_first(&mut self) {
        let Some(((at, _), captured)) = self.waiting.pop_first() else { return };
        let Captured { outer, source_port, bytes } = captured;
        let flow = Flow::new(outer.src, outer.dst, source_port, ROCE_UDP_PORT);
        let icrc = flow.icrc(0, true, &bytes).to_le_bytes();
        let at = Duration::from_nanos(at.as_ns());
        let (direction, faults, rules) = (FrameDirection::Unknown, FaultMarks::NONE, RuleNumbers::default());
        let notes = FrameNotes { at, direction, faults, rules };
        self.error = self.file.add(&notes, &outer, [source_port, ROCE_UDP_PORT], &bytes, &icrc).err();
    }

    /// Writes all remaining frames.
    ///
    /// # Errors
    ///
    /// Returns an error if a frame could not be written, now or before.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        while !self.waiting.is_empty() && self.error.is_none() {
            self.write_first();
        }
        match self.error.take() {
            Some(error) => Err(error),
            None => self.file.flush(),
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        // Write the remaining frames here too, since the capture of a failed run is useful.
        let _ = self.finish();
    }
}
