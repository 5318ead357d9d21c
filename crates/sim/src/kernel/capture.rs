//! A capture of the frames that arrive at nodes.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use doorbell_fabric::{FrameDirection, FrameNotes, PcapFile};
use doorbell_wire::{FaultMarks, Flow, Outer, ROCE_UDP_PORT};

use super::node::Frame;
use crate::time::Ps;

/// Frames are captured when it is decided that they arrive, which is not in the order of their arrival. One that is
/// this much older than the present is preceded by no other that is still to come.
const HORIZON: Ps = Ps(1_000_000_000);

/// A frame that waits for its place in the file.
struct Captured {
    outer: Outer,
    source_port: u16,
    bytes: Vec<u8>,
}

/// A capture of all that arrives at nodes.
pub(crate) struct Capture {
    file: PcapFile,
    /// By the time of their arrival, then in the order of their capture.
    waiting: BTreeMap<(Ps, u64), Captured>,
    number: u64,
    /// What broke the file. Nothing is captured after that.
    error: Option<io::Error>,
}

impl Capture {
    pub(crate) fn new(to: impl io::Write + Send + 'static) -> io::Result<Self> {
        let mut file = PcapFile::new(to);
        // A file that cannot be written at all is better known now.
        file.flush()?;
        Ok(Self { file, waiting: BTreeMap::new(), number: 0, error: None })
    }

    /// A frame's last bit arrives `at` some time; it is `now`.
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
        let notes = FrameNotes { at, direction: FrameDirection::Unknown, faults: FaultMarks::NONE };
        self.error = self.file.add(&notes, &outer, [source_port, ROCE_UDP_PORT], &bytes, &icrc).err();
    }

    /// Writes all that is there.
    ///
    /// # Errors
    ///
    /// Something of it could not be written, now or before.
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
        // What a run that failed has left is worth having.
        let _ = self.finish();
    }
}
