//! Received packets, in memory of this process or in memory that the sender of the packets may write at the same time.

use std::marker::PhantomData;
use std::ptr;

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
