//! Messages that this side writes into the peer's memory. A message is copied into a send buffer, sent inline, or sent
//! from the program's memory.

use doorbell_verbs::{
    Access, MemoryKind, Payload, Pd, PostError, Qp, Region, SendFlags, SendOperation, SendRequest, Sge,
};
use smallvec::SmallVec;

use crate::connection::MessageId;
use crate::connection::config::{Config, MAX_BATCH};
use crate::connection::error::ConnectError;
use crate::connection::ring::WORD;

/// Source of a message.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// Bytes that the connection copies.
    Bytes(&'a [u8]),
    /// Memory of the program, from which the RNIC reads the message until the message is done.
    Memory {
        /// The region of the memory.
        region: &'a Region,
        /// Offset of the message in the region.
        offset: usize,
        /// Number of bytes of the message.
        length: usize,
    },
}

impl Source<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Memory { length, .. } => *length,
        }
    }

    pub(crate) fn copy_to(&self, out: &mut [u8]) {
        match self {
            Self::Bytes(bytes) => out.copy_from_slice(bytes),
            Self::Memory { region, offset, .. } => region.copy_out(*offset, out),
        }
    }
}

/// A word that the sender adds to a message, in the same WRITE.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Word {
    Absent,
    Before([u8; WORD]),
    Behind([u8; WORD]),
}

impl Word {
    /// Returns a word with the length and a last byte of 1. RNICs write the last byte of a WRITE last, so a receiver
    /// that sees this byte has the whole message.
    pub(crate) fn signal(length: usize) -> [u8; WORD] {
        let mut word = (length as u64).to_le_bytes();
        word[WORD - 1] = 1;
        word
    }

    /// Returns the length in a word.
    pub(crate) fn number(word: [u8; WORD]) -> usize {
        let [a, b, c, d, ..] = word;
        u32::from_le_bytes([a, b, c, d]) as usize
    }
}

/// An accepted message that is ready to be posted.
#[derive(Debug)]
pub(crate) struct Staged {
    pub(crate) id: MessageId,
    place: MessageSource,
}

#[derive(Debug)]
enum MessageSource {
    /// The message is in the inline store and has this number of bytes.
    Inline(usize),
    Memory(SmallVec<[Sge; 2]>),
}

/// Messages that the connection has accepted and that are not done, with their send buffers.
pub(crate) struct Outbox {
    window: u64,
    /// Maximum bytes of an inline message.
    inline: usize,
    buffers: Option<Region>,
    buffer_count: u64,
    stride: usize,
    max_message: usize,
    /// Memory for the words of messages that are sent from the program's memory.
    words: Region,
    store: Box<[u8]>,
    next_id: MessageId,
    completed: MessageId,
}

impl Outbox {
    pub(crate) fn new(pd: &Pd, config: &Config, peer_max_message: u64) -> Result<Self, ConnectError> {
        let allocate = |length| pd.allocate(length, Access::empty(), MemoryKind::Plain);
        let stride = (config.max_message + 2 * WORD).next_multiple_of(64);
        let buffers = match config.send_buffers {
            0 => None,
            count => Some(allocate(count * stride)?),
        };
        let inline = config.inline.min(pd.device().attributes().limits.max_inline.saturating_sub(WORD));
        let own = if buffers.is_some() { config.max_message.max(inline) } else { inline };
        Ok(Self {
            window: config.window as u64,
            inline,
            buffers,
            buffer_count: config.send_buffers as u64,
            stride,
            max_message: own.min(usize::try_from(peer_max_message).unwrap_or(usize::MAX)),
            words: allocate(config.window * WORD)?,
            store: vec![0; config.window * (inline + WORD)].into(),
            next_id: 1,
            completed: 0,
        })
    }

    /// Returns the number of inline bytes that the queue pair must support.
    pub(crate) fn inline_bytes(config: &Config) -> usize {
        config.inline.saturating_add(WORD)
    }

