//! A ring of records in memory that two processes share. One process writes records, and the other process reads them.
//!
//! Each record contains a run of packets. A record begins at the start of a cache line, with a word that encodes its
//! [`Header`]. The packets follow the word, so a record with a short message takes one cache line. A word of 0 at the
//! place of the next record means that the writer has not written that record yet. To publish a record, the writer
//! first stores 0 at the place of the record after it, and then stores the word. So at the place of the next record,
//! the reader finds either 0 or a published word. The reader's position, [`Memory::head`], tells the writer how much of
//! the ring it may overwrite.
//!
//! Neither side trusts the other. A writer accepts the reader's position only if it lies between the reader's last
//! position and the writer's own. A reader accepts a header only if its lengths are possible. If a header claims more
//! bytes than the writer wrote, the reader reads old bytes of the same ring. A process may be killed at any step, and
//! the ring stays valid for the other process. A record whose word was not stored does not exist for the reader. A
//! record that the reader did not release is never overwritten.
//!
//! The ring accesses its memory through the trait [`Memory`], so that a model checker can test the order of accesses.

use doorbell_rnic::{MAX_RUN_BYTES, MAX_RUN_PACKETS};

/// Alignment of records in bytes: the size of a cache line.
pub(crate) const LINE_BYTES: usize = 64;

/// Size of the word at the start of a record in bytes.
pub(crate) const WORD_BYTES: usize = 8;

/// Memory of a ring, which writer and reader access. Offsets count bytes from the start of the ring. An access may
/// extend beyond the end of the ring by less than the capacity; then it continues at the start.
pub(crate) trait Memory {
    /// Returns the size of the ring in bytes, which is a power of two.
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
    /// Gives the memory of the ring back to the kernel. All its bytes are 0 afterwards. No thread may copy from the
    /// ring at the same time.
    fn discard(&self);
}

/// Contents of the word at the start of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Bytes of all packets.
    pub(crate) total_bytes: usize,
    /// Bytes of each packet. The last packet may be shorter.
    pub(crate) segment_bytes: usize,
    /// Traffic class of the packets.
    pub(crate) traffic_class: u8,
    /// Hop limit of the packets.
    pub(crate) hop_limit: u8,
}

/// Number of bits of each length in the word. [`MAX_RUN_BYTES`] fits into them.
const LENGTH_BITS: u32 = 17;

/// Bit that is set in the word of each record, so that no such word is 0.
const PRESENT: u64 = 1 << 63;

impl Header {
    fn encode(self) -> u64 {
        PRESENT
            | u64::from(self.traffic_class) << (2 * LENGTH_BITS + 8)
            | u64::from(self.hop_limit) << (2 * LENGTH_BITS)
            | (self.segment_bytes as u64) << LENGTH_BITS
            | self.total_bytes as u64
    }

    /// Decodes a word. Returns `None` if the lengths are impossible for a run.
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

    /// Returns the number of packets.
    pub(crate) fn packets(self) -> usize {
        self.total_bytes.div_ceil(self.segment_bytes)
    }

    /// Returns the number of bytes that a record with this header takes in the ring.
    pub(crate) fn record_bytes(self) -> u64 {
        (WORD_BYTES + self.total_bytes).next_multiple_of(LINE_BYTES) as u64
    }
}

/// Returns the word of a record with this header, for tests that write records without a [`Writer`].
#[cfg(test)]
pub(crate) fn word_of(header: Header) -> u64 {
    header.encode()
}

/// The writing side of a ring.
#[derive(Debug)]
pub(crate) struct Writer<M> {
    memory: M,
    /// Position of the next record: the total bytes of all records written so far.
    tail: u64,
    /// Position of the reader when the writer loaded it last.
    head: u64,
    /// Value of `tail` when the ring's memory was given back last.
    discarded_at: u64,
}

impl<M: Memory> Writer<M> {
    /// Creates the writer of an empty ring that is all zeros.
    pub(crate) fn new(memory: M) -> Self {
        Self { memory, tail: 0, head: 0, discarded_at: 0 }
    }

