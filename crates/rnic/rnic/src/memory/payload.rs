//! Packets that arrived, in memory of this process or in memory that their sender may write concurrently.

use std::marker::PhantomData;
use std::ptr;

/// Bytes that are only copied and never inspected, since their sender may change them concurrently.
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
    /// All of them must be mapped for as long as this value and its copies live.
    #[inline]
    pub unsafe fn shared(start: *const u8, length: usize) -> Self {
        Self { start, length, lives: PhantomData }
    }

    /// Returns the number of bytes.
    #[inline]
    pub fn len(self) -> usize {
        self.length
    }

    /// Returns whether there are no bytes.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.length == 0
    }

    /// Returns the bytes before `at`, and the bytes from `at` on.
    ///
    /// # Panics
    ///
    /// If there are fewer bytes.
    #[inline]
    pub fn split_at(self, at: usize) -> (Self, Self) {
        assert!(at <= self.length);
        let rest = Self { start: self.start.wrapping_add(at), length: self.length - at, ..self };
        (Self { length: at, ..self }, rest)
    }

    /// Copies the bytes.
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

/// Bytes of a packet that hold all headers that an RNIC reads, with some to spare: BTH and AtomicETH take 40.
pub const HEADERS_BYTES_MAX: usize = 64;

/// A packet, or the rest of it after headers that were read.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Its first bytes in private memory.
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
    /// Creates a packet from memory that its sender may write concurrently. `headers` is a copy of its first
    /// [`HEADERS_BYTES_MAX`] bytes, or of all bytes if there are fewer. Headers are read from the copy alone.
    ///
    /// # Panics
    ///
    /// If the length of `headers` is neither [`HEADERS_BYTES_MAX`] nor that of a shorter packet.
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

    /// Takes a header off.
    #[inline]
    pub(crate) fn split<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (header, rest) = self.headers.split_first_chunk::<N>()?;
        *self = Self { headers: rest, bytes: self.bytes.split_at(N).1 };
        Some(header)
    }

    /// Returns the remaining bytes without padding of this length, or `None` if there are fewer.
    #[inline]
    pub(crate) fn payload(self, padding: u8) -> Option<Payload<'a>> {
        let length = self.bytes.len().checked_sub(padding.into())?;
        Some(self.bytes.split_at(length).0)
    }
}
