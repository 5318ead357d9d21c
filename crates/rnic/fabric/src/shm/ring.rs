//! A ring of records in memory that two processes share: one process writes, the other reads.
//!
//! A record is a run of packets. It begins on a cache line with a word that holds its [`Header`]. The packets follow
//! that word, so that a short message takes one line. A word of 0 means that there is no record yet. The writer
//! clears the word after a record before it publishes the record's own word. So a reader that goes from record to
//! record finds either 0 or a word that the writer published. The reader's position, [`Memory::head`], tells the
//! writer how much of the ring it may overwrite.
//!
//! Neither side trusts the other. A writer accepts a position only if it lies between the last one and its own. A
//! reader accepts a header only if its lengths are possible. If a record claims more bytes than were written, the
//! reader reads old bytes of the same ring. A process that is killed at any step leaves the ring readable for the
//! other side. A record without its word was never written, and a record that was not released is only never
//! overwritten.
//!
//! The memory is behind a trait, so that a model checker can test the order of accesses.

use doorbell_rnic::{MAX_RUN_BYTES, MAX_RUN_PACKETS};

/// Alignment of records.
pub(crate) const LINE_BYTES: usize = 64;

/// Bytes of the word before the packets of a record.
pub(crate) const WORD_BYTES: usize = 8;

/// Memory of a ring, which both sides access. Offsets are bytes from the start of the ring. Each access lies within
/// the ring, or exceeds its end by less than its capacity and continues at its start.
pub(crate) trait Memory {
    /// Returns the bytes of the ring: a power of two.
    fn capacity(&self) -> usize;
    /// Loads the word at an offset, with acquire ordering.
    fn load(&self, at: usize) -> u64;
    /// Stores the word at an offset, with release ordering.
    fn store(&self, at: usize, word: u64);
    /// Copies bytes into the ring.
    fn copy_in(&self, at: usize, bytes: &[u8]);
    /// Copies bytes out of the ring.
    fn copy_out(&self, at: usize, bytes: &mut [u8]);
    /// Returns the reader's position, with acquire ordering.
    fn head(&self) -> u64;
    /// Publishes the reader's position, with release ordering.
    fn set_head(&self, head: u64);
    /// Returns whether the reader wants to be woken.
    fn sleeps(&self) -> bool;
    /// Sets whether the reader wants to be woken. Returns the previous value.
    fn set_sleeps(&self, sleeps: bool) -> bool;
    /// Executes a fence that all threads see in one order.
    fn fence(&self);
    /// Gives the memory of the ring back: its words and bytes are 0 from now on. No thread may be copying from it.
    fn discard(&self);
}

/// Contents of the word before a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Bytes of all packets.
    pub(crate) total_bytes: usize,
    /// Bytes of each packet but the last, which may be shorter.
    pub(crate) segment_bytes: usize,
    /// Traffic class of the packets.
    pub(crate) traffic_class: u8,
    /// Hop limit of the packets.
    pub(crate) hop_limit: u8,
}

/// Bits of a length in the word: enough for [`MAX_RUN_BYTES`].
const LENGTH_BITS: u32 = 17;

/// Set in each word, so that none is 0.
const PRESENT: u64 = 1 << 63;

impl Header {
    fn encode(self) -> u64 {
        PRESENT
            | u64::from(self.traffic_class) << (2 * LENGTH_BITS + 8)
            | u64::from(self.hop_limit) << (2 * LENGTH_BITS)
            | (self.segment_bytes as u64) << LENGTH_BITS
            | self.total_bytes as u64
    }

    /// Returns `None` if no run has such lengths.
    fn decode(word: u64) -> Option<Self> {
        let length = |shift: u32| (word >> shift) as usize & ((1 << LENGTH_BITS) - 1);
        let (total_bytes, segment_bytes) = (length(0), length(LENGTH_BITS));
        let is_possible = word & PRESENT != 0
            && (1..=MAX_RUN_BYTES).contains(&total_bytes)
            && (1..=total_bytes).contains(&segment_bytes)
            && total_bytes.div_ceil(segment_bytes) <= MAX_RUN_PACKETS;
        is_possible.then_some(Self {
            total_bytes,
            segment_bytes,
            traffic_class: (word >> (2 * LENGTH_BITS + 8)) as u8,
            hop_limit: (word >> (2 * LENGTH_BITS)) as u8,
        })
    }

    /// Returns the bytes of the ring that the record takes.
    pub(crate) fn record_bytes(self) -> u64 {
        (WORD_BYTES + self.total_bytes).next_multiple_of(LINE_BYTES) as u64
    }
}

/// Returns the word before a record, for tests that write it without a [`Writer`].
#[cfg(test)]
pub(crate) fn word_of(header: Header) -> u64 {
    header.encode()
}

/// The writing side of a ring.
#[derive(Debug)]
pub(crate) struct Writer<M> {
    memory: M,
    /// Position of the next record, which counts on beyond the ring's capacity.
    tail: u64,
    /// Last position of the reader that the writer has loaded.
    head: u64,
    /// Position of the writer when the ring had no memory last.
    discarded_at: u64,
}

impl<M: Memory> Writer<M> {
    /// Creates the writer of an empty ring that is all zeros.
    pub(crate) fn new(memory: M) -> Self {
        Self { memory, tail: 0, head: 0, discarded_at: 0 }
    }

