//! Received packets, in memory of this process or in memory that the sender of the packets may write at the same time.

use std::any::Any;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

/// Bytes that the RNIC copies and never inspects, since their sender may change them at any time.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a> {
    start: *const u8,
    length: usize,
    lives: PhantomData<&'a [u8]>,
}

impl<'a> From<&'a [u8]> for Payload<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Self {
        Self { start: bytes.as_ptr(), length: bytes.len(), lives: PhantomData }
    }
}

impl Payload<'_> {
    /// Creates a payload from memory that another process may write at any time.
    ///
    /// # Safety
    ///
    /// All bytes must stay mapped as long as this value and its copies live.
    #[inline]
    pub unsafe fn shared(start: *const u8, length: usize) -> Self {
        Self { start, length, lives: PhantomData }
    }

    /// Returns the number of bytes.
    #[inline]
    pub fn len(self) -> usize {
        self.length
    }

    /// Returns whether the payload has no bytes.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.length == 0
    }

    /// Returns the bytes before `at`, and the bytes from `at` on.
    ///
    /// # Panics
    ///
    /// If the payload has fewer than `at` bytes.
    #[inline]
    pub fn split_at(self, at: usize) -> (Self, Self) {
        assert!(at <= self.length);
        let rest = Self { start: self.start.wrapping_add(at), length: self.length - at, ..self };
        (Self { length: at, ..self }, rest)
    }

    /// Copies the bytes to `out`.
    ///
    /// # Panics
    ///
    /// If `out` has another length.
    pub fn copy_to(self, out: &mut [u8]) {
        assert_eq!(out.len(), self.length);
        // SAFETY: the bytes are mapped, and `out` is private memory of the same length.
        unsafe { ptr::copy_nonoverlapping(self.start, out.as_mut_ptr(), self.length) }
    }

    /// Returns the address of the first byte, for raw copies.
    #[inline]
    pub(super) fn start(self) -> *const u8 {
        self.start
    }
}

/// Memory of this process to which the RNIC copies bytes, and which it never reads. Another process may access the
/// memory at the same time.
#[derive(Debug)]
pub(crate) struct Room<'a> {
    start: *mut u8,
    length: usize,
    lives: PhantomData<&'a mut [u8]>,
}

impl<'a> From<&'a mut [u8]> for Room<'a> {
    #[inline]
    fn from(bytes: &'a mut [u8]) -> Self {
        Self { start: bytes.as_mut_ptr(), length: bytes.len(), lives: PhantomData }
    }
}

impl Room<'_> {
    /// Returns the number of bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Returns whether the room has no bytes.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Removes the first `length` bytes and returns them.
    ///
    /// # Panics
    ///
    /// If the room has fewer bytes.
    #[inline]
    pub(crate) fn take(&mut self, length: usize) -> Self {
        assert!(length <= self.length);
        let first = Self { start: self.start, length, lives: PhantomData };
        self.start = self.start.wrapping_add(length);
        self.length -= length;
        first
    }

    /// Sets all bytes to 0.
    pub(super) fn clear(self) {
        // SAFETY: the bytes are mapped, and no other code of this process uses them.
        unsafe { ptr::write_bytes(self.start, 0, self.length) }
    }

    /// Stores a word.
    ///
    /// # Panics
    ///
    /// If the room does not have exactly eight bytes.
    #[inline]
    pub(crate) fn put(self, word: u64) {
        assert_eq!(self.length, size_of::<u64>());
        // SAFETY: the eight bytes are mapped, and no other code of this process uses them.
        unsafe { self.start.cast::<u64>().write_unaligned(word) }
    }

    /// Returns the address of the first byte, for raw copies.
    #[inline]
    pub(super) fn start(&self) -> *mut u8 {
        self.start
    }
}

/// Memory outside of a batch, in which the RNIC places the payloads of packets.
#[derive(Debug)]
pub struct LentMemory {
    start: *mut u8,
    length: usize,
    /// Owner of the mapping. The field is never read.
    _mapping: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the contract of `new` names no thread.
unsafe impl Send for LentMemory {}
// SAFETY: a shared reference gives no access to the memory.
unsafe impl Sync for LentMemory {}

impl LentMemory {
    /// Creates a value for `length` bytes from `start` on. Another process may access the bytes at the same time.
    ///
    /// # Safety
    ///
    /// The bytes stay mapped and writable as long as `mapping` lives. As long as the value lives, no other code of this
    /// process uses the bytes, except by raw copies under the lock of the device.
    pub unsafe fn new(start: *mut u8, length: usize, mapping: Arc<dyn Any + Send + Sync>) -> Self {
        Self { start, length, _mapping: mapping }
    }

    /// Returns the number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Returns a range of the memory.
    ///
    /// # Panics
    ///
    /// If the memory does not have these bytes.
    #[inline]
    pub(crate) fn room(&mut self, at: usize, length: usize) -> Room<'_> {
        assert!(at <= self.length && length <= self.length - at);
        Room { start: self.start.wrapping_add(at), length, lives: PhantomData }
    }
}

/// Maximum bytes of a packet that an RNIC reads as headers. The longest headers are BTH and AtomicETH, with 40 bytes
/// together.
pub const HEADERS_BYTES_MAX: usize = 64;

/// A packet, or the rest of a packet after the headers that were already read.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// First remaining bytes, in private memory.
    headers: &'a [u8],
    /// All remaining bytes.
    bytes: Payload<'a>,
}

impl<'a> From<&'a [u8]> for Packet<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Self {
        Self { headers: bytes, bytes: bytes.into() }
    }
}

impl<'a> Packet<'a> {
    /// Creates a packet from memory that the sender of the packet may write at the same time. `headers` is a copy of
    /// the first [`HEADERS_BYTES_MAX`] bytes, or of all bytes of a shorter packet. The RNIC reads headers only from
    /// this copy.
    ///
    /// # Panics
    ///
    /// If the length of `headers` is not the smaller of [`HEADERS_BYTES_MAX`] and the length of the packet.
    #[inline]
    pub fn with_headers(headers: &'a [u8], bytes: Payload<'a>) -> Self {
        assert_eq!(headers.len(), bytes.len().min(HEADERS_BYTES_MAX));
        Self { headers, bytes }
    }

    /// Returns all remaining bytes.
    #[inline]
    pub fn bytes(self) -> Payload<'a> {
        self.bytes
    }

    /// Returns the number of remaining bytes.
    #[inline]
    pub(crate) fn len(self) -> usize {
        self.bytes.len()
    }

    /// Removes a header of `N` bytes from the front and returns it; `None` if fewer bytes remain.
    #[inline]
    pub(crate) fn split<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (header, rest) = self.headers.split_first_chunk::<N>()?;
        *self = Self { headers: rest, bytes: self.bytes.split_at(N).1 };
        Some(header)
    }

    /// Returns the remaining bytes without `padding` bytes at the end, or `None` if fewer bytes remain.
    #[inline]
    pub(crate) fn payload(self, padding: u8) -> Option<Payload<'a>> {
        let length = self.bytes.len().checked_sub(padding.into())?;
        Some(self.bytes.split_at(length).0)
    }
}