    /// Returns the bytes of the longest message that can be copied.
    pub(crate) fn max_message(&self) -> usize {
        self.max_message
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.unacknowledged() >= self.window
    }

    pub(crate) fn last_accepted(&self) -> MessageId {
        self.next_id - 1
    }

    pub(crate) fn last_done(&self) -> MessageId {
        self.completed
    }

    #[inline]
    pub(crate) fn unacknowledged(&self) -> u64 {
        self.next_id - 1 - self.completed
    }

    #[inline]
    pub(crate) fn complete(&mut self, id: MessageId) {
        self.completed = id;
    }

    /// Accepts a message and prepares its post. The caller has checked that the window is not full.
    #[inline]
    pub(crate) fn stage(&mut self, source: Source<'_>, word: Word) -> Staged {
        let id = self.next_id;
        self.next_id += 1;
        let length = source.len();
        let slot = (id % self.window) as usize;
        let (before, behind): (&[u8], &[u8]) = match &word {
            Word::Absent => (&[], &[]),
            Word::Before(word) => (word, &[]),
            Word::Behind(word) => (&[], word),
        };
        let whole = before.len() + length + behind.len();
        if length <= self.inline {
            let start = slot * (self.inline + WORD);
            let out = &mut self.store[start..start + whole];
            out[..before.len()].copy_from_slice(before);
            source.copy_to(&mut out[before.len()..before.len() + length]);
            out[before.len() + length..].copy_from_slice(behind);
            return Staged { id, place: MessageSource::Inline(whole) };
        }
        let sges = match source {
            Source::Bytes(bytes) => {
                // Without send buffers, `max_message` is at most the inline size, so this code is not reached.
                let Some(buffers) = &self.buffers else {
                    unreachable!("messages above the inline size need send buffers")
                };
                let start = (id % self.buffer_count) as usize * self.stride;
                buffers.copy_in(start, before);
                buffers.copy_in(start + before.len(), bytes);
                buffers.copy_in(start + before.len() + length, behind);
                smallvec::smallvec![buffers.sge(start, whole)]
            }
            Source::Memory { region, offset, length } => {
                let payload = region.sge(offset, length);
                let word = |word: &[u8]| {
                    self.words.copy_in(slot * WORD, word);
                    self.words.sge(slot * WORD, WORD)
                };
                match (before, behind) {
                    ([], []) => smallvec::smallvec![payload],
                    ([], behind) => smallvec::smallvec![payload, word(behind)],
                    (before, _) => smallvec::smallvec![word(before), payload],
                }
            }
        };
        Staged { id, place: MessageSource::Memory(sges) }
    }

    /// Posts messages with their operations, and then the request `behind`, if any. Only the last request is signaled,
    /// and its completion covers all requests.
    #[inline]
    pub(crate) fn post<'a>(
        &'a self,
        qp: &Qp,
        messages: impl Iterator<Item = (&'a Staged, SendOperation)>,
        behind: Option<(SendOperation, &'a [u8])>,
    ) -> Result<(), PostError> {
        let mut list: SmallVec<[SendRequest<'_>; MAX_BATCH + 1]> = SmallVec::new();
        for (staged, operation) in messages {
            let payload = match &staged.place {
                MessageSource::Inline(length) => {
                    let start = (staged.id % self.window) as usize * (self.inline + WORD);
                    Payload::Inline(&self.store[start..start + length])
                }
                MessageSource::Memory(sges) => Payload::Sges(sges),
            };
            let flags = SendFlags::empty();
            list.push(SendRequest { wr_id: staged.id, operation, flags, payload, destination: None });
        }
        let Some(last) = list.last().map(|request| request.wr_id) else { return Ok(()) };
        if let Some((operation, bytes)) = behind {
            let (flags, payload) = (SendFlags::empty(), Payload::Inline(bytes));
            list.push(SendRequest { wr_id: last, operation, flags, payload, destination: None });
        }
        if let Some(request) = list.last_mut() {
            request.flags = SendFlags::SIGNALED;
        }
        qp.post_send(&list)
    }
}