    /// Writes a record with one run, with the packets in order. Returns false if the ring has no room for the record.
    #[inline]
    pub(crate) fn push<'a>(&mut self, header: Header, packets: impl Iterator<Item = &'a [u8]>) -> bool {
        let record_bytes = header.record_bytes();
        // The writer stores 0 at the place of the record after this one, so the first cache line of that place must be
        // free as well.
        if !self.has_room(record_bytes + LINE_BYTES as u64) {
            return false;
        }
        let mut at = 0;
        self.publish(
            header,
            packets.map(|packet| {
                at += packet.len();
                (at - packet.len(), packet)
            }),
        );
        true
    }

    /// Returns the offset and the length of free memory in which the caller may prepare the next records. The length is
    /// a multiple of [`LINE_BYTES`]. The first record begins at the offset, with its word. Each following record begins
    /// [`Header::record_bytes`] later. The caller publishes the records with [`publish`](Self::publish), in order.
    pub(crate) fn free_memory(&mut self) -> (usize, usize) {
        let capacity = self.memory.capacity() as u64;
        self.has_room(capacity); // load the position of the reader
        // As in `push`: the first cache line after the last record must be free as well.
        let free = (capacity - (self.tail - self.head)).saturating_sub(LINE_BYTES as u64) as usize;
        (self.start(), free - free % LINE_BYTES) // a hostile reader may have any position
    }

    /// Writes a record, some of whose bytes the caller has written already to [free memory](Self::free_memory). `parts`
    /// are the other bytes of the packets, each with its offset from the start of the first packet.
    #[inline]
    pub(crate) fn publish<'a>(&mut self, header: Header, parts: impl Iterator<Item = (usize, &'a [u8])>) {
        let start = self.start();
        for (from, part) in parts {
            let is_inside = from <= header.total_bytes && part.len() <= header.total_bytes - from;
            debug_assert!(is_inside, "the packets are longer than the header says");
            if is_inside {
                self.memory.copy_in(start + WORD_BYTES + from, part);
            }
        }
        self.tail += header.record_bytes();
        self.memory.store(self.start(), 0);
        self.memory.store(start, header.encode());
    }

    fn start(&self) -> usize {
        self.tail as usize & (self.memory.capacity() - 1)
    }

    /// Returns whether the caller must wake the reader. The caller asks after it has written all records. At most one
    /// call per sleep of the reader returns true.
    #[inline]
    pub(crate) fn must_wake(&self) -> bool {
        // This fence pairs with the fence in `Reader::arm`. So the writer sees the reader's request to be woken, or the
        // reader sees the new record.
        self.memory.fence();
        self.memory.sleeps() && self.memory.set_sleeps(false)
    }

    /// Records that the caller could not wake the reader. The next call of `must_wake` returns true again. That call
    /// comes with the next record, at the latest with a retransmission.
    #[cold]
    pub(crate) fn failed_to_wake(&self) {
        self.memory.set_sleeps(true);
    }

    /// Returns the total bytes of all records written so far.
    #[inline]
    pub(crate) fn position(&self) -> u64 {
        self.tail
    }

    /// Returns an upper bound of the memory, in bytes, that written records occupy in the ring.
    #[inline]
    pub(crate) fn kept_bytes(&self) -> u64 {
        (self.tail - self.discarded_at).min(self.memory.capacity() as u64)
    }

    /// Returns the memory of the ring.
    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }

    /// Gives the ring's memory back to the kernel if the reader has read all records. Returns whether the memory was
    /// given back.
    ///
    /// Only the writer may call this. For the reader, nothing changes: the word at the place of the next record is 0
    /// both before and after the call.
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

/// A record that the reader has found. After [`Reader::release`], the writer may overwrite its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    /// Contents of the record's word.
    pub(crate) header: Header,
    /// Offset of the record's packets in the ring.
    pub(crate) at: usize,
}

/// The reading side of a ring.
#[derive(Debug)]
pub(crate) struct Reader<M> {
    memory: M,
    head: u64,
    released: u64,
    /// Whether the writer wrote an invalid header.
    is_broken: bool,
}

impl<M: Memory> Reader<M> {
    /// Creates the reader of a new ring.
    pub(crate) fn new(memory: M) -> Self {
        Self { memory, head: 0, released: 0, is_broken: false }
    }

    /// Returns the next record, if there is one. The caller must copy the packets before it calls
    /// [`release`](Self::release).
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

    /// Copies the packets of a record to `packets`.
    #[inline]
    pub(crate) fn copy_out(&self, record: &Record, packets: &mut [u8]) {
        self.memory.copy_out(record.at, &mut packets[..record.header.total_bytes]);
    }

    /// Returns the memory of the ring.
    #[inline]
    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }

    /// Lets the writer overwrite all records that [`pop`](Self::pop) has returned.
    #[inline]
    pub(crate) fn release(&mut self) {
        if self.released != self.head {
            self.released = self.head;
            self.memory.set_head(self.head);
        }
    }

    /// Asks the writer to wake the reader after the next record. Returns false if the ring already contains an unread
    /// record.
    pub(crate) fn arm(&self) -> bool {
        if !self.memory.sleeps() {
            self.memory.set_sleeps(true);
        }
        self.memory.fence();
        self.is_broken || self.memory.load(self.start()) == 0
    }

    /// Returns whether the writer will wake the reader after the next record.
    pub(crate) fn is_armed(&self) -> bool {
        self.memory.sleeps()
    }

    /// Returns the total bytes of all records read so far.
    pub(crate) fn position(&self) -> u64 {
        self.head
    }

    /// Returns whether the ring contains an unread record.
    pub(crate) fn has_record(&self) -> bool {
        !self.is_broken && self.memory.load(self.start()) != 0
    }

    /// Returns whether the writer wrote an invalid record. If so, the reader reads no further records.
    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken
    }

    fn start(&self) -> usize {
        self.head as usize & (self.memory.capacity() - 1)
    }
}