    /// Writes one run, with its packets in order. Returns false if the ring has no room for it.
    #[inline]
    pub(crate) fn push<'a>(&mut self, header: Header, packets: impl Iterator<Item = &'a [u8]>) -> bool {
        let record_bytes = header.record_bytes();
        // The writer clears the word after the record, so that line must be free as well.
        if !self.has_room(record_bytes + LINE_BYTES as u64) {
            return false;
        }
        let mask = self.memory.capacity() - 1;
        let start = self.tail as usize & mask;
        let (mut at, end) = (start + WORD_BYTES, start + WORD_BYTES + header.total_bytes);
        for packet in packets {
            debug_assert!(packet.len() <= end - at, "the packets are longer than the header says");
            let packet = &packet[..packet.len().min(end - at)];
            self.memory.copy_in(at, packet);
            at += packet.len();
        }
        self.tail += record_bytes;
        self.memory.store(self.tail as usize & mask, 0);
        self.memory.store(start, header.encode());
        true
    }

    /// Returns whether the reader must be woken, after all records were written. At most one call per sleep of the
    /// reader returns true.
    #[inline]
    pub(crate) fn must_wake(&self) -> bool {
        // Pairs with the reader's fence: at least one of the two sides sees the other's store.
        self.memory.fence();
        self.memory.sleeps() && self.memory.set_sleeps(false)
    }

    /// Records that the reader could not be woken. The next record, at the latest a retransmitted one, must try
    /// again.
    #[cold]
    pub(crate) fn failed_to_wake(&self) {
        self.memory.set_sleeps(true);
    }

    /// Returns the position of the next record, which counts on beyond the ring's capacity.
    #[inline]
    pub(crate) fn position(&self) -> u64 {
        self.tail
    }

    /// Returns an upper bound of the bytes of the ring that have memory because of written records.
    #[inline]
    pub(crate) fn kept_bytes(&self) -> u64 {
        (self.tail - self.discarded_at).min(self.memory.capacity() as u64)
    }

    /// Returns the memory of the ring.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }

    /// Gives the ring's memory back if the reader has read everything. Returns false if it has not.
    ///
    /// Only the writer may do that: the reader checks a word that is 0 until a record follows, before and after.
    #[cold]
    pub(crate) fn give_back(&mut self) -> bool {
        let is_empty = self.memory.head() == self.tail;
        if is_empty {
            self.head = self.tail;
            self.memory.discard();
            self.discarded_at = self.tail;
        }
        is_empty
    }

    #[inline]
    fn has_room(&mut self, bytes: u64) -> bool {
        let capacity = self.memory.capacity() as u64;
        if capacity - (self.tail - self.head) >= bytes {
            return true;
        }
        let head = self.memory.head();
        if head.wrapping_sub(self.head) > self.tail - self.head {
            return false; // no reader ever had this position
        }
        self.head = head;
        capacity - (self.tail - self.head) >= bytes
    }
}

/// A run that the reader found. Its bytes may be overwritten once it is released.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    /// Contents of its word.
    pub(crate) header: Header,
    /// Offset of its packets.
    pub(crate) at: usize,
}

/// The reading side of a ring.
#[derive(Debug)]
pub(crate) struct Reader<M> {
    memory: M,
    head: u64,
    released: u64,
    /// Whether the writer wrote a header that no run has.
    is_broken: bool,
}

impl<M: Memory> Reader<M> {
    /// Creates the reader of a ring from which nothing was read.
    pub(crate) fn new(memory: M) -> Self {
        Self { memory, head: 0, released: 0, is_broken: false }
    }

    /// Returns the next record, if there is one. The caller must copy it out before [`release`](Self::release).
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Record> {
        if self.is_broken {
            return None;
        }
        let start = self.start();
        let word = self.memory.load(start);
        if word == 0 {
            return None;
        }
        let Some(header) = Header::decode(word) else {
            self.is_broken = true;
            return None;
        };
        self.head = self.head.wrapping_add(header.record_bytes());
        Some(Record { header, at: start + WORD_BYTES })
    }

    /// Copies the packets of a record.
    #[inline]
    pub(crate) fn copy_out(&self, record: &Record, packets: &mut [u8]) {
        self.memory.copy_out(record.at, &mut packets[..record.header.total_bytes]);
    }

    /// Returns the memory of the ring.
    #[inline]
    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }

    /// Lets the writer overwrite all records that were popped.
    #[inline]
    pub(crate) fn release(&mut self) {
        if self.released != self.head {
            self.released = self.head;
            self.memory.set_head(self.head);
        }
    }

    /// Asks the writer to wake this side with its next record. Returns false if a record is there already.
    pub(crate) fn arm(&self) -> bool {
        if !self.memory.sleeps() {
            self.memory.set_sleeps(true);
        }
        self.memory.fence();
        self.is_broken || self.memory.load(self.start()) == 0
    }

    /// Returns whether the writer will wake this side with its next record.
    pub(crate) fn is_armed(&self) -> bool {
        self.memory.sleeps()
    }

    /// Returns the bytes of all records that were read.
    pub(crate) fn position(&self) -> u64 {
        self.head
    }

    /// Returns whether a record is there, without reading it.
    pub(crate) fn has_record(&self) -> bool {
        !self.is_broken && self.memory.load(self.start()) != 0
    }

    /// Returns whether the writer wrote something that is no record. Then the reader reads nothing any more.
    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken
    }

    fn start(&self) -> usize {
        self.head as usize & (self.memory.capacity() - 1)
    }
}
